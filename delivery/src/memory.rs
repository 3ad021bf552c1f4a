//! Memory for payloads is asked for, and where there is none the attempt fails. All other memory is taken for
//! granted, as Rust does: a process that is refused it aborts, and in a server of PostgreSQL takes all others with
//! it. So the host's allocator keeps a reserve for it, and says here when it had to open it.

use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// A smaller allocation fits into the reserve many times.
pub const LARGE: usize = 64 * 1024;

static SHORT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Nothing large begins while memory is short.
pub fn set_short(short: bool) {
    SHORT.store(short, Ordering::Relaxed);
}

pub fn is_short() -> bool {
    SHORT.load(Ordering::Relaxed)
}

/// Whether the allocation that is under way in this thread is one that may be refused.
pub fn may_fail() -> bool {
    MAY_FAIL.get()
}

/// Gives freed memory to the system.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct OutOfMemory;

pub fn copy(text: &str) -> Result<String, OutOfMemory> {
    let mut copy = String::new();
    attempt(text.len(), || copy.try_reserve_exact(text.len()))?;
    copy.push_str(text);
    Ok(copy)
}

/// An empty list with room for so many entries.
pub fn list<T>(capacity: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut list = Vec::new();
    let bytes = capacity.saturating_mul(size_of::<T>());
    attempt(bytes, || list.try_reserve_exact(capacity))?;
    Ok(list)
}

/// Whether there is room for so many bytes, for work that allocates them in small pieces.
pub fn has_room(bytes: usize) -> bool {
    // The compiler would leave out memory that is not used.
    black_box(Growing::with_room(bytes)).is_ok()
}

/// Bytes that are written one after the other.
#[derive(Default)]
pub(crate) struct Growing(Vec<u8>);

impl Growing {
    pub fn with_room(bytes: usize) -> Result<Self, OutOfMemory> {
        let mut growing = Growing::default();
        attempt(bytes, || growing.0.try_reserve_exact(bytes))?;
        Ok(growing)
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), OutOfMemory> {
        if self.0.capacity() - self.0.len() < bytes.len() {
            attempt(self.0.len() + bytes.len(), || {
                self.0.try_reserve(bytes.len())
            })?;
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// For serde_json; the error has the kind `OutOfMemory`.
impl io::Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.push(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(OutOfMemory) => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn attempt<E>(bytes: usize, reserve: impl FnOnce() -> Result<(), E>) -> Result<(), OutOfMemory> {
    if bytes >= LARGE && is_short() {
        return Err(OutOfMemory);
    }
    MAY_FAIL.set(true);
    let reserved = reserve();
    MAY_FAIL.set(false);
    reserved.map_err(|_| OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_an_error_and_no_abort() {
        let mut growing = Growing::with_room(10).unwrap();
        growing.push(b"kept").unwrap();
        assert!(Growing::with_room(isize::MAX as usize).is_err());
        assert_eq!(growing.into_bytes(), b"kept");
        assert!(list::<u64>(usize::MAX).is_err());
        assert_eq!(list::<u64>(3).unwrap().capacity(), 3);
        assert!(has_room(1 << 20) && !has_room(isize::MAX as usize));
    }
}
