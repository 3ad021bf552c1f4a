//! Metrics in the text format of Prometheus: `/metrics`, and `webhook-relay metrics`.
//!
//! The names are those of the columns of metrics/*.sql. Every metric that grows with the endpoints is called
//! `webhook_endpoint_`, so that nobody adds it to the figure of all of them, and is there for 1,000 endpoints at
//! most.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::figures::{Figures, Refusal};
use crate::target::Target;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const OF_DATABASE: &str = include_str!("metrics/database.sql");
const OF_ENDPOINTS: &str = include_str!("metrics/endpoints.sql");

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gauge,
    Counter,
    /// The ends of its classes are these powers of two, in milliseconds: webhook.stat has eight classes to a
    /// doubling, so each of them lies within one of these.
    Histogram(&'static [u32]),
}

use Kind::{Counter, Gauge, Histogram};

const ATTEMPT_BUCKETS: &[u32] = &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
/// A delivery may be retried for days.
const DELIVERY_BUCKETS: &[u32] = &[3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 26];

type Family = (&'static str, Kind, &'static str);

const DATABASE: &[Family] = &[
    (
        "health",
        Gauge,
        "Health of delivery: 0 is ok, 1 warning, 2 critical.",
    ),
    (
        "delivering",
        Gauge,
        "1 while the worker or a relay delivers, else 0.",
    ),
    ("senders", Gauge, "Senders: the worker and relays."),
    (
        "in_flight_requests",
        Gauge,
        "Requests that wait for their answer.",
    ),
    (
        "queued_deliveries",
        Gauge,
        "Deliveries in the queue, at most 10000.",
    ),
    (
        "due_deliveries",
        Gauge,
        "Deliveries that are due, at most 10000.",
    ),
    (
        "queued_bytes",
        Gauge,
        "Bytes of payloads in the queue, about.",
    ),
    (
        "retention_lag_seconds",
        Gauge,
        "Time that old rows stay longer than they should.",
    ),
    (
        "oldest_due_seconds",
        Gauge,
        "Wait of the oldest due delivery, at endpoints that are sent to.",
    ),
    (
        "open_breakers",
        Gauge,
        "Endpoints whose circuit breaker is open or half open.",
    ),
    (
        "disabled_endpoints",
        Gauge,
        "Endpoints that are disabled until somebody resumes them.",
    ),
    (
        "parked_deliveries",
        Gauge,
        "Due deliveries of endpoints that are paused, disabled, held or open, at most 10000.",
    ),
    (
        "dead_letters",
        Gauge,
        "Dead letters that are kept, at most 10000.",
    ),
    ("endpoints", Gauge, "Endpoints."),
    ("attempts_total", Counter, "Attempts that have ended."),
    (
        "deliveries_sent_total",
        Counter,
        "Deliveries that were sent.",
    ),
    (
        "deliveries_failed_total",
        Counter,
        "Deliveries that failed for good.",
    ),
    (
        "deliveries_retried_total",
        Counter,
        "Deliveries, sent or failed, that needed a retry.",
    ),
    (
        "retries_total",
        Counter,
        "Retries of deliveries that were sent or failed.",
    ),
    (
        "attempt_duration_seconds",
        Histogram(ATTEMPT_BUCKETS),
        "Duration of attempts; the sum is an estimate, within 5%.",
    ),
    (
        "delivery_latency_seconds",
        Histogram(DELIVERY_BUCKETS),
        "Time from emit to success; the sum is an estimate, within 5%.",
    ),
];

const ENDPOINT: &[Family] = &[
    ("up", Gauge, "1 while the endpoint is sent to, else 0."),
    (
        "queued_deliveries",
        Gauge,
        "Deliveries in the queue, at most 10000.",
    ),
    (
        "kept_back_deliveries",
        Gauge,
        "Due deliveries that the endpoint keeps back, at most 10000.",
    ),
    (
        "in_flight_requests",
        Gauge,
        "Requests that wait for their answer.",
    ),
    (
        "dead_letters",
        Gauge,
        "Dead letters that are kept, at most 10000.",
    ),
    (
        "consecutive_failures",
        Gauge,
        "Failures in a row since the last success.",
    ),
    (
        "last_success_timestamp_seconds",
        Gauge,
        "When a delivery succeeded last, 0 for never.",
    ),
    ("attempts_total", Counter, "Attempts that have ended."),
    (
        "deliveries_sent_total",
        Counter,
        "Deliveries that were sent.",
    ),
    (
        "deliveries_failed_total",
        Counter,
        "Deliveries that failed for good.",
    ),
    (
        "retries_total",
        Counter,
        "Retries of deliveries that were sent or failed.",
    ),
    (
        "attempt_duration_seconds",
        Histogram(ATTEMPT_BUCKETS),
        "Duration of attempts; the sum is an estimate, within 5%.",
    ),
];

pub async fn print(target: &Target) -> Result<String, Refusal> {
    let (database, endpoints) = Figures::look(target, async |figures| {
        let database = figures.rows(OF_DATABASE).await?;
        let endpoints = figures.rows_in_time(OF_ENDPOINTS).await?;
        Ok((database, endpoints.unwrap_or_default()))
    })
    .await?;
    // Thousands of lines are no work for the thread that delivers.
    let printed = tokio::task::spawn_blocking(move || text(&database, &endpoints));
    (printed.await).map_err(|error| Refusal::Unavailable(error.to_string()))
}

/// `endpoints` is empty where it took too long to count the queue of each: the figures of all of them are still told.
fn text(database: &[Value], endpoints: &[Value]) -> String {
    let mut text = Text::default();
    let whole = database.iter().filter_map(Value::as_object);
    let whole: Vec<_> = whole.collect();
    for family in DATABASE {
        text.family("webhook_", family, &whole, &[]);
    }

    let metrics = whole
        .iter()
        .filter_map(|row| row.get("metrics")?.as_array());
    let metrics: Vec<_> = metrics.flatten().filter_map(Value::as_object).collect();
    let value = ("value", Gauge, "Value of a row of webhook.metrics.");
    text.family("webhook_metric_", &value, &metrics, &["metric"]);
    let alert = (
        "alert",
        Gauge,
        "1 while a row of webhook.metrics is beyond its threshold, else 0.",
    );
    text.family("webhook_metric_", &alert, &metrics, &["metric"]);

    let rows = endpoints.iter().filter_map(Value::as_object);
    let rows: Vec<_> = rows.collect();
    text.head(
        "webhook_endpoint_state_info",
        Gauge,
        "1, with the state of the endpoint as a label.",
    );
    for row in &rows {
        let labels = Labels::of(row, &["endpoint", "state"]);
        text.sample("webhook_endpoint_state_info", &labels, 1.0);
    }
    for family in ENDPOINT {
        text.family("webhook_endpoint_", family, &rows, &["endpoint"]);
    }
    let all = whole.first().and_then(|row| row.get("endpoints")?.as_u64());
    let left_out = all.unwrap_or_default().saturating_sub(rows.len() as u64);
    text.head(
        "webhook_endpoints_without_series",
        Gauge,
        "Endpoints without series of their own: those beyond the first 1000, or all where it took too long to count.",
    );
    text.sample(
        "webhook_endpoints_without_series",
        &Labels::default(),
        left_out as f64,
    );
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Gauge => "gauge",
            Counter => "counter",
            Histogram(_) => "histogram",
        };
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A row without the value has no sample.
    fn family(
        &mut self,
        prefix: &str,
        (column, kind, help): &Family,
        rows: &[&Map<String, Value>],
        labels: &[&str],
    ) {
        let name = format!("{prefix}{column}");
        self.head(&name, *kind, help);
        for row in rows {
            let labels = Labels::of(row, labels);
            match (kind, row.get(*column)) {
                (Histogram(ends), Some(Value::Object(classes))) => {
                    self.histogram(&name, &labels, ends, classes);
                }
                (_, Some(value)) => {
                    if let Some(value) = value.as_f64() {
                        self.sample(&name, &labels, value);
                    }
                }
                (_, None) => {}
            }
        }
    }

    fn histogram(
        &mut self,
        name: &str,
        labels: &Labels,
        ends: &[u32],
        classes: &Map<String, Value>,
    ) {
        let classes = classes
            .iter()
            .filter_map(|(class, number)| Some((class.parse::<u32>().ok()?, number.as_f64()?)));
        let classes: Vec<(u32, f64)> = classes.collect();
        let number_below = |end: Option<u32>| -> f64 {
            let below = classes
                .iter()
                .filter(|(class, _)| end.is_none_or(|end| *class < 8 * end));
            below.map(|(_, number)| number).sum()
        };
        for end in ends {
            let seconds = 2_f64.powi(*end as i32) / 1000.0;
            let labels = labels.with("le", &seconds.to_string());
            self.sample(&format!("{name}_bucket"), &labels, number_below(Some(*end)));
        }
        let labels_of_all = labels.with("le", "+Inf");
        self.sample(
            &format!("{name}_bucket"),
            &labels_of_all,
            number_below(None),
        );
        let seconds = |class: u32| 2_f64.powf((f64::from(class) + 0.5) / 8.0) / 1000.0;
        let sum = classes
            .iter()
            .map(|(class, number)| seconds(*class) * number);
        self.sample(&format!("{name}_sum"), labels, sum.sum());
        self.sample(&format!("{name}_count"), labels, number_below(None));
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: f64) {
        let braces = match labels.0.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.0),
        };
        let _ = writeln!(self.0, "{name}{braces} {value}");
    }
}

#[derive(Default)]
struct Labels(String);

impl Labels {
    fn of(row: &Map<String, Value>, names: &[&str]) -> Labels {
        names.iter().fold(Labels::default(), |labels, name| {
            let value = row.get(*name).and_then(Value::as_str).unwrap_or_default();
            labels.with(name, value)
        })
    }

    fn with(&self, name: &str, value: &str) -> Labels {
        let comma = if self.0.is_empty() { "" } else { "," };
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        Labels(format!("{}{comma}{name}=\"{value}\"", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_class_of_a_histogram_is_in_every_bucket_from_its_own_on() {
        // 1 to 1.09 ms, just below 8 ms, 8 to 8.7 ms, an hour.
        let row = json!({"attempt_duration_seconds": {"0": 2, "23": 1, "24": 1, "174": 1}});
        let mut text = Text::default();
        let family = ("attempt_duration_seconds", Histogram(&[2, 3, 4]), "Help.");
        text.family(
            "webhook_",
            &family,
            &[row.as_object().expect("it is an object")],
            &[],
        );
        let lines: Vec<&str> = text.0.lines().skip(2).take(4).collect();
        assert_eq!(
            lines,
            [
                "webhook_attempt_duration_seconds_bucket{le=\"0.004\"} 2",
                "webhook_attempt_duration_seconds_bucket{le=\"0.008\"} 3",
                "webhook_attempt_duration_seconds_bucket{le=\"0.016\"} 4",
                "webhook_attempt_duration_seconds_bucket{le=\"+Inf\"} 5",
            ]
        );
        assert!(
            text.0
                .ends_with("\nwebhook_attempt_duration_seconds_count 5\n")
        );
    }

    #[test]
    fn a_label_cannot_end_its_quotes_or_its_line() {
        let labels = Labels::default().with("endpoint", "a\"} 1\nb\\");
        assert_eq!(labels.0, r#"endpoint="a\"} 1\nb\\""#);
    }
}
