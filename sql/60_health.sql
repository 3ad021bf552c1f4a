-- Health: problems of delivery as a whole, and their remedies, for webhook_status().

CREATE OR REPLACE FUNCTION webhook.backlog_limit() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 1073741824;

-- The endpoint that has most of a long queue, and the disk space of its deliveries and events, by the planner's statistics: a
-- count would read all of the queue. Returns no row if no endpoint has more deliveries than are counted.
CREATE OR REPLACE FUNCTION webhook.largest_backlog(OUT endpoint text, OUT deliveries bigint, OUT bytes bigint)
    RETURNS SETOF record
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT webhook.address(e.tenant, e.name), round(c.reltuples * f.share)::bigint,
           round(pg_total_relation_size(c.oid) * f.share + c.reltuples * f.share * coalesce(sample.bytes, 0))::bigint
    FROM pg_class c
    JOIN pg_stats s ON s.schemaname = 'webhook' AND s.tablename = 'delivery_queue' AND s.attname = 'endpoint_id'
    CROSS JOIN LATERAL (SELECT (s.most_common_vals::text::int[])[1] AS endpoint_id, s.most_common_freqs[1]::float8 AS share) f
    CROSS JOIN LATERAL (SELECT e.tenant, e.name FROM webhook.endpoint e WHERE e.id = f.endpoint_id LIMIT 1) e
    CROSS JOIN LATERAL (
        SELECT count(*) AS queued FROM webhook.head_of_queue(f.endpoint_id)
    ) now_queued
    LEFT JOIN LATERAL (
        SELECT avg(pg_column_size(v)) AS bytes
        FROM (SELECT q.event_id FROM webhook.head_of_queue(f.endpoint_id) q LIMIT 100) q
        JOIN webhook.event v ON v.id = q.event_id
    ) sample ON true
    WHERE c.oid = 'webhook.delivery_queue'::regclass AND now_queued.queued > webhook.count_limit();
END $$;

-- Problems, each with its weight: critical if nothing is delivered, warning if somebody should look, ok if it is only good to
-- know. `state` and `reason` are those of the worker, or of the relays that deliver instead.
CREATE OR REPLACE FUNCTION webhook.problems(state text, reason text) RETURNS TABLE (health text, problem text)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The figures on a standby are those of its primary, which reports them itself.
    IF pg_is_in_recovery() THEN
        RETURN QUERY SELECT 'ok', 'this server is a standby; its primary delivers';
        RETURN;
    END IF;

    IF state <> 'running' THEN
        RETURN QUERY SELECT
            CASE WHEN state IN ('starting', 'restarting') THEN 'warning' ELSE 'critical' END,
            concat_ws(': ', CASE WHEN state IN ('no worker', 'no relay') THEN state || ' delivers from this database'
                                 WHEN state = 'not preloaded' THEN 'the library is not preloaded'
                                 WHEN state = 'held' THEN 'delivery is held'
                                 WHEN state = 'disabled' THEN 'delivery is off'
                                 ELSE 'the worker is ' || state END, reason);
    END IF;

    RETURN QUERY
    -- A backlog that drains after an outage is old too, but then deliveries are sent.
    SELECT CASE WHEN m.metric = 'webhook_oldest_due' AND m.value > 900
                     AND NOT EXISTS (SELECT FROM webhook.stat s
                                     WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '5 min'
                                       AND s.sent > 0)
                THEN 'critical' ELSE 'warning' END,
           format('%s (%s)', webhook.metric_in_words(m), m.metric)
    FROM webhook.metrics m WHERE m.alert;

    RETURN QUERY
    SELECT 'warning', format('retention is behind: rows stay %s longer than they should', date_trunc('minute', l.lag))
    FROM webhook.retention_lag() AS l (lag) WHERE l.lag > interval '10 min';

    RETURN QUERY
    SELECT 'warning', format('endpoint "%s" fills the disk: about %s deliveries wait for it, about %s; SELECT webhook_why(%s) explains it',
                             b.endpoint, b.deliveries, pg_size_pretty(b.bytes), quote_literal(b.endpoint))
    FROM webhook.largest_backlog() b WHERE b.bytes > webhook.backlog_limit();

    IF state = 'running' AND webhook.is_without_site() THEN
        RETURN QUERY SELECT 'ok', 'webhook.site is not set: a physical copy of this server (base backup, snapshot) would send too';
    END IF;
END $$;
