//! An endpoint behind a breaker, and one beside it that is always well.

use uuid::Uuid;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::receiver::{Answer, Receiver, Request};

/// Opens after three failed attempts, for an hour; retries, of 5xx alone, wait as long. A request may take a minute,
/// so that requests which the receiver holds end when the test says so.
const POLICY: &str = "
    INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, retry_status, connect_timeout,
                                timeout, warn_threshold, failure_threshold, cooldown, max_cooldown)
    VALUES ('guarded', 10, 'fixed', '1 h', 0, 0, '{[500,600)}', '5 s', '55 s', 0, 3, '1 h', '1 h')";

pub struct Guarded {
    pub database: Database,
    pub receiver: Receiver,
}

impl Guarded {
    pub const PATH: &str = "/orders";
    /// Failures until the breaker opens, unless the test has its own threshold.
    pub const THRESHOLD: usize = 3;

    /// `settings` are columns of its policy as SQL: `failure_threshold = 2, when_open = 'skip'`.
    #[track_caller]
    pub fn with(settings: &str) -> Guarded {
        Guarded::on(Cluster::shared(), settings)
    }

    #[track_caller]
    pub fn on(cluster: &Cluster, settings: &str) -> Guarded {
        let (database, receiver) = (cluster.database("guarded"), Receiver::start());
        database.execute(POLICY);
        if !settings.is_empty() {
            database.execute(&format!(
                "UPDATE webhook.policy SET {settings} WHERE name = 'guarded'"
            ));
        }
        let guarded = "event_types => '{order.*}', policy => 'guarded'";
        database.add_endpoint_with("orders", &receiver.url(Guarded::PATH), guarded);
        let bystander = "event_types => '{bystander}', policy => 'fast'";
        database.add_endpoint_with("bystander", &receiver.url("/bystander"), bystander);
        Guarded { database, receiver }
    }

    /// Answers so from now on.
    pub fn answer(&self, status: u16) {
        self.receiver
            .respond(Guarded::PATH, move |_, _| Answer::status(status));
    }

    /// Answers so often that the breaker opens, and holds the requests after that.
    pub fn hold_after_the_failures(&self) {
        self.receiver.hold_after(Guarded::PATH, Guarded::THRESHOLD);
    }

    /// In one transaction.
    #[track_caller]
    pub fn emit(&self, count: usize) -> Vec<Uuid> {
        let emit = format!("SELECT webhook_emit('order.created') FROM generate_series(1, {count})");
        let rows = self.database.connect().query(&emit, &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Fails as often as it takes. The failed events wait for their retries. Neither these nor the probe may be due
    /// at once: they would go out before the answer changes, or not.
    #[track_caller]
    pub fn open(&self) -> Vec<Uuid> {
        self.answer(500);
        let events = self.emit(Guarded::THRESHOLD);
        self.wait_for_state("OPEN");
        self.answer(200);
        events
    }

    /// Lets the cooldown be over, or the lease of a probe.
    pub fn let_the_time_pass(&self) {
        self.database.execute(
            "UPDATE webhook.breaker SET probe_at = now() WHERE state <> 'CLOSED'; SELECT webhook.wake()",
        );
    }

    /// Lets the cooldown be over in a moment, by itself; says when.
    #[track_caller]
    pub fn let_the_time_run_out(&self) -> String {
        self.database.query_one_value(
            "WITH moved AS (UPDATE webhook.breaker SET probe_at = now() + interval '200 ms' WHERE state <> 'CLOSED' RETURNING probe_at)
             SELECT probe_at::text, webhook.wake() FROM moved",
        )
    }

    /// The worker looks at everything that is queued: if something could be sent now, it is claimed.
    #[track_caller]
    pub fn let_the_worker_look(&self) {
        let event = self.database.emit("bystander", serde_json::json!({}));
        self.database.wait_for_status(event, "SENT");
    }

    /// The state of the breaker, without a row CLOSED.
    #[track_caller]
    pub fn state(&self) -> String {
        self.breaker("state").unwrap_or("CLOSED".to_owned())
    }

    #[track_caller]
    pub fn wait_for_state(&self, state: &str) {
        self.database.wait_until(&format!(
            "SELECT coalesce((SELECT state FROM webhook.breaker WHERE {OF_ORDERS}), 'CLOSED') = '{state}'"
        ));
    }

    #[track_caller]
    pub fn failures(&self) -> i32 {
        let failures = self.breaker("consecutive_failures");
        failures.map_or(0, |failures| failures.parse().expect("it is a number"))
    }

    #[track_caller]
    pub fn wait_for_failures(&self, count: i32) {
        self.database.wait_until(&format!(
            "SELECT coalesce((SELECT consecutive_failures FROM webhook.breaker WHERE {OF_ORDERS}), 0) = {count}"
        ));
    }

    /// An expression over the breaker's row, as text; nothing without a row.
    #[track_caller]
    pub fn breaker(&self, expression: &str) -> Option<String> {
        self.database.query_one_value(&format!(
            "SELECT (SELECT ({expression})::text FROM webhook.breaker b WHERE {OF_ORDERS})"
        ))
    }

    /// A column of webhook.endpoint_status, as text.
    #[track_caller]
    pub fn status(&self, column: &str) -> Option<String> {
        self.database.query_one_value(&format!(
            "SELECT ({column})::text FROM webhook.endpoint_status WHERE endpoint = 'orders'"
        ))
    }

    /// Events that the endpoint got, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.receiver.requests_to(Guarded::PATH)
    }

    pub fn received(&self) -> Vec<Uuid> {
        self.requests().iter().map(Request::event_id).collect()
    }

    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) -> Vec<Request> {
        self.receiver.wait_for_requests_to(Guarded::PATH, count)
    }

    #[track_caller]
    pub fn wait_for_status(&self, events: &[Uuid], status: &str) {
        for event in events {
            self.database.wait_for_status(*event, status);
        }
    }

    #[track_caller]
    pub fn assert_status(&self, events: &[Uuid], status: &str) {
        for event in events {
            let seen = self.database.delivery_status(*event);
            assert_eq!(seen.as_deref(), Some(status), "of {event}");
        }
    }
}

const OF_ORDERS: &str = "endpoint_id = (SELECT id FROM webhook.endpoint WHERE name = 'orders')";
