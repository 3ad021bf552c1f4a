//! Performs one attempt over the connections that all threads share.

use std::io::{self, Read};
use std::mem;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use ureq::config::AutoHeaderValue;
use ureq::http::header::RETRY_AFTER;
use ureq::http::{self, Request};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Error};

use crate::address_guard::AddressGuard;
use crate::attempt::{Attempt, Response};
use crate::deadline::{self, Deadline};
use crate::failure::{Failure, FailureKind};
use crate::gate::Gate;
use crate::memory::Growing;
use crate::resolver::Resolver;
use crate::roots::Roots;
use crate::{request, threads};

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
    pub resolver: Resolver,
    connections: usize,
    agents: Mutex<Agents>,
}

/// An agent knows one set of rules, and its connections were made by them: where the rules change there is a
/// new agent, and what is idle with the old one is closed.
struct Agents {
    current: Arc<Agent>,
    /// Those that may have requests in flight.
    retired: Vec<Weak<Agent>>,
    aborted: bool,
}

impl Client {
    pub fn new(
        connections: usize,
        resolver: Resolver,
        guard: impl AddressGuard,
        roots: &Roots,
    ) -> Client {
        let current = Arc::new(agent(connections, resolver.clone(), guard, roots));
        Client {
            resolver,
            connections,
            agents: Mutex::new(Agents {
                current,
                retired: Vec::new(),
                aborted: false,
            }),
        }
    }

    /// What begins from now on goes by these rules, on connections that were made by them.
    pub fn change_rules(&self, guard: impl AddressGuard, roots: &Roots) {
        let new = Arc::new(agent(self.connections, self.resolver.clone(), guard, roots));
        let mut agents = threads::lock(&self.agents);
        if agents.aborted {
            return;
        }
        let old = mem::replace(&mut agents.current, new);
        agents.retired.retain(|agent| agent.strong_count() > 0);
        agents.retired.push(Arc::downgrade(&old));
        drop(agents);
        // With the last that is in flight go the connections.
        drop(old);
    }

    #[cfg(test)]
    pub fn deliver(&self, attempt: &Attempt) -> Result<Response, Failure> {
        self.deliver_after(Duration::ZERO, attempt)
    }

    /// `waited` for its name to be looked up, which is a part of its connect_timeout.
    pub fn deliver_after(&self, waited: Duration, attempt: &Attempt) -> Result<Response, Failure> {
        let route = &*attempt.route;
        let connect_timeout = route.connect_timeout.saturating_sub(waited);
        let (head, body) = request::render(attempt, SystemTime::now())?.into_parts();
        let request = Request::from_parts(head, &body);

        let agent = threads::lock(&self.agents).current.clone();
        let started = Instant::now();
        deadline::begin(connect_timeout, route.timeout);
        let mut result = agent.run(request.clone());

        // The server may close an idle connection in the moment that we use it. That says nothing about
        // the endpoint, so it costs no attempt: once more on a connection of its own, within the same
        // budget. If the server did read the first one, it sees a duplicate with the same webhook-id.
        let progress = deadline::progress();
        if matches!(result, Err(Error::Io(_))) && progress.reused && !progress.heard {
            let left = route.timeout.saturating_sub(started.elapsed());
            deadline::begin(connect_timeout, left);
            let on_fresh_connection = agent
                .configure_request(request)
                .max_idle_age(Duration::ZERO)
                .build();
            result = agent.run(on_fresh_connection);
        }

        match result {
            Ok(response) => Ok(read(response)),
            Err(_) if threads::lock(&self.agents).aborted => {
                Err(Failure::new(FailureKind::Local, "interrupted by shutdown"))
            }
            Err(error) => Err(Failure::of(error, deadline::progress(), route)),
        }
    }

    /// Interrupts what is in flight and refuses what comes later. A TCP handshake under way is the one
    /// wait that cannot be interrupted; it ends with its `connect_timeout`.
    pub fn abort(&self) {
        let mut agents = threads::lock(&self.agents);
        agents.aborted = true;
        let retired = agents.retired.iter().filter_map(Weak::upgrade);
        let all: Vec<_> = retired.chain([agents.current.clone()]).collect();
        drop(agents);
        self.resolver.close();
        for agent in all {
            Agent::clone(&agent).shutdown();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.abort();
    }
}

fn agent(connections: usize, resolver: Resolver, guard: impl AddressGuard, roots: &Roots) -> Agent {
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
        .tls_config(TlsConfig::builder().root_certs(roots.for_ureq()).build())
        .build();
    let gate = Gate {
        resolver,
        guard: Box::new(guard),
    };
    Agent::with_parts(config, Deadline(DefaultConnector::new()), Deadline(gate))
}

/// The status decides, whatever becomes of the body.
fn read(response: http::Response<Body>) -> Response {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after
        .and_then(|header| header.to_str().ok())
        .and_then(|text| wait_asked_for(text.trim(), SystemTime::now()));

    let mut body = Growing::default();
    let mut reader = response.into_body().into_reader().take(DRAIN);
    let _ = io::copy(&mut reader, &mut body);
    Response {
        status,
        retry_after,
        excerpt: excerpt(&body.into_bytes()),
    }
}

/// Seconds, or a date in one of the three forms that HTTP allows. A date in the past asks for nothing, and whoever asks for more
/// than can be counted for the longest wait there is.
fn wait_asked_for(retry_after: &str, now: SystemTime) -> Option<Duration> {
    let longest = Duration::from_secs(u32::MAX.into());
    if !retry_after.is_empty() && retry_after.bytes().all(|c| c.is_ascii_digit()) {
        let seconds = retry_after.parse().map(Duration::from_secs);
        return Some(seconds.map_or(longest, |wait| wait.min(longest)));
    }
    let date = httpdate::parse_http_date(retry_after).ok()?;
    Some(date.duration_since(now).ok()?.min(longest))
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
