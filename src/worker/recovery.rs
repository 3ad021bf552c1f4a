//! The pace of recovery: claims that have lost their worker, turns that nobody has passed on, deliveries of removed endpoints.
//!
//! The queue is read from end to end only when a worker has died, page after page; at other times a page every few seconds
//! finds what a restore has brought and what nobody remembers.

use super::Worker;
use super::turn::SURVEY_EVERY;
use crate::store::{self, OrderPosition, QueuePosition, Recovered, Trouble};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// Deliveries, lanes and followers that a page reads: a few milliseconds.
const PAGE: i32 = 2000;
/// Deliveries of removed endpoints that a page ends.
const ORPHANS: i32 = 1000;
/// While a worker's claims are looked for, one part in this many of the time goes into it.
const SHARE: u32 = 4;
/// Claims that somebody has locked are tried again after this.
const LOCKED_RETRY: Duration = Duration::from_secs(1);
/// Outcomes that could not be settled get another chance.
const RECONSIDER_EVERY: Duration = Duration::from_secs(60);

pub struct Recovery {
    pub next: Instant,
    next_reconsideration: Instant,
    /// Where the reading of the queue has come to; the beginning where there is nothing.
    position: Option<QueuePosition>,
    /// Runs of workers whose claims are being looked for, from the beginning of the queue to its end.
    dead: Vec<i32>,
    /// Claims met on the way that somebody has locked.
    locked: i64,
    order: OrderPosition,
    orphans_after: i32,
}

impl Default for Recovery {
    fn default() -> Self {
        Recovery {
            next: Instant::now(),
            next_reconsideration: Instant::now(),
            position: None,
            dead: Vec::new(),
            locked: 0,
            order: OrderPosition::default(),
            orphans_after: 0,
        }
    }
}

impl Worker {
    pub(super) fn recover(&mut self) -> Result<(), Trouble> {
        let begun = Instant::now();
        self.recovery.next = begun + SURVEY_EVERY;
        if begun >= self.recovery.next_reconsideration {
            self.recovery.next_reconsideration =
                begun + RECONSIDER_EVERY.min(self.settings.stale_after);
            self.ledger.reconsider();
        }
        let claimed = self.ledger.keys();
        let instance = self.instance()?;
        let recovery = &mut self.recovery;
        if recovery.dead.is_empty() {
            recovery.dead = store::transaction(|client| store::dead_instances(client, instance))?;
            if !recovery.dead.is_empty() {
                recovery.position = None;
                recovery.locked = 0;
            }
        }
        let (recovered, order, (ended, orphans_after)) = store::transaction(|client| {
            Ok((
                store::recover(client, instance, &claimed, recovery.position.as_ref(), PAGE)?,
                store::keep_order(client, &recovery.order, PAGE)?,
                store::end_orphans(client, recovery.orphans_after, ORPHANS)?,
            ))
        })?;
        recovery.order = order;
        recovery.orphans_after = orphans_after;
        report(&recovered);
        recovery.locked += recovered.locked;
        recovery.position = recovered.position;
        if recovery.position.is_none() {
            if recovery.locked == 0 && !recovery.dead.is_empty() {
                let dead = std::mem::take(&mut recovery.dead);
                store::transaction(|client| store::end_instances(client, &dead))?;
            }
            if std::mem::take(&mut recovery.locked) > 0 {
                recovery.next = begun + LOCKED_RETRY;
            }
        } else if !recovery.dead.is_empty() {
            recovery.next = begun + begun.elapsed() * SHARE;
        }
        if ended >= i64::from(ORPHANS) {
            recovery.next = recovery.next.min(begun + begun.elapsed() * SHARE);
        }
        if recovered.failed + ended > 0 {
            self.expect_alerts();
        }
        Ok(())
    }

    /// Nothing of this run is left to be recovered, so the next one need not look for it.
    pub(super) fn end_instance(&mut self) {
        if let Some(instance) = self.instance.filter(|_| self.ledger.keys().is_empty()) {
            // Where that fails, it does look.
            let _ = store::transaction(|client| store::end_instances(client, &[instance]));
        }
    }
}

fn report(recovered: &Recovered) {
    if recovered.released + recovered.failed > 0 {
        log!(
            "webhook worker recovered {} claims of a lost worker, {} of them without an attempt left",
            recovered.released + recovered.failed,
            recovered.failed
        );
    }
}
