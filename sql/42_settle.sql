-- Settling: what becomes of a delivery when its attempt has ended.
--
-- The worker hands in a batch of outcomes. Each is applied only while the delivery is still SENDING under
-- the claim that it belongs to: a person may have cancelled or requeued it meanwhile, another worker may
-- have claimed it again, and a late result must not overwrite what they did; it is only logged. A row that
-- somebody has locked is not waited for; nor are the endpoint and its breaker, where the outcome may change them.
--
-- The breaker follows the outcomes one by one in the order in which they ended (41_breaker.sql), so it makes no difference
-- how they were gathered in batches. It follows them first, and only those that it has followed are settled. A batch of
-- successes of endpoints that are well leaves it alone.
--
-- Rows are found by their keys one by one (LATERAL, LIMIT) and then by their places, so that a plan made while the queue was
-- empty never reads all of it. A place is that of the row as it was locked; where somebody changed the row after the
-- statement had begun, the statement does not see it there, and the batch is run again.

CREATE FUNCTION webhook.require_all(changed bigint, wanted bigint) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF changed <> wanted THEN
        RAISE EXCEPTION 'a delivery was changed while its outcome was settled' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END $$;

-- What comes back is of two kinds. Rows with an event_id name what is locked: the worker hands it in again.
-- Rows without one count what was finished, for the worker to add up and hand to webhook.add_tally().
CREATE FUNCTION webhook.settle(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], error_kinds text[], errors text[],
    excerpts text[], retry_after_seconds float8[], durations_ms int[], finished_at_epochs float8[])
    RETURNS TABLE (event_id uuid, endpoint_id int, claim_seq bigint,
                   status text, latency_class int, deliveries bigint, retried bigint, retries bigint)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    log_success boolean := webhook.setting('keep_attempts') = 'all';
    at_stake int[];
    followed bigint[];
    forgetful int[];
BEGIN
    -- Which breakers may move, and which endpoints keep nothing of what was sent: none of either, most of the time.
    WITH rule AS MATERIALIZED (
        SELECT e.id AS endpoint_id, webhook.policy_of(e.policy) AS policy
        FROM (SELECT DISTINCT i.endpoint_id FROM unnest(endpoint_ids) AS i (endpoint_id)) batch
        JOIN webhook.endpoint e ON e.id = batch.endpoint_id
    ), failing AS MATERIALIZED (
        SELECT DISTINCT o.endpoint_id FROM unnest(endpoint_ids, status_codes, error_kinds) AS o (endpoint_id, status_code, error_kind)
        JOIN rule r ON r.endpoint_id = o.endpoint_id
        WHERE webhook.verdict(r.policy, o.status_code, o.error_kind) NOT IN ('success', 'release')
    )
    SELECT array_agg(r.endpoint_id) FILTER (WHERE NOT webhook.is_at_rest(b) OR EXISTS (SELECT FROM failing f WHERE f.endpoint_id = r.endpoint_id)),
           array_agg(r.endpoint_id) FILTER (WHERE NOT (r.policy).keep_sent)
    INTO at_stake, forgetful
    FROM rule r LEFT JOIN webhook.breaker b ON b.endpoint_id = r.endpoint_id;

    IF at_stake IS NOT NULL THEN
        followed := webhook.follow_outcomes(at_stake, event_ids, endpoint_ids, claim_seqs, status_codes, error_kinds, errors,
                                            finished_at_epochs);
    END IF;

    RETURN QUERY
    WITH outcome AS MATERIALIZED (
        SELECT o.*, to_timestamp(o.finished_at_epoch) AS finished_at,
               CASE WHEN o.status_code IN (429, 503) THEN make_interval(secs => o.retry_after_s) END AS retry_after
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, error_kinds, errors, excerpts, retry_after_seconds,
                    durations_ms, finished_at_epochs) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, error_kind, error, excerpt, retry_after_s, duration_ms,
                  finished_at_epoch, place)
    ), rule AS MATERIALIZED (
        SELECT batch.endpoint_id, webhook.policy_of(e.policy) AS policy
        FROM (SELECT DISTINCT i.endpoint_id FROM unnest(endpoint_ids) AS i (endpoint_id)) batch
        LEFT JOIN webhook.endpoint e ON e.id = batch.endpoint_id
    ), fenced AS MATERIALIZED (
        SELECT q.*, o.status_code, o.error_kind, o.excerpt, o.retry_after, o.duration_ms, o.finished_at,
               coalesce(o.error, 'HTTP ' || o.status_code) AS error,
               CASE WHEN o.status_code IS NULL THEN o.error_kind ELSE 'status' END AS reason
        FROM outcome o
        CROSS JOIN LATERAL (
            SELECT q.ctid AS row_place, q.event_id, q.endpoint_id, q.event_type, q.attempts, q.max_attempts, q.next_attempt_at,
                   q.wait_reason, q.expires_at, q.ordering_key, q.coalesce_key, q.claim_seq, q.created_at
            FROM webhook.delivery_queue q
            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
              AND q.claim_seq = o.claim_seq AND q.status = 'SENDING'
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) q
        WHERE at_stake IS NULL OR o.endpoint_id <> ALL (at_stake) OR o.place = ANY (followed)
    ), judged AS MATERIALIZED (
        SELECT f.*, r.policy, v.verdict,
               CASE v.verdict
                   WHEN 'success' THEN 'SENT'
                   WHEN 'release' THEN 'PENDING'
                   WHEN 'retry' THEN CASE WHEN f.attempts < f.max_attempts THEN 'PENDING' ELSE 'FAILED' END
                   ELSE 'FAILED'
               END AS new_status,
               (r.policy).keep_sent OR f.event_type = 'webhook.test' AS is_kept
        FROM fenced f
        JOIN rule r ON r.endpoint_id = f.endpoint_id
        CROSS JOIN LATERAL (SELECT webhook.verdict(r.policy, f.status_code, f.error_kind)) AS v (verdict)
    ), finished AS (
        DELETE FROM webhook.delivery_queue q
        WHERE q.ctid = ANY (ARRAY(SELECT j.row_place FROM judged j WHERE j.new_status <> 'PENDING'))
        RETURNING 1
    ), sent AS (
        INSERT INTO webhook.delivery_history
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
             ordering_key, coalesce_key, claim_seq, last_attempt_at, last_status_code, duration_ms, created_at, completed_at)
        SELECT event_id, endpoint_id, event_type, new_status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
               ordering_key, coalesce_key, claim_seq, finished_at, status_code, duration_ms, created_at, finished_at
        FROM judged j WHERE j.new_status = 'SENT' AND j.is_kept
    ), failed AS (
        INSERT INTO webhook.dead_letter
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
             ordering_key, coalesce_key, claim_seq, last_attempt_at, last_status_code, reason, last_error, duration_ms,
             created_at, completed_at)
        SELECT event_id, endpoint_id, event_type, new_status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
               ordering_key, coalesce_key, claim_seq, finished_at, status_code, reason, error, duration_ms,
               created_at, finished_at
        FROM judged j WHERE j.new_status = 'FAILED'
    ), queued AS (
        -- Put back by us, the attempt does not count; after trouble of our own a second passes, so as not to spin.
        UPDATE webhook.delivery_queue q
        SET status = 'PENDING', claimed_at = NULL, claimed_by = NULL,
            (attempts, next_attempt_at, wait_reason, last_attempt_at, last_status_code, reason, last_error, duration_ms) = (
                SELECT CASE j.verdict WHEN 'release' THEN q.attempts - 1 ELSE q.attempts END,
                       CASE
                           WHEN j.error_kind = 'released' THEN q.next_attempt_at
                           WHEN j.verdict = 'release' THEN j.finished_at + interval '1 s'
                           ELSE j.finished_at + webhook.backoff_delay(j.policy, j.attempts, j.retry_after, random())
                       END,
                       CASE j.error_kind WHEN 'released' THEN q.wait_reason ELSE 'retry' END,
                       CASE j.error_kind WHEN 'released' THEN q.last_attempt_at ELSE j.finished_at END,
                       CASE j.error_kind WHEN 'released' THEN q.last_status_code ELSE j.status_code END,
                       CASE j.error_kind WHEN 'released' THEN q.reason ELSE j.reason END,
                       CASE j.error_kind WHEN 'released' THEN q.last_error ELSE j.error END,
                       CASE j.error_kind WHEN 'released' THEN q.duration_ms ELSE j.duration_ms END
                FROM judged j WHERE j.row_place = q.ctid)
        WHERE q.ctid = ANY (ARRAY(SELECT j.row_place FROM judged j WHERE j.new_status = 'PENDING'))
        RETURNING 1
    ), unsettled AS MATERIALIZED (
        SELECT o.*, EXISTS (SELECT FROM webhook.delivery_queue q
                            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
                              AND q.claim_seq = o.claim_seq AND q.status = 'SENDING') AS locked
        FROM outcome o
        WHERE (SELECT count(*) FROM fenced) < cardinality(event_ids)
          AND NOT EXISTS (SELECT FROM fenced f
                          WHERE f.event_id = o.event_id AND f.endpoint_id = o.endpoint_id AND f.claim_seq = o.claim_seq)
    ), logged AS (
        INSERT INTO webhook.attempt
            (event_id, endpoint_id, claim_seq, attempt, verdict, status_code, error_kind, error, response_excerpt,
             duration_ms, finished_at)
        SELECT event_id, endpoint_id, claim_seq, attempts, verdict, status_code, error_kind,
               CASE WHEN verdict <> 'success' THEN error END, nullif(excerpt, ''), duration_ms, finished_at
        FROM judged j
        WHERE j.verdict <> 'release'
          AND (j.verdict <> 'success' OR (j.is_kept AND (log_success OR j.event_type = 'webhook.test')))
        UNION ALL
        SELECT event_id, endpoint_id, claim_seq, NULL, 'late', status_code, error_kind,
               coalesce(error, 'HTTP ' || status_code), CASE WHEN shown.whole THEN nullif(excerpt, '') END, duration_ms, finished_at
        FROM unsettled u
        -- Whoever redacts the event waits for this lock, and finds the excerpt; what has been redacted gets none.
        LEFT JOIN LATERAL (
            SELECT true AS whole FROM webhook.event v
            WHERE v.id = u.event_id AND v.redacted_at IS NULL LIMIT 1 FOR SHARE SKIP LOCKED
        ) shown ON true
        WHERE NOT u.locked AND u.error_kind IS DISTINCT FROM 'released'
          AND EXISTS (SELECT FROM webhook.event v WHERE v.id = u.event_id)
        ON CONFLICT DO NOTHING
    )
    SELECT u.event_id, u.endpoint_id, u.claim_seq, NULL::text, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint
    FROM unsettled u WHERE u.locked
    UNION ALL
    SELECT NULL::uuid, NULL::int, NULL::bigint, NULL::text, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint
    WHERE NOT webhook.require_all((SELECT count(*) FROM finished) + (SELECT count(*) FROM queued), (SELECT count(*) FROM judged))
    UNION ALL
    SELECT NULL::uuid, j.endpoint_id, NULL::bigint, j.new_status, c.latency_class, count(*),
           count(*) FILTER (WHERE j.attempts > 1), sum(j.attempts - 1)::bigint
    FROM judged j
    CROSS JOIN LATERAL (SELECT webhook.latency_class(j.finished_at - j.created_at)) AS c (latency_class)
    WHERE j.new_status <> 'PENDING' AND j.event_type NOT LIKE 'webhook.%'
    GROUP BY j.endpoint_id, j.new_status, c.latency_class;

    IF forgetful IS NOT NULL THEN
        PERFORM webhook.forget(array_agg(o.event_id), array_agg(o.endpoint_id), 'infinity')
        FROM unnest(event_ids, endpoint_ids) AS o (event_id, endpoint_id)
        WHERE o.endpoint_id = ANY (forgetful)
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = o.event_id AND d.endpoint_id = o.endpoint_id OFFSET 0)
        HAVING count(*) > 0;
    END IF;
END $$;
