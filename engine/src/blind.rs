//! Claims while somebody has locked the table of breakers, as VACUUM FULL does.
//!
//! An endpoint has one sender. Only that sender moves its breaker, or a person who needs the same lock. So the sender
//! knows the breakers of the endpoints that it serves, and claims for endpoints that answer and whose breaker is
//! closed. Their outcomes wait in memory meanwhile ([`crate::settling`]). All other endpoints wait until the lock is
//! gone.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::admission::Asking;
use crate::agenda::LOCKED_RETRY;
use crate::engine::{Engine, Notice};
use crate::store::{Store, Wishes};
use crate::trouble::Trouble;
use crate::wire::Wire;

impl<S: Store, W: Wire> Engine<S, W> {
    /// Whether the call may have failed at the table of breakers.
    pub(crate) fn is_blinded_by(&mut self, trouble: &Trouble) -> bool {
        let is_blinded = self.hold.is_none() && trouble.is_lock_not_available();
        if is_blinded && self.settling.claims_met_a_lock(Instant::now()) {
            let message =
                "a table that claims read is locked: they go on without a look at circuit breakers";
            self.notices.push(Notice::Error(message.to_owned()));
        }
        is_blinded
    }

    /// Where the lock is on another table that claims need, this fails too.
    pub(crate) fn claim_blindly(
        &mut self,
        cautious: bool,
        now: Instant,
    ) -> Result<Duration, Trouble> {
        let wishes = self.wishes_of(self.asking_and_well(now), cautious, now)?;
        if wishes.of_endpoints.is_empty() {
            return Ok(LOCKED_RETRY);
        }
        let wishes = Wishes {
            breakers_are_locked: true,
            ..wishes
        };
        Ok(self.hand_in(0, wishes)?.min(LOCKED_RETRY))
    }

    /// The look at all endpoints reads breakers too. Where it is wanted, each endpoint that is well is asked for.
    fn asking_and_well(&self, now: Instant) -> Vec<Asking> {
        let is_served = |id: &i32| self.agenda.shares().serve(*id);
        let well: HashSet<i32> = self.admission.well().filter(is_served).collect();
        let asked: Vec<i32> = match self.agenda.wants_look(now) {
            true => {
                let changed: HashSet<i32> = self.agenda.changed().collect();
                well.difference(&changed).copied().collect()
            }
            false => {
                let asking = self.agenda.asking(now).map(|asking| asking.endpoint_id);
                asking.filter(|id| well.contains(id)).collect()
            }
        };
        let unguarded = |endpoint_id| Asking {
            endpoint_id,
            is_guarded: false,
        };
        asked.into_iter().map(unguarded).collect()
    }
}
