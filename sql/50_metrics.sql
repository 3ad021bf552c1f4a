-- Metrics: counters by hour, so that they are right whatever history is kept and cost the same whatever its size.

-- Latencies are counted in classes, eight to a doubling: class c is from 2^(c/8) to 2^((c+1)/8) milliseconds,
-- so a percentile read from them is at most 9% too high.
CREATE OR REPLACE FUNCTION webhook.latency_class(latency interval) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN floor(8 * ln(greatest(extract(epoch FROM latency)::float8 * 1000, 1)) / ln(2::float8))::int;

CREATE OR REPLACE FUNCTION webhook.latency_class_end(latency_class int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN make_interval(secs => power(2::float8, (latency_class + 1) / 8.0::float8) / 1000);

-- Adds what the worker has counted. It does so every few seconds and not with every batch: under a snapshot that
-- somebody holds for hours, each update of a row is a version more that every later one has to pass.
CREATE OR REPLACE FUNCTION webhook.add_tally(
    endpoint_ids int[], statuses text[], latency_classes int[], deliveries bigint[], retried bigint[], retries bigint[])
    RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO webhook.tally AS t (endpoint_id, hour, status, latency_class, deliveries, retried, retries)
    SELECT n.endpoint_id, date_trunc('hour', now(), 'UTC'), n.status, n.latency_class, n.deliveries, n.retried, n.retries
    FROM unnest(endpoint_ids, statuses, latency_classes, add_tally.deliveries, add_tally.retried, add_tally.retries)
        AS n (endpoint_id, status, latency_class, deliveries, retried, retries)
    ON CONFLICT (endpoint_id, hour, status, latency_class) DO UPDATE
    SET deliveries = t.deliveries + excluded.deliveries,
        retried = t.retried + excluded.retried,
        retries = t.retries + excluded.retries,
        last_at = now();
END $$;

-- The last 24 hours: what is finished in them, and from emit to success for what succeeded.
CREATE OR REPLACE VIEW webhook.metrics AS
WITH recent AS (
    SELECT t.status, t.latency_class, sum(t.deliveries) AS deliveries, sum(t.retried) AS retried, sum(t.retries) AS retries
    FROM webhook.tally t
    WHERE t.hour > now() - interval '24 hours'
    GROUP BY t.status, t.latency_class
), total AS (
    SELECT sum(deliveries) AS finished, sum(deliveries) FILTER (WHERE status = 'SENT') AS sent,
           sum(retried) AS retried, sum(retries) AS retries
    FROM recent
), climbing AS (
    SELECT latency_class, sum(deliveries) OVER (ORDER BY latency_class) AS so_far FROM recent WHERE status = 'SENT'
), p95 AS (
    SELECT extract(epoch FROM webhook.latency_class_end(min(latency_class))) AS seconds
    FROM climbing, total WHERE so_far >= 0.95 * total.sent
), measured AS (
    SELECT 'webhook_delivery_success_rate' AS metric, round(100 * coalesce(sent, 0) / finished, 2) AS value, '%' AS unit,
           '<' AS alert_when, 95 AS alert_threshold, 'deliveries that succeeded, retries included' AS meaning FROM total
    UNION ALL
    SELECT 'webhook_delivery_p95_latency', round(seconds, 3), 's', '>', 10, 'from emit to success, retries included' FROM p95
    UNION ALL
    SELECT 'webhook_retry_rate', round(100 * retried / finished, 2), '%', '>', 20, 'deliveries that needed a retry' FROM total
    UNION ALL
    SELECT 'webhook_failed_count', (SELECT count(*) FROM webhook.endpoint e WHERE e.disabled_at IS NOT NULL), 'endpoints', '>', 10,
           'endpoints that are disabled until somebody resumes them'
    UNION ALL
    SELECT 'webhook_avg_retries_per_delivery', round(retries / finished, 3), 'retries', '>', 1.5, 'retries per delivery' FROM total
)
SELECT metric, value, unit, alert_when, alert_threshold,
       coalesce(CASE alert_when WHEN '<' THEN value < alert_threshold ELSE value > alert_threshold END, false) AS alert,
       meaning
FROM measured;
