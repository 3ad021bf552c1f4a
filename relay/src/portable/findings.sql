-- What the server, the database and the role that works allow. $1 is the role that is to own the schema, if the schema has no
-- owner yet. This reads catalogs alone: the version is the text of a function, which is never called.
SELECT session_user::text AS me,
       current_database()::text AS database,
       EXISTS (SELECT FROM pg_extension x WHERE x.extname = 'webhook') AS has_extension,
       has.rolname::text AS owner_of_schema,
       p.oid IS NOT NULL AS is_portable,
       substring(p.prosrc FROM '^SELECT ''([0-9.]+)''$') AS version,
       owner.oid IS NOT NULL AS has_owner,
       me.rolsuper OR me.rolcreaterole AS makes_roles,
       me.rolsuper OR coalesce(pg_has_role(me.oid, owner.oid, CASE WHEN v.splits_membership THEN 'SET' ELSE 'MEMBER' END), false)
           AS is_member,
       me.rolsuper OR CASE WHEN NOT v.splits_membership THEN me.rolinherit
                           ELSE coalesce(pg_has_role(me.oid, owner.oid, 'USAGE'), false) END AS inherits,
       CASE WHEN owner.oid IS NULL OR NOT v.splits_membership THEN me.rolsuper OR me.rolcreaterole
            ELSE me.rolsuper OR pg_has_role(me.oid, owner.oid, 'MEMBER WITH ADMIN OPTION') END AS gives_membership,
       v.splits_membership,
       has_database_privilege(current_database(), 'CREATE') AS makes_schemas,
       has_schema_privilege('public', 'CREATE WITH GRANT OPTION') AS gives_public,
       coalesce(has_schema_privilege(owner.oid, 'public', 'CREATE'), false) AS owner_has_public
FROM pg_roles me
-- From 16 on a membership has the options INHERIT and SET.
CROSS JOIN (SELECT current_setting('server_version_num')::int >= 160000) AS v (splits_membership)
LEFT JOIN pg_namespace n ON n.nspname = 'webhook'
LEFT JOIN pg_roles has ON has.oid = n.nspowner
-- Not by to_regprocedure(), which needs the right to use the schema.
LEFT JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'portable_version' AND p.pronargs = 0
LEFT JOIN pg_roles owner ON owner.rolname = coalesce(CASE WHEN p.oid IS NOT NULL THEN has.rolname END, $1::text)
WHERE me.rolname = session_user
