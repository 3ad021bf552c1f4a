-- Operators pause an endpoint, resume it, and test it.

-- Returns the number of endpoints that it has paused, without those that were paused before.
CREATE OR REPLACE FUNCTION webhook.pause(endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    paused_id int;
    paused bigint := 0;
BEGIN
    FOREACH paused_id IN ARRAY webhook.addressed_endpoints(endpoint) LOOP
        UPDATE webhook.endpoint e SET paused_at = now() WHERE e.id = paused_id AND e.paused_at IS NULL;
        paused := paused + FOUND::int;
    END LOOP;
    RETURN paused;
END $$;

CREATE OR REPLACE FUNCTION webhook.sendable_now(of_endpoint int) RETURNS bigint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT count(*)
        FROM webhook.endpoint e
        LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
        JOIN webhook.delivery_queue q ON q.endpoint_id = e.id AND webhook.is_ready(q, b.retries_before)
        WHERE e.id = of_endpoint
          AND webhook.endpoint_state(e.origin = (SELECT webhook.origin()), e.disabled_at, e.paused_at, b.state) = 'ready');
END $$;

-- Resumes from paused, disabled or open: every waiting delivery is due now. Returns the number of deliveries that waited for
-- this, and may be claimed from now on.
CREATE OR REPLACE FUNCTION webhook.resume(endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    addressed int[] := webhook.addressed_endpoints(endpoint);
    resumed_id int;
    sendable_before bigint;
    freed bigint := 0;
BEGIN
    FOR resumed_id IN
        SELECT e.id FROM webhook.endpoint e
        WHERE e.id = ANY (addressed)
          AND (num_nonnulls(e.paused_at, e.disabled_at) > 0
               OR EXISTS (SELECT FROM webhook.breaker b WHERE b.endpoint_id = e.id))
        ORDER BY e.id
    LOOP
        sendable_before := webhook.sendable_now(resumed_id);
        UPDATE webhook.endpoint e SET paused_at = NULL, disabled_at = NULL, disabled_reason = NULL
        WHERE e.id = resumed_id AND num_nonnulls(e.paused_at, e.disabled_at) > 0;
        PERFORM webhook.close_breaker(resumed_id);
        freed := freed + greatest(0, webhook.sendable_now(resumed_id) - sendable_before);
    END LOOP;
    RETURN freed;
END $$;

-- Queues a test event for one endpoint, to be sent whatever its state, with the time its request may take by the policy and a
-- little more. An endpoint has at most one test at a time.
CREATE OR REPLACE FUNCTION webhook.queue_test(endpoint text, OUT test_id uuid, OUT tested_id int, OUT give_up_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    worker record;
BEGIN
    tested_id := webhook.require_endpoint(endpoint);
    test_id := webhook.new_id();

    SELECT s.state, s.reason INTO worker FROM webhook.status() s;
    IF worker.state IN ('not preloaded', 'no worker', 'disabled') OR (worker.state = 'held' AND webhook.foreign_endpoints() = 0) THEN
        RAISE EXCEPTION 'nothing is sent at the moment: %', worker.state USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = worker.reason, HINT = 'SELECT * FROM webhook_status() shows what the worker does.';
    ELSIF (SELECT e.origin FROM webhook.endpoint e WHERE e.id = tested_id) <> webhook.origin() THEN
        RAISE EXCEPTION 'endpoint "%" belongs to another installation', endpoint USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'SELECT webhook_adopt() takes over the endpoints of a restored or copied database.';
    END IF;

    -- The lock comes first, then the look: the snapshot of a statement that waited for the lock does not have the test of
    -- another session.
    INSERT INTO webhook.breaker (endpoint_id) VALUES (tested_id) ON CONFLICT DO NOTHING;
    PERFORM FROM webhook.breaker b WHERE b.endpoint_id = tested_id FOR UPDATE;
    IF EXISTS (SELECT FROM webhook.breaker b
               JOIN webhook.delivery_queue q ON q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id
               WHERE b.endpoint_id = tested_id) THEN
        RAISE EXCEPTION 'endpoint "%" is being tested already', endpoint USING ERRCODE = 'object_in_use',
            HINT = 'Try again when that test has ended.';
    END IF;
    UPDATE webhook.breaker b SET test_event_id = test_id WHERE b.endpoint_id = tested_id;

    INSERT INTO webhook.event (id, event_type, payload, created_at)
    VALUES (test_id, 'webhook.test', jsonb_build_object('message', 'This is a test.'), clock_timestamp());
    INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts)
    VALUES (test_id, tested_id, 'webhook.test', 1);
    PERFORM webhook.wake_endpoint(-tested_id, now());

    SELECT clock_timestamp() + p.connect_timeout + p.timeout + interval '5 s' INTO give_up_at
    FROM webhook.endpoint e, webhook.policy_of(e.policy) p WHERE e.id = tested_id;
END $$;

-- Returns the outcome and deletes all rows of the test; null as long as there is no outcome.
CREATE OR REPLACE FUNCTION webhook.end_test(
    test_id uuid, tested_id int, give_up_at timestamptz,
    OUT status text, OUT status_code int, OUT error text, OUT response text, OUT duration_ms int)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = test_id AND v.event_type = 'webhook.test') THEN
        RAISE EXCEPTION 'event % is not a test', test_id USING ERRCODE = 'invalid_parameter_value',
            HINT = 'CALL webhook_test() begins a test and ends it.';
    END IF;
    SELECT d.status, d.last_status_code, d.last_error, a.response_excerpt, d.duration_ms
    INTO status, status_code, error, response, duration_ms
    FROM webhook.delivery d
    LEFT JOIN webhook.attempt a ON a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id
    WHERE d.event_id = test_id AND d.status NOT IN ('PENDING', 'SENDING');
    IF NOT FOUND THEN
        IF clock_timestamp() < give_up_at THEN
            RETURN;
        END IF;
        status := 'CANCELLED';
        error := 'not sent in time';
    END IF;

    DELETE FROM webhook.delivery d WHERE d.event_id = test_id;
    DELETE FROM webhook.attempt a WHERE a.event_id = test_id;
    DELETE FROM webhook.event v WHERE v.id = test_id;
    UPDATE webhook.breaker b SET test_event_id = NULL WHERE b.endpoint_id = tested_id AND b.test_event_id = test_id;
    -- The breaker's row goes too if there was none before.
    DELETE FROM webhook.breaker b WHERE b.endpoint_id = tested_id AND b.last_failure_at IS NULL AND webhook.is_at_rest(b);
END $$;

-- Sends a test event, waits, and shows the outcome. A success closes the endpoint's breaker, and resumes an endpoint that was
-- disabled because a delivery had exhausted its attempts; a failure changes nothing.
--
-- Each look is a transaction of its own, so that no snapshot is held for as long as the endpoint takes. It is READ COMMITTED,
-- so that it sees the worker's commits and does not conflict with them.
-- pgspot: no search_path, because a procedure that commits cannot have one.
CREATE OR REPLACE PROCEDURE @extschema@.webhook_test(
    endpoint text, INOUT status text DEFAULT NULL, INOUT status_code int DEFAULT NULL, INOUT error text DEFAULT NULL,
    INOUT response text DEFAULT NULL, INOUT duration_ms int DEFAULT NULL)
    LANGUAGE plpgsql AS $$
DECLARE
    test record;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_test()');
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SELECT q.* INTO test FROM webhook.queue_test(endpoint) q;
    LOOP
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        SELECT t.status, t.status_code, t.error, t.response, t.duration_ms
        INTO status, status_code, error, response, duration_ms
        FROM webhook.end_test(test.test_id, test.tested_id, test.give_up_at) t;
        EXIT WHEN status IS NOT NULL;
        PERFORM pg_catalog.pg_sleep(0.01);
    END LOOP;
END $$;
