-- The circuit breaker: when an endpoint gets nothing but probes, and how it comes back.
--
--                  failure_threshold failures in a row
--        CLOSED ─────────────────────────────────────────> OPEN <─────────────────┐
--          ^                                                │                     │
--          │                                       after the cooldown,            │ the probe fails:
--          │                                       one delivery is sent           │ the cooldown doubles
--          │            the probe succeeds                  v                     │
--          └───────────────────────────────────────── HALF_OPEN ──────────────────┘
--
-- An endpoint that never failed has no row, and success writes nothing as long as there is nothing to reset.
--
-- CLOSED counts failures: every failed attempt or, with breaker_counts = final, every delivery that has failed for
-- good. A success sets the count to 0. A sender claims nothing while it is OPEN; 43_open_breaker.sql says what becomes of due
-- deliveries.
--
-- The probe is a lease. Claiming it locks the row of the breaker and writes which claim it is and until when the breaker
-- waits for it, and no sender sends another one meanwhile. Only that claim's outcome moves HALF_OPEN; the outcome of any other
-- request that was under way when the breaker opened changes nothing but the log. If the outcome does not come (the worker
-- died, a person cancelled the delivery), the lease runs out and another delivery is the probe; but not while the old one is
-- still SENDING, since it may just be slow: recovery ends that.
--
-- When the breaker closes, the backlog must not overload an endpoint that has just recovered: the sender begins with one
-- request at a time, and doubles that with each round. `retries_before` makes waiting retries due at once. It is written
-- once; an UPDATE of each retry would take as long as they are many.
--
-- settle() hands in the outcomes of a batch with their judgements. webhook.follow() applies each of them to the breaker, and
-- reads and writes nothing but its arguments.

CREATE OR REPLACE FUNCTION webhook.cooldown(p webhook.policy, trips int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN greatest(make_interval(secs => least(extract(epoch FROM p.cooldown)::float8 * power(2::float8, least(trips - 1, 60)),
                                                extract(epoch FROM p.max_cooldown)::float8)),
                    webhook.shortest_wait());

CREATE OR REPLACE FUNCTION webhook.closed(b webhook.breaker, since timestamptz, failures int DEFAULT 0) RETURNS webhook.breaker
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    b.state := 'CLOSED';
    b.consecutive_failures := failures;
    b.trips := 0;
    b.opened_at := NULL;
    b.probe_at := NULL;
    b.probe_event_id := NULL;
    b.probe_claim_seq := NULL;
    b.retries_before := since;
    RETURN b;
END $$;

CREATE OR REPLACE FUNCTION webhook.opened(b webhook.breaker, p webhook.policy, since timestamptz) RETURNS webhook.breaker
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    b.state := 'OPEN';
    b.opened_at := coalesce(b.opened_at, since);
    b.trips := b.trips + 1;
    b.probe_at := since + webhook.cooldown(p, b.trips);
    b.probe_event_id := NULL;
    b.probe_claim_seq := NULL;
    b.retries_before := NULL;
    RETURN b;
END $$;

CREATE OR REPLACE FUNCTION webhook.alert_about(endpoint_id int, kind text, reason text, error text, is_own boolean) RETURNS webhook.alert
    LANGUAGE sql STABLE
    RETURN ROW(NULL, endpoint_id, kind, reason, error, is_own, 1, '{}', now(), NULL)::webhook.alert;

-- The breaker of an endpoint after these outcomes, one by one in the order in which they ended; whether the endpoint is
-- disabled then, and the alerts on the way.
CREATE OR REPLACE FUNCTION webhook.follow(
    p webhook.policy, outcomes webhook.outcome[], INOUT b webhook.breaker, INOUT disabled_reason text,
    OUT alerts webhook.alert[])
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o webhook.outcome;
    is_own boolean;
    is_probe boolean;
    is_test boolean;
    has_tripped boolean;
    disabling text;
BEGIN
    alerts := '{}';
    FOREACH o IN ARRAY outcomes LOOP
        is_own := webhook.is_own(o.event_type) AND o.event_type <> 'webhook.test';
        is_probe := b.state = 'HALF_OPEN' AND b.probe_event_id = o.event_id AND b.probe_claim_seq = o.claim_seq;
        is_test := b.test_event_id IS NOT DISTINCT FROM o.event_id;
        has_tripped := false;

        IF o.verdict = 'release' OR o.reason IN ('event_deleted', 'invalid_event') THEN
            -- The probe was not sent, so another delivery may be the probe; after local trouble of the sender, when this one
            -- is due again.
            IF is_probe THEN
                b.state := 'OPEN';
                b.probe_at := coalesce(o.next_attempt_at, o.ended_at);
                b.probe_event_id := NULL;
                b.probe_claim_seq := NULL;
            END IF;

        ELSIF o.verdict = 'success' THEN
            IF (is_probe OR is_test) AND b.state <> 'CLOSED' THEN
                b := webhook.closed(b, o.ended_at);
                alerts := alerts || webhook.alert_about(b.endpoint_id, 'closed', NULL, NULL, is_own);
            END IF;
            IF is_test AND disabled_reason = 'exhausted' THEN
                disabled_reason := NULL;
                b := webhook.closed(b, o.ended_at);
            END IF;
            IF b.state = 'CLOSED' THEN
                b.consecutive_failures := 0;
            END IF;

        ELSIF NOT is_test THEN
            IF is_probe OR b.state = 'CLOSED' THEN
                b.last_failure_at := o.ended_at;
                b.reason := o.reason;
                b.last_error := o.error;
            END IF;
            IF is_probe THEN
                b.consecutive_failures := b.consecutive_failures + 1;
                IF p.failure_threshold > 0 THEN
                    b := webhook.opened(b, p, o.ended_at);
                ELSE
                    -- The policy has switched the breaker off meanwhile: it is closed, and keeps its count of failures.
                    b := webhook.closed(b, o.ended_at, b.consecutive_failures);
                    alerts := alerts || webhook.alert_about(b.endpoint_id, 'closed', NULL, NULL, is_own);
                END IF;
            ELSIF b.state = 'CLOSED' THEN
                IF o.status = 'FAILED' OR p.breaker_counts = 'attempts' THEN
                    b.consecutive_failures := b.consecutive_failures + 1;
                    IF b.consecutive_failures = p.warn_threshold THEN
                        alerts := alerts || webhook.alert_about(b.endpoint_id, 'degraded', o.reason, o.error, is_own);
                    END IF;
                    has_tripped := p.failure_threshold > 0 AND b.consecutive_failures >= p.failure_threshold;
                    IF has_tripped AND p.on_trip = 'open' THEN
                        b := webhook.opened(b, p, o.ended_at);
                        alerts := alerts || webhook.alert_about(
                            b.endpoint_id, 'opened', o.reason,
                            format('%s failures in a row, the last: %s', b.consecutive_failures, o.error), is_own);
                    END IF;
                END IF;
            END IF;
            disabling := CASE WHEN has_tripped AND p.on_trip = 'disable' THEN 'tripped'
                              WHEN o.verdict = 'disable' THEN 'gone'
                              WHEN o.verdict = 'retry' AND o.status = 'FAILED' AND p.on_exhausted = 'disable' THEN 'exhausted' END;
            IF disabling IS NOT NULL AND disabled_reason IS NULL THEN
                disabled_reason := disabling;
                alerts := alerts || webhook.alert_about(b.endpoint_id, 'disabled', disabling, o.error, is_own);
            END IF;
        END IF;

        IF is_test AND o.verdict <> 'release' THEN
            b.test_event_id := NULL;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION webhook.is_at_rest(b webhook.breaker) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN b.state = 'CLOSED' AND b.consecutive_failures = 0 AND b.test_event_id IS NULL;

-- Moves the breakers along the outcomes of a batch, disables endpoints, and leaves alerts. It waits for no lock: it does
-- nothing about endpoints that somebody has locked, or whose breaker, and returns them.
CREATE OR REPLACE FUNCTION webhook.move_breakers(outcomes webhook.outcome[]) RETURNS int[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    at_stake int[];
    guarded record;
    b webhook.breaker;
    followed record;
    locked int[] := '{}';
    first_failed int[] := '{}';
    moved webhook.breaker[] := '{}';
    alerts webhook.alert[] := '{}';
BEGIN
    at_stake := ARRAY(
        SELECT batch.endpoint_id
        FROM (SELECT o.endpoint_id, bool_or(o.verdict NOT IN ('success', 'release')) AS has_failed
              FROM unnest(outcomes) AS o WHERE o.verdict <> 'late' GROUP BY o.endpoint_id) batch
        WHERE (batch.has_failed OR EXISTS (SELECT FROM webhook.breaker b
                                           WHERE b.endpoint_id = batch.endpoint_id AND NOT webhook.is_at_rest(b)))
          AND EXISTS (SELECT FROM webhook.endpoint e WHERE e.id = batch.endpoint_id));
    IF cardinality(at_stake) = 0 THEN
        RETURN locked;
    END IF;

    -- This locks the endpoint too if an outcome may disable it, or a test may enable it.
    FOR guarded IN
        SELECT batch.endpoint_id, batch.outcomes, rule.policy, breaker.row AS breaker, endpoint.disabled_reason,
               (rule.may_switch AND endpoint.id IS NULL)
               OR ((breaker.row).endpoint_id IS NULL
                   AND EXISTS (SELECT FROM webhook.breaker x WHERE x.endpoint_id = batch.endpoint_id)) AS is_locked
        FROM (SELECT o.endpoint_id, array_agg(o ORDER BY o.ended_at, o.ordinal) AS outcomes,
                     bool_or(o.verdict = 'disable') AS says_gone, bool_or(o.status = 'FAILED' OR o.verdict = 'retry') AS has_failed
              FROM unnest(outcomes) AS o
              WHERE o.endpoint_id = ANY (at_stake) AND o.verdict <> 'late'
              GROUP BY o.endpoint_id) batch
        LEFT JOIN LATERAL (
            SELECT b AS row FROM webhook.breaker b WHERE b.endpoint_id = batch.endpoint_id LIMIT 1 FOR UPDATE SKIP LOCKED
        ) breaker ON true
        CROSS JOIN LATERAL (
            SELECT p AS policy, batch.says_gone OR (breaker.row).test_event_id IS NOT NULL
                             OR batch.has_failed AND 'disable' IN (p.on_trip, p.on_exhausted) AS may_switch
            FROM webhook.endpoint e, webhook.policy_of(e.policy) AS p WHERE e.id = batch.endpoint_id LIMIT 1
        ) rule
        LEFT JOIN LATERAL (
            SELECT e.id, e.disabled_reason FROM webhook.endpoint e
            WHERE e.id = batch.endpoint_id AND rule.may_switch LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) endpoint ON true
    LOOP
        IF guarded.is_locked THEN
            locked := locked || guarded.endpoint_id;
            CONTINUE;
        END IF;
        b := guarded.breaker;
        IF b.endpoint_id IS NULL THEN
            first_failed := first_failed || guarded.endpoint_id;
            b.endpoint_id := guarded.endpoint_id;
            b.state := 'CLOSED';
            b.consecutive_failures := 0;
            b.trips := 0;
        END IF;
        SELECT * INTO followed FROM webhook.follow(guarded.policy, guarded.outcomes, b, guarded.disabled_reason);
        moved := moved || followed.b;
        alerts := alerts || followed.alerts;
        IF followed.disabled_reason IS DISTINCT FROM guarded.disabled_reason THEN
            UPDATE webhook.endpoint e
            SET disabled_at = CASE WHEN followed.disabled_reason IS NOT NULL THEN now() END,
                disabled_reason = followed.disabled_reason
            WHERE e.id = guarded.endpoint_id;
        END IF;
    END LOOP;

    INSERT INTO webhook.breaker AS old SELECT m.* FROM unnest(moved) AS m
    ON CONFLICT (endpoint_id) DO UPDATE
    SET state = excluded.state, consecutive_failures = excluded.consecutive_failures,
        last_failure_at = excluded.last_failure_at, reason = excluded.reason, last_error = excluded.last_error,
        opened_at = excluded.opened_at, trips = excluded.trips, probe_at = excluded.probe_at,
        probe_event_id = excluded.probe_event_id, probe_claim_seq = excluded.probe_claim_seq,
        retries_before = excluded.retries_before,
        -- A test has made the row since, if it was not there before.
        test_event_id = CASE WHEN old.endpoint_id = ANY (first_failed) THEN old.test_event_id ELSE excluded.test_event_id END
    WHERE old IS DISTINCT FROM excluded;

    INSERT INTO webhook.alert (endpoint_id, kind, reason, error, is_own)
    SELECT a.endpoint_id, a.kind, a.reason, a.error, a.is_own FROM unnest(alerts) AS a;
    RETURN locked;
END $$;

CREATE OR REPLACE FUNCTION webhook.probe_is_due(b webhook.breaker) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN b.state <> 'CLOSED' AND b.probe_at <= now()
        AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                        WHERE q.event_id = b.probe_event_id AND q.endpoint_id = b.endpoint_id
                          AND q.claim_seq = b.probe_claim_seq AND q.status = 'SENDING');
END $$;

-- Finds the deliveries that go out although nothing else may, for pick(): one probe for each breaker that is due for it, and
-- tests. The probe is the delivery that has waited longest, retries before their time included; but none that has to wait for
-- its turn or was superseded. It passes over no more than a page of those, and then sets them aside or cancels them as pick()
-- does, so that the next call gets further.
CREATE OR REPLACE FUNCTION webhook.pick_exceptions(endpoint_ids int[], our_origin text) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    page_size CONSTANT int := 200;
    probes tid[];
    tests tid[];
BEGIN
    WITH due AS MATERIALIZED (
        SELECT b.endpoint_id, b.state FROM webhook.breaker b
        WHERE b.endpoint_id = ANY (endpoint_ids) AND b.state <> 'CLOSED' AND webhook.probe_is_due(b)
        FOR UPDATE SKIP LOCKED
    ), probe AS MATERIALIZED (
        SELECT due.endpoint_id, q.row_id, q.event_id, q.claim_seq, (served.policy).connect_timeout + (served.policy).timeout AS lease
        FROM due
        CROSS JOIN LATERAL (
            SELECT webhook.policy_of(e.policy) AS policy FROM webhook.endpoint e
            WHERE e.id = due.endpoint_id
              AND webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, due.state) IN ('open', 'half_open')
            LIMIT 1
        ) served
        CROSS JOIN LATERAL (
            SELECT met.row_id, (met.q).event_id, (met.q).claim_seq
            FROM (SELECT q.ctid AS row_id, q FROM webhook.delivery_queue q
                  WHERE q.endpoint_id = due.endpoint_id AND webhook.may_be_probe(q)
                  ORDER BY q.next_attempt_at, q.event_id
                  LIMIT page_size FOR UPDATE SKIP LOCKED) met
            WHERE webhook.has_its_turn(met.q) AND NOT webhook.is_superseded(met.q)
            LIMIT 1
        ) q
    ), half_open AS (
        UPDATE webhook.breaker b
        SET state = 'HALF_OPEN', probe_at = now() + probe.lease, probe_event_id = probe.event_id,
            probe_claim_seq = probe.claim_seq + 1
        FROM probe WHERE b.endpoint_id = probe.endpoint_id
    )
    SELECT array_agg(probe.row_id) INTO probes FROM probe;

    PERFORM webhook.set_followers_aside(webhook.cancel_superseded(array_agg(q.row_id)))
    FROM webhook.breaker b
    CROSS JOIN LATERAL (
        SELECT q.ctid AS row_id FROM webhook.delivery_queue q
        WHERE q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, NULL) AND num_nonnulls(q.ordering_key, q.coalesce_key) > 0
        ORDER BY q.next_attempt_at, q.event_id
        LIMIT page_size FOR UPDATE SKIP LOCKED
    ) q
    WHERE b.endpoint_id = ANY (endpoint_ids) AND b.state <> 'CLOSED' AND webhook.probe_is_due(b)
    HAVING count(*) > 0;

    SELECT array_agg(q.row_id) INTO tests
    FROM webhook.breaker b
    CROSS JOIN LATERAL (SELECT FROM webhook.endpoint e WHERE e.id = b.endpoint_id AND e.origin = our_origin LIMIT 1) ours
    CROSS JOIN LATERAL (
        SELECT q.ctid AS row_id FROM webhook.delivery_queue q
        WHERE q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, NULL)
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) q
    WHERE b.endpoint_id = ANY (endpoint_ids) AND b.test_event_id IS NOT NULL;

    RETURN probes || tests;
END $$;

CREATE OR REPLACE FUNCTION webhook.end_catching_up(endpoint_ids int[]) RETURNS void
    LANGUAGE sql
    BEGIN ATOMIC
        WITH caught_up AS MATERIALIZED (
            SELECT b.endpoint_id FROM webhook.breaker b
            WHERE b.endpoint_id = ANY (endpoint_ids) AND b.retries_before IS NOT NULL
              AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                              WHERE q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, b.retries_before) AND q.next_attempt_at > now())
            FOR UPDATE SKIP LOCKED
        )
        UPDATE webhook.breaker b SET retries_before = NULL FROM caught_up c WHERE b.endpoint_id = c.endpoint_id;
    END;

CREATE OR REPLACE FUNCTION webhook.reset_breaker(endpoint text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.close_breaker(webhook.require_endpoint(endpoint));
END $$;

CREATE OR REPLACE FUNCTION webhook.close_breaker(endpoint_id int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO webhook.alert (endpoint_id, kind, reason)
    SELECT b.endpoint_id, 'closed', 'by_hand' FROM webhook.breaker b
    WHERE b.endpoint_id = close_breaker.endpoint_id AND b.state <> 'CLOSED' FOR UPDATE;

    UPDATE webhook.breaker b
    SET (state, consecutive_failures, trips, opened_at, probe_at, probe_event_id, probe_claim_seq, retries_before) =
        (SELECT c.state, c.consecutive_failures, c.trips, c.opened_at, c.probe_at, c.probe_event_id, c.probe_claim_seq,
                c.retries_before
         FROM webhook.closed(b, now()) c)
    WHERE b.endpoint_id = close_breaker.endpoint_id;
    PERFORM webhook.wake_endpoint(-endpoint_id, now());
END $$;
