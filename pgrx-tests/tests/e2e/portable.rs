//! Webhook in a database that allows no library and has no superuser: `webhook-relay install`, `upgrade`, `uninstall`.
//!
//! Each database has an owner of its own, who makes roles (CREATEROLE) or does not, and a role of its own that everything of
//! ours belongs to, since all databases here are of one cluster.

use std::process::Output;

use postgres::Client;
use serde_json::json;
use webhook_e2e::copies::dump_and_restore;
use webhook_e2e::database::refusal;
use webhook_e2e::process::unprivileged;
use webhook_e2e::verifier::{verify_as, verify_by_key};
use webhook_e2e::{Answer, Cluster, Database, Receiver, Relay};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

/// A database of somebody who is no superuser.
struct Shop {
    database: Database,
    /// The owner of the database.
    admin: String,
    /// The owner of the schema.
    owner: String,
}

impl Shop {
    fn open(prefix: &str, attributes: &str) -> Shop {
        let database = Cluster::portable().plain_database(prefix);
        let admin = format!("admin_of_{}", database.name());
        let owner = format!("owner_in_{}", database.name());
        database.execute(&format!("CREATE ROLE {admin} LOGIN {attributes}"));
        let name = database.name();
        database.execute(&format!("ALTER DATABASE {name} OWNER TO {admin}"));
        Shop {
            database,
            admin,
            owner,
        }
    }

    /// With webhook in it.
    fn installed(prefix: &str) -> Shop {
        let shop = Shop::open(prefix, "CREATEROLE");
        shop.succeed(&["install", "--owner", &shop.owner]);
        shop.as_admin(
            "INSERT INTO webhook.settings VALUES ('allow_networks', '127.0.0.0/8'), ('allow_ports', '1-65535');
             INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, failure_threshold)
             VALUES ('fast', 2, 'fixed', '100 ms', 0, 0, 0)",
        );
        shop
    }

    fn connection(&self, role: &str) -> String {
        let (port, name) = (Cluster::portable().port(), self.database.name());
        format!("host=127.0.0.1 port={port} user={role} dbname={name}")
    }

    fn administer(&self, arguments: &[&str]) -> Output {
        let mut command = unprivileged(PROGRAM);
        command.env_clear().args(arguments);
        command.arg(self.connection(&self.admin)).output().unwrap()
    }

    #[track_caller]
    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.administer(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Its standard output and standard error.
    #[track_caller]
    fn fail(&self, arguments: &[&str]) -> (String, String) {
        let output = self.administer(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }

    fn session(&self) -> Client {
        self.database.connect_as(&self.admin)
    }

    #[track_caller]
    fn as_admin(&self, sql: &str) {
        let done = self.session().batch_execute(sql);
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// A role that may log in, and has this level.
    fn role(&self, name: &str, level: &str) -> String {
        let role = format!("{name}_of_{}", self.database.name());
        self.database.execute(&format!("CREATE ROLE {role} LOGIN"));
        self.as_admin(&format!("SELECT webhook_grant('{role}', '{level}')"));
        role
    }

    fn relay(&self) -> Relay {
        let role = self.role("relay", "relay");
        Relay::start(PROGRAM, &self.connection(&role), &[])
    }
}

/// All that is in a database, but for what it was created with.
fn objects(database: &Database) -> Vec<String> {
    let rows = database.connect().query(
        "SELECT pg_describe_object(d.classid, d.objid, 0) FROM (
             SELECT 'pg_class'::regclass, oid FROM pg_class UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc
             UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type UNION ALL SELECT 'pg_namespace'::regclass, oid FROM pg_namespace
             UNION ALL SELECT 'pg_trigger'::regclass, oid FROM pg_trigger) AS d (classid, objid)
         WHERE d.objid >= 16384 ORDER BY 1",
        &[],
    );
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

fn rights(database: &Database) -> Vec<String> {
    let rows = database.connect().query(
        "SELECT p.oid::regprocedure || ' ' || array(SELECT unnest(p.proacl)::text ORDER BY 1)::text FROM webhook.members() m
         JOIN pg_proc p ON p.oid = m.routine
         UNION ALL
         SELECT c.oid::regclass || ' ' || array(SELECT unnest(c.relacl)::text ORDER BY 1)::text FROM pg_class c
         WHERE c.relnamespace = 'webhook'::regnamespace AND c.relacl IS NOT NULL
         ORDER BY 1",
        &[],
    );
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

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
fn a_role_that_makes_no_roles_is_told_the_statements_for_an_administrator() {
    let shop = Shop::open("told", "");
    let before = objects(&shop.database);
    let (statements, said) = shop.fail(&["install", "--owner", &shop.owner]);
    assert!(said.contains("nothing was changed"), "{said}");
    assert!(statements.contains("CREATE ROLE"), "{statements}");
    assert_eq!(objects(&shop.database), before);

    shop.database.execute(&statements);
    let told = shop.succeed(&["install", "--owner", &shop.owner]);
    assert!(told.contains("is not to be worked as"), "{told}");
    shop.as_admin("SELECT webhook_emit('order.created')");
    shop.succeed(&["upgrade"]);
    let uninstalled = shop.succeed(&["uninstall"]);
    assert!(uninstalled.contains("stays"), "{uninstalled}");
    assert_eq!(objects(&shop.database), before);
}

#[test]
fn everything_belongs_to_a_role_that_nobody_works_as() {
    let shop = Shop::installed("owned");
    let owner = &shop.owner;
    let question = |sql: &str| shop.database.query_one_value::<i64>(sql);
    assert_eq!(
        question(&format!(
            "SELECT count(*) FROM (SELECT relowner FROM pg_class WHERE relnamespace = 'webhook'::regnamespace
             UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'webhook'::regnamespace OR proname LIKE 'webhook%'
             UNION ALL SELECT typowner FROM pg_type WHERE typnamespace = 'webhook'::regnamespace
             UNION ALL SELECT nspowner FROM pg_namespace WHERE nspname = 'webhook') o (owner) WHERE owner <> '{owner}'::regrole"
        )),
        0
    );
    assert_eq!(
        question(&format!(
            "SELECT count(*) FROM pg_auth_members WHERE '{owner}'::regrole IN (roleid, member)
             AND current_setting('server_version_num')::int < 160000"
        )),
        0
    );
    assert_eq!(
        question(&format!(
            "SELECT count(*) FROM pg_roles r WHERE rolname = '{owner}' AND (rolcanlogin OR rolsuper OR rolcreaterole
             OR rolcreatedb OR rolreplication OR rolbypassrls OR has_schema_privilege(oid, 'public', 'CREATE')
             OR has_database_privilege(oid, current_database(), 'CREATE'))"
        )),
        0
    );
    // PUBLIC may do nothing.
    assert_eq!(
        question(
            "SELECT count(*) FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
             CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0"
        ),
        0
    );
    // Functions with the owner's rights look nothing up where others create.
    assert_eq!(
        question(
            "SELECT count(*) FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
             WHERE p.prosecdef AND p.proname <> 'emit'
               AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))"
        ),
        0
    );
    let mut admin = shop.session();
    assert_eq!(
        refusal(&mut admin, &format!("SET ROLE {owner}"))
            .code()
            .code(),
        "42501"
    );
}

#[test]
fn an_upgrade_can_be_repeated_and_keeps_what_people_did() {
    let shop = Shop::installed("upgraded");
    let [app, denied] = ["app", "denied"].map(|name| shop.role(name, "emit"));
    shop.database.execute(&format!(
        "REVOKE EXECUTE ON FUNCTION webhook_unwatch FROM {denied};
         GRANT EXECUTE ON FUNCTION webhook_emit(text, jsonb, text, text, text, timestamptz, timestamptz, text, text[]) TO PUBLIC"
    ));
    shop.as_admin(
        "SELECT webhook_set_endpoint('orders', 'https://example.com/'); SELECT webhook_emit('order.created')",
    );
    let (before, owned) = (rights(&shop.database), objects(&shop.database));
    for _ in 0..2 {
        shop.succeed(&["upgrade"]);
        assert_eq!(objects(&shop.database), owned);
        assert_eq!(rights(&shop.database), before);
    }
    // A later version brings a function; whoever has the level gets it, unless something was taken away by hand.
    shop.database.execute("DROP FUNCTION webhook_watch");
    shop.succeed(&["upgrade"]);
    let has = |role: &str| -> bool {
        shop.database.query_one_value(&format!(
            "SELECT has_function_privilege('{role}', m.routine, 'EXECUTE') FROM webhook.members() m WHERE name = 'webhook_watch'"
        ))
    };
    assert!(has(&app) && has(&shop.admin) && !has(&denied));
    assert_eq!(
        shop.database
            .query_one_value::<i64>("SELECT count(*) FROM webhook.delivery"),
        1
    );
}

#[test]
fn a_later_version_is_not_upgraded() {
    let shop = Shop::installed("later");
    shop.database.execute(
        "CREATE OR REPLACE FUNCTION webhook.portable_version() RETURNS text LANGUAGE sql IMMUTABLE RETURN '999.0.0'",
    );
    let (_, said) = shop.fail(&["upgrade"]);
    assert!(said.contains("it is too old"), "{said}");
}

#[test]
fn uninstall_leaves_nothing_and_drops_nothing_unasked() {
    let shop = Shop::open("uninstalled", "CREATEROLE");
    shop.as_admin("CREATE TABLE orders (id int)");
    let before = objects(&shop.database);
    shop.succeed(&["install", "--owner", &shop.owner]);
    shop.role("app", "emit");
    shop.as_admin(
        "SELECT webhook_set_endpoint('orders', 'https://example.com/');
         SELECT webhook_watch('orders', 'order'); INSERT INTO orders VALUES (1)",
    );
    let (_, said) = shop.fail(&["uninstall"]);
    assert!(said.contains("1 deliveries were not sent yet"), "{said}");
    shop.as_admin("UPDATE webhook.delivery SET status = 'CANCELLED'");
    let (_, said) = shop.fail(&["uninstall"]);
    assert!(
        said.contains("trigger webhook_insert on table public.orders"),
        "{said}"
    );
    shop.as_admin("SELECT webhook_emit('order.created')");
    let told = shop.succeed(&["uninstall", "--force"]);
    assert!(!told.contains("stays"), "{told}");
    assert_eq!(objects(&shop.database), before);
    let is_left = format!("SELECT to_regrole('{}') IS NOT NULL", shop.owner);
    assert!(!shop.database.query_one_value::<bool>(&is_left));
    let (_, said) = shop.fail(&["uninstall"]);
    assert!(said.contains("does not have webhook"), "{said}");
}

#[test]
fn the_extension_and_webhook_without_the_library_refuse_each_other() {
    let shop = Shop::installed("both");
    let refused = shop.database.refusal("CREATE EXTENSION webhook");
    assert_eq!(
        refused.message(),
        "this database has webhook without the library already"
    );
    let (_, said) = shop.fail(&["install"]);
    assert!(said.contains("has webhook already"), "{said}");
    let (_, said) = shop.fail(&["upgrade", "--owner", "postgres"]);
    assert!(said.contains("leave --owner out"), "{said}");

    let with_extension = Shop::open("extended", "CREATEROLE");
    with_extension.database.execute("CREATE EXTENSION webhook");
    for action in ["install", "upgrade", "uninstall"] {
        let (_, said) = with_extension.fail(&[action]);
        assert!(said.contains("has the extension webhook"), "{said}");
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
            ('deny_networks', ''), ('allow_ports', '443, 8000 - 8999'), ('require_https', 'on'), ('poll_interval', '250ms'),
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
fn writers_of_a_watched_table_need_the_level_emit() {
    let shop = Shop::installed("watched");
    let (notices, heard) = std::sync::mpsc::channel();
    let mut session = shop.database.connect_noticing(move |notice| {
        let _ = notices.send(notice.message().to_owned());
    });
    session
        .batch_execute(&format!(
            "SET ROLE {}; CREATE TABLE orders (id int, status text); SELECT webhook_watch('orders', 'order')",
            shop.admin
        ))
        .unwrap();
    assert!(
        heard
            .try_iter()
            .any(|notice| notice.contains("need the level emit"))
    );

    let writer = format!("writer_of_{}", shop.database.name());
    shop.database
        .execute(&format!("CREATE ROLE {writer} LOGIN"));
    shop.as_admin(&format!("GRANT INSERT ON orders TO {writer}"));
    let mut written = shop.database.connect_as(&writer);
    let insert = "INSERT INTO orders VALUES (1, 'new')";
    assert_eq!(refusal(&mut written, insert).code().code(), "42501");
    shop.as_admin(&format!("SELECT webhook_grant('{writer}', 'emit')"));
    written.batch_execute(insert).unwrap();
    let payload: serde_json::Value = shop
        .database
        .query_one_value("SELECT payload FROM webhook.event");
    assert_eq!(payload["record"], json!({"id": 1, "status": "new"}));
}

#[test]
fn code_of_a_tables_owner_runs_with_the_writers_rights() {
    let shop = Shop::installed("cast");
    let app = shop.role("app", "emit");
    shop.as_admin(&format!(
        "CREATE TYPE mood AS ENUM ('glad');
         CREATE TABLE seen (who text);
         CREATE FUNCTION spy(mood) RETURNS json LANGUAGE sql AS
             'INSERT INTO public.seen VALUES (current_user) RETURNING json ''1''';
         CREATE CAST (mood AS json) WITH FUNCTION spy(mood);
         CREATE TABLE orders (id int, mood mood);
         SELECT webhook_watch('orders', 'order');
         GRANT INSERT ON orders, seen TO {app}; GRANT SELECT ON seen TO {app}"
    ));
    let mut writer = shop.database.connect_as(&app);
    writer
        .batch_execute("INSERT INTO orders VALUES (1, 'glad')")
        .unwrap();
    let seen: Vec<String> = shop
        .database
        .query_one_value("SELECT array_agg(DISTINCT who) FROM seen");
    assert_eq!(seen, [app]);
}

#[test]
fn the_level_emit_sees_nothing_and_changes_nothing_else() {
    let shop = Shop::installed("least");
    shop.as_admin("SELECT webhook_set_endpoint('orders', 'https://example.com/secret')");
    let mut app = shop.database.connect_as(&shop.role("app", "emit"));
    for sql in [
        "SELECT * FROM webhook.endpoint",
        "SELECT * FROM webhook.secret",
        "SELECT * FROM webhook.event",
        "SELECT webhook_secret('orders')",
        "SELECT webhook_grant(current_user, 'admin')",
        "SELECT webhook.grant_level(current_user::text, 'admin')",
        "SELECT webhook.write_installation(gen_random_uuid())",
        "SELECT webhook.configured('site')",
        "SELECT webhook.emit_events(NULL, NULL, NULL, NULL)",
        "SELECT webhook.sender_settings()",
        "CREATE TABLE webhook.mine (id int)",
        "CREATE FUNCTION webhook.new_id(int) RETURNS uuid LANGUAGE sql RETURN gen_random_uuid()",
        "CREATE TRIGGER t BEFORE INSERT ON webhook.event FOR EACH ROW EXECUTE FUNCTION webhook_trigger('a')",
    ] {
        assert_eq!(refusal(&mut app, sql).code().code(), "42501", "{sql}");
    }
    // An administrator gives levels only if that right is its own.
    let mut other = shop.database.connect_as(&shop.role("other", "admin"));
    let give = "SELECT webhook_grant(current_user, 'relay')";
    assert_eq!(refusal(&mut other, give).code().code(), "42501");
}

#[test]
fn the_owner_of_the_database_replaces_nothing() {
    let shop = Shop::installed("tried");
    let mut admin = shop.session();
    for sql in [
        "CREATE OR REPLACE FUNCTION webhook.new_id() RETURNS uuid LANGUAGE sql RETURN gen_random_uuid()",
        "CREATE OR REPLACE FUNCTION public.webhook_pause(endpoint text) RETURNS bigint LANGUAGE sql RETURN 1",
        "CREATE FUNCTION webhook.sha256(text) RETURNS bytea LANGUAGE sql RETURN ''::bytea",
        "ALTER TABLE webhook.endpoint OWNER TO CURRENT_USER",
        "ALTER SCHEMA webhook RENAME TO mine",
        "DROP SCHEMA webhook CASCADE",
        "CREATE TRIGGER t BEFORE INSERT ON webhook.event FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "ALTER FUNCTION webhook.emit SECURITY INVOKER",
    ] {
        let code = refusal(&mut admin, sql).code().code().to_owned();
        assert!(["42501", "0LP01"].contains(&code.as_str()), "{sql}: {code}");
    }
}

#[test]
fn nothing_is_installed_over_what_somebody_has_put_there() {
    for (planted, expected) in [
        (
            "CREATE SCHEMA webhook",
            "schema \"webhook\" that is not ours",
        ),
        (
            "CREATE FUNCTION webhook_pause(endpoint text) RETURNS bigint LANGUAGE sql RETURN 1",
            "must be owner of function webhook_pause",
        ),
        ("CREATE ROLE OWNER LOGIN", "can be used by clients"),
        ("CREATE ROLE OWNER CREATEDB", "has rights that the owner"),
        (
            "CREATE ROLE OWNER; CREATE ROLE OWNER_member IN ROLE OWNER",
            "has members",
        ),
        (
            "CREATE ROLE OWNER; ALTER DEFAULT PRIVILEGES FOR ROLE OWNER GRANT SELECT ON TABLES TO PUBLIC",
            "has default privileges",
        ),
    ] {
        let shop = Shop::open("planted", "CREATEROLE");
        // By a superuser: the worst that could be there.
        shop.database
            .execute(&planted.replace("OWNER", &shop.owner));
        let before = objects(&shop.database);
        let (_, said) = shop.fail(&["install", "--owner", &shop.owner]);
        assert!(said.contains(expected), "{planted}: {said}");
        assert_eq!(objects(&shop.database), before, "{planted}");
    }
}

/// A group role cannot log in either; its members can do as it does.
#[test]
fn code_that_somebody_has_planted_is_not_executed() {
    let shop = Shop::open("lured", "CREATEROLE");
    let group = format!("group_of_{}", shop.database.name());
    shop.database.execute(&format!(
        "CREATE ROLE {group}; CREATE ROLE {group}_member IN ROLE {group}; CREATE TABLE seen (who text); GRANT ALL ON seen TO PUBLIC;
         CREATE SCHEMA webhook AUTHORIZATION {group}; SET ROLE {group};
         CREATE FUNCTION webhook.portable_version() RETURNS text LANGUAGE plpgsql AS
             $$ BEGIN RESET ROLE; INSERT INTO public.seen VALUES (current_user); RETURN '0.1.0'; END $$;
         CREATE FUNCTION webhook.unsent() RETURNS text LANGUAGE sql AS 'SELECT webhook.portable_version()'"
    ));
    for action in ["install", "upgrade", "uninstall"] {
        let (_, said) = shop.fail(&[action]);
        assert!(said.contains("has members"), "{said}");
    }
    assert_eq!(
        shop.database
            .query_one_value::<i64>("SELECT count(*) FROM seen"),
        0
    );
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
