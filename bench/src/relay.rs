//! A relay beside the server's worker, both on this machine: rates, the cost of each delivery for the database, the
//! time from a commit to its receipt, and the cost of a relay that has nothing to do.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use webhook_e2e::database::emit;
use webhook_e2e::host::install_portable_by;
use webhook_e2e::relay::Relay;
use webhook_e2e::{Cluster, Database, Receiver};

use crate::drain;
use crate::measure::{cpu, median, percentile, server_cpu};
use crate::options::Options;
use crate::peer::program;
use crate::report::{Figure, number, progress};
use crate::sink::Sink;

const EVENTS: usize = 300;
const WANTED_RATE: f64 = 0.7;
const WANTED_CPU_US: f64 = 40.0;
const WANTED_LATENCY_MS: f64 = 10.0;
const WANTED_LATENCY_ALONE_MS: f64 = 80.0;
const WANTED_MB: f64 = 20.0;
const WANTED_CORE: f64 = 0.01;

pub fn run(options: &Options) -> Vec<Figure> {
    let server = |setting: &str| {
        let server = Cluster::builder().purpose("bench").setting(setting);
        server.setting("max_wal_size = '8GB'").start()
    };
    // In the second one the worker leaves delivery to relays.
    let clusters = [1000, 0].map(|most| server(&format!("webhook.max_in_flight = {most}")));
    let [served, relayed] = clusters.each_ref().map(|cluster| {
        let database = cluster.plain_database("relay");
        database.execute("CREATE EXTENSION webhook");
        database
    });
    let relay = start(&clusters[1], &relayed);

    let mut figures = rates(options, &clusters[1], [&served, &relayed]);
    figures.push(idle(options, &relay));
    figures.push(latency(&relayed, "rung by the worker", WANTED_LATENCY_MS));
    figures.push(latency_without_library());
    figures
}

/// Nobody rings: the relay looks again and again.
fn latency_without_library() -> Figure {
    let cluster = Cluster::builder()
        .purpose("bench")
        .without_preload()
        .start();
    let database = cluster.plain_database("portable");
    install_portable_by(&relay_program(), &cluster, &database);
    let _relay = start(&cluster, &database);
    latency(&database, "without the library", WANTED_LATENCY_ALONE_MS)
}

/// The role has the level `relay` and no other.
fn start(cluster: &Cluster, database: &Database) -> Relay {
    let name = database.name();
    database.execute(&format!(
        "CREATE ROLE relay_of_{name} LOGIN; SELECT webhook_grant('relay_of_{name}', 'relay')"
    ));
    let port = cluster.port();
    let connection = format!("host=127.0.0.1 port={port} user=relay_of_{name} dbname={name}");
    Relay::start(&relay_program(), &connection, &[])
}

fn relay_program() -> String {
    program("webhook-relay").to_string_lossy().into_owned()
}

fn rates(options: &Options, cluster: &Cluster, databases: [&Database; 2]) -> Vec<Figure> {
    let sink = Sink::start(0, 1);
    for database in databases {
        drain::add_endpoints(database, &sink.urls());
        drain::rate(database, &sink, options.events, options.limit); // fills caches
    }
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let served = drain::rate(databases[0], &sink, options.events, options.limit);
        drain::pile_up(databases[1], options.events, 1);
        let (before, begun, received) =
            (server_cpu(cluster), Instant::now(), sink.counts().requests);
        drain::resume(databases[1]);
        drain::wait_for_requests(&sink, received, options.events, begun, options.limit);
        let relayed = f64::from(options.events) / begun.elapsed().as_secs_f64();
        let is_settled = "SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)";
        databases[1].wait_until(is_settled);
        let used = server_cpu(cluster).saturating_sub(before).as_secs_f64();
        progress(&format!(
            "relay: {}/s by the worker, {}/s by a relay",
            number(served),
            number(relayed)
        ));
        rounds.push((served, relayed, used * 1e6 / f64::from(options.events)));
    }
    let served = median(rounds.iter().map(|round| round.0));
    let relayed = median(rounds.iter().map(|round| round.1));
    let cpu = median(rounds.iter().map(|round| round.2));
    let ratio = relayed / served;
    vec![
        Figure::new(
            "relay on this machine: rate, instant sink",
            format!(
                "{}/s of the worker's {}/s: {ratio:.2}",
                number(relayed),
                number(served)
            ),
        )
        .wanted(format!("at least {WANTED_RATE}"), ratio >= WANTED_RATE),
        Figure::new(
            "relay: CPU of the database per delivery",
            format!("{cpu:.0} us"),
        )
        .wanted(format!("at most {WANTED_CPU_US} us"), cpu <= WANTED_CPU_US),
    ]
}

fn idle(options: &Options, relay: &Relay) -> Figure {
    progress("relay: at rest for a while");
    thread::sleep(options.flow);
    let (begun, before) = (Instant::now(), cpu(relay.pid()));
    thread::sleep(options.flow);
    let used = cpu(relay.pid()).saturating_sub(before).as_secs_f64();
    let core = used / begun.elapsed().as_secs_f64();
    let megabytes = resident(relay.pid());
    Figure::new(
        "idle relay, after a burst: memory, CPU",
        format!("{megabytes:.1} MB, {:.2}% of a core", core * 1e2),
    )
    .wanted(
        format!("under {WANTED_MB} MB and {:.0}%", WANTED_CORE * 1e2),
        megabytes < WANTED_MB && core < WANTED_CORE,
    )
}

fn resident(pid: i32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let kilobytes = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = kilobytes.and_then(|text| text.trim().strip_suffix("kB"));
    kilobytes.map_or(f64::NAN, |text| {
        text.trim().parse().unwrap_or(f64::NAN) / 1e3
    })
}

fn latency(database: &Database, how: &str, wanted_ms: f64) -> Figure {
    progress(&format!("relay: {EVENTS} events, one at a time"));
    let receiver = Receiver::start();
    database.execute(&format!(
        "SELECT webhook_set_endpoint('latency', '{}', ARRAY['latency'])",
        receiver.url("/")
    ));
    let mut client = database.connect();
    let mut latencies: Vec<Duration> = (1..=EVENTS)
        .map(|number| {
            // At any time between two looks of a relay that nobody rings for, and not always right after one.
            thread::sleep(Duration::from_micros(number as u64 * 61_803 % 100_000));
            let event = emit(&mut client, "latency", json!({ "number": number }));
            let committed = Instant::now();
            let received = receiver.wait_for_requests(number).remove(number - 1);
            database.wait_for_status(event, "SENT");
            received.arrived.saturating_duration_since(committed)
        })
        .collect();
    let p50 = percentile(&mut latencies, 50);
    let p99 = percentile(&mut latencies, 99);
    Figure::new(
        format!("relay, {how}: commit to receipt"),
        format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
    )
    .wanted(format!("p50 at most {wanted_ms} ms"), p50 <= wanted_ms)
}
