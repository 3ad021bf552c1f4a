//! What `webhook_why()` tells of an event, and states of an event to be told.

use postgres::Client;
use serde_json::json;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::database::{self, Database};

/// Without anything to say about the server.
pub fn database() -> Database {
    let database = Cluster::shared().database("why");
    database.wait_until("SELECT state = 'running' FROM webhook_status()");
    database
}

/// What a superuser is told, in UTC.
#[track_caller]
pub fn why(database: &Database, event: Uuid) -> Vec<String> {
    let mut client = database.connect();
    client.batch_execute("SET timezone = 'UTC'").unwrap();
    told(&mut client, event)
}

#[track_caller]
pub fn told(client: &mut Client, event: Uuid) -> Vec<String> {
    let rows = client.query("SELECT webhook_why($1)", &[&event]);
    let rows = rows.unwrap_or_else(|error| panic!("{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[track_caller]
pub fn assert_told(told: &[String], sentence: &str) {
    assert!(
        told.iter().any(|told| told.trim() == sentence),
        "{sentence:?} is not in {told:#?}"
    );
}

#[track_caller]
pub fn assert_not_told(told: &[String], part: &str) {
    let sentence = told.iter().find(|told| told.contains(part));
    assert_eq!(sentence, None, "says {part:?}");
}

/// A transaction that is never committed, where any state can be written and no worker acts on it. Its endpoint
/// `shop`, number 1 and with the default policy, gets every event; now() stands still, in the time zone of the session.
pub struct Story {
    pub client: Client,
    _database: Database,
}

impl Story {
    #[track_caller]
    pub fn begin() -> Story {
        let database = database();
        let client = database.connect();
        let mut story = Story {
            client,
            _database: database,
        };
        story.run("BEGIN; SET LOCAL ROLE webhook_owner; SET LOCAL timezone = '<+0530>-05:30'");
        story.run("SELECT webhook_set_endpoint('shop', 'http://127.0.0.1:1/')");
        story
    }

    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        let result = self.client.batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// An event that is due now, which in a transaction is earlier than what was just written.
    #[track_caller]
    pub fn emit(&mut self) -> Uuid {
        let event = database::emit(&mut self.client, "order.created", json!({}));
        self.run("UPDATE webhook.delivery SET next_attempt_at = least(next_attempt_at, now())");
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
        self.run(&format!(
            "INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, duration_ms, {columns})
             VALUES ('{event}', 1, {claim_seq}, 35, {values})"
        ));
    }

    #[track_caller]
    pub fn breaker(&mut self, columns: &str, values: &str) {
        self.run(&format!(
            "INSERT INTO webhook.breaker (endpoint_id, {columns}) VALUES (1, {values})"
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
    pub fn told(&mut self, event: Uuid) -> Vec<String> {
        told(&mut self.client, event)
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
