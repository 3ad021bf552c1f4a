//! The reconciliation of the clients' notes, the requests at the receiver, and the tables.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::chaos::Score;
use crate::chaos::clients::Ledger;
use crate::database::Database;
use crate::receiver::{Arrivals, Receiver, Request};

/// The notes about a scene, from which its score can be made at any time.
#[derive(Default)]
pub struct Records {
    pub ledger: Arc<Mutex<Ledger>>,
    arrivals: Mutex<Vec<Arrivals>>,
    in_flight: AtomicUsize,
    calms: Mutex<Vec<Calm>>,
}

impl Records {
    /// Counts the requests of this receiver too.
    pub fn include(&self, receiver: &Receiver) {
        open(&self.arrivals).push(receiver.arrivals());
    }

    pub fn allow_repetition(&self, count: usize) {
        self.in_flight.fetch_add(count, Ordering::SeqCst);
    }

    pub fn forbid_repetition(&self) {
        self.in_flight.store(0, Ordering::SeqCst);
    }

    pub fn end_calm(&self, moment: Instant) {
        if let Some(calm) = open(&self.calms).last_mut() {
            calm.until.get_or_insert(moment);
        }
    }

    pub fn begin_calm(&self, moment: Instant) {
        open(&self.calms).push(Calm {
            from: moment,
            until: None,
        });
    }

    pub fn requests(&self) -> Vec<Request> {
        open(&self.arrivals)
            .iter()
            .flat_map(Arrivals::requests)
            .collect()
    }

    /// The score as of this moment: each committed event that has not arrived is lost.
    pub fn score(&self) -> Score {
        let (ledger, requests) = (open(&self.ledger), self.requests());
        let arrived: HashSet<Uuid> = requests.iter().map(Request::event_id).collect();
        Score {
            committed: ledger.committed.len(),
            rolled_back: ledger.rolled_back.len(),
            unknown: ledger.unknown.len(),
            lost: ledger.committed.difference(&arrived).count(),
            duplicates: requests.len() - arrived.len(),
            in_flight: self.in_flight.load(Ordering::SeqCst),
            silence: silence(&requests, &open(&self.calms)),
            ..Score::default()
        }
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        self.score().fmt(formatter)
    }
}

/// A thread that has panicked with the lock does not keep others from reading: a failed case has numbers too.
fn open<T>(book: &Mutex<T>) -> MutexGuard<'_, T> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Tables {
    events: HashSet<Uuid>,
    sent: HashSet<Uuid>,
    deliveries: usize,
}

impl Tables {
    pub fn read(database: &Database) -> Tables {
        let mut session = database.connect();
        let mut ids = |sql: &str| -> Vec<Uuid> {
            let rows = session.query(sql, &[]).expect("the tables are readable");
            rows.iter().map(|row| row.get(0)).collect()
        };
        let ours = "event_type LIKE 'chaos.%'";
        let deliveries = ids(&format!(
            "SELECT event_id FROM webhook.delivery WHERE {ours}"
        ));
        Tables {
            events: ids(&format!("SELECT id FROM webhook.event WHERE {ours}"))
                .into_iter()
                .collect(),
            sent: ids(&format!(
                "SELECT event_id FROM webhook.delivery WHERE {ours} AND status = 'SENT'"
            ))
            .into_iter()
            .collect(),
            deliveries: deliveries.len(),
        }
    }
}

/// Panics with the first promise that was broken.
#[track_caller]
pub fn reconcile(records: &Records, score: &Score, tables: &Tables) {
    let (ledger, requests) = (open(&records.ledger), records.requests());
    let arrived: HashSet<Uuid> = requests.iter().map(Request::event_id).collect();
    assert_eq!(score.lost, 0, "committed events did not arrive: {score:?}");
    let unsettled = ledger.committed.difference(&tables.sent).count();
    assert_eq!(unsettled, 0, "arrived events are not SENT: {score:?}");
    let undone = arrived.intersection(&ledger.rolled_back).count();
    assert_eq!(undone, 0, "rolled back events arrived: {score:?}");
    let strangers: Vec<_> = arrived
        .iter()
        .filter(|id| !ledger.committed.contains(id) && !ledger.unknown.contains(id))
        .collect();
    assert!(strangers.is_empty(), "nobody emitted {strangers:?}");
    let undurable: Vec<_> = arrived.difference(&tables.events).collect();
    assert!(undurable.is_empty(), "sent, and not there: {undurable:?}");
    // Unknown commits that are in the tables have arrived.
    assert_eq!(tables.events, arrived, "the tables and the receiver differ");
    assert_eq!(tables.deliveries, tables.events.len(), "one delivery each");
    assert!(
        score.duplicates <= score.in_flight,
        "more was repeated than was claimed: {score:?}"
    );
}

/// No event overtakes another of its ordering key, and a request is repeated before the next one goes out.
#[track_caller]
pub fn assert_order(requests: &[Request]) {
    let mut last: HashMap<(String, String), i64> = HashMap::new();
    for request in requests {
        let data = &request.json()["data"];
        if let (Some(key), Some(number)) = (data["key"].as_str(), data["number"].as_i64()) {
            let path = request.path.clone();
            let last = last.entry((path, key.to_owned())).or_insert(number);
            assert!(
                number >= *last,
                "{number} of key {key} arrived after {last}"
            );
            *last = number;
        }
    }
}

/// From the end of a disturbance to the beginning of the next one.
struct Calm {
    from: Instant,
    until: Option<Instant>,
}

/// The longest time without a request in a calm.
fn silence(requests: &[Request], calms: &[Calm]) -> Duration {
    let mut arrivals: Vec<Instant> = requests.iter().map(|request| request.arrived).collect();
    arrivals.sort_unstable();
    let longest = |calm: &Calm| {
        let within = |at: &Instant| *at >= calm.from && calm.until.is_none_or(|until| *at < until);
        let arrivals = arrivals.iter().copied().filter(within);
        let moments: Vec<Instant> = std::iter::once(calm.from).chain(arrivals).collect();
        let gaps = moments.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    };
    calms.iter().map(longest).max().unwrap_or_default()
}
