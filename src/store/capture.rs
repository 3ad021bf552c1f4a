//! The calls of the trigger function, in the session and the transaction of whoever writes a table.

use super::{Call, run};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi;

/// Events of one type.
pub struct Changes {
    /// text
    pub event_type: pg_sys::Datum,
    /// jsonb[]
    pub payloads: pg_sys::Datum,
    /// text[], one for each payload.
    pub tenants: pg_sys::Datum,
}

impl Changes {
    fn arguments(&self) -> [DatumWithOid<'_>; 3] {
        // SAFETY: they are of these types.
        unsafe {
            [
                DatumWithOid::new(self.event_type, pg_sys::TEXTOID),
                DatumWithOid::new(self.payloads, pg_sys::JSONBARRAYOID),
                DatumWithOid::new(self.tenants, pg_sys::TEXTARRAYOID),
            ]
        }
    }
}

thread_local! {
    static EMIT: Call = const { Call::new("SELECT webhook.emit_changes($1, $2, $3)") };
    static EMIT_POSSIBLE: Call = const {
        Call::new("SELECT lost, problem FROM webhook.emit_possible_changes($1, $2, $3, $4, $5)")
    };
}

pub fn emit_changes(changes: &Changes) -> Result<(), spi::Error> {
    Spi::connect_mut(|client| run(client, &EMIT, &changes.arguments()).map(drop))
}

/// Says how many events were lost in all, counting those that were before, and why the last of them.
pub fn emit_possible_changes(
    changes: &Changes,
    lost: i64,
    problem: Option<String>,
) -> Result<(i64, Option<String>), spi::Error> {
    Spi::connect_mut(|client| {
        let [event_type, payloads, tenants] = changes.arguments();
        let arguments = [event_type, payloads, tenants, lost.into(), problem.into()];
        let (lost, problem) = run(client, &EMIT_POSSIBLE, &arguments)?
            .first()
            .get_two::<i64, String>()?;
        Ok((lost.unwrap_or_default(), problem))
    })
}
