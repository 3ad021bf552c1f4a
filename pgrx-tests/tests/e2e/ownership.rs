//! Everything belongs to webhook_owner, nobody can be it, and nobody else has any right that was not given.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use postgres::NoTls;
use serde_json::json;
use webhook_e2e::database::refusal;
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait, worker};

/// Owner and ACL of all objects of the extension, and of their own: indexes, sequences, row types.
const OURS: &str = "
    WITH RECURSIVE ours AS (
        SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension x ON d.refobjid = x.oid
        WHERE d.refclassid = 'pg_extension'::regclass AND x.extname = 'webhook' AND d.deptype = 'e'
        UNION
        SELECT d.classid, d.objid FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid
        WHERE d.deptype IN ('a', 'i') AND o.classid <> 'pg_namespace'::regclass
    )
    SELECT format('function %s', p.oid::regprocedure) AS object, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl
    FROM ours o JOIN pg_proc p ON o.classid = 'pg_proc'::regclass AND o.objid = p.oid
    UNION ALL
    SELECT format('relation %s', c.oid::regclass), c.relowner,
           CASE WHEN c.relkind NOT IN ('i', 'I', 'c', 't') THEN coalesce(c.relacl, acldefault((CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END)::\"char\", c.relowner)) END
    FROM ours o JOIN pg_class c ON o.classid = 'pg_class'::regclass AND o.objid = c.oid
    UNION ALL
    SELECT format('type %s', t.oid::regtype), t.typowner, CASE WHEN t.typrelid = 0 AND t.typcategory <> 'A' THEN coalesce(t.typacl, acldefault('T', t.typowner)) END
    FROM ours o JOIN pg_type t ON o.classid = 'pg_type'::regclass AND o.objid = t.oid
    UNION ALL
    SELECT format('schema %s', n.oid::regnamespace), n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner))
    FROM ours o JOIN pg_namespace n ON o.classid = 'pg_namespace'::regclass AND o.objid = n.oid";

#[track_caller]
fn not_owned(database: &Database) -> Vec<String> {
    let rows = database.connect().query(
        &format!(
            "SELECT object FROM ({OURS}) o WHERE owner <> 'webhook_owner'::regrole ORDER BY object"
        ),
        &[],
    );
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The rights of others than the owner: 'schema webhook: app has USAGE'.
#[track_caller]
fn given_away(database: &Database) -> Vec<String> {
    let rows = database.connect().query(
        &format!(
            "SELECT format('%s: %s has %s', object, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.privilege_type)
             FROM ({OURS}) o, aclexplode(o.acl) a WHERE a.grantee <> o.owner ORDER BY 1"
        ),
        &[],
    );
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn nothing_of_the_extension_belongs_to_anybody_but_webhook_owner() {
    let database = Cluster::shared().database("owned");
    let all: i64 = database.query_one_value(&format!("SELECT count(*) FROM ({OURS}) o"));
    assert!(all > 200, "{all} objects");
    assert_eq!(not_owned(&database), Vec::<String>::new());
    assert_eq!(given_away(&database), Vec::<String>::new());
    let is_plain: bool = database.query_one_value(
        "SELECT NOT (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
                AND (NOT rolcanlogin OR rolconnlimit = 0 AND rolpassword IS NULL)
                AND NOT EXISTS (SELECT FROM pg_auth_members m WHERE r.oid IN (m.roleid, m.member))
         FROM pg_authid r WHERE rolname = 'webhook_owner'",
    );
    assert!(is_plain);
}

#[test]
fn default_privileges_of_anybody_give_nothing_away() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("generous");
    database.execute(
        "CREATE ROLE app;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app WITH GRANT OPTION;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO app;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO app;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO app;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO app;
         ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM postgres;
         CREATE EXTENSION webhook",
    );
    assert_eq!(not_owned(&database), Vec::<String>::new());
    assert_eq!(given_away(&database), Vec::<String>::new());
    // The owner has all rights to its own objects, whatever the defaults take from owners: the worker delivers.
    let receiver = Receiver::start();
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'standard'");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
}

#[test]
fn no_client_can_be_webhook_owner() {
    let cluster = Cluster::start();
    let database = cluster.database("shut");
    worker::pid(&database);
    let mut config = cluster.config(database.name());
    let refused = config.user("webhook_owner").connect(NoTls).err().unwrap();
    let refused = refused.as_db_error().unwrap().message().to_owned();
    assert!(
        refused.contains("too many connections for role")
            || refused.contains("is not permitted to log in"),
        "{refused}"
    );
}

#[test]
fn a_role_that_somebody_could_use_is_refused_with_the_remedy() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("wary");
    database.execute("CREATE ROLE friend");
    for (unsafe_role, message, hint) in [
        (
            "CREATE ROLE webhook_owner SUPERUSER",
            "rights",
            "NOSUPERUSER",
        ),
        (
            "CREATE ROLE webhook_owner CREATEROLE",
            "rights",
            "NOCREATEROLE",
        ),
        ("CREATE ROLE webhook_owner CREATEDB", "rights", "NOCREATEDB"),
        (
            "CREATE ROLE webhook_owner REPLICATION",
            "rights",
            "NOREPLICATION",
        ),
        (
            "CREATE ROLE webhook_owner BYPASSRLS",
            "rights",
            "NOBYPASSRLS",
        ),
        (
            "CREATE ROLE webhook_owner LOGIN",
            "used by clients",
            "CONNECTION LIMIT 0",
        ),
        (
            "CREATE ROLE webhook_owner LOGIN PASSWORD 'x' CONNECTION LIMIT 0",
            "used by clients",
            "PASSWORD NULL",
        ),
        (
            "CREATE ROLE webhook_owner; GRANT webhook_owner TO friend",
            "member",
            "REVOKE",
        ),
        (
            "CREATE ROLE webhook_owner IN ROLE friend",
            "member",
            "REVOKE",
        ),
    ] {
        database.execute(unsafe_role);
        let refusal = database.refusal("CREATE EXTENSION webhook");
        assert_eq!(refusal.code().code(), "55000", "{unsafe_role}");
        assert!(
            refusal.message().contains(message),
            "{unsafe_role}: {}",
            refusal.message()
        );
        assert!(
            refusal.hint().unwrap().contains(hint),
            "{unsafe_role}: {:?}",
            refusal.hint()
        );
        database.execute("DROP ROLE webhook_owner");
    }
    // Both forms of a role that nobody can use, whichever this version would make itself.
    for safe_role in [
        "CREATE ROLE webhook_owner",
        "CREATE ROLE webhook_owner LOGIN CONNECTION LIMIT 0",
    ] {
        database.execute(&format!("{safe_role}; CREATE EXTENSION webhook"));
        worker::pid(&database);
        database.execute("DROP EXTENSION webhook; DROP ROLE webhook_owner");
    }
}

#[test]
fn a_worker_does_not_start_as_a_role_that_somebody_could_use() {
    let cluster = Cluster::start();
    let database = cluster.database("wary");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&database);
    database.execute("CREATE ROLE friend; GRANT webhook_owner TO friend");
    worker::terminate(&database, pid);
    database.wait_until(
        "SELECT state = 'no worker' AND reason LIKE '%has members; REVOKE%' FROM webhook_status()",
    );
    assert!(cluster.log().contains("no webhook worker for database"));
    let event = database.emit("order.created", json!({}));

    database.execute("REVOKE webhook_owner FROM friend");
    database.wait_for_status(event, "SENT");
}

#[test]
fn the_grant_that_a_worker_needs_to_connect_is_given_or_named() {
    let mut cluster = Cluster::start();
    let database = cluster.plain_database("closed");
    let name = database.name();
    database.execute(&format!("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC"));
    database.create_extension();
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = database.emit("order.created", json!({}));
    database.wait_for_status(first, "SENT");

    let pid = worker::pid(&database);
    database.execute(&format!(
        "REVOKE CONNECT ON DATABASE {name} FROM webhook_owner"
    ));
    worker::terminate(&database, pid);
    let grant = format!("GRANT CONNECT ON DATABASE \"{name}\" TO webhook_owner");
    database.wait_until(&format!(
        "SELECT state = 'no worker' AND reason LIKE '%{grant}%' FROM webhook_status()"
    ));
    wait::until_true("the log to name the grant", || {
        cluster.log().contains(&grant)
    });
    // Nobody has told the launcher of the database since.
    cluster.restart();
    database.wait_until(&format!(
        "SELECT state = 'no worker' AND reason LIKE '%{grant}%' FROM webhook_status()"
    ));
    let event = database.emit("order.created", json!({}));

    database.execute(&grant);
    database.wait_for_status(event, "SENT");
}

#[test]
fn two_databases_may_create_the_extension_at_the_same_moment() {
    let cluster = Cluster::start();
    let [first, second, third] = ["one", "two", "three"].map(|name| cluster.plain_database(name));
    let exists = |database: &Database| -> bool {
        database
            .query_one_value("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'webhook')")
    };
    let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'CREATE EXTENSION%')";

    for (ending, begun, waits) in [("ROLLBACK", &third, &first), ("COMMIT", &third, &second)] {
        if ending == "COMMIT" {
            first.execute("DROP EXTENSION webhook; DROP ROLE webhook_owner");
        }
        let mut session = begun.connect();
        session
            .batch_execute("BEGIN; CREATE EXTENSION webhook")
            .unwrap();
        thread::scope(|scope| {
            let (done, told) = mpsc::channel();
            scope.spawn(move || {
                waits.execute("CREATE EXTENSION webhook");
                done.send(()).unwrap();
            });
            cluster.existing_database("postgres").wait_until(waiting);
            session.batch_execute(ending).unwrap();
            told.recv_timeout(wait::DEADLINE)
                .expect("the second one ends");
        });
        assert!(exists(waits));
        assert_eq!(exists(begun), ending == "COMMIT");
        worker::pid(waits);
    }
}

#[test]
fn edits_of_a_superuser_are_edits_by_hand_and_no_setting_changes_that() {
    let database = Cluster::shared().database("by_hand");
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, _| Answer::status(400));
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let mut person = database.connect();
    for setting in ["", "SET webhook.engine = on"] {
        let _ = person.batch_execute(setting);
        let refusal = refusal(&mut person, "UPDATE webhook.dead_letter SET attempts = 0");
        assert_eq!(refusal.code().code(), "55000", "{setting}");
        assert!(
            refusal.hint().unwrap().contains("UPDATE webhook.delivery"),
            "{setting}"
        );
    }
}

/// Review L9: without the library anybody may set anything that begins with webhook.
#[test]
fn where_nothing_is_preloaded_an_operator_is_checked_all_the_same() {
    let cluster = Cluster::builder().without_preload().start();
    let database = cluster.database("bare");
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    let event = database.emit("order.created", json!({}));
    database.execute("CREATE ROLE operator; SELECT webhook_grant('operator', 'operate')");
    let mut operator = database.connect();
    operator
        .batch_execute("SET ROLE operator; SET webhook.engine = on")
        .unwrap();
    let sql = format!("UPDATE webhook.delivery SET status = 'SENT' WHERE event_id = '{event}'");
    assert_eq!(refusal(&mut operator, &sql).code().code(), "55000");
}

/// Review H1: the owner of the schema that our functions are in may put another in its place.
#[test]
fn the_owner_of_the_functions_schema_gets_none_of_our_calls() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("squatted");
    let name = database.name();
    database.execute(&format!(
        "CREATE ROLE squatter; ALTER DATABASE {name} OWNER TO squatter; CREATE EXTENSION webhook;
         SELECT webhook_grant('squatter', 'admin')"
    ));
    let receiver = Receiver::start();
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'standard'");
    worker::pid(&database);
    // Everything that people call stands again in the new schema, and notes for whom it runs.
    database.execute(
        "SET ROLE squatter;
         CREATE TABLE public.watched (id int);
         SELECT webhook_watch('public.watched', 'w');
         ALTER SCHEMA public RENAME TO old_public; CREATE SCHEMA public;
         CREATE TABLE public.caught (who text, how text); GRANT ALL ON public.caught TO PUBLIC;
         GRANT USAGE ON SCHEMA public TO PUBLIC;
         CREATE FUNCTION public.note(how text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.caught VALUES (current_user, how)';
         CREATE FUNCTION public.webhook_emit(event_type text, payload jsonb, tenant text) RETURNS uuid LANGUAGE plpgsql AS
             'BEGIN PERFORM public.note(''emit''); RETURN NULL; END';
         CREATE FUNCTION public.webhook_emit_many(text[], jsonb[], text[], text[], text[], timestamptz, timestamptz, text, text[]) RETURNS SETOF uuid LANGUAGE plpgsql AS
             'BEGIN PERFORM public.note(''emit_many''); END';
         CREATE FUNCTION public.webhook_replay(uuid, text) RETURNS bigint LANGUAGE plpgsql AS
             'BEGIN PERFORM public.note(''replay''); RETURN 0; END';
         CREATE FUNCTION public.webhook_status(OUT state text, OUT reason text) LANGUAGE plpgsql AS
             'BEGIN PERFORM public.note(''status''); END';
         CREATE FUNCTION public.webhook_unwatch(regclass) RETURNS int LANGUAGE plpgsql AS
             'BEGIN PERFORM public.note(''unwatch''); RETURN 0; END';
         CREATE FUNCTION public.webhook_trigger() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM public.note(''trigger''); RETURN NULL; END'",
    );
    database.execute(
        "INSERT INTO old_public.watched VALUES (1);
         SELECT old_public.webhook_emit('order.created'); SELECT * FROM old_public.webhook_emit_many('order.created', '{1,2}');
         SELECT old_public.webhook_resume('orders'), old_public.webhook_pause('orders'), old_public.webhook_resume('orders');
         SELECT * FROM old_public.webhook_status();
         SELECT old_public.webhook_watch('old_public.watched', 'w');
         INSERT INTO old_public.watched VALUES (2)",
    );
    database.execute("CALL old_public.webhook_test('orders')");
    let caught: i64 = database.query_one_value("SELECT count(*) FROM public.caught");
    assert_eq!(caught, 0);
    wait::until("five deliveries to be SENT", || {
        let seen: String = database.query_one_value(
            "SELECT string_agg(event_type || ' ' || status, ', ' ORDER BY event_id) FROM webhook.delivery",
        );
        if seen.matches("SENT").count() == 5 {
            Ok(())
        } else {
            Err(seen)
        }
    });
}

/// Review M1: of two functions that fit a literal the server prefers the one that takes text.
#[test]
fn nobody_elses_overload_of_webhook_grant_fits_better_than_ours() {
    let database = Cluster::shared().database("overload");
    let role = format!("{}_builder", database.name());
    database.execute(&format!(
        "CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}"
    ));
    for (call, types) in [
        ("webhook_grant", "text, text"),
        ("webhook_revoke", "text, text"),
    ] {
        let mut builder = database.connect();
        builder.batch_execute(&format!("SET ROLE {role}")).unwrap();
        let sql = format!("CREATE FUNCTION public.{call}({types}) RETURNS void LANGUAGE sql AS ''");
        assert_eq!(refusal(&mut builder, &sql).code().code(), "42723", "{call}");
        // One that takes other types is there, and is not taken for literals.
        let other = format!(
            "CREATE FUNCTION public.{call}(name, varchar) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''caught''; END'"
        );
        builder.batch_execute(&other).unwrap();
        database.execute(&format!("SELECT {call}('{role}', 'emit')"));
    }
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn in_a_schema_of_its_own_a_level_is_all_that_a_role_needs_and_nothing_stays_behind() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("apart");
    database.execute(
        "CREATE SCHEMA hooks; CREATE EXTENSION webhook SCHEMA hooks; CREATE ROLE app;
         SELECT hooks.webhook_grant('app', 'emit');
         SET ROLE app; SELECT hooks.webhook_emit('order.created'); RESET ROLE;
         SELECT hooks.webhook_revoke('app', 'emit');
         DROP ROLE app",
    );
    // Somebody else's objects in that schema: the rights of roles to them are not ours to take.
    database.execute(
        "CREATE ROLE app; CREATE TABLE hooks.note (); GRANT USAGE ON SCHEMA hooks TO app;
         SELECT hooks.webhook_grant('app', 'read'), hooks.webhook_revoke('app', 'read')",
    );
    let keeps: bool =
        database.query_one_value("SELECT has_schema_privilege('app', 'hooks', 'USAGE')");
    assert!(keeps);
}

#[test]
fn after_the_extension_no_role_is_held_by_anything_of_it() {
    let cluster = Cluster::start();
    let databases = ["one", "two"].map(|name| cluster.plain_database(name));
    databases[0].execute("CREATE ROLE app");
    for database in &databases {
        let name = database.name();
        database.execute(&format!("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC"));
        database.execute(
            "CREATE SCHEMA hooks; CREATE EXTENSION webhook SCHEMA hooks;
             SELECT hooks.webhook_grant('app', level) FROM unnest('{emit,read,operate,admin}'::text[]) AS level",
        );
    }
    databases[0].execute("DROP EXTENSION webhook");
    // As the owner of the database, who is no superuser.
    let name = databases[1].name();
    databases[1].execute(&format!(
        "CREATE ROLE keeper; ALTER DATABASE {name} OWNER TO keeper; ALTER SCHEMA hooks OWNER TO keeper;
         SET ROLE keeper; DROP SCHEMA hooks CASCADE"
    ));
    databases[0].execute("DROP ROLE app; DROP ROLE webhook_owner");
}

#[test]
fn dropping_the_extension_says_how_many_deliveries_are_lost() {
    let cluster = Cluster::idle();
    for (drop, told) in [
        ("DROP EXTENSION webhook", true),
        ("DROP EXTENSION webhook CASCADE", true),
        ("SET ROLE keeper; DROP SCHEMA public CASCADE", true),
        ("DROP SCHEMA elsewhere CASCADE", false),
        ("SET ROLE stranger; DROP EXTENSION webhook", false),
        ("SET ROLE stranger; DROP SCHEMA public CASCADE", false),
    ] {
        let database = cluster.database("dropping");
        let name = database.name();
        database.execute(&format!(
            "CREATE ROLE keeper; CREATE ROLE stranger; ALTER DATABASE {name} OWNER TO keeper; CREATE SCHEMA elsewhere"
        ));
        database.add_endpoint("orders", "http://127.0.0.1:9/");
        database.execute("SELECT webhook_emit_many('order.created', '{1,2,3}')");
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&warnings);
        let mut session = database.connect_noticing(move |notice| {
            heard.lock().unwrap().push(notice.message().to_owned());
        });
        let _ = session.batch_execute(drop);
        let expected = "3 deliveries were not sent yet and are dropped with the extension";
        let heard = warnings
            .lock()
            .unwrap()
            .iter()
            .any(|message| message == expected);
        assert_eq!(heard, told, "{drop}: {:?}", warnings.lock().unwrap());
        let exists: bool =
            database.query_one_value("SELECT to_regclass('webhook.event') IS NOT NULL");
        assert_eq!(exists, !told, "{drop}");
        session
            .batch_execute(&format!(
                "RESET ROLE; ALTER DATABASE {name} OWNER TO postgres; DROP ROLE keeper, stranger"
            ))
            .unwrap();
    }
}

#[test]
fn the_schema_of_our_functions_keeps_its_name_and_its_owner() {
    let cluster = Cluster::start();
    let database = cluster.database("renamed");
    database.execute("CREATE TABLE watched (id int); SELECT webhook_watch('watched', 'w')");
    let refused = database.refusal("ALTER SCHEMA webhook RENAME TO elsewhere");
    assert_eq!(refused.code().code(), "2BP01");
    assert!(refused.hint().unwrap().contains("DROP EXTENSION webhook"));
    // By other means it can be somebody's all the same; nothing of theirs is called then.
    database.execute(
        "CREATE ROLE squatter;
         SET allow_system_table_mods = on;
         UPDATE pg_namespace SET nspname = 'elsewhere' WHERE nspname = 'webhook';
         CREATE SCHEMA webhook AUTHORIZATION squatter;
         CREATE FUNCTION webhook.emit_changes(text, jsonb[], text[]) RETURNS void LANGUAGE sql AS 'ALTER ROLE squatter SUPERUSER';
         CREATE FUNCTION webhook.unsent() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
         CREATE FUNCTION webhook.withdraw_grants() RETURNS void LANGUAGE sql AS 'ALTER ROLE squatter SUPERUSER'",
    );
    let refused = database.refusal("INSERT INTO watched VALUES (1)");
    assert_eq!(refused.code().code(), "55000");
    database.execute("DROP EXTENSION webhook CASCADE");
    let is_superuser: bool =
        database.query_one_value("SELECT rolsuper FROM pg_roles WHERE rolname = 'squatter'");
    assert!(!is_superuser);
}

#[test]
fn an_upgrade_takes_what_is_new_and_leaves_the_levels_that_were_given() {
    let database = Cluster::shared().database("upgraded");
    let role = format!("{}_app", database.name());
    database.execute(&format!(
        "CREATE ROLE {role}; SELECT webhook_grant('{role}', 'emit')"
    ));
    let before = given_away(&database);
    let script = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../sql/90_ownership.sql"
    ))
    .unwrap();
    database.execute(&format!(
        "CREATE FUNCTION webhook.newcomer() RETURNS int LANGUAGE sql AS 'SELECT 1';
         ALTER EXTENSION webhook ADD FUNCTION webhook.newcomer();
         SET search_path = pg_catalog, pg_temp; {script}"
    ));
    assert_eq!(not_owned(&database), Vec::<String>::new());
    assert_eq!(given_away(&database), before);
    assert!(!before.is_empty());
    database.execute(&format!(
        "SELECT webhook_revoke('{role}', 'emit'); DROP ROLE {role}"
    ));
}
