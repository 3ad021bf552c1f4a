//! The calls of every few seconds: the extension itself, lost claims, counters.

use super::{column, event_uuid};
use pgrx::prelude::*;
use pgrx::spi::{self, SpiClient};
use std::collections::HashMap;
use std::time::Duration;
use webhook_delivery::Key;

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

pub fn cancel_orphans(client: &mut SpiClient<'_>) -> Result<i64, spi::Error> {
    client
        .update("SELECT webhook.cancel_orphans()", None, &[])?
        .first()
        .get_one::<i64>()
        .map(Option::unwrap_or_default)
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
