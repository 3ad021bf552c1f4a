//! The scripts of the extension: as the files of sql/ make them, as released, and of a release to come.

use std::fs;
use std::path::{Path, PathBuf};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A release to come, whose tables have a column more.
pub const LATER: &str = "99.0.0";
pub const MIGRATION: &str = "
    ALTER TABLE webhook.event ADD COLUMN later int NOT NULL DEFAULT 7 CHECK (later > 0);
    ALTER TABLE webhook.delivery ADD COLUMN later int NOT NULL DEFAULT 7;
    ALTER TABLE webhook.policy ADD COLUMN later int NOT NULL DEFAULT 7;
    ALTER TABLE webhook.breaker ADD COLUMN later int NOT NULL DEFAULT 7;
";

const TABLES: &str = "00_tables.sql";

/// The script of CREATE EXTENSION.
pub fn install() -> String {
    texts(files(&sql())).concat()
}

/// The script of an upgrade that changes no table.
pub fn upgrade() -> String {
    upgrade_by("")
}

fn upgrade_by(migration: &str) -> String {
    let before = texts(files(&sql().join("upgrade"))).concat();
    format!("{before}{migration}{}", replaceable())
}

fn replaceable() -> String {
    let mut files = files(&sql());
    files.retain(|file| !file.ends_with(TABLES));
    texts(files).concat()
}

/// The same scripts, of the release to come.
pub fn later_install() -> String {
    let tables = fs::read_to_string(sql().join(TABLES)).expect("there are tables");
    format!("{tables}{MIGRATION}{}", replaceable())
}

pub fn later_upgrade() -> String {
    upgrade_by(MIGRATION)
}

/// The script of `webhook-relay install` for any owner, as a release keeps it.
pub fn portable() -> String {
    webhook_relay::RELEASE.template()
}

/// Versions that `make freeze` has written down.
pub fn releases() -> Vec<String> {
    let names = files(&sql().join("releases")).into_iter();
    let names = names.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()));
    names
        .filter_map(|name| Some(name.strip_prefix("webhook--")?.to_owned()))
        .collect()
}

/// A script of a release: `webhook` or `portable`.
pub fn released(kind: &str, version: &str) -> String {
    let path = sql().join(format!("releases/{kind}--{version}.sql"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sql() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql")
}

/// The scripts of a folder in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "sql"));
    files.sort();
    files
}

fn texts(files: Vec<PathBuf>) -> Vec<String> {
    assert!(!files.is_empty());
    let read = |file: &PathBuf| fs::read_to_string(file).expect("it is text");
    files.iter().map(read).collect()
}
