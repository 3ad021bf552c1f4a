-- Adopting: the endpoints of a restored or copied database are held until somebody says that this server is to serve them.

CREATE OR REPLACE FUNCTION webhook.foreign_endpoints() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (SELECT count(*) FROM webhook.endpoint e WHERE e.origin <> (SELECT webhook.origin()));

-- Takes over the endpoints of an address, or all; returns how many. A delivery that was in flight when the dump or the copy
-- was made has no sender here, whatever its claim says.
CREATE OR REPLACE FUNCTION webhook.adopt(endpoint text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted int[] := webhook.addressed_endpoints(coalesce(endpoint, '*'));
    adopted int[];
BEGIN
    WITH taken AS (
        UPDATE webhook.endpoint e SET origin = webhook.origin()
        WHERE e.origin <> (SELECT webhook.origin()) AND e.id = ANY (wanted)
        RETURNING e.id
    )
    SELECT coalesce(array_agg(id), '{}') INTO adopted FROM taken;

    PERFORM webhook.release_lost(array_agg(q.event_id), array_agg(q.endpoint_id))
    FROM unnest(adopted) AS a (id)
    CROSS JOIN LATERAL webhook.queue_of(a.id) q
    WHERE q.status = 'SENDING'
    HAVING count(*) > 0;
    RETURN cardinality(adopted);
END $$;
