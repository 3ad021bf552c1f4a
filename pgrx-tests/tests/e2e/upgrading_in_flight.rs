//! An upgrade with requests in flight, deliveries queued and events coming, on each host: every event arrives once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::database::emit;
use webhook_e2e::process::{complete, unprivileged};
use webhook_e2e::receiver::ids;
use webhook_e2e::scripts::{LATER, VERSION, later_upgrade};
use webhook_e2e::{Cluster, Database, Receiver, host, wait};

const LATER_RELAY: &str = env!("CARGO_BIN_EXE_later_relay");
/// An endpoint that nobody knows yet gets so many requests at once.
const FIRST_WINDOW: usize = 8;
const KEYS: usize = 20;

/// A server with an upgrade to the release to come.
fn server(settings: &str) -> Cluster {
    let name = format!("webhook--{VERSION}--{LATER}.sql");
    let builder = Cluster::builder().script(&name, &later_upgrade());
    builder.setting(settings).start()
}

fn alter_extension(database: &Database) {
    database.execute(&format!("ALTER EXTENSION webhook UPDATE TO '{LATER}'"));
}

#[test]
fn events_arrive_once_while_the_extension_is_upgraded_under_the_worker() {
    let cluster = server("");
    let database = cluster.database("worker");
    upgrade_in_flight(&database, "ALTER EXTENSION%", || alter_extension(&database));
}

#[test]
fn events_arrive_once_while_the_extension_is_upgraded_under_a_relay() {
    let cluster = server("webhook.max_in_flight = 0");
    let database = cluster.database("relay");
    host::grant_relay_role(&database);
    let _relay = host::start_relay(&cluster, &database);
    upgrade_in_flight(&database, "ALTER EXTENSION%", || alter_extension(&database));
}

#[test]
fn events_arrive_once_while_a_portable_database_is_upgraded_under_a_relay() {
    let cluster = Cluster::portable();
    let database = cluster.database("portable");
    let address = cluster.address(cluster.port(), database.name());
    upgrade_in_flight(&database, "SET LOCAL ROLE%LOCK TABLE%", || {
        complete(unprivileged(LATER_RELAY).args(["upgrade", &address]));
    });
    let version: String = database.query_one_value("SELECT webhook.portable_version()");
    assert_eq!(version, LATER);
}

/// `statement` is how the sessions of the server show the upgrade.
fn upgrade_in_flight(database: &Database, statement: &str, upgrade: impl FnOnce() + Send) {
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    receiver.hold("/orders");
    let mut emitted: Vec<Uuid> = Vec::new();
    let mut session = database.connect();
    for number in 0..100 {
        emitted.push(emit_in_order(&mut session, number));
    }
    receiver.wait_for_requests(FIRST_WINDOW);

    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let upgrading = scope.spawn(|| {
            upgrade();
            is_done.store(true, Ordering::Release);
        });
        // The upgrade of an extension waits for the requests of the worker; one that waits for nothing may not be
        // seen.
        scope.spawn(|| {
            let seen = format!(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                                AND pid <> pg_backend_pid() AND query LIKE '{statement}')"
            );
            wait::until_true("the upgrade to be under way", || {
                is_done.load(Ordering::Acquire) || database.query_one_value(&seen)
            });
            receiver.release("/orders");
        });
        while !upgrading.is_finished() {
            emitted.push(emit(&mut session, "order.paid", json!({})));
        }
    });
    assert!(emitted.len() > 100);
    emitted.push(database.emit("order.created", json!({})));

    let queue = "SELECT count(*) FROM webhook.delivery WHERE status <> 'SENT'";
    wait::until("all deliveries to be sent", || {
        match database.query_one_value::<i64>(queue) {
            0 => Ok(()),
            left => Err(left),
        }
    });
    let mut arrived = ids(&receiver.requests());
    arrived.sort();
    emitted.sort();
    assert_eq!(arrived, emitted);
    assert_order(&receiver);
    // The upgrade has changed the table while all of this was in it.
    let changed: bool = database.query_one_value("SELECT bool_and(e.later = 7 AND d.later = 7) FROM webhook.event e JOIN webhook.delivery d ON d.event_id = e.id");
    assert!(changed);
}

fn emit_in_order(session: &mut postgres::Client, number: usize) -> Uuid {
    let key = format!("customer {}", number % KEYS);
    let payload = json!({"customer": key, "number": number});
    let emitted = session.query_one(
        "SELECT webhook_emit('order.created', $1, ordering_key => $2)",
        &[&payload, &key],
    );
    emitted.unwrap().get(0)
}

#[track_caller]
fn assert_order(receiver: &Receiver) {
    let mut last: HashMap<String, i64> = HashMap::new();
    for request in receiver.requests() {
        let data = &request.json()["data"];
        let (Value::String(customer), Some(number)) = (&data["customer"], data["number"].as_i64())
        else {
            continue;
        };
        let earlier = last.insert(customer.clone(), number);
        assert!(earlier < Some(number), "{customer}: {earlier:?}, {number}");
    }
    assert_eq!(last.len(), KEYS);
}
