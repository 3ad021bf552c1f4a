-- Gives every role the new rights of its levels, for an upgrade.
--
-- A role of the level may execute every function of it that is not new: a role that was denied one by hand gets no more.
CREATE OR REPLACE FUNCTION webhook.renew_levels() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held record;
BEGIN
    FOR held IN
        WITH earlier AS MATERIALIZED (
            SELECT a.level, p.oid, p.proacl
            FROM webhook.api() a
            JOIN webhook.members() m USING (name)
            JOIN pg_proc p ON p.oid = m.routine
            WHERE a.kind IN ('function', 'procedure') AND NOT webhook.is_new(p.oid)
        )
        SELECT e.level, r.rolname
        FROM earlier e
        CROSS JOIN LATERAL aclexplode(e.proacl) g
        JOIN pg_roles r ON r.oid = g.grantee
        WHERE g.privilege_type = 'EXECUTE' AND g.grantee IN (SELECT webhook.holders(e.level))
        GROUP BY e.level, r.rolname
        HAVING count(DISTINCT e.oid) = (SELECT count(*) FROM earlier o WHERE o.level = e.level)
        ORDER BY r.rolname, e.level
    LOOP
        PERFORM webhook.grant_level(held.rolname, held.level);
    END LOOP;
END $$;
