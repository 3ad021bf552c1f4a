-- Why: the share of every endpoint in an event, in plain sentences. No URL, header or secret is in them, nor in the
-- errors that they quote. A NULL within format() is nothing: that is how the optional parts of a sentence are left out.

-- Errors, names and keys come from outside and end up in terminals: what could act there, or turn the direction of the text,
-- is shown by its code point.
CREATE FUNCTION webhook.printable(value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unprintable CONSTANT text := E'[\\u0001-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]';
BEGIN
    IF value !~ unprintable THEN
        RETURN value;
    END IF;
    RETURN string_agg(CASE WHEN c ~ unprintable THEN format(E'\\u%s', lpad(to_hex(ascii(c)), 4, '0')) ELSE c END, '' ORDER BY place)
    FROM string_to_table(value, NULL) WITH ORDINALITY AS t (c, place);
END $$;

CREATE FUNCTION webhook.time_in_words(instant timestamptz) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN isfinite(instant) THEN to_char(instant, 'YYYY-MM-DD HH24:MI:SSOF') ELSE instant::text END;

CREATE FUNCTION webhook.span_in_words(span interval) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    RETURN (
        SELECT format('%s %s', w.amount, CASE w.amount WHEN 1 THEN left(w.unit, -1) ELSE w.unit END)
        FROM (SELECT round(greatest(extract(epoch FROM span), 0) / u.seconds) AS amount, u.unit
              FROM (VALUES (1, 120, 'seconds'), (60, 7200, 'minutes'), (3600, 172800, 'hours'), (86400, NULL, 'days'))
                  AS u (seconds, below, unit)
              WHERE u.below IS NULL OR extract(epoch FROM span) < u.below
              ORDER BY u.seconds LIMIT 1) w
    );

-- The first few patterns of an endpoint that has many.
CREATE FUNCTION webhook.patterns_in_words(patterns text[]) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN format('%s%s', array_to_string(patterns[1:10], ', '),
                  CASE WHEN cardinality(patterns) > 10 THEN format(' and %s more', cardinality(patterns) - 10) END);

-- What an error of ours means; any other is that of the last attempt.
CREATE FUNCTION webhook.error_in_words(d webhook.delivery) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE d.last_error
        WHEN 'cancelled' THEN 'a person cancelled it'
        WHEN 'endpoint removed' THEN 'the endpoint was removed'
        WHEN 'skipped' THEN 'the circuit breaker was open when the event was emitted (skipped, when_open = skip)'
        WHEN 'circuit open' THEN 'the circuit breaker was open, and the policy did not let it wait (circuit open)'
        WHEN 'expired' THEN CASE WHEN d.expires_at <= d.completed_at
                                 THEN format('it was not worth sending after %s, its expires_at (expired)', webhook.time_in_words(d.expires_at))
                                 ELSE 'it was parked for longer than hold_for of the policy (expired)' END
        WHEN 'redacted' THEN 'its event was redacted'
        WHEN 'worker lost' THEN 'the worker ended before the attempt did (worker lost)'
        ELSE d.last_error
    END;

-- Of these patterns those that match a type, whatever the tenant; then the exclusions that apply to it.
CREATE FUNCTION webhook.matching_patterns(event_types text[], event_type text, OUT patterns text[], OUT exclusions text[])
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        SELECT coalesce(array_agg(t.pattern) FILTER (WHERE ' ' || t.pattern = ANY (k.keys)), '{}'),
               coalesce(array_agg(t.pattern) FILTER (WHERE t.pattern = ANY (k.keys)), '{}')
        FROM unnest(event_types) AS t (pattern), webhook.matching_keys(NULL, event_type) AS k (keys);
    END;

-- Why a filter does not let an event pass; null where it does, or where that cannot be told any more.
CREATE FUNCTION webhook.why_filtered(filter jsonpath, v webhook.event) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
BEGIN
    IF filter IS NULL OR v.redacted_at IS NOT NULL OR webhook.passes(filter, v.event_type, v.payload) THEN
        RETURN NULL;
    END IF;
    PERFORM jsonb_path_match_tz(webhook.filtered_document(v.event_type, v.payload), filter, '{}', true);
    RETURN format('its filter, %s, is not true of it', filter);
EXCEPTION WHEN OTHERS THEN
    RETURN format('its filter, %s, fails: %s', filter, SQLERRM);
END $$;

-- What may have become of an event that is not here. An id of ours tells when it was made.
CREATE FUNCTION webhook.why_no_event(asked_event_id uuid) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    digits text := replace(asked_event_id::text, '-', '');
BEGIN
    RETURN NEXT format(
        'There is no event %s here: it was never emitted, its transaction was rolled back or is still open, or it was removed: '
        'when its time was over (webhook.retention_sent%s, webhook.retention_failed%s), when it had been sent under a policy with '
        'keep_sent = false, or by webhook_discard().',
        coalesce(asked_event_id::text, 'NULL'),
        ' is ' || webhook.setting('retention_sent'), ' is ' || webhook.setting('retention_failed'));
    RETURN NEXT CASE WHEN substr(digits, 13, 1) = '7' THEN format(
        'If webhook_emit() made this id, then at %s. Check it: it is what webhook_emit() returned, and the receiver''s webhook-id.',
        webhook.time_in_words(to_timestamp(('x' || left(digits, 12))::bit(48)::bigint / 1000.0)))
    ELSE 'Check the id: webhook_emit() did not make it, for its own are UUIDs of version 7.' END;
END $$;

-- Why nothing is delivered on this server, if so.
CREATE FUNCTION webhook.why_server() RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    worker record;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NEXT 'Nothing is delivered here: this server is a standby; its primary delivers.';
        RETURN;
    END IF;
    SELECT w.state, w.reason INTO worker FROM webhook.worker_state() w;
    IF worker.state = 'not preloaded' THEN
        RETURN NEXT format('Nothing is delivered: the library is not preloaded; %s.', worker.reason);
    ELSIF worker.state = 'disabled' THEN
        RETURN NEXT 'Nothing is delivered now: webhook.enabled is off. Set it to on in postgresql.conf, then SELECT pg_reload_conf().';
    ELSIF worker.state = 'held' THEN
        RETURN NEXT format('Delivery is held: %s.', worker.reason);
    ELSIF worker.state <> 'running' THEN
        RETURN NEXT format('Nothing is delivered now: %s%s. SELECT * FROM webhook_status() shows more.',
                           CASE worker.state WHEN 'no worker' THEN 'there is no worker' ELSE 'the worker is ' || worker.state END,
                           ' (' || worker.reason || ')');
    END IF;
END $$;

-- What stands between an endpoint and its deliveries, which command removes it, whether this one waits for that, and whether a
-- breaker that has closed has made it due before its time.
CREATE FUNCTION webhook.why_endpoint(
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

    IF b.ramp IS NOT NULL AND NOT is_stopped THEN
        sentences := sentences || format(
            CASE b.consecutive_failures WHEN 0 THEN 'The endpoint has recovered; of what was parked, at most %s at a time are sent for now.'
                 ELSE 'At most %s at a time are sent to the endpoint until more have succeeded.' END, b.ramp);
    END IF;
    IF b.state = 'CLOSED' AND b.consecutive_failures > 0 THEN
        sentences := sentences || format(
            'The endpoint has failed %s in a row%s%s.',
            CASE b.consecutive_failures WHEN 1 THEN 'once' ELSE b.consecutive_failures || ' times' END,
            ', last at ' || webhook.time_in_words(b.last_failure_at),
            CASE WHEN p.failure_threshold > b.consecutive_failures THEN
                format('; at %s %s', p.failure_threshold,
                       CASE p.on_trip WHEN 'disable' THEN 'it is disabled' ELSE 'its circuit breaker opens' END) END);
    END IF;

    IF NOT is_foreign AND (is_stopped OR is_open) THEN
        sentences := sentences || CASE
            WHEN is_stopped OR p.when_open = 'hold' THEN
                format('Meanwhile deliveries are parked%s%s.', ', and fail as "expired" after ' || webhook.span_in_words(p.hold_for),
                       CASE WHEN NOT is_stopped THEN ' (when_open = hold)' WHEN p.hold_for IS NOT NULL THEN ' (hold_for)' END)
            WHEN p.when_open = 'skip' THEN 'Meanwhile what is emitted is skipped (when_open = skip).'
            WHEN p.when_open = 'fail' THEN 'Meanwhile what is due fails as "circuit open" (when_open = fail).'
            ELSE 'Meanwhile an attempt that is due fails as "circuit open", and counts (when_open = attempt).'
        END;
    END IF;
    IF is_test THEN
        sentences := sentences || text 'This delivery is a test, which is sent all the same.';
    END IF;
END $$;

CREATE FUNCTION webhook.why_attempts(asked_event_id uuid, asked_endpoint_id int) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown constant int := 10;
    logged bigint := (SELECT count(*) FROM webhook.attempt a WHERE a.event_id = asked_event_id AND a.endpoint_id = asked_endpoint_id);
BEGIN
    IF logged > shown THEN
        RETURN NEXT format('%s attempts are logged in webhook.attempt; these are the last %s:', logged, shown);
    END IF;
    RETURN QUERY
    SELECT format(CASE last.verdict WHEN 'late' THEN 'A result that came at %2$s, after %3$s ms, was too late to count: %4$s.'
                                    ELSE 'Attempt %1$s ended at %2$s, after %3$s ms: %4$s.' END,
                  last.attempt, webhook.time_in_words(last.finished_at), last.duration_ms,
                  coalesce(last.error, 'HTTP ' || last.status_code))
    FROM (SELECT * FROM webhook.attempt a WHERE a.event_id = asked_event_id AND a.endpoint_id = asked_endpoint_id
          ORDER BY a.claim_seq DESC LIMIT shown) last
    ORDER BY last.claim_seq;
END $$;

-- One delivery: how it came to be, how it went, how it goes on. The event is null where somebody has deleted it.
CREATE FUNCTION webhook.why_delivery(d webhook.delivery, v webhook.event) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint;
    address text;
    removed webhook.removed_endpoint;
    matched record;
    has_payload boolean := v.id IS NOT NULL AND v.redacted_at IS NULL;
    endpoint record;
    next_attempt text := format('Attempt %s of %s', d.attempts + 1, d.max_attempts);
    make_due text := format('UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = %L AND endpoint_id = %s '
                            'AND status = ''PENDING'' makes it due now.', d.event_id, d.endpoint_id);
BEGIN
    SELECT * INTO e FROM webhook.endpoint x WHERE x.id = d.endpoint_id;
    address := webhook.address(e.tenant, e.name);
    -- No credentials from here on: what is passed to a query may be read in its plan, with debug_print_plan.
    e.url := NULL;
    e.headers := NULL;
    e.template := NULL;
    SELECT * INTO removed FROM webhook.removed_endpoint r WHERE r.id = d.endpoint_id;
    SELECT * INTO matched FROM webhook.matching_patterns(e.event_types, d.event_type);
    RETURN NEXT CASE
        WHEN removed.id IS NOT NULL THEN
            format('Endpoint "%s" was removed at %s.', webhook.address(removed.tenant, removed.name),
                   webhook.time_in_words(removed.removed_at))
        WHEN e.id IS NULL THEN format('Endpoint number %s is not known here.', d.endpoint_id)
        WHEN cardinality(matched.patterns) > 0 AND cardinality(matched.exclusions) = 0
             AND (e.tenant IS NULL OR e.tenant = v.tenant OR v.id IS NULL) AND webhook.why_filtered(e.filter, v) IS NULL THEN
            format('Endpoint "%s": the event matches %s%s.', address, webhook.patterns_in_words(matched.patterns),
                   CASE WHEN has_payload THEN ' and the filter ' || e.filter::text END)
        ELSE format('Endpoint "%s": the event does not match now; the event types (%s), the filter or the tenant of the endpoint were '
                    'changed since, or the event was sent to it by name.', address, webhook.patterns_in_words(e.event_types))
    END;

    RETURN QUERY SELECT '  ' || x FROM webhook.why_attempts(d.event_id, d.endpoint_id) AS x;
    RETURN NEXT CASE d.status
        WHEN 'PENDING' THEN
            format('  It is PENDING, %s%s.',
                   CASE d.attempts WHEN 0 THEN 'not tried yet' ELSE format('after %s of %s attempts', d.attempts, d.max_attempts) END,
                   '; the last error is: ' || webhook.error_in_words(d))
        WHEN 'SENDING' THEN
            format('  It is SENDING: attempt %s of %s began at %s, %s ago%s.', d.attempts, d.max_attempts,
                   webhook.time_in_words(d.claimed_at), webhook.span_in_words(now() - d.claimed_at),
                   CASE WHEN webhook.is_instance_alive(d.claimed_by) THEN ', and its result is awaited'
                        ELSE '; its worker is gone, and the next one puts it back into the queue' END)
        WHEN 'SENT' THEN
            format('  It is SENT: attempt %s of %s succeeded at %s with HTTP %s.', d.attempts, d.max_attempts,
                   webhook.time_in_words(d.completed_at), d.last_status_code)
        WHEN 'CANCELLED' THEN
            format('  It was CANCELLED at %s, after %s of %s attempts: %s.', webhook.time_in_words(d.completed_at),
                   d.attempts, d.max_attempts, webhook.error_in_words(d))
        ELSE
            format('  It FAILED at %s, after %s of %s attempts: %s%s.', webhook.time_in_words(d.completed_at),
                   d.attempts, d.max_attempts, webhook.error_in_words(d),
                   (SELECT ', which is not tried again' FROM webhook.attempt a
                    WHERE a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id AND a.claim_seq = d.claim_seq
                      AND a.verdict IN ('final', 'disable') AND a.error = d.last_error))
    END;

    IF e.id IS NULL THEN
        IF d.status IN ('PENDING', 'SENDING') THEN
            RETURN NEXT CASE WHEN removed.id IS NULL THEN '  It waits until there is such an endpoint.'
                             ELSE '  The worker cancels it within minutes.' END;
        END IF;
        RETURN;
    END IF;
    IF d.status <> 'SENT' THEN
        SELECT * INTO endpoint FROM webhook.why_endpoint(e, d);
        RETURN QUERY SELECT '  ' || x FROM unnest(endpoint.sentences) AS x;
    END IF;

    IF NOT has_payload THEN
        IF d.status = 'PENDING' THEN
            RETURN NEXT '  It fails when it is due, because there is nothing to send.';
        END IF;
    ELSIF d.status = 'PENDING' THEN
        RETURN NEXT CASE
            WHEN d.waits_for IS NOT NULL THEN
                format('  %s waits for event %s, whose turn it is by the ordering key "%s". SELECT webhook_why(%L) says more.',
                       next_attempt, d.waits_for, d.ordering_key, d.waits_for)
            WHEN d.wait_reason = 'parked' THEN format('  %s is parked by hand. %s', next_attempt, make_due)
            WHEN endpoint.waits THEN
                format('  %s waits until then%s.', next_attempt,
                       CASE WHEN d.next_attempt_at > now() THEN '; its own time is ' || webhook.time_in_words(d.next_attempt_at) END)
            WHEN d.next_attempt_at > now() AND endpoint.is_brought_forward THEN
                format('  %s is due now, before its own time, %s, because the circuit breaker has closed.', next_attempt,
                       webhook.time_in_words(d.next_attempt_at))
            WHEN d.next_attempt_at > now() THEN
                format('  %s is due in %s (%s). %s', next_attempt, webhook.span_in_words(d.next_attempt_at - now()),
                       webhook.time_in_words(d.next_attempt_at), make_due)
            ELSE format('  %s is due now%s.', next_attempt, ', since ' || webhook.time_in_words(d.next_attempt_at))
        END;
        IF d.expires_at < 'infinity' THEN
            RETURN NEXT format('  If it has not been sent by %s (expires_at), it fails as "expired".', webhook.time_in_words(d.expires_at));
        END IF;
    ELSIF d.status = 'FAILED' THEN
        RETURN NEXT format('  It stays in webhook.dead_letter. SELECT webhook_replay(%L, %L) sends it again, from the first attempt.',
                           d.event_id, address);
        IF EXISTS (SELECT FROM webhook.lane l WHERE l.endpoint_id = d.endpoint_id AND l.ordering_key = d.ordering_key AND l.event_id = d.event_id) THEN
            RETURN NEXT format('  What has the same ordering key, "%s", waits until it is sent or discarded (on_blocked = wait). '
                               'SELECT webhook_discard(%L, %L) lets it go on.', d.ordering_key, d.event_id, address);
        END IF;
    ELSIF d.status IN ('SENT', 'CANCELLED') THEN
        RETURN NEXT format('  SELECT webhook_resend(%L, %L) sends it %s.', d.event_id, address,
                           CASE d.status WHEN 'SENT' THEN 'once more' ELSE 'all the same' END);
    END IF;
END $$;

-- Endpoints that have no delivery of an event, those that come nearest to it first.
CREATE FUNCTION webhook.why_no_delivery(v webhook.event) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown constant int := 20;
    without_delivery bigint := 0;
    other record;
    reasons text[];
BEGIN
    FOR other IN
        SELECT e.id, webhook.address(e.tenant, e.name) AS address, e.tenant, e.event_types, e.filter, e.policy, e.created_at,
               count(*) OVER () AS total,
               e.tenant IS NULL OR e.tenant = coalesce(v.tenant, '') AS serves_tenant, m.exclusions,
               cardinality(m.patterns) > 0 AS wants_type
        FROM webhook.endpoint e
        CROSS JOIN LATERAL webhook.matching_patterns(e.event_types, v.event_type) m
        WHERE NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = v.id AND d.endpoint_id = e.id)
        ORDER BY wants_type DESC, serves_tenant DESC, e.name LIMIT shown
    LOOP
        without_delivery := other.total;
        reasons := '{}';
        IF NOT other.serves_tenant THEN
            reasons := reasons || format('it serves only tenant "%s", and the event %s', other.tenant,
                                         CASE WHEN v.tenant IS NULL THEN 'has none' ELSE format('is of tenant "%s"', v.tenant) END);
        END IF;
        IF NOT other.wants_type THEN
            reasons := reasons || format('its event types are %s%s', webhook.patterns_in_words(other.event_types),
                CASE WHEN '*' = ANY (other.event_types) THEN ', and * leaves out webhook.*, the extension''s own events' END);
        ELSIF cardinality(other.exclusions) > 0 THEN
            reasons := reasons || format('its event types leave it out (%s)', webhook.patterns_in_words(other.exclusions));
        ELSIF other.serves_tenant THEN
            reasons := array_remove(reasons || webhook.why_filtered(other.filter, v), NULL);
        END IF;
        IF other.created_at > v.created_at THEN
            reasons := reasons || format('it was added at %s, after the event', webhook.time_in_words(other.created_at));
        END IF;
        IF cardinality(reasons) = 0 THEN
            reasons := reasons || format('the event matches its event types (%s) now, but %s', webhook.patterns_in_words(other.event_types),
                CASE WHEN v.redacted_at IS NOT NULL AND other.filter IS NOT NULL
                     THEN 'perhaps not its filter, which cannot be told any more of a payload that was redacted'
                     WHEN (webhook.policy_of(other.policy)).keep_sent
                     THEN 'they, its filter or its tenant were changed since, others were chosen by name, or the delivery was removed'
                     ELSE format('its policy "%s" keeps no row of what was sent (keep_sent = false)', other.policy) END);
        END IF;
        RETURN NEXT format('Endpoint "%s" has no delivery of it: %s.', other.address, array_to_string(reasons, '; '));
        RETURN QUERY SELECT '  ' || x FROM webhook.why_attempts(v.id, other.id) AS x;
    END LOOP;
    IF without_delivery > shown THEN
        RETURN NEXT format('%s more endpoints have no delivery of it.', without_delivery - shown);
    END IF;
END $$;

CREATE FUNCTION webhook.why(about text) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    asked_event_id constant uuid := about::uuid;
    v webhook.event;
    d webhook.delivery;
    deliveries int := 0;
    queued int := 0;
BEGIN
    SELECT * INTO v FROM webhook.event x WHERE x.id = asked_event_id;
    IF v.id IS NOT NULL THEN
        RETURN NEXT format('Event %s is of type %s, %s, and was emitted at %s, %s ago.', v.id, v.event_type,
                           CASE WHEN v.tenant IS NULL THEN 'without a tenant'
                                ELSE format('of tenant "%s"', webhook.printable(v.tenant)) END,
                           webhook.time_in_words(v.created_at), webhook.span_in_words(now() - v.created_at));
        IF v.redacted_at IS NOT NULL THEN
            RETURN NEXT format('Its payload was redacted at %s; it cannot be sent any more.', webhook.time_in_words(v.redacted_at));
        END IF;
    ELSIF EXISTS (SELECT FROM webhook.delivery x WHERE x.event_id = asked_event_id) THEN
        RETURN NEXT format('Event %s is gone from webhook.event and cannot be sent any more; its deliveries are still here.', asked_event_id);
    ELSE
        RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_no_event(asked_event_id) AS x;
        RETURN;
    END IF;
    RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_server() AS x;

    FOR d IN
        SELECT x.* FROM webhook.delivery x
        LEFT JOIN webhook.endpoint e ON e.id = x.endpoint_id
        LEFT JOIN webhook.removed_endpoint r ON r.id = x.endpoint_id
        WHERE x.event_id = asked_event_id
        ORDER BY coalesce(e.name, r.name), x.endpoint_id
    LOOP
        deliveries := deliveries + 1;
        queued := queued + (d.status IN ('PENDING', 'SENDING'))::int;
        RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_delivery(d, v) AS x;
    END LOOP;
    IF queued > 0 AND v.id IS NOT NULL THEN
        RETURN NEXT format('SELECT webhook_cancel(%L) cancels its deliveries that are still queued.', asked_event_id);
    END IF;

    IF NOT EXISTS (SELECT FROM webhook.endpoint) THEN
        RETURN NEXT 'There are no endpoints. SELECT * FROM webhook_set_endpoint(''name'', ''https://..'') adds one, '
                    'for the events that are emitted after it.';
    ELSIF v.id IS NOT NULL THEN
        IF deliveries = 0 AND NOT EXISTS (
            SELECT FROM webhook.subscribers(webhook.matching_keys(v.tenant, v.event_type)) s
            JOIN webhook.endpoint e ON e.id = s.endpoint_id
            WHERE webhook.why_filtered(s.filter, v) IS NULL AND e.created_at <= v.created_at) THEN
            RETURN NEXT 'It matched no endpoint, so there is nothing to deliver.';
        END IF;
        RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_no_delivery(v) AS x;
    END IF;
END $$;
