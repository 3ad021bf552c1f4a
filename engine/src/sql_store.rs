//! The store of all hosts that can run a statement: the SQL that is called, its arguments and its results.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use uuid::Uuid;
use webhook_delivery::{Attempt, EndpointOwner, Format, Header, Key, Route};

use crate::figures::Figures;
use crate::known_routes::KnownRoutes;
use crate::ledger::Ending;
use crate::store::{
    Alert, Claimed, Due, Examined, Exchanged, Finished, Page, Position, Recovered, Retained,
    Shares, Store, Survey, Wishes,
};
use crate::trouble::Trouble;

/// Runs statements, each in a transaction of its own. It may prepare and keep them: there are few.
pub trait Connection {
    fn run(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Vec<Value>>, Trouble>;
}

#[derive(Debug, Clone)]
pub enum Parameter<'a> {
    Int(Option<i32>),
    BigInt(i64),
    Text(Option<&'a str>),
    Ints(Vec<i32>),
    BigInts(Vec<i64>),
    Uuids(Vec<Uuid>),
    Texts(Vec<&'a str>),
    NullableInts(Vec<Option<i32>>),
    NullableTexts(Vec<Option<&'a str>>),
    NullableFloats(Vec<Option<f64>>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i32),
    BigInt(i64),
    Uuid(Uuid),
    Text(String),
    /// A text for which there was no memory.
    TooLarge,
}

/// The name of a sender, as people see it.
#[derive(Debug, Clone)]
pub struct Identity {
    /// `worker` or `relay`.
    pub kind: &'static str,
    pub host: Option<String>,
    pub version: &'static str,
}

pub struct SqlStore<C> {
    pub connection: C,
    identity: Identity,
    routes: KnownRoutes,
}

const EXCHANGE: &str =
    "SELECT event_id, endpoint_id, claim_seq, earlier_attempts, event_type, payload, occurred_at, tenant, report::text
     FROM webhook.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";
const EXCHANGE_WITHOUT_BREAKERS: &str =
    "SELECT event_id, endpoint_id, claim_seq, earlier_attempts, event_type, payload, occurred_at, tenant, report::text
     FROM webhook.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, breakers_are_locked => true)";
const AGENDA: &str = "
    SELECT pg_catalog.json_build_object(
               'due', (SELECT pg_catalog.json_agg(d) FROM webhook.due(a.endpoint_ids, a.positions) d WHERE a.endpoint_ids IS NOT NULL),
               'later_endpoint_ids', a.later_endpoint_ids, 'later_in_ms', a.later_in_ms, 'goes_on_after', a.goes_on_after)::text
    FROM webhook.agenda($1, $2) a";
const TURN_AWAY: &str = "SELECT webhook.turn_away($1, $2)";
const BEGIN_SENDER: &str = "SELECT webhook.begin_sender($1, $2, $3, $4)";
const END_SENDERS: &str = "SELECT webhook.end_senders($1)";
const DEAD_SENDERS: &str = "SELECT pg_catalog.unnest(webhook.dead_senders())";
const TAKE_SHARES: &str = "SELECT pg_catalog.to_jsonb(s)::text FROM webhook.take_shares($1, $2) s";
const RING: &str = "SELECT webhook.ring()";
const RELEASE_SHARES: &str = "SELECT webhook.release_shares($1, $2)";
/// Looks the function up in the catalog first, since SQL that is not there cannot be called. It is that of the
/// extension; or of the schema that webhook-relay has made, if it belongs to a role that no client can be. Every owner
/// of a database can give a schema to a predefined role, and a worker calls functions of its own role alone: the
/// schema may be a stranger's, whose functions would run with the rights of this session.
const EXAMINE: &str = "
    SELECT x.oid::pg_catalog.text, pg_catalog.current_database()::pg_catalog.text,
           pg_catalog.to_regprocedure('webhook.protocol()') IS NOT NULL
    FROM (SELECT x.oid FROM pg_catalog.pg_extension x WHERE x.extname = 'webhook'
          UNION ALL
          SELECT n.oid FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
          WHERE n.nspname = 'webhook' AND (NOT r.rolcanlogin OR r.rolconnlimit = 0)
            AND CASE session_user WHEN 'webhook_owner' THEN r.rolname = session_user ELSE r.oid >= 16384 END
            AND pg_catalog.to_regprocedure('webhook.portable_version()') IS NOT NULL) x
    LIMIT 1";
const PROTOCOL: &str = "SELECT webhook.protocol()";
const SURVEY: &str =
    "SELECT foreign_endpoints, is_without_site, longest_request_seconds FROM webhook.survey()";
const RECOVER: &str = "
    SELECT r.released, r.failed, r.locked,
           CASE WHEN r.after_event IS NOT NULL
                THEN pg_catalog.jsonb_build_object('event', r.after_event, 'endpoint', r.after_endpoint)::text END
    FROM webhook.recover($1, $2, $3, ($4::pg_catalog.jsonb ->> 'event')::pg_catalog.uuid,
                         ($4::pg_catalog.jsonb ->> 'endpoint')::pg_catalog.int4, $5) r";
const KEEP_ORDER: &str = "
    SELECT pg_catalog.to_jsonb(o)::text
    FROM (VALUES ($1::pg_catalog.jsonb)) AS p (position)
    CROSS JOIN LATERAL webhook.keep_order(
        (p.position ->> 'lane_endpoint')::pg_catalog.int4, p.position ->> 'lane_key',
        (p.position ->> 'follower_endpoint')::pg_catalog.int4, p.position ->> 'follower_key',
        (p.position ->> 'follower_event')::pg_catalog.uuid, $2) o";
const END_ORPHANS: &str = "SELECT ended, after_endpoint FROM webhook.end_orphans($1, $2)";
const EXPIRE_WAITING: &str = "SELECT webhook.expire_waiting($1)";
const RETAIN: &str = "
    SELECT e.more, e.behind,
           pg_catalog.jsonb_build_object('sent_from', e.sent_from, 'failed_from', e.failed_from,
                                         'event_after', e.event_after, 'key_from', e.key_from)::text
    FROM (VALUES ($2::pg_catalog.jsonb)) AS p (position)
    CROSS JOIN LATERAL webhook.expire(
        $1, (p.position ->> 'sent_from')::pg_catalog.timestamptz, (p.position ->> 'failed_from')::pg_catalog.timestamptz,
        (p.position ->> 'event_after')::pg_catalog.uuid, (p.position ->> 'key_from')::pg_catalog.timestamptz) e";
const EXPIRE_FIGURES: &str = "SELECT webhook.expire_figures($1, $2)";
const FORGET_REMOVED: &str = "SELECT webhook.forget_removed_endpoints($1, $2)";
const RAISE_ALERTS: &str = "SELECT message, hint FROM webhook.raise_alerts()";
const ADD_FIGURES: &str = "SELECT webhook.add_figures($1::pg_catalog.jsonb)::text";
const CHECK_METRICS: &str = "SELECT webhook.check_metrics()";

impl<C: Connection> Store for SqlStore<C> {
    fn exchange(&mut self, endings: &[Ending], wishes: &Wishes) -> Result<Exchanged, Trouble> {
        // From before the transaction, so that nothing ends earlier by its clock than it did: a wait that an endpoint
        // asked for would be too short.
        let begun = Instant::now();
        let age = |ending: &Ending| begun.saturating_duration_since(ending.ended);
        let wished = &wishes.of_endpoints;
        let statement = match wishes.breakers_are_locked {
            false => EXCHANGE,
            true => EXCHANGE_WITHOUT_BREAKERS,
        };
        let rows = self.connection.run(
            statement,
            &[
                Parameter::Uuids(column(endings, |ending| ending.key.event_id)),
                Parameter::Ints(column(endings, |ending| ending.key.endpoint_id)),
                Parameter::BigInts(column(endings, |ending| ending.key.claim_seq)),
                Parameter::NullableInts(column(endings, |ending| ending.status_code)),
                Parameter::NullableTexts(column(endings, |ending| ending.failure)),
                Parameter::NullableTexts(column(endings, |ending| ending.error.as_deref())),
                Parameter::NullableTexts(column(endings, |ending| ending.excerpt.as_deref())),
                Parameter::NullableFloats(column(endings, |ending| {
                    ending.retry_after.map(|delay| delay.as_secs_f64())
                })),
                Parameter::Ints(column(endings, |ending| {
                    i32::try_from(ending.duration.as_millis()).unwrap_or(i32::MAX)
                })),
                Parameter::NullableFloats(column(endings, |ending| {
                    Some(age(ending).as_secs_f64() * 1e3)
                })),
                Parameter::Ints(column(&wishes.asked, |(endpoint_id, _)| *endpoint_id)),
                Parameter::NullableFloats(column(&wishes.asked, |(_, position)| Some(*position))),
                Parameter::Int(wishes.sender),
                Parameter::Ints(column(wished, |wish| int(wish.count))),
                Parameter::BigInts(column(wished, |wish| big_int(wish.byte_room))),
                Parameter::BigInt(big_int(wishes.byte_room)),
                Parameter::NullableTexts(column(wished, |wish| {
                    self.routes.stamp(wish.endpoint_id)
                })),
                Parameter::Int(Some(int(wishes.asked_for_endings))),
            ],
        )?;
        exchanged(rows, &mut self.routes)
    }

    fn agenda(&mut self, after_endpoint: i32, page_size: usize) -> Result<Page, Trouble> {
        let parameters = [
            Parameter::Int(Some(after_endpoint)),
            Parameter::Int(Some(int(page_size))),
        ];
        let mut row = self.one(AGENDA, &parameters)?;
        let page: ReportedPage = read(&row.text(0).unwrap_or_default())?;
        Ok(Page::from(page))
    }

    fn turn_away(&mut self, endpoints: Vec<i32>, page_size: i32) -> Result<i64, Trouble> {
        let parameters = [Parameter::Ints(endpoints), Parameter::Int(Some(page_size))];
        Ok(self.one(TURN_AWAY, &parameters)?.number(0))
    }

    fn begin_sender(&mut self, earlier: Vec<i32>) -> Result<i32, Trouble> {
        // Another server may be the primary now, with other rows of the same versions.
        self.routes = KnownRoutes::default();
        let Identity {
            kind,
            host,
            version,
        } = self.identity.clone();
        let parameters = [
            Parameter::Text(Some(kind)),
            Parameter::Text(host.as_deref()),
            Parameter::Text(Some(version)),
            Parameter::Ints(earlier),
        ];
        Ok(self.one(BEGIN_SENDER, &parameters)?.int(0))
    }

    fn end_senders(&mut self, senders: Vec<i32>) -> Result<(), Trouble> {
        let parameters = [Parameter::Ints(senders)];
        self.connection.run(END_SENDERS, &parameters).map(drop)
    }

    fn dead_senders(&mut self) -> Result<Vec<i32>, Trouble> {
        let rows = self.connection.run(DEAD_SENDERS, &[])?;
        Ok(rows.into_iter().map(|row| Row(row).int(0)).collect())
    }

    fn take_shares(&mut self, sender: i32, in_flight: usize) -> Result<Shares, Trouble> {
        let parameters = [
            Parameter::Int(Some(sender)),
            Parameter::Int(Some(int(in_flight))),
        ];
        let mut row = self.one(TAKE_SHARES, &parameters)?;
        read(&row.text(0).unwrap_or_default())
    }

    fn ring(&mut self) -> Result<(), Trouble> {
        self.connection.run(RING, &[]).map(drop)
    }

    fn release_shares(&mut self, sender: i32, numbers: &[i32]) -> Result<(), Trouble> {
        let parameters = [
            Parameter::Int(Some(sender)),
            Parameter::Ints(numbers.to_vec()),
        ];
        self.connection.run(RELEASE_SHARES, &parameters).map(drop)
    }

    fn examine(&mut self) -> Result<Option<Examined>, Trouble> {
        let rows = self.connection.run(EXAMINE, &[])?;
        let Some(mut found) = rows.into_iter().next().map(Row) else {
            return Ok(None);
        };
        let protocol = match found.flag(2) {
            true => self.one(PROTOCOL, &[])?.int(0),
            false => 0,
        };
        Ok(Some(Examined {
            installation: found.text(0).unwrap_or_default(),
            database: found.text(1).unwrap_or_default(),
            protocol,
        }))
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        self.routes.forget_unused();
        let row = self.one(SURVEY, &[])?;
        Ok(Survey {
            foreign_endpoints: row.number(0),
            is_without_site: row.flag(1),
            longest_request: Duration::from_secs(row.number(2).max(0) as u64),
        })
    }

    fn recover(
        &mut self,
        sender: i32,
        in_flight: &[Key],
        position: Option<&str>,
        page_size: i32,
    ) -> Result<Recovered, Trouble> {
        let parameters = [
            Parameter::Int(Some(sender)),
            Parameter::Uuids(column(in_flight, |key| key.event_id)),
            Parameter::Ints(column(in_flight, |key| key.endpoint_id)),
            Parameter::Text(position),
            Parameter::Int(Some(page_size)),
        ];
        let mut row = self.one(RECOVER, &parameters)?;
        Ok(Recovered {
            released: row.number(0),
            failed: row.number(1),
            locked: row.number(2),
            position: row.text(3),
        })
    }

    fn keep_order(
        &mut self,
        position: Option<&str>,
        page_size: i32,
    ) -> Result<Option<String>, Trouble> {
        let parameters = [Parameter::Text(position), Parameter::Int(Some(page_size))];
        Ok(self.one(KEEP_ORDER, &parameters)?.text(0))
    }

    fn end_orphans(&mut self, after_endpoint: i32, page_size: i32) -> Result<(i64, i32), Trouble> {
        let row = self.page(END_ORPHANS, after_endpoint, page_size)?;
        Ok((row.number(0), row.int(1)))
    }

    fn expire_waiting(&mut self, page_size: i32) -> Result<i64, Trouble> {
        let parameters = [Parameter::Int(Some(page_size))];
        Ok(self.one(EXPIRE_WAITING, &parameters)?.number(0))
    }

    fn retain(&mut self, step: usize, position: Option<&str>) -> Result<Retained, Trouble> {
        let parameters = [Parameter::Int(Some(int(step))), Parameter::Text(position)];
        let mut row = self.one(RETAIN, &parameters)?;
        Ok(Retained {
            more: row.flag(0),
            behind: row.flag(1),
            position: row.text(2),
        })
    }

    fn expire_figures(&mut self, after_endpoint: i32, page_size: i32) -> Result<i32, Trouble> {
        Ok(self.page(EXPIRE_FIGURES, after_endpoint, page_size)?.int(0))
    }

    fn forget_removed_endpoints(
        &mut self,
        after_endpoint: i32,
        page_size: i32,
    ) -> Result<i32, Trouble> {
        Ok(self.page(FORGET_REMOVED, after_endpoint, page_size)?.int(0))
    }

    fn raise_alerts(&mut self) -> Result<Vec<Alert>, Trouble> {
        let rows = self.connection.run(RAISE_ALERTS, &[])?.into_iter();
        Ok(rows
            .map(Row)
            .map(|mut row| Alert {
                message: row.text(0).unwrap_or_default(),
                hint: row.text(1).unwrap_or_default(),
            })
            .collect())
    }

    fn add_figures(&mut self, figures: &Figures) -> Result<(), Trouble> {
        let figures = figures.as_json();
        let parameters = [Parameter::Text(Some(&figures))];
        self.connection.run(ADD_FIGURES, &parameters).map(drop)
    }

    fn check_metrics(&mut self) -> Result<bool, Trouble> {
        Ok(self.one(CHECK_METRICS, &[])?.flag(0))
    }
}

impl<C> SqlStore<C> {
    pub fn new(connection: C, identity: Identity) -> Self {
        SqlStore {
            connection,
            identity,
            routes: KnownRoutes::default(),
        }
    }
}

impl<C: Connection> SqlStore<C> {
    fn one(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Trouble> {
        let rows = self.connection.run(statement, parameters)?;
        let row = rows.into_iter().next().map(Row);
        row.ok_or_else(|| Trouble::new("XX000", "a call of the extension's SQL returned nothing"))
    }

    fn page(
        &mut self,
        statement: &'static str,
        after_endpoint: i32,
        page_size: i32,
    ) -> Result<Row, Trouble> {
        let parameters = [
            Parameter::Int(Some(after_endpoint)),
            Parameter::Int(Some(page_size)),
        ];
        self.one(statement, &parameters)
    }
}

/// A value that is null, or of another type than SQL has promised, is nothing.
struct Row(Vec<Value>);

impl Row {
    fn int(&self, ordinal: usize) -> i32 {
        match self.0.get(ordinal) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        }
    }

    fn number(&self, ordinal: usize) -> i64 {
        match self.0.get(ordinal) {
            Some(Value::BigInt(number)) => *number,
            _ => 0,
        }
    }

    fn flag(&self, ordinal: usize) -> bool {
        matches!(self.0.get(ordinal), Some(Value::Bool(true)))
    }

    fn text(&mut self, ordinal: usize) -> Option<String> {
        match self.0.get_mut(ordinal) {
            Some(Value::Text(text)) => Some(std::mem::take(text)),
            _ => None,
        }
    }
}

fn column<'a, R, T>(rows: &'a [R], field: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(field).collect()
}

fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn big_int(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn read<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, Trouble> {
    serde_json::from_str(json)
        .map_err(|error| Trouble::new("XX000", format!("a report of the extension's SQL: {error}")))
}

/// The last row of an exchange, as sql/44_exchange.sql describes it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Report {
    locked: Option<Vec<(Uuid, i32, i64)>>,
    finished: Option<Vec<ReportedFinished>>,
    routes: Option<Vec<ReportedRoute>>,
    due: Option<Vec<ReportedDue>>,
}

/// Endpoint, status, class of latency; deliveries, how many of them were retried, and their retries.
type ReportedFinished = (i32, String, i32, i64, i64, i64);

#[derive(Deserialize)]
struct ReportedRoute {
    endpoint_id: i32,
    has_tenant: bool,
    url: String,
    headers: BTreeMap<String, serde_json::Value>,
    secrets: Option<Vec<String>>,
    hmac_secrets: Option<Vec<String>>,
    connect_timeout_ms: Option<i32>,
    timeout_ms: Option<i32>,
    format: String,
    template: Option<String>,
    source: Option<String>,
    stamp: String,
}

#[derive(Deserialize)]
struct ReportedDue {
    endpoint_id: i32,
    due_in_ms: Option<i64>,
    new_position: Option<Position>,
    max_in_flight: Option<i32>,
    rate_limit: Option<f64>,
    breaker_state: String,
    is_guarded: bool,
    turns_away: bool,
    is_well: bool,
}

#[derive(Deserialize)]
struct ReportedPage {
    due: Option<Vec<ReportedDue>>,
    later_endpoint_ids: Option<Vec<i32>>,
    later_in_ms: Option<Vec<i64>>,
    goes_on_after: Option<i32>,
}

impl From<ReportedPage> for Page {
    fn from(page: ReportedPage) -> Self {
        let due = page.due.unwrap_or_default().into_iter();
        let ids = page.later_endpoint_ids.unwrap_or_default().into_iter();
        let times = page.later_in_ms.unwrap_or_default().into_iter();
        Page {
            due: due.map(Due::from).collect(),
            later: ids.zip(times.map(milliseconds)).collect(),
            goes_on_after: page.goes_on_after,
        }
    }
}

fn milliseconds(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0) as u64)
}

impl From<ReportedDue> for Due {
    fn from(due: ReportedDue) -> Self {
        Due {
            endpoint_id: due.endpoint_id,
            due_in: due.due_in_ms.map(milliseconds),
            position: due.new_position,
            max_in_flight: due.max_in_flight.and_then(|n| usize::try_from(n).ok()),
            rate_limit: due.rate_limit,
            breaker_is_closed: due.breaker_state == "CLOSED",
            is_guarded: due.is_guarded,
            turns_away: due.turns_away,
            is_well: due.is_well,
        }
    }
}

impl From<ReportedRoute> for Route {
    fn from(route: ReportedRoute) -> Self {
        let milliseconds =
            |ms: Option<i32>| Duration::from_millis(ms.unwrap_or_default().max(1) as u64);
        Route {
            endpoint_id: route.endpoint_id,
            owner: EndpointOwner::new(route.has_tenant),
            url: route.url,
            headers: route.headers.into_iter().map(header).collect(),
            format: Format::named(&route.format, route.template, route.source),
            secrets: route.secrets.unwrap_or_default(),
            hmac_secrets: route.hmac_secrets.unwrap_or_default(),
            connect_timeout: milliseconds(route.connect_timeout_ms),
            timeout: milliseconds(route.timeout_ms),
        }
    }
}

fn header((name, value): (String, serde_json::Value)) -> Header {
    match value {
        serde_json::Value::String(text) => Header::new(&name, &text),
        // The table refuses it; a row may be older than its check.
        other => Header::new(&name, &other.to_string()),
    }
}

fn exchanged(mut rows: Vec<Vec<Value>>, routes: &mut KnownRoutes) -> Result<Exchanged, Trouble> {
    let mut last = Row(rows.pop().unwrap_or_default());
    let report: Report = read(&last.text(8).unwrap_or_else(|| "{}".to_owned()))?;
    let locked = report.locked.unwrap_or_default().into_iter();
    let locked = locked.map(|(event_id, endpoint_id, claim_seq)| Key {
        event_id,
        endpoint_id,
        claim_seq,
    });
    let finished = report.finished.unwrap_or_default().into_iter();
    let finished = finished.map(
        |(endpoint_id, status, latency_class, deliveries, retried, retries)| Finished {
            endpoint_id,
            is_sent: status == "SENT",
            latency_class,
            deliveries,
            retried,
            retries,
        },
    );
    for mut route in report.routes.unwrap_or_default() {
        let stamp = std::mem::take(&mut route.stamp);
        routes.learn(stamp, Route::from(route));
    }
    let due = report.due.unwrap_or_default().into_iter();
    Ok(Exchanged {
        locked: locked.collect(),
        finished: finished.collect(),
        claimed: claimed(rows, routes),
        due: due.map(Due::from).collect(),
    })
}

fn claimed(rows: Vec<Vec<Value>>, routes: &mut KnownRoutes) -> Claimed {
    let mut claimed = Claimed::default();
    for mut row in rows.into_iter().map(Row) {
        let key = Key {
            event_id: match row.0.first() {
                Some(Value::Uuid(id)) => *id,
                _ => Uuid::nil(),
            },
            endpoint_id: row.int(1),
            claim_seq: row.number(2),
        };
        match (row.0.get(5), routes.of(key.endpoint_id)) {
            (Some(Value::TooLarge), _) => claimed.endings.push(Ending::out_of_memory(key)),
            (Some(Value::Text(_)), Some(route)) => claimed.attempts.push(Attempt {
                key,
                earlier_attempts: row.int(3),
                event_type: row.text(4).unwrap_or_default(),
                payload: row.text(5).unwrap_or_default(),
                occurred_at: row.text(6).unwrap_or_default(),
                tenant: row.text(7),
                route,
            }),
            (Some(Value::Text(_)), None) => claimed.endings.push(Ending::endpoint_removed(key)),
            _ => claimed.endings.push(Ending::event_deleted(key)),
        }
    }
    claimed
}
