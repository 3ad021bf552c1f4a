-- Moves of deliveries between the leaves. Only settle() does it on its own, with its batch.
--
-- A row is deleted in one leaf and inserted into another, never moved by an UPDATE: a statement that meets such an UPDATE in
-- the same row gets a serialization error, but one that meets a DELETE just finds the row gone. The functions pass over rows
-- that are not there, return the number of rows that they moved, and lock rows in the order of their keys.

-- The CHECK of the queue. It is plpgsql and no expression, which a CHECK would parse and plan anew in every INSERT.
-- pgspot: no search_path, because a SET costs as much.
CREATE OR REPLACE FUNCTION webhook.may_be_queued(
    status text, attempts int, max_attempts int, claimed_by int, claimed_at timestamptz, completed_at timestamptz,
    wait_reason text, next_attempt_at timestamptz) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN attempts OPERATOR(pg_catalog.>=) 0 AND completed_at IS NULL AND pg_catalog.isfinite(next_attempt_at)
        AND wait_reason OPERATOR(pg_catalog.=) ANY ('{new, retry, replayed, scheduled, parked}'::pg_catalog.text[])
        AND CASE WHEN status OPERATOR(pg_catalog.=) 'PENDING'
                 THEN attempts OPERATOR(pg_catalog.<) max_attempts AND claimed_by IS NULL AND claimed_at IS NULL
                 ELSE attempts OPERATOR(pg_catalog.>=) 1 AND attempts OPERATOR(pg_catalog.<=) max_attempts
                      AND claimed_by IS NOT NULL AND claimed_at IS NOT NULL END;
END $$;

-- Moves deliveries from the queue to the history (CANCELLED) or the dead letters (FAILED), for a reason that is no outcome of
-- an attempt; last_error says the same in words. `attempts_spent` is added to the attempts of each, as under when_open =
-- 'attempt'.
CREATE OR REPLACE FUNCTION webhook.finish_queued(
    event_ids uuid[], endpoint_ids int[], new_status text, new_reason text, attempts_spent int DEFAULT 0) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    moved bigint;
BEGIN
    WITH met AS MATERIALIZED (
        SELECT q.row_id
        FROM (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        CROSS JOIN LATERAL (SELECT q.ctid AS row_id FROM webhook.delivery_queue q
                            WHERE q.event_id = m.event_id AND q.endpoint_id = m.endpoint_id LIMIT 1 FOR UPDATE) q
    ), gone AS (
        DELETE FROM webhook.delivery_queue q USING met WHERE q.ctid = met.row_id
        RETURNING q.*
    )
    INSERT INTO webhook.delivery
        (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
         ordering_key, coalesce_key, claim_seq, last_attempt_at, last_status_code, reason, last_error, duration_ms,
         created_at, completed_at)
    SELECT g.event_id, g.endpoint_id, g.event_type, new_status, g.attempts + attempts_spent, g.max_attempts, g.next_attempt_at,
           g.wait_reason, g.expires_at, g.ordering_key, g.coalesce_key, g.claim_seq + attempts_spent,
           CASE WHEN attempts_spent > 0 THEN now() ELSE g.last_attempt_at END,
           CASE WHEN attempts_spent = 0 THEN g.last_status_code END, new_reason, webhook.reason_in_words(new_reason),
           CASE WHEN attempts_spent = 0 THEN g.duration_ms END, g.created_at, now()
    FROM gone g;
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;

-- Moves deliveries from the queue to the dead letters, with an alert and in the figures, as settle() does.
CREATE OR REPLACE FUNCTION webhook.fail_queued(event_ids uuid[], endpoint_ids int[], new_reason text, attempts_spent int DEFAULT 0)
    RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    moved bigint := webhook.finish_queued(event_ids, endpoint_ids, 'FAILED', new_reason, attempts_spent);
    figures jsonb;
BEGIN
    WITH failed AS MATERIALIZED (
        SELECT d.endpoint_id, count(*) AS deliveries, (array_agg(d.event_id))[:10] AS event_ids,
               count(*) FILTER (WHERE d.attempts > 1) AS retried, sum(greatest(d.attempts - 1, 0))::bigint AS retries
        FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id)
        CROSS JOIN LATERAL (SELECT d.* FROM webhook.dead_letter d
                            WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id LIMIT 1) d
        WHERE NOT webhook.is_own(d.event_type)
        GROUP BY d.endpoint_id
    ), told AS (
        INSERT INTO webhook.alert (endpoint_id, kind, reason, error, deliveries, event_ids)
        SELECT f.endpoint_id, 'failed', new_reason, webhook.reason_in_words(new_reason), f.deliveries, f.event_ids FROM failed f
    )
    SELECT jsonb_agg(jsonb_build_object('endpoint_id', f.endpoint_id, 'failed', f.deliveries, 'retried', f.retried,
                                        'retries', f.retries))
    INTO figures FROM failed f;
    PERFORM webhook.count_figures(figures) WHERE figures IS NOT NULL;
    RETURN moved;
END $$;

-- The row of a delivery that is queued again: from the start and due now. It loses an expires_at that has passed, and the
-- coalesce_key if it was sent or cancelled: somebody wants it sent, whatever has come after it. `claim_seq` goes on, so that a
-- late outcome stays late.
CREATE OR REPLACE FUNCTION webhook.requeued(d webhook.delivery) RETURNS webhook.delivery
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF d.status IN ('SENT', 'CANCELLED') THEN
        d.coalesce_key := NULL;
    END IF;
    IF NOT webhook.has_time(d.expires_at) THEN
        d.expires_at := NULL;
    END IF;
    d.status := 'PENDING';
    d.attempts := 0;
    d.next_attempt_at := now();
    d.wait_reason := 'replayed';
    d.waits_for := NULL;
    d.claimed_at := NULL;
    d.claimed_by := NULL;
    d.last_attempt_at := NULL;
    d.last_status_code := NULL;
    d.reason := NULL;
    d.last_error := NULL;
    d.duration_ms := NULL;
    d.completed_at := NULL;
    RETURN d;
END $$;

-- Moves deliveries that ended with one of these statuses back to the queue, unless the endpoint was removed or the payload is
-- gone.
CREATE OR REPLACE FUNCTION webhook.requeue(event_ids uuid[], endpoint_ids int[], statuses text[]) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    moved bigint;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT m.event_id, m.endpoint_id
        FROM (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        CROSS JOIN LATERAL (SELECT FROM webhook.endpoint e WHERE e.id = m.endpoint_id LIMIT 1) e
        CROSS JOIN LATERAL (SELECT FROM webhook.event v WHERE v.id = m.event_id AND v.redacted_at IS NULL LIMIT 1) v
    ), failed AS (
        DELETE FROM webhook.dead_letter d USING wanted w
        WHERE 'FAILED' = ANY (statuses) AND d.event_id = w.event_id AND d.endpoint_id = w.endpoint_id
        RETURNING d::webhook.delivery AS delivery
    ), finished AS (
        DELETE FROM webhook.delivery_history d USING wanted w
        WHERE d.status = ANY (statuses) AND d.event_id = w.event_id AND d.endpoint_id = w.endpoint_id
        RETURNING d::webhook.delivery AS delivery
    )
    INSERT INTO webhook.delivery_queue
    SELECT again.*
    FROM (SELECT delivery FROM failed UNION ALL SELECT delivery FROM finished) gone
    CROSS JOIN LATERAL webhook.requeued(gone.delivery) again;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved > 0 THEN
        PERFORM webhook.wake();
    END IF;
    RETURN moved;
END $$;

-- Deletes the attempts of these deliveries, which are gone, and each older event that no delivery has any more, with all its
-- attempts. An attempt that stays, because it is locked or there are too many for one step, keeps its event, and a later step
-- finds it by the event. Returns the number of events that it deleted.
CREATE OR REPLACE FUNCTION webhook.forget(event_ids uuid[], endpoint_ids int[], emitted_before timestamptz) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    unneeded uuid[];
    forgotten int;
BEGIN
    DELETE FROM webhook.attempt
    WHERE ctid = ANY (ARRAY(
        SELECT spent.row_id FROM unnest(event_ids, endpoint_ids) AS gone (event_id, endpoint_id)
        CROSS JOIN LATERAL (
            SELECT a.ctid AS row_id FROM webhook.attempt a
            WHERE a.event_id = gone.event_id AND a.endpoint_id = gone.endpoint_id
            LIMIT 5000 FOR UPDATE SKIP LOCKED
        ) spent
        LIMIT 5000));

    unneeded := ARRAY(
        SELECT v.id FROM webhook.event v
        WHERE v.id = ANY (event_ids) AND v.created_at < emitted_before
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = v.id OFFSET 0)
        FOR UPDATE SKIP LOCKED);

    DELETE FROM webhook.attempt
    WHERE ctid = ANY (ARRAY(
        SELECT a.ctid FROM webhook.attempt a WHERE a.event_id = ANY (unneeded)
        LIMIT 5000 FOR UPDATE SKIP LOCKED));

    DELETE FROM webhook.event v
    WHERE v.id = ANY (unneeded) AND NOT EXISTS (SELECT FROM webhook.attempt a WHERE a.event_id = v.id OFFSET 0);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;
