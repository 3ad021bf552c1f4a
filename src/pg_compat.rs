//! Differences between the versions of PostgreSQL.

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// This process's place in the server's array of processes.
pub fn my_proc_number() -> i32 {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    // SAFETY: a process that runs our code has its PGPROC.
    unsafe {
        (*pg_sys::MyProc).pgprocno
    }
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    // SAFETY: a plain read, on the main thread.
    unsafe {
        pg_sys::MyProcNumber
    }
}

/// Calls a function that registers a static background worker, and says whether the postmaster took it: where there
/// is no room it only writes a line to the log.
pub fn registers_worker(register: impl FnOnce()) -> bool {
    let before = first_registered_worker();
    register();
    first_registered_worker() != before
}

fn first_registered_worker() -> *mut std::ffi::c_void {
    #[cfg(not(feature = "pg18"))]
    type ListHead = pg_sys::slist_head;
    #[cfg(feature = "pg18")]
    type ListHead = pg_sys::dlist_head;
    unsafe extern "C-unwind" {
        static BackgroundWorkerList: ListHead;
    }
    // SAFETY: the postmaster's list of workers; it puts a new one first, and only the pointer is looked at.
    unsafe { BackgroundWorkerList.head.next.cast() }
}

pub fn owns_database(database: pg_sys::Oid) -> bool {
    // SAFETY: a catalog lookup inside the transaction of the command at hand.
    unsafe {
        let role = pg_sys::GetUserId();
        #[cfg(feature = "pg15")]
        return pg_sys::pg_database_ownercheck(database, role);
        #[cfg(not(feature = "pg15"))]
        return pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, role);
    }
}

/// Whether a background worker may connect as a role without LOGIN.
pub const CONNECTS_WITHOUT_LOGIN: bool = cfg!(any(feature = "pg17", feature = "pg18"));

/// The set lives as long as the process.
pub fn wait_event_set(events: i32) -> *mut pg_sys::WaitEventSet {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    // SAFETY: a plain read, on the main thread.
    let owner = unsafe { pg_sys::TopMemoryContext };
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    let owner = std::ptr::null_mut();
    // SAFETY: the owner outlives the set.
    unsafe { pg_sys::CreateWaitEventSet(owner, events) }
}

pub fn connect_worker_as(role: pg_sys::Oid, database: pg_sys::Oid) {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let flags = 0;
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    let flags = pg_sys::BGWORKER_BYPASS_ROLELOGINCHECK;
    // SAFETY: called once, by a background worker that was registered for a connection.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(database, role, flags) }
}

pub fn may_connect(role: pg_sys::Oid, database: pg_sys::Oid) -> bool {
    let connect = pg_sys::ACL_CONNECT as pg_sys::AclMode;
    // SAFETY: a lookup in shared catalogs, inside a transaction.
    unsafe {
        #[cfg(feature = "pg15")]
        let answer = pg_sys::pg_database_aclcheck(database, role, connect);
        #[cfg(not(feature = "pg15"))]
        let answer = pg_sys::object_aclcheck(pg_sys::DatabaseRelationId, database, role, connect);
        answer == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Whether the role is a member of another one, or another one of it.
pub fn has_memberships(role: pg_sys::Oid) -> bool {
    const PG_AUTH_MEMBERS: pg_sys::Oid = pg_sys::Oid::from_u32(1261);
    // Its columns roleid and member; from 16 on an oid comes first.
    const COLUMNS: [i32; 2] = if cfg!(feature = "pg15") {
        [1, 2]
    } else {
        [2, 3]
    };
    let mut found = false;
    // SAFETY: a scan of a shared catalog inside a transaction; both columns are OIDs and never null.
    unsafe {
        let lock = pg_sys::AccessShareLock as i32;
        let relation = pg_sys::table_open(PG_AUTH_MEMBERS, lock);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            found |= COLUMNS.iter().any(|column| {
                let mut is_null = false;
                let value = pg_sys::heap_getattr(tuple, *column, (*relation).rd_att, &mut is_null);
                pg_sys::Oid::from(value.value() as u32) == role
            });
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
    found
}

// The server's functions themselves: pgrx's wrappers set up an error frame, which a handler must not.
#[allow(non_snake_case)]
unsafe extern "C-unwind" {
    fn die(signal: i32);
    fn SignalHandlerForConfigReload(signal: i32);
    fn SetLatch(latch: *mut pg_sys::Latch);
}

/// Handlers for a process that ends at once when told to.
pub fn attach_signal_handlers() {
    attach(die);
}

/// Handlers for a process that has something to put in order first: SIGTERM cancels the statement that is running,
/// wherever it waits, and `is_terminated` says so to the main loop. Should the process still be there after
/// `patience`, it ends as by `die`, in the middle of its work.
pub fn attach_graceful_signal_handlers(patience: Duration) {
    // No other process of the server sends this signal to a process with our code.
    attach_one(pg_sys::SIGUSR2, die);
    // SAFETY: fills the timer that it is given; the signal has its handler.
    let made = unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = pg_sys::SIGUSR2 as i32;
        let mut timer = std::ptr::null_mut();
        let made = libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0;
        BACKSTOP.store(timer, Ordering::Relaxed);
        made
    };
    if made {
        PATIENCE_MS.store(patience.as_millis() as u32, Ordering::Relaxed);
    }
    attach(terminate_gracefully);
}

fn attach(on_sigterm: Handler) {
    attach_one(pg_sys::SIGHUP, SignalHandlerForConfigReload);
    attach_one(pg_sys::SIGTERM, on_sigterm);
    // SAFETY: the handlers are there.
    unsafe { pg_sys::BackgroundWorkerUnblockSignals() };
}

fn attach_one(signal: u32, handler: Handler) {
    #[cfg(not(feature = "pg18"))]
    use pg_sys::pqsignal as attach;
    #[cfg(feature = "pg18")]
    use pg_sys::pqsignal_be as attach;
    // SAFETY: the handlers do only what is safe in a handler.
    unsafe { attach(signal as i32, Some(handler)) };
}

type Handler = unsafe extern "C-unwind" fn(i32);

static TERMINATED: AtomicBool = AtomicBool::new(false);
static BACKSTOP: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Zero where there is no timer.
static PATIENCE_MS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn terminate_gracefully(_signal: i32) {
    let first = !TERMINATED.swap(true, Ordering::Relaxed);
    // SAFETY: what the server's own handlers do; setting a timer is safe in a handler; errno belongs to the code that
    // was interrupted.
    unsafe {
        let errno = *libc::__errno_location();
        let patience = PATIENCE_MS.load(Ordering::Relaxed);
        if first && patience > 0 {
            let mut once: libc::itimerspec = std::mem::zeroed();
            once.it_value.tv_sec = i64::from(patience / 1000);
            once.it_value.tv_nsec = i64::from(patience % 1000) * 1_000_000;
            let timer = BACKSTOP.load(Ordering::Relaxed);
            libc::timer_settime(timer, 0, &once, std::ptr::null_mut());
        }
        (&raw mut pg_sys::QueryCancelPending).write_volatile(1);
        (&raw mut pg_sys::InterruptPending).write_volatile(1);
        SetLatch(pg_sys::MyLatch);
        *libc::__errno_location() = errno;
    }
}

pub fn is_terminated() -> bool {
    TERMINATED.load(Ordering::Relaxed)
}

/// A cancellation is meant for a statement: outside of one there is nothing to cancel.
pub fn forget_cancellation() {
    // SAFETY: the flag is set by the signal handlers of this thread.
    unsafe { (&raw mut pg_sys::QueryCancelPending).write_volatile(0) };
}

pub fn all_settings() -> Vec<*mut pg_sys::config_generic> {
    // SAFETY: main thread; the array has as many entries as it is said to have. From 16 on it is a copy.
    unsafe {
        #[cfg(feature = "pg15")]
        let (first, count) = (pg_sys::get_guc_variables(), pg_sys::GetNumConfigOptions());
        #[cfg(not(feature = "pg15"))]
        let (first, count) = {
            let mut count = 0;
            (pg_sys::get_guc_variables(&mut count), count)
        };
        let settings = std::slice::from_raw_parts(first, count as usize).to_vec();
        #[cfg(not(feature = "pg15"))]
        pg_sys::pfree(first.cast());
        settings
    }
}

type ToHeader = unsafe extern "C-unwind" fn(pg_sys::Datum) -> pg_sys::HeapTupleHeader;

/// The tuple of a composite value. From the minor releases of November 2026 on (CVE-2026-6460), the server compares
/// its version with that of the description by which it is taken apart, once a function of the server has marked it
/// as such a value. Earlier minor releases lack the function, and a library that is linked to it would not load there.
///
/// # Safety
/// The value is composite, and not null.
pub unsafe fn composite(value: pg_sys::Datum) -> pg_sys::HeapTupleHeader {
    static TO_HEADER: OnceLock<Option<ToHeader>> = OnceLock::new();
    // SAFETY: the server's function of that name has had this signature since it exists; what it does not copy stays.
    unsafe {
        let to_header = TO_HEADER.get_or_init(|| {
            let function = libc::dlsym(libc::RTLD_DEFAULT, c"DatumGetHeapTupleHeader".as_ptr());
            std::mem::transmute::<*mut libc::c_void, Option<ToHeader>>(function)
        });
        match *to_header {
            Some(to_header) => pg_guard_ffi_boundary(|| to_header(value)),
            None => pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast(),
        }
    }
}

/// # Safety
/// The description is valid, and outlives the slice.
pub unsafe fn attributes<'a>(
    description: pg_sys::TupleDesc,
) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: the attributes follow the header; from 18 on, after as many short forms of themselves.
    unsafe {
        let count = (*description).natts as usize;
        #[cfg(not(feature = "pg18"))]
        return (*description).attrs.as_slice(count);
        #[cfg(feature = "pg18")]
        return std::slice::from_raw_parts(
            (*description).compact_attrs.as_ptr().add(count).cast(),
            count,
        );
    }
}

/// Reports for pg_stat_activity, beside the application_name.
pub fn report_activity(is_idle: bool, state: &str, in_flight: i32) {
    let activity = CString::new(format!(
        "delivering webhooks: {state}, {in_flight} in flight"
    ));
    let backend_state = match is_idle {
        true => pg_sys::BackendState::STATE_IDLE,
        false => pg_sys::BackendState::STATE_RUNNING,
    };
    // SAFETY: main thread, and the text outlives the call, which copies it.
    unsafe {
        pg_sys::pgstat_report_activity(backend_state, activity.unwrap_or_default().as_ptr());
    }
}
