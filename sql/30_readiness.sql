-- Readiness: which deliveries may be sent now, and why the others may not. Agenda, claim, probe, status and why ask this one
-- rule.
--
-- Two things keep a delivery back: its endpoint (webhook.endpoint_state), and the delivery itself (webhook.is_ready). Both are
-- expressions that the planner inlines, since they have no SET: it sees the predicate of the due index in them, and so that
-- index finds the deliveries that they accept.

-- The first thing that keeps the deliveries of an endpoint back, or 'ready'. A test is sent in every state but 'held', and a
-- probe in 'open' and 'half_open'.
CREATE OR REPLACE FUNCTION webhook.endpoint_state(is_ours boolean, disabled_at timestamptz, paused_at timestamptz, breaker_state text)
    RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN NOT is_ours THEN 'held'
                WHEN disabled_at IS NOT NULL THEN 'disabled'
                WHEN paused_at IS NOT NULL THEN 'paused'
                WHEN breaker_state = 'OPEN' THEN 'open'
                WHEN breaker_state = 'HALF_OPEN' THEN 'half_open'
                ELSE 'ready' END;

-- Whether there is time left until expires_at. The worker never claims a delivery that has none; 43_open_breaker.sql fails it.
CREATE OR REPLACE FUNCTION webhook.has_time(expires_at timestamptz) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN expires_at IS NULL OR expires_at > now();

CREATE OR REPLACE FUNCTION webhook.awaits_its_time(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN q.status = 'PENDING' AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
           AND webhook.has_time(q.expires_at);

-- Whether the delivery itself lets it be sent now. When a breaker has closed, retries of earlier attempts are due at once:
-- `retries_before` of the breaker, null for none.
CREATE OR REPLACE FUNCTION webhook.is_ready(q webhook.delivery_queue, retries_before timestamptz) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN webhook.awaits_its_time(q)
           AND (q.next_attempt_at <= now() OR q.wait_reason = 'retry' AND q.last_attempt_at < retries_before);

-- Whether a delivery may be the probe of a breaker: a retry may be one before its time, but no delivery that a person or an
-- emitter has put off.
CREATE OR REPLACE FUNCTION webhook.may_be_probe(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN webhook.awaits_its_time(q) AND q.event_type <> 'webhook.test'
           AND (q.next_attempt_at <= now() OR q.wait_reason = 'retry');

CREATE OR REPLACE FUNCTION webhook.wait_in_a_word(q webhook.delivery_queue, retries_before timestamptz) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN webhook.is_ready(q, retries_before) THEN 'due'
                WHEN NOT webhook.has_time(q.expires_at) THEN 'expired'
                WHEN q.wait_reason = 'parked' THEN 'parked'
                WHEN q.waits_for IS NOT NULL THEN 'ordered'
                WHEN q.wait_reason = 'retry' THEN 'retry'
                ELSE 'scheduled' END;

-- All deliveries of an endpoint in the queue. It takes two indexes: one has the deliveries that only time keeps back, the
-- other has the rest.
CREATE OR REPLACE FUNCTION webhook.queue_of(endpoint int) RETURNS SETOF webhook.delivery_queue
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT q.* FROM webhook.delivery_queue q
        WHERE q.endpoint_id = queue_of.endpoint AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
        UNION ALL
        SELECT q.* FROM webhook.delivery_queue q
        WHERE q.endpoint_id = queue_of.endpoint AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL);
    END;
