//! The limit of open files: each request has a socket.

/// For the files of the host, and connections that are kept for the next request.
const OTHERS: u64 = 512;

/// How many requests may have a socket, and the limit that allows no more.
pub struct TooFew {
    pub allowed: usize,
    pub limit: u64,
}

/// Raises the soft limit of this process to the hard one.
pub fn allow_open_files(wanted: usize) -> Result<(), TooFew> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the struct that it is given, and takes it back; lowers nothing.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return Ok(());
        }
        let soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if soft < limit.rlim_max && libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            limit.rlim_cur = soft;
        }
    }
    let limit = limit.rlim_cur;
    let allowed = limit.saturating_sub(OTHERS).max(limit / 4);
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX).max(1);
    match allowed < wanted {
        true => Err(TooFew { allowed, limit }),
        false => Ok(()),
    }
}
