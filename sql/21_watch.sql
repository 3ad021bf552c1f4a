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
    size int;
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
    -- The trigger function takes a few bytes more (src/capture.rs).
    size := octet_length(options::text) + coalesce(octet_length(to_jsonb(changed)::text), 0);
    IF size > 250000 THEN
        RAISE EXCEPTION '"%" cannot be watched with these options', target USING ERRCODE = 'program_limit_exceeded',
            DETAIL = format('They have %s bytes as JSON, and 250000 are allowed.', size),
            HINT = 'Use a shorter condition, such as a call of a function, or name fewer columns.';
    END IF;
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
-- webhook_trigger(). It looks up nothing else than the names in a condition.
-- pgspot: no search_path, because the names in a condition are the caller's.
CREATE OR REPLACE FUNCTION webhook.watch(
    target regclass, prefix text, operations text[], changed text[], include text[], exclude text[], condition text,
    ordering_key text[], coalesce_key text[], on_error text, tenant_column text, reported_as text)
    RETURNS SETOF text
    LANGUAGE plpgsql AS $$
DECLARE
    command pg_catalog.text;
    code pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    hint pg_catalog.text;
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
