//! The runner's end of the sink: a process that dies with its input.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use crate::peer::program;

pub struct Sink {
    port: u16,
    addresses: u32,
    talk: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    child: Child,
}

#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub requests: u64,
    pub hung: u64,
    pub body_bytes: u64,
    pub unsigned: u64,
}

impl Sink {
    pub fn start(delay_ms: u64, addresses: u32) -> Sink {
        let mut child = Command::new(program("sink"))
            .args(["--delay", &delay_ms.to_string()])
            .args(["--addresses", &addresses.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the sink is built beside the runner");
        let input = child.stdin.take().expect("it is piped");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the sink speaks");
        let port = line.trim().strip_prefix("port ").map(str::parse);
        let port = port.expect("the sink tells its port").expect("a number");
        Sink {
            port,
            addresses,
            talk: Mutex::new((input, output)),
            child,
        }
    }

    pub fn urls(&self) -> Vec<String> {
        (0..self.addresses)
            .map(|number| {
                let address = Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + number);
                format!("http://{address}:{}/", self.port)
            })
            .collect()
    }

    /// A URL that is never answered.
    pub fn hanging(&self) -> String {
        format!("{}hang", self.urls()[0])
    }

    pub fn counts(&self) -> Counts {
        let mut talk = self.talk.lock().expect("nobody panics with it");
        let (input, output) = &mut *talk;
        let mut line = String::new();
        input.write_all(b"?\n").expect("the sink listens");
        output.read_line(&mut line).expect("the sink answers");
        let mut numbers = line
            .split_whitespace()
            .map(|text| text.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Counts {
            requests: next(),
            hung: next(),
            body_bytes: next(),
            unsigned: next(),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
