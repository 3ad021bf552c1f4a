//! The worker's part, played by a test: claims and settlements through SQL.

use postgres::types::ToSql;
use postgres::{GenericClient, Row};
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::database::Database;

/// A cluster where nobody claims but the test, in sessions like the worker's.
pub fn idle_cluster() -> &'static Cluster {
    Cluster::idle()
}

/// The endpoint `orders`, where nobody listens; returns its id.
#[track_caller]
pub fn add_endpoint(database: &Database) -> i32 {
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    database.query_one_value("SELECT id FROM webhook.endpoint")
}

/// A delivery that was claimed, by the number that its claim has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    pub event: Uuid,
    pub endpoint: i32,
    pub claim_seq: i64,
    pub earlier_attempts: i32,
}

/// A wish of the worker: at most that many more of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub endpoint: i32,
    pub capacity: i32,
}

pub fn claim_statement(endpoint: &str, most: i32) -> String {
    format!(
        "SELECT * FROM webhook.exchange('{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}',
                                        ARRAY[{endpoint}], NULL, 1, '{{{most}}}', '{{1000000}}', 1000000)
         WHERE event_id IS NOT NULL"
    )
}

#[track_caller]
pub fn claim(client: &mut impl GenericClient, instance: i32, wishes: &[Wish]) -> Vec<Claim> {
    let column = |field: fn(&Wish) -> i32| wishes.iter().map(field).collect::<Vec<i32>>();
    let rows = query(
        client,
        "SELECT event_id, endpoint_id, claim_seq, earlier_attempts
         FROM webhook.exchange('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', $2, NULL, $1, $3, $4, $5)
         WHERE event_id IS NOT NULL",
        &[
            &instance,
            &column(|wish| wish.endpoint),
            &column(|wish| wish.capacity),
            &vec![i64::MAX; wishes.len()],
            &i64::MAX,
        ],
    );
    rows.iter()
        .map(|row| Claim {
            event: row.get(0),
            endpoint: row.get(1),
            claim_seq: row.get(2),
            earlier_attempts: row.get(3),
        })
        .collect()
}

/// As many as a worker would claim of an endpoint that has nothing in flight.
#[track_caller]
pub fn claim_of(client: &mut impl GenericClient, instance: i32, endpoint: i32) -> Vec<Claim> {
    let wish = Wish {
        endpoint,
        capacity: 16,
    };
    claim(client, instance, &[wish])
}

/// No session is this sender.
pub const NOBODY: i32 = 1_000_000;

/// All deliveries that are due at the first endpoint, in the order of their emission.
#[track_caller]
pub fn claim_due(database: &Database) -> Vec<Claim> {
    let wish = Wish {
        endpoint: database.query_one_value("SELECT min(id) FROM webhook.endpoint"),
        capacity: 100,
    };
    let mut claims = claim(&mut database.connect(), NOBODY, &[wish]);
    claims.sort_by_key(|claim| claim.event);
    claims
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub status: Option<i32>,
    pub failure: Option<&'static str>,
    pub error: Option<String>,
    /// Seconds.
    pub retry_after: Option<f64>,
    pub duration_ms: i32,
    /// How long ago it ended.
    pub age_ms: f64,
}

/// Errors that a policy may list in retry_errors.
pub const RETRIABLE_ERRORS: [&str; 6] = [
    "dns",
    "connect",
    "timeout",
    "tls",
    "reset",
    "invalid_response",
];
/// Errors that a policy never retries, or that are not the endpoint's.
pub const OTHER_ERRORS: [&str; 4] = ["blocked", "invalid_request", "local", "released"];

/// An attempt that ended then has a retry that is due, whatever its policy.
pub const LONG_AGO: f64 = 1e12;

impl Outcome {
    pub fn status(status: i32, age_ms: f64) -> Outcome {
        Outcome {
            status: Some(status),
            failure: None,
            error: None,
            retry_after: None,
            duration_ms: 1,
            age_ms,
        }
    }

    pub fn error(failure: &'static str, age_ms: f64) -> Outcome {
        Outcome {
            status: None,
            failure: Some(failure),
            error: Some(failure.to_owned()),
            ..Outcome::status(0, age_ms)
        }
    }

    /// The code that is stored for a failure.
    pub fn reason(&self) -> Option<&'static str> {
        self.status.map(|_| "status").or(self.failure)
    }

    /// The error of a failure, as it is stored.
    pub fn described(&self) -> Option<String> {
        let status = self.status.map(|status| format!("HTTP {status}"));
        self.error.clone().or(status)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Locked deliveries, by event and endpoint.
    pub locked: Vec<(Uuid, i32)>,
    /// Finished deliveries, retried ones, and their retries.
    pub counted: [i64; 3],
}

#[track_caller]
pub fn settle(client: &mut impl GenericClient, batch: &[(Claim, Outcome)]) -> Settled {
    fn column<'a, T>(
        batch: &'a [(Claim, Outcome)],
        field: impl Fn(&'a Claim, &'a Outcome) -> T,
    ) -> Vec<T> {
        let rows = batch.iter();
        rows.map(|(claim, outcome)| field(claim, outcome)).collect()
    }
    let rows = query(
        client,
        "SELECT locked_event_ids, locked_endpoint_ids,
                (SELECT array_agg((f ->> 3)::bigint) FROM jsonb_array_elements(finished) f),
                (SELECT array_agg((f ->> 4)::bigint) FROM jsonb_array_elements(finished) f),
                (SELECT array_agg((f ->> 5)::bigint) FROM jsonb_array_elements(finished) f)
         FROM webhook.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &[
            &column(batch, |claim, _| claim.event),
            &column(batch, |claim, _| claim.endpoint),
            &column(batch, |claim, _| claim.claim_seq),
            &column(batch, |_, outcome| outcome.status),
            &column(batch, |_, outcome| outcome.failure),
            &column(batch, |_, outcome| outcome.error.as_deref()),
            &column(batch, |_, _| None::<&str>),
            &column(batch, |_, outcome| outcome.retry_after),
            &column(batch, |_, outcome| outcome.duration_ms),
            &column(batch, |_, outcome| outcome.age_ms),
        ],
    );
    let row = &rows[0];
    let events = row.get::<_, Option<Vec<Uuid>>>(0).unwrap_or_default();
    let endpoints = row.get::<_, Option<Vec<i32>>>(1).unwrap_or_default();
    let sum = |column: usize| {
        let numbers = row.get::<_, Option<Vec<i64>>>(column);
        numbers.unwrap_or_default().iter().sum()
    };
    Settled {
        locked: events.into_iter().zip(endpoints).collect(),
        counted: [2, 3, 4].map(sum),
    }
}

#[track_caller]
pub fn query(
    client: &mut impl GenericClient,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Vec<Row> {
    client.batch_execute("SET ROLE webhook_owner").unwrap();
    let rows = client.query(sql, parameters);
    let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    client.batch_execute("RESET ROLE").unwrap();
    rows
}
