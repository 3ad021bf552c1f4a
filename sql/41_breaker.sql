-- The circuit breaker: when an endpoint is left alone, and how it comes back.
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
-- good. A success sets the count to 0. While it is OPEN nothing is claimed; 43_open_breaker.sql has what becomes of what is due.
--
-- The probe is a lease. Claiming it locks the row of the breaker, writes which claim it is and until when it is waited
-- for, and nobody sends another one meanwhile. Only that claim's outcome moves HALF_OPEN; what else was still under
-- way when the breaker opened changes nothing but the log. If the outcome does not come (the worker died, a person
-- cancelled the delivery), the lease runs out and another delivery is the probe; but not while the old one is still
-- SENDING, since it may just be slow: recovery ends that.
--
-- When the breaker closes, what has piled up must not fall upon an endpoint that has just got up. `ramp` bounds what is
-- in flight: 1 at first, one more with each success, so it doubles with each round, until it is past 100 and ends.
-- `retries_before` makes retries that wait for their time due at once; written once, where an UPDATE of each of them would
-- take as long as they are many.
--
-- settle() hands in the outcomes of a batch in the order in which they ended, and this is what each of them does.

CREATE FUNCTION webhook.cooldown(p webhook.policy, trips int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN greatest(make_interval(secs => least(extract(epoch FROM p.cooldown)::float8 * power(2::float8, least(trips - 1, 60)),
                                                extract(epoch FROM p.max_cooldown)::float8)),
                    webhook.shortest_wait());

CREATE FUNCTION webhook.closed(b webhook.breaker, since timestamptz) RETURNS webhook.breaker
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF b.state <> 'CLOSED' THEN
        b.ramp := 1;
    END IF;
    b.state := 'CLOSED';
    b.consecutive_failures := 0;
    b.trips := 0;
    b.opened_at := NULL;
    b.reason := NULL;
    b.probe_at := NULL;
    b.probe_event_id := NULL;
    b.probe_claim_seq := NULL;
    b.retries_before := since;
    RETURN b;
END $$;

CREATE FUNCTION webhook.opened(b webhook.breaker, p webhook.policy, since timestamptz) RETURNS webhook.breaker
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    b.state := 'OPEN';
    b.opened_at := coalesce(b.opened_at, since);
    b.reason := format('%s failures in a row, the last: %s', b.consecutive_failures, b.last_error);
    b.trips := b.trips + 1;
    b.probe_at := since + webhook.cooldown(p, b.trips);
    b.probe_event_id := NULL;
    b.probe_claim_seq := NULL;
    b.ramp := NULL;
    b.retries_before := NULL;
    RETURN b;
END $$;

-- Where an endpoint has got to, outcome by outcome, and what there is to tell about it; `is_own` where the outcome was that
-- of an event of ours.
CREATE TYPE webhook.news AS (kind text, reason text, is_own boolean);
CREATE TYPE webhook.course AS (breaker webhook.breaker, disabled_reason text, news webhook.news[]);

CREATE FUNCTION webhook.course_disabled(course webhook.course, reason text, is_own boolean) RETURNS webhook.course
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN course.disabled_reason IS NULL
                THEN ROW(course.breaker, reason, course.news || ROW('disabled', reason, is_own)::webhook.news)::webhook.course
                ELSE course END;

CREATE FUNCTION webhook.course_step(
    course webhook.course, start webhook.course, p webhook.policy, event_id uuid, claim_seq bigint, is_own boolean,
    verdict text, has_failed boolean, error_kind text, error text, finished_at timestamptz) RETURNS webhook.course
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b webhook.breaker;
    is_probe boolean;
    is_test boolean;
    failures int;
BEGIN
    IF course IS NULL THEN
        course := start;
    END IF;
    b := course.breaker;
    is_probe := b.state = 'HALF_OPEN' AND (b.probe_event_id, b.probe_claim_seq) = (event_id, claim_seq);
    is_test := b.test_event_id IS NOT DISTINCT FROM event_id;

    IF verdict = 'release' OR error_kind = 'event_deleted' THEN
        -- Not sent after all, so another one may be; after trouble of our own in a second, so as not to spin.
        IF is_probe THEN
            b.state := 'OPEN';
            b.probe_at := finished_at + CASE error_kind WHEN 'local' THEN interval '1 s' ELSE interval '0' END;
            b.probe_event_id := NULL;
            b.probe_claim_seq := NULL;
        END IF;
    ELSIF verdict = 'success' THEN
        IF is_probe OR is_test THEN
            IF b.state <> 'CLOSED' THEN
                course.news := course.news || ROW('closed', NULL, is_own)::webhook.news;
                b := webhook.closed(b, finished_at);
            END IF;
            IF is_test AND course.disabled_reason = 'exhausted' THEN
                course.disabled_reason := NULL;
                b := webhook.closed(b, finished_at);
            END IF;
        ELSIF b.state = 'CLOSED' AND b.ramp IS NOT NULL THEN
            b.ramp := nullif(b.ramp + 1, 128);
        END IF;
        IF b.state = 'CLOSED' THEN
            b.consecutive_failures := 0;
        END IF;
    ELSIF NOT is_test THEN
        IF is_probe THEN
            b.consecutive_failures := b.consecutive_failures + 1;
            b.last_failure_at := finished_at;
            b.last_error := error;
            IF p.failure_threshold > 0 THEN
                b := webhook.opened(b, p, finished_at);
            ELSE
                -- Switched off meanwhile.
                course.news := course.news || ROW('closed', NULL, is_own)::webhook.news;
                failures := b.consecutive_failures;
                b := webhook.closed(b, finished_at);
                b.consecutive_failures := failures;
            END IF;
        ELSIF b.state = 'CLOSED' THEN
            b.last_failure_at := finished_at;
            b.last_error := error;
            b.ramp := CASE WHEN b.ramp > 1 THEN b.ramp / 2 ELSE b.ramp END;
            IF has_failed OR p.breaker_counts = 'attempts' THEN
                b.consecutive_failures := b.consecutive_failures + 1;
                IF b.consecutive_failures = p.warn_threshold THEN
                    course.news := course.news || ROW('degraded', error, is_own)::webhook.news;
                END IF;
                IF p.failure_threshold > 0 AND b.consecutive_failures >= p.failure_threshold THEN
                    IF p.on_trip = 'disable' THEN
                        course := webhook.course_disabled(course, 'tripped', is_own);
                    ELSE
                        b := webhook.opened(b, p, finished_at);
                        course.news := course.news || ROW('opened', b.reason, is_own)::webhook.news;
                    END IF;
                END IF;
            END IF;
        END IF;
        IF verdict = 'disable' THEN
            course := webhook.course_disabled(course, 'gone', is_own);
        ELSIF verdict = 'retry' AND has_failed AND p.on_exhausted = 'disable' THEN
            course := webhook.course_disabled(course, 'exhausted', is_own);
        END IF;
    END IF;

    IF is_test AND verdict <> 'release' THEN
        b.test_event_id := NULL;
    END IF;
    course.breaker := b;
    RETURN course;
END $$;

CREATE AGGREGATE webhook.follow(
    start webhook.course, p webhook.policy, event_id uuid, claim_seq bigint, is_own boolean, verdict text, has_failed boolean,
    error_kind text, error text, finished_at timestamptz) (
    sfunc = webhook.course_step, stype = webhook.course);

CREATE FUNCTION webhook.course_start(endpoint_id int, b webhook.breaker, disabled_reason text) RETURNS webhook.course
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF b.endpoint_id IS NULL THEN
        b.endpoint_id := course_start.endpoint_id;
        b.state := 'CLOSED';
        b.consecutive_failures := 0;
        b.trips := 0;
    END IF;
    RETURN ROW(b, disabled_reason, '{}'::webhook.news[])::webhook.course;
END $$;

-- Success changes nothing here.
CREATE FUNCTION webhook.is_at_rest(b webhook.breaker) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN b.state = 'CLOSED' AND b.consecutive_failures = 0 AND b.ramp IS NULL AND b.test_event_id IS NULL;

-- Moves the breakers of these endpoints along the outcomes that the fence lets pass, disables endpoints, and leaves
-- alerts. Returns the places of the outcomes that it has followed, which are now locked, in the arrays; the others are
-- late, or somebody has locked the delivery, the breaker or the endpoint.
CREATE FUNCTION webhook.follow_outcomes(
    at_stake int[], event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], error_kinds text[],
    errors text[], finished_at_epochs float8[]) RETURNS bigint[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    followed bigint[];
BEGIN
    WITH rule AS MATERIALIZED (
        SELECT e.id AS endpoint_id, webhook.policy_of(e.policy) AS policy FROM webhook.endpoint e WHERE e.id = ANY (at_stake)
    ), outcome AS MATERIALIZED (
        SELECT o.place, o.event_id, o.endpoint_id, o.claim_seq, o.error_kind, coalesce(o.error, 'HTTP ' || o.status_code) AS error,
               to_timestamp(o.finished_at_epoch) AS finished_at, webhook.verdict(r.policy, o.status_code, o.error_kind) AS verdict
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, error_kinds, errors, finished_at_epochs) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, error_kind, error, finished_at_epoch, place)
        JOIN rule r ON r.endpoint_id = o.endpoint_id
    ), breaker AS MATERIALIZED (
        SELECT b.endpoint_id, b AS row FROM webhook.breaker b
        WHERE b.endpoint_id = ANY (at_stake)
        FOR UPDATE SKIP LOCKED
    ), may_switch AS MATERIALIZED (
        SELECT DISTINCT o.endpoint_id FROM outcome o
        JOIN rule r ON r.endpoint_id = o.endpoint_id
        LEFT JOIN breaker b ON b.endpoint_id = o.endpoint_id
        WHERE o.verdict = 'disable' OR (b.row).test_event_id IS NOT NULL
           OR (o.verdict IN ('retry', 'final') AND 'disable' IN ((r.policy).on_trip, (r.policy).on_exhausted))
    ), endpoint AS MATERIALIZED (
        SELECT e.id, e.disabled_reason FROM may_switch m
        JOIN webhook.endpoint e ON e.id = m.endpoint_id
        FOR NO KEY UPDATE OF e SKIP LOCKED
    ), start AS MATERIALIZED (
        SELECT r.endpoint_id, r.policy, webhook.course_start(r.endpoint_id, b.row, e.disabled_reason) AS course
        FROM rule r
        LEFT JOIN breaker b ON b.endpoint_id = r.endpoint_id
        LEFT JOIN endpoint e ON e.id = r.endpoint_id
        WHERE (b.endpoint_id IS NOT NULL OR NOT EXISTS (SELECT FROM webhook.breaker x WHERE x.endpoint_id = r.endpoint_id))
          AND (e.id IS NOT NULL OR NOT EXISTS (SELECT FROM may_switch m WHERE m.endpoint_id = r.endpoint_id))
    ), judged AS MATERIALIZED (
        SELECT o.*, q.event_type LIKE 'webhook.%' AND q.event_type <> 'webhook.test' AS is_own, q.event_type,
               o.verdict IN ('final', 'disable') OR (o.verdict = 'retry' AND q.attempts >= q.max_attempts) AS has_failed
        FROM outcome o
        CROSS JOIN LATERAL (
            SELECT q.event_type, q.attempts, q.max_attempts FROM webhook.delivery_queue q
            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
              AND q.claim_seq = o.claim_seq AND q.status = 'SENDING'
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) q
        WHERE EXISTS (SELECT FROM start s WHERE s.endpoint_id = o.endpoint_id)
    ), course AS MATERIALIZED (
        SELECT j.endpoint_id,
               webhook.follow(s.course, s.policy, j.event_id, j.claim_seq, j.is_own, j.verdict, j.has_failed,
                              j.error_kind, j.error, j.finished_at
                              ORDER BY j.finished_at, j.place) AS course
        FROM judged j JOIN start s ON s.endpoint_id = j.endpoint_id
        GROUP BY j.endpoint_id
    ), moved AS (
        INSERT INTO webhook.breaker AS old SELECT ((c.course).breaker).* FROM course c
        ON CONFLICT (endpoint_id) DO UPDATE
        SET state = excluded.state, consecutive_failures = excluded.consecutive_failures,
            last_failure_at = excluded.last_failure_at, last_error = excluded.last_error, opened_at = excluded.opened_at,
            reason = excluded.reason, trips = excluded.trips, probe_at = excluded.probe_at,
            probe_event_id = excluded.probe_event_id, probe_claim_seq = excluded.probe_claim_seq, ramp = excluded.ramp,
            retries_before = excluded.retries_before,
            -- A row that was not there has been made by a test since.
            test_event_id = CASE WHEN EXISTS (SELECT FROM breaker b WHERE b.endpoint_id = old.endpoint_id)
                                 THEN excluded.test_event_id ELSE old.test_event_id END
        WHERE old IS DISTINCT FROM excluded
    ), switched AS (
        UPDATE webhook.endpoint e
        SET disabled_at = CASE WHEN (c.course).disabled_reason IS NOT NULL THEN now() END,
            disabled_reason = (c.course).disabled_reason
        FROM course c JOIN endpoint m ON m.id = c.endpoint_id
        WHERE e.id = c.endpoint_id AND e.disabled_reason IS DISTINCT FROM (c.course).disabled_reason
    ), alerted AS (
        INSERT INTO webhook.alert (endpoint_id, kind, reason, is_own, deliveries, event_ids)
        SELECT c.endpoint_id, n.kind, n.reason, n.is_own, 1, '{}' FROM course c CROSS JOIN LATERAL unnest((c.course).news) AS n
        UNION ALL
        SELECT j.endpoint_id, 'failed', (array_agg(j.error ORDER BY j.finished_at DESC, j.place DESC))[1], false, count(*),
               (array_agg(j.event_id ORDER BY j.place))[:10]
        FROM judged j WHERE j.has_failed AND j.event_type NOT LIKE 'webhook.%'
        GROUP BY j.endpoint_id
    )
    SELECT coalesce(array_agg(j.place), '{}') INTO followed FROM judged j;
    RETURN followed;
END $$;

CREATE FUNCTION webhook.probe_is_due(b webhook.breaker) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN b.state <> 'CLOSED' AND b.probe_at <= now()
        AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                        WHERE q.event_id = b.probe_event_id AND q.endpoint_id = b.endpoint_id
                          AND q.claim_seq = b.probe_claim_seq AND q.status = 'SENDING');
END $$;

-- Where claim() finds the deliveries that go out although nothing else may: one probe for each breaker that is due
-- for it, and tests. The probe is what has waited longest, retries that wait for their time included; not what has to wait for
-- its turn or was superseded. Of that no more than a page is passed over, and then set aside or cancelled as in claim(), so that
-- the next call gets further.
CREATE FUNCTION webhook.pick_exceptions(endpoint_ids int[], our_origin text) RETURNS tid[]
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
        SELECT due.endpoint_id, q.place, q.event_id, q.claim_seq, (served.policy).connect_timeout + (served.policy).timeout AS lease
        FROM due
        CROSS JOIN LATERAL (
            SELECT webhook.policy_of(e.policy) AS policy FROM webhook.endpoint e
            WHERE e.id = due.endpoint_id
              AND webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, due.state) IN ('open', 'half_open')
            LIMIT 1
        ) served
        CROSS JOIN LATERAL (
            SELECT met.place, (met.q).event_id, (met.q).claim_seq
            FROM (SELECT q.ctid AS place, q FROM webhook.delivery_queue q
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
    SELECT array_agg(probe.place) INTO probes FROM probe;

    PERFORM webhook.set_followers_aside(webhook.cancel_superseded(array_agg(q.place)))
    FROM webhook.breaker b
    CROSS JOIN LATERAL (
        SELECT q.ctid AS place FROM webhook.delivery_queue q
        WHERE q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, NULL) AND num_nonnulls(q.ordering_key, q.coalesce_key) > 0
        ORDER BY q.next_attempt_at, q.event_id
        LIMIT page_size FOR UPDATE SKIP LOCKED
    ) q
    WHERE b.endpoint_id = ANY (endpoint_ids) AND b.state <> 'CLOSED' AND webhook.probe_is_due(b)
    HAVING count(*) > 0;

    SELECT array_agg(q.place) INTO tests
    FROM webhook.breaker b
    CROSS JOIN LATERAL (SELECT FROM webhook.endpoint e WHERE e.id = b.endpoint_id AND e.origin = our_origin LIMIT 1) ours
    CROSS JOIN LATERAL (
        SELECT q.ctid AS place FROM webhook.delivery_queue q
        WHERE q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, NULL)
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) q
    WHERE b.endpoint_id = ANY (endpoint_ids) AND b.test_event_id IS NOT NULL;

    RETURN probes || tests;
END $$;

-- Ends the bringing forward of retries where there are none left to bring.
CREATE FUNCTION webhook.end_catching_up(endpoint_ids int[]) RETURNS void
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

CREATE FUNCTION webhook.reset_breaker(endpoint text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.close_breaker(webhook.require_endpoint(endpoint));
END $$;

-- Closed now, by a person: counter 0, waiting retries due at once.
CREATE FUNCTION webhook.close_breaker(endpoint_id int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO webhook.alert (endpoint_id, kind, reason)
    SELECT b.endpoint_id, 'closed', 'closed by hand' FROM webhook.breaker b
    WHERE b.endpoint_id = close_breaker.endpoint_id AND b.state <> 'CLOSED' FOR UPDATE;

    UPDATE webhook.breaker b
    SET (state, consecutive_failures, trips, opened_at, reason, probe_at, probe_event_id, probe_claim_seq, ramp, retries_before) =
        (SELECT c.state, c.consecutive_failures, c.trips, c.opened_at, c.reason, c.probe_at, c.probe_event_id,
                c.probe_claim_seq, c.ramp, c.retries_before
         FROM webhook.closed(b, now()) c)
    WHERE b.endpoint_id = close_breaker.endpoint_id;
    PERFORM webhook.wake();
END $$;
