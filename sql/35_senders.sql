-- Senders: which processes deliver, and which endpoints each of them serves.
--
-- A sender is a session that claims and settles: the worker of the server, or a relay. It takes a number, signs its claims
-- with it, and holds an advisory lock on it as long as its session lasts. The session is the truth: a sender is alive while
-- the backend that it has registered, logged in as the same role, holds that lock. Any session may take any advisory lock, so
-- a lock of another backend proves nothing.
--
-- A relay that is cut off does not learn that its session has ended, and has claims in hand. So it counts as alive a little
-- longer: a relay begins a request only within webhook.longest_silence() of a question that its session has answered, by its
-- own clock (relay/src/silence.rs). A session answers nothing after its end. The first sender that notices the end notes the
-- time; longest_silence() later the relay sends nothing more, and its shares and its claims are free. That holds whatever has
-- ended the session, and whatever is between the relay and the server. A relay that is back in a new session says which run
-- was its own, and no sender waits. The worker of the server is gone when its session is.
--
-- The endpoints are divided into webhook.senders shares, by the remainder of their ids. A share is a lease: it belongs to one
-- sender until that sender gives it up or its session ends, so that an endpoint has one sender at a time, which alone knows
-- how much it may send. Each sender holds its part of the shares, at most; the first sender that asks takes a share that no
-- living sender holds. If webhook.senders changes, all old shares must be given up before a sender takes a new one: they
-- overlap.
--
-- A sender asks for its shares again and again. It writes nothing as long as nothing changes.

-- The first of the two keys of that lock: "webh", so that other people's advisory locks are not in the way.
CREATE OR REPLACE FUNCTION webhook.sender_lock() RETURNS int LANGUAGE sql IMMUTABLE RETURN 2003133032;

CREATE OR REPLACE FUNCTION webhook.longest_silence() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '2 s';

-- Begins a run of a sender in this session. It gives up the shares of its earlier runs, whose sessions it has lost: a login
-- role can say that of its own runs alone. If another session has locked a number, it takes the next one. The tries are
-- bounded; the next sender goes on after them.
CREATE OR REPLACE FUNCTION webhook.begin_sender(kind text, host text, version text, earlier int[] DEFAULT '{}') RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most_tries CONSTANT int := 20000;
    new_id int;
BEGIN
    earlier := ARRAY(SELECT s.id FROM webhook.sender s JOIN pg_stat_get_activity(pg_backend_pid()) a ON a.usesysid = s.role
                     WHERE s.id = ANY (earlier));
    UPDATE webhook.sender s SET lost_at = '-infinity' WHERE s.id = ANY (earlier);
    DELETE FROM webhook.share h WHERE h.sender_id = ANY (earlier);
    FOR try IN 1..most_tries LOOP
        new_id := nextval('webhook.sender_id_seq');
        IF pg_try_advisory_lock(webhook.sender_lock(), new_id) THEN
            DELETE FROM webhook.sender s WHERE s.id = new_id;
            INSERT INTO webhook.sender (id, kind, pid, role, host, version)
            SELECT new_id, begin_sender.kind, a.pid, a.usesysid, left(begin_sender.host, 255), left(begin_sender.version, 100)
            FROM pg_stat_get_activity(pg_backend_pid()) a;
            RETURN new_id;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'somebody has locked the numbers of the next % senders', most_tries
        USING ERRCODE = 'lock_not_available',
              HINT = format('SELECT pid FROM pg_locks WHERE locktype = ''advisory'' AND classid = %s shows who.',
                            webhook.sender_lock());
END $$;

CREATE OR REPLACE FUNCTION webhook.end_senders(sender_ids int[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1 ms' AS $$
DECLARE
    ended int[];
BEGIN
    PERFORM pg_stat_clear_snapshot();
    ended := ARRAY(SELECT s.id FROM webhook.sender s
                   WHERE s.id = ANY (sender_ids) AND (s.pid = pg_backend_pid() OR NOT webhook.is_sender_alive(s.id)));
    PERFORM pg_advisory_unlock(webhook.sender_lock(), s.id) FROM webhook.sender s
    WHERE s.id = ANY (ended) AND s.pid = pg_backend_pid() AND webhook.has_session(s.id);
    DELETE FROM webhook.share h WHERE h.sender_id = ANY (ended);
    DELETE FROM webhook.sender s WHERE s.id = ANY (ended);
END $$;

CREATE OR REPLACE FUNCTION webhook.has_session(sender_id int) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM webhook.sender s
                   JOIN pg_locks l ON l.pid = s.pid
                   JOIN pg_stat_get_activity(s.pid) a ON a.usesysid = s.role
                   WHERE s.id = sender_id AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                     AND l.classid = webhook.sender_lock()::oid AND l.objid = s.id::oid);

-- A time in the future was noted before somebody set the clock back, and means nothing.
CREATE OR REPLACE FUNCTION webhook.is_sender_alive(sender_id int) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM webhook.sender s
                   WHERE s.id = sender_id
                     AND (webhook.has_session(s.id)
                          OR s.kind = 'relay' AND (s.lost_at IS NULL
                                                   OR clock_timestamp() BETWEEN s.lost_at
                                                                            AND s.lost_at + webhook.longest_silence())));

-- The senders that are alive. A transaction sees the sessions as of its first look at them, so this looks anew.
CREATE OR REPLACE FUNCTION webhook.living_senders() RETURNS int[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    RETURN ARRAY(SELECT s.id FROM webhook.sender s WHERE webhook.is_sender_alive(s.id) ORDER BY s.id);
END $$;

-- Notes which sessions have ended, so that the time of their senders begins to run.
CREATE OR REPLACE FUNCTION webhook.note_lost_senders() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    UPDATE webhook.sender s SET lost_at = clock_timestamp() WHERE s.lost_at IS NULL AND NOT webhook.has_session(s.id);
END $$;

CREATE OR REPLACE FUNCTION webhook.dead_senders() RETURNS int[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    living int[];
BEGIN
    PERFORM webhook.note_lost_senders();
    living := webhook.living_senders();
    RETURN ARRAY(SELECT s.id FROM webhook.sender s WHERE s.id <> ALL (living));
END $$;

-- Notes how many deliveries the sender has in flight, for people to see. Returns the shares that it holds and is to keep, and
-- those that it is to give up as soon as it has nothing of them in flight. `total` is the number of all shares.
CREATE OR REPLACE FUNCTION webhook.take_shares(sender int, in_flight int, OUT total int, OUT kept int[], OUT given_up int[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1 s' AS $$
#variable_conflict use_column
DECLARE
    living int[];
    most int;
    is_locked boolean := false;
BEGIN
    IF (SELECT s.pid FROM webhook.sender s WHERE s.id = sender) IS DISTINCT FROM pg_backend_pid() THEN
        RAISE EXCEPTION 'sender % does not belong to this session', sender USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'A sender needs a session of its own: connect to the server itself, not through a pooler of transactions.';
    END IF;
    take_shares.in_flight := least(greatest(take_shares.in_flight, 0), 1000000);
    UPDATE webhook.sender s SET in_flight = take_shares.in_flight
    WHERE s.id = sender AND s.in_flight <> take_shares.in_flight;
    take_shares.total := webhook.setting('senders')::int;
    PERFORM webhook.note_lost_senders();
    LOOP
        living := webhook.living_senders();
        most := ceil(take_shares.total / greatest(1, cardinality(living))::numeric);
        SELECT coalesce(array_agg(h.number ORDER BY h.number) FILTER (WHERE h.ordinal <= most AND h.total = take_shares.total), '{}'),
               coalesce(array_agg(h.number ORDER BY h.number) FILTER (WHERE h.ordinal > most OR h.total <> take_shares.total), '{}')
        INTO kept, given_up
        FROM (SELECT h.number, h.total, row_number() OVER (ORDER BY h.number) AS ordinal
              FROM webhook.share h WHERE h.sender_id = sender) h;
        EXIT WHEN cardinality(given_up) > 0 OR cardinality(kept) >= most
               OR NOT EXISTS (SELECT webhook.free_shares(take_shares.total, living));
        IF is_locked THEN
            DELETE FROM webhook.share h WHERE h.sender_id <> ALL (living);
            INSERT INTO webhook.share (number, total, sender_id)
            SELECT f.number, take_shares.total, sender FROM webhook.free_shares(take_shares.total, living) AS f (number)
            ORDER BY f.number LIMIT most - cardinality(kept);
        ELSE
            LOCK TABLE webhook.share IN SHARE ROW EXCLUSIVE MODE;
            is_locked := true;
        END IF;
    END LOOP;
END $$;

-- There is no free share as long as there is a lease of another division.
CREATE OR REPLACE FUNCTION webhook.free_shares(total int, living int[]) RETURNS SETOF int
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT s.number FROM generate_series(0, free_shares.total - 1) AS s (number)
        WHERE NOT EXISTS (SELECT FROM webhook.share h
                          WHERE h.sender_id = ANY (living) AND (h.number = s.number OR h.total <> free_shares.total));
    END;

-- The settings for a relay: only the worker has those of the server.
CREATE OR REPLACE FUNCTION webhook.sender_settings() RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object(
        'enabled', webhook.setting('enabled')::boolean,
        'rings', webhook.is_preloaded(),
        'poll_interval_ms', (extract(epoch FROM webhook.setting('poll_interval')::interval) * 1000)::bigint,
        'stale_after_ms', (extract(epoch FROM webhook.setting('stale_after')::interval) * 1000)::bigint,
        'longest_silence_ms', (extract(epoch FROM webhook.longest_silence()) * 1000)::bigint,
        'allow_networks', webhook.setting('allow_networks'), 'tenant_networks', webhook.setting('tenant_networks'),
        'deny_networks', webhook.setting('deny_networks'),
        'allow_ports', webhook.setting('allow_ports'), 'require_https', webhook.setting('require_https'));
END $$;

-- Tells other senders that something was committed for them, which they cannot see by themselves. The worker calls this at a
-- pace of its own, so that no emitter touches the queue of notifications, whose lock all commits with a notification wait for.
CREATE OR REPLACE FUNCTION webhook.ring() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM webhook.share) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        NOTIFY webhook_due;
    END IF;
END $$;

-- Gives up shares of this session's sender that have nothing in flight.
CREATE OR REPLACE FUNCTION webhook.release_shares(sender int, numbers int[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1 s' AS $$
BEGIN
    DELETE FROM webhook.share h
    WHERE h.sender_id = sender AND h.number = ANY (numbers)
      AND EXISTS (SELECT FROM webhook.sender s WHERE s.id = sender AND s.pid = pg_backend_pid());
END $$;
