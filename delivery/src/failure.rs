//! Why an attempt got no HTTP status. Messages are shown to people who may not see the endpoint's
//! credentials, so none is built from a URL, a header or a secret. An address that is blocked is named: where
//! an endpoint is, is no secret.

use std::fmt;
use std::io::{self, ErrorKind};

use rustls::CertificateError;
use ureq::Error;

use crate::attempt::Route;
use crate::deadline::Progress;
use crate::memory::OutOfMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    Dns,
    Connect,
    Timeout,
    Tls,
    Reset,
    InvalidResponse,
    Blocked,
    InvalidRequest,
    /// Our own trouble, not the endpoint's.
    Local,
}

impl FailureKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Reset => "reset",
            Self::InvalidResponse => "invalid_response",
            Self::Blocked => "blocked",
            Self::InvalidRequest => "invalid_request",
            Self::Local => "local",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

/// It counts as an attempt: what is always unexpected must come to an end.
const UNEXPECTED: &str = "unexpected error of the HTTP client";

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn invalid_request(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::InvalidRequest, message)
    }

    pub(crate) fn out_of_memory() -> Failure {
        Failure::new(FailureKind::Local, "not enough memory for the request")
    }

    /// What is wrong with this host rather than with the endpoint, if that is what `error` says.
    pub(crate) fn local(error: &io::Error) -> Option<Failure> {
        const OUR_OWN: [i32; 5] = [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::ENOBUFS,
            libc::EADDRNOTAVAIL,
        ];
        OUR_OWN
            .contains(&error.raw_os_error()?)
            .then(|| Failure::new(FailureKind::Local, error.to_string()))
    }

    pub(crate) fn of(error: Error, progress: Progress, route: &Route) -> Failure {
        use FailureKind::*;

        let (kind, message) = match error {
            // What the resolver refused travels through ureq as it is.
            Error::Other(inner) => match inner.downcast::<Failure>() {
                Ok(failure) => return *failure,
                Err(_) => (InvalidResponse, UNEXPECTED.into()),
            },
            Error::Timeout(_) if progress.sent => {
                (Timeout, format!("no response within {:?}", route.timeout))
            }
            Error::Timeout(_) => (
                Timeout,
                format!("no connection within {:?}", route.connect_timeout),
            ),
            Error::Io(error) => return Failure::of_io(error, progress),
            Error::Rustls(error) => (Tls, describe_tls(&error).into()),
            Error::Tls(_) | Error::TlsRequired | Error::Pem(_) => {
                (Tls, "the TLS connection could not be set up".into())
            }
            Error::HostNotFound => (Dns, "host name not found".into()),
            Error::ConnectionFailed => (Connect, "connection failed".into()),
            Error::LargeResponseHeader(..) => {
                (InvalidResponse, "the response headers are too large".into())
            }
            Error::Protocol(_) if progress.heard => {
                (InvalidResponse, "the response is not valid HTTP".into())
            }
            Error::Protocol(_) | Error::Http(_) | Error::BadUri(_) => {
                (InvalidRequest, "the request is not valid HTTP".into())
            }
            _ => (InvalidResponse, UNEXPECTED.into()),
        };
        Failure { kind, message }
    }

    fn of_io(error: io::Error, progress: Progress) -> Failure {
        use FailureKind::*;

        if let Some(failure) = Failure::local(&error) {
            return failure;
        }
        if let Some(tls) = error.get_ref().and_then(|e| e.downcast_ref()) {
            return Failure::new(Tls, describe_tls(tls));
        }
        let broken = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        );
        match (progress.sent, error.kind()) {
            (true, ErrorKind::UnexpectedEof) => {
                Failure::new(Reset, "connection closed before a response")
            }
            (true, kind) => Failure::new(Reset, kind.to_string()),
            // TCP itself refuses: what breaks between its handshake and the request is the one of TLS.
            (false, _) if broken => Failure::new(Tls, "connection closed during the TLS handshake"),
            (false, kind) => Failure::new(Connect, kind.to_string()),
        }
    }
}

/// rustls's own messages quote host names.
fn describe_tls(error: &rustls::Error) -> &'static str {
    use rustls::Error::*;

    match error {
        InvalidCertificate(certificate) => match certificate {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the certificate is not signed by a trusted authority"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for another host name"
            }
            CertificateError::Revoked => "the certificate is revoked",
            _ => "the certificate is not acceptable",
        },
        AlertReceived(_) => "the server refused the TLS handshake",
        InvalidMessage(_) => "the server does not speak TLS",
        PeerIncompatible(_) => "the server shares no TLS version or cipher with us",
        _ => "the TLS connection failed",
    }
}

impl From<OutOfMemory> for Failure {
    fn from(_: OutOfMemory) -> Failure {
        Failure::out_of_memory()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTING: Progress = Progress {
        sent: false,
        reused: false,
        heard: false,
    };

    #[test]
    fn exhausted_resources_of_this_host_are_local() {
        for code in [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::EADDRNOTAVAIL,
        ] {
            let failure = Failure::of_io(io::Error::from_raw_os_error(code), CONNECTING);
            assert_eq!(failure.kind, FailureKind::Local, "{failure}");
        }
    }

    #[test]
    fn unreachable_networks_and_hosts_are_connect() {
        for code in [libc::ECONNREFUSED, libc::ENETUNREACH, libc::EHOSTUNREACH] {
            let failure = Failure::of_io(io::Error::from_raw_os_error(code), CONNECTING);
            assert_eq!(failure.kind, FailureKind::Connect, "{failure}");
        }
    }

    #[test]
    fn certificate_for_another_name_is_reported_without_the_name() {
        let error = rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected: "secret.invalid".try_into().unwrap(),
            presented: vec!["other.invalid".into()],
        });
        assert_eq!(
            describe_tls(&error),
            "the certificate is for another host name"
        );
    }
}
