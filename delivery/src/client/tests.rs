use std::io::{BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Barrier, LazyLock, mpsc};
use std::thread;

use base64::prelude::{BASE64_STANDARD, Engine};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use standardwebhooks::Webhook;

use super::*;
use crate::address_guard::{AddressGuard, PermitAll};
use crate::attempt::Route;
use crate::loopback::{
    OK, SECRET, attempt_on, attempt_to, hold, read_request, route_to, serve, serve_always,
};

const SHORT: Duration = Duration::from_millis(300);
const GRACE: Duration = Duration::from_millis(500);

/// What a server does with a connection.
type Act = Box<dyn Fn(TcpStream) + Send + Sync>;

fn client_with(guard: impl AddressGuard, roots: RootCerts) -> Client {
    let not_found = |_: &str| Err(std::io::Error::other("Name or service not known"));
    let resolver = Resolver::start(Box::new(not_found), guard).unwrap();
    Client::new(8, roots, resolver)
}

fn client() -> Client {
    client_with(PermitAll, RootCerts::new_with_certs(&[]))
}

fn impatient(url: String) -> Attempt {
    attempt_on(Arc::new(Route {
        connect_timeout: SHORT,
        timeout: SHORT,
        ..route_to(url)
    }))
}

fn failure(attempt: &Attempt) -> Failure {
    client().deliver(attempt).unwrap_err()
}

/// The failure when a server does this to the first request it reads.
fn failure_when(act: impl Fn(TcpStream) + Send + Sync + 'static) -> Failure {
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        act(stream.into_inner());
    });
    failure(&impatient(format!("http://{address}/")))
}

/// The response when a server answers the first request with `answer` and then does `act`.
fn response_when(
    answer: &'static [u8],
    act: impl Fn(TcpStream) + Send + Sync + 'static,
) -> Response {
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        stream.get_mut().write_all(answer).unwrap();
        act(stream.into_inner());
    });
    let attempt = impatient(format!("http://{address}/"));
    client().deliver(&attempt).unwrap()
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
            ("Authorization".into(), "Bearer token".into()),
            ("webhook-id".into(), "forged".into()),
            ("content-type".into(), "text/plain".into()),
            ("User-Agent".into(), "forged".into()),
        ],
        secrets: vec![newer.clone(), SECRET.into()],
        ..route_to(format!("http://{address}/hook?a=b"))
    }));
    attempt.earlier_attempts = 2;
    let response = client().deliver(&attempt).unwrap();
    assert_eq!((response.status, response.excerpt.as_str()), (200, "ok"));

    let request = requests.recv().unwrap();
    assert_eq!(request.line, "POST /hook?a=b HTTP/1.1");
    assert_eq!(request.body, body::standard(&attempt).unwrap());
    for secret in [SECRET, &newer] {
        let receiver = Webhook::new(secret).unwrap();
        receiver.verify(&request.body, &request.headers).unwrap();
    }
    let id = attempt.key.event_id.to_string();
    for (name, value) in [
        ("webhook-id", id.as_str()),
        ("authorization", "Bearer token"),
        ("content-type", "application/json"),
        ("user-agent", OUR_USER_AGENT),
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
        "99999999999999999999",
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
fn silence_and_dripping_headers_end_with_the_timeout() {
    let drip = |mut stream: TcpStream| {
        let mut header = b"HTTP/1.1 200 OK\r\n"
            .iter()
            .chain(b"X: y\r\n".iter().cycle());
        while stream.write_all(&[*header.next().unwrap()]).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    };
    let acts: [Act; 2] = [Box::new(drip), Box::new(hold)];
    for act in acts {
        let started = Instant::now();
        let failure = failure_when(act);
        assert_eq!(failure.kind, FailureKind::Timeout);
        assert_eq!(failure.message, "no response within 300ms");
        assert!(started.elapsed() < SHORT + GRACE);
    }
}

#[test]
fn a_receiver_that_hardly_reads_ends_with_the_timeout() {
    let address = serve(1, |_, mut stream| {
        for _ in 0..1000 {
            let _ = stream.read(&mut [0; 16]);
            thread::sleep(Duration::from_millis(10));
        }
    });
    // More than the buffers of both sockets hold, and past signing, which a debug build is slow at.
    let body = vec![b'x'; 16 * 1024 * 1024];
    let request = Request::post(format!("http://{address}/")).body(&body);
    let client = client();
    let started = Instant::now();
    deadline::begin(SHORT, SHORT);
    let error = client.agent.run(request.unwrap()).unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error}");
    assert!(started.elapsed() < SHORT + GRACE, "{:?}", started.elapsed());
}

#[test]
fn the_status_decides_though_the_body_stalls_breaks_or_never_ends() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhello";
    let endless = |mut stream: TcpStream| while stream.write_all(&[b'x'; 4096]).is_ok() {};
    let acts: [(&[u8], Act); 4] = [
        (HEAD, Box::new(hold)),
        (HEAD, Box::new(drop)),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", Box::new(endless)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnot a length",
            Box::new(hold),
        ),
    ];
    for (answer, act) in acts {
        let started = Instant::now();
        let response = response_when(answer, act);
        assert_eq!(response.status, 200);
        assert!(response.excerpt.starts_with("hello"));
        assert!(started.elapsed() < SHORT + GRACE);
    }
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
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let failure = failure(&attempt_to(format!("http://{free}/")));
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
fn what_is_not_http_is_an_invalid_response() {
    for garbage in [
        &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
        b"HTTP/1.1 999999 OK\r\n\r\n",
    ] {
        let failure = failure_when(move |mut stream| stream.write_all(garbage).unwrap());
        assert_eq!(failure.kind, FailureKind::InvalidResponse, "{failure}");
    }
    let failure = failure_when(|mut stream| {
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(100_000));
        let _ = stream.write_all(head.as_bytes());
        hold(stream);
    });
    let too_large = "the response headers are too large";
    assert_eq!(
        failure,
        Failure::new(FailureKind::InvalidResponse, too_large)
    );
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
            headers: vec![(name.into(), value.into())],
            ..route_to("http://127.0.0.1:1/")
        })));
        assert_eq!(failure.kind, FailureKind::InvalidRequest, "{name}");
        assert!(!failure.message.contains("hidden"));
    }
}

#[test]
fn a_blocked_address_is_not_dialled() {
    struct Refuse;
    impl AddressGuard for Refuse {
        fn check(&self, _: &[IpAddr]) -> Result<(), String> {
            Err("loopback is not allowed".into())
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let failure = client_with(Refuse, RootCerts::new_with_certs(&[]))
        .deliver(&attempt_to(format!("http://{address}/")))
        .unwrap_err();
    assert_eq!(
        failure,
        Failure::new(FailureKind::Blocked, "loopback is not allowed")
    );
    assert!(listener.accept().is_err());
}

static CERTIFICATE: LazyLock<rcgen::CertifiedKey<rcgen::KeyPair>> =
    LazyLock::new(|| rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap());

fn serve_tls() -> std::net::SocketAddr {
    let key = PrivatePkcs8KeyDer::from(CERTIFICATE.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CERTIFICATE.cert.der().clone()],
            PrivateKeyDer::Pkcs8(key),
        )
        .unwrap();
    let config = Arc::new(config);
    serve(1, move |_, stream| {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let stream = rustls::StreamOwned::new(connection, stream);
        let mut stream = BufReader::new(stream);
        while read_request(&mut stream).is_some() {
            stream.get_mut().write_all(OK).unwrap();
        }
    })
}

/// On a thread as small as those of the pool.
#[test]
fn delivers_over_tls_to_a_trusted_certificate_and_reuses_the_connection() {
    let address = serve_tls();
    let (done, result) = mpsc::channel();
    crate::threads::spawn("tls".into(), move || {
        let trusted = [Certificate::from_der(CERTIFICATE.cert.der()).to_owned()];
        let client = client_with(PermitAll, RootCerts::new_with_certs(&trusted));
        for _ in 0..3 {
            let attempt = attempt_to(format!("https://{address}/"));
            done.send(client.deliver(&attempt)).unwrap();
        }
    })
    .unwrap();
    let statuses: Vec<_> = result.iter().map(|r| r.unwrap().status).collect();
    assert_eq!(statuses, [200, 200, 200]);
}

#[test]
fn an_untrusted_certificate_is_tls() {
    let failure = failure(&attempt_to(format!("https://{}/", serve_tls())));
    assert_eq!(
        failure,
        Failure::new(
            FailureKind::Tls,
            "the certificate is not signed by a trusted authority"
        )
    );
}

#[test]
fn a_server_that_does_not_speak_tls_or_hangs_up_is_tls() {
    let plain = serve(1, |_, mut stream| {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        hold(stream);
    });
    let closing = serve(1, |_, mut stream| {
        let _ = stream.read(&mut [0; 1024]);
    });
    for address in [plain, closing] {
        let failure = failure(&attempt_to(format!("https://{address}/")));
        assert_eq!(failure.kind, FailureKind::Tls, "{failure}");
    }
}

#[test]
fn a_tls_handshake_that_never_ends_spends_the_connect_timeout() {
    let address = serve(1, |_, stream| hold(stream));
    let started = Instant::now();
    let failure = failure(&impatient(format!("https://{address}/")));
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert_eq!(failure.message, "no connection within 300ms");
    assert!(started.elapsed() < SHORT + GRACE);
}

#[test]
fn a_connection_that_arrives_late_still_has_the_whole_timeout() {
    // 200 ms to look the name up, 200 ms to answer: more than either budget, and both are kept.
    let address = serve(1, |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        thread::sleep(Duration::from_millis(200));
        stream.get_mut().write_all(OK).unwrap();
    });
    let lookup = |_: &str| {
        thread::sleep(Duration::from_millis(200));
        Ok(vec!["127.0.0.1".parse().unwrap()])
    };
    let resolver = Resolver::start(Box::new(lookup), PermitAll).unwrap();
    let client = Client::new(1, RootCerts::new_with_certs(&[]), resolver);
    let attempt = impatient(format!("http://slow.invalid:{}/", address.port()));
    assert_eq!(client.deliver(&attempt).unwrap().status, 200);
}
