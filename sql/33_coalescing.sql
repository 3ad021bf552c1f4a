-- Coalescing: of the events of a tenant with the same coalesce_key, an endpoint gets only the newest one that waits. A
-- delivery that a later event supersedes becomes CANCELLED, reason coalesced. A delivery in flight is not called back.
--
-- Emit supersedes the deliveries that it sees, and waits for no lock. In REPEATABLE READ and SERIALIZABLE it supersedes none,
-- since a change by the worker meanwhile would cost the emitter its transaction. Two transactions that emit at the same time
-- do not see each other's events, and a delivery in flight may come back for another attempt. So the claim looks once more,
-- and takes no delivery that has a newer one behind it, nor one whose newer one has been sent already: at the receiver it
-- would overwrite the newer state. A delivery that a person sends again by webhook_replay() or with an UPDATE, after it was
-- sent or cancelled, is sent all the same; it has lost its key (requeue(), manual_update()).

-- The deliveries that are older than one of these events, have its coalesce_key, and wait for an endpoint that it goes to. The
-- settings are for this statement alone: a function that it called would inherit them.
CREATE OR REPLACE FUNCTION webhook.superseded(by_events uuid[], OUT event_ids uuid[], OUT endpoint_ids int[])
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT array_agg(older.event_id), array_agg(older.endpoint_id) INTO event_ids, endpoint_ids
    FROM unnest(by_events) AS by_event (id)
    JOIN webhook.event e ON e.id = by_event.id
    JOIN webhook.delivery_queue new ON new.event_id = e.id
    CROSS JOIN LATERAL (
        SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
        WHERE q.endpoint_id = new.endpoint_id AND q.coalesce_key = new.coalesce_key AND q.event_id < new.event_id
          AND q.status = 'PENDING'
          AND (SELECT v.tenant FROM webhook.event v WHERE v.id = q.event_id) IS NOT DISTINCT FROM e.tenant
        ORDER BY q.endpoint_id, q.coalesce_key, q.event_id
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) older;
END $$;

CREATE OR REPLACE FUNCTION webhook.supersede(by_events uuid[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    older record;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN;
    END IF;
    older := webhook.superseded(by_events);
    IF older.event_ids IS NOT NULL THEN
        PERFORM webhook.finish_queued(older.event_ids, older.endpoint_ids, 'CANCELLED', 'coalesced');
    END IF;
END $$;

-- Whether a newer delivery waits, is in flight or has been sent. A redacted one that was sent has the hash of its key. It has
-- the settings of the caller, which asks for row after row.
CREATE OR REPLACE FUNCTION webhook.is_superseded(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_tenant text;
    sent_keys text[];
BEGIN
    IF q.coalesce_key IS NULL THEN
        RETURN false;
    END IF;
    sent_keys := ARRAY[q.coalesce_key, webhook.key_hash(q.coalesce_key)];
    of_tenant := (SELECT v.tenant FROM webhook.event v WHERE v.id = q.event_id);
    RETURN EXISTS (SELECT FROM webhook.delivery_queue newer
                   WHERE newer.endpoint_id = q.endpoint_id AND newer.coalesce_key = q.coalesce_key AND newer.event_id > q.event_id
                     AND (SELECT v.tenant FROM webhook.event v WHERE v.id = newer.event_id) IS NOT DISTINCT FROM of_tenant)
        OR EXISTS (SELECT FROM webhook.delivery_history newer
                   WHERE newer.endpoint_id = q.endpoint_id AND newer.coalesce_key = ANY (sent_keys) AND newer.event_id > q.event_id
                     AND newer.status = 'SENT'
                     AND (SELECT v.tenant FROM webhook.event v WHERE v.id = newer.event_id) IS NOT DISTINCT FROM of_tenant);
END $$;

-- Returns the rows among these, which the caller has locked, that no newer delivery supersedes; it cancels the others.
CREATE OR REPLACE FUNCTION webhook.cancel_superseded(row_ids tid[]) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    superseded record;
BEGIN
    SELECT array_agg(q.ctid) AS row_ids, array_agg(q.event_id) AS event_ids, array_agg(q.endpoint_id) AS endpoint_ids
    INTO superseded
    FROM webhook.delivery_queue q
    WHERE q.ctid = ANY (row_ids) AND webhook.is_superseded(q);
    IF superseded.row_ids IS NULL THEN
        RETURN row_ids;
    END IF;
    PERFORM webhook.finish_queued(superseded.event_ids, superseded.endpoint_ids, 'CANCELLED', 'coalesced');
    RETURN ARRAY(SELECT row_id FROM unnest(row_ids) AS row_id WHERE row_id <> ALL (superseded.row_ids));
END $$;
