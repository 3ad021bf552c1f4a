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
