//! The second argument of `webhook_trigger()`, as JSON: columns, tenant, keys and the name of the table.

use serde_json::{Map, Value};

#[derive(Default)]
pub struct Options {
    /// The columns of which one must change for an update to be an event; `None` where every update is one.
    pub changed: Option<Vec<String>>,
    pub include: Option<Vec<String>>,
    pub exclude: Option<Vec<String>>,
    pub tenant_column: Option<String>,
    /// The columns whose values make a key.
    pub ordering_key: Option<Vec<String>>,
    pub coalesce_key: Option<Vec<String>>,
    /// The names that events report in place of the table's own.
    pub schema: Option<String>,
    pub table: Option<String>,
    /// An event that cannot be emitted is counted in a warning; the change goes on.
    pub only_warns: bool,
}

impl Options {
    /// `None` for anything that `webhook_watch()` would not write: an option that is ignored could be a column that
    /// leaks.
    pub fn parse(text: &str) -> Option<Options> {
        let mut object: Map<String, Value> = serde_json::from_str(text).ok()?;
        let mut options = Options {
            changed: columns(object.remove("changed"))?,
            include: columns(object.remove("include"))?,
            exclude: columns(object.remove("exclude"))?,
            tenant_column: text_of(object.remove("tenant_column"))?,
            ordering_key: columns(object.remove("ordering_key"))?,
            coalesce_key: columns(object.remove("coalesce_key"))?,
            schema: text_of(object.remove("schema"))?,
            table: text_of(object.remove("table"))?,
            only_warns: false,
        };
        options.only_warns = match text_of(object.remove("on_error"))?.as_deref() {
            None | Some("raise") => false,
            Some("warn") => true,
            Some(_) => return None,
        };
        // webhook_watch() has put it into the trigger's WHEN, and knows its own trigger by it.
        text_of(object.remove("condition"))?;
        let is_consistent = (options.include.is_none() || options.exclude.is_none())
            && (options.schema.is_none() || options.table.is_some());
        (object.is_empty() && is_consistent).then_some(options)
    }

    /// Every column that is named, in the order in which a missing one is reported.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        [
            &self.include,
            &self.exclude,
            &self.changed,
            &self.ordering_key,
            &self.coalesce_key,
        ]
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

/// The outer `None` stands for anything but names.
fn columns(value: Option<Value>) -> Option<Option<Vec<String>>> {
    match value {
        None => Some(None),
        Some(Value::Array(names)) => (names.into_iter())
            .map(|name| text_of(Some(name))?)
            .collect::<Option<_>>()
            .map(Some),
        Some(_) => None,
    }
}

/// The outer `None` stands for anything but text.
fn text_of(value: Option<Value>) -> Option<Option<String>> {
    match value {
        None => Some(None),
        Some(Value::String(text)) => Some(Some(text)),
        Some(_) => None,
    }
}
