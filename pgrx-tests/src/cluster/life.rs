//! The life of a server: initdb, start, stop, crash, promotion.

use std::fs;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use postgres::NoTls;

use super::Cluster;
use crate::process::{Process, complete};
use crate::template::Template;
use crate::wait;

/// fsync stays on, so that crash tests are honest. TCP alone: a socket's path may be longer than the
/// system allows. Receivers are on loopback, and some closed ports below 1024: no endpoint may
/// be there as installed.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 100
max_worker_processes = 40
log_min_messages = info
webhook.allow_networks = '127.0.0.0/8, ::1'
webhook.tenant_networks = '127.0.0.0/8, ::1'
webhook.allow_ports = '1-65535'
";

impl Cluster {
    pub(super) fn initialise(&mut self, preload: bool, options: &[&str]) {
        let mut initdb = self.server_program("initdb");
        initdb.args(["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]);
        initdb.args(["--username", &self.superuser, "--no-sync"]);
        let template = Template::of(&self.directory, initdb.args(options));
        template.copy_to(&self.data_directory());
        // Every server has an identifier of its own, as if initdb had made it.
        self.change_system_identifier();
        self.configure(SETTINGS);
        if preload {
            self.configure("shared_preload_libraries = 'webhook'");
        }
    }

    /// Starts a cluster that was stopped or killed.
    pub fn start_server(&mut self) {
        assert!(self.server.is_none(), "the server is already running");
        let mut command = self.server_program(&self.postgres);
        command.arg("-D").arg(self.data_directory());
        command.envs(self.environment.iter().cloned());
        // A session that is ended while it waits for a standby prints a prompt.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.server_log().open());
        self.server = Some(Process::spawn(command, libc::SIGQUIT));
        wait::until("the server to accept connections", || {
            if let Some(status) = self.running().exit_status() {
                panic!("the server ended with {status}");
            }
            self.config("postgres").connect(NoTls).map(drop)
        });
    }

    /// Fast shutdown: sessions are disconnected, the shutdown is clean.
    pub fn stop(&mut self) {
        self.running().signal(libc::SIGINT);
        self.running().wait();
        self.server = None;
    }

    pub fn restart(&mut self) {
        self.stop();
        self.start_server();
    }

    /// Immediate shutdown: nothing is written any more, and the next start has to recover.
    pub fn kill_immediately(&mut self) {
        self.running().quit();
        self.server = None;
    }

    /// Makes a primary of a standby.
    pub fn promote(&self) {
        let promoted = self
            .connect("postgres")
            .query_one("SELECT pg_promote()", &[]);
        assert!(promoted.expect("it is a standby").get::<_, bool>(0));
    }

    /// Makes a standby of `primary` of a former primary that was killed. Its recovery, in single-user mode, warns of
    /// nothing.
    pub fn rejoin(&mut self, primary: &Cluster) {
        assert!(self.server.is_none(), "the server is running");
        // Its control file names the new timeline from its first checkpoint on.
        let checkpoint = primary.connect("postgres").batch_execute("CHECKPOINT");
        checkpoint.expect("a primary makes a checkpoint");
        let mut rewind = self.server_program("pg_rewind");
        rewind.arg("--target-pgdata").arg(self.data_directory());
        rewind
            .arg("--source-server")
            .arg(primary.address(primary.port, "postgres"));
        rewind.args(["--write-recovery-conf", "--no-sync"]);
        let output = rewind.output().expect("pg_rewind is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !said.contains("WARNING"),
            "{said}"
        );
        // It has copied the configuration too.
        self.configure(&format!("port = {}", self.port));
        self.start_server();
    }

    /// Starts a server that has given up by itself. Waits for one that restarts itself.
    pub fn start_if_it_has_ended(&mut self) {
        let config = self.config("postgres");
        let runs = wait::until("the server to run or to end", || {
            match (self.running().exit_status(), config.connect(NoTls)) {
                (Some(_), _) => Ok(false),
                (None, Ok(_)) => Ok(true),
                (None, Err(error)) => Err(error.to_string()),
            }
        });
        if !runs {
            self.server = None;
            self.start_server();
        }
    }

    /// The postmaster is killed. Its children end when they notice; waits until they have.
    pub fn lose_postmaster(&mut self) {
        self.running().signal(libc::SIGKILL);
        self.running().wait();
        self.server = None;
        wait::until_true("the server's processes to end", || {
            self.attached_processes() == 0
        });
    }

    /// Counts the processes that have the shared memory attached that a new server looks for. A worker's last thread
    /// keeps it attached after /proc has lost sight of the process.
    fn attached_processes(&self) -> u32 {
        let pid_file = self.data_directory().join("postmaster.pid");
        let pid_file = fs::read_to_string(pid_file).expect("a killed server leaves its pid file");
        let segment = (pid_file.lines().nth(6)).and_then(|line| line.split_whitespace().nth(1));
        let segment = segment.expect("its seventh line has the key and the id of a segment");
        let segments = fs::read_to_string("/proc/sysvipc/shm").expect("the kernel lists them");
        let mut segments = segments
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let attached = segments.find(|columns| columns.get(1) == Some(&segment));
        attached.map_or(0, |columns| columns[6].parse().expect("a number"))
    }

    /// Gives a stopped cluster another system identifier, as pg_createsubscriber does.
    pub fn change_system_identifier(&self) {
        assert!(self.server.is_none(), "the server is running");
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let control = self.data_directory().join("global/pg_control");
        let mut bytes = fs::read(&control).expect("pg_control is readable");
        let lower_half = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let other = process::id().rotate_left(12) ^ COUNT.fetch_add(1, Ordering::Relaxed);
        bytes[..4].copy_from_slice(&lower_half.wrapping_add(other).to_ne_bytes());
        fs::write(&control, bytes).expect("pg_control can be written");
        // Makes the checksum right, and WAL of the new identifier.
        let mut reset = self.server_program("pg_resetwal");
        complete(reset.arg("--force").arg(self.data_directory()));
    }
}
