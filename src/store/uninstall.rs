//! The calls before the extension is dropped, in the session that drops it.

use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;

/// Whether the extension goes with one of these schemas.
pub fn needs_schema(names: Vec<String>) -> bool {
    let sql = "SELECT EXISTS (SELECT FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
                              WHERE x.extname = 'webhook' AND (n.nspname = ANY ($1) OR 'webhook' = ANY ($1)))";
    value(sql, &[names.into()]).unwrap_or(false)
}

/// How many deliveries are queued; nothing where somebody has renamed our schema.
pub fn unsent() -> Option<i64> {
    let exists = "SELECT to_regprocedure('webhook.unsent()') IS NOT NULL";
    value::<bool>(exists, &[])?
        .then(|| value("SELECT webhook.unsent()", &[]))
        .flatten()
}

pub fn withdraw_grants() {
    let called = Spi::run("SELECT webhook.withdraw_grants()");
    called.unwrap_or_else(|error| error!("{error}"));
}

fn value<T: FromDatum + IntoDatum>(sql: &str, arguments: &[DatumWithOid<'_>]) -> Option<T> {
    Spi::get_one_with_args(sql, arguments).unwrap_or_else(|error| error!("{error}"))
}
