-- Endpoints: the URLs that events are sent to, and their limits.
--
-- A person addresses an endpoint by one text: its name, or tenant/name for an endpoint of a tenant. Tenants and names have no
-- slash. In functions that take several endpoints, `tenant/*` stands for the endpoints of a tenant, and `*` for all.

CREATE OR REPLACE FUNCTION webhook.address(tenant text, name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(tenant || '/', '') || name;

CREATE OR REPLACE FUNCTION webhook.address_tenant(address text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN strpos(address, '/') > 0 THEN left(address, strpos(address, '/') - 1) END;

CREATE OR REPLACE FUNCTION webhook.address_name(address text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN substr(address, strpos(address, '/') + 1);

-- The endpoint of an address; no row if there is none. It has two branches, since the unique index serves a comparison and an
-- IS NULL but not both in one. It has no SET, so that the planner inlines it.
CREATE OR REPLACE FUNCTION webhook.endpoint_at(address text) RETURNS TABLE (id int)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT e.id FROM webhook.endpoint e WHERE e.tenant IS NULL AND e.name = address
        UNION ALL
        SELECT e.id FROM webhook.endpoint e
        WHERE e.tenant = webhook.address_tenant(address) AND e.name = webhook.address_name(address);
    END;

ALTER TABLE webhook.endpoint ALTER COLUMN origin SET DEFAULT webhook.origin();

-- Functions check the URL that a person gives. A restore is not checked: another server may have other settings, and the
-- sender judges every attempt again.
CREATE OR REPLACE FUNCTION webhook.require_permitted_url(url text) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text := webhook.url_problem(url);
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'endpoint is not valid' USING ERRCODE = 'invalid_parameter_value', DETAIL = problem,
            HINT = coalesce((SELECT format('Use another URL, or have a superuser change %s; a reload of the configuration applies it.',
                                           string_agg(setting[1], ' or '))
                             FROM regexp_matches(problem, 'webhook[.][a-z_]+', 'g') AS setting
                             HAVING count(*) > 0),
                            'Give a whole URL such as https://example.com/hooks.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.header_size_problem(headers jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    large record;
    sizes record;
BEGIN
    SELECT h.key, length(h.value) AS size INTO large FROM jsonb_each_text(headers) AS h
    WHERE length(h.key) > 200 OR length(h.value) > 8192 ORDER BY length(h.value) DESC LIMIT 1;
    SELECT count(*) AS headers, coalesce(sum(length(h.key) + length(h.value)), 0) AS bytes INTO sizes
    FROM jsonb_each_text(headers) AS h;
    RETURN CASE
        WHEN length(large.key) > 200 THEN
            format('the name of a header has %s bytes, more than 200', length(large.key))
        WHEN large.key IS NOT NULL THEN
            format('the value of header "%s" has %s bytes, more than 8192', large.key, large.size)
        WHEN sizes.headers > 50 THEN
            format('there are %s headers, more than 50', sizes.headers)
        WHEN sizes.bytes > 16384 THEN
            format('the headers have %s bytes together, more than 16384', sizes.bytes)
        -- Each signature reads the whole body.
        WHEN webhook.count_signatures(headers) > 8 THEN
            format('the headers have %s signatures, more than 8', webhook.count_signatures(headers))
    END;
END $$;

-- `{{{{` stands for two braces.
CREATE OR REPLACE FUNCTION webhook.has_placeholder(value text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN strpos(replace(value, '{{{{', ''), '{{') > 0;

CREATE OR REPLACE FUNCTION webhook.count_signatures(headers jsonb) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN regexp_count(headers::text, 'hmac_(hex|base64)');

CREATE OR REPLACE FUNCTION webhook.has_signatures(headers jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN webhook.count_signatures(headers) > 0;

-- The problem of templates in headers. The role that emits an event writes its values, and must not choose a credential by
-- them.
CREATE OR REPLACE FUNCTION webhook.header_template_problem(headers jsonb, OUT problem text, OUT remedy text)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    credentials CONSTANT text :=
        '(authorization|authentication|cookie|credentials?|password|api-?key|(access|auth|private|security)-token)$';
    bad text := (SELECT h.key FROM jsonb_each_text(headers) AS h
                 WHERE h.key ~* credentials AND webhook.has_placeholder(h.value) LIMIT 1);
BEGIN
    IF bad IS NOT NULL THEN
        problem := format('header "%s" is a credential and has a placeholder', bad);
        remedy := 'Give a credential as it is; {{{{ sends two opening braces.';
    ELSE
        SELECT format('header "%s": %s', h.key, p.problem), p.remedy INTO problem, remedy
        FROM jsonb_each_text(headers) AS h CROSS JOIN LATERAL webhook.header_value_problem(h.value) p
        WHERE webhook.has_placeholder(h.value) LIMIT 1;
    END IF;
END $$;

-- Refuses an endpoint that is not valid, with the remedy; every way to write one passes here. Its plans are generic: in any
-- other plan the values are constants, and a role that pauses an endpoint could read its headers there with debug_print_plan.
CREATE OR REPLACE FUNCTION webhook.check_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    problem text;
    remedy text;
    bad text;
BEGIN
    -- This refuses a value before the table does, whose message would show the whole row, credentials included.
    IF num_nulls(NEW.id, NEW.name, NEW.url, NEW.event_types, NEW.policy, NEW.headers, NEW.format, NEW.metadata, NEW.origin,
                 NEW.created_at) > 0 THEN
        problem := 'id, name, url, event_types, policy, headers, format, metadata, origin and created_at must not be null';
        remedy := 'Leave out what you have no value for.';
    ELSIF (NEW.disabled_at IS NULL) <> (NEW.disabled_reason IS NULL) THEN
        problem := 'disabled_at and disabled_reason go together';
        remedy := 'Set both, or neither.';
    ELSIF NEW.format NOT IN ('standard', 'raw', 'cloudevents', 'template') THEN
        problem := format('"%s" is not a format', left(NEW.format, 100));
        remedy := 'The formats are standard, raw, cloudevents and template.';
    ELSIF NEW.format = 'template' AND coalesce(NEW.template, 'null') = 'null' THEN
        problem := 'the format template needs a template';
        remedy := 'For example template => ''{"text": "{{data.message}}"}''.';
    ELSIF NEW.format <> 'template' AND NEW.template IS NOT NULL THEN
        problem := format('the format %s has no template', NEW.format);
        remedy := 'Use the format template, or leave the template null.';
    -- The database's collation knows control characters and spaces; the collation of the columns knows ASCII alone.
    ELSIF NEW.name COLLATE "default" !~ '^[^[:cntrl:]/]{1,200}$' OR NEW.name = '*' THEN
        problem := 'the name must have 1 to 200 characters, no / and no control characters, and not be *';
        remedy := 'Choose a short name such as ''billing''; one of a tenant is addressed by tenant/name.';
    ELSIF NOT webhook.is_tenant(NEW.tenant COLLATE "default") THEN
        problem := 'the tenant must have 1 to 200 characters, no /, white space or control characters, and not be *';
        remedy := 'Leave the tenant out for an endpoint that serves everyone: its address is the name alone.';
    ELSIF NEW.url !~ '^[!-~]+$' OR NEW.url ~ '["<>`]' OR length(NEW.url) > 2048 THEN
        problem := 'the URL must have at most 2048 characters, printable ASCII without ", <, > and `';
        remedy := 'Percent-encode other characters, and write an international host name in its xn-- form.';
    ELSIF NEW.url !~* '^https?://' THEN
        problem := 'the URL must begin with http:// or https://';
        remedy := 'Give a whole URL such as https://example.com/hooks.';
    ELSIF strpos(NEW.url, '#') > 0 THEN
        problem := 'the URL must not have a fragment';
        remedy := 'Remove the # and what follows it; it is never sent to a server.';
    ELSIF NEW.url ~* '^https?://[^/?]*@' THEN
        problem := 'the URL must not contain a user name or password';
        remedy := 'Put credentials into a header: headers => ''{"Authorization": "Basic .."}''.';
    ELSIF NEW.url !~* '^https?://([[][0-9a-f:.]+[]]|[a-z0-9._~%-]+)(:[0-9]{1,5})?([/?].*)?$'
          OR substring(NEW.url FROM '^[^/]*//[^/?]*:([0-9]+)([/?]|$)')::int NOT BETWEEN 1 AND 65535 THEN
        problem := 'the URL has no valid host and port';
        remedy := 'Give a whole URL such as https://example.com/hooks.';
    ELSIF cardinality(NEW.event_types) = 0 OR array_position(NEW.event_types, NULL) IS NOT NULL THEN
        problem := 'there must be at least one event type, and none of them null';
        remedy := 'Use ''{*}'' for all events.';
    ELSIF jsonb_typeof(NEW.headers) <> 'object' THEN
        problem := 'the headers must be a JSON object';
        remedy := 'For example headers => ''{"Authorization": "Bearer .."}''.';
    ELSIF jsonb_typeof(NEW.metadata) <> 'object' THEN
        problem := 'the metadata must be a JSON object';
        remedy := 'For example metadata => ''{"owner": "billing team"}''.';
    ELSIF NEW.max_in_flight < 1 THEN
        problem := 'max_in_flight must be positive';
        remedy := 'Use webhook.endpoint.paused_at to stop an endpoint; leave max_in_flight null for the default.';
    ELSIF NEW.rate_limit NOT BETWEEN 0.001 AND 1000000 THEN
        problem := 'rate_limit must be between 0.001 and 1000000 a second';
        remedy := 'Use webhook.endpoint.paused_at to stop an endpoint; leave rate_limit null for none.';
    END IF;

    IF problem IS NULL THEN
        SELECT pattern INTO bad FROM unnest(NEW.event_types) AS pattern
        WHERE pattern !~ '^([*]|!?[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*([.][*])?)$' OR length(ltrim(pattern, '!')) > 200 LIMIT 1;
        IF FOUND THEN
            problem := format('"%s" is not an event type pattern', bad);
            remedy := 'Patterns are like order.created, order.* (a star as the last part) or * alone; !order.draft leaves out what '
                      'another one has let in.';
        ELSIF '!' = ALL (SELECT left(pattern, 1) FROM unnest(NEW.event_types) AS pattern) THEN
            problem := 'the event types only leave out';
            remedy := 'Say what is wanted too, such as {*,!order.draft}.';
        END IF;
    END IF;

    -- Only a new filter is checked, like headers and templates below: an old value must not keep the worker, or a person, from
    -- stopping its endpoint.
    IF problem IS NULL AND NEW.filter::text IS DISTINCT FROM OLD.filter::text THEN
        problem := webhook.filter_problem(NEW.filter);
        remedy := CASE WHEN problem ~ 'pattern' THEN
            'Patterns may repeat characters, classes and groups without repetitions, at most 100 times, and alternate. '
            'Where it is enough, compare with == or starts with.'
        ELSE
            'A filter is a condition on {"type": .., "data": ..}, such as $.data.total > 100 or exists($.data.items[*] ? (@.price > 10)).'
        END;
    END IF;

    IF problem IS NULL THEN
        -- Values are credentials: the message shows only the name of a bad header.
        SELECT h.key INTO bad FROM jsonb_each(NEW.headers) AS h
        WHERE h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$'
           OR jsonb_typeof(h.value) <> 'string' OR h.value #>> '{}' !~ '^[ -~]*$'
           OR lower(h.key) IN ('host', 'content-length', 'content-type', 'transfer-encoding', 'connection', 'expect',
                               'user-agent', 'x-webhook-signature', 'x-webhook-retry')
           OR lower(h.key) LIKE 'webhook-%' LIMIT 1;
        IF FOUND THEN
            problem := format('header "%s" is reserved or not valid', left(bad, 100));
            remedy := 'Names are tokens, values are printable ASCII strings; the headers of HTTP itself and of the signature are set for you.';
        END IF;
    END IF;

    -- Many receivers refuse larger headers, with an error that does not name the cause.
    IF problem IS NULL AND NEW.headers IS DISTINCT FROM OLD.headers THEN
        problem := webhook.header_size_problem(NEW.headers);
        remedy := 'All headers together have at most 50 names, 16 kB and 8 signatures, a value 8 kB. '
                  'Put what is larger into the body, with a template.';
    END IF;

    IF problem IS NULL AND NEW.headers IS DISTINCT FROM OLD.headers THEN
        SELECT t.problem, t.remedy INTO problem, remedy FROM webhook.header_template_problem(NEW.headers) t;
    END IF;

    IF problem IS NULL AND NEW.template IS DISTINCT FROM OLD.template THEN
        SELECT t.problem, t.remedy INTO problem, remedy FROM webhook.template_problem(NEW.template::text) t;
    END IF;

    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'endpoint is not valid' USING ERRCODE = 'invalid_parameter_value', DETAIL = problem, HINT = remedy;
    END IF;

    -- The origin of a copy can be computed before the copy is made. No row that is written here may have it, or the copy would
    -- serve the endpoint without webhook_adopt(). An origin that is not ours is marked, and so equals none.
    IF NEW.origin IS DISTINCT FROM OLD.origin AND NEW.origin <> webhook.origin() AND NEW.origin NOT LIKE 'unadopted:%' THEN
        NEW.origin := 'unadopted:' || NEW.origin;
    END IF;

    -- On INSERT webhook_set_endpoint() checks these: a restore may bring endpoints before policies.
    IF TG_OP = 'UPDATE' AND NEW.policy <> OLD.policy THEN
        PERFORM webhook.require_policy(NEW.policy);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.url <> OLD.url THEN
        PERFORM webhook.require_permitted_url(NEW.url);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE EXCEPTION 'the id of an endpoint cannot be changed' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Deliveries refer to it; give the endpoint another name instead.';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER check_endpoint BEFORE INSERT OR UPDATE ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.check_endpoint();

CREATE OR REPLACE FUNCTION webhook.remember_removed_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO webhook.removed_endpoint (id, tenant, name) VALUES (OLD.id, OLD.tenant, OLD.name);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER remember_removed_endpoint AFTER DELETE ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.remember_removed_endpoint();

-- An INSERT with the id of a removed endpoint takes the removal back: the deliveries with that id are its own. The trigger
-- fires ALWAYS, or deliveries for an endpoint that replication or a restore brings back would be cancelled.
CREATE OR REPLACE FUNCTION webhook.forget_removed_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM webhook.removed_endpoint r WHERE r.id = NEW.id;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER forget_removed_endpoint AFTER INSERT ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.forget_removed_endpoint();
ALTER TABLE webhook.endpoint ENABLE ALWAYS TRIGGER forget_removed_endpoint;

CREATE OR REPLACE FUNCTION webhook.wake_for_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.wake_endpoint(-OLD.id, now());
    RETURN NULL;
END $$;

-- The worker looks at an endpoint at once after it was resumed, adopted or given other limits, and withdraws the requests that
-- wait for an endpoint that was removed.
CREATE OR REPLACE TRIGGER wake AFTER UPDATE OR DELETE ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.wake_for_endpoint();

CREATE OR REPLACE FUNCTION webhook.require_endpoint(address text) RETURNS int
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_id int := (SELECT a.id FROM webhook.endpoint_at(address) a);
BEGIN
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', address USING ERRCODE = 'undefined_object',
            HINT = coalesce(
                CASE WHEN webhook.address_name(address) = '*'
                     THEN 'This function takes one endpoint; webhook_pause() and webhook_resume() take several.' END,
                webhook.similar_addresses(address),
                'SELECT endpoint FROM webhook.endpoint_status lists them; webhook_set_endpoint() makes one.');
    END IF;
    RETURN found_id;
END $$;

-- The addresses that are close to one that does not exist, for a HINT; null if none is.
CREATE OR REPLACE FUNCTION webhook.similar_addresses(address text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.did_you_mean(address, ARRAY(SELECT webhook.address(e.tenant, e.name) FROM webhook.endpoint e));

-- The endpoints of an address that may name several, in the order of their ids: two sessions that lock them in this order
-- never wait for each other.
CREATE OR REPLACE FUNCTION webhook.addressed_endpoints(address text) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_tenant text := webhook.address_tenant(address);
    found_ids int[];
BEGIN
    IF address IS NULL THEN
        RAISE EXCEPTION 'endpoint must not be null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'Name an endpoint; ''tenant/*'' stands for those of a tenant and ''*'' for every one.';
    ELSIF address = '*' THEN
        RETURN ARRAY(SELECT e.id FROM webhook.endpoint e ORDER BY e.id);
    ELSIF webhook.address_name(address) <> '*' THEN
        RETURN ARRAY[webhook.require_endpoint(address)];
    END IF;
    found_ids := ARRAY(SELECT e.id FROM webhook.endpoint e WHERE e.tenant = of_tenant ORDER BY e.id);
    IF cardinality(found_ids) = 0 THEN
        RAISE EXCEPTION 'tenant "%" has no endpoint', of_tenant USING ERRCODE = 'undefined_object',
            HINT = coalesce(
                webhook.did_you_mean(of_tenant, ARRAY(SELECT e.tenant FROM webhook.endpoint e
                                                      WHERE e.tenant IS NOT NULL GROUP BY e.tenant)),
                'SELECT endpoint FROM webhook.endpoint_status lists them; ''*'' stands for every one.');
    END IF;
    RETURN found_ids;
END $$;

-- Creates an endpoint, or changes one: null keeps its value, and a new endpoint begins with the table's defaults. `changed`
-- lists the columns that it changed. An endpoint that has all of these values already is neither written nor locked: a
-- migration may run any number of times. If somebody changes the row between the look and the UPDATE, the UPDATE waits, finds
-- another version, and this function looks at the row again.
CREATE OR REPLACE FUNCTION webhook.set_endpoint(
    endpoint text, url text, event_types text[], policy text, given_secret text, headers jsonb, format text,
    template jsonb, filter jsonpath, max_in_flight int, rate_limit numeric, metadata jsonb, hmac_secret text,
    OUT id int, OUT secret text, OUT changed text[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    is_new boolean := false;
    current record;
    old_row webhook.endpoint;
    new_row webhook.endpoint;
BEGIN
    LOOP
        SELECT e.xmin AS version, e AS endpoint INTO current FROM webhook.endpoint e
        WHERE e.id = (SELECT a.id FROM webhook.endpoint_at(endpoint) a);
        IF NOT FOUND THEN
            IF set_endpoint.url IS NULL THEN
                RAISE EXCEPTION 'endpoint "%" does not exist, and a new one needs a url', endpoint
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = concat_ws(' ', webhook.similar_addresses(endpoint),
                                           'Give the url to create it: url => ''https://example.com/hooks''.');
            END IF;
            INSERT INTO webhook.endpoint (tenant, name, url)
            VALUES (webhook.address_tenant(endpoint), webhook.address_name(endpoint), set_endpoint.url)
            ON CONFLICT (tenant, name) DO NOTHING;
            IF FOUND THEN
                is_new := true;
                PERFORM webhook.require_permitted_url(set_endpoint.url);
            END IF;
            CONTINUE;
        END IF;

        old_row := current.endpoint;
        new_row := old_row;
        new_row.url := coalesce(set_endpoint.url, old_row.url);
        new_row.event_types := coalesce(set_endpoint.event_types, old_row.event_types);
        new_row.policy := coalesce(set_endpoint.policy, old_row.policy);
        new_row.headers := coalesce(set_endpoint.headers, old_row.headers);
        new_row.format := coalesce(set_endpoint.format, old_row.format);
        -- The template belongs to its format.
        new_row.template := coalesce(set_endpoint.template,
                                     CASE WHEN new_row.format = 'template' THEN old_row.template END);
        new_row.filter := coalesce(set_endpoint.filter, old_row.filter);
        new_row.max_in_flight := coalesce(set_endpoint.max_in_flight, old_row.max_in_flight);
        new_row.rate_limit := coalesce(set_endpoint.rate_limit, old_row.rate_limit);
        new_row.metadata := coalesce(set_endpoint.metadata, old_row.metadata);
        changed := ARRAY(
            SELECT c.name
            FROM unnest('{url, event_types, policy, headers, format, template, filter, max_in_flight, rate_limit,
                          metadata}'::text[]) WITH ORDINALITY AS c (name, ordinal)
            WHERE to_jsonb(new_row) -> c.name <> to_jsonb(old_row) -> c.name
            ORDER BY c.ordinal);
        EXIT WHEN cardinality(changed) = 0;
        UPDATE webhook.endpoint e
        SET url = new_row.url, event_types = new_row.event_types, policy = new_row.policy,
            headers = new_row.headers, format = new_row.format, template = new_row.template,
            filter = new_row.filter, max_in_flight = new_row.max_in_flight, rate_limit = new_row.rate_limit,
            metadata = new_row.metadata
        WHERE e.id = old_row.id AND e.xmin = current.version;
        EXIT WHEN FOUND;
    END LOOP;

    id := old_row.id;
    IF is_new THEN
        changed := '{created}';
        IF given_secret IS NULL THEN
            secret := webhook.new_secret();
        END IF;
        INSERT INTO webhook.secret (endpoint_id, secret)
        VALUES (old_row.id, coalesce(given_secret, set_endpoint.secret));
    ELSIF NOT webhook.has_secret(old_row.id, given_secret) THEN
        PERFORM webhook.rotate_secret(endpoint, interval '24 hours', given_secret);
        changed := changed || text 'secret';
    END IF;
    IF NOT webhook.has_secret(old_row.id, 'hmac_' || hmac_secret) THEN
        PERFORM webhook.rotate_hmac_secret(endpoint, interval '24 hours', hmac_secret);
        IF NOT is_new THEN
            changed := changed || text 'hmac_secret';
        END IF;
    ELSIF webhook.has_signatures(new_row.headers) THEN
        PERFORM webhook.hmac_secrets(old_row.id);
    END IF;
END $$;

-- Removes the endpoint and ends its waiting deliveries: cancelled, or failed into the dead-letter table. This call ends one
-- page of them, and the worker the rest, page after page (45_recovery.sql): a long queue must not be one long transaction.
CREATE OR REPLACE FUNCTION webhook.remove_endpoint(endpoint text, pending text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed_id int := webhook.require_endpoint(endpoint);
BEGIN
    IF (pending IN ('cancel', 'fail')) IS NOT TRUE THEN
        RAISE EXCEPTION 'pending cannot be "%"', pending USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''cancel'' to cancel its queued deliveries, ''fail'' to keep them in webhook.dead_letter.';
    END IF;
    DELETE FROM webhook.endpoint e WHERE e.id = removed_id;
    DELETE FROM webhook.secret s WHERE s.endpoint_id = removed_id;
    DELETE FROM webhook.breaker b WHERE b.endpoint_id = removed_id;
    UPDATE webhook.removed_endpoint r SET pending = remove_endpoint.pending WHERE r.id = removed_id;
    PERFORM webhook.end_orphans(removed_id - 1, 1000);
END $$;
