//! Monitoring: the five metrics of 002_ee77d7fe79fe0705 and the queries of 001_2e2ed73815a3bca9.

mod thresholds;
mod words;

use std::collections::HashMap;

use postgres::{GenericClient, Transaction};
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Guarded, Receiver};

/// The five as the document has them, the name and when to alert, and then ours.
const METRICS: [(&str, &str, f64); 11] = [
    ("webhook_delivery_success_rate", "<", 95.0),
    ("webhook_delivery_p95_latency", ">", 10.0),
    ("webhook_retry_rate", ">", 20.0),
    ("webhook_failed_count", ">", 10.0),
    ("webhook_avg_retries_per_delivery", ">", 1.5),
    ("webhook_attempt_failure_rate", ">", 50.0),
    ("webhook_open_breakers", ">", 0.0),
    ("webhook_oldest_due", ">", 60.0),
    ("webhook_parked", ">", 1000.0),
    ("webhook_dead_letters", ">", 100.0),
    ("webhook_disabled_endpoints", ">", 10.0),
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

/// Sends ten deliveries: eight arrive at once, one after two retries, and one fails after its third attempt.
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
    database.wait_until(
        "SELECT coalesce(sum(sent + failed), 0) = 10 FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'",
    );
    assert_eq!(receiver.request_count(), 8 + 3 + 3);
}

/// Counts deliveries as the worker does.
fn count(transaction: &mut Transaction, finished: &str) {
    let add = format!(
        "SELECT webhook.count_figures(jsonb_build_array(jsonb_build_object(
                    'endpoint_id', 1, lower(status), deliveries, 'retried', retried, 'retries', retries,
                    'delivery_latency', CASE status WHEN 'SENT' THEN
                        jsonb_build_object(webhook.latency_class(latency::interval), deliveries) END)))
         FROM (VALUES {finished}) AS finished (status, latency, deliveries, retried, retries)"
    );
    transaction.batch_execute(&add).unwrap();
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
    for counted in [
        "webhook_failed_count",
        "webhook_open_breakers",
        "webhook_oldest_due",
        "webhook_parked",
        "webhook_dead_letters",
        "webhook_disabled_endpoints",
    ] {
        assert_eq!(seen.remove(counted), Some((Some(0.0), false)), "{counted}");
    }
    assert_eq!(seen.len(), 5);
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
    assert_eq!(seen["webhook_failed_count"], (Some(1.0), false));
    // 5 of 14.
    assert_eq!(seen["webhook_attempt_failure_rate"], (Some(35.71), false));
    assert_eq!(seen["webhook_dead_letters"], (Some(1.0), false));

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
    let mut without_dead_letters = seen;
    without_dead_letters.insert("webhook_dead_letters".into(), (Some(0.0), false));
    assert_eq!(metrics(&mut database.connect()), without_dead_letters);
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
    let counted = "SELECT coalesce(sum(failed), 0) FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'";
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
fn what_was_finished_fifteen_minutes_ago_no_longer_counts() {
    let database = database();
    let mut client = database.connect();
    let mut transaction = client.transaction().unwrap();
    count(&mut transaction, "('SENT', '1 s', 1, 0, 0)");
    let earlier = "
        INSERT INTO webhook.stat (endpoint_id, grain, begins_at, attempts, failed, retried, retries, delivery_latency)
        VALUES (0, 'minute', date_trunc('minute', now()) - interval '15 min', 100, 100, 100, 500, '{\"200\": 99}')";
    transaction.batch_execute(earlier).unwrap();
    let seen = metrics(&mut transaction);
    assert_eq!(seen["webhook_delivery_success_rate"], (Some(100.0), false));
    assert_eq!(seen["webhook_retry_rate"], (Some(0.0), false));
    assert_eq!(seen["webhook_avg_retries_per_delivery"], (Some(0.0), false));
    assert_eq!(seen["webhook_failed_count"], (Some(0.0), false));
    assert!(seen["webhook_delivery_p95_latency"].0 < Some(2.0));
}

#[test]
fn figures_are_kept_by_endpoint_and_for_all_in_total_by_hour_and_by_minute() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/never", |_, _| Answer::status(500));
    for name in ["fine", "never"] {
        let url = receiver.url(&format!("/{name}"));
        database.add_endpoint_with(name, &url, &format!("'{{{name}}}', policy => 'fast'"));
    }
    database.execute(
        "SELECT webhook_emit('fine') FROM generate_series(1, 3); SELECT webhook_emit('never')",
    );
    database.wait_until(
        "SELECT coalesce(sum(sent + failed), 0) = 4 FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'",
    );
    let attempts = receiver.requests_to("/never").len() as i64;
    let counted = |endpoint: &str| -> Vec<i64> {
        let query = format!(
            "SELECT attempts, sent, failed, retries, grain,
                    (SELECT coalesce(sum(value::bigint), 0)::bigint FROM jsonb_each_text(attempt_latency)),
                    (SELECT coalesce(sum(value::bigint), 0)::bigint FROM jsonb_each_text(delivery_latency))
             FROM webhook.stat WHERE endpoint_id = coalesce((SELECT id FROM webhook.endpoint WHERE name = '{endpoint}'), 0)"
        );
        let rows = database.connect().query(&query, &[]).unwrap();
        let numbers = |row: &postgres::Row| [0, 1, 2, 3, 5, 6].map(|n| row.get::<_, i64>(n));
        // Two flushes, or an hour that ends, may divide the rest; their sum is the total.
        let mut sums: HashMap<String, [i64; 6]> = HashMap::new();
        for row in &rows {
            let sum = sums.entry(row.get(4)).or_default();
            let row = numbers(row);
            (0..6).for_each(|n| sum[n] += row[n]);
        }
        assert_eq!(sums.len(), 3);
        assert_eq!(sums["total"], sums["hour"]);
        assert_eq!(sums["total"], sums["minute"]);
        sums["total"].to_vec()
    };
    assert_eq!(counted("fine"), [3, 3, 0, 0, 3, 3]);
    assert_eq!(
        counted("never"),
        [attempts, 0, 1, attempts - 1, attempts, 0]
    );
    assert_eq!(
        counted("all"),
        [attempts + 3, 3, 1, attempts - 1, attempts + 3, 3]
    );
}

#[test]
fn a_look_planned_on_an_empty_table_reads_little_of_a_full_one() {
    let database = Cluster::idle().database("look");
    let mut client = database.connect();
    let looks = [
        "SELECT webhook.check_metrics()",
        "SELECT count(*) FROM webhook.problems('running', NULL)",
    ];
    for look in looks {
        client.batch_execute(look).unwrap();
    }
    // No statistics but those of the empty table.
    database.execute(
        "ALTER TABLE webhook.stat SET (autovacuum_enabled = off);
         INSERT INTO webhook.stat (endpoint_id, grain, begins_at)
         SELECT e, 'minute', date_trunc('minute', now()) - n * interval '1 min'
         FROM generate_series(0, 20) e, generate_series(0, 1439) n",
    );
    for look in looks {
        let explained = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {look}");
        let plan: serde_json::Value = client.query_one(&explained, &[]).unwrap().get(0);
        let pages = |kind: &str| plan[0]["Plan"][kind].as_i64().expect("a number of pages");
        let pages = pages("Shared Hit Blocks") + pages("Shared Read Blocks");
        assert!((1..150).contains(&pages), "{look} has read {pages} pages");
    }
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
