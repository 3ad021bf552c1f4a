//! A relay that has nothing to send costs next to nothing, also after a burst.

use std::fs;
use std::time::{Duration, Instant};

use libc::c_int;
use webhook_e2e::{Cluster, Database, Receiver, Relay, wait, worker};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

const MOST_MEMORY: u64 = 20 << 20;
const ENDPOINTS: usize = 10;

/// The memory of the process, its program included.
fn memory(pid: c_int) -> u64 {
    let pages = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages = pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    4096 * pages.expect("the kernel counts pages")
}

/// The time of all its threads.
fn processor_time(pid: c_int) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let nanoseconds = threads.map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ')
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0)
    });
    Duration::from_nanos(nanoseconds.sum())
}

fn start(cluster: &Cluster, database: &Database) -> Relay {
    let connection = cluster.address(cluster.port(), database.name());
    Relay::start(PROGRAM, &connection, &[])
}

fn path(endpoint: usize) -> String {
    format!("/{endpoint}")
}

fn emit(database: &Database, events: usize, bytes: usize) {
    database.execute(&format!(
        "SELECT webhook_emit('order.created', jsonb_build_object('x', repeat('x', {bytes}))) FROM generate_series(1, {events})"
    ));
}

#[test]
fn an_idle_relay_takes_less_than_20_megabytes_and_a_hundredth_of_a_processor_after_a_burst() {
    let cluster = Cluster::relayed();
    let database = cluster.database("burst");
    let receiver = Receiver::start();
    for endpoint in 0..ENDPOINTS {
        database.add_endpoint(&format!("n{endpoint}"), &receiver.url(&path(endpoint)));
    }
    let relay = start(cluster, &database);
    database.wait_until("SELECT count(*) = 1 FROM webhook.share");
    let stand_by = start(cluster, &database);
    // Their windows grow, so that there is much in flight afterwards.
    emit(&database, 300, 1);
    receiver.wait_for_requests(ENDPOINTS * 300);
    (0..ENDPOINTS).for_each(|endpoint| receiver.hold(&path(endpoint)));
    emit(&database, 200, 30_000);
    receiver.wait_for_requests(ENDPOINTS * 300 + 500);
    let busy = memory(relay.pid());
    assert!(busy > MOST_MEMORY, "{busy}");
    (0..ENDPOINTS).for_each(|endpoint| receiver.release(&path(endpoint)));
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    // Connections to receivers rest for a while.
    let aftermath = Duration::from_secs(90);
    wait::until_within(aftermath, "the memory to be given back", || {
        match memory(relay.pid()) {
            now if now < MOST_MEMORY => Ok(()),
            now => Err((now, worker::private_memory(relay.pid()))),
        }
    });

    // In that time one looks at its settings, and the other many times at its shares.
    let while_idle = Duration::from_secs(6);
    let relays = [&relay, &stand_by];
    let worked = || relays.map(|relay| processor_time(relay.pid()));
    let (begun, before) = (Instant::now(), worked());
    wait::until_true("some time", || begun.elapsed() >= while_idle);
    let (took, after) = (begun.elapsed(), worked());
    for (place, relay) in relays.iter().enumerate() {
        let worked = after[place] - before[place];
        assert!(worked < took / 100, "{worked:?} of {took:?}");
        assert!(memory(relay.pid()) < MOST_MEMORY);
    }
}
