-- Readiness: what may be sent now, and why the rest may not. One rule, asked by agenda, claim, probe, status and why.
--
-- The functions are expressions that the planner inlines (no SET, one expression): it sees the predicate of the due index in
-- them, so that index finds what they accept.

-- Whether there is time left until expires_at. A delivery that has none is never claimed; 43_open_breaker.sql fails it.
CREATE FUNCTION webhook.has_time(expires_at timestamptz) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN expires_at IS NULL OR expires_at > now();

-- Whether nothing of its own but time keeps a delivery back: it is neither in flight nor parked nor behind another.
CREATE FUNCTION webhook.awaits_its_time(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN q.status = 'PENDING' AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
           AND (q.expires_at IS NULL OR q.expires_at > now());

-- Whether a delivery may be sent now, as far as it is its own business. When a breaker has closed, retries of attempts before
-- that are due at once: `retries_before` of the breaker, null for none.
CREATE FUNCTION webhook.is_ready(q webhook.delivery_queue, retries_before timestamptz) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN webhook.awaits_its_time(q)
           AND (q.next_attempt_at <= now() OR q.wait_reason = 'retry' AND q.last_attempt_at < retries_before);

-- Whether a delivery may be the probe of a breaker: a retry also before its time, but nothing that a person or an emitter has
-- put off.
CREATE FUNCTION webhook.may_be_probe(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN webhook.awaits_its_time(q) AND q.event_type <> 'webhook.test'
           AND (q.next_attempt_at <= now() OR q.wait_reason = 'retry');

-- All that an endpoint has in the queue. No single index has it: one has what only time keeps back, the other has the rest.
CREATE FUNCTION webhook.queue_of(endpoint int) RETURNS SETOF webhook.delivery_queue
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT q.* FROM webhook.delivery_queue q
        WHERE q.endpoint_id = queue_of.endpoint AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
        UNION ALL
        SELECT q.* FROM webhook.delivery_queue q
        WHERE q.endpoint_id = queue_of.endpoint AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL);
    END;
