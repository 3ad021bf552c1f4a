//! The rights of roles without the library: nobody works as the owner, and a level allows no more than it says.

use serde_json::json;
use webhook_e2e::database::refusal;
use webhook_e2e::grants;

use super::shop::Shop;

#[test]
fn the_catalogs_have_the_grants_that_the_tables_list_and_those_of_the_role_that_installed() {
    let shop = Shop::installed("granted");
    let levels = ["emit", "read", "operate", "relay", "admin"];
    let named = levels.map(|level| (shop.role(&format!("has_{level}"), level), level));
    let mut roles: Vec<(&str, &str)> = (named.iter())
        .map(|(role, level)| (role.as_str(), *level))
        .collect();
    roles.push((&shop.admin, "admin"));
    let found = grants::differences(&mut shop.database.connect(), &roles);
    let expected = [
        "webhook.grant_level(text,text)",
        "webhook.revoke_level(text,text)",
        "webhook_grant(text,text)",
        "webhook_revoke(text,text)",
    ]
    .map(|routine| {
        format!(
            "granted and not listed: EXECUTE on routine {routine} to {}",
            shop.admin
        )
    });
    assert_eq!(found, expected);
    for (role, level) in &named {
        shop.as_admin(&format!("SELECT webhook_revoke('{role}', '{level}')"));
        shop.database.execute(&format!("DROP ROLE {role}"));
    }
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
