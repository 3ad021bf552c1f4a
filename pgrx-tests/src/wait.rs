//! Waiting for a condition, never for a time.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for a busy two-core machine, and shorter than the minute after which the worker looks at everything
/// anyway.
pub const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// Probes until the answer is `Ok`; the last `Err` is shown when the deadline passes.
#[track_caller]
pub fn until<T, Seen: Debug>(awaited: &str, probe: impl FnMut() -> Result<T, Seen>) -> T {
    until_within(DEADLINE, awaited, probe)
}

#[track_caller]
pub fn until_true(awaited: &str, mut probe: impl FnMut() -> bool) {
    until(awaited, || probe().then_some(()).ok_or(false));
}

#[track_caller]
pub fn until_within<T, Seen: Debug>(
    deadline: Duration,
    awaited: &str,
    mut probe: impl FnMut() -> Result<T, Seen>,
) -> T {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= deadline => {
                panic!("waited {deadline:?} for {awaited}; last seen: {seen:?}")
            }
            Err(_) => thread::sleep(POLL),
        }
    }
}
