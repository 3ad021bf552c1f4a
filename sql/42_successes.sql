-- Successes of endpoints that are well: most of what there is to settle. They need no judgement, move no breaker and are not
-- logged, so one statement settles them; webhook.settle() does the rest.

-- Moves deliveries into the history if this batch has only successes of their endpoint, its breaker is at rest, and its policy
-- keeps sent deliveries. Returns the outcomes that this settles and the finished deliveries, as webhook.settle() does. It does
-- not settle locked rows, late outcomes, tests, and deliveries with an ordering key.
--
-- It locks no row first: only the claim has written the row if xmax is empty, or is the claim's own lock, which has the xid
-- that also made this version of the row. If somebody takes the row between the look and the DELETE, the DELETE waits, at most
-- for lock_timeout, and then meets another version or none; so the counts differ, and the sender begins anew. This saves 56
-- bytes of WAL a row, and a scan by ctid for each.
CREATE OR REPLACE FUNCTION webhook.settle_successes(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], durations_ms int[],
    ages_ms float8[], OUT settled bigint[], OUT finished jsonb)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    deleted bigint;
    inserted bigint;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT o.ordinal, o.status_code, greatest(o.duration_ms, 0) AS duration_ms, webhook.ended_at(o.age_ms) AS ended_at, q.*
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, durations_ms, ages_ms) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, duration_ms, age_ms, ordinal)
        CROSS JOIN LATERAL (
            SELECT q.ctid AS row_id, q.xmin AS version, q.event_id, q.endpoint_id, q.event_type, q.attempts, q.max_attempts,
                   q.next_attempt_at, q.wait_reason, q.expires_at, q.coalesce_key, q.claim_seq, q.created_at
            FROM webhook.delivery_queue q
            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id AND q.claim_seq = o.claim_seq
              AND q.status = 'SENDING' AND q.ordering_key IS NULL AND q.event_type <> 'webhook.test'
              AND (q.xmax = 0 OR q.xmax = q.xmin)
            LIMIT 1
        ) q
        WHERE o.endpoint_id = ANY (ARRAY(
            SELECT batch.endpoint_id
            FROM (SELECT i.endpoint_id, bool_and(i.status_code IS NOT NULL) AS were_answered,
                         int4range(min(i.status_code), max(i.status_code), '[]') AS statuses
                  FROM unnest(endpoint_ids, status_codes) AS i (endpoint_id, status_code) GROUP BY i.endpoint_id) batch
            CROSS JOIN LATERAL (SELECT e.policy FROM webhook.endpoint e WHERE e.id = batch.endpoint_id LIMIT 1) e
            CROSS JOIN LATERAL (SELECT p.keep_sent, p.success_status FROM webhook.policy p WHERE p.name = e.policy LIMIT 1) p
            LEFT JOIN LATERAL (SELECT b FROM webhook.breaker b WHERE b.endpoint_id = batch.endpoint_id LIMIT 1) breaker ON true
            WHERE batch.were_answered AND batch.statuses <@ p.success_status AND p.keep_sent
              AND (breaker.b IS NULL OR webhook.is_at_rest(breaker.b))))
    ), gone AS (
        DELETE FROM webhook.delivery_queue q
        WHERE q.ctid = ANY (ARRAY(SELECT e.row_id FROM ended e)) AND q.xmin = ANY (ARRAY(SELECT DISTINCT e.version FROM ended e))
        RETURNING true
    ), kept AS (
        INSERT INTO webhook.delivery_history
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
             coalesce_key, claim_seq, last_attempt_at, last_status_code, duration_ms, created_at, completed_at)
        SELECT e.event_id, e.endpoint_id, e.event_type, 'SENT', e.attempts, e.max_attempts, e.next_attempt_at, e.wait_reason,
               e.expires_at, e.coalesce_key, e.claim_seq, e.ended_at, e.status_code, e.duration_ms, e.created_at, e.ended_at
        FROM ended e
    )
    SELECT (SELECT array_agg(e.ordinal) FROM ended e), (SELECT count(*) FROM gone), sum(g.deliveries),
           jsonb_agg(jsonb_build_array(g.endpoint_id, 'SENT', g.latency_class, g.deliveries, g.retried, g.retries))
               FILTER (WHERE NOT g.is_own)
    INTO settled, deleted, inserted, finished
    FROM (SELECT e.endpoint_id, webhook.latency_class(e.ended_at - e.created_at) AS latency_class,
                 webhook.is_own(e.event_type) AS is_own, count(*) AS deliveries,
                 count(*) FILTER (WHERE e.attempts > 1) AS retried, sum(e.attempts - 1)::bigint AS retries
          FROM ended e
          GROUP BY 1, 2, 3) g;
    IF deleted <> inserted THEN
        RAISE EXCEPTION 'somebody has changed a delivery that was about to be settled' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;
