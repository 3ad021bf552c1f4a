-- Conflicts: people, the worker and these functions change the same deliveries at the same time.
--
-- A person who updates webhook.delivery moves rows between its leaves, and PostgreSQL raises a serialization error in a
-- session that meets such a row. The functions that people call must not raise that error, nor make a person's UPDATE lose in
-- a deadlock.

-- Replays, discards or redacts, whatever others do to the same deliveries meanwhile, and returns how many rows that changed. A
-- single try waits for a lock less than the deadlock_timeout of a person who waits for us, so that this person never loses;
-- between two tries nothing is locked. The caller's own lock_timeout limits all tries together; the default of the parameter
-- reads it before the SET below applies.
CREATE OR REPLACE FUNCTION webhook.change(
    what text, event_ids uuid[], endpoint_ids int[], statuses text[] DEFAULT NULL,
    patience interval DEFAULT current_setting('lock_timeout')::interval)
    RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
    conflicts_left int := 100;
    began timestamptz := clock_timestamp();
BEGIN
    LOOP
        BEGIN
            RETURN CASE what
                WHEN 'replay' THEN webhook.requeue(event_ids, endpoint_ids, statuses)
                WHEN 'discard' THEN webhook.discard(event_ids, endpoint_ids)
                WHEN 'redact' THEN webhook.redact(event_ids[1])
            END;
        EXCEPTION
            WHEN lock_not_available THEN
                IF patience > interval '0' AND clock_timestamp() > began + patience THEN
                    RAISE;
                END IF;
            WHEN serialization_failure OR deadlock_detected THEN
                conflicts_left := conflicts_left - CASE SQLSTATE WHEN '40P01' THEN 30 ELSE 1 END;
                IF conflicts_left < 0 OR current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
                    RAISE;
                END IF;
        END;
    END LOOP;
END $$;
