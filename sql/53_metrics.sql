-- Metrics: figures with thresholds, and an alert when a figure crosses its own.
--
-- Five of the metrics look at the last 15 minutes, the others at this moment: during an outage deliveries wait and are
-- retried, so nothing finishes that the five could count, but breakers open and the queue ages.

-- Counts of this moment, each up to webhook.count_limit(). `oldest_due` looks at endpoints that are sent to, `parked` counts
-- the due deliveries of the others. Dead letters of the extension's own events do not count: nobody waits for them.
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
    SELECT sum(s.attempts) AS attempts, sum(s.sent) AS sent, sum(s.failed) AS failed, sum(s.sent) + sum(s.failed) AS finished,
           sum(s.retried) AS retried, sum(s.retries) AS retries
    FROM webhook.stat s
    WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '15 min'
), latencies AS (
    SELECT jsonb_object_agg(l.class, l.number) AS of_deliveries
    FROM (SELECT c.class, sum(c.number) AS number
          FROM webhook.stat s, webhook.latency_counts(s.delivery_latency) c
          WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '15 min'
          GROUP BY c.class) l
), measured AS (
    SELECT m.*
    FROM recent r, latencies l, webhook.gauges() g
    CROSS JOIN LATERAL (VALUES
        ('webhook_delivery_success_rate', round(100 * r.sent / nullif(r.finished, 0), 2), '%', '<', 95, 'deliveries sent'),
        ('webhook_delivery_p95_latency', round(extract(epoch FROM webhook.latency_percentile(l.of_deliveries, 0.95)), 3), 's', '>', 10, 'from emit to success'),
        ('webhook_retry_rate', round(100 * r.retried / nullif(r.finished, 0), 2), '%', '>', 20, 'deliveries retried'),
        ('webhook_failed_count', coalesce(r.failed, 0), 'deliveries', '>', 10, 'deliveries failed'),
        ('webhook_avg_retries_per_delivery', round(r.retries / nullif(r.finished, 0), 3), 'retries', '>', 1.5, 'retries per delivery'),
        -- A single failed attempt is no outage.
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

-- A metric in words, with the threshold that it is beyond. A count that has reached webhook.count_limit() may be higher.
CREATE OR REPLACE FUNCTION webhook.metric_in_words(m webhook.metrics) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_one CONSTANT boolean := m.value = 1;
    number CONSTANT text := CASE WHEN m.value = 0 THEN 'no'
                                 WHEN m.unit IN ('deliveries', 'endpoints') AND m.value >= webhook.count_limit()
                                 THEN format('at least %s', m.value) ELSE trim_scale(m.value)::text END;
    recently CONSTANT text := 'in the last 15 minutes';
    said text;
BEGIN
    IF m.metric = 'webhook_open_breakers' AND is_one THEN
        SELECT format('the circuit breaker of endpoint "%s" has been open for %s',
                      webhook.printable(webhook.address(e.tenant, e.name)), webhook.span_in_words(now() - b.opened_at))
        INTO said
        FROM webhook.breaker b JOIN webhook.endpoint e ON e.id = b.endpoint_id
        WHERE webhook.endpoint_state(e.origin = webhook.own_origin(), e.disabled_at, e.paused_at, b.state) IN ('open', 'half_open')
        LIMIT 1;
    END IF;
    said := coalesce(said, CASE m.metric
        WHEN 'webhook_delivery_success_rate' THEN format('%s%% of deliveries succeeded %s', trim_scale(m.value), recently)
        WHEN 'webhook_delivery_p95_latency' THEN
            format('95%% of deliveries took up to %s s from emit to success %s', trim_scale(m.value), recently)
        WHEN 'webhook_retry_rate' THEN format('%s%% of deliveries needed a retry %s', trim_scale(m.value), recently)
        WHEN 'webhook_failed_count' THEN
            format('%s %s failed %s', number, CASE WHEN is_one THEN 'delivery' ELSE 'deliveries' END, recently)
        WHEN 'webhook_avg_retries_per_delivery' THEN
            format('a delivery needed %s %s on average %s', trim_scale(m.value),
                   CASE WHEN is_one THEN 'retry' ELSE 'retries' END, recently)
        WHEN 'webhook_attempt_failure_rate' THEN format('%s%% of attempts failed %s', trim_scale(m.value), recently)
        WHEN 'webhook_open_breakers' THEN
            format('%s circuit %s open', number, CASE WHEN is_one THEN 'breaker is' ELSE 'breakers are' END)
        WHEN 'webhook_oldest_due' THEN
            CASE WHEN m.value = 0 THEN 'no delivery is due'
                 ELSE format('the oldest due delivery has waited for %s', webhook.span_in_words(make_interval(secs => m.value::float8))) END
        WHEN 'webhook_parked' THEN
            format('%s %s due at endpoints that nothing is sent to', number,
                   CASE WHEN is_one THEN 'delivery is' ELSE 'deliveries are' END)
        WHEN 'webhook_dead_letters' THEN
            format('%s dead %s kept', number, CASE WHEN is_one THEN 'letter is' ELSE 'letters are' END)
        WHEN 'webhook_disabled_endpoints' THEN
            format('%s %s disabled', number, CASE WHEN is_one THEN 'endpoint is' ELSE 'endpoints are' END)
    END);
    RETURN CASE
        WHEN m.value IS NULL THEN format('there is too little to measure %s', recently)
        WHEN NOT m.alert OR m.alert_threshold = 0 THEN said
        ELSE format('%s, %s %s%s', said, CASE m.alert_when WHEN '<' THEN 'below' ELSE 'above' END, trim_scale(m.alert_threshold),
                    CASE m.unit WHEN '%' THEN '%' WHEN 's' THEN ' s' END)
    END;
END $$;

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

-- Leaves an alert for each metric that has crossed its threshold since the last look, in either direction. A metric that
-- wavers about its threshold raises an alert once a minute at most. Returns whether it has left any.
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
        -- If only events of the extension have opened breakers, an event about that would fail in the same way.
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
