-- Emitting: one event, and one delivery for each endpoint that wants it, in the caller's transaction.

-- Paused and disabled endpoints get their deliveries too: parked, never dropped. The planner is told to use
-- the index on subscriptions whatever it has seen: a plan made among few endpoints must do for many.
-- @api public
CREATE FUNCTION @extschema@.webhook_emit(
    event_type text, payload jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL)
    RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    new_event_id uuid := webhook.new_id();
    emitted_at timestamptz := clock_timestamp();
    wanted_keys text[];
    size int;
    size_limit bigint := pg_size_bytes(coalesce(current_setting('webhook.max_payload', true), '1MB'));
BEGIN
    IF (webhook_emit.event_type ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' AND length(webhook_emit.event_type) <= 200) IS NOT TRUE THEN
        RAISE EXCEPTION 'event type "%" is not valid', webhook_emit.event_type USING ERRCODE = 'invalid_parameter_value',
            HINT = 'A type is made of letters, digits, _ and -, in parts joined by dots, such as order.created.';
    END IF;
    IF webhook_emit.event_type LIKE 'webhook.%' THEN
        RAISE EXCEPTION 'event type "%" is reserved', webhook_emit.event_type USING ERRCODE = 'reserved_name',
            HINT = 'Types that begin with webhook. are the extension''s own; choose another prefix.';
    END IF;
    IF webhook_emit.payload IS NULL THEN
        RAISE EXCEPTION 'payload must not be null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'Leave it out for an empty object, or pass the JSON value ''null''.';
    END IF;
    IF webhook_emit.tenant !~ '^[^[:cntrl:][:space:]]{1,200}$' THEN
        RAISE EXCEPTION 'tenant "%" is not valid', webhook_emit.tenant USING ERRCODE = 'invalid_parameter_value',
            HINT = 'A tenant has 1 to 200 characters, no white space and no control characters; leave it null for none.';
    END IF;

    INSERT INTO webhook.event (id, tenant, event_type, payload, created_at)
    VALUES (new_event_id, webhook_emit.tenant, webhook_emit.event_type, webhook_emit.payload, emitted_at)
    RETURNING payload_bytes INTO size;
    IF size > size_limit THEN
        RAISE EXCEPTION 'payload is larger than webhook.max_payload' USING ERRCODE = 'program_limit_exceeded',
            DETAIL = format('It has %s bytes as text, and %s are allowed.', size, size_limit),
            HINT = 'Send less, say a reference to the row, or raise webhook.max_payload.';
    END IF;

    wanted_keys := webhook.matching_keys(webhook_emit.tenant, webhook_emit.event_type);
    INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, created_at)
    SELECT new_event_id, e.id, webhook_emit.event_type,
           coalesce(p.max_attempts, (SELECT s.max_attempts FROM webhook.policy s WHERE s.name = 'standard')),
           coalesce(webhook_emit.deliver_at, emitted_at), emitted_at
    FROM webhook.endpoint e
    LEFT JOIN webhook.policy p ON p.name = e.policy
    WHERE webhook.subscription_keys(e.tenant, e.event_types) && wanted_keys;

    IF FOUND THEN
        PERFORM webhook.wake();
    END IF;
    RETURN new_event_id;
END $$;
