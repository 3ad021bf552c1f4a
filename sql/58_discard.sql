-- Discarding: people delete dead letters that nobody wants to send any more.
--
-- webhook_discard() deletes the dead letters of one event, with their attempts, and the event when nothing else needs it. To
-- discard many, people write DELETE FROM webhook.dead_letter WHERE ..: retention (52_retention.sql) deletes the attempts and
-- events that are left then, when their time is over. An operator may delete from that leaf alone: an UPDATE of
-- webhook.delivery cancels a queued delivery, and operators may not change the history.

-- This locks the events first: of two people who discard the last two deliveries of one, the later one sees that they were the
-- last.
CREATE OR REPLACE FUNCTION webhook.discard(event_ids uuid[], endpoint_ids int[]) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    discarded bigint;
BEGIN
    PERFORM FROM webhook.event v WHERE v.id = ANY (event_ids) ORDER BY v.id FOR UPDATE;
    WITH gone AS (
        DELETE FROM webhook.dead_letter d
        USING (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id
        RETURNING d.event_id, d.endpoint_id
    ), unlogged AS (
        DELETE FROM webhook.attempt a USING gone g WHERE a.event_id = g.event_id AND a.endpoint_id = g.endpoint_id
    )
    SELECT count(*) INTO discarded FROM gone;
    PERFORM webhook.forget(event_ids, NULL, 'infinity');
    RETURN discarded;
END $$;

CREATE OR REPLACE FUNCTION webhook.discard_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_endpoints int[] := CASE WHEN endpoint IS NOT NULL THEN webhook.named_endpoints(endpoint) END;
    found record;
BEGIN
    PERFORM webhook.require_event(discard_event.event_id);
    SELECT array_agg(d.event_id) AS event_ids, array_agg(d.endpoint_id) AS endpoint_ids
    INTO found
    FROM webhook.dead_letter d
    WHERE d.event_id = discard_event.event_id AND (of_endpoints IS NULL OR d.endpoint_id = ANY (of_endpoints));
    IF found.event_ids IS NULL THEN
        RAISE NOTICE 'event % has no failed delivery', discard_event.event_id
            USING HINT = format('UPDATE webhook.delivery SET status = ''CANCELLED'' WHERE event_id = %L '
                                'AND status IN (''PENDING'', ''SENDING'') cancels deliveries that are queued.', discard_event.event_id);
    END IF;
    RETURN webhook.change('discard', found.event_ids, found.endpoint_ids);
END $$;
