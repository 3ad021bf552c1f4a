-- Levels. There are five, and a role has those that webhook_grant() gave it:
--
--   emit     emits events and watches tables; sees nothing
--   read     sees events, deliveries, attempts and how endpoints are doing; neither secrets nor credentials
--   operate  reads; pauses, resumes, tests, replays and backfills; corrects deliveries by UPDATE webhook.delivery and
--            discards them by DELETE FROM webhook.dead_letter
--   admin    does all of it; manages endpoints, policies and secrets
--   relay    delivers, for webhook-relay: claims, settles, gets routes with their secrets, and does the upkeep
--
-- 66_public_api.sql lists what each level gets, object by object; nothing else is ever granted. Only webhook_owner has TRIGGER: a
-- trigger on our tables would run as the worker. No role gets our trigger functions, which run as webhook_owner: on a table of
-- the caller's they would meet columns of the caller's types, and so call the caller's casts and domain checks. Our own triggers
-- fire without any privilege. webhook_trigger() is made for tables of others, and takes the rights of webhook_owner only when
-- nothing is left of their rows but JSON.

-- The levels, each with those that it includes and with a function of schema webhook that no lesser level has.
CREATE OR REPLACE FUNCTION webhook.level_list(OUT level text, OUT includes text[], OUT hallmark text) RETURNS SETOF record
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        VALUES ('emit', '{emit}'::text[], 'emit'),
               ('read', '{read}', 'status'),
               ('operate', '{read, operate}', 'pause'),
               ('admin', '{emit, read, operate, admin, relay}', 'set_endpoint'),
               ('relay', '{relay}', 'exchange');
    END;

-- What GRANT and REVOKE say of a level, one row for each object and privilege. A function that people call has two: the thin
-- one and the one that does the work.
CREATE OR REPLACE FUNCTION webhook.privileges(level text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    included CONSTANT text[] := (SELECT l.includes FROM webhook.level_list() l WHERE l.level = privileges.level);
BEGIN
    IF included IS NULL THEN
        RAISE EXCEPTION 'level "%" does not exist', level USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The levels are emit, read, operate, admin and relay.';
    END IF;
    RETURN NEXT 'USAGE ON SCHEMA webhook';
    RETURN QUERY
    SELECT format('EXECUTE ON ROUTINE %s', m.routine::regprocedure)
    FROM webhook.api() a JOIN webhook.members() m USING (name)
    WHERE a.level = ANY (included) AND a.kind IN ('function', 'procedure', 'part');
    RETURN QUERY
    SELECT CASE WHEN a.kind = 'type' THEN format('USAGE ON TYPE webhook.%I', a.name)
                WHEN a.kind = 'sequence' THEN format('SELECT ON SEQUENCE webhook.%I', a.name)
                ELSE format('SELECT ON TABLE webhook.%I', a.name) END
    FROM webhook.api() a
    WHERE a.level = ANY (included) AND a.kind IN ('table', 'view', 'sequence', 'type');
    RETURN QUERY
    SELECT format('%s%s ON TABLE webhook.%I', g.privilege,
                  (SELECT ' (' || string_agg(quote_ident(c), ', ') || ')' FROM unnest(g.columns) AS c), g.name)
    FROM webhook.api_grants() g JOIN webhook.api() a ON a.name = g.name AND a.kind = 'table'
    WHERE g.level = ANY (included);
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

-- The roles that have a level, found by its hallmark. Functions in the schema of the extension prove nothing: GRANT .. ON ALL
-- FUNCTIONS IN SCHEMA gives them to roles that can do nothing with them.
CREATE OR REPLACE FUNCTION webhook.holders(level text) RETURNS SETOF oid
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT a.grantee
        FROM webhook.level_list() l
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
    taken text[] := (SELECT l.includes FROM webhook.level_list() l WHERE l.level = revoke_level.level);
    kept text[] := ARRAY(SELECT l.level FROM webhook.level_list() l
                         WHERE l.level <> ALL (taken) AND from_role IN (SELECT webhook.holders(l.level)));
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
