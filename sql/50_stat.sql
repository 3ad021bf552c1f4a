-- Figures: attempts and finished deliveries, counted in webhook.stat by endpoint and time, so that a figure is right whatever
-- history is kept, and costs the same whatever its size. Endpoint 0 stands for all of them.
--
-- A sender counts in memory, and adds its counts every few seconds and not with every batch: under a snapshot that somebody
-- holds for hours, each update of a row makes a version that every later one has to pass.

-- Latencies are counted in classes, eight to a doubling: class c is from 2^(c/8) to 2^((c+1)/8) milliseconds, so a percentile
-- read from them is at most 9% too high. engine/src/figures.rs has the same rule.
CREATE OR REPLACE FUNCTION webhook.latency_class(latency interval) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN floor(8 * ln(greatest(date_part('epoch', latency) * 1000, 1)) / ln(2::float8))::int;

CREATE OR REPLACE FUNCTION webhook.latency_class_end(latency_class int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN make_interval(secs => power(2::float8, (latency_class + 1) / 8.0::float8) / 1000);

-- A histogram is a JSON object: classes, and how many of each.
CREATE OR REPLACE FUNCTION webhook.is_histogram(latencies jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN latencies::text ~ '^[{]("[0-9]{1,3}": [0-9]{1,15}(, )?)*[}]$';

CREATE OR REPLACE FUNCTION webhook.merge_latencies(latencies jsonb, added jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN added = '{}' THEN latencies ELSE
           (SELECT jsonb_object_agg(merged.class, merged.number)
            FROM (SELECT e.class, sum(e.number::bigint) AS number
                  FROM (SELECT * FROM jsonb_each_text(latencies) UNION ALL SELECT * FROM jsonb_each_text(added)) AS e (class, number)
                  GROUP BY e.class) merged) END;

CREATE OR REPLACE FUNCTION webhook.latency_percentile(latencies jsonb, share numeric) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT webhook.latency_class_end(min(climbing.class))
            FROM (SELECT e.class::int AS class, sum(e.number::bigint) OVER (ORDER BY e.class::int) AS so_far,
                         sum(e.number::bigint) OVER () AS number
                  FROM jsonb_each_text(latencies) AS e (class, number)) climbing
            WHERE climbing.so_far >= share * climbing.number);

-- Adds counts: an array of objects that have the columns of webhook.stat as keys, one for each endpoint. All senders write the
-- rows in the same order, so that there is no deadlock.
CREATE OR REPLACE FUNCTION webhook.count_figures(figures jsonb) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO webhook.stat AS s
        (endpoint_id, grain, begins_at, attempts, sent, failed, retried, retries, attempt_latency, delivery_latency, last_sent_at)
    WITH counted AS MATERIALIZED (
        SELECT f.endpoint_id, coalesce(f.attempts, 0) AS attempts, coalesce(f.sent, 0) AS sent, coalesce(f.failed, 0) AS failed,
               coalesce(f.retried, 0) AS retried, coalesce(f.retries, 0) AS retries,
               coalesce(f.attempt_latency, '{}') AS attempt_latency, coalesce(f.delivery_latency, '{}') AS delivery_latency
        FROM jsonb_to_recordset(figures)
            AS f (endpoint_id int, attempts bigint, sent bigint, failed bigint, retried bigint, retries bigint,
                  attempt_latency jsonb, delivery_latency jsonb)
        WHERE f.endpoint_id > 0 AND webhook.is_histogram(coalesce(f.attempt_latency, '{}'))
          AND webhook.is_histogram(coalesce(f.delivery_latency, '{}'))
    ), of_all AS (
        SELECT 0, sum(c.attempts), sum(c.sent), sum(c.failed), sum(c.retried), sum(c.retries),
               (SELECT jsonb_object_agg(l.class, l.number)
                FROM (SELECT e.key AS class, sum(e.value::bigint) AS number FROM counted c, jsonb_each_text(c.attempt_latency) AS e
                      GROUP BY e.key) l),
               (SELECT jsonb_object_agg(l.class, l.number)
                FROM (SELECT e.key AS class, sum(e.value::bigint) AS number FROM counted c, jsonb_each_text(c.delivery_latency) AS e
                      GROUP BY e.key) l)
        FROM counted c HAVING count(*) > 0
    )
    SELECT n.endpoint_id, g.grain, g.begins_at, n.attempts, n.sent, n.failed, n.retried, n.retries,
           coalesce(n.attempt_latency, '{}'), coalesce(n.delivery_latency, '{}'), CASE WHEN n.sent > 0 THEN now() END
    FROM (SELECT * FROM of_all UNION ALL SELECT * FROM counted)
        AS n (endpoint_id, attempts, sent, failed, retried, retries, attempt_latency, delivery_latency)
    CROSS JOIN (VALUES ('total', '-infinity'::timestamptz), ('hour', date_trunc('hour', now(), 'UTC')),
                       ('minute', date_trunc('minute', now()))) AS g (grain, begins_at)
    ORDER BY n.endpoint_id, g.grain
    ON CONFLICT (endpoint_id, grain, begins_at) DO UPDATE
    SET attempts = s.attempts + excluded.attempts, sent = s.sent + excluded.sent, failed = s.failed + excluded.failed,
        retried = s.retried + excluded.retried, retries = s.retries + excluded.retries,
        attempt_latency = webhook.merge_latencies(s.attempt_latency, excluded.attempt_latency),
        delivery_latency = webhook.merge_latencies(s.delivery_latency, excluded.delivery_latency),
        last_sent_at = coalesce(excluded.last_sent_at, s.last_sent_at);
END $$;

-- It waits only briefly for a lock: the sender brings its counts again.
CREATE OR REPLACE FUNCTION webhook.add_figures(figures jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250 ms' AS $$
BEGIN
    PERFORM webhook.count_figures(figures);
END $$;
