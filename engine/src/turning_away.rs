//! Deliveries that are due behind an open breaker which holds nothing end as failed.

use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::store::Store;
use crate::wire::Wire;

impl<S: Store, W: Wire> Engine<S, W> {
    /// Ends due deliveries of endpoints whose open breaker holds nothing, and says when to do so again. It has a
    /// transaction of its own: a trigger of somebody's that does not let a delivery end must not keep the others
    /// back. It does not run in every turn: each time counts in the metrics, and so leaves a version of their rows.
    pub(crate) fn turn_away(&mut self, now: Instant) -> Duration {
        const PAGE: i32 = 1000;
        const EVERY: Duration = Duration::from_millis(250);
        const AFTER_TROUBLE: Duration = Duration::from_secs(5);
        let endpoints = self.agenda.turning_away();
        if endpoints.is_empty() {
            return Duration::MAX;
        }
        if now < self.next_turning_away {
            return self.next_turning_away - now;
        }
        let pause = match self.store.turn_away(endpoints, PAGE) {
            // A commit that has more wakes us.
            Ok(0) => return Duration::MAX,
            Ok(turned_away) => {
                self.housekeeping.expect_alerts();
                match turned_away >= i64::from(PAGE) {
                    true => Duration::ZERO,
                    false => EVERY,
                }
            }
            Err(trouble) => {
                self.complain(&trouble);
                AFTER_TROUBLE
            }
        };
        self.next_turning_away = now + pause;
        pause
    }
}
