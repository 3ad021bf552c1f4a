//! The entrance of each endpoint, where attempts wait until the endpoint has room for them.
//!
//! After a request has failed, no waiting attempt follows by itself: the next limit says how many may, since the
//! endpoint may bear less than before.

use std::collections::{HashMap, VecDeque};

use crate::attempt::Attempt;

#[derive(Default)]
pub struct Entrances {
    of_endpoints: HashMap<i32, Entrance>,
    /// Endpoints with attempts that may begin.
    open: Vec<i32>,
    /// Tests, which no limit holds back.
    tests: Vec<(u64, Attempt)>,
}

struct Entrance {
    most: usize,
    under_way: usize,
    waiting: VecDeque<(u64, Attempt)>,
}

impl Default for Entrance {
    fn default() -> Self {
        Entrance {
            most: usize::MAX,
            under_way: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl Entrances {
    /// Holds until all attempts of the endpoint have ended.
    pub fn limit(&mut self, endpoint_id: i32, most: usize) {
        self.of_endpoints.entry(endpoint_id).or_default().most = most;
        self.open.push(endpoint_id);
    }

    pub fn push(&mut self, id: u64, attempt: Attempt) {
        if attempt.is_test() {
            return self.tests.push((id, attempt));
        }
        let endpoint_id = attempt.key.endpoint_id;
        let entrance = self.of_endpoints.entry(endpoint_id).or_default();
        if entrance.waiting.is_empty() {
            self.open.push(endpoint_id);
        }
        entrance.waiting.push_back((id, attempt));
    }

    /// Begins all attempts that there is room for. Attempts that `begin` does not want any more are dropped.
    pub fn admit(&mut self, mut begin: impl FnMut(u64, Attempt) -> bool) {
        for (id, test) in self.tests.drain(..) {
            let entrance = self.of_endpoints.entry(test.key.endpoint_id).or_default();
            entrance.under_way += usize::from(begin(id, test));
        }
        for endpoint_id in self.open.drain(..) {
            let Some(entrance) = self.of_endpoints.get_mut(&endpoint_id) else {
                continue;
            };
            while entrance.under_way < entrance.most
                && let Some((id, attempt)) = entrance.waiting.pop_front()
            {
                entrance.under_way += usize::from(begin(id, attempt));
            }
            if entrance.under_way == 0 && entrance.waiting.is_empty() {
                self.of_endpoints.remove(&endpoint_id);
            }
        }
    }

    /// Drops waiting attempts that were withdrawn.
    pub fn retain(&mut self, is_live: impl Fn(u64) -> bool) {
        self.tests.retain(|(id, _)| is_live(*id));
        self.of_endpoints.retain(|_, entrance| {
            entrance.waiting.retain(|(id, _)| is_live(*id));
            entrance.under_way > 0 || !entrance.waiting.is_empty()
        });
    }

    /// Lets nothing begin until the next limit, if there is one now.
    pub fn close(&mut self, endpoint_id: i32) {
        let entrance = self.of_endpoints.get_mut(&endpoint_id);
        if let Some(entrance) = entrance.filter(|entrance| entrance.most < usize::MAX) {
            entrance.most = 0;
        }
    }

    /// An attempt that was under way has ended; says whether another may begin.
    pub fn leave(&mut self, endpoint_id: i32) -> bool {
        let Some(entrance) = self.of_endpoints.get_mut(&endpoint_id) else {
            return false;
        };
        entrance.under_way = entrance.under_way.saturating_sub(1);
        if entrance.waiting.is_empty() {
            if entrance.under_way == 0 {
                self.of_endpoints.remove(&endpoint_id);
            }
            return false;
        }
        let has_room = entrance.under_way < entrance.most;
        if has_room {
            self.open.push(endpoint_id);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::attempt_to;

    /// The attempts that begin now.
    fn begun(entrances: &mut Entrances) -> Vec<u64> {
        let mut begun = Vec::new();
        entrances.admit(|id, _| {
            begun.push(id);
            true
        });
        begun
    }

    fn some(ids: std::ops::Range<u64>) -> (Entrances, i32) {
        let mut entrances = Entrances::default();
        let endpoint_id = attempt_to("http://receiver.invalid/").key.endpoint_id;
        entrances.limit(endpoint_id, 2);
        for id in ids {
            entrances.push(id, attempt_to("http://receiver.invalid/"));
        }
        (entrances, endpoint_id)
    }

    #[test]
    fn attempts_wait_for_room_in_their_order() {
        let (mut entrances, endpoint_id) = some(0..5);
        assert_eq!(begun(&mut entrances), [0, 1]);
        assert!(begun(&mut entrances).is_empty());
        assert!(entrances.leave(endpoint_id));
        assert_eq!(begun(&mut entrances), [2]);
        entrances.limit(endpoint_id, 4);
        assert_eq!(begun(&mut entrances), [3, 4]);
    }

    #[test]
    fn without_a_limit_all_begin_at_once_and_a_limit_ends_with_the_last_attempt() {
        let (mut entrances, endpoint_id) = some(0..2);
        assert_eq!(begun(&mut entrances), [0, 1]);
        assert!(!entrances.leave(endpoint_id));
        assert!(!entrances.leave(endpoint_id));
        for id in 2..5 {
            entrances.push(id, attempt_to("http://receiver.invalid/"));
        }
        assert_eq!(begun(&mut entrances), [2, 3, 4]);
    }

    #[test]
    fn after_a_failure_the_next_limit_says_what_may_begin() {
        let (mut entrances, endpoint_id) = some(0..5);
        assert_eq!(begun(&mut entrances), [0, 1]);
        entrances.close(endpoint_id);
        assert!(!entrances.leave(endpoint_id));
        assert!(begun(&mut entrances).is_empty());
        entrances.limit(endpoint_id, 1);
        assert!(begun(&mut entrances).is_empty());
        assert!(entrances.leave(endpoint_id));
        assert_eq!(begun(&mut entrances), [2]);
    }

    #[test]
    fn a_test_waits_for_nobody() {
        let (mut entrances, _) = some(0..3);
        let mut test = attempt_to("http://receiver.invalid/");
        test.event_type = "webhook.test".to_owned();
        assert_eq!(begun(&mut entrances), [0, 1]);
        entrances.push(9, test);
        assert_eq!(begun(&mut entrances), [9]);
    }

    #[test]
    fn nothing_is_kept_of_attempts_that_were_withdrawn() {
        let (mut entrances, endpoint_id) = some(0..5);
        assert_eq!(begun(&mut entrances), [0, 1]);
        entrances.close(endpoint_id);
        entrances.retain(|id| id < 2);
        assert!(entrances.of_endpoints[&endpoint_id].waiting.is_empty());
        assert!(!entrances.leave(endpoint_id) && !entrances.leave(endpoint_id));
        assert!(entrances.of_endpoints.is_empty());
    }

    #[test]
    fn an_attempt_that_was_withdrawn_takes_no_room() {
        let (mut entrances, _) = some(0..4);
        let mut begun = Vec::new();
        entrances.admit(|id, _| {
            begun.push(id);
            id > 0
        });
        assert_eq!(begun, [0, 1, 2]);
    }
}
