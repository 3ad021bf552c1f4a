-- What a person sees first.

-- Endpoints of another origin: a restored dump or a copy, held until webhook_adopt().
CREATE FUNCTION webhook.foreign_endpoints() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (SELECT count(*) FROM webhook.endpoint e WHERE e.origin <> (SELECT webhook.origin()));

-- @api public
CREATE FUNCTION @extschema@.webhook_status()
    RETURNS TABLE (database name, worker_pid int, state text, reason text, in_flight int, queued bigint, due bigint,
                   oldest_due interval, last_error text, last_error_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    foreign_count bigint := webhook.foreign_endpoints();
BEGIN
    RETURN QUERY
    SELECT current_database(), w.pid,
           CASE
               WHEN NOT webhook.is_preloaded() THEN 'not preloaded'
               WHEN w.state = 'running' AND foreign_count > 0 THEN 'held'
               ELSE coalesce(w.state, 'no worker')
           END,
           CASE
               WHEN NOT webhook.is_preloaded() THEN
                   'add webhook to shared_preload_libraries in postgresql.conf and restart the server'
               WHEN w.state = 'running' AND foreign_count > 0 THEN
                   format('%s of %s endpoints belong to another installation (a restored or copied database?); SELECT webhook_adopt() takes them over',
                          foreign_count, (SELECT count(*) FROM webhook.endpoint))
               ELSE w.reason
           END,
           coalesce(w.in_flight, 0), q.queued, q.due, q.oldest_due, w.last_error, w.last_error_at
    FROM (SELECT count(*) AS queued,
                 count(*) FILTER (WHERE d.status = 'PENDING' AND d.next_attempt_at <= now()) AS due,
                 now() - min(d.next_attempt_at) FILTER (WHERE d.status = 'PENDING' AND d.next_attempt_at <= now()) AS oldest_due
          FROM webhook.delivery_queue d) q
    LEFT JOIN webhook.worker_report() w ON true;
END $$;
