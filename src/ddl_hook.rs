//! Commands on a database must not fail because its worker is connected to it: the worker leaves first, and comes
//! back when the transaction has ended. The same goes for an upgrade of the extension. The hooks also wake workers
//! for changes that no commit callback sees.
//!
//! The hooks stand between every utility command and its caller, so an error of the command must pass over them
//! untouched: they call the server's functions themselves and not pgrx's wrappers, which would rebuild the error
//! without its position, context and object names, and they keep nothing that has to be dropped.

use crate::notice;
use crate::owner;
use crate::pg_compat;
use crate::shmem;
use crate::uninstall;
use crate::wake;
use pgrx::pg_sys::panic::pgrx_extern_c_guard;
use pgrx::prelude::*;
use pgrx::{PgList, is_a};
use std::ffi::{CStr, c_char};
use std::time::{Duration, Instant};

/// The command itself waits another five seconds for connections to end.
const PATIENCE: Duration = Duration::from_secs(6);

static mut PREVIOUS_UTILITY_HOOK: pg_sys::ProcessUtility_hook_type = None;
static mut PREVIOUS_ACCESS_HOOK: pg_sys::object_access_hook_type = None;

unsafe extern "C-unwind" {
    fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        query_env: *mut pg_sys::QueryEnvironment,
        dest: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

pub fn install() {
    // SAFETY: the postmaster is single-threaded and preloads each library once.
    unsafe {
        PREVIOUS_UTILITY_HOOK = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
        PREVIOUS_ACCESS_HOOK = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(object_access);
    }
}

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
    // SAFETY: the statement is the server's, valid for the call. This frame has nothing to drop, so an error may
    // jump over it.
    unsafe {
        let node = (*statement).utilityStmt;
        let commits_prepared = is_commit_prepared(node);
        pgrx_extern_c_guard(|| before(node));
        match PREVIOUS_UTILITY_HOOK {
            Some(next) => next(
                statement,
                query,
                read_only_tree,
                context,
                params,
                query_env,
                dest,
                completion,
            ),
            None => standard_ProcessUtility(
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
        if commits_prepared {
            pgrx_extern_c_guard(wake::prepared_committed);
        }
    }
}

/// Dropping the extension, by whatever command, wakes its worker at the commit: it looks and leaves.
unsafe extern "C-unwind" fn object_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    sub_id: i32,
    argument: *mut std::ffi::c_void,
) {
    if access == pg_sys::ObjectAccessType::OAT_DROP && class == pg_sys::ExtensionRelationId {
        // SAFETY: turns an error of ours into one of the server's.
        unsafe { pgrx_extern_c_guard(wake::worker_at_commit) };
    }
    // SAFETY: passes on what it was given, from a frame that has nothing to drop.
    unsafe {
        if let Some(next) = PREVIOUS_ACCESS_HOOK {
            next(access, class, object, sub_id, argument);
        }
    }
}

unsafe fn before(node: *mut pg_sys::Node) {
    // SAFETY: the caller's node is valid.
    unsafe {
        let database = database_of(node);
        if database.is_some() || is_a(node, pg_sys::NodeTag::T_CreatedbStmt) || changes_rights(node)
        {
            wake::launcher_at_end();
        }
        if changes_settings(node) {
            wake::settings_at_commit();
        }
        if let Some(database) = database {
            wait_until_worker_leaves(database);
        }
        uninstall::before(node);
        keep_our_schema(node);
    }
}

/// Whether a worker may have other settings afterwards. Every role may alter itself, so other roles do not count.
unsafe fn changes_settings(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the cast follows the node's tag. ALTER ROLE ALL has no role.
    unsafe {
        match (*node).type_ {
            T_AlterDatabaseSetStmt => true,
            T_AlterRoleSetStmt => {
                let role = (*node.cast::<pg_sys::AlterRoleSetStmt>()).role;
                role.is_null() || is_owner(role)
            }
            _ => false,
        }
    }
}

unsafe fn is_owner(role: *const pg_sys::RoleSpec) -> bool {
    // SAFETY: the caller's role is valid. The server refuses PUBLIC with an error of its own.
    unsafe {
        (*role).roletype != pg_sys::RoleSpecType::ROLESPEC_PUBLIC
            && owner::find().is_some_and(|owner| pg_sys::get_rolespec_oid(role, true) == owner)
    }
}

/// Functions with the rights of webhook_owner call each other by the name of their schema: under another name the
/// place would be free for anybody. Without the extension no such function exists, and
/// webhook-relay renames the schema in a transaction that it rolls back.
unsafe fn keep_our_schema(node: *mut pg_sys::Node) {
    // SAFETY: the cast follows the node's tag.
    let is_renamed = unsafe {
        is_a(node, pg_sys::NodeTag::T_RenameStmt) && {
            let rename = &*node.cast::<pg_sys::RenameStmt>();
            rename.renameType == pg_sys::ObjectType::OBJECT_SCHEMA
                && CStr::from_ptr(rename.subname) == c"webhook"
                && owner::of_our_schema().is_some()
                && pg_sys::get_extension_oid(c"webhook".as_ptr(), true) != pg_sys::InvalidOid
        }
    };
    if is_renamed {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST,
            "cannot rename schema \"webhook\"".into(),
            "The extension webhook needs it under this name. DROP EXTENSION webhook removes both.",
        );
    }
}

/// Whether a worker may be able to connect afterwards that could not before.
unsafe fn changes_rights(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag.
    unsafe {
        match (*node).type_ {
            // ALTER GROUP is one of them.
            T_AlterRoleStmt => {
                let alter = &*node.cast::<pg_sys::AlterRoleStmt>();
                is_owner(alter.role) || option(alter.options, c"rolemembers").is_some()
            }
            T_GrantRoleStmt => true,
            T_GrantStmt => {
                (*node.cast::<pg_sys::GrantStmt>()).objtype == pg_sys::ObjectType::OBJECT_DATABASE
            }
            T_RenameStmt => {
                (*node.cast::<pg_sys::RenameStmt>()).renameType == pg_sys::ObjectType::OBJECT_ROLE
            }
            _ => false,
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
            // The next worker begins with the upgraded SQL, and has no plan of the functions that it replaces.
            T_AlterExtensionStmt => {
                let alter = &*node.cast::<pg_sys::AlterExtensionStmt>();
                let is_upgrade = CStr::from_ptr(alter.extname) == c"webhook" && pg_sys::superuser();
                return is_upgrade.then_some(pg_sys::MyDatabaseId);
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

/// From here to the end of the transaction the database has no worker. A signal and not a latch tells it so, because
/// it may be waiting for a lock or a standby. Should this backend die, the launcher sees
/// that it is gone.
fn wait_until_worker_leaves(database: pg_sys::Oid) {
    let pid = my_pid();
    let watched = shmem::write(|registry| {
        registry.slot_mut(database).map(|slot| {
            slot.stopped_for = pid;
            if slot.worker_pid != 0 {
                // SAFETY: while we have the lock the worker cannot clear its slot, so the pid is its own.
                unsafe { libc::kill(slot.worker_pid, libc::SIGTERM) };
            }
        })
    });
    if watched.is_none() {
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let worker = shmem::read(|registry| registry.slot(database).map(|slot| slot.worker_pid));
        if matches!(worker, None | Some(0)) {
            return;
        }
        // The worker does not signal us when it has left; it takes some milliseconds.
        wake::wait_for_latch(Duration::from_millis(10));
    }
}

/// The databases that this backend had for itself may have their workers again.
pub fn let_workers_return() {
    let pid = my_pid();
    shmem::write(|registry| {
        for slot in registry.slots_mut().filter(|slot| slot.stopped_for == pid) {
            slot.stopped_for = 0;
        }
    });
}

fn my_pid() -> i32 {
    // SAFETY: a plain read, on the main thread.
    unsafe { pg_sys::MyProcPid }
}
