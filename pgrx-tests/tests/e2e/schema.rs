//! The promises of the schema to administrators, backups and the queue's speed.

use webhook_e2e::{Cluster, Database};

fn database() -> Database {
    Cluster::shared().database("schema")
}

/// The query returns a name and whether all is well with it.
#[track_caller]
fn assert_each(sql: &str) {
    let rows = database().connect().query(sql, &[]).unwrap();
    assert!(!rows.is_empty(), "there is nothing to look at: {sql}");
    let wrong: Vec<String> = (rows.iter().filter(|row| !row.get::<_, bool>(1)))
        .map(|row| row.get(0))
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn nothing_is_granted_to_public() {
    assert_each(
        "WITH member AS (
             SELECT d.classid, d.objid FROM pg_depend d
             JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid
             WHERE x.extname = 'webhook' AND d.deptype = 'e'
         ), object (name, acl) AS (
             SELECT 'schema ' || n.nspname, coalesce(n.nspacl, acldefault('n', n.nspowner))
             FROM member m JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
             UNION ALL
             SELECT c.oid::regclass::text,
                    coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", c.relowner))
             FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
             UNION ALL
             SELECT p.oid::regprocedure::text, coalesce(p.proacl, acldefault('f', p.proowner))
             FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
         )
         SELECT o.name, NOT EXISTS (SELECT FROM aclexplode(o.acl) a WHERE a.grantee = 0) FROM object o",
    );
}

#[test]
fn every_leaf_and_sequence_is_marked_for_dump() {
    // A mark on the partitioned parent would dump nothing. Alerts and alarms are not dumped: a copy would tell them
    // again. Senders that run mean nothing to a copy.
    assert_each(
        "SELECT c.oid::regclass::text, (c.relkind <> 'p' AND c.relname !~ '^(alert|alarm|sender$|share)') = (c.oid = ANY (x.extconfig))
         FROM pg_class c, pg_extension x
         WHERE x.extname = 'webhook' AND c.relnamespace = 'webhook'::regnamespace AND c.relkind IN ('r', 'p', 'S')",
    );
}

#[test]
fn every_table_has_a_primary_key() {
    assert_each(
        "SELECT c.oid::regclass::text,
                EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p')
         FROM pg_class c WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind = 'r'",
    );
}

#[test]
fn there_are_no_foreign_keys() {
    assert_each(
        "SELECT k.conrelid::regclass || ' ' || k.conname, k.contype <> 'f'
         FROM pg_constraint k WHERE k.connamespace = 'webhook'::regnamespace",
    );
}

#[test]
fn no_index_of_the_queue_knows_the_status() {
    assert_each(
        r"SELECT pg_get_indexdef(i.indexrelid), pg_get_indexdef(i.indexrelid) !~ '\mstatus\M'
          FROM pg_index i WHERE i.indrelid = 'webhook.delivery_queue'::regclass",
    );
}

#[test]
fn no_index_depends_on_the_collation_of_the_operating_system() {
    assert_each(
        r#"SELECT pg_get_indexdef(i.indexrelid), 0 = ALL (ARRAY(
               SELECT count(*) FROM unnest(i.indcollation::oid[]) AS used (id) WHERE used.id NOT IN (0, '"C"'::regcollation)))
           FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'webhook'::regnamespace"#,
    );
}

#[test]
fn every_table_that_grows_says_when_it_is_vacuumed() {
    // The others have a row for each endpoint, policy or metric, written seldom.
    assert_each(
        "SELECT c.oid::regclass::text,
                EXISTS (SELECT FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_vacuum_scale_factor')
         FROM pg_class c
         WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind = 'r'
           AND c.relname NOT IN ('policy', 'endpoint', 'removed_endpoint', 'secret', 'sender', 'share', 'alarm')",
    );
}

#[test]
fn what_waits_in_its_schema_to_be_taken_for_a_function_or_operator_of_the_system_is_not() {
    let database = Cluster::shared().plain_database("trojans");
    // Each fits the arguments of the script better than the polymorphic function of the system.
    database.execute(
        "CREATE FUNCTION public.cardinality(interval[]) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
         CREATE FUNCTION public.contained(text[], text[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
         CREATE OPERATOR public.<@ (FUNCTION = public.contained, LEFTARG = text[], RIGHTARG = text[])",
    );
    database.create_extension();
    let bound: Vec<String> = database.query_one_value(
        "SELECT coalesce(array_agg(pg_describe_object(classid, objid, objsubid)), '{}') FROM pg_depend
         WHERE (refclassid, refobjid) IN (('pg_proc'::regclass, 'public.cardinality(interval[])'::regprocedure),
                                          ('pg_operator'::regclass, 'public.<@(text[], text[])'::regoperator))",
    );
    assert_eq!(bound, Vec::<String>::new());
}

#[test]
fn every_function_has_a_fixed_search_path_or_a_parsed_body() {
    // A procedure that commits cannot have one, webhook.emit() and its CHECK would cost more, and webhook.watch()
    // finds the names in a condition as its caller does; they name everything in full, which lint reads. An aggregate
    // has no body.
    assert_each(
        "SELECT p.oid::regprocedure::text,
                coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) OR p.prosqlbody IS NOT NULL OR l.lanname = 'c'
                OR p.prokind IN ('a', 'p') OR p.proname IN ('emit', 'may_be_queued', 'watch')
         FROM pg_proc p
         JOIN pg_language l ON l.oid = p.prolang
         JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
         JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid
         WHERE x.extname = 'webhook'",
    );
}

/// standard_conforming_strings is anybody's to set: with it off a backslash means something else.
#[test]
fn no_string_of_a_function_depends_on_the_setting_for_backslashes() {
    let database = Cluster::shared().plain_database("backslashes");
    database.execute(&format!(
        "ALTER DATABASE {} SET standard_conforming_strings = off",
        database.name()
    ));
    database.execute("CREATE EXTENSION webhook");
    let url = "SELECT webhook.masked_url('https://example.com/hooks')";
    assert_eq!(
        database.query_one_value::<String>(url),
        "https://example.com/***"
    );
    // Without its E-strings and comments no body has a backslash.
    assert_each(
        r"SELECT p.oid::regprocedure::text,
                 regexp_replace(p.prosrc, 'E''([^''\\]|\\.|'''')*''|--[^\n]*', '', 'g') !~ '\\'
          FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
          WHERE p.pronamespace = 'webhook'::regnamespace AND l.lanname = 'plpgsql'",
    );
}

#[test]
fn security_definer_functions_are_only_those_we_know() {
    let names: Vec<String> = database().query_one_value(
        "SELECT array_agg(n.nspname || '.' || p.proname ORDER BY n.nspname, p.proname)
         FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE p.prosecdef AND (n.nspname = 'webhook' OR p.proname LIKE 'webhook%')",
    );
    assert_eq!(
        names,
        [
            // Functions that people call, parts of the procedures of operators, calls of relays, and triggers, which
            // have to work for every role that may write the table.
            "webhook.add_figures",
            "webhook.adopt",
            "webhook.agenda",
            "webhook.backfill_batch",
            "webhook.begin_backfill",
            "webhook.begin_replay",
            "webhook.begin_sender",
            "webhook.check_endpoint",
            "webhook.check_metrics",
            "webhook.check_secret",
            "webhook.copy_policy",
            "webhook.dead_senders",
            "webhook.discard_event",
            "webhook.due",
            "webhook.emit",
            "webhook.emit_many",
            "webhook.emit_many",
            "webhook.end_orphans",
            "webhook.end_senders",
            "webhook.end_test",
            "webhook.exchange",
            "webhook.expire",
            "webhook.expire_figures",
            "webhook.expire_waiting",
            "webhook.forget_removed_endpoint",
            "webhook.forget_removed_endpoints",
            "webhook.keep_order",
            "webhook.manual_update",
            "webhook.newest_hmac_secret",
            "webhook.newest_public_key",
            "webhook.newest_secret",
            "webhook.own_origin",
            "webhook.pass_turn",
            "webhook.pause",
            "webhook.preview",
            "webhook.protect_policy",
            "webhook.queue_test",
            "webhook.raise_alerts",
            "webhook.recover",
            "webhook.redact_event",
            "webhook.refuse_update_of_leaf",
            "webhook.release_shares",
            "webhook.remember_removed_endpoint",
            "webhook.remove_endpoint",
            "webhook.replay_batch",
            "webhook.replay_event",
            "webhook.reset_breaker",
            "webhook.resume",
            "webhook.rotate_hmac_secret",
            "webhook.rotate_key",
            "webhook.rotate_secret",
            "webhook.routes_changed",
            "webhook.sender_settings",
            "webhook.set_endpoint",
            "webhook.status",
            "webhook.survey",
            "webhook.take_shares",
            "webhook.turn_away",
            "webhook.wake_for_endpoint",
            "webhook.wake_worker",
            "webhook.why",
        ]
    );
}

#[test]
fn impossible_states_are_refused() {
    const CLAIMED: &str = "claimed_by = 1, claimed_at = now()";
    const FINISHED: &str = "completed_at = now()";
    let cases = [
        ("pending_or_claimed", "PENDING", "attempts = -1"),
        ("pending_or_claimed", "PENDING", "attempts = 3"),
        ("pending_or_claimed", "PENDING", CLAIMED),
        ("pending_or_claimed", "PENDING", FINISHED),
        ("pending_or_claimed", "SENDING", "attempts = 1"),
        (
            "pending_or_claimed",
            "SENDING",
            "attempts = 1, claimed_by = 1",
        ),
        (
            "pending_or_claimed",
            "SENDING",
            "attempts = 1, claimed_at = now()",
        ),
        (
            "pending_or_claimed",
            "SENDING",
            "attempts = 0, claimed_by = 1, claimed_at = now()",
        ),
        (
            "pending_or_claimed",
            "SENDING",
            "attempts = 4, claimed_by = 1, claimed_at = now()",
        ),
        ("pending_or_claimed", "PENDING", "claimed_at = now()"),
        ("pending_or_claimed", "PENDING", "wait_reason = 'bored'"),
        (
            "pending_or_claimed",
            "PENDING",
            "next_attempt_at = 'infinity'",
        ),
        (
            "pending_or_claimed",
            "PENDING",
            "next_attempt_at = '-infinity'",
        ),
        ("finished", "SENT", "attempts = 1"),
        ("finished", "SENT", "attempts = 4, completed_at = now()"),
        ("finished", "SENT", "attempts = -1, completed_at = now()"),
        ("finished", "SENT", "completed_at = now(), claimed_by = 1"),
        (
            "finished",
            "SENT",
            "completed_at = now(), claimed_at = now()",
        ),
        ("finished", "CANCELLED", "attempts = 0"),
        ("failed_with_an_error", "FAILED", "completed_at = now()"),
        (
            "failed_with_an_error",
            "FAILED",
            "completed_at = now(), last_error = 'HTTP 500'",
        ),
        (
            "failed_with_an_error",
            "FAILED",
            "reason = 'status', last_error = 'HTTP 500'",
        ),
        (
            "failed_with_an_error",
            "FAILED",
            "attempts = 4, completed_at = now(), reason = 'status', last_error = 'HTTP 500'",
        ),
        (
            "failed_with_an_error",
            "FAILED",
            "completed_at = now(), reason = 'status', last_error = 'HTTP 500', claimed_by = 1",
        ),
    ];
    let database = database();
    for (constraint, status, settings) in cases {
        let refusal = database.refusal(&insert(status, settings));
        let case = format!("{status} with {settings}");
        assert_eq!(refusal.constraint(), Some(constraint), "{case}");
    }
    let refusal = database.refusal(&insert("LOST", FINISHED));
    assert_eq!(refusal.code().code(), "23514");

    // Each of them is possible with the value that it lacked.
    database.execute(&insert("PENDING", "attempts = 2"));
    database.execute(&insert("SENDING", &format!("attempts = 3, {CLAIMED}")));
    database.execute(&insert("SENT", FINISHED));
    database.execute(&insert("CANCELLED", FINISHED));
    database.execute(&insert(
        "FAILED",
        &format!("reason = 'status', last_error = 'HTTP 500', {FINISHED}"),
    ));
}

/// A delivery of three attempts; `settings` is written as in an UPDATE.
fn insert(status: &str, settings: &str) -> String {
    let (columns, values): (Vec<&str>, Vec<&str>) = (settings.split(", "))
        .filter_map(|setting| setting.split_once(" = "))
        .unzip();
    format!(
        "INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, max_attempts, status, {})
         VALUES (gen_random_uuid(), 1, 'order.created', 3, '{status}', {})",
        columns.join(", "),
        values.join(", ")
    )
}
