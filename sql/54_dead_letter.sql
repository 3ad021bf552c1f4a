-- Dead letters: deliveries that failed for good, as people see them and name them.
--
-- 56_replay.sql sends them again, 58_discard.sql deletes them, 52_retention.sql deletes them when their time is over.

-- The verdict and the answer are those of the last attempt that decided something; the server looks them up only if a query
-- asks for them.
CREATE OR REPLACE VIEW webhook.failed AS
SELECT d.event_id, d.event_type, webhook.address(n.tenant, n.name) AS endpoint, v.tenant, d.created_at, d.completed_at AS failed_at,
       d.attempts,
       (SELECT a.verdict FROM webhook.attempt a
        WHERE a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id AND a.verdict <> 'late'
        ORDER BY a.claim_seq DESC LIMIT 1) AS verdict,
       d.reason, d.last_status_code, d.last_error,
       (SELECT a.response_excerpt FROM webhook.attempt a
        WHERE a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id AND a.verdict <> 'late'
        ORDER BY a.claim_seq DESC LIMIT 1) AS last_answer,
       v.payload
FROM webhook.dead_letter d
LEFT JOIN webhook.event v ON v.id = d.event_id
LEFT JOIN (SELECT e.id, e.tenant, e.name FROM webhook.endpoint e UNION ALL SELECT r.id, r.tenant, r.name FROM webhook.removed_endpoint r) n
    ON n.id = d.endpoint_id;

CREATE OR REPLACE FUNCTION webhook.require_event(wanted_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = wanted_id)
       AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = wanted_id)
       AND NOT EXISTS (SELECT FROM webhook.attempt a WHERE a.event_id = wanted_id) THEN
        RAISE EXCEPTION 'event "%" does not exist', wanted_id USING ERRCODE = 'undefined_object',
            DETAIL = 'It was never committed, or it has been discarded or removed since.',
            HINT = 'An event has the id that webhook_emit() returned and receivers saw as webhook-id.';
    END IF;
END $$;

-- The endpoints of an address, with the removed ones that had it: their deliveries are still here, and the view shows them by
-- that address. Null for '*', which stands for every endpoint.
CREATE OR REPLACE FUNCTION webhook.named_endpoints(address text) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed_ids int[];
BEGIN
    IF address = '*' THEN
        RETURN NULL;
    END IF;
    removed_ids := ARRAY(
        SELECT r.id FROM webhook.removed_endpoint r
        WHERE webhook.address(r.tenant, r.name) = address OR r.tenant || '/*' = address);
    IF cardinality(removed_ids) = 0 THEN
        RETURN webhook.addressed_endpoints(address);
    END IF;
    RETURN removed_ids || ARRAY(
        SELECT e.id FROM webhook.endpoint e
        WHERE webhook.address(e.tenant, e.name) = address OR e.tenant || '/*' = address);
END $$;
