//! Somebody has locked a whole table of ours, as VACUUM FULL does: deliveries go on where they can, and are settled
//! when the lock is gone.

use std::collections::HashSet;

use webhook_e2e::{Answer, Cluster, Database, Receiver};

/// More than an endpoint may have in flight, so that room has to come from answers.
const EVENTS: usize = 200;

/// While the table is locked all of `order.good` arrives once; afterwards everything is settled, and nothing is
/// repeated.
#[track_caller]
fn assert_that_a_lock_stops_nothing(table: &str, beside: impl FnOnce(&Database, &Receiver)) {
    let database = Cluster::shared().database("locked_table");
    let receiver = Receiver::start();
    database.add_endpoint_with(
        "good",
        &receiver.url("/good"),
        "policy => 'fast', event_types => '{order.good}', max_in_flight => 16",
    );
    beside(&database, &receiver);
    let first = database.emit("order.good", serde_json::json!({}));
    database.wait_for_status(first, "SENT");

    let mut person = database.connect();
    let lock = format!("BEGIN; LOCK TABLE webhook.{table} IN ACCESS EXCLUSIVE MODE");
    person.batch_execute(&lock).unwrap();
    database.execute(&format!(
        "SELECT count(webhook_emit('order.' || CASE n % 20 WHEN 0 THEN 'bad' ELSE 'good' END))
         FROM generate_series(1, {EVENTS}) AS n"
    ));
    let good = EVENTS - EVENTS / 20 + 1;
    receiver.wait_for_requests_to("/good", good);
    person.batch_execute("ROLLBACK").unwrap();

    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    let sent = "SELECT count(*) FROM webhook.delivery_history WHERE attempts = 1 AND event_type = 'order.good'";
    assert_eq!(database.query_one_value::<i64>(sent), good as i64);
    let arrived = receiver.requests_to("/good");
    let distinct: HashSet<_> = arrived.iter().map(|request| request.event_id()).collect();
    assert_eq!((arrived.len(), distinct.len()), (good, good));
}

/// An endpoint that refuses its events for good.
fn refusing(database: &Database, receiver: &Receiver) {
    receiver.respond("/bad", |_, _| Answer::status(400));
    let options = "policy => 'fast', event_types => '{order.bad}'";
    database.add_endpoint_with("bad", &receiver.url("/bad"), options);
}

#[test]
fn a_lock_on_the_history_does_not_stop_what_can_be_sent() {
    assert_that_a_lock_stops_nothing("delivery_history", |_, _| {});
}

#[test]
fn a_lock_on_the_attempts_does_not_stop_what_can_be_sent() {
    assert_that_a_lock_stops_nothing("attempt", refusing);
}

#[test]
fn a_lock_on_the_dead_letters_does_not_stop_what_can_be_sent() {
    assert_that_a_lock_stops_nothing("dead_letter", refusing);
}

#[test]
fn a_lock_on_the_alerts_does_not_stop_what_can_be_sent() {
    assert_that_a_lock_stops_nothing("alert", refusing);
}

#[test]
fn a_lock_on_the_breakers_does_not_stop_what_can_be_sent() {
    assert_that_a_lock_stops_nothing("breaker", refusing);
}

#[test]
fn an_open_breaker_keeps_its_deliveries_back_while_breakers_are_locked() {
    let database = Cluster::shared().database("locked_table");
    let receiver = Receiver::start();
    for name in ["well", "open"] {
        let options = format!("policy => 'fast', event_types => '{{order.{name}}}'");
        database.add_endpoint_with(name, &receiver.url(&format!("/{name}")), &options);
        let first = database.emit(&format!("order.{name}"), serde_json::json!({}));
        database.wait_for_status(first, "SENT");
    }
    database.execute(
        "INSERT INTO webhook.breaker (endpoint_id, state, opened_at, probe_at, trips, consecutive_failures)
         SELECT id, 'OPEN', now(), now() + '1 h', 1, 5 FROM webhook.endpoint WHERE name = 'open'",
    );
    // The sender learns of it when it asks for something.
    let kept_back = database.emit("order.open", serde_json::json!({}));
    let sent = database.emit("order.well", serde_json::json!({}));
    database.wait_for_status(sent, "SENT");

    let mut person = database.connect();
    person
        .batch_execute("BEGIN; LOCK TABLE webhook.breaker IN ACCESS EXCLUSIVE MODE")
        .unwrap();
    database.execute("SELECT count(webhook_emit('order.' || name)) FROM generate_series(1, 20), unnest('{well,open}'::text[]) AS name");
    receiver.wait_for_requests_to("/well", 22);
    person.batch_execute("ROLLBACK").unwrap();

    database.wait_until("SELECT count(*) = 21 FROM webhook.delivery_queue");
    database.wait_for_status(kept_back, "PENDING");
    assert_eq!(receiver.requests_to("/open").len(), 1);
}
