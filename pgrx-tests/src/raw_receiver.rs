//! A server on loopback that reads a request and answers with bytes that need not be HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::{port, wait};

/// Dropped, it closes its port.
pub struct RawReceiver {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Vec<SocketAddr>>,
    requests: AtomicUsize,
    stopped: AtomicBool,
}

impl RawReceiver {
    /// Writes these bytes to everybody who has sent a request, and closes the connection.
    pub fn answering(bytes: &'static [u8]) -> RawReceiver {
        RawReceiver::doing(move |stream| {
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Both);
        })
    }

    /// Answers every request with a TCP reset.
    pub fn resetting() -> RawReceiver {
        RawReceiver::doing(|stream| reset_when_closed(stream))
    }

    /// Does this with every connection that a request came on, each on a thread of its own.
    pub fn doing(answer: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> RawReceiver {
        RawReceiver::serving(move |stream, shared| {
            let mut stream = BufReader::new(stream);
            if read_request(&mut stream).is_some() {
                shared.requests.fetch_add(1, Ordering::SeqCst);
                answer(stream.get_mut());
            }
        })
    }

    /// Does this with every connection as soon as it is made, each on a thread of its own; it is told how many came
    /// before.
    pub fn meeting(act: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> RawReceiver {
        RawReceiver::serving(move |stream, shared| {
            act(stream, shared.requests.fetch_add(1, Ordering::SeqCst));
        })
    }

    fn serving(act: impl Fn(TcpStream, &Shared) + Send + Sync + 'static) -> RawReceiver {
        let port = port::free();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .unwrap_or_else(|error| panic!("could not listen on port {port}: {error}"));
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || serve(listener, Arc::new(act), shared))
        };
        RawReceiver {
            port,
            shared,
            thread: Some(thread),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.authority())
    }

    /// Address and port, as in a URL.
    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connections that were made before, also without a request. They are accepted in the order in which they were
    /// made: when one of our own is, none of them is still to come.
    #[track_caller]
    pub fn connection_count(&self) -> usize {
        let own = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let own = own.and_then(|own| own.local_addr());
        let own = own.expect("the port is open");
        wait::until("a connection of ours to be accepted", || {
            let mut connections = self.shared.connections.lock().unwrap();
            let place = connections.iter().position(|other| *other == own);
            let place = place.ok_or(connections.len())?;
            connections.remove(place);
            Ok::<_, usize>(connections.len())
        })
    }

    pub fn request_count(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl Drop for RawReceiver {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // The thread looks when a connection comes.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: TcpListener,
    act: Arc<impl Fn(TcpStream, &Shared) + Send + Sync + 'static>,
    shared: Arc<Shared>,
) {
    loop {
        let (stream, peer) = listener.accept().expect("a connection can be accepted");
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        shared.connections.lock().unwrap().push(peer);
        let (act, shared) = (act.clone(), shared.clone());
        thread::spawn(move || act(stream, &shared));
    }
}

/// Its peer finds the connection reset and not closed.
pub fn reset_when_closed(stream: &TcpStream) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the socket is open, and the option is read before the call returns.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            ptr::from_ref(&at_once).cast(),
            size_of_val(&at_once) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "a socket can be told to reset");
}

/// None if the client left before it had sent a request.
fn read_request(stream: &mut impl BufRead) -> Option<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length]).ok()
}
