//! Alerts never go in a loop: the delivery of one, whatever becomes of it, causes no other.

use webhook_e2e::alerts::{
    Listener, add_endpoint, add_policy, answer, database, own_events, received, subscribe,
    try_with, wait_for_logged, wait_for_silence, wait_for_state,
};
use webhook_e2e::{Answer, Cluster, Receiver};

#[test]
fn an_endpoint_gets_no_event_about_itself() {
    let (database, receiver) = (database(), Receiver::start());
    subscribe(&database, &receiver, "colleague", "webhook.*", "");
    add_policy(&database, "mixed", "");
    let options = "'{mixed,webhook.*}', policy => 'mixed'";
    database.add_endpoint_with("mixed", &receiver.url("/mixed"), options);
    try_with(&database, &receiver, "mixed", 404, 1);
    answer(&receiver, "mixed", 200);
    receiver.wait_for_requests_to("/colleague", 1);
    wait_for_silence(&database);
    assert_eq!(received(&receiver, "colleague"), ["failed"]);
    assert_eq!(received(&receiver, "mixed"), ["mixed"]);
}

#[test]
fn a_failing_alert_endpoint_causes_no_event() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_policy(&database, "alerting", "initial_delay = '1 ms'");
    for name in ["deaf", "mute"] {
        let options = "'{webhook.*}', policy => 'alerting'";
        database.add_endpoint_with(name, &receiver.url(&format!("/{name}")), options);
        answer(&receiver, name, 500);
    }
    add_endpoint(&database, &receiver, "cause", "", "");
    try_with(&database, &receiver, "cause", 404, 1);
    for name in ["deaf", "mute"] {
        wait_for_state(&database, name, "OPEN");
    }
    wait_for_silence(&database);
    // The event about the cause. Listeners and readers of the log learn of the others too.
    assert_eq!(own_events(&database), 1);
    assert_eq!(listener.kinds(&database, "cause"), ["failed"]);
    for name in ["deaf", "mute"] {
        assert_eq!(listener.kinds(&database, name), ["degraded", "opened"]);
        wait_for_logged(Cluster::shared(), name, 2);
    }
    assert_eq!(received(&receiver, "deaf"), ["failed"; 3]);
}

#[test]
fn alert_endpoints_that_recover_and_fail_again_do_not_feed_each_other() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_policy(
        &database,
        "alerting",
        "initial_delay = '1 ms', warn_threshold = 1, failure_threshold = 0",
    );
    for name in ["ping", "pong"] {
        let options = "'{webhook.*}', policy => 'alerting'";
        database.add_endpoint_with(name, &receiver.url(&format!("/{name}")), options);
        receiver.respond(&format!("/{name}"), |_, number| {
            Answer::status(if number % 2 == 1 { 500 } else { 200 })
        });
    }
    add_endpoint(&database, &receiver, "server", "", "");
    try_with(&database, &receiver, "server", 404, 1);
    wait_for_silence(&database);
    assert_eq!(own_events(&database), 1);
    for name in ["ping", "pong"] {
        assert_eq!(received(&receiver, name), ["failed"; 2]);
        assert_eq!(listener.kinds(&database, name), ["degraded"]);
    }
}

#[test]
fn an_alert_that_cannot_be_delivered_is_no_alert() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_policy(
        &database,
        "alerting",
        "failure_threshold = 0, warn_threshold = 0",
    );
    let options = "'{webhook.*}', policy => 'alerting'";
    database.add_endpoint_with("refusing", &receiver.url("/refusing"), options);
    answer(&receiver, "refusing", 404);
    add_endpoint(&database, &receiver, "undelivered", "", "");
    try_with(&database, &receiver, "undelivered", 404, 1);
    database.wait_until("SELECT count(*) = 2 FROM webhook.dead_letter");
    wait_for_silence(&database);
    assert_eq!(listener.alerts(&database).len(), 1);
    assert_eq!(own_events(&database), 1);
}

#[test]
fn our_own_events_are_not_counted_among_deliveries() {
    let (database, receiver) = (database(), Receiver::start());
    subscribe(&database, &receiver, "uncounted", "webhook.*", "");
    subscribe(&database, &receiver, "unreached", "webhook.*", "");
    answer(&receiver, "unreached", 404);
    add_endpoint(&database, &receiver, "counted", "", "");
    try_with(&database, &receiver, "counted", 404, 1);
    database.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    wait_for_silence(&database);
    try_with(&database, &receiver, "counted", 200, 1);
    database.wait_until("SELECT coalesce(sum(sent), 0) > 0 FROM webhook.stat");
    let counted: String = database.query_one_value(
        "SELECT string_agg(concat_ws(' ', e.name, s.attempts, s.sent, s.failed), ', ')
         FROM webhook.stat s JOIN webhook.endpoint e ON e.id = s.endpoint_id WHERE s.grain = 'total'",
    );
    assert_eq!(counted, "counted 2 1 1");
    let rate: f64 = database.query_one_value(
        "SELECT value::float8 FROM webhook.metrics WHERE metric = 'webhook_delivery_success_rate'",
    );
    assert_eq!(rate, 50.0);
}
