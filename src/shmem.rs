//! Messages between the launcher, the workers and the backends: one slot per database.

use crate::told::Told;
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgLwLock, pg_shmem_init};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most databases that are served.
pub const MAX_DATABASES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No worker has been started yet, or somebody asked to look again.
    Unexamined,
    /// The postmaster has been asked for a worker.
    Starting,
    Running,
    /// The worker is there and sends nothing; the reason says why.
    Held,
    Disabled,
    NoExtension,
    /// The worker has ended and is to come back.
    Stopped,
    /// The postmaster has no room for a worker: the database waits for its turn.
    NoRoom,
    /// The role that the worker connects as is not safe, or may not connect; the reason says what helps.
    Refused,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Unexamined | State::Starting => "starting",
            State::Running => "running",
            State::Held => "held",
            State::Disabled => "disabled",
            State::NoExtension => "no worker",
            State::Stopped => "restarting",
            State::NoRoom | State::Refused => "no worker",
        }
    }
}

/// A short text that lives in shared memory; longer ones are cut.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    length: usize,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    const EMPTY: Self = Text {
        length: 0,
        bytes: [0; N],
    };

    pub fn new(text: &str) -> Self {
        let mut length = text.len().min(N);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut bytes = [0; N];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Text { length, bytes }
    }

    pub fn to_option(self) -> Option<String> {
        let text = std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

#[derive(Clone, Copy)]
pub struct Slot {
    pub database: pg_sys::Oid,
    pub state: State,
    pub reason: Text<400>,
    /// The worker connects as this role.
    pub role: pg_sys::Oid,
    /// Zero where no worker is attached.
    pub worker_pid: i32,
    pub worker_proc: i32,
    pub in_flight: i32,
    pub last_error: Text<400>,
    pub last_error_at: pg_sys::TimestampTz,
    /// When the launcher asked for the worker, or the worker ended; nothing where neither has happened yet. By
    /// `monotonic_now()`: the clock on the wall may be set.
    pub changed_at: Option<Duration>,
    /// Since when a worker has been at work, or had this turn; by the same clock, as all fields that follow.
    pub at_work_since: Option<Duration>,
    /// Whether nothing is in flight and nothing due.
    pub is_idle: bool,
    /// When the launcher asked the worker to make room for other databases.
    pub asked_for_room_at: Option<Duration>,
    /// When a database whose worker has made room needs one again.
    pub due_at: Duration,
    /// Starts in a row that ended in an error.
    pub failures: u32,
    /// The pid of a backend that is about to drop, rename, move or copy the database; no worker until it is done.
    pub stopped_for: i32,
    /// Messages of commits, since the worker last took them.
    pub told: Told,
    /// Whether a commit has changed settings of databases or roles since the worker last read them.
    pub settings_changed: bool,
}

impl Slot {
    pub const FREE: Self = Slot {
        database: pg_sys::InvalidOid,
        state: State::Unexamined,
        reason: Text::EMPTY,
        role: pg_sys::InvalidOid,
        worker_pid: 0,
        worker_proc: NO_PROC,
        in_flight: 0,
        last_error: Text::EMPTY,
        last_error_at: 0,
        changed_at: None,
        at_work_since: None,
        is_idle: false,
        asked_for_room_at: None,
        due_at: Duration::ZERO,
        failures: 0,
        stopped_for: 0,
        told: Told::NOTHING,
        settings_changed: false,
    };

    pub fn say(&mut self, state: State, reason: &str) {
        self.state = state;
        self.reason = Text::new(reason);
    }
}

pub const NO_PROC: i32 = -1;

/// The time since some moment that is the same for all processes.
pub fn monotonic_now() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct that it is given; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[derive(Clone, Copy)]
pub struct Registry {
    pub launcher_proc: i32,
    /// Whether the launcher does not know of all databases whether they have the extension.
    pub survey_wanted: bool,
    /// The most workers at a time since there is no room for all; zero where there is.
    pub places: usize,
    /// Databases that have the extension and found no slot.
    pub unserved: usize,
    slots: [Slot; MAX_DATABASES],
}

// SAFETY: plain data without pointers; every access is under the lock.
unsafe impl PGRXSharedMemory for Registry {}

impl Default for Registry {
    fn default() -> Self {
        Registry {
            launcher_proc: NO_PROC,
            survey_wanted: false,
            places: 0,
            unserved: 0,
            slots: [Slot::FREE; MAX_DATABASES],
        }
    }
}

impl Registry {
    pub fn slot(&self, database: pg_sys::Oid) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.database == database)
    }

    pub fn slot_mut(&mut self, database: pg_sys::Oid) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.database == database)
    }

    /// The database's slot, taken now if it has none; nothing where all are taken.
    pub fn slot_or_new(&mut self, database: pg_sys::Oid) -> Option<&mut Slot> {
        let index = self
            .slots
            .iter()
            .position(|slot| slot.database == database)
            .or_else(|| {
                self.slots
                    .iter()
                    .position(|slot| slot.database == pg_sys::InvalidOid)
            })?;
        let slot = &mut self.slots[index];
        if slot.database != database {
            *slot = Slot {
                database,
                ..Slot::FREE
            };
        }
        Some(slot)
    }

    pub fn free(&mut self, database: pg_sys::Oid) {
        if let Some(slot) = self.slot_mut(database) {
            *slot = Slot::FREE;
        }
    }

    pub fn workers(&self) -> usize {
        self.slots().filter(|slot| slot.worker_pid != 0).count()
    }

    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots
            .iter()
            .filter(|slot| slot.database != pg_sys::InvalidOid)
    }

    pub fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots
            .iter_mut()
            .filter(|slot| slot.database != pg_sys::InvalidOid)
    }

    /// Whether another database could have no slot.
    pub fn is_full(&self) -> bool {
        self.slots().count() == MAX_DATABASES
    }

    /// Frees the slots of databases that are gone, and of databases without the extension; returns the latter.
    pub fn free_unneeded(&mut self, exists: impl Fn(pg_sys::Oid) -> bool) -> Vec<pg_sys::Oid> {
        let mut without = Vec::new();
        for slot in self.slots_mut().filter(|slot| slot.worker_pid == 0) {
            let has_none = slot.state == State::NoExtension && slot.stopped_for == 0;
            if has_none {
                without.push(slot.database);
            }
            if has_none || !exists(slot.database) {
                *slot = Slot::FREE;
            }
        }
        without
    }
}

// SAFETY: the name is the extension's own.
static REGISTRY: PgLwLock<Registry> = unsafe { PgLwLock::new(c"webhook_registry") };

static RESERVED: AtomicBool = AtomicBool::new(false);

/// Called while the server preloads libraries.
pub fn reserve() {
    pg_shmem_init!(REGISTRY);
    RESERVED.store(true, Ordering::Relaxed);
}

pub fn is_preloaded() -> bool {
    RESERVED.load(Ordering::Relaxed)
}

/// Only where `is_preloaded()`.
pub fn read<R>(look: impl FnOnce(&Registry) -> R) -> R {
    look(&REGISTRY.share())
}

/// Only where `is_preloaded()`.
pub fn write<R>(change: impl FnOnce(&mut Registry) -> R) -> R {
    change(&mut REGISTRY.exclusive())
}
