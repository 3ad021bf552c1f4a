//! Order while many claim, endpoints fail and workers die.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::thread;

use uuid::Uuid;
use webhook_e2e::engine::{self, Outcome, Wish};
use webhook_e2e::random::Random;
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait, worker};

use super::ordering::{emit, idle};

#[test]
fn several_claimers_never_take_two_of_a_key() {
    const KEYS: usize = 10;
    const EVENTS: usize = 40;
    let cluster = engine::idle_cluster();
    let database = idle(cluster, "initial_delay = '0 s', max_attempts = 100");
    let endpoint: i32 = database.query_one_value("SELECT min(id) FROM webhook.endpoint");
    let key_of: Arc<Mutex<HashMap<Uuid, usize>>> = Arc::default();
    let in_flight: Mutex<HashSet<usize>> = Mutex::default();
    let sent: Mutex<Vec<(usize, Uuid)>> = Mutex::default();
    thread::scope(|scope| {
        // Two emit while four claim.
        for emitter in 0..2 {
            let (database, key_of) = (&database, Arc::clone(&key_of));
            scope.spawn(move || {
                let mut client = database.connect();
                for number in 0..KEYS * EVENTS / 2 {
                    // Each key has one emitter, so that the order is known.
                    let key = number % (KEYS / 2) * 2 + emitter;
                    let mut known = key_of.lock().unwrap();
                    known.insert(emit(&mut client, &key.to_string()), key);
                }
            });
        }
        for claimer in 0..4 {
            let (database, key_of, in_flight, sent) = (&database, &key_of, &in_flight, &sent);
            scope.spawn(move || {
                let mut client = database.connect();
                let mut random = Random::seeded(claimer);
                while sent.lock().unwrap().len() < KEYS * EVENTS {
                    let wish = Wish {
                        endpoint,
                        capacity: 8,
                    };
                    let mut claims = engine::claim(&mut client, 1, &[wish]);
                    random.shuffle(&mut claims);
                    let known = key_of.lock().unwrap().clone();
                    for claim in &claims {
                        let key = known[&claim.event];
                        assert!(in_flight.lock().unwrap().insert(key), "two of key {key}");
                    }
                    for claim in claims {
                        let key = known[&claim.event];
                        let success = random.chance(60);
                        // Before it is settled, or the next one might be noted first.
                        in_flight.lock().unwrap().remove(&key);
                        if success {
                            sent.lock().unwrap().push((key, claim.event));
                        }
                        let status = if success { 200 } else { 500 };
                        let ending = [(claim, Outcome::status(status, engine::LONG_AGO))];
                        // Another one may have the breaker locked.
                        while !engine::settle(&mut client, &ending).locked.is_empty() {}
                    }
                }
            });
        }
    });
    let sent = sent.into_inner().unwrap();
    for key in 0..KEYS {
        let events: Vec<Uuid> = (sent.iter().filter(|(of, _)| *of == key))
            .map(|(_, event)| *event)
            .collect();
        assert_eq!(events.len(), EVENTS);
        assert!(events.is_sorted(), "key {key}: {events:?}");
    }
}

/// The events of each key that were received, and whether they succeeded.
type Received = Arc<Mutex<HashMap<String, Vec<(u64, bool)>>>>;

/// Fails three in ten requests, and notes all of them.
fn unreliable(receiver: &Receiver) -> Received {
    let received = Received::default();
    let notes = Arc::clone(&received);
    let random = Mutex::new(Random::seeded(1));
    receiver.respond("/orders", move |request, _| {
        let event = request.json();
        let (key, number) = (&event["data"]["key"], &event["data"]["number"]);
        let succeeds = random.lock().unwrap().chance(70);
        notes
            .lock()
            .unwrap()
            .entry(key.as_str().unwrap().to_owned())
            .or_default()
            .push((number.as_u64().unwrap(), succeeds));
        Answer::status(if succeeds { 200 } else { 500 })
    });
    received
}

/// Each key's events from 1 on, each until it succeeded (at least once: a result may be lost with a worker) and none
/// before its turn.
#[track_caller]
fn assert_in_order(received: &Received, keys: usize, events: u64) {
    let received = received.lock().unwrap();
    assert_eq!(received.len(), keys);
    for (key, requests) in received.iter() {
        let mut sent = 0;
        for &(number, succeeded) in requests {
            assert!(
                number == sent + 1 || number == sent,
                "key {key}: {requests:?}"
            );
            if succeeded {
                sent = number;
            }
        }
        assert_eq!(sent, events, "key {key}");
    }
}

fn emit_all(database: &Database, keys: usize, events: u64) {
    database.execute(&format!(
        "SELECT webhook_emit('order.changed', jsonb_build_object('key', key::text, 'number', number), ordering_key => key::text)
         FROM generate_series(1, {events}) AS number, generate_series(1, {keys}) AS key ORDER BY number, key"
    ));
}

/// However long it takes, as long as it goes on.
#[track_caller]
fn wait_until_all_is_sent(database: &Database) {
    let mut client = database.connect();
    let mut queued = || -> i64 {
        let row = client.query_one("SELECT count(*) FROM webhook.delivery_queue", &[]);
        row.unwrap().get(0)
    };
    let mut left = queued();
    while left > 0 {
        left = wait::until("fewer in the queue", || match queued() {
            seen if seen < left => Ok(seen),
            seen => Err(seen),
        });
    }
}

const PERSISTENT: &str =
    "SELECT webhook_copy_policy('fast', 'persistent');
     UPDATE webhook.policy SET max_attempts = 1000, initial_delay = '1 ms' WHERE name = 'persistent'";

#[test]
fn ten_thousand_events_of_a_hundred_keys_arrive_in_order_whatever_fails() {
    let database = Cluster::shared().database("ordering");
    database.execute(PERSISTENT);
    let receiver = Receiver::start();
    let received = unreliable(&receiver);
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'persistent'");
    emit_all(&database, 100, 100);
    wait_until_all_is_sent(&database);
    assert_in_order(&received, 100, 100);
}

#[test]
fn the_order_survives_the_death_of_the_worker() {
    let cluster = Cluster::start();
    let database = cluster.database("ordering");
    database.execute(PERSISTENT);
    let receiver = Receiver::start();
    let received = unreliable(&receiver);
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'persistent'");
    emit_all(&database, 10, 100);
    for share in 1..=3 {
        receiver.wait_for_requests_to("/orders", share * 200);
        worker::kill(&cluster, &database);
    }
    wait_until_all_is_sent(&database);
    assert_in_order(&received, 10, 100);
}
