//! Delivery: the bytes on the wire, when and how often they go, and the records afterwards.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres::Row;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::receiver::ids;
use webhook_e2e::verifier::verify_signature;
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait};

pub(super) fn database() -> Database {
    Cluster::shared().database("delivery")
}

/// With an endpoint at the receiver's `/`, which gets every event.
pub(super) fn database_and_receiver() -> (Database, Receiver) {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    (database, receiver)
}

pub(super) fn cluster_that_never_polls() -> Cluster {
    let never = "webhook.poll_interval = '1h'";
    Cluster::builder().setting(never).start()
}

/// The only delivery of the event.
pub(super) fn delivery(database: &Database, event: Uuid) -> Row {
    let query = "SELECT * FROM webhook.delivery WHERE event_id = $1";
    database.connect().query_one(query, &[&event]).unwrap()
}

pub(super) fn attempts(database: &Database, event: Uuid) -> Vec<Row> {
    let query = "SELECT * FROM webhook.attempt WHERE event_id = $1 ORDER BY claim_seq";
    database.connect().query(query, &[&event]).unwrap()
}

#[test]
fn committed_event_arrives_once() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with(
        "shop",
        &receiver.url("/hooks?shop=7"),
        "headers => '{\"Authorization\": \"Bearer t0ken\"}', max_in_flight => 1",
    );
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let emitted_at = seconds(SystemTime::now());
    let event = database.emit("order.created", json!({"id": 42, "name": "Zoë"}));
    let marker = database.emit("marker", json!({}));
    receiver.wait_for_event(marker);

    assert_eq!(ids(&receiver.requests()), [event, marker]);
    let request = receiver.wait_for_event(event);
    assert_eq!(
        (&*request.method, &*request.path),
        ("POST", "/hooks?shop=7")
    );
    let occurred_at: String = database.query_one_value(&format!(
        "SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
         FROM webhook.event WHERE id = '{event}'"
    ));
    assert_eq!(
        request.json(),
        json!({
            "id": event.to_string(),
            "type": "order.created",
            "timestamp": occurred_at,
            "data": {"id": 42, "name": "Zoë"},
        })
    );
    let sent_at: u64 = request.header("webhook-timestamp").parse().unwrap();
    assert!((emitted_at..=seconds(request.arrived_at)).contains(&sent_at));
    let signature = request.header("webhook-signature");
    assert!(signature.starts_with("v1,"), "{signature}");
    assert_eq!(request.header("x-webhook-signature"), signature);
    assert_eq!(request.header("x-webhook-retry"), "0");
    assert_eq!(request.header("content-type"), "application/json");
    let user_agent = request.header("user-agent");
    assert!(user_agent.starts_with("webhook/"), "{user_agent}");
    assert_eq!(request.header("authorization"), "Bearer t0ken");
}

#[test]
fn the_signature_verifies_with_third_party_libraries() {
    let (database, receiver) = (database(), Receiver::start());
    let secret = database.add_endpoint("all", &receiver.url("/"));
    let event = database.emit("order.created", json!({"name": "Zoë", "total": 9.5}));
    let request = receiver.wait_for_event(event);
    assert_eq!(verify_signature(&secret, &request), Ok(()));

    let mut tampered = request.clone();
    let body = String::from_utf8_lossy(&request.body).replace("9.5", "9.6");
    tampered.body = body.into();
    let refused = verify_signature(&secret, &tampered).unwrap_err();
    assert!(refused.contains("No matching signature"), "{refused}");
}

#[test]
fn what_is_changed_holds_for_the_next_request_of_an_endpoint_that_was_just_sent_to() {
    let (database, receiver) = (database(), Receiver::start());
    let emit = || database.emit("order.created", json!({}));
    database.execute("SELECT webhook_copy_policy('standard', 'own')");
    let old = database.add_endpoint_with("all", &receiver.url("/old"), "policy => 'own'");
    receiver.wait_for_event(emit());

    let at = |path: &str| format!("UPDATE webhook.endpoint SET url = '{}'", receiver.url(path));
    database.execute(&at("/new"));
    assert_eq!(receiver.wait_for_event(emit()).path, "/new");

    database.execute("UPDATE webhook.endpoint SET headers = '{\"X-Shop\": \"7\"}'");
    assert_eq!(receiver.wait_for_event(emit()).header("x-shop"), "7");

    let new: String =
        database.query_one_value("SELECT webhook_rotate_secret('all', overlap => '1 h')");
    let request = receiver.wait_for_event(emit());
    assert_eq!(
        [&old, &new].map(|secret| verify_signature(secret, &request).is_ok()),
        [true; 2]
    );
    database.execute("UPDATE webhook.secret SET expires_at = now() WHERE expires_at IS NOT NULL");
    let request = receiver.wait_for_event(emit());
    assert_eq!(
        [&old, &new].map(|secret| verify_signature(secret, &request).is_ok()),
        [false, true]
    );

    receiver.hold("/new");
    database.execute("UPDATE webhook.policy SET timeout = '200 ms' WHERE name = 'own'");
    let event = emit();
    let timed_out =
        "SELECT count(*) FROM webhook.attempt WHERE event_id = $1 AND reason = 'timeout'";
    wait::until("the new timeout to pass", || {
        let row = database.connect().query_one(timed_out, &[&event]).unwrap();
        match row.get::<_, i64>(0) {
            0 => Err("it is waited for"),
            _ => Ok(()),
        }
    });
}

#[test]
fn a_large_payload_arrives_whole() {
    let (database, receiver) = database_and_receiver();
    let payload = json!({"text": "å".repeat(500_000)});
    let event = database.emit("report.ready", payload.clone());
    assert_eq!(receiver.wait_for_event(event).json()["data"], payload);
}

#[test]
fn numbers_arrive_as_they_were_written() {
    let (database, receiver) = database_and_receiver();
    let event: Uuid = database.query_one_value(
        "SELECT webhook_emit('account.created', '{\"n\": 12345678901234567890.10}')",
    );
    let body = receiver.wait_for_event(event).body;
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("12345678901234567890.10"), "{body}");
}

#[test]
fn wakes_at_commit_not_by_poll() {
    let cluster = cluster_that_never_polls();
    let (database, receiver) = (cluster.database("wakes"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    // The worker has nothing left to do between two of them, and goes to sleep.
    for _ in 0..5 {
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
    }
    assert_eq!(receiver.request_count(), 5);
}

#[test]
fn a_retry_does_not_wait_for_the_poll() {
    let cluster = cluster_that_never_polls();
    let (database, receiver) = (cluster.database("retries"), Receiver::start());
    receiver.respond("/", |_, number| {
        Answer::status(if number < 3 { 503 } else { 200 })
    });
    database.add_endpoint("all", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_failing_delivery_is_retried_with_the_policys_backoff() {
    // How, the first delay, its factor, the longest delay, the schedule; and the waits in hours.
    let cases = [
        ("'fixed', '1 h', 3, '24 h', '{9 h}'", [1, 1]),
        ("'exponential', '1 h', 3, '24 h', '{9 h}'", [1, 3]),
        ("'exponential', '1 h', 3, '2 h', '{9 h}'", [1, 2]),
        ("'schedule', '1 h', 3, '24 h', '{2 h, 5 h}'", [2, 5]),
        ("'schedule', '1 h', 3, '24 h', '{2 h}'", [2, 2]),
    ];
    for (backoff, hours) in cases {
        let (database, receiver) = (database(), Receiver::start());
        receiver.respond("/", |_, _| Answer::status(500));
        database.execute(&format!(
            "INSERT INTO webhook.policy
                 (name, max_attempts, jitter_down, jitter_up, failure_threshold, backoff, initial_delay, factor, max_delay, schedule)
             VALUES ('slow', 3, 0, 0, 0, {backoff})"
        ));
        database.add_endpoint_with("broken", &receiver.url("/"), "policy => 'slow'");
        let event = database.emit("order.created", json!({"id": 1}));

        for (retry, hours) in hours.into_iter().enumerate() {
            let tried = format!(
                "SELECT status = 'PENDING' AND attempts = {} FROM webhook.delivery WHERE event_id = '{event}'",
                retry + 1
            );
            database.wait_until(&tried);
            let exact: bool = database.query_one_value(&format!(
                "SELECT d.next_attempt_at = a.finished_at + interval '{hours} h'
                 FROM webhook.delivery d JOIN webhook.attempt a USING (event_id, claim_seq) WHERE event_id = '{event}'"
            ));
            assert!(exact, "wait {} of {backoff} is not {hours} h", retry + 1);
            database.execute("UPDATE webhook.delivery SET next_attempt_at = now()");
        }
        database.wait_for_status(event, "FAILED");

        let requests = receiver.requests();
        let retries: Vec<_> = (requests.iter())
            .map(|request| request.header("x-webhook-retry"))
            .collect();
        assert_eq!(retries, ["0", "1", "2"]);
        assert_eq!(ids(&requests), [event; 3]);
        assert!(requests.iter().all(|r| r.body == requests[0].body));
    }
}

#[test]
fn jitter_stays_within_its_bounds() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, failure_threshold)
         VALUES ('jittery', 2, 'fixed', '1 h', 0.5, 0.25, 0)",
    );
    database.add_endpoint_with("broken", &receiver.url("/"), "policy => 'jittery'");
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 100)");
    database.wait_until(
        "SELECT count(*) = 100 FROM webhook.delivery WHERE status = 'PENDING' AND attempts = 1",
    );
    let row = database
        .connect()
        .query_one(
            "SELECT bool_and(wait BETWEEN interval '30 min' AND interval '75 min') AS within,
                    max(wait) - min(wait) > interval '15 min' AS spread
             FROM (SELECT d.next_attempt_at - a.finished_at AS wait
                   FROM webhook.delivery d JOIN webhook.attempt a USING (event_id, claim_seq)) waits",
            &[],
        )
        .unwrap();
    assert!(row.get::<_, bool>("within"));
    assert!(row.get::<_, bool>("spread"));
}

#[test]
fn answers_mean_what_the_policy_says() {
    let (database, receiver) = (database(), Receiver::start());
    let cases = [
        (200, "SENT", 1),
        (202, "SENT", 1),
        (299, "SENT", 1),
        (302, "FAILED", 1),
        (304, "FAILED", 1),
        (400, "FAILED", 1),
        (401, "FAILED", 1),
        (404, "FAILED", 1),
        (410, "FAILED", 1),
        (408, "FAILED", 3),
        (425, "FAILED", 3),
        (429, "FAILED", 3),
        (500, "FAILED", 3),
        (503, "FAILED", 3),
        (599, "FAILED", 3),
    ];
    for (code, status, requests) in cases {
        let path = format!("/{code}");
        let elsewhere = receiver.url("/elsewhere");
        receiver.respond(&path, move |_, _| {
            Answer::status(code).header("location", &elsewhere)
        });
        let event_type = format!("answered.{code}");
        let options = format!("'{{{event_type}}}', policy => 'fast'");
        database.add_endpoint_with(&event_type, &receiver.url(&path), &options);
        let event = database.emit(&event_type, json!({}));
        database.wait_for_status(event, status);
        assert_eq!(receiver.requests_to(&path).len(), requests, "{code}");
        let last_code: i32 = delivery(&database, event).get("last_status_code");
        assert_eq!(last_code, i32::from(code));
    }
    assert_eq!(receiver.requests_to("/elsewhere").len(), 0);
}

#[test]
fn failed_delivery_lands_in_dead_letter() {
    let (database, receiver) = database_and_receiver();
    receiver.respond("/", |_, _| Answer::status(500).body("out of order"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");

    let row = (database.connect())
        .query_one("SELECT * FROM webhook.dead_letter", &[])
        .unwrap();
    assert_eq!(row.get::<_, Uuid>("event_id"), event);
    assert_eq!(row.get::<_, i32>("attempts"), 3);
    assert_eq!(row.get::<_, i32>("max_attempts"), 3);
    assert_eq!(row.get::<_, &str>("last_error"), "HTTP 500");
    assert_eq!(row.get::<_, i32>("last_status_code"), 500);
    let attempts = attempts(&database, event);
    let last_finished_at: SystemTime = attempts[2].get("finished_at");
    assert_eq!(row.get::<_, SystemTime>("completed_at"), last_finished_at);

    for (attempt, number) in attempts.iter().zip(1..) {
        assert_eq!(attempt.get::<_, i32>("attempt"), number);
        assert_eq!(attempt.get::<_, i32>("status_code"), 500);
        assert_eq!(attempt.get::<_, &str>("response_excerpt"), "out of order");
    }
    let verdicts: Vec<&str> = attempts.iter().map(|row| row.get("verdict")).collect();
    assert_eq!(verdicts, ["retry"; 3]);
    let queued: i64 = database.query_one_value("SELECT count(*) FROM webhook.delivery_queue");
    assert_eq!(queued, 0);
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn sent_rows_carry_code_duration_and_completion() {
    let (database, receiver) = database_and_receiver();
    receiver.respond("/", |_, _| Answer::status(204));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");

    let row = (database.connect())
        .query_one("SELECT * FROM webhook.delivery_history", &[])
        .unwrap();
    assert_eq!(row.get::<_, i32>("attempts"), 1);
    assert_eq!(row.get::<_, i32>("last_status_code"), 204);
    assert_eq!(row.get::<_, Option<&str>>("last_error"), None);
    assert!((0..60_000).contains(&row.get::<_, i32>("duration_ms")));
    let arrived_at = receiver.wait_for_event(event).arrived_at;
    let completed_at: SystemTime = row.get("completed_at");
    assert!((arrived_at..=SystemTime::now()).contains(&completed_at));
    assert_eq!(attempts(&database, event).len(), 0);
}

#[test]
fn ten_thousand_events_arrive_exactly_once_and_every_claim_is_hot() {
    const EVENTS: usize = 10_000;
    const DEADLINE: Duration = Duration::from_secs(120);
    let cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 32")
        .start();
    let (database, receiver) = (cluster.database("many"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    database.execute(&format!(
        "SELECT webhook_emit('order.created', jsonb_build_object('id', i)) FROM generate_series(1, {EVENTS}) AS i"
    ));
    wait::until_within(DEADLINE, "all deliveries to be SENT", || {
        let sent: i64 =
            database.query_one_value("SELECT count(*) FROM webhook.delivery WHERE status = 'SENT'");
        (sent == EVENTS as i64).then_some(()).ok_or(sent)
    });

    let arrived = ids(&receiver.requests());
    assert_eq!(arrived.len(), EVENTS);
    let distinct: HashSet<Uuid> = arrived.into_iter().collect();
    assert_eq!(distinct.len(), EVENTS);

    // The worker hands in its counts when it has nothing else to do.
    let updates = |column: &str| -> i64 {
        database.query_one_value(&format!(
            "SELECT {column} FROM pg_stat_user_tables WHERE relid = 'webhook.delivery_queue'::regclass"
        ))
    };
    wait::until("the updates to be counted", || match updates("n_tup_upd") {
        counted if counted >= EVENTS as i64 => Ok(()),
        counted => Err(counted),
    });
    assert_eq!(updates("n_tup_upd"), EVENTS as i64);
    assert_eq!(updates("n_tup_hot_upd"), EVENTS as i64);
}

#[test]
fn a_slow_endpoint_does_not_delay_another() {
    const SLOW: usize = 1_000;
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/slow");
    database.execute("INSERT INTO webhook.policy (name, timeout) VALUES ('waits', '10 min')");
    database.add_endpoint_with("slow", &receiver.url("/slow"), "'{slow}', 'waits'");
    database.add_endpoint_with("quick", &receiver.url("/quick"), "'{quick}'");
    // More than all threads together can send.
    database.execute(&format!(
        "SELECT webhook_emit('slow') FROM generate_series(1, {SLOW})"
    ));
    receiver.wait_for_requests(1);
    for _ in 0..20 {
        let event = database.emit("quick", json!({}));
        database.wait_for_status(event, "SENT");
    }
    let answered: i64 = database.query_one_value(
        "SELECT count(*) FROM webhook.delivery WHERE event_type = 'slow' AND attempts > 0 AND status <> 'SENDING'",
    );
    assert_eq!(answered, 0, "the slow ones are all still out or waiting");

    receiver.release("/slow");
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    assert_eq!(receiver.requests_to("/slow").len(), SLOW);
}

#[test]
fn an_endpoint_gets_no_more_at_once_than_its_max_in_flight() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/");
    database.add_endpoint_with(
        "narrow",
        &receiver.url("/"),
        "'{narrow}', max_in_flight => 2",
    );
    database.add_endpoint_with("other", &receiver.url("/other"), "'{other}'");
    database.execute("SELECT webhook_emit('narrow') FROM generate_series(1, 10)");
    receiver.wait_for_requests(2);
    let other = database.emit("other", json!({}));
    database.wait_for_status(other, "SENT");
    assert_eq!(receiver.requests_to("/").len(), 2);

    receiver.release("/");
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    assert_eq!(receiver.requests_to("/").len(), 10);
}

#[test]
fn a_refused_connection_is_retried_until_somebody_answers() {
    let database = database();
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, failure_threshold)
         VALUES ('stubborn', 1000, 'fixed', '20 ms', 0, 0, 0)",
    );
    let port = Receiver::start().port();
    let url = format!("http://127.0.0.1:{port}/");
    database.add_endpoint_with("away", &url, "policy => 'stubborn'");
    let event = database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) >= 2 FROM webhook.attempt WHERE reason = 'connect'");

    let receiver = Receiver::start_on(port);
    receiver.wait_for_event(event);
    database.wait_for_status(event, "SENT");
}

#[test]
fn a_timeout_is_retried() {
    let (database, receiver) = (database(), Receiver::start());
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, timeout, failure_threshold)
         VALUES ('hasty', 2, 'fixed', '0 s', '200 ms', 0)",
    );
    receiver.hold("/");
    database.add_endpoint_with("slow", &receiver.url("/"), "policy => 'hasty'");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");

    // It may not have got around to them within their time.
    assert_eq!(ids(&receiver.wait_for_requests(2)), [event; 2]);
    let attempts = attempts(&database, event);
    let kinds: Vec<&str> = attempts.iter().map(|row| row.get("reason")).collect();
    assert_eq!(kinds, ["timeout"; 2]);
    assert!(
        attempts
            .iter()
            .all(|row| row.get::<_, i32>("duration_ms") >= 200)
    );
}

#[test]
fn paused_endpoints_and_a_stream_of_commits_do_not_hide_an_endpoint() {
    let database = database();
    let receiver = Receiver::start();
    database.execute(
        "INSERT INTO webhook.endpoint (name, url, event_types, paused_at)
         SELECT 'paused ' || n, 'http://127.0.0.1:1/', '{paused}', now() FROM generate_series(1, 700) n",
    );
    database.add_endpoint_with(
        "served",
        &receiver.url("/served"),
        "event_types => '{served}'",
    );
    database.emit("paused", json!({}));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut client = database.connect();
            let begun = Instant::now();
            while !stop.load(Ordering::Relaxed) && begun.elapsed() < 2 * wait::DEADLINE {
                client
                    .batch_execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE false")
                    .unwrap();
            }
        });
        let events: Vec<Uuid> = (0..20)
            .map(|n| database.emit("served", json!({ "n": n })))
            .collect();
        for event in &events {
            receiver.wait_for_event(*event);
        }
        stop.store(true, Ordering::Relaxed);
        stream.join().unwrap();
    });
}

#[test]
fn a_delivery_whose_event_was_deleted_fails_and_says_so() {
    let (database, receiver) = database_and_receiver();
    database.pause_all();
    let event = database.emit("order.created", json!({}));
    database.execute("DELETE FROM webhook.event");
    database.resume_all();
    database.wait_for_status(event, "FAILED");
    let error: String = database.query_one_value("SELECT last_error FROM webhook.dead_letter");
    assert_eq!(error, "the event was deleted or redacted");
    assert_eq!(receiver.request_count(), 0);
}
