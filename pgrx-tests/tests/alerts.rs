//! Alerts: what happens to an endpoint is told once, by NOTIFY, in the log and as an event, to those who asked for it,
//! and never in a loop.

use std::collections::BTreeSet;
use std::thread;
use std::time::Instant;

use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Row};
use serde_json::{Value, json};
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait, worker};

fn database() -> Database {
    Cluster::shared().database("alerts")
}

/// Warns at the second failure, opens at the third, retries and probes in an hour, but for what the test changes.
fn add_policy(database: &Database, name: &str, changes: &str) {
    database.add_guarding_policy(name, 3, changes);
}

/// An endpoint for events of the type that is its name, under a policy that is called like it.
fn add_endpoint(database: &Database, receiver: &Receiver, name: &str, policy: &str, options: &str) {
    add_policy(database, name, policy);
    let url = receiver.url(&format!("/{name}"));
    let options = format!("'{{{name}}}', policy => '{name}'{options}");
    database.add_endpoint_with(name, &url, &options);
}

/// An endpoint for our own events.
fn subscribe(database: &Database, receiver: &Receiver, name: &str, types: &str, options: &str) {
    let url = receiver.url(&format!("/{name}"));
    let options = format!("'{{{types}}}', policy => 'fast'{options}");
    database.add_endpoint_with(name, &url, &options);
}

fn answer(receiver: &Receiver, name: &str, status: u16) {
    receiver.respond(&format!("/{name}"), move |_, _| Answer::status(status));
}

fn emit(database: &Database, name: &str, count: i32) {
    database.execute(&format!(
        "SELECT webhook_emit('{name}') FROM generate_series(1, {count})"
    ));
}

/// Emits events that the endpoint answers so, and waits until its deliveries have been tried.
#[track_caller]
fn try_with(database: &Database, receiver: &Receiver, name: &str, status: u16, count: i32) {
    answer(receiver, name, status);
    let before = receiver.requests_to(&format!("/{name}")).len();
    emit(database, name, count);
    receiver.wait_for_requests_to(&format!("/{name}"), before + count as usize);
    database.wait_until(&format!(
        "SELECT in_flight = 0 FROM webhook.endpoint_status WHERE name = '{name}'"
    ));
}

#[track_caller]
fn wait_for_state(database: &Database, name: &str, state: &str) {
    database.wait_until(&format!(
        "SELECT state = '{state}' FROM webhook.endpoint_status WHERE name = '{name}'"
    ));
}

/// Nothing to tell, nothing to send: what is not there now does not come any more.
#[track_caller]
fn wait_for_silence(database: &Database) {
    database.wait_until(
        "SELECT NOT EXISTS (SELECT FROM webhook.alert)
            AND NOT EXISTS (SELECT FROM webhook.delivery_queue q LEFT JOIN webhook.breaker b USING (endpoint_id)
                            WHERE q.status = 'SENDING' OR q.claimed_at < b.retries_before)
            AND NOT EXISTS (SELECT FROM webhook.delivery_queue q WHERE q.next_attempt_at < now() + interval '1 min'
                            AND NOT EXISTS (SELECT FROM webhook.endpoint_status s JOIN webhook.endpoint e USING (name)
                                            WHERE e.id = q.endpoint_id AND s.state IN ('OPEN', 'PAUSED', 'DISABLED')))",
    );
}

/// Somebody who listens on webhook_alert.
struct Listener {
    client: Client,
    heard: Vec<String>,
}

const BELL: &str = "the test has heard enough";

impl Listener {
    fn new(database: &Database) -> Listener {
        let mut client = database.connect();
        client.batch_execute("LISTEN webhook_alert").unwrap();
        Listener {
            client,
            heard: Vec::new(),
        }
    }

    /// All that was told so far, as it was. What there is to tell now is waited for.
    #[track_caller]
    fn texts(&mut self, database: &Database) -> &[String] {
        database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
        // Notifications come in the order of their commits.
        database.execute(&format!("NOTIFY webhook_alert, '{BELL}'"));
        loop {
            let mut notifications = self.client.notifications();
            let mut notifications = notifications.timeout_iter(wait::DEADLINE);
            let next = notifications.next().unwrap();
            match next.expect("the bell is heard in time").payload() {
                BELL => return &self.heard,
                payload => self.heard.push(payload.to_owned()),
            }
        }
    }

    #[track_caller]
    fn alerts(&mut self, database: &Database) -> Vec<Value> {
        let parse = |text: &String| serde_json::from_str(text).unwrap();
        self.texts(database).iter().map(parse).collect()
    }

    /// The kinds of alerts about an endpoint, in the order of their telling.
    #[track_caller]
    fn kinds(&mut self, database: &Database, name: &str) -> Vec<String> {
        (self.alerts(database).iter())
            .filter(|alert| alert["endpoint"] == name)
            .map(|alert| kind(&alert["type"]))
            .collect()
    }
}

fn kind(event_type: &Value) -> String {
    let name = event_type.as_str().expect("the type is a text");
    let short = name
        .strip_prefix("webhook.endpoint.")
        .or(name.strip_prefix("webhook.delivery."));
    short.unwrap_or(name).to_owned()
}

/// What an endpoint for our own events was sent: the kinds, in the order of arrival.
fn received(receiver: &Receiver, name: &str) -> Vec<String> {
    let requests = receiver.requests_to(&format!("/{name}"));
    requests.iter().map(|r| kind(&r.json()["type"])).collect()
}

/// The worker's warnings about an endpoint, each with the line after it.
fn logged(cluster: &Cluster, name: &str) -> Vec<(String, String)> {
    let log = cluster.log();
    let lines: Vec<&str> = log.lines().collect();
    let about = format!("WARNING:  webhook endpoint \"{name}\" ");
    (lines.iter().enumerate())
        .filter(|(_, line)| line.contains(&about))
        .map(|(number, line)| {
            let said = line.split_once(&about).unwrap().1.to_owned();
            let next = lines.get(number + 1).unwrap_or(&"").to_string();
            (said, next)
        })
        .collect()
}

/// What is told is logged after the commit.
#[track_caller]
fn wait_for_logged(cluster: &Cluster, name: &str, count: usize) -> Vec<(String, String)> {
    wait::until(&format!("{count} warnings about {name}"), || {
        let lines = logged(cluster, name);
        if lines.len() == count {
            Ok(lines)
        } else {
            Err(lines)
        }
    })
}

fn own_events(database: &Database) -> i64 {
    database.query_one_value("SELECT count(*) FROM webhook.event WHERE event_type LIKE 'webhook.%'")
}

fn sorted(mut kinds: Vec<String>) -> Vec<String> {
    kinds.sort();
    kinds
}

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

    let reasons = [
        "HTTP 500",
        "3 failures in a row, the last: HTTP 500",
        "",
        "HTTP 404",
    ];
    for (alert, reason) in alerts.iter().zip(reasons) {
        assert_eq!(alert["reason"].as_str().unwrap_or(""), reason, "{alert}");
    }
    for alert in &alerts {
        assert_eq!(alert["endpoint"], "each_kind");
        assert_eq!(
            alert["metadata"],
            serde_json::from_str::<Value>(metadata).unwrap()
        );
        let at = alert["at"].as_str().unwrap();
        let recent =
            format!("SELECT '{at}'::timestamptz BETWEEN '{begun}' AND now() + interval '1 s'");
        assert!(database.query_one_value::<bool>(&recent), "{alert}");
        let is_failed = alert["type"] == "webhook.delivery.failed";
        assert_eq!(alert.get("deliveries").is_some(), is_failed, "{alert}");
    }
    assert_eq!(alerts[3]["deliveries"], 1);
    let failed: String = database.query_one_value(
        "SELECT event_id::text FROM webhook.dead_letter WHERE last_error = 'HTTP 404'",
    );
    assert_eq!(alerts[3]["event_ids"], json!([failed]));

    // The same as events.
    let requests = receiver.requests_to("/everything");
    assert_eq!(sorted(received(&receiver, "everything")), sorted(told));
    for request in &requests {
        let body = request.json();
        let matching = (alerts.iter()).find(|alert| alert["id"] == body["id"]);
        let mut alert = matching.expect("its id was notified too").clone();
        let fields = alert.as_object_mut().unwrap();
        assert_eq!(fields.remove("type").as_ref(), Some(&body["type"]));
        fields.remove("id");
        assert_eq!(alert, body["data"]);
    }

    // The same in the log.
    let lines = wait_for_logged(Cluster::shared(), "each_kind", 6);
    let beginnings = [
        ("keeps failing: HTTP 500", "webhook.endpoint_status"),
        (
            "is left alone for a while: 3 failures in a row, the last: HTTP 500",
            "webhook_reset_breaker()",
        ),
        ("is served again", ""),
        (
            "has 1 failed deliveries more, the last: HTTP 404",
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
    let disabled = lines.iter().find(|(line, _)| line == "is disabled: gone");
    let hint = &disabled.expect("it was logged").1;
    assert!(hint.contains("webhook_resume()"), "{hint}");
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
        // The star gets what was emitted, and nothing else.
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
        let name = format!("of_{tenant}");
        let options = format!(", tenant => '{tenant}'");
        subscribe(&database, &receiver, &name, "webhook.*", &options);
    }
    add_policy(&database, "strict", "");
    for (name, options) in [("shop", ", tenant => 'acme'"), ("house", "")] {
        let url = receiver.url(&format!("/{name}"));
        let options = format!("'{{{name}}}', policy => 'strict'{options}");
        database.add_endpoint_with(name, &url, &options);
        answer(&receiver, name, 404);
    }
    database.execute("SELECT webhook_emit('shop', tenant => 'acme'), webhook_emit('house')");
    database.wait_until("SELECT count(*) = 2 FROM webhook.dead_letter");
    let alerts = listener.alerts(&database);
    wait_for_silence(&database);

    let about = |name: &str| -> Vec<String> {
        let requests = receiver.requests_to(&format!("/{name}"));
        let endpoint =
            |r: &webhook_e2e::Request| r.json()["data"]["endpoint"].as_str().unwrap().to_owned();
        sorted(requests.iter().map(endpoint).collect())
    };
    assert_eq!(about("general"), ["house", "shop"]);
    assert_eq!(about("of_acme"), ["shop"]);
    assert_eq!(about("of_zeta"), [""; 0]);
    let tenants: BTreeSet<(&str, Option<&str>)> = (alerts.iter())
        .map(|alert| {
            (
                alert["endpoint"].as_str().unwrap(),
                alert["tenant"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        tenants,
        BTreeSet::from([("shop", Some("acme")), ("house", None)])
    );
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
    for alert in &alerts {
        let ids = alert["event_ids"].as_array().unwrap();
        assert_eq!(ids.len() as i64, count(alert).min(10), "{alert}");
        for id in ids {
            let id = id.as_str().unwrap();
            let known = format!(
                "SELECT count(*) FROM webhook.dead_letter WHERE event_id = '{id}' AND event_type = 'together'"
            );
            assert_eq!(database.query_one_value::<i64>(&known), 1);
        }
    }
    assert_eq!(received(&receiver, "summaries").len(), alerts.len());
    wait_for_logged(Cluster::shared(), "together", alerts.len());
}

#[test]
fn after_a_recovery_the_same_is_news_again() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
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
    let by_hand = "closed by hand";
    let alerts = listener.alerts(&database);
    let closed = |alert: &&Value| alert["type"] == "webhook.endpoint.closed";
    assert!(
        alerts
            .iter()
            .filter(closed)
            .all(|alert| alert["reason"] == by_hand)
    );
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

// Whatever is in a batch. Here the worker does nothing, and the test settles.

/// The endpoint's deliveries, claimed.
fn claim(client: &mut Client, count: i32) -> Vec<Row> {
    let emit = "SELECT webhook_emit('settled') FROM generate_series(1, $1)";
    client.query(emit, &[&count]).unwrap();
    let claim = "SELECT * FROM webhook.claim(1, ARRAY[(SELECT id FROM webhook.endpoint WHERE name = 'settled')], '{1000}', '{0}', '{1000000}', 1000000)
                 ORDER BY event_id";
    client.query(claim, &[]).unwrap()
}

/// Settles claims with these statuses, one millisecond apart, as one batch.
fn settle(client: &mut Client, claims: &[Row], statuses: &[i32]) {
    let ids: Vec<uuid::Uuid> = claims.iter().map(|row| row.get("event_id")).collect();
    let endpoints: Vec<i32> = claims.iter().map(|row| row.get("endpoint_id")).collect();
    let sequence: Vec<i64> = claims.iter().map(|row| row.get("claim_seq")).collect();
    client
        .query(
            "SELECT webhook.settle(
                 array_agg(event_id), array_agg(endpoint_id), array_agg(claim_seq), array_agg(status), array_agg(NULL::text),
                 array_agg(NULL::text), array_agg(NULL::text), array_agg(NULL::float8), array_agg(1),
                 array_agg(extract(epoch FROM clock_timestamp())::float8 + place / 1000.0))
             FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::int[]) WITH ORDINALITY
                 AS o (event_id, endpoint_id, claim_seq, status, place)",
            &[&ids, &endpoints, &sequence, &statuses],
        )
        .unwrap();
}

/// Tells what there is to tell, and says what is for the log.
fn tell(client: &mut Client, page: i32) -> Vec<(String, String)> {
    let rows = client.query(
        "SELECT message, coalesce(hint, '') FROM webhook.raise_alerts($1)",
        &[&page],
    );
    let rows = rows.unwrap();
    (rows.iter())
        .map(|row| {
            let message: Option<String> = row.get(0);
            (message.expect("there is a message"), row.get(1))
        })
        .collect()
}

fn heard(client: &mut Client) -> Vec<Value> {
    let mut notifications = client.notifications();
    let mut heard = Vec::new();
    let mut pending = notifications.iter();
    while let Some(notification) = pending.next().unwrap() {
        heard.push(serde_json::from_str(notification.payload()).unwrap());
    }
    heard
}

#[test]
fn alerts_are_the_same_whatever_the_size_of_the_batches() {
    let cluster = Cluster::builder().setting("webhook.enabled = off").start();
    const OUTCOMES: [i32; 14] = [
        500, 500, 200, 500, 500, 500, 200, 500, 500, 500, 500, 500, 200, 500,
    ];
    let expected = ["degraded", "degraded", "degraded", "opened"];
    for size in [1, 2, 3, 5, OUTCOMES.len()] {
        let database = cluster.database("batches");
        // A worker that tells would be quicker than the test.
        database.execute("CREATE TABLE told AS SELECT * FROM webhook.alert; CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.told SELECT NEW.*; RETURN NEW; END $$;
            CREATE TRIGGER keep BEFORE INSERT ON webhook.alert FOR EACH ROW EXECUTE FUNCTION keep()");
        let mut listener = Listener::new(&database);
        add_policy(&database, "wary", "max_attempts = 1, failure_threshold = 4");
        database.execute(
            "SELECT webhook_add_endpoint('settled', 'http://127.0.0.1/', policy => 'wary')",
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
    let cluster = Cluster::builder().setting("webhook.enabled = off").start();
    let database = cluster.database("then");
    let mut client = database.connect();
    add_policy(
        &database,
        "wary",
        "max_attempts = 1, on_exhausted = 'disable'",
    );
    database
        .execute("SELECT webhook_add_endpoint('settled', 'http://127.0.0.1/', policy => 'wary')");
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
    let said: Vec<&str> = (told.iter())
        .map(|(message, _)| {
            message
                .strip_prefix("webhook endpoint \"settled\" ")
                .unwrap()
        })
        .collect();
    assert_eq!(
        said,
        [
            "has 3 failed deliveries more, the last: HTTP 503",
            "is disabled: exhausted",
            "is left alone for a while: 3 failures in a row, the last: HTTP 503",
            "is served again",
            "keeps failing: HTTP 502",
        ]
    );
    assert_eq!(heard(&mut client).len(), 5);
}

// Never in a loop.

#[test]
fn an_endpoint_gets_no_event_about_itself() {
    let (database, receiver) = (database(), Receiver::start());
    subscribe(&database, &receiver, "colleague", "webhook.*", "");
    add_policy(&database, "mixed", "");
    let options = "'{mixed,webhook.*}', policy => 'mixed'";
    database.add_endpoint_with("mixed", &receiver.url("/mixed"), options);
    try_with(&database, &receiver, "mixed", 404, 1);
    answer(&receiver, "mixed", 200);
    receiver.wait_for_requests_to("/colleague", 1);
    wait_for_silence(&database);
    assert_eq!(received(&receiver, "colleague"), ["failed"]);
    assert_eq!(received(&receiver, "mixed"), ["mixed"]);
}

#[test]
fn a_failing_alert_endpoint_causes_no_event() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_policy(&database, "alerting", "initial_delay = '1 ms'");
    for name in ["deaf", "mute"] {
        let options = "'{webhook.*}', policy => 'alerting'";
        database.add_endpoint_with(name, &receiver.url(&format!("/{name}")), options);
        answer(&receiver, name, 500);
    }
    add_endpoint(&database, &receiver, "cause", "", "");
    try_with(&database, &receiver, "cause", 404, 1);
    for name in ["deaf", "mute"] {
        wait_for_state(&database, name, "OPEN");
    }
    wait_for_silence(&database);
    // The one about the cause. Those who listen and those who read the log learn of the others too.
    assert_eq!(own_events(&database), 1);
    assert_eq!(listener.kinds(&database, "cause"), ["failed"]);
    for name in ["deaf", "mute"] {
        assert_eq!(listener.kinds(&database, name), ["degraded", "opened"]);
        wait_for_logged(Cluster::shared(), name, 2);
    }
    assert_eq!(received(&receiver, "deaf"), ["failed"; 3]);
}

#[test]
fn alert_endpoints_that_recover_and_fail_again_do_not_feed_each_other() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_policy(
        &database,
        "alerting",
        "initial_delay = '1 ms', warn_threshold = 1, failure_threshold = 0",
    );
    for name in ["ping", "pong"] {
        let options = "'{webhook.*}', policy => 'alerting'";
        database.add_endpoint_with(name, &receiver.url(&format!("/{name}")), options);
        receiver.respond(&format!("/{name}"), |_, number| {
            Answer::status(if number % 2 == 1 { 500 } else { 200 })
        });
    }
    add_endpoint(&database, &receiver, "server", "", "");
    try_with(&database, &receiver, "server", 404, 1);
    wait_for_silence(&database);
    assert_eq!(own_events(&database), 1);
    for name in ["ping", "pong"] {
        assert_eq!(received(&receiver, name), ["failed"; 2]);
        assert_eq!(listener.kinds(&database, name), ["degraded"]);
    }
}

#[test]
fn an_alert_that_cannot_be_delivered_is_no_alert() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_policy(
        &database,
        "alerting",
        "failure_threshold = 0, warn_threshold = 0",
    );
    let options = "'{webhook.*}', policy => 'alerting'";
    database.add_endpoint_with("refusing", &receiver.url("/refusing"), options);
    answer(&receiver, "refusing", 404);
    add_endpoint(&database, &receiver, "undelivered", "", "");
    try_with(&database, &receiver, "undelivered", 404, 1);
    database.wait_until("SELECT count(*) = 2 FROM webhook.dead_letter");
    wait_for_silence(&database);
    assert_eq!(listener.alerts(&database).len(), 1);
    assert_eq!(own_events(&database), 1);
}

#[test]
fn our_own_events_are_not_counted_among_deliveries() {
    let (database, receiver) = (database(), Receiver::start());
    subscribe(&database, &receiver, "uncounted", "webhook.*", "");
    subscribe(&database, &receiver, "unreached", "webhook.*", "");
    answer(&receiver, "unreached", 404);
    add_endpoint(&database, &receiver, "counted", "", "");
    try_with(&database, &receiver, "counted", 404, 1);
    database.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    wait_for_silence(&database);
    try_with(&database, &receiver, "counted", 200, 1);
    database.wait_until(
        "SELECT coalesce(sum(deliveries) FILTER (WHERE status = 'SENT'), 0) > 0 FROM webhook.tally",
    );
    let counted: String = database.query_one_value(
        "SELECT string_agg(DISTINCT e.name || ' ' || status || ' ' || deliveries, ', ')
         FROM webhook.tally t JOIN webhook.endpoint e ON e.id = t.endpoint_id",
    );
    assert_eq!(counted, "counted FAILED 1, counted SENT 1");
    let rate: f64 = database.query_one_value(
        "SELECT value::float8 FROM webhook.metrics WHERE metric = 'webhook_delivery_success_rate'",
    );
    assert_eq!(rate, 50.0);
}

// Trouble.

#[test]
fn an_alert_fits_whatever_its_endpoint_has() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "large", "webhook.*", "");
    subscribe(&database, &receiver, "large_of_tenant", "webhook.*", "");
    let names = [
        "\"'\\%s%%$1{}".to_owned(),
        "📦".repeat(200),
        "\"\\".repeat(100),
    ];
    let tenant = "🏢".repeat(200);
    let metadata = json!({ "owner": "Ann", "notes": "é".repeat(100_000) });
    let insert = "INSERT INTO webhook.endpoint (name, tenant, url, event_types, metadata) VALUES ($1, $2, 'http://127.0.0.1/', '{none}', $3)";
    let mut client = database.connect();
    for name in &names {
        client.execute(insert, &[name, &tenant, &metadata]).unwrap();
    }
    // As long as an error may be, and longer; control characters take six bytes each.
    for (number, reason) in [
        "short".to_owned(),
        "\u{1}".repeat(20_000),
        "💥".repeat(20_000),
    ]
    .iter()
    .enumerate()
    {
        client
            .execute(
                "INSERT INTO webhook.alert (endpoint_id, kind, reason, deliveries, event_ids)
                 SELECT e.id, k, $1, 9000000000000000000, (SELECT array_agg(gen_random_uuid()) FROM generate_series(1, 100))
                 FROM webhook.endpoint e, unnest('{degraded, opened, closed, disabled, failed}'::text[]) k WHERE tenant IS NOT NULL",
                &[reason],
            )
            .unwrap();
        let texts = listener.texts(&database);
        assert_eq!(texts.len(), 15 * (number + 1));
        assert!(texts.iter().all(|text| text.len() < 8000));
    }
    for alert in listener.alerts(&database) {
        assert!(
            names.iter().any(|name| alert["endpoint"] == **name),
            "{alert}"
        );
        assert_eq!(alert["tenant"], *tenant);
    }
    wait_for_silence(&database);
    let requests = receiver.requests_to("/large");
    assert_eq!(requests.len(), 45);
    assert!(
        requests
            .iter()
            .all(|r| r.json()["data"]["metadata"] == metadata)
    );
    wait_for_logged(Cluster::shared(), &names[0], 15);
    let longest = (wait_for_logged(Cluster::shared(), &names[1], 15).into_iter())
        .map(|(line, _)| line.chars().count());
    assert!(longest.max() < Some(1000));
}

#[test]
fn no_credential_is_told() {
    const TOKEN: &str = "T0K3N";
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "informed", "webhook.*", "");
    add_policy(
        &database,
        "leaky",
        "max_attempts = 1, timeout = '100 ms', on_exhausted = 'disable', warn_threshold = 1, failure_threshold = 1",
    );
    receiver.hold(&format!("/{TOKEN}/hangs"));
    receiver.respond(&format!("/{TOKEN}/500"), |request, _| {
        Answer::status(500).body(format!("{} {:?}", request.path, request.headers))
    });
    receiver.respond(&format!("/{TOKEN}/410"), |_, _| Answer::status(410));
    let urls = [
        receiver.url(&format!("/{TOKEN}/hangs?{TOKEN}")),
        receiver.url(&format!("/{TOKEN}/500?{TOKEN}")),
        receiver.url(&format!("/{TOKEN}/410")),
        Receiver::closed_url() + TOKEN,
        format!("http://nowhere.invalid/{TOKEN}"),
        receiver
            .url(&format!("/{TOKEN}"))
            .replace("http:", "https:"),
    ];
    let headers = format!(r#"headers => '{{"Authorization": "Bearer {TOKEN}"}}'"#);
    for (number, url) in urls.iter().enumerate() {
        let options = format!("'{{leak}}', policy => 'leaky', {headers}");
        database.add_endpoint_with(&format!("leaky{number}"), url, &options);
    }
    let secrets: Vec<String> = {
        let rows = database
            .connect()
            .query("SELECT secret FROM webhook.secret", &[]);
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    };
    database.emit("leak", json!({}));
    database.wait_until("SELECT count(*) = 6 FROM webhook.dead_letter");
    let told = listener.texts(&database).join("\n");
    wait_for_silence(&database);
    for number in 0..urls.len() {
        let kinds = sorted(listener.kinds(&database, &format!("leaky{number}")));
        assert_eq!(kinds, ["degraded", "disabled", "failed", "opened"]);
    }
    let log = Cluster::shared().log();
    let events: Vec<String> = (receiver.requests_to("/informed").iter())
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .collect();
    assert_eq!(events.len(), 24);
    for credential in secrets.iter().map(String::as_str).chain([TOKEN]) {
        assert!(!told.contains(credential), "{told}");
        assert!(!log.contains(credential), "in the log");
        assert!(events.iter().all(|event| !event.contains(credential)));
    }
}

const REFUSE_OWN_EVENTS: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no alerts today'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON webhook.event
        FOR EACH ROW WHEN (NEW.event_type LIKE 'webhook.%') EXECUTE FUNCTION refuse()";

#[test]
fn trouble_with_telling_keeps_no_delivery_back_and_is_reported() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "waiting", "webhook.*", "");
    add_endpoint(&database, &receiver, "troubled", "", "");
    let pid = worker::pid(&database);
    database.execute(REFUSE_OWN_EVENTS);
    try_with(&database, &receiver, "troubled", 500, 3);
    database
        .wait_until("SELECT coalesce(last_error = 'no alerts today', false) FROM webhook_status()");
    database.add_endpoint("untroubled", &receiver.url("/untroubled"));
    for _ in 0..20 {
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
    }
    let complaints = worker::complaints(Cluster::shared(), pid);
    assert!(
        complaints
            .iter()
            .all(|line| line.contains("no alerts today")),
        "{complaints:?}"
    );
    assert!(!complaints.is_empty());
    let waiting: i64 = database.query_one_value("SELECT count(*) FROM webhook.alert");
    assert_eq!(waiting, 2);
    assert_eq!(own_events(&database), 0);

    database.execute("DROP TRIGGER refuse ON webhook.event");
    assert_eq!(
        listener.kinds(&database, "troubled"),
        ["degraded", "opened"]
    );
    wait_for_silence(&database);
    assert_eq!(
        sorted(received(&receiver, "waiting")),
        ["degraded", "opened"]
    );
    assert_eq!(worker::pid(&database), pid);
}

#[test]
fn what_was_not_told_before_a_crash_is_told_after_it_once() {
    let mut cluster = Cluster::start();
    let database = cluster.database("crash");
    let receiver = Receiver::start();
    subscribe(&database, &receiver, "patient_one", "webhook.*", "");
    add_endpoint(&database, &receiver, "crashed", "", "");
    database.execute(REFUSE_OWN_EVENTS);
    try_with(&database, &receiver, "crashed", 500, 3);
    try_with(&database, &receiver, "patient_one", 200, 0);
    cluster.kill_immediately();
    cluster.start_server();
    let mut listener = Listener::new(&database);
    database.execute("DROP TRIGGER refuse ON webhook.event");
    assert_eq!(listener.kinds(&database, "crashed"), ["degraded", "opened"]);
    wait_for_silence(&database);
    assert_eq!(
        sorted(received(&receiver, "patient_one")),
        ["degraded", "opened"]
    );
    wait_for_logged(&cluster, "crashed", 2);

    // And not again by the next worker.
    let pid = worker::pid(&database);
    worker::terminate(&database, pid);
    worker::successor(&database, pid);
    try_with(&database, &receiver, "patient_one", 200, 0);
    assert_eq!(listener.kinds(&database, "crashed"), ["degraded", "opened"]);
    assert_eq!(own_events(&database), 2);
}

#[test]
fn alerts_that_a_person_has_locked_are_told_later_and_hold_up_nothing() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_endpoint(&database, &receiver, "locked", "", "");
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    // Inserted and locked by the same person: nobody else ever sees it free.
    transaction
        .batch_execute(
            "SELECT FROM webhook.endpoint WHERE name = 'locked' FOR UPDATE;
             INSERT INTO webhook.alert (endpoint_id, kind, reason) SELECT id, 'degraded', 'by hand' FROM webhook.endpoint",
        )
        .unwrap();
    try_with(&database, &receiver, "locked", 404, 2);
    assert_eq!(
        sorted(listener.kinds(&database, "locked")).last().unwrap(),
        "failed"
    );
    transaction.commit().unwrap();
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
    let alerts = listener.alerts(&database);
    assert_eq!(
        alerts
            .iter()
            .filter(|alert| alert["reason"] == "by hand")
            .count(),
        1
    );
}

#[test]
fn alerts_about_an_endpoint_that_was_removed_are_dropped() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    add_endpoint(&database, &receiver, "removed", "", "");
    database.execute("SELECT webhook_pause('removed')");
    emit(&database, "removed", 3);
    database.execute("SELECT webhook_remove_endpoint('removed', pending => 'fail')");
    add_endpoint(&database, &receiver, "staying", "", "");
    try_with(&database, &receiver, "staying", 404, 1);
    assert_eq!(listener.kinds(&database, "staying"), ["failed"]);
    assert_eq!(listener.alerts(&database).len(), 1);
}

#[test]
fn each_is_told_once_whoever_tells_at_the_same_time() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "once", "webhook.*", "");
    add_endpoint(&database, &receiver, "many_times", "", "");
    database.execute(
        "INSERT INTO webhook.alert (endpoint_id, kind, reason) SELECT id, 'opened', 'trial ' || i
         FROM webhook.endpoint, generate_series(1, 1000) i WHERE name = 'many_times'",
    );
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = database.connect();
                while !tell(&mut client, 20).is_empty() {}
            });
        }
    });
    let mut reasons: Vec<String> = (listener.alerts(&database).iter())
        .map(|alert| alert["reason"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(reasons.len(), 1000);
    reasons.sort();
    reasons.dedup();
    assert_eq!(reasons.len(), 1000);
    assert_eq!(own_events(&database), 1000);
}

#[test]
fn alerts_are_told_where_transactions_are_repeatable_read() {
    let (database, receiver) = (database(), Receiver::start());
    let name = database.name();
    database.execute(&format!(
        "ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"
    ));
    let before = worker::pid(&database);
    worker::terminate(&database, before);
    worker::successor(&database, before);
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "isolated", "webhook.*", "");
    add_endpoint(&database, &receiver, "repeatable", "", "");
    try_with(&database, &receiver, "repeatable", 500, 3);
    answer(&receiver, "repeatable", 200);
    database.execute("SELECT webhook_resume('repeatable')");
    assert_eq!(
        listener.kinds(&database, "repeatable"),
        ["degraded", "opened", "closed"]
    );
    wait_for_silence(&database);
    assert_eq!(received(&receiver, "isolated").len(), 3);
}

#[test]
fn ten_thousand_alerts_at_once_keep_no_delivery_back_for_long() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "flooded", "webhook.*", "");
    database.execute("SELECT webhook_pause('flooded')");
    database.add_endpoint_with(
        "flowing",
        &receiver.url("/flowing"),
        "'{flowing}', policy => 'fast'",
    );
    database.execute(
        "INSERT INTO webhook.endpoint (name, url, event_types) SELECT 'e' || i, 'http://127.0.0.1/', '{none}' FROM generate_series(1, 10000) i;
         INSERT INTO webhook.alert (endpoint_id, kind, reason) SELECT id, 'opened', 'all at once' FROM webhook.endpoint WHERE name LIKE 'e%'",
    );
    let mut client = database.connect();
    loop {
        let event = webhook_e2e::database::emit(&mut client, "flowing", json!({}));
        receiver.wait_for_event(event);
        let left: i64 = client
            .query_one("SELECT count(*) FROM webhook.alert", &[])
            .unwrap()
            .get(0);
        if left == 0 {
            break;
        }
    }
    database.wait_until(
        "SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue WHERE event_type = 'flowing')",
    );
    // Until they were sent, so that it makes no difference how long the test took to answer.
    let slowest: f64 = database.query_one_value(
        "SELECT max(extract(epoch FROM completed_at - created_at) - duration_ms / 1000.0)::float8
         FROM webhook.delivery_history WHERE event_type = 'flowing'",
    );
    assert!(slowest < 8.0, "a delivery was kept back for {slowest} s");
    assert_eq!(listener.alerts(&database).len(), 10_000);
    assert_eq!(own_events(&database), 10_000);
}
