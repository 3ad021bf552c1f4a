//! A redis-server of its own for each run, with an append-only file.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use webhook_e2e::directory::ServerDirectory;
use webhook_e2e::process::{Process, unprivileged};
use webhook_e2e::{port, wait};

/// When Redis has its append-only file on disk: a crash of the machine may take the last second of `everysec`.
#[derive(Clone, Copy, PartialEq)]
pub enum Fsync {
    EverySecond,
    Always,
}

impl Fsync {
    pub fn name(self) -> &'static str {
        match self {
            Fsync::EverySecond => "everysec",
            Fsync::Always => "always",
        }
    }
}

pub struct Redis {
    pub port: u16,
    server: Process,
    _directory: ServerDirectory,
}

pub fn installed() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let version = (text.split_whitespace()).find_map(|word| word.strip_prefix("v="));
    version.map(str::to_owned)
}

impl Redis {
    pub fn start(fsync: Fsync) -> Redis {
        let directory = ServerDirectory::create("bench");
        let port = port::free();
        let mut command = unprivileged("redis-server");
        command.current_dir(directory.path()).stdout(Stdio::null());
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--appendonly", "yes", "--appendfsync", fsync.name()]);
        // No snapshots, and no new file in the midst of a run.
        command.args(["--save", "", "--auto-aof-rewrite-percentage", "0"]);
        let redis = Redis {
            port,
            server: Process::spawn(command, libc::SIGKILL),
            _directory: directory,
        };
        wait::until("redis-server to answer", || {
            redis.file_size().ok_or("no answer")
        });
        redis
    }

    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    /// Bytes of the append-only file.
    pub fn file_size(&self) -> Option<i64> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        stream.write_all(b"INFO persistence\r\nQUIT\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let size = (text.lines()).find_map(|line| line.strip_prefix("aof_current_size:"));
        size?.trim().parse().ok()
    }
}
