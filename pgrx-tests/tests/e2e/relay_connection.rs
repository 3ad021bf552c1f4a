//! The connection of a relay to its database, and its message where there is none.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::rc::Rc;

use postgres::{NoTls, SimpleQueryMessage};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::runtime;
use webhook_e2e::{Cluster, PgBouncer, Receiver, Relay, untested};
use webhook_relay::Session;

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

/// The only line that a relay writes that ends with this status.
#[track_caller]
fn last_word(connection: &str, status: i32) -> String {
    let mut command = Relay::program(PROGRAM);
    command.arg(connection);
    let relay = Relay::spawn(command);
    assert_eq!(relay.wait().code(), Some(status), "{}", relay.log());
    let log = relay.log();
    assert_eq!(log.lines().count(), 1, "{log}");
    log
}

#[test]
fn a_connection_that_cannot_be_made_gets_one_line_and_no_password() {
    let cluster = Cluster::relayed();
    let port = cluster.port();
    let uri = format!("postgresql://postgres:hunter2@127.0.0.1:{port}/nowhere");
    let told = last_word(&uri, 1);
    assert!(
        told.contains("database \"nowhere\" does not exist"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");
    let told = last_word("postgresql://postgres:hunter2@127.0.0.1:none/shop", 2);
    assert!(told.contains("port is not a number"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
    let told = last_word("host=127.0.0.1 sslmode=verify-full", 2);
    assert!(told.contains("sslrootcert"), "{told}");
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let mut cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .start();
    cluster.stop();
    let mut command = Relay::program(PROGRAM);
    command.arg(cluster.address(cluster.port(), "postgres"));
    let relay = Relay::spawn(command);
    relay.wait_for_log("The relay tries again until it can.");
    cluster.start_server();
    relay.wait_for_log("is connected to");
    relay.terminate();
    assert!(relay.wait().success(), "{}", relay.log());
}

#[test]
fn a_password_comes_from_the_environment_or_from_a_file_that_is_ones_own() {
    let cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .start();
    let rules = cluster.data_directory().join("pg_hba.conf");
    let trust = fs::read_to_string(&rules).unwrap();
    fs::write(
        &rules,
        format!("host all carrier all scram-sha-256\n{trust}"),
    )
    .unwrap();
    let make = "CREATE ROLE carrier SUPERUSER LOGIN PASSWORD 'hunter2'";
    cluster.connect("postgres").batch_execute(make).unwrap();
    cluster.reload();

    let port = cluster.port();
    let connection = format!("host=127.0.0.1 port={port} user=carrier dbname=postgres");
    let told = last_word(&connection, 1);
    assert!(told.contains("password"), "{told}");
    let told = last_word(&format!("{connection} password=hunter3"), 1);
    assert!(told.contains("password authentication failed"), "{told}");
    assert!(!told.contains("hunter3"), "{told}");

    let file = cluster.data_directory().join("passfile");
    fs::write(&file, format!("127.0.0.1:{port}:*:carrier:hunter2\n")).unwrap();
    let relay_with = |variable: &str, value: &str| {
        let mut command = Relay::program(PROGRAM);
        command.env(variable, value).arg(&connection);
        Relay::spawn(command)
    };
    let path = file.display().to_string();
    give_to_the_server(&cluster, &file, 0o644);
    let relay = relay_with("PGPASSFILE", &path);
    assert_eq!(relay.wait().code(), Some(1), "{}", relay.log());
    assert!(
        relay.log().contains("others may read it"),
        "{}",
        relay.log()
    );
    give_to_the_server(&cluster, &file, 0o600);
    for (variable, value) in [("PGPASSFILE", path.as_str()), ("PGPASSWORD", "hunter2")] {
        let relay = relay_with(variable, value);
        relay.wait_for_log("is connected to");
        assert!(!relay.log().contains("hunter2"), "{}", relay.log());
    }
}

/// A file of the user that servers and relays run as.
fn give_to_the_server(cluster: &Cluster, path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let owner = fs::metadata(cluster.data_directory()).unwrap();
    chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

/// A server with a certificate for `localhost`, and the file of its authority; none where it was built without TLS,
/// as some builds are that `make setup` fetches.
fn encrypted() -> Option<(Cluster, String)> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".into()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();

    let mut cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .start();
    let has_tls = "SELECT current_setting('ssl_library') <> ''";
    let has_tls = cluster.connect("postgres").query_one(has_tls, &[]);
    let has_tls: bool = has_tls.expect("the server answers").get(0);
    if untested::skip_if((!has_tls).then_some("this server was built without TLS")) {
        return None;
    }
    let data = cluster.data_directory();
    for (name, text) in [
        ("server.crt", certificate.pem()),
        ("server.key", key.serialize_pem()),
        ("root.crt", authority_pem),
    ] {
        let path = data.join(name);
        fs::write(&path, text).unwrap();
        give_to_the_server(&cluster, &path, 0o600);
    }
    cluster.configure("ssl = on");
    cluster.restart();
    Some((cluster, data.join("root.crt").display().to_string()))
}

#[test]
fn sslmode_says_what_of_the_servers_certificate_is_checked() {
    let Some((cluster, roots)) = encrypted() else {
        return;
    };
    let port = cluster.port();
    let connect = |host: &str, tls: &str| {
        let connection = format!("host={host} port={port} user=postgres dbname=postgres {tls}");
        Relay::start(PROGRAM, &connection, &[])
    };
    let is_encrypted = || -> bool {
        let encrypted = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                         WHERE application_name = 'webhook-relay'";
        cluster
            .connect("postgres")
            .query_one(encrypted, &[])
            .unwrap()
            .get(0)
    };
    for (host, tls, encrypted) in [
        (
            "localhost",
            format!("sslmode=verify-full sslrootcert={roots}"),
            true,
        ),
        (
            "127.0.0.1",
            format!("sslmode=verify-ca sslrootcert={roots}"),
            true,
        ),
        ("127.0.0.1", "sslmode=require".to_owned(), true),
        ("127.0.0.1", "sslmode=prefer".to_owned(), true),
        ("127.0.0.1", "sslmode=disable".to_owned(), false),
    ] {
        let relay = connect(host, &tls);
        assert_eq!(is_encrypted(), encrypted, "{tls}");
        relay.terminate();
        assert!(relay.wait().success(), "{}", relay.log());
    }
    for (host, tls, told) in [
        (
            "127.0.0.1",
            format!("sslmode=verify-full sslrootcert={roots}"),
            "not valid for name",
        ),
        (
            "localhost",
            "sslmode=verify-ca sslrootcert=system".to_owned(),
            "UnknownIssuer",
        ),
    ] {
        let mut command = Relay::program(PROGRAM);
        command.arg(format!(
            "host={host} port={port} user=postgres dbname=postgres {tls}"
        ));
        let relay = Relay::spawn(command);
        relay.wait_for_log(told);
    }
}

#[test]
fn the_server_is_told_to_notice_within_seconds_that_a_relay_is_gone() {
    let cluster = Cluster::relayed();
    let config = cluster.address(cluster.port(), "postgres");
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let session = Session::begin(&Rc::new(runtime.unwrap()), &config.parse().unwrap(), NoTls);
    let session = session.unwrap_or_else(|trouble| panic!("{}", trouble.message));
    session
        .prepare()
        .unwrap_or_else(|trouble| panic!("{}", trouble.message));
    // As the socket has them: 0 where the system does not know such an option.
    let told = "SELECT concat_ws(' ', current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),
                                      current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout'))";
    let rows = session.query(told, &[]);
    let rows = rows.unwrap_or_else(|trouble| panic!("{}", trouble.message));
    assert_eq!(rows[0].get::<_, &str>(0), "2 1 3 5000");
}

#[test]
fn a_pooler_of_transactions_is_refused_with_a_sentence() {
    let cluster = Cluster::relayed();
    for settings in [
        "pool_mode = transaction",
        "pool_mode = transaction\ndefault_pool_size = 1",
        "pool_mode = transaction\nserver_round_robin = 1\nmin_pool_size = 5",
    ] {
        let pgbouncer = PgBouncer::start_with(cluster, settings);
        // Others have used the pool.
        if !settings.contains("default_pool_size") {
            let mut busy: Vec<_> = (0..3).map(|_| pgbouncer.connect("postgres")).collect();
            busy.iter_mut()
                .for_each(|c| c.batch_execute("BEGIN").unwrap());
            busy.iter_mut()
                .for_each(|c| c.batch_execute("ROLLBACK").unwrap());
        }
        let mut command = Relay::program(PROGRAM);
        command.arg(cluster.address(pgbouncer.port(), "postgres"));
        let relay = Relay::spawn(command);
        assert_eq!(relay.wait().code(), Some(1), "{settings}: {}", relay.log());
        let log = relay.log();
        let [message, detail, hint] = log.lines().collect::<Vec<_>>()[..] else {
            panic!("{settings}: {log}");
        };
        assert!(
            message.starts_with("webhook-relay: database \"postgres\" at 127.0.0.1:")
                && message.ends_with(": the connection goes through a pooler of transactions"),
            "{log}"
        );
        assert!(detail.starts_with("DETAIL:  Two "), "{log}");
        assert_eq!(
            hint,
            "HINT:  Connect to the server itself, or to a pool of sessions (pool_mode = session)."
        );
        let left = "SELECT current_setting('lock_timeout')";
        let messages = pgbouncer.connect("postgres").simple_query(left).unwrap();
        assert!(
            messages.iter().any(
                |message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("0"))
            ),
            "a setting of the relay has stayed in the pool"
        );
    }
}

#[test]
fn a_relay_delivers_through_a_pool_of_sessions() {
    let cluster = Cluster::relayed();
    let database = cluster.database("pooled");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pgbouncer = PgBouncer::start_with(cluster, "pool_mode = session");
    let connection = cluster.address(pgbouncer.port(), database.name());
    let relay = Relay::start(PROGRAM, &connection, &[]);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert!(!relay.log().contains("WARNING"), "{}", relay.log());
}
