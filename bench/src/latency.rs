//! How long from a commit to its receipt on an idle server, by wake-ups alone: nothing is polled here.

use std::time::{Duration, Instant};

use serde_json::json;
use webhook_e2e::database::emit;
use webhook_e2e::{Cluster, Receiver};

use crate::measure::percentile;
use crate::options::Options;
use crate::report::{Figure, progress};

const EVENTS: usize = 500;
const WANTED_MS: f64 = 1.5;

pub fn run(_: &Options) -> Vec<Figure> {
    let cluster = (Cluster::builder().purpose("bench"))
        .setting("webhook.poll_interval = '1h'")
        .start();
    let database = cluster.database("latency");
    let receiver = Receiver::start();
    database.add_endpoint("receiver", &receiver.url("/"));
    let mut client = database.connect();

    progress(&format!("latency: {EVENTS} events, one at a time"));
    let mut from_statement = Vec::with_capacity(EVENTS);
    let mut from_commit = Vec::with_capacity(EVENTS);
    for number in 1..=EVENTS {
        let begun = Instant::now();
        let event = emit(&mut client, "bench.latency", json!({ "number": number }));
        let committed = Instant::now();
        let received = receiver.wait_for_requests(number).remove(number - 1);
        from_statement.push(received.arrived - begun);
        from_commit.push(received.arrived.saturating_duration_since(committed));
        // The next one finds the server idle again.
        database.wait_for_status(event, "SENT");
    }
    let commit_p50 = percentile(&mut from_commit, 50);
    vec![
        Figure::new(
            "commit to receipt, idle server",
            percentiles(&mut from_commit),
        )
        .wanted(
            format!("p50 at most {WANTED_MS} ms"),
            commit_p50 <= WANTED_MS,
        ),
        Figure::new(
            "statement to receipt, idle server",
            percentiles(&mut from_statement),
        ),
    ]
}

fn percentiles(durations: &mut [Duration]) -> String {
    let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(durations, percent));
    format!("p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms")
}
