-- Codes: the words that monitors match. Every verdict and every reason stands in one of these lists and in no other place;
-- tables CHECK them, webhook.code shows them, docs/retries.md and docs/states.md explain them.

CREATE OR REPLACE FUNCTION webhook.verdicts() RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN jsonb '{
    "success": "the endpoint took the event; the delivery is SENT",
    "retry":   "the attempt failed and another one follows; without an attempt left the delivery is FAILED",
    "final":   "the attempt failed and no other one follows; the delivery is FAILED",
    "disable": "the endpoint says that it is gone; the delivery is FAILED and the endpoint is disabled",
    "release": "the worker gives the claim back; the attempt neither counts nor is logged",
    "late":    "the claim was over when the outcome came; the outcome is logged and changes nothing"
}';

-- The reasons of a failed attempt; the sender's error beside the code tells the details.
CREATE OR REPLACE FUNCTION webhook.attempt_reasons() RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN jsonb '{
    "status":           "the endpoint answered with a status that is no success",
    "dns":              "the name of the host does not resolve, or not in time",
    "connect":          "the connection was refused, or the host cannot be reached",
    "timeout":          "connect_timeout or timeout ran out",
    "tls":              "the TLS handshake failed, or the certificate is not valid",
    "reset":            "the connection ended before a status was read",
    "invalid_response": "the answer is not HTTP, or its headers exceed 16 kB",
    "blocked":          "the address, the port or plain http is not allowed",
    "invalid_request":  "the URL, a header, the secret or the template cannot be used",
    "invalid_event":    "the event''s values make a header or a body that cannot be sent; no failure of the endpoint",
    "local":            "the worker itself was in trouble: memory, file descriptors, ports"
}';

-- The reasons why a delivery waits for another attempt, failed or was cancelled, and the last failure of a breaker.
CREATE OR REPLACE FUNCTION webhook.reasons() RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN webhook.attempt_reasons() || jsonb '{
    "circuit_open":     "the circuit breaker was open, and the policy does not hold deliveries",
    "expired":          "expires_at has passed, or the endpoint kept the delivery back for longer than hold_for",
    "worker_lost":      "the worker ended before the attempt did",
    "endpoint_removed": "a person removed the endpoint",
    "event_deleted":    "a person deleted the event, so that there is nothing to send",
    "redacted":         "a person redacted the event",
    "cancelled":        "a person cancelled the delivery",
    "skipped":          "the event was emitted while the circuit breaker was open, under when_open = skip",
    "coalesced":        "a later event with the same coalesce_key took its place"
}';

-- The reasons why an endpoint was disabled or its breaker closed, in alerts and in endpoint.disabled_reason. A person may
-- write any other text there.
CREATE OR REPLACE FUNCTION webhook.endpoint_reasons() RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN jsonb '{
    "gone":      "the endpoint answered with a status of disable_status, as HTTP 410 is",
    "exhausted": "all attempts of a delivery failed, under on_exhausted = disable",
    "tripped":   "failure_threshold was reached, under on_trip = disable",
    "by_hand":   "a person did it"
}';

-- 00_tables.sql has made this function and the next one for its CHECKs.
CREATE OR REPLACE FUNCTION webhook.is_verdict(code text) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN webhook.verdicts() ? code;
-- This is plpgsql, because a CHECK is planned with every statement, and this one is not even called for a delivery that was
-- sent.
CREATE OR REPLACE FUNCTION webhook.is_reason(code text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.reasons() ? code;
END $$;
CREATE OR REPLACE FUNCTION webhook.is_endpoint_reason(code text) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN webhook.endpoint_reasons() ? code;

-- The text of last_error, if no attempt has left words of its own.
CREATE OR REPLACE FUNCTION webhook.reason_in_words(code text) RETURNS text LANGUAGE sql IMMUTABLE RETURN replace(code, '_', ' ');

CREATE OR REPLACE VIEW webhook.code AS
SELECT 'verdict' AS kind, v.key AS code, v.value AS meaning FROM jsonb_each_text(webhook.verdicts()) AS v
UNION ALL
SELECT 'reason', r.key, r.value FROM jsonb_each_text(webhook.reasons()) AS r
UNION ALL
SELECT 'endpoint_reason', e.key, e.value FROM jsonb_each_text(webhook.endpoint_reasons()) AS e;
