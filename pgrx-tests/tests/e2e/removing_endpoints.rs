//! `webhook_remove_endpoint()`, and the deliveries of an endpoint that is gone.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::operated::{SENDING, orders_claimed_ahead, wait_for_a_witness};
use webhook_e2e::{Answer, Cluster, Database, Receiver};

use super::endpoints::{assert_refused, database, written};

fn delivery_of(database: &Database, event: Uuid) -> (String, i64, String) {
    let row = database.connect().query_one(
        "SELECT status, (SELECT count(*) FROM webhook.delivery_queue), last_error
         FROM webhook.delivery WHERE event_id = $1 AND completed_at IS NOT NULL",
        &[&event],
    );
    let row = row.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[test]
fn removing_an_endpoint_cancels_what_is_pending() {
    let database = database();
    database.add_endpoint("billing", &Receiver::closed_url());
    database.pause_all();
    let event = database.emit("order.created", json!({}));
    database.execute("SELECT webhook_remove_endpoint('billing')");

    let cancelled = ("CANCELLED".to_owned(), 0, "endpoint removed".to_owned());
    assert_eq!(delivery_of(&database, event), cancelled);
    assert_eq!(written(&database), "", "its secret goes with it");
}

#[test]
fn removing_an_endpoint_can_dead_letter_what_is_pending() {
    let database = database();
    database.add_endpoint("billing", &Receiver::closed_url());
    database.pause_all();
    let event = database.emit("order.created", json!({}));
    database.execute("SELECT webhook_remove_endpoint('billing', 'fail')");

    let failed = ("FAILED".to_owned(), 0, "endpoint removed".to_owned());
    assert_eq!(delivery_of(&database, event), failed);
    let dead: i64 = database.query_one_value("SELECT count(*) FROM webhook.dead_letter");
    assert_eq!(dead, 1);
}

#[test]
fn a_removed_endpoint_gets_no_request_that_was_claimed_ahead() {
    let database = database();
    let receiver = orders_claimed_ahead(&database);
    database.execute("SELECT webhook_remove_endpoint('orders')");
    wait_for_a_witness(&database);
    receiver.release("/orders");
    database.wait_until(&format!("SELECT ({SENDING}) = 0"));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 54);
}

#[test]
fn removing_an_endpoint_in_any_other_way_is_refused() {
    let database = database();
    database.add_endpoint("billing", "http://127.0.0.1/");
    for pending in ["'keep'", "''", "NULL"] {
        let removal = format!("SELECT webhook_remove_endpoint('billing', {pending})");
        assert_refused(&database, &removal, "22023");
    }
}

#[test]
fn removing_an_endpoint_while_it_is_answering_stops_nothing_else() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/removed");
    database.add_endpoint("removed", &receiver.url("/removed"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    database.execute("SELECT webhook_remove_endpoint('removed')");
    receiver.release("/removed");

    database.add_endpoint("kept", &receiver.url("/kept"));
    let later = database.emit("order.created", json!({}));
    database.wait_for_status(later, "SENT");
    assert_eq!(
        database.delivery_status(event).as_deref(),
        Some("CANCELLED")
    );
}

#[test]
fn what_is_emitted_while_its_endpoint_is_removed_is_cancelled() {
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '1s'")
        .start();
    let database = cluster.database("removed");
    database.add_endpoint("removed", &Receiver::closed_url());
    let mut client = database.connect();
    let mut emitting = client.transaction().unwrap();
    let event: Uuid = emitting
        .query_one("SELECT webhook_emit('late')", &[])
        .unwrap()
        .get(0);
    database.execute("SELECT webhook_remove_endpoint('removed')");
    emitting.commit().unwrap();
    database.wait_for_status(event, "CANCELLED");
}

#[test]
fn an_endpoint_that_is_inserted_again_is_as_it_was() {
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '1s'")
        .start();
    let (database, receiver) = (cluster.database("removed"), Receiver::start());
    database.execute("UPDATE webhook.policy SET max_attempts = 1 WHERE name = 'fast'");
    receiver.respond("/back", |_, _| Answer::status(500));
    database.add_endpoint("back", &receiver.url("/back"));
    let failed = database.emit("order.created", json!({}));
    database.wait_for_status(failed, "FAILED");
    let undo = "CREATE TEMPORARY TABLE copy AS SELECT * FROM webhook.endpoint;
                DELETE FROM webhook.endpoint; INSERT INTO webhook.endpoint SELECT * FROM copy";
    // As replication and some restores insert.
    let replay = undo.replace("INSERT", "SET session_replication_role = replica; INSERT");
    for undo in [undo, undo, &replay] {
        database.execute(undo);
    }
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM webhook.failed"),
        1
    );

    database.execute("SELECT webhook_pause('back')");
    let kept_back = database.emit("order.created", json!({}));
    // Removed deliveries are cancelled in the same step.
    database.add_endpoint("gone", &Receiver::closed_url());
    database.execute("SELECT webhook_pause('gone')");
    let orphan = database.emit("order.created", json!({}));
    database.execute("DELETE FROM webhook.endpoint WHERE name = 'gone'");
    database.wait_until(&format!(
        "SELECT count(*) = 1 FROM webhook.delivery WHERE event_id = '{orphan}' AND status = 'CANCELLED'"
    ));
    assert_eq!(
        database.delivery_status(kept_back).as_deref(),
        Some("PENDING")
    );
}

#[test]
fn a_delivery_of_a_removed_endpoint_cannot_be_sent_again() {
    let database = Cluster::shared().database("removed");
    database.execute("UPDATE webhook.policy SET max_attempts = 1 WHERE name = 'fast'");
    database.add_endpoint("removed", &Receiver::closed_url());
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    database.execute("SELECT webhook_remove_endpoint('removed')");
    let refusal =
        database.refusal("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
    assert_eq!(refusal.code().code(), "55000", "{refusal:?}");
    assert!(refusal.hint().is_some());
    assert_eq!(database.delivery_status(event).as_deref(), Some("FAILED"));
}
