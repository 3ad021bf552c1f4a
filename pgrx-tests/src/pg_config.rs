//! The installation of PostgreSQL that tests run with, as its pg_config describes it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::{env, thread};

/// Whether PG_CONFIG's server was built without this module; says so, past the test runner, which shows no output
/// of tests that pass. Builds of PostgreSQL leave out contrib modules and JIT.
pub fn lacks(module: &str) -> bool {
    let missing = !directory("PG_CONFIG", "--pkglibdir")
        .join(format!("{module}.so"))
        .exists();
    if missing {
        let test = thread::current().name().unwrap_or_default().to_owned();
        let _ = writeln!(
            io::stderr(),
            "NOT TESTED: {test}: this server has no {module}"
        );
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
