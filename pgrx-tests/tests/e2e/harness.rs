//! The harness keeps its own promises, on a server without the extension.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write, stdin};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, thread};

use standardwebhooks::Webhook;
use webhook_e2e::directory::ServerDirectory;
use webhook_e2e::process::complete;
use webhook_e2e::verifier::verify_signature;
use webhook_e2e::{Answer, Cluster, PgBouncer, Receiver, Request, wait};

#[test]
fn a_dropped_cluster_leaves_no_process_and_no_files() {
    let cluster = plain_cluster();
    let directory = cluster.data_directory();
    assert!(!processes_in(&directory).is_empty());
    drop(cluster);
    assert_eq!(processes_in(&directory), Vec::<u32>::new());
    assert!(!directory.exists());
}

#[test]
fn servers_die_with_a_killed_test_process() {
    let mut victim = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "--ignored",
            "harness::cluster_that_waits_to_be_killed",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(victim.stdout.take().unwrap());
    let directory = (output.lines().map_while(Result::ok))
        .find_map(|line| {
            line.split_once("data directory: ")
                .map(|(_, path)| PathBuf::from(path))
        })
        .expect("the victim says where its cluster is");
    assert!(!processes_in(&directory).is_empty());
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait::until_true("the servers to die", || processes_in(&directory).is_empty());
}

#[test]
#[ignore = "the victim of servers_die_with_a_killed_test_process"]
fn cluster_that_waits_to_be_killed() {
    // On a thread that ends first, as the thread of a test does.
    let cluster = thread::spawn(plain_cluster).join().unwrap();
    println!("data directory: {}", cluster.data_directory().display());
    let _ = stdin().read(&mut [0]);
}

#[test]
fn a_killed_cluster_recovers_what_was_committed() {
    let mut cluster = plain_cluster();
    let database = cluster.plain_database("recovered");
    database.execute("CREATE TABLE kept AS SELECT 1 AS a");
    cluster.kill_immediately();
    cluster.start_server();
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM kept"),
        1
    );
    assert!(cluster.log().contains("automatic recovery in progress"));
}

#[test]
fn a_restarted_cluster_keeps_its_port_and_new_settings() {
    let mut cluster = plain_cluster();
    let database = cluster.plain_database("configured");
    cluster.configure("work_mem = '5MB'");
    cluster.reload();
    assert_eq!(database.query_one_value::<String>("SHOW work_mem"), "5MB");
    cluster.configure("max_connections = 50");
    cluster.restart();
    assert_eq!(
        database.query_one_value::<String>("SHOW max_connections"),
        "50"
    );
}

#[test]
fn a_dropped_database_is_gone_even_with_open_sessions() {
    let cluster = plain_cluster();
    let database = cluster.plain_database("busy");
    let name = database.name().to_owned();
    let _session = database.connect();
    drop(database);
    let query = "SELECT count(*) FROM pg_database WHERE datname = $1";
    let row = cluster
        .connect("postgres")
        .query_one(query, &[&name])
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

#[test]
fn pgbouncer_forwards_transactions() {
    let cluster = plain_cluster();
    let database = cluster.plain_database("pooled");
    let pgbouncer = PgBouncer::start(&cluster);
    let mut session = pgbouncer.connect(database.name());
    session
        .batch_execute("BEGIN; CREATE TABLE seen AS SELECT 7 AS a; COMMIT")
        .unwrap();
    assert_eq!(database.query_one_value::<i32>("SELECT a FROM seen"), 7);
}

#[test]
fn the_receiver_records_what_was_sent_and_answers_as_told() {
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, number| match number {
        1 => Answer::status(503).header("retry-after", "7").body("busy"),
        _ => Answer::status(204),
    });
    let mut connection = connect(&receiver);
    let first = post(&mut connection, "/orders?x=1", "{\"a\":1}");
    assert!(first.starts_with("HTTP/1.1 503 "), "{first}");
    assert!(first.contains("retry-after: 7"), "{first}");
    // Over the same connection: it is kept alive.
    let second = post(&mut connection, "/orders", "");
    assert!(second.starts_with("HTTP/1.1 204 "), "{second}");

    let requests = receiver.wait_for_requests(2);
    assert_eq!(requests[0].method, "POST");
    assert_eq!(requests[0].path, "/orders?x=1");
    assert_eq!(requests[0].header("x-mixed"), "Case");
    assert_eq!(requests[0].json()["a"], 1);
    assert_eq!(receiver.requests_to("/orders").len(), 2);
}

#[test]
fn held_answers_wait_on_64_connections_until_released() {
    let receiver = Receiver::start();
    receiver.hold("/slow");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..64)
            .map(|_| scope.spawn(|| post(&mut connect(&receiver), "/slow", "")))
            .collect();
        receiver.wait_for_requests(64);
        let other = post(&mut connect(&receiver), "/quick", "");
        assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
        assert!(clients.iter().all(|client| !client.is_finished()));
        receiver.release("/slow");
        for client in clients {
            assert!(client.join().unwrap().starts_with("HTTP/1.1 200 "));
        }
    });
}

#[test]
fn a_dropped_receiver_closes_its_port_and_connections() {
    let receiver = Receiver::start();
    let port = receiver.port();
    let mut open = connect(&receiver);
    post(&mut open, "/", "");
    drop(receiver);
    assert_eq!(open.read(&mut [0]).unwrap(), 0, "the connection is closed");
    // A process that another test is about to execute has inherited the socket for a moment.
    let refused = wait::until("the port to be closed", || {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => Err("connected"),
            Err(refused) => Ok(refused),
        }
    });
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    Receiver::start_on(port);
}

#[test]
fn the_verifiers_accept_only_the_right_secret() {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let timestamp = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    let body = "{\"name\":\"Zoë\"}";
    let signature = Webhook::new(SECRET)
        .unwrap()
        .sign("msg_1", timestamp, body.as_bytes())
        .unwrap();
    let request = received(
        body,
        &[
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", &timestamp.to_string()),
            ("webhook-signature", &signature),
        ],
    );
    assert_eq!(verify_signature(SECRET, &request), Ok(()));
    let refused = verify_signature("whsec_b3RoZXIgc2VjcmV0", &request).unwrap_err();
    assert!(refused.contains("No matching signature"), "{refused}");
}

#[test]
#[should_panic(expected = "for the moon; last seen: \"clouds\"")]
fn waiting_in_vain_says_what_was_seen() {
    wait::until_within(std::time::Duration::ZERO, "the moon", || {
        Err::<(), _>("clouds")
    });
}

fn plain_cluster() -> Cluster {
    Cluster::builder().without_preload().start()
}

/// Every process of a server works in its data directory.
fn processes_in(directory: &Path) -> Vec<u32> {
    let directory = directory.to_string_lossy();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| {
            // The kernel marks the link of a removed directory, so compare its beginning.
            fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|cwd| cwd.to_string_lossy().starts_with(&*directory))
        })
        .collect()
}

fn connect(receiver: &Receiver) -> TcpStream {
    let connection = TcpStream::connect(("127.0.0.1", receiver.port())).unwrap();
    connection.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    connection
}

/// Returns the answer's head, which tests read; bodies here arrive with it.
fn post(connection: &mut TcpStream, path: &str, body: &str) -> String {
    post_with(connection, path, body, &[("X-Mixed", "Case")])
}

fn post_with(
    connection: &mut TcpStream,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    write!(
        connection,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        let read = connection.read(&mut chunk).unwrap();
        assert_ne!(read, 0, "the connection was closed");
        answer.extend_from_slice(&chunk[..read]);
    }
    String::from_utf8(answer).unwrap()
}

/// The request as a receiver records it.
fn received(body: &str, headers: &[(&str, &str)]) -> Request {
    let receiver = Receiver::start();
    post_with(&mut connect(&receiver), "/", body, headers);
    receiver.wait_for_requests(1).remove(0)
}

#[test]
fn tests_that_a_host_skips_are_there() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for host in ["relay", "portable"] {
        let list = package.join(format!("hosts/{host}.txt"));
        let list = std::fs::read_to_string(list).unwrap();
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let (test, why) = line.split_once(' ').expect("a reason follows the name");
            let (module, name) = test.split_once("::").unwrap();
            let module = package.join(format!("tests/e2e/{module}.rs"));
            let module = std::fs::read_to_string(module).unwrap();
            assert!(module.contains(&format!("fn {name}()")), "{test}");
            assert!(!why.trim().is_empty(), "{test}");
        }
    }
}

/// The version, and the pg_config if it is not where Debian puts it, that the Makefile builds for if it is told none.
#[test]
fn the_makefile_takes_an_installed_server_then_the_distributions_then_one_it_can_fetch() {
    let directory = ServerDirectory::create("e2e");
    let servers = directory.join("servers");
    let release = directory.join("os-release");
    let programs = directory.join("programs");
    let make_program = |path: &Path, script: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    };
    let choose = |arguments: &[&str]| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/choose.sh");
        let mut choose = Command::new(script);
        choose.args(arguments).env("SERVERS", &servers);
        choose.env("OS_RELEASE", &release);
        choose.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        complete(&mut choose).trim().to_owned()
    };
    // Hides a pg_config of this machine.
    make_program(&programs.join("pg_config"), "exit 1");

    assert_eq!(choose(&[]), "16", "no release is known");
    for (codename, version) in [
        ("VERSION_CODENAME=bookworm", "15"),
        ("VERSION_CODENAME=trixie", "17"),
        ("VERSION_CODENAME=noble\nUBUNTU_CODENAME=noble", "16"),
        ("VERSION_CODENAME=zara\nUBUNTU_CODENAME=noble", "16"),
    ] {
        fs::write(&release, codename).unwrap();
        assert_eq!(choose(&["distribution"]), version, "{codename}");
        assert_eq!(choose(&[]), version, "{codename}");
    }
    fs::write(&release, "VERSION_CODENAME=bullseye").unwrap();
    assert_eq!(choose(&["distribution"]), "", "its PostgreSQL is too old");
    assert_eq!(choose(&[]), "16");

    for version in ["15", "17"] {
        make_program(&servers.join(version).join("bin/postgres"), "");
    }
    assert_eq!(choose(&[]), "17", "the newest that is installed");

    let elsewhere = directory.join("elsewhere");
    let answers = |bin: &Path| {
        format!(
            "case $1 in --bindir) echo {} ;; --version) echo PostgreSQL 15.20 ;; *) echo {} ;; esac",
            bin.display(),
            elsewhere.display()
        )
    };
    let in_path = programs.join("pg_config");
    make_program(&in_path, &answers(&servers.join("15/bin")));
    assert_eq!(choose(&[]), "15", "the one whose pg_config is in PATH");
    make_program(&in_path, &answers(&elsewhere));
    assert_eq!(choose(&[]), "17", "a client library is no server");
    make_program(&elsewhere.join("postgres"), "");
    fs::write(elsewhere.join("postgres.h"), "").unwrap();
    let expected = format!("15 {}", elsewhere.join("pg_config").display());
    assert_eq!(choose(&[]), expected);
}
