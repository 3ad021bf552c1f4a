//! Reasons why an attempt got no HTTP status. Messages are shown to people who may not see the endpoint's
//! credentials, so none is built from a URL, a header or a secret. A blocked address is named: the place of an
//! endpoint is no secret.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};

use rustls::CertificateError;

use crate::connection::{Broken, MAX_HEARD};
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
    /// The event's trouble, not the endpoint's.
    InvalidEvent,
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
            Self::InvalidEvent => "invalid_event",
            Self::Local => "local",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

const CLOSED: &str = "connection closed before a response";
/// Counts as an attempt: an error that is always unexpected must come to an end.
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

    pub(crate) fn invalid_event(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::InvalidEvent, message)
    }

    pub(crate) fn out_of_memory() -> Failure {
        Failure::new(FailureKind::Local, "not enough memory for the request")
    }

    /// The trouble of this host rather than of the endpoint, if `error` says so.
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

    /// Why an exchange in which so many bytes were heard came to nothing.
    pub(crate) fn of(broken: Broken, heard: usize) -> Failure {
        use FailureKind::*;

        let error = match broken {
            Broken::Http(error) => error,
            Broken::Ended => return Failure::new(Reset, CLOSED),
        };
        if heard > MAX_HEARD || error.is_parse_too_large() {
            return Failure::new(InvalidResponse, "the response headers are too large");
        }
        // The server began to answer before it was asked.
        let too_early = error.is_canceled() && heard > 0;
        if error.is_parse() || too_early {
            return Failure::new(InvalidResponse, "the response is not valid HTTP");
        }
        if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            return Failure::new(Reset, CLOSED);
        }
        if error.is_user() {
            return Failure::invalid_request("the request is not valid HTTP");
        }
        match error.source().and_then(|source| source.downcast_ref()) {
            Some(error) => Failure::of_io(error, |kind| match kind {
                ErrorKind::UnexpectedEof => Failure::new(Reset, CLOSED),
                kind => Failure::new(Reset, kind.to_string()),
            }),
            None => Failure::new(InvalidResponse, UNEXPECTED),
        }
    }

    /// Why there is no connection.
    pub(crate) fn before_request(error: io::Error) -> Failure {
        Failure::of_io(&error, |kind| match kind {
            // TCP itself refuses: an error between its handshake and the request is one of TLS.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                let message = "connection closed during the TLS handshake";
                Failure::new(FailureKind::Tls, message)
            }
            kind => Failure::new(FailureKind::Connect, kind.to_string()),
        })
    }

    fn of_io(error: &io::Error, by_kind: impl FnOnce(ErrorKind) -> Failure) -> Failure {
        if let Some(failure) = Failure::local(error) {
            return failure;
        }
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(tls) => Failure::new(FailureKind::Tls, describe_tls(tls)),
            None => by_kind(error.kind()),
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

    #[test]
    fn exhausted_resources_of_this_host_are_local() {
        for code in [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::EADDRNOTAVAIL,
        ] {
            let failure = Failure::before_request(io::Error::from_raw_os_error(code));
            assert_eq!(failure.kind, FailureKind::Local, "{failure}");
        }
    }

    #[test]
    fn unreachable_networks_and_hosts_are_connect() {
        for code in [libc::ECONNREFUSED, libc::ENETUNREACH, libc::EHOSTUNREACH] {
            let failure = Failure::before_request(io::Error::from_raw_os_error(code));
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
