-- Settings, as SQL reads them.

-- The value of a setting, by its name without "webhook.". All SQL reads settings here, so that a session without the library
-- has the same defaults as the library (src/settings.rs). The planner inlines it: with the library it costs what
-- current_setting() does.
CREATE OR REPLACE FUNCTION webhook.setting(name text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(webhook.configured(name), CASE name
        WHEN 'enabled' THEN 'on'
        WHEN 'site' THEN ''
        WHEN 'allow_networks' THEN ''
        WHEN 'tenant_networks' THEN ''
        WHEN 'deny_networks' THEN ''
        WHEN 'allow_ports' THEN '80, 443, 1024-65535'
        WHEN 'require_https' THEN 'public'
        WHEN 'ca_file' THEN ''
        WHEN 'max_in_flight' THEN '1000'
        WHEN 'senders' THEN '1'
        WHEN 'poll_interval' THEN '5s'
        WHEN 'stale_after' THEN '5min'
        WHEN 'max_payload' THEN '1MB'
        WHEN 'retention_sent' THEN '7d'
        WHEN 'retention_failed' THEN '30d'
        WHEN 'idempotency_window' THEN '1d'
        WHEN 'keep_attempts' THEN 'failed'
    END);
