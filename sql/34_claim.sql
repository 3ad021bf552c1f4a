-- Claiming: how deliveries leave the queue for the wire.
--
-- A sender knows when each endpoint has something due (webhook.agenda, webhook.due), and asks in one call, webhook.exchange(),
-- for as many deliveries as each has room for. PENDING becomes SENDING, the attempt is counted, and the row carries the
-- sender's instance and a new claim_seq. After the commit the requests go out. Nothing here waits for a row: a claim passes
-- over a row that somebody has locked and tries it again a little later.
--
-- The plans are fixed. The queue is empty when they are made, and known to be so after a vacuum, and may have a million rows
-- when they are used: a sequential scan, a sort or a join the wrong way round chosen once would stay. Hence the settings on
-- each function, the LIMITs in the LATERALs, which keep the planner from turning a join around, and plans that are generic
-- from the start.

-- A position is a time in seconds since 1970: no delivery of the endpoint that could be claimed was due before it. A sender
-- that reads the queue of an endpoint from there does not pass over the dead index entries of all that it has sent: while
-- somebody holds an old snapshot, vacuum cannot remove them. A missing position is the beginning. Positions only save time:
-- the next look at all endpoints finds a delivery that is behind one.

-- When to ask for each of these endpoints again, and what a sender needs to know of them to decide how many deliveries to ask
-- for. due_in_ms is null if nothing may be sent now: the endpoint is paused, disabled or not ours, or all its deliveries are
-- in flight. It is 0 if something is due, and a day at most. `is_guarded`: the breaker is not closed, or there is a test, so
-- that more than room decides what is claimed. `new_position` is null if the endpoint is not served, and never later than now:
-- a retry may come before a scheduled delivery. `is_well`: the endpoint has answered, in the last days, and not failed since.
CREATE OR REPLACE FUNCTION webhook.due(
    endpoint_ids int[], positions float8[] DEFAULT NULL, our_origin text DEFAULT NULL)
    RETURNS TABLE (endpoint_id int, due_in_ms bigint, new_position float8, max_in_flight int, rate_limit float8, breaker_state text,
                   is_guarded boolean, turns_away boolean, is_well boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    our_origin := coalesce(our_origin, webhook.origin());
    RETURN QUERY
    SELECT asked.id,
           ceil(greatest(0, least(86400, date_part('epoch', CASE WHEN guard.due IS NULL THEN waiting.next_attempt_at ELSE (guard.due).due_at END
                                                            - now()))) * 1000)::bigint,
           -- This takes off a microsecond, which the number may lose on its way.
           CASE WHEN ours.is_served THEN date_part('epoch', least(waiting.next_attempt_at, now()) - interval '1 us') END,
           ours.max_in_flight, ours.rate_limit::float8, coalesce((breaker.b).state, 'CLOSED'),
           guard.due IS NOT NULL, coalesce((guard.due).turns_away, false),
           coalesce((breaker.b).consecutive_failures, 0) = 0
               AND EXISTS (SELECT FROM webhook.stat t WHERE t.endpoint_id = ours.id AND t.grain = 'total' AND t.sent > 0 LIMIT 1)
    FROM unnest(endpoint_ids, positions) AS asked (id, position)
    LEFT JOIN LATERAL (
        SELECT e.id, e.max_in_flight, e.rate_limit, e.policy,
               webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, NULL) = 'ready' AS is_served
        FROM webhook.endpoint e
        WHERE e.id = asked.id AND e.origin = our_origin
        LIMIT 1
    ) ours ON true
    LEFT JOIN LATERAL (
        SELECT q.next_attempt_at FROM webhook.delivery_queue q
        WHERE q.endpoint_id = ours.id AND ours.is_served AND webhook.awaits_its_time(q)
          AND q.next_attempt_at >= coalesce(to_timestamp(asked.position), '-infinity')
        ORDER BY q.next_attempt_at, q.event_id LIMIT 1
    ) waiting ON true
    LEFT JOIN LATERAL (SELECT b FROM webhook.breaker b WHERE b.endpoint_id = ours.id LIMIT 1) breaker ON true
    -- The LIMIT makes the server check the WHERE before it calls the function.
    LEFT JOIN LATERAL (
        SELECT webhook.next_look_at_breaker(breaker.b, ours.is_served, ours.policy, waiting.next_attempt_at) AS due
        WHERE (breaker.b).state <> 'CLOSED' OR (breaker.b).retries_before IS NOT NULL OR (breaker.b).test_event_id IS NOT NULL
        LIMIT 1
    ) guard ON true;
END $$;

-- The next endpoints with something queued, in the order of their ids, about that many, and the position of each;
-- `goes_on_after` is the last of them if there may be more. It leaves out endpoints whose deliveries are all parked or wait
-- for their turn. The `later` ones have nothing that is due within a minute, and no breaker that may ask for a probe:
-- webhook.due() says no more of them.
CREATE OR REPLACE FUNCTION webhook.agenda(
    after_endpoint int, page_size int, OUT endpoint_ids int[], OUT positions float8[], OUT later_endpoint_ids int[],
    OUT later_in_ms bigint[], OUT goes_on_after int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    entries_at_a_time CONSTANT int := 7;
BEGIN
    -- This is a loose index scan: one descent of the index reads the entries of one endpoint with a backlog, or of many that
    -- have few.
    WITH RECURSIVE step AS (
        SELECT 0 AS ordinal, after_endpoint AS last_endpoint, NULL::int[] AS ids, NULL::timestamptz[] AS times
        UNION ALL
        SELECT step.ordinal + cardinality(next.ids), next.ids[cardinality(next.ids)], next.ids, next.times
        FROM step
        CROSS JOIN LATERAL (
            SELECT array_agg(first.endpoint_id) AS ids, array_agg(first.next_attempt_at) AS times
            FROM (SELECT DISTINCT ON (q.endpoint_id) q.endpoint_id, q.next_attempt_at
                  FROM (SELECT q.endpoint_id, q.next_attempt_at, q.event_id FROM webhook.delivery_queue q
                        WHERE q.endpoint_id > step.last_endpoint AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                        ORDER BY q.endpoint_id, q.next_attempt_at, q.event_id LIMIT entries_at_a_time) q
                  ORDER BY q.endpoint_id, q.next_attempt_at, q.event_id) first
        ) next
        WHERE step.ordinal < page_size AND next.ids IS NOT NULL
    ), page AS (
        SELECT found.endpoint_id, found.next_attempt_at FROM step, unnest(step.ids, step.times) AS found (endpoint_id, next_attempt_at)
    )
    SELECT array_agg(p.endpoint_id) FILTER (WHERE NOT p.has_time),
           array_agg(date_part('epoch', p.next_attempt_at)) FILTER (WHERE NOT p.has_time),
           array_agg(p.endpoint_id) FILTER (WHERE p.has_time),
           array_agg(ceil(least(86400, date_part('epoch', p.next_attempt_at - now())) * 1000)::bigint) FILTER (WHERE p.has_time),
           CASE WHEN count(*) >= page_size THEN max(p.endpoint_id) END
    INTO endpoint_ids, positions, later_endpoint_ids, later_in_ms, goes_on_after
    FROM (SELECT page.endpoint_id, page.next_attempt_at,
                 page.next_attempt_at > now() + interval '1 min'
                 AND NOT EXISTS (SELECT FROM webhook.breaker b WHERE b.endpoint_id = page.endpoint_id OFFSET 0) AS has_time
          FROM page) p;
END $$;

-- A time in the form that the body of a request has.
CREATE OR REPLACE FUNCTION webhook.wire_time(instant timestamptz) RETURNS text
    LANGUAGE sql STABLE
    RETURN to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

CREATE OR REPLACE FUNCTION webhook.payload_size(v webhook.event) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN coalesce(v.payload_bytes, octet_length(v.payload::text));

-- Returns the rows that fit, of these, which are locked and in the order in which they are due: one payload at most exceeds
-- each bound.
CREATE OR REPLACE FUNCTION webhook.within_byte_rooms(
    row_ids tid[], sizes int[], endpoint_ids int[], byte_rooms bigint[], byte_room bigint) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT array_agg(fitting.row_id ORDER BY fitting.ordinal) FILTER (WHERE fitting.bytes_before < byte_room)
        FROM (SELECT due.row_id, due.ordinal, sum(due.bytes) OVER (ORDER BY due.ordinal) - due.bytes AS bytes_before
              FROM (SELECT met.row_id, met.ordinal, met.bytes, q.endpoint_id,
                           sum(met.bytes) OVER (PARTITION BY q.endpoint_id ORDER BY met.ordinal) - met.bytes AS bytes_before
                    FROM unnest(row_ids, sizes) WITH ORDINALITY AS met (row_id, bytes, ordinal)
                    CROSS JOIN LATERAL (SELECT q.endpoint_id FROM webhook.delivery_queue q WHERE q.ctid = met.row_id LIMIT 1) q) due
              JOIN unnest(endpoint_ids, byte_rooms) AS room (endpoint_id, bytes) USING (endpoint_id)
              WHERE due.bytes_before < room.bytes) fitting);
END $$;

-- Locks at most capacities[i] due deliveries of endpoint_ids[i], the longest due first, and returns their rows. It picks no
-- more of an endpoint when byte_rooms[i] is full, and no more at all when byte_room is: one payload at most exceeds each
-- bound. It reads the queue of an endpoint from positions[i]. `new_routes` are the endpoints whose route is not the one that
-- known_routes[i] stands for. If breakers are locked, it takes all of these endpoints to be well.
CREATE OR REPLACE FUNCTION webhook.pick(
    endpoint_ids int[], capacities int[], byte_rooms bigint[], byte_room bigint, positions float8[], known_routes text[],
    our_origin text, breakers_are_locked boolean, OUT picked tid[], OUT new_routes int[])
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    sizes int[];
    bytes bigint;
    some_are_ordered boolean;
    some_are_coalesced boolean;
    some_are_guarded boolean;
    breakers webhook.breaker[];
BEGIN
    -- This is a statement of its own, since one that names the table would wait for the session that has locked it.
    IF NOT breakers_are_locked THEN
        breakers := ARRAY(SELECT breaker.b
                          FROM unnest(endpoint_ids) WITH ORDINALITY AS w (endpoint_id, ordinal)
                          LEFT JOIN LATERAL (SELECT b FROM webhook.breaker b WHERE b.endpoint_id = w.endpoint_id LIMIT 1) breaker ON true
                          ORDER BY w.ordinal);
    END IF;
    FOR round IN 1..5 LOOP
        SELECT array_agg(due.row_id) FILTER (WHERE due.row_id IS NOT NULL), array_agg(due.bytes) FILTER (WHERE due.row_id IS NOT NULL),
               sum(due.bytes), bool_or(due.is_ordered), bool_or(due.is_coalesced),
               bool_or(guard.state <> 'CLOSED' OR guard.retries_before IS NOT NULL OR guard.test_event_id IS NOT NULL),
               array_agg(DISTINCT e.id) FILTER (WHERE e.stamp IS DISTINCT FROM w.known_route)
        INTO picked, sizes, bytes, some_are_ordered, some_are_coalesced, some_are_guarded, new_routes
        FROM unnest(endpoint_ids, capacities, positions, known_routes) WITH ORDINALITY
            AS w (endpoint_id, capacity, position, known_route, ordinal)
        CROSS JOIN LATERAL (
            SELECT e.id, e.origin = our_origin AS is_ours, e.disabled_at, e.paused_at, route.stamp
            FROM webhook.endpoint e, webhook.route_stamp(e.id, e.xmin, e.policy, e.format) route
            WHERE e.id = w.endpoint_id LIMIT 1
        ) e
        -- OFFSET 0 computes this once for each endpoint, and not for each row.
        CROSS JOIN LATERAL (
            SELECT (breakers[w.ordinal]).state, (breakers[w.ordinal]).retries_before, (breakers[w.ordinal]).test_event_id OFFSET 0
        ) guard
        LEFT JOIN LATERAL (
            SELECT q.ctid AS row_id, q.ordering_key IS NOT NULL AS is_ordered, q.coalesce_key IS NOT NULL AS is_coalesced,
                   coalesce(q.payload_bytes, (SELECT webhook.payload_size(v) FROM webhook.event v WHERE v.id = q.event_id), 0) AS bytes
            FROM webhook.delivery_queue q
            WHERE q.endpoint_id = e.id AND webhook.is_ready(q, guard.retries_before)
              -- These bounds limit the scan of the index, unless retries are brought forward.
              AND q.next_attempt_at >= coalesce(to_timestamp(w.position), '-infinity')
              AND q.next_attempt_at <= CASE WHEN guard.retries_before IS NULL THEN now() ELSE 'infinity' END
            ORDER BY q.next_attempt_at, q.event_id
            LIMIT CASE webhook.endpoint_state(e.is_ours, e.disabled_at, e.paused_at, guard.state)
                      WHEN 'ready' THEN w.capacity ELSE 0 END
            FOR UPDATE SKIP LOCKED
        ) due ON true;
        IF bytes > least(byte_room, (SELECT min(room) FROM unnest(byte_rooms) AS room)) THEN
            picked := webhook.within_byte_rooms(picked, sizes, endpoint_ids, byte_rooms, byte_room);
        END IF;
        EXIT WHEN (some_are_ordered OR some_are_coalesced) IS NOT TRUE;
        IF some_are_coalesced THEN
            picked := webhook.cancel_superseded(picked);
        END IF;
        IF some_are_ordered THEN
            picked := webhook.set_followers_aside(picked);
        END IF;
        -- If all rows were set aside or cancelled, the deliveries behind them may go.
        EXIT WHEN cardinality(picked) > 0;
    END LOOP;

    IF some_are_guarded THEN
        picked := picked || webhook.set_followers_aside(webhook.pick_exceptions(endpoint_ids, our_origin));
        PERFORM webhook.end_catching_up(endpoint_ids);
    END IF;
END $$;

-- The source of events in CloudEvents: /webhook/<database>, or /webhook/<webhook.site>/<database>. Characters that a URI may
-- not have are percent-encoded.
CREATE OR REPLACE FUNCTION webhook.event_source() RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT '/webhook' || string_agg(CASE WHEN chr(b.byte) ~ '[A-Za-z0-9._~/-]' THEN chr(b.byte)
                                                 ELSE '%' || lpad(upper(to_hex(b.byte)), 2, '0') END, '' ORDER BY at)
            FROM convert_to(coalesce('/' || nullif(webhook.setting('site'), ''), '') || '/' || current_database(), 'UTF8') AS path,
                 generate_series(0, octet_length(path) - 1) AS at,
                 LATERAL (SELECT get_byte(path, at) AS byte) b);

-- The versions of the rows that a route is made of: another stamp is another route. A sender that remembers a route compares
-- stamps.
CREATE OR REPLACE FUNCTION webhook.route_stamp(endpoint_id int, endpoint_version xid, policy text, format text)
    RETURNS TABLE (stamp text)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT concat_ws(' ', endpoint_version, (SELECT p.xmin FROM webhook.policy p WHERE p.name = route_stamp.policy),
                         ARRAY(SELECT s.xmin FROM webhook.secret s
                               WHERE s.endpoint_id = route_stamp.endpoint_id AND (s.expires_at IS NULL OR s.expires_at > now())),
                         CASE format WHEN 'cloudevents' THEN webhook.event_source() END);
    END;

-- How to reach these endpoints, and in which format.
CREATE OR REPLACE FUNCTION webhook.routes(endpoint_ids int[])
    RETURNS TABLE (endpoint_id int, url text, headers jsonb, secrets text[], connect_timeout_ms int, timeout_ms int,
                   format text, template text, source text, stamp text, hmac_secrets text[], has_tenant boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT e.id, e.url, e.headers,
           CASE WHEN cardinality(valid.secrets) > 0 THEN valid.secrets ELSE ARRAY[webhook.first_secret(e.id)] END,
           (date_part('epoch', (shared.policy).connect_timeout) * 1000)::int,
           (date_part('epoch', (shared.policy).timeout) * 1000)::int,
           e.format, e.template::text, CASE e.format WHEN 'cloudevents' THEN webhook.event_source() END,
           (SELECT s.stamp FROM webhook.route_stamp(e.id, e.xmin, e.policy, e.format) s),
           CASE WHEN webhook.has_signatures(e.headers) THEN webhook.hmac_secrets(e.id) END, e.tenant IS NOT NULL
    -- Read each policy once.
    FROM (SELECT webhook.policy_of(e.policy) AS policy, array_agg(e.id) AS endpoint_ids
          FROM webhook.endpoint e WHERE e.id = ANY (endpoint_ids) GROUP BY e.policy OFFSET 0) shared
    JOIN webhook.endpoint e ON e.id = ANY (shared.endpoint_ids)
    CROSS JOIN LATERAL (SELECT ARRAY(SELECT s.secret FROM webhook.secret s
                                     WHERE s.endpoint_id = e.id AND (s.expires_at IS NULL OR s.expires_at > now())
                                       AND NOT starts_with(s.secret, 'hmac_')
                                     ORDER BY left(s.secret, 5), s.created_at DESC) AS secrets OFFSET 0) valid;
END $$;
