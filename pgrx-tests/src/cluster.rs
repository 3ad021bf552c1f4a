//! A throwaway PostgreSQL cluster on loopback.

mod builder;
mod life;
mod shared;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::SystemTime;

use postgres::{Client, Config, NoTls};

use crate::database::Database;
use crate::directory::ServerDirectory;
use crate::log::ServerLog;
use crate::process::{Process, unprivileged};
use crate::small_disk::SmallDisk;
use crate::wait;

pub use builder::Builder;

const HOST: &str = "127.0.0.1";

pub struct Cluster {
    programs: PathBuf,
    /// The program of the server, which may be a copy.
    postgres: PathBuf,
    directory: ServerDirectory,
    port: u16,
    superuser: String,
    environment: Vec<(String, String)>,
    server: Option<Process>,
    /// Whether there is a database to copy with the extension in it.
    has_template: OnceLock<()>,
    /// Holds a part of its files.
    small_disk: Option<SmallDisk>,
}

impl Cluster {
    /// A running cluster that preloads the extension.
    pub fn start() -> Cluster {
        Cluster::builder().start()
    }

    /// A new database with the extension and its test policy; in the shared cluster with the host's sender.
    pub fn database(&self, prefix: &str) -> Database {
        if self.is_shared() {
            return self.copy_of_template(prefix);
        }
        let database = self.plain_database(prefix);
        database.create_extension();
        database
    }

    pub fn plain_database(&self, prefix: &str) -> Database {
        self.new_database(prefix, "")
    }

    fn new_database(&self, prefix: &str, options: &str) -> Database {
        Database::create(self.config("postgres"), prefix, options, self.shared_log())
    }

    /// A database that the test made by other means, such as a copy; dropped like the others.
    pub fn existing_database(&self, name: &str) -> Database {
        Database::existing(self.config("postgres"), name.to_owned(), self.shared_log())
    }

    /// How to connect to a database as superuser.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host(HOST).port(self.port).user(&self.superuser);
        config.connect_timeout(wait::DEADLINE).dbname(database);
        config
    }

    /// The same as text, by this port or that of a proxy.
    pub fn address(&self, port: u16, database: &str) -> String {
        format!(
            "host={HOST} port={port} user={} dbname={database}",
            self.superuser
        )
    }

    /// The same as a URL, for drivers.
    pub fn url(&self, port: u16, database: &str) -> String {
        format!("postgresql://{}@{HOST}:{port}/{database}", self.superuser)
    }

    #[track_caller]
    pub fn connect(&self, database: &str) -> Client {
        let client = self.config(database).connect(NoTls);
        client.unwrap_or_else(|error| panic!("could not connect to {database}: {error:?}"))
    }

    /// A client program of this PostgreSQL version, such as pg_dump, set to connect to this cluster.
    pub fn program(&self, name: &str) -> Command {
        self.connecting(Command::new(self.programs.join(name)))
    }

    pub fn data_directory(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster.
    pub fn pid(&self) -> i32 {
        self.running().pid()
    }

    pub fn log(&self) -> String {
        self.server_log().text()
    }

    /// Adds lines to postgresql.conf; they count from the next reload or start.
    pub fn configure(&mut self, lines: &str) {
        let mut file = OpenOptions::new()
            .append(true)
            .open(self.data_directory().join("postgresql.conf"))
            .expect("postgresql.conf can be opened");
        writeln!(file, "{lines}").expect("postgresql.conf can be written");
    }

    /// Reloads the configuration and waits until new sessions see it.
    pub fn reload(&self) {
        let loaded_at = || -> SystemTime {
            let row = self
                .connect("postgres")
                .query_one("SELECT pg_conf_load_time()", &[]);
            row.expect("the load time is readable").get(0)
        };
        let before = loaded_at();
        self.running().signal(libc::SIGHUP);
        wait::until_true("the server to reload its configuration", || {
            loaded_at() > before
        });
    }

    fn running(&self) -> &Process {
        self.server.as_ref().expect("the server is running")
    }

    /// A program that runs as the user who owns the data directory.
    fn server_program(&self, name: impl AsRef<Path>) -> Command {
        let mut command = unprivileged(self.programs.join(name));
        command.current_dir(self.directory.path());
        self.connecting(command)
    }

    fn connecting(&self, mut command: Command) -> Command {
        command
            .env("PGHOST", HOST)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", &self.superuser);
        command
    }

    fn server_log(&self) -> ServerLog {
        ServerLog::new(self.directory.join("server.log"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server = None;
        if thread::panicking() {
            eprintln!(
                "the server's last words:\n{}",
                self.server_log().last_lines()
            );
            eprintln!("its files are kept in {}", self.directory.keep().display());
        }
    }
}
