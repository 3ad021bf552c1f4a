//! Dropping the extension: tells how many deliveries are lost with it, and takes back the rights that would outlive
//! it.
//!
//! This happens here and not when the server drops it: by then its tables are gone.

use crate::notice;
use crate::owner;
use crate::pg_compat;
use crate::store;
use pgrx::prelude::*;
use pgrx::{PgList, is_a};

/// # Safety
/// `node` is a command that is about to be executed, in a transaction.
pub unsafe fn before(node: *mut pg_sys::Node) {
    // SAFETY: as promised.
    let may_drop_it = unsafe {
        is_a(node, pg_sys::NodeTag::T_DropStmt)
            && pg_sys::get_extension_oid(c"webhook".as_ptr(), true) != pg_sys::InvalidOid
    };
    if !may_drop_it || owner::of_our_schema().is_none() {
        return;
    }
    // SAFETY: the cast follows the tag.
    let drop = unsafe { &*node.cast::<pg_sys::DropStmt>() };
    let is_extension = drop.removeType == pg_sys::ObjectType::OBJECT_EXTENSION;
    let is_cascade = drop.removeType == pg_sys::ObjectType::OBJECT_SCHEMA
        && drop.behavior == pg_sys::DropBehavior::DROP_CASCADE;
    if !is_extension && !is_cascade {
        return;
    }
    // SAFETY: schemas and extensions are named by strings.
    let names = unsafe { names(drop.objects) };
    // SAFETY: a plain question.
    let user = unsafe { pg_sys::GetUserId() };
    let lost = owner::with_rights(|| {
        // A user who may not drop it learns nothing of it.
        let drops = match is_extension {
            true => store::may_drop_extension(user, names),
            false => store::may_drop_schema(user, names),
        };
        drops.then(store::unsent).flatten()
    });
    let Some(unsent) = lost else { return };
    if unsent != "0" {
        notice::warn(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!("{unsent} deliveries were not sent yet and are dropped with the extension"),
            "Roll back, and wait until SELECT queued FROM webhook_status() says 0, to have them sent first.",
        );
    }
    // SAFETY: plain questions, inside a transaction.
    unsafe {
        if pg_sys::superuser() {
            store::withdraw_grants();
        } else if pg_compat::owns_database(pg_sys::MyDatabaseId) {
            store::revoke_connect();
        }
    }
}

/// An array of text, in the server's memory: a command may name any number of objects.
///
/// # Safety
/// The list is one of string nodes.
unsafe fn names(objects: *mut pg_sys::List) -> pg_sys::Datum {
    // SAFETY: as promised.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let mut array = pg_sys::initArrayResult(pg_sys::TEXTOID, context, false);
        for name in PgList::<pg_sys::String>::from_pg(objects).iter_ptr() {
            let name = pg_sys::cstring_to_text((*name).sval);
            array = pg_sys::accumArrayResult(array, name.into(), false, pg_sys::TEXTOID, context);
        }
        pg_sys::makeArrayResult(array, context)
    }
}
