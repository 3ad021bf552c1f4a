//! Whose code could run, read from catalogs: nothing of a schema is executed before all of this is known.
//!
//! A role may have been a member of the owner for a moment, and have added to the schema what runs whenever a table is
//! written: a trigger, a rule, a default, an operator. So an installation is compared with a fresh one of its version.

use std::collections::{BTreeSet, HashSet};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::connection::refused;

/// What the catalogs have about an installation.
#[derive(Default)]
pub struct Facts(HashSet<Fact>);

#[derive(PartialEq, Eq, Hash)]
struct Fact {
    object: String,
    definition: String,
    /// The table or view that a column belongs to.
    relation: Option<String>,
}

impl Facts {
    /// Of what there is in this database.
    pub async fn found(client: &Client, owner: &str) -> Result<Facts, String> {
        Facts::read(client, owner, None).await
    }

    /// Of a fresh copy, whose functions for users are in `api_schema` in place of `public`.
    pub async fn fresh(client: &Client, owner: &str, api_schema: &str) -> Result<Facts, String> {
        Facts::read(client, owner, Some(api_schema)).await
    }

    async fn read(client: &Client, owner: &str, api_schema: Option<&str>) -> Result<Facts, String> {
        let rows = (client.query(include_str!("facts.sql"), &[&owner, &api_schema])).await;
        let rows = rows.map_err(refused)?;
        let facts: Result<_, _> = rows.iter().map(|row| Fact::of(row, api_schema)).collect();
        facts.map(Facts).map_err(refused)
    }

    /// Objects that are here and not there, or are another there. What is missing here executes nothing.
    pub fn beyond(&self, others: &Facts) -> Vec<&str> {
        let known: HashSet<&str> = others.0.iter().map(|fact| fact.object.as_str()).collect();
        let is_of_known = |fact: &&Fact| {
            let relation = fact.relation.as_deref();
            relation.is_none_or(|relation| known.contains(relation))
        };
        let beyond = self.0.iter().filter(|fact| !others.0.contains(fact));
        let names: BTreeSet<&str> = (beyond.filter(is_of_known))
            .map(|fact| fact.object.as_str())
            .collect();
        names.into_iter().collect()
    }

    pub fn objects(&self) -> Vec<&str> {
        self.beyond(&Facts::default())
    }
}

impl Fact {
    fn of(row: &Row, api_schema: Option<&str>) -> Result<Fact, tokio_postgres::Error> {
        let mut object: String = row.try_get("object")?;
        if let Some(api_schema) = api_schema {
            object = object.replace(&format!("{api_schema}."), "public.");
        }
        Ok(Fact {
            object,
            definition: row.try_get("definition")?,
            relation: row.try_get("relation")?,
        })
    }
}

/// Refuses a role that another role could act as, or that could do more than own the schema.
pub async fn require_safe_owner(client: &Client, owner: &str) -> Result<(), String> {
    let row = client.query_opt(include_str!("owner.sql"), &[&owner]).await;
    let Some(row) = row.map_err(refused)? else {
        return Ok(());
    };
    match row.try_get(0).map_err(refused)? {
        Some::<String>(problem) => Err(format!("role \"{owner}\" {problem}")),
        None => Ok(()),
    }
}

/// Refuses event triggers: they run with the rights of this session.
pub async fn require_own_event_triggers(client: &Client) -> Result<(), String> {
    match list(client, include_str!("event_triggers.sql"), &[]).await? {
        others if others.is_empty() => Ok(()),
        others => Err(format!(
            "an event trigger would run code of another role with the rights of this session\n\
             DETAIL:  {}\n\
             HINT:  ALTER EVENT TRIGGER .. DISABLE until this is done, or give the function to a superuser.",
            shown(&others)
        )),
    }
}

/// Refuses objects in the schema that belong to another role than its owner.
pub async fn require_one_owner(client: &Client, owner: &str) -> Result<(), String> {
    match list(client, include_str!("others.sql"), &[&owner]).await? {
        others if others.is_empty() => Ok(()),
        others => Err(format!(
            "schema \"webhook\" has objects that do not belong to role \"{owner}\"\n\
             DETAIL:  {}\n\
             HINT:  Drop them, or move them to another schema.",
            shown(&others)
        )),
    }
}

async fn list(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<String>, String> {
    let rows = client.query(sql, parameters).await.map_err(refused)?;
    let names = rows.iter().map(|row| row.try_get(0).map_err(refused));
    names.collect()
}

/// The first of the names, as a sentence.
pub fn shown<T: AsRef<str>>(names: &[T]) -> String {
    const MAX_NAMES: usize = 50;
    let first: Vec<&str> = names.iter().take(MAX_NAMES).map(T::as_ref).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => format!("{}.", first.join("; ")),
        more => format!("{}; and {more} more.", first.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rows: &[(&str, &str, Option<&str>)]) -> Facts {
        let fact = |(object, definition, relation): &(&str, &str, Option<&str>)| Fact {
            object: (*object).to_owned(),
            definition: (*definition).to_owned(),
            relation: relation.map(str::to_owned),
        };
        Facts(rows.iter().map(fact).collect())
    }

    #[test]
    fn what_was_added_or_changed_is_named_once() {
        let fresh = facts(&[
            ("table a", "", None),
            ("table a", "r p", None),
            ("index b", "", None),
        ]);
        let found = facts(&[
            ("table a", "", None),
            ("table a", "v p", None),
            ("column x of table a", "text", Some("table a")),
            ("table c", "", None),
            ("column x of table c", "text", Some("table c")),
            ("rule d", "", None),
            ("rule d", "x", None),
        ]);
        let named = ["column x of table a", "rule d", "table a", "table c"];
        assert_eq!(found.beyond(&fresh), named);
        assert!(fresh.beyond(&fresh).is_empty());
    }

    #[test]
    fn a_long_list_is_cut() {
        assert_eq!(shown(&["a", "b"]), "a; b.");
        assert!(shown(&["a"; 55]).ends_with("; a; and 5 more."));
    }
}
