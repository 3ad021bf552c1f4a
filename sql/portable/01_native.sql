-- From here on every statement can be run again, as in the extension.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Stand-ins for the shared library and for the extension, for a database that allows neither: webhook-relay install has this
-- file in the place of sql/01_native.sql. Results are those of the library where there are any; pgrx-tests/conformance.sql
-- compares them. Where only the library can answer, a function here says so, or leaves the answer to the relay, which judges
-- every request by the same code.

CREATE OR REPLACE FUNCTION webhook.is_portable() RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN true;

-- Objects of the API that a database with the library has not: 66_public_api.sql. Writers of watched tables execute the
-- functions that capture rows.
CREATE OR REPLACE FUNCTION webhook.native_api(OUT kind text, OUT name text, OUT level text, OUT comment text)
    RETURNS SETOF record
    LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC
        VALUES
            ('table', 'settings', 'admin', 'Settings that are not at their defaults.'),
            ('part', 'capture', 'emit', 'Emits a change of a row, for webhook_trigger().'),
            ('part', 'captured_columns', 'emit', 'The columns of a row that an event shows.'),
            ('part', 'captured_key', 'emit', 'A key that is made of a row.'),
            ('part', 'captures_by', 'emit', 'Whether webhook_watch() could have written these options.'),
            ('part', 'portable_version', 'admin', 'The version of webhook-relay that has made this schema.');
    END;

-- The version of webhook-relay that has made this schema. Only a portable installation has this function. webhook-relay reads
-- the text of the body in pg_proc, and never calls a function of a schema that it does not know yet.
CREATE OR REPLACE FUNCTION webhook.portable_version() RETURNS text
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS 'SELECT ''@VERSION@''';

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
CREATE OR REPLACE FUNCTION webhook.url_problem(url text, has_tenant boolean) RETURNS text
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
    RETURN '@extschema@'::regnamespace;

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
        WHEN name IN ('allow_networks', 'tenant_networks', 'deny_networks') THEN (
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
CREATE OR REPLACE FUNCTION @extschema@.webhook_trigger() RETURNS trigger
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
