//! Webhook in a database that allows no library and has no superuser.

mod confinement;
mod install;
mod planted;
mod rights;
mod shop;

use webhook_e2e::copies::dump_and_restore;
use webhook_e2e::database::refusal;
use webhook_e2e::verifier::{verify_as, verify_by_key};
use webhook_e2e::{Answer, Cluster, Receiver, Relay, wait};

use shop::{PROGRAM, Shop};

#[test]
fn the_owner_of_a_database_installs_and_a_relay_delivers() {
    let shop = Shop::installed("portable");
    let receiver = Receiver::start();
    shop.as_admin(&format!(
        "SELECT webhook_set_endpoint('orders', '{}', policy => 'fast');
         SELECT webhook_set_endpoint('broken', '{}', policy => 'fast')",
        receiver.url("/orders"),
        receiver.url("/broken")
    ));
    receiver.respond("/orders", |_, number| match number {
        1 => Answer::status(503),
        _ => Answer::status(200),
    });
    receiver.respond("/broken", |_, _| Answer::status(500));
    let mut app = shop.database.connect_as(&shop.role("app", "emit"));
    app.batch_execute("SELECT webhook_emit('order.created', '{\"id\": 1}')")
        .unwrap();
    assert_eq!(
        shop.database
            .query_one_value::<String>("SELECT state FROM webhook_status()"),
        "no relay"
    );
    let relay = shop.relay();
    shop.database
        .wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    shop.database
        .wait_until("SELECT count(*) = 1 FROM webhook.dead_letter WHERE attempts = 2");
    assert_eq!(
        shop.database
            .query_one_value::<String>("SELECT state FROM webhook_status()"),
        "running"
    );
    assert_eq!(receiver.request_count(), 4);
    assert!(!relay.log().contains("ERROR"), "{}", relay.log());
}

#[test]
fn a_relay_signs_with_a_key_that_was_made_elsewhere() {
    const PRIVATE: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    let shop = Shop::installed("keys");
    let receiver = Receiver::start();
    let url = receiver.url("/");
    shop.as_admin(&format!("SELECT webhook_set_endpoint('orders', '{url}')"));
    let refused = refusal(&mut shop.session(), "SELECT webhook_rotate_key('orders')");
    assert_eq!(refused.code().code(), "0A000");
    assert!(refused.hint().unwrap().contains("key => 'whsk_..'"));
    let rotate = format!("SELECT webhook_rotate_key('orders', key => '{PRIVATE}')");
    let public: String = shop.session().query_one(&rotate, &[]).unwrap().get(0);

    let _relay = shop.relay();
    shop.as_admin("SELECT webhook_emit('order.created')");
    receiver.wait_for_requests(1);
    let request = &receiver.requests()[0];
    assert_eq!(verify_by_key(&public, request), Ok(()));
}

#[test]
fn a_relay_renders_templates_of_headers_and_says_what_is_wrong_with_one() {
    const SECRET: &str = "It is a Secret to Everybody";
    let shop = Shop::installed("headers");
    let receiver = Receiver::start();
    let url = receiver.url("/");
    let set = |headers: &str| {
        shop.as_admin(&format!(
            "SELECT webhook_set_endpoint('orders', '{url}', headers => '{headers}', hmac_secret => '{SECRET}')"
        ));
    };
    set(r#"{"X-Hub-Signature-256": "sha256={{hmac_hex(body)}}"}"#);
    let _relay = shop.relay();
    shop.as_admin("SELECT webhook_emit('order.created')");
    receiver.wait_for_requests(1);
    let request = &receiver.requests()[0];
    assert_eq!(verify_as("github", SECRET, request), Ok(()));

    set(r#"{"X-Signature": "{{hmac_md5(body)}}"}"#);
    let called = shop.session().query_one("CALL webhook_test('orders')", &[]);
    let error: String = called.unwrap().get("error");
    assert!(
        error.contains("the template of header x-signature is not valid"),
        "{error}"
    );
}

/// webhook.poll_interval is for hosts that are told of commits.
#[test]
fn a_relay_looks_for_events_by_itself() {
    let shop = Shop::installed("looks");
    let receiver = Receiver::start();
    shop.as_admin(&format!(
        "INSERT INTO webhook.settings VALUES ('poll_interval', '1h');
         SELECT webhook_set_endpoint('orders', '{}')",
        receiver.url("/")
    ));
    let _relay = shop.relay();
    for number in 1..=3 {
        shop.as_admin("SELECT webhook_emit('order.created')");
        receiver.wait_for_requests(number);
    }
}

#[test]
fn settings_are_rows_of_administrators_and_no_placeholder_of_a_session_is_read() {
    let shop = Shop::installed("settings");
    let mut app = shop.database.connect_as(&shop.role("app", "emit"));
    app.batch_execute("SET webhook.max_payload = '64MB'")
        .unwrap();
    let large = "SELECT webhook_emit('a', jsonb_build_object('x', repeat('x', 2000000)))";
    assert_eq!(refusal(&mut app, large).code().code(), "54000");
    shop.as_admin("INSERT INTO webhook.settings VALUES ('max_payload', '3MB')");
    app.batch_execute(large).unwrap();
    app.batch_execute("SET webhook.max_payload = '1kB'")
        .unwrap();
    app.batch_execute(large).unwrap();
    assert!(shop.database.query_one_value::<bool>(
        "SELECT count(*) = 0 FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
         WHERE p.prokind <> 'a' AND pg_get_functiondef(p.oid) ~ E'(current_setting|set_config)[(][^)]*webhook[.]'"
    ));
    for sql in [
        "INSERT INTO webhook.settings VALUES ('senders', '2')",
        "SELECT * FROM webhook.settings",
    ] {
        assert_eq!(refusal(&mut app, sql).code().code(), "42501", "{sql}");
    }
    for (name, value) in [
        ("enabled", "perhaps"),
        ("senders", "0"),
        ("senders", "many"),
        ("allow_networks", "10.0.0.1/8"),
        ("tenant_networks", "10.0.0.0/33"),
        ("deny_networks", "here"),
        ("allow_ports", "80, 70000"),
        ("allow_ports", "90-80"),
        ("require_https", "maybe"),
        ("poll_interval", "5"),
        ("stale_after", "2 days"),
        ("retention_sent", "-2"),
        ("retention_failed", "-1 day"),
        ("idempotency_window", "0s"),
        ("max_payload", "1 B"),
        ("keep_attempts", "none"),
        ("max_in_flight", "10"),
        ("site_name", "x"),
    ] {
        let sql = format!("INSERT INTO webhook.settings VALUES ('{name}', '{value}')");
        let refused = refusal(&mut shop.session(), &sql);
        assert_eq!(refused.code().code(), "22023", "{sql}");
        assert!(refused.detail().is_some(), "{sql}");
    }
    shop.as_admin(
        "INSERT INTO webhook.settings VALUES ('enabled', 'off'), ('allow_networks', '10.0.0.0/8, fd00::/8'),
            ('tenant_networks', '10.1.0.0/16'), ('deny_networks', ''), ('allow_ports', '443, 8000 - 8999'), ('require_https', 'on'), ('poll_interval', '250ms'),
            ('stale_after', '10min'), ('retention_sent', '-1'), ('retention_failed', '90d'), ('idempotency_window', '2 days'),
            ('keep_attempts', 'all'), ('senders', '2'), ('site', 'shop') ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    );
}

#[test]
fn relays_follow_the_settings() {
    let shop = Shop::installed("followed");
    let receiver = Receiver::start();
    shop.as_admin(&format!(
        "INSERT INTO webhook.settings VALUES ('enabled', 'off');
         SELECT webhook_set_endpoint('orders', '{}'); SELECT webhook_emit('order.created')",
        receiver.url("/")
    ));
    let relay = shop.relay();
    shop.database.wait_until(
        "SELECT jsonb_array_length(senders) = 1 AND state = 'disabled' FROM webhook_status()",
    );
    shop.as_admin("UPDATE webhook.settings SET value = 'on' WHERE name = 'enabled'");
    receiver.wait_for_requests(1);
    drop(relay);
}

#[test]
fn a_relay_keeps_tenants_out_of_networks_that_are_open_to_the_installation() {
    let shop = Shop::installed("tenants");
    let receiver = Receiver::start();
    let (url, own_url) = (receiver.url("/tenant"), receiver.url("/own"));
    shop.as_admin(&format!(
        "SELECT webhook_set_endpoint('acme/orders', '{url}', policy => 'fast');
         SELECT webhook_set_endpoint('own', '{own_url}', policy => 'fast')"
    ));
    let _relay = shop.relay();
    shop.as_admin("SELECT webhook_emit('order.created', tenant => 'acme')");
    receiver.wait_for_requests_to("/own", 1);
    shop.database.wait_until(
        "SELECT count(*) = 1 FROM webhook.dead_letter WHERE last_error LIKE '%, and not in webhook.tenant_networks'",
    );
    assert_eq!(receiver.requests_to("/tenant").len(), 0);
    shop.as_admin("INSERT INTO webhook.settings VALUES ('tenant_networks', '127.0.0.0/8')");
    // The relay reads the settings every few seconds.
    wait::until_true("the relay to go by the new setting", || {
        shop.as_admin("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
        !receiver.requests_to("/tenant").is_empty()
    });
}

#[test]
fn a_restored_dump_and_a_copy_send_nothing_until_they_are_adopted() {
    let shop = Shop::installed("original");
    let receiver = Receiver::start();
    shop.as_admin(&format!(
        "SELECT webhook_set_endpoint('orders', '{}'); SELECT webhook_emit('order.created')",
        receiver.url("/")
    ));
    let cluster = Cluster::portable();
    let restored = cluster.plain_database("restored");
    dump_and_restore((cluster, &shop.database), (cluster, &restored));
    let name = shop.database.name();
    restored.execute(&format!("CREATE DATABASE copied TEMPLATE {name}"));
    let copied = cluster.existing_database("copied");
    // On another server it may have the same OID.
    let server = Cluster::builder().without_preload().start();
    let oid: u32 = restored.query_one_value(&format!(
        "SELECT oid FROM pg_database WHERE datname = '{name}'"
    ));
    server
        .connect("postgres")
        .batch_execute(&format!(
            "CREATE ROLE {}; CREATE ROLE {}",
            shop.admin, shop.owner
        ))
        .unwrap();
    (server.connect("postgres"))
        .batch_execute(&format!("CREATE DATABASE elsewhere OID {oid}"))
        .unwrap();
    let elsewhere = server.existing_database("elsewhere");
    dump_and_restore((cluster, &shop.database), (&server, &elsewhere));
    for copy in [&restored, &copied, &elsewhere] {
        let held: bool = copy.query_one_value(
            "SELECT bool_and(state = 'HELD') AND count(*) = 1 FROM webhook.endpoint_status",
        );
        assert!(held, "{}", copy.name());
    }
    let own: bool = (shop.database).query_one_value(
        "SELECT bool_and(state = 'ACTIVE') AND count(*) = 1 FROM webhook.endpoint_status",
    );
    assert!(own);
    let role = shop.role("relay", "relay");
    copied.execute(&format!("SELECT webhook_grant('{role}', 'relay')"));
    let connection = (shop.connection(&role)).replace(&format!("dbname={name}"), "dbname=copied");
    let relay = Relay::start(PROGRAM, &connection, &[]);
    copied.wait_until("SELECT state = 'held' FROM webhook_status()");
    assert_eq!(receiver.request_count(), 0);
    copied.execute("SELECT webhook_adopt()");
    receiver.wait_for_requests(1);
    drop(relay);
}

#[test]
fn what_needs_the_library_says_so() {
    let shop = Shop::installed("limits");
    shop.as_admin("SELECT webhook_set_endpoint('orders', 'https://example.com/'); SELECT webhook_emit('order.created')");
    let preview = "SELECT webhook_preview((SELECT id FROM webhook.event), 'orders')";
    let refused = refusal(&mut shop.session(), preview);
    assert_eq!(refused.message(), "webhook_preview() needs the library");
    let filter = "SELECT webhook_set_endpoint('orders', filter => '$.data.name like_regex \"a+\"')";
    let refused = refusal(&mut shop.session(), filter);
    assert!(
        refused.detail().unwrap().contains("like_regex"),
        "{refused:?}"
    );
    shop.as_admin(
        "SELECT webhook_set_endpoint('orders', filter => '$.data.name == \"x like_regex y\"')",
    );
    let by_statement = "CREATE TABLE t (id int);
         CREATE TRIGGER t AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION webhook_trigger('a'); INSERT INTO t VALUES (1)";
    let refused = refusal(&mut shop.session(), by_statement);
    assert!(
        refused.hint().unwrap().contains("FOR EACH ROW"),
        "{refused:?}"
    );
}
