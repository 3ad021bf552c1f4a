-- Emitting: events, and one delivery of each for every endpoint that wants it, in the caller's transaction.
--
-- webhook_emit() emits one event, with two INSERTs that cost little more than two INSERTs of one's own. webhook.emit_events()
-- emits any number with the same few statements: for webhook_emit_many(), the triggers of 21_watch.sql and 51_alerts.sql. Both look
-- up who wants an event by webhook.subscribers().
--
-- Paused and disabled endpoints get their deliveries too: parked, never dropped. What was to be delivered in the past is due
-- now: it has not waited yet, neither for longer than what was emitted before it nor for longer than hold_for. The planner is
-- told to use the index on subscriptions whatever it has seen, once and for all: a plan made among few endpoints must do for
-- many.

-- What is not valid changes nothing. Each rule is an expression that the planner inlines; words are made only for those who
-- need them.

CREATE FUNCTION webhook.is_event_type(event_type text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN event_type ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' AND length(event_type) <= 200 AND event_type NOT LIKE 'webhook.%';

CREATE FUNCTION webhook.refuse_event_type(event_type text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF event_type LIKE 'webhook.%' THEN
        RAISE EXCEPTION 'event type "%" is reserved', event_type USING ERRCODE = 'reserved_name',
            HINT = 'Types that begin with webhook. are the extension''s own; choose another prefix.';
    END IF;
    RAISE EXCEPTION 'event type "%" is not valid', event_type USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A type is made of letters, digits, _ and -, in parts joined by dots, such as order.created.';
END $$;

CREATE FUNCTION webhook.is_tenant(tenant text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN tenant ~ '^[^[:cntrl:][:space:]/]{1,200}$' AND tenant <> '*';

CREATE FUNCTION webhook.refuse_tenant(tenant text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'tenant "%" is not valid', tenant USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A tenant has 1 to 200 characters, no /, no white space and no control characters, and is not *; leave it null for none.';
END $$;

CREATE FUNCTION webhook.refuse_null_payload() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'payload must not be null' USING ERRCODE = 'null_value_not_allowed',
        HINT = 'Leave it out for an empty object, or pass the JSON value ''null''.';
END $$;

-- Not a CHECK of the table: what was emitted before there was such a rule can be restored. The ranges are those of
-- control characters, whatever the collation of the database takes for one.
CREATE FUNCTION webhook.require_key(parameter text, value text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RAISE EXCEPTION '% is not valid', parameter USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'It has control characters.',
            HINT = 'Encode binary keys, for example with encode(.., ''hex'').';
    ELSIF length(value) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION '% is not valid', parameter USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It has %s characters.', length(value)),
            HINT = 'A key has 1 to 200 characters; leave it null for none, and use a hash of what is longer.';
    END IF;
END $$;

CREATE FUNCTION webhook.require_lifetime(deliver_at timestamptz, expires_at timestamptz) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF expires_at <= deliver_at THEN
        RAISE EXCEPTION 'expires_at must be after deliver_at' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'What expires before it is due is never sent; give it more time, or leave one of the two null.';
    END IF;
END $$;

-- The endpoints of these addresses; null for null, which stands for all. The HINT suggests none: roles with level `emit` may not
-- see them.
CREATE FUNCTION webhook.require_endpoints(addresses text[]) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    unknown text;
BEGIN
    IF addresses IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(addresses) = 0 OR array_position(addresses, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'endpoints must be names, at least one and none of them null' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave it null for all endpoints that want the event.';
    END IF;
    SELECT w.address INTO unknown FROM unnest(addresses) AS w (address)
    WHERE NOT EXISTS (SELECT FROM webhook.endpoint_at(w.address)) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', unknown USING ERRCODE = 'undefined_object',
            HINT = 'Roles with level read find endpoints in webhook.endpoint_status; one of a tenant is tenant/name.';
    END IF;
    RETURN ARRAY(SELECT a.id FROM unnest(addresses) AS w (address) CROSS JOIN LATERAL webhook.endpoint_at(w.address) a);
END $$;

CREATE FUNCTION webhook.refuse_size(size int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'payload is larger than webhook.max_payload' USING ERRCODE = 'program_limit_exceeded',
        DETAIL = format('It has %s bytes as text, and %s are allowed.', size, webhook.max_payload()),
        HINT = 'Send less, say a reference to the row, or raise webhook.max_payload.';
END $$;

CREATE FUNCTION webhook.max_payload() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN pg_size_bytes(webhook.setting('max_payload'));

-- Makes a key stand for a new event, or says for which earlier one it stands.
--
-- Whoever meets a key that another transaction has just taken waits for its end: by then the key stands for that one's event, or
-- is free again. A key whose window is over is free too, and is taken by whoever updates it first. Where that cannot be seen,
-- in REPEATABLE READ, the server says so with a serialization failure. A new key is inserted without looking for it first: to
-- have found it missing would be in conflict with all who insert beside it, in SERIALIZABLE.
CREATE FUNCTION webhook.take_key(key_tenant text, taken_key text, new_event_id uuid) RETURNS uuid
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    valid_since timestamptz := clock_timestamp() - webhook.setting('idempotency_window')::interval;
    earlier webhook.idempotency;
BEGIN
    LOOP
        INSERT INTO webhook.idempotency (tenant, key, event_id, created_at)
        VALUES (coalesce(key_tenant, ''), taken_key, new_event_id, clock_timestamp())
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT * INTO earlier FROM webhook.idempotency i WHERE i.tenant = coalesce(key_tenant, '') AND i.key = taken_key;
        IF earlier.created_at > valid_since THEN
            RETURN earlier.event_id;
        END IF;
        UPDATE webhook.idempotency i SET event_id = new_event_id, created_at = clock_timestamp()
        WHERE i.tenant = earlier.tenant AND i.key = earlier.key AND i.created_at = earlier.created_at;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION webhook.emit(
    event_type text, payload jsonb, idempotency_key text, ordering_key text, coalesce_key text, deliver_at timestamptz,
    expires_at timestamptz, tenant text, endpoints text[])
    RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    new_event_id uuid := webhook.new_id();
    emitted_at timestamptz := clock_timestamp();
    wanted_keys text[];
    earlier_event_id uuid;
    only_endpoints int[];
    size int;
BEGIN
    IF webhook.is_event_type(emit.event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(emit.event_type);
    ELSIF emit.payload IS NULL THEN
        PERFORM webhook.refuse_null_payload();
    ELSIF NOT webhook.is_tenant(emit.tenant) THEN
        PERFORM webhook.refuse_tenant(emit.tenant);
    END IF;
    IF num_nonnulls(emit.idempotency_key, emit.ordering_key, emit.coalesce_key, emit.expires_at,
                    emit.endpoints) > 0 THEN
        PERFORM webhook.require_key('idempotency_key', emit.idempotency_key),
                webhook.require_key('ordering_key', emit.ordering_key),
                webhook.require_key('coalesce_key', emit.coalesce_key),
                webhook.require_lifetime(emit.deliver_at, emit.expires_at);
        only_endpoints := webhook.require_endpoints(emit.endpoints);
        IF emit.idempotency_key IS NOT NULL THEN
            earlier_event_id := webhook.take_key(emit.tenant, emit.idempotency_key, new_event_id);
            IF earlier_event_id IS NOT NULL THEN
                RETURN earlier_event_id;
            END IF;
        END IF;
    END IF;

    INSERT INTO webhook.event (id, tenant, event_type, payload, idempotency_key, created_at)
    VALUES (new_event_id, emit.tenant, emit.event_type, emit.payload, emit.idempotency_key, emitted_at)
    RETURNING payload_bytes INTO size;
    IF size > webhook.max_payload() THEN
        PERFORM webhook.refuse_size(size);
    END IF;

    wanted_keys := webhook.matching_keys(emit.tenant, emit.event_type);
    INSERT INTO webhook.delivery_queue
        (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key, coalesce_key,
         created_at)
    SELECT new_event_id, s.endpoint_id, emit.event_type, s.max_attempts, greatest(nullif(emit.deliver_at, 'infinity'), emitted_at),
           CASE WHEN emit.deliver_at = 'infinity' THEN 'parked' ELSE 'new' END, emit.expires_at, emit.ordering_key,
           emit.coalesce_key, emitted_at
    FROM webhook.subscribers(wanted_keys) s
    WHERE (only_endpoints IS NULL OR s.endpoint_id = ANY (only_endpoints))
      AND (s.filter IS NULL OR webhook.passes(s.filter, emit.event_type, emit.payload));
    IF FOUND THEN
        PERFORM webhook.wake();
        IF emit.coalesce_key IS NOT NULL THEN
            PERFORM webhook.supersede(new_event_id, emit.tenant, emit.coalesce_key);
        END IF;
    END IF;
    RETURN new_event_id;
END $$;

-- Emits events that are valid but perhaps too large: one for each element of the arrays, which go together; the rest is the same
-- for all. Who wants them is looked up once for each type and tenant.
CREATE FUNCTION webhook.emit_events(
    event_ids uuid[], event_types text[], payloads jsonb[], tenants text[], deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, only_endpoints int[] DEFAULT NULL, ordering_keys text[] DEFAULT NULL,
    coalesce_keys text[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    emitted_at timestamptz := clock_timestamp();
    largest int;
BEGIN
    WITH recorded AS (
        INSERT INTO webhook.event (id, tenant, event_type, payload, created_at)
        SELECT v.id, v.tenant, v.event_type, v.payload, emitted_at
        FROM unnest(event_ids, tenants, event_types, payloads) AS v (id, tenant, event_type, payload)
        RETURNING payload_bytes
    )
    SELECT max(r.payload_bytes) INTO largest FROM recorded r;
    -- An alert has no more than a few kB that could be left out, and must not be kept from the others by a smaller limit.
    IF largest > webhook.max_payload() AND (event_types[1] LIKE 'webhook.%') IS NOT TRUE THEN
        PERFORM webhook.refuse_size(largest);
    END IF;

    WITH kind AS MATERIALIZED (
        SELECT v.event_type, coalesce(v.tenant, '') AS tenant, webhook.matching_keys(v.tenant, v.event_type) AS keys
        FROM unnest(event_types, tenants) AS v (event_type, tenant)
        GROUP BY v.event_type, v.tenant
    ), subscriber AS MATERIALIZED (
        SELECT k.event_type, k.tenant, s.endpoint_id, s.max_attempts, s.filter
        FROM kind k CROSS JOIN LATERAL webhook.subscribers(k.keys) s
        WHERE only_endpoints IS NULL OR s.endpoint_id = ANY (only_endpoints)
    )
    INSERT INTO webhook.delivery_queue
        (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key, coalesce_key,
         created_at)
    SELECT v.id, s.endpoint_id, v.event_type, s.max_attempts, greatest(nullif(emit_events.deliver_at, 'infinity'), emitted_at),
           CASE WHEN emit_events.deliver_at = 'infinity' THEN 'parked' ELSE 'new' END, emit_events.expires_at, v.ordering_key,
           v.coalesce_key, emitted_at
    FROM unnest(event_ids, event_types, tenants, payloads, ordering_keys, coalesce_keys)
        AS v (id, event_type, tenant, payload, ordering_key, coalesce_key)
    JOIN subscriber s ON s.event_type = v.event_type AND s.tenant = coalesce(v.tenant, '')
    WHERE s.filter IS NULL OR webhook.passes(s.filter, v.event_type, v.payload);
    IF FOUND THEN
        PERFORM webhook.wake();
        -- The last of each key; the claim passes over the others that went to endpoints of their own.
        PERFORM webhook.supersede(k.newest, k.tenant, k.coalesce_key)
        FROM (SELECT max(v.id::text)::uuid AS newest, v.tenant, v.coalesce_key
              FROM unnest(event_ids, tenants, coalesce_keys) AS v (id, tenant, coalesce_key)
              WHERE v.coalesce_key IS NOT NULL
              GROUP BY v.tenant, v.coalesce_key) k;
    END IF;
END $$;

-- Any number of events in one statement, whose ids come back in the same order. All of them or, where one is not valid, none.
-- No array is none at all: what array_agg() makes of no rows.
CREATE FUNCTION webhook.emit_many(
    event_types text[], payloads jsonb[], deliver_at timestamptz, expires_at timestamptz, tenant text, endpoints text[])
    RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event_ids uuid[];
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
    PERFORM webhook.require_lifetime(deliver_at, expires_at);

    event_ids := ARRAY(SELECT webhook.new_id() FROM generate_series(1, cardinality(payloads)));
    PERFORM webhook.emit_events(event_ids, event_types, payloads, array_fill(tenant, ARRAY[cardinality(payloads)]), deliver_at,
                                expires_at, webhook.require_endpoints(endpoints));
    RETURN QUERY SELECT unnest(event_ids);
END $$;

CREATE FUNCTION webhook.emit_many(
    event_type text, payloads jsonb[], deliver_at timestamptz, expires_at timestamptz, tenant text, endpoints text[])
    RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    END IF;
    RETURN QUERY SELECT webhook.emit_many(array_fill(event_type, ARRAY[coalesce(cardinality(payloads), 0)]), payloads,
                                          deliver_at, expires_at, tenant, endpoints);
END $$;
