-- A row for each of the oldest 1,000 endpoints. Each column is a metric, called webhook_endpoint_ and its name.
SELECT s.endpoint, lower(s.state) AS state,
       (s.state IN ('ACTIVE', 'DEGRADED'))::int AS up,
       s.queued AS queued_deliveries,
       s.kept_back AS kept_back_deliveries,
       s.in_flight AS in_flight_requests,
       s.failed AS dead_letters,
       s.consecutive_failures,
       coalesce(extract(epoch FROM s.last_success_at), 0) AS last_success_timestamp_seconds,
       coalesce(t.attempts, 0) AS attempts_total,
       coalesce(t.sent, 0) AS deliveries_sent_total,
       coalesce(t.failed, 0) AS deliveries_failed_total,
       coalesce(t.retries, 0) AS retries_total,
       coalesce(t.attempt_latency, '{}') AS attempt_duration_seconds
FROM webhook.endpoint_status s
LEFT JOIN webhook.stat t ON t.endpoint_id = s.endpoint_id AND t.grain = 'total'
WHERE s.endpoint_id = ANY (ARRAY(SELECT e.id FROM webhook.endpoint e ORDER BY e.id LIMIT 1000))
ORDER BY s.endpoint_id
