//! One test's database, and the extension's calls that most tests make.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use postgres::error::DbError;
use postgres::types::FromSqlOwned;
use postgres::{Client, Config, NoTls};
use serde_json::Value;
use uuid::Uuid;

use crate::log::ServerLog;
use crate::relay::Relay;
use crate::wait;

/// Fails in milliseconds where the default policy takes days, without a breaker, and at once for most of 4xx.
const FAST_POLICY: &str = "
    INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, retry_status, failure_threshold)
    VALUES ('fast', 3, 'fixed', '100 ms', 0, 0, '{[408,409), [425,426), [429,430), [500,600)}', 0)";

/// Holds no connection between calls: an idle one would block DROP DATABASE and TEMPLATE copies.
pub struct Database {
    name: String,
    config: Config,
    maintenance: Config,
    log_when_failed: Option<ServerLog>,
    /// The sender, where it is no worker of the server.
    sender: Option<Relay>,
}

impl Database {
    pub(crate) fn create(
        maintenance: Config,
        prefix: &str,
        options: &str,
        log_when_failed: Option<ServerLog>,
    ) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{prefix}_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let database = Database::existing(maintenance, name, log_when_failed);
        connect(&database.maintenance)
            .batch_execute(&format!("CREATE DATABASE {} {options}", database.name))
            .unwrap_or_else(|error| panic!("could not create {}: {error:?}", database.name));
        database
    }

    pub(crate) fn existing(
        maintenance: Config,
        name: String,
        log_when_failed: Option<ServerLog>,
    ) -> Database {
        let mut config = maintenance.clone();
        config.dbname(&name);
        Database {
            name,
            config,
            maintenance,
            log_when_failed,
            sender: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    #[track_caller]
    pub fn connect(&self) -> Client {
        connect(&self.config)
    }

    /// The same, logged in as another role.
    #[track_caller]
    pub fn connect_as(&self, role: &str) -> Client {
        let mut config = self.config.clone();
        config.user(role);
        connect(&config)
    }

    /// The same, and every notice of the server is handed on.
    #[track_caller]
    pub fn connect_noticing(&self, on_notice: impl Fn(DbError) + Send + Sync + 'static) -> Client {
        let mut config = self.config.clone();
        config.notice_callback(on_notice);
        connect(&config)
    }

    /// Runs one or several statements.
    #[track_caller]
    pub fn execute(&self, sql: &str) {
        let result = self.connect().batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The same with the rights of the worker: not by hand.
    #[track_caller]
    pub fn execute_as_engine(&self, sql: &str) {
        self.execute(&format!("SET ROLE webhook_owner; {sql}"));
    }

    /// The error that the server answers with; it is one for the test if there is none.
    #[track_caller]
    pub fn refusal(&self, sql: &str) -> DbError {
        refusal(&mut self.connect(), sql)
    }

    /// The first column of the only row.
    #[track_caller]
    pub fn query_one_value<T: FromSqlOwned>(&self, sql: &str) -> T {
        query_one_value(&mut self.connect(), sql)
    }

    /// Waits until a query that returns one boolean says true.
    #[track_caller]
    pub fn wait_until(&self, sql: &str) {
        let mut client = self.connect();
        wait::until_true(sql, || query_one_value(&mut client, sql));
    }

    /// Creates the extension and the policy `fast`: three attempts, 100 ms apart.
    pub fn create_extension(&self) {
        self.execute("CREATE EXTENSION webhook");
        self.add_test_policy();
    }

    pub(crate) fn add_test_policy(&self) {
        self.execute(FAST_POLICY);
    }

    pub(crate) fn deliver_by(&mut self, relay: Relay) {
        self.sender = Some(relay);
    }

    /// Returns the endpoint's secret. The address is `name` or `tenant/name`.
    #[track_caller]
    pub fn add_endpoint(&self, address: &str, url: &str) -> String {
        self.add_endpoint_with(address, url, "policy => 'fast'")
    }

    /// `options` are named arguments as SQL: `policy => 'fast', max_in_flight => 1`.
    #[track_caller]
    pub fn add_endpoint_with(&self, address: &str, url: &str, options: &str) -> String {
        let (made, changed): (Option<String>, Vec<String>) = {
            let sql = format!(
                "SELECT secret, changed FROM webhook_set_endpoint('{address}', '{url}', {options})"
            );
            let row = self.connect().query_one(&sql, &[]);
            let row = row.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            (row.get(0), row.get(1))
        };
        assert_eq!(changed, ["created"], "{address}");
        // One that the options gave is not returned.
        made.unwrap_or_else(|| self.query_one_value(&format!("SELECT webhook_secret('{address}')")))
    }

    /// Warns at the second failure, opens at the third, retries and probes in an hour, except for the changes.
    #[track_caller]
    pub fn add_guarding_policy(&self, name: &str, max_attempts: i32, changes: &str) {
        self.execute(&format!(
            "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, retry_status,
                                         failure_threshold, warn_threshold, cooldown, max_cooldown)
             VALUES ('{name}', {max_attempts}, 'fixed', '1 h', 0, 0, '{{[500,600)}}', 3, 2, '1 h', '1 h')"
        ));
        if !changes.is_empty() {
            self.execute(&format!(
                "UPDATE webhook.policy SET {changes} WHERE name = '{name}'"
            ));
        }
    }

    #[track_caller]
    pub fn emit(&self, event_type: &str, payload: Value) -> Uuid {
        emit(&mut self.connect(), event_type, payload)
    }

    /// Nothing is sent until `resume_all()`.
    #[track_caller]
    pub fn pause_all(&self) {
        self.execute("UPDATE webhook.endpoint SET paused_at = now()");
    }

    #[track_caller]
    pub fn resume_all(&self) {
        self.execute("UPDATE webhook.endpoint SET paused_at = NULL");
    }

    /// The status of the event's deliveries; several different ones are joined by commas.
    #[track_caller]
    pub fn delivery_status(&self, event_id: Uuid) -> Option<String> {
        delivery_status(&mut self.connect(), event_id)
    }

    /// The addresses of endpoints that have a delivery of the event.
    #[track_caller]
    pub fn endpoints_of(&self, event_id: Uuid) -> Vec<String> {
        let rows = self.connect().query(
            "SELECT webhook.address(e.tenant, e.name) FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
             WHERE d.event_id = $1 ORDER BY 1",
            &[&event_id],
        );
        (rows.unwrap().iter()).map(|row| row.get(0)).collect()
    }

    /// Waits until all of the event's deliveries have this status.
    #[track_caller]
    pub fn wait_for_status(&self, event_id: Uuid, status: &str) {
        let mut client = self.connect();
        let awaited = format!("the delivery of {event_id} to be {status}");
        wait::until(&awaited, || {
            let seen = delivery_status(&mut client, event_id);
            if seen.as_deref() == Some(status) {
                Ok(())
            } else {
                Err(seen)
            }
        });
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let (true, Some(log)) = (thread::panicking(), &self.log_when_failed) {
            eprintln!(
                "the server's log when {} was dropped:\n{}",
                self.name,
                log.last_lines()
            );
            if let Some(relay) = &self.sender {
                eprintln!("the log of its relay:\n{}", relay.log());
            }
        }
        self.sender = None;
        // The cluster may be gone already, or a standby that its commits wait for.
        let mut maintenance = self.maintenance.clone();
        maintenance.options("-c synchronous_commit=local");
        if let Ok(mut client) = maintenance.connect(NoTls) {
            let _ = client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
        }
    }
}

/// Emits in a session of the test's own, where it can be part of a transaction.
#[track_caller]
pub fn emit(client: &mut impl postgres::GenericClient, event_type: &str, payload: Value) -> Uuid {
    client
        .query_one("SELECT webhook_emit($1, $2)", &[&event_type, &payload])
        .unwrap_or_else(|error| panic!("could not emit {event_type}: {error:?}"))
        .get(0)
}

/// The error that the server answers a session of the test's own with.
#[track_caller]
pub fn refusal(client: &mut impl postgres::GenericClient, sql: &str) -> DbError {
    let Err(error) = client.batch_execute(sql) else {
        panic!("was not refused: {sql}");
    };
    let refusal = error.as_db_error().cloned();
    refusal.unwrap_or_else(|| panic!("{sql}: {error:?}"))
}

#[track_caller]
fn connect(config: &Config) -> Client {
    let client = config.connect(NoTls);
    client
        .unwrap_or_else(|error| panic!("could not connect to {:?}: {error:?}", config.get_dbname()))
}

#[track_caller]
fn query_one_value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    let row = client.query_one(sql, &[]);
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}

#[track_caller]
fn delivery_status(client: &mut Client, event_id: Uuid) -> Option<String> {
    client
        .query_one(
            "SELECT string_agg(DISTINCT status, ',' ORDER BY status) FROM webhook.delivery WHERE event_id = $1",
            &[&event_id],
        )
        .unwrap_or_else(|error| panic!("could not read the status of {event_id}: {error:?}"))
        .get(0)
}
