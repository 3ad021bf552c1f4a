//! The pace of retention: between the turns, at the rate of the inflow, never in delivery's way.

use super::Worker;
use super::turn::is_read_only;
use crate::store::{self, Expired, RetentionPosition};
use pgrx::prelude::*;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Twice what was finished since the last step, within these bounds: it keeps up with what comes in. A larger step removes no
/// more in the same time (12 us of CPU for a delivery, in steps of 1,000 or of 10,000), and keeps deliveries waiting for longer.
const STEP: RangeInclusive<usize> = 200..=1000;
const STEP_EVERY: Duration = Duration::from_millis(100);
/// One part in this many of its time is what the worker spends on steps: 5% at first, and twice as much after each step that
/// had to remove as many rows as it may, up to 25%.
const SHARE: RangeInclusive<u32> = 4..=20;
/// A sweep from the beginning has to pass all that vacuum has not yet removed, and old events that are still needed: one
/// part in this many of the time goes into that.
const SWEEP_SHARE: u32 = 100;
/// A worker that was stopped for a minute amid a step is not slow.
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// Endpoints whose counters are looked at in one step, and endpoints that were removed.
const ENDPOINTS: i32 = 100;

pub struct Retention {
    /// Deliveries finished since the last step.
    finished: usize,
    /// One part in this many of the time, of SHARE; below its end while retention is behind.
    share: u32,
    next_step: Instant,
    position: RetentionPosition,
    /// What the sweep has taken on its way to the end.
    sweep_took: Duration,
    /// It has come to the end: when to begin anew, for what was passed over.
    next_sweep: Option<Instant>,
    tally_after: i32,
    removed_after: i32,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            finished: 0,
            share: *SHARE.end(),
            next_step: Instant::now(),
            position: RetentionPosition::default(),
            sweep_took: Duration::ZERO,
            next_sweep: None,
            tally_after: 0,
            removed_after: 0,
        }
    }
}

impl Retention {
    pub fn finished(&mut self, deliveries: usize) {
        self.finished += deliveries;
    }

    fn is_behind(&self) -> bool {
        self.share < *SHARE.end()
    }

    fn step_size(&self) -> usize {
        match self.is_behind() {
            true => *STEP.end(),
            false => (2 * self.finished).clamp(*STEP.start(), *STEP.end()),
        }
    }

    fn adapt(&mut self, behind: bool) {
        self.share = match behind {
            true => (self.share / 2).max(*SHARE.start()),
            false => *SHARE.end(),
        };
    }

    /// From the beginning of one step to that of the next.
    fn interval(&self, took: Duration) -> Duration {
        let least = match self.is_behind() {
            true => Duration::ZERO,
            false => STEP_EVERY,
        };
        (took * self.share).clamp(least, LONGEST_REST)
    }

    fn begin_anew(&mut self) {
        self.position = RetentionPosition::default();
        self.sweep_took = Duration::ZERO;
        self.next_sweep = None;
    }
}

impl Worker {
    /// Makes a step when one is due and nothing is waiting to be delivered, or has been for long; says what is left of
    /// the pause. A copy of another installation keeps everything until it is adopted.
    pub(super) fn retain(&mut self, pause: Duration) -> Duration {
        if is_read_only() || self.foreign_endpoints > 0 {
            return pause;
        }
        let begun = Instant::now();
        let patience = if pause.is_zero() && !self.retention.is_behind() {
            STEP_EVERY
        } else {
            Duration::ZERO
        };
        if begun < self.retention.next_step + patience {
            return pause.min(self.retention.next_step.saturating_duration_since(begun));
        }
        if self.retention.next_sweep.is_some_and(|at| begun >= at) {
            self.retention.begin_anew();
        }
        let everything = self.expire().unwrap_or_else(|trouble| {
            if trouble.code != PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE {
                self.complain(&trouble);
            }
            true
        });

        let took = begun.elapsed();
        let retention = &mut self.retention;
        if retention.next_sweep.is_none() {
            retention.sweep_took += took;
            let rest = (retention.sweep_took * SWEEP_SHARE).min(LONGEST_REST);
            retention.next_sweep = everything.then_some(begun + rest);
        }
        retention.next_step = if everything {
            // It follows a look at whose endpoints these are.
            self.next_survey
        } else {
            begun + retention.interval(took)
        };
        let left = pause.saturating_sub(took);
        left.min(
            retention
                .next_step
                .saturating_duration_since(Instant::now()),
        )
    }

    /// Says whether that was all there is.
    fn expire(&mut self) -> Result<bool, store::Trouble> {
        let step = self.retention.step_size();
        let position = self.retention.position;
        let Expired {
            more,
            behind,
            position,
        } = store::transaction(|client| store::expire(client, step, position))?;
        self.retention.position = position;
        self.retention.finished = 0;
        self.retention.adapt(behind);
        if !more {
            let (tally, removed) = (self.retention.tally_after, self.retention.removed_after);
            (self.retention.tally_after, self.retention.removed_after) =
                store::transaction(|client| {
                    Ok((
                        store::expire_tally(client, tally, ENDPOINTS)?,
                        store::forget_removed_endpoints(client, removed, ENDPOINTS)?,
                    ))
                })?;
        }
        Ok(!more)
    }
}
