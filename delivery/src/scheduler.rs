//! Which attempt a free thread takes next: endpoints take turns, and none has more in flight than its
//! limit, so a slow endpoint costs the others no more than its share. Every step is O(1).

use std::collections::{HashMap, VecDeque};

pub(crate) struct Scheduler<T> {
    lanes: HashMap<i32, Lane<T>>,
    /// Endpoints that something can be taken from, each once.
    ring: VecDeque<i32>,
}

struct Lane<T> {
    waiting: VecDeque<T>,
    in_flight: usize,
    limit: usize,
    in_ring: bool,
}

impl<T> Lane<T> {
    fn is_ready(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight < self.limit
    }
}

impl<T> Scheduler<T> {
    pub fn new() -> Self {
        Scheduler {
            lanes: HashMap::new(),
            ring: VecDeque::new(),
        }
    }

    /// The limit that came last applies to all that wait. At least one at a time is let through.
    pub fn push(&mut self, endpoint: i32, limit: usize, item: T) {
        let lane = self.lanes.entry(endpoint).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            in_flight: 0,
            limit: 1,
            in_ring: false,
        });
        lane.waiting.push_back(item);
        lane.limit = limit.max(1);
        self.join_ring(endpoint);
    }

    pub fn take(&mut self) -> Option<T> {
        while let Some(endpoint) = self.ring.pop_front() {
            let Some(lane) = self.lanes.get_mut(&endpoint) else {
                continue;
            };
            lane.in_ring = false;
            // It may have joined the ring under a higher limit.
            if !lane.is_ready() {
                continue;
            }
            let item = lane.waiting.pop_front();
            lane.in_flight += 1;
            self.join_ring(endpoint);
            return item;
        }
        None
    }

    /// What was taken from this endpoint is done.
    pub fn finish(&mut self, endpoint: i32) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_sub(1);
        if lane.in_flight == 0 && lane.waiting.is_empty() {
            self.lanes.remove(&endpoint);
        } else {
            self.join_ring(endpoint);
        }
    }

    /// False means that `take` gives nothing.
    pub fn may_have_ready(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Takes back all that waits.
    pub fn withdraw(&mut self) -> Vec<T> {
        self.ring.clear();
        let mut withdrawn = Vec::new();
        self.lanes.retain(|_, lane| {
            withdrawn.extend(lane.waiting.drain(..));
            lane.in_ring = false;
            lane.in_flight > 0
        });
        withdrawn
    }

    fn join_ring(&mut self, endpoint: i32) {
        if let Some(lane) = self.lanes.get_mut(&endpoint)
            && lane.is_ready()
            && !lane.in_ring
        {
            lane.in_ring = true;
            self.ring.push_back(endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain<T>(scheduler: &mut Scheduler<T>) -> Vec<T> {
        std::iter::from_fn(|| scheduler.take()).collect()
    }

    #[test]
    fn endpoints_take_turns_and_each_keeps_its_order() {
        let mut scheduler = Scheduler::new();
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
        let mut scheduler = Scheduler::new();
        for item in 0..4 {
            scheduler.push(1, 2, item);
        }
        assert_eq!(drain(&mut scheduler), [0, 1]);
        scheduler.finish(1);
        assert_eq!(drain(&mut scheduler), [2]);
    }

    #[test]
    fn a_limit_of_zero_still_lets_one_through() {
        let mut scheduler = Scheduler::new();
        scheduler.push(1, 0, "only");
        assert_eq!(drain(&mut scheduler), ["only"]);
    }

    #[test]
    fn a_changed_limit_applies_to_what_already_waits() {
        let mut scheduler = Scheduler::new();
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
        let mut scheduler = Scheduler::new();
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

    /// Random pushes, takes and finishes against the rules stated plainly.
    #[test]
    fn any_history_keeps_order_limits_and_fairness_and_loses_nothing() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limits: Vec<usize> = (0..5).map(|_| random.usize(1..4)).collect();
            let mut scheduler = Scheduler::new();
            let mut waiting = vec![VecDeque::new(); limits.len()];
            let mut in_flight = vec![0; limits.len()];
            // How many others went ahead of an endpoint that could have been served.
            let mut passed_over = vec![0; limits.len()];

            for item in 0..300 {
                match random.u8(0..4) {
                    0 | 1 => {
                        let lane = random.usize(0..limits.len());
                        scheduler.push(lane as i32, limits[lane], (lane, item));
                        waiting[lane].push_back(item);
                    }
                    2 => {
                        let ready = |lane: usize| {
                            !waiting[lane].is_empty() && in_flight[lane] < limits[lane]
                        };
                        let could: Vec<_> = (0..limits.len()).filter(|l| ready(*l)).collect();
                        assert_eq!(scheduler.may_have_ready(), !could.is_empty());
                        let Some((lane, item)) = scheduler.take() else {
                            assert!(could.is_empty(), "seed {seed}: work was left lying");
                            continue;
                        };
                        assert!(could.contains(&lane), "seed {seed}: limit exceeded");
                        assert_eq!(waiting[lane].pop_front(), Some(item), "seed {seed}");
                        in_flight[lane] += 1;
                        passed_over[lane] = 0;
                        for other in could.into_iter().filter(|other| *other != lane) {
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
