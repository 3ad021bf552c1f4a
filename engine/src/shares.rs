//! The shares of this sender: an endpoint has one sender at a time, which alone knows how much it may send.
//!
//! SQL says which shares are ours. The engine releases a share that it is to give up when none of its requests is in
//! flight any more; claims that have not gone out yet go back at once.

use std::time::{Duration, Instant};

use crate::agenda::Wake;
use crate::engine::{Engine, Hold};
use crate::housekeeping::EVERY;
use crate::store::{Shares, Store};
use crate::trouble::Trouble;
use crate::wire::Wire;

/// While another sender has a share: that sender may be gone. A first look notices it, and its share is free at a
/// look webhook.longest_silence() later: within 3 s in all.
const WHILE_THERE_ARE_OTHERS: Duration = Duration::from_millis(500);
const WHILE_GIVING_UP: Duration = Duration::from_millis(50);

const BETWEEN_RINGS: Duration = Duration::from_millis(20);

/// Commits for other senders, which cannot see them themselves.
#[derive(Default)]
pub(crate) struct Ring {
    is_due: bool,
    last: Option<Instant>,
}

impl Ring {
    fn pause(&self, now: Instant) -> Duration {
        match (self.is_due, self.last) {
            (false, _) => Duration::MAX,
            (true, None) => Duration::ZERO,
            (true, Some(last)) => (last + BETWEEN_RINGS).saturating_duration_since(now),
        }
    }
}

impl<S: Store, W: Wire> Engine<S, W> {
    /// Rings for the senders that serve the endpoints of a commit and cannot see it.
    pub fn tell_of_commit(&mut self, wake: Wake) {
        let shares = self.agenda.shares();
        self.ring.is_due |= match &wake {
            Wake::Endpoint { id, .. } | Wake::Changed { id } => !shares.serve(*id),
            Wake::Anything => !shares.are_all(),
        };
        self.agenda.wake(wake, Instant::now());
    }

    /// Another sender rang: all senders know of the commit.
    pub fn hear_ring(&mut self) {
        self.agenda.wake(Wake::Anything, Instant::now());
    }

    /// The store has another session, which has none of the locks of the last: this run goes on under another number
    /// and asks for its shares anew. It keeps its requests on the wire, and looks for claims that it was never told
    /// of.
    pub fn begin_session(&mut self) {
        self.earlier = self.sender.take().or(self.earlier);
        self.serve(&Shares::default());
        self.next_look_at_shares = Instant::now();
        self.housekeeping.recovery.begin_anew();
    }

    /// Says when to ring next.
    pub(crate) fn ring_for_others(&mut self, now: Instant) -> Duration {
        if self.hold != Some(Hold::Writing) && self.ring.pause(now).is_zero() {
            self.ring = Ring {
                is_due: false,
                last: Some(now),
            };
            if let Err(trouble) = self.store.ring() {
                self.complain(&trouble);
            }
        }
        self.ring.pause(now)
    }

    /// Trouble is told, and the shares stay as they were for a while.
    pub(crate) fn look_at_shares(&mut self, now: Instant) {
        if self.hold == Some(Hold::Writing) || now < self.next_look_at_shares {
            return;
        }
        self.next_look_at_shares = now + WHILE_THERE_ARE_OTHERS;
        let looked = match self.config.max_in_flight {
            0 => self.retire(),
            _ => self.take_shares(now),
        };
        if let Err(trouble) = looked {
            self.next_look_at_shares = now + EVERY;
            self.complain(&trouble);
        }
    }

    /// A sender that has all of them looks again when it wakes, and wakes for nothing else than the poll.
    pub(crate) fn until_look_at_shares(&self, now: Instant) -> Duration {
        match self.agenda.shares().are_all() {
            true => Duration::MAX,
            false => self.next_look_at_shares.saturating_duration_since(now),
        }
    }

    fn take_shares(&mut self, now: Instant) -> Result<(), Trouble> {
        let sender = self.sender()?;
        let found = self.store.take_shares(sender, self.in_flight())?;
        self.serve(&found);
        if found.are_all() {
            // Not in each turn, and in any case at the next poll.
            self.next_look_at_shares = now + self.config.poll_interval / 2;
        }
        if !found.given_up.is_empty() {
            if self.has_nothing_of_others() {
                self.store.release_shares(sender, &found.given_up)?;
            }
            self.next_look_at_shares = now + WHILE_GIVING_UP;
        }
        Ok(())
    }

    /// Other senders have all shares: ends this run as soon as nothing is in flight.
    fn retire(&mut self) -> Result<(), Trouble> {
        self.serve(&Shares::default());
        if let Some(sender) = self.sender.filter(|_| self.has_nothing_of_others()) {
            self.store.end_senders(vec![sender])?;
            self.sender = None;
        }
        Ok(())
    }

    fn serve(&mut self, shares: &Shares) {
        if self.agenda.serve(shares) {
            self.admission.unlearn(|id| !shares.serve(id));
            // Its last sender may have left claims.
            self.housekeeping.recovery.begin_anew();
            self.withdraw(|key| !shares.serve(key.endpoint_id));
        }
    }

    fn has_nothing_of_others(&self) -> bool {
        let claimed = self.ledger.keys();
        claimed
            .iter()
            .all(|key| self.agenda.shares().serve(key.endpoint_id))
    }
}
