//! The rights of each level, and that nobody gets further by a trick.

use std::sync::{Arc, Mutex};

use serde_json::json;
use webhook_e2e::database::refusal;
use webhook_e2e::{Answer, Cluster, Database, Receiver, worker};

const LEVELS: [&str; 5] = ["emit", "read", "operate", "admin", "relay"];
const NOBODY: &[&str] = &[];
const EMIT: &[&str] = &["emit", "admin"];
const READ: &[&str] = &["read", "operate", "admin"];
const OPERATE: &[&str] = &["operate", "admin"];
const ADMIN: &[&str] = &["admin"];
const RELAY: &[&str] = &["relay", "admin"];

/// A database with an endpoint, one role for each level, and the event of a dead letter.
struct Stage {
    database: Database,
    event: uuid::Uuid,
    _receiver: Receiver,
}

impl Stage {
    fn set() -> Stage {
        let database = Cluster::shared().database("privileges");
        let receiver = Receiver::start();
        receiver.respond("/orders", |_, _| Answer::status(400));
        database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'fast'");
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "FAILED");
        let stage = Stage {
            database,
            event,
            _receiver: receiver,
        };
        for level in LEVELS {
            let role = stage.role(level);
            stage.database.execute(&format!(
                "CREATE ROLE {role}; SELECT webhook_grant('{role}', '{level}')"
            ));
        }
        stage
            .database
            .execute(&format!("CREATE ROLE {}", stage.role("no")));
        stage
    }

    fn role(&self, level: &str) -> String {
        format!("{}_{level}", self.database.name())
    }

    /// Whether the role of that level may run it; it is rolled back. Only a lack of privilege counts as a no.
    fn may(&self, level: &str, sql: &str) -> bool {
        let role = self.role(level);
        let result = self
            .database
            .connect()
            .batch_execute(&format!("BEGIN; SET LOCAL ROLE {role}; {sql}; ROLLBACK"));
        match result {
            Ok(()) => true,
            Err(error) if error.code().is_some_and(|code| code.code() == "42501") => false,
            Err(error) => panic!("{level}: {sql}: {error:?}"),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for level in LEVELS.into_iter().chain(["no"]) {
            let role = self.role(level);
            let _ = (self.database.connect())
                .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        }
    }
}

#[test]
fn each_level_may_do_what_the_table_says_and_nothing_else() {
    let stage = Stage::set();
    let event = stage.event;
    let of_event = format!("WHERE event_id = '{event}'");
    let cases = [
        (EMIT, "SELECT webhook_emit('order.created')".to_owned()),
        (EMIT, "SELECT webhook_emit_many('order.created', '{}')".into()),
        (READ, "SELECT * FROM webhook_status()".into()),
        (READ, format!("SELECT webhook_why('{event}')")),
        (READ, "SELECT payload FROM webhook.event".into()),
        (READ, "SELECT * FROM webhook.delivery".into()),
        (READ, "SELECT * FROM webhook.dead_letter".into()),
        (READ, "SELECT * FROM webhook.attempt".into()),
        (READ, "SELECT * FROM webhook.failed".into()),
        (READ, "SELECT * FROM webhook.metrics".into()),
        (READ, "SELECT * FROM webhook.endpoint_status".into()),
        (READ, "SELECT * FROM webhook.waiting".into()),
        (READ, "SELECT * FROM webhook.policy".into()),
        (READ, "SELECT * FROM webhook.breaker".into()),
        (READ, "SELECT id, name, tenant, event_types, policy, paused_at FROM webhook.endpoint".into()),
        (OPERATE, format!("UPDATE webhook.delivery SET status = 'PENDING' {of_event}")),
        (OPERATE, format!("UPDATE webhook.delivery SET status = 'PENDING', attempts = 1, next_attempt_at = 'infinity', last_error = NULL {of_event}")),
        (OPERATE, "SELECT webhook_pause('orders')".into()),
        (OPERATE, "SELECT webhook_pause('*'), webhook_resume('*')".into()),
        (OPERATE, "SELECT webhook_resume('orders')".into()),
        (OPERATE, "SELECT webhook_reset_breaker('orders')".into()),
        (OPERATE, format!("SELECT webhook_replay('{event}')")),
        (OPERATE, format!("SELECT webhook_discard('{event}')")),
        (OPERATE, format!("DELETE FROM webhook.dead_letter {of_event}")),
        (OPERATE, format!("SELECT webhook_redact('{event}')")),
        (EMIT, "CREATE TEMPORARY TABLE orders (); SELECT webhook_watch('orders', 'order'); SELECT webhook_unwatch('orders')".into()),
        (ADMIN, "SELECT url FROM webhook.endpoint".into()),
        (ADMIN, "SELECT headers FROM webhook.endpoint".into()),
        (ADMIN, "SELECT template FROM webhook.endpoint".into()),
        (ADMIN, "SELECT * FROM webhook.endpoint".into()),
        (ADMIN, "SELECT * FROM webhook.secret".into()),
        (ADMIN, "SELECT webhook_secret('orders')".into()),
        (ADMIN, "SELECT webhook_rotate_secret('orders')".into()),
        (ADMIN, "SELECT webhook_rotate_key('orders')".into()),
        (ADMIN, "SELECT webhook_hmac_secret('orders')".into()),
        (ADMIN, "SELECT webhook_rotate_hmac_secret('orders')".into()),
        (READ, "SELECT webhook_public_key('orders')".into()),
        (ADMIN, format!("SELECT * FROM webhook_preview('{event}', 'orders')")),
        (ADMIN, "SELECT webhook_set_endpoint('more', 'http://127.0.0.1:9/')".into()),
        (ADMIN, "SELECT webhook_set_endpoint('orders', policy => 'patient')".into()),
        (ADMIN, "SELECT webhook_remove_endpoint('orders')".into()),
        (ADMIN, "UPDATE webhook.endpoint SET url = 'http://127.0.0.1:9/'".into()),
        (ADMIN, "SELECT webhook_copy_policy('standard', 'mine')".into()),
        (ADMIN, "UPDATE webhook.policy SET max_attempts = 7 WHERE NOT preset".into()),
        (ADMIN, "SELECT webhook_adopt()".into()),
        (ADMIN, "INSERT INTO webhook.policy (name) VALUES ('mine'); DELETE FROM webhook.policy WHERE name = 'mine'".into()),
        (ADMIN, "SELECT webhook.backoff_delay('standard', 1, NULL), webhook.verdict(p, 200, NULL) FROM webhook.policy p".into()),
        (ADMIN, "UPDATE webhook.endpoint SET tenant = 'acme', name = 'new', event_types = '{a.*}', filter = NULL, policy = 'fast', headers = '{}',
                 format = 'raw', template = NULL, max_in_flight = 1, rate_limit = 1, metadata = '{}', paused_at = now(), disabled_at = NULL,
                 disabled_reason = NULL".into()),
        (ADMIN, "DELETE FROM webhook.endpoint".into()),
        (ADMIN, "UPDATE webhook.secret SET expires_at = now()".into()),
        (ADMIN, "DELETE FROM webhook.secret".into()),
        (ADMIN, "SELECT last_value FROM webhook.sender_id_seq".into()),
        // What senders and functions write, and the functions that they call.
        (NOBODY, "INSERT INTO webhook.endpoint (name, url) VALUES ('more', 'http://127.0.0.1:9/')".into()),
        (NOBODY, "UPDATE webhook.endpoint SET origin = ''".into()),
        (NOBODY, "UPDATE webhook.endpoint SET id = 7".into()),
        (NOBODY, "INSERT INTO webhook.secret VALUES (1, webhook.new_secret())".into()),
        (NOBODY, "UPDATE webhook.secret SET secret = ''".into()),
        (NOBODY, "INSERT INTO webhook.event (id, event_type, payload, created_at) VALUES (gen_random_uuid(), 'a', '{}', now())".into()),
        (NOBODY, "UPDATE webhook.event SET payload = '{}'".into()),
        (NOBODY, "DELETE FROM webhook.event".into()),
        (NOBODY, "DELETE FROM webhook.delivery".into()),
        (NOBODY, "DELETE FROM webhook.delivery_queue".into()),
        (NOBODY, "DELETE FROM webhook.delivery_history".into()),
        (NOBODY, "UPDATE webhook.delivery SET max_attempts = 7".into()),
        (NOBODY, "DELETE FROM webhook.attempt".into()),
        (NOBODY, "DELETE FROM webhook.idempotency".into()),
        (NOBODY, "UPDATE webhook.breaker SET state = 'CLOSED'".into()),
        (NOBODY, "DELETE FROM webhook.stat".into()),
        (NOBODY, "DELETE FROM webhook.sender".into()),
        (NOBODY, "DELETE FROM webhook.share".into()),
        (NOBODY, "SELECT nextval('webhook.sender_id_seq')".into()),
        (NOBODY, "SELECT webhook.wake()".into()),
        (NOBODY, "SELECT webhook.routes('{1}')".into()),
        (NOBODY, "SELECT webhook.first_secret(1)".into()),
        (NOBODY, "SELECT webhook.count_figures('[]')".into()),
        (NOBODY, "SELECT webhook.forget('{}', '{}', now())".into()),
        (NOBODY, "SELECT webhook.fail_queued('{}', '{}', 'expired')".into()),
        (NOBODY, "SELECT webhook.grant_level('postgres', 'admin')".into()),
        // Calls of a sender.
        (RELAY, "SELECT webhook.protocol(), webhook.survey(), webhook.sender_settings()".into()),
        (RELAY, "SELECT webhook.take_shares(webhook.begin_sender('relay', NULL, NULL), 0)".into()),
        (RELAY, "SELECT webhook.dead_senders(), webhook.release_shares(0, '{0}'), webhook.end_senders('{0}')".into()),
        (RELAY, "SELECT webhook.agenda(0, 10), webhook.due('{1}'), webhook.turn_away('{}', 10), webhook.recover(0, '{}', '{}')".into()),
        (RELAY, "SELECT webhook.exchange('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{1}', '{0}', 1, '{1}', '{1000}', 1000)".into()),
        (RELAY, "SELECT webhook.keep_order(NULL, NULL, NULL, NULL, NULL, 10), webhook.end_orphans(0, 10)".into()),
        (RELAY, "SELECT webhook.expire_waiting(10), webhook.expire(10, NULL, NULL, NULL, NULL)".into()),
        (RELAY, "SELECT webhook.expire_figures(0, 10), webhook.forget_removed_endpoints(0, 10)".into()),
        (RELAY, "SELECT webhook.check_metrics(), webhook.raise_alerts(), webhook.add_figures('[]')".into()),
        // Only the owner may call functions that run as the worker, or give privileges away.
        (NOBODY, "CREATE TRIGGER mine AFTER INSERT ON webhook.attempt EXECUTE FUNCTION suppress_redundant_updates_trigger()".into()),
        (NOBODY, "CREATE TABLE webhook.mine ()".into()),
        (NOBODY, "TRUNCATE webhook.event".into()),
        (NOBODY, format!("SELECT webhook_grant('{}', 'admin')", stage.role("no"))),
        (NOBODY, format!("SELECT webhook_revoke('{}', 'admin')", stage.role("no"))),
        (NOBODY, "SET LOCAL webhook.max_payload = '1GB'".into()),
    ];
    for (allowed, sql) in cases {
        for level in LEVELS {
            assert_eq!(
                stage.may(level, &sql),
                allowed.contains(&level),
                "{level}: {sql}"
            );
        }
        assert!(!stage.may("no", &sql), "without a level: {sql}");
    }
}

#[test]
fn an_operator_changes_nothing_of_a_delivery_but_when_and_whether_it_is_sent() {
    let stage = Stage::set();
    let mut columns = stage.database.connect();
    let columns = columns
        .query(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = 'webhook.delivery'::regclass AND attnum > 0",
            &[],
        )
        .unwrap();
    let may_update: Vec<String> = (columns.iter().map(|row| row.get::<_, String>(0)))
        .filter(|column| {
            let sql = format!("UPDATE webhook.delivery SET {column} = {column} WHERE false");
            stage.may("operate", &sql)
        })
        .collect();
    assert_eq!(
        may_update,
        ["status", "attempts", "next_attempt_at", "last_error"]
    );
    for leaf in ["delivery_queue", "delivery_history", "dead_letter"] {
        let sql = format!("UPDATE webhook.{leaf} SET attempts = attempts WHERE false");
        assert!(!stage.may("operate", &sql), "{leaf}");
    }
}

/// Every function that people call, with the levels that may call it; a new function needs a decision.
#[test]
fn every_function_that_people_call_has_its_levels() {
    let stage = Stage::set();
    let rows = (stage.database.connect())
        .query(
            "SELECT p.proname::text, array_agg(DISTINCT l.level ORDER BY l.level) FILTER (WHERE has_function_privilege($1 || '_' || l.level, p.oid, 'EXECUTE'))
             FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace, unnest($2::text[]) AS l (level)
             WHERE n.nspname = 'public' AND p.proname LIKE 'webhook%' GROUP BY p.proname ORDER BY p.proname",
            &[&stage.database.name(), &LEVELS.as_slice()],
        )
        .unwrap();
    let granted: Vec<(String, Vec<String>)> = (rows.iter())
        .map(|row| {
            (
                row.get(0),
                row.get::<_, Option<Vec<String>>>(1).unwrap_or_default(),
            )
        })
        .collect();
    let expected = [
        ("webhook_adopt", ADMIN),
        ("webhook_backfill", OPERATE),
        ("webhook_copy_policy", ADMIN),
        ("webhook_discard", OPERATE),
        ("webhook_emit", EMIT),
        ("webhook_emit_many", EMIT),
        ("webhook_grant", NOBODY),
        ("webhook_hmac_secret", ADMIN),
        ("webhook_pause", OPERATE),
        ("webhook_preview", ADMIN),
        ("webhook_public_key", READ),
        ("webhook_redact", OPERATE),
        ("webhook_remove_endpoint", ADMIN),
        ("webhook_replay", OPERATE),
        ("webhook_replay_all", OPERATE),
        ("webhook_reset_breaker", OPERATE),
        ("webhook_resume", OPERATE),
        ("webhook_revoke", NOBODY),
        ("webhook_rotate_hmac_secret", ADMIN),
        ("webhook_rotate_key", ADMIN),
        ("webhook_rotate_secret", ADMIN),
        ("webhook_secret", ADMIN),
        ("webhook_set_endpoint", ADMIN),
        ("webhook_status", READ),
        ("webhook_test", OPERATE),
        ("webhook_trigger", EMIT),
        ("webhook_unwatch", EMIT),
        ("webhook_watch", EMIT),
        ("webhook_why", READ),
    ];
    let expected: Vec<(String, Vec<String>)> = (expected.iter())
        .map(|(name, levels)| {
            let mut levels: Vec<String> = levels.iter().map(|&level| level.into()).collect();
            levels.sort();
            (name.to_string(), levels)
        })
        .collect();
    assert_eq!(granted, expected);
}

#[test]
fn an_operator_tests_replays_and_backfills_by_the_procedures() {
    let stage = Stage::set();
    let mut operator = stage.database.connect();
    let role = stage.role("operate");
    operator.batch_execute(&format!("SET ROLE {role}")).unwrap();
    let outcome = operator.query_one("CALL webhook_test('orders')", &[]);
    assert_eq!(outcome.unwrap().get::<_, i32>("status_code"), 400);
    for call in [
        "CALL webhook_replay_all('orders')",
        "CALL webhook_backfill('orders', NULL)",
    ] {
        let result = operator.batch_execute(call);
        result.unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    let replayed = "SELECT claim_seq > 1 AND status = 'FAILED' FROM webhook.delivery";
    stage.database.wait_until(replayed);

    // The parts of the procedures do not serve for more.
    let sql = format!("SELECT webhook.end_test('{}', 1, '-infinity')", stage.event);
    let refusal = refusal(&mut operator, &sql);
    assert_eq!(refusal.code().code(), "22023");
    assert_eq!(
        stage
            .database
            .query_one_value::<i64>("SELECT count(*) FROM webhook.event"),
        1
    );
}

#[test]
fn what_was_granted_is_revoked_to_the_last_privilege() {
    let database = Cluster::shared().database("revoking");
    for level in LEVELS {
        let role = format!("{}_{level}", database.name());
        // A role that has any privilege left cannot be dropped.
        database.execute(&format!(
            "CREATE ROLE {role}; SELECT webhook_grant('{role}', '{level}')"
        ));
        let refusal = database.refusal(&format!("DROP ROLE {role}"));
        assert_eq!(refusal.code().code(), "2BP01", "{level}");
        database.execute(&format!(
            "SELECT webhook_revoke('{role}', '{level}'); DROP ROLE {role}"
        ));
    }
    // Rights that another level needs stay.
    let role = format!("{}_both", database.name());
    let may =
        |privilege: &str| -> bool { database.query_one_value(&format!("SELECT has_{privilege}")) };
    let reads = format!(
        "table_privilege('{role}', 'webhook.event', 'SELECT') AND has_schema_privilege('{role}', 'webhook', 'USAGE')"
    );
    let emits = format!(
        "function_privilege('{role}', 'webhook_emit_many(text, jsonb[], text[], text[], text[], timestamptz, timestamptz, text, text[])', 'EXECUTE')"
    );
    database.execute(&format!(
        "CREATE ROLE {role}; SELECT webhook_grant('{role}', 'emit'), webhook_grant('{role}', 'operate');
         SELECT webhook_revoke('{role}', 'emit'), webhook_revoke('{role}', 'read')"
    ));
    assert!(may(&reads) && !may(&emits));
    database.execute(&format!(
        "SELECT webhook_grant('{role}', 'emit'), webhook_revoke('{role}', 'operate')"
    ));
    assert!(
        may(&emits)
            && !may(&format!(
                "table_privilege('{role}', 'webhook.event', 'SELECT')"
            ))
    );
    database.execute(&format!(
        "SELECT webhook_revoke('{role}', 'emit'); DROP ROLE {role}"
    ));
}

#[test]
fn a_level_is_revoked_from_a_role_with_all_functions_of_the_schema() {
    let database = Cluster::shared().database("revoking");
    let role = format!("{}_app", database.name());
    database.execute(&format!(
        "CREATE ROLE {role}; SELECT webhook_grant('{role}', 'emit');
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {role};
         SELECT webhook_revoke('{role}', 'emit');
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {role}"
    ));
    let refusal = database.refusal(&format!(
        "SET ROLE {role}; SELECT webhook_emit('order.created')"
    ));
    assert_eq!(refusal.code().code(), "42501");
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_role_or_level_that_does_not_exist_is_refused() {
    let database = Cluster::shared().database("refusing");
    for call in ["webhook_grant", "webhook_revoke"] {
        let refusal = database.refusal(&format!("SELECT {call}('postgres', 'owner')"));
        assert_eq!(refusal.message(), "level \"owner\" does not exist");
        assert_eq!(
            refusal.hint(),
            Some("The levels are emit, read, operate, admin and relay.")
        );
        for (role, shown) in [("NULL", "<NULL>"), ("'nobody at all'", "nobody at all")] {
            let refusal = database.refusal(&format!("SELECT {call}({role}, 'read')"));
            assert_eq!(refusal.code().code(), "42704");
            let expected = format!("role \"{shown}\" does not exist");
            assert_eq!(refusal.message(), expected);
        }
    }
}

/// Functions and operators that would be taken instead of the server's own, were the search_path the caller's; each
/// notes for whom it ran.
const TROJANS: &str = "
    CREATE TABLE trap.sprung (who text, how text);
    GRANT ALL ON trap.sprung TO PUBLIC;
    CREATE FUNCTION trap.note(how text) RETURNS void LANGUAGE plpgsql AS
        'BEGIN INSERT INTO trap.sprung VALUES (current_user, how); END';
    CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''now''); RETURN pg_catalog.now(); END';
    CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''clock_timestamp''); RETURN pg_catalog.now(); END';
    CREATE FUNCTION trap.length(text) RETURNS int LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''length''); RETURN 1; END';
    CREATE FUNCTION trap.current_setting(text, boolean) RETURNS text LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''current_setting''); RETURN NULL; END';
    CREATE FUNCTION trap.cardinality(uuid[]) RETURNS int LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''cardinality''); RETURN 1; END';
    CREATE FUNCTION trap.format(text, text) RETURNS text LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''format''); RETURN $1; END';
    CREATE FUNCTION trap.is_equal(text, text) RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''text =''); RETURN pg_catalog.texteq($1, $2); END';
    CREATE FUNCTION trap.is_equal(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''uuid =''); RETURN pg_catalog.uuid_eq($1, $2); END';
    CREATE FUNCTION trap.is_equal(int, int) RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''int =''); RETURN pg_catalog.int4eq($1, $2); END';
    CREATE FUNCTION trap.joined(text, text) RETURNS text LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''||''); RETURN pg_catalog.textcat($1, $2); END';
    CREATE FUNCTION trap.like(text, text) RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.note(''~''); RETURN true; END';
    CREATE OPERATOR trap.= (leftarg = text, rightarg = text, function = trap.is_equal);
    CREATE OPERATOR trap.= (leftarg = uuid, rightarg = uuid, function = trap.is_equal);
    CREATE OPERATOR trap.= (leftarg = int, rightarg = int, function = trap.is_equal);
    CREATE OPERATOR trap.|| (leftarg = text, rightarg = text, function = trap.joined);
    CREATE OPERATOR trap.~ (leftarg = text, rightarg = text, function = trap.like);
    CREATE OPERATOR trap.~~ (leftarg = text, rightarg = text, function = trap.like);
    GRANT USAGE ON SCHEMA trap TO PUBLIC;";

#[test]
fn trojans_in_the_search_path_and_among_temporary_objects_are_never_called() {
    let stage = Stage::set();
    let event = stage.event;
    let operator = stage.role("operate");
    stage.database.execute("CREATE SCHEMA trap");
    stage.database.execute(TROJANS);
    stage.database.execute(&format!(
        "SELECT webhook_grant('{operator}', 'emit'); GRANT TEMPORARY ON DATABASE {} TO {operator}",
        stage.database.name()
    ));

    let mut session = stage.database.connect();
    session
        .batch_execute(&format!(
            "SET ROLE {operator};
             CREATE TEMPORARY TABLE event (LIKE webhook.event);
             CREATE TEMPORARY TABLE delivery (LIKE webhook.delivery);
             CREATE TEMPORARY TABLE delivery_queue (LIKE webhook.delivery);
             CREATE TEMPORARY TABLE pg_class (oid oid);
             SET search_path = trap, pg_temp, pg_catalog"
        ))
        .unwrap();
    // The traps work: a session that does not guard against them runs into them.
    session
        .batch_execute("SELECT 'a'::text || 'b'::text, now()")
        .unwrap();
    let sprung = "SELECT count(*) FROM trap.sprung WHERE who = $1";
    let count = |client: &mut postgres::Client, who: &str| -> i64 {
        client.query_one(sprung, &[&who]).unwrap().get(0)
    };
    assert!(count(&mut stage.database.connect(), &operator) >= 2);

    for call in [
        "SELECT public.webhook_emit('order.created', '{\"a\": 1}', tenant => 'acme')".to_owned(),
        "SELECT public.webhook_emit('order.created', idempotency_key => 'k', ordering_key => 'k', coalesce_key => 'k',
                                    expires_at => '2100-01-01', endpoints => '{orders}')".into(),
        "SELECT public.webhook_emit_many('order.created', '{1,2}')".into(),
        "CREATE TEMPORARY TABLE watched (id int, name text);
         SELECT public.webhook_watch('pg_temp.watched', 'item', changed => '{name}', exclude => '{id}', tenant_column => 'name');
         INSERT INTO pg_temp.watched VALUES (1, 'a'), (2, 'b');
         UPDATE pg_temp.watched SET name = 'c';
         DELETE FROM pg_temp.watched;
         SELECT public.webhook_unwatch('pg_temp.watched')".into(),
        "SELECT * FROM public.webhook_status()".into(),
        format!("SELECT public.webhook_why('{event}')"),
        "SELECT public.webhook_why('orders')".into(),
        "SELECT public.webhook_why()".into(),
        "SELECT * FROM webhook.endpoint_status".into(),
        "SELECT * FROM webhook.failed".into(),
        "SELECT * FROM webhook.metrics".into(),
        "SELECT public.webhook_pause('orders')".into(),
        "SELECT public.webhook_resume('orders')".into(),
        "SELECT public.webhook_reset_breaker('orders')".into(),
        format!("SELECT public.webhook_replay('{event}')"),
        "CALL public.webhook_replay_all('orders', status => '{SENT, CANCELLED, FAILED}')".into(),
        "CALL public.webhook_backfill('orders', NULL)".into(),
        "CALL public.webhook_test('orders')".into(),
        "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status OPERATOR(pg_catalog.=) 'FAILED'".into(),
        format!("SELECT public.webhook_discard('{event}')"),
        "DELETE FROM webhook.dead_letter WHERE status OPERATOR(pg_catalog.=) 'FAILED'".into(),
        format!("SELECT public.webhook_redact('{event}')"),
    ] {
        session
            .batch_execute(&call)
            .unwrap_or_else(|error| panic!("{call}: {error:?}"));
        // Nobody but the caller has run into one.
        let others: Vec<String> = stage.database.query_one_value(&format!(
            "SELECT coalesce(array_agg(who || ' ' || how), '{{}}') FROM trap.sprung WHERE who <> '{operator}'"
        ));
        assert_eq!(others, Vec::<String>::new(), "{call}");
    }
    let strays = "SELECT count(*) FROM pg_temp.event";
    assert_eq!(session.query_one(strays, &[]).unwrap().get::<_, i64>(0), 0);
}

/// They run as the owner: on a table of the caller's they would call the casts of its columns' types.
#[test]
fn our_trigger_functions_serve_on_no_table_of_others() {
    let stage = Stage::set();
    let triggers = (stage.database.connect())
        .query(
            "SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE p.pronamespace = 'webhook'::regnamespace AND p.prorettype = 'trigger'::regtype",
            &[],
        )
        .unwrap();
    assert!(!triggers.is_empty());
    for trigger in triggers {
        let trigger: String = trigger.get(0);
        let sql = format!(
            "CREATE TEMPORARY TABLE mine (id int, name text);
             CREATE TRIGGER theirs AFTER DELETE ON mine FOR EACH ROW EXECUTE FUNCTION {trigger}"
        );
        for level in LEVELS {
            assert!(!stage.may(level, &sql), "{level}: {trigger}");
        }
    }
}

/// The constants of all plans that the statement needs, as text: debug_print_plan shows them to a role.
fn constants_of_plans(database: &Database, role: &str, sql: &str) -> String {
    let shown = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&shown);
    let mut session = database.connect_noticing(move |notice| {
        let mut shown = sink.lock().unwrap();
        // A value is written as its length and its bytes, signed: constvalue 5 [ 32 0 0 0 65 ].
        for value in notice
            .detail()
            .unwrap_or_default()
            .split("constvalue ")
            .skip(1)
        {
            let bytes = value.split(['[', ']']).nth(1).unwrap_or_default();
            let bytes = bytes
                .split_whitespace()
                .filter_map(|byte| byte.parse::<i8>().ok());
            shown.push_str(&String::from_utf8_lossy(
                &bytes.map(|byte| byte as u8).collect::<Vec<u8>>(),
            ));
        }
    });
    session
        .batch_execute(&format!(
            "SET ROLE {role}; SET client_min_messages = log; SET plan_cache_mode = force_custom_plan; SET debug_print_plan = on; {sql}"
        ))
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    drop(session);
    let shown = shown.lock().unwrap();
    shown.clone()
}

#[test]
fn plans_show_no_credentials_to_those_who_may_not_see_them() {
    let stage = Stage::set();
    stage.database.execute(
        r#"UPDATE webhook.endpoint SET url = url || '?token=HUSH', headers = '{"X-Key": "HUSH"}',
                  format = 'template', template = '"HUSH"'"#,
    );
    let reader = stage.role("read");
    assert!(constants_of_plans(&stage.database, &reader, "SELECT 'HUSH'").contains("HUSH"));
    let event = stage.event;
    for (level, sql) in [
        ("read", format!("SELECT webhook_why('{event}')")),
        ("read", "SELECT webhook_why('orders')".into()),
        (
            "read",
            "SELECT * FROM webhook.endpoint_status WHERE endpoint = 'orders'".into(),
        ),
        ("operate", "SELECT webhook_pause('orders')".into()),
        ("operate", "SELECT webhook_resume('orders')".into()),
        ("operate", "SELECT webhook_reset_breaker('orders')".into()),
        ("operate", "SELECT webhook.queue_test('orders')".into()),
        (
            "operate",
            format!("SELECT webhook_replay('{event}', 'orders')"),
        ),
    ] {
        let shown = constants_of_plans(&stage.database, &stage.role(level), &sql);
        assert!(!shown.contains("HUSH"), "{level}: {sql}");
    }
}

#[test]
fn a_worker_that_is_no_superuser_does_all_of_its_work() {
    let cluster = Cluster::builder()
        .setting("webhook.retention_sent = '0'")
        .start();
    let database = cluster.plain_database("courier");
    database.execute("CREATE EXTENSION webhook");
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, failure_threshold, cooldown)
         VALUES ('brief', 3, 'fixed', '20 ms', 2, '20 ms')",
    );
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, count| {
        Answer::status(if count < 3 { 500 } else { 200 })
    });
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'brief'");
    database.add_endpoint_with(
        "watch",
        &receiver.url("/watch"),
        "event_types => '{webhook.*}'",
    );
    // Fails twice, opens the breaker, succeeds as the probe, closes it; two alerts are sent; retention removes all of
    // it.
    database.emit("order.created", json!({}));
    receiver.wait_for_requests_to("/watch", 2);
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.event)");
    assert_eq!(
        worker::complaints(&cluster, worker::pid(&database)),
        Vec::<String>::new()
    );
}
