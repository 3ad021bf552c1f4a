//! A long run under a mix of loads: memory, files, threads, tables and transaction ids of a worker stay flat.

pub mod chart;
mod mix;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::chaos::{Scene, Score, Sender, Stage};
use crate::receiver::{Answer, Request};
use crate::worker;
use mix::Mix;

const SAMPLES: u32 = 60;
/// The worker is terminated after these: within the first third, since a worker that has just begun would hide that the one
/// before it has grown, and the rest is what is compared.
const TERMINATED_AFTER: [u32; 3] = [5, 10, 15];

/// The measures of a sample, in the order of its values.
pub const MEASURES: [&str; 8] = [
    "memory of the worker, kB",
    "open files",
    "threads",
    "queue, kB",
    "history, kB",
    "events, kB",
    "all tables, kB",
    "transaction ids in a second",
];

#[derive(Debug, Clone)]
pub struct Sample {
    pub at: Duration,
    pub values: [f64; MEASURES.len()],
}

/// Runs for this time; panics where an event is lost or repeated.
pub fn run(seed: u64, time: Duration, mut tell: impl FnMut(&Sample)) -> Vec<Sample> {
    let mut stage = Stage {
        seed,
        size: 1000,
        score: Score::default(),
    };
    // Sent deliveries leave the tables after a minute, so that these come to rest.
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder
            .setting("webhook.retention_sent = '1 min'")
            .setting("webhook.retention_failed = '1 min'")
            .setting("autovacuum_naptime = '5 s'")
    });
    // One answer in twenty is an error.
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    scene.receiver.respond("/0", move |_, number| {
        if number % 20 != 7 {
            return Answer::status(200);
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Answer::status(503)
    });
    let mut pid = scene.worker_pid();
    scene.begin_load();
    let mix = Mix::begin(&scene, seed);
    let begun = Instant::now();
    let mut samples = Vec::new();
    let mut xids = (begun, xid(&scene));
    for number in 1..=SAMPLES {
        thread::sleep((time * number / SAMPLES).saturating_sub(begun.elapsed()));
        operate(&mut scene);
        if TERMINATED_AFTER.contains(&number) {
            worker::terminate(&scene.database, pid);
            pid = worker::successor(&scene.database, pid);
        }
        let now = (Instant::now(), xid(&scene));
        let spent = (now.1 - xids.1) / (now.0 - xids.0).as_secs_f64();
        xids = now;
        let sample = Sample {
            at: begun.elapsed(),
            values: [
                worker::private_memory(pid) as f64 / 1024.0,
                worker::open_files(pid).len() as f64,
                worker::threads(pid) as f64,
                size(&scene, "= 'delivery_queue'"),
                size(&scene, "= 'delivery_history'"),
                size(&scene, "= 'event'"),
                size(&scene, "<> ''"),
                spent,
            ],
        };
        tell(&sample);
        samples.push(sample);
    }
    scene.clients.stop();
    let mix = mix.stop();
    scene.database.resume_all();
    scene.wait_until_settled();
    mix.assert_arrived();
    assert_eq!(scene.worker_pid(), pid, "the worker has ended");
    let ledger = scene.clients.ledger.lock().unwrap();
    let requests = scene.receiver.requests();
    let arrived: HashSet<Uuid> = requests.iter().map(Request::event_id).collect();
    let lost = ledger.committed.difference(&arrived).count();
    assert_eq!(lost, 0, "of {} committed events", ledger.committed.len());
    let repeated = requests.len() - arrived.len();
    let refused = refused.load(Ordering::SeqCst);
    assert_eq!(repeated, refused, "repeated, and asked for again");
    samples
}

/// The measures that still grow at the end: the mean of the last third is beyond that of the third before it.
pub fn growing(samples: &[Sample]) -> Vec<String> {
    let third = samples.len() / 3;
    let mean = |part: &[Sample], measure: usize| {
        let sum: f64 = part.iter().map(|sample| sample.values[measure]).sum();
        sum / part.len().max(1) as f64
    };
    let (before, last) = (&samples[third..2 * third], &samples[2 * third..]);
    (MEASURES.iter().enumerate())
        .filter_map(|(measure, name)| {
            let (before, last) = (mean(before, measure), mean(last, measure));
            // A table grows by whole steps, and so does an allocator.
            let slack = if name.ends_with("kB") { 4096.0 } else { 5.0 };
            (last > before * 1.1 + slack).then(|| format!("{name}: {before:.0}, then {last:.0}"))
        })
        .collect()
}

fn operate(scene: &mut Scene) {
    let endpoint = format!("n{}", scene.random.below(3));
    let call = match scene.random.below(4) {
        0 => format!("SELECT webhook_pause('{endpoint}')"),
        1 => format!("SELECT webhook_rotate_secret('{endpoint}', overlap => '1 s')"),
        _ => format!("SELECT webhook_resume('{endpoint}')"),
    };
    scene.database.execute(&call);
}

fn xid(scene: &Scene) -> f64 {
    (scene.database).query_one_value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8")
}

/// The size of our tables with this name, with their indexes and TOAST tables.
fn size(scene: &Scene, name: &str) -> f64 {
    (scene.database).query_one_value(&format!(
        "SELECT sum(pg_total_relation_size(oid))::float8 / 1024 FROM pg_class
         WHERE relnamespace = 'webhook'::regnamespace AND relkind = 'r' AND relname {name}"
    ))
}
