//! The installation of PostgreSQL that tests run with, as its pg_config describes it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Returns the first of these modules that PG_CONFIG's server was built without, in a sentence. Builds of PostgreSQL
/// leave out contrib modules and JIT.
pub fn missing_module(modules: &[&str]) -> Option<String> {
    let libraries = directory("PG_CONFIG", "--pkglibdir");
    let is_missing = |module: &&&str| !libraries.join(format!("{module}.so")).exists();
    let missing = modules.iter().find(is_missing);
    missing.map(|module| format!("this server has no {module}"))
}

/// 15 of `PostgreSQL 15.20 (Debian ..)` and of `PostgreSQL 15devel`.
pub fn major_version(variable: &str) -> u32 {
    let version = output(variable, "--version");
    let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let major = digits[..end.unwrap_or(digits.len())].parse();
    major.unwrap_or_else(|_| panic!("pg_config has no version, but {version:?}"))
}

pub fn bin_directory(variable: &str) -> PathBuf {
    directory(variable, "--bindir")
}

pub fn directory(variable: &str, option: &str) -> PathBuf {
    PathBuf::from(output(variable, option))
}

fn output(variable: &str, option: &str) -> String {
    let pg_config = env::var_os(variable).unwrap_or("pg_config".into());
    let output = Command::new(&pg_config)
        .arg(option)
        .output()
        .unwrap_or_else(|error| {
            panic!("could not run {pg_config:?} (set {variable} to its path): {error}")
        });
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
