-- The functions that people call, in the schema of the extension. Each only hands its arguments to the one in schema webhook
-- that does the work: nothing in webhook ever calls back, because the owner of this schema may rename it and put another in
-- its place. Beside these there are the trigger function webhook_trigger() and the procedures, which commit and so run as
-- their caller: webhook_test(), webhook_replay_all() and webhook_backfill().

CREATE OR REPLACE FUNCTION @extschema@.webhook_copy_policy(source text, target text) RETURNS void
    LANGUAGE sql
    RETURN webhook.copy_policy(source, target);

CREATE OR REPLACE FUNCTION @extschema@.webhook_set_endpoint(
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

CREATE OR REPLACE FUNCTION @extschema@.webhook_remove_endpoint(
    endpoint text, pending text DEFAULT 'cancel') RETURNS void
    LANGUAGE sql
    RETURN webhook.remove_endpoint(endpoint, pending);

CREATE OR REPLACE FUNCTION @extschema@.webhook_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.newest_secret(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_rotate_secret(
    endpoint text, overlap interval DEFAULT '24 hours', secret text DEFAULT NULL) RETURNS text
    LANGUAGE sql
    RETURN webhook.rotate_secret(endpoint, overlap, secret);

CREATE OR REPLACE FUNCTION @extschema@.webhook_public_key(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.newest_public_key(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_rotate_key(
    endpoint text, overlap interval DEFAULT '24 hours', key text DEFAULT NULL) RETURNS text
    LANGUAGE sql
    RETURN webhook.rotate_key(endpoint, overlap, key);

CREATE OR REPLACE FUNCTION @extschema@.webhook_hmac_secret(endpoint text) RETURNS text
    LANGUAGE sql STABLE
    RETURN webhook.newest_hmac_secret(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_rotate_hmac_secret(
    endpoint text, overlap interval DEFAULT '24 hours', secret text DEFAULT NULL) RETURNS text
    LANGUAGE sql
    RETURN webhook.rotate_hmac_secret(endpoint, overlap, secret);

CREATE OR REPLACE FUNCTION @extschema@.webhook_emit(
    event_type text, payload jsonb DEFAULT '{}', idempotency_key text DEFAULT NULL,
    ordering_key text DEFAULT NULL, coalesce_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS uuid
    LANGUAGE sql
    RETURN webhook.emit(
        event_type, payload, idempotency_key, ordering_key, coalesce_key, deliver_at, expires_at, tenant,
        endpoints);

-- These two only say that a payload is json where it must be jsonb.
CREATE OR REPLACE FUNCTION @extschema@.webhook_emit(
    event_type webhook.type_beside_json, payload json, idempotency_key text DEFAULT NULL,
    ordering_key text DEFAULT NULL, coalesce_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS uuid
    LANGUAGE sql
    RETURN webhook.refuse_json('payload');

CREATE OR REPLACE FUNCTION @extschema@.webhook_emit_many(
    event_type webhook.type_beside_json, payloads json[], ordering_keys text[] DEFAULT NULL,
    idempotency_keys text[] DEFAULT NULL, coalesce_keys text[] DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, tenant text DEFAULT NULL, endpoints text[] DEFAULT NULL)
    RETURNS SETOF uuid
    LANGUAGE sql
    RETURN webhook.refuse_json('payloads');

CREATE OR REPLACE FUNCTION @extschema@.webhook_emit_many(
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

CREATE OR REPLACE FUNCTION @extschema@.webhook_emit_many(
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

CREATE OR REPLACE FUNCTION @extschema@.webhook_watch(
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

CREATE OR REPLACE FUNCTION @extschema@.webhook_unwatch(target regclass) RETURNS int
    LANGUAGE sql
    RETURN webhook.unwatch(target);

CREATE OR REPLACE FUNCTION @extschema@.webhook_reset_breaker(endpoint text) RETURNS void
    LANGUAGE sql
    RETURN webhook.reset_breaker(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_adopt(endpoint text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.adopt(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_replay(event_id uuid, endpoint text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.replay_event(event_id, endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_discard(event_id uuid, endpoint text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.discard_event(event_id, endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_redact(event_id uuid) RETURNS int
    LANGUAGE sql
    RETURN webhook.redact_event(event_id);

CREATE OR REPLACE FUNCTION @extschema@.webhook_status()
    RETURNS TABLE (database name, health text, state text, reason text, worker_pid int, in_flight int,
                   queued bigint, due bigint, more boolean, oldest_due interval, queued_bytes bigint,
                   retention_lag interval, last_error text, last_error_at timestamptz, senders jsonb)
    LANGUAGE sql
    BEGIN ATOMIC SELECT * FROM webhook.status(); END;

CREATE OR REPLACE FUNCTION @extschema@.webhook_pause(endpoint text) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.pause(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_resume(endpoint text) RETURNS bigint
    LANGUAGE sql
    RETURN webhook.resume(endpoint);

CREATE OR REPLACE FUNCTION @extschema@.webhook_preview(
    event_id uuid, endpoint text, OUT url text, OUT headers jsonb, OUT body text)
    LANGUAGE sql
    BEGIN ATOMIC SELECT * FROM webhook.preview(event_id, endpoint); END;

CREATE OR REPLACE FUNCTION @extschema@.webhook_why(about text DEFAULT NULL) RETURNS SETOF text
    LANGUAGE sql
    BEGIN ATOMIC SELECT * FROM webhook.why(about); END;

CREATE OR REPLACE FUNCTION @extschema@.webhook_grant(role text, level text) RETURNS void
    LANGUAGE sql
    RETURN webhook.grant_level(role, level);

CREATE OR REPLACE FUNCTION @extschema@.webhook_revoke(role text, level text) RETURNS void
    LANGUAGE sql
    RETURN webhook.revoke_level(role, level);
