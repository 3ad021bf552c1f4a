//! The cost of retention for delivery: the same load without and with a million expired deliveries being
//! removed.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::emit;
use webhook_e2e::{Cluster, Database, Receiver, wait};

use crate::measure::percentile;
use crate::options::Options;
use crate::report::{Figure, progress};

/// More than retention removes during a run, however short.
const EXPIRED: u32 = 1_000_000;
const EVENTS_PER_SECOND: u32 = 1_000;
const EMITTERS: u32 = 4;
const FLOW: Duration = Duration::from_secs(8);
const BACKLOG: i64 = 20_000;
const ROUNDS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(_: &Options) -> Vec<Figure> {
    let mut cluster = (Cluster::builder().purpose("bench"))
        .setting("webhook.retention_sent = -1")
        .setting("max_wal_size = '8GB'")
        .start();
    let database = cluster.database("retention");
    database.add_endpoint("receiver", "http://127.0.0.1:9/");
    progress(&format!("retention: making {EXPIRED} old deliveries"));
    keep_old_deliveries(&database);

    // Both have the same tables; they differ in whether the old deliveries have expired.
    let (mut without, mut with) = (Load::default(), Load::default());
    for round in 1..=ROUNDS {
        for (retention, load) in [("-1", &mut without), ("'7d'", &mut with)] {
            progress(&format!(
                "retention: round {round}, webhook.retention_sent = {retention}"
            ));
            cluster.configure(&format!("webhook.retention_sent = {retention}"));
            cluster.reload();
            let before = old_deliveries(&database);
            load.flow(&database);
            load.backlog(&database);
            let left = old_deliveries(&database);
            assert!(left > 0, "there was nothing left to remove");
            load.removed += before - left;
        }
    }
    vec![
        without.figure("without expired deliveries"),
        with.figure(&format!("with {EXPIRED} of them being removed")),
        Figure::new(
            format!("rate of {EVENTS_PER_SECOND} events/s, of a backlog, while retention removes"),
            format!(
                "{:.3}, {:.3} of without",
                with.flow_rate() / without.flow_rate(),
                with.backlog_rate() / without.backlog_rate()
            ),
        ),
    ]
}

/// Deliveries of a day, long ago, and their events; one in ten has failed once.
fn keep_old_deliveries(database: &Database) {
    database.execute(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         SELECT overlay(webhook.first_id(t)::text PLACING right(md5(n::text), 12) FROM 25)::uuid, 'bench.old',
                jsonb_build_object('number', n, 'customer', md5(n::text)), t
         FROM generate_series(1, {EXPIRED}) n,
              LATERAL (SELECT now() - interval '30 days' + n * interval '1 day' / {EXPIRED}) AS emitted (t);
         INSERT INTO webhook.delivery_history
             (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, created_at, completed_at)
         SELECT v.id, e.id, v.event_type, 'SENT', 1, 6, v.created_at, v.created_at, v.created_at + random() * interval '50 ms'
         FROM webhook.event v, webhook.endpoint e;
         INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, attempt, verdict, status_code, duration_ms, finished_at)
         SELECT h.event_id, h.endpoint_id, 1, 1, 'retry', 503, 5, h.completed_at
         FROM webhook.delivery_history h WHERE random() < 0.1"
    ));
    for table in ["event", "delivery_history", "attempt"] {
        database.execute(&format!("VACUUM ANALYZE webhook.{table}"));
    }
    database.execute("CHECKPOINT");
}

fn old_deliveries(database: &Database) -> i64 {
    database.query_one_value(
        "SELECT count(*) FROM webhook.delivery_history WHERE event_type = 'bench.old'",
    )
}

/// Figures under one of the two conditions.
#[derive(Default)]
struct Load {
    latencies: Vec<Duration>,
    flow_took: Duration,
    drained: i64,
    draining_took: Duration,
    removed: i64,
}

impl Load {
    /// Events that are committed one by one at a steady rate.
    fn flow(&mut self, database: &Database) {
        let receiver = receiver(database);
        let begun = Instant::now();
        let committed: HashMap<Uuid, Instant> = thread::scope(|scope| {
            let emitters: Vec<_> = (0..EMITTERS)
                .map(|number| scope.spawn(move || emit_steadily(database, begun, number)))
                .collect();
            (emitters.into_iter())
                .flat_map(|emitter| emitter.join().expect("the emitter is well"))
                .collect()
        });
        let received = wait_for(&receiver, committed.len());
        let last = received.iter().map(|(_, arrived)| *arrived).max();
        self.flow_took += last.expect("something was received") - begun;
        self.latencies.extend(
            (received.iter())
                .map(|(event, arrived)| arrived.saturating_duration_since(committed[event])),
        );
    }

    /// Events that have piled up while the endpoint was paused.
    fn backlog(&mut self, database: &Database) {
        let receiver = receiver(database);
        database.execute("UPDATE webhook.endpoint SET paused_at = now()");
        database.execute(&format!(
            "SELECT webhook_emit('bench.backlog') FROM generate_series(1, {BACKLOG})"
        ));
        // Retention is measured here, and no plan from an old estimate.
        database.execute("ANALYZE webhook.delivery_queue");
        let begun = Instant::now();
        database.execute("UPDATE webhook.endpoint SET paused_at = NULL");
        wait_for(&receiver, BACKLOG as usize);
        self.draining_took += begun.elapsed();
        self.drained += BACKLOG;
    }

    fn flow_rate(&self) -> f64 {
        self.latencies.len() as f64 / self.flow_took.as_secs_f64()
    }

    fn backlog_rate(&self) -> f64 {
        self.drained as f64 / self.draining_took.as_secs_f64()
    }

    fn figure(&mut self, condition: &str) -> Figure {
        let [p50, p99] = [50, 99].map(|percent| percentile(&mut self.latencies, percent));
        Figure::new(
            format!("{EVENTS_PER_SECOND} events/s {condition}"),
            format!(
                "{:.0}/s, p50 {p50:.2} ms, p99 {p99:.2} ms; backlog {:.0}/s; {} removed",
                self.flow_rate(),
                self.backlog_rate(),
                self.removed
            ),
        )
    }
}

/// A new receiver for each measurement: a receiver remembers every request.
fn receiver(database: &Database) -> Receiver {
    let receiver = Receiver::start();
    database.execute(&format!(
        "UPDATE webhook.endpoint SET url = '{}'",
        receiver.url("/")
    ));
    receiver
}

fn emit_steadily(database: &Database, begun: Instant, number: u32) -> Vec<(Uuid, Instant)> {
    let mut client = database.connect();
    let mut committed = Vec::new();
    loop {
        let place = committed.len() as u32 * EMITTERS + number;
        let due = begun + Duration::from_secs(1) * place / EVENTS_PER_SECOND;
        if due >= begun + FLOW {
            return committed;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let event = emit(&mut client, "bench.flow", json!({ "place": place }));
        committed.push((event, Instant::now()));
    }
}

fn wait_for(receiver: &Receiver, count: usize) -> Vec<(Uuid, Instant)> {
    wait::until_within(PATIENCE, &format!("{count} requests"), || {
        match receiver.request_count() {
            seen if seen >= count => Ok(()),
            seen => Err(seen),
        }
    });
    (receiver.requests().iter())
        .map(|request| (request.event_id(), request.arrived))
        .collect()
}
