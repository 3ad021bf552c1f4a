//! Receivers that mean ill, or might as well: their cost is bounded, and their texts are clean.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use postgres::Row;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, RawReceiver, Receiver, wait, worker};

/// The timeout of requests that only the timeout ends.
const SHORT_MS: i32 = 500;
/// The timeout of requests that end by themselves, or at a limit.
const LONG_MS: i32 = 60_000;
/// The timeout of requests that end with it after a part of the answer has come.
const AMPLE_MS: i32 = 3_000;
/// Room for a machine that stands still. A request that takes longer has ended neither with its timeout nor by
/// itself.
const ROOM_MS: i32 = 5_000;
const EXCERPT: usize = 2048;

/// Policies of one attempt by their timeout, and a log also of successful attempts.
fn start() -> (Cluster, Database) {
    let cluster = Cluster::builder().setting("webhook.keep_attempts = all");
    let cluster = cluster.start();
    let database = cluster.database("hostile");
    for timeout in [SHORT_MS, AMPLE_MS, LONG_MS] {
        database.execute(&format!(
            "INSERT INTO webhook.policy (name, max_attempts, connect_timeout, timeout, failure_threshold)
             VALUES ('within_{timeout}', 1, '{LONG_MS} ms', '{timeout} ms', 0)"
        ));
    }
    (cluster, database)
}

fn add_endpoint(database: &Database, name: &str, url: &str, timeout: i32) {
    let options = format!("event_types => '{{{name}}}', policy => 'within_{timeout}'");
    database.add_endpoint_with(name, url, &options);
}

/// The only attempt.
#[track_caller]
fn attempt(database: &Database, event: Uuid) -> Row {
    database.wait_until(&format!(
        "SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue WHERE event_id = '{event}')"
    ));
    let row = database.connect().query_one(
        "SELECT status_code, reason, response_excerpt, duration_ms FROM webhook.attempt WHERE event_id = $1",
        &[&event],
    );
    row.unwrap_or_else(|error| panic!("{error:?}"))
}

/// Writes `head`, and then `piece` again and again, with a pause before each, for as long as it is read.
fn repeating(head: &'static [u8], piece: &'static [u8], pause: Duration) -> RawReceiver {
    RawReceiver::doing(move |stream: &mut TcpStream| {
        let mut open = stream.write_all(head).is_ok();
        while open {
            thread::sleep(pause);
            open = stream.write_all(piece).is_ok();
        }
    })
}

/// Says nothing until the other side leaves.
fn hold(stream: &mut TcpStream) {
    while matches!(stream.read(&mut [0; 1024]), Ok(size) if size > 0) {}
}

fn dripping(head: &'static [u8], piece: &'static [u8]) -> RawReceiver {
    repeating(head, piece, Duration::from_millis(10))
}

fn flooding(head: &'static [u8], piece: &[u8]) -> RawReceiver {
    let many = piece.repeat(64 * 1024 / piece.len());
    repeating(head, many.leak(), Duration::ZERO)
}

#[test]
fn each_ends_in_time_and_leaves_at_most_a_short_clean_excerpt() {
    const STATUS: &[u8] = b"HTTP/1.1 200 OK\r\n";
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let late = (None, Some("timeout"));
    let not_http = (None, Some("invalid_response"));
    let answered = |status| (Some(status), (status >= 300).then_some("status"));

    let cases = [
        ("silence", RawReceiver::doing(hold), late),
        ("slow_headers", dripping(STATUS, b"X: y\r\n"), late),
        (
            "slow_interim",
            dripping(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
            late,
        ),
        ("slow_body", dripping(HEAD, b"x"), answered(200)),
        (
            "slow_chunks",
            dripping(CHUNKED, b"1\r\nx\r\n"),
            answered(200),
        ),
        ("endless_body", flooding(HEAD, b"hello"), answered(200)),
        (
            "endless_chunks",
            flooding(CHUNKED, b"5\r\nhello\r\n"),
            answered(200),
        ),
        (
            "endless_trailers",
            flooding(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"X: y\r\n",
            ),
            answered(200),
        ),
        (
            "endless_error",
            flooding(b"HTTP/1.1 500 No\r\n\r\n", "\u{20ac}".as_bytes()),
            answered(500),
        ),
        ("header_flood", flooding(STATUS, b"X: y\r\n"), not_http),
        (
            "endless_header",
            flooding(b"HTTP/1.1 200 OK\r\nX: ", b"y"),
            not_http,
        ),
        (
            "interim_flood",
            flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            not_http,
        ),
        (
            "early_hints_flood",
            flooding(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
            not_http,
        ),
        (
            "garbage",
            RawReceiver::answering(b"\x16\x03\x01 SSH-2.0 \x80\x81\r\n\r\n"),
            not_http,
        ),
        ("endless_garbage", flooding(b"", b"\0\xff"), not_http),
        (
            "nul_in_a_header",
            RawReceiver::answering(b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n"),
            not_http,
        ),
        (
            "invalid_utf8_in_a_header",
            RawReceiver::answering(
                b"HTTP/1.1 500 \xff\r\nX: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
            ),
            answered(500),
        ),
        (
            "nul_and_invalid_utf8",
            RawReceiver::answering(
                b"HTTP/1.1 500 No\r\nContent-Length: 12\r\n\r\na\0b\x1b\xff\xe2\x82c\r\n\td",
            ),
            answered(500),
        ),
        (
            "nul_flood",
            flooding(b"HTTP/1.1 500 No\r\n\r\n", b"\0\xff"),
            answered(500),
        ),
    ];
    let (cluster, database) = start();
    let worker = worker::pid(&database);
    let events = cases.map(|(name, receiver, expected)| {
        let (timeout, ends_after) = match name {
            _ if expected == late => (SHORT_MS, SHORT_MS),
            "slow_body" | "slow_chunks" => (AMPLE_MS, AMPLE_MS),
            _ => (LONG_MS, 0),
        };
        add_endpoint(&database, name, &receiver.url(), timeout);
        let event = database.emit(name, json!({}));
        (event, name, receiver, expected, ends_after)
    });

    for (event, name, receiver, expected, ends_after) in events {
        let row = attempt(&database, event);
        assert_eq!((row.get(0), row.get(1)), expected, "{name}");
        let duration: i32 = row.get("duration_ms");
        assert!(duration <= ends_after + ROOM_MS, "{name}: {duration} ms");
        assert_eq!(receiver.connection_count(), 1, "{name}");

        let excerpt: &str = row
            .get::<_, Option<&str>>("response_excerpt")
            .unwrap_or_default();
        let clean = excerpt
            .chars()
            .all(|c| !c.is_control() || "\n\t".contains(c));
        assert!(clean && excerpt.len() <= EXCERPT, "{name}: {excerpt:?}");
        match name {
            "endless_body" => assert_eq!(&excerpt[..10], "hellohello"),
            "endless_error" => assert_eq!(excerpt, "\u{20ac}".repeat(EXCERPT / 3)),
            "nul_and_invalid_utf8" => assert_eq!(excerpt, "ab\u{fffd}\u{fffd}c\n\td"),
            _ => (),
        }
    }
    assert_eq!(worker::pid(&database), worker);
    assert_eq!(worker::complaints(&cluster, worker), Vec::<String>::new());
}

#[test]
fn answers_without_end_do_not_grow_the_worker() {
    const EVENTS: usize = 32;
    const MAY_GROW: u64 = 16 << 20;
    let (_cluster, database) = start();
    let well = Receiver::start();
    let hostile = [
        ("body", flooding(b"HTTP/1.1 200 OK\r\n\r\n", b"hello")),
        (
            "chunks",
            flooding(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"1;x=y\r\nh\r\n",
            ),
        ),
        ("headers", flooding(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")),
        ("interim", flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
    ];
    let urls = hostile
        .iter()
        .map(|(name, receiver)| (*name, receiver.url()));
    for (name, url) in urls.chain([("well", well.url("/"))]) {
        add_endpoint(&database, name, &url, LONG_MS);
    }
    let send = |name: &str| {
        database.execute(&format!(
            "SELECT webhook_emit('{name}') FROM generate_series(1, {EVENTS})"
        ));
    };
    let queue_is_empty = "SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)";
    // The files for ordinary requests are open before.
    for _ in 0..hostile.len() {
        send("well");
    }
    database.wait_until(queue_is_empty);
    let worker = worker::pid(&database);
    let before = worker::private_memory(worker);

    for (name, _) in &hostile {
        send(name);
    }
    let mut most = before;
    let mut client = database.connect();
    wait::until("everything to be settled", || {
        most = most.max(worker::private_memory(worker));
        let settled: bool = client.query_one(queue_is_empty, &[]).unwrap().get(0);
        settled.then_some(()).ok_or(most)
    });
    for (name, receiver) in &hostile {
        assert_eq!(receiver.request_count(), EVENTS, "{name}");
    }
    assert!(most - before < MAY_GROW, "from {before} to {most} bytes");
}
