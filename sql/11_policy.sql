-- Policies: the time of the next attempt, and the meaning of an answer. A policy is a row, and a person adds one with an
-- INSERT.

CREATE OR REPLACE FUNCTION webhook.protect_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.preset THEN
        RAISE EXCEPTION 'policy "%" is a preset and cannot be changed', OLD.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('Make a copy and change that: SELECT webhook_copy_policy(%L, ''my_policy'').', OLD.name);
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
    IF TG_OP <> 'DELETE' AND NEW.connect_timeout + NEW.timeout >= webhook.setting('stale_after')::interval THEN
        RAISE WARNING 'requests under policy "%" may take longer than webhook.stale_after', NEW.name
            USING HINT = 'Shorten connect_timeout and timeout, or raise webhook.stale_after in postgresql.conf.';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE OR REPLACE TRIGGER protect_policy BEFORE INSERT OR UPDATE OR DELETE ON webhook.policy
    FOR EACH ROW EXECUTE FUNCTION webhook.protect_policy();

CREATE OR REPLACE FUNCTION webhook.copy_policy(source text, target text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_policy(source);
    INSERT INTO webhook.policy
    SELECT copied.*
    FROM webhook.policy p,
         jsonb_populate_record(p, jsonb_build_object('name', target, 'preset', false)) AS copied
    WHERE p.name = source;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'policy "%" already exists', target USING ERRCODE = 'duplicate_object',
        HINT = 'Choose another name, or change the one there is: UPDATE webhook.policy SET ..';
END $$;

CREATE OR REPLACE FUNCTION webhook.require_policy(policy_name text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.policy p WHERE p.name = policy_name) THEN
        RAISE EXCEPTION 'policy "%" does not exist', policy_name USING ERRCODE = 'undefined_object',
            HINT = coalesce(webhook.did_you_mean(policy_name, ARRAY(SELECT p.name FROM webhook.policy p)),
                            'SELECT name FROM webhook.policy lists them; INSERT INTO webhook.policy makes one.');
    END IF;
END $$;

-- The policy of that name, or the default one: an endpoint that a restore brings before its policy must not stop anything.
-- This is plpgsql, because the worker asks several times in each turn, and a query in an SQL function would be planned each
-- time.
CREATE OR REPLACE FUNCTION webhook.policy_of(policy_name text) RETURNS webhook.policy
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    policy webhook.policy;
BEGIN
    SELECT * INTO policy FROM webhook.policy p WHERE p.name = policy_name;
    IF NOT FOUND THEN
        SELECT * INTO policy FROM webhook.policy p WHERE p.name = 'standard';
    END IF;
    RETURN policy;
END $$;

-- The outcome is a status, or the code of an attempt without one. A status that was read decides, whatever came after it.
-- 40_judgement.sql goes on from here.
CREATE OR REPLACE FUNCTION webhook.verdict(p webhook.policy, status_code int, failure text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE
        WHEN status_code <@ p.success_status THEN 'success'
        WHEN status_code <@ p.disable_status THEN 'disable'
        WHEN status_code <@ p.retry_status THEN 'retry'
        WHEN status_code IS NOT NULL THEN 'final'
        WHEN failure IN ('local', 'released') THEN 'release'
        WHEN failure = ANY (p.retry_errors) OR failure = 'circuit_open' THEN 'retry'
        ELSE 'final'
    END;

-- The policy's own wait after that many attempts. `draw`, between 0 and 1, places it between the jitter's bounds.
CREATE OR REPLACE FUNCTION webhook.own_delay(p webhook.policy, attempts int, draw float8) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN make_interval(secs => greatest(0, CASE p.backoff
        WHEN 'fixed' THEN extract(epoch FROM p.initial_delay)::float8
        WHEN 'schedule' THEN extract(epoch FROM p.schedule[least(greatest(attempts, 1), cardinality(p.schedule))])::float8
        -- With a factor of at most 100, an exponent of 100 is far beyond max_delay and still a float8.
        ELSE least(extract(epoch FROM p.initial_delay)::float8 * power(p.factor, least(greatest(attempts, 1) - 1, 100)),
                   extract(epoch FROM p.max_delay)::float8)
    END) * (1 - p.jitter_down + draw * (p.jitter_down + p.jitter_up)));

-- The shortest wait before an attempt that nobody asked for, whatever a policy or an endpoint says.
CREATE OR REPLACE FUNCTION webhook.shortest_wait() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '100 ms';

-- The wait before the next attempt. The endpoint may have asked for one (Retry-After), but gets at most max_delay.
CREATE OR REPLACE FUNCTION webhook.backoff_delay(p webhook.policy, attempts int, retry_after interval, draw float8) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own interval := webhook.own_delay(p, attempts, draw);
    asked interval;
BEGIN
    IF p.retry_after = 'ignore' OR (retry_after >= interval '0') IS NOT TRUE THEN
        RETURN greatest(own, webhook.shortest_wait());
    END IF;
    asked := least(retry_after, p.max_delay);
    RETURN greatest(CASE p.retry_after WHEN 'exact' THEN asked ELSE greatest(own, asked) END, webhook.shortest_wait());
END $$;

-- The same for a policy's name, with a random draw; null if there is no such policy.
CREATE OR REPLACE FUNCTION webhook.backoff_delay(policy_name text, attempts int, retry_after interval) RETURNS interval
    LANGUAGE sql VOLATILE
    RETURN (SELECT webhook.backoff_delay(p, attempts, backoff_delay.retry_after, random()) FROM webhook.policy p WHERE p.name = policy_name);

CREATE OR REPLACE FUNCTION webhook.longest_request_seconds() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (SELECT ceil(max(extract(epoch FROM p.connect_timeout + p.timeout)))::bigint
            FROM webhook.policy p WHERE EXISTS (SELECT FROM webhook.endpoint e WHERE e.policy = p.name));
