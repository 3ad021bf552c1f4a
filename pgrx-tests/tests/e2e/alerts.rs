//! Alerts: each change of an endpoint is told once, by NOTIFY, in the log and as an event, to all who asked for it.

use std::collections::BTreeSet;
use std::time::Instant;

use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Row};
use serde_json::{Value, json};
use webhook_e2e::alerts::{
    Listener, add_endpoint, add_policy, answer, database, emit, kind, received, sorted, subscribe,
    tell, try_with, wait_for_logged, wait_for_silence, wait_for_state,
};
use webhook_e2e::{Cluster, Receiver, engine};

#[test]
fn each_kind_is_told_once_by_notify_in_the_log_and_as_an_event() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "everything", "webhook.*", "");
    let metadata = r#"{"owner": "Ann", "contact": {"mail": "ann@example.com", "phone": null}}"#;
    add_endpoint(
        &database,
        &receiver,
        "each_kind",
        "cooldown = '20 ms', max_cooldown = '20 ms', max_attempts = 1000",
        &format!(", metadata => '{metadata}'"),
    );
    let begun: String = database.query_one_value("SELECT now()::text");

    try_with(&database, &receiver, "each_kind", 500, 2);
    assert_eq!(listener.kinds(&database, "each_kind"), ["degraded"]);
    answer(&receiver, "each_kind", 500);
    emit(&database, "each_kind", 1);
    // Probes that fail open it again and again, and that is no news.
    database.wait_until("SELECT trips > 3 FROM webhook.breaker");
    assert_eq!(
        listener.kinds(&database, "each_kind"),
        ["degraded", "opened"]
    );
    answer(&receiver, "each_kind", 200);
    wait_for_state(&database, "each_kind", "ACTIVE");
    wait_for_silence(&database);
    try_with(&database, &receiver, "each_kind", 404, 1);
    wait_for_silence(&database);
    try_with(&database, &receiver, "each_kind", 200, 1);
    try_with(&database, &receiver, "each_kind", 410, 1);
    wait_for_state(&database, "each_kind", "DISABLED");
    wait_for_silence(&database);

    let alerts = listener.alerts(&database);
    let told: Vec<String> = alerts.iter().map(|alert| kind(&alert["type"])).collect();
    assert_eq!(told[..4], ["degraded", "opened", "closed", "failed"]);
    assert_eq!(sorted(told[4..].to_vec()), ["disabled", "failed"]);

    // Every role may listen: nothing is told that the application has given us.
    let id: i32 =
        database.query_one_value("SELECT id FROM webhook.endpoint WHERE name = 'each_kind'");
    for alert in &alerts {
        assert_eq!(alert["endpoint_id"], id);
        let at = alert["at"].as_str().unwrap();
        let recent =
            format!("SELECT '{at}'::timestamptz BETWEEN '{begun}' AND now() + interval '1 s'");
        assert!(database.query_one_value::<bool>(&recent), "{alert}");
        let mut fields: Vec<&str> = alert.as_object().unwrap().keys().map(|k| &**k).collect();
        fields.sort();
        match alert["type"] == "webhook.delivery.failed" {
            true => assert_eq!(fields, ["at", "deliveries", "endpoint_id", "id", "type"]),
            false => assert_eq!(fields, ["at", "endpoint_id", "id", "type"]),
        }
    }
    assert_eq!(alerts[3]["deliveries"], 1);

    // All of it is in the events, with the same ids.
    assert_eq!(sorted(received(&receiver, "everything")), sorted(told));
    let bodies: Vec<Value> = (receiver.requests_to("/everything").iter())
        .map(|request| request.json())
        .collect();
    let events: Vec<&Value> = (alerts.iter())
        .map(|alert| {
            let event = bodies.iter().find(|body| body["id"] == alert["id"]);
            let event = event.expect("it is an event too");
            assert_eq!(event["type"], alert["type"]);
            assert_eq!(event["data"]["at"], alert["at"]);
            assert_eq!(event["data"].get("deliveries"), alert.get("deliveries"));
            &event["data"]
        })
        .collect();
    // A code for monitors, and a sentence for people.
    let causes = [
        ("status", "HTTP 500"),
        ("status", "3 failures in a row, the last: HTTP 500"),
        ("", ""),
        ("status", "HTTP 404"),
    ];
    for (event, cause) in events.iter().zip(causes) {
        let text = |field| event[field].as_str().unwrap_or("");
        assert_eq!((text("reason"), text("error")), cause, "{event}");
    }
    for event in &events {
        assert_eq!(event["endpoint"], "each_kind");
        assert_eq!(
            event["metadata"],
            serde_json::from_str::<Value>(metadata).unwrap()
        );
    }
    let failed: String = database.query_one_value(
        "SELECT event_id::text FROM webhook.dead_letter WHERE last_error = 'HTTP 404'",
    );
    assert_eq!(events[3]["event_ids"], json!([failed]));

    // The same in the log.
    let lines = wait_for_logged(Cluster::shared(), "each_kind", 6);
    let beginnings = [
        ("keeps failing: HTTP 500", "webhook_why('each_kind')"),
        (
            "circuit breaker opened: 3 failures in a row, the last: HTTP 500",
            "webhook_reset_breaker('each_kind')",
        ),
        ("circuit breaker closed", ""),
        (
            "a delivery failed since the last alert, the last: HTTP 404",
            "webhook.failed",
        ),
    ];
    for ((line, next), (beginning, hint)) in lines.iter().zip(beginnings) {
        assert_eq!(line, beginning);
        assert!(
            hint.is_empty() || (next.contains("HINT:  ") && next.contains(hint)),
            "{line}: {next}"
        );
    }
    let disabled = lines
        .iter()
        .find(|(line, _)| line.starts_with("disabled (gone): HTTP "));
    let hint = &disabled.expect("it was logged").1;
    assert!(hint.contains("webhook_resume('each_kind')"), "{hint}");
}

#[test]
fn events_go_to_those_who_ask_for_them_by_name() {
    let (database, receiver) = (database(), Receiver::start());
    let subscriptions = [
        (
            "all_of_ours",
            "webhook.*",
            vec!["degraded", "failed", "failed"],
        ),
        ("of_endpoints", "webhook.endpoint.*", vec!["degraded"]),
        (
            "failures",
            "webhook.delivery.failed",
            vec!["failed", "failed"],
        ),
        ("warnings", "webhook.endpoint.degraded", vec!["degraded"]),
        ("others", "webhook.endpoint.opened", vec![]),
        ("star", "*", vec![]),
        (
            "twice",
            "webhook.*,webhook.endpoint.*",
            vec!["degraded", "failed", "failed"],
        ),
    ];
    for (name, types, _) in &subscriptions {
        subscribe(&database, &receiver, name, types, "");
    }
    add_endpoint(&database, &receiver, "by_name", "", "");
    try_with(&database, &receiver, "by_name", 404, 1);
    wait_for_silence(&database);
    try_with(&database, &receiver, "by_name", 404, 1);
    wait_for_silence(&database);
    for (name, _, kinds) in subscriptions {
        // The star gets emitted events, and nothing else.
        let mut seen = sorted(received(&receiver, name));
        seen.retain(|kind| kind != "by_name");
        assert_eq!(seen, kinds, "{name}");
    }
}

#[test]
fn an_alert_about_a_tenants_endpoint_reaches_that_tenant_and_those_without_one() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "general", "webhook.*", "");
    for tenant in ["acme", "zeta"] {
        let address = format!("{tenant}/all");
        subscribe(&database, &receiver, &address, "webhook.*", "");
    }
    add_policy(&database, "strict", "");
    for (name, address) in [("shop", "acme/shop"), ("house", "house")] {
        let url = receiver.url(&format!("/{name}"));
        let options = format!("'{{{name}}}', policy => 'strict'");
        database.add_endpoint_with(address, &url, &options);
        answer(&receiver, name, 404);
    }
    database.execute("SELECT webhook_emit('shop', tenant => 'acme'), webhook_emit('house')");
    database.wait_until("SELECT count(*) = 2 FROM webhook.dead_letter");
    let told = listener.texts(&database).join("\n");
    wait_for_silence(&database);

    let about = |name: &str| -> Vec<String> {
        let requests = receiver.requests_to(&format!("/{name}"));
        let endpoint =
            |r: &webhook_e2e::Request| r.json()["data"]["endpoint"].as_str().unwrap().to_owned();
        sorted(requests.iter().map(endpoint).collect())
    };
    assert_eq!(about("general"), ["acme/shop", "house"]);
    assert_eq!(about("acme/all"), ["acme/shop"]);
    assert_eq!(about("zeta/all"), [""; 0]);
    let tenants: BTreeSet<String> = (receiver.requests_to("/general").iter())
        .map(|request| request.json()["data"]["tenant"].to_string())
        .collect();
    assert_eq!(tenants, BTreeSet::from(["\"acme\"".into(), "null".into()]));
    for given in ["acme", "shop", "house"] {
        assert!(!told.contains(given), "{told}");
    }
}

#[test]
fn deliveries_that_fail_together_are_told_together() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "summaries", "webhook.*", "");
    let options = ", max_in_flight => 100";
    let policy = "failure_threshold = 0, warn_threshold = 0";
    add_endpoint(&database, &receiver, "together", policy, options);
    answer(&receiver, "together", 404);
    let begun = Instant::now();
    emit(&database, "together", 500);
    database.wait_until("SELECT count(*) = 500 FROM webhook.dead_letter");
    let alerts = listener.alerts(&database);
    let seconds = begun.elapsed().as_secs() as usize;
    wait_for_silence(&database);

    // At most one a second.
    assert!(alerts.len() <= 2 + seconds, "{} alerts", alerts.len());
    let count = |alert: &Value| alert["deliveries"].as_i64().unwrap();
    assert_eq!(alerts.iter().map(count).sum::<i64>(), 500);
    let events: Vec<Value> = (receiver.requests_to("/summaries").iter())
        .map(|request| request.json()["data"].clone())
        .collect();
    assert_eq!(events.iter().map(count).sum::<i64>(), 500);
    for event in &events {
        let ids = event["event_ids"].as_array().unwrap();
        assert_eq!(ids.len() as i64, count(event).min(10), "{event}");
        for id in ids {
            let id = id.as_str().unwrap();
            let known = format!(
                "SELECT count(*) FROM webhook.dead_letter WHERE event_id = '{id}' AND event_type = 'together'"
            );
            assert_eq!(database.query_one_value::<i64>(&known), 1);
        }
    }
    assert_eq!(events.len(), alerts.len());
    wait_for_logged(Cluster::shared(), "together", alerts.len());
}

#[test]
fn after_a_recovery_the_same_is_news_again() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(
        &database,
        &receiver,
        "closings",
        "webhook.endpoint.closed",
        "",
    );
    add_endpoint(&database, &receiver, "again", "", "");
    let mut expected = Vec::new();
    for _ in 0..2 {
        // Recovered before it opened.
        try_with(&database, &receiver, "again", 500, 2);
        try_with(&database, &receiver, "again", 200, 1);
        expected.push("degraded");
        // And after.
        try_with(&database, &receiver, "again", 500, 2);
        emit(&database, "again", 1);
        wait_for_state(&database, "again", "OPEN");
        answer(&receiver, "again", 200);
        database.execute("SELECT webhook_reset_breaker('again')");
        wait_for_silence(&database);
        database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
        expected.extend(["degraded", "opened", "closed"]);
    }
    assert_eq!(listener.kinds(&database, "again"), expected);
    let closings = receiver.wait_for_requests_to("/closings", 2);
    for closing in closings {
        assert_eq!(closing.json()["data"]["reason"], "by_hand");
    }
}

#[test]
fn what_changes_nothing_is_no_news() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_endpoint(&database, &receiver, "unchanged", "", "");
    for call in [
        "webhook_reset_breaker",
        "webhook_resume",
        "webhook_pause",
        "webhook_resume",
    ] {
        database.execute(&format!("SELECT {call}('unchanged')"));
    }
    // One failure, which is below the threshold, and tests.
    try_with(&database, &receiver, "unchanged", 500, 1);
    for status in [500, 404, 410, 500] {
        answer(&receiver, "unchanged", status);
        database.execute("CALL webhook_test('unchanged')");
    }
    answer(&receiver, "unchanged", 200);
    database.execute("CALL webhook_test('unchanged')");
    assert_eq!(listener.alerts(&database), Vec::<Value>::new());
}

#[test]
fn a_test_that_closes_a_breaker_is_told() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(
        &database,
        &receiver,
        "closings",
        "webhook.endpoint.closed",
        "",
    );
    add_endpoint(&database, &receiver, "tested", "", "");
    try_with(&database, &receiver, "tested", 500, 3);
    answer(&receiver, "tested", 200);
    database.execute("CALL webhook_test('tested')");
    assert_eq!(
        listener.kinds(&database, "tested"),
        ["degraded", "opened", "closed"]
    );
    receiver.wait_for_requests_to("/closings", 1);
}

// Batches with outcomes of all kinds. Here the worker does nothing, and the test settles.

/// The endpoint's deliveries, claimed.
fn claim(client: &mut Client, count: i32) -> Vec<Row> {
    let emit = "SELECT webhook_emit('settled') FROM generate_series(1, $1)";
    client.query(emit, &[&count]).unwrap();
    let settled = "(SELECT id FROM webhook.endpoint WHERE name = 'settled')";
    let claim = engine::claim_statement(settled, 1000) + " ORDER BY event_id";
    engine::query(client, &claim, &[])
}

/// Settles claims with these statuses, one millisecond apart, as one batch.
fn settle(client: &mut Client, claims: &[Row], statuses: &[i32]) {
    let ids: Vec<uuid::Uuid> = claims.iter().map(|row| row.get("event_id")).collect();
    let endpoints: Vec<i32> = claims.iter().map(|row| row.get("endpoint_id")).collect();
    let sequence: Vec<i64> = claims.iter().map(|row| row.get("claim_seq")).collect();
    engine::query(
        client,
        "SELECT webhook.settle(
                 array_agg(event_id), array_agg(endpoint_id), array_agg(claim_seq), array_agg(status), array_agg(NULL::text),
                 array_agg(NULL::text), array_agg(NULL::text), array_agg(NULL::float8), array_agg(1),
                 array_agg(1000.0 - place))
             FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::int[]) WITH ORDINALITY
                 AS o (event_id, endpoint_id, claim_seq, status, place)",
        &[&ids, &endpoints, &sequence, &statuses],
    );
}

fn heard(client: &mut Client) -> Vec<Value> {
    let mut notifications = client.notifications();
    let mut heard = Vec::new();
    let mut pending = notifications.iter();
    while let Some(notification) = pending.next().unwrap() {
        if !notification.payload().contains("webhook.metric.") {
            heard.push(serde_json::from_str(notification.payload()).unwrap());
        }
    }
    heard
}

#[test]
fn alerts_are_the_same_whatever_the_size_of_the_batches() {
    let cluster = Cluster::idle();
    const OUTCOMES: [i32; 14] = [
        500, 500, 200, 500, 500, 500, 200, 500, 500, 500, 500, 500, 200, 500,
    ];
    let expected = ["degraded", "degraded", "degraded", "opened"];
    for size in [1, 2, 3, 5, OUTCOMES.len()] {
        let database = cluster.database("batches");
        // A worker that tells would be quicker than the test.
        database.execute("CREATE TABLE told AS SELECT * FROM webhook.alert; GRANT INSERT ON told TO webhook_owner; CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.told SELECT NEW.*; RETURN NEW; END $$;
            CREATE TRIGGER keep BEFORE INSERT ON webhook.alert FOR EACH ROW EXECUTE FUNCTION keep()");
        let mut listener = Listener::new(&database);
        add_policy(&database, "wary", "max_attempts = 1, failure_threshold = 4");
        database.execute(
            "SELECT webhook_set_endpoint('settled', 'http://127.0.0.1/', policy => 'wary')",
        );
        let mut client = database.connect();
        let claims = claim(&mut client, OUTCOMES.len() as i32);
        for (claims, statuses) in claims.chunks(size).zip(OUTCOMES.chunks(size)) {
            settle(&mut client, claims, statuses);
        }
        let kinds: Vec<String> = (client
            .query(
                "SELECT kind FROM told WHERE kind <> 'failed' ORDER BY id",
                &[],
            )
            .unwrap()
            .iter())
        .map(|row| row.get(0))
        .collect();
        assert_eq!(kinds, expected, "in batches of {size}");
        let notified: Vec<String> = (listener.kinds(&database, "settled").into_iter())
            .filter(|kind| kind != "failed")
            .collect();
        assert_eq!(notified, expected, "in batches of {size}");
        let failed: i64 = (listener.alerts(&database).iter())
            .filter_map(|alert| alert["deliveries"].as_i64())
            .sum();
        assert_eq!(failed, 11, "in batches of {size}");
    }
}

#[test]
fn an_alert_says_what_happened_then_and_not_what_came_after() {
    let cluster = Cluster::idle();
    let database = cluster.database("then");
    let mut client = database.connect();
    add_policy(
        &database,
        "wary",
        "max_attempts = 1, on_exhausted = 'disable'",
    );
    database
        .execute("SELECT webhook_set_endpoint('settled', 'http://127.0.0.1/', policy => 'wary')");
    let claims = claim(&mut client, 4);
    // In the same batch it opens, is disabled, and a test succeeds.
    let tested: uuid::Uuid = claims[3].get("event_id");
    client
        .batch_execute(&format!(
            "INSERT INTO webhook.breaker (endpoint_id, test_event_id) SELECT id, '{tested}' FROM webhook.endpoint;
             BEGIN;
             LISTEN webhook_alert"
        ))
        .unwrap();
    settle(&mut client, &claims, &[500, 502, 503, 200]);
    let mut told = tell(&mut client, 500);
    client.batch_execute("COMMIT").unwrap();
    told.sort();
    let prefix = format!(
        "webhook endpoint \"settled\" of database \"{}\": ",
        database.name()
    );
    let said: Vec<&str> = (told.iter())
        .map(|(message, _)| message.strip_prefix(&prefix).unwrap())
        .collect();
    assert_eq!(
        said,
        [
            "3 deliveries failed since the last alert, the last: HTTP 503",
            "circuit breaker closed",
            "circuit breaker opened: 3 failures in a row, the last: HTTP 503",
            "disabled (exhausted): HTTP 500",
            "keeps failing: HTTP 502",
        ]
    );
    assert_eq!(heard(&mut client).len(), 5);
}
