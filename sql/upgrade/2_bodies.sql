-- The server refuses to add a column with a default to a table whose row type is in a function with a body in SQL. The rest of
-- the script replaces all functions; until then these have no body.
DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN
        SELECT p.proname AS name, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
        FROM pg_proc p
        WHERE p.pronamespace = 'webhook'::regnamespace AND p.prokind = 'f' AND p.prosqlbody IS NOT NULL
          AND EXISTS (SELECT FROM pg_depend d JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND d.refobjid = t.oid
                      JOIN pg_class c ON c.oid = t.typrelid AND c.relkind IN ('r', 'p')
                      WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid)
    LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION webhook.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', ours.name, ours.arguments, ours.result,
                       'BEGIN RAISE EXCEPTION ''an upgrade of webhook is under way''; END');
    END LOOP;
END $$;
