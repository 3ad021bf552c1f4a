//! The worker claims nothing while there is too little memory, and gives back memory that it does not need.

use crate::memory;
use crate::notice;
use pgrx::prelude::*;
use std::time::{Duration, Instant};
use webhook_engine::{Engine, Store, Wire};

const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Shortage {
    /// When to look for memory again, while it is short.
    next_reserve: Option<Instant>,
    /// Whether something was in flight since memory was last given back.
    was_busy: bool,
}

impl Shortage {
    /// While memory is short nothing is claimed until the reserve can be taken anew; requests in flight have that
    /// long to end.
    pub fn look_for_memory<S: Store, W: Wire>(
        &mut self,
        engine: &mut Engine<S, W>,
        database: &str,
    ) {
        self.was_busy |= engine.in_flight() > 0;
        if !memory::is_short() {
            return;
        }
        let now = Instant::now();
        match self.next_reserve {
            None => {
                notice::warn(
                    PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
                    format!(
                        "webhook worker for database \"{database}\" is short of memory and claims nothing for now"
                    ),
                    "It goes on when there is memory again. Look at vm.overcommit_memory and the limits of the server's processes.",
                );
                self.next_reserve = Some(now + RETRY);
                engine.memory_is_short();
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

    pub fn pause(&self, pause: Duration) -> Duration {
        match memory::is_short() {
            true => pause.min(RETRY),
            false => pause,
        }
    }

    /// The allocator keeps freed memory, and would keep the largest burst that ever was.
    pub fn give_back_memory(&mut self, in_flight: usize) {
        if in_flight == 0 && std::mem::take(&mut self.was_busy) {
            memory::give_back();
        }
    }
}
