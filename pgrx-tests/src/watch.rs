//! A watched table, and the events of its triggers.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::database::Database;

pub const ORDERS: &str =
    "CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric, card text)";

/// The value in the payload where there was or is no row.
pub const NONE: Value = Value::Null;

/// A database with a table of orders that is not watched.
#[track_caller]
pub fn database() -> Database {
    let database = Cluster::shared().database("watch");
    database.execute(ORDERS);
    database
}

/// `arguments` are further ones of `webhook_watch()`: `, exclude => '{card}'`.
#[track_caller]
pub fn watched(arguments: &str) -> Database {
    let database = database();
    database.execute(&format!(
        "SELECT webhook_watch('orders', 'order'{arguments})"
    ));
    database
}

/// The types and payloads emitted since the last call, in the order of their emission.
#[track_caller]
pub fn take(database: &Database) -> Vec<(String, Value)> {
    let rows = database.connect().query(
        "WITH gone AS (DELETE FROM webhook.event RETURNING *) SELECT event_type, payload FROM gone ORDER BY id",
        &[],
    );
    (rows.unwrap().iter())
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

/// The id of each row, or its ids before and after.
#[track_caller]
pub fn take_ids(database: &Database) -> Vec<(String, Value, Value)> {
    (take(database).into_iter())
        .map(|(event_type, payload)| {
            (
                event_type,
                payload["old_record"]["id"].clone(),
                payload["record"]["id"].clone(),
            )
        })
        .collect()
}

/// A change, as `take_ids` returns it.
pub fn change(event_type: &str, old: Value, new: Value) -> (String, Value, Value) {
    (event_type.to_owned(), old, new)
}
