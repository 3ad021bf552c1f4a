//! Host names to addresses. getaddrinfo cannot be interrupted, and for a name whose servers are silent it takes 10 to
//! 30 s. It is called on threads of its own, a name that is asked for many times at once is looked up once, and
//! answers are kept briefly. Names that hang must not stand in the way of names that do not:
//!
//! - **An answer is fresh for 30 s and usable for 5 min.** One that is no longer fresh is still given at once, while
//!   it is looked up again. So an endpoint in use never waits for a lookup, whatever else hangs. While the lookup
//!   hangs, or has failed only after it hung, the last good answer is given for up to an hour. The client judges the
//!   addresses each time that it dials.
//! - **Two lanes.** A name whose last lookup took more than a second is slow, and slow names have a lane with threads
//!   of its own. In the other lane, names that were prompt before come before new ones.
//! - **Hanging names do not exhaust a lane.** Nobody knows of a new name whether it will hang. So lookups younger
//!   than a second hold no more than a quarter of a lane's threads, and once some hang an eighth of the threads that
//!   do not. However many hanging names come, there is a turn every second, and the newest name has it. That is so
//!   for lookups that hang up to 23 s; where they hang longer, a turn comes whenever one of them returns.
//! - **Every new name has its turn**, also when the attempt that asked has given up: next time its pace is known. A
//!   thousand new names that hang for 10 s are told apart in six minutes.
//!
//! Threads come when they are needed, as a rule one or two and while lookups hang up to 64, and end when they have had
//! nothing to do for a few seconds. At most 4,096 names are kept.

mod clock;
mod names;

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time;

use crate::failure::{Failure, FailureKind};
use crate::threads;

use clock::Clock;
#[cfg(test)]
pub(crate) use clock::HandMoved;
pub(crate) use names::Limits;
use names::{Names, Turn};

pub(crate) type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;
pub(crate) type Answer = Result<Vec<IpAddr>, Failure>;

pub(crate) fn system_lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|a| a.ip()).collect())
}

/// A handle; no thread is started once one of its clones is closed.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wanted: Condvar,
    lookup: Box<Lookup>,
    clock: Clock,
}

struct State {
    names: Names,
    threads: usize,
    /// Threads that have nothing to look up, or have just been started.
    idle: usize,
    closed: bool,
}

impl Resolver {
    pub fn new(lookup: Box<Lookup>, limits: Limits) -> Resolver {
        Resolver::with_clock(Box::new(Instant::now), lookup, limits)
    }

    pub fn with_clock(clock: Clock, lookup: Box<Lookup>, limits: Limits) -> Resolver {
        Resolver(Arc::new(Shared {
            state: Mutex::new(State {
                names: Names::new(limits),
                threads: 0,
                idle: 0,
                closed: false,
            }),
            wanted: Condvar::new(),
            lookup,
            clock,
        }))
    }

    /// Ends the lookup threads, at once except for a call of getaddrinfo under way.
    pub fn close(&self) {
        self.0.lock().closed = true;
        self.0.wanted.notify_all();
    }

    pub async fn addresses(&self, host: &str, deadline: time::Instant) -> Answer {
        let host = host.to_ascii_lowercase();
        loop {
            let (answered, prompt) = {
                let mut state = self.0.lock();
                let left = deadline.saturating_duration_since(time::Instant::now());
                if let Some(answer) = self.0.known(&mut state, &host, left) {
                    return answer;
                }
                if left.is_zero() {
                    return Err(late());
                }
                let answered = state.names.answered(&host).ok_or_else(late)?;
                (answered.notified_owned(), state.names.limits.prompt)
            };
            // A lookup that has come to hang may be answered by an older one.
            let hangs = time::Instant::now() + prompt;
            let _ = time::timeout_at(deadline.min(hangs), answered).await;
        }
    }

    #[cfg(test)]
    fn known(&self, host: &str, interest: Duration) -> Option<Answer> {
        self.0.known(&mut self.0.lock(), host, interest)
    }

    #[cfg(test)]
    pub fn threads(&self) -> usize {
        self.0.lock().threads
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        threads::lock(&self.state)
    }

    /// The answer for a host at this moment, if there is one. A name that is not known, or not fresh, will be looked
    /// up; the caller is interested for as long as `interest`.
    fn known(
        self: &Arc<Self>,
        state: &mut State,
        host: &str,
        interest: Duration,
    ) -> Option<Answer> {
        let now = (self.clock)();
        let answer = state.names.known(host, now + interest, now);
        self.call_somebody(state);
        answer
    }

    /// Sees to it that a name that may be looked up has a thread, and one that may not yet has one that waits for it.
    fn call_somebody(self: &Arc<Self>, state: &mut State) {
        if state.names.nothing_waits() || state.closed {
            return;
        }
        if state.idle > 0 {
            self.wanted.notify_one();
        } else if state.threads < state.names.limits.threads() {
            let shared = self.clone();
            // The other threads go on without it.
            if threads::spawn("webhook dns".into(), move || shared.run()).is_ok() {
                state.threads += 1;
                state.idle += 1;
            }
        }
    }

    fn run(self: Arc<Self>) {
        let mut state = self.lock();
        state.idle -= 1;
        while !state.closed {
            match state.names.begin_next((self.clock)()) {
                Turn::Yours(lookup) => {
                    self.call_somebody(&mut state);
                    drop(state);
                    let answer = self.ask(&lookup.host);
                    state = self.lock();
                    state.names.finish(lookup, answer, (self.clock)());
                }
                Turn::Nobodys(next) => {
                    let longest = state.names.limits.idle;
                    state.idle += 1;
                    let (back, waited) = self
                        .wanted
                        .wait_timeout(state, next.unwrap_or(longest))
                        .unwrap_or_else(PoisonError::into_inner);
                    state = back;
                    state.idle -= 1;
                    if next.is_none() && waited.timed_out() && state.names.nothing_waits() {
                        break;
                    }
                }
            }
        }
        state.threads -= 1;
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

pub(crate) fn late() -> Failure {
    dns("the host name could not be looked up in time")
}

fn dns(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Dns, message)
}

#[cfg(test)]
mod tests;
