//! Processes are killed: nothing is lost, and no attempt is spent twice.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine;
use webhook_e2e::{Cluster, Database, Receiver, Request, wait, worker};

#[test]
fn worker_returns_after_terminate() {
    let database = Cluster::shared().database("terminated");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    worker::terminate(&database, first);
    let second = worker::successor(&database, first);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&database), second);
    assert_eq!(worker::count(&database), 1);
}

#[test]
fn the_launcher_returns_after_terminate() {
    let cluster = Cluster::start();
    let receiver = Receiver::start();
    let existing = cluster.database("existing");
    let kept_worker = worker::pid(&existing);

    let first = launcher_pid(&existing).expect("the launcher runs");
    worker::terminate(&existing, first);
    wait::until("another launcher", || match launcher_pid(&existing) {
        Some(pid) if pid != first => Ok(()),
        seen => Err(seen),
    });

    let new = cluster.database("new");
    new.add_endpoint("orders", &receiver.url("/orders"));
    let event = new.emit("order.created", json!({}));
    new.wait_for_status(event, "SENT");
    assert_eq!(worker::count(&new), 1);
    assert_eq!(worker::count(&existing), 1);
    assert_eq!(worker::pid(&existing), kept_worker);
}

#[test]
fn claims_of_a_killed_worker_are_resent_with_the_same_id() {
    let cluster = Cluster::start();
    let database = cluster.database("killed");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);

    worker::kill(&cluster, &database);
    let requests = receiver.wait_for_requests(2);
    assert_eq!(requests[0].event_id(), event);
    assert_eq!(requests[0].header("x-webhook-retry"), "0");
    assert_eq!(requests[1].event_id(), event);
    assert_eq!(requests[1].header("x-webhook-retry"), "1");

    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
    assert_eq!(attempts(&database, event), 2);
    assert_eq!(receiver.request_count(), 2);
}

/// A login of its own, that may do nothing but connect. It goes with its database.
fn stranger(database: &Database) -> postgres::Client {
    let role = format!("{}_stranger", database.name());
    database.execute(&format!("CREATE ROLE {role} LOGIN"));
    database.connect_as(&role)
}

#[test]
fn a_lock_that_anybody_can_take_keeps_no_claim_from_recovery() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("forged");
    let endpoint = engine::add_endpoint(&database);
    let event = database.emit("order.created", json!({}));
    let mut worker = database.connect();
    let claims = engine::claim_of(&mut worker, 1_000_000, endpoint);
    assert_eq!(claims.len(), 1);
    let mut stranger = stranger(&database);
    stranger
        .batch_execute("SELECT pg_advisory_lock(2003133032, 1000000)")
        .unwrap();
    let told: Vec<String> = (database.connect())
        .query("SELECT webhook_why($1)", &[&event.to_string()])
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(
        told.iter().any(|s| s.contains("its worker is gone")),
        "{told:?}"
    );
    let recover = "SELECT released FROM webhook.recover(1000001, '{}', '{}')";
    let released: i64 = engine::query(&mut worker, recover, &[])[0].get(0);
    assert_eq!(released, 1);
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
}

#[test]
fn the_claims_of_a_worker_that_lives_are_its_own() {
    let database = Cluster::shared().database("alive");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let recover = "SELECT released FROM webhook.recover(2147483647, '{}', '{}')";
    let released: i64 = engine::query(&mut database.connect(), recover, &[])[0].get(0);
    assert_eq!(released, 0);
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn a_worker_that_ends_in_order_leaves_nothing_to_look_for() {
    let database = Cluster::shared().database("in_order");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let running: i32 = database.query_one_value("SELECT id FROM webhook.sender");
    let earlier = worker::pid(&database);
    worker::terminate(&database, earlier);
    worker::successor(&database, earlier);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let running_now: i32 = database.query_one_value("SELECT id FROM webhook.sender");
    assert_ne!(running, running_now);
}

#[test]
fn a_worker_that_died_is_known_until_all_of_its_claims_are_released() {
    const DEAD: i32 = 1_000_000_000;
    let database = Cluster::shared().database("died");
    database.add_endpoint("orders", &Receiver::closed_url());
    database.pause_all();
    // More than a page of the queue, and the claim is at its end.
    database.execute("SELECT count(*) FROM webhook_emit_many('order.created', array_fill('{}'::jsonb, ARRAY[5000]))");
    database.execute_as_engine(&format!(
        "UPDATE webhook.delivery_queue SET status = 'SENDING', attempts = 1, claimed_by = {DEAD}, claimed_at = now()
         WHERE event_id = (SELECT event_id FROM webhook.delivery_queue ORDER BY event_id DESC LIMIT 1)"
    ));
    let mut person = database.connect();
    let mut locking = person.transaction().unwrap();
    let claim = "SELECT FROM webhook.delivery_queue WHERE status = 'SENDING' FOR UPDATE";
    locking.batch_execute(claim).unwrap();
    database.execute_as_engine(&format!(
        "INSERT INTO webhook.sender (id, kind, pid, role) VALUES ({DEAD}, 'worker', 1, 10)"
    ));
    let dead: Vec<i32> = database.query_one_value("SELECT webhook.dead_senders()");
    assert_eq!(dead, [DEAD], "the worker that runs is not dead");
    locking.commit().unwrap();
    database.wait_until(&format!(
        "SELECT NOT EXISTS (SELECT FROM webhook.sender WHERE id = {DEAD})"
    ));
    assert_eq!(count(&database, "status = 'SENDING'"), 0);
    assert_eq!(count(&database, "reason = 'worker_lost'"), 1);
}

#[test]
fn whoever_locks_the_numbers_of_the_next_workers_stops_none_of_them() {
    let database = Cluster::shared().database("squatted");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    let next: i64 = database.query_one_value("SELECT last_value FROM webhook.sender_id_seq");
    let mut stranger = stranger(&database);
    stranger
        .batch_execute(&format!(
            "SELECT count(pg_advisory_lock(2003133032, n)) FROM generate_series({next} + 1, {next} + 2000) n"
        ))
        .unwrap();
    worker::terminate(&database, first);
    worker::successor(&database, first);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let now: i64 = database.query_one_value("SELECT last_value FROM webhook.sender_id_seq");
    assert!(now > next + 2000, "{now}");
}

#[test]
fn a_claim_with_no_attempt_left_fails_when_its_worker_is_lost() {
    let cluster = Cluster::start();
    let database = cluster.database("exhausted");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    add_endpoint_with_one_attempt(&database, &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);

    worker::kill(&cluster, &database);
    database.wait_for_status(event, "FAILED");
    let reason: String = database.query_one_value("SELECT last_error FROM webhook.dead_letter");
    assert_eq!(reason, "worker lost");
    assert_eq!(receiver.request_count(), 1);
}

#[track_caller]
fn assert_sent_again_as_the_first_attempt(database: &Database, receiver: &Receiver, event: Uuid) {
    let again = receiver.wait_for_requests(2).remove(1);
    assert_eq!(again.event_id(), event);
    assert_eq!(again.header("x-webhook-retry"), "0");
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
    assert_eq!(attempts(database, event), 1);
}

#[test]
fn terminated_worker_gives_the_attempt_back() {
    let database = Cluster::shared().database("given_back");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    add_patient_endpoint(&database, &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);

    let pid = worker::pid(&database);
    let terminated = Instant::now();
    worker::terminate(&database, pid);
    database.wait_until(&format!(
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"
    ));
    let left_after = terminated.elapsed();
    assert!(left_after < QUICK, "{left_after:?}");

    assert_sent_again_as_the_first_attempt(&database, &receiver, event);
}

#[test]
fn a_worker_terminated_amid_a_transaction_gives_the_attempt_back() {
    let database = Cluster::shared().database("amid");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let pid = worker::pid(&database);

    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.endpoint")
        .unwrap();
    worker::signal(pid, libc::SIGHUP);
    database.wait_until(&format!(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = {pid} AND NOT granted)"
    ));
    worker::terminate(&database, pid);
    transaction.rollback().unwrap();

    assert_sent_again_as_the_first_attempt(&database, &receiver, event);
}

#[test]
fn sighup_flood_does_not_kill_the_threads() {
    let database = Cluster::shared().database("signalled");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = database.emit("order.created", json!({}));
    database.wait_for_status(first, "SENT");
    let pid = worker::pid(&database);
    let threads = worker::threads(pid);

    let mut session = database.connect();
    for _ in 0..200 {
        session
            .batch_execute("SELECT webhook_emit('order.created')")
            .unwrap();
        worker::signal(pid, libc::SIGHUP);
    }
    let requests = receiver.wait_for_requests(201);
    assert_eq!(distinct(&requests).len(), 201);
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    assert_eq!(worker::pid(&database), pid);
    assert_eq!(worker::threads(pid), threads);
}

#[test]
fn fast_shutdown_is_quick() {
    let mut cluster = Cluster::start();
    let database = cluster.database("stopped");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    add_patient_endpoint(&database, &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);

    let told = Instant::now();
    cluster.stop();
    let stopped_after = told.elapsed();
    assert!(stopped_after < QUICK, "{stopped_after:?}");

    receiver.release("/orders");
    cluster.start_server();
    database.wait_for_status(event, "SENT");
    assert_eq!(attempts(&database, event), 1);
}

#[test]
fn a_server_crash_loses_nothing() {
    let mut cluster = Cluster::start();
    let database = cluster.database("crashed");
    let receiver = Receiver::start();
    receiver.hold("/held");
    let quick = "event_types => '{quick}', policy => 'fast'";
    let held = "event_types => '{held}', policy => 'fast'";
    database.add_endpoint_with("quick", &receiver.url("/quick"), quick);
    database.add_endpoint_with("held", &receiver.url("/held"), held);
    database.execute(
        "SELECT webhook_emit(event_type)
         FROM generate_series(1, 250), unnest('{quick, held}'::text[]) AS event_type",
    );

    // Now some are sent, some in flight, some claimed and some queued.
    receiver.wait_for_requests_to("/held", 1);
    receiver.wait_for_requests_to("/quick", 100);
    cluster.kill_immediately();
    receiver.release("/held");
    cluster.start_server();
    database.wait_until("SELECT count(*) = 500 FROM webhook.delivery WHERE status = 'SENT'");
    assert_eq!(distinct(&receiver.requests()).len(), 500);
}

/// A worker that is told to stop gives a request in flight 2 s. The rest is room for a machine that stands still now
/// and then; a worker that waited for the answer instead, or for the timeout, would take two minutes.
const QUICK: Duration = Duration::from_secs(10);

fn add_patient_endpoint(database: &Database, url: &str) {
    database.execute("UPDATE webhook.policy SET timeout = '2 min' WHERE name = 'fast'");
    database.add_endpoint("orders", url);
}

fn launcher_pid(database: &Database) -> Option<i32> {
    database.query_one_value(
        "SELECT max(pid) FROM pg_stat_activity WHERE backend_type = 'webhook launcher'",
    )
}

pub(super) fn add_endpoint_with_one_attempt(database: &Database, url: &str) {
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, failure_threshold) VALUES ('once', 1, 0)",
    );
    database.add_endpoint_with("orders", url, "policy => 'once'");
}

#[track_caller]
pub(super) fn attempts(database: &Database, event: Uuid) -> i32 {
    database.query_one_value(&format!(
        "SELECT attempts FROM webhook.delivery WHERE event_id = '{event}'"
    ))
}

#[track_caller]
pub(super) fn count(database: &Database, condition: &str) -> i64 {
    database.query_one_value(&format!(
        "SELECT count(*) FROM webhook.delivery WHERE {condition}"
    ))
}

fn distinct(requests: &[Request]) -> HashSet<Uuid> {
    requests.iter().map(Request::event_id).collect()
}
