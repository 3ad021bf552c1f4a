//! Events that are committed one by one at a steady rate, and when each was received.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::emit;
use webhook_e2e::{Database, Receiver};

pub struct Flow {
    pub emitted: usize,
    /// From the return of the commit to the receipt.
    pub latencies: Vec<Duration>,
}

/// Waits this long for events that have not come when the last is emitted.
const PATIENCE: Duration = Duration::from_secs(15);

pub fn emit_steadily(
    database: &Database,
    receiver: &Receiver,
    event_type: &str,
    per_second: u32,
    time: Duration,
) -> Flow {
    let mut client = database.connect();
    let earlier = receiver.request_count();
    let begun = Instant::now();
    let mut committed = HashMap::new();
    loop {
        let due = begun + Duration::from_secs(1) * committed.len() as u32 / per_second;
        if due >= begun + time {
            break;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let event = emit(&mut client, event_type, json!({ "place": committed.len() }));
        committed.insert(event, Instant::now());
    }
    let deadline = Instant::now() + PATIENCE;
    while receiver.request_count() < earlier + committed.len() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    Flow {
        emitted: committed.len(),
        latencies: latencies(receiver, &committed),
    }
}

fn latencies(receiver: &Receiver, committed: &HashMap<Uuid, Instant>) -> Vec<Duration> {
    let mut latencies = HashMap::new();
    for request in receiver.requests() {
        let event = request.event_id();
        if let Some(committed) = committed.get(&event) {
            let latency = request.arrived.saturating_duration_since(*committed);
            latencies.entry(event).or_insert(latency);
        }
    }
    latencies.into_values().collect()
}
