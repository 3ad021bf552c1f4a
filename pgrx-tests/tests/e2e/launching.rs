//! The launcher starts what is needed, however little room there is and whatever the clock says.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use webhook_e2e::{Cluster, Receiver, worker};

/// The server's own launcher of logical replication, and ours.
const LAUNCHERS: usize = 2;

#[test]
fn a_server_without_room_for_the_launcher_says_so() {
    let cluster = Cluster::builder()
        .setting("max_worker_processes = 1")
        .start();
    let database = cluster.database("no_launcher");
    let status: String =
        database.query_one_value("SELECT concat_ws(': ', state, reason) FROM webhook_status()");
    assert_eq!(
        status,
        "no worker: max_worker_processes = 1 leaves no room for the launcher of webhook workers; \
         raise it in postgresql.conf and restart the server"
    );
    assert!(cluster.log().contains("HINT:  Raise max_worker_processes"));
}

#[test]
fn databases_are_examined_one_after_the_other() {
    let mut cluster = Cluster::builder()
        .setting(&format!("max_worker_processes = {}", LAUNCHERS + 4))
        .start();
    let receiver = Receiver::start();
    let served = cluster.database("served");
    served.add_endpoint("orders", &receiver.url("/orders"));
    let mut others: Vec<_> = (0..16).map(|_| cluster.plain_database("plain")).collect();
    let last = others.pop().unwrap();
    last.create_extension();
    worker::pid(&last);

    cluster.restart();
    worker::pid(&last);
    let event = served.emit("order.created", json!({}));
    served.wait_for_status(event, "SENT");
    let log = cluster.log();
    assert!(!log.contains("no background worker is free"), "{log}");
}

#[test]
fn a_clock_that_is_set_back_delays_no_worker() {
    let clock = Clock::new();
    let cluster = Cluster::builder()
        .setting(&format!("max_worker_processes = {}", LAUNCHERS + 1))
        .variable("LD_PRELOAD", FAKETIME)
        .variable("FAKETIME_TIMESTAMP_FILE", &clock.0.to_string_lossy())
        .variable("FAKETIME_NO_CACHE", "1")
        .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .start();
    let served = cluster.database("served");
    worker::pid(&served);
    let waiting = cluster.database("waiting");
    waiting.wait_until(
        "SELECT state = 'no worker' AND reason LIKE '%max_worker_processes%' FROM webhook_status()",
    );

    let before: String = waiting.query_one_value("SELECT clock_timestamp()::text");
    clock.set("-1h");
    waiting.wait_until(&format!(
        "SELECT clock_timestamp() < timestamptz '{before}' - interval '50 min'"
    ));
    drop(served);
    worker::pid(&waiting);
}

/// Of the Debian package faketime.
const FAKETIME: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// The wall clock of a server, which reads it anew from a file each time.
struct Clock(PathBuf);

impl Clock {
    fn new() -> Clock {
        let name = format!("webhook-clock-{}", std::process::id());
        let clock = Clock(std::env::temp_dir().join(name));
        clock.set("+0");
        clock
    }

    fn set(&self, offset: &str) {
        fs::write(&self.0, offset).unwrap();
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
