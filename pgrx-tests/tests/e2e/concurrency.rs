//! Two people and the worker change the same deliveries at the same time, and none of them gets an error for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait, worker};

const EVENTS: usize = 150;
const DELIVERIES: i64 = 2 * EVENTS as i64;
/// At least so long, and so many changes.
const STORM: Duration = Duration::from_secs(6);
const CHANGES: usize = 100;

#[test]
fn people_and_the_worker_change_the_same_deliveries_and_nothing_is_lost() {
    let cluster = Cluster::shared();
    let (database, receiver) = (cluster.database("storm"), Receiver::start());
    let random = Mutex::new(Random(1));
    receiver.respond("/", move |_, _| {
        Answer::status(random.lock().unwrap().pick(&[200, 200, 404, 500, 503]))
    });
    for name in ["a", "b"] {
        database.add_endpoint(name, &receiver.url("/"));
    }
    let pid = worker::pid(&database);
    let mut session = database.connect();
    let emit_all = "SELECT webhook_emit('order.created') FROM generate_series(1, $1)";
    let events = session.query(emit_all, &[&(EVENTS as i32)]).unwrap();
    let events: Vec<Uuid> = events.iter().map(|row| row.get(0)).collect();

    let stop = AtomicBool::new(false);
    let changes = AtomicUsize::new(0);
    let keep_changing = |seed: u64, statements: &'static [&'static str]| {
        let (mut person, mut random) = (database.connect(), Random(seed));
        while !stop.load(Ordering::Relaxed) {
            let some: Vec<Uuid> = (0..20).map(|_| random.pick(&events)).collect();
            let statement = random
                .pick(statements)
                .replace("$ONE", &format!("'{}'::uuid", some[0]))
                .replace("$SOME", &format!("'{{{}}}'::uuid[]", list(&some)));
            let result = person.simple_query(&statement);
            result.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
            changes.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let people = [
            scope.spawn(|| keep_changing(2, BY_FUNCTION)),
            scope.spawn(|| keep_changing(3, BY_FUNCTION_AND_BY_UPDATE)),
        ];
        // Whenever one looks, each of them is in exactly one place.
        let began = Instant::now();
        let is_over = || {
            let enough = changes.load(Ordering::Relaxed) >= CHANGES;
            let patience = if enough {
                Duration::ZERO
            } else {
                wait::DEADLINE
            };
            began.elapsed() >= STORM + patience
        };
        while !is_over() && !people.iter().any(|person| person.is_finished()) {
            let seen = census(&mut session);
            if seen != (DELIVERIES, DELIVERIES) {
                stop.store(true, Ordering::Relaxed);
                panic!("{seen:?} of {DELIVERIES} deliveries");
            }
        }
        stop.store(true, Ordering::Relaxed);
        for person in people {
            person.join().unwrap();
        }
    });
    let changes = changes.load(Ordering::Relaxed);
    assert!(changes >= CHANGES, "only {changes} changes");

    receiver.respond("/", |_, _| Answer::status(200));
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    database.execute("SELECT webhook_replay(id) FROM webhook.event ORDER BY id");
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    let sent: i64 = database.query_one_value(
        "SELECT count(DISTINCT (event_id, endpoint_id)) FROM webhook.delivery WHERE status = 'SENT'",
    );
    assert_eq!(sent, DELIVERIES);
    assert_eq!(census(&mut session), (DELIVERIES, DELIVERIES));
    assert_eq!(worker::pid(&database), pid);
    assert_eq!(worker::complaints(cluster, pid), Vec::<String>::new());
}

const BY_FUNCTION: &[&str] = &[
    "SELECT webhook_replay($ONE)",
    "SELECT webhook_replay($ONE, 'a')",
    "CALL webhook_replay_all('*', batch_size => 20)",
    "CALL webhook_replay_all('b', status => '{FAILED, CANCELLED}', batch_size => 10)",
    "CALL webhook_backfill('*', NULL, batch_size => 20)",
];

const BY_FUNCTION_AND_BY_UPDATE: &[&str] = &[
    "SELECT webhook_replay($ONE)",
    "CALL webhook_replay_all('a', status => '{FAILED, SENT}')",
    "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status IN ('PENDING', 'SENDING') AND event_id = $ONE",
    "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status IN ('PENDING', 'SENDING', 'FAILED') AND event_id = ANY ($SOME)",
    "UPDATE webhook.delivery SET status = 'PENDING' WHERE status IN ('FAILED', 'CANCELLED') AND event_id = ANY ($SOME)",
    "UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = ANY ($SOME)",
    "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'FAILED'",
    "UPDATE webhook.delivery SET status = 'PENDING' WHERE status <> 'PENDING'",
];

#[test]
fn a_delivery_that_somebody_moves_by_update_is_no_reason_to_fail() {
    let database = Cluster::shared().database("moved_by_update");
    // Deliveries that were asked for by their status have another one now.
    for (statement, replayed) in [
        ("SELECT webhook_replay('EVENT')", true),
        ("CALL webhook_replay_all('a')", false),
    ] {
        let [event] = failed_events(&database);
        let mut person = database.connect();
        let mut transaction = person.transaction().unwrap();
        let update = "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = $1";
        transaction.execute(update, &[&event]).unwrap();
        let statement = statement.replace("EVENT", &event.to_string());
        let waiting = in_background(&database, statement.clone());
        wait_for_lock(&database);
        transaction.commit().unwrap();
        waiting.join().unwrap().unwrap();
        let expected = if replayed { "PENDING" } else { "CANCELLED" };
        let status = database.delivery_status(event);
        assert_eq!(status.as_deref(), Some(expected), "{statement}");
    }
}

#[test]
fn in_repeatable_read_the_error_is_that_of_postgres() {
    let database = Cluster::shared().database("repeatable_read");
    let [event] = failed_events(&database);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let update = "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = $1";
    transaction.execute(update, &[&event]).unwrap();
    let waiting = in_background(
        &database,
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT webhook_replay('{event}')"),
    );
    wait_for_lock(&database);
    transaction.commit().unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error.code().unwrap().code(), "40001", "{error:?}");
}

#[test]
fn who_updates_in_another_order_does_not_lose_in_a_deadlock() {
    // The person's patience: it ends before that of the function only where the function is stopped for so long.
    let cluster = Cluster::builder()
        .setting("deadlock_timeout = '10s'")
        .start();
    let database = cluster.database("deadlock");
    let is_shorter: bool = database.query_one_value(
        "SELECT option_value::interval < (SELECT boot_val::int * interval '1 ms' FROM pg_settings WHERE name = 'deadlock_timeout')
         FROM pg_proc, pg_options_to_table(proconfig) WHERE oid = 'webhook.change'::regproc AND option_name = 'lock_timeout'",
    );
    assert!(is_shorter, "the patience that people have by default");
    let [first, second] = failed_events(&database);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let update = "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = $1";
    transaction.execute(update, &[&second]).unwrap();
    let waiting = in_background(&database, "CALL webhook_replay_all('a')".to_owned());
    // It has the first and waits for the second, and lets go of the first in time.
    wait_for_lock(&database);
    transaction.execute(update, &[&first]).unwrap();
    transaction.commit().unwrap();
    waiting.join().unwrap().unwrap();
    assert!(!cluster.log().contains("deadlock detected"));
    let cancelled = "SELECT count(*) FROM webhook.delivery WHERE status = 'CANCELLED'";
    assert_eq!(database.query_one_value::<i64>(cancelled), 2);
}

#[test]
fn a_lock_is_waited_for_as_long_as_the_person_says() {
    let database = Cluster::shared().database("lock_timeout");
    let [event] = failed_events(&database);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.delivery WHERE event_id = $1 FOR UPDATE";
    transaction.execute(lock, &[&event]).unwrap();

    let began = Instant::now();
    let mut impatient = database.connect();
    impatient
        .batch_execute("SET lock_timeout = '600ms'")
        .unwrap();
    let replay = format!("SELECT webhook_replay('{event}')");
    assert_eq!(refusal(&mut impatient, &replay).code().code(), "55P03");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(600), "{waited:?}");
    let own: String = impatient
        .query_one("SHOW lock_timeout", &[])
        .unwrap()
        .get(0);
    assert_eq!(own, "600ms");

    let patient = in_background(&database, format!("SELECT webhook_replay('{event}')"));
    wait_for_lock(&database);
    let began = Instant::now();
    wait::until_true("it to wait longer than a single attempt", || {
        assert!(!patient.is_finished(), "it gave up");
        began.elapsed() > Duration::from_millis(600)
    });
    transaction.rollback().unwrap();
    patient.join().unwrap().unwrap();
    let status = database.delivery_status(event);
    assert_eq!(status.as_deref(), Some("PENDING"));
}

/// Events that failed at the endpoint `a`, which gets nothing, in the order of their ids.
fn failed_events<const COUNT: usize>(database: &Database) -> [Uuid; COUNT] {
    let mut session = database.connect();
    session
        .batch_execute(
            "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1:9/', now())
             ON CONFLICT DO NOTHING",
        )
        .unwrap();
    [(); COUNT].map(|()| {
        let event = emit(&mut session, "order.created", json!({}));
        session
            .execute(
                "WITH gone AS (DELETE FROM webhook.delivery_queue WHERE event_id = $1 RETURNING *)
                 INSERT INTO webhook.dead_letter (event_id, endpoint_id, event_type, status, max_attempts, reason, last_error,
                                                  completed_at)
                 SELECT event_id, endpoint_id, event_type, 'FAILED', max_attempts, 'status', 'HTTP 500', now() FROM gone",
                &[&event],
            )
            .unwrap();
        event
    })
}

/// Runs statements in a session of their own.
fn in_background(database: &Database, sql: String) -> JoinHandle<Result<(), postgres::Error>> {
    let mut session = database.connect();
    thread::spawn(move || session.batch_execute(&sql))
}

#[track_caller]
fn wait_for_lock(database: &Database) {
    database.wait_until(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
}

/// How many deliveries there are, and how many different ones.
fn census(session: &mut Client) -> (i64, i64) {
    let count = "SELECT count(*), count(DISTINCT (event_id, endpoint_id)) FROM webhook.delivery";
    let row = session.query_one(count, &[]).unwrap();
    (row.get(0), row.get(1))
}

fn list(ids: &[Uuid]) -> String {
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    ids.join(",")
}

/// Xorshift: the same sequence in every run.
struct Random(u64);

impl Random {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from[(self.0 >> 32) as usize % from.len()]
    }
}
