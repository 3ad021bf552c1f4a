//! A backlog that piles up while the endpoints are paused, and then drains.

use std::thread;
use std::time::{Duration, Instant};

use webhook_e2e::{Database, wait};

use crate::measure::median;
use crate::options::Options;
use crate::report::{number, progress};
use crate::sink::Sink;

/// The size of a body on the wire: that of a peer, and ours with its envelope.
pub const BODY_BYTES: usize = 500;
/// Bytes of the envelope, the number and the keys.
const AROUND_FILLER: usize = 142;
const POLL: Duration = Duration::from_millis(5);

/// Endpoints as installed, one for each URL; event `bench.N` is for endpoint N.
pub fn add_endpoints(database: &Database, urls: &[String]) {
    for (number, url) in urls.iter().enumerate() {
        database.execute(&format!(
            "SELECT webhook_set_endpoint('bench {number}', '{url}', ARRAY['bench.{number}'])"
        ));
    }
}

/// Commits events that nobody sends yet, in turns for each of the endpoints.
pub fn pile_up(database: &Database, events: u32, endpoints: usize) {
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name LIKE 'bench %'");
    let filler = "x".repeat(BODY_BYTES - AROUND_FILLER);
    database.execute(&format!(
        "SELECT count(webhook_emit('bench.' || n % {endpoints},
                                   jsonb_build_object('number', n, 'filler', '{filler}')))
         FROM generate_series(1, {events}) n"
    ));
}

pub fn resume(database: &Database) {
    database.execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name LIKE 'bench %'");
}

/// Waits until the sink has this many more requests than before, or the limit; returns how many it has.
pub fn wait_for_requests(
    sink: &Sink,
    before: u64,
    events: u32,
    begun: Instant,
    limit: Duration,
) -> u64 {
    loop {
        let seen = sink.counts().requests - before;
        if seen >= u64::from(events) || begun.elapsed() >= limit {
            return seen;
        }
        thread::sleep(POLL);
    }
}

/// Piles up, drains, and returns how many requests a second the sink saw. All deliveries are settled when it returns,
/// so the next backlog begins with an empty queue.
pub fn rate(database: &Database, sink: &Sink, events: u32, limit: Duration) -> f64 {
    pile_up(database, events, 1);
    let before = sink.counts().requests;
    let begun = Instant::now();
    resume(database);
    let received = wait_for_requests(sink, before, events, begun, limit);
    let rate = received as f64 / begun.elapsed().as_secs_f64();
    let mut client = database.connect();
    wait::until_within(limit.max(wait::DEADLINE), "all to be settled", || {
        thread::sleep(20 * POLL);
        let sql = "SELECT count(*)
                   FROM webhook.delivery_queue q JOIN webhook.endpoint e ON e.id = q.endpoint_id
                   WHERE e.name LIKE 'bench %' AND q.next_attempt_at < now() + interval '1 hour'";
        match client.query_one(sql, &[]).map(|row| row.get::<_, i64>(0)) {
            Ok(0) => Ok(()),
            left => Err(left),
        }
    });
    rate
}

/// The medians of two databases that drain in turns, after one drain each that fills caches.
pub fn rates_in_turns(
    section: &str,
    databases: &[Database; 2],
    sink: &Sink,
    rounds: usize,
    options: &Options,
) -> [f64; 2] {
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (database, rates) in databases.iter().zip(&mut rates) {
            let rate = rate(database, sink, options.events, options.limit);
            if round > 0 {
                let (name, rate) = (database.name(), number(rate));
                progress(&format!("{section}: round {round}: {name}: {rate}/s"));
            }
            rates.extend((round > 0).then_some(rate));
        }
    }
    rates.map(median)
}
