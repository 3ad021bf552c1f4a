//! Servers on 127.0.0.1 for the tests, each for a bounded number of connections.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use uuid::Uuid;

use crate::address_guard::{EndpointOwner, Network, Networks, RequireHttps};
use crate::attempt::{Attempt, Key, Route};
use crate::body::Format;

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Ends a test that has gone wrong.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn networks(text: &str) -> Networks {
    text.parse().unwrap()
}

/// Nothing is forbidden.
pub(crate) fn anywhere() -> Network {
    Network {
        allow: networks("0.0.0.0/0, ::/0"),
        allow_tenants: networks("0.0.0.0/0, ::/0"),
        ports: "1-65535".parse().unwrap(),
        require_https: RequireHttps::Off,
        ..Network::default()
    }
}

/// Calls `handle` with the number of the connection, on a thread for each.
pub(crate) fn serve(
    connections: usize,
    handle: impl Fn(usize, TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    thread::spawn(move || {
        for n in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let handle = handle.clone();
            thread::spawn(move || handle(n, stream));
        }
    });
    address
}

/// Answers every request on every connection alike.
pub(crate) fn serve_always(connections: usize, answer: &'static [u8]) -> SocketAddr {
    serve(connections, move |_, stream| {
        let mut stream = BufReader::new(stream);
        while read_request(&mut stream).is_some() {
            if stream.get_mut().write_all(answer).is_err() {
                break;
            }
        }
    })
}

pub(crate) struct Received {
    pub line: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// `None` when the peer has closed.
pub(crate) fn read_request<S: Read>(stream: &mut BufReader<S>) -> Option<Received> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_string()),
        }
    }
    let mut headers = HeaderMap::new();
    for line in &head[1..] {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::try_from(name).ok()?;
        headers.append(name, HeaderValue::try_from(value.trim()).ok()?);
    }
    let length = headers.get("content-length")?.to_str().ok()?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Received {
        line: head.swap_remove(0),
        headers,
        body,
    })
}

/// Keeps a connection open until the peer closes it.
pub(crate) fn hold(mut stream: impl Read) {
    let mut sink = [0; 1024];
    while matches!(read_some(&mut stream, &mut sink), Ok(n) if n > 0) {}
}

/// A read with a timeout is interrupted also when the process was stopped and goes on.
pub(crate) fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

pub(crate) fn route_to(url: impl Into<String>) -> Route {
    Route {
        endpoint_id: 1,
        owner: EndpointOwner::Installation,
        url: url.into(),
        headers: Vec::new(),
        format: Format::Standard,
        secrets: vec![SECRET.into()],
        hmac_secrets: Vec::new(),
        connect_timeout: 2 * PATIENCE,
        timeout: 2 * PATIENCE,
    }
}

pub(crate) fn attempt_on(route: Arc<Route>) -> Attempt {
    Attempt {
        key: Key {
            event_id: Uuid::from_u128(fastrand::u128(..)),
            endpoint_id: route.endpoint_id,
            claim_seq: fastrand::i64(..),
        },
        earlier_attempts: 0,
        event_type: "order.created".into(),
        tenant: None,
        occurred_at: "2024-05-06T07:08:09Z".into(),
        payload: r#"{"order": 1}"#.into(),
        route,
    }
}

pub(crate) fn attempt_to(url: impl Into<String>) -> Attempt {
    attempt_on(Arc::new(route_to(url)))
}

/// The same attempt once more.
pub(crate) fn copy_of(attempt: &Attempt) -> Attempt {
    Attempt {
        key: attempt.key,
        earlier_attempts: attempt.earlier_attempts,
        event_type: attempt.event_type.clone(),
        tenant: attempt.tenant.clone(),
        occurred_at: attempt.occurred_at.clone(),
        payload: attempt.payload.clone(),
        route: attempt.route.clone(),
    }
}

pub(crate) fn is_readable(fd: RawFd, wait: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd that lives through the call.
    unsafe { libc::poll(&mut poll, 1, wait.as_millis() as i32) == 1 }
}
