//! The second argument of `webhook_trigger()`: which columns and whose tenant, as JSON.

use serde_json::{Map, Value};

#[derive(Default)]
pub struct Options {
    /// The columns of which one must change for an update to be an event; `None` where every update is one.
    pub changed: Option<Vec<String>>,
    pub include: Option<Vec<String>>,
    pub exclude: Option<Vec<String>>,
    pub tenant_column: Option<String>,
    /// An event that cannot be emitted is counted in a warning; the change goes on.
    pub only_warns: bool,
}

impl Options {
    /// `None` for anything that `webhook_watch()` would not write: an option that is ignored could be a column that leaks.
    pub fn parse(text: &str) -> Option<Options> {
        let mut object: Map<String, Value> = serde_json::from_str(text).ok()?;
        let mut columns = |name: &str| match object.remove(name) {
            None => Some(None),
            Some(Value::Array(names)) => (names.into_iter())
                .map(string)
                .collect::<Option<_>>()
                .map(Some),
            Some(_) => None,
        };
        let (changed, include, exclude) = (
            columns("changed")?,
            columns("include")?,
            columns("exclude")?,
        );
        let tenant_column = match object.remove("tenant_column") {
            None => None,
            Some(name) => Some(string(name)?),
        };
        let only_warns = match object.remove("on_error") {
            None => false,
            Some(choice) => match string(choice)?.as_str() {
                "raise" => false,
                "warn" => true,
                _ => return None,
            },
        };
        let is_known = object.is_empty() && (include.is_none() || exclude.is_none());
        is_known.then_some(Options {
            changed,
            include,
            exclude,
            tenant_column,
            only_warns,
        })
    }

    /// Every column that is named, in the order in which a missing one is reported.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        [&self.include, &self.exclude, &self.changed]
            .into_iter()
            .flatten()
            .flatten()
            .chain(&self.tenant_column)
    }

    pub fn shows(&self, column: &String) -> bool {
        match (&self.include, &self.exclude) {
            (Some(include), _) => include.contains(column),
            (None, Some(exclude)) => !exclude.contains(column),
            (None, None) => true,
        }
    }
}

fn string(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}
