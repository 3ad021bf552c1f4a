//! Types and casts in rows that are emitted: which code runs, and with whose rights.

use serde_json::json;
use webhook_e2e::pg_config::missing_module;
use webhook_e2e::{Cluster, untested};

use super::capture_attacks::{Scene, TRAP};

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
    if untested::skip_if(missing_module(&["hstore"])) {
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
