//! The engine, hosted by a test over the relay's session: requests stay here until the test says how they ended, and
//! each exchange with the database is written down.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use postgres::types::ToSql;
use postgres::{NoTls, Row};
use serde_json::Value as Json;
use tokio::runtime;
use webhook_delivery::{Attempt, Failure, FailureKind, Key, Response};
use webhook_engine::{Config, Connection, Identity, Parameter, SqlStore, Trouble, Value, Wire};
use webhook_relay::Session;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::engine::{Claim, OTHER_ERRORS, Outcome, RETRIABLE_ERRORS, Settled, Wish};

pub type Engine = webhook_engine::Engine<SqlStore<Observed>, Script>;

/// Housekeeping has tests of its own, and a model of one thing does not say what housekeeping would do meanwhile.
const MODELLED: [&str; 4] = [
    "webhook.exchange(",
    "webhook.agenda(",
    "webhook.begin_sender(",
    "webhook.take_shares(",
];

/// Looks at all endpoints when it is told to, and only then.
pub fn engine(transaction: &Transaction) -> Engine {
    let observed = Observed {
        transaction: transaction.clone(),
        exchanges: Vec::new(),
        loses_an_answer: false,
    };
    let config = Config {
        max_in_flight: 1000,
        poll_interval: Duration::from_secs(3600),
        stale_after: Duration::from_secs(3600),
    };
    let store = SqlStore::new(
        observed,
        Identity {
            kind: "relay",
            host: None,
            version: env!("CARGO_PKG_VERSION"),
        },
    );
    Engine::new(
        store,
        Script::default(),
        config,
        String::new(),
        String::new(),
    )
}

/// The statements of the test and of the engine, in one session: in one transaction too, whose clock stands still.
#[derive(Clone)]
pub struct Transaction(Rc<RefCell<Session>>);

impl Transaction {
    #[track_caller]
    pub fn connect(cluster: &Cluster, database: &Database) -> Transaction {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Rc::new(runtime.expect("a runtime can be made"));
        let config = cluster.address(cluster.port(), database.name());
        let config = config.parse().expect("the address is valid");
        let session = Session::begin(&runtime, &config, NoTls);
        let session = session.unwrap_or_else(|trouble| panic!("{}", trouble.message));
        Transaction(Rc::new(RefCell::new(session)))
    }

    #[track_caller]
    pub fn execute(&self, script: &str) {
        let done = self.0.borrow().execute(script);
        done.unwrap_or_else(|trouble| panic!("{script}: {}", trouble.message));
    }

    #[track_caller]
    pub fn query(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        let rows = self.0.borrow().query(statement, parameters);
        rows.unwrap_or_else(|trouble| panic!("{statement}: {}", trouble.message))
    }
}

/// The calls of the engine, and the answers of the database.
pub struct Exchange {
    pub endings: Vec<(Key, Outcome)>,
    pub wishes: Vec<Wish>,
    pub settled: Settled,
}

pub struct Observed {
    transaction: Transaction,
    exchanges: Vec<Exchange>,
    /// The connection breaks between the next commit of an exchange and its answer.
    pub loses_an_answer: bool,
}

impl Observed {
    pub fn take_exchanges(&mut self) -> Vec<Exchange> {
        std::mem::take(&mut self.exchanges)
    }
}

impl Connection for Observed {
    fn run(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Vec<Value>>, Trouble> {
        if !MODELLED.iter().any(|call| statement.contains(call)) {
            return Err(Trouble::new("0A000", "no part of the model"));
        }
        let is_exchange = statement.contains("webhook.exchange(");
        let mut parameters = parameters.to_vec();
        if is_exchange {
            round_ages(&mut parameters);
        }
        let rows = self.transaction.0.borrow_mut().run(statement, &parameters);
        let rows = rows.unwrap_or_else(|trouble| panic!("{statement}: {}", trouble.message));
        if is_exchange {
            self.exchanges.push(exchange(&parameters, &rows));
            if std::mem::take(&mut self.loses_an_answer) {
                return Err(Trouble {
                    commit_unknown: true,
                    ..Trouble::new("08007", "the connection was lost")
                });
            }
        }
        Ok(rows)
    }
}

/// Rounds to whole seconds: the engine's clock goes on, and some outcomes are to have ended at the same time.
fn round_ages(of_exchange: &mut [Parameter<'_>]) {
    let Some(Parameter::NullableFloats(ages)) = of_exchange.get_mut(9) else {
        panic!("an exchange has no ages any more");
    };
    for age in ages.iter_mut().flatten() {
        *age = (*age / 1e3).floor() * 1e3;
    }
}

fn exchange(parameters: &[Parameter<'_>], rows: &[Vec<Value>]) -> Exchange {
    use Parameter::{BigInts, Ints, NullableFloats, NullableInts, NullableTexts, Uuids};
    let [
        Uuids(events),
        Ints(endpoints),
        BigInts(claim_seqs),
        NullableInts(statuses),
        NullableTexts(failures),
        NullableTexts(errors),
        _excerpts,
        NullableFloats(retry_after),
        Ints(durations),
        NullableFloats(ages),
        Ints(asked),
        _positions,
        _instance,
        Ints(capacities),
        ..,
    ] = parameters
    else {
        panic!("an exchange has other parameters now: {parameters:?}");
    };
    let ending = |place: usize| {
        let key = Key {
            event_id: events[place],
            endpoint_id: endpoints[place],
            claim_seq: claim_seqs[place],
        };
        let outcome = Outcome {
            status: statuses[place],
            failure: failures[place].map(known_failure),
            error: errors[place].map(str::to_owned),
            retry_after: retry_after[place],
            duration_ms: durations[place],
            age_ms: ages[place].expect("each has an age"),
        };
        (key, outcome)
    };
    let wishes = asked.iter().zip(capacities);
    Exchange {
        endings: (0..events.len()).map(ending).collect(),
        wishes: wishes
            .map(|(&endpoint, &capacity)| Wish { endpoint, capacity })
            .collect(),
        settled: settled(rows),
    }
}

fn known_failure(name: &str) -> &'static str {
    let mut known = RETRIABLE_ERRORS.iter().chain(&OTHER_ERRORS);
    let known = known.find(|known| **known == name);
    known.unwrap_or_else(|| panic!("{name} is no failure"))
}

/// Reads the report, which is the last row.
fn settled(rows: &[Vec<Value>]) -> Settled {
    let Some(Value::Text(report)) = rows.last().and_then(|row| row.last()) else {
        panic!("an exchange without a report");
    };
    let report: Json = serde_json::from_str(report).expect("a report is JSON");
    let list = |name: &str| report[name].as_array().cloned().unwrap_or_default();
    let locked = list("locked").into_iter().map(|locked| {
        serde_json::from_value::<(_, _, i64)>(locked).expect("a locked outcome has a key")
    });
    let finished = list("finished");
    let sum = |place: usize| {
        let numbers = finished.iter().map(|group| group[place].as_i64());
        numbers.sum::<Option<i64>>().expect("counts are numbers")
    };
    Settled {
        locked: locked
            .map(|(event, endpoint, _)| (event, endpoint))
            .collect(),
        counted: [3, 4, 5].map(sum),
    }
}

/// A wire that ends in the hands of the test.
#[derive(Default)]
pub struct Script {
    submitted: RefCell<Vec<Claim>>,
    in_flight: RefCell<Vec<Claim>>,
    /// No byte of these has gone out yet.
    held_back: RefCell<Vec<Claim>>,
    outcomes: RefCell<Vec<webhook_delivery::Outcome>>,
}

impl Script {
    /// Attempts that were submitted since the last call.
    pub fn take_submitted(&self) -> Vec<Claim> {
        self.submitted.take()
    }

    pub fn in_flight(&self) -> Vec<Claim> {
        self.in_flight.borrow().clone()
    }

    pub fn held_back(&self) -> Vec<Claim> {
        self.held_back.borrow().clone()
    }

    /// The engine may withdraw it, until it has ended.
    pub fn hold_back(&self, claim: Claim) {
        self.held_back.borrow_mut().push(claim);
    }

    /// The outcome may be one of a claim that was never made.
    pub fn end(&self, claim: Claim, outcome: &Outcome) {
        self.forget(claim);
        let seconds = |seconds| Duration::from_secs_f64(seconds);
        let answer = |status| Response {
            status: u16::try_from(status).expect("it is a status"),
            retry_after: outcome.retry_after.map(seconds),
            excerpt: String::new(),
        };
        let result = (outcome.status.map(answer)).ok_or_else(|| failure(outcome));
        self.outcomes.borrow_mut().push(webhook_delivery::Outcome {
            key: key(&claim),
            result,
            duration: Duration::from_millis(outcome.duration_ms as u64),
            ended: Instant::now() - seconds(outcome.age_ms / 1e3),
        });
    }

    fn forget(&self, claim: Claim) {
        self.in_flight.borrow_mut().retain(|other| *other != claim);
        self.held_back.borrow_mut().retain(|other| *other != claim);
    }
}

fn key(claim: &Claim) -> Key {
    Key {
        event_id: claim.event,
        endpoint_id: claim.endpoint,
        claim_seq: claim.claim_seq,
    }
}

fn failure(outcome: &Outcome) -> Failure {
    use FailureKind::*;
    let kinds = [
        Dns,
        Connect,
        Timeout,
        Tls,
        Reset,
        InvalidResponse,
        Blocked,
        InvalidRequest,
        Local,
    ];
    let kind = (kinds.into_iter()).find(|kind| Some(kind.as_str()) == outcome.failure);
    Failure {
        kind: kind.unwrap_or_else(|| panic!("no request ends like that: {outcome:?}")),
        message: outcome.error.clone().unwrap_or_default(),
    }
}

impl Wire for Script {
    fn submit(&self, _: &[(i32, usize)], attempts: Vec<Attempt>) {
        let claims = attempts.iter().map(|attempt| Claim {
            event: attempt.key.event_id,
            endpoint: attempt.key.endpoint_id,
            claim_seq: attempt.key.claim_seq,
            earlier_attempts: attempt.earlier_attempts,
        });
        self.submitted.borrow_mut().extend(claims.clone());
        self.in_flight.borrow_mut().extend(claims);
    }

    fn take_outcomes(&self) -> Vec<webhook_delivery::Outcome> {
        self.outcomes.take()
    }

    fn withdraw(&self, which: &dyn Fn(&Key) -> bool) -> Vec<Key> {
        let withdrawn = self.held_back().into_iter();
        let withdrawn: Vec<Claim> = withdrawn.filter(|claim| which(&key(claim))).collect();
        withdrawn.iter().for_each(|claim| self.forget(*claim));
        withdrawn.iter().map(key).collect()
    }

    fn abort(&self) {}
}
