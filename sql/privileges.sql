-- Who may do what. There are four levels, and a role has those that webhook_grant() gave it:
--
--   emit     emits events and watches tables; sees nothing
--   read     sees events, deliveries, attempts and how endpoints are doing; neither secrets nor credentials
--   operate  reads; pauses, resumes, tests and replays, and corrects deliveries by UPDATE webhook.delivery
--   admin    does all of it; manages endpoints, policies and secrets. The worker can be such a role: webhook.role
--
-- Nobody but the owner gets TRIGGER: a trigger on our tables would run as the worker. Nor does anybody get our trigger
-- functions, which run as the owner: on a table of the caller's they would meet columns of the caller's types, and so call the
-- caller's casts and domain checks. Our own triggers need nobody's privilege to fire. webhook_trigger() is made for tables of
-- others, and makes the JSON of their rows with the rights of their owners, by a function that is nobody's either.

-- What GRANT and REVOKE are told, object by object.
CREATE FUNCTION webhook.privileges(level text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Called by the views, as whoever reads them; and what the procedures, which commit and so run as their caller, are made of.
    called_by_views CONSTANT text[] := '{masked_url, latency_class_end}';
    called_by_procedures CONSTANT text[] := '{queue_test, end_test, begin_replay, replay_batch}';
    of_the_owner CONSTANT text[] := '{webhook_grant, webhook_revoke, row_as_json}';
    routines text[] := CASE level
        WHEN 'emit' THEN '{webhook_emit, webhook_emit_many, webhook_watch, webhook_unwatch, webhook_trigger, require_watchable, webhook_verify}'
        WHEN 'read' THEN '{webhook_status, webhook_why, webhook_verify}'::text[] || called_by_views
        WHEN 'operate' THEN
            '{webhook_pause, webhook_resume, webhook_reset_breaker, webhook_test, webhook_replay, webhook_resend,
              webhook_replay_failed, webhook_replay_all, webhook_discard, webhook_discard_failed, webhook_cancel,
              webhook_redact}'::text[] || called_by_procedures
    END;
BEGIN
    RETURN QUERY
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure)
    FROM pg_proc p
    JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
    JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid AND x.extname = 'webhook'
    WHERE p.proname = ANY (routines)
       OR (level = 'admin' AND p.proname <> ALL (of_the_owner) AND p.prorettype <> 'trigger'::regtype);

    IF level = 'emit' THEN
        RETURN NEXT 'USAGE ON SCHEMA webhook';
    ELSIF level = 'read' THEN
        RETURN NEXT 'USAGE ON SCHEMA webhook';
        RETURN QUERY
        SELECT format('SELECT ON %s', c.oid::regclass) FROM pg_class c
        WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND c.relname NOT IN ('endpoint', 'secret');
        RETURN QUERY
        SELECT format('SELECT (%s) ON webhook.endpoint', string_agg(quote_ident(a.attname), ', ')) FROM pg_attribute a
        WHERE a.attrelid = 'webhook.endpoint'::regclass AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attname NOT IN ('url', 'headers', 'template');
    ELSIF level = 'operate' THEN
        RETURN NEXT 'UPDATE (status, attempts, next_attempt_at, last_error) ON webhook.delivery';
        RETURN NEXT 'USAGE ON TYPE webhook.replay';
        RETURN QUERY SELECT webhook.privileges('read');
    ELSIF level = 'admin' THEN
        RETURN NEXT 'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA webhook';
        RETURN NEXT 'USAGE, SELECT ON ALL SEQUENCES IN SCHEMA webhook';
        RETURN NEXT 'USAGE ON TYPE webhook.replay, webhook.course, webhook.news';
        RETURN NEXT 'SET ON PARAMETER webhook.engine';
        RETURN QUERY SELECT webhook.privileges('operate');
        RETURN QUERY SELECT webhook.privileges('emit');
    ELSE
        RAISE EXCEPTION 'level "%" does not exist', level USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The levels are emit, read, operate and admin.';
    END IF;
END $$;

-- A number is a regrole too, whether or not a role has it.
CREATE FUNCTION webhook.require_role(role regrole) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION 'role "%" does not exist', role USING ERRCODE = 'undefined_object';
    END IF;
END $$;

-- @api public
CREATE FUNCTION @extschema@.webhook_grant(role regrole, level text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
BEGIN
    PERFORM webhook.require_role(role);
    FOR privilege IN SELECT webhook.privileges(level) LOOP
        EXECUTE format('GRANT %s TO %s', privilege, role);
    END LOOP;
END $$;

-- Takes away the level and those that it includes; what another level of the role needs, it keeps. A level is recognised by a
-- function that no lesser one has.
-- @api public
CREATE FUNCTION @extschema@.webhook_revoke(role regrole, level text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken text[] := CASE level WHEN 'admin' THEN '{emit, read, operate, admin}' WHEN 'operate' THEN '{read, operate}' ELSE ARRAY[level] END;
    kept text[] := ARRAY(
        SELECT l.level FROM (VALUES ('emit', 'webhook_emit'), ('read', 'webhook_status'), ('operate', 'webhook_pause'),
                                    ('admin', 'webhook_add_endpoint')) AS l (level, hallmark)
        JOIN pg_proc p ON p.proname = l.hallmark AND p.pronamespace = '@extschema@'::regnamespace
        WHERE l.level <> ALL (taken) AND EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = webhook_revoke.role));
    privilege text;
BEGIN
    PERFORM webhook.require_role(role);
    FOR privilege IN
        SELECT webhook.privileges(level) EXCEPT SELECT webhook.privileges(k) FROM unnest(kept) AS k
    LOOP
        EXECUTE format('REVOKE %s FROM %s', privilege, role);
    END LOOP;
END $$;
