//! ALTER DATABASE .. SET and ALTER ROLE webhook_owner .. SET, applied to a worker that runs.
//!
//! The server applies these settings when a process connects, and never again. When they change, the worker
//! puts the settings that came from there back to the value of the server, and then applies all of them anew
//! by the server's own function. A value of the server that another one hides is not kept anywhere, so the
//! worker takes note of all before it connects.

use crate::pg_compat;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::ffi::{CStr, CString};

const PG_DB_ROLE_SETTING: pg_sys::Oid = pg_sys::Oid::from_u32(2964);
/// Settings that cannot be reset, or not be read without a superuser's rights.
const NOT_OURS: u32 = pg_sys::GUC_NO_RESET_ALL
    | pg_sys::GUC_NO_SHOW_ALL
    | pg_sys::GUC_DISALLOW_IN_FILE
    | pg_sys::GUC_SUPERUSER_ONLY;

unsafe extern "C-unwind" {
    fn ApplySetting(
        snapshot: pg_sys::Snapshot,
        database: pg_sys::Oid,
        role: pg_sys::Oid,
        settings: pg_sys::Relation,
        source: pg_sys::GucSource::Type,
    );
}

/// Settings of the server, by postgresql.conf, its command line or its defaults.
pub struct ServerSettings(HashMap<CString, (CString, pg_sys::GucSource::Type)>);

impl ServerSettings {
    /// Called before the process connects.
    pub fn note() -> Self {
        let settings = resettable().map(|setting| {
            // SAFETY: main thread; the setting is one of the server's, and its text is copied and freed.
            unsafe {
                let setting = &*setting;
                let text = pg_sys::GetConfigOptionByName(setting.name, std::ptr::null_mut(), false);
                let value = CStr::from_ptr(text).to_owned();
                pg_sys::pfree(text.cast());
                (
                    CStr::from_ptr(setting.name).to_owned(),
                    (value, setting.source),
                )
            }
        });
        ServerSettings(settings.collect())
    }

    /// Takes back the settings of database and role, between transactions.
    pub fn restore(&self) {
        use pg_sys::GucSource::PGC_S_DYNAMIC_DEFAULT;
        for setting in resettable() {
            // SAFETY: main thread, outside of any transaction, so the setting has no earlier value on a
            // stack; C strings. The lowest source but one: the server keeps a list of those that are not at
            // their default.
            unsafe {
                let is_kept = !is_per_database((*setting).source)
                    && !is_per_database((*setting).reset_source);
                let Some((value, source)) = self.0.get(CStr::from_ptr((*setting).name)) else {
                    continue;
                };
                if is_kept {
                    continue;
                }
                (*setting).source = PGC_S_DYNAMIC_DEFAULT;
                (*setting).reset_source = PGC_S_DYNAMIC_DEFAULT;
                pg_sys::set_config_option(
                    (*setting).name,
                    value.as_ptr(),
                    pg_sys::GucContext::PGC_SUSET,
                    (*source).max(PGC_S_DYNAMIC_DEFAULT),
                    pg_sys::GucAction::GUC_ACTION_SET,
                    true,
                    pg_sys::WARNING as i32,
                    false,
                );
            }
        }
        // A line of the file may have changed, or gone, while the setting of the database hid it.
        // SAFETY: main thread, outside of any transaction.
        unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
    }
}

/// Applies them inside of a transaction, as the server does when a process connects. The right to set a value was
/// checked when it was set, and the session's own settings (`store::prepare_session`) stay.
pub fn apply() {
    use pg_sys::GucSource::{PGC_S_DATABASE, PGC_S_DATABASE_USER, PGC_S_GLOBAL, PGC_S_USER};
    let lock = pg_sys::AccessShareLock as i32;
    let nobody = pg_sys::InvalidOid;
    // SAFETY: main thread; a scan of a shared catalog with a snapshot that is registered for as long.
    unsafe {
        let (database, role) = (pg_sys::MyDatabaseId, pg_sys::GetSessionUserId());
        let settings = pg_sys::table_open(PG_DB_ROLE_SETTING, lock);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
        // The first that sets something counts.
        ApplySetting(snapshot, database, role, settings, PGC_S_DATABASE_USER);
        ApplySetting(snapshot, nobody, role, settings, PGC_S_USER);
        ApplySetting(snapshot, database, nobody, settings, PGC_S_DATABASE);
        ApplySetting(snapshot, nobody, nobody, settings, PGC_S_GLOBAL);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(settings, lock);
    }
}

fn is_per_database(source: pg_sys::GucSource::Type) -> bool {
    use pg_sys::GucSource::{PGC_S_DATABASE_USER, PGC_S_GLOBAL};
    (PGC_S_GLOBAL..=PGC_S_DATABASE_USER).contains(&source)
}

/// Settings that a database can have a value of, and that can change while a process runs.
fn resettable() -> impl Iterator<Item = *mut pg_sys::config_generic> {
    use pg_sys::GucContext::{PGC_SUSET, PGC_USERSET};
    pg_compat::all_settings().into_iter().filter(|setting| {
        // SAFETY: the server's settings live as long as the process.
        let setting = unsafe { &**setting };
        matches!(setting.context, PGC_SUSET | PGC_USERSET) && setting.flags as u32 & NOT_OURS == 0
    })
}
