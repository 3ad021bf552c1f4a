-- While a breaker is open: its endpoint's deliveries wait, unless the policy says otherwise.

-- When to look again at an endpoint that has a breaker to follow; null if only a commit or an outcome can change that.
-- `turns_away`: due deliveries do not wait meanwhile, and webhook.turn_away() takes care of them.
CREATE OR REPLACE FUNCTION webhook.next_look_at_breaker(b webhook.breaker, is_served boolean, policy_name text, first_due timestamptz,
                                           OUT due_at timestamptz, OUT turns_away boolean)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    when_open text := (webhook.policy_of(policy_name)).when_open;
    test_due_at timestamptz;
BEGIN
    turns_away := false;
    IF b.test_event_id IS NOT NULL THEN
        SELECT q.next_attempt_at INTO test_due_at FROM webhook.delivery_queue q
        WHERE q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id AND q.status = 'PENDING';
    END IF;
    IF test_due_at <= now() OR NOT is_served THEN
        due_at := test_due_at;
        RETURN;
    ELSIF b.state = 'CLOSED' THEN
        due_at := CASE WHEN b.retries_before IS NULL THEN first_due ELSE least(first_due, now()) END;
    ELSIF webhook.probe_is_due(b) THEN
        -- A retry may be the probe before its time. This looks for one only if nothing is due, or the search would go through
        -- the whole backlog.
        due_at := CASE WHEN first_due <= now() THEN first_due
                       WHEN EXISTS (SELECT FROM webhook.delivery_queue q
                                    WHERE q.endpoint_id = b.endpoint_id AND webhook.may_be_probe(q))
                       THEN now() ELSE first_due END;
    ELSE
        turns_away := when_open <> 'hold';
        due_at := CASE WHEN b.probe_at > now() THEN b.probe_at END;
        IF when_open IN ('fail', 'attempt') THEN
            due_at := least(due_at, (SELECT q.next_attempt_at FROM webhook.delivery_queue q
                                     WHERE q.endpoint_id = b.endpoint_id AND webhook.awaits_its_time(q) AND q.next_attempt_at > now()
                                     ORDER BY q.next_attempt_at, q.event_id LIMIT 1));
        END IF;
    END IF;
    -- A test that waits keeps nothing else back.
    due_at := least(due_at, test_due_at);
END $$;

-- `skip` cancels a due delivery that was emitted after the breaker opened, unless it was tried since, or a person asked for
-- it.
CREATE OR REPLACE FUNCTION webhook.is_skipped(created_at timestamptz, wait_reason text, opened_at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN created_at >= opened_at AND wait_reason = 'new';

-- Handles due deliveries while a breaker is not closed: `skip` cancels those that were emitted since it opened and holds the
-- rest, `fail` fails them, and `attempt` takes one attempt off them, without sending anything. It handles at most that many in
-- all, and returns how many.
CREATE OR REPLACE FUNCTION webhook.turn_away(endpoint_ids int[], page_size int) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    our_origin text := webhook.origin();
    guarded record;
    turned_away bigint := 0;
    ids uuid[];
    spent_ids uuid[];
BEGIN
    FOR guarded IN
        SELECT b.endpoint_id, b.opened_at, b.test_event_id, p.policy
        FROM webhook.breaker b
        JOIN webhook.endpoint e ON e.id = b.endpoint_id
        CROSS JOIN LATERAL (SELECT webhook.policy_of(e.policy) AS policy) p
        WHERE b.endpoint_id = ANY (endpoint_ids) AND NOT webhook.probe_is_due(b) AND (p.policy).when_open <> 'hold'
          AND webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) IN ('open', 'half_open')
    LOOP
        SELECT array_agg(due.event_id) INTO ids
        FROM (SELECT q.event_id FROM webhook.delivery_queue q
              WHERE q.endpoint_id = guarded.endpoint_id AND webhook.is_ready(q, NULL)
                AND q.event_id IS DISTINCT FROM guarded.test_event_id
                AND q.next_attempt_at >= CASE (guarded.policy).when_open WHEN 'skip' THEN guarded.opened_at ELSE '-infinity' END
                AND ((guarded.policy).when_open <> 'skip' OR webhook.is_skipped(q.created_at, q.wait_reason, guarded.opened_at))
              ORDER BY q.next_attempt_at, q.event_id
              LIMIT page_size - turned_away FOR UPDATE SKIP LOCKED) due;
        CONTINUE WHEN ids IS NULL;
        turned_away := turned_away + cardinality(ids);

        CASE (guarded.policy).when_open
            WHEN 'skip' THEN
                PERFORM webhook.finish_queued(ids, array_fill(guarded.endpoint_id, ARRAY[cardinality(ids)]), 'CANCELLED', 'skipped');
            WHEN 'fail' THEN
                PERFORM webhook.fail_queued(ids, array_fill(guarded.endpoint_id, ARRAY[cardinality(ids)]), 'circuit_open');
            WHEN 'attempt' THEN
                WITH judged AS MATERIALIZED (
                    SELECT q.ctid AS row_id, q.event_id, q.claim_seq + 1 AS claim_seq, q.attempts + 1 AS attempts,
                           webhook.judge(guarded.policy, q.attempts + 1, q.max_attempts, NULL, 'circuit_open', NULL,
                                         now(), random()) AS judgement
                    FROM unnest(ids) AS i (event_id)
                    JOIN webhook.delivery_queue q ON q.event_id = i.event_id AND q.endpoint_id = guarded.endpoint_id
                ), waiting AS (
                    UPDATE webhook.delivery_queue q
                    SET attempts = j.attempts, claim_seq = j.claim_seq, wait_reason = 'retry', last_attempt_at = now(),
                        last_status_code = NULL, reason = (j.judgement).reason,
                        last_error = webhook.reason_in_words((j.judgement).reason), duration_ms = NULL,
                        next_attempt_at = (j.judgement).next_attempt_at
                    FROM judged j WHERE q.ctid = j.row_id AND (j.judgement).status = 'PENDING'
                ), logged AS (
                    INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, attempt, verdict, reason, error, duration_ms, finished_at)
                    SELECT j.event_id, guarded.endpoint_id, j.claim_seq, j.attempts, (j.judgement).verdict, (j.judgement).reason,
                           webhook.reason_in_words((j.judgement).reason), 0, now()
                    FROM judged j
                    ON CONFLICT DO NOTHING
                )
                SELECT array_agg(j.event_id) INTO spent_ids FROM judged j WHERE (j.judgement).status = 'FAILED';
                IF spent_ids IS NOT NULL THEN
                    PERFORM webhook.fail_queued(spent_ids, array_fill(guarded.endpoint_id, ARRAY[cardinality(spent_ids)]),
                                                'circuit_open', attempts_spent => 1);
                END IF;
        END CASE;
        EXIT WHEN turned_away >= page_size;
    END LOOP;
    RETURN turned_away;
END $$;

-- Fails deliveries whose expires_at has passed, whatever the state of their endpoint; no sender claims them meanwhile. Fails
-- at most that many, and returns how many.
CREATE OR REPLACE FUNCTION webhook.expire_overdue(page_size int) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    our_origin text := webhook.origin();
    expired bigint;
BEGIN
    SELECT webhook.fail_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'expired') INTO expired
    FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
          WHERE q.expires_at <= now() AND q.status = 'PENDING'
            AND EXISTS (SELECT FROM webhook.endpoint e WHERE e.id = q.endpoint_id AND e.origin = our_origin OFFSET 0)
          ORDER BY q.expires_at
          LIMIT page_size FOR UPDATE SKIP LOCKED) q
    HAVING count(*) > 0;
    RETURN coalesce(expired, 0);
END $$;

-- Fails deliveries that have been due for longer than the policy's hold_for while their endpoint was open, paused or disabled
-- for as long. Fails at most that many in all, and returns how many.
CREATE OR REPLACE FUNCTION webhook.expire_kept_back(page_size int) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    our_origin text := webhook.origin();
    expired bigint;
BEGIN
    SELECT webhook.fail_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'expired') INTO expired
    FROM (SELECT q.event_id, q.endpoint_id
          FROM webhook.endpoint e
          LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
          CROSS JOIN LATERAL (SELECT (webhook.policy_of(e.policy)).hold_for AS hold_for) p
          CROSS JOIN LATERAL (
              SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
              WHERE q.endpoint_id = e.id AND webhook.is_ready(q, NULL) AND q.next_attempt_at < now() - p.hold_for
              ORDER BY q.next_attempt_at, q.event_id
              LIMIT page_size FOR UPDATE SKIP LOCKED
          ) q
          WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) NOT IN ('held', 'ready')
            AND least(b.opened_at, e.paused_at, e.disabled_at) < now() - p.hold_for
          LIMIT page_size) q
    HAVING count(*) > 0;
    RETURN coalesce(expired, 0);
END $$;

-- Does both, a page of each; returns how many deliveries failed.
CREATE OR REPLACE FUNCTION webhook.expire_waiting(page_size int) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.expire_overdue(page_size) + webhook.expire_kept_back(page_size);
END $$;
