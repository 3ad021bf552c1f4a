//! The allocator. A failed allocation makes Rust abort, and a process of the server that aborts makes the postmaster
//! restart all others. Code that can do without reserves the memory that grows with payloads
//! (`webhook_delivery::memory`). For all the rest the worker keeps a reserve: the first failure opens it, and the
//! worker ends the work that it has begun.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use webhook_delivery::memory;

pub use webhook_delivery::memory::{copy, give_back, is_short};

/// It is never written to, so it takes address space and no memory. Where there is no room for all of it, less will
/// do.
const RESERVES: [usize; 3] = [16 << 20, 4 << 20, 1 << 20];

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

struct WithReserve;

// SAFETY: the system's allocator does it all; asked a second time it does not know of the first.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        with_reserve(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        with_reserve(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; what could not be enlarged is still there.
        with_reserve(|| unsafe { System.realloc(old, layout, size) })
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

fn with_reserve(allocate: impl Fn() -> *mut u8) -> *mut u8 {
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
static RESERVE: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

fn open_reserve() -> bool {
    let reserve = RESERVE.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: it came from malloc, and whoever swapped it out frees it.
    unsafe { libc::free(reserve) };
    !reserve.is_null()
}

/// Nothing large is begun until there is a reserve again.
pub fn run_short() {
    memory::set_short(true);
}

/// Takes the reserve, if it is not there; says whether it is now, and memory is not short.
pub fn take_reserve() -> bool {
    if RESERVE.load(Ordering::Relaxed).is_null() {
        let reserve = RESERVES.iter().map(|size| {
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
