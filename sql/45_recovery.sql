-- Recovery: a claim whose worker is gone, or has forgotten it, goes back to the queue.

-- Begins a run of a worker: takes a number, and a lock on it that lasts as long as the session. Anybody may have
-- locked a number, or many: the next one does as well. The tries are bounded; the next worker goes on after them.
CREATE FUNCTION webhook.begin_instance() RETURNS int
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most_tries CONSTANT int := 20000;
    instance int;
BEGIN
    FOR try IN 1..most_tries LOOP
        instance := nextval('webhook.worker_instance');
        IF pg_try_advisory_lock(webhook.instance_lock(), instance) THEN
            RETURN instance;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'somebody has locked the numbers of the next % workers', most_tries
        USING ERRCODE = 'lock_not_available',
              HINT = format('SELECT pid FROM pg_locks WHERE locktype = ''advisory'' AND classid = %s shows who.',
                            webhook.instance_lock());
END $$;

-- The first of the two keys of that lock: "webh", so that nobody else's advisory locks are in the way.
CREATE FUNCTION webhook.instance_lock() RETURNS int LANGUAGE sql IMMUTABLE RETURN 2003133032;

-- Whether the run of a worker with this number still goes on. Anybody may take any advisory lock, so one counts only where
-- its holder has logged in as the owner of our tables, as workers do and no client can.
CREATE FUNCTION webhook.is_instance_alive(instance int) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM pg_locks l
                   JOIN pg_stat_activity a ON a.pid = l.pid
                   WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                     AND l.classid = webhook.instance_lock()::oid AND l.objid = instance::oid
                     AND a.usesysid = (SELECT c.relowner FROM pg_class c WHERE c.oid = 'webhook.delivery'::regclass));

-- Puts back claims whose worker is gone: the attempt stays counted, since the request may have arrived. With none
-- left the delivery has failed. Says how many of the rows somebody has locked.
CREATE FUNCTION webhook.release_lost(
    event_ids uuid[], endpoint_ids int[], OUT released bigint, OUT failed bigint, OUT locked bigint)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    spent_event_ids uuid[];
    spent_endpoint_ids int[];
BEGIN
    WITH lost AS MATERIALIZED (
        SELECT q.event_id, q.endpoint_id, q.attempts < q.max_attempts AS has_attempts_left
        FROM unnest(event_ids, endpoint_ids) AS l (event_id, endpoint_id)
        JOIN webhook.delivery_queue q USING (event_id, endpoint_id)
        WHERE q.status = 'SENDING'
        FOR UPDATE OF q SKIP LOCKED
    ), requeued AS (
        UPDATE webhook.delivery_queue q
        SET status = 'PENDING', wait_reason = 'retry', claimed_at = NULL, claimed_by = NULL, last_attempt_at = now(),
            reason = 'worker_lost', last_error = 'worker lost'
        FROM lost l
        WHERE q.event_id = l.event_id AND q.endpoint_id = l.endpoint_id AND l.has_attempts_left
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM requeued), cardinality(event_ids) - count(*),
           array_agg(l.event_id) FILTER (WHERE NOT l.has_attempts_left),
           array_agg(l.endpoint_id) FILTER (WHERE NOT l.has_attempts_left)
    INTO released, locked, spent_event_ids, spent_endpoint_ids
    FROM lost l;
    failed := webhook.fail_queued(spent_event_ids, spent_endpoint_ids, 'worker_lost');
END $$;

-- Releases at once what a dead instance had claimed, and after webhook.stale_after what this one does not know to be
-- in flight. Says how many of them somebody has locked; they need another call.
CREATE FUNCTION webhook.recover(
    instance int, in_flight_event_ids uuid[], in_flight_endpoint_ids int[],
    OUT released bigint, OUT failed bigint, OUT locked bigint)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    stale_before timestamptz := now() - webhook.setting('stale_after')::interval;
    dead_instances int[];
    lost_event_ids uuid[];
    lost_endpoint_ids int[];
BEGIN
    -- A transaction sees the sessions as of its first look at them; that must not be one before the claims were read.
    PERFORM pg_stat_clear_snapshot();
    SELECT array_agg(other.claimed_by) INTO dead_instances
    FROM (SELECT DISTINCT q.claimed_by FROM webhook.delivery_queue q
          WHERE q.status = 'SENDING' AND q.claimed_by <> instance) other
    WHERE NOT webhook.is_instance_alive(other.claimed_by);

    SELECT coalesce(array_agg(q.event_id), '{}'), coalesce(array_agg(q.endpoint_id), '{}')
    INTO lost_event_ids, lost_endpoint_ids
    FROM webhook.delivery_queue q
    WHERE q.status = 'SENDING'
      AND (q.claimed_by = ANY (dead_instances) OR q.claimed_at < stale_before)
      AND (q.claimed_by <> instance
           OR (q.event_id, q.endpoint_id) NOT IN (SELECT * FROM unnest(in_flight_event_ids, in_flight_endpoint_ids)));

    SELECT r.released, r.failed, r.locked INTO released, failed, locked
    FROM webhook.release_lost(lost_event_ids, lost_endpoint_ids) r;
    PERFORM webhook.keep_order();
END $$;

-- Cancels what was queued for an endpoint after it was removed.
CREATE FUNCTION webhook.cancel_orphans() RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    cancelled bigint;
BEGIN
    SELECT webhook.finish_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'CANCELLED', 'endpoint_removed') INTO cancelled
    FROM webhook.removed_endpoint r
    CROSS JOIN LATERAL (
        SELECT due.* FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
                           WHERE q.endpoint_id = r.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                           LIMIT 1000 FOR UPDATE SKIP LOCKED) due
        UNION ALL
        SELECT aside.* FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
                             WHERE q.endpoint_id = r.id AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL)
                             LIMIT 1000 FOR UPDATE SKIP LOCKED) aside
    ) q
    HAVING count(*) > 0;
    RETURN coalesce(cancelled, 0);
END $$;
