-- Watching: triggers that emit what happens to a table.
--
-- webhook_watch() makes one trigger for each operation. It runs once for a statement, whatever the number of rows, and emits
-- them in batches. The triggers belong to the table, are dumped and restored with it, and have all they need in their
-- arguments: the type of the event, and options as JSON. Whoever writes the table needs no right of ours: webhook_trigger()
-- makes JSON of the rows with the writer's rights, and then calls the functions below with those of the extension's owner
-- (src/capture.rs says how).

-- The payloads and tenants of a batch go together.
CREATE FUNCTION webhook.emit_changes(event_type text, payloads jsonb[], tenants text[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM unnest(tenants) AS t WHERE NOT webhook.is_tenant(t)) THEN
        -- Without its value: whoever writes the table may not be allowed to read it.
        RAISE EXCEPTION 'the tenant of a row is not valid' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The tenant column has 1 to 200 characters, no white space and no control characters, or null for none.';
    ELSIF cardinality(payloads) = 1 THEN
        PERFORM webhook.emit(event_type, payloads[1], NULL, NULL, NULL, NULL, NULL, tenants[1], NULL);
        RETURN;
    ELSIF webhook.is_event_type(event_type) IS NOT TRUE THEN
        PERFORM webhook.refuse_event_type(event_type);
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
-- AFTER, for each row or for each statement. A statement gives its rows in transition tables, of any name; without them, as
-- after TRUNCATE, it is one event without rows.
CREATE FUNCTION @extschema@.webhook_trigger() RETURNS trigger
    LANGUAGE c
    AS 'MODULE_PATHNAME', 'webhook_trigger';

-- By membership and not by name: the owner of the schema that the extension is in may rename it and make another.
CREATE FUNCTION webhook.trigger_function() RETURNS regproc
    LANGUAGE sql STABLE
    RETURN (SELECT m.routine FROM webhook.members() m WHERE m.name = 'webhook_trigger');

-- Columns that are computed when they are read: a row that a trigger sees has no value of them. PostgreSQL has them from 18 on.
CREATE FUNCTION webhook.virtual_columns(target regclass) RETURNS text[]
    LANGUAGE sql STABLE
    RETURN ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = target AND a.attgenerated = 'v' AND NOT a.attisdropped ORDER BY a.attnum);

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
        SELECT named INTO wrong FROM unnest(parameter.named) AS named WHERE named = ANY (webhook.virtual_columns(target)) LIMIT 1;
        IF FOUND AND parameter.name IN ('changed', 'tenant_column') THEN
            RAISE EXCEPTION 'column "%" of "%", named in %, is generated and virtual', wrong, target, parameter.name
                USING ERRCODE = 'feature_not_supported', DETAIL = 'A trigger sees no values of such a column.',
                HINT = 'Make it STORED, or name the columns that it is computed from.';
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
    uncaptured text;
BEGIN
    PERFORM webhook.require_watchable(target, prefix, operations, changed, include, exclude, on_error, tenant_column);
    SELECT string_agg(format('"%s"', named), ', ') INTO uncaptured FROM unnest(webhook.virtual_columns(target)) AS named
    WHERE named = ANY (coalesce(include, ARRAY[named])) AND named <> ALL (coalesce(exclude, '{}'));
    IF uncaptured IS NOT NULL THEN
        RAISE NOTICE 'events of "%" do not show virtual generated columns: %', target, uncaptured
            USING HINT = 'A trigger sees no values of them. Make them STORED, or name them in exclude.';
    END IF;
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
