//! The endpoints that get an event: patterns, tenants, and endpoints that are named.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::Cluster;

use super::emitting::{IN_ORDER, add_paused_endpoint, arrivals, database, database_and_receiver};

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
        // The reserved types have the dot.
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
    // Only the endpoints among them that want it get it.
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
