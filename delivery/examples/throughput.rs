//! Requests per second through a pool to a server in the same process:
//! `cargo run --release -p webhook-delivery --example throughput [requests] [threads]`

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use uuid::Uuid;
use webhook_delivery::{Attempt, Format, Key, Network, Pool, Roots, Route, Setup};

fn main() -> io::Result<()> {
    let argument = |n, default| {
        let text = env::args().nth(n);
        text.and_then(|a| a.parse().ok()).unwrap_or(default)
    };
    let (requests, threads) = (argument(1, 50_000), argument(2, 32));

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let route = Arc::new(Route {
        endpoint_id: 1,
        url: format!("http://{}/hook", listener.local_addr()?),
        headers: Vec::new(),
        format: Format::Standard,
        secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
        connect_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(10),
        max_in_flight: threads,
    });
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_all(stream));
        }
    });

    let network = Network {
        allow: "127.0.0.1".parse().map_err(io::Error::other)?,
        ..Network::default()
    };
    let roots = Roots::default();
    let pool = Pool::start(threads, Setup { network, roots })?;
    let started = Instant::now();
    pool.submit((0..requests).map(|n| attempt(n, &route)).collect());
    let (mut sent, mut failed) = (0, 0);
    while sent + failed < requests {
        for outcome in pool.take_outcomes() {
            match outcome.result {
                Ok(response) if response.status == 200 => sent += 1,
                _ => failed += 1,
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    let rate = requests as f64 / started.elapsed().as_secs_f64();
    println!("{threads} threads: {sent} sent, {failed} failed, {rate:.0} requests/s");
    Ok(())
}

fn attempt(n: usize, route: &Arc<Route>) -> Attempt {
    Attempt {
        key: Key {
            event_id: Uuid::from_u128(n as u128),
            endpoint_id: route.endpoint_id,
            claim_seq: 1,
        },
        earlier_attempts: 0,
        event_type: "order.created".into(),
        tenant: None,
        occurred_at: "2024-05-06T07:08:09Z".into(),
        payload: format!(r#"{{"order": {n}}}"#),
        route: route.clone(),
    }
}

fn answer_all(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        io::copy(&mut (&mut stream).take(length), &mut io::sink())?;
        stream
            .get_mut()
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
}
