//! The pace of settling while somebody has locked a table that outcomes are written to, say by VACUUM FULL.
//!
//! Outcomes wait in memory and claims go on without them. A try waits for the lock as long as lock_timeout says, and
//! nothing is claimed meanwhile; so tries are rare, and each has half as many outcomes as the one before: where a
//! single row is locked, or the log of failures alone, the others pass.

use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The largest handful, once it grows again.
const MOST: usize = 4000;
/// The memory that outcomes may take, about 100,000 of them, before nothing more is claimed.
pub const MOST_BYTES: usize = 16 << 20;

#[derive(Default)]
pub struct Settling {
    /// Nothing where nobody is in the way.
    blocked: Option<Blocked>,
}

struct Blocked {
    handful: usize,
    pause: Duration,
    next: Instant,
    /// Claims met a lock too.
    hides_breakers: bool,
}

impl Settling {
    /// How many outcomes to hand in at most.
    pub fn handful(&self) -> usize {
        (self.blocked.as_ref()).map_or(usize::MAX, |blocked| blocked.handful)
    }

    /// How long to hand in no outcomes, if so.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let wait = self.blocked.as_ref()?.next.checked_duration_since(now)?;
        (!wait.is_zero()).then_some(wait)
    }

    /// Somebody has a lock that these outcomes need; says whether that is new.
    pub fn met_a_lock(&mut self, outcomes: usize, now: Instant) -> bool {
        let earlier = self.blocked.as_ref().map(|blocked| blocked.pause);
        let pause = earlier.map_or(FIRST_PAUSE, |pause| (2 * pause).min(LONGEST_PAUSE));
        self.blocked = Some(Blocked {
            handful: (outcomes / 2).max(1),
            pause,
            next: now + pause,
            hides_breakers: false,
        });
        earlier.is_none()
    }

    /// Until the next try, claims go without a look at breakers.
    pub fn hides_breakers(&self, now: Instant) -> bool {
        self.wait(now).is_some() && self.blocked.as_ref().is_some_and(|b| b.hides_breakers)
    }

    /// Somebody has a lock that claims need, and it may be the one on breakers; says whether that is new.
    pub fn claims_met_a_lock(&mut self, now: Instant) -> bool {
        // Outcomes may have met it just before.
        let is_new = self.wait(now).is_none() && self.met_a_lock(0, now);
        if let Some(blocked) = &mut self.blocked {
            blocked.next = now + blocked.pause;
            blocked.hides_breakers = true;
        }
        is_new
    }

    /// A handful was settled; says whether the next one may follow at once.
    pub fn goes_on(&mut self, has_more: bool) -> bool {
        self.blocked.take_if(|_| !has_more);
        let blocked = self.blocked.as_mut();
        blocked
            .map(|blocked| blocked.handful = (2 * blocked.handful).min(MOST))
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_get_smaller_and_rarer_and_grow_again() {
        let mut settling = Settling::default();
        let mut now = Instant::now();
        assert_eq!(settling.handful(), usize::MAX);
        let (mut handfuls, mut pauses) = (Vec::new(), Vec::new());
        for attempt in 0..5 {
            assert_eq!(settling.wait(now), None);
            let is_new = settling.met_a_lock(settling.handful().min(10), now);
            assert_eq!(is_new, attempt == 0);
            let pause = settling.wait(now).expect("it waits");
            handfuls.push(settling.handful());
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(handfuls, [5, 2, 1, 1, 1]);
        assert_eq!(pauses, [250, 500, 1000, 2000, 2000]);
        assert!(settling.goes_on(true));
        assert_eq!((settling.handful(), settling.wait(now)), (2, None));
        assert!(!settling.goes_on(false));
        assert_eq!(settling.handful(), usize::MAX);
    }
}
