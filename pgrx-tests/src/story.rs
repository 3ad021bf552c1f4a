//! The sentences of `webhook_why()`, and states of deliveries and endpoints to tell of.

use std::sync::OnceLock;

use postgres::Client;
use serde_json::json;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::database::{self, Database};

/// A database without anything to say about the server.
pub fn database() -> Database {
    let database = Cluster::shared().database("why");
    database.wait_until("SELECT state = 'running' FROM webhook_status()");
    database
}

/// The sentences for a superuser, in UTC.
#[track_caller]
pub fn why(database: &Database, about: impl ToString) -> Vec<String> {
    let mut client = database.connect();
    client.batch_execute("SET timezone = 'UTC'").unwrap();
    told(&mut client, about)
}

#[track_caller]
pub fn told(client: &mut Client, about: impl ToString) -> Vec<String> {
    let rows = client.query("SELECT webhook_why($1)", &[&about.to_string()]);
    let rows = rows.unwrap_or_else(|error| panic!("{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// One sentence has all of these facts.
#[track_caller]
pub fn assert_told(told: &[String], facts: &[&str]) {
    let has_all = |told: &String| facts.iter().all(|fact| told.contains(fact));
    assert!(
        told.iter().any(has_all),
        "{facts:?} is not told in {told:#?}"
    );
}

#[track_caller]
pub fn assert_not_told(told: &[String], part: &str) {
    let sentence = told.iter().find(|told| told.contains(part));
    assert_eq!(sentence, None, "says {part:?}");
}

/// A transaction that is never committed, where any state can be written and no worker acts on it. Its endpoint
/// `shop`, with the default policy, gets every event; now() stands still, in the time zone of the session. All
/// stories are told in one database: a story of another thread waits for this one to end, since its endpoint has the
/// same name.
pub struct Story {
    pub client: Client,
    pub shop: i32,
}

impl Story {
    #[track_caller]
    pub fn begin() -> Story {
        static DATABASE: OnceLock<Database> = OnceLock::new();
        let mut client = DATABASE.get_or_init(database).connect();
        let begin = "BEGIN; SET LOCAL ROLE webhook_owner; SET LOCAL timezone = '<+0530>-05:30'";
        client.batch_execute(begin).unwrap();
        let add = "SELECT id FROM webhook_set_endpoint('shop', 'http://127.0.0.1:1/')";
        let shop = client.query_one(add, &[]).unwrap().get(0);
        let mut story = Story { client, shop };
        story.run("SAVEPOINT beginning");
        story
    }

    /// Goes back to the state with nothing but the endpoint.
    #[track_caller]
    pub fn rewind(&mut self) {
        self.run("ROLLBACK TO SAVEPOINT beginning");
    }

    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        let result = self.client.batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// An event that is due now, which in a transaction is earlier than rows that were just written.
    #[track_caller]
    pub fn emit(&mut self) -> Uuid {
        let event = database::emit(&mut self.client, "order.created", json!({}));
        self.run(&format!(
            "UPDATE webhook.delivery SET next_attempt_at = least(next_attempt_at, now()) WHERE event_id = '{event}'"
        ));
        event
    }

    /// An event whose delivery to `shop` is as the settings say, written as in an UPDATE.
    #[track_caller]
    pub fn delivery(&mut self, settings: &str) -> Uuid {
        let event = self.emit();
        self.run(&format!(
            "UPDATE webhook.delivery SET {settings} WHERE event_id = '{event}'"
        ));
        event
    }

    #[track_caller]
    pub fn attempt(&mut self, event: Uuid, claim_seq: i32, columns: &str, values: &str) {
        let shop = self.shop;
        self.run(&format!(
            "INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, duration_ms, {columns})
             VALUES ('{event}', {shop}, {claim_seq}, 35, {values})"
        ));
    }

    #[track_caller]
    pub fn breaker(&mut self, columns: &str, values: &str) {
        let shop = self.shop;
        self.run(&format!(
            "INSERT INTO webhook.breaker (endpoint_id, {columns}) VALUES ({shop}, {values})"
        ));
    }

    /// A copy of the default policy, changed, for `shop`.
    #[track_caller]
    pub fn policy(&mut self, settings: &str) {
        self.run(&format!(
            "SELECT webhook_copy_policy('standard', 'own');
             UPDATE webhook.policy SET {settings} WHERE name = 'own';
             UPDATE webhook.endpoint SET policy = 'own'"
        ));
    }

    #[track_caller]
    pub fn told(&mut self, about: impl ToString) -> Vec<String> {
        told(&mut self.client, about)
    }

    /// A time in relation to now(), as it is told.
    #[track_caller]
    pub fn time(&mut self, offset: &str) -> String {
        let sql = format!(
            "SELECT to_char(now() + interval '{offset}', 'YYYY-MM-DD HH24:MI:SS') || '+05:30'"
        );
        self.client.query_one(&sql, &[]).unwrap().get(0)
    }
}
