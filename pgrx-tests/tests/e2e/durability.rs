//! Nothing is sent that a crash could undo.

use serde_json::json;
use webhook_e2e::{Cluster, Database, Receiver, worker};

/// Otherwise the server writes commits to disk after 200 ms, whether somebody waits for them or not.
const SELDOM_WRITTEN: &str = "wal_writer_delay = '10s'";

#[test]
fn what_was_received_survives_a_crash_where_the_server_commits_asynchronously() {
    let cluster = Cluster::builder()
        .setting(SELDOM_WRITTEN)
        .setting("synchronous_commit = off")
        .start();
    let database = cluster.database("server");
    crash_after_receipt(cluster, database);
}

#[test]
fn what_was_received_survives_a_crash_where_the_database_commits_asynchronously() {
    let cluster = Cluster::builder().setting(SELDOM_WRITTEN).start();
    let database = cluster.database("database");
    let name = database.name();
    database.execute(&format!(
        "ALTER DATABASE {name} SET synchronous_commit = off"
    ));
    let without_it = worker::pid(&database);
    worker::terminate(&database, without_it);
    worker::successor(&database, without_it);
    crash_after_receipt(cluster, database);
}

#[test]
fn what_was_received_survives_a_crash_after_a_reload_to_asynchronous_commits() {
    let mut cluster = Cluster::builder().setting(SELDOM_WRITTEN).start();
    let database = cluster.database("reloaded");
    worker::pid(&database);
    cluster.configure("synchronous_commit = off\nwebhook.enabled = off");
    cluster.reload();
    // Then the worker has seen the other setting too.
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    database.execute("CHECKPOINT");
    cluster.configure("webhook.enabled = on");
    cluster.reload();
    crash_after_receipt(cluster, database);
}

/// Declared in this order, the database is dropped before its cluster.
fn crash_after_receipt(mut cluster: Cluster, database: Database) {
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    for round in 1..=5 {
        database.execute("CHECKPOINT");
        let event = database.emit("order.created", json!({"round": round}));
        receiver.wait_for_event(event);
        cluster.kill_immediately();
        cluster.start_server();
        let exists: bool = database.query_one_value(&format!(
            "SELECT EXISTS (SELECT FROM webhook.event WHERE id = '{event}')"
        ));
        assert!(exists, "round {round}: received, and lost by the crash");
    }
}
