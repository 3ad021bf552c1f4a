//! A test of an endpoint, webhook_test(), beside its breaker.

use std::thread;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{self, Outcome};
use webhook_e2e::{Database, Guarded};

#[test]
fn a_test_is_not_taken_for_the_probe() {
    let guarded = Guarded::with("");
    let cancelled = guarded.open();
    guarded
        .database
        .execute("UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING'");
    guarded.assert_status(&cancelled, "CANCELLED");
    guarded.answer(500);
    guarded.let_the_time_pass();
    let failed: bool = {
        let call = "CALL webhook_test('orders')";
        let row = guarded.database.connect().query_one(call, &[]).unwrap();
        row.get::<_, &str>(0) == "FAILED"
    };
    assert!(failed);
    assert_eq!(
        guarded.state(),
        "OPEN",
        "a test that fails counts for nothing"
    );
    guarded.answer(200);
    let event = guarded.emit(1);
    guarded.wait_for_status(&event, "SENT");
}

#[test]
fn a_test_sees_its_outcome_whatever_the_default_isolation_is() {
    let guarded = Guarded::with("");
    guarded.database.execute(&format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
        guarded.database.name()
    ));
    let call = "CALL webhook_test('orders')";
    let tested = guarded.database.connect().query_one(call, &[]);
    assert_eq!(tested.unwrap().get::<_, &str>(0), "SENT");
}

#[test]
fn a_test_that_was_given_up_leaves_nothing_behind() {
    let guarded = Guarded::with("connect_timeout = '1 ms', timeout = '1 ms'");
    guarded.let_the_worker_look();
    // Without the secrets the worker can send nothing.
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.secret IN ACCESS EXCLUSIVE MODE")
        .unwrap();
    let call = "CALL webhook_test('orders')";
    let tested = guarded.database.connect().query_one(call, &[]);
    transaction.rollback().unwrap();
    assert_eq!(tested.unwrap().get::<_, &str>(0), "CANCELLED");
    assert_eq!(guarded.breaker("test_event_id"), None);
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 0);
}

#[test]
fn what_was_opened_and_closed_in_one_batch_is_told_with_its_reason() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("told");
    let endpoint = engine::add_endpoint(&database);
    database.execute(
        "INSERT INTO webhook.policy (name, failure_threshold, warn_threshold) VALUES ('twice', 2, 0);
         UPDATE webhook.endpoint SET policy = 'twice'",
    );
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 2)");
    let mut client = database.connect();
    let mut batch: Vec<_> = engine::claim_of(&mut client, 1, endpoint)
        .into_iter()
        .map(|claim| (claim, Outcome::status(500, engine::LONG_AGO)))
        .collect();
    assert_eq!(batch.len(), 2);
    begin_test(&database, endpoint);
    batch.push((
        engine::claim_of(&mut client, 1, endpoint)[0],
        Outcome::status(200, engine::LONG_AGO - 1000.0),
    ));
    // In one transaction: the worker tells too.
    let mut transaction = client.transaction().unwrap();
    engine::settle(&mut transaction, &batch);
    let told = engine::query(
        &mut transaction,
        "SELECT message FROM webhook.raise_alerts()",
        &[],
    );
    let told: Vec<String> = told.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        told,
        [
            "circuit breaker opened: 2 failures in a row, the last: HTTP 500",
            "circuit breaker closed",
        ]
        .map(|said| format!(
            "webhook endpoint \"orders\" of database \"{}\": {said}",
            database.name()
        ))
    );
}

#[test]
fn a_test_that_is_begun_while_the_first_failure_is_settled_stays_a_test() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("begun");
    let endpoint = engine::add_endpoint(&database);
    database.emit("order.created", json!({}));
    let mut worker = database.connect();
    let failed = engine::claim_of(&mut worker, 1, endpoint)[0];

    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let test = Uuid::from_u128(1);
    let begin = "INSERT INTO webhook.breaker (endpoint_id, test_event_id) VALUES ($1, $2)";
    transaction.execute(begin, &[&endpoint, &test]).unwrap();
    let settling = thread::spawn(move || {
        engine::settle(
            &mut worker,
            &[(failed, Outcome::status(500, engine::LONG_AGO))],
        )
    });
    database.wait_until("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)");
    transaction.commit().unwrap();
    assert_eq!(settling.join().unwrap().locked, []);
    let row = database.connect().query_one(
        "SELECT test_event_id, consecutive_failures FROM webhook.breaker",
        &[],
    );
    let row = row.unwrap();
    assert_eq!(row.get::<_, Option<Uuid>>(0), Some(test));
    assert_eq!(row.get::<_, i32>(1), 1);
}

fn begin_test(database: &Database, endpoint: i32) {
    database.execute(&format!(
        "WITH test AS (INSERT INTO webhook.event (id, event_type, payload, created_at)
                       VALUES (webhook.new_id(), 'webhook.test', '{{}}', now()) RETURNING id),
              queued AS (INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts)
                         SELECT id, {endpoint}, 'webhook.test', 1 FROM test)
         INSERT INTO webhook.breaker (endpoint_id, test_event_id) SELECT {endpoint}, id FROM test"
    ));
}
