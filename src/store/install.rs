//! The calls that the install script cannot make itself. The server notes a right that a script gives as one that the
//! object has from the extension: no dump carries it, and from 17 on the note of a right to the database outlives the
//! extension, so that DROP ROLE fails.

use pgrx::prelude::*;

/// Lets webhook_owner connect to this database.
pub fn grant_connect() {
    let statement: Option<String> = Spi::get_one(
        "SELECT format('GRANT CONNECT ON DATABASE %I TO webhook_owner', current_database())",
    )
    .unwrap_or_else(|error| error!("{error}"));
    run_as_if_outside(&statement.unwrap_or_default());
}

/// Gives roles the rights that their levels have gained by an upgrade.
pub fn renew_grants() {
    run_as_if_outside("SELECT webhook.renew_levels()");
}

fn run_as_if_outside(statement: &str) {
    let flag = &raw mut pg_sys::creating_extension;
    // SAFETY: main thread. The server itself clears the flag when the script fails.
    let in_script = unsafe { flag.replace(false) };
    let ran = Spi::run(statement);
    // SAFETY: as above.
    unsafe { flag.write(in_script) };
    ran.unwrap_or_else(|error| error!("{error}"));
}
