-- Redacting: deletes an event's payload and keys, and all answers of receivers, for good; when and where it was sent stays
-- known.

-- Removes the keys of the event's finished deliveries, which may be made of the row's values, and returns the number of
-- deliveries that had one. An older delivery with the coalesce_key of one that was sent may still be queued, and must not
-- overwrite it at the receiver: there the hash of the key stays.
CREATE OR REPLACE FUNCTION webhook.remove_keys(redacted_id uuid) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    finished bigint;
    failed bigint;
BEGIN
    UPDATE webhook.delivery_history d
    SET ordering_key = NULL, coalesce_key = CASE d.status WHEN 'SENT' THEN webhook.key_hash(d.coalesce_key) END
    WHERE d.event_id = redacted_id
      AND (d.ordering_key IS NOT NULL
           OR d.coalesce_key IS DISTINCT FROM CASE d.status WHEN 'SENT' THEN webhook.key_hash(d.coalesce_key) END);
    GET DIAGNOSTICS finished = ROW_COUNT;
    UPDATE webhook.dead_letter d SET ordering_key = NULL, coalesce_key = NULL
    WHERE d.event_id = redacted_id AND num_nonnulls(d.ordering_key, d.coalesce_key) > 0;
    GET DIAGNOSTICS failed = ROW_COUNT;
    RETURN finished + failed;
END $$;

-- Deletes the payload, the keys and the answers of receivers from every table, and cancels queued deliveries. The hash of the
-- idempotency key stays within its window, or the same event could be emitted again. Error texts stay: they consist of our own
-- words and a status code. Returns the number of rows that had something to lose.
CREATE OR REPLACE FUNCTION webhook.redact(redacted_id uuid) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked bigint;
    changed bigint;
    excerpts bigint;
BEGIN
    UPDATE webhook.event v SET payload = 'null', payload_bytes = 4, idempotency_key = NULL, redacted_at = now()
    WHERE v.id = redacted_id AND v.redacted_at IS NULL;
    GET DIAGNOSTICS changed = ROW_COUNT;

    -- Other sessions see the redaction only after its commit: until then no delivery may leave its leaf, be sent, and log an
    -- answer. The next round locks a delivery that the worker or a person moved while we waited for it.
    LOOP
        SELECT count(*) INTO locked
        FROM (SELECT FROM webhook.delivery d WHERE d.event_id = redacted_id ORDER BY d.endpoint_id FOR UPDATE) l;
        EXIT WHEN locked = (SELECT count(*) FROM webhook.delivery d WHERE d.event_id = redacted_id);
    END LOOP;
    PERFORM webhook.pass_turn(d.endpoint_id, d.ordering_key, d.event_id)
    FROM webhook.dead_letter d WHERE d.event_id = redacted_id AND d.ordering_key IS NOT NULL;
    changed := changed + webhook.remove_keys(redacted_id);
    changed := changed + (
        SELECT webhook.finish_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'CANCELLED', 'redacted')
        FROM webhook.delivery_queue q WHERE q.event_id = redacted_id);
    PERFORM webhook.remove_keys(redacted_id);

    UPDATE webhook.attempt a SET response_excerpt = NULL WHERE a.event_id = redacted_id AND a.response_excerpt IS NOT NULL;
    GET DIAGNOSTICS excerpts = ROW_COUNT;
    RETURN changed + excerpts;
END $$;

-- Removes an event's payload and keys and all answers of receivers; when and where it was sent stays known. Queued deliveries
-- are cancelled, and the event is never sent again. Returns the number of rows changed: the event, deliveries and attempts.
CREATE OR REPLACE FUNCTION webhook.redact_event(event_id uuid) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_event(redact_event.event_id);
    RETURN webhook.change('redact', ARRAY[redact_event.event_id], NULL);
END $$;
