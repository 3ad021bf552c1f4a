-- Plans: which kinds of plans the planner may use, by named profiles.
--
-- A session plans a statement once, often while a table is empty, and uses that plan when the table holds a million rows. A
-- profile leaves the planner only plans whose cost depends on the rows that are handled, and not on those that are there. It
-- sets every switch of the planner, so that a function with a profile inherits nothing from a caller with another one. The
-- heads of the functions have no such settings.
--
--   indexed     finds rows by an index, bitmaps of GIN included
--   row_by_row  joins by an index for each row, and may sort the rows that it has found
--   in_order    reads an index in its order up to a limit, so it never sorts

DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN
        WITH profile (name, closed, functions) AS (VALUES
            ('indexed', '{seqscan}'::text[],
             '{backfill_batch, check_metrics, emit_alert, emit_events, missing_deliveries, problems, queue_for_some, raise_alerts,
               require_endpoints, routes, take_keys}'::text[]),
            ('row_by_row', '{seqscan, bitmapscan, hashjoin, mergejoin}',
             '{call_followers, discard, exchange, fail_queued, finish_queued, pass_turn, requeue, set_followers_aside,
               settle, settle_successes, within_byte_rooms}'),
            ('in_order', '{seqscan, bitmapscan, hashjoin, mergejoin, sort, material}',
             '{agenda, cancel_superseded, due, expire, expire_overdue, expire_figures, expire_kept_back, follow_clock, forget,
               forget_removed_endpoints, gauges, lost_followers, lost_turns, next_claims, next_of_replay, next_orphans,
               page_of_events, pick, queue_gauge, retention_lag, superseded, turn_away}')
        )
        SELECT f.name, p.oid::regprocedure AS function, profile.closed
        FROM profile
        CROSS JOIN LATERAL unnest(profile.functions) AS f (name)
        LEFT JOIN pg_proc p ON p.proname = f.name AND p.pronamespace = 'webhook'::regnamespace
            AND p.prorettype <> 'trigger'::regtype
    LOOP
        IF ours.function IS NULL THEN
            RAISE EXCEPTION 'there is no function webhook.%() to plan for', ours.name;
        END IF;
        EXECUTE (
            SELECT string_agg(format('ALTER FUNCTION %s SET enable_%s = %s', ours.function, way,
                                     CASE WHEN way = ANY (ours.closed) THEN 'off' ELSE 'on' END), '; ')
            FROM unnest('{seqscan, bitmapscan, nestloop, hashjoin, mergejoin, sort, material}'::text[]) AS way);
    END LOOP;
END $$;

-- JIT takes a hundred times as long as our statements do. A session that has jit on would compile a plan with a high estimated
-- cost, and a plan has one if it does what enable_seqscan and the like discourage. webhook.emit() has no such setting: its
-- plans cost next to nothing, and a SET would cost more.
DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN
        SELECT p.oid::regprocedure AS name
        FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
        WHERE p.prosecdef AND 'jit=off' <> ALL (coalesce(p.proconfig, '{}')) AND p.proname <> 'emit'
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET jit = off', ours.name);
    END LOOP;
END $$;
