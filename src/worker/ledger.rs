//! What the worker has claimed and not yet settled: out with the pool, or ended and to be settled.

use crate::store::Ending;
use std::collections::HashMap;
use webhook_delivery::Key;

#[derive(Default)]
pub struct Ledger {
    /// Each with the bytes of its payload.
    out: HashMap<Key, usize>,
    bytes_out: usize,
    out_by_endpoint: HashMap<i32, Out>,
    endings: Vec<Ending>,
    /// Endings that could not be settled, each by its own fault.
    aside: Vec<Ending>,
}

/// What an endpoint has in flight.
#[derive(Clone, Copy, Default)]
pub struct Out {
    pub count: usize,
    pub bytes: usize,
}

impl Ledger {
    pub fn claim(&mut self, key: Key, bytes: usize) {
        if self.out.insert(key, bytes).is_none() {
            let out = self.out_by_endpoint.entry(key.endpoint_id).or_default();
            out.count += 1;
            out.bytes += bytes;
            self.bytes_out += bytes;
        }
    }

    pub fn end(&mut self, ending: Ending) {
        let endpoint = ending.key.endpoint_id;
        if let Some(bytes) = self.out.remove(&ending.key)
            && let Some(out) = self.out_by_endpoint.get_mut(&endpoint)
        {
            self.bytes_out -= bytes;
            out.bytes -= bytes;
            out.count -= 1;
            if out.count == 0 {
                self.out_by_endpoint.remove(&endpoint);
            }
        }
        self.endings.push(ending);
    }

    pub fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    pub fn take_endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
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

    pub fn bytes_out(&self) -> usize {
        self.bytes_out
    }

    pub fn out_to(&self, endpoint_id: i32) -> Out {
        let out = self.out_by_endpoint.get(&endpoint_id);
        out.copied().unwrap_or_default()
    }

    pub fn keys_out(&self) -> Vec<Key> {
        self.out.keys().copied().collect()
    }

    /// All that is claimed under this worker's name.
    pub fn keys(&self) -> Vec<Key> {
        let ended = self
            .endings
            .iter()
            .chain(&self.aside)
            .map(|ending| ending.key);
        self.out.keys().copied().chain(ended).collect()
    }
}
