-- From here on every statement can be run again: an upgrade script is the changes of the tables, and then this file and all
-- that follow.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Functions of the shared library, and of the extension that it is in. sql/portable/01_native.sql has the same functions
-- for a database without either.

CREATE OR REPLACE FUNCTION webhook.is_portable() RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN false;

-- Objects of the API that a database without the library has not: 66_public_api.sql.
CREATE OR REPLACE FUNCTION webhook.native_api(OUT kind text, OUT name text, OUT level text, OUT comment text)
    RETURNS SETOF record
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC SELECT NULL::text, NULL::text, NULL::text, NULL::text WHERE false; END;

-- A new event id: UUID version 7, ordered by time.
CREATE OR REPLACE FUNCTION webhook.new_id() RETURNS uuid
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_new_id';

-- The server's system identifier, as pg_control_system() reads it from a file.
CREATE OR REPLACE FUNCTION webhook.system_identifier() RETURNS bigint
    LANGUAGE c STABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_system_identifier';

-- Refuses a role webhook_owner that somebody could use, or that may do more than own our tables.
CREATE OR REPLACE FUNCTION webhook.require_safe_owner() RETURNS void
    LANGUAGE c STABLE
    AS 'MODULE_PATHNAME', 'webhook_require_safe_owner';

CREATE OR REPLACE FUNCTION webhook.grant_connect() RETURNS void
    LANGUAGE c VOLATILE
    AS 'MODULE_PATHNAME', 'webhook_grant_connect';

CREATE OR REPLACE FUNCTION webhook.renew_grants() RETURNS void
    LANGUAGE c VOLATILE
    AS 'MODULE_PATHNAME', 'webhook_renew_grants';

-- A new signing secret: whsec_ and 32 random bytes in base64.
CREATE OR REPLACE FUNCTION webhook.new_secret() RETURNS text
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_new_secret';

-- A new private key: whsk_ and the random seed with its public key in base64.
CREATE OR REPLACE FUNCTION webhook.new_private_key() RETURNS text
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_new_private_key';

CREATE OR REPLACE FUNCTION webhook.is_private_key(key text) RETURNS boolean
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_is_private_key';

-- The reason why the settings of this server forbid a URL, as far as it is known without resolving the host; null if they
-- allow it. An endpoint that has a tenant may reach other networks than one that has none.
CREATE OR REPLACE FUNCTION webhook.url_problem(url text, has_tenant boolean) RETURNS text
    LANGUAGE c STABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_url_problem';

CREATE OR REPLACE FUNCTION webhook.pattern_problem(filter text) RETURNS text
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_pattern_problem';

-- The library answers with the code that renders templates.
CREATE OR REPLACE FUNCTION webhook.template_problem(template text, OUT problem text, OUT remedy text)
    RETURNS SETOF record
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_template_problem';

-- The same for the value of a header.
CREATE OR REPLACE FUNCTION webhook.header_value_problem(value text, OUT problem text, OUT remedy text)
    RETURNS SETOF record
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_header_value_problem';

CREATE OR REPLACE FUNCTION webhook.did_you_mean(wanted text, names text[]) RETURNS text
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_did_you_mean';

-- The request that an attempt would send now, made by the code that sends it.
CREATE OR REPLACE FUNCTION webhook.render_request(
    event_id uuid, event_type text, tenant text, occurred_at text, payload text, earlier_attempts int,
    url text, header_names text[], header_values text[], format text, template text, source text, secrets text[],
    hmac_secrets text[],
    OUT sent_url text, OUT sent_header_names text[], OUT sent_header_values text[], OUT body text)
    RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_render_request';

-- Wakes this database's worker when the current transaction commits; returns true.
CREATE OR REPLACE FUNCTION webhook.wake() RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_wake';

CREATE OR REPLACE FUNCTION webhook.wake(endpoint_ids int[], due_at timestamptz) RETURNS boolean
    LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_wake_for';

-- Wakes it for one endpoint. A negative endpoint_id says that the endpoint itself has changed.
CREATE OR REPLACE FUNCTION webhook.wake_endpoint(endpoint_id int, due_at timestamptz) RETURNS boolean
    LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_wake_endpoint';

-- Wakes it for routes as webhook.routes() returns them.
CREATE OR REPLACE FUNCTION webhook.wake_routes(routes int[], due_at timestamptz) RETURNS boolean
    LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_wake_routes';

-- The routes that this session remembers from webhook.routes(); null if it remembers none. The memory never outlives a change
-- of an endpoint or a policy: src/routes.rs says how.
CREATE OR REPLACE FUNCTION webhook.recall_routes(tenant text, event_type text) RETURNS int[]
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_recall_routes';

-- Endpoint << 32 | max_attempts, if a single endpoint wants the type and has no filter.
CREATE OR REPLACE FUNCTION webhook.recall_only_route(tenant text, event_type text) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_recall_only_route';

CREATE OR REPLACE FUNCTION webhook.remember_routes(tenant text, event_type text, found int[]) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_remember_routes';

-- Makes every session forget its routes when the current transaction commits.
CREATE OR REPLACE FUNCTION webhook.forget_routes() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_forget_routes';

CREATE OR REPLACE FUNCTION webhook.is_preloaded() RETURNS boolean
    LANGUAGE c STABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_is_preloaded';

-- Returns no row if there is no worker.
CREATE OR REPLACE FUNCTION webhook.worker_report(
    OUT pid int, OUT state text, OUT reason text, OUT in_flight int,
    OUT last_error text, OUT last_error_at timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'webhook_worker_report';

CREATE OR REPLACE FUNCTION webhook.require_no_transaction_block(called text) RETURNS void
    LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'webhook_require_no_transaction_block';

-- CREATE TRIGGER calls webhook_trigger('order.created') or webhook_trigger('order.updated', '{"changed": ["status"],
-- "exclude": ["notes"], ..}'), AFTER, for each row or for each statement. A statement gives its rows in transition tables of
-- any name; without them, as after TRUNCATE, it is one event without rows.
CREATE OR REPLACE FUNCTION @extschema@.webhook_trigger() RETURNS trigger
    LANGUAGE c
    AS 'MODULE_PATHNAME', 'webhook_trigger';

CREATE OR REPLACE FUNCTION webhook.members(OUT routine oid, OUT name text) RETURNS SETOF record
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT p.oid, p.proname FROM pg_extension x
        JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid AND d.deptype = 'e'
        JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
        WHERE x.extname = 'webhook';
    END;

CREATE OR REPLACE FUNCTION webhook.home() RETURNS regnamespace
    LANGUAGE sql STABLE
    RETURN (SELECT x.extnamespace::regnamespace FROM pg_extension x WHERE x.extname = 'webhook');

-- Whether this transaction has made the routine a member of the extension. It goes by pg_depend, whose row stays as it was
-- when a function is replaced. After a savepoint the xmin of that row is younger than the transaction's id.
CREATE OR REPLACE FUNCTION webhook.is_new(routine oid) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM pg_depend d
                   WHERE d.classid = 'pg_proc'::regclass AND d.objid = routine AND d.deptype = 'e' AND age(d.xmin) <= 0);

-- The value that somebody has set, by the name without "webhook."; null if nobody has set one.
CREATE OR REPLACE FUNCTION webhook.configured(name text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN current_setting('webhook.' || name, true);

CREATE OR REPLACE FUNCTION webhook.server_mark() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN '';
