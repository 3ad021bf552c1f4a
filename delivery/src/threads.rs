//! Threads that may live in a Postgres process.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::{io, mem, ptr, thread};

/// Under `vm.overcommit_memory = 2`, common on database servers, a stack is charged in full, so not the
/// default of 2 MB; a TLS handshake of a debug build overflows 128 kB and fits into 256 kB.
const STACK_SIZE: usize = 512 * 1024;

/// Starts a detached thread that never takes a signal: Postgres's handlers belong to its main thread.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // A thread inherits the mask of the one that starts it.
    let _blocked = AllSignalsBlocked::new()?;
    thread::Builder::new()
        .name(name)
        .stack_size(STACK_SIZE)
        .spawn(body)?;
    Ok(())
}

struct AllSignalsBlocked {
    before: libc::sigset_t,
}

impl AllSignalsBlocked {
    fn new() -> io::Result<Self> {
        // SAFETY: sigset_t is plain data, and all zeroes is a value of it.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: both point to sets that live through the calls.
        let error = unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before)
        };
        match error {
            0 => Ok(Self { before }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for AllSignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `before` was filled in by pthread_sigmask, and a null old set is allowed.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// A panic's message as an error: a panic must not take a thread of the pool with it.
pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(f)).map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    format!("panic: {text}")
}

/// The same for a future; by reference, or it would be there twice.
pub(crate) async fn catch_async<T>(
    mut future: Pin<&mut impl Future<Output = T>>,
) -> Result<T, String> {
    poll_fn(|cx| match catch(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// A lock that another thread's panic does not spoil: its content is consistent between calls.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
