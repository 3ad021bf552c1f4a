//! The table of the API, and the privileges, comments and docs/reference.md that come from it.

use std::fs;
use std::path::Path;

use webhook_e2e::{Cluster, Database, reference};

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
    let listed = "SELECT kind || ' ' || name FROM webhook.api() WHERE kind <> 'part' ORDER BY 1";
    let found = "SELECT CASE p.prokind WHEN 'p' THEN 'procedure ' ELSE 'function ' END || p.proname
                 FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
                 WHERE p.pronamespace <> 'webhook'::regnamespace
                 UNION
                 SELECT CASE c.relkind WHEN 'v' THEN 'view ' ELSE 'table ' END || c.relname FROM pg_class c
                 WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v')
                 ORDER BY 1";
    assert_eq!(list(&database, listed), list(&database, found));
    let unknown = "SELECT name FROM webhook.api() a WHERE kind = 'part'
                   AND NOT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'webhook'::regnamespace AND p.proname = a.name)";
    assert_eq!(list(&database, unknown), Vec::<String>::new());
}

#[test]
fn a_level_gives_what_the_table_says_and_nothing_else() {
    let database = database();
    for (level, levels) in [
        ("emit", "'emit'"),
        ("read", "'read'"),
        ("operate", "'read', 'operate'"),
        ("admin", "'emit', 'read', 'operate', 'admin'"),
    ] {
        let role = format!("{}_{level}", database.name());
        database.execute(&format!(
            "CREATE ROLE {role}; SELECT webhook_grant('{role}', '{level}')"
        ));
        let may_execute = format!(
            "SELECT DISTINCT p.proname::text FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
             LEFT JOIN webhook.api() a ON a.name = p.proname AND a.kind NOT IN ('table', 'view')
             WHERE has_function_privilege('{role}', p.oid, 'EXECUTE')
               AND ('{level}' <> 'admin' OR p.pronamespace <> 'webhook'::regnamespace)
             ORDER BY 1"
        );
        let listed = format!(
            "SELECT DISTINCT a.name FROM webhook.api() a
             WHERE a.level IN ({levels}) AND a.kind NOT IN ('table', 'view')
               AND ('{level}' <> 'admin' OR a.kind <> 'part')
             ORDER BY 1"
        );
        assert_eq!(
            list(&database, &may_execute),
            list(&database, &listed),
            "{level}"
        );
        let may_read = format!(
            "SELECT c.relname::text FROM pg_class c
             WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v')
               AND has_table_privilege('{role}', c.oid, 'SELECT') ORDER BY 1"
        );
        let listed = format!(
            "SELECT name FROM webhook.api() WHERE kind IN ('table', 'view') AND level IN ({levels}) ORDER BY 1"
        );
        assert_eq!(
            list(&database, &may_read),
            list(&database, &listed),
            "{level}"
        );
        database.execute(&format!("SELECT webhook_revoke('{role}', '{level}')"));
        database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
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
        LEFT JOIN webhook.members() m ON m.name = a.name AND a.kind NOT IN ('table', 'view')
        LEFT JOIN pg_class c ON c.relname = a.name AND c.relnamespace = 'webhook'::regnamespace AND a.kind IN ('table', 'view')
        WHERE split_part(coalesce(obj_description(m.routine, 'pg_proc'), obj_description(c.oid, 'pg_class')), E'\n', 1) <> a.comment";
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
