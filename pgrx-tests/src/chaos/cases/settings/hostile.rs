//! The list of hostile settings, made from pg_settings.

use crate::chaos::scene::Scene;

/// Settings that make everybody wait by design, and read-only transactions, which a worker waits out; a test of
/// settings has them.
const LEFT_OUT: &str = "'pre_auth_delay', 'post_auth_delay', 'default_transaction_read_only'";

/// Each value that is the opposite, the least, the most, or one of a list, as SQL has it behind SET .. =. A list of names is
/// no string: quoted as a whole it would be one name.
const HOSTILE: &str = "
    SELECT s.name, v.value, s.reset_val
    FROM pg_settings s
    CROSS JOIN LATERAL (
        SELECT quote_literal(chosen.value) AS value
        FROM (SELECT CASE s.reset_val WHEN 'on' THEN 'off' ELSE 'on' END AS value WHERE s.vartype = 'bool'
              UNION SELECT unnest(s.enumvals)
              UNION SELECT unnest(ARRAY[s.min_val, s.max_val]) WHERE s.vartype IN ('integer', 'real')
              UNION SELECT '1' WHERE s.vartype = 'integer' AND s.min_val::bigint < 1 AND s.max_val::bigint > 1) chosen
        WHERE chosen.value IS DISTINCT FROM s.reset_val
        UNION ALL
        SELECT t.value FROM texts t WHERE t.name = s.name AND s.vartype = 'string'
        UNION ALL
        SELECT NULL WHERE s.vartype = 'string' AND s.name NOT IN (SELECT t.name FROM texts t)
    ) v
    WHERE s.context IN ('user', 'superuser', 'backend', 'superuser-backend')
      AND s.name NOT LIKE 'webhook.%' AND s.name NOT IN (";

/// The worst values of text settings: pg_settings cannot name them. Schema `trap` is in the scene.
const TEXTS: &[(&str, &[&str])] = &[
    ("DateStyle", &["German, DMY", "SQL, YMD"]),
    (
        "TimeZone",
        &["'Pacific/Chatham'", "'<+24:59>-24:59'", "'Africa/Monrovia'"],
    ),
    ("application_name", &["'somebody else'"]),
    ("backtrace_functions", &["'errfinish,exec_simple_query'"]),
    ("client_encoding", &["'LATIN1'", "'SQL_ASCII'", "'WIN1252'"]),
    ("createrole_self_grant", &["'set, inherit'"]),
    ("default_table_access_method", &["'nowhere'"]),
    ("default_tablespace", &["'pg_default'", "'nowhere'"]),
    ("default_text_search_config", &["'pg_catalog.german'"]),
    ("dynamic_library_path", &["'/nowhere'"]),
    ("extension_control_path", &["'/nowhere'"]),
    ("extension_destdir", &["'/nowhere'"]),
    ("lc_messages", &["'POSIX'"]),
    ("lc_monetary", &["'POSIX'"]),
    ("lc_numeric", &["'POSIX'"]),
    ("lc_time", &["'POSIX'"]),
    ("local_preload_libraries", &["'nowhere'"]),
    ("log_connections", &["'all'"]),
    ("output_plugin_libraries", &["'nowhere'"]),
    ("plpgsql.extra_errors", &["'all'"]),
    ("plpgsql.extra_warnings", &["'all'"]),
    (
        "restrict_nonsystem_relation_kind",
        &["'view, foreign-table'"],
    ),
    (
        "search_path",
        &["pg_temp, public", "trap, pg_catalog, public", "''"],
    ),
    (
        "session_preload_libraries",
        &["'nowhere'", "'$libdir/plpgsql'"],
    ),
    ("temp_tablespaces", &["'nowhere'", "'pg_default'"]),
    ("timezone_abbreviations", &["'Australia'", "'India'"]),
    ("wal_consistency_checking", &["'all'"]),
];

/// Functions and operators that the search path `trap, pg_catalog` has a careless function find.
const TRAP: &str = "
    CREATE SCHEMA trap;
    CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'trapped'; END$$;
    CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT trap.spring(); SELECT pg_catalog.now()';
    CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT trap.spring(); SELECT pg_catalog.now()';
    CREATE FUNCTION trap.unnest(anyarray) RETURNS SETOF anyelement LANGUAGE sql AS 'SELECT trap.spring(); SELECT pg_catalog.unnest($1)';
    CREATE FUNCTION trap.equals(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()';
    CREATE FUNCTION trap.equals(uuid, uuid) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()';
    CREATE FUNCTION trap.equals(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()';
    CREATE OPERATOR trap.= (FUNCTION = trap.equals, LEFTARG = text, RIGHTARG = text);
    CREATE OPERATOR trap.= (FUNCTION = trap.equals, LEFTARG = uuid, RIGHTARG = uuid);
    CREATE OPERATOR trap.= (FUNCTION = trap.equals, LEFTARG = int, RIGHTARG = int);
    GRANT USAGE ON SCHEMA trap TO public";

#[derive(Clone)]
pub struct Setting {
    pub name: String,
    /// As SQL.
    pub value: String,
    pub usual: String,
}

impl Setting {
    pub fn assignment(&self) -> String {
        format!("{} = {}", self.name, self.value)
    }

    /// Whether its values are those that people have thought of.
    pub fn is_text(&self) -> bool {
        TEXTS.iter().any(|(name, _)| *name == self.name)
    }

    /// Whether it lets nobody connect whom it is for.
    pub fn ends_connecting(&self) -> bool {
        self.name.ends_with("_preload_libraries") && self.value == "'nowhere'"
    }
}

/// All that a session, a database or a role may set, in a random order.
pub fn settings(scene: &mut Scene) -> Vec<Setting> {
    scene.database.execute(TRAP);
    let texts = TEXTS.iter().flat_map(|(name, values)| {
        let row = move |value: &&str| format!("('{name}', $text${value}$text$)");
        values.iter().map(row)
    });
    let texts: Vec<String> = texts.collect();
    let sql = format!(
        "WITH texts (name, value) AS (VALUES {}) {HOSTILE}{LEFT_OUT}) ORDER BY 1, 2",
        texts.join(", ")
    );
    let mut session = scene.database.connect();
    // Its settings are there from then on.
    let loaded = session.batch_execute("LOAD 'plpgsql'");
    loaded.expect("it can be loaded");
    let rows = session.query(&sql, &[]).expect("settings are readable");
    let mut settings: Vec<Setting> = (rows.iter())
        .map(|row| {
            let name: String = row.get(0);
            let value: Option<String> = row.get(1);
            let value = value.unwrap_or_else(|| panic!("no hostile value of {name} is listed"));
            let usual: Option<String> = row.get(2);
            Setting {
                name,
                value,
                usual: usual.unwrap_or_default(),
            }
        })
        .collect();
    scene.random.shuffle(&mut settings);
    settings
}
