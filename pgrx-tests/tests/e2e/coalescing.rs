//! A newer event with the same coalesce key supersedes an older one that still waits for an endpoint.

use postgres::IsolationLevel;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{self, Claim, Outcome};
use webhook_e2e::{Cluster, Database, Receiver};

const PAUSE: &str = "SELECT webhook_pause('orders')";

fn database(cluster: &Cluster, url: &str) -> Database {
    let database = cluster.database("coalescing");
    // Its retries wait for 30 s, and a 4xx is final.
    database.execute(
        "SELECT webhook_copy_policy('patient', 'waits');
         UPDATE webhook.policy SET retry_status = '{[500,600)}' WHERE name = 'waits'",
    );
    database.add_endpoint_with("orders", url, "policy => 'waits'");
    database
}

fn emit(client: &mut impl postgres::GenericClient, key: &str, options: &str) -> Uuid {
    let sql = format!("SELECT webhook_emit('order.changed', coalesce_key => $1 {options})");
    client.query_one(&sql, &[&key]).unwrap().get(0)
}

#[track_caller]
fn end_of(database: &Database, event: Uuid) -> String {
    database.query_one_value(&format!(
        "SELECT status || coalesce(' ' || last_error, '') FROM webhook.delivery WHERE event_id = '{event}'"
    ))
}

#[test]
fn only_the_newest_that_waits_is_sent() {
    let receiver = Receiver::start();
    let database = database(Cluster::shared(), &receiver.url("/orders"));
    database.execute(PAUSE);
    let mut client = database.connect();
    let old = emit(&mut client, "order-1", "");
    let middle = emit(&mut client, "order-1", "");
    let other = emit(&mut client, "order-2", "");
    let plain = database.emit("order.changed", json!({}));
    let new = emit(&mut client, "order-1", "");
    assert_eq!(end_of(&database, old), "CANCELLED coalesced");
    assert_eq!(end_of(&database, middle), "CANCELLED coalesced");
    let events: i64 = database.query_one_value("SELECT count(*) FROM webhook.event");
    assert_eq!(events, 5, "events stay");

    database.execute("SELECT webhook_resume('orders')");
    for sent in [other, plain, new] {
        database.wait_for_status(sent, "SENT");
    }
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_retry_that_waits_is_superseded_and_what_is_in_flight_is_not() {
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, _| webhook_e2e::Answer::status(500));
    let database = database(Cluster::shared(), &receiver.url("/orders"));
    let mut client = database.connect();
    let failed = emit(&mut client, "order-1", "");
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt");
    receiver.respond("/orders", |_, _| webhook_e2e::Answer::status(200));
    receiver.hold("/orders");
    let in_flight = emit(&mut client, "order-1", "");
    assert_eq!(end_of(&database, failed), "CANCELLED coalesced");
    receiver.wait_for_event(in_flight);
    let newest = emit(&mut client, "order-1", "");
    assert_eq!(end_of(&database, in_flight), "SENDING");
    receiver.release("/orders");
    database.wait_for_status(in_flight, "SENT");
    database.wait_for_status(newest, "SENT");
}

#[test]
fn each_endpoint_and_each_tenant_has_its_own() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    database.add_endpoint_with("acme/own", "http://127.0.0.1:9/", "policy => 'standard'");
    let mut client = database.connect();
    let of_nobody = emit(&mut client, "order-1", "");
    let of_acme = emit(&mut client, "order-1", ", tenant => 'acme'");
    let of_other = emit(&mut client, "order-1", ", tenant => 'other'");
    let queued = |event: Uuid| -> i64 {
        database.query_one_value(&format!(
            "SELECT count(*) FROM webhook.delivery_queue WHERE event_id = '{event}'"
        ))
    };
    assert_eq!([of_nobody, of_acme, of_other].map(queued), [1, 2, 1]);
    let newer = emit(&mut client, "order-1", ", tenant => 'acme'");
    assert_eq!(
        [of_nobody, of_acme, of_other, newer].map(queued),
        [1, 0, 1, 2]
    );
}

#[test]
fn a_rolled_back_event_supersedes_nothing() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let mut client = database.connect();
    let old = emit(&mut client, "order-1", "");
    let mut transaction = client.transaction().unwrap();
    emit(&mut transaction, "order-1", "");
    transaction.rollback().unwrap();
    assert_eq!(end_of(&database, old), "PENDING");
}

#[test]
fn two_who_did_not_see_each_other_are_sorted_out_when_one_is_claimed() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let (mut one, mut other) = (database.connect(), database.connect());
    one.batch_execute("BEGIN").unwrap();
    other.batch_execute("BEGIN").unwrap();
    let older = emit(&mut one, "order-1", "");
    let newer = emit(&mut other, "order-1", "");
    one.batch_execute("COMMIT").unwrap();
    other.batch_execute("COMMIT").unwrap();
    assert_eq!(end_of(&database, older), "PENDING");

    let claims = engine::claim_due(&database);
    let claimed: Vec<Uuid> = claims.iter().map(|claim| claim.event).collect();
    assert_eq!(claimed, [newer]);
    assert_eq!(end_of(&database, older), "CANCELLED coalesced");
}

#[test]
fn emitters_do_not_wait_for_each_other() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let (mut one, mut other) = (database.connect(), database.connect());
    emit(&mut one, "order-1", "");
    one.batch_execute("BEGIN").unwrap();
    emit(&mut one, "order-1", "");
    other.batch_execute("SET lock_timeout = '5 s'").unwrap();
    emit(&mut other, "order-1", "");
    one.batch_execute("ROLLBACK").unwrap();
}

#[test]
fn what_the_worker_does_meanwhile_costs_no_emitter_its_transaction() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let older = emit(&mut database.connect(), "order-1", "");
        let mut session = database.connect();
        let mut late = (session.build_transaction())
            .isolation_level(level)
            .start()
            .unwrap();
        late.execute("SELECT FROM webhook.event", &[]).unwrap();
        settle(&database, engine::claim_due(&database)[0], 500);
        let newer = emit(&mut late, "order-1", "");
        late.commit().unwrap();

        due_now(&database);
        let claims = engine::claim_due(&database);
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].event, newer);
        assert_eq!(end_of(&database, older), "CANCELLED coalesced");
        settle(&database, claims[0], 200);
    }
}

#[test]
fn with_an_ordering_key_the_turn_passes_on() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let mut client = database.connect();
    let both = ", ordering_key => 'order-1'";
    let old = emit(&mut client, "order-1", both);
    assert_eq!(engine::claim_due(&database)[0].event, old);
    database.execute_as_engine("SELECT webhook.recover(2, '{}', '{}')");
    let new = emit(&mut client, "order-1", both);
    assert_eq!(end_of(&database, old), "CANCELLED coalesced");
    assert_eq!(engine::claim_due(&database)[0].event, new);
}

#[track_caller]
fn settle(database: &Database, claim: Claim, status: i32) {
    let outcome = Outcome::status(status, 0.0);
    engine::settle(&mut database.connect(), &[(claim, outcome)]);
}

fn due_now(database: &Database) {
    database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'");
}

/// An older event whose first attempt ends after the newer one was sent.
fn overtaken(database: &Database, status: i32) -> Uuid {
    let mut client = database.connect();
    let older = emit(&mut client, "order-1", "");
    let first = engine::claim_due(database)[0];
    emit(&mut client, "order-1", "");
    settle(database, engine::claim_due(database)[0], 200);
    settle(database, first, status);
    older
}

#[test]
fn what_was_in_flight_is_not_tried_again_after_the_newer_one_was_sent() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let older = overtaken(&database, 500);
    assert_eq!(end_of(&database, older), "PENDING HTTP 500");
    due_now(&database);
    assert_eq!(engine::claim_due(&database), []);
    assert_eq!(end_of(&database, older), "CANCELLED coalesced");
}

#[test]
fn what_commits_after_the_newer_one_was_sent_is_not_sent() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let (mut slow, mut client) = (database.connect(), database.connect());
    slow.batch_execute("BEGIN").unwrap();
    let older = emit(&mut slow, "order-1", "");
    let of_another = emit(&mut slow, "order-1", ", tenant => 'other'");
    emit(&mut client, "order-1", "");
    settle(&database, engine::claim_due(&database)[0], 200);
    slow.batch_execute("COMMIT").unwrap();
    let claimed: Vec<Uuid> = engine::claim_due(&database)
        .iter()
        .map(|claim| claim.event)
        .collect();
    assert_eq!(claimed, [of_another]);
    assert_eq!(end_of(&database, older), "CANCELLED coalesced");
}

#[test]
fn the_probe_is_none_that_was_superseded() {
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    overtaken(&database, 500);
    let plain = database.emit("order.changed", json!({}));
    database.execute(
        "UPDATE webhook.breaker SET state = 'OPEN', opened_at = now(), trips = 1, probe_at = now()",
    );
    let claimed: Vec<Uuid> = engine::claim_due(&database)
        .iter()
        .map(|claim| claim.event)
        .collect();
    assert_eq!(claimed, [plain]);
}

#[test]
fn a_replay_of_a_failed_delivery_is_coalesced_and_one_of_a_cancelled_delivery_is_sent_all_the_same()
{
    let cluster = engine::idle_cluster();
    let database = database(cluster, "http://127.0.0.1:9/");
    let older = overtaken(&database, 400);
    database.execute(&format!("SELECT webhook_replay('{older}')"));
    assert_eq!(engine::claim_due(&database), []);
    assert_eq!(end_of(&database, older), "CANCELLED coalesced");

    database.execute(&format!("SELECT webhook_replay('{older}')"));
    let again = engine::claim_due(&database);
    assert_eq!(again[0].event, older);
    database.execute(&format!(
        "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{older}';
         UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '{older}'"
    ));
    assert_eq!(engine::claim_due(&database)[0].event, older);
}

#[test]
fn of_many_only_the_newest_of_each_key_waits() {
    let database = database(Cluster::shared(), "http://127.0.0.1:9/");
    database.execute(PAUSE);
    let mut client = database.connect();
    let old = emit(&mut client, "order-1", "");
    let many = "SELECT webhook_emit_many('order.changed', '{1,2,3,4,5}',
                    coalesce_keys => '{order-1,order-2,order-1,NULL,order-3}')";
    let ids: Vec<Uuid> = (client.query(many, &[]).unwrap().iter())
        .map(|row| row.get(0))
        .collect();
    for superseded in [old, ids[0]] {
        assert_eq!(end_of(&database, superseded), "CANCELLED coalesced");
    }
    for waiting in &ids[1..] {
        assert_eq!(end_of(&database, *waiting), "PENDING");
    }
}
