//! The calls before the extension is dropped, in the session that drops it.

use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;

/// Whether these are extensions, ours among them, that the user may drop.
pub fn may_drop_extension(user: pg_sys::Oid, names: pg_sys::Datum) -> bool {
    let sql = "SELECT EXISTS (SELECT FROM pg_extension x WHERE x.extname = 'webhook' AND x.extname = ANY ($2)
                                AND pg_has_role($1, x.extowner, 'USAGE'))";
    value(sql, &[user.into(), array_of_text(names)]).unwrap_or(false)
}

/// Whether these are schemas, one that the extension needs among them, that the user may drop.
pub fn may_drop_schema(user: pg_sys::Oid, names: pg_sys::Datum) -> bool {
    let sql = "SELECT EXISTS (SELECT FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace OR n.nspname = 'webhook'
                              WHERE x.extname = 'webhook' AND n.nspname = ANY ($2)
                                AND pg_has_role($1, n.nspowner, 'USAGE'))";
    value(sql, &[user.into(), array_of_text(names)]).unwrap_or(false)
}

fn array_of_text<'a>(names: pg_sys::Datum) -> DatumWithOid<'a> {
    // SAFETY: it is of this type.
    unsafe { DatumWithOid::new(names, pg_sys::TEXTARRAYOID) }
}

/// How many deliveries are queued, in words; nothing where somebody has renamed our schema.
pub fn unsent() -> Option<String> {
    let exists = "SELECT to_regprocedure('webhook.unsent()') IS NOT NULL";
    value::<bool>(exists, &[])?
        .then(|| value("SELECT webhook.unsent()", &[]))
        .flatten()
}

pub fn withdraw_grants() {
    let called = Spi::run("SELECT webhook.withdraw_grants()");
    called.unwrap_or_else(|error| error!("{error}"));
}

/// Runs with the rights of the database's owner, who has given the right.
pub fn revoke_connect() {
    let sql = "SELECT pg_catalog.format('REVOKE CONNECT ON DATABASE %I FROM webhook_owner', pg_catalog.current_database())";
    if let Some(statement) = value::<String>(sql, &[]) {
        Spi::run(&statement).unwrap_or_else(|error| error!("{error}"));
    }
}

fn value<T: FromDatum + IntoDatum>(sql: &str, arguments: &[DatumWithOid<'_>]) -> Option<T> {
    Spi::get_one_with_args(sql, arguments).unwrap_or_else(|error| error!("{error}"))
}
