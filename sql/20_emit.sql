-- Emitting: events, and one delivery of each for every endpoint that wants it, in the caller's transaction.
--
-- webhook_emit() emits one event, with two INSERTs that cost little more than two INSERTs of one's own. webhook.emit_events()
-- emits any number with the same few statements: for webhook_emit_many(), the triggers of 21_watch.sql and 51_alerts.sql.
-- Neither opens a subtransaction. Both find the endpoints that want an event by webhook.subscribers().
--
-- Paused and disabled endpoints get their deliveries too: kept back, never dropped. A delivery whose deliver_at has passed is
-- due now: it has not waited yet, neither for longer than a delivery that was emitted before it nor for longer than hold_for.

-- Invalid input changes nothing. Each rule is an expression that the planner inlines; the message of an error is made only
-- when a rule is broken. A text may have a gigabyte: its length is judged first, and a message shows its beginning.

CREATE OR REPLACE FUNCTION webhook.is_event_type(event_type text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN length(event_type) <= 200 AND event_type ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' AND event_type NOT LIKE 'webhook.%';

CREATE OR REPLACE FUNCTION webhook.refuse_event_type(event_type text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF event_type LIKE 'webhook.%' THEN
        RAISE EXCEPTION 'event type "%" is reserved', left(event_type, 200) USING ERRCODE = 'reserved_name',
            HINT = 'Types that begin with webhook. are the extension''s own; choose another prefix.';
    END IF;
    RAISE EXCEPTION 'event type "%" is not valid', left(event_type, 200) USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A type is made of letters, digits, _ and -, in parts joined by dots, such as order.created.';
END $$;

CREATE OR REPLACE FUNCTION webhook.is_tenant(tenant text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN length(tenant) <= 200 AND tenant ~ '^[^[:cntrl:][:space:]/]+$' AND tenant <> '*';

CREATE OR REPLACE FUNCTION webhook.refuse_tenant(tenant text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'tenant "%" is not valid', left(tenant, 200) USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A tenant has 1 to 200 characters, no /, white space or control characters, and is not *; '
               'leave it null for none.';
END $$;

CREATE OR REPLACE FUNCTION webhook.refuse_null_payload() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'payload must not be null' USING ERRCODE = 'null_value_not_allowed',
        HINT = 'Leave it out for an empty object, or pass the JSON value ''null''.';
END $$;

-- Drivers that send json reach this from webhook_emit() and webhook_emit_many() with a json payload.
CREATE OR REPLACE FUNCTION webhook.refuse_json(parameter text) RETURNS uuid
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% must be jsonb, not json', parameter USING ERRCODE = 'datatype_mismatch',
        HINT = 'Cast it to jsonb, or have the driver send jsonb: Jsonb of psycopg, JSONB of SQLAlchemy.';
END $$;

-- The table has no such CHECK: events that were emitted before this rule can be restored. The ranges are those of control
-- characters, independent of the collation of the database.
CREATE OR REPLACE FUNCTION webhook.require_key(parameter text, value text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF length(value) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION '% is not valid', parameter USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It has %s characters.', length(value)),
            HINT = 'A key has 1 to 200 characters; leave it null for none, and use a hash of what is longer.';
    ELSIF value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RAISE EXCEPTION '% is not valid', parameter USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'It has control characters.',
            HINT = 'Encode binary keys, for example with encode(.., ''hex'').';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.require_lifetime(deliver_at timestamptz, expires_at timestamptz) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF expires_at <= deliver_at THEN
        RAISE EXCEPTION 'expires_at must be after deliver_at' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'A delivery that expires before it is due is never sent; give it more time, or leave one of the two null.';
    END IF;
END $$;

-- The endpoints of these addresses; null for null, which stands for all. The HINT suggests no names: roles with level `emit`
-- may not see endpoints.
CREATE OR REPLACE FUNCTION webhook.require_endpoints(addresses text[]) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    found_ids int[];
    unknown text;
BEGIN
    IF addresses IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(addresses) = 0 OR array_position(addresses, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'endpoints must be names, at least one and none of them null' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave it null for all endpoints that want the event.';
    END IF;
    -- A scalar subquery looks each address up by the index; a join would read all endpoints.
    SELECT array_agg(w.id), min(w.address) FILTER (WHERE w.id IS NULL) INTO found_ids, unknown
    FROM (SELECT address, (SELECT a.id FROM webhook.endpoint_at(address) a) AS id
          FROM unnest(addresses) AS address OFFSET 0) w;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', unknown USING ERRCODE = 'undefined_object',
            HINT = 'Roles with level read find endpoints in webhook.endpoint_status; tenants'' are tenant/name.';
    END IF;
    RETURN found_ids;
END $$;

CREATE OR REPLACE FUNCTION webhook.refuse_size(size int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'payload is larger than webhook.max_payload' USING ERRCODE = 'program_limit_exceeded',
        DETAIL = format('It has %s bytes as text, and %s are allowed.', size, webhook.max_payload()),
        HINT = 'Send less, say a reference to the row, or raise webhook.max_payload.';
END $$;

CREATE OR REPLACE FUNCTION webhook.max_payload() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN pg_size_bytes(webhook.setting('max_payload'));

-- The form of a key that can be compared when its text must not be kept; a hash stays as it is. The key's bytes are those of
-- the database's encoding.
CREATE OR REPLACE FUNCTION webhook.key_hash(key text) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN key ~ '^sha256:[0-9a-f]{64}$' THEN key
                ELSE 'sha256:' || encode(sha256(convert_to(key, getdatabaseencoding())), 'hex') END;

-- Returns the events that the keys stand for, in their order. A new key stands for the event in the same place of the other
-- array, a known one for an earlier event. A null has its own event; a key that is there twice stands for the event of its
-- first place.
--
-- A transaction that meets a key that another one has just taken waits for the end of that one: by then the key stands for its
-- event, or is free again. All transactions take keys in the same order, so that two with the same keys do not wait for each
-- other. A key whose window is over is free too, and belongs to the first transaction that updates it. In REPEATABLE READ a
-- transaction cannot see that, and the server raises a serialization failure. A new key is inserted without a look for it
-- first: in SERIALIZABLE, to have found it missing would conflict with every transaction that inserts beside it.
CREATE OR REPLACE FUNCTION webhook.take_keys(key_tenant text, keys text[], new_event_ids uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tenant_or_none text := coalesce(key_tenant, '');
    hashes text[] := ARRAY(SELECT webhook.key_hash(k.key) FROM unnest(keys) WITH ORDINALITY AS k (key, ordinal) ORDER BY k.ordinal);
    valid_since timestamptz := clock_timestamp() - webhook.setting('idempotency_window')::interval;
    wanted_keys text[];                     -- keys that stand for no event yet, in order, each once
    wanted_ids uuid[];
    taken text[] := '{}';                   -- keys that stand for an event
    taken_ids uuid[] := '{}';
    found_keys text[];
    found_ids uuid[];
BEGIN
    SELECT array_agg(w.key), array_agg(w.id) INTO wanted_keys, wanted_ids
    FROM (SELECT DISTINCT ON (k.key COLLATE "C") k.key, k.id
          FROM unnest(hashes, new_event_ids) WITH ORDINALITY AS k (key, id, ordinal)
          WHERE k.key IS NOT NULL
          ORDER BY k.key COLLATE "C", k.ordinal) w;

    WHILE cardinality(wanted_keys) > 0 LOOP
        WITH inserted AS (
            INSERT INTO webhook.idempotency (tenant, key, event_id, created_at)
            SELECT tenant_or_none, w.key, w.id, clock_timestamp() FROM unnest(wanted_keys, wanted_ids) AS w (key, id)
            ORDER BY w.key COLLATE "C"
            ON CONFLICT DO NOTHING
            RETURNING key, event_id
        )
        SELECT array_agg(i.key), array_agg(i.event_id) INTO found_keys, found_ids FROM inserted i;
        taken := taken || found_keys;
        taken_ids := taken_ids || found_ids;

        IF cardinality(found_keys) IS DISTINCT FROM cardinality(wanted_keys) THEN
            SELECT array_agg(i.key), array_agg(i.event_id) INTO found_keys, found_ids
            FROM webhook.idempotency i
            WHERE i.tenant = tenant_or_none AND i.key = ANY (wanted_keys) AND i.key <> ALL (taken) AND i.created_at > valid_since;
            taken := taken || found_keys;
            taken_ids := taken_ids || found_ids;
        END IF;

        IF cardinality(taken) < cardinality(wanted_keys) THEN
            WITH expired AS MATERIALIZED (
                SELECT i.key FROM webhook.idempotency i
                WHERE i.tenant = tenant_or_none AND i.key = ANY (wanted_keys) AND i.key <> ALL (taken) AND i.created_at <= valid_since
                ORDER BY i.key COLLATE "C"
                FOR NO KEY UPDATE
            ), renewed AS (
                UPDATE webhook.idempotency i SET event_id = w.id, created_at = clock_timestamp()
                FROM expired x JOIN unnest(wanted_keys, wanted_ids) AS w (key, id) ON w.key = x.key
                WHERE i.tenant = tenant_or_none AND i.key = x.key
                RETURNING i.key, i.event_id
            )
            SELECT array_agg(r.key), array_agg(r.event_id) INTO found_keys, found_ids FROM renewed r;
            taken := taken || found_keys;
            taken_ids := taken_ids || found_ids;
        END IF;

        -- Another transaction has renewed or removed these keys meanwhile.
        SELECT array_agg(w.key), array_agg(w.id) INTO wanted_keys, wanted_ids
        FROM unnest(wanted_keys, wanted_ids) AS w (key, id) WHERE w.key <> ALL (taken);
    END LOOP;

    RETURN ARRAY(SELECT coalesce(t.id, k.id)
                 FROM unnest(hashes, new_event_ids) WITH ORDINALITY AS k (key, id, ordinal)
                 LEFT JOIN unnest(taken, taken_ids) AS t (key, id) ON t.key = k.key
                 ORDER BY k.ordinal);
END $$;

CREATE OR REPLACE FUNCTION webhook.queue_for_some(
    event_id uuid, event_type text, payload jsonb, tenant text, only_endpoints int[], next_attempt_at timestamptz,
    wait_reason text, expires_at timestamptz, ordering_key text, coalesce_key text, emitted_at timestamptz, payload_bytes int)
    RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    queued_for int[];
BEGIN
    WITH queued AS (
        INSERT INTO webhook.delivery_queue AS q
            (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
             coalesce_key, created_at, payload_bytes)
        SELECT event_id, s.endpoint_id, event_type, s.max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
               coalesce_key, emitted_at, payload_bytes
        FROM webhook.subscribers(webhook.matching_keys(tenant, event_type)) s
        WHERE (only_endpoints IS NULL OR s.endpoint_id = ANY (only_endpoints))
          AND (s.filter IS NULL OR webhook.passes(s.filter, event_type, payload))
        RETURNING q.endpoint_id
    )
    SELECT array_agg(q.endpoint_id) INTO queued_for FROM queued q;
    RETURN queued_for IS NOT NULL AND webhook.wake(queued_for, next_attempt_at);
END $$;

CREATE OR REPLACE FUNCTION webhook.emit_checked(
    event_type text, payload jsonb, idempotency_key text, ordering_key text, coalesce_key text, deliver_at timestamptz,
    expires_at timestamptz, tenant text, endpoints text[])
    RETURNS uuid
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    new_event_id uuid := webhook.new_id();
    event_of_key uuid;
    emitted_at timestamptz := clock_timestamp();
    due_at timestamptz := greatest(nullif(deliver_at, 'infinity'), emitted_at);
    reason text := CASE WHEN deliver_at = 'infinity' THEN 'parked' ELSE 'new' END;
    size int := octet_length(payload::text);
    only_endpoints int[];
    routes int[];
    is_queued boolean := true;
BEGIN
    IF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    ELSIF payload IS NULL THEN
        PERFORM webhook.refuse_null_payload();
    ELSIF NOT webhook.is_tenant(tenant) THEN
        PERFORM webhook.refuse_tenant(tenant);
    END IF;
    PERFORM webhook.require_key('idempotency_key', idempotency_key),
            webhook.require_key('ordering_key', ordering_key),
            webhook.require_key('coalesce_key', coalesce_key),
            webhook.require_lifetime(deliver_at, expires_at);
    only_endpoints := webhook.require_endpoints(endpoints);
    IF idempotency_key IS NOT NULL THEN
        event_of_key := (webhook.take_keys(tenant, ARRAY[idempotency_key], ARRAY[new_event_id]))[1];
        IF event_of_key <> new_event_id THEN
            RETURN event_of_key;
        END IF;
    END IF;
    IF size > webhook.max_payload() THEN
        PERFORM webhook.refuse_size(size);
    END IF;

    INSERT INTO webhook.event (id, tenant, event_type, payload, payload_bytes, idempotency_key, created_at)
    VALUES (new_event_id, tenant, event_type, payload, size, idempotency_key, emitted_at);

    routes := webhook.routes(tenant, event_type);
    IF only_endpoints IS NOT NULL OR 0 = ANY (routes) THEN
        is_queued := webhook.queue_for_some(new_event_id, event_type, payload, tenant, only_endpoints, due_at, reason,
                                            expires_at, ordering_key, coalesce_key, emitted_at, size);
    ELSE
        INSERT INTO webhook.delivery_queue
            (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
             coalesce_key, created_at, payload_bytes)
        SELECT new_event_id, routes[r.n], event_type, routes[r.n + 1], due_at, reason, expires_at, ordering_key, coalesce_key,
               emitted_at, size
        FROM generate_series(1, cardinality(routes), 2) AS r (n);
        is_queued := FOUND AND webhook.wake_routes(routes, due_at);
    END IF;
    IF is_queued AND coalesce_key IS NOT NULL THEN
        PERFORM webhook.supersede(ARRAY[new_event_id]);
    END IF;
    RETURN new_event_id;
END $$;

-- Every transaction that emits runs this, so it costs little more than its two INSERTs (bench/emit_cost.sql). It has no SET,
-- since each SET costs as much as an index entry. It has few expressions, and none of them needs the executor: an INSERT would
-- check the right to call each function and operator in it anew. It names everything in full, operators too.
-- pgspot: no search_path, because every emit would pay for it.
--
-- It emits an event that one endpoint wants and that has no options; emit_checked() does the rest. The session remembers the
-- endpoints of a type only after that type and tenant were found valid. webhook.max_payload is never smaller than 1024 bytes.
CREATE OR REPLACE FUNCTION webhook.emit(
    event_type text, payload jsonb, idempotency_key text, ordering_key text, coalesce_key text, deliver_at timestamptz,
    expires_at timestamptz, tenant text, endpoints text[])
    RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    route pg_catalog.int8 := webhook.recall_only_route(emit.tenant, emit.event_type);
    size pg_catalog.int4 := pg_catalog.octet_length(emit.payload::pg_catalog.text);
    the_endpoint pg_catalog.int4;
    attempts pg_catalog.int4;
    new_event_id pg_catalog.uuid;
    emitted_at pg_catalog.timestamptz;
BEGIN
    IF route IS NULL OR emit.idempotency_key IS NOT NULL OR emit.ordering_key IS NOT NULL OR emit.coalesce_key IS NOT NULL
       OR emit.deliver_at IS NOT NULL OR emit.expires_at IS NOT NULL OR emit.endpoints IS NOT NULL
       OR (size OPERATOR(pg_catalog.<=) 1024 OR size OPERATOR(pg_catalog.<=) webhook.max_payload()) IS NOT TRUE THEN
        RETURN webhook.emit_checked(emit.event_type, emit.payload, emit.idempotency_key, emit.ordering_key, emit.coalesce_key,
                                    emit.deliver_at, emit.expires_at, emit.tenant, emit.endpoints);
    END IF;

    the_endpoint := (route OPERATOR(pg_catalog.>>) 32)::pg_catalog.int4;
    attempts := (route OPERATOR(pg_catalog.&) 65535)::pg_catalog.int4;
    new_event_id := webhook.new_id();
    emitted_at := pg_catalog.clock_timestamp();
    INSERT INTO webhook.event (id, tenant, event_type, payload, payload_bytes, created_at)
    VALUES (new_event_id, emit.tenant, emit.event_type, emit.payload, size, emitted_at);
    INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, created_at, payload_bytes)
    VALUES (new_event_id, the_endpoint, emit.event_type, attempts, emitted_at, emitted_at, size);
    RETURN CASE WHEN webhook.wake_endpoint(the_endpoint, emitted_at) THEN new_event_id END;
END $$;

-- Emits events that are valid but perhaps too large: one for each element of the arrays, which have the same length; the other
-- parameters hold for all. It looks the endpoints up once for each type and tenant. An array of keys may be null.
CREATE OR REPLACE FUNCTION webhook.emit_events(
    event_ids uuid[], event_types text[], payloads jsonb[], tenants text[], deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, only_endpoints int[] DEFAULT NULL, idempotency_keys text[] DEFAULT NULL,
    ordering_keys text[] DEFAULT NULL, coalesce_keys text[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    emitted_at timestamptz := clock_timestamp();
    due_at timestamptz := greatest(nullif(deliver_at, 'infinity'), emitted_at);
    sizes int[] := ARRAY(SELECT octet_length(p::text) FROM unnest(payloads) AS p);
    largest int := (SELECT max(size) FROM unnest(sizes) AS size);
    queued_for int[];
BEGIN
    -- An alert has only a few kB, none of which can be left out, and a smaller limit must not suppress it.
    IF largest > webhook.max_payload() AND (event_types[1] LIKE 'webhook.%') IS NOT TRUE THEN
        PERFORM webhook.refuse_size(largest);
    END IF;
    INSERT INTO webhook.event (id, tenant, event_type, payload, payload_bytes, idempotency_key, created_at)
    SELECT v.id, v.tenant, v.event_type, v.payload, v.size, v.idempotency_key, emitted_at
    FROM unnest(event_ids, tenants, event_types, payloads, sizes, idempotency_keys)
         AS v (id, tenant, event_type, payload, size, idempotency_key);

    WITH kind AS MATERIALIZED (
        SELECT v.event_type, coalesce(v.tenant, '') AS tenant, webhook.matching_keys(v.tenant, v.event_type) AS keys
        FROM unnest(event_types, tenants) AS v (event_type, tenant)
        GROUP BY v.event_type, v.tenant
    ), subscriber AS MATERIALIZED (
        SELECT k.event_type, k.tenant, s.endpoint_id, s.max_attempts, s.filter
        FROM kind k CROSS JOIN LATERAL webhook.subscribers(k.keys) s
        WHERE only_endpoints IS NULL OR s.endpoint_id = ANY (only_endpoints)
    ), queued AS (
        INSERT INTO webhook.delivery_queue AS q
            (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
             coalesce_key, created_at, payload_bytes)
        SELECT v.id, s.endpoint_id, v.event_type, s.max_attempts, due_at,
               CASE WHEN emit_events.deliver_at = 'infinity' THEN 'parked' ELSE 'new' END, emit_events.expires_at,
               v.ordering_key, v.coalesce_key, emitted_at, v.size
        FROM unnest(event_ids, event_types, tenants, payloads, sizes, ordering_keys, coalesce_keys)
             AS v (id, event_type, tenant, payload, size, ordering_key, coalesce_key)
        JOIN subscriber s ON s.event_type = v.event_type AND s.tenant = coalesce(v.tenant, '')
        WHERE s.filter IS NULL OR webhook.passes(s.filter, v.event_type, v.payload)
        RETURNING q.endpoint_id
    )
    SELECT array_agg(DISTINCT q.endpoint_id) INTO queued_for FROM queued q;
    IF queued_for IS NOT NULL THEN
        PERFORM webhook.wake(queued_for, due_at);
        IF coalesce_keys IS NOT NULL THEN
            -- The last event of each key supersedes; the claim passes over the others, which went to endpoints of their own.
            PERFORM webhook.supersede(ARRAY(
                SELECT (array_agg(v.id ORDER BY v.id DESC))[1]
                FROM unnest(event_ids, tenants, coalesce_keys) AS v (id, tenant, coalesce_key)
                WHERE v.coalesce_key IS NOT NULL
                GROUP BY v.tenant, v.coalesce_key));
        END IF;
    END IF;
END $$;

-- Checks the keys of many events: one for each event, valid or null; null if no event has a key.
CREATE OR REPLACE FUNCTION webhook.require_keys(parameter text, keys text[], events int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF keys IS NULL THEN
        RETURN;
    ELSIF cardinality(keys) <> events OR array_ndims(keys) > 1 THEN
        RAISE EXCEPTION '% and payloads must go together', parameter USING ERRCODE = 'array_subscript_error',
            DETAIL = format('There are %s keys and %s payloads.', cardinality(keys), events),
            HINT = 'Give one key for each payload, and null for a payload without one.';
    END IF;
    PERFORM webhook.require_key('an element of ' || parameter, k) FROM unnest(keys) AS k;
END $$;

-- Emits any number of events in one statement, and returns their ids in the same order. If one is not valid, it emits none. A
-- null array has no events: array_agg() returns null for no rows.
CREATE OR REPLACE FUNCTION webhook.emit_many(
    event_types text[], payloads jsonb[], ordering_keys text[], idempotency_keys text[], coalesce_keys text[],
    deliver_at timestamptz, expires_at timestamptz, tenant text, endpoints text[])
    RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event_ids uuid[];
    events_of_keys uuid[];
    only_endpoints int[];
    wrong_type text;
BEGIN
    event_types := coalesce(event_types, '{}');
    payloads := coalesce(payloads, '{}');
    IF cardinality(event_types) <> cardinality(payloads) THEN
        RAISE EXCEPTION 'event_types and payloads must go together' USING ERRCODE = 'array_subscript_error',
            DETAIL = format('There are %s types and %s payloads.', cardinality(event_types), cardinality(payloads)),
            HINT = 'Give one type for each payload, or a single one that is no array.';
    END IF;
    SELECT t INTO wrong_type FROM unnest(event_types) AS t WHERE webhook.is_event_type(t) IS NOT TRUE LIMIT 1;
    IF FOUND THEN
        PERFORM webhook.refuse_event_type(wrong_type);
    ELSIF array_position(payloads, NULL) IS NOT NULL THEN
        PERFORM webhook.refuse_null_payload();
    ELSIF NOT webhook.is_tenant(tenant) THEN
        PERFORM webhook.refuse_tenant(tenant);
    END IF;
    PERFORM webhook.require_lifetime(deliver_at, expires_at),
            webhook.require_keys('ordering_keys', ordering_keys, cardinality(payloads)),
            webhook.require_keys('idempotency_keys', idempotency_keys, cardinality(payloads)),
            webhook.require_keys('coalesce_keys', coalesce_keys, cardinality(payloads));
    only_endpoints := webhook.require_endpoints(endpoints);

    event_ids := ARRAY(SELECT webhook.new_id() FROM generate_series(1, cardinality(payloads)));
    events_of_keys := event_ids;
    IF idempotency_keys IS NOT NULL THEN
        events_of_keys := webhook.take_keys(tenant, idempotency_keys, event_ids);
        -- The other keys stand for earlier events.
        SELECT array_agg(v.id), array_agg(v.event_type), array_agg(v.payload), array_agg(v.ordering_key),
               array_agg(v.idempotency_key), array_agg(v.coalesce_key)
        INTO event_ids, event_types, payloads, ordering_keys, idempotency_keys, coalesce_keys
        FROM unnest(event_ids, event_types, payloads, ordering_keys, idempotency_keys, coalesce_keys, events_of_keys)
             AS v (id, event_type, payload, ordering_key, idempotency_key, coalesce_key, event_of_key)
        WHERE v.id = v.event_of_key;
    END IF;
    IF cardinality(event_ids) > 0 THEN
        PERFORM webhook.emit_events(event_ids, event_types, payloads, array_fill(tenant, ARRAY[cardinality(payloads)]),
                                    deliver_at, expires_at, only_endpoints, idempotency_keys, ordering_keys, coalesce_keys);
    END IF;
    RETURN QUERY SELECT unnest(events_of_keys);
END $$;

CREATE OR REPLACE FUNCTION webhook.emit_many(
    event_type text, payloads jsonb[], ordering_keys text[], idempotency_keys text[], coalesce_keys text[],
    deliver_at timestamptz, expires_at timestamptz, tenant text, endpoints text[])
    RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    END IF;
    RETURN QUERY SELECT webhook.emit_many(array_fill(event_type, ARRAY[coalesce(cardinality(payloads), 0)]), payloads,
                                          ordering_keys, idempotency_keys, coalesce_keys, deliver_at, expires_at, tenant,
                                          endpoints);
END $$;
