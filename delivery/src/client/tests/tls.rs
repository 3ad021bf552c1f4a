//! Certificates, against a real TLS server.

use std::fs;
use std::net::SocketAddr;
use std::sync::LazyLock;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedKey, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::*;
use crate::loopback::read_some;

const HERE: &str = "127.0.0.1";

struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| authority("ours"));
static SELF_SIGNED: LazyLock<CertifiedKey<KeyPair>> =
    LazyLock::new(|| rcgen::generate_simple_self_signed([HERE.into()]).unwrap());

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    Authority {
        certificate,
        issuer,
    }
}

/// Years of validity, and the name it is for.
fn signed_by(
    authority: &Authority,
    years: (i32, i32),
    name: &str,
) -> (CertificateDer<'static>, KeyPair) {
    let mut params = CertificateParams::new([name.into()]).unwrap();
    params.not_before = date_time_ymd(years.0, 1, 1);
    params.not_after = date_time_ymd(years.1, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority.issuer).unwrap();
    (certificate.der().clone(), key)
}

/// Also sends the requests that it read.
fn serve_tls(
    certificate: CertificateDer<'static>,
    key: &KeyPair,
) -> (SocketAddr, mpsc::Receiver<String>) {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let (received, requests) = mpsc::channel();
    let address = serve(2, move |_, stream| {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let stream = rustls::StreamOwned::new(connection, stream);
        let mut stream = BufReader::new(stream);
        while let Some(request) = read_request(&mut stream) {
            let _ = received.send(request.line);
            stream.get_mut().write_all(OK).unwrap();
        }
    });
    (address, requests)
}

fn serve_self_signed() -> SocketAddr {
    serve_tls(SELF_SIGNED.cert.der().clone(), &SELF_SIGNED.signing_key).0
}

#[test]
fn delivers_over_tls_to_a_trusted_certificate_and_reuses_the_connection() {
    let address = serve_self_signed();
    let client = client_with(anywhere(), &Roots::of(SELF_SIGNED.cert.der()));
    for _ in 0..3 {
        let attempt = attempt_to(format!("https://{address}/"));
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    }
}

#[test]
fn a_ca_file_is_trusted_in_addition_to_the_system() {
    let (certificate, key) = signed_by(&AUTHORITY, (2020, 2120), HERE);
    let (address, _requests) = serve_tls(certificate, &key);
    let path = std::env::temp_dir().join(format!("webhook-ca-{}.pem", std::process::id()));
    fs::write(&path, AUTHORITY.certificate.pem()).unwrap();
    let roots = Roots::load(Some(&path));
    fs::remove_file(&path).unwrap();
    let client = client_with(anywhere(), &roots.unwrap());
    let attempt = attempt_to(format!("https://{address}/"));
    assert_eq!(client.deliver(&attempt).unwrap().status, 200);
}

#[test]
fn a_certificate_that_does_not_hold_is_tls_and_nothing_is_sent() {
    let (stranger, impostor) = (authority("another"), authority("ours"));
    let untrusted = "the certificate is not signed by a trusted authority";
    let now = (2020, 2120);
    let cases = [
        (
            signed_by(&AUTHORITY, (2020, 2021), HERE),
            "the certificate has expired",
        ),
        (
            signed_by(&AUTHORITY, (2100, 2120), HERE),
            "the certificate is not valid yet",
        ),
        (
            signed_by(&AUTHORITY, now, "127.0.0.2"),
            "the certificate is for another host name",
        ),
        (
            signed_by(&AUTHORITY, now, "other.invalid"),
            "the certificate is for another host name",
        ),
        (signed_by(&stranger, now, HERE), untrusted),
        (signed_by(&impostor, now, HERE), untrusted),
    ];
    let client = client_with(anywhere(), &Roots::of(AUTHORITY.certificate.der()));
    for ((certificate, key), problem) in cases {
        let (address, requests) = serve_tls(certificate, &key);
        let attempt = attempt_to(format!("https://{address}/"));
        let failure = client.deliver(&attempt).unwrap_err();
        assert_eq!(failure, Failure::new(FailureKind::Tls, problem));
        assert!(requests.try_recv().is_err(), "{problem}");
    }
}

#[test]
fn a_self_signed_certificate_is_tls() {
    let failure = failure(&attempt_to(format!("https://{}/", serve_self_signed())));
    let untrusted = "the certificate is not signed by a trusted authority";
    assert_eq!(failure, Failure::new(FailureKind::Tls, untrusted));
}

#[test]
fn a_server_that_does_not_speak_tls_or_hangs_up_is_tls_and_gets_no_plain_request() {
    let (heard, requests) = mpsc::channel();
    let plain = serve(2, move |_, mut stream| {
        let mut bytes = [0; 1024];
        let n = read_some(&mut stream, &mut bytes).unwrap();
        heard.send(bytes[..n].to_vec()).unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        hold(stream);
    });
    let closing = serve(2, |_, mut stream| {
        let _ = read_some(&mut stream, &mut [0; 1024]);
    });
    for address in [plain, closing] {
        let failure = failure(&attempt_to(format!("https://{address}/")));
        assert_eq!(failure.kind, FailureKind::Tls, "{failure}");
    }
    let client_hello = requests.try_iter().collect::<Vec<_>>();
    assert_eq!(client_hello.len(), 1);
    assert_eq!(client_hello[0][..2], [22, 3]);
}

#[test]
fn a_tls_handshake_that_stalls_or_drips_spends_the_connect_timeout() {
    let silent = serve(1, |_, stream| hold(stream));
    // A record of TLS that is announced with 16 kB and comes byte by byte.
    let dripping = serve(1, |_, mut stream| {
        let mut bytes = [22, 3, 3, 0x40, 0].into_iter().chain(std::iter::repeat(0));
        while stream.write_all(&[bytes.next().unwrap()]).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    for address in [silent, dripping] {
        let attempt = attempt_on(Arc::new(Route {
            connect_timeout: SHORT,
            ..route_to(format!("https://{address}/"))
        }));
        let failure = ending_in_time(&attempt, SHORT).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
        assert_eq!(failure.message, "no connection within 300ms");
    }
}
