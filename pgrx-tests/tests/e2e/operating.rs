//! The functions that operate endpoints, whatever the name, the lock or the isolation.

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

use super::pausing::database;

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
    let cluster = Cluster::shared();
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

/// Waits until the worker has just kept house and told all alerts, which it does every 5 s. An alert about an
/// endpoint that is not there shows when: it goes unsaid. The first may go with alerts that were still to be told
/// after a delivery, and the second with the next housekeeping.
#[track_caller]
fn wait_for_a_sleeping_worker(database: &Database) {
    let nothing_to_tell = "SELECT NOT EXISTS (SELECT FROM webhook.alert)";
    database.wait_until(nothing_to_tell);
    for _ in 0..2 {
        database.execute("INSERT INTO webhook.alert (endpoint_id, kind) VALUES (0, 'closed')");
        database.wait_until(nothing_to_tell);
    }
}

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
