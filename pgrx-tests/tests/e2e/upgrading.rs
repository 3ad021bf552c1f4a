//! ALTER EXTENSION webhook UPDATE: functions, views and presets are replaced as a whole, tables are not; the worker begins anew,
//! and neither library nor SQL is worked with where the other is of another protocol.

use std::fs;
use std::path::Path;

use serde_json::json;
use webhook_e2e::worker::{self, state_and_reason};
use webhook_e2e::{Cluster, Database, Receiver};

/// What an upgrade runs after the changes of the tables.
fn replaceable_part() -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql");
    let files = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| {
        file.extension().is_some_and(|kind| kind == "sql") && !file.ends_with("00_tables.sql")
    });
    files.sort();
    assert!(files.len() > 20, "{files:?}");
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
    texts.collect()
}

fn upgrade(script: &str) -> Cluster {
    let builder = Cluster::builder().script("webhook--0.1.0--next.sql", script);
    builder.start()
}

/// Every fact that the catalogs have of the extension's objects, by what is said and not by OIDs; and the policies.
const FACTS: &str = r#"
WITH RECURSIVE ours (classid, objid) AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension x ON d.refobjid = x.oid
    WHERE d.refclassid = 'pg_extension'::regclass AND x.extname = 'webhook' AND d.deptype = 'e'
    UNION
    SELECT d.classid, d.objid FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid
    WHERE d.deptype IN ('a', 'i', 'P', 'S') AND o.classid <> 'pg_namespace'::regclass
), fact (object, fact) AS (
    SELECT pg_describe_object(o.classid, o.objid, 0), f.fact
    FROM ours o
    CROSS JOIN LATERAL (
        SELECT CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END FROM pg_proc p WHERE o.classid = 'pg_proc'::regclass AND p.oid = o.objid
        UNION ALL
        SELECT (to_jsonb(p) - '{oid,prosrc,prosqlbody,probin,proargdefaults}'::text[])::text FROM pg_proc p WHERE o.classid = 'pg_proc'::regclass AND p.oid = o.objid
        UNION ALL
        SELECT to_jsonb(a)::text FROM pg_aggregate a WHERE o.classid = 'pg_proc'::regclass AND a.aggfnoid = o.objid
        UNION ALL
        SELECT (to_jsonb(c) - '{relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid,relfilenode}'::text[])::text
        FROM pg_class c WHERE o.classid = 'pg_class'::regclass AND c.oid = o.objid
        UNION ALL
        SELECT pg_get_viewdef(c.oid) FROM pg_class c WHERE o.classid = 'pg_class'::regclass AND c.oid = o.objid AND c.relkind = 'v'
        UNION ALL
        SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i WHERE o.classid = 'pg_class'::regclass AND i.indexrelid = o.objid
        UNION ALL
        SELECT to_jsonb(a)::text FROM pg_attribute a WHERE o.classid = 'pg_class'::regclass AND a.attrelid = o.objid
        UNION ALL
        SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE o.classid = 'pg_attrdef'::regclass AND d.oid = o.objid
        UNION ALL
        SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c WHERE o.classid = 'pg_constraint'::regclass AND c.oid = o.objid
        UNION ALL
        SELECT format('%s (%s)', pg_get_triggerdef(t.oid), t.tgenabled) FROM pg_trigger t WHERE o.classid = 'pg_trigger'::regclass AND t.oid = o.objid
        UNION ALL
        SELECT to_jsonb(t)::text FROM pg_type t WHERE o.classid = 'pg_type'::regclass AND t.oid = o.objid
        UNION ALL
        SELECT to_jsonb(n)::text FROM pg_namespace n WHERE o.classid = 'pg_namespace'::regclass AND n.oid = o.objid
        UNION ALL
        SELECT format('comment %s: %s', d.objsubid, d.description) FROM pg_description d WHERE d.classoid = o.classid AND d.objoid = o.objid
        UNION ALL
        SELECT format('initial privileges %s: %s', i.objsubid, i.initprivs) FROM pg_init_privs i WHERE i.classoid = o.classid AND i.objoid = o.objid
        UNION ALL
        SELECT format('%s depends on %s: %s', d.objsubid, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype)
        FROM pg_depend d WHERE d.classid = o.classid AND d.objid = o.objid
        UNION ALL
        SELECT format('depends on role %s: %s', d.refobjid::regrole, d.deptype) FROM pg_shdepend d
        WHERE d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND d.classid = o.classid AND d.objid = o.objid
          AND d.refclassid = 'pg_authid'::regclass
    ) f (fact)
    UNION ALL
    SELECT 'policy ' || p.name, p::text FROM webhook.policy p
)
SELECT object, fact FROM fact WHERE fact IS NOT NULL ORDER BY object, fact COLLATE "C"
"#;

fn facts(database: &Database) -> Vec<String> {
    let rows = database.connect().query(FACTS, &[]).unwrap();
    (rows.iter())
        .map(|row| format!("{}: {}", row.get::<_, String>(0), row.get::<_, String>(1)))
        .collect()
}

#[test]
fn the_replaceable_part_runs_again_without_a_difference_in_the_catalogs() {
    let cluster = upgrade(&replaceable_part());
    let database = cluster.database("again");
    database.execute(
        "CREATE ROLE app; CREATE ROLE viewer;
         SELECT webhook_grant('app', 'admin'), webhook_grant('viewer', 'read');
         SELECT webhook_copy_policy('standard', 'mine')",
    );
    let installation = "SELECT id::text FROM webhook.installation()";
    let id: String = database.query_one_value(installation);
    let before = facts(&database);
    assert!(before.len() > 2_000, "{} facts", before.len());
    database.execute("ALTER EXTENSION webhook UPDATE TO 'next'");
    let after = facts(&database);
    let gone: Vec<_> = before.iter().filter(|fact| !after.contains(fact)).collect();
    let new: Vec<_> = after.iter().filter(|fact| !before.contains(fact)).collect();
    assert_eq!((gone, new), (vec![], vec![]));
    assert_eq!(database.query_one_value::<String>(installation), id);
}

#[test]
fn an_upgrade_writes_presets_anew_and_no_policy_of_a_person() {
    let cluster = upgrade(&replaceable_part());
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
    let cluster = upgrade(script);
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
    let script = replaceable_part().replacen(
        "VALUES\n            (",
        "VALUES ('function', 'webhook_added', 'emit', 'Is new.'),\n            (",
        1,
    );
    let added = "CREATE FUNCTION @extschema@.webhook_added() RETURNS int LANGUAGE sql RETURN 1;\n";
    upgrade(&format!("{added}{script}"))
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
