//! The scoreboard: whatever happens to a server, a sender or a receiver, no committed event is lost.
//!
//! A case is a disaster. It gets a scene, in which clients emit and note their commits, and a random number
//! generator. When it is over, one reconciliation compares the clients' notes, the requests at the receiver, and the
//! tables. The end-to-end tests run each case with one seed; `make chaos` runs many, and writes docs/reliability.md.

mod books;
mod cases;
mod clients;
mod gate;
mod report;
mod scene;

pub use cases::CASES;
pub use report::{Outcome, head, markdown, written_by};
pub use scene::{Scene, Sender};

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::pg_config::not_tested;
use books::Records;

/// About as many events are committed by the clients of a scene in a run for the page.
pub const LONG: usize = 1000;

pub struct Case {
    pub name: &'static str,
    /// Assertions beside the reconciliation.
    pub asserts: &'static str,
    pub run: fn(&mut Stage),
}

/// A case makes its scene here, and leaves it to be reconciled.
pub struct Stage {
    pub seed: u64,
    /// Events that a scene's clients commit about, before the case may end.
    pub size: usize,
    pub score: Score,
}

impl Stage {
    fn empty(seed: u64, size: usize) -> Stage {
        Stage {
            seed,
            size,
            score: Score::default(),
        }
    }

    /// Whether it is a run for the page, and no test.
    pub fn is_long(&self) -> bool {
        self.size >= LONG
    }
}

/// The findings of a reconciliation, or of several of one case together.
#[derive(Debug, Clone, Default)]
pub struct Score {
    pub committed: usize,
    pub rolled_back: usize,
    /// Events whose client never heard whether they were committed.
    pub unknown: usize,
    pub lost: usize,
    pub duplicates: usize,
    /// Requests that may have been in flight when a sender was lost: as many may be repeated.
    pub in_flight: usize,
    /// The longest silence of the receiver from the end of a disturbance on.
    pub silence: Duration,
    /// Why nothing happened, if so.
    pub not_tested: Option<&'static str>,
    /// The records of scenes that are not reconciled yet.
    open: Vec<Arc<Records>>,
}

impl Score {
    /// Adds the numbers of a scene as it is now; later ones do not count.
    fn close(&mut self, records: &Arc<Records>) -> Score {
        let score = records.score();
        self.add(&score);
        self.open.retain(|open| !Arc::ptr_eq(open, records));
        score
    }

    /// Adds the numbers of all scenes that a failed case has left open.
    fn close_all(&mut self) {
        for records in std::mem::take(&mut self.open) {
            self.close(&records);
        }
    }

    pub fn add(&mut self, other: &Score) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.unknown += other.unknown;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.in_flight += other.in_flight;
        self.silence = self.silence.max(other.silence);
        self.not_tested = self.not_tested.or(other.not_tested);
    }
}

/// Panics with the first promise that was broken.
pub fn run(case: &Case, seed: u64, size: usize) -> Score {
    let mut stage = Stage::empty(seed, size);
    perform(case, &mut stage);
    stage.score
}

/// The same, but returns a broken promise, beside the score.
pub fn try_run(case: &Case, seed: u64, size: usize) -> (Score, Option<String>) {
    let mut stage = Stage::empty(seed, size);
    match panic::catch_unwind(AssertUnwindSafe(|| perform(case, &mut stage))) {
        Ok(()) => (stage.score, None),
        Err(broken) => {
            let text = broken.downcast_ref::<String>().cloned();
            let text = text.or_else(|| broken.downcast_ref::<&str>().map(|text| text.to_string()));
            let text = text.unwrap_or_else(|| "it panicked".to_owned());
            stage.score.close_all();
            (stage.score, Some(text))
        }
    }
}

fn perform(case: &Case, stage: &mut Stage) {
    (case.run)(stage);
    match stage.score.not_tested {
        Some(why) => not_tested(case.name, why),
        None => assert!(stage.score.committed > 0, "{}: nothing happened", case.name),
    }
}

#[track_caller]
pub fn named(name: &str) -> &'static Case {
    let case = CASES.iter().find(|case| case.name == name);
    case.unwrap_or_else(|| panic!("there is no case {name:?}"))
}
