//! TLS in front of a receiver: decrypts what comes, and passes it on.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::port;

/// Its thread ends with the test process.
pub struct TlsTerminator {
    port: u16,
    certificate: String,
}

impl TlsTerminator {
    /// For the receiver at this port.
    pub fn to(receiver: u16) -> TlsTerminator {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]);
        let made = made.expect("a certificate can be made");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the versions fit the provider")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .expect("key and certificate fit");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let port = port::free();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
        thread::spawn(move || serve(listener, acceptor, receiver));
        TlsTerminator {
            port,
            certificate: made.cert.pem(),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate to trust, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

fn serve(listener: TcpListener, acceptor: TlsAcceptor, receiver: u16) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    runtime.expect("a runtime can be built").block_on(async {
        listener.set_nonblocking(true).expect("it is a socket");
        let listener = tokio::net::TcpListener::from_std(listener).expect("it is a socket");
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that leaves in the middle of a handshake is no concern of the others.
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, receiver)).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
}
