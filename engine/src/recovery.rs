//! The pace of recovery: claims that have lost their sender, turns that nobody has passed on, deliveries of removed
//! endpoints.
//!
//! The queue is read from end to end only when a sender has died, page after page. At other times a page every few
//! seconds finds claims that a restore has brought or that nobody remembers.

use std::time::{Duration, Instant};

use crate::agenda::Wake;
use crate::engine::{Engine, Notice};
use crate::housekeeping::EVERY;
use crate::store::{Recovered, Store};
use crate::trouble::Trouble;
use crate::wire::Wire;

/// Deliveries, lanes and followers that a page reads: a few milliseconds.
const PAGE: i32 = 2000;
/// Deliveries of removed endpoints that a page ends.
const ORPHANS: i32 = 1000;
/// While a sender's claims are looked for, one part in this many of the time goes into it.
const SHARE: u32 = 4;
/// Claims that somebody has locked are tried again after this.
const LOCKED_RETRY: Duration = Duration::from_secs(1);
/// Outcomes that could not be settled get another chance.
const RECONSIDER_EVERY: Duration = Duration::from_secs(60);

pub struct Recovery {
    pub next: Instant,
    /// There is more to do than a look every few seconds.
    goes_on: bool,
    next_reconsideration: Instant,
    /// The place in the queue that the reading has come to; nothing at the beginning.
    position: Option<String>,
    /// Runs of senders whose claims are being looked for, from the beginning of the queue to its end.
    dead: Vec<i32>,
    /// Claims met on the way that somebody has locked.
    locked: i64,
    order: Option<String>,
    orphans_after: i32,
}

impl Recovery {
    pub fn starting(now: Instant) -> Self {
        Recovery {
            next: now,
            goes_on: true,
            next_reconsideration: now,
            position: None,
            dead: Vec::new(),
            locked: 0,
            order: None,
            orphans_after: 0,
        }
    }

    /// There may be claims that the engine does not know of: they are in the queue under this run's own number.
    pub fn begin_anew(&mut self) {
        self.position = None;
        self.goes_on = true;
        self.next = Instant::now();
    }

    pub fn goes_on_at(&self) -> Option<Instant> {
        self.goes_on.then_some(self.next)
    }
}

impl<S: Store, W: Wire> Engine<S, W> {
    pub(crate) fn recover(&mut self, begun: Instant) -> Result<(), Trouble> {
        let recovery = &mut self.housekeeping.recovery;
        recovery.next = begun + EVERY;
        recovery.goes_on = false;
        if begun >= recovery.next_reconsideration {
            recovery.next_reconsideration = begun + RECONSIDER_EVERY.min(self.config.stale_after);
            self.ledger.reconsider();
        }
        let sender = self.sender()?;
        let recovery = &mut self.housekeeping.recovery;
        if recovery.dead.is_empty() {
            recovery.dead = self.store.dead_senders()?;
            if !recovery.dead.is_empty() {
                recovery.position = None;
                recovery.locked = 0;
            }
        }
        let in_flight = self.ledger.keys();
        let recovered =
            self.store
                .recover(sender, &in_flight, recovery.position.as_deref(), PAGE)?;
        recovery.order = self.store.keep_order(recovery.order.as_deref(), PAGE)?;
        let (ended, orphans_after) = self.store.end_orphans(recovery.orphans_after, ORPHANS)?;
        recovery.orphans_after = orphans_after;
        if recovered.failed + ended > 0 {
            self.housekeeping.expect_alerts();
        }
        if recovered.released > 0 {
            self.agenda.wake(Wake::Anything, Instant::now());
        }
        self.report(&recovered);

        let recovery = &mut self.housekeeping.recovery;
        recovery.locked += recovered.locked;
        recovery.position = recovered.position;
        let pace = begun + begun.elapsed() * SHARE;
        if recovery.position.is_some() {
            recovery.goes_on = !recovery.dead.is_empty();
        } else if std::mem::take(&mut recovery.locked) > 0 {
            recovery.goes_on = true;
            recovery.next = begun + LOCKED_RETRY;
            return Ok(());
        } else if !recovery.dead.is_empty() {
            let dead = std::mem::take(&mut recovery.dead);
            self.store.end_senders(dead)?;
        }
        recovery.goes_on |= ended >= i64::from(ORPHANS);
        if recovery.goes_on {
            recovery.next = pace;
        }
        Ok(())
    }

    fn report(&mut self, recovered: &Recovered) {
        if recovered.released + recovered.failed > 0 {
            self.notices.push(Notice::Log(format!(
                "webhook worker recovered {} claims of a lost worker, {} of them without an attempt left",
                recovered.released + recovered.failed,
                recovered.failed
            )));
        }
    }

    /// Nothing of this run is left to be recovered, so the next one need not look for it.
    pub(crate) fn end_sender(&mut self) {
        if let Some(sender) = self.sender.filter(|_| self.ledger.keys().is_empty()) {
            // Where that fails, it does look.
            let _ = self.store.end_senders(vec![sender]);
        }
    }
}
