//! Owners of a table, a type or a trigger, and writers of a table: no code of theirs runs with rights that are not
//! theirs, and nobody reads a row through capture that they may not read.

use postgres::Client;
use serde_json::{Value, json};
use webhook_e2e::database::refusal;
use webhook_e2e::watch::take;
use webhook_e2e::{Cluster, Database};

/// A database, an attacker with the level `emit` and a schema, and a victim who only writes tables. Code of the
/// attacker's calls `loot()`, which notes with whose rights it runs.
pub(super) struct Scene {
    pub(super) database: Database,
    pub(super) attacker: String,
    pub(super) victim: String,
}

impl Scene {
    pub(super) fn new() -> Scene {
        let database = Cluster::shared().database("capture");
        let (attacker, victim) = (
            format!("{}_attacker", database.name()),
            format!("{}_victim", database.name()),
        );
        database.execute(&format!(
            "CREATE ROLE {attacker};
             CREATE ROLE {victim};
             SELECT webhook_grant('{attacker}', 'emit');
             CREATE SCHEMA lair AUTHORIZATION {attacker};
             GRANT USAGE ON SCHEMA lair TO PUBLIC;
             CREATE TABLE taken (by_rights_of text);
             GRANT INSERT ON taken TO PUBLIC;
             GRANT CREATE, TEMP ON DATABASE {} TO {attacker};
             SET ROLE {attacker};
             CREATE FUNCTION lair.loot() RETURNS int LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO public.taken VALUES (current_user); RETURN 1; END $$",
            database.name()
        ));
        Scene {
            database,
            attacker,
            victim,
        }
    }

    pub(super) fn session_of(&self, role: &str) -> Client {
        let mut session = self.database.connect();
        let become_role =
            format!("SET SESSION AUTHORIZATION {role}; SET search_path = lair, public");
        session.batch_execute(&become_role).unwrap();
        session
    }

    /// As the attacker, in a session of its own.
    #[track_caller]
    pub(super) fn attacker_does(&self, sql: &str) {
        let result = self.session_of(&self.attacker).batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Each with the rights of which the attacker's code has run, in order.
    #[track_caller]
    pub(super) fn taken(&self) -> Vec<String> {
        self.database.query_one_value(
            "SELECT coalesce(array_agg(DISTINCT by_rights_of ORDER BY by_rights_of), '{}') FROM taken",
        )
    }

    #[track_caller]
    pub(super) fn records(&self) -> Vec<Value> {
        (take(&self.database).into_iter())
            .map(|(_, payload)| payload["record"].clone())
            .collect()
    }
}

/// A type with a cast to json that is code of its owner's.
pub(super) const TRAP: &str = "
    CREATE TYPE lair.trap AS ENUM ('bait', 'cheese');
    CREATE FUNCTION lair.trap_as_json(lair.trap) RETURNS json LANGUAGE plpgsql AS
        $$ BEGIN PERFORM lair.loot(); RETURN '\"sprung\"'; END $$;
    CREATE CAST (lair.trap AS json) WITH FUNCTION lair.trap_as_json(lair.trap);";

// names and settings that a writer changes in mid statement

#[test]
fn a_trigger_that_is_renamed_in_mid_statement_reads_no_view_of_the_writer() {
    let scene = Scene::new();
    scene.attacker_does(
        "CREATE TEMP TABLE x (id int);
         CREATE TRIGGER a AFTER INSERT ON x FOR EACH STATEMENT EXECUTE FUNCTION webhook_trigger('x.y');
         CREATE TRIGGER b AFTER INSERT ON x REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
             EXECUTE FUNCTION webhook_trigger('x.z');
         CREATE FUNCTION pg_temp.swap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             ALTER TRIGGER a ON pg_temp.x RENAME TO c; ALTER TRIGGER b ON pg_temp.x RENAME TO a; RETURN NULL; END $$;
         CREATE TRIGGER \"0\" BEFORE INSERT ON x FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.swap();
         CREATE TEMP VIEW new_rows AS SELECT lair.loot() AS id;
         INSERT INTO x VALUES (7)",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    let mut records = scene.records();
    records.sort_by_key(Value::is_object);
    assert_eq!(records, [Value::Null, json!({"id": 7})]);
}

#[test]
fn a_truncate_trigger_that_takes_the_name_of_another_reads_no_view_either() {
    let scene = Scene::new();
    scene.attacker_does(
        "CREATE TABLE x (id int);
         SELECT webhook_watch('x', 'x', '{insert,truncate}');
         CREATE FUNCTION swap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             ALTER TRIGGER webhook_truncate ON lair.x RENAME TO c; ALTER TRIGGER webhook_insert ON lair.x RENAME TO webhook_truncate;
             RETURN NULL; END $$;
         CREATE TRIGGER \"0\" BEFORE TRUNCATE ON x EXECUTE FUNCTION swap();
         CREATE TEMP VIEW new_rows AS SELECT lair.loot() AS id;
         TRUNCATE x",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    assert_eq!(scene.records(), [Value::Null]);
}

#[test]
fn a_cast_that_sets_search_path_changes_no_name_of_ours() {
    let scene = Scene::new();
    scene.attacker_does(
        "CREATE TYPE t AS ENUM ('a');
         CREATE FUNCTION t2json(t) RETURNS json LANGUAGE plpgsql AS
             $$ BEGIN PERFORM set_config('search_path', 'lair, pg_catalog', false); RETURN '1'; END $$;
         CREATE CAST (t AS json) WITH FUNCTION t2json(t);
         CREATE FUNCTION minus(jsonb, text[]) RETURNS jsonb LANGUAGE plpgsql AS
             $$ BEGIN PERFORM lair.loot(); RETURN $1; END $$;
         CREATE OPERATOR lair.- (FUNCTION = minus, LEFTARG = jsonb, RIGHTARG = text[]);
         CREATE FUNCTION cardinality(anyarray) RETURNS int LANGUAGE plpgsql AS
             $$ BEGIN PERFORM lair.loot(); RETURN 2; END $$;
         CREATE TABLE x (id int, v t);
         SELECT webhook_watch('x', 'x');
         SET search_path = lair, pg_catalog;
         INSERT INTO x VALUES (1, 'a'), (2, 'a')",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    assert_eq!(
        scene.records(),
        [json!({"id": 1, "v": "a"}), json!({"id": 2, "v": "a"})]
    );
}

#[test]
fn a_cast_that_swaps_cursors_finds_none_of_ours() {
    let scene = Scene::new();
    scene.attacker_does(
        "CREATE TYPE t AS ENUM ('a');
         CREATE FUNCTION t2json(t) RETURNS json LANGUAGE plpgsql AS $$
         DECLARE c refcursor; n text;
         BEGIN
             SELECT name INTO n FROM pg_cursors WHERE statement ~ 'new_rows' LIMIT 1;
             IF n IS NOT NULL THEN
                 c := n; CLOSE c; c := n;
                 OPEN c FOR SELECT lair.loot() AS id, NULL::lair.t AS v;
             END IF;
             RETURN '1';
         END $$;
         CREATE CAST (t AS json) WITH FUNCTION t2json(t);
         CREATE TABLE x (id int, v t);
         SELECT webhook_watch('x', 'x');
         INSERT INTO x VALUES (1, 'a')",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    assert_eq!(scene.records(), [json!({"id": 1, "v": "a"})]);
}

#[test]
fn a_cast_by_a_function_for_anything_stops_no_write() {
    let scene = Scene::new();
    scene.attacker_does(
        "CREATE TYPE mood AS ENUM ('calm');
         CREATE CAST (mood AS json) WITH FUNCTION to_json(anyelement);
         CREATE TABLE moods (m mood);
         SELECT webhook_watch('moods', 'mood');
         INSERT INTO moods VALUES ('calm')",
    );
    assert_eq!(scene.records(), [json!({"m": "calm"})]);
}

#[test]
fn whoever_may_only_delete_rows_does_not_read_them_in_errors() {
    let database = Cluster::shared().database("quoted");
    let role = format!("{}_eraser", database.name());
    database.execute(&format!(
        r#"CREATE ROLE {role};
           CREATE TABLE vault (customer text, secret json);
           INSERT INTO vault VALUES ('open sesame', '{{"word": "open sesame \u0000"}}');
           GRANT DELETE ON vault TO {role};
           SELECT webhook_watch('vault', 'vault', tenant_column => 'customer')"#
    ));
    let mut eraser = database.connect();
    eraser.batch_execute(&format!("SET ROLE {role}")).unwrap();
    let not_json = format!("{:?}", refusal(&mut eraser, "DELETE FROM vault"));
    assert!(not_json.contains("22P05"), "{not_json}");
    assert!(!not_json.contains("sesame"), "{not_json}");

    database.execute("SELECT webhook_watch('vault', 'vault', exclude => '{secret}', tenant_column => 'customer')");
    let no_tenant = format!("{:?}", refusal(&mut eraser, "DELETE FROM vault"));
    assert!(
        no_tenant.contains("the tenant of a row is not valid"),
        "{no_tenant}"
    );
    assert!(!no_tenant.contains("sesame"), "{no_tenant}");
}

#[test]
fn whoever_may_only_delete_rows_does_not_read_them_in_printed_plans() {
    let scene = Scene::new();
    scene.database.execute(&format!(
        "CREATE TABLE vault (secret text);
         INSERT INTO vault VALUES ('opensesame'), ('opensesame2');
         GRANT DELETE ON vault TO {};
         SELECT webhook_watch('vault', 'vault');
         CREATE TRIGGER by_row AFTER DELETE ON vault FOR EACH ROW EXECUTE FUNCTION webhook_trigger('vault.row')",
        scene.victim
    ));
    let (sender, notices) = std::sync::mpsc::channel();
    let mut session = (scene.database).connect_noticing(move |notice| {
        let _ = sender.send(format!("{notice:?}"));
    });
    let delete = format!(
        "SET SESSION AUTHORIZATION {};
         SET debug_print_parse = on; SET debug_print_rewritten = on; SET debug_print_plan = on; SET debug_pretty_print = off;
         SET client_min_messages = log;
         BEGIN; DELETE FROM vault; ROLLBACK",
        scene.victim
    );
    session.batch_execute(&delete).unwrap();
    let printed: Vec<String> = notices.try_iter().collect();
    // A constant is printed byte by byte: "opense".
    let as_printed = "111 112 101 110 115 101";
    assert!(printed.iter().any(|notice| notice.contains("plan")));
    for notice in printed {
        assert!(!notice.contains(as_printed), "{notice}");
        assert!(!notice.contains("opensesame"), "{notice}");
    }
}

// the text of a condition, and the columns of a key

#[test]
fn a_condition_that_breaks_out_of_its_place_has_its_callers_rights_alone() {
    let scene = Scene::new();
    scene.attacker_does("CREATE TABLE x (id int)");
    let mut session = scene.session_of(&scene.attacker);
    let watch_and = |statement: &str| {
        format!(
            "SELECT webhook_watch('x', 'x', '{{insert}}', condition => $_$
                 true) EXECUTE FUNCTION public.webhook_trigger('x'); {statement};
                 CREATE TRIGGER other AFTER INSERT ON lair.x FOR EACH ROW WHEN (true$_$)"
        )
    };
    session
        .batch_execute(&watch_and("SELECT lair.loot()"))
        .unwrap();
    assert_eq!(scene.taken(), [scene.attacker.as_str()]);

    let wants_more = [
        format!("ALTER ROLE {} SUPERUSER", scene.attacker),
        "SET ROLE webhook_owner".to_owned(),
        "SELECT count(*) FROM webhook.event".to_owned(),
        "CREATE TRIGGER t AFTER INSERT ON webhook.event EXECUTE FUNCTION lair.f()".to_owned(),
        "DROP TABLE public.taken".to_owned(),
    ];
    for wanted in wants_more {
        session
            .batch_execute(
                "DROP TRIGGER IF EXISTS webhook_insert ON x; DROP TRIGGER IF EXISTS other ON x",
            )
            .unwrap();
        let refused = refusal(&mut session, &watch_and(&wanted));
        assert_eq!(refused.code().code(), "42501", "{wanted}: {refused:?}");
    }
}

#[test]
fn a_condition_runs_with_the_writers_rights() {
    let scene = Scene::new();
    scene.attacker_does(&format!(
        "CREATE TABLE x (id int);
         GRANT INSERT ON x TO {};
         SELECT webhook_watch('x', 'x', '{{insert}}', condition => 'lair.loot() = 1')",
        scene.victim
    ));
    let mut victim = scene.session_of(&scene.victim);
    victim.batch_execute("INSERT INTO x VALUES (1)").unwrap();
    assert_eq!(scene.taken(), [scene.victim.as_str()]);
    assert_eq!(scene.records(), [json!({"id": 1})]);
}

#[test]
fn whoever_watches_runs_nothing_but_with_their_own_rights() {
    let database = Cluster::shared().database("watching");
    let privileged: Vec<String> = database.query_one_value(
        "SELECT coalesce(array_agg(p.proname::text), '{}') FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
         WHERE p.prosecdef AND p.proname IN (
             'webhook_watch', 'webhook_unwatch', 'watch', 'unwatch', 'watch_commands', 'watch_definitions', 'watch_triggers',
             'require_watchable', 'require_watch', 'reported_name', 'refuse_condition', 'is_event_type', 'refuse_event_type',
             'did_you_mean', 'virtual_columns', 'trigger_function', 'members')",
    );
    assert_eq!(privileged, Vec::<String>::new());
    // Among the functions that an emitter may call, only emitting itself has other rights than the caller's.
    let role = format!("{}_emitter", database.name());
    database.execute(&format!(
        "CREATE ROLE {role}; SELECT webhook_grant('{role}', 'emit')"
    ));
    let privileged: Vec<String> = database.query_one_value(&format!(
        "SELECT array_agg(DISTINCT p.proname::text ORDER BY p.proname::text) FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
         WHERE p.prosecdef AND has_function_privilege('{role}', p.oid, 'EXECUTE')"
    ));
    assert_eq!(privileged, ["emit", "emit_many"]);
}

#[test]
fn values_in_keys_call_no_cast_and_are_in_no_error() {
    let scene = Scene::new();
    scene.attacker_does(TRAP);
    scene.database.execute(&format!(
        "CREATE TABLE vault (t lair.trap, secret text);
         GRANT INSERT, DELETE ON vault TO {};
         SELECT webhook_watch('vault', 'vault', ordering_key => '{{t, secret}}', coalesce_key => '{{t}}');
         INSERT INTO vault VALUES ('bait', E'open\tsesame'), ('cheese', repeat('sesame', 100));
         SELECT webhook_set_endpoint('all', 'http://127.0.0.1:9/')",
        scene.victim
    ));
    let (sender, notices) = std::sync::mpsc::channel();
    let mut session = (scene.database).connect_noticing(move |notice| {
        let _ = sender.send(format!("{notice:?}"));
    });
    let delete = format!(
        "SET SESSION AUTHORIZATION {}; SET client_min_messages = debug1; DELETE FROM vault",
        scene.victim
    );
    session.batch_execute(&delete).unwrap();
    assert_eq!(scene.taken(), Vec::<String>::new());
    for notice in notices.try_iter() {
        assert!(!notice.contains("sesame"), "{notice}");
    }
    let keys: Vec<String> = scene.database.query_one_value(
        "SELECT array_agg(left(ordering_key, 7) || ' ' || coalesce_key ORDER BY event_id) FROM webhook.delivery",
    );
    assert_eq!(
        keys,
        ["sha256: public/vault/bait", "sha256: public/vault/cheese"]
    );
}

// code of the table's owner, which the server itself runs as it writes

#[test]
fn checks_expressions_and_policies_of_a_table_run_with_the_writers_rights_alone() {
    let scene = Scene::new();
    scene.attacker_does(&format!(
        "CREATE FUNCTION spy(anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE AS
             $$ BEGIN PERFORM lair.loot(); RETURN $1; END $$;
         CREATE DOMAIN checked AS int CHECK (lair.spy(VALUE) > 0);
         CREATE TYPE holder AS (c checked);
         CREATE TABLE t (id checked, h holder, cs checked[], g int GENERATED ALWAYS AS (lair.spy(7)) STORED, CHECK (lair.spy(1) = 1));
         CREATE INDEX ON t (lair.spy(id));
         ALTER TABLE t ENABLE ROW LEVEL SECURITY;
         CREATE POLICY p ON t USING (lair.spy(true)) WITH CHECK (lair.spy(true));
         GRANT SELECT, INSERT, UPDATE, DELETE ON t TO {victim};
         SELECT webhook_watch('t', 't', changed => '{{id}}');
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
             EXECUTE FUNCTION webhook_trigger('t.late')",
        victim = scene.victim
    ));
    scene.database.execute("TRUNCATE taken");
    let mut victim = scene.session_of(&scene.victim);
    victim
        .batch_execute("INSERT INTO t VALUES (1, '(2)', '{3}'); UPDATE t SET id = 2; DELETE FROM t")
        .unwrap();
    assert_eq!(scene.taken(), std::slice::from_ref(&scene.victim));
    let record = |id: i32| json!({"id": id, "h": {"c": 2}, "cs": [3], "g": 7});
    assert_eq!(
        scene.records(),
        [record(1), record(2), Value::Null, record(1)]
    );
}

#[test]
fn parts_of_a_table_give_the_columns_of_the_watched_one() {
    let scene = Scene::new();
    scene.attacker_does(TRAP);
    scene.attacker_does(
        "CREATE TABLE parent (id int, v trap);
         CREATE TABLE child (extra trap) INHERITS (parent);
         CREATE TABLE parted (id int, gone int, v trap) PARTITION BY LIST (id);
         ALTER TABLE parted DROP COLUMN gone;
         CREATE TABLE part (v trap, other int, id int);
         ALTER TABLE part DROP COLUMN other;
         ALTER TABLE parted ATTACH PARTITION part FOR VALUES IN (1);
         SELECT webhook_watch('parent', 'parent'), webhook_watch('parted', 'parted');
         CREATE TRIGGER by_row AFTER UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION webhook_trigger('parted.row')",
    );
    scene.database.execute(
        "INSERT INTO lair.child VALUES (1, 'bait', 'bait');
         UPDATE lair.parent SET v = 'cheese';
         INSERT INTO lair.parted VALUES (1, 'bait');
         UPDATE lair.parted SET v = 'cheese'",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    let record = |v: &str| json!({"id": 1, "v": v});
    assert_eq!(
        scene.records(),
        ["cheese", "bait", "cheese", "cheese"].map(record)
    );
}

#[test]
fn triggers_that_fire_always_are_no_different_in_a_replica() {
    let scene = Scene::new();
    scene.attacker_does(TRAP);
    scene.attacker_does(
        "CREATE TABLE t (v trap);
         SELECT webhook_watch('t', 't');
         ALTER TABLE t ENABLE ALWAYS TRIGGER webhook_insert",
    );
    (scene.database)
        .execute("SET session_replication_role = replica; INSERT INTO lair.t VALUES ('bait')");
    assert_eq!(scene.taken(), Vec::<String>::new());
    assert_eq!(scene.records(), [json!({"v": "bait"})]);
}

#[test]
fn the_writers_own_rights_and_settings_are_back_afterwards() {
    let scene = Scene::new();
    scene.attacker_does(&format!(
        "CREATE TABLE t (id int); GRANT INSERT ON t TO {}; SELECT webhook_watch('t', 't')",
        scene.victim
    ));
    let mut victim = scene.session_of(&scene.victim);
    let state = "SELECT concat_ws(' ', current_user, current_setting('search_path'), current_setting('TimeZone'),
                        current_setting('DateStyle'), current_setting('jit'), current_setting('debug_print_plan'))";
    let settings = "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL, DMY'; SET jit = on";
    victim.batch_execute(settings).unwrap();
    let before: String = victim.query_one(state, &[]).unwrap().get(0);
    victim
        .batch_execute("INSERT INTO t VALUES (1), (2)")
        .unwrap();
    assert_eq!(
        victim.query_one(state, &[]).unwrap().get::<_, String>(0),
        before
    );
    // Also after an event that was refused, inside of a transaction that goes on.
    scene.attacker_does(
        "CREATE TRIGGER fails AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION webhook_trigger('no type')",
    );
    let caught = "DO $$ BEGIN
                      INSERT INTO lair.t VALUES (3);
                  EXCEPTION WHEN invalid_parameter_value THEN
                      PERFORM set_config('test.caught_as', current_user, false);
                  END $$";
    victim.batch_execute(caught).unwrap();
    let user: String = victim.query_one("SHOW test.caught_as", &[]).unwrap().get(0);
    assert_eq!(user, scene.victim);
    assert_eq!(
        victim.query_one(state, &[]).unwrap().get::<_, String>(0),
        before
    );
}
