//! The launcher: keeps one worker for each database that has the extension.
//!
//! It cannot see from outside which databases have it, so it starts a worker in each that it has not
//! examined; one that finds no extension says so in its slot and ends. The slots in shared memory are the
//! whole truth: a worker clears its own when it ends, however it ends, and a crash clears them all.

use crate::notice;
use crate::owner::{self, Problem};
use crate::pg_compat;
use crate::settings;
use crate::shmem::{self, Slot, State, Text};
use crate::wake;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Covers what sends no signal: a database that became connectable or ceased to be a template.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A worker that has not attached by then never will.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const NO_ROOM_RETRY: Duration = Duration::from_secs(5);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// Whether the postmaster has taken the launcher; set before it starts any process.
static REGISTERED: AtomicBool = AtomicBool::new(false);

pub fn register() {
    let registered = pg_compat::registers_worker(|| {
        BackgroundWorkerBuilder::new("webhook launcher")
            .set_library("webhook")
            .set_function("webhook_launcher_main")
            .enable_spi_access()
            .set_restart_time(Some(Duration::from_secs(1)))
            .load();
    });
    REGISTERED.store(registered, Ordering::Relaxed);
    if !registered {
        notice::warn(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            no_launcher(),
            "Raise max_worker_processes in postgresql.conf and restart the server; no webhook is sent until then.",
        );
    }
}

/// Why there is no launcher and never will be, if so.
pub fn why_none() -> Option<String> {
    (!REGISTERED.load(Ordering::Relaxed))
        .then(|| no_launcher() + "; raise it in postgresql.conf and restart the server")
}

fn no_launcher() -> String {
    // SAFETY: a plain read, on the main thread.
    let most = unsafe { pg_sys::max_worker_processes };
    format!("max_worker_processes = {most} leaves no room for the launcher of webhook workers")
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn webhook_launcher_main(_argument: pg_sys::Datum) {
    pg_compat::attach_signal_handlers();
    // No database: only the shared catalogs can be read, and nobody's DROP DATABASE is in the way.
    BackgroundWorker::connect_worker_to_spi(None, None);
    shmem::write(|registry| registry.launcher_proc = pg_compat::my_proc_number());
    // SAFETY: the callback stays loaded and takes no argument.
    unsafe { pg_sys::on_shmem_exit(Some(detach), pg_sys::Datum::from(0)) };

    let mut reported = Reported::default();
    loop {
        let next_look = look(&mut reported);
        wake::wait_for_latch(next_look);
        settings::reload_if_asked();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn detach(_code: i32, _argument: pg_sys::Datum) {
    shmem::write(|registry| registry.launcher_proc = shmem::NO_PROC);
}

/// What was said once and need not be said at every look.
#[derive(Default)]
struct Reported {
    no_room: bool,
    too_many: bool,
}

/// Starts what is missing; says after what time to look again.
fn look(reported: &mut Reported) -> Duration {
    let databases = connectable_databases();
    let oids: Vec<pg_sys::Oid> = databases.iter().map(|database| database.oid).collect();
    let ignored = shmem::write(|registry| {
        registry.keep_only(&oids);
        oids.iter()
            .filter(|oid| registry.slot_or_new(**oid).is_none())
            .count()
    });
    if ignored > 0 && !std::mem::replace(&mut reported.too_many, true) {
        warning!(
            "webhook watches at most {} databases; {ignored} get no worker",
            shmem::MAX_DATABASES
        );
    }

    let mut next_look = LOOK_EVERY;
    for database in &databases {
        match shmem::write(|registry| decide(registry, database)) {
            Decision::Nothing => {}
            Decision::LookAgainIn(delay) => next_look = next_look.min(delay),
            Decision::Refuse(problem) => notice::warn(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!(
                    "no webhook worker for database \"{}\": {}",
                    database.name, problem.what
                ),
                &problem.remedy,
            ),
            Decision::Start => {
                if start_worker(database) {
                    reported.no_room = false;
                } else {
                    next_look = next_look.min(NO_ROOM_RETRY);
                    report_no_room(database, &mut reported.no_room);
                }
            }
        }
    }
    next_look
}

enum Decision<'a> {
    Nothing,
    LookAgainIn(Duration),
    Start,
    /// Said once, and looked at again each time.
    Refuse(&'a Problem),
}

fn decide<'a>(registry: &mut shmem::Registry, database: &'a Database) -> Decision<'a> {
    let now = shmem::monotonic_now();
    // One at a time where it is not known whether the extension is there: most workers will end at once,
    // and those that are needed must find room.
    let examining = registry
        .slots()
        .any(|slot| slot.state == State::Starting && age(slot, now) < START_TIMEOUT);
    let Some(slot) = registry.slot_mut(database.oid) else {
        return Decision::Nothing;
    };
    if slot.worker_pid != 0 || slot.state == State::NoExtension {
        return Decision::Nothing;
    }
    if slot.stopped_for != 0 {
        if is_alive(slot.stopped_for) {
            return Decision::LookAgainIn(Duration::from_secs(1));
        }
        slot.stopped_for = 0;
    }
    let pause = match slot.state {
        State::Starting => START_TIMEOUT,
        State::NoRoom => NO_ROOM_RETRY,
        State::Stopped => backoff(slot.failures),
        // The one that is examined wakes us when it has ended or is at work.
        _ if examining => return Decision::LookAgainIn(Duration::from_secs(1)),
        _ => Duration::ZERO,
    };
    let left = pause.saturating_sub(age(slot, now));
    if !left.is_zero() {
        return Decision::LookAgainIn(left);
    }
    match &database.role {
        // Nothing of ours is anywhere yet, or somebody has renamed the role.
        None => Decision::Nothing,
        Some(Err(problem)) => {
            let reason = Text::new(&format!("{}; {}", problem.what, problem.remedy));
            let is_news =
                slot.state != State::Refused || slot.reason.to_option() != reason.to_option();
            slot.state = State::Refused;
            slot.reason = reason;
            if is_news {
                Decision::Refuse(problem)
            } else {
                Decision::Nothing
            }
        }
        Some(Ok(role)) => {
            slot.role = *role;
            slot.say(State::Starting, "");
            slot.changed_at = Some(now);
            Decision::Start
        }
    }
}

/// None after a clean end, then half a second doubling to a minute.
fn backoff(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => (Duration::from_millis(250) * 2u32.pow(n.min(10))).min(LONGEST_BACKOFF),
    }
}

fn age(slot: &Slot, now: Duration) -> Duration {
    (slot.changed_at).map_or(Duration::MAX, |then| now.saturating_sub(then))
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: looks the pid up in the server's own array of processes.
    unsafe { !pg_sys::BackendPidGetProc(pid).is_null() }
}

fn start_worker(database: &Database) -> bool {
    // The postmaster's field has 96 bytes, and it takes only ASCII.
    let ascii = |c: char| if c.is_ascii() { c } else { '?' };
    let name: String = database.name.chars().map(ascii).take(64).collect();
    let started = BackgroundWorkerBuilder::new(&format!("webhook worker for {name}"))
        .set_type("webhook worker")
        .set_library("webhook")
        .set_function("webhook_worker_main")
        .set_argument(Some(pg_sys::Datum::from(database.oid)))
        .enable_spi_access()
        .set_restart_time(None)
        .load_dynamic()
        .is_ok();
    if !started {
        shmem::write(|registry| {
            if let Some(slot) = registry.slot_mut(database.oid) {
                slot.say(State::NoRoom, "no background worker is free; raise max_worker_processes and restart the server");
            }
        });
    }
    started
}

fn report_no_room(database: &Database, reported: &mut bool) {
    if !std::mem::replace(reported, true) {
        let message = format!(
            "no background worker is free to deliver the webhooks of database \"{}\"",
            database.name
        );
        notice::warn(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            message,
            "Raise max_worker_processes in postgresql.conf and restart the server; until then it is tried again every few seconds.",
        );
    }
}

/// The server's DATCONNLIMIT_INVALID_DB: what an interrupted DROP DATABASE leaves behind.
const INVALID_DATABASE: i32 = -2;

struct Database {
    oid: pg_sys::Oid,
    name: String,
    /// As which a worker connects to it, or why none can; nothing where there is no such role.
    role: Option<Result<pg_sys::Oid, Problem>>,
}

/// Read by a scan of the shared catalog, as autovacuum does: without a database there is no SQL.
fn connectable_databases() -> Vec<Database> {
    let mut databases = Vec::new();
    // SAFETY: a catalog scan in a transaction of its own; the tuples are copied before it ends.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        // Whoever changed something wakes us before telling all caches of it.
        pg_sys::InvalidateSystemCaches();
        let owner = owner::find();
        let relation =
            pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let row = pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(tuple);
            let dropped_halfway = (*row).datconnlimit == INVALID_DATABASE;
            if (*row).datallowconn && !(*row).datistemplate && !dropped_halfway {
                let name = CStr::from_ptr((*row).datname.data.as_ptr()).to_string_lossy();
                databases.push(Database {
                    oid: (*row).oid,
                    role: owner.map(|role| {
                        owner::problem(role)
                            .or_else(|| owner::connect_problem(role, (*row).oid, &name))
                            .map_or(Ok(role), Err)
                    }),
                    name: name.into_owned(),
                });
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
    }
    databases
}

/// Wakes the launcher when the database's worker has ended.
pub fn worker_ended(database: pg_sys::Oid) {
    shmem::write(|registry| {
        if let Some(slot) = registry.slot_mut(database) {
            slot.worker_pid = 0;
            slot.worker_proc = shmem::NO_PROC;
            slot.in_flight = 0;
            slot.changed_at = Some(shmem::monotonic_now());
            if !matches!(slot.state, State::NoExtension | State::Unexamined) {
                slot.say(State::Stopped, "");
            }
        }
    });
    wake::launcher();
}
