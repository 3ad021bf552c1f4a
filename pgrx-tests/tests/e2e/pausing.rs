//! Stopping an endpoint and letting it go on: webhook_pause(), webhook_resume(), webhook_reset_breaker().

use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::operated::{
    answer, assert_that, contents, fail, orders, test_endpoint, wait_for, wait_for_a_witness,
    wait_for_empty_queue,
};
use webhook_e2e::{Cluster, Database, Receiver, worker};

fn database() -> Database {
    Cluster::shared().database("pausing")
}

#[test]
fn a_paused_endpoint_gets_nothing_until_it_is_resumed() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let events = [(); 3].map(|()| database.emit("order.created", json!({})));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 0);
    assert_that(&database, "orders", "(state, kept_back) = ('PAUSED', 3)");

    let freed: i64 = database.query_one_value("SELECT webhook_resume('orders')");
    assert_eq!(freed, 3);
    for event in events {
        database.wait_for_status(event, "SENT");
    }
    assert_eq!(receiver.request_count(), 3);
    assert_that(&database, "orders", "state = 'ACTIVE' AND since IS NULL");
}

#[test]
fn what_is_in_flight_when_it_is_paused_is_finished_and_its_retry_waits() {
    let database = database();
    let receiver = orders(&database, "initial_delay = '1 ms'");
    receiver.hold("/orders");
    answer(&receiver, 500);
    database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    database.execute("SELECT webhook_pause('orders')");
    receiver.release("/orders");
    wait_for(
        &database,
        "orders",
        "(state, consecutive_failures, in_flight, kept_back) = ('PAUSED', 1, 0, 1)",
    );
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn pausing_again_changes_nothing() {
    let database = database();
    let _receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let since: String = database.query_one_value("SELECT since::text FROM webhook.endpoint_status");
    database.execute("SELECT webhook_pause('orders')");
    let still: String = database.query_one_value("SELECT since::text FROM webhook.endpoint_status");
    assert_eq!(since, still);
}

#[test]
fn pausing_and_resuming_tell_what_they_have_changed() {
    let database = database();
    let receiver = orders(&database, "");
    let call = |function: &str| -> i64 {
        database.query_one_value(&format!("SELECT webhook_{function}('orders')"))
    };
    assert_eq!(call("resume"), 0);
    assert_eq!(call("pause"), 1);
    assert_eq!(call("pause"), 0);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 2)");
    // None of these goes out with them.
    for later in [
        "deliver_at => now() + interval '1 h'",
        "deliver_at => 'infinity'",
        "expires_at => now() + interval '10 ms'",
    ] {
        database.execute(&format!("SELECT webhook_emit('order.created', {later})"));
    }
    database.wait_until("SELECT count(*) = 1 FROM webhook.dead_letter");
    assert_eq!(call("resume"), 2);
    database.wait_until("SELECT count(*) = 2 FROM webhook.delivery WHERE status = 'SENT'");
    assert_eq!(call("resume"), 0);

    // Retries that a closed breaker kept waiting, and all that an open one did.
    fail(&database, &receiver, 2);
    assert_eq!(call("resume"), 2);
    database.wait_until("SELECT count(*) = 4 FROM webhook.delivery WHERE status = 'SENT'");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    assert_eq!(call("resume"), 4);
    database.wait_until("SELECT count(*) = 8 FROM webhook.delivery WHERE status = 'SENT'");

    // A held endpoint stays held.
    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    database.emit("order.created", json!({}));
    assert_eq!((call("pause"), call("resume")), (1, 0));
}

#[test]
fn a_tenants_endpoints_are_paused_and_resumed_together_and_so_are_all() {
    let (database, receiver) = (database(), Receiver::start());
    for address in [
        "acme/orders",
        "acme/billing",
        "acme2/orders",
        "orders",
        "zeta/orders",
    ] {
        database.add_endpoint(address, &receiver.url(&format!("/{address}")));
    }
    let number = |sql: &str| -> i64 { database.query_one_value(&format!("SELECT {sql}")) };
    let stopped = || -> String {
        database.query_one_value(
            "SELECT coalesce(string_agg(endpoint, ' ' ORDER BY endpoint), '') FROM webhook.endpoint_status
             WHERE state = 'PAUSED'",
        )
    };
    assert_eq!(number("webhook_pause('acme/billing')"), 1);
    assert_eq!(stopped(), "acme/billing");
    assert_eq!(number("webhook_pause('acme/*')"), 1);
    assert_eq!(stopped(), "acme/billing acme/orders");
    let kept_back: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', tenant => 'acme')");
    receiver.wait_for_requests_to("/orders", 1);
    wait_for_a_witness(&database);
    assert_eq!(receiver.requests_to("/acme/orders").len(), 0);

    assert_eq!(number("webhook_pause('*')"), 3);
    assert_eq!(
        stopped(),
        "acme/billing acme/orders acme2/orders orders zeta/orders"
    );
    assert_eq!(number("webhook_resume('acme/*')"), 2);
    database.wait_for_status(kept_back, "SENT");
    assert_eq!(stopped(), "acme2/orders orders zeta/orders");
    assert_eq!(number("webhook_resume('*')"), 0);
    assert_eq!(stopped(), "");

    for function in ["webhook_pause", "webhook_resume"] {
        let unknown = database.refusal(&format!("SELECT {function}('acne/*')"));
        assert_eq!(*unknown.code(), SqlState::UNDEFINED_OBJECT);
        assert_eq!(unknown.message(), r#"tenant "acne" has no endpoint"#);
        assert_eq!(
            unknown.hint(),
            Some(r#"Did you mean "acme" or "acme2"?"#),
            "{unknown:?}"
        );
        let null = database.refusal(&format!("SELECT {function}(NULL)"));
        assert_eq!(*null.code(), SqlState::NULL_VALUE_NOT_ALLOWED);
        assert!(null.hint().is_some());
    }
    assert_eq!(stopped(), "");
}

#[test]
fn resume_sets_the_counter_to_0_and_waiting_retries_are_due_now() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 2);
    database.execute("SELECT webhook_pause('orders')");
    let chosen: Uuid = database.query_one_value(
        "WITH one AS (SELECT event_id FROM webhook.delivery_queue LIMIT 1)
         UPDATE webhook.delivery d SET next_attempt_at = now() + interval '2 h' FROM one WHERE d.event_id = one.event_id
         RETURNING d.event_id",
    );
    let planned: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    );
    let put_aside: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', deliver_at => 'infinity')");

    database.execute("SELECT webhook_resume('orders')");
    assert_that(
        &database,
        "orders",
        "consecutive_failures = 0 AND state = 'ACTIVE'",
    );
    database.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    wait_for_a_witness(&database);
    // The times that people chose are kept.
    for event in [chosen, planned, put_aside] {
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    }
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_410_disables_and_resume_lets_it_go_on() {
    let database = database();
    let receiver = orders(&database, "");
    answer(&receiver, 410);
    let refused = database.emit("order.created", json!({}));
    wait_for(
        &database,
        "orders",
        "(state, reason, failed) = ('DISABLED', 'gone', 1)",
    );
    answer(&receiver, 200);
    let kept_back = database.emit("order.created", json!({}));
    wait_for_a_witness(&database);
    assert_that(&database, "orders", "kept_back = 1");
    assert_eq!(receiver.request_count(), 1);

    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(kept_back, "SENT");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, failed) = ('ACTIVE', 0, 1) AND num_nonnulls(reason, since) = 0",
    );
    // What had failed for good is the operator's to replay.
    assert_eq!(database.delivery_status(refused).as_deref(), Some("FAILED"));
}

#[test]
fn a_policy_that_disables_where_others_open_is_resumed_too() {
    let database = database();
    let receiver = orders(&database, "on_trip = 'disable'");
    fail(&database, &receiver, 3);
    wait_for(
        &database,
        "orders",
        "(state, reason, consecutive_failures) = ('DISABLED', 'tripped', 3)",
    );
    database.execute("SELECT webhook_resume('orders')");
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('ACTIVE', 0)",
    );
}

/// The preset, but for its delays.
fn power5_in_milliseconds(database: &Database) {
    database.execute(
        "SELECT webhook_copy_policy('power5', 'power5_ms');
         UPDATE webhook.policy SET initial_delay = '1 ms', factor = 2 WHERE name = 'power5_ms'",
    );
}

/// 002: "Failed: exhausted 5 retries for one or more deliveries. No longer retrying automatically." And from there:
/// "Resume .. sets status=active, failure_count=0, retries pending deliveries (if any). If deliveries succeed, webhook
/// returns to Active state."
#[test]
fn power5_fails_when_retries_are_exhausted_and_resume_retries_what_is_pending() {
    let (database, receiver) = (database(), Receiver::start());
    power5_in_milliseconds(&database);
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'power5_ms'",
    );
    answer(&receiver, 500);
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    assert_that(
        &database,
        "orders",
        "(state, reason, consecutive_failures, failed) = ('DISABLED', 'exhausted', 6, 1)",
    );
    let pending = [(); 2].map(|()| database.emit("order.created", json!({})));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 6);
    assert_that(&database, "orders", "kept_back = 2");

    answer(&receiver, 200);
    database.execute("SELECT webhook_resume('orders')");
    for event in pending {
        database.wait_for_status(event, "SENT");
    }
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, queued) = ('ACTIVE', 0, 0) AND reason IS NULL",
    );
}

#[test]
fn resume_retries_what_was_waiting_when_another_delivery_exhausted_its_attempts() {
    let (database, receiver) = (database(), Receiver::start());
    power5_in_milliseconds(&database);
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'power5_ms'",
    );
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'power5_ms'");
    answer(&receiver, 500);
    let waiting = database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt");
    database.execute("UPDATE webhook.policy SET initial_delay = '1 ms' WHERE name = 'power5_ms'");
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    assert_that(&database, "orders", "(state, queued) = ('DISABLED', 1)");

    answer(&receiver, 200);
    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(waiting, "SENT");
    let attempts: i32 = database.query_one_value(&format!(
        "SELECT attempts FROM webhook.delivery WHERE event_id = '{waiting}'"
    ));
    assert_eq!(attempts, 2);
}

#[test]
fn a_single_final_failure_is_no_exhaustion() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'power5'");
    answer(&receiver, 404);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, failed) = ('DEGRADED', 1, 1)",
    );
}

#[test]
fn resume_closes_an_open_breaker_of_a_paused_endpoint() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_pause('orders')");
    database.execute("SELECT webhook_resume('orders')");
    assert_that(
        &database,
        "orders",
        "(state, trips, consecutive_failures) = ('ACTIVE', 0, 0)",
    );
    wait_for_empty_queue(&database);
    assert_eq!(receiver.request_count(), 6);
}

#[test]
fn an_endpoint_with_any_name_is_operated() {
    let database = database();
    let receiver = Receiver::start();
    let long = "n".repeat(200);
    for name in [
        r#"it's "quoted" \ 100%s %% %n"#,
        "ein Päckchen 📦",
        long.as_str(),
    ] {
        let quoted = name.replace('\'', "''");
        database.add_endpoint(&quoted, &receiver.url("/"));
        for function in ["pause", "resume", "reset_breaker"] {
            database.execute(&format!("SELECT webhook_{function}('{quoted}')"));
        }
        test_endpoint(&database, &quoted).assert_is("SENT", Some(200), None);
    }
}

// The breaker.

#[test]
fn reset_breaker_closes_it_now_and_everything_that_waits_is_sent() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    database.execute("SELECT webhook_reset_breaker('orders')");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips) = ('ACTIVE', 0, 0) AND num_nonnulls(reason, since, next_probe_at) = 0",
    );
    wait_for_empty_queue(&database);
    assert_eq!(receiver.request_count(), 3 + 4);
}

#[test]
fn a_probe_under_way_when_the_breaker_is_reset_counts_as_any_other() {
    let database = database();
    let receiver = orders(&database, "cooldown = '10 ms', max_cooldown = '10 ms'");
    answer(&receiver, 500);
    receiver.hold_after("/orders", 3);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 3)");
    wait_for(&database, "orders", "state = 'HALF_OPEN'");
    database.execute("SELECT webhook_pause('orders'); SELECT webhook_reset_breaker('orders')");
    receiver.release("/orders");
    wait_for(&database, "orders", "in_flight = 0");
    assert_that(
        &database,
        "orders",
        "(consecutive_failures, trips) = (1, 0) AND next_probe_at IS NULL",
    );
}

#[test]
fn reset_breaker_does_not_resume() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_pause('orders'); SELECT webhook_reset_breaker('orders')");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('PAUSED', 0)",
    );
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn what_needs_no_change_is_not_changed() {
    let database = database();
    let _receiver = orders(&database, "");
    let before = contents(&database);
    database.execute("SELECT webhook_reset_breaker('orders'); SELECT webhook_resume('orders')");
    assert_eq!(contents(&database), before);
}

#[test]
fn each_of_them_wakes_the_worker() {
    const PAUSE: &str = "SELECT webhook_pause('orders')";
    const OPEN: &str = "
        DELETE FROM webhook.breaker;
        INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
        SELECT id, 'OPEN', 3, 1, now(), now() + interval '1 h' FROM webhook.endpoint";
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1 h'")
        .start();
    let wakes = |stop: &str, go: &str| {
        let database = cluster.database("woken");
        let _receiver = orders(&database, "");
        let took = [(); 2].map(|()| {
            database.execute(stop);
            database.emit("order.created", json!({}));
            wait_for_a_sleeping_worker(&database);
            assert_that(&database, "orders", "kept_back = 1");
            let begun = Instant::now();
            database.execute(go);
            wait_for_empty_queue(&database);
            begun.elapsed()
        });
        // Not woken, it sleeps for 4 s and more. A machine may stand still for as long once, but hardly twice.
        let fastest = took.into_iter().min().unwrap();
        assert!(fastest < Duration::from_millis(2500), "{go}: {took:?}");
    };
    thread::scope(|scope| {
        for (stop, go) in [
            (PAUSE, "SELECT webhook_resume('orders')"),
            (OPEN, "SELECT webhook_resume('orders')"),
            (OPEN, "SELECT webhook_reset_breaker('orders')"),
            (OPEN, "CALL webhook_test('orders')"),
        ] {
            let wakes = &wakes;
            scope.spawn(move || wakes(stop, go));
        }
    });
}

/// Waits until the worker has just kept house and told what there was to tell, which it does every 5 s. An alert about an
/// endpoint that is not there shows when: it goes unsaid. The first may go with what was still to be told after a
/// delivery, and the second with the next housekeeping.
#[track_caller]
fn wait_for_a_sleeping_worker(database: &Database) {
    let nothing_to_tell = "SELECT NOT EXISTS (SELECT FROM webhook.alert)";
    database.wait_until(nothing_to_tell);
    for _ in 0..2 {
        database.execute("INSERT INTO webhook.alert (endpoint_id, kind) VALUES (0, 'closed')");
        database.wait_until(nothing_to_tell);
    }
}

// Names, locks, isolation.

#[test]
fn an_unknown_name_is_refused_with_the_close_ones() {
    let database = database();
    let _receiver = orders(&database, "");
    for name in ["orders_eu", "billing", "Invoices"] {
        database.add_endpoint(name, "http://127.0.0.1/");
    }
    let calls = [
        "SELECT webhook_pause('{}')",
        "SELECT webhook_resume('{}')",
        "SELECT webhook_reset_breaker('{}')",
        "CALL webhook_test('{}')",
    ];
    let before = contents(&database);
    for call in calls {
        let refusal = |name: &str| database.refusal(&call.replace("{}", name));
        let close = refusal("order");
        assert_eq!(*close.code(), SqlState::UNDEFINED_OBJECT, "{call}");
        assert_eq!(close.message(), r#"endpoint "order" does not exist"#);
        assert_eq!(
            close.hint(),
            Some(r#"Did you mean "orders" or "orders_eu"?"#)
        );
        assert_eq!(refusal("ordres").hint(), Some(r#"Did you mean "orders"?"#));
        assert_eq!(
            refusal("invoices").hint(),
            Some(r#"Did you mean "Invoices"?"#)
        );
        let far = refusal("xyz");
        let listed = "SELECT endpoint FROM webhook.endpoint_status lists them";
        assert!(far.hint().unwrap().contains(listed), "{far:?}");
    }
    assert_eq!(contents(&database), before);
}

#[test]
fn a_person_who_holds_an_endpoint_or_its_breaker_keeps_no_other_back() {
    let database = database();
    let receiver = orders(&database, "on_exhausted = 'disable', failure_threshold = 0");
    database.add_endpoint_with("free", &receiver.url("/free"), "policy => 'guarded'");
    fail(&database, &receiver, 1);
    for table in ["webhook.breaker", "webhook.endpoint"] {
        answer(&receiver, 500);
        let failures = database.query_one_value::<i64>("SELECT count(*) FROM webhook.attempt");
        let mut person = database.connect();
        let mut transaction = person.transaction().unwrap();
        let key = if table == "webhook.breaker" {
            "endpoint_id"
        } else {
            "id"
        };
        let lock = format!(
            "SELECT FROM {table} WHERE {key} = (SELECT id FROM webhook.endpoint WHERE name = 'orders') FOR UPDATE"
        );
        transaction.batch_execute(&lock).unwrap();

        let arrived = receiver.requests_to("/orders").len();
        database.emit("order.created", json!({}));
        receiver.wait_for_requests_to("/orders", arrived + 1);
        let events: Vec<Uuid> = (0..3)
            .map(|_| database.emit("order.created", json!({})))
            .collect();
        for event in &events {
            database.wait_until(&format!(
                "SELECT status = 'SENT' FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
                 WHERE d.event_id = '{event}' AND e.name = 'free'"
            ));
        }
        let in_flight: i64 = transaction
            .query_one(
                "SELECT in_flight FROM webhook.endpoint_status WHERE endpoint = 'orders'",
                &[],
            )
            .unwrap()
            .get(0);
        assert!(in_flight > 0, "{table}: settled past the lock");
        transaction.rollback().unwrap();
        database.wait_until(&format!(
            "SELECT count(*) = {failures} + 4 FROM webhook.attempt"
        ));
        database.execute(
            "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING';
             SELECT webhook_reset_breaker('orders')",
        );
        // The counter again has something to reset.
        fail(&database, &receiver, 1);
    }
}

#[test]
fn the_functions_of_an_open_transaction_keep_no_other_endpoint_back() {
    let database = database();
    let receiver = orders(&database, "");
    database.add_endpoint_with("free", &receiver.url("/free"), "'{free}'");
    fail(&database, &receiver, 3);
    for function in ["webhook_pause", "webhook_resume", "webhook_reset_breaker"] {
        let mut person = database.connect();
        let mut transaction = person.transaction().unwrap();
        transaction
            .batch_execute(&format!("SELECT {function}('orders')"))
            .unwrap();
        let event = database.emit("free", json!({}));
        database.wait_for_status(event, "SENT");
        transaction.rollback().unwrap();
    }
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('OPEN', 3)",
    );
}

#[test]
fn all_of_it_works_where_transactions_are_repeatable_read() {
    let database = database();
    for isolation in ["repeatable read", "serializable"] {
        let name = database.name();
        database.execute(&format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'"
        ));
        let before = worker::pid(&database);
        worker::terminate(&database, before);
        worker::successor(&database, before);

        let receiver = Receiver::start();
        database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'fast'");
        database.execute("SELECT webhook_pause('orders')");
        let event = database.emit("order.created", json!({}));
        test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
        assert_that(&database, "orders", "(state, kept_back) = ('PAUSED', 1)");
        database.execute("SELECT webhook_resume('orders')");
        database.wait_for_status(event, "SENT");
        answer(&receiver, 500);
        test_endpoint(&database, "orders").assert_is("FAILED", Some(500), Some("HTTP 500"));
        database.execute("SELECT webhook_reset_breaker('orders')");
        database.execute("SELECT webhook_remove_endpoint('orders')");
    }
}
