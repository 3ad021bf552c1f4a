//! A primary dies and a standby takes its place: senders follow.

use std::collections::HashMap;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::receiver::{Request, ids};
use webhook_e2e::{Cluster, Database, Receiver, Relay, wait, worker};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");
const EVENTS: i64 = 300;

/// Commits on the primary wait for the standby from now on.
fn replicate_synchronously(primary: &mut Cluster) {
    primary.configure("synchronous_standby_names = '*'");
    primary.reload();
    let in_step = "SELECT sync_state FROM pg_stat_replication";
    wait::until("the standby to be synchronous", || {
        let row = primary.connect("postgres").query_opt(in_step, &[]);
        match row.unwrap().map(|row| row.get::<_, String>(0)) {
            Some(state) if state == "sync" => Ok(()),
            other => Err(other),
        }
    });
}

fn emit_events(database: &Database) {
    database.execute(&format!(
        "SELECT webhook_emit('order.created', jsonb_build_object('n', n)) FROM generate_series(1, {EVENTS}) n"
    ));
}

#[track_caller]
fn wait_until_all_are_sent(database: &Database, number: i64) {
    wait::until("all events to be sent", || {
        let left: i64 = database.query_one_value("SELECT count(*) FROM webhook.delivery_queue");
        let sent: i64 =
            database.query_one_value("SELECT count(*) FROM webhook.delivery WHERE status = 'SENT'");
        match (left, sent) {
            (0, sent) if sent == number => Ok(()),
            other => Err(other),
        }
    });
}

fn arrivals(requests: &[Request]) -> HashMap<Uuid, usize> {
    let mut arrivals = HashMap::new();
    for id in ids(requests) {
        *arrivals.entry(id).or_default() += 1;
    }
    arrivals
}

#[test]
fn a_relay_goes_on_at_a_promoted_standby_and_loses_nothing() {
    let receiver = Receiver::start();
    let mut primary = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .setting("webhook.site = 'shop'")
        .setting("wal_log_hints = on")
        .setting("wal_keep_size = '256MB'")
        .start();
    let lost = primary.database("failover");
    let standby = Cluster::builder().start_standby_of(&primary);
    replicate_synchronously(&mut primary);
    lost.add_endpoint("orders", &receiver.url("/orders"));
    let hosts = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname={} target_session_attrs=read-write",
        primary.port(),
        standby.port(),
        lost.name()
    );
    let relay = Relay::start(PROGRAM, &hosts, &[]);

    receiver.hold_after("/orders", 100);
    emit_events(&lost);
    receiver.wait_for_requests(101);
    lost.wait_until("SELECT count(*) = 100 FROM webhook.delivery WHERE status = 'SENT'");
    primary.kill_immediately();
    relay.wait_for_log("cannot connect");
    let in_flight = ids(&receiver.requests()[100..]);
    receiver.release("/orders");
    standby.promote();

    let database = standby.existing_database(lost.name());
    wait_until_all_are_sent(&database, EVENTS);
    let arrivals = arrivals(&receiver.requests());
    assert_eq!(arrivals.len() as i64, EVENTS);
    let repeated: Vec<_> = arrivals.iter().filter(|(_, times)| **times > 1).collect();
    assert!(
        repeated
            .iter()
            .all(|(id, times)| in_flight.contains(id) && **times == 2),
        "{repeated:?} of {in_flight:?}"
    );
    let kinds: Vec<String> = database
        .query_one_value("SELECT array_agg(s ->> 'kind') FROM jsonb_array_elements((SELECT senders FROM webhook_status())) s");
    assert_eq!(kinds, ["relay"]);

    // The old primary comes back as a standby; the relay, which lists it first, stays where it can write.
    primary.rejoin(&standby);
    let follows = primary
        .connect("postgres")
        .query_one("SELECT pg_is_in_recovery()", &[]);
    assert!(follows.unwrap().get::<_, bool>(0));
    let (restarted, before) = (Relay::start(PROGRAM, &hosts, &[]), relay);
    before.terminate();
    assert!(before.wait().success(), "{}", before.log());
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    database.wait_for_status(event, "SENT");
    drop(restarted);
}

#[test]
fn the_worker_of_a_promoted_standby_delivers_and_so_does_an_old_primary_that_nobody_fences() {
    let receiver = Receiver::start();
    let mut primary = Cluster::builder().setting("webhook.site = 'shop'").start();
    let lost = primary.database("unfenced");
    let standby = Cluster::builder().start_standby_of(&primary);
    replicate_synchronously(&mut primary);
    lost.add_endpoint("orders", &receiver.url("/orders"));
    receiver.hold("/orders");
    let event = lost.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    let waiting = standby.existing_database(lost.name());
    let state: String = waiting.query_one_value("SELECT state FROM webhook_status()");
    assert_eq!(state, "no worker");
    primary.kill_immediately();
    standby.promote();
    receiver.release("/orders");
    waiting.wait_for_status(event, "SENT");
    assert_eq!(ids(&receiver.requests()), [event, event]);

    // It knows nothing of the promotion, and its copy of the event is still in flight.
    primary.configure("synchronous_standby_names = ''");
    primary.start_server();
    lost.wait_for_status(event, "SENT");
    assert_eq!(ids(&receiver.requests()), [event, event, event]);
    assert_ne!(worker::pid(&lost), worker::pid(&waiting));
}
