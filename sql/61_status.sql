-- webhook_status() and the views on endpoints and waiting deliveries: people look at these first.

-- A server cannot tell a physical copy from a failover: the copy sends, unless it has another webhook.site. Without the
-- library a copy has no sender until somebody starts a relay for it, and the site is a row that is copied too.
CREATE OR REPLACE FUNCTION webhook.is_without_site() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN webhook.setting('site') = '' AND NOT webhook.is_portable() AND EXISTS (SELECT FROM webhook.endpoint);

-- A sender looks every few seconds at the endpoints of another installation, whether a copy of this server would send too, and
-- the longest time that a request may take.
CREATE OR REPLACE FUNCTION webhook.survey(OUT foreign_endpoints bigint, OUT is_without_site boolean, OUT longest_request_seconds bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    foreign_endpoints := webhook.foreign_endpoints();
    is_without_site := webhook.is_without_site();
    longest_request_seconds := webhook.longest_request_seconds();
END $$;

CREATE OR REPLACE FUNCTION webhook.worker_state(
    OUT pid int, OUT state text, OUT reason text, OUT in_flight int, OUT last_error text, OUT last_error_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    foreign_count bigint := webhook.foreign_endpoints();
BEGIN
    SELECT w.pid, w.state, w.reason, w.in_flight, w.last_error, w.last_error_at
    INTO pid, state, reason, in_flight, last_error, last_error_at
    FROM webhook.worker_report() w;

    IF webhook.is_portable() THEN
        worker_state.state := CASE WHEN NOT webhook.setting('enabled')::boolean THEN 'disabled'
                                   WHEN cardinality(webhook.living_senders()) > 0 THEN 'running' ELSE 'no relay' END;
        worker_state.reason := CASE worker_state.state WHEN 'disabled' THEN 'webhook.enabled is off'
                                                       WHEN 'no relay' THEN 'start webhook-relay run for this database' END;
    ELSIF NOT webhook.is_preloaded() THEN
        worker_state.state := 'not preloaded';
        worker_state.reason := 'add webhook to shared_preload_libraries in postgresql.conf and restart the server';
    ELSIF to_regrole('webhook_owner') IS NULL THEN
        worker_state.state := 'no worker';
        worker_state.reason := 'role webhook_owner does not exist; ALTER ROLE .. RENAME TO webhook_owner gives it back its name';
    ELSIF coalesce(worker_state.state, 'no worker') = 'no worker' AND coalesce(worker_state.reason, '') = '' THEN
        worker_state.state := 'no worker';
        worker_state.reason := 'none has been started for this database yet; the log of the server may say why';
    END IF;

    IF worker_state.state = 'running' AND foreign_count > 0 THEN
        worker_state.state := 'held';
        worker_state.reason := format(
            '%s of %s endpoints belong to another installation (a restored or copied database?); SELECT webhook_adopt() takes them over',
            foreign_count, (SELECT count(*) FROM webhook.endpoint));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.count_limit() RETURNS int LANGUAGE sql IMMUTABLE RETURN 10000;

-- The deliveries of an endpoint, up to the limit of counts; first those that only time keeps back, the oldest of them first,
-- where those in flight are.
CREATE OR REPLACE FUNCTION webhook.head_of_queue(endpoint int) RETURNS SETOF webhook.delivery_queue
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT q.* FROM (
            SELECT due.* FROM (SELECT q.* FROM webhook.delivery_queue q
                               WHERE q.endpoint_id = head_of_queue.endpoint AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                               ORDER BY q.next_attempt_at, q.event_id LIMIT webhook.count_limit() + 1) due
            UNION ALL
            SELECT aside.* FROM (SELECT q.* FROM webhook.delivery_queue q
                                 WHERE q.endpoint_id = head_of_queue.endpoint
                                   AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL)
                                 LIMIT webhook.count_limit() + 1) aside
        ) q LIMIT webhook.count_limit() + 1;
    END;

-- The number of deliveries in the queue and of due ones, each up to the limit; whether there are more; since when the oldest
-- has been due, by one probe of an index for each endpoint; and the bytes of their payloads, estimated from the first 1,000
-- deliveries and, if there are more than are counted, from the planner's statistics.
CREATE OR REPLACE FUNCTION webhook.queue_gauge(
    OUT queued bigint, OUT due bigint, OUT more boolean, OUT oldest_due interval, OUT queued_bytes bigint)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    most CONSTANT int := webhook.count_limit();
BEGIN
    SELECT count(*) INTO queued FROM (SELECT FROM webhook.delivery_queue q LIMIT most + 1) q;
    SELECT count(*) FILTER (WHERE webhook.is_ready(q, NULL)) INTO due
    FROM (SELECT q.* FROM webhook.endpoint e
          CROSS JOIN LATERAL (SELECT q.* FROM webhook.delivery_queue q
                              WHERE q.endpoint_id = e.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                                AND q.next_attempt_at <= now()
                              LIMIT most) q
          LIMIT most) q;
    SELECT now() - min(greatest(first.next_attempt_at, first.created_at)) INTO oldest_due
    FROM webhook.endpoint e
    CROSS JOIN LATERAL (SELECT q.next_attempt_at, q.created_at FROM webhook.delivery_queue q
                        WHERE q.endpoint_id = e.id AND q.next_attempt_at <= now() AND webhook.is_ready(q, NULL)
                        ORDER BY q.next_attempt_at, q.event_id LIMIT 1) first;
    more := queued > most;
    SELECT round(avg(webhook.payload_size(v)) * CASE WHEN more THEN greatest(c.reltuples, queued) ELSE queued END) INTO queued_bytes
    FROM (SELECT q.event_id FROM webhook.delivery_queue q LIMIT 1000) q
    CROSS JOIN LATERAL (SELECT v FROM webhook.event v WHERE v.id = q.event_id LIMIT 1) v
    CROSS JOIN (SELECT c.reltuples FROM pg_class c WHERE c.oid = 'webhook.delivery_queue'::regclass) c
    GROUP BY c.reltuples;
    queued_bytes := coalesce(queued_bytes, 0);
    queued := least(queued, most);
END $$;

-- The senders of this database, for people. The worker says in shared memory how many deliveries it has in flight.
CREATE OR REPLACE FUNCTION webhook.senders_at_work(in_flight_of_worker int, OUT senders jsonb, OUT in_flight_of_relays int)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    living CONSTANT int[] := webhook.living_senders();
BEGIN
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'kind', s.kind, 'host', s.host, 'version', s.version, 'since', s.begun_at,
               'in_flight', CASE s.kind WHEN 'worker' THEN in_flight_of_worker ELSE s.in_flight END,
               'shares', (SELECT count(*) FROM webhook.share h WHERE h.sender_id = s.id)) ORDER BY s.id), '[]'),
           least(coalesce(sum(s.in_flight) FILTER (WHERE s.kind = 'relay'), 0), 1000000000)
    INTO senders, in_flight_of_relays
    FROM webhook.sender s WHERE s.id = ANY (living);
END $$;

-- Health is the worst of webhook.problems(), made for a probe; reason lists them all.
CREATE OR REPLACE FUNCTION webhook.status()
    RETURNS TABLE (database name, health text, state text, reason text, worker_pid int, in_flight int, queued bigint, due bigint,
                   more boolean, oldest_due interval, queued_bytes bigint, retention_lag interval, last_error text,
                   last_error_at timestamptz, senders jsonb)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT current_database(), coalesce(found.health, 'ok'), said.state, found.reasons, w.pid,
           coalesce(w.in_flight, 0) + at_work.in_flight_of_relays, q.queued, q.due, q.more, q.oldest_due, q.queued_bytes,
           webhook.retention_lag(), w.last_error, w.last_error_at, at_work.senders
    FROM webhook.worker_state() w
    CROSS JOIN webhook.queue_gauge() q
    CROSS JOIN LATERAL webhook.senders_at_work(coalesce(w.in_flight, 0)) at_work
    -- If relays deliver, a missing worker is no problem.
    CROSS JOIN LATERAL (SELECT NOT at_work.senders @> '[{"kind": "worker"}]' AND at_work.senders @> '[{"kind": "relay"}]'
                               AND webhook.foreign_endpoints() = 0 AND w.state IS DISTINCT FROM 'disabled' AS instead) relayed
    CROSS JOIN LATERAL (SELECT CASE WHEN relayed.instead THEN 'running' ELSE w.state END AS state,
                               CASE WHEN NOT relayed.instead THEN w.reason END AS reason) said
    CROSS JOIN LATERAL (
        SELECT (array_agg(p.health ORDER BY array_position('{critical, warning, ok}', p.health)))[1] AS health,
               string_agg(p.problem, '; ' ORDER BY array_position('{critical, warning, ok}', p.health), p.ordinal) AS reasons
        FROM webhook.problems(said.state, said.reason) WITH ORDINALITY AS p (health, problem, ordinal)
    ) found;
END $$;

-- The path of a URL often has credentials.
CREATE OR REPLACE FUNCTION webhook.masked_url(url text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN regexp_replace(url, '^([^:]+://[^/?]+)[/?].+$', E'\\1/***');

CREATE OR REPLACE FUNCTION webhook.own_origin() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.origin();
END $$;

-- Each endpoint and how it is doing, the narrow columns first. Counts of deliveries are those of this moment and end at
-- webhook.count_limit(); `more` says that one of them does. Bytes are those of the payloads that are counted, estimated from
-- the first 1,000. The last success, the extension's own events not counted, is known to within 5 s, or longer with more than
-- 500 busy endpoints.
CREATE OR REPLACE VIEW webhook.endpoint_status AS
SELECT webhook.address(e.tenant, e.name) AS endpoint,
       CASE
           WHEN s.state <> 'ready' THEN upper(s.state)
           WHEN b.consecutive_failures > 0 THEN 'DEGRADED'
           ELSE 'ACTIVE'
       END AS state,
       CASE s.state WHEN 'held' THEN 'other installation' WHEN 'disabled' THEN e.disabled_reason WHEN 'paused' THEN NULL
                    ELSE CASE WHEN b.consecutive_failures > 0 THEN b.reason END END AS reason,
       CASE s.state WHEN 'held' THEN NULL WHEN 'disabled' THEN e.disabled_at WHEN 'paused' THEN e.paused_at
                    ELSE b.opened_at END AS since,
       least(queue.queued, webhook.count_limit()) AS queued,
       coalesce((SELECT round(avg(webhook.payload_size(v)) * least(queue.queued, webhook.count_limit()))::bigint
                 FROM (SELECT q.event_id FROM webhook.head_of_queue(e.id) q LIMIT 1000) q
                 JOIN webhook.event v ON v.id = q.event_id), 0) AS queued_bytes,
       queue.in_flight,
       CASE WHEN s.state <> 'ready' THEN least(queue.due, webhook.count_limit()) ELSE 0 END AS kept_back,
       least(dead.failed, webhook.count_limit()) AS failed,
       greatest(queue.queued, dead.failed) > webhook.count_limit() AS more,
       coalesce(b.consecutive_failures, 0) AS consecutive_failures,
       coalesce(b.trips, 0) AS trips,
       CASE s.state WHEN 'open' THEN b.probe_at END AS next_probe_at,
       total.last_sent_at AS last_success_at, b.last_failure_at, b.last_error,
       e.policy, e.tenant, e.created_at, e.event_types, e.filter, e.format, webhook.masked_url(e.url) AS url,
       (SELECT coalesce(jsonb_object_agg(h.key, '***'), '{}') FROM jsonb_each(e.headers) AS h) AS headers,
       e.metadata, e.id AS endpoint_id
FROM webhook.endpoint e
LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
CROSS JOIN LATERAL (
    SELECT webhook.endpoint_state(e.origin = (SELECT webhook.own_origin()), e.disabled_at, e.paused_at, b.state) AS state
) s
CROSS JOIN LATERAL (
    SELECT count(*) AS queued, count(*) FILTER (WHERE q.status = 'SENDING') AS in_flight,
           count(*) FILTER (WHERE webhook.is_ready(q, b.retries_before)) AS due
    FROM webhook.head_of_queue(e.id) q
) queue
CROSS JOIN LATERAL (
    SELECT count(*) AS failed
    FROM (SELECT FROM webhook.dead_letter d WHERE d.endpoint_id = e.id LIMIT webhook.count_limit() + 1) d
) dead
LEFT JOIN webhook.stat total ON total.endpoint_id = e.id AND total.grain = 'total';

-- Deliveries that wait and why, in a word: the state of the endpoint (held, disabled, paused, open, half_open) before the
-- delivery's own reason (parked, ordered, retry, scheduled, expired); 'due' if the next claim takes it. next_attempt_at is its
-- own time, null if a person has parked it.
CREATE OR REPLACE VIEW webhook.waiting AS
SELECT coalesce(webhook.address(e.tenant, e.name), webhook.address(r.tenant, r.name)) AS endpoint, q.event_type, q.event_id,
       CASE WHEN e.id IS NULL THEN 'removed'
            WHEN s.state = 'held' OR s.state <> 'ready' AND q.event_id IS DISTINCT FROM b.test_event_id THEN s.state
            ELSE webhook.wait_in_a_word(q, b.retries_before) END AS why,
       CASE WHEN q.wait_reason <> 'parked' THEN q.next_attempt_at END AS next_attempt_at,
       q.reason, q.last_error
FROM webhook.delivery_queue q
LEFT JOIN webhook.endpoint e ON e.id = q.endpoint_id
LEFT JOIN webhook.removed_endpoint r ON r.id = q.endpoint_id
LEFT JOIN webhook.breaker b ON b.endpoint_id = q.endpoint_id
CROSS JOIN LATERAL (
    SELECT webhook.endpoint_state(e.origin = (SELECT webhook.own_origin()), e.disabled_at, e.paused_at, b.state) AS state
) s
WHERE q.status = 'PENDING';
