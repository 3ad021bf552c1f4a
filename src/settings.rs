//! The settings, as postgresql.conf knows them.

pub mod per_database;

use crate::notice;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::{PgSqlErrorCode, pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use webhook_delivery::{Network, Networks, Ports, RequireHttps};

/// The bytes that a list of networks or ports may have.
const MAX_LIST_BYTES: usize = 256 * 1024;

#[derive(PostgresGucEnum, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum KeepAttempts {
    failed,
    all,
}

#[derive(PostgresGucEnum, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum HttpsRequired {
    on,
    public,
    off,
}

static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
static SITE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ALLOW_NETWORKS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static TENANT_NETWORKS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static DENY_NETWORKS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ALLOW_PORTS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"80, 443, 1024-65535"));
static REQUIRE_HTTPS: GucSetting<HttpsRequired> =
    GucSetting::<HttpsRequired>::new(HttpsRequired::public);
static CA_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static MAX_IN_FLIGHT: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static SENDERS: GucSetting<i32> = GucSetting::<i32>::new(1);
static POLL_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static STALE_AFTER_S: GucSetting<i32> = GucSetting::<i32>::new(300);
static MAX_PAYLOAD_BYTES: GucSetting<i32> = GucSetting::<i32>::new(1024 * 1024);
static RETENTION_SENT_MIN: GucSetting<i32> = GucSetting::<i32>::new(7 * 24 * 60);
static RETENTION_FAILED_MIN: GucSetting<i32> = GucSetting::<i32>::new(30 * 24 * 60);
static IDEMPOTENCY_WINDOW_S: GucSetting<i32> = GucSetting::<i32>::new(24 * 60 * 60);
static KEEP_ATTEMPTS: GucSetting<KeepAttempts> =
    GucSetting::<KeepAttempts>::new(KeepAttempts::failed);

pub fn define() {
    GucRegistry::define_bool_guc(
        c"webhook.enabled",
        c"Whether webhooks are delivered on this server.",
        c"When off, events are recorded and wait; requests in flight end.",
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
    // SAFETY: the hooks are guarded against panics.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"webhook.allow_networks",
            c"Networks of special purpose that endpoints without a tenant may be in, such as 10.0.0.0/8, fd00::/8.",
            c"Public addresses need not be listed. Without an entry no private, local or own address is dialled.",
            &ALLOW_NETWORKS,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_networks),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"webhook.tenant_networks",
            c"Networks of special purpose that endpoints of tenants may be in.",
            c"What webhook.allow_networks lists is not open to them.",
            &TENANT_NETWORKS,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_networks),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"webhook.deny_networks",
            c"Networks that no endpoint may be in, public or not.",
            c"Takes precedence over webhook.allow_networks and webhook.tenant_networks.",
            &DENY_NETWORKS,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_networks),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"webhook.allow_ports",
            c"Ports that endpoints may have, such as 443, 8000-8999.",
            c"",
            &ALLOW_PORTS,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_ports),
            None,
            None,
        );
    }
    GucRegistry::define_enum_guc(
        c"webhook.require_https",
        c"Where plain http is refused: on everywhere, public outside webhook.allow_networks, off nowhere.",
        c"For endpoints of tenants, public is outside webhook.tenant_networks.",
        &REQUIRE_HTTPS,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"webhook.ca_file",
        c"File with certificate authorities, in PEM format, that are trusted beside those of the system.",
        c"A relative path begins at the data directory. A reload reads the file again.",
        &CA_FILE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"webhook.max_in_flight",
        c"Number of requests that the worker of a database sends at the same time; 0 leaves it to relays.",
        c"Each takes a socket while it lasts, and may leave one open for the next.",
        &MAX_IN_FLIGHT,
        0,
        100_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"webhook.senders",
        c"Number of shares that the endpoints of a database are divided into, each with a sender of its own.",
        c"A sender is the worker of the server or a relay. One that is alone serves all shares.",
        &SENDERS,
        1,
        64,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"webhook.poll_interval",
        c"Longest time between two looks at the queue.",
        c"Commits wake the worker at once; a look finds deliveries of which no commit told.",
        &POLL_INTERVAL_MS,
        10,
        86_400_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"webhook.stale_after",
        c"Age at which an orphaned claim goes back to the queue.",
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
        c"webhook.retention_sent",
        c"Time for which deliveries are kept after they were sent or cancelled, and events that no delivery needs.",
        c"-1 keeps them for ever.",
        &RETENTION_SENT_MIN,
        -1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_int_guc(
        c"webhook.retention_failed",
        c"Time for which deliveries are kept in webhook.dead_letter.",
        c"-1 keeps them for ever.",
        &RETENTION_FAILED_MIN,
        -1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_int_guc(
        c"webhook.idempotency_window",
        c"Time for which an idempotency key stands for the event that was emitted with it.",
        c"",
        &IDEMPOTENCY_WINDOW_S,
        1,
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
}

pub fn reserve_prefix() {
    // SAFETY: called once while libraries are preloaded, after our settings are defined.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"webhook".as_ptr()) }
}

#[pg_guard]
unsafe extern "C-unwind" fn check_networks(
    new_value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: as the caller of a check hook guarantees.
    unsafe { is_valid::<Networks>(*new_value) }
}

#[pg_guard]
unsafe extern "C-unwind" fn check_ports(
    new_value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: as the caller of a check hook guarantees.
    unsafe { is_valid::<Ports>(*new_value) }
}

/// Leaves the problem as the DETAIL of the server's message. While the server starts it would only warn, and would
/// not deny networks that the administrator meant to deny: then it does not start.
///
/// # Safety
/// `value` is a C string, and this is the main thread.
unsafe fn is_valid<T: FromStr<Err = String>>(value: *const c_char) -> bool {
    // SAFETY: as promised above; the server frees the context once it has shown the message.
    unsafe {
        let value = CStr::from_ptr(value);
        let parsed = match value.count_bytes() {
            ..=MAX_LIST_BYTES => value.to_string_lossy().parse::<T>().map(drop),
            bytes => Err(format!(
                "the list has {bytes} bytes, and {MAX_LIST_BYTES} are allowed"
            )),
        };
        let Err(problem) = parsed else {
            return true;
        };
        if pg_sys::process_shared_preload_libraries_in_progress {
            notice::refuse(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("the settings of webhook are not valid: {problem}"),
                "Correct webhook.allow_networks, webhook.tenant_networks, webhook.deny_networks or webhook.allow_ports \
                 in the configuration.",
            );
        }
        let problem = CString::new(problem).unwrap_or_default();
        pg_sys::GUC_check_errdetail_string =
            pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, problem.as_ptr());
        false
    }
}

/// Runs the body with these settings of the server, as a function's SET clauses do. An error takes them back with the
/// (sub)transaction.
pub fn with_values<T>(settings: &[(&CStr, &CStr)], body: impl FnOnce() -> T) -> T {
    // SAFETY: main thread, inside a transaction; C strings.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        for (name, value) in settings {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        let result = body();
        pg_sys::AtEOXact_GUC(true, level);
        result
    }
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

/// A copy for the worker: settings may only be read on the main thread.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    pub enabled: bool,
    pub network: Network,
    pub ca_file: Option<PathBuf>,
    pub max_in_flight: usize,
    pub poll_interval: Duration,
    pub stale_after: Duration,
}

impl Settings {
    pub fn current() -> Self {
        let positive = |value: i32| usize::try_from(value).unwrap_or(1);
        Settings {
            enabled: ENABLED.get(),
            network: network(),
            ca_file: Some(text(&CA_FILE))
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            max_in_flight: positive(MAX_IN_FLIGHT.get()),
            poll_interval: Duration::from_millis(positive(POLL_INTERVAL_MS.get()) as u64),
            stale_after: Duration::from_secs(positive(STALE_AFTER_S.get()) as u64),
        }
    }
}

/// The networks in which endpoints may be.
pub fn network() -> Network {
    Network {
        allow: parsed(&ALLOW_NETWORKS),
        allow_tenants: parsed(&TENANT_NETWORKS),
        deny: parsed(&DENY_NETWORKS),
        ports: parsed(&ALLOW_PORTS),
        require_https: match REQUIRE_HTTPS.get() {
            HttpsRequired::on => RequireHttps::On,
            HttpsRequired::public => RequireHttps::Public,
            HttpsRequired::off => RequireHttps::Off,
        },
    }
}

fn parsed<T: FromStr<Err = String>>(setting: &GucSetting<Option<CString>>) -> T {
    text(setting).parse().expect("its check hook has parsed it")
}

fn text(setting: &GucSetting<Option<CString>>) -> String {
    setting
        .get()
        .map_or_else(String::new, |value| value.to_string_lossy().into_owned())
}
