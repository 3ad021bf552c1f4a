//! Alerts that are large, many, locked or not to be told at once: none is lost or told twice, and no delivery waits
//! for them.

use std::thread;

use serde_json::json;
use webhook_e2e::alerts::{
    Listener, add_endpoint, add_policy, answer, database, own_events, received, sorted, subscribe,
    tell, try_with, wait_for_logged, wait_for_silence,
};
use webhook_e2e::{Answer, Cluster, Receiver, worker};

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
    for (number, error) in [
        "short".to_owned(),
        "\u{1}".repeat(20_000),
        "💥".repeat(20_000),
    ]
    .iter()
    .enumerate()
    {
        client
            .execute(
                "INSERT INTO webhook.alert (endpoint_id, kind, reason, error, deliveries, event_ids)
                 SELECT e.id, k, CASE WHEN k IN ('closed', 'disabled') THEN 'tripped' ELSE 'status' END, $1, 9000000000000000000,
                        (SELECT array_agg(gen_random_uuid()) FROM generate_series(1, 100))
                 FROM webhook.endpoint e, unnest('{degraded, opened, closed, disabled, failed}'::text[]) k WHERE tenant IS NOT NULL",
                &[error],
            )
            .unwrap();
        assert_eq!(listener.texts(&database).len(), 15 * (number + 1));
    }
    wait_for_silence(&database);
    let addresses: Vec<String> = names
        .iter()
        .map(|name| format!("{tenant}/{name}"))
        .collect();
    let requests = receiver.requests_to("/large");
    assert_eq!(requests.len(), 45);
    for request in requests {
        let data = &request.json()["data"];
        assert!(
            addresses
                .iter()
                .any(|address| data["endpoint"] == **address)
        );
        assert_eq!(data["tenant"], *tenant);
        assert_eq!(data["metadata"], metadata);
    }
    wait_for_logged(Cluster::shared(), &addresses[0], 15);
    let longest = (wait_for_logged(Cluster::shared(), &addresses[1], 15).into_iter())
        .map(|(line, _)| line.chars().count());
    assert!(longest.max() < Some(1000));
}

#[test]
fn metadata_larger_than_a_payload_may_be_keep_no_alert_back() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "subscriber", "webhook.*", "");
    for name in ["large", "small"] {
        add_endpoint(&database, &receiver, name, "", "");
    }
    let limit = format!(
        "ALTER DATABASE {} SET webhook.max_payload = '1kB'",
        database.name()
    );
    database.execute(&limit);
    let before = worker::pid(&database);
    worker::terminate(&database, before);
    worker::successor(&database, before);
    database.execute(
        "UPDATE webhook.endpoint SET metadata = jsonb_build_object('owner', repeat('x', 1000)) WHERE name = 'large';
         INSERT INTO webhook.alert (endpoint_id, kind, reason, error)
         SELECT id, 'opened', 'status', repeat('error ', 300) FROM webhook.endpoint WHERE name IN ('large', 'small') ORDER BY name",
    );
    assert_eq!(listener.kinds(&database, "large"), ["opened"]);
    assert_eq!(listener.kinds(&database, "small"), ["opened"]);
    wait_for_silence(&database);
    // Sent at the same time, they arrive in any order.
    let mut told: Vec<_> = (receiver.requests_to("/subscriber").iter())
        .map(|request| request.json()["data"].clone())
        .map(|data| (data["endpoint"].clone(), data.get("metadata").is_some()))
        .collect();
    told.sort_by_key(|(endpoint, _)| endpoint.to_string());
    assert_eq!(told, [(json!("large"), false), (json!("small"), true)]);
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
    let waiting: i64 =
        database.query_one_value("SELECT count(*) FROM webhook.alert WHERE metric IS NULL");
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
             INSERT INTO webhook.alert (endpoint_id, kind, error) SELECT id, 'degraded', 'by hand' FROM webhook.endpoint",
        )
        .unwrap();
    try_with(&database, &receiver, "locked", 404, 2);
    assert_eq!(
        sorted(listener.kinds(&database, "locked")).last().unwrap(),
        "failed"
    );
    transaction.commit().unwrap();
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
    let kinds = listener.kinds(&database, "locked");
    let by_hand = kinds.iter().filter(|kind| *kind == "degraded");
    assert_eq!(by_hand.count(), 2, "{kinds:?}");
}

#[test]
fn deliveries_that_fail_with_their_endpoint_are_an_alert_and_count_like_every_failure() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "acme/subscriber", "webhook.*", "");
    add_policy(&database, "removed", "");
    let url = receiver.url("/removed");
    database.add_endpoint_with("acme/removed", &url, "'{removed}', policy => 'removed'");
    database.execute("SELECT webhook_pause('acme/removed')");
    database.execute("SELECT webhook_emit('removed', tenant => 'acme') FROM generate_series(1, 3)");
    let parked = "UPDATE webhook.delivery SET next_attempt_at = 'infinity'
                  WHERE event_id = (SELECT event_id FROM webhook.delivery_queue LIMIT 1)";
    database.execute(parked);
    let id: i32 =
        database.query_one_value("SELECT id FROM webhook.endpoint WHERE name = 'removed'");
    database.execute("SELECT webhook_remove_endpoint('acme/removed', pending => 'fail')");
    let failed: i64 = database.query_one_value(&format!(
        "SELECT count(*) FROM webhook.dead_letter
         WHERE endpoint_id = {id} AND (reason, last_error) = ('endpoint_removed', 'endpoint removed')"
    ));
    assert_eq!(failed, 3);
    let counted =
        format!("SELECT failed FROM webhook.stat WHERE endpoint_id = {id} AND grain = 'total'");
    assert_eq!(database.query_one_value::<i64>(&counted), 3);

    let told = listener.alerts(&database);
    assert_eq!(told.len(), 1);
    assert_eq!(
        (&told[0]["endpoint_id"], &told[0]["deliveries"]),
        (&json!(id), &json!(3))
    );
    let event = receiver
        .wait_for_requests_to("/acme/subscriber", 1)
        .remove(0)
        .json();
    assert_eq!(event["type"], "webhook.delivery.failed");
    assert_eq!(event["data"]["endpoint"], "acme/removed");
    assert_eq!(event["data"]["tenant"], "acme");
    assert_eq!(event["data"]["deliveries"], 3);
}

#[test]
fn each_is_told_once_whoever_tells_at_the_same_time() {
    let (database, receiver) = (database(), Receiver::start());
    let mut listener = Listener::new(&database);
    subscribe(&database, &receiver, "once", "webhook.*", "");
    add_endpoint(&database, &receiver, "many_times", "", "");
    database.execute(
        "INSERT INTO webhook.alert (endpoint_id, kind, error) SELECT id, 'opened', 'trial ' || i
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
    assert_eq!(listener.alerts(&database).len(), 1000);
    let errors: i64 = database.query_one_value(
        "SELECT count(DISTINCT payload ->> 'error') FROM webhook.event WHERE event_type LIKE 'webhook.%'",
    );
    assert_eq!(errors, 1000);
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
         INSERT INTO webhook.alert (endpoint_id, kind, error) SELECT id, 'opened', 'all at once' FROM webhook.endpoint WHERE name LIKE 'e%'",
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
