//! Plain SQL on webhook.delivery: send again, put off, cancel.

use std::time::SystemTime;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::receiver::ids;
use webhook_e2e::{Answer, Cluster, Database, Receiver};

use super::delivery::{cluster_that_never_polls, database, database_and_receiver, delivery};
use super::retries::{do_not_wait, wait_for_retry};

/// An event that failed for good, at a receiver that has recovered since.
fn failed_event(database: &Database, receiver: &Receiver, event_type: &str, status: u16) -> Uuid {
    receiver.respond("/", move |_, _| Answer::status(status));
    let event = database.emit(event_type, json!({}));
    database.wait_for_status(event, "FAILED");
    receiver.respond("/", |_, _| Answer::status(200));
    event
}

#[test]
fn manual_update_resends() {
    let (database, receiver) = database_and_receiver();
    let event = failed_event(&database, &receiver, "order.created", 500);
    database.pause_all();
    database.execute(&format!(
        "UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '{event}'"
    ));

    let row = delivery(&database, event);
    assert_eq!(row.get::<_, i32>("attempts"), 0);
    assert_eq!(row.get::<_, Option<&str>>("last_error"), None);
    assert_eq!(row.get::<_, Option<i32>>("last_status_code"), None);
    assert_eq!(row.get::<_, Option<SystemTime>>("completed_at"), None);

    database.resume_all();
    database.wait_for_status(event, "SENT");
    assert_eq!(ids(&receiver.requests()), [event; 4]);
    assert_eq!(receiver.requests()[3].header("x-webhook-retry"), "0");
}

#[test]
fn manual_update_resends_all_of_a_type_at_once() {
    let cluster = cluster_that_never_polls();
    let (database, receiver) = (cluster.database("manual"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    let orders = [(); 2].map(|()| failed_event(&database, &receiver, "order.created", 500));
    let invoice = failed_event(&database, &receiver, "invoice.created", 500);
    database.execute(
        "UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED' AND event_type = 'order.created'",
    );
    for order in orders {
        database.wait_for_status(order, "SENT");
    }
    assert_eq!(database.delivery_status(invoice).as_deref(), Some("FAILED"));
}

#[test]
fn a_manual_update_keeps_the_attempts_and_time_that_it_sets() {
    let (database, receiver) = database_and_receiver();
    let event = failed_event(&database, &receiver, "order.created", 500);
    database.execute(
        "UPDATE webhook.delivery SET status = 'PENDING', attempts = 2, next_attempt_at = '2200-01-01 00:00Z'",
    );
    let kept: bool = database.query_one_value(
        "SELECT status = 'PENDING' AND attempts = 2 AND next_attempt_at = '2200-01-01 00:00Z' FROM webhook.delivery",
    );
    assert!(kept);

    receiver.respond("/", |_, _| Answer::status(500));
    database.execute("UPDATE webhook.delivery SET next_attempt_at = now()");
    database.wait_for_status(event, "FAILED");
    assert_eq!(receiver.request_count(), 4, "one attempt was left");
}

#[test]
fn what_was_sent_can_be_sent_again() {
    let (database, receiver) = database_and_receiver();
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'SENT'");
    receiver.wait_for_requests(2);
    database.wait_for_status(event, "SENT");
    assert_eq!(ids(&receiver.requests()), [event; 2]);
}

#[test]
fn update_of_a_leaf_by_name_is_refused() {
    let database = database();
    for leaf in ["delivery_queue", "delivery_history", "dead_letter"] {
        let refusal = database.refusal(&format!("UPDATE webhook.{leaf} SET status = 'PENDING'"));
        assert_eq!(refusal.code().code(), "55000");
        let hint = refusal.hint().unwrap_or_default();
        assert!(hint.contains("UPDATE webhook.delivery "), "{leaf}: {hint}");
    }
}

#[test]
fn an_impossible_manual_update_is_refused() {
    let (database, receiver) = database_and_receiver();
    failed_event(&database, &receiver, "order.created", 500);
    let sent = database.emit("order.paid", json!({}));
    database.wait_for_status(sent, "SENT");
    database.pause_all();
    database.emit("order.shipped", json!({}));
    let cases = [
        "status = 'SENT' WHERE status = 'FAILED'",
        "status = 'SENT' WHERE status = 'PENDING'",
        "status = 'SENDING' WHERE status = 'FAILED'",
        "status = 'SENDING' WHERE status = 'PENDING'",
        "status = 'FAILED' WHERE status = 'PENDING'",
        "status = 'FAILED' WHERE status = 'SENT'",
        "status = 'CANCELLED' WHERE status = 'SENT'",
        "event_id = gen_random_uuid() WHERE status = 'FAILED'",
        "endpoint_id = 7 WHERE status = 'FAILED'",
        "event_type = 'other' WHERE status = 'FAILED'",
        "claim_seq = 0 WHERE status = 'FAILED'",
    ];
    for change in cases {
        let refusal = database.refusal(&format!("UPDATE webhook.delivery SET {change}"));
        assert_eq!(refusal.code().code(), "55000", "{change}");
        assert!(refusal.hint().is_some(), "{change}");
    }
}

#[test]
fn manual_cancel() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("all", &receiver.url("/"), "max_in_flight => 1");
    database.pause_all();
    let event = database.emit("order.created", json!({}));
    database.execute("UPDATE webhook.delivery SET status = 'CANCELLED'");
    let row = delivery(&database, event);
    assert_eq!(row.get::<_, &str>("last_error"), "cancelled");
    assert!(row.get::<_, Option<SystemTime>>("completed_at").is_some());

    database.resume_all();
    let marker = database.emit("marker", json!({}));
    receiver.wait_for_event(marker);
    assert_eq!(ids(&receiver.requests()), [marker]);
    assert_eq!(
        database.delivery_status(event).as_deref(),
        Some("CANCELLED")
    );
}

/// Both statements of 001_2e2ed73815a3bca9, with the columns that it resets spelled out and left to us.
#[test]
fn a_failed_event_is_reprocessed_by_its_id_or_by_its_type() {
    let resets = [
        "",
        ", attempts = 0, last_error = NULL",
        ", attempts = 0, last_error = NULL, next_attempt_at = now()",
    ];
    for reset in resets {
        let (database, receiver) = (database(), Receiver::start());
        database.add_endpoint("all", &receiver.url("/"));
        let [first, second] =
            [(); 2].map(|()| failed_event(&database, &receiver, "order.created", 404));
        let other = failed_event(&database, &receiver, "order.paid", 404);

        database.execute(&format!(
            "UPDATE webhook.delivery SET status = 'PENDING'{reset} WHERE event_id = '{first}'"
        ));
        database.wait_for_status(first, "SENT");
        assert_eq!(database.delivery_status(second).as_deref(), Some("FAILED"));

        database.execute(&format!(
            "UPDATE webhook.delivery SET status = 'PENDING'{reset}
             WHERE status = 'FAILED' AND event_type = 'order.created'"
        ));
        database.wait_for_status(second, "SENT");
        assert_eq!(database.delivery_status(other).as_deref(), Some("FAILED"));
        for event in [first, second] {
            let row = delivery(&database, event);
            assert_eq!(row.get::<_, i32>("attempts"), 1, "{reset}");
            assert_eq!(row.get::<_, Option<&str>>("last_error"), None, "{reset}");
        }
        assert_eq!(receiver.request_count(), 5);
    }
}

#[test]
fn a_pending_delivery_brought_forward_goes_at_once() {
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1h'")
        .start();
    let (database, receiver) = (cluster.database("forward"), Receiver::start());
    receiver.respond("/", |_, number| {
        Answer::status(if number == 1 { 500 } else { 200 })
    });
    database.add_endpoint_with("all", &receiver.url("/"), "policy => 'patient'");
    let event = database.emit("order.created", json!({}));
    wait_for_retry(&database, event, 1);
    do_not_wait(&database);
    database.wait_for_status(event, "SENT");
    assert_eq!(delivery(&database, event).get::<_, i32>("attempts"), 2);
}

#[test]
fn a_pending_delivery_whose_attempts_are_set_back_to_zero_goes_at_once() {
    let database = database();
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, number| match number {
        1 => Answer::status(500),
        _ => Answer::status(200),
    });
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'standard'");
    let event = database.emit("order.created", json!({}));
    wait_for_retry(&database, event, 1);
    database.execute(&format!(
        "UPDATE webhook.delivery SET status = 'PENDING', attempts = 0, last_error = NULL WHERE event_id = '{event}'"
    ));
    database.wait_for_status(event, "SENT");
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn a_pending_delivery_put_off_does_not_go_before() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("all", &receiver.url("/"), "max_in_flight => 1");
    database.pause_all();
    let event = database.emit("order.created", json!({}));
    database.execute("UPDATE webhook.delivery SET next_attempt_at = now() + interval '1 h'");
    database.resume_all();
    for _ in 0..3 {
        let marker = database.emit("marker", json!({}));
        database.wait_for_status(marker, "SENT");
    }
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    assert_eq!(receiver.request_count(), 3);

    do_not_wait(&database);
    database.wait_for_status(event, "SENT");
}
