-- Retention: the worker deletes rows that nobody needs any more, a little at a time.
--
-- A finished delivery goes webhook.retention_sent after it was SENT or CANCELLED, webhook.retention_failed after it has
-- FAILED, and its attempts with it. An event goes when it is older than webhook.retention_sent and no delivery has it, whether
-- they are gone or there never was one; -1 keeps for ever. The worker calls these functions between its turns. Each call is a
-- short transaction that reads a bounded number of rows by an index, and waits for no lock: it passes over a locked row, and a
-- later sweep finds it. An idempotency key goes when webhook.idempotency_window is over, even if its event is still there.
--
-- No event goes that is needed again. A function that moves a delivery deletes and inserts it in one transaction, so in any
-- one snapshot it is in exactly one leaf, and a single statement looks into all of them. A function that makes a delivery for
-- an event that has none, as 57_backfill.sql does, locks the event first, or the event may just have gone.
--
-- As in 34_claim.sql the plans are fixed; OFFSET 0 keeps the planner from turning an EXISTS into a join the wrong way round.

CREATE OR REPLACE FUNCTION webhook.first_id(emitted_at timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN (lpad(to_hex(greatest(0, floor(extract(epoch FROM emitted_at) * 1000))::bigint), 12, '0') || repeat('0', 20))::uuid;

-- Does one step: looks at no more than that many sent deliveries, dead letters, events and keys, each kind from the position
-- of the last step. `more`: one kind had as many as asked for, so there may be others; `behind`: that many of one kind had to
-- go. Each kind has its own limit, or a steady flow of one would keep the others for ever. A position is only a short cut past
-- rows that are deleted and not yet vacuumed, and past old events that are still needed: null is the beginning.
CREATE OR REPLACE FUNCTION webhook.expire(
    step int, INOUT sent_from timestamptz, INOUT failed_from timestamptz, INOUT event_after uuid, INOUT key_from timestamptz,
    OUT more boolean, OUT behind boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET timezone = 'UTC' SET lock_timeout = '1 ms' AS $$
DECLARE
    sent_before timestamptz := now() - nullif(webhook.setting('retention_sent'), '-1')::interval;
    failed_before timestamptz := now() - nullif(webhook.setting('retention_failed'), '-1')::interval;
    tests_before timestamptz := now() - interval '1 min';    -- webhook_test() removes its own event when it has seen the outcome
    key_before timestamptz := now() - webhook.setting('idempotency_window')::interval;
    sent int := 0;
    failed int := 0;
    events int;
    keys int;
    event_ids uuid[];
    endpoint_ids int[];
BEGIN
    -- If a crash brings rows back, a later step deletes them again.
    PERFORM set_config('synchronous_commit', 'off', true);

    -- If there is no endpoint and none was removed, a restore is under way.
    IF EXISTS (SELECT FROM webhook.endpoint) OR EXISTS (SELECT FROM webhook.removed_endpoint) THEN
        WITH gone AS (
            DELETE FROM webhook.delivery_history
            WHERE ctid = ANY (ARRAY(
                SELECT h.ctid FROM webhook.delivery_history h
                WHERE h.completed_at >= coalesce(sent_from, '-infinity') AND h.completed_at < sent_before
                  AND (h.event_type <> 'webhook.test' OR h.completed_at < tests_before)
                ORDER BY h.completed_at LIMIT step FOR UPDATE SKIP LOCKED))
            RETURNING event_id, endpoint_id, completed_at
        )
        SELECT array_agg(g.event_id), array_agg(g.endpoint_id), coalesce(max(g.completed_at), sent_from), count(*)
        INTO event_ids, endpoint_ids, sent_from, sent
        FROM gone g;

        WITH gone AS (
            DELETE FROM webhook.dead_letter
            WHERE ctid = ANY (ARRAY(
                SELECT f.ctid FROM webhook.dead_letter f
                WHERE f.completed_at >= coalesce(failed_from, '-infinity') AND f.completed_at < failed_before
                  AND (f.event_type <> 'webhook.test' OR f.completed_at < tests_before)
                ORDER BY f.completed_at LIMIT step FOR UPDATE SKIP LOCKED))
            RETURNING event_id, endpoint_id, completed_at
        )
        SELECT event_ids || array_agg(g.event_id), endpoint_ids || array_agg(g.endpoint_id),
               coalesce(max(g.completed_at), failed_from), count(*)
        INTO event_ids, endpoint_ids, failed_from, failed
        FROM gone g;

        PERFORM webhook.forget(event_ids, endpoint_ids, sent_before);
    END IF;

    -- These events have no delivery whose end would delete them.
    event_ids := ARRAY(
        SELECT v.id FROM webhook.event v
        WHERE v.id > coalesce(event_after, '00000000-0000-0000-0000-000000000000') AND v.id < webhook.first_id(sent_before)
        ORDER BY v.id LIMIT step);
    events := webhook.forget(event_ids, NULL, sent_before);
    event_after := coalesce(event_ids[cardinality(event_ids)], event_after);

    WITH gone AS (
        DELETE FROM webhook.idempotency
        WHERE ctid = ANY (ARRAY(
            SELECT i.ctid FROM webhook.idempotency i
            WHERE i.created_at >= coalesce(key_from, '-infinity') AND i.created_at < key_before
            ORDER BY i.created_at LIMIT step FOR UPDATE SKIP LOCKED))
        RETURNING created_at
    )
    SELECT count(*), coalesce(max(g.created_at), key_from) INTO keys, key_from FROM gone g;
    behind := step <= greatest(sent, failed, events, keys);
    more := behind OR step <= cardinality(event_ids);
END $$;

-- How long ago the oldest row that has outlived its retention should have gone: a delivery, or an idempotency key. It takes
-- one probe of an index each. It does not look at events: a dead letter keeps its event for as long as it needs it.
CREATE OR REPLACE FUNCTION webhook.retention_lag() RETURNS interval
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET jit = off AS $$
BEGIN
    RETURN greatest(
        interval '0',
        now() - nullif(webhook.setting('retention_sent'), '-1')::interval
            - (SELECT h.completed_at FROM webhook.delivery_history h ORDER BY h.completed_at LIMIT 1),
        now() - nullif(webhook.setting('retention_failed'), '-1')::interval
            - (SELECT f.completed_at FROM webhook.dead_letter f ORDER BY f.completed_at LIMIT 1),
        now() - webhook.setting('idempotency_window')::interval
            - (SELECT i.created_at FROM webhook.idempotency i ORDER BY i.created_at LIMIT 1));
END $$;

-- Deletes figures of the next endpoints, at most that many: minutes that are older than a day, hours that are older than a
-- month, and the total of a removed endpoint when nothing else is left of it. Returns where to go on; 0 is the beginning.
CREATE OR REPLACE FUNCTION webhook.expire_figures(INOUT after_endpoint int, page_size int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET lock_timeout = '1 ms' AS $$
DECLARE
    endpoint_ids int[];
BEGIN
    WITH RECURSIVE page AS (
        SELECT (SELECT s.endpoint_id FROM webhook.stat s WHERE s.endpoint_id > after_endpoint
                ORDER BY s.endpoint_id LIMIT 1) AS id, 1 AS ordinal
        UNION ALL
        SELECT (SELECT s.endpoint_id FROM webhook.stat s WHERE s.endpoint_id > page.id
                ORDER BY s.endpoint_id LIMIT 1), page.ordinal + 1
        FROM page WHERE page.id IS NOT NULL AND page.ordinal < page_size
    )
    SELECT array_agg(page.id ORDER BY page.id) INTO endpoint_ids FROM page WHERE page.id IS NOT NULL;

    DELETE FROM webhook.stat
    WHERE ctid = ANY (ARRAY(
        SELECT expired.row_id
        -- The first page also has endpoint 0, which stands for all.
        FROM unnest(endpoint_ids || CASE WHEN after_endpoint = 0 THEN 0 END) AS page (id)
        CROSS JOIN (VALUES ('minute', now() - interval '1 day'), ('hour', now() - interval '31 days')) AS kept (grain, since)
        CROSS JOIN LATERAL (
            SELECT s.ctid AS row_id FROM webhook.stat s
            WHERE s.endpoint_id = page.id AND s.grain = kept.grain AND s.begins_at < kept.since
            LIMIT 100 FOR UPDATE SKIP LOCKED
        ) expired
        LIMIT 5000));

    DELETE FROM webhook.stat
    WHERE ctid = ANY (ARRAY(
        SELECT total.row_id
        FROM unnest(endpoint_ids) AS page (id)
        CROSS JOIN LATERAL (SELECT FROM webhook.removed_endpoint r WHERE r.id = page.id LIMIT 1) removed
        CROSS JOIN LATERAL (
            SELECT s.ctid AS row_id FROM webhook.stat s
            WHERE s.endpoint_id = page.id AND s.grain = 'total'
              AND NOT EXISTS (SELECT FROM webhook.stat o WHERE o.endpoint_id = page.id AND o.grain IN ('hour', 'minute') OFFSET 0)
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) total));

    after_endpoint := CASE WHEN cardinality(endpoint_ids) = page_size THEN endpoint_ids[page_size] ELSE 0 END;
END $$;

-- Forgets removed endpoints when no delivery, whose reader wants their name, and no figure has their id any more, but not
-- before a week has passed since a delivery of theirs was last ended, for a transaction that was open when they were removed.
-- Deliveries in the history were ended by then, so those that are left there are younger than the oldest of all. Looks at the
-- next ones, at most that many, and returns where to go on; 0 is the beginning.
CREATE OR REPLACE FUNCTION webhook.forget_removed_endpoints(INOUT after_endpoint int, page_size int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET lock_timeout = '1 ms' AS $$
DECLARE
    oldest_finished timestamptz := (SELECT h.completed_at FROM webhook.delivery_history h ORDER BY h.completed_at LIMIT 1);
    page int[] := ARRAY(SELECT r.id FROM webhook.removed_endpoint r WHERE r.id > after_endpoint ORDER BY r.id LIMIT page_size);
BEGIN
    DELETE FROM webhook.removed_endpoint
    WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM webhook.removed_endpoint r
        WHERE r.id = ANY (page) AND r.ended_at < now() - interval '7 days'
          AND (oldest_finished IS NULL OR r.ended_at < oldest_finished)
          AND NOT EXISTS (SELECT FROM webhook.dead_letter d WHERE d.endpoint_id = r.id OFFSET 0)
          AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                          WHERE q.endpoint_id = r.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL OFFSET 0)
          AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                          WHERE q.endpoint_id = r.id AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL) OFFSET 0)
          AND NOT EXISTS (SELECT FROM webhook.stat s WHERE s.endpoint_id = r.id OFFSET 0)
        FOR UPDATE SKIP LOCKED));
    after_endpoint := coalesce(page[page_size], 0);
END $$;
