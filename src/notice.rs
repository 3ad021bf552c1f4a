//! Messages as Postgres writes them, with the remedy as a HINT.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

pub fn warn(code: PgSqlErrorCode, message: String, hint: &str) {
    warn_with_detail(code, message, "", hint);
}

pub fn warn_with_detail(code: PgSqlErrorCode, message: String, detail: &str, hint: &str) {
    let mut report = ErrorReport::new(code, message, function_name!());
    if !detail.is_empty() {
        report = report.set_detail(detail);
    }
    if !hint.is_empty() {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::WARNING);
}

pub fn refuse(code: PgSqlErrorCode, message: String, hint: &str) -> ! {
    ErrorReport::new(code, message, function_name!())
        .set_hint(hint)
        .report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}

/// For memory that Rust could do without.
pub fn out_of_memory(detail: &str) -> ! {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
        "out of memory",
        function_name!(),
    )
    .set_detail(detail)
    .report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}
