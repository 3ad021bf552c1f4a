//! Emitting: the events of a transaction, their endpoints, and the roles that may emit.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::{Cluster, Database, PgBouncer, Receiver};

/// One request at a time: an endpoint's events arrive in the order in which they are due.
pub(super) const IN_ORDER: &str = "policy => 'fast', max_in_flight => 1";
pub(super) const NOTHING: [Uuid; 0] = [];

pub(super) fn database() -> Database {
    Cluster::shared().database("emitting")
}

/// With an endpoint at the receiver's `/`, which gets every event.
pub(super) fn database_and_receiver() -> (Database, Receiver) {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("all", &receiver.url("/"), IN_ORDER);
    (database, receiver)
}

/// Events that arrive before one that is emitted now.
pub(super) fn arrivals(database: &Database, receiver: &Receiver) -> Vec<Uuid> {
    let marker = database.emit("marker", json!({}));
    receiver.wait_for_event(marker);
    (receiver.requests().iter().map(|request| request.event_id()))
        .filter(|id| *id != marker)
        .collect()
}

/// The endpoint is paused, so that its deliveries can be read at leisure.
pub(super) fn add_paused_endpoint(
    database: &Database,
    name: &str,
    tenant: Option<&str>,
    patterns: &[&str],
) {
    database
        .connect()
        .execute(
            "INSERT INTO webhook.endpoint (name, url, tenant, event_types, paused_at)
             VALUES ($1, 'http://127.0.0.1/', $2, $3, now())",
            &[&name, &tenant, &patterns],
        )
        .unwrap();
}

#[test]
fn rolled_back_event_is_never_sent() {
    let (database, receiver) = database_and_receiver();
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    emit(&mut transaction, "order.created", json!({}));
    transaction.rollback().unwrap();

    assert_eq!(arrivals(&database, &receiver), NOTHING);
    let kept: i64 =
        database.query_one_value("SELECT count(*) FROM webhook.event WHERE event_type <> 'marker'");
    assert_eq!(kept, 0);
}

#[test]
fn savepoint_rollback_sends_nothing() {
    let (database, receiver) = database_and_receiver();
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let before = emit(&mut transaction, "order.created", json!({}));
    let mut savepoint = transaction.transaction().unwrap();
    emit(&mut savepoint, "order.paid", json!({}));
    savepoint.rollback().unwrap();
    let after = emit(&mut transaction, "order.shipped", json!({}));
    transaction.commit().unwrap();

    assert_eq!(arrivals(&database, &receiver), [before, after]);
}

#[test]
fn an_event_outside_a_rolled_back_savepoint_still_wakes_the_worker() {
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1h'")
        .start();
    let (database, receiver) = (cluster.database("savepoint"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let outer = emit(&mut transaction, "order.created", json!({}));
    let mut savepoint = transaction.transaction().unwrap();
    emit(&mut savepoint, "order.paid", json!({}));
    savepoint.rollback().unwrap();
    transaction.commit().unwrap();

    receiver.wait_for_event(outer);
}

#[test]
fn emits_from_a_trigger_and_plpgsql() {
    let (database, receiver) = database_and_receiver();
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric);
         CREATE FUNCTION order_created() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM webhook_emit('order.created', to_jsonb(NEW));
             RETURN NULL;
         END $$;
         CREATE TRIGGER order_created AFTER INSERT ON orders
             FOR EACH ROW EXECUTE FUNCTION order_created();
         INSERT INTO orders VALUES (1, 9.50), (2, 20);
         DO $$ BEGIN PERFORM webhook_emit('report.ready', '{\"id\": 3}'); END $$;",
    );

    let received: Vec<_> = (receiver.wait_for_requests(3).iter())
        .map(|request| {
            (
                request.json()["type"].clone(),
                request.json()["data"].clone(),
            )
        })
        .collect();
    assert_eq!(
        received,
        [
            (json!("order.created"), json!({"id": 1, "total": 9.5})),
            (json!("order.created"), json!({"id": 2, "total": 20})),
            (json!("report.ready"), json!({"id": 3})),
        ]
    );
}

#[test]
fn emits_from_a_prepared_statement() {
    const EXECUTIONS: usize = 10;
    let (database, receiver) = (database(), Receiver::start());
    let mut session = database.connect();
    let statement = session.prepare("SELECT webhook_emit($1, $2)").unwrap();
    let mut emit_often = || -> Vec<Uuid> {
        let mut emit = || session.query_one(&statement, &[&"order.created", &json!({})]);
        (0..EXECUTIONS).map(|_| emit().unwrap().get(0)).collect()
    };

    // By now every plan is cached, and there was no endpoint when they were made.
    emit_often();
    database.add_endpoint_with("late", &receiver.url("/"), IN_ORDER);
    let emitted = emit_often();

    assert_eq!(arrivals(&database, &receiver), emitted);
}

#[test]
fn emits_through_pgbouncer_in_transaction_mode() {
    let (database, receiver) = database_and_receiver();
    let pgbouncer = PgBouncer::start(Cluster::shared());
    let mut first = pgbouncer.connect(database.name());
    let mut second = pgbouncer.connect(database.name());

    first
        .simple_query("SELECT webhook_emit('simple', '{}')")
        .unwrap();
    // Two clients at once are on two server connections, and change them afterwards.
    let mut kept = first.transaction().unwrap();
    let mut dropped = second.transaction().unwrap();
    let committed = emit(&mut kept, "committed", json!({}));
    emit(&mut dropped, "rolled.back", json!({}));
    dropped.rollback().unwrap();
    kept.commit().unwrap();
    second
        .batch_execute("BEGIN; SELECT webhook_emit('batch', '{}'); COMMIT")
        .unwrap();

    let arrived = arrivals(&database, &receiver);
    assert!(arrived.contains(&committed));
    let types: Vec<_> = (receiver.requests().iter())
        .map(|request| request.json()["type"].clone())
        .collect();
    assert_eq!(types, ["simple", "committed", "batch", "marker"]);
}

#[test]
fn the_emitting_role_needs_the_level_and_nothing_on_the_tables() {
    let (database, receiver) = database_and_receiver();
    let role = format!("{}_emitter", database.name());
    database.execute(&format!("CREATE ROLE {role}"));
    let mut session = database.connect();
    session
        .batch_execute(&format!("SET SESSION AUTHORIZATION {role}"))
        .unwrap();
    let emitting = "SELECT webhook_emit('order.created')";
    assert_eq!(refusal(&mut session, emitting).code().code(), "42501");

    database.execute(&format!("SELECT webhook_grant('{role}', 'emit')"));
    let event = emit(&mut session, "order.created", json!({}));
    receiver.wait_for_event(event);

    let tables: Vec<String> = database.query_one_value(
        "SELECT array_agg(oid::regclass::text) FROM pg_class
         WHERE relnamespace = 'webhook'::regnamespace AND relkind IN ('r', 'p', 'v')",
    );
    assert!(tables.contains(&"webhook.delivery".to_owned()));
    let reading = tables.iter().map(|table| format!("TABLE {table}"));
    let calling = [
        "SELECT webhook.wake()",
        "SELECT webhook.new_secret()",
        "SELECT webhook_set_endpoint('mine', 'http://127.0.0.1/')",
        "SELECT webhook_remove_endpoint('all')",
        "SELECT webhook_secret('all')",
        "SELECT webhook_adopt()",
        "SELECT webhook_status()",
    ];
    for forbidden in reading.chain(calling.map(String::from)) {
        let refusal = refusal(&mut session, &forbidden);
        assert_eq!(refusal.code().code(), "42501", "{forbidden}");
    }
}

#[test]
fn deliver_at_delays() {
    let (database, receiver) = database_and_receiver();
    for later in ["now() + interval '1 hour'", "'infinity'"] {
        let event: Uuid = database.query_one_value(&format!(
            "SELECT webhook_emit('order.reminder', deliver_at => {later})"
        ));
        assert!(!arrivals(&database, &receiver).contains(&event));
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));

        database.execute(&format!(
            "UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = '{event}'"
        ));
        receiver.wait_for_event(event);
    }
}

#[test]
fn deliver_at_in_the_past_is_now() {
    let (database, receiver) = database_and_receiver();
    for past in ["now() - interval '1 hour'", "'-infinity'"] {
        let event: Uuid = database.query_one_value(&format!(
            "SELECT webhook_emit('order.created', deliver_at => {past})"
        ));
        receiver.wait_for_event(event);
    }
}

#[test]
fn deliver_at_in_the_past_does_not_count_as_waiting() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    database.execute(
        "UPDATE webhook.endpoint SET paused_at = now() - interval '900 days';
         SELECT webhook_emit('order.created', deliver_at => '-infinity');
         SELECT webhook_emit('order.created', deliver_at => now() - interval '900 days');
         SELECT webhook_emit_many('order.created', '{1}', deliver_at => '-infinity');
         -- What a person has set does.
         SELECT webhook_emit('by.hand');
         UPDATE webhook.delivery SET next_attempt_at = '-infinity' WHERE event_type = 'by.hand'",
    );
    let waited: bool =
        database.query_one_value("SELECT oldest_due > interval '1 h' FROM webhook_status()");
    assert!(!waited);
    // The worker may be at it too.
    database.execute("SELECT webhook.expire_kept_back(100)");
    database.wait_until("SELECT count(*) > 0 FROM webhook.dead_letter");
    let expired: Vec<String> =
        database.query_one_value("SELECT array_agg(event_type) FROM webhook.dead_letter");
    assert_eq!(expired, ["by.hand"]);
}

#[test]
fn what_was_due_in_the_past_is_overdue_since_it_was_emitted() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    database.execute(
        "SELECT webhook_emit('order.created', deliver_at => '-infinity');
         SELECT webhook_emit_many('order.created', '{1}', deliver_at => '2000-01-01')",
    );
    assert!(database.query_one_value::<bool>(
        "SELECT count(*) = 2 AND bool_and(next_attempt_at = created_at) FROM webhook.delivery"
    ));
    // A person may write times that an emitter cannot.
    for past in ["'-infinity'", "now() - interval '10 years'"] {
        database.execute(&format!(
            "UPDATE webhook.delivery SET next_attempt_at = {past}"
        ));
        assert!(database.query_one_value::<bool>(
            "SELECT due = 2 AND oldest_due BETWEEN '0 s' AND '1 h' FROM webhook_status()"
        ));
    }
}

#[test]
fn invalid_events_are_refused() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let cases = [
        ("NULL", "22023"),
        ("''", "22023"),
        ("'a b'", "22023"),
        ("'.a'", "22023"),
        ("'a.'", "22023"),
        ("'a..b'", "22023"),
        ("'a.*'", "22023"),
        ("'*'", "22023"),
        ("'å'", "22023"),
        (r"E'a\n'", "22023"),
        ("repeat('a', 201)", "22023"),
        ("'order.created', NULL", "22004"),
    ];
    for (arguments, code) in cases {
        let refusal = database.refusal(&format!("SELECT webhook_emit({arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}");
        assert!(refusal.hint().is_some(), "no hint for {arguments}");
    }
    let written: i64 = database.query_one_value(
        "SELECT (SELECT count(*) FROM webhook.event) + (SELECT count(*) FROM webhook.delivery)",
    );
    assert_eq!(written, 0);
}

#[test]
fn two_phase_commit_wakes_too() {
    let cluster = Cluster::builder()
        .setting("max_prepared_transactions = 5")
        .setting("webhook.poll_interval = '1h'")
        .start();
    let (database, receiver) = (cluster.database("two_phase"), Receiver::start());
    database.add_endpoint_with("all", &receiver.url("/"), IN_ORDER);
    let mut session = database.connect();
    session.batch_execute("BEGIN").unwrap();
    let event = emit(&mut session, "order.created", json!({}));
    session
        .batch_execute("PREPARE TRANSACTION 'order'")
        .unwrap();
    drop(session);

    assert_eq!(arrivals(&database, &receiver), NOTHING);
    // Asleep, so that nothing but the commit can make it look.
    database.wait_until(
        "SELECT wait_event_type IS NOT DISTINCT FROM 'Extension' AND NOT EXISTS (SELECT FROM webhook.delivery_queue)
         FROM pg_stat_activity WHERE backend_type = 'webhook worker' AND datname = current_database()",
    );
    database.execute("COMMIT PREPARED 'order'");
    receiver.wait_for_event(event);
}

#[test]
fn a_payload_over_the_limit_is_refused() {
    let database = Cluster::shared().database("limit");
    // Small as it is stored, large as it would be sent.
    let numbers = "SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, 20)";
    for payload in ["to_jsonb(repeat('x', 1048575))", &format!("({numbers})")] {
        let refusal = database.refusal(&format!("SELECT webhook_emit('too.large', {payload})"));
        assert_eq!(refusal.code().code(), "54000", "{refusal:?}");
        assert!(refusal.hint().unwrap().contains("webhook.max_payload"));
    }
    // The bounds of the array and the number of its dimensions make no difference.
    for types in ["{too.large}", "[2:2]={too.large}", "{{too.large}}"] {
        let refusal = database.refusal(&format!(
            "SELECT webhook_emit_many('{types}'::text[], ARRAY[to_jsonb(repeat('x', 1048575))])"
        ));
        assert_eq!(refusal.code().code(), "54000", "{types}: {refusal:?}");
    }
    database.execute("SELECT webhook_emit('just.fits', to_jsonb(repeat('x', 1048574)))");
    database.execute(&format!(
        "SET webhook.max_payload = '4MB'; SELECT webhook_emit('fits.now', ({numbers}))"
    ));
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM webhook.event"),
        2
    );
}

#[test]
fn keys_are_stored_with_the_deliveries() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let event: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', ordering_key => 'customer 7', coalesce_key => 'order 1')",
    );
    let keys: String = database.query_one_value(&format!(
        "SELECT ordering_key || ', ' || coalesce_key FROM webhook.delivery WHERE event_id = '{event}'"
    ));
    assert_eq!(keys, "customer 7, order 1");
    for option in ["ordering_key => ''", "coalesce_key => repeat('k', 201)"] {
        let refusal = database.refusal(&format!("SELECT webhook_emit('a', {option})"));
        assert_eq!(refusal.code().code(), "22023", "{option}");
        assert!(refusal.hint().is_some());
    }
}

#[test]
fn keys_with_control_characters_are_refused() {
    let database = Cluster::shared().database("keys");
    database.add_endpoint("a", "http://127.0.0.1:9/");
    for key in ["idempotency_key", "ordering_key", "coalesce_key"] {
        for control in [1, 7, 8, 10, 13, 27, 127, 128, 155, 159] {
            let emit =
                format!("SELECT webhook_emit('a', {key} => 'a' || chr({control}) || '[31m')");
            let refusal = database.refusal(&emit);
            assert_eq!(refusal.code().code(), "22023", "{emit}");
            assert_eq!(refusal.message(), format!("{key} is not valid"));
            assert_eq!(refusal.detail(), Some("It has control characters."));
            assert!(refusal.hint().is_some());
        }
        // As many as a key may have, and none of them a control character.
        database.execute(&format!(
            "SELECT webhook_emit('a', {key} => ' ~é' || chr(160) || repeat('📦', 196))"
        ));
    }
}

// jsonb, and json

#[test]
fn a_payload_without_a_type_is_jsonb() {
    use postgres::types::Type;
    let database = database();
    let mut session = database.connect();
    for arguments in [
        "$1, $2",
        "$1, payload => $2",
        "$1, $2, tenant => 'acme'",
        "'a', $1",
        "$1::text, $2",
        "$1::varchar, $2",
    ] {
        let statement = session
            .prepare(&format!("SELECT webhook_emit({arguments})"))
            .unwrap();
        assert_eq!(statement.params().last(), Some(&Type::JSONB), "{arguments}");
    }
    for arguments in [
        "$1, $2",
        "'a', $1",
        "$1::text[], $2",
        "$1::varchar, $2",
        "'{a}'::varchar[], $1",
    ] {
        let statement = session
            .prepare(&format!("SELECT webhook_emit_many({arguments})"))
            .unwrap();
        assert_eq!(
            statement.params().last(),
            Some(&Type::JSONB_ARRAY),
            "{arguments}"
        );
    }
    database.execute(
        "SELECT webhook_emit('a', '{}'), webhook_emit('a'::varchar, '{}'), webhook_emit('a'::char(1), '1'), webhook_emit('a'),
                webhook_emit('a'::name, '{}'), webhook_emit(event_type => 'a', payload => '{}');
         PREPARE untyped AS SELECT webhook_emit($1, $2);
         EXECUTE untyped('a', '{}')",
    );
}

#[test]
fn json_is_met_with_a_hint_to_use_jsonb() {
    use postgres::types::Type;
    let database = database();
    let mut session = database.connect();
    for call in [
        "webhook_emit('a', '{}'::json)",
        "webhook_emit('a'::varchar, payload => '{}'::json, tenant => 'acme')",
        "webhook_emit_many('a', ARRAY['{}']::json[])",
        "webhook_emit_many('a'::name, ARRAY['{}']::json[], endpoints => '{x}')",
    ] {
        let refusal = refusal(&mut session, &format!("SELECT {call}"));
        assert_eq!(refusal.code().code(), "42804", "{call}: {refusal:?}");
        assert!(refusal.hint().unwrap().contains("jsonb"), "{refusal:?}");
    }
    // As drivers send it.
    for types in [&[Type::TEXT, Type::JSON][..], &[Type::VARCHAR, Type::JSON]] {
        let statement = session
            .prepare_typed("SELECT webhook_emit($1, $2)", types)
            .unwrap();
        let error = session.query(&statement, &[&"a", &json!({})]).unwrap_err();
        let code = error.code().map(postgres::error::SqlState::code);
        assert_eq!(code, Some("42804"), "{error:?}");
    }
}
