//! The cost of a forgotten transaction: it holds a snapshot, so vacuum removes no version that was replaced since.

use std::time::Instant;

use webhook_e2e::Cluster;

use crate::drain;
use crate::measure::median;
use crate::options::Options;
use crate::report::{Figure, number, progress};
use crate::sink::Sink;

const WANTED: f64 = 0.95;

/// Two databases in turns: a snapshot is in the way of vacuum only in its own. The rounds of the last
/// third of the time count.
pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = (Cluster::builder().purpose("bench"))
        .setting("max_wal_size = '8GB'")
        .setting("autovacuum_naptime = '5s'")
        .start();
    let databases = ["free", "pinned"].map(|name| cluster.plain_database(name));
    let sink = Sink::start(0, 1);
    for database in &databases {
        database.execute("CREATE EXTENSION webhook");
        drain::add_endpoints(database, &sink.urls());
        drain::rate(database, &sink, options.events, options.limit); // fills caches
    }
    let mut forgotten = databases[1].connect();
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM webhook.endpoint";
    forgotten
        .batch_execute(snapshot)
        .expect("the server is well");

    let begun = Instant::now();
    let mut rounds = Vec::new();
    while rounds.len() < 3 || begun.elapsed() < options.pinned {
        let at = begun.elapsed();
        let [free, pinned] = (databases.each_ref())
            .map(|database| drain::rate(database, &sink, options.events, options.limit));
        progress(&format!(
            "pinned: after {:.0} s {}/s without, {}/s with a pinned xmin",
            at.as_secs_f64(),
            number(free),
            number(pinned)
        ));
        rounds.push((at, free, pinned));
    }
    let seconds = begun.elapsed().as_secs();
    let last = &rounds[rounds.len() * 2 / 3..];
    let free = median(last.iter().map(|(_, free, _)| *free));
    let pinned = median(last.iter().map(|(_, _, pinned)| *pinned));
    let ratio = pinned / free;
    vec![
        Figure::new(
            format!("rate with xmin pinned for {seconds} s"),
            format!("{}/s of {}/s: {ratio:.2}", number(pinned), number(free)),
        )
        .wanted(format!("at least {WANTED}"), ratio >= WANTED),
    ]
}
