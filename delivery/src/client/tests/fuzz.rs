//! Responses that nobody thought of: real ones, broken at random. Each of them gives an outcome in time.

use std::net::SocketAddr;

use super::*;

const CASES: u64 = 4000;
const THREADS: u64 = 8;

const SEEDS: [&[u8]; 8] = [
    OK,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 301 Moved\r\nLocation: http://169.254.169.254/\r\n\r\nmoved",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 503 Busy\r\nRetry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=latin1\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
];

const TOKENS: [&[u8]; 24] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"\xff\xfe",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"HTTP/1.1 ",
    b"HTTP/2 200",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: close\r\n",
    b"Retry-After: 1e9\r\n",
    b"ffffffffffffffff\r\n",
    b"0\r\n\r\n",
    b"999",
];

fn broken(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = random.choice(SEEDS).unwrap().to_vec();
    for _ in 0..random.usize(0..6) {
        let at = random.usize(0..=bytes.len());
        let until = random.usize(at..=bytes.len()).min(at + 16);
        let new: Vec<u8> = match random.u8(0..6) {
            0 => vec![],
            1 => vec![random.u8(..)],
            2 => bytes[at..until].repeat(random.usize(1..50)),
            3 => random.choice(SEEDS).unwrap().to_vec(),
            _ => random.choice(TOKENS).unwrap().to_vec(),
        };
        bytes.splice(at..until, new);
    }
    bytes
}

/// The number of the case is the seed, and the path of the URL. One connection in eight stays open.
fn serve_broken() -> SocketAddr {
    serve(usize::MAX, |connection, stream| {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read_request(&mut stream) {
            let seed = request.line.split(['/', ' ']).nth(2).unwrap();
            let mut random = fastrand::Rng::with_seed(seed.parse().unwrap());
            let _ = stream.get_mut().write_all(&broken(&mut random));
            if connection % 8 != 0 {
                return;
            }
        }
    })
}

fn check(seed: u64, result: &Result<Response, Failure>) {
    use FailureKind::*;
    match result {
        Ok(response) => {
            assert!((100..1000).contains(&response.status), "seed {seed}");
            assert!(response.excerpt.len() <= EXCERPT, "seed {seed}");
            let clean = |c: char| !c.is_control() || c == '\n' || c == '\t';
            assert!(response.excerpt.chars().all(clean), "seed {seed}");
        }
        Err(failure) => {
            let expected = matches!(failure.kind, Timeout | Reset | InvalidResponse);
            assert!(expected, "seed {seed}: {failure}");
        }
    }
}

#[test]
fn any_response_has_an_outcome_in_time() {
    let address = serve_broken();
    let client = client();
    let budget = Duration::from_millis(100);
    let statuses = AtomicUsize::new(0);
    let deliver = |seed: u64| {
        let attempt = attempt_on(Arc::new(Route {
            timeout: budget,
            ..route_to(format!("http://{address}/{seed}"))
        }));
        let stopwatch = Stopwatch::start();
        let result = client.deliver(&attempt);
        let elapsed = stopwatch.elapsed();
        assert!(elapsed < budget + GRACE, "seed {seed}: {elapsed:?}");
        check(seed, &result);
        statuses.fetch_add(result.is_ok().into(), Ordering::SeqCst);
    };
    thread::scope(|scope| {
        for first in 0..THREADS {
            let deliver = &deliver;
            scope.spawn(move || (first..CASES).step_by(THREADS as usize).for_each(deliver));
        }
    });
    // It would not test much if all were garbage, or none.
    let statuses = statuses.into_inner() as u64;
    assert!(
        (CASES / 10..CASES * 9 / 10).contains(&statuses),
        "{statuses}"
    );
}
