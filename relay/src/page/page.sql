-- What the page shows, as one object. No payload and no answer of a receiver is in it.
WITH shown AS MATERIALIZED (
    -- Endpoints in trouble come first; what waits is counted for those that are shown alone.
    SELECT e.id, row_number() OVER (ORDER BY e.disabled_at IS NULL AND e.paused_at IS NULL
                                                 AND coalesce(b.state, 'CLOSED') = 'CLOSED',
                                             coalesce(b.consecutive_failures, 0) DESC, e.tenant, e.name) AS place
    FROM webhook.endpoint e LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
    ORDER BY place LIMIT 100
), recent AS (
    SELECT s.endpoint_id, s.attempts, s.sent, s.failed, s.attempt_latency, s.delivery_latency,
           59 - (extract(epoch FROM date_trunc('minute', now()) - s.begins_at) / 60)::int AS place
    FROM webhook.stat s
    WHERE s.grain = 'minute' AND s.begins_at > date_trunc('minute', now()) - interval '1 hour' AND s.begins_at <= now()
      AND s.endpoint_id = ANY (ARRAY(SELECT 0 UNION ALL SELECT id FROM shown))
), hours AS (
    SELECT r.endpoint_id, sum(r.attempts) AS attempts, sum(r.sent) AS sent, sum(r.failed) AS failed,
           jsonb_agg(jsonb_build_array(r.place, r.sent, greatest(r.attempts::numeric - r.sent, 0))) AS minutes
    FROM recent r GROUP BY r.endpoint_id
), latencies AS (
    SELECT r.endpoint_id,
           extract(epoch FROM webhook.latency_percentile(
               jsonb_object_agg(r.class, r.attempts) FILTER (WHERE r.attempts > 0), 0.95)) AS attempt_p95,
           extract(epoch FROM webhook.latency_percentile(
               jsonb_object_agg(r.class, r.deliveries) FILTER (WHERE r.deliveries > 0), 0.95)) AS delivery_p95
    FROM (SELECT r.endpoint_id, l.class, sum(l.attempts) AS attempts, sum(l.deliveries) AS deliveries
          FROM recent r
          CROSS JOIN LATERAL (SELECT a.class, a.number, 0 FROM webhook.latency_counts(r.attempt_latency) a
                              UNION ALL
                              SELECT d.class, 0, d.number FROM webhook.latency_counts(r.delivery_latency) d)
              AS l (class, attempts, deliveries)
          GROUP BY r.endpoint_id, l.class) r
    GROUP BY r.endpoint_id
), endpoints AS (
    SELECT c.place, jsonb_build_object(
               'endpoint', s.endpoint, 'state', s.state, 'reason', s.reason, 'url', s.url,
               'since', extract(epoch FROM now() - s.since), 'next_probe', extract(epoch FROM s.next_probe_at - now()),
               'queued', s.queued, 'kept_back', s.kept_back, 'in_flight', s.in_flight, 'failed', s.failed,
               'more', s.more, 'last_success', extract(epoch FROM now() - s.last_success_at),
               'last_failure', extract(epoch FROM now() - s.last_failure_at),
               'last_error', CASE WHEN s.state <> 'ACTIVE' THEN left(s.last_error, 300) END,
               'minutes', coalesce(h.minutes, '[]'), 'p95', l.attempt_p95) AS endpoint
    FROM shown c
    JOIN webhook.endpoint_status s ON s.endpoint_id = c.id
    LEFT JOIN hours h ON h.endpoint_id = c.id
    LEFT JOIN latencies l ON l.endpoint_id = c.id
    WHERE s.endpoint_id = ANY (ARRAY(SELECT id FROM shown))
), ages AS (
    SELECT count(*) FILTER (WHERE q.age < interval '1 min') AS a, count(*) FILTER (WHERE q.age < interval '5 min') AS b,
           count(*) FILTER (WHERE q.age < interval '15 min') AS c, count(*) FILTER (WHERE q.age < interval '1 hour') AS d,
           count(*) FILTER (WHERE q.age < interval '6 hours') AS e, count(*) FILTER (WHERE q.age < interval '1 day') AS f,
           count(*) AS g
    FROM (SELECT now() - q.created_at AS age FROM webhook.delivery_queue q
          ORDER BY q.event_id LIMIT (SELECT webhook.count_limit())) q
), dead AS (
    SELECT jsonb_build_object(
               'event_id', f.event_id, 'event_type', f.event_type, 'endpoint', f.endpoint, 'attempts', f.attempts,
               'failed_at', to_char(f.failed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'),
               'age', extract(epoch FROM now() - f.failed_at), 'reason', f.reason,
               'last_error', left(f.last_error, 300)) AS letter,
           f.failed_at
    FROM webhook.failed f ORDER BY f.failed_at DESC LIMIT 10
)
SELECT jsonb_build_object(
    'at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'),
    'until', to_char(now() AT TIME ZONE 'UTC', 'HH24:MI'),
    'since', to_char(now() AT TIME ZONE 'UTC' - interval '1 hour', 'HH24:MI'),
    'status', (SELECT jsonb_build_object(
                   'database', s.database, 'health', s.health, 'reason', s.reason, 'state', s.state,
                   'in_flight', s.in_flight, 'queued', s.queued, 'due', s.due, 'more', s.more,
                   'queued_bytes', s.queued_bytes, 'oldest_due', extract(epoch FROM s.oldest_due), 'senders', s.senders)
               FROM webhook.status() s),
    'metrics', (SELECT jsonb_object_agg(m.metric, jsonb_build_object('value', m.value, 'alert', m.alert))
                FROM webhook.metrics m),
    'hour', (SELECT jsonb_build_object('attempts', h.attempts, 'sent', h.sent, 'failed', h.failed, 'minutes', h.minutes,
                                       'p95', (SELECT l.delivery_p95 FROM latencies l WHERE l.endpoint_id = 0))
             FROM hours h WHERE h.endpoint_id = 0),
    'ages', (SELECT jsonb_build_array(a, b - a, c - b, d - c, e - d, f - e, g - f) FROM ages),
    'endpoint_count', (SELECT count(*) FROM webhook.endpoint),
    'endpoints', (SELECT coalesce(jsonb_agg(e.endpoint ORDER BY e.place), '[]') FROM endpoints e),
    'dead_letters', (SELECT coalesce(jsonb_agg(d.letter ORDER BY d.failed_at DESC), '[]') FROM dead d))::text
