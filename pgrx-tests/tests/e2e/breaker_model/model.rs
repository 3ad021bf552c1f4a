//! The model: a breaker, its endpoint and its deliveries, as the documentation has them.

use uuid::Uuid;
use webhook_e2e::engine::{Claim, Outcome};
use webhook_e2e::random::Random;

/// Microseconds.
pub const SECOND: i64 = 1_000_000;
/// The lower bound of every wait of a policy.
pub const SHORTEST_WAIT: i64 = SECOND / 10;

#[derive(Debug)]
pub struct Policy {
    pub max_attempts: i32,
    pub retry_delay: i64,
    pub timeouts_are_retried: bool,
    pub gone_disables: bool,
    pub keep_sent: bool,
    pub lease: i64,
    pub failure_threshold: i32,
    pub warn_threshold: i32,
    pub cooldown: i64,
    pub max_cooldown: i64,
    pub breaker_counts: &'static str,
    pub on_trip: &'static str,
    pub on_exhausted: &'static str,
}

impl Policy {
    pub fn random(random: &mut Random) -> Policy {
        let cooldown = random.below(20) as i64 * SECOND;
        Policy {
            max_attempts: 1 + random.below(6) as i32,
            retry_delay: random.below(100) as i64 * SECOND,
            timeouts_are_retried: random.chance(50),
            gone_disables: random.chance(30),
            keep_sent: random.chance(80),
            lease: 2 * (1 + random.below(20) as i64) * SECOND,
            failure_threshold: random.below(7) as i32,
            warn_threshold: random.below(5) as i32,
            cooldown,
            max_cooldown: cooldown * random.one_of(&[1, 3, 4, 1000]),
            breaker_counts: random.one_of(&["attempts", "final"]),
            on_trip: random.one_of(&["open", "open", "open", "open", "disable"]),
            on_exhausted: random.one_of(&["continue", "continue", "continue", "disable"]),
        }
    }

    pub fn insert(&self, name: &str) -> String {
        format!(
            "INSERT INTO webhook.policy
                 (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up, retry_errors, retry_status, disable_status, keep_sent,
                  connect_timeout, timeout, failure_threshold, warn_threshold, cooldown, max_cooldown, breaker_counts,
                  on_trip, on_exhausted)
             VALUES ('{name}', {}, 'fixed', '{} us', 0, 0, '{{{}}}', '{{[500,600)}}', '{{{}}}', {}, '{lease} us', '{lease} us',
                     {}, {}, '{} us', '{} us', '{}', '{}', '{}');",
            self.max_attempts,
            self.retry_delay,
            if self.timeouts_are_retried { "timeout" } else { "" },
            if self.gone_disables { "[410,411)" } else { "" },
            self.keep_sent,
            self.failure_threshold,
            self.warn_threshold,
            self.cooldown,
            self.max_cooldown,
            self.breaker_counts,
            self.on_trip,
            self.on_exhausted,
            lease = self.lease / 2,
        )
    }

    pub fn verdict(&self, outcome: &Outcome) -> Verdict {
        match (outcome.status, outcome.failure) {
            (Some(200..300), _) => Verdict::Success,
            (Some(410), _) if self.gone_disables => Verdict::Gone,
            (Some(500..600), _) => Verdict::Retriable,
            (None, Some("released")) => Verdict::Released { pause: 0 },
            (None, Some("local")) => Verdict::Released { pause: SECOND },
            (None, Some("timeout")) if self.timeouts_are_retried => Verdict::Retriable,
            _ => Verdict::Final,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Verdict {
    Success,
    Retriable,
    Final,
    Gone,
    /// Not sent, so it is as before; with a pause where the trouble was our own.
    Released {
        pause: i64,
    },
}

/// A row of webhook.breaker; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub struct Breaker {
    pub state: String,
    pub failures: i32,
    pub last_failure_at: Option<i64>,
    pub reason: Option<String>,
    pub last_error: Option<String>,
    pub trips: i32,
    pub opened_at: Option<i64>,
    pub probe_at: Option<i64>,
    pub probe: Option<(Uuid, i64)>,
    pub retries_before: Option<i64>,
    pub test: Option<Uuid>,
}

impl Breaker {
    pub fn new() -> Breaker {
        Breaker {
            state: "CLOSED".to_owned(),
            failures: 0,
            last_failure_at: None,
            reason: None,
            last_error: None,
            trips: 0,
            opened_at: None,
            probe_at: None,
            probe: None,
            retries_before: None,
            test: None,
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state == "CLOSED"
    }

    /// The counter is 0, and waiting deliveries are due.
    pub fn close(&mut self, at: i64) {
        *self = Breaker {
            last_failure_at: self.last_failure_at,
            reason: self.reason.take(),
            last_error: self.last_error.take(),
            retries_before: Some(at),
            test: self.test,
            ..Breaker::new()
        };
    }

    /// Each time in a row the cooldown is twice as long.
    pub fn open(&mut self, policy: &Policy, at: i64) {
        self.state = "OPEN".to_owned();
        self.opened_at = self.opened_at.or(Some(at));
        let cooldown = policy.cooldown as f64 * 2f64.powi(self.trips);
        let cooldown = cooldown.min(policy.max_cooldown as f64) as i64;
        self.probe_at = Some(at + cooldown.max(SHORTEST_WAIT));
        self.trips += 1;
        (self.probe, self.retries_before) = (None, None);
    }

    pub fn wait_for_another_probe(&mut self, at: i64) {
        self.state = "OPEN".to_owned();
        (self.probe_at, self.probe) = (Some(at), None);
    }
}

/// Its kind, the code of its reason, and the sentence.
pub type Alert = (String, Option<String>, Option<String>);

pub fn closed(reason: Option<&str>) -> Alert {
    ("closed".to_owned(), reason.map(str::to_owned), None)
}

pub struct Endpoint {
    pub id: i32,
    pub policy: usize,
    pub paused: bool,
    pub disabled: Option<String>,
    pub breaker: Breaker,
    pub was_tested: bool,
    pub alerts: Vec<Alert>,
    pub failed: i64,
}

impl Endpoint {
    pub fn is_served(&self) -> bool {
        !self.paused && self.disabled.is_none()
    }

    pub fn disable(&mut self, reason: &str, outcome: &Outcome) {
        if self.disabled.is_none() {
            self.disabled = Some(reason.to_owned());
            let reason = Some(reason.to_owned());
            (self.alerts).push(("disabled".to_owned(), reason, outcome.described()));
        }
    }

    /// One outcome; `ended`: it was the delivery's last.
    pub fn follow(
        &mut self,
        policy: &Policy,
        delivery: &Delivery,
        outcome: &Outcome,
        verdict: Verdict,
        ended: bool,
        at: i64,
    ) {
        let is_test = self.breaker.test == Some(delivery.event);
        let is_probe = self.breaker.probe == Some((delivery.event, delivery.claim_seq));
        match verdict {
            Verdict::Released { pause } => {
                if is_probe {
                    self.breaker.wait_for_another_probe(at + pause);
                }
                return;
            }
            Verdict::Success => self.succeeded(is_probe, is_test, at),
            _ if is_test => {}
            _ => {
                self.failed(policy, is_probe, outcome, ended, at);
                if verdict == Verdict::Gone {
                    self.disable("gone", outcome);
                } else if verdict == Verdict::Retriable && ended && policy.on_exhausted == "disable"
                {
                    self.disable("exhausted", outcome);
                }
            }
        }
        if is_test {
            self.breaker.test = None;
        }
    }

    pub fn succeeded(&mut self, is_probe: bool, is_test: bool, at: i64) {
        if (is_probe || is_test) && !self.breaker.is_closed() {
            self.alerts.push(closed(None));
            self.breaker.close(at);
        }
        if is_test && self.disabled.as_deref() == Some("exhausted") {
            self.disabled = None;
            self.breaker.close(at);
        }
        if self.breaker.is_closed() {
            self.breaker.failures = 0;
        }
    }

    pub fn failed(
        &mut self,
        policy: &Policy,
        is_probe: bool,
        outcome: &Outcome,
        ended: bool,
        at: i64,
    ) {
        let breaker = &mut self.breaker;
        let reason = outcome.reason().map(str::to_owned);
        if !is_probe && !breaker.is_closed() {
            return;
        }
        breaker.last_failure_at = Some(at);
        breaker.reason = reason.clone();
        breaker.last_error = outcome.described();
        if is_probe {
            breaker.failures += 1;
            if policy.failure_threshold > 0 {
                breaker.open(policy, at);
            } else {
                // Off means off, from the next probe on.
                let failures = breaker.failures;
                breaker.close(at);
                breaker.failures = failures;
                self.alerts.push(closed(None));
            }
            return;
        }
        if policy.breaker_counts == "final" && !ended {
            return;
        }
        breaker.failures += 1;
        if breaker.failures == policy.warn_threshold {
            (self.alerts).push(("degraded".to_owned(), reason.clone(), outcome.described()));
        }
        if policy.failure_threshold > 0 && breaker.failures >= policy.failure_threshold {
            if policy.on_trip == "disable" {
                self.disable("tripped", outcome);
            } else {
                breaker.open(policy, at);
                let failures = breaker.failures;
                let error = outcome.described().unwrap_or_default();
                let error = format!("{failures} failures in a row, the last: {error}");
                (self.alerts).push(("opened".to_owned(), reason, Some(error)));
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub event: Uuid,
    pub endpoint: i32,
    pub status: String,
    pub attempts: i32,
    pub max_attempts: i32,
    pub claim_seq: i64,
    /// These three only while it is queued, and the first only while it is not parked.
    pub due_at: Option<i64>,
    pub wait_reason: Option<String>,
    pub last_attempt_at: Option<i64>,
    pub is_test: bool,
}

impl Delivery {
    pub fn is_pending(&self) -> bool {
        self.status == "PENDING"
    }

    pub fn is_sending(&self) -> bool {
        self.status == "SENDING"
    }

    pub fn claim(&self) -> Claim {
        Claim {
            event: self.event,
            endpoint: self.endpoint,
            claim_seq: self.claim_seq,
            earlier_attempts: self.attempts - 1,
        }
    }

    pub fn finish(&mut self, status: &str) {
        self.status = status.to_owned();
        (self.due_at, self.wait_reason, self.last_attempt_at) = (None, None, None);
    }

    pub fn wait_until(&mut self, due_at: i64, reason: &str) {
        self.status = "PENDING".to_owned();
        self.due_at = Some(due_at);
        self.wait_reason = Some(reason.to_owned());
    }

    pub fn waits_as(&self, reason: &str) -> bool {
        self.is_pending() && self.wait_reason.as_deref() == Some(reason)
    }

    pub fn is_due(&self, now: i64) -> bool {
        self.is_pending() && self.due_at.is_some_and(|due_at| due_at <= now)
    }

    /// A retry does not wait for its time once a breaker has closed.
    pub fn is_brought_forward(&self, breaker: &Breaker) -> bool {
        self.waits_as("retry") && self.last_attempt_at < breaker.retries_before
    }

    pub fn settle(&mut self, policy: &Policy, verdict: Verdict, at: i64) {
        match verdict {
            Verdict::Success => self.finish("SENT"),
            Verdict::Released { pause: 0 } => {
                self.attempts -= 1;
                self.status = "PENDING".to_owned();
            }
            Verdict::Released { pause } => {
                self.attempts -= 1;
                self.last_attempt_at = Some(at);
                self.wait_until(at + pause, "retry");
            }
            Verdict::Retriable if self.attempts < self.max_attempts => {
                self.last_attempt_at = Some(at);
                self.wait_until(at + policy.retry_delay.max(SHORTEST_WAIT), "retry");
            }
            _ => self.finish("FAILED"),
        }
    }
}
