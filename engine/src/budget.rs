//! The bytes of payload that may be in flight.

/// Bytes of payload in flight. Beyond them nothing more is claimed than one delivery for each endpoint that has none
/// in flight; with these, twice as much. An endpoint gets half of it, 16 payloads of the largest size: with more it
/// is not faster, and each byte of payload takes four of memory. Each of the bounds may be exceeded by one payload.
const MOST: usize = 32 << 20;
/// The budget where memory is short.
const LEAST: usize = 1 << 20;

pub struct Budget {
    most: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { most: MOST }
    }
}

impl Budget {
    pub fn halve(&mut self) {
        self.most = (self.most / 2).max(LEAST);
    }

    pub fn double(&mut self) {
        self.most = (2 * self.most).min(MOST);
    }

    pub fn is_full(&self, bytes_out: usize) -> bool {
        bytes_out >= self.most
    }

    pub fn room(&self, bytes_out: usize) -> usize {
        let most = match self.is_full(bytes_out) {
            false => self.most,
            true => 2 * self.most,
        };
        most.saturating_sub(bytes_out)
    }

    pub fn room_of(&self, bytes_out_to_endpoint: usize) -> usize {
        (self.most / 2).saturating_sub(bytes_out_to_endpoint)
    }
}
