//! The privileges in the catalogs, compared with those that the API's tables list.

use postgres::Client;

/// Every privilege on an object of ours that a role other than its owner has, and every one that `levels` should
/// have; `$1` has roles and `$2` the level of each.
const DIFFERENCES: &str = "
    WITH member (kind, object, owner, acl) AS (
        SELECT 'schema', n.nspname::text, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner))
        FROM pg_namespace n WHERE n.nspname = 'webhook'
        UNION ALL
        SELECT 'relation', c.relname, c.relowner,
               coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", c.relowner))
        FROM pg_class c
        WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
        UNION ALL
        SELECT 'relation', format('%s.%s', c.relname, a.attname), c.relowner, a.attacl
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        UNION ALL
        SELECT 'routine', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
        FROM pg_proc p WHERE p.pronamespace = 'webhook'::regnamespace OR p.oid IN (SELECT m.routine FROM webhook.members() m)
        UNION ALL
        -- Row types and array types have no rights of their own.
        SELECT 'type', t.typname, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
        FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
        WHERE t.typnamespace = 'webhook'::regnamespace AND t.typcategory <> 'A' AND coalesce(c.relkind, 'c') = 'c'
    ), granted AS (
        SELECT m.kind, m.object, coalesce(r.rolname, 'PUBLIC')::text AS role,
               g.privilege_type || CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS privilege
        FROM member m CROSS JOIN LATERAL aclexplode(m.acl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
        WHERE g.grantee <> m.owner
    ), included (role, level) AS (
        SELECT h.role, i.level FROM unnest($1::text[], $2::text[]) AS h (role, level)
        JOIN (VALUES ('emit', '{emit}'::text[]), ('read', '{read}'), ('operate', '{read, operate}'),
                     ('admin', '{emit, read, operate, admin, relay}'), ('relay', '{relay}')) AS l (level, includes) USING (level)
        CROSS JOIN LATERAL unnest(l.includes) AS i (level)
    ), listed AS (
        SELECT 'schema' AS kind, 'webhook' AS object, i.role, 'USAGE' AS privilege FROM included i
        UNION
        SELECT 'routine', m.routine::regprocedure::text, i.role, 'EXECUTE'
        FROM webhook.api() a JOIN included i USING (level) JOIN webhook.members() m USING (name)
        WHERE a.kind IN ('function', 'procedure', 'part')
        UNION
        SELECT CASE a.kind WHEN 'type' THEN 'type' ELSE 'relation' END, a.name, i.role,
               CASE a.kind WHEN 'type' THEN 'USAGE' ELSE 'SELECT' END
        FROM webhook.api() a JOIN included i USING (level) WHERE a.kind IN ('table', 'view', 'sequence', 'type')
        UNION
        SELECT 'relation', concat_ws('.', g.name, c), i.role, g.privilege
        FROM webhook.api_grants() g JOIN included i USING (level) LEFT JOIN LATERAL unnest(g.columns) AS c ON true
        WHERE to_regclass('webhook.' || g.name) IS NOT NULL
    )
    SELECT format('granted and not listed: %s on %s %s to %s', privilege, kind, object, role)
    FROM (SELECT * FROM granted EXCEPT SELECT * FROM listed) g
    UNION ALL
    SELECT format('listed and not granted: %s on %s %s to %s', privilege, kind, object, role)
    FROM (SELECT * FROM listed EXCEPT SELECT * FROM granted) g
    ORDER BY 1";

/// Privileges of these roles, each with its level, and of all others, which should have none.
pub fn differences(client: &mut Client, roles: &[(&str, &str)]) -> Vec<String> {
    let (names, levels): (Vec<&str>, Vec<&str>) = roles.iter().copied().unzip();
    let rows = client.query(DIFFERENCES, &[&names, &levels]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
