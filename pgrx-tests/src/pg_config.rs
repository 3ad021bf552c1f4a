//! The installation of PostgreSQL that tests run with, as its pg_config describes it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::{env, thread};

/// With this variable in the environment a test that cannot be run has failed.
const REQUIRE_ALL: &str = "WEBHOOK_TEST_REQUIRE_ALL";

/// Reports a test that lacks a server.
#[track_caller]
pub fn not_tested(test: &str, why: &str) {
    assert!(env::var_os(REQUIRE_ALL).is_none(), "{test}: {why}");
    report_untested(test, why);
}

/// Past the test runner, which shows no output of tests that pass.
fn report_untested(test: &str, why: &str) {
    let _ = writeln!(io::stderr(), "NOT TESTED: {test}: {why}");
}

/// Whether PG_CONFIG's server was built without this module, which is reported. Builds of PostgreSQL leave out
/// contrib modules and JIT.
pub fn lacks(module: &str) -> bool {
    let missing = !directory("PG_CONFIG", "--pkglibdir")
        .join(format!("{module}.so"))
        .exists();
    if missing {
        let test = thread::current().name().unwrap_or_default().to_owned();
        report_untested(&test, &format!("this server has no {module}"));
    }
    missing
}

pub fn bin_directory(variable: &str) -> PathBuf {
    directory(variable, "--bindir")
}

pub fn directory(variable: &str, option: &str) -> PathBuf {
    let pg_config = env::var_os(variable).unwrap_or("pg_config".into());
    let output = Command::new(&pg_config)
        .arg(option)
        .output()
        .unwrap_or_else(|error| {
            panic!("could not run {pg_config:?} (set {variable} to its path): {error}")
        });
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}
