//! The calls of a turn: the agenda, claiming, settling.

use super::upkeep::{Finished, Tally};
use super::{Call, column, event_uuid, from_pgrx, run};
use crate::memory;
use crate::settings::Settings;
use pgrx::spi::{self, SpiClient, SpiTupleTable};
use pgrx::{FromDatum, IntoDatum};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use webhook_delivery::{Attempt, FailureKind, Format, Key, Outcome, Route};

thread_local! {
    static AGENDA: Call = const {
        Call::new("SELECT endpoint_id, due_in_ms, max_in_flight, turns_away FROM webhook.agenda($1, $2)")
    };
    static CLAIM: Call = const {
        Call::new(
            "SELECT event_id, endpoint_id, claim_seq, earlier_attempts, event_type, payload, occurred_at, tenant
             FROM webhook.claim($1, $2, $3, $4, $5, $6)",
        )
    };
    static TURN_AWAY: Call = const { Call::new("SELECT webhook.turn_away($1, $2)") };
    static ROUTES: Call = const {
        Call::new(
            "SELECT endpoint_id, url, header_names, header_values, secrets, connect_timeout_ms, timeout_ms, format,
                    template, source
             FROM webhook.routes($1)",
        )
    };
    static SETTLE: Call = const {
        Call::new(
            "SELECT locked_event_ids, locked_endpoint_ids, locked_claim_seqs, finished_endpoint_ids, finished_statuses,
                    finished_latency_classes, finished_deliveries, finished_retried, finished_retries
             FROM webhook.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
    };
}

/// An endpoint with something queued.
pub struct Waiting {
    pub endpoint_id: i32,
    /// Time until the first of it is due; nothing where it may not be sent now.
    pub due_in: Option<Duration>,
    pub share: usize,
    /// Nothing is sent, and what is due is not held either.
    pub turns_away: bool,
}

pub fn agenda(
    client: &mut SpiClient<'_>,
    settings: &Settings,
    after_endpoint: i32,
    page_size: usize,
) -> Result<Vec<Waiting>, spi::Error> {
    let rows = run(
        client,
        &AGENDA,
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
            turns_away: row.get::<bool>(4)?.unwrap_or_default(),
        })
    })
    .collect()
}

/// Ends what is due for these endpoints without sending it, at most that many of each; says how many.
pub fn turn_away(
    client: &mut SpiClient<'_>,
    endpoints: Vec<i32>,
    page_size: i32,
) -> Result<i64, spi::Error> {
    run(client, &TURN_AWAY, &[endpoints.into(), page_size.into()])?
        .first()
        .get_one::<i64>()
        .map(Option::unwrap_or_default)
}

/// How many requests an endpoint gets at the same time: a quarter of all where its row does not say.
fn share(max_in_flight: Option<i32>, settings: &Settings) -> usize {
    max_in_flight
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(settings.max_in_flight.div_ceil(4))
}

/// How many to claim of an endpoint.
pub struct Quota {
    pub endpoint_id: i32,
    pub share: usize,
    pub count: usize,
    pub in_flight: usize,
    /// The bytes of payload that it has room for.
    pub byte_room: usize,
}

/// What a claim has brought.
#[derive(Default)]
pub struct Claimed {
    pub attempts: Vec<Attempt>,
    /// Claimed as well, but there is nothing to send.
    pub endings: Vec<Ending>,
}

/// Claims for each endpoint at most its quota, and of all of them hardly more bytes than there is room for; they
/// are ours when the transaction commits.
pub fn claim(
    client: &mut SpiClient<'_>,
    instance: Option<i32>,
    quotas: &[Quota],
    byte_room: usize,
) -> Result<Claimed, spi::Error> {
    let number = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let bytes = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
    let endpoints: Vec<i32> = quotas.iter().map(|quota| quota.endpoint_id).collect();
    let rows = run(
        client,
        &CLAIM,
        &[
            instance.into(),
            endpoints.clone().into(),
            column(quotas, |quota| number(quota.count)),
            column(quotas, |quota| number(quota.in_flight)),
            column(quotas, |quota| bytes(quota.byte_room)),
            bytes(byte_room).into(),
        ],
    )?;
    let mut claimed = Claimed::default();
    if rows.is_empty() {
        return Ok(claimed);
    }
    let routes = routes(client, endpoints)?;
    for row in rows {
        let key = Key {
            event_id: row
                .get::<pgrx::Uuid>(1)?
                .map_or_else(uuid::Uuid::nil, from_pgrx),
            endpoint_id: row.get::<i32>(2)?.unwrap_or_default(),
            claim_seq: row.get::<i64>(3)?.unwrap_or_default(),
        };
        let payload = row.get::<&str>(6)?.map(memory::copy);
        match (payload, routes.get(&key.endpoint_id)) {
            (Some(Err(_)), _) => claimed.endings.push(Ending::out_of_memory(key)),
            (Some(Ok(payload)), Some(route)) => claimed.attempts.push(Attempt {
                key,
                earlier_attempts: row.get::<i32>(4)?.unwrap_or_default(),
                event_type: row.get::<String>(5)?.unwrap_or_default(),
                payload,
                occurred_at: row.get::<String>(7)?.unwrap_or_default(),
                tenant: row.get::<String>(8)?,
                route: Arc::clone(route),
            }),
            (None, _) => claimed.endings.push(Ending::event_deleted(key)),
            (_, None) => claimed.endings.push(Ending::endpoint_removed(key)),
        }
    }
    Ok(claimed)
}

fn routes(
    client: &mut SpiClient<'_>,
    endpoints: Vec<i32>,
) -> Result<HashMap<i32, Arc<Route>>, spi::Error> {
    let rows = run(client, &ROUTES, &[endpoints.into()])?;
    let milliseconds =
        |ms: Option<i32>| Duration::from_millis(ms.unwrap_or_default().max(1) as u64);
    rows.map(|row| {
        let endpoint_id = row.get::<i32>(1)?.unwrap_or_default();
        let names = row.get::<Vec<String>>(3)?.unwrap_or_default();
        let values = row.get::<Vec<String>>(4)?.unwrap_or_default();
        let format = row.get::<String>(8)?.unwrap_or_default();
        let route = Route {
            endpoint_id,
            url: row.get::<String>(2)?.unwrap_or_default(),
            headers: names.into_iter().zip(values).collect(),
            format: Format::named(&format, row.get::<String>(9)?, row.get::<String>(10)?),
            secrets: row.get::<Vec<String>>(5)?.unwrap_or_default(),
            connect_timeout: milliseconds(row.get::<i32>(6)?),
            timeout: milliseconds(row.get::<i32>(7)?),
        };
        Ok((endpoint_id, Arc::new(route)))
    })
    .collect()
}

/// How an attempt ended, as SQL is told.
pub struct Ending {
    pub key: Key,
    status_code: Option<i32>,
    /// The code of an attempt without an answer, as sql/03_reasons.sql has it.
    failure: Option<&'static str>,
    error: Option<String>,
    excerpt: Option<String>,
    retry_after_s: Option<f64>,
    duration_ms: i32,
    /// SQL is told how long ago that was, so that no clock but the database's enters a table.
    ended: Instant,
}

impl Ending {
    /// The claim is given back as if it had never been made.
    pub fn released(key: Key) -> Self {
        Self::without_answer(key, "released", None)
    }

    fn out_of_memory(key: Key) -> Self {
        let kind = FailureKind::Local.as_str();
        Self::without_answer(key, kind, Some("not enough memory for the payload"))
    }

    /// Nobody was asked, so it says nothing about the endpoint.
    fn event_deleted(key: Key) -> Self {
        let error = "the event was deleted or redacted";
        Self::without_answer(key, "event_deleted", Some(error))
    }

    fn endpoint_removed(key: Key) -> Self {
        let error = "the endpoint was removed";
        Self::without_answer(key, "endpoint_removed", Some(error))
    }

    fn without_answer(key: Key, failure: &'static str, error: Option<&str>) -> Self {
        Ending {
            key,
            status_code: None,
            failure: Some(failure),
            error: error.map(str::to_owned),
            excerpt: None,
            retry_after_s: None,
            duration_ms: 0,
            ended: Instant::now(),
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
            failure: failure.as_ref().map(|failure| failure.kind.as_str()),
            error: failure.map(|failure| failure.message),
            duration_ms: i32::try_from(outcome.duration.as_millis()).unwrap_or(i32::MAX),
            ended: outcome.ended,
        }
    }
}

#[derive(Default)]
pub struct Settled {
    /// What somebody has locked, to be handed in again.
    pub locked: HashSet<Key>,
    pub tally: Tally,
}

impl Settled {
    pub fn locked_of(&self, endpoint_id: i32) -> usize {
        let locked = self.locked.iter();
        locked.filter(|key| key.endpoint_id == endpoint_id).count()
    }
}

/// `begun` is from before the transaction, so that nothing ends earlier by its clock than it did: a wait that an endpoint
/// asked for would be too short.
pub fn settle(
    client: &mut SpiClient<'_>,
    endings: &[Ending],
    begun: Instant,
) -> Result<Settled, spi::Error> {
    let columns = [
        column(endings, |ending| event_uuid(&ending.key)),
        column(endings, |ending| ending.key.endpoint_id),
        column(endings, |ending| ending.key.claim_seq),
        column(endings, |ending| ending.status_code),
        column(endings, |ending| ending.failure),
        column(endings, |ending| ending.error.as_deref()),
        column(endings, |ending| ending.excerpt.as_deref()),
        column(endings, |ending| ending.retry_after_s),
        column(endings, |ending| ending.duration_ms),
        column(endings, |ending| {
            begun.saturating_duration_since(ending.ended).as_secs_f64() * 1e3
        }),
    ];
    let row = run(client, &SETTLE, &columns)?.first();
    let mut settled = Settled::default();
    let locked = array::<pgrx::Uuid>(&row, 1)?.into_iter();
    let locked = locked.zip(array::<i32>(&row, 2)?);
    for ((event_id, endpoint_id), claim_seq) in locked.zip(array::<i64>(&row, 3)?) {
        settled.locked.insert(Key {
            event_id: from_pgrx(event_id),
            endpoint_id,
            claim_seq,
        });
    }
    let groups = array::<i32>(&row, 4)?.into_iter();
    let groups = groups.zip(array::<String>(&row, 5)?);
    let groups = groups.zip(array::<i32>(&row, 6)?);
    let deliveries = array::<i64>(&row, 7)?.into_iter();
    let retried = array::<i64>(&row, 8)?.into_iter();
    let counts = deliveries.zip(retried).zip(array::<i64>(&row, 9)?);
    for (((endpoint_id, status), class), ((deliveries, retried), retries)) in groups.zip(counts) {
        let finished = Finished {
            deliveries,
            retried,
            retries,
        };
        let group = (endpoint_id, status, class);
        settled.tally.0.insert(group, finished);
    }
    Ok(settled)
}

/// Nothing where there is none.
fn array<T: FromDatum + IntoDatum>(
    row: &SpiTupleTable<'_>,
    ordinal: usize,
) -> Result<Vec<T>, spi::Error>
where
    Vec<T>: FromDatum + IntoDatum,
{
    row.get::<Vec<T>>(ordinal).map(Option::unwrap_or_default)
}
