//! Policies, verdicts and deliveries as the documentation describes them.

use std::ops::Range;

use uuid::Uuid;
use webhook_e2e::engine::{OTHER_ERRORS, Outcome, RETRIABLE_ERRORS};
use webhook_e2e::random::Random;
use webhook_e2e::scripted::Transaction;

const SECOND: f64 = 1e6;
const DAY: f64 = 86_400.0 * SECOND;
/// The lower bound of every wait, whatever policy and endpoint say.
const SHORTEST_WAIT: f64 = 0.1 * SECOND;

pub struct Policy {
    pub max_attempts: i32,
    pub backoff: &'static str,
    pub initial_delay: f64,
    pub factor: f64,
    pub max_delay: f64,
    pub schedule: Vec<f64>,
    pub jitter_down: f64,
    pub jitter_up: f64,
    pub success_status: Vec<Range<i32>>,
    pub disable_status: Vec<Range<i32>>,
    pub retry_status: Vec<Range<i32>>,
    pub retry_errors: Vec<&'static str>,
    pub retry_after: &'static str,
    pub keep_sent: bool,
}

impl Policy {
    pub fn random(random: &mut Random) -> Policy {
        let schedule = 1 + random.below(4);
        let mut retry_errors = RETRIABLE_ERRORS.to_vec();
        random.shuffle(&mut retry_errors);
        retry_errors.truncate(random.below(RETRIABLE_ERRORS.len() + 1));
        Policy {
            max_attempts: 1 + random.below(6) as i32,
            backoff: random.one_of(&["exponential", "fixed", "schedule"]),
            initial_delay: random_delay(random),
            factor: 1.0 + random.fraction() * random.one_of(&[1.0, 9.0, 99.0]),
            max_delay: random_delay(random),
            schedule: (0..schedule).map(|_| random_delay(random)).collect(),
            jitter_down: random.fraction(),
            jitter_up: random.fraction(),
            success_status: random_statuses(random),
            disable_status: random_statuses(random),
            retry_status: random_statuses(random),
            retry_errors,
            retry_after: random.one_of(&["ignore", "exact", "at_least"]),
            keep_sent: random.chance(80),
        }
    }

    pub fn insert(&self, transaction: &Transaction, name: &str) {
        let interval = |delay: &f64| format!("{delay} us");
        let multirange = |ranges: &[Range<i32>]| {
            let ranges = ranges
                .iter()
                .map(|range| format!("[{},{})", range.start, range.end));
            format!("{{{}}}", ranges.collect::<Vec<_>>().join(","))
        };
        let schedule: Vec<String> = self.schedule.iter().map(interval).collect();
        let insert = format!(
            "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, factor, max_delay, schedule, jitter_down,
                 jitter_up, success_status, disable_status, retry_status, retry_errors, retry_after, keep_sent, failure_threshold)
             VALUES ('{name}', {}, '{}', '{}', {}, '{}', '{{{}}}', {}, {}, '{}', '{}', '{}', '{{{}}}', '{}', {}, 0)",
            self.max_attempts,
            self.backoff,
            interval(&self.initial_delay),
            self.factor,
            interval(&self.max_delay),
            schedule.join(","),
            self.jitter_down,
            self.jitter_up,
            multirange(&self.success_status),
            multirange(&self.disable_status),
            multirange(&self.retry_status),
            self.retry_errors.join(","),
            self.retry_after,
            self.keep_sent,
        );
        transaction.execute(&insert);
    }

    pub fn verdict(&self, outcome: &Outcome) -> Verdict {
        let is_in =
            |ranges: &[Range<i32>], status| ranges.iter().any(|range| range.contains(&status));
        match (outcome.status, outcome.failure) {
            (Some(status), _) if is_in(&self.success_status, status) => Verdict::Success,
            (Some(status), _) if is_in(&self.disable_status, status) => Verdict::Gone,
            (Some(status), _) if is_in(&self.retry_status, status) => Verdict::Retry,
            (Some(_), _) => Verdict::Failure,
            (None, Some("released")) => Verdict::AsIfNeverClaimed,
            (None, Some("local")) => Verdict::NotTheEndpointsFault,
            (None, Some(kind)) if self.retry_errors.contains(&kind) => Verdict::Retry,
            (None, _) => Verdict::Failure,
        }
    }

    /// The shortest and the longest wait after that many attempts.
    fn wait(&self, attempts: i32, outcome: &Outcome) -> (f64, f64) {
        let own = match self.backoff {
            "fixed" => self.initial_delay,
            "schedule" => self.schedule[(attempts as usize).min(self.schedule.len()) - 1],
            _ => (self.initial_delay * self.factor.powi(attempts - 1)).min(self.max_delay),
        };
        let own = (own * (1.0 - self.jitter_down), own * (1.0 + self.jitter_up));
        let (shortest, longest) = self.heeding(own, outcome);
        (shortest.max(SHORTEST_WAIT), longest.max(SHORTEST_WAIT))
    }

    fn heeding(&self, own: (f64, f64), outcome: &Outcome) -> (f64, f64) {
        let heeded = matches!(outcome.status, Some(429 | 503)) && self.retry_after != "ignore";
        match outcome.retry_after {
            Some(asked) if heeded => {
                let asked = (asked * SECOND).min(self.max_delay);
                match self.retry_after {
                    "exact" => (asked, asked),
                    _ => (own.0.max(asked), own.1.max(asked)),
                }
            }
            _ => own,
        }
    }
}

/// Microseconds, from none to the longest that a policy may have, of every order of magnitude.
fn random_delay(random: &mut Random) -> f64 {
    let longest = random.one_of(&[1.0, 1e3, SECOND, 60.0 * SECOND, DAY, 1000.0 * DAY]);
    (random.fraction() * longest).round()
}

fn random_statuses(random: &mut Random) -> Vec<Range<i32>> {
    let ranges = random.below(4);
    (0..ranges)
        .map(|_| {
            let start = 100 + random.below(500) as i32;
            start..start + 1 + random.below(200) as i32
        })
        .collect()
}

#[derive(PartialEq)]
pub enum Verdict {
    Success,
    Retry,
    Failure,
    Gone,
    NotTheEndpointsFault,
    AsIfNeverClaimed,
}

impl Verdict {
    /// Nothing where the attempt is not logged.
    pub fn logged(&self) -> Option<&'static str> {
        match self {
            Verdict::Retry => Some("retry"),
            Verdict::Failure => Some("final"),
            Verdict::Gone => Some("disable"),
            Verdict::Success | Verdict::NotTheEndpointsFault | Verdict::AsIfNeverClaimed => None,
        }
    }
}

pub fn random_outcome(random: &mut Random) -> Outcome {
    let answered = random.chance(70);
    let status = answered.then(|| match random.below(3) {
        0 => random.one_of(&[429, 503]),
        _ => 100 + random.below(500) as i32,
    });
    let kinds = [&RETRIABLE_ERRORS[..], &OTHER_ERRORS].concat();
    let failure = (!answered).then(|| random.one_of(&kinds));
    Outcome {
        status,
        failure,
        error: failure.map(|kind| format!("{kind} {}", random.below(1000))),
        retry_after: (answered && random.chance(60))
            .then(|| random.one_of(&[0.0, 1.0, 90.0, 86_399.0, 86_401.0, 4_294_967_295.0])),
        duration_ms: random.below(10_000) as i32,
        age_ms: 1e3 * random.below(100_000_000) as f64,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub event: Uuid,
    pub endpoint: i32,
    pub partition: &'static str,
    pub status: &'static str,
    pub attempts: i32,
    pub max_attempts: i32,
    pub claim_seq: i64,
    pub last_status: Option<i32>,
    pub last_error: Option<String>,
    pub reason: Option<&'static str>,
    pub duration_ms: Option<i32>,
    pub wait_reason: &'static str,
    /// Microseconds since 1970.
    pub last_attempt_at: Option<f64>,
    /// Microseconds since 1970 between which the next attempt is due; none where it does not matter.
    pub due: Option<(f64, f64)>,
}

impl Delivery {
    pub fn queued(&mut self, status: &'static str) {
        (self.partition, self.status) = ("webhook.delivery_queue", status);
    }

    /// False if nothing is kept of it.
    pub fn settle(&mut self, policy: &Policy, outcome: &Outcome, now: f64) -> bool {
        let verdict = policy.verdict(outcome);
        let finished_at = now - outcome.age_ms * 1e3;
        if let Verdict::AsIfNeverClaimed = verdict {
            self.attempts -= 1;
            self.queued("PENDING");
            return true;
        }
        self.last_status = outcome.status;
        self.last_error = outcome.described();
        self.reason = outcome.reason();
        self.duration_ms = Some(outcome.duration_ms);
        self.last_attempt_at = Some(finished_at);
        match verdict {
            Verdict::Success => {
                (self.partition, self.status) = ("webhook.delivery_history", "SENT");
                (self.last_error, self.reason, self.due) = (None, None, None);
                return policy.keep_sent;
            }
            Verdict::NotTheEndpointsFault => {
                self.attempts -= 1;
                self.queued("PENDING");
                self.wait_reason = "retry";
                self.due = Some((finished_at + SECOND, finished_at + SECOND));
            }
            Verdict::Retry if self.attempts < self.max_attempts => {
                self.queued("PENDING");
                self.wait_reason = "retry";
                let (shortest, longest) = policy.wait(self.attempts, outcome);
                self.due = Some((finished_at + shortest, finished_at + longest));
            }
            _ => {
                (self.partition, self.status) = ("webhook.dead_letter", "FAILED");
                self.due = None;
            }
        }
        true
    }
}
