//! The endpoint `orders`, as an operator sees and tries it.

use postgres::{Client, Row};
use serde_json::json;

use crate::database::Database;
use crate::receiver::{Answer, Receiver};
use crate::wait;

/// Opens at the third failure, retries and probes in an hour, unless the test changes it: `cooldown = '10 ms'`.
pub fn add_policy(database: &Database, name: &str, changes: &str) {
    database.add_guarding_policy(name, 10, changes);
}

/// The endpoint `orders` of a receiver that answers with 200, under a policy of its own.
pub fn orders(database: &Database, policy: &str) -> Receiver {
    let receiver = Receiver::start();
    add_policy(database, "guarded", policy);
    let options = "'{order.*}', policy => 'guarded'";
    database.add_endpoint_with("orders", &receiver.url("/orders"), options);
    receiver
}

pub const SENDING: &str = "SELECT count(*) FROM webhook.delivery WHERE status = 'SENDING'";

/// The endpoint `orders` after 54 requests: the receiver holds the last 4, more deliveries are claimed and wait for
/// their turn, and 26 of 80 have not arrived.
#[track_caller]
pub fn orders_claimed_ahead(database: &Database) -> Receiver {
    let receiver = orders(database, "");
    database.execute("SELECT webhook_set_endpoint('orders', max_in_flight => 4)");
    let emit = |count: usize| {
        database.execute(&format!(
            "SELECT webhook_emit('order.created') FROM generate_series(1, {count})"
        ));
    };
    emit(50);
    receiver.wait_for_requests(50);
    wait_for_empty_queue(database);
    receiver.hold("/orders");
    emit(30);
    receiver.wait_for_requests(54);
    database.wait_until(&format!("SELECT ({SENDING}) > 4"));
    receiver
}

/// Answers so from now on.
pub fn answer(receiver: &Receiver, status: u16) {
    receiver.respond("/orders", move |_, _| Answer::status(status));
}

/// Emits as many events, which fail, and leaves a receiver that is well again.
#[track_caller]
pub fn fail(database: &Database, receiver: &Receiver, count: i32) {
    let before: i64 = database.query_one_value("SELECT count(*) FROM webhook.attempt");
    answer(receiver, 500);
    database.execute(&format!(
        "SELECT webhook_emit('order.created') FROM generate_series(1, {count})"
    ));
    database.wait_until(&format!(
        "SELECT count(*) = {before} + {count} FROM webhook.attempt"
    ));
    answer(receiver, 200);
}

/// Waits until the condition holds for the endpoint's row of webhook.endpoint_status.
#[track_caller]
pub fn wait_for(database: &Database, name: &str, condition: &str) {
    let mut client = database.connect();
    let awaited = format!("{condition} of endpoint {name}");
    wait::until(&awaited, || match look(&mut client, name, condition) {
        (Some(true), _) => Ok(()),
        (_, seen) => Err(seen),
    });
}

#[track_caller]
pub fn assert_that(database: &Database, name: &str, condition: &str) {
    let (holds, seen) = look(&mut database.connect(), name, condition);
    assert_eq!(holds, Some(true), "{condition} of {seen}");
}

/// Whether the condition holds for the endpoint's row of webhook.endpoint_status, and the row.
fn look(client: &mut Client, name: &str, condition: &str) -> (Option<bool>, String) {
    let query = format!(
        "SELECT {condition}, to_jsonb(s)::text FROM webhook.endpoint_status s WHERE endpoint = $1"
    );
    let row = client.query_one(&query, &[&name]).unwrap();
    (row.get(0), row.get(1))
}

#[track_caller]
pub fn wait_for_empty_queue(database: &Database) {
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
}

/// After this, everything that could be sent before was sent: the worker has looked at every endpoint meanwhile.
#[track_caller]
pub fn wait_for_a_witness(database: &Database) {
    let witness = Receiver::start();
    let options = "'{witnessed}', policy => 'fast'";
    database.add_endpoint_with("witness", &witness.url("/"), options);
    let event = database.emit("witnessed", json!({}));
    database.wait_for_status(event, "SENT");
    database.execute("SELECT webhook_remove_endpoint('witness')");
}

/// Every row of every table of ours, when there is nothing left to tell.
#[track_caller]
pub fn contents(database: &Database) -> Vec<(String, String)> {
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
    let mut client = database.connect();
    let tables = "SELECT relname::text FROM pg_class
                  WHERE relnamespace = 'webhook'::regnamespace AND relkind = 'r'
                    AND relname NOT IN ('policy', 'stat', 'alarm', 'sender', 'share') ORDER BY relname";
    let tables = client.query(tables, &[]).unwrap();
    (tables.iter())
        .map(|row| {
            let table: String = row.get(0);
            // The worker's upkeep may raise an alert of a metric at any moment.
            let rows = format!(
                "SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM webhook.{table} t
                 WHERE to_jsonb(t) ->> 'metric' IS NULL"
            );
            let rows = client.query_one(&rows, &[]).unwrap().get(0);
            (table, rows)
        })
        .collect()
}

/// The result of webhook_test().
#[derive(Debug, PartialEq)]
pub struct Shown {
    pub status: Option<String>,
    pub status_code: Option<i32>,
    pub error: Option<String>,
    pub response: Option<String>,
    pub duration_ms: Option<i32>,
}

impl From<Row> for Shown {
    fn from(row: Row) -> Shown {
        Shown {
            status: row.get("status"),
            status_code: row.get("status_code"),
            error: row.get("error"),
            response: row.get("response"),
            duration_ms: row.get("duration_ms"),
        }
    }
}

impl Shown {
    #[track_caller]
    pub fn assert_is(&self, status: &str, status_code: Option<i32>, error: Option<&str>) {
        assert_eq!(self.status.as_deref(), Some(status), "{self:?}");
        assert_eq!(self.status_code, status_code, "{self:?}");
        assert_eq!(self.error.as_deref(), error, "{self:?}");
    }
}

/// Has it tested, and waits for the outcome.
#[track_caller]
pub fn test_endpoint(database: &Database, name: &str) -> Shown {
    let row = (database.connect()).query_one(&format!("CALL webhook_test('{name}')"), &[]);
    row.unwrap_or_else(|error| panic!("{name}: {error:?}"))
        .into()
}
