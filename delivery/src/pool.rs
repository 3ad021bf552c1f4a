//! Threads that perform attempts, and the way back for their outcomes.

use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use crate::address_guard::PermitAll;
use crate::attempt::{Attempt, Key, Outcome};
use crate::client::{self, Client};
use crate::failure::Failure;
use crate::resolver::{self, Resolver};
use crate::scheduler::Scheduler;
use crate::threads;

/// Every attempt that is submitted either comes back once as an [`Outcome`] or is withdrawn. No method
/// blocks, nor does dropping the pool: its threads are detached and end by themselves.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    submitted: Condvar,
    client: Client,
    wake_writer: UnixStream,
    wake_reader: UnixStream,
}

struct State {
    scheduler: Scheduler<Attempt>,
    /// Not empty exactly while one byte waits in `wake_reader`.
    outcomes: Vec<Outcome>,
    closed: bool,
}

impl Pool {
    pub fn start(threads: usize) -> io::Result<Pool> {
        let resolver = Resolver::start(Box::new(resolver::system_lookup), PermitAll)?;
        let client = Client::new(threads, client::system_roots(), resolver);
        Pool::with_client(threads, client)
    }

    fn with_client(threads: usize, client: Client) -> io::Result<Pool> {
        let (wake_writer, wake_reader) = UnixStream::pair()?;
        wake_writer.set_nonblocking(true)?;
        wake_reader.set_nonblocking(true)?;
        let pool = Pool {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    scheduler: Scheduler::new(threads.max(1)),
                    outcomes: Vec::new(),
                    closed: false,
                }),
                submitted: Condvar::new(),
                client,
                wake_writer,
                wake_reader,
            }),
        };
        for n in 0..threads.max(1) {
            let shared = pool.shared.clone();
            threads::spawn(format!("webhook http {n}"), move || shared.run())?;
        }
        Ok(pool)
    }

    pub fn submit(&self, attempts: Vec<Attempt>) {
        let mut state = threads::lock(&self.shared.state);
        for attempt in attempts {
            let (endpoint, limit) = (attempt.key.endpoint_id, attempt.route.max_in_flight);
            state.scheduler.push(endpoint, limit, attempt);
        }
        // One is enough: a thread that takes an attempt and leaves more behind wakes the next.
        self.shared.submitted.notify_one();
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
        let withdrawn = threads::lock(&self.shared.state).scheduler.withdraw();
        withdrawn.iter().map(|attempt| attempt.key).collect()
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
        self.shared.client.abort();
    }
}

impl Shared {
    fn run(&self) {
        while let Some(attempt) = self.next() {
            let outcome = self.perform(&attempt);
            self.finish(outcome);
        }
    }

    fn next(&self) -> Option<Attempt> {
        let mut state = threads::lock(&self.state);
        while !state.closed {
            if let Some(attempt) = state.scheduler.take() {
                if state.scheduler.may_have_ready() {
                    self.submitted.notify_one();
                }
                return Some(attempt);
            }
            state = (self.submitted.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn perform(&self, attempt: &Attempt) -> Outcome {
        let started = Instant::now();
        let result = threads::catch(|| self.client.deliver(attempt))
            .unwrap_or_else(|panic| Err(Failure::invalid_request(panic)));
        Outcome {
            key: attempt.key,
            result,
            duration: started.elapsed(),
            finished_at: SystemTime::now(),
        }
    }

    fn finish(&self, outcome: Outcome) {
        let mut state = threads::lock(&self.state);
        if state.outcomes.is_empty() {
            let _ = (&self.wake_writer).write(&[0]);
        }
        state.scheduler.finish(outcome.key.endpoint_id);
        state.outcomes.push(outcome);
    }
}

#[cfg(test)]
mod tests;
