//! A release stays as it was made, and by an upgrade every release becomes the schema of this tree.

use std::fs;
use std::path::Path;

use serde_json::json;
use webhook_e2e::catalog::Facts;
use webhook_e2e::host::{install_portable, relay_program};
use webhook_e2e::process::{complete, unprivileged};
use webhook_e2e::scripts::{self, LATER, VERSION};
use webhook_e2e::{Cluster, Database};

const REMEDY: &str = "\
this version is released, and its scripts stay as they are. Raise `version` in Cargo.toml, write what changes in tables to \
sql/migrations/, and say it in CHANGELOG.md. Only before the release has its tag, `make freeze` writes the scripts anew";

#[test]
fn scripts_of_a_release_change_only_with_the_version() {
    if !scripts::releases().iter().any(|version| version == VERSION) {
        return;
    }
    for (kind, now) in [
        ("webhook", scripts::install()),
        ("portable", scripts::portable()),
    ] {
        let changed = first_change(&scripts::released(kind, VERSION), &now);
        assert_eq!(changed, None, "{kind}--{VERSION}.sql: {REMEDY}");
    }
}

/// Where one of two scripts goes on in another way.
fn first_change(released: &str, now: &str) -> Option<String> {
    let (mut released, mut now) = (released.lines(), now.lines());
    for number in 1.. {
        match (released.next(), now.next()) {
            (None, None) => break,
            (before, after) if before == after => {}
            (before, after) => return Some(format!("line {number}: {before:?} is {after:?}")),
        }
    }
    None
}

#[test]
fn a_line_that_is_changed_added_or_removed_is_found() {
    let released = "one\ntwo\n";
    assert_eq!(first_change(released, released), None);
    for (now, found) in [
        ("one\n2\n", "line 2: Some(\"two\") is Some(\"2\")"),
        ("one\ntwo\nthree\n", "line 3: None is Some(\"three\")"),
        ("one\n", "line 2: Some(\"two\") is None"),
    ] {
        assert_eq!(first_change(released, now).as_deref(), Some(found));
    }
}

#[test]
fn the_changelog_says_when_each_release_was_made() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../CHANGELOG.md");
    let changelog = fs::read_to_string(path).unwrap();
    for version in scripts::releases() {
        let heading = format!("## {version} (");
        let date = (changelog.lines()).find_map(|line| line.strip_prefix(&heading));
        let date = date.unwrap_or_else(|| panic!("no heading {heading:?}"));
        let digits = date.matches(|letter: char| letter.is_ascii_digit());
        assert_eq!((digits.count(), date.len()), (8, 11), "{heading}{date}");
    }
}

/// As installed: the scripts that packages carry.
#[test]
fn a_database_of_an_older_release_emits_with_this_library_and_its_upgrade_gives_the_schema_of_this_version()
 {
    let cluster = Cluster::shared();
    let fresh = cluster.plain_database("fresh");
    fresh.execute("CREATE EXTENSION webhook");
    for version in older_releases() {
        let database = cluster.plain_database("older");
        database.execute(&format!("CREATE EXTENSION webhook VERSION '{version}'"));
        database.emit("order.created", json!({}));
        database.execute("ALTER EXTENSION webhook UPDATE");
        assert_same(&database, &fresh);
        database.emit("order.created", json!({}));
    }
}

#[test]
fn a_portable_database_of_an_older_release_becomes_that_of_this_version() {
    let cluster = Cluster::portable();
    let fresh = cluster.plain_database("fresh");
    install_portable(cluster, &fresh);
    fresh.execute("DELETE FROM webhook.policy WHERE name = 'fast'");
    for version in older_releases() {
        let database = cluster.plain_database("older");
        let script = scripts::released("portable", &version).replace("@extschema@", "public");
        database.execute(&format!(
            "SET search_path = pg_catalog, pg_temp;
             BEGIN;
             CREATE SCHEMA webhook AUTHORIZATION webhook_owner;
             GRANT CREATE ON SCHEMA public TO webhook_owner;
             SET LOCAL ROLE webhook_owner;
             {script}
             RESET ROLE;
             REVOKE CREATE ON SCHEMA public FROM webhook_owner;
             COMMIT"
        ));
        database.emit("order.created", json!({}));
        let address = cluster.address(cluster.port(), database.name());
        complete(unprivileged(relay_program()).args(["upgrade", &address]));
        assert_same(&database, &fresh);
        database.emit("order.created", json!({}));
    }
}

fn older_releases() -> Vec<String> {
    let mut releases = scripts::releases();
    releases.retain(|version| version != VERSION);
    releases
}

#[track_caller]
fn assert_same(upgraded: &Database, fresh: &Database) {
    let (upgraded, fresh) = (Facts::of(upgraded), Facts::of(fresh));
    assert_eq!(
        (upgraded.beyond(&fresh), fresh.beyond(&upgraded)),
        (vec![], vec![]),
        "what only the upgraded database has, and what only the fresh one has"
    );
}

/// So that the comparison above is known to see a difference.
#[test]
fn a_change_of_a_table_needs_its_migration() {
    let cluster = Cluster::builder()
        .script(&format!("webhook--{LATER}.sql"), &scripts::later_install())
        .script(
            &format!("webhook--{VERSION}--{LATER}.sql"),
            &scripts::later_upgrade(),
        )
        .script(
            &format!("webhook--{VERSION}--forgetful.sql"),
            &scripts::upgrade(),
        )
        .start();
    let fresh = cluster.plain_database("fresh");
    fresh.execute(&format!("CREATE EXTENSION webhook VERSION '{LATER}'"));
    let upgraded = |version: &str| {
        let database = cluster.plain_database("upgraded");
        database.execute(&format!(
            "CREATE EXTENSION webhook VERSION '{VERSION}'; ALTER EXTENSION webhook UPDATE TO '{version}'"
        ));
        database
    };
    assert_same(&upgraded(LATER), &fresh);
    let (forgetful, fresh) = (Facts::of(&upgraded("forgetful")), Facts::of(&fresh));
    let missing = fresh.beyond(&forgetful);
    assert!(
        missing.iter().any(|fact| fact.contains("\"later\"")),
        "{missing:?}"
    );
}
