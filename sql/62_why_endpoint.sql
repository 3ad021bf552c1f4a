-- Why, for an endpoint: its state, its waiting and failed deliveries, and the commands that change them.

-- debug_print_plan shows the parameters of a query, so credentials must not be among them.
CREATE OR REPLACE FUNCTION webhook.endpoint_without_credentials(wanted_id int) RETURNS webhook.endpoint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint;
BEGIN
    SELECT * INTO e FROM webhook.endpoint x WHERE x.id = wanted_id;
    e.url := NULL;
    e.headers := NULL;
    e.template := NULL;
    RETURN e;
END $$;

-- The obstacles between an endpoint and its deliveries, the command that removes each, whether this delivery (null: none)
-- waits for it, and whether a breaker that has closed has made it due before its time.
CREATE OR REPLACE FUNCTION webhook.why_held_back(
    e webhook.endpoint, d webhook.delivery, OUT sentences text[], OUT waits boolean, OUT is_brought_forward boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    address text := webhook.address(e.tenant, e.name);
    p webhook.policy := webhook.policy_of(e.policy);
    b webhook.breaker;
    state text;
    is_foreign boolean;
    is_stopped boolean;    -- so no probe is sent either
    is_test boolean;
    is_open boolean;
    probe_is_due boolean;
BEGIN
    SELECT * INTO b FROM webhook.breaker r WHERE r.endpoint_id = e.id;
    state := webhook.endpoint_state(e.origin = webhook.origin(), e.disabled_at, e.paused_at, b.state);
    is_foreign := state = 'held';
    is_stopped := state IN ('held', 'disabled', 'paused');
    is_test := coalesce(b.test_event_id = d.event_id, false);
    is_open := coalesce(b.state <> 'CLOSED', false);
    probe_is_due := is_open AND webhook.probe_is_due(b);
    waits := is_foreign OR NOT is_test AND (
        is_stopped OR is_open AND (p.when_open = 'hold' OR p.when_open = 'skip' AND NOT webhook.is_skipped(d.created_at, d.wait_reason, b.opened_at)));
    is_brought_forward := state = 'ready' AND EXISTS (
        SELECT FROM webhook.delivery_queue q
        WHERE q.event_id = d.event_id AND q.endpoint_id = d.endpoint_id AND webhook.is_ready(q, b.retries_before)
          AND q.next_attempt_at > now());
    sentences := '{}';

    IF is_foreign THEN
        sentences := sentences || text 'The endpoint belongs to another installation (a restored or copied database?) and is held. '
                                       'SELECT webhook_adopt() takes over all of that kind.';
    END IF;
    IF e.disabled_at IS NOT NULL THEN
        sentences := sentences || format(
            'The endpoint has been disabled since %s: %s. SELECT webhook_resume(%L) resumes it%s.',
            webhook.time_in_words(e.disabled_at),
            CASE e.disabled_reason
                WHEN 'gone' THEN 'its answer said that it is gone, as HTTP 410 does (disable_status)'
                WHEN 'exhausted' THEN 'all attempts of a delivery had failed (on_exhausted = disable)'
                WHEN 'tripped' THEN 'it had failed too often in a row (failure_threshold, on_trip = disable)'
                ELSE e.disabled_reason
            END,
            address,
            CASE e.disabled_reason WHEN 'exhausted' THEN format(', and so does CALL webhook_test(%L) if it succeeds', address) END);
    END IF;
    IF e.paused_at IS NOT NULL THEN
        sentences := sentences || format('The endpoint has been paused since %s. SELECT webhook_resume(%L) resumes it.',
                                         webhook.time_in_words(e.paused_at), address);
    END IF;

    IF b.state = 'OPEN' THEN
        sentences := sentences || format(
            'The circuit breaker of the endpoint has been open since %s, after %s%s.', webhook.time_in_words(b.opened_at),
            CASE b.consecutive_failures WHEN 1 THEN 'a failure' ELSE b.consecutive_failures || ' failures in a row' END,
            '; the last error is: ' || b.last_error);
    ELSIF b.state = 'HALF_OPEN' THEN
        sentences := sentences || format(
            'The circuit breaker of the endpoint is half open: %s, and %s.',
            CASE WHEN b.probe_event_id = d.event_id THEN 'this delivery is the probe'
                 ELSE format('event %s is the probe', b.probe_event_id) END,
            format(CASE WHEN probe_is_due THEN 'had until %s to end, but has no result'
                        WHEN b.probe_at > now() THEN 'has until %s to end'
                        ELSE 'had until %s to end; its result is awaited' END, webhook.time_in_words(b.probe_at)));
    END IF;
    IF NOT is_stopped AND (b.state = 'OPEN' OR probe_is_due) THEN
        sentences := sentences || format(
            'Nothing is sent to it until a probe, %s: the delivery that has waited longest, or else the next to come.',
            CASE WHEN b.probe_at > now()
                 THEN format('in %s (%s)', webhook.span_in_words(b.probe_at - now()), webhook.time_in_words(b.probe_at))
                 ELSE 'which is due now' END);
    END IF;
    IF is_open AND NOT (is_stopped AND (b.state = 'OPEN' OR probe_is_due)) THEN
        sentences := sentences || format(
            'If the probe succeeds the breaker closes, and if it fails the breaker %s. SELECT webhook_reset_breaker(%L) closes it now.',
            CASE p.failure_threshold WHEN 0 THEN 'closes too (failure_threshold = 0)' ELSE 'opens again' END, address);
    END IF;

    IF b.state = 'CLOSED' AND b.consecutive_failures > 0 THEN
        sentences := sentences || format(
            '%s%s%s.',
            CASE b.consecutive_failures WHEN 1 THEN 'The last attempt failed'
                                        ELSE format('The last %s attempts failed', b.consecutive_failures) END,
            ', at ' || webhook.time_in_words(b.last_failure_at),
            CASE WHEN p.failure_threshold > b.consecutive_failures THEN
                format('; after %s failures in a row %s', p.failure_threshold,
                       CASE p.on_trip WHEN 'disable' THEN 'it is disabled' ELSE 'its circuit breaker opens' END) END);
    END IF;

    IF NOT is_foreign AND (is_stopped OR is_open) THEN
        sentences := sentences || CASE
            WHEN is_stopped OR p.when_open = 'hold' THEN
                format('Meanwhile deliveries are kept back%s%s.', ', and fail as "expired" after ' || webhook.span_in_words(p.hold_for),
                       CASE WHEN NOT is_stopped THEN ' (when_open = hold)' WHEN p.hold_for IS NOT NULL THEN ' (hold_for)' END)
            WHEN p.when_open = 'skip' THEN 'Meanwhile new deliveries are skipped (when_open = skip).'
            WHEN p.when_open = 'fail' THEN 'Meanwhile due deliveries fail as "circuit open" (when_open = fail).'
            ELSE 'Meanwhile an attempt that is due fails as "circuit open", and counts (when_open = attempt).'
        END;
    END IF;
    IF is_test THEN
        sentences := sentences || text 'This delivery is a test, which is sent all the same.';
    END IF;
END $$;

-- The waiting deliveries, with their last errors. It counts no more than 10,000.
CREATE OR REPLACE FUNCTION webhook.why_waiting(e webhook.endpoint) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT int := 10000;
    address text := webhook.address(e.tenant, e.name);
    waiting record;
    in_flight bigint := (SELECT count(*) FROM webhook.queue_of(e.id) q WHERE q.status = 'SENDING');
BEGIN
    SELECT sum(by_reason.deliveries) AS deliveries, min(by_reason.next_attempt_at) AS next_attempt_at,
           string_agg(format('%s %s', by_reason.deliveries, by_reason.why), ', ' ORDER BY by_reason.deliveries DESC) AS reasons
    INTO waiting
    FROM (SELECT w.why, count(*) AS deliveries, min(w.next_attempt_at) AS next_attempt_at
          FROM (SELECT w.why, w.next_attempt_at FROM webhook.waiting w WHERE w.endpoint = address LIMIT most + 1) w
          GROUP BY w.why) by_reason;
    IF in_flight > 0 THEN
        RETURN NEXT format('In flight: %s.', in_flight);
    END IF;
    IF waiting.deliveries IS NULL THEN
        RETURN NEXT 'Nothing waits for it.';
        RETURN;
    END IF;
    RETURN NEXT format('Deliveries that wait: %s (%s)%s. SELECT * FROM webhook.waiting WHERE endpoint = %L shows them.',
                       CASE WHEN waiting.deliveries > most THEN 'more than ' || most ELSE waiting.deliveries::text END,
                       waiting.reasons, ', the first from ' || webhook.time_in_words(waiting.next_attempt_at) || ' on', address);
    RETURN QUERY
    SELECT format('  %s of them after the error: %s.', failed.deliveries, failed.last_error)
    FROM (SELECT w.last_error, count(*) AS deliveries
          FROM (SELECT w.last_error FROM webhook.waiting w WHERE w.endpoint = address AND w.last_error IS NOT NULL LIMIT most) w
          GROUP BY w.last_error ORDER BY count(*) DESC, w.last_error LIMIT 3) failed;
END $$;

-- The last dead letters, and how many there are. It counts no more than 10,000.
CREATE OR REPLACE FUNCTION webhook.why_failed(of_endpoint int, address text, is_removed boolean) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT int := 10000;
    failed bigint := (SELECT count(*) FROM (SELECT FROM webhook.dead_letter d WHERE d.endpoint_id = of_endpoint LIMIT most + 1) d);
BEGIN
    IF failed = 0 THEN
        RETURN;
    END IF;
    RETURN NEXT format('Dead letters: %s. %s', CASE WHEN failed > most THEN 'more than ' || most ELSE failed::text END,
                       CASE WHEN is_removed THEN format('DELETE FROM webhook.dead_letter WHERE endpoint_id = %s discards them.', of_endpoint)
                            ELSE format('CALL webhook_replay_all(%L) sends them again.', address) END);
    RETURN QUERY
    SELECT format('  Event %s FAILED at %s, after %s of %s attempts: %s. SELECT webhook_why(%L) says more.', last.event_id,
                  webhook.time_in_words(last.completed_at), last.attempts, last.max_attempts, webhook.error_in_words(last),
                  last.event_id)
    FROM (SELECT d.* FROM webhook.delivery d WHERE d.status = 'FAILED' AND d.endpoint_id = of_endpoint
          ORDER BY d.completed_at DESC LIMIT 3) last
    ORDER BY last.completed_at DESC;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_filter(e webhook.endpoint) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    looked_at CONSTANT int := 100;
    v webhook.event;
    matched int := 0;
    passed int := 0;
    misses text;
BEGIN
    FOR v IN SELECT * FROM webhook.event x WHERE x.redacted_at IS NULL ORDER BY x.id DESC LIMIT looked_at LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM webhook.subscribers(webhook.matching_keys(v.tenant, v.event_type)) s
                                  WHERE s.endpoint_id = e.id);
        matched := matched + 1;
        IF webhook.passes(e.filter, v.event_type, v.payload) THEN
            passed := passed + 1;
        ELSIF misses IS NULL THEN
            misses := webhook.why_filter_misses_row(e.filter, v.payload) || format(' (event %s)', v.id);
        END IF;
    END LOOP;
    RETURN NEXT format('Of the newest events %s match its event types and tenant, and its filter, %s, lets %s of them pass.',
                       matched, e.filter, passed);
    IF misses IS NOT NULL THEN
        RETURN NEXT format('  %s%s.', upper(left(misses, 1)), substr(misses, 2));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_endpoint(asked_endpoint_id int) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint := webhook.endpoint_without_credentials(asked_endpoint_id);
    address text := webhook.address(e.tenant, e.name);
    removed webhook.removed_endpoint;
BEGIN
    IF e.id IS NULL THEN
        SELECT * INTO removed FROM webhook.removed_endpoint r WHERE r.id = asked_endpoint_id;
        address := webhook.address(removed.tenant, removed.name);
        RETURN NEXT format('Endpoint "%s" was removed at %s.', address, webhook.time_in_words(removed.removed_at));
        RETURN QUERY SELECT * FROM webhook.why_failed(removed.id, address, is_removed => true);
        RETURN;
    END IF;
    RETURN NEXT format('Endpoint "%s" is %s. It %sgets events of the types %s, under the policy "%s", since %s.', address,
                       (SELECT s.state FROM webhook.endpoint_status s WHERE s.endpoint = address),
                       'serves tenant "' || e.tenant || '" and ',
                       webhook.patterns_in_words(e.event_types), e.policy, webhook.time_in_words(e.created_at));
    RETURN QUERY SELECT * FROM webhook.why_server();
    RETURN QUERY SELECT * FROM unnest((SELECT w.sentences FROM webhook.why_held_back(e, NULL) w));
    RETURN QUERY SELECT * FROM webhook.why_waiting(e);
    RETURN QUERY SELECT * FROM webhook.why_failed(e.id, address, is_removed => false);
    IF e.filter IS NOT NULL THEN
        RETURN QUERY SELECT * FROM webhook.why_filter(e);
    END IF;
END $$;
