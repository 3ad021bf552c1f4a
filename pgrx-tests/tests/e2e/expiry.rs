//! A delivery past its expires_at is never sent, whatever has kept it waiting.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{Wish, claim, idle_cluster};
use webhook_e2e::{Answer, Cluster, Database, Guarded, Receiver};

/// Its time is over now, wherever it is.
fn let_expire(database: &Database, event: Uuid) {
    database.execute(&format!(
        "UPDATE webhook.delivery SET expires_at = now() WHERE event_id = '{event}'"
    ));
}

fn emit_for_an_hour(database: &Database) -> Uuid {
    database.query_one_value(
        "SELECT webhook_emit('order.created', expires_at => now() + interval '1 h')",
    )
}

#[track_caller]
fn assert_expired(database: &Database, event: Uuid, attempts: i32) {
    database.wait_for_status(event, "FAILED");
    let row = database.connect().query_one(
        "SELECT last_error, attempts FROM webhook.dead_letter WHERE event_id = $1",
        &[&event],
    );
    let row = row.unwrap();
    let seen = (row.get::<_, String>(0), row.get::<_, i32>(1));
    assert_eq!(seen, ("expired".to_owned(), attempts));
}

#[test]
fn what_is_sent_in_time_is_sent() {
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    let event = emit_for_an_hour(&database);
    database.wait_for_status(event, "SENT");
}

#[test]
fn what_expires_while_its_endpoint_is_paused_fails_unsent() {
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    database.execute("SELECT webhook_pause('all')");
    let (expired, waiting) = (emit_for_an_hour(&database), emit_for_an_hour(&database));
    let_expire(&database, expired);
    assert_expired(&database, expired, 0);

    database.execute("SELECT webhook_resume('all')");
    database.wait_for_status(waiting, "SENT");
    assert_eq!(receiver.request_count(), 1);
    let told: bool = database.query_one_value(&format!(
        "SELECT bool_or(why LIKE '%its expires_at,%has passed (expired)%') FROM webhook_why('{expired}') AS why"
    ));
    assert!(told);
}

#[test]
fn what_expires_behind_an_open_breaker_fails_unsent_and_is_no_probe() {
    let guarded = Guarded::with("");
    guarded.open();
    // The oldest due delivery: it would be the probe.
    guarded
        .database
        .execute("DELETE FROM webhook.delivery_queue WHERE attempts > 0");
    let (expired, other) = (emit_for_an_hour(&guarded.database), guarded.emit(1));
    let_expire(&guarded.database, expired);
    guarded.let_the_time_pass();
    guarded.wait_for_status(&other, "SENT");
    assert_expired(&guarded.database, expired, 0);
    assert!(!guarded.received().contains(&expired));
}

#[test]
fn an_open_breaker_that_turns_away_leaves_what_has_expired_to_expire() {
    let guarded = Guarded::with("when_open = 'fail'");
    guarded.open();
    let expired: Uuid = guarded.database.query_one_value(
        "SELECT webhook_emit('order.created', expires_at => now() - interval '1 h')",
    );
    assert_expired(&guarded.database, expired, 0);
}

#[test]
fn what_expires_while_it_waits_for_a_retry_fails() {
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    // The next attempt is due long after it has expired.
    database.add_endpoint_with("all", &receiver.url("/"), "policy => 'patient'");
    let event = emit_for_an_hour(&database);
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt");
    let_expire(&database, event);
    assert_expired(&database, event, 1);
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn what_expires_in_flight_and_succeeds_is_sent() {
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    receiver.hold("/");
    database.add_endpoint("all", &receiver.url("/"));
    let event = emit_for_an_hour(&database);
    receiver.wait_for_requests(1);
    let_expire(&database, event);
    receiver.release("/");
    database.wait_for_status(event, "SENT");
}

#[test]
fn an_event_that_has_expired_when_it_is_emitted_fails() {
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    let event: Uuid =
        database.query_one_value("SELECT webhook_emit('a', expires_at => '-infinity')");
    assert_expired(&database, event, 0);
    assert_eq!(receiver.request_count(), 0);
}

#[test]
fn an_event_that_expires_before_it_is_due_is_refused() {
    let database = Cluster::shared().database("expiry");
    for expires_at in ["now()", "now() + interval '1 h'"] {
        let refusal = database.refusal(&format!(
            "SELECT webhook_emit('a', deliver_at => now() + interval '1 h', expires_at => {expires_at})"
        ));
        assert_eq!(refusal.code().code(), "22023");
        assert!(refusal.hint().is_some());
    }
    database.execute("SELECT webhook_emit('a', deliver_at => now(), expires_at => 'infinity')");
}

#[test]
fn what_has_expired_is_sent_when_somebody_asks_for_it() {
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    let by_hand = "UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '$1'";
    for again in ["SELECT webhook_replay('$1')", by_hand] {
        let event: Uuid =
            database.query_one_value("SELECT webhook_emit('a', expires_at => '-infinity')");
        assert_expired(&database, event, 0);
        database.execute(&again.replace("$1", &event.to_string()));
        database.wait_for_status(event, "SENT");
    }
}

#[test]
fn thousands_that_expire_at_once_hold_up_nobody() {
    const EXPIRED: i64 = 5000;
    let (database, receiver) = (Cluster::shared().database("expiry"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    database.execute("SELECT webhook_pause('all')");
    database.execute(&format!(
        "SELECT webhook_emit('a', expires_at => now()) FROM generate_series(1, {EXPIRED})"
    ));
    database.execute("SELECT webhook_resume('all')");
    let event = database.emit("b", json!({}));
    database.wait_for_status(event, "SENT");
    database.wait_until(&format!(
        "SELECT count(*) = {EXPIRED} FROM webhook.dead_letter WHERE last_error = 'expired'"
    ));
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn what_has_expired_is_not_claimed_though_nobody_has_failed_it_yet() {
    let cluster = idle_cluster();
    let database = cluster.database("expiry");
    database.add_endpoint("all", "http://127.0.0.1/");
    let mut session = database.connect();
    // Not committed, so that the worker does not see them.
    let mut transaction = session.transaction().unwrap();
    let live: Uuid = transaction
        .query_one(
            "WITH expired AS MATERIALIZED (
                 SELECT webhook_emit('a', expires_at => now()) FROM generate_series(1, 5))
             SELECT webhook_emit('b') FROM (SELECT count(*) FROM expired) e",
            &[],
        )
        .unwrap()
        .get(0);
    // Due in this transaction too, whose now() is before the emission; the expired ones first.
    transaction
        .batch_execute(
            "UPDATE webhook.delivery SET next_attempt_at = now() - CASE event_type WHEN 'a' THEN interval '1 h' ELSE '0' END",
        )
        .unwrap();
    let wish = Wish {
        endpoint: 1,
        capacity: 3,
    };
    let claimed = claim(&mut transaction, 1, &[wish]);
    let claimed: Vec<Uuid> = claimed.iter().map(|claim| claim.event).collect();
    assert_eq!(claimed, [live]);
}

#[test]
fn a_copy_of_another_installation_lets_nothing_expire() {
    let database = Cluster::shared().database("expiry");
    database.add_endpoint("all", &Receiver::closed_url());
    database.execute(
        "BEGIN;
         UPDATE webhook.endpoint SET origin = 'elsewhere';
         SELECT webhook_emit('a', expires_at => now());
         COMMIT",
    );
    let expired: i64 = database.query_one_value("SELECT webhook.expire_overdue(1000)");
    assert_eq!(expired, 0);
    database.execute("SELECT webhook_adopt()");
    database
        .wait_until("SELECT count(*) = 1 FROM webhook.dead_letter WHERE last_error = 'expired'");
}
