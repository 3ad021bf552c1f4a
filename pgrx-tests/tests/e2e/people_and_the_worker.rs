//! Rows that a person has locked, moved or cancelled while the worker is at them.

use std::collections::HashSet;
use std::sync::Mutex;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::receiver::ids;
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait, worker};

use super::recovery::{add_endpoint_with_one_attempt, attempts, count};

#[test]
fn a_late_result_does_not_overwrite_a_requeued_delivery() {
    let database = Cluster::shared().database("requeued");
    let receiver = Receiver::start();
    for late_status in [200, 500] {
        let first = format!("/first/{late_status}");
        let second = format!("/second/{late_status}");
        receiver.hold(&first);
        receiver.hold(&second);
        receiver.respond(&first, move |_, _| Answer::status(late_status));
        receiver.respond(&second, |_, _| Answer::status(202));
        let name = format!("answers_{late_status}");
        let only_its_events = format!("event_types => '{{{name}}}', policy => 'fast'");
        database.add_endpoint_with(&name, &receiver.url(&first), &only_its_events);
        let event = database.emit(&name, json!({}));
        receiver.wait_for_requests_to(&first, 1);

        let url = receiver.url(&second);
        database.execute(&format!(
            "UPDATE webhook.endpoint SET url = '{url}' WHERE name = '{name}';
             UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '{event}'"
        ));
        receiver.wait_for_requests_to(&second, 1);
        wait_for_in_flight(&database, 2);

        receiver.release(&first);
        wait_for_in_flight(&database, 1);
        let unchanged: bool = database.query_one_value(&format!(
            "SELECT status = 'SENDING' AND claim_seq = 2 AND last_status_code IS NULL
             FROM webhook.delivery WHERE event_id = '{event}'"
        ));
        assert!(unchanged, "the late {late_status} changed the row");

        receiver.release(&second);
        database.wait_for_status(event, "SENT");
        let code: i32 = database.query_one_value(&format!(
            "SELECT last_status_code FROM webhook.delivery WHERE event_id = '{event}'"
        ));
        assert_eq!(code, 202);
    }
}

#[test]
fn a_delivery_cancelled_in_flight_stays_cancelled() {
    let database = Cluster::shared().database("cancelled");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    wait_for_in_flight(&database, 1);

    database.execute("UPDATE webhook.delivery SET status = 'CANCELLED'");
    receiver.release("/orders");
    wait_for_in_flight(&database, 0);
    assert_eq!(
        database.delivery_status(event).as_deref(),
        Some("CANCELLED")
    );
}

/// While a person's transaction on a delivery is open others go out, and this one does afterwards.
fn assert_that_others_go_out_while_open(statement: &str, end: &str) {
    let database = Cluster::shared().database("open_transaction");
    let receiver = Receiver::start();
    let locked = paused_event(&database, &receiver);
    let mut person = database.connect();
    person
        .batch_execute(&format!(
            "BEGIN; {}",
            statement.replace("$1", &format!("'{locked}'"))
        ))
        .unwrap();
    database.resume_all();

    let other = database.emit("order.created", json!({}));
    database.wait_for_status(other, "SENT");
    assert_eq!(ids(&receiver.requests()), [other]);
    person.batch_execute(end).unwrap();
    database.wait_for_status(locked, "SENT");
    assert_eq!(ids(&receiver.requests()), [other, locked]);
}

#[test]
fn a_persons_open_transaction_does_not_stop_the_worker() {
    assert_that_others_go_out_while_open(
        "SELECT FROM webhook.delivery WHERE event_id = $1 FOR UPDATE",
        "ROLLBACK",
    );
}

#[test]
fn a_persons_open_update_does_not_stop_the_worker() {
    assert_that_others_go_out_while_open(
        "UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = $1",
        "COMMIT",
    );
}

#[test]
fn an_outcome_of_a_locked_row_is_kept_and_settled_later() {
    let database = Cluster::shared().database("locked_outcome");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let locked = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.delivery WHERE event_id = $1 FOR UPDATE";
    transaction.execute(lock, &[&locked]).unwrap();

    receiver.release("/orders");
    wait_for_in_flight(&database, 0);
    let other = database.emit("order.created", json!({}));
    database.wait_for_status(other, "SENT");
    assert_eq!(database.delivery_status(locked).as_deref(), Some("SENDING"));
    transaction.rollback().unwrap();
    database.wait_for_status(locked, "SENT");
    assert_eq!(ids(&receiver.requests()), [locked, other]);
    assert_eq!(attempts(&database, locked), 1);
}

#[test]
fn an_outcome_that_cannot_be_settled_does_not_keep_others_back() {
    let database = Cluster::shared().database("unsettled");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no history of this'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON webhook.delivery_history FOR EACH ROW
             WHEN (NEW.event_type = 'order.refused') EXECUTE FUNCTION refuse()",
    );
    let refused = database.emit("order.refused", json!({}));
    let sent_with_it = database.emit("order.created", json!({}));
    receiver.wait_for_requests(2);
    receiver.release("/orders");
    database.wait_for_status(sent_with_it, "SENT");
    database.wait_until(
        "SELECT coalesce(last_error = 'outcome set aside: no history of this', false) FROM webhook_status()",
    );
    let sent_later = database.emit("order.created", json!({}));
    database.wait_for_status(sent_later, "SENT");

    assert_eq!(
        database.delivery_status(refused).as_deref(),
        Some("SENDING")
    );
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_person_moving_rows_never_breaks_the_worker() {
    let cluster = Cluster::shared();
    let database = cluster.database("moved");
    let receiver = Receiver::start();
    let refused = Mutex::new(HashSet::new());
    receiver.respond("/orders", move |request, _| {
        match refused.lock().unwrap().insert(request.event_id()) {
            true => Answer::status(500),
            false => Answer::status(200),
        }
    });
    add_endpoint_with_one_attempt(&database, &receiver.url("/orders"));
    let pid = worker::pid(&database);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 300)");

    let mut person = database.connect();
    for _ in 0..30 {
        let cancel_and_requeue = "
            UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status IN ('PENDING', 'SENDING');
            UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'CANCELLED'";
        person.batch_execute(cancel_and_requeue).unwrap();
    }
    wait::until("all deliveries to be sent", || {
        let requeue = "UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'";
        person.batch_execute(requeue).unwrap();
        match count(&database, "status = 'SENT'") {
            300 => Ok(()),
            seen => Err(seen),
        }
    });
    assert_eq!(worker::pid(&database), pid);
    assert_eq!(worker::complaints(cluster, pid), Vec::<String>::new());
}

/// An event whose delivery to the endpoint `orders` waits for `resume`.
fn paused_event(database: &Database, receiver: &Receiver) -> Uuid {
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.pause_all();
    database.emit("order.created", json!({}))
}

#[track_caller]
fn wait_for_in_flight(database: &Database, count: i32) {
    database.wait_until(&format!("SELECT in_flight = {count} FROM webhook_status()"));
}

#[test]
fn a_person_who_locks_the_counters_does_not_stop_deliveries() {
    let database = Cluster::shared().database("counters");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.stat IN SHARE MODE")
        .unwrap();

    let counted = database.emit("order.created", json!({}));
    database.wait_for_status(counted, "SENT");
    database
        .wait_until("SELECT coalesce(last_error, '') LIKE '%lock timeout%' FROM webhook_status()");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    transaction.rollback().unwrap();
    database.wait_until("SELECT coalesce(sum(sent + failed), 0) = 2 FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'");
}
