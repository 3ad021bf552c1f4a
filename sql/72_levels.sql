-- For an upgrade: gives every role what its levels have gained.
--
-- A role has a level if it may execute every function of the level that is not new. A function is new if this
-- transaction has made it a member of the extension: to replace one leaves its row of pg_depend as it was.
CREATE OR REPLACE FUNCTION webhook.renew_levels() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held record;
BEGIN
    FOR held IN
        WITH earlier AS MATERIALIZED (
            SELECT a.level, p.oid, p.proowner, p.proacl
            FROM webhook.api() a
            JOIN webhook.members() m USING (name)
            JOIN pg_proc p ON p.oid = m.routine
            JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
            WHERE a.kind IN ('function', 'procedure') AND d.xmin <> pg_current_xact_id()::xid
        )
        SELECT e.level, r.rolname
        FROM earlier e
        CROSS JOIN LATERAL aclexplode(e.proacl) g
        JOIN pg_roles r ON r.oid = g.grantee
        WHERE g.grantee <> e.proowner AND g.privilege_type = 'EXECUTE'
        GROUP BY e.level, r.rolname
        HAVING count(DISTINCT e.oid) = (SELECT count(*) FROM earlier o WHERE o.level = e.level)
        ORDER BY r.rolname, e.level
    LOOP
        PERFORM webhook.grant_level(held.rolname, held.level);
    END LOOP;
END $$;
