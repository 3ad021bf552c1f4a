mod fuzz;
mod guard;
mod hostile;
mod tls;

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use base64::prelude::{BASE64_STANDARD, Engine};
use standardwebhooks::Webhook;

use super::{EXCERPT, MAX_ADDRESSES, excerpt, wait_asked_for};
use crate::address_guard::AddressGuard;
use crate::attempt::{Attempt, Key, Outcome, Response, Route};
use crate::failure::{Failure, FailureKind};
use crate::header::Header;
use crate::loopback::{
    OK, SECRET, anywhere, attempt_on, attempt_to, copy_of, hold, is_readable, read_request,
    route_to, serve, serve_always,
};
use crate::pool::Pool;
use crate::resolver::{Limits, Resolver};
use crate::roots::Roots;
use crate::stopwatch::Stopwatch;
use crate::{body, request, threads};

/// The timeout of attempts that are to end with it.
const SHORT: Duration = Duration::from_millis(300);
/// The timeout of attempts that end with it only after something has come in time, also where the process is stopped
/// for a moment.
const AMPLE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_millis(500);

/// Delivers by a pool, and waits for each outcome.
struct Client {
    pool: Pool,
    outcomes: Mutex<HashMap<Key, Outcome>>,
}

impl Client {
    fn new(resolver: Resolver, guard: impl AddressGuard, roots: &Roots) -> Client {
        Client {
            pool: Pool::with(resolver, guard, roots).unwrap(),
            outcomes: Mutex::default(),
        }
    }

    fn deliver(&self, attempt: &Attempt) -> Result<Response, Failure> {
        self.pool.submit(vec![copy_of(attempt)]);
        loop {
            let mut outcomes = threads::lock(&self.outcomes);
            let new = self.pool.take_outcomes().into_iter();
            outcomes.extend(new.map(|outcome| (outcome.key, outcome)));
            if let Some(outcome) = outcomes.remove(&attempt.key) {
                return outcome.result;
            }
            drop(outcomes);
            // Another thread may have taken ours.
            is_readable(self.pool.wake_fd(), Duration::from_millis(5));
        }
    }
}

fn client_that(
    lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    guard: impl AddressGuard,
    roots: &Roots,
) -> Client {
    let resolver = Resolver::new(Box::new(lookup), Limits::default());
    Client::new(resolver, guard, roots)
}

fn client_with(guard: impl AddressGuard, roots: &Roots) -> Client {
    let not_found = |_: &str| Err(io::Error::other("Name or service not known"));
    client_that(not_found, guard, roots)
}

fn client() -> Client {
    client_with(anywhere(), &Roots::default())
}

fn attempt_within(timeout: Duration, url: String) -> Attempt {
    attempt_on(Arc::new(Route {
        timeout,
        ..route_to(url)
    }))
}

fn failure(attempt: &Attempt) -> Failure {
    client().deliver(attempt).unwrap_err()
}

/// The URL of a server that does this to the first request it reads.
fn server_doing(act: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        act(stream.into_inner());
    });
    format!("http://{address}/")
}

/// The failure when a server does this to the first request it reads.
fn failure_when(act: impl Fn(TcpStream) + Send + Sync + 'static) -> Failure {
    failure(&attempt_to(server_doing(act)))
}

/// The response when a server answers the first request with `answer` and then does `act`.
fn response_when(
    answer: &'static [u8],
    act: impl Fn(TcpStream) + Send + Sync + 'static,
) -> Response {
    let url = server_answering(answer, act);
    client().deliver(&attempt_to(url)).unwrap()
}

fn server_answering(
    answer: &'static [u8],
    act: impl Fn(TcpStream) + Send + Sync + 'static,
) -> String {
    server_doing(move |mut stream| {
        stream.write_all(answer).unwrap();
        act(stream);
    })
}

/// The result of an attempt that ended with its timeout.
#[track_caller]
fn ending_in_time(attempt: &Attempt, timeout: Duration) -> Result<Response, Failure> {
    let client = client();
    let (started, stopwatch) = (Instant::now(), Stopwatch::start());
    let result = client.deliver(attempt);
    assert!(started.elapsed() >= timeout, "{result:?}");
    let elapsed = stopwatch.elapsed();
    assert!(elapsed < timeout + GRACE, "{elapsed:?}: {result:?}");
    result
}

#[test]
fn sends_a_standard_webhook_that_a_third_party_library_verifies() {
    let (received, requests) = mpsc::channel();
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        received.send(read_request(&mut stream).unwrap()).unwrap();
        stream.get_mut().write_all(OK).unwrap();
    });
    let newer = format!("whsec_{}", BASE64_STANDARD.encode([7; 24]));
    let mut attempt = attempt_on(Arc::new(Route {
        headers: vec![
            Header::new("Authorization", "Bearer token"),
            Header::new("webhook-id", "forged"),
            Header::new("content-type", "text/plain"),
            Header::new("User-Agent", "forged"),
        ],
        secrets: vec![newer.clone(), SECRET.into()],
        ..route_to(format!("http://{address}/hook?a=b"))
    }));
    attempt.earlier_attempts = 2;
    let response = client().deliver(&attempt).unwrap();
    assert_eq!((response.status, response.excerpt.as_str()), (200, "ok"));

    let request = requests.recv().unwrap();
    assert_eq!(request.line, "POST /hook?a=b HTTP/1.1");
    assert_eq!(request.body, body::render(&attempt).unwrap());
    for secret in [SECRET, &newer] {
        let receiver = Webhook::new(secret).unwrap();
        receiver.verify(&request.body, &request.headers).unwrap();
    }
    let id = attempt.key.event_id.to_string();
    for (name, value) in [
        ("webhook-id", id.as_str()),
        ("authorization", "Bearer token"),
        ("content-type", "application/json"),
        ("user-agent", request::OUR_USER_AGENT),
        ("x-webhook-retry", "2"),
    ] {
        let values: Vec<_> = request.headers.get_all(name).iter().collect();
        assert_eq!(values, [value], "{name}");
    }
    assert_eq!(
        request.headers["x-webhook-signature"],
        request.headers["webhook-signature"]
    );
    assert!(!request.headers.contains_key("accept-encoding"));
}

#[test]
fn what_is_rendered_is_all_that_is_sent() {
    let (received, requests) = mpsc::channel();
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        received.send(read_request(&mut stream).unwrap()).unwrap();
        stream.get_mut().write_all(OK).unwrap();
    });
    let attempt = attempt_on(Arc::new(Route {
        headers: vec![Header::new("X-Key", "1"), Header::new("x-key", "2")],
        ..route_to(format!("http://{address}/hook"))
    }));
    client().deliver(&attempt).unwrap();

    let sent = requests.recv().unwrap();
    let timestamp = sent.headers["webhook-timestamp"].to_str().unwrap();
    let then = UNIX_EPOCH + Duration::from_secs(timestamp.parse().unwrap());
    let rendered = request::render(&attempt, then).unwrap();
    assert_eq!(&sent.headers, rendered.headers());
    assert_eq!(&sent.body, rendered.body());
}

#[test]
fn a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let target = elsewhere.local_addr().unwrap();
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        let answer =
            format!("HTTP/1.1 307 No\r\nLocation: http://{target}/\r\nContent-Length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).unwrap();
    });
    let attempt = attempt_to(format!("http://{address}/"));
    assert_eq!(client().deliver(&attempt).unwrap().status, 307);
    assert!(elsewhere.accept().is_err());
}

#[test]
fn retry_after_is_passed_on() {
    let response = response_when(
        b"HTTP/1.1 503 Busy\r\nRetry-After:  120 \r\nContent-Length: 0\r\n\r\n",
        hold,
    );
    assert_eq!(response.status, 503);
    assert_eq!(response.retry_after, Some(Duration::from_secs(120)));
}

#[test]
fn retry_after_is_seconds_or_a_date_to_come() {
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777); // Sun, 06 Nov 1994 08:49:37 GMT
    let understood = [
        ("0", 0),
        ("120", 120),
        ("4294967295", 4_294_967_295),
        ("4294967296", 4_294_967_295),
        ("99999999999999999999", 4_294_967_295),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 4_294_967_295),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60),
        ("Sun Nov  6 08:50:37 1994", 60),
    ];
    for (text, seconds) in understood {
        let wait = Some(Duration::from_secs(seconds));
        assert_eq!(wait_asked_for(text, now), wait, "{text}");
    }
    let not_understood = [
        "",
        "-1",
        "+1",
        "1.5",
        "soon",
        "120 s",
        "Sun, 06 Nov 1994 08:48:37 GMT",
        "Sun, 99 Nov 1994 08:50:37 GMT",
    ];
    for text in not_understood {
        assert_eq!(wait_asked_for(text, now), None, "{text}");
    }
}

#[test]
fn requests_share_a_connection() {
    let address = serve_always(1, OK);
    let client = client();
    for _ in 0..5 {
        let attempt = attempt_to(format!("http://{address}/"));
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    }
}

#[test]
fn a_connection_that_the_server_closed_while_idle_costs_nothing() {
    let address = serve(3, |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        stream.get_mut().write_all(OK).unwrap();
    });
    let client = client();
    for _ in 0..3 {
        let attempt = attempt_to(format!("http://{address}/"));
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    }
}

#[test]
fn a_reused_connection_that_dies_under_a_request_is_replaced_once() {
    let (received, ids) = mpsc::channel();
    let address = serve(3, move |connection, stream| {
        let mut stream = BufReader::new(stream);
        // Only the first request of the first connection is answered.
        let mut answers = [OK].iter().skip(connection);
        while let Some(request) = read_request(&mut stream) {
            let id = request.headers["webhook-id"].to_str().unwrap().to_string();
            received.send((connection, id)).unwrap();
            let Some(answer) = answers.next() else { return };
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    let client = client();
    let first = attempt_to(format!("http://{address}/"));
    assert_eq!(client.deliver(&first).unwrap().status, 200);
    let second = attempt_to(format!("http://{address}/"));
    let failure = client.deliver(&second).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Reset);

    let seen: Vec<_> = ids.try_iter().collect();
    let [first, second] = [first, second].map(|a| a.key.event_id.to_string());
    assert_eq!(seen, [(0, first), (0, second.clone()), (1, second)]);
}

#[test]
fn a_delivery_survives_though_every_reused_connection_dies_under_it() {
    let both_open = Barrier::new(2);
    let address = serve(3, move |connection, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        if connection < 2 {
            both_open.wait();
        }
        stream.get_mut().write_all(OK).unwrap();
        if connection < 2 {
            read_request(&mut stream);
        }
    });
    let client = client();
    let deliver = || {
        let attempt = attempt_to(format!("http://{address}/"));
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    };
    thread::scope(|scope| {
        scope.spawn(deliver);
        scope.spawn(deliver);
    });
    deliver();
}

#[test]
fn a_fresh_connection_that_dies_is_a_reset_and_is_not_tried_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    let address = serve(2, move |_, stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        read_request(&mut BufReader::new(stream));
    });
    let failure = failure(&attempt_to(format!("http://{address}/")));
    assert_eq!(failure.kind, FailureKind::Reset);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_connection_closed_within_the_headers_is_a_reset() {
    let failure = failure_when(|mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").unwrap());
    assert_eq!(failure.kind, FailureKind::Reset);
}

#[test]
fn an_excerpt_is_short_clean_text() {
    assert_eq!(
        excerpt(b"a\0b\x1b[1m\r\n\tc\xff\xfed\x7f"),
        "ab[1m\n\tc\u{fffd}\u{fffd}d"
    );
    let long = excerpt("x\u{20ac}".repeat(10_000).as_bytes());
    assert_eq!(long.len(), 2048);
    assert!(long.ends_with("x\u{20ac}"));
}

#[test]
fn a_refused_connection_is_connect() {
    // No test listens on that address, and while the port is ours on this one, nobody does on all of them.
    let ours = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ours.local_addr().unwrap().port();
    let failure = failure(&attempt_to(format!("http://127.0.0.3:{port}/")));
    let refused = Failure::new(FailureKind::Connect, "connection refused");
    assert_eq!(failure, refused);
}

#[test]
fn a_name_that_does_not_exist_is_dns() {
    let failure = failure(&attempt_to("http://nobody.invalid/"));
    assert_eq!(failure.kind, FailureKind::Dns);
    assert!(!failure.message.contains("nobody"));
}

#[test]
fn bad_urls_and_headers_are_invalid_requests_that_show_neither() {
    for url in [
        "",
        "hidden",
        "/hidden",
        "ftp://hidden.invalid/",
        "http://",
        "http:///hidden",
        "http://user:hidden@127.0.0.1/",
        "http://127.0.0.1:99999/hidden",
        "http://127.0.0.1:/hidden",
        "http://hid den/",
    ] {
        let failure = failure(&attempt_to(url));
        assert_eq!(
            failure.kind,
            FailureKind::InvalidRequest,
            "{url}: {failure}"
        );
        assert!(!failure.message.contains("hidden"));
    }
    for (name, value) in [
        ("hid den", "hidden"),
        ("x", "hidden\r\nx: y"),
        ("Content-Length", "hidden"),
        ("host", "hidden"),
    ] {
        let failure = failure(&attempt_on(Arc::new(Route {
            headers: vec![Header::new(name, value)],
            ..route_to("http://127.0.0.1:1/")
        })));
        assert_eq!(failure.kind, FailureKind::InvalidRequest, "{name}");
        assert!(!failure.message.contains("hidden"));
    }
}

#[test]
fn a_connection_that_arrives_late_still_has_the_whole_timeout() {
    // The name takes longer to look up than the answer may take, or the answer longer than the lookup may.
    let (none, long) = (Duration::ZERO, AMPLE + SHORT);
    let deliver = |to_look_up: Duration, to_answer: Duration| {
        let address = serve(1, move |_, stream| {
            let mut stream = BufReader::new(stream);
            read_request(&mut stream);
            thread::sleep(to_answer);
            stream.get_mut().write_all(OK).unwrap();
        });
        let lookup = move |_: &str| {
            thread::sleep(to_look_up);
            Ok(vec!["127.0.0.1".parse().unwrap()])
        };
        let client = client_that(lookup, anywhere(), &Roots::default());
        let attempt = attempt_on(Arc::new(Route {
            connect_timeout: to_look_up + AMPLE,
            timeout: to_answer + AMPLE,
            ..route_to(format!("http://slow.invalid:{}/", address.port()))
        }));
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    };
    thread::scope(|scope| {
        scope.spawn(|| deliver(long, none));
        scope.spawn(|| deliver(none, long));
    });
}

const SERVERS: &str = "WEBHOOK_TEST_SERVERS";

/// The limit is set in a process of its own, which runs the test below.
#[test]
fn idle_connections_give_way_where_no_more_files_may_be_open() {
    let servers = [serve_always(1, OK), serve_always(1, OK)].map(|a| a.to_string());
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "client::tests::delivers_at_the_limit_of_open_files",
        ])
        .arg("--include-ignored")
        .env(SERVERS, servers.join(","))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && report.contains("1 passed");
    assert!(passed, "{report}");
}

#[test]
#[ignore = "run by idle_connections_give_way_where_no_more_files_may_be_open"]
fn delivers_at_the_limit_of_open_files() {
    let servers = std::env::var(SERVERS).unwrap();
    let (first, second) = servers.split_once(',').unwrap();
    let client = client();
    let deliver = |server| client.deliver(&attempt_to(format!("http://{server}/")));
    assert_eq!(deliver(first).unwrap().status, 200);

    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let limit = libc::rlimit {
        rlim_cur: next as libc::rlim_t,
        rlim_max: next as libc::rlim_t,
    };
    // SAFETY: it reads the struct that it is given.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    assert_eq!(deliver(second).unwrap().status, 200);
}
