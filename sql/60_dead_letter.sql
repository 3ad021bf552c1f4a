-- Dead letters: what failed for good, and what people do about it: send it again, give it up, take it back.
--
-- A replayed delivery starts anew: attempts 0, due now, and the worker wakes at the commit. What nobody can send any more
-- is passed over and counted in a NOTICE: the endpoint was removed, or the event was redacted or deleted.

CREATE VIEW webhook.failed AS
SELECT d.event_id, d.event_type, webhook.address(n.tenant, n.name) AS endpoint, v.tenant, v.payload, d.attempts, d.last_status_code, d.last_error,
       d.completed_at AS failed_at
FROM webhook.dead_letter d
LEFT JOIN webhook.event v ON v.id = d.event_id
LEFT JOIN (SELECT e.id, e.tenant, e.name FROM webhook.endpoint e UNION ALL SELECT r.id, r.tenant, r.name FROM webhook.removed_endpoint r) n
    ON n.id = d.endpoint_id;

-- What people select by; null stands for no condition. Without SET, so that the planner sees through it.
CREATE FUNCTION webhook.dead_letters(of_endpoint int, of_type text, failed_since timestamptz, failed_before timestamptz)
    RETURNS TABLE (event_id uuid, endpoint_id int, failed_at timestamptz, endpoint_is_gone boolean, payload_is_gone boolean)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT d.event_id, d.endpoint_id, d.completed_at, e.id IS NULL, v.id IS NULL OR v.redacted_at IS NOT NULL
        FROM webhook.dead_letter d
        LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id
        LEFT JOIN webhook.event v ON v.id = d.event_id
        WHERE (of_endpoint IS NULL OR d.endpoint_id = of_endpoint)
          AND (of_type IS NULL OR d.event_type = of_type)
          AND (failed_since IS NULL OR d.completed_at >= failed_since)
          AND (failed_before IS NULL OR d.completed_at < failed_before);
    END;

-- The next ones in the order of the primary key, and below in that of their failure. By an index and never by a sort, which
-- would make a small batch cost as much as all that is left. The settings must not reach those who move the rows.
CREATE FUNCTION webhook.next_dead_letters(
    of_endpoint int, of_type text, failed_since timestamptz, failed_before timestamptz, after_event_id uuid, after_endpoint_id int,
    max_rows int, OUT size bigint, OUT event_ids uuid[], OUT endpoint_ids int[], OUT endpoint_gone bigint, OUT payload_gone bigint)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    SELECT count(*), array_agg(d.event_id), array_agg(d.endpoint_id), count(*) FILTER (WHERE d.endpoint_is_gone),
           count(*) FILTER (WHERE d.payload_is_gone AND NOT d.endpoint_is_gone)
    INTO size, event_ids, endpoint_ids, endpoint_gone, payload_gone
    FROM (SELECT d.* FROM webhook.dead_letters(of_endpoint, of_type, failed_since, failed_before) d
          WHERE after_event_id IS NULL OR (d.event_id, d.endpoint_id) > (after_event_id, after_endpoint_id)
          ORDER BY d.event_id, d.endpoint_id LIMIT max_rows) d;
END $$;

CREATE FUNCTION webhook.oldest_dead_letters(
    of_endpoint int, of_type text, failed_since timestamptz, failed_before timestamptz, max_rows int, sendable boolean,
    OUT size bigint, OUT event_ids uuid[], OUT endpoint_ids int[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    SELECT count(*), array_agg(d.event_id), array_agg(d.endpoint_id)
    INTO size, event_ids, endpoint_ids
    FROM (SELECT d.* FROM webhook.dead_letters(of_endpoint, of_type, failed_since, failed_before) d
          WHERE NOT sendable OR NOT (d.endpoint_is_gone OR d.payload_is_gone)
          ORDER BY d.failed_at LIMIT max_rows) d;
END $$;

CREATE FUNCTION webhook.require_event(wanted_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = wanted_id)
       AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = wanted_id)
       AND NOT EXISTS (SELECT FROM webhook.attempt a WHERE a.event_id = wanted_id) THEN
        RAISE EXCEPTION 'event "%" does not exist', wanted_id USING ERRCODE = 'undefined_object',
            DETAIL = 'It was never committed, or it has been discarded or removed since.',
            HINT = 'An event has the id that webhook_emit() returned and receivers saw as webhook-id.';
    END IF;
END $$;

-- The endpoints that a person has named as the view does: those of that name that were removed, in the order of their removal,
-- and then the one there is. For '*' and null a null alone, which stands for all of them.
CREATE FUNCTION webhook.named_endpoints(endpoint_name text) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_ids int[];
BEGIN
    IF endpoint_name IS NULL OR endpoint_name = '*' THEN
        RETURN ARRAY[NULL::int];
    END IF;
    SELECT array_agg(n.id ORDER BY n.until) INTO found_ids
    FROM (SELECT e.id, 'infinity'::timestamptz AS until FROM webhook.endpoint_at(endpoint_name) e
          UNION ALL
          SELECT r.id, r.removed_at FROM webhook.removed_endpoint r
          WHERE webhook.address(r.tenant, r.name) = endpoint_name) n;
    RETURN coalesce(found_ids, ARRAY[webhook.require_endpoint(endpoint_name)]);
END $$;

-- The same where all of them must be asked for by name.
CREATE FUNCTION webhook.chosen_endpoints(endpoint_name text) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF endpoint_name IS NULL THEN
        RAISE EXCEPTION 'endpoint must not be null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'Name an endpoint, or use ''*'' for every one.';
    END IF;
    RETURN webhook.named_endpoints(endpoint_name);
END $$;

CREATE FUNCTION webhook.require_positive(parameter text, value int) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (value > 0) IS NOT TRUE THEN
        RAISE EXCEPTION '% must be positive', parameter USING ERRCODE = 'invalid_parameter_value',
            HINT = format('Leave %s out for the default.', parameter);
    END IF;
END $$;

CREATE FUNCTION webhook.tell_passed_over(endpoint_gone bigint, payload_gone bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF endpoint_gone > 0 THEN
        RAISE NOTICE 'passed over, because their endpoint was removed: % deliveries', endpoint_gone
            USING HINT = 'webhook_discard() and webhook_discard_failed() delete what failed of them.';
    END IF;
    IF payload_gone > 0 THEN
        RAISE NOTICE 'passed over, because their event was redacted or deleted: % deliveries', payload_gone
            USING HINT = 'webhook_discard() and webhook_discard_failed() delete what failed of them.';
    END IF;
END $$;

-- Deletes dead letters and their attempts, and the events that nothing needs any more. The events are locked first: of two
-- people who discard the last two deliveries of one, the later one sees that they were the last.
CREATE FUNCTION webhook.discard(event_ids uuid[], endpoint_ids int[]) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    discarded bigint;
BEGIN
    PERFORM FROM webhook.event v WHERE v.id = ANY (event_ids) ORDER BY v.id FOR UPDATE;
    WITH gone AS (
        DELETE FROM webhook.dead_letter d
        USING (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id
        RETURNING d.event_id, d.endpoint_id
    ), unlogged AS (
        DELETE FROM webhook.attempt a USING gone g WHERE a.event_id = g.event_id AND a.endpoint_id = g.endpoint_id
    )
    SELECT count(*) INTO discarded FROM gone;
    PERFORM webhook.forget(event_ids, NULL, 'infinity');
    RETURN discarded;
END $$;

-- Takes the payload and what receivers answered out of every table, and what is queued out of the queue. Error texts stay:
-- they are made of our own words and a status code. Returns the number of rows that had something to lose.
CREATE FUNCTION webhook.redact(redacted_id uuid) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked bigint;
    changed bigint;
    excerpts bigint;
BEGIN
    UPDATE webhook.event v SET payload = 'null', redacted_at = now() WHERE v.id = redacted_id AND v.redacted_at IS NULL;
    GET DIAGNOSTICS changed = ROW_COUNT;

    -- Until this is committed nobody sees it: no delivery may leave its leaf meanwhile, be sent, and log an answer. One that
    -- the worker or a person moved while we waited for it is locked in the next round.
    LOOP
        SELECT count(*) INTO locked
        FROM (SELECT FROM webhook.delivery d WHERE d.event_id = redacted_id ORDER BY d.endpoint_id FOR UPDATE) l;
        EXIT WHEN locked = (SELECT count(*) FROM webhook.delivery d WHERE d.event_id = redacted_id);
    END LOOP;
    changed := changed + (
        SELECT webhook.finish_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'CANCELLED', 'redacted')
        FROM webhook.delivery_queue q WHERE q.event_id = redacted_id);
    PERFORM webhook.pass_turn(d.endpoint_id, d.ordering_key, d.event_id)
    FROM webhook.dead_letter d WHERE d.event_id = redacted_id AND d.ordering_key IS NOT NULL;

    UPDATE webhook.attempt a SET response_excerpt = NULL WHERE a.event_id = redacted_id AND a.response_excerpt IS NOT NULL;
    GET DIAGNOSTICS excerpts = ROW_COUNT;
    RETURN changed + excerpts;
END $$;

-- One change to deliveries, at once or not at all. It waits for a lock less than the deadlock_timeout of a person who
-- waits for us, so that it is never that person who loses.
CREATE FUNCTION webhook.try_change(what text, event_ids uuid[], endpoint_ids int[]) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' AS $$
BEGIN
    RETURN CASE what
        WHEN 'replay' THEN webhook.requeue(event_ids, endpoint_ids)
        WHEN 'resend' THEN webhook.requeue(event_ids, endpoint_ids, finished_too => true)
        WHEN 'discard' THEN webhook.discard(event_ids, endpoint_ids)
        WHEN 'cancel' THEN webhook.finish_queued(event_ids, endpoint_ids, 'CANCELLED', 'cancelled')
        WHEN 'redact' THEN webhook.redact(event_ids[1])
    END;
END $$;

-- The same, whatever others do to these deliveries meanwhile: who has them locked is waited for, and who has moved them by
-- an UPDATE is no reason to fail. Between two attempts nothing is locked.
CREATE FUNCTION webhook.change(what text, event_ids uuid[], endpoint_ids int[]) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    conflicts_left int := 100;
    own_lock_timeout interval := current_setting('lock_timeout')::interval;
    began timestamptz := clock_timestamp();
BEGIN
    LOOP
        BEGIN
            RETURN webhook.try_change(what, event_ids, endpoint_ids);
        EXCEPTION
            WHEN lock_not_available THEN
                IF own_lock_timeout > interval '0' AND clock_timestamp() > began + own_lock_timeout THEN
                    RAISE;
                END IF;
            WHEN serialization_failure OR deadlock_detected THEN
                conflicts_left := conflicts_left - CASE SQLSTATE WHEN '40P01' THEN 30 ELSE 1 END;
                IF conflicts_left < 0 OR current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
                    RAISE;
                END IF;
        END;
    END LOOP;
END $$;

CREATE FUNCTION webhook.send_again(of_event uuid, endpoint text, finished_too boolean) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_endpoints int[] := webhook.named_endpoints(endpoint);
    found record;
    sent_again bigint;
BEGIN
    PERFORM webhook.require_event(of_event);
    SELECT array_agg(d.event_id) AS event_ids, array_agg(d.endpoint_id) AS endpoint_ids,
           count(*) FILTER (WHERE e.id IS NULL) AS endpoint_gone,
           count(*) FILTER (WHERE e.id IS NOT NULL AND v.id IS NULL) AS payload_gone
    INTO found
    FROM webhook.delivery d
    LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id
    LEFT JOIN webhook.event v ON v.id = d.event_id AND v.redacted_at IS NULL
    WHERE d.event_id = of_event AND (of_endpoints[1] IS NULL OR d.endpoint_id = ANY (of_endpoints))
      AND (d.status = 'FAILED' OR finished_too AND d.status IN ('SENT', 'CANCELLED'));

    sent_again := webhook.change(CASE WHEN finished_too THEN 'resend' ELSE 'replay' END, found.event_ids, found.endpoint_ids);
    PERFORM webhook.tell_passed_over(found.endpoint_gone, found.payload_gone);
    IF found.event_ids IS NULL THEN
        IF finished_too THEN
            RAISE NOTICE 'event % has no finished delivery', of_event;
        ELSE
            RAISE NOTICE 'event % has no failed delivery', of_event
                USING HINT = 'webhook_resend() also sends again what was sent or cancelled.';
        END IF;
    END IF;
    RETURN sent_again;
END $$;

-- Sends again what failed of an event. Returns the number of deliveries.
CREATE FUNCTION webhook.replay_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.send_again(event_id, endpoint, finished_too => false);
END $$;

-- Sends again what failed, what was sent and what was cancelled of an event.
CREATE FUNCTION webhook.resend_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.send_again(event_id, endpoint, finished_too => true);
END $$;

-- Sends again what failed at an endpoint ('*': at every one), the longest failed first: from `since` on, before `until`.
CREATE FUNCTION webhook.replay_failed(
    endpoint text, event_type text, since timestamptz, until timestamptz, max_rows int)
    RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    of_endpoints int[] := webhook.chosen_endpoints(endpoint);
    of_endpoint int := of_endpoints[cardinality(of_endpoints)];    -- to those that were removed nothing is sent
    found record;
    left_over record;
    replayed bigint;
BEGIN
    PERFORM webhook.require_positive('max_rows', max_rows);
    SELECT * INTO found FROM webhook.oldest_dead_letters(of_endpoint, event_type, since, until, max_rows, sendable => true);
    replayed := webhook.change('replay', found.event_ids, found.endpoint_ids);

    IF found.size < max_rows THEN
        SELECT count(*) FILTER (WHERE d.endpoint_is_gone) AS endpoint_gone,
               count(*) FILTER (WHERE d.payload_is_gone AND NOT d.endpoint_is_gone) AS payload_gone
        INTO left_over
        FROM unnest(of_endpoints) AS o (id) CROSS JOIN LATERAL webhook.dead_letters(o.id, event_type, since, until) d;
        PERFORM webhook.tell_passed_over(left_over.endpoint_gone, left_over.payload_gone);
    ELSIF (SELECT size > 0 FROM webhook.oldest_dead_letters(of_endpoint, event_type, since, until, 1, sendable => true)) THEN
        RAISE NOTICE 'stopped after % deliveries, and there are more', max_rows
            USING HINT = 'CALL webhook_replay_all() goes on to the last one, with a commit after each batch.';
    END IF;
    RETURN replayed;
END $$;

-- Where webhook_replay_all() stands. It walks along the primary key, so it visits no row twice.
CREATE TYPE webhook.replay AS (
    of_endpoint int, of_type text, failed_since timestamptz, failed_before timestamptz, batch_size int,
    after_event_id uuid, after_endpoint_id int,
    total bigint, visited bigint, replayed bigint, endpoint_gone bigint, payload_gone bigint, done boolean);

CREATE FUNCTION webhook.begin_replay(endpoint text, event_type text, since timestamptz, until timestamptz, batch_size int)
    RETURNS webhook.replay
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run webhook.replay;
    of_endpoints int[];
BEGIN
    PERFORM webhook.require_positive('batch_size', batch_size);
    of_endpoints := webhook.chosen_endpoints(endpoint);
    run.of_endpoint := of_endpoints[cardinality(of_endpoints)];
    run.of_type := event_type;
    run.failed_since := since;
    run.failed_before := least(until, clock_timestamp());   -- what fails again before the end is not replayed again
    run.batch_size := batch_size;
    run.total := (SELECT count(*) FROM webhook.dead_letters(run.of_endpoint, event_type, since, run.failed_before));
    run.visited := 0;
    run.replayed := 0;
    run.endpoint_gone := 0;
    run.payload_gone := 0;
    run.done := false;
    RAISE NOTICE 'replaying % deliveries, with a commit after every %', run.total, batch_size;
    RETURN run;
END $$;

CREATE FUNCTION webhook.replay_batch(run webhook.replay) RETURNS webhook.replay
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch record;
    tenths_told bigint := run.visited * 10 / greatest(run.total, 1);
BEGIN
    SELECT * INTO batch
    FROM webhook.next_dead_letters(run.of_endpoint, run.of_type, run.failed_since, run.failed_before,
                                   run.after_event_id, run.after_endpoint_id, run.batch_size);
    run.replayed := run.replayed + webhook.change('replay', batch.event_ids, batch.endpoint_ids);
    run.visited := run.visited + batch.size;
    run.endpoint_gone := run.endpoint_gone + batch.endpoint_gone;
    run.payload_gone := run.payload_gone + batch.payload_gone;
    run.after_event_id := batch.event_ids[batch.size];
    run.after_endpoint_id := batch.endpoint_ids[batch.size];
    run.done := batch.size < run.batch_size;

    IF run.done THEN
        RAISE NOTICE 'replayed % deliveries', run.replayed;
        PERFORM webhook.tell_passed_over(run.endpoint_gone, run.payload_gone);
    ELSIF run.visited * 10 / greatest(run.total, 1) > tenths_told THEN
        RAISE NOTICE 'replayed % of % deliveries', run.replayed, run.total;
    END IF;
    RETURN run;
END $$;

-- Sends again all that has failed so far at an endpoint ('*': at every one), in batches of one transaction each.
-- It has no search_path of its own, since it commits; so nothing here depends on one.
CREATE PROCEDURE @extschema@.webhook_replay_all(
    endpoint text, event_type text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    batch_size int DEFAULT 1000)
    LANGUAGE plpgsql AS $$
DECLARE
    run webhook.replay;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_replay_all()');
    run := webhook.begin_replay(endpoint, event_type, since, until, batch_size);
    COMMIT;
    WHILE NOT run.done LOOP
        run := webhook.replay_batch(run);
        COMMIT;
    END LOOP;
END $$;

-- Deletes what failed of an event, for good, with its attempts; the event too when nothing else needs it.
CREATE FUNCTION webhook.discard_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_endpoints int[] := webhook.named_endpoints(endpoint);
    found record;
BEGIN
    PERFORM webhook.require_event(discard_event.event_id);
    SELECT array_agg(d.event_id) AS event_ids, array_agg(d.endpoint_id) AS endpoint_ids
    INTO found
    FROM webhook.dead_letters(NULL, NULL, NULL, NULL) d
    WHERE d.event_id = discard_event.event_id AND (of_endpoints[1] IS NULL OR d.endpoint_id = ANY (of_endpoints));
    IF found.event_ids IS NULL THEN
        RAISE NOTICE 'event % has no failed delivery', discard_event.event_id
            USING HINT = 'webhook_cancel() takes back what is still queued.';
    END IF;
    RETURN webhook.change('discard', found.event_ids, found.endpoint_ids);
END $$;

-- Deletes what failed at an endpoint ('*': at every one), the longest failed first: from `since` on, before `until`.
CREATE FUNCTION webhook.discard_failed(
    endpoint text, event_type text, since timestamptz, until timestamptz, max_rows int)
    RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_endpoints int[] := webhook.chosen_endpoints(endpoint);
    of_endpoint int;
    found record;
    discarded bigint := 0;
    rows_left int := max_rows;
BEGIN
    PERFORM webhook.require_positive('max_rows', max_rows);
    FOREACH of_endpoint IN ARRAY of_endpoints LOOP
        EXIT WHEN rows_left = 0;
        SELECT * INTO found
        FROM webhook.oldest_dead_letters(of_endpoint, event_type, since, until, rows_left, sendable => false);
        discarded := discarded + webhook.change('discard', found.event_ids, found.endpoint_ids);
        rows_left := rows_left - found.size;
    END LOOP;
    IF rows_left = 0
       AND EXISTS (SELECT FROM unnest(of_endpoints) AS o (id)
                   CROSS JOIN LATERAL webhook.oldest_dead_letters(o.id, event_type, since, until, 1, sendable => false) d
                   WHERE d.size > 0) THEN
        RAISE NOTICE 'stopped after % deliveries, and there are more', max_rows
            USING HINT = 'Call it again to go on.';
    END IF;
    RETURN discarded;
END $$;

-- Takes back what is still queued of an event. A request in flight is not called back; its outcome is only logged.
CREATE FUNCTION webhook.cancel_event(event_id uuid) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    queued record;
BEGIN
    PERFORM webhook.require_event(cancel_event.event_id);
    SELECT array_agg(q.event_id) AS event_ids, array_agg(q.endpoint_id) AS endpoint_ids
    INTO queued
    FROM webhook.delivery_queue q WHERE q.event_id = cancel_event.event_id;
    IF queued.event_ids IS NULL THEN
        RAISE NOTICE 'event % has no delivery in the queue', cancel_event.event_id;
    END IF;
    RETURN webhook.change('cancel', queued.event_ids, queued.endpoint_ids);
END $$;

-- Removes an event's payload and all that receivers answered; when and where it was sent stays known. What is still queued is
-- cancelled, and it is never sent again. Returns the number of rows changed: the event, deliveries and attempts.
CREATE FUNCTION webhook.redact_event(event_id uuid) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_event(redact_event.event_id);
    RETURN webhook.change('redact', ARRAY[redact_event.event_id], NULL);
END $$;
