//! Figures of the database, for people and scrapers: each look has a connection of its own, which ends with it. So it
//! never waits for the session that delivers, nor delays it, and a relay that nobody looks at stays idle.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::session::described;
use crate::target::Target;

/// The time for connecting and all statements. Prometheus gives up after 10 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(9);

/// A transaction, since a pooler may lend the session to others afterwards. Figures are views, and older minor releases
/// cannot restrict these. The last statement has no row, since the rows of all statements are the answer.
const BEGIN: &str = "
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL search_path = pg_catalog, pg_temp;
    SET LOCAL statement_timeout = '4s';
    SET LOCAL lock_timeout = '1s';
    SET LOCAL jit = off;
    SELECT FROM pg_settings s
    WHERE CASE s.name WHEN 'restrict_nonsystem_relation_kind' THEN set_config(s.name, '', true) IS NULL END;";

#[derive(Debug)]
pub enum Refusal {
    /// The role has not got the level `read`.
    Denied(String),
    /// This may pass.
    Unavailable(String),
}

impl Refusal {
    pub fn message(&self) -> &str {
        match self {
            Refusal::Denied(message) | Refusal::Unavailable(message) => message,
        }
    }
}

pub struct Figures {
    client: Client,
}

impl Figures {
    pub async fn look<T>(
        target: &Target,
        ask: impl AsyncFnOnce(&Figures) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let look = async { ask(&Figures::open(target).await?).await };
        match tokio::time::timeout(ANSWER_WITHIN, look).await {
            Ok(answer) => answer,
            Err(_) => Err(Refusal::Unavailable(format!(
                "no answer of the database within {} s",
                ANSWER_WITHIN.as_secs()
            ))),
        }
    }

    async fn open(target: &Target) -> Result<Figures, Refusal> {
        let mut config = target.config.clone();
        if config.get_hosts().len() <= 1 {
            // A standby has figures too, for a target that names it.
            config.target_session_attrs(TargetSessionAttrs::Any);
        }
        let begun = config.connect(target.tls.clone()).await;
        let (client, connection) = begun.map_err(|error| unavailable(&error))?;
        // The task ends with the client.
        tokio::spawn(connection);
        Ok(Figures { client })
    }

    /// The rows of a query, as objects.
    pub async fn rows(&self, query: &str) -> Result<Vec<Value>, Refusal> {
        let query = format!("SELECT to_jsonb(figures)::text FROM (\n{query}\n) figures");
        Ok(self.values(&query).await?)
    }

    /// The same for a query that may take too long where there is very much to count: nothing then.
    pub async fn rows_in_time(&self, query: &str) -> Result<Option<Vec<Value>>, Refusal> {
        let query = format!("SELECT to_jsonb(figures)::text FROM (\n{query}\n) figures");
        match self.values(&query).await {
            Err(Problem::OutOfTime) => Ok(None),
            rows => Ok(Some(rows?)),
        }
    }

    /// The only value of a query that gives one in JSON.
    pub async fn value(&self, query: &str) -> Result<Value, Refusal> {
        let mut values = self.values(query).await?;
        Ok(values.pop().unwrap_or_default())
    }

    async fn values(&self, query: &str) -> Result<Vec<Value>, Problem> {
        let answer = self.client.simple_query(&format!("{BEGIN}\n{query}")).await;
        let values = match answer {
            Ok(messages) => messages.iter().filter_map(json).collect(),
            Err(error) => Err(self.problem(&error).await),
        };
        // The connection ends soon, and the transaction with it, at the latest.
        let _ = self.client.batch_execute("ROLLBACK").await;
        values
    }

    async fn problem(&self, error: &Error) -> Problem {
        match error.code() {
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                let _ = self.client.batch_execute("ROLLBACK").await;
                let role = self.role().await.unwrap_or_default();
                Problem::Refused(Refusal::Denied(lacks_level(&role)))
            }
            Some(&SqlState::QUERY_CANCELED) => Problem::OutOfTime,
            Some(
                &SqlState::INVALID_SCHEMA_NAME
                | &SqlState::UNDEFINED_TABLE
                | &SqlState::UNDEFINED_FUNCTION
                | &SqlState::UNDEFINED_COLUMN,
            ) => Problem::Refused(Refusal::Unavailable(format!(
                "the database does not have the extension webhook of this version, {}",
                env!("CARGO_PKG_VERSION")
            ))),
            _ => Problem::Refused(unavailable(error)),
        }
    }

    async fn role(&self) -> Option<String> {
        let statement = "SELECT pg_catalog.quote_literal(current_user)";
        let answer = self.client.simple_query(statement).await.ok()?;
        answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }
}

enum Problem {
    OutOfTime,
    Refused(Refusal),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        match problem {
            Problem::Refused(refusal) => refusal,
            Problem::OutOfTime => {
                Refusal::Unavailable("the database took longer than 4 s to count".to_owned())
            }
        }
    }
}

fn json(message: &SimpleQueryMessage) -> Option<Result<Value, Problem>> {
    let SimpleQueryMessage::Row(row) = message else {
        return None;
    };
    let value = serde_json::from_str(row.get(0)?);
    Some(value.map_err(|error| Problem::Refused(Refusal::Unavailable(error.to_string()))))
}

/// The name is a literal already.
fn lacks_level(role: &str) -> String {
    format!(
        "role {role} needs the level read to see figures: SELECT webhook_grant({role}, 'read') gives it"
    )
}

fn unavailable(error: &Error) -> Refusal {
    Refusal::Unavailable(described(error))
}
