//! What is kept for how long, and that nothing goes which somebody still needs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver, wait, worker};

/// Long enough for a sweep from the beginning: after each the worker rests for a hundred times as long as it has taken, with
/// all that the machine has stood still meanwhile.
const SWEEP: Duration = Duration::from_secs(600);

/// Rows as they would be if the worker had made them that long ago; each delivery has an attempt.
const PAST: &str = "
    CREATE FUNCTION past_event(age interval) RETURNS uuid LANGUAGE sql AS $$
        INSERT INTO webhook.event (id, event_type, payload, created_at)
        SELECT overlay(webhook.first_id(now() - age)::text PLACING right(md5(random()::text), 12) FROM 25)::uuid,
               'past.event', '{}', now() - age
        RETURNING id
    $$;
    CREATE FUNCTION past_delivery(event uuid, endpoint int, ended text, age interval) RETURNS uuid LANGUAGE sql AS $$
        INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, attempt, verdict, status_code, duration_ms, finished_at)
        VALUES (event, endpoint, 1, 1, 'retry', 500, 5, now() - age);
        INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, status, attempts, max_attempts, reason, last_error, claim_seq,
                                      created_at, completed_at)
        VALUES (event, endpoint, 'past.event', ended, 1, 3, 'status', 'HTTP 500', 1, now() - age, now() - age)
        RETURNING event_id
    $$;
    CREATE FUNCTION past(ended text, age interval) RETURNS uuid LANGUAGE sql AS $$
        SELECT past_delivery(past_event(age), (SELECT min(id) FROM webhook.endpoint), ended, age)
    $$";

/// A database with one endpoint, which gets nothing but what has `type` of its own.
fn database(cluster: &Cluster, receiver: &Receiver) -> Database {
    let database = cluster.database("retention");
    database.execute(PAST);
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'fast'",
    );
    database
}

/// Ends what the other threads do, also when this one fails.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until a worker has looked at everything once more. A new one begins with that, and looks at counters when it has come
/// to the end.
#[track_caller]
fn wait_for_a_sweep(database: &Database) {
    let earlier = worker::pid(database);
    worker::terminate(database, earlier);
    worker::successor(database, earlier);
    database.execute(
        "INSERT INTO webhook.tally (endpoint_id, hour, status, latency_class, deliveries, retried, retries)
         VALUES (76, now(), 'SENT', 1, 1, 0, 0), (76, now() - interval '49 hours', 'SENT', 1, 1, 0, 0)",
    );
    wait_until(
        database,
        "SELECT NOT EXISTS (SELECT FROM webhook.tally WHERE endpoint_id = 76 AND hour < now() - interval '48 hours')",
    );
}

#[track_caller]
fn wait_until(database: &Database, sql: &str) {
    let mut client = database.connect();
    wait::until_within(SWEEP, sql, || {
        let answer: bool = client.query_one(sql, &[]).unwrap().get(0);
        answer.then_some(()).ok_or(())
    });
}

/// Events, deliveries and attempts that there are of these events.
#[track_caller]
fn rows_of(database: &Database, events: &[Uuid]) -> (i64, i64, i64) {
    let row = (database.connect()).query_one(
        "SELECT (SELECT count(*) FROM webhook.event WHERE id = ANY ($1)),
                (SELECT count(*) FROM webhook.delivery WHERE event_id = ANY ($1)),
                (SELECT count(*) FROM webhook.attempt WHERE event_id = ANY ($1))",
        &[&events],
    );
    let row = row.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

fn past(database: &Database, ended: &str, age: &str) -> Uuid {
    database.query_one_value(&format!("SELECT past('{ended}', '{age}')"))
}

#[test]
fn exactly_what_is_due_goes_while_events_flow() {
    const DUE: [(&str, &str); 4] = [
        ("SENT", "7 days 1 min"),
        ("CANCELLED", "7 days 1 min"),
        ("SENT", "3 years"),
        ("FAILED", "30 days 1 min"),
    ];
    const KEPT: [(&str, &str); 4] = [
        ("SENT", "6 days 23:30"),
        ("CANCELLED", "6 days 23:30"),
        ("SENT", "1 s"),
        ("FAILED", "29 days 23:30"),
    ];
    const OF_EACH: usize = 300;
    const MOST_UNDER_WAY: usize = 200;
    let receiver = Receiver::start();
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &receiver);
    let mut client = database.connect();
    let mut insert = |rows: &[(&str, &str)]| -> Vec<Uuid> {
        (rows.iter().cycle().take(rows.len() * OF_EACH))
            .map(|(ended, age)| {
                let sql = format!("SELECT past('{ended}', '{age}')");
                client.query_one(&sql, &[]).unwrap().get(0)
            })
            .collect()
    };
    let kept = insert(&KEPT);
    insert(&DUE);
    let ended = AtomicBool::new(false);
    let emitted = thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let mut client = database.connect();
            let mut emitted = 0;
            while !ended.load(Ordering::SeqCst) {
                webhook_e2e::database::emit(&mut client, "order.created", json!({}));
                emitted += 1;
                wait::until_true("the worker to keep up", || {
                    emitted < receiver.request_count() + MOST_UNDER_WAY
                });
            }
            emitted
        });
        let end = AtTheEnd(&ended);
        receiver.wait_for_requests(1);
        keep_as_by_default(&mut cluster);
        wait_until(
            &database,
            &format!(
                "SELECT count(*) = {} FROM webhook.delivery WHERE event_type = 'past.event'",
                KEPT.len() * OF_EACH
            ),
        );
        drop(end);
        flow.join().unwrap()
    });
    database.wait_until("SELECT queued = 0 FROM webhook_status()");
    wait_for_a_sweep(&database);

    let count = kept.len() as i64;
    assert_eq!(rows_of(&database, &kept), (count, count, count));
    let others: i64 = database.query_one_value(
        "SELECT (SELECT count(*) FROM webhook.event WHERE event_type = 'past.event')
              + (SELECT count(*) FROM webhook.attempt)",
    );
    assert_eq!(others, 2 * count, "attempts or events were left behind");

    assert_eq!(receiver.request_count(), emitted);
    let sent: i64 = database.query_one_value(
        "SELECT count(*) FROM webhook.delivery_history h JOIN webhook.event v ON v.id = h.event_id
         WHERE h.event_type = 'order.created' AND h.status = 'SENT'",
    );
    assert_eq!(sent, emitted as i64);
}

#[test]
fn an_event_stays_as_long_as_any_delivery_has_it() {
    let receiver = Receiver::start();
    let database = database(Cluster::shared(), &receiver);
    database.add_endpoint_with("other", &receiver.url("/other"), "'{other.*}'");
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'other'");
    // The delivery to the first endpoint has expired; the one to the other has not.
    let event = |other: &str| -> Uuid {
        database.query_one_value(&format!(
            "WITH expired AS MATERIALIZED (SELECT past('SENT', '20 days') AS event)
             SELECT {other} FROM expired, webhook.endpoint e WHERE e.name = 'other'"
        ))
    };
    let events = [
        event("past_delivery(event, e.id, 'SENT', '1 day')"),
        event("past_delivery(event, e.id, 'CANCELLED', '1 day')"),
        event("past_delivery(event, e.id, 'FAILED', '20 days')"),
    ];
    let queued: Uuid = database.query_one_value(
        "WITH expired AS MATERIALIZED (SELECT past('SENT', '20 days') AS event)
         INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, max_attempts)
         SELECT event, e.id, 'past.event', 3 FROM expired, webhook.endpoint e WHERE e.name = 'other' RETURNING event_id",
    );
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id WHERE e.name = 'orders')",
    );
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &events), (3, 3, 3));
    assert_eq!(rows_of(&database, &[queued]), (1, 1, 0));

    database.execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'other'");
    receiver.wait_for_event(queued);
    database.wait_for_status(queued, "SENT");
}

#[test]
fn a_dead_letter_that_goes_before_its_event_leaves_it() {
    let cluster = Cluster::builder()
        .setting("webhook.retention_failed = '1 h'")
        .start();
    let database = database(&cluster, &Receiver::start());
    let event = past(&database, "FAILED", "2 h");
    wait_until(
        &database,
        &format!("SELECT NOT EXISTS (SELECT FROM webhook.dead_letter WHERE event_id = '{event}')"),
    );
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &[event]), (1, 0, 0));
}

#[test]
fn events_that_matched_nothing_go() {
    let database = Cluster::shared().database("retention");
    database.execute(PAST);
    let kept: Uuid = database.query_one_value("SELECT past_event('6 days 23:30')");
    let due: Uuid = database.query_one_value("SELECT past_event('7 days 1 min')");
    let emitted = database.emit("order.created", json!({}));
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &[due]), (0, 0, 0));
    assert_eq!(rows_of(&database, &[kept, emitted]), (2, 0, 0));
}

#[test]
fn old_events_that_are_needed_do_not_hide_those_that_are_not() {
    let database = database(Cluster::shared(), &Receiver::start());
    // More than one step of them, and what is due is behind and between them.
    database.execute("SELECT past('FAILED', '20 days') FROM generate_series(1, 1500)");
    let due: Uuid = database.query_one_value("SELECT past_event('8 days')");
    database.execute("SELECT past('FAILED', '7 days 1 min') FROM generate_series(1, 500)");
    wait_until(
        &database,
        &format!("SELECT NOT EXISTS (SELECT FROM webhook.event WHERE id = '{due}')"),
    );
    let left: i64 = database.query_one_value("SELECT count(*) FROM webhook.event");
    assert_eq!(left, 2000);
}

#[test]
fn all_attempts_of_a_delivery_go_however_many() {
    let database = database(Cluster::shared(), &Receiver::start());
    // In one transaction: no attempt is made of an event that has gone.
    let event: Uuid = database.query_one_value(
        "WITH past AS MATERIALIZED (SELECT past('SENT', '8 days') AS event), attempts AS (
             INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, verdict, duration_ms, finished_at)
             SELECT event, id, n, 'retry', 5, now() FROM past, webhook.endpoint, generate_series(2, 5000) n)
         SELECT event FROM past",
    );
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.attempt) AND NOT EXISTS (SELECT FROM webhook.event)",
    );
    assert_eq!(rows_of(&database, &[event]), (0, 0, 0));
}

#[test]
fn minus_one_keeps_for_ever_and_a_reload_ends_that() {
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let sent = past(&database, "SENT", "10 years");
    let failed = past(&database, "FAILED", "10 years");
    let unmatched: Uuid = database.query_one_value("SELECT past_event('10 years')");
    database.execute(OLD_TALLY);
    wait_until(&database, OLD_TALLY_IS_GONE);
    assert_eq!(rows_of(&database, &[sent, failed, unmatched]), (3, 2, 2));

    cluster.configure("webhook.retention_failed = '30d'");
    cluster.reload();
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.dead_letter)",
    );
    database.execute(OLD_TALLY);
    wait_until(&database, OLD_TALLY_IS_GONE);
    // Its event is no delivery's any more, and such events are kept as long as what was sent.
    assert_eq!(rows_of(&database, &[sent, failed, unmatched]), (3, 1, 1));

    cluster.configure("webhook.retention_sent = '7d'");
    cluster.reload();
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
    assert_eq!(rows_of(&database, &[sent, failed, unmatched]), (0, 0, 0));
}

/// A counter of an endpoint that was removed; it goes when retention has looked, whatever is kept for ever.
const OLD_TALLY: &str = "
    INSERT INTO webhook.tally (endpoint_id, hour, status, latency_class, deliveries, retried, retries)
    VALUES (77, now() - interval '49 hours', 'SENT', 1, 1, 0, 0);
    INSERT INTO webhook.removed_endpoint (id, name) VALUES (77, 'removed') ON CONFLICT DO NOTHING";
const OLD_TALLY_IS_GONE: &str =
    "SELECT NOT EXISTS (SELECT FROM webhook.tally WHERE endpoint_id = 77)";

#[test]
fn a_database_has_a_retention_of_its_own_once_its_worker_starts() {
    let database = database(Cluster::shared(), &Receiver::start());
    let kept = past(&database, "SENT", "2 h");
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &[kept]), (1, 1, 1));

    database.execute(&format!(
        "ALTER DATABASE {} SET webhook.retention_sent = '1h'",
        database.name()
    ));
    worker::terminate(&database, worker::pid(&database));
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
    assert_eq!(rows_of(&database, &[kept]), (0, 0, 0));
}

#[test]
fn the_settings_are_times_or_minus_one_and_the_superusers() {
    let database = Cluster::shared().database("retention");
    let shown: Vec<String> = ["webhook.retention_sent", "webhook.retention_failed"]
        .map(|name| database.query_one_value(&format!("SHOW {name}")))
        .into();
    assert_eq!(shown, ["7d", "30d"]);
    for value in ["-2", "'soon'"] {
        let refusal = database.refusal(&format!("SET webhook.retention_sent = {value}"));
        assert_eq!(refusal.code().code(), "22023", "{value}: {refusal:?}");
    }
    let refusal = database.refusal(
        "CREATE ROLE keeps_nothing; SET ROLE keeps_nothing; SET webhook.retention_sent = 0",
    );
    assert_eq!(refusal.code().code(), "42501", "{refusal:?}");
}

#[test]
fn zero_removes_at_once() {
    const EVENTS: usize = 500;
    let cluster = Cluster::builder()
        .setting("webhook.retention_sent = 0")
        .setting("webhook.keep_attempts = all")
        .start();
    let receiver = Receiver::start();
    let database = database(&cluster, &receiver);
    database.execute(&format!(
        "SELECT webhook_emit('order.created') FROM generate_series(1, {EVENTS})"
    ));
    receiver.wait_for_requests(EVENTS);
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.delivery) AND NOT EXISTS (SELECT FROM webhook.event)
                AND NOT EXISTS (SELECT FROM webhook.attempt)",
    );
    assert_eq!(receiver.request_count(), EVENTS);
}

#[test]
fn the_outcome_of_a_test_stays_for_its_caller() {
    let receiver = Receiver::start();
    let cluster = Cluster::builder()
        .setting("webhook.retention_sent = 0")
        .setting("webhook.retention_failed = 0")
        .start();
    let database = database(&cluster, &receiver);
    let mut client = database.connect();
    let mut written = client.transaction().unwrap();
    written
        .batch_execute(
            "SELECT past('SENT', '1 s'), past('FAILED', '1 s'), past('SENT', '2 min');
             SET LOCAL ROLE webhook_owner;
             UPDATE webhook.delivery SET event_type = 'webhook.test';
             SELECT past('SENT', '1 s'), past('FAILED', '1 s');
             SELECT webhook.expire(1000, NULL, NULL, NULL, NULL)",
        )
        .unwrap();
    let left = "SELECT string_agg(format('%s %s', event_type, status), ', ' ORDER BY status),
                       (SELECT count(*) FROM webhook.event) FROM webhook.delivery";
    let left = written.query_one(left, &[]).unwrap();
    assert_eq!(
        left.get::<_, String>(0),
        "webhook.test FAILED, webhook.test SENT"
    );
    assert_eq!(left.get::<_, i64>(1), 2);
}

#[test]
fn what_somebody_has_locked_is_passed_over_and_goes_later() {
    let mut cluster = cluster_that_keeps_everything();
    let receiver = Receiver::start();
    let database = database(&cluster, &receiver);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let locked = [
        ("delivery_history", "event_id", "past('SENT', '8 days')"),
        ("dead_letter", "event_id", "past('FAILED', '31 days')"),
        ("attempt", "event_id", "past('SENT', '8 days')"),
        ("event", "id", "past_event('8 days')"),
    ]
    .map(|(table, key, insert)| {
        let event: Uuid = database.query_one_value(&format!("SELECT {insert}"));
        let lock = format!("SELECT FROM webhook.{table} WHERE {key} = $1 FOR UPDATE");
        transaction.query_one(&lock, &[&event]).unwrap();
        event
    });
    let others: Vec<Uuid> = (0..300)
        .map(|_| past(&database, "SENT", "8 days"))
        .collect();
    keep_as_by_default(&mut cluster);

    wait_for_a_sweep(&database);
    let worker = worker::pid(&database);
    assert_eq!(rows_of(&database, &others), (0, 0, 0));
    let [history, dead_letter, attempt, event] = locked;
    assert_eq!(rows_of(&database, &[history, dead_letter]), (2, 2, 2));
    // The delivery is gone; what is left of it keeps its event.
    assert_eq!(rows_of(&database, &[attempt]), (1, 0, 1));
    assert_eq!(rows_of(&database, &[event]), (1, 0, 0));
    let emitted = database.emit("order.created", json!({}));
    database.wait_for_status(emitted, "SENT");

    transaction.rollback().unwrap();
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.event WHERE event_type = 'past.event')",
    );
    assert_eq!(rows_of(&database, &locked), (0, 0, 0));
    assert_eq!(worker::pid(&database), worker);
    assert_eq!(worker::complaints(&cluster, worker), Vec::<String>::new());
}

#[test]
fn a_table_that_somebody_has_locked_is_passed_over_quietly() {
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let event = past(&database, "SENT", "8 days");
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.event IN SHARE MODE")
        .unwrap();
    let worker = worker::pid(&database);
    keep_as_by_default(&mut cluster);
    wait_for_looks(worker);
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));

    transaction.rollback().unwrap();
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
    assert_eq!(worker::complaints(&cluster, worker), Vec::<String>::new());
}

/// The worker has woken several times, though nothing has happened.
fn wait_for_looks(worker: i32) {
    let sleeps = worker::sleeps(worker);
    wait::until_within(SWEEP, "the worker to look", || {
        match worker::sleeps(worker) - sleeps {
            3.. => Ok(()),
            seen => Err(seen),
        }
    });
}

fn cluster_that_keeps_everything() -> Cluster {
    Cluster::builder()
        .setting("webhook.retention_sent = -1")
        .setting("webhook.retention_failed = -1")
        .start()
}

fn keep_as_by_default(cluster: &mut Cluster) {
    cluster.configure("webhook.retention_sent = '7d'\nwebhook.retention_failed = '30d'");
    cluster.reload();
}

#[test]
fn a_delivery_that_is_being_sent_again_keeps_its_event() {
    let mut cluster = cluster_that_keeps_everything();
    let receiver = Receiver::start();
    let database = database(&cluster, &receiver);
    let endings = [
        ("SENT", "8 days"),
        ("CANCELLED", "8 days"),
        ("FAILED", "31 days"),
    ];
    let events = endings.map(|(ended, age)| past(&database, ended, age));
    let rolled_back = endings.map(|(ended, age)| past(&database, ended, age));

    let requeue = "SELECT webhook.requeue($1, array_fill((SELECT min(id) FROM webhook.endpoint), ARRAY[3]), '{SENT, CANCELLED, FAILED}')";
    let (mut person, mut hesitant) = (database.connect(), database.connect());
    let mut sent_again = person.transaction().unwrap();
    let mut given_up = hesitant.transaction().unwrap();
    for (transaction, events) in [(&mut sent_again, &events), (&mut given_up, &rolled_back)] {
        let moved = transaction.query_one(requeue, &[&events.as_slice()]);
        assert_eq!(moved.unwrap().get::<_, i64>(0), 3);
    }
    keep_as_by_default(&mut cluster);
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &events), (3, 3, 3));
    sent_again.commit().unwrap();
    for event in events {
        receiver.wait_for_event(event);
        database.wait_for_status(event, "SENT");
    }
    given_up.rollback().unwrap();
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &rolled_back), (0, 0, 0));
    assert_eq!(rows_of(&database, &events).0, 3);
}

/// People send again what is about to go, one moment before or after, while several sessions remove it.
#[test]
fn sending_again_and_removing_at_the_same_time_loses_no_event() {
    const EVENTS: i64 = 4_000;
    let (ended, met) = (AtomicBool::new(false), AtomicUsize::new(0));
    let receiver = Receiver::start();
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &receiver);
    database.add_endpoint_with(
        "other",
        &receiver.url("/other"),
        "'{order.*}', policy => 'fast'",
    );
    for ended in ["SENT", "FAILED"] {
        database.execute(&format!(
            "SELECT past_delivery(event, e.id, '{ended}', '40 days' - n * interval '1 s')
             FROM (SELECT n, past_event('40 days') AS event FROM generate_series(1, {EVENTS} / 2) n OFFSET 0) v,
                  webhook.endpoint e"
        ));
    }
    database.execute("ANALYZE webhook.delivery_history, webhook.dead_letter");
    let sent_again: Vec<(Uuid, i32)> = thread::scope(|scope| {
        let end = AtTheEnd(&ended);
        let removers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| remove_everything(&met, &mut database.connect())))
            .collect();
        let people: Vec<_> = ["delivery_history", "dead_letter"]
            .into_iter()
            .flat_map(|leaf| [leaf, leaf])
            .map(|leaf| {
                let (database, ended, met) = (&database, &ended, &met);
                scope.spawn(move || send_again_until(ended, met, leaf, &mut database.connect()))
            })
            .collect();
        for remover in removers {
            remover.join().unwrap();
        }
        drop(end);
        (people.into_iter())
            .flat_map(|person| person.join().unwrap())
            .collect()
    });
    assert!(sent_again.len() >= MEETINGS, "{} met", sent_again.len());
    let kept: i64 = database.query_one_value("SELECT count(*) FROM webhook.event");
    assert!(kept < EVENTS, "nothing was removed");

    wait_until(&database, "SELECT queued = 0 FROM webhook_status()");
    let mut client = database.connect();
    for (event, endpoint) in &sent_again {
        let is_there =
            "SELECT d.status FROM webhook.delivery d JOIN webhook.event v ON v.id = d.event_id
                        WHERE d.event_id = $1 AND d.endpoint_id = $2";
        let row = client.query_opt(is_there, &[event, endpoint]).unwrap();
        let status: Option<String> = row.map(|row| row.get(0));
        assert_eq!(status.as_deref(), Some("SENT"), "{event} to {endpoint}");
    }
}

/// So many of what is about to go are sent again.
const MEETINGS: usize = 101;

/// Steps as the worker makes them, until the last event; each when somebody has met the ones before it.
fn remove_everything(met: &AtomicUsize, client: &mut Client) {
    client
        .batch_execute("SET webhook.retention_sent = '7d'; SET webhook.retention_failed = '30d'")
        .unwrap();
    let mut event_after: Option<Uuid> = None;
    for steps in 0.. {
        wait::until_true("people to send again", || {
            met.load(Ordering::SeqCst) >= MEETINGS.min(steps)
        });
        let step = "SELECT more, event_after FROM webhook.expire(10, NULL, NULL, $1, NULL)";
        let row = client.query_one(step, &[&event_after]).unwrap();
        event_after = row.get(1);
        if !row.get::<_, bool>(0) {
            return;
        }
    }
}

/// Takes one of the oldest, again and again, and says which were still there.
fn send_again_until(
    ended: &AtomicBool,
    met: &AtomicUsize,
    leaf: &str,
    client: &mut Client,
) -> Vec<(Uuid, i32)> {
    let oldest = format!(
        "SELECT event_id, endpoint_id FROM webhook.{leaf}
         WHERE completed_at < now() - interval '30 days' ORDER BY completed_at OFFSET 20 * random() LIMIT 1"
    );
    let oldest = client.prepare(&oldest).unwrap();
    let requeue =
        "SELECT webhook.requeue(ARRAY[$1::uuid], ARRAY[$2::int], '{SENT, CANCELLED, FAILED}')";
    let requeue = client.prepare(requeue).unwrap();
    let mut sent_again = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        let Some(row) = client.query_opt(&oldest, &[]).unwrap() else {
            continue;
        };
        let delivery: (Uuid, i32) = (row.get(0), row.get(1));
        let moved = client.query_one(&requeue, &[&delivery.0, &delivery.1]);
        if moved.unwrap().get::<_, i64>(0) == 1 {
            sent_again.push(delivery);
            met.fetch_add(1, Ordering::SeqCst);
        }
    }
    sent_again
}

#[test]
fn counters_are_kept_for_two_days_and_the_newest_as_long_as_their_endpoint() {
    let database = database(Cluster::shared(), &Receiver::start());
    database.execute(
        "SELECT webhook_set_endpoint(name, 'http://127.0.0.1:9/', '{other.*}') FROM unnest('{busy, quiet, removed}'::text[]) name;
         CREATE TABLE counted (name text, ago int, status text, latency_class int, stays boolean, now timestamptz DEFAULT now());
         INSERT INTO counted VALUES
             ('busy', 0, 'SENT', 1, true), ('busy', 47, 'SENT', 1, true), ('busy', 50, 'SENT', 1, false), ('busy', 50, 'SENT', 2, false),
             ('busy', 900, 'SENT', 1, false), ('busy', 60, 'FAILED', 1, true), ('busy', 61, 'FAILED', 1, false),
             ('quiet', 70, 'SENT', 1, true), ('quiet', 70, 'SENT', 9, true), ('quiet', 71, 'SENT', 1, false), ('quiet', 47, 'FAILED', 1, true),
             ('quiet', 50, 'FAILED', 1, false),
             ('removed', 1, 'SENT', 1, true), ('removed', 50, 'SENT', 1, false), ('removed', 51, 'FAILED', 1, false);
         INSERT INTO webhook.tally (endpoint_id, hour, status, latency_class, deliveries, retried, retries, last_at)
         SELECT e.id, c.now - ago * interval '1 hour', c.status, c.latency_class, 1, 0, 0, now()
         FROM counted c JOIN webhook.endpoint e USING (name);
         CREATE TABLE endpoint AS SELECT id, name FROM webhook.endpoint;
         SELECT webhook_remove_endpoint('removed')",
    );
    wait_until(
        &database,
        "SELECT count(*) = (SELECT count(*) FROM counted WHERE stays) FROM webhook.tally",
    );
    let wrong: i64 = database.query_one_value(
        "SELECT count(*) FROM counted c JOIN endpoint e USING (name)
         LEFT JOIN webhook.tally t ON t.endpoint_id = e.id AND t.status = c.status AND t.latency_class = c.latency_class
             AND t.hour = c.now - c.ago * interval '1 hour'
         WHERE c.stays <> (t.hour IS NOT NULL)",
    );
    assert_eq!(wrong, 0);
}

#[test]
fn a_copy_keeps_everything_until_it_is_adopted() {
    let receiver = Receiver::start();
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &receiver);
    let event = past(&database, "SENT", "8 days");
    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    // As in a copy: no worker has seen it otherwise.
    let earlier = worker::pid(&database);
    worker::terminate(&database, earlier);
    worker::successor(&database, earlier);
    keep_as_by_default(&mut cluster);
    let other = cluster.database("other");
    other.execute(PAST);
    wait_for_a_sweep(&other);
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));

    database.execute("SELECT webhook_adopt()");
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
}

#[test]
fn deliveries_stay_while_a_restore_has_not_brought_their_endpoints() {
    let database = Cluster::shared().database("restored");
    database.execute(PAST);
    let event: Uuid = database
        .query_one_value("SELECT past_delivery(past_event('40 days'), 1, 'SENT', '40 days')");
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));

    database.execute("INSERT INTO webhook.removed_endpoint (id, name) VALUES (1, 'long ago')");
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
}

#[test]
fn retention_goes_on_while_delivery_is_switched_off() {
    let cluster = Cluster::idle();
    let database = database(cluster, &Receiver::start());
    past(&database, "SENT", "8 days");
    let queued = database.emit("order.created", json!({}));
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.event WHERE event_type = 'past.event')",
    );
    assert_eq!(rows_of(&database, &[queued]), (1, 1, 0));
}

#[test]
fn a_read_only_server_removes_nothing_and_says_nothing() {
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let event = past(&database, "SENT", "8 days");
    let worker = worker::pid(&database);
    cluster.configure("default_transaction_read_only = on");
    keep_as_by_default(&mut cluster);
    database.wait_until("SELECT state = 'held' FROM webhook_status()");
    wait_for_looks(worker);
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));
    assert_eq!(worker::complaints(&cluster, worker), Vec::<String>::new());

    cluster.configure("default_transaction_read_only = off");
    cluster.reload();
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
}

#[test]
fn trouble_with_retention_is_reported_and_delivery_goes_on() {
    let receiver = Receiver::start();
    let database = database(Cluster::shared(), &receiver);
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''kept by audit''; END';
         CREATE TRIGGER refuse BEFORE DELETE ON webhook.delivery_history FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let event = past(&database, "SENT", "8 days");
    wait_until(
        &database,
        "SELECT coalesce(last_error = 'kept by audit', false) FROM webhook_status()",
    );
    let emitted = database.emit("order.created", json!({}));
    database.wait_for_status(emitted, "SENT");
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));

    database.execute("DROP TRIGGER refuse ON webhook.delivery_history");
    wait_until(
        &database,
        &format!("SELECT NOT EXISTS (SELECT FROM webhook.event WHERE id = '{event}')"),
    );
}

#[test]
fn a_flow_of_one_kind_keeps_no_other_from_going() {
    const STEP: usize = 10;
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let mut client = database.connect();
    client
        .batch_execute(&format!(
            "SET webhook.retention_sent = '7d';
             SET webhook.retention_failed = '30d';
             SELECT past('SENT', '8 days') FROM generate_series(1, {STEP} + 1);
             SELECT past('FAILED', '40 days'), past_event('9 days');
             INSERT INTO webhook.idempotency (tenant, key, event_id, created_at)
             VALUES ('', 'old', webhook.new_id(), now() - interval '2 days')"
        ))
        .unwrap();
    let step = format!("SELECT more, behind FROM webhook.expire({STEP}, NULL, NULL, NULL, NULL)");
    let left = "SELECT (SELECT count(*) FROM webhook.delivery_history), (SELECT count(*) FROM webhook.dead_letter),
                       (SELECT count(*) FROM webhook.idempotency)";
    let mut expire = || {
        let said = client.query_one(&step, &[]).unwrap();
        let left = client.query_one(left, &[]).unwrap();
        let counts: (i64, i64, i64) = (left.get(0), left.get(1), left.get(2));
        (said.get::<_, bool>(0), said.get::<_, bool>(1), counts)
    };
    assert_eq!(expire(), (true, true, (1, 0, 0)));
    assert_eq!(expire(), (false, false, (0, 0, 0)));
}

#[test]
fn old_events_that_are_needed_make_retention_look_on_but_not_hurry() {
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let mut client = database.connect();
    client
        .batch_execute(
            "SET webhook.retention_sent = '7d';
             SELECT past('FAILED', '8 days') FROM generate_series(1, 20)",
        )
        .unwrap();
    let step = "SELECT more, behind FROM webhook.expire(10, NULL, NULL, NULL, NULL)";
    let said = client.query_one(step, &[]).unwrap();
    assert_eq!((said.get(0), said.get(1)), (true, false));
}

/// A first step takes 200 rows, and what it leaves makes the next ones larger and closer together: from one to the next pass
/// four times what a step takes, and not twenty times that.
#[test]
fn retention_that_is_behind_removes_more_in_a_step_and_rests_less() {
    const EXPIRED: i64 = 40_000;
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    database.execute(&format!(
        "INSERT INTO webhook.delivery_history
             (event_id, endpoint_id, event_type, status, attempts, max_attempts, created_at, completed_at)
         SELECT webhook.new_id(), e.id, 'past.event', 'SENT', 1, 3, at, at
         FROM webhook.endpoint e, generate_series(1, {EXPIRED}) n, LATERAL (SELECT now() - interval '8 days' + n * interval '1 ms') t (at);
         CREATE TABLE step (id bigint GENERATED ALWAYS AS IDENTITY, begun timestamptz, ended timestamptz, removed bigint);
         CREATE FUNCTION count_step() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             INSERT INTO public.step (begun, ended, removed) SELECT now(), clock_timestamp(), count(*) FROM gone HAVING count(*) > 0;
             RETURN NULL;
         END $$;
         CREATE TRIGGER count_step AFTER DELETE ON webhook.delivery_history REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION count_step()"
    ));
    keep_as_by_default(&mut cluster);
    let all_are_gone = format!("SELECT coalesce(sum(removed), 0) = {EXPIRED} FROM step");
    wait_until(&database, &all_are_gone);
    let removed: Vec<i64> =
        database.query_one_value("SELECT array_agg(removed ORDER BY id) FROM step");
    assert_eq!(removed[0], 200);
    let full = removed.iter().filter(|removed| **removed == 1_000).count();
    assert_eq!((full, removed.len()), (39, 41), "{removed:?}");
    let rest: f64 = database.query_one_value(
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM s.until_next) / extract(epoch FROM s.took))
         FROM (SELECT lead(begun) OVER (ORDER BY id) - begun AS until_next, ended - begun AS took FROM step) s",
    );
    assert!(rest < 12.0, "{rest} times what a step takes");
}

#[test]
fn status_says_how_far_retention_is_behind() {
    let database = database(Cluster::shared(), &Receiver::start());
    past(&database, "SENT", "6 days 23:00");
    let fine = "SELECT retention_lag = interval '0' AND coalesce(reason, '') !~ 'retention' FROM webhook_status()";
    wait_until(&database, fine);
    // A trigger is the only thing that keeps rows which nobody has locked.
    database.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER keep BEFORE DELETE ON webhook.delivery_history FOR EACH ROW EXECUTE FUNCTION keep();
         CREATE TRIGGER keep BEFORE DELETE ON webhook.dead_letter FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    past(&database, "SENT", "7 days 00:02");
    let lag_is = |from: &str, to: &str, says: bool| {
        database.wait_until(&format!(
            "SELECT retention_lag BETWEEN '{from}' AND '{to}' AND (coalesce(reason, '') ~ 'retention is behind') = {says}
             FROM webhook_status()"
        ))
    };
    lag_is("2 min", "9 min", false);
    past(&database, "SENT", "7 days 03:00");
    lag_is("3 h", "3 h 59 min", true);
    past(&database, "FAILED", "32 days");
    lag_is("2 days", "2 days 1 h", true);

    database.execute("DROP FUNCTION keep CASCADE");
    wait_until(&database, fine);
}

#[test]
fn a_step_planned_on_empty_tables_reads_little_of_full_ones() {
    const ROWS: i64 = 10_000;
    const STEP: i64 = 100;
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
    database.execute(
        "VACUUM ANALYZE webhook.event, webhook.delivery_queue, webhook.delivery_history, webhook.dead_letter, webhook.attempt,
                        webhook.tally, webhook.endpoint",
    );
    let mut client = database.connect();
    let expire = format!("SELECT * FROM webhook.expire({STEP}, NULL, NULL, NULL, NULL)");
    let expire_tally = "SELECT webhook.expire_tally(0, 100)";
    client
        .batch_execute("SET webhook.retention_sent = '7d'; SET webhook.retention_failed = '30d'")
        .unwrap();
    client.batch_execute(&expire).unwrap();
    client.batch_execute(expire_tally).unwrap();

    client
        .batch_execute(&format!(
            "SELECT past('SENT', '8 days'), past('FAILED', '20 days'), past_event('8 days'), webhook_emit('order.created')
             FROM generate_series(1, {ROWS});
             INSERT INTO webhook.tally (endpoint_id, hour, status, latency_class, deliveries, retried, retries)
             SELECT 1000 + n / 10, now() - n % 10 * interval '10 hours', 'SENT', 1, 1, 0, 0 FROM generate_series(1, {ROWS}) n"
        ))
        .unwrap();
    for call in [expire.as_str(), expire_tally] {
        let pages = pages_read(&mut client, call);
        assert!(
            (1..50 * STEP).contains(&pages),
            "{call} has read {pages} pages"
        );
    }
    // Past all the deliveries: the same with events alone.
    client
        .batch_execute("TRUNCATE webhook.delivery_history")
        .unwrap();
    let pages = pages_read(&mut client, &expire);
    assert!((1..50 * STEP).contains(&pages), "events: {pages} pages");
}

/// By this call alone: autovacuum and the worker read the same tables meanwhile.
fn pages_read(client: &mut Client, call: &str) -> i64 {
    let explained = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}");
    let plan: serde_json::Value = client.query_one(&explained, &[]).unwrap().get(0);
    let pages = |kind: &str| plan[0]["Plan"][kind].as_i64().expect("a number of pages");
    pages("Shared Hit Blocks") + pages("Shared Read Blocks")
}

#[test]
fn a_removed_endpoint_is_forgotten_when_nothing_has_its_number_any_more() {
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    // Nobody ends what still waits for them; and in one transaction, since the worker looks at them too.
    cluster.configure("webhook.enabled = off");
    cluster.reload();
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    database.execute(
        "INSERT INTO webhook.removed_endpoint (id, name, removed_at, ended_at)
         SELECT n, n::text, now() - interval '60 days', now() - interval '60 days' FROM generate_series(901, 907) n;
         UPDATE webhook.removed_endpoint SET ended_at = now() - interval '1 day' WHERE id = 902;
         UPDATE webhook.removed_endpoint SET ended_at = now() - interval '9 days' WHERE id = 907;
         INSERT INTO webhook.tally (endpoint_id, hour, status, latency_class, deliveries, retried, retries)
         VALUES (904, now(), 'SENT', 1, 1, 0, 0);
         INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, max_attempts)
         VALUES (past_event('1 day'), 905, 'past.event', 3), (past_event('1 day'), 906, 'past.event', 3);
         UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE endpoint_id = 906;
         SELECT past_delivery(past_event('20 days'), 903, 'FAILED', '20 days'),
                past_delivery(past_event('10 days'), 907, 'SENT', '10 days')",
    );
    let left = "SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM webhook.removed_endpoint";
    let mut client = database.connect();
    client.batch_execute("SET ROLE webhook_owner").unwrap();
    let mut forget = |after: i32, page: i32| -> (i32, Vec<i32>) {
        let call = format!("SELECT webhook.forget_removed_endpoints({after}, {page})");
        let next = client.query_one(&call, &[]).unwrap().get(0);
        (next, client.query_one(left, &[]).unwrap().get(0))
    };
    // 901 alone has neither a delivery nor a counter, and was removed long ago.
    let kept = vec![902, 903, 904, 905, 906, 907];
    assert_eq!(forget(902, 4).0, 906);
    assert_eq!(forget(0, 100), (0, kept));

    // Its deliveries have gone, and with them the reason to know its name.
    database.execute("DELETE FROM webhook.dead_letter; DELETE FROM webhook.delivery_history");
    assert_eq!(forget(0, 100), (0, vec![902, 904, 905, 906]));

    // The worker calls it.
    database.execute("DELETE FROM webhook.tally WHERE endpoint_id = 904");
    keep_as_by_default(&mut cluster);
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.removed_endpoint WHERE id = 904)",
    );
}
