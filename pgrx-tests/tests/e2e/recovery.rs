//! Whatever is killed, locked or moved: nothing is lost, and nothing overwrites what a person did.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine;
use webhook_e2e::{Answer, Cluster, Database, Receiver, Request, wait, worker};

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
    let running: i32 = database.query_one_value("SELECT id FROM webhook.instance");
    let earlier = worker::pid(&database);
    worker::terminate(&database, earlier);
    worker::successor(&database, earlier);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let running_now: i32 = database.query_one_value("SELECT id FROM webhook.instance");
    assert_ne!(running, running_now);
}

#[test]
fn a_worker_that_died_is_known_until_all_of_its_claims_are_released() {
    const DEAD: i32 = 1_000_000_000;
    let database = Cluster::shared().database("died");
    database.add_endpoint("orders", &Receiver::closed_url());
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
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
        "INSERT INTO webhook.instance (id) VALUES ({DEAD})"
    ));
    let dead: Vec<i32> = database.query_one_value("SELECT webhook.dead_instances(0)");
    assert_eq!(dead, [DEAD], "the worker that runs is not dead");
    locking.commit().unwrap();
    database.wait_until(&format!(
        "SELECT NOT EXISTS (SELECT FROM webhook.instance WHERE id = {DEAD})"
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
    let next: i64 = database.query_one_value("SELECT last_value FROM webhook.worker_instance");
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
    let now: i64 = database.query_one_value("SELECT last_value FROM webhook.worker_instance");
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

    let again = receiver.wait_for_requests(2).remove(1);
    assert_eq!(again.event_id(), event);
    assert_eq!(again.header("x-webhook-retry"), "0");
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
    assert_eq!(attempts(&database, event), 1);
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

    let again = receiver.wait_for_requests(2).remove(1);
    assert_eq!(again.event_id(), event);
    assert_eq!(again.header("x-webhook-retry"), "0");
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
    assert_eq!(attempts(&database, event), 1);
}

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

#[test]
fn a_persons_open_transaction_does_not_stop_the_worker() {
    let database = Cluster::shared().database("open_transaction");
    let receiver = Receiver::start();
    let locked = paused_event(&database, &receiver);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.delivery WHERE event_id = $1 FOR UPDATE";
    transaction.execute(lock, &[&locked]).unwrap();
    resume(&database);

    let other = database.emit("order.created", json!({}));
    database.wait_for_status(other, "SENT");
    assert_eq!(ids(&receiver.requests()), [other]);
    transaction.rollback().unwrap();
    database.wait_for_status(locked, "SENT");
    assert_eq!(ids(&receiver.requests()), [other, locked]);
}

#[test]
fn a_persons_open_update_does_not_stop_the_worker() {
    let database = Cluster::shared().database("open_update");
    let receiver = Receiver::start();
    let locked = paused_event(&database, &receiver);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let update = "UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = $1";
    transaction.execute(update, &[&locked]).unwrap();
    resume(&database);

    let other = database.emit("order.created", json!({}));
    database.wait_for_status(other, "SENT");
    assert_eq!(ids(&receiver.requests()), [other]);
    transaction.commit().unwrap();
    database.wait_for_status(locked, "SENT");
    assert_eq!(ids(&receiver.requests()), [other, locked]);
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

/// A worker that is told to stop gives a request in flight 2 s. The rest is room for a machine that stands still now and
/// then; whoever waited for the answer instead, or for the timeout, would wait for two minutes.
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

fn add_endpoint_with_one_attempt(database: &Database, url: &str) {
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, failure_threshold) VALUES ('once', 1, 0)",
    );
    database.add_endpoint_with("orders", url, "policy => 'once'");
}

/// An event whose delivery to the endpoint `orders` waits for `resume`.
fn paused_event(database: &Database, receiver: &Receiver) -> Uuid {
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
    database.emit("order.created", json!({}))
}

fn resume(database: &Database) {
    database.execute("UPDATE webhook.endpoint SET paused_at = NULL");
}

#[track_caller]
fn wait_for_in_flight(database: &Database, count: i32) {
    database.wait_until(&format!("SELECT in_flight = {count} FROM webhook_status()"));
}

#[track_caller]
fn attempts(database: &Database, event: Uuid) -> i32 {
    database.query_one_value(&format!(
        "SELECT attempts FROM webhook.delivery WHERE event_id = '{event}'"
    ))
}

#[track_caller]
fn count(database: &Database, condition: &str) -> i64 {
    database.query_one_value(&format!(
        "SELECT count(*) FROM webhook.delivery WHERE {condition}"
    ))
}

fn ids(requests: &[Request]) -> Vec<Uuid> {
    requests.iter().map(Request::event_id).collect()
}

fn distinct(requests: &[Request]) -> HashSet<Uuid> {
    requests.iter().map(Request::event_id).collect()
}

#[test]
fn a_person_who_locks_the_counters_does_not_stop_deliveries() {
    let database = Cluster::shared().database("counters");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.tally IN SHARE MODE")
        .unwrap();

    let counted = database.emit("order.created", json!({}));
    database.wait_for_status(counted, "SENT");
    database
        .wait_until("SELECT coalesce(last_error, '') LIKE '%lock timeout%' FROM webhook_status()");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    transaction.rollback().unwrap();
    database.wait_until("SELECT coalesce(sum(deliveries), 0) = 2 FROM webhook.tally");
}
