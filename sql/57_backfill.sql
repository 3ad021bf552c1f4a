-- Backfilling: events that were emitted before an endpoint wanted them are sent to it after all.
--
-- A backfill makes deliveries of kept events that the endpoint matches now, by tenant, types and filter, and that it has no
-- delivery of. It walks along the ids of the events, in the order of their emission. An event keeps neither the keys nor the
-- times of its emission (ordering_key, coalesce_key, deliver_at, expires_at), nor the endpoints that it was limited to: a
-- backfilled delivery has none of them and is due now.
--
-- A missing delivery is proof only as long as the delivery would still be here: for events that are younger than
-- webhook.retention_sent, and under a policy that keeps sent deliveries.

CREATE OR REPLACE FUNCTION webhook.begin_backfill(endpoint text, since timestamptz, until timestamptz, event_type text, batch_size int)
    RETURNS webhook.backfill
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run webhook.backfill;
    addressed int[] := webhook.addressed_endpoints(endpoint);
    forgetful record;
BEGIN
    PERFORM webhook.require_batch_size(batch_size);
    SELECT count(*) AS endpoints, min(webhook.address(e.tenant, e.name)) AS address, min(e.policy) AS policy INTO forgetful
    FROM webhook.endpoint e WHERE e.id = ANY (addressed) AND NOT (webhook.policy_of(e.policy)).keep_sent;
    IF forgetful.endpoints > 0 AND forgetful.endpoints = cardinality(addressed) THEN
        RAISE EXCEPTION 'endpoint "%" keeps no record of the deliveries that were sent', forgetful.address
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Its policy "%s" has keep_sent = false, so events might be sent twice.', forgetful.policy),
                  HINT = 'Give the endpoint a policy that keeps them first: UPDATE webhook.endpoint SET policy = ..';
    ELSIF forgetful.endpoints > 0 THEN
        RAISE NOTICE 'skipped % endpoints that keep no record of sent deliveries', forgetful.endpoints
            USING HINT = 'Their policies have keep_sent = false, so events might be sent twice.';
    END IF;
    run.of_endpoints := ARRAY(SELECT e.id FROM webhook.endpoint e
                              WHERE e.id = ANY (addressed) AND (webhook.policy_of(e.policy)).keep_sent);
    run.of_type := event_type;
    run.since := greatest(since, now() - nullif(webhook.setting('retention_sent'), '-1')::interval);
    run.before := least(until, clock_timestamp());
    run.batch_size := batch_size;
    -- An id is made before created_at is read, on a busy server some milliseconds before: created_at decides.
    run.after_event_id := coalesce(webhook.first_id(run.since - interval '1 min'), '00000000-0000-0000-0000-000000000000');
    run.before_event_id := webhook.first_id(run.before + interval '1 ms');
    run.total := (SELECT count(*) FROM webhook.event v WHERE v.id > run.after_event_id AND v.id < run.before_event_id);
    run.met := 0;
    run.made := 0;
    run.done := false;
    RAISE NOTICE 'looking at % events, with a commit after every %', run.total, batch_size;
    RETURN run;
END $$;

-- The next events in the order of their emission. The settings must not reach the lookup of subscribers, whose index needs a
-- bitmap.
CREATE OR REPLACE FUNCTION webhook.page_of_events(after_event_id uuid, before_event_id uuid, page_size int) RETURNS uuid[]
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN ARRAY(SELECT v.id FROM webhook.event v WHERE v.id > after_event_id AND v.id < before_event_id
                 ORDER BY v.id LIMIT page_size);
END $$;

-- The deliveries of these events that endpoints of the run do not have. It tries filters here, before anything is locked.
CREATE OR REPLACE FUNCTION webhook.missing_deliveries(
    run webhook.backfill, page uuid[], OUT event_ids uuid[], OUT endpoint_ids int[], OUT event_types text[], OUT max_attempts int[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT v.id, v.tenant, v.event_type, v.payload
        FROM unnest(page) AS p (id)
        CROSS JOIN LATERAL (
            SELECT * FROM webhook.event v
            WHERE v.id = p.id AND v.redacted_at IS NULL AND v.event_type NOT LIKE 'webhook.%'
              AND (run.of_type IS NULL OR v.event_type = run.of_type)
              AND (run.since IS NULL OR v.created_at >= run.since) AND v.created_at < run.before
            LIMIT 1
        ) v
    ), subscription AS MATERIALIZED (
        SELECT k.tenant, k.event_type, s.endpoint_id, s.max_attempts, s.filter
        FROM (SELECT DISTINCT w.tenant, w.event_type FROM wanted w) k
        CROSS JOIN LATERAL webhook.subscribers(webhook.matching_keys(k.tenant, k.event_type)) s
        WHERE s.endpoint_id = ANY (run.of_endpoints)
    )
    SELECT array_agg(w.id), array_agg(s.endpoint_id), array_agg(w.event_type), array_agg(s.max_attempts)
    INTO event_ids, endpoint_ids, event_types, max_attempts
    FROM wanted w
    JOIN subscription s ON s.event_type = w.event_type AND s.tenant IS NOT DISTINCT FROM w.tenant
    WHERE NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = w.id AND d.endpoint_id = s.endpoint_id OFFSET 0)
      AND (s.filter IS NULL OR webhook.passes(s.filter, w.event_type, w.payload));
END $$;

-- It locks the events first, and only then checks again whether a delivery is missing: retention passes over a locked event,
-- the lock waits for a redaction, and of two backfills the second one sees the deliveries of the first one.
CREATE OR REPLACE FUNCTION webhook.backfill_batch(run webhook.backfill) RETURNS webhook.backfill
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    page uuid[] := webhook.page_of_events(run.after_event_id, run.before_event_id, run.batch_size);
    missing record;
    locked uuid[];
    made bigint := 0;
    tenths_told bigint := run.met * 10 / greatest(run.total, 1);
BEGIN
    SELECT * INTO missing FROM webhook.missing_deliveries(run, page);
    IF missing.event_ids IS NOT NULL THEN
        locked := ARRAY(
            SELECT v.id FROM (SELECT DISTINCT i.id FROM unnest(missing.event_ids) AS i (id) ORDER BY i.id) i
            CROSS JOIN LATERAL (
                SELECT v.id FROM webhook.event v WHERE v.id = i.id AND v.redacted_at IS NULL LIMIT 1 FOR NO KEY UPDATE
            ) v);
        INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, created_at)
        SELECT m.event_id, m.endpoint_id, m.event_type, m.max_attempts, now(), 'replayed', now()
        FROM unnest(missing.event_ids, missing.endpoint_ids, missing.event_types, missing.max_attempts)
            AS m (event_id, endpoint_id, event_type, max_attempts)
        WHERE m.event_id = ANY (locked)
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id OFFSET 0)
        ORDER BY m.event_id, m.endpoint_id
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS made = ROW_COUNT;
        IF made > 0 THEN
            PERFORM webhook.wake(missing.endpoint_ids, now());
        END IF;
    END IF;
    run.after_event_id := page[cardinality(page)];
    run.met := run.met + cardinality(page);
    run.made := run.made + made;
    run.done := cardinality(page) < run.batch_size;

    IF run.done THEN
        RAISE NOTICE 'made % deliveries', run.made;
    ELSIF run.met * 10 / greatest(run.total, 1) > tenths_told THEN
        RAISE NOTICE 'looked at % of % events and made % deliveries', run.met, run.total, run.made;
    END IF;
    RETURN run;
END $$;

-- Makes the missing deliveries for the endpoints of an address, of events that were emitted from `since` on (null: of all that
-- are kept) and before `until`, in batches of one transaction each, as webhook_replay_all() does.
-- pgspot: no search_path, because a procedure that commits cannot have one.
CREATE OR REPLACE PROCEDURE @extschema@.webhook_backfill(
    endpoint text, since timestamptz, until timestamptz DEFAULT NULL, event_type text DEFAULT NULL, batch_size int DEFAULT 1000)
    LANGUAGE plpgsql AS $$
DECLARE
    run webhook.backfill;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_backfill()');
    run := webhook.begin_backfill(endpoint, since, until, event_type, batch_size);
    LOOP
        COMMIT;
        EXIT WHEN run.done;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        run := webhook.backfill_batch(run);
    END LOOP;
END $$;
