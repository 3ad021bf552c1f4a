//! A relay: the program that delivers from outside of the server.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, ExitStatus, Stdio};

use libc::c_int;

use crate::directory::ServerDirectory;
use crate::log::ServerLog;
use crate::process::{Process, unprivileged};
use crate::{port, wait};

/// Receivers are on loopback.
const LOOPBACK: [&str; 4] = [
    "--allow-networks",
    "127.0.0.0/8",
    "--allow-ports",
    "1-65535",
];

/// Its fields are dropped in this order: the process ends before its files go.
pub struct Relay {
    process: Process,
    directory: ServerDirectory,
}

impl Relay {
    /// The program, without variables of the test process; `path` is where cargo has put it.
    pub fn program(path: &str) -> Command {
        let mut command = unprivileged(path);
        command.env_clear().arg("run");
        command
    }

    /// Waits until it is connected.
    #[track_caller]
    pub fn start(path: &str, connection: &str, options: &[&str]) -> Relay {
        Relay::start_as(Relay::program(path), connection, options)
    }

    /// The same with a [`Relay::program`] whose environment was changed.
    #[track_caller]
    pub fn start_as(mut command: Command, connection: &str, options: &[&str]) -> Relay {
        command.args(LOOPBACK).args(options).arg(connection);
        let relay = Relay::spawn(command);
        relay.wait_for_log("is connected to");
        relay
    }

    pub fn spawn(mut command: Command) -> Relay {
        let directory = ServerDirectory::create("e2e");
        let log = log(&directory);
        command.current_dir(directory.path());
        command.stdin(Stdio::null()).stderr(log.open());
        Relay {
            process: Process::spawn(command, libc::SIGKILL),
            directory,
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    pub fn log(&self) -> String {
        log(&self.directory).text()
    }

    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        wait::until(&format!("the relay to log {text:?}"), || {
            let log = self.log();
            match log.contains(text) {
                true => Ok(()),
                false => Err(log),
            }
        });
    }

    /// Sends SIGTERM, as a service manager does.
    pub fn terminate(&self) {
        self.process.signal(libc::SIGTERM);
    }

    pub fn signal(&self, signal: c_int) {
        self.process.signal(signal);
    }

    pub fn wait(&self) -> ExitStatus {
        self.process.wait()
    }
}

/// Takes the messages of a relay to systemd.
pub struct ServiceManager {
    name: String,
    socket: UnixDatagram,
}

impl ServiceManager {
    pub fn start() -> ServiceManager {
        let name = format!("webhook-relay-{}", port::free());
        let address = SocketAddr::from_abstract_name(&name).expect("the name is short");
        let socket = UnixDatagram::bind_addr(&address).expect("nobody else has the name");
        let timeout = socket.set_read_timeout(Some(wait::DEADLINE));
        timeout.expect("it is a time");
        ServiceManager { name, socket }
    }

    pub fn manage(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", format!("@{}", self.name));
    }

    /// Waits for the next message.
    pub fn told(&self) -> String {
        let mut buffer = [0; 1000];
        let length = self.socket.recv(&mut buffer);
        let length = length.expect("the relay says something");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

fn log(directory: &ServerDirectory) -> ServerLog {
    ServerLog::new(directory.join("relay.log"))
}
