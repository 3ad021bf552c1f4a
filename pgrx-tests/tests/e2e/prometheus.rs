//! Metrics for Prometheus: `/metrics` of a relay, and `webhook-relay metrics`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use webhook_e2e::looking::{Metrics, print, role_with};
use webhook_e2e::{Answer, Cluster, Database, Looking, Receiver};

const HOSTILE: &str = "a\"b\\c{d=\"e\"} 1 <script> \u{202e}x é 👍";

/// Three deliveries to `orders` are sent, one of them at the second attempt; two to an endpoint of a hostile name
/// fail for good.
fn used_database(cluster: &Cluster) -> (Database, Receiver, Looking, String) {
    let database = cluster.database("prometheus");
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, number| match number {
        1 => Answer::status(503),
        _ => Answer::status(200),
    });
    receiver.respond("/broken", |_, _| Answer::status(404));
    database.add_endpoint_with("orders", &receiver.url("/orders"), "'{order.*}', 'fast'");
    database.add_endpoint_with(HOSTILE, &receiver.url("/broken"), "'{broken}', 'fast'");
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let looking = Looking::start(&connection, &[]);
    for event_type in [
        "order.created",
        "order.paid",
        "order.shipped",
        "broken",
        "broken",
    ] {
        database.emit(event_type, json!({}));
    }
    database.wait_until(
        "SELECT (attempts, sent, failed, retried, retries) = (6, 3, 2, 1, 1)
         FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'
         UNION ALL SELECT false LIMIT 1",
    );
    (database, receiver, looking, connection)
}

#[test]
fn the_official_parser_reads_what_was_delivered() {
    let (database, _receiver, looking, connection) = used_database(Cluster::relayed());
    let answer = looking.get("/metrics");
    assert_eq!(answer.status, 200, "{answer:?}");
    let content_type = answer.header("content-type");
    assert_eq!(
        content_type,
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let printed = print("metrics", &connection).expect("it prints");
    for text in [&answer.body, &printed] {
        let metrics = Metrics::parse(text);
        for family in &metrics.0 {
            let name = family["name"].as_str().expect("a name");
            assert!(name.starts_with("webhook_"), "{family}");
            assert!(
                ["gauge", "counter", "histogram"].contains(&family["type"].as_str().unwrap()),
                "{family}"
            );
            assert!(
                family["help"]
                    .as_str()
                    .is_some_and(|help| help.ends_with('.')),
                "{family}"
            );
            assert_eq!(
                text.matches(&format!("# TYPE {name} ")).count()
                    + text.matches(&format!("# TYPE {name}_total ")).count(),
                1
            );
        }
        let of_all = |name: &str| metrics.value(name, &json!({}));
        assert_eq!(of_all("webhook_attempts_total"), 6.0);
        assert_eq!(of_all("webhook_deliveries_sent_total"), 3.0);
        assert_eq!(of_all("webhook_deliveries_failed_total"), 2.0);
        assert_eq!(of_all("webhook_deliveries_retried_total"), 1.0);
        assert_eq!(of_all("webhook_retries_total"), 1.0);
        assert_eq!(of_all("webhook_dead_letters"), 2.0);
        assert_eq!(of_all("webhook_queued_deliveries"), 0.0);
        assert_eq!(of_all("webhook_endpoints"), 2.0);
        assert_eq!(of_all("webhook_endpoints_without_series"), 0.0);
        assert_eq!(of_all("webhook_delivering"), 1.0);
        assert_eq!(of_all("webhook_senders"), 1.0);
        let health: i32 = database.query_one_value(
            "SELECT array_position('{ok, warning, critical}', health) - 1 FROM webhook_status()",
        );
        assert_eq!(of_all("webhook_health"), f64::from(health));

        for (endpoint, attempts, sent, dead) in
            [("orders", 4.0, 3.0, 0.0), (HOSTILE, 2.0, 0.0, 2.0)]
        {
            let label = json!({ "endpoint": endpoint });
            let of = |name: &str| metrics.value(&format!("webhook_endpoint_{name}"), &label);
            assert_eq!(of("attempts_total"), attempts);
            assert_eq!(of("deliveries_sent_total"), sent);
            assert_eq!(of("dead_letters"), dead);
            assert_eq!(of("up"), 1.0);
            assert_eq!(of("attempt_duration_seconds_count"), attempts);
        }
        let failed = json!({"metric": "webhook_failed_count"});
        assert_eq!(metrics.value("webhook_metric_value", &failed), 2.0);
        assert_eq!(metrics.samples("webhook_metric_alert").len(), 11);
        for (name, number) in [("attempt_duration", 6.0), ("delivery_latency", 3.0)] {
            require_histogram(&metrics, &format!("webhook_{name}_seconds"), number);
        }
    }
}

/// Buckets only grow, and the last has all.
#[track_caller]
fn require_histogram(metrics: &Metrics, name: &str, number: f64) {
    let buckets = metrics.samples(&format!("{name}_bucket"));
    let end = |labels: &Value| match labels["le"].as_str() {
        Some("+Inf") => f64::INFINITY,
        end => end.and_then(|end| end.parse().ok()).expect("a number"),
    };
    let ends: Vec<(f64, f64)> = buckets
        .iter()
        .map(|(labels, value)| (end(labels), *value))
        .collect();
    assert!(
        ends.windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1),
        "{ends:?}"
    );
    assert_eq!(ends.last(), Some(&(f64::INFINITY, number)));
    assert_eq!(metrics.value(&format!("{name}_count"), &json!({})), number);
    let sum = metrics.value(&format!("{name}_sum"), &json!({}));
    assert!(sum > 0.0 && sum < 60.0 * number, "{sum}");
}

#[test]
fn metrics_without_the_level_read_say_what_grants_it() {
    let cluster = Cluster::relayed();
    let database = cluster.database("prometheus");
    let connection = role_with(cluster, &database, &["relay"]);
    let looking = Looking::start(&connection, &["--page"]);
    let role = format!("relay_of_{}", database.name());
    let grant = format!("SELECT webhook_grant('{role}', 'read')");
    let sentence = format!("role '{role}' needs the level read to see figures: {grant} gives it\n");
    for path in ["/metrics", "/"] {
        let answer = looking.get(path);
        assert_eq!((answer.status, answer.body), (403, sentence.clone()));
    }
    for command in ["metrics", "page"] {
        assert_eq!(
            print(command, &connection),
            Err(format!("webhook-relay: {sentence}"))
        );
    }
    database.execute(&grant);
    for path in ["/metrics", "/"] {
        assert_eq!(looking.get(path).status, 200);
    }
}

#[test]
fn endpoints_beyond_the_first_thousand_have_no_series() {
    let cluster = Cluster::relayed();
    let database = cluster.database("prometheus");
    database.execute(
        "INSERT INTO webhook.endpoint (name, url) SELECT 'e' || n, 'http://127.0.0.1:9/' FROM generate_series(1, 1003) AS n",
    );
    let connection = role_with(cluster, &database, &["read"]);
    let metrics = Metrics::parse(&print("metrics", &connection).expect("it prints"));
    assert_eq!(metrics.samples("webhook_endpoint_up").len(), 1000);
    assert_eq!(
        metrics.value("webhook_endpoints_without_series", &json!({})),
        3.0
    );
    assert_eq!(metrics.value("webhook_endpoints", &json!({})), 1003.0);
}

#[test]
fn a_look_leaves_no_connection_behind() {
    let cluster = Cluster::relayed();
    let database = cluster.database("prometheus");
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let looking = Looking::start(&connection, &["--page"]);
    let sessions = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'relay_read_of_{}'",
        database.name()
    );
    let alone = format!("SELECT ({sessions}) = 1");
    // The second one, by which it looked for a pooler, has ended.
    database.wait_until(&alone);
    for path in ["/metrics", "/"] {
        assert_eq!(looking.get(path).status, 200);
        database.wait_until(&alone);
    }
}

#[test]
fn a_look_that_has_to_wait_gives_up_and_delivery_goes_on() {
    let cluster = Cluster::relayed();
    let database = cluster.database("prometheus");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let looking = Looking::start(&connection, &["--page"]);
    let mut person = database.connect();
    let mut transaction = person.transaction().expect("it begins");
    transaction
        .batch_execute("LOCK TABLE webhook.removed_endpoint IN ACCESS EXCLUSIVE MODE")
        .expect("nobody else has it");
    let asked = Instant::now();
    let answer = std::thread::scope(|scope| {
        let looking = scope.spawn(|| looking.get("/"));
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
        looking.join().expect("it answers")
    });
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("lock timeout"), "{answer:?}");
    assert!(asked.elapsed() < Duration::from_secs(9));
    transaction.rollback().expect("it ends");
    assert_eq!(looking.get("/").status, 200);
}

#[test]
fn a_database_without_the_extension_is_told_as_that() {
    let cluster = Cluster::relayed();
    let database = cluster.plain_database("prometheus");
    let connection = cluster.address(cluster.port(), database.name());
    let said = print("metrics", &connection).expect_err("there is nothing to print");
    assert!(
        said.contains("does not have the extension webhook of this version"),
        "{said}"
    );
}

#[test]
fn where_endpoints_take_too_long_to_count_the_other_figures_are_still_told() {
    let cluster = Cluster::relayed();
    let database = cluster.database("prometheus");
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    let connection = role_with(cluster, &database, &["read"]);
    database.execute(
        "ALTER VIEW webhook.endpoint_status RENAME TO quick_status;
         CREATE VIEW webhook.endpoint_status AS SELECT * FROM webhook.quick_status WHERE pg_sleep(20) IS NOT NULL;
         GRANT SELECT ON webhook.endpoint_status TO PUBLIC",
    );
    let asked = Instant::now();
    let metrics = Metrics::parse(&print("metrics", &connection).expect("it prints"));
    assert!(
        asked.elapsed() < Duration::from_secs(9),
        "a scrape has 10 s"
    );
    let of_all = |name: &str| metrics.value(name, &json!({}));
    assert_eq!(
        (
            of_all("webhook_endpoints"),
            of_all("webhook_endpoints_without_series")
        ),
        (1.0, 1.0)
    );
    assert_eq!(metrics.samples("webhook_endpoint_up").len(), 0);
    let refusal = print("page", &connection).expect_err("it has nothing to show");
    assert!(
        refusal.contains("the database took longer than 4 s to count"),
        "{refusal}"
    );
}
