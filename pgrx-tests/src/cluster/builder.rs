//! A cluster in the making: its settings, its files and its origin.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, OnceLock};

use super::Cluster;
use crate::directory::{ServerDirectory, target_directory};
use crate::own_scripts::Installation;
use crate::process::{complete, unprivileged};
use crate::small_disk::{Part, SmallDisk};
use crate::volatile_disk::move_away;
use crate::{pg_config, port};

const SUPERUSER: &str = "postgres";

static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| pg_config::bin_directory("PG_CONFIG"));

pub struct Builder {
    programs: PathBuf,
    scripts: Vec<(String, String)>,
    purpose: String,
    superuser: String,
    settings: String,
    environment: Vec<(String, String)>,
    preload: bool,
    small_disk: Option<(Part, SmallDisk)>,
    disk: Option<PathBuf>,
}

impl Cluster {
    pub fn builder() -> Builder {
        Builder {
            programs: PROGRAMS.clone(),
            scripts: Vec::new(),
            purpose: "e2e".to_owned(),
            superuser: SUPERUSER.to_owned(),
            settings: String::new(),
            environment: Vec::new(),
            preload: true,
            small_disk: None,
            disk: None,
        }
    }
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

    /// Keeps all of the data in a directory of a disk that outlives the server.
    pub fn data_on(mut self, disk: &Path) -> Builder {
        self.disk = Some(disk.join("data"));
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

    /// Takes the version whose pg_config this variable of the environment names, instead of PG_CONFIG.
    pub fn version_of(mut self, variable: &str) -> Builder {
        self.programs = pg_config::bin_directory(variable);
        self
    }

    /// Takes a server of this version, with our library, that the Makefile has fetched; `None` if there is none.
    pub fn fetched(mut self, version: u32) -> Option<Builder> {
        let pg_config = target_directory().join(format!("postgresql-{version}/bin/pg_config"));
        let output = Command::new(pg_config).arg("--bindir").output().ok()?;
        self.programs = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        self.library().exists().then_some(self)
    }

    /// Whether its pg_dump adds nothing to a table of this server. Minor releases may keep something in the catalogs
    /// that the programs of another version have to know of, or pg_upgrade fails whatever is in the database.
    pub fn dumps_plainly(&self, old: &Cluster) -> bool {
        let mut session = old.connect("postgres");
        let table = "CREATE TABLE IF NOT EXISTS plain (a int)";
        session.batch_execute(table).expect("a table can be made");
        let mut dump = unprivileged(self.programs.join("pg_dump"));
        dump.args(["--schema-only", "--table=plain", "--host=127.0.0.1"]);
        dump.args(["--port", &old.port.to_string(), "--username"]);
        !complete(dump.args([&old.superuser, "postgres"])).contains("ALTER COLUMN")
    }

    /// The place of our library.
    pub fn library(&self) -> PathBuf {
        let pg_config = self.programs.join("pg_config");
        let output = Command::new(pg_config).arg("--pkglibdir").output();
        let directory = output.expect("pg_config can be run").stdout;
        Path::new(String::from_utf8_lossy(&directory).trim()).join("webhook.so")
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

    /// A physical copy, as of this moment, with the original's settings, except the port and the settings added here.
    pub fn start_copy_of(mut self, original: &Cluster) -> Cluster {
        self.superuser.clone_from(&original.superuser);
        self.start_with(|cluster| {
            let mut backup = original.server_program("pg_basebackup");
            backup.arg("-D").arg(cluster.data_directory());
            complete(backup.args(["--checkpoint=fast", "--no-sync"]));
        })
    }

    /// A standby that follows `primary`, with its settings, except the port and the settings added here.
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
                share: pg_config::directory("PG_CONFIG", "--sharedir"),
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
        if let Some(place) = self.disk {
            move_away(&cluster.data_directory(), &place);
        }
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
