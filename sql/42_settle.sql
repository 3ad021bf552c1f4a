-- Settling: what becomes of a delivery when its attempt has ended.
--
-- The worker hands in a batch of outcomes. An outcome is applied only while the delivery is still SENDING under the claim of
-- that outcome: a person may have cancelled or requeued it meanwhile, another worker may have claimed it again, and a late
-- result must not overwrite their changes; it is only logged. A batch that is settled twice changes nothing the second time.
-- settle() waits for no lock: if somebody has locked the delivery, or the breaker or endpoint that the outcome may change, it
-- hands the outcome back, and the worker brings it again.
--
-- A batch has the same effect as its outcomes one by one in the order in which they ended, however they were gathered.
--
-- Rows are found by their keys one by one (LATERAL, LIMIT) and then by their ctids, so that a plan made while the queue was
-- empty never reads all of it. The first statement locks them, so they stay where they are for the others.

-- Whether it is an event of the extension itself: an alert or a test.
CREATE OR REPLACE FUNCTION webhook.is_own(event_type text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN event_type LIKE 'webhook.%';

-- `ages_ms` says how long ago each attempt ended: the sender's clock never enters a table. An age beyond ten
-- years counts as ten years, so that each end of an attempt is a time that every reader can handle.
CREATE OR REPLACE FUNCTION webhook.ended_at(age_ms float8) RETURNS timestamptz
    LANGUAGE sql STABLE
    RETURN now() - make_interval(secs => least(greatest(age_ms, 0), 315360000000) / 1000);

-- Applies outcomes to deliveries, breakers, the log and alerts. Texts are cut, as senders do it already: an error or an excerpt
-- of any length would be in every view. Returns the claims whose outcomes are handed back; the finished deliveries for
-- webhook.add_figures(), as arrays of endpoint, status, latency class, deliveries, deliveries that were retried, and their
-- retries; and for the position of each endpoint, the earliest time of a delivery that may be claimed again or has its turn
-- now. `is_plain`: nothing has changed but that these deliveries were sent.
CREATE OR REPLACE FUNCTION webhook.settle(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], failures text[], errors text[],
    excerpts text[], retry_after_seconds float8[], durations_ms int[], ages_ms float8[],
    OUT locked_event_ids uuid[], OUT locked_endpoint_ids int[], OUT locked_claim_seqs bigint[],
    OUT finished jsonb, OUT queued_endpoint_ids int[], OUT queued_times timestamptz[], OUT is_plain boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    logs_success boolean := webhook.setting('keep_attempts') = 'all';
    settled bigint[];
    endpoints int[];
    policies webhook.policy[];
    outcomes webhook.outcome[];
    all_succeeded boolean;
    all_are_kept boolean;
    some_are_ordered boolean;
    handed_back int[];
BEGIN
    IF NOT logs_success THEN
        SELECT s.settled, s.finished INTO settled, finished
        FROM webhook.settle_successes(event_ids, endpoint_ids, claim_seqs, status_codes, durations_ms, ages_ms) s;
        is_plain := cardinality(settled) = cardinality(event_ids);
        IF is_plain THEN
            RETURN;
        END IF;
        SELECT array_agg(o.event_id), array_agg(o.endpoint_id), array_agg(o.claim_seq), array_agg(o.status_code), array_agg(o.failure),
               array_agg(o.error), array_agg(o.excerpt), array_agg(o.retry_after_s), array_agg(o.duration_ms), array_agg(o.age_ms)
        INTO event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts, retry_after_seconds, durations_ms, ages_ms
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts, retry_after_seconds,
                    durations_ms, ages_ms) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, failure, error, excerpt, retry_after_s, duration_ms,
                  age_ms, ordinal)
        WHERE settled IS NULL OR o.ordinal <> ALL (settled);
    END IF;

    -- This reads each policy once. The endpoints are in order, so that a binary search finds the policy of an outcome: a join
    -- without an index would compare every outcome with every endpoint.
    SELECT array_agg(id ORDER BY id), array_agg(shared.policy ORDER BY id) INTO endpoints, policies
    FROM (SELECT webhook.policy_of(e.policy) AS policy, array_agg(batch.endpoint_id) AS endpoint_ids
          FROM (SELECT DISTINCT i.endpoint_id FROM unnest(endpoint_ids) AS i (endpoint_id)) batch
          LEFT JOIN webhook.endpoint e ON e.id = batch.endpoint_id
          GROUP BY e.policy) shared, unnest(shared.endpoint_ids) AS id;

    -- Lock the deliveries, and judge each outcome once.
    SELECT array_agg(ROW(j.event_id, j.endpoint_id, j.claim_seq, j.status_code, j.error, j.excerpt, j.duration_ms, j.ended_at,
                         j.ordinal, (j.judgement).verdict, (j.judgement).status, (j.judgement).next_attempt_at,
                         (j.judgement).reason, j.row_id, j.event_type, j.attempts, j.created_at, j.keep_sent, j.ordering_key)::webhook.outcome)
               FILTER (WHERE (j.judgement).verdict IS NOT NULL),
           coalesce(bool_and((j.judgement).verdict = 'success' AND j.event_type <> 'webhook.test'), true),
           bool_and(j.keep_sent), bool_or(j.ordering_key IS NOT NULL),
           array_agg(j.event_id) FILTER (WHERE (j.judgement).verdict IS NULL),
           array_agg(j.endpoint_id) FILTER (WHERE (j.judgement).verdict IS NULL),
           array_agg(j.claim_seq) FILTER (WHERE (j.judgement).verdict IS NULL)
    INTO outcomes, all_succeeded, all_are_kept, some_are_ordered, locked_event_ids, locked_endpoint_ids, locked_claim_seqs
    FROM (
        SELECT o.event_id, o.endpoint_id, o.claim_seq, o.status_code, left(coalesce(o.error, 'HTTP ' || o.status_code), 2000) AS error,
               left(o.excerpt, 2048) AS excerpt, greatest(o.duration_ms, 0) AS duration_ms, e.ended_at, o.ordinal, q.row_id, q.event_type, q.attempts, q.created_at,
               q.ordering_key, (r.policy).keep_sent OR q.event_type IS NOT DISTINCT FROM 'webhook.test' AS keep_sent,
               CASE WHEN q.row_id IS NOT NULL
                    THEN webhook.judge(r.policy, q.attempts, q.max_attempts, o.status_code, o.failure, o.retry_after_s,
                                       e.ended_at, random())
                    WHEN NOT EXISTS (SELECT FROM webhook.delivery_queue q
                                     WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
                                       AND q.claim_seq = o.claim_seq AND q.status = 'SENDING')
                    THEN webhook.judge_late(r.policy, o.status_code, o.failure)
               END AS judgement
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts, retry_after_seconds,
                    durations_ms, ages_ms) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, failure, error, excerpt, retry_after_s, duration_ms,
                  age_ms, ordinal)
        CROSS JOIN LATERAL (SELECT policies[width_bucket(o.endpoint_id, endpoints)] AS policy OFFSET 0) r
        CROSS JOIN LATERAL (SELECT webhook.ended_at(o.age_ms) AS ended_at) e
        LEFT JOIN LATERAL (
            SELECT q.ctid AS row_id, q.event_type, q.attempts, q.max_attempts, q.created_at, q.ordering_key
            FROM webhook.delivery_queue q
            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
              AND q.claim_seq = o.claim_seq AND q.status = 'SENDING'
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) q ON true
        OFFSET 0
    ) j;

    -- Most batches are successes of endpoints that are well, and move no breaker.
    IF NOT all_succeeded
       OR EXISTS (SELECT FROM webhook.breaker b WHERE b.endpoint_id = ANY (endpoint_ids) AND NOT webhook.is_at_rest(b)) THEN
        handed_back := webhook.move_breakers(outcomes);
        IF cardinality(handed_back) > 0 THEN
            SELECT array_agg(o) FILTER (WHERE NOT h.is_handed_back),
                   locked_event_ids || array_agg(o.event_id) FILTER (WHERE h.is_handed_back),
                   locked_endpoint_ids || array_agg(o.endpoint_id) FILTER (WHERE h.is_handed_back),
                   locked_claim_seqs || array_agg(o.claim_seq) FILTER (WHERE h.is_handed_back)
            INTO outcomes, locked_event_ids, locked_endpoint_ids, locked_claim_seqs
            FROM unnest(outcomes) AS o,
                 LATERAL (SELECT o.endpoint_id = ANY (handed_back) AND o.verdict <> 'late' AS is_handed_back) h;
        END IF;
    END IF;

    -- Finished deliveries leave the queue and are counted, in one statement: at its end the turn of an ordering key passes on,
    -- or stays with a dead letter under on_blocked = wait.
    WITH finished AS (
        DELETE FROM webhook.delivery_queue q USING unnest(outcomes) AS o
        WHERE q.ctid = o.row_id AND o.status <> 'PENDING'
        RETURNING q.event_id, q.endpoint_id, q.event_type, o.status, q.attempts, q.max_attempts, q.next_attempt_at,
                  q.wait_reason, q.expires_at, q.ordering_key, q.coalesce_key, q.claim_seq, o.ended_at, o.status_code,
                  o.reason, o.error, o.duration_ms, q.created_at, o.keep_sent
    ), kept AS (
        INSERT INTO webhook.delivery
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
             ordering_key, coalesce_key, claim_seq, last_attempt_at, last_status_code, reason, last_error, duration_ms,
             created_at, completed_at)
        SELECT f.event_id, f.endpoint_id, f.event_type, f.status, f.attempts, f.max_attempts, f.next_attempt_at, f.wait_reason,
               f.expires_at, f.ordering_key, f.coalesce_key, f.claim_seq, f.ended_at, f.status_code, f.reason,
               CASE f.status WHEN 'FAILED' THEN f.error END, f.duration_ms, f.created_at, f.ended_at
        FROM finished f WHERE f.keep_sent OR f.status = 'FAILED'
    )
    SELECT coalesce(finished, '[]') || coalesce(jsonb_agg(jsonb_build_array(
               f.endpoint_id, f.status, f.latency_class, f.deliveries, f.retried, f.retries)), '[]')
    INTO finished
    FROM (SELECT f.endpoint_id, f.status, webhook.latency_class(f.ended_at - f.created_at) AS latency_class,
                 count(*) AS deliveries, count(*) FILTER (WHERE f.attempts > 1) AS retried,
                 sum(f.attempts - 1)::bigint AS retries
          FROM finished f WHERE NOT webhook.is_own(f.event_type)
          GROUP BY 1, 2, 3) f;

    IF all_succeeded AND all_are_kept AND NOT some_are_ordered AND NOT logs_success THEN
        RETURN;
    END IF;

    -- A delivery that failed and has an attempt left waits for it; an attempt that failed by local trouble of the sender does
    -- not count.
    UPDATE webhook.delivery_queue q
    SET status = 'PENDING', wait_reason = 'retry', claimed_at = NULL, claimed_by = NULL,
        attempts = CASE o.verdict WHEN 'release' THEN q.attempts - 1 ELSE q.attempts END,
        next_attempt_at = o.next_attempt_at, last_attempt_at = o.ended_at, last_status_code = o.status_code,
        reason = o.reason, last_error = o.error, duration_ms = o.duration_ms
    FROM unnest(outcomes) AS o
    WHERE q.ctid = o.row_id AND o.status = 'PENDING' AND o.reason IS NOT NULL;

    -- A claim that was given back leaves the delivery as if it had never been made.
    UPDATE webhook.delivery_queue q
    SET status = 'PENDING', claimed_at = NULL, claimed_by = NULL, attempts = q.attempts - 1
    FROM unnest(outcomes) AS o
    WHERE q.ctid = o.row_id AND o.status = 'PENDING' AND o.reason IS NULL;

    SELECT array_agg(w.endpoint_id), array_agg(w.next_attempt_at) INTO queued_endpoint_ids, queued_times
    FROM (SELECT o.endpoint_id, min(q.next_attempt_at) AS next_attempt_at
          FROM unnest(outcomes) AS o
          LEFT JOIN LATERAL (SELECT l.event_id FROM webhook.lane l
                             WHERE l.endpoint_id = o.endpoint_id AND l.ordering_key = o.ordering_key LIMIT 1) turn ON true
          CROSS JOIN LATERAL (SELECT q.next_attempt_at FROM webhook.delivery_queue q
                              WHERE q.event_id = coalesce(turn.event_id, o.event_id) AND q.endpoint_id = o.endpoint_id LIMIT 1) q
          WHERE o.status = 'PENDING' OR o.ordering_key IS NOT NULL
          GROUP BY o.endpoint_id) w;

    -- The log has every failure, and success where it is asked for.
    INSERT INTO webhook.attempt
        (event_id, endpoint_id, claim_seq, attempt, verdict, status_code, reason, error, response_excerpt, duration_ms,
         finished_at)
    SELECT o.event_id, o.endpoint_id, o.claim_seq, o.attempts, o.verdict, o.status_code, o.reason,
           CASE WHEN o.verdict <> 'success' THEN o.error END, nullif(o.excerpt, ''), o.duration_ms, o.ended_at
    FROM unnest(outcomes) AS o
    WHERE o.verdict IN ('retry', 'final', 'disable')
       OR (o.verdict = 'success' AND o.keep_sent AND (logs_success OR o.event_type = 'webhook.test'))
    ON CONFLICT DO NOTHING;

    -- The log has late outcomes too; but not one of a claim that the delivery has not had yet, and not one that was applied
    -- before and comes again because a sender did not learn that its commit had succeeded. A session that redacts the event waits for this lock, and finds the excerpt; a redacted event
    -- gets none.
    INSERT INTO webhook.attempt
        (event_id, endpoint_id, claim_seq, verdict, status_code, reason, error, response_excerpt, duration_ms, finished_at)
    SELECT o.event_id, o.endpoint_id, o.claim_seq, o.verdict, o.status_code, o.reason, o.error,
           CASE WHEN shown.whole THEN nullif(o.excerpt, '') END, o.duration_ms, o.ended_at
    FROM unnest(outcomes) AS o
    LEFT JOIN LATERAL (
        SELECT true AS whole FROM webhook.event v
        WHERE v.id = o.event_id AND v.redacted_at IS NULL LIMIT 1 FOR SHARE SKIP LOCKED
    ) shown ON true
    WHERE o.verdict = 'late' AND num_nonnulls(o.status_code, o.reason) > 0
      AND EXISTS (SELECT FROM webhook.event v WHERE v.id = o.event_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM webhook.delivery d
                      WHERE d.event_id = o.event_id AND d.endpoint_id = o.endpoint_id
                        AND (d.claim_seq < o.claim_seq
                             OR d.claim_seq = o.claim_seq AND d.status IN ('SENT', 'PENDING')
                                AND (d.last_status_code, d.reason, d.duration_ms)
                                    IS NOT DISTINCT FROM (o.status_code, o.reason, o.duration_ms)) OFFSET 0)
    ON CONFLICT DO NOTHING;

    INSERT INTO webhook.alert (endpoint_id, kind, reason, error, deliveries, event_ids)
    SELECT o.endpoint_id, 'failed', (array_agg(o.reason ORDER BY o.ended_at DESC, o.ordinal DESC))[1],
           (array_agg(o.error ORDER BY o.ended_at DESC, o.ordinal DESC))[1], count(*),
           (array_agg(o.event_id ORDER BY o.ordinal))[:10]
    FROM unnest(outcomes) AS o
    WHERE o.status = 'FAILED' AND NOT webhook.is_own(o.event_type)
    GROUP BY o.endpoint_id;

    -- Under keep_sent = false a sent delivery is deleted, and its event too if no other delivery needs it.
    IF NOT all_are_kept THEN
        PERFORM webhook.forget(array_agg(o.event_id), array_agg(o.endpoint_id), 'infinity')
        FROM unnest(outcomes) AS o
        WHERE NOT o.keep_sent
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = o.event_id AND d.endpoint_id = o.endpoint_id OFFSET 0)
        HAVING count(*) > 0;
    END IF;
END $$;
