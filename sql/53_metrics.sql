-- Metrics: figures with thresholds, and an alert when a figure crosses its own.
--
-- The five of the documents look at the last 15 minutes, those beside them at this moment: during an outage deliveries wait
-- and are retried, so nothing is finished that the five could count, but breakers open and the queue ages.

-- What can be counted at this moment, each up to webhook.count_limit(). `oldest_due` is of endpoints that are sent to, `parked`
-- counts what is due at the others. Our own events are no dead letters that anybody waits for.
CREATE OR REPLACE FUNCTION webhook.gauges(
    OUT endpoints bigint, OUT open_breakers bigint, OUT disabled_endpoints bigint, OUT oldest_due interval, OUT parked bigint,
    OUT dead_letters bigint)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    most CONSTANT int := webhook.count_limit();
    our_origin CONSTANT text := webhook.own_origin();
BEGIN
    SELECT count(*), count(*) FILTER (WHERE e.disabled_at IS NOT NULL) INTO endpoints, disabled_endpoints FROM webhook.endpoint e;
    SELECT count(*) INTO open_breakers
    FROM webhook.breaker b
    JOIN webhook.endpoint e ON e.id = b.endpoint_id
    WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) IN ('open', 'half_open');
    SELECT now() - min(greatest(first.next_attempt_at, first.created_at)) INTO oldest_due
    FROM webhook.endpoint e
    LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
    CROSS JOIN LATERAL (SELECT q.next_attempt_at, q.created_at FROM webhook.delivery_queue q
                        WHERE q.endpoint_id = e.id AND q.next_attempt_at <= now() AND webhook.is_ready(q, NULL)
                        ORDER BY q.next_attempt_at, q.event_id LIMIT 1) first
    WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) = 'ready';
    SELECT count(*) INTO parked
    FROM (SELECT FROM webhook.endpoint e
          LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
          CROSS JOIN LATERAL (SELECT FROM webhook.delivery_queue q
                              WHERE q.endpoint_id = e.id AND q.next_attempt_at <= now() AND webhook.is_ready(q, NULL)
                              LIMIT most) q
          WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) <> 'ready'
          LIMIT most) q;
    SELECT count(*) FILTER (WHERE NOT webhook.is_own(d.event_type)) INTO dead_letters
    FROM (SELECT d.event_type FROM webhook.dead_letter d LIMIT most) d;
END $$;

CREATE OR REPLACE VIEW webhook.metrics AS
WITH recent AS (
    SELECT sum(s.attempts) AS attempts, sum(s.sent) AS sent, sum(s.failed) AS failed, sum(s.sent + s.failed) AS finished,
           sum(s.retried) AS retried, sum(s.retries) AS retries
    FROM webhook.stat s
    WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '15 min'
), latencies AS (
    SELECT jsonb_object_agg(l.class, l.number) AS of_deliveries
    FROM (SELECT e.key AS class, sum(e.value::bigint) AS number
          FROM webhook.stat s, jsonb_each_text(s.delivery_latency) AS e
          WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '15 min'
          GROUP BY e.key) l
), measured AS (
    SELECT m.*
    FROM recent r, latencies l, webhook.gauges() g
    CROSS JOIN LATERAL (VALUES
        ('webhook_delivery_success_rate', round(100 * r.sent / nullif(r.finished, 0), 2), '%', '<', 95, 'deliveries sent'),
        ('webhook_delivery_p95_latency', round(extract(epoch FROM webhook.latency_percentile(l.of_deliveries, 0.95)), 3), 's', '>', 10, 'from emit to success'),
        ('webhook_retry_rate', round(100 * r.retried / nullif(r.finished, 0), 2), '%', '>', 20, 'deliveries retried'),
        ('webhook_failed_count', coalesce(r.failed, 0), 'deliveries', '>', 10, 'deliveries failed'),
        ('webhook_avg_retries_per_delivery', round(r.retries / nullif(r.finished, 0), 3), 'retries', '>', 1.5, 'retries per delivery'),
        -- One attempt that fails is no outage.
        ('webhook_attempt_failure_rate',
         CASE WHEN r.attempts >= 5 THEN round(100 * greatest(r.attempts - r.sent, 0) / r.attempts, 2) END, '%', '>', 50, 'attempts failed'),
        -- Among thousands of endpoints some are always down.
        ('webhook_open_breakers', g.open_breakers, 'endpoints', '>', g.endpoints / 100, 'breakers not closed'),
        ('webhook_oldest_due', round(coalesce(extract(epoch FROM g.oldest_due), 0), 3), 's', '>', 60, 'wait of the oldest'),
        ('webhook_parked', g.parked, 'deliveries', '>', 1000, 'due, and not sent to'),
        ('webhook_dead_letters', g.dead_letters, 'deliveries', '>', 100, 'dead letters'),
        ('webhook_disabled_endpoints', g.disabled_endpoints, 'endpoints', '>', 10, 'endpoints disabled')
    ) AS m (metric, value, unit, alert_when, alert_threshold, meaning)
)
SELECT metric, value, unit, alert_when, alert_threshold,
       coalesce(CASE alert_when WHEN '<' THEN value < alert_threshold ELSE value > alert_threshold END, false) AS alert,
       meaning
FROM measured;

CREATE OR REPLACE FUNCTION webhook.metric_in_words(m webhook.metrics) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN concat_ws(' ', trim_scale(m.value), m.unit)
           || CASE WHEN NOT m.alert THEN '' WHEN m.alert_when = '<' THEN ', below ' || trim_scale(m.alert_threshold)
                   ELSE ', above ' || trim_scale(m.alert_threshold) END;

-- What to do about a metric that is beyond its threshold.
CREATE OR REPLACE FUNCTION webhook.metric_remedy(metric text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE
        WHEN metric IN ('webhook_delivery_success_rate', 'webhook_failed_count', 'webhook_dead_letters') THEN
            'SELECT * FROM webhook.failed shows the dead letters; CALL webhook_replay_all() sends them again, webhook_discard() deletes them.'
        WHEN metric = 'webhook_disabled_endpoints' THEN
            'SELECT * FROM webhook.endpoint_status WHERE state = ''DISABLED'' shows them; webhook_resume() sends to one again.'
        WHEN metric = 'webhook_oldest_due' THEN
            'SELECT * FROM webhook_status() shows whether a sender is at work; webhook.max_in_flight and a relay make it faster.'
        ELSE 'SELECT * FROM webhook.endpoint_status WHERE state <> ''ACTIVE'' shows the endpoints in trouble; webhook_why() explains one.'
    END;

-- Leaves an alert for each metric that has crossed its threshold since the last look, in either direction. A metric that wavers
-- about its threshold is told once a minute at most. Says whether it has left any.
CREATE OR REPLACE FUNCTION webhook.check_metrics() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250 ms' AS $$
DECLARE
    crossed record;
    has_alerts boolean := false;
BEGIN
    FOR crossed IN
        SELECT m.metric, m.alert, webhook.metric_in_words(m) AS words
        FROM webhook.metrics m
        LEFT JOIN webhook.alarm a ON a.metric = m.metric
        WHERE m.alert <> (a.metric IS NOT NULL) AND (m.alert OR a.raised_at < now() - interval '1 min')
    LOOP
        IF crossed.alert THEN
            INSERT INTO webhook.alarm (metric) VALUES (crossed.metric) ON CONFLICT DO NOTHING;
        ELSE
            DELETE FROM webhook.alarm a WHERE a.metric = crossed.metric;
        END IF;
        CONTINUE WHEN NOT FOUND;
        -- Where only events of ours have opened breakers, an event about that would go the same way.
        INSERT INTO webhook.alert (endpoint_id, kind, metric, error, is_own)
        SELECT 0, CASE WHEN crossed.alert THEN 'raised' ELSE 'cleared' END, crossed.metric, crossed.words,
               crossed.metric = 'webhook_open_breakers' AND crossed.alert
               AND NOT EXISTS (SELECT FROM webhook.breaker b JOIN webhook.endpoint e ON e.id = b.endpoint_id
                               WHERE b.state <> 'CLOSED' AND EXISTS (SELECT FROM unnest(e.event_types) AS t
                                                                     WHERE NOT webhook.is_own(t) AND t NOT LIKE '!%'));
        has_alerts := true;
    END LOOP;
    RETURN has_alerts;
END $$;
