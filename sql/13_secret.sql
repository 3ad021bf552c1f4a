-- Signing secrets and keys: made, checked, rotated.
--
-- A receiver shares a secret (whsec_), and of a key (whsk_) it has only the public half (whpk_). Both are rows of
-- webhook.secret: an endpoint may have either or both, and each kind is rotated by itself.

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

-- The message never contains the secret.
CREATE OR REPLACE FUNCTION webhook.require_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF starts_with(secret, 'whsk_') THEN
        PERFORM webhook.require_private_key(secret);
    ELSIF (secret ~ '^whsec_([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$'
        AND octet_length(decode(substr(secret, 7), 'base64')) BETWEEN 24 AND 64) IS NOT TRUE THEN
        RAISE EXCEPTION 'signing secret is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A secret is whsec_ followed by 24 to 64 bytes in base64; a private key is whsk_ followed by 64.',
            HINT = 'Leave it out, and the extension makes one.';
    END IF;
END $$;

-- Whatever the table would refuse is refused here first: its messages show the secret. A request carries a signature by each
-- secret, and there are receivers that take only so much of a header.
CREATE OR REPLACE FUNCTION webhook.check_secret() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    ELSIF (SELECT count(*) >= most_secrets FROM webhook.secret s
           WHERE s.endpoint_id = NEW.endpoint_id AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())) THEN
        RAISE EXCEPTION 'the endpoint has % secrets already', most_secrets USING ERRCODE = 'program_limit_exceeded',
            DETAIL = 'Requests are signed with each of them until it expires.',
            HINT = 'Wait until one expires, or end them all: webhook_rotate_secret(.., overlap => ''0 s'').';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER check_secret BEFORE INSERT OR UPDATE ON webhook.secret
    FOR EACH ROW EXECUTE FUNCTION webhook.check_secret();

-- The one that is signed with longest: the newest.
CREATE OR REPLACE FUNCTION webhook.newest_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT s.secret FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'whsec_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);

CREATE OR REPLACE FUNCTION webhook.public_half(key text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    RETURN 'whpk_' || encode(substr(decode(substr(key, 6), 'base64'), 33), 'base64');

-- The public key of the newest private one; null where there is none.
CREATE OR REPLACE FUNCTION webhook.newest_public_key(endpoint text) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT webhook.public_half(s.secret) FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'whsk_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);
END $$;

-- Of an endpoint that was made without one, or whose secrets have all expired, when it is first needed.
CREATE OR REPLACE FUNCTION webhook.first_secret(endpoint_id int) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made text := webhook.new_secret();
BEGIN
    INSERT INTO webhook.secret (endpoint_id, secret) VALUES (first_secret.endpoint_id, made);
    RETURN made;
END $$;

-- A new secret, made here unless it is given. Until the overlap has passed requests are signed with the old one too, so
-- that the receiver may take over the new one at any moment of it. A key replaces keys, and leaves secrets as they are.
CREATE OR REPLACE FUNCTION webhook.rotate_secret(endpoint text, overlap interval, secret text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    rotated_id int := webhook.require_endpoint(rotate_secret.endpoint);
    new_secret text := coalesce(rotate_secret.secret, webhook.new_secret());
BEGIN
    IF (overlap >= interval '0' AND overlap <= interval '1000 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'overlap must be between 0 and 1000 days' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''0 s'' to revoke the old secret immediately.';
    END IF;
    -- Two who rotate at the same time: one after the other, or both would be the newest.
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

-- Returns the public key: the private one leaves the database by webhook.secret alone.
CREATE OR REPLACE FUNCTION webhook.rotate_key(endpoint text, overlap interval, key text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_key CONSTANT text := coalesce(key, webhook.new_private_key());
BEGIN
    PERFORM webhook.require_private_key(new_key);
    PERFORM webhook.rotate_secret(endpoint, overlap, new_key);
    RETURN webhook.public_half(new_key);
END $$;
