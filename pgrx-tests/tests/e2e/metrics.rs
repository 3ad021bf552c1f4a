//! Monitoring: the five metrics of 002_ee77d7fe79fe0705 and the queries of 001_2e2ed73815a3bca9.

use std::collections::HashMap;

use postgres::{GenericClient, Transaction};
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Guarded, Receiver};

/// As the document has them: the name, and when to alert.
const METRICS: [(&str, &str, f64); 5] = [
    ("webhook_delivery_success_rate", "<", 95.0),
    ("webhook_delivery_p95_latency", ">", 10.0),
    ("webhook_retry_rate", ">", 20.0),
    ("webhook_failed_count", ">", 10.0),
    ("webhook_avg_retries_per_delivery", ">", 1.5),
];

/// The value of each metric, and whether it is cause for alarm.
type Metrics = HashMap<String, (Option<f64>, bool)>;

fn metrics(client: &mut impl GenericClient) -> Metrics {
    let query = "SELECT metric, value::float8, alert FROM webhook.metrics";
    let rows = client.query(query, &[]).unwrap();
    (rows.iter())
        .map(|row| (row.get(0), (row.get(1), row.get(2))))
        .collect()
}

fn database() -> Database {
    Cluster::shared().database("metrics")
}

/// Of ten deliveries eight are sent at once, one after two retries, and one fails after its third attempt.
fn deliver_a_known_mix(database: &Database, keep_sent: bool) {
    let receiver = Receiver::start();
    receiver.respond("/third", |_, number| {
        Answer::status(if number < 3 { 500 } else { 200 })
    });
    receiver.respond("/never", |_, _| Answer::status(500));
    database.execute(&format!(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, failure_threshold, keep_sent)
         VALUES ('mixed', 3, 'fixed', '50 ms', 0, 0, 0, {keep_sent})"
    ));
    for (name, events) in [("at_once", 8), ("third", 1), ("never", 1)] {
        let url = receiver.url(&format!("/{name}"));
        database.add_endpoint_with(name, &url, &format!("'{{{name}}}', policy => 'mixed'"));
        database.execute(&format!(
            "SELECT webhook_emit('{name}') FROM generate_series(1, {events})"
        ));
    }
    database.wait_until("SELECT coalesce(sum(deliveries), 0) = 10 FROM webhook.tally");
    assert_eq!(receiver.request_count(), 8 + 3 + 3);
}

#[test]
fn the_metrics_have_the_names_and_thresholds_of_the_document() {
    let query = "SELECT metric, alert_when, alert_threshold::float8 FROM webhook.metrics";
    let rows = database().connect().query(query, &[]).unwrap();
    let seen: Vec<(&str, &str, f64)> = (rows.iter())
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    assert_eq!(seen, METRICS);
}

#[test]
fn without_deliveries_there_is_nothing_to_measure_and_no_alert() {
    let mut seen = metrics(&mut database().connect());
    assert_eq!(
        seen.remove("webhook_failed_count"),
        Some((Some(0.0), false))
    );
    assert_eq!(seen.len(), 4);
    assert!(
        seen.values().all(|metric| *metric == (None, false)),
        "{seen:?}"
    );
}

#[test]
fn the_metrics_of_a_known_mix_are_right_and_stay_so_without_the_history() {
    let database = database();
    deliver_a_known_mix(&database, true);
    let seen = metrics(&mut database.connect());
    assert_eq!(seen["webhook_delivery_success_rate"], (Some(90.0), true));
    assert_eq!(seen["webhook_retry_rate"], (Some(20.0), false));
    assert_eq!(seen["webhook_avg_retries_per_delivery"], (Some(0.4), false));
    assert_eq!(seen["webhook_failed_count"], (Some(0.0), false));

    let p95: f64 = database.query_one_value(
        "SELECT percentile_disc(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM completed_at - created_at)::float8)
         FROM webhook.delivery WHERE status = 'SENT'",
    );
    assert!(p95 >= 0.1, "it had two retries: {p95} s");
    let (latency, alert) = seen["webhook_delivery_p95_latency"];
    let latency = latency.expect("something was sent");
    // At most 9% too high, and rounded to milliseconds.
    let allowed = p95 - 0.0005..=p95 * 1.091 + 0.0005;
    assert!(allowed.contains(&latency), "{latency} s instead of {p95} s");
    assert!(!alert);

    database.execute("TRUNCATE webhook.delivery_history; DELETE FROM webhook.dead_letter");
    assert_eq!(metrics(&mut database.connect()), seen);
}

#[test]
fn the_metrics_are_right_where_no_history_is_kept() {
    let database = database();
    deliver_a_known_mix(&database, false);
    let kept: i64 = database.query_one_value("SELECT count(*) FROM webhook.delivery_history");
    assert_eq!(kept, 0);
    let seen = metrics(&mut database.connect());
    assert_eq!(seen["webhook_delivery_success_rate"], (Some(90.0), true));
    assert_eq!(seen["webhook_retry_rate"], (Some(20.0), false));
    assert_eq!(seen["webhook_avg_retries_per_delivery"], (Some(0.4), false));
    let latency = seen["webhook_delivery_p95_latency"].0;
    assert!((0.1..10.0).contains(&latency.unwrap()), "{latency:?}");
}

#[test]
fn what_fails_without_a_request_counts_as_failed() {
    let guarded = Guarded::with("when_open = 'fail'");
    let tried_once = guarded.open();
    guarded.emit(2);
    let counted = "SELECT coalesce(sum(deliveries), 0) FROM webhook.tally WHERE status = 'FAILED'";
    let database = &guarded.database;
    database.wait_until(&format!("SELECT ({counted}) = 2"));
    let seen = metrics(&mut database.connect());
    assert_eq!(seen["webhook_delivery_success_rate"], (Some(0.0), true));

    // One that has had a retry expires.
    database.execute(&format!(
        "UPDATE webhook.delivery SET attempts = 2, expires_at = now() WHERE event_id = '{}'; SELECT webhook.wake()",
        tried_once[0]
    ));
    database.wait_until(&format!("SELECT ({counted}) = 3"));
    let seen = metrics(&mut database.connect());
    assert_eq!(seen["webhook_retry_rate"].0, Some(33.33));
    assert_eq!(seen["webhook_avg_retries_per_delivery"].0, Some(0.333));
}

#[test]
fn each_metric_alerts_beyond_its_threshold_and_not_at_it() {
    // Finished deliveries as (status, latency, deliveries, retried, retries), and disabled endpoints.
    let cases = [
        (
            "webhook_delivery_success_rate",
            "('SENT', '1 s', 95, 0, 0), ('FAILED', '1 s', 5, 0, 0)",
            0,
            false,
        ),
        (
            "webhook_delivery_success_rate",
            "('SENT', '1 s', 94, 0, 0), ('FAILED', '1 s', 6, 0, 0)",
            0,
            true,
        ),
        (
            "webhook_delivery_success_rate",
            "('FAILED', '1 s', 1, 0, 0)",
            0,
            true,
        ),
        (
            "webhook_delivery_p95_latency",
            "('SENT', '9 s', 95, 0, 0), ('SENT', '11 s', 5, 0, 0)",
            0,
            false,
        ),
        (
            "webhook_delivery_p95_latency",
            "('SENT', '9 s', 94, 0, 0), ('SENT', '11 s', 6, 0, 0)",
            0,
            true,
        ),
        (
            "webhook_delivery_p95_latency",
            "('SENT', '9 s', 1, 0, 0), ('FAILED', '1 h', 99, 0, 0)",
            0,
            false,
        ),
        (
            "webhook_retry_rate",
            "('SENT', '1 s', 90, 10, 10), ('FAILED', '1 s', 10, 10, 10)",
            0,
            false,
        ),
        (
            "webhook_retry_rate",
            "('SENT', '1 s', 90, 11, 11), ('FAILED', '1 s', 10, 10, 10)",
            0,
            true,
        ),
        (
            "webhook_failed_count",
            "('SENT', '1 s', 1, 0, 0)",
            10,
            false,
        ),
        ("webhook_failed_count", "('SENT', '1 s', 1, 0, 0)", 11, true),
        (
            "webhook_avg_retries_per_delivery",
            "('SENT', '1 s', 90, 50, 130), ('FAILED', '1 s', 10, 10, 20)",
            0,
            false,
        ),
        (
            "webhook_avg_retries_per_delivery",
            "('SENT', '1 s', 90, 50, 131), ('FAILED', '1 s', 10, 10, 20)",
            0,
            true,
        ),
    ];
    let database = database();
    for (metric, finished, disabled, alert) in cases {
        let mut client = database.connect();
        let mut transaction = client.transaction().unwrap();
        count(&mut transaction, finished);
        let disable = format!(
            "INSERT INTO webhook.endpoint (name, url, disabled_at, disabled_reason)
             SELECT 'endpoint ' || n, 'http://127.0.0.1:9/', now(), 'broken' FROM generate_series(1, {disabled}) AS n"
        );
        transaction.batch_execute(&disable).unwrap();
        let seen = metrics(&mut transaction)[metric];
        assert_eq!(seen.1, alert, "{metric} is {:?} with {finished}", seen.0);
    }
}

#[test]
fn what_was_finished_a_day_ago_no_longer_counts() {
    let database = database();
    let mut client = database.connect();
    let mut transaction = client.transaction().unwrap();
    count(&mut transaction, "('SENT', '1 s', 1, 0, 0)");
    let yesterday = "
        INSERT INTO webhook.tally (endpoint_id, hour, status, latency_class, deliveries, retried, retries)
        VALUES (1, date_trunc('hour', now()) - interval '25 hours', 'FAILED', 80, 100, 100, 500)";
    transaction.batch_execute(yesterday).unwrap();
    let seen = metrics(&mut transaction);
    assert_eq!(seen["webhook_delivery_success_rate"], (Some(100.0), false));
    assert_eq!(seen["webhook_retry_rate"], (Some(0.0), false));
    assert_eq!(seen["webhook_avg_retries_per_delivery"], (Some(0.0), false));
}

/// Counts deliveries as the worker does.
fn count(transaction: &mut Transaction, finished: &str) {
    let add = format!(
        "SELECT webhook.add_tally(array_agg(1), array_agg(status), array_agg(webhook.latency_class(latency::interval)),
                    array_agg(deliveries), array_agg(retried), array_agg(retries))
         FROM (VALUES {finished}) AS finished (status, latency, deliveries, retried, retries)"
    );
    transaction.batch_execute(&add).unwrap();
}

#[test]
fn the_monitoring_queries_of_the_document_have_an_equivalent() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/gone", |_, _| Answer::status(404));
    database.add_endpoint_with(
        "gone",
        &receiver.url("/gone"),
        "'{order.*}', policy => 'fast'",
    );
    database.add_endpoint_with(
        "fine",
        &receiver.url("/fine"),
        "'{invoice.*}', policy => 'fast'",
    );
    let types = ["order.created", "order.paid", "order.created"];
    let failed = types.map(|event_type| database.emit(event_type, json!({})));
    let sent = database.emit("invoice.created", json!({}));
    for event in failed {
        database.wait_for_status(event, "FAILED");
    }
    database.wait_for_status(sent, "SENT");

    let mut client = database.connect();
    for source in [
        "webhook.delivery WHERE status = 'FAILED'",
        "webhook.dead_letter",
    ] {
        let by_type = format!(
            "SELECT event_type, count(*) AS failed_count,
                    max(created_at) = (SELECT created_at FROM webhook.event v
                                       WHERE v.event_type = f.event_type ORDER BY created_at DESC LIMIT 1)
             FROM (SELECT * FROM {source}) f GROUP BY event_type ORDER BY failed_count DESC"
        );
        let rows = client.query(&by_type, &[]).unwrap();
        let seen: Vec<(&str, i64, bool)> = (rows.iter())
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect();
        assert_eq!(seen, [("order.created", 2, true), ("order.paid", 1, true)]);

        let recent = format!(
            "SELECT event_id, event_type, attempts, last_error, created_at FROM {source} ORDER BY created_at DESC LIMIT 20"
        );
        let rows = client.query(&recent, &[]).unwrap();
        let seen: Vec<(Uuid, &str, i32, &str)> = (rows.iter())
            .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
            .collect();
        let newest_first = [2, 1, 0].map(|index| (failed[index], types[index], 1, "HTTP 404"));
        assert_eq!(seen, newest_first);
    }
}
