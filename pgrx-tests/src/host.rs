//! The host of the engine that delivers in the databases of the shared cluster: WEBHOOK_TEST_HOST is `server`
//! (default), `relay` or `portable`. Clusters of a test's own are servers' whatever it says.

use std::env;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::LazyLock;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::directory::ServerDirectory;
use crate::process::{complete, unprivileged};
use crate::relay::Relay;

/// Has the level `relay` in every database of a cluster where relays deliver, and no other.
pub const RELAY_ROLE: &str = "relay_of_tests";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    Server,
    /// A relay, beside a worker that leaves delivery to it.
    Relay,
    /// A relay, of a server without the library.
    Portable,
}

impl Host {
    const ALL: [Host; 3] = [Host::Server, Host::Relay, Host::Portable];

    pub fn current() -> Host {
        let name = env::var("WEBHOOK_TEST_HOST").unwrap_or_default();
        if name.is_empty() {
            return Host::Server;
        }
        Host::named(&name).unwrap_or_else(|| {
            panic!("WEBHOOK_TEST_HOST is server, relay or portable, not {name:?}")
        })
    }

    pub fn named(name: &str) -> Option<Host> {
        Host::ALL.into_iter().find(|host| host.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Host::Server => "server",
            Host::Relay => "relay",
            Host::Portable => "portable",
        }
    }
}

/// `webhook-relay`, as cargo has built it beside this program; a copy of it if the clone is in a private home, which the
/// user that relays run as cannot enter.
pub fn relay_program() -> String {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let this = env::current_exe().expect("a program knows its path");
        let folders = this.ancestors().skip(1).take(2);
        let mut places = folders.map(|folder| folder.join("relay"));
        let found: Option<PathBuf> = places.find(|place| place.is_file());
        let mut found = found.expect("cargo builds the program `relay` of this package");
        let mut may_run = unprivileged("test");
        let may_run = may_run.arg("-x").arg(&found).current_dir("/").status();
        if !may_run.is_ok_and(|status| status.success()) {
            // A later run removes it.
            let directory = ManuallyDrop::new(ServerDirectory::create("e2e"));
            let copy = directory.join("relay");
            fs::copy(&found, &copy).expect("the program can be copied");
            found = copy;
        }
        found.to_string_lossy().into_owned()
    });
    PROGRAM.clone()
}

/// The schema without the library, with the test policy and receivers on loopback allowed.
pub fn install_portable(cluster: &Cluster, database: &Database) {
    install_portable_by(&relay_program(), cluster, database);
}

pub fn install_portable_by(relay: &str, cluster: &Cluster, database: &Database) {
    let mut install = unprivileged(relay);
    let address = cluster.address(cluster.port(), database.name());
    complete(install.env_clear().args(["install", &address]));
    database.execute(
        "INSERT INTO webhook.settings VALUES ('allow_networks', '127.0.0.0/8, ::1'), ('tenant_networks', '127.0.0.0/8, ::1'),
            ('allow_ports', '1-65535')",
    );
    database.add_test_policy();
}

/// Called once in a cluster, in the database that others are copies of.
pub fn grant_relay_role(database: &Database) {
    database.execute(&format!("CREATE ROLE {RELAY_ROLE} LOGIN"));
    database.execute(&format!("SELECT webhook_grant('{RELAY_ROLE}', 'relay')"));
}

pub fn start_relay(cluster: &Cluster, database: &Database) -> Relay {
    let connection = format!(
        "host=127.0.0.1 port={} user={RELAY_ROLE} dbname={}",
        cluster.port(),
        database.name()
    );
    Relay::start(&relay_program(), &connection, &[])
}
