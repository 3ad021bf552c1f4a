-- Recovery: a claim whose worker is gone, or has forgotten it, goes back to the queue.
--
-- Recovery reads the queue in pages, by its primary key: page after page when a sender has died, as its row in webhook.sender
-- tells, and otherwise a page now and then, for claims that a restore has brought or that no sender remembers.

-- Puts back claims whose worker is gone: the attempt stays counted, since the request may have arrived. A delivery with no
-- attempt left fails. Returns how many of the rows somebody has locked.
CREATE OR REPLACE FUNCTION webhook.release_lost(
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

-- The claims on the next page of the queue; null is the beginning of the queue, and the end.
CREATE OR REPLACE FUNCTION webhook.next_claims(
    INOUT after_event uuid, INOUT after_endpoint int, page_size int,
    OUT event_ids uuid[], OUT endpoint_ids int[], OUT claimants int[], OUT claim_times timestamptz[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT q.event_id, q.endpoint_id, q.status, q.claimed_by, q.claimed_at FROM webhook.delivery_queue q
        WHERE (q.event_id, q.endpoint_id) > (coalesce(after_event, '00000000-0000-0000-0000-000000000000'), coalesce(after_endpoint, 0))
        ORDER BY q.event_id, q.endpoint_id LIMIT page_size
    ), last AS (
        SELECT p.event_id, p.endpoint_id FROM page p OFFSET page_size - 1
    )
    SELECT array_agg(p.event_id), array_agg(p.endpoint_id), array_agg(p.claimed_by), array_agg(p.claimed_at),
           (SELECT l.event_id FROM last l), (SELECT l.endpoint_id FROM last l)
    INTO event_ids, endpoint_ids, claimants, claim_times, after_event, after_endpoint
    FROM page p WHERE p.status = 'SENDING';
END $$;

-- After somebody has set the clock back, deliveries that were emitted before would wait for as long as the step was. This
-- makes them due now, and retries after their delay; a time that the emitter chose stays. The ids of events begin with the
-- time, so the primary key has these deliveries last; at other times there are none.
CREATE OR REPLACE FUNCTION webhook.follow_clock(page_size int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    -- Smaller steps of the clock are normal.
    future CONSTANT timestamptz := now() + interval '10 s';
BEGIN
    WITH ahead AS MATERIALIZED (
        SELECT q.ctid AS row_id FROM webhook.delivery_queue q
        WHERE q.event_id >= webhook.first_id(future) AND q.status = 'PENDING'
          AND CASE q.wait_reason WHEN 'new' THEN q.next_attempt_at > future AND q.next_attempt_at <= q.created_at
                                 WHEN 'retry' THEN q.last_attempt_at > future END
        ORDER BY q.event_id, q.endpoint_id LIMIT page_size FOR UPDATE SKIP LOCKED
    )
    UPDATE webhook.delivery_queue q
    SET next_attempt_at = now() + CASE q.wait_reason WHEN 'retry' THEN q.next_attempt_at - q.last_attempt_at ELSE interval '0' END,
        last_attempt_at = least(q.last_attempt_at, now())
    FROM ahead WHERE q.ctid = ahead.row_id;
END $$;

-- Releases claims on a page of the queue: those of a dead sender at once, and those of this sender after webhook.stale_after,
-- unless it knows them to be in flight; it may have claimed them in a session that it has lost. Returns how many of them
-- somebody has locked, which need another call, and where the next page begins: null is the beginning, and the end.
CREATE OR REPLACE FUNCTION webhook.recover(
    instance int, in_flight_event_ids uuid[], in_flight_endpoint_ids int[],
    INOUT after_event uuid DEFAULT NULL, INOUT after_endpoint int DEFAULT NULL, page_size int DEFAULT 2000,
    OUT released bigint, OUT failed bigint, OUT locked bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    stale_before timestamptz := now() - webhook.setting('stale_after')::interval;
    page record;
    dead_senders int[];
    lost_event_ids uuid[];
    lost_endpoint_ids int[];
BEGIN
    SELECT * INTO page FROM webhook.next_claims(after_event, after_endpoint, page_size);
    recover.after_event := page.after_event;
    recover.after_endpoint := page.after_endpoint;

    -- A transaction sees the sessions as of its first look at them; this look must come after the claims were read.
    PERFORM pg_stat_clear_snapshot();
    SELECT array_agg(other.id) INTO dead_senders
    FROM (SELECT DISTINCT claimant AS id FROM unnest(page.claimants) AS claimant WHERE claimant <> instance) other
    WHERE NOT webhook.is_sender_alive(other.id);

    SELECT coalesce(array_agg(c.event_id), '{}'), coalesce(array_agg(c.endpoint_id), '{}')
    INTO lost_event_ids, lost_endpoint_ids
    FROM unnest(page.event_ids, page.endpoint_ids, page.claimants, page.claim_times)
        AS c (event_id, endpoint_id, claimed_by, claimed_at)
    WHERE (c.claimed_by = ANY (dead_senders) OR c.claimed_by = instance AND c.claimed_at < stale_before)
      AND (c.event_id, c.endpoint_id) NOT IN (SELECT * FROM unnest(in_flight_event_ids, in_flight_endpoint_ids));

    SELECT r.released, r.failed, r.locked INTO released, failed, locked
    FROM webhook.release_lost(lost_event_ids, lost_endpoint_ids) r;

    PERFORM webhook.follow_clock(page_size);
END $$;

-- Ends waiting deliveries of endpoints that were removed, as the removal says: at most that many in all, of the next
-- endpoints. Returns how many, and after which endpoint to go on; 0 is the beginning.
CREATE OR REPLACE FUNCTION webhook.end_orphans(INOUT after_endpoint int, page_size int, OUT ended bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    orphans record;
BEGIN
    orphans := webhook.next_orphans(after_endpoint, page_size);
    ended := coalesce(webhook.finish_queued(orphans.cancelled_events, orphans.cancelled_endpoints, 'CANCELLED', 'endpoint_removed'), 0)
             + coalesce(webhook.fail_queued(orphans.failed_events, orphans.failed_endpoints, 'endpoint_removed'), 0);
    UPDATE webhook.removed_endpoint r SET ended_at = now()
    WHERE r.id = ANY (orphans.cancelled_endpoints || orphans.failed_endpoints);
    -- After a full page the same endpoint may have more.
    after_endpoint := CASE WHEN ended < page_size THEN coalesce(orphans.next_endpoint, 0) ELSE after_endpoint END;
END $$;

CREATE OR REPLACE FUNCTION webhook.next_orphans(
    after_endpoint int, page_size int, OUT cancelled_events uuid[], OUT cancelled_endpoints int[],
    OUT failed_events uuid[], OUT failed_endpoints int[], OUT next_endpoint int)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    most_endpoints CONSTANT int := 300;
BEGIN
    next_endpoint := (SELECT r.id FROM webhook.removed_endpoint r WHERE r.id > after_endpoint
                      ORDER BY r.id OFFSET most_endpoints - 1 LIMIT 1);
    SELECT array_agg(o.event_id) FILTER (WHERE o.pending = 'cancel'), array_agg(o.endpoint_id) FILTER (WHERE o.pending = 'cancel'),
           array_agg(o.event_id) FILTER (WHERE o.pending = 'fail'), array_agg(o.endpoint_id) FILTER (WHERE o.pending = 'fail')
    INTO cancelled_events, cancelled_endpoints, failed_events, failed_endpoints
    FROM (SELECT q.event_id, q.endpoint_id, r.pending
          FROM (SELECT r.id, r.pending FROM webhook.removed_endpoint r WHERE r.id > after_endpoint
                ORDER BY r.id LIMIT most_endpoints) r
          CROSS JOIN LATERAL (
              SELECT due.* FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
                                 WHERE q.endpoint_id = r.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                                 LIMIT page_size FOR UPDATE SKIP LOCKED) due
              UNION ALL
              SELECT aside.* FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
                                   WHERE q.endpoint_id = r.id AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL)
                                   LIMIT page_size FOR UPDATE SKIP LOCKED) aside
          ) q
          LIMIT page_size) o;
END $$;
