-- Everything belongs to the role that has run this script, and nobody else has any right to it. This file is in the place of
-- sql/90_ownership.sql.
--
-- PUBLIC has a right to functions and types as they are made. An object that has rights of its own was there before an
-- upgrade.
DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN
        SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS name
        FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine WHERE p.proacl IS NULL
        UNION ALL
        SELECT 'TYPE', t.oid::regtype::text
        FROM pg_type t LEFT JOIN pg_class r ON r.oid = t.typrelid
        WHERE t.typnamespace = 'webhook'::regnamespace AND t.typacl IS NULL AND t.typcategory <> 'A'
          AND coalesce(r.relkind, 'c') = 'c'
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC', ours.kind, ours.name);
    END LOOP;
END $$;

-- There is no superuser who could grant rights on the owner's objects. Only the role that has installed may call these two.
ALTER FUNCTION webhook.grant_level(text, text) SECURITY DEFINER;
ALTER FUNCTION webhook.revoke_level(text, text) SECURITY DEFINER;
