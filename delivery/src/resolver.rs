//! Host names to addresses. getaddrinfo cannot be interrupted and may hang for many seconds, so a few
//! threads of its own call it, callers wait no longer than their deadline, and a name that is asked for
//! many times at once is looked up once. Answers are kept briefly.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver as UreqResolver};
use ureq::unversioned::transport::NextTimeout;

use crate::address_guard::AddressGuard;
use crate::failure::{Failure, FailureKind};
use crate::threads;

const LOOKUP_THREADS: usize = 4;
const MAX_NAMES: usize = 1024;
/// ureq dials no more than this.
const MAX_ADDRESSES: usize = 16;
const KEEP_SUCCESS: Duration = Duration::from_secs(30);
const KEEP_FAILURE: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

pub(crate) fn system_lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|a| a.ip()).collect())
}

/// A handle; the lookup threads run until one of its clones is closed.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Shared>);

struct Shared {
    names: Mutex<Names>,
    wanted: Condvar,
    answered: Condvar,
    lookup: Box<Lookup>,
    guard: Box<dyn AddressGuard>,
}

#[derive(Default)]
struct Names {
    by_host: HashMap<String, Name>,
    /// Hosts that no thread has begun to look up.
    queue: VecDeque<String>,
    closed: bool,
}

type Answer = Result<Vec<IpAddr>, Failure>;

enum Name {
    /// In the queue; pointless once the last caller has given up at `until`.
    Wanted {
        until: Instant,
    },
    Asking,
    Known {
        answer: Answer,
        until: Instant,
    },
}

impl Resolver {
    pub fn start(lookup: Box<Lookup>, guard: impl AddressGuard) -> io::Result<Resolver> {
        let resolver = Resolver(Arc::new(Shared {
            names: Mutex::default(),
            wanted: Condvar::new(),
            answered: Condvar::new(),
            lookup,
            guard: Box::new(guard),
        }));
        for n in 0..LOOKUP_THREADS {
            let shared = resolver.0.clone();
            threads::spawn(format!("webhook dns {n}"), move || shared.answer_wanted())
                .inspect_err(|_| resolver.close())?;
        }
        Ok(resolver)
    }

    /// Ends the lookup threads and every wait, at once but for a call of getaddrinfo under way.
    pub fn close(&self) {
        threads::lock(&self.0.names).closed = true;
        self.0.wanted.notify_all();
        self.0.answered.notify_all();
    }

    fn resolve_uri(&self, uri: &Uri, wait: Duration) -> Result<ResolvedSocketAddrs, Failure> {
        let port = match (uri.port_u16(), uri.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("https")) => 443,
            (None, _) => 80,
        };
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses = match bare.parse::<IpAddr>() {
            Ok(literal) => vec![literal],
            Err(_) => self.0.addresses(&host.to_ascii_lowercase(), wait)?,
        };
        (self.0.guard.check(&addresses))
            .map_err(|message| Failure::new(FailureKind::Blocked, message))?;

        let mut resolved = self.empty();
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            resolved.push(SocketAddr::new(address, port));
        }
        Ok(resolved)
    }
}

impl UreqResolver for Resolver {
    fn resolve(
        &self,
        uri: &Uri,
        _: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        self.resolve_uri(uri, *timeout.after)
            .map_err(|failure| Error::Other(Box::new(failure)))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Shared {
    fn addresses(&self, host: &str, wait: Duration) -> Answer {
        let deadline = Instant::now() + wait.min(LONGEST_WAIT);
        let mut names = threads::lock(&self.names);
        loop {
            if names.closed {
                return Err(Failure::new(FailureKind::Local, "shutting down"));
            }
            let now = Instant::now();
            match names.by_host.get_mut(host) {
                Some(Name::Known { answer, until }) if now < *until => return answer.clone(),
                Some(Name::Wanted { until }) => *until = deadline.max(*until),
                Some(Name::Asking) => {}
                Some(Name::Known { .. }) | None => {
                    names.want(host, deadline)?;
                    self.wanted.notify_one();
                }
            }
            if now >= deadline {
                return Err(dns("the host name could not be looked up in time"));
            }
            names = self
                .answered
                .wait_timeout(names, deadline - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn answer_wanted(&self) {
        while let Some(host) = self.next_wanted() {
            let answer = self.ask(&host);
            let keep = match answer {
                Ok(_) => KEEP_SUCCESS,
                Err(_) => KEEP_FAILURE,
            };
            let until = Instant::now() + keep;
            let known = Name::Known { answer, until };
            threads::lock(&self.names).by_host.insert(host, known);
            self.answered.notify_all();
        }
    }

    fn next_wanted(&self) -> Option<String> {
        let mut names = threads::lock(&self.names);
        while !names.closed {
            if let Some(host) = names.begin_next() {
                return Some(host);
            }
            names = self
                .wanted
                .wait(names)
                .unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn ask(&self, host: &str) -> Answer {
        let addresses = threads::catch(|| (self.lookup)(host))
            .map_err(|panic| Failure::new(FailureKind::Local, panic))?
            .map_err(|error| Failure::local(&error).unwrap_or_else(|| dns(error.to_string())))?;
        if addresses.is_empty() {
            return Err(dns("the host name has no address"));
        }
        Ok(addresses)
    }
}

impl Names {
    fn want(&mut self, host: &str, until: Instant) -> Result<(), Failure> {
        if self.by_host.len() >= MAX_NAMES {
            self.forget_oldest();
        }
        if self.by_host.len() >= MAX_NAMES {
            return Err(dns("too many host names are being looked up"));
        }
        self.by_host.insert(host.into(), Name::Wanted { until });
        self.queue.push_back(host.into());
        Ok(())
    }

    fn forget_oldest(&mut self) {
        let oldest = self
            .by_host
            .iter()
            .filter_map(|(host, name)| match name {
                Name::Known { until, .. } => Some((*until, host)),
                _ => None,
            })
            .min();
        if let Some((_, host)) = oldest {
            let host = host.clone();
            self.by_host.remove(&host);
        }
    }

    fn begin_next(&mut self) -> Option<String> {
        let now = Instant::now();
        while let Some(host) = self.queue.pop_front() {
            match self.by_host.get_mut(&host) {
                Some(Name::Wanted { until }) if *until <= now => {
                    self.by_host.remove(&host);
                }
                Some(name) => {
                    *name = Name::Asking;
                    return Some(host);
                }
                None => {}
            }
        }
        None
    }
}

fn dns(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Dns, message)
}

#[cfg(test)]
mod tests;
