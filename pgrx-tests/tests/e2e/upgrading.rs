//! ALTER EXTENSION webhook UPDATE: functions, views and presets are replaced as a whole, tables are not; the worker
//! begins anew, and neither library nor SQL is worked with where the other is of another protocol.

use std::thread;

use serde_json::json;
use webhook_e2e::catalog::Facts;
use webhook_e2e::database::emit;
use webhook_e2e::scripts::{self, VERSION};
use webhook_e2e::worker::{self, state_and_reason};
use webhook_e2e::{Cluster, Receiver};

fn server_with(script: &str) -> Cluster {
    let name = format!("webhook--{VERSION}--next.sql");
    Cluster::builder().script(&name, script).start()
}

#[test]
fn an_upgrade_that_brings_nothing_leaves_no_difference_in_the_catalogs() {
    let cluster = server_with(&scripts::upgrade());
    let database = cluster.database("again");
    database.execute(
        "CREATE ROLE app; CREATE ROLE viewer;
         SELECT webhook_grant('app', 'admin'), webhook_grant('viewer', 'read');
         SELECT webhook_copy_policy('standard', 'mine')",
    );
    let installation = "SELECT id::text FROM webhook.installation()";
    let id: String = database.query_one_value(installation);
    let before = Facts::of(&database);
    database.execute("ALTER EXTENSION webhook UPDATE TO 'next'");
    let after = Facts::of(&database);
    assert_eq!(
        (before.beyond(&after), after.beyond(&before)),
        (vec![], vec![])
    );
    assert_eq!(database.query_one_value::<String>(installation), id);
}

#[test]
fn an_upgrade_writes_presets_anew_and_no_policy_of_a_person() {
    let cluster = server_with(&scripts::upgrade());
    let database = cluster.database("presets");
    // As an older version would have left it: one preset differs, one is not there and a person has its name.
    database.execute(
        "SELECT webhook_copy_policy('bridge', 'mine');
         UPDATE webhook.policy SET max_attempts = 2 WHERE name = 'mine';
         ALTER TABLE webhook.policy DISABLE TRIGGER protect_policy;
         UPDATE webhook.policy SET max_attempts = 99 WHERE name = 'standard';
         UPDATE webhook.policy SET preset = false, max_attempts = 77 WHERE name = 'job';
         ALTER TABLE webhook.policy ENABLE TRIGGER protect_policy",
    );
    database.execute("ALTER EXTENSION webhook UPDATE TO 'next'");
    let found: Vec<String> = database.query_one_value(
        "SELECT array_agg(format('%s %s %s', name, preset, max_attempts < 50) ORDER BY name)
         FROM webhook.policy WHERE name IN ('mine', 'standard', 'job')",
    );
    assert_eq!(found, ["job f f", "mine f t", "standard t t"]);
    let refusal = database.refusal("UPDATE webhook.policy SET timeout = '1 s' WHERE preset");
    assert_eq!(refusal.code().code(), "55000");
}

#[test]
fn an_upgrade_restarts_the_worker_when_it_is_committed() {
    let script = "CREATE FUNCTION webhook.added() RETURNS int LANGUAGE sql RETURN 1";
    let cluster = server_with(script);
    let (database, receiver) = (cluster.database("restarted"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    let mut session = database.connect();
    session
        .batch_execute("BEGIN; ALTER EXTENSION webhook UPDATE TO 'next'")
        .unwrap();
    assert_eq!(worker::count(&database), 0);
    let event = database.emit("order.created", json!({}));
    session.batch_execute("COMMIT").unwrap();
    database.wait_for_status(event, "SENT");
    assert_ne!(worker::pid(&database), first);
}

#[test]
fn sql_of_another_protocol_holds_the_worker_which_says_what_helps() {
    let cluster = Cluster::start();
    let (database, receiver) = (cluster.database("protocol"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let spoken: i32 = database.query_one_value("SELECT webhook.protocol()");
    let mut earlier = worker::pid(&database);
    for (other, remedy) in [
        (spoken + 1, "restart the server"),
        (0, "ALTER EXTENSION webhook UPDATE"),
    ] {
        database.execute(&of_protocol(other));
        let both = format!("protocol {spoken}, %protocol {other};%{remedy}");
        database.wait_until(&format!(
            "SELECT state = 'held' AND reason LIKE '%{both}%' FROM webhook_status()"
        ));
        let event = database.emit("order.created", json!({}));
        // So does the one that comes after it.
        let holding = worker::successor(&database, earlier);
        worker::terminate(&database, holding);
        worker::successor(&database, holding);
        assert_eq!(state_and_reason(&database).0, "held");
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));

        database.execute(&of_protocol(spoken));
        database.wait_for_status(event, "SENT");
        earlier = worker::pid(&database);
    }
}

/// Makes the SQL of this database say it, and wakes the worker.
pub fn of_protocol(number: i32) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION webhook.protocol() RETURNS int LANGUAGE sql IMMUTABLE RETURN {number};
         SELECT webhook.wake()"
    )
}

/// An upgrade that brings webhook_added(), for level emit.
fn upgrade_with_a_function() -> Cluster {
    // The first row of the table of the API, and a function before the first that is replaced.
    let script = scripts::upgrade().replacen(
        "VALUES\n            (",
        "VALUES ('function', 'webhook_added', 'emit', 'Is new.'),\n            (",
        1,
    );
    let added = "CREATE FUNCTION @extschema@.webhook_added() RETURNS int LANGUAGE sql RETURN 1;\n";
    server_with(&format!("{added}{script}"))
}

#[test]
fn a_role_gets_what_its_level_gains_by_an_upgrade_and_no_other_does() {
    let cluster = upgrade_with_a_function();
    let database = cluster.database("gaining");
    database.execute(
        "CREATE ROLE app; CREATE ROLE chief; CREATE ROLE viewer; CREATE ROLE handmade;
         SELECT webhook_grant('app', 'emit'), webhook_grant('chief', 'admin'), webhook_grant('viewer', 'read');
         GRANT EXECUTE ON FUNCTION webhook_unwatch TO handmade",
    );
    database.execute("ALTER EXTENSION webhook UPDATE TO 'next'");
    let may: Vec<String> = database.query_one_value(
        "SELECT array_agg(rolname::text ORDER BY rolname) FROM pg_roles
         WHERE rolname IN ('app', 'chief', 'viewer', 'handmade')
           AND has_function_privilege(rolname, 'webhook_added()', 'EXECUTE')",
    );
    assert_eq!(may, ["app", "chief"]);
    // A right that the server takes for the extension's own would not be dumped.
    let noted: bool = database.query_one_value(
        "SELECT EXISTS (SELECT FROM pg_init_privs i, aclexplode(i.initprivs) a WHERE a.grantee = 'app'::regrole)",
    );
    assert!(!noted);
}

#[test]
fn a_role_gets_what_its_level_gains_by_an_upgrade_after_a_savepoint() {
    let cluster = upgrade_with_a_function();
    let database = cluster.database("gaining");
    database.execute("CREATE ROLE app; SELECT webhook_grant('app', 'emit')");
    database.execute(
        "BEGIN; SAVEPOINT migration; ALTER EXTENSION webhook UPDATE TO 'next'; RELEASE migration; COMMIT",
    );
    assert!(database.query_one_value::<bool>(
        "SELECT has_function_privilege('app', 'webhook_added()', 'EXECUTE')"
    ));
}

/// The functions that people call are in a schema with others, and do nothing without those of schema webhook.
#[test]
fn a_role_with_all_functions_of_a_schema_gets_nothing_by_an_upgrade() {
    let cluster = upgrade_with_a_function();
    let database = cluster.database("generous");
    database.execute(
        "CREATE ROLE app; CREATE ROLE emitter; SELECT webhook_grant('emitter', 'emit');
         GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO app, emitter",
    );
    let rights = "SELECT count(*) FROM pg_depend d
                  JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid AND x.extname = 'webhook'
                  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
                  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
                  CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, c.relacl)) a
                  WHERE a.grantee IN ('app'::regrole, 'emitter'::regrole)";
    let before: i64 = database.query_one_value(rights);
    database.execute("ALTER EXTENSION webhook UPDATE TO 'next'");
    assert_eq!(
        database.query_one_value::<i64>(rights),
        before + 1,
        "webhook_added() for the emitter"
    );
}

#[test]
fn an_upgrade_waits_for_an_open_transaction_and_nobody_waits_behind_it() {
    let cluster = server_with(&scripts::upgrade());
    let (database, receiver) = (cluster.database("patient"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    thread::scope(|scope| {
        let mut open = database.connect();
        let begin = "BEGIN; SELECT webhook_emit('order.created')";
        open.batch_execute(begin).unwrap();
        let upgrading =
            scope.spawn(|| database.execute("ALTER EXTENSION webhook UPDATE TO 'next'"));
        database.wait_until(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'ALTER EXTENSION%' AND wait_event_type = 'Lock')",
        );
        let mut other = database.connect();
        other
            .batch_execute("SET statement_timeout = '10s'")
            .unwrap();
        for _ in 0..3 {
            emit(&mut other, "order.created", json!({}));
        }
        assert!(!upgrading.is_finished());
        // The tables in another order than the upgrade needs them.
        open.batch_execute("SELECT count(*) FROM webhook.endpoint; COMMIT")
            .unwrap();
    });
    receiver.wait_for_requests(4);
}

#[test]
fn an_upgrade_that_an_open_transaction_outlasts_fails_and_names_the_process() {
    let patience = "give_up_at timestamptz := clock_timestamp() + interval '1 min'";
    let script = scripts::upgrade();
    assert_eq!(script.matches(patience).count(), 1);
    let cluster = server_with(&script.replace(patience, &patience.replace("1 min", "1 s")));
    let database = cluster.database("outlasted");
    let before = Facts::of(&database);
    let mut open = database.connect();
    let begin = "BEGIN; SELECT webhook_emit('order.created')";
    open.batch_execute(begin).unwrap();
    let pid: i32 = open
        .query_one("SELECT pg_backend_pid()", &[])
        .unwrap()
        .get(0);

    let refusal = database.refusal("ALTER EXTENSION webhook UPDATE TO 'next'");
    assert_eq!(refusal.code().code(), "55P03");
    assert_eq!(refusal.message(), "the tables of webhook are in use");
    let detail = refusal.detail().unwrap_or_default();
    assert!(detail.contains(&pid.to_string()), "{detail}");
    assert!(refusal.hint().is_some());
    open.batch_execute("COMMIT").unwrap();
    let after = Facts::of(&database);
    assert_eq!(after.beyond(&before), Vec::<String>::new());
}

/// Their types fit better than those of pg_catalog. The owner of the database owns schema public.
#[test]
fn an_upgrade_uses_no_operator_that_somebody_has_put_beside_the_functions() {
    let cluster = server_with(&scripts::upgrade());
    let database = cluster.database("lured");
    database.execute(
        "CREATE TABLE public.seen (who text);
         CREATE FUNCTION public.spy(oid, regclass) RETURNS boolean LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN $1 = $2::oid; END $$;
         CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = public.spy)",
    );
    database.execute("ALTER EXTENSION webhook UPDATE TO 'next'");
    let seen: i64 = database.query_one_value("SELECT count(*) FROM public.seen");
    assert_eq!(seen, 0);
}

/// The install script says CREATE OR REPLACE.
#[test]
fn a_function_or_view_that_somebody_has_put_there_is_not_taken() {
    let database = Cluster::shared().plain_database("planted");
    let planted = "CREATE FUNCTION public.webhook_pause(name text) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'";
    for planted in [planted.to_owned(), planted.replace("void", "int")] {
        database.execute(&planted);
        let refusal = database.refusal("CREATE EXTENSION webhook");
        assert!(!database.query_one_value::<bool>(
            "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'webhook')"
        ));
        let known = ["55000", "42P13"];
        assert!(known.contains(&refusal.code().code()), "{refusal:?}");
        database.execute("DROP FUNCTION public.webhook_pause");
    }
    database.execute("CREATE SCHEMA webhook");
    let refusal = database.refusal("CREATE EXTENSION webhook");
    assert_eq!(refusal.code().code(), "42P06");
}
