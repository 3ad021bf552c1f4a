//! Deliveries with the same endpoint and ordering key go out one at a time, in the order of their emission.

use std::collections::HashSet;

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{self, Claim, Outcome};
use webhook_e2e::{Cluster, Database};

/// An endpoint at which only the test claims; `changes` are made to its policy.
pub(super) fn idle(cluster: &Cluster, changes: &str) -> Database {
    let database = cluster.database("ordering");
    database.execute(
        "SELECT webhook_copy_policy('fast', 'ordered');
         UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'ordered'",
    );
    if !changes.is_empty() {
        database.execute(&format!(
            "UPDATE webhook.policy SET {changes} WHERE name = 'ordered'"
        ));
    }
    database.add_endpoint_with("orders", "http://127.0.0.1:9/", "policy => 'ordered'");
    database
}

#[track_caller]
pub(super) fn emit(client: &mut Client, key: &str) -> Uuid {
    let sql = "SELECT webhook_emit('order.changed', ordering_key => $1)";
    client.query_one(sql, &[&key]).unwrap().get(0)
}

fn emit_some<const N: usize>(database: &Database, key: &str) -> [Uuid; N] {
    let mut client = database.connect();
    std::array::from_fn(|_| emit(&mut client, key))
}

/// The deliveries that the next claim takes.
#[track_caller]
pub(super) fn next(database: &Database) -> Vec<Uuid> {
    let claims = engine::claim_due(database);
    claims.iter().map(|claim| claim.event).collect()
}

#[track_caller]
pub(super) fn settle(database: &Database, event: Uuid, status: i32) {
    let mut client = database.connect();
    let sql = "SELECT endpoint_id, claim_seq, attempts
               FROM webhook.delivery_queue WHERE event_id = $1 ORDER BY endpoint_id LIMIT 1";
    let row = client.query_one(sql, &[&event]).unwrap();
    let claim = Claim {
        event,
        endpoint: row.get(0),
        claim_seq: row.get(1),
        earlier_attempts: row.get(2),
    };
    engine::settle(&mut client, &[(claim, Outcome::status(status, 0.0))]);
}

fn due_now(database: &Database, event: Uuid) {
    database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = '{event}'"
    ));
}

fn wait_until_due(database: &Database, event: Uuid) {
    database.wait_until(&format!(
        "SELECT next_attempt_at <= now() FROM webhook.delivery_queue WHERE event_id = '{event}'"
    ));
}

#[test]
fn each_waits_for_the_one_before_it_and_other_keys_for_nobody() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second, third] = emit_some(&database, "a");
    let [other] = emit_some(&database, "b");
    let unordered = database.emit("order.changed", json!({}));

    assert_eq!(next(&database), [first, other, unordered]);
    assert!(next(&database).is_empty());
    settle(&database, first, 200);
    assert_eq!(next(&database), [second]);
    settle(&database, other, 200);
    assert!(next(&database).is_empty());
    settle(&database, second, 200);
    assert_eq!(next(&database), [third]);
    settle(&database, third, 200);
    let lanes: i64 = database.query_one_value("SELECT count(*) FROM webhook.lane");
    assert_eq!(lanes, 0, "nothing is left of a key with nothing queued");
}

#[test]
fn the_same_key_at_two_endpoints_is_two_orders() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    database.add_endpoint("more", "http://127.0.0.1:9/");
    let [first, second] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 200);
    assert_eq!(next(&database), [second]);
    let waiting: i64 = database.query_one_value(
        "SELECT count(*) FROM webhook.delivery_queue WHERE status = 'PENDING' AND next_attempt_at <= now()",
    );
    assert_eq!(waiting, 2, "the other endpoint has taken nothing yet");
}

#[test]
fn a_failing_one_holds_its_followers_back_until_it_is_sent() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 500);
    assert!(next(&database).is_empty());
    due_now(&database, second);
    assert!(next(&database).is_empty(), "whoever is in a hurry");
    due_now(&database, first);
    assert_eq!(next(&database), [first]);
    settle(&database, first, 200);
    assert_eq!(next(&database), [second]);
}

#[test]
fn with_skip_the_followers_of_a_dead_letter_go_on() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second, third] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 400);
    assert_eq!(next(&database), [second]);
    // Sent again while another delivery has its turn, it waits for that, and goes before the later ones.
    database.execute(&format!("SELECT webhook_replay('{first}')"));
    assert!(next(&database).is_empty());
    settle(&database, second, 200);
    assert_eq!(next(&database), [first]);
    settle(&database, first, 200);
    assert_eq!(next(&database), [third]);
}

#[test]
fn with_wait_the_followers_of_a_dead_letter_wait_for_a_person() {
    let cluster = engine::idle_cluster();
    for repair in [
        "replay",
        "update",
        "discard",
        "delete",
        "cancel",
        "redact",
        "delete the event",
        "retention",
    ] {
        let database = idle(cluster, "on_blocked = 'wait'");
        let [first, second] = emit_some(&database, "a");
        assert_eq!(next(&database), [first]);
        settle(&database, first, 400);
        assert!(next(&database).is_empty(), "{repair}");
        database.execute_as_engine("SELECT webhook.keep_order()");
        assert!(next(&database).is_empty(), "{repair}: still");

        let (sql, sent_again) = match repair {
            "replay" => (format!("SELECT webhook_replay('{first}')"), true),
            "update" => (
                format!(
                    "UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '{first}'"
                ),
                true,
            ),
            "discard" => (format!("SELECT webhook_discard('{first}')"), false),
            "delete" => (
                format!("DELETE FROM webhook.dead_letter WHERE event_id = '{first}'"),
                false,
            ),
            "redact" => (format!("SELECT webhook_redact('{first}')"), false),
            "delete the event" => (
                format!(
                    "DELETE FROM webhook.event WHERE id = '{first}'; SET ROLE webhook_owner; SELECT webhook.keep_order()"
                ),
                false,
            ),
            "cancel" => (
                format!(
                    "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{first}'"
                ),
                false,
            ),
            _ => (
                "SET webhook.retention_failed = 0; SELECT webhook.expire(10, NULL, NULL, NULL, NULL)"
                    .to_owned(),
                false,
            ),
        };
        database.execute(&sql);
        if sent_again {
            assert_eq!(next(&database), [first], "{repair}");
            settle(&database, first, 200);
        }
        assert_eq!(next(&database), [second], "{repair}");
    }
}

#[test]
fn whoever_moves_the_one_in_turn_lets_the_next_one_go() {
    let cluster = engine::idle_cluster();
    for repair in [
        "SELECT webhook_redact('EVENT')",
        "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = 'EVENT'",
        "DELETE FROM webhook.delivery WHERE event_id = 'EVENT'",
    ] {
        let database = idle(cluster, "");
        let [first, second] = emit_some(&database, "a");
        assert_eq!(next(&database), [first]);
        settle(&database, first, 500);
        assert!(next(&database).is_empty());
        database.execute(&repair.replace("EVENT", &first.to_string()));
        assert_eq!(next(&database), [second], "{repair}");
    }
}

#[test]
fn a_lost_claim_keeps_its_turn() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    // No session is the sender that has claimed it.
    database.execute_as_engine("SELECT webhook.recover(2, '{}', '{}')");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 200);
    assert_eq!(next(&database), [second]);
}

#[test]
fn a_scheduled_one_holds_back_what_was_emitted_after_it() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let first: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.changed', ordering_key => 'a', deliver_at => now() + interval '1 day')",
    );
    let [second] = emit_some(&database, "a");
    assert!(next(&database).is_empty());
    due_now(&database, first);
    assert_eq!(next(&database), [first]);
    settle(&database, first, 200);
    assert_eq!(next(&database), [second]);
}

#[test]
fn what_commits_late_goes_when_it_is_there_and_never_beside_another() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let mut late = database.connect();
    late.batch_execute("BEGIN").unwrap();
    let first = emit(&mut late, "a");
    let [second, third] = emit_some(&database, "a");
    assert_eq!(next(&database), [second]);
    late.batch_execute("COMMIT").unwrap();
    assert!(next(&database).is_empty(), "one is in flight");
    settle(&database, second, 200);
    assert_eq!(next(&database), [first]);
    settle(&database, first, 200);
    assert_eq!(next(&database), [third]);
}

#[test]
fn the_probe_of_an_open_breaker_is_one_that_has_its_turn() {
    let cluster = engine::idle_cluster();
    let database = idle(
        cluster,
        "failure_threshold = 1, cooldown = '1 h', max_attempts = 9",
    );
    let [first, _second] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 500);
    // The first is a retry that waits for an hour, and the second is due.
    let state = "SELECT state FROM webhook.breaker";
    assert_eq!(database.query_one_value::<String>(state), "OPEN");
    database.execute("UPDATE webhook.breaker SET probe_at = now()");
    assert_eq!(next(&database), [first]);
    assert_eq!(database.query_one_value::<String>(state), "HALF_OPEN");
}

#[test]
fn what_was_moved_behind_the_triggers_backs_is_found_within_a_minute() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second, third] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    assert!(next(&database).is_empty());
    database.execute("SET session_replication_role = replica; DELETE FROM webhook.lane");
    database.execute_as_engine("SELECT webhook.keep_order()");
    assert!(next(&database).is_empty(), "the first is in flight");

    database.execute(&format!(
        "SET session_replication_role = replica; DELETE FROM webhook.delivery_queue WHERE event_id = '{first}'"
    ));
    // The worker calls it every few seconds.
    database.execute_as_engine("SELECT webhook.keep_order()");
    assert_eq!(next(&database), [second]);
    settle(&database, second, 200);
    assert_eq!(next(&database), [third]);
}

#[test]
fn whoever_keeps_the_one_in_turn_locked_keeps_only_its_key_waiting() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 500);
    let mut person = database.connect();
    let cancel = format!(
        "BEGIN; UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{first}'"
    );
    person.batch_execute(&cancel).unwrap();

    let [second] = emit_some(&database, "a");
    let [other] = emit_some(&database, "b");
    assert_eq!(next(&database), [other]);
    person.batch_execute("COMMIT").unwrap();
    wait_until_due(&database, second);
    assert_eq!(next(&database), [second]);
}

#[test]
fn many_of_a_key_that_is_locked_are_not_in_the_way_of_the_rest() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "on_blocked = 'wait'");
    let [first] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 400);
    let [second] = emit_some(&database, "a");
    emit_some::<200>(&database, "a");
    let [other] = emit_some(&database, "b");
    let mut person = database.connect();
    let discard = format!("BEGIN; SELECT webhook_discard('{first}')");
    person.batch_execute(&discard).unwrap();

    assert_eq!(
        next(&database),
        [other],
        "behind twice of what a claim takes"
    );
    person.batch_execute("COMMIT").unwrap();
    wait_until_due(&database, second);
    assert_eq!(next(&database), [second]);
}

#[test]
fn nobody_who_has_a_lane_locked_keeps_lost_claims_from_being_recovered() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "on_blocked = 'wait'");
    let [first] = emit_some(&database, "a");
    let [lost] = emit_some(&database, "b");
    assert_eq!(next(&database), [first, lost]);
    settle(&database, first, 400);
    let mut person = database.connect();
    let discard = format!("BEGIN; SELECT webhook_discard('{first}')");
    person.batch_execute(&discard).unwrap();

    database.execute_as_engine(
        "SET lock_timeout = '5 s'; SELECT webhook.recover(2, '{}', '{}'), webhook.keep_order()",
    );
    assert_eq!(next(&database), [lost]);
    person.batch_execute("ROLLBACK").unwrap();
}

#[test]
fn a_follower_that_is_sent_again_by_hand_has_its_own_backoff() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    let write = |status: &str| {
        database.execute(&format!(
            "UPDATE webhook.delivery SET status = '{status}' WHERE event_id = '{second}'"
        ))
    };
    write("CANCELLED");
    settle(&database, first, 200);
    write("PENDING");
    assert_eq!(next(&database), [second]);
    settle(&database, second, 500);
    database.execute_as_engine("SELECT webhook.keep_order()");
    assert!(next(&database).is_empty(), "it is due in an hour");
}

#[test]
fn the_time_that_a_person_chose_for_a_follower_counts_when_its_turn_comes() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = now() + interval '1 h' WHERE event_id = '{second}'"
    ));
    settle(&database, first, 200);
    assert!(next(&database).is_empty());
    due_now(&database, second);
    assert_eq!(next(&database), [second]);
}

#[test]
fn whoever_takes_a_delivery_out_of_its_order_lets_the_others_go_on() {
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    let [first, second, third] = emit_some(&database, "a");
    assert_eq!(next(&database), [first]);
    settle(&database, first, 500);
    let take_out = |event: Uuid| {
        database.execute(&format!(
            "UPDATE webhook.delivery SET ordering_key = NULL WHERE event_id = '{event}'"
        ))
    };
    take_out(second);
    assert_eq!(next(&database), [second], "nothing else holds it back");
    take_out(first);
    database.execute_as_engine("SELECT webhook.keep_order()");
    assert_eq!(next(&database), [third]);
}

#[test]
fn many_followers_are_set_aside_once_and_not_met_again() {
    const FOLLOWERS: i64 = 5_000;
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "");
    database.execute(&format!(
        "SELECT webhook_emit('order.changed', ordering_key => 'a') FROM generate_series(0, {FOLLOWERS})"
    ));
    let [other] = emit_some(&database, "b");
    // The other key is found behind all of them.
    let mut met = HashSet::new();
    for _ in 0..20 {
        met.extend(next(&database));
    }
    assert!(met.contains(&other));
    assert_eq!(met.len(), 2);
    let set_aside: i64 = database
        .query_one_value("SELECT count(*) FROM webhook.delivery_queue WHERE waits_for IS NOT NULL");
    assert_eq!(set_aside, FOLLOWERS);
    let due: i64 = database.query_one_value("SELECT due FROM webhook_status()");
    assert_eq!(due, 0);
}
