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

CREATE SCHEMA webhook;

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

-- Each key stands for an event within webhook.idempotency_window. It is a hash, so that nothing of a redacted event is here
-- while its key still counts. The empty text stands for no tenant.
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

SELECT pg_catalog.pg_extension_config_dump('webhook.policy', 'WHERE NOT preset');
SELECT pg_catalog.pg_extension_config_dump('webhook.endpoint', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.endpoint_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.removed_endpoint', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.secret', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.event', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.idempotency', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.delivery_queue', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.delivery_history', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.attempt', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.breaker', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.stat', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.sender_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('webhook.lane', '');
