//! How long the relay may begin requests without an answer of the database.
//!
//! A relay that is cut off has claims in hand, and the server gives its shares and claims to another sender when it
//! finds the session ended. The relay cannot know when that is: the server may see the network fail, restart, or be
//! told to end the session. So the relay goes by its own clock alone:
//!
//! - Each answer allows it to begin requests for a while, counted from when the *question* was sent: the session was
//!   alive then.
//! - When that while is over, it takes back every request of which no byte is on the wire, and begins none.
//! - Another sender waits for `webhook.longest_silence()` after it has found the session ended (sql/35_senders.sql).
//!
//! A session answers nothing after its end, so the last question that it answered was sent before, and the silence of
//! the relay is over before the other's wait is. No TCP timeout is part of that: keepalives only make both sides
//! notice sooner. The relay uses three quarters of the time, so that a thread that gets no processor for a moment is
//! not late. A process that was stopped for longer (a debugger, a suspended machine) can still send the request that
//! it was about to write; the fence and the event's id, which stays the same, are there for that.
//!
//! While requests are in flight the relay asks at least every quarter of the time; while it is idle silence means
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use webhook_delivery::{Attempt, Key, Outcome, Pool, Setup};
use webhook_engine::Wire;

use crate::log;

pub struct Silence {
    /// When the last question that was answered was sent.
    since: watch::Sender<Option<Instant>>,
    longest_ms: AtomicU64,
}

impl Default for Silence {
    fn default() -> Self {
        Silence {
            since: watch::Sender::new(None),
            longest_ms: AtomicU64::new(0),
        }
    }
}

impl Silence {
    /// The time that the database allows.
    pub fn allow(&self, longest: Duration) {
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.longest_ms.store(longest, Ordering::Relaxed);
    }

    /// A question that was sent then was answered.
    pub fn end(&self, asked: Instant) {
        self.since.send_replace(Some(asked));
    }

    /// While something is in flight, the time after which to ask.
    pub fn ask_after(&self) -> Duration {
        self.longest() / 4
    }

    /// Whether it is time to ask; not before the database has said how long the silence may be.
    pub fn calls_for_question(&self) -> bool {
        let lasts = self.lasts_since(*self.since.borrow());
        !self.longest().is_zero() && lasts >= self.ask_after()
    }

    fn is_too_long(&self) -> bool {
        self.left(*self.since.borrow()).is_zero()
    }

    fn left(&self, since: Option<Instant>) -> Duration {
        (self.longest() / 4 * 3).saturating_sub(self.lasts_since(since))
    }

    fn lasts_since(&self, since: Option<Instant>) -> Duration {
        since.map_or(Duration::MAX, |since| since.elapsed())
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}

/// The pool, which begins nothing while the silence is too long.
pub struct Guarded {
    pool: Arc<Pool>,
    silence: Arc<Silence>,
    taken_back: Arc<Mutex<Vec<Key>>>,
    watching: JoinHandle<()>,
}

impl Guarded {
    pub fn new(runtime: &Runtime, pool: Pool, silence: &Arc<Silence>) -> Guarded {
        let (pool, taken_back) = (Arc::new(pool), Arc::default());
        let watching = watch(
            Arc::clone(&pool),
            Arc::clone(silence),
            Arc::clone(&taken_back),
        );
        Guarded {
            pool,
            silence: Arc::clone(silence),
            taken_back,
            watching: runtime.spawn(watching),
        }
    }

    pub fn set_up(&self, setup: Setup) {
        self.pool.set_up(setup);
    }

    /// The engine learns of these requests when it withdraws.
    pub fn has_taken_back(&self) -> bool {
        !lock(&self.taken_back).is_empty()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Wire for Guarded {
    fn submit(&self, limits: &[(i32, usize)], attempts: Vec<Attempt>) {
        if self.silence.is_too_long() {
            // Waiting attempts would not hear of these limits.
            let waiting = self.pool.withdraw(|_| true);
            let keys = attempts.iter().map(|attempt| attempt.key);
            lock(&self.taken_back).extend(waiting.into_iter().chain(keys));
        } else {
            self.pool.submit_within(limits, attempts);
        }
    }

    fn take_outcomes(&self) -> Vec<Outcome> {
        self.pool.take_outcomes()
    }

    fn withdraw(&self, which: &dyn Fn(&Key) -> bool) -> Vec<Key> {
        let mut keys = self.pool.withdraw(which);
        keys.extend(lock(&self.taken_back).extract_if(.., |key| which(key)));
        keys
    }

    fn abort(&self) {
        self.pool.abort();
    }
}

/// Runs beside the engine, which waits for answers in the same thread.
async fn watch(pool: Arc<Pool>, silence: Arc<Silence>, taken_back: Arc<Mutex<Vec<Key>>>) {
    let mut since = silence.since.subscribe();
    loop {
        let left = silence.left(*since.borrow_and_update());
        if !left.is_zero() {
            tokio::time::sleep(left).await;
            continue;
        }
        let waiting = pool.withdraw(|_| true);
        if !waiting.is_empty() {
            log::warn(
                &format!(
                    "the database has not answered in time: {} requests that had not gone out are given back",
                    waiting.len()
                ),
                "Another sender may serve their endpoints by now.",
            );
            lock(&taken_back).extend(waiting);
        }
        if since.changed().await.is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(2000);

    fn lasting(seconds: u64) -> Silence {
        let silence = Silence::default();
        silence.allow(LONGEST);
        let asked = Instant::now().checked_sub(Duration::from_secs(seconds));
        silence.end(asked.expect("the machine has run for longer"));
        silence
    }

    #[test]
    fn silence_calls_for_a_question_long_before_it_is_too_long() {
        for (seconds, calls, is_too_long) in [
            (100, false, false),
            (600, true, false),
            (1400, true, false),
            (1600, true, true),
        ] {
            let silence = lasting(seconds);
            assert_eq!(silence.calls_for_question(), calls, "{seconds}");
            assert_eq!(silence.is_too_long(), is_too_long, "{seconds}");
        }
    }

    #[test]
    fn an_answer_counts_from_its_question() {
        let silence = lasting(1600);
        silence.end(Instant::now() - Duration::from_secs(700));
        assert!(silence.calls_for_question() && !silence.is_too_long());
    }

    #[test]
    fn before_the_first_answer_nothing_is_begun() {
        let silence = Silence::default();
        assert!(silence.is_too_long() && !silence.calls_for_question());
        silence.allow(LONGEST);
        assert!(silence.is_too_long() && silence.calls_for_question());
    }
}
