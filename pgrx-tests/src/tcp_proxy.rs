//! A proxy in front of a cluster that loses connections when it is told to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::cluster::Cluster;
use crate::port;

/// The end of an answer to a statement of its own: it is committed, and the server is ready for the next one.
const READY_FOR_QUERY: &[u8] = &[b'Z', 0, 0, 0, 5, b'I'];

/// Its threads end with their connections, and the one that accepts them with the test process.
pub struct TcpProxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Vec<TcpStream>>,
    loses_next_answer: AtomicBool,
}

impl TcpProxy {
    pub fn start(cluster: &Cluster) -> TcpProxy {
        let (port, server) = (port::free(), cluster.port());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Where the server is down, the client finds its connection closed.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) {
                    accepting.connect(client, server);
                }
            }
        });
        TcpProxy { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server gets what is sent next and executes it; its answer is not passed on, and the connection is cut.
    pub fn lose_next_answer(&self) {
        self.shared.loses_next_answer.store(true, Ordering::SeqCst);
    }

    /// Cuts the connections there are; new ones are accepted.
    pub fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket can be cloned");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("it is a TCP socket");
        }
        let mut connections = self.connections.lock().unwrap();
        connections.extend([clone(&client), clone(&server)]);
        drop(connections);

        let (mut from, mut to) = (clone(&client), clone(&server));
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let shared = Arc::clone(self);
        thread::spawn(move || {
            shared.pass_answers_on(&server, &client);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        });
    }

    fn pass_answers_on(&self, mut server: &TcpStream, mut client: &TcpStream) {
        let mut buffer = [0; 8192];
        let mut lost: Vec<u8> = Vec::new();
        while let Ok(length @ 1..) = server.read(&mut buffer) {
            if self.loses_next_answer.load(Ordering::SeqCst) {
                lost.extend(&buffer[..length]);
                if lost.ends_with(READY_FOR_QUERY) {
                    self.loses_next_answer.store(false, Ordering::SeqCst);
                    return;
                }
            } else if client.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    }
}
