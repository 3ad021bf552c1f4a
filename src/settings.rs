//! The settings, as postgresql.conf knows them.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::pg_sys;
use std::ffi::CString;
use std::time::Duration;

#[derive(PostgresGucEnum, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum KeepAttempts {
    failed,
    all,
}

static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
static SITE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ROLE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static WORKERS: GucSetting<i32> = GucSetting::<i32>::new(64);
static MAX_IN_FLIGHT: GucSetting<i32> = GucSetting::<i32>::new(1024);
static POLL_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static STALE_AFTER_S: GucSetting<i32> = GucSetting::<i32>::new(300);
static MAX_PAYLOAD_BYTES: GucSetting<i32> = GucSetting::<i32>::new(1024 * 1024);
static MAX_RETRY_AFTER_S: GucSetting<i32> = GucSetting::<i32>::new(86_400);
static KEEP_ATTEMPTS: GucSetting<KeepAttempts> =
    GucSetting::<KeepAttempts>::new(KeepAttempts::failed);
static ENGINE: GucSetting<bool> = GucSetting::<bool>::new(false);

pub fn define() {
    GucRegistry::define_bool_guc(
        c"webhook.enabled",
        c"Whether webhooks are delivered on this server.",
        c"When off, events are recorded and wait; what is in flight is finished.",
        &ENABLED,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"webhook.site",
        c"Name of this installation; a copy of the server under another name sends nothing.",
        c"Endpoints belong to the site and database that made them, until webhook_adopt().",
        &SITE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"webhook.role",
        c"Role that the worker acts as; empty for the owner of the extension.",
        c"",
        &ROLE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"webhook.workers",
        c"Number of requests that one database sends at the same time.",
        c"Each takes a thread of the worker and, while it lasts, a socket.",
        &WORKERS,
        1,
        1024,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"webhook.max_in_flight",
        c"Number of deliveries that one database has claimed at the same time.",
        c"Those beyond webhook.workers wait in memory, so that the threads never wait for the queue.",
        &MAX_IN_FLIGHT,
        1,
        100_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"webhook.poll_interval",
        c"Longest time between two looks at the queue.",
        c"Commits wake the worker at once; this is for what cannot.",
        &POLL_INTERVAL_MS,
        10,
        86_400_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"webhook.stale_after",
        c"Age at which a claim that no worker remembers goes back to the queue.",
        c"Keep it well above the timeouts of the policies. Claims of a dead worker do not wait for it.",
        &STALE_AFTER_S,
        1,
        86_400,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"webhook.max_payload",
        c"Largest payload that webhook_emit() accepts, as JSON text.",
        c"",
        &MAX_PAYLOAD_BYTES,
        1024,
        256 * 1024 * 1024,
        GucContext::Suset,
        GucFlags::UNIT_BYTE,
    );
    GucRegistry::define_int_guc(
        c"webhook.max_retry_after",
        c"Longest wait that an endpoint may ask for with Retry-After.",
        c"A longer one is cut to this.",
        &MAX_RETRY_AFTER_S,
        0,
        31_536_000,
        GucContext::Suset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_enum_guc(
        c"webhook.keep_attempts",
        c"Which attempts are written to webhook.attempt.",
        c"",
        &KEEP_ATTEMPTS,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"webhook.engine",
        c"Set by the extension's own functions while they move deliveries.",
        c"",
        &ENGINE,
        GucContext::Userset,
        GucFlags::NO_SHOW_ALL | GucFlags::DISALLOW_IN_FILE,
    );
}

pub fn reserve_prefix() {
    // SAFETY: called once while libraries are preloaded, after our settings are defined.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"webhook".as_ptr()) }
}

/// On SIGHUP, between transactions. Says whether there was something to reload.
pub fn reload_if_asked() -> bool {
    // SAFETY: main thread, outside of any transaction.
    unsafe {
        let asked = pg_sys::ConfigReloadPending != 0;
        if asked {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        asked
    }
}

/// What the worker goes by, copied: settings may only be read on the main thread.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    pub enabled: bool,
    pub role: Option<String>,
    pub workers: usize,
    pub max_in_flight: usize,
    pub poll_interval: Duration,
    pub stale_after: Duration,
}

impl Settings {
    pub fn current() -> Self {
        let positive = |value: i32| usize::try_from(value).unwrap_or(1);
        Settings {
            enabled: ENABLED.get(),
            role: ROLE
                .get()
                .map(|role| role.to_string_lossy().into_owned())
                .filter(|role| !role.is_empty()),
            workers: positive(WORKERS.get()),
            max_in_flight: positive(MAX_IN_FLIGHT.get()),
            poll_interval: Duration::from_millis(positive(POLL_INTERVAL_MS.get()) as u64),
            stale_after: Duration::from_secs(positive(STALE_AFTER_S.get()) as u64),
        }
    }
}
