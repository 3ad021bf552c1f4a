//! How long from a commit to its receipt on an idle server, by wake-ups alone: nothing is polled here.

use std::time::{Duration, Instant};

use serde_json::json;
use webhook_e2e::database::emit;
use webhook_e2e::{Cluster, Receiver};

const EVENTS: usize = 500;

fn main() {
    let cluster = (Cluster::builder().purpose("bench"))
        .setting("webhook.poll_interval = '1h'")
        .start();
    let database = cluster.database("latency");
    let receiver = Receiver::start();
    database.add_endpoint("receiver", &receiver.url("/"));
    let mut client = database.connect();

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
    println!("{EVENTS} events, one at a time, to a receiver on loopback");
    report("statement to receipt", &mut from_statement);
    report("commit to receipt", &mut from_commit);
}

fn report(what: &str, durations: &mut [Duration]) {
    durations.sort();
    let percentile = |p: usize| durations[(durations.len() - 1) * p / 100].as_secs_f64() * 1e3;
    println!(
        "{what}: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms",
        percentile(50),
        percentile(90),
        percentile(99)
    );
}
