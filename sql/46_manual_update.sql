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
