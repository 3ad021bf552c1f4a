//! The only place that talks SQL. Here are the session and its transactions; `connection` runs the statements of the
//! engine, `capture` those of the trigger function.

mod capture;
mod connection;
mod install;
mod uninstall;

use crate::pg_compat;
use crate::settings::per_database::{self, ServerSettings};
use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use pgrx::spi::{self, SpiClient};
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use webhook_engine::Trouble;

pub use capture::{Changes, emit_changes, emit_possible_changes};
pub use connection::SpiConnection;
pub use install::{grant_connect, renew_grants};
pub use uninstall::{may_drop_extension, may_drop_schema, revoke_connect, unsent, withdraw_grants};

fn trouble(caught: CaughtError) -> Trouble {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic {
        ereport: report, ..
    }) = caught;
    Trouble::new(&sqlstate(report.sql_error_code()), report.message())
}

/// Five characters of six bits each, the first in the lowest.
fn sqlstate(code: PgSqlErrorCode) -> String {
    let code = code as u32;
    let character = |place: u32| (((code >> (6 * place)) & 0x3F) as u8 + b'0') as char;
    (0..5).map(character).collect()
}

/// Runs a transaction of the worker. An error in it, Postgres's or ours, rolls it back and comes back as a
/// value; the process goes on.
pub fn transaction<T>(
    body: impl FnOnce(&mut SpiClient<'_>) -> Result<T, spi::Error>,
) -> Result<T, Trouble> {
    // SAFETY: main thread, and no transaction is open: this is the only place that opens one.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::pgstat_report_activity(
            pg_sys::BackendState::STATE_RUNNING,
            c"delivering webhooks".as_ptr(),
        );
    }
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: as above; what fails between these calls is undone by the abort below.
        unsafe {
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        make_durable();
        let value =
            Spi::connect_mut(body).map_err(|error| Trouble::new("XX000", error.to_string()))?;
        // SAFETY: the snapshot was pushed above.
        unsafe {
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
        }
        Ok(value)
    }))
    .catch_others(|caught| Err(trouble(caught)))
    .catch_rust_panic(|caught| Err(trouble(caught)))
    .execute();

    // SAFETY: aborting is right whatever state the error left; statistics are reported outside transactions,
    // and without them autovacuum would never learn of our dead rows.
    unsafe {
        if result.is_err() {
            pg_sys::AbortCurrentTransaction();
        }
        pg_sys::pgstat_report_stat(result.is_err());
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
    }
    result
}

/// A crash must not undo a settlement: a commit waits for the disk, whatever server, database and role have
/// set. From the moment that the worker is told to stop it waits for nothing more than that, least of all for a
/// standby that is away.
fn make_durable() {
    use pg_sys::SyncCommitLevel::{SYNCHRONOUS_COMMIT_LOCAL_FLUSH, SYNCHRONOUS_COMMIT_OFF};
    // SAFETY: main thread, inside a transaction; a plain read, and static C strings.
    unsafe {
        let level = pg_sys::synchronous_commit as u32;
        if level == SYNCHRONOUS_COMMIT_OFF {
            pg_sys::ForceSyncCommit();
        } else if level > SYNCHRONOUS_COMMIT_LOCAL_FLUSH && pg_compat::is_terminated() {
            set(c"synchronous_commit", c"local");
        }
    }
}

/// Called before a long sleep: else counts since the last report would stay unknown until the next wake-up.
pub fn flush_statistics() {
    // SAFETY: main thread, outside of any transaction.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// Settings that the session relies on, whatever the server or the database has set.
pub fn prepare_session() {
    const SETTINGS: &[(&CStr, &CStr)] = &[
        (c"application_name", c"webhook worker"),
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
        (c"session_replication_role", c"origin"),
        (c"standard_conforming_strings", c"on"),
        // A position comes as text, and with few digits it would be in the future.
        (c"extra_float_digits", c"1"),
        (c"statement_timeout", c"0"),
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (c"transaction_timeout", c"0"),
        // Below deadlock_timeout, so that in a deadlock it is not a person who loses.
        (c"lock_timeout", c"250ms"),
        (c"jit", c"off"),
        // It plans at random, and fails to under some settings.
        (c"geqo", c"off"),
    ];
    SETTINGS.iter().for_each(|(name, value)| set(name, value));
    // Metrics are a view. Minor releases of 2024 have brought the setting.
    set_if_known(c"restrict_nonsystem_relation_kind", c"");
}

fn set_if_known(name: &CStr, value: &CStr) {
    // SAFETY: a C string, and main thread; the text that it points to is not read.
    let is_known = unsafe { !pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null() };
    if is_known {
        set(name, value);
    }
}

fn set(name: &CStr, value: &CStr) {
    // SAFETY: both are C strings, and main thread.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// The databases that have a schema of ours: everything of the extension belongs to one role, and a shared catalog
/// lists the objects of a role in every database.
pub fn survey() -> Result<Vec<pg_sys::Oid>, Trouble> {
    const SURVEY: &str = "SELECT DISTINCT dbid FROM pg_shdepend
        WHERE refclassid = 'pg_authid'::regclass AND refobjid = 'webhook_owner'::regrole AND deptype = 'o'
          AND classid = 'pg_namespace'::regclass";
    transaction(|client| {
        let rows = client.select(SURVEY, None, &[])?;
        let databases = rows.map(|row| row.get::<pg_sys::Oid>(1));
        Ok(databases
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .collect())
    })
}

/// Applies the current settings of this database and role, in place of the earlier ones.
pub fn apply_settings(of_the_server: &ServerSettings) -> Result<(), Trouble> {
    of_the_server.restore();
    transaction(|_| {
        per_database::apply();
        Ok(())
    })
}

/// Gives a copy that has become a server of its own another identity, before anything is sent.
pub fn recognise_installation() -> Result<(), Trouble> {
    transaction(|client| {
        client.select("SELECT webhook.recognise_installation()", None, &[])?;
        Ok(())
    })
}
