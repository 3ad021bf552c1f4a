//! How a relay is, as people, probes and service managers learn it.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use webhook_e2e::directory::ServerDirectory;
use webhook_e2e::looking::{get, role_with};
use webhook_e2e::relay::ServiceManager;
use webhook_e2e::{Cluster, Database, Looking, Receiver, Relay, port, wait};
use webhook_engine::allow_open_files;

use super::upgrading::of_protocol;

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

/// Status and body, for a client that may see figures.
fn ask(port: u16) -> Option<(u16, Value)> {
    ask_with(port, &[("host", "localhost")])
}

fn ask_with(port: u16, headers: &[(&str, &str)]) -> Option<(u16, Value)> {
    let answer = get(port, "/healthz", headers)?;
    Some((answer.status, serde_json::from_str(&answer.body).ok()?))
}

#[track_caller]
fn wait_for(port: u16, wanted: (u16, Value)) {
    wait::until("the relay to say how it is", || match ask(port) {
        Some(seen) if seen == wanted => Ok(()),
        seen => Err(seen),
    });
}

#[test]
fn healthz_says_whether_the_relay_delivers_and_why_not() {
    let mut cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .start();
    let database = cluster.database("health");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let port = port::free();
    let connection = cluster.address(cluster.port(), database.name());
    let address = format!("127.0.0.1:{port}");
    let options = ["--http", &address, "--log-format=json", "--grace=0"];
    let relay = Relay::start(PROGRAM, &connection, &options);
    let delivering =
        |in_flight| json!({"state": "delivering", "reason": null, "in_flight": in_flight});
    wait_for(port, (200, delivering(0)));
    database.emit("order.created", json!({}));
    wait_for(port, (200, delivering(1)));

    cluster.stop();
    wait::until("the relay to say that it does not deliver", || {
        match ask(port) {
            Some((503, body)) if body["state"] == "waiting" && body["reason"].is_string() => Ok(()),
            seen => Err(seen),
        }
    });
    cluster.start_server();
    wait_for(port, (200, delivering(1)));

    let log = relay.log();
    let levels = log.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        line["level"].as_str().expect("it has a level").to_owned()
    });
    assert!(
        levels.collect::<Vec<_>>().contains(&"WARNING".to_owned()),
        "{log}"
    );
}

#[test]
fn a_client_without_the_token_sees_the_state_alone() {
    let cluster = Cluster::relayed();
    let database = cluster.database("anonymous");
    let role = format!("relay_of_{}", database.name());
    let connection = role_with(cluster, &database, &["relay"]);
    let directory = ServerDirectory::create("e2e");
    let file = directory.join("token");
    fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("it can be written");
    let file = file.display().to_string();
    let looking = Looking::start(&connection, &["--token-file", &file]);
    let anonymous = [("host", "localhost")];
    let wrong = ("authorization", "Bearer 0123456789abcdef0123456789abcdee");
    let right = ("authorization", "Bearer 0123456789abcdef0123456789abcdef");
    let others = [&anonymous[..], &[("host", "localhost"), wrong]];
    let delivering = json!({"state": "delivering"});
    for headers in others {
        wait::until("the relay to deliver", || {
            match ask_with(looking.port, headers) {
                Some((200, body)) if body == delivering => Ok(()),
                seen => Err(seen),
            }
        });
    }

    // The role is refused before its session ends, or the relay could be back at once.
    database.execute(&format!("ALTER ROLE {role} NOLOGIN"));
    database.execute(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    ));
    let waiting = |headers: &[(&str, &str)]| {
        wait::until("the relay to be without a connection", || {
            match ask_with(looking.port, headers) {
                Some((503, body)) => Ok(body),
                seen => Err(seen),
            }
        })
    };
    wait::until("the server's words", || {
        let body = waiting(&[("host", "localhost"), right]).to_string();
        if body.contains(&role) {
            Ok(())
        } else {
            Err(body)
        }
    });
    for headers in others {
        assert_eq!(waiting(headers), json!({"state": "waiting"}));
    }
}

/// A connection from this address of loopback, which is another client to the relay.
fn connect_from(client: Ipv4Addr, port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect(&relay.into()).unwrap();
    socket.into()
}

/// The time that an orchestrator gives a health check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

#[track_caller]
fn assert_answers(mut client: TcpStream, of: &str) {
    client.set_read_timeout(Some(PROBE_TIMEOUT)).unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: relay\r\n\r\n";
    client.write_all(request).unwrap();
    let mut answer = String::new();
    client
        .read_to_string(&mut answer)
        .unwrap_or_else(|error| panic!("{of}: {error}"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{of}: {answer}");
}

/// A relay that delivers, and open files for many connections to it.
fn start_for_many_clients(name: &str) -> (Database, Looking) {
    let cluster = Cluster::relayed();
    let database = cluster.database(name);
    let connection = cluster.address(cluster.port(), database.name());
    let looking = Looking::start(&connection, &[]);
    wait_for(
        looking.port,
        (
            200,
            json!({"state": "delivering", "reason": null, "in_flight": 0}),
        ),
    );
    assert!(allow_open_files(1500).is_ok(), "files for the connections");
    (database, looking)
}

#[test]
fn a_health_check_is_answered_while_a_client_holds_a_thousand_connections() {
    const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    let (_database, looking) = start_for_many_clients("starved");
    for sent in ["", "G", "GET /healthz HTTP/1.1\r\nhost: relay\r\n"] {
        // Another client's connection stays, although it is the oldest.
        let other = connect_from(Ipv4Addr::LOCALHOST, looking.port);
        let mut held = Vec::new();
        for _ in 0..1000 {
            let mut connection = connect_from(CLIENT, looking.port);
            connection.write_all(sent.as_bytes()).unwrap();
            held.push(connection);
        }
        assert_answers(other, &format!("{sent:?}, an older connection"));
        for client in [CLIENT, Ipv4Addr::LOCALHOST] {
            let of = format!("{sent:?}, a new connection");
            assert_answers(connect_from(client, looking.port), &of);
        }
    }
}

#[test]
fn a_health_check_is_answered_while_a_client_goes_on_connecting() {
    let (_database, looking) = start_for_many_clients("flooded");
    let connect = || connect_from(Ipv4Addr::LOCALHOST, looking.port);
    let mut held = VecDeque::new();
    for _ in 0..20 {
        held.extend((0..300).map(|_| connect()));
        held.drain(..held.len().saturating_sub(900));
        assert_answers(connect(), "a new connection");
    }
}

#[test]
fn a_relay_one_protocol_ahead_or_behind_holds_and_says_what_helps() {
    let cluster = Cluster::relayed();
    let database = cluster.database("skew");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let spoken: i32 = database.query_one_value("SELECT webhook.protocol()");
    let port = port::free();
    let connection = cluster.address(cluster.port(), database.name());
    let address = format!("127.0.0.1:{port}");
    for (of_sql, remedy) in [
        (
            spoken + 1,
            "install webhook-relay of the same version as the extension",
        ),
        (
            spoken - 1,
            "ALTER EXTENSION webhook UPDATE brings the SQL up to date",
        ),
    ] {
        let problem = format!(
            "this relay speaks protocol {spoken}, and the SQL of this database protocol {of_sql}; {remedy}"
        );
        let holds = || {
            let reason = json!({"state": "waiting", "reason": problem, "in_flight": 0});
            wait_for(port, (503, reason));
        };
        // One that starts.
        database.execute(&of_protocol(of_sql));
        let relay = Relay::start(PROGRAM, &connection, &["--http", &address]);
        holds();
        relay.wait_for_log(&format!("webhook-relay delivers nothing: {problem}"));
        let event = database.emit("order.created", json!({}));
        let senders = "SELECT count(*) FROM webhook.sender";
        assert_eq!(
            database.query_one_value::<i64>(senders),
            0,
            "it touches nothing"
        );
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
        database.execute(&of_protocol(spoken));
        database.wait_for_status(event, "SENT");
        // One that delivers.
        database.execute(&of_protocol(of_sql));
        holds();
        let event = database.emit("order.created", json!({}));
        database.execute(&of_protocol(spoken));
        database.wait_for_status(event, "SENT");
        relay.terminate();
        assert!(relay.wait().success(), "{}", relay.log());
    }
    assert_eq!(receiver.request_count(), 4);
}

#[test]
fn the_service_manager_is_told_when_the_relay_is_ready_and_when_it_stops() {
    let cluster = Cluster::relayed();
    let database = cluster.database("service");
    let manager = ServiceManager::start();
    let told = || manager.told();
    let mut command = Relay::program(PROGRAM);
    manager.manage(&mut command);
    command.arg(cluster.address(cluster.port(), database.name()));
    let relay = Relay::spawn(command);
    assert_eq!(told(), "READY=1\nSTATUS=delivering");
    relay.terminate();
    assert_eq!(told(), "STOPPING=1");
    assert!(relay.wait().success(), "{}", relay.log());
}
