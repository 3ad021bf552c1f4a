//! A real PgBouncer in front of a cluster.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use postgres::{Client, Config, NoTls};

use crate::cluster::Cluster;
use crate::directory::ServerDirectory;
use crate::log::ServerLog;
use crate::process::{Process, unprivileged};
use crate::{port, wait};

/// Named in full because /usr/sbin is not on an ordinary user's PATH.
const DEBIAN_PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Its fields are dropped in this order: the process ends before its files go.
pub struct PgBouncer {
    process: Process,
    directory: ServerDirectory,
    port: u16,
}

impl PgBouncer {
    /// A pool of transactions.
    pub fn start(cluster: &Cluster) -> PgBouncer {
        PgBouncer::start_with(cluster, "pool_mode = transaction")
    }

    /// With these lines of its configuration.
    pub fn start_with(cluster: &Cluster, settings: &str) -> PgBouncer {
        let lines = configuration(cluster.port(), settings);
        let directory = ServerDirectory::create("e2e");
        let port = port::free();
        let settings = directory.join("pgbouncer.ini");
        fs::write(&settings, format!("{lines}\nlisten_port = {port}\n"))
            .expect("its directory is ours");

        let debian = Path::new(DEBIAN_PROGRAM);
        let program = if debian.exists() {
            debian
        } else {
            Path::new("pgbouncer")
        };
        let log = log(&directory);
        let mut command = unprivileged(program);
        command.arg(&settings).current_dir(directory.path());
        command.stdin(Stdio::null()).stderr(log.open());
        let pgbouncer = PgBouncer {
            process: Process::spawn(command, libc::SIGTERM),
            directory,
            port,
        };
        pgbouncer.wait_until_it_forwards();
        pgbouncer
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A session may run each transaction on another server connection, so nothing prepared outlives one:
    /// use `simple_query` and `batch_execute`, or parameters within a transaction.
    #[track_caller]
    pub fn connect(&self, database: &str) -> Client {
        let client = self.config(database).connect(NoTls);
        client.unwrap_or_else(|error| panic!("could not connect through PgBouncer: {error:?}"))
    }

    fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user("postgres");
        config.connect_timeout(wait::DEADLINE).dbname(database);
        config
    }

    fn wait_until_it_forwards(&self) {
        wait::until("PgBouncer to forward connections", || {
            if let Some(status) = self.process.exit_status() {
                panic!(
                    "PgBouncer ended with {status}:\n{}",
                    log(&self.directory).last_lines()
                );
            }
            self.config("postgres").connect(NoTls).map(drop)
        });
    }
}

fn log(directory: &ServerDirectory) -> ServerLog {
    ServerLog::new(directory.join("pgbouncer.log"))
}

fn configuration(server_port: u16, settings: &str) -> String {
    format!(
        "[databases]
* = host=127.0.0.1 port={server_port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
unix_socket_dir =
auth_type = any
{settings}"
    )
}
