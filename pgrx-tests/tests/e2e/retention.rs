//! Rows are kept as long as the settings say, and none goes that somebody still needs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver, wait, worker};

/// Long enough for a sweep from the beginning: after each the worker rests for a hundred times as long as it has
/// taken, with all the time that the machine has stood still meanwhile.
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

/// A database with one endpoint, which gets only events of its own type.
pub(super) fn database(cluster: &Cluster, receiver: &Receiver) -> Database {
    let database = cluster.database("retention");
    database.execute(PAST);
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'fast'",
    );
    database
}

/// Ends the work of the other threads, also when this one fails.
pub(super) struct AtTheEnd<'a>(pub(super) &'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until a worker has looked at everything once more. A new one begins with that, and looks at counters when it
/// has come to the end.
#[track_caller]
pub(super) fn wait_for_a_sweep(database: &Database) {
    let earlier = worker::pid(database);
    worker::terminate(database, earlier);
    worker::successor(database, earlier);
    database.execute(
        "INSERT INTO webhook.stat (endpoint_id, grain, begins_at) VALUES (76, 'hour', now()), (76, 'minute', now() - interval '25 hours')",
    );
    wait_until(
        database,
        "SELECT NOT EXISTS (SELECT FROM webhook.stat WHERE endpoint_id = 76 AND grain = 'minute')",
    );
}

#[track_caller]
pub(super) fn wait_until(database: &Database, sql: &str) {
    let mut client = database.connect();
    wait::until_within(SWEEP, sql, || {
        let answer: bool = client.query_one(sql, &[]).unwrap().get(0);
        answer.then_some(()).ok_or(())
    });
}

/// Events, deliveries and attempts that there are of these events.
#[track_caller]
pub(super) fn rows_of(database: &Database, events: &[Uuid]) -> (i64, i64, i64) {
    let row = (database.connect()).query_one(
        "SELECT (SELECT count(*) FROM webhook.event WHERE id = ANY ($1)),
                (SELECT count(*) FROM webhook.delivery WHERE event_id = ANY ($1)),
                (SELECT count(*) FROM webhook.attempt WHERE event_id = ANY ($1))",
        &[&events],
    );
    let row = row.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

pub(super) fn past(database: &Database, ended: &str, age: &str) -> Uuid {
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
    // More than one step of them, and expired rows are behind and between them.
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
    database.execute(OLD_FIGURES);
    wait_until(&database, OLD_FIGURES_IS_GONE);
    assert_eq!(rows_of(&database, &[sent, failed, unmatched]), (3, 2, 2));

    cluster.configure("webhook.retention_failed = '30d'");
    cluster.reload();
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.dead_letter)",
    );
    database.execute(OLD_FIGURES);
    wait_until(&database, OLD_FIGURES_IS_GONE);
    // Its event is no delivery's any more, and such events are kept as long as sent ones.
    assert_eq!(rows_of(&database, &[sent, failed, unmatched]), (3, 1, 1));

    cluster.configure("webhook.retention_sent = '7d'");
    cluster.reload();
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
    assert_eq!(rows_of(&database, &[sent, failed, unmatched]), (0, 0, 0));
}

/// Figures of an endpoint that was removed; they go when retention has looked, whatever is kept for ever.
const OLD_FIGURES: &str = "
    INSERT INTO webhook.stat (endpoint_id, grain, begins_at)
    VALUES (77, 'hour', now() - interval '32 days'), (77, 'total', '-infinity');
    INSERT INTO webhook.removed_endpoint (id, name) VALUES (77, 'removed') ON CONFLICT DO NOTHING";
const OLD_FIGURES_IS_GONE: &str =
    "SELECT NOT EXISTS (SELECT FROM webhook.stat WHERE endpoint_id = 77)";

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

/// The worker has woken several times, though nothing has happened.
pub(super) fn wait_for_looks(worker: i32) {
    let sleeps = worker::sleeps(worker);
    wait::until_within(SWEEP, "the worker to look", || {
        match worker::sleeps(worker) - sleeps {
            3.. => Ok(()),
            seen => Err(seen),
        }
    });
}

pub(super) fn cluster_that_keeps_everything() -> Cluster {
    Cluster::builder()
        .setting("webhook.retention_sent = -1")
        .setting("webhook.retention_failed = -1")
        .start()
}

pub(super) fn keep_as_by_default(cluster: &mut Cluster) {
    cluster.configure("webhook.retention_sent = '7d'\nwebhook.retention_failed = '30d'");
    cluster.reload();
}

#[test]
fn minutes_are_kept_for_a_day_hours_for_a_month_and_totals_as_long_as_their_endpoint() {
    let database = database(Cluster::shared(), &Receiver::start());
    database.execute(
        "SELECT webhook_set_endpoint(name, 'http://127.0.0.1:9/', '{other.*}') FROM unnest('{busy, quiet, gone, going}'::text[]) name;
         CREATE TABLE counted (name text, grain text, ago text, stays boolean, now timestamptz DEFAULT now());
         INSERT INTO counted VALUES
             ('busy', 'minute', '1 min', true), ('busy', 'minute', '23:59', true), ('busy', 'minute', '24:01', false),
             ('busy', 'minute', '90 days', false), ('busy', 'hour', '1 h', true), ('busy', 'hour', '30 days', true),
             ('busy', 'hour', '32 days', false), ('busy', 'total', 'infinity', true),
             ('quiet', 'minute', '2 days', false), ('quiet', 'hour', '40 days', false), ('quiet', 'total', 'infinity', true),
             ('going', 'hour', '30 days', true), ('going', 'total', 'infinity', true),
             ('gone', 'hour', '32 days', false), ('gone', 'total', 'infinity', false),
             ('all', 'minute', '1 min', true), ('all', 'minute', '25 h', false), ('all', 'hour', '32 days', false),
             ('all', 'total', 'infinity', true);
         CREATE TABLE endpoint AS SELECT id, name FROM webhook.endpoint UNION SELECT 0, 'all';
         CREATE VIEW expected AS
         SELECT e.id, c.grain, CASE c.ago WHEN 'infinity' THEN '-infinity' ELSE c.now - c.ago::interval END AS begins_at, c.stays
         FROM counted c JOIN endpoint e USING (name);
         INSERT INTO webhook.stat (endpoint_id, grain, begins_at) SELECT id, grain, begins_at FROM expected;
         SELECT webhook_remove_endpoint('gone'), webhook_remove_endpoint('going')",
    );
    wait_until(
        &database,
        "SELECT count(*) = (SELECT count(*) FROM expected WHERE stays) FROM webhook.stat",
    );
    let wrong: i64 = database.query_one_value(
        "SELECT count(*) FROM expected x LEFT JOIN webhook.stat s ON (s.endpoint_id, s.grain, s.begins_at) = (x.id, x.grain, x.begins_at)
         WHERE x.stays <> (s.grain IS NOT NULL)",
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
fn a_removed_endpoint_is_forgotten_when_nothing_has_its_number_any_more() {
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    // Nobody ends deliveries that still wait for them; and in one transaction, since the worker looks at them too.
    cluster.configure("webhook.enabled = off");
    cluster.reload();
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    database.execute(
        "INSERT INTO webhook.removed_endpoint (id, name, removed_at, ended_at)
         SELECT n, n::text, now() - interval '60 days', now() - interval '60 days' FROM generate_series(901, 907) n;
         UPDATE webhook.removed_endpoint SET ended_at = now() - interval '1 day' WHERE id = 902;
         UPDATE webhook.removed_endpoint SET ended_at = now() - interval '9 days' WHERE id = 907;
         INSERT INTO webhook.stat (endpoint_id, grain, begins_at) VALUES (904, 'hour', now());
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
    database.execute("DELETE FROM webhook.stat WHERE endpoint_id = 904");
    keep_as_by_default(&mut cluster);
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.removed_endpoint WHERE id = 904)",
    );
}
