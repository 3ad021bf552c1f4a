-- Recovery: a claim whose worker is gone, or has forgotten it, goes back to the queue.

-- Begins a run of a worker: takes a number, and a lock on it that lasts as long as the session.
CREATE FUNCTION webhook.begin_instance() RETURNS int
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    instance int;
BEGIN
    LOOP
        instance := nextval('webhook.worker_instance');
        EXIT WHEN pg_try_advisory_lock(webhook.instance_lock(), instance);
    END LOOP;
    RETURN instance;
END $$;

-- The first of the two keys of that lock: "webh", so that nobody else's advisory locks are in the way.
CREATE FUNCTION webhook.instance_lock() RETURNS int LANGUAGE sql IMMUTABLE RETURN 2003133032;

-- Releases at once what a dead instance had claimed, and after webhook.stale_after what this one does not
-- know to be in flight. The attempt stays counted: the request may have arrived. Says how many rows somebody
-- has locked; they need another call.
CREATE FUNCTION webhook.recover(
    instance int, in_flight_event_ids uuid[], in_flight_endpoint_ids int[],
    OUT released bigint, OUT failed bigint, OUT locked bigint)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET webhook.engine = on AS $$
#variable_conflict use_column
DECLARE
    stale_before timestamptz := now() - current_setting('webhook.stale_after')::interval;
    dead_instances int[];
BEGIN
    SELECT array_agg(other.claimed_by) INTO dead_instances
    FROM (SELECT DISTINCT q.claimed_by FROM webhook.delivery_queue q
          WHERE q.status = 'SENDING' AND q.claimed_by <> instance) other
    WHERE pg_try_advisory_xact_lock(webhook.instance_lock(), other.claimed_by);

    WITH in_flight AS (
        SELECT f.event_id, f.endpoint_id
        FROM unnest(in_flight_event_ids, in_flight_endpoint_ids) AS f (event_id, endpoint_id)
    ), lost AS MATERIALIZED (
        SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
        WHERE q.status = 'SENDING'
          AND (q.claimed_by = ANY (dead_instances) OR q.claimed_at < stale_before)
          AND (q.claimed_by <> instance OR (q.event_id, q.endpoint_id) NOT IN (SELECT event_id, endpoint_id FROM in_flight))
    ), orphan AS MATERIALIZED (
        SELECT q.* FROM lost l
        JOIN webhook.delivery_queue q USING (event_id, endpoint_id)
        WHERE q.status = 'SENDING'
        FOR UPDATE OF q SKIP LOCKED
    ), requeued AS (
        UPDATE webhook.delivery_queue q
        SET status = 'PENDING', claimed_at = NULL, claimed_by = NULL, last_error = 'worker lost'
        FROM orphan o
        WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id AND o.attempts < o.max_attempts
        RETURNING 1
    ), removed AS (
        DELETE FROM webhook.delivery_queue q USING orphan o
        WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id AND o.attempts >= o.max_attempts
    ), dead AS (
        INSERT INTO webhook.dead_letter
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, expires_at, ordering_key,
             coalesce_key, claim_seq, last_status_code, last_error, duration_ms, created_at, completed_at)
        SELECT event_id, endpoint_id, event_type, 'FAILED', attempts, max_attempts, next_attempt_at, expires_at, ordering_key,
               coalesce_key, claim_seq, last_status_code, 'worker lost', duration_ms, created_at, now()
        FROM orphan o WHERE o.attempts >= o.max_attempts
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM requeued), (SELECT count(*) FROM dead),
           (SELECT count(*) FROM lost) - (SELECT count(*) FROM orphan)
    INTO released, failed, locked;
END $$;
