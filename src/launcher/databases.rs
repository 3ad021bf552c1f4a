//! The databases that could have a worker, and the role that it would connect as. They are read by a scan of the
//! shared catalog, as autovacuum does: without a database there is no SQL.

use crate::owner::{self, Problem};
use pgrx::prelude::*;
use std::ffi::CStr;

/// The server's DATCONNLIMIT_INVALID_DB: an interrupted DROP DATABASE leaves such a database behind.
const INVALID_DATABASE: i32 = -2;

pub struct Database {
    pub oid: pg_sys::Oid,
    pub name: String,
}

/// Nothing while there is no role that could own anything of ours.
pub fn connectable() -> Vec<Database> {
    in_transaction(|| owner::find().map_or_else(Vec::new, |_| scan()))
}

/// The role that a worker connects to it as, or why it cannot connect.
pub fn role_for(database: &Database) -> Result<pg_sys::Oid, Problem> {
    in_transaction(|| {
        let role = owner::find().ok_or_else(|| Problem {
            what: "role \"webhook_owner\" does not exist".into(),
            remedy: "ALTER ROLE .. RENAME TO webhook_owner gives it back its name.".into(),
        })?;
        owner::problem(role)
            .or_else(|| owner::connect_problem(role, database.oid, &database.name))
            .map_or(Ok(role), Err)
    })
}

fn in_transaction<T>(look: impl FnOnce() -> T) -> T {
    // SAFETY: main thread, and no transaction is open.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        // A backend that changed something wakes us before it tells all caches of it.
        pg_sys::InvalidateSystemCaches();
        let seen = look();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        seen
    }
}

fn scan() -> Vec<Database> {
    let mut databases = Vec::new();
    let lock = pg_sys::AccessShareLock as i32;
    // SAFETY: a catalog scan inside a transaction; the tuples are copied before it ends.
    unsafe {
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let row = pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(tuple);
            let dropped_halfway = (*row).datconnlimit == INVALID_DATABASE;
            if (*row).datallowconn && !(*row).datistemplate && !dropped_halfway {
                let name = CStr::from_ptr((*row).datname.data.as_ptr()).to_string_lossy();
                databases.push(Database {
                    oid: (*row).oid,
                    name: name.into_owned(),
                });
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
    databases
}
