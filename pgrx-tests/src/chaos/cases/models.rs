//! Promises of coalescing, idempotency, retries and breakers, whatever is killed meanwhile: a client of its own repeats a
//! call until it has heard that it was committed, as applications do.

mod breakers;
mod retries;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::chaos::scene::{MAX_CLAIMED, Scene};
use crate::random::Random;
use crate::receiver::{Answer, Receiver, Request};
use retries::Retries;

const KEYS: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// In flight to the endpoint that fails again and again; twice as much again may be claimed ahead.
const GUARDED_AT_ONCE: usize = 4;
const GUARDED: &str = "/guarded";

/// A sender was lost at some moment between these.
pub struct Kill {
    from: (Instant, SystemTime),
    until: (Instant, SystemTime),
}

impl Kill {
    pub fn by(kill: impl FnOnce()) -> Kill {
        let now = || (Instant::now(), SystemTime::now());
        let from = now();
        kill();
        Kill { from, until: now() }
    }

    fn overlaps(&self, from: Instant, until: Instant) -> bool {
        self.from.0 <= until && from <= self.until.0
    }

    /// By the clock of the server.
    fn is_between(&self, from: SystemTime, until: SystemTime) -> bool {
        self.from.1 <= until && from <= self.until.1
    }
}

pub struct Models {
    receiver: Receiver,
    retries: Retries,
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
        breakers::log(scene);
        let retries = Retries::begin(scene, &receiver);
        for (name, path, options) in [
            ("retried", retries::PATH, "policy => 'doubling'".to_owned()),
            (
                "guarded",
                GUARDED,
                format!("policy => 'persistent', max_in_flight => {GUARDED_AT_ONCE}"),
            ),
        ] {
            let options = format!("event_types => '{{model.{name}}}', {options}");
            (scene.database).add_endpoint_with(name, &receiver.url(path), &options);
        }
        receiver.respond(GUARDED, |_, number| match number % 32 < 8 {
            true => Answer::status(503),
            false => Answer::status(200),
        });
        let stopped = Arc::<AtomicBool>::default();
        let client = EmittingClient {
            config: scene.cluster.config(scene.database.name()),
            random: Random::seeded(seed),
            session: None,
        };
        let until = Arc::clone(&stopped);
        Models {
            receiver,
            retries,
            stopped,
            client: thread::spawn(move || client.emit_until(&until)),
        }
    }

    /// Called when everything is settled.
    #[track_caller]
    pub fn assert_kept(self, scene: &Scene, kills: &[Kill]) {
        self.stopped.store(true, Ordering::SeqCst);
        let promised = (self.client.join()).expect("the client outlives all that happens");
        self.receiver.respond(GUARDED, |_, _| Answer::status(200));
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
        self.retries.assert_kept(kills);
        let requests = self.receiver.requests_to(GUARDED);
        let claimed = 3 * GUARDED_AT_ONCE;
        let openings = breakers::assert_probes_alone(scene, "guarded", &requests, claimed, kills);
        assert!(openings > 0, "no breaker has opened");
        for number in 0..3 {
            let requests = scene.receiver.requests_to(&format!("/{number}"));
            let endpoint = format!("n{number}");
            breakers::assert_probes_alone(scene, &endpoint, &requests, MAX_CLAIMED, kills);
        }
        assert_attempts(scene, &self.receiver, kills);
    }
}

/// Each request was an attempt that counts: a delivery that kills its sender runs out of them too. And each attempt was a
/// request, but for claims of a sender that was killed meanwhile.
#[track_caller]
fn assert_attempts(scene: &Scene, receiver: &Receiver, kills: &[Kill]) {
    let mut requests: HashMap<Uuid, i32> = HashMap::new();
    let all = scene.receiver.requests().into_iter();
    for request in all.chain(receiver.requests()) {
        *requests.entry(request.event_id()).or_default() += 1;
    }
    let rows = scene.connect().query(
        "SELECT event_id, sum(attempts)::int, min(created_at), max(completed_at) FROM webhook.delivery
         WHERE event_type LIKE 'chaos.%' OR event_type LIKE 'model.%' GROUP BY event_id",
        &[],
    );
    let mut unsent = 0;
    for row in rows.expect("the tables are readable") {
        let (event, counted): (Uuid, i32) = (row.get(0), row.get(1));
        let count = requests.remove(&event).unwrap_or(0);
        let was_killed = (kills.iter()).any(|kill| kill.is_between(row.get(2), row.get(3)));
        assert!(
            count == counted || was_killed && count < counted,
            "{count} requests of {event}, {counted} attempts; killed meanwhile: {was_killed}"
        );
        unsent += (counted - count) as usize;
    }
    assert!(requests.is_empty(), "of no delivery: {requests:?}");
    let claimed = kills.len() * MAX_CLAIMED;
    assert!(
        unsent <= claimed,
        "{unsent} attempts sent nothing, and {claimed} were claimed"
    );
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
            self.emit("SELECT webhook_emit('model.retried')");
            self.emit("SELECT webhook_emit('model.guarded')");
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
