-- Webhook's objects, and for those that could run code and that an upgrade does not replace, their definitions. Two
-- installations are compared by these rows; a column has its relation with it. This reads catalogs alone, so none of that code
-- runs.
--
-- $1 is the role that owns the installation. $2 is null, or the schema of the functions of a fresh copy, which has its tables
-- in schema webhook too: only what is in these two schemas counts then, and not all that belongs to the role.
WITH place AS (
    SELECT n.oid FROM pg_namespace n WHERE n.nspname IN ('webhook', $2)
), object (classid, objid) AS (
    -- Whatever can be in a schema: relations, routines, types, operators, collations, text search, statistics, ..
    SELECT d.classid, d.objid
    FROM pg_depend d
    WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid IN (SELECT oid FROM place) AND d.deptype = 'n'
    UNION
    SELECT s.classid, s.objid
    FROM pg_shdepend s
    JOIN pg_database b ON b.oid = s.dbid AND b.datname = current_database()
    JOIN pg_roles r ON s.refclassid = 'pg_authid'::regclass AND s.refobjid = r.oid
    WHERE s.deptype = 'o' AND r.rolname = $1 AND $2 IS NULL
      AND NOT (s.classid = 'pg_namespace'::regclass AND s.objid IN (SELECT oid FROM place))
    UNION
    SELECT 'pg_cast'::regclass, c.oid
    FROM pg_cast c JOIN pg_type t ON t.oid IN (c.castsource, c.casttarget)
    WHERE t.typnamespace IN (SELECT oid FROM place)
    UNION
    SELECT 'pg_transform'::regclass, f.oid
    FROM pg_transform f JOIN pg_type t ON t.oid = f.trftype
    WHERE t.typnamespace IN (SELECT oid FROM place)
), relation AS (
    SELECT c.*, c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace IN (SELECT oid FROM place)
)
SELECT pg_describe_object(o.classid, o.objid, 0) AS object, '' AS definition, NULL::text AS relation
FROM object o
UNION ALL
SELECT pg_describe_object('pg_class'::regclass, r.oid, 0),
       concat_ws(' ', r.relkind, r.relpersistence, r.relrowsecurity, r.relforcerowsecurity, r.relispartition, r.reloftype::regtype,
                 (SELECT a.amname FROM pg_am a WHERE a.oid = r.relam), pg_get_partkeydef(r.oid), pg_get_expr(r.relpartbound, r.oid)),
       NULL
FROM relation r
UNION ALL
SELECT pg_describe_object('pg_class'::regclass, r.oid, a.attnum),
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull, a.attidentity, a.attgenerated,
                 pg_get_expr(d.adbin, d.adrelid)),
       pg_describe_object('pg_class'::regclass, r.oid, 0)
FROM relation r
JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
WHERE r.relkind NOT IN ('i', 'I')
UNION ALL
SELECT pg_describe_object('pg_class'::regclass, i.indexrelid, 0), pg_get_indexdef(i.indexrelid), NULL
FROM relation r JOIN pg_index i ON i.indrelid = r.oid
UNION ALL
-- Foreign keys of other tables too. A column's own row has NOT NULL.
SELECT pg_describe_object('pg_constraint'::regclass, c.oid, 0), pg_get_constraintdef(c.oid), NULL
FROM pg_constraint c
WHERE c.contype <> 'n'
  AND (c.conrelid IN (SELECT oid FROM relation) OR c.confrelid IN (SELECT oid FROM relation)
       OR c.contypid IN (SELECT t.oid FROM pg_type t WHERE t.typnamespace IN (SELECT oid FROM place)))
UNION ALL
SELECT pg_describe_object('pg_trigger'::regclass, t.oid, 0), pg_get_triggerdef(t.oid), NULL
FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid
WHERE NOT t.tgisinternal
UNION ALL
-- The rule of a view is replaced with the view.
SELECT pg_describe_object('pg_rewrite'::regclass, w.oid, 0), pg_get_ruledef(w.oid), NULL
FROM relation r JOIN pg_rewrite w ON w.ev_class = r.oid
WHERE NOT (w.rulename = '_RETURN' AND r.relkind IN ('v', 'm'))
UNION ALL
SELECT pg_describe_object('pg_policy'::regclass, p.oid, 0),
       concat_ws(' ', p.polcmd, p.polpermissive, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid),
                 pg_get_expr(p.polwithcheck, p.polrelid)),
       NULL
FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
UNION ALL
SELECT pg_describe_object('pg_statistic_ext'::regclass, s.oid, 0), pg_get_statisticsobjdef(s.oid), NULL
FROM relation r JOIN pg_statistic_ext s ON s.stxrelid = r.oid
UNION ALL
SELECT format('%s, which inherits from %s', pg_describe_object('pg_class'::regclass, h.inhrelid, 0), r.name), '', NULL
FROM relation r JOIN pg_inherits h ON h.inhparent = r.oid
UNION ALL
SELECT pg_describe_object('pg_type'::regclass, t.oid, 0),
       concat_ws(' ', t.typtype, format_type(t.typbasetype, t.typtypmod), t.typnotnull, t.typdefault),
       NULL
FROM pg_type t
WHERE t.typnamespace IN (SELECT oid FROM place) AND t.typtype NOT IN ('b', 'c')
UNION ALL
-- The only routine that an upgrade keeps. It returns an id and two numbers of this installation.
SELECT pg_describe_object('pg_proc'::regclass, p.oid, 0),
       regexp_replace(pg_get_functiondef(p.oid), $re$'[0-9a-f-]+'|[0-9]+$re$, '?', 'g'),
       NULL
FROM pg_proc p
WHERE p.pronamespace IN (SELECT oid FROM place) AND p.proname = 'installation' AND p.prokind = 'f'
UNION ALL
-- Rights by which another role adds code to a table or an object to the schema.
SELECT format('right %s of role %s on %s', g.privilege_type, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END, g.object),
       '', NULL
FROM (
    SELECT a.privilege_type, a.grantee, pg_describe_object('pg_class'::regclass, r.oid, 0) AS object
    FROM relation r CROSS JOIN LATERAL aclexplode(r.relacl) a
    WHERE a.grantee <> r.relowner AND a.privilege_type IN ('TRIGGER', 'REFERENCES')
    UNION ALL
    SELECT a.privilege_type, a.grantee, pg_describe_object('pg_class'::regclass, r.oid, c.attnum)
    FROM relation r JOIN pg_attribute c ON c.attrelid = r.oid CROSS JOIN LATERAL aclexplode(c.attacl) a
    WHERE a.grantee <> r.relowner AND a.privilege_type = 'REFERENCES'
    UNION ALL
    SELECT a.privilege_type, a.grantee, pg_describe_object('pg_namespace'::regclass, n.oid, 0)
    FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a
    WHERE n.oid IN (SELECT oid FROM place) AND a.grantee <> n.nspowner AND a.privilege_type = 'CREATE'
) g
