//! The engine, over the relay's session, and the breaker in SQL against a model written from the documentation alone
//! and applied one outcome at a time: random policies, random outcomes in batches of random size and order, probes,
//! tests, and people who interfere. After each step every breaker, endpoint, delivery and alert must be as the model
//! has it.

mod model;

use postgres::Row;
use uuid::Uuid;
use webhook_delivery::Key;
use webhook_e2e::Cluster;
use webhook_e2e::engine::{Outcome, Wish};
use webhook_e2e::random::{self, Random};
use webhook_e2e::scripted::{self, Engine, Exchange, Transaction};
use webhook_engine::Wake;

use model::{Alert, Breaker, Delivery, Endpoint, Policy, SECOND, closed};

const CASES: u64 = 200;
const ENDPOINTS: usize = 4;
const POLICIES: usize = 4;
const ROUNDS: usize = 12;

#[test]
fn sql_moves_the_breaker_as_the_model_does() {
    let cluster = Cluster::relayed();
    let database = cluster.database("model");
    let transaction = Transaction::connect(cluster, &database);
    random::for_each_seed(CASES, |random| Case::run(&transaction, random));
}

struct Case<'a> {
    random: Random,
    transaction: &'a Transaction,
    engine: Engine,
    /// The changes before the next claim, as one script.
    script: String,
    now: i64,
    policies: Vec<Policy>,
    endpoints: Vec<Endpoint>,
    deliveries: Vec<Delivery>,
}

impl Case<'_> {
    /// In a transaction that is rolled back: its clock stands still, and no case sees another's rows.
    fn run(transaction: &Transaction, random: Random) {
        transaction.execute("BEGIN");
        let now = "SELECT (extract(epoch FROM now()) * 1000000)::bigint";
        let now = transaction.query(now, &[])[0].get(0);
        let mut case = Case {
            random,
            transaction,
            engine: scripted::engine(transaction),
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
            case.end_some();
            case.turn();
            case.compare();
        }
        transaction.execute("ROLLBACK");
    }

    /// Ids are those of no other case, since an index keeps rolled back rows for a while.
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
                "INSERT INTO webhook.endpoint (id, name, url, policy, max_in_flight)
                 VALUES ({id}, 'endpoint_{id}', 'http://127.0.0.1:9/', 'policy_{policy}', {});",
                1 + self.random.below(7)
            );
            self.endpoints.push(Endpoint {
                id,
                policy,
                paused: false,
                disabled: None,
                breaker: Breaker::new(),
                was_tested: false,
                alerts: Vec::new(),
                failed: 0,
            });
        }
    }

    #[track_caller]
    fn run_script(&mut self) {
        self.transaction.execute(&self.script);
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
                // Where nothing ever failed and nobody has tested there is no breaker to reset.
                if endpoint.breaker != Breaker::new() || endpoint.was_tested {
                    endpoint.breaker.close(self.now);
                }
                format!("SELECT webhook_reset_breaker('endpoint_{id}');")
            }
            18..20 => return self.take_from_the_worker(place, "PENDING"),
            20 => return self.take_from_the_worker(place, "CANCELLED"),
            21..24 => return self.begin_a_test(place),
            24..27 => return self.choose_a_time(place),
            _ => return,
        };
    }

    /// A person requeues or cancels a delivery in flight.
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

    /// A person parks a waiting delivery, makes it due, or puts it off. The same time as before changes nothing,
    /// unless it was parked.
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
        endpoint.was_tested = true;
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

    /// Requests end, in any order, and others are held back, so that the engine may withdraw them.
    fn end_some(&mut self) {
        let mut out = self.engine.wire().in_flight();
        out.sort_unstable();
        self.random.shuffle(&mut out);
        let ended = self.random.below(out.len() + 1);
        let good = self.random.one_of(&[10, 10, 50, 90]);
        for (place, mut claim) in out.into_iter().enumerate() {
            if place < ended {
                let outcome = self.random_outcome(good);
                // The result of an earlier claim, or of one that this row never had, must change nothing.
                claim.claim_seq -= i64::from(self.random.chance(5));
                self.engine.wire().end(claim, &outcome);
            } else if self.random.chance(30) {
                self.engine.wire().hold_back(claim);
            }
        }
        if self.random.chance(20) {
            self.engine.withdraw_waiting();
        }
    }

    fn turn(&mut self) {
        let in_want = self.in_want();
        let closed = |endpoint: &Endpoint| endpoint.breaker.is_closed();
        let were_closed: Vec<bool> = self.endpoints.iter().map(closed).collect();
        self.engine.tell_of_commit(Wake::Anything);
        self.engine.turn().expect("nothing ends the engine");
        let exchanges = self.engine.store().connection.take_exchanges();
        assert!(exchanges.len() <= 1, "a turn is one exchange");
        for exchange in exchanges {
            self.settle(&exchange);
            self.claim(&exchange.wishes);
            for endpoint in &in_want {
                let is_wished = |wish: &Wish| wish.endpoint == *endpoint;
                assert!(
                    exchange.wishes.iter().any(is_wished),
                    "{endpoint} is passed over"
                );
            }
        }
        for (endpoint, was_closed) in self.endpoints.iter().zip(were_closed) {
            if was_closed && !endpoint.breaker.is_closed() {
                let held_back = self.engine.wire().held_back();
                assert!(held_back.iter().all(|claim| claim.endpoint != endpoint.id));
            }
        }
    }

    /// Endpoints that may be sent something, and have nothing in flight.
    fn in_want(&self) -> Vec<i32> {
        let in_flight = self.engine.wire().in_flight();
        let is_idle = |id| in_flight.iter().all(|claim| claim.endpoint != id);
        let places = (0..ENDPOINTS).filter(|place| is_idle(self.endpoints[*place].id));
        let wanting = places.filter(|place| {
            let test = self.endpoints[*place].breaker.test;
            let is_test = |d: &Delivery| d.is_due(self.now) && Some(d.event) == test;
            !self.due(*place, 1).is_empty()
                || self.next_probe(*place).is_some()
                || self.deliveries.iter().any(is_test)
        });
        wanting.map(|place| self.endpoints[place].id).collect()
    }

    fn claim(&mut self, wishes: &[Wish]) {
        let mut picked: Vec<usize> = Vec::new();
        for wish in wishes {
            let place = self.endpoints.iter().position(|e| e.id == wish.endpoint);
            let place = place.expect("it is one of ours");
            picked.extend(self.due(place, wish.capacity as usize));
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
        let mut claimed = self.engine.wire().take_submitted();
        claimed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(claimed, expected);
    }

    /// The longest due first.
    fn due(&self, place: usize, capacity: usize) -> Vec<usize> {
        let Endpoint { id, breaker, .. } = &self.endpoints[place];
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
        due.truncate(capacity);
        due
    }

    /// The delivery that has waited longest, once the cooldown or the lease is over, and the old probe is not under
    /// way any more.
    fn next_probe(&self, place: usize) -> Option<usize> {
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
        waiting.into_iter().min_by_key(|place| {
            (
                self.deliveries[*place].due_at,
                self.deliveries[*place].event,
            )
        })
    }

    fn probe(&mut self, place: usize) -> Option<usize> {
        let oldest = self.next_probe(place)?;
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

    fn settle(&mut self, exchange: &Exchange) {
        assert_eq!(exchange.settled.locked, [], "nobody locks anything here");
        let mut batch: Vec<&(Key, Outcome)> = exchange.endings.iter().collect();

        // Outcomes that ended at the same time count in the order in which they were handed in.
        let now = self.now;
        let ended_at = |outcome: &Outcome| now - (outcome.age_ms * 1e3) as i64;
        batch.sort_by_key(|(_, outcome)| ended_at(outcome));
        for (key, outcome) in batch {
            let delivery = (self.deliveries.iter_mut()).find(|delivery| {
                (delivery.event, delivery.endpoint) == (key.event_id, key.endpoint_id)
                    && delivery.claim_seq == key.claim_seq
                    && delivery.is_sending()
            });
            let Some(delivery) = delivery else { continue };
            let endpoint = (self.endpoints.iter_mut())
                .find(|endpoint| endpoint.id == delivery.endpoint)
                .expect("it is one of ours");
            let policy = &self.policies[endpoint.policy];
            let verdict = policy.verdict(outcome);
            let at = ended_at(outcome);
            delivery.settle(policy, verdict, at);
            let ended = delivery.status == "FAILED";
            endpoint.follow(policy, delivery, outcome, verdict, ended, at);
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
        match random.below(18) {
            0..10 => Outcome::status(500 + random.below(5) as i32, age_ms),
            10..13 => Outcome::status(404, age_ms),
            13 => Outcome::status(410, age_ms),
            14..16 => Outcome::error("timeout", age_ms),
            _ => Outcome::error("local", age_ms),
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
                   b.probe_claim_seq, b.test_event_id,
                   (extract(epoch FROM b.last_failure_at) * 1000000)::bigint, (extract(epoch FROM b.opened_at) * 1000000)::bigint,
                   (extract(epoch FROM b.probe_at) * 1000000)::bigint, (extract(epoch FROM b.retries_before) * 1000000)::bigint,
                   b.reason
            FROM webhook.endpoint e LEFT JOIN webhook.breaker b ON b.endpoint_id = e.id ORDER BY e.id";
        let rows = self.transaction.query(query, &[]);
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
        let rows = self.transaction.query(query, &[]);
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
        let rows = self.transaction.query(query, &[]);
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
        test: row.get(8),
        last_failure_at: row.get(9),
        opened_at: row.get(10),
        probe_at: row.get(11),
        retries_before: row.get(12),
        reason: row.get(13),
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
