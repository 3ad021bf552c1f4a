-- Order: deliveries of one endpoint with the same ordering_key go out one at a time, in the order of their emission.
--
-- The ids of events give that order: they carry the time of the emission to a quarter of a microsecond. Each endpoint and key
-- with something queued has a lane, and the lane says which event has the turn. The claim opens a lane for the first delivery
-- that is queued, takes only the delivery that has the turn, and sets the followers that it meets aside: waits_for names the
-- event that has the turn, and the due index leaves followers out. So the claim meets a follower once and not in every turn,
-- however many wait behind a failing delivery. Followers keep their own time. Retries and lost claims keep the turn. A trigger
-- passes it on when its delivery leaves the queue, whoever moves it and wherever to. Under the policy's on_blocked = wait a
-- dead letter keeps the turn, until somebody sends it again or discards it; but no delivery waits for one that was redacted
-- and cannot be sent any more.
--
-- An event of a transaction that commits late is not seen in time: it goes out when it has been committed and the turn that
-- was given meanwhile has ended. Emitters that must agree on the order take a lock of their own first, as they do by updating
-- the same row.
--
-- Nothing here waits for a row. webhook.keep_order() passes on turns that a lock or an old snapshot has kept from being passed
-- on.

-- Returns the rows among these, which the caller has locked, that may be claimed. It sets the others aside, and some
-- deliveries behind them, which the caller would meet next. If somebody has locked the lane, for example a person who has
-- cancelled or replayed its delivery and not yet committed, the next turn is not known: such rows are put off for a second, so
-- that they are not in the way of the deliveries behind them.
CREATE OR REPLACE FUNCTION webhook.set_followers_aside(row_ids tid[]) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    in_turn tid[];
BEGIN
    -- This finds rows by their ctids alone: with an order, or with the predicate of an index, the planner would rather read
    -- the whole index.
    WITH met AS MATERIALIZED (
        SELECT q.endpoint_id, q.ordering_key FROM webhook.delivery_queue q WHERE q.ctid = ANY (row_ids)
    )
    INSERT INTO webhook.lane (endpoint_id, ordering_key, event_id)
    SELECT met.endpoint_id, met.ordering_key, first.event_id
    FROM (SELECT DISTINCT m.endpoint_id, m.ordering_key FROM met m WHERE m.ordering_key IS NOT NULL) met
    CROSS JOIN LATERAL (
        SELECT q.event_id FROM webhook.delivery_queue q
        WHERE q.endpoint_id = met.endpoint_id AND q.ordering_key = met.ordering_key
        ORDER BY q.endpoint_id, q.ordering_key, q.event_id LIMIT 1
    ) first
    -- This comes first, because ON CONFLICT would wait for a lane that somebody is about to close.
    WHERE NOT EXISTS (SELECT FROM webhook.lane l
                      WHERE l.endpoint_id = met.endpoint_id AND l.ordering_key = met.ordering_key OFFSET 0)
    ON CONFLICT DO NOTHING;

    -- While the lane is locked, no session passes its turn on without seeing the followers that were set aside behind it.
    WITH met AS MATERIALIZED (
        SELECT q.ctid AS row_id, q.endpoint_id, q.ordering_key, q.event_id, lane.event_id AS turn_of,
               q.ordering_key IS NULL OR coalesce(lane.event_id = q.event_id, false) AS is_in_turn
        FROM webhook.delivery_queue q
        LEFT JOIN LATERAL (
            SELECT l.event_id FROM webhook.lane l
            WHERE l.endpoint_id = q.endpoint_id AND l.ordering_key = q.ordering_key
            LIMIT 1 FOR SHARE SKIP LOCKED
        ) lane ON true
        WHERE q.ctid = ANY (row_ids)
    ), last_met AS MATERIALIZED (
        SELECT DISTINCT ON (m.endpoint_id, m.ordering_key) m.endpoint_id, m.ordering_key, m.event_id, m.turn_of
        FROM met m WHERE NOT m.is_in_turn AND m.turn_of IS NOT NULL
        ORDER BY m.endpoint_id, m.ordering_key, m.event_id DESC
    ), behind AS MATERIALIZED (
        SELECT m.row_id, m.turn_of FROM met m WHERE NOT m.is_in_turn
        UNION ALL
        SELECT q.row_id, l.turn_of
        FROM last_met l
        CROSS JOIN LATERAL (
            SELECT q.ctid AS row_id FROM webhook.delivery_queue q
            WHERE q.endpoint_id = l.endpoint_id AND q.ordering_key = l.ordering_key AND q.event_id > l.event_id
              AND q.event_id <> l.turn_of AND q.status = 'PENDING' AND q.waits_for IS NULL AND q.next_attempt_at <= now()
            ORDER BY q.endpoint_id, q.ordering_key, q.event_id
            LIMIT 20 FOR UPDATE SKIP LOCKED
        ) q
    ), set_aside AS (
        UPDATE webhook.delivery_queue q
        SET waits_for = b.turn_of,
            next_attempt_at = CASE WHEN b.turn_of IS NULL THEN now() + interval '1 s' ELSE q.next_attempt_at END
        FROM behind b WHERE q.ctid = b.row_id
    )
    SELECT array_agg(m.row_id) INTO in_turn FROM met m WHERE m.is_in_turn;
    RETURN in_turn;
END $$;

CREATE OR REPLACE FUNCTION webhook.has_its_turn(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    turn_of uuid;
BEGIN
    IF q.ordering_key IS NULL THEN
        RETURN true;
    END IF;
    SELECT l.event_id INTO turn_of FROM webhook.lane l WHERE l.endpoint_id = q.endpoint_id AND l.ordering_key = q.ordering_key;
    IF NOT FOUND THEN
        SELECT first.event_id INTO turn_of FROM webhook.delivery_queue first
        WHERE first.endpoint_id = q.endpoint_id AND first.ordering_key = q.ordering_key
        ORDER BY first.event_id LIMIT 1;
    END IF;
    RETURN turn_of = q.event_id;
END $$;

-- Gives these followers the turn: they wait only for their time.
CREATE OR REPLACE FUNCTION webhook.call_followers(event_ids uuid[], endpoint_ids int[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    earliest timestamptz;
BEGIN
    WITH called AS (
        UPDATE webhook.delivery_queue q SET waits_for = NULL
        WHERE ctid = ANY (ARRAY(
            SELECT q.row_id FROM unnest(event_ids, endpoint_ids) AS u (event_id, endpoint_id)
            CROSS JOIN LATERAL (
                SELECT q.ctid AS row_id FROM webhook.delivery_queue q
                WHERE q.event_id = u.event_id AND q.endpoint_id = u.endpoint_id AND q.status = 'PENDING' AND q.waits_for IS NOT NULL
                LIMIT 1 FOR UPDATE SKIP LOCKED
            ) q))
        RETURNING q.next_attempt_at
    )
    SELECT min(c.next_attempt_at) INTO earliest FROM called c;
    PERFORM webhook.wake(endpoint_ids, earliest);
END $$;

-- Passes the turn to the next delivery, if there is one, when the delivery that had it has left the queue or the dead letters.
CREATE OR REPLACE FUNCTION webhook.pass_turn(of_endpoint int, of_key text, from_event uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    next_event uuid;
BEGIN
    PERFORM FROM webhook.lane l
    WHERE l.endpoint_id = of_endpoint AND l.ordering_key = of_key AND l.event_id = from_event FOR UPDATE;
    IF NOT FOUND
       OR EXISTS (SELECT FROM webhook.delivery_queue q
                  WHERE q.event_id = from_event AND q.endpoint_id = of_endpoint AND q.ordering_key = of_key)
       OR (EXISTS (SELECT FROM webhook.dead_letter d WHERE d.event_id = from_event AND d.endpoint_id = of_endpoint)
           AND EXISTS (SELECT FROM webhook.event v WHERE v.id = from_event AND v.redacted_at IS NULL)
           AND (SELECT (webhook.policy_of(e.policy)).on_blocked = 'wait' FROM webhook.endpoint e WHERE e.id = of_endpoint)) THEN
        RETURN;
    END IF;

    SELECT q.event_id INTO next_event FROM webhook.delivery_queue q
    WHERE q.endpoint_id = of_endpoint AND q.ordering_key = of_key
    ORDER BY q.endpoint_id, q.ordering_key, q.event_id LIMIT 1;
    IF FOUND THEN
        UPDATE webhook.lane l SET event_id = next_event WHERE l.endpoint_id = of_endpoint AND l.ordering_key = of_key;
        PERFORM webhook.call_followers(ARRAY[next_event], ARRAY[of_endpoint]);
    ELSE
        DELETE FROM webhook.lane l WHERE l.endpoint_id = of_endpoint AND l.ordering_key = of_key;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.pass_turn() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.pass_turn(OLD.endpoint_id, OLD.ordering_key, OLD.event_id);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER pass_turn AFTER DELETE ON webhook.delivery_queue
    FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION webhook.pass_turn();
CREATE OR REPLACE TRIGGER pass_turn AFTER DELETE ON webhook.dead_letter
    FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION webhook.pass_turn();

-- Lanes on the next page whose delivery has left the queue; null is the beginning, and the end.
CREATE OR REPLACE FUNCTION webhook.lost_turns(
    INOUT after_endpoint int, INOUT after_key text, page_size int, OUT endpoint_ids int[], OUT ordering_keys text[])
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT l.endpoint_id, l.ordering_key, l.event_id FROM webhook.lane l
        WHERE (l.endpoint_id, l.ordering_key) > (coalesce(after_endpoint, 0), coalesce(after_key, ''))
        ORDER BY l.endpoint_id, l.ordering_key LIMIT page_size
    ), last AS (
        SELECT p.endpoint_id, p.ordering_key FROM page p OFFSET page_size - 1
    )
    SELECT array_agg(p.endpoint_id), array_agg(p.ordering_key), (SELECT l.endpoint_id FROM last l), (SELECT l.ordering_key FROM last l)
    INTO endpoint_ids, ordering_keys, after_endpoint, after_key
    FROM page p
    WHERE NOT EXISTS (SELECT FROM webhook.delivery_queue q
                      WHERE q.event_id = p.event_id AND q.endpoint_id = p.endpoint_id AND q.ordering_key = p.ordering_key OFFSET 0);
END $$;

-- Followers that wait for no event, on the next page of all that have a key.
CREATE OR REPLACE FUNCTION webhook.lost_followers(
    INOUT after_endpoint int, INOUT after_key text, INOUT after_event uuid, page_size int,
    OUT event_ids uuid[], OUT endpoint_ids int[])
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT q.endpoint_id, q.ordering_key, q.event_id, q.waits_for FROM webhook.delivery_queue q
        WHERE q.ordering_key IS NOT NULL
          AND (q.endpoint_id, q.ordering_key, q.event_id)
              > (coalesce(after_endpoint, 0), coalesce(after_key, ''), coalesce(after_event, '00000000-0000-0000-0000-000000000000'))
        ORDER BY q.endpoint_id, q.ordering_key, q.event_id LIMIT page_size
    ), last AS (
        SELECT p.endpoint_id, p.ordering_key, p.event_id FROM page p OFFSET page_size - 1
    )
    SELECT array_agg(p.event_id), array_agg(p.endpoint_id),
           (SELECT l.endpoint_id FROM last l), (SELECT l.ordering_key FROM last l), (SELECT l.event_id FROM last l)
    INTO event_ids, endpoint_ids, after_endpoint, after_key, after_event
    FROM page p
    LEFT JOIN LATERAL (SELECT l.event_id FROM webhook.lane l
                       WHERE l.endpoint_id = p.endpoint_id AND l.ordering_key = p.ordering_key LIMIT 1) lane ON true
    WHERE p.waits_for IS NOT NULL AND (lane.event_id IS NULL OR lane.event_id = p.event_id);
END $$;

-- Passes on the turns of deliveries that are gone, and calls followers that wait for no event: now and then, a page of each.
-- Returns where the next pages begin; null is the beginning.
CREATE OR REPLACE FUNCTION webhook.keep_order(
    INOUT lane_endpoint int DEFAULT NULL, INOUT lane_key text DEFAULT NULL,
    INOUT follower_endpoint int DEFAULT NULL, INOUT follower_key text DEFAULT NULL,
    INOUT follower_event uuid DEFAULT NULL, page_size int DEFAULT 2000)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    turns record := webhook.lost_turns(lane_endpoint, lane_key, page_size);
    followers record;
BEGIN
    IF turns.endpoint_ids IS NOT NULL THEN
        PERFORM webhook.pass_turn(l.endpoint_id, l.ordering_key, l.event_id)
        FROM (SELECT l.endpoint_id, l.ordering_key, l.event_id
              FROM unnest(turns.endpoint_ids, turns.ordering_keys) AS lost (endpoint_id, ordering_key)
              JOIN webhook.lane l USING (endpoint_id, ordering_key)
              FOR UPDATE OF l SKIP LOCKED) l;
    END IF;
    followers := webhook.lost_followers(follower_endpoint, follower_key, follower_event, page_size);
    IF followers.event_ids IS NOT NULL THEN
        PERFORM webhook.call_followers(followers.event_ids, followers.endpoint_ids);
    END IF;

    lane_endpoint := turns.after_endpoint;
    lane_key := turns.after_key;
    follower_endpoint := followers.after_endpoint;
    follower_key := followers.after_key;
    follower_event := followers.after_event;
END $$;
