//! Signed POSTs of 500 bytes through a pool to a server that answers at once, in a process of its own:
//! `cargo run --release -p webhook-delivery --example throughput [requests] [in flight]`

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io, mem};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;
use webhook_delivery::{Attempt, EndpointOwner, Format, Key, Network, Pool, Roots, Route, Setup};

fn main() -> io::Result<()> {
    if env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let argument = |n, default| {
        let text = env::args().nth(n);
        text.and_then(|a| a.parse().ok()).unwrap_or(default)
    };
    let (requests, in_flight): (usize, usize) = (argument(1, 200_000), argument(2, 64));

    let mut server = Command::new(env::current_exe()?)
        .arg("serve")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let output = server.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(output).read_line(&mut address)?;
    let measured = measure(address.trim(), requests, in_flight);
    server.kill()?;
    measured
}

fn measure(address: &str, requests: usize, in_flight: usize) -> io::Result<()> {
    let route = Arc::new(Route {
        endpoint_id: 1,
        owner: EndpointOwner::Installation,
        url: format!("http://{address}/hook"),
        headers: Vec::new(),
        format: Format::Raw,
        secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
        hmac_secrets: Vec::new(),
        connect_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(10),
    });
    let network = Network {
        allow: "127.0.0.1".parse().map_err(io::Error::other)?,
        ports: "1-65535".parse().map_err(io::Error::other)?,
        ..Network::default()
    };
    let roots = Roots::default();
    let pool = Pool::start(Setup { network, roots })?;
    let (started, cpu) = (Instant::now(), cpu_time());
    let (mut submitted, mut sent, mut failed) = (0, 0, 0);
    while sent + failed < requests {
        let room = in_flight - (submitted - sent - failed);
        let room = room.min(requests - submitted);
        pool.submit((0..room).map(|n| attempt(submitted + n, &route)).collect());
        submitted += room;
        wait_for(&pool);
        for outcome in pool.take_outcomes() {
            match outcome.result {
                Ok(response) if response.status == 200 => sent += 1,
                _ => failed += 1,
            }
        }
    }
    let rate = requests as f64 / started.elapsed().as_secs_f64();
    let each = (cpu_time() - cpu).as_secs_f64() * 1e6 / requests as f64;
    println!(
        "{in_flight} in flight: {sent} sent, {failed} failed, {rate:.0}/s, {each:.1} us of CPU each"
    );
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
        payload: format!(r#"{{"order": {n}, "text": "{}"}}"#, "x".repeat(470)),
        route: route.clone(),
    }
}

fn wait_for(pool: &Pool) {
    let mut poll = libc::pollfd {
        fd: pool.wake_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd that lives through the call.
    unsafe { libc::poll(&mut poll, 1, 1000) };
}

fn cpu_time() -> Duration {
    // SAFETY: rusage is plain data, which the call fills in.
    let used = unsafe {
        let mut used: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut used);
        used
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(used.ru_utime) + time(used.ru_stime)
}

fn serve() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        loop {
            tokio::spawn(answer_all(listener.accept().await?.0));
        }
    })
}

async fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut filled) = (vec![0; 16 * 1024], 0);
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let head = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n");
        let Some(head) = head else { continue };
        let text = String::from_utf8_lossy(&buffer[..head]).to_lowercase();
        let length = text.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        let whole = head + 4 + length.unwrap_or(0_usize);
        if filled >= whole {
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await?;
        }
    }
}
