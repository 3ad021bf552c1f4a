//! Which attempt a free thread takes next. Endpoints take turns, and none has more in flight than its limit.
//! A quarter of the threads is kept for endpoints that have nothing in flight: however many slow requests
//! the others have, an endpoint that answers gets its turn. Every step is O(1).

use std::collections::{HashMap, VecDeque};

pub(crate) struct Scheduler<T> {
    lanes: HashMap<i32, Lane<T>>,
    /// Endpoints with something waiting and nothing in flight.
    first: VecDeque<i32>,
    /// Endpoints with something waiting and room for more in flight.
    more: VecDeque<i32>,
    in_flight: usize,
    /// As long as fewer are in flight, an endpoint may have more than one.
    general: usize,
}

struct Lane<T> {
    waiting: VecDeque<T>,
    in_flight: usize,
    limit: usize,
    in_first: bool,
    in_more: bool,
}

impl<T> Lane<T> {
    fn is_ready(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight < self.limit
    }
}

impl<T> Scheduler<T> {
    pub fn new(threads: usize) -> Self {
        Scheduler {
            lanes: HashMap::new(),
            first: VecDeque::new(),
            more: VecDeque::new(),
            in_flight: 0,
            general: threads - threads / 4,
        }
    }

    /// The limit that came last applies to all that wait. At least one at a time is let through.
    pub fn push(&mut self, endpoint: i32, limit: usize, item: T) {
        let lane = self.lanes.entry(endpoint).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            in_flight: 0,
            limit: 1,
            in_first: false,
            in_more: false,
        });
        lane.waiting.push_back(item);
        lane.limit = limit.max(1);
        self.line_up(endpoint);
    }

    pub fn take(&mut self) -> Option<T> {
        let endpoint = self.next_first().or_else(|| self.next_more())?;
        let lane = self.lanes.get_mut(&endpoint)?;
        let item = lane.waiting.pop_front();
        lane.in_flight += 1;
        self.in_flight += 1;
        self.line_up(endpoint);
        item
    }

    // What an endpoint lined up for may have changed since: it is looked at again when its turn comes.
    fn next_first(&mut self) -> Option<i32> {
        while let Some(endpoint) = self.first.pop_front() {
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                lane.in_first = false;
                if lane.is_ready() && lane.in_flight == 0 {
                    return Some(endpoint);
                }
                self.line_up(endpoint);
            }
        }
        None
    }

    fn next_more(&mut self) -> Option<i32> {
        while self.in_flight < self.general {
            let endpoint = self.more.pop_front()?;
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                lane.in_more = false;
                if lane.is_ready() {
                    return Some(endpoint);
                }
            }
        }
        None
    }

    /// What was taken from this endpoint is done.
    pub fn finish(&mut self, endpoint: i32) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(1);
        if lane.in_flight == 0 && lane.waiting.is_empty() {
            self.lanes.remove(&endpoint);
        } else {
            self.line_up(endpoint);
        }
    }

    /// False means that `take` gives nothing.
    pub fn may_have_ready(&self) -> bool {
        !self.first.is_empty() || (!self.more.is_empty() && self.in_flight < self.general)
    }

    /// Takes back all that waits.
    pub fn withdraw(&mut self) -> Vec<T> {
        self.first.clear();
        self.more.clear();
        let mut withdrawn = Vec::new();
        self.lanes.retain(|_, lane| {
            withdrawn.extend(lane.waiting.drain(..));
            lane.in_first = false;
            lane.in_more = false;
            lane.in_flight > 0
        });
        withdrawn
    }

    fn line_up(&mut self, endpoint: i32) {
        let Some(lane) = self.lanes.get_mut(&endpoint).filter(|lane| lane.is_ready()) else {
            return;
        };
        let (line, in_line) = if lane.in_flight == 0 {
            (&mut self.first, &mut lane.in_first)
        } else {
            (&mut self.more, &mut lane.in_more)
        };
        if !std::mem::replace(in_line, true) {
            line.push_back(endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many threads that their number is no limit.
    const MANY: usize = 1000;

    fn drain<T>(scheduler: &mut Scheduler<T>) -> Vec<T> {
        std::iter::from_fn(|| scheduler.take()).collect()
    }

    #[test]
    fn endpoints_take_turns_and_each_keeps_its_order() {
        let mut scheduler = Scheduler::new(MANY);
        for item in ["a1", "a2", "a3"] {
            scheduler.push(1, 9, item);
        }
        scheduler.push(2, 9, "b1");
        scheduler.push(3, 9, "c1");
        scheduler.push(3, 9, "c2");
        assert_eq!(drain(&mut scheduler), ["a1", "b1", "c1", "a2", "c2", "a3"]);
    }

    #[test]
    fn an_endpoint_at_its_limit_waits_until_one_finishes() {
        let mut scheduler = Scheduler::new(MANY);
        for item in 0..4 {
            scheduler.push(1, 2, item);
        }
        assert_eq!(drain(&mut scheduler), [0, 1]);
        scheduler.finish(1);
        assert_eq!(drain(&mut scheduler), [2]);
    }

    #[test]
    fn a_limit_of_zero_still_lets_one_through() {
        let mut scheduler = Scheduler::new(MANY);
        scheduler.push(1, 0, "only");
        assert_eq!(drain(&mut scheduler), ["only"]);
    }

    #[test]
    fn a_changed_limit_applies_to_what_already_waits() {
        let mut scheduler = Scheduler::new(MANY);
        for item in 0..3 {
            scheduler.push(1, 3, item);
        }
        scheduler.push(1, 1, 3);
        assert_eq!(drain(&mut scheduler), [0]);
        scheduler.push(1, 4, 4);
        assert_eq!(drain(&mut scheduler), [1, 2, 3]);
    }

    #[test]
    fn withdrawn_items_are_those_not_taken_and_limits_still_count_the_taken() {
        let mut scheduler = Scheduler::new(MANY);
        for item in 0..3 {
            scheduler.push(1, 1, item);
        }
        assert_eq!(scheduler.take(), Some(0));
        assert_eq!(scheduler.withdraw(), [1, 2]);
        scheduler.push(1, 1, 3);
        assert_eq!(scheduler.take(), None);
        scheduler.finish(1);
        assert_eq!(scheduler.take(), Some(3));
    }

    #[test]
    fn a_quarter_of_the_threads_is_kept_for_endpoints_with_nothing_in_flight() {
        let mut scheduler = Scheduler::new(8);
        for item in 0..8 {
            scheduler.push(1, 8, ("slow", item));
        }
        assert_eq!(drain(&mut scheduler).len(), 6);
        assert!(!scheduler.may_have_ready());

        scheduler.push(2, 8, ("other", 0));
        scheduler.push(2, 8, ("other", 1));
        assert_eq!(drain(&mut scheduler), [("other", 0)]);
        scheduler.finish(2);
        assert_eq!(drain(&mut scheduler), [("other", 1)]);
        scheduler.finish(2);

        scheduler.finish(1);
        assert_eq!(drain(&mut scheduler), [("slow", 6)]);
    }

    /// Random pushes, takes and finishes against the rules stated plainly.
    #[test]
    fn any_history_keeps_order_limits_and_fairness_and_loses_nothing() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limits: Vec<usize> = (0..5).map(|_| random.usize(1..4)).collect();
            let threads = random.usize(1..12);
            let mut scheduler = Scheduler::new(threads);
            let mut waiting = vec![VecDeque::new(); limits.len()];
            let mut in_flight = vec![0; limits.len()];
            // How many others went ahead of an endpoint that had nothing in flight.
            let mut passed_over = vec![0; limits.len()];

            for item in 0..300 {
                match random.u8(0..4) {
                    0 | 1 => {
                        let lane = random.usize(0..limits.len());
                        scheduler.push(lane as i32, limits[lane], (lane, item));
                        waiting[lane].push_back(item);
                    }
                    2 => {
                        let busy: usize = in_flight.iter().sum();
                        let ready = |lane: usize| {
                            !waiting[lane].is_empty()
                                && in_flight[lane] < limits[lane]
                                && (in_flight[lane] == 0 || busy < threads - threads / 4)
                        };
                        let could: Vec<_> = (0..limits.len()).filter(|l| ready(*l)).collect();
                        assert!(scheduler.may_have_ready() || could.is_empty());
                        let Some((lane, item)) = scheduler.take() else {
                            assert!(could.is_empty(), "seed {seed}: work was left lying");
                            continue;
                        };
                        assert!(could.contains(&lane), "seed {seed}: limit exceeded");
                        assert_eq!(waiting[lane].pop_front(), Some(item), "seed {seed}");
                        in_flight[lane] += 1;
                        passed_over[lane] = 0;
                        let kept_waiting = |other: &usize| *other != lane && in_flight[*other] == 0;
                        for other in could.into_iter().filter(kept_waiting) {
                            passed_over[other] += 1;
                            assert!(passed_over[other] < limits.len(), "seed {seed}: unfair");
                        }
                    }
                    _ => {
                        let lane = random.usize(0..limits.len());
                        if in_flight[lane] > 0 {
                            in_flight[lane] -= 1;
                            scheduler.finish(lane as i32);
                        }
                    }
                }
            }
            let left: usize = waiting.iter().map(VecDeque::len).sum();
            assert_eq!(scheduler.withdraw().len(), left, "seed {seed}");
            assert_eq!(
                scheduler.lanes.len(),
                in_flight.iter().filter(|n| **n > 0).count(),
                "seed {seed}: idle endpoints are forgotten"
            );
        }
    }
}
