-- Levels. There are five, and a role has those that webhook_grant() gave it:
--
--   emit     emits events and watches tables; sees nothing
--   read     sees events, deliveries, attempts and how endpoints are doing; neither secrets nor credentials
--   operate  reads; pauses, resumes, tests, replays and backfills; corrects deliveries by UPDATE webhook.delivery and
--            discards them by DELETE FROM webhook.dead_letter
--   admin    does all of it; manages endpoints, policies and secrets
--   relay    delivers, for webhook-relay: claims, settles, gets routes with their secrets, and does the upkeep
--
-- Only webhook_owner has TRIGGER: a trigger on our tables would run as the worker. No role gets our trigger functions, which
-- run as webhook_owner: on a table of the caller's they would meet columns of the caller's types, and so call the caller's
-- casts and domain checks. Our own triggers fire without any privilege. webhook_trigger() is made for tables of others, and
-- takes the rights of webhook_owner only when nothing is left of their rows but JSON.

-- One row for each object. A function that people call has two: the thin one and the one that does the work.
CREATE OR REPLACE FUNCTION webhook.privileges(level text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- webhook_watch() runs as its caller and calls these: each reads only the system's catalogs or its arguments.
    called_by_watch CONSTANT text[] :=
        '{watch_commands, watch_definitions, watch_triggers, require_watchable, require_watch, reported_name, refuse_condition,
          is_event_type, refuse_event_type, did_you_mean, virtual_columns}';
    -- These belong to the owner alone, beside those of the API that are a superuser's.
    of_the_owner CONSTANT text[] :=
        '{grant_level, revoke_level, grant_connect, withdraw_grants, unsent, write_installation,
          recognise_installation, renew_levels, renew_grants, holders}';
BEGIN
    RETURN QUERY
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure)
    FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine LEFT JOIN webhook.api() a
         ON a.name = m.name AND a.kind IN ('function', 'procedure', 'part')
    WHERE a.level = privileges.level
       -- The writers of watched tables call these.
       OR (privileges.level = 'emit' AND webhook.is_portable() AND m.name LIKE 'capture%')
       OR (privileges.level = 'admin' AND a.level IS DISTINCT FROM 'superuser' AND m.name <> ALL (of_the_owner)
           AND p.prorettype <> 'trigger'::regtype);

    IF level IN ('emit', 'relay') THEN
        RETURN NEXT 'USAGE ON SCHEMA webhook';
    ELSIF level = 'read' THEN
        RETURN NEXT 'USAGE ON SCHEMA webhook';
        RETURN QUERY
        SELECT format('SELECT ON webhook.%I', a.name) FROM webhook.api() a WHERE a.kind IN ('table', 'view') AND a.level = 'read';
        RETURN QUERY
        SELECT format('SELECT (%s) ON webhook.endpoint', string_agg(quote_ident(a.attname), ', ')) FROM pg_attribute a
        WHERE a.attrelid = 'webhook.endpoint'::regclass AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attname NOT IN ('url', 'headers', 'template');
    ELSIF level = 'operate' THEN
        RETURN NEXT 'UPDATE (status, attempts, next_attempt_at, last_error) ON webhook.delivery';
        RETURN NEXT 'DELETE ON webhook.dead_letter';
        RETURN NEXT 'USAGE ON TYPE webhook.replay, webhook.backfill';
        RETURN QUERY SELECT webhook.privileges('read');
    ELSIF level = 'admin' THEN
        RETURN NEXT 'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA webhook';
        RETURN NEXT 'USAGE, SELECT ON ALL SEQUENCES IN SCHEMA webhook';
        RETURN NEXT 'USAGE ON TYPE webhook.judgement, webhook.outcome';
        RETURN QUERY SELECT webhook.privileges('operate');
        RETURN QUERY SELECT webhook.privileges('emit');
        RETURN QUERY SELECT webhook.privileges('relay');
    ELSE
        RAISE EXCEPTION 'level "%" does not exist', level USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The levels are emit, read, operate, admin and relay.';
    END IF;
END $$;

-- It takes a name and not a regrole: of two functions that fit a literal, the server prefers the one that takes text, and that
-- might be somebody else's.
CREATE OR REPLACE FUNCTION webhook.require_role(role text) RETURNS regrole
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_role regrole := (SELECT r.oid FROM pg_roles r WHERE r.rolname = role);
BEGIN
    IF found_role IS NULL THEN
        RAISE EXCEPTION 'role "%" does not exist', role USING ERRCODE = 'undefined_object',
            HINT = coalesce(webhook.did_you_mean(role, ARRAY(SELECT r.rolname FROM pg_roles r)), 'CREATE ROLE makes one.');
    END IF;
    RETURN found_role;
END $$;

CREATE OR REPLACE FUNCTION webhook.api_schema(OUT schema regnamespace, OUT is_ours_alone boolean)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    schema := webhook.home();
    is_ours_alone := NOT EXISTS (
        SELECT FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema AND d.deptype = 'n'
          AND d.classid <> 'pg_extension'::regclass
          AND NOT (d.classid = 'pg_proc'::regclass AND d.objid IN (SELECT m.routine FROM webhook.members() m)));
END $$;

-- It runs with its caller's rights: only a superuser can grant rights on objects of webhook_owner. Without the library it has
-- the owner's rights instead (sql/portable/90_ownership.sql).
CREATE OR REPLACE FUNCTION webhook.grant_level(role text, level text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    to_role regrole := webhook.require_role(role);
    api record;
    privilege text;
BEGIN
    FOR privilege IN SELECT webhook.privileges(level) LOOP
        EXECUTE format('GRANT %s TO %s', privilege, to_role);
    END LOOP;
    SELECT * INTO api FROM webhook.api_schema();
    IF NOT has_schema_privilege(to_role, api.schema, 'USAGE') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', api.schema, to_role);
    END IF;
END $$;

-- The roles that have a level, found by a function of schema webhook that no lesser level has. Functions in the schema of the
-- extension prove nothing: GRANT .. ON ALL FUNCTIONS IN SCHEMA gives them to roles that can do nothing with them.
CREATE OR REPLACE FUNCTION webhook.holders(level text) RETURNS SETOF oid
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT a.grantee
        FROM (VALUES ('emit', 'emit'), ('read', 'status'), ('operate', 'pause'), ('admin', 'set_endpoint'), ('relay', 'exchange')) AS l (level, hallmark)
        JOIN pg_proc p ON p.proname = l.hallmark AND p.pronamespace = 'webhook'::regnamespace
        CROSS JOIN LATERAL aclexplode(p.proacl) a
        WHERE l.level = holders.level AND a.grantee <> p.proowner;
    END;

-- Takes away the level and those that it includes; the role keeps the rights that another level of it needs. With the last
-- level goes USAGE on the schema of our functions, unless that schema holds other things too.
CREATE OR REPLACE FUNCTION webhook.revoke_level(role text, level text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    from_role regrole := webhook.require_role(role);
    taken text[] := CASE level WHEN 'admin' THEN '{emit, read, operate, admin, relay}' WHEN 'operate' THEN '{read, operate}' ELSE ARRAY[level] END;
    kept text[] := ARRAY(SELECT other FROM unnest('{emit, read, operate, admin, relay}'::text[]) AS other
                         WHERE other <> ALL (taken) AND from_role IN (SELECT webhook.holders(other)));
    api record;
    privilege text;
BEGIN
    FOR privilege IN
        SELECT webhook.privileges(level) EXCEPT SELECT webhook.privileges(k) FROM unnest(kept) AS k
    LOOP
        EXECUTE format('REVOKE %s FROM %s', privilege, from_role);
    END LOOP;
    SELECT * INTO api FROM webhook.api_schema();
    IF cardinality(kept) = 0
       AND EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = api.schema AND a.grantee = from_role) THEN
        IF api.is_ours_alone THEN
            EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %s', api.schema, from_role);
        ELSE
            RAISE NOTICE 'role "%" keeps its rights to schema "%"', role, api.schema
                USING DETAIL = 'The schema has objects that are not webhook''s.',
                      HINT = format('REVOKE USAGE ON SCHEMA %s FROM %s takes it away.', api.schema, from_role);
        END IF;
    END IF;
END $$;

-- How many deliveries wait, for a sentence of src/uninstall.rs before the extension is dropped.
CREATE OR REPLACE FUNCTION webhook.unsent() RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT CASE WHEN count(*) > webhook.count_limit() THEN 'more than ' || webhook.count_limit()
                        ELSE count(*)::text END
            FROM (SELECT FROM webhook.delivery_queue LIMIT webhook.count_limit() + 1) q);

-- The rights that would outlive the extension, and keep roles from being dropped: USAGE on a schema of ours alone, and CONNECT.
CREATE OR REPLACE FUNCTION webhook.withdraw_grants() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grantee regrole;
BEGIN
    FOR grantee IN
        SELECT DISTINCT a.grantee FROM webhook.api_schema() api
        JOIN pg_namespace n ON n.oid = api.schema
        CROSS JOIN aclexplode(n.nspacl) a
        WHERE api.is_ours_alone AND a.privilege_type = 'USAGE' AND a.grantee NOT IN (0, n.nspowner)
    LOOP
        EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %s', (SELECT api.schema FROM webhook.api_schema() api), grantee);
    END LOOP;
    IF EXISTS (SELECT FROM pg_database d, aclexplode(d.datacl) a
               WHERE d.datname = current_database() AND a.grantee = to_regrole('webhook_owner')) THEN
        EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM webhook_owner', current_database());
    END IF;
END $$;
