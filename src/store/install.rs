//! The call that the install script cannot make itself.

use pgrx::prelude::*;

/// Lets webhook_owner connect to this database. Not as a part of the script: the server would note the right as one
/// that the database has from the extension; from 17 on that note outlives the extension, and DROP ROLE fails.
pub fn grant_connect() {
    let statement: Option<String> = Spi::get_one(
        "SELECT format('GRANT CONNECT ON DATABASE %I TO webhook_owner', current_database())",
    )
    .unwrap_or_else(|error| error!("{error}"));
    let flag = &raw mut pg_sys::creating_extension;
    // SAFETY: main thread. The server itself clears the flag when the script fails.
    let in_script = unsafe { flag.replace(false) };
    let granted = Spi::run(&statement.unwrap_or_default());
    // SAFETY: as above.
    unsafe { flag.write(in_script) };
    granted.unwrap_or_else(|error| error!("{error}"));
}
