//! Code that a role without rights has put in the way of `webhook-relay upgrade` and `uninstall`: none of it runs, and
//! all of it is refused by name.

use std::process::Output;

use webhook_e2e::copies::dump_and_restore;
use webhook_e2e::pg_config;
use webhook_e2e::scripts::VERSION;
use webhook_e2e::{Cluster, Database};

use super::shop::{Shop, administer};

/// Code of the database's owner, which takes every right that it runs with. A sequence shows that it ran, whatever
/// happened to its transaction.
pub struct Trap<'a>(&'a Shop);

impl<'a> Trap<'a> {
    pub fn set(shop: &'a Shop) -> Trap<'a> {
        let admin = &shop.admin;
        let body = format!(
            "BEGIN
                 PERFORM nextval('public.ran');
                 BEGIN
                     RESET ROLE;
                     ALTER ROLE {admin} SUPERUSER;
                 EXCEPTION WHEN OTHERS THEN
                     NULL;
                 END;"
        );
        shop.as_admin(&format!(
            "CREATE SEQUENCE public.ran;
             GRANT ALL ON SEQUENCE public.ran TO PUBLIC;
             CREATE FUNCTION public.trap() RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ {body} RETURN '0.0.1'; END $$;
             CREATE FUNCTION public.trap_row() RETURNS trigger LANGUAGE plpgsql AS $$ {body} RETURN coalesce(NEW, OLD); END $$;
             CREATE FUNCTION public.trap_command() RETURNS event_trigger LANGUAGE plpgsql AS $$ {body} END $$"
        ));
        Trap(shop)
    }

    /// Planting code may have executed it.
    fn reset(&self) {
        let admin = &self.0.admin;
        self.0.database.execute(&format!(
            "SELECT setval('public.ran', 1, false); ALTER ROLE {admin} NOSUPERUSER"
        ));
    }

    #[track_caller]
    pub fn assert_unsprung(&self, what: &str) {
        let admin = &self.0.admin;
        let is_superuser = format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{admin}'");
        let database = &self.0.database;
        assert!(
            !database.query_one_value::<bool>(&is_superuser),
            "{what}: superuser"
        );
        let ran = "SELECT is_called FROM public.ran";
        assert!(!database.query_one_value::<bool>(ran), "{what}: it ran");
    }
}

/// The roles that run the program: the administrator of the server, and the owner of the database.
fn connections(shop: &Shop) -> [String; 2] {
    [shop.superuser_connection(), shop.connection(&shop.admin)]
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has_schema(database: &Database) -> bool {
    database.query_one_value("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'webhook')")
}

/// Runs `upgrade` and `uninstall` by each role. Each is refused with these words, and nothing planted has run.
#[track_caller]
fn assert_refused(shop: &Shop, trap: &Trap, what: &str, words: &[&str]) {
    for connection in connections(shop) {
        for action in ["upgrade", "uninstall"] {
            let output = administer(&connection, &[action]);
            let said = said(&output);
            trap.assert_unsprung(&format!("{what}, {action}: {said}"));
            assert_eq!(output.status.code(), Some(1), "{what}, {action}: {said}");
            for words in words {
                assert!(
                    said.contains(words),
                    "{what}, {action}: no {words:?} in {said}"
                );
            }
        }
    }
}

#[test]
fn a_schema_that_only_looks_like_an_installation_is_not_executed() {
    let planted_version = "CREATE FUNCTION webhook.portable_version() RETURNS text LANGUAGE sql AS 'SELECT public.trap()'".to_owned();
    let true_version = format!(
        "CREATE FUNCTION webhook.portable_version() RETURNS text LANGUAGE sql AS 'SELECT ''{VERSION}'''"
    );
    let unknown_version = true_version.replace(VERSION, "0.0.1");
    let rest = "CREATE VIEW webhook.delivery_queue AS SELECT public.trap();
         CREATE FUNCTION webhook.unsent() RETURNS text LANGUAGE sql AS 'SELECT public.trap()'";
    let made = "CREATE SCHEMA mine AUTHORIZATION GHOST; ALTER SCHEMA mine RENAME TO webhook; SET ROLE GHOST;";
    for (what, schema, version, words) in [
        (
            "of pg_database_owner",
            "SET ROLE ADMIN; CREATE SCHEMA webhook;",
            &planted_version,
            "role \"pg_database_owner\" is predefined",
        ),
        (
            "of the database's owner",
            "CREATE SCHEMA webhook AUTHORIZATION ADMIN; SET ROLE ADMIN;",
            &planted_version,
            "has rights that the owner of webhook's tables must not have",
        ),
        (
            "of a role that had a member",
            made,
            &planted_version,
            "portable_version() has no version",
        ),
        (
            "of an unknown version",
            made,
            &unknown_version,
            "does not know that version",
        ),
        (
            "of this version",
            made,
            &true_version,
            "Added or changed: view webhook.delivery_queue.",
        ),
    ] {
        let shop = Shop::open("lookalike", "CREATEROLE");
        let trap = Trap::set(&shop);
        let ghost = format!("ghost_of_{}", shop.database.name());
        let mut plant = format!(
            "SET ROLE ADMIN; CREATE ROLE {ghost} NOLOGIN; RESET ROLE; {schema} {version}; {rest}"
        );
        if what == "of pg_database_owner" {
            plant += "; ALTER SCHEMA webhook OWNER TO pg_database_owner";
            for object in [
                "VIEW webhook.delivery_queue",
                "FUNCTION webhook.portable_version()",
                "FUNCTION webhook.unsent()",
            ] {
                plant += &format!("; ALTER {object} OWNER TO pg_database_owner");
            }
        }
        let plant = plant.replace("GHOST", &ghost).replace("ADMIN", &shop.admin);
        shop.database.execute(&plant);
        assert_refused(&shop, &trap, what, &[words]);
        for connection in connections(&shop) {
            let output = administer(&connection, &["uninstall", "--force"]);
            trap.assert_unsprung(&format!("{what}: {}", said(&output)));
        }
        let is_dropped = schema == made;
        assert_eq!(has_schema(&shop.database), !is_dropped, "{what}");
    }
}

/// A role that was a member of the owner for a moment may have done any of this.
#[test]
fn additions_to_tables_are_refused_by_name() {
    let shop = Shop::installed("added");
    let trap = Trap::set(&shop);
    let additions = [
        (
            "CREATE TRIGGER a BEFORE DELETE ON webhook.policy FOR EACH ROW EXECUTE FUNCTION public.trap_row()",
            "trigger a on table webhook.policy",
        ),
        (
            "CREATE CONSTRAINT TRIGGER b AFTER INSERT ON webhook.policy DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION public.trap_row()",
            "trigger b on table webhook.policy",
        ),
        (
            "CREATE OR REPLACE TRIGGER check_secret BEFORE INSERT OR UPDATE ON webhook.secret
                 FOR EACH ROW WHEN (public.trap() IS NOT NULL) EXECUTE FUNCTION webhook.check_secret()",
            "trigger check_secret on table webhook.secret",
        ),
        (
            "CREATE RULE c AS ON DELETE TO webhook.policy DO ALSO SELECT public.trap()",
            "rule c on table webhook.policy",
        ),
        (
            "CREATE RULE d AS ON INSERT TO webhook.waiting DO INSTEAD SELECT public.trap()",
            "rule d on view webhook.waiting",
        ),
        (
            "ALTER TABLE webhook.policy ALTER on_trip SET DEFAULT public.trap()",
            "column on_trip of table webhook.policy",
        ),
        (
            "ALTER TABLE webhook.endpoint ADD e text DEFAULT public.trap()",
            "column e of table webhook.endpoint",
        ),
        (
            "ALTER TABLE webhook.policy ADD CONSTRAINT f CHECK (public.trap() IS NOT NULL) NOT VALID",
            "constraint f on table webhook.policy",
        ),
        (
            "ALTER TABLE webhook.policy DROP CONSTRAINT policy_backoff_check;
             ALTER TABLE webhook.policy ADD CONSTRAINT policy_backoff_check CHECK (public.trap() IS NOT NULL) NOT VALID",
            "constraint policy_backoff_check on table webhook.policy",
        ),
        (
            "ALTER TABLE webhook.alarm ADD CONSTRAINT g UNIQUE (raised_at) DEFERRABLE",
            "constraint g on table webhook.alarm",
        ),
        (
            "CREATE POLICY h ON webhook.delivery_queue USING (public.trap() IS NOT NULL)",
            "policy h on table webhook.delivery_queue",
        ),
        (
            "ALTER TABLE webhook.delivery_queue ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            "table webhook.delivery_queue;",
        ),
        (
            "CREATE INDEX i ON webhook.delivery_queue ((public.trap()))",
            "index webhook.i",
        ),
        (
            "CREATE STATISTICS webhook.j ON (public.trap() || event_type) FROM webhook.delivery_queue",
            "statistics object webhook.j",
        ),
        (
            "CREATE TABLE webhook.k () INHERITS (webhook.event)",
            "table webhook.k, which inherits from webhook.event",
        ),
        (
            "CREATE TABLE webhook.l (id int CONSTRAINT m REFERENCES webhook.endpoint ON DELETE CASCADE)",
            "constraint m on table webhook.l",
        ),
        (
            "GRANT TRIGGER ON webhook.event TO PUBLIC",
            "right TRIGGER of role PUBLIC on table webhook.event",
        ),
        (
            "GRANT REFERENCES (id) ON webhook.endpoint TO ADMIN",
            "on column id of table webhook.endpoint",
        ),
    ];
    assert_each_named(&shop, &trap, &additions);
}

#[test]
fn objects_that_the_scripts_do_not_make_are_refused_by_name() {
    let shop = Shop::installed("objects");
    let trap = Trap::set(&shop);
    // A session that still acts as the owner.
    let mut session = shop.database.connect();
    let owner = &shop.owner;
    session
        .batch_execute(&format!(
            "SET ROLE {owner}; CREATE TEMP TABLE temporary (id int)"
        ))
        .unwrap();
    let objects = [
        ("", "temporary"),
        (
            "CREATE FUNCTION webhook.grant_level(name, text) RETURNS void LANGUAGE sql AS 'SELECT public.trap()'",
            "function webhook.grant_level(name,text)",
        ),
        (
            "CREATE OR REPLACE FUNCTION webhook.installation() RETURNS TABLE (id uuid, system_identifier bigint, major_version int)
                 LANGUAGE sql AS 'SELECT public.trap()::uuid, 1::bigint, 15'",
            "function webhook.installation()",
        ),
        (
            "CREATE PROCEDURE webhook.a() LANGUAGE sql AS 'SELECT public.trap()'",
            "function webhook.a()",
        ),
        (
            "CREATE AGGREGATE webhook.b(text) (SFUNC = textcat, STYPE = text)",
            "webhook.b(text)",
        ),
        ("CREATE VIEW webhook.c AS SELECT public.trap()", "view webhook.c"),
        (
            "CREATE MATERIALIZED VIEW webhook.d AS SELECT public.trap() WITH NO DATA",
            "materialized view webhook.d",
        ),
        ("CREATE SEQUENCE webhook.e", "sequence webhook.e"),
        ("CREATE TYPE webhook.f AS ENUM ('glad')", "type webhook.f"),
        (
            "ALTER DOMAIN webhook.type_beside_json ADD CONSTRAINT g CHECK (public.trap() IS NOT NULL)",
            "constraint g",
        ),
        (
            "CREATE FUNCTION webhook.cast_it(webhook.replay) RETURNS text LANGUAGE sql AS 'SELECT public.trap()';
             CREATE CAST (webhook.replay AS text) WITH FUNCTION webhook.cast_it(webhook.replay) AS IMPLICIT",
            "cast from webhook.replay to text",
        ),
        (
            "CREATE OPERATOR webhook.= (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int)",
            "operator webhook.=(integer,integer)",
        ),
        (
            "CREATE COLLATION webhook.h (LOCALE = 'C')",
            "collation webhook.h",
        ),
        (
            "CREATE CONVERSION webhook.i FOR 'UTF8' TO 'LATIN1' FROM utf8_to_iso8859_1",
            "conversion webhook.i",
        ),
        (
            "CREATE TEXT SEARCH CONFIGURATION webhook.j (COPY = simple)",
            "text search configuration webhook.j",
        ),
        (
            "CREATE TEXT SEARCH DICTIONARY webhook.k (TEMPLATE = simple)",
            "text search dictionary webhook.k",
        ),
        (
            "RESET ROLE; CREATE SCHEMA l AUTHORIZATION OWNER",
            "schema l",
        ),
        (
            "RESET ROLE; CREATE FUNCTION public.webhook_emit(int) RETURNS void LANGUAGE sql AS 'SELECT public.trap()';
             ALTER FUNCTION public.webhook_emit(int) owner TO OWNER",
            "function public.webhook_emit(integer)",
        ),
        ("GRANT CREATE ON SCHEMA webhook TO ADMIN", "on schema webhook"),
    ];
    assert_each_named(&shop, &trap, &objects);
}

/// Each statement is executed as the owner; `--force` then drops all of it, and executes nothing.
#[track_caller]
fn assert_each_named(shop: &Shop, trap: &Trap, planted: &[(&str, &str)]) {
    let owner = &shop.owner;
    for (statement, _) in planted {
        let statement = statement
            .replace("ADMIN", &shop.admin)
            .replace("OWNER", owner);
        shop.database
            .execute(&format!("SET ROLE {owner}; {statement}"));
    }
    trap.reset();
    let names: Vec<&str> = planted.iter().map(|(_, name)| *name).collect();
    assert_refused(shop, trap, "planted", &names);
    let output = administer(&shop.superuser_connection(), &["uninstall", "--force"]);
    trap.assert_unsprung("uninstall --force");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!has_schema(&shop.database));
}

#[test]
fn objects_of_another_role_are_refused_by_name() {
    let shop = Shop::installed("foreign");
    let trap = Trap::set(&shop);
    shop.database.execute(&format!(
        "CREATE VIEW webhook.mine AS SELECT public.trap(); ALTER VIEW webhook.mine OWNER TO {}",
        shop.admin
    ));
    assert_refused(
        &shop,
        &trap,
        "foreign",
        &["do not belong to role", "view webhook.mine"],
    );
    let output = administer(&shop.superuser_connection(), &["uninstall", "--force"]);
    assert!(said(&output).contains("view webhook.mine"), "{output:?}");
    assert!(has_schema(&shop.database));
}

#[test]
fn functions_views_and_triggers_of_ours_are_replaced_before_they_run() {
    let shop = Shop::installed("replaced");
    let trap = Trap::set(&shop);
    shop.as_admin("SELECT webhook_set_endpoint('orders', 'https://example.com/'); SELECT webhook_emit('order.created')");
    let planted = "SELECT count(*) FROM pg_proc p WHERE p.prosrc LIKE '%public.trap()%'
                       AND (p.pronamespace = 'webhook'::regnamespace OR p.proname LIKE 'webhook%')";
    let owner = &shop.owner;
    shop.database.execute(&format!(
        "GRANT CREATE ON SCHEMA public TO {owner};
         SET ROLE {owner};
         SET check_function_bodies = off;
         DO $plant$
         DECLARE
             ours record;
         BEGIN
             FOR ours IN
                 SELECT p.oid::regprocedure AS name, p.pronamespace::regnamespace AS schema, p.proname,
                        pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
                 FROM pg_proc p
                 WHERE p.proowner = current_user::regrole AND p.prokind = 'f'
                   AND p.proname NOT IN ('portable_version', 'installation')
             LOOP
                 EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', ours.schema,
                                ours.proname, ours.arguments, ours.result,
                                'BEGIN PERFORM public.trap(); RAISE EXCEPTION ''planted''; END');
             END LOOP;
         END $plant$;
         CREATE OR REPLACE VIEW webhook.code AS
             SELECT ''::text AS kind, ''::text AS code, public.trap() AS meaning"
    ));
    assert!(shop.database.query_one_value::<i64>(planted) > 200);
    for connection in connections(&shop) {
        let output = administer(&connection, &["upgrade"]);
        trap.assert_unsprung(&said(&output));
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(shop.database.query_one_value::<i64>(planted), 0);
    }
    let definition = "SELECT pg_get_viewdef('webhook.code') LIKE '%trap%'";
    assert!(!shop.database.query_one_value::<bool>(definition));
    shop.as_admin("SELECT webhook_emit('order.created')");
}

#[test]
fn an_event_trigger_that_calls_another_roles_function_is_refused() {
    let shop = Shop::installed("event_trigger");
    let trap = Trap::set(&shop);
    let admin = &shop.admin;
    let name = format!("planted_in_{}", shop.database.name());
    // Only a superuser makes one, and may leave its function to another role.
    shop.database.execute(&format!(
        "CREATE FUNCTION public.harmless() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
         CREATE EVENT TRIGGER {name} ON ddl_command_end EXECUTE FUNCTION public.harmless();
         CREATE EVENT TRIGGER {name}_too ON ddl_command_end EXECUTE FUNCTION public.trap_command()"
    ));
    let ran: i64 = (shop.database).query_one_value("SELECT last_value FROM public.ran");
    for arguments in [&["upgrade"][..], &["uninstall"], &["uninstall", "--force"]] {
        let output = administer(&shop.superuser_connection(), arguments);
        let now: i64 = (shop.database).query_one_value("SELECT last_value FROM public.ran");
        assert_eq!(now, ran, "{arguments:?}: {}", said(&output));
        let expected =
            format!("event trigger {name}_too calls public.trap_command() of role {admin}");
        assert!(said(&output).contains(&expected), "{}", said(&output));
        assert!(!said(&output).contains("harmless"), "{}", said(&output));
    }
    shop.database
        .execute(&format!("DROP EVENT TRIGGER {name}_too"));
    trap.assert_unsprung("before it was there");
    let output = administer(&shop.superuser_connection(), &["upgrade"]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_restored_installation_is_ours_and_can_be_upgraded_and_uninstalled() {
    let shop = Shop::installed("dumped");
    shop.role("app", "operate");
    let cluster = Cluster::portable();
    let restored = cluster.plain_database("restored");
    dump_and_restore((cluster, &shop.database), (cluster, &restored));
    let connection = cluster.address(cluster.port(), restored.name());
    for arguments in [["upgrade"], ["uninstall"]] {
        let output = administer(&connection, &arguments);
        assert!(output.status.success(), "{}", said(&output));
    }
    assert!(!has_schema(&restored));
}

/// There the role webhook_owner is also that of the extension.
#[test]
fn a_server_with_the_library_lets_an_installation_without_it_be_compared() {
    let cluster = Cluster::shared();
    let database = cluster.plain_database("beside_the_library");
    let other = cluster.plain_database("with_the_library");
    other.execute("CREATE EXTENSION webhook");
    let connection = cluster.address(cluster.port(), database.name());
    for arguments in [["install"], ["upgrade"], ["uninstall"]] {
        let output = administer(&connection, &arguments);
        assert!(output.status.success(), "{}", said(&output));
    }
    assert!(!has_schema(&database));
}

#[test]
fn a_role_that_does_not_inherit_is_told_the_statement_that_it_needs() {
    let shop = Shop::open("aloof", "CREATEROLE");
    shop.succeed(&["install", "--owner", &shop.owner]);
    let (admin, owner) = (&shop.admin, &shop.owner);
    // From 16 on it is the membership that inherits or not.
    let without_inheritance = if pg_config::major_version("PG_CONFIG") >= 16 {
        " WITH INHERIT FALSE, SET TRUE"
    } else {
        ""
    };
    (shop.database).execute(&format!(
        "ALTER ROLE {admin} NOINHERIT; GRANT {owner} TO {admin}{without_inheritance};
         GRANT CREATE ON SCHEMA public TO {owner}"
    ));
    let (statements, said) = shop.fail(&["upgrade"]);
    assert!(said.contains("nothing was changed"), "{said}");
    shop.database.execute(&statements);
    shop.succeed(&["upgrade"]);
}
