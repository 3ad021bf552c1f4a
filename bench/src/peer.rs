//! A sender in a process of its own that takes an order and waits for "go": the bare client and the peers
//! of npm.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use std::{env, thread};

use webhook_e2e::directory::target_directory;

const READY_WITHIN: Duration = Duration::from_secs(120);
const STOPS_WITHIN: Duration = Duration::from_secs(10);

pub struct Peer {
    child: Child,
    /// Not always the pid of the child: a script may start node.
    pid: i32,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// A program of this package.
pub fn program(name: &str) -> PathBuf {
    let runner = env::current_exe().expect("the running program has a path");
    runner.with_file_name(name)
}

/// The folder that `make bench` installs packages of npm in.
fn modules() -> PathBuf {
    target_directory().join("peers/node_modules")
}

fn node() -> PathBuf {
    let venv = env::var_os("WEBHOOK_TEST_VENV").map(PathBuf::from);
    let node = venv.map(|venv| venv.join("bin/node"));
    (node.filter(|node| node.exists())).unwrap_or("node".into())
}

/// The version of a package of npm, if it is installed.
pub fn installed(package: &str) -> Option<String> {
    let file = modules().join(package).join("package.json");
    let text = std::fs::read_to_string(file).ok()?;
    let description: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(description["version"].as_str()?.to_owned())
}

pub fn script(name: &str) -> Command {
    let mut command = Command::new(node());
    command.env("NODE_PATH", modules());
    command.arg(
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("peers")
            .join(name),
    );
    command
}

impl Peer {
    /// Waits until its jobs are committed.
    pub fn start(mut command: Command, order: &serde_json::Value) -> Result<Peer, String> {
        command.arg(order.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = (command.spawn()).map_err(|error| format!("{command:?}: {error}"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (said, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        let mut peer = Peer {
            child,
            pid: 0,
            input,
            lines,
        };
        let said = peer.lines.recv_timeout(READY_WITHIN);
        let pid = (said.as_ref().ok()).and_then(|line| line.strip_prefix("ready ")?.parse().ok());
        peer.pid = pid.ok_or(format!("it was to be ready, and said {said:?}"))?;
        Ok(peer)
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets it begin; after the limit it is stopped. Returns how many it settled, and in what time.
    pub fn go(&mut self, limit: Duration) -> Result<(u64, f64), String> {
        let begun = Instant::now();
        self.say("go")?;
        let mut line = self.lines.recv_timeout(limit);
        let took = begun.elapsed().as_secs_f64();
        if line.is_err() {
            self.say("stop")?;
            line = self.lines.recv_timeout(STOPS_WITHIN);
        }
        let settled = (line.ok()).and_then(|line| line.strip_prefix("done ")?.parse().ok());
        let settled = settled.ok_or("it ended without a word")?;
        Ok((settled, took))
    }

    fn say(&mut self, word: &str) -> Result<(), String> {
        writeln!(self.input, "{word}").map_err(|error| format!("it does not listen: {error}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for pid in [self.pid, self.child.id() as i32] {
            if pid > 0 {
                // SAFETY: kill has no memory preconditions, and neither has been reaped: the child not by
                // us, and the peer lives until its input ends.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        let _ = self.child.wait();
    }
}
