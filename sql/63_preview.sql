-- Previewing: the request of an event, rendered by the code that sends it.

-- It previews for any endpoint, whether it wants the event or not. The headers are credentials. An endpoint that was made
-- without a secret gets it here, as it would at its first claim.
CREATE OR REPLACE FUNCTION webhook.preview(event_id uuid, endpoint text, OUT url text, OUT headers jsonb, OUT body text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target_id int := webhook.require_endpoint(preview.endpoint);
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = preview.event_id) THEN
        RAISE EXCEPTION 'event % does not exist', preview.event_id USING ERRCODE = 'undefined_object',
            HINT = format('SELECT webhook_why(%L) says what may have become of it.', preview.event_id);
    ELSIF EXISTS (SELECT FROM webhook.event v WHERE v.id = preview.event_id AND v.redacted_at IS NOT NULL) THEN
        RAISE EXCEPTION 'event % was redacted', preview.event_id USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'It has no payload any more and is not sent again.';
    END IF;

    SELECT request.sent_url, header.fields, request.body
    INTO url, headers, body
    FROM webhook.event v
    CROSS JOIN webhook.routes(ARRAY[target_id]) route
    -- A finished delivery would be sent again from its first attempt.
    LEFT JOIN webhook.delivery_queue q ON q.event_id = v.id AND q.endpoint_id = route.endpoint_id
    CROSS JOIN LATERAL webhook.render_request(
        v.id, v.event_type, v.tenant, webhook.wire_time(v.created_at), v.payload::text,
        CASE q.status WHEN 'PENDING' THEN q.attempts WHEN 'SENDING' THEN q.attempts - 1 ELSE 0 END,
        route.url, ARRAY(SELECT h.key FROM jsonb_each_text(route.headers) AS h ORDER BY h.key),
        ARRAY(SELECT h.value FROM jsonb_each_text(route.headers) AS h ORDER BY h.key), route.format, route.template, route.source, route.secrets,
        route.hmac_secrets) request
    CROSS JOIN LATERAL (
        SELECT jsonb_object_agg(f.name, f.value) AS fields
        FROM (SELECT h.name, string_agg(h.value, ', ' ORDER BY h.ordinal) AS value
              FROM unnest(request.sent_header_names, request.sent_header_values) WITH ORDINALITY AS h (name, value, ordinal)
              GROUP BY h.name) f
    ) header
    WHERE v.id = preview.event_id;
END $$;
