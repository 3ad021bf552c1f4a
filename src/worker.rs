//! The life of a worker: the process that delivers the webhooks of one database.
//!
//! It hosts the engine. The main thread is the only one that touches Postgres, and it never blocks on anything but
//! its latch and the socket of the pool. Requests are sent by the pool's thread; no transaction is open meanwhile.

mod open_files;
mod shortage;
mod wait_set;

use crate::launcher;
use crate::memory;
use crate::notice;
use crate::pg_compat;
use crate::settings::per_database::ServerSettings;
use crate::settings::{self, Settings};
use crate::shmem::{self, Slot, State, Text};
use crate::store::{self, SpiConnection};
use crate::told::Told;
use crate::wake;
use pgrx::prelude::*;
use shortage::Shortage;
use std::path::Path;
use std::time::{Duration, Instant};
use wait_set::WaitSet;
use webhook_delivery::{Pool, Roots, Setup};
use webhook_engine::{
    Config, End, Engine, Examined, Hold, Identity, Notice, Program, SqlStore, Store, Trouble, Wake,
    protocol_problem,
};

/// When the worker is told to stop, requests in flight get this long to end by themselves. With the settling that
/// follows, it is 3 s as a rule.
const GRACE: Duration = Duration::from_secs(2);
/// A worker that has not ended by then is stuck somewhere, and ends without putting anything in order: the next one
/// recovers its claims. A stop of the server and DROP DATABASE wait no longer than 6 s.
const PATIENCE: Duration = Duration::from_millis(4500);
/// A worker that sleeps no longer than this is busy.
const SHORT: Duration = Duration::from_millis(100);
/// The least time between two reads of the settings of database and role: a role that changes them in a loop does not
/// keep the worker busy.
const SETTINGS_INTERVAL: Duration = Duration::from_secs(1);
/// A database that has made room for others gets a worker after this time for its upkeep, if nothing is due and no
/// commit wakes it before.
const LONGEST_ABSENCE: Duration = Duration::from_secs(60);
/// The beginning of the server's timestamps, in seconds since 1970.
const EPOCH: f64 = 946_684_800.0;

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
    let session = Session {
        of_the_server: ServerSettings::note(),
        read_at: None,
    };
    pg_compat::connect_worker_as(role, database);
    store::prepare_session();

    survey_if_wanted(database);

    let mut store = SqlStore::new(
        SpiConnection::default(),
        Identity {
            kind: "worker",
            host: None,
            version: env!("CARGO_PKG_VERSION"),
        },
    );
    match find_sql_that_can_be_worked_with(&mut store, database) {
        Ok(Found::Sql(examined)) => match Worker::start(database, session, store, examined) {
            Ok(mut worker) => worker.run(),
            Err(trouble) => report_error(database, &trouble.message),
        },
        Ok(Found::Nothing) => leave_without_extension(&mut store, database),
        Ok(Found::Interrupted) => {}
        Err(trouble) => report_error(database, &trouble.message),
    }
}

fn database_from(argument: pg_sys::Datum) -> pg_sys::Oid {
    pg_sys::Oid::from(argument.value() as u32)
}

/// Takes the database's slot, and says which role to connect as; not if another worker has it or a command wants the
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
        // The next worker is new, and looks at everything.
        *slot = Slot {
            told: Told::NOTHING,
            settings_changed: false,
            at_work_since: None,
            is_idle: false,
            asked_for_room_at: None,
            due_at: Duration::ZERO,
            ..*slot
        };
        // SAFETY: a plain read, on the main thread.
        slot.worker_pid = unsafe { pg_sys::MyProcPid };
        slot.worker_proc = pg_compat::my_proc_number();
        // An end counts as a failure until a turn has succeeded.
        slot.failures += 1;
        Some(slot.role)
    })
}

/// Tells the launcher which databases have the extension, where it wants to know.
fn survey_if_wanted(database: pg_sys::Oid) {
    if !shmem::read(|registry| registry.survey_wanted) {
        return;
    }
    match store::survey() {
        Ok(found) => shmem::write(|registry| {
            let found = found.into_iter();
            let without_slot = found.filter(|oid| registry.slot_or_new(*oid).is_none());
            registry.unserved = without_slot.count();
            registry.survey_wanted = false;
        }),
        // The launcher asks again.
        Err(trouble) => return report_error(database, &trouble.message),
    }
    wake::launcher();
}

#[pg_guard]
unsafe extern "C-unwind" fn detach(_code: i32, argument: pg_sys::Datum) {
    launcher::worker_ended(database_from(argument));
}

enum Found {
    Sql(Examined),
    Nothing,
    Interrupted,
}

/// While SQL is of another protocol the worker calls nothing of it; it says so, and looks again at every poll.
fn find_sql_that_can_be_worked_with(
    store: &mut SqlStore<SpiConnection>,
    database: pg_sys::Oid,
) -> Result<Found, Trouble> {
    let mut held = None;
    loop {
        let Some(examined) = store.examine()? else {
            return Ok(Found::Nothing);
        };
        let Some(problem) = protocol_problem(Program::Library, examined.protocol) else {
            return Ok(Found::Sql(examined));
        };
        if held.replace(examined.protocol) != Some(examined.protocol) {
            notice::warn(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("webhook worker delivers nothing: {problem}"),
                "",
            );
            say(database, |slot| {
                slot.say(State::Held, &problem);
                slot.failures = 0;
                let now = shmem::monotonic_now();
                slot.at_work_since = Some(now);
                slot.is_idle = true;
                slot.due_at = now + LONGEST_ABSENCE;
            });
            wake::launcher();
        }
        wake::wait_for_latch(Settings::current().poll_interval);
        serve_interrupts();
        settings::reload_if_asked();
        survey_if_wanted(database);
        if pg_compat::is_terminated() || call(database).is_some() {
            return Ok(Found::Interrupted);
        }
    }
}

enum Call {
    /// A command wants the database for itself.
    Leave,
    /// Other databases wait for a process.
    MakeRoom,
}

fn call(database: pg_sys::Oid) -> Option<Call> {
    shmem::read(|registry| {
        let slot = registry.slot(database)?;
        if slot.stopped_for != 0 {
            return Some(Call::Leave);
        }
        slot.asked_for_room_at.map(|_| Call::MakeRoom)
    })
}

/// First the worker leaves its slot, then it looks once more: it sees an extension that was created before that now,
/// and a later CREATE EXTENSION asks the launcher.
fn leave_without_extension(store: &mut SqlStore<SpiConnection>, database: pg_sys::Oid) {
    say(database, |slot| {
        slot.worker_proc = shmem::NO_PROC;
        slot.failures = 0;
        slot.say(State::NoExtension, "");
    });
    if matches!(store.examine(), Ok(Some(_))) {
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

/// The settings that the worker has applied when it connected, or since.
struct Session {
    of_the_server: ServerSettings,
    /// When it last read them again; `None` if it has not since it connected.
    read_at: Option<Instant>,
}

impl Session {
    /// The time after which changed settings have to be read; `None` if nothing has changed.
    fn next_read(&self, database: pg_sys::Oid) -> Option<Duration> {
        let is_changed = |slot: &Slot| slot.settings_changed;
        shmem::read(|registry| registry.slot(database).is_some_and(is_changed)).then(|| {
            let since = self.read_at.map(|read_at| read_at.elapsed());
            since.map_or(Duration::ZERO, |since| {
                SETTINGS_INTERVAL.saturating_sub(since)
            })
        })
    }

    /// Applies settings of the database or the role that were changed since, if it is time; returns whether it did.
    fn apply_changes(&mut self, database: pg_sys::Oid) -> Result<bool, Trouble> {
        if self.next_read(database) != Some(Duration::ZERO) {
            return Ok(false);
        }
        // What is committed from here on is read the next time.
        say(database, |slot| slot.settings_changed = false);
        self.read_at = Some(Instant::now());
        let applied = store::apply_settings(&self.of_the_server);
        if applied.is_err() {
            say(database, |slot| slot.settings_changed = true);
        }
        applied.map(|()| true)
    }
}

struct Worker {
    database: pg_sys::Oid,
    session: Session,
    name: String,
    settings: Settings,
    setup: Setup,
    engine: Engine<SqlStore<SpiConnection>, Pool>,
    shortage: Shortage,
    waits: WaitSet,
    /// Whether it claims nothing more, and leaves when nothing is in flight.
    makes_room: bool,
    reported: Option<(State, i32, bool)>,
}

impl Worker {
    fn start(
        database: pg_sys::Oid,
        session: Session,
        store: SqlStore<SpiConnection>,
        examined: Examined,
    ) -> Result<Self, Trouble> {
        let settings = Settings::current();
        store::recognise_installation()?;
        let setup = Setup {
            network: settings.network.clone(),
            roots: load_roots(settings.ca_file.as_deref())
                .or_else(|| Roots::load(None).ok())
                .unwrap_or_default(),
        };
        memory::take_reserve();
        let config = config(&settings);
        let pool = Pool::start(setup.clone()).map_err(|error| {
            let message = format!("cannot start the thread that sends requests: {error}");
            Trouble::new("53000", message)
        })?;
        let waits = WaitSet::of(pool.wake_fd());
        Ok(Worker {
            database,
            session,
            name: examined.database.clone(),
            settings,
            setup,
            engine: Engine::new(
                store,
                pool,
                config,
                examined.installation,
                examined.database,
            ),
            shortage: Shortage::default(),
            waits,
            makes_room: false,
            reported: None,
        })
    }

    fn run(&mut self) {
        log!("webhook worker for database \"{}\" started", self.name);
        loop {
            self.shortage.look_for_memory(&mut self.engine, &self.name);
            let hold = self.hold();
            self.engine.hold(hold.map(|(hold, _, _)| hold));
            let turned = self.engine.turn();
            self.tell_notices();
            match turned {
                Ok(pause) => {
                    self.report_state(pause);
                    if self.wait(pause) {
                        return self.stop();
                    }
                }
                Err(End::Replaced) => return self.stop(),
                Err(End::Gone) => {
                    self.engine.abort();
                    leave_without_extension(self.engine.store(), self.database);
                    log!(
                        "webhook worker for database \"{}\" ended: the extension was dropped",
                        self.name
                    );
                    return;
                }
                Err(End::OtherProtocol) => {
                    self.engine.abort();
                    return say(self.database, |slot| slot.failures = 0);
                }
            }
        }
    }

    /// Sleeps until a commit, an outcome, a signal, or the end of the pause; says whether it is to stop.
    fn wait(&mut self, pause: Duration) -> bool {
        let pause = self.shortage.pause(pause);
        let next_read = self.session.next_read(self.database);
        let pause = next_read.map_or(pause, |next_read| pause.min(next_read));
        if pause > SHORT {
            store::flush_statistics();
            self.shortage.give_back_memory(self.engine.in_flight());
        }
        if pg_compat::is_terminated() || self.has_made_room() {
            return true;
        }
        if self.waits.wait(pause) {
            self.hear();
        }
        serve_interrupts();
        let is_changed = self
            .session
            .apply_changes(self.database)
            .unwrap_or_else(|trouble| {
                report_error(self.database, &trouble.message);
                false
            });
        if settings::reload_if_asked() || is_changed {
            self.settings = Settings::current();
            self.engine.configure(config(&self.settings));
            self.set_up();
        }
        survey_if_wanted(self.database);
        let call = call(self.database);
        self.makes_room = matches!(call, Some(Call::MakeRoom));
        pg_compat::is_terminated() || matches!(call, Some(Call::Leave)) || self.has_made_room()
    }

    fn has_made_room(&self) -> bool {
        self.makes_room && self.engine.in_flight() == 0
    }

    /// Takes the messages of commits.
    fn hear(&mut self) {
        let told = shmem::write(|registry| {
            let slot = registry.slot_mut(self.database)?;
            Some(std::mem::replace(&mut slot.told, Told::NOTHING))
        });
        let Some(told) = told else { return };
        if told.is_anything() {
            self.engine.tell_of_commit(Wake::Anything);
        }
        // SAFETY: reads the clock.
        let now = unsafe { pg_sys::GetCurrentTimestamp() };
        for (id, due_at) in told.endpoints() {
            if *id < 0 {
                self.engine.tell_of_commit(Wake::Changed { id: -id });
                continue;
            }
            let microseconds = due_at.saturating_sub(now).max(0);
            self.engine.tell_of_commit(Wake::Endpoint {
                id: *id,
                due_in: Duration::from_micros(microseconds as u64),
                position: *due_at as f64 / 1e6 + EPOCH,
            });
        }
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
            self.engine.wire().set_up(setup.clone());
            self.setup = setup;
        }
    }

    /// Why nothing is claimed now, if so.
    fn hold(&self) -> Option<(Hold, State, &'static str)> {
        if !self.settings.enabled {
            let hold = match is_read_only() {
                true => Hold::Writing,
                false => Hold::Claiming,
            };
            Some((hold, State::Disabled, "webhook.enabled is off"))
        } else if self.settings.max_in_flight == 0 {
            let reason = "webhook.max_in_flight is 0, so that relays deliver";
            Some((Hold::Claiming, State::Held, reason))
        } else if is_read_only() {
            let reason = "default_transaction_read_only is on";
            Some((Hold::Writing, State::Held, reason))
        } else if memory::is_short() {
            let reason = "memory is short; it goes on when there is some again";
            Some((Hold::Claiming, State::Held, reason))
        } else if self.makes_room {
            Some((Hold::Claiming, State::Running, ""))
        } else {
            None
        }
    }

    fn report_state(&mut self, pause: Duration) {
        let (state, reason) = self
            .hold()
            .map_or((State::Running, ""), |(_, state, reason)| (state, reason));
        let in_flight = i32::try_from(self.engine.in_flight()).unwrap_or(i32::MAX);
        let report = (state, in_flight, in_flight == 0 && pause > SHORT);
        let last = self.reported.replace(report);
        let last_state = last.map_or(State::Running, |(state, _, _)| state);
        if last_state != state {
            log!(
                "webhook worker for database \"{}\" is {}{}{reason}",
                self.name,
                state.as_str(),
                if reason.is_empty() { "" } else { ": " }
            );
        }
        if last != Some(report) {
            let (_, _, is_idle) = report;
            pg_compat::report_activity(is_idle, state.as_str(), in_flight);
            say(self.database, |slot| {
                slot.say(state, reason);
                (_, slot.in_flight, slot.is_idle) = report;
                slot.failures = 0;
                slot.at_work_since.get_or_insert_with(shmem::monotonic_now);
            });
        }
        if last.is_none() {
            // The launcher starts the workers one after the other.
            wake::launcher();
        }
    }

    fn tell_notices(&mut self) {
        for notice in self.engine.take_notices() {
            match notice {
                Notice::Error(message) => report_error(self.database, &message),
                Notice::Log(message) => log!("{message}"),
                Notice::Warning {
                    code,
                    message,
                    hint,
                } => notice::warn(sql_error_code(code), message, &hint),
            }
        }
    }

    /// Gives requests in flight a short time, and all other claims back as if they had never been made.
    fn stop(&mut self) {
        let back_in = self.makes_room.then(|| self.absence());
        self.engine.stop(GRACE, |_, left| {
            self.waits.wait(left);
            serve_interrupts();
        });
        self.tell_notices();
        say(self.database, |slot| {
            slot.failures = 0;
            slot.due_at = back_in.map_or(Duration::ZERO, |time| shmem::monotonic_now() + time);
        });
        log!("webhook worker for database \"{}\" stopped", self.name);
    }

    /// How long the database needs no worker.
    fn absence(&self) -> Duration {
        match self.settings.enabled && !is_read_only() {
            true => self.engine.next_due().min(LONGEST_ABSENCE),
            false => LONGEST_ABSENCE,
        }
    }
}

fn config(settings: &Settings) -> Config {
    Config {
        max_in_flight: open_files::allow(settings.max_in_flight),
        poll_interval: settings.poll_interval,
        stale_after: settings.stale_after,
    }
}

fn is_read_only() -> bool {
    // SAFETY: a plain read, on the main thread.
    unsafe { pg_sys::DefaultXactReadOnly }
}

fn sql_error_code(code: &str) -> PgSqlErrorCode {
    match code {
        "55000" => PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        _ => PgSqlErrorCode::ERRCODE_WARNING,
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

fn serve_interrupts() {
    pg_compat::forget_cancellation();
    check_for_interrupts!();
}
