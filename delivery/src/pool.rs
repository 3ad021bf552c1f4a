//! The thread that holds every attempt in flight, and the way back for their outcomes.

mod entrances;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::runtime::{self, Runtime};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::address_guard::{AddressGuard, Network};
use crate::attempt::{Attempt, Key, Outcome, Response};
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::resolver::{self, Limits, Resolver};
use crate::roots::Roots;
use crate::threads;
use entrances::Entrances;

/// Networks to dial and authorities to trust.
#[derive(Clone, PartialEq, Eq)]
pub struct Setup {
    pub network: Network,
    pub roots: Roots,
}

/// Every attempt that is submitted begins as soon as its endpoint has room, and either comes back once as an
/// [`Outcome`] or is withdrawn. No method blocks, nor does dropping the pool: its threads are detached and end by
/// themselves.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread: there is something new in `state`.
    changed: Notify,
    /// Wakes the task that tells the host of outcomes.
    ended: Notify,
    /// The client of every attempt that begins.
    client: Mutex<Arc<Client>>,
    resolver: Resolver,
    wake_writer: UnixStream,
    wake_reader: UnixStream,
}

#[derive(Default)]
struct State {
    /// All attempts that have neither ended nor been withdrawn: the code that takes an attempt out of here tells its
    /// end.
    live: HashMap<u64, Live>,
    submitted: u64,
    /// Live attempts that the thread has not begun.
    entrances: Entrances,
    outcomes: Vec<Outcome>,
    /// Whether a byte waits in `wake_reader`.
    told: bool,
    aborted: bool,
    closed: bool,
}

struct Live {
    key: Key,
    /// Since when it is under way, or waits to be.
    since: Instant,
    on_the_wire: bool,
    task: Option<AbortHandle>,
}

impl Pool {
    pub fn start(setup: Setup) -> io::Result<Pool> {
        let resolver = Resolver::new(Box::new(resolver::system_lookup), Limits::default());
        Pool::with(resolver, setup.network, &setup.roots)
    }

    pub(crate) fn with(
        resolver: Resolver,
        guard: impl AddressGuard,
        roots: &Roots,
    ) -> io::Result<Pool> {
        let (wake_writer, wake_reader) = UnixStream::pair()?;
        wake_writer.set_nonblocking(true)?;
        wake_reader.set_nonblocking(true)?;
        let client = Arc::new(Client::new(resolver.clone(), guard, roots));
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Notify::new(),
            ended: Notify::new(),
            client: Mutex::new(client),
            resolver,
            wake_writer,
            wake_reader,
        });
        let pool = Pool {
            shared: shared.clone(),
        };
        threads::spawn("webhook io".into(), move || shared.run(runtime))?;
        Ok(pool)
    }

    /// Holds for every attempt that is begun from now on. No connection is used that was made under another setup.
    pub fn set_up(&self, setup: Setup) {
        self.change_rules(setup.network, &setup.roots);
    }

    pub(crate) fn change_rules(&self, guard: impl AddressGuard, roots: &Roots) {
        let client = Client::new(self.shared.resolver.clone(), guard, roots);
        *threads::lock(&self.shared.client) = Arc::new(client);
    }

    pub fn submit(&self, attempts: Vec<Attempt>) {
        self.submit_within(&[], attempts);
    }

    /// No more than so many attempts of each of these endpoints are under way at a time, until all attempts of the
    /// endpoint have ended, or one of them has failed: then no waiting attempt follows, until there is another limit.
    pub fn submit_within(&self, limits: &[(i32, usize)], attempts: Vec<Attempt>) {
        let since = Instant::now();
        let mut state = threads::lock(&self.shared.state);
        for (endpoint_id, most) in limits {
            state.entrances.limit(*endpoint_id, *most);
        }
        for attempt in attempts {
            let id = state.submitted;
            state.submitted += 1;
            let live = Live {
                key: attempt.key,
                since,
                on_the_wire: false,
                task: None,
            };
            state.live.insert(id, live);
            state.entrances.push(id, attempt);
        }
        if state.aborted {
            self.shared.interrupt(&mut state);
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Readable exactly while outcomes wait.
    pub fn wake_fd(&self) -> RawFd {
        self.shared.wake_reader.as_raw_fd()
    }

    pub fn take_outcomes(&self) -> Vec<Outcome> {
        let mut state = threads::lock(&self.shared.state);
        if mem::take(&mut state.told) {
            let _ = (&self.shared.wake_reader).read(&mut [0]);
        }
        mem::take(&mut state.outcomes)
    }

    /// Takes these attempts back, but for those of which a byte has been sent.
    pub fn withdraw(&self, which: impl Fn(&Key) -> bool) -> Vec<Key> {
        let mut state = threads::lock(&self.shared.state);
        let waits = |_: &u64, live: &mut Live| !live.on_the_wire && which(&live.key);
        let withdrawn: Vec<_> = state.live.extract_if(waits).collect();
        if !withdrawn.is_empty() {
            let State {
                entrances, live, ..
            } = &mut *state;
            entrances.retain(|id| live.contains_key(&id));
        }
        drop(state);
        let stop = |(_, live): (u64, Live)| {
            live.task.inspect(AbortHandle::abort);
            live.key
        };
        withdrawn.into_iter().map(stop).collect()
    }

    /// Interrupts requests in flight; they come back as [`FailureKind::Local`], and so do all attempts that are
    /// submitted later.
    pub fn abort(&self) {
        self.shared.abort();
    }
}

/// The same socket as [`Pool::wake_fd`].
impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake_reader.as_fd()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        threads::lock(&self.shared.state).closed = true;
        self.shared.changed.notify_one();
        self.shared.resolver.close();
    }
}

impl Shared {
    fn run(self: Arc<Self>, runtime: Runtime) {
        let _ = threads::catch(|| {
            runtime.block_on(self.clone().begin());
            drop(runtime);
        });
        // Nobody waits for a thread that is gone.
        self.abort();
    }

    async fn begin(self: Arc<Self>) {
        tokio::spawn(self.clone().tell());
        loop {
            self.changed.notified().await;
            let client = threads::lock(&self.client).clone();
            let mut state = threads::lock(&self.state);
            if state.closed {
                return;
            }
            let State {
                entrances, live, ..
            } = &mut *state;
            let now = Instant::now();
            entrances.admit(|id, attempt| {
                let Some(live) = live.get_mut(&id) else {
                    return false;
                };
                let place = Place {
                    shared: self.clone(),
                    endpoint_id: live.key.endpoint_id,
                };
                let performing = place.perform(id, attempt, client.clone());
                live.since = now;
                live.task = Some(tokio::spawn(performing).abort_handle());
                true
            });
        }
    }

    fn goes_out(&self, id: u64) -> Result<(), Failure> {
        match threads::lock(&self.state).live.get_mut(&id) {
            Some(live) => live.on_the_wire = true,
            // Nobody will hear of the result.
            None => return Err(interrupted()),
        }
        Ok(())
    }

    /// Has its turn after all tasks that were ready when the first of them ended: the host is woken once for them.
    async fn tell(self: Arc<Self>) {
        loop {
            self.ended.notified().await;
            self.tell_host(&mut threads::lock(&self.state));
        }
    }

    fn tell_host(&self, state: &mut State) {
        if !state.outcomes.is_empty() && !mem::replace(&mut state.told, true) {
            let _ = (&self.wake_writer).write(&[0]);
        }
    }

    fn abort(&self) {
        let mut state = threads::lock(&self.state);
        state.aborted = true;
        self.interrupt(&mut state);
        drop(state);
        self.resolver.close();
    }

    fn interrupt(&self, state: &mut State) {
        state.entrances = Entrances::default();
        for (_, live) in state.live.drain() {
            live.task.as_ref().inspect(|task| task.abort());
            state.outcomes.push(live.outcome(Err(interrupted())));
        }
        self.tell_host(state);
    }
}

/// The place of an attempt that is under way, at the entrance of its endpoint. A task that is aborted leaves it too.
struct Place {
    shared: Arc<Shared>,
    endpoint_id: i32,
}

impl Place {
    async fn perform(self, id: u64, attempt: Attempt, client: Arc<Client>) {
        let shared = &self.shared;
        let mut delivering = pin!(client.deliver(&attempt, || shared.goes_out(id)));
        let result = threads::catch_async(delivering.as_mut())
            .await
            .unwrap_or_else(|panic| Err(Failure::invalid_request(panic)));
        let mut state = threads::lock(&shared.state);
        if let Some(live) = state.live.remove(&id) {
            if !matches!(&result, Ok(response) if (200..300).contains(&response.status)) {
                state.entrances.close(self.endpoint_id);
            }
            state.outcomes.push(live.outcome(result));
            if state.outcomes.len() == 1 {
                shared.ended.notify_one();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = threads::lock(&self.shared.state);
        if state.entrances.leave(self.endpoint_id) {
            self.shared.changed.notify_one();
        }
    }
}

impl Live {
    fn outcome(&self, result: Result<Response, Failure>) -> Outcome {
        let ended = Instant::now();
        Outcome {
            key: self.key,
            result,
            duration: ended - self.since,
            ended,
        }
    }
}

fn interrupted() -> Failure {
    Failure::new(FailureKind::Local, "interrupted by shutdown")
}

#[cfg(test)]
mod tests;
