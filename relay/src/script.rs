//! The schema of the extension as a script for a database that has no library: the files of `sql/`, where a file of
//! `sql/portable/` replaces the one of the same name.

include!(concat!(env!("OUT_DIR"), "/sql.rs"));

/// The only file that cannot be run again.
const TABLES: &str = "00_tables.sql";
/// Locks all tables of an installation, and executes nothing of it.
pub const LOCK: &str = include_str!("../../sql/upgrade/1_lock.sql");
const BODIES: &str = include_str!("../../sql/upgrade/2_bodies.sql");

/// The schema of the functions that users call.
pub const API_SCHEMA: &str = "public";

/// The version that a program installs and upgrades to. A test makes the program of a release to come.
pub struct Release<'a> {
    pub version: &'a str,
    /// Changes of the tables between two versions, named `A--B.sql`.
    pub migrations: &'a [(&'a str, &'a str)],
    /// The scripts of releases, named `portable--VERSION.sql`, as `template()` has returned them.
    pub releases: &'a [(&'a str, &'a str)],
}

pub const RELEASE: Release = Release {
    version: env!("CARGO_PKG_VERSION"),
    migrations: MIGRATIONS,
    releases: RELEASES,
};

impl Release<'_> {
    /// The script that makes the schema, for any owner and any schema of the functions that users call.
    pub fn template(&self) -> String {
        let files = FILES.iter().map(|(name, text)| stand_in(name, text));
        self.join(files.collect())
    }

    /// The script that makes the schema, for a role of this name that owns it.
    pub fn install(&self, owner: &str) -> String {
        fill_in(&self.template(), owner, API_SCHEMA)
    }

    /// The script that has made the schema of a version, with functions for users in `api_schema`. Returns `None` if
    /// this program does not have that script.
    pub fn install_of(&self, version: &str, owner: &str, api_schema: &str) -> Option<String> {
        if version == self.version {
            return Some(fill_in(&self.template(), owner, api_schema));
        }
        let name = format!("portable--{version}.sql");
        let (_, template) = self.releases.iter().find(|(release, _)| *release == name)?;
        Some(fill_in(template, owner, api_schema))
    }

    /// The script that makes the schema of another version that of this one: the changes of the tables since, and all
    /// files that can be run again. Returns `None` if that version is a later one.
    pub fn upgrade(&self, from: &str, owner: &str) -> Option<String> {
        let since = number(from)?;
        if self.is_before(from) {
            return None;
        }
        let mut migrations: Vec<_> = (self.migrations.iter())
            .filter_map(|(name, text)| Some((number(name.split("--").next()?)?, *text)))
            .filter(|(version, _)| *version >= since)
            .collect();
        migrations.sort();
        let again = (FILES.iter())
            .filter(|(name, _)| *name != TABLES)
            .map(|(name, text)| stand_in(name, text));
        let migrations = migrations.into_iter().map(|(_, text)| text);
        let texts = [LOCK, BODIES].into_iter().chain(migrations);
        let script = self.join(texts.chain(again).collect());
        Some(fill_in(&script, owner, API_SCHEMA))
    }

    pub fn is_before(&self, version: &str) -> bool {
        number(self.version) < number(version)
    }

    /// The program makes the schema itself, and only the tables of an extension are marked for dumps.
    fn join(&self, texts: Vec<&str>) -> String {
        let is_of_extension = |line: &&str| {
            line.starts_with("SELECT pg_catalog.pg_extension_config_dump(")
                || *line == "CREATE SCHEMA webhook;"
        };
        let lines = texts.iter().flat_map(|text| text.lines());
        let script: String = (lines.filter(|line| !is_of_extension(line)))
            .flat_map(|line| [line, "\n"])
            .collect();
        script.replace("@VERSION@", self.version)
    }
}

/// The owner is named as a literal where a rule depends on it.
fn fill_in(template: &str, owner: &str, api_schema: &str) -> String {
    (template.replace("@extschema@", api_schema)).replace("'webhook_owner'", &literal(owner))
}

fn number(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|part| part.parse().ok()).collect()
}

fn stand_in(name: &str, text: &'static str) -> &'static str {
    let found = STAND_INS.iter().find(|(stand_in, _)| *stand_in == name);
    found.map_or(text, |(_, text)| text)
}

pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(script: &str) -> impl Iterator<Item = &str> {
        script
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
    }

    #[test]
    fn a_stand_in_replaces_a_file_that_is_there() {
        for (name, _) in STAND_INS {
            assert!(FILES.iter().any(|(file, _)| file == name), "{name}");
        }
    }

    #[test]
    fn nothing_of_the_library_or_the_extension_is_left() {
        let script = RELEASE.install("o'wner");
        for line in statements(&script) {
            for of_extension in ["MODULE_PATHNAME", "@extschema@", "@VERSION@"] {
                assert!(!line.contains(of_extension), "{line}");
            }
        }
        assert!(!script.contains("LANGUAGE c "));
        assert!(!script.contains("CREATE SCHEMA"));
    }

    #[test]
    fn the_owner_is_named_as_it_is() {
        let script = RELEASE.install("o'wner");
        assert!(script.contains("CURRENT_USER <> 'o''wner'"));
        assert!(!statements(&script).any(|line| line.contains("CURRENT_USER <> 'webhook_owner'")));
    }

    #[test]
    fn every_version_but_a_later_one_can_be_upgraded() {
        assert!(RELEASE.upgrade(RELEASE.version, "webhook_owner").is_some());
        assert!(RELEASE.upgrade("0.0.9", "webhook_owner").is_some());
        assert!(RELEASE.upgrade("999.0.0", "webhook_owner").is_none());
        assert!(RELEASE.upgrade("garbage", "webhook_owner").is_none());
        let again = RELEASE
            .upgrade(RELEASE.version, "webhook_owner")
            .unwrap_or_default();
        assert!(!statements(&again).any(|line| line.starts_with("CREATE TABLE webhook.policy")));
    }

    #[test]
    fn the_script_of_a_release_is_that_of_its_version_and_of_no_other() {
        let release = Release {
            version: "99.0.0",
            migrations: &[],
            releases: &[("portable--0.1.0.sql", "CREATE FUNCTION @extschema@.f()")],
        };
        let of = |version| release.install_of(version, "webhook_owner", "api");
        assert_eq!(of("0.1.0").as_deref(), Some("CREATE FUNCTION api.f()"));
        assert!(of("99.0.0").is_some_and(|script| script.contains("SELECT ''99.0.0''")));
        assert_eq!(of("0.2.0"), None);
    }
}
