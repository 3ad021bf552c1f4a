//! The calls of the trigger function, in the session and the transaction that write a table.

use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::{self, OwnedPreparedStatement, SpiClient, SpiTupleTable};
use std::cell::OnceCell;
use std::thread::LocalKey;

/// Events of one type.
pub struct Changes {
    /// text
    pub event_type: pg_sys::Datum,
    /// jsonb[]
    pub payloads: pg_sys::Datum,
    /// text[], one for each payload, as are the keys; none where no event has one.
    pub tenants: Option<pg_sys::Datum>,
    pub ordering_keys: Option<pg_sys::Datum>,
    pub coalesce_keys: Option<pg_sys::Datum>,
}

impl Changes {
    fn arguments(&self) -> [DatumWithOid<'_>; 5] {
        let texts = |array: Option<pg_sys::Datum>| match array {
            // SAFETY: the fields have the types that their comments name, and live as long as `self`.
            Some(array) => unsafe { DatumWithOid::new(array, pg_sys::TEXTARRAYOID) },
            None => DatumWithOid::null_oid(pg_sys::TEXTARRAYOID),
        };
        // SAFETY: as above.
        let (event_type, payloads) = unsafe {
            (
                DatumWithOid::new(self.event_type, pg_sys::TEXTOID),
                DatumWithOid::new(self.payloads, pg_sys::JSONBARRAYOID),
            )
        };
        [
            event_type,
            payloads,
            texts(self.tenants),
            texts(self.ordering_keys),
            texts(self.coalesce_keys),
        ]
    }
}

thread_local! {
    static EMIT: Call = const { Call::new("SELECT webhook.emit_changes($1, $2, $3, $4, $5)") };
    static EMIT_POSSIBLE: Call = const {
        Call::new("SELECT lost, problem FROM webhook.emit_possible_changes($1, $2, $3, $4, $5, $6, $7)")
    };
}

pub fn emit_changes(changes: &Changes) -> Result<(), spi::Error> {
    Spi::connect_mut(|client| run(client, &EMIT, &changes.arguments()).map(drop))
}

/// Says how many events were lost in all, counting earlier ones, and why the last of them.
pub fn emit_possible_changes(
    changes: &Changes,
    lost: i64,
    problem: Option<String>,
) -> Result<(i64, Option<String>), spi::Error> {
    Spi::connect_mut(|client| {
        let mut arguments = Vec::from(changes.arguments());
        arguments.extend([lost.into(), problem.into()]);
        let (lost, problem) = run(client, &EMIT_POSSIBLE, &arguments)?
            .first()
            .get_two::<i64, String>()?;
        Ok((lost.unwrap_or_default(), problem))
    })
}

/// A call of SQL that is planned once and kept as long as the process lives.
struct Call {
    sql: &'static str,
    plan: OnceCell<OwnedPreparedStatement>,
}

impl Call {
    const fn new(sql: &'static str) -> Self {
        Call {
            sql,
            plan: OnceCell::new(),
        }
    }
}

fn run<'conn>(
    client: &mut SpiClient<'conn>,
    call: &'static LocalKey<Call>,
    arguments: &[DatumWithOid<'_>],
) -> Result<SpiTupleTable<'conn>, spi::Error> {
    call.with(|call| {
        if let Some(plan) = call.plan.get() {
            return client.update(plan, None, arguments);
        }
        let plan = client.prepare_mut(call.sql, &types_of(arguments))?.keep();
        client.update(call.plan.get_or_init(|| plan), None, arguments)
    })
}

fn types_of(arguments: &[DatumWithOid<'_>]) -> Vec<PgOid> {
    let oids = arguments.iter().map(DatumWithOid::oid);
    oids.map(PgOid::from).collect()
}
