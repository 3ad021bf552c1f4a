//! What the worker has claimed and not yet settled: out with the pool, or ended and to be settled.

use crate::store::Ending;
use std::collections::{HashMap, HashSet};
use webhook_delivery::Key;

#[derive(Default)]
pub struct Ledger {
    out: HashSet<Key>,
    out_by_endpoint: HashMap<i32, usize>,
    endings: Vec<Ending>,
    /// Endings that could not be settled, each by its own fault.
    aside: Vec<Ending>,
    /// How many of each endpoint had ended when the endings were last taken.
    ended_lately: HashMap<i32, usize>,
}

impl Ledger {
    pub fn claim(&mut self, key: Key) {
        if self.out.insert(key) {
            *self.out_by_endpoint.entry(key.endpoint_id).or_default() += 1;
        }
    }

    pub fn end(&mut self, ending: Ending) {
        let endpoint = ending.key.endpoint_id;
        if self.out.remove(&ending.key)
            && let Some(count) = self.out_by_endpoint.get_mut(&endpoint)
        {
            *count -= 1;
            if *count == 0 {
                self.out_by_endpoint.remove(&endpoint);
            }
        }
        self.endings.push(ending);
    }

    pub fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    pub fn take_endings(&mut self) -> Vec<Ending> {
        self.ended_lately.clear();
        for ending in &self.endings {
            *self.ended_lately.entry(ending.key.endpoint_id).or_default() += 1;
        }
        std::mem::take(&mut self.endings)
    }

    pub fn ended_lately(&self, endpoint_id: i32) -> usize {
        self.ended_lately.get(&endpoint_id).copied().unwrap_or(0)
    }

    /// These were not settled after all.
    pub fn put_back(&mut self, endings: impl IntoIterator<Item = Ending>) {
        self.endings.extend(endings);
    }

    pub fn set_aside(&mut self, ending: Ending) {
        self.aside.push(ending);
    }

    /// What was set aside gets another chance.
    pub fn reconsider(&mut self) {
        self.endings.append(&mut self.aside);
    }

    pub fn out(&self) -> usize {
        self.out.len()
    }

    pub fn out_to(&self, endpoint_id: i32) -> usize {
        self.out_by_endpoint.get(&endpoint_id).copied().unwrap_or(0)
    }

    pub fn keys_out(&self) -> Vec<Key> {
        self.out.iter().copied().collect()
    }

    /// All that is claimed under this worker's name.
    pub fn keys(&self) -> Vec<Key> {
        let ended = self
            .endings
            .iter()
            .chain(&self.aside)
            .map(|ending| ending.key);
        self.out.iter().copied().chain(ended).collect()
    }
}
