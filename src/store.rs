//! The only place that talks SQL: each function is one call of `sql/`, inside a transaction of the worker.

use crate::settings::Settings;
use pgrx::PgTryBuilder;
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use pgrx::spi::{self, SpiClient};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use webhook_delivery::{Attempt, Key, Outcome, Route};

/// Requests that an endpoint gets at the same time where its row does not say: half of the threads, so that
/// one slow endpoint leaves the other half to the rest.
fn default_share(settings: &Settings) -> usize {
    settings.workers.div_ceil(2)
}

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

/// Before a long sleep: what was counted since the last report would stay unknown until the next wake-up.
pub fn flush_statistics() {
    // SAFETY: main thread, outside of any transaction.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// What the session relies on, whatever the server or the database has set.
pub fn prepare_session() {
    const SETTINGS: [(&std::ffi::CStr, &std::ffi::CStr); 7] = [
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
        (c"session_replication_role", c"origin"),
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"1s"),
        (c"jit", c"off"),
    ];
    for (name, value) in SETTINGS {
        // SAFETY: both are static C strings.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}

pub struct Extension {
    pub oid: pg_sys::Oid,
    pub owner: String,
    pub database: String,
}

pub fn find_extension(client: &SpiClient<'_>) -> Result<Option<Extension>, spi::Error> {
    let rows = client.select(
        "SELECT oid, pg_catalog.pg_get_userbyid(extowner)::text, pg_catalog.current_database()::text FROM pg_catalog.pg_extension WHERE extname = 'webhook'",
        None,
        &[],
    )?;
    for row in rows {
        if let (Some(oid), Some(owner), Some(database)) = (
            row.get::<pg_sys::Oid>(1)?,
            row.get::<String>(2)?,
            row.get::<String>(3)?,
        ) {
            return Ok(Some(Extension {
                oid,
                owner,
                database,
            }));
        }
    }
    Ok(None)
}

/// From here on the session has the rights of this role.
pub fn act_as(role: &str) -> Result<(), Trouble> {
    let Ok(role) = CString::new(role) else {
        return Err(Trouble {
            code: PgSqlErrorCode::ERRCODE_INVALID_NAME,
            message: "role name contains NUL".into(),
        });
    };
    transaction(|_| {
        // SAFETY: inside a transaction, where the role can be looked up.
        unsafe {
            pg_sys::SetConfigOption(
                c"role".as_ptr(),
                role.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
        Ok(())
    })
}

pub fn begin_instance(client: &mut SpiClient<'_>) -> Result<i32, spi::Error> {
    client
        .update("SELECT webhook.begin_instance()", None, &[])?
        .first()
        .get_one::<i32>()
        .map(Option::unwrap_or_default)
}

pub struct Recovered {
    pub released: i64,
    pub failed: i64,
    pub locked: i64,
}

pub fn recover(
    client: &mut SpiClient<'_>,
    instance: Option<i32>,
    in_flight: &[Key],
) -> Result<Recovered, spi::Error> {
    let events: Vec<pgrx::Uuid> = in_flight.iter().map(event_uuid).collect();
    let endpoints: Vec<i32> = in_flight.iter().map(|key| key.endpoint_id).collect();
    let counts = client
        .update(
            "SELECT released, failed, locked FROM webhook.recover($1, $2, $3)",
            None,
            &[instance.into(), events.into(), endpoints.into()],
        )?
        .first()
        .get_three::<i64, i64, i64>()?;
    Ok(Recovered {
        released: counts.0.unwrap_or(0),
        failed: counts.1.unwrap_or(0),
        locked: counts.2.unwrap_or(0),
    })
}

pub fn foreign_endpoints(client: &SpiClient<'_>) -> Result<i64, spi::Error> {
    client
        .select("SELECT webhook.foreign_endpoints()", None, &[])?
        .first()
        .get_one::<i64>()
        .map(Option::unwrap_or_default)
}

/// The longest that a request may take, of the policies in use.
pub fn longest_request(client: &SpiClient<'_>) -> Result<Duration, spi::Error> {
    let seconds = client
        .select("SELECT webhook.longest_request_seconds()", None, &[])?
        .first()
        .get_one::<i64>()?;
    Ok(Duration::from_secs(seconds.unwrap_or(0).max(0) as u64))
}

/// An endpoint with something queued.
pub struct Waiting {
    pub endpoint_id: i32,
    /// Time until the first of it is due; nothing where it may not be sent now.
    pub due_in: Option<Duration>,
    pub share: usize,
}

pub fn agenda(
    client: &SpiClient<'_>,
    settings: &Settings,
    after_endpoint: i32,
    page_size: usize,
) -> Result<Vec<Waiting>, spi::Error> {
    let rows = client.select(
        "SELECT endpoint_id, due_in_ms, max_in_flight FROM webhook.agenda($1, $2)",
        None,
        &[
            after_endpoint.into(),
            i32::try_from(page_size).unwrap_or(i32::MAX).into(),
        ],
    )?;
    rows.map(|row| {
        Ok(Waiting {
            endpoint_id: row.get::<i32>(1)?.unwrap_or_default(),
            due_in: row
                .get::<i64>(2)?
                .map(|ms| Duration::from_millis(ms.max(0) as u64)),
            share: share(row.get::<i32>(3)?, settings),
        })
    })
    .collect()
}

fn share(max_in_flight: Option<i32>, settings: &Settings) -> usize {
    max_in_flight
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or_else(|| default_share(settings))
}

/// Claims for each endpoint at most as many as wished; they are ours when the transaction commits.
pub fn claim(
    client: &mut SpiClient<'_>,
    settings: &Settings,
    instance: Option<i32>,
    wishes: &[(i32, usize)],
) -> Result<Vec<Attempt>, spi::Error> {
    let endpoints: Vec<i32> = wishes.iter().map(|wish| wish.0).collect();
    let capacities: Vec<i32> = wishes
        .iter()
        .map(|wish| i32::try_from(wish.1).unwrap_or(i32::MAX))
        .collect();
    let rows = client.update(
        "SELECT event_id, endpoint_id, claim_seq, earlier_attempts, event_type, payload, occurred_at
         FROM webhook.claim($1, $2, $3)",
        None,
        &[instance.into(), endpoints.clone().into(), capacities.into()],
    )?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let routes = routes(client, settings, endpoints)?;
    let mut attempts = Vec::with_capacity(rows.len());
    for row in rows {
        let endpoint_id = row.get::<i32>(2)?.unwrap_or_default();
        let (Some(event_id), Some(route)) = (row.get::<pgrx::Uuid>(1)?, routes.get(&endpoint_id))
        else {
            continue;
        };
        attempts.push(Attempt {
            key: Key {
                event_id: from_pgrx(event_id),
                endpoint_id,
                claim_seq: row.get::<i64>(3)?.unwrap_or_default(),
            },
            earlier_attempts: row.get::<i32>(4)?.unwrap_or_default(),
            event_type: row.get::<String>(5)?.unwrap_or_default(),
            payload: row.get::<String>(6)?.unwrap_or_default(),
            occurred_at: row.get::<String>(7)?.unwrap_or_default(),
            route: Arc::clone(route),
        });
    }
    Ok(attempts)
}

fn routes(
    client: &mut SpiClient<'_>,
    settings: &Settings,
    endpoints: Vec<i32>,
) -> Result<HashMap<i32, Arc<Route>>, spi::Error> {
    let rows = client.update(
        "SELECT endpoint_id, url, header_names, header_values, secrets, connect_timeout_ms, timeout_ms, max_in_flight
         FROM webhook.routes($1)",
        None,
        &[endpoints.into()],
    )?;
    let milliseconds =
        |ms: Option<i32>| Duration::from_millis(ms.unwrap_or_default().max(1) as u64);
    rows.map(|row| {
        let endpoint_id = row.get::<i32>(1)?.unwrap_or_default();
        let names = row.get::<Vec<String>>(3)?.unwrap_or_default();
        let values = row.get::<Vec<String>>(4)?.unwrap_or_default();
        let route = Route {
            endpoint_id,
            url: row.get::<String>(2)?.unwrap_or_default(),
            headers: names.into_iter().zip(values).collect(),
            secrets: row.get::<Vec<String>>(5)?.unwrap_or_default(),
            connect_timeout: milliseconds(row.get::<i32>(6)?),
            timeout: milliseconds(row.get::<i32>(7)?),
            max_in_flight: share(row.get::<i32>(8)?, settings),
        };
        Ok((endpoint_id, Arc::new(route)))
    })
    .collect()
}

/// How an attempt ended, as SQL is told.
pub struct Ending {
    pub key: Key,
    status_code: Option<i32>,
    error_kind: Option<&'static str>,
    error: Option<String>,
    excerpt: Option<String>,
    retry_after_s: Option<f64>,
    duration_ms: i32,
    finished_at: f64,
}

impl Ending {
    /// The claim is given back as if it had never been made.
    pub fn released(key: Key) -> Self {
        Ending {
            key,
            status_code: None,
            error_kind: Some("released"),
            error: None,
            excerpt: None,
            retry_after_s: None,
            duration_ms: 0,
            finished_at: epoch(SystemTime::now()),
        }
    }
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        let (answer, failure) = match outcome.result {
            Ok(answer) => (Some(answer), None),
            Err(failure) => (None, Some(failure)),
        };
        Ending {
            key: outcome.key,
            status_code: answer.as_ref().map(|answer| i32::from(answer.status)),
            retry_after_s: answer
                .as_ref()
                .and_then(|answer| answer.retry_after)
                .map(|delay| delay.as_secs_f64()),
            excerpt: answer.map(|answer| answer.excerpt),
            error_kind: failure.as_ref().map(|failure| failure.kind.as_str()),
            error: failure.map(|failure| failure.message),
            duration_ms: i32::try_from(outcome.duration.as_millis()).unwrap_or(i32::MAX),
            finished_at: epoch(outcome.finished_at),
        }
    }
}

fn epoch(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[derive(Default)]
pub struct Settled {
    /// What somebody has locked, to be handed in again.
    pub locked: HashSet<Key>,
    pub tally: Tally,
}

/// How many deliveries were finished, by endpoint, status and class of latency.
#[derive(Default)]
pub struct Tally(HashMap<(i32, String, i32), Finished>);

#[derive(Default)]
struct Finished {
    deliveries: i64,
    retried: i64,
    retries: i64,
}

impl Tally {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, more: Tally) {
        for (group, finished) in more.0 {
            let sum = self.0.entry(group).or_default();
            sum.deliveries += finished.deliveries;
            sum.retried += finished.retried;
            sum.retries += finished.retries;
        }
    }
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

pub fn settle(client: &mut SpiClient<'_>, endings: &[Ending]) -> Result<Settled, spi::Error> {
    let columns = [
        column(endings, |ending| event_uuid(&ending.key)),
        column(endings, |ending| ending.key.endpoint_id),
        column(endings, |ending| ending.key.claim_seq),
        column(endings, |ending| ending.status_code),
        column(endings, |ending| ending.error_kind),
        column(endings, |ending| ending.error.as_deref()),
        column(endings, |ending| ending.excerpt.as_deref()),
        column(endings, |ending| ending.retry_after_s),
        column(endings, |ending| ending.duration_ms),
        column(endings, |ending| ending.finished_at),
    ];
    let rows = client.update(
        "SELECT event_id, endpoint_id, claim_seq, status, latency_class, deliveries, retried, retries
         FROM webhook.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        None,
        &columns,
    )?;
    let mut settled = Settled::default();
    for row in rows {
        let endpoint_id = row.get::<i32>(2)?.unwrap_or_default();
        let number = |ordinal| Ok::<i64, spi::Error>(row.get::<i64>(ordinal)?.unwrap_or_default());
        if let Some(event_id) = row.get::<pgrx::Uuid>(1)? {
            settled.locked.insert(Key {
                event_id: from_pgrx(event_id),
                endpoint_id,
                claim_seq: number(3)?,
            });
        } else {
            let group = (
                endpoint_id,
                row.get::<String>(4)?.unwrap_or_default(),
                row.get::<i32>(5)?.unwrap_or_default(),
            );
            let finished = Finished {
                deliveries: number(6)?,
                retried: number(7)?,
                retries: number(8)?,
            };
            settled.tally.0.insert(group, finished);
        }
    }
    Ok(settled)
}

pub fn add_tally(client: &mut SpiClient<'_>, tally: &Tally) -> Result<(), spi::Error> {
    let groups: Vec<_> = tally.0.iter().collect();
    let columns = [
        column(&groups, |(group, _)| group.0),
        column(&groups, |(group, _)| group.1.as_str()),
        column(&groups, |(group, _)| group.2),
        column(&groups, |(_, finished)| finished.deliveries),
        column(&groups, |(_, finished)| finished.retried),
        column(&groups, |(_, finished)| finished.retries),
    ];
    client
        .update(
            "SELECT webhook.add_tally($1, $2, $3, $4, $5, $6)",
            None,
            &columns,
        )
        .map(|_| ())
}

fn event_uuid(key: &Key) -> pgrx::Uuid {
    pgrx::Uuid::from_bytes(*key.event_id.as_bytes())
}

fn from_pgrx(id: pgrx::Uuid) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*id.as_bytes())
}
