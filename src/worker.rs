//! The life of a worker: the process that delivers the webhooks of one database.
//!
//! The main thread is the only one that touches Postgres, and it never blocks on anything but its latch and
//! the socket of the pool. Requests are sent by the pool's thread; no transaction is open meanwhile.

mod ledger;
mod recovery;
mod retention;
mod shortage;
mod turn;

use crate::launcher;
use crate::memory;
use crate::notice;
use crate::pg_compat;
use crate::protocol;
use crate::settings::{self, Settings};
use crate::shmem::{self, Slot, State, Text};
use crate::store::{self, Ending, Extension, Tally, Trouble};
use crate::wake;
use ledger::Ledger;
use pgrx::prelude::*;
use recovery::Recovery;
use retention::Retention;
use std::path::Path;
use std::time::{Duration, Instant};
use turn::Agenda;
use webhook_delivery::{FailureKind, Outcome, Pool, Roots, Setup};

/// What is in flight when the worker is told to stop gets this long to end by itself, and this long to
/// notice that it was interrupted. With the settling that follows, it is 3 s as a rule.
const GRACE: Duration = Duration::from_secs(2);
const INTERRUPTION: Duration = Duration::from_millis(500);
const LAST_SETTLING: Duration = Duration::from_secs(1);
/// A worker that has not ended by then is stuck somewhere, and ends without putting anything in order: the next one
/// recovers its claims. Whoever stops the server or drops the database waits no longer than 6 s.
const PATIENCE: Duration = Duration::from_millis(4500);

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn webhook_worker_main(argument: pg_sys::Datum) {
    let database = database_from(argument);
    pg_compat::attach_graceful_signal_handlers(PATIENCE);
    let Some(role) = attach(database) else {
        return;
    };
    // SAFETY: the callback stays loaded; the argument is a plain number.
    unsafe { pg_sys::on_shmem_exit(Some(detach), argument) };
    pg_compat::connect_worker_as(role, database);
    store::prepare_session();

    match hold_while_sql_is_of_another_protocol(database) {
        Ok(true) => {}
        Ok(false) => return,
        Err(trouble) => return report_error(database, &trouble.message),
    }
    match Worker::start(database) {
        Ok(Some(mut worker)) => worker.run(),
        Ok(None) => leave_without_extension(database),
        Err(trouble) => report_error(database, &trouble.message),
    }
}

fn database_from(argument: pg_sys::Datum) -> pg_sys::Oid {
    pg_sys::Oid::from(argument.value() as u32)
}

/// Takes the database's slot, and says as which role to connect; not if another worker has it or a command wants the
/// database for itself.
fn attach(database: pg_sys::Oid) -> Option<pg_sys::Oid> {
    shmem::write(|registry| {
        let slot = registry.slot_mut(database)?;
        if slot.worker_pid != 0 {
            return None;
        }
        if slot.stopped_for != 0 {
            slot.say(State::Unexamined, "");
            return None;
        }
        // SAFETY: a plain read, on the main thread.
        slot.worker_pid = unsafe { pg_sys::MyProcPid };
        slot.worker_proc = pg_compat::my_proc_number();
        // An end counts as a failure until a turn has succeeded.
        slot.failures += 1;
        Some(slot.role)
    })
}

#[pg_guard]
unsafe extern "C-unwind" fn detach(_code: i32, argument: pg_sys::Datum) {
    launcher::worker_ended(database_from(argument));
}

/// Calls nothing but what it asks for the protocol; says so, and looks again at every poll. Not whether there is an extension:
/// the next step does. Says whether there is one to take.
fn hold_while_sql_is_of_another_protocol(database: pg_sys::Oid) -> Result<bool, Trouble> {
    let mut held = None;
    loop {
        let found = store::transaction(|client| match store::find_extension(client)? {
            Some(_) => store::protocol(client).map(Some),
            None => Ok(None),
        })?;
        let Some(problem) = found.and_then(protocol::problem) else {
            return Ok(true);
        };
        if found != held {
            held = found;
            notice::warn(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("webhook worker delivers nothing: {problem}"),
                "",
            );
            say(database, |slot| {
                slot.say(State::Held, &problem);
                slot.failures = 0;
            });
            wake::launcher();
        }
        wake::wait_for_latch(Settings::current().poll_interval);
        serve_interrupts();
        settings::reload_if_asked();
        if heed_termination().is_err() || is_wanted(database) {
            return Ok(false);
        }
    }
}

/// Whether a command wants the database for itself.
fn is_wanted(database: pg_sys::Oid) -> bool {
    shmem::read(|registry| {
        registry
            .slot(database)
            .is_some_and(|slot| slot.stopped_for != 0)
    })
}

/// First nobody finds a worker here any more, then one last look: whoever created the extension before that
/// is seen now, and whoever does it later asks the launcher.
fn leave_without_extension(database: pg_sys::Oid) {
    say(database, |slot| {
        slot.worker_proc = shmem::NO_PROC;
        slot.failures = 0;
        slot.say(State::NoExtension, "");
    });
    if matches!(
        store::transaction(|client| store::find_extension(client)),
        Ok(Some(_))
    ) {
        say(database, |slot| slot.say(State::Unexamined, ""));
    }
}

fn say(database: pg_sys::Oid, change: impl FnOnce(&mut Slot)) {
    shmem::write(|registry| registry.slot_mut(database).map(change));
}

fn report_error(database: pg_sys::Oid, message: &str) {
    say(database, |slot| {
        slot.last_error = Text::new(message);
        // SAFETY: reads the clock.
        slot.last_error_at = unsafe { pg_sys::GetCurrentTimestamp() };
    });
    warning!("webhook worker: {message}");
}

/// Why the main loop ends.
enum End {
    /// It was told to, or it needs to begin anew: the launcher starts the next one at once.
    Stop,
    ExtensionGone,
    /// What is out cannot be settled: the worker that comes when both are of one protocol again recovers it.
    OtherProtocol,
}

struct Worker {
    database: pg_sys::Oid,
    extension: Extension,
    settings: Settings,
    setup: Setup,
    pool: Pool,
    /// Taken when first something may be claimed.
    instance: Option<i32>,
    ledger: Ledger,
    agenda: Agenda,
    tally: Tally,
    retention: Retention,
    recovery: Recovery,
    next_survey: Instant,
    next_expiry: Instant,
    /// Nothing where there is nothing to tell.
    next_alerts: Option<Instant>,
    last_alerts: Instant,
    next_turning_away: Instant,
    foreign_endpoints: i64,
    is_without_site: bool,
    longest_request: Duration,
    errors_in_a_row: u32,
    reruns: u32,
    /// When to look whether there is memory again, where it is short.
    next_reserve: Option<Instant>,
    /// Bytes of payload that may be in flight.
    most_bytes: usize,
    /// Bytes of payload since memory was last given back.
    burst: usize,
    reported: Option<(State, i32)>,
}

impl Worker {
    fn start(database: pg_sys::Oid) -> Result<Option<Self>, Trouble> {
        let Some(extension) = store::transaction(|client| store::find_extension(client))? else {
            return Ok(None);
        };
        let settings = settings_within_limits();
        store::transaction(store::recognise_installation)?;
        let setup = Setup {
            network: settings.network.clone(),
            roots: load_roots(settings.ca_file.as_deref())
                .or_else(|| Roots::load(None).ok())
                .unwrap_or_default(),
        };
        memory::take_reserve();
        let pool = Pool::start(setup.clone()).map_err(|error| Trouble {
            code: PgSqlErrorCode::ERRCODE_INSUFFICIENT_RESOURCES,
            message: format!("cannot start the thread that sends requests: {error}"),
        })?;
        Ok(Some(Worker {
            database,
            extension,
            settings,
            setup,
            pool,
            instance: None,
            ledger: Ledger::default(),
            agenda: Agenda::default(),
            tally: Tally::default(),
            retention: Retention::default(),
            recovery: Recovery::default(),
            next_survey: Instant::now(),
            next_expiry: Instant::now(),
            next_alerts: None,
            last_alerts: Instant::now(),
            next_turning_away: Instant::now(),
            foreign_endpoints: 0,
            is_without_site: false,
            longest_request: Duration::ZERO,
            errors_in_a_row: 0,
            reruns: 0,
            next_reserve: None,
            most_bytes: shortage::MOST_BYTES,
            burst: 0,
            reported: None,
        }))
    }

    fn run(&mut self) {
        log!(
            "webhook worker for database \"{}\" started",
            self.extension.database
        );
        let end = loop {
            match self.turn() {
                Err(end) => break end,
                Ok(pause) => {
                    if let Some(end) = self.wait(pause) {
                        break end;
                    }
                }
            }
        };
        match end {
            End::Stop => {
                self.shut_down();
                say(self.database, |slot| slot.failures = 0);
                log!(
                    "webhook worker for database \"{}\" stopped",
                    self.extension.database
                );
            }
            End::ExtensionGone => {
                self.pool.abort();
                leave_without_extension(self.database);
                log!(
                    "webhook worker for database \"{}\" ended: the extension was dropped",
                    self.extension.database
                );
            }
            End::OtherProtocol => {
                self.pool.abort();
                say(self.database, |slot| slot.failures = 0);
            }
        }
    }

    /// Sleeps until a commit, an outcome, a signal, or the end of the pause.
    fn wait(&mut self, pause: Duration) -> Option<End> {
        if pause > Duration::from_millis(100) {
            store::flush_statistics();
            self.give_back_memory();
        }
        if wait_for_latch_or(&self.pool, pause) {
            self.agenda.woken();
        }
        serve_interrupts();
        if let Err(end) = heed_termination() {
            return Some(end);
        }
        if settings::reload_if_asked() {
            self.settings = settings_within_limits();
            self.set_up();
            self.next_survey = Instant::now();
        }
        is_wanted(self.database).then_some(End::Stop)
    }

    /// The networks change even where the file of certificate authorities cannot be loaded.
    fn set_up(&mut self) {
        let setup = Setup {
            network: self.settings.network.clone(),
            roots: load_roots(self.settings.ca_file.as_deref())
                .unwrap_or_else(|| self.setup.roots.clone()),
        };
        // A setup of its own closes the idle connections.
        if setup != self.setup {
            self.pool.set_up(setup.clone());
            self.setup = setup;
        }
    }

    /// Gives what is in flight a short time, and the rest back as if it had never been claimed.
    fn shut_down(&mut self) {
        for key in self.pool.withdraw(|_| true) {
            self.ledger.end(Ending::released(key));
        }
        self.settle_within(LAST_SETTLING);
        self.collect_within(GRACE);
        self.pool.abort();
        self.collect_within(INTERRUPTION);
        for key in self.ledger.keys_out() {
            self.ledger.end(Ending::released(key));
        }
        self.settle_within(LAST_SETTLING);
        if let Err(trouble) = self.flush_tally() {
            report_error(self.database, &trouble.message);
        }
        self.end_instance();
    }

    fn collect_within(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        loop {
            for outcome in self.pool.take_outcomes() {
                self.ledger.end(released_if_interrupted(outcome));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ledger.out() == 0 {
                return;
            }
            wait_for_latch_or(&self.pool, left);
            serve_interrupts();
        }
    }

    /// What cannot be settled now is recovered by the next worker.
    fn settle_within(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while self.ledger.has_endings() && Instant::now() < deadline {
            match self.settle() {
                Ok(()) if !self.ledger.has_endings() => return,
                Ok(()) => _ = wait_for_latch_or(&self.pool, Duration::from_millis(20)),
                Err(trouble) if trouble.is_passing() => {}
                Err(trouble) => return report_error(self.database, &trouble.message),
            }
            serve_interrupts();
        }
    }
}

fn load_roots(ca_file: Option<&Path>) -> Option<Roots> {
    Roots::load(ca_file)
        .inspect_err(|problem| {
            notice::warn(
                PgSqlErrorCode::ERRCODE_CONFIG_FILE_ERROR,
                format!("webhook.ca_file could not be loaded: {problem}"),
                "Correct it and reload the configuration. Until then the worker trusts whom it trusted before, \
                 and a new one the certificate authorities of the system alone.",
            );
        })
        .ok()
}

/// Trouble of our own while shutting down is the shutdown itself.
fn released_if_interrupted(outcome: Outcome) -> Ending {
    match &outcome.result {
        Err(failure) if failure.kind == FailureKind::Local => Ending::released(outcome.key),
        _ => Ending::from(outcome),
    }
}

/// Waits for the latch or for outcomes; says whether it was the latch.
fn wait_for_latch_or(pool: &Pool, timeout: Duration) -> bool {
    let events = pg_sys::WL_LATCH_SET
        | pg_sys::WL_SOCKET_READABLE
        | pg_sys::WL_TIMEOUT
        | pg_sys::WL_EXIT_ON_PM_DEATH;
    let milliseconds = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128);
    // SAFETY: the latch is this process's own, and the pool keeps its socket open as long as it lives.
    unsafe {
        let happened = pg_sys::WaitLatchOrSocket(
            pg_sys::MyLatch,
            events as i32,
            pool.wake_fd(),
            milliseconds as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
        happened as u32 & pg_sys::WL_LATCH_SET != 0
    }
}

/// Asked between the steps of a turn: where somebody has locked our tables each step takes a while.
fn heed_termination() -> Result<(), End> {
    match pg_compat::is_terminated() {
        true => Err(End::Stop),
        false => Ok(()),
    }
}

/// Barriers and the like.
fn serve_interrupts() {
    pg_compat::forget_cancellation();
    check_for_interrupts!();
}

/// Each request has a connection in use and may leave one idle; they must stay below the limit of open files,
/// with room for the files of the server.
fn settings_within_limits() -> Settings {
    const FILES_OF_THE_SERVER: u64 = 256;
    let mut settings = Settings::current();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the struct that it is given.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return settings;
    }
    let wanted = settings.max_in_flight;
    let allowed = (limit.rlim_cur.saturating_sub(FILES_OF_THE_SERVER) / 2).clamp(1, 1024) as usize;
    if allowed < wanted {
        warning!(
            "webhook.max_in_flight is {wanted}, but the limit of open files (ulimit -n {}) allows {allowed}",
            limit.rlim_cur
        );
    }
    settings.max_in_flight = wanted.min(allowed);
    settings
}
