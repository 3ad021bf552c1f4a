//! The time by which answers grow old. Only the waits of callers are always in real time.

use std::time::Instant;

pub(crate) type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

#[cfg(test)]
pub(crate) use by_hand::HandMoved;

#[cfg(test)]
mod by_hand {
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use super::Clock;
    use crate::threads;

    /// Stands still until it is moved.
    #[derive(Clone)]
    pub(crate) struct HandMoved(Arc<Mutex<Instant>>);

    impl HandMoved {
        pub fn new() -> HandMoved {
            HandMoved(Arc::new(Mutex::new(Instant::now())))
        }

        pub fn now(&self) -> Instant {
            *threads::lock(&self.0)
        }

        pub fn pass(&self, time: Duration) {
            *threads::lock(&self.0) += time;
        }

        pub fn clock(&self) -> Clock {
            let clock = self.clone();
            Box::new(move || clock.now())
        }
    }
}
