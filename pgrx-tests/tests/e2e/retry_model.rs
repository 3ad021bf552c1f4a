//! The engine, over the relay's session, and its SQL against a model written from the documentation alone: random policies,
//! random outcomes in batches of random size, and after each batch every delivery must be where the model has it.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use uuid::Uuid;
use webhook_e2e::Cluster;
use webhook_e2e::engine::{Claim, OTHER_ERRORS, Outcome, RETRIABLE_ERRORS, Settled};
use webhook_e2e::random::{self, Random};
use webhook_e2e::scripted::{self, Engine, Exchange, Transaction};
use webhook_engine::{Hold, Wake};

const CASES: u64 = 200;
const ENDPOINTS: usize = 2;
const EVENTS: usize = 4;
const ROUNDS: usize = 12;

const SECOND: f64 = 1e6;
const DAY: f64 = 86_400.0 * SECOND;
/// What a policy and an endpoint cannot go below.
const SHORTEST_WAIT: f64 = 0.1 * SECOND;
/// A wait is rounded to whole microseconds.
const SLACK: f64 = 2.0;

#[test]
fn sql_does_what_the_model_does() {
    let cluster = Cluster::relayed();
    let database = cluster.database("model");
    let transaction = Transaction::connect(cluster, &database);
    random::for_each_seed(CASES, |random| Case::run(&transaction, random));
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

struct Policy {
    max_attempts: i32,
    backoff: &'static str,
    initial_delay: f64,
    factor: f64,
    max_delay: f64,
    schedule: Vec<f64>,
    jitter_down: f64,
    jitter_up: f64,
    success_status: Vec<Range<i32>>,
    disable_status: Vec<Range<i32>>,
    retry_status: Vec<Range<i32>>,
    retry_errors: Vec<&'static str>,
    retry_after: &'static str,
    keep_sent: bool,
}

impl Policy {
    fn random(random: &mut Random) -> Policy {
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

    fn insert(&self, transaction: &Transaction, name: &str) {
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

    fn verdict(&self, outcome: &Outcome) -> Verdict {
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

#[derive(PartialEq)]
enum Verdict {
    Success,
    Retry,
    Failure,
    Gone,
    NotTheEndpointsFault,
    AsIfNeverClaimed,
}

impl Verdict {
    /// Nothing where the attempt is not logged.
    fn logged(&self) -> Option<&'static str> {
        match self {
            Verdict::Retry => Some("retry"),
            Verdict::Failure => Some("final"),
            Verdict::Gone => Some("disable"),
            Verdict::Success | Verdict::NotTheEndpointsFault | Verdict::AsIfNeverClaimed => None,
        }
    }
}

fn random_outcome(random: &mut Random) -> Outcome {
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
struct Delivery {
    event: Uuid,
    endpoint: i32,
    partition: &'static str,
    status: &'static str,
    attempts: i32,
    max_attempts: i32,
    claim_seq: i64,
    last_status: Option<i32>,
    last_error: Option<String>,
    reason: Option<&'static str>,
    duration_ms: Option<i32>,
    wait_reason: &'static str,
    /// Microseconds since 1970.
    last_attempt_at: Option<f64>,
    /// Microseconds since 1970 between which the next attempt is due; none where it does not matter.
    due: Option<(f64, f64)>,
}

impl Delivery {
    fn queued(&mut self, status: &'static str) {
        (self.partition, self.status) = ("webhook.delivery_queue", status);
    }

    /// False if nothing is kept of it.
    fn settle(&mut self, policy: &Policy, outcome: &Outcome, now: f64) -> bool {
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

/// Its number, verdict and reason.
type Attempt = (Option<i32>, &'static str, Option<&'static str>);

struct Case<'a> {
    random: Random,
    transaction: &'a Transaction,
    engine: Engine,
    /// After trouble the engine claims one at a time.
    is_cautious: bool,
    policies: Vec<Policy>,
    /// Its id and the policy that it has now.
    endpoints: Vec<(i32, usize)>,
    deliveries: Vec<Delivery>,
    /// By event, endpoint and claim.
    attempts: BTreeMap<(Uuid, i32, i64), Attempt>,
    /// Microseconds since 1970.
    now: f64,
}

impl Case<'_> {
    /// In a transaction that is rolled back: its clock stands still, and no case sees another's rows.
    fn run(transaction: &Transaction, random: Random) {
        transaction.execute("BEGIN");
        let now = "SELECT (extract(epoch FROM now()) * 1000000)::float8";
        let now = transaction.query(now, &[])[0].get(0);
        let mut case = Case {
            random,
            transaction,
            engine: scripted::engine(transaction),
            is_cautious: false,
            policies: Vec::new(),
            endpoints: Vec::new(),
            deliveries: Vec::new(),
            attempts: BTreeMap::new(),
            now,
        };
        case.prepare();
        for _ in 0..ROUNDS {
            case.change_a_policy();
            case.make_due();
            case.claim();
            case.settle();
            case.compare();
        }
        transaction.execute("ROLLBACK");
    }

    fn prepare(&mut self) {
        for number in 0..ENDPOINTS + 1 {
            let policy = Policy::random(&mut self.random);
            policy.insert(self.transaction, &format!("policy_{number}"));
            self.policies.push(policy);
        }
        for policy in 0..ENDPOINTS {
            let add = format!(
                "SELECT id FROM webhook_set_endpoint('endpoint_{policy}', 'http://127.0.0.1:9/', policy => 'policy_{policy}',
                                                     max_in_flight => {})",
                1 + self.random.below(EVENTS)
            );
            let endpoint: i32 = self.transaction.query(&add, &[])[0].get(0);
            self.endpoints.push((endpoint, policy));
        }
        for _ in 0..EVENTS {
            let event = "SELECT webhook_emit('order.created')";
            let event = self.transaction.query(event, &[])[0].get(0);
            for (endpoint, policy) in &self.endpoints {
                self.deliveries.push(Delivery {
                    event,
                    endpoint: *endpoint,
                    partition: "webhook.delivery_queue",
                    status: "PENDING",
                    attempts: 0,
                    max_attempts: self.policies[*policy].max_attempts,
                    claim_seq: 0,
                    last_status: None,
                    last_error: None,
                    reason: None,
                    duration_ms: None,
                    wait_reason: "new",
                    last_attempt_at: None,
                    due: None,
                });
            }
        }
        self.compare();
    }

    /// What is under way keeps its max_attempts and follows the endpoint's policy in all else.
    fn change_a_policy(&mut self) {
        if self.random.chance(15) {
            let policy = self.random.below(self.policies.len());
            let endpoint = self.random.below(ENDPOINTS);
            self.endpoints[endpoint].1 = policy;
            let endpoint = self.endpoints[endpoint].0;
            self.transaction.execute(&format!(
                "UPDATE webhook.endpoint SET policy = 'policy_{policy}' WHERE id = {endpoint}"
            ));
        }
    }

    /// A person makes what waits due, and parks some of it until the next round; whatever a status or too many failures
    /// switched off is switched on again.
    fn make_due(&mut self) {
        let mut update = "
            UPDATE webhook.endpoint SET disabled_at = NULL, disabled_reason = NULL WHERE disabled_at IS NOT NULL;
            UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING';"
            .to_owned();
        for delivery in &mut self.deliveries {
            if delivery.status == "PENDING" {
                (delivery.due, delivery.wait_reason) = (None, "scheduled");
                if self.random.chance(10) {
                    delivery.wait_reason = "parked";
                    update += &format!(
                        "UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE event_id = '{}' AND endpoint_id = {};",
                        delivery.event, delivery.endpoint
                    );
                }
            }
        }
        self.transaction.execute(&update);
    }

    fn turn(&mut self) -> Vec<Exchange> {
        self.engine.turn().expect("nothing ends the engine");
        self.engine.store().connection.take_exchanges()
    }

    fn claim(&mut self) {
        self.engine.hold(None);
        self.engine.tell_of_commit(Wake::Anything);
        let exchanges = self.turn();
        let claimed = self.engine.wire().take_submitted();
        let claimed: HashSet<Claim> = claimed.into_iter().collect();
        let wishes: Vec<_> = exchanges.iter().flat_map(|e| &e.wishes).collect();

        let mut expected = HashSet::new();
        for (endpoint, _) in &self.endpoints {
            let deliveries = || (self.deliveries.iter()).filter(|d| d.endpoint == *endpoint);
            let is_idle = deliveries().all(|delivery| delivery.status != "SENDING");
            let is_due = deliveries()
                .any(|delivery| delivery.status == "PENDING" && delivery.wait_reason != "parked");
            let wish = wishes.iter().find(|wish| wish.endpoint == *endpoint);
            let capacity = wish.map_or(0, |wish| wish.capacity as usize);
            assert!(capacity > 0 || !is_due || !is_idle || self.is_cautious);

            let mut waiting: Vec<_> = (self.deliveries.iter_mut())
                .filter(|delivery| delivery.endpoint == *endpoint && delivery.status == "PENDING")
                .filter(|delivery| delivery.wait_reason != "parked")
                .collect();
            waiting.sort_by_key(|delivery| delivery.event);
            for delivery in waiting.into_iter().take(capacity) {
                delivery.attempts += 1;
                delivery.claim_seq += 1;
                delivery.queued("SENDING");
                expected.insert(Claim {
                    event: delivery.event,
                    endpoint: *endpoint,
                    claim_seq: delivery.claim_seq,
                    earlier_attempts: delivery.attempts - 1,
                });
            }
        }
        assert_eq!(claimed, expected);
        self.is_cautious = false;
    }

    fn settle(&mut self) {
        let mut out: Vec<usize> = (0..self.deliveries.len())
            .filter(|index| self.deliveries[*index].status == "SENDING")
            .collect();
        self.random.shuffle(&mut out);
        out.truncate(self.random.below(out.len() + 1));
        for index in &out {
            let outcome = random_outcome(&mut self.random);
            let delivery = &self.deliveries[*index];
            let claim = Claim {
                event: delivery.event,
                endpoint: delivery.endpoint,
                // The result of an earlier claim, or of one that this row never had, must change nothing.
                claim_seq: delivery.claim_seq - i64::from(self.random.chance(10)),
                earlier_attempts: delivery.attempts - 1,
            };
            match outcome.failure {
                Some("released") => self.engine.wire().hold_back(claim),
                _ => self.engine.wire().end(claim, &outcome),
            }
        }
        self.engine.hold(Some(Hold::Claiming));
        self.engine.withdraw_waiting();
        let loses_answer = !out.is_empty() && self.random.chance(30);
        self.engine.store().connection.loses_an_answer = loses_answer;
        let exchanges = self.turn();
        let handed_in = exchanges.iter().flat_map(|e| &e.endings).count();
        assert_eq!(handed_in, out.len());
        for exchange in exchanges {
            let expected = self.follow(&exchange);
            assert_eq!(exchange.settled, expected);
        }
        // An engine that does not know whether its commit has succeeded settles once more.
        if loses_answer {
            self.is_cautious = true;
            let exchanges = self.turn();
            assert_eq!(exchanges.len(), out.len());
            for exchange in exchanges {
                assert_eq!(exchange.settled, Settled::default());
            }
        }
        assert_eq!(self.turn().len(), 0, "something was not settled");
        // An answer may disable its endpoint; that is not what this model is about.
        let enable = "UPDATE webhook.endpoint SET disabled_at = NULL, disabled_reason = NULL";
        self.transaction.execute(enable);
    }

    fn follow(&mut self, exchange: &Exchange) -> Settled {
        let mut expected = Settled::default();
        let mut forgotten = HashSet::new();
        for (key, outcome) in &exchange.endings {
            let delivery = (self.deliveries.iter_mut())
                .find(|d| (d.event, d.endpoint) == (key.event_id, key.endpoint_id))
                .expect("it is one of ours");
            let late = delivery.claim_seq != key.claim_seq;
            let endpoint = self
                .endpoints
                .iter()
                .find(|(id, _)| *id == delivery.endpoint);
            let policy = &self.policies[endpoint.expect("it is one of ours").1];
            let verdict = policy.verdict(outcome);
            let (attempt, logged) = match verdict {
                Verdict::AsIfNeverClaimed => (None, None),
                _ if late => (None, Some("late")),
                _ => (Some(delivery.attempts), verdict.logged()),
            };
            if let Some(logged) = logged {
                let reason = outcome.reason().filter(|_| verdict != Verdict::Success);
                let key = (key.event_id, key.endpoint_id, key.claim_seq);
                let log = self.attempts.entry(key);
                log.or_insert((attempt, logged, reason));
            }
            if late {
                continue;
            }
            if !delivery.settle(policy, outcome, self.now) {
                forgotten.insert((delivery.event, delivery.endpoint));
            }
            if delivery.partition != "webhook.delivery_queue" {
                let retries = i64::from(delivery.attempts - 1);
                expected.counted[0] += 1;
                expected.counted[1] += i64::from(retries > 0);
                expected.counted[2] += retries;
            }
        }
        self.deliveries
            .retain(|delivery| !forgotten.contains(&(delivery.event, delivery.endpoint)));
        self.attempts
            .retain(|(event, endpoint, _), _| !forgotten.contains(&(*event, *endpoint)));
        expected
    }

    fn compare(&mut self) {
        let query = "
            SELECT event_id, endpoint_id, tableoid::regclass::text, status, attempts, max_attempts, claim_seq,
                   last_status_code, last_error, duration_ms, (extract(epoch FROM next_attempt_at) * 1000000)::float8,
                   num_nonnulls(claimed_by, claimed_at) = CASE status WHEN 'SENDING' THEN 2 ELSE 0 END
                       AND (completed_at IS NOT NULL) = (status IN ('SENT', 'FAILED')) AND isfinite(next_attempt_at),
                   wait_reason, reason, (extract(epoch FROM last_attempt_at) * 1000000)::float8
            FROM webhook.delivery ORDER BY event_id, endpoint_id";
        let rows = self.transaction.query(query, &[]);
        self.deliveries
            .sort_by_key(|delivery| (delivery.event, delivery.endpoint));
        let keys: Vec<(Uuid, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected_keys: Vec<_> = (self.deliveries.iter())
            .map(|delivery| (delivery.event, delivery.endpoint))
            .collect();
        assert_eq!(keys, expected_keys);

        for (row, expected) in rows.iter().zip(&self.deliveries) {
            let seen = (
                row.get::<_, &str>(2),
                row.get::<_, &str>(3),
                row.get::<_, i32>(4),
                row.get::<_, i32>(5),
                row.get::<_, i64>(6),
                row.get::<_, Option<i32>>(7),
                row.get::<_, Option<&str>>(8),
                row.get::<_, Option<i32>>(9),
            );
            let wanted = (
                expected.partition,
                expected.status,
                expected.attempts,
                expected.max_attempts,
                expected.claim_seq,
                expected.last_status,
                expected.last_error.as_deref(),
                expected.duration_ms,
            );
            assert_eq!(seen, wanted);
            let seen = (
                row.get::<_, &str>(12),
                row.get::<_, Option<&str>>(13),
                row.get::<_, Option<f64>>(14),
            );
            let wanted = (
                expected.wait_reason,
                expected.reason,
                expected.last_attempt_at,
            );
            assert_eq!(seen, wanted);
            assert!(
                row.get::<_, bool>(11),
                "claim and completion of {expected:?}"
            );
            if let Some((earliest, latest)) = expected.due {
                let due: f64 = row.get(10);
                let within = earliest - SLACK..=latest + SLACK;
                assert!(
                    within.contains(&due),
                    "{due} is not within {within:?}: {expected:?}"
                );
            }
        }
        self.compare_attempts();
    }

    fn compare_attempts(&mut self) {
        let query =
            "SELECT event_id, endpoint_id, claim_seq, attempt, verdict, reason FROM webhook.attempt
                     ORDER BY event_id, endpoint_id, claim_seq";
        let rows = self.transaction.query(query, &[]);
        let seen: Vec<_> = (rows.iter())
            .map(|row| {
                let key = (row.get(0), row.get(1), row.get(2));
                let attempt: (Option<i32>, &str, Option<&str>) =
                    (row.get(3), row.get(4), row.get(5));
                (key, attempt)
            })
            .collect();
        let wanted: Vec<_> = self
            .attempts
            .iter()
            .map(|(key, log)| (*key, *log))
            .collect();
        assert_eq!(seen, wanted);
    }
}
