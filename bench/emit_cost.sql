-- The cost of webhook_emit() beside a plpgsql function that makes the same two INSERTs into tables with the same columns,
-- indexes and constraints: one endpoint of ten wants the event, and nobody delivers it meanwhile. Both are called by a role as
-- applications have it: a superuser is asked for no right, and so inserts in a little less time than anybody else.
--
-- In a new database with the extension, on a server with webhook.enabled = off:
--
--     psql -X -q -f bench/emit_cost.sql
--
-- `make bench` does that. Rounds of both alternate in one session, so other work of the machine meets both alike; the last
-- statement shows the median of each, and of the ratios of neighbouring rounds.

INSERT INTO webhook.endpoint (name, url, event_types)
SELECT 'endpoint ' || n, 'https://receiver.invalid/', ARRAY['bench.' || n] FROM generate_series(1, 10) n;

DO $$
BEGIN
    CREATE ROLE emit_cost;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
SELECT webhook_grant('emit_cost', 'emit');
GRANT EXECUTE ON FUNCTION webhook.new_id, webhook.may_be_queued TO emit_cost;
GRANT CREATE ON SCHEMA public TO emit_cost;
GRANT SELECT ON webhook.event, webhook.delivery_queue TO emit_cost;
SET ROLE emit_cost;

CREATE TABLE plain_event (LIKE webhook.event INCLUDING ALL);
CREATE TABLE plain_delivery (LIKE webhook.delivery_queue INCLUDING ALL);
DO $$
BEGIN
    EXECUTE (SELECT format('ALTER TABLE plain_delivery SET (%s)', array_to_string(reloptions, ', '))
             FROM pg_class WHERE oid = 'webhook.delivery_queue'::regclass);
END $$;

CREATE FUNCTION plain_emit(event_type text, payload jsonb) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    event_id uuid := webhook.new_id();
    emitted_at timestamptz := clock_timestamp();
BEGIN
    INSERT INTO plain_event (id, event_type, payload, payload_bytes, created_at)
    VALUES (event_id, plain_emit.event_type, plain_emit.payload, octet_length(plain_emit.payload::text), emitted_at);
    INSERT INTO plain_delivery (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, created_at)
    VALUES (event_id, 1, plain_emit.event_type, 6, emitted_at, emitted_at);
    RETURN event_id;
END $$;

CREATE TEMP TABLE measured (round int, plain float8, emit float8);

DO $$
DECLARE
    emits constant int := 2000;
    rounds constant int := 41;
    data constant jsonb := '{"item": "teapot", "total": 100, "customer": "c-1234567"}';
    begun timestamptz;
    plain float8;
BEGIN
    FOR round IN 0..rounds LOOP
        begun := clock_timestamp();
        FOR n IN 1..emits LOOP
            PERFORM plain_emit('bench.1', data);
        END LOOP;
        plain := extract(epoch FROM clock_timestamp() - begun) * 1e6 / emits;

        begun := clock_timestamp();
        FOR n IN 1..emits LOOP
            PERFORM webhook_emit('bench.1', data);
        END LOOP;
        IF round > 0 THEN                                   -- the first one fills caches
            INSERT INTO measured
            VALUES (round, plain, extract(epoch FROM clock_timestamp() - begun) * 1e6 / emits);
        END IF;
    END LOOP;
END $$;

SELECT round(percentile_cont(0.5) WITHIN GROUP (ORDER BY plain)::numeric, 1) AS two_inserts_us,
       round(percentile_cont(0.5) WITHIN GROUP (ORDER BY emit)::numeric, 1) AS webhook_emit_us,
       round(percentile_cont(0.5) WITHIN GROUP (ORDER BY emit / plain)::numeric, 2) AS ratio, 1.3 AS at_most
FROM measured;
