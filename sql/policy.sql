-- Policies: when to try again, and what an answer means.

INSERT INTO webhook.policy (name, preset) VALUES ('standard', true);

CREATE FUNCTION webhook.protect_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.preset THEN
        RAISE EXCEPTION 'policy "%" is a preset and cannot be changed', OLD.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Make a copy under a name of your own: INSERT INTO webhook.policy (name, ..) VALUES (..).';
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.preset THEN
        RAISE EXCEPTION 'policy "%" cannot be made a preset', NEW.name
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Presets come with the extension; leave the column preset at false.';
    END IF;
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND NEW.name <> OLD.name) THEN
        IF EXISTS (SELECT FROM webhook.endpoint e WHERE e.policy = OLD.name) THEN
            RAISE EXCEPTION 'policy "%" is in use', OLD.name
                USING ERRCODE = 'dependent_objects_still_exist',
                      HINT = 'Give its endpoints another one first: UPDATE webhook.endpoint SET policy = ..';
        END IF;
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE TRIGGER protect_policy BEFORE INSERT OR UPDATE OR DELETE ON webhook.policy
    FOR EACH ROW EXECUTE FUNCTION webhook.protect_policy();

-- The policy of that name, or the default one: an endpoint restored before its policy must not stop anything.
CREATE FUNCTION webhook.policy_of(policy_name text) RETURNS webhook.policy
    LANGUAGE sql STABLE
    RETURN (SELECT p FROM webhook.policy p WHERE p.name IN (policy_name, 'standard')
            ORDER BY p.name = policy_name DESC LIMIT 1);

-- What an outcome means under a policy: success, retry, final, disable, or release (our own trouble: put
-- it back, the attempt does not count). A status that was read decides, whatever came after it.
CREATE FUNCTION webhook.verdict(p webhook.policy, status_code int, error_kind text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE
        WHEN status_code <@ p.success_status THEN 'success'
        WHEN status_code <@ p.disable_status THEN 'disable'
        WHEN status_code <@ p.retry_status THEN 'retry'
        WHEN status_code IS NOT NULL THEN 'final'
        WHEN error_kind IN ('local', 'released') THEN 'release'
        WHEN error_kind = ANY (p.retry_errors) THEN 'retry'
        ELSE 'final'
    END;

-- The wait after that many attempts. `draw`, between 0 and 1, places it between the jitter's bounds.
CREATE FUNCTION webhook.backoff_seconds(p webhook.policy, attempts int, draw float8) RETURNS float8
    LANGUAGE sql IMMUTABLE
    RETURN CASE p.backoff
        WHEN 'fixed' THEN extract(epoch FROM p.initial_delay)::float8
        WHEN 'schedule' THEN extract(epoch FROM p.schedule[least(greatest(attempts, 1), cardinality(p.schedule))])::float8
        -- With a factor of at most 100, an exponent of 100 is far beyond max_delay and still a float8.
        ELSE least(extract(epoch FROM p.initial_delay)::float8 * power(p.factor, least(greatest(attempts, 1) - 1, 100)),
                   extract(epoch FROM p.max_delay)::float8)
    END * (1 - p.jitter_down + draw * (p.jitter_down + p.jitter_up));
