-- Watching: triggers that emit what happens to a table.
--
-- webhook_watch() makes one trigger for each operation. It runs once for a statement, whatever the number of rows, and emits
-- them in batches. The triggers belong to the table, are dumped and restored with it, and have all they need in their
-- arguments: the type of the event, and options as JSON. Who writes the table needs no right of ours: webhook_trigger() has
-- the rights of the extension's owner.
--
-- Hence what it takes care of. It runs no text that anybody gave. What code there is in the types of a table's columns (a
-- cast to JSON) runs with the rights of the table's owner. The names of the transition tables are fixed, and are used only
-- where the catalog says that the trigger has them: else they might be those of a temporary view of the writer's.
--
-- The old and the new rows of an update are paired by their places. The server writes both down as it updates a row, so
-- they are in the same order, and no key is needed: a table may have none, and an update may change it. The one exception
-- is a row on its way to another partition that a BEFORE trigger there drops; then their numbers differ, and none is paired.

CREATE FUNCTION webhook.refuse_trigger(problem text, remedy text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'webhook_trigger() cannot work like this: %', problem USING ERRCODE = 'trigger_protocol_violated', HINT = remedy;
END $$;

-- Which columns the options keep out of the payload, and which may change without an event; null where all count. Of those
-- that are kept out, the ones that are not needed at all are not read: nothing in them can be too large, or fail to be JSON.
-- A column that is not there may have another name now: rather no event than one with what was to be kept out.
CREATE FUNCTION webhook.column_choice(
    options jsonb, columns text[], OUT hidden text[], OUT ignored text[], OUT unneeded text[])
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    include text[] := ARRAY(SELECT jsonb_array_elements_text(options -> 'include'));
    exclude text[] := ARRAY(SELECT jsonb_array_elements_text(options -> 'exclude'));
    changed text[] := ARRAY(SELECT jsonb_array_elements_text(options -> 'changed'));
    missing text;
BEGIN
    SELECT named INTO missing FROM unnest(include || exclude || changed || (options ->> 'tenant_column')) AS named
    WHERE named <> ALL (columns) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'column "%" does not exist any more', missing USING ERRCODE = 'undefined_column',
            HINT = 'The table is watched by the names of its columns: call webhook_watch() again.';
    END IF;
    hidden := CASE WHEN options ? 'include' THEN ARRAY(SELECT unnest(columns) EXCEPT SELECT unnest(include)) ELSE exclude END;
    ignored := CASE WHEN options ? 'changed' THEN ARRAY(SELECT unnest(columns) EXCEPT SELECT unnest(changed)) END;
    unneeded := ARRAY(SELECT unnest(hidden) EXCEPT SELECT unnest(changed || (options ->> 'tenant_column')));
END $$;

CREATE FUNCTION webhook.emit_changes(event_type text, payloads jsonb[], tenants text[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong_tenant text;
BEGIN
    IF cardinality(payloads) = 0 THEN
        RETURN;
    ELSIF cardinality(payloads) = 1 THEN
        PERFORM webhook.emit(event_type, payloads[1], NULL, NULL, NULL, NULL, NULL, tenants[1], NULL);
        RETURN;
    ELSIF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
    END IF;
    SELECT t INTO wrong_tenant FROM unnest(tenants) AS t WHERE NOT webhook.is_tenant(t) LIMIT 1;
    IF FOUND THEN
        PERFORM webhook.refuse_tenant(wrong_tenant);
    END IF;
    PERFORM webhook.emit_events(ARRAY(SELECT webhook.new_id() FROM generate_series(1, cardinality(payloads))),
                                array_fill(event_type, ARRAY[cardinality(payloads)]), payloads, tenants);
END $$;

-- The same for on_error = warn: what cannot be emitted is left out and counted, found by halving what it is in.
CREATE FUNCTION webhook.emit_possible_changes(event_type text, payloads jsonb[], tenants text[], INOUT lost bigint, INOUT problem text)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    half int := cardinality(payloads) / 2;
BEGIN
    PERFORM webhook.emit_changes(event_type, payloads, tenants);
EXCEPTION
    WHEN transaction_rollback THEN
        RAISE;
    WHEN OTHERS THEN
        IF half = 0 THEN
            lost := lost + 1;
            problem := SQLERRM;
        ELSE
            SELECT p.lost, p.problem INTO lost, problem
            FROM webhook.emit_possible_changes(event_type, payloads[:half], tenants[:half], lost, problem) p;
            SELECT p.lost, p.problem INTO lost, problem
            FROM webhook.emit_possible_changes(event_type, payloads[half + 1:], tenants[half + 1:], lost, problem) p;
        END IF;
END $$;

-- webhook_trigger('order.created') or webhook_trigger('order.updated', '{"changed": ["status"], "exclude": ["notes"], ..}'),
-- AFTER, for each row or for each statement. A statement gives its rows in transition tables named old_rows and new_rows;
-- without them, as after TRUNCATE, it is one event without rows. How values are written is not up to the writer's session: with
-- fewer digits of a float, say, a change of it would not even be seen.
CREATE FUNCTION @extschema@.webhook_trigger() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
    SET bytea_output = 'hex' SET extra_float_digits = 1 AS $$
DECLARE
    batch_rows constant int := 1000;
    batch_bytes constant bigint := 16 * 1024 * 1024;
    options jsonb := coalesce(TG_ARGV[1], '{}');
    is_choosy boolean := options ?| '{changed,include,exclude,tenant_column}';
    only_warns boolean := coalesce(options ->> 'on_error' = 'warn', false);
    by_row boolean := TG_LEVEL = 'ROW';
    new_table name;
    old_table name;
    new_cursor refcursor;
    old_cursor refcursor;
    new_row record;
    old_row record;
    new_json jsonb;
    old_json jsonb;
    hidden text[];
    ignored text[];
    unneeded text[] := '{}';
    payload jsonb;
    payloads jsonb[] := '{}';
    bytes bigint := 0;
    tenants text[] := '{}';
    lost bigint := 0;
    problem text;
BEGIN
    IF TG_WHEN <> 'AFTER' THEN
        PERFORM webhook.refuse_trigger(format('it is called %s the operation', TG_WHEN), 'Make it an AFTER trigger, of a table.');
    ELSIF TG_NARGS NOT IN (1, 2) OR jsonb_typeof(options) <> 'object'
          OR options - '{changed,include,exclude,tenant_column,on_error}'::text[] <> '{}' OR options ?& '{include,exclude}'
          OR options ->> 'on_error' NOT IN ('raise', 'warn') OR jsonb_typeof(options -> 'tenant_column') <> 'string'
          OR 'array' <> ANY (ARRAY[jsonb_typeof(options -> 'changed'), jsonb_typeof(options -> 'include'),
                                   jsonb_typeof(options -> 'exclude')]) THEN
        PERFORM webhook.refuse_trigger('its arguments are not the type of an event and options that it knows',
            'Such as webhook_trigger(''order.updated'', ''{"changed": ["status"]}''); webhook_watch() makes a trigger for you.');
    ELSIF NOT by_row THEN
        SELECT t.tgnewtable, t.tgoldtable INTO new_table, old_table FROM pg_trigger t WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME;
        IF new_table <> 'new_rows' OR old_table <> 'old_rows' THEN
            PERFORM webhook.refuse_trigger('its transition tables have other names',
                'Call them REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows.');
        END IF;
        IF new_table IS NOT NULL AND old_table IS NOT NULL THEN
            IF (SELECT count(*) FROM new_rows) <> (SELECT count(*) FROM old_rows) THEN
                problem := 'a row that was to move to another partition was dropped on the way, by a trigger there';
                IF only_warns THEN
                    RAISE WARNING '% of table "%.%" not emitted: %', TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME, problem;
                    RETURN NULL;
                END IF;
                PERFORM webhook.refuse_trigger(problem, 'Let that trigger raise an error instead, or make this one FOR EACH ROW.');
            END IF;
        END IF;
        IF new_table IS NOT NULL THEN
            OPEN new_cursor NO SCROLL FOR SELECT * FROM new_rows;
        END IF;
        IF old_table IS NOT NULL THEN
            OPEN old_cursor NO SCROLL FOR SELECT * FROM old_rows;
        END IF;
    END IF;

    LOOP
        IF new_table IS NOT NULL THEN
            FETCH new_cursor INTO new_row;
            EXIT WHEN NOT FOUND;
        END IF;
        IF old_table IS NOT NULL THEN
            FETCH old_cursor INTO old_row;
            EXIT WHEN NOT FOUND;
        END IF;

        -- Nothing is written in here, so it takes no transaction id.
        BEGIN
            IF is_choosy AND hidden IS NULL AND (by_row OR num_nonnulls(new_table, old_table) > 0) THEN
                SELECT c.hidden, c.ignored, c.unneeded INTO hidden, ignored, unneeded
                FROM webhook.column_choice(options, ARRAY(SELECT a.attname::text FROM pg_attribute a
                                                          WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped)) c;
            END IF;
            new_json := CASE WHEN by_row THEN webhook.row_as_json(NEW, TG_RELID, unneeded)
                             ELSE webhook.row_as_json(new_row, TG_RELID, unneeded) END;
            old_json := CASE WHEN by_row THEN webhook.row_as_json(OLD, TG_RELID, unneeded)
                             ELSE webhook.row_as_json(old_row, TG_RELID, unneeded) END;
            -- Without both of them, or where all columns count, this is null.
            IF (new_json - ignored = old_json - ignored) IS NOT TRUE THEN
                payload := jsonb_build_object(
                    'type', TG_OP, 'schema', TG_TABLE_SCHEMA, 'table', TG_TABLE_NAME,
                    'record', new_json - coalesce(hidden, '{}'), 'old_record', old_json - coalesce(hidden, '{}'));
                payloads := payloads || payload;
                bytes := bytes + pg_column_size(payload);
                tenants := tenants || (coalesce(new_json, old_json) ->> (options ->> 'tenant_column'));
            END IF;
        EXCEPTION WHEN OTHERS THEN
            IF NOT only_warns THEN
                RAISE;
            END IF;
            lost := lost + 1;
            problem := SQLERRM;
        END;

        EXIT WHEN num_nonnulls(new_table, old_table) = 0;
        IF cardinality(payloads) = batch_rows OR bytes >= batch_bytes THEN
            IF only_warns THEN
                SELECT p.lost, p.problem INTO lost, problem FROM webhook.emit_possible_changes(TG_ARGV[0], payloads, tenants, lost, problem) p;
            ELSE
                PERFORM webhook.emit_changes(TG_ARGV[0], payloads, tenants);
            END IF;
            payloads := '{}';
            bytes := 0;
            tenants := '{}';
        END IF;
    END LOOP;
    -- Or they would stay until the transaction ends.
    IF new_table IS NOT NULL THEN
        CLOSE new_cursor;
    END IF;
    IF old_table IS NOT NULL THEN
        CLOSE old_cursor;
    END IF;

    IF only_warns THEN
        SELECT p.lost, p.problem INTO lost, problem FROM webhook.emit_possible_changes(TG_ARGV[0], payloads, tenants, lost, problem) p;
        IF lost > 0 THEN
            RAISE WARNING '% of table "%.%" not emitted: % events', TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME, lost
                USING DETAIL = format('The last of them: %s', problem);
        END IF;
    ELSE
        PERFORM webhook.emit_changes(TG_ARGV[0], payloads, tenants);
    END IF;
    RETURN NULL;
END $$;

-- By membership and not by name: the owner of the schema that the extension is in may rename it and make another.
CREATE FUNCTION webhook.trigger_function() RETURNS regproc
    LANGUAGE sql STABLE
    RETURN (SELECT m.routine FROM webhook.members() m WHERE m.name = 'webhook_trigger');

-- What may be watched, and how; says so where it may not. With rights of ours: who watches a table needs none in our schema
-- but that to call this.
CREATE FUNCTION webhook.require_watchable(
    target regclass, prefix text, operations text[], changed text[], include text[], exclude text[], on_error text,
    tenant_column text) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    watched record;
    columns text[] := ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped);
    foreign_table regclass;
    parameter record;
    wrong text;
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
    SELECT c.oid INTO foreign_table FROM below JOIN pg_class c ON c.oid = below.inhrelid WHERE c.relkind = 'f' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '"%" cannot be watched', target USING ERRCODE = 'wrong_object_type',
            DETAIL = format('"%s" is a part of it and a foreign table, whose rows a statement would not show to its triggers.', foreign_table),
            HINT = 'Watch the parts that are not foreign, each by itself.';
    ELSIF webhook.is_event_type(prefix || '.truncated') IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(prefix || '.truncated');
    ELSIF (cardinality(operations) > 0 AND operations <@ '{insert,update,delete,truncate}') IS NOT TRUE THEN
        RAISE EXCEPTION 'operations cannot be "%"', operations USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use some of insert, update, delete and truncate.';
    ELSIF (on_error IN ('raise', 'warn')) IS NOT TRUE THEN
        RAISE EXCEPTION 'on_error cannot be "%"', on_error USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use ''raise'' to refuse the change of the row with the event, ''warn'' to go on without it.';
    ELSIF num_nonnulls(include, exclude) = 2 THEN
        RAISE EXCEPTION 'include and exclude exclude each other' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Name the columns that are sent, or those that are not.';
    ELSIF changed IS NOT NULL AND NOT 'update' = ANY (operations) THEN
        RAISE EXCEPTION 'changed is about updates, which are not watched' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave changed null, or add update to the operations.';
    END IF;

    FOR parameter IN
        SELECT * FROM (VALUES ('changed', changed), ('include', include), ('exclude', exclude),
                              ('tenant_column', CASE WHEN tenant_column IS NOT NULL THEN ARRAY[tenant_column] END)) AS p (name, named)
        WHERE p.named IS NOT NULL
    LOOP
        IF cardinality(parameter.named) = 0 OR array_position(parameter.named, NULL) IS NOT NULL THEN
            RAISE EXCEPTION '% must name at least one column, and none of them null', parameter.name USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Leave it null for all columns.';
        END IF;
        SELECT named INTO wrong FROM unnest(parameter.named) AS named WHERE named <> ALL (columns) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'column "%" of "%", named in %, does not exist', wrong, target, parameter.name USING ERRCODE = 'undefined_column',
                HINT = coalesce(webhook.did_you_mean(wrong, columns), format('Its columns are %s.', array_to_string(columns, ', ')));
        END IF;
    END LOOP;
END $$;

-- Emits <prefix>.created, .updated, .deleted and .truncated from now on, in place of what it had made for this table before;
-- returns the triggers. Who calls it needs the right to create triggers of the table, and to execute webhook_trigger().
CREATE FUNCTION webhook.watch(
    target regclass, prefix text, operations text[], changed text[], include text[], exclude text[], on_error text,
    tenant_column text)
    RETURNS SETOF text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    options jsonb := jsonb_strip_nulls(jsonb_build_object('include', include, 'exclude', exclude, 'tenant_column', tenant_column,
                                                          'on_error', nullif(on_error, 'raise')));
    operation record;
BEGIN
    PERFORM webhook.require_watchable(target, prefix, operations, changed, include, exclude, on_error, tenant_column);
    PERFORM webhook.unwatch(target);
    FOR operation IN
        SELECT * FROM (VALUES ('insert', 'created', 'REFERENCING NEW TABLE AS new_rows'),
                              ('update', 'updated', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'),
                              ('delete', 'deleted', 'REFERENCING OLD TABLE AS old_rows'),
                              ('truncate', 'truncated', '')) AS o (name, outcome, row_tables)
        WHERE o.name = ANY (operations)
    LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %s(%L, %L)',
                       'webhook_' || operation.name, operation.name, target, operation.row_tables, webhook.trigger_function(),
                       prefix || '.' || operation.outcome,
                       options || CASE WHEN operation.name = 'update' AND changed IS NOT NULL
                                       THEN jsonb_build_object('changed', changed) ELSE '{}' END);
        RETURN QUERY SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t
                     WHERE t.tgrelid = target AND t.tgname = 'webhook_' || operation.name;
    END LOOP;
END $$;

-- Drops what webhook_watch() has made, and says how many triggers that were. Others that call webhook_trigger() stay.
CREATE FUNCTION webhook.unwatch(target regclass) RETURNS int
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made name;
    dropped int := 0;
BEGIN
    FOR made IN
        SELECT t.tgname FROM pg_trigger t
        WHERE t.tgrelid = target AND t.tgfoid = webhook.trigger_function()
          AND t.tgname IN ('webhook_insert', 'webhook_update', 'webhook_delete', 'webhook_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', made, target);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
