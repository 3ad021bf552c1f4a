//! Performs one attempt over the connections that all threads share.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ureq::config::AutoHeaderValue;
use ureq::http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue, RETRY_AFTER,
    TRANSFER_ENCODING, USER_AGENT,
};
use ureq::http::{self, Method, Request, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Error};

use crate::attempt::{Attempt, Response};
use crate::deadline::{self, Deadline};
use crate::failure::{Failure, FailureKind};
use crate::resolver::Resolver;
use crate::{body, signing};

const OUR_USER_AGENT: &str = concat!("webhook/", env!("CARGO_PKG_VERSION"));
/// Those that ureq sets, or that would change what it does.
const RESERVED: [HeaderName; 5] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, EXPECT];

const MAX_RESPONSE_HEADERS: usize = 16 * 1024;
/// Larger than the headers, or ureq takes a full buffer for a closed connection.
const INPUT_BUFFER: usize = 2 * MAX_RESPONSE_HEADERS;
/// A write is timed as a whole, so small ones keep to the deadline with a receiver that reads slowly.
const OUTPUT_BUFFER: usize = 16 * 1024;
const MAX_IDLE: Duration = Duration::from_secs(30);

const EXCERPT: usize = 2048;
/// Read to its end, a body leaves its connection usable; beyond this a new connection is cheaper.
const DRAIN: u64 = 64 * 1024;

pub(crate) struct Client {
    agent: Agent,
    resolver: Resolver,
    aborted: AtomicBool,
}

impl Client {
    pub fn new(connections: usize, roots: RootCerts, resolver: Resolver) -> Client {
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .accept_encoding(AutoHeaderValue::None)
            .max_response_header_size(MAX_RESPONSE_HEADERS)
            .input_buffer_size(INPUT_BUFFER)
            .output_buffer_size(OUTPUT_BUFFER)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .max_idle_age(MAX_IDLE)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        Client {
            agent: Agent::with_parts(
                config,
                Deadline(DefaultConnector::new()),
                Deadline(resolver.clone()),
            ),
            resolver,
            aborted: AtomicBool::new(false),
        }
    }

    pub fn deliver(&self, attempt: &Attempt) -> Result<Response, Failure> {
        let route = &*attempt.route;
        let body = body::standard(attempt)?;
        let request = signed_request(attempt, &body, SystemTime::now())?;

        let started = Instant::now();
        deadline::begin(route.connect_timeout, route.timeout);
        let mut result = self.agent.run(request.clone());

        // The server may close an idle connection in the moment that we use it. That says nothing about
        // the endpoint, so it costs no attempt: once more on a connection of its own, within the same
        // budget. If the server did read the first one, it sees a duplicate with the same webhook-id.
        let progress = deadline::progress();
        if matches!(result, Err(Error::Io(_))) && progress.reused && !progress.heard {
            let left = route.timeout.saturating_sub(started.elapsed());
            deadline::begin(route.connect_timeout, left);
            let on_fresh_connection = self
                .agent
                .configure_request(request)
                .max_idle_age(Duration::ZERO)
                .build();
            result = self.agent.run(on_fresh_connection);
        }

        match result {
            Ok(response) => Ok(read(response)),
            Err(_) if self.aborted.load(Ordering::Acquire) => {
                Err(Failure::new(FailureKind::Local, "interrupted by shutdown"))
            }
            Err(error) => Err(Failure::of(error, deadline::progress(), route)),
        }
    }

    /// Interrupts what is in flight and refuses what comes later. A TCP handshake under way is the one
    /// wait that cannot be interrupted; it ends with its `connect_timeout`.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.resolver.close();
        self.agent.clone().shutdown();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.abort();
    }
}

pub(crate) fn system_roots() -> RootCerts {
    rustls_native_certs::load_native_certs()
        .certs
        .iter()
        .map(|der| Certificate::from_der(der).to_owned())
        .into()
}

fn signed_request<'a>(
    attempt: &Attempt,
    body: &'a [u8],
    now: SystemTime,
) -> Result<Request<&'a [u8]>, Failure> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = parse_url(&attempt.route.url)?;

    let headers = request.headers_mut();
    for (name, value) in &attempt.route.headers {
        let invalid = || Failure::invalid_request("a header of the endpoint is not valid HTTP");
        let name = HeaderName::try_from(name).map_err(|_| invalid())?;
        let value = HeaderValue::try_from(value).map_err(|_| invalid())?;
        if RESERVED.contains(&name) {
            return Err(Failure::invalid_request(format!(
                "an endpoint cannot set the header {name}"
            )));
        }
        headers.append(name, value);
    }

    let id = attempt.key.event_id.to_string();
    let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = signing::sign(&attempt.route.secrets, &id, timestamp, body)?;
    let text = |value: &str| {
        HeaderValue::try_from(value).map_err(|_| Failure::invalid_request("a header is not text"))
    };
    let signature = text(&signature)?;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(OUR_USER_AGENT));
    headers.insert("webhook-id", text(&id)?);
    headers.insert("webhook-timestamp", timestamp.into());
    headers.insert("webhook-signature", signature.clone());
    headers.insert("x-webhook-signature", signature);
    headers.insert("x-webhook-retry", attempt.earlier_attempts.into());
    Ok(request)
}

fn parse_url(url: &str) -> Result<Uri, Failure> {
    let uri: Uri = url
        .parse()
        .map_err(|_| Failure::invalid_request("the URL is not valid"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(Failure::invalid_request("the URL is not http or https"));
    }
    let host = uri.host().unwrap_or_default();
    let authority = uri.authority().map_or("", |a| a.as_str());
    if authority.contains('@') {
        return Err(Failure::invalid_request("the URL contains a user"));
    }
    // ureq would dial the default port where it cannot read the one given.
    if host.is_empty() || (authority.len() > host.len() && uri.port_u16().is_none()) {
        return Err(Failure::invalid_request("the URL is not valid"));
    }
    Ok(uri)
}

/// The status decides, whatever becomes of the body.
fn read(response: http::Response<Body>) -> Response {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after
        .and_then(|header| header.to_str().ok())
        .and_then(|text| wait_asked_for(text.trim(), SystemTime::now()));

    let mut body = Vec::new();
    let mut reader = response.into_body().into_reader().take(DRAIN);
    let _ = reader.read_to_end(&mut body);
    Response {
        status,
        retry_after,
        excerpt: excerpt(&body),
    }
}

/// Seconds, or a date in one of the three forms that HTTP allows. What is past or absurd asks for nothing.
fn wait_asked_for(retry_after: &str, now: SystemTime) -> Option<Duration> {
    if retry_after.bytes().all(|c| c.is_ascii_digit()) {
        let seconds: u32 = retry_after.parse().ok()?;
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(retry_after).ok()?;
    date.duration_since(now).ok()
}

fn excerpt(body: &[u8]) -> String {
    let characters = body.utf8_chunks().flat_map(|chunk| {
        let broken = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        chunk.valid().chars().chain(broken)
    });
    let mut text = String::new();
    for c in characters.filter(|c| !c.is_control() || matches!(c, '\n' | '\t')) {
        if text.len() + c.len_utf8() > EXCERPT {
            break;
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests;
