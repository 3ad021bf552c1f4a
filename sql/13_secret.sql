-- Signing secrets and keys: how they are made, checked and rotated.
--
-- A receiver shares a secret (whsec_), and of a key (whsk_) it has only the public half (whpk_). A receiver of another sender
-- shares a text (stored as hmac_ and the text), which signs in templates of headers. All are rows of webhook.secret: an
-- endpoint may have any of them, and each kind is rotated by itself.
--
-- Functions that search for a secret have generic plans: auto_explain and debug_print_plan print the constants of other plans.

-- The message never contains the key.
CREATE OR REPLACE FUNCTION webhook.require_private_key(key text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (key ~ '^whsk_[A-Za-z0-9+/]{86}==$' AND webhook.is_private_key(key)) IS NOT TRUE THEN
        RAISE EXCEPTION 'private key is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A private key is whsk_ followed by 64 bytes in base64: the seed of an ed25519 key, and its public key.',
            HINT = 'Leave it out, and the extension makes one.';
    END IF;
END $$;

-- Checks a secret of another sender. The message never contains the secret.
CREATE OR REPLACE FUNCTION webhook.require_hmac_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (octet_length(secret) BETWEEN 8 AND 256 AND secret !~ E'[\\u0001-\\u001f\\u007f-\\u009f]') IS NOT TRUE THEN
        RAISE EXCEPTION 'HMAC secret is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'An HMAC secret is a text of 8 to 256 bytes without control characters.',
            HINT = 'Leave it out, and one is made for you.';
    END IF;
END $$;

-- The message never contains the secret.
CREATE OR REPLACE FUNCTION webhook.require_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF starts_with(secret, 'whsk_') THEN
        PERFORM webhook.require_private_key(secret);
    ELSIF starts_with(secret, 'hmac_') THEN
        PERFORM webhook.require_hmac_secret(substr(secret, 6));
    ELSIF (secret ~ '^whsec_([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$'
        AND octet_length(decode(substr(secret, 7), 'base64')) BETWEEN 24 AND 64) IS NOT TRUE THEN
        RAISE EXCEPTION 'signing secret is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A secret is whsec_ followed by 24 to 64 bytes in base64; a private key is whsk_ followed by 64.',
            HINT = 'Leave it out, and the extension makes one.';
    END IF;
END $$;

-- The key of a secret's HMAC, in base64; null for a private key. It decodes nothing: a secret that got past the checks must
-- not raise an error here, since the sender asks for the secrets of many endpoints at once.
CREATE OR REPLACE FUNCTION webhook.hmac_key(secret text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    RETURN CASE left(secret, 5) WHEN 'whsec' THEN substr(secret, 7)
                                WHEN 'hmac_' THEN translate(encode(convert_to(substr(secret, 6), 'UTF8'), 'base64'), E'\n', '') END;

-- This refuses a value before the table does, whose messages would show the secret. A header carries a signature by each
-- secret, and some receivers limit the length of a header.
CREATE OR REPLACE FUNCTION webhook.check_secret() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    most_secrets CONSTANT int := 10;
BEGIN
    IF num_nulls(NEW.endpoint_id, NEW.created_at) > 0 THEN
        RAISE EXCEPTION 'endpoint_id and created_at of a secret must not be null' USING ERRCODE = 'not_null_violation',
            HINT = 'webhook_rotate_secret() gives an endpoint a new secret.';
    END IF;
    PERFORM webhook.require_secret(NEW.secret);
    IF TG_OP = 'UPDATE' AND (NEW.endpoint_id, NEW.secret) = (OLD.endpoint_id, OLD.secret) THEN
        RETURN NEW;
    ELSIF EXISTS (SELECT FROM webhook.secret s WHERE s.endpoint_id = NEW.endpoint_id AND s.secret = NEW.secret) THEN
        RAISE EXCEPTION 'the endpoint has this secret already' USING ERRCODE = 'unique_violation',
            HINT = 'webhook_rotate_secret() makes it the newest again.';
    ELSIF EXISTS (SELECT FROM webhook.secret s WHERE s.endpoint_id = NEW.endpoint_id
                  AND webhook.hmac_key(s.secret) = webhook.hmac_key(NEW.secret)) THEN
        RAISE EXCEPTION 'the endpoint signs with this secret already' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A signature of the body alone must not pass for one of Standard Webhooks, so both have secrets of their own.',
            HINT = 'Leave it out, and one is made for you.';
    ELSIF (SELECT count(*) >= most_secrets FROM webhook.secret s
           WHERE s.endpoint_id = NEW.endpoint_id AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
             AND starts_with(s.secret, 'hmac_') = starts_with(NEW.secret, 'hmac_')) THEN
        RAISE EXCEPTION 'the endpoint has % secrets already', most_secrets USING ERRCODE = 'program_limit_exceeded',
            DETAIL = 'Requests are signed with each of them until it expires.',
            HINT = 'Wait until one expires, or end them all: webhook_rotate_secret(.., overlap => ''0 s'').';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER check_secret BEFORE INSERT OR UPDATE ON webhook.secret
    FOR EACH ROW EXECUTE FUNCTION webhook.check_secret();

-- The newest secret: requests are signed with it for longest.
CREATE OR REPLACE FUNCTION webhook.newest_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT s.secret FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'whsec_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);

CREATE OR REPLACE FUNCTION webhook.newest_hmac_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT substr(s.secret, 6) FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'hmac_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);

-- Whether requests are signed with this secret; null for null.
CREATE OR REPLACE FUNCTION webhook.has_secret(endpoint_id int, secret text) RETURNS boolean
    LANGUAGE sql STABLE STRICT
    RETURN EXISTS (SELECT FROM webhook.secret s
                   WHERE s.endpoint_id = has_secret.endpoint_id AND s.secret = has_secret.secret
                     AND (s.expires_at IS NULL OR s.expires_at > now()));

CREATE OR REPLACE FUNCTION webhook.public_half(key text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    RETURN 'whpk_' || encode(substr(decode(substr(key, 6), 'base64'), 33), 'base64');

-- The public key of the newest private key; null if there is none.
CREATE OR REPLACE FUNCTION webhook.newest_public_key(endpoint text) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT webhook.public_half(s.secret) FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'whsk_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);
END $$;

-- Makes a secret when an endpoint first needs one: it was made without, or its secrets have all expired.
CREATE OR REPLACE FUNCTION webhook.first_secret(endpoint_id int) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made text := webhook.new_secret();
BEGIN
    INSERT INTO webhook.secret (endpoint_id, secret) VALUES (first_secret.endpoint_id, made);
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION webhook.new_hmac_secret() RETURNS text
    LANGUAGE sql
    RETURN encode(decode(substr(webhook.new_secret(), 7), 'base64'), 'hex');

-- The valid secrets, newest first. If there is none, it makes one.
CREATE OR REPLACE FUNCTION webhook.hmac_secrets(endpoint_id int) RETURNS text[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    valid text[] := ARRAY(SELECT substr(s.secret, 6) FROM webhook.secret s
                          WHERE s.endpoint_id = hmac_secrets.endpoint_id AND starts_with(s.secret, 'hmac_')
                            AND (s.expires_at IS NULL OR s.expires_at > now())
                          ORDER BY s.created_at DESC);
BEGIN
    IF cardinality(valid) = 0 THEN
        valid := ARRAY[webhook.new_hmac_secret()];
        INSERT INTO webhook.secret (endpoint_id, secret) VALUES (hmac_secrets.endpoint_id, 'hmac_' || valid[1]);
    END IF;
    RETURN valid;
END $$;

-- Adds a new secret, made here unless the caller gives one. Until the overlap has passed, requests are signed with the old one
-- too, so that the receiver may change to the new one at any moment of it. A key replaces keys, and leaves secrets as they
-- are.
CREATE OR REPLACE FUNCTION webhook.rotate_secret(endpoint text, overlap interval, secret text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    rotated_id int := webhook.require_endpoint(rotate_secret.endpoint);
    new_secret text := coalesce(rotate_secret.secret, webhook.new_secret());
BEGIN
    IF (overlap >= interval '0' AND overlap <= interval '1000 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'overlap must be between 0 and 1000 days' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''0 s'' to revoke the old secret immediately.';
    END IF;
    -- Two sessions that rotate at the same time take turns, or both secrets would be the newest.
    PERFORM FROM webhook.endpoint e WHERE e.id = rotated_id FOR UPDATE;
    DELETE FROM webhook.secret s WHERE s.endpoint_id = rotated_id AND s.expires_at <= now();
    UPDATE webhook.secret s SET expires_at = least(s.expires_at, clock_timestamp() + overlap)
    WHERE s.endpoint_id = rotated_id AND left(s.secret, 5) = left(new_secret, 5);
    UPDATE webhook.secret s SET expires_at = NULL, created_at = clock_timestamp()
    WHERE s.endpoint_id = rotated_id AND s.secret = new_secret;
    IF NOT FOUND THEN
        INSERT INTO webhook.secret (endpoint_id, secret, created_at) VALUES (rotated_id, new_secret, clock_timestamp());
    END IF;
    RETURN new_secret;
END $$;

-- Returns the public key: only webhook.secret shows the private one.
CREATE OR REPLACE FUNCTION webhook.rotate_key(endpoint text, overlap interval, key text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_key CONSTANT text := coalesce(key, webhook.new_private_key());
BEGIN
    PERFORM webhook.require_private_key(new_key);
    PERFORM webhook.rotate_secret(endpoint, overlap, new_key);
    RETURN webhook.public_half(new_key);
END $$;

-- Returns the text itself, as the receiver has it.
CREATE OR REPLACE FUNCTION webhook.rotate_hmac_secret(endpoint text, overlap interval, secret text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_secret CONSTANT text := coalesce(secret, webhook.new_hmac_secret());
BEGIN
    PERFORM webhook.rotate_secret(endpoint, overlap, 'hmac_' || new_secret);
    RETURN new_secret;
END $$;
