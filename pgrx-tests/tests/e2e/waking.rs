//! The message of a commit to the worker: the endpoints that have something due, so that it asks for them alone.

use serde_json::json;
use webhook_e2e::{Cluster, Database, Receiver};

const EVENTS: usize = 30;

/// Where only commits wake the worker, and functions are counted.
pub fn woken_by_commits_alone() -> Cluster {
    Cluster::builder()
        .setting("webhook.poll_interval = '1h'")
        .setting("track_functions = 'all'")
        .start()
}

pub fn calls_of(database: &Database, function: &str) -> i64 {
    database.query_one_value(&format!(
        "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE schemaname = 'webhook' AND funcname = '{function}'"
    ))
}

#[test]
fn the_worker_asks_for_the_endpoints_of_a_commit_alone() {
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database("woken"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let exchanges = calls_of(&database, "exchange");
    let looks = calls_of(&database, "agenda");
    for n in 1..=EVENTS {
        database.emit("order.created", json!({}));
        receiver.wait_for_requests(n + 1);
    }
    database.wait_until(&format!(
        "SELECT sum(calls) >= {} FROM pg_stat_user_functions WHERE funcname = 'exchange'",
        exchanges + EVENTS as i64
    ));
    // One may have been under way.
    let more_looks = calls_of(&database, "agenda") - looks;
    assert!(more_looks <= 2, "{more_looks}");
}

#[test]
fn more_endpoints_than_a_commit_can_tell_are_all_served() {
    const ENDPOINTS: usize = 150;
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database("overflow"), Receiver::start());
    database.execute(&format!(
        "SELECT webhook_set_endpoint('e' || n, '{}', event_types => ARRAY['type_' || n]) FROM generate_series(1, {ENDPOINTS}) n",
        receiver.url("/")
    ));
    for all in [ENDPOINTS, 2 * ENDPOINTS] {
        database.execute(&format!(
            "SELECT webhook_emit('type_' || n) FROM generate_series(1, {ENDPOINTS}) n"
        ));
        receiver.wait_for_requests(all);
    }
}

#[test]
fn what_is_due_later_is_sent_then_though_nothing_wakes_the_worker_meanwhile() {
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database("later"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute("SELECT webhook_emit('order.created', deliver_at => now() + interval '2 s')");
    let request = receiver.wait_for_requests(1).remove(0);
    let early: bool = database.query_one_value(&format!(
        "SELECT to_timestamp({}) < next_attempt_at FROM webhook.delivery",
        request
            .arrived_at
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64()
    ));
    assert!(!early);
}

#[test]
fn a_transaction_that_commits_late_is_served_at_once() {
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database("late"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let mut session = database.connect();
    let mut late = session.transaction().unwrap();
    late.execute("SELECT webhook_emit('order.created')", &[])
        .unwrap();
    // Emitted after it, and sent before it.
    for n in 1..=10 {
        database.emit("order.created", json!({}));
        receiver.wait_for_requests(n);
    }
    late.commit().unwrap();
    receiver.wait_for_requests(11);
}
