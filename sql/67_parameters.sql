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
