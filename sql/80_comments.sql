-- A sentence for every object of the extension, for \d+, \df+ and the tools of others. 66_public_api.sql has the sentences of
-- the API, 67_parameters.sql those of its parameters.

DO $$
DECLARE
    entry record;
BEGIN
    FOR entry IN
        SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS name, concat_ws(E'\n', a.comment, described.parameters) AS comment
        FROM webhook.api() a JOIN webhook.members() m USING (name) JOIN pg_proc p ON p.oid = m.routine
        CROSS JOIN LATERAL (SELECT string_agg(d.parameter || ': ' || d.meaning, E'\n') FROM webhook.parameters_of(p.oid) d
                            WHERE a.kind <> 'part') AS described (parameters)
        WHERE a.kind IN ('function', 'procedure', 'part')
        UNION ALL
        SELECT upper(a.kind), format('webhook.%I', a.name), a.comment FROM webhook.api() a
        WHERE a.kind IN ('table', 'view', 'sequence', 'type')
    LOOP
        EXECUTE format('COMMENT ON %s %s IS %L', entry.kind, entry.name, entry.comment);
    END LOOP;
END $$;

COMMENT ON SCHEMA webhook IS 'Tables, views and functions of the extension webhook.';
COMMENT ON ROUTINE webhook.address_name IS 'The name in an address.';
COMMENT ON ROUTINE webhook.address_tenant IS 'The tenant in an address; null for none.';
COMMENT ON ROUTINE webhook.addressed_endpoints IS
    'The endpoints of an address, which may name all of a tenant.';
COMMENT ON ROUTINE webhook.alert_about IS 'An alert, until webhook.alert has it.';
COMMENT ON ROUTINE webhook.api_schema IS
    'The schema of the functions that people call, and whether it holds nothing else.';
COMMENT ON ROUTINE webhook.as_event_id IS 'A text as the id of an event; null if it is none.';
COMMENT ON ROUTINE webhook.backlog_limit IS 'Disk space of the deliveries of one endpoint that raises an alert.';
COMMENT ON ROUTINE webhook.call_followers IS
    'Makes deliveries due that waited for the turn of their ordering key.';
COMMENT ON ROUTINE webhook.cancel_superseded IS
    'Cancels rows that a newer delivery supersedes, and returns the others.';
COMMENT ON ROUTINE webhook.change IS 'Changes deliveries, and tries again while others have them locked.';
COMMENT ON ROUTINE webhook.check_endpoint IS
    'Trigger: refuses an endpoint that is not valid, with the remedy.';
COMMENT ON ROUTINE webhook.check_secret IS
    'Trigger: refuses a secret that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.close_breaker IS
    'Closes a breaker now, by a person: waiting retries are due at once.';
COMMENT ON ROUTINE webhook.closed IS 'A breaker as it is when it has just closed.';
COMMENT ON ROUTINE webhook.configured IS 'A setting as somebody has set it; null where nobody has.';
COMMENT ON ROUTINE webhook.cooldown IS 'The time from the opening of a breaker to its next probe.';
COMMENT ON ROUTINE webhook.count_signatures IS 'The number of signatures in the templates of headers.';
COMMENT ON ROUTINE webhook.count_figures IS 'Adds counts to webhook.stat.';
COMMENT ON ROUTINE webhook.discard IS
    'Deletes dead letters with their attempts, and events that nothing needs any more.';
COMMENT ON ROUTINE webhook.emit_alert IS
    'Emits the event of an alert to the endpoints that subscribe to it.';
COMMENT ON ROUTINE webhook.emit_changes IS 'Emits a batch of changes of a watched table.';
COMMENT ON ROUTINE webhook.emit_checked IS 'Emits an event of any kind, and refuses invalid input.';
COMMENT ON ROUTINE webhook.emit_events IS
    'Inserts events and their deliveries: one event for each element of the arrays.';
COMMENT ON ROUTINE webhook.emit_possible_changes IS
    'Emits a batch of changes, and counts those that cannot be emitted.';
COMMENT ON ROUTINE webhook.end_catching_up IS 'Ends the bringing forward of retries where none is left.';
COMMENT ON ROUTINE webhook.ended_at IS 'When an attempt ended that a sender reports so many milliseconds later.';
COMMENT ON ROUTINE webhook.endpoint_at IS 'The endpoint of an address; no row where there is none.';
COMMENT ON ROUTINE webhook.endpoint_without_credentials IS 'An endpoint without URL, headers and template.';
COMMENT ON ROUTINE webhook.error_in_words IS 'An error of ours as a sentence.';
COMMENT ON ROUTINE webhook.event_source IS 'The source of events, as CloudEvents say it.';
COMMENT ON ROUTINE webhook.expire_overdue IS 'Fails deliveries past their expires_at.';
COMMENT ON ROUTINE webhook.expire_kept_back IS
    'Fails deliveries that their endpoint kept back for longer than hold_for.';
COMMENT ON ROUTINE webhook.fail_queued IS 'Moves deliveries from the queue to the dead letters.';
COMMENT ON ROUTINE webhook.filter_problem IS 'Why a filter is not valid; null where it is.';
COMMENT ON ROUTINE webhook.filtered_document IS 'The document that filters are applied to.';
COMMENT ON ROUTINE webhook.finish_queued IS
    'Moves deliveries from the queue to the history or the dead letters.';
COMMENT ON ROUTINE webhook.first_id IS 'The least id of an event of this time.';
COMMENT ON ROUTINE webhook.first_secret IS 'Makes a secret for an endpoint that has none that is valid.';
COMMENT ON ROUTINE webhook.follow_clock IS 'Makes deliveries due that wait only because the clock was set back.';
COMMENT ON ROUTINE webhook.follow IS 'Aggregate: the course of a breaker over outcomes in order.';
COMMENT ON ROUTINE webhook.foreign_endpoints IS
    'The number of endpoints that belong to another installation.';
COMMENT ON ROUTINE webhook.forget IS
    'Deletes the attempts of deleted deliveries, and events that no delivery has any more.';
COMMENT ON ROUTINE webhook.forget_removed_endpoint IS
    'Trigger: an endpoint that is inserted again was not removed.';
COMMENT ON ROUTINE webhook.forget_routes IS 'Makes every session forget its routes at commit.';
COMMENT ON ROUTINE webhook.free_shares IS 'Shares that no living sender holds.';
COMMENT ON ROUTINE webhook.grant_connect IS 'Lets webhook_owner connect to this database.';
COMMENT ON ROUTINE webhook.grant_level IS 'The work of webhook_grant().';
COMMENT ON ROUTINE webhook.has_its_turn IS 'Whether the ordering key of a delivery lets it be the probe.';
COMMENT ON ROUTINE webhook.has_placeholder IS 'Whether a text has a placeholder of templates.';
COMMENT ON ROUTINE webhook.has_secret IS 'Whether requests of an endpoint are signed with this secret.';
COMMENT ON ROUTINE webhook.has_signatures IS 'Whether headers have signatures in their templates.';
COMMENT ON ROUTINE webhook.header_size_problem IS 'Why headers are too large; null where they are not.';
COMMENT ON ROUTINE webhook.header_template_problem IS
    'The problem of templates in headers, and the remedy; null if there is none.';
COMMENT ON ROUTINE webhook.header_value_problem IS
    'The problem of the template of one header, and the remedy; no row if there is none.';
COMMENT ON ROUTINE webhook.has_session IS 'Whether the session of this sender lasts.';
COMMENT ON ROUTINE webhook.hmac_key IS 'The key of a secret''s HMAC, as HMAC normalises it; null for a private key.';
COMMENT ON ROUTINE webhook.hmac_secrets IS
    'The valid secrets of signatures in headers, newest first; makes one where there is none.';
COMMENT ON ROUTINE webhook.holders IS 'The roles that have a level.';
COMMENT ON ROUTINE webhook.installation IS
    'The id of this installation, and the server that it was made for.';
COMMENT ON ROUTINE webhook.is_at_rest IS 'Whether a success changes nothing of a breaker.';
COMMENT ON ROUTINE webhook.is_endpoint_reason IS 'Whether a text is a reason code of endpoints.';
COMMENT ON ROUTINE webhook.is_histogram IS 'Whether JSON has classes of latency and numbers.';
COMMENT ON ROUTINE webhook.is_new IS 'Whether a routine was made by the current transaction.';
COMMENT ON ROUTINE webhook.is_sender_alive IS
    'Whether this sender may send: its session lasts, or a relay may not have noticed its end yet.';
COMMENT ON ROUTINE webhook.is_of_replay IS 'Whether a run of webhook_replay_all() selects a delivery.';
COMMENT ON ROUTINE webhook.is_preloaded IS 'Whether the library is in shared_preload_libraries.';
COMMENT ON ROUTINE webhook.is_private_key IS 'Whether a private key has the public key that belongs to it.';
COMMENT ON ROUTINE webhook.is_shared_secret IS 'Whether a secret is whsec_ and base64.';
COMMENT ON ROUTINE webhook.is_skipped IS 'Whether the policy when_open = skip cancels a delivery.';
COMMENT ON ROUTINE webhook.is_superseded IS
    'Whether a newer delivery of the same coalesce key waits, is in flight or was sent.';
COMMENT ON ROUTINE webhook.is_tenant IS 'Whether a text is a valid tenant.';
COMMENT ON ROUTINE webhook.is_without_site IS 'Whether there are endpoints and no webhook.site.';
COMMENT ON ROUTINE webhook.judge IS
    'Judges an outcome once: verdict, new status, next attempt and reason code.';
COMMENT ON ROUTINE webhook.judge_late IS 'Judges an outcome whose claim is over.';
COMMENT ON ROUTINE webhook.judgement IS 'The meaning of an outcome for its delivery.';
COMMENT ON ROUTINE webhook.key_hash IS 'The form of a key that can be compared when its text must not be kept.';
COMMENT ON ROUTINE webhook.largest_backlog IS 'The endpoint that has most of a long queue, and the disk space of its deliveries.';
COMMENT ON ROUTINE webhook.latency_class IS 'The class of a latency, eight to a doubling.';
COMMENT ON ROUTINE webhook.level_list IS 'The levels, what each includes, and a function that no lesser level has.';
COMMENT ON ROUTINE webhook.living_senders IS 'Senders that may send.';
COMMENT ON ROUTINE webhook.longest_request_seconds IS
    'The longest that a request may take under the policies in use.';
COMMENT ON ROUTINE webhook.longest_silence IS 'How long a relay may send without an answer of its session.';
COMMENT ON ROUTINE webhook.lost_followers IS 'Deliveries on a page of ordering keys that wait for nobody.';
COMMENT ON ROUTINE webhook.lost_turns IS 'Ordering keys on a page whose delivery has left the queue.';
COMMENT ON ROUTINE webhook.major_version IS 'The major version of the server.';
COMMENT ON ROUTINE webhook.manual_update IS 'Trigger: makes a row consistent after an UPDATE of webhook.delivery by hand.';
COMMENT ON ROUTINE webhook.matching_keys IS 'The keys of all patterns that match an event.';
COMMENT ON ROUTINE webhook.matching_patterns IS 'The patterns that match a type, and the exclusions.';
COMMENT ON ROUTINE webhook.max_payload IS 'The largest payload, in bytes.';
COMMENT ON ROUTINE webhook.may_be_probe IS 'Whether a delivery may be the probe of a breaker.';
COMMENT ON ROUTINE webhook.merge_latencies IS 'The sum of two histograms of latencies.';
COMMENT ON ROUTINE webhook.metric_in_words IS 'A metric in words, with the threshold that it is beyond.';
COMMENT ON ROUTINE webhook.metric_remedy IS 'The remedy for a metric that is beyond its threshold.';
COMMENT ON ROUTINE webhook.missing_deliveries IS 'The deliveries that endpoints of a backfill do not have yet.';
COMMENT ON ROUTINE webhook.move_breakers IS 'Moves breakers along the outcomes of a batch.';
COMMENT ON ROUTINE webhook.named_endpoints IS 'The ids of endpoints that have or had this name.';
COMMENT ON ROUTINE webhook.new_id IS 'A new id of an event: a UUID of version 7.';
COMMENT ON ROUTINE webhook.new_private_key IS 'A new private key, with its public key.';
COMMENT ON ROUTINE webhook.new_hmac_secret IS 'A new secret for signatures in headers.';
COMMENT ON ROUTINE webhook.new_secret IS 'A new signing secret.';
COMMENT ON ROUTINE webhook.next_claims IS 'The claims on the next page of the queue.';
COMMENT ON ROUTINE webhook.next_look_at_breaker IS
    'When to look again at an endpoint whose breaker is not closed.';
COMMENT ON ROUTINE webhook.next_of_replay IS 'The next deliveries of a run of webhook_replay_all().';
COMMENT ON ROUTINE webhook.next_orphans IS 'The next deliveries that wait for removed endpoints.';
COMMENT ON ROUTINE webhook.note_lost_senders IS 'Notes which sessions of senders have ended.';
COMMENT ON ROUTINE webhook.opened IS 'A breaker as it is when it has just opened.';
COMMENT ON ROUTINE webhook.origin IS 'The origin that endpoints of this installation carry.';
COMMENT ON ROUTINE webhook.page_of_events IS 'The next events in the order of their emission.';
COMMENT ON ROUTINE webhook.parameters IS 'The meaning of each parameter of the API.';
COMMENT ON ROUTINE webhook.result_columns IS 'The meaning of each column that a function of the API returns.';
COMMENT ON ROUTINE webhook.parameters_of IS 'The parameters and result columns of a function of the API, and what each means.';
COMMENT ON ROUTINE webhook.pass_turn(of_endpoint integer, of_key text, from_event uuid) IS
    'Passes the turn of an ordering key on to the next delivery.';
COMMENT ON ROUTINE webhook.pass_turn() IS 'Passes the turn of an ordering key on to the next delivery.';
COMMENT ON ROUTINE webhook.passes IS 'Whether an event passes a filter.';
COMMENT ON ROUTINE webhook.pattern_problem IS
    'Why a filter could take too long for an emit; null where it could not.';
COMMENT ON ROUTINE webhook.patterns_in_words IS 'The first few patterns of an endpoint, for people.';
COMMENT ON ROUTINE webhook.pick IS 'Locks due deliveries for a sender, so many for each endpoint.';
COMMENT ON ROUTINE webhook.pick_exceptions IS
    'Deliveries that go out although their endpoint is not served: probes and tests.';
COMMENT ON ROUTINE webhook.policy_of IS 'The policy of that name, or the default.';
COMMENT ON ROUTINE webhook.printable IS 'A text without characters that could act in a terminal.';
COMMENT ON ROUTINE webhook.privileges IS 'The privileges of a level, in the words of GRANT.';
COMMENT ON ROUTINE webhook.probe_is_due IS 'Whether a breaker is due for a probe.';
COMMENT ON ROUTINE webhook.problems IS 'The problems of delivery as a whole, each with its weight.';
COMMENT ON ROUTINE webhook.protect_policy IS
    'Trigger: keeps presets as they are, and policies that endpoints use.';
COMMENT ON ROUTINE webhook.public_half IS 'The public key of a private one.';
COMMENT ON ROUTINE webhook.queue_for_some IS
    'Queues deliveries of an event for endpoints that were named or have a filter.';
COMMENT ON ROUTINE webhook.queue_gauge IS 'Deliveries in the queue and due ones, counted up to a limit.';
COMMENT ON ROUTINE webhook.queue_of IS 'The deliveries of an endpoint in the queue.';
COMMENT ON ROUTINE webhook.reason_in_words IS 'A reason code, for people.';
COMMENT ON ROUTINE webhook.reason_of IS 'The reason code of an outcome that is no success.';
COMMENT ON ROUTINE webhook.recall_only_route IS
    'The remembered route of an event type, in one number; null unless one endpoint without a filter wants it.';
COMMENT ON ROUTINE webhook.recall_routes IS
    'The routes that this session remembers; null where it remembers none.';
COMMENT ON ROUTINE webhook.recognise_installation IS
    'Gives the installation a new id where the server is another one.';
COMMENT ON ROUTINE webhook.redact IS
    'Deletes the payload and the keys of an event and the answers to it from every table.';
COMMENT ON ROUTINE webhook.refuse_null_payload IS 'Raises the error for a payload that is null.';
COMMENT ON ROUTINE webhook.refuse_size IS 'Raises the error for a payload that is too large.';
COMMENT ON ROUTINE webhook.refuse_tenant IS 'Raises the error for a tenant that is not valid.';
COMMENT ON ROUTINE webhook.refuse_update_of_leaf IS 'Trigger: refuses an UPDATE of a partition by name.';
COMMENT ON ROUTINE webhook.release_lost IS 'Requeues claims of a lost worker; the attempt stays counted.';
COMMENT ON ROUTINE webhook.remember_removed_endpoint IS 'Trigger: notes the removal of an endpoint.';
COMMENT ON ROUTINE webhook.remember_routes IS 'Lets this session remember the routes of an event type.';
COMMENT ON ROUTINE webhook.remove_keys IS
    'Removes the keys of an event''s finished deliveries; returns how many had one.';
COMMENT ON ROUTINE webhook.render_request IS 'The request that an attempt would send now.';
COMMENT ON ROUTINE webhook.renew_grants IS 'Gives roles the new rights of their levels, after an upgrade.';
COMMENT ON ROUTINE webhook.renew_levels IS 'The work of webhook.renew_grants().';
COMMENT ON ROUTINE webhook.requeue IS
    'Moves deliveries back to the queue, due now and from the first attempt.';
COMMENT ON ROUTINE webhook.requeued IS 'The row of a delivery that is queued again.';
COMMENT ON ROUTINE webhook.require_batch_size IS 'Refuses a batch size that is not positive.';
COMMENT ON ROUTINE webhook.require_endpoint IS 'The id of an endpoint; refuses one that does not exist.';
COMMENT ON ROUTINE webhook.require_endpoints IS
    'The ids of endpoints by their names; refuses one that does not exist.';
COMMENT ON ROUTINE webhook.require_event IS 'Refuses an event that does not exist.';
COMMENT ON ROUTINE webhook.require_hmac_secret IS 'Refuses an HMAC secret that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.require_key IS
    'Refuses an ordering, coalesce or idempotency key that is not valid.';
COMMENT ON ROUTINE webhook.require_keys IS 'Refuses keys of many events that are not valid.';
COMMENT ON ROUTINE webhook.require_lifetime IS
    'Refuses times of delivery and expiry that contradict each other.';
COMMENT ON ROUTINE webhook.require_permitted_url IS 'Refuses a URL that the settings of this server forbid.';
COMMENT ON ROUTINE webhook.require_policy IS 'Refuses a policy that does not exist.';
COMMENT ON ROUTINE webhook.require_private_key IS 'Refuses a private key that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.require_role IS 'The OID of a role; refuses one that does not exist.';
COMMENT ON ROUTINE webhook.require_safe_owner IS 'Refuses a role webhook_owner that somebody could use.';
COMMENT ON ROUTINE webhook.require_secret IS
    'Refuses a signing secret that is not valid, without showing it.';
COMMENT ON ROUTINE webhook.retention_lag IS 'How far retention is behind; null where it is not.';
COMMENT ON ROUTINE webhook.revoke_level IS 'The work of webhook_revoke().';
COMMENT ON ROUTINE webhook.ring IS 'Tells relays that something was committed for them.';
COMMENT ON ROUTINE webhook.route_stamp IS 'The versions of the rows that a route is made of.';
COMMENT ON ROUTINE webhook.routes(tenant text, event_type text) IS
    'The endpoints that want an event type, each with its max_attempts.';
COMMENT ON ROUTINE webhook.routes(endpoint_ids integer[]) IS
    'URL, headers and secrets of endpoints, for the sender.';
COMMENT ON ROUTINE webhook.routes_changed IS 'Trigger: makes every session forget its routes.';
COMMENT ON ROUTINE webhook.saturated IS 'A count, or the largest one that is kept.';
COMMENT ON ROUTINE webhook.sendable_now IS 'The deliveries of an endpoint that may be claimed now.';
COMMENT ON ROUTINE webhook.sender_lock IS 'The first key of the advisory lock that a sender holds.';
COMMENT ON ROUTINE webhook.senders_at_work IS 'The senders of this database, for people.';
COMMENT ON ROUTINE webhook.server_mark IS
    'A mark that tells this server from one that a dump was restored to.';
COMMENT ON ROUTINE webhook.set_followers_aside IS
    'Sets deliveries aside that wait for the turn of their ordering key, and returns the others.';
COMMENT ON ROUTINE webhook.setting IS 'A setting of webhook by its name, or its default.';
COMMENT ON ROUTINE webhook.settle IS 'Records the outcomes of attempts.';
COMMENT ON ROUTINE webhook.settle_successes IS 'Records successes of endpoints that are well.';
COMMENT ON ROUTINE webhook.similar_addresses IS
    'For a HINT: addresses that are close to one that does not exist.';
COMMENT ON ROUTINE webhook.span_in_words IS 'A length of time, for people.';
COMMENT ON ROUTINE webhook.subscribers IS 'The endpoints that are subscribed under these keys.';
COMMENT ON ROUTINE webhook.supersede IS 'Cancels deliveries that a newer one supersedes.';
COMMENT ON ROUTINE webhook.superseded IS 'Deliveries that a new event supersedes.';
COMMENT ON ROUTINE webhook.system_identifier IS 'The system identifier of the server.';
COMMENT ON ROUTINE webhook.take_keys IS
    'Makes idempotency keys stand for new events, or returns the events that they stand for.';
COMMENT ON ROUTINE webhook.tell_passed_over IS 'A NOTICE about deliveries that cannot be sent again.';
COMMENT ON ROUTINE webhook.template_problem IS
    'Why a template is not valid, and the remedy; no row where it is.';
COMMENT ON ROUTINE webhook.time_in_words IS 'A time, for people.';
COMMENT ON ROUTINE webhook.unsent IS
    'The number of deliveries in the queue, asked before the extension is dropped.';
COMMENT ON ROUTINE webhook.url_problem IS
    'Why the settings of this server forbid a URL; null where they do not.';
COMMENT ON ROUTINE webhook.wake() IS 'Makes the worker of this database look at everything, at commit.';
COMMENT ON ROUTINE webhook.wake(endpoint_ids integer[], due_at timestamptz) IS
    'Wakes the worker for endpoints that have something due at that time, at commit.';
COMMENT ON ROUTINE webhook.wake_endpoint IS 'The same for one endpoint.';
COMMENT ON ROUTINE webhook.wake_for_endpoint IS 'Trigger: wakes the worker for an endpoint, at commit.';
COMMENT ON ROUTINE webhook.wake_routes IS 'The same for routes of an event.';
COMMENT ON ROUTINE webhook.wake_worker IS 'Trigger: wakes the worker at commit.';
COMMENT ON ROUTINE webhook.why_attempts IS 'The attempts of a delivery, for webhook_why().';
COMMENT ON ROUTINE webhook.why_delivery IS 'One delivery, for webhook_why().';
COMMENT ON ROUTINE webhook.why_endpoint IS 'The reasons why nothing is sent to an endpoint, for webhook_why().';
COMMENT ON ROUTINE webhook.why_event IS 'One event, for webhook_why().';
COMMENT ON ROUTINE webhook.why_failed IS 'The last dead letters of an endpoint, for webhook_why().';
COMMENT ON ROUTINE webhook.why_filter IS 'The newest events that a filter lets pass, for webhook_why().';
COMMENT ON ROUTINE webhook.why_filter_misses_row IS
    'A filter that can never match a watched row, for webhook_why().';
COMMENT ON ROUTINE webhook.why_filtered IS 'Why a filter does not let an event pass, for webhook_why().';
COMMENT ON ROUTINE webhook.why_held_back IS 'The reasons that keep deliveries back, for webhook_why().';
COMMENT ON ROUTINE webhook.why_no_delivery IS
    'Endpoints that have no delivery of an event, for webhook_why().';
COMMENT ON ROUTINE webhook.why_no_event IS
    'The possible fates of an event that is not here, for webhook_why().';
COMMENT ON ROUTINE webhook.why_server IS 'Why nothing is delivered on this server, for webhook_why().';
COMMENT ON ROUTINE webhook.why_waiting IS 'The deliveries that wait for an endpoint, by reason, for webhook_why().';
COMMENT ON ROUTINE webhook.wire_time IS 'A time as the body of a request has it.';
COMMENT ON ROUTINE webhook.withdraw_grants IS 'Takes back the rights that would outlive the extension.';
COMMENT ON ROUTINE webhook.worker_report IS 'The last report of the worker of this database.';
COMMENT ON ROUTINE webhook.worker_state IS 'The state of the worker, and what to do about it.';
COMMENT ON ROUTINE webhook.within_byte_rooms IS 'The picked deliveries that fit into the bytes that each endpoint and all of them may have in flight.';
COMMENT ON ROUTINE webhook.write_installation IS 'Gives the installation an id.';
COMMENT ON TYPE webhook.judgement IS 'The meaning of the end of an attempt for its delivery: 40_judgement.sql.';
COMMENT ON TYPE webhook.outcome IS 'An attempt that has ended, with its judgement: 42_settle.sql.';
COMMENT ON DOMAIN webhook.type_beside_json IS 'For drivers that send json.';

COMMENT ON COLUMN webhook.policy.name IS 'Name that endpoints refer to.';
COMMENT ON COLUMN webhook.policy.max_attempts IS 'Attempts in all, the first included.';
COMMENT ON COLUMN webhook.policy.backoff IS 'How delays grow: exponential, fixed or schedule.';
COMMENT ON COLUMN webhook.policy.initial_delay IS 'Delay before the first retry, if exponential or fixed.';
COMMENT ON COLUMN webhook.policy.factor IS 'Factor from one delay to the next, if exponential.';
COMMENT ON COLUMN webhook.policy.max_delay IS 'Longest delay, also where the endpoint asks for more.';
COMMENT ON COLUMN webhook.policy.schedule IS 'Delays one by one, if schedule; the last one repeats.';
COMMENT ON COLUMN webhook.policy.jitter_down IS 'Fraction by which a delay may be shorter.';
COMMENT ON COLUMN webhook.policy.jitter_up IS 'Fraction by which a delay may be longer.';
COMMENT ON COLUMN webhook.policy.success_status IS 'HTTP statuses that are a success.';
COMMENT ON COLUMN webhook.policy.retry_status IS 'HTTP statuses that are retried.';
COMMENT ON COLUMN webhook.policy.disable_status IS 'HTTP statuses that disable the endpoint.';
COMMENT ON COLUMN webhook.policy.retry_errors IS 'Errors without an HTTP status that are retried.';
COMMENT ON COLUMN webhook.policy.retry_after IS
    'Whether Retry-After is ignored, exact or at least waited for.';
COMMENT ON COLUMN webhook.policy.timeout IS 'Time for an answer, from the established connection.';
COMMENT ON COLUMN webhook.policy.connect_timeout IS 'Time to connect.';
COMMENT ON COLUMN webhook.policy.failure_threshold IS
    'Failures in a row that open the circuit breaker; 0 never does.';
COMMENT ON COLUMN webhook.policy.warn_threshold IS 'Failures in a row that raise an alert; 0 never does.';
COMMENT ON COLUMN webhook.policy.cooldown IS 'Time from the opening of the breaker to its first probe.';
COMMENT ON COLUMN webhook.policy.max_cooldown IS 'Longest time to a probe; each one that fails doubles it.';
COMMENT ON COLUMN webhook.policy.breaker_counts IS 'Whether the breaker counts attempts or final failures.';
COMMENT ON COLUMN webhook.policy.on_trip IS
    'Whether the threshold opens the breaker or disables the endpoint.';
COMMENT ON COLUMN webhook.policy.when_open IS
    'The fate of deliveries while the breaker is open: hold, skip, fail or attempt.';
COMMENT ON COLUMN webhook.policy.on_exhausted IS
    'Whether a delivery without attempts left disables the endpoint.';
COMMENT ON COLUMN webhook.policy.on_blocked IS
    'Whether deliveries wait behind a dead letter of their ordering key.';
COMMENT ON COLUMN webhook.policy.hold_for IS
    'Longest time that a held delivery waits before it fails; null is for ever.';
COMMENT ON COLUMN webhook.policy.keep_sent IS 'Whether sent deliveries stay in the history.';
COMMENT ON COLUMN webhook.policy.preset IS
    'Whether the policy came with the extension; presets cannot be changed.';

COMMENT ON COLUMN webhook.endpoint.id IS 'Number of the endpoint.';
COMMENT ON COLUMN webhook.endpoint.tenant IS 'The tenant whose events it gets; null for events of all.';
COMMENT ON COLUMN webhook.endpoint.name IS 'Name of the endpoint, unique within its tenant.';
COMMENT ON COLUMN webhook.endpoint.url IS 'URL that requests go to.';
COMMENT ON COLUMN webhook.endpoint.event_types IS
    'Patterns of the types that it gets, such as order.*; !order.draft leaves out.';
COMMENT ON COLUMN webhook.endpoint.filter IS 'Condition on {"type", "data"} that an event must meet.';
COMMENT ON COLUMN webhook.endpoint.policy IS 'Name of its policy.';
COMMENT ON COLUMN webhook.endpoint.headers IS 'HTTP headers of every request.';
COMMENT ON COLUMN webhook.endpoint.format IS 'Body of requests: standard, raw, cloudevents or template.';
COMMENT ON COLUMN webhook.endpoint.template IS 'Body with {{placeholders}}, if the format is template.';
COMMENT ON COLUMN webhook.endpoint.max_in_flight IS 'Most requests at the same time; null for the default.';
COMMENT ON COLUMN webhook.endpoint.rate_limit IS 'Most requests in a second; null for no limit.';
COMMENT ON COLUMN webhook.endpoint.metadata IS 'Anything about the endpoint: its owner, a contact.';
COMMENT ON COLUMN webhook.endpoint.origin IS 'The installation that the endpoint belongs to.';
COMMENT ON COLUMN webhook.endpoint.paused_at IS 'Since when it is paused.';
COMMENT ON COLUMN webhook.endpoint.disabled_at IS 'Since when it is disabled.';
COMMENT ON COLUMN webhook.endpoint.disabled_reason IS 'Why it is disabled.';
COMMENT ON COLUMN webhook.endpoint.created_at IS 'When the row was made.';

COMMENT ON COLUMN webhook.removed_endpoint.id IS 'Number that the endpoint had.';
COMMENT ON COLUMN webhook.removed_endpoint.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.removed_endpoint.name IS 'Name that it had.';
COMMENT ON COLUMN webhook.removed_endpoint.pending IS 'The fate of its queued deliveries: cancel or fail.';
COMMENT ON COLUMN webhook.removed_endpoint.removed_at IS 'When it was removed.';
COMMENT ON COLUMN webhook.removed_endpoint.ended_at IS 'When the last of its deliveries ended.';

COMMENT ON COLUMN webhook.secret.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.secret.secret IS
    'Signing secret, whsec_ and base64; private key, whsk_ and base64; or secret of signatures in headers, hmac_ and the text.';
COMMENT ON COLUMN webhook.secret.created_at IS 'When the row was made.';
COMMENT ON COLUMN webhook.secret.expires_at IS 'Until when requests are signed with it; null is for ever.';

COMMENT ON COLUMN webhook.event.id IS
    'Id of the event, a UUID of version 7; receivers see it as webhook-id.';
COMMENT ON COLUMN webhook.event.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.event.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.event.payload IS 'The payload as it was emitted.';
COMMENT ON COLUMN webhook.event.idempotency_key IS 'Key that it was emitted with; null after webhook_redact().';
COMMENT ON COLUMN webhook.event.created_at IS 'When it was emitted.';
COMMENT ON COLUMN webhook.event.redacted_at IS 'When its payload was deleted.';
COMMENT ON COLUMN webhook.event.payload_bytes IS 'Size of the payload as JSON text.';

COMMENT ON COLUMN webhook.idempotency.tenant IS 'The tenant; empty for none.';
COMMENT ON COLUMN webhook.idempotency.key IS 'Hash of the key that stands for the event: webhook.key_hash().';
COMMENT ON COLUMN webhook.idempotency.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.idempotency.created_at IS 'When the event was emitted.';

COMMENT ON COLUMN webhook.delivery.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.delivery.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.delivery.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.delivery.status IS 'PENDING, SENDING, SENT, FAILED or CANCELLED.';
COMMENT ON COLUMN webhook.delivery.attempts IS 'Attempts so far.';
COMMENT ON COLUMN webhook.delivery.max_attempts IS 'Most attempts, as the policy had it at the emission.';
COMMENT ON COLUMN webhook.delivery.next_attempt_at IS 'When the next attempt is due.';
COMMENT ON COLUMN webhook.delivery.wait_reason IS
    'The delivery''s own reason to wait: new, retry, replayed, scheduled or parked.';
COMMENT ON COLUMN webhook.delivery.waits_for IS 'The event whose turn it is by the ordering key.';
COMMENT ON COLUMN webhook.delivery.expires_at IS 'When the delivery fails if it was not sent.';
COMMENT ON COLUMN webhook.delivery.ordering_key IS
    'Deliveries with the same key are sent one after the other.';
COMMENT ON COLUMN webhook.delivery.coalesce_key IS
    'Of deliveries with the same key only the newest is sent.';
COMMENT ON COLUMN webhook.delivery.claim_seq IS 'Number of the claim; it only grows.';
COMMENT ON COLUMN webhook.delivery.claimed_at IS 'When the sender claimed it; null unless SENDING.';
COMMENT ON COLUMN webhook.delivery.claimed_by IS 'The sender that claimed it; null unless SENDING.';
COMMENT ON COLUMN webhook.delivery.last_attempt_at IS 'When the last attempt ended.';
COMMENT ON COLUMN webhook.delivery.last_status_code IS 'HTTP status of the last answer.';
COMMENT ON COLUMN webhook.delivery.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.delivery.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.delivery.duration_ms IS 'Duration of the last attempt, in ms.';
COMMENT ON COLUMN webhook.delivery.created_at IS 'When the event was emitted.';
COMMENT ON COLUMN webhook.delivery.completed_at IS 'When the delivery ended.';
COMMENT ON COLUMN webhook.delivery.payload_bytes IS 'Size of the payload as JSON text, as far as it is known here.';

COMMENT ON COLUMN webhook.attempt.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.attempt.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.attempt.claim_seq IS 'Number of the claim; it only grows.';
COMMENT ON COLUMN webhook.attempt.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN webhook.attempt.verdict IS 'The meaning of the outcome under the policy.';
COMMENT ON COLUMN webhook.attempt.status_code IS 'HTTP status of the answer.';
COMMENT ON COLUMN webhook.attempt.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.attempt.error IS 'The error, as a sentence.';
COMMENT ON COLUMN webhook.attempt.response_excerpt IS 'Beginning of the answer.';
COMMENT ON COLUMN webhook.attempt.duration_ms IS 'Duration of the attempt, in ms.';
COMMENT ON COLUMN webhook.attempt.finished_at IS 'When the attempt ended.';

COMMENT ON COLUMN webhook.breaker.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.breaker.state IS 'CLOSED, OPEN or HALF_OPEN.';
COMMENT ON COLUMN webhook.breaker.consecutive_failures IS 'Failures in a row.';
COMMENT ON COLUMN webhook.breaker.last_failure_at IS 'When it failed last.';
COMMENT ON COLUMN webhook.breaker.reason IS 'Why it opened.';
COMMENT ON COLUMN webhook.breaker.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.breaker.opened_at IS 'Since when it is not closed.';
COMMENT ON COLUMN webhook.breaker.trips IS 'How often it has opened since it was closed.';
COMMENT ON COLUMN webhook.breaker.probe_at IS
    'OPEN: when the next probe is due; HALF_OPEN: when the probe is given up.';
COMMENT ON COLUMN webhook.breaker.probe_event_id IS 'The event that is the probe.';
COMMENT ON COLUMN webhook.breaker.probe_claim_seq IS 'The claim that is the probe.';
COMMENT ON COLUMN webhook.breaker.retries_before IS 'Retries of attempts before this time are due at once.';
COMMENT ON COLUMN webhook.breaker.test_event_id IS 'The event of webhook_test(), sent whatever the state.';

COMMENT ON COLUMN webhook.alert.id IS 'Number of the alert.';
COMMENT ON COLUMN webhook.alert.endpoint_id IS 'The id of the endpoint; 0 where it is about a metric.';
COMMENT ON COLUMN webhook.alert.kind IS 'The change that it tells of: degraded, opened, closed, disabled, failed, raised or cleared.';
COMMENT ON COLUMN webhook.alert.reason IS 'Why it happened: a code of webhook.code.';
COMMENT ON COLUMN webhook.alert.error IS 'The error, as a sentence.';
COMMENT ON COLUMN webhook.alert.is_own IS
    'Whether an event of the extension is the cause; then it raises no other event.';
COMMENT ON COLUMN webhook.alert.deliveries IS 'Deliveries that failed.';
COMMENT ON COLUMN webhook.alert.event_ids IS 'Some of their events.';
COMMENT ON COLUMN webhook.alert.raised_at IS 'When it happened.';
COMMENT ON COLUMN webhook.alert.metric IS 'Name of the metric, where it is about one.';

COMMENT ON COLUMN webhook.stat.endpoint_id IS 'The id of the endpoint; 0 for all.';
COMMENT ON COLUMN webhook.stat.grain IS 'total, hour or minute.';
COMMENT ON COLUMN webhook.stat.begins_at IS 'When the hour or minute begins; -infinity of the total.';
COMMENT ON COLUMN webhook.stat.attempts IS 'Attempts that ended; those that failed are attempts - sent.';
COMMENT ON COLUMN webhook.stat.sent IS 'Deliveries that were SENT.';
COMMENT ON COLUMN webhook.stat.failed IS 'Deliveries that FAILED.';
COMMENT ON COLUMN webhook.stat.retried IS 'Deliveries among sent and failed that needed a retry.';
COMMENT ON COLUMN webhook.stat.retries IS 'Retries of all of them.';
COMMENT ON COLUMN webhook.stat.attempt_latency IS
    'Histogram of the duration of attempts: classes, eight to a doubling of milliseconds, and numbers.';
COMMENT ON COLUMN webhook.stat.delivery_latency IS 'Histogram of the time from emit to success, in the same classes.';
COMMENT ON COLUMN webhook.stat.last_sent_at IS 'When a delivery that was SENT was counted last.';

COMMENT ON COLUMN webhook.alarm.metric IS 'Name of the metric.';
COMMENT ON COLUMN webhook.alarm.raised_at IS 'Since when it is beyond its threshold.';

COMMENT ON COLUMN webhook.sender.id IS 'Number of the run, under which it claims.';
COMMENT ON COLUMN webhook.sender.kind IS 'worker, of the server; or relay.';
COMMENT ON COLUMN webhook.sender.pid IS 'The backend of its session.';
COMMENT ON COLUMN webhook.sender.role IS 'The login role of the session.';
COMMENT ON COLUMN webhook.sender.host IS 'Where a relay runs.';
COMMENT ON COLUMN webhook.sender.version IS 'Its version.';
COMMENT ON COLUMN webhook.sender.begun_at IS 'When the run began.';
COMMENT ON COLUMN webhook.sender.in_flight IS 'Requests in flight, by the last report of a relay.';
COMMENT ON COLUMN webhook.sender.lost_at IS 'When another sender noticed that its session has ended.';
COMMENT ON COLUMN webhook.share.number IS 'The remainder of the ids of its endpoints.';
COMMENT ON COLUMN webhook.share.total IS 'The number of shares when it was taken.';
COMMENT ON COLUMN webhook.share.sender_id IS 'The sender that serves it.';

COMMENT ON COLUMN webhook.lane.endpoint_id IS 'The id of the endpoint.';
COMMENT ON COLUMN webhook.lane.ordering_key IS 'The ordering key.';
COMMENT ON COLUMN webhook.lane.event_id IS 'The event whose turn it is.';

COMMENT ON COLUMN webhook.code.kind IS 'Where the code stands: verdict, reason or endpoint_reason.';
COMMENT ON COLUMN webhook.code.code IS 'The code.';
COMMENT ON COLUMN webhook.code.meaning IS 'Its meaning.';

COMMENT ON COLUMN webhook.metrics.metric IS 'Name of the figure.';
COMMENT ON COLUMN webhook.metrics.value IS 'The figure.';
COMMENT ON COLUMN webhook.metrics.unit IS 'Its unit.';
COMMENT ON COLUMN webhook.metrics.alert_when IS 'Whether to alert below (<) or above (>) the threshold.';
COMMENT ON COLUMN webhook.metrics.alert_threshold IS 'The threshold.';
COMMENT ON COLUMN webhook.metrics.alert IS 'Whether the figure is beyond the threshold.';
COMMENT ON COLUMN webhook.metrics.meaning IS 'The meaning of the figure.';

COMMENT ON COLUMN webhook.failed.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.failed.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.failed.endpoint IS 'The address of the endpoint: its name, or tenant/name.';
COMMENT ON COLUMN webhook.failed.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.failed.created_at IS 'When the event was emitted.';
COMMENT ON COLUMN webhook.failed.failed_at IS 'When the delivery failed.';
COMMENT ON COLUMN webhook.failed.attempts IS 'Attempts that were made.';
COMMENT ON COLUMN webhook.failed.verdict IS 'The meaning of the last outcome under the policy.';
COMMENT ON COLUMN webhook.failed.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.failed.last_status_code IS 'HTTP status of the last answer.';
COMMENT ON COLUMN webhook.failed.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.failed.last_answer IS 'Beginning of the last answer.';
COMMENT ON COLUMN webhook.failed.payload IS 'The payload as it was emitted.';

COMMENT ON COLUMN webhook.endpoint_status.endpoint IS 'Address of the endpoint: its name, or tenant/name.';
COMMENT ON COLUMN webhook.endpoint_status.state IS
    'ACTIVE, DEGRADED, OPEN, HALF_OPEN, PAUSED, DISABLED or HELD.';
COMMENT ON COLUMN webhook.endpoint_status.reason IS 'Why it is in that state.';
COMMENT ON COLUMN webhook.endpoint_status.since IS 'Since when.';
COMMENT ON COLUMN webhook.endpoint_status.queued IS 'Deliveries in the queue.';
COMMENT ON COLUMN webhook.endpoint_status.queued_bytes IS 'Bytes of the payloads of the counted deliveries, about.';
COMMENT ON COLUMN webhook.endpoint_status.in_flight IS 'Deliveries that are SENDING.';
COMMENT ON COLUMN webhook.endpoint_status.kept_back IS 'Deliveries that are due and that the endpoint keeps back.';
COMMENT ON COLUMN webhook.endpoint_status.failed IS 'Dead letters.';
COMMENT ON COLUMN webhook.endpoint_status.more IS 'Whether a count has stopped at its limit.';
COMMENT ON COLUMN webhook.endpoint_status.consecutive_failures IS 'Failures in a row.';
COMMENT ON COLUMN webhook.endpoint_status.trips IS 'How often the breaker has opened since it was closed.';
COMMENT ON COLUMN webhook.endpoint_status.next_probe_at IS 'When the next probe is due.';
COMMENT ON COLUMN webhook.endpoint_status.last_success_at IS 'When a delivery succeeded last.';
COMMENT ON COLUMN webhook.endpoint_status.last_failure_at IS 'When an attempt failed last.';
COMMENT ON COLUMN webhook.endpoint_status.last_error IS 'The last error, as a sentence.';
COMMENT ON COLUMN webhook.endpoint_status.policy IS 'Name of its policy.';
COMMENT ON COLUMN webhook.endpoint_status.tenant IS 'The tenant; null for none.';
COMMENT ON COLUMN webhook.endpoint_status.created_at IS 'When it was made.';
COMMENT ON COLUMN webhook.endpoint_status.event_types IS 'Patterns of the types that it gets.';
COMMENT ON COLUMN webhook.endpoint_status.filter IS 'Condition that an event must meet.';
COMMENT ON COLUMN webhook.endpoint_status.format IS 'Body of requests.';
COMMENT ON COLUMN webhook.endpoint_status.url IS 'URL without its path.';
COMMENT ON COLUMN webhook.endpoint_status.headers IS 'Names of its headers.';
COMMENT ON COLUMN webhook.endpoint_status.metadata IS 'Anything about the endpoint.';
COMMENT ON COLUMN webhook.endpoint_status.endpoint_id IS 'Its id, by which webhook.stat has its figures.';

COMMENT ON COLUMN webhook.waiting.endpoint IS 'Address of the endpoint: its name, or tenant/name.';
COMMENT ON COLUMN webhook.waiting.event_type IS 'The type of the event.';
COMMENT ON COLUMN webhook.waiting.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook.waiting.why IS 'Why the delivery waits, in a word.';
COMMENT ON COLUMN webhook.waiting.next_attempt_at IS 'When the next attempt is due.';
COMMENT ON COLUMN webhook.waiting.reason IS 'The reason code of what happened last.';
COMMENT ON COLUMN webhook.waiting.last_error IS 'The last error, as a sentence.';

-- A partition has the columns of its parent.
DO $$
DECLARE
    entry record;
BEGIN
    FOR entry IN
        SELECT i.inhrelid::regclass AS leaf, a.attname, col_description(a.attrelid, a.attnum) AS comment
        FROM pg_inherits i JOIN pg_attribute a ON a.attrelid = i.inhparent
        JOIN pg_class c ON c.oid = i.inhrelid
        WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p')
          AND a.attnum > 0 AND NOT a.attisdropped
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', entry.leaf, entry.attname, entry.comment);
    END LOOP;
END $$;
