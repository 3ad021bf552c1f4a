//! A relay that is cut off, frozen or killed: it stops by its own clock, and another sender is in its place soon.

use std::collections::HashMap;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver, Relay, TcpProxy, wait};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

/// A sender is replaced within this time of its session's end.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);

/// Accepts connections, and says no word to clients that want to speak TLS.
struct Silent {
    port: u16,
    came: Arc<AtomicUsize>,
    /// When the last of them left.
    left: Arc<Mutex<Vec<Instant>>>,
}

impl Silent {
    fn start() -> Silent {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (came, left) = (Arc::<AtomicUsize>::default(), Arc::default());
        let silent = Silent {
            port,
            came: Arc::clone(&came),
            left: Arc::clone(&left),
        };
        // Ends with the test process.
        thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                came.fetch_add(1, Ordering::SeqCst);
                let left = Arc::clone(&left);
                thread::spawn(move || {
                    let mut buffer = [0; 1000];
                    while matches!(connection.read(&mut buffer), Ok(1..)) {}
                    left.lock().unwrap().push(Instant::now());
                });
            }
        });
        silent
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}/", self.port)
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    fn left(&self) -> Vec<Instant> {
        self.left.lock().unwrap().clone()
    }
}

fn start(cluster: &Cluster, database: &Database, port: u16) -> Relay {
    Relay::start(PROGRAM, &cluster.address(port, database.name()), &[])
}

/// The sender that has the only share, and its backend.
fn holder(database: &Database) -> (i32, i32) {
    let holder = "SELECT array[s.id, s.pid] FROM webhook.share h JOIN webhook.sender s ON s.id = h.sender_id";
    let holder: Vec<i32> = database.query_one_value(holder);
    (holder[0], holder[1])
}

fn wait_for_session_end(database: &Database, pid: i32) {
    database.wait_until(&format!(
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"
    ));
}

/// The first relay has the share, and the second stands by.
fn pair(cluster: &Cluster, database: &Database, port: u16) -> (Relay, Relay) {
    let first = start(cluster, database, port);
    database.wait_until("SELECT count(*) = 1 FROM webhook.share");
    let second = start(cluster, database, cluster.port());
    database.wait_until("SELECT count(*) = 2 FROM webhook.sender");
    (first, second)
}

#[test]
fn a_relay_that_hears_nothing_takes_back_all_that_has_not_gone_out() {
    let cluster = Cluster::relayed();
    let database = cluster.database("silent");
    let proxy = TcpProxy::start(cluster);
    let silent = Silent::start();
    database.add_guarding_policy("unhurried", 5, "connect_timeout = '60 s'");
    database.add_endpoint_with("silent", &silent.url(), "policy => 'unhurried'");
    let relay = start(cluster, &database, proxy.port());
    let event = database.emit("order.created", json!({}));
    wait::until_true("a connection", || silent.came() > 0);
    let claimed = "SELECT clock_timestamp() > claimed_at + webhook.longest_silence() * 2 FROM webhook.delivery";
    database.wait_until(claimed);
    assert!(
        silent.left().is_empty(),
        "while the database answers it waits"
    );

    let cut_off = Instant::now();
    proxy.swallow();
    let longest = "SELECT extract(epoch FROM webhook.longest_silence())::float8";
    let longest = Duration::from_secs_f64(database.query_one_value(longest));
    wait::until_true("the request to be taken back", || silent.left().len() == 1);
    let lasted = silent.left()[0] - cut_off;
    assert!(lasted < longest, "{lasted:?}: {}", relay.log());
    relay.wait_for_log("1 requests that had not gone out are given back");

    // It is back when it has given the connection up, and goes on.
    proxy.stop_swallowing();
    proxy.close_at_server();
    wait::until_within(Duration::from_secs(60), "another request", || {
        let came = silent.came();
        (came > 1).then_some(()).ok_or(came)
    });
    assert_eq!(database.delivery_status(event).as_deref(), Some("SENDING"));
    let attempts = "SELECT attempts FROM webhook.delivery";
    assert_eq!(
        database.query_one_value::<i32>(attempts),
        1,
        "{}",
        relay.log()
    );
}

#[test]
fn a_stand_by_takes_over_from_a_relay_that_is_cut_off_and_repeats_what_was_in_flight_alone() {
    let cluster = Cluster::relayed();
    let database = cluster.database("cut_off");
    let proxy = TcpProxy::start(cluster);
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let (first, second) = pair(cluster, &database, proxy.port());
    let mut events: Vec<Uuid> = Vec::new();
    let mut emit = |count: usize| {
        events.extend((0..count).map(|_| database.emit("order.created", json!({}))));
    };
    emit(20);
    database.wait_until("SELECT count(*) = 20 FROM webhook.delivery WHERE status = 'SENT'");
    receiver.hold("/orders");
    emit(20);
    let in_flight = "SELECT count(*) FROM webhook.delivery WHERE status = 'SENDING'";
    receiver.wait_for_requests(21);
    let (sender, pid) = holder(&database);

    proxy.swallow();
    emit(20);
    proxy.close_at_server();
    wait_for_session_end(&database, pid);
    let most: i64 = database.query_one_value(in_flight);
    database.wait_until(&format!("SELECT sender_id <> {sender} FROM webhook.share"));
    receiver.release("/orders");
    database.wait_until("SELECT count(*) = 60 FROM webhook.delivery WHERE status = 'SENT'");

    let mut arrived: HashMap<Uuid, i64> = HashMap::new();
    for request in receiver.requests() {
        *arrived.entry(request.event_id()).or_default() += 1;
    }
    assert!(events.iter().all(|event| arrived.contains_key(event)));
    let repeated: i64 = arrived.values().map(|times| times - 1).sum();
    assert!(
        repeated <= most,
        "{repeated} of {most}: {}\n{}",
        first.log(),
        second.log()
    );
    assert!(arrived.values().all(|times| *times <= 2));
}

#[test]
fn a_relay_that_is_killed_is_replaced_within_five_seconds() {
    replaced("killed", |relay, _, _| relay.signal(libc::SIGKILL));
}

#[test]
fn a_frozen_relay_whose_session_an_administrator_ends_is_replaced_within_five_seconds_and_stands_by_when_it_is_back()
 {
    let (database, receiver, frozen, _second) = replaced("frozen", |relay, database, pid| {
        relay.signal(libc::SIGSTOP);
        database.execute(&format!("SELECT pg_terminate_backend({pid})"));
    });
    let (sender, _) = holder(&database);
    frozen.signal(libc::SIGCONT);
    database
        .wait_until("SELECT count(*) = 2 FROM webhook.sender s WHERE webhook.has_session(s.id)");
    let last = database.emit("order.created", json!({}));
    database.wait_for_status(last, "SENT");
    assert_eq!(holder(&database).0, sender);
    assert_eq!(receiver.request_count(), 5, "{}", frozen.log());
}

/// With the relay that was replaced, and the one that has replaced it.
fn replaced(
    name: &str,
    end: impl FnOnce(&Relay, &Database, i32),
) -> (Database, Receiver, Relay, Relay) {
    let cluster = Cluster::relayed();
    let database = cluster.database(name);
    let receiver = Receiver::start();
    receiver.hold_after("/orders", 1);
    database.add_endpoint("orders", &receiver.url("/orders"));
    let (first, second) = pair(cluster, &database, cluster.port());
    let sent = database.emit("order.created", json!({}));
    database.wait_for_status(sent, "SENT");
    // The claim of a request in flight is recovered too.
    let in_flight = database.emit("order.created", json!({}));
    receiver.wait_for_event(in_flight);
    let (_, pid) = holder(&database);
    end(&first, &database, pid);
    wait_for_session_end(&database, pid);
    let ended = Instant::now();
    let next = database.emit("order.created", json!({}));
    receiver.wait_for_event(next);
    wait::until_true("the request to be repeated", || {
        let requests = receiver.requests();
        let repeated = requests.iter().filter(|r| r.event_id() == in_flight);
        repeated.count() == 2
    });
    let took = ended.elapsed();
    assert!(took < REPLACED_WITHIN, "{took:?}: {}", second.log());
    receiver.release("/orders");
    database.wait_for_status(next, "SENT");
    database.wait_for_status(in_flight, "SENT");
    (database, receiver, first, second)
}
