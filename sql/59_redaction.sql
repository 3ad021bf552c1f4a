-- Redacting: an event's payload, and all that receivers answered, go for good; when and where it was sent stays known.

-- Takes the payload and what receivers answered out of every table, and what is queued out of the queue. Error texts stay:
-- they are made of our own words and a status code. Returns the number of rows that had something to lose.
CREATE OR REPLACE FUNCTION webhook.redact(redacted_id uuid) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked bigint;
    changed bigint;
    excerpts bigint;
BEGIN
    UPDATE webhook.event v SET payload = 'null', payload_bytes = 4, redacted_at = now() WHERE v.id = redacted_id AND v.redacted_at IS NULL;
    GET DIAGNOSTICS changed = ROW_COUNT;

    -- Until this is committed nobody sees it: no delivery may leave its leaf meanwhile, be sent, and log an answer. One that
    -- the worker or a person moved while we waited for it is locked in the next round.
    LOOP
        SELECT count(*) INTO locked
        FROM (SELECT FROM webhook.delivery d WHERE d.event_id = redacted_id ORDER BY d.endpoint_id FOR UPDATE) l;
        EXIT WHEN locked = (SELECT count(*) FROM webhook.delivery d WHERE d.event_id = redacted_id);
    END LOOP;
    changed := changed + (
        SELECT webhook.finish_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'CANCELLED', 'redacted')
        FROM webhook.delivery_queue q WHERE q.event_id = redacted_id);
    PERFORM webhook.pass_turn(d.endpoint_id, d.ordering_key, d.event_id)
    FROM webhook.dead_letter d WHERE d.event_id = redacted_id AND d.ordering_key IS NOT NULL;

    UPDATE webhook.attempt a SET response_excerpt = NULL WHERE a.event_id = redacted_id AND a.response_excerpt IS NOT NULL;
    GET DIAGNOSTICS excerpts = ROW_COUNT;
    RETURN changed + excerpts;
END $$;

-- Removes an event's payload and all that receivers answered; when and where it was sent stays known. What is still queued is
-- cancelled, and it is never sent again. Returns the number of rows changed: the event, deliveries and attempts.
CREATE OR REPLACE FUNCTION webhook.redact_event(event_id uuid) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_event(redact_event.event_id);
    RETURN webhook.change('redact', ARRAY[redact_event.event_id], NULL);
END $$;
