//! The pace of retention: between the turns, at the rate of the inflow, never in delivery's way.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::engine::{Engine, Hold};
use crate::housekeeping::EVERY;
use crate::store::{Retained, Store};
use crate::trouble::Trouble;
use crate::wire::Wire;

/// Twice as many deliveries as were finished since the last step, within these bounds, so that retention keeps up
/// with the inflow. A larger step removes no more in the same time (12 us of CPU for a delivery, in steps of 1,000 or
/// of 10,000), and keeps deliveries waiting for longer.
const STEP: RangeInclusive<usize> = 200..=1000;
const STEP_EVERY: Duration = Duration::from_millis(100);
/// The sender spends one part in this many of its time on steps: 5% at first, and twice as much after each step that
/// had to remove as many rows as it may, up to 25%.
const SHARE: RangeInclusive<u32> = 4..=20;
/// A sweep from the beginning has to pass rows that vacuum has not yet removed, and old events that are still needed:
/// one part in this many of the time goes into that.
const SWEEP_SHARE: u32 = 100;
/// A sender that was stopped for a minute amid a step is not slow.
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// Endpoints whose figures are looked at in one step, and endpoints that were removed.
const ENDPOINTS: i32 = 100;

pub struct Retention {
    /// Deliveries finished since the last step.
    finished: usize,
    /// One part in this many of the time, of SHARE; below its end while retention is behind.
    share: u32,
    next_step: Instant,
    /// There was more than the last step could remove.
    goes_on: bool,
    position: Option<String>,
    /// The time that the sweep has taken on its way to the end.
    sweep_took: Duration,
    /// The sweep has come to the end: when to begin anew, for rows that it has passed over.
    next_sweep: Option<Instant>,
    figures_after: i32,
    removed_after: i32,
}

impl Retention {
    pub fn starting(now: Instant) -> Self {
        Retention {
            finished: 0,
            share: *SHARE.end(),
            next_step: now,
            goes_on: true,
            position: None,
            sweep_took: Duration::ZERO,
            next_sweep: None,
            figures_after: 0,
            removed_after: 0,
        }
    }

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
        self.position = None;
        self.sweep_took = Duration::ZERO;
        self.next_sweep = None;
    }

    /// The rest of a pause; retention that has come to the end waits for the next wake-up.
    fn shorten(&self, pause: Duration) -> Duration {
        match self.goes_on {
            true => pause.min(self.next_step.saturating_duration_since(Instant::now())),
            false => pause,
        }
    }
}

impl<S: Store, W: Wire> Engine<S, W> {
    /// Makes a step when one is due and nothing is waiting to be delivered, or has been for long; says how much of
    /// the pause is left. A copy of another installation keeps everything until it is adopted.
    pub(crate) fn retain(&mut self, pause: Duration) -> Duration {
        if !self.agenda.shares().keep_house()
            || self.hold == Some(Hold::Writing)
            || self.housekeeping.foreign_endpoints > 0
        {
            return pause;
        }
        let begun = Instant::now();
        let retention = &mut self.housekeeping.retention;
        let patience = if pause.is_zero() && !retention.is_behind() {
            STEP_EVERY
        } else {
            Duration::ZERO
        };
        if begun < retention.next_step + patience {
            return retention.shorten(pause);
        }
        if retention.next_sweep.is_some_and(|at| begun >= at) {
            retention.begin_anew();
        }
        let everything = self.remove_what_is_old().unwrap_or_else(|trouble| {
            if !trouble.is_lock_not_available() {
                self.complain(&trouble);
            }
            true
        });

        let took = begun.elapsed();
        let retention = &mut self.housekeeping.retention;
        if retention.next_sweep.is_none() {
            retention.sweep_took += took;
            let rest = (retention.sweep_took * SWEEP_SHARE).min(LONGEST_REST);
            retention.next_sweep = everything.then_some(begun + rest);
        }
        retention.goes_on = !everything;
        retention.next_step = match everything {
            true => begun + EVERY,
            false => begun + retention.interval(took),
        };
        retention.shorten(pause.saturating_sub(took))
    }

    /// Says whether nothing old is left.
    fn remove_what_is_old(&mut self) -> Result<bool, Trouble> {
        let retention = &mut self.housekeeping.retention;
        let Retained {
            more,
            behind,
            position,
        } = self
            .store
            .retain(retention.step_size(), retention.position.as_deref())?;
        retention.position = position;
        retention.finished = 0;
        retention.adapt(behind);
        if !more {
            retention.figures_after = self
                .store
                .expire_figures(retention.figures_after, ENDPOINTS)?;
            retention.removed_after = self
                .store
                .forget_removed_endpoints(retention.removed_after, ENDPOINTS)?;
        }
        Ok(!more)
    }
}
