//! Which SQL this library can work with. The SQL of a database says its protocol; it is another than the library's where one of
//! them was upgraded and the other was not yet.

use std::ops::RangeInclusive;

/// `webhook.protocol()` of the SQL that the worker can work with. A change of a call that the worker makes, of its arguments or
/// of what it returns, is another protocol.
const SPOKEN: RangeInclusive<i32> = 1..=1;

/// What to tell where SQL of this protocol cannot be worked with.
pub fn problem(of_sql: i32) -> Option<String> {
    let spoken = match (*SPOKEN.start(), *SPOKEN.end()) {
        (first, last) if first == last => format!("protocol {first}"),
        (first, last) => format!("protocols {first} to {last}"),
    };
    let remedy = if of_sql < *SPOKEN.start() {
        "ALTER EXTENSION webhook UPDATE brings the SQL up to date"
    } else if of_sql > *SPOKEN.end() {
        "install the library of the same version and restart the server"
    } else {
        return None;
    };
    Some(format!(
        "the library speaks {spoken}, and the SQL of this database protocol {of_sql}; {remedy}"
    ))
}
