//! `webhook-relay install`, `upgrade` and `uninstall`, given by the owner of a database.

use webhook_e2e::Database;

use super::shop::Shop;

/// The objects that were made in a database after it was created.
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
    // A later version brings a function; roles with the level get it, unless something was taken away by hand.
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
        "CREATE OR REPLACE FUNCTION webhook.portable_version() RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''999.0.0'''",
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
            "CREATE ROLE OWNER; GRANT CREATE ON SCHEMA public TO OWNER; SET ROLE OWNER; CREATE TABLE public.t (id int)",
            "owns objects in this database already\nDETAIL:  table public.t",
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
