//! Each metric is said in words.

use webhook_e2e::Cluster;

use super::METRICS;

#[test]
fn a_metric_is_said_in_words_with_the_threshold_that_it_is_beyond() {
    let database = Cluster::idle().database("words");
    let beyond = [
        (
            "webhook_delivery_success_rate",
            "92.10",
            "92.1% of deliveries succeeded in the last 15 minutes, below 95%",
        ),
        (
            "webhook_delivery_p95_latency",
            "12.300",
            "95% of deliveries took up to 12.3 s from emit to success in the last 15 minutes, above 10 s",
        ),
        (
            "webhook_retry_rate",
            "33.33",
            "33.33% of deliveries needed a retry in the last 15 minutes, above 20%",
        ),
        (
            "webhook_failed_count",
            "11",
            "11 deliveries failed in the last 15 minutes, above 10",
        ),
        (
            "webhook_avg_retries_per_delivery",
            "1.600",
            "a delivery needed 1.6 retries on average in the last 15 minutes, above 1.5",
        ),
        (
            "webhook_attempt_failure_rate",
            "60.00",
            "60% of attempts failed in the last 15 minutes, above 50%",
        ),
        ("webhook_open_breakers", "3", "3 circuit breakers are open"),
        (
            "webhook_oldest_due",
            "305.2",
            "the oldest due delivery has waited for 5 minutes, above 60 s",
        ),
        (
            "webhook_parked",
            "10000",
            "at least 10000 deliveries are due at endpoints that nothing is sent to, above 1000",
        ),
        (
            "webhook_dead_letters",
            "101",
            "101 dead letters are kept, above 100",
        ),
        (
            "webhook_disabled_endpoints",
            "11",
            "11 endpoints are disabled, above 10",
        ),
    ];
    assert_eq!(beyond.map(|(metric, ..)| metric), METRICS.map(|(m, ..)| m));
    let within = [
        (
            "webhook_delivery_success_rate",
            "NULL",
            "there is too little to measure in the last 15 minutes",
        ),
        (
            "webhook_failed_count",
            "1",
            "1 delivery failed in the last 15 minutes",
        ),
        (
            "webhook_avg_retries_per_delivery",
            "1.000",
            "a delivery needed 1 retry on average in the last 15 minutes",
        ),
        ("webhook_open_breakers", "0", "no circuit breakers are open"),
        ("webhook_oldest_due", "0", "no delivery is due"),
        (
            "webhook_parked",
            "1",
            "1 delivery is due at endpoints that nothing is sent to",
        ),
        ("webhook_dead_letters", "1", "1 dead letter is kept"),
        ("webhook_disabled_endpoints", "1", "1 endpoint is disabled"),
    ];
    let said = |metric: &str, value: &str, alert: bool| -> String {
        database.query_one_value(&format!(
            "SELECT webhook.metric_in_words((m.metric, {value}, m.unit, m.alert_when, m.alert_threshold, {alert}, m.meaning))
             FROM webhook.metrics m WHERE m.metric = '{metric}'"
        ))
    };
    for (metric, value, words) in beyond {
        assert_eq!(said(metric, value, true), words);
    }
    for (metric, value, words) in within {
        assert_eq!(said(metric, value, false), words);
    }
    // The only one that is open has a name, also while its probe is out.
    database.add_endpoint("acme/orders", "http://127.0.0.1:9/");
    database.add_endpoint("other", "http://127.0.0.1:9/");
    database.execute(
        "INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 5, 1, now() - interval '3 min', now() FROM webhook.endpoint WHERE name = 'orders'",
    );
    let named = "the circuit breaker of endpoint \"acme/orders\" has been open for 3 minutes";
    assert_eq!(said("webhook_open_breakers", "1", true), named);
    database.execute(
        "UPDATE webhook.breaker SET state = 'HALF_OPEN', probe_event_id = gen_random_uuid(), probe_claim_seq = 1",
    );
    assert_eq!(said("webhook_open_breakers", "1", true), named);
}
