//! Ports that stay ours while nobody listens on them.

use std::net::{Ipv4Addr, TcpStream};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range that the kernel gives to outgoing connections: an outgoing connection could take the port of a
/// server that is being restarted, or answer on a port that is meant to be closed.
const FIRST: u32 = 15_000;
const COUNT: u32 = 17_000;

/// A port on loopback that was free a moment ago and is never given twice by this process.
pub fn free() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Spread, so that test processes running at the same time rarely try the same port.
    let start = process::id().wrapping_mul(101);
    (0..COUNT)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
        .map(|n| (FIRST + n % COUNT) as u16)
        // It knocks and does not listen: a process that another thread forks meanwhile would keep the port in use.
        .find(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err())
        .expect("no free port on loopback")
}
