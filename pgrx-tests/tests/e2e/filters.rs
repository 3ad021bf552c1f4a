//! Filters: which events an endpoint gets by a condition on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver};

#[path = "../../../src/filter.rs"]
mod cost;

pub(super) fn database() -> Database {
    Cluster::shared().database("filters")
}

/// The endpoint is paused, so that its deliveries can be read at leisure.
pub(super) fn add_paused_endpoint(
    database: &Database,
    name: &str,
    patterns: &[&str],
    filter: Option<&str>,
) {
    let add = "INSERT INTO webhook.endpoint (name, url, event_types, filter, paused_at)
               VALUES ($1, 'http://127.0.0.1/', $2, $3::text::jsonpath, now())";
    let mut client = database.connect();
    client.execute(add, &[&name, &patterns, &filter]).unwrap();
}

#[test]
fn a_filter_lets_pass_what_it_is_true_of() {
    let (database, receiver) = (database(), Receiver::start());
    let add = format!(
        "SELECT secret FROM webhook_set_endpoint('large', '{}', filter => '$.data.total > 100')",
        receiver.url("/")
    );
    database.query_one_value::<String>(&add);
    let small = database.emit("order.created", json!({"total": 100}));
    let large = database.emit("order.created", json!({"total": 100.5}));
    receiver.wait_for_event(large);
    assert_eq!(database.delivery_status(small), None);
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn filters_see_the_type_and_the_data() {
    let database = database();
    let filters = [
        ("eu", r#"$.data.country == "de" || $.data.country == "fr""#),
        ("exists", "exists($.data.items[*] ? (@.price > 10))"),
        (
            "no type",
            r#"!($.type like_regex "^order[.](created|paid)$")"#,
        ),
        (
            "recent",
            r#"$.data.at.datetime() >= "2026-01-01".datetime()"#,
        ),
        ("strict", "strict $.data.total > 100"),
        ("type", r#"$.type starts with "order.c""#),
        ("unknown", "($.data.total > 100) is unknown"),
    ];
    for (name, filter) in filters {
        add_paused_endpoint(&database, name, &["*"], Some(filter));
    }
    let cases: [(&str, Value, &[&str]); 9] = [
        ("order.created", json!({"total": 101}), &["strict", "type"]),
        (
            "order.created",
            json!({"total": "101"}),
            &["type", "unknown"],
        ),
        ("order.paid", json!({"country": "fr"}), &["eu"]),
        ("order.sent", json!({"country": "us"}), &["no type"]),
        (
            "order.paid",
            json!({"items": [{"price": 1}, {"price": 11}]}),
            &["exists"],
        ),
        ("order.paid", json!({"items": {"price": 11}}), &["exists"]),
        (
            "order.paid",
            json!({"at": "2026-03-01T00:00:00+00:00"}),
            &["recent"],
        ),
        ("order.paid", json!({"at": "yesterday"}), &[]),
        // Not all payloads are objects.
        ("invoice", json!(null), &["no type"]),
    ];
    for (event_type, payload, expected) in cases {
        let event = database.emit(event_type, payload.clone());
        assert_eq!(
            database.endpoints_of(event),
            expected,
            "{event_type} {payload}"
        );
    }
}

#[test]
fn each_of_many_events_is_filtered() {
    let database = database();
    add_paused_endpoint(&database, "all", &["*"], None);
    add_paused_endpoint(&database, "even", &["*"], Some("$.data % 2 == 0"));
    database.execute("SELECT webhook_emit_many('number', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 100) n))");
    let numbers = |endpoint: &str| -> Vec<Value> {
        database.query_one_value(&format!(
            "SELECT array_agg(v.payload ORDER BY v.id) FROM webhook.event v
             JOIN webhook.delivery d ON d.event_id = v.id JOIN webhook.endpoint e ON e.id = d.endpoint_id
             WHERE e.name = '{endpoint}'"
        ))
    };
    assert_eq!(
        numbers("all"),
        (1..=100).map(Value::from).collect::<Vec<_>>()
    );
    assert_eq!(
        numbers("even"),
        (1..=50).map(|n| Value::from(2 * n)).collect::<Vec<_>>()
    );
}

/// Each of them fails for some of the values below, and is true of none.
const FAILING: [&str; 11] = [
    r#"$.data.v.datetime() < "0001-01-01".datetime()"#,
    r#"$.data.v.datetime("YYYY-MM-DD") < "0001-01-01".datetime()"#,
    r#"$.data.v.datetime("HH24:MI") > "23:59".datetime("HH24:MI")"#,
    "$.data.v.double() > 1e300",
    "$.data.v / 0 == 1",
    "1 / $.data.v == 2",
    "$.data.v % 0 == 1",
    "$.data.v * $.data.v * $.data.v == 3",
    "-$.data.v.abs() == 1",
    "$.data.list[$.data.v] == 1",
    "strict $.data.v.a.b.size() == 1",
];

#[test]
fn a_filter_that_fails_lets_nothing_pass_and_costs_nobody_anything() {
    let database = database();
    add_paused_endpoint(&database, "all", &["*"], None);
    for (number, filter) in FAILING.iter().enumerate() {
        add_paused_endpoint(
            &database,
            &format!("failing {number}"),
            &["*"],
            Some(filter),
        );
    }
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    transaction.batch_execute("CREATE TABLE kept ()").unwrap();
    // Among them numbers as long as they can be, times that are none or out of any range, and no value at all.
    let events = transaction.query(
        r#"WITH given (v) AS (
               SELECT to_jsonb(v) FROM unnest(ARRAY['', 'now', 'NaN', '1e400', '2026-13-45', '300000-01-01', '99999999-01-01', '25:61']) AS v
               UNION ALL SELECT to_jsonb(v) FROM unnest(ARRAY[0, 1e-16383, -1e131071, repeat('9', 131072)::numeric + 0.5]) AS v
               UNION ALL SELECT v FROM unnest(ARRAY['null', 'true', '[]', '[1, "x"]', '{}', '{"a": 1}']::jsonb[]) AS v
           ), payload (payload) AS (
               SELECT jsonb_build_object('v', v, 'list', '[]'::jsonb) FROM given UNION ALL SELECT unnest(ARRAY['{}', '1', 'null']::jsonb[])
           )
           SELECT webhook_emit('a', payload) FROM payload
           UNION ALL SELECT webhook_emit_many('a', array_agg(payload)) FROM payload"#,
        &[],
    );
    let events: Vec<Uuid> = events.unwrap().iter().map(|row| row.get(0)).collect();
    transaction.commit().unwrap();
    assert_eq!(events.len(), 2 * 21);
    for event in &events {
        assert_eq!(database.endpoints_of(*event), ["all"]);
    }
    database.execute("TABLE kept");
    assert_why(
        &database,
        events[0],
        "Endpoint \"failing 0\" has no delivery of it: its filter, %, is not true of it%",
    );
}

/// The subtransactions that these statements begin, as the server tells of them.
fn subtransactions(database: &Database, statements: &str) -> usize {
    let begun = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&begun);
    let mut session = database.connect_noticing(move |notice| {
        // The server lists several levels then: this is the outermost.
        if notice.message().starts_with("StartSubTransaction(1)") {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let debug = format!("SET client_min_messages = debug5; {statements}");
    session.batch_execute(&debug).unwrap();
    begun.load(Ordering::Relaxed)
}

#[test]
fn no_emit_opens_a_subtransaction() {
    let database = database();
    add_paused_endpoint(&database, "all", &["*"], None);
    add_paused_endpoint(&database, "failing", &["*"], Some(FAILING[0]));
    database.execute("CREATE TABLE orders (id int); SELECT webhook_watch('orders', 'order')");
    let emits = "
        SELECT webhook_emit('a');
        SELECT webhook_emit('a', '{\"v\": \"x\"}', 'i', 'o', 'c', now(), now() + interval '1 h', 'acme', '{all}');
        SELECT webhook_emit('a', idempotency_key => 'i', tenant => 'acme');
        SELECT webhook_emit_many('a', '{1,2}', '{o,o}', '{i,i}', '{c,c}');
        INSERT INTO orders VALUES (1);
        INSERT INTO orders VALUES (2), (3)";
    assert_eq!(subtransactions(&database, emits), 0);
    let caught = "DO $$ BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END $$";
    assert_eq!(
        subtransactions(&database, caught),
        1,
        "the server tells of them"
    );
}

#[test]
fn filters_that_could_fail_an_emit_are_refused() {
    let database = database();
    database.add_endpoint("a", "http://127.0.0.1/");
    let mut refused = vec![
        (
            r#"$.data.at.datetime("nonsense") > "x""#,
            "invalid datetime format separator",
        ),
        (
            r#"$.data.name == "a" || $.data.at.datetime("YYYY_MM") > "x""#,
            "invalid datetime format",
        ),
        ("$.data.n.floor() == 1", "floor()"),
        ("exists($.data.list[*] ? (@.ceiling() == 1))", "ceiling()"),
    ];
    if database.query_one_value("SELECT current_setting('server_version_num')::int >= 170000") {
        refused.push((
            r#"$.data.at.timestamp() > "2020-01-01".date()"#,
            "timestamp()",
        ));
        refused.push((
            r#"$.data.at.timestamp_tz() > "2020-01-01".date()"#,
            "timestamp_tz()",
        ));
    }
    for (filter, problem) in refused {
        let refusal = database.refusal(&format!("UPDATE webhook.endpoint SET filter = '{filter}'"));
        assert_eq!(refusal.code().code(), "22023", "{filter}");
        assert!(refusal.detail().unwrap().contains(problem), "{refusal:?}");
    }
    for accepted in [
        r#"$.data."a.datetime(" == ")" && $.data."floor()" == "x.datetime(\"nonsense\")""#,
        r#"$.data.at.datetime("YYYY-MM-DD\"T\"HH24:MI:SS") > "2020-01-01".datetime()"#,
    ] {
        database.execute(&format!(
            "UPDATE webhook.endpoint SET filter = '{accepted}'"
        ));
    }
}

#[test]
fn a_filter_does_not_depend_on_the_time_zone_of_the_emitter() {
    let database = database();
    let filter = r#"$.data.at.datetime() < "2026-01-01".datetime()"#;
    add_paused_endpoint(&database, "last year", &["*"], Some(filter));
    for (zone, at, expected) in [
        ("Asia/Tokyo", "2025-12-31T23:00:00+00:00", 1),
        ("America/Los_Angeles", "2026-01-01T01:00:00+00:00", 0),
    ] {
        let mut session = database.connect();
        session
            .batch_execute(&format!("SET TimeZone = '{zone}'"))
            .unwrap();
        let event = webhook_e2e::database::emit(&mut session, "a", json!({"at": at}));
        assert_eq!(database.endpoints_of(event).len(), expected, "{zone}");
    }
}

#[test]
fn filters_that_are_no_conditions_or_have_variables_are_refused() {
    let database = database();
    database.add_endpoint("a", "http://127.0.0.1/");
    let refused = [
        "$",
        "$.data.total",
        "$.data ? (@.total > 100)",
        "$.data.total + 1",
        "strict $.data.total",
        "1",
        "$.data.total > $limit",
        "$.data.a == 1 && $.data.b == $\"b c\"",
        "exists($.data.items[*] ? (@.price > $p))",
        "$limit",
        r#""x".datetime("nonsense") > "y""#,
    ];
    for filter in refused {
        for statement in [
            format!("SELECT webhook_set_endpoint('b', 'http://127.0.0.1/', filter => '{filter}')"),
            format!("UPDATE webhook.endpoint SET filter = '{filter}'"),
        ] {
            let refusal = database.refusal(&statement);
            assert_eq!(refusal.code().code(), "22023", "{statement}");
            assert!(refusal.detail().unwrap().contains("filter"), "{refusal:?}");
            assert!(refusal.hint().is_some());
        }
    }
    // Texts that look like a variable and are none.
    let accepted = [
        r#"$.data.price == "5$""#,
        r#"$.data."a$" == "$""#,
        r#"$.data.a == "\"$\"" && $."$x" == 1"#,
        r#"$.data.a like_regex "^x$""#,
        "true",
    ];
    for filter in accepted {
        database.execute(&format!("UPDATE webhook.endpoint SET filter = '{filter}'"));
    }
    database.execute("UPDATE webhook.endpoint SET filter = NULL");
}

/// Took more than 6 s of an emit with 62 bytes: each back-reference is tried with all lengths of all groups.
const CATASTROPHIC: &str = r"^(.*)(.*)(.*)(.*)(.*)\\5\\4\\3\\2\\1b$";

#[test]
fn filters_that_could_take_too_long_are_refused() {
    let database = database();
    database.add_endpoint("a", "http://127.0.0.1/");
    let pattern = |pattern: &str| format!("$.data.a like_regex \"{pattern}\"");
    let names = |count: usize| vec!["$.data.name == 1"; count].join(" || ");
    let refused = [
        (pattern(CATASTROPHIC), "a pattern with a back-reference"),
        (pattern("(a+)+$"), "a repetition within a repetition"),
        (pattern("(?=a)b"), "look-ahead"),
        (pattern("a{1,255}"), "more than 100 repetitions"),
        (pattern("a[ab]{100}[ab]{100}"), "201 characters with"),
        (
            format!(
                "exists($.data.list[*] ? ({}))",
                pattern("(a*)*").replace('$', "@")
            ),
            "a repetition within a repetition",
        ),
        ("exists($.data.**.b.** ? (@ == 1))".into(), "more than once"),
        (names(50), "characters, more than 1000"),
    ];
    for (filter, problem) in refused {
        for statement in [
            format!("SELECT webhook_set_endpoint('b', 'http://127.0.0.1/', filter => '{filter}')"),
            format!("UPDATE webhook.endpoint SET filter = '{filter}'"),
        ] {
            let refusal = database.refusal(&statement);
            assert_eq!(refusal.code().code(), "22023", "{statement}");
            let detail = refusal.detail().unwrap();
            assert!(
                detail.contains("filter") && detail.contains(problem),
                "{detail}"
            );
            assert!(refusal.hint().is_some());
        }
    }
    let accepted = [
        pattern("(a+)+$") + " flag \"q\"",
        pattern("^[a-z0-9]+(@|[.])example[.](com|org)$"),
        r#"$.data."like_regex" == "(a+)+""#.into(),
        "exists($.data.** ? (@ == 1))".into(),
        names(25),
    ];
    for filter in accepted {
        database.execute(&format!("UPDATE webhook.endpoint SET filter = '{filter}'"));
    }
}

#[test]
fn whatever_pattern_is_accepted_is_done_with_a_million_characters_soon() {
    // Each character has them look at all of their states, and at most of the arcs between them.
    let patterns = [
        "a.{100}.{98}x",
        "a[ab]{100}[ab]{98}x",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789|a[^B]{26}",
        "a.{0,60}b.{0,60}a.{0,60}x",
        "(a|b)*a(a|b){90}x",
        "(a|b)+(a|b)+(a|b)+(a|b)+(a|b)+(a|b)+x",
    ];
    let database = database();
    for (number, pattern) in patterns.iter().enumerate() {
        let filter = format!("$.data like_regex \"{pattern}\"");
        add_paused_endpoint(&database, &number.to_string(), &["*"], Some(&filter));
    }
    // A matcher that takes each character more than once is not done before this is over, by far.
    database.execute(
        "SET statement_timeout = '60 s';
         SELECT setseed(0.5);
         SELECT webhook_emit('a', to_jsonb(string_agg(CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END, '')))
         FROM generate_series(1, 1000000)",
    );
}

#[test]
fn a_filter_decides_when_the_event_is_emitted() {
    let database = database();
    add_paused_endpoint(&database, "e", &["*"], Some("$.data.a == 1"));
    let (passed, stopped) = (
        database.emit("a", json!({"a": 1})),
        database.emit("a", json!({"a": 2})),
    );
    database.execute("UPDATE webhook.endpoint SET filter = '$.data.a == 2'");
    assert_eq!(database.endpoints_of(passed), ["e"]);
    assert_eq!(database.endpoints_of(stopped), Vec::<String>::new());
    assert_why(
        &database,
        passed,
        "Endpoint \"e\": the event does not match now; %",
    );
    assert_why(
        &database,
        stopped,
        "Endpoint \"e\" has no delivery of it: the event matches its event types (*) now, but they, its filter or %",
    );
}

/// One of the sentences is like this.
#[track_caller]
fn assert_why(database: &Database, event: Uuid, pattern: &str) {
    let rows = database.connect().query(
        "SELECT why, why LIKE $2 FROM webhook_why($1) AS why",
        &[&event.to_string(), &pattern],
    );
    let rows = rows.unwrap();
    let sentences: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(
        rows.iter().any(|row| row.get(1)),
        "not like {pattern}: {sentences:#?}"
    );
}

#[test]
fn why_tells_what_matched_and_what_did_not() {
    let database = database();
    add_paused_endpoint(
        &database,
        "filtered",
        &["order.*"],
        Some("$.data.total > 100"),
    );
    add_paused_endpoint(
        &database,
        "left out",
        &["*", "!order.*", "!order.created"],
        None,
    );
    let large = database.emit("order.created", json!({"total": 101}));
    assert_why(
        &database,
        large,
        "Endpoint \"filtered\": the event matches order.* and the filter ($.\"data\".\"total\" > 100).",
    );
    assert_why(
        &database,
        large,
        "Endpoint \"left out\" has no delivery of it: its event types leave it out (!order.*, !order.created).",
    );
    let small = database.emit("order.created", json!({"total": 1}));
    assert_why(
        &database,
        small,
        "It matched no endpoint, so there is nothing to deliver.",
    );
    assert_why(
        &database,
        small,
        "Endpoint \"filtered\" has no delivery of it: its filter, ($.\"data\".\"total\" > 100), is not true of it.",
    );
    database.execute(&format!("SELECT webhook_redact('{small}')"));
    assert_why(
        &database,
        small,
        "Endpoint \"filtered\" has no delivery of it: the event matches its event types (order.*) now, but perhaps not its filter, %",
    );
}
