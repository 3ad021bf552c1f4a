-- Redacting: deletes an event's payload, and all answers of receivers, for good; when and where it was sent stays known.

-- Deletes the payload and the answers of receivers from every table, and cancels queued deliveries. Error texts stay: they
-- consist of our own words and a status code. Returns the number of rows that had something to lose.
CREATE OR REPLACE FUNCTION webhook.redact(redacted_id uuid) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked bigint;
    changed bigint;
    excerpts bigint;
BEGIN
    UPDATE webhook.event v SET payload = 'null', payload_bytes = 4, redacted_at = now() WHERE v.id = redacted_id AND v.redacted_at IS NULL;
    GET DIAGNOSTICS changed = ROW_COUNT;

    -- Other sessions see the redaction only after its commit: until then no delivery may leave its leaf, be sent, and log an
    -- answer. The next round locks a delivery that the worker or a person moved while we waited for it.
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

-- Removes an event's payload and all answers of receivers; when and where it was sent stays known. Queued deliveries are
-- cancelled, and the event is never sent again. Returns the number of rows changed: the event, deliveries and attempts.
CREATE OR REPLACE FUNCTION webhook.redact_event(event_id uuid) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_event(redact_event.event_id);
    RETURN webhook.change('redact', ARRAY[redact_event.event_id], NULL);
END $$;
