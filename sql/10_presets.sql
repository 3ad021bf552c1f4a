-- The presets: `standard`, which is also the default of every column, and the rules of other systems, for people who come from
-- those. docs/retries.md has their delays in full.

-- An upgrade writes the presets anew. A policy that a person has made keeps its row, even if a new preset has its name. Later
-- files create the triggers of the table again: none may run here, least of all one of the version before.
DO $$
DECLARE
    ours name;
BEGIN
    FOR ours IN
        SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = 'webhook.policy'::regclass AND p.pronamespace = 'webhook'::regnamespace
    LOOP
        EXECUTE format('DROP TRIGGER %I ON webhook.policy', ours);
    END LOOP;
END $$;
DELETE FROM webhook.policy WHERE preset;

INSERT INTO webhook.policy (preset, name) VALUES (true, 'standard')
ON CONFLICT (name) DO NOTHING;

INSERT INTO webhook.policy
    (preset, name, max_attempts, backoff, initial_delay, factor, max_delay, schedule, jitter_down, jitter_up,
     success_status, retry_status, disable_status, retry_errors, retry_after, connect_timeout, timeout,
     failure_threshold, warn_threshold, cooldown, max_cooldown, breaker_counts, on_trip, when_open, on_exhausted, hold_for, keep_sent)
VALUES
    (true, 'patient', 6, 'schedule', '30 s', 2, '24 h', '{30 s, 5 min, 30 min, 2 h, 24 h}', 0.1, 0.1,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     5, 0, '60 min', '60 min', 'attempts', 'open', 'skip', 'continue', NULL, true),
    (true, 'outbox', 6, 'exponential', '1 s', 2, '24 h', DEFAULT, 0, 0,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     0, 0, '60 s', '60 min', 'attempts', 'open', 'hold', 'continue', NULL, true),
    (true, 'outbox_fixed', 6, 'fixed', '1 s', 2, '24 h', DEFAULT, 0, 0,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     0, 0, '60 s', '60 min', 'attempts', 'open', 'hold', 'continue', NULL, true),
    (true, 'power5', 6, 'exponential', '5 s', 5, '24 h', DEFAULT, 0, 0.1,
     '{[200,400)}', '{[429,430), [500,600)}', '{}', '{dns, connect, timeout, tls, reset}', 'exact', '5 s', '10 s',
     0, 3, '60 s', '60 min', 'attempts', 'open', 'hold', 'disable', NULL, true),
    (true, 'transport', 4, 'exponential', '1 s', 2, '60 s', DEFAULT, 0, 0,
     '{[200,300)}', '{}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     5, 0, '30 s', '30 s', 'final', 'open', 'fail', 'continue', NULL, true),
    (true, 'bridge', 5, 'exponential', '1 s', 2, '60 s', DEFAULT, 0, 0,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     5, 0, '30 s', '30 s', 'attempts', 'open', 'attempt', 'continue', NULL, true),
    (true, 'high_traffic', 3, 'exponential', '1 s', 2, '60 s', DEFAULT, 0, 0,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '3 s', '3 s',
     10, 0, '60 s', '60 s', 'attempts', 'open', 'attempt', 'continue', NULL, true),
    (true, 'development', 4, 'exponential', '1 s', 2, '60 s', DEFAULT, 0, 0,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     3, 0, '10 s', '10 s', 'attempts', 'open', 'attempt', 'continue', NULL, true),
    (true, 'critical', 6, 'exponential', '2 s', 2, '60 s', DEFAULT, 0, 0,
     '{[200,300)}', '{[100,200), [300,1000)}', '{}', '{dns, connect, timeout, tls, reset, invalid_response}', 'ignore', '5 s', '10 s',
     20, 0, '120 s', '120 s', 'attempts', 'open', 'hold', 'continue', NULL, true),
    (true, 'job', 3, 'exponential', '1 s', 2, '24 h', DEFAULT, 0, 0,
     '{[200,300)}', '{[429,430), [500,600)}', '{}', '{dns, connect, timeout, reset}', 'ignore', '5 s', '5 s',
     50, 0, '60 s', '60 min', 'final', 'disable', 'hold', 'continue', NULL, false)
ON CONFLICT (name) DO NOTHING;
