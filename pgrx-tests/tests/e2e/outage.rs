//! An outage, as people who watch see it: something turns red within a minute, is told once, and so is its end.

use std::time::{Duration, Instant};

use serde_json::Value;
use webhook_e2e::alerts::{Listener, add_endpoint, answer, emit, subscribe, wait_for_state};
use webhook_e2e::{Cluster, Database, Receiver, wait};

fn database() -> Database {
    Cluster::shared().database("outage")
}

const ALERTING: &str = "SELECT alert FROM webhook.metrics WHERE metric = 'webhook_open_breakers'";
const ALARM: &str =
    "SELECT EXISTS (SELECT FROM webhook.alarm WHERE metric = 'webhook_open_breakers')";

/// The events about the metric, in the order in which they came.
fn events(receiver: &Receiver) -> Vec<Value> {
    (receiver.requests_to("/watcher").iter())
        .map(|request| request.json())
        .filter(|event| event["data"]["metric"] == "webhook_open_breakers")
        .collect()
}

#[test]
fn an_outage_turns_red_within_a_minute_and_its_beginning_and_end_are_told_once() {
    let (database, receiver) = (database(), Receiver::start());
    subscribe(&database, &receiver, "watcher", "webhook.metric.*", "");
    add_endpoint(&database, &receiver, "refusing", "", "");
    answer(&receiver, "refusing", 503);
    assert!(!database.query_one_value::<bool>(ALERTING));
    let health = "SELECT health FROM webhook_status()";
    assert_eq!(database.query_one_value::<String>(health), "ok");

    let begun = Instant::now();
    emit(&database, "refusing", 10);
    wait_for_state(&database, "refusing", "OPEN");
    database.wait_until(ALERTING);
    database.wait_until(ALARM);
    let told = wait::until("the event", || events(&receiver).pop().ok_or("none"));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(told["type"], "webhook.metric.raised");
    let said = "the circuit breaker of endpoint \"refusing\" has been open for ";
    let error = told["data"]["error"].as_str().unwrap();
    assert!(error.starts_with(said), "{error}");
    assert_eq!(told["data"]["database"], database.name());
    let status = database.connect();
    let (health, reason): (String, String) = {
        let mut status = status;
        let row = status
            .query_one("SELECT health, reason FROM webhook_status()", &[])
            .unwrap();
        (row.get(0), row.get(1))
    };
    assert_eq!(health, "warning");
    assert!(reason.contains(said), "{reason}");
    assert!(reason.contains(" (webhook_open_breakers)"), "{reason}");
    let said = format!(
        "WARNING:  webhook metric webhook_open_breakers of database \"{}\": alert: {error}",
        database.name()
    );
    wait::until("the log", || {
        let log = Cluster::shared().log();
        match log.matches(&said).count() {
            1 => Ok(()),
            count => Err(count),
        }
    });

    // It wavers, and that is told once a minute at most.
    answer(&receiver, "refusing", 200);
    database.execute("SELECT webhook_reset_breaker('refusing')");
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    assert!(!database.query_one_value::<bool>(ALERTING));
    let mut listener = Listener::new(&database);
    let checks = "SELECT webhook.check_metrics()";
    assert!(!database.query_one_value::<bool>(checks));
    assert!(database.query_one_value::<bool>(ALARM));
    database.execute("UPDATE webhook.alarm SET raised_at = now() - interval '61 s'");
    database.wait_until(&format!("SELECT NOT ({ALARM})"));
    let told = wait::until("the end", || match events(&receiver) {
        events if events.len() == 2 => Ok(events),
        events => Err(events),
    });
    assert_eq!(told[1]["type"], "webhook.metric.cleared");
    assert_eq!(told[1]["data"]["error"], "no circuit breakers are open");
    listener.texts(&database);
    assert_eq!(events(&receiver).len(), 2);
}

#[test]
fn a_breaker_that_our_own_events_have_opened_causes_no_other_event() {
    let (database, receiver) = (database(), Receiver::start());
    subscribe(&database, &receiver, "watcher", "webhook.metric.*", "");
    add_endpoint(
        &database,
        &receiver,
        "refusing",
        "failure_threshold = 0",
        "",
    );
    database
        .execute("UPDATE webhook.endpoint SET event_types = '{webhook.*}' WHERE name = 'refusing'");
    database.execute(
        "INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 5, 1, now(), now() + interval '1 h' FROM webhook.endpoint WHERE name = 'refusing'",
    );
    database.wait_until(ALARM);
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
    let emitted = "SELECT count(*) FROM webhook.event WHERE event_type LIKE 'webhook.metric.%'";
    assert_eq!(database.query_one_value::<i64>(emitted), 0);
}
