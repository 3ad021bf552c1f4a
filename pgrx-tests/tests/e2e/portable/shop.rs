//! A database of somebody who is no superuser. It has an owner of its own, who makes roles (CREATEROLE) or does not,
//! and a role of its own that everything of ours belongs to, since all databases here are of one cluster.

use std::process::Output;

use postgres::Client;
use webhook_e2e::process::unprivileged;
use webhook_e2e::{Cluster, Database, Relay};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

pub struct Shop {
    pub database: Database,
    /// The owner of the database.
    pub admin: String,
    /// The owner of the schema.
    pub owner: String,
}

pub fn administer(connection: &str, arguments: &[&str]) -> Output {
    let mut command = unprivileged(PROGRAM);
    command.env_clear().args(arguments);
    command.arg(connection).output().unwrap()
}

impl Shop {
    pub fn open(prefix: &str, attributes: &str) -> Shop {
        let database = Cluster::portable().plain_database(prefix);
        let admin = format!("admin_of_{}", database.name());
        let owner = format!("owner_in_{}", database.name());
        database.execute(&format!("CREATE ROLE {admin} LOGIN {attributes}"));
        let name = database.name();
        database.execute(&format!("ALTER DATABASE {name} OWNER TO {admin}"));
        Shop {
            database,
            admin,
            owner,
        }
    }

    /// With webhook in it.
    pub fn installed(prefix: &str) -> Shop {
        let shop = Shop::open(prefix, "CREATEROLE");
        shop.succeed(&["install", "--owner", &shop.owner]);
        shop.as_admin(
            "INSERT INTO webhook.settings VALUES ('allow_networks', '127.0.0.0/8'), ('allow_ports', '1-65535');
             INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, failure_threshold)
             VALUES ('fast', 2, 'fixed', '100 ms', 0, 0, 0)",
        );
        shop
    }

    pub fn connection(&self, role: &str) -> String {
        let (port, name) = (Cluster::portable().port(), self.database.name());
        format!("host=127.0.0.1 port={port} user={role} dbname={name}")
    }

    /// Of a superuser.
    pub fn superuser_connection(&self) -> String {
        let cluster = Cluster::portable();
        cluster.address(cluster.port(), self.database.name())
    }

    fn administer(&self, arguments: &[&str]) -> Output {
        administer(&self.connection(&self.admin), arguments)
    }

    #[track_caller]
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.administer(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Its standard output and standard error.
    #[track_caller]
    pub fn fail(&self, arguments: &[&str]) -> (String, String) {
        let output = self.administer(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }

    pub fn session(&self) -> Client {
        self.database.connect_as(&self.admin)
    }

    #[track_caller]
    pub fn as_admin(&self, sql: &str) {
        let done = self.session().batch_execute(sql);
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// A role that may log in, and has this level.
    pub fn role(&self, name: &str, level: &str) -> String {
        let role = format!("{name}_of_{}", self.database.name());
        self.database.execute(&format!("CREATE ROLE {role} LOGIN"));
        self.as_admin(&format!("SELECT webhook_grant('{role}', '{level}')"));
        role
    }

    pub fn relay(&self) -> Relay {
        let role = self.role("relay", "relay");
        Relay::start(PROGRAM, &self.connection(&role), &[])
    }
}
