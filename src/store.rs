//! The only place that talks SQL. Here are the session and its transactions; `queue` has the calls of a turn,
//! `upkeep` those of every few seconds, `capture` those of the trigger function.

mod capture;
mod install;
mod queue;
mod uninstall;
mod upkeep;

use crate::pg_compat;
use pgrx::PgTryBuilder;
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use pgrx::spi::{self, OwnedPreparedStatement, SpiClient, SpiTupleTable};
use std::cell::OnceCell;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::thread::LocalKey;
use webhook_delivery::Key;

pub use capture::{Changes, emit_changes, emit_possible_changes};
pub use install::{grant_connect, renew_grants};
pub use queue::{Claimed, Ending, Quota, Settled, Waiting, agenda, claim, settle, turn_away};
pub use uninstall::{may_drop_extension, may_drop_schema, revoke_connect, unsent, withdraw_grants};
pub use upkeep::{
    Alert, Expired, Extension, OrderPosition, QueuePosition, Recovered, RetentionPosition, Tally,
    add_tally, begin_instance, dead_instances, end_instances, end_orphans, expire, expire_tally,
    expire_waiting, find_extension, foreign_endpoints, forget_removed_endpoints, is_without_site,
    keep_order, longest_request, protocol, raise_alerts, recognise_installation, recover,
};

/// What went wrong in a transaction. It has been rolled back.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub code: PgSqlErrorCode,
    pub message: String,
}

impl Trouble {
    /// A person moved a row at the same moment, or cancelled us: the same again, at once, will do.
    pub fn is_passing(&self) -> bool {
        matches!(
            self.code,
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE
                | PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED
                | PgSqlErrorCode::ERRCODE_QUERY_CANCELED
        )
    }

    /// What was written is at fault, or a trigger that somebody put on our tables; not the state of the server.
    pub fn is_about_data(&self) -> bool {
        use PgSqlErrorCode::*;
        let class = |code: PgSqlErrorCode| code as isize & 0xFFF;
        [
            ERRCODE_DATA_EXCEPTION,
            ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION,
            ERRCODE_PLPGSQL_ERROR,
        ]
        .into_iter()
        .any(|code| class(code) == class(self.code))
    }
}

impl From<CaughtError> for Trouble {
    fn from(caught: CaughtError) -> Self {
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic {
            ereport: report, ..
        }) = caught;
        Trouble {
            code: report.sql_error_code(),
            message: report.message().to_owned(),
        }
    }
}

impl From<spi::Error> for Trouble {
    fn from(error: spi::Error) -> Self {
        Trouble {
            code: PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
            message: error.to_string(),
        }
    }
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
        let value = Spi::connect_mut(body)?;
        // SAFETY: the snapshot was pushed above.
        unsafe {
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
        }
        Ok(value)
    }))
    .catch_others(|caught| Err(Trouble::from(caught)))
    .catch_rust_panic(|caught| Err(Trouble::from(caught)))
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

/// What is sent must not be undone by a crash: a commit waits for the disk, whatever server, database and role have
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

/// Before a long sleep: what was counted since the last report would stay unknown until the next wake-up.
pub fn flush_statistics() {
    // SAFETY: main thread, outside of any transaction.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// What the session relies on, whatever the server or the database has set.
pub fn prepare_session() {
    const SETTINGS: &[(&CStr, &CStr)] = &[
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
        (c"session_replication_role", c"origin"),
        (c"standard_conforming_strings", c"on"),
        (c"statement_timeout", c"0"),
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (c"transaction_timeout", c"0"),
        // Below deadlock_timeout, so that in a deadlock it is not a person who loses.
        (c"lock_timeout", c"250ms"),
        (c"jit", c"off"),
    ];
    SETTINGS.iter().for_each(|(name, value)| set(name, value));
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

/// A call of SQL that is planned once and kept as long as the process lives.
struct Call {
    sql: &'static str,
    plan: OnceCell<OwnedPreparedStatement>,
}

impl Call {
    const fn new(sql: &'static str) -> Self {
        Call {
            sql,
            plan: OnceCell::new(),
        }
    }
}

/// As `run`, for what finds nothing to write most of the time: it takes a transaction id only when it writes.
fn look<'conn>(
    client: &mut SpiClient<'conn>,
    call: &'static LocalKey<Call>,
    arguments: &[DatumWithOid<'_>],
) -> Result<SpiTupleTable<'conn>, spi::Error> {
    call.with(|call| {
        if let Some(plan) = call.plan.get() {
            return client.select(plan, None, arguments);
        }
        let plan = client.prepare(call.sql, &types_of(arguments))?.keep();
        client.select(call.plan.get_or_init(|| plan), None, arguments)
    })
}

fn run<'conn>(
    client: &mut SpiClient<'conn>,
    call: &'static LocalKey<Call>,
    arguments: &[DatumWithOid<'_>],
) -> Result<SpiTupleTable<'conn>, spi::Error> {
    call.with(|call| {
        if let Some(plan) = call.plan.get() {
            return client.update(plan, None, arguments);
        }
        let plan = client.prepare_mut(call.sql, &types_of(arguments))?.keep();
        client.update(call.plan.get_or_init(|| plan), None, arguments)
    })
}

fn types_of(arguments: &[DatumWithOid<'_>]) -> Vec<PgOid> {
    let oids = arguments.iter().map(DatumWithOid::oid);
    oids.map(PgOid::from).collect()
}

/// An array of one value of each row.
fn column<'a, Row: 'a, T>(
    rows: impl IntoIterator<Item = &'a Row>,
    field: impl Fn(&'a Row) -> T,
) -> DatumWithOid<'static>
where
    Vec<T>: Into<DatumWithOid<'static>>,
{
    rows.into_iter().map(field).collect::<Vec<T>>().into()
}

fn event_uuid(key: &Key) -> pgrx::Uuid {
    pgrx::Uuid::from_bytes(*key.event_id.as_bytes())
}

fn from_pgrx(id: pgrx::Uuid) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*id.as_bytes())
}
