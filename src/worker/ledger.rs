//! What the worker has claimed and not yet settled.

use crate::store::Ending;
use std::collections::{HashMap, HashSet};
use webhook_delivery::Key;

#[derive(Default)]
pub struct Ledger {
    claimed: HashSet<Key>,
    by_endpoint: HashMap<i32, usize>,
    /// Of the claimed, those whose attempt has ended.
    endings: Vec<Ending>,
}

impl Ledger {
    pub fn claim(&mut self, key: Key) {
        if self.claimed.insert(key) {
            *self.by_endpoint.entry(key.endpoint_id).or_default() += 1;
        }
    }

    pub fn end(&mut self, ending: Ending) {
        self.endings.push(ending);
    }

    pub fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    pub fn take_endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// Nothing of it was settled.
    pub fn put_back(&mut self, endings: Vec<Ending>) {
        self.endings.extend(endings);
    }

    /// All of it was settled, except what somebody has locked.
    pub fn settle(&mut self, endings: Vec<Ending>, locked: &HashSet<Key>) {
        for ending in endings {
            if locked.contains(&ending.key) {
                self.endings.push(ending);
            } else if self.claimed.remove(&ending.key)
                && let Some(count) = self.by_endpoint.get_mut(&ending.key.endpoint_id)
            {
                *count -= 1;
                if *count == 0 {
                    self.by_endpoint.remove(&ending.key.endpoint_id);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.claimed.len()
    }

    pub fn of_endpoint(&self, endpoint_id: i32) -> usize {
        self.by_endpoint.get(&endpoint_id).copied().unwrap_or(0)
    }

    pub fn claimed(&self) -> Vec<Key> {
        self.claimed.iter().copied().collect()
    }

    pub fn nothing_is_out(&self) -> bool {
        self.claimed.len() == self.endings.len()
    }

    /// Claimed, and with no ending yet.
    pub fn still_out(&self) -> Vec<Key> {
        let ended: HashSet<Key> = self.endings.iter().map(|ending| ending.key).collect();
        self.claimed.difference(&ended).copied().collect()
    }
}
