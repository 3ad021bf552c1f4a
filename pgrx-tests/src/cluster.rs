//! A throwaway PostgreSQL cluster on loopback.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Once, OnceLock};
use std::time::SystemTime;
use std::{env, ptr, thread};

use postgres::{Client, Config, NoTls};

use crate::database::Database;
use crate::directory::ServerDirectory;
use crate::host::{self, Host};
use crate::log::ServerLog;
use crate::own_scripts::Installation;
use crate::process::{Process, complete, unprivileged};
use crate::small_disk::{Part, SmallDisk};
use crate::template::Template;
use crate::{port, wait};

const HOST: &str = "127.0.0.1";
const SUPERUSER: &str = "postgres";

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
webhook.allow_ports = '1-65535'
";

/// Of a cluster that no test kills. Every DROP DATABASE waits for a checkpoint, and that for the disk: a second for
/// each test on a busy machine.
const NEVER_CRASHES: &str = "fsync = off";

/// The name of a database with the extension in it, which databases of a shared cluster are copies of.
const TEMPLATE: &str = "with_extension";

static BIN_DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| bin_directory("PG_CONFIG"));

/// Whether PG_CONFIG's server was built without this module; says so, past the test runner, which shows no output
/// of tests that pass. Builds of PostgreSQL leave out contrib modules and JIT.
pub fn lacks(module: &str) -> bool {
    let missing = !directory("PG_CONFIG", "--pkglibdir")
        .join(format!("{module}.so"))
        .exists();
    if missing {
        let test = thread::current().name().unwrap_or_default().to_owned();
        let _ = writeln!(
            io::stderr(),
            "NOT TESTED: {test}: this server has no {module}"
        );
    }
    missing
}

fn bin_directory(variable: &str) -> PathBuf {
    directory(variable, "--bindir")
}

fn directory(variable: &str, option: &str) -> PathBuf {
    let pg_config = env::var_os(variable).unwrap_or("pg_config".into());
    let output = Command::new(&pg_config)
        .arg(option)
        .output()
        .unwrap_or_else(|error| {
            panic!("could not run {pg_config:?} (set {variable} to its path): {error}")
        });
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

static SHARED: OnceLock<Cluster> = OnceLock::new();
static IDLE: OnceLock<Cluster> = OnceLock::new();
static RELAYED: OnceLock<Cluster> = OnceLock::new();
static PORTABLE: OnceLock<Cluster> = OnceLock::new();

pub struct Cluster {
    programs: PathBuf,
    /// The server's own program.
    postgres: PathBuf,
    directory: ServerDirectory,
    port: u16,
    superuser: String,
    environment: Vec<(String, String)>,
    server: Option<Process>,
    /// Whether there is a database to copy with the extension in it.
    has_template: OnceLock<()>,
    /// Where a part of its files is.
    small_disk: Option<SmallDisk>,
}

pub struct Builder {
    programs: PathBuf,
    scripts: Vec<(String, String)>,
    purpose: String,
    superuser: String,
    settings: String,
    environment: Vec<(String, String)>,
    preload: bool,
    small_disk: Option<(Part, SmallDisk)>,
}

impl Builder {
    /// A line of postgresql.conf.
    pub fn setting(mut self, line: &str) -> Builder {
        self.settings += &format!("{line}\n");
        self
    }

    /// A variable in the environment of the server's processes.
    pub fn variable(mut self, name: &str, value: &str) -> Builder {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A script of an extension, by its name, that only this server has.
    pub fn script(mut self, name: &str, text: &str) -> Builder {
        self.scripts.push((name.to_owned(), text.to_owned()));
        self
    }

    pub fn without_preload(mut self) -> Builder {
        self.preload = false;
        self
    }

    pub fn on_small_disk(mut self, part: Part, disk: SmallDisk) -> Builder {
        self.small_disk = Some((part, disk));
        self
    }

    /// Keeps the cluster's files in `<target>/<purpose>`.
    pub fn purpose(mut self, purpose: &str) -> Builder {
        self.purpose = purpose.to_owned();
        self
    }

    /// The name of the superuser, instead of `postgres`.
    pub fn superuser(mut self, name: &str) -> Builder {
        self.superuser = name.to_owned();
        self
    }

    /// Of the version whose pg_config this variable of the environment names, instead of PG_CONFIG.
    pub fn version_of(mut self, variable: &str) -> Builder {
        self.programs = bin_directory(variable);
        self
    }

    /// Of the version that this pg_config belongs to; nothing where there is none.
    pub fn version_at(mut self, pg_config: &Path) -> Option<Builder> {
        let output = Command::new(pg_config).arg("--bindir").output().ok()?;
        self.programs = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Some(self)
    }

    /// Whether its pg_dump makes of a table of this server no more than the table. Minor releases may keep something in the
    /// catalogs that the programs of another version have to know of, or pg_upgrade fails whatever is in the database.
    pub fn dumps_plainly(&self, old: &Cluster) -> bool {
        let mut session = old.connect("postgres");
        let table = "CREATE TABLE IF NOT EXISTS plain (a int)";
        session.batch_execute(table).expect("a table can be made");
        let mut dump = unprivileged(self.programs.join("pg_dump"));
        dump.args(["--schema-only", "--table=plain", "--host=127.0.0.1"]);
        dump.args(["--port", &old.port.to_string(), "--username"]);
        !complete(dump.args([&old.superuser, "postgres"])).contains("ALTER COLUMN")
    }

    /// Whether our library is installed there.
    pub fn has_library(&self) -> bool {
        let pg_config = self.programs.join("pg_config");
        let output = Command::new(pg_config).arg("--pkglibdir").output();
        output.is_ok_and(|output| {
            Path::new(String::from_utf8_lossy(&output.stdout).trim())
                .join("webhook.so")
                .exists()
        })
    }

    pub fn start(self) -> Cluster {
        let preload = self.preload;
        self.start_with(|cluster| cluster.initialise(preload, &[]))
    }

    /// The result of pg_upgrade of a stopped cluster of an older version.
    pub fn start_upgrade_of(self, old: &Cluster) -> Cluster {
        assert!(old.server.is_none(), "the server is running");
        let preload = self.preload;
        self.start_with(|cluster| {
            // Both clusters need the same choice, and from 18 on the default is another.
            let option = "--no-data-checksums";
            let help = complete(cluster.server_program("initdb").arg("--help"));
            let options: &[&str] = if help.contains(option) {
                &[option]
            } else {
                &[]
            };
            cluster.initialise(preload, options);
            let mut upgrade = cluster.server_program("pg_upgrade");
            upgrade.arg("--old-bindir").arg(&old.programs);
            upgrade.arg("--old-datadir").arg(old.data_directory());
            upgrade.args(["--old-port", &old.port.to_string()]);
            upgrade.arg("--new-datadir").arg(cluster.data_directory());
            upgrade.args(["--new-port", &cluster.port.to_string()]);
            // The path of a socket has to be short.
            upgrade.arg("--socketdir").arg(env::temp_dir());
            complete(&mut upgrade);
        })
    }

    /// A physical copy, as of this moment, with the original's settings but for the port and those added here.
    pub fn start_copy_of(mut self, original: &Cluster) -> Cluster {
        self.superuser.clone_from(&original.superuser);
        self.start_with(|cluster| {
            let mut backup = original.server_program("pg_basebackup");
            backup.arg("-D").arg(cluster.data_directory());
            complete(backup.args(["--checkpoint=fast", "--no-sync"]));
        })
    }

    /// A standby that follows `primary`, with its settings but for the port and those added here.
    pub fn start_standby_of(mut self, primary: &Cluster) -> Cluster {
        self.superuser.clone_from(&primary.superuser);
        self.start_with(|cluster| {
            let mut backup = primary.server_program("pg_basebackup");
            backup.arg("-D").arg(cluster.data_directory());
            complete(backup.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf"]));
        })
    }

    fn start_with(self, make_data_directory: impl FnOnce(&mut Cluster)) -> Cluster {
        let directory = ServerDirectory::create(&self.purpose);
        let mut postgres = self.programs.join("postgres");
        if !self.scripts.is_empty() {
            let installation = Installation {
                programs: self.programs.clone(),
                share: self::directory("PG_CONFIG", "--sharedir"),
            };
            let root = directory.join("server");
            let server = installation.with_scripts(&root, &self.scripts);
            postgres = server.expect("the server's files can be linked");
        }
        let mut cluster = Cluster {
            programs: self.programs,
            postgres,
            directory,
            port: port::free(),
            superuser: self.superuser,
            environment: self.environment,
            server: None,
            has_template: OnceLock::new(),
            small_disk: None,
        };
        make_data_directory(&mut cluster);
        if let Some((part, disk)) = self.small_disk {
            disk.take(&cluster.data_directory(), part);
            cluster.small_disk = Some(disk);
        }
        cluster.configure(&format!("port = {}", cluster.port));
        cluster.configure(&self.settings);
        cluster.start_server();
        cluster
    }
}

impl Cluster {
    /// A running cluster that preloads the extension.
    pub fn start() -> Cluster {
        Cluster::builder().start()
    }

    pub fn builder() -> Builder {
        Builder {
            programs: BIN_DIRECTORY.clone(),
            scripts: Vec::new(),
            purpose: "e2e".to_owned(),
            superuser: SUPERUSER.to_owned(),
            settings: String::new(),
            environment: Vec::new(),
            preload: true,
            small_disk: None,
        }
    }

    /// The cluster of all tests of this process that neither restart nor configure it.
    pub fn shared() -> &'static Cluster {
        SHARED.get_or_init(|| {
            remove_shared_at_exit();
            let shared = Cluster::builder().setting(NEVER_CRASHES);
            match Host::current() {
                Host::Server => shared.start(),
                Host::Relay => shared.setting("webhook.max_in_flight = 0").start(),
                Host::Portable => shared.without_preload().start(),
            }
        })
    }

    /// The same for tests where nobody may claim but the test: its workers deliver nothing.
    pub fn idle() -> &'static Cluster {
        IDLE.get_or_init(|| {
            remove_shared_at_exit();
            let idle = Cluster::builder().setting("webhook.enabled = off");
            idle.setting("jit = off").setting(NEVER_CRASHES).start()
        })
    }

    /// The same for tests of senders outside of the server: its workers leave delivery to them.
    pub fn relayed() -> &'static Cluster {
        RELAYED.get_or_init(|| {
            remove_shared_at_exit();
            let relayed = Cluster::builder().setting("webhook.max_in_flight = 0");
            relayed.setting("jit = off").setting(NEVER_CRASHES).start()
        })
    }

    /// The same for tests of databases that have webhook without the library.
    pub fn portable() -> &'static Cluster {
        PORTABLE.get_or_init(|| {
            remove_shared_at_exit();
            let portable = Cluster::builder().without_preload();
            portable.setting(NEVER_CRASHES).start()
        })
    }

    /// A new database with the extension and its test policy; in the shared cluster with the host's sender.
    pub fn database(&self, prefix: &str) -> Database {
        if self.is_shared() {
            self.has_template.get_or_init(|| self.make_template());
            let mut database = self.new_database(prefix, &format!("TEMPLATE {TEMPLATE}"));
            if self.host() != Host::Server {
                database.deliver_by(host::start_relay(self, &database));
            }
            return database;
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

    /// A database that no worker is ever in, so that it can be copied at any time: a copy takes a third of the time of
    /// CREATE EXTENSION.
    fn make_template(&self) {
        let make = format!("CREATE DATABASE {TEMPLATE} IS_TEMPLATE true");
        let made = self.connect("postgres").batch_execute(&make);
        made.unwrap_or_else(|error| panic!("{make}: {error:?}"));
        let template = ManuallyDrop::new(self.existing_database(TEMPLATE));
        match self.host() {
            Host::Portable => host::install_portable(self, &template),
            Host::Server | Host::Relay => template.create_extension(),
        }
        if self.host() != Host::Server {
            host::grant_relay_role(&template);
        }
    }

    fn host(&self) -> Host {
        let is = |cluster: &OnceLock<Cluster>| cluster.get().is_some_and(|c| ptr::eq(c, self));
        match (is(&SHARED), is(&PORTABLE)) {
            (true, _) => Host::current(),
            (_, true) => Host::Portable,
            _ => Host::Server,
        }
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

    /// The same as a text, by this port or that of a proxy.
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

    /// Starts a cluster that was stopped or killed.
    pub fn start_server(&mut self) {
        assert!(self.server.is_none(), "the server is already running");
        let mut command = self.server_program(&self.postgres);
        command.arg("-D").arg(self.data_directory());
        command.envs(self.environment.iter().cloned());
        command
            .stdin(Stdio::null())
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

    /// Where a server has given up by itself, and is to be started again. One that restarts itself is waited for.
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
        // Each has the shared memory attached that a new server looks for.
        wait::until_true("the server's processes to end", || !self.has_processes());
    }

    /// Every process of a server works in its data directory.
    fn has_processes(&self) -> bool {
        let directory = self.data_directory();
        let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
        let mut places = processes.filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok());
        places.any(|place| place.starts_with(&directory))
    }

    fn running(&self) -> &Process {
        self.server.as_ref().expect("the server is running")
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

    fn initialise(&mut self, preload: bool, options: &[&str]) {
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

    /// A cluster of the test's own shows its log itself.
    fn shared_log(&self) -> Option<ServerLog> {
        self.is_shared().then(|| self.server_log())
    }

    fn is_shared(&self) -> bool {
        let mut shared = [&SHARED, &IDLE, &RELAYED, &PORTABLE]
            .into_iter()
            .filter_map(OnceLock::get);
        shared.any(|shared| ptr::eq(shared, self))
    }

    fn server_log(&self) -> ServerLog {
        ServerLog::new(self.directory.join("server.log"))
    }
}

extern "C" fn remove_shared() {
    for cluster in [&SHARED, &IDLE, &RELAYED, &PORTABLE]
        .into_iter()
        .filter_map(OnceLock::get)
    {
        cluster.server.as_ref().inspect(|server| server.quit());
        cluster.directory.remove();
    }
}

/// Statics are never dropped.
fn remove_shared_at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: it is a plain function that stays loaded as long as the process runs.
    ONCE.call_once(|| _ = unsafe { libc::atexit(remove_shared) });
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
