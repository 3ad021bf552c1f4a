//! The breaker in SQL against a model of it, written from the documentation alone and applied one outcome at a time:
//! random policies, random outcomes in batches of random size and order, probes, tests, and people who interfere. After
//! each step every breaker, endpoint, delivery and alert must be as the model has it.

use postgres::{Client, Row, Transaction};
use uuid::Uuid;
use webhook_e2e::engine::{self, Claim, Outcome, Wish};
use webhook_e2e::random::{self, Random};

const CASES: u64 = 200;
const ENDPOINTS: usize = 4;
const POLICIES: usize = 4;
const ROUNDS: usize = 12;

/// Microseconds.
const SECOND: i64 = 1_000_000;
/// What a policy cannot go below.
const SHORTEST_WAIT: i64 = SECOND / 10;
const RAMP_ENDS_AT: i32 = 128;

#[test]
fn sql_moves_the_breaker_as_the_model_does() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("model");
    let mut client = database.connect();
    random::for_each_seed(CASES, |random| Case::run(&mut client, random));
}

#[derive(Debug)]
struct Policy {
    max_attempts: i32,
    retry_delay: i64,
    timeouts_are_retried: bool,
    gone_disables: bool,
    keep_sent: bool,
    lease: i64,
    failure_threshold: i32,
    warn_threshold: i32,
    cooldown: i64,
    max_cooldown: i64,
    breaker_counts: &'static str,
    on_trip: &'static str,
    on_exhausted: &'static str,
}

impl Policy {
    fn random(random: &mut Random) -> Policy {
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

    fn insert(&self, name: &str) -> String {
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

    fn verdict(&self, outcome: &Outcome) -> Verdict {
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
enum Verdict {
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
struct Breaker {
    state: String,
    failures: i32,
    last_failure_at: Option<i64>,
    reason: Option<String>,
    last_error: Option<String>,
    trips: i32,
    opened_at: Option<i64>,
    probe_at: Option<i64>,
    probe: Option<(Uuid, i64)>,
    ramp: Option<i32>,
    retries_before: Option<i64>,
    test: Option<Uuid>,
}

impl Breaker {
    fn new() -> Breaker {
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
            ramp: None,
            retries_before: None,
            test: None,
        }
    }

    fn is_closed(&self) -> bool {
        self.state == "CLOSED"
    }

    /// The counter is 0, what waits is due, and after an outage the backlog is drained slowly at first.
    fn close(&mut self, at: i64) {
        let was_open = !self.is_closed();
        *self = Breaker {
            last_failure_at: self.last_failure_at,
            reason: self.reason.take(),
            last_error: self.last_error.take(),
            ramp: if was_open { Some(1) } else { self.ramp },
            retries_before: Some(at),
            test: self.test,
            ..Breaker::new()
        };
    }

    /// Each time in a row the cooldown is twice as long.
    fn open(&mut self, policy: &Policy, at: i64) {
        self.state = "OPEN".to_owned();
        self.opened_at = self.opened_at.or(Some(at));
        let cooldown = policy.cooldown as f64 * 2f64.powi(self.trips);
        let cooldown = cooldown.min(policy.max_cooldown as f64) as i64;
        self.probe_at = Some(at + cooldown.max(SHORTEST_WAIT));
        self.trips += 1;
        (self.probe, self.ramp, self.retries_before) = (None, None, None);
    }

    fn wait_for_another_probe(&mut self, at: i64) {
        self.state = "OPEN".to_owned();
        (self.probe_at, self.probe) = (Some(at), None);
    }
}

/// Its kind, the code of its reason, and the sentence.
type Alert = (String, Option<String>, Option<String>);

fn closed(reason: Option<&str>) -> Alert {
    ("closed".to_owned(), reason.map(str::to_owned), None)
}

struct Endpoint {
    id: i32,
    policy: usize,
    paused: bool,
    disabled: Option<String>,
    breaker: Breaker,
    alerts: Vec<Alert>,
    failed: i64,
}

impl Endpoint {
    fn is_served(&self) -> bool {
        !self.paused && self.disabled.is_none()
    }

    fn disable(&mut self, reason: &str, outcome: &Outcome) {
        if self.disabled.is_none() {
            self.disabled = Some(reason.to_owned());
            let reason = Some(reason.to_owned());
            (self.alerts).push(("disabled".to_owned(), reason, outcome.described()));
        }
    }

    /// One outcome; `ended`: it was the delivery's last.
    fn follow(
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

    fn succeeded(&mut self, is_probe: bool, is_test: bool, at: i64) {
        if (is_probe || is_test) && !self.breaker.is_closed() {
            self.alerts.push(closed(None));
            self.breaker.close(at);
        } else if !is_test && self.breaker.is_closed() {
            self.breaker.ramp = (self.breaker.ramp)
                .map(|ramp| ramp + 1)
                .filter(|ramp| *ramp < RAMP_ENDS_AT);
        }
        if is_test && self.disabled.as_deref() == Some("exhausted") {
            self.disabled = None;
            self.breaker.close(at);
        }
        if self.breaker.is_closed() {
            self.breaker.failures = 0;
        }
    }

    fn failed(&mut self, policy: &Policy, is_probe: bool, outcome: &Outcome, ended: bool, at: i64) {
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
        breaker.ramp = breaker.ramp.map(|ramp| (ramp / 2).max(1));
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
struct Delivery {
    event: Uuid,
    endpoint: i32,
    status: String,
    attempts: i32,
    max_attempts: i32,
    claim_seq: i64,
    /// These three only while it is queued, and the first only while it is not parked.
    due_at: Option<i64>,
    wait_reason: Option<String>,
    last_attempt_at: Option<i64>,
    is_test: bool,
}

impl Delivery {
    fn is_pending(&self) -> bool {
        self.status == "PENDING"
    }

    fn is_sending(&self) -> bool {
        self.status == "SENDING"
    }

    fn claim(&self) -> Claim {
        Claim {
            event: self.event,
            endpoint: self.endpoint,
            claim_seq: self.claim_seq,
            earlier_attempts: self.attempts - 1,
        }
    }

    fn finish(&mut self, status: &str) {
        self.status = status.to_owned();
        (self.due_at, self.wait_reason, self.last_attempt_at) = (None, None, None);
    }

    fn wait_until(&mut self, due_at: i64, reason: &str) {
        self.status = "PENDING".to_owned();
        self.due_at = Some(due_at);
        self.wait_reason = Some(reason.to_owned());
    }

    fn waits_as(&self, reason: &str) -> bool {
        self.is_pending() && self.wait_reason.as_deref() == Some(reason)
    }

    fn is_due(&self, now: i64) -> bool {
        self.is_pending() && self.due_at.is_some_and(|due_at| due_at <= now)
    }

    /// A retry does not wait for its time once a breaker has closed.
    fn is_brought_forward(&self, breaker: &Breaker) -> bool {
        self.waits_as("retry") && self.last_attempt_at < breaker.retries_before
    }

    fn settle(&mut self, policy: &Policy, verdict: Verdict, at: i64) {
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

struct Case<'a, 'b> {
    random: Random,
    transaction: &'a mut Transaction<'b>,
    /// What happens before the next claim, as one script.
    script: String,
    now: i64,
    policies: Vec<Policy>,
    endpoints: Vec<Endpoint>,
    deliveries: Vec<Delivery>,
}

impl Case<'_, '_> {
    /// In a transaction that is rolled back: its clock stands still, and no case sees another's rows.
    fn run(client: &mut Client, random: Random) {
        let mut transaction = client.transaction().unwrap();
        let now = "SELECT (extract(epoch FROM now()) * 1000000)::bigint";
        let now = transaction.query_one(now, &[]).unwrap().get(0);
        let mut case = Case {
            random,
            transaction: &mut transaction,
            script: String::new(),
            now,
            policies: Vec::new(),
            endpoints: Vec::new(),
            deliveries: Vec::new(),
        };
        case.prepare();
        for _ in 0..ROUNDS {
            case.emit();
            for place in 0..ENDPOINTS {
                case.interfere(place);
            }
            case.run_script();
            case.claim();
            case.settle();
            case.compare();
        }
    }

    /// Under ids that no other case has, since an index keeps for a while what was rolled back.
    fn prepare(&mut self) {
        let first_id = self.random.below(100_000_000) * ENDPOINTS;
        for number in 0..POLICIES {
            let policy = Policy::random(&mut self.random);
            self.script += &policy.insert(&format!("policy_{number}"));
            self.policies.push(policy);
        }
        for place in 0..ENDPOINTS {
            let (id, policy) = ((first_id + place) as i32, self.random.below(POLICIES));
            self.script += &format!(
                "INSERT INTO webhook.endpoint (id, name, url, policy)
                 VALUES ({id}, 'endpoint_{id}', 'http://127.0.0.1:9/', 'policy_{policy}');"
            );
            self.endpoints.push(Endpoint {
                id,
                policy,
                paused: false,
                disabled: None,
                breaker: Breaker::new(),
                alerts: Vec::new(),
                failed: 0,
            });
        }
    }

    #[track_caller]
    fn run_script(&mut self) {
        let done = self.transaction.batch_execute(&self.script);
        done.unwrap_or_else(|error| panic!("{}: {error:?}", self.script));
        self.script.clear();
    }

    /// Due for some time, now, or later.
    fn emit(&mut self) {
        for _ in 0..self.random.below(4) {
            let event = self.random.uuid();
            let due_in = self.random.below(60) as i64 - 50;
            for place in 0..ENDPOINTS {
                let policy = &self.policies[self.endpoints[place].policy];
                self.queue(place, event, "order.created", policy.max_attempts, due_in);
            }
        }
    }

    fn queue(
        &mut self,
        place: usize,
        event: Uuid,
        event_type: &str,
        max_attempts: i32,
        due_in: i64,
    ) {
        let endpoint = self.endpoints[place].id;
        self.script += &format!(
            "INSERT INTO webhook.event (id, event_type, payload, created_at) VALUES ('{event}', '{event_type}', '{{}}', now())
             ON CONFLICT DO NOTHING;
             INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at)
             VALUES ('{event}', {endpoint}, '{event_type}', {max_attempts}, now() + interval '{due_in} s');"
        );
        self.deliveries.push(Delivery {
            event,
            endpoint,
            status: "PENDING".to_owned(),
            attempts: 0,
            max_attempts,
            claim_seq: 0,
            due_at: Some(self.now + due_in * SECOND),
            wait_reason: Some("new".to_owned()),
            last_attempt_at: None,
            is_test: event_type == "webhook.test",
        });
    }

    /// Time passes for the breaker, or somebody does something to the endpoint or its deliveries.
    fn interfere(&mut self, place: usize) {
        let endpoint = &mut self.endpoints[place];
        let id = endpoint.id;
        self.script += &match self.random.below(30) {
            0..8 => {
                if !endpoint.breaker.is_closed() {
                    endpoint.breaker.probe_at = Some(self.now - SECOND);
                }
                format!(
                    "UPDATE webhook.breaker SET probe_at = now() - interval '1 s' WHERE endpoint_id = {id} AND state <> 'CLOSED';"
                )
            }
            8..14 => {
                endpoint.disabled = None;
                format!(
                    "UPDATE webhook.endpoint SET disabled_at = NULL, disabled_reason = NULL WHERE id = {id};"
                )
            }
            14..16 => {
                endpoint.paused = self.random.chance(30);
                let at = if endpoint.paused { "now()" } else { "NULL" };
                format!("UPDATE webhook.endpoint SET paused_at = {at} WHERE id = {id};")
            }
            16 => {
                endpoint.policy = self.random.below(POLICIES);
                let policy = endpoint.policy;
                format!("UPDATE webhook.endpoint SET policy = 'policy_{policy}' WHERE id = {id};")
            }
            17 => {
                if !endpoint.breaker.is_closed() {
                    endpoint.alerts.push(closed(Some("by_hand")));
                }
                // Where nothing ever failed there is nothing to reset.
                if endpoint.breaker != Breaker::new() {
                    endpoint.breaker.close(self.now);
                }
                format!("SELECT webhook_reset_breaker('endpoint_{id}');")
            }
            18 => {
                let ramp = RAMP_ENDS_AT - 1 - self.random.below(3) as i32;
                endpoint.breaker.ramp = endpoint.breaker.ramp.and(Some(ramp));
                format!(
                    "UPDATE webhook.breaker SET ramp = {ramp} WHERE endpoint_id = {id} AND ramp IS NOT NULL;"
                )
            }
            19 => return self.take_from_the_worker(place, "PENDING"),
            20 => return self.take_from_the_worker(place, "CANCELLED"),
            21..24 => return self.begin_a_test(place),
            24..27 => return self.choose_a_time(place),
            _ => return,
        };
    }

    /// What is in flight is requeued or cancelled by a person.
    fn take_from_the_worker(&mut self, place: usize, status: &str) {
        let endpoint = self.endpoints[place].id;
        let out = self.places(|delivery| {
            delivery.endpoint == endpoint && delivery.is_sending() && !delivery.is_test
        });
        if out.is_empty() {
            return;
        }
        let delivery = &mut self.deliveries[self.random.one_of(&out)];
        if status == "PENDING" {
            delivery.attempts = 0;
            delivery.wait_until(self.now, "replayed");
            delivery.last_attempt_at = None;
        } else {
            delivery.finish(status);
        }
        self.script += &format!(
            "UPDATE webhook.delivery SET status = '{status}' WHERE event_id = '{}' AND endpoint_id = {endpoint};",
            delivery.event
        );
    }

    /// A person parks what waits, makes it due, or puts it off. The same time as before changes nothing, unless it was parked.
    fn choose_a_time(&mut self, place: usize) {
        let endpoint = self.endpoints[place].id;
        let waiting = self.places(|delivery| {
            delivery.endpoint == endpoint && delivery.is_pending() && !delivery.is_test
        });
        if waiting.is_empty() {
            return;
        }
        let delivery = &mut self.deliveries[self.random.one_of(&waiting)];
        let time = match self.random.below(3) {
            0 => {
                delivery.wait_reason = Some("parked".to_owned());
                delivery.due_at = None;
                "'infinity'"
            }
            choice => {
                let at = self.now + [0, 30 * SECOND][choice - 1];
                if delivery.due_at != Some(at) {
                    delivery.wait_until(at, "scheduled");
                }
                ["now()", "now() + interval '30 s'"][choice - 1]
            }
        };
        self.script += &format!(
            "UPDATE webhook.delivery SET next_attempt_at = {time} WHERE event_id = '{}' AND endpoint_id = {endpoint};",
            delivery.event
        );
    }

    /// As webhook_test() does it, which refuses where nothing is sent.
    fn begin_a_test(&mut self, place: usize) {
        let (endpoint, event) = (&mut self.endpoints[place], self.random.uuid());
        if endpoint.breaker.test.is_some() {
            return;
        }
        endpoint.breaker.test = Some(event);
        self.script += &format!(
            "INSERT INTO webhook.breaker (endpoint_id, test_event_id) VALUES ({}, '{event}')
             ON CONFLICT (endpoint_id) DO UPDATE SET test_event_id = excluded.test_event_id;",
            endpoint.id
        );
        self.queue(place, event, "webhook.test", 1, 0);
    }

    fn places(&self, wanted: impl Fn(&Delivery) -> bool) -> Vec<usize> {
        (0..self.deliveries.len())
            .filter(|place| wanted(&self.deliveries[*place]))
            .collect()
    }

    fn claim(&mut self) {
        let wishes: Vec<Wish> = (self.endpoints.iter())
            .map(|endpoint| Wish {
                endpoint: endpoint.id,
                capacity: self.random.below(8) as i32,
                in_flight: self.random.below(3) as i32,
            })
            .collect();
        let mut claimed = engine::claim(self.transaction, 1, &wishes);

        let mut picked: Vec<usize> = Vec::new();
        for (place, wish) in wishes.iter().enumerate() {
            picked.extend(self.due(place, wish));
            picked.extend(self.probe(place));
            let test = self.endpoints[place].breaker.test;
            picked.extend(
                self.places(|delivery| delivery.is_due(self.now) && Some(delivery.event) == test),
            );
            self.end_catching_up(place);
        }
        picked.sort_unstable();
        picked.dedup();
        let mut expected = Vec::new();
        for place in picked {
            let delivery = &mut self.deliveries[place];
            delivery.status = "SENDING".to_owned();
            delivery.attempts += 1;
            delivery.claim_seq += 1;
            expected.push(delivery.claim());
        }
        claimed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(claimed, expected);
    }

    /// The longest due first; while an endpoint recovers, no more than it may have in flight.
    fn due(&self, place: usize, wish: &Wish) -> Vec<usize> {
        let Endpoint { id, breaker, .. } = &self.endpoints[place];
        let room = (breaker.ramp).map_or(wish.capacity, |ramp| {
            wish.capacity.min(ramp - wish.in_flight).max(0)
        });
        if !self.endpoints[place].is_served() || !breaker.is_closed() {
            return Vec::new();
        }
        let mut due = self.places(|delivery| {
            delivery.endpoint == *id
                && (delivery.is_due(self.now) || delivery.is_brought_forward(breaker))
        });
        due.sort_by_key(|place| {
            (
                self.deliveries[*place].due_at,
                self.deliveries[*place].event,
            )
        });
        due.truncate(room as usize);
        due
    }

    /// Once the cooldown or the lease is over, and the old one is not under way any more: what has waited longest.
    fn probe(&mut self, place: usize) -> Option<usize> {
        let Endpoint { id, breaker, .. } = &self.endpoints[place];
        let is_under_way = self.deliveries.iter().any(|delivery| {
            delivery.endpoint == *id
                && delivery.is_sending()
                && breaker.probe == Some((delivery.event, delivery.claim_seq))
        });
        let is_over = breaker.probe_at.is_some_and(|at| at <= self.now);
        if !is_over || is_under_way || !self.endpoints[place].is_served() {
            return None;
        }
        let waiting = self.places(|delivery| {
            delivery.endpoint == *id
                && !delivery.is_test
                && (delivery.is_due(self.now) || delivery.waits_as("retry"))
        });
        let oldest = waiting.into_iter().min_by_key(|place| {
            (
                self.deliveries[*place].due_at,
                self.deliveries[*place].event,
            )
        })?;
        let delivery = &self.deliveries[oldest];
        let lease = self.policies[self.endpoints[place].policy].lease;
        let breaker = &mut self.endpoints[place].breaker;
        breaker.state = "HALF_OPEN".to_owned();
        breaker.probe = Some((delivery.event, delivery.claim_seq + 1));
        breaker.probe_at = Some(self.now + lease);
        Some(oldest)
    }

    /// Retries are brought forward until a claim finds none that waits.
    fn end_catching_up(&mut self, place: usize) {
        let Endpoint { id, breaker, .. } = &self.endpoints[place];
        let waits = self.deliveries.iter().any(|delivery| {
            delivery.endpoint == *id
                && delivery.is_brought_forward(breaker)
                && delivery.due_at > Some(self.now)
        });
        if !waits {
            self.endpoints[place].breaker.retries_before = None;
        }
    }

    fn settle(&mut self) {
        let mut out = self.places(Delivery::is_sending);
        self.random.shuffle(&mut out);
        out.truncate(1 + self.random.below(out.len() + 1));
        let good = self.random.one_of(&[10, 10, 50, 90]);
        let mut batch: Vec<(usize, Claim, Outcome)> = Vec::new();
        for place in out {
            let outcome = self.random_outcome(good);
            let mut claim = self.deliveries[place].claim();
            // The result of an earlier claim, or of one that this row never had, must change nothing.
            claim.claim_seq -= i64::from(self.random.chance(5));
            batch.push((place, claim, outcome));
        }
        let handed_in: Vec<_> = (batch.iter())
            .map(|(_, claim, outcome)| (*claim, outcome.clone()))
            .collect();
        let settled = engine::settle(self.transaction, &handed_in);
        assert_eq!(settled.locked, [], "nobody locks anything here");

        // Those that ended at the same time in the order in which they were handed in.
        let now = self.now;
        let ended_at = |outcome: &Outcome| now - (outcome.age_ms * 1e3) as i64;
        batch.sort_by_key(|(_, _, outcome)| ended_at(outcome));
        for (place, claim, outcome) in batch {
            let delivery = &mut self.deliveries[place];
            if delivery.claim_seq != claim.claim_seq {
                continue;
            }
            let endpoint = (self.endpoints.iter_mut())
                .find(|endpoint| endpoint.id == delivery.endpoint)
                .expect("it is one of ours");
            let policy = &self.policies[endpoint.policy];
            let verdict = policy.verdict(&outcome);
            let at = ended_at(&outcome);
            delivery.settle(policy, verdict, at);
            let ended = delivery.status == "FAILED";
            endpoint.follow(policy, delivery, &outcome, verdict, ended, at);
            endpoint.failed += i64::from(ended && !delivery.is_test);
            if delivery.status == "SENT" && !policy.keep_sent && !delivery.is_test {
                delivery.status = "FORGOTTEN".to_owned();
            }
        }
        self.deliveries
            .retain(|delivery| delivery.status != "FORGOTTEN");
    }

    /// Some batches are mostly bad, some mostly good.
    fn random_outcome(&mut self, good: usize) -> Outcome {
        let random = &mut self.random;
        // Few different times, so that some are the same.
        let age_ms = 1000.0 * random.below(50) as f64;
        if random.chance(good) {
            return Outcome::status(200, age_ms);
        }
        match random.below(20) {
            0..10 => Outcome::status(500 + random.below(5) as i32, age_ms),
            10..13 => Outcome::status(404, age_ms),
            13 => Outcome::status(410, age_ms),
            14..16 => Outcome::error("timeout", age_ms),
            16..18 => Outcome::error("local", age_ms),
            _ => Outcome::error("released", age_ms),
        }
    }

    fn compare(&mut self) {
        self.compare_endpoints();
        self.compare_deliveries();
        self.compare_alerts();
    }

    fn compare_endpoints(&mut self) {
        let query = "
            SELECT e.disabled_reason, b.endpoint_id, b.state, b.consecutive_failures, b.last_error, b.trips, b.probe_event_id,
                   b.probe_claim_seq, b.ramp, b.test_event_id,
                   (extract(epoch FROM b.last_failure_at) * 1000000)::bigint, (extract(epoch FROM b.opened_at) * 1000000)::bigint,
                   (extract(epoch FROM b.probe_at) * 1000000)::bigint, (extract(epoch FROM b.retries_before) * 1000000)::bigint,
                   b.reason
            FROM webhook.endpoint e LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id ORDER BY e.id";
        let rows = self.transaction.query(query, &[]).unwrap();
        for (row, endpoint) in rows.iter().zip(&self.endpoints) {
            let breaker = match row.get::<_, Option<i32>>(1) {
                Some(_) => stored_breaker(row),
                None => Breaker::new(),
            };
            assert_eq!(breaker, endpoint.breaker);
            assert_eq!(row.get::<_, Option<String>>(0), endpoint.disabled);
        }
    }

    fn compare_deliveries(&mut self) {
        let query = "
            SELECT event_id, endpoint_id, status, attempts, max_attempts, claim_seq, event_type = 'webhook.test',
                   (extract(epoch FROM next_attempt_at) * 1000000)::bigint, wait_reason,
                   (extract(epoch FROM last_attempt_at) * 1000000)::bigint
            FROM webhook.delivery ORDER BY event_id, endpoint_id";
        let rows = self.transaction.query(query, &[]).unwrap();
        let stored: Vec<Delivery> = rows.iter().map(stored_delivery).collect();
        self.deliveries
            .sort_by_key(|delivery| (delivery.event, delivery.endpoint));
        assert_eq!(stored, self.deliveries);
    }

    fn compare_alerts(&mut self) {
        let query = "
            WITH raised AS (DELETE FROM webhook.alert RETURNING *)
            SELECT coalesce(array_agg(kind ORDER BY raised.id) FILTER (WHERE kind <> 'failed'), '{}'),
                   array_agg(reason ORDER BY raised.id) FILTER (WHERE kind <> 'failed'),
                   array_agg(error ORDER BY raised.id) FILTER (WHERE kind <> 'failed'),
                   coalesce(bool_and(webhook.is_reason(reason) AND error IS NOT NULL) FILTER (WHERE kind = 'failed'), true),
                   coalesce(sum(deliveries) FILTER (WHERE kind = 'failed'), 0)::bigint
            FROM webhook.endpoint e LEFT JOIN raised ON raised.endpoint_id = e.id GROUP BY e.id ORDER BY e.id";
        let rows = self.transaction.query(query, &[]).unwrap();
        for (row, endpoint) in rows.iter().zip(&mut self.endpoints) {
            let column = |index| {
                row.get::<_, Option<Vec<Option<String>>>>(index)
                    .unwrap_or_default()
            };
            let alerts = row.get::<_, Vec<String>>(0).into_iter();
            let alerts = alerts.zip(column(1)).zip(column(2));
            let alerts: Vec<Alert> = (alerts)
                .map(|((kind, reason), error)| (kind, reason, error))
                .collect();
            assert_eq!(alerts, endpoint.alerts);
            assert!(row.get::<_, bool>(3), "a failure without a reason");
            assert_eq!(row.get::<_, i64>(4), endpoint.failed);
            endpoint.alerts.clear();
            endpoint.failed = 0;
        }
    }
}

fn stored_breaker(row: &Row) -> Breaker {
    Breaker {
        state: row.get(2),
        failures: row.get(3),
        last_error: row.get(4),
        trips: row.get(5),
        probe: row.get::<_, Option<Uuid>>(6).zip(row.get(7)),
        ramp: row.get(8),
        test: row.get(9),
        last_failure_at: row.get(10),
        opened_at: row.get(11),
        probe_at: row.get(12),
        retries_before: row.get(13),
        reason: row.get(14),
    }
}

fn stored_delivery(row: &Row) -> Delivery {
    let (status, wait_reason): (String, String) = (row.get(2), row.get(8));
    let is_queued = status == "PENDING" || status == "SENDING";
    Delivery {
        event: row.get(0),
        endpoint: row.get(1),
        status,
        attempts: row.get(3),
        max_attempts: row.get(4),
        claim_seq: row.get(5),
        is_test: row.get(6),
        due_at: row
            .get::<_, Option<i64>>(7)
            .filter(|_| is_queued && wait_reason != "parked"),
        wait_reason: is_queued.then_some(wait_reason),
        last_attempt_at: row.get::<_, Option<i64>>(9).filter(|_| is_queued),
    }
}
