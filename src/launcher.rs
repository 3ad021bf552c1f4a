//! The launcher: keeps one worker for each database that has the extension, as long as there is room.
//!
//! The launcher is connected to no database, and cannot see which of them have the extension; a worker can see that
//! of all (`store::survey`). So the launcher asks a worker, and a later CREATE EXTENSION tells the launcher. A
//! database without the extension has no slot.
//!
//! It starts one worker, waits until that is at work or has ended, and starts the next. Where the server has
//! too few processes the databases take turns (`turns`). The slots in shared memory are the whole truth: a
//! worker clears its own when it ends, however it ends, and a crash clears them all.

mod databases;
mod turns;

use crate::notice;
use crate::owner::Problem;
use crate::pg_compat;
use crate::settings;
use crate::shmem::{self, Registry, Slot, State, Text};
use crate::wake;
use databases::Database;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder};
use pgrx::prelude::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Covers changes that send no signal: a database that became connectable or ceased to be a template.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A worker that is not at work by then does not keep the others waiting.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause while a start is under way or there is no room; events of that sort wake the launcher too, most of the
/// time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A place that a worker has just left is taken until the postmaster has seen the process end.
const SHORTAGE: Duration = Duration::from_millis(500);

/// A worker that has ended so often in a row before it was at work does not come up by itself.
const FAILURES_TO_TELL: u32 = 3;

/// Whether the postmaster has taken the launcher; set before it starts any process.
static REGISTERED: AtomicBool = AtomicBool::new(false);

pub fn register() {
    // Single-user mode, which pg_rewind uses too, has no workers.
    // SAFETY: a plain read, on the main thread.
    if !unsafe { pg_sys::IsPostmasterEnvironment } {
        return;
    }
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

fn no_launcher() -> String {
    format!(
        "max_worker_processes = {} leaves no room for the launcher of webhook workers",
        max_worker_processes()
    )
}

fn max_worker_processes() -> usize {
    // SAFETY: a plain read, on the main thread.
    usize::try_from(unsafe { pg_sys::max_worker_processes }).unwrap_or_default()
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

    let mut launcher = Launcher::default();
    loop {
        let next_look = launcher.look();
        wake::wait_for_latch(next_look);
        settings::reload_if_asked();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn detach(_code: i32, _argument: pg_sys::Datum) {
    shmem::write(|registry| registry.launcher_proc = shmem::NO_PROC);
}

#[derive(Default)]
struct Launcher {
    starting: Option<Start>,
    /// Databases that were surveyed; one without a slot does not have the extension, or has told us since.
    known: HashSet<pg_sys::Oid>,
    /// The databases of the survey that is wanted.
    surveyed: Option<HashSet<pg_sys::Oid>>,
    /// Since when databases wait for a worker because the postmaster has no room.
    short_since: Option<Duration>,
    /// The shortage is told once, and not at every look.
    said_shortage: bool,
    said_too_many: bool,
    said_problem: Option<String>,
    /// Databases whose worker does not come up.
    said_failing: HashSet<pg_sys::Oid>,
}

impl Launcher {
    /// Starts the next worker if one is missing; says after what time to look again.
    fn look(&mut self) -> Duration {
        let databases = databases::connectable();
        self.tidy(&databases);
        self.report_failing(&databases);
        let now = shmem::monotonic_now();
        if self.is_starting(now) {
            return LOOK_AGAIN;
        }
        let line = shmem::write(|registry| turns::line(registry, now));
        if line.all_have_workers {
            self.short_since = None;
            self.said_shortage = false;
        }
        for oid in line.waiting.iter().chain(&line.resting) {
            let Some(database) = databases.iter().find(|database| database.oid == *oid) else {
                continue;
            };
            match databases::role_for(database) {
                Err(problem) => refuse(database, &problem),
                Ok(role) => {
                    self.start(database, role, now);
                    if self.starting.is_none() && !line.waiting.is_empty() {
                        shmem::write(|registry| turns::make_room(registry, &line.waiting, now));
                        self.report_shortage(now);
                    }
                    return LOOK_AGAIN;
                }
            }
        }
        match self.see_to_survey(&databases, now) {
            true => LOOK_AGAIN,
            false => line.next.min(LOOK_EVERY),
        }
    }

    /// Frees slots that are not needed, and wants a survey where a database is not known yet.
    fn tidy(&mut self, databases: &[Database]) {
        let oids: HashSet<pg_sys::Oid> = databases.iter().map(|database| database.oid).collect();
        let too_many = shmem::write(|registry| {
            let without = registry.free_unneeded(|database| oids.contains(&database));
            self.known.extend(without);
            if !registry.survey_wanted
                && let Some(surveyed) = self.surveyed.take()
            {
                self.known.extend(surveyed);
            }
            self.known.retain(|database| oids.contains(database));
            if registry.unserved > 0 && !registry.is_full() {
                registry.unserved = 0;
                self.known.clear();
            }
            if self.surveyed.is_none() && !oids.is_subset(&self.known) {
                registry.survey_wanted = true;
                self.surveyed = Some(oids);
            }
            registry.unserved
        });
        if too_many > 0 && !self.said_too_many {
            warning!(
                "webhook serves at most {} databases; {too_many} more have the extension",
                shmem::MAX_DATABASES
            );
        }
        self.said_too_many = too_many > 0;
    }

    /// Has the wanted survey made: by the workers that are at work, or by a worker in a database that is not known
    /// yet. A worker that finds no extension there ends.
    fn see_to_survey(&mut self, databases: &[Database], now: Duration) -> bool {
        if self.surveyed.is_none() {
            return false;
        }
        let asked = shmem::read(|registry| {
            let at_work = registry.slots().filter(|s| s.at_work_since.is_some());
            at_work
                .map(|slot| wake::set_latch_of(slot.worker_proc))
                .count()
        });
        if asked > 0 {
            return true;
        }
        let mut problem = None;
        for database in databases.iter().filter(|d| !self.known.contains(&d.oid)) {
            match databases::role_for(database) {
                Ok(role) => {
                    self.start_survey(database, role, now);
                    return true;
                }
                Err(found) => problem = problem.or(Some(found)),
            }
        }
        if let Some(problem) = problem
            && self.said_problem.as_ref() != Some(&problem.what)
        {
            notice::warn(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!(
                    "webhook cannot see which databases have the extension: {}",
                    problem.what
                ),
                &problem.remedy,
            );
            self.said_problem = Some(problem.what);
        }
        false
    }

    fn start_survey(&mut self, database: &Database, role: pg_sys::Oid, now: Duration) {
        if shmem::write(|registry| registry.slot_or_new(database.oid).is_none()) {
            return;
        }
        self.start(database, role, now);
        if self.starting.is_none() {
            // Nobody knows whether it needs a worker: it must not count among the databases that wait.
            shmem::write(|registry| registry.free(database.oid));
        }
    }

    /// Whether the worker that was asked for last is still on its way.
    fn is_starting(&mut self, now: Duration) -> bool {
        let on_its_way = self.starting.as_ref().is_some_and(|start| {
            let is_at_work = shmem::read(|registry| {
                let slot = registry.slot(start.database);
                slot.is_none_or(|slot| slot.at_work_since.is_some())
            });
            !is_at_work && !start.has_ended() && now.saturating_sub(start.since) < START_TIMEOUT
        });
        if !on_its_way {
            self.starting = None;
        }
        on_its_way
    }

    /// The worker finds its orders in its slot, so the slot is written first.
    fn start(&mut self, database: &Database, role: pg_sys::Oid, now: Duration) {
        let changed_at = shmem::write(|registry| {
            let slot = registry.slot_mut(database.oid)?;
            slot.role = role;
            slot.say(State::Starting, "");
            slot.changed_at.replace(now)
        });
        self.starting = Start::of(database, now);
        if self.starting.is_some() {
            self.short_since = None;
            return;
        }
        // The database keeps its place in the line.
        shmem::write(|registry| {
            if let Some(slot) = registry.slot_mut(database.oid) {
                slot.say(State::NoRoom, "");
                slot.changed_at = changed_at;
            }
        });
    }

    /// A worker that ends before it is at work can tell nobody that nothing is delivered.
    fn report_failing(&mut self, databases: &[Database]) {
        for database in databases {
            let seen = shmem::read(|registry| {
                let slot = registry.slot(database.oid)?;
                Some((
                    slot.failures,
                    slot.worker_pid,
                    slot.at_work_since,
                    slot.last_error,
                ))
            });
            match seen {
                Some((failures, 0, None, last_error))
                    if failures >= FAILURES_TO_TELL && self.said_failing.insert(database.oid) =>
                {
                    report_failing(database, failures, last_error.to_option());
                }
                Some((0, _, Some(_), _)) if self.said_failing.remove(&database.oid) => {
                    log!(
                        "webhooks are delivered again in database \"{}\"",
                        database.name
                    );
                }
                _ => {}
            }
        }
        self.said_failing
            .retain(|oid| databases.iter().any(|database| database.oid == *oid));
    }

    fn report_shortage(&mut self, now: Duration) {
        let since = *self.short_since.get_or_insert(now);
        if self.said_shortage || now.saturating_sub(since) < SHORTAGE {
            return;
        }
        let numbers = shmem::read(Numbers::of);
        if numbers.databases <= numbers.workers {
            return;
        }
        self.said_shortage = true;
        notice::warn_with_detail(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "{} of {} databases with the extension webhook have no worker: no background worker is free",
                numbers.databases - numbers.workers,
                numbers.databases
            ),
            &format!(
                "max_worker_processes = {}; webhook has its launcher and {} workers among them. Databases take turns.",
                max_worker_processes(),
                numbers.workers
            ),
            &format!(
                "Set max_worker_processes to {} or more in postgresql.conf and restart the server.",
                numbers.enough_processes()
            ),
        );
    }
}

/// A worker that the postmaster was asked for.
struct Start {
    database: pg_sys::Oid,
    handle: *mut pg_sys::BackgroundWorkerHandle,
    since: Duration,
}

impl Start {
    /// Nothing where there is no room.
    fn of(database: &Database, since: Duration) -> Option<Start> {
        // The postmaster's field has 96 bytes, and it takes only ASCII.
        let ascii = |c: char| if c.is_ascii() { c } else { '?' };
        let name: String = database.name.chars().map(ascii).take(64).collect();
        // SAFETY: a plain read, on the main thread.
        let pid = unsafe { pg_sys::MyProcPid };
        let builder = BackgroundWorkerBuilder::new(&format!("webhook worker for {name}"))
            .set_type("webhook worker")
            .set_library("webhook")
            .set_function("webhook_worker_main")
            .set_argument(Some(pg_sys::Datum::from(database.oid)))
            .enable_spi_access()
            .set_restart_time(None)
            // The postmaster wakes us when it has seen the process end, and its place is free.
            .set_notify_pid(pid);
        let mut worker = pg_sys::BackgroundWorker::from(&builder);
        let mut handle = std::ptr::null_mut();
        // SAFETY: main thread, outside of any transaction: the handle is made in a context that lives on.
        let registered =
            unsafe { pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle) };
        registered.then(|| Start {
            database: database.oid,
            handle,
            since,
        })
    }

    fn has_ended(&self) -> bool {
        use pg_sys::BgwHandleStatus::{BGWH_NOT_YET_STARTED, BGWH_STARTED};
        let mut pid = 0;
        // SAFETY: the handle lives as long as this.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.handle, &mut pid) };
        !matches!(status, BGWH_STARTED | BGWH_NOT_YET_STARTED)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        // SAFETY: the server has made it by palloc, and nobody else has it.
        unsafe { pg_sys::pfree(self.handle.cast()) };
    }
}

fn report_failing(database: &Database, failures: u32, last_error: Option<String>) {
    notice::warn_with_detail(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "no webhook is delivered in database \"{}\": its worker has ended {failures} times in a row",
            database.name
        ),
        &last_error.unwrap_or_else(|| "The worker could not say why.".to_owned()),
        "Lines of the worker above this one say more. The launcher tries again, at least once a minute.",
    );
}

/// Says it once, and looks again each time.
fn refuse(database: &Database, problem: &Problem) {
    let reason = Text::new(&format!("{}; {}", problem.what, problem.remedy));
    let is_news = shmem::write(|registry| {
        let slot = registry.slot_mut(database.oid)?;
        let is_news = slot.state != State::Refused || slot.reason.to_option() != reason.to_option();
        slot.state = State::Refused;
        slot.reason = reason;
        Some(is_news)
    });
    if is_news == Some(true) {
        notice::warn(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!(
                "no webhook worker for database \"{}\": {}",
                database.name, problem.what
            ),
            &problem.remedy,
        );
    }
}

struct Numbers {
    databases: usize,
    workers: usize,
}

impl Numbers {
    fn of(registry: &Registry) -> Self {
        let not_for_want_of_room =
            |slot: &Slot| matches!(slot.state, State::NoExtension | State::Refused);
        let slots = || registry.slots();
        Numbers {
            databases: slots().filter(|slot| !not_for_want_of_room(slot)).count(),
            workers: registry.places.max(registry.workers()),
        }
    }

    fn enough_processes(&self) -> usize {
        max_worker_processes() + self.databases.saturating_sub(self.workers)
    }
}

/// Why the database with this slot has no worker, if it is for want of room, and what helps.
pub fn why_no_room(registry: &Registry, slot: Option<&Slot>) -> Option<String> {
    if !REGISTERED.load(Ordering::Relaxed) {
        return Some(no_launcher() + "; raise it in postgresql.conf and restart the server");
    }
    match slot {
        Some(slot) if slot.state == State::NoRoom => {
            let numbers = Numbers::of(registry);
            Some(format!(
                "{} databases take turns with {} workers, because max_worker_processes = {}; set it to {} or more and \
                 restart the server",
                numbers.databases,
                numbers.workers,
                max_worker_processes(),
                numbers.enough_processes()
            ))
        }
        None if registry.is_full() => Some(format!(
            "webhook serves at most {} databases of a server, and so many others have the extension",
            shmem::MAX_DATABASES
        )),
        _ => None,
    }
}

/// Wakes the launcher when the database's worker has ended.
pub fn worker_ended(database: pg_sys::Oid) {
    shmem::write(|registry| {
        if let Some(slot) = registry.slot_mut(database) {
            slot.worker_pid = 0;
            slot.worker_proc = shmem::NO_PROC;
            slot.in_flight = 0;
            slot.at_work_since = None;
            slot.changed_at = Some(shmem::monotonic_now());
            let made_room = slot.asked_for_room_at.take().is_some();
            if !matches!(slot.state, State::NoExtension | State::Unexamined) {
                let state = match made_room {
                    true => State::NoRoom,
                    false => State::Stopped,
                };
                slot.say(state, "");
            }
        }
    });
    wake::launcher();
}
