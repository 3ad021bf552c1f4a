//! The calls between the turns: the extension itself, lost claims, counters, retention.

use super::{Call, column, event_uuid, look, run};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use pgrx::spi::{self, SpiClient};
use std::collections::HashMap;
use std::thread::LocalKey;
use std::time::Duration;
use webhook_delivery::Key;

pub struct Extension {
    pub oid: pg_sys::Oid,
    pub database: String,
}

pub fn find_extension(client: &SpiClient<'_>) -> Result<Option<Extension>, spi::Error> {
    let rows = client.select(
        "SELECT oid, pg_catalog.current_database()::text FROM pg_catalog.pg_extension WHERE extname = 'webhook'",
        None,
        &[],
    )?;
    for row in rows {
        if let (Some(oid), Some(database)) = (row.get::<pg_sys::Oid>(1)?, row.get::<String>(2)?) {
            return Ok(Some(Extension { oid, database }));
        }
    }
    Ok(None)
}

/// The protocol of the database's SQL; 0 where it is older than the first.
pub fn protocol(client: &SpiClient<'_>) -> Result<i32, spi::Error> {
    let known = client
        .select(
            "SELECT pg_catalog.to_regprocedure('webhook.protocol()') IS NOT NULL",
            None,
            &[],
        )?
        .first()
        .get_one::<bool>()?;
    if known != Some(true) {
        return Ok(0);
    }
    client
        .select("SELECT webhook.protocol()", None, &[])?
        .first()
        .get_one::<i32>()
        .map(Option::unwrap_or_default)
}

pub fn begin_instance(client: &mut SpiClient<'_>) -> Result<i32, spi::Error> {
    client
        .update("SELECT webhook.begin_instance()", None, &[])?
        .first()
        .get_one::<i32>()
        .map(Option::unwrap_or_default)
}

/// Runs of workers that are over and may have left claims.
pub fn dead_instances(
    client: &mut SpiClient<'_>,
    instance: Option<i32>,
) -> Result<Vec<i32>, spi::Error> {
    look(client, &DEAD_INSTANCES, &[instance.into()])?
        .first()
        .get_one::<Vec<i32>>()
        .map(Option::unwrap_or_default)
}

/// These have left no claim.
pub fn end_instances(client: &mut SpiClient<'_>, instances: &[i32]) -> Result<(), spi::Error> {
    run(client, &END_INSTANCES, &[instances.to_vec().into()]).map(|_| ())
}

#[derive(Default)]
pub struct Recovered {
    pub released: i64,
    pub failed: i64,
    pub locked: i64,
    /// Nothing at the end of the queue.
    pub position: Option<QueuePosition>,
}

/// The last delivery of a page of the queue.
pub struct QueuePosition {
    event: pgrx::Uuid,
    endpoint: i32,
}

/// Releases the lost claims on a page of the queue.
pub fn recover(
    client: &mut SpiClient<'_>,
    instance: Option<i32>,
    in_flight: &[Key],
    position: Option<&QueuePosition>,
    page_size: i32,
) -> Result<Recovered, spi::Error> {
    let events: Vec<pgrx::Uuid> = in_flight.iter().map(event_uuid).collect();
    let endpoints: Vec<i32> = in_flight.iter().map(|key| key.endpoint_id).collect();
    let row = look(
        client,
        &RECOVER,
        &[
            instance.into(),
            events.into(),
            endpoints.into(),
            position.map(|position| position.event).into(),
            position.map(|position| position.endpoint).into(),
            page_size.into(),
        ],
    )?
    .first();
    let event = row.get::<pgrx::Uuid>(4)?;
    let endpoint = row.get::<i32>(5)?;
    Ok(Recovered {
        released: row.get(1)?.unwrap_or(0),
        failed: row.get(2)?.unwrap_or(0),
        locked: row.get(3)?.unwrap_or(0),
        position: (event.zip(endpoint)).map(|(event, endpoint)| QueuePosition { event, endpoint }),
    })
}

/// Where the look for lost turns has come to, as SQL says it; the beginning by default.
#[derive(Default)]
pub struct OrderPosition {
    lane_endpoint: Option<i32>,
    lane_key: Option<String>,
    follower_endpoint: Option<i32>,
    follower_key: Option<String>,
    follower_event: Option<pgrx::Uuid>,
}

/// Passes lost turns on, a page of them.
pub fn keep_order(
    client: &mut SpiClient<'_>,
    position: &OrderPosition,
    page_size: i32,
) -> Result<OrderPosition, spi::Error> {
    let row = look(
        client,
        &KEEP_ORDER,
        &[
            position.lane_endpoint.into(),
            position.lane_key.as_deref().into(),
            position.follower_endpoint.into(),
            position.follower_key.as_deref().into(),
            position.follower_event.into(),
            page_size.into(),
        ],
    )?
    .first();
    Ok(OrderPosition {
        lane_endpoint: row.get(1)?,
        lane_key: row.get(2)?,
        follower_endpoint: row.get(3)?,
        follower_key: row.get(4)?,
        follower_event: row.get(5)?,
    })
}

/// Ends deliveries of endpoints that were removed; says how many, and after which endpoint to go on.
pub fn end_orphans(
    client: &mut SpiClient<'_>,
    after_endpoint: i32,
    page_size: i32,
) -> Result<(i64, i32), spi::Error> {
    let row = look(
        client,
        &END_ORPHANS,
        &[after_endpoint.into(), page_size.into()],
    )?
    .first();
    Ok((
        row.get(1)?.unwrap_or_default(),
        row.get(2)?.unwrap_or_default(),
    ))
}

/// Fails deliveries past their expires_at and those that their endpoint kept back for too long, at most that many of each;
/// says how many.
pub fn expire_waiting(client: &mut SpiClient<'_>, page_size: i32) -> Result<i64, spi::Error> {
    look(client, &EXPIRE_WAITING, &[page_size.into()])?
        .first()
        .get_one::<i64>()
        .map(Option::unwrap_or_default)
}

pub struct Alert {
    pub message: String,
    pub hint: String,
}

/// Tells the alerts there are; they are for the log too.
pub fn raise_alerts(client: &mut SpiClient<'_>) -> Result<Vec<Alert>, spi::Error> {
    client
        .update(
            "SELECT message, hint FROM webhook.raise_alerts()",
            None,
            &[],
        )?
        .map(|row| {
            Ok(Alert {
                message: row.get::<String>(1)?.unwrap_or_default(),
                hint: row.get::<String>(2)?.unwrap_or_default(),
            })
        })
        .collect()
}

pub fn foreign_endpoints(client: &SpiClient<'_>) -> Result<i64, spi::Error> {
    client
        .select("SELECT webhook.foreign_endpoints()", None, &[])?
        .first()
        .get_one::<i64>()
        .map(Option::unwrap_or_default)
}

/// Before anything is sent: gives a copy of the server that is one of its own now another identity.
pub fn recognise_installation(client: &mut SpiClient<'_>) -> Result<(), spi::Error> {
    client.select("SELECT webhook.recognise_installation()", None, &[])?;
    Ok(())
}

/// Whether a physical copy of this server would send what this one sends.
pub fn is_without_site(client: &SpiClient<'_>) -> Result<bool, spi::Error> {
    client
        .select("SELECT webhook.is_without_site()", None, &[])?
        .first()
        .get_one::<bool>()
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

/// How many deliveries were finished, by endpoint, status and class of latency.
#[derive(Default)]
pub struct Tally(pub(super) HashMap<(i32, String, i32), Finished>);

#[derive(Default)]
pub(super) struct Finished {
    pub deliveries: i64,
    pub retried: i64,
    pub retries: i64,
}

impl Tally {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn deliveries(&self) -> usize {
        let sum: i64 = self.0.values().map(|finished| finished.deliveries).sum();
        usize::try_from(sum).unwrap_or(0)
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

thread_local! {
    static EXPIRE_WAITING: Call = const {
        Call::new("SELECT webhook.expire_overdue($1) + webhook.expire_kept_back($1)")
    };
    static EXPIRE: Call = const {
        Call::new("SELECT more, behind, sent_from, failed_from, event_after, key_from FROM webhook.expire($1, $2, $3, $4, $5)")
    };
    static DEAD_INSTANCES: Call = const { Call::new("SELECT webhook.dead_instances($1)") };
    static END_INSTANCES: Call = const { Call::new("SELECT webhook.end_instances($1)") };
    static RECOVER: Call = const {
        Call::new("SELECT released, failed, locked, after_event, after_endpoint FROM webhook.recover($1, $2, $3, $4, $5, $6)")
    };
    static KEEP_ORDER: Call = const {
        Call::new(
            "SELECT lane_endpoint, lane_key, follower_endpoint, follower_key, follower_event
             FROM webhook.keep_order($1, $2, $3, $4, $5, $6)",
        )
    };
    static END_ORPHANS: Call = const { Call::new("SELECT ended, after_endpoint FROM webhook.end_orphans($1, $2)") };
    static FORGET_REMOVED: Call = const { Call::new("SELECT webhook.forget_removed_endpoints($1, $2)") };
    static EXPIRE_TALLY: Call = const { Call::new("SELECT webhook.expire_tally($1, $2)") };
}

/// Where retention has come to, as SQL says it; the beginning by default.
#[derive(Default, Clone, Copy)]
pub struct RetentionPosition {
    sent_from: Option<TimestampWithTimeZone>,
    failed_from: Option<TimestampWithTimeZone>,
    event_after: Option<pgrx::Uuid>,
    key_from: Option<TimestampWithTimeZone>,
}

pub struct Expired {
    /// The step has not come to the end.
    pub more: bool,
    /// It had to remove as many rows as it may.
    pub behind: bool,
    pub position: RetentionPosition,
}

pub fn expire(
    client: &mut SpiClient<'_>,
    step: usize,
    position: RetentionPosition,
) -> Result<Expired, spi::Error> {
    let row = look(
        client,
        &EXPIRE,
        &[
            i32::try_from(step).unwrap_or(i32::MAX).into(),
            position.sent_from.into(),
            position.failed_from.into(),
            position.event_after.into(),
            position.key_from.into(),
        ],
    )?
    .first();
    Ok(Expired {
        more: row.get::<bool>(1)?.unwrap_or_default(),
        behind: row.get::<bool>(2)?.unwrap_or_default(),
        position: RetentionPosition {
            sent_from: row.get(3)?,
            failed_from: row.get(4)?,
            event_after: row.get(5)?,
            key_from: row.get(6)?,
        },
    })
}

/// The counters of a page of endpoints; says after which to go on.
pub fn expire_tally(
    client: &mut SpiClient<'_>,
    after_endpoint: i32,
    page_size: i32,
) -> Result<i32, spi::Error> {
    page_of_endpoints(client, &EXPIRE_TALLY, after_endpoint, page_size)
}

/// Of a page of removed endpoints, those that nothing refers to any more; says after which to go on.
pub fn forget_removed_endpoints(
    client: &mut SpiClient<'_>,
    after_endpoint: i32,
    page_size: i32,
) -> Result<i32, spi::Error> {
    page_of_endpoints(client, &FORGET_REMOVED, after_endpoint, page_size)
}

fn page_of_endpoints(
    client: &mut SpiClient<'_>,
    call: &'static LocalKey<Call>,
    after_endpoint: i32,
    page_size: i32,
) -> Result<i32, spi::Error> {
    look(client, call, &[after_endpoint.into(), page_size.into()])?
        .first()
        .get_one::<i32>()
        .map(Option::unwrap_or_default)
}
