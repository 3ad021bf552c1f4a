//! Promises of coalescing, idempotency and retries, whatever is killed meanwhile: a client of its own repeats a call
//! until it has heard that it was committed, as applications do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::chaos::scene::Scene;
use crate::random::Random;
use crate::receiver::{Receiver, Request};

const KEYS: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

pub struct Models {
    receiver: Receiver,
    stopped: Arc<AtomicBool>,
    client: JoinHandle<Promised>,
}

/// Commits that the client has heard of.
#[derive(Default)]
struct Promised {
    /// By idempotency key.
    once: Vec<Uuid>,
    /// The last of each coalescing key.
    latest: HashMap<usize, Uuid>,
}

impl Models {
    pub fn begin(scene: &Scene, seed: u64) -> Models {
        let receiver = Receiver::start();
        for name in ["once", "latest"] {
            let options = format!("event_types => '{{model.{name}}}', policy => 'persistent'");
            let url = receiver.url(&format!("/{name}"));
            scene.database.add_endpoint_with(name, &url, &options);
        }
        let stopped = Arc::<AtomicBool>::default();
        let client = EmittingClient {
            config: scene.cluster.config(scene.database.name()),
            random: Random::seeded(seed),
            session: None,
        };
        let until = Arc::clone(&stopped);
        Models {
            receiver,
            stopped,
            client: thread::spawn(move || client.emit_until(&until)),
        }
    }

    /// Called when everything is settled.
    #[track_caller]
    pub fn assert_kept(self, scene: &Scene) {
        self.stopped.store(true, Ordering::SeqCst);
        let promised = (self.client.join()).expect("the client outlives all that happens");
        scene
            .database
            .wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue WHERE event_type LIKE 'model.%')");

        let arrived = |path: &str| -> HashSet<Uuid> {
            let requests = self.receiver.requests_to(path);
            requests.iter().map(Request::event_id).collect()
        };
        // One event for each key, however often it was emitted.
        let once: HashSet<Uuid> = promised.once.iter().copied().collect();
        assert_eq!(once.len(), promised.once.len(), "a key has two events");
        assert!(!once.is_empty(), "nothing was emitted");
        assert_eq!(arrived("/once"), once);
        // The latest event of each key has arrived; an event that has not was superseded.
        let latest: HashSet<Uuid> = promised.latest.into_values().collect();
        let lost: Vec<_> = latest.difference(&arrived("/latest")).copied().collect();
        assert!(lost.is_empty(), "superseded by nothing: {lost:?}");
        let otherwise: i64 = scene.database.query_one_value(
            "SELECT count(*) FROM webhook.delivery
             WHERE event_type = 'model.latest' AND status <> 'SENT' AND NOT (status = 'CANCELLED' AND reason = 'coalesced')",
        );
        assert_eq!(otherwise, 0, "neither sent nor superseded");
        assert_attempts(scene, &self.receiver);
    }
}

/// Each request was an attempt that counts: a delivery that kills its sender runs out of them too.
#[track_caller]
fn assert_attempts(scene: &Scene, receiver: &Receiver) {
    let mut requests: HashMap<Uuid, i32> = HashMap::new();
    let all = scene.receiver.requests().into_iter();
    for request in all.chain(receiver.requests()) {
        *requests.entry(request.event_id()).or_default() += 1;
    }
    let rows = scene.connect().query(
        "SELECT event_id, sum(attempts)::int FROM webhook.delivery GROUP BY event_id",
        &[],
    );
    let rows = rows.expect("the tables are readable").into_iter();
    let attempts: HashMap<Uuid, i32> = rows.map(|row| (row.get(0), row.get(1))).collect();
    for (event, count) in requests {
        let counted = attempts.get(&event).copied().unwrap_or(0);
        assert!(
            count <= counted,
            "{count} requests of {event}, {counted} attempts"
        );
    }
}

struct EmittingClient {
    config: Config,
    random: Random,
    session: Option<Client>,
}

impl EmittingClient {
    fn emit_until(mut self, stopped: &AtomicBool) -> Promised {
        let mut promised = Promised::default();
        while !stopped.load(Ordering::SeqCst) {
            let number = promised.once.len();
            let once =
                format!("SELECT webhook_emit('model.once', idempotency_key => 'key {number}')");
            let event = self.emit(&once);
            promised.once.push(event);
            if self.random.chance(30) {
                let before = self.random.below(promised.once.len());
                let again =
                    format!("SELECT webhook_emit('model.once', idempotency_key => 'key {before}')");
                assert_eq!(self.emit(&again), promised.once[before], "another event");
            }
            let key = self.random.below(KEYS);
            let latest =
                format!("SELECT webhook_emit('model.latest', coalesce_key => 'key {key}')");
            let event = self.emit(&latest);
            promised.latest.insert(key, event);
            thread::sleep(PAUSE);
        }
        promised
    }

    /// Repeats the call until it is committed.
    fn emit(&mut self, call: &str) -> Uuid {
        loop {
            self.session = (self.session.take()).or_else(|| self.config.connect(NoTls).ok());
            let answer = self.session.as_mut().map(|open| open.query_one(call, &[]));
            match answer {
                Some(Ok(row)) => return row.get(0),
                _ => self.session = self.session.take().filter(|open| !open.is_closed()),
            }
            thread::sleep(PAUSE);
        }
    }
}
