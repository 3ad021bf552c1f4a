//! Servers that mean ill, or might as well.

use std::io::Read;

use super::*;

type Act = Box<dyn Fn(TcpStream) + Send + Sync>;

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
        let attempt = attempt_within(SHORT, server_doing(act));
        let failure = ending_in_time(&attempt, SHORT).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout);
        assert_eq!(failure.message, "no response within 300ms");
    }
}

#[test]
fn a_receiver_that_hardly_reads_ends_with_the_timeout() {
    let (begun, beginning) = mpsc::channel();
    let address = serve(1, move |_, mut stream| {
        let _ = stream.read(&mut [0; 16]);
        begun.send(Stopwatch::start()).unwrap();
        while matches!(stream.read(&mut [0; 16]), Ok(n) if n > 0) {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let mut attempt = attempt_within(SHORT, format!("http://{address}/"));
    // More than the buffers of both sockets hold.
    attempt.payload = format!("\"{}\"", "x".repeat(16 * 1024 * 1024));
    let failure = client().deliver(&attempt).unwrap_err();
    assert_eq!(failure.message, "no response within 300ms");
    let elapsed = beginning.recv().unwrap().elapsed();
    assert!(elapsed < SHORT + GRACE, "{elapsed:?}");
}

#[test]
fn the_status_decides_though_the_body_stalls_breaks_or_never_ends() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhello";
    let endless = |mut stream: TcpStream| while stream.write_all(&[b'x'; 4096]).is_ok() {};
    let acts: [(&[u8], Act); 3] = [
        (HEAD, Box::new(drop)),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", Box::new(endless)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnot a length",
            Box::new(hold),
        ),
    ];
    let check = |response: Response| {
        assert_eq!(response.status, 200);
        assert!(response.excerpt.starts_with("hello"));
    };
    for (answer, act) in acts {
        check(response_when(answer, act));
    }
    let stalling = attempt_within(AMPLE, server_answering(HEAD, hold));
    check(ending_in_time(&stalling, AMPLE).unwrap());
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

/// Repeats `piece` after `head` for as long as it is read. Returns the result, and how much was taken.
fn flood(head: &'static [u8], piece: &'static [u8]) -> (Result<Response, Failure>, usize) {
    let (taken, sizes) = mpsc::channel();
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        let stream = stream.get_mut();
        let piece = piece.repeat(4096 / piece.len());
        let mut size = head.len();
        let mut open = stream.write_all(head).is_ok();
        while open {
            open = stream.write_all(&piece).is_ok();
            size += piece.len();
        }
        taken.send(size).unwrap();
    });
    let attempt = attempt_to(format!("http://{address}/"));
    let started = Instant::now();
    let result = client().deliver(&attempt);
    // Not by the timeout.
    let elapsed = started.elapsed();
    assert!(elapsed < attempt.route.timeout / 2, "{elapsed:?}");
    (result, sizes.recv().unwrap())
}

/// Bytes that the sockets of both sides hold beyond those that are read.
const IN_SOCKETS: usize = 16 * 1024 * 1024;

#[test]
fn endless_heads_are_refused_after_a_few_bytes() {
    for (head, piece) in [
        (&b""[..], &b"HTTP/1.1 100 Continue\r\n\r\n"[..]),
        (
            b"",
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"yyyyyyyy"),
        (b"HTTP/1.1 200 OK\r\n", b"yyyyyyyy"),
        (b"HTTP/1.1 200 ", b"very "),
        (b"", b"\r\n"),
        (b"", b"\0"),
        (b"", b"\xff\xfe"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"\0\xff"),
        (b"HTTP/1.1 200 OK\r\n", b"\xe2\x82: y\r\n"),
    ] {
        let (result, taken) = flood(head, piece);
        let failure = result.unwrap_err();
        let case = String::from_utf8_lossy(piece);
        assert_eq!(
            failure.kind,
            FailureKind::InvalidResponse,
            "{case:?}: {failure}"
        );
        assert!(taken < IN_SOCKETS, "{case:?}: {taken}");
    }
}

/// The pieces are below every limit of hyper's.
#[test]
fn interim_responses_are_refused_when_they_are_too_many() {
    let address = serve(1, |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        let piece = b"HTTP/1.1 102 Processing\r\n\r\n".repeat(300);
        while stream.get_mut().write_all(&piece).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let failure = failure(&attempt_to(format!("http://{address}/")));
    assert_eq!(failure.kind, FailureKind::InvalidResponse, "{failure}");
}

#[test]
fn interim_responses_that_drip_end_with_the_timeout() {
    let url = server_doing(|mut stream| {
        while stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let failure = ending_in_time(&attempt_within(SHORT, url), SHORT).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
}

#[test]
fn interim_responses_before_the_answer_are_skipped() {
    let response = response_when(
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        hold,
    );
    assert_eq!(response.status, 204);
}

#[test]
fn endless_bodies_are_cut_off() {
    const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (head, piece) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n"[..], &b"hello"[..]),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
            b"hello",
        ),
        (CHUNKED, b"5\r\nhello\r\n"),
        (CHUNKED, b"1\r\nh\r\n"),
        (CHUNKED, b"1;extension=of-a-chunk\r\nh\r\n"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            b"extension",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"Trailer: x\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"\0\xff\xe2\x82"),
    ] {
        let (result, taken) = flood(head, piece);
        let case = String::from_utf8_lossy(piece);
        let response = result.unwrap_or_else(|failure| panic!("{case:?}: {failure}"));
        assert_eq!(response.status, 200);
        assert!(response.excerpt.len() <= EXCERPT);
        assert!(!response.excerpt.contains('\0'));
        assert!(taken < IN_SOCKETS, "{case:?}: {taken}");
    }
}

#[test]
fn a_body_that_drips_ends_with_the_timeout_and_the_status_decides() {
    let url = server_answering(b"HTTP/1.1 200 OK\r\n\r\n", |mut stream| {
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let response = ending_in_time(&attempt_within(AMPLE, url), AMPLE).unwrap();
    assert_eq!(response.status, 200);
}

#[test]
fn nul_and_invalid_utf8_do_no_harm() {
    let in_body = response_when(
        b"HTTP/1.1 500 \xff\r\nContent-Length: 7\r\n\r\na\0b\xff\xe2\x82c",
        hold,
    );
    assert_eq!(in_body.status, 500);
    assert_eq!(in_body.excerpt, "ab\u{fffd}\u{fffd}c");

    let in_header = failure_when(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n");
        hold(stream);
    });
    assert_eq!(in_header.kind, FailureKind::InvalidResponse, "{in_header}");

    let unreadable = response_when(
        b"HTTP/1.1 503 Busy\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        hold,
    );
    assert_eq!((unreadable.status, unreadable.retry_after), (503, None));
}
