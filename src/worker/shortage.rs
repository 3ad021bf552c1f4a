//! Memory: how much of it payloads may take, and what the worker does where there is too little.

use super::Worker;
use crate::memory;
use crate::notice;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// Payloads in flight, before nothing more is claimed than one for each endpoint that has none in flight; with these, twice
/// as much. An endpoint gets half of it, 16 payloads of the largest size: with more it is not faster, and each byte of
/// payload takes four of memory. Each of the bounds may be exceeded by one payload.
pub const MOST_BYTES: usize = 32 << 20;
/// Where memory was short it is less, down to this, and doubles with each survey.
const LEAST_BYTES: usize = 1 << 20;
pub const RETRY: Duration = Duration::from_secs(1);

impl Worker {
    /// Where memory is short nothing is claimed until the reserve can be taken anew; what is in flight has that long to
    /// end.
    pub(super) fn look_for_memory(&mut self) {
        if !memory::is_short() {
            return;
        }
        let now = Instant::now();
        match self.next_reserve {
            None => {
                notice::warn(
                    PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
                    format!(
                        "webhook worker for database \"{}\" is short of memory and claims nothing for now",
                        self.extension.database
                    ),
                    "It goes on when there is memory again. Look at vm.overcommit_memory and the limits of the server's processes.",
                );
                self.next_reserve = Some(now + RETRY);
                self.most_bytes = (self.most_bytes / 2).max(LEAST_BYTES);
            }
            Some(at) if now >= at => {
                memory::give_back();
                self.next_reserve = match memory::take_reserve() {
                    true => None,
                    false => Some(now + RETRY),
                };
            }
            Some(_) => {}
        }
    }

    pub(super) fn claim_more_again(&mut self) {
        if !memory::is_short() {
            self.most_bytes = (2 * self.most_bytes).min(MOST_BYTES);
        }
    }

    /// The allocator keeps what was freed, and would keep the largest burst that ever was.
    pub(super) fn give_back_memory(&mut self) {
        const BURST: usize = 4 << 20;
        if self.burst >= BURST && self.ledger.out() == 0 {
            memory::give_back();
            self.burst = 0;
        }
    }
}
