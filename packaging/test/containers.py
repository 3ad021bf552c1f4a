#!/usr/bin/python3
"""containers.py TARGET: does what docker would do with compose.yaml and the Dockerfile, in bare systems.

Each stage of the Dockerfile gets a system of its own, made by debootstrap; the one that builds also gets the Rust of
this machine, as the image that it is from has one. The steps are executed in it, and then the service's command, with
the environment that compose.yaml gives it. All services share one loopback and have no other network. An instruction
or a key that is not known here is an error: nothing in these files goes untested.
"""
import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import yaml

HERE = pathlib.Path(__file__).resolve().parent
CONTEXT = HERE.parent.parent
TARGET = pathlib.Path(sys.argv[1]).resolve()
MACHINES = TARGET / "chroot"
VARIABLES = {"RELAY_PASSWORD": "a 'quoted' password"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def instructions(image, stage):
    """Those of the stage of this name, which is from this image, as pairs of a name and its argument."""
    lines = re.sub(r"^#.*\n", "", (CONTEXT / "packaging/Dockerfile").read_text(), flags=re.M)
    steps = [line.split(None, 1) for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    begin = steps.index(["FROM", f"{image} AS {stage}"])
    end = next((i for i in range(begin + 1, len(steps)) if steps[i][0] == "FROM"), len(steps))
    return steps[begin + 1 : end]


def output(*command):
    return subprocess.check_output(command, cwd=CONTEXT, text=True)


class Image:
    """A stage of the Dockerfile: a system in which its steps were executed."""

    def __init__(self, image, stage, stack):
        self.root = MACHINES / f"container-{stage}"
        self.directory = "/"
        self.variables = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
        self.user, self.entry, self.command, self.stop_signal = "root", [], [], "SIGTERM"
        shutil.rmtree(self.root, ignore_errors=True)
        stack.callback(shutil.rmtree, self.root)
        self.root.mkdir()
        subprocess.run(["tar", "xf", MACHINES / "15.tar", "-C", self.root], check=True)
        # As docker does it, but for the base image: services know each other by name.
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost server relay\n")
        if image.startswith("rust:"):
            self.add_rust()
        for instruction, argument in instructions(image, stage):
            getattr(self, "do_" + instruction.lower())(argument)

    def add_rust(self):
        """What an image of Rust has, beside Debian: Rust, make, git, and the network's own certificate authority."""
        shutil.copytree(output("rustc", "--print", "sysroot").strip(), self.root / "opt/rust", symlinks=True)
        for file in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
            shutil.copy(file, self.root / "etc")
        self.variables["PATH"] = f"/opt/rust/bin:{PATH}"
        self.variables["SSL_CERT_FILE"] = self.variables["CARGO_HTTP_CAINFO"] = "/etc/ca-certificates.crt"
        self.do_run("apt-get update -qq && apt-get install -qq make git ca-certificates")

    def do_workdir(self, argument):
        self.directory = argument
        (self.root / argument.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def do_copy(self, argument):
        """From the context, of which the directory "." is what git has, or from the stage that builds."""
        *sources, destination = argument.split()
        directory = self.root / os.path.join(self.directory, destination).lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        if sources == ["."]:
            files = output("git", "ls-files", "-z").split("\0")
            subprocess.run(["cp", "--parents", "-at", directory, *filter(None, files)], cwd=CONTEXT, check=True)
            return
        origin = CONTEXT
        if sources[0] == "--from=build":
            origin, sources = MACHINES / "container-build", [source.lstrip("/") for source in sources[1:]]
        found = [file for source in sources for file in glob.glob(str(origin / source))]
        assert found, argument
        for file in found:
            shutil.copy(file, directory)

    def do_run(self, argument):
        enter = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", enter, self.root,
             "env", "-i", f"--chdir={self.directory}", *variables, "sh", "-c", argument],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        assert done.returncode == 0, f"RUN {argument}\n{done.stdout}"

    def do_user(self, argument):
        self.user = argument

    def do_entrypoint(self, argument):
        self.entry = json.loads(argument)

    def do_cmd(self, argument):
        self.command = json.loads(argument)

    def do_stopsignal(self, argument):
        self.stop_signal = argument

    def do_volume(self, argument):
        assert (self.root / argument.lstrip("/")).is_dir(), argument


class Container(Image):
    """A service of compose.yaml."""

    def __init__(self, service, network, stack):
        known = {"build", "command", "environment", "volumes", "restart", "stop_grace_period", "depends_on"}
        assert service.keys() <= known, service.keys() - known
        assert service["build"].items() >= {"context": "..", "dockerfile": "packaging/Dockerfile"}.items()
        super().__init__("debian:bookworm-slim", service["build"]["target"], stack)
        self.network = network
        self.process = None
        self.command = service.get("command", self.command)
        self.environment = {
            key: re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: VARIABLES[match[1]], value)
            for key, value in service["environment"].items()
        }

    def inside(self, *command):
        """A command line for it, with namespaces of its own and its user."""
        mounts = 'mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec "$@"'
        return [
            "nsenter", f"--net=/proc/{self.network}/ns/net", "unshare", "--mount", "--pid", "--fork", "--kill-child",
            "sh", "-c", mounts, self.root, "chroot", f"--userspec={self.user}", self.root,
            "env", "-i", f"PATH={PATH}", *(f"{k}={v}" for k, v in self.environment.items()), *command,
        ]

    def start(self, *more):
        with open(self.root.with_suffix(".log"), "w") as log:
            self.process = subprocess.Popen(self.inside(*self.entry, *self.command, *more), stdout=log, stderr=log)

    def stop(self):
        """As docker stop."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        os.kill(int(children), signal.Signals[self.stop_signal])
        assert self.process.wait(60) == 0, f"{self.root.name}: {self.process.returncode}\n{self.log()}"
        self.process = None

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def log(self):
        return self.root.with_suffix(".log").read_text()


def wait_for(what, condition, containers):
    deadline = time.monotonic() + 60
    while not condition():
        logs = "\n".join(container.log() for container in containers)
        assert time.monotonic() < deadline, f"waited in vain for {what}\n{logs}"
        time.sleep(0.2)


def main():
    print("Containers in bare systems:")
    subprocess.run([HERE / "base.sh", "15", MACHINES], check=True)
    compose = yaml.safe_load((CONTEXT / "packaging/compose.yaml").read_text())
    assert compose.keys() == {"name", "services", "volumes"}
    with contextlib.ExitStack() as stack:
        network = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep infinity"])
        stack.callback(network.wait)
        stack.callback(network.kill)
        print("  build", flush=True)
        Image("rust:1.88-bookworm", "build", stack)
        containers = {}
        for name, service in compose["services"].items():
            print("  build", name, flush=True)
            containers[name] = Container(service, network.pid, stack)
            stack.callback(containers[name].kill)
        enter = ["nsenter", f"--net=/proc/{network.pid}/ns/net"]
        received = MACHINES / "container.received"
        received.write_text("")
        receiver = subprocess.Popen([*enter, "/usr/bin/python3", HERE / "receiver.py", "9000", received])
        stack.callback(receiver.wait)
        stack.callback(receiver.kill)
        use(containers["server"], containers["relay"], enter, received)


def use(server, relay, enter, received):
    def start():
        server.start()
        # Receivers of the test are on loopback, which is refused by default.
        relay.start("--allow-networks", "127.0.0.0/8")
        healthz = [*enter, "curl", "--silent", "--fail", "http://127.0.0.1:8080/healthz"]
        healthy = lambda: subprocess.run(healthz, stdout=subprocess.DEVNULL).returncode == 0
        wait_for("the relay to be healthy", healthy, [server, relay])

    def sql(*statements):
        commands = [word for statement in statements for word in ("--command", statement)]
        psql = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1", "app"]
        return subprocess.check_output(server.inside(*psql, *commands), text=True).strip()

    def deliver():
        event = sql("SELECT webhook_emit('order.created')")
        wait_for("a delivery", lambda: event in received.read_text(), [server, relay])

    print("  up: the relay delivers from the server", flush=True)
    (server.root / "etc/postgresql/15/main/conf.d/test.conf").write_text("webhook.allow_networks = '127.0.0.0/8'\n")
    start()
    sql("SELECT webhook_set_endpoint('shipping', 'http://127.0.0.1:9000/', event_types => '{order.*}')")
    deliver()
    print("  down, and up again", flush=True)
    relay.stop()
    server.stop()
    start()
    deliver()
    relay.stop()
    server.stop()


main()
