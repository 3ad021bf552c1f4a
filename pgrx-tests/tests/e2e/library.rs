//! Functions that the library has for SQL and the server.

use std::fs;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::cluster::Builder;
use webhook_e2e::{Cluster, Receiver, untested};

#[test]
fn new_ids_are_version_7_and_in_order() {
    let database = Cluster::shared().database("ids");
    let rows = database
        .connect()
        .query("SELECT webhook.new_id() FROM generate_series(1, 1000)", &[]);
    let ids: Vec<Uuid> = rows.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(ids.len(), 1000);
    assert!(ids.iter().all(|id| id.get_version_num() == 7));
    assert!(ids.is_sorted_by(|one, next| one < next));
}

#[test]
fn the_library_is_preloaded_and_exactly_one_launcher_runs() {
    let database = Cluster::shared().database("launched");
    assert!(database.query_one_value::<bool>("SELECT webhook.is_preloaded()"));
    // The server takes connections before all of its workers run.
    let launchers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'webhook launcher'";
    database.wait_until(&format!("SELECT ({launchers}) > 0"));
    assert_eq!(database.query_one_value::<i64>(launchers), 1);
}

#[test]
fn an_invalid_event_type_is_refused() {
    let database = Cluster::shared().database("types");
    let refusal = database.refusal("SELECT webhook_emit('no spaces')");
    assert_eq!(refusal.message(), "event type \"no spaces\" is not valid");
}

#[test]
fn without_the_library_settings_have_the_same_defaults() {
    let cluster = Cluster::builder().without_preload().start();
    let database = cluster.database("defaults");
    let mut with_library = database.connect();
    with_library.batch_execute("LOAD 'webhook'").unwrap();
    let known = "SELECT substr(name, 9), current_setting(name) FROM pg_settings WHERE name LIKE 'webhook.%'";
    let known = with_library.query(known, &[]).unwrap();
    assert!(known.len() >= 15, "{} settings", known.len());
    let mut without = database.connect();
    for setting in known {
        let (name, value): (String, String) = (setting.get(0), setting.get(1));
        let seen = without.query_one("SELECT webhook.setting($1)", &[&name]);
        let seen: Option<String> = seen.unwrap().get(0);
        assert_eq!(seen, Some(value), "{name}");
    }
}

#[test]
fn one_function_reads_the_settings_and_only_those_that_there_are() {
    let database = Cluster::shared().database("readers");
    let defaults: Vec<String> = database.query_one_value(
        "SELECT array_agg(named[1] ORDER BY named[1])
         FROM regexp_matches(pg_get_functiondef('webhook.setting'::regproc), 'WHEN ''([a-z_]+)''', 'g') AS named",
    );
    let settings: Vec<String> = database.query_one_value(
        "SELECT array_agg(substr(name, 9) ORDER BY substr(name, 9)) FROM pg_settings WHERE name LIKE 'webhook.%'",
    );
    assert_eq!(defaults, settings);
    let functions_with = |text: &str| -> Vec<String> {
        database.query_one_value(&format!(
            "SELECT array_agg(p.proname::text) FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
             WHERE p.prokind <> 'a' AND pg_get_functiondef(p.oid) ~ '{text}'"
        ))
    };
    let readers = functions_with("(current_setting|set_config)[^;]*webhook[.]");
    assert_eq!(readers, ["configured"]);
    assert_eq!(
        functions_with(r"webhook[.]configured\((?!name text)"),
        ["setting"]
    );
    let unknown: Vec<String> = database.query_one_value(
        "SELECT coalesce(array_agg(DISTINCT named[1]), '{}')
         FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine
         CROSS JOIN LATERAL regexp_matches(pg_get_functiondef(p.oid), 'webhook[.]setting[(]''([a-z_]+)''', 'g') AS named
         WHERE p.prokind <> 'a'
           AND NOT EXISTS (SELECT FROM pg_settings s WHERE s.name = 'webhook.' || named[1])",
    );
    assert_eq!(unknown, Vec::<String>::new());
}

/// The headers of newer minor releases may have functions that older servers do not.
#[test]
fn a_build_for_the_newest_15_runs_on_an_earlier_15() {
    let newest = Cluster::builder();
    let library = |path| fs::read(path).expect("the library can be read");
    let is_same = |earlier: &Builder| library(newest.library()) == library(earlier.library());
    let earlier = Cluster::builder().fetched(15).filter(is_same);
    let problem = earlier
        .is_none()
        .then_some("there is no such server with this build");
    if untested::skip_if(problem) {
        return;
    }
    let earlier = earlier.expect("there is one");
    let cluster = earlier.start();
    let database = cluster.database("earlier");
    let number = "SELECT current_setting('server_version_num')::int";
    let version: i32 = database.query_one_value(number);
    assert!(version < 150020, "CVE-2026-6460 is fixed in {version}");

    let receiver = Receiver::start();
    database.add_endpoint("all", &receiver.url("/all"));
    database.execute(
        "CREATE TYPE part AS (a int, b text);
         CREATE TABLE machine (id int, p part, ps part[]);
         SELECT webhook_watch('machine', 'machine', ordering_key => '{p}');
         INSERT INTO machine VALUES (1, ROW(1, 'x'), ARRAY[ROW(2, 'y')::part]);
         ALTER TYPE part ADD ATTRIBUTE c int;
         UPDATE machine SET id = 2",
    );
    let requests = receiver.wait_for_requests(2);
    let mut events = requests.iter().map(|request| request.json());
    let updated = events.find(|event| event["type"] == "machine.updated");
    assert_eq!(
        updated.expect("it is sent")["data"]["record"],
        json!({"id": 2, "p": {"a": 1, "b": "x", "c": null}, "ps": [{"a": 2, "b": "y", "c": null}]})
    );
}
