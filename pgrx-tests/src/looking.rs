//! Looking at figures: a relay that serves them, and programs of others that read its answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::host::relay_program;
use crate::process::unprivileged;
use crate::verifier::virtual_environment;
use crate::{Cluster, Database, Relay, port, wait};

const METRICS: &str = include_str!("../verifiers/parse_metrics.py");
const BROWSE: &str = include_str!("../verifiers/browse.py");

/// A role of the database's own that has these levels; a connection string.
pub fn role_with(cluster: &Cluster, database: &Database, levels: &[&str]) -> String {
    let role = format!("{}_of_{}", levels.join("_"), database.name());
    database.execute(&format!("CREATE ROLE {role} LOGIN"));
    for level in levels {
        database.execute(&format!("SELECT webhook_grant('{role}', '{level}')"));
    }
    let (port, name) = (cluster.port(), database.name());
    format!("host=127.0.0.1 port={port} user={role} dbname={name}")
}

/// A relay that answers over HTTP.
pub struct Looking {
    pub port: u16,
    pub relay: Relay,
}

impl Looking {
    #[track_caller]
    pub fn start(connection: &str, options: &[&str]) -> Looking {
        let port = port::free();
        let address = format!("127.0.0.1:{port}");
        let options = [&["--http", &address], options].concat();
        let relay = Relay::start(&relay_program(), connection, &options);
        Looking { port, relay }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answered {
        self.ask(path, &[("host", "localhost")])
    }

    #[track_caller]
    pub fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Answered {
        get(self.port, path, headers).expect("the relay answers")
    }
}

#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answered {
    /// Its value; nothing where it is not there.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut lines = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        lines.next().map(|(_, value)| value)
    }
}

/// Nothing where there is no answer.
pub fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> Option<Answered> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(wait::DEADLINE)).ok()?;
    let headers: String = (headers.iter())
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut answered = Answered {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_owned(),
        body: body.to_owned(),
    };
    if answered.header("transfer-encoding") == Some("chunked") {
        answered.body = without_chunks(body)?;
    }
    Some(answered)
}

fn without_chunks(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, chunks) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(chunks.get(..length)?);
        rest = chunks.get(length..)?.strip_prefix("\r\n")?;
    }
}

/// The output of `webhook-relay metrics` or `page`, or why there is none.
pub fn print(command: &str, connection: &str) -> Result<String, String> {
    let mut program = unprivileged(relay_program());
    let output = program.env_clear().args([command, connection]).output();
    let output = output.expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

/// Families of metrics, as the official parser reads them.
pub struct Metrics(pub Vec<Value>);

impl Metrics {
    #[track_caller]
    pub fn parse(text: &str) -> Metrics {
        let mut python = Command::new(virtual_environment().join("bin/python3"));
        let parsed = said(python.args(["-c", METRICS]), text);
        Metrics(serde_json::from_str(&parsed).expect("the parser prints JSON"))
    }

    pub fn samples(&self, name: &str) -> Vec<(Value, f64)> {
        let samples = self
            .0
            .iter()
            .flat_map(|family| family["samples"].as_array());
        let samples = samples.flatten().filter(|sample| sample[0] == name);
        samples
            .map(|sample| (sample[1].clone(), sample[2].as_f64().expect("a number")))
            .collect()
    }

    /// The only sample that has these labels.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &Value) -> f64 {
        let found = self.samples(name).into_iter();
        let found: Vec<_> = found.filter(|(found, _)| found == labels).collect();
        assert_eq!(found.len(), 1, "{name} {labels}: {:?}", self.samples(name));
        found[0].1
    }
}

/// The page as Chromium shows it: verifiers/browse.py.
#[track_caller]
pub fn browse(url: &str, width: u32, scheme: &str) -> Value {
    let mut python = Command::new("python3");
    let width = width.to_string();
    let report = said(python.args(["-c", BROWSE, url, &width, scheme]), "");
    serde_json::from_str(&report).unwrap_or_else(|_| panic!("no report of {url}: {report}"))
}

/// The output of a program for this input.
#[track_caller]
fn said(program: &mut Command, input: &str) -> String {
    let child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("could not run {program:?}: {error}"));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads all");
    drop(stdin);
    let output = child.wait_with_output().expect("it can be waited for");
    assert!(output.status.success(), "{program:?}");
    String::from_utf8(output.stdout).expect("it is text")
}
