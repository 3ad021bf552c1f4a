//! Whom the worker believes to be the endpoint.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use webhook_e2e::{Cluster, Database, worker};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Answers 200 over TLS for as long as the process runs. Returns its URL, and the authority of its certificate.
fn serve() -> (String, String) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".into()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap().der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/orders", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            // Whoever does not trust the certificate hangs up.
            let _ = answer(StreamOwned::new(connection, stream.unwrap()));
        }
    });
    (url, pem)
}

fn answer(stream: impl Read + Write) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? <= 2 {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length is a number");
        }
    }
    stream.read_exact(&mut vec![0; length])?;
    stream.get_mut().write_all(OK)?;
    stream.get_mut().flush()
}

/// A session that comes after the reload is answered by a worker that may not have seen it yet; one that is switched off
/// and on has.
fn reload(cluster: &mut Cluster, database: &Database) {
    for (enabled, state) in [("off", "disabled"), ("on", "running")] {
        cluster.configure(&format!("webhook.enabled = {enabled}"));
        cluster.reload();
        database.wait_until(&format!("SELECT state = '{state}' FROM webhook_status()"));
    }
}

#[test]
fn a_ca_file_is_trusted_from_the_reload_that_names_it_and_as_long_as_it_can_be_read() {
    let (url, authority) = serve();
    let mut cluster = Cluster::start();
    let database = cluster.database("trusted");
    let worker = worker::pid(&database);
    database.add_endpoint("orders", &url);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let untrusted: String = database.query_one_value("SELECT last_error FROM webhook.dead_letter");
    assert!(
        untrusted.contains("not signed by a trusted authority"),
        "{untrusted}"
    );

    let file = cluster.data_directory().join("receivers.pem");
    fs::write(&file, authority).unwrap();
    cluster.configure("webhook.ca_file = 'receivers.pem'");
    reload(&mut cluster, &database);
    database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
    database.wait_for_status(event, "SENT");

    fs::write(&file, "not PEM any more").unwrap();
    reload(&mut cluster, &database);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let complaints = worker::complaints(&cluster, worker).join("\n");
    assert!(complaints.contains("receivers.pem"), "{complaints}");

    cluster.configure("webhook.ca_file = ''");
    reload(&mut cluster, &database);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    assert_eq!(worker::pid(&database), worker);
}
