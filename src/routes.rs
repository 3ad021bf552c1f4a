//! The endpoints that want a type of event, remembered by this session, so that an emit need not look them up.
//!
//! SQL looks them up and says which it found (`webhook.routes()` in sql/14_matching.sql); here they are only kept. A
//! transaction that changes an endpoint or a policy has the server send an invalidation of `webhook.endpoint` with
//! its commit. As for the definition of a table, every session takes the invalidation before it trusts its memory,
//! and forgets.
//!
//! A transaction may learn of its own changes before the invalidation exists: the server calls the triggers that send
//! it at the end of a statement, and the statement itself may emit, and then fail. So a rollback, also to a
//! savepoint, forgets all.
//!
//! A lookup with an older snapshot must not be kept for newer ones. In READ COMMITTED a lookup sees all that was
//! committed before it began; if an invalidation comes until it has ended, its answer is not kept. In REPEATABLE READ
//! and SERIALIZABLE nothing is kept and nothing recalled.

use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Types and tenants to remember; with more than that the session starts again.
const MOST_KNOWN: usize = 1_000;
/// Two numbers for each endpoint; longer answers are looked up each time.
const MOST_ROUTES: usize = 200;
/// The bytes that 200 characters may have, the limit of types and tenants. Nothing longer is kept, nor looked for:
/// this comes before any check of what an emitter has passed.
const MAX_NAME_BYTES: usize = 800;

/// Counts the invalidations.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// `webhook.endpoint`, while it is watched.
static TABLE: AtomicU32 = AtomicU32::new(0);
static CALLBACKS_REGISTERED: AtomicBool = AtomicBool::new(false);
/// Whether this transaction has remembered anything.
static HAS_LEARNT: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct Known {
    /// The generation of everything in here.
    generation: u64,
    /// By tenant, which is empty for none, and type.
    routes: BTreeMap<String, BTreeMap<String, Vec<i32>>>,
    /// The generation of the last question.
    asked_in: Option<u64>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

pub fn recall<T>(
    tenant: Option<&str>,
    event_type: &str,
    read: impl FnOnce(&[i32]) -> T,
) -> Option<T> {
    let generation = current_generation()?;
    // Here the empty tenant means none; SQL refuses a tenant that is empty.
    if tenant == Some("") {
        return None;
    }
    let tenant = tenant.unwrap_or_default();
    if is_too_long(tenant) || is_too_long(event_type) {
        return None;
    }
    KNOWN.with_borrow_mut(|known| {
        if known.generation != generation {
            known.routes.clear();
            known.generation = generation;
        }
        known.asked_in = Some(generation);
        let routes = known.routes.get(tenant)?.get(event_type)?;
        Some(read(routes))
    })
}

pub fn remember(tenant: Option<&str>, event_type: &str, routes: &Array<'_, i32>) {
    let generation = current_generation();
    let tenant = tenant.unwrap_or_default();
    KNOWN.with_borrow_mut(|known| {
        let asked_in = known.asked_in.take();
        if generation.is_none() || asked_in != generation || routes.len() > MOST_ROUTES {
            return;
        }
        if is_too_long(tenant) || is_too_long(event_type) {
            return;
        }
        if known.routes.values().map(BTreeMap::len).sum::<usize>() >= MOST_KNOWN {
            known.routes.clear();
        }
        let of_tenant = known.routes.entry(tenant.to_owned()).or_default();
        of_tenant.insert(event_type.to_owned(), routes.iter_deny_null().collect());
        HAS_LEARNT.store(true, Ordering::Relaxed);
    });
}

/// Has all sessions forget, when the transaction commits.
pub fn forget() {
    if let Some(table) = find_table() {
        // SAFETY: a table that is there; a message about it changes nothing.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) }
    }
}

/// Takes the invalidations of other sessions; none where nothing may be kept.
fn current_generation() -> Option<u64> {
    // SAFETY: plain reads and calls within a transaction; the callbacks are registered once and stay loaded.
    unsafe {
        if pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 {
            return None;
        }
        if !CALLBACKS_REGISTERED.swap(true, Ordering::Relaxed) {
            pg_sys::CacheRegisterRelcacheCallback(Some(invalidated), pg_sys::Datum::from(0));
            pg_sys::RegisterXactCallback(Some(transaction_ended), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), std::ptr::null_mut());
        }
        if TABLE.load(Ordering::Relaxed) == 0 {
            TABLE.store(find_table()?.to_u32(), Ordering::Relaxed);
        }
        pg_sys::AcceptInvalidationMessages();
    }
    // The table itself may just have gone.
    (TABLE.load(Ordering::Relaxed) != 0).then(|| GENERATION.load(Ordering::Relaxed))
}

unsafe extern "C-unwind" fn invalidated(_: pg_sys::Datum, table: pg_sys::Oid) {
    if table == pg_sys::InvalidOid || table.to_u32() == TABLE.load(Ordering::Relaxed) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        TABLE.store(0, Ordering::Relaxed);
    }
}

/// A prepared transaction is not this session's any more.
unsafe extern "C-unwind" fn transaction_ended(
    event: pg_sys::XactEvent::Type,
    _: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_COMMIT => HAS_LEARNT.store(false, Ordering::Relaxed),
        XACT_EVENT_ABORT | XACT_EVENT_PREPARE => forget_own(),
        _ => {}
    }
}

unsafe extern "C-unwind" fn subtransaction_ended(
    event: pg_sys::SubXactEvent::Type,
    _: pg_sys::SubTransactionId,
    _: pg_sys::SubTransactionId,
    _: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        forget_own();
    }
}

fn forget_own() {
    if HAS_LEARNT.swap(false, Ordering::Relaxed) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}

fn find_table() -> Option<pg_sys::Oid> {
    // SAFETY: lookups by name within a transaction.
    let table = unsafe {
        let schema = pg_sys::get_namespace_oid(c"webhook".as_ptr(), true);
        pg_sys::get_relname_relid(c"endpoint".as_ptr(), schema)
    };
    (table != pg_sys::InvalidOid).then_some(table)
}

fn is_too_long(name: &str) -> bool {
    name.len() > MAX_NAME_BYTES
}
