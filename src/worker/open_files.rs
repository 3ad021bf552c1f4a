//! The limit of open files: each request has a socket.

use crate::notice;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// For the files of the server, and connections that are kept for the next request.
const OTHERS: u64 = 512;

/// What was said last, so that it is said once.
static SAID: AtomicUsize = AtomicUsize::new(0);

/// As many of these requests as may have a socket, when the soft limit is as high as the hard one.
pub fn allow(wanted: usize) -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the struct that it is given, and takes it back; lowers nothing.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return wanted;
        }
        let soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if soft < limit.rlim_max && libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            limit.rlim_cur = soft;
        }
    }
    let allowed = limit
        .rlim_cur
        .saturating_sub(OTHERS)
        .max(limit.rlim_cur / 4);
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX).max(1);
    if allowed < wanted && SAID.swap(wanted, Ordering::Relaxed) != wanted {
        notice::warn(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "webhook.max_in_flight is {wanted}, but the limit of open files, {}, allows {allowed} requests",
                limit.rlim_cur
            ),
            "Raise the limit for the server (LimitNOFILE of its service, or ulimit -n), or lower webhook.max_in_flight.",
        );
    }
    wanted.min(allowed)
}
