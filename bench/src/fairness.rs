//! A healthy endpoint beside endpoints that take requests and never answer, each with a backlog.

use webhook_e2e::{Cluster, Receiver};

use crate::flow::emit_steadily;
use crate::measure::percentile;
use crate::options::Options;
use crate::report::{Figure, progress};
use crate::sink::Sink;

const EVENTS_PER_SECOND: u32 = 50;
const WANTED_MS: f64 = 50.0;
/// Endpoints that hang, and how many deliveries are queued for each.
const HUNG: [(u32, u32); 4] = [(0, 0), (4, 10_000), (100, 100), (1_000, 10)];

pub fn run(options: &Options) -> Vec<Figure> {
    HUNG.map(|(endpoints, queued)| beside(options, endpoints, queued))
        .into()
}

fn beside(options: &Options, endpoints: u32, queued: u32) -> Figure {
    let cluster = Cluster::builder().purpose("bench").start();
    let database = cluster.plain_database("fairness");
    database.execute("CREATE EXTENSION webhook");
    let (sink, receiver) = (Sink::start(0, 1), Receiver::start());
    database.execute(&format!(
        "SELECT webhook_set_endpoint('healthy', '{}', ARRAY['healthy']);
         SELECT webhook_set_endpoint('hung ' || n, '{}', ARRAY['hung.' || n])
         FROM generate_series(1, {endpoints}) n;
         UPDATE webhook.endpoint SET paused_at = now() WHERE name LIKE 'hung %';
         SELECT count(webhook_emit('hung.' || n))
         FROM generate_series(1, {endpoints}) n, generate_series(1, {queued})",
        receiver.url("/"),
        sink.hanging(),
    ));
    // It was healthy before the others began to hang.
    let second = std::time::Duration::from_secs(1);
    emit_steadily(&database, &receiver, "healthy", EVENTS_PER_SECOND, second);
    database.execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name LIKE 'hung %'");
    let mut flow = emit_steadily(
        &database,
        &receiver,
        "healthy",
        EVENTS_PER_SECOND,
        options.flow,
    );

    let (arrived, emitted) = (flow.latencies.len(), flow.emitted);
    let p50 = percentile(&mut flow.latencies, 50);
    let p99 = percentile(&mut flow.latencies, 99);
    let measure =
        format!("healthy endpoint at {EVENTS_PER_SECOND} events/s beside {endpoints} that hang");
    let figure = match arrived {
        0 => format!("none of {emitted} arrived"),
        _ => format!("p50 {p50:.1} ms, p99 {p99:.1} ms, {arrived} of {emitted} arrived"),
    };
    progress(&format!(
        "{measure}: {figure}; {} requests hang",
        sink.counts().hung
    ));
    let figure = Figure::new(measure, figure);
    match endpoints {
        0 => figure,
        _ => figure.wanted(
            format!("p99 under {WANTED_MS} ms, all arrive"),
            p99 < WANTED_MS && arrived == emitted,
        ),
    }
}
