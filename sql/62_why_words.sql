-- Why, its words: times, spans, patterns and errors as people read them.

-- Errors, names and keys come from outside and end up in terminals: what could act there, or turn the direction of the text,
-- is shown by its code point.
CREATE OR REPLACE FUNCTION webhook.printable(value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unprintable CONSTANT text := E'[\\u0001-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]';
BEGIN
    IF value !~ unprintable THEN
        RETURN value;
    END IF;
    RETURN string_agg(CASE WHEN c ~ unprintable THEN format(E'\\u%s', lpad(to_hex(ascii(c)), 4, '0')) ELSE c END, '' ORDER BY ordinal)
    FROM string_to_table(value, NULL) WITH ORDINALITY AS t (c, ordinal);
END $$;

CREATE OR REPLACE FUNCTION webhook.time_in_words(instant timestamptz) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN isfinite(instant) THEN to_char(instant, 'YYYY-MM-DD HH24:MI:SSOF') ELSE instant::text END;

CREATE OR REPLACE FUNCTION webhook.span_in_words(span interval) RETURNS text
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
CREATE OR REPLACE FUNCTION webhook.patterns_in_words(patterns text[]) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN format('%s%s', array_to_string(patterns[1:10], ', '),
                  CASE WHEN cardinality(patterns) > 10 THEN format(' and %s more', cardinality(patterns) - 10) END);

-- What ended a delivery where it was no outcome of an attempt; any other error is that of the last attempt.
CREATE OR REPLACE FUNCTION webhook.error_in_words(d webhook.delivery) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE d.reason
        WHEN 'cancelled' THEN 'a person cancelled it'
        WHEN 'endpoint_removed' THEN 'the endpoint was removed'
        WHEN 'skipped' THEN 'the circuit breaker was open when the event was emitted (skipped, when_open = skip)'
        WHEN 'coalesced' THEN 'a later event with the same coalesce_key took its place (coalesced)'
        WHEN 'circuit_open' THEN 'the circuit breaker was open, and the policy did not let it wait (circuit_open)'
        WHEN 'expired' THEN CASE WHEN d.expires_at <= d.completed_at
                                 THEN format('it was not worth sending after %s, its expires_at (expired)', webhook.time_in_words(d.expires_at))
                                 ELSE 'its endpoint kept it back for longer than hold_for of the policy (expired)' END
        WHEN 'redacted' THEN 'its event was redacted'
        WHEN 'worker_lost' THEN 'the worker ended before the attempt did (worker_lost)'
        ELSE d.last_error
    END;
