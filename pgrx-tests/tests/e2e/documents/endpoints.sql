CREATE EXTENSION webhook;
SELECT webhook_set_endpoint(name, 'https://example.com/hooks', '{order.*, invoice.*}')
FROM unnest('{shipping, billing, archive, acme/billing}'::text[]) AS name;
INSERT INTO webhook.event (id, event_type, payload, created_at) VALUES ('..', 'order.created', '{"id": 7}', now());
INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, status, attempts, max_attempts, completed_at, reason, last_error)
SELECT '..', e.id, 'order.created', 'FAILED', 1, 10, now(), 'status', 'HTTP 500' FROM webhook.endpoint e WHERE e.name = 'shipping';
