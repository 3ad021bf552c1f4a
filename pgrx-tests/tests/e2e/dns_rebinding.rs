//! A name whose answers change leads to no address that is forbidden: neither between two lookups, nor between the
//! lookup and the connection, nor by a connection that is still open.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::names::Names;
use webhook_e2e::{Answer, Cluster, Database, RawReceiver, Receiver, Relay, wait};

/// The only address that the settings of these tests permit; it stands for a public one.
const PERMITTED: &str = "127.0.0.1";
/// Of this host too, and not permitted.
const FORBIDDEN: &str = "127.0.0.2";
const ONLY_PERMITTED: &str = "127.0.0.1/32";

/// An answer is not used any longer than this while lookups succeed.
const USABLE: Duration = Duration::from_secs(5 * 60);

/// A listener at the forbidden address, which nothing may dial.
struct Trap(TcpListener);

impl Trap {
    fn at(port: u16) -> Trap {
        let address: Ipv4Addr = FORBIDDEN.parse().unwrap();
        let listener = TcpListener::bind((address, port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Trap(listener)
    }

    fn was_dialled(&self) -> bool {
        self.0.accept().is_ok()
    }
}

struct Stage {
    database: Database,
    names: Names,
    receiver: Receiver,
    trap: Trap,
    _cluster: Cluster,
}

impl Stage {
    fn set() -> Stage {
        let names = Names::make();
        let cluster = Cluster::builder().setting(&format!(
            "webhook.allow_networks = '{ONLY_PERMITTED}'\nfsync = off"
        ));
        let cluster = names.of(cluster).start();
        let receiver = Receiver::start();
        Stage {
            database: cluster.database("rebound"),
            trap: Trap::at(receiver.port()),
            names,
            receiver,
            _cluster: cluster,
        }
    }

    /// An endpoint with the event type of its own name.
    #[track_caller]
    fn add_endpoint(&self, name: &str, host: &str) {
        let url = format!("http://{host}:{}/{name}", self.receiver.port());
        let options = format!("event_types => '{{{name}}}', policy => 'fast'");
        self.database.add_endpoint_with(name, &url, &options);
    }

    #[track_caller]
    fn assert_sent(&self, event_type: &str) {
        let event = self.database.emit(event_type, json!({}));
        self.database.wait_for_status(event, "SENT");
    }

    #[track_caller]
    fn assert_blocked(&self, event_type: &str, address: &str) {
        let event = self.database.emit(event_type, json!({}));
        assert_blocked(&self.database, event, address);
    }
}

#[track_caller]
fn assert_blocked(database: &Database, event: Uuid, address: &str) {
    database.wait_for_status(event, "FAILED");
    let last = "SELECT reason, last_error FROM webhook.delivery WHERE event_id = $1";
    let last = database.connect().query_one(last, &[&event]).unwrap();
    let (reason, error): (String, String) = (last.get(0), last.get(1));
    assert_eq!(reason, "blocked", "{error}");
    assert!(error.contains(address), "{error}");
}

/// Keeps its connections open, and answers every request on them.
fn keeping_connections() -> RawReceiver {
    RawReceiver::doing(|stream| {
        use std::io::{Read, Write};
        let mut buffer = [0; 65536];
        // Requests are small: each comes in one piece or few, and has been read when the head and the body are there.
        loop {
            let answered = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            let mut request = Vec::new();
            while answered.is_ok() && !is_whole(&request) {
                match stream.read(&mut buffer) {
                    Ok(length) if length > 0 => request.extend_from_slice(&buffer[..length]),
                    _ => return,
                }
            }
        }
    })
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

#[test]
fn a_name_that_moves_to_a_forbidden_address_is_blocked_and_may_come_back() {
    let stage = Stage::set();
    stage.names.resolve("moving.invalid", PERMITTED);
    stage.add_endpoint("first", "moving.invalid");
    stage.add_endpoint("second", "moving.invalid");
    assert_eq!(stage.names.lookups("moving.invalid"), 0, "to register it");
    stage.assert_sent("first");

    stage.names.resolve("moving.invalid", FORBIDDEN);
    stage.names.move_clock_to(USABLE);
    // The second endpoint has the authority of the first, and with it the connection that the first has left.
    stage.assert_blocked("first", FORBIDDEN);
    stage.assert_blocked("second", FORBIDDEN);
    assert_eq!(stage.receiver.request_count(), 1);

    stage.names.resolve("moving.invalid", PERMITTED);
    stage.names.move_clock_to(2 * USABLE);
    stage.assert_sent("first");
    stage.assert_sent("second");
    assert_eq!(stage.receiver.request_count(), 3);
    assert!(!stage.trap.was_dialled());
}

/// An answer is fresh for 30 s. A request after that still gets it, and has the name looked up again.
#[test]
fn a_name_that_moves_is_blocked_while_a_connection_to_its_old_address_is_open() {
    let stage = Stage::set();
    let keeping = keeping_connections();
    let authority = keeping.authority();
    let port: u16 = authority.split(':').nth(1).unwrap().parse().unwrap();
    let trap = Trap::at(port);
    stage.names.resolve("moving.invalid", PERMITTED);
    let url = format!("http://moving.invalid:{port}/");
    let options = "event_types => '{kept}', policy => 'fast'";
    stage.database.add_endpoint_with("kept", &url, options);
    stage.assert_sent("kept");
    stage.names.resolve("moving.invalid", FORBIDDEN);
    // Less than the time for which a connection rests, twice.
    for seconds in [20, 40] {
        stage.names.move_clock_to(Duration::from_secs(seconds));
        stage.assert_sent("kept");
    }
    wait::until_true("the second lookup", || {
        stage.names.lookups("moving.invalid") == 1
    });
    assert_eq!(keeping.connection_count(), 1, "the connection is kept");
    stage.assert_blocked("kept", FORBIDDEN);
    assert_eq!(keeping.connection_count(), 1);
    assert!(!trap.was_dialled());
}

#[test]
fn one_forbidden_address_among_the_answers_blocks_them_all() {
    let stage = Stage::set();
    let answers: [&[&str]; 6] = [
        &[PERMITTED, FORBIDDEN],
        &[FORBIDDEN, PERMITTED],
        &[PERMITTED, PERMITTED, PERMITTED, FORBIDDEN],
        &[PERMITTED, "::1"],
        &[PERMITTED, "::ffff:127.0.0.2"],
        &["64:ff9b::7f00:2", PERMITTED],
    ];
    for (number, answer) in answers.iter().enumerate() {
        let (name, host) = (format!("mixed_{number}"), format!("mixed{number}.invalid"));
        stage.names.answer(&host, &[answer]);
        stage.add_endpoint(&name, &host);
        let forbidden = answer.iter().find(|address| **address != PERMITTED);
        stage.assert_blocked(&name, forbidden.unwrap());
    }
    assert_eq!(stage.receiver.request_count(), 0);
    assert!(!stage.trap.was_dialled());
}

/// A sender that looked the name up to judge it, and again to connect, would have two answers.
#[test]
fn the_address_that_was_judged_is_the_one_that_is_dialled() {
    let stage = Stage::set();
    let (good, bad): (&[&str], &[&str]) = (&[PERMITTED], &[FORBIDDEN]);
    stage.names.answer("turns.invalid", &[good, bad]);
    stage.add_endpoint("turns", "turns.invalid");
    stage.assert_sent("turns");
    assert_eq!(stage.names.lookups("turns.invalid"), 1);

    // The first answer decides, and another lookup does not mend it.
    stage.names.answer("mends.invalid", &[bad, good]);
    stage.add_endpoint("mends", "mends.invalid");
    stage.assert_blocked("mends", FORBIDDEN);
    assert_eq!(stage.names.lookups("mends.invalid"), 1);

    assert_eq!(stage.receiver.request_count(), 1);
    assert!(!stage.trap.was_dialled());
}

#[test]
fn a_retry_is_judged_by_the_answer_of_its_own_time() {
    let stage = Stage::set();
    stage
        .receiver
        .respond("/retried", |_, _| Answer::status(503));
    stage.database.execute(
        "SELECT webhook_copy_policy('standard', 'hourly');
         UPDATE webhook.policy SET backoff = 'fixed', initial_delay = '1 h' WHERE name = 'hourly'",
    );
    stage.names.resolve("retried.invalid", PERMITTED);
    let url = format!("http://retried.invalid:{}/retried", stage.receiver.port());
    let options = "policy => 'hourly'";
    stage.database.add_endpoint_with("retried", &url, options);
    let event = stage.database.emit("order.created", json!({}));
    let retries = "SELECT attempts = 1 AND status = 'PENDING' FROM webhook.delivery";
    stage.database.wait_until(retries);

    stage.names.resolve("retried.invalid", FORBIDDEN);
    stage.names.move_clock_to(USABLE);
    let now = "UPDATE webhook.delivery SET next_attempt_at = now()";
    stage.database.execute(now);
    assert_blocked(&stage.database, event, FORBIDDEN);
    assert_eq!(stage.receiver.request_count(), 1);
    assert!(!stage.trap.was_dialled());
}

/// The relay's own option is narrower than the server's networks.
#[test]
fn a_relay_judges_each_answer_by_its_own_networks() {
    let names = Names::make();
    let cluster = Cluster::relayed();
    let database = cluster.database("rebound");
    let role = format!("relay_of_{}", database.name());
    database.execute(&format!(
        "CREATE ROLE {role} LOGIN; SELECT webhook_grant('{role}', 'relay')"
    ));
    let receiver = Receiver::start();
    let trap = Trap::at(receiver.port());
    let mut relay = Relay::program(env!("CARGO_BIN_EXE_relay"));
    relay.envs(names.variables());
    relay.args([
        "--allow-networks",
        ONLY_PERMITTED,
        "--allow-ports",
        "1-65535",
    ]);
    relay.arg(format!(
        "host=127.0.0.1 port={} user={role} dbname={}",
        cluster.port(),
        database.name()
    ));
    let relay = Relay::spawn(relay);
    relay.wait_for_log("is connected to");

    names.resolve("moving.invalid", PERMITTED);
    let url = format!("http://moving.invalid:{}/", receiver.port());
    database.add_endpoint("moving", &url);
    let sent = database.emit("order.created", json!({}));
    database.wait_for_status(sent, "SENT");
    names.resolve("moving.invalid", FORBIDDEN);
    names.move_clock_to(USABLE);
    let blocked = database.emit("order.created", json!({}));
    assert_blocked(&database, blocked, FORBIDDEN);
    assert_eq!(receiver.request_count(), 1);
    assert!(!trap.was_dialled());
}
