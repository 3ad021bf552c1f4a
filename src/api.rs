//! The functions that SQL calls; `sql/native.sql` declares them.

use crate::shmem;
use crate::wake;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn new_id() -> pgrx::Uuid {
    pgrx::Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes())
}

#[pg_extern(sql = false)]
fn new_secret() -> String {
    webhook_delivery::signing::new_secret()
        .unwrap_or_else(|error| error!("no random numbers from the system: {error}"))
}

#[pg_extern(sql = false, name = "wake")]
fn wake() {
    wake::worker_at_commit();
}

#[pg_extern(sql = false)]
fn is_preloaded() -> bool {
    shmem::is_preloaded()
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn worker_report() -> TableIterator<
    'static,
    (
        name!(pid, Option<i32>),
        name!(state, Option<String>),
        name!(reason, Option<String>),
        name!(in_flight, Option<i32>),
        name!(last_error, Option<String>),
        name!(last_error_at, Option<TimestampWithTimeZone>),
    ),
> {
    // SAFETY: a plain read, on the main thread.
    let database = unsafe { pg_sys::MyDatabaseId };
    let slot = shmem::is_preloaded()
        .then(|| shmem::read(|registry| registry.slot(database).copied()))
        .flatten();
    TableIterator::new(slot.into_iter().map(|slot| {
        (
            (slot.worker_pid != 0).then_some(slot.worker_pid),
            Some(slot.state.as_str().to_owned()),
            slot.reason.to_option(),
            Some(slot.in_flight),
            slot.last_error.to_option(),
            (slot.last_error_at != 0)
                .then(|| slot.last_error_at.into())
                .and_then(|at: i64| at.try_into().ok()),
        )
    }))
}
