//! A proxy in front of a server that is slow, or loses connections or their data, when it is told to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

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
    connections: Mutex<Vec<Arc<Connection>>>,
    loses_next_answer: AtomicBool,
    swallows: AtomicBool,
    delay_ms: AtomicU64,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Whether nothing is passed on any more.
    is_swallowed: AtomicBool,
}

impl TcpProxy {
    pub fn start(cluster: &Cluster) -> TcpProxy {
        TcpProxy::to(cluster.port())
    }

    /// A proxy in front of the server on this port.
    pub fn to(server: u16) -> TcpProxy {
        let port = port::free();
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

    /// All data of connections take so much longer from now on, in each direction.
    pub fn delay(&self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).expect("it is short");
        self.shared.delay_ms.store(milliseconds, Ordering::SeqCst);
    }

    /// The server gets the next message and executes it; its answer is not passed on, and the connection is cut.
    pub fn lose_next_answer(&self) {
        self.shared.loses_next_answer.store(true, Ordering::SeqCst);
    }

    /// Cuts the connections there are; new ones are accepted.
    pub fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            connection.close_at_client();
            connection.close_at_server();
        }
    }

    /// All data of connections are lost from now on, also of new ones. Neither side is told.
    pub fn swallow(&self) {
        self.shared.swallows.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().unwrap().iter() {
            connection.is_swallowed.store(true, Ordering::SeqCst);
        }
    }

    /// New connections carry again; swallowed ones stay as they are.
    pub fn stop_swallowing(&self) {
        self.shared.swallows.store(false, Ordering::SeqCst);
    }

    /// The server finds its connections closed, as after a timeout; clients hear nothing of it where they are
    /// swallowed.
    pub fn close_at_server(&self) {
        for connection in self.shared.connections.lock().unwrap().iter() {
            connection.close_at_server();
        }
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("it is a TCP socket");
        }
        let mut connections = self.connections.lock().unwrap();
        let connection = Arc::new(Connection {
            client,
            server,
            is_swallowed: AtomicBool::new(self.swallows.load(Ordering::SeqCst)),
        });
        connections.push(Arc::clone(&connection));
        drop(connections);

        let (asking, questions) = (Arc::clone(self), Arc::clone(&connection));
        thread::spawn(move || {
            asking.pass_questions_on(&questions);
            questions.close_at_server();
        });
        let shared = Arc::clone(self);
        thread::spawn(move || {
            shared.pass_answers_on(&connection);
            if !connection.is_swallowed() {
                connection.close_at_client();
            }
        });
    }

    fn take_time(&self) {
        thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
    }

    fn pass_questions_on(&self, connection: &Connection) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = (&connection.client).read(&mut buffer) {
            self.take_time();
            let passes = !connection.is_swallowed();
            if passes && (&connection.server).write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    }

    fn pass_answers_on(&self, connection: &Connection) {
        let mut buffer = vec![0; 1 << 16];
        let mut lost: Vec<u8> = Vec::new();
        while let Ok(length @ 1..) = (&connection.server).read(&mut buffer) {
            self.take_time();
            if self.loses_next_answer.load(Ordering::SeqCst) {
                lost.extend(&buffer[..length]);
                if lost.ends_with(READY_FOR_QUERY) {
                    self.loses_next_answer.store(false, Ordering::SeqCst);
                    connection.close_at_server();
                    return;
                }
            } else if connection.is_swallowed() {
                continue;
            } else if (&connection.client).write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    }
}

impl Connection {
    fn is_swallowed(&self) -> bool {
        self.is_swallowed.load(Ordering::SeqCst)
    }

    fn close_at_client(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
    }

    fn close_at_server(&self) {
        let _ = self.server.shutdown(Shutdown::Both);
    }
}
