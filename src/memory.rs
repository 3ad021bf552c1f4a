//! The allocator. A failed allocation makes Rust abort, and a process of the server that aborts makes the postmaster
//! restart all others. Code that can do without reserves the memory that grows with payloads
//! (`webhook_delivery::memory`). For all the rest each process keeps a reserve, which the first failure opens. The
//! worker then ends the work that it has begun. A session gets an error when the function returns that it has called:
//! unwinding out of an allocator is undefined behaviour.
//!
//! The reserve of a session is small, so the library copies no text of any length that a caller chooses: it borrows
//! what the server has, or refuses what is too long before it makes anything of it.

use crate::notice;
use pgrx::pg_sys;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use webhook_delivery::memory;

pub use webhook_delivery::memory::{copy, give_back, has_room, is_short, list};

/// It is never written to, so it takes address space and no memory. Where there is no room for all of it, less will
/// do.
const WORKER_RESERVES: &[usize] = &[16 << 20, 4 << 20, 1 << 20];
/// What a function of ours takes for granted is a small part of it.
const SESSION_RESERVES: &[usize] = &[1 << 20];

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

struct WithReserve;

// SAFETY: the system's allocator does it all; asked a second time it does not know of the first.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        with_reserve(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        with_reserve(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; what could not be enlarged is still there.
        with_reserve(size, || unsafe { System.realloc(old, layout, size) })
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

fn with_reserve(_size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    #[cfg(feature = "strict-allocator")]
    if strict::refuses(_size) {
        return ptr::null_mut();
    }
    let allocated = allocate();
    if !allocated.is_null() {
        return allocated;
    }
    run_short();
    // The reserve is not for code that can do without.
    if memory::may_fail() || !open_reserve() {
        return ptr::null_mut();
    }
    allocate()
}

/// The reserve comes from malloc, like all the rest: freed memory may serve as a reserve again although it was not
/// given back.
static RESERVE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static IS_WORKER: AtomicBool = AtomicBool::new(false);

fn open_reserve() -> bool {
    let reserve = RESERVE.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: it came from malloc, and the caller that swapped it out frees it.
    unsafe { libc::free(reserve) };
    !reserve.is_null()
}

/// Nothing large is begun until there is a reserve again.
pub fn run_short() {
    memory::set_short(true);
}

/// Takes the worker's reserve, if it is not there; returns whether it is now, and memory is not short.
pub fn take_reserve() -> bool {
    IS_WORKER.store(true, Ordering::Relaxed);
    take_one_of(WORKER_RESERVES)
}

fn take_one_of(sizes: &[usize]) -> bool {
    if RESERVE.load(Ordering::Relaxed).is_null() {
        let reserve = sizes.iter().map(|size| {
            // SAFETY: malloc has no preconditions.
            unsafe { libc::malloc(*size) }
        });
        let reserve = (reserve.into_iter()).find(|reserve| !reserve.is_null());
        RESERVE.store(reserve.unwrap_or(ptr::null_mut()), Ordering::Relaxed);
    }
    let there = !RESERVE.load(Ordering::Relaxed).is_null();
    if there {
        memory::set_short(false);
    }
    there
}

/// With RUST_BACKTRACE in the server's environment, pgrx would put a backtrace into the DETAIL of each error: it is
/// not for clients, and to make one Rust reads the whole library into memory, which it takes for granted.
pub fn do_without_backtraces() {
    // SAFETY: a process that loads the library has one thread.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
}

/// A function that the server calls for SQL.
pub type SqlFunction = unsafe extern "C-unwind" fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum;

/// Calls a function with a reserve of memory; every function of ours is called so. If it has opened the reserve, an
/// error is raised when it returns.
///
/// # Safety
/// The caller is called by the server, with these arguments, and its frame has nothing to drop: an error jumps over
/// it.
pub unsafe fn call(function: SqlFunction, arguments: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: as promised. The server forgets the callback of a frame that an error has jumped over.
    unsafe {
        if IS_WORKER.load(Ordering::Relaxed) {
            return function(arguments);
        }
        #[cfg(feature = "strict-allocator")]
        strict::begin();
        if !take_one_of(SESSION_RESERVES) {
            refuse(c"There is no room for the reserve of the webhook library.");
        }
        let mut at_error = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(open_for_error),
            arg: ptr::null_mut(),
        };
        pg_sys::error_context_stack = &raw mut at_error;
        let result = function(arguments);
        pg_sys::error_context_stack = at_error.previous;
        if is_short() {
            refuse(c"The webhook library has used its reserve.");
        }
        result
    }
}

/// Takes the reserve again after an error that was caught.
pub fn require_reserve() {
    if !IS_WORKER.load(Ordering::Relaxed) && !take_one_of(SESSION_RESERVES) {
        notice::out_of_memory("There is no room for the reserve of the webhook library.");
    }
}

/// An error of the server on its way through Rust is copied by pgrx, into memory of both. If there is none, that is
/// fatal: the memory comes from the reserve.
unsafe extern "C-unwind" fn open_for_error(_: *mut c_void) {
    // SAFETY: the server calls this while it makes an error.
    if unsafe { geterrcode() } == pgrx::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int {
        open_reserve();
    }
}

/// Raises the error without any memory of Rust's.
///
/// # Safety
/// As for [`call`].
pub unsafe fn refuse(detail: &CStr) -> ! {
    // SAFETY: as the server's own ereport() does; an error does not return.
    unsafe {
        errstart(pg_sys::PGERROR as c_int, ptr::null());
        errcode(pgrx::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int);
        errmsg(c"%s".as_ptr(), c"out of memory".as_ptr());
        errdetail(c"%s".as_ptr(), detail.as_ptr());
        errfinish(c"memory.rs".as_ptr(), line!() as c_int, c"refuse".as_ptr());
    }
    unreachable!("an ERROR does not return")
}

// The server's functions themselves: pgrx's wrappers would turn the error into a panic.
unsafe extern "C-unwind" {
    fn geterrcode() -> c_int;
    fn errstart(level: c_int, domain: *const c_char) -> bool;
    fn errcode(code: c_int) -> c_int;
    fn errmsg(format: *const c_char, ...) -> c_int;
    fn errdetail(format: *const c_char, ...) -> c_int;
    fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
}

/// The allocator of `make strict`: in a session it refuses what is large and may not be refused.
#[cfg(feature = "strict-allocator")]
mod strict {
    use std::sync::atomic::{AtomicBool, Ordering};
    use webhook_delivery::memory;

    static IN_SESSION: AtomicBool = AtomicBool::new(false);

    pub fn begin() {
        IN_SESSION.store(true, Ordering::Relaxed);
    }

    pub fn refuses(size: usize) -> bool {
        size > memory::LARGE && IN_SESSION.load(Ordering::Relaxed) && !memory::may_fail()
    }
}
