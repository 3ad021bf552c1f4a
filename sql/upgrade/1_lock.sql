-- The beginning of every upgrade script, before tables change. As in the install script, no operator or function may be found
-- that somebody has made in the schema of the extension.
SET LOCAL search_path = pg_catalog, pg_temp;

-- This locks all tables at once, or none. A transaction that emits locks tables in an order of its own: an upgrade that took
-- one lock after the other could have a deadlock with it, and while it waits for an open transaction or a dump, all other
-- sessions would wait behind it. So it gives its locks back before the server looks for a deadlock, lets others pass, and
-- tries again.
DO $$
DECLARE
    tables regclass[] := ARRAY(SELECT c.oid FROM pg_class c
                               WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY c.oid);
    locked regclass;
    users_timeout text := current_setting('lock_timeout');
    give_up_at timestamptz := clock_timestamp() + interval '1 min';
    give_back_at timestamptz;
BEGIN
    LOOP
        give_back_at := clock_timestamp() + current_setting('deadlock_timeout')::interval / 2;
        BEGIN
            FOREACH locked IN ARRAY tables LOOP
                PERFORM set_config('lock_timeout',
                                   greatest(ceil(1000 * extract(epoch FROM give_back_at - clock_timestamp())), 1)::text, true);
                EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', locked);
            END LOOP;
            PERFORM set_config('lock_timeout', users_timeout, true);
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > give_up_at THEN
                RAISE EXCEPTION 'the tables of webhook are in use' USING ERRCODE = 'lock_not_available',
                    DETAIL = format('Transactions of these processes have used them and are still open: %s.', (
                        SELECT string_agg(DISTINCT l.pid::text, ', ') FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                        WHERE l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                          AND c.relnamespace = 'webhook'::regnamespace AND l.granted AND l.pid <> pg_backend_pid())),
                    HINT = 'Upgrade when they have ended, and no dump is being made.';
            END IF;
            PERFORM pg_sleep(0.1);
        END;
    END LOOP;
END $$;
