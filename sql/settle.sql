-- Settling: what becomes of a delivery when its attempt has ended.
--
-- The worker hands in a batch of outcomes. Each is applied only while the delivery is still SENDING under
-- the claim that it belongs to: a person may have cancelled or requeued it meanwhile, another worker may
-- have claimed it again, and a late result must not overwrite what they did; it is only logged. A row that
-- somebody has locked is not waited for.
--
-- What comes back is of two kinds. Rows with an event_id name what is locked: the worker hands it in again.
-- Rows without one count what was finished, for the worker to add up and hand to webhook.add_tally().
CREATE FUNCTION webhook.settle(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], error_kinds text[], errors text[],
    excerpts text[], retry_after_seconds float8[], durations_ms int[], finished_at_epochs float8[])
    RETURNS TABLE (event_id uuid, endpoint_id int, claim_seq bigint,
                   status text, latency_class int, deliveries bigint, retried bigint, retries bigint)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
    SET webhook.engine = on AS $$
#variable_conflict use_column
DECLARE
    log_success boolean := current_setting('webhook.keep_attempts', true) = 'all';
BEGIN
    RETURN QUERY
    WITH outcome AS MATERIALIZED (
        SELECT o.*, to_timestamp(o.finished_at_epoch) AS finished_at,
               CASE WHEN o.status_code IN (429, 503) THEN make_interval(secs => o.retry_after_s) END AS retry_after
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, error_kinds, errors, excerpts, retry_after_seconds,
                    durations_ms, finished_at_epochs)
            AS o (event_id, endpoint_id, claim_seq, status_code, error_kind, error, excerpt, retry_after_s, duration_ms,
                  finished_at_epoch)
    ), rule AS MATERIALIZED (
        SELECT batch.endpoint_id, webhook.policy_of(e.policy) AS policy
        FROM (SELECT DISTINCT i.endpoint_id FROM unnest(endpoint_ids) AS i (endpoint_id)) batch
        LEFT JOIN webhook.endpoint e ON e.id = batch.endpoint_id
    ), fenced AS MATERIALIZED (
        SELECT q.event_id, q.endpoint_id, q.event_type, q.attempts, q.max_attempts, q.next_attempt_at, q.expires_at,
               q.ordering_key, q.coalesce_key, q.claim_seq, q.created_at,
               o.status_code, o.error_kind, o.excerpt, o.retry_after, o.duration_ms, o.finished_at,
               coalesce(o.error, 'HTTP ' || o.status_code) AS error
        FROM outcome o
        JOIN webhook.delivery_queue q
            ON q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
            AND q.claim_seq = o.claim_seq AND q.status = 'SENDING'
        FOR UPDATE OF q SKIP LOCKED
    ), judged AS MATERIALIZED (
        SELECT f.*, r.policy, v.verdict,
               CASE v.verdict
                   WHEN 'success' THEN 'SENT'
                   WHEN 'release' THEN 'PENDING'
                   WHEN 'retry' THEN CASE WHEN f.attempts < f.max_attempts THEN 'PENDING' ELSE 'FAILED' END
                   ELSE 'FAILED'
               END AS new_status
        FROM fenced f
        JOIN rule r ON r.endpoint_id = f.endpoint_id
        CROSS JOIN LATERAL (SELECT webhook.verdict(r.policy, f.status_code, f.error_kind)) AS v (verdict)
    ), finished AS (
        DELETE FROM webhook.delivery_queue q USING judged j
        WHERE q.event_id = j.event_id AND q.endpoint_id = j.endpoint_id AND j.new_status <> 'PENDING'
    ), sent AS (
        INSERT INTO webhook.delivery_history
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, expires_at, ordering_key,
             coalesce_key, claim_seq, last_status_code, duration_ms, created_at, completed_at)
        SELECT event_id, endpoint_id, event_type, new_status, attempts, max_attempts, next_attempt_at, expires_at, ordering_key,
               coalesce_key, claim_seq, status_code, duration_ms, created_at, finished_at
        FROM judged j WHERE j.new_status = 'SENT' AND (j.policy).keep_sent
    ), failed AS (
        INSERT INTO webhook.dead_letter
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, expires_at, ordering_key,
             coalesce_key, claim_seq, last_status_code, last_error, duration_ms, created_at, completed_at)
        SELECT event_id, endpoint_id, event_type, new_status, attempts, max_attempts, next_attempt_at, expires_at, ordering_key,
               coalesce_key, claim_seq, status_code, error, duration_ms, created_at, finished_at
        FROM judged j WHERE j.new_status = 'FAILED'
    ), queued AS (
        -- Put back by us, the attempt does not count; after trouble of our own a second passes, so as not to spin.
        UPDATE webhook.delivery_queue q
        SET status = 'PENDING', claimed_at = NULL, claimed_by = NULL,
            attempts = CASE j.verdict WHEN 'release' THEN q.attempts - 1 ELSE q.attempts END,
            next_attempt_at = CASE
                WHEN j.error_kind = 'released' THEN q.next_attempt_at
                WHEN j.verdict = 'release' THEN j.finished_at + interval '1 s'
                ELSE j.finished_at + webhook.backoff_delay(j.policy, j.attempts, j.retry_after, random())
            END,
            last_status_code = CASE j.error_kind WHEN 'released' THEN q.last_status_code ELSE j.status_code END,
            last_error = CASE j.error_kind WHEN 'released' THEN q.last_error ELSE j.error END,
            duration_ms = CASE j.error_kind WHEN 'released' THEN q.duration_ms ELSE j.duration_ms END
        FROM judged j
        WHERE q.event_id = j.event_id AND q.endpoint_id = j.endpoint_id AND j.new_status = 'PENDING'
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
        WHERE j.verdict <> 'release' AND (j.verdict <> 'success' OR log_success)
        UNION ALL
        SELECT event_id, endpoint_id, claim_seq, NULL, 'late', status_code, error_kind,
               coalesce(error, 'HTTP ' || status_code), nullif(excerpt, ''), duration_ms, finished_at
        FROM unsettled u
        WHERE NOT u.locked AND u.error_kind IS DISTINCT FROM 'released'
        ON CONFLICT DO NOTHING
    )
    SELECT u.event_id, u.endpoint_id, u.claim_seq, NULL::text, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint
    FROM unsettled u WHERE u.locked
    UNION ALL
    SELECT NULL::uuid, j.endpoint_id, NULL::bigint, j.new_status, c.latency_class, count(*),
           count(*) FILTER (WHERE j.attempts > 1), sum(j.attempts - 1)::bigint
    FROM judged j
    CROSS JOIN LATERAL (SELECT webhook.latency_class(j.finished_at - j.created_at)) AS c (latency_class)
    WHERE j.new_status <> 'PENDING'
    GROUP BY j.endpoint_id, j.new_status, c.latency_class;
END $$;
