//! A database that sends nothing costs next to nothing.

use std::time::{Duration, Instant};

use libc::c_int;
use postgres::Client;
use serde_json::json;
use webhook_e2e::{Cluster, Receiver, wait, worker};

const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Longer than the five seconds after which the worker keeps house.
const WAKE_UPS: u64 = 25;

#[test]
fn a_worker_at_rest_takes_no_xid_writes_no_wal_and_wakes_once_each_poll_interval() {
    // The server itself writes nothing meanwhile.
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '300 ms'")
        .setting("autovacuum = off")
        .setting("wal_level = minimal")
        .setting("max_wal_senders = 0")
        .start();
    let (database, receiver) = (cluster.database("idle"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let sent = database.emit("order.created", json!({}));
    database.wait_for_status(sent, "SENT");
    database
        .execute("SELECT webhook_emit('order.created', deliver_at => now() + interval '1 day')");
    let worker = worker::pid(&database);
    let launcher: c_int = database.query_one_value(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'webhook launcher'",
    );
    for pid in [worker, launcher] {
        database.wait_until(&format!(
            "SELECT xact_start IS NULL AND backend_xmin IS NULL AND backend_xid IS NULL
             FROM pg_stat_activity WHERE pid = {pid}"
        ));
    }
    // Figures that follow the last commit are written within seconds; from then on nothing is.
    let mut session = database.connect();
    let rest = wait::until("a time in which nothing is written", || {
        let before = written(&mut session);
        let rest = Rest::of(worker, launcher);
        let after = written(&mut session);
        (before == after).then_some(rest).ok_or((before, after))
    });
    // The first may have been about to come.
    assert!(
        rest.took >= POLL_INTERVAL * (WAKE_UPS as u32 - 1),
        "{rest:?}"
    );
    assert!(rest.sleeps_of_others <= 1, "{rest:?}");
    assert!(rest.sleeps_of_launcher <= 1, "{rest:?}");
}

/// The work while the worker wakes so many times.
#[derive(Debug)]
struct Rest {
    took: Duration,
    sleeps_of_others: u64,
    sleeps_of_launcher: u64,
}

impl Rest {
    fn of(worker: c_int, launcher: c_int) -> Rest {
        let begun = Instant::now();
        let others = worker::sleeps_of_other_threads(worker);
        let launchers = worker::sleeps(launcher);
        let last = worker::sleeps(worker) + WAKE_UPS;
        wait::until("the worker to wake", || match worker::sleeps(worker) {
            seen if seen >= last => Ok(()),
            seen => Err(last - seen),
        });
        Rest {
            took: begun.elapsed(),
            sleeps_of_others: worker::sleeps_of_other_threads(worker) - others,
            sleeps_of_launcher: worker::sleeps(launcher) - launchers,
        }
    }
}

/// However many requests were in flight: one that touches the database, and one that sends.
#[test]
fn an_idle_worker_has_two_threads() {
    let cluster = Cluster::start();
    let (database, receiver) = (cluster.database("idle"), Receiver::start());
    let url = receiver.url("/orders").replace("127.0.0.1", "localhost");
    database.add_endpoint("orders", &url);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 100)");
    database.wait_until("SELECT count(*) = 100 FROM webhook.delivery WHERE status = 'SENT'");
    // The thread that looked the name up goes a few seconds later.
    let pid = worker::pid(&database);
    wait::until("two threads", || match worker::threads(pid) {
        2 => Ok(()),
        others => Err(others),
    });
}

/// The next XID, and how far WAL is written.
fn written(session: &mut Client) -> (String, String) {
    let sql =
        "SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_current_wal_insert_lsn()::text";
    let row = session.query_one(sql, &[]).unwrap();
    (row.get(0), row.get(1))
}
