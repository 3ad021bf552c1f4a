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
                .then_some(slot.last_error_at)
                .and_then(|at| at.try_into().ok()),
        )
    }))
}

#[cfg(any(test, feature = "pg_test"))]
#[pg_schema]
mod tests {
    use pgrx::prelude::*;

    #[pg_test]
    fn new_ids_are_version_7_and_in_order() {
        let ids: Vec<uuid::Uuid> = (0..1000)
            .map(|_| uuid::Uuid::from_bytes(*super::new_id().as_bytes()))
            .collect();
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        assert!(ids.is_sorted_by(|one, next| one < next));
    }

    #[pg_test]
    fn the_library_is_preloaded_and_the_launcher_runs() {
        let launchers = Spi::get_one::<i64>(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'webhook launcher'",
        );
        assert!(super::is_preloaded());
        assert_eq!(launchers, Ok(Some(1)));
    }

    #[pg_test(error = "event type \"no spaces\" is not valid")]
    fn an_invalid_event_type_is_refused() {
        Spi::run("SELECT webhook_emit('no spaces')").unwrap();
    }
}
