//! The certificates by which the worker knows an endpoint.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use webhook_e2e::{Cluster, Database, worker};

const HERE: &str = "127.0.0.1";
/// Years of a certificate that is valid.
const NOW: (i32, i32) = (2020, 2120);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn named(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority {
            pem: params.self_signed(&key).unwrap().pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// From the first to the last of these years.
    fn certificate(&self, host: &str, years: (i32, i32)) -> Certificate {
        let mut params = CertificateParams::new([host.into()]).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certificate {
            der: certificate.der().clone(),
            key,
        }
    }
}

struct Certificate {
    der: CertificateDer<'static>,
    key: KeyPair,
}

impl Certificate {
    fn self_signed() -> Certificate {
        let made = rcgen::generate_simple_self_signed([HERE.into()]).unwrap();
        Certificate {
            der: made.cert.der().clone(),
            key: made.signing_key,
        }
    }

    /// A server with this certificate answers 200 to one request of a connection.
    fn serve(self) -> impl Fn(Overheard) + Send + Sync + 'static {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.der], key)
            .unwrap();
        let config = Arc::new(config);
        move |stream| {
            let connection = ServerConnection::new(config.clone()).unwrap();
            // A client that does not trust the certificate hangs up.
            let _ = answer(StreamOwned::new(connection, stream));
        }
    }
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

/// Listens for as long as the process runs, and keeps the bytes of the wire, connection by connection.
struct Server {
    url: String,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    fn doing(handle: impl Fn(Overheard) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let url = format!("https://{}/orders", listener.local_addr().unwrap());
        let heard = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let wire = heard.clone();
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                wire.lock().unwrap().push(Vec::new());
                handle(Overheard {
                    stream: stream.unwrap(),
                    connection,
                    wire: wire.clone(),
                });
            }
        });
        Server { url, heard }
    }

    fn with(certificate: Certificate) -> Server {
        Server::doing(certificate.serve())
    }

    /// Every connection began with a handshake of TLS, and nothing of the request could be read by a third party.
    #[track_caller]
    fn assert_heard_nothing_in_clear(&self, connections: usize) {
        let heard = self.heard.lock().unwrap();
        assert_eq!(heard.len(), connections);
        for bytes in heard.iter() {
            let text = String::from_utf8_lossy(bytes);
            assert!(bytes.starts_with(&[22, 3]), "{text}");
            for word in ["POST", "webhook", SECRET_OF_THE_PAYLOAD] {
                assert!(!text.contains(word), "{text}");
            }
        }
    }
}

const SECRET_OF_THE_PAYLOAD: &str = "4111-1111";

/// A connection that keeps the bytes that are read from it.
struct Overheard {
    stream: TcpStream,
    connection: usize,
    wire: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Read for Overheard {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let size = self.stream.read(buffer)?;
        self.wire.lock().unwrap()[self.connection].extend_from_slice(&buffer[..size]);
        Ok(size)
    }
}

impl Write for Overheard {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// Keeps the connection until the other side leaves.
fn hold(mut stream: Overheard) {
    while matches!(stream.read(&mut [0; 1024]), Ok(size) if size > 0) {}
}

/// From now on only this authority's certificates are trusted besides the system's.
fn trust(cluster: &mut Cluster, database: &Database, authority: &Authority) {
    fs::write(
        cluster.data_directory().join("receivers.pem"),
        &authority.pem,
    )
    .unwrap();
    cluster.configure("webhook.ca_file = 'receivers.pem'");
    reload(cluster, database);
}

/// A session that comes after the reload is answered by a worker that may not have seen it yet; one that is switched
/// off and on has.
fn reload(cluster: &mut Cluster, database: &Database) {
    for (enabled, state) in [("off", "disabled"), ("on", "running")] {
        cluster.configure(&format!("webhook.enabled = {enabled}"));
        cluster.reload();
        database.wait_until(&format!("SELECT state = '{state}' FROM webhook_status()"));
    }
}

#[test]
fn a_ca_file_is_trusted_from_the_reload_that_names_it_and_as_long_as_it_can_be_read() {
    let authority = Authority::named("ours");
    let server = Server::with(authority.certificate(HERE, NOW));
    let mut cluster = Cluster::start();
    let database = cluster.database("trusted");
    let worker = worker::pid(&database);
    database.add_endpoint("orders", &server.url);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let untrusted: String = database.query_one_value("SELECT last_error FROM webhook.dead_letter");
    assert!(
        untrusted.contains("not signed by a trusted authority"),
        "{untrusted}"
    );

    trust(&mut cluster, &database, &authority);
    database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
    database.wait_for_status(event, "SENT");

    let file = cluster.data_directory().join("receivers.pem");
    let everybody = fs::Permissions::from_mode(0o666);
    fs::set_permissions(&file, everybody).unwrap();
    fs::write(&file, Authority::named("a stranger").pem).unwrap();
    reload(&mut cluster, &database);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let complaints = worker::complaints(&cluster, worker).join("\n");
    assert!(complaints.contains("chmod o-w"), "{complaints}");

    fs::write(&file, "not PEM any more").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    reload(&mut cluster, &database);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let complaints = worker::complaints(&cluster, worker).join("\n");
    assert!(complaints.contains("no certificate in PEM"), "{complaints}");

    cluster.configure("webhook.ca_file = ''");
    reload(&mut cluster, &database);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    assert_eq!(worker::pid(&database), worker);
}

#[test]
fn whoever_cannot_prove_to_be_the_endpoint_gets_a_handshake_and_nothing_else() {
    let (ours, stranger) = (Authority::named("ours"), Authority::named("another"));
    let mut cluster = Cluster::start();
    let database = cluster.database("matrix");
    trust(&mut cluster, &database, &ours);
    // Only connections that stall end with their timeout.
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, connect_timeout, timeout)
         VALUES ('once', 1, '1 min', '1 min'), ('hasty', 1, '1 s', '1 min')",
    );

    let untrusted = "the certificate is not signed by a trusted authority";
    let another_host = "the certificate is for another host name";
    let cases = [
        (
            "expired",
            Server::with(ours.certificate(HERE, (2020, 2021))),
            ("tls", "the certificate has expired"),
        ),
        (
            "not_yet_valid",
            Server::with(ours.certificate(HERE, (2100, 2120))),
            ("tls", "the certificate is not valid yet"),
        ),
        (
            "another_address",
            Server::with(ours.certificate("127.0.0.2", NOW)),
            ("tls", another_host),
        ),
        (
            "another_name",
            Server::with(ours.certificate("other.invalid", NOW)),
            ("tls", another_host),
        ),
        (
            "self_signed",
            Server::with(Certificate::self_signed()),
            ("tls", untrusted),
        ),
        (
            "unknown_authority",
            Server::with(stranger.certificate(HERE, NOW)),
            ("tls", untrusted),
        ),
        (
            "namesake_of_the_authority",
            Server::with(Authority::named("ours").certificate(HERE, NOW)),
            ("tls", untrusted),
        ),
        (
            "plain_http",
            Server::doing(|mut stream| {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(OK);
                hold(stream);
            }),
            ("tls", "the server does not speak TLS"),
        ),
        (
            "hangs_up",
            Server::doing(|mut stream| {
                let _ = stream.read(&mut [0; 1024]);
            }),
            ("tls", "connection closed during the TLS handshake"),
        ),
        (
            "stalls",
            Server::doing(hold),
            ("timeout", "no connection within 1s"),
        ),
    ];
    let trusted = Server::with(ours.certificate(HERE, NOW));
    let emit = |name: &str, server: &Server| {
        let policy = if name == "stalls" { "hasty" } else { "once" };
        let options = format!("event_types => '{{{name}}}', policy => '{policy}'");
        database.add_endpoint_with(name, &server.url, &options);
        database.emit(name, json!({"card": SECRET_OF_THE_PAYLOAD}))
    };
    let sent = emit("trusted", &trusted);
    let events = cases.map(|(name, server, failure)| (emit(name, &server), name, server, failure));

    database.wait_for_status(sent, "SENT");
    trusted.assert_heard_nothing_in_clear(1);
    for (event, name, server, (kind, message)) in events {
        database.wait_for_status(event, "FAILED");
        let row = database.connect().query_one(
            "SELECT reason, error, status_code, duration_ms FROM webhook.attempt WHERE event_id = $1",
            &[&event],
        );
        let row = row.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(
            (row.get(0), row.get(1), row.get(2)),
            (kind, message, None::<i32>),
            "{name}"
        );
        // The timeout of a second, and room for a machine that stands still; the other timeouts are a minute.
        assert!(row.get::<_, i32>("duration_ms") < 10_000, "{name}: {row:?}");
        server.assert_heard_nothing_in_clear(1);
    }
}
