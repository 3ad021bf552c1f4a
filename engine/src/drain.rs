//! The end of a sender: what is in flight gets a short time, and the rest is given back as if it had never been claimed.

use std::time::Duration;

use webhook_delivery::FailureKind;

use crate::engine::{Engine, Notice};
use crate::ledger::Ending;
use crate::store::Store;
use crate::wire::Wire;

/// What somebody has locked is tried again after this.
const LOCKED_RETRY: Duration = Duration::from_millis(20);

impl<S: Store, W: Wire> Engine<S, W> {
    /// Takes back what has not gone out.
    pub fn withdraw_waiting(&mut self) {
        for key in self.wire.withdraw(&|_| true) {
            self.ledger.end(Ending::released(key));
        }
    }

    /// Takes what has ended; says whether there is more to wait for. Trouble of our own is the shutdown itself.
    pub fn collect_last(&mut self) -> bool {
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

    pub fn abort(&mut self) {
        self.wire.abort();
    }

    /// Gives up what has not come back.
    pub fn release_rest(&mut self) {
        for key in self.ledger.keys_out() {
            self.ledger.end(Ending::released(key));
        }
    }

    /// Settles all that has ended; says after what time to try the rest again. The next sender recovers claims that are
    /// not settled in the end.
    pub fn settle_last(&mut self) -> Option<Duration> {
        match self.settle() {
            Ok(()) => self.ledger.has_endings().then_some(LOCKED_RETRY),
            Err(trouble) if trouble.is_passing() => Some(Duration::ZERO),
            Err(trouble) => {
                self.notices.push(Notice::Error(trouble.message));
                None
            }
        }
    }

    pub fn finish(&mut self) {
        if let Err(trouble) = self.flush_tally() {
            self.complain(&trouble);
        }
        self.end_instance();
    }
}
