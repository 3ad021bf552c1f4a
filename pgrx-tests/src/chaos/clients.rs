//! Clients that emit without a pause, and note their commits.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::random::Random;

/// Between two transactions of a client: about 300 events in a second come of two.
const PAUSE: Duration = Duration::from_millis(15);
/// Before a client that was refused or cut off connects again.
const RECONNECT: Duration = Duration::from_millis(20);

/// The notes of clients.
#[derive(Debug, Default)]
pub struct Ledger {
    pub committed: HashSet<Uuid>,
    pub rolled_back: HashSet<Uuid>,
    /// The connection broke during the commit.
    pub unknown: HashSet<Uuid>,
}

/// The type of the endpoint whose events have ordering keys, one for each client.
pub const ORDERED: &str = "chaos.n1";

pub struct Clients {
    pub ledger: Arc<Mutex<Ledger>>,
    /// The number of the last event: a client's own rise.
    number: Arc<AtomicI64>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub fn idle(ledger: &Arc<Mutex<Ledger>>) -> Clients {
        Clients {
            ledger: Arc::clone(ledger),
            number: Arc::default(),
            stopped: Arc::default(),
            threads: Vec::new(),
        }
    }

    pub fn begin(&mut self, config: &Config, types: Vec<String>, seed: u64) {
        for number in 0..2 {
            let client = Emitter {
                key: number.to_string(),
                number: Arc::clone(&self.number),
                config: config.clone(),
                types: types.clone(),
                random: Random::seeded(seed.wrapping_mul(1000) + number),
                ledger: Arc::clone(&self.ledger),
            };
            let stopped = Arc::clone(&self.stopped);
            self.threads
                .push(thread::spawn(move || client.emit_until(&stopped)));
        }
    }

    pub fn committed(&self) -> usize {
        self.ledger.lock().unwrap().committed.len()
    }

    pub fn stop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client outlives all that happens");
        }
        self.stopped.store(false, Ordering::SeqCst);
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Emitter {
    key: String,
    number: Arc<AtomicI64>,
    config: Config,
    types: Vec<String>,
    random: Random,
    ledger: Arc<Mutex<Ledger>>,
}

impl Emitter {
    fn emit_until(mut self, stopped: &AtomicBool) {
        let mut session: Option<Client> = None;
        while !stopped.load(Ordering::SeqCst) {
            session = session.or_else(|| self.config.connect(NoTls).ok());
            let Some(open) = &mut session else {
                thread::sleep(RECONNECT);
                continue;
            };
            if self.transact(open).is_err() && open.is_closed() {
                session = None;
            }
            thread::sleep(PAUSE);
        }
    }

    /// One transaction; one in eight is rolled back.
    fn transact(&mut self, session: &mut Client) -> Result<(), postgres::Error> {
        let count = 1 + self.random.below(4);
        let is_kept = !self.random.chance(12);
        let mut ids = Vec::new();
        let mut emitted = Ok(());
        let mut transaction = session.transaction()?;
        for _ in 0..count {
            let event_type = &self.types[self.random.below(self.types.len())];
            let number = self.number.fetch_add(1, Ordering::SeqCst);
            let key = (event_type == ORDERED).then_some(&self.key);
            let emit = "SELECT webhook_emit($1, jsonb_build_object('key', $2::text, 'number', $3::bigint), ordering_key => $2)";
            match transaction.query_one(emit, &[event_type, &key, &number]) {
                Ok(row) => ids.push(row.get::<_, Uuid>(0)),
                Err(error) => {
                    emitted = Err(error);
                    break;
                }
            }
        }
        if emitted.is_err() || !is_kept {
            self.ledger.lock().unwrap().rolled_back.extend(ids);
            return emitted.and_then(|()| transaction.rollback());
        }
        let commit = transaction.commit();
        let mut ledger = self.ledger.lock().unwrap();
        match &commit {
            Ok(()) => ledger.committed.extend(ids),
            // The server has said no, or nobody knows.
            Err(error) if error.as_db_error().is_some_and(|e| e.severity() == "ERROR") => {
                ledger.rolled_back.extend(ids);
            }
            Err(_) => ledger.unknown.extend(ids),
        }
        commit
    }
}
