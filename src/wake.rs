//! Wake-ups: a commit sets the latch of the database's worker, or asks the launcher for one.

use crate::ddl_hook;
use crate::shmem::{self, State};
use crate::told::Told;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static CALLBACK_REGISTERED: AtomicBool = AtomicBool::new(false);
static LAUNCHER_AT_END: AtomicBool = AtomicBool::new(false);
static SETTINGS_AT_COMMIT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The message of this transaction to the worker, for its commit.
    static TO_TELL: RefCell<Told> = const { RefCell::new(Told::NOTHING) };
}

/// Has the worker look at everything when the current transaction commits; only then, to prevent needless wake-ups.
pub fn worker_at_commit() {
    tell_at_commit(|told| *told = Told::ANYTHING);
}

/// Wakes the worker for these endpoints, which have something that is due then.
pub fn worker_at_commit_for(endpoints: impl Iterator<Item = i32>, due_at: pg_sys::TimestampTz) {
    tell_at_commit(|told| endpoints.for_each(|endpoint| told.add_endpoint(endpoint, due_at)));
}

fn tell_at_commit(add: impl FnOnce(&mut Told)) {
    if shmem::is_preloaded() {
        register_callback();
        TO_TELL.with_borrow_mut(add);
    }
}

/// Wakes the launcher when the current transaction has ended, be it committed or not.
pub fn launcher_at_end() {
    if shmem::is_preloaded() {
        register_callback();
        LAUNCHER_AT_END.store(true, Ordering::Relaxed);
    }
}

/// Has all workers read the settings of their databases when the current transaction commits.
pub fn settings_at_commit() {
    if shmem::is_preloaded() {
        register_callback();
        SETTINGS_AT_COMMIT.store(true, Ordering::Relaxed);
    }
}

fn register_callback() {
    if !CALLBACK_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: registered once per backend, and the function stays loaded.
        unsafe { pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut()) }
    }
}

/// A prepared transaction wakes no worker here: COMMIT PREPARED does, in whatever backend.
unsafe extern "C-unwind" fn at_transaction_end(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    if !matches!(
        event,
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE
    ) {
        return;
    }
    let launcher = LAUNCHER_AT_END.swap(false, Ordering::Relaxed);
    let settings = SETTINGS_AT_COMMIT.swap(false, Ordering::Relaxed);
    // An error after the commit would take the whole server down: no error leaves this closure.
    let _ = std::panic::catch_unwind(|| {
        let told = TO_TELL.replace(Told::NOTHING);
        if event == XACT_EVENT_COMMIT && !told.is_nothing() {
            tell_worker(&told);
        }
        if event == XACT_EVENT_COMMIT && settings {
            settings_changed();
        }
        if launcher {
            ddl_hook::let_workers_return();
            self::launcher();
        }
    });
}

/// A prepared transaction was committed, and may have done anything.
pub fn prepared_committed() {
    if shmem::is_preloaded() {
        tell_worker(&Told::ANYTHING);
        settings_changed();
    }
}

fn settings_changed() {
    shmem::write(|registry| {
        for slot in registry.slots_mut() {
            // A worker that has not read the settings since the last change is not woken for another.
            if !std::mem::replace(&mut slot.settings_changed, true) {
                set_latch_of(slot.worker_proc);
            }
        }
    });
}

fn tell_worker(told: &Told) {
    // SAFETY: a plain read, on the main thread.
    let database = unsafe { pg_sys::MyDatabaseId };
    let listener = shmem::write(|registry| {
        let launcher = registry.launcher_proc;
        let slot = registry.slot_or_new(database)?;
        let is_first = slot.told.is_nothing();
        slot.told.add(told);
        if slot.worker_proc != shmem::NO_PROC {
            return Some(slot.worker_proc);
        }
        // Does the database need a worker now, and the launcher not know it?
        let is_news = match slot.state {
            State::NoExtension => {
                slot.say(State::Unexamined, "");
                true
            }
            State::Refused => true,
            State::NoRoom => is_first,
            _ => slot.changed_at.is_none(),
        };
        is_news.then_some(launcher)
    });
    set_latch_of(listener.unwrap_or(shmem::NO_PROC));
}

pub fn launcher() {
    set_latch_of(shmem::read(|registry| registry.launcher_proc));
}

/// Sleeps until somebody sets this process's latch, or for that long.
pub fn wait_for_latch(timeout: Duration) {
    // SAFETY: the latch is this process's own.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            timeout.as_millis() as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts!();
}

/// Proc numbers are reused: at worst somebody else wakes once for nothing.
pub fn set_latch_of(proc_number: i32) {
    if proc_number == shmem::NO_PROC {
        return;
    }
    // SAFETY: the array of processes has a fixed size and lives as long as shared memory; the number came
    // from a process that had its place there.
    unsafe {
        let process = (*pg_sys::ProcGlobal).allProcs.add(proc_number as usize);
        pg_sys::SetLatch(&raw mut (*process).procLatch);
    }
}
