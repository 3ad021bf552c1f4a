//! Trying an endpoint: the request and the result of CALL webhook_test(), and the rows that it leaves as they were.

use std::thread::{self, JoinHandle};

use postgres::error::SqlState;
use serde_json::json;
use webhook_e2e::operated::{
    Shown, add_policy, answer, assert_that, contents, fail, orders, test_endpoint,
    wait_for_a_witness, wait_for_empty_queue,
};
use webhook_e2e::{Answer, Cluster, Database, Receiver, database, worker};

fn database() -> Database {
    Cluster::shared().database("webhook_test")
}

/// Has `orders` tested while the test here goes on; the session can be found by its application_name.
fn test_in_background(
    database: &Database,
    application: &'static str,
) -> JoinHandle<Result<Shown, postgres::Error>> {
    let mut client = database.connect();
    thread::spawn(move || {
        client.batch_execute(&format!("SET application_name = '{application}'"))?;
        client
            .query_one("CALL webhook_test('orders')", &[])
            .map(Shown::from)
    })
}

#[test]
fn a_test_that_succeeds_shows_it_and_leaves_no_trace() {
    let database = database();
    for keep_sent in [true, false] {
        let receiver = Receiver::start();
        let name = format!("kept_{keep_sent}");
        add_policy(&database, &name, &format!("keep_sent = {keep_sent}"));
        let options = format!("'{{{name}}}', policy => '{name}'");
        database.add_endpoint_with("orders", &receiver.url("/orders"), &options);
        receiver.respond("/orders", |_, _| Answer::status(202).body("Thank you"));
        let before = contents(&database);
        let shown = test_endpoint(&database, "orders");
        shown.assert_is("SENT", Some(202), None);
        assert_eq!(shown.response.as_deref(), Some("Thank you"));
        assert!(shown.duration_ms.is_some(), "{shown:?}");
        assert_eq!(contents(&database), before);

        let requests = receiver.requests();
        assert_eq!(requests.len(), 1);
        let body = requests[0].json();
        assert_eq!(body["type"], "webhook.test");
        assert_eq!(body["id"], requests[0].header("webhook-id"));
        assert!(body["data"]["message"].is_string(), "{body}");
        database.execute("SELECT webhook_remove_endpoint('orders')");
    }
}

#[test]
fn a_test_that_fails_shows_it_and_leaves_no_trace() {
    let database = database();
    let strict = "failure_threshold = 1, on_exhausted = 'disable', warn_threshold = 1";
    add_policy(&database, "strict", strict);
    add_policy(&database, "hasty", &format!("{strict}, timeout = '200 ms'"));
    let receiver = Receiver::start();
    let refusing = |status: u16| move |_: &_, _| Answer::status(status).body("No such order");
    receiver.respond("/500", refusing(500));
    receiver.respond("/404", refusing(404));
    receiver.respond("/410", refusing(410));
    receiver.hold("/hangs");
    let response = Some("No such order");
    let cases = [
        (receiver.url("/500"), Some(500), "HTTP 500", response),
        (receiver.url("/404"), Some(404), "HTTP 404", response),
        (receiver.url("/410"), Some(410), "HTTP 410", response),
        (
            receiver.url("/hangs"),
            None,
            "no response within 200ms",
            None,
        ),
        (Receiver::closed_url(), None, "connection refused", None),
    ];
    for (number, (url, code, error, response)) in cases.into_iter().enumerate() {
        let name = format!("case{number}");
        let policy = match url.ends_with("/hangs") {
            true => "policy => 'hasty'",
            false => "policy => 'strict'",
        };
        database.add_endpoint_with(&name, &url, policy);
        let before = contents(&database);
        let shown = test_endpoint(&database, &name);
        shown.assert_is("FAILED", code, Some(error));
        assert_eq!(shown.response.as_deref(), response, "{shown:?}");
        assert_eq!(contents(&database), before, "{name}");
        assert_that(
            &database,
            &name,
            "(state, consecutive_failures) = ('ACTIVE', 0)",
        );
    }
}

#[test]
fn tests_are_not_counted_among_deliveries() {
    let database = database();
    let receiver = orders(&database, "");
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    answer(&receiver, 500);
    test_endpoint(&database, "orders").assert_is("FAILED", Some(500), Some("HTTP 500"));
    answer(&receiver, 200);
    database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) > 0 FROM webhook.stat");
    let counted: Vec<i64> = database.query_one_value(
        "SELECT ARRAY[attempts, sent, failed] FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'",
    );
    assert_eq!(counted, [1, 1, 0]);
}

#[test]
fn a_failed_test_changes_the_state_of_no_endpoint() {
    let database = database();
    let receiver = orders(&database, "");
    let states = [
        ("DEGRADED", ""),
        ("PAUSED", "SELECT webhook_pause('orders')"),
        (
            "DISABLED",
            "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'exhausted'",
        ),
        ("OPEN", "SELECT webhook_resume('orders')"),
    ];
    fail(&database, &receiver, 1);
    for (state, change) in states {
        database.execute(change);
        if state == "OPEN" {
            wait_for_empty_queue(&database);
            fail(&database, &receiver, 3);
        }
        // Work that follows the change by itself is done.
        wait_for_a_witness(&database);
        assert_that(&database, "orders", &format!("state = '{state}'"));
        let before = contents(&database);
        for status in [500, 404, 410] {
            answer(&receiver, status);
            let error = format!("HTTP {status}");
            test_endpoint(&database, "orders").assert_is(
                "FAILED",
                Some(status.into()),
                Some(&error),
            );
            assert_eq!(contents(&database), before, "{state}, {status}");
        }
        answer(&receiver, 200);
    }
}

#[test]
fn a_test_is_not_taken_for_the_probe() {
    let database = database();
    let receiver = orders(&database, "when_open = 'fail'");
    fail(&database, &receiver, 3);
    database.execute("UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING'");
    database.execute("UPDATE webhook.breaker SET probe_at = now() - interval '1 s'");
    let before = contents(&database);
    answer(&receiver, 500);
    test_endpoint(&database, "orders").assert_is("FAILED", Some(500), Some("HTTP 500"));
    assert_eq!(contents(&database), before);

    // And the probe is still to come.
    answer(&receiver, 200);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_that(&database, "orders", "state = 'ACTIVE'");
}

#[test]
fn a_test_reaches_a_paused_endpoint_and_it_stays_paused() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let kept_back = database.emit("order.created", json!({}));
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    assert_that(&database, "orders", "(state, kept_back) = ('PAUSED', 1)");
    assert_eq!(
        database.delivery_status(kept_back).as_deref(),
        Some("PENDING")
    );
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn a_successful_test_resumes_what_exhaustion_disabled_and_nothing_else() {
    let database = database();
    let receiver = orders(&database, "");
    for (reason, state) in [
        ("exhausted", "ACTIVE"),
        ("gone", "DISABLED"),
        ("tripped", "DISABLED"),
        ("moved away", "DISABLED"),
    ] {
        fail(&database, &receiver, 1);
        database.execute(&format!(
            "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = '{reason}'"
        ));
        let kept_back = database.emit("order.created", json!({}));
        test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
        assert_that(
            &database,
            "orders",
            &format!("(state, consecutive_failures) = ('{state}', 0)"),
        );
        if state == "DISABLED" {
            assert_that(&database, "orders", &format!("reason = '{reason}'"));
            assert_eq!(
                database.delivery_status(kept_back).as_deref(),
                Some("PENDING")
            );
            database.execute("SELECT webhook_resume('orders')");
        }
        // Also the retry that would have waited for an hour.
        wait_for_empty_queue(&database);
    }
}

#[test]
fn an_endpoint_that_a_person_paused_as_well_stays_paused() {
    let database = database();
    let _receiver = orders(&database, "");
    database.execute(
        "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'exhausted', paused_at = now()",
    );
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    assert_that(&database, "orders", "state = 'PAUSED'");
}

#[test]
fn a_successful_test_closes_an_open_breaker_and_what_is_kept_back_follows() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips) = ('ACTIVE', 0, 0)",
    );
    assert_eq!(receiver.request_count(), 3 + 1 + 4);
}

#[test]
fn a_test_does_not_wait_behind_a_backlog() {
    const BACKLOG: usize = 5000;
    let database = database();
    let receiver = orders(&database, "");
    database.execute("UPDATE webhook.endpoint SET max_in_flight = 2");
    receiver.hold("/held");
    receiver.hold_after("/orders", 10);
    let held = receiver.url("/held");
    database.add_endpoint_with("held", &held, "'{held}', max_in_flight => 1");
    database.execute(&format!(
        "SELECT webhook_emit('held') FROM generate_series(1, 100);
         SELECT webhook_emit('order.created') FROM generate_series(1, {BACKLOG})"
    ));
    receiver.wait_for_requests_to("/orders", 11);
    let test = test_in_background(&database, "hasty");
    database
        .wait_until("SELECT EXISTS (SELECT FROM webhook.breaker WHERE test_event_id IS NOT NULL)");
    receiver.release("/orders");
    let shown = test.join().unwrap().unwrap();
    shown.assert_is("SENT", Some(200), None);
    let requests = receiver.requests_to("/orders");
    let place = (requests.iter()).position(|request| request.json()["type"] == "webhook.test");
    // It goes behind the deliveries that were claimed before it, which are few.
    assert!(place.unwrap() < BACKLOG / 10, "{place:?}");
    receiver.release("/held");
}

#[test]
fn a_second_test_at_the_same_time_is_refused() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let first = test_in_background(&database, "first");
    receiver.wait_for_requests(1);
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_IN_USE);
    assert_eq!(
        refusal.message(),
        r#"endpoint "orders" is being tested already"#
    );
    assert!(refusal.hint().is_some());

    // Another endpoint's test is nobody's business.
    database.add_endpoint("others", &receiver.url("/others"));
    test_endpoint(&database, "others").assert_is("SENT", Some(200), None);
    receiver.release("/orders");
    let shown = first.join().unwrap().unwrap();
    shown.assert_is("SENT", Some(200), None);
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
}

#[test]
fn of_two_tests_that_begin_at_the_same_moment_one_is_refused() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    // The first has not committed yet when the second asks.
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("SELECT webhook.queue_test('orders')")
        .unwrap();
    let second = test_in_background(&database, "second");
    database.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'",
    );
    receiver.hold("/orders");
    transaction.commit().unwrap();
    let refused = second.join().unwrap();
    let refused = refused.expect_err("both were queued");
    assert_eq!(refused.code(), Some(&SqlState::OBJECT_IN_USE));
    receiver.release("/orders");
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn the_next_test_works_after_a_caller_was_killed() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let killed = test_in_background(&database, "doomed");
    receiver.wait_for_requests(1);
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'",
    );
    assert!(killed.join().unwrap().is_err());
    // It is still under way.
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_IN_USE);

    answer(&receiver, 500);
    receiver.release("/orders");
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('ACTIVE', 0)",
    );
    answer(&receiver, 200);
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn a_test_survives_a_restart_of_the_worker() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let test = test_in_background(&database, "survivor");
    receiver.wait_for_requests(1);
    let pid = worker::pid(&database);
    worker::terminate(&database, pid);
    worker::successor(&database, pid);
    receiver.wait_for_requests(2);
    receiver.release("/orders");
    let shown = test.join().unwrap().unwrap();
    shown.assert_is("SENT", Some(200), None);
    assert_that(&database, "orders", "(state, queued) = ('ACTIVE', 0)");
}

#[test]
fn a_test_whose_endpoint_is_removed_meanwhile_says_so() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let test = test_in_background(&database, "orphan");
    receiver.wait_for_requests(1);
    database.execute("SELECT webhook_remove_endpoint('orders')");
    let shown = test.join().unwrap().unwrap();
    shown.assert_is("CANCELLED", None, Some("endpoint removed"));
    receiver.release("/orders");
    let left: i64 = database.query_one_value(
        "SELECT (SELECT count(*) FROM webhook.event) + (SELECT count(*) FROM webhook.delivery)
              + (SELECT count(*) FROM webhook.breaker)",
    );
    assert_eq!(left, 0);
}

#[test]
fn where_it_cannot_commit_it_says_what_to_do_and_nothing_is_sent() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute(
        "CREATE FUNCTION tests() RETURNS void LANGUAGE plpgsql AS $$
             DECLARE s text; c int; e text; r text; d int; BEGIN CALL webhook_test('orders', s, c, e, r, d); END $$;
         CREATE FUNCTION replays() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL webhook_replay_all('orders'); END $$",
    );
    let before = contents(&database);
    for (called, function) in [("webhook_test", "tests"), ("webhook_replay_all", "replays")] {
        for sql in [
            format!("BEGIN; CALL {called}('orders')"),
            format!("BEGIN; SAVEPOINT here; CALL {called}('orders')"),
            // Several statements that are sent together are one transaction.
            format!("SELECT 1; CALL {called}('orders')"),
            format!("SELECT {function}()"),
            format!(
                "DO $$ BEGIN PERFORM {function}(); EXCEPTION WHEN division_by_zero THEN NULL; END $$"
            ),
        ] {
            let refusal = database.refusal(&sql);
            assert_eq!(*refusal.code(), SqlState::ACTIVE_SQL_TRANSACTION, "{sql}");
            assert_eq!(
                refusal.message(),
                format!("{called}() cannot run inside a transaction block or a function")
            );
            let hint = refusal.hint().unwrap();
            assert!(
                hint.contains("without BEGIN") && hint.contains("autocommit"),
                "{hint}"
            );
        }
    }
    let caught = "DO $$ BEGIN CALL webhook_replay_all('orders'); EXCEPTION WHEN division_by_zero THEN NULL; END $$";
    assert_eq!(
        *database.refusal(caught).code(),
        SqlState::ACTIVE_SQL_TRANSACTION
    );
    // As a driver does it that is not in autocommit mode.
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let refusal = database::refusal(&mut transaction, "CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::ACTIVE_SQL_TRANSACTION);
    transaction.rollback().unwrap();
    assert_eq!(contents(&database), before);
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 0);

    // A procedure that may commit may have it called.
    database.execute(
        "CREATE PROCEDURE in_a_procedure() LANGUAGE plpgsql AS $$
             DECLARE s text; c int; e text; r text; d int; BEGIN CALL webhook_test('orders', s, c, e, r, d); END $$",
    );
    database.execute("CALL in_a_procedure()");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn where_no_worker_reports_a_test_says_so() {
    let database = database();
    orders(&database, "");
    // As on a standby, or before the launcher has seen the database.
    let silent = "CREATE OR REPLACE FUNCTION webhook.worker_report(
                      OUT pid int, OUT state text, OUT reason text, OUT in_flight int, OUT last_error text, OUT last_error_at timestamptz)
                  RETURNS SETOF record LANGUAGE sql AS $$ SELECT 1, '', '', 1, '', now() WHERE false $$";
    database.execute(silent);
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(
        refusal.message(),
        "nothing is sent at the moment: no worker"
    );
    let reason: String =
        database.query_one_value("SELECT reason FROM webhook_status() WHERE state = 'no worker'");
    assert_eq!(refusal.detail(), Some(&*reason));
}

#[test]
fn where_nothing_is_sent_a_test_says_so() {
    let mut cluster = Cluster::builder().without_preload().start();
    let database = cluster.database("untested");
    let receiver = orders(&database, "");
    let refuse = |state: &str, detail: &str| {
        let before = contents(&database);
        let refusal = database.refusal("CALL webhook_test('orders')");
        assert_eq!(
            *refusal.code(),
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "{refusal:?}"
        );
        let message = format!("nothing is sent at the moment: {state}");
        assert_eq!(refusal.message(), message);
        assert!(refusal.detail().unwrap().contains(detail), "{refusal:?}");
        assert!(
            refusal.hint().unwrap().contains("webhook_status()"),
            "{refusal:?}"
        );
        assert_eq!(contents(&database), before);
    };
    refuse("not preloaded", "shared_preload_libraries");

    cluster.configure("shared_preload_libraries = 'webhook'");
    cluster.configure("webhook.enabled = off");
    cluster.restart();
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    refuse("disabled", "webhook.enabled");

    cluster.configure("webhook.enabled = on");
    cluster.reload();
    database.wait_until("SELECT state = 'running' FROM webhook_status()");
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);

    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    let before = contents(&database);
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(
        refusal.hint().unwrap().contains("webhook_adopt()"),
        "{refusal:?}"
    );
    assert_eq!(contents(&database), before);
    assert_eq!(receiver.request_count(), 1);
}
