-- The exchange: a sender hands in outcomes and gets the deliveries to send next, in one transaction and one call.
--
-- Settling comes first, so that a breaker that opens keeps deliveries back before they are claimed, and one that closes lets
-- them go.

-- The parameters are outcomes as webhook.settle() takes them, then the endpoints that the sender asks about, each with its
-- position, and then wishes as webhook.pick() takes them, for the first of these endpoints; each may be empty. The last
-- `asked_for_outcomes` endpoints are there only because of their outcomes, and are left out if these have changed nothing.
-- Each row is a claim, but for the last, which has only the report:
--
--   locked    outcomes that are handed back, as [event, endpoint, claim_seq]
--   finished  deliveries for webhook.add_figures() later, as [endpoint, status, latency class, deliveries, retried, retries]
--   routes    how to reach the endpoints of the claims, but for those whose route is the one that known_routes stands for
--   due       for each endpoint that the sender asks about, when to ask again
--
-- An attempt is counted when it is claimed and not when it ends, so that a delivery that kills its worker runs out of attempts.
-- The payload is null if somebody has deleted or redacted the event.
--
-- If somebody has locked the table of breakers (VACUUM FULL does), a sender asks with `breakers_are_locked` for endpoints that
-- it knows to be well, and hands nothing in. Such a call reads no breaker, so it returns nothing due either.
CREATE OR REPLACE FUNCTION webhook.exchange(
    event_ids uuid[], endpoint_ids int[], claim_seqs bigint[], status_codes int[], failures text[], errors text[],
    excerpts text[], retry_after_seconds float8[], durations_ms int[], ages_ms float8[],
    asked_endpoint_ids int[], positions float8[], instance int, capacities int[], byte_rooms bigint[], byte_room bigint,
    known_routes text[] DEFAULT NULL, asked_for_outcomes int DEFAULT 0, breakers_are_locked boolean DEFAULT false)
    RETURNS TABLE (event_id uuid, endpoint_id int, claim_seq bigint, earlier_attempts int, event_type text, payload text,
                   occurred_at text, tenant text, report json)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    settled record;
    locked json;
    finished jsonb;
    wished_endpoint_ids int[] := asked_endpoint_ids[:cardinality(capacities)];
    our_origin text;
    claims record;
    routes json;
BEGIN
    IF cardinality(event_ids) > 0 THEN
        settled := webhook.settle(event_ids, endpoint_ids, claim_seqs, status_codes, failures, errors, excerpts,
                                  retry_after_seconds, durations_ms, ages_ms);
        IF settled.queued_endpoint_ids IS NOT NULL THEN
            positions := ARRAY(SELECT least(asked.position, date_part('epoch', queued.next_attempt_at))
                               FROM unnest(asked_endpoint_ids, positions) WITH ORDINALITY AS asked (id, position, ordinal)
                               LEFT JOIN unnest(settled.queued_endpoint_ids, settled.queued_times) AS queued (id, next_attempt_at) USING (id)
                               ORDER BY asked.ordinal);
        END IF;
        IF settled.locked_event_ids IS NOT NULL THEN
            locked := (SELECT json_agg(json_build_array(l.event_id, l.endpoint_id, l.claim_seq))
                       FROM unnest(settled.locked_event_ids, settled.locked_endpoint_ids, settled.locked_claim_seqs)
                            AS l (event_id, endpoint_id, claim_seq));
        END IF;
        IF settled.is_plain THEN
            asked_endpoint_ids := asked_endpoint_ids[:cardinality(asked_endpoint_ids) - asked_for_outcomes];
            positions := positions[:cardinality(asked_endpoint_ids)];
        END IF;
        finished := settled.finished;
    END IF;

    IF cardinality(asked_endpoint_ids) > 0 THEN
        our_origin := webhook.origin();
    END IF;
    IF cardinality(wished_endpoint_ids) > 0 THEN
        claims := webhook.pick(wished_endpoint_ids, capacities, byte_rooms, byte_room, positions[:cardinality(capacities)],
                               known_routes, our_origin, breakers_are_locked);
        IF cardinality(claims.picked) > 0 THEN
            -- A route has credentials, so a sender gets those of its claims alone. A sender that knows them reads nothing here.
            IF claims.new_routes IS NOT NULL THEN
                routes := (SELECT json_agg(r) FROM webhook.routes(ARRAY(
                               SELECT DISTINCT p.endpoint_id
                               FROM (SELECT q.endpoint_id FROM webhook.delivery_queue q
                                     WHERE q.ctid = ANY (claims.picked) OFFSET 0) p
                               WHERE p.endpoint_id = ANY (claims.new_routes))) r);
            END IF;
            -- The rows are locked, so they keep their ctids.
            RETURN QUERY
            WITH claimed AS (
                UPDATE webhook.delivery_queue q
                SET status = 'SENDING', attempts = q.attempts + 1, claim_seq = q.claim_seq + 1,
                    claimed_at = now(), claimed_by = instance
                WHERE q.ctid = ANY (claims.picked)
                RETURNING q.event_id, q.endpoint_id, q.claim_seq, q.attempts - 1 AS earlier_attempts, q.event_type
            )
            SELECT c.event_id, c.endpoint_id, c.claim_seq, c.earlier_attempts, c.event_type, event.payload, event.occurred_at,
                   event.tenant, NULL::json
            FROM claimed c
            LEFT JOIN LATERAL (
                SELECT v.payload::text AS payload, webhook.wire_time(v.created_at) AS occurred_at, v.tenant
                FROM webhook.event v WHERE v.id = c.event_id AND v.redacted_at IS NULL LIMIT 1
            ) event ON true;
        END IF;
    END IF;

    RETURN QUERY
    SELECT NULL::uuid, NULL::int, NULL::bigint, NULL::int, NULL::text, NULL::text, NULL::text, NULL::text,
           json_build_object(
               'locked', locked, 'finished', finished, 'routes', routes,
               'due', (SELECT json_agg(d) FROM webhook.due(asked_endpoint_ids, positions, our_origin) d
                       WHERE cardinality(asked_endpoint_ids) > 0 AND NOT breakers_are_locked));
END $$;
