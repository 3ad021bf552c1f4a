//! The parts of an answer that we read ourselves: Retry-After, and the beginning of a body. The rest is hyper's.

#![no_main]

use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use webhook_delivery::fuzzing::{EXCERPT, excerpt, wait_asked_for};

fuzz_target!(|data: &[u8]| {
    let text = excerpt(data);
    assert!(text.len() <= EXCERPT, "{} bytes", text.len());
    assert!(
        !text.contains(|c: char| c.is_control() && c != '\n' && c != '\t'),
        "{text:?}"
    );
    if let Ok(retry_after) = std::str::from_utf8(data) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let wait = wait_asked_for(retry_after, now).unwrap_or_default();
        assert!(wait <= Duration::from_secs(u32::MAX.into()), "{wait:?}");
    }
});
