//! Stopping an endpoint and letting it go on: webhook_pause(), webhook_resume().

use postgres::error::SqlState;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::operated::{
    SENDING, answer, assert_that, fail, orders, orders_claimed_ahead, wait_for, wait_for_a_witness,
    wait_for_empty_queue,
};
use webhook_e2e::{Cluster, Database, Receiver};

pub(super) fn database() -> Database {
    Cluster::shared().database("pausing")
}

#[test]
fn a_paused_endpoint_gets_nothing_until_it_is_resumed() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let events = [(); 3].map(|()| database.emit("order.created", json!({})));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 0);
    assert_that(&database, "orders", "(state, kept_back) = ('PAUSED', 3)");

    let freed: i64 = database.query_one_value("SELECT webhook_resume('orders')");
    assert_eq!(freed, 3);
    for event in events {
        database.wait_for_status(event, "SENT");
    }
    assert_eq!(receiver.request_count(), 3);
    assert_that(&database, "orders", "state = 'ACTIVE' AND since IS NULL");
}

#[test]
fn what_is_in_flight_when_it_is_paused_is_finished_and_its_retry_waits() {
    let database = database();
    let receiver = orders(&database, "initial_delay = '1 ms'");
    receiver.hold("/orders");
    answer(&receiver, 500);
    database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    database.execute("SELECT webhook_pause('orders')");
    receiver.release("/orders");
    wait_for(
        &database,
        "orders",
        "(state, consecutive_failures, in_flight, kept_back) = ('PAUSED', 1, 0, 1)",
    );
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn a_pause_gives_back_deliveries_that_were_claimed_ahead() {
    gives_back_deliveries_that_were_claimed_ahead("SELECT webhook_pause('orders')");
}

#[test]
fn a_pause_that_meets_a_look_at_all_endpoints_gives_back_too() {
    gives_back_deliveries_that_were_claimed_ahead(
        "BEGIN;
         SELECT webhook_pause('orders');
         UPDATE webhook.delivery SET status = 'PENDING' WHERE false;
         COMMIT",
    );
}

fn gives_back_deliveries_that_were_claimed_ahead(pause: &str) {
    let database = database();
    let receiver = orders_claimed_ahead(&database);
    database.execute(pause);
    database.wait_until(&format!("SELECT ({SENDING}) = 4"));
    receiver.release("/orders");
    database.wait_until(&format!("SELECT ({SENDING}) = 0"));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 54);
    database.execute("SELECT webhook_resume('orders')");
    wait_for_empty_queue(&database);
    assert_eq!(receiver.request_count(), 80);
    let once = "SELECT bool_and(attempts = 1) FROM webhook.delivery";
    assert!(database.query_one_value::<bool>(once));
}

#[test]
fn pausing_again_changes_nothing() {
    let database = database();
    let _receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let since: String = database.query_one_value("SELECT since::text FROM webhook.endpoint_status");
    database.execute("SELECT webhook_pause('orders')");
    let still: String = database.query_one_value("SELECT since::text FROM webhook.endpoint_status");
    assert_eq!(since, still);
}

#[test]
fn pausing_and_resuming_tell_what_they_have_changed() {
    let database = database();
    let receiver = orders(&database, "");
    let call = |function: &str| -> i64 {
        database.query_one_value(&format!("SELECT webhook_{function}('orders')"))
    };
    assert_eq!(call("resume"), 0);
    assert_eq!(call("pause"), 1);
    assert_eq!(call("pause"), 0);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 2)");
    // None of these goes out with them.
    for later in [
        "deliver_at => now() + interval '1 h'",
        "deliver_at => 'infinity'",
        "expires_at => now() + interval '10 ms'",
    ] {
        database.execute(&format!("SELECT webhook_emit('order.created', {later})"));
    }
    database.wait_until("SELECT count(*) = 1 FROM webhook.dead_letter");
    assert_eq!(call("resume"), 2);
    database.wait_until("SELECT count(*) = 2 FROM webhook.delivery WHERE status = 'SENT'");
    assert_eq!(call("resume"), 0);

    // Retries that a closed breaker kept waiting, and all deliveries that an open one did.
    fail(&database, &receiver, 2);
    assert_eq!(call("resume"), 2);
    database.wait_until("SELECT count(*) = 4 FROM webhook.delivery WHERE status = 'SENT'");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    assert_eq!(call("resume"), 4);
    database.wait_until("SELECT count(*) = 8 FROM webhook.delivery WHERE status = 'SENT'");

    // A held endpoint stays held.
    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    database.emit("order.created", json!({}));
    assert_eq!((call("pause"), call("resume")), (1, 0));
}

#[test]
fn a_tenants_endpoints_are_paused_and_resumed_together_and_so_are_all() {
    let (database, receiver) = (database(), Receiver::start());
    for address in [
        "acme/orders",
        "acme/billing",
        "acme2/orders",
        "orders",
        "zeta/orders",
    ] {
        database.add_endpoint(address, &receiver.url(&format!("/{address}")));
    }
    let number = |sql: &str| -> i64 { database.query_one_value(&format!("SELECT {sql}")) };
    let stopped = || -> String {
        database.query_one_value(
            "SELECT coalesce(string_agg(endpoint, ' ' ORDER BY endpoint), '') FROM webhook.endpoint_status
             WHERE state = 'PAUSED'",
        )
    };
    assert_eq!(number("webhook_pause('acme/billing')"), 1);
    assert_eq!(stopped(), "acme/billing");
    assert_eq!(number("webhook_pause('acme/*')"), 1);
    assert_eq!(stopped(), "acme/billing acme/orders");
    let kept_back: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', tenant => 'acme')");
    receiver.wait_for_requests_to("/orders", 1);
    wait_for_a_witness(&database);
    assert_eq!(receiver.requests_to("/acme/orders").len(), 0);

    assert_eq!(number("webhook_pause('*')"), 3);
    assert_eq!(
        stopped(),
        "acme/billing acme/orders acme2/orders orders zeta/orders"
    );
    assert_eq!(number("webhook_resume('acme/*')"), 2);
    database.wait_for_status(kept_back, "SENT");
    assert_eq!(stopped(), "acme2/orders orders zeta/orders");
    assert_eq!(number("webhook_resume('*')"), 0);
    assert_eq!(stopped(), "");

    for function in ["webhook_pause", "webhook_resume"] {
        let unknown = database.refusal(&format!("SELECT {function}('acne/*')"));
        assert_eq!(*unknown.code(), SqlState::UNDEFINED_OBJECT);
        assert_eq!(unknown.message(), r#"tenant "acne" has no endpoint"#);
        assert_eq!(
            unknown.hint(),
            Some(r#"Did you mean "acme" or "acme2"?"#),
            "{unknown:?}"
        );
        let null = database.refusal(&format!("SELECT {function}(NULL)"));
        assert_eq!(*null.code(), SqlState::NULL_VALUE_NOT_ALLOWED);
        assert!(null.hint().is_some());
    }
    assert_eq!(stopped(), "");
}

#[test]
fn resume_sets_the_counter_to_0_and_waiting_retries_are_due_now() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 2);
    database.execute("SELECT webhook_pause('orders')");
    let chosen: Uuid = database.query_one_value(
        "WITH one AS (SELECT event_id FROM webhook.delivery_queue LIMIT 1)
         UPDATE webhook.delivery d SET next_attempt_at = now() + interval '2 h' FROM one WHERE d.event_id = one.event_id
         RETURNING d.event_id",
    );
    let planned: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    );
    let put_aside: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', deliver_at => 'infinity')");

    database.execute("SELECT webhook_resume('orders')");
    assert_that(
        &database,
        "orders",
        "consecutive_failures = 0 AND state = 'ACTIVE'",
    );
    database.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    wait_for_a_witness(&database);
    // The times that people chose are kept.
    for event in [chosen, planned, put_aside] {
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    }
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_410_disables_and_resume_lets_it_go_on() {
    let database = database();
    let receiver = orders(&database, "");
    answer(&receiver, 410);
    let refused = database.emit("order.created", json!({}));
    wait_for(
        &database,
        "orders",
        "(state, reason, failed) = ('DISABLED', 'gone', 1)",
    );
    answer(&receiver, 200);
    let kept_back = database.emit("order.created", json!({}));
    wait_for_a_witness(&database);
    assert_that(&database, "orders", "kept_back = 1");
    assert_eq!(receiver.request_count(), 1);

    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(kept_back, "SENT");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, failed) = ('ACTIVE', 0, 1) AND num_nonnulls(reason, since) = 0",
    );
    // The operator replays dead letters.
    assert_eq!(database.delivery_status(refused).as_deref(), Some("FAILED"));
}

#[test]
fn a_policy_that_disables_where_others_open_is_resumed_too() {
    let database = database();
    let receiver = orders(&database, "on_trip = 'disable'");
    fail(&database, &receiver, 3);
    wait_for(
        &database,
        "orders",
        "(state, reason, consecutive_failures) = ('DISABLED', 'tripped', 3)",
    );
    database.execute("SELECT webhook_resume('orders')");
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('ACTIVE', 0)",
    );
}

/// An endpoint under the preset, but for its delays.
fn power5_in_milliseconds() -> (Database, Receiver) {
    let (database, receiver) = (database(), Receiver::start());
    database.execute(
        "SELECT webhook_copy_policy('power5', 'power5_ms');
         UPDATE webhook.policy SET initial_delay = '1 ms', factor = 2 WHERE name = 'power5_ms'",
    );
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'power5_ms'",
    );
    (database, receiver)
}

/// 002: "Failed: exhausted 5 retries for one or more deliveries. No longer retrying automatically." And from there:
/// "Resume .. sets status=active, failure_count=0, retries pending deliveries (if any). If deliveries succeed, webhook
/// returns to Active state."
#[test]
fn power5_fails_when_retries_are_exhausted_and_resume_retries_what_is_pending() {
    let (database, receiver) = power5_in_milliseconds();
    answer(&receiver, 500);
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    assert_that(
        &database,
        "orders",
        "(state, reason, consecutive_failures, failed) = ('DISABLED', 'exhausted', 6, 1)",
    );
    let pending = [(); 2].map(|()| database.emit("order.created", json!({})));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 6);
    assert_that(&database, "orders", "kept_back = 2");

    answer(&receiver, 200);
    database.execute("SELECT webhook_resume('orders')");
    for event in pending {
        database.wait_for_status(event, "SENT");
    }
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, queued) = ('ACTIVE', 0, 0) AND reason IS NULL",
    );
}

#[test]
fn resume_retries_what_was_waiting_when_another_delivery_exhausted_its_attempts() {
    let (database, receiver) = power5_in_milliseconds();
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'power5_ms'");
    answer(&receiver, 500);
    let waiting = database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt");
    database.execute("UPDATE webhook.policy SET initial_delay = '1 ms' WHERE name = 'power5_ms'");
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    assert_that(&database, "orders", "(state, queued) = ('DISABLED', 1)");

    answer(&receiver, 200);
    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(waiting, "SENT");
    let attempts: i32 = database.query_one_value(&format!(
        "SELECT attempts FROM webhook.delivery WHERE event_id = '{waiting}'"
    ));
    assert_eq!(attempts, 2);
}

#[test]
fn a_single_final_failure_is_no_exhaustion() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'power5'");
    answer(&receiver, 404);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, failed) = ('DEGRADED', 1, 1)",
    );
}

#[test]
fn resume_closes_an_open_breaker_of_a_paused_endpoint() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_pause('orders')");
    database.execute("SELECT webhook_resume('orders')");
    assert_that(
        &database,
        "orders",
        "(state, trips, consecutive_failures) = ('ACTIVE', 0, 0)",
    );
    wait_for_empty_queue(&database);
    assert_eq!(receiver.request_count(), 6);
}
