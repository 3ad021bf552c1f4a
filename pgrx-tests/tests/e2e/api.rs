//! The table of the API, and the privileges, comments and docs/reference.md that come from it.

use std::fs;
use std::path::Path;

use webhook_e2e::{Cluster, Database, grants, reference};

fn database() -> Database {
    Cluster::shared().database("api")
}

#[track_caller]
fn list(database: &Database, sql: &str) -> Vec<String> {
    let rows = database.connect().query(sql, &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn the_table_has_every_function_table_and_view_that_people_use_and_no_other() {
    let database = database();
    let listed = "SELECT kind || ' ' || name FROM webhook.api() WHERE kind NOT IN ('part', 'type') ORDER BY 1";
    let found = "SELECT CASE p.prokind WHEN 'p' THEN 'procedure ' ELSE 'function ' END || p.proname
                 FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
                 WHERE p.pronamespace <> 'webhook'::regnamespace
                 UNION
                 SELECT CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' ELSE 'table ' END || c.relname FROM pg_class c
                 WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
                 ORDER BY 1";
    assert_eq!(list(&database, listed), list(&database, found));
    let unknown = "SELECT name FROM webhook.api() a WHERE kind = 'type' AND to_regtype('webhook.' || name) IS NULL";
    assert_eq!(list(&database, unknown), Vec::<String>::new());
    let unknown = "SELECT name FROM webhook.api() a WHERE kind = 'part'
                   AND NOT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'webhook'::regnamespace AND p.proname = a.name)";
    assert_eq!(list(&database, unknown), Vec::<String>::new());
    let twice =
        "SELECT name FROM webhook.api() GROUP BY name, kind IN ('table', 'view', 'sequence', 'type') HAVING count(*) > 1
         UNION ALL
         SELECT name FROM webhook.api_grants() GROUP BY name, level, privilege HAVING count(*) > 1";
    assert_eq!(list(&database, twice), Vec::<String>::new());
}

const LEVELS: [&str; 5] = ["emit", "read", "operate", "admin", "relay"];

/// A role for each level.
fn roles(database: &Database) -> Vec<(String, &'static str)> {
    let role = |level| (format!("{}_{level}", database.name()), level);
    let roles: Vec<_> = LEVELS.into_iter().map(role).collect();
    for (role, level) in &roles {
        database.execute(&format!(
            "CREATE ROLE {role}; SELECT webhook_grant('{role}', '{level}')"
        ));
    }
    roles
}

fn differences(database: &Database, roles: &[(String, &str)]) -> Vec<String> {
    let roles: Vec<(&str, &str)> = (roles.iter())
        .map(|(role, level)| (role.as_str(), *level))
        .collect();
    grants::differences(&mut database.connect(), &roles)
}

#[test]
fn the_catalogs_have_the_grants_that_the_tables_list_and_no_other() {
    let database = database();
    assert_eq!(differences(&database, &[]), Vec::<String>::new());
    let roles = roles(&database);
    assert_eq!(differences(&database, &roles), Vec::<String>::new());
    // The comparison sees what it is made for.
    let (role, _) = &roles[0];
    for (grant, object) in [
        ("SELECT ON webhook.event", "relation event"),
        (
            "UPDATE (payload) ON webhook.event",
            "relation event.payload",
        ),
        (
            "USAGE ON SEQUENCE webhook.sender_id_seq",
            "relation sender_id_seq",
        ),
        (
            "EXECUTE ON FUNCTION webhook.wake()",
            "routine webhook.wake()",
        ),
        ("CREATE ON SCHEMA webhook", "schema webhook"),
        ("USAGE ON TYPE webhook.outcome", "type outcome"),
    ] {
        for grantee in [role.as_str(), "PUBLIC"] {
            database.execute(&format!("GRANT {grant} TO {grantee}"));
            let found = differences(&database, &roles);
            let privilege = grant.split(' ').next().unwrap();
            let expected = format!("granted and not listed: {privilege} on {object} to {grantee}");
            assert_eq!(found, [expected]);
            database.execute(&format!("REVOKE {grant} FROM {grantee}"));
        }
    }
    for (role, level) in &roles {
        database.execute(&format!(
            "SELECT webhook_revoke('{role}', '{level}'); DROP ROLE {role}"
        ));
    }
}

#[test]
fn a_new_table_column_or_function_is_granted_to_no_level_until_it_is_listed() {
    let database = database();
    database.execute(
        "CREATE TABLE webhook.unlisted (id int GENERATED ALWAYS AS IDENTITY);
         CREATE FUNCTION webhook.unlisted() RETURNS int LANGUAGE sql RETURN 1;
         REVOKE ALL ON FUNCTION webhook.unlisted() FROM PUBLIC;
         CREATE TYPE webhook.unlisted_type AS ENUM ();
         REVOKE ALL ON TYPE webhook.unlisted_type FROM PUBLIC;
         ALTER TABLE webhook.unlisted OWNER TO webhook_owner;
         ALTER FUNCTION webhook.unlisted() OWNER TO webhook_owner;
         ALTER TYPE webhook.unlisted_type OWNER TO webhook_owner;
         ALTER EXTENSION webhook ADD TABLE webhook.unlisted;
         ALTER EXTENSION webhook ADD FUNCTION webhook.unlisted();
         ALTER EXTENSION webhook ADD TYPE webhook.unlisted_type;
         ALTER TABLE webhook.endpoint ADD COLUMN unlisted int",
    );
    let roles = roles(&database);
    assert_eq!(differences(&database, &roles), Vec::<String>::new());
    for (role, _) in &roles {
        let may = format!(
            "SELECT has_table_privilege('{role}', 'webhook.unlisted', 'SELECT, INSERT, UPDATE, DELETE')
                 OR has_sequence_privilege('{role}', 'webhook.unlisted_id_seq', 'USAGE, SELECT')
                 OR has_function_privilege('{role}', 'webhook.unlisted()', 'EXECUTE')
                 OR has_column_privilege('{role}', 'webhook.endpoint', 'unlisted', 'UPDATE')"
        );
        assert!(!database.query_one_value::<bool>(&may), "{role}");
        database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
}

/// A function that runs with its caller's rights, and a view, a CHECK, a default or an index that a level meets, needs
/// no function that the level may not execute.
#[test]
fn a_level_may_execute_all_that_its_functions_and_tables_call() {
    let database = database();
    let missing = "
        WITH routine AS (
            SELECT p.oid, p.proname::text AS name, p.prosecdef, l.level, l.includes,
                   regexp_replace(coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), '--[^\n]*', '', 'g') AS body
            FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
            LEFT JOIN webhook.api() a ON a.name = p.proname AND a.kind IN ('function', 'procedure', 'part')
            LEFT JOIN webhook.level_list() l USING (level)
        ), needed (level, includes, by, name) AS (
            SELECT r.level, r.includes, r.name, c.match[1]
            FROM routine r CROSS JOIN LATERAL regexp_matches(r.body, 'webhook[.]([a-z_]+)[(]', 'g') AS c (match)
            WHERE r.level IS NOT NULL AND NOT r.prosecdef
            UNION ALL
            SELECT l.level, l.includes, v.viewname, c.match[1]
            FROM pg_views v JOIN webhook.api() a ON a.name = v.viewname AND a.kind = 'view' JOIN webhook.level_list() l USING (level)
            CROSS JOIN LATERAL regexp_matches(v.definition, 'webhook[.]([a-z_]+)[(]', 'g') AS c (match)
            WHERE v.schemaname = 'webhook'
            UNION ALL
            SELECT l.level, l.includes, e.place, c.match[1]
            FROM webhook.api_grants() g JOIN webhook.level_list() l USING (level)
            JOIN pg_class t ON t.relname = g.name AND t.relnamespace = 'webhook'::regnamespace
            CROSS JOIN LATERAL (
                SELECT k.conrelid::regclass::text, pg_get_constraintdef(k.oid) FROM pg_constraint k
                WHERE k.conrelid = t.oid OR k.conrelid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = t.oid)
                UNION ALL
                SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i
                WHERE i.indrelid = t.oid OR i.indrelid IN (SELECT h.inhrelid FROM pg_inherits h WHERE h.inhparent = t.oid)
                UNION ALL
                SELECT d.adrelid::regclass::text, pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                WHERE d.adrelid = t.oid AND g.privilege = 'INSERT'
            ) e (place, expression)
            CROSS JOIN LATERAL regexp_matches(e.expression, 'webhook[.]([a-z_]+)[(]', 'g') AS c (match)
            WHERE g.privilege IN ('INSERT', 'UPDATE')
        )
        SELECT DISTINCT format('%s: %s needs %s', n.level, n.by, n.name)
        FROM needed n JOIN routine r ON r.name = n.name
        WHERE (r.level = ANY (n.includes)) IS NOT TRUE ORDER BY 1";
    assert_eq!(list(&database, missing), Vec::<String>::new());
}

#[test]
fn every_object_has_a_comment_and_those_of_the_api_the_tables() {
    let database = database();
    let without = "
        SELECT format('%s %s', k.kind, k.name) FROM (
            SELECT 'routine', p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc')
            FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
            UNION ALL
            SELECT 'relation', c.oid::regclass::text, obj_description(c.oid, 'pg_class') FROM pg_class c
            WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v')
            UNION ALL
            SELECT 'column', format('%s.%s', c.oid::regclass, a.attname), col_description(c.oid, a.attnum)
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v')
              AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL
            SELECT 'type', t.oid::regtype::text, obj_description(t.oid, 'pg_type')
            FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
            WHERE t.typnamespace = 'webhook'::regnamespace AND t.typcategory <> 'A' AND coalesce(c.relkind, 'c') = 'c'
            UNION ALL
            SELECT 'schema', n.nspname, obj_description(n.oid, 'pg_namespace') FROM pg_namespace n WHERE n.nspname = 'webhook'
        ) k (kind, name, comment)
        WHERE coalesce(k.comment, '') !~ '[.]$' ORDER BY 1";
    assert_eq!(list(&database, without), Vec::<String>::new());
    let others = "
        SELECT a.name FROM webhook.api() a
        LEFT JOIN webhook.members() m ON m.name = a.name AND a.kind IN ('function', 'procedure', 'part')
        LEFT JOIN pg_class c ON c.relname = a.name AND c.relnamespace = 'webhook'::regnamespace AND a.kind IN ('table', 'view', 'sequence')
        WHERE a.kind <> 'type'
          AND split_part(coalesce(obj_description(m.routine, 'pg_proc'), obj_description(c.oid, 'pg_class')), E'\n', 1) IS DISTINCT FROM a.comment";
    assert_eq!(list(&database, others), Vec::<String>::new());
}

#[test]
fn every_parameter_and_result_column_has_its_meaning_in_the_comment_of_its_function() {
    let database = database();
    let without = "
        SELECT p.oid::regprocedure || ': ' || d.parameter
        FROM webhook.api() a JOIN webhook.members() m USING (name) JOIN pg_proc p ON p.oid = m.routine
        CROSS JOIN LATERAL webhook.parameters_of(p.oid) d
        WHERE a.kind IN ('function', 'procedure')
          AND (d.meaning !~ '[.]$' OR position(format(E'\\n%s: %s', d.parameter, d.meaning) IN obj_description(p.oid, 'pg_proc')) = 0) IS NOT false";
    assert_eq!(list(&database, without), Vec::<String>::new());
    let of_nothing = "
        SELECT format('%s: %s', k.function, k.parameter) FROM webhook.parameters() k
        WHERE NOT EXISTS (SELECT FROM webhook.api() a JOIN webhook.members() m USING (name) JOIN pg_proc p ON p.oid = m.routine
                          WHERE a.kind IN ('function', 'procedure') AND k.parameter = ANY (p.proargnames)
                            AND (k.function = a.name OR k.function IS NULL))
        UNION ALL
        SELECT format('%s: %s', r.function, r.name) FROM webhook.result_columns() r
        WHERE NOT EXISTS (SELECT FROM webhook.members() m CROSS JOIN LATERAL webhook.parameters_of(m.routine) d
                          WHERE m.name = r.function AND d.parameter = r.name AND d.is_result)";
    assert_eq!(list(&database, of_nothing), Vec::<String>::new());
}

#[test]
fn the_reference_is_what_the_catalogs_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference.md");
    let written = fs::read_to_string(path).unwrap_or_default();
    let database = database();
    let generated = reference::markdown(&database);
    let different = (written.lines().zip(generated.lines())).find(|(one, other)| one != other);
    assert_eq!(different, None, "make reference writes it");
    assert_eq!(written.len(), generated.len(), "make reference writes it");
}
