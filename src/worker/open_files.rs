//! A warning where the limit of open files allows fewer requests than the settings.

use crate::notice;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use webhook_engine::{TooFew, allow_open_files};

/// The setting that the last warning was about, so that each is told once.
static SAID: AtomicUsize = AtomicUsize::new(0);

/// How many of these requests may have a socket.
pub fn allow(wanted: usize) -> usize {
    let Err(TooFew { allowed, limit }) = allow_open_files(wanted) else {
        return wanted;
    };
    if SAID.swap(wanted, Ordering::Relaxed) != wanted {
        notice::warn(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "webhook.max_in_flight is {wanted}, but the limit of open files, {limit}, allows {allowed} requests"
            ),
            "Raise the limit for the server (LimitNOFILE of its service, or ulimit -n), or lower webhook.max_in_flight.",
        );
    }
    allowed
}
