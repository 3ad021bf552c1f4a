//! The schema of the extension as a script for a database that has no library: the files of `sql/`, where a file of
//! `sql/portable/` replaces the one of the same name.

include!(concat!(env!("OUT_DIR"), "/sql.rs"));

/// The only file that cannot be run again.
const TABLES: &str = "00_tables.sql";
const BEFORE_MIGRATIONS: &str = include_str!("../../sql/upgrade/begin.sql");

/// The version that a program installs and upgrades to. A test makes the program of a release to come.
pub struct Release {
    pub version: &'static str,
    /// Changes of the tables between two versions, named `A--B.sql`.
    pub migrations: &'static [(&'static str, &'static str)],
}

pub const RELEASE: Release = Release {
    version: env!("CARGO_PKG_VERSION"),
    migrations: MIGRATIONS,
};

impl Release {
    /// The script that makes the schema, for a role of this name that owns it.
    pub fn install(&self, owner: &str) -> String {
        let files = FILES.iter().map(|(name, text)| stand_in(name, text));
        self.adapt(files.collect(), owner)
    }

    /// The script that makes the schema of another version that of this one: the changes of the tables since, and all
    /// files that can be run again. Nothing where that version is a later one.
    pub fn upgrade(&self, from: &str, owner: &str) -> Option<String> {
        if number(from)? > number(self.version)? {
            return None;
        }
        let mut migrations: Vec<_> = (self.migrations.iter())
            .filter_map(|(name, text)| Some((number(name.split("--").next()?)?, *text)))
            .filter(|(since, _)| Some(since) >= number(from).as_ref())
            .collect();
        migrations.sort();
        let again = (FILES.iter())
            .filter(|(name, _)| *name != TABLES)
            .map(|(name, text)| stand_in(name, text));
        let migrations = migrations.into_iter().map(|(_, text)| text);
        let texts = [BEFORE_MIGRATIONS].into_iter().chain(migrations);
        Some(self.adapt(texts.chain(again).collect(), owner))
    }

    /// The program makes the schema itself, and only the tables of an extension are marked for dumps. The owner is
    /// named as a literal where a rule depends on it.
    fn adapt(&self, texts: Vec<&str>, owner: &str) -> String {
        let is_of_extension = |line: &&str| {
            line.starts_with("SELECT pg_catalog.pg_extension_config_dump(")
                || *line == "CREATE SCHEMA webhook;"
        };
        let lines = texts.iter().flat_map(|text| text.lines());
        let script: String = (lines.filter(|line| !is_of_extension(line)))
            .flat_map(|line| [line, "\n"])
            .collect();
        (script.replace("@extschema@", "public"))
            .replace("@VERSION@", self.version)
            .replace("'webhook_owner'", &literal(owner))
    }
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
}
