-- The tables. Every state that a row may have is here; the files after this one say how rows get there.
--
-- There are no foreign keys: they double the WAL of an emit and break a parallel restore. The functions of 12_endpoint.sql and
-- 11_policy.sql keep references right instead.
--
-- Texts in an index are COLLATE "C": the order of any other collation comes from the operating system, whose next update may
-- change it and so corrupt an index that keeps keys unique.
--
-- Every table that grows says when it is vacuumed. Autovacuum's default of 20% is too late for a table that holds weeks: every
-- search would pass days of dead rows. 5% bound the bloat to 5%. A queue has a fixed number, since it is meant to be empty.

-- This setting holds for the whole install script. Without it, a role that may create objects in the schema of the extension
-- could put an operator or function there that fits better than that of pg_catalog, and constraints, views and SQL bodies
-- would be bound to it.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'webhook needs a database in UTF8'
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = pg_catalog.format('The encoding of this database is %s, and payloads are sent as UTF-8.', pg_catalog.getdatabaseencoding()),
                  HINT = 'CREATE DATABASE .. TEMPLATE template0 ENCODING ''UTF8'', and create the extension there.';
    END IF;
    IF pg_catalog.to_regprocedure('webhook.portable_version()') IS NOT NULL THEN
        RAISE EXCEPTION 'this database has webhook without the library already' USING ERRCODE = 'duplicate_object',
            DETAIL = 'webhook-relay install has made it.',
            HINT = 'webhook-relay uninstall removes it; endpoints and events go with it.';
    END IF;
END $$;


-- The CHECKs of codes call these. 03_reasons.sql has the lists and replaces these functions, so that a later version can add a
-- code without reading the rows.
CREATE FUNCTION webhook.is_verdict(code text) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN false;
CREATE FUNCTION webhook.is_reason(code text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
    AS 'BEGIN RETURN false; END';
CREATE FUNCTION webhook.is_endpoint_reason(code text) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN false;
-- The CHECK of the queue, which every emit pays for; 31_moves.sql replaces it.
CREATE FUNCTION webhook.may_be_queued(
    status text, attempts int, max_attempts int, claimed_by int, claimed_at timestamptz, completed_at timestamptz,
    wait_reason text, next_attempt_at timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN false;

CREATE TABLE webhook.policy (
    name              text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9_]{1,63}$'),

    -- when to try again
    max_attempts      int            NOT NULL DEFAULT 10 CHECK (max_attempts BETWEEN 1 AND 32000),
    backoff           text           NOT NULL DEFAULT 'schedule' CHECK (backoff IN ('exponential', 'fixed', 'schedule')),
    initial_delay     interval       NOT NULL DEFAULT '5 s' CHECK (initial_delay BETWEEN '0 s' AND '1000 days'),
    factor            float8         NOT NULL DEFAULT 2 CHECK (factor BETWEEN 1 AND 100),
    max_delay         interval       NOT NULL DEFAULT '24 h' CHECK (max_delay BETWEEN '0 s' AND '1000 days'),
    schedule          interval[]     NOT NULL DEFAULT '{5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h}'
                      CHECK (cardinality(schedule) > 0 AND array_ndims(schedule) = 1 AND array_lower(schedule, 1) = 1 AND array_position(schedule, NULL) IS NULL
                             AND '0 s' <= ALL (schedule) AND '1000 days' >= ALL (schedule)),
    jitter_down       float8         NOT NULL DEFAULT 0.1 CHECK (jitter_down BETWEEN 0 AND 1),
    jitter_up         float8         NOT NULL DEFAULT 0.1 CHECK (jitter_up BETWEEN 0 AND 1),

    -- the meaning of an answer
    success_status    int4multirange NOT NULL DEFAULT '{[200,300)}',
    retry_status      int4multirange NOT NULL DEFAULT '{[100,200), [300,410), [411,1000)}',
    disable_status    int4multirange NOT NULL DEFAULT '{[410,411)}',
    retry_errors      text[]         NOT NULL DEFAULT '{dns, connect, timeout, tls, reset, invalid_response}'
                      CHECK (retry_errors <@ '{dns, connect, timeout, tls, reset, invalid_response}' AND array_position(retry_errors, NULL) IS NULL),
    retry_after       text           NOT NULL DEFAULT 'at_least' CHECK (retry_after IN ('ignore', 'exact', 'at_least')),
    timeout           interval       NOT NULL DEFAULT '15 s' CHECK (timeout BETWEEN '1 ms' AND '1 h'),
    connect_timeout   interval       NOT NULL DEFAULT '5 s' CHECK (connect_timeout BETWEEN '1 ms' AND '1 h'),

    -- the circuit breaker
    failure_threshold int            NOT NULL DEFAULT 5 CHECK (failure_threshold >= 0),
    warn_threshold    int            NOT NULL DEFAULT 3 CHECK (warn_threshold >= 0),
    cooldown          interval       NOT NULL DEFAULT '60 s' CHECK (cooldown >= '0 s'),
    max_cooldown      interval       NOT NULL DEFAULT '60 min' CHECK (max_cooldown BETWEEN cooldown AND '1000 days'),
    breaker_counts    text           NOT NULL DEFAULT 'attempts' CHECK (breaker_counts IN ('attempts', 'final')),
    on_trip           text           NOT NULL DEFAULT 'open' CHECK (on_trip IN ('open', 'disable')),
    when_open         text           NOT NULL DEFAULT 'hold' CHECK (when_open IN ('hold', 'skip', 'fail', 'attempt')),
    on_exhausted      text           NOT NULL DEFAULT 'continue' CHECK (on_exhausted IN ('continue', 'disable')),
    on_blocked        text           NOT NULL DEFAULT 'skip' CHECK (on_blocked IN ('wait', 'skip')),

    -- how long to keep deliveries
    hold_for          interval                DEFAULT '7 days' CHECK (hold_for > '0 s' AND hold_for <= '1000 days'),
    keep_sent         boolean        NOT NULL DEFAULT true,
    preset            boolean        NOT NULL DEFAULT false
);

CREATE TABLE webhook.endpoint (
    id              int         GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant          text        COLLATE "C",
    name            text        COLLATE "C" NOT NULL,
    url             text        NOT NULL,
    event_types     text[]      COLLATE "C" NOT NULL DEFAULT '{*}',
    filter          jsonpath,
    policy          text        COLLATE "C" NOT NULL DEFAULT 'standard',
    headers         jsonb       NOT NULL DEFAULT '{}',
    format          text        NOT NULL DEFAULT 'standard',
    template        jsonb,
    max_in_flight   int,
    rate_limit      numeric,
    metadata        jsonb       NOT NULL DEFAULT '{}',
    origin          text        NOT NULL,
    paused_at       timestamptz,
    disabled_at     timestamptz,
    disabled_reason text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT endpoint_address UNIQUE NULLS NOT DISTINCT (tenant, name),
    CONSTRAINT disabled_has_a_reason CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
);

-- Endpoints that were removed. A transaction that was open at the time may still commit deliveries for one; the worker ends
-- them. It goes by this list and not by the absence of the endpoint, which a restore may bring later.
CREATE TABLE webhook.removed_endpoint (
    id         int         PRIMARY KEY,
    tenant     text        COLLATE "C",
    name       text        COLLATE "C" NOT NULL,
    pending    text        NOT NULL DEFAULT 'cancel' CHECK (pending IN ('cancel', 'fail')),   -- how its waiting deliveries end
    removed_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz NOT NULL DEFAULT now()   -- the last end of a delivery of it; retention forgets the row some time later
);

CREATE TABLE webhook.secret (
    endpoint_id int         NOT NULL,
    secret      text        COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    PRIMARY KEY (endpoint_id, secret)
);

CREATE TABLE webhook.event (
    id              uuid        PRIMARY KEY,
    tenant          text        COLLATE "C",
    event_type      text        NOT NULL,
    payload         jsonb       NOT NULL,
    idempotency_key text        COLLATE "C",
    created_at      timestamptz NOT NULL,
    redacted_at     timestamptz,                -- the payload was removed, and the event is never sent again
    payload_bytes   int                         -- as text; null where a person has written the row
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

-- Each key stands for an event within webhook.idempotency_window. The empty text stands for no tenant.
CREATE TABLE webhook.idempotency (
    tenant     text        COLLATE "C" NOT NULL,
    key        text        COLLATE "C" NOT NULL,
    event_id   uuid        NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX idempotency_created ON webhook.idempotency (created_at);

-- One row per event and endpoint, in one of three leaves by its status: the queue stays small whatever the history holds, and
-- a person moves a row between them with a plain UPDATE of webhook.delivery.
CREATE TABLE webhook.delivery (
    event_id         uuid        NOT NULL,
    endpoint_id      int         NOT NULL,
    event_type       text        NOT NULL,
    status           text        COLLATE "C" NOT NULL DEFAULT 'PENDING',
    attempts         int         NOT NULL DEFAULT 0,
    max_attempts     int         NOT NULL,
    next_attempt_at  timestamptz NOT NULL DEFAULT now(),
    wait_reason      text        NOT NULL DEFAULT 'new',  -- its own reason to wait; a claim never changes it
    waits_for        uuid,                                -- the event that has the turn: 32_ordering.sql
    expires_at       timestamptz,
    ordering_key     text        COLLATE "C",
    coalesce_key     text        COLLATE "C",
    claim_seq        bigint      NOT NULL DEFAULT 0,      -- number of claims so far; never reset
    claimed_at       timestamptz,                         -- both only while SENDING
    claimed_by       int,
    last_attempt_at  timestamptz,                         -- when the last attempt ended
    last_status_code int,
    reason           text,                                -- the code of the last thing that happened to it
    last_error       text,                                -- the same as a sentence
    duration_ms      int,
    created_at       timestamptz NOT NULL DEFAULT now(),
    completed_at     timestamptz,
    payload_bytes    int                                  -- of its event, so that a claim need not read the event; may be null
) PARTITION BY LIST (status);

-- Each leaf says in one CHECK what its rows must be. Every INSERT prepares its CHECKs anew: as an expression, the CHECK of the
-- queue took half of an emit.
--
-- A claim is an UPDATE of columns that are in no index, on pages with room, so it is always HOT. Hence no index key or
-- predicate has the status, and hence the fillfactor.
--
-- wait_reason is the delivery's own reason to wait: 'new' waits for its first attempt, 'retry' for the next one after a
-- failure; 'replayed' was asked for once more by a person or a backfill; of 'scheduled' a person has chosen the time, and
-- 'parked' waits for a person. 30_readiness.sql says which deliveries are ready.
CREATE TABLE webhook.delivery_queue PARTITION OF webhook.delivery (
    CONSTRAINT pending_or_claimed CHECK (
        webhook.may_be_queued(status, attempts, max_attempts, claimed_by, claimed_at, completed_at, wait_reason, next_attempt_at))
)
    FOR VALUES IN ('PENDING', 'SENDING')
    WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
          autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
          autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX delivery_queue_expires ON webhook.delivery_queue (expires_at) WHERE expires_at IS NOT NULL;
-- The first index has the deliveries that only time keeps back, the second one the rest: together they find all deliveries of
-- an endpoint.
CREATE INDEX delivery_queue_due ON webhook.delivery_queue (endpoint_id, next_attempt_at, event_id)
    WHERE wait_reason <> 'parked' AND waits_for IS NULL;
CREATE INDEX delivery_queue_aside ON webhook.delivery_queue (endpoint_id)
    WHERE wait_reason = 'parked' OR waits_for IS NOT NULL;
-- The primary key is the youngest index: of indexes that look alike, as all do on an empty table, the planner takes the
-- youngest, and only this one finds a row by its key at once.
ALTER TABLE webhook.delivery_queue ADD PRIMARY KEY (event_id, endpoint_id);

CREATE TABLE webhook.delivery_history PARTITION OF webhook.delivery (
    PRIMARY KEY (event_id, endpoint_id),
    CONSTRAINT finished CHECK (
        completed_at IS NOT NULL AND num_nonnulls(claimed_by, claimed_at) = 0 AND attempts BETWEEN 0 AND max_attempts
        AND webhook.is_reason(reason))
)
    FOR VALUES IN ('SENT', 'CANCELLED')
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX delivery_history_completed ON webhook.delivery_history (completed_at);

CREATE TABLE webhook.dead_letter PARTITION OF webhook.delivery (
    CONSTRAINT failed_with_an_error CHECK (
        completed_at IS NOT NULL AND last_error IS NOT NULL AND num_nonnulls(claimed_by, claimed_at) = 0
        AND attempts BETWEEN 0 AND max_attempts AND reason IS NOT NULL AND webhook.is_reason(reason))
)
    FOR VALUES IN ('FAILED')
    WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX dead_letter_completed ON webhook.dead_letter (completed_at);
CREATE INDEX dead_letter_endpoint ON webhook.dead_letter (endpoint_id, completed_at);
ALTER TABLE webhook.dead_letter ADD PRIMARY KEY (event_id, endpoint_id);    -- the youngest, as above

CREATE TABLE webhook.attempt (
    event_id         uuid        NOT NULL,
    endpoint_id      int         NOT NULL,
    claim_seq        bigint      NOT NULL,
    attempt          int,
    verdict          text        NOT NULL CHECK (webhook.is_verdict(verdict)),
    status_code      int,
    reason           text        CHECK (webhook.is_reason(reason)),    -- the code of a failure
    error            text,                                -- the same as a sentence
    response_excerpt text,
    duration_ms      int         NOT NULL,
    finished_at      timestamptz NOT NULL,
    PRIMARY KEY (event_id, endpoint_id, claim_seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

-- A row for each endpoint that has failed; 41_breaker.sql moves it.
CREATE TABLE webhook.breaker (
    endpoint_id          int         PRIMARY KEY,
    state                text        NOT NULL DEFAULT 'CLOSED' CHECK (state IN ('CLOSED', 'OPEN', 'HALF_OPEN')),
    consecutive_failures int         NOT NULL DEFAULT 0 CHECK (consecutive_failures >= 0),
    last_failure_at      timestamptz,
    reason               text        CHECK (webhook.is_reason(reason)),  -- the code of that failure
    last_error           text,                                            -- the same as a sentence

    -- while it is not closed
    opened_at            timestamptz,                                     -- since when
    trips                int         NOT NULL DEFAULT 0 CHECK (trips >= 0), -- how often it has opened since it was last closed
    probe_at             timestamptz,                                     -- OPEN: the next probe; HALF_OPEN: the end of its lease
    probe_event_id       uuid,
    probe_claim_seq      bigint,

    -- after it has closed, while the backlog drains
    retries_before       timestamptz,                                     -- retries of earlier attempts are due at once

    test_event_id        uuid,                                            -- webhook_test() sends it in every state
    CONSTRAINT closed_or_opened CHECK (
        CASE state WHEN 'CLOSED' THEN num_nonnulls(opened_at, probe_at) = 0 AND trips = 0
                   ELSE num_nulls(opened_at, probe_at) = 0 AND trips > 0 AND retries_before IS NULL END),
    CONSTRAINT half_open_has_a_probe CHECK (
        num_nonnulls(probe_event_id, probe_claim_seq) = CASE state WHEN 'HALF_OPEN' THEN 2 ELSE 0 END)
)
    -- There are few rows, and every failure writes one.
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Alerts until the worker has raised them: 51_alerts.sql. They are not part of a dump, or a copy would raise them again.
CREATE TABLE webhook.alert (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id int         NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('degraded', 'opened', 'closed', 'disabled', 'failed', 'raised', 'cleared')),
    reason      text,                                                     -- the code: 03_reasons.sql
    error       text,                                                     -- the same as a sentence
    is_own      boolean     NOT NULL DEFAULT false,                       -- an event of the extension is the cause, so it raises no other event
    deliveries  bigint      NOT NULL DEFAULT 1,
    event_ids   uuid[]      NOT NULL DEFAULT '{}',
    raised_at   timestamptz NOT NULL DEFAULT now(),
    metric      text,                                                     -- the metric, if it is about one; endpoint_id is 0 then
    CONSTRAINT endpoint_or_metric CHECK ((kind IN ('raised', 'cleared')) = (metric IS NOT NULL)),
    CONSTRAINT reason_of_its_kind CHECK (
        CASE WHEN kind IN ('closed', 'disabled') THEN webhook.is_endpoint_reason(reason) ELSE webhook.is_reason(reason) END)
)
    -- This is a queue too: a row stays for a second.
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Figures: attempts and finished deliveries by endpoint and time; endpoint 0 has the sum of all. 50_stat.sql adds to them, and
-- everything that shows figures reads them. Minutes are kept for a day, hours for a month, totals for ever.
CREATE TABLE webhook.stat (
    endpoint_id      int         NOT NULL,
    grain            text        COLLATE "C" NOT NULL CHECK (grain IN ('total', 'hour', 'minute')),
    begins_at        timestamptz NOT NULL,                                -- -infinity for the total
    attempts         bigint      NOT NULL DEFAULT 0,                      -- attempts that ended; attempts - sent of them failed
    sent             bigint      NOT NULL DEFAULT 0,
    failed           bigint      NOT NULL DEFAULT 0,
    retried          bigint      NOT NULL DEFAULT 0,                      -- deliveries among sent and failed that had a retry
    retries          bigint      NOT NULL DEFAULT 0,
    attempt_latency  jsonb       NOT NULL DEFAULT '{}',                   -- histograms
    delivery_latency jsonb       NOT NULL DEFAULT '{}',
    last_sent_at     timestamptz,
    PRIMARY KEY (endpoint_id, grain, begins_at),
    CONSTRAINT total_is_for_ever CHECK ((grain = 'total') = (begins_at = '-infinity'))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Metrics beyond their thresholds, so that each alert is raised once: 53_metrics.sql. They are not part of a dump.
CREATE TABLE webhook.alarm (
    metric    text        COLLATE "C" PRIMARY KEY,
    raised_at timestamptz NOT NULL DEFAULT now()
);

-- The state of webhook_replay_all() or webhook_backfill() between two of their transactions: the wish of the caller, the
-- position, and the counts so far.
CREATE TYPE webhook.replay AS (
    of_endpoints int[], of_type text, since timestamptz, before timestamptz, statuses text[], batch_size int,
    after_event_id uuid, after_endpoint_id int, last_event_id uuid,
    total bigint, met bigint, replayed bigint, endpoint_gone bigint, payload_gone bigint, done boolean);
CREATE TYPE webhook.backfill AS (
    of_endpoints int[], of_type text, since timestamptz, before timestamptz, batch_size int,
    after_event_id uuid, before_event_id uuid, total bigint, met bigint, made bigint, done boolean);

-- The meaning of an attempt's end for its delivery: 40_judgement.sql.
CREATE TYPE webhook.judgement AS (
    verdict         text,
    status          text,                   -- the delivery's new status
    next_attempt_at timestamptz,
    reason          text                    -- null where nothing went wrong
);

-- An attempt that has ended, with its judgement: 42_settle.sql. If its claim is over, the verdict is 'late', and there is no
-- row of the queue behind it.
CREATE TYPE webhook.outcome AS (
    event_id        uuid,
    endpoint_id     int,
    claim_seq       bigint,
    status_code     int,
    error           text,
    excerpt         text,
    duration_ms     int,
    ended_at        timestamptz,
    ordinal         bigint,                 -- distinguishes outcomes that ended at the same time
    verdict         text,
    status          text,
    next_attempt_at timestamptz,
    reason          text,
    row_id          tid,                    -- of the delivery, which is locked
    event_type      text,
    attempts        int,
    created_at      timestamptz,
    keep_sent       boolean,
    ordering_key    text
);

-- Each run of a sender has a number of its own. The sender signs its claims with the number and holds an advisory lock on it:
-- 35_senders.sql.
CREATE SEQUENCE webhook.sender_id_seq AS int CYCLE;

-- Runs of senders that have begun and not ended in order. Neither this table nor the next one is part of a dump: they mean
-- nothing to another installation.
CREATE TABLE webhook.sender (
    id        int         PRIMARY KEY,
    kind      text        NOT NULL CHECK (kind IN ('worker', 'relay')),
    pid       int         NOT NULL,
    role      oid         NOT NULL,                         -- the login role of the backend
    host      text,
    version   text,
    begun_at  timestamptz NOT NULL DEFAULT now(),
    in_flight int         NOT NULL DEFAULT 0,
    lost_at   timestamptz                                   -- when somebody noticed that its session had ended
) WITH (fillfactor = 50);

-- The sender that serves this share, of that total of shares of the endpoints.
CREATE TABLE webhook.share (
    number    int PRIMARY KEY CHECK (number >= 0),
    total     int NOT NULL,
    sender_id int NOT NULL,
    CHECK (number < total)
);

CREATE TABLE webhook.lane (
    endpoint_id  int  NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    event_id     uuid NOT NULL,
    PRIMARY KEY (endpoint_id, ordering_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX delivery_queue_order ON webhook.delivery_queue (endpoint_id, ordering_key, event_id) WHERE ordering_key IS NOT NULL;

CREATE INDEX delivery_queue_coalescing ON webhook.delivery_queue (endpoint_id, coalesce_key, event_id) WHERE coalesce_key IS NOT NULL;

CREATE INDEX delivery_history_coalescing ON webhook.delivery_history (endpoint_id, coalesce_key, event_id)
    WHERE coalesce_key IS NOT NULL AND status = 'SENT';

-- The type of the parameter event_type in the functions that refuse a json payload with a HINT. It is a domain, because the
-- server takes a function with one only where no other fits: text is the preferred type, so a payload without a type is jsonb,
-- whatever type the other argument has. Arrays have nothing like it, so there is no such function for an array of types.
CREATE DOMAIN webhook.type_beside_json AS text;

-- From here on every statement can be run again, as in the extension.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Stand-ins for the shared library and for the extension, for a database that allows neither: webhook-relay install has this
-- file in the place of sql/01_native.sql. Results are those of the library where there are any; pgrx-tests/conformance.sql
-- compares them. Where only the library can answer, a function here says so, or leaves the answer to the relay, which judges
-- every request by the same code.

CREATE OR REPLACE FUNCTION webhook.is_portable() RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN true;

-- The version of webhook-relay that has made this schema. Only a portable installation has this function.
CREATE OR REPLACE FUNCTION webhook.portable_version() RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN '0.1.0';

-- A new event id: UUID version 7, ordered by time, to the microsecond. It waits for the next microsecond, so that ids of a
-- session are in the order in which it has asked for them.
CREATE OR REPLACE FUNCTION webhook.new_id() RETURNS uuid
    LANGUAGE plpgsql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    made timestamptz;
    microseconds bigint;
    bytes bytea := uuid_send(gen_random_uuid());
BEGIN
    LOOP
        made := clock_timestamp();
        EXIT WHEN made <> began;
    END LOOP;
    microseconds := extract(epoch FROM made) * 1000000;
    -- 48 bits of milliseconds, the version, and 12 bits of their fraction.
    bytes := overlay(bytes PLACING substr(int8send(microseconds / 1000), 3) FROM 1 FOR 6);
    bytes := overlay(bytes PLACING substr(int4send((28672 + microseconds % 1000 * 4096 / 1000)::int), 3) FROM 7 FOR 2);
    RETURN encode(bytes, 'hex')::uuid;
END $$;

-- The server's system identifier; null if somebody has revoked the right to read it from PUBLIC.
CREATE OR REPLACE FUNCTION webhook.system_identifier() RETURNS bigint
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_function_privilege('pg_control_system()', 'EXECUTE') THEN
        RETURN (SELECT c.system_identifier FROM pg_control_system() c);
    END IF;
    RETURN NULL;
END $$;

-- A dump carries the id of a portable installation, so the system identifier has to tell a restore.
CREATE OR REPLACE FUNCTION webhook.server_mark() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN '/' || coalesce(webhook.system_identifier(), 0);

-- webhook-relay has checked the role before it executes anything as that role.
CREATE OR REPLACE FUNCTION webhook.require_safe_owner() RETURNS void
    LANGUAGE sql STABLE
    BEGIN ATOMIC END;

-- Nobody connects as the owner.
CREATE OR REPLACE FUNCTION webhook.grant_connect() RETURNS void
    LANGUAGE sql VOLATILE
    BEGIN ATOMIC END;

-- Gives roles the new rights of their levels: webhook.renew_levels(). This is plpgsql, since that function comes later.
CREATE OR REPLACE FUNCTION webhook.renew_grants() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.renew_levels();
END $$;

-- A new signing secret: whsec_ and 32 bytes in base64. A random uuid has 122 bits of the server's strong randomness; the hash
-- of three of them has 256.
CREATE OR REPLACE FUNCTION webhook.new_secret() RETURNS text
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN 'whsec_' || encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                                     || uuid_send(gen_random_uuid())), 'base64');

CREATE OR REPLACE FUNCTION webhook.new_private_key() RETURNS text
    LANGUAGE plpgsql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'making a private key needs the library' USING ERRCODE = 'feature_not_supported',
        DETAIL = 'This database has webhook without the library.',
        HINT = 'Make it elsewhere, and give it: webhook_rotate_key(.., key => ''whsk_..'').';
END $$;

-- The relay judges whether the halves of a key belong together: it does not sign with another.
CREATE OR REPLACE FUNCTION webhook.is_private_key(key text) RETURNS boolean
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN true;

-- The relay judges addresses, with every attempt.
CREATE OR REPLACE FUNCTION webhook.url_problem(url text) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    RETURN NULL::text;

-- Only the library knows how long a regular expression may take. The text of a jsonpath has every name in quotes.
CREATE OR REPLACE FUNCTION webhook.pattern_problem(filter text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN CASE WHEN strpos(regexp_replace(filter, E'"([^"\\\\]|\\\\.)*"', '""', 'g'), ' like_regex ') > 0 THEN
        'the filter has like_regex, and only the library can say how long that may take' END;

-- The relay judges templates: it renders them.
CREATE OR REPLACE FUNCTION webhook.template_problem(template text, OUT problem text, OUT remedy text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE NOTICE 'the template is not checked without the library'
        USING HINT = 'CALL webhook_test(..) has a relay send an event with it, and shows what is wrong.';
END $$;

CREATE OR REPLACE FUNCTION webhook.header_value_problem(value text, OUT problem text, OUT remedy text) RETURNS SETOF record
    LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE NOTICE 'the template of a header is not checked: that takes the library'
        USING HINT = 'CALL webhook_test(..) has a relay send an event with it, and shows what is wrong.';
END $$;

-- The names that are close to one that does not exist, for a HINT. This finds none.
CREATE OR REPLACE FUNCTION webhook.did_you_mean(wanted text, names text[]) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN NULL::text;

CREATE OR REPLACE FUNCTION webhook.render_request(
    event_id uuid, event_type text, tenant text, occurred_at text, payload text, earlier_attempts int,
    url text, header_names text[], header_values text[], format text, template text, source text, secrets text[],
    hmac_secrets text[],
    OUT sent_url text, OUT sent_header_names text[], OUT sent_header_values text[], OUT body text)
    RETURNS SETOF record
    LANGUAGE plpgsql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'webhook_preview() needs the library' USING ERRCODE = 'feature_not_supported',
        DETAIL = 'This database has webhook without the library; relays render requests.',
        HINT = 'CALL webhook_test(..) has a relay send an event, and shows the answer.';
END $$;

-- This wakes nobody: relays look every 100 ms.
CREATE OR REPLACE FUNCTION webhook.wake() RETURNS boolean
    LANGUAGE sql PARALLEL UNSAFE RETURN true;
CREATE OR REPLACE FUNCTION webhook.wake(endpoint_ids int[], due_at timestamptz) RETURNS boolean
    LANGUAGE sql PARALLEL UNSAFE RETURN true;
CREATE OR REPLACE FUNCTION webhook.wake_endpoint(endpoint_id int, due_at timestamptz) RETURNS boolean
    LANGUAGE sql PARALLEL UNSAFE RETURN true;
CREATE OR REPLACE FUNCTION webhook.wake_routes(routes int[], due_at timestamptz) RETURNS boolean
    LANGUAGE sql PARALLEL UNSAFE RETURN true;

-- There is no memory of a session here that others could not write.
CREATE OR REPLACE FUNCTION webhook.recall_routes(tenant text, event_type text) RETURNS int[]
    LANGUAGE sql PARALLEL UNSAFE RETURN NULL::int[];
CREATE OR REPLACE FUNCTION webhook.recall_only_route(tenant text, event_type text) RETURNS bigint
    LANGUAGE sql PARALLEL UNSAFE RETURN NULL::bigint;
CREATE OR REPLACE FUNCTION webhook.remember_routes(tenant text, event_type text, found int[]) RETURNS void
    LANGUAGE sql PARALLEL UNSAFE BEGIN ATOMIC END;
CREATE OR REPLACE FUNCTION webhook.forget_routes() RETURNS void
    LANGUAGE sql PARALLEL UNSAFE BEGIN ATOMIC END;

CREATE OR REPLACE FUNCTION webhook.is_preloaded() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE RETURN false;

CREATE OR REPLACE FUNCTION webhook.worker_report(
    OUT pid int, OUT state text, OUT reason text, OUT in_flight int,
    OUT last_error text, OUT last_error_at timestamptz)
    RETURNS SETOF record
    LANGUAGE sql STABLE PARALLEL SAFE
    BEGIN ATOMIC SELECT NULL::int, NULL::text, NULL::text, NULL::int, NULL::text, NULL::timestamptz WHERE false; END;

-- The server raises the error at the first COMMIT, and nothing has happened by then.
CREATE OR REPLACE FUNCTION webhook.require_no_transaction_block(called text) RETURNS void
    LANGUAGE sql STRICT PARALLEL UNSAFE
    BEGIN ATOMIC END;

-- The schema of the functions that people call.
CREATE OR REPLACE FUNCTION webhook.home() RETURNS regnamespace
    LANGUAGE sql STABLE
    RETURN 'public'::regnamespace;

-- The routines of the installation, wherever they are: nobody else can make one that belongs to the schema's owner.
CREATE OR REPLACE FUNCTION webhook.members(OUT routine oid, OUT name text) RETURNS SETOF record
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT p.oid, p.proname FROM pg_namespace n
        JOIN pg_proc p ON p.proowner = n.nspowner AND p.pronamespace IN (n.oid, webhook.home())
        WHERE n.nspname = 'webhook';
    END;

-- Whether nobody but the owner may execute the routine, as when it has just been made. The role that has installed has the
-- level admin, and so some right to all others.
CREATE OR REPLACE FUNCTION webhook.is_new(routine oid) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN NOT EXISTS (SELECT FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                       WHERE p.oid = routine AND a.grantee NOT IN (0, p.proowner));

-- Settings are rows. Any user may set a placeholder such as webhook.max_payload in a session, so none is ever read.
CREATE TABLE IF NOT EXISTS webhook.settings (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE webhook.settings IS 'Settings that are not at their defaults.';
COMMENT ON FUNCTION webhook.portable_version IS 'The version of webhook-relay that has made this schema.';

-- The value that somebody has set; null if nobody has set one.
CREATE OR REPLACE FUNCTION webhook.configured(name text) RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT s.value FROM webhook.settings s WHERE s.name = configured.name);
END $$;

-- The problem of a value of a setting; null if it has none. The bounds are those of src/settings.rs.
CREATE OR REPLACE FUNCTION webhook.setting_problem(name text, value text) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name IN ('poll_interval', 'stale_after', 'idempotency_window', 'retention_sent', 'retention_failed')
       AND value !~ '[a-z]' AND NOT (name LIKE 'retention%' AND value = '-1') THEN
        RETURN 'it is a time with its unit, such as 5s, 10min or 7d';
    END IF;
    RETURN CASE
        WHEN name = 'enabled' THEN CASE WHEN value::boolean IS NULL THEN 'it is on or off' END
        WHEN name = 'site' THEN CASE WHEN length(value) > 200 THEN 'it has at most 200 characters' END
        WHEN name IN ('allow_networks', 'deny_networks') THEN (
            SELECT CASE WHEN count(n::cidr) < count(*) THEN 'it is a list of networks such as 10.0.0.0/8, fd00::/8' END
            FROM unnest(string_to_array(nullif(btrim(value), ''), ',')) AS t (text), btrim(t.text) AS n)
        WHEN name = 'allow_ports' THEN (
            SELECT CASE WHEN count(*) FILTER (WHERE p[1]::int BETWEEN 1 AND coalesce(p[2]::int, p[1]::int)
                                                AND coalesce(p[2]::int, p[1]::int) <= 65535) < count(*)
                        THEN 'it is a list of ports such as 443, 8000-8999' END
            FROM unnest(string_to_array(nullif(btrim(value), ''), ',')) AS t (text)
            LEFT JOIN LATERAL regexp_match(t.text, '^\s*([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?\s*$') AS p ON true)
        WHEN name = 'require_https' THEN CASE WHEN value NOT IN ('on', 'public', 'off') THEN 'it is on, public or off' END
        WHEN name = 'keep_attempts' THEN CASE WHEN value NOT IN ('failed', 'all') THEN 'it is failed or all' END
        WHEN name = 'senders' THEN CASE WHEN value::int NOT BETWEEN 1 AND 64 THEN 'it is between 1 and 64' END
        WHEN name = 'max_payload' THEN
            CASE WHEN pg_size_bytes(value) NOT BETWEEN 1024 AND 268435456 THEN 'it is between 1kB and 256MB' END
        WHEN name = 'poll_interval' THEN
            CASE WHEN value::interval NOT BETWEEN '10 ms' AND '1 day' THEN 'it is between 10ms and 1d' END
        WHEN name = 'stale_after' THEN
            CASE WHEN value::interval NOT BETWEEN '1 s' AND '1 day' THEN 'it is between 1s and 1d' END
        WHEN name = 'idempotency_window' THEN
            CASE WHEN value::interval NOT BETWEEN '1 s' AND '365 days' THEN 'it is between 1s and 365d' END
        WHEN name IN ('retention_sent', 'retention_failed') THEN
            CASE WHEN value <> '-1' AND value::interval NOT BETWEEN '0' AND '4000 years'
                 THEN 'it is a time such as 7d, or -1 for ever' END
        WHEN name IN ('max_in_flight', 'ca_file') THEN 'relays have an option of that name instead'
        ELSE 'there is no such setting'
    END;
EXCEPTION WHEN data_exception THEN
    RETURN SQLERRM;
END $$;

CREATE OR REPLACE FUNCTION webhook.check_setting() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text := webhook.setting_problem(NEW.name, NEW.value);
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'setting "%" cannot be "%"', NEW.name, NEW.value USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('%s.', problem), HINT = 'docs/portable.md has the settings, with the values that each takes.';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER check_setting BEFORE INSERT OR UPDATE ON webhook.settings
    FOR EACH ROW EXECUTE FUNCTION webhook.check_setting();

-- A key that is made of a row: src/capture/key.rs. Null if one of the values is null.
CREATE OR REPLACE FUNCTION webhook.captured_key(record jsonb, schema_name text, table_name text, columns jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key text;
BEGIN
    SELECT CASE WHEN count(*) = count(p.part) THEN
               string_agg(replace(replace(p.part, '%', '%25'), '/', '%2F'), '/' ORDER BY p.n) END
    INTO key
    FROM (SELECT -1, schema_name UNION ALL SELECT 0, table_name UNION ALL
          SELECT c.n, record ->> c.name FROM jsonb_array_elements_text(columns) WITH ORDINALITY AS c (name, n)) AS p (n, part);
    IF length(key) > 200 OR key ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RETURN 'sha256:' || encode(sha256(convert_to(key, 'UTF8')), 'hex');
    END IF;
    RETURN key;
END $$;

-- The columns of a row that an event shows.
CREATE OR REPLACE FUNCTION webhook.captured_columns(record jsonb, include jsonb, exclude jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE
        WHEN record IS NULL THEN NULL
        WHEN include IS NOT NULL THEN
            (SELECT coalesce(jsonb_object_agg(c.key, c.value), '{}') FROM jsonb_each(record) AS c WHERE include ? c.key)
        WHEN exclude IS NOT NULL THEN record - ARRAY(SELECT jsonb_array_elements_text(exclude))
        ELSE record
    END;

-- Whether webhook_watch() could have written these options: an option that is ignored could be a column that leaks.
CREATE OR REPLACE FUNCTION webhook.captures_by(options jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN jsonb_typeof(options) = 'object'
       AND NOT options ?& '{include,exclude}' AND (options ? 'table' OR NOT options ? 'schema')
       AND NOT EXISTS (
            SELECT FROM jsonb_each(CASE jsonb_typeof(options) WHEN 'object' THEN options ELSE '{}' END) AS o
            WHERE CASE
                WHEN o.key IN ('changed', 'include', 'exclude', 'ordering_key', 'coalesce_key') THEN
                    jsonb_typeof(o.value) <> 'array' OR jsonb_path_exists(o.value, 'strict $[*] ? (@.type() != "string")')
                WHEN o.key = 'on_error' THEN o.value NOT IN ('"raise"', '"warn"')
                WHEN o.key IN ('tenant_column', 'schema', 'table', 'condition') THEN jsonb_typeof(o.value) <> 'string'
                ELSE true END);

-- Emits a change of a row, with the rights of the role that writes it.
CREATE OR REPLACE FUNCTION webhook.capture(
    event_type text, operation text, target regclass, schema_name text, table_name text, options jsonb, new_row jsonb, old_row jsonb)
    RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present CONSTANT jsonb := coalesce(new_row, old_row);
    missing text;
    tenant text := present ->> (options ->> 'tenant_column');
BEGIN
    IF present IS NOT NULL THEN
        SELECT c.name INTO missing
        FROM unnest('{include,exclude,changed,ordering_key,coalesce_key}'::text[]) WITH ORDINALITY AS o (name, n)
        CROSS JOIN LATERAL jsonb_array_elements_text(options -> o.name) AS c (name)
        WHERE NOT present ? c.name
        ORDER BY o.n LIMIT 1;
        IF missing IS NULL AND NOT present ? (options ->> 'tenant_column') THEN
            missing := options ->> 'tenant_column';
        END IF;
        IF missing IS NOT NULL THEN
            RAISE EXCEPTION 'column "%" does not exist any more', missing USING ERRCODE = 'undefined_column',
                HINT = 'The table is watched by the names of its columns: call webhook_watch() again.';
        ELSIF operation = 'UPDATE' AND options ? 'changed' AND NOT EXISTS (
            SELECT FROM jsonb_array_elements_text(options -> 'changed') AS c (name)
            WHERE new_row -> c.name IS DISTINCT FROM old_row -> c.name) THEN
            RETURN;
        ELSIF NOT webhook.is_tenant(tenant) THEN
            RAISE EXCEPTION 'the tenant of a row is not valid' USING ERRCODE = 'invalid_parameter_value',
                HINT = 'The tenant column has 1 to 200 characters, no white space and no control characters, or null for none.';
        END IF;
        -- A trigger sees no values of virtual columns, which PostgreSQL has from 18 on.
        IF current_setting('server_version_num')::int >= 180000 THEN
            new_row := new_row - webhook.virtual_columns(target);
            old_row := old_row - webhook.virtual_columns(target);
        END IF;
    END IF;
    PERFORM webhook.emit(
        event_type,
        jsonb_build_object('type', operation, 'schema', schema_name, 'table', table_name,
            'record', webhook.captured_columns(new_row, options -> 'include', options -> 'exclude'),
            'old_record', webhook.captured_columns(old_row, options -> 'include', options -> 'exclude')),
        NULL,
        webhook.captured_key(present, schema_name, table_name, options -> 'ordering_key'),
        webhook.captured_key(present, schema_name, table_name, options -> 'coalesce_key'),
        NULL, NULL, tenant, NULL);
END $$;

-- CREATE TRIGGER calls webhook_trigger('order.created') or webhook_trigger('order.updated', '{"changed": ["status"],
-- "exclude": ["notes"], ..}'), AFTER, for each row; only TRUNCATE has it for each statement. All of it runs with the rights of
-- the role that writes the table, since code of the table's owner, such as a cast to json, may run in here. The writer
-- therefore needs the level emit. There is a subtransaction only under on_error = warn.
CREATE OR REPLACE FUNCTION public.webhook_trigger() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' SET extra_float_digits = 1
AS $$
DECLARE
    options CONSTANT jsonb := coalesce(TG_ARGV[1], '{}');
    schema_name CONSTANT text := coalesce(options ->> 'schema', TG_TABLE_SCHEMA);
    table_name CONSTANT text := coalesce(options ->> 'table', TG_TABLE_NAME);
BEGIN
    IF TG_WHEN <> 'AFTER' THEN
        RAISE EXCEPTION 'invalid use of webhook_trigger(): it is called % the operation', TG_WHEN
            USING ERRCODE = 'trigger_protocol_violated', HINT = 'Make it an AFTER trigger, of a table.';
    ELSIF TG_LEVEL = 'STATEMENT' AND TG_OP <> 'TRUNCATE' THEN
        RAISE EXCEPTION 'invalid use of webhook_trigger(): it is called for a statement'
            USING ERRCODE = 'trigger_protocol_violated', HINT = 'Without the library it sees rows alone: make it FOR EACH ROW.';
    ELSIF TG_NARGS NOT IN (1, 2) OR NOT webhook.captures_by(options) THEN
        RAISE EXCEPTION 'invalid use of webhook_trigger(): its arguments are not the type of an event and options that it knows'
            USING ERRCODE = 'trigger_protocol_violated',
                  HINT = 'Such as webhook_trigger(''order.updated'', ''{"changed": ["status"]}''); '
                         'webhook_watch() makes a trigger for you.';
    ELSIF options ->> 'on_error' = 'warn' THEN
        BEGIN
            PERFORM webhook.capture(TG_ARGV[0], TG_OP, TG_RELID, schema_name, table_name, options, to_jsonb(NEW), to_jsonb(OLD));
        EXCEPTION
            WHEN transaction_rollback THEN
                RAISE;
            WHEN OTHERS THEN
                RAISE WARNING '% of table "%.%" not emitted: 1 events', TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME
                    USING DETAIL = format('The last of them: %s', SQLERRM);
        END;
    ELSE
        PERFORM webhook.capture(TG_ARGV[0], TG_OP, TG_RELID, schema_name, table_name, options, to_jsonb(NEW), to_jsonb(OLD));
    END IF;
    RETURN NULL;
END $$;
-- The identity of the installation. A copy of a database must not repeat the requests of the original, so it has to know that
-- it is a copy.
--
-- CREATE EXTENSION makes the id of an installation once, as a constant in the body of a function that belongs to the
-- extension: no dump, no DML and no publication carries it, and pg_upgrade and physical copies keep it. With the database's
-- OID and webhook.site it makes the origin that endpoints carry. A restore has another id, a TEMPLATE copy another OID, a
-- staging server with a name of its own another site: their workers hold the endpoints until webhook_adopt().
--
-- A standby that pg_createsubscriber makes a server of its own keeps all three. Its system identifier is new, but its major
-- version is the same, unlike after pg_upgrade: the worker gives it another id when it starts.

CREATE OR REPLACE FUNCTION webhook.write_installation(new_id uuid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION webhook.installation()
                        RETURNS TABLE (id uuid, system_identifier bigint, major_version int) LANGUAGE sql IMMUTABLE BEGIN ATOMIC SELECT %L::uuid, %L::bigint, %s; END',
                   new_id, webhook.system_identifier(), webhook.major_version());
END $$;

CREATE OR REPLACE FUNCTION webhook.major_version() RETURNS int
    LANGUAGE sql STABLE
    RETURN current_setting('server_version_num')::int / 10000;

DO $$
BEGIN
    IF to_regprocedure('webhook.installation()') IS NULL THEN
        PERFORM webhook.write_installation(gen_random_uuid());
    END IF;
END $$;

-- A worker calls this before it sends anything.
CREATE OR REPLACE FUNCTION webhook.recognise_installation() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known record;
BEGIN
    SELECT i.* INTO known FROM webhook.installation() i;
    IF known.system_identifier <> webhook.system_identifier() THEN
        PERFORM webhook.write_installation(
            CASE WHEN known.major_version = webhook.major_version() THEN gen_random_uuid() ELSE known.id END);
    END IF;
END $$;

-- This is plpgsql for the same reason as webhook.policy_of(). A session without the library knows no webhook.site, which means
-- no site.
CREATE OR REPLACE FUNCTION webhook.origin() RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN left(encode(sha256(convert_to(
        concat(i.id, '/', d.oid, '/', webhook.setting('site'), webhook.server_mark()), 'UTF8')), 'hex'), 32)
    FROM webhook.installation() i, pg_database d WHERE d.datname = current_database();
END $$;

-- The version of the protocol between this SQL and the programs that call it. It changes with every change of a call that they
-- make, and a program with another version delivers nothing and says so (src/protocol.rs).
CREATE OR REPLACE FUNCTION webhook.protocol() RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN 1;
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
-- Settings, as SQL reads them.

-- The value of a setting, by its name without "webhook.". All SQL reads settings here, so that a session without the library
-- has the same defaults as the library (src/settings.rs). The planner inlines it: with the library it costs what
-- current_setting() does.
CREATE OR REPLACE FUNCTION webhook.setting(name text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(webhook.configured(name), CASE name
        WHEN 'enabled' THEN 'on'
        WHEN 'site' THEN ''
        WHEN 'allow_networks' THEN ''
        WHEN 'deny_networks' THEN ''
        WHEN 'allow_ports' THEN '80, 443, 1024-65535'
        WHEN 'require_https' THEN 'public'
        WHEN 'ca_file' THEN ''
        WHEN 'max_in_flight' THEN '1000'
        WHEN 'senders' THEN '1'
        WHEN 'poll_interval' THEN '5s'
        WHEN 'stale_after' THEN '5min'
        WHEN 'max_payload' THEN '1MB'
        WHEN 'retention_sent' THEN '7d'
        WHEN 'retention_failed' THEN '30d'
        WHEN 'idempotency_window' THEN '1d'
        WHEN 'keep_attempts' THEN 'failed'
    END);
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
-- Policies: the time of the next attempt, and the meaning of an answer. A policy is a row, and a person adds one with an
-- INSERT.

CREATE OR REPLACE FUNCTION webhook.protect_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.preset THEN
        RAISE EXCEPTION 'policy "%" is a preset and cannot be changed', OLD.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('Make a copy and change that: SELECT webhook_copy_policy(%L, ''my_policy'').', OLD.name);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.preset THEN
        RAISE EXCEPTION 'policy "%" cannot be made a preset', NEW.name
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Presets come with the extension; leave the column preset at false.';
    END IF;
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND NEW.name <> OLD.name) THEN
        IF EXISTS (SELECT FROM webhook.endpoint e WHERE e.policy = OLD.name) THEN
            RAISE EXCEPTION 'policy "%" is in use', OLD.name
                USING ERRCODE = 'dependent_objects_still_exist',
                      HINT = 'Give its endpoints another one first: UPDATE webhook.endpoint SET policy = ..';
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.connect_timeout + NEW.timeout >= webhook.setting('stale_after')::interval THEN
        RAISE WARNING 'requests under policy "%" may take longer than webhook.stale_after', NEW.name
            USING HINT = 'Shorten connect_timeout and timeout, or raise webhook.stale_after in postgresql.conf.';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE OR REPLACE TRIGGER protect_policy BEFORE INSERT OR UPDATE OR DELETE ON webhook.policy
    FOR EACH ROW EXECUTE FUNCTION webhook.protect_policy();

CREATE OR REPLACE FUNCTION webhook.copy_policy(source text, target text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_policy(source);
    INSERT INTO webhook.policy
    SELECT copied.*
    FROM webhook.policy p,
         jsonb_populate_record(p, jsonb_build_object('name', target, 'preset', false)) AS copied
    WHERE p.name = source;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'policy "%" already exists', target USING ERRCODE = 'duplicate_object',
        HINT = 'Choose another name, or change the one there is: UPDATE webhook.policy SET ..';
END $$;

CREATE OR REPLACE FUNCTION webhook.require_policy(policy_name text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.policy p WHERE p.name = policy_name) THEN
        RAISE EXCEPTION 'policy "%" does not exist', policy_name USING ERRCODE = 'undefined_object',
            HINT = coalesce(webhook.did_you_mean(policy_name, ARRAY(SELECT p.name FROM webhook.policy p)),
                            'SELECT name FROM webhook.policy lists them; INSERT INTO webhook.policy makes one.');
    END IF;
END $$;

-- The policy of that name, or the default one: an endpoint that a restore brings before its policy must not stop anything.
-- This is plpgsql, because the worker asks several times in each turn, and a query in an SQL function would be planned each
-- time.
CREATE OR REPLACE FUNCTION webhook.policy_of(policy_name text) RETURNS webhook.policy
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    policy webhook.policy;
BEGIN
    SELECT * INTO policy FROM webhook.policy p WHERE p.name = policy_name;
    IF NOT FOUND THEN
        SELECT * INTO policy FROM webhook.policy p WHERE p.name = 'standard';
    END IF;
    RETURN policy;
END $$;

-- The outcome is a status, or the code of an attempt without one. A status that was read decides, whatever came after it.
-- 40_judgement.sql goes on from here.
CREATE OR REPLACE FUNCTION webhook.verdict(p webhook.policy, status_code int, failure text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE
        WHEN status_code <@ p.success_status THEN 'success'
        WHEN status_code <@ p.disable_status THEN 'disable'
        WHEN status_code <@ p.retry_status THEN 'retry'
        WHEN status_code IS NOT NULL THEN 'final'
        WHEN failure IN ('local', 'released') THEN 'release'
        WHEN failure = ANY (p.retry_errors) OR failure = 'circuit_open' THEN 'retry'
        ELSE 'final'
    END;

-- The policy's own wait after that many attempts. `draw`, between 0 and 1, places it between the jitter's bounds.
CREATE OR REPLACE FUNCTION webhook.own_delay(p webhook.policy, attempts int, draw float8) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN make_interval(secs => greatest(0, CASE p.backoff
        WHEN 'fixed' THEN extract(epoch FROM p.initial_delay)::float8
        WHEN 'schedule' THEN extract(epoch FROM p.schedule[least(greatest(attempts, 1), cardinality(p.schedule))])::float8
        -- With a factor of at most 100, an exponent of 100 is far beyond max_delay and still a float8.
        ELSE least(extract(epoch FROM p.initial_delay)::float8 * power(p.factor, least(greatest(attempts, 1) - 1, 100)),
                   extract(epoch FROM p.max_delay)::float8)
    END) * (1 - p.jitter_down + draw * (p.jitter_down + p.jitter_up)));

-- The shortest wait before an attempt that nobody asked for, whatever a policy or an endpoint says.
CREATE OR REPLACE FUNCTION webhook.shortest_wait() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '100 ms';

-- The wait before the next attempt. The endpoint may have asked for one (Retry-After), but gets at most max_delay.
CREATE OR REPLACE FUNCTION webhook.backoff_delay(p webhook.policy, attempts int, retry_after interval, draw float8) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own interval := webhook.own_delay(p, attempts, draw);
    asked interval;
BEGIN
    IF p.retry_after = 'ignore' OR (retry_after >= interval '0') IS NOT TRUE THEN
        RETURN greatest(own, webhook.shortest_wait());
    END IF;
    asked := least(retry_after, p.max_delay);
    RETURN greatest(CASE p.retry_after WHEN 'exact' THEN asked ELSE greatest(own, asked) END, webhook.shortest_wait());
END $$;

-- The same for a policy's name, with a random draw; null if there is no such policy.
CREATE OR REPLACE FUNCTION webhook.backoff_delay(policy_name text, attempts int, retry_after interval) RETURNS interval
    LANGUAGE sql VOLATILE
    RETURN (SELECT webhook.backoff_delay(p, attempts, backoff_delay.retry_after, random()) FROM webhook.policy p WHERE p.name = policy_name);

CREATE OR REPLACE FUNCTION webhook.longest_request_seconds() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (SELECT ceil(max(extract(epoch FROM p.connect_timeout + p.timeout)))::bigint
            FROM webhook.policy p WHERE EXISTS (SELECT FROM webhook.endpoint e WHERE e.policy = p.name));
-- Endpoints: the URLs that events are sent to, and their limits.
--
-- A person addresses an endpoint by one text: its name, or tenant/name for an endpoint of a tenant. Tenants and names have no
-- slash. In functions that take several endpoints, `tenant/*` stands for the endpoints of a tenant, and `*` for all.

CREATE OR REPLACE FUNCTION webhook.address(tenant text, name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(tenant || '/', '') || name;

CREATE OR REPLACE FUNCTION webhook.address_tenant(address text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN strpos(address, '/') > 0 THEN left(address, strpos(address, '/') - 1) END;

CREATE OR REPLACE FUNCTION webhook.address_name(address text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN substr(address, strpos(address, '/') + 1);

-- The endpoint of an address; no row if there is none. It has two branches, since the unique index serves a comparison and an
-- IS NULL but not both in one. It has no SET, so that the planner inlines it.
CREATE OR REPLACE FUNCTION webhook.endpoint_at(address text) RETURNS TABLE (id int)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT e.id FROM webhook.endpoint e WHERE e.tenant IS NULL AND e.name = address
        UNION ALL
        SELECT e.id FROM webhook.endpoint e
        WHERE e.tenant = webhook.address_tenant(address) AND e.name = webhook.address_name(address);
    END;

ALTER TABLE webhook.endpoint ALTER COLUMN origin SET DEFAULT webhook.origin();

-- Functions check the URL that a person gives. A restore is not checked: another server may have other settings, and the
-- sender judges every attempt again.
CREATE OR REPLACE FUNCTION webhook.require_permitted_url(url text) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text := webhook.url_problem(url);
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'endpoint is not valid' USING ERRCODE = 'invalid_parameter_value', DETAIL = problem,
            HINT = coalesce((SELECT format('Use another URL, or have a superuser change %s; a reload of the configuration applies it.',
                                           string_agg(setting[1], ' or '))
                             FROM regexp_matches(problem, 'webhook[.][a-z_]+', 'g') AS setting
                             HAVING count(*) > 0),
                            'Give a whole URL such as https://example.com/hooks.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.header_size_problem(headers jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    large record;
    sizes record;
BEGIN
    SELECT h.key, length(h.value) AS size INTO large FROM jsonb_each_text(headers) AS h
    WHERE length(h.key) > 200 OR length(h.value) > 8192 ORDER BY length(h.value) DESC LIMIT 1;
    SELECT count(*) AS headers, coalesce(sum(length(h.key) + length(h.value)), 0) AS bytes INTO sizes
    FROM jsonb_each_text(headers) AS h;
    RETURN CASE
        WHEN length(large.key) > 200 THEN
            format('the name of a header has %s bytes, more than 200', length(large.key))
        WHEN large.key IS NOT NULL THEN
            format('the value of header "%s" has %s bytes, more than 8192', large.key, large.size)
        WHEN sizes.headers > 50 THEN
            format('there are %s headers, more than 50', sizes.headers)
        WHEN sizes.bytes > 16384 THEN
            format('the headers have %s bytes together, more than 16384', sizes.bytes)
        -- Each signature reads the whole body.
        WHEN webhook.count_signatures(headers) > 8 THEN
            format('the headers have %s signatures, more than 8', webhook.count_signatures(headers))
    END;
END $$;

-- `{{{{` stands for two braces.
CREATE OR REPLACE FUNCTION webhook.has_placeholder(value text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN strpos(replace(value, '{{{{', ''), '{{') > 0;

CREATE OR REPLACE FUNCTION webhook.count_signatures(headers jsonb) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN regexp_count(headers::text, 'hmac_(hex|base64)');

CREATE OR REPLACE FUNCTION webhook.has_signatures(headers jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN webhook.count_signatures(headers) > 0;

-- The problem of templates in headers. The role that emits an event writes its values, and must not choose a credential by
-- them.
CREATE OR REPLACE FUNCTION webhook.header_template_problem(headers jsonb, OUT problem text, OUT remedy text)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    credentials CONSTANT text :=
        '(authorization|authentication|cookie|credentials?|password|api-?key|(access|auth|private|security)-token)$';
    bad text := (SELECT h.key FROM jsonb_each_text(headers) AS h
                 WHERE h.key ~* credentials AND webhook.has_placeholder(h.value) LIMIT 1);
BEGIN
    IF bad IS NOT NULL THEN
        problem := format('header "%s" is a credential and has a placeholder', bad);
        remedy := 'Give a credential as it is; {{{{ sends two opening braces.';
    ELSE
        SELECT format('header "%s": %s', h.key, p.problem), p.remedy INTO problem, remedy
        FROM jsonb_each_text(headers) AS h CROSS JOIN LATERAL webhook.header_value_problem(h.value) p
        WHERE webhook.has_placeholder(h.value) LIMIT 1;
    END IF;
END $$;

-- Refuses an endpoint that is not valid, with the remedy; every way to write one passes here. Its plans are generic: in any
-- other plan the values are constants, and a role that pauses an endpoint could read its headers there with debug_print_plan.
CREATE OR REPLACE FUNCTION webhook.check_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    problem text;
    remedy text;
    bad text;
BEGIN
    -- This refuses a value before the table does, whose message would show the whole row, credentials included.
    IF num_nulls(NEW.id, NEW.name, NEW.url, NEW.event_types, NEW.policy, NEW.headers, NEW.format, NEW.metadata, NEW.origin,
                 NEW.created_at) > 0 THEN
        problem := 'id, name, url, event_types, policy, headers, format, metadata, origin and created_at must not be null';
        remedy := 'Leave out what you have no value for.';
    ELSIF (NEW.disabled_at IS NULL) <> (NEW.disabled_reason IS NULL) THEN
        problem := 'disabled_at and disabled_reason go together';
        remedy := 'Set both, or neither.';
    ELSIF NEW.format NOT IN ('standard', 'raw', 'cloudevents', 'template') THEN
        problem := format('"%s" is not a format', left(NEW.format, 100));
        remedy := 'The formats are standard, raw, cloudevents and template.';
    ELSIF NEW.format = 'template' AND coalesce(NEW.template, 'null') = 'null' THEN
        problem := 'the format template needs a template';
        remedy := 'For example template => ''{"text": "{{data.message}}"}''.';
    ELSIF NEW.format <> 'template' AND NEW.template IS NOT NULL THEN
        problem := format('the format %s has no template', NEW.format);
        remedy := 'Use the format template, or leave the template null.';
    -- The database's collation knows control characters and spaces; the collation of the columns knows ASCII alone.
    ELSIF NEW.name COLLATE "default" !~ '^[^[:cntrl:]/]{1,200}$' OR NEW.name = '*' THEN
        problem := 'the name must have 1 to 200 characters, no / and no control characters, and not be *';
        remedy := 'Choose a short name such as ''billing''; one of a tenant is addressed by tenant/name.';
    ELSIF NOT webhook.is_tenant(NEW.tenant COLLATE "default") THEN
        problem := 'the tenant must have 1 to 200 characters, no /, white space or control characters, and not be *';
        remedy := 'Leave the tenant out for an endpoint that serves everyone: its address is the name alone.';
    ELSIF NEW.url !~ '^[!-~]+$' OR NEW.url ~ '["<>`]' OR length(NEW.url) > 2048 THEN
        problem := 'the URL must have at most 2048 characters, printable ASCII without ", <, > and `';
        remedy := 'Percent-encode other characters, and write an international host name in its xn-- form.';
    ELSIF NEW.url !~* '^https?://' THEN
        problem := 'the URL must begin with http:// or https://';
        remedy := 'Give a whole URL such as https://example.com/hooks.';
    ELSIF strpos(NEW.url, '#') > 0 THEN
        problem := 'the URL must not have a fragment';
        remedy := 'Remove the # and what follows it; it is never sent to a server.';
    ELSIF NEW.url ~* '^https?://[^/?]*@' THEN
        problem := 'the URL must not contain a user name or password';
        remedy := 'Put credentials into a header: headers => ''{"Authorization": "Basic .."}''.';
    ELSIF NEW.url !~* '^https?://([[][0-9a-f:.]+[]]|[a-z0-9._~%-]+)(:[0-9]{1,5})?([/?].*)?$'
          OR substring(NEW.url FROM '^[^/]*//[^/?]*:([0-9]+)([/?]|$)')::int NOT BETWEEN 1 AND 65535 THEN
        problem := 'the URL has no valid host and port';
        remedy := 'Give a whole URL such as https://example.com/hooks.';
    ELSIF cardinality(NEW.event_types) = 0 OR array_position(NEW.event_types, NULL) IS NOT NULL THEN
        problem := 'there must be at least one event type, and none of them null';
        remedy := 'Use ''{*}'' for all events.';
    ELSIF jsonb_typeof(NEW.headers) <> 'object' THEN
        problem := 'the headers must be a JSON object';
        remedy := 'For example headers => ''{"Authorization": "Bearer .."}''.';
    ELSIF jsonb_typeof(NEW.metadata) <> 'object' THEN
        problem := 'the metadata must be a JSON object';
        remedy := 'For example metadata => ''{"owner": "billing team"}''.';
    ELSIF NEW.max_in_flight < 1 THEN
        problem := 'max_in_flight must be positive';
        remedy := 'Use webhook.endpoint.paused_at to stop an endpoint; leave max_in_flight null for the default.';
    ELSIF NEW.rate_limit NOT BETWEEN 0.001 AND 1000000 THEN
        problem := 'rate_limit must be between 0.001 and 1000000 a second';
        remedy := 'Use webhook.endpoint.paused_at to stop an endpoint; leave rate_limit null for none.';
    END IF;

    IF problem IS NULL THEN
        SELECT pattern INTO bad FROM unnest(NEW.event_types) AS pattern
        WHERE pattern !~ '^([*]|!?[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*([.][*])?)$' OR length(ltrim(pattern, '!')) > 200 LIMIT 1;
        IF FOUND THEN
            problem := format('"%s" is not an event type pattern', bad);
            remedy := 'Patterns are like order.created, order.* (a star as the last part) or * alone; !order.draft leaves out what '
                      'another one has let in.';
        ELSIF '!' = ALL (SELECT left(pattern, 1) FROM unnest(NEW.event_types) AS pattern) THEN
            problem := 'the event types only leave out';
            remedy := 'Say what is wanted too, such as {*,!order.draft}.';
        END IF;
    END IF;

    -- Only a new filter is checked, like headers and templates below: an old value must not keep the worker, or a person, from
    -- stopping its endpoint.
    IF problem IS NULL AND NEW.filter::text IS DISTINCT FROM OLD.filter::text THEN
        problem := webhook.filter_problem(NEW.filter);
        remedy := CASE WHEN problem ~ 'pattern' THEN
            'Patterns may repeat characters, classes and groups without repetitions, at most 100 times, and alternate. '
            'Where it is enough, compare with == or starts with.'
        ELSE
            'A filter is a condition on {"type": .., "data": ..}, such as $.data.total > 100 or exists($.data.items[*] ? (@.price > 10)).'
        END;
    END IF;

    IF problem IS NULL THEN
        -- Values are credentials: the message shows only the name of a bad header.
        SELECT h.key INTO bad FROM jsonb_each(NEW.headers) AS h
        WHERE h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$'
           OR jsonb_typeof(h.value) <> 'string' OR h.value #>> '{}' !~ '^[ -~]*$'
           OR lower(h.key) IN ('host', 'content-length', 'content-type', 'transfer-encoding', 'connection', 'expect',
                               'user-agent', 'x-webhook-signature', 'x-webhook-retry')
           OR lower(h.key) LIKE 'webhook-%' LIMIT 1;
        IF FOUND THEN
            problem := format('header "%s" is reserved or not valid', left(bad, 100));
            remedy := 'Names are tokens, values are printable ASCII strings; the headers of HTTP itself and of the signature are set for you.';
        END IF;
    END IF;

    -- Many receivers refuse larger headers, with an error that does not name the cause.
    IF problem IS NULL AND NEW.headers IS DISTINCT FROM OLD.headers THEN
        problem := webhook.header_size_problem(NEW.headers);
        remedy := 'All headers together have at most 50 names, 16 kB and 8 signatures, a value 8 kB. '
                  'Put what is larger into the body, with a template.';
    END IF;

    IF problem IS NULL AND NEW.headers IS DISTINCT FROM OLD.headers THEN
        SELECT t.problem, t.remedy INTO problem, remedy FROM webhook.header_template_problem(NEW.headers) t;
    END IF;

    IF problem IS NULL AND NEW.template IS DISTINCT FROM OLD.template THEN
        SELECT t.problem, t.remedy INTO problem, remedy FROM webhook.template_problem(NEW.template::text) t;
    END IF;

    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'endpoint is not valid' USING ERRCODE = 'invalid_parameter_value', DETAIL = problem, HINT = remedy;
    END IF;

    -- On INSERT webhook_set_endpoint() checks these: a restore may bring endpoints before policies.
    IF TG_OP = 'UPDATE' AND NEW.policy <> OLD.policy THEN
        PERFORM webhook.require_policy(NEW.policy);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.url <> OLD.url THEN
        PERFORM webhook.require_permitted_url(NEW.url);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE EXCEPTION 'the id of an endpoint cannot be changed' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Deliveries refer to it; give the endpoint another name instead.';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER check_endpoint BEFORE INSERT OR UPDATE ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.check_endpoint();

CREATE OR REPLACE FUNCTION webhook.remember_removed_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO webhook.removed_endpoint (id, tenant, name) VALUES (OLD.id, OLD.tenant, OLD.name);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER remember_removed_endpoint AFTER DELETE ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.remember_removed_endpoint();

-- An INSERT with the id of a removed endpoint takes the removal back: the deliveries with that id are its own. The trigger
-- fires ALWAYS, or deliveries for an endpoint that replication or a restore brings back would be cancelled.
CREATE OR REPLACE FUNCTION webhook.forget_removed_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM webhook.removed_endpoint r WHERE r.id = NEW.id;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER forget_removed_endpoint AFTER INSERT ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.forget_removed_endpoint();
ALTER TABLE webhook.endpoint ENABLE ALWAYS TRIGGER forget_removed_endpoint;

CREATE OR REPLACE FUNCTION webhook.wake_for_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.wake_endpoint(-OLD.id, now());
    RETURN NULL;
END $$;

-- The worker looks at an endpoint at once after it was resumed, adopted or given other limits, and withdraws the requests that
-- wait for an endpoint that was removed.
CREATE OR REPLACE TRIGGER wake AFTER UPDATE OR DELETE ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.wake_for_endpoint();

CREATE OR REPLACE FUNCTION webhook.require_endpoint(address text) RETURNS int
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_id int := (SELECT a.id FROM webhook.endpoint_at(address) a);
BEGIN
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', address USING ERRCODE = 'undefined_object',
            HINT = coalesce(
                CASE WHEN webhook.address_name(address) = '*'
                     THEN 'This function takes one endpoint; webhook_pause() and webhook_resume() take several.' END,
                webhook.similar_addresses(address),
                'SELECT endpoint FROM webhook.endpoint_status lists them; webhook_set_endpoint() makes one.');
    END IF;
    RETURN found_id;
END $$;

-- The addresses that are close to one that does not exist, for a HINT; null if none is.
CREATE OR REPLACE FUNCTION webhook.similar_addresses(address text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.did_you_mean(address, ARRAY(SELECT webhook.address(e.tenant, e.name) FROM webhook.endpoint e));

-- The endpoints of an address that may name several, in the order of their ids: two sessions that lock them in this order
-- never wait for each other.
CREATE OR REPLACE FUNCTION webhook.addressed_endpoints(address text) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_tenant text := webhook.address_tenant(address);
    found_ids int[];
BEGIN
    IF address IS NULL THEN
        RAISE EXCEPTION 'endpoint must not be null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'Name an endpoint; ''tenant/*'' stands for those of a tenant and ''*'' for every one.';
    ELSIF address = '*' THEN
        RETURN ARRAY(SELECT e.id FROM webhook.endpoint e ORDER BY e.id);
    ELSIF webhook.address_name(address) <> '*' THEN
        RETURN ARRAY[webhook.require_endpoint(address)];
    END IF;
    found_ids := ARRAY(SELECT e.id FROM webhook.endpoint e WHERE e.tenant = of_tenant ORDER BY e.id);
    IF cardinality(found_ids) = 0 THEN
        RAISE EXCEPTION 'tenant "%" has no endpoint', of_tenant USING ERRCODE = 'undefined_object',
            HINT = coalesce(
                webhook.did_you_mean(of_tenant, ARRAY(SELECT e.tenant FROM webhook.endpoint e
                                                      WHERE e.tenant IS NOT NULL GROUP BY e.tenant)),
                'SELECT endpoint FROM webhook.endpoint_status lists them; ''*'' stands for every one.');
    END IF;
    RETURN found_ids;
END $$;

-- Creates an endpoint, or changes one: null keeps its value, and a new endpoint begins with the table's defaults. `changed`
-- lists the columns that it changed. An endpoint that has all of these values already is neither written nor locked: a
-- migration may run any number of times. If somebody changes the row between the look and the UPDATE, the UPDATE waits, finds
-- another version, and this function looks at the row again.
CREATE OR REPLACE FUNCTION webhook.set_endpoint(
    endpoint text, url text, event_types text[], policy text, given_secret text, headers jsonb, format text,
    template jsonb, filter jsonpath, max_in_flight int, rate_limit numeric, metadata jsonb, hmac_secret text,
    OUT id int, OUT secret text, OUT changed text[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    is_new boolean := false;
    current record;
    old_row webhook.endpoint;
    new_row webhook.endpoint;
BEGIN
    LOOP
        SELECT e.xmin AS version, e AS endpoint INTO current FROM webhook.endpoint e
        WHERE e.id = (SELECT a.id FROM webhook.endpoint_at(endpoint) a);
        IF NOT FOUND THEN
            IF set_endpoint.url IS NULL THEN
                RAISE EXCEPTION 'endpoint "%" does not exist, and a new one needs a url', endpoint
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = concat_ws(' ', webhook.similar_addresses(endpoint),
                                           'Give the url to create it: url => ''https://example.com/hooks''.');
            END IF;
            INSERT INTO webhook.endpoint (tenant, name, url)
            VALUES (webhook.address_tenant(endpoint), webhook.address_name(endpoint), set_endpoint.url)
            ON CONFLICT (tenant, name) DO NOTHING;
            IF FOUND THEN
                is_new := true;
                PERFORM webhook.require_permitted_url(set_endpoint.url);
            END IF;
            CONTINUE;
        END IF;

        old_row := current.endpoint;
        new_row := old_row;
        new_row.url := coalesce(set_endpoint.url, old_row.url);
        new_row.event_types := coalesce(set_endpoint.event_types, old_row.event_types);
        new_row.policy := coalesce(set_endpoint.policy, old_row.policy);
        new_row.headers := coalesce(set_endpoint.headers, old_row.headers);
        new_row.format := coalesce(set_endpoint.format, old_row.format);
        -- The template belongs to its format.
        new_row.template := coalesce(set_endpoint.template,
                                     CASE WHEN new_row.format = 'template' THEN old_row.template END);
        new_row.filter := coalesce(set_endpoint.filter, old_row.filter);
        new_row.max_in_flight := coalesce(set_endpoint.max_in_flight, old_row.max_in_flight);
        new_row.rate_limit := coalesce(set_endpoint.rate_limit, old_row.rate_limit);
        new_row.metadata := coalesce(set_endpoint.metadata, old_row.metadata);
        changed := ARRAY(
            SELECT c.name
            FROM unnest('{url, event_types, policy, headers, format, template, filter, max_in_flight, rate_limit,
                          metadata}'::text[]) WITH ORDINALITY AS c (name, ordinal)
            WHERE to_jsonb(new_row) -> c.name <> to_jsonb(old_row) -> c.name
            ORDER BY c.ordinal);
        EXIT WHEN cardinality(changed) = 0;
        UPDATE webhook.endpoint e
        SET url = new_row.url, event_types = new_row.event_types, policy = new_row.policy,
            headers = new_row.headers, format = new_row.format, template = new_row.template,
            filter = new_row.filter, max_in_flight = new_row.max_in_flight, rate_limit = new_row.rate_limit,
            metadata = new_row.metadata
        WHERE e.id = old_row.id AND e.xmin = current.version;
        EXIT WHEN FOUND;
    END LOOP;

    id := old_row.id;
    IF is_new THEN
        changed := '{created}';
        IF given_secret IS NULL THEN
            secret := webhook.new_secret();
        END IF;
        INSERT INTO webhook.secret (endpoint_id, secret)
        VALUES (old_row.id, coalesce(given_secret, set_endpoint.secret));
    ELSIF NOT webhook.has_secret(old_row.id, given_secret) THEN
        PERFORM webhook.rotate_secret(endpoint, interval '24 hours', given_secret);
        changed := changed || text 'secret';
    END IF;
    IF NOT webhook.has_secret(old_row.id, 'hmac_' || hmac_secret) THEN
        PERFORM webhook.rotate_hmac_secret(endpoint, interval '24 hours', hmac_secret);
        IF NOT is_new THEN
            changed := changed || text 'hmac_secret';
        END IF;
    ELSIF webhook.has_signatures(new_row.headers) THEN
        PERFORM webhook.hmac_secrets(old_row.id);
    END IF;
END $$;

-- Removes the endpoint and ends its waiting deliveries: cancelled, or failed into the dead-letter table. This call ends one
-- page of them, and the worker the rest, page after page (45_recovery.sql): a long queue must not be one long transaction.
CREATE OR REPLACE FUNCTION webhook.remove_endpoint(endpoint text, pending text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed_id int := webhook.require_endpoint(endpoint);
BEGIN
    IF (pending IN ('cancel', 'fail')) IS NOT TRUE THEN
        RAISE EXCEPTION 'pending cannot be "%"', pending USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''cancel'' to cancel its queued deliveries, ''fail'' to keep them in webhook.dead_letter.';
    END IF;
    DELETE FROM webhook.endpoint e WHERE e.id = removed_id;
    DELETE FROM webhook.secret s WHERE s.endpoint_id = removed_id;
    DELETE FROM webhook.breaker b WHERE b.endpoint_id = removed_id;
    UPDATE webhook.removed_endpoint r SET pending = remove_endpoint.pending WHERE r.id = removed_id;
    PERFORM webhook.end_orphans(removed_id - 1, 1000);
END $$;
-- Signing secrets and keys: how they are made, checked and rotated.
--
-- A receiver shares a secret (whsec_), and of a key (whsk_) it has only the public half (whpk_). A receiver of another sender
-- shares a text (stored as hmac_ and the text), which signs in templates of headers. All are rows of webhook.secret: an
-- endpoint may have any of them, and each kind is rotated by itself.

-- The message never contains the key.
CREATE OR REPLACE FUNCTION webhook.require_private_key(key text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (key ~ '^whsk_[A-Za-z0-9+/]{86}==$' AND webhook.is_private_key(key)) IS NOT TRUE THEN
        RAISE EXCEPTION 'private key is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A private key is whsk_ followed by 64 bytes in base64: the seed of an ed25519 key, and its public key.',
            HINT = 'Leave it out, and the extension makes one.';
    END IF;
END $$;

-- Checks a secret of another sender. The message never contains the secret.
CREATE OR REPLACE FUNCTION webhook.require_hmac_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (octet_length(secret) BETWEEN 8 AND 256 AND secret !~ E'[\\u0001-\\u001f\\u007f-\\u009f]') IS NOT TRUE THEN
        RAISE EXCEPTION 'HMAC secret is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'An HMAC secret is a text of 8 to 256 bytes without control characters.',
            HINT = 'Leave it out, and one is made for you.';
    END IF;
END $$;

-- The message never contains the secret.
CREATE OR REPLACE FUNCTION webhook.require_secret(secret text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF starts_with(secret, 'whsk_') THEN
        PERFORM webhook.require_private_key(secret);
    ELSIF starts_with(secret, 'hmac_') THEN
        PERFORM webhook.require_hmac_secret(substr(secret, 6));
    ELSIF (secret ~ '^whsec_([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$'
        AND octet_length(decode(substr(secret, 7), 'base64')) BETWEEN 24 AND 64) IS NOT TRUE THEN
        RAISE EXCEPTION 'signing secret is not valid' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A secret is whsec_ followed by 24 to 64 bytes in base64; a private key is whsk_ followed by 64.',
            HINT = 'Leave it out, and the extension makes one.';
    END IF;
END $$;

-- The key of a secret's HMAC, in base64; null for a private key. It decodes nothing: a secret that got past the checks must
-- not raise an error here, since the sender asks for the secrets of many endpoints at once.
CREATE OR REPLACE FUNCTION webhook.hmac_key(secret text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    RETURN CASE left(secret, 5) WHEN 'whsec' THEN substr(secret, 7)
                                WHEN 'hmac_' THEN translate(encode(convert_to(substr(secret, 6), 'UTF8'), 'base64'), E'\n', '') END;

-- This refuses a value before the table does, whose messages would show the secret. A header carries a signature by each
-- secret, and some receivers limit the length of a header.
CREATE OR REPLACE FUNCTION webhook.check_secret() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most_secrets CONSTANT int := 10;
BEGIN
    IF num_nulls(NEW.endpoint_id, NEW.created_at) > 0 THEN
        RAISE EXCEPTION 'endpoint_id and created_at of a secret must not be null' USING ERRCODE = 'not_null_violation',
            HINT = 'webhook_rotate_secret() gives an endpoint a new secret.';
    END IF;
    PERFORM webhook.require_secret(NEW.secret);
    IF TG_OP = 'UPDATE' AND (NEW.endpoint_id, NEW.secret) = (OLD.endpoint_id, OLD.secret) THEN
        RETURN NEW;
    ELSIF EXISTS (SELECT FROM webhook.secret s WHERE s.endpoint_id = NEW.endpoint_id AND s.secret = NEW.secret) THEN
        RAISE EXCEPTION 'the endpoint has this secret already' USING ERRCODE = 'unique_violation',
            HINT = 'webhook_rotate_secret() makes it the newest again.';
    ELSIF EXISTS (SELECT FROM webhook.secret s WHERE s.endpoint_id = NEW.endpoint_id
                  AND webhook.hmac_key(s.secret) = webhook.hmac_key(NEW.secret)) THEN
        RAISE EXCEPTION 'the endpoint signs with this secret already' USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'A signature of the body alone must not pass for one of Standard Webhooks, so both have secrets of their own.',
            HINT = 'Leave it out, and one is made for you.';
    ELSIF (SELECT count(*) >= most_secrets FROM webhook.secret s
           WHERE s.endpoint_id = NEW.endpoint_id AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
             AND starts_with(s.secret, 'hmac_') = starts_with(NEW.secret, 'hmac_')) THEN
        RAISE EXCEPTION 'the endpoint has % secrets already', most_secrets USING ERRCODE = 'program_limit_exceeded',
            DETAIL = 'Requests are signed with each of them until it expires.',
            HINT = 'Wait until one expires, or end them all: webhook_rotate_secret(.., overlap => ''0 s'').';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER check_secret BEFORE INSERT OR UPDATE ON webhook.secret
    FOR EACH ROW EXECUTE FUNCTION webhook.check_secret();

-- The newest secret: requests are signed with it for longest.
CREATE OR REPLACE FUNCTION webhook.newest_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT s.secret FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'whsec_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);

CREATE OR REPLACE FUNCTION webhook.newest_hmac_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT substr(s.secret, 6) FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'hmac_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);

-- Whether requests are signed with this secret; null for null.
CREATE OR REPLACE FUNCTION webhook.has_secret(endpoint_id int, secret text) RETURNS boolean
    LANGUAGE sql STABLE STRICT
    RETURN EXISTS (SELECT FROM webhook.secret s
                   WHERE s.endpoint_id = has_secret.endpoint_id AND s.secret = has_secret.secret
                     AND (s.expires_at IS NULL OR s.expires_at > now()));

CREATE OR REPLACE FUNCTION webhook.public_half(key text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    RETURN 'whpk_' || encode(substr(decode(substr(key, 6), 'base64'), 33), 'base64');

-- The public key of the newest private key; null if there is none.
CREATE OR REPLACE FUNCTION webhook.newest_public_key(endpoint text) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT webhook.public_half(s.secret) FROM webhook.secret s
            WHERE s.endpoint_id = webhook.require_endpoint(endpoint) AND starts_with(s.secret, 'whsk_')
              AND (s.expires_at IS NULL OR s.expires_at > now())
            ORDER BY s.created_at DESC LIMIT 1);
END $$;

-- Makes a secret when an endpoint first needs one: it was made without, or its secrets have all expired.
CREATE OR REPLACE FUNCTION webhook.first_secret(endpoint_id int) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made text := webhook.new_secret();
BEGIN
    INSERT INTO webhook.secret (endpoint_id, secret) VALUES (first_secret.endpoint_id, made);
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION webhook.new_hmac_secret() RETURNS text
    LANGUAGE sql
    RETURN encode(decode(substr(webhook.new_secret(), 7), 'base64'), 'hex');

-- The valid secrets, newest first. If there is none, it makes one.
CREATE OR REPLACE FUNCTION webhook.hmac_secrets(endpoint_id int) RETURNS text[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    valid text[] := ARRAY(SELECT substr(s.secret, 6) FROM webhook.secret s
                          WHERE s.endpoint_id = hmac_secrets.endpoint_id AND starts_with(s.secret, 'hmac_')
                            AND (s.expires_at IS NULL OR s.expires_at > now())
                          ORDER BY s.created_at DESC);
BEGIN
    IF cardinality(valid) = 0 THEN
        valid := ARRAY[webhook.new_hmac_secret()];
        INSERT INTO webhook.secret (endpoint_id, secret) VALUES (hmac_secrets.endpoint_id, 'hmac_' || valid[1]);
    END IF;
    RETURN valid;
END $$;

-- Adds a new secret, made here unless the caller gives one. Until the overlap has passed, requests are signed with the old one
-- too, so that the receiver may change to the new one at any moment of it. A key replaces keys, and leaves secrets as they
-- are.
CREATE OR REPLACE FUNCTION webhook.rotate_secret(endpoint text, overlap interval, secret text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    rotated_id int := webhook.require_endpoint(rotate_secret.endpoint);
    new_secret text := coalesce(rotate_secret.secret, webhook.new_secret());
BEGIN
    IF (overlap >= interval '0' AND overlap <= interval '1000 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'overlap must be between 0 and 1000 days' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''0 s'' to revoke the old secret immediately.';
    END IF;
    -- Two sessions that rotate at the same time take turns, or both secrets would be the newest.
    PERFORM FROM webhook.endpoint e WHERE e.id = rotated_id FOR UPDATE;
    DELETE FROM webhook.secret s WHERE s.endpoint_id = rotated_id AND s.expires_at <= now();
    UPDATE webhook.secret s SET expires_at = least(s.expires_at, clock_timestamp() + overlap)
    WHERE s.endpoint_id = rotated_id AND left(s.secret, 5) = left(new_secret, 5);
    UPDATE webhook.secret s SET expires_at = NULL, created_at = clock_timestamp()
    WHERE s.endpoint_id = rotated_id AND s.secret = new_secret;
    IF NOT FOUND THEN
        INSERT INTO webhook.secret (endpoint_id, secret, created_at) VALUES (rotated_id, new_secret, clock_timestamp());
    END IF;
    RETURN new_secret;
END $$;

-- Returns the public key: only webhook.secret shows the private one.
CREATE OR REPLACE FUNCTION webhook.rotate_key(endpoint text, overlap interval, key text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_key CONSTANT text := coalesce(key, webhook.new_private_key());
BEGIN
    PERFORM webhook.require_private_key(new_key);
    PERFORM webhook.rotate_secret(endpoint, overlap, new_key);
    RETURN webhook.public_half(new_key);
END $$;

-- Returns the text itself, as the receiver has it.
CREATE OR REPLACE FUNCTION webhook.rotate_hmac_secret(endpoint text, overlap interval, secret text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_secret CONSTANT text := coalesce(secret, webhook.new_hmac_secret());
BEGIN
    PERFORM webhook.rotate_secret(endpoint, overlap, 'hmac_' || new_secret);
    RETURN new_secret;
END $$;
-- Matching: which endpoints want an event, by its tenant, its type and their filters.
--
-- One lookup in one index finds them, whatever the number of endpoints; exclusions and filters are then applied to those few.
-- A session remembers the answer for each type and tenant until an endpoint or a policy changes.

-- The index keys of an endpoint: one for each pattern, with its tenant in front. Exclusions have no key.
CREATE OR REPLACE FUNCTION webhook.subscription_keys(tenant text, event_types text[]) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT array_agg(coalesce(tenant, '') || ' ' || pattern) FROM unnest(event_types) AS pattern WHERE pattern NOT LIKE '!%');

CREATE INDEX IF NOT EXISTS endpoint_subscription ON webhook.endpoint
    USING gin (webhook.subscription_keys(tenant, event_types)) WITH (fastupdate = off);

-- The keys of all patterns that match an event: the type itself, `a.*` for each prefix, and `*`, for the tenant and for
-- endpoints without one; but `*` does not match the extension's own events, webhook.*. The array also has the exclusions that
-- apply to the event, as people write them; no key of an endpoint looks like one, since every key has a space.
CREATE OR REPLACE FUNCTION webhook.matching_keys(tenant text, event_type text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    keys text[] := ARRAY[' ' || event_type, '!' || event_type, CASE WHEN event_type NOT LIKE 'webhook.%' THEN ' *' END];
    prefix text := event_type;
BEGIN
    WHILE strpos(prefix, '.') > 0 LOOP
        prefix := left(prefix, -strpos(reverse(prefix), '.'));
        keys := keys || ARRAY[' ' || prefix || '.*', '!' || prefix || '.*'];
    END LOOP;
    IF tenant IS NOT NULL THEN
        keys := keys || ARRAY(SELECT tenant || key FROM unnest(keys) AS key WHERE key LIKE ' %');
    END IF;
    RETURN keys;
END $$;

-- The endpoints that are subscribed under these keys; a filter may still keep the event from them. It has no SET, so that the
-- planner inlines it. An endpoint that a restore brings before its policy has max_attempts of the default policy.
CREATE OR REPLACE FUNCTION webhook.subscribers(keys text[]) RETURNS TABLE (endpoint_id int, max_attempts int, filter jsonpath)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT e.id, coalesce(p.max_attempts, (webhook.policy_of('standard')).max_attempts), e.filter
        FROM webhook.endpoint e
        LEFT JOIN webhook.policy p ON p.name = e.policy
        WHERE webhook.subscription_keys(e.tenant, e.event_types) && keys AND NOT e.event_types && keys;
    END;

-- The same for one type and tenant as {endpoint_id, max_attempts, ..}; max_attempts is 0 if the endpoint has a filter. The
-- function is VOLATILE to have a snapshot of its own, since the session remembers the answer. A plan made with few endpoints
-- must serve many.
CREATE OR REPLACE FUNCTION webhook.routes(tenant text, event_type text) RETURNS int[]
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    known int[] := webhook.recall_routes(tenant, event_type);
BEGIN
    IF known IS NULL THEN
        known := coalesce((SELECT array_agg(r.number ORDER BY s.endpoint_id, r.ordinal)
                           FROM webhook.subscribers(webhook.matching_keys(tenant, event_type)) s
                           CROSS JOIN LATERAL (VALUES (1, s.endpoint_id), (2, CASE WHEN s.filter IS NULL THEN s.max_attempts ELSE 0 END))
                               AS r (ordinal, number)), '{}');
        PERFORM webhook.remember_routes(tenant, event_type, known);
    END IF;
    RETURN known;
END $$;

CREATE OR REPLACE FUNCTION webhook.routes_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.forget_routes();
    RETURN NULL;
END $$;

-- The trigger fires ALWAYS and for each row, because logical replication fires no others. TRUNCATE invalidates the table by
-- itself.
CREATE OR REPLACE TRIGGER routes_changed AFTER INSERT OR DELETE OR UPDATE OF id, tenant, event_types, filter, policy ON webhook.endpoint
    FOR EACH ROW EXECUTE FUNCTION webhook.routes_changed();
ALTER TABLE webhook.endpoint ENABLE ALWAYS TRIGGER routes_changed;
CREATE OR REPLACE TRIGGER routes_changed AFTER INSERT OR DELETE OR UPDATE ON webhook.policy
    FOR EACH ROW EXECUTE FUNCTION webhook.routes_changed();
ALTER TABLE webhook.policy ENABLE ALWAYS TRIGGER routes_changed;

CREATE OR REPLACE FUNCTION webhook.filtered_document(event_type text, payload jsonb) RETURNS jsonb
    LANGUAGE sql STABLE
    RETURN jsonb_build_object('type', event_type, 'data', payload);

-- A filter that fails, say by an invalid date, lets nothing pass and must not cost the emitter its transaction. No
-- subtransaction catches errors: a silent jsonpath raises only those that webhook.filter_problem() refuses, and those that any
-- statement may meet: a cancellation, and the limits of memory, of the stack and of a jsonb's size. The time zone is UTC, so
-- that the emitter's session does not decide whether an event passes.
CREATE OR REPLACE FUNCTION webhook.passes(filter jsonpath, event_type text, payload jsonb) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
BEGIN
    RETURN coalesce(jsonb_path_match_tz(webhook.filtered_document(event_type, payload), filter, '{}', true), false);
END $$;

-- The problem of a filter; null if it has none.
CREATE OR REPLACE FUNCTION webhook.filter_problem(filter jsonpath) RETURNS text
    LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answers text[];
    problem text := webhook.pattern_problem(filter::text);
BEGIN
    -- A filter with a problem is not tried.
    IF problem IS NOT NULL THEN
        RETURN problem;
    END IF;
    -- The text of a jsonpath has every name in quotes, so a variable is left as $"".
    IF strpos(regexp_replace(filter::text, E'"([^"\\\\]|\\\\.)*"', '""', 'g'), '$""') > 0 THEN
        RETURN 'the filter has a variable, and there are none';
    END IF;
    -- A condition is true, false or unknown whatever it is applied to; any other expression finds nothing here.
    answers := ARRAY(SELECT jsonb_typeof(answer) FROM jsonb_path_query_tz('{}', filter, '{}', true) AS answer);
    IF answers NOT IN (ARRAY['boolean'], ARRAY['null']) THEN
        RETURN 'the filter is not a condition';
    END IF;
    -- The server reads the template of datetime() only when there is a string to parse, and raises its errors even in silent
    -- mode. The pattern takes other strings whole, so that nothing in them looks like a template.
    PERFORM jsonb_path_query_tz('"x"', format('$.datetime(%s)', m.part[1])::jsonpath, '{}', true)
    FROM regexp_matches(filter::text, E'[.]datetime[(]("(?:[^"\\\\]|\\\\.)*")|"(?:[^"\\\\]|\\\\.)*"', 'g') AS m (part)
    WHERE m.part[1] IS NOT NULL;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN 'the filter fails: ' || SQLERRM;
END $$;
-- Emitting: events, and one delivery of each for every endpoint that wants it, in the caller's transaction.
--
-- webhook_emit() emits one event, with two INSERTs that cost little more than two INSERTs of one's own. webhook.emit_events()
-- emits any number with the same few statements: for webhook_emit_many(), the triggers of 21_watch.sql and 51_alerts.sql.
-- Neither opens a subtransaction. Both find the endpoints that want an event by webhook.subscribers().
--
-- Paused and disabled endpoints get their deliveries too: kept back, never dropped. A delivery whose deliver_at has passed is
-- due now: it has not waited yet, neither for longer than a delivery that was emitted before it nor for longer than hold_for.

-- Invalid input changes nothing. Each rule is an expression that the planner inlines; the message of an error is made only
-- when a rule is broken.

CREATE OR REPLACE FUNCTION webhook.is_event_type(event_type text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN event_type ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' AND length(event_type) <= 200 AND event_type NOT LIKE 'webhook.%';

CREATE OR REPLACE FUNCTION webhook.refuse_event_type(event_type text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF event_type LIKE 'webhook.%' THEN
        RAISE EXCEPTION 'event type "%" is reserved', event_type USING ERRCODE = 'reserved_name',
            HINT = 'Types that begin with webhook. are the extension''s own; choose another prefix.';
    END IF;
    RAISE EXCEPTION 'event type "%" is not valid', event_type USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A type is made of letters, digits, _ and -, in parts joined by dots, such as order.created.';
END $$;

CREATE OR REPLACE FUNCTION webhook.is_tenant(tenant text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN tenant ~ '^[^[:cntrl:][:space:]/]{1,200}$' AND tenant <> '*';

CREATE OR REPLACE FUNCTION webhook.refuse_tenant(tenant text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'tenant "%" is not valid', tenant USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A tenant has 1 to 200 characters, no /, white space or control characters, and is not *; '
               'leave it null for none.';
END $$;

CREATE OR REPLACE FUNCTION webhook.refuse_null_payload() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'payload must not be null' USING ERRCODE = 'null_value_not_allowed',
        HINT = 'Leave it out for an empty object, or pass the JSON value ''null''.';
END $$;

-- Drivers that send json reach this from webhook_emit() and webhook_emit_many() with a json payload.
CREATE OR REPLACE FUNCTION webhook.refuse_json(parameter text) RETURNS uuid
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% must be jsonb, not json', parameter USING ERRCODE = 'datatype_mismatch',
        HINT = 'Cast it to jsonb, or have the driver send jsonb: Jsonb of psycopg, JSONB of SQLAlchemy.';
END $$;

-- The table has no such CHECK: events that were emitted before this rule can be restored. The ranges are those of control
-- characters, independent of the collation of the database.
CREATE OR REPLACE FUNCTION webhook.require_key(parameter text, value text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RAISE EXCEPTION '% is not valid', parameter USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'It has control characters.',
            HINT = 'Encode binary keys, for example with encode(.., ''hex'').';
    ELSIF length(value) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION '% is not valid', parameter USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It has %s characters.', length(value)),
            HINT = 'A key has 1 to 200 characters; leave it null for none, and use a hash of what is longer.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.require_lifetime(deliver_at timestamptz, expires_at timestamptz) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF expires_at <= deliver_at THEN
        RAISE EXCEPTION 'expires_at must be after deliver_at' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'A delivery that expires before it is due is never sent; give it more time, or leave one of the two null.';
    END IF;
END $$;

-- The endpoints of these addresses; null for null, which stands for all. The HINT suggests no names: roles with level `emit`
-- may not see endpoints.
CREATE OR REPLACE FUNCTION webhook.require_endpoints(addresses text[]) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    found_ids int[];
    unknown text;
BEGIN
    IF addresses IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(addresses) = 0 OR array_position(addresses, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'endpoints must be names, at least one and none of them null' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave it null for all endpoints that want the event.';
    END IF;
    -- A scalar subquery looks each address up by the index; a join would read all endpoints.
    SELECT array_agg(w.id), min(w.address) FILTER (WHERE w.id IS NULL) INTO found_ids, unknown
    FROM (SELECT address, (SELECT a.id FROM webhook.endpoint_at(address) a) AS id
          FROM unnest(addresses) AS address OFFSET 0) w;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', unknown USING ERRCODE = 'undefined_object',
            HINT = 'Roles with level read find endpoints in webhook.endpoint_status; tenants'' are tenant/name.';
    END IF;
    RETURN found_ids;
END $$;

CREATE OR REPLACE FUNCTION webhook.refuse_size(size int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'payload is larger than webhook.max_payload' USING ERRCODE = 'program_limit_exceeded',
        DETAIL = format('It has %s bytes as text, and %s are allowed.', size, webhook.max_payload()),
        HINT = 'Send less, say a reference to the row, or raise webhook.max_payload.';
END $$;

CREATE OR REPLACE FUNCTION webhook.max_payload() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN pg_size_bytes(webhook.setting('max_payload'));

-- Returns the events that the keys stand for, in their order. A new key stands for the event in the same place of the other
-- array, a known one for an earlier event. A null has its own event; a key that is there twice stands for the event of its
-- first place.
--
-- A transaction that meets a key that another one has just taken waits for the end of that one: by then the key stands for its
-- event, or is free again. All transactions take keys in the same order, so that two with the same keys do not wait for each
-- other. A key whose window is over is free too, and belongs to the first transaction that updates it. In REPEATABLE READ a
-- transaction cannot see that, and the server raises a serialization failure. A new key is inserted without a look for it
-- first: in SERIALIZABLE, to have found it missing would conflict with every transaction that inserts beside it.
CREATE OR REPLACE FUNCTION webhook.take_keys(key_tenant text, keys text[], new_event_ids uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tenant_or_none text := coalesce(key_tenant, '');
    valid_since timestamptz := clock_timestamp() - webhook.setting('idempotency_window')::interval;
    wanted_keys text[];                     -- keys that stand for no event yet, in order, each once
    wanted_ids uuid[];
    taken text[] := '{}';                   -- keys that stand for an event
    taken_ids uuid[] := '{}';
    found_keys text[];
    found_ids uuid[];
BEGIN
    SELECT array_agg(w.key), array_agg(w.id) INTO wanted_keys, wanted_ids
    FROM (SELECT DISTINCT ON (k.key COLLATE "C") k.key, k.id
          FROM unnest(keys, new_event_ids) WITH ORDINALITY AS k (key, id, ordinal)
          WHERE k.key IS NOT NULL
          ORDER BY k.key COLLATE "C", k.ordinal) w;

    WHILE cardinality(wanted_keys) > 0 LOOP
        WITH inserted AS (
            INSERT INTO webhook.idempotency (tenant, key, event_id, created_at)
            SELECT tenant_or_none, w.key, w.id, clock_timestamp() FROM unnest(wanted_keys, wanted_ids) AS w (key, id)
            ORDER BY w.key COLLATE "C"
            ON CONFLICT DO NOTHING
            RETURNING key, event_id
        )
        SELECT array_agg(i.key), array_agg(i.event_id) INTO found_keys, found_ids FROM inserted i;
        taken := taken || found_keys;
        taken_ids := taken_ids || found_ids;

        IF cardinality(found_keys) IS DISTINCT FROM cardinality(wanted_keys) THEN
            SELECT array_agg(i.key), array_agg(i.event_id) INTO found_keys, found_ids
            FROM webhook.idempotency i
            WHERE i.tenant = tenant_or_none AND i.key = ANY (wanted_keys) AND i.key <> ALL (taken) AND i.created_at > valid_since;
            taken := taken || found_keys;
            taken_ids := taken_ids || found_ids;
        END IF;

        IF cardinality(taken) < cardinality(wanted_keys) THEN
            WITH expired AS MATERIALIZED (
                SELECT i.key FROM webhook.idempotency i
                WHERE i.tenant = tenant_or_none AND i.key = ANY (wanted_keys) AND i.key <> ALL (taken) AND i.created_at <= valid_since
                ORDER BY i.key COLLATE "C"
                FOR NO KEY UPDATE
            ), renewed AS (
                UPDATE webhook.idempotency i SET event_id = w.id, created_at = clock_timestamp()
                FROM expired x JOIN unnest(wanted_keys, wanted_ids) AS w (key, id) ON w.key = x.key
                WHERE i.tenant = tenant_or_none AND i.key = x.key
                RETURNING i.key, i.event_id
            )
            SELECT array_agg(r.key), array_agg(r.event_id) INTO found_keys, found_ids FROM renewed r;
            taken := taken || found_keys;
            taken_ids := taken_ids || found_ids;
        END IF;

        -- Another transaction has renewed or removed these keys meanwhile.
        SELECT array_agg(w.key), array_agg(w.id) INTO wanted_keys, wanted_ids
        FROM unnest(wanted_keys, wanted_ids) AS w (key, id) WHERE w.key <> ALL (taken);
    END LOOP;

    RETURN ARRAY(SELECT coalesce(t.id, k.id)
                 FROM unnest(keys, new_event_ids) WITH ORDINALITY AS k (key, id, ordinal)
                 LEFT JOIN unnest(taken, taken_ids) AS t (key, id) ON t.key = k.key
                 ORDER BY k.ordinal);
END $$;

CREATE OR REPLACE FUNCTION webhook.queue_for_some(
    event_id uuid, event_type text, payload jsonb, tenant text, only_endpoints int[], next_attempt_at timestamptz,
    wait_reason text, expires_at timestamptz, ordering_key text, coalesce_key text, emitted_at timestamptz, payload_bytes int)
    RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    queued_for int[];
BEGIN
    WITH queued AS (
        INSERT INTO webhook.delivery_queue AS q
            (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
             coalesce_key, created_at, payload_bytes)
        SELECT event_id, s.endpoint_id, event_type, s.max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
               coalesce_key, emitted_at, payload_bytes
        FROM webhook.subscribers(webhook.matching_keys(tenant, event_type)) s
        WHERE (only_endpoints IS NULL OR s.endpoint_id = ANY (only_endpoints))
          AND (s.filter IS NULL OR webhook.passes(s.filter, event_type, payload))
        RETURNING q.endpoint_id
    )
    SELECT array_agg(q.endpoint_id) INTO queued_for FROM queued q;
    RETURN queued_for IS NOT NULL AND webhook.wake(queued_for, next_attempt_at);
END $$;

CREATE OR REPLACE FUNCTION webhook.emit_checked(
    event_type text, payload jsonb, idempotency_key text, ordering_key text, coalesce_key text, deliver_at timestamptz,
    expires_at timestamptz, tenant text, endpoints text[])
    RETURNS uuid
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    new_event_id uuid := webhook.new_id();
    event_of_key uuid;
    emitted_at timestamptz := clock_timestamp();
    due_at timestamptz := greatest(nullif(deliver_at, 'infinity'), emitted_at);
    reason text := CASE WHEN deliver_at = 'infinity' THEN 'parked' ELSE 'new' END;
    size int := octet_length(payload::text);
    only_endpoints int[];
    routes int[];
    is_queued boolean := true;
BEGIN
    IF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    ELSIF payload IS NULL THEN
        PERFORM webhook.refuse_null_payload();
    ELSIF NOT webhook.is_tenant(tenant) THEN
        PERFORM webhook.refuse_tenant(tenant);
    END IF;
    PERFORM webhook.require_key('idempotency_key', idempotency_key),
            webhook.require_key('ordering_key', ordering_key),
            webhook.require_key('coalesce_key', coalesce_key),
            webhook.require_lifetime(deliver_at, expires_at);
    only_endpoints := webhook.require_endpoints(endpoints);
    IF idempotency_key IS NOT NULL THEN
        event_of_key := (webhook.take_keys(tenant, ARRAY[idempotency_key], ARRAY[new_event_id]))[1];
        IF event_of_key <> new_event_id THEN
            RETURN event_of_key;
        END IF;
    END IF;
    IF size > webhook.max_payload() THEN
        PERFORM webhook.refuse_size(size);
    END IF;

    INSERT INTO webhook.event (id, tenant, event_type, payload, payload_bytes, idempotency_key, created_at)
    VALUES (new_event_id, tenant, event_type, payload, size, idempotency_key, emitted_at);

    routes := webhook.routes(tenant, event_type);
    IF only_endpoints IS NOT NULL OR 0 = ANY (routes) THEN
        is_queued := webhook.queue_for_some(new_event_id, event_type, payload, tenant, only_endpoints, due_at, reason,
                                            expires_at, ordering_key, coalesce_key, emitted_at, size);
    ELSE
        INSERT INTO webhook.delivery_queue
            (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
             coalesce_key, created_at, payload_bytes)
        SELECT new_event_id, routes[r.n], event_type, routes[r.n + 1], due_at, reason, expires_at, ordering_key, coalesce_key,
               emitted_at, size
        FROM generate_series(1, cardinality(routes), 2) AS r (n);
        is_queued := FOUND AND webhook.wake_routes(routes, due_at);
    END IF;
    IF is_queued AND coalesce_key IS NOT NULL THEN
        PERFORM webhook.supersede(ARRAY[new_event_id]);
    END IF;
    RETURN new_event_id;
END $$;

-- Every transaction that emits runs this, so it costs little more than its two INSERTs (bench/emit_cost.sql). It has no SET,
-- since each SET costs as much as an index entry. It has few expressions, and none of them needs the executor: an INSERT would
-- check the right to call each function and operator in it anew. Without a search_path of its own, it names everything in
-- full, operators too.
--
-- It emits an event that one endpoint wants and that has no options; emit_checked() does the rest. The session remembers the
-- endpoints of a type only after that type and tenant were found valid. webhook.max_payload is never smaller than 1024 bytes.
CREATE OR REPLACE FUNCTION webhook.emit(
    event_type text, payload jsonb, idempotency_key text, ordering_key text, coalesce_key text, deliver_at timestamptz,
    expires_at timestamptz, tenant text, endpoints text[])
    RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    route pg_catalog.int8 := webhook.recall_only_route(emit.tenant, emit.event_type);
    size pg_catalog.int4 := pg_catalog.octet_length(emit.payload::pg_catalog.text);
    the_endpoint pg_catalog.int4;
    attempts pg_catalog.int4;
    new_event_id pg_catalog.uuid;
    emitted_at pg_catalog.timestamptz;
BEGIN
    IF route IS NULL OR emit.idempotency_key IS NOT NULL OR emit.ordering_key IS NOT NULL OR emit.coalesce_key IS NOT NULL
       OR emit.deliver_at IS NOT NULL OR emit.expires_at IS NOT NULL OR emit.endpoints IS NOT NULL
       OR (size OPERATOR(pg_catalog.<=) 1024 OR size OPERATOR(pg_catalog.<=) webhook.max_payload()) IS NOT TRUE THEN
        RETURN webhook.emit_checked(emit.event_type, emit.payload, emit.idempotency_key, emit.ordering_key, emit.coalesce_key,
                                    emit.deliver_at, emit.expires_at, emit.tenant, emit.endpoints);
    END IF;

    the_endpoint := (route OPERATOR(pg_catalog.>>) 32)::pg_catalog.int4;
    attempts := (route OPERATOR(pg_catalog.&) 65535)::pg_catalog.int4;
    new_event_id := webhook.new_id();
    emitted_at := pg_catalog.clock_timestamp();
    INSERT INTO webhook.event (id, tenant, event_type, payload, payload_bytes, created_at)
    VALUES (new_event_id, emit.tenant, emit.event_type, emit.payload, size, emitted_at);
    INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, created_at, payload_bytes)
    VALUES (new_event_id, the_endpoint, emit.event_type, attempts, emitted_at, emitted_at, size);
    RETURN CASE WHEN webhook.wake_endpoint(the_endpoint, emitted_at) THEN new_event_id END;
END $$;

-- Emits events that are valid but perhaps too large: one for each element of the arrays, which have the same length; the other
-- parameters hold for all. It looks the endpoints up once for each type and tenant. An array of keys may be null.
CREATE OR REPLACE FUNCTION webhook.emit_events(
    event_ids uuid[], event_types text[], payloads jsonb[], tenants text[], deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, only_endpoints int[] DEFAULT NULL, idempotency_keys text[] DEFAULT NULL,
    ordering_keys text[] DEFAULT NULL, coalesce_keys text[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    emitted_at timestamptz := clock_timestamp();
    due_at timestamptz := greatest(nullif(deliver_at, 'infinity'), emitted_at);
    sizes int[] := ARRAY(SELECT octet_length(p::text) FROM unnest(payloads) AS p);
    largest int := (SELECT max(size) FROM unnest(sizes) AS size);
    queued_for int[];
BEGIN
    -- An alert has only a few kB, none of which can be left out, and a smaller limit must not suppress it.
    IF largest > webhook.max_payload() AND (event_types[1] LIKE 'webhook.%') IS NOT TRUE THEN
        PERFORM webhook.refuse_size(largest);
    END IF;
    INSERT INTO webhook.event (id, tenant, event_type, payload, payload_bytes, idempotency_key, created_at)
    SELECT v.id, v.tenant, v.event_type, v.payload, v.size, v.idempotency_key, emitted_at
    FROM unnest(event_ids, tenants, event_types, payloads, sizes, idempotency_keys)
         AS v (id, tenant, event_type, payload, size, idempotency_key);

    WITH kind AS MATERIALIZED (
        SELECT v.event_type, coalesce(v.tenant, '') AS tenant, webhook.matching_keys(v.tenant, v.event_type) AS keys
        FROM unnest(event_types, tenants) AS v (event_type, tenant)
        GROUP BY v.event_type, v.tenant
    ), subscriber AS MATERIALIZED (
        SELECT k.event_type, k.tenant, s.endpoint_id, s.max_attempts, s.filter
        FROM kind k CROSS JOIN LATERAL webhook.subscribers(k.keys) s
        WHERE only_endpoints IS NULL OR s.endpoint_id = ANY (only_endpoints)
    ), queued AS (
        INSERT INTO webhook.delivery_queue AS q
            (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, expires_at, ordering_key,
             coalesce_key, created_at, payload_bytes)
        SELECT v.id, s.endpoint_id, v.event_type, s.max_attempts, due_at,
               CASE WHEN emit_events.deliver_at = 'infinity' THEN 'parked' ELSE 'new' END, emit_events.expires_at,
               v.ordering_key, v.coalesce_key, emitted_at, v.size
        FROM unnest(event_ids, event_types, tenants, payloads, sizes, ordering_keys, coalesce_keys)
             AS v (id, event_type, tenant, payload, size, ordering_key, coalesce_key)
        JOIN subscriber s ON s.event_type = v.event_type AND s.tenant = coalesce(v.tenant, '')
        WHERE s.filter IS NULL OR webhook.passes(s.filter, v.event_type, v.payload)
        RETURNING q.endpoint_id
    )
    SELECT array_agg(DISTINCT q.endpoint_id) INTO queued_for FROM queued q;
    IF queued_for IS NOT NULL THEN
        PERFORM webhook.wake(queued_for, due_at);
        IF coalesce_keys IS NOT NULL THEN
            -- The last event of each key supersedes; the claim passes over the others, which went to endpoints of their own.
            PERFORM webhook.supersede(ARRAY(
                SELECT (array_agg(v.id ORDER BY v.id DESC))[1]
                FROM unnest(event_ids, tenants, coalesce_keys) AS v (id, tenant, coalesce_key)
                WHERE v.coalesce_key IS NOT NULL
                GROUP BY v.tenant, v.coalesce_key));
        END IF;
    END IF;
END $$;

-- Checks the keys of many events: one for each event, valid or null; null if no event has a key.
CREATE OR REPLACE FUNCTION webhook.require_keys(parameter text, keys text[], events int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF keys IS NULL THEN
        RETURN;
    ELSIF cardinality(keys) <> events OR array_ndims(keys) > 1 THEN
        RAISE EXCEPTION '% and payloads must go together', parameter USING ERRCODE = 'array_subscript_error',
            DETAIL = format('There are %s keys and %s payloads.', cardinality(keys), events),
            HINT = 'Give one key for each payload, and null for a payload without one.';
    END IF;
    PERFORM webhook.require_key('an element of ' || parameter, k) FROM unnest(keys) AS k;
END $$;

-- Emits any number of events in one statement, and returns their ids in the same order. If one is not valid, it emits none. A
-- null array has no events: array_agg() returns null for no rows.
CREATE OR REPLACE FUNCTION webhook.emit_many(
    event_types text[], payloads jsonb[], ordering_keys text[], idempotency_keys text[], coalesce_keys text[],
    deliver_at timestamptz, expires_at timestamptz, tenant text, endpoints text[])
    RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event_ids uuid[];
    events_of_keys uuid[];
    only_endpoints int[];
    wrong_type text;
BEGIN
    event_types := coalesce(event_types, '{}');
    payloads := coalesce(payloads, '{}');
    IF cardinality(event_types) <> cardinality(payloads) THEN
        RAISE EXCEPTION 'event_types and payloads must go together' USING ERRCODE = 'array_subscript_error',
            DETAIL = format('There are %s types and %s payloads.', cardinality(event_types), cardinality(payloads)),
            HINT = 'Give one type for each payload, or a single one that is no array.';
    END IF;
    SELECT t INTO wrong_type FROM unnest(event_types) AS t WHERE webhook.is_event_type(t) IS NOT TRUE LIMIT 1;
    IF FOUND THEN
        PERFORM webhook.refuse_event_type(wrong_type);
    ELSIF array_position(payloads, NULL) IS NOT NULL THEN
        PERFORM webhook.refuse_null_payload();
    ELSIF NOT webhook.is_tenant(tenant) THEN
        PERFORM webhook.refuse_tenant(tenant);
    END IF;
    PERFORM webhook.require_lifetime(deliver_at, expires_at),
            webhook.require_keys('ordering_keys', ordering_keys, cardinality(payloads)),
            webhook.require_keys('idempotency_keys', idempotency_keys, cardinality(payloads)),
            webhook.require_keys('coalesce_keys', coalesce_keys, cardinality(payloads));
    only_endpoints := webhook.require_endpoints(endpoints);

    event_ids := ARRAY(SELECT webhook.new_id() FROM generate_series(1, cardinality(payloads)));
    events_of_keys := event_ids;
    IF idempotency_keys IS NOT NULL THEN
        events_of_keys := webhook.take_keys(tenant, idempotency_keys, event_ids);
        -- The other keys stand for earlier events.
        SELECT array_agg(v.id), array_agg(v.event_type), array_agg(v.payload), array_agg(v.ordering_key),
               array_agg(v.idempotency_key), array_agg(v.coalesce_key)
        INTO event_ids, event_types, payloads, ordering_keys, idempotency_keys, coalesce_keys
        FROM unnest(event_ids, event_types, payloads, ordering_keys, idempotency_keys, coalesce_keys, events_of_keys)
             AS v (id, event_type, payload, ordering_key, idempotency_key, coalesce_key, event_of_key)
        WHERE v.id = v.event_of_key;
    END IF;
    IF cardinality(event_ids) > 0 THEN
        PERFORM webhook.emit_events(event_ids, event_types, payloads, array_fill(tenant, ARRAY[cardinality(payloads)]),
                                    deliver_at, expires_at, only_endpoints, idempotency_keys, ordering_keys, coalesce_keys);
    END IF;
    RETURN QUERY SELECT unnest(events_of_keys);
END $$;

CREATE OR REPLACE FUNCTION webhook.emit_many(
    event_type text, payloads jsonb[], ordering_keys text[], idempotency_keys text[], coalesce_keys text[],
    deliver_at timestamptz, expires_at timestamptz, tenant text, endpoints text[])
    RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    END IF;
    RETURN QUERY SELECT webhook.emit_many(array_fill(event_type, ARRAY[coalesce(cardinality(payloads), 0)]), payloads,
                                          ordering_keys, idempotency_keys, coalesce_keys, deliver_at, expires_at, tenant,
                                          endpoints);
END $$;
-- Watching: triggers that emit the changes of a table.
--
-- webhook_watch() makes one trigger for each operation. It runs once for a statement, whatever the number of rows, and emits
-- them in batches; with a condition, which the server can only judge row by row, it runs once for each row. The triggers
-- belong to the table, are dumped and restored with it, and have all they need in their arguments: the type of the event, and
-- options as JSON. A role that writes the table needs no right of ours: webhook_trigger() makes JSON of the rows with the
-- writer's rights, and then calls the functions below with the rights of the extension's owner (src/capture.rs says how).
--
-- Without the library all triggers run for each row, with the rights of the writer, who needs the level emit
-- (sql/portable/01_native.sql).
--
-- webhook_watch() and all that it calls have the rights of the caller: it executes a condition that is the caller's text.

-- The arrays of a batch have the same length; an array of keys or tenants is null if no event has one. The trigger function
-- makes the keys of the row's values, and they are valid.
CREATE OR REPLACE FUNCTION webhook.emit_changes(
    event_type text, payloads jsonb[], tenants text[], ordering_keys text[], coalesce_keys text[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The query runs only if there are tenants: a row trigger calls this for each row.
    IF tenants IS NOT NULL THEN
        IF EXISTS (SELECT FROM unnest(tenants) AS t WHERE NOT webhook.is_tenant(t)) THEN
            -- The message leaves the value out: the writer of the table may have no right to read it.
            RAISE EXCEPTION 'the tenant of a row is not valid' USING ERRCODE = 'invalid_parameter_value',
                HINT = 'The tenant column has 1 to 200 characters, no white space and no control characters, or null for none.';
        END IF;
    END IF;
    IF cardinality(payloads) = 1 THEN
        PERFORM webhook.emit(event_type, payloads[1], NULL, ordering_keys[1], coalesce_keys[1], NULL, NULL, tenants[1], NULL);
        RETURN;
    ELSIF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    END IF;
    PERFORM webhook.emit_events(ARRAY(SELECT webhook.new_id() FROM generate_series(1, cardinality(payloads))),
                                array_fill(event_type, ARRAY[cardinality(payloads)]), payloads, tenants,
                                ordering_keys => ordering_keys, coalesce_keys => coalesce_keys);
END $$;

-- The same for on_error = warn. It halves a batch to find the events that cannot be emitted.
CREATE OR REPLACE FUNCTION webhook.emit_possible_changes(
    event_type text, payloads jsonb[], tenants text[], ordering_keys text[], coalesce_keys text[],
    INOUT lost bigint, INOUT problem text)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    half int := cardinality(payloads) / 2;
BEGIN
    PERFORM webhook.emit_changes(event_type, payloads, tenants, ordering_keys, coalesce_keys);
EXCEPTION
    WHEN transaction_rollback THEN
        RAISE;
    WHEN OTHERS THEN
        IF half = 0 THEN
            lost := lost + 1;
            problem := SQLERRM;
        ELSE
            SELECT p.lost, p.problem INTO lost, problem
            FROM webhook.emit_possible_changes(event_type, payloads[:half], tenants[:half], ordering_keys[:half],
                                               coalesce_keys[:half], lost, problem) p;
            SELECT p.lost, p.problem INTO lost, problem
            FROM webhook.emit_possible_changes(event_type, payloads[half + 1:], tenants[half + 1:], ordering_keys[half + 1:],
                                               coalesce_keys[half + 1:], lost, problem) p;
        END IF;
END $$;

-- The function is found by its membership and not by its name: the owner of the schema that the extension is in may rename it
-- and make another.
CREATE OR REPLACE FUNCTION webhook.trigger_function() RETURNS regproc
    LANGUAGE sql STABLE
    RETURN (SELECT m.routine FROM webhook.members() m WHERE m.name = 'webhook_trigger');

-- Columns that are computed when they are read: a row in a trigger has no value for them. PostgreSQL has them from 18 on.
CREATE OR REPLACE FUNCTION webhook.virtual_columns(target regclass) RETURNS text[]
    LANGUAGE sql STABLE
    RETURN ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = target AND a.attgenerated = 'v' AND NOT a.attisdropped ORDER BY a.attnum);

-- The triggers that webhook_watch() has made for the table. A partition also has copies of its table's row triggers; these
-- have a parent and do not count.
CREATE OR REPLACE FUNCTION webhook.watch_triggers(target regclass) RETURNS SETOF oid
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT t.oid FROM pg_trigger t
        WHERE t.tgrelid = target AND t.tgfoid = webhook.trigger_function() AND t.tgparentid = 0
          AND t.tgname IN ('webhook_insert', 'webhook_update', 'webhook_delete', 'webhook_truncate');
    END;

-- Refuses a relation that is no table, or that emitting writes, whole or in part.
CREATE OR REPLACE FUNCTION webhook.require_watchable(target regclass, is_by_row boolean) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    watched record;
    part record;
    whole regclass;
BEGIN
    SELECT c.relkind, n.nspname INTO watched FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    IF watched.relkind IS NULL OR watched.relkind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '"%" cannot be watched', coalesce(target::text, 'NULL') USING ERRCODE = 'wrong_object_type',
            DETAIL = CASE watched.relkind
                WHEN 'v' THEN 'It is a view, and its rows change without anybody writing it.'
                WHEN 'm' THEN 'It is a materialized view, which has no triggers.'
                WHEN 'f' THEN 'It is a foreign table, whose rows change elsewhere too and whose triggers do not see all rows of a statement.'
                ELSE 'It is not a table.' END,
            HINT = CASE watched.relkind WHEN 'v' THEN 'Watch the tables that it reads.' ELSE 'Watch a table.' END;
    ELSIF watched.nspname = 'webhook' THEN
        RAISE EXCEPTION '"%" cannot be watched', target USING ERRCODE = 'wrong_object_type',
            DETAIL = 'It is a table of the extension, and emitting writes such tables.', HINT = 'Watch a table of your own.';
    END IF;

    WITH RECURSIVE below AS (
        SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = target
        UNION
        SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.inhrelid
    )
    SELECT c.oid::regclass AS name, c.relkind INTO part FROM below JOIN pg_class c ON c.oid = below.inhrelid
    WHERE c.relkind = 'f' OR (is_by_row AND watched.relkind = 'r')
    ORDER BY c.relkind = 'f' DESC LIMIT 1;
    IF part.relkind = 'f' THEN
        RAISE EXCEPTION '"%" cannot be watched', target USING ERRCODE = 'wrong_object_type',
            DETAIL = format('"%s" is a part of it and a foreign table, whose rows a statement would not show to its triggers.', part.name),
            HINT = 'Watch the parts that are not foreign, each by itself.';
    ELSIF part.name IS NOT NULL THEN
        RAISE EXCEPTION '"%" cannot be watched %', target,
            CASE WHEN webhook.is_portable() THEN 'without the library' ELSE 'with a condition' END
            USING ERRCODE = 'wrong_object_type',
            DETAIL = format('"%s" inherits from it, and row triggers of a table do not see rows of its children.', part.name),
            HINT = 'Watch each of them by itself, with reported_as where they are to report one name.';
    END IF;

    WITH RECURSIVE above AS (
        SELECT t.tgparentid FROM pg_trigger t
        WHERE t.tgrelid = target AND t.tgparentid <> 0 AND t.tgfoid = webhook.trigger_function()
          AND t.tgname IN ('webhook_insert', 'webhook_update', 'webhook_delete')
        UNION
        SELECT t.tgparentid FROM above JOIN pg_trigger t ON t.oid = above.tgparentid
    )
    SELECT t.tgrelid INTO whole FROM above JOIN pg_trigger t ON t.oid = above.tgparentid WHERE t.tgparentid = 0 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '"%" is watched already', target USING ERRCODE = 'duplicate_object',
            DETAIL = format('It is a partition of "%s", which is watched by row triggers of every partition.', whole),
            HINT = format('SELECT webhook_unwatch(%L) ends that.', whole);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.require_watch(
    target regclass, prefix text, operations text[], changed text[], include text[], exclude text[], condition text,
    ordering_key text[], coalesce_key text[], on_error text, tenant_column text) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    columns text[] := ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped);
    parameter record;
    wrong text;
BEGIN
    IF webhook.is_event_type(prefix || '.truncated') IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(prefix || '.truncated');
    ELSIF (cardinality(operations) > 0 AND operations <@ '{insert,update,delete,truncate}') IS NOT TRUE THEN
        RAISE EXCEPTION 'operations cannot be "%"', operations USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use some of insert, update, delete and truncate.';
    ELSIF (on_error IN ('raise', 'warn')) IS NOT TRUE THEN
        RAISE EXCEPTION 'on_error cannot be "%"', on_error USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''raise'' to refuse the change of the row with the event, ''warn'' to go on without it.';
    ELSIF num_nonnulls(include, exclude) = 2 THEN
        RAISE EXCEPTION 'include and exclude are mutually exclusive' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Name the columns that are sent, or those that are not.';
    ELSIF changed IS NOT NULL AND NOT 'update' = ANY (operations) THEN
        RAISE EXCEPTION 'changed is about updates, which are not watched' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave changed null, or add update to the operations.';
    ELSIF condition IS NOT NULL AND 'truncate' = ANY (operations) THEN
        RAISE EXCEPTION 'condition is about rows, and a TRUNCATE has none' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave truncate out of the operations. A trigger by hand may emit it: '
                   'CREATE TRIGGER .. AFTER TRUNCATE .. EXECUTE FUNCTION webhook_trigger(..).';
    END IF;

    FOR parameter IN
        SELECT * FROM (VALUES ('changed', changed), ('include', include), ('exclude', exclude), ('ordering_key', ordering_key),
                              ('coalesce_key', coalesce_key),
                              ('tenant_column', CASE WHEN tenant_column IS NOT NULL THEN ARRAY[tenant_column] END)) AS p (name, named)
        WHERE p.named IS NOT NULL
    LOOP
        IF cardinality(parameter.named) = 0 OR array_position(parameter.named, NULL) IS NOT NULL THEN
            RAISE EXCEPTION '% must name at least one column, and none of them null', parameter.name USING ERRCODE = 'invalid_parameter_value',
                HINT = CASE WHEN parameter.name LIKE '%key' THEN 'Leave it null for no key.' ELSE 'Leave it null for all columns.' END;
        END IF;
        SELECT named INTO wrong FROM unnest(parameter.named) AS named WHERE named <> ALL (columns) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'column "%" of "%", named in %, does not exist', wrong, target, parameter.name USING ERRCODE = 'undefined_column',
                HINT = coalesce(webhook.did_you_mean(wrong, columns), format('Its columns are %s.', array_to_string(columns, ', ')));
        END IF;
        SELECT named INTO wrong FROM unnest(parameter.named) AS named WHERE named = ANY (webhook.virtual_columns(target)) LIMIT 1;
        IF FOUND AND parameter.name IN ('changed', 'ordering_key', 'coalesce_key', 'tenant_column') THEN
            RAISE EXCEPTION 'column "%" of "%", named in %, is generated and virtual', wrong, target, parameter.name
                USING ERRCODE = 'feature_not_supported', DETAIL = 'A trigger sees no values of such a column.',
                HINT = 'Make it STORED, or name the columns that it is computed from.';
        END IF;
    END LOOP;
END $$;

-- The schema and the table that events report, as JSON; nothing if events report the name that the table has when it fires.
-- Row triggers of a partitioned table fire for its partitions, which are to report the table's name.
CREATE OR REPLACE FUNCTION webhook.reported_name(target regclass, reported_as text, is_by_row boolean) RETURNS jsonb
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
BEGIN
    IF reported_as IS NULL THEN
        RETURN coalesce((SELECT jsonb_build_object('schema', n.nspname, 'table', c.relname)
                         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                         WHERE c.oid = target AND c.relkind = 'p' AND is_by_row), '{}');
    END IF;
    BEGIN
        parts := parse_ident(reported_as);
    EXCEPTION WHEN invalid_parameter_value THEN
        NULL;
    END;
    IF cardinality(parts) IN (1, 2) THEN
        RETURN jsonb_strip_nulls(jsonb_build_object('schema', CASE WHEN cardinality(parts) = 2 THEN parts[1] END,
                                                    'table', parts[cardinality(parts)]));
    END IF;
    RAISE EXCEPTION 'reported_as cannot be "%"', reported_as USING ERRCODE = 'invalid_parameter_value',
        HINT = 'It is the name of a table, with or without a schema, and quoted as in SQL.';
END $$;

CREATE OR REPLACE FUNCTION webhook.watch_commands(
    target regclass, prefix text, operations text[], changed text[], include text[], exclude text[], condition text,
    ordering_key text[], coalesce_key text[], on_error text, tenant_column text, reported_as text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Statement triggers need the library.
    is_by_row CONSTANT boolean := condition IS NOT NULL OR webhook.is_portable();
    options jsonb;
    table_name text;
    uncaptured text;
BEGIN
    PERFORM webhook.require_watchable(target, is_by_row);
    PERFORM webhook.require_watch(target, prefix, operations, changed, include, exclude, condition, ordering_key, coalesce_key,
                                  on_error, tenant_column);
    SELECT string_agg(format('"%s"', named), ', ') INTO uncaptured FROM unnest(webhook.virtual_columns(target)) AS named
    WHERE named = ANY (coalesce(include, ARRAY[named])) AND named <> ALL (coalesce(exclude, '{}'));
    IF uncaptured IS NOT NULL THEN
        RAISE NOTICE 'events of "%" do not show virtual generated columns: %', target, uncaptured
            USING HINT = 'A trigger sees no values of them. Make them STORED, or name them in exclude.';
    END IF;
    IF webhook.is_portable() THEN
        RAISE NOTICE 'roles that write "%" need the level emit', target
            USING DETAIL = 'Without the library the events of a change are emitted with the rights of the role that makes it.',
                  HINT = 'SELECT webhook_grant(.., ''emit'') gives it to each of them.';
    END IF;

    options := jsonb_strip_nulls(jsonb_build_object(
            'include', include, 'exclude', exclude, 'ordering_key', ordering_key, 'coalesce_key', coalesce_key,
            'tenant_column', tenant_column, 'on_error', nullif(on_error, 'raise'), 'condition', condition))
        || webhook.reported_name(target, reported_as, is_by_row);
    -- The name always has its schema: the commands run with another search_path.
    SELECT format('%I.%I', n.nspname, c.relname) INTO table_name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;

    RETURN QUERY
    WITH wanted AS (
        SELECT o.name, 'webhook_' || o.name AS trigger_name, prefix || '.' || o.outcome AS event_type,
               CASE WHEN NOT is_by_row THEN o.old_rows END AS old_rows,
               CASE WHEN NOT is_by_row THEN o.new_rows END AS new_rows,
               is_by_row AND o.name <> 'truncate' AS is_by_row,
               o.bit + (is_by_row AND o.name <> 'truncate')::int AS kind,
               (options || CASE WHEN o.name = 'update' AND changed IS NOT NULL THEN jsonb_build_object('changed', changed)
                                ELSE '{}' END)::text AS options
        FROM (VALUES ('insert', 'created', 4, NULL, 'new_rows'), ('update', 'updated', 16, 'old_rows', 'new_rows'),
                     ('delete', 'deleted', 8, 'old_rows', NULL), ('truncate', 'truncated', 32, NULL, NULL))
            AS o (name, outcome, bit, old_rows, new_rows)
        WHERE o.name = ANY (operations)
    ), present AS (
        SELECT t.* FROM webhook.watch_triggers(target) AS made JOIN pg_trigger t ON t.oid = made
    ), kept AS (
        SELECT t.tgname FROM present t JOIN wanted w ON w.trigger_name = t.tgname
        WHERE t.tgtype = w.kind AND t.tgenabled <> 'D' AND (t.tgqual IS NULL) = (condition IS NULL)
          AND (t.tgoldtable, t.tgnewtable) IS NOT DISTINCT FROM (w.old_rows::name, w.new_rows::name)
          AND t.tgargs = convert_to(w.event_type, 'UTF8') || E'\\x00' || convert_to(w.options, 'UTF8') || E'\\x00'
    ), command AS (
        SELECT 1 AS step, t.tgname::text AS name, format('DROP TRIGGER %I ON %s', t.tgname, table_name) AS text
        FROM present t WHERE t.tgname NOT IN (SELECT k.tgname FROM kept k)
        UNION ALL
        SELECT 2, w.name, concat_ws(' ',
            format('CREATE TRIGGER %I AFTER %s ON %s', w.trigger_name, w.name, table_name),
            CASE WHEN coalesce(w.old_rows, w.new_rows) IS NOT NULL THEN 'REFERENCING' END,
            'OLD TABLE AS ' || w.old_rows, 'NEW TABLE AS ' || w.new_rows,
            CASE WHEN w.is_by_row THEN 'FOR EACH ROW' ELSE 'FOR EACH STATEMENT' END,
            -- The line break ends a comment in the condition.
            CASE WHEN condition IS NOT NULL THEN format(E'WHEN (%s\n)', condition) END,
            format('EXECUTE FUNCTION %s(%L, %L)', webhook.trigger_function(), w.event_type, w.options))
        FROM wanted w WHERE w.trigger_name NOT IN (SELECT k.tgname FROM kept k)
    )
    SELECT c.text FROM command c ORDER BY c.step, c.name;
END $$;

CREATE OR REPLACE FUNCTION webhook.refuse_condition(code text, message text, detail text, hint text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    hint := concat_ws(' ', nullif(hint, ''),
        'The condition is the WHEN of a row trigger: it names columns as NEW.column for insert, OLD.column for delete, and '
        'either for update. Name the operations that it fits; for others make a trigger by hand.');
    IF detail = '' THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, HINT = hint;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, DETAIL = detail, HINT = hint;
END $$;

CREATE OR REPLACE FUNCTION webhook.watch_definitions(target regclass) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT pg_get_triggerdef(t.oid) FROM webhook.watch_triggers(target) AS made JOIN pg_trigger t ON t.oid = made
    ORDER BY array_position('{webhook_insert,webhook_update,webhook_delete}'::name[], t.tgname);
END $$;

-- Emits <prefix>.created, .updated, .deleted and .truncated from now on, in place of the triggers that it had made for this
-- table before; returns the triggers. The caller needs the right to create triggers on the table, and to execute
-- webhook_trigger(). The function has no search_path of its own: the names in a condition are the caller's. It looks up
-- nothing else.
CREATE OR REPLACE FUNCTION webhook.watch(
    target regclass, prefix text, operations text[], changed text[], include text[], exclude text[], condition text,
    ordering_key text[], coalesce_key text[], on_error text, tenant_column text, reported_as text)
    RETURNS SETOF text
    LANGUAGE plpgsql AS $$
DECLARE
    command text;
    code text;
    message text;
    detail text;
    hint text;
BEGIN
    FOR command IN
        SELECT webhook.watch_commands(target, prefix, operations, changed, include, exclude, condition, ordering_key,
                                      coalesce_key, on_error, tenant_column, reported_as)
    LOOP
        IF condition IS NULL THEN
            EXECUTE command;
            CONTINUE;
        END IF;
        BEGIN
            EXECUTE command;
        EXCEPTION
            WHEN insufficient_privilege OR duplicate_object THEN
                RAISE;
            WHEN syntax_error_or_access_rule_violation OR data_exception OR feature_not_supported THEN
                GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                                        hint = PG_EXCEPTION_HINT;
                PERFORM webhook.refuse_condition(code, message, detail, hint);
        END;
    END LOOP;
    RETURN QUERY SELECT webhook.watch_definitions(target);
END $$;

-- Returns the number of triggers that it dropped. Triggers that people made by hand stay.
CREATE OR REPLACE FUNCTION webhook.unwatch(target regclass) RETURNS int
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made name;
    dropped int := 0;
BEGIN
    FOR made IN SELECT t.tgname FROM webhook.watch_triggers(target) AS known JOIN pg_trigger t ON t.oid = known LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', made, target);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
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
-- Moves of deliveries between the leaves. Only settle() does it on its own, with its batch.
--
-- A row is deleted in one leaf and inserted into another, never moved by an UPDATE: a statement that meets such an UPDATE in
-- the same row gets a serialization error, but one that meets a DELETE just finds the row gone. The functions pass over rows
-- that are not there, return the number of rows that they moved, and lock rows in the order of their keys.

-- The CHECK of the queue. It is plpgsql and no expression, which a CHECK would parse and plan anew in every INSERT. It has no
-- SET, which costs as much, so all names are in full.
CREATE OR REPLACE FUNCTION webhook.may_be_queued(
    status text, attempts int, max_attempts int, claimed_by int, claimed_at timestamptz, completed_at timestamptz,
    wait_reason text, next_attempt_at timestamptz) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN attempts OPERATOR(pg_catalog.>=) 0 AND completed_at IS NULL AND pg_catalog.isfinite(next_attempt_at)
        AND wait_reason OPERATOR(pg_catalog.=) ANY ('{new, retry, replayed, scheduled, parked}'::pg_catalog.text[])
        AND CASE WHEN status OPERATOR(pg_catalog.=) 'PENDING'
                 THEN attempts OPERATOR(pg_catalog.<) max_attempts AND claimed_by IS NULL AND claimed_at IS NULL
                 ELSE attempts OPERATOR(pg_catalog.>=) 1 AND attempts OPERATOR(pg_catalog.<=) max_attempts
                      AND claimed_by IS NOT NULL AND claimed_at IS NOT NULL END;
END $$;

-- Moves deliveries from the queue to the history (CANCELLED) or the dead letters (FAILED), for a reason that is no outcome of
-- an attempt; last_error says the same in words. `attempts_spent` is added to the attempts of each, as under when_open =
-- 'attempt'.
CREATE OR REPLACE FUNCTION webhook.finish_queued(
    event_ids uuid[], endpoint_ids int[], new_status text, new_reason text, attempts_spent int DEFAULT 0) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    moved bigint;
BEGIN
    WITH met AS MATERIALIZED (
        SELECT q.row_id
        FROM (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        CROSS JOIN LATERAL (SELECT q.ctid AS row_id FROM webhook.delivery_queue q
                            WHERE q.event_id = m.event_id AND q.endpoint_id = m.endpoint_id LIMIT 1 FOR UPDATE) q
    ), gone AS (
        DELETE FROM webhook.delivery_queue q USING met WHERE q.ctid = met.row_id
        RETURNING q.*
    )
    INSERT INTO webhook.delivery
        (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
         ordering_key, coalesce_key, claim_seq, last_attempt_at, last_status_code, reason, last_error, duration_ms,
         created_at, completed_at)
    SELECT g.event_id, g.endpoint_id, g.event_type, new_status, g.attempts + attempts_spent, g.max_attempts, g.next_attempt_at,
           g.wait_reason, g.expires_at, g.ordering_key, g.coalesce_key, g.claim_seq + attempts_spent,
           CASE WHEN attempts_spent > 0 THEN now() ELSE g.last_attempt_at END,
           CASE WHEN attempts_spent = 0 THEN g.last_status_code END, new_reason, webhook.reason_in_words(new_reason),
           CASE WHEN attempts_spent = 0 THEN g.duration_ms END, g.created_at, now()
    FROM gone g;
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;

-- Moves deliveries from the queue to the dead letters, with an alert and in the figures, as settle() does.
CREATE OR REPLACE FUNCTION webhook.fail_queued(event_ids uuid[], endpoint_ids int[], new_reason text, attempts_spent int DEFAULT 0)
    RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    moved bigint := webhook.finish_queued(event_ids, endpoint_ids, 'FAILED', new_reason, attempts_spent);
    figures jsonb;
BEGIN
    WITH failed AS MATERIALIZED (
        SELECT d.endpoint_id, count(*) AS deliveries, (array_agg(d.event_id))[:10] AS event_ids,
               count(*) FILTER (WHERE d.attempts > 1) AS retried, sum(greatest(d.attempts - 1, 0))::bigint AS retries
        FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id)
        CROSS JOIN LATERAL (SELECT d.* FROM webhook.dead_letter d
                            WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id LIMIT 1) d
        WHERE NOT webhook.is_own(d.event_type)
        GROUP BY d.endpoint_id
    ), told AS (
        INSERT INTO webhook.alert (endpoint_id, kind, reason, error, deliveries, event_ids)
        SELECT f.endpoint_id, 'failed', new_reason, webhook.reason_in_words(new_reason), f.deliveries, f.event_ids FROM failed f
    )
    SELECT jsonb_agg(jsonb_build_object('endpoint_id', f.endpoint_id, 'failed', f.deliveries, 'retried', f.retried,
                                        'retries', f.retries))
    INTO figures FROM failed f;
    PERFORM webhook.count_figures(figures) WHERE figures IS NOT NULL;
    RETURN moved;
END $$;

-- The row of a delivery that is queued again: from the start and due now. It loses an expires_at that has passed, and the
-- coalesce_key if it was sent or cancelled: somebody wants it sent, whatever has come after it. `claim_seq` goes on, so that a
-- late outcome stays late.
CREATE OR REPLACE FUNCTION webhook.requeued(d webhook.delivery) RETURNS webhook.delivery
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF d.status IN ('SENT', 'CANCELLED') THEN
        d.coalesce_key := NULL;
    END IF;
    IF NOT webhook.has_time(d.expires_at) THEN
        d.expires_at := NULL;
    END IF;
    d.status := 'PENDING';
    d.attempts := 0;
    d.next_attempt_at := now();
    d.wait_reason := 'replayed';
    d.waits_for := NULL;
    d.claimed_at := NULL;
    d.claimed_by := NULL;
    d.last_attempt_at := NULL;
    d.last_status_code := NULL;
    d.reason := NULL;
    d.last_error := NULL;
    d.duration_ms := NULL;
    d.completed_at := NULL;
    RETURN d;
END $$;

-- Moves deliveries that ended with one of these statuses back to the queue, unless the endpoint was removed or the payload is
-- gone.
CREATE OR REPLACE FUNCTION webhook.requeue(event_ids uuid[], endpoint_ids int[], statuses text[]) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    moved bigint;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT m.event_id, m.endpoint_id
        FROM (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        CROSS JOIN LATERAL (SELECT FROM webhook.endpoint e WHERE e.id = m.endpoint_id LIMIT 1) e
        CROSS JOIN LATERAL (SELECT FROM webhook.event v WHERE v.id = m.event_id AND v.redacted_at IS NULL LIMIT 1) v
    ), failed AS (
        DELETE FROM webhook.dead_letter d USING wanted w
        WHERE 'FAILED' = ANY (statuses) AND d.event_id = w.event_id AND d.endpoint_id = w.endpoint_id
        RETURNING d::webhook.delivery AS delivery
    ), finished AS (
        DELETE FROM webhook.delivery_history d USING wanted w
        WHERE d.status = ANY (statuses) AND d.event_id = w.event_id AND d.endpoint_id = w.endpoint_id
        RETURNING d::webhook.delivery AS delivery
    )
    INSERT INTO webhook.delivery_queue
    SELECT again.*
    FROM (SELECT delivery FROM failed UNION ALL SELECT delivery FROM finished) gone
    CROSS JOIN LATERAL webhook.requeued(gone.delivery) again;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved > 0 THEN
        PERFORM webhook.wake();
    END IF;
    RETURN moved;
END $$;

-- Deletes the attempts of these deliveries, which are gone, and each older event that no delivery has any more, with all its
-- attempts. An attempt that stays, because it is locked or there are too many for one step, keeps its event, and a later step
-- finds it by the event. Returns the number of events that it deleted.
CREATE OR REPLACE FUNCTION webhook.forget(event_ids uuid[], endpoint_ids int[], emitted_before timestamptz) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    unneeded uuid[];
    forgotten int;
BEGIN
    DELETE FROM webhook.attempt
    WHERE ctid = ANY (ARRAY(
        SELECT spent.row_id FROM unnest(event_ids, endpoint_ids) AS gone (event_id, endpoint_id)
        CROSS JOIN LATERAL (
            SELECT a.ctid AS row_id FROM webhook.attempt a
            WHERE a.event_id = gone.event_id AND a.endpoint_id = gone.endpoint_id
            LIMIT 5000 FOR UPDATE SKIP LOCKED
        ) spent
        LIMIT 5000));

    unneeded := ARRAY(
        SELECT v.id FROM webhook.event v
        WHERE v.id = ANY (event_ids) AND v.created_at < emitted_before
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = v.id OFFSET 0)
        FOR UPDATE SKIP LOCKED);

    DELETE FROM webhook.attempt
    WHERE ctid = ANY (ARRAY(
        SELECT a.ctid FROM webhook.attempt a WHERE a.event_id = ANY (unneeded)
        LIMIT 5000 FOR UPDATE SKIP LOCKED));

    DELETE FROM webhook.event v
    WHERE v.id = ANY (unneeded) AND NOT EXISTS (SELECT FROM webhook.attempt a WHERE a.event_id = v.id OFFSET 0);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;
-- Order: deliveries of one endpoint with the same ordering_key go out one at a time, in the order of their emission.
--
-- The ids of events give that order: they carry the time of the emission to a quarter of a microsecond. Each endpoint and key
-- with something queued has a lane, and the lane says which event has the turn. The claim opens a lane for the first delivery
-- that is queued, takes only the delivery that has the turn, and sets the followers that it meets aside: waits_for names the
-- event that has the turn, and the due index leaves followers out. So the claim meets a follower once and not in every turn,
-- however many wait behind a failing delivery. Followers keep their own time. Retries and lost claims keep the turn. A trigger
-- passes it on when its delivery leaves the queue, whoever moves it and wherever to. Under the policy's on_blocked = wait a
-- dead letter keeps the turn, until somebody sends it again or discards it; but no delivery waits for one that was redacted
-- and cannot be sent any more.
--
-- An event of a transaction that commits late is not seen in time: it goes out when it has been committed and the turn that
-- was given meanwhile has ended. Emitters that must agree on the order take a lock of their own first, as they do by updating
-- the same row.
--
-- Nothing here waits for a row. webhook.keep_order() passes on turns that a lock or an old snapshot has kept from being passed
-- on.

-- Returns the rows among these, which the caller has locked, that may be claimed. It sets the others aside, and some
-- deliveries behind them, which the caller would meet next. If somebody has locked the lane, for example a person who has
-- cancelled or replayed its delivery and not yet committed, the next turn is not known: such rows are put off for a second, so
-- that they are not in the way of the deliveries behind them.
CREATE OR REPLACE FUNCTION webhook.set_followers_aside(row_ids tid[]) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    in_turn tid[];
BEGIN
    -- This finds rows by their ctids alone: with an order, or with the predicate of an index, the planner would rather read
    -- the whole index.
    WITH met AS MATERIALIZED (
        SELECT q.endpoint_id, q.ordering_key FROM webhook.delivery_queue q WHERE q.ctid = ANY (row_ids)
    )
    INSERT INTO webhook.lane (endpoint_id, ordering_key, event_id)
    SELECT met.endpoint_id, met.ordering_key, first.event_id
    FROM (SELECT DISTINCT m.endpoint_id, m.ordering_key FROM met m WHERE m.ordering_key IS NOT NULL) met
    CROSS JOIN LATERAL (
        SELECT q.event_id FROM webhook.delivery_queue q
        WHERE q.endpoint_id = met.endpoint_id AND q.ordering_key = met.ordering_key
        ORDER BY q.endpoint_id, q.ordering_key, q.event_id LIMIT 1
    ) first
    -- This comes first, because ON CONFLICT would wait for a lane that somebody is about to close.
    WHERE NOT EXISTS (SELECT FROM webhook.lane l
                      WHERE l.endpoint_id = met.endpoint_id AND l.ordering_key = met.ordering_key OFFSET 0)
    ON CONFLICT DO NOTHING;

    -- While the lane is locked, no session passes its turn on without seeing the followers that were set aside behind it.
    WITH met AS MATERIALIZED (
        SELECT q.ctid AS row_id, q.endpoint_id, q.ordering_key, q.event_id, lane.event_id AS turn_of,
               q.ordering_key IS NULL OR coalesce(lane.event_id = q.event_id, false) AS is_in_turn
        FROM webhook.delivery_queue q
        LEFT JOIN LATERAL (
            SELECT l.event_id FROM webhook.lane l
            WHERE l.endpoint_id = q.endpoint_id AND l.ordering_key = q.ordering_key
            LIMIT 1 FOR SHARE SKIP LOCKED
        ) lane ON true
        WHERE q.ctid = ANY (row_ids)
    ), last_met AS MATERIALIZED (
        SELECT DISTINCT ON (m.endpoint_id, m.ordering_key) m.endpoint_id, m.ordering_key, m.event_id, m.turn_of
        FROM met m WHERE NOT m.is_in_turn AND m.turn_of IS NOT NULL
        ORDER BY m.endpoint_id, m.ordering_key, m.event_id DESC
    ), behind AS MATERIALIZED (
        SELECT m.row_id, m.turn_of FROM met m WHERE NOT m.is_in_turn
        UNION ALL
        SELECT q.row_id, l.turn_of
        FROM last_met l
        CROSS JOIN LATERAL (
            SELECT q.ctid AS row_id FROM webhook.delivery_queue q
            WHERE q.endpoint_id = l.endpoint_id AND q.ordering_key = l.ordering_key AND q.event_id > l.event_id
              AND q.event_id <> l.turn_of AND q.status = 'PENDING' AND q.waits_for IS NULL AND q.next_attempt_at <= now()
            ORDER BY q.endpoint_id, q.ordering_key, q.event_id
            LIMIT 20 FOR UPDATE SKIP LOCKED
        ) q
    ), set_aside AS (
        UPDATE webhook.delivery_queue q
        SET waits_for = b.turn_of,
            next_attempt_at = CASE WHEN b.turn_of IS NULL THEN now() + interval '1 s' ELSE q.next_attempt_at END
        FROM behind b WHERE q.ctid = b.row_id
    )
    SELECT array_agg(m.row_id) INTO in_turn FROM met m WHERE m.is_in_turn;
    RETURN in_turn;
END $$;

CREATE OR REPLACE FUNCTION webhook.has_its_turn(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    turn_of uuid;
BEGIN
    IF q.ordering_key IS NULL THEN
        RETURN true;
    END IF;
    SELECT l.event_id INTO turn_of FROM webhook.lane l WHERE l.endpoint_id = q.endpoint_id AND l.ordering_key = q.ordering_key;
    IF NOT FOUND THEN
        SELECT first.event_id INTO turn_of FROM webhook.delivery_queue first
        WHERE first.endpoint_id = q.endpoint_id AND first.ordering_key = q.ordering_key
        ORDER BY first.event_id LIMIT 1;
    END IF;
    RETURN turn_of = q.event_id;
END $$;

-- Gives these followers the turn: they wait only for their time.
CREATE OR REPLACE FUNCTION webhook.call_followers(event_ids uuid[], endpoint_ids int[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    earliest timestamptz;
BEGIN
    WITH called AS (
        UPDATE webhook.delivery_queue q SET waits_for = NULL
        WHERE ctid = ANY (ARRAY(
            SELECT q.row_id FROM unnest(event_ids, endpoint_ids) AS u (event_id, endpoint_id)
            CROSS JOIN LATERAL (
                SELECT q.ctid AS row_id FROM webhook.delivery_queue q
                WHERE q.event_id = u.event_id AND q.endpoint_id = u.endpoint_id AND q.status = 'PENDING' AND q.waits_for IS NOT NULL
                LIMIT 1 FOR UPDATE SKIP LOCKED
            ) q))
        RETURNING q.next_attempt_at
    )
    SELECT min(c.next_attempt_at) INTO earliest FROM called c;
    PERFORM webhook.wake(endpoint_ids, earliest);
END $$;

-- Passes the turn to the next delivery, if there is one, when the delivery that had it has left the queue or the dead letters.
CREATE OR REPLACE FUNCTION webhook.pass_turn(of_endpoint int, of_key text, from_event uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    next_event uuid;
BEGIN
    PERFORM FROM webhook.lane l
    WHERE l.endpoint_id = of_endpoint AND l.ordering_key = of_key AND l.event_id = from_event FOR UPDATE;
    IF NOT FOUND
       OR EXISTS (SELECT FROM webhook.delivery_queue q
                  WHERE q.event_id = from_event AND q.endpoint_id = of_endpoint AND q.ordering_key = of_key)
       OR (EXISTS (SELECT FROM webhook.dead_letter d WHERE d.event_id = from_event AND d.endpoint_id = of_endpoint)
           AND EXISTS (SELECT FROM webhook.event v WHERE v.id = from_event AND v.redacted_at IS NULL)
           AND (SELECT (webhook.policy_of(e.policy)).on_blocked = 'wait' FROM webhook.endpoint e WHERE e.id = of_endpoint)) THEN
        RETURN;
    END IF;

    SELECT q.event_id INTO next_event FROM webhook.delivery_queue q
    WHERE q.endpoint_id = of_endpoint AND q.ordering_key = of_key
    ORDER BY q.endpoint_id, q.ordering_key, q.event_id LIMIT 1;
    IF FOUND THEN
        UPDATE webhook.lane l SET event_id = next_event WHERE l.endpoint_id = of_endpoint AND l.ordering_key = of_key;
        PERFORM webhook.call_followers(ARRAY[next_event], ARRAY[of_endpoint]);
    ELSE
        DELETE FROM webhook.lane l WHERE l.endpoint_id = of_endpoint AND l.ordering_key = of_key;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.pass_turn() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.pass_turn(OLD.endpoint_id, OLD.ordering_key, OLD.event_id);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER pass_turn AFTER DELETE ON webhook.delivery_queue
    FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION webhook.pass_turn();
CREATE OR REPLACE TRIGGER pass_turn AFTER DELETE ON webhook.dead_letter
    FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION webhook.pass_turn();

-- Lanes on the next page whose delivery has left the queue; null is the beginning, and the end.
CREATE OR REPLACE FUNCTION webhook.lost_turns(
    INOUT after_endpoint int, INOUT after_key text, page_size int, OUT endpoint_ids int[], OUT ordering_keys text[])
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT l.endpoint_id, l.ordering_key, l.event_id FROM webhook.lane l
        WHERE (l.endpoint_id, l.ordering_key) > (coalesce(after_endpoint, 0), coalesce(after_key, ''))
        ORDER BY l.endpoint_id, l.ordering_key LIMIT page_size
    ), last AS (
        SELECT p.endpoint_id, p.ordering_key FROM page p OFFSET page_size - 1
    )
    SELECT array_agg(p.endpoint_id), array_agg(p.ordering_key), (SELECT l.endpoint_id FROM last l), (SELECT l.ordering_key FROM last l)
    INTO endpoint_ids, ordering_keys, after_endpoint, after_key
    FROM page p
    WHERE NOT EXISTS (SELECT FROM webhook.delivery_queue q
                      WHERE q.event_id = p.event_id AND q.endpoint_id = p.endpoint_id AND q.ordering_key = p.ordering_key OFFSET 0);
END $$;

-- Followers that wait for no event, on the next page of all that have a key.
CREATE OR REPLACE FUNCTION webhook.lost_followers(
    INOUT after_endpoint int, INOUT after_key text, INOUT after_event uuid, page_size int,
    OUT event_ids uuid[], OUT endpoint_ids int[])
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT q.endpoint_id, q.ordering_key, q.event_id, q.waits_for FROM webhook.delivery_queue q
        WHERE q.ordering_key IS NOT NULL
          AND (q.endpoint_id, q.ordering_key, q.event_id)
              > (coalesce(after_endpoint, 0), coalesce(after_key, ''), coalesce(after_event, '00000000-0000-0000-0000-000000000000'))
        ORDER BY q.endpoint_id, q.ordering_key, q.event_id LIMIT page_size
    ), last AS (
        SELECT p.endpoint_id, p.ordering_key, p.event_id FROM page p OFFSET page_size - 1
    )
    SELECT array_agg(p.event_id), array_agg(p.endpoint_id),
           (SELECT l.endpoint_id FROM last l), (SELECT l.ordering_key FROM last l), (SELECT l.event_id FROM last l)
    INTO event_ids, endpoint_ids, after_endpoint, after_key, after_event
    FROM page p
    LEFT JOIN LATERAL (SELECT l.event_id FROM webhook.lane l
                       WHERE l.endpoint_id = p.endpoint_id AND l.ordering_key = p.ordering_key LIMIT 1) lane ON true
    WHERE p.waits_for IS NOT NULL AND (lane.event_id IS NULL OR lane.event_id = p.event_id);
END $$;

-- Passes on the turns of deliveries that are gone, and calls followers that wait for no event: now and then, a page of each.
-- Returns where the next pages begin; null is the beginning.
CREATE OR REPLACE FUNCTION webhook.keep_order(
    INOUT lane_endpoint int DEFAULT NULL, INOUT lane_key text DEFAULT NULL,
    INOUT follower_endpoint int DEFAULT NULL, INOUT follower_key text DEFAULT NULL,
    INOUT follower_event uuid DEFAULT NULL, page_size int DEFAULT 2000)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    turns record := webhook.lost_turns(lane_endpoint, lane_key, page_size);
    followers record;
BEGIN
    IF turns.endpoint_ids IS NOT NULL THEN
        PERFORM webhook.pass_turn(l.endpoint_id, l.ordering_key, l.event_id)
        FROM (SELECT l.endpoint_id, l.ordering_key, l.event_id
              FROM unnest(turns.endpoint_ids, turns.ordering_keys) AS lost (endpoint_id, ordering_key)
              JOIN webhook.lane l USING (endpoint_id, ordering_key)
              FOR UPDATE OF l SKIP LOCKED) l;
    END IF;
    followers := webhook.lost_followers(follower_endpoint, follower_key, follower_event, page_size);
    IF followers.event_ids IS NOT NULL THEN
        PERFORM webhook.call_followers(followers.event_ids, followers.endpoint_ids);
    END IF;

    lane_endpoint := turns.after_endpoint;
    lane_key := turns.after_key;
    follower_endpoint := followers.after_endpoint;
    follower_key := followers.after_key;
    follower_event := followers.after_event;
END $$;
-- Coalescing: of the events of a tenant with the same coalesce_key, an endpoint gets only the newest one that waits. A
-- delivery that a later event supersedes becomes CANCELLED, reason coalesced. A delivery in flight is not called back.
--
-- Emit supersedes the deliveries that it sees, and waits for no lock. In REPEATABLE READ and SERIALIZABLE it supersedes none,
-- since a change by the worker meanwhile would cost the emitter its transaction. Two transactions that emit at the same time
-- do not see each other's events, and a delivery in flight may come back for another attempt. So the claim looks once more,
-- and takes no delivery that has a newer one behind it, nor one whose newer one has been sent already: at the receiver it
-- would overwrite the newer state. A delivery that a person sends again by webhook_replay() or with an UPDATE, after it was
-- sent or cancelled, is sent all the same; it has lost its key (requeue(), manual_update()).

-- The deliveries that are older than one of these events, have its coalesce_key, and wait for an endpoint that it goes to. The
-- settings are for this statement alone: a function that it called would inherit them.
CREATE OR REPLACE FUNCTION webhook.superseded(by_events uuid[], OUT event_ids uuid[], OUT endpoint_ids int[])
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT array_agg(older.event_id), array_agg(older.endpoint_id) INTO event_ids, endpoint_ids
    FROM unnest(by_events) AS by_event (id)
    JOIN webhook.event e ON e.id = by_event.id
    JOIN webhook.delivery_queue new ON new.event_id = e.id
    CROSS JOIN LATERAL (
        SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
        WHERE q.endpoint_id = new.endpoint_id AND q.coalesce_key = new.coalesce_key AND q.event_id < new.event_id
          AND q.status = 'PENDING'
          AND (SELECT v.tenant FROM webhook.event v WHERE v.id = q.event_id) IS NOT DISTINCT FROM e.tenant
        ORDER BY q.endpoint_id, q.coalesce_key, q.event_id
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) older;
END $$;

CREATE OR REPLACE FUNCTION webhook.supersede(by_events uuid[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    older record;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN;
    END IF;
    older := webhook.superseded(by_events);
    IF older.event_ids IS NOT NULL THEN
        PERFORM webhook.finish_queued(older.event_ids, older.endpoint_ids, 'CANCELLED', 'coalesced');
    END IF;
END $$;

-- Whether a newer delivery waits, is in flight or has been sent. It has the settings of the caller, which asks for row after
-- row.
CREATE OR REPLACE FUNCTION webhook.is_superseded(q webhook.delivery_queue) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_tenant text;
BEGIN
    IF q.coalesce_key IS NULL THEN
        RETURN false;
    END IF;
    of_tenant := (SELECT v.tenant FROM webhook.event v WHERE v.id = q.event_id);
    RETURN EXISTS (SELECT FROM webhook.delivery_queue newer
                   WHERE newer.endpoint_id = q.endpoint_id AND newer.coalesce_key = q.coalesce_key AND newer.event_id > q.event_id
                     AND (SELECT v.tenant FROM webhook.event v WHERE v.id = newer.event_id) IS NOT DISTINCT FROM of_tenant)
        OR EXISTS (SELECT FROM webhook.delivery_history newer
                   WHERE newer.endpoint_id = q.endpoint_id AND newer.coalesce_key = q.coalesce_key AND newer.event_id > q.event_id
                     AND newer.status = 'SENT'
                     AND (SELECT v.tenant FROM webhook.event v WHERE v.id = newer.event_id) IS NOT DISTINCT FROM of_tenant);
END $$;

-- Returns the rows among these, which the caller has locked, that no newer delivery supersedes; it cancels the others.
CREATE OR REPLACE FUNCTION webhook.cancel_superseded(row_ids tid[]) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    superseded record;
BEGIN
    SELECT array_agg(q.ctid) AS row_ids, array_agg(q.event_id) AS event_ids, array_agg(q.endpoint_id) AS endpoint_ids
    INTO superseded
    FROM webhook.delivery_queue q
    WHERE q.ctid = ANY (row_ids) AND webhook.is_superseded(q);
    IF superseded.row_ids IS NULL THEN
        RETURN row_ids;
    END IF;
    PERFORM webhook.finish_queued(superseded.event_ids, superseded.endpoint_ids, 'CANCELLED', 'coalesced');
    RETURN ARRAY(SELECT row_id FROM unnest(row_ids) AS row_id WHERE row_id <> ALL (superseded.row_ids));
END $$;
-- Claiming: how deliveries leave the queue for the wire.
--
-- A sender knows when each endpoint has something due (webhook.agenda, webhook.due), and asks in one call, webhook.exchange(),
-- for as many deliveries as each has room for. PENDING becomes SENDING, the attempt is counted, and the row carries the
-- sender's instance and a new claim_seq. After the commit the requests go out. Nothing here waits for a row: a claim passes
-- over a row that somebody has locked and tries it again a little later.
--
-- The plans are fixed. The queue is empty when they are made, and known to be so after a vacuum, and may have a million rows
-- when they are used: a sequential scan, a sort or a join the wrong way round chosen once would stay. Hence the settings on
-- each function, the LIMITs in the LATERALs, which keep the planner from turning a join around, and plans that are generic
-- from the start.

-- A position is a time in seconds since 1970: no delivery of the endpoint that could be claimed was due before it. A sender
-- that reads the queue of an endpoint from there does not pass over the dead index entries of all that it has sent: while
-- somebody holds an old snapshot, vacuum cannot remove them. A missing position is the beginning. Positions only save time:
-- the next look at all endpoints finds a delivery that is behind one.

-- When to ask for each of these endpoints again, and what a sender needs to know of them to decide how many deliveries to ask
-- for. due_in_ms is null if nothing may be sent now: the endpoint is paused, disabled or not ours, or all its deliveries are
-- in flight. It is 0 if something is due, and a day at most. `is_guarded`: the breaker is not closed, or there is a test, so
-- that more than room decides what is claimed. `new_position` is null if the endpoint is not served, and never later than now:
-- a retry may come before a scheduled delivery. `is_well`: the endpoint has answered, in the last days, and not failed since.
CREATE OR REPLACE FUNCTION webhook.due(
    endpoint_ids int[], positions float8[] DEFAULT NULL, our_origin text DEFAULT NULL)
    RETURNS TABLE (endpoint_id int, due_in_ms bigint, new_position float8, max_in_flight int, rate_limit float8, breaker_state text,
                   is_guarded boolean, turns_away boolean, is_well boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    our_origin := coalesce(our_origin, webhook.origin());
    RETURN QUERY
    SELECT asked.id,
           ceil(greatest(0, least(86400, date_part('epoch', CASE WHEN guard.due IS NULL THEN waiting.next_attempt_at ELSE (guard.due).due_at END
                                                            - now()))) * 1000)::bigint,
           -- This takes off a microsecond, which the number may lose on its way.
           CASE WHEN ours.is_served THEN date_part('epoch', least(waiting.next_attempt_at, now()) - interval '1 us') END,
           ours.max_in_flight, ours.rate_limit::float8, coalesce((breaker.b).state, 'CLOSED'),
           guard.due IS NOT NULL, coalesce((guard.due).turns_away, false),
           coalesce((breaker.b).consecutive_failures, 0) = 0
               AND EXISTS (SELECT FROM webhook.stat t WHERE t.endpoint_id = ours.id AND t.grain = 'total' AND t.sent > 0 LIMIT 1)
    FROM unnest(endpoint_ids, positions) AS asked (id, position)
    LEFT JOIN LATERAL (
        SELECT e.id, e.max_in_flight, e.rate_limit, e.policy,
               webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, NULL) = 'ready' AS is_served
        FROM webhook.endpoint e
        WHERE e.id = asked.id AND e.origin = our_origin
        LIMIT 1
    ) ours ON true
    LEFT JOIN LATERAL (
        SELECT q.next_attempt_at FROM webhook.delivery_queue q
        WHERE q.endpoint_id = ours.id AND ours.is_served AND webhook.awaits_its_time(q)
          AND q.next_attempt_at >= coalesce(to_timestamp(asked.position), '-infinity')
        ORDER BY q.next_attempt_at, q.event_id LIMIT 1
    ) waiting ON true
    LEFT JOIN LATERAL (SELECT b FROM webhook.breaker b WHERE b.endpoint_id = ours.id LIMIT 1) breaker ON true
    -- The LIMIT makes the server check the WHERE before it calls the function.
    LEFT JOIN LATERAL (
        SELECT webhook.next_look_at_breaker(breaker.b, ours.is_served, ours.policy, waiting.next_attempt_at) AS due
        WHERE (breaker.b).state <> 'CLOSED' OR (breaker.b).retries_before IS NOT NULL OR (breaker.b).test_event_id IS NOT NULL
        LIMIT 1
    ) guard ON true;
END $$;

-- The next endpoints with something queued, in the order of their ids, about that many, and the position of each;
-- `goes_on_after` is the last of them if there may be more. It leaves out endpoints whose deliveries are all parked or wait
-- for their turn. The `later` ones have nothing that is due within a minute, and no breaker that may ask for a probe:
-- webhook.due() says no more of them.
CREATE OR REPLACE FUNCTION webhook.agenda(
    after_endpoint int, page_size int, OUT endpoint_ids int[], OUT positions float8[], OUT later_endpoint_ids int[],
    OUT later_in_ms bigint[], OUT goes_on_after int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    entries_at_a_time CONSTANT int := 7;
BEGIN
    -- This is a loose index scan: one descent of the index reads the entries of one endpoint with a backlog, or of many that
    -- have few.
    WITH RECURSIVE step AS (
        SELECT 0 AS ordinal, after_endpoint AS last_endpoint, NULL::int[] AS ids, NULL::timestamptz[] AS times
        UNION ALL
        SELECT step.ordinal + cardinality(next.ids), next.ids[cardinality(next.ids)], next.ids, next.times
        FROM step
        CROSS JOIN LATERAL (
            SELECT array_agg(first.endpoint_id) AS ids, array_agg(first.next_attempt_at) AS times
            FROM (SELECT DISTINCT ON (q.endpoint_id) q.endpoint_id, q.next_attempt_at
                  FROM (SELECT q.endpoint_id, q.next_attempt_at, q.event_id FROM webhook.delivery_queue q
                        WHERE q.endpoint_id > step.last_endpoint AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                        ORDER BY q.endpoint_id, q.next_attempt_at, q.event_id LIMIT entries_at_a_time) q
                  ORDER BY q.endpoint_id, q.next_attempt_at, q.event_id) first
        ) next
        WHERE step.ordinal < page_size AND next.ids IS NOT NULL
    ), page AS (
        SELECT found.endpoint_id, found.next_attempt_at FROM step, unnest(step.ids, step.times) AS found (endpoint_id, next_attempt_at)
    )
    SELECT array_agg(p.endpoint_id) FILTER (WHERE NOT p.has_time),
           array_agg(date_part('epoch', p.next_attempt_at)) FILTER (WHERE NOT p.has_time),
           array_agg(p.endpoint_id) FILTER (WHERE p.has_time),
           array_agg(ceil(least(86400, date_part('epoch', p.next_attempt_at - now())) * 1000)::bigint) FILTER (WHERE p.has_time),
           CASE WHEN count(*) >= page_size THEN max(p.endpoint_id) END
    INTO endpoint_ids, positions, later_endpoint_ids, later_in_ms, goes_on_after
    FROM (SELECT page.endpoint_id, page.next_attempt_at,
                 page.next_attempt_at > now() + interval '1 min'
                 AND NOT EXISTS (SELECT FROM webhook.breaker b WHERE b.endpoint_id = page.endpoint_id OFFSET 0) AS has_time
          FROM page) p;
END $$;

-- A time in the form that the body of a request has.
CREATE OR REPLACE FUNCTION webhook.wire_time(instant timestamptz) RETURNS text
    LANGUAGE sql STABLE
    RETURN to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

CREATE OR REPLACE FUNCTION webhook.payload_size(v webhook.event) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN coalesce(v.payload_bytes, octet_length(v.payload::text));

-- Returns the rows that fit, of these, which are locked and in the order in which they are due: one payload at most exceeds
-- each bound.
CREATE OR REPLACE FUNCTION webhook.within_byte_rooms(
    row_ids tid[], sizes int[], endpoint_ids int[], byte_rooms bigint[], byte_room bigint) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT array_agg(fitting.row_id ORDER BY fitting.ordinal) FILTER (WHERE fitting.bytes_before < byte_room)
        FROM (SELECT due.row_id, due.ordinal, sum(due.bytes) OVER (ORDER BY due.ordinal) - due.bytes AS bytes_before
              FROM (SELECT met.row_id, met.ordinal, met.bytes, q.endpoint_id,
                           sum(met.bytes) OVER (PARTITION BY q.endpoint_id ORDER BY met.ordinal) - met.bytes AS bytes_before
                    FROM unnest(row_ids, sizes) WITH ORDINALITY AS met (row_id, bytes, ordinal)
                    CROSS JOIN LATERAL (SELECT q.endpoint_id FROM webhook.delivery_queue q WHERE q.ctid = met.row_id LIMIT 1) q) due
              JOIN unnest(endpoint_ids, byte_rooms) AS room (endpoint_id, bytes) USING (endpoint_id)
              WHERE due.bytes_before < room.bytes) fitting);
END $$;

-- Locks at most capacities[i] due deliveries of endpoint_ids[i], the longest due first, and returns their rows. It picks no
-- more of an endpoint when byte_rooms[i] is full, and no more at all when byte_room is: one payload at most exceeds each
-- bound. It reads the queue of an endpoint from positions[i]. `new_routes` are the endpoints whose route is not the one that
-- known_routes[i] stands for. If breakers are locked, it takes all of these endpoints to be well.
CREATE OR REPLACE FUNCTION webhook.pick(
    endpoint_ids int[], capacities int[], byte_rooms bigint[], byte_room bigint, positions float8[], known_routes text[],
    our_origin text, breakers_are_locked boolean, OUT picked tid[], OUT new_routes int[])
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    sizes int[];
    bytes bigint;
    some_are_ordered boolean;
    some_are_coalesced boolean;
    some_are_guarded boolean;
    breakers webhook.breaker[];
BEGIN
    -- This is a statement of its own, since one that names the table would wait for the session that has locked it.
    IF NOT breakers_are_locked THEN
        breakers := ARRAY(SELECT breaker.b
                          FROM unnest(endpoint_ids) WITH ORDINALITY AS w (endpoint_id, ordinal)
                          LEFT JOIN LATERAL (SELECT b FROM webhook.breaker b WHERE b.endpoint_id = w.endpoint_id LIMIT 1) breaker ON true
                          ORDER BY w.ordinal);
    END IF;
    FOR round IN 1..5 LOOP
        SELECT array_agg(due.row_id) FILTER (WHERE due.row_id IS NOT NULL), array_agg(due.bytes) FILTER (WHERE due.row_id IS NOT NULL),
               sum(due.bytes), bool_or(due.is_ordered), bool_or(due.is_coalesced),
               bool_or(guard.state <> 'CLOSED' OR guard.retries_before IS NOT NULL OR guard.test_event_id IS NOT NULL),
               array_agg(DISTINCT e.id) FILTER (WHERE e.stamp IS DISTINCT FROM w.known_route)
        INTO picked, sizes, bytes, some_are_ordered, some_are_coalesced, some_are_guarded, new_routes
        FROM unnest(endpoint_ids, capacities, positions, known_routes) WITH ORDINALITY
            AS w (endpoint_id, capacity, position, known_route, ordinal)
        CROSS JOIN LATERAL (
            SELECT e.id, e.origin = our_origin AS is_ours, e.disabled_at, e.paused_at, route.stamp
            FROM webhook.endpoint e, webhook.route_stamp(e.id, e.xmin, e.policy, e.format) route
            WHERE e.id = w.endpoint_id LIMIT 1
        ) e
        -- OFFSET 0 computes this once for each endpoint, and not for each row.
        CROSS JOIN LATERAL (
            SELECT (breakers[w.ordinal]).state, (breakers[w.ordinal]).retries_before, (breakers[w.ordinal]).test_event_id OFFSET 0
        ) guard
        LEFT JOIN LATERAL (
            SELECT q.ctid AS row_id, q.ordering_key IS NOT NULL AS is_ordered, q.coalesce_key IS NOT NULL AS is_coalesced,
                   coalesce(q.payload_bytes, (SELECT webhook.payload_size(v) FROM webhook.event v WHERE v.id = q.event_id), 0) AS bytes
            FROM webhook.delivery_queue q
            WHERE q.endpoint_id = e.id AND webhook.is_ready(q, guard.retries_before)
              -- These bounds limit the scan of the index, unless retries are brought forward.
              AND q.next_attempt_at >= coalesce(to_timestamp(w.position), '-infinity')
              AND q.next_attempt_at <= CASE WHEN guard.retries_before IS NULL THEN now() ELSE 'infinity' END
            ORDER BY q.next_attempt_at, q.event_id
            LIMIT CASE webhook.endpoint_state(e.is_ours, e.disabled_at, e.paused_at, guard.state)
                      WHEN 'ready' THEN w.capacity ELSE 0 END
            FOR UPDATE SKIP LOCKED
        ) due ON true;
        IF bytes > least(byte_room, (SELECT min(room) FROM unnest(byte_rooms) AS room)) THEN
            picked := webhook.within_byte_rooms(picked, sizes, endpoint_ids, byte_rooms, byte_room);
        END IF;
        EXIT WHEN (some_are_ordered OR some_are_coalesced) IS NOT TRUE;
        IF some_are_coalesced THEN
            picked := webhook.cancel_superseded(picked);
        END IF;
        IF some_are_ordered THEN
            picked := webhook.set_followers_aside(picked);
        END IF;
        -- If all rows were set aside or cancelled, the deliveries behind them may go.
        EXIT WHEN cardinality(picked) > 0;
    END LOOP;

    IF some_are_guarded THEN
        picked := picked || webhook.set_followers_aside(webhook.pick_exceptions(endpoint_ids, our_origin));
        PERFORM webhook.end_catching_up(endpoint_ids);
    END IF;
END $$;

-- The source of events in CloudEvents: /webhook/<database>, or /webhook/<webhook.site>/<database>. Characters that a URI may
-- not have are percent-encoded.
CREATE OR REPLACE FUNCTION webhook.event_source() RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT '/webhook' || string_agg(CASE WHEN chr(b.byte) ~ '[A-Za-z0-9._~/-]' THEN chr(b.byte)
                                                 ELSE '%' || lpad(upper(to_hex(b.byte)), 2, '0') END, '' ORDER BY at)
            FROM convert_to(coalesce('/' || nullif(webhook.setting('site'), ''), '') || '/' || current_database(), 'UTF8') AS path,
                 generate_series(0, octet_length(path) - 1) AS at,
                 LATERAL (SELECT get_byte(path, at) AS byte) b);

-- The versions of the rows that a route is made of: another stamp is another route. A sender that remembers a route compares
-- stamps.
CREATE OR REPLACE FUNCTION webhook.route_stamp(endpoint_id int, endpoint_version xid, policy text, format text)
    RETURNS TABLE (stamp text)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT concat_ws(' ', endpoint_version, (SELECT p.xmin FROM webhook.policy p WHERE p.name = route_stamp.policy),
                         ARRAY(SELECT s.xmin FROM webhook.secret s
                               WHERE s.endpoint_id = route_stamp.endpoint_id AND (s.expires_at IS NULL OR s.expires_at > now())),
                         CASE format WHEN 'cloudevents' THEN webhook.event_source() END);
    END;

-- How to reach these endpoints, and in which format.
CREATE OR REPLACE FUNCTION webhook.routes(endpoint_ids int[])
    RETURNS TABLE (endpoint_id int, url text, headers jsonb, secrets text[], connect_timeout_ms int, timeout_ms int,
                   format text, template text, source text, stamp text, hmac_secrets text[])
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT e.id, e.url, e.headers,
           CASE WHEN cardinality(valid.secrets) > 0 THEN valid.secrets ELSE ARRAY[webhook.first_secret(e.id)] END,
           (date_part('epoch', (shared.policy).connect_timeout) * 1000)::int,
           (date_part('epoch', (shared.policy).timeout) * 1000)::int,
           e.format, e.template::text, CASE e.format WHEN 'cloudevents' THEN webhook.event_source() END,
           (SELECT s.stamp FROM webhook.route_stamp(e.id, e.xmin, e.policy, e.format) s),
           CASE WHEN webhook.has_signatures(e.headers) THEN webhook.hmac_secrets(e.id) END
    -- Read each policy once.
    FROM (SELECT webhook.policy_of(e.policy) AS policy, array_agg(e.id) AS endpoint_ids
          FROM webhook.endpoint e WHERE e.id = ANY (endpoint_ids) GROUP BY e.policy OFFSET 0) shared
    JOIN webhook.endpoint e ON e.id = ANY (shared.endpoint_ids)
    CROSS JOIN LATERAL (SELECT ARRAY(SELECT s.secret FROM webhook.secret s
                                     WHERE s.endpoint_id = e.id AND (s.expires_at IS NULL OR s.expires_at > now())
                                       AND NOT starts_with(s.secret, 'hmac_')
                                     ORDER BY left(s.secret, 5), s.created_at DESC) AS secrets OFFSET 0) valid;
END $$;
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

-- Begins a run of a sender in this session. It gives up the shares of its earlier runs, whose sessions it has lost. If
-- somebody has locked a number, it takes the next one. The tries are bounded; the next sender goes on after them.
CREATE OR REPLACE FUNCTION webhook.begin_sender(kind text, host text, version text, earlier int[] DEFAULT '{}') RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most_tries CONSTANT int := 20000;
    new_id int;
BEGIN
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
        'allow_networks', webhook.setting('allow_networks'), 'deny_networks', webhook.setting('deny_networks'),
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

-- Gives up shares that have nothing in flight.
CREATE OR REPLACE FUNCTION webhook.release_shares(sender int, numbers int[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1 s' AS $$
BEGIN
    DELETE FROM webhook.share h WHERE h.sender_id = sender AND h.number = ANY (numbers);
END $$;
-- Judging: the meaning of an attempt's end for its delivery. An outcome is judged here, once; the queue, the breaker, the log,
-- the counters and the alerts read this row.
--
-- `failure` is the code of an attempt without an answer, or 'released' if the worker gives its claim back. These are
-- expressions that the planner inlines: a call for each outcome would double the cost of a success.

-- The code of an outcome that is no success. If a status was read, the code is 'status', whatever came after it.
CREATE OR REPLACE FUNCTION webhook.reason_of(status_code int, failure text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN status_code IS NOT NULL THEN 'status' WHEN failure <> 'released' THEN failure END;

CREATE OR REPLACE FUNCTION webhook.judgement(
    verdict text, p webhook.policy, attempts int, max_attempts int, status_code int, failure text, retry_after_s float8,
    ended_at timestamptz, draw float8) RETURNS webhook.judgement
    LANGUAGE sql STABLE
    RETURN ROW(
        verdict,
        CASE WHEN verdict = 'success' THEN 'SENT'
             WHEN verdict = 'release' OR (verdict = 'retry' AND attempts < max_attempts) THEN 'PENDING'
             ELSE 'FAILED' END,
        -- A delivery whose claim is given back keeps the time that it had. After local trouble of the sender it waits for a
        -- second, so that the sender does not spin.
        CASE WHEN verdict = 'release' AND failure = 'local' THEN ended_at + interval '1 s'
             WHEN verdict = 'retry' AND attempts < max_attempts
             THEN ended_at + webhook.backoff_delay(
                 p, attempts, CASE WHEN status_code IN (429, 503) THEN make_interval(secs => retry_after_s) END, draw) END,
        CASE WHEN verdict <> 'success' THEN webhook.reason_of(status_code, failure) END
    )::webhook.judgement;

-- `draw`, between 0 and 1, places the delay within the jitter.
CREATE OR REPLACE FUNCTION webhook.judge(
    p webhook.policy, attempts int, max_attempts int, status_code int, failure text, retry_after_s float8,
    ended_at timestamptz, draw float8) RETURNS webhook.judgement
    LANGUAGE sql STABLE
    RETURN webhook.judgement(webhook.verdict(p, status_code, failure), p, attempts, max_attempts, status_code, failure,
                             retry_after_s, ended_at, draw);

CREATE OR REPLACE FUNCTION webhook.judge_late(p webhook.policy, status_code int, failure text) RETURNS webhook.judgement
    LANGUAGE sql IMMUTABLE
    RETURN ROW('late', NULL, NULL, CASE WHEN webhook.verdict(p, status_code, failure) <> 'success'
                                        THEN webhook.reason_of(status_code, failure) END)::webhook.judgement;
-- The circuit breaker: when an endpoint gets nothing but probes, and how it comes back.
--
--                  failure_threshold failures in a row
--        CLOSED ─────────────────────────────────────────> OPEN <─────────────────┐
--          ^                                                │                     │
--          │                                       after the cooldown,            │ the probe fails:
--          │                                       one delivery is sent           │ the cooldown doubles
--          │            the probe succeeds                  v                     │
--          └───────────────────────────────────────── HALF_OPEN ──────────────────┘
--
-- An endpoint that never failed has no row, and success writes nothing as long as there is nothing to reset.
--
-- CLOSED counts failures: every failed attempt or, with breaker_counts = final, every delivery that has failed for
-- good. A success sets the count to 0. A sender claims nothing while it is OPEN; 43_open_breaker.sql says what becomes of due
-- deliveries.
--
-- The probe is a lease. Claiming it locks the row of the breaker and writes which claim it is and until when the breaker
-- waits for it, and no sender sends another one meanwhile. Only that claim's outcome moves HALF_OPEN; the outcome of any other
-- request that was under way when the breaker opened changes nothing but the log. If the outcome does not come (the worker
-- died, a person cancelled the delivery), the lease runs out and another delivery is the probe; but not while the old one is
-- still SENDING, since it may just be slow: recovery ends that.
--
-- When the breaker closes, the backlog must not overload an endpoint that has just recovered: the sender begins with one
-- request at a time, and doubles that with each round. `retries_before` makes waiting retries due at once. It is written
-- once; an UPDATE of each retry would take as long as they are many.
--
-- settle() hands in the outcomes of a batch with their judgements. webhook.follow() applies each of them to the breaker, and
-- reads and writes nothing but its arguments.

CREATE OR REPLACE FUNCTION webhook.cooldown(p webhook.policy, trips int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN greatest(make_interval(secs => least(extract(epoch FROM p.cooldown)::float8 * power(2::float8, least(trips - 1, 60)),
                                                extract(epoch FROM p.max_cooldown)::float8)),
                    webhook.shortest_wait());

CREATE OR REPLACE FUNCTION webhook.closed(b webhook.breaker, since timestamptz, failures int DEFAULT 0) RETURNS webhook.breaker
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    b.state := 'CLOSED';
    b.consecutive_failures := failures;
    b.trips := 0;
    b.opened_at := NULL;
    b.probe_at := NULL;
    b.probe_event_id := NULL;
    b.probe_claim_seq := NULL;
    b.retries_before := since;
    RETURN b;
END $$;

CREATE OR REPLACE FUNCTION webhook.opened(b webhook.breaker, p webhook.policy, since timestamptz) RETURNS webhook.breaker
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    b.state := 'OPEN';
    b.opened_at := coalesce(b.opened_at, since);
    b.trips := b.trips + 1;
    b.probe_at := since + webhook.cooldown(p, b.trips);
    b.probe_event_id := NULL;
    b.probe_claim_seq := NULL;
    b.retries_before := NULL;
    RETURN b;
END $$;

CREATE OR REPLACE FUNCTION webhook.alert_about(endpoint_id int, kind text, reason text, error text, is_own boolean) RETURNS webhook.alert
    LANGUAGE sql STABLE
    RETURN ROW(NULL, endpoint_id, kind, reason, error, is_own, 1, '{}', now(), NULL)::webhook.alert;

-- The breaker of an endpoint after these outcomes, one by one in the order in which they ended; whether the endpoint is
-- disabled then, and the alerts on the way.
CREATE OR REPLACE FUNCTION webhook.follow(
    p webhook.policy, outcomes webhook.outcome[], INOUT b webhook.breaker, INOUT disabled_reason text,
    OUT alerts webhook.alert[])
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o webhook.outcome;
    is_own boolean;
    is_probe boolean;
    is_test boolean;
    has_tripped boolean;
    disabling text;
BEGIN
    alerts := '{}';
    FOREACH o IN ARRAY outcomes LOOP
        is_own := webhook.is_own(o.event_type) AND o.event_type <> 'webhook.test';
        is_probe := b.state = 'HALF_OPEN' AND b.probe_event_id = o.event_id AND b.probe_claim_seq = o.claim_seq;
        is_test := b.test_event_id IS NOT DISTINCT FROM o.event_id;
        has_tripped := false;

        IF o.verdict = 'release' OR o.reason IN ('event_deleted', 'invalid_event') THEN
            -- The probe was not sent, so another delivery may be the probe; after local trouble of the sender, when this one
            -- is due again.
            IF is_probe THEN
                b.state := 'OPEN';
                b.probe_at := coalesce(o.next_attempt_at, o.ended_at);
                b.probe_event_id := NULL;
                b.probe_claim_seq := NULL;
            END IF;

        ELSIF o.verdict = 'success' THEN
            IF (is_probe OR is_test) AND b.state <> 'CLOSED' THEN
                b := webhook.closed(b, o.ended_at);
                alerts := alerts || webhook.alert_about(b.endpoint_id, 'closed', NULL, NULL, is_own);
            END IF;
            IF is_test AND disabled_reason = 'exhausted' THEN
                disabled_reason := NULL;
                b := webhook.closed(b, o.ended_at);
            END IF;
            IF b.state = 'CLOSED' THEN
                b.consecutive_failures := 0;
            END IF;

        ELSIF NOT is_test THEN
            IF is_probe OR b.state = 'CLOSED' THEN
                b.last_failure_at := o.ended_at;
                b.reason := o.reason;
                b.last_error := o.error;
            END IF;
            IF is_probe THEN
                b.consecutive_failures := b.consecutive_failures + 1;
                IF p.failure_threshold > 0 THEN
                    b := webhook.opened(b, p, o.ended_at);
                ELSE
                    -- The policy has switched the breaker off meanwhile: it is closed, and keeps its count of failures.
                    b := webhook.closed(b, o.ended_at, b.consecutive_failures);
                    alerts := alerts || webhook.alert_about(b.endpoint_id, 'closed', NULL, NULL, is_own);
                END IF;
            ELSIF b.state = 'CLOSED' THEN
                IF o.status = 'FAILED' OR p.breaker_counts = 'attempts' THEN
                    b.consecutive_failures := b.consecutive_failures + 1;
                    IF b.consecutive_failures = p.warn_threshold THEN
                        alerts := alerts || webhook.alert_about(b.endpoint_id, 'degraded', o.reason, o.error, is_own);
                    END IF;
                    has_tripped := p.failure_threshold > 0 AND b.consecutive_failures >= p.failure_threshold;
                    IF has_tripped AND p.on_trip = 'open' THEN
                        b := webhook.opened(b, p, o.ended_at);
                        alerts := alerts || webhook.alert_about(
                            b.endpoint_id, 'opened', o.reason,
                            format('%s failures in a row, the last: %s', b.consecutive_failures, o.error), is_own);
                    END IF;
                END IF;
            END IF;
            disabling := CASE WHEN has_tripped AND p.on_trip = 'disable' THEN 'tripped'
                              WHEN o.verdict = 'disable' THEN 'gone'
                              WHEN o.verdict = 'retry' AND o.status = 'FAILED' AND p.on_exhausted = 'disable' THEN 'exhausted' END;
            IF disabling IS NOT NULL AND disabled_reason IS NULL THEN
                disabled_reason := disabling;
                alerts := alerts || webhook.alert_about(b.endpoint_id, 'disabled', disabling, o.error, is_own);
            END IF;
        END IF;

        IF is_test AND o.verdict <> 'release' THEN
            b.test_event_id := NULL;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION webhook.is_at_rest(b webhook.breaker) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN b.state = 'CLOSED' AND b.consecutive_failures = 0 AND b.test_event_id IS NULL;

-- Moves the breakers along the outcomes of a batch, disables endpoints, and leaves alerts. It waits for no lock: it does
-- nothing about endpoints that somebody has locked, or whose breaker, and returns them.
CREATE OR REPLACE FUNCTION webhook.move_breakers(outcomes webhook.outcome[]) RETURNS int[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    at_stake int[];
    guarded record;
    b webhook.breaker;
    followed record;
    locked int[] := '{}';
    first_failed int[] := '{}';
    moved webhook.breaker[] := '{}';
    alerts webhook.alert[] := '{}';
BEGIN
    at_stake := ARRAY(
        SELECT batch.endpoint_id
        FROM (SELECT o.endpoint_id, bool_or(o.verdict NOT IN ('success', 'release')) AS has_failed
              FROM unnest(outcomes) AS o WHERE o.verdict <> 'late' GROUP BY o.endpoint_id) batch
        WHERE (batch.has_failed OR EXISTS (SELECT FROM webhook.breaker b
                                           WHERE b.endpoint_id = batch.endpoint_id AND NOT webhook.is_at_rest(b)))
          AND EXISTS (SELECT FROM webhook.endpoint e WHERE e.id = batch.endpoint_id));
    IF cardinality(at_stake) = 0 THEN
        RETURN locked;
    END IF;

    -- This locks the endpoint too if an outcome may disable it, or a test may enable it.
    FOR guarded IN
        SELECT batch.endpoint_id, batch.outcomes, rule.policy, breaker.row AS breaker, endpoint.disabled_reason,
               (rule.may_switch AND endpoint.id IS NULL)
               OR ((breaker.row).endpoint_id IS NULL
                   AND EXISTS (SELECT FROM webhook.breaker x WHERE x.endpoint_id = batch.endpoint_id)) AS is_locked
        FROM (SELECT o.endpoint_id, array_agg(o ORDER BY o.ended_at, o.ordinal) AS outcomes,
                     bool_or(o.verdict = 'disable') AS says_gone, bool_or(o.status = 'FAILED' OR o.verdict = 'retry') AS has_failed
              FROM unnest(outcomes) AS o
              WHERE o.endpoint_id = ANY (at_stake) AND o.verdict <> 'late'
              GROUP BY o.endpoint_id) batch
        LEFT JOIN LATERAL (
            SELECT b AS row FROM webhook.breaker b WHERE b.endpoint_id = batch.endpoint_id LIMIT 1 FOR UPDATE SKIP LOCKED
        ) breaker ON true
        CROSS JOIN LATERAL (
            SELECT p AS policy, batch.says_gone OR (breaker.row).test_event_id IS NOT NULL
                             OR batch.has_failed AND 'disable' IN (p.on_trip, p.on_exhausted) AS may_switch
            FROM webhook.endpoint e, webhook.policy_of(e.policy) AS p WHERE e.id = batch.endpoint_id LIMIT 1
        ) rule
        LEFT JOIN LATERAL (
            SELECT e.id, e.disabled_reason FROM webhook.endpoint e
            WHERE e.id = batch.endpoint_id AND rule.may_switch LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) endpoint ON true
    LOOP
        IF guarded.is_locked THEN
            locked := locked || guarded.endpoint_id;
            CONTINUE;
        END IF;
        b := guarded.breaker;
        IF b.endpoint_id IS NULL THEN
            first_failed := first_failed || guarded.endpoint_id;
            b.endpoint_id := guarded.endpoint_id;
            b.state := 'CLOSED';
            b.consecutive_failures := 0;
            b.trips := 0;
        END IF;
        SELECT * INTO followed FROM webhook.follow(guarded.policy, guarded.outcomes, b, guarded.disabled_reason);
        moved := moved || followed.b;
        alerts := alerts || followed.alerts;
        IF followed.disabled_reason IS DISTINCT FROM guarded.disabled_reason THEN
            UPDATE webhook.endpoint e
            SET disabled_at = CASE WHEN followed.disabled_reason IS NOT NULL THEN now() END,
                disabled_reason = followed.disabled_reason
            WHERE e.id = guarded.endpoint_id;
        END IF;
    END LOOP;

    INSERT INTO webhook.breaker AS old SELECT m.* FROM unnest(moved) AS m
    ON CONFLICT (endpoint_id) DO UPDATE
    SET state = excluded.state, consecutive_failures = excluded.consecutive_failures,
        last_failure_at = excluded.last_failure_at, reason = excluded.reason, last_error = excluded.last_error,
        opened_at = excluded.opened_at, trips = excluded.trips, probe_at = excluded.probe_at,
        probe_event_id = excluded.probe_event_id, probe_claim_seq = excluded.probe_claim_seq,
        retries_before = excluded.retries_before,
        -- A test has made the row since, if it was not there before.
        test_event_id = CASE WHEN old.endpoint_id = ANY (first_failed) THEN old.test_event_id ELSE excluded.test_event_id END
    WHERE old IS DISTINCT FROM excluded;

    INSERT INTO webhook.alert (endpoint_id, kind, reason, error, is_own)
    SELECT a.endpoint_id, a.kind, a.reason, a.error, a.is_own FROM unnest(alerts) AS a;
    RETURN locked;
END $$;

CREATE OR REPLACE FUNCTION webhook.probe_is_due(b webhook.breaker) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN b.state <> 'CLOSED' AND b.probe_at <= now()
        AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                        WHERE q.event_id = b.probe_event_id AND q.endpoint_id = b.endpoint_id
                          AND q.claim_seq = b.probe_claim_seq AND q.status = 'SENDING');
END $$;

-- Finds the deliveries that go out although nothing else may, for pick(): one probe for each breaker that is due for it, and
-- tests. The probe is the delivery that has waited longest, retries before their time included; but none that has to wait for
-- its turn or was superseded. It passes over no more than a page of those, and then sets them aside or cancels them as pick()
-- does, so that the next call gets further.
CREATE OR REPLACE FUNCTION webhook.pick_exceptions(endpoint_ids int[], our_origin text) RETURNS tid[]
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    page_size CONSTANT int := 200;
    probes tid[];
    tests tid[];
BEGIN
    WITH due AS MATERIALIZED (
        SELECT b.endpoint_id, b.state FROM webhook.breaker b
        WHERE b.endpoint_id = ANY (endpoint_ids) AND b.state <> 'CLOSED' AND webhook.probe_is_due(b)
        FOR UPDATE SKIP LOCKED
    ), probe AS MATERIALIZED (
        SELECT due.endpoint_id, q.row_id, q.event_id, q.claim_seq, (served.policy).connect_timeout + (served.policy).timeout AS lease
        FROM due
        CROSS JOIN LATERAL (
            SELECT webhook.policy_of(e.policy) AS policy FROM webhook.endpoint e
            WHERE e.id = due.endpoint_id
              AND webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, due.state) IN ('open', 'half_open')
            LIMIT 1
        ) served
        CROSS JOIN LATERAL (
            SELECT met.row_id, (met.q).event_id, (met.q).claim_seq
            FROM (SELECT q.ctid AS row_id, q FROM webhook.delivery_queue q
                  WHERE q.endpoint_id = due.endpoint_id AND webhook.may_be_probe(q)
                  ORDER BY q.next_attempt_at, q.event_id
                  LIMIT page_size FOR UPDATE SKIP LOCKED) met
            WHERE webhook.has_its_turn(met.q) AND NOT webhook.is_superseded(met.q)
            LIMIT 1
        ) q
    ), half_open AS (
        UPDATE webhook.breaker b
        SET state = 'HALF_OPEN', probe_at = now() + probe.lease, probe_event_id = probe.event_id,
            probe_claim_seq = probe.claim_seq + 1
        FROM probe WHERE b.endpoint_id = probe.endpoint_id
    )
    SELECT array_agg(probe.row_id) INTO probes FROM probe;

    PERFORM webhook.set_followers_aside(webhook.cancel_superseded(array_agg(q.row_id)))
    FROM webhook.breaker b
    CROSS JOIN LATERAL (
        SELECT q.ctid AS row_id FROM webhook.delivery_queue q
        WHERE q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, NULL) AND num_nonnulls(q.ordering_key, q.coalesce_key) > 0
        ORDER BY q.next_attempt_at, q.event_id
        LIMIT page_size FOR UPDATE SKIP LOCKED
    ) q
    WHERE b.endpoint_id = ANY (endpoint_ids) AND b.state <> 'CLOSED' AND webhook.probe_is_due(b)
    HAVING count(*) > 0;

    SELECT array_agg(q.row_id) INTO tests
    FROM webhook.breaker b
    CROSS JOIN LATERAL (SELECT FROM webhook.endpoint e WHERE e.id = b.endpoint_id AND e.origin = our_origin LIMIT 1) ours
    CROSS JOIN LATERAL (
        SELECT q.ctid AS row_id FROM webhook.delivery_queue q
        WHERE q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, NULL)
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) q
    WHERE b.endpoint_id = ANY (endpoint_ids) AND b.test_event_id IS NOT NULL;

    RETURN probes || tests;
END $$;

CREATE OR REPLACE FUNCTION webhook.end_catching_up(endpoint_ids int[]) RETURNS void
    LANGUAGE sql
    BEGIN ATOMIC
        WITH caught_up AS MATERIALIZED (
            SELECT b.endpoint_id FROM webhook.breaker b
            WHERE b.endpoint_id = ANY (endpoint_ids) AND b.retries_before IS NOT NULL
              AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                              WHERE q.endpoint_id = b.endpoint_id AND webhook.is_ready(q, b.retries_before) AND q.next_attempt_at > now())
            FOR UPDATE SKIP LOCKED
        )
        UPDATE webhook.breaker b SET retries_before = NULL FROM caught_up c WHERE b.endpoint_id = c.endpoint_id;
    END;

CREATE OR REPLACE FUNCTION webhook.reset_breaker(endpoint text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.close_breaker(webhook.require_endpoint(endpoint));
END $$;

CREATE OR REPLACE FUNCTION webhook.close_breaker(endpoint_id int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO webhook.alert (endpoint_id, kind, reason)
    SELECT b.endpoint_id, 'closed', 'by_hand' FROM webhook.breaker b
    WHERE b.endpoint_id = close_breaker.endpoint_id AND b.state <> 'CLOSED' FOR UPDATE;

    UPDATE webhook.breaker b
    SET (state, consecutive_failures, trips, opened_at, probe_at, probe_event_id, probe_claim_seq, retries_before) =
        (SELECT c.state, c.consecutive_failures, c.trips, c.opened_at, c.probe_at, c.probe_event_id, c.probe_claim_seq,
                c.retries_before
         FROM webhook.closed(b, now()) c)
    WHERE b.endpoint_id = close_breaker.endpoint_id;
    PERFORM webhook.wake_endpoint(-endpoint_id, now());
END $$;
-- Settling: what becomes of a delivery when its attempt has ended.
--
-- The worker hands in a batch of outcomes. An outcome is applied only while the delivery is still SENDING under the claim of
-- that outcome: a person may have cancelled or requeued it meanwhile, another worker may have claimed it again, and a late
-- result must not overwrite their changes; it is only logged. A batch that is settled twice changes nothing the second time.
-- settle() waits for no lock: if somebody has locked the delivery, or the breaker or endpoint that the outcome may change, it
-- hands the outcome back, and the worker brings it again.
--
-- A batch has the same effect as its outcomes one by one in the order in which they ended, however they were gathered.
--
-- Rows are found by their keys one by one (LATERAL, LIMIT) and then by their ctids, so that a plan made while the queue was
-- empty never reads all of it. The first statement locks them, so they stay where they are for the others.

-- Whether it is an event of the extension itself: an alert or a test.
CREATE OR REPLACE FUNCTION webhook.is_own(event_type text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN event_type LIKE 'webhook.%';

-- `ages_ms` says how long ago each attempt ended: the sender's clock never enters a table. Returns the claims whose outcomes
-- are handed back; the finished deliveries for webhook.add_figures(), as arrays of endpoint, status, latency class,
-- deliveries, deliveries that were retried, and their retries; and for the position of each endpoint, the earliest time of a
-- delivery that may be claimed again or has its turn now. `is_plain`: nothing has changed but that these deliveries were sent.
CREATE OR REPLACE FUNCTION webhook.settle(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], failures text[], errors text[],
    excerpts text[], retry_after_seconds float8[], durations_ms int[], ages_ms float8[],
    OUT locked_event_ids uuid[], OUT locked_endpoint_ids int[], OUT locked_claim_seqs bigint[],
    OUT finished jsonb, OUT queued_endpoint_ids int[], OUT queued_times timestamptz[], OUT is_plain boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    logs_success boolean := webhook.setting('keep_attempts') = 'all';
    settled bigint[];
    endpoints int[];
    policies webhook.policy[];
    outcomes webhook.outcome[];
    all_succeeded boolean;
    all_are_kept boolean;
    some_are_ordered boolean;
    handed_back int[];
BEGIN
    IF NOT logs_success THEN
        SELECT s.settled, s.finished INTO settled, finished
        FROM webhook.settle_successes(event_ids, endpoint_ids, claim_seqs, status_codes, durations_ms, ages_ms) s;
        is_plain := cardinality(settled) = cardinality(event_ids);
        IF is_plain THEN
            RETURN;
        END IF;
        SELECT array_agg(o.event_id), array_agg(o.endpoint_id), array_agg(o.claim_seq), array_agg(o.status_code), array_agg(o.failure),
               array_agg(o.error), array_agg(o.excerpt), array_agg(o.retry_after_s), array_agg(o.duration_ms), array_agg(o.age_ms)
        INTO event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts, retry_after_seconds, durations_ms, ages_ms
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts, retry_after_seconds,
                    durations_ms, ages_ms) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, failure, error, excerpt, retry_after_s, duration_ms,
                  age_ms, ordinal)
        WHERE settled IS NULL OR o.ordinal <> ALL (settled);
    END IF;

    -- This reads each policy once. The endpoints are in order, so that a binary search finds the policy of an outcome: a join
    -- without an index would compare every outcome with every endpoint.
    SELECT array_agg(id ORDER BY id), array_agg(shared.policy ORDER BY id) INTO endpoints, policies
    FROM (SELECT webhook.policy_of(e.policy) AS policy, array_agg(batch.endpoint_id) AS endpoint_ids
          FROM (SELECT DISTINCT i.endpoint_id FROM unnest(endpoint_ids) AS i (endpoint_id)) batch
          LEFT JOIN webhook.endpoint e ON e.id = batch.endpoint_id
          GROUP BY e.policy) shared, unnest(shared.endpoint_ids) AS id;

    -- Lock the deliveries, and judge each outcome once.
    SELECT array_agg(ROW(j.event_id, j.endpoint_id, j.claim_seq, j.status_code, j.error, j.excerpt, j.duration_ms, j.ended_at,
                         j.ordinal, (j.judgement).verdict, (j.judgement).status, (j.judgement).next_attempt_at,
                         (j.judgement).reason, j.row_id, j.event_type, j.attempts, j.created_at, j.keep_sent, j.ordering_key)::webhook.outcome)
               FILTER (WHERE (j.judgement).verdict IS NOT NULL),
           coalesce(bool_and((j.judgement).verdict = 'success' AND j.event_type <> 'webhook.test'), true),
           bool_and(j.keep_sent), bool_or(j.ordering_key IS NOT NULL),
           array_agg(j.event_id) FILTER (WHERE (j.judgement).verdict IS NULL),
           array_agg(j.endpoint_id) FILTER (WHERE (j.judgement).verdict IS NULL),
           array_agg(j.claim_seq) FILTER (WHERE (j.judgement).verdict IS NULL)
    INTO outcomes, all_succeeded, all_are_kept, some_are_ordered, locked_event_ids, locked_endpoint_ids, locked_claim_seqs
    FROM (
        SELECT o.event_id, o.endpoint_id, o.claim_seq, o.status_code, coalesce(o.error, 'HTTP ' || o.status_code) AS error,
               o.excerpt, o.duration_ms, e.ended_at, o.ordinal, q.row_id, q.event_type, q.attempts, q.created_at,
               q.ordering_key, (r.policy).keep_sent OR q.event_type IS NOT DISTINCT FROM 'webhook.test' AS keep_sent,
               CASE WHEN q.row_id IS NOT NULL
                    THEN webhook.judge(r.policy, q.attempts, q.max_attempts, o.status_code, o.failure, o.retry_after_s,
                                       e.ended_at, random())
                    WHEN NOT EXISTS (SELECT FROM webhook.delivery_queue q
                                     WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
                                       AND q.claim_seq = o.claim_seq AND q.status = 'SENDING')
                    THEN webhook.judge_late(r.policy, o.status_code, o.failure)
               END AS judgement
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts, retry_after_seconds,
                    durations_ms, ages_ms) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, failure, error, excerpt, retry_after_s, duration_ms,
                  age_ms, ordinal)
        CROSS JOIN LATERAL (SELECT policies[width_bucket(o.endpoint_id, endpoints)] AS policy OFFSET 0) r
        CROSS JOIN LATERAL (SELECT now() - make_interval(secs => greatest(o.age_ms, 0) / 1000) AS ended_at) e
        LEFT JOIN LATERAL (
            SELECT q.ctid AS row_id, q.event_type, q.attempts, q.max_attempts, q.created_at, q.ordering_key
            FROM webhook.delivery_queue q
            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id
              AND q.claim_seq = o.claim_seq AND q.status = 'SENDING'
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) q ON true
        OFFSET 0
    ) j;

    -- Most batches are successes of endpoints that are well, and move no breaker.
    IF NOT all_succeeded
       OR EXISTS (SELECT FROM webhook.breaker b WHERE b.endpoint_id = ANY (endpoint_ids) AND NOT webhook.is_at_rest(b)) THEN
        handed_back := webhook.move_breakers(outcomes);
        IF cardinality(handed_back) > 0 THEN
            SELECT array_agg(o) FILTER (WHERE NOT h.is_handed_back),
                   locked_event_ids || array_agg(o.event_id) FILTER (WHERE h.is_handed_back),
                   locked_endpoint_ids || array_agg(o.endpoint_id) FILTER (WHERE h.is_handed_back),
                   locked_claim_seqs || array_agg(o.claim_seq) FILTER (WHERE h.is_handed_back)
            INTO outcomes, locked_event_ids, locked_endpoint_ids, locked_claim_seqs
            FROM unnest(outcomes) AS o,
                 LATERAL (SELECT o.endpoint_id = ANY (handed_back) AND o.verdict <> 'late' AS is_handed_back) h;
        END IF;
    END IF;

    -- Finished deliveries leave the queue and are counted, in one statement: at its end the turn of an ordering key passes on,
    -- or stays with a dead letter under on_blocked = wait.
    WITH finished AS (
        DELETE FROM webhook.delivery_queue q USING unnest(outcomes) AS o
        WHERE q.ctid = o.row_id AND o.status <> 'PENDING'
        RETURNING q.event_id, q.endpoint_id, q.event_type, o.status, q.attempts, q.max_attempts, q.next_attempt_at,
                  q.wait_reason, q.expires_at, q.ordering_key, q.coalesce_key, q.claim_seq, o.ended_at, o.status_code,
                  o.reason, o.error, o.duration_ms, q.created_at, o.keep_sent
    ), kept AS (
        INSERT INTO webhook.delivery
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
             ordering_key, coalesce_key, claim_seq, last_attempt_at, last_status_code, reason, last_error, duration_ms,
             created_at, completed_at)
        SELECT f.event_id, f.endpoint_id, f.event_type, f.status, f.attempts, f.max_attempts, f.next_attempt_at, f.wait_reason,
               f.expires_at, f.ordering_key, f.coalesce_key, f.claim_seq, f.ended_at, f.status_code, f.reason,
               CASE f.status WHEN 'FAILED' THEN f.error END, f.duration_ms, f.created_at, f.ended_at
        FROM finished f WHERE f.keep_sent OR f.status = 'FAILED'
    )
    SELECT coalesce(finished, '[]') || coalesce(jsonb_agg(jsonb_build_array(
               f.endpoint_id, f.status, f.latency_class, f.deliveries, f.retried, f.retries)), '[]')
    INTO finished
    FROM (SELECT f.endpoint_id, f.status, webhook.latency_class(f.ended_at - f.created_at) AS latency_class,
                 count(*) AS deliveries, count(*) FILTER (WHERE f.attempts > 1) AS retried,
                 sum(f.attempts - 1)::bigint AS retries
          FROM finished f WHERE NOT webhook.is_own(f.event_type)
          GROUP BY 1, 2, 3) f;

    IF all_succeeded AND all_are_kept AND NOT some_are_ordered AND NOT logs_success THEN
        RETURN;
    END IF;

    -- A delivery that failed and has an attempt left waits for it; an attempt that failed by local trouble of the sender does
    -- not count.
    UPDATE webhook.delivery_queue q
    SET status = 'PENDING', wait_reason = 'retry', claimed_at = NULL, claimed_by = NULL,
        attempts = CASE o.verdict WHEN 'release' THEN q.attempts - 1 ELSE q.attempts END,
        next_attempt_at = o.next_attempt_at, last_attempt_at = o.ended_at, last_status_code = o.status_code,
        reason = o.reason, last_error = o.error, duration_ms = o.duration_ms
    FROM unnest(outcomes) AS o
    WHERE q.ctid = o.row_id AND o.status = 'PENDING' AND o.reason IS NOT NULL;

    -- A claim that was given back leaves the delivery as if it had never been made.
    UPDATE webhook.delivery_queue q
    SET status = 'PENDING', claimed_at = NULL, claimed_by = NULL, attempts = q.attempts - 1
    FROM unnest(outcomes) AS o
    WHERE q.ctid = o.row_id AND o.status = 'PENDING' AND o.reason IS NULL;

    SELECT array_agg(w.endpoint_id), array_agg(w.next_attempt_at) INTO queued_endpoint_ids, queued_times
    FROM (SELECT o.endpoint_id, min(q.next_attempt_at) AS next_attempt_at
          FROM unnest(outcomes) AS o
          LEFT JOIN LATERAL (SELECT l.event_id FROM webhook.lane l
                             WHERE l.endpoint_id = o.endpoint_id AND l.ordering_key = o.ordering_key LIMIT 1) turn ON true
          CROSS JOIN LATERAL (SELECT q.next_attempt_at FROM webhook.delivery_queue q
                              WHERE q.event_id = coalesce(turn.event_id, o.event_id) AND q.endpoint_id = o.endpoint_id LIMIT 1) q
          WHERE o.status = 'PENDING' OR o.ordering_key IS NOT NULL
          GROUP BY o.endpoint_id) w;

    -- The log has every failure, and success where it is asked for.
    INSERT INTO webhook.attempt
        (event_id, endpoint_id, claim_seq, attempt, verdict, status_code, reason, error, response_excerpt, duration_ms,
         finished_at)
    SELECT o.event_id, o.endpoint_id, o.claim_seq, o.attempts, o.verdict, o.status_code, o.reason,
           CASE WHEN o.verdict <> 'success' THEN o.error END, nullif(o.excerpt, ''), o.duration_ms, o.ended_at
    FROM unnest(outcomes) AS o
    WHERE o.verdict IN ('retry', 'final', 'disable')
       OR (o.verdict = 'success' AND o.keep_sent AND (logs_success OR o.event_type = 'webhook.test'))
    ON CONFLICT DO NOTHING;

    -- The log has late outcomes too; but not one that was applied before and comes again because a sender did not learn that
    -- its commit had succeeded. A session that redacts the event waits for this lock, and finds the excerpt; a redacted event
    -- gets none.
    INSERT INTO webhook.attempt
        (event_id, endpoint_id, claim_seq, verdict, status_code, reason, error, response_excerpt, duration_ms, finished_at)
    SELECT o.event_id, o.endpoint_id, o.claim_seq, o.verdict, o.status_code, o.reason, o.error,
           CASE WHEN shown.whole THEN nullif(o.excerpt, '') END, o.duration_ms, o.ended_at
    FROM unnest(outcomes) AS o
    LEFT JOIN LATERAL (
        SELECT true AS whole FROM webhook.event v
        WHERE v.id = o.event_id AND v.redacted_at IS NULL LIMIT 1 FOR SHARE SKIP LOCKED
    ) shown ON true
    WHERE o.verdict = 'late' AND num_nonnulls(o.status_code, o.reason) > 0
      AND EXISTS (SELECT FROM webhook.event v WHERE v.id = o.event_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM webhook.delivery d
                      WHERE d.event_id = o.event_id AND d.endpoint_id = o.endpoint_id AND d.claim_seq = o.claim_seq
                        AND d.status IN ('SENT', 'PENDING')
                        AND (d.last_status_code, d.reason, d.duration_ms)
                            IS NOT DISTINCT FROM (o.status_code, o.reason, o.duration_ms) OFFSET 0)
    ON CONFLICT DO NOTHING;

    INSERT INTO webhook.alert (endpoint_id, kind, reason, error, deliveries, event_ids)
    SELECT o.endpoint_id, 'failed', (array_agg(o.reason ORDER BY o.ended_at DESC, o.ordinal DESC))[1],
           (array_agg(o.error ORDER BY o.ended_at DESC, o.ordinal DESC))[1], count(*),
           (array_agg(o.event_id ORDER BY o.ordinal))[:10]
    FROM unnest(outcomes) AS o
    WHERE o.status = 'FAILED' AND NOT webhook.is_own(o.event_type)
    GROUP BY o.endpoint_id;

    -- Under keep_sent = false a sent delivery is deleted, and its event too if no other delivery needs it.
    IF NOT all_are_kept THEN
        PERFORM webhook.forget(array_agg(o.event_id), array_agg(o.endpoint_id), 'infinity')
        FROM unnest(outcomes) AS o
        WHERE NOT o.keep_sent
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = o.event_id AND d.endpoint_id = o.endpoint_id OFFSET 0)
        HAVING count(*) > 0;
    END IF;
END $$;
-- Successes of endpoints that are well: most of what there is to settle. They need no judgement, move no breaker and are not
-- logged, so one statement settles them; webhook.settle() does the rest.

-- Moves deliveries into the history if this batch has only successes of their endpoint, its breaker is at rest, and its policy
-- keeps sent deliveries. Returns the outcomes that this settles and the finished deliveries, as webhook.settle() does. It does
-- not settle locked rows, late outcomes, tests, and deliveries with an ordering key.
--
-- It locks no row first: only the claim has written the row if xmax is empty, or is the claim's own lock, which has the xid
-- that also made this version of the row. If somebody takes the row between the look and the DELETE, the DELETE waits, at most
-- for lock_timeout, and then meets another version or none; so the counts differ, and the sender begins anew. This saves 56
-- bytes of WAL a row, and a scan by ctid for each.
CREATE OR REPLACE FUNCTION webhook.settle_successes(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], durations_ms int[],
    ages_ms float8[], OUT settled bigint[], OUT finished jsonb)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    deleted bigint;
    inserted bigint;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT o.ordinal, o.status_code, o.duration_ms, now() - make_interval(secs => greatest(o.age_ms, 0) / 1000) AS ended_at, q.*
        FROM unnest(event_ids, endpoint_ids, claim_seqs, status_codes, durations_ms, ages_ms) WITH ORDINALITY
            AS o (event_id, endpoint_id, claim_seq, status_code, duration_ms, age_ms, ordinal)
        CROSS JOIN LATERAL (
            SELECT q.ctid AS row_id, q.xmin AS version, q.event_id, q.endpoint_id, q.event_type, q.attempts, q.max_attempts,
                   q.next_attempt_at, q.wait_reason, q.expires_at, q.coalesce_key, q.claim_seq, q.created_at
            FROM webhook.delivery_queue q
            WHERE q.event_id = o.event_id AND q.endpoint_id = o.endpoint_id AND q.claim_seq = o.claim_seq
              AND q.status = 'SENDING' AND q.ordering_key IS NULL AND q.event_type <> 'webhook.test'
              AND (q.xmax = 0 OR q.xmax = q.xmin)
            LIMIT 1
        ) q
        WHERE o.endpoint_id = ANY (ARRAY(
            SELECT batch.endpoint_id
            FROM (SELECT i.endpoint_id, bool_and(i.status_code IS NOT NULL) AS were_answered,
                         int4range(min(i.status_code), max(i.status_code), '[]') AS statuses
                  FROM unnest(endpoint_ids, status_codes) AS i (endpoint_id, status_code) GROUP BY i.endpoint_id) batch
            CROSS JOIN LATERAL (SELECT e.policy FROM webhook.endpoint e WHERE e.id = batch.endpoint_id LIMIT 1) e
            CROSS JOIN LATERAL (SELECT p.keep_sent, p.success_status FROM webhook.policy p WHERE p.name = e.policy LIMIT 1) p
            LEFT JOIN LATERAL (SELECT b FROM webhook.breaker b WHERE b.endpoint_id = batch.endpoint_id LIMIT 1) breaker ON true
            WHERE batch.were_answered AND batch.statuses <@ p.success_status AND p.keep_sent
              AND (breaker.b IS NULL OR webhook.is_at_rest(breaker.b))))
    ), gone AS (
        DELETE FROM webhook.delivery_queue q
        WHERE q.ctid = ANY (ARRAY(SELECT e.row_id FROM ended e)) AND q.xmin = ANY (ARRAY(SELECT DISTINCT e.version FROM ended e))
        RETURNING true
    ), kept AS (
        INSERT INTO webhook.delivery_history
            (event_id, endpoint_id, event_type, status, attempts, max_attempts, next_attempt_at, wait_reason, expires_at,
             coalesce_key, claim_seq, last_attempt_at, last_status_code, duration_ms, created_at, completed_at)
        SELECT e.event_id, e.endpoint_id, e.event_type, 'SENT', e.attempts, e.max_attempts, e.next_attempt_at, e.wait_reason,
               e.expires_at, e.coalesce_key, e.claim_seq, e.ended_at, e.status_code, e.duration_ms, e.created_at, e.ended_at
        FROM ended e
    )
    SELECT (SELECT array_agg(e.ordinal) FROM ended e), (SELECT count(*) FROM gone), sum(g.deliveries),
           jsonb_agg(jsonb_build_array(g.endpoint_id, 'SENT', g.latency_class, g.deliveries, g.retried, g.retries))
               FILTER (WHERE NOT g.is_own)
    INTO settled, deleted, inserted, finished
    FROM (SELECT e.endpoint_id, webhook.latency_class(e.ended_at - e.created_at) AS latency_class,
                 webhook.is_own(e.event_type) AS is_own, count(*) AS deliveries,
                 count(*) FILTER (WHERE e.attempts > 1) AS retried, sum(e.attempts - 1)::bigint AS retries
          FROM ended e
          GROUP BY 1, 2, 3) g;
    IF deleted <> inserted THEN
        RAISE EXCEPTION 'somebody has changed a delivery that was about to be settled' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;
-- While a breaker is open: its endpoint's deliveries wait, unless the policy says otherwise.

-- When to look again at an endpoint that has a breaker to follow; null if only a commit or an outcome can change that.
-- `turns_away`: due deliveries do not wait meanwhile, and webhook.turn_away() takes care of them.
CREATE OR REPLACE FUNCTION webhook.next_look_at_breaker(b webhook.breaker, is_served boolean, policy_name text, first_due timestamptz,
                                           OUT due_at timestamptz, OUT turns_away boolean)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    when_open text := (webhook.policy_of(policy_name)).when_open;
    test_due_at timestamptz;
BEGIN
    turns_away := false;
    IF b.test_event_id IS NOT NULL THEN
        SELECT q.next_attempt_at INTO test_due_at FROM webhook.delivery_queue q
        WHERE q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id AND q.status = 'PENDING';
    END IF;
    IF test_due_at <= now() OR NOT is_served THEN
        due_at := test_due_at;
        RETURN;
    ELSIF b.state = 'CLOSED' THEN
        due_at := CASE WHEN b.retries_before IS NULL THEN first_due ELSE least(first_due, now()) END;
    ELSIF webhook.probe_is_due(b) THEN
        -- A retry may be the probe before its time. This looks for one only if nothing is due, or the search would go through
        -- the whole backlog.
        due_at := CASE WHEN first_due <= now() THEN first_due
                       WHEN EXISTS (SELECT FROM webhook.delivery_queue q
                                    WHERE q.endpoint_id = b.endpoint_id AND webhook.may_be_probe(q))
                       THEN now() ELSE first_due END;
    ELSE
        turns_away := when_open <> 'hold';
        due_at := CASE WHEN b.probe_at > now() THEN b.probe_at END;
        IF when_open IN ('fail', 'attempt') THEN
            due_at := least(due_at, (SELECT q.next_attempt_at FROM webhook.delivery_queue q
                                     WHERE q.endpoint_id = b.endpoint_id AND webhook.awaits_its_time(q) AND q.next_attempt_at > now()
                                     ORDER BY q.next_attempt_at, q.event_id LIMIT 1));
        END IF;
    END IF;
    -- A test that waits keeps nothing else back.
    due_at := least(due_at, test_due_at);
END $$;

-- `skip` cancels a due delivery that was emitted after the breaker opened, unless it was tried since, or a person asked for
-- it.
CREATE OR REPLACE FUNCTION webhook.is_skipped(created_at timestamptz, wait_reason text, opened_at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN created_at >= opened_at AND wait_reason = 'new';

-- Handles due deliveries while a breaker is not closed: `skip` cancels those that were emitted since it opened and holds the
-- rest, `fail` fails them, and `attempt` takes one attempt off them, without sending anything. It handles at most that many in
-- all, and returns how many.
CREATE OR REPLACE FUNCTION webhook.turn_away(endpoint_ids int[], page_size int) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    our_origin text := webhook.origin();
    guarded record;
    turned_away bigint := 0;
    ids uuid[];
    spent_ids uuid[];
BEGIN
    FOR guarded IN
        SELECT b.endpoint_id, b.opened_at, b.test_event_id, p.policy
        FROM webhook.breaker b
        JOIN webhook.endpoint e ON e.id = b.endpoint_id
        CROSS JOIN LATERAL (SELECT webhook.policy_of(e.policy) AS policy) p
        WHERE b.endpoint_id = ANY (endpoint_ids) AND NOT webhook.probe_is_due(b) AND (p.policy).when_open <> 'hold'
          AND webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) IN ('open', 'half_open')
    LOOP
        SELECT array_agg(due.event_id) INTO ids
        FROM (SELECT q.event_id FROM webhook.delivery_queue q
              WHERE q.endpoint_id = guarded.endpoint_id AND webhook.is_ready(q, NULL)
                AND q.event_id IS DISTINCT FROM guarded.test_event_id
                AND q.next_attempt_at >= CASE (guarded.policy).when_open WHEN 'skip' THEN guarded.opened_at ELSE '-infinity' END
                AND ((guarded.policy).when_open <> 'skip' OR webhook.is_skipped(q.created_at, q.wait_reason, guarded.opened_at))
              ORDER BY q.next_attempt_at, q.event_id
              LIMIT page_size - turned_away FOR UPDATE SKIP LOCKED) due;
        CONTINUE WHEN ids IS NULL;
        turned_away := turned_away + cardinality(ids);

        CASE (guarded.policy).when_open
            WHEN 'skip' THEN
                PERFORM webhook.finish_queued(ids, array_fill(guarded.endpoint_id, ARRAY[cardinality(ids)]), 'CANCELLED', 'skipped');
            WHEN 'fail' THEN
                PERFORM webhook.fail_queued(ids, array_fill(guarded.endpoint_id, ARRAY[cardinality(ids)]), 'circuit_open');
            WHEN 'attempt' THEN
                WITH judged AS MATERIALIZED (
                    SELECT q.ctid AS row_id, q.event_id, q.claim_seq + 1 AS claim_seq, q.attempts + 1 AS attempts,
                           webhook.judge(guarded.policy, q.attempts + 1, q.max_attempts, NULL, 'circuit_open', NULL,
                                         now(), random()) AS judgement
                    FROM unnest(ids) AS i (event_id)
                    JOIN webhook.delivery_queue q ON q.event_id = i.event_id AND q.endpoint_id = guarded.endpoint_id
                ), waiting AS (
                    UPDATE webhook.delivery_queue q
                    SET attempts = j.attempts, claim_seq = j.claim_seq, wait_reason = 'retry', last_attempt_at = now(),
                        last_status_code = NULL, reason = (j.judgement).reason,
                        last_error = webhook.reason_in_words((j.judgement).reason), duration_ms = NULL,
                        next_attempt_at = (j.judgement).next_attempt_at
                    FROM judged j WHERE q.ctid = j.row_id AND (j.judgement).status = 'PENDING'
                ), logged AS (
                    INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, attempt, verdict, reason, error, duration_ms, finished_at)
                    SELECT j.event_id, guarded.endpoint_id, j.claim_seq, j.attempts, (j.judgement).verdict, (j.judgement).reason,
                           webhook.reason_in_words((j.judgement).reason), 0, now()
                    FROM judged j
                )
                SELECT array_agg(j.event_id) INTO spent_ids FROM judged j WHERE (j.judgement).status = 'FAILED';
                IF spent_ids IS NOT NULL THEN
                    PERFORM webhook.fail_queued(spent_ids, array_fill(guarded.endpoint_id, ARRAY[cardinality(spent_ids)]),
                                                'circuit_open', attempts_spent => 1);
                END IF;
        END CASE;
        EXIT WHEN turned_away >= page_size;
    END LOOP;
    RETURN turned_away;
END $$;

-- Fails deliveries whose expires_at has passed, whatever the state of their endpoint; no sender claims them meanwhile. Fails
-- at most that many, and returns how many.
CREATE OR REPLACE FUNCTION webhook.expire_overdue(page_size int) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    our_origin text := webhook.origin();
    expired bigint;
BEGIN
    SELECT webhook.fail_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'expired') INTO expired
    FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
          WHERE q.expires_at <= now() AND q.status = 'PENDING'
            AND EXISTS (SELECT FROM webhook.endpoint e WHERE e.id = q.endpoint_id AND e.origin = our_origin OFFSET 0)
          ORDER BY q.expires_at
          LIMIT page_size FOR UPDATE SKIP LOCKED) q
    HAVING count(*) > 0;
    RETURN coalesce(expired, 0);
END $$;

-- Fails deliveries that have been due for longer than the policy's hold_for while their endpoint was open, paused or disabled
-- for as long. Fails at most that many in all, and returns how many.
CREATE OR REPLACE FUNCTION webhook.expire_kept_back(page_size int) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    our_origin text := webhook.origin();
    expired bigint;
BEGIN
    SELECT webhook.fail_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'expired') INTO expired
    FROM (SELECT q.event_id, q.endpoint_id
          FROM webhook.endpoint e
          LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
          CROSS JOIN LATERAL (SELECT (webhook.policy_of(e.policy)).hold_for AS hold_for) p
          CROSS JOIN LATERAL (
              SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
              WHERE q.endpoint_id = e.id AND webhook.is_ready(q, NULL) AND q.next_attempt_at < now() - p.hold_for
              ORDER BY q.next_attempt_at, q.event_id
              LIMIT page_size FOR UPDATE SKIP LOCKED
          ) q
          WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) NOT IN ('held', 'ready')
            AND least(b.opened_at, e.paused_at, e.disabled_at) < now() - p.hold_for
          LIMIT page_size) q
    HAVING count(*) > 0;
    RETURN coalesce(expired, 0);
END $$;

-- Does both, a page of each; returns how many deliveries failed.
CREATE OR REPLACE FUNCTION webhook.expire_waiting(page_size int) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.expire_overdue(page_size) + webhook.expire_kept_back(page_size);
END $$;
-- The exchange: a sender hands in outcomes and gets the deliveries to send next, in one transaction and one call.
--
-- Settling comes first, so that a breaker that opens keeps deliveries back before they are claimed, and one that closes lets
-- them go.

-- The parameters are outcomes as webhook.settle() takes them, then the endpoints that the sender asks about, each with its
-- position, and then wishes as webhook.pick() takes them, for the first of these endpoints; each may be empty. The last
-- `asked_for_outcomes` endpoints are there only because of their outcomes, and are left out if these have changed nothing.
-- Each row is a claim, but for the last, which has only the report:
--
--   locked    outcomes that are handed back, as [event, endpoint, claim_seq]
--   finished  deliveries for webhook.add_figures() later, as [endpoint, status, latency class, deliveries, retried, retries]
--   routes    how to reach the endpoints of the claims, but for those whose route is the one that known_routes stands for
--   due       for each endpoint that the sender asks about, when to ask again
--
-- An attempt is counted when it is claimed and not when it ends, so that a delivery that kills its worker runs out of attempts.
-- The payload is null if somebody has deleted or redacted the event.
--
-- If somebody has locked the table of breakers (VACUUM FULL does), a sender asks with `breakers_are_locked` for endpoints that
-- it knows to be well, and hands nothing in. Such a call reads no breaker, so it returns nothing due either.
CREATE OR REPLACE FUNCTION webhook.exchange(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], failures text[], errors text[],
    excerpts text[], retry_after_seconds float8[], durations_ms int[], ages_ms float8[],
    asked_endpoint_ids int[], positions float8[], instance int, capacities int[], byte_rooms bigint[], byte_room bigint,
    known_routes text[] DEFAULT NULL, asked_for_outcomes int DEFAULT 0, breakers_are_locked boolean DEFAULT false)
    RETURNS TABLE (event_id uuid, endpoint_id int, claim_seq bigint, earlier_attempts int, event_type text, payload text,
                   occurred_at text, tenant text, report json)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    settled record;
    locked json;
    finished jsonb;
    wished_endpoint_ids int[] := asked_endpoint_ids[:cardinality(capacities)];
    our_origin text;
    claims record;
    routes json;
BEGIN
    IF cardinality(event_ids) > 0 THEN
        settled := webhook.settle(event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts,
                                  retry_after_seconds, durations_ms, ages_ms);
        IF settled.queued_endpoint_ids IS NOT NULL THEN
            positions := ARRAY(SELECT least(asked.position, date_part('epoch', queued.next_attempt_at))
                               FROM unnest(asked_endpoint_ids, positions) WITH ORDINALITY AS asked (id, position, ordinal)
                               LEFT JOIN unnest(settled.queued_endpoint_ids, settled.queued_times) AS queued (id, next_attempt_at) USING (id)
                               ORDER BY asked.ordinal);
        END IF;
        IF settled.locked_event_ids IS NOT NULL THEN
            locked := (SELECT json_agg(json_build_array(l.event_id, l.endpoint_id, l.claim_seq))
                       FROM unnest(settled.locked_event_ids, settled.locked_endpoint_ids, settled.locked_claim_seqs)
                            AS l (event_id, endpoint_id, claim_seq));
        END IF;
        IF settled.is_plain THEN
            asked_endpoint_ids := asked_endpoint_ids[:cardinality(asked_endpoint_ids) - asked_for_outcomes];
            positions := positions[:cardinality(asked_endpoint_ids)];
        END IF;
        finished := settled.finished;
    END IF;

    IF cardinality(asked_endpoint_ids) > 0 THEN
        our_origin := webhook.origin();
    END IF;
    IF cardinality(wished_endpoint_ids) > 0 THEN
        claims := webhook.pick(wished_endpoint_ids, capacities, byte_rooms, byte_room, positions[:cardinality(capacities)],
                               known_routes, our_origin, breakers_are_locked);
        IF cardinality(claims.picked) > 0 THEN
            -- The rows are locked, so they keep their ctids.
            RETURN QUERY
            WITH claimed AS (
                UPDATE webhook.delivery_queue q
                SET status = 'SENDING', attempts = q.attempts + 1, claim_seq = q.claim_seq + 1,
                    claimed_at = now(), claimed_by = instance
                WHERE q.ctid = ANY (claims.picked)
                RETURNING q.event_id, q.endpoint_id, q.claim_seq, q.attempts - 1 AS earlier_attempts, q.event_type
            )
            SELECT c.event_id, c.endpoint_id, c.claim_seq, c.earlier_attempts, c.event_type, event.payload, event.occurred_at,
                   event.tenant, NULL::json
            FROM claimed c
            LEFT JOIN LATERAL (
                SELECT v.payload::text AS payload, webhook.wire_time(v.created_at) AS occurred_at, v.tenant
                FROM webhook.event v WHERE v.id = c.event_id AND v.redacted_at IS NULL LIMIT 1
            ) event ON true;
            IF claims.new_routes IS NOT NULL THEN
                routes := (SELECT json_agg(r) FROM webhook.routes(claims.new_routes) r);
            END IF;
        END IF;
    END IF;

    RETURN QUERY
    SELECT NULL::uuid, NULL::int, NULL::bigint, NULL::int, NULL::text, NULL::text, NULL::text, NULL::text,
           json_build_object(
               'locked', locked, 'finished', finished, 'routes', routes,
               'due', (SELECT json_agg(d) FROM webhook.due(asked_endpoint_ids, positions, our_origin) d
                       WHERE cardinality(asked_endpoint_ids) > 0 AND NOT breakers_are_locked));
END $$;
-- Recovery: a claim whose worker is gone, or has forgotten it, goes back to the queue.
--
-- Recovery reads the queue in pages, by its primary key: page after page when a sender has died, as its row in webhook.sender
-- tells, and otherwise a page now and then, for claims that a restore has brought or that no sender remembers.

-- Puts back claims whose worker is gone: the attempt stays counted, since the request may have arrived. A delivery with no
-- attempt left fails. Returns how many of the rows somebody has locked.
CREATE OR REPLACE FUNCTION webhook.release_lost(
    event_ids uuid[], endpoint_ids int[], OUT released bigint, OUT failed bigint, OUT locked bigint)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    spent_event_ids uuid[];
    spent_endpoint_ids int[];
BEGIN
    WITH lost AS MATERIALIZED (
        SELECT q.event_id, q.endpoint_id, q.attempts < q.max_attempts AS has_attempts_left
        FROM unnest(event_ids, endpoint_ids) AS l (event_id, endpoint_id)
        JOIN webhook.delivery_queue q USING (event_id, endpoint_id)
        WHERE q.status = 'SENDING'
        FOR UPDATE OF q SKIP LOCKED
    ), requeued AS (
        UPDATE webhook.delivery_queue q
        SET status = 'PENDING', wait_reason = 'retry', claimed_at = NULL, claimed_by = NULL, last_attempt_at = now(),
            reason = 'worker_lost', last_error = 'worker lost'
        FROM lost l
        WHERE q.event_id = l.event_id AND q.endpoint_id = l.endpoint_id AND l.has_attempts_left
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM requeued), cardinality(event_ids) - count(*),
           array_agg(l.event_id) FILTER (WHERE NOT l.has_attempts_left),
           array_agg(l.endpoint_id) FILTER (WHERE NOT l.has_attempts_left)
    INTO released, locked, spent_event_ids, spent_endpoint_ids
    FROM lost l;
    failed := webhook.fail_queued(spent_event_ids, spent_endpoint_ids, 'worker_lost');
END $$;

-- The claims on the next page of the queue; null is the beginning of the queue, and the end.
CREATE OR REPLACE FUNCTION webhook.next_claims(
    INOUT after_event uuid, INOUT after_endpoint int, page_size int,
    OUT event_ids uuid[], OUT endpoint_ids int[], OUT claimants int[], OUT claim_times timestamptz[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH page AS MATERIALIZED (
        SELECT q.event_id, q.endpoint_id, q.status, q.claimed_by, q.claimed_at FROM webhook.delivery_queue q
        WHERE (q.event_id, q.endpoint_id) > (coalesce(after_event, '00000000-0000-0000-0000-000000000000'), coalesce(after_endpoint, 0))
        ORDER BY q.event_id, q.endpoint_id LIMIT page_size
    ), last AS (
        SELECT p.event_id, p.endpoint_id FROM page p OFFSET page_size - 1
    )
    SELECT array_agg(p.event_id), array_agg(p.endpoint_id), array_agg(p.claimed_by), array_agg(p.claimed_at),
           (SELECT l.event_id FROM last l), (SELECT l.endpoint_id FROM last l)
    INTO event_ids, endpoint_ids, claimants, claim_times, after_event, after_endpoint
    FROM page p WHERE p.status = 'SENDING';
END $$;

-- After somebody has set the clock back, deliveries that were emitted before would wait for as long as the step was. This
-- makes them due now, and retries after their delay; a time that the emitter chose stays. The ids of events begin with the
-- time, so the primary key has these deliveries last; at other times there are none.
CREATE OR REPLACE FUNCTION webhook.follow_clock(page_size int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    -- Smaller steps of the clock are normal.
    future CONSTANT timestamptz := now() + interval '10 s';
BEGIN
    WITH ahead AS MATERIALIZED (
        SELECT q.ctid AS row_id FROM webhook.delivery_queue q
        WHERE q.event_id >= webhook.first_id(future) AND q.status = 'PENDING'
          AND CASE q.wait_reason WHEN 'new' THEN q.next_attempt_at > future AND q.next_attempt_at <= q.created_at
                                 WHEN 'retry' THEN q.last_attempt_at > future END
        ORDER BY q.event_id, q.endpoint_id LIMIT page_size FOR UPDATE SKIP LOCKED
    )
    UPDATE webhook.delivery_queue q
    SET next_attempt_at = now() + CASE q.wait_reason WHEN 'retry' THEN q.next_attempt_at - q.last_attempt_at ELSE interval '0' END,
        last_attempt_at = least(q.last_attempt_at, now())
    FROM ahead WHERE q.ctid = ahead.row_id;
END $$;

-- Releases claims on a page of the queue: those of a dead sender at once, and those of this sender after webhook.stale_after,
-- unless it knows them to be in flight; it may have claimed them in a session that it has lost. Returns how many of them
-- somebody has locked, which need another call, and where the next page begins: null is the beginning, and the end.
CREATE OR REPLACE FUNCTION webhook.recover(
    instance int, in_flight_event_ids uuid[], in_flight_endpoint_ids int[],
    INOUT after_event uuid DEFAULT NULL, INOUT after_endpoint int DEFAULT NULL, page_size int DEFAULT 2000,
    OUT released bigint, OUT failed bigint, OUT locked bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    stale_before timestamptz := now() - webhook.setting('stale_after')::interval;
    page record;
    dead_senders int[];
    lost_event_ids uuid[];
    lost_endpoint_ids int[];
BEGIN
    SELECT * INTO page FROM webhook.next_claims(after_event, after_endpoint, page_size);
    recover.after_event := page.after_event;
    recover.after_endpoint := page.after_endpoint;

    -- A transaction sees the sessions as of its first look at them; this look must come after the claims were read.
    PERFORM pg_stat_clear_snapshot();
    SELECT array_agg(other.id) INTO dead_senders
    FROM (SELECT DISTINCT claimant AS id FROM unnest(page.claimants) AS claimant WHERE claimant <> instance) other
    WHERE NOT webhook.is_sender_alive(other.id);

    SELECT coalesce(array_agg(c.event_id), '{}'), coalesce(array_agg(c.endpoint_id), '{}')
    INTO lost_event_ids, lost_endpoint_ids
    FROM unnest(page.event_ids, page.endpoint_ids, page.claimants, page.claim_times)
        AS c (event_id, endpoint_id, claimed_by, claimed_at)
    WHERE (c.claimed_by = ANY (dead_senders) OR c.claimed_by = instance AND c.claimed_at < stale_before)
      AND (c.event_id, c.endpoint_id) NOT IN (SELECT * FROM unnest(in_flight_event_ids, in_flight_endpoint_ids));

    SELECT r.released, r.failed, r.locked INTO released, failed, locked
    FROM webhook.release_lost(lost_event_ids, lost_endpoint_ids) r;

    PERFORM webhook.follow_clock(page_size);
END $$;

-- Ends waiting deliveries of endpoints that were removed, as the removal says: at most that many in all, of the next
-- endpoints. Returns how many, and after which endpoint to go on; 0 is the beginning.
CREATE OR REPLACE FUNCTION webhook.end_orphans(INOUT after_endpoint int, page_size int, OUT ended bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    orphans record;
BEGIN
    orphans := webhook.next_orphans(after_endpoint, page_size);
    ended := coalesce(webhook.finish_queued(orphans.cancelled_events, orphans.cancelled_endpoints, 'CANCELLED', 'endpoint_removed'), 0)
             + coalesce(webhook.fail_queued(orphans.failed_events, orphans.failed_endpoints, 'endpoint_removed'), 0);
    UPDATE webhook.removed_endpoint r SET ended_at = now()
    WHERE r.id = ANY (orphans.cancelled_endpoints || orphans.failed_endpoints);
    -- After a full page the same endpoint may have more.
    after_endpoint := CASE WHEN ended < page_size THEN coalesce(orphans.next_endpoint, 0) ELSE after_endpoint END;
END $$;

CREATE OR REPLACE FUNCTION webhook.next_orphans(
    after_endpoint int, page_size int, OUT cancelled_events uuid[], OUT cancelled_endpoints int[],
    OUT failed_events uuid[], OUT failed_endpoints int[], OUT next_endpoint int)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    most_endpoints CONSTANT int := 300;
BEGIN
    next_endpoint := (SELECT r.id FROM webhook.removed_endpoint r WHERE r.id > after_endpoint
                      ORDER BY r.id OFFSET most_endpoints - 1 LIMIT 1);
    SELECT array_agg(o.event_id) FILTER (WHERE o.pending = 'cancel'), array_agg(o.endpoint_id) FILTER (WHERE o.pending = 'cancel'),
           array_agg(o.event_id) FILTER (WHERE o.pending = 'fail'), array_agg(o.endpoint_id) FILTER (WHERE o.pending = 'fail')
    INTO cancelled_events, cancelled_endpoints, failed_events, failed_endpoints
    FROM (SELECT q.event_id, q.endpoint_id, r.pending
          FROM (SELECT r.id, r.pending FROM webhook.removed_endpoint r WHERE r.id > after_endpoint
                ORDER BY r.id LIMIT most_endpoints) r
          CROSS JOIN LATERAL (
              SELECT due.* FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
                                 WHERE q.endpoint_id = r.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                                 LIMIT page_size FOR UPDATE SKIP LOCKED) due
              UNION ALL
              SELECT aside.* FROM (SELECT q.event_id, q.endpoint_id FROM webhook.delivery_queue q
                                   WHERE q.endpoint_id = r.id AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL)
                                   LIMIT page_size FOR UPDATE SKIP LOCKED) aside
          ) q
          LIMIT page_size) o;
END $$;
-- The manual path: people repair deliveries with UPDATE webhook.delivery, and these triggers make the row consistent, whoever
-- writes it. The engine writes the leaves and keeps the rules itself; it runs as webhook_owner, and nobody else can. A
-- superuser who edits by hand is a person too.

CREATE OR REPLACE FUNCTION webhook.manual_update() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    has_chosen boolean := false;
    written webhook.delivery;
    again webhook.delivery;
BEGIN
    IF (NEW.event_id, NEW.endpoint_id, NEW.event_type, NEW.claim_seq, NEW.created_at)
       IS DISTINCT FROM (OLD.event_id, OLD.endpoint_id, OLD.event_type, OLD.claim_seq, OLD.created_at) THEN
        RAISE EXCEPTION 'event_id, endpoint_id, event_type, claim_seq and created_at of a delivery cannot be changed'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Emit a new event with webhook_emit() instead.';
    END IF;

    -- Neither a breaker that closes nor a probe brings a time forward that a person chose. Infinity parks the delivery, and
    -- any other time releases it.
    IF NEW.next_attempt_at <> OLD.next_attempt_at OR NEW.next_attempt_at = 'infinity' THEN
        NEW.wait_reason := CASE WHEN NEW.next_attempt_at = 'infinity' THEN 'parked' ELSE 'scheduled' END;
        NEW.next_attempt_at := CASE WHEN NEW.next_attempt_at = 'infinity' THEN clock_timestamp()
                                    ELSE greatest(NEW.next_attempt_at, 'epoch') END;
        has_chosen := true;
    END IF;

    IF NEW.status = OLD.status THEN
        -- Attempts set back to 0 mean a new start, so the delivery is due now.
        IF NEW.status = 'PENDING' AND NEW.attempts = 0 AND OLD.attempts > 0 AND NOT has_chosen THEN
            NEW.next_attempt_at := now();
            NEW.wait_reason := 'replayed';
        END IF;
        -- Without the key there is nothing to wait for, and with another key the claim decides.
        IF NEW.ordering_key IS DISTINCT FROM OLD.ordering_key THEN
            NEW.waits_for := NULL;
        END IF;
        RETURN NEW;
    ELSIF NEW.status = 'PENDING' THEN
        IF NOT EXISTS (SELECT FROM webhook.endpoint e WHERE e.id = NEW.endpoint_id) THEN
            RAISE EXCEPTION 'delivery of event % cannot be sent: its endpoint % was removed', NEW.event_id, NEW.endpoint_id
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'Leave it out: .. AND endpoint_id IN (SELECT id FROM webhook.endpoint).';
        END IF;
        -- The delivery starts anew, now, unless the writer says otherwise.
        written := NEW;
        written.status := OLD.status;
        again := webhook.requeued(written);
        IF has_chosen THEN
            again.next_attempt_at := NEW.next_attempt_at;
            again.wait_reason := NEW.wait_reason;
        END IF;
        IF NEW.attempts <> OLD.attempts THEN
            again.attempts := NEW.attempts;
        END IF;
        IF NEW.expires_at IS DISTINCT FROM OLD.expires_at THEN
            again.expires_at := NEW.expires_at;
        END IF;
        RETURN again;
    ELSIF NEW.status = 'CANCELLED' AND OLD.status <> 'SENT' THEN
        NEW.reason := 'cancelled';
        NEW.last_error := 'cancelled';
        NEW.completed_at := now();
    ELSE
        RAISE EXCEPTION 'a delivery that is % cannot be made %', OLD.status, NEW.status
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Set status to PENDING to send it again, or to CANCELLED to give it up.';
    END IF;
    NEW.claimed_at := NULL;
    NEW.claimed_by := NULL;
    NEW.waits_for := NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER manual_update BEFORE UPDATE ON webhook.delivery
    FOR EACH ROW WHEN (CURRENT_USER <> 'webhook_owner')
    EXECUTE FUNCTION webhook.manual_update();

CREATE OR REPLACE FUNCTION webhook.wake_worker() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.wake();
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER wake AFTER UPDATE ON webhook.delivery
    FOR EACH STATEMENT EXECUTE FUNCTION webhook.wake_worker();

CREATE OR REPLACE FUNCTION webhook.refuse_update_of_leaf() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'cannot update partition "%.%" by name', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'object_not_in_prerequisite_state',
              DETAIL = 'A row that changes its status moves to another partition, and the worker is woken; neither happens here.',
              HINT = 'UPDATE webhook.delivery instead, with the same conditions.';
END $$;

CREATE OR REPLACE TRIGGER refuse_update_of_leaf BEFORE UPDATE ON webhook.delivery_queue
    FOR EACH STATEMENT WHEN (CURRENT_USER <> 'webhook_owner')
    EXECUTE FUNCTION webhook.refuse_update_of_leaf();
CREATE OR REPLACE TRIGGER refuse_update_of_leaf BEFORE UPDATE ON webhook.delivery_history
    FOR EACH STATEMENT WHEN (CURRENT_USER <> 'webhook_owner')
    EXECUTE FUNCTION webhook.refuse_update_of_leaf();
CREATE OR REPLACE TRIGGER refuse_update_of_leaf BEFORE UPDATE ON webhook.dead_letter
    FOR EACH STATEMENT WHEN (CURRENT_USER <> 'webhook_owner')
    EXECUTE FUNCTION webhook.refuse_update_of_leaf();
-- Figures: attempts and finished deliveries, counted in webhook.stat by endpoint and time, so that a figure is right whatever
-- history is kept, and costs the same whatever its size. Endpoint 0 stands for all of them.
--
-- A sender counts in memory, and adds its counts every few seconds and not with every batch: under a snapshot that somebody
-- holds for hours, each update of a row makes a version that every later one has to pass.

-- Latencies are counted in classes, eight to a doubling: class c is from 2^(c/8) to 2^((c+1)/8) milliseconds, so a percentile
-- read from them is at most 9% too high. engine/src/figures.rs has the same rule.
CREATE OR REPLACE FUNCTION webhook.latency_class(latency interval) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN floor(8 * ln(greatest(date_part('epoch', latency) * 1000, 1)) / ln(2::float8))::int;

CREATE OR REPLACE FUNCTION webhook.latency_class_end(latency_class int) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN make_interval(secs => power(2::float8, (latency_class + 1) / 8.0::float8) / 1000);

-- A histogram is a JSON object: classes, and how many of each.
CREATE OR REPLACE FUNCTION webhook.is_histogram(latencies jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN latencies::text ~ '^[{]("[0-9]{1,3}": [0-9]{1,15}(, )?)*[}]$';

CREATE OR REPLACE FUNCTION webhook.merge_latencies(latencies jsonb, added jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN added = '{}' THEN latencies ELSE
           (SELECT jsonb_object_agg(merged.class, merged.number)
            FROM (SELECT e.class, sum(e.number::bigint) AS number
                  FROM (SELECT * FROM jsonb_each_text(latencies) UNION ALL SELECT * FROM jsonb_each_text(added)) AS e (class, number)
                  GROUP BY e.class) merged) END;

CREATE OR REPLACE FUNCTION webhook.latency_percentile(latencies jsonb, share numeric) RETURNS interval
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT webhook.latency_class_end(min(climbing.class))
            FROM (SELECT e.class::int AS class, sum(e.number::bigint) OVER (ORDER BY e.class::int) AS so_far,
                         sum(e.number::bigint) OVER () AS number
                  FROM jsonb_each_text(latencies) AS e (class, number)) climbing
            WHERE climbing.so_far >= share * climbing.number);

-- Adds counts: an array of objects that have the columns of webhook.stat as keys, one for each endpoint. All senders write the
-- rows in the same order, so that there is no deadlock.
CREATE OR REPLACE FUNCTION webhook.count_figures(figures jsonb) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO webhook.stat AS s
        (endpoint_id, grain, begins_at, attempts, sent, failed, retried, retries, attempt_latency, delivery_latency, last_sent_at)
    WITH counted AS MATERIALIZED (
        SELECT f.endpoint_id, coalesce(f.attempts, 0) AS attempts, coalesce(f.sent, 0) AS sent, coalesce(f.failed, 0) AS failed,
               coalesce(f.retried, 0) AS retried, coalesce(f.retries, 0) AS retries,
               coalesce(f.attempt_latency, '{}') AS attempt_latency, coalesce(f.delivery_latency, '{}') AS delivery_latency
        FROM jsonb_to_recordset(figures)
            AS f (endpoint_id int, attempts bigint, sent bigint, failed bigint, retried bigint, retries bigint,
                  attempt_latency jsonb, delivery_latency jsonb)
        WHERE f.endpoint_id > 0 AND webhook.is_histogram(coalesce(f.attempt_latency, '{}'))
          AND webhook.is_histogram(coalesce(f.delivery_latency, '{}'))
    ), of_all AS (
        SELECT 0, sum(c.attempts), sum(c.sent), sum(c.failed), sum(c.retried), sum(c.retries),
               (SELECT jsonb_object_agg(l.class, l.number)
                FROM (SELECT e.key AS class, sum(e.value::bigint) AS number FROM counted c, jsonb_each_text(c.attempt_latency) AS e
                      GROUP BY e.key) l),
               (SELECT jsonb_object_agg(l.class, l.number)
                FROM (SELECT e.key AS class, sum(e.value::bigint) AS number FROM counted c, jsonb_each_text(c.delivery_latency) AS e
                      GROUP BY e.key) l)
        FROM counted c HAVING count(*) > 0
    )
    SELECT n.endpoint_id, g.grain, g.begins_at, n.attempts, n.sent, n.failed, n.retried, n.retries,
           coalesce(n.attempt_latency, '{}'), coalesce(n.delivery_latency, '{}'), CASE WHEN n.sent > 0 THEN now() END
    FROM (SELECT * FROM of_all UNION ALL SELECT * FROM counted)
        AS n (endpoint_id, attempts, sent, failed, retried, retries, attempt_latency, delivery_latency)
    CROSS JOIN (VALUES ('total', '-infinity'::timestamptz), ('hour', date_trunc('hour', now(), 'UTC')),
                       ('minute', date_trunc('minute', now()))) AS g (grain, begins_at)
    ORDER BY n.endpoint_id, g.grain
    ON CONFLICT (endpoint_id, grain, begins_at) DO UPDATE
    SET attempts = s.attempts + excluded.attempts, sent = s.sent + excluded.sent, failed = s.failed + excluded.failed,
        retried = s.retried + excluded.retried, retries = s.retries + excluded.retries,
        attempt_latency = webhook.merge_latencies(s.attempt_latency, excluded.attempt_latency),
        delivery_latency = webhook.merge_latencies(s.delivery_latency, excluded.delivery_latency),
        last_sent_at = coalesce(excluded.last_sent_at, s.last_sent_at);
END $$;

-- It waits only briefly for a lock: the sender brings its counts again.
CREATE OR REPLACE FUNCTION webhook.add_figures(figures jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250 ms' AS $$
BEGIN
    PERFORM webhook.count_figures(figures);
END $$;
-- Alerts: events in the life of an endpoint or a metric that somebody should know about.
--
-- Functions that move breakers and deliveries, or look at metrics, leave a row in webhook.alert, in their own transaction. The
-- worker raises them in another transaction, at most once a second: a NOTIFY takes a lock of the whole server at its commit,
-- and trouble with alerts must not keep deliveries back. The same transaction deletes the rows, so each alert is raised once.
--
-- An alert is raised in three ways: a NOTIFY on webhook_alert, a WARNING in the log, and an event to the endpoints that
-- subscribe to webhook.* by name. Every role may LISTEN, so the NOTIFY has the kind of alert and ids, and no value that the
-- application has given us; roles that may read look the ids up. There is no loop: an endpoint gets no event about itself, and
-- the delivery of an event of the extension never causes another event. Its failure raises no alert at all; if it opens a
-- breaker, only NOTIFY and the log tell.

-- Emits the event of an alert to all endpoints that want it but the one it is about; none if no endpoint wants it.
CREATE OR REPLACE FUNCTION webhook.emit_alert(about_id int, about_tenant text, new_event_id uuid, type text, payload jsonb) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others int[] := ARRAY(SELECT s.endpoint_id FROM webhook.subscribers(webhook.matching_keys(about_tenant, type)) s
                          WHERE s.endpoint_id <> about_id AND (s.filter IS NULL OR webhook.passes(s.filter, type, payload)));
BEGIN
    IF cardinality(others) > 0 THEN
        PERFORM webhook.emit_events(ARRAY[new_event_id], ARRAY[type], ARRAY[payload], ARRAY[about_tenant], only_endpoints => others);
    END IF;
END $$;

-- Raises the alerts of at most that many rows; failed deliveries are counted together for each endpoint. Returns lines for the
-- log.
CREATE OR REPLACE FUNCTION webhook.raise_alerts(page_size int DEFAULT 500) RETURNS TABLE (message text, hint text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    alert record;
    event_type text;
    payload jsonb;
    address text;
BEGIN
    FOR alert IN
        WITH taken AS (
            DELETE FROM webhook.alert a
            WHERE a.id IN (SELECT w.id FROM webhook.alert w ORDER BY w.id LIMIT page_size FOR UPDATE SKIP LOCKED)
            RETURNING a.*
        ), counted AS (
            SELECT min(t.id) AS first_id, t.endpoint_id, t.kind, (array_agg(t.reason ORDER BY t.id DESC))[1] AS reason,
                   left((array_agg(t.error ORDER BY t.id DESC))[1], 500) AS error,
                   bool_or(t.is_own) AS is_own, max(t.metric) AS metric, max(t.raised_at) AS raised_at, sum(t.deliveries) AS deliveries,
                   (string_to_array(string_agg(array_to_string(t.event_ids, ','), ',' ORDER BY t.id), ','))[:10] AS event_ids
            FROM taken t
            GROUP BY t.endpoint_id, t.kind, CASE WHEN t.kind <> 'failed' THEN t.id END
        )
        SELECT webhook.new_id() AS id, c.*, about.address, about.tenant, about.metadata
        FROM counted c
        -- The endpoint may have been removed since.
        CROSS JOIN LATERAL (
            SELECT webhook.address(e.tenant, e.name), e.tenant, e.metadata FROM webhook.endpoint e WHERE e.id = c.endpoint_id
            UNION ALL
            SELECT webhook.address(r.tenant, r.name), r.tenant, '{}' FROM webhook.removed_endpoint r WHERE r.id = c.endpoint_id
            UNION ALL
            SELECT NULL, NULL, NULL WHERE c.metric IS NOT NULL
        ) about (address, tenant, metadata)
        ORDER BY c.first_id
    LOOP
        event_type := CASE WHEN alert.metric IS NOT NULL THEN 'webhook.metric.'
                           WHEN alert.kind = 'failed' THEN 'webhook.delivery.' ELSE 'webhook.endpoint.' END || alert.kind;
        payload := jsonb_strip_nulls(jsonb_build_object(
            'database', current_database(), 'endpoint', alert.address, 'tenant', alert.tenant, 'metric', alert.metric,
            'reason', alert.reason, 'error', alert.error,
            'deliveries', CASE WHEN alert.kind = 'failed' THEN alert.deliveries END,
            'event_ids', CASE WHEN alert.kind = 'failed' THEN to_jsonb(alert.event_ids) END,
            'at', alert.raised_at))
            || CASE WHEN alert.metric IS NULL THEN jsonb_build_object('metadata', alert.metadata) ELSE '{}' END;
        IF NOT alert.is_own THEN
            PERFORM webhook.emit_alert(alert.endpoint_id, alert.tenant, alert.id, event_type,
                                       CASE WHEN octet_length(payload::text) <= webhook.max_payload() THEN payload
                                            ELSE payload - 'metadata' END);
        END IF;

        -- The id makes each payload different: the server sends equal notifications of a transaction only once.
        PERFORM pg_notify('webhook_alert', jsonb_strip_nulls(jsonb_build_object(
            'id', alert.id, 'type', event_type, 'endpoint_id', nullif(alert.endpoint_id, 0), 'metric', alert.metric,
            'deliveries', payload -> 'deliveries', 'at', alert.raised_at))::text);

        message := CASE WHEN alert.metric IS NULL THEN format('webhook endpoint "%s"', alert.address)
                        ELSE format('webhook metric %s', alert.metric) END
            || format(' of database "%s": ', current_database()) || CASE alert.kind
            WHEN 'degraded' THEN format('keeps failing: %s', alert.error)
            WHEN 'opened' THEN format('circuit breaker opened: %s', alert.error)
            WHEN 'closed' THEN 'circuit breaker closed'
            WHEN 'disabled' THEN format('disabled (%s): %s', alert.reason, alert.error)
            WHEN 'failed' THEN format('%s since the last alert, the last: %s',
                CASE alert.deliveries WHEN 1 THEN 'a delivery failed' ELSE alert.deliveries || ' deliveries failed' END, alert.error)
            WHEN 'raised' THEN format('alert: %s', alert.error)
            WHEN 'cleared' THEN format('alert is over: %s', alert.error)
        END;
        address := quote_literal(alert.address);
        hint := CASE alert.kind
            WHEN 'degraded' THEN format('SELECT webhook_why(%s) explains it.', address)
            WHEN 'opened' THEN format('The endpoint gets nothing but probes until one succeeds. SELECT webhook_why(%1$s) says when, '
                                      'SELECT webhook_reset_breaker(%1$s) closes the breaker now.', address)
            WHEN 'closed' THEN 'The deliveries that waited go out now.'
            WHEN 'disabled' THEN format('The endpoint gets nothing until SELECT webhook_resume(%s).', address)
            WHEN 'failed' THEN format('SELECT * FROM webhook.failed WHERE endpoint = %1$s shows them; '
                                      'CALL webhook_replay_all(%1$s) sends them again.', address)
            WHEN 'raised' THEN webhook.metric_remedy(alert.metric)
        END;
        RETURN NEXT;
    END LOOP;
END $$;
-- Retention: the worker deletes rows that nobody needs any more, a little at a time.
--
-- A finished delivery goes webhook.retention_sent after it was SENT or CANCELLED, webhook.retention_failed after it has
-- FAILED, and its attempts with it. An event goes when it is older than webhook.retention_sent and no delivery has it, whether
-- they are gone or there never was one; -1 keeps for ever. The worker calls these functions between its turns. Each call is a
-- short transaction that reads a bounded number of rows by an index, and waits for no lock: it passes over a locked row, and a
-- later sweep finds it. An idempotency key goes when webhook.idempotency_window is over, even if its event is still there.
--
-- No event goes that is needed again. A function that moves a delivery deletes and inserts it in one transaction, so in any
-- one snapshot it is in exactly one leaf, and a single statement looks into all of them. A function that makes a delivery for
-- an event that has none, as 57_backfill.sql does, locks the event first, or the event may just have gone.
--
-- As in 34_claim.sql the plans are fixed; OFFSET 0 keeps the planner from turning an EXISTS into a join the wrong way round.

CREATE OR REPLACE FUNCTION webhook.first_id(emitted_at timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN (lpad(to_hex(greatest(0, floor(extract(epoch FROM emitted_at) * 1000))::bigint), 12, '0') || repeat('0', 20))::uuid;

-- Does one step: looks at no more than that many sent deliveries, dead letters, events and keys, each kind from the position
-- of the last step. `more`: one kind had as many as asked for, so there may be others; `behind`: that many of one kind had to
-- go. Each kind has its own limit, or a steady flow of one would keep the others for ever. A position is only a short cut past
-- rows that are deleted and not yet vacuumed, and past old events that are still needed: null is the beginning.
CREATE OR REPLACE FUNCTION webhook.expire(
    step int, INOUT sent_from timestamptz, INOUT failed_from timestamptz, INOUT event_after uuid, INOUT key_from timestamptz,
    OUT more boolean, OUT behind boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET timezone = 'UTC' SET lock_timeout = '1 ms' AS $$
DECLARE
    sent_before timestamptz := now() - nullif(webhook.setting('retention_sent'), '-1')::interval;
    failed_before timestamptz := now() - nullif(webhook.setting('retention_failed'), '-1')::interval;
    tests_before timestamptz := now() - interval '1 min';    -- webhook_test() removes its own event when it has seen the outcome
    key_before timestamptz := now() - webhook.setting('idempotency_window')::interval;
    sent int := 0;
    failed int := 0;
    events int;
    keys int;
    event_ids uuid[];
    endpoint_ids int[];
BEGIN
    -- If a crash brings rows back, a later step deletes them again.
    PERFORM set_config('synchronous_commit', 'off', true);

    -- If there is no endpoint and none was removed, a restore is under way.
    IF EXISTS (SELECT FROM webhook.endpoint) OR EXISTS (SELECT FROM webhook.removed_endpoint) THEN
        WITH gone AS (
            DELETE FROM webhook.delivery_history
            WHERE ctid = ANY (ARRAY(
                SELECT h.ctid FROM webhook.delivery_history h
                WHERE h.completed_at >= coalesce(sent_from, '-infinity') AND h.completed_at < sent_before
                  AND (h.event_type <> 'webhook.test' OR h.completed_at < tests_before)
                ORDER BY h.completed_at LIMIT step FOR UPDATE SKIP LOCKED))
            RETURNING event_id, endpoint_id, completed_at
        )
        SELECT array_agg(g.event_id), array_agg(g.endpoint_id), coalesce(max(g.completed_at), sent_from), count(*)
        INTO event_ids, endpoint_ids, sent_from, sent
        FROM gone g;

        WITH gone AS (
            DELETE FROM webhook.dead_letter
            WHERE ctid = ANY (ARRAY(
                SELECT f.ctid FROM webhook.dead_letter f
                WHERE f.completed_at >= coalesce(failed_from, '-infinity') AND f.completed_at < failed_before
                  AND (f.event_type <> 'webhook.test' OR f.completed_at < tests_before)
                ORDER BY f.completed_at LIMIT step FOR UPDATE SKIP LOCKED))
            RETURNING event_id, endpoint_id, completed_at
        )
        SELECT event_ids || array_agg(g.event_id), endpoint_ids || array_agg(g.endpoint_id),
               coalesce(max(g.completed_at), failed_from), count(*)
        INTO event_ids, endpoint_ids, failed_from, failed
        FROM gone g;

        PERFORM webhook.forget(event_ids, endpoint_ids, sent_before);
    END IF;

    -- These events have no delivery whose end would delete them.
    event_ids := ARRAY(
        SELECT v.id FROM webhook.event v
        WHERE v.id > coalesce(event_after, '00000000-0000-0000-0000-000000000000') AND v.id < webhook.first_id(sent_before)
        ORDER BY v.id LIMIT step);
    events := webhook.forget(event_ids, NULL, sent_before);
    event_after := coalesce(event_ids[cardinality(event_ids)], event_after);

    WITH gone AS (
        DELETE FROM webhook.idempotency
        WHERE ctid = ANY (ARRAY(
            SELECT i.ctid FROM webhook.idempotency i
            WHERE i.created_at >= coalesce(key_from, '-infinity') AND i.created_at < key_before
            ORDER BY i.created_at LIMIT step FOR UPDATE SKIP LOCKED))
        RETURNING created_at
    )
    SELECT count(*), coalesce(max(g.created_at), key_from) INTO keys, key_from FROM gone g;
    behind := step <= greatest(sent, failed, events, keys);
    more := behind OR step <= cardinality(event_ids);
END $$;

-- How long ago the oldest row that has outlived its retention should have gone: a delivery, or an idempotency key. It takes
-- one probe of an index each. It does not look at events: a dead letter keeps its event for as long as it needs it.
CREATE OR REPLACE FUNCTION webhook.retention_lag() RETURNS interval
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET jit = off AS $$
BEGIN
    RETURN greatest(
        interval '0',
        now() - nullif(webhook.setting('retention_sent'), '-1')::interval
            - (SELECT h.completed_at FROM webhook.delivery_history h ORDER BY h.completed_at LIMIT 1),
        now() - nullif(webhook.setting('retention_failed'), '-1')::interval
            - (SELECT f.completed_at FROM webhook.dead_letter f ORDER BY f.completed_at LIMIT 1),
        now() - webhook.setting('idempotency_window')::interval
            - (SELECT i.created_at FROM webhook.idempotency i ORDER BY i.created_at LIMIT 1));
END $$;

-- Deletes figures of the next endpoints, at most that many: minutes that are older than a day, hours that are older than a
-- month, and the total of a removed endpoint when nothing else is left of it. Returns where to go on; 0 is the beginning.
CREATE OR REPLACE FUNCTION webhook.expire_figures(INOUT after_endpoint int, page_size int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET lock_timeout = '1 ms' AS $$
DECLARE
    endpoint_ids int[];
BEGIN
    WITH RECURSIVE page AS (
        SELECT (SELECT s.endpoint_id FROM webhook.stat s WHERE s.endpoint_id > after_endpoint
                ORDER BY s.endpoint_id LIMIT 1) AS id, 1 AS ordinal
        UNION ALL
        SELECT (SELECT s.endpoint_id FROM webhook.stat s WHERE s.endpoint_id > page.id
                ORDER BY s.endpoint_id LIMIT 1), page.ordinal + 1
        FROM page WHERE page.id IS NOT NULL AND page.ordinal < page_size
    )
    SELECT array_agg(page.id ORDER BY page.id) INTO endpoint_ids FROM page WHERE page.id IS NOT NULL;

    DELETE FROM webhook.stat
    WHERE ctid = ANY (ARRAY(
        SELECT expired.row_id
        -- The first page also has endpoint 0, which stands for all.
        FROM unnest(endpoint_ids || CASE WHEN after_endpoint = 0 THEN 0 END) AS page (id)
        CROSS JOIN (VALUES ('minute', now() - interval '1 day'), ('hour', now() - interval '31 days')) AS kept (grain, since)
        CROSS JOIN LATERAL (
            SELECT s.ctid AS row_id FROM webhook.stat s
            WHERE s.endpoint_id = page.id AND s.grain = kept.grain AND s.begins_at < kept.since
            LIMIT 100 FOR UPDATE SKIP LOCKED
        ) expired
        LIMIT 5000));

    DELETE FROM webhook.stat
    WHERE ctid = ANY (ARRAY(
        SELECT total.row_id
        FROM unnest(endpoint_ids) AS page (id)
        CROSS JOIN LATERAL (SELECT FROM webhook.removed_endpoint r WHERE r.id = page.id LIMIT 1) removed
        CROSS JOIN LATERAL (
            SELECT s.ctid AS row_id FROM webhook.stat s
            WHERE s.endpoint_id = page.id AND s.grain = 'total'
              AND NOT EXISTS (SELECT FROM webhook.stat o WHERE o.endpoint_id = page.id AND o.grain IN ('hour', 'minute') OFFSET 0)
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) total));

    after_endpoint := CASE WHEN cardinality(endpoint_ids) = page_size THEN endpoint_ids[page_size] ELSE 0 END;
END $$;

-- Forgets removed endpoints when no delivery, whose reader wants their name, and no figure has their id any more, but not
-- before a week has passed since a delivery of theirs was last ended, for a transaction that was open when they were removed.
-- Deliveries in the history were ended by then, so those that are left there are younger than the oldest of all. Looks at the
-- next ones, at most that many, and returns where to go on; 0 is the beginning.
CREATE OR REPLACE FUNCTION webhook.forget_removed_endpoints(INOUT after_endpoint int, page_size int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET lock_timeout = '1 ms' AS $$
DECLARE
    oldest_finished timestamptz := (SELECT h.completed_at FROM webhook.delivery_history h ORDER BY h.completed_at LIMIT 1);
    page int[] := ARRAY(SELECT r.id FROM webhook.removed_endpoint r WHERE r.id > after_endpoint ORDER BY r.id LIMIT page_size);
BEGIN
    DELETE FROM webhook.removed_endpoint
    WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM webhook.removed_endpoint r
        WHERE r.id = ANY (page) AND r.ended_at < now() - interval '7 days'
          AND (oldest_finished IS NULL OR r.ended_at < oldest_finished)
          AND NOT EXISTS (SELECT FROM webhook.dead_letter d WHERE d.endpoint_id = r.id OFFSET 0)
          AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                          WHERE q.endpoint_id = r.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL OFFSET 0)
          AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                          WHERE q.endpoint_id = r.id AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL) OFFSET 0)
          AND NOT EXISTS (SELECT FROM webhook.stat s WHERE s.endpoint_id = r.id OFFSET 0)
        FOR UPDATE SKIP LOCKED));
    after_endpoint := coalesce(page[page_size], 0);
END $$;
-- Metrics: figures with thresholds, and an alert when a figure crosses its own.
--
-- Five of the metrics look at the last 15 minutes, the others at this moment: during an outage deliveries wait and are
-- retried, so nothing finishes that the five could count, but breakers open and the queue ages.

-- Counts of this moment, each up to webhook.count_limit(). `oldest_due` looks at endpoints that are sent to, `parked` counts
-- the due deliveries of the others. Dead letters of the extension's own events do not count: nobody waits for them.
CREATE OR REPLACE FUNCTION webhook.gauges(
    OUT endpoints bigint, OUT open_breakers bigint, OUT disabled_endpoints bigint, OUT oldest_due interval, OUT parked bigint,
    OUT dead_letters bigint)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    most CONSTANT int := webhook.count_limit();
    our_origin CONSTANT text := webhook.own_origin();
BEGIN
    SELECT count(*), count(*) FILTER (WHERE e.disabled_at IS NOT NULL) INTO endpoints, disabled_endpoints FROM webhook.endpoint e;
    SELECT count(*) INTO open_breakers
    FROM webhook.breaker b
    JOIN webhook.endpoint e ON e.id = b.endpoint_id
    WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) IN ('open', 'half_open');
    SELECT now() - min(greatest(first.next_attempt_at, first.created_at)) INTO oldest_due
    FROM webhook.endpoint e
    LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
    CROSS JOIN LATERAL (SELECT q.next_attempt_at, q.created_at FROM webhook.delivery_queue q
                        WHERE q.endpoint_id = e.id AND q.next_attempt_at <= now() AND webhook.is_ready(q, NULL)
                        ORDER BY q.next_attempt_at, q.event_id LIMIT 1) first
    WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) = 'ready';
    SELECT count(*) INTO parked
    FROM (SELECT FROM webhook.endpoint e
          LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
          CROSS JOIN LATERAL (SELECT FROM webhook.delivery_queue q
                              WHERE q.endpoint_id = e.id AND q.next_attempt_at <= now() AND webhook.is_ready(q, NULL)
                              LIMIT most) q
          WHERE webhook.endpoint_state(e.origin = our_origin, e.disabled_at, e.paused_at, b.state) <> 'ready'
          LIMIT most) q;
    SELECT count(*) FILTER (WHERE NOT webhook.is_own(d.event_type)) INTO dead_letters
    FROM (SELECT d.event_type FROM webhook.dead_letter d LIMIT most) d;
END $$;

CREATE OR REPLACE VIEW webhook.metrics AS
WITH recent AS (
    SELECT sum(s.attempts) AS attempts, sum(s.sent) AS sent, sum(s.failed) AS failed, sum(s.sent + s.failed) AS finished,
           sum(s.retried) AS retried, sum(s.retries) AS retries
    FROM webhook.stat s
    WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '15 min'
), latencies AS (
    SELECT jsonb_object_agg(l.class, l.number) AS of_deliveries
    FROM (SELECT e.key AS class, sum(e.value::bigint) AS number
          FROM webhook.stat s, jsonb_each_text(s.delivery_latency) AS e
          WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '15 min'
          GROUP BY e.key) l
), measured AS (
    SELECT m.*
    FROM recent r, latencies l, webhook.gauges() g
    CROSS JOIN LATERAL (VALUES
        ('webhook_delivery_success_rate', round(100 * r.sent / nullif(r.finished, 0), 2), '%', '<', 95, 'deliveries sent'),
        ('webhook_delivery_p95_latency', round(extract(epoch FROM webhook.latency_percentile(l.of_deliveries, 0.95)), 3), 's', '>', 10, 'from emit to success'),
        ('webhook_retry_rate', round(100 * r.retried / nullif(r.finished, 0), 2), '%', '>', 20, 'deliveries retried'),
        ('webhook_failed_count', coalesce(r.failed, 0), 'deliveries', '>', 10, 'deliveries failed'),
        ('webhook_avg_retries_per_delivery', round(r.retries / nullif(r.finished, 0), 3), 'retries', '>', 1.5, 'retries per delivery'),
        -- A single failed attempt is no outage.
        ('webhook_attempt_failure_rate',
         CASE WHEN r.attempts >= 5 THEN round(100 * greatest(r.attempts - r.sent, 0) / r.attempts, 2) END, '%', '>', 50, 'attempts failed'),
        -- Among thousands of endpoints some are always down.
        ('webhook_open_breakers', g.open_breakers, 'endpoints', '>', g.endpoints / 100, 'breakers not closed'),
        ('webhook_oldest_due', round(coalesce(extract(epoch FROM g.oldest_due), 0), 3), 's', '>', 60, 'wait of the oldest'),
        ('webhook_parked', g.parked, 'deliveries', '>', 1000, 'due, and not sent to'),
        ('webhook_dead_letters', g.dead_letters, 'deliveries', '>', 100, 'dead letters'),
        ('webhook_disabled_endpoints', g.disabled_endpoints, 'endpoints', '>', 10, 'endpoints disabled')
    ) AS m (metric, value, unit, alert_when, alert_threshold, meaning)
)
SELECT metric, value, unit, alert_when, alert_threshold,
       coalesce(CASE alert_when WHEN '<' THEN value < alert_threshold ELSE value > alert_threshold END, false) AS alert,
       meaning
FROM measured;

-- A metric in words, with the threshold that it is beyond. A count that has reached webhook.count_limit() may be higher.
CREATE OR REPLACE FUNCTION webhook.metric_in_words(m webhook.metrics) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_one CONSTANT boolean := m.value = 1;
    number CONSTANT text := CASE WHEN m.value = 0 THEN 'no'
                                 WHEN m.unit IN ('deliveries', 'endpoints') AND m.value >= webhook.count_limit()
                                 THEN format('at least %s', m.value) ELSE trim_scale(m.value)::text END;
    recently CONSTANT text := 'in the last 15 minutes';
    said text;
BEGIN
    IF m.metric = 'webhook_open_breakers' AND is_one THEN
        SELECT format('the circuit breaker of endpoint "%s" has been open for %s',
                      webhook.printable(webhook.address(e.tenant, e.name)), webhook.span_in_words(now() - b.opened_at))
        INTO said
        FROM webhook.breaker b JOIN webhook.endpoint e ON e.id = b.endpoint_id
        WHERE webhook.endpoint_state(e.origin = webhook.own_origin(), e.disabled_at, e.paused_at, b.state) IN ('open', 'half_open')
        LIMIT 1;
    END IF;
    said := coalesce(said, CASE m.metric
        WHEN 'webhook_delivery_success_rate' THEN format('%s%% of deliveries succeeded %s', trim_scale(m.value), recently)
        WHEN 'webhook_delivery_p95_latency' THEN
            format('95%% of deliveries took up to %s s from emit to success %s', trim_scale(m.value), recently)
        WHEN 'webhook_retry_rate' THEN format('%s%% of deliveries needed a retry %s', trim_scale(m.value), recently)
        WHEN 'webhook_failed_count' THEN
            format('%s %s failed %s', number, CASE WHEN is_one THEN 'delivery' ELSE 'deliveries' END, recently)
        WHEN 'webhook_avg_retries_per_delivery' THEN
            format('a delivery needed %s %s on average %s', trim_scale(m.value),
                   CASE WHEN is_one THEN 'retry' ELSE 'retries' END, recently)
        WHEN 'webhook_attempt_failure_rate' THEN format('%s%% of attempts failed %s', trim_scale(m.value), recently)
        WHEN 'webhook_open_breakers' THEN
            format('%s circuit %s open', number, CASE WHEN is_one THEN 'breaker is' ELSE 'breakers are' END)
        WHEN 'webhook_oldest_due' THEN
            CASE WHEN m.value = 0 THEN 'no delivery is due'
                 ELSE format('the oldest due delivery has waited for %s', webhook.span_in_words(make_interval(secs => m.value::float8))) END
        WHEN 'webhook_parked' THEN
            format('%s %s due at endpoints that nothing is sent to', number,
                   CASE WHEN is_one THEN 'delivery is' ELSE 'deliveries are' END)
        WHEN 'webhook_dead_letters' THEN
            format('%s dead %s kept', number, CASE WHEN is_one THEN 'letter is' ELSE 'letters are' END)
        WHEN 'webhook_disabled_endpoints' THEN
            format('%s %s disabled', number, CASE WHEN is_one THEN 'endpoint is' ELSE 'endpoints are' END)
    END);
    RETURN CASE
        WHEN m.value IS NULL THEN format('there is too little to measure %s', recently)
        WHEN NOT m.alert OR m.alert_threshold = 0 THEN said
        ELSE format('%s, %s %s%s', said, CASE m.alert_when WHEN '<' THEN 'below' ELSE 'above' END, trim_scale(m.alert_threshold),
                    CASE m.unit WHEN '%' THEN '%' WHEN 's' THEN ' s' END)
    END;
END $$;

CREATE OR REPLACE FUNCTION webhook.metric_remedy(metric text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE
        WHEN metric IN ('webhook_delivery_success_rate', 'webhook_failed_count', 'webhook_dead_letters') THEN
            'SELECT * FROM webhook.failed shows the dead letters; CALL webhook_replay_all() sends them again, webhook_discard() deletes them.'
        WHEN metric = 'webhook_disabled_endpoints' THEN
            'SELECT * FROM webhook.endpoint_status WHERE state = ''DISABLED'' shows them; webhook_resume() sends to one again.'
        WHEN metric = 'webhook_oldest_due' THEN
            'SELECT * FROM webhook_status() shows whether a sender is at work; webhook.max_in_flight and a relay make it faster.'
        ELSE 'SELECT * FROM webhook.endpoint_status WHERE state <> ''ACTIVE'' shows the endpoints in trouble; webhook_why() explains one.'
    END;

-- Leaves an alert for each metric that has crossed its threshold since the last look, in either direction. A metric that
-- wavers about its threshold raises an alert once a minute at most. Returns whether it has left any.
CREATE OR REPLACE FUNCTION webhook.check_metrics() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250 ms' AS $$
DECLARE
    crossed record;
    has_alerts boolean := false;
BEGIN
    FOR crossed IN
        SELECT m.metric, m.alert, webhook.metric_in_words(m) AS words
        FROM webhook.metrics m
        LEFT JOIN webhook.alarm a ON a.metric = m.metric
        WHERE m.alert <> (a.metric IS NOT NULL) AND (m.alert OR a.raised_at < now() - interval '1 min')
    LOOP
        IF crossed.alert THEN
            INSERT INTO webhook.alarm (metric) VALUES (crossed.metric) ON CONFLICT DO NOTHING;
        ELSE
            DELETE FROM webhook.alarm a WHERE a.metric = crossed.metric;
        END IF;
        CONTINUE WHEN NOT FOUND;
        -- If only events of the extension have opened breakers, an event about that would fail in the same way.
        INSERT INTO webhook.alert (endpoint_id, kind, metric, error, is_own)
        SELECT 0, CASE WHEN crossed.alert THEN 'raised' ELSE 'cleared' END, crossed.metric, crossed.words,
               crossed.metric = 'webhook_open_breakers' AND crossed.alert
               AND NOT EXISTS (SELECT FROM webhook.breaker b JOIN webhook.endpoint e ON e.id = b.endpoint_id
                               WHERE b.state <> 'CLOSED' AND EXISTS (SELECT FROM unnest(e.event_types) AS t
                                                                     WHERE NOT webhook.is_own(t) AND t NOT LIKE '!%'));
        has_alerts := true;
    END LOOP;
    RETURN has_alerts;
END $$;
-- Dead letters: deliveries that failed for good, as people see them and name them.
--
-- 56_replay.sql sends them again, 58_discard.sql deletes them, 52_retention.sql deletes them when their time is over.

-- The verdict and the answer are those of the last attempt that decided something; the server looks them up only if a query
-- asks for them.
CREATE OR REPLACE VIEW webhook.failed AS
SELECT d.event_id, d.event_type, webhook.address(n.tenant, n.name) AS endpoint, v.tenant, d.created_at, d.completed_at AS failed_at,
       d.attempts,
       (SELECT a.verdict FROM webhook.attempt a
        WHERE a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id AND a.verdict <> 'late'
        ORDER BY a.claim_seq DESC LIMIT 1) AS verdict,
       d.reason, d.last_status_code, d.last_error,
       (SELECT a.response_excerpt FROM webhook.attempt a
        WHERE a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id AND a.verdict <> 'late'
        ORDER BY a.claim_seq DESC LIMIT 1) AS last_answer,
       v.payload
FROM webhook.dead_letter d
LEFT JOIN webhook.event v ON v.id = d.event_id
LEFT JOIN (SELECT e.id, e.tenant, e.name FROM webhook.endpoint e UNION ALL SELECT r.id, r.tenant, r.name FROM webhook.removed_endpoint r) n
    ON n.id = d.endpoint_id;

CREATE OR REPLACE FUNCTION webhook.require_event(wanted_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = wanted_id)
       AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = wanted_id)
       AND NOT EXISTS (SELECT FROM webhook.attempt a WHERE a.event_id = wanted_id) THEN
        RAISE EXCEPTION 'event "%" does not exist', wanted_id USING ERRCODE = 'undefined_object',
            DETAIL = 'It was never committed, or it has been discarded or removed since.',
            HINT = 'An event has the id that webhook_emit() returned and receivers saw as webhook-id.';
    END IF;
END $$;

-- The endpoints of an address, with the removed ones that had it: their deliveries are still here, and the view shows them by
-- that address. Null for '*', which stands for every endpoint.
CREATE OR REPLACE FUNCTION webhook.named_endpoints(address text) RETURNS int[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed_ids int[];
BEGIN
    IF address = '*' THEN
        RETURN NULL;
    END IF;
    removed_ids := ARRAY(
        SELECT r.id FROM webhook.removed_endpoint r
        WHERE webhook.address(r.tenant, r.name) = address OR r.tenant || '/*' = address);
    IF cardinality(removed_ids) = 0 THEN
        RETURN webhook.addressed_endpoints(address);
    END IF;
    RETURN removed_ids || ARRAY(
        SELECT e.id FROM webhook.endpoint e
        WHERE webhook.address(e.tenant, e.name) = address OR e.tenant || '/*' = address);
END $$;
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
-- Replaying: deliveries that have ended, whatever their end, are sent again.
--
-- A replayed delivery starts anew: attempts 0, due now, under the same webhook-id, and the worker wakes at the commit. A
-- delivery that nobody can send any more is passed over and counted in a NOTICE: its endpoint was removed, or its event was
-- redacted or deleted. webhook.requeue() moves the rows.

CREATE OR REPLACE FUNCTION webhook.tell_passed_over(endpoint_gone bigint, payload_gone bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF endpoint_gone > 0 THEN
        RAISE NOTICE 'skipped % deliveries whose endpoint was removed', endpoint_gone
            USING HINT = 'webhook_discard() deletes those that failed, and DELETE FROM webhook.dead_letter WHERE .. many of them.';
    END IF;
    IF payload_gone > 0 THEN
        RAISE NOTICE 'skipped % deliveries whose event was redacted or deleted', payload_gone
            USING HINT = 'webhook_discard() deletes those that failed, and DELETE FROM webhook.dead_letter WHERE .. many of them.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.replay_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    ended CONSTANT text[] := '{FAILED, SENT, CANCELLED}';
    of_endpoints int[] := CASE WHEN endpoint IS NOT NULL THEN webhook.named_endpoints(endpoint) END;
    found record;
    replayed bigint;
BEGIN
    PERFORM webhook.require_event(replay_event.event_id);
    SELECT count(*) AS deliveries, count(*) FILTER (WHERE d.status <> ALL (ended)) AS queued,
           array_agg(d.event_id) FILTER (WHERE d.status = ANY (ended)) AS event_ids,
           array_agg(d.endpoint_id) FILTER (WHERE d.status = ANY (ended)) AS endpoint_ids,
           count(*) FILTER (WHERE d.status = ANY (ended) AND e.id IS NULL) AS endpoint_gone,
           count(*) FILTER (WHERE d.status = ANY (ended) AND e.id IS NOT NULL AND v.id IS NULL) AS payload_gone
    INTO found
    FROM webhook.delivery d
    LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id
    LEFT JOIN webhook.event v ON v.id = d.event_id AND v.redacted_at IS NULL
    WHERE d.event_id = replay_event.event_id AND (of_endpoints IS NULL OR d.endpoint_id = ANY (of_endpoints));

    replayed := webhook.change('replay', found.event_ids, found.endpoint_ids, ended);
    PERFORM webhook.tell_passed_over(found.endpoint_gone, found.payload_gone);
    IF found.queued > 0 THEN
        RAISE NOTICE 'skipped % deliveries that are queued already', found.queued
            USING HINT = format('UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = %L AND status = ''PENDING'' '
                                'makes them due now.', replay_event.event_id);
    ELSIF found.deliveries = 0 THEN
        RAISE NOTICE 'event % has no delivery to send again', replay_event.event_id
            USING HINT = 'CALL webhook_backfill() makes deliveries of events that an endpoint has none of.';
    END IF;
    RETURN replayed;
END $$;

-- The next deliveries of a run in the order of the primary key, at most run.batch_size, and those among them to replay. It
-- reads an index and never sorts: a sort would make a batch cost as much as all that is left. The settings must not reach the
-- function that moves the rows.
CREATE OR REPLACE FUNCTION webhook.next_of_replay(
    run webhook.replay, OUT met bigint, OUT last_event_id uuid, OUT last_endpoint_id int, OUT event_ids uuid[],
    OUT endpoint_ids int[], OUT endpoint_gone bigint, OUT payload_gone bigint)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    WITH visited AS MATERIALIZED (
        SELECT d.event_id, d.endpoint_id, d.event_type, d.completed_at
        FROM webhook.delivery d
        WHERE d.status = ANY (run.statuses)
          AND (d.event_id, d.endpoint_id) > (run.after_event_id, run.after_endpoint_id) AND d.event_id <= run.last_event_id
        ORDER BY d.event_id, d.endpoint_id LIMIT run.batch_size
    ), chosen AS MATERIALIZED (
        SELECT d.event_id, d.endpoint_id, e.id IS NULL AS endpoint_is_gone, v.id IS NULL AS payload_is_gone
        FROM visited d
        LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id
        LEFT JOIN webhook.event v ON v.id = d.event_id AND v.redacted_at IS NULL
        WHERE webhook.is_of_replay(run, d.endpoint_id, d.event_type, d.completed_at)
    )
    SELECT v.met, v.event_ids[v.met], v.endpoint_ids[v.met], c.event_ids, c.endpoint_ids, c.endpoint_gone, c.payload_gone
    INTO met, last_event_id, last_endpoint_id, event_ids, endpoint_ids, endpoint_gone, payload_gone
    FROM (SELECT count(*) AS met, array_agg(v.event_id) AS event_ids, array_agg(v.endpoint_id) AS endpoint_ids FROM visited v) v,
         (SELECT array_agg(c.event_id) AS event_ids, array_agg(c.endpoint_id) AS endpoint_ids,
                 count(*) FILTER (WHERE c.endpoint_is_gone) AS endpoint_gone,
                 count(*) FILTER (WHERE c.payload_is_gone AND NOT c.endpoint_is_gone) AS payload_gone FROM chosen c) c;
END $$;

-- Null stands for no condition. The function has no SET, so that the planner inlines it.
CREATE OR REPLACE FUNCTION webhook.is_of_replay(run webhook.replay, endpoint_id int, event_type text, ended_at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (run.of_endpoints IS NULL OR endpoint_id = ANY (run.of_endpoints))
       AND (run.of_type IS NULL OR event_type = run.of_type)
       AND (run.since IS NULL OR ended_at >= run.since)
       AND ended_at < run.before;

-- A run walks along the primary key from the first delivery to the last, so it visits no row twice. It takes only deliveries
-- that had ended before it began: it does not replay a delivery again that fails again.
CREATE OR REPLACE FUNCTION webhook.begin_replay(
    endpoint text, event_type text, since timestamptz, until timestamptz, statuses text[], batch_size int)
    RETURNS webhook.replay
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
    SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    run webhook.replay;
BEGIN
    PERFORM webhook.require_batch_size(batch_size);
    IF (statuses <@ '{FAILED, SENT, CANCELLED}' AND cardinality(statuses) > 0) IS NOT TRUE
       OR array_position(statuses, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'status is not valid' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Deliveries that can be replayed are FAILED, SENT or CANCELLED: status => ''{FAILED, CANCELLED}''.';
    END IF;
    run.of_endpoints := webhook.named_endpoints(endpoint);
    run.of_type := event_type;
    run.since := since;
    run.before := least(until, clock_timestamp());
    run.statuses := statuses;
    run.batch_size := batch_size;
    -- There is no min(uuid) before PostgreSQL 18; as text, ids have the same order.
    SELECT count(*), min(d.event_id::text COLLATE "C")::uuid, max(d.event_id::text COLLATE "C")::uuid
    INTO run.total, run.after_event_id, run.last_event_id
    FROM webhook.delivery d
    WHERE d.status = ANY (run.statuses) AND webhook.is_of_replay(run, d.endpoint_id, d.event_type, d.completed_at);
    run.after_endpoint_id := -2147483648;
    run.met := 0;
    run.replayed := 0;
    run.endpoint_gone := 0;
    run.payload_gone := 0;
    run.done := false;
    RAISE NOTICE 'replaying % deliveries, with a commit after every %', run.total, batch_size;
    RETURN run;
END $$;

CREATE OR REPLACE FUNCTION webhook.replay_batch(run webhook.replay) RETURNS webhook.replay
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    batch record;
    tenths_told bigint := run.met * 10 / greatest(run.total, 1);
BEGIN
    SELECT * INTO batch FROM webhook.next_of_replay(run);
    run.replayed := run.replayed + webhook.change('replay', batch.event_ids, batch.endpoint_ids, run.statuses);
    run.met := run.met + coalesce(cardinality(batch.event_ids), 0);
    run.endpoint_gone := run.endpoint_gone + batch.endpoint_gone;
    run.payload_gone := run.payload_gone + batch.payload_gone;
    run.after_event_id := batch.last_event_id;
    run.after_endpoint_id := batch.last_endpoint_id;
    run.done := batch.met < run.batch_size;

    IF run.done THEN
        RAISE NOTICE 'replayed % deliveries', run.replayed;
        PERFORM webhook.tell_passed_over(run.endpoint_gone, run.payload_gone);
    ELSIF run.met * 10 / greatest(run.total, 1) > tenths_told THEN
        RAISE NOTICE 'replayed % of % deliveries', run.replayed, run.total;
    END IF;
    RETURN run;
END $$;

CREATE OR REPLACE FUNCTION webhook.require_batch_size(batch_size int) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (batch_size > 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'batch_size must be positive' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave batch_size out for the default.';
    END IF;
END $$;

-- Sends again all deliveries of an address ('*': of every endpoint) that have ended so, from `since` on and before `until`, in
-- batches of one transaction each. They are READ COMMITTED, so that commits of others are no conflict. The procedure has no
-- search_path of its own, since it commits; so nothing here depends on one.
CREATE OR REPLACE PROCEDURE public.webhook_replay_all(
    endpoint text, event_type text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    status text[] DEFAULT '{FAILED}', batch_size int DEFAULT 1000)
    LANGUAGE plpgsql AS $$
DECLARE
    run webhook.replay;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_replay_all()');
    run := webhook.begin_replay(endpoint, event_type, since, until, status, batch_size);
    LOOP
        COMMIT;
        EXIT WHEN run.done;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        run := webhook.replay_batch(run);
    END LOOP;
END $$;
-- Backfilling: events that were emitted before an endpoint wanted them are sent to it after all.
--
-- A backfill makes deliveries of kept events that the endpoint matches now, by tenant, types and filter, and that it has no
-- delivery of. It walks along the ids of the events, in the order of their emission. An event keeps neither the keys nor the
-- times of its emission (ordering_key, coalesce_key, deliver_at, expires_at), nor the endpoints that it was limited to: a
-- backfilled delivery has none of them and is due now.
--
-- A missing delivery is proof only as long as the delivery would still be here: for events that are younger than
-- webhook.retention_sent, and under a policy that keeps sent deliveries.

CREATE OR REPLACE FUNCTION webhook.begin_backfill(endpoint text, since timestamptz, until timestamptz, event_type text, batch_size int)
    RETURNS webhook.backfill
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run webhook.backfill;
    addressed int[] := webhook.addressed_endpoints(endpoint);
    forgetful record;
BEGIN
    PERFORM webhook.require_batch_size(batch_size);
    SELECT count(*) AS endpoints, min(webhook.address(e.tenant, e.name)) AS address, min(e.policy) AS policy INTO forgetful
    FROM webhook.endpoint e WHERE e.id = ANY (addressed) AND NOT (webhook.policy_of(e.policy)).keep_sent;
    IF forgetful.endpoints > 0 AND forgetful.endpoints = cardinality(addressed) THEN
        RAISE EXCEPTION 'endpoint "%" keeps no record of the deliveries that were sent', forgetful.address
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Its policy "%s" has keep_sent = false, so events might be sent twice.', forgetful.policy),
                  HINT = 'Give the endpoint a policy that keeps them first: UPDATE webhook.endpoint SET policy = ..';
    ELSIF forgetful.endpoints > 0 THEN
        RAISE NOTICE 'skipped % endpoints that keep no record of sent deliveries', forgetful.endpoints
            USING HINT = 'Their policies have keep_sent = false, so events might be sent twice.';
    END IF;
    run.of_endpoints := ARRAY(SELECT e.id FROM webhook.endpoint e
                              WHERE e.id = ANY (addressed) AND (webhook.policy_of(e.policy)).keep_sent);
    run.of_type := event_type;
    run.since := greatest(since, now() - nullif(webhook.setting('retention_sent'), '-1')::interval);
    run.before := least(until, clock_timestamp());
    run.batch_size := batch_size;
    -- An id is made before created_at is read, on a busy server some milliseconds before: created_at decides.
    run.after_event_id := coalesce(webhook.first_id(run.since - interval '1 min'), '00000000-0000-0000-0000-000000000000');
    run.before_event_id := webhook.first_id(run.before + interval '1 ms');
    run.total := (SELECT count(*) FROM webhook.event v WHERE v.id > run.after_event_id AND v.id < run.before_event_id);
    run.met := 0;
    run.made := 0;
    run.done := false;
    RAISE NOTICE 'looking at % events, with a commit after every %', run.total, batch_size;
    RETURN run;
END $$;

-- The next events in the order of their emission. The settings must not reach the lookup of subscribers, whose index needs a
-- bitmap.
CREATE OR REPLACE FUNCTION webhook.page_of_events(after_event_id uuid, before_event_id uuid, page_size int) RETURNS uuid[]
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN ARRAY(SELECT v.id FROM webhook.event v WHERE v.id > after_event_id AND v.id < before_event_id
                 ORDER BY v.id LIMIT page_size);
END $$;

-- The deliveries of these events that endpoints of the run do not have. It tries filters here, before anything is locked.
CREATE OR REPLACE FUNCTION webhook.missing_deliveries(
    run webhook.backfill, page uuid[], OUT event_ids uuid[], OUT endpoint_ids int[], OUT event_types text[], OUT max_attempts int[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT v.id, v.tenant, v.event_type, v.payload
        FROM unnest(page) AS p (id)
        CROSS JOIN LATERAL (
            SELECT * FROM webhook.event v
            WHERE v.id = p.id AND v.redacted_at IS NULL AND v.event_type NOT LIKE 'webhook.%'
              AND (run.of_type IS NULL OR v.event_type = run.of_type)
              AND (run.since IS NULL OR v.created_at >= run.since) AND v.created_at < run.before
            LIMIT 1
        ) v
    ), subscription AS MATERIALIZED (
        SELECT k.tenant, k.event_type, s.endpoint_id, s.max_attempts, s.filter
        FROM (SELECT DISTINCT w.tenant, w.event_type FROM wanted w) k
        CROSS JOIN LATERAL webhook.subscribers(webhook.matching_keys(k.tenant, k.event_type)) s
        WHERE s.endpoint_id = ANY (run.of_endpoints)
    )
    SELECT array_agg(w.id), array_agg(s.endpoint_id), array_agg(w.event_type), array_agg(s.max_attempts)
    INTO event_ids, endpoint_ids, event_types, max_attempts
    FROM wanted w
    JOIN subscription s ON s.event_type = w.event_type AND s.tenant IS NOT DISTINCT FROM w.tenant
    WHERE NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = w.id AND d.endpoint_id = s.endpoint_id OFFSET 0)
      AND (s.filter IS NULL OR webhook.passes(s.filter, w.event_type, w.payload));
END $$;

-- It locks the events first, and only then checks again whether a delivery is missing: retention passes over a locked event,
-- the lock waits for a redaction, and of two backfills the second one sees the deliveries of the first one.
CREATE OR REPLACE FUNCTION webhook.backfill_batch(run webhook.backfill) RETURNS webhook.backfill
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    page uuid[] := webhook.page_of_events(run.after_event_id, run.before_event_id, run.batch_size);
    missing record;
    locked uuid[];
    made bigint := 0;
    tenths_told bigint := run.met * 10 / greatest(run.total, 1);
BEGIN
    SELECT * INTO missing FROM webhook.missing_deliveries(run, page);
    IF missing.event_ids IS NOT NULL THEN
        locked := ARRAY(
            SELECT v.id FROM (SELECT DISTINCT i.id FROM unnest(missing.event_ids) AS i (id) ORDER BY i.id) i
            CROSS JOIN LATERAL (
                SELECT v.id FROM webhook.event v WHERE v.id = i.id AND v.redacted_at IS NULL LIMIT 1 FOR NO KEY UPDATE
            ) v);
        INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, wait_reason, created_at)
        SELECT m.event_id, m.endpoint_id, m.event_type, m.max_attempts, now(), 'replayed', now()
        FROM unnest(missing.event_ids, missing.endpoint_ids, missing.event_types, missing.max_attempts)
            AS m (event_id, endpoint_id, event_type, max_attempts)
        WHERE m.event_id = ANY (locked)
          AND NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id OFFSET 0)
        ORDER BY m.event_id, m.endpoint_id
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS made = ROW_COUNT;
        IF made > 0 THEN
            PERFORM webhook.wake(missing.endpoint_ids, now());
        END IF;
    END IF;
    run.after_event_id := page[cardinality(page)];
    run.met := run.met + cardinality(page);
    run.made := run.made + made;
    run.done := cardinality(page) < run.batch_size;

    IF run.done THEN
        RAISE NOTICE 'made % deliveries', run.made;
    ELSIF run.met * 10 / greatest(run.total, 1) > tenths_told THEN
        RAISE NOTICE 'looked at % of % events and made % deliveries', run.met, run.total, run.made;
    END IF;
    RETURN run;
END $$;

-- Makes the missing deliveries for the endpoints of an address, of events that were emitted from `since` on (null: of all that
-- are kept) and before `until`, in batches of one transaction each, as webhook_replay_all() does.
CREATE OR REPLACE PROCEDURE public.webhook_backfill(
    endpoint text, since timestamptz, until timestamptz DEFAULT NULL, event_type text DEFAULT NULL, batch_size int DEFAULT 1000)
    LANGUAGE plpgsql AS $$
DECLARE
    run webhook.backfill;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_backfill()');
    run := webhook.begin_backfill(endpoint, since, until, event_type, batch_size);
    LOOP
        COMMIT;
        EXIT WHEN run.done;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        run := webhook.backfill_batch(run);
    END LOOP;
END $$;
-- Discarding: people delete dead letters that nobody wants to send any more.
--
-- webhook_discard() deletes the dead letters of one event, with their attempts, and the event when nothing else needs it. To
-- discard many, people write DELETE FROM webhook.dead_letter WHERE ..: retention (52_retention.sql) deletes the attempts and
-- events that are left then, when their time is over. An operator may delete from that leaf alone: an UPDATE of
-- webhook.delivery cancels a queued delivery, and operators may not change the history.

-- This locks the events first: of two people who discard the last two deliveries of one, the later one sees that they were the
-- last.
CREATE OR REPLACE FUNCTION webhook.discard(event_ids uuid[], endpoint_ids int[]) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    discarded bigint;
BEGIN
    PERFORM FROM webhook.event v WHERE v.id = ANY (event_ids) ORDER BY v.id FOR UPDATE;
    WITH gone AS (
        DELETE FROM webhook.dead_letter d
        USING (SELECT * FROM unnest(event_ids, endpoint_ids) AS m (event_id, endpoint_id) ORDER BY 1, 2) m
        WHERE d.event_id = m.event_id AND d.endpoint_id = m.endpoint_id
        RETURNING d.event_id, d.endpoint_id
    ), unlogged AS (
        DELETE FROM webhook.attempt a USING gone g WHERE a.event_id = g.event_id AND a.endpoint_id = g.endpoint_id
    )
    SELECT count(*) INTO discarded FROM gone;
    PERFORM webhook.forget(event_ids, NULL, 'infinity');
    RETURN discarded;
END $$;

CREATE OR REPLACE FUNCTION webhook.discard_event(event_id uuid, endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_endpoints int[] := CASE WHEN endpoint IS NOT NULL THEN webhook.named_endpoints(endpoint) END;
    found record;
BEGIN
    PERFORM webhook.require_event(discard_event.event_id);
    SELECT array_agg(d.event_id) AS event_ids, array_agg(d.endpoint_id) AS endpoint_ids
    INTO found
    FROM webhook.dead_letter d
    WHERE d.event_id = discard_event.event_id AND (of_endpoints IS NULL OR d.endpoint_id = ANY (of_endpoints));
    IF found.event_ids IS NULL THEN
        RAISE NOTICE 'event % has no failed delivery', discard_event.event_id
            USING HINT = format('UPDATE webhook.delivery SET status = ''CANCELLED'' WHERE event_id = %L '
                                'AND status IN (''PENDING'', ''SENDING'') cancels deliveries that are queued.', discard_event.event_id);
    END IF;
    RETURN webhook.change('discard', found.event_ids, found.endpoint_ids);
END $$;
-- Redacting: deletes an event's payload, and all answers of receivers, for good; when and where it was sent stays known.

-- Deletes the payload and the answers of receivers from every table, and cancels queued deliveries. Error texts stay: they
-- consist of our own words and a status code. Returns the number of rows that had something to lose.
CREATE OR REPLACE FUNCTION webhook.redact(redacted_id uuid) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    locked bigint;
    changed bigint;
    excerpts bigint;
BEGIN
    UPDATE webhook.event v SET payload = 'null', payload_bytes = 4, redacted_at = now() WHERE v.id = redacted_id AND v.redacted_at IS NULL;
    GET DIAGNOSTICS changed = ROW_COUNT;

    -- Other sessions see the redaction only after its commit: until then no delivery may leave its leaf, be sent, and log an
    -- answer. The next round locks a delivery that the worker or a person moved while we waited for it.
    LOOP
        SELECT count(*) INTO locked
        FROM (SELECT FROM webhook.delivery d WHERE d.event_id = redacted_id ORDER BY d.endpoint_id FOR UPDATE) l;
        EXIT WHEN locked = (SELECT count(*) FROM webhook.delivery d WHERE d.event_id = redacted_id);
    END LOOP;
    changed := changed + (
        SELECT webhook.finish_queued(array_agg(q.event_id), array_agg(q.endpoint_id), 'CANCELLED', 'redacted')
        FROM webhook.delivery_queue q WHERE q.event_id = redacted_id);
    PERFORM webhook.pass_turn(d.endpoint_id, d.ordering_key, d.event_id)
    FROM webhook.dead_letter d WHERE d.event_id = redacted_id AND d.ordering_key IS NOT NULL;

    UPDATE webhook.attempt a SET response_excerpt = NULL WHERE a.event_id = redacted_id AND a.response_excerpt IS NOT NULL;
    GET DIAGNOSTICS excerpts = ROW_COUNT;
    RETURN changed + excerpts;
END $$;

-- Removes an event's payload and all answers of receivers; when and where it was sent stays known. Queued deliveries are
-- cancelled, and the event is never sent again. Returns the number of rows changed: the event, deliveries and attempts.
CREATE OR REPLACE FUNCTION webhook.redact_event(event_id uuid) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM webhook.require_event(redact_event.event_id);
    RETURN webhook.change('redact', ARRAY[redact_event.event_id], NULL);
END $$;
-- Health: problems of delivery as a whole, and their remedies, for webhook_status().

CREATE OR REPLACE FUNCTION webhook.backlog_limit() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 1073741824;

-- The endpoint that has most of a long queue, and the disk space of its deliveries and events, by the planner's statistics: a
-- count would read all of the queue. Returns no row if no endpoint has more deliveries than are counted.
CREATE OR REPLACE FUNCTION webhook.largest_backlog(OUT endpoint text, OUT deliveries bigint, OUT bytes bigint)
    RETURNS SETOF record
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT webhook.address(e.tenant, e.name), round(c.reltuples * f.share)::bigint,
           round(pg_total_relation_size(c.oid) * f.share + c.reltuples * f.share * coalesce(sample.bytes, 0))::bigint
    FROM pg_class c
    JOIN pg_stats s ON s.schemaname = 'webhook' AND s.tablename = 'delivery_queue' AND s.attname = 'endpoint_id'
    CROSS JOIN LATERAL (SELECT (s.most_common_vals::text::int[])[1] AS endpoint_id, s.most_common_freqs[1]::float8 AS share) f
    CROSS JOIN LATERAL (SELECT e.tenant, e.name FROM webhook.endpoint e WHERE e.id = f.endpoint_id LIMIT 1) e
    CROSS JOIN LATERAL (
        SELECT count(*) AS queued FROM webhook.head_of_queue(f.endpoint_id)
    ) now_queued
    LEFT JOIN LATERAL (
        SELECT avg(pg_column_size(v)) AS bytes
        FROM (SELECT q.event_id FROM webhook.head_of_queue(f.endpoint_id) q LIMIT 100) q
        JOIN webhook.event v ON v.id = q.event_id
    ) sample ON true
    WHERE c.oid = 'webhook.delivery_queue'::regclass AND now_queued.queued > webhook.count_limit();
END $$;

-- Problems, each with its weight: critical if nothing is delivered, warning if somebody should look, ok if it is only good to
-- know. `state` and `reason` are those of the worker, or of the relays that deliver instead.
CREATE OR REPLACE FUNCTION webhook.problems(state text, reason text) RETURNS TABLE (health text, problem text)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The figures on a standby are those of its primary, which reports them itself.
    IF pg_is_in_recovery() THEN
        RETURN QUERY SELECT 'ok', 'this server is a standby; its primary delivers';
        RETURN;
    END IF;

    IF state <> 'running' THEN
        RETURN QUERY SELECT
            CASE WHEN state IN ('starting', 'restarting') THEN 'warning' ELSE 'critical' END,
            concat_ws(': ', CASE WHEN state IN ('no worker', 'no relay') THEN state || ' delivers from this database'
                                 WHEN state = 'not preloaded' THEN 'the library is not preloaded'
                                 WHEN state = 'held' THEN 'delivery is held'
                                 WHEN state = 'disabled' THEN 'delivery is off'
                                 ELSE 'the worker is ' || state END, reason);
    END IF;

    RETURN QUERY
    -- A backlog that drains after an outage is old too, but then deliveries are sent.
    SELECT CASE WHEN m.metric = 'webhook_oldest_due' AND m.value > 900
                     AND NOT EXISTS (SELECT FROM webhook.stat s
                                     WHERE s.endpoint_id = 0 AND s.grain = 'minute' AND s.begins_at > now() - interval '5 min'
                                       AND s.sent > 0)
                THEN 'critical' ELSE 'warning' END,
           format('%s (%s)', webhook.metric_in_words(m), m.metric)
    FROM webhook.metrics m WHERE m.alert;

    RETURN QUERY
    SELECT 'warning', format('retention is behind: rows stay %s longer than they should', date_trunc('minute', l.lag))
    FROM webhook.retention_lag() AS l (lag) WHERE l.lag > interval '10 min';

    RETURN QUERY
    SELECT 'warning', format('endpoint "%s" fills the disk: about %s deliveries wait for it, about %s; SELECT webhook_why(%s) explains it',
                             b.endpoint, b.deliveries, pg_size_pretty(b.bytes), quote_literal(b.endpoint))
    FROM webhook.largest_backlog() b WHERE b.bytes > webhook.backlog_limit();

    IF state = 'running' AND webhook.is_without_site() THEN
        RETURN QUERY SELECT 'ok', 'webhook.site is not set: a physical copy of this server (base backup, snapshot) would send too';
    END IF;
END $$;
-- webhook_status() and the views on endpoints and waiting deliveries: people look at these first.

-- A server cannot tell a physical copy from a failover: the copy sends, unless it has another webhook.site. Without the
-- library a copy has no sender until somebody starts a relay for it, and the site is a row that is copied too.
CREATE OR REPLACE FUNCTION webhook.is_without_site() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN webhook.setting('site') = '' AND NOT webhook.is_portable() AND EXISTS (SELECT FROM webhook.endpoint);

-- A sender looks every few seconds at the endpoints of another installation, whether a copy of this server would send too, and
-- the longest time that a request may take.
CREATE OR REPLACE FUNCTION webhook.survey(OUT foreign_endpoints bigint, OUT is_without_site boolean, OUT longest_request_seconds bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    foreign_endpoints := webhook.foreign_endpoints();
    is_without_site := webhook.is_without_site();
    longest_request_seconds := webhook.longest_request_seconds();
END $$;

CREATE OR REPLACE FUNCTION webhook.worker_state(
    OUT pid int, OUT state text, OUT reason text, OUT in_flight int, OUT last_error text, OUT last_error_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    foreign_count bigint := webhook.foreign_endpoints();
BEGIN
    SELECT w.pid, w.state, w.reason, w.in_flight, w.last_error, w.last_error_at
    INTO pid, state, reason, in_flight, last_error, last_error_at
    FROM webhook.worker_report() w;

    IF webhook.is_portable() THEN
        worker_state.state := CASE WHEN NOT webhook.setting('enabled')::boolean THEN 'disabled'
                                   WHEN cardinality(webhook.living_senders()) > 0 THEN 'running' ELSE 'no relay' END;
        worker_state.reason := CASE worker_state.state WHEN 'disabled' THEN 'webhook.enabled is off'
                                                       WHEN 'no relay' THEN 'start webhook-relay run for this database' END;
    ELSIF NOT webhook.is_preloaded() THEN
        worker_state.state := 'not preloaded';
        worker_state.reason := 'add webhook to shared_preload_libraries in postgresql.conf and restart the server';
    ELSIF to_regrole('webhook_owner') IS NULL THEN
        worker_state.state := 'no worker';
        worker_state.reason := 'role webhook_owner does not exist; ALTER ROLE .. RENAME TO webhook_owner gives it back its name';
    ELSIF coalesce(worker_state.state, 'no worker') = 'no worker' AND coalesce(worker_state.reason, '') = '' THEN
        worker_state.state := 'no worker';
        worker_state.reason := 'none has been started for this database yet; the log of the server may say why';
    END IF;

    IF worker_state.state = 'running' AND foreign_count > 0 THEN
        worker_state.state := 'held';
        worker_state.reason := format(
            '%s of %s endpoints belong to another installation (a restored or copied database?); SELECT webhook_adopt() takes them over',
            foreign_count, (SELECT count(*) FROM webhook.endpoint));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.count_limit() RETURNS int LANGUAGE sql IMMUTABLE RETURN 10000;

-- The deliveries of an endpoint, up to the limit of counts; first those that only time keeps back, the oldest of them first,
-- where those in flight are.
CREATE OR REPLACE FUNCTION webhook.head_of_queue(endpoint int) RETURNS SETOF webhook.delivery_queue
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT q.* FROM (
            SELECT due.* FROM (SELECT q.* FROM webhook.delivery_queue q
                               WHERE q.endpoint_id = head_of_queue.endpoint AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                               ORDER BY q.next_attempt_at, q.event_id LIMIT webhook.count_limit() + 1) due
            UNION ALL
            SELECT aside.* FROM (SELECT q.* FROM webhook.delivery_queue q
                                 WHERE q.endpoint_id = head_of_queue.endpoint
                                   AND (q.wait_reason = 'parked' OR q.waits_for IS NOT NULL)
                                 LIMIT webhook.count_limit() + 1) aside
        ) q LIMIT webhook.count_limit() + 1;
    END;

-- The number of deliveries in the queue and of due ones, each up to the limit; whether there are more; since when the oldest
-- has been due, by one probe of an index for each endpoint; and the bytes of their payloads, estimated from the first 1,000
-- deliveries and, if there are more than are counted, from the planner's statistics.
CREATE OR REPLACE FUNCTION webhook.queue_gauge(
    OUT queued bigint, OUT due bigint, OUT more boolean, OUT oldest_due interval, OUT queued_bytes bigint)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    most CONSTANT int := webhook.count_limit();
BEGIN
    SELECT count(*) INTO queued FROM (SELECT FROM webhook.delivery_queue q LIMIT most + 1) q;
    SELECT count(*) FILTER (WHERE webhook.is_ready(q, NULL)) INTO due
    FROM (SELECT q.* FROM webhook.endpoint e
          CROSS JOIN LATERAL (SELECT q.* FROM webhook.delivery_queue q
                              WHERE q.endpoint_id = e.id AND q.wait_reason <> 'parked' AND q.waits_for IS NULL
                                AND q.next_attempt_at <= now()
                              LIMIT most) q
          LIMIT most) q;
    SELECT now() - min(greatest(first.next_attempt_at, first.created_at)) INTO oldest_due
    FROM webhook.endpoint e
    CROSS JOIN LATERAL (SELECT q.next_attempt_at, q.created_at FROM webhook.delivery_queue q
                        WHERE q.endpoint_id = e.id AND q.next_attempt_at <= now() AND webhook.is_ready(q, NULL)
                        ORDER BY q.next_attempt_at, q.event_id LIMIT 1) first;
    more := queued > most;
    SELECT round(avg(webhook.payload_size(v)) * CASE WHEN more THEN greatest(c.reltuples, queued) ELSE queued END) INTO queued_bytes
    FROM (SELECT q.event_id FROM webhook.delivery_queue q LIMIT 1000) q
    CROSS JOIN LATERAL (SELECT v FROM webhook.event v WHERE v.id = q.event_id LIMIT 1) v
    CROSS JOIN (SELECT c.reltuples FROM pg_class c WHERE c.oid = 'webhook.delivery_queue'::regclass) c
    GROUP BY c.reltuples;
    queued_bytes := coalesce(queued_bytes, 0);
    queued := least(queued, most);
END $$;

-- The senders of this database, for people. The worker says in shared memory how many deliveries it has in flight.
CREATE OR REPLACE FUNCTION webhook.senders_at_work(in_flight_of_worker int, OUT senders jsonb, OUT in_flight_of_relays int)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    living CONSTANT int[] := webhook.living_senders();
BEGIN
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'kind', s.kind, 'host', s.host, 'version', s.version, 'since', s.begun_at,
               'in_flight', CASE s.kind WHEN 'worker' THEN in_flight_of_worker ELSE s.in_flight END,
               'shares', (SELECT count(*) FROM webhook.share h WHERE h.sender_id = s.id)) ORDER BY s.id), '[]'),
           coalesce(sum(s.in_flight) FILTER (WHERE s.kind = 'relay'), 0)
    INTO senders, in_flight_of_relays
    FROM webhook.sender s WHERE s.id = ANY (living);
END $$;

-- Health is the worst of webhook.problems(), made for a probe; reason lists them all.
CREATE OR REPLACE FUNCTION webhook.status()
    RETURNS TABLE (database name, health text, state text, reason text, worker_pid int, in_flight int, queued bigint, due bigint,
                   more boolean, oldest_due interval, queued_bytes bigint, retention_lag interval, last_error text,
                   last_error_at timestamptz, senders jsonb)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT current_database(), coalesce(found.health, 'ok'), said.state, found.reasons, w.pid,
           coalesce(w.in_flight, 0) + at_work.in_flight_of_relays, q.queued, q.due, q.more, q.oldest_due, q.queued_bytes,
           webhook.retention_lag(), w.last_error, w.last_error_at, at_work.senders
    FROM webhook.worker_state() w
    CROSS JOIN webhook.queue_gauge() q
    CROSS JOIN LATERAL webhook.senders_at_work(coalesce(w.in_flight, 0)) at_work
    -- If relays deliver, a missing worker is no problem.
    CROSS JOIN LATERAL (SELECT NOT at_work.senders @> '[{"kind": "worker"}]' AND at_work.senders @> '[{"kind": "relay"}]'
                               AND webhook.foreign_endpoints() = 0 AND w.state IS DISTINCT FROM 'disabled' AS instead) relayed
    CROSS JOIN LATERAL (SELECT CASE WHEN relayed.instead THEN 'running' ELSE w.state END AS state,
                               CASE WHEN NOT relayed.instead THEN w.reason END AS reason) said
    CROSS JOIN LATERAL (
        SELECT (array_agg(p.health ORDER BY array_position('{critical, warning, ok}', p.health)))[1] AS health,
               string_agg(p.problem, '; ' ORDER BY array_position('{critical, warning, ok}', p.health), p.ordinal) AS reasons
        FROM webhook.problems(said.state, said.reason) WITH ORDINALITY AS p (health, problem, ordinal)
    ) found;
END $$;

-- The path of a URL often has credentials.
CREATE OR REPLACE FUNCTION webhook.masked_url(url text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN regexp_replace(url, '^([^:]+://[^/?]+)[/?].+$', E'\\1/***');

CREATE OR REPLACE FUNCTION webhook.own_origin() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN webhook.origin();
END $$;

-- Each endpoint and how it is doing, the narrow columns first. Counts of deliveries are those of this moment and end at
-- webhook.count_limit(); `more` says that one of them does. Bytes are those of the payloads that are counted, estimated from
-- the first 1,000. The last success, the extension's own events not counted, is known to within 5 s, or longer with more than
-- 500 busy endpoints.
CREATE OR REPLACE VIEW webhook.endpoint_status AS
SELECT webhook.address(e.tenant, e.name) AS endpoint,
       CASE
           WHEN s.state <> 'ready' THEN upper(s.state)
           WHEN b.consecutive_failures > 0 THEN 'DEGRADED'
           ELSE 'ACTIVE'
       END AS state,
       CASE s.state WHEN 'held' THEN 'other installation' WHEN 'disabled' THEN e.disabled_reason WHEN 'paused' THEN NULL
                    ELSE CASE WHEN b.consecutive_failures > 0 THEN b.reason END END AS reason,
       CASE s.state WHEN 'held' THEN NULL WHEN 'disabled' THEN e.disabled_at WHEN 'paused' THEN e.paused_at
                    ELSE b.opened_at END AS since,
       least(queue.queued, webhook.count_limit()) AS queued,
       coalesce((SELECT round(avg(webhook.payload_size(v)) * least(queue.queued, webhook.count_limit()))::bigint
                 FROM (SELECT q.event_id FROM webhook.head_of_queue(e.id) q LIMIT 1000) q
                 JOIN webhook.event v ON v.id = q.event_id), 0) AS queued_bytes,
       queue.in_flight,
       CASE WHEN s.state <> 'ready' THEN least(queue.due, webhook.count_limit()) ELSE 0 END AS kept_back,
       least(dead.failed, webhook.count_limit()) AS failed,
       greatest(queue.queued, dead.failed) > webhook.count_limit() AS more,
       coalesce(b.consecutive_failures, 0) AS consecutive_failures,
       coalesce(b.trips, 0) AS trips,
       CASE s.state WHEN 'open' THEN b.probe_at END AS next_probe_at,
       total.last_sent_at AS last_success_at, b.last_failure_at, b.last_error,
       e.policy, e.tenant, e.created_at, e.event_types, e.filter, e.format, webhook.masked_url(e.url) AS url,
       (SELECT coalesce(jsonb_object_agg(h.key, '***'), '{}') FROM jsonb_each(e.headers) AS h) AS headers,
       e.metadata, e.id AS endpoint_id
FROM webhook.endpoint e
LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
CROSS JOIN LATERAL (
    SELECT webhook.endpoint_state(e.origin = (SELECT webhook.own_origin()), e.disabled_at, e.paused_at, b.state) AS state
) s
CROSS JOIN LATERAL (
    SELECT count(*) AS queued, count(*) FILTER (WHERE q.status = 'SENDING') AS in_flight,
           count(*) FILTER (WHERE webhook.is_ready(q, b.retries_before)) AS due
    FROM webhook.head_of_queue(e.id) q
) queue
CROSS JOIN LATERAL (
    SELECT count(*) AS failed
    FROM (SELECT FROM webhook.dead_letter d WHERE d.endpoint_id = e.id LIMIT webhook.count_limit() + 1) d
) dead
LEFT JOIN webhook.stat total ON total.endpoint_id = e.id AND total.grain = 'total';

-- Deliveries that wait and why, in a word: the state of the endpoint (held, disabled, paused, open, half_open) before the
-- delivery's own reason (parked, ordered, retry, scheduled, expired); 'due' if the next claim takes it. next_attempt_at is its
-- own time, null if a person has parked it.
CREATE OR REPLACE VIEW webhook.waiting AS
SELECT coalesce(webhook.address(e.tenant, e.name), webhook.address(r.tenant, r.name)) AS endpoint, q.event_type, q.event_id,
       CASE WHEN e.id IS NULL THEN 'removed'
            WHEN s.state = 'held' OR s.state <> 'ready' AND q.event_id IS DISTINCT FROM b.test_event_id THEN s.state
            ELSE webhook.wait_in_a_word(q, b.retries_before) END AS why,
       CASE WHEN q.wait_reason <> 'parked' THEN q.next_attempt_at END AS next_attempt_at,
       q.reason, q.last_error
FROM webhook.delivery_queue q
LEFT JOIN webhook.endpoint e ON e.id = q.endpoint_id
LEFT JOIN webhook.removed_endpoint r ON r.id = q.endpoint_id
LEFT JOIN webhook.breaker b ON b.endpoint_id = q.endpoint_id
CROSS JOIN LATERAL (
    SELECT webhook.endpoint_state(e.origin = (SELECT webhook.own_origin()), e.disabled_at, e.paused_at, b.state) AS state
) s
WHERE q.status = 'PENDING';
-- Why: the state of an event or an endpoint, in plain sentences that name the command that changes it. They contain no URL,
-- header or secret, and neither do the errors that they quote. A NULL within format() is nothing: it leaves out the optional
-- parts of a sentence. 30_readiness.sql says what is ready.

CREATE OR REPLACE FUNCTION webhook.why_server() RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    worker record;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NEXT 'Nothing is delivered here: this server is a standby; its primary delivers.';
        RETURN;
    END IF;
    SELECT w.state, w.reason INTO worker FROM webhook.worker_state() w;
    IF worker.state = 'not preloaded' THEN
        RETURN NEXT format('Nothing is delivered: the library is not preloaded; %s.', worker.reason);
    ELSIF worker.state = 'disabled' THEN
        RETURN NEXT 'Nothing is delivered now: webhook.enabled is off. Set it to on in postgresql.conf, then SELECT pg_reload_conf().';
    ELSIF worker.state = 'held' THEN
        RETURN NEXT format('Delivery is held: %s.', worker.reason);
    ELSIF worker.state <> 'running' THEN
        RETURN NEXT format('Nothing is delivered now: %s%s. SELECT * FROM webhook_status() shows more.',
                           CASE WHEN worker.state LIKE 'no %' THEN 'there is ' || worker.state ELSE 'the worker is ' || worker.state END,
                           ' (' || worker.reason || ')');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.as_event_id(about text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN about::uuid;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN NULL;
END $$;

-- Explains an event, by its id, or an endpoint, by its address; null stands for the newest event. It explains the extension's
-- own events only when they are asked for.
CREATE OR REPLACE FUNCTION webhook.why(about text) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asked_event_id uuid := webhook.as_event_id(about);
    named int[];
BEGIN
    IF about IS NULL THEN
        SELECT v.id INTO asked_event_id FROM webhook.event v WHERE v.event_type NOT LIKE 'webhook.%' ORDER BY v.id DESC LIMIT 1;
        IF NOT FOUND THEN
            RETURN NEXT 'There is no event here. SELECT webhook_emit(''order.created'', ''{}'') emits one.';
            RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_server() AS x;
            RETURN;
        END IF;
    ELSIF asked_event_id IS NULL OR NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = asked_event_id) THEN
        named := ARRAY(SELECT e.id FROM webhook.endpoint_at(about) e);
        IF cardinality(named) = 0 AND asked_event_id IS NULL THEN
            named := ARRAY(SELECT r.id FROM webhook.removed_endpoint r WHERE webhook.address(r.tenant, r.name) = about
                           ORDER BY r.removed_at DESC LIMIT 1);
            IF cardinality(named) = 0 THEN
                RAISE EXCEPTION '"%" is neither an event nor an endpoint', about USING ERRCODE = 'undefined_object',
                    HINT = concat_ws(' ', webhook.did_you_mean(about, ARRAY(SELECT webhook.address(e.tenant, e.name) FROM webhook.endpoint e)),
                                     'webhook_why() takes the id of an event or the address of an endpoint, and without one it '
                                     'explains the newest event.');
            END IF;
        END IF;
        IF cardinality(named) > 0 THEN
            RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_endpoint(named[1]) AS x;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT webhook.printable(x) FROM webhook.why_event(asked_event_id) AS x;
END $$;
-- Why, for an endpoint: its state, its waiting and failed deliveries, and the commands that change them.

-- debug_print_plan shows the parameters of a query, so credentials must not be among them.
CREATE OR REPLACE FUNCTION webhook.endpoint_without_credentials(wanted_id int) RETURNS webhook.endpoint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint;
BEGIN
    SELECT * INTO e FROM webhook.endpoint x WHERE x.id = wanted_id;
    e.url := NULL;
    e.headers := NULL;
    e.template := NULL;
    RETURN e;
END $$;

-- The obstacles between an endpoint and its deliveries, the command that removes each, whether this delivery (null: none)
-- waits for it, and whether a breaker that has closed has made it due before its time.
CREATE OR REPLACE FUNCTION webhook.why_held_back(
    e webhook.endpoint, d webhook.delivery, OUT sentences text[], OUT waits boolean, OUT is_brought_forward boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    address text := webhook.address(e.tenant, e.name);
    p webhook.policy := webhook.policy_of(e.policy);
    b webhook.breaker;
    state text;
    is_foreign boolean;
    is_stopped boolean;    -- so no probe is sent either
    is_test boolean;
    is_open boolean;
    probe_is_due boolean;
BEGIN
    SELECT * INTO b FROM webhook.breaker r WHERE r.endpoint_id = e.id;
    state := webhook.endpoint_state(e.origin = webhook.origin(), e.disabled_at, e.paused_at, b.state);
    is_foreign := state = 'held';
    is_stopped := state IN ('held', 'disabled', 'paused');
    is_test := coalesce(b.test_event_id = d.event_id, false);
    is_open := coalesce(b.state <> 'CLOSED', false);
    probe_is_due := is_open AND webhook.probe_is_due(b);
    waits := is_foreign OR NOT is_test AND (
        is_stopped OR is_open AND (p.when_open = 'hold' OR p.when_open = 'skip' AND NOT webhook.is_skipped(d.created_at, d.wait_reason, b.opened_at)));
    is_brought_forward := state = 'ready' AND EXISTS (
        SELECT FROM webhook.delivery_queue q
        WHERE q.event_id = d.event_id AND q.endpoint_id = d.endpoint_id AND webhook.is_ready(q, b.retries_before)
          AND q.next_attempt_at > now());
    sentences := '{}';

    IF is_foreign THEN
        sentences := sentences || text 'The endpoint belongs to another installation (a restored or copied database?) and is held. '
                                       'SELECT webhook_adopt() takes over all of that kind.';
    END IF;
    IF e.disabled_at IS NOT NULL THEN
        sentences := sentences || format(
            'The endpoint has been disabled since %s: %s. SELECT webhook_resume(%L) resumes it%s.',
            webhook.time_in_words(e.disabled_at),
            CASE e.disabled_reason
                WHEN 'gone' THEN 'its answer said that it is gone, as HTTP 410 does (disable_status)'
                WHEN 'exhausted' THEN 'all attempts of a delivery had failed (on_exhausted = disable)'
                WHEN 'tripped' THEN 'it had failed too often in a row (failure_threshold, on_trip = disable)'
                ELSE e.disabled_reason
            END,
            address,
            CASE e.disabled_reason WHEN 'exhausted' THEN format(', and so does CALL webhook_test(%L) if it succeeds', address) END);
    END IF;
    IF e.paused_at IS NOT NULL THEN
        sentences := sentences || format('The endpoint has been paused since %s. SELECT webhook_resume(%L) resumes it.',
                                         webhook.time_in_words(e.paused_at), address);
    END IF;

    IF b.state = 'OPEN' THEN
        sentences := sentences || format(
            'The circuit breaker of the endpoint has been open since %s, after %s%s.', webhook.time_in_words(b.opened_at),
            CASE b.consecutive_failures WHEN 1 THEN 'a failure' ELSE b.consecutive_failures || ' failures in a row' END,
            '; the last error is: ' || b.last_error);
    ELSIF b.state = 'HALF_OPEN' THEN
        sentences := sentences || format(
            'The circuit breaker of the endpoint is half open: %s, and %s.',
            CASE WHEN b.probe_event_id = d.event_id THEN 'this delivery is the probe'
                 ELSE format('event %s is the probe', b.probe_event_id) END,
            format(CASE WHEN probe_is_due THEN 'had until %s to end, but has no result'
                        WHEN b.probe_at > now() THEN 'has until %s to end'
                        ELSE 'had until %s to end; its result is awaited' END, webhook.time_in_words(b.probe_at)));
    END IF;
    IF NOT is_stopped AND (b.state = 'OPEN' OR probe_is_due) THEN
        sentences := sentences || format(
            'Nothing is sent to it until a probe, %s: the delivery that has waited longest, or else the next to come.',
            CASE WHEN b.probe_at > now()
                 THEN format('in %s (%s)', webhook.span_in_words(b.probe_at - now()), webhook.time_in_words(b.probe_at))
                 ELSE 'which is due now' END);
    END IF;
    IF is_open AND NOT (is_stopped AND (b.state = 'OPEN' OR probe_is_due)) THEN
        sentences := sentences || format(
            'If the probe succeeds the breaker closes, and if it fails the breaker %s. SELECT webhook_reset_breaker(%L) closes it now.',
            CASE p.failure_threshold WHEN 0 THEN 'closes too (failure_threshold = 0)' ELSE 'opens again' END, address);
    END IF;

    IF b.state = 'CLOSED' AND b.consecutive_failures > 0 THEN
        sentences := sentences || format(
            '%s%s%s.',
            CASE b.consecutive_failures WHEN 1 THEN 'The last attempt failed'
                                        ELSE format('The last %s attempts failed', b.consecutive_failures) END,
            ', at ' || webhook.time_in_words(b.last_failure_at),
            CASE WHEN p.failure_threshold > b.consecutive_failures THEN
                format('; after %s failures in a row %s', p.failure_threshold,
                       CASE p.on_trip WHEN 'disable' THEN 'it is disabled' ELSE 'its circuit breaker opens' END) END);
    END IF;

    IF NOT is_foreign AND (is_stopped OR is_open) THEN
        sentences := sentences || CASE
            WHEN is_stopped OR p.when_open = 'hold' THEN
                format('Meanwhile deliveries are kept back%s%s.', ', and fail as "expired" after ' || webhook.span_in_words(p.hold_for),
                       CASE WHEN NOT is_stopped THEN ' (when_open = hold)' WHEN p.hold_for IS NOT NULL THEN ' (hold_for)' END)
            WHEN p.when_open = 'skip' THEN 'Meanwhile new deliveries are skipped (when_open = skip).'
            WHEN p.when_open = 'fail' THEN 'Meanwhile due deliveries fail as "circuit open" (when_open = fail).'
            ELSE 'Meanwhile an attempt that is due fails as "circuit open", and counts (when_open = attempt).'
        END;
    END IF;
    IF is_test THEN
        sentences := sentences || text 'This delivery is a test, which is sent all the same.';
    END IF;
END $$;

-- The waiting deliveries, with their last errors. It counts no more than 10,000.
CREATE OR REPLACE FUNCTION webhook.why_waiting(e webhook.endpoint) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT int := 10000;
    address text := webhook.address(e.tenant, e.name);
    waiting record;
    in_flight bigint := (SELECT count(*) FROM webhook.queue_of(e.id) q WHERE q.status = 'SENDING');
BEGIN
    SELECT sum(by_reason.deliveries) AS deliveries, min(by_reason.next_attempt_at) AS next_attempt_at,
           string_agg(format('%s %s', by_reason.deliveries, by_reason.why), ', ' ORDER BY by_reason.deliveries DESC) AS reasons
    INTO waiting
    FROM (SELECT w.why, count(*) AS deliveries, min(w.next_attempt_at) AS next_attempt_at
          FROM (SELECT w.why, w.next_attempt_at FROM webhook.waiting w WHERE w.endpoint = address LIMIT most + 1) w
          GROUP BY w.why) by_reason;
    IF in_flight > 0 THEN
        RETURN NEXT format('In flight: %s.', in_flight);
    END IF;
    IF waiting.deliveries IS NULL THEN
        RETURN NEXT 'Nothing waits for it.';
        RETURN;
    END IF;
    RETURN NEXT format('Deliveries that wait: %s (%s)%s. SELECT * FROM webhook.waiting WHERE endpoint = %L shows them.',
                       CASE WHEN waiting.deliveries > most THEN 'more than ' || most ELSE waiting.deliveries::text END,
                       waiting.reasons, ', the first from ' || webhook.time_in_words(waiting.next_attempt_at) || ' on', address);
    RETURN QUERY
    SELECT format('  %s of them after the error: %s.', failed.deliveries, failed.last_error)
    FROM (SELECT w.last_error, count(*) AS deliveries
          FROM (SELECT w.last_error FROM webhook.waiting w WHERE w.endpoint = address AND w.last_error IS NOT NULL LIMIT most) w
          GROUP BY w.last_error ORDER BY count(*) DESC, w.last_error LIMIT 3) failed;
END $$;

-- The last dead letters, and how many there are. It counts no more than 10,000.
CREATE OR REPLACE FUNCTION webhook.why_failed(of_endpoint int, address text, is_removed boolean) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT int := 10000;
    failed bigint := (SELECT count(*) FROM (SELECT FROM webhook.dead_letter d WHERE d.endpoint_id = of_endpoint LIMIT most + 1) d);
BEGIN
    IF failed = 0 THEN
        RETURN;
    END IF;
    RETURN NEXT format('Dead letters: %s. %s', CASE WHEN failed > most THEN 'more than ' || most ELSE failed::text END,
                       CASE WHEN is_removed THEN format('DELETE FROM webhook.dead_letter WHERE endpoint_id = %s discards them.', of_endpoint)
                            ELSE format('CALL webhook_replay_all(%L) sends them again.', address) END);
    RETURN QUERY
    SELECT format('  Event %s FAILED at %s, after %s of %s attempts: %s. SELECT webhook_why(%L) says more.', last.event_id,
                  webhook.time_in_words(last.completed_at), last.attempts, last.max_attempts, webhook.error_in_words(last),
                  last.event_id)
    FROM (SELECT d.* FROM webhook.delivery d WHERE d.status = 'FAILED' AND d.endpoint_id = of_endpoint
          ORDER BY d.completed_at DESC LIMIT 3) last
    ORDER BY last.completed_at DESC;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_filter(e webhook.endpoint) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    looked_at CONSTANT int := 100;
    v webhook.event;
    matched int := 0;
    passed int := 0;
    misses text;
BEGIN
    FOR v IN SELECT * FROM webhook.event x WHERE x.redacted_at IS NULL ORDER BY x.id DESC LIMIT looked_at LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM webhook.subscribers(webhook.matching_keys(v.tenant, v.event_type)) s
                                  WHERE s.endpoint_id = e.id);
        matched := matched + 1;
        IF webhook.passes(e.filter, v.event_type, v.payload) THEN
            passed := passed + 1;
        ELSIF misses IS NULL THEN
            misses := webhook.why_filter_misses_row(e.filter, v.payload) || format(' (event %s)', v.id);
        END IF;
    END LOOP;
    RETURN NEXT format('Of the newest events %s match its event types and tenant, and its filter, %s, lets %s of them pass.',
                       matched, e.filter, passed);
    IF misses IS NOT NULL THEN
        RETURN NEXT format('  %s%s.', upper(left(misses, 1)), substr(misses, 2));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_endpoint(asked_endpoint_id int) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint := webhook.endpoint_without_credentials(asked_endpoint_id);
    address text := webhook.address(e.tenant, e.name);
    removed webhook.removed_endpoint;
BEGIN
    IF e.id IS NULL THEN
        SELECT * INTO removed FROM webhook.removed_endpoint r WHERE r.id = asked_endpoint_id;
        address := webhook.address(removed.tenant, removed.name);
        RETURN NEXT format('Endpoint "%s" was removed at %s.', address, webhook.time_in_words(removed.removed_at));
        RETURN QUERY SELECT * FROM webhook.why_failed(removed.id, address, is_removed => true);
        RETURN;
    END IF;
    RETURN NEXT format('Endpoint "%s" is %s. It %sgets events of the types %s, under the policy "%s", since %s.', address,
                       (SELECT s.state FROM webhook.endpoint_status s WHERE s.endpoint = address),
                       'serves tenant "' || e.tenant || '" and ',
                       webhook.patterns_in_words(e.event_types), e.policy, webhook.time_in_words(e.created_at));
    RETURN QUERY SELECT * FROM webhook.why_server();
    RETURN QUERY SELECT * FROM unnest((SELECT w.sentences FROM webhook.why_held_back(e, NULL) w));
    RETURN QUERY SELECT * FROM webhook.why_waiting(e);
    RETURN QUERY SELECT * FROM webhook.why_failed(e.id, address, is_removed => false);
    IF e.filter IS NOT NULL THEN
        RETURN QUERY SELECT * FROM webhook.why_filter(e);
    END IF;
END $$;
-- Why, for an event: its delivery to every endpoint, endpoints with a delivery first.

-- The patterns that match a type, whatever the tenant; then the exclusions that apply to it.
CREATE OR REPLACE FUNCTION webhook.matching_patterns(event_types text[], event_type text, OUT patterns text[], OUT exclusions text[])
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        SELECT coalesce(array_agg(t.pattern) FILTER (WHERE ' ' || t.pattern = ANY (k.keys)), '{}'),
               coalesce(array_agg(t.pattern) FILTER (WHERE t.pattern = ANY (k.keys)), '{}')
        FROM unnest(event_types) AS t (pattern), webhook.matching_keys(NULL, event_type) AS k (keys);
    END;

-- The reason why a filter does not let an event pass; null if it does, or if that is not known any more.
CREATE OR REPLACE FUNCTION webhook.why_filtered(filter jsonpath, v webhook.event) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
BEGIN
    IF filter IS NULL OR v.redacted_at IS NOT NULL OR webhook.passes(filter, v.event_type, v.payload) THEN
        RETURN NULL;
    END IF;
    PERFORM jsonb_path_match_tz(webhook.filtered_document(v.event_type, v.payload), filter, '{}', true);
    RETURN format('its filter, %s, is not true of it', filter);
EXCEPTION WHEN OTHERS THEN
    RETURN format('its filter, %s, fails: %s', filter, SQLERRM);
END $$;

-- Explains a filter that reads columns in $.data, but a watched row has them in $.data.record: it can never be true of that
-- table. Null for other filters. The text of a jsonpath has every name in quotes.
CREATE OR REPLACE FUNCTION webhook.why_filter_misses_row(filter jsonpath, payload jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    steps CONSTANT text := CASE WHEN filter::text ~ '[$][.]"data"[[:space:]]*[?]' THEN '(?:[$][.]"data"|@)'
                                ELSE '[$][.]"data"' END;
    missed text[];
BEGIN
    IF filter IS NULL OR NOT payload ?& '{table, record, old_record}' THEN
        RETURN NULL;
    END IF;
    missed := ARRAY(
        SELECT DISTINCT read.name
        FROM regexp_matches(filter::text, steps || E'\\."((?:[^"\\\\]|\\\\.)*)"', 'g') AS m (groups)
        CROSS JOIN LATERAL (SELECT ('"' || m.groups[1] || '"')::jsonb #>> '{}' AS name) read
        WHERE NOT payload ? read.name AND (payload -> 'record' ? read.name OR payload -> 'old_record' ? read.name));
    RETURN CASE WHEN cardinality(missed) > 0 THEN format(
        'the filter reads %s in $.data, but a watched table has its columns in $.data.record: write $.data.record.%s',
        array_to_string(missed, ', '), missed[1]) END;
END $$;

-- An id of the extension contains the time of its making.
CREATE OR REPLACE FUNCTION webhook.why_no_event(asked_event_id uuid) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    digits text := replace(asked_event_id::text, '-', '');
BEGIN
    RETURN NEXT format(
        'There is no event %s here: it was never emitted, its transaction was rolled back or is still open, or it was removed: '
        'when its time was over (webhook.retention_sent%s, webhook.retention_failed%s), when it had been sent under a policy with '
        'keep_sent = false, or by webhook_discard().',
        coalesce(asked_event_id::text, 'NULL'),
        ' is ' || webhook.setting('retention_sent'), ' is ' || webhook.setting('retention_failed'));
    RETURN NEXT CASE WHEN substr(digits, 13, 1) = '7' THEN format(
        'If webhook_emit() made this id, then at %s. Check it: webhook_emit() returned it, and the receiver saw it as webhook-id.',
        webhook.time_in_words(to_timestamp(('x' || left(digits, 12))::bit(48)::bigint / 1000.0)))
    ELSE 'Check the id: webhook_emit() did not make it, for its own are UUIDs of version 7.' END;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_attempts(asked_event_id uuid, asked_endpoint_id int) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown constant int := 10;
    logged bigint := (SELECT count(*) FROM webhook.attempt a WHERE a.event_id = asked_event_id AND a.endpoint_id = asked_endpoint_id);
BEGIN
    IF logged > shown THEN
        RETURN NEXT format('%s attempts are logged in webhook.attempt; these are the last %s:', logged, shown);
    END IF;
    RETURN QUERY
    SELECT format(CASE last.verdict WHEN 'late' THEN 'A result that came at %2$s, after %3$s ms, was too late to count: %4$s.'
                                    ELSE 'Attempt %1$s ended at %2$s, after %3$s ms: %4$s.' END,
                  last.attempt, webhook.time_in_words(last.finished_at), last.duration_ms,
                  coalesce(last.error, 'HTTP ' || last.status_code))
    FROM (SELECT * FROM webhook.attempt a WHERE a.event_id = asked_event_id AND a.endpoint_id = asked_endpoint_id
          ORDER BY a.claim_seq DESC LIMIT shown) last
    ORDER BY last.claim_seq;
END $$;

-- One delivery: its origin, its attempts, its next step. The event is null if somebody has deleted it.
CREATE OR REPLACE FUNCTION webhook.why_delivery(d webhook.delivery, v webhook.event) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e webhook.endpoint := webhook.endpoint_without_credentials(d.endpoint_id);
    address text := webhook.address(e.tenant, e.name);
    removed webhook.removed_endpoint;
    matched record;
    has_payload boolean := v.id IS NOT NULL AND v.redacted_at IS NULL;
    endpoint record;
    next_attempt text := format('Attempt %s of %s', d.attempts + 1, d.max_attempts);
    make_due text := format('UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = %L AND endpoint_id = %s '
                            'AND status = ''PENDING'' makes it due now.', d.event_id, d.endpoint_id);
BEGIN
    SELECT * INTO removed FROM webhook.removed_endpoint r WHERE r.id = d.endpoint_id;
    SELECT * INTO matched FROM webhook.matching_patterns(e.event_types, d.event_type);
    RETURN NEXT CASE
        WHEN removed.id IS NOT NULL THEN
            format('Endpoint "%s" was removed at %s.', webhook.address(removed.tenant, removed.name),
                   webhook.time_in_words(removed.removed_at))
        WHEN e.id IS NULL THEN format('Endpoint number %s is not known here.', d.endpoint_id)
        WHEN cardinality(matched.patterns) > 0 AND cardinality(matched.exclusions) = 0
             AND (e.tenant IS NULL OR e.tenant = v.tenant OR v.id IS NULL) AND webhook.why_filtered(e.filter, v) IS NULL THEN
            format('Endpoint "%s": the event matches %s%s.', address, webhook.patterns_in_words(matched.patterns),
                   CASE WHEN has_payload THEN ' and the filter ' || e.filter::text END)
        ELSE format('Endpoint "%s": the event does not match now; the event types (%s), the filter or the tenant of the endpoint were '
                    'changed since, or the event was sent to it by name.', address, webhook.patterns_in_words(e.event_types))
    END;

    RETURN QUERY SELECT '  ' || x FROM webhook.why_attempts(d.event_id, d.endpoint_id) AS x;
    RETURN NEXT CASE d.status
        WHEN 'PENDING' THEN
            format('  It is PENDING, %s%s.',
                   CASE d.attempts WHEN 0 THEN 'not tried yet' ELSE format('after %s of %s attempts', d.attempts, d.max_attempts) END,
                   '; the last error is: ' || webhook.error_in_words(d))
        WHEN 'SENDING' THEN
            format('  It is SENDING: attempt %s of %s began at %s, %s ago%s.', d.attempts, d.max_attempts,
                   webhook.time_in_words(d.claimed_at), webhook.span_in_words(now() - d.claimed_at),
                   CASE WHEN webhook.is_sender_alive(d.claimed_by) THEN ', and its result is awaited'
                        ELSE '; its worker is gone, and the next one puts it back into the queue' END)
        WHEN 'SENT' THEN
            format('  It is SENT: attempt %s of %s succeeded at %s with HTTP %s.', d.attempts, d.max_attempts,
                   webhook.time_in_words(d.completed_at), d.last_status_code)
        WHEN 'CANCELLED' THEN
            format('  It was CANCELLED at %s, after %s of %s attempts: %s.', webhook.time_in_words(d.completed_at),
                   d.attempts, d.max_attempts, webhook.error_in_words(d))
        ELSE
            format('  It FAILED at %s, after %s of %s attempts: %s%s.', webhook.time_in_words(d.completed_at),
                   d.attempts, d.max_attempts, webhook.error_in_words(d),
                   (SELECT ', which is not tried again' FROM webhook.attempt a
                    WHERE a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id AND a.claim_seq = d.claim_seq
                      AND a.verdict IN ('final', 'disable') AND a.error = d.last_error))
    END;

    IF e.id IS NULL THEN
        IF d.status IN ('PENDING', 'SENDING') THEN
            RETURN NEXT CASE WHEN removed.id IS NULL THEN '  It waits until there is such an endpoint.'
                             ELSE '  The worker cancels it within minutes.' END;
        END IF;
        RETURN;
    END IF;
    IF d.status <> 'SENT' THEN
        SELECT * INTO endpoint FROM webhook.why_held_back(e, d);
        RETURN QUERY SELECT '  ' || x FROM unnest(endpoint.sentences) AS x;
    END IF;

    IF NOT has_payload THEN
        IF d.status = 'PENDING' THEN
            RETURN NEXT '  It fails when it is due, because there is nothing to send.';
        END IF;
    ELSIF d.status = 'PENDING' THEN
        RETURN NEXT CASE
            WHEN d.waits_for IS NOT NULL THEN
                format('  %s waits for event %s, whose turn it is by the ordering key "%s". SELECT webhook_why(%L) says more.',
                       next_attempt, d.waits_for, d.ordering_key, d.waits_for)
            WHEN d.wait_reason = 'parked' THEN format('  %s is parked by hand. %s', next_attempt, make_due)
            WHEN endpoint.waits THEN
                format('  %s waits until then%s.', next_attempt,
                       CASE WHEN d.next_attempt_at > now() THEN '; its own time is ' || webhook.time_in_words(d.next_attempt_at) END)
            WHEN d.next_attempt_at > now() AND endpoint.is_brought_forward THEN
                format('  %s is due now, before its own time, %s, because the circuit breaker has closed.', next_attempt,
                       webhook.time_in_words(d.next_attempt_at))
            WHEN d.next_attempt_at > now() THEN
                format('  %s is due in %s (%s). %s', next_attempt, webhook.span_in_words(d.next_attempt_at - now()),
                       webhook.time_in_words(d.next_attempt_at), make_due)
            ELSE format('  %s is due now%s.', next_attempt, ', since ' || webhook.time_in_words(d.next_attempt_at))
        END;
        IF d.expires_at < 'infinity' THEN
            RETURN NEXT format('  If it has not been sent by %s (expires_at), it fails as "expired".', webhook.time_in_words(d.expires_at));
        END IF;
    ELSIF d.status = 'FAILED' THEN
        RETURN NEXT format('  It stays in webhook.dead_letter. SELECT webhook_replay(%L, %L) sends it again, from the first attempt.',
                           d.event_id, address);
        IF EXISTS (SELECT FROM webhook.lane l WHERE l.endpoint_id = d.endpoint_id AND l.ordering_key = d.ordering_key AND l.event_id = d.event_id) THEN
            RETURN NEXT format('  Deliveries with the same ordering key, "%s", wait until it is sent or discarded (on_blocked = wait). '
                               'SELECT webhook_discard(%L, %L) lets them go on.', d.ordering_key, d.event_id, address);
        END IF;
    ELSIF d.status IN ('SENT', 'CANCELLED') THEN
        RETURN NEXT format('  SELECT webhook_replay(%L, %L) sends it %s.', d.event_id, address,
                           CASE d.status WHEN 'SENT' THEN 'once more' ELSE 'all the same' END);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_no_delivery(v webhook.event) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown constant int := 20;
    without_delivery bigint := 0;
    other record;
    reasons text[];
BEGIN
    FOR other IN
        SELECT e.id, webhook.address(e.tenant, e.name) AS address, e.tenant, e.event_types, e.filter, e.policy, e.created_at,
               count(*) OVER () AS total,
               e.tenant IS NULL OR e.tenant = coalesce(v.tenant, '') AS serves_tenant, m.exclusions,
               cardinality(m.patterns) > 0 AS wants_type
        FROM webhook.endpoint e
        CROSS JOIN LATERAL webhook.matching_patterns(e.event_types, v.event_type) m
        WHERE NOT EXISTS (SELECT FROM webhook.delivery d WHERE d.event_id = v.id AND d.endpoint_id = e.id)
        ORDER BY wants_type DESC, serves_tenant DESC, e.name LIMIT shown
    LOOP
        without_delivery := other.total;
        reasons := '{}';
        IF NOT other.serves_tenant THEN
            reasons := reasons || format('it serves only tenant "%s", and the event %s', other.tenant,
                                         CASE WHEN v.tenant IS NULL THEN 'has none' ELSE format('is of tenant "%s"', v.tenant) END);
        END IF;
        IF NOT other.wants_type THEN
            reasons := reasons || format('its event types are %s%s', webhook.patterns_in_words(other.event_types),
                CASE WHEN '*' = ANY (other.event_types) THEN ', and * leaves out webhook.*, the extension''s own events' END);
        ELSIF cardinality(other.exclusions) > 0 THEN
            reasons := reasons || format('its event types leave it out (%s)', webhook.patterns_in_words(other.exclusions));
        ELSIF other.serves_tenant THEN
            reasons := array_remove(reasons || webhook.why_filtered(other.filter, v)
                                            || webhook.why_filter_misses_row(other.filter, v.payload), NULL);
        END IF;
        IF other.created_at > v.created_at THEN
            reasons := reasons || format('it was added at %s, after the event; CALL webhook_backfill(%L, %L) sends it the events that it matches from there on',
                                         webhook.time_in_words(other.created_at), other.address, v.created_at);
        END IF;
        IF cardinality(reasons) = 0 THEN
            reasons := reasons || format('the event matches its event types (%s) now, but %s', webhook.patterns_in_words(other.event_types),
                CASE WHEN v.redacted_at IS NOT NULL AND other.filter IS NOT NULL
                     THEN 'perhaps not its filter, which cannot be told any more of a payload that was redacted'
                     WHEN (webhook.policy_of(other.policy)).keep_sent
                     THEN 'they, its filter or its tenant were changed since, others were chosen by name, or the delivery was removed'
                     ELSE format('its policy "%s" keeps no row of sent deliveries (keep_sent = false)', other.policy) END);
        END IF;
        RETURN NEXT format('Endpoint "%s" has no delivery of it: %s.', other.address, array_to_string(reasons, '; '));
        RETURN QUERY SELECT '  ' || x FROM webhook.why_attempts(v.id, other.id) AS x;
    END LOOP;
    IF without_delivery > shown THEN
        RETURN NEXT format('%s more endpoints have no delivery of it.', without_delivery - shown);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION webhook.why_event(asked_event_id uuid) RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v webhook.event;
    d webhook.delivery;
    deliveries int := 0;
    queued int := 0;
BEGIN
    SELECT * INTO v FROM webhook.event x WHERE x.id = asked_event_id;
    IF v.id IS NOT NULL THEN
        RETURN NEXT format('Event %s is of type %s, %s, and was emitted at %s, %s ago.', v.id, v.event_type,
                           CASE WHEN v.tenant IS NULL THEN 'without a tenant' ELSE format('of tenant "%s"', v.tenant) END,
                           webhook.time_in_words(v.created_at), webhook.span_in_words(now() - v.created_at));
        IF v.redacted_at IS NOT NULL THEN
            RETURN NEXT format('Its payload was redacted at %s; it cannot be sent any more.', webhook.time_in_words(v.redacted_at));
        END IF;
    ELSIF EXISTS (SELECT FROM webhook.delivery x WHERE x.event_id = asked_event_id) THEN
        RETURN NEXT format('Event %s is gone from webhook.event and cannot be sent any more; its deliveries are still here.',
                           asked_event_id);
    ELSE
        RETURN QUERY SELECT * FROM webhook.why_no_event(asked_event_id);
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM webhook.why_server();

    FOR d IN
        SELECT x.* FROM webhook.delivery x
        LEFT JOIN webhook.endpoint e ON e.id = x.endpoint_id
        LEFT JOIN webhook.removed_endpoint r ON r.id = x.endpoint_id
        WHERE x.event_id = asked_event_id
        ORDER BY coalesce(e.name, r.name), x.endpoint_id
    LOOP
        deliveries := deliveries + 1;
        queued := queued + (d.status IN ('PENDING', 'SENDING'))::int;
        RETURN QUERY SELECT * FROM webhook.why_delivery(d, v);
    END LOOP;
    IF queued > 0 AND v.id IS NOT NULL THEN
        RETURN NEXT format('UPDATE webhook.delivery SET status = ''CANCELLED'' WHERE event_id = %L '
                           'AND status IN (''PENDING'', ''SENDING'') cancels its deliveries that are still queued.', asked_event_id);
    END IF;

    IF NOT EXISTS (SELECT FROM webhook.endpoint) THEN
        RETURN NEXT 'There are no endpoints. SELECT * FROM webhook_set_endpoint(''name'', ''https://..'') adds one, '
                    'and CALL webhook_backfill(..) sends it earlier events.';
    ELSIF v.id IS NOT NULL THEN
        IF deliveries = 0 AND NOT EXISTS (
            SELECT FROM webhook.subscribers(webhook.matching_keys(v.tenant, v.event_type)) s
            JOIN webhook.endpoint e ON e.id = s.endpoint_id
            WHERE webhook.why_filtered(s.filter, v) IS NULL AND e.created_at <= v.created_at) THEN
            RETURN NEXT 'It matched no endpoint, so there is nothing to deliver.';
        END IF;
        RETURN QUERY SELECT * FROM webhook.why_no_delivery(v);
    END IF;
END $$;
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
-- Previewing: the request of an event, rendered by the code that sends it.

-- It previews for any endpoint, whether it wants the event or not. The headers are credentials. An endpoint that was made
-- without a secret gets it here, as it would at its first claim.
CREATE OR REPLACE FUNCTION webhook.preview(event_id uuid, endpoint text, OUT url text, OUT headers jsonb, OUT body text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target_id int := webhook.require_endpoint(preview.endpoint);
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = preview.event_id) THEN
        RAISE EXCEPTION 'event % does not exist', preview.event_id USING ERRCODE = 'undefined_object',
            HINT = format('SELECT webhook_why(%L) says what may have become of it.', preview.event_id);
    ELSIF EXISTS (SELECT FROM webhook.event v WHERE v.id = preview.event_id AND v.redacted_at IS NOT NULL) THEN
        RAISE EXCEPTION 'event % was redacted', preview.event_id USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'It has no payload any more and is not sent again.';
    END IF;

    SELECT request.sent_url, header.fields, request.body
    INTO url, headers, body
    FROM webhook.event v
    CROSS JOIN webhook.routes(ARRAY[target_id]) route
    -- A finished delivery would be sent again from its first attempt.
    LEFT JOIN webhook.delivery_queue q ON q.event_id = v.id AND q.endpoint_id = route.endpoint_id
    CROSS JOIN LATERAL webhook.render_request(
        v.id, v.event_type, v.tenant, webhook.wire_time(v.created_at), v.payload::text,
        CASE q.status WHEN 'PENDING' THEN q.attempts WHEN 'SENDING' THEN q.attempts - 1 ELSE 0 END,
        route.url, ARRAY(SELECT h.key FROM jsonb_each_text(route.headers) AS h ORDER BY h.key),
        ARRAY(SELECT h.value FROM jsonb_each_text(route.headers) AS h ORDER BY h.key), route.format, route.template, route.source, route.secrets,
        route.hmac_secrets) request
    CROSS JOIN LATERAL (
        SELECT jsonb_object_agg(f.name, f.value) AS fields
        FROM (SELECT h.name, string_agg(h.value, ', ' ORDER BY h.ordinal) AS value
              FROM unnest(request.sent_header_names, request.sent_header_values) WITH ORDINALITY AS h (name, value, ordinal)
              GROUP BY h.name) f
    ) header
    WHERE v.id = preview.event_id;
END $$;
-- Operators pause an endpoint, resume it, and test it.

-- Returns the number of endpoints that it has paused, without those that were paused before.
CREATE OR REPLACE FUNCTION webhook.pause(endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    paused_id int;
    paused bigint := 0;
BEGIN
    FOREACH paused_id IN ARRAY webhook.addressed_endpoints(endpoint) LOOP
        UPDATE webhook.endpoint e SET paused_at = now() WHERE e.id = paused_id AND e.paused_at IS NULL;
        paused := paused + FOUND::int;
    END LOOP;
    RETURN paused;
END $$;

CREATE OR REPLACE FUNCTION webhook.sendable_now(of_endpoint int) RETURNS bigint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT count(*)
        FROM webhook.endpoint e
        LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id
        JOIN webhook.delivery_queue q ON q.endpoint_id = e.id AND webhook.is_ready(q, b.retries_before)
        WHERE e.id = of_endpoint
          AND webhook.endpoint_state(e.origin = (SELECT webhook.origin()), e.disabled_at, e.paused_at, b.state) = 'ready');
END $$;

-- Resumes from paused, disabled or open: every waiting delivery is due now. Returns the number of deliveries that waited for
-- this, and may be claimed from now on.
CREATE OR REPLACE FUNCTION webhook.resume(endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    addressed int[] := webhook.addressed_endpoints(endpoint);
    resumed_id int;
    sendable_before bigint;
    freed bigint := 0;
BEGIN
    FOR resumed_id IN
        SELECT e.id FROM webhook.endpoint e
        WHERE e.id = ANY (addressed)
          AND (num_nonnulls(e.paused_at, e.disabled_at) > 0
               OR EXISTS (SELECT FROM webhook.breaker b WHERE b.endpoint_id = e.id))
        ORDER BY e.id
    LOOP
        sendable_before := webhook.sendable_now(resumed_id);
        UPDATE webhook.endpoint e SET paused_at = NULL, disabled_at = NULL, disabled_reason = NULL
        WHERE e.id = resumed_id AND num_nonnulls(e.paused_at, e.disabled_at) > 0;
        PERFORM webhook.close_breaker(resumed_id);
        freed := freed + greatest(0, webhook.sendable_now(resumed_id) - sendable_before);
    END LOOP;
    RETURN freed;
END $$;

-- Queues a test event for one endpoint, to be sent whatever its state, with the time its request may take by the policy and a
-- little more. An endpoint has at most one test at a time.
CREATE OR REPLACE FUNCTION webhook.queue_test(endpoint text, OUT test_id uuid, OUT tested_id int, OUT give_up_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    worker record;
BEGIN
    tested_id := webhook.require_endpoint(endpoint);
    test_id := webhook.new_id();

    SELECT s.state, s.reason INTO worker FROM webhook.status() s;
    IF worker.state IN ('not preloaded', 'no worker', 'disabled') OR (worker.state = 'held' AND webhook.foreign_endpoints() = 0) THEN
        RAISE EXCEPTION 'nothing is sent at the moment: %', worker.state USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = worker.reason, HINT = 'SELECT * FROM webhook_status() shows what the worker does.';
    ELSIF (SELECT e.origin FROM webhook.endpoint e WHERE e.id = tested_id) <> webhook.origin() THEN
        RAISE EXCEPTION 'endpoint "%" belongs to another installation', endpoint USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'SELECT webhook_adopt() takes over the endpoints of a restored or copied database.';
    END IF;

    -- The lock comes first, then the look: the snapshot of a statement that waited for the lock does not have the test of
    -- another session.
    INSERT INTO webhook.breaker (endpoint_id) VALUES (tested_id) ON CONFLICT DO NOTHING;
    PERFORM FROM webhook.breaker b WHERE b.endpoint_id = tested_id FOR UPDATE;
    IF EXISTS (SELECT FROM webhook.breaker b
               JOIN webhook.delivery_queue q ON q.event_id = b.test_event_id AND q.endpoint_id = b.endpoint_id
               WHERE b.endpoint_id = tested_id) THEN
        RAISE EXCEPTION 'endpoint "%" is being tested already', endpoint USING ERRCODE = 'object_in_use',
            HINT = 'Try again when that test has ended.';
    END IF;
    UPDATE webhook.breaker b SET test_event_id = test_id WHERE b.endpoint_id = tested_id;

    INSERT INTO webhook.event (id, event_type, payload, created_at)
    VALUES (test_id, 'webhook.test', jsonb_build_object('message', 'This is a test.'), clock_timestamp());
    INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts)
    VALUES (test_id, tested_id, 'webhook.test', 1);
    PERFORM webhook.wake_endpoint(-tested_id, now());

    SELECT clock_timestamp() + p.connect_timeout + p.timeout + interval '5 s' INTO give_up_at
    FROM webhook.endpoint e, webhook.policy_of(e.policy) p WHERE e.id = tested_id;
END $$;

-- Returns the outcome and deletes all rows of the test; null as long as there is no outcome.
CREATE OR REPLACE FUNCTION webhook.end_test(
    test_id uuid, tested_id int, give_up_at timestamptz,
    OUT status text, OUT status_code int, OUT error text, OUT response text, OUT duration_ms int)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = test_id AND v.event_type = 'webhook.test') THEN
        RAISE EXCEPTION 'event % is not a test', test_id USING ERRCODE = 'invalid_parameter_value',
            HINT = 'CALL webhook_test() begins a test and ends it.';
    END IF;
    SELECT d.status, d.last_status_code, d.last_error, a.response_excerpt, d.duration_ms
    INTO status, status_code, error, response, duration_ms
    FROM webhook.delivery d
    LEFT JOIN webhook.attempt a ON a.event_id = d.event_id AND a.endpoint_id = d.endpoint_id
    WHERE d.event_id = test_id AND d.status NOT IN ('PENDING', 'SENDING');
    IF NOT FOUND THEN
        IF clock_timestamp() < give_up_at THEN
            RETURN;
        END IF;
        status := 'CANCELLED';
        error := 'not sent in time';
    END IF;

    DELETE FROM webhook.delivery d WHERE d.event_id = test_id;
    DELETE FROM webhook.attempt a WHERE a.event_id = test_id;
    DELETE FROM webhook.event v WHERE v.id = test_id;
    UPDATE webhook.breaker b SET test_event_id = NULL WHERE b.endpoint_id = tested_id AND b.test_event_id = test_id;
    -- The breaker's row goes too if there was none before.
    DELETE FROM webhook.breaker b WHERE b.endpoint_id = tested_id AND b.last_failure_at IS NULL AND webhook.is_at_rest(b);
END $$;

-- Sends a test event, waits, and shows the outcome. A success closes the endpoint's breaker, and resumes an endpoint that was
-- disabled because a delivery had exhausted its attempts; a failure changes nothing.
--
-- Each look is a transaction of its own, so that no snapshot is held for as long as the endpoint takes. It is READ COMMITTED,
-- so that it sees the worker's commits and does not conflict with them. The procedure has no search_path of its own, since it
-- commits; so nothing here depends on one.
CREATE OR REPLACE PROCEDURE public.webhook_test(
    endpoint text, INOUT status text DEFAULT NULL, INOUT status_code int DEFAULT NULL, INOUT error text DEFAULT NULL,
    INOUT response text DEFAULT NULL, INOUT duration_ms int DEFAULT NULL)
    LANGUAGE plpgsql AS $$
DECLARE
    test record;
BEGIN
    PERFORM webhook.require_no_transaction_block('webhook_test()');
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SELECT q.* INTO test FROM webhook.queue_test(endpoint) q;
    LOOP
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        SELECT t.status, t.status_code, t.error, t.response, t.duration_ms
        INTO status, status_code, error, response, duration_ms
        FROM webhook.end_test(test.test_id, test.tested_id, test.give_up_at) t;
        EXIT WHEN status IS NOT NULL;
        PERFORM pg_catalog.pg_sleep(0.01);
    END LOOP;
END $$;
-- Adopting: the endpoints of a restored or copied database are held until somebody says that this server is to serve them.

CREATE OR REPLACE FUNCTION webhook.foreign_endpoints() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (SELECT count(*) FROM webhook.endpoint e WHERE e.origin <> (SELECT webhook.origin()));

-- Takes over the endpoints of an address, or all; returns how many. A delivery that was in flight when the dump or the copy
-- was made has no sender here, whatever its claim says.
CREATE OR REPLACE FUNCTION webhook.adopt(endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted int[] := webhook.addressed_endpoints(coalesce(endpoint, '*'));
    adopted int[];
BEGIN
    WITH taken AS (
        UPDATE webhook.endpoint e SET origin = webhook.origin()
        WHERE e.origin <> (SELECT webhook.origin()) AND e.id = ANY (wanted)
        RETURNING e.id
    )
    SELECT coalesce(array_agg(id), '{}') INTO adopted FROM taken;

    PERFORM webhook.release_lost(array_agg(q.event_id), array_agg(q.endpoint_id))
    FROM unnest(adopted) AS a (id)
    CROSS JOIN LATERAL webhook.queue_of(a.id) q
    WHERE q.status = 'SENDING'
    HAVING count(*) > 0;
    RETURN cardinality(adopted);
END $$;
-- The API as a table: names, the level that a role needs, and a sentence. webhook.privileges(), 80_comments.sql and
-- docs/reference.md come from it, and a test compares them. A part is a function of schema webhook that callers execute with
-- their own rights: the work of a thin function, a step of a procedure, a function that a view calls.
--
-- Functions and views only grow: a released name keeps its parameters and columns; new ones come last. pgrx-tests/api-*.txt
-- has the names of releases, and a test compares them.
CREATE OR REPLACE FUNCTION webhook.api(OUT kind text, OUT name text, OUT level text, OUT comment text)
    RETURNS SETOF record
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        VALUES
            ('function', 'webhook_emit', 'emit',
             'Emits an event in the transaction of its caller, and returns its id.'),
            ('function', 'webhook_emit_many', 'emit',
             'Emits many events in one statement, and returns their ids in the same order.'),
            ('function', 'webhook_trigger', 'emit',
             'The trigger function that emits the rows of a statement.'),
            ('function', 'webhook_unwatch', 'emit',
             'Drops the triggers that webhook_watch() made for a table; returns their number.'),
            ('function', 'webhook_watch', 'emit',
             'Makes triggers that emit events for the changes of a table; returns their definitions.'),
            ('function', 'webhook_public_key', 'read',
             'Returns the newest public key of an endpoint, by which its receiver verifies; null where it has none.'),
            ('function', 'webhook_status', 'read',
             'Shows whether delivery is healthy, what the senders of this database do, and what is queued.'),
            ('function', 'webhook_why', 'read',
             'Explains, in sentences, what became of an event or why an endpoint gets nothing.'),
            ('procedure', 'webhook_backfill', 'operate',
             'Makes deliveries of kept events that match an endpoint now and had none, in batches that commit.'),
            ('function', 'webhook_discard', 'operate', 'Deletes the dead letters of one event; returns their number.'),
            ('function', 'webhook_pause', 'operate',
             'Stops sending to an endpoint until webhook_resume(); deliveries wait. Returns how many endpoints it paused.'),
            ('function', 'webhook_redact', 'operate',
             'Deletes the payload of an event and the stored answers; the event stays. Returns how many rows it changed.'),
            ('function', 'webhook_replay', 'operate',
             'Sends one event again where its deliveries have ended, in whatever status; returns their number.'),
            ('procedure', 'webhook_replay_all', 'operate',
             'Sends many deliveries again, in batches that commit.'),
            ('function', 'webhook_reset_breaker', 'operate',
             'Closes the circuit breaker of an endpoint now.'),
            ('function', 'webhook_resume', 'operate',
             'Resumes an endpoint that is paused, disabled or open; returns how many deliveries it freed.'),
            ('procedure', 'webhook_test', 'operate',
             'Sends a test event to one endpoint, and shows the answer.'),
            ('function', 'webhook_adopt', 'admin',
             'Takes over endpoints that belong to another installation, after a restore or copy; returns their number.'),
            ('function', 'webhook_copy_policy', 'admin', 'Copies a policy under a new name, to be changed.'),
            ('function', 'webhook_hmac_secret', 'admin',
             'Returns the newest secret of signatures in headers, as its receiver has it; null where there is none.'),
            ('function', 'webhook_preview', 'admin',
             'Shows the request that an attempt would send now, with headers and body.'),
            ('function', 'webhook_remove_endpoint', 'admin',
             'Removes an endpoint; its queued deliveries are cancelled or failed.'),
            ('function', 'webhook_rotate_hmac_secret', 'admin',
             'Gives an endpoint a new secret for signatures in headers, and returns it.'),
            ('function', 'webhook_rotate_key', 'admin',
             'Gives an endpoint a new private key, and returns its public key; both keys sign during the overlap.'),
            ('function', 'webhook_rotate_secret', 'admin',
             'Gives an endpoint a new signing secret, and returns it; both sign during the overlap.'),
            ('function', 'webhook_secret', 'admin', 'Returns the newest signing secret of an endpoint.'),
            ('function', 'webhook_set_endpoint', 'admin',
             'Creates or changes an endpoint; parameters that are left out keep their values.'),
            ('function', 'webhook_grant', 'superuser',
             'Gives a role one of the levels emit, read, operate, admin and relay.'),
            ('function', 'webhook_revoke', 'superuser', 'Takes a level from a role.'),
            ('table', 'policy', 'read',
             'Policies: when to retry, what an answer means, when the circuit breaker opens.'),
            ('table', 'endpoint', 'admin',
             'Endpoints: where events are sent. URL, headers and template are for admin alone.'),
            ('table', 'removed_endpoint', 'read',
             'Endpoints that were removed; their late deliveries are cancelled or failed.'),
            ('table', 'secret', 'admin', 'Signing secrets, private keys and HMAC secrets of endpoints.'),
            ('table', 'event', 'read', 'Events as they were emitted.'),
            ('table', 'idempotency', 'read',
             'Idempotency keys that stand for an event within webhook.idempotency_window.'),
            ('table', 'delivery', 'read',
             'Deliveries: one row for each event and endpoint, partitioned by status.'),
            ('table', 'delivery_queue', 'read', 'Deliveries that are PENDING or SENDING.'),
            ('table', 'delivery_history', 'read', 'Deliveries that are SENT or CANCELLED.'),
            ('table', 'dead_letter', 'read', 'Deliveries that FAILED.'),
            ('table', 'attempt', 'read', 'The log of attempts.'),
            ('table', 'breaker', 'read', 'Circuit breakers: one row for each endpoint that has failed.'),
            ('table', 'alert', 'read', 'Alerts that the worker has not raised yet.'),
            ('table', 'stat', 'read',
             'Figures of attempts and finished deliveries by endpoint, in total, by hour and by minute.'),
            ('table', 'alarm', 'read', 'Metrics that are beyond their thresholds, and since when.'),
            ('table', 'sender', 'read', 'Runs of senders that have not ended in order.'),
            ('table', 'share', 'read', 'Which sender serves which part of the endpoints.'),
            ('table', 'lane', 'read', 'The event that has the turn, for each endpoint and ordering key.'),
            ('view', 'code', 'read', 'Verdicts and reason codes, and what each of them means.'),
            ('view', 'metrics', 'read', 'Figures of the last 15 minutes and of this moment, with thresholds to alert at.'),
            ('view', 'failed', 'read', 'Dead letters with their events and last attempts.'),
            ('view', 'endpoint_status', 'read', 'Each endpoint and how it is doing.'),
            ('view', 'waiting', 'read', 'Deliveries that wait, and why, in a word.'),
            ('part', 'did_you_mean', 'emit',
             'For a HINT: the names that are close to one that does not exist; null where none is.'),
            ('part', 'emit', 'emit', 'The work of webhook_emit().'),
            ('part', 'emit_many', 'emit', 'The work of webhook_emit_many().'),
            ('part', 'is_event_type', 'emit', 'Whether a text is a valid event type.'),
            ('part', 'home', 'emit', 'The schema of the functions that people call.'),
            ('part', 'is_portable', 'emit', 'Whether this is webhook without the library.'),
            ('part', 'is_tenant', 'emit', 'Whether a text is a valid tenant.'),
            ('part', 'members', 'emit', 'The routines of the extension, wherever they are.'),
            ('part', 'refuse_condition', 'emit',
             'Raises the error for a condition that a watch cannot have.'),
            ('part', 'refuse_event_type', 'emit', 'Raises the error for an event type that is not valid.'),
            ('part', 'refuse_json', 'emit', 'Refuses an argument of type json, with a HINT to use jsonb.'),
            ('part', 'reported_name', 'emit',
             'The schema and the table that events report, as JSON; nothing if events report the name that the table has when it fires.'),
            ('part', 'require_watch', 'emit', 'Refuses a watch whose options do not go together.'),
            ('part', 'require_watchable', 'emit', 'Refuses a watch that is not possible.'),
            ('part', 'trigger_function', 'emit', 'The OID of webhook_trigger(), wherever it is.'),
            ('part', 'unwatch', 'emit', 'The work of webhook_unwatch().'),
            ('part', 'virtual_columns', 'emit', 'The virtual generated columns of a table.'),
            ('part', 'watch', 'emit', 'The work of webhook_watch().'),
            ('part', 'watch_commands', 'emit',
             'The commands that bring the watch of a table to its new state; none if it has that already.'),
            ('part', 'watch_definitions', 'emit', 'The triggers that a watch would make.'),
            ('part', 'watch_triggers', 'emit', 'The triggers that webhook_watch() has made for the table.'),
            ('part', 'address', 'read', 'The address of an endpoint: its name, or tenant/name.'),
            ('part', 'attempt_reasons', 'read', 'Reason codes of attempts, and what each means.'),
            ('part', 'awaits_its_time', 'read',
             'Whether only its time keeps a delivery back: it is neither in flight nor parked nor behind another.'),
            ('part', 'count_limit', 'read',
             'Deliveries are counted up to here, so that a look at a long queue costs no more than one at a short one.'),
            ('part', 'endpoint_reasons', 'read', 'Reason codes of endpoints, and what each means.'),
            ('part', 'endpoint_state', 'read',
             'The first thing that keeps the deliveries of an endpoint back, or ''ready''.'),
            ('part', 'gauges', 'read', 'The counts of this moment.'),
            ('part', 'has_time', 'read', 'Whether there is time left until expires_at.'),
            ('part', 'head_of_queue', 'read',
             'The deliveries of an endpoint, up to the limit of counts; first those that only time keeps back, the oldest of them first, where those in flight are.'),
            ('part', 'is_own', 'read', 'Whether a type is one of events of the extension itself.'),
            ('part', 'is_ready', 'read', 'Whether a delivery may be sent now.'),
            ('part', 'is_reason', 'read', 'Whether a text is a reason code.'),
            ('part', 'is_verdict', 'read', 'Whether a text is a verdict.'),
            ('part', 'latency_class_end', 'read', 'The longest latency of a class.'),
            ('part', 'latency_percentile', 'read', 'A percentile of a histogram of webhook.stat.'),
            ('part', 'masked_url', 'read',
             'A URL without its path and query, for those who may not see credentials.'),
            ('part', 'newest_public_key', 'read', 'The work of webhook_public_key().'),
            ('part', 'own_origin', 'read', 'The origin of this installation, for views, which run with the rights of their reader.'),
            ('part', 'payload_size', 'read', 'The bytes of an event''s payload, as text.'),
            ('part', 'reasons', 'read', 'All reason codes, and what each means.'),
            ('part', 'status', 'read', 'The work of webhook_status().'),
            ('part', 'verdicts', 'read', 'All verdicts, and what each means.'),
            ('part', 'wait_in_a_word', 'read',
             'The own reason of a PENDING delivery to wait, in a word: ''due'' if it has none.'),
            ('part', 'why', 'read', 'The work of webhook_why().'),
            ('part', 'backfill_batch', 'operate', 'Makes one batch of deliveries of webhook_backfill().'),
            ('part', 'begin_backfill', 'operate', 'Begins a run of webhook_backfill().'),
            ('part', 'begin_replay', 'operate', 'Begins a run of webhook_replay_all().'),
            ('part', 'discard_event', 'operate',
             'Deletes the dead letters of an event, at one endpoint or at all.'),
            ('part', 'end_test', 'operate',
             'Returns the outcome of webhook_test() when there is one, and removes its event.'),
            ('part', 'may_be_queued', 'operate', 'Whether this can be a row of the queue.'),
            ('part', 'pause', 'operate', 'The work of webhook_pause().'),
            ('part', 'queue_test', 'operate', 'Queues the event of webhook_test().'),
            ('part', 'redact_event', 'operate',
             'Removes an event''s payload and all answers of receivers; when and where it was sent stays known.'),
            ('part', 'replay_batch', 'operate', 'Sends one batch of webhook_replay_all().'),
            ('part', 'replay_event', 'operate',
             'Sends an event again, to one endpoint or to all that have a delivery of it.'),
            ('part', 'require_no_transaction_block', 'operate',
             'Refuses a procedure that commits where it cannot commit, and says what to do.'),
            ('part', 'reset_breaker', 'operate', 'The work of webhook_reset_breaker().'),
            ('part', 'resume', 'operate', 'The work of webhook_resume().'),
            ('part', 'add_figures', 'relay', 'Adds the counts of a sender to webhook.stat.'),
            ('part', 'agenda', 'relay',
             'The next page of endpoints with deliveries in the queue, and the position of each.'),
            ('part', 'begin_sender', 'relay',
             'Begins a run of a sender: takes its number, and a lock on it for the session.'),
            ('part', 'check_metrics', 'relay', 'Leaves an alert for each metric that has crossed its threshold.'),
            ('part', 'dead_senders', 'relay', 'Runs of senders that did not end in order and do not go on.'),
            ('part', 'due', 'relay', 'When to ask for each of these endpoints again, and how many it may get.'),
            ('part', 'end_orphans', 'relay',
             'Ends deliveries that wait for removed endpoints, as the removal says.'),
            ('part', 'end_senders', 'relay',
             'Ends runs of senders that have left no claim, and their leases.'),
            ('part', 'exchange', 'relay',
             'Settles the outcomes of a sender and claims the deliveries that it asks for, in one call.'),
            ('part', 'expire', 'relay',
             'One step of retention: deletes finished deliveries, events and idempotency keys that are old enough.'),
            ('part', 'expire_figures', 'relay', 'Deletes figures of minutes after a day, and of hours after a month.'),
            ('part', 'expire_waiting', 'relay',
             'Fails expired deliveries and those that were kept back for too long, a page of each.'),
            ('part', 'forget_removed_endpoints', 'relay',
             'Forgets removed endpoints that no delivery and no counter has any more.'),
            ('part', 'keep_order', 'relay', 'Passes on turns of ordering keys that were missed.'),
            ('part', 'protocol', 'relay', 'The protocol between this SQL and the programs that call it.'),
            ('part', 'raise_alerts', 'relay',
             'Raises alerts by NOTIFY and events, and returns lines for the log.'),
            ('part', 'recover', 'relay', 'Releases claims that no sender has any more.'),
            ('part', 'release_shares', 'relay', 'Gives up shares of the endpoints.'),
            ('part', 'sender_settings', 'relay', 'The settings that a relay goes by.'),
            ('part', 'survey', 'relay', 'The facts that a sender looks at every few seconds.'),
            ('part', 'take_shares', 'relay',
             'Takes a sender''s part of the free shares, and returns the shares that it holds.'),
            ('part', 'turn_away', 'relay',
             'Ends due deliveries of endpoints whose open breaker does not hold them.');
    END;
-- The meaning of each parameter of the API. 80_comments.sql puts it into the comments of the functions, docs/reference.md
-- shows it. A row without a function stands for every function with a parameter of that name.
CREATE OR REPLACE FUNCTION webhook.parameters() RETURNS TABLE (function text, parameter text, meaning text)
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        VALUES
            (NULL::text, 'endpoint', 'The address of an endpoint: name, or tenant/name.'),
            ('webhook_pause', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant, * for every endpoint.'),
            ('webhook_resume', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant, * for every endpoint.'),
            ('webhook_adopt', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant. Null: every endpoint.'),
            ('webhook_replay', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant. Null: every endpoint that has a delivery of the event.'),
            ('webhook_discard', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant. Null: every endpoint that has a dead letter of the event.'),
            ('webhook_replay_all', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant, * for every endpoint.'),
            ('webhook_backfill', 'endpoint', 'The address of an endpoint; tenant/* stands for all of a tenant, * for every endpoint.'),
            (NULL, 'event_id', 'The id that webhook_emit() returned and that the receiver saw as webhook-id.'),

            (NULL, 'event_type', 'The type: letters, digits, _ and - in parts joined by dots; webhook. is reserved.'),
            ('webhook_emit_many', 'event_type', 'One type for all events.'),
            ('webhook_emit_many', 'event_types', 'The type of each event.'),
            ('webhook_emit', 'payload', 'Any JSON value of at most webhook.max_payload.'),
            ('webhook_emit_many', 'payloads', 'The payload of each event. Null emits nothing.'),
            ('webhook_emit', 'idempotency_key', 'A second call with the same key and tenant, within webhook.idempotency_window, emits nothing and returns the id of the first event.'),
            ('webhook_emit_many', 'idempotency_keys', 'The idempotency key of each event; null for none.'),
            ('webhook_emit', 'ordering_key', 'Deliveries with the same key go to an endpoint one at a time, in the order of emission.'),
            ('webhook_emit_many', 'ordering_keys', 'The ordering key of each event; null for none.'),
            ('webhook_emit', 'coalesce_key', 'A newer event with the same key and tenant cancels deliveries that still wait.'),
            ('webhook_emit_many', 'coalesce_keys', 'The coalesce key of each event; null for none.'),
            (NULL, 'deliver_at', 'Nothing is sent before this time. Null: at once.'),
            (NULL, 'expires_at', 'A delivery whose attempt has not begun by this time fails. Null: never.'),
            (NULL, 'tenant', 'The event reaches the endpoints of this tenant and those without a tenant. Null: only those without.'),
            (NULL, 'endpoints', 'Addresses: of these endpoints, the event reaches those that want it. Null: every endpoint that wants it.'),

            (NULL, 'target', 'The table.'),
            ('webhook_watch', 'prefix', 'The events are of the types prefix.created, prefix.updated, prefix.deleted and prefix.truncated.'),
            ('webhook_watch', 'operations', 'Any of insert, update, delete and truncate.'),
            ('webhook_watch', 'changed', 'An update emits only rows in which one of these columns has changed. Null: every row.'),
            ('webhook_watch', 'include', 'The columns that are sent. Null: all.'),
            ('webhook_watch', 'exclude', 'Columns that are not sent.'),
            ('webhook_watch', 'condition', 'The WHEN of a row trigger: only rows that meet it are emitted.'),
            ('webhook_watch', 'ordering_key', 'Columns whose values make the ordering key of an event.'),
            ('webhook_watch', 'coalesce_key', 'Columns whose values make the coalesce key of an event.'),
            ('webhook_watch', 'on_error', 'raise: an event that cannot be emitted refuses the change; warn: the change goes on without the event.'),
            ('webhook_watch', 'tenant_column', 'The column with the tenant of an event.'),
            ('webhook_watch', 'reported_as', 'The table, or schema and table, that events name. Null: the table''s own name.'),

            ('webhook_why', 'about', 'The id of an event, or the address of an endpoint. Null: the newest event.'),

            ('webhook_backfill', 'since', 'Events that were emitted at this time or later. Null: all events that are kept.'),
            ('webhook_backfill', 'until', 'Events that were emitted before this time. Null: now.'),
            ('webhook_backfill', 'event_type', 'Events of this type. Null: of every type that the endpoint wants.'),
            ('webhook_backfill', 'batch_size', 'The procedure commits after so many events.'),
            ('webhook_replay_all', 'since', 'Deliveries that ended at this time or later. Null: from the beginning.'),
            ('webhook_replay_all', 'until', 'Deliveries that ended before this time. Null: now.'),
            ('webhook_replay_all', 'event_type', 'Deliveries of events of this type. Null: of every type.'),
            ('webhook_replay_all', 'status', 'Any of FAILED, SENT and CANCELLED.'),
            ('webhook_replay_all', 'batch_size', 'The procedure commits after so many deliveries.'),
            ('webhook_test', 'status', 'Returns SENT, FAILED, or CANCELLED where no sender took it in time. Leave it out of the call.'),
            ('webhook_test', 'status_code', 'Returns the HTTP status of the answer. Leave it out of the call.'),
            ('webhook_test', 'error', 'Returns what went wrong. Leave it out of the call.'),
            ('webhook_test', 'response', 'Returns the beginning of the answer. Leave it out of the call.'),
            ('webhook_test', 'duration_ms', 'Returns the duration of the attempt. Leave it out of the call.'),

            ('webhook_copy_policy', 'source', 'The name of a policy.'),
            ('webhook_copy_policy', 'target', 'The name of the new policy.'),
            ('webhook_remove_endpoint', 'pending', 'cancel or fail: what happens to its queued deliveries.'),
            (NULL, 'overlap', 'The old one signs beside the new one for this long.'),
            ('webhook_rotate_key', 'key', 'A private key of your own, whsk_ and base64. Null: the extension makes one.'),
            ('webhook_rotate_hmac_secret', 'secret', 'A secret of your own: a text of 8 to 256 bytes. Null: the extension makes one.'),
            ('webhook_rotate_secret', 'secret', 'A secret of your own, whsec_ and base64. Null: the extension makes one.'),

            ('webhook_set_endpoint', 'url', 'Where requests go: https, or http where webhook.require_https allows it.'),
            ('webhook_set_endpoint', 'event_types', 'Patterns of the types that it gets: order.created, order.*, *, !order.draft.'),
            ('webhook_set_endpoint', 'policy', 'The name of a policy: when to retry, and when the breaker opens.'),
            ('webhook_set_endpoint', 'secret', 'Signs the requests: whsec_ or whsk_ and base64. For a new endpoint, null: the extension makes one.'),
            ('webhook_set_endpoint', 'headers', 'A JSON object of headers for every request, constant or with placeholders; their values are credentials.'),
            ('webhook_set_endpoint', 'format', 'The body: standard, raw, cloudevents or template.'),
            ('webhook_set_endpoint', 'template', 'The body for the format template: JSON with placeholders.'),
            ('webhook_set_endpoint', 'filter', 'A jsonpath condition on {"type", "data"} that an event has to fulfil.'),
            ('webhook_set_endpoint', 'max_in_flight', 'Most requests to it at the same time.'),
            ('webhook_set_endpoint', 'rate_limit', 'Most attempts in a second.'),
            ('webhook_set_endpoint', 'hmac_secret', 'The secret of signatures in headers ({{hmac_hex(..)}}): a text of 8 to 256 bytes.'),
            ('webhook_set_endpoint', 'metadata', 'A JSON object of your own, which alerts carry.'),

            (NULL, 'role', 'The name of a role.'),
            (NULL, 'level', 'emit, read, operate, admin or relay.');
    END;

-- The meaning of each column that a function of the API returns.
CREATE OR REPLACE FUNCTION webhook.result_columns() RETURNS TABLE (function text, name text, meaning text)
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        VALUES
            ('webhook_set_endpoint', 'id', 'The number of the endpoint, which deliveries refer to.'),
            ('webhook_set_endpoint', 'secret', 'The signing secret that the extension made, for the receiver; null where it made none.'),
            ('webhook_set_endpoint', 'changed', 'The columns that have another value now; created for a new endpoint.'),
            ('webhook_preview', 'url', 'Where the request would go.'),
            ('webhook_preview', 'headers', 'Its headers, those of the signature included.'),
            ('webhook_preview', 'body', 'Its body.'),
            ('webhook_status', 'database', 'This database.'),
            ('webhook_status', 'health', 'ok, warning or critical: the worst of the problems that reason names.'),
            ('webhook_status', 'state', 'running; or why nothing is sent: held, disabled, no worker, not preloaded, no relay and the like.'),
            ('webhook_status', 'reason', 'Every problem, in sentences; null where there is none.'),
            ('webhook_status', 'worker_pid', 'The process id of the worker; null where there is none.'),
            ('webhook_status', 'in_flight', 'Requests on the wire, of the worker and of relays.'),
            ('webhook_status', 'queued', 'Deliveries in the queue; counts end at 10,000.'),
            ('webhook_status', 'due', 'Of these, deliveries that could be sent now.'),
            ('webhook_status', 'more', 'Whether there are more than are counted.'),
            ('webhook_status', 'oldest_due', 'How long the oldest of these has been due.'),
            ('webhook_status', 'queued_bytes', 'Bytes of the payloads of queued deliveries, estimated.'),
            ('webhook_status', 'retention_lag', 'How far deletion is behind the settings of retention.'),
            ('webhook_status', 'last_error', 'The last error of the worker itself.'),
            ('webhook_status', 'last_error_at', 'When it happened.'),
            ('webhook_status', 'senders', 'The senders at work: kind, host, version, since, in_flight, shares.');
    END;

-- Parameters and result columns, in the order of the signature.
CREATE OR REPLACE FUNCTION webhook.parameters_of(routine regprocedure)
    RETURNS TABLE (parameter text, meaning text, is_result boolean)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT n.name, coalesce(r.meaning, m.meaning), n.is_result
        FROM pg_catalog.pg_proc p
        CROSS JOIN LATERAL (
            SELECT a.name, a.ordinal, coalesce(p.proargmodes[a.ordinal] IN ('o', 't'), false) AS is_result
            FROM unnest(p.proargnames) WITH ORDINALITY AS a (name, ordinal)
        ) n
        LEFT JOIN webhook.result_columns() r ON n.is_result AND r.function = p.proname AND r.name = n.name
        LEFT JOIN LATERAL (
            SELECT k.meaning FROM webhook.parameters() k
            WHERE NOT n.is_result AND k.parameter = n.name AND (k.function = p.proname OR k.function IS NULL)
            ORDER BY k.function LIMIT 1
        ) m ON true
        WHERE p.oid = routine
        ORDER BY n.ordinal;
    END;
-- Levels. There are five, and a role has those that webhook_grant() gave it:
--
--   emit     emits events and watches tables; sees nothing
--   read     sees events, deliveries, attempts and how endpoints are doing; neither secrets nor credentials
--   operate  reads; pauses, resumes, tests, replays and backfills; corrects deliveries by UPDATE webhook.delivery and
--            discards them by DELETE FROM webhook.dead_letter
--   admin    does all of it; manages endpoints, policies and secrets
--   relay    delivers, for webhook-relay: claims, settles, gets routes with their secrets, and does the upkeep
--
-- Only webhook_owner has TRIGGER: a trigger on our tables would run as the worker. No role gets our trigger functions, which
-- run as webhook_owner: on a table of the caller's they would meet columns of the caller's types, and so call the caller's
-- casts and domain checks. Our own triggers fire without any privilege. webhook_trigger() is made for tables of others, and
-- takes the rights of webhook_owner only when nothing is left of their rows but JSON.

-- One row for each object. A function that people call has two: the thin one and the one that does the work.
CREATE OR REPLACE FUNCTION webhook.privileges(level text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- webhook_watch() runs as its caller and calls these: each reads only the system's catalogs or its arguments.
    called_by_watch CONSTANT text[] :=
        '{watch_commands, watch_definitions, watch_triggers, require_watchable, require_watch, reported_name, refuse_condition,
          is_event_type, refuse_event_type, did_you_mean, virtual_columns}';
    -- These belong to the owner alone, beside those of the API that are a superuser's.
    of_the_owner CONSTANT text[] :=
        '{grant_level, revoke_level, grant_connect, withdraw_grants, unsent, write_installation,
          recognise_installation, renew_levels, renew_grants, holders}';
BEGIN
    RETURN QUERY
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure)
    FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine LEFT JOIN webhook.api() a
         ON a.name = m.name AND a.kind IN ('function', 'procedure', 'part')
    WHERE a.level = privileges.level
       -- The writers of watched tables call these.
       OR (privileges.level = 'emit' AND webhook.is_portable() AND m.name LIKE 'capture%')
       OR (privileges.level = 'admin' AND a.level IS DISTINCT FROM 'superuser' AND m.name <> ALL (of_the_owner)
           AND p.prorettype <> 'trigger'::regtype);

    IF level IN ('emit', 'relay') THEN
        RETURN NEXT 'USAGE ON SCHEMA webhook';
    ELSIF level = 'read' THEN
        RETURN NEXT 'USAGE ON SCHEMA webhook';
        RETURN QUERY
        SELECT format('SELECT ON webhook.%I', a.name) FROM webhook.api() a WHERE a.kind IN ('table', 'view') AND a.level = 'read';
        RETURN QUERY
        SELECT format('SELECT (%s) ON webhook.endpoint', string_agg(quote_ident(a.attname), ', ')) FROM pg_attribute a
        WHERE a.attrelid = 'webhook.endpoint'::regclass AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attname NOT IN ('url', 'headers', 'template');
    ELSIF level = 'operate' THEN
        RETURN NEXT 'UPDATE (status, attempts, next_attempt_at, last_error) ON webhook.delivery';
        RETURN NEXT 'DELETE ON webhook.dead_letter';
        RETURN NEXT 'USAGE ON TYPE webhook.replay, webhook.backfill';
        RETURN QUERY SELECT webhook.privileges('read');
    ELSIF level = 'admin' THEN
        RETURN NEXT 'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA webhook';
        RETURN NEXT 'USAGE, SELECT ON ALL SEQUENCES IN SCHEMA webhook';
        RETURN NEXT 'USAGE ON TYPE webhook.judgement, webhook.outcome';
        RETURN QUERY SELECT webhook.privileges('operate');
        RETURN QUERY SELECT webhook.privileges('emit');
        RETURN QUERY SELECT webhook.privileges('relay');
    ELSE
        RAISE EXCEPTION 'level "%" does not exist', level USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The levels are emit, read, operate, admin and relay.';
    END IF;
END $$;

-- It takes a name and not a regrole: of two functions that fit a literal, the server prefers the one that takes text, and that
-- might be somebody else's.
CREATE OR REPLACE FUNCTION webhook.require_role(role text) RETURNS regrole
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_role regrole := (SELECT r.oid FROM pg_roles r WHERE r.rolname = role);
BEGIN
    IF found_role IS NULL THEN
        RAISE EXCEPTION 'role "%" does not exist', role USING ERRCODE = 'undefined_object',
            HINT = coalesce(webhook.did_you_mean(role, ARRAY(SELECT r.rolname FROM pg_roles r)), 'CREATE ROLE makes one.');
    END IF;
    RETURN found_role;
END $$;

CREATE OR REPLACE FUNCTION webhook.api_schema(OUT schema regnamespace, OUT is_ours_alone boolean)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    schema := webhook.home();
    is_ours_alone := NOT EXISTS (
        SELECT FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema AND d.deptype = 'n'
          AND d.classid <> 'pg_extension'::regclass
          AND NOT (d.classid = 'pg_proc'::regclass AND d.objid IN (SELECT m.routine FROM webhook.members() m)));
END $$;

-- It runs with its caller's rights: only a superuser can grant rights on objects of webhook_owner. Without the library it has
-- the owner's rights instead (sql/portable/90_ownership.sql).
CREATE OR REPLACE FUNCTION webhook.grant_level(role text, level text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    to_role regrole := webhook.require_role(role);
    api record;
    privilege text;
BEGIN
    FOR privilege IN SELECT webhook.privileges(level) LOOP
        EXECUTE format('GRANT %s TO %s', privilege, to_role);
    END LOOP;
    SELECT * INTO api FROM webhook.api_schema();
    IF NOT has_schema_privilege(to_role, api.schema, 'USAGE') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', api.schema, to_role);
    END IF;
END $$;

-- The roles that have a level, found by a function of schema webhook that no lesser level has. Functions in the schema of the
-- extension prove nothing: GRANT .. ON ALL FUNCTIONS IN SCHEMA gives them to roles that can do nothing with them.
CREATE OR REPLACE FUNCTION webhook.holders(level text) RETURNS SETOF oid
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT a.grantee
        FROM (VALUES ('emit', 'emit'), ('read', 'status'), ('operate', 'pause'), ('admin', 'set_endpoint'), ('relay', 'exchange')) AS l (level, hallmark)
        JOIN pg_proc p ON p.proname = l.hallmark AND p.pronamespace = 'webhook'::regnamespace
        CROSS JOIN LATERAL aclexplode(p.proacl) a
        WHERE l.level = holders.level AND a.grantee <> p.proowner;
    END;

-- Takes away the level and those that it includes; the role keeps the rights that another level of it needs. With the last
-- level goes USAGE on the schema of our functions, unless that schema holds other things too.
CREATE OR REPLACE FUNCTION webhook.revoke_level(role text, level text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    from_role regrole := webhook.require_role(role);
    taken text[] := CASE level WHEN 'admin' THEN '{emit, read, operate, admin, relay}' WHEN 'operate' THEN '{read, operate}' ELSE ARRAY[level] END;
    kept text[] := ARRAY(SELECT other FROM unnest('{emit, read, operate, admin, relay}'::text[]) AS other
                         WHERE other <> ALL (taken) AND from_role IN (SELECT webhook.holders(other)));
    api record;
    privilege text;
BEGIN
    FOR privilege IN
        SELECT webhook.privileges(level) EXCEPT SELECT webhook.privileges(k) FROM unnest(kept) AS k
    LOOP
        EXECUTE format('REVOKE %s FROM %s', privilege, from_role);
    END LOOP;
    SELECT * INTO api FROM webhook.api_schema();
    IF cardinality(kept) = 0
       AND EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = api.schema AND a.grantee = from_role) THEN
        IF api.is_ours_alone THEN
            EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %s', api.schema, from_role);
        ELSE
            RAISE NOTICE 'role "%" keeps its rights to schema "%"', role, api.schema
                USING DETAIL = 'The schema has objects that are not webhook''s.',
                      HINT = format('REVOKE USAGE ON SCHEMA %s FROM %s takes it away.', api.schema, from_role);
        END IF;
    END IF;
END $$;

-- How many deliveries wait, for a sentence of src/uninstall.rs before the extension is dropped.
CREATE OR REPLACE FUNCTION webhook.unsent() RETURNS text
    LANGUAGE sql STABLE
    RETURN (SELECT CASE WHEN count(*) > webhook.count_limit() THEN 'more than ' || webhook.count_limit()
                        ELSE count(*)::text END
            FROM (SELECT FROM webhook.delivery_queue LIMIT webhook.count_limit() + 1) q);

-- The rights that would outlive the extension, and keep roles from being dropped: USAGE on a schema of ours alone, and CONNECT.
CREATE OR REPLACE FUNCTION webhook.withdraw_grants() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grantee regrole;
BEGIN
    FOR grantee IN
        SELECT DISTINCT a.grantee FROM webhook.api_schema() api
        JOIN pg_namespace n ON n.oid = api.schema
        CROSS JOIN aclexplode(n.nspacl) a
        WHERE api.is_ours_alone AND a.privilege_type = 'USAGE' AND a.grantee NOT IN (0, n.nspowner)
    LOOP
        EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %s', (SELECT api.schema FROM webhook.api_schema() api), grantee);
    END LOOP;
    IF EXISTS (SELECT FROM pg_database d, aclexplode(d.datacl) a
               WHERE d.datname = current_database() AND a.grantee = to_regrole('webhook_owner')) THEN
        EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM webhook_owner', current_database());
    END IF;
END $$;
-- The functions that people call, in the schema of the extension. Each only hands its arguments to the one in schema webhook
-- that does the work: nothing in webhook ever calls back, because the owner of this schema may rename it and put another in
-- its place. Beside these there are the trigger function webhook_trigger() and the procedures, which commit and so run as
-- their caller: webhook_test(), webhook_replay_all() and webhook_backfill().

CREATE OR REPLACE FUNCTION public.webhook_copy_policy(source text, target text) RETURNS void
    LANGUAGE sql
    RETURN webhook.copy_policy(source, target);

CREATE OR REPLACE FUNCTION public.webhook_set_endpoint(
    endpoint text, url text DEFAULT NULL, event_types text[] DEFAULT NULL, policy text DEFAULT NULL,
    secret text DEFAULT NULL, headers jsonb DEFAULT NULL, format text DEFAULT NULL, template jsonb DEFAULT NULL,
    filter jsonpath DEFAULT NULL, max_in_flight int DEFAULT NULL, rate_limit numeric DEFAULT NULL,
    metadata jsonb DEFAULT NULL, hmac_secret text DEFAULT NULL)
    RETURNS TABLE (id int, secret text, changed text[])
    LANGUAGE sql
    BEGIN ATOMIC
        SELECT * FROM webhook.set_endpoint(
            endpoint, url, event_types, policy, secret, headers, format, template, filter, max_in_flight, rate_limit,
            metadata, hmac_secret);
    END;

CREATE OR REPLACE FUNCTION public.webhook_remove_endpoint(
    endpoint text, pending text DEFAULT 'cancel') RETURNS void
    LANGUAGE sql
    RETURN webhook.remove_endpoint(endpoint, pending);

CREATE OR REPLACE FUNCTION public.webhook_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.newest_secret(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_rotate_secret(
    endpoint text, overlap interval DEFAULT '24 hours', secret text DEFAULT NULL) RETURNS text
    LANGUAGE sql
    RETURN webhook.rotate_secret(endpoint, overlap, secret);

CREATE OR REPLACE FUNCTION public.webhook_public_key(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.newest_public_key(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_rotate_key(
    endpoint text, overlap interval DEFAULT '24 hours', key text DEFAULT NULL) RETURNS text
    LANGUAGE sql
    RETURN webhook.rotate_key(endpoint, overlap, key);

CREATE OR REPLACE FUNCTION public.webhook_hmac_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.newest_hmac_secret(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_rotate_hmac_secret(
    endpoint text, overlap interval DEFAULT '24 hours', secret text DEFAULT NULL) RETURNS text
    LANGUAGE sql
    RETURN webhook.rotate_hmac_secret(endpoint, overlap, secret);

CREATE OR REPLACE FUNCTION public.webhook_emit(
    event_type text, payload jsonb DEFAULT '{}', idempotency_key text DEFAULT NULL,
    ordering_key text DEFAULT NULL, coalesce_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS uuid
    LANGUAGE sql
    RETURN webhook.emit(
        event_type, payload, idempotency_key, ordering_key, coalesce_key, deliver_at, expires_at, tenant,
        endpoints);

-- These two only say that a payload is json where it must be jsonb.
CREATE OR REPLACE FUNCTION public.webhook_emit(
    event_type webhook.type_beside_json, payload json, idempotency_key text DEFAULT NULL,
    ordering_key text DEFAULT NULL, coalesce_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS uuid
    LANGUAGE sql
    RETURN webhook.refuse_json('payload');

CREATE OR REPLACE FUNCTION public.webhook_emit_many(
    event_type webhook.type_beside_json, payloads json[], ordering_keys text[] DEFAULT NULL,
    idempotency_keys text[] DEFAULT NULL, coalesce_keys text[] DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS SETOF uuid
    LANGUAGE sql
    RETURN webhook.refuse_json('payloads');

CREATE OR REPLACE FUNCTION public.webhook_emit_many(
    event_types text[], payloads jsonb[], ordering_keys text[] DEFAULT NULL, idempotency_keys text[] DEFAULT NULL,
    coalesce_keys text[] DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS SETOF uuid
    LANGUAGE sql
    BEGIN ATOMIC
        SELECT * FROM webhook.emit_many(
            event_types, payloads, ordering_keys, idempotency_keys, coalesce_keys, deliver_at, expires_at, tenant,
            endpoints);
    END;

CREATE OR REPLACE FUNCTION public.webhook_emit_many(
    event_type text, payloads jsonb[], ordering_keys text[] DEFAULT NULL, idempotency_keys text[] DEFAULT NULL,
    coalesce_keys text[] DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS SETOF uuid
    LANGUAGE sql
    BEGIN ATOMIC
        SELECT * FROM webhook.emit_many(
            event_type, payloads, ordering_keys, idempotency_keys, coalesce_keys, deliver_at, expires_at, tenant,
            endpoints);
    END;

CREATE OR REPLACE FUNCTION public.webhook_watch(
    target regclass, prefix text, operations text[] DEFAULT '{insert,update,delete}',
    changed text[] DEFAULT NULL, include text[] DEFAULT NULL, exclude text[] DEFAULT NULL,
    condition text DEFAULT NULL, ordering_key text[] DEFAULT NULL, coalesce_key text[] DEFAULT NULL,
    on_error text DEFAULT 'raise', tenant_column text DEFAULT NULL, reported_as text DEFAULT NULL)
    RETURNS SETOF text
    LANGUAGE sql
    BEGIN ATOMIC
        SELECT * FROM webhook.watch(
            target, prefix, operations, changed, include, exclude, condition, ordering_key, coalesce_key,
            on_error, tenant_column, reported_as);
    END;

CREATE OR REPLACE FUNCTION public.webhook_unwatch(target regclass) RETURNS int
    LANGUAGE sql
    RETURN webhook.unwatch(target);

CREATE OR REPLACE FUNCTION public.webhook_reset_breaker(endpoint text) RETURNS void
    LANGUAGE sql
    RETURN webhook.reset_breaker(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_adopt(endpoint text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.adopt(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_replay(event_id uuid, endpoint text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.replay_event(event_id, endpoint);

CREATE OR REPLACE FUNCTION public.webhook_discard(event_id uuid, endpoint text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.discard_event(event_id, endpoint);

CREATE OR REPLACE FUNCTION public.webhook_redact(event_id uuid) RETURNS int
    LANGUAGE sql
    RETURN webhook.redact_event(event_id);

CREATE OR REPLACE FUNCTION public.webhook_status()
    RETURNS TABLE (database name, health text, state text, reason text, worker_pid int, in_flight int,
                   queued bigint, due bigint, more boolean, oldest_due interval, queued_bytes bigint,
                   retention_lag interval, last_error text, last_error_at timestamptz, senders jsonb)
    LANGUAGE sql
    BEGIN ATOMIC SELECT * FROM webhook.status(); END;

CREATE OR REPLACE FUNCTION public.webhook_pause(endpoint text) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.pause(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_resume(endpoint text) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.resume(endpoint);

CREATE OR REPLACE FUNCTION public.webhook_preview(
    event_id uuid, endpoint text, OUT url text, OUT headers jsonb, OUT body text)
    LANGUAGE sql
    BEGIN ATOMIC SELECT * FROM webhook.preview(event_id, endpoint); END;

CREATE OR REPLACE FUNCTION public.webhook_why(about text DEFAULT NULL) RETURNS SETOF text
    LANGUAGE sql
    BEGIN ATOMIC SELECT * FROM webhook.why(about); END;

CREATE OR REPLACE FUNCTION public.webhook_grant(role text, level text) RETURNS void
    LANGUAGE sql
    RETURN webhook.grant_level(role, level);

CREATE OR REPLACE FUNCTION public.webhook_revoke(role text, level text) RETURNS void
    LANGUAGE sql
    RETURN webhook.revoke_level(role, level);
-- Gives every role the new rights of its levels, for an upgrade.
--
-- A role of the level may execute every function of it that is not new: a role that was denied one by hand gets no more.
CREATE OR REPLACE FUNCTION webhook.renew_levels() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held record;
BEGIN
    FOR held IN
        WITH earlier AS MATERIALIZED (
            SELECT a.level, p.oid, p.proacl
            FROM webhook.api() a
            JOIN webhook.members() m USING (name)
            JOIN pg_proc p ON p.oid = m.routine
            WHERE a.kind IN ('function', 'procedure') AND NOT webhook.is_new(p.oid)
        )
        SELECT e.level, r.rolname
        FROM earlier e
        CROSS JOIN LATERAL aclexplode(e.proacl) g
        JOIN pg_roles r ON r.oid = g.grantee
        WHERE g.privilege_type = 'EXECUTE' AND g.grantee IN (SELECT webhook.holders(e.level))
        GROUP BY e.level, r.rolname
        HAVING count(DISTINCT e.oid) = (SELECT count(*) FROM earlier o WHERE o.level = e.level)
        ORDER BY r.rolname, e.level
    LOOP
        PERFORM webhook.grant_level(held.rolname, held.level);
    END LOOP;
END $$;
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
-- A sentence for every object of the extension, for \d+, \df+ and the tools of others. 66_public_api.sql has the sentences of
-- the API, 67_parameters.sql those of its parameters.

DO $$
DECLARE
    entry record;
BEGIN
    FOR entry IN
        SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS name, concat_ws(E'\n', a.comment, described.parameters) AS comment
        FROM webhook.api() a JOIN webhook.members() m USING (name) JOIN pg_proc p ON p.oid = m.routine
        CROSS JOIN LATERAL (SELECT string_agg(d.parameter || ': ' || d.meaning, E'\n') FROM webhook.parameters_of(p.oid) d
                            WHERE a.kind <> 'part') AS described (parameters)
        WHERE a.kind IN ('function', 'procedure', 'part')
        UNION ALL
        SELECT upper(a.kind), format('webhook.%I', a.name), a.comment FROM webhook.api() a
        WHERE a.kind IN ('table', 'view')
    LOOP
        EXECUTE format('COMMENT ON %s %s IS %L', entry.kind, entry.name, entry.comment);
    END LOOP;
END $$;

COMMENT ON SCHEMA webhook IS 'Tables, views and functions of the extension webhook.';
COMMENT ON ROUTINE webhook.address_name IS 'The name in an address.';
COMMENT ON ROUTINE webhook.address_tenant IS 'The tenant in an address; null for none.';
COMMENT ON ROUTINE webhook.addressed_endpoints IS
    'The endpoints of an address, which may name all of a tenant.';
COMMENT ON ROUTINE webhook.adopt IS 'The work of webhook_adopt().';
COMMENT ON ROUTINE webhook.alert_about IS 'An alert, until webhook.alert has it.';
COMMENT ON ROUTINE webhook.api IS 'The API as a table.';
COMMENT ON ROUTINE webhook.api_schema IS
    'The schema of the functions that people call, and whether it holds nothing else.';
COMMENT ON ROUTINE webhook.as_event_id IS 'A text as the id of an event; null if it is none.';
COMMENT ON ROUTINE webhook.backlog_limit IS 'Disk space of the deliveries of one endpoint that raises an alert.';
COMMENT ON ROUTINE webhook.backoff_delay(p webhook.policy, attempts integer, retry_after interval, draw double precision) IS
    'The delay before the next attempt under a policy.';
COMMENT ON ROUTINE webhook.backoff_delay(policy_name text, attempts integer, retry_after interval) IS
    'The delay before the next attempt under a policy.';
COMMENT ON ROUTINE webhook.call_followers IS
    'Makes deliveries due that waited for the turn of their ordering key.';
COMMENT ON ROUTINE webhook.cancel_superseded IS
    'Cancels rows that a newer delivery supersedes, and returns the others.';
COMMENT ON ROUTINE webhook.change IS 'Changes deliveries, and tries again while others have them locked.';
COMMENT ON ROUTINE webhook.check_endpoint IS
    'Trigger: refuses an endpoint that is not valid, with the remedy.';
COMMENT ON ROUTINE webhook.check_secret IS
    'Trigger: refuses a secret that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.close_breaker IS
    'Closes a breaker now, by a person: waiting retries are due at once.';
COMMENT ON ROUTINE webhook.closed IS 'A breaker as it is when it has just closed.';
COMMENT ON ROUTINE webhook.configured IS 'A setting as somebody has set it; null where nobody has.';
COMMENT ON ROUTINE webhook.cooldown IS 'The time from the opening of a breaker to its next probe.';
COMMENT ON ROUTINE webhook.count_signatures IS 'The number of signatures in the templates of headers.';
COMMENT ON ROUTINE webhook.copy_policy IS 'The work of webhook_copy_policy().';
COMMENT ON ROUTINE webhook.count_figures IS 'Adds counts to webhook.stat.';
COMMENT ON ROUTINE webhook.discard IS
    'Deletes dead letters with their attempts, and events that nothing needs any more.';
COMMENT ON ROUTINE webhook.emit_alert IS
    'Emits the event of an alert to the endpoints that subscribe to it.';
COMMENT ON ROUTINE webhook.emit_changes IS 'Emits a batch of changes of a watched table.';
COMMENT ON ROUTINE webhook.emit_checked IS 'Emits an event of any kind, and refuses invalid input.';
COMMENT ON ROUTINE webhook.emit_events IS
    'Inserts events and their deliveries: one event for each element of the arrays.';
COMMENT ON ROUTINE webhook.emit_possible_changes IS
    'Emits a batch of changes, and counts those that cannot be emitted.';
COMMENT ON ROUTINE webhook.end_catching_up IS 'Ends the bringing forward of retries where none is left.';
COMMENT ON ROUTINE webhook.endpoint_at IS 'The endpoint of an address; no row where there is none.';
COMMENT ON ROUTINE webhook.endpoint_without_credentials IS 'An endpoint without URL, headers and template.';
COMMENT ON ROUTINE webhook.error_in_words IS 'An error of ours as a sentence.';
COMMENT ON ROUTINE webhook.event_source IS 'The source of events, as CloudEvents say it.';
COMMENT ON ROUTINE webhook.expire_overdue IS 'Fails deliveries past their expires_at.';
COMMENT ON ROUTINE webhook.expire_kept_back IS
    'Fails deliveries that their endpoint kept back for longer than hold_for.';
COMMENT ON ROUTINE webhook.fail_queued IS 'Moves deliveries from the queue to the dead letters.';
COMMENT ON ROUTINE webhook.filter_problem IS 'Why a filter is not valid; null where it is.';
COMMENT ON ROUTINE webhook.filtered_document IS 'The document that filters are applied to.';
COMMENT ON ROUTINE webhook.finish_queued IS
    'Moves deliveries from the queue to the history or the dead letters.';
COMMENT ON ROUTINE webhook.first_id IS 'The least id of an event of this time.';
COMMENT ON ROUTINE webhook.first_secret IS 'Makes a secret for an endpoint that has none that is valid.';
COMMENT ON ROUTINE webhook.follow_clock IS 'Makes deliveries due that wait only because the clock was set back.';
COMMENT ON ROUTINE webhook.follow IS 'Aggregate: the course of a breaker over outcomes in order.';
COMMENT ON ROUTINE webhook.foreign_endpoints IS
    'The number of endpoints that belong to another installation.';
COMMENT ON ROUTINE webhook.forget IS
    'Deletes the attempts of deleted deliveries, and events that no delivery has any more.';
COMMENT ON ROUTINE webhook.forget_removed_endpoint IS
    'Trigger: an endpoint that is inserted again was not removed.';
COMMENT ON ROUTINE webhook.forget_routes IS 'Makes every session forget its routes at commit.';
COMMENT ON ROUTINE webhook.free_shares IS 'Shares that no living sender holds.';
COMMENT ON ROUTINE webhook.grant_connect IS 'Lets webhook_owner connect to this database.';
COMMENT ON ROUTINE webhook.grant_level IS 'The work of webhook_grant().';
COMMENT ON ROUTINE webhook.has_its_turn IS 'Whether the ordering key of a delivery lets it be the probe.';
COMMENT ON ROUTINE webhook.has_placeholder IS 'Whether a text has a placeholder of templates.';
COMMENT ON ROUTINE webhook.has_secret IS 'Whether requests of an endpoint are signed with this secret.';
COMMENT ON ROUTINE webhook.has_signatures IS 'Whether headers have signatures in their templates.';
COMMENT ON ROUTINE webhook.header_size_problem IS 'Why headers are too large; null where they are not.';
COMMENT ON ROUTINE webhook.header_template_problem IS
    'The problem of templates in headers, and the remedy; null if there is none.';
COMMENT ON ROUTINE webhook.header_value_problem IS
    'The problem of the template of one header, and the remedy; no row if there is none.';
COMMENT ON ROUTINE webhook.has_session IS 'Whether the session of this sender lasts.';
COMMENT ON ROUTINE webhook.hmac_key IS 'The key of a secret''s HMAC, in base64; null of a private key.';
COMMENT ON ROUTINE webhook.hmac_secrets IS
    'The valid secrets of signatures in headers, newest first; makes one where there is none.';
COMMENT ON ROUTINE webhook.holders IS 'The roles that have a level.';
COMMENT ON ROUTINE webhook.installation IS
    'The id of this installation, and the server that it was made for.';
COMMENT ON ROUTINE webhook.is_at_rest IS 'Whether a success changes nothing of a breaker.';
COMMENT ON ROUTINE webhook.is_endpoint_reason IS 'Whether a text is a reason code of endpoints.';
COMMENT ON ROUTINE webhook.is_histogram IS 'Whether JSON has classes of latency and numbers.';
COMMENT ON ROUTINE webhook.is_new IS 'Whether a routine was made by the current transaction.';
COMMENT ON ROUTINE webhook.is_sender_alive IS
    'Whether this sender may send: its session lasts, or a relay may not have noticed its end yet.';
COMMENT ON ROUTINE webhook.is_of_replay IS 'Whether a run of webhook_replay_all() selects a delivery.';
COMMENT ON ROUTINE webhook.is_preloaded IS 'Whether the library is in shared_preload_libraries.';
COMMENT ON ROUTINE webhook.is_private_key IS 'Whether a private key has the public key that belongs to it.';
COMMENT ON ROUTINE webhook.is_skipped IS 'Whether the policy when_open = skip cancels a delivery.';
COMMENT ON ROUTINE webhook.is_superseded IS
    'Whether a newer delivery of the same coalesce key waits, is in flight or was sent.';
COMMENT ON ROUTINE webhook.is_tenant IS 'Whether a text is a valid tenant.';
COMMENT ON ROUTINE webhook.is_without_site IS 'Whether there are endpoints and no webhook.site.';
COMMENT ON ROUTINE webhook.judge IS
    'Judges an outcome once: verdict, new status, next attempt and reason code.';
COMMENT ON ROUTINE webhook.judge_late IS 'Judges an outcome whose claim is over.';
COMMENT ON ROUTINE webhook.judgement IS 'The meaning of an outcome for its delivery.';
COMMENT ON ROUTINE webhook.largest_backlog IS 'The endpoint that has most of a long queue, and the disk space of its deliveries.';
COMMENT ON ROUTINE webhook.latency_class IS 'The class of a latency, eight to a doubling.';
COMMENT ON ROUTINE webhook.living_senders IS 'Senders that may send.';
COMMENT ON ROUTINE webhook.longest_request_seconds IS
    'The longest that a request may take under the policies in use.';
COMMENT ON ROUTINE webhook.longest_silence IS 'How long a relay may send without an answer of its session.';
COMMENT ON ROUTINE webhook.lost_followers IS 'Deliveries on a page of ordering keys that wait for nobody.';
COMMENT ON ROUTINE webhook.lost_turns IS 'Ordering keys on a page whose delivery has left the queue.';
COMMENT ON ROUTINE webhook.major_version IS 'The major version of the server.';
COMMENT ON ROUTINE webhook.manual_update IS 'Trigger: makes a row consistent after an UPDATE of webhook.delivery by hand.';
COMMENT ON ROUTINE webhook.matching_keys IS 'The keys of all patterns that match an event.';
COMMENT ON ROUTINE webhook.matching_patterns IS 'The patterns that match a type, and the exclusions.';
COMMENT ON ROUTINE webhook.max_payload IS 'The largest payload, in bytes.';
COMMENT ON ROUTINE webhook.may_be_probe IS 'Whether a delivery may be the probe of a breaker.';
COMMENT ON ROUTINE webhook.merge_latencies IS 'The sum of two histograms of latencies.';
COMMENT ON ROUTINE webhook.metric_in_words IS 'A metric in words, with the threshold that it is beyond.';
COMMENT ON ROUTINE webhook.metric_remedy IS 'The remedy for a metric that is beyond its threshold.';
COMMENT ON ROUTINE webhook.missing_deliveries IS 'The deliveries that endpoints of a backfill do not have yet.';
COMMENT ON ROUTINE webhook.move_breakers IS 'Moves breakers along the outcomes of a batch.';
COMMENT ON ROUTINE webhook.named_endpoints IS 'The ids of endpoints that have or had this name.';
COMMENT ON ROUTINE webhook.new_id IS 'A new id of an event: a UUID of version 7.';
COMMENT ON ROUTINE webhook.new_private_key IS 'A new private key, with its public key.';
COMMENT ON ROUTINE webhook.new_hmac_secret IS 'A new secret for signatures in headers.';
COMMENT ON ROUTINE webhook.new_secret IS 'A new signing secret.';
COMMENT ON ROUTINE webhook.newest_hmac_secret IS 'The work of webhook_hmac_secret().';
COMMENT ON ROUTINE webhook.newest_secret IS 'The work of webhook_secret().';
COMMENT ON ROUTINE webhook.next_claims IS 'The claims on the next page of the queue.';
COMMENT ON ROUTINE webhook.next_look_at_breaker IS
    'When to look again at an endpoint whose breaker is not closed.';
COMMENT ON ROUTINE webhook.next_of_replay IS 'The next deliveries of a run of webhook_replay_all().';
COMMENT ON ROUTINE webhook.next_orphans IS 'The next deliveries that wait for removed endpoints.';
COMMENT ON ROUTINE webhook.note_lost_senders IS 'Notes which sessions of senders have ended.';
COMMENT ON ROUTINE webhook.opened IS 'A breaker as it is when it has just opened.';
COMMENT ON ROUTINE webhook.origin IS 'The origin that endpoints of this installation carry.';
COMMENT ON ROUTINE webhook.own_delay IS 'The delay of a policy after so many attempts, without Retry-After.';
COMMENT ON ROUTINE webhook.page_of_events IS 'The next events in the order of their emission.';
COMMENT ON ROUTINE webhook.parameters IS 'The meaning of each parameter of the API.';
COMMENT ON ROUTINE webhook.result_columns IS 'The meaning of each column that a function of the API returns.';
COMMENT ON ROUTINE webhook.parameters_of IS 'The parameters and result columns of a function of the API, and what each means.';
COMMENT ON ROUTINE webhook.pass_turn(of_endpoint integer, of_key text, from_event uuid) IS
    'Passes the turn of an ordering key on to the next delivery.';
COMMENT ON ROUTINE webhook.pass_turn() IS 'Passes the turn of an ordering key on to the next delivery.';
COMMENT ON ROUTINE webhook.passes IS 'Whether an event passes a filter.';
COMMENT ON ROUTINE webhook.pattern_problem IS
    'Why a filter could take too long for an emit; null where it could not.';
COMMENT ON ROUTINE webhook.patterns_in_words IS 'The first few patterns of an endpoint, for people.';
COMMENT ON ROUTINE webhook.pick IS 'Locks due deliveries for a sender, so many for each endpoint.';
COMMENT ON ROUTINE webhook.pick_exceptions IS
    'Deliveries that go out although their endpoint is not served: probes and tests.';
COMMENT ON ROUTINE webhook.policy_of IS 'The policy of that name, or the default.';
COMMENT ON ROUTINE webhook.preview IS 'The work of webhook_preview().';
COMMENT ON ROUTINE webhook.printable IS 'A text without characters that could act in a terminal.';
COMMENT ON ROUTINE webhook.privileges IS 'The privileges of a level, in the words of GRANT.';
COMMENT ON ROUTINE webhook.probe_is_due IS 'Whether a breaker is due for a probe.';
COMMENT ON ROUTINE webhook.problems IS 'The problems of delivery as a whole, each with its weight.';
COMMENT ON ROUTINE webhook.protect_policy IS
    'Trigger: keeps presets as they are, and policies that endpoints use.';
COMMENT ON ROUTINE webhook.public_half IS 'The public key of a private one.';
COMMENT ON ROUTINE webhook.queue_for_some IS
    'Queues deliveries of an event for endpoints that were named or have a filter.';
COMMENT ON ROUTINE webhook.queue_gauge IS 'Deliveries in the queue and due ones, counted up to a limit.';
COMMENT ON ROUTINE webhook.queue_of IS 'The deliveries of an endpoint in the queue.';
COMMENT ON ROUTINE webhook.reason_in_words IS 'A reason code, for people.';
COMMENT ON ROUTINE webhook.reason_of IS 'The reason code of an outcome that is no success.';
COMMENT ON ROUTINE webhook.recall_only_route IS
    'The remembered route of an event type, in one number; null unless one endpoint without a filter wants it.';
COMMENT ON ROUTINE webhook.recall_routes IS
    'The routes that this session remembers; null where it remembers none.';
COMMENT ON ROUTINE webhook.recognise_installation IS
    'Gives the installation a new id where the server is another one.';
COMMENT ON ROUTINE webhook.redact IS
    'Deletes the payload of an event and the answers to it from every table.';
COMMENT ON ROUTINE webhook.refuse_null_payload IS 'Raises the error for a payload that is null.';
COMMENT ON ROUTINE webhook.refuse_size IS 'Raises the error for a payload that is too large.';
COMMENT ON ROUTINE webhook.refuse_tenant IS 'Raises the error for a tenant that is not valid.';
COMMENT ON ROUTINE webhook.refuse_update_of_leaf IS 'Trigger: refuses an UPDATE of a partition by name.';
COMMENT ON ROUTINE webhook.release_lost IS 'Requeues claims of a lost worker; the attempt stays counted.';
COMMENT ON ROUTINE webhook.remember_removed_endpoint IS 'Trigger: notes the removal of an endpoint.';
COMMENT ON ROUTINE webhook.remember_routes IS 'Lets this session remember the routes of an event type.';
COMMENT ON ROUTINE webhook.remove_endpoint IS 'The work of webhook_remove_endpoint().';
COMMENT ON ROUTINE webhook.render_request IS 'The request that an attempt would send now.';
COMMENT ON ROUTINE webhook.renew_grants IS 'Gives roles the new rights of their levels, after an upgrade.';
COMMENT ON ROUTINE webhook.renew_levels IS 'The work of webhook.renew_grants().';
COMMENT ON ROUTINE webhook.requeue IS
    'Moves deliveries back to the queue, due now and from the first attempt.';
COMMENT ON ROUTINE webhook.requeued IS 'The row of a delivery that is queued again.';
COMMENT ON ROUTINE webhook.require_batch_size IS 'Refuses a batch size that is not positive.';
COMMENT ON ROUTINE webhook.require_endpoint IS 'The id of an endpoint; refuses one that does not exist.';
COMMENT ON ROUTINE webhook.require_endpoints IS
    'The ids of endpoints by their names; refuses one that does not exist.';
COMMENT ON ROUTINE webhook.require_event IS 'Refuses an event that does not exist.';
COMMENT ON ROUTINE webhook.require_hmac_secret IS 'Refuses an HMAC secret that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.require_key IS
    'Refuses an ordering, coalesce or idempotency key that is not valid.';
COMMENT ON ROUTINE webhook.require_keys IS 'Refuses keys of many events that are not valid.';
COMMENT ON ROUTINE webhook.require_lifetime IS
    'Refuses times of delivery and expiry that contradict each other.';
COMMENT ON ROUTINE webhook.require_permitted_url IS 'Refuses a URL that the settings of this server forbid.';
COMMENT ON ROUTINE webhook.require_policy IS 'Refuses a policy that does not exist.';
COMMENT ON ROUTINE webhook.require_private_key IS 'Refuses a private key that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.require_role IS 'The OID of a role; refuses one that does not exist.';
COMMENT ON ROUTINE webhook.require_safe_owner IS 'Refuses a role webhook_owner that somebody could use.';
COMMENT ON ROUTINE webhook.require_secret IS
    'Refuses a signing secret that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.retention_lag IS 'How far retention is behind; null where it is not.';
COMMENT ON ROUTINE webhook.revoke_level IS 'The work of webhook_revoke().';
COMMENT ON ROUTINE webhook.rotate_hmac_secret IS 'The work of webhook_rotate_hmac_secret().';
COMMENT ON ROUTINE webhook.rotate_key IS 'The work of webhook_rotate_key().';
COMMENT ON ROUTINE webhook.rotate_secret IS 'The work of webhook_rotate_secret().';
COMMENT ON ROUTINE webhook.ring IS 'Tells relays that something was committed for them.';
COMMENT ON ROUTINE webhook.route_stamp IS 'The versions of the rows that a route is made of.';
COMMENT ON ROUTINE webhook.routes(tenant text, event_type text) IS
    'The endpoints that want an event type, each with its max_attempts.';
COMMENT ON ROUTINE webhook.routes(endpoint_ids integer[]) IS
    'URL, headers and secrets of endpoints, for the sender.';
COMMENT ON ROUTINE webhook.routes_changed IS 'Trigger: makes every session forget its routes.';
COMMENT ON ROUTINE webhook.sendable_now IS 'The deliveries of an endpoint that may be claimed now.';
COMMENT ON ROUTINE webhook.sender_lock IS 'The first key of the advisory lock that a sender holds.';
COMMENT ON ROUTINE webhook.senders_at_work IS 'The senders of this database, for people.';
COMMENT ON ROUTINE webhook.server_mark IS
    'A mark that tells this server from one that a dump was restored to.';
COMMENT ON ROUTINE webhook.set_endpoint IS 'The work of webhook_set_endpoint().';
COMMENT ON ROUTINE webhook.set_followers_aside IS
    'Sets deliveries aside that wait for the turn of their ordering key, and returns the others.';
COMMENT ON ROUTINE webhook.setting IS 'A setting of webhook by its name, or its default.';
COMMENT ON ROUTINE webhook.settle IS 'Records the outcomes of attempts.';
COMMENT ON ROUTINE webhook.settle_successes IS 'Records successes of endpoints that are well.';
COMMENT ON ROUTINE webhook.shortest_wait IS 'The shortest delay before a retry.';
COMMENT ON ROUTINE webhook.similar_addresses IS
    'For a HINT: addresses that are close to one that does not exist.';
COMMENT ON ROUTINE webhook.span_in_words IS 'A length of time, for people.';
COMMENT ON ROUTINE webhook.subscribers IS 'The endpoints that are subscribed under these keys.';
COMMENT ON ROUTINE webhook.subscription_keys IS 'The keys under which an endpoint is found.';
COMMENT ON ROUTINE webhook.supersede IS 'Cancels deliveries that a newer one supersedes.';
COMMENT ON ROUTINE webhook.superseded IS 'Deliveries that a new event supersedes.';
COMMENT ON ROUTINE webhook.system_identifier IS 'The system identifier of the server.';
COMMENT ON ROUTINE webhook.take_keys IS
    'Makes idempotency keys stand for new events, or returns the events that they stand for.';
COMMENT ON ROUTINE webhook.tell_passed_over IS 'A NOTICE about deliveries that cannot be sent again.';
COMMENT ON ROUTINE webhook.template_problem IS
    'Why a template is not valid, and the remedy; no row where it is.';
COMMENT ON ROUTINE webhook.time_in_words IS 'A time, for people.';
COMMENT ON ROUTINE webhook.unsent IS
    'The number of deliveries in the queue, asked before the extension is dropped.';
COMMENT ON ROUTINE webhook.url_problem IS
    'Why the settings of this server forbid a URL; null where they do not.';
COMMENT ON ROUTINE webhook.verdict IS 'The meaning of an outcome under a policy.';
COMMENT ON ROUTINE webhook.wake() IS 'Makes the worker of this database look at everything, at commit.';
COMMENT ON ROUTINE webhook.wake(endpoint_ids integer[], due_at timestamptz) IS
    'Wakes the worker for endpoints that have something due at that time, at commit.';
COMMENT ON ROUTINE webhook.wake_endpoint IS 'The same for one endpoint.';
COMMENT ON ROUTINE webhook.wake_for_endpoint IS 'Trigger: wakes the worker for an endpoint, at commit.';
COMMENT ON ROUTINE webhook.wake_routes IS 'The same for routes of an event.';
COMMENT ON ROUTINE webhook.wake_worker IS 'Trigger: wakes the worker at commit.';
COMMENT ON ROUTINE webhook.why_attempts IS 'The attempts of a delivery, for webhook_why().';
COMMENT ON ROUTINE webhook.why_delivery IS 'One delivery, for webhook_why().';
COMMENT ON ROUTINE webhook.why_endpoint IS 'The reasons why nothing is sent to an endpoint, for webhook_why().';
COMMENT ON ROUTINE webhook.why_event IS 'One event, for webhook_why().';
COMMENT ON ROUTINE webhook.why_failed IS 'The last dead letters of an endpoint, for webhook_why().';
COMMENT ON ROUTINE webhook.why_filter IS 'The newest events that a filter lets pass, for webhook_why().';
COMMENT ON ROUTINE webhook.why_filter_misses_row IS
    'A filter that can never match a watched row, for webhook_why().';
COMMENT ON ROUTINE webhook.why_filtered IS 'Why a filter does not let an event pass, for webhook_why().';
COMMENT ON ROUTINE webhook.why_held_back IS 'The reasons that keep deliveries back, for webhook_why().';
COMMENT ON ROUTINE webhook.why_no_delivery IS
    'Endpoints that have no delivery of an event, for webhook_why().';
COMMENT ON ROUTINE webhook.why_no_event IS
    'The possible fates of an event that is not here, for webhook_why().';
COMMENT ON ROUTINE webhook.why_server IS 'Why nothing is delivered on this server, for webhook_why().';
COMMENT ON ROUTINE webhook.why_waiting IS 'The deliveries that wait for an endpoint, by reason, for webhook_why().';
COMMENT ON ROUTINE webhook.wire_time IS 'A time as the body of a request has it.';
COMMENT ON ROUTINE webhook.withdraw_grants IS 'Takes back the rights that would outlive the extension.';
COMMENT ON ROUTINE webhook.worker_report IS 'The last report of the worker of this database.';
COMMENT ON ROUTINE webhook.worker_state IS 'The state of the worker, and what to do about it.';
COMMENT ON ROUTINE webhook.within_byte_rooms IS 'The picked deliveries that fit into the bytes that each endpoint and all of them may have in flight.';
COMMENT ON ROUTINE webhook.write_installation IS 'Gives the installation an id.';
COMMENT ON TYPE webhook.backfill IS 'Where a run of webhook_backfill() stands.';
COMMENT ON TYPE webhook.judgement IS 'The meaning of the end of an attempt for its delivery: 40_judgement.sql.';
COMMENT ON TYPE webhook.outcome IS 'An attempt that has ended, with its judgement: 42_settle.sql.';
COMMENT ON TYPE webhook.replay IS 'Where a run of webhook_replay_all() stands.';
COMMENT ON DOMAIN webhook.type_beside_json IS 'For drivers that send json.';

COMMENT ON COLUMN webhook.policy.name IS 'Name that endpoints refer to.';
COMMENT ON COLUMN webhook.policy.max_attempts IS 'Attempts in all, the first included.';
COMMENT ON COLUMN webhook.policy.backoff IS 'How delays grow: exponential, fixed or schedule.';
COMMENT ON COLUMN webhook.policy.initial_delay IS 'Delay before the first retry, if exponential or fixed.';
COMMENT ON COLUMN webhook.policy.factor IS 'Factor from one delay to the next, if exponential.';
COMMENT ON COLUMN webhook.policy.max_delay IS 'Longest delay, also where the endpoint asks for more.';
COMMENT ON COLUMN webhook.policy.schedule IS 'Delays one by one, if schedule; the last one repeats.';
COMMENT ON COLUMN webhook.policy.jitter_down IS 'Fraction by which a delay may be shorter.';
COMMENT ON COLUMN webhook.policy.jitter_up IS 'Fraction by which a delay may be longer.';
COMMENT ON COLUMN webhook.policy.success_status IS 'HTTP statuses that are a success.';
COMMENT ON COLUMN webhook.policy.retry_status IS 'HTTP statuses that are retried.';
COMMENT ON COLUMN webhook.policy.disable_status IS 'HTTP statuses that disable the endpoint.';
COMMENT ON COLUMN webhook.policy.retry_errors IS 'Errors without an HTTP status that are retried.';
COMMENT ON COLUMN webhook.policy.retry_after IS
    'Whether Retry-After is ignored, exact or at least waited for.';
COMMENT ON COLUMN webhook.policy.timeout IS 'Time for an answer, from the established connection.';
COMMENT ON COLUMN webhook.policy.connect_timeout IS 'Time to connect.';
COMMENT ON COLUMN webhook.policy.failure_threshold IS
    'Failures in a row that open the circuit breaker; 0 never does.';
COMMENT ON COLUMN webhook.policy.warn_threshold IS 'Failures in a row that raise an alert; 0 never does.';
COMMENT ON COLUMN webhook.policy.cooldown IS 'Time from the opening of the breaker to its first probe.';
COMMENT ON COLUMN webhook.policy.max_cooldown IS 'Longest time to a probe; each one that fails doubles it.';
COMMENT ON COLUMN webhook.policy.breaker_counts IS 'Whether the breaker counts attempts or final failures.';
COMMENT ON COLUMN webhook.policy.on_trip IS
    'Whether the threshold opens the breaker or disables the endpoint.';
COMMENT ON COLUMN webhook.policy.when_open IS
    'The fate of deliveries while the breaker is open: hold, skip, fail or attempt.';
COMMENT ON COLUMN webhook.policy.on_exhausted IS
    'Whether a delivery without attempts left disables the endpoint.';
COMMENT ON COLUMN webhook.policy.on_blocked IS
    'Whether deliveries wait behind a dead letter of their ordering key.';
COMMENT ON COLUMN webhook.policy.hold_for IS
    'Longest time that a held delivery waits before it fails; null is for ever.';
COMMENT ON COLUMN webhook.policy.keep_sent IS 'Whether sent deliveries stay in the history.';
COMMENT ON COLUMN webhook.policy.preset IS
    'Whether the policy came with the extension; presets cannot be changed.';

COMMENT ON COLUMN webhook.endpoint.id IS 'Number of the endpoint.';
COMMENT ON COLUMN webhook.endpoint.tenant IS 'The tenant whose events it gets; null for events of all.';
COMMENT ON COLUMN webhook.endpoint.name IS 'Name of the endpoint, unique within its tenant.';
COMMENT ON COLUMN webhook.endpoint.url IS 'URL that requests go to.';
COMMENT ON COLUMN webhook.endpoint.event_types IS
    'Patterns of the types that it gets, such as order.*; !order.draft leaves out.';
COMMENT ON COLUMN webhook.endpoint.filter IS 'Condition on {"type", "data"} that an event must meet.';
COMMENT ON COLUMN webhook.endpoint.policy IS 'Name of its policy.';
COMMENT ON COLUMN webhook.endpoint.headers IS 'HTTP headers of every request.';
COMMENT ON COLUMN webhook.endpoint.format IS 'Body of requests: standard, raw, cloudevents or template.';
COMMENT ON COLUMN webhook.endpoint.template IS 'Body with {{placeholders}}, if the format is template.';
COMMENT ON COLUMN webhook.endpoint.max_in_flight IS 'Most requests at the same time; null for the default.';
COMMENT ON COLUMN webhook.endpoint.rate_limit IS 'Most requests in a second; null for no limit.';
COMMENT ON COLUMN webhook.endpoint.metadata IS 'Anything about the endpoint: its owner, a contact.';
COMMENT ON COLUMN webhook.endpoint.origin IS 'The installation that the endpoint belongs to.';
COMMENT ON COLUMN webhook.endpoint.paused_at IS 'Since when it is paused.';
COMMENT ON COLUMN webhook.endpoint.disabled_at IS 'Since when it is disabled.';
COMMENT ON COLUMN webhook.endpoint.disabled_reason IS 'Why it is disabled.';
COMMENT ON COLUMN webhook.endpoint.created_at IS 'When the row was made.';

COMMENT ON COLUMN webhook.removed_endpoint.id IS 'Number that the endpoint had.';
COMMENT ON COLUMN webhook.removed_endpoint.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.removed_endpoint.name IS 'Name that it had.';
COMMENT ON COLUMN webhook.removed_endpoint.pending IS 'The fate of its queued deliveries: cancel or fail.';
COMMENT ON COLUMN webhook.removed_endpoint.removed_at IS 'When it was removed.';
COMMENT ON COLUMN webhook.removed_endpoint.ended_at IS 'When the last of its deliveries ended.';

COMMENT ON COLUMN webhook.secret.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.secret.secret IS
    'Signing secret, whsec_ and base64; private key, whsk_ and base64; or secret of signatures in headers, hmac_ and the text.';
COMMENT ON COLUMN webhook.secret.created_at IS 'When the row was made.';
COMMENT ON COLUMN webhook.secret.expires_at IS 'Until when requests are signed with it; null is for ever.';

COMMENT ON COLUMN webhook.event.id IS
    'Id of the event, a UUID of version 7; receivers see it as webhook-id.';
COMMENT ON COLUMN webhook.event.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.event.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.event.payload IS 'The payload as it was emitted.';
COMMENT ON COLUMN webhook.event.idempotency_key IS 'Key that it was emitted with.';
COMMENT ON COLUMN webhook.event.created_at IS 'When it was emitted.';
COMMENT ON COLUMN webhook.event.redacted_at IS 'When its payload was deleted.';
COMMENT ON COLUMN webhook.event.payload_bytes IS 'Size of the payload as JSON text.';

COMMENT ON COLUMN webhook.idempotency.tenant IS 'The tenant; empty for none.';
COMMENT ON COLUMN webhook.idempotency.key IS 'Key that stands for the event.';
COMMENT ON COLUMN webhook.idempotency.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.idempotency.created_at IS 'When the event was emitted.';

COMMENT ON COLUMN webhook.delivery.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.delivery.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.delivery.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.delivery.status IS 'PENDING, SENDING, SENT, FAILED or CANCELLED.';
COMMENT ON COLUMN webhook.delivery.attempts IS 'Attempts so far.';
COMMENT ON COLUMN webhook.delivery.max_attempts IS 'Most attempts, as the policy had it at the emission.';
COMMENT ON COLUMN webhook.delivery.next_attempt_at IS 'When the next attempt is due.';
COMMENT ON COLUMN webhook.delivery.wait_reason IS
    'The delivery''s own reason to wait: new, retry, replayed, scheduled or parked.';
COMMENT ON COLUMN webhook.delivery.waits_for IS 'The event whose turn it is by the ordering key.';
COMMENT ON COLUMN webhook.delivery.expires_at IS 'When the delivery fails if it was not sent.';
COMMENT ON COLUMN webhook.delivery.ordering_key IS
    'Deliveries with the same key are sent one after the other.';
COMMENT ON COLUMN webhook.delivery.coalesce_key IS
    'Of deliveries with the same key only the newest is sent.';
COMMENT ON COLUMN webhook.delivery.claim_seq IS 'Number of the claim; it only grows.';
COMMENT ON COLUMN webhook.delivery.claimed_at IS 'When the sender claimed it; null unless SENDING.';
COMMENT ON COLUMN webhook.delivery.claimed_by IS 'The sender that claimed it; null unless SENDING.';
COMMENT ON COLUMN webhook.delivery.last_attempt_at IS 'When the last attempt ended.';
COMMENT ON COLUMN webhook.delivery.last_status_code IS 'HTTP status of the last answer.';
COMMENT ON COLUMN webhook.delivery.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.delivery.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.delivery.duration_ms IS 'Duration of the last attempt, in ms.';
COMMENT ON COLUMN webhook.delivery.created_at IS 'When the event was emitted.';
COMMENT ON COLUMN webhook.delivery.completed_at IS 'When the delivery ended.';
COMMENT ON COLUMN webhook.delivery.payload_bytes IS 'Size of the payload as JSON text, as far as it is known here.';

COMMENT ON COLUMN webhook.attempt.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.attempt.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.attempt.claim_seq IS 'Number of the claim; it only grows.';
COMMENT ON COLUMN webhook.attempt.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN webhook.attempt.verdict IS 'The meaning of the outcome under the policy.';
COMMENT ON COLUMN webhook.attempt.status_code IS 'HTTP status of the answer.';
COMMENT ON COLUMN webhook.attempt.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.attempt.error IS 'The error, as a sentence.';
COMMENT ON COLUMN webhook.attempt.response_excerpt IS 'Beginning of the answer.';
COMMENT ON COLUMN webhook.attempt.duration_ms IS 'Duration of the attempt, in ms.';
COMMENT ON COLUMN webhook.attempt.finished_at IS 'When the attempt ended.';

COMMENT ON COLUMN webhook.breaker.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.breaker.state IS 'CLOSED, OPEN or HALF_OPEN.';
COMMENT ON COLUMN webhook.breaker.consecutive_failures IS 'Failures in a row.';
COMMENT ON COLUMN webhook.breaker.last_failure_at IS 'When it failed last.';
COMMENT ON COLUMN webhook.breaker.reason IS 'Why it opened.';
COMMENT ON COLUMN webhook.breaker.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.breaker.opened_at IS 'Since when it is not closed.';
COMMENT ON COLUMN webhook.breaker.trips IS 'How often it has opened since it was closed.';
COMMENT ON COLUMN webhook.breaker.probe_at IS
    'OPEN: when the next probe is due; HALF_OPEN: when the probe is given up.';
COMMENT ON COLUMN webhook.breaker.probe_event_id IS 'The event that is the probe.';
COMMENT ON COLUMN webhook.breaker.probe_claim_seq IS 'The claim that is the probe.';
COMMENT ON COLUMN webhook.breaker.retries_before IS 'Retries of attempts before this time are due at once.';
COMMENT ON COLUMN webhook.breaker.test_event_id IS 'The event of webhook_test(), sent whatever the state.';

COMMENT ON COLUMN webhook.alert.id IS 'Number of the alert.';
COMMENT ON COLUMN webhook.alert.endpoint_id IS 'The id of the endpoint; 0 where it is about a metric.';
COMMENT ON COLUMN webhook.alert.kind IS 'The change that it tells of: degraded, opened, closed, disabled, failed, raised or cleared.';
COMMENT ON COLUMN webhook.alert.reason IS 'Why it happened: a code of webhook.code.';
COMMENT ON COLUMN webhook.alert.error IS 'The error, as a sentence.';
COMMENT ON COLUMN webhook.alert.is_own IS
    'Whether an event of the extension is the cause; then it raises no other event.';
COMMENT ON COLUMN webhook.alert.deliveries IS 'Deliveries that failed.';
COMMENT ON COLUMN webhook.alert.event_ids IS 'Some of their events.';
COMMENT ON COLUMN webhook.alert.raised_at IS 'When it happened.';
COMMENT ON COLUMN webhook.alert.metric IS 'Name of the metric, where it is about one.';

COMMENT ON COLUMN webhook.stat.endpoint_id IS 'The id of the endpoint; 0 for all.';
COMMENT ON COLUMN webhook.stat.grain IS 'total, hour or minute.';
COMMENT ON COLUMN webhook.stat.begins_at IS 'When the hour or minute begins; -infinity of the total.';
COMMENT ON COLUMN webhook.stat.attempts IS 'Attempts that ended; those that failed are attempts - sent.';
COMMENT ON COLUMN webhook.stat.sent IS 'Deliveries that were SENT.';
COMMENT ON COLUMN webhook.stat.failed IS 'Deliveries that FAILED.';
COMMENT ON COLUMN webhook.stat.retried IS 'Deliveries among sent and failed that needed a retry.';
COMMENT ON COLUMN webhook.stat.retries IS 'Retries of all of them.';
COMMENT ON COLUMN webhook.stat.attempt_latency IS
    'Histogram of the duration of attempts: classes, eight to a doubling of milliseconds, and numbers.';
COMMENT ON COLUMN webhook.stat.delivery_latency IS 'Histogram of the time from emit to success, in the same classes.';
COMMENT ON COLUMN webhook.stat.last_sent_at IS 'When a delivery that was SENT was counted last.';

COMMENT ON COLUMN webhook.alarm.metric IS 'Name of the metric.';
COMMENT ON COLUMN webhook.alarm.raised_at IS 'Since when it is beyond its threshold.';

COMMENT ON COLUMN webhook.sender.id IS 'Number of the run, under which it claims.';
COMMENT ON COLUMN webhook.sender.kind IS 'worker, of the server; or relay.';
COMMENT ON COLUMN webhook.sender.pid IS 'The backend of its session.';
COMMENT ON COLUMN webhook.sender.role IS 'The login role of the session.';
COMMENT ON COLUMN webhook.sender.host IS 'Where a relay runs.';
COMMENT ON COLUMN webhook.sender.version IS 'Its version.';
COMMENT ON COLUMN webhook.sender.begun_at IS 'When the run began.';
COMMENT ON COLUMN webhook.sender.in_flight IS 'Requests in flight, by the last report of a relay.';
COMMENT ON COLUMN webhook.sender.lost_at IS 'When another sender noticed that its session has ended.';
COMMENT ON COLUMN webhook.share.number IS 'The remainder of the ids of its endpoints.';
COMMENT ON COLUMN webhook.share.total IS 'The number of shares when it was taken.';
COMMENT ON COLUMN webhook.share.sender_id IS 'The sender that serves it.';

COMMENT ON COLUMN webhook.lane.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.lane.ordering_key IS 'The ordering key.';
COMMENT ON COLUMN webhook.lane.event_id IS 'The event whose turn it is.';

COMMENT ON COLUMN webhook.code.kind IS 'Where the code stands: verdict, reason or endpoint_reason.';
COMMENT ON COLUMN webhook.code.code IS 'The code.';
COMMENT ON COLUMN webhook.code.meaning IS 'Its meaning.';

COMMENT ON COLUMN webhook.metrics.metric IS 'Name of the figure.';
COMMENT ON COLUMN webhook.metrics.value IS 'The figure.';
COMMENT ON COLUMN webhook.metrics.unit IS 'Its unit.';
COMMENT ON COLUMN webhook.metrics.alert_when IS 'Whether to alert below (<) or above (>) the threshold.';
COMMENT ON COLUMN webhook.metrics.alert_threshold IS 'The threshold.';
COMMENT ON COLUMN webhook.metrics.alert IS 'Whether the figure is beyond the threshold.';
COMMENT ON COLUMN webhook.metrics.meaning IS 'The meaning of the figure.';

COMMENT ON COLUMN webhook.failed.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.failed.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.failed.endpoint IS 'The address of the endpoint: its name, or tenant/name.';
COMMENT ON COLUMN webhook.failed.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.failed.created_at IS 'When the event was emitted.';
COMMENT ON COLUMN webhook.failed.failed_at IS 'When the delivery failed.';
COMMENT ON COLUMN webhook.failed.attempts IS 'Attempts that were made.';
COMMENT ON COLUMN webhook.failed.verdict IS 'The meaning of the last outcome under the policy.';
COMMENT ON COLUMN webhook.failed.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.failed.last_status_code IS 'HTTP status of the last answer.';
COMMENT ON COLUMN webhook.failed.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.failed.last_answer IS 'Beginning of the last answer.';
COMMENT ON COLUMN webhook.failed.payload IS 'The payload as it was emitted.';

COMMENT ON COLUMN webhook.endpoint_status.endpoint IS 'Address of the endpoint: its name, or tenant/name.';
COMMENT ON COLUMN webhook.endpoint_status.state IS
    'ACTIVE, DEGRADED, OPEN, HALF_OPEN, PAUSED, DISABLED or HELD.';
COMMENT ON COLUMN webhook.endpoint_status.reason IS 'Why it is in that state.';
COMMENT ON COLUMN webhook.endpoint_status.since IS 'Since when.';
COMMENT ON COLUMN webhook.endpoint_status.queued IS 'Deliveries in the queue.';
COMMENT ON COLUMN webhook.endpoint_status.queued_bytes IS 'Bytes of the payloads of the counted deliveries, about.';
COMMENT ON COLUMN webhook.endpoint_status.in_flight IS 'Deliveries that are SENDING.';
COMMENT ON COLUMN webhook.endpoint_status.kept_back IS 'Deliveries that are due and that the endpoint keeps back.';
COMMENT ON COLUMN webhook.endpoint_status.failed IS 'Dead letters.';
COMMENT ON COLUMN webhook.endpoint_status.more IS 'Whether a count has stopped at its limit.';
COMMENT ON COLUMN webhook.endpoint_status.consecutive_failures IS 'Failures in a row.';
COMMENT ON COLUMN webhook.endpoint_status.trips IS 'How often the breaker has opened since it was closed.';
COMMENT ON COLUMN webhook.endpoint_status.next_probe_at IS 'When the next probe is due.';
COMMENT ON COLUMN webhook.endpoint_status.last_success_at IS 'When a delivery succeeded last.';
COMMENT ON COLUMN webhook.endpoint_status.last_failure_at IS 'When an attempt failed last.';
COMMENT ON COLUMN webhook.endpoint_status.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.endpoint_status.policy IS 'Name of its policy.';
COMMENT ON COLUMN webhook.endpoint_status.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.endpoint_status.created_at IS 'When it was made.';
COMMENT ON COLUMN webhook.endpoint_status.event_types IS 'Patterns of the types that it gets.';
COMMENT ON COLUMN webhook.endpoint_status.filter IS 'Condition that an event must meet.';
COMMENT ON COLUMN webhook.endpoint_status.format IS 'Body of requests.';
COMMENT ON COLUMN webhook.endpoint_status.url IS 'URL without its path.';
COMMENT ON COLUMN webhook.endpoint_status.headers IS 'Names of its headers.';
COMMENT ON COLUMN webhook.endpoint_status.metadata IS 'Anything about the endpoint.';
COMMENT ON COLUMN webhook.endpoint_status.endpoint_id IS 'Its id, by which webhook.stat has its figures.';

COMMENT ON COLUMN webhook.waiting.endpoint IS 'Address of the endpoint: its name, or tenant/name.';
COMMENT ON COLUMN webhook.waiting.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.waiting.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.waiting.why IS 'Why the delivery waits, in a word.';
COMMENT ON COLUMN webhook.waiting.next_attempt_at IS 'When the next attempt is due.';
COMMENT ON COLUMN webhook.waiting.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.waiting.last_error IS 'The last error, as a sentence.';

-- A partition has the columns of its parent.
DO $$
DECLARE
    entry record;
BEGIN
    FOR entry IN
        SELECT i.inhrelid::regclass AS leaf, a.attname, col_description(a.attrelid, a.attnum) AS comment
        FROM pg_inherits i JOIN pg_attribute a ON a.attrelid = i.inhparent
        JOIN pg_class c ON c.oid = i.inhrelid
        WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p')
          AND a.attnum > 0 AND NOT a.attisdropped
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', entry.leaf, entry.attname, entry.comment);
    END LOOP;
END $$;
-- Everything belongs to the role that has run this script, and nobody else has any right to it. This file is in the place of
-- sql/90_ownership.sql.
--
-- PUBLIC has a right to functions and types as they are made. An object that has rights of its own was there before an
-- upgrade.
DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN
        SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS name
        FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine WHERE p.proacl IS NULL
        UNION ALL
        SELECT 'TYPE', t.oid::regtype::text
        FROM pg_type t LEFT JOIN pg_class r ON r.oid = t.typrelid
        WHERE t.typnamespace = 'webhook'::regnamespace AND t.typacl IS NULL AND t.typcategory <> 'A'
          AND coalesce(r.relkind, 'c') = 'c'
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC', ours.kind, ours.name);
    END LOOP;
END $$;

-- There is no superuser who could grant rights on the owner's objects. Only the role that has installed may call these two.
ALTER FUNCTION webhook.grant_level(text, text) SECURITY DEFINER;
ALTER FUNCTION webhook.revoke_level(text, text) SECURITY DEFINER;
-- An upgrade may bring functions, tables and views that belong to a level: roles with the level get them.
SELECT webhook.renew_grants();
-- The role that installs, or upgrades, is the first administrator: there is no superuser who could make one.
DO $$
DECLARE
    ours regprocedure;
BEGIN
    PERFORM webhook.grant_level(session_user, 'admin');
    FOR ours IN
        SELECT m.routine FROM webhook.members() m
        WHERE m.name IN ('webhook_grant', 'webhook_revoke', 'grant_level', 'revoke_level')
    LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', ours, session_user);
    END LOOP;
END $$;
