//! The cost of a database that has the extension, an endpoint and nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use webhook_e2e::{Cluster, Receiver, worker};

use crate::measure::{cpu, sleeps_and_threads, wal_and_xids};
use crate::options::Options;
use crate::report::{Figure, progress};

const WANTED_THREADS: usize = 3;

pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = (Cluster::builder().purpose("bench"))
        // The transactions of autovacuum are not ours.
        .setting("autovacuum = off")
        .start();
    let database = cluster.plain_database("idle");
    database.execute("CREATE EXTENSION webhook");
    let receiver = Receiver::start();
    database.execute(&format!(
        "SELECT webhook_set_endpoint('receiver', '{}')",
        receiver.url("/")
    ));
    let event = database.emit("bench.idle", serde_json::json!({}));
    database.wait_for_status(event, "SENT");
    let worker = worker::pid(&database);

    // The server gets time to come to rest, and is then measured for as many minutes as it takes.
    thread::sleep(options.flow);
    progress("idle: at rest for a while");
    let mut client = database.connect();
    let time = 4 * options.flow;
    let (begun, cpu_before) = (Instant::now(), cpu(worker));
    let (sleeps_before, _) = sleeps_and_threads(worker);
    let (wal_before, xids_before) = wal_and_xids(&mut client);
    thread::sleep(time);
    let (wal, xids) = wal_and_xids(&mut client);
    let (sleeps, threads) = sleeps_and_threads(worker);
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    let a_minute = |count: f64| count / minutes;
    let xids = a_minute((xids - xids_before) as f64);
    let cpu = a_minute((cpu(worker) - cpu_before).as_secs_f64() * 1e3);
    let measured = Duration::from_secs_f64(minutes * 60.0).as_secs();
    vec![
        Figure::new("idle database: XIDs a minute", format!("{xids:.0}")).wanted("0", xids < 0.5),
        Figure::new("idle database: threads of the worker", threads.to_string()).wanted(
            format!("at most {WANTED_THREADS}"),
            threads <= WANTED_THREADS,
        ),
        Figure::new(
            format!("idle database: wake-ups of the worker, WAL, CPU, over {measured} s"),
            format!(
                "{:.0}, {:.0} bytes, {cpu:.0} ms a minute",
                a_minute((sleeps.saturating_sub(sleeps_before)) as f64),
                a_minute((wal - wal_before) as f64)
            ),
        ),
    ]
}
