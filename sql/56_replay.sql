-- Replaying: deliveries that have ended, whatever their end, are sent again.
--
-- A replayed delivery starts anew: attempts 0, due now, under the same webhook-id, and the worker wakes at the commit. A
-- delivery that nobody can send any more is passed over and counted in a NOTICE: its endpoint was removed, or its event was
-- redacted or deleted. webhook.requeue() moves the rows.

CREATE OR REPLACE FUNCTION webhook.tell_passed_over(endpoint_gone bigint, payload_gone bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF endpoint_gone > 0 THEN
        RAISE NOTICE 'skipped % deliveries whose endpoint was removed', endpoint_gone
            USING HINT = 'webhook_discard() deletes those that failed, and DELETE FROM webhook.dead_letter WHERE .. many of them.';
    END IF;
    IF payload_gone > 0 THEN
        RAISE NOTICE 'skipped % deliveries whose event was redacted or deleted', payload_gone
            USING HINT = 'webhook_discard() deletes those that failed, and DELETE FROM webhook.dead_letter WHERE .. many of them.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.replay_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    ended CONSTANT text[] := '{FAILED, SENT, CANCELLED}';
    of_endpoints int[] := CASE WHEN endpoint IS NOT NULL THEN webhook.named_endpoints(endpoint) END;
    found record;
    replayed bigint;
BEGIN
    PERFORM webhook.require_event(replay_event.event_id);
    SELECT count(*) AS deliveries, count(*) FILTER (WHERE d.status <> ALL (ended)) AS queued,
           array_agg(d.event_id) FILTER (WHERE d.status = ANY (ended)) AS event_ids,
           array_agg(d.endpoint_id) FILTER (WHERE d.status = ANY (ended)) AS endpoint_ids,
           count(*) FILTER (WHERE d.status = ANY (ended) AND e.id IS NULL) AS endpoint_gone,
           count(*) FILTER (WHERE d.status = ANY (ended) AND e.id IS NOT NULL AND v.id IS NULL) AS payload_gone
    INTO found
    FROM webhook.delivery d
    LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id
    LEFT JOIN webhook.event v ON v.id = d.event_id AND v.redacted_at IS NULL
    WHERE d.event_id = replay_event.event_id AND (of_endpoints IS NULL OR d.endpoint_id = ANY (of_endpoints));

    replayed := webhook.change('replay', found.event_ids, found.endpoint_ids, ended);
    PERFORM webhook.tell_passed_over(found.endpoint_gone, found.payload_gone);
    IF found.queued > 0 THEN
        RAISE NOTICE 'skipped % deliveries that are queued already', found.queued
            USING HINT = format('UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = %L AND status = ''PENDING'' '
                                'makes them due now.', replay_event.event_id);
    ELSIF found.deliveries = 0 THEN
        RAISE NOTICE 'event % has no delivery to send again', replay_event.event_id
            USING HINT = 'CALL webhook_backfill() makes deliveries of events that an endpoint has none of.';
    END IF;
    RETURN replayed;
END $$;

-- The next deliveries of a run in the order of the primary key, at most run.batch_size, and those among them to replay. It
-- reads an index and never sorts: a sort would make a batch cost as much as all that is left. The settings must not reach the
-- function that moves the rows.
CREATE OR REPLACE FUNCTION webhook.next_of_replay(
    run webhook.replay, OUT met bigint, OUT last_event_id uuid, OUT last_endpoint_id int, OUT event_ids uuid[],
    OUT endpoint_ids int[], OUT endpoint_gone bigint, OUT payload_gone bigint)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    WITH visited AS MATERIALIZED (
        SELECT d.event_id, d.endpoint_id, d.event_type, d.completed_at
        FROM webhook.delivery d
        WHERE d.status = ANY (run.statuses)
          AND (d.event_id, d.endpoint_id) > (run.after_event_id, run.after_endpoint_id) AND d.event_id <= run.last_event_id
        ORDER BY d.event_id, d.endpoint_id LIMIT run.batch_size
    ), chosen AS MATERIALIZED (
        SELECT d.event_id, d.endpoint_id, e.id IS NULL AS endpoint_is_gone, v.id IS NULL AS payload_is_gone
        FROM visited d
        LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id
        LEFT JOIN webhook.event v ON v.id = d.event_id AND v.redacted_at IS NULL
        WHERE webhook.is_of_replay(run, d.endpoint_id, d.event_type, d.completed_at)
    )
    SELECT v.met, v.event_ids[v.met], v.endpoint_ids[v.met], c.event_ids, c.endpoint_ids, c.endpoint_gone, c.payload_gone
    INTO met, last_event_id, last_endpoint_id, event_ids, endpoint_ids, endpoint_gone, payload_gone
    FROM (SELECT count(*) AS met, array_agg(v.event_id) AS event_ids, array_agg(v.endpoint_id) AS endpoint_ids FROM visited v) v,
         (SELECT array_agg(c.event_id) AS event_ids, array_agg(c.endpoint_id) AS endpoint_ids,
                 count(*) FILTER (WHERE c.endpoint_is_gone) AS endpoint_gone,
                 count(*) FILTER (WHERE c.payload_is_gone AND NOT c.endpoint_is_gone) AS payload_gone FROM chosen c) c;
END $$;

-- Null stands for no condition. The function has no SET, so that the planner inlines it.
CREATE OR REPLACE FUNCTION webhook.is_of_replay(run webhook.replay, endpoint_id int, event_type text, ended_at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (run.of_endpoints IS NULL OR endpoint_id = ANY (run.of_endpoints))
       AND (run.of_type IS NULL OR event_type = run.of_type)
       AND (run.since IS NULL OR ended_at >= run.since)
       AND ended_at < run.before;

-- A run walks along the primary key from the first delivery to the last, so it visits no row twice. It takes only deliveries
-- that had ended before it began: it does not replay a delivery again that fails again.
CREATE OR REPLACE FUNCTION webhook.begin_replay(
    endpoint text, event_type text, since timestamptz, until timestamptz, statuses text[], batch_size int)
    RETURNS webhook.replay
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
    SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    run webhook.replay;
BEGIN
    PERFORM webhook.require_batch_size(batch_size);
    IF (statuses <@ '{FAILED, SENT, CANCELLED}' AND cardinality(statuses) > 0) IS NOT TRUE
       OR array_position(statuses, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'status is not valid' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Deliveries that can be replayed are FAILED, SENT or CANCELLED: status => ''{FAILED, CANCELLED}''.';
    END IF;
    run.of_endpoints := webhook.named_endpoints(endpoint);
    run.of_type := event_type;
    run.since := since;
    run.before := least(until, clock_timestamp());
    run.statuses := statuses;
    run.batch_size := batch_size;
    -- There is no min(uuid) before PostgreSQL 18; as text, ids have the same order.
    SELECT count(*), min(d.event_id::text COLLATE "C")::uuid, max(d.event_id::text COLLATE "C")::uuid
    INTO run.total, run.after_event_id, run.last_event_id
    FROM webhook.delivery d
    WHERE d.status = ANY (run.statuses) AND webhook.is_of_replay(run, d.endpoint_id, d.event_type, d.completed_at);
    run.after_endpoint_id := -2147483648;
    run.met := 0;
    run.replayed := 0;
    run.endpoint_gone := 0;
    run.payload_gone := 0;
    run.done := false;
    RAISE NOTICE 'replaying % deliveries, with a commit after every %', run.total, batch_size;
    RETURN run;
END $$;

CREATE OR REPLACE FUNCTION webhook.replay_batch(run webhook.replay) RETURNS webhook.replay
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch record;
    tenths_told bigint := run.met * 10 / greatest(run.total, 1);
BEGIN
    SELECT * INTO batch FROM webhook.next_of_replay(run);
    run.replayed := run.replayed + webhook.change('replay', batch.event_ids, batch.endpoint_ids, run.statuses);
    run.met := run.met + coalesce(cardinality(batch.event_ids), 0);
    run.endpoint_gone := run.endpoint_gone + batch.endpoint_gone;
    run.payload_gone := run.payload_gone + batch.payload_gone;
    run.after_event_id := batch.last_event_id;
    run.after_endpoint_id := batch.last_endpoint_id;
    run.done := batch.met < run.batch_size;

    IF run.done THEN
        RAISE NOTICE 'replayed % deliveries', run.replayed;
        PERFORM webhook.tell_passed_over(run.endpoint_gone, run.payload_gone);
    ELSIF run.met * 10 / greatest(run.total, 1) > tenths_told THEN
        RAISE NOTICE 'replayed % of % deliveries', run.replayed, run.total;
    END IF;
    RETURN run;
END $$;

CREATE OR REPLACE FUNCTION webhook.require_batch_size(batch_size int) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (batch_size > 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'batch_size must be positive' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave batch_size out for the default.';
    END IF;
END $$;

-- Sends again all deliveries of an address ('*': of every endpoint) that have ended so, from `since` on and before `until`, in
-- batches of one transaction each. They are READ COMMITTED, so that commits of others are no conflict.
-- pgspot: no search_path, because a procedure that commits cannot have one.
CREATE OR REPLACE PROCEDURE @extschema@.webhook_replay_all(
    endpoint text, event_type text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    status text[] DEFAULT '{FAILED}', batch_size int DEFAULT 1000)
    LANGUAGE plpgsql AS $$
DECLARE
    run webhook.replay;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_replay_all()');
    run := webhook.begin_replay(endpoint, event_type, since, until, status, batch_size);
    LOOP
        COMMIT;
        EXIT WHEN run.done;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        run := webhook.replay_batch(run);
    END LOOP;
END $$;
