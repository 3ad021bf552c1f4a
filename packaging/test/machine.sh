# shellcheck shell=sh disable=SC2154
# A machine for tests: a bare system that is booted in namespaces of its own. To be sourced, with pg and target set.

machines=$target/chroot
root=$machines/$pg
cgroup=
receiver=

# Everything in the cgroup dies with it, and its mounts and its network with the processes.
destroy() {
    status=$?
    [ "$status" = 0 ] || inside journalctl --no-pager --lines 30 >&2 || true
    [ -z "$receiver" ] || kill "$receiver" 2>/dev/null || true
    if [ -n "$cgroup" ] && [ -d "$cgroup" ]; then
        echo 1 >"$cgroup/cgroup.kill"
        until [ "$(sed -n 's/^populated //p' "$cgroup/cgroup.events")" = 0 ]; do sleep 0.1; done
        find "$cgroup" -depth -type d -exec rmdir {} +
    fi
    rm -rf "$root"
    exit "$status"
}

make_machine() {
    [ "$(id -u)" = 0 ] || { echo "Only root can make a system to test in." >&2; exit 1; }
    mkdir -p "$machines"
    "$tests/base.sh" "$pg" "$machines"
    trap destroy EXIT
    trap 'exit 130' INT TERM
    rm -rf "$root"
    mkdir -p "$root/packages"
    tar --extract --file "$machines/$pg.tar" --directory "$root"
    # Programs that are installed before the boot are not started.
    chroot "$root" apt-get install -qq systemd >"$machines/$pg.log" 2>&1
}

boot_machine() {
    own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    hierarchy=$(findmnt --noheadings --output TARGET --types cgroup2 | head -1)
    cgroup=$hierarchy${own%/}/webhook-packages-$$
    mkdir "$cgroup"
    sh -c 'echo $$ >"$1/cgroup.procs" && exec unshare --mount --pid --net --uts --ipc --cgroup --fork "$2/boot.sh" "$3"' \
        - "$cgroup" "$tests" "$root" >"$machines/$pg.log" 2>&1 &
    wait_for "systemd to be up" booted
}

booted() {
    machine=$(for pid in $(cat "$cgroup/init.scope/cgroup.procs" 2>/dev/null); do
        [ "$(cat "/proc/$pid/comm")" != systemd ] || echo "$pid"
    done | head -1)
    [ -n "$machine" ] && inside systemctl is-system-running | grep -Eq 'running|degraded'
}

inside() {
    nsenter --target "$machine" --all -- \
        env -i --chdir=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}

# A receiver on 127.0.0.1:9000 of the machine, whose ids are in $received.
start_receiver() {
    received=$machines/$pg.received
    : >"$received"
    nsenter --target "$machine" --net -- /usr/bin/python3 "$tests/receiver.py" 9000 "$received" &
    receiver=$!
}

# wait_for WHAT COMMAND..: until the command succeeds, at most a minute.
wait_for() {
    what=$1
    shift
    deadline=$(($(date +%s) + 60))
    until "$@" >"$machines/$pg.waited" 2>&1; do
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "Waited in vain for $what:" >&2
            cat "$machines/$pg.waited" >&2
            exit 1
        fi
        sleep 0.2
    done
}

step() {
    echo "  $*"
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
