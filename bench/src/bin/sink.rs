//! A receiver for measurements: HTTP/1.1 with keep-alive, on one thread, in a process of its own, so that
//! its cost is nobody else's.
//!
//! ```text
//! sink [--port N] [--addresses N] [--delay MILLISECONDS]
//! ```
//!
//! It listens on one port of 127.0.0.1 and the addresses after it, and prints `port N`. It answers 200
//! after the delay, and never under /hang. Each line of its input makes it print `requests hung
//! body_bytes unsigned`; it ends with its input.

use std::convert::Infallible;
use std::io::{self, BufRead};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, future, process, thread};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

#[path = "../open_files.rs"]
mod open_files;

/// Answered, never to be answered, bytes of both, and without a signature.
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static HUNG: AtomicU64 = AtomicU64::new(0);
static BODY_BYTES: AtomicU64 = AtomicU64::new(0);
static UNSIGNED: AtomicU64 = AtomicU64::new(0);

const BACKLOG: i32 = 4096;

fn main() {
    let option = |name: &str| -> u64 {
        let mut arguments = env::args().skip_while(|argument| argument != name);
        let value = arguments.nth(1);
        value.map_or(0, |value| {
            (value.parse()).unwrap_or_else(|_| panic!("{name} takes a number, not {value}"))
        })
    };
    open_files::raise_limit();
    let delay = Duration::from_millis(option("--delay"));
    let listeners = listen(option("--port") as u16, option("--addresses").max(1) as u32);
    let port = listeners[0].local_addr().expect("it is bound").port();
    println!("port {port}");
    thread::spawn(answer_questions);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    runtime.block_on(async {
        for listener in listeners {
            tokio::spawn(accept(listener, delay));
        }
        future::pending().await
    })
}

fn listen(port: u16, addresses: u32) -> Vec<TcpListener> {
    let mut port = port;
    let first = u32::from(Ipv4Addr::LOCALHOST);
    let listeners = (0..addresses).map(|number| {
        let address = Ipv4Addr::from(first + number);
        let listener = TcpListener::bind((address, port))
            .unwrap_or_else(|error| panic!("could not listen on {address}:{port}: {error}"));
        port = listener.local_addr().expect("it is bound").port();
        // A burst of a thousand connections does not fit into the queue of 128 that the standard library
        // asks for. SAFETY: the descriptor is open as long as the listener.
        unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), BACKLOG) };
        listener.set_nonblocking(true).expect("it can be");
        listener
    });
    listeners.collect()
}

fn answer_questions() {
    for line in io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        let [requests, hung, bytes, unsigned] =
            [&REQUESTS, &HUNG, &BODY_BYTES, &UNSIGNED].map(|count| count.load(Ordering::Relaxed));
        println!("{requests} {hung} {bytes} {unsigned}");
    }
    process::exit(0);
}

async fn accept(listener: TcpListener, delay: Duration) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("the runtime takes it");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: they come back.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request| answer(request, delay));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move { _ = connection.await });
    }
}

async fn answer(
    request: Request<Incoming>,
    delay: Duration,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let hangs = request.uri().path().starts_with("/hang");
    let signature = request.headers().get("webhook-signature");
    if !signature.is_some_and(|value| value.as_bytes().starts_with(b"v1,")) {
        UNSIGNED.fetch_add(1, Ordering::Relaxed);
    }
    if let Ok(body) = request.into_body().collect().await {
        let bytes = body.to_bytes().len() as u64;
        BODY_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
    if hangs {
        HUNG.fetch_add(1, Ordering::Relaxed);
        future::pending::<()>().await;
    }
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    Ok(Response::new(Empty::new()))
}
