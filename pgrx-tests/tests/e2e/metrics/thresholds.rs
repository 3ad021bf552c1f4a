//! Each metric alerts beyond its threshold and not at it.

use webhook_e2e::Cluster;

use super::{count, database, metrics};

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
            "('SENT', '1 s', 900, 0, 0), ('FAILED', '1 s', 10, 0, 0)",
            0,
            false,
        ),
        (
            "webhook_failed_count",
            "('SENT', '1 s', 900, 0, 0), ('FAILED', '1 s', 11, 0, 0)",
            0,
            true,
        ),
        (
            "webhook_disabled_endpoints",
            "('SENT', '1 s', 1, 0, 0)",
            10,
            false,
        ),
        (
            "webhook_disabled_endpoints",
            "('SENT', '1 s', 1, 0, 0)",
            11,
            true,
        ),
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
fn what_is_wrong_at_this_moment_alerts_beyond_its_threshold_and_not_at_it() {
    const QUEUE: &str = "INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, created_at)
                         SELECT gen_random_uuid(), e.id, 'order.created', 9, now() - ";
    let queue = |state: &str, due: &str, count: i32| {
        format!(
            "UPDATE webhook.endpoint SET {state} WHERE name = 'endpoint 1';
             {QUEUE} interval '{due}', now() - interval '{due}'
             FROM webhook.endpoint e, generate_series(1, {count}) WHERE e.name = 'endpoint 1'"
        )
    };
    let open = |count: i32| {
        format!(
            "INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
             SELECT id, 'OPEN', 5, 1, now(), now() FROM webhook.endpoint ORDER BY id LIMIT {count}"
        )
    };
    let dead = |count: i32| {
        format!(
            "INSERT INTO webhook.dead_letter (event_id, endpoint_id, event_type, status, max_attempts, completed_at, reason, last_error)
             SELECT gen_random_uuid(), 1, t.type, 'FAILED', 1, now(), 'status', 'HTTP 500'
             FROM generate_series(1, {count}) n, (VALUES ('order.created'), ('webhook.endpoint.opened')) t (type)"
        )
    };
    let attempts = |attempts: i32, sent: i32| {
        format!(
            r#"SELECT webhook.count_figures('[{{"endpoint_id": 1, "attempts": {attempts}, "sent": {sent}}}]')"#
        )
    };
    // Among a hundred endpoints one may be down.
    let cases = [
        ("webhook_open_breakers", 99, open(1), Some(1.0), true),
        ("webhook_open_breakers", 100, open(1), Some(1.0), false),
        ("webhook_open_breakers", 100, open(2), Some(2.0), true),
        (
            "webhook_oldest_due",
            1,
            queue("paused_at = NULL", "59 s", 1),
            Some(59.0),
            false,
        ),
        (
            "webhook_oldest_due",
            1,
            queue("paused_at = NULL", "61 s", 1),
            Some(61.0),
            true,
        ),
        // A person has paused it.
        (
            "webhook_oldest_due",
            1,
            queue("paused_at = now()", "61 s", 1),
            Some(0.0),
            false,
        ),
        (
            "webhook_parked",
            1,
            queue("paused_at = now()", "1 s", 1000),
            Some(1000.0),
            false,
        ),
        (
            "webhook_parked",
            1,
            queue("paused_at = now()", "1 s", 1001),
            Some(1001.0),
            true,
        ),
        (
            "webhook_parked",
            1,
            queue("paused_at = NULL", "1 s", 1001),
            Some(0.0),
            false,
        ),
        ("webhook_dead_letters", 1, dead(100), Some(100.0), false),
        ("webhook_dead_letters", 1, dead(101), Some(101.0), true),
        (
            "webhook_attempt_failure_rate",
            1,
            attempts(4, 0),
            None,
            false,
        ),
        (
            "webhook_attempt_failure_rate",
            1,
            attempts(6, 3),
            Some(50.0),
            false,
        ),
        (
            "webhook_attempt_failure_rate",
            1,
            attempts(5, 2),
            Some(60.0),
            true,
        ),
    ];
    let database = Cluster::idle().database("gauges");
    for (metric, endpoints, cause, value, alert) in cases {
        let mut client = database.connect();
        let mut transaction = client.transaction().unwrap();
        let add = format!(
            "INSERT INTO webhook.endpoint (name, url, origin)
             SELECT 'endpoint ' || n, 'http://127.0.0.1:9/', webhook.origin() FROM generate_series(1, {endpoints}) AS n"
        );
        transaction.batch_execute(&add).unwrap();
        transaction.batch_execute(&cause).unwrap();
        let seen = metrics(&mut transaction)[metric];
        assert_eq!(seen, (value, alert), "{metric} with {cause}");
    }
}
