//! A relay delivers where the server leaves delivery to it: webhook.max_in_flight is 0 there.

use std::collections::HashSet;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Receiver, Relay, TcpProxy};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

fn relay(database: &Database, options: &[&str]) -> Relay {
    let connection = connection(database, Cluster::relayed().port());
    Relay::start(PROGRAM, &connection, options)
}

/// As a role that has the level `relay` and no other.
fn connection(database: &Database, port: u16) -> String {
    let role = format!("relay_of_{}", database.name());
    database.execute(&format!("CREATE ROLE {role} LOGIN"));
    let grant = format!("SELECT webhook_grant('{role}', 'relay')");
    if database
        .query_one_value("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'webhook')")
    {
        database.execute(&grant);
    }
    format!(
        "host=127.0.0.1 port={port} user={role} dbname={}",
        database.name()
    )
}

fn attempts(database: &Database) -> i32 {
    database.query_one_value("SELECT attempts FROM webhook.delivery")
}

#[test]
fn a_relay_delivers_retries_and_settles() {
    let database = Cluster::relayed().database("relay");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let relay = relay(&database, &[]);
    receiver.respond("/orders", |_, number| match number {
        1 => Answer::status(503),
        _ => Answer::status(200),
    });
    let events: HashSet<Uuid> = (0..20)
        .map(|_| database.emit("order.created", json!({})))
        .collect();
    for event in &events {
        database.wait_for_status(*event, "SENT");
    }
    let arrived = receiver.requests().iter().map(|r| r.event_id()).collect();
    assert_eq!(events, arrived);
    assert_eq!(receiver.request_count(), 21);
    assert!(!relay.log().contains("ERROR"), "{}", relay.log());
}

#[test]
fn a_relay_goes_on_after_its_connection_was_cut() {
    let cluster = Cluster::relayed();
    let database = cluster.database("cut");
    let proxy = TcpProxy::start(cluster);
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    receiver.hold("/orders");
    let relay = Relay::start(PROGRAM, &connection(&database, proxy.port()), &[]);
    let before = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let sender: i32 = database.query_one_value("SELECT id FROM webhook.sender");
    proxy.cut();
    // It has looked for claims of the lost session when only the new one is left.
    database.wait_until(&format!(
        "SELECT count(*) = 1 AND min(id) <> {sender} FROM webhook.sender"
    ));
    receiver.release("/orders");
    let after = database.emit("order.created", json!({}));
    database.wait_for_status(before, "SENT");
    database.wait_for_status(after, "SENT");
    assert_eq!(receiver.request_count(), 2, "{}", relay.log());
}

#[test]
fn a_relay_that_is_told_to_stop_settles_what_is_in_flight() {
    let database = Cluster::relayed().database("stopped");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    receiver.hold("/orders");
    let relay = relay(&database, &[]);
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    relay.terminate();
    relay.wait_for_log("1 requests are in flight");
    let late = database.emit("order.created", json!({}));
    receiver.release("/orders");
    assert!(relay.wait().success(), "{}", relay.log());
    assert_eq!(database.delivery_status(event).as_deref(), Some("SENT"));
    assert_eq!(database.delivery_status(late).as_deref(), Some("PENDING"));
    let senders = "SELECT count(*) FROM webhook.sender";
    assert_eq!(database.query_one_value::<i64>(senders), 0);
}

#[test]
fn requests_that_outlast_the_grace_time_are_given_back() {
    let database = Cluster::relayed().database("grace");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    receiver.hold("/orders");
    let relay = relay(&database, &["--grace", "0"]);
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    relay.terminate();
    assert!(relay.wait().success(), "{}", relay.log());
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    assert_eq!(attempts(&database), 0);
}

#[test]
fn a_relay_sends_nothing_to_where_its_own_options_do_not_let_it() {
    let database = Cluster::relayed().database("egress");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let _relay = relay(&database, &["--deny-networks", "127.0.0.1"]);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let reason = "SELECT reason FROM webhook.delivery";
    assert_eq!(database.query_one_value::<String>(reason), "blocked");
    assert_eq!(receiver.request_count(), 0);
}

#[test]
fn a_relay_waits_for_the_extension_and_delivers_when_it_is_there() {
    let database = Cluster::relayed().plain_database("bare");
    let relay = relay(&database, &[]);
    relay.wait_for_log("the database does not have the extension webhook");
    database.create_extension();
    let role = format!("relay_of_{}", database.name());
    database.execute(&format!("SELECT webhook_grant('{role}', 'relay')"));
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
}

#[test]
fn another_relay_stands_by_and_takes_over_from_one_that_is_killed() {
    let cluster = Cluster::relayed();
    let database = cluster.database("stand_by");
    let receiver = Receiver::start();
    receiver.hold_after("/orders", 1);
    database.add_endpoint("orders", &receiver.url("/orders"));
    let connection = connection(&database, cluster.port());
    let first = Relay::start(PROGRAM, &connection, &[]);
    let sent = database.emit("order.created", json!({}));
    database.wait_for_status(sent, "SENT");
    let second = Relay::start(PROGRAM, &connection, &[]);
    database.wait_until("SELECT count(*) = 2 FROM webhook.sender");

    let in_flight = database.emit("order.created", json!({}));
    receiver.wait_for_requests(2);
    let holder = "SELECT sender_id FROM webhook.share";
    let holder: i32 = database.query_one_value(holder);
    // With SIGKILL.
    drop(first);
    database.wait_until(&format!("SELECT sender_id <> {holder} FROM webhook.share"));
    receiver.release("/orders");
    database.wait_for_status(in_flight, "SENT");
    let requests = receiver.requests();
    let again = requests.iter().filter(|r| r.event_id() == in_flight);
    assert_eq!(again.count(), 2, "{}", second.log());
    assert_eq!(receiver.request_count(), 3);
}
