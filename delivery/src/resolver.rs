//! Host names to addresses. getaddrinfo cannot be interrupted, and for a name whose servers are silent it
//! takes 10 to 30 s. It is called on threads of its own, a name that is asked for many times at once is looked
//! up once, and answers are kept briefly. Names that hang must not stand in the way of those that do not:
//!
//! - **An answer is fresh for 30 s and usable for 5 min.** One that is no longer fresh is still given at once,
//!   while it is looked up again. So an endpoint in use never waits for a lookup, whatever else hangs.
//! - **Two lanes.** A name whose last lookup took more than a second is slow, and slow names have a lane with
//!   threads of its own. In the other lane, names that were prompt before come before new ones.
//! - **What hangs does not exhaust a lane.** Nobody knows of a new name whether it will. So lookups younger than
//!   a second hold no more than a quarter of a lane's threads, and once some hang an eighth of those that do not.
//!   However many hanging names come, there is a turn every second, and the newest name has it. That is so for
//!   lookups that hang up to 23 s; where they hang longer, a turn comes whenever one of them returns.
//! - **Every new name has its turn**, also when whoever asked has given up: next time it is known what it is.
//!   A thousand new names that hang for 10 s are told apart in six minutes.
//!
//! There are 4 threads, and for as long as lookups hang up to 64. At most 4,096 names are kept.

mod clock;
mod names;

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::failure::{Failure, FailureKind};
use crate::threads;

use clock::Clock;
#[cfg(test)]
pub(crate) use clock::HandMoved;
pub(crate) use names::Limits;
use names::{Names, Turn};

const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;
pub(crate) type Answer = Result<Vec<IpAddr>, Failure>;

pub(crate) fn system_lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|a| a.ip()).collect())
}

/// A handle; the lookup threads run until one of its clones is closed.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wanted: Condvar,
    answered: Condvar,
    lookup: Box<Lookup>,
    clock: Clock,
}

struct State {
    names: Names,
    threads: usize,
    /// Of the threads, those that have nothing to look up, or have just been started.
    idle: usize,
    answers: u64,
    closed: bool,
}

impl Resolver {
    pub fn start(lookup: Box<Lookup>, limits: Limits) -> io::Result<Resolver> {
        Resolver::with_clock(Box::new(Instant::now), lookup, limits)
    }

    pub fn with_clock(clock: Clock, lookup: Box<Lookup>, limits: Limits) -> io::Result<Resolver> {
        let resolver = Resolver(Arc::new(Shared {
            state: Mutex::new(State {
                names: Names::new(limits),
                threads: 0,
                idle: 0,
                answers: 0,
                closed: false,
            }),
            wanted: Condvar::new(),
            answered: Condvar::new(),
            lookup,
            clock,
        }));
        for _ in 0..limits.idle_threads {
            let mut state = resolver.0.lock();
            resolver.0.add_thread(&mut state).inspect_err(|_| {
                state.closed = true;
                resolver.0.wanted.notify_all();
            })?;
        }
        Ok(resolver)
    }

    /// Ends the lookup threads and every wait, at once but for a call of getaddrinfo under way.
    pub fn close(&self) {
        self.0.lock().closed = true;
        self.0.wanted.notify_all();
        self.0.answered.notify_all();
    }

    /// What is known about a host at this moment. What is not known, or not fresh, will be looked up; whoever
    /// asks is interested for as long as `interest`.
    pub fn known(&self, host: &str, interest: Duration) -> Option<Answer> {
        let host = host.to_ascii_lowercase();
        self.0.known(&mut self.0.lock(), &host, interest)
    }

    pub fn addresses(&self, host: &str, wait: Duration) -> Answer {
        let host = host.to_ascii_lowercase();
        let deadline = after(wait);
        let mut state = self.0.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(answer) = self.0.known(&mut state, &host, left) {
                return answer;
            }
            if left.is_zero() {
                return Err(late());
            }
            state = wait_for(&self.0.answered, state, left);
        }
    }

    /// Returns when a name was answered since `seen`, or the resolver was closed, and otherwise after `longest`.
    pub fn wait_for_answers(&self, seen: &mut u64, longest: Duration) {
        let deadline = after(longest);
        let mut state = self.0.lock();
        while state.answers == *seen && !state.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = wait_for(&self.0.answered, state, left);
        }
        *seen = state.answers;
    }

    #[cfg(test)]
    fn threads(&self) -> usize {
        self.0.lock().threads
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        threads::lock(&self.state)
    }

    fn known(
        self: &Arc<Self>,
        state: &mut State,
        host: &str,
        interest: Duration,
    ) -> Option<Answer> {
        if state.closed {
            return Some(Err(Failure::new(FailureKind::Local, "shutting down")));
        }
        let now = (self.clock)();
        let until = now + interest.min(LONGEST_WAIT);
        let answer = state.names.known(host, until, now);
        self.call_somebody(state);
        answer
    }

    /// Sees to it that what may be looked up has a thread, and what may not yet has one that waits for it.
    fn call_somebody(self: &Arc<Self>, state: &mut State) {
        if state.names.nothing_waits() {
            return;
        }
        if state.idle > 0 {
            self.wanted.notify_one();
        } else if state.threads < state.names.limits.threads() {
            // Those that there are go on without it.
            let _ = self.add_thread(state);
        }
    }

    fn add_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        threads::spawn(format!("webhook dns {}", state.threads), move || {
            shared.run()
        })?;
        state.threads += 1;
        state.idle += 1;
        Ok(())
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
                    state.answers += 1;
                    self.answered.notify_all();
                }
                Turn::Nobodys(_) if state.idle >= state.names.limits.idle_threads => break,
                Turn::Nobodys(next) => {
                    state.idle += 1;
                    state = match next {
                        Some(wait) => wait_for(&self.wanted, state, wait),
                        None => (self.wanted.wait(state)).unwrap_or_else(PoisonError::into_inner),
                    };
                    state.idle -= 1;
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

fn after(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST_WAIT)
}

fn wait_for<'a, T>(
    signal: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    let waited = signal.wait_timeout(guard, time);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

pub(crate) fn late() -> Failure {
    dns("the host name could not be looked up in time")
}

fn dns(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Dns, message)
}

#[cfg(test)]
mod tests;
