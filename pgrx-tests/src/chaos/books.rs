//! The reconciliation of the clients' notes, the requests at the receiver, and the tables.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::chaos::Score;
use crate::chaos::clients::Ledger;
use crate::database::Database;
use crate::receiver::Request;

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

/// Panics with the difference. At most `in_flight` requests may be repeated.
#[track_caller]
pub fn reconcile(
    ledger: &Ledger,
    requests: &[Request],
    tables: &Tables,
    in_flight: usize,
    calms: &[Calm],
) -> Score {
    let arrived: HashSet<Uuid> = requests.iter().map(Request::event_id).collect();
    let lost = ledger.committed.difference(&arrived).count();
    let score = Score {
        committed: ledger.committed.len(),
        rolled_back: ledger.rolled_back.len(),
        unknown: ledger.unknown.len(),
        lost,
        duplicates: requests.len() - arrived.len(),
        in_flight,
        silence: silence(requests, calms),
        not_tested: None,
    };
    assert_eq!(lost, 0, "committed events did not arrive: {score:?}");
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
        score.duplicates <= in_flight,
        "more was repeated than was claimed: {score:?}"
    );
    score
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
pub struct Calm {
    pub from: Instant,
    pub until: Option<Instant>,
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
