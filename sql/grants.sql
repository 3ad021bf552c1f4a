-- Nobody gets anything that the administrator did not give: privileges.sql.

REVOKE ALL ON SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON TYPE webhook.replay, webhook.course, webhook.news FROM PUBLIC;

DO $$
DECLARE
    ours text;
BEGIN
    FOR ours IN
        SELECT p.oid::pg_catalog.regprocedure FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
        JOIN pg_catalog.pg_extension x
            ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid = x.oid AND x.extname = 'webhook'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', ours);
    END LOOP;
END $$;
