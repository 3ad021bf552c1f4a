-- Figures: attempts and finished deliveries, counted in webhook.stat by endpoint and time, so that a figure is right whatever
-- history is kept, and costs the same whatever its size. Endpoint 0 stands for all of them.
--
-- A sender counts in memory, and adds its counts every few seconds and not with every batch: under a snapshot that somebody
-- holds for hours, each update of a row makes a version that every later one has to pass.

-- A relay calls add_figures() over a network, with numbers that the database cannot check against anything. So a call refuses
-- numbers that no sender can have counted, sums stop at a number that two of them can exceed without an error, and readers take
-- any row for what it can mean: a row that is wrong must stop neither the count of the next failure nor a metric.
CREATE OR REPLACE FUNCTION webhook.saturated(number numeric) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN least(greatest(number, 0), 1000000000000000000)::bigint;

-- Latencies are counted in classes, eight to a doubling: class c is from 2^(c/8) to 2^((c+1)/8) milliseconds, so a percentile
-- read from them is at most 9% too high. engine/src/figures.rs has the same rule. The last class ends after 35,000 years.
CREATE OR REPLACE FUNCTION webhook.max_latency_class() RETURNS int LANGUAGE sql IMMUTABLE RETURN 399;

CREATE OR REPLACE FUNCTION webhook.latency_class(latency interval) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN least(floor(8 * ln(greatest(date_part('epoch', latency) * 1000, 1)) / ln(2::float8)), webhook.max_latency_class())::int;

CREATE OR REPLACE FUNCTION webhook.latency_class_end(latency_class int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN make_interval(secs => power(2::float8, (latency_class + 1) / 8.0::float8) / 1000);

-- A histogram is a JSON object: classes, and how many of each. No sender counts 10^12 of a class between two calls.
CREATE OR REPLACE FUNCTION webhook.is_histogram(latencies jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN latencies::text ~ '^[{]("[1-3]?[0-9]{1,2}": [0-9]{1,12}(, )?)*[}]$';

-- The classes of a histogram, and how many each has. What is no class and no number is left out.
CREATE OR REPLACE FUNCTION webhook.latency_counts(latencies jsonb) RETURNS TABLE (class int, number numeric)
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        SELECT e.key::int, e.value::numeric
        FROM jsonb_each(CASE jsonb_typeof(latencies) WHEN 'object' THEN latencies ELSE '{}' END) AS e
        WHERE CASE WHEN translate(e.key, '0123456789', '') = '' AND length(e.key) BETWEEN 1 AND 3 AND jsonb_typeof(e.value) = 'number'
                   THEN e.key::int <= webhook.max_latency_class() ELSE false END;
    END;

CREATE OR REPLACE FUNCTION webhook.merge_latencies(latencies jsonb, added jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN added = '{}' THEN latencies ELSE
           (SELECT jsonb_object_agg(merged.class, webhook.saturated(merged.number))
            FROM (SELECT c.class, sum(c.number) AS number
                  FROM (SELECT * FROM webhook.latency_counts(latencies) UNION ALL SELECT * FROM webhook.latency_counts(added)) c
                  GROUP BY c.class) merged) END;

CREATE OR REPLACE FUNCTION webhook.latency_percentile(latencies jsonb, share numeric) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT webhook.latency_class_end(min(climbing.class))
            FROM (SELECT c.class, sum(c.number) OVER (ORDER BY c.class) AS so_far, sum(c.number) OVER () AS number
                  FROM webhook.latency_counts(latencies) c) climbing
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
    ), of_all AS (
        SELECT 0, webhook.saturated(sum(c.attempts)), webhook.saturated(sum(c.sent)), webhook.saturated(sum(c.failed)),
               webhook.saturated(sum(c.retried)), webhook.saturated(sum(c.retries)),
               (SELECT jsonb_object_agg(l.class, webhook.saturated(l.number))
                FROM (SELECT n.class, sum(n.number) AS number FROM counted c, webhook.latency_counts(c.attempt_latency) n
                      GROUP BY n.class) l),
               (SELECT jsonb_object_agg(l.class, webhook.saturated(l.number))
                FROM (SELECT n.class, sum(n.number) AS number FROM counted c, webhook.latency_counts(c.delivery_latency) n
                      GROUP BY n.class) l)
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
    SET attempts = webhook.saturated(s.attempts::numeric + excluded.attempts),
        sent = webhook.saturated(s.sent::numeric + excluded.sent),
        failed = webhook.saturated(s.failed::numeric + excluded.failed),
        retried = webhook.saturated(s.retried::numeric + excluded.retried),
        retries = webhook.saturated(s.retries::numeric + excluded.retries),
        attempt_latency = webhook.merge_latencies(s.attempt_latency, excluded.attempt_latency),
        delivery_latency = webhook.merge_latencies(s.delivery_latency, excluded.delivery_latency),
        last_sent_at = coalesce(excluded.last_sent_at, s.last_sent_at);
END $$;

-- Adds the counts of a sender, which are refused as a whole if one of them is impossible. Counts of an endpoint that is not
-- known are left out: no retention would find them. It waits only briefly for a lock: the sender brings its counts again.
CREATE OR REPLACE FUNCTION webhook.add_figures(figures jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250 ms' AS $$
DECLARE
    below CONSTANT bigint := 1000000000000;
    impossible record;
BEGIN
    SELECT f.endpoint_id INTO impossible
    FROM jsonb_to_recordset(figures)
        AS f (endpoint_id int, attempts bigint, sent bigint, failed bigint, retried bigint, retries bigint,
              attempt_latency jsonb, delivery_latency jsonb)
    CROSS JOIN LATERAL (SELECT array_remove(ARRAY[f.attempts, f.sent, f.failed, f.retried, f.retries], NULL) AS counts) c
    WHERE (f.endpoint_id > 0 AND 0 <= ALL (c.counts) AND below > ALL (c.counts)
           AND webhook.is_histogram(coalesce(f.attempt_latency, '{}'))
           AND webhook.is_histogram(coalesce(f.delivery_latency, '{}'))) IS NOT TRUE
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'figures of endpoint % are impossible', impossible.endpoint_id USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('A count is at least 0 and below %s, and a latency class is between 0 and %s.',
                            below, webhook.max_latency_class());
    END IF;
    PERFORM webhook.count_figures(jsonb_agg(f))
    FROM jsonb_array_elements(figures) AS f
    WHERE EXISTS (SELECT FROM webhook.endpoint e WHERE e.id = (f ->> 'endpoint_id')::int OFFSET 0)
       OR EXISTS (SELECT FROM webhook.removed_endpoint r WHERE r.id = (f ->> 'endpoint_id')::int OFFSET 0)
    HAVING count(*) > 0;
END $$;
