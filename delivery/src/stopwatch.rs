//! Measures for the tests how long something took, and does not run while the process is stopped, which a busy
//! machine may do to it for a second. It is never ahead of a real one: it serves for upper bounds.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(5);

static STEPS: AtomicU32 = AtomicU32::new(0);
static TICKING: LazyLock<()> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(STEP);
            STEPS.fetch_add(1, Ordering::SeqCst);
        }
    });
});

pub(crate) struct Stopwatch {
    started: u32,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        LazyLock::force(&TICKING);
        Stopwatch {
            started: STEPS.load(Ordering::SeqCst),
        }
    }

    pub fn elapsed(&self) -> Duration {
        STEP * (STEPS.load(Ordering::SeqCst) - self.started)
    }
}
