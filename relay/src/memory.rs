//! The allocator keeps freed memory, and would keep the largest burst that ever was.

use std::time::{Duration, Instant};

use webhook_delivery::memory::give_back;

/// Connections to receivers rest for up to a minute after a burst, and are freed then.
const AFTERMATH: Duration = Duration::from_secs(90);
const EVERY: Duration = Duration::from_secs(5);

/// Gives freed memory to the system when a burst is over.
#[derive(Default)]
pub struct Burst {
    /// When something was last in flight, if its memory was not given back since.
    last: Option<Instant>,
    given_back: Option<Instant>,
}

impl Burst {
    /// Called after each turn.
    pub fn note(&mut self, in_flight: usize) {
        let now = Instant::now();
        if in_flight > 0 {
            self.last = Some(now);
            return;
        }
        let Some(last) = self.last else { return };
        if self.given_back.is_none_or(|at| now >= at + EVERY) {
            give_back();
            self.given_back = Some(now);
            if now >= last + AFTERMATH {
                self.last = None;
            }
        }
    }
}
