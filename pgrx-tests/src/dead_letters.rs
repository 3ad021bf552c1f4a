//! Dead letters made by hand, and the results and messages of the functions for them.

use std::sync::mpsc::{self, Receiver as Inbox};

use postgres::error::DbError;
use postgres::{Client, Row};
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::receiver::Receiver;
use crate::wait;

pub fn database() -> Database {
    Cluster::shared().database("dead_letter")
}

/// With the endpoints `a` and `b`, to which nothing is sent.
pub fn paused_database() -> Database {
    let database = database();
    for name in ["a", "b"] {
        database.add_endpoint(name, &Receiver::closed_url());
    }
    database.pause_all();
    database
}

/// A new event that failed at this endpoint at that time.
#[track_caller]
pub fn bury(database: &Database, endpoint: &str, event_type: &str, failed_at: &str) -> Uuid {
    let event: Uuid = database.query_one_value(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         VALUES (webhook.new_id(), '{event_type}', '{{}}', {failed_at}) RETURNING id"
    ));
    database.execute(&dead_letters(&format!("v.id = '{event}'"), endpoint));
    event
}

/// The same event failed at another endpoint too.
#[track_caller]
pub fn bury_again(database: &Database, event: Uuid, endpoint: &str) {
    database.execute(&dead_letters(&format!("v.id = '{event}'"), endpoint));
}

/// So many events that failed at this endpoint just now.
#[track_caller]
pub fn bury_many(database: &Database, endpoint: &str, count: u32) {
    database.execute(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         SELECT webhook.new_id(), 'order.created', '{{}}', now() FROM generate_series(1, {count})"
    ));
    database.execute(&dead_letters("true", endpoint));
}

/// Puts the failure of these events at this endpoint, at the time of their emission, into the dead letters.
fn dead_letters(events: &str, endpoint: &str) -> String {
    format!(
        "INSERT INTO webhook.dead_letter (event_id, endpoint_id, event_type, status, attempts, max_attempts,
                                          last_status_code, reason, last_error, created_at, completed_at)
         SELECT v.id, e.id, v.event_type, 'FAILED', 3, 3, 500, 'status', 'HTTP 500', v.created_at, v.created_at
         FROM webhook.event v, webhook.endpoint e WHERE {events} AND e.name = '{endpoint}'"
    )
}

/// The status of each delivery of the event, by endpoint.
#[track_caller]
pub fn statuses(database: &Database, event: Uuid) -> String {
    database.query_one_value(&format!(
        "SELECT coalesce(string_agg(n.name || ' ' || d.status, ', ' ORDER BY n.name), 'none')
         FROM webhook.delivery d
         JOIN (SELECT id, name FROM webhook.endpoint UNION ALL SELECT id, name FROM webhook.removed_endpoint) n
             ON n.id = d.endpoint_id
         WHERE d.event_id = '{event}'"
    ))
}

#[track_caller]
pub fn wait_for_statuses(database: &Database, event: Uuid, expected: &str) {
    wait::until(expected, || match statuses(database, event) {
        seen if seen == expected => Ok(()),
        seen => Err(seen),
    });
}

/// The number that an expression gives.
#[track_caller]
pub fn count(database: &Database, expression: &str) -> i64 {
    call(&mut database.connect(), expression)
}

#[track_caller]
pub fn call(session: &mut Client, expression: &str) -> i64 {
    let row = session.query_one(&format!("SELECT ({expression})::bigint"), &[]);
    let row = row.unwrap_or_else(|error| panic!("{expression}: {error:?}"));
    row.get(0)
}

/// Rows of the extension's tables and entries of its indexes that a statement of plpgsql reads, after the
/// declarations; by this session alone, since the worker and autovacuum read as well.
#[track_caller]
pub fn rows_read(session: &mut Client, declarations: &str, statement: &str) -> i64 {
    const READ: &str = "(SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class
                         WHERE relnamespace = 'webhook'::regnamespace AND relkind IN ('r', 'i'))";
    let measure = format!(
        "DO $$
         DECLARE
             {declarations}
             before bigint := {READ};
         BEGIN
             {statement};
             PERFORM set_config('test.read', ({READ} - before)::text, false);
         END $$"
    );
    let result = session.batch_execute(&measure);
    result.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    call(session, "current_setting('test.read')")
}

#[track_caller]
pub fn only_row(database: &Database, query: &str) -> Row {
    database.connect().query_one(query, &[]).unwrap()
}

/// A session, and the notices that the server sends it.
pub fn listening_session(database: &Database) -> (Client, Inbox<DbError>) {
    let (said, notices) = mpsc::channel();
    let session = database.connect_noticing(move |notice| said.send(notice).unwrap());
    (session, notices)
}

/// The notices since the last call.
pub fn told(notices: &Inbox<DbError>) -> Vec<String> {
    notices
        .try_iter()
        .map(|notice| notice.message().to_owned())
        .collect()
}
