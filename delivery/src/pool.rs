//! Threads that perform attempts, and the way back for their outcomes.

use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::address_guard::Network;
use crate::attempt::{Attempt, Key, Outcome, Response};
use crate::client::Client;
use crate::failure::Failure;
use crate::gate;
use crate::lobby::{Guest, Lobby};
use crate::resolver::{self, Limits, Resolver};
use crate::roots::Roots;
use crate::scheduler::Scheduler;
use crate::threads;

/// How late an attempt may be told that it waited for its host in vain.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Whom to dial and whom to trust.
#[derive(Clone, PartialEq, Eq)]
pub struct Setup {
    pub network: Network,
    pub roots: Roots,
}

/// Every attempt that is submitted either comes back once as an [`Outcome`] or is withdrawn. No method
/// blocks, nor does dropping the pool: its threads are detached and end by themselves.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    submitted: Condvar,
    arrived_in_lobby: Condvar,
    client: Client,
    wake_writer: UnixStream,
    wake_reader: UnixStream,
}

struct State {
    lobby: Lobby,
    scheduler: Scheduler<Ready>,
    /// Not empty exactly while one byte waits in `wake_reader`.
    outcomes: Vec<Outcome>,
    closed: bool,
}

struct Ready {
    attempt: Attempt,
    /// For its host to be looked up.
    waited: Duration,
}

impl Pool {
    pub fn start(threads: usize, setup: Setup) -> io::Result<Pool> {
        let resolver = Resolver::start(Box::new(resolver::system_lookup), Limits::default())?;
        let client = Client::new(threads, resolver, setup.network, &setup.roots);
        Pool::with_client(threads, client)
    }

    /// Holds for every attempt that a thread begins from now on, also for those that were submitted before. No
    /// connection is used that was made under another setup.
    pub fn set_up(&self, setup: Setup) {
        self.shared.client.change_rules(setup.network, &setup.roots);
    }

    fn with_client(threads: usize, client: Client) -> io::Result<Pool> {
        let (wake_writer, wake_reader) = UnixStream::pair()?;
        wake_writer.set_nonblocking(true)?;
        wake_reader.set_nonblocking(true)?;
        let pool = Pool {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    lobby: Lobby::default(),
                    scheduler: Scheduler::new(threads.max(1)),
                    outcomes: Vec::new(),
                    closed: false,
                }),
                submitted: Condvar::new(),
                arrived_in_lobby: Condvar::new(),
                client,
                wake_writer,
                wake_reader,
            }),
        };
        let shared = pool.shared.clone();
        threads::spawn("webhook lobby".into(), move || shared.attend_lobby())?;
        for n in 0..threads.max(1) {
            let shared = pool.shared.clone();
            threads::spawn(format!("webhook http {n}"), move || shared.run())?;
        }
        Ok(pool)
    }

    pub fn submit(&self, attempts: Vec<Attempt>) {
        let mut state = threads::lock(&self.shared.state);
        for attempt in attempts {
            self.shared.receive(&mut state, attempt);
        }
        // One is enough: a thread that takes an attempt and leaves more behind wakes the next.
        self.shared.submitted.notify_one();
        if !state.lobby.is_empty() {
            self.shared.arrived_in_lobby.notify_one();
        }
    }

    /// Readable exactly while outcomes wait.
    pub fn wake_fd(&self) -> RawFd {
        self.shared.wake_reader.as_raw_fd()
    }

    pub fn take_outcomes(&self) -> Vec<Outcome> {
        let mut state = threads::lock(&self.shared.state);
        if !state.outcomes.is_empty() {
            let _ = (&self.shared.wake_reader).read(&mut [0]);
        }
        mem::take(&mut state.outcomes)
    }

    /// Takes back what no thread has begun.
    pub fn withdraw_waiting(&self) -> Vec<Key> {
        let mut state = threads::lock(&self.shared.state);
        let waiting = state.lobby.withdraw().into_iter();
        let ready = state.scheduler.withdraw().into_iter();
        let withdrawn = waiting.chain(ready.map(|ready| ready.attempt));
        withdrawn.map(|attempt| attempt.key).collect()
    }

    /// Interrupts what is in flight; it comes back as [`crate::FailureKind::Local`], and so does all that is
    /// submitted later. A TCP handshake under way comes back only with its `connect_timeout`.
    pub fn abort(&self) {
        self.shared.client.abort();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        threads::lock(&self.shared.state).closed = true;
        self.shared.submitted.notify_all();
        self.shared.arrived_in_lobby.notify_all();
        self.shared.client.abort();
    }
}

impl Shared {
    fn receive(&self, state: &mut State, attempt: Attempt) {
        let Some(name) = gate::name_in(&attempt.route.url) else {
            return state.line_up(attempt, Duration::ZERO);
        };
        let patience = attempt.route.connect_timeout;
        let guest = Guest::new(attempt);
        match self.client.resolver.known(&name, patience) {
            Some(answer) => self.admit(state, guest, answer.map(drop)),
            None => state.lobby.receive(name, guest),
        }
    }

    fn admit(&self, state: &mut State, guest: Guest, known: Result<(), Failure>) {
        let waited = guest.waited();
        match known {
            Ok(()) => state.line_up(guest.attempt, waited),
            Err(failure) => self.report(state, outcome(guest.attempt.key, Err(failure), waited)),
        }
    }

    fn attend_lobby(&self) {
        let resolver = &self.client.resolver;
        let mut answers = 0;
        while self.wait_for_guests() {
            resolver.wait_for_answers(&mut answers, LOOK_AROUND);
            let mut state = threads::lock(&self.state);
            for (guest, known) in state
                .lobby
                .leave(|name| resolver.known(name, Duration::ZERO))
            {
                self.admit(&mut state, guest, known);
            }
            self.submitted.notify_one();
        }
    }

    /// False when the pool is closed.
    fn wait_for_guests(&self) -> bool {
        let mut state = threads::lock(&self.state);
        while state.lobby.is_empty() && !state.closed {
            state = (self.arrived_in_lobby.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        !state.closed
    }

    fn run(&self) {
        while let Some(ready) = self.next() {
            let outcome = self.perform(&ready);
            self.finish(outcome);
        }
    }

    fn next(&self) -> Option<Ready> {
        let mut state = threads::lock(&self.state);
        while !state.closed {
            if let Some(ready) = state.scheduler.take() {
                if state.scheduler.may_have_ready() {
                    self.submitted.notify_one();
                }
                return Some(ready);
            }
            state = (self.submitted.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn perform(&self, Ready { attempt, waited }: &Ready) -> Outcome {
        let started = Instant::now();
        let result = threads::catch(|| self.client.deliver_after(*waited, attempt))
            .unwrap_or_else(|panic| Err(Failure::invalid_request(panic)));
        outcome(attempt.key, result, *waited + started.elapsed())
    }

    fn finish(&self, outcome: Outcome) {
        let mut state = threads::lock(&self.state);
        state.scheduler.finish(outcome.key.endpoint_id);
        self.report(&mut state, outcome);
    }

    fn report(&self, state: &mut State, outcome: Outcome) {
        if state.outcomes.is_empty() {
            let _ = (&self.wake_writer).write(&[0]);
        }
        state.outcomes.push(outcome);
    }
}

impl State {
    fn line_up(&mut self, attempt: Attempt, waited: Duration) {
        let (endpoint, limit) = (attempt.key.endpoint_id, attempt.route.max_in_flight);
        self.scheduler
            .push(endpoint, limit, Ready { attempt, waited });
    }
}

fn outcome(key: Key, result: Result<Response, Failure>, duration: Duration) -> Outcome {
    Outcome {
        key,
        result,
        duration,
        ended: Instant::now(),
    }
}

#[cfg(test)]
mod tests;
