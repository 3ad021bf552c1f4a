//! The engine, over the relay's session, and its SQL against a model written from the documentation alone: random
//! policies, random outcomes in batches of random size, and after each batch every delivery must be where the model
//! has it.

mod model;

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;
use webhook_e2e::Cluster;
use webhook_e2e::engine::{Claim, Settled};
use webhook_e2e::random::{self, Random};
use webhook_e2e::scripted::{self, Engine, Exchange, Transaction};
use webhook_engine::{Hold, Wake};

use model::{Delivery, Policy, Verdict, random_outcome};

const CASES: u64 = 200;
const ENDPOINTS: usize = 2;
const EVENTS: usize = 4;
const ROUNDS: usize = 12;
/// A wait is rounded to whole microseconds.
const SLACK: f64 = 2.0;

#[test]
fn sql_does_what_the_model_does() {
    let cluster = Cluster::relayed();
    let database = cluster.database("model");
    let transaction = Transaction::connect(cluster, &database);
    random::for_each_seed(CASES, |random| Case::run(&transaction, random));
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

    /// A delivery under way keeps its max_attempts and follows the endpoint's policy in all else.
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

    /// A person makes waiting deliveries due, and parks some of them until the next round; endpoints that a status or
    /// too many failures switched off are switched on again.
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
        // An answer may disable its endpoint; this model is not about that.
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
