-- One row: the figures of the whole database. Each column is a metric, called webhook_ and its name.
SELECT array_position('{ok, warning, critical}', s.health) - 1 AS health,
       (s.state = 'running')::int AS delivering,
       jsonb_array_length(s.senders) AS senders,
       s.in_flight AS in_flight_requests,
       s.queued AS queued_deliveries,
       s.due AS due_deliveries,
       s.queued_bytes,
       extract(epoch FROM s.retention_lag) AS retention_lag_seconds,
       m.oldest_due_seconds, m.open_breakers, m.disabled_endpoints, m.parked_deliveries, m.dead_letters,
       (SELECT count(*) FROM webhook.endpoint) AS endpoints,
       coalesce(t.attempts, 0) AS attempts_total,
       coalesce(t.sent, 0) AS deliveries_sent_total,
       coalesce(t.failed, 0) AS deliveries_failed_total,
       coalesce(t.retried, 0) AS deliveries_retried_total,
       coalesce(t.retries, 0) AS retries_total,
       coalesce(t.attempt_latency, '{}') AS attempt_duration_seconds,
       coalesce(t.delivery_latency, '{}') AS delivery_latency_seconds,
       m.metrics
FROM webhook.status() s
CROSS JOIN (
    SELECT max(m.value) FILTER (WHERE m.metric = 'webhook_oldest_due') AS oldest_due_seconds,
           max(m.value) FILTER (WHERE m.metric = 'webhook_open_breakers') AS open_breakers,
           max(m.value) FILTER (WHERE m.metric = 'webhook_disabled_endpoints') AS disabled_endpoints,
           max(m.value) FILTER (WHERE m.metric = 'webhook_parked') AS parked_deliveries,
           max(m.value) FILTER (WHERE m.metric = 'webhook_dead_letters') AS dead_letters,
           jsonb_agg(jsonb_build_object('metric', m.metric, 'value', m.value, 'alert', m.alert::int)) AS metrics
    FROM webhook.metrics m
) m
LEFT JOIN webhook.stat t ON t.endpoint_id = 0 AND t.grain = 'total'
