//! Attempts, which go into the pool, and outcomes, which come out of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::address_guard::EndpointOwner;
use crate::body::Format;
use crate::failure::Failure;
use crate::header::Header;

/// Names one attempt and is echoed in its [`Outcome`]. `claim_seq` fences out late results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub event_id: Uuid,
    pub endpoint_id: i32,
    pub claim_seq: i64,
}

/// How to reach one endpoint. Not `Debug`: URL, headers, template and secrets are credentials.
pub struct Route {
    pub endpoint_id: i32,
    /// The endpoint's own, not the event's: an event of a tenant goes to endpoints without a tenant too.
    pub owner: EndpointOwner,
    pub url: String,
    pub headers: Vec<Header>,
    pub format: Format,
    /// `whsec_<base64>`, newest first.
    pub secrets: Vec<String>,
    /// The keys of signatures in templates of headers, verbatim, newest first. They are never those of the standard
    /// signature: a signature of a body alone must not pass for another.
    pub hmac_secrets: Vec<String>,
    /// Resolving, connecting and the TLS handshake together.
    pub connect_timeout: Duration,
    /// From the established connection to the last byte that is read.
    pub timeout: Duration,
}

/// One event to be sent to one endpoint, once.
pub struct Attempt {
    pub key: Key,
    pub earlier_attempts: i32,
    pub event_type: String,
    pub tenant: Option<String>,
    /// RFC 3339.
    pub occurred_at: String,
    /// JSON.
    pub payload: String,
    pub route: Arc<Route>,
}

impl Attempt {
    /// Whether `webhook_test()` has asked for it: then it waits for no other.
    pub fn is_test(&self) -> bool {
        self.event_type == "webhook.test"
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub key: Key,
    pub result: Result<Response, Failure>,
    pub duration: Duration,
    pub ended: Instant,
}

/// The endpoint answered. Whether the status means success is not decided here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// The wait that the endpoint asks for, if it says so in a way that can be understood.
    pub retry_after: Option<Duration>,
    /// At most 2 kB of the body, without control characters other than `\n` and `\t`.
    pub excerpt: String,
}
