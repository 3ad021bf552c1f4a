-- Signing secrets: made, checked, rotated; and signatures verified, for receivers that are PostgreSQL themselves.

-- The message never contains the secret.
CREATE FUNCTION webhook.require_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (secret ~ '^whsec_([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$'
        AND octet_length(decode(substr(secret, 7), 'base64')) BETWEEN 24 AND 64) IS NOT TRUE THEN
        RAISE EXCEPTION 'signing secret is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A secret is whsec_ followed by 24 to 64 bytes in base64.',
            HINT = 'Leave it out, and one is made for you.';
    END IF;
END $$;

-- The one that is signed with longest: the newest.
-- @api public
CREATE FUNCTION @extschema@.webhook_secret(name text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT s.secret FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(name) AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);

-- A new secret, made here unless it is given. Until the overlap has passed requests are signed with the old one too, so
-- that the receiver may take over the new one at any moment of it.
-- @api public
CREATE FUNCTION @extschema@.webhook_rotate_secret(name text, overlap interval DEFAULT '24 hours', secret text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    rotated_id int := webhook.require_endpoint(webhook_rotate_secret.name);
    new_secret text := coalesce(webhook_rotate_secret.secret, webhook.new_secret());
BEGIN
    PERFORM webhook.require_secret(new_secret);
    IF (overlap >= interval '0' AND overlap <= interval '1000 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'overlap must be between 0 and 1000 days' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'With ''0 s'' the old secret is not used any more from now on.';
    END IF;
    -- Two who rotate at the same time: one after the other, or both would be the newest.
    PERFORM FROM webhook.endpoint e WHERE e.id = rotated_id FOR UPDATE;
    DELETE FROM webhook.secret s WHERE s.endpoint_id = rotated_id AND s.expires_at <= now();
    UPDATE webhook.secret s SET expires_at = least(s.expires_at, clock_timestamp() + overlap) WHERE s.endpoint_id = rotated_id;
    INSERT INTO webhook.secret (endpoint_id, secret, created_at) VALUES (rotated_id, new_secret, clock_timestamp())
    ON CONFLICT (endpoint_id, secret) DO UPDATE SET expires_at = NULL, created_at = excluded.created_at;
    RETURN new_secret;
END $$;

-- Whether a request that was received is signed with that secret, and not longer ago (or ahead of the clock) than the
-- tolerance. The names of the headers may be in any case. What is missing or garbled is false; only a secret that is none
-- is an error.
-- @api public
CREATE FUNCTION @extschema@.webhook_verify(body bytea, headers jsonb, secret text, tolerance interval DEFAULT '5 min') RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id text;
    sent_at text;
    signatures text;
BEGIN
    PERFORM webhook.require_secret(secret);
    SELECT max(h.value) FILTER (WHERE lower(h.key) = 'webhook-id'), max(h.value) FILTER (WHERE lower(h.key) = 'webhook-timestamp'),
           max(h.value) FILTER (WHERE lower(h.key) = 'webhook-signature')
    INTO id, sent_at, signatures
    FROM jsonb_each_text(CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{}' END) h;
    RETURN coalesce(
        sent_at ~ '^[0-9]{1,12}$'
        AND abs(extract(epoch FROM clock_timestamp()) - sent_at::numeric) <= extract(epoch FROM tolerance)
        AND webhook.is_signed(secret, id, sent_at, signatures, body), false);
END $$;
