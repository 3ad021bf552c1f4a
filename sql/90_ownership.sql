-- The end of the install script and of every upgrade script: all objects of the extension belong to webhook_owner, and nobody
-- else has any right to them.
--
-- An upgrade script replaces everything first. Until then it calls no function of ours and writes no table of ours that has a
-- trigger: the old code would run as the superuser who upgrades.
--
-- No client can be webhook_owner, and it can do nothing but what its own objects need, so a hole in our code is a hole in
-- webhooks and not in the server. Superuser rights are used while such a script runs, and never again.

-- Two databases may create the extension at the same moment: the second waits for the first and finds the role. Before 17 a
-- background worker cannot connect as a role without LOGIN; there nobody else can connect as one that has no connections.
DO $$
BEGIN
    IF to_regrole('webhook_owner') IS NULL THEN
        BEGIN
            CREATE ROLE webhook_owner NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF current_setting('server_version_num')::int < 170000
       AND NOT (SELECT r.rolcanlogin FROM pg_roles r WHERE r.oid = to_regrole('webhook_owner')) THEN
        ALTER ROLE webhook_owner LOGIN PASSWORD NULL CONNECTION LIMIT 0;
    END IF;
    IF NOT has_database_privilege('webhook_owner', current_database(), 'CONNECT') THEN
        PERFORM webhook.grant_connect();
    END IF;
    PERFORM webhook.require_safe_owner();
END $$;

-- The owner comes first, then the rights: in this order the server notes, for dumps, the rights that it finds in the end. An
-- object that belongs to webhook_owner already was there before an upgrade, and keeps the rights that webhook_grant() has
-- given. Default privileges, anybody's, have given rights to all new objects.
DO $$
DECLARE
    ours record;
    granted record;
BEGIN
    FOR ours IN
        SELECT o.*
        FROM pg_depend d
        JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid AND x.extname = 'webhook'
        CROSS JOIN LATERAL (
            SELECT 'SCHEMA' AS kind, n.oid::regnamespace::text AS name, n.nspowner AS owner,
                   n.nspacl AS acl, acldefault('n', n.nspowner) AS default_acl
            FROM pg_namespace n WHERE d.classid = 'pg_namespace'::regclass AND n.oid = d.objid
            UNION ALL
            SELECT CASE WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner,
                   c.relacl, acldefault((CASE WHEN c.relkind = 'S' THEN 's' ELSE 'r' END)::"char", c.relowner)
            FROM pg_class c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
            UNION ALL
            SELECT 'ROUTINE', p.oid::regprocedure::text, p.proowner, p.proacl, acldefault('f', p.proowner)
            FROM pg_proc p WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid
            UNION ALL
            -- From 17 on row types and array types are members too; they follow their table and their element.
            SELECT 'TYPE', t.oid::regtype::text, t.typowner, t.typacl, acldefault('T', t.typowner)
            FROM pg_type t LEFT JOIN pg_class r ON r.oid = t.typrelid
            WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND t.typcategory <> 'A' AND coalesce(r.relkind, 'c') = 'c'
        ) o
        WHERE d.deptype = 'e' AND o.owner <> to_regrole('webhook_owner')
        ORDER BY o.kind = 'SEQUENCE'                    -- a sequence that a column owns follows its table
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO webhook_owner', ours.kind, ours.name);
        FOR granted IN
            SELECT DISTINCT a.grantee FROM aclexplode(coalesce(ours.acl, ours.default_acl)) a WHERE a.grantee <> ours.owner
        LOOP
            EXECUTE format('REVOKE ALL ON %s %s FROM %s', ours.kind, ours.name,
                           CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
        END LOOP;
        IF ours.acl IS NOT NULL THEN
            -- Default privileges may have taken rights from an owner too.
            EXECUTE format('GRANT ALL ON %s %s TO webhook_owner', ours.kind, ours.name);
        END IF;
    END LOOP;
END $$;
