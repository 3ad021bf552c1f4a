//! Retries end to end: the effect of each answer and each error, the time of the next attempt, and the effect of a
//! lost claim.

use std::sync::mpsc;
use std::time::Duration;

use postgres::NoTls;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{self, Outcome, RETRIABLE_ERRORS, Settled};
use webhook_e2e::receiver::ids;
use webhook_e2e::{Answer, Cluster, Database, RawReceiver, Receiver};

use super::delivery::delivery;

pub(super) fn database() -> Database {
    Cluster::shared().database("retries")
}

/// Two attempts, 20 ms apart, and the columns that the test adds to its policy.
fn add_policy(database: &Database, name: &str, columns: &str, values: &str) {
    database.execute(&format!(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, failure_threshold, {columns})
         VALUES ('{name}', 2, 'fixed', '20 ms', 0, 0, 0, {values})"
    ));
}

/// The kinds of error of the event's attempts.
fn reasons(database: &Database, event: Uuid) -> Vec<String> {
    let query = "SELECT reason FROM webhook.attempt WHERE event_id = $1 ORDER BY claim_seq";
    let rows = database.connect().query(query, &[&event]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[track_caller]
pub(super) fn wait_for_retry(database: &Database, event: Uuid, attempts: i32) {
    database.wait_until(&format!(
        "SELECT status = 'PENDING' AND attempts = {attempts} FROM webhook.delivery WHERE event_id = '{event}'"
    ));
}

/// From the end of the last attempt to the next one, in seconds.
#[track_caller]
fn wait_until_next_attempt(database: &Database, event: Uuid) -> f64 {
    database.query_one_value(&format!(
        "SELECT extract(epoch FROM d.next_attempt_at - a.finished_at)::float8
         FROM webhook.delivery d JOIN webhook.attempt a USING (event_id, endpoint_id, claim_seq) WHERE event_id = '{event}'"
    ))
}

pub(super) fn do_not_wait(database: &Database) {
    database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'");
}

#[test]
fn a_500_is_retried_and_a_200_ends_it() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, number| {
        Answer::status(if number == 1 { 500 } else { 200 })
    });
    database.add_endpoint("all", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");

    assert_eq!(ids(&receiver.requests()), [event; 2]);
    let row = delivery(&database, event);
    assert_eq!(row.get::<_, i32>("attempts"), 2);
    assert_eq!(row.get::<_, i32>("last_status_code"), 200);
    assert_eq!(row.get::<_, Option<&str>>("last_error"), None);
    let logged = "SELECT string_agg(verdict || ' ' || status_code, ', ') FROM webhook.attempt";
    assert_eq!(database.query_one_value::<String>(logged), "retry 500");
}

#[test]
fn a_status_that_the_policy_does_not_retry_is_final_at_once() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404));
    database.add_endpoint_with("all", &receiver.url("/"), "policy => 'power5'");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");

    let row = delivery(&database, event);
    assert_eq!(row.get::<_, i32>("attempts"), 1);
    assert_eq!(row.get::<_, i32>("max_attempts"), 6);
    assert_eq!(row.get::<_, &str>("last_error"), "HTTP 404");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn any_status_but_2xx_and_410_is_retried_as_standard_webhooks_recommends() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, number| Answer::status([404, 302, 599][number - 1]));
    database.add_endpoint_with("all", &receiver.url("/"), "policy => 'standard'");
    let event = database.emit("order.created", json!({}));
    for (attempt, seconds) in [(1, 5.0), (2, 300.0), (3, 1800.0)] {
        wait_for_retry(&database, event, attempt);
        let wait = wait_until_next_attempt(&database, event);
        let allowed = seconds * 0.9..=seconds * 1.1;
        assert!(allowed.contains(&wait), "wait {attempt} is {wait} s");
        if attempt < 3 {
            do_not_wait(&database);
        }
    }
    assert_eq!(delivery(&database, event).get::<_, i32>("max_attempts"), 10);
}

#[test]
fn one_503_is_retried_where_events_must_not_be_lost() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, number| match number % 2 {
        1 => Answer::status(503),
        _ => Answer::status(200),
    });
    for preset in ["critical", "high_traffic", "development"] {
        let options = format!("'{{{preset}}}', policy => '{preset}'");
        database.add_endpoint_with(preset, &receiver.url("/"), &options);
        let event = database.emit(preset, json!({}));
        wait_for_retry(&database, event, 1);
        do_not_wait(&database);
        database.wait_for_status(event, "SENT");
        assert_eq!(delivery(&database, event).get::<_, i32>("attempts"), 2);
    }
}

#[test]
fn a_429_with_retry_after_1_is_retried_no_sooner_than_in_a_second() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, number| match number {
        1 => Answer::status(429).header("retry-after", "1"),
        _ => Answer::status(200),
    });
    add_policy(&database, "obliging", "retry_after", "'at_least'");
    database.add_endpoint_with("busy", &receiver.url("/"), "policy => 'obliging'");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");

    let requests = receiver.requests();
    assert_eq!(ids(&requests), [event; 2]);
    let waited = requests[1].arrived - requests[0].arrived;
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert_eq!(delivery(&database, event).get::<_, i32>("attempts"), 2);
}

#[test]
fn retry_after_is_heeded_as_the_policy_says() {
    const HOUR: f64 = 3600.0;
    const DAY: f64 = 24.0 * HOUR;
    // The policy's own delay is an hour, max_delay a day, or two hours where it is brief. Mode, status, Retry-After,
    // the wait in seconds.
    let cases = [
        ("at_least", 429, "7200", 2.0 * HOUR),
        ("at_least", 503, "7200", 2.0 * HOUR),
        ("at_least", 429, "100", HOUR),
        ("exact", 429, "100", 100.0),
        ("exact", 503, "7200", 2.0 * HOUR),
        ("ignore", 429, "100", HOUR),
        ("ignore", 429, "7200", HOUR),
        ("exact", 429, "4294967295", DAY),
        ("exact", 429, "99999999999999999999", DAY),
        ("exact", 429, "Sat, 06 Nov 2094 08:49:37 GMT", DAY),
        ("at_least", 503, "Sat, 06 Nov 2094 08:49:37 GMT", DAY),
        ("brief", 429, "7201", 2.0 * HOUR),
        ("brief", 503, "Sat, 06 Nov 2094 08:49:37 GMT", 2.0 * HOUR),
        ("exact", 429, "soon", HOUR),
        ("exact", 429, "", HOUR),
        ("exact", 429, "-100", HOUR),
        ("exact", 429, "100.5", HOUR),
        ("exact", 429, "Sun, 06 Nov 1994 08:49:37 GMT", HOUR),
        ("exact", 429, "Sun, 99 Nov 2094 08:49:37 GMT", HOUR),
        ("exact", 500, "100", HOUR),
    ];
    let (database, receiver) = (database(), Receiver::start());
    for mode in ["at_least", "exact", "ignore"] {
        add_policy(&database, mode, "retry_after", &format!("'{mode}'"));
    }
    add_policy(
        &database,
        "brief",
        "retry_after, max_delay",
        "'exact', '2 h'",
    );
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE NOT preset");
    for (number, (mode, status, retry_after, seconds)) in cases.into_iter().enumerate() {
        let path = format!("/{number}");
        receiver.respond(&path, move |_, _| {
            Answer::status(status).header("retry-after", retry_after)
        });
        let event_type = format!("case.{number}");
        let options = format!("'{{{event_type}}}', policy => '{mode}'");
        database.add_endpoint_with(&event_type, &receiver.url(&path), &options);
        let event = database.emit(&event_type, json!({}));
        wait_for_retry(&database, event, 1);
        let wait = wait_until_next_attempt(&database, event);
        assert_eq!(wait, seconds, "{mode}, {status} with {retry_after:?}");
    }
}

#[test]
fn retry_after_may_be_a_date() {
    let (database, receiver) = (database(), Receiver::start());
    add_policy(&database, "obliging", "retry_after", "'exact'");
    database.add_endpoint_with("busy", &receiver.url("/"), "policy => 'obliging'");
    let (date, epoch): (String, f64) = {
        let query = "
            SELECT to_char(date AT TIME ZONE 'UTC', 'Dy, DD Mon YYYY HH24:MI:SS \"GMT\"'), extract(epoch FROM date)::float8
            FROM date_trunc('second', now() + interval '1000 s') AS date";
        let row = database.connect().query_one(query, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    receiver.respond("/", move |_, _| {
        Answer::status(503).header("retry-after", &date)
    });
    let event = database.emit("order.created", json!({}));
    wait_for_retry(&database, event, 1);
    let due: f64 = database.query_one_value(
        "SELECT extract(epoch FROM next_attempt_at)::float8 FROM webhook.delivery",
    );
    assert!(
        (epoch..epoch + 5.0).contains(&due),
        "{due} is not the date {epoch}"
    );
}

#[test]
fn every_kind_of_error_is_retried_where_the_policy_lists_it_and_final_where_not() {
    let (database, silent) = (database(), Receiver::start());
    silent.hold("/");
    let hangs_up = RawReceiver::answering(b"");
    let resets = RawReceiver::resetting();
    let breaks_off = RawReceiver::answering(b"HTTP/1.1 200 OK\r\nX: ");
    let speaks_another_language = RawReceiver::answering(b"SSH-2.0-OpenSSH_9.2\r\n");
    let cases = [
        ("refused", Receiver::closed_url(), "connect"),
        ("silent", silent.url("/"), "timeout"),
        ("unknown", "http://nowhere.invalid/".to_owned(), "dns"),
        ("hangs_up", hangs_up.url(), "reset"),
        ("resets", resets.url(), "reset"),
        ("breaks_off", breaks_off.url(), "reset"),
        ("babbles", speaks_another_language.url(), "invalid_response"),
        (
            "speaks_no_tls",
            silent.url("/").replace("http:", "https:"),
            "tls",
        ),
    ];
    for (name, url, kind) in cases {
        let others = RETRIABLE_ERRORS.into_iter().filter(|other| *other != kind);
        let others = others.collect::<Vec<_>>().join(",");
        for (verdict, errors, attempts) in [("retry", kind, 2), ("final", &*others, 1)] {
            let case = format!("{name}_{verdict}");
            let timeout = if kind == "timeout" { "100 ms" } else { "1 min" };
            let values = format!("'{{{errors}}}', '{timeout}'");
            add_policy(&database, &case, "retry_errors, timeout", &values);
            database.add_endpoint_with(&case, &url, &format!("'{{{case}}}', policy => '{case}'"));
            let event = database.emit(&case, json!({}));
            database.wait_for_status(event, "FAILED");
            assert_eq!(reasons(&database, event), vec![kind; attempts], "{case}");
            let row = delivery(&database, event);
            assert_eq!(row.get::<_, i32>("attempts"), attempts as i32, "{case}");
            assert_eq!(
                row.get::<_, Option<i32>>("last_status_code"),
                None,
                "{case}"
            );
            assert!(row.get::<_, Option<&str>>("last_error").is_some(), "{case}");
        }
    }
    assert_eq!(hangs_up.request_count(), 3);
}

#[test]
fn a_redirect_is_not_followed_and_means_what_the_policy_says() {
    let (database, receiver) = (database(), Receiver::start());
    let target = receiver.url("/target");
    receiver.respond("/", move |_, _| {
        Answer::status(302).header("location", &target)
    });
    add_policy(&database, "lenient", "success_status", "'{[200,400)}'");
    for (policy, status) in [("job", "FAILED"), ("lenient", "SENT"), ("power5", "SENT")] {
        let options = format!("'{{{policy}}}', policy => '{policy}'");
        database.add_endpoint_with(policy, &receiver.url("/"), &options);
        let event = database.emit(policy, json!({}));
        database.wait_for_status(event, status);
        let row = delivery(&database, event);
        assert_eq!(row.get::<_, i32>("attempts"), 1, "{policy}");
        assert_eq!(row.get::<_, i32>("last_status_code"), 302, "{policy}");
    }
    assert_eq!(receiver.requests_to("/").len(), 3);
    assert_eq!(receiver.requests_to("/target").len(), 0);
}

#[test]
fn a_200_whose_body_breaks_off_is_sent() {
    let database = database();
    let receiver = RawReceiver::answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf");
    database.add_endpoint("all", &receiver.url());
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(
        delivery(&database, event).get::<_, i32>("last_status_code"),
        200
    );
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn max_attempts_is_fixed_at_emit() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.add_endpoint("all", &receiver.url("/"));
    add_policy(&database, "other", "timeout", "'1 min'");
    database.pause_all();
    let earlier = database.emit("order.created", json!({}));
    database.execute("UPDATE webhook.policy SET max_attempts = 1 WHERE name = 'fast'");
    let between = database.emit("order.created", json!({}));
    database.execute("UPDATE webhook.endpoint SET policy = 'other'");
    let later = database.emit("order.created", json!({}));
    database.resume_all();

    for (event, attempts) in [(earlier, 3), (between, 1), (later, 2)] {
        database.wait_for_status(event, "FAILED");
        let row = delivery(&database, event);
        assert_eq!(row.get::<_, i32>("max_attempts"), attempts);
        assert_eq!(row.get::<_, i32>("attempts"), attempts);
        let requests = receiver.requests();
        let sent = requests
            .iter()
            .filter(|request| request.event_id() == event);
        assert_eq!(sent.count(), attempts as usize);
    }
}

#[test]
fn changing_an_endpoints_policy_applies_to_the_next_attempts_delay() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.execute(
        "INSERT INTO webhook.policy (name, backoff, schedule, jitter_down, jitter_up, failure_threshold)
         VALUES ('before', 'schedule', '{1 h, 2 h, 3 h}', 0, 0, 0), ('after', 'schedule', '{4 h, 5 h, 6 h}', 0, 0, 0)",
    );
    database.add_endpoint_with("broken", &receiver.url("/"), "policy => 'before'");
    let event = database.emit("order.created", json!({}));
    wait_for_retry(&database, event, 1);
    assert_eq!(wait_until_next_attempt(&database, event), 3600.0);

    database.execute("UPDATE webhook.endpoint SET policy = 'after'");
    assert_eq!(
        wait_until_next_attempt(&database, event),
        3600.0,
        "it is under way"
    );
    do_not_wait(&database);
    wait_for_retry(&database, event, 2);
    assert_eq!(wait_until_next_attempt(&database, event), 5.0 * 3600.0);
}

#[test]
fn changing_an_endpoints_policy_to_one_that_does_not_exist_is_refused() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    for statement in [
        "UPDATE webhook.endpoint SET policy = 'nothing'",
        "SELECT webhook_set_endpoint('other', 'http://127.0.0.1:9/', policy => 'nothing')",
    ] {
        let refusal = database.refusal(statement);
        assert_eq!(refusal.code().code(), "42704", "{statement}");
        let hint = refusal.hint().unwrap_or_default();
        assert!(hint.contains("SELECT name FROM webhook.policy"), "{hint}");
    }
}

#[test]
fn an_endpoint_gets_a_preset_by_its_name() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.add_endpoint_with("broken", &receiver.url("/"), "policy => 'power5'");
    let event = database.emit("order.created", json!({}));
    for (attempt, seconds) in [(1, 5.0), (2, 25.0), (3, 125.0)] {
        wait_for_retry(&database, event, attempt);
        let wait = wait_until_next_attempt(&database, event);
        let allowed = seconds..=seconds * 1.1;
        assert!(allowed.contains(&wait), "wait {attempt} is {wait} s");
        do_not_wait(&database);
    }
    assert_eq!(delivery(&database, event).get::<_, i32>("max_attempts"), 6);
}

#[test]
fn what_a_job_has_sent_leaves_no_row() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/fails", |_, _| Answer::status(404));
    database.add_endpoint_with("job", &receiver.url("/"), "'{sent}', policy => 'job'");
    database.add_endpoint_with(
        "fails",
        &receiver.url("/fails"),
        "'{failed}', policy => 'job'",
    );
    let sent = database.emit("sent", json!({}));
    let failed = database.emit("failed", json!({}));
    receiver.wait_for_event(sent);
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    assert_eq!(database.delivery_status(sent), None);
    assert_eq!(database.delivery_status(failed).as_deref(), Some("FAILED"));
}

#[test]
fn a_forgotten_claim_goes_back_to_the_queue_and_one_in_flight_does_not() {
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '1s'")
        .start();
    let (database, receiver) = (cluster.database("stale"), Receiver::start());
    receiver.hold("/held");
    add_policy(&database, "waits", "timeout", "'10 min'");
    database.add_endpoint_with(
        "held",
        &receiver.url("/held"),
        "'{held}', policy => 'waits'",
    );
    database.add_endpoint_with(
        "paused",
        &receiver.url("/paused"),
        "'{paused}', policy => 'waits'",
    );
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'paused'");
    let held = database.emit("held", json!({}));
    let forgotten = database.emit("paused", json!({}));
    receiver.wait_for_event(held);
    database.wait_until("SELECT claimed_at < now() - interval '2 s' FROM webhook.delivery WHERE event_type = 'held'");

    database.execute_as_engine(&format!(
        "UPDATE webhook.delivery_queue
         SET status = 'SENDING', attempts = 1, claim_seq = 1, claimed_at = now() - interval '1 h',
             claimed_by = (SELECT claimed_by FROM webhook.delivery_queue WHERE event_id = '{held}')
         WHERE event_id = '{forgotten}'"
    ));
    database.wait_for_status(forgotten, "PENDING");
    let row = delivery(&database, forgotten);
    assert_eq!(
        row.get::<_, i32>("attempts"),
        1,
        "the request may have arrived"
    );
    assert_eq!(row.get::<_, &str>("last_error"), "worker lost");
    let row = delivery(&database, held);
    assert_eq!(row.get::<_, &str>("status"), "SENDING");
    assert_eq!(row.get::<_, i64>("claim_seq"), 1);

    receiver.release("/held");
    database.resume_all();
    database.wait_for_status(held, "SENT");
    database.wait_for_status(forgotten, "SENT");
    assert_eq!(receiver.requests_to("/held").len(), 1);
    assert_eq!(delivery(&database, held).get::<_, i32>("attempts"), 1);
    assert_eq!(delivery(&database, forgotten).get::<_, i32>("attempts"), 2);
}

#[test]
fn a_late_result_is_only_logged() {
    let (database, receiver) = (database(), Receiver::start());
    for status in [200, 404, 500] {
        let path = format!("/{status}");
        receiver.hold(&path);
        receiver.respond(&path, move |_, _| Answer::status(status));
        let event_type = format!("answered.{status}");
        let options = format!("'{{{event_type}}}', policy => 'fast'");
        database.add_endpoint_with(&event_type, &receiver.url(&path), &options);
        let event = database.emit(&event_type, json!({}));
        receiver.wait_for_event(event);
        database.pause_all();
        database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'SENDING'");

        receiver.release(&path);
        database.wait_until(&format!(
            "SELECT count(*) = 1 FROM webhook.attempt
             WHERE event_id = '{event}' AND verdict = 'late' AND status_code = {status} AND attempt IS NULL"
        ));
        let row = delivery(&database, event);
        assert_eq!(row.get::<_, &str>("status"), "PENDING", "{status}");
        assert_eq!(row.get::<_, i32>("attempts"), 0, "{status}");
        assert_eq!(
            row.get::<_, Option<i32>>("last_status_code"),
            None,
            "{status}"
        );
        assert_eq!(row.get::<_, Option<&str>>("last_error"), None, "{status}");
        database.resume_all();
    }
}

/// As a sender does that has lost its connection while it committed.
#[test]
fn outcomes_that_are_settled_twice_change_nothing_the_second_time() {
    let database = engine::idle_cluster().database("twice");
    database.execute(
        "SELECT webhook_copy_policy('standard', 'once'), webhook_copy_policy('standard', 'forgetful');
         UPDATE webhook.policy SET max_attempts = 1 WHERE name = 'once';
         UPDATE webhook.policy SET keep_sent = false WHERE name = 'forgetful'",
    );
    let outcomes = [
        Outcome::status(200, 5.0),
        Outcome::status(500, 5.0),
        Outcome::error("timeout", 5.0),
        Outcome::error("local", 5.0),
        Outcome::error("released", 5.0),
        Outcome::status(410, 5.0),
    ];
    for policy in ["standard", "once", "forgetful"] {
        let options = format!("policy => '{policy}'");
        database.add_endpoint_with(policy, "http://127.0.0.1:9/", &options);
    }
    for _ in &outcomes {
        database.emit("order.created", json!({}));
    }
    let mut client = database.connect();
    let mut batch = Vec::new();
    for endpoint in 1..=3 {
        let claims = engine::claim_of(&mut client, 1, endpoint);
        batch.extend(claims.into_iter().zip(outcomes.iter().cloned()));
    }
    assert_eq!(batch.len(), 3 * outcomes.len());
    let rows = || {
        let tables = [
            "delivery", "attempt", "breaker", "alert", "event", "endpoint", "lane", "stat",
        ];
        let all = tables.map(|table| format!("SELECT '{table}' || t::text FROM webhook.{table} t"));
        let all = all.join(" UNION ALL ");
        database.query_one_value::<Vec<String>>(&format!(
            "SELECT array_agg(r ORDER BY r) FROM ({all}) r (r)"
        ))
    };
    engine::settle(&mut client, &batch);
    let settled = rows();
    assert_eq!(engine::settle(&mut client, &batch), Settled::default());
    assert_eq!(rows(), settled);
}

#[test]
fn a_policy_whose_requests_may_outlast_stale_after_is_warned_about() {
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '20s'")
        .start();
    let database = cluster.database("warned");
    let (said, notices) = mpsc::channel();
    let mut config = cluster.config(database.name());
    config.notice_callback(move |notice| said.send(notice).unwrap());
    let mut session = config.connect(NoTls).unwrap();
    let cases = [
        (
            "INSERT INTO webhook.policy (name, connect_timeout, timeout) VALUES ('mine', '5 s', '14 s')",
            false,
        ),
        (
            "UPDATE webhook.policy SET timeout = '15 s' WHERE name = 'mine'",
            true,
        ),
        (
            "INSERT INTO webhook.policy (name, connect_timeout) VALUES ('slow', '1 min')",
            true,
        ),
    ];
    for (statement, warned) in cases {
        session.batch_execute(statement).unwrap();
        let warning = notices.try_recv().ok();
        assert_eq!(warning.is_some(), warned, "{statement}: {warning:?}");
        if let Some(warning) = warning {
            assert_eq!(warning.severity(), "WARNING");
            let hint = warning.hint().unwrap_or_default();
            assert!(hint.contains("webhook.stale_after"), "{hint}");
        }
    }
}
