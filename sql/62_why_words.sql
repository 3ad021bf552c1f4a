-- The words of why: times, spans, patterns and errors as people read them.

-- Errors, names and keys come from outside and end up in terminals: a character that could act there, or turn the direction of
-- the text, is shown by its code point.
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

CREATE OR REPLACE FUNCTION webhook.patterns_in_words(patterns text[]) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN format('%s%s', array_to_string(patterns[1:10], ', '),
                  CASE WHEN cardinality(patterns) > 10 THEN format(' and %s more', cardinality(patterns) - 10) END);

-- The end of a delivery if it was no outcome of an attempt; any other error is that of the last attempt. The code alone does
-- not tell which of two times has passed.
CREATE OR REPLACE FUNCTION webhook.error_in_words(d webhook.delivery) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN d.reason IS NULL OR webhook.attempt_reasons() ? d.reason THEN d.last_error
        WHEN d.reason = 'expired' AND d.expires_at <= d.completed_at
        THEN format('its expires_at, %s, has passed (expired)', webhook.time_in_words(d.expires_at))
        WHEN d.reason = 'expired' THEN 'its endpoint kept it back for longer than hold_for of the policy (expired)'
        ELSE format('%s (%s)', webhook.reasons() ->> d.reason, d.reason)
    END;
