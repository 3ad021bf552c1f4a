-- Matching: which endpoints want an event, by its tenant, its type and their filters.
--
-- One lookup in one index finds them, whatever the number of endpoints; exclusions and filters are then applied to those few.
-- A session remembers the answer for each type and tenant until an endpoint or a policy changes.

-- The index keys of an endpoint: one for each pattern, with its tenant in front. Exclusions have no key.
CREATE OR REPLACE FUNCTION webhook.subscription_keys(tenant text, event_types text[]) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT array_agg(coalesce(tenant, '') || ' ' || pattern) FROM unnest(event_types) AS pattern WHERE pattern NOT LIKE '!%');

CREATE INDEX IF NOT EXISTS endpoint_subscription ON webhook.endpoint
    USING gin (webhook.subscription_keys(tenant, event_types)) WITH (fastupdate = off);

-- The keys of all patterns that match an event: the type itself, `a.*` for each prefix, and `*`, for the tenant and for
-- endpoints without one; but `*` does not match the extension's own events, webhook.*. The array also has the exclusions that
-- apply to the event, as people write them; no key of an endpoint looks like one, since every key has a space.
CREATE OR REPLACE FUNCTION webhook.matching_keys(tenant text, event_type text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    keys text[] := ARRAY[' ' || event_type, '!' || event_type, CASE WHEN event_type NOT LIKE 'webhook.%' THEN ' *' END];
    prefix text := event_type;
BEGIN
    WHILE strpos(prefix, '.') > 0 LOOP
        prefix := left(prefix, -strpos(reverse(prefix), '.'));
        keys := keys || ARRAY[' ' || prefix || '.*', '!' || prefix || '.*'];
    END LOOP;
    IF tenant IS NOT NULL THEN
        keys := keys || ARRAY(SELECT tenant || key FROM unnest(keys) AS key WHERE key LIKE ' %');
    END IF;
    RETURN keys;
END $$;

-- The endpoints that are subscribed under these keys; a filter may still keep the event from them. It has no SET, so that the
-- planner inlines it. An endpoint that a restore brings before its policy has max_attempts of the default policy.
CREATE OR REPLACE FUNCTION webhook.subscribers(keys text[]) RETURNS TABLE (endpoint_id int, max_attempts int, filter jsonpath)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT e.id, coalesce(p.max_attempts, (webhook.policy_of('standard')).max_attempts), e.filter
        FROM webhook.endpoint e
        LEFT JOIN webhook.policy p ON p.name = e.policy
        WHERE webhook.subscription_keys(e.tenant, e.event_types) && keys AND NOT e.event_types && keys;
    END;

-- The same for one type and tenant as {endpoint_id, max_attempts, ..}; max_attempts is 0 if the endpoint has a filter. The
-- function is VOLATILE to have a snapshot of its own, since the session remembers the answer. A plan made with few endpoints
-- must serve many.
CREATE OR REPLACE FUNCTION webhook.routes(tenant text, event_type text) RETURNS int[]
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    known int[] := webhook.recall_routes(tenant, event_type);
BEGIN
    IF known IS NULL THEN
        known := coalesce((SELECT array_agg(r.number ORDER BY s.endpoint_id, r.ordinal)
                           FROM webhook.subscribers(webhook.matching_keys(tenant, event_type)) s
                           CROSS JOIN LATERAL (VALUES (1, s.endpoint_id), (2, CASE WHEN s.filter IS NULL THEN s.max_attempts ELSE 0 END))
                               AS r (ordinal, number)), '{}');
        PERFORM webhook.remember_routes(tenant, event_type, known);
    END IF;
    RETURN known;
END $$;

CREATE OR REPLACE FUNCTION webhook.routes_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.forget_routes();
    RETURN NULL;
END $$;

-- The trigger fires ALWAYS and for each row, because logical replication fires no others. TRUNCATE invalidates the table by
-- itself.
CREATE OR REPLACE TRIGGER routes_changed AFTER INSERT OR DELETE OR UPDATE OF id, tenant, event_types, filter, policy ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.routes_changed();
ALTER TABLE webhook.endpoint ENABLE ALWAYS TRIGGER routes_changed;
CREATE OR REPLACE TRIGGER routes_changed AFTER INSERT OR DELETE OR UPDATE ON webhook.policy
    FOR EACH ROW EXECUTE FUNCTION webhook.routes_changed();
ALTER TABLE webhook.policy ENABLE ALWAYS TRIGGER routes_changed;

CREATE OR REPLACE FUNCTION webhook.filtered_document(event_type text, payload jsonb) RETURNS jsonb
    LANGUAGE sql STABLE
    RETURN jsonb_build_object('type', event_type, 'data', payload);

-- A filter that fails, say by an invalid date, lets nothing pass and must not cost the emitter its transaction. No
-- subtransaction catches errors: a silent jsonpath raises only those that webhook.filter_problem() refuses, and those that any
-- statement may meet: a cancellation, and the limits of memory, of the stack and of a jsonb's size. The time zone is UTC, so
-- that the emitter's session does not decide whether an event passes.
CREATE OR REPLACE FUNCTION webhook.passes(filter jsonpath, event_type text, payload jsonb) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
BEGIN
    RETURN coalesce(jsonb_path_match_tz(webhook.filtered_document(event_type, payload), filter, '{}', true), false);
END $$;

-- The problem of a filter; null if it has none.
CREATE OR REPLACE FUNCTION webhook.filter_problem(filter jsonpath) RETURNS text
    LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answers text[];
    problem text := webhook.pattern_problem(filter::text);
BEGIN
    -- A filter with a problem is not tried.
    IF problem IS NOT NULL THEN
        RETURN problem;
    END IF;
    -- The text of a jsonpath has every name in quotes, so a variable is left as $"".
    IF strpos(regexp_replace(filter::text, E'"([^"\\\\]|\\\\.)*"', '""', 'g'), '$""') > 0 THEN
        RETURN 'the filter has a variable, and there are none';
    END IF;
    -- A condition is true, false or unknown whatever it is applied to; any other expression finds nothing here.
    answers := ARRAY(SELECT jsonb_typeof(answer) FROM jsonb_path_query_tz('{}', filter, '{}', true) AS answer);
    IF answers NOT IN (ARRAY['boolean'], ARRAY['null']) THEN
        RETURN 'the filter is not a condition';
    END IF;
    -- The server reads the template of datetime() only when there is a string to parse, and raises its errors even in silent
    -- mode. The pattern takes other strings whole, so that nothing in them looks like a template.
    PERFORM jsonb_path_query_tz('"x"', format('$.datetime(%s)', m.part[1])::jsonpath, '{}', true)
    FROM regexp_matches(filter::text, E'[.]datetime[(]("(?:[^"\\\\]|\\\\.)*")|"(?:[^"\\\\]|\\\\.)*"', 'g') AS m (part)
    WHERE m.part[1] IS NOT NULL;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN 'the filter fails: ' || SQLERRM;
END $$;
