//! Keys that are made of a row: `schema/table/value/value`.
//!
//! No two lists of values make the same key, nor do two tables, unless they report the same name: a `/` in a part is
//! written `%2F`, and `%` is `%25`. A key that webhook_emit() would refuse, because it is too long or has control
//! characters, is its SHA-256 instead. A hash has no `/`, and so is no key of other values; and no error has to show
//! values of the row.

use sha2::{Digest, Sha256};

/// The limit of `webhook.require_key()`.
const MAX_CHARACTERS: usize = 200;

pub fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let parts: Vec<String> = (parts.into_iter())
        .map(|part| part.replace('%', "%25").replace('/', "%2F"))
        .collect();
    let key = parts.join("/");
    if key.chars().count() <= MAX_CHARACTERS && !key.chars().any(char::is_control) {
        return key;
    }
    let digest = Sha256::digest(&key);
    let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", digits.concat())
}
