//! The worker reads the queue of an endpoint from where it has come to. A delivery that becomes due behind that place
//! is sent as promptly as the rest: nothing but commits wakes the worker here.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::emit;
use webhook_e2e::random::Random;
use webhook_e2e::{Answer, Cluster, Database, Receiver};

use crate::waking::{calls_of, woken_by_commits_alone};

fn start(prefix: &str) -> (Cluster, Database, Receiver) {
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database(prefix), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    (cluster, database, receiver)
}

/// Sends some that are due later than all before them.
#[track_caller]
fn pass_by(database: &Database, receiver: &Receiver) {
    for _ in 0..5 {
        let event = database.emit("order.created", json!({}));
        receiver.wait_for_event(event);
    }
}

#[test]
fn a_late_commit_is_sent_without_a_look_at_everything() {
    let (_cluster, database, receiver) = start("late");
    let mut session = database.connect();
    let mut late = session.transaction().unwrap();
    let event = emit(&mut late, "order.created", json!({}));
    pass_by(&database, &receiver);
    // The worker's counts are known with the results of its work.
    let looks = |sent: i64| {
        database.wait_until(&format!(
            "SELECT n_tup_del >= {sent} FROM pg_stat_user_tables WHERE relid = 'webhook.delivery_queue'::regclass"
        ));
        calls_of(&database, "agenda")
    };
    let before = looks(5);
    late.commit().unwrap();
    receiver.wait_for_event(event);
    assert_eq!(looks(6), before);
}

#[test]
fn late_commits_for_more_endpoints_than_a_commit_can_tell_are_sent() {
    const ENDPOINTS: usize = 100;
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database("late_overflow"), Receiver::start());
    database.execute(&format!(
        "SELECT webhook_set_endpoint('e' || n, '{}', event_types => ARRAY['type_' || n]) FROM generate_series(1, {ENDPOINTS}) n",
        receiver.url("/")
    ));
    let emit_to_all =
        format!("SELECT webhook_emit('type_' || n) FROM generate_series(1, {ENDPOINTS}) n");
    let mut session = database.connect();
    let mut late = session.transaction().unwrap();
    late.batch_execute(&emit_to_all).unwrap();
    for round in 1..=2 {
        database.execute(&emit_to_all);
        receiver.wait_for_requests(round * ENDPOINTS);
    }
    late.commit().unwrap();
    receiver.wait_for_requests(3 * ENDPOINTS);
}

#[test]
fn a_late_commit_of_a_prepared_transaction_is_sent() {
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1h'")
        .setting("max_prepared_transactions = 2")
        .start();
    let (database, receiver) = (cluster.database("late_prepared"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let mut session = database.connect();
    session.batch_execute("BEGIN").unwrap();
    let event = emit(&mut session, "order.created", json!({}));
    session.batch_execute("PREPARE TRANSACTION 'late'").unwrap();
    pass_by(&database, &receiver);
    database.execute("COMMIT PREPARED 'late'");
    receiver.wait_for_event(event);
}

#[test]
fn a_delivery_that_a_person_moves_to_the_past_is_sent() {
    let (_cluster, database, receiver) = start("moved");
    let event: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 d')",
    );
    pass_by(&database, &receiver);
    database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = '2001-01-01' WHERE event_id = '{event}'"
    ));
    receiver.wait_for_event(event);
}

#[test]
fn a_replay_that_is_committed_late_is_sent() {
    let (_cluster, database, receiver) = start("replayed");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let mut session = database.connect();
    let mut late = session.transaction().unwrap();
    late.execute("SELECT webhook_replay($1)", &[&event])
        .unwrap();
    pass_by(&database, &receiver);
    late.commit().unwrap();
    receiver.wait_for_requests(7);
}

#[test]
fn a_retry_that_is_due_when_its_outcome_can_be_settled_is_sent() {
    let (_cluster, database, receiver) = start("retried");
    let lock = "SELECT FROM webhook.delivery_queue WHERE event_id = $1 FOR UPDATE";
    let (_, event) = fail_while(&database, &receiver, |person, event| {
        let mut transaction = person.transaction().unwrap();
        assert_eq!(transaction.execute(lock, &[&event]).unwrap(), 1);
        receiver.release("/orders");
        // Its retry is due before them.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            pass_by(&database, &receiver);
        }
        transaction.commit().unwrap();
    });
    database.wait_for_status(event, "SENT");
}

/// The first attempt of an event fails when the receiver is released.
fn fail_while(
    database: &Database,
    receiver: &Receiver,
    meanwhile: impl FnOnce(&mut Client, Uuid),
) -> (Client, Uuid) {
    receiver.respond("/orders", |_, number| {
        Answer::status(if number == 1 { 500 } else { 200 })
    });
    receiver.hold("/orders");
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    let mut person = database.connect();
    meanwhile(&mut person, event);
    (person, event)
}

#[test]
fn a_delivery_whose_turn_comes_is_sent_before_what_is_due_after_it() {
    let (_cluster, database, receiver) = start("turn");
    receiver.hold("/orders");
    let emit_ordered = "SELECT webhook_emit('order.created', ordering_key => 'a')";
    let [first, second, third]: [Uuid; 3] =
        [(); 3].map(|()| database.query_one_value(emit_ordered));
    receiver.wait_for_event(first);
    pass_by(&database, &receiver);
    receiver.release("/orders");
    receiver.wait_for_event(second);
    receiver.wait_for_event(third);
    assert_eq!(receiver.request_count(), 8);
}

#[test]
fn a_pinned_snapshot_does_not_make_the_worker_pass_over_all_that_it_has_sent() {
    const SENT: i64 = 3_000;
    const READS: i64 = 100;
    let (_cluster, database, receiver) = start("pinned");
    let mut forgotten = database.connect();
    forgotten
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM webhook.endpoint")
        .unwrap();
    database.execute(&format!(
        "SELECT webhook_emit('order.created') FROM generate_series(1, {SENT})"
    ));
    receiver.wait_for_requests(SENT as usize);
    let read_when_sent = |count: i64| -> (i64, i64) {
        database.wait_until(&format!(
            "SELECT n_tup_del >= {count} FROM pg_stat_user_tables WHERE relid = 'webhook.delivery_queue'::regclass"
        ));
        let mut client = database.connect();
        let read = "
            SELECT idx_tup_read, idx_blks_read + idx_blks_hit FROM pg_stat_user_indexes JOIN pg_statio_user_indexes USING (indexrelid)
            WHERE indexrelid = 'webhook.delivery_queue_due'::regclass";
        let row = client.query_one(read, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    let before = read_when_sent(SENT);
    let dead: i64 = database.query_one_value(
        "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'webhook.delivery_queue'::regclass",
    );
    assert!(dead >= SENT, "only {dead} dead rows: the test is void");
    database.emit("order.created", json!({}));
    let after = read_when_sent(SENT + 1);
    let (entries, blocks) = (after.0 - before.0, after.1 - before.1);
    assert!(entries < READS, "{entries} index entries were read");
    assert!(blocks < READS, "{blocks} index blocks were read");
}

/// Emitters that commit late, with keys and without; attempts that fail; a person who locks deliveries, puts them off
/// and moves them to the past. Deliveries with a key are left out: recovery passes on a turn that comes to a locked
/// delivery, later.
#[test]
fn whatever_happens_at_the_same_time_every_event_is_accepted_once() {
    const EMITTERS: u64 = 4;
    const TRANSACTIONS: usize = 40;
    let (_cluster, database, receiver) = start("storm");
    database.execute("UPDATE webhook.policy SET max_attempts = 100 WHERE name = 'fast'");
    let random = Mutex::new(Random::seeded(1));
    receiver.respond("/orders", move |_, _| {
        let fails = random.lock().unwrap().chance(10);
        Answer::status(if fails { 500 } else { 200 })
    });
    let emitting = |seed: u64| -> Vec<Uuid> {
        let (mut session, mut random) = (database.connect(), Random::seeded(seed));
        let mut events = Vec::new();
        for _ in 0..TRANSACTIONS {
            let mut transaction = session.transaction().unwrap();
            for _ in 0..=random.below(4) {
                let key = random.chance(50).then(|| random.below(3).to_string());
                let emit = "SELECT webhook_emit('order.created', ordering_key => $1)";
                events.push(transaction.query_one(emit, &[&key]).unwrap().get(0));
            }
            // A transaction that takes its time is part of the case.
            thread::sleep(Duration::from_millis(random.below(60) as u64));
            transaction.commit().unwrap();
        }
        events
    };
    let changing = |seed: u64| {
        let (mut session, mut random) = (database.connect(), Random::seeded(seed));
        for _ in 0..TRANSACTIONS {
            let time = random.one_of(&["'2001-01-01'", "now()", "now() + interval '50 ms'"]);
            let change = format!(
                "UPDATE webhook.delivery SET next_attempt_at = {time}
                 WHERE (event_id, endpoint_id) IN (SELECT event_id, endpoint_id FROM webhook.delivery_queue
                                                   WHERE status = 'PENDING' AND ordering_key IS NULL
                                                   ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED)"
            );
            let mut transaction = session.transaction().unwrap();
            transaction.batch_execute(&change).unwrap();
            thread::sleep(Duration::from_millis(random.below(60) as u64));
            transaction.commit().unwrap();
        }
    };
    let events: Vec<Uuid> = thread::scope(|scope| {
        let emitters: Vec<_> = (0..EMITTERS)
            .map(|seed| scope.spawn(move || emitting(seed)))
            .collect();
        let person = scope.spawn(|| changing(EMITTERS));
        let events = emitters
            .into_iter()
            .flat_map(|emitter| emitter.join().unwrap());
        let events = events.collect();
        person.join().unwrap();
        events
    });
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    let sent: i64 =
        database.query_one_value("SELECT count(*) FROM webhook.delivery WHERE status = 'SENT'");
    assert_eq!(sent as usize, events.len());
    // As many attempts as there were requests: none was claimed twice.
    let attempts: i64 =
        database.query_one_value("SELECT sum(claim_seq)::bigint FROM webhook.delivery");
    let requests = receiver.requests();
    assert_eq!(attempts as usize, requests.len());
    let mut by_event: HashMap<Uuid, usize> = HashMap::new();
    for request in &requests {
        *by_event.entry(request.event_id()).or_default() += 1;
    }
    assert!(events.iter().all(|event| by_event.contains_key(event)));
}
