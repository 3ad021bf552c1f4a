//! The end of a sender: requests in flight get a short time, and all others are given back as if they had never been
//! claimed.

use std::time::{Duration, Instant};

use webhook_delivery::FailureKind;

use crate::engine::{Engine, Notice};
use crate::ledger::Ending;
use crate::store::Store;
use crate::wire::Wire;

/// Locked rows are tried again after this.
const LOCKED_RETRY: Duration = Duration::from_millis(20);
/// Interrupted requests get this long to notice.
const INTERRUPTION: Duration = Duration::from_millis(500);
const LAST_SETTLING: Duration = Duration::from_secs(1);

impl<S: Store, W: Wire> Engine<S, W> {
    /// Gives requests in flight this long to end by themselves. The host waits for outcomes, at most for the time
    /// that it is told.
    pub fn stop(&mut self, grace: Duration, mut wait: impl FnMut(&W, Duration)) {
        self.withdraw_waiting();
        self.settle_within(LAST_SETTLING, &mut wait);
        self.collect_within(grace, &mut wait);
        self.abort();
        self.collect_within(INTERRUPTION, &mut wait);
        for key in self.ledger.keys_out() {
            self.ledger.end(Ending::released(key));
        }
        self.settle_within(LAST_SETTLING, &mut wait);
        let deadline = Instant::now() + LAST_SETTLING;
        while !self.figures.is_empty() && Instant::now() < deadline {
            if let Err(trouble) = self.flush_figures(Instant::now()) {
                self.complain(&trouble);
                break;
            }
        }
        self.end_sender();
    }

    /// Takes back the claims that have not gone out.
    pub fn withdraw_waiting(&mut self) {
        self.withdraw(|_| true);
    }

    pub fn abort(&mut self) {
        self.wire.abort();
    }

    fn collect_within(&mut self, time: Duration, wait: &mut impl FnMut(&W, Duration)) {
        let deadline = Instant::now() + time;
        while self.collect_last() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            wait(&self.wire, left);
        }
    }

    /// Collects outcomes; says whether there are more to wait for. Trouble of our own is the shutdown itself.
    fn collect_last(&mut self) -> bool {
        for outcome in self.wire.take_outcomes() {
            let is_interrupted = matches!(
                &outcome.result,
                Err(failure) if failure.kind == FailureKind::Local
            );
            self.ledger.end(match is_interrupted {
                true => Ending::released(outcome.key),
                false => Ending::from(outcome),
            });
        }
        self.ledger.out() > 0
    }

    fn settle_within(&mut self, time: Duration, wait: &mut impl FnMut(&W, Duration)) {
        let deadline = Instant::now() + time;
        while let Some(pause) = self.settle_last() {
            if Instant::now() >= deadline {
                return;
            }
            wait(&self.wire, pause);
        }
    }

    /// Settles all outcomes; says after what time to try the rest again. The next sender recovers claims that are not
    /// settled in the end.
    fn settle_last(&mut self) -> Option<Duration> {
        match self.settle() {
            Ok(()) => self.ledger.has_endings().then_some(LOCKED_RETRY),
            Err(trouble) if trouble.is_passing() => Some(Duration::ZERO),
            Err(trouble) => {
                self.notices.push(Notice::Error(trouble.message));
                None
            }
        }
    }
}
