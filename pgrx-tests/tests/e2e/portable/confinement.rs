//! A script that `webhook-relay` runs as the owner of the schema, with hostile code in it: whatever that code does, it
//! gets none of the rights of the session.

use webhook_e2e::process::unprivileged;
use webhook_e2e::scripts::{LATER, VERSION};

use super::planted::Trap;
use super::shop::Shop;

const LATER_RELAY: &str = env!("CARGO_BIN_EXE_later_relay");

/// Upgrades by a superuser; the migration stands for code of the owner. Returns what the program said.
fn upgrade(shop: &Shop, migration: &str) -> String {
    let mut command = unprivileged(LATER_RELAY);
    command
        .env_clear()
        .env("WEBHOOK_TEST_MIGRATION", migration)
        .args(["upgrade", &shop.superuser_connection()]);
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

fn version(shop: &Shop) -> String {
    (shop.database).query_one_value("SELECT webhook.portable_version()")
}

#[test]
fn code_of_the_owner_cannot_act_as_the_session_now_or_at_its_commit() {
    let shop = Shop::installed("confined");
    let trap = Trap::set(&shop);
    shop.as_admin(
        "CREATE TABLE bait (id int);
         GRANT INSERT ON bait TO PUBLIC;
         CREATE CONSTRAINT TRIGGER trap AFTER INSERT ON bait DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION trap_row()",
    );
    for (migration, expected) in [
        ("RESET ROLE;", "cannot set parameter \"role\""),
        ("SET ROLE postgres;", "cannot set parameter \"role\""),
        (
            "SET SESSION AUTHORIZATION DEFAULT;",
            "cannot set parameter \"session_authorization\"",
        ),
        (
            "DO $$ BEGIN PERFORM set_config('role', 'none', true); END $$;",
            "cannot set parameter \"role\"",
        ),
        (
            "INSERT INTO public.bait VALUES (1);",
            "cannot fire deferred trigger within security-restricted operation",
        ),
        (
            "DECLARE c CURSOR WITH HOLD FOR SELECT public.trap();",
            "cannot create a cursor WITH HOLD within security-restricted operation",
        ),
        (
            "CREATE TEMP TABLE t (id int);",
            "cannot create temporary table within security-restricted operation",
        ),
        (
            "PREPARE p AS SELECT public.trap();",
            "cannot execute PREPARE within security-restricted operation",
        ),
        (
            "LISTEN webhook;",
            "cannot execute LISTEN within security-restricted operation",
        ),
    ] {
        let said = upgrade(&shop, migration);
        trap.assert_unsprung(&format!("{migration}: {said}"));
        assert!(said.contains(expected), "{migration}: {said}");
        assert_eq!(version(&shop), VERSION, "{migration}");
    }
}

/// Statements of the program that follow find functions in pg_catalog alone.
#[test]
fn code_of_the_owner_changes_no_setting_of_the_session() {
    let shop = Shop::installed("settings_of_session");
    let trap = Trap::set(&shop);
    shop.as_admin(
        "CREATE FUNCTION public.trap_result(text) RETURNS text LANGUAGE sql AS 'SELECT public.trap()';
         CREATE FUNCTION public.trap_step(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT $1';
         CREATE AGGREGATE public.string_agg(text, text) (SFUNC = public.trap_step, STYPE = text, FINALFUNC = public.trap_result)",
    );
    let said = upgrade(&shop, "SET search_path = public, pg_catalog;");
    trap.assert_unsprung(&said);
    assert_eq!(said, "");
    assert_eq!(version(&shop), LATER);
}
