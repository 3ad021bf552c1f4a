//! The receivers of docs/receiving.md, run as they are written: the requests that they take and refuse, and how
//! often.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use standardwebhooks::Webhook;
use webhook_e2e::process::Process;
use webhook_e2e::programs::{node, python};
use webhook_e2e::{Cluster, Database, port, wait};

use super::recipes::blocks;

const PAGE: &str = include_str!("../../../docs/receiving.md");

struct Receiving {
    _process: Process,
    database: Database,
    port: u16,
    secret: String,
}

impl Receiving {
    fn start(mut program: Command) -> Receiving {
        let cluster = Cluster::shared();
        let database = cluster.database("receiving");
        database.execute(blocks(PAGE, "\n## Take it once\n", "sql")[0]);
        database.execute("TRUNCATE inbox");
        let port = port::free();
        let url = format!("http://127.0.0.1:{port}/hooks");
        let secret = database.add_endpoint_with("shop", &url, "policy => 'fast'");
        program.env("PORT", port.to_string());
        program.env("WEBHOOK_SECRET", &secret);
        program.env("DATABASE_URL", cluster.url(cluster.port(), database.name()));
        program.stderr(Stdio::null());
        let process = Process::spawn(program, libc::SIGKILL);
        wait::until("the receiver to listen", || {
            assert_eq!(process.exit_status(), None, "the receiver has ended");
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        });
        Receiving {
            _process: process,
            database,
            port,
            secret,
        }
    }

    fn received(&self) -> i64 {
        self.database.query_one_value("SELECT count(*) FROM inbox")
    }

    /// The status that a request gets.
    fn post(&self, id: &str, timestamp: i64, signature: &str, body: &str) -> u16 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /hooks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\
             webhook-id: {id}\r\nwebhook-timestamp: {timestamp}\r\nwebhook-signature: {signature}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("it answers");
        let status = str::from_utf8(&answer).unwrap().split_at(9).1;
        status.parse().unwrap()
    }
}

fn in_python() -> Command {
    python(blocks(PAGE, "\n### Python\n", "python")[0])
}

fn in_javascript() -> Command {
    node(blocks(PAGE, "\n### Node.js\n", "js")[0])
}

fn takes_each_event_once_and_the_old_secret_until_it_ends(program: Command) {
    let receiving = Receiving::start(program);
    let database = &receiving.database;
    let event = database.emit("order.created", json!({"item": "teapot"}));
    database.wait_for_status(event, "SENT");
    let stored: Value = database.query_one_value(&format!(
        "SELECT event FROM inbox WHERE webhook_id = '{event}'"
    ));
    assert_eq!(stored["data"], json!({"item": "teapot"}));

    database.execute(&format!("SELECT webhook_replay('{event}')"));
    database.wait_until(&format!(
        "SELECT status = 'SENT' AND claim_seq = 2 FROM webhook.delivery WHERE event_id = '{event}'"
    ));
    assert_eq!(receiving.received(), 1);

    database.execute("SELECT webhook_rotate_secret('shop')");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(receiving.received(), 2);
    database.execute("UPDATE webhook.secret SET expires_at = now() WHERE expires_at IS NOT NULL");
    let event = database.emit("order.created", json!({}));
    database.wait_until(&format!(
        "SELECT EXISTS (SELECT FROM webhook.attempt WHERE event_id = '{event}' AND status_code = 401)"
    ));
    assert_eq!(receiving.received(), 2);
}

fn refuses_whatever_does_not_verify(program: Command) {
    let receiving = Receiving::start(program);
    let library = Webhook::new(&receiving.secret).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_secs() as i64;
    let body = r#"{"type": "order.created"}"#;
    let sign = |timestamp| library.sign("a", timestamp, body.as_bytes()).unwrap();
    for (case, timestamp, signature, sent) in [
        ("an old one", now - 310, sign(now - 310), body),
        ("one from the future", now + 310, sign(now + 310), body),
        ("another body", now, sign(now), r#"{"type": "order.paid"}"#),
        ("another time", now - 1, sign(now), body),
        ("no signature", now, String::new(), body),
        ("half a signature", now, "v1".to_owned(), body),
        ("no base64", now, "v1,x".to_owned(), body),
    ] {
        let status = receiving.post("a", timestamp, &signature, sent);
        assert_eq!(status, 401, "{case}");
    }
    assert_eq!(receiving.received(), 0);
    assert_eq!(receiving.post("a", now, &sign(now), body), 200);
    assert_eq!(receiving.received(), 1);
}

#[test]
fn the_receiver_in_python_takes_each_event_once_and_the_old_secret_until_it_ends() {
    takes_each_event_once_and_the_old_secret_until_it_ends(in_python());
}

#[test]
fn the_receiver_in_javascript_takes_each_event_once_and_the_old_secret_until_it_ends() {
    takes_each_event_once_and_the_old_secret_until_it_ends(in_javascript());
}

#[test]
fn the_receiver_in_python_refuses_whatever_does_not_verify() {
    refuses_whatever_does_not_verify(in_python());
}

#[test]
fn the_receiver_in_javascript_refuses_whatever_does_not_verify() {
    refuses_whatever_does_not_verify(in_javascript());
}
