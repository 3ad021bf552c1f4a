//! The events that a worker waits for: its latch, the outcomes of its pool, and the end of the server.
//!
//! The set is made once. WaitLatchOrSocket makes one for each call, and ends a worker that may open no more files.

use std::ffi::c_long;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use crate::pg_compat;
use pgrx::pg_sys;

pub struct WaitSet(*mut pg_sys::WaitEventSet);

impl WaitSet {
    /// The socket is open for as long as anybody waits.
    pub fn of(socket: RawFd) -> WaitSet {
        const EVENTS: i32 = 3;
        let set = pg_compat::wait_event_set(EVENTS);
        let add = |event: u32, socket: RawFd, latch: *mut pg_sys::Latch| {
            // SAFETY: the set has room for all of them, and the latch is this process's own.
            unsafe { pg_sys::AddWaitEventToSet(set, event, socket, latch, ptr::null_mut()) };
        };
        const NO_SOCKET: RawFd = -1;
        // SAFETY: a plain read, on the main thread.
        add(pg_sys::WL_LATCH_SET, NO_SOCKET, unsafe { pg_sys::MyLatch });
        add(pg_sys::WL_EXIT_ON_PM_DEATH, NO_SOCKET, ptr::null_mut());
        add(pg_sys::WL_SOCKET_READABLE, socket, ptr::null_mut());
        WaitSet(set)
    }

    /// Waits for the latch or for outcomes; says whether it was the latch.
    pub fn wait(&self, timeout: Duration) -> bool {
        let milliseconds = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128);
        let mut happened = [pg_sys::WaitEvent::default(); 2];
        // SAFETY: the set was made for this process, and there is room for as many events as it is told.
        let count = unsafe {
            pg_sys::WaitEventSetWait(
                self.0,
                milliseconds as c_long,
                happened.as_mut_ptr(),
                happened.len() as i32,
                pg_sys::PG_WAIT_EXTENSION,
            )
        };
        let happened = happened.iter().take(count as usize);
        let latch = happened.fold(0, |all, event| all | event.events) & pg_sys::WL_LATCH_SET != 0;
        if latch {
            // SAFETY: the latch is this process's own. Set since, it is seen by the next wait.
            unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
        }
        latch
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { pg_sys::FreeWaitEventSet(self.0) };
    }
}
