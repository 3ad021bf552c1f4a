//! Whoever owns a table, a type or a trigger, or writes the table: no code of theirs runs with rights that are not theirs, and
//! nobody reads a row through capture that they may not read.

use postgres::Client;
use serde_json::{Value, json};
use webhook_e2e::cluster::lacks;
use webhook_e2e::database::refusal;
use webhook_e2e::watch::take;
use webhook_e2e::{Cluster, Database};

/// A database, an attacker with the level `emit` and a schema, and a victim who only writes tables. Code of the attacker's
/// calls `loot()`, which notes with whose rights it runs.
struct Scene {
    database: Database,
    attacker: String,
    victim: String,
}

impl Scene {
    fn new() -> Scene {
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

    fn session_of(&self, role: &str) -> Client {
        let mut session = self.database.connect();
        let become_role =
            format!("SET SESSION AUTHORIZATION {role}; SET search_path = lair, public");
        session.batch_execute(&become_role).unwrap();
        session
    }

    /// As the attacker, in a session of its own.
    #[track_caller]
    fn attacker_does(&self, sql: &str) {
        let result = self.session_of(&self.attacker).batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Each with the rights of which the attacker's code has run, in order.
    #[track_caller]
    fn taken(&self) -> Vec<String> {
        self.database.query_one_value(
            "SELECT coalesce(array_agg(DISTINCT by_rights_of ORDER BY by_rights_of), '{}') FROM taken",
        )
    }

    #[track_caller]
    fn records(&self) -> Vec<Value> {
        (take(&self.database).into_iter())
            .map(|(_, payload)| payload["record"].clone())
            .collect()
    }
}

/// A type with a cast to json that is code of its owner's.
const TRAP: &str = "
    CREATE TYPE lair.trap AS ENUM ('bait', 'cheese');
    CREATE FUNCTION lair.trap_as_json(lair.trap) RETURNS json LANGUAGE plpgsql AS
        $$ BEGIN PERFORM lair.loot(); RETURN '\"sprung\"'; END $$;
    CREATE CAST (lair.trap AS json) WITH FUNCTION lair.trap_as_json(lair.trap);";

// the attacks of the review

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
    // Of all that an emitter may call only emitting itself has other rights than the caller's.
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

// code in types

#[test]
fn a_cast_of_a_types_owner_is_not_called_wherever_the_type_hides() {
    let scene = Scene::new();
    scene.attacker_does(TRAP);
    scene.attacker_does(
        "CREATE DOMAIN dressed AS trap;
         CREATE DOMAIN twice AS dressed;
         CREATE TYPE pair AS (n int, t trap, dropped int, ts trap[]);
         ALTER TYPE pair DROP ATTRIBUTE dropped;
         CREATE DOMAIN pair_domain AS pair;
         CREATE TYPE nest AS (p pair, ps pair_domain[]);
         CREATE DOMAIN traps AS trap[];
         CREATE TYPE span AS RANGE (SUBTYPE = trap)",
    );
    // The table is a superuser's, as is the session that writes it.
    scene.database.execute(
        "CREATE TABLE cage (
             plain lair.trap, d lair.twice, a lair.trap[], da lair.dressed[], p lair.pair, pa lair.pair_domain[], n lair.nest,
             doms lair.traps, domsa lair.traps[], r lair.span, mr lair.span_multirange, ra lair.span[]);
         SELECT webhook_watch('cage', 'cage');
         CREATE TRIGGER by_row AFTER INSERT OR UPDATE ON cage FOR EACH ROW
             EXECUTE FUNCTION webhook_trigger('cage.row', '{\"changed\": [\"p\", \"a\"], \"tenant_column\": \"plain\"}');
         INSERT INTO cage VALUES (
             'bait', 'bait', '[2:3]={bait,NULL}', '{{bait},{cheese}}', '(1,bait,{cheese})', '{\"(1,bait,)\"}',
             ROW('(2,,)', ARRAY['(3,cheese,{bait})']::lair.pair_domain[])::lair.nest, '{bait}',
             '{\"{bait}\",\"{cheese,bait}\"}', '[bait,cheese]', '{[bait,bait]}', '{\"[bait,bait]\"}');
         UPDATE cage SET a = '{cheese}'",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    let inserted = json!({
        "plain": "bait", "d": "bait", "a": ["bait", null], "da": [["bait"], ["cheese"]],
        "p": {"n": 1, "t": "bait", "ts": ["cheese"]}, "pa": [{"n": 1, "t": "bait", "ts": null}],
        "n": {"p": {"n": 2, "t": null, "ts": null}, "ps": [{"n": 3, "t": "cheese", "ts": ["bait"]}]},
        "doms": ["bait"], "domsa": [["bait"], ["cheese", "bait"]],
        "r": "[bait,cheese]", "mr": "{[bait,bait]}", "ra": ["[bait,bait]"],
    });
    let mut updated = inserted.clone();
    updated["a"] = json!(["cheese"]);
    assert_eq!(
        scene.records(),
        [&inserted, &inserted, &updated, &updated].map(Clone::clone)
    );
}

#[test]
fn a_cast_that_is_made_in_mid_statement_is_not_called() {
    let scene = Scene::new();
    scene.attacker_does(&format!(
        "CREATE TYPE late AS ENUM ('x');
         CREATE TYPE bag AS (id int);
         CREATE FUNCTION late_as_json(late) RETURNS json LANGUAGE plpgsql AS
             $$ BEGIN PERFORM lair.loot(); RETURN '1'; END $$;
         CREATE TABLE t (id int, l late, b bag);
         GRANT INSERT ON t TO {victim};
         SELECT webhook_watch('t', 't');
         CREATE TRIGGER n AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION webhook_trigger('t.row');
         CREATE FUNCTION arm() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = lair AS $$ BEGIN
             IF NOT EXISTS (SELECT FROM pg_cast WHERE castsource = 'late'::regtype) THEN
                 CREATE CAST (late AS json) WITH FUNCTION late_as_json(late);
                 ALTER TYPE bag ADD ATTRIBUTE l late;
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER m AFTER INSERT ON t FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION arm();
         CREATE TRIGGER o BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id = 4) EXECUTE FUNCTION arm()",
        victim = scene.victim
    ));
    let mut victim = scene.session_of(&scene.victim);
    let unarmed = "SET search_path = pg_catalog; INSERT INTO lair.t (id, l, b) VALUES (1, 'x', '(5)'), (2, 'x', '(5)'), (3, 'x', '(5)')";
    victim.batch_execute(unarmed).unwrap();
    scene.attacker_does("DROP CAST (late AS json); ALTER TYPE bag DROP ATTRIBUTE l");
    (victim.batch_execute("INSERT INTO lair.t (id, l, b) VALUES (4, 'x', '(5)'), (5, 'x', '(5)')"))
        .unwrap();
    assert_eq!(scene.taken(), Vec::<String>::new());
    let records = scene.records();
    assert_eq!(records.len(), 10);
    assert!(
        records
            .iter()
            .all(|record| record["l"] == "x" && record["b"]["id"] == 5)
    );
}

#[test]
fn types_and_casts_in_pg_temp_are_no_others() {
    let scene = Scene::new();
    scene.attacker_does(
        "CREATE TYPE pg_temp.t AS ENUM ('a');
         CREATE FUNCTION pg_temp.t2json(pg_temp.t) RETURNS json LANGUAGE plpgsql AS
             $$ BEGIN PERFORM lair.loot(); RETURN '1'; END $$;
         CREATE CAST (pg_temp.t AS json) WITH FUNCTION pg_temp.t2json(pg_temp.t);
         CREATE FUNCTION pg_temp.to_jsonb(anyelement) RETURNS jsonb LANGUAGE plpgsql AS
             $$ BEGIN PERFORM lair.loot(); RETURN '1'; END $$;
         CREATE TEMP TABLE event (id int);
         CREATE TEMP TABLE x (v pg_temp.t);
         SET search_path = pg_temp, lair, public, pg_catalog;
         SELECT webhook_watch('x', 'x');
         INSERT INTO x VALUES ('a');
         UPDATE x SET v = 'a'",
    );
    assert_eq!(scene.taken(), Vec::<String>::new());
    assert_eq!(scene.records(), [json!({"v": "a"}), json!({"v": "a"})]);
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

// what is honoured

#[test]
fn a_cast_of_a_superuser_is_honoured_with_the_writers_rights() {
    let scene = Scene::new();
    scene.database.execute(&format!(
        "CREATE TYPE mood AS ENUM ('well');
         CREATE FUNCTION mood_as_json(mood) RETURNS json LANGUAGE sql AS $$ SELECT json_build_object('by', current_user) $$;
         CREATE CAST (mood AS json) WITH FUNCTION mood_as_json(mood);
         CREATE TABLE t (m mood);
         GRANT INSERT ON t TO {};
         SELECT webhook_watch('t', 't')",
        scene.victim
    ));
    let mut victim = scene.session_of(&scene.victim);
    let insert = "INSERT INTO t VALUES ('well'), (NULL)";
    victim.batch_execute(insert).unwrap();
    assert_eq!(
        scene.records(),
        [json!({"m": {"by": scene.victim}}), json!({"m": null})]
    );
}

#[test]
fn a_cast_of_an_extension_is_honoured() {
    if lacks("hstore") {
        return;
    }
    let scene = Scene::new();
    scene.database.execute(&format!(
        "CREATE EXTENSION hstore;
         CREATE TABLE t (h hstore, hs hstore[]);
         GRANT INSERT ON t TO {};
         SELECT webhook_watch('t', 't')",
        scene.victim
    ));
    let mut victim = scene.session_of(&scene.victim);
    let insert = "INSERT INTO t VALUES ('a => 1, b => NULL', '{a=>2}'), (NULL, NULL)";
    victim.batch_execute(insert).unwrap();
    assert_eq!(
        scene.records(),
        [
            json!({"h": {"a": "1", "b": null}, "hs": [{"a": "2"}]}),
            json!({"h": null, "hs": null}),
        ]
    );
}

#[test]
fn records_are_what_to_jsonb_makes_of_the_rows() {
    let database = Cluster::shared().database("capture");
    let with_libxml: bool = database.query_one_value(
        "SELECT setting LIKE '%libxml%' FROM pg_config() WHERE name = 'CONFIGURE'",
    );
    let statements = r#"CREATE TYPE colour AS ENUM ('red', 'green');
           CREATE DOMAIN positive AS int CHECK (VALUE > 0);
           CREATE DOMAIN words AS text[];
           CREATE TYPE point3 AS (x int, "Y y" positive, c colour, w words);
           CREATE TYPE spans AS RANGE (SUBTYPE = float8);
           CREATE TABLE other (id int, name text);
           CREATE TABLE many (
               a smallint, b int, c bigint, d numeric, e real, f float8, g bool, h text, i varchar(5), j char(5), k "char", l name,
               m bytea, n date, o time, p timetz, q timestamp, r timestamptz, s interval, t uuid, u json, v jsonb, w xml, x inet,
               y cidr, z macaddr, aa bit(3), ab varbit, ac tsvector, ad point, ae money, af int4range, ag tstzmultirange,
               ah oid, ai regclass, aj pg_lsn, ak int[], al text[], am jsonb[], an timestamptz[], ao colour, ap colour[],
               aq positive, ar positive[], as_ words, at words[], au point3, av point3[], aw spans, ax spans[], ay other, az other[],
               ba int2vector, bb pg_class, "Bc ""d""" jsonpath, dropped int, be int GENERATED ALWAYS AS (a + 1) STORED);
           ALTER TABLE many DROP COLUMN dropped;
           SELECT webhook_watch('many', 'many');
           CREATE TRIGGER by_row AFTER INSERT ON many FOR EACH ROW EXECUTE FUNCTION webhook_trigger('many.row');
           ALTER TABLE many ADD COLUMN later text DEFAULT 'was not there';
           INSERT INTO many VALUES (
               1, -2, 9007199254740993, 'NaN', 0.1, '-Infinity', true, E'a"\\\u00e9\n', 'abc', 'ab', 'x', 'name',
               '\x00ff', 'infinity', '01:02:03.4', '01:02+03', '2026-01-02 03:04:05.678', '2026-01-02 03:04+05', '-1 mon 2 days',
               'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"b": 1, "a": [1.50, null], "a": 2}', '{"z": 1e3}', '<a/>', '::1/64',
               '10.0.0.0/8', '08:00:2b:01:02:03', '101', '1', 'fat:2 & cat'::text::tsvector, '(1,2)', '12.34', '[1,3)',
               '{[2026-01-01 00:00Z,2026-01-02 00:00Z)}', 4000000000, 'pg_class', '16/B374D848', '[2:3][0:1]={{1,NULL},{3,4}}',
               '{}', ARRAY['1'::jsonb, NULL, '{"a": []}'], '{infinity,2026-01-01 00:00Z}', 'green', '{red,NULL,green}',
               5, '{6,7}', '{a,b}', '{"{c}","{d,e}"}', ROW(1, 2, 'red', '{q}'), ARRAY[ROW(NULL, 3, NULL, NULL)::point3, NULL],
               '[1.5,2)', '{"[0,1]"}', '(1,a)', ARRAY[ROW(2, 'b')::other], '1 2 3',
               (SELECT c FROM pg_class c WHERE c.oid = 'pg_type'::regclass), '$.a[*] ? (@ > 1)');
           INSERT INTO many DEFAULT VALUES;
           INSERT INTO many (h, m, v, al) SELECT repeat(md5('1'), 5000), decode(repeat('ab', 9000), 'hex'),
               jsonb_build_object('big', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) n)),
               ARRAY(SELECT md5(n::text) FROM generate_series(1, 500) n)"#;
    // A server without libxml makes no value of that type.
    let xml = "'<a/>'";
    assert!(statements.contains(xml));
    database.execute(&statements.replace(xml, if with_libxml { xml } else { "NULL" }));
    for event_type in ["many.created", "many.row"] {
        let equal: Vec<bool> = database.query_one_value(&format!(
            "WITH settings AS MATERIALIZED (SELECT set_config('TimeZone', 'UTC', false)),
                  event AS (SELECT payload -> 'record' AS record, row_number() OVER (ORDER BY id) AS n FROM webhook.event
                            WHERE event_type = '{event_type}'),
                  row AS (SELECT to_jsonb(whole) AS record, row_number() OVER (ORDER BY ctid) AS n FROM settings, many AS whole)
             SELECT array_agg(event.record = row.record ORDER BY n) FROM event FULL JOIN row USING (n)"
        ));
        assert_eq!(equal, [true, true, true], "{event_type}");
    }
}
