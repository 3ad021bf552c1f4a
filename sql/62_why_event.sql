-- Why, for an event: its delivery to every endpoint, endpoints with a delivery first.

-- The patterns that match a type, whatever the tenant; then the exclusions that apply to it.
CREATE OR REPLACE FUNCTION webhook.matching_patterns(event_types text[], event_type text, OUT patterns text[], OUT exclusions text[])
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        SELECT coalesce(array_agg(t.pattern) FILTER (WHERE ' ' || t.pattern = ANY (k.keys)), '{}'),
               coalesce(array_agg(t.pattern) FILTER (WHERE t.pattern = ANY (k.keys)), '{}')
        FROM unnest(event_types) AS t (pattern), webhook.matching_keys(NULL, event_type) AS k (keys);
    END;

-- The reason why a filter does not let an event pass; null if it does, or if that is not known any more.
CREATE OR REPLACE FUNCTION webhook.why_filtered(filter jsonpath, v webhook.event) RETURNS text
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

-- Explains a filter that reads columns in $.data, but a watched row has them in $.data.record: it can never be true of that
-- table. Null for other filters. The text of a jsonpath has every name in quotes.
CREATE OR REPLACE FUNCTION webhook.why_filter_misses_row(filter jsonpath, payload jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    steps CONSTANT text := CASE WHEN filter::text ~ '[$][.]"data"[[:space:]]*[?]' THEN '(?:[$][.]"data"|@)'
                                ELSE '[$][.]"data"' END;
    missed text[];
BEGIN
    IF filter IS NULL OR NOT payload ?& '{table, record, old_record}' THEN
        RETURN NULL;
    END IF;
    missed := ARRAY(
        SELECT DISTINCT read.name
        FROM regexp_matches(filter::text, steps || E'\\."((?:[^"\\\\]|\\\\.)*)"', 'g') AS m (groups)
        CROSS JOIN LATERAL (SELECT ('"' || m.groups[1] || '"')::jsonb #>> '{}' AS name) read
        WHERE NOT payload ? read.name AND (payload -> 'record' ? read.name OR payload -> 'old_record' ? read.name));
    RETURN CASE WHEN cardinality(missed) > 0 THEN format(
        'the filter reads %s in $.data, but a watched table has its columns in $.data.record: write $.data.record.%s',
        array_to_string(missed, ', '), missed[1]) END;
END $$;

-- An id of the extension contains the time of its making.
CREATE OR REPLACE FUNCTION webhook.why_no_event(asked_event_id uuid) RETURNS SETOF text
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
        'If webhook_emit() made this id, then at %s. Check it: webhook_emit() returned it, and the receiver saw it as webhook-id.',
        webhook.time_in_words(to_timestamp(('x' || left(digits, 12))::bit(48)::bigint / 1000.0)))
    ELSE 'Check the id: webhook_emit() did not make it, for its own are UUIDs of version 7.' END;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_attempts(asked_event_id uuid, asked_endpoint_id int) RETURNS SETOF text
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

-- One delivery: its origin, its attempts, its next step. The event is null if somebody has deleted it.
CREATE OR REPLACE FUNCTION webhook.why_delivery(d webhook.delivery, v webhook.event) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint := webhook.endpoint_without_credentials(d.endpoint_id);
    address text := webhook.address(e.tenant, e.name);
    removed webhook.removed_endpoint;
    matched record;
    has_payload boolean := v.id IS NOT NULL AND v.redacted_at IS NULL;
    endpoint record;
    next_attempt text := format('Attempt %s of %s', d.attempts + 1, d.max_attempts);
    make_due text := format('UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = %L AND endpoint_id = %s '
                            'AND status = ''PENDING'' makes it due now.', d.event_id, d.endpoint_id);
BEGIN
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
                   CASE WHEN webhook.is_sender_alive(d.claimed_by) THEN ', and its result is awaited'
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
        SELECT * INTO endpoint FROM webhook.why_held_back(e, d);
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
            RETURN NEXT format('  Deliveries with the same ordering key, "%s", wait until it is sent or discarded (on_blocked = wait). '
                               'SELECT webhook_discard(%L, %L) lets them go on.', d.ordering_key, d.event_id, address);
        END IF;
    ELSIF d.status IN ('SENT', 'CANCELLED') THEN
        RETURN NEXT format('  SELECT webhook_replay(%L, %L) sends it %s.', d.event_id, address,
                           CASE d.status WHEN 'SENT' THEN 'once more' ELSE 'all the same' END);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_no_delivery(v webhook.event) RETURNS SETOF text
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
            reasons := array_remove(reasons || webhook.why_filtered(other.filter, v)
                                            || webhook.why_filter_misses_row(other.filter, v.payload), NULL);
        END IF;
        IF other.created_at > v.created_at THEN
            reasons := reasons || format('it was added at %s, after the event; CALL webhook_backfill(%L, %L) sends it the events that it matches from there on',
                                         webhook.time_in_words(other.created_at), other.address, v.created_at);
        END IF;
        IF cardinality(reasons) = 0 THEN
            reasons := reasons || format('the event matches its event types (%s) now, but %s', webhook.patterns_in_words(other.event_types),
                CASE WHEN v.redacted_at IS NOT NULL AND other.filter IS NOT NULL
                     THEN 'perhaps not its filter, which cannot be told any more of a payload that was redacted'
                     WHEN (webhook.policy_of(other.policy)).keep_sent
                     THEN 'they, its filter or its tenant were changed since, others were chosen by name, or the delivery was removed'
                     ELSE format('its policy "%s" keeps no row of sent deliveries (keep_sent = false)', other.policy) END);
        END IF;
        RETURN NEXT format('Endpoint "%s" has no delivery of it: %s.', other.address, array_to_string(reasons, '; '));
        RETURN QUERY SELECT '  ' || x FROM webhook.why_attempts(v.id, other.id) AS x;
    END LOOP;
    IF without_delivery > shown THEN
        RETURN NEXT format('%s more endpoints have no delivery of it.', without_delivery - shown);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_event(asked_event_id uuid) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v webhook.event;
    d webhook.delivery;
    deliveries int := 0;
    queued int := 0;
BEGIN
    SELECT * INTO v FROM webhook.event x WHERE x.id = asked_event_id;
    IF v.id IS NOT NULL THEN
        RETURN NEXT format('Event %s is of type %s, %s, and was emitted at %s, %s ago.', v.id, v.event_type,
                           CASE WHEN v.tenant IS NULL THEN 'without a tenant' ELSE format('of tenant "%s"', v.tenant) END,
                           webhook.time_in_words(v.created_at), webhook.span_in_words(now() - v.created_at));
        IF v.redacted_at IS NOT NULL THEN
            RETURN NEXT format('Its payload was redacted at %s; it cannot be sent any more.', webhook.time_in_words(v.redacted_at));
        END IF;
    ELSIF EXISTS (SELECT FROM webhook.delivery x WHERE x.event_id = asked_event_id) THEN
        RETURN NEXT format('Event %s is gone from webhook.event and cannot be sent any more; its deliveries are still here.',
                           asked_event_id);
    ELSE
        RETURN QUERY SELECT * FROM webhook.why_no_event(asked_event_id);
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM webhook.why_server();

    FOR d IN
        SELECT x.* FROM webhook.delivery x
        LEFT JOIN webhook.endpoint e ON e.id = x.endpoint_id
        LEFT JOIN webhook.removed_endpoint r ON r.id = x.endpoint_id
        WHERE x.event_id = asked_event_id
        ORDER BY coalesce(e.name, r.name), x.endpoint_id
    LOOP
        deliveries := deliveries + 1;
        queued := queued + (d.status IN ('PENDING', 'SENDING'))::int;
        RETURN QUERY SELECT * FROM webhook.why_delivery(d, v);
    END LOOP;
    IF queued > 0 AND v.id IS NOT NULL THEN
        RETURN NEXT format('UPDATE webhook.delivery SET status = ''CANCELLED'' WHERE event_id = %L '
                           'AND status IN (''PENDING'', ''SENDING'') cancels its deliveries that are still queued.', asked_event_id);
    END IF;

    IF NOT EXISTS (SELECT FROM webhook.endpoint) THEN
        RETURN NEXT 'There are no endpoints. SELECT * FROM webhook_set_endpoint(''name'', ''https://..'') adds one, '
                    'and CALL webhook_backfill(..) sends it earlier events.';
    ELSIF v.id IS NOT NULL THEN
        IF deliveries = 0 AND NOT EXISTS (
            SELECT FROM webhook.subscribers(webhook.matching_keys(v.tenant, v.event_type)) s
            JOIN webhook.endpoint e ON e.id = s.endpoint_id
            WHERE webhook.why_filtered(s.filter, v) IS NULL AND e.created_at <= v.created_at) THEN
            RETURN NEXT 'It matched no endpoint, so there is nothing to deliver.';
        END IF;
        RETURN QUERY SELECT * FROM webhook.why_no_delivery(v);
    END IF;
END $$;
