//! The role `webhook_owner`: everything of ours belongs to it, the worker connects as it, and nobody else can be it.

use crate::notice;
use crate::pg_compat;
use crate::settings;
use pgrx::prelude::*;
use std::ffi::CStr;

const NAME: &CStr = c"webhook_owner";

/// Why the role cannot be trusted, or cannot work, and the command that helps.
pub struct Problem {
    pub what: String,
    pub remedy: String,
}

/// The role, if there is one. Needs a transaction, and no database.
pub fn find() -> Option<pg_sys::Oid> {
    // SAFETY: a lookup in a shared catalog.
    let role = unsafe { pg_sys::get_role_oid(NAME.as_ptr(), true) };
    (role != pg_sys::InvalidOid).then_some(role)
}

/// Why the role is more than the owner of our tables: a client could be it, or it has rights beyond them.
pub fn problem(role: pg_sys::Oid) -> Option<Problem> {
    let attributes = Attributes::of(role)?;
    let problem = |what: &str, remedy: &str| {
        Some(Problem {
            what: format!("role \"webhook_owner\" {what}"),
            remedy: remedy.to_owned(),
        })
    };
    if attributes.has_more_rights {
        return problem(
            "has rights that the owner of webhook's tables must not have",
            "ALTER ROLE webhook_owner NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS.",
        );
    }
    if attributes.can_login && (attributes.has_password || attributes.connection_limit != 0) {
        return problem(
            "can be used by clients",
            "ALTER ROLE webhook_owner PASSWORD NULL CONNECTION LIMIT 0.",
        );
    }
    if pg_compat::has_memberships(role) {
        return problem(
            "is a member of a role, or has members",
            "REVOKE the memberships: \\drg webhook_owner lists them in psql 16 and later, pg_auth_members does everywhere.",
        );
    }
    None
}

/// Why a worker could not connect to that database as the role.
pub fn connect_problem(role: pg_sys::Oid, database: pg_sys::Oid, name: &str) -> Option<Problem> {
    if !pg_compat::CONNECTS_WITHOUT_LOGIN && !Attributes::of(role)?.can_login {
        return Some(Problem {
            what: "role \"webhook_owner\" cannot log in, as a background worker must before PostgreSQL 17".into(),
            remedy: "ALTER ROLE webhook_owner LOGIN PASSWORD NULL CONNECTION LIMIT 0.".into(),
        });
    }
    (!pg_compat::may_connect(role, database)).then(|| Problem {
        what: format!("role \"webhook_owner\" may not connect to database \"{name}\""),
        remedy: format!(
            "GRANT CONNECT ON DATABASE {} TO webhook_owner.",
            quoted(name)
        ),
    })
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

struct Attributes {
    has_more_rights: bool,
    can_login: bool,
    has_password: bool,
    connection_limit: i32,
}

impl Attributes {
    fn of(role: pg_sys::Oid) -> Option<Self> {
        let cache = pg_sys::SysCacheIdentifier::AUTHOID as i32;
        // SAFETY: a lookup in a shared catalog; the tuple is read before it is released.
        unsafe {
            let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(role));
            if tuple.is_null() {
                return None;
            }
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_authid>(tuple);
            let mut no_password = false;
            let column = pg_sys::Anum_pg_authid_rolpassword as pg_sys::AttrNumber;
            pg_sys::SysCacheGetAttr(cache, tuple, column, &mut no_password);
            let attributes = Attributes {
                has_more_rights: row.rolsuper
                    || row.rolcreaterole
                    || row.rolcreatedb
                    || row.rolreplication
                    || row.rolbypassrls,
                can_login: row.rolcanlogin,
                has_password: !no_password,
                connection_limit: row.rolconnlimit,
            };
            pg_sys::ReleaseSysCache(tuple);
            Some(attributes)
        }
    }
}

/// Settings of a session that must not matter, or would print data, where the role's rights are in use.
const SAFE_SETTINGS: &[(&CStr, &CStr)] = &[
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"jit", c"off"),
    (c"debug_print_parse", c"off"),
    (c"debug_print_rewritten", c"off"),
    (c"debug_print_plan", c"off"),
];

/// The role, if it has the schema that our functions are looked up in; else they would be somebody's.
pub fn of_our_schema() -> Option<pg_sys::Oid> {
    // SAFETY: lookups in the catalog; a row of a cache is read before it is released.
    let owner = unsafe {
        let schema = pg_sys::get_namespace_oid(c"webhook".as_ptr(), true);
        let cache = pg_sys::SysCacheIdentifier::NAMESPACEOID as i32;
        let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(schema));
        if row.is_null() {
            return None;
        }
        let owner = (*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_namespace>(row)).nspowner;
        pg_sys::ReleaseSysCache(row);
        owner
    };
    find().filter(|role| *role == owner)
}

/// Runs the body with the role's rights, and with settings of ours. An error ends both with the (sub)transaction.
pub fn with_rights<T>(body: impl FnOnce() -> T) -> T {
    let Some(role) = of_our_schema() else {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "schema \"webhook\" does not belong to role \"webhook_owner\"".into(),
            "Give the schema and the role of the extension back the names that they had.",
        )
    };
    let changed_user =
        (pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION) as i32;
    settings::with_values(SAFE_SETTINGS, || {
        // SAFETY: main thread, inside a transaction; the user is restored below, or by the abort.
        unsafe {
            let (mut user, mut context) = (pg_sys::InvalidOid, 0);
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            pg_sys::SetUserIdAndSecContext(role, context | changed_user);
            let value = body();
            pg_sys::SetUserIdAndSecContext(user, context);
            value
        }
    })
}
