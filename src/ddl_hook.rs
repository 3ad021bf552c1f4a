//! Commands on a database must not fail because its worker is connected to it: the worker leaves first, and
//! comes back when the command is done or has failed. Also wakes for what no commit callback sees.

use crate::pg_compat;
use crate::shmem;
use crate::wake;
use pgrx::prelude::*;
use pgrx::{PgList, is_a};
use std::ffi::{CStr, c_char};
use std::time::{Duration, Instant};

/// The command itself waits another five seconds for connections to end.
const PATIENCE: Duration = Duration::from_secs(6);

static mut PREVIOUS_UTILITY_HOOK: pg_sys::ProcessUtility_hook_type = None;
static mut PREVIOUS_ACCESS_HOOK: pg_sys::object_access_hook_type = None;

pub fn install() {
    // SAFETY: the postmaster is single-threaded and preloads each library once.
    unsafe {
        PREVIOUS_UTILITY_HOOK = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
        PREVIOUS_ACCESS_HOOK = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(object_access);
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)] // The signature is the server's.
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    query_env: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the statement is the server's, valid for the call; its node tag says what it is.
    unsafe {
        let node = (*statement).utilityStmt;
        let affected = database_of(node);
        let launcher_to_look = affected.is_some() || is_a(node, pg_sys::NodeTag::T_CreatedbStmt);
        let wakes_worker = is_commit_prepared(node);
        let absence = affected.and_then(WorkerAbsence::begin);

        match PREVIOUS_UTILITY_HOOK {
            Some(next) => pg_sys::submodules::ffi::pg_guard_ffi_boundary(|| {
                next(
                    statement,
                    query,
                    read_only_tree,
                    context,
                    params,
                    query_env,
                    dest,
                    completion,
                )
            }),
            None => pg_sys::standard_ProcessUtility(
                statement,
                query,
                read_only_tree,
                context,
                params,
                query_env,
                dest,
                completion,
            ),
        }

        drop(absence);
        if launcher_to_look && shmem::is_preloaded() {
            wake::launcher();
        }
        if wakes_worker {
            wake::worker_now();
        }
    }
}

/// Dropping the extension, by whatever command, wakes its worker at the commit: it looks and leaves.
#[pg_guard]
unsafe extern "C-unwind" fn object_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    sub_id: i32,
    argument: *mut std::ffi::c_void,
) {
    if access == pg_sys::ObjectAccessType::OAT_DROP && class == pg_sys::ExtensionRelationId {
        wake::worker_at_commit();
    }
    // SAFETY: passes on what it was given.
    unsafe {
        if let Some(next) = PREVIOUS_ACCESS_HOOK {
            pg_sys::submodules::ffi::pg_guard_ffi_boundary(|| {
                next(access, class, object, sub_id, argument)
            });
        }
    }
}

/// The database that a command needs for itself, if its user may give that command at all.
unsafe fn database_of(node: *mut pg_sys::Node) -> Option<pg_sys::Oid> {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag.
    unsafe {
        let name = match (*node).type_ {
            T_DropdbStmt => (*node.cast::<pg_sys::DropdbStmt>()).dbname,
            T_RenameStmt => {
                let rename = &*node.cast::<pg_sys::RenameStmt>();
                if rename.renameType != pg_sys::ObjectType::OBJECT_DATABASE {
                    return None;
                }
                rename.subname
            }
            T_AlterDatabaseStmt => {
                let alter = &*node.cast::<pg_sys::AlterDatabaseStmt>();
                option(alter.options, c"tablespace")?;
                alter.dbname
            }
            T_CreatedbStmt => {
                let template = option((*node.cast::<pg_sys::CreatedbStmt>()).options, c"template")?;
                if (*template).arg.is_null() {
                    return None;
                }
                pg_sys::defGetString(template)
            }
            _ => return None,
        };
        let database = pg_sys::get_database_oid(name, true);
        (database != pg_sys::InvalidOid && pg_compat::owns_database(database)).then_some(database)
    }
}

unsafe fn option(options: *mut pg_sys::List, name: &CStr) -> Option<*mut pg_sys::DefElem> {
    // SAFETY: the grammar makes these lists of DefElem.
    unsafe {
        PgList::<pg_sys::DefElem>::from_pg(options)
            .iter_ptr()
            .find(|option| CStr::from_ptr((**option).defname) == name)
    }
}

unsafe fn is_commit_prepared(node: *mut pg_sys::Node) -> bool {
    // SAFETY: the cast follows the node's tag.
    unsafe {
        is_a(node, pg_sys::NodeTag::T_TransactionStmt)
            && (*node.cast::<pg_sys::TransactionStmt>()).kind
                == pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED
    }
}

/// While it lives, its database has no worker. Dropped on success and on error alike; should this backend
/// die, the launcher sees that it is gone.
struct WorkerAbsence {
    database: pg_sys::Oid,
}

impl WorkerAbsence {
    fn begin(database: pg_sys::Oid) -> Option<Self> {
        let pid = my_pid();
        shmem::write(|registry| {
            registry
                .slot_mut(database)
                .map(|slot| slot.stopped_for = pid)
        })?;
        let absence = WorkerAbsence { database };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let worker = shmem::read(|registry| {
                registry
                    .slot(database)
                    .map(|slot| (slot.worker_pid, slot.worker_proc))
            });
            match worker {
                None | Some((0, _)) => return Some(absence),
                Some((_, process)) => wake::set_latch_of(process),
            }
            if Instant::now() > deadline {
                return Some(absence);
            }
            // The worker does not signal us when it has left; it takes some milliseconds.
            // SAFETY: the latch is this process's own.
            unsafe {
                pg_sys::WaitLatch(
                    pg_sys::MyLatch,
                    (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH)
                        as i32,
                    10,
                    pg_sys::PG_WAIT_EXTENSION,
                );
                pg_sys::ResetLatch(pg_sys::MyLatch);
            }
            check_for_interrupts!();
        }
    }
}

impl Drop for WorkerAbsence {
    fn drop(&mut self) {
        let pid = my_pid();
        shmem::write(|registry| {
            if let Some(slot) = registry.slot_mut(self.database)
                && slot.stopped_for == pid
            {
                slot.stopped_for = 0;
            }
        });
        wake::launcher();
    }
}

fn my_pid() -> i32 {
    // SAFETY: a plain read, on the main thread.
    unsafe { pg_sys::MyProcPid }
}
