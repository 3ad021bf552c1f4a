-- Alerts: events in the life of an endpoint or a metric that somebody should know about.
--
-- Functions that move breakers and deliveries, or look at metrics, leave a row in webhook.alert, in their own transaction. The
-- worker raises them in another transaction, at most once a second: a NOTIFY takes a lock of the whole server at its commit,
-- and trouble with alerts must not keep deliveries back. The same transaction deletes the rows, so each alert is raised once.
--
-- An alert is raised in three ways: a NOTIFY on webhook_alert, a WARNING in the log, and an event to the endpoints that
-- subscribe to webhook.* by name. Every role may LISTEN, so the NOTIFY has the kind of alert and ids, and no value that the
-- application has given us; roles that may read look the ids up. There is no loop: an endpoint gets no event about itself, and
-- the delivery of an event of the extension never causes another event. Its failure raises no alert at all; if it opens a
-- breaker, only NOTIFY and the log tell.

-- Emits the event of an alert to all endpoints that want it but the one it is about; none if no endpoint wants it.
CREATE OR REPLACE FUNCTION webhook.emit_alert(about_id int, about_tenant text, new_event_id uuid, type text, payload jsonb) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others int[] := ARRAY(SELECT s.endpoint_id FROM webhook.subscribers(webhook.matching_keys(about_tenant, type)) s
                          WHERE s.endpoint_id <> about_id AND (s.filter IS NULL OR webhook.passes(s.filter, type, payload)));
BEGIN
    IF cardinality(others) > 0 THEN
        PERFORM webhook.emit_events(ARRAY[new_event_id], ARRAY[type], ARRAY[payload], ARRAY[about_tenant], only_endpoints => others);
    END IF;
END $$;

-- Raises the alerts of at most that many rows; failed deliveries are counted together for each endpoint. Returns lines for the
-- log.
CREATE OR REPLACE FUNCTION webhook.raise_alerts(page_size int DEFAULT 500) RETURNS TABLE (message text, hint text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    alert record;
    event_type text;
    payload jsonb;
    address text;
BEGIN
    FOR alert IN
        WITH taken AS (
            DELETE FROM webhook.alert a
            WHERE a.id IN (SELECT w.id FROM webhook.alert w ORDER BY w.id LIMIT page_size FOR UPDATE SKIP LOCKED)
            RETURNING a.*
        ), counted AS (
            SELECT min(t.id) AS first_id, t.endpoint_id, t.kind, (array_agg(t.reason ORDER BY t.id DESC))[1] AS reason,
                   left((array_agg(t.error ORDER BY t.id DESC))[1], 500) AS error,
                   bool_or(t.is_own) AS is_own, max(t.metric) AS metric, max(t.raised_at) AS raised_at, sum(t.deliveries) AS deliveries,
                   (string_to_array(string_agg(array_to_string(t.event_ids, ','), ',' ORDER BY t.id), ','))[:10] AS event_ids
            FROM taken t
            GROUP BY t.endpoint_id, t.kind, CASE WHEN t.kind <> 'failed' THEN t.id END
        )
        SELECT webhook.new_id() AS id, c.*, about.address, about.tenant, about.metadata
        FROM counted c
        -- The endpoint may have been removed since.
        CROSS JOIN LATERAL (
            SELECT webhook.address(e.tenant, e.name), e.tenant, e.metadata FROM webhook.endpoint e WHERE e.id = c.endpoint_id
            UNION ALL
            SELECT webhook.address(r.tenant, r.name), r.tenant, '{}' FROM webhook.removed_endpoint r WHERE r.id = c.endpoint_id
            UNION ALL
            SELECT NULL, NULL, NULL WHERE c.metric IS NOT NULL
        ) about (address, tenant, metadata)
        ORDER BY c.first_id
    LOOP
        event_type := CASE WHEN alert.metric IS NOT NULL THEN 'webhook.metric.'
                           WHEN alert.kind = 'failed' THEN 'webhook.delivery.' ELSE 'webhook.endpoint.' END || alert.kind;
        payload := jsonb_strip_nulls(jsonb_build_object(
            'database', current_database(), 'endpoint', alert.address, 'tenant', alert.tenant, 'metric', alert.metric,
            'reason', alert.reason, 'error', alert.error,
            'deliveries', CASE WHEN alert.kind = 'failed' THEN alert.deliveries END,
            'event_ids', CASE WHEN alert.kind = 'failed' THEN to_jsonb(alert.event_ids) END,
            'at', alert.raised_at))
            || CASE WHEN alert.metric IS NULL THEN jsonb_build_object('metadata', alert.metadata) ELSE '{}' END;
        IF NOT alert.is_own THEN
            PERFORM webhook.emit_alert(alert.endpoint_id, alert.tenant, alert.id, event_type,
                                       CASE WHEN octet_length(payload::text) <= webhook.max_payload() THEN payload
                                            ELSE payload - 'metadata' END);
        END IF;

        -- The id makes each payload different: the server sends equal notifications of a transaction only once.
        PERFORM pg_notify('webhook_alert', jsonb_strip_nulls(jsonb_build_object(
            'id', alert.id, 'type', event_type, 'endpoint_id', nullif(alert.endpoint_id, 0), 'metric', alert.metric,
            'deliveries', payload -> 'deliveries', 'at', alert.raised_at))::text);

        message := CASE WHEN alert.metric IS NULL THEN format('webhook endpoint "%s"', alert.address)
                        ELSE format('webhook metric %s', alert.metric) END
            || format(' of database "%s": ', current_database()) || CASE alert.kind
            WHEN 'degraded' THEN format('keeps failing: %s', alert.error)
            WHEN 'opened' THEN format('circuit breaker opened: %s', alert.error)
            WHEN 'closed' THEN 'circuit breaker closed'
            WHEN 'disabled' THEN format('disabled (%s): %s', alert.reason, alert.error)
            WHEN 'failed' THEN format('%s since the last alert, the last: %s',
                CASE alert.deliveries WHEN 1 THEN 'a delivery failed' ELSE alert.deliveries || ' deliveries failed' END, alert.error)
            WHEN 'raised' THEN format('alert: %s', alert.error)
            WHEN 'cleared' THEN format('alert is over: %s', alert.error)
        END;
        address := quote_literal(alert.address);
        hint := CASE alert.kind
            WHEN 'degraded' THEN format('SELECT webhook_why(%s) explains it.', address)
            WHEN 'opened' THEN format('The endpoint gets nothing but probes until one succeeds. SELECT webhook_why(%1$s) says when, '
                                      'SELECT webhook_reset_breaker(%1$s) closes the breaker now.', address)
            WHEN 'closed' THEN 'The deliveries that waited go out now.'
            WHEN 'disabled' THEN format('The endpoint gets nothing until SELECT webhook_resume(%s).', address)
            WHEN 'failed' THEN format('SELECT * FROM webhook.failed WHERE endpoint = %1$s shows them; '
                                      'CALL webhook_replay_all(%1$s) sends them again.', address)
            WHEN 'raised' THEN webhook.metric_remedy(alert.metric)
        END;
        RETURN NEXT;
    END LOOP;
END $$;
