//! Emitting: what of a transaction is sent, to whom, and who may do it.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::{Cluster, Database, PgBouncer, Receiver};

/// One request at a time: an endpoint's events arrive in the order in which they are due.
const IN_ORDER: &str = "policy => 'fast', max_in_flight => 1";
const NOTHING: [Uuid; 0] = [];

fn database() -> Database {
    Cluster::shared().database("emitting")
}

/// With an endpoint at the receiver's `/`, which gets every event.
fn database_and_receiver() -> (Database, Receiver) {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("all", &receiver.url("/"), IN_ORDER);
    (database, receiver)
}

/// What arrives before an event that is emitted now.
fn arrivals(database: &Database, receiver: &Receiver) -> Vec<Uuid> {
    let marker = database.emit("marker", json!({}));
    receiver.wait_for_event(marker);
    (receiver.requests().iter().map(|request| request.event_id()))
        .filter(|id| *id != marker)
        .collect()
}

/// Paused, so that whoever gets an event can be read at leisure.
fn add_paused_endpoint(database: &Database, name: &str, tenant: Option<&str>, patterns: &[&str]) {
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
fn paused_and_disabled_endpoints_get_their_deliveries_kept_back() {
    let (database, receiver) = database_and_receiver();
    database.add_endpoint_with("paused", &receiver.url("/paused"), IN_ORDER);
    database.add_endpoint_with("disabled", &receiver.url("/disabled"), IN_ORDER);
    database.execute(
        "UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'paused';
         UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'moved' WHERE name = 'disabled'",
    );
    let event = database.emit("order.created", json!({}));

    assert_eq!(arrivals(&database, &receiver), [event]);
    let kept_back: i64 = database.query_one_value(&format!(
        "SELECT count(*) FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
         WHERE d.event_id = '{event}' AND e.name IN ('paused', 'disabled') AND d.status = 'PENDING' AND d.attempts = 0"
    ));
    assert_eq!(kept_back, 2);

    database.execute(
        "UPDATE webhook.endpoint SET paused_at = NULL, disabled_at = NULL, disabled_reason = NULL",
    );
    database.wait_for_status(event, "SENT");
    assert_eq!(receiver.requests_to("/paused")[0].event_id(), event);
    assert_eq!(receiver.requests_to("/disabled")[0].event_id(), event);
}

#[test]
fn patterns_choose_endpoints() {
    let database = database();
    let patterns: [&[&str]; 8] = [
        &["*"],
        &["order.created"],
        &["order.*"],
        &["order"],
        &["order.item.*"],
        &["order.item.added", "order.item.*", "order.*"],
        &["invoice.paid", "order.created"],
        &["Order.*"],
    ];
    for pattern in patterns {
        add_paused_endpoint(
            &database,
            &format!("to {}", pattern.join(" ")),
            None,
            pattern,
        );
    }
    let cases: [(&str, &[&str]); 9] = [
        (
            "order.created",
            &[
                "*",
                "invoice.paid order.created",
                "order.*",
                "order.created",
                "order.item.added order.item.* order.*",
            ],
        ),
        (
            "order.item.added",
            &[
                "*",
                "order.*",
                "order.item.*",
                "order.item.added order.item.* order.*",
            ],
        ),
        (
            "order.item",
            &["*", "order.*", "order.item.added order.item.* order.*"],
        ),
        ("order", &["*", "order"]),
        ("orders.created", &["*"]),
        ("Order.created", &["*", "Order.*"]),
        ("invoice.paid", &["*", "invoice.paid order.created"]),
        // The reserved types are those with the dot.
        ("webhooks.created", &["*"]),
        ("webhook", &["*"]),
    ];
    for (event_type, patterns) in cases {
        let event = database.emit(event_type, json!({}));
        let expected: Vec<String> = patterns.iter().map(|name| format!("to {name}")).collect();
        assert_eq!(database.endpoints_of(event), expected, "{event_type}");
    }
}

#[test]
fn types_of_our_own_are_reserved() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let refusal = database.refusal("SELECT webhook_emit('webhook.endpoint.disabled')");
    assert_eq!(refusal.code().code(), "42939");
    assert!(refusal.hint().is_some());
    let matched: bool = database.query_one_value(
        "SELECT webhook.subscription_keys(NULL, '{*}') && webhook.matching_keys(NULL, 'webhook.endpoint.disabled')",
    );
    assert!(!matched, "* matches an event of our own");
}

#[test]
fn tenants_see_their_own_events() {
    let database = database();
    add_paused_endpoint(&database, "all", Some("acme"), &["*"]);
    add_paused_endpoint(&database, "everyone", None, &["*"]);
    add_paused_endpoint(&database, "orders", Some("globex"), &["order.*"]);
    let cases: [(&str, &[&str]); 5] = [
        ("NULL", &["everyone"]),
        ("'acme'", &["acme/all", "everyone"]),
        ("'globex'", &["everyone", "globex/orders"]),
        ("'initech'", &["everyone"]),
        ("'ACME'", &["everyone"]),
    ];
    for (tenant, expected) in cases {
        let event: Uuid = database.query_one_value(&format!(
            "SELECT webhook_emit('order.created', tenant => {tenant})"
        ));
        assert_eq!(database.endpoints_of(event), expected, "{tenant}");
    }
}

#[test]
fn an_event_that_matches_nothing_is_kept() {
    let database = database();
    let event = database.emit("order.created", json!({"id": 7}));
    let kept: bool = database.query_one_value(&format!(
        "SELECT event_type = 'order.created' AND payload = '{{\"id\": 7}}' FROM webhook.event WHERE id = '{event}'"
    ));
    assert!(kept);
    assert_eq!(database.delivery_status(event), None);
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
    // A person may write what an emitter cannot.
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
fn matching_uses_the_index_among_ten_thousand_endpoints() {
    let emit_one = "SELECT webhook_emit('type_4242')";
    let emit_many = "SELECT webhook_emit_many('type_4242', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 50) n))";
    for emitting in [emit_one, emit_many] {
        let database = database();
        let mut session = database.connect();
        // The plans are made while there is no endpoint at all.
        for _ in 0..10 {
            session.batch_execute(emitting).unwrap();
        }
        database.execute(
            "INSERT INTO webhook.endpoint (name, url, event_types, paused_at)
             SELECT 'endpoint ' || i, 'http://127.0.0.1/', ARRAY['type_' || i], now() FROM generate_series(1, 10000) AS i",
        );

        let mut transaction = session.transaction().unwrap();
        let event: Uuid = transaction.query(emitting, &[]).unwrap()[0].get(0);
        let scans = transaction
            .query_one(
                "SELECT seq_scan, idx_scan, idx_tup_fetch FROM pg_stat_xact_user_tables
                 WHERE relid = 'webhook.endpoint'::regclass",
                &[],
            )
            .unwrap();
        transaction.commit().unwrap();

        assert_eq!(database.endpoints_of(event), ["endpoint 4242"]);
        assert_eq!(scans.get::<_, i64>("seq_scan"), 0, "{emitting}");
        assert!(scans.get::<_, i64>("idx_scan") > 0, "{emitting}");
        assert_eq!(scans.get::<_, i64>("idx_tup_fetch"), 1, "{emitting}");
    }
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
    // Whatever the first index of the types is, or the number of their dimensions.
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
fn an_invalid_tenant_is_refused() {
    let database = Cluster::shared().database("tenant");
    for tenant in [
        "''",
        "'a b'",
        "E'a\\n'",
        "'acme/eu'",
        "'/'",
        "'*'",
        "repeat('a', 201)",
    ] {
        let refusal = database.refusal(&format!("SELECT webhook_emit('a', tenant => {tenant})"));
        assert_eq!(refusal.code().code(), "22023", "{refusal:?}");
        assert!(refusal.hint().is_some());
    }
}

fn emit_many(client: &mut impl postgres::GenericClient, arguments: &str) -> Vec<Uuid> {
    let rows = client.query(&format!("SELECT webhook_emit_many({arguments})"), &[]);
    let rows = rows.unwrap_or_else(|error| panic!("{arguments}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn many_events_go_out_in_their_order() {
    const EVENTS: usize = 1000;
    let (database, receiver) = database_and_receiver();
    let ids = emit_many(
        &mut database.connect(),
        &format!(
            "'order.created', ARRAY(SELECT jsonb_build_object('n', n) FROM generate_series(1, {EVENTS}) n)"
        ),
    );
    assert_eq!(ids.len(), EVENTS);
    assert!(ids.is_sorted());
    let requests = receiver.wait_for_requests(EVENTS);
    for (number, (request, id)) in requests.iter().zip(&ids).enumerate() {
        assert_eq!(request.event_id(), *id);
        assert_eq!(request.json()["data"], json!({"n": number + 1}));
    }
}

#[test]
fn many_events_of_several_types_reach_each_its_endpoints() {
    let database = database();
    add_paused_endpoint(&database, "orders", None, &["order.*"]);
    add_paused_endpoint(&database, "paid", None, &["order.paid", "invoice.paid"]);
    add_paused_endpoint(&database, "all", Some("acme"), &["*"]);
    let arguments =
        "ARRAY['order.created', 'invoice.paid', 'order.paid', 'other', 'order.created'],
                     ARRAY['1', '2', '3', '4', '5']::jsonb[]";
    let ids = emit_many(&mut database.connect(), arguments);
    let reached: Vec<Vec<String>> = ids.iter().map(|id| database.endpoints_of(*id)).collect();
    let expected: [&[&str]; 5] = [
        &["orders"],
        &["paid"],
        &["orders", "paid"],
        &[],
        &["orders"],
    ];
    assert_eq!(reached, expected);
    let payloads: Vec<serde_json::Value> =
        database.query_one_value("SELECT array_agg(payload ORDER BY id) FROM webhook.event");
    assert_eq!(payloads, [1, 2, 3, 4, 5].map(|n| json!(n)));

    let ids = emit_many(
        &mut database.connect(),
        "'order.paid', '{1}', tenant => 'acme'",
    );
    assert_eq!(
        database.endpoints_of(ids[0]),
        ["acme/all", "orders", "paid"]
    );
}

#[test]
fn none_of_many_is_no_error() {
    let database = database();
    for none in [
        "'order.paid', '{}'",
        "'order.paid', NULL",
        "NULL::text[], NULL",
        "'{}'::text[], NULL",
        "'order.paid', array_agg('1'::jsonb)) FROM generate_series(1, 0",
        "array_agg('a'::text), array_agg('1'::jsonb)) FROM generate_series(1, 0",
    ] {
        assert_eq!(emit_many(&mut database.connect(), none), NOTHING, "{none}");
    }
}

#[test]
fn one_event_that_is_not_valid_refuses_all_of_many() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let cases = [
        ("NULL::text, '{1}'", "22023"),
        ("'a b', '{1}'", "22023"),
        ("'a b', '{}'", "22023"),
        ("'a b', NULL", "22023"),
        ("'a', '{1,NULL}'", "22004"),
        ("'a', ARRAY['1', to_jsonb(repeat('x', 2000000))]", "54000"),
        ("'a', '{1,2}', tenant => ''", "22023"),
        ("'a', '{1,2}', endpoints => '{nobody}'", "42704"),
        ("'a', '{1,2}', endpoints => '{}'", "22023"),
        (
            "'a', '{1}', deliver_at => '2030-01-02', expires_at => '2030-01-01'",
            "22023",
        ),
        ("'{a,a b}'::text[], '{1,2}'", "22023"),
        ("'{a,NULL}'::text[], '{1,2}'", "22023"),
        ("'{a,webhook.b}'::text[], '{1,2}'", "42939"),
        ("'{a}'::text[], '{1,2}'", "2202E"),
        ("NULL::text[], '{1,2}'", "2202E"),
        ("'{a}'::text[], NULL", "2202E"),
    ];
    for (arguments, code) in cases {
        let refusal = database.refusal(&format!("SELECT webhook_emit_many({arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}: {refusal:?}");
        assert!(refusal.hint().is_some(), "no hint for {arguments}");
    }
    let written: i64 = database.query_one_value(
        "SELECT (SELECT count(*) FROM webhook.event) + (SELECT count(*) FROM webhook.delivery)",
    );
    assert_eq!(written, 0);
}

#[test]
fn the_rollback_of_half_a_batch_takes_that_half_back() {
    let (database, receiver) = database_and_receiver();
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let kept = emit_many(&mut transaction, "'order.created', '{1,2,3}'");
    let mut savepoint = transaction.transaction().unwrap();
    emit_many(&mut savepoint, "'order.created', '{4,5,6}'");
    savepoint.rollback().unwrap();
    transaction.commit().unwrap();
    assert_eq!(arrivals(&database, &receiver), kept);
}

#[test]
fn endpoints_can_be_chosen_by_their_addresses() {
    let database = database();
    add_paused_endpoint(&database, "a", None, &["*"]);
    add_paused_endpoint(&database, "b", None, &["order.*"]);
    add_paused_endpoint(&database, "a", Some("acme"), &["*"]);
    add_paused_endpoint(&database, "a", Some("zeta"), &["*"]);
    let reached = |arguments: &str| {
        let event: Uuid = database.query_one_value(&format!("SELECT webhook_emit({arguments})"));
        database.endpoints_of(event)
    };
    assert_eq!(reached("'order.created', endpoints => '{a}'"), ["a"]);
    assert_eq!(
        reached("'order.created', endpoints => '{b,a,b}'"),
        ["a", "b"]
    );
    // Only those among them that want it.
    assert_eq!(reached("'invoice.paid', endpoints => '{a,b}'"), ["a"]);
    assert_eq!(
        reached("'order.created', endpoints => '{acme/a,zeta/a,b}'"),
        ["b"]
    );
    assert_eq!(
        reached("'order.created', endpoints => '{acme/a,zeta/a,b}', tenant => 'acme'"),
        ["acme/a", "b"]
    );
    // An address is whole: the tenant of the event adds nothing to it.
    assert_eq!(
        reached("'order.created', endpoints => '{a}', tenant => 'acme'"),
        ["a"]
    );

    for (names, code) in [
        ("'{}'", "22023"),
        ("'{a,NULL}'", "22023"),
        ("'{a,bb}'", "42704"),
        ("'{a,*}'", "42704"),
        ("'{acme/*}'", "42704"),
        ("'{acme/b}'", "42704"),
        ("'{/a}'", "42704"),
    ] {
        let refusal = database.refusal(&format!("SELECT webhook_emit('a', endpoints => {names})"));
        assert_eq!(refusal.code().code(), code, "{names}");
        assert!(refusal.hint().is_some());
    }
    // Roles that emit do not see which endpoints there are.
    for unknown in ["bb", "acme/aa", "acne/a"] {
        let sql = format!("SELECT webhook_emit('a', endpoints => '{{{unknown}}}')");
        let refusal = database.refusal(&sql);
        let shown = format!("{refusal:?}").replace(unknown, "");
        assert!(
            !shown.contains("acme") && !shown.contains("\"b\""),
            "{shown}"
        );
    }
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

#[test]
fn each_of_many_has_its_own_keys() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let ids = emit_many(
        &mut database.connect(),
        "'a', '{1,2,3}', ordering_keys => '{o,NULL,p}', coalesce_keys => '{c,d,NULL}', idempotency_keys => '{i,NULL,j}'",
    );
    let keys: Vec<String> = database.query_one_value(
        "SELECT array_agg(concat_ws(' ', v.payload, d.ordering_key, d.coalesce_key, v.idempotency_key) ORDER BY v.id)
         FROM webhook.event v JOIN webhook.delivery d ON d.event_id = v.id",
    );
    assert_eq!(keys, ["1 o c i", "2 d", "3 p j"]);
    assert_eq!(ids.len(), 3);
    for (arguments, code) in [
        ("'{1,2}', ordering_keys => '{a}'", "2202E"),
        ("'{1,2}', idempotency_keys => '{a,b,c}'", "2202E"),
        ("'{1,2}', coalesce_keys => '{}'", "2202E"),
        ("'{1,2}', ordering_keys => ARRAY['a', '']", "22023"),
        (
            "'{1,2}', idempotency_keys => ARRAY['a', repeat('x', 201)]",
            "22023",
        ),
        ("'{1,2}', coalesce_keys => ARRAY[NULL, E'a\\nb']", "22023"),
    ] {
        let refusal = database.refusal(&format!("SELECT webhook_emit_many('a', {arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}: {refusal:?}");
        assert!(refusal.hint().is_some(), "no hint for {arguments}");
    }
}

// A session remembers who wants an event

/// The endpoints that get an event which this session emits now, after it has emitted others like it.
#[track_caller]
fn reached(session: &mut impl postgres::GenericClient) -> Vec<String> {
    let event = emit(session, "order.created", json!({}));
    let endpoints =
        "SELECT coalesce(array_agg(e.name ORDER BY e.name), '{}') FROM webhook.delivery d
                     JOIN webhook.endpoint e ON e.id = d.endpoint_id WHERE d.event_id = $1";
    session.query_one(endpoints, &[&event]).unwrap().get(0)
}

#[test]
fn a_session_that_has_emitted_knows_what_others_change() {
    let database = database();
    let mut session = database.connect();
    assert_eq!(reached(&mut session), NO_NAMES);
    assert_eq!(reached(&mut session), NO_NAMES);
    let changes: [(&str, &[&str]); 9] = [
        ("INSERT INTO webhook.endpoint (name, url) VALUES ('a', 'http://127.0.0.1/')", &["a"]),
        ("INSERT INTO webhook.endpoint (name, url) VALUES ('b', 'http://127.0.0.1/')", &["a", "b"]),
        ("UPDATE webhook.endpoint SET event_types = '{invoice.*}' WHERE name = 'a'", &["b"]),
        ("UPDATE webhook.endpoint SET event_types = '{order.*}' WHERE name = 'a'", &["a", "b"]),
        ("UPDATE webhook.endpoint SET filter = '$.data.x == 1' WHERE name = 'b'", &["a"]),
        ("UPDATE webhook.endpoint SET filter = NULL", &["a", "b"]),
        ("UPDATE webhook.endpoint SET tenant = 'acme' WHERE name = 'b'", &["a"]),
        ("DELETE FROM webhook.endpoint WHERE name = 'a'", &[]),
        (
            "SET session_replication_role = replica;
             INSERT INTO webhook.endpoint (name, url, origin) VALUES ('c', 'http://127.0.0.1/', 'elsewhere')",
            &["c"],
        ),
    ];
    for (change, expected) in changes {
        database.execute(change);
        assert_eq!(reached(&mut session), expected, "{change}");
        assert_eq!(reached(&mut session), expected, "{change}, again");
    }

    // Also in the middle of a transaction, which sees what others commit.
    let mut transaction = session.transaction().unwrap();
    assert_eq!(reached(&mut transaction), ["c"]);
    database.execute("UPDATE webhook.endpoint SET name = 'd', tenant = NULL WHERE name = 'b'");
    assert_eq!(reached(&mut transaction), ["c", "d"]);
}

const NO_NAMES: [&str; 0] = [];

#[test]
fn a_session_that_has_emitted_knows_of_other_policies() {
    let database = database();
    database.execute(
        "SELECT webhook_copy_policy('standard', 'own'); UPDATE webhook.policy SET max_attempts = 3 WHERE name = 'own';
         INSERT INTO webhook.endpoint (name, url, policy, paused_at) VALUES ('a', 'http://127.0.0.1/', 'own', now())",
    );
    let mut session = database.connect();
    let mut attempts = || {
        let event = emit(&mut session, "order.created", json!({}));
        database.query_one_value::<i32>(&format!(
            "SELECT max_attempts FROM webhook.delivery WHERE event_id = '{event}'"
        ))
    };
    assert_eq!([attempts(), attempts()], [3, 3]);
    database.execute("UPDATE webhook.policy SET max_attempts = 5 WHERE name = 'own'");
    assert_eq!(attempts(), 5);
}

#[test]
fn a_session_forgets_what_it_has_rolled_back() {
    let database = database();
    database.execute("INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1/', now())");
    let add = "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('b', 'http://127.0.0.1/', now())";
    let mut session = database.connect();
    assert_eq!(reached(&mut session), ["a"]);

    let mut transaction = session.transaction().unwrap();
    transaction.batch_execute(add).unwrap();
    assert_eq!(reached(&mut transaction), ["a", "b"]);
    transaction.rollback().unwrap();
    assert_eq!(reached(&mut session), ["a"]);

    let mut transaction = session.transaction().unwrap();
    let mut savepoint = transaction.transaction().unwrap();
    savepoint.batch_execute(add).unwrap();
    assert_eq!(reached(&mut savepoint), ["a", "b"]);
    savepoint.rollback().unwrap();
    assert_eq!(reached(&mut transaction), ["a"]);
    transaction.commit().unwrap();
    assert_eq!(reached(&mut session), ["a"]);
}

/// The statement emits after it has changed the endpoints, and before their triggers are called.
#[test]
fn a_session_forgets_what_a_failed_statement_has_seen() {
    let database = database();
    database.execute(
        "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1/', now())",
    );
    let fails = "WITH gone AS (DELETE FROM webhook.endpoint RETURNING id)
                 SELECT webhook_emit('order.created'), 1 / (id - id) FROM gone";
    let mut session = database.connect();
    refusal(&mut session, fails);
    assert_eq!(reached(&mut session), ["a"]);

    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let mut savepoint = transaction.transaction().unwrap();
    refusal(&mut savepoint, fails);
    savepoint.rollback().unwrap();
    assert_eq!(reached(&mut transaction), ["a"]);
}

#[test]
fn a_session_that_has_emitted_knows_what_logical_replication_brings() {
    let cluster = Cluster::builder().setting("wal_level = logical").start();
    let (publisher, subscriber) = (
        cluster.database("publisher"),
        cluster.database("subscriber"),
    );
    publisher.execute("CREATE PUBLICATION p FOR TABLE webhook.endpoint");
    publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    subscriber.execute(&format!(
        "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port={} user=postgres dbname={}' PUBLICATION p
         WITH (create_slot = false, copy_data = false)",
        cluster.port(),
        publisher.name()
    ));
    let mut session = subscriber.connect();
    assert_eq!(reached(&mut session), NO_NAMES);
    // The second is applied when the first is committed and every session has been told.
    for name in ["a", "b"] {
        add_paused_endpoint(&publisher, name, None, &["*"]);
    }
    subscriber.wait_until("SELECT EXISTS (SELECT FROM webhook.endpoint WHERE name = 'b')");
    assert!(reached(&mut session).contains(&"a".to_string()));
    subscriber.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)");
    subscriber.execute("DROP SUBSCRIPTION s");
}

#[test]
fn an_old_snapshot_is_remembered_by_nobody() {
    let database = database();
    let mut session = database.connect();
    let mut transaction = (session.build_transaction())
        .isolation_level(postgres::IsolationLevel::RepeatableRead)
        .start()
        .unwrap();
    assert_eq!(reached(&mut transaction), NO_NAMES);
    database.execute("INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1/', now())");
    assert_eq!(reached(&mut transaction), NO_NAMES);
    transaction.commit().unwrap();
    assert_eq!(reached(&mut session), ["a"]);
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
