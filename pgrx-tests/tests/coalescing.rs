//! A newer event with the same coalesce key supersedes an older one that still waits for an endpoint.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{self, Wish};
use webhook_e2e::{Cluster, Database, Receiver};

const PAUSE: &str = "SELECT webhook_pause('orders')";

fn database(cluster: &Cluster, url: &str) -> Database {
    let database = cluster.database("coalescing");
    database.add_endpoint("orders", url);
    database
}

fn emit(client: &mut impl postgres::GenericClient, key: &str, options: &str) -> Uuid {
    let sql = format!("SELECT webhook_emit('order.changed', coalesce_key => $1 {options})");
    client.query_one(&sql, &[&key]).unwrap().get(0)
}

#[track_caller]
fn end_of(database: &Database, event: Uuid) -> String {
    database.query_one_value(&format!(
        "SELECT status || coalesce(' ' || last_error, '') FROM webhook.delivery WHERE event_id = '{event}'"
    ))
}

#[test]
fn only_the_newest_that_waits_is_sent() {
    let receiver = Receiver::start();
    let database = database(Cluster::shared(), &receiver.url("/orders"));
    database.execute(PAUSE);
    let mut client = database.connect();
    let old = emit(&mut client, "order-1", "");
    let middle = emit(&mut client, "order-1", "");
    let other = emit(&mut client, "order-2", "");
    let plain = database.emit("order.changed", json!({}));
    let new = emit(&mut client, "order-1", "");
    assert_eq!(end_of(&database, old), "CANCELLED coalesced");
    assert_eq!(end_of(&database, middle), "CANCELLED coalesced");
    let events: i64 = database.query_one_value("SELECT count(*) FROM webhook.event");
    assert_eq!(events, 5, "events stay");

    database.execute("SELECT webhook_resume('orders')");
    for sent in [other, plain, new] {
        database.wait_for_status(sent, "SENT");
    }
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_retry_that_waits_is_superseded_and_what_is_in_flight_is_not() {
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, _| webhook_e2e::Answer::status(500));
    let database = database(Cluster::shared(), &receiver.url("/orders"));
    let mut client = database.connect();
    let failed = emit(&mut client, "order-1", "");
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt");
    receiver.respond("/orders", |_, _| webhook_e2e::Answer::status(200));
    receiver.hold("/orders");
    let in_flight = emit(&mut client, "order-1", "");
    assert_eq!(end_of(&database, failed), "CANCELLED coalesced");
    receiver.wait_for_event(in_flight);
    let newest = emit(&mut client, "order-1", "");
    assert_eq!(end_of(&database, in_flight), "SENDING");
    receiver.release("/orders");
    database.wait_for_status(in_flight, "SENT");
    database.wait_for_status(newest, "SENT");
}

#[test]
fn each_endpoint_and_each_tenant_has_its_own() {
    let cluster = engine::idle_cluster();
    let database = database(&cluster, "http://127.0.0.1:9/");
    database.add_endpoint_with("acme", "http://127.0.0.1:9/", "tenant => 'acme'");
    let mut client = database.connect();
    let of_nobody = emit(&mut client, "order-1", "");
    let of_acme = emit(&mut client, "order-1", ", tenant => 'acme'");
    let of_other = emit(&mut client, "order-1", ", tenant => 'other'");
    let queued = |event: Uuid| -> i64 {
        database.query_one_value(&format!(
            "SELECT count(*) FROM webhook.delivery_queue WHERE event_id = '{event}'"
        ))
    };
    assert_eq!([of_nobody, of_acme, of_other].map(queued), [1, 2, 1]);
    let newer = emit(&mut client, "order-1", ", tenant => 'acme'");
    assert_eq!(
        [of_nobody, of_acme, of_other, newer].map(queued),
        [1, 0, 1, 2]
    );
}

#[test]
fn a_rolled_back_event_supersedes_nothing() {
    let cluster = engine::idle_cluster();
    let database = database(&cluster, "http://127.0.0.1:9/");
    let mut client = database.connect();
    let old = emit(&mut client, "order-1", "");
    let mut transaction = client.transaction().unwrap();
    emit(&mut transaction, "order-1", "");
    transaction.rollback().unwrap();
    assert_eq!(end_of(&database, old), "PENDING");
}

#[test]
fn two_who_did_not_see_each_other_are_sorted_out_when_one_is_claimed() {
    let cluster = engine::idle_cluster();
    let database = database(&cluster, "http://127.0.0.1:9/");
    let (mut one, mut other) = (database.connect(), database.connect());
    one.batch_execute("BEGIN").unwrap();
    other.batch_execute("BEGIN").unwrap();
    let older = emit(&mut one, "order-1", "");
    let newer = emit(&mut other, "order-1", "");
    one.batch_execute("COMMIT").unwrap();
    other.batch_execute("COMMIT").unwrap();
    assert_eq!(end_of(&database, older), "PENDING");

    let wish = Wish {
        endpoint: database.query_one_value("SELECT id FROM webhook.endpoint"),
        capacity: 10,
        in_flight: 0,
    };
    let claims = engine::claim(&mut one, 1, &[wish]);
    let claimed: Vec<Uuid> = claims.iter().map(|claim| claim.event).collect();
    assert_eq!(claimed, [newer]);
    assert_eq!(end_of(&database, older), "CANCELLED coalesced");
}

#[test]
fn emitters_do_not_wait_for_each_other() {
    let cluster = engine::idle_cluster();
    let database = database(&cluster, "http://127.0.0.1:9/");
    let (mut one, mut other) = (database.connect(), database.connect());
    emit(&mut one, "order-1", "");
    one.batch_execute("BEGIN").unwrap();
    emit(&mut one, "order-1", "");
    other.batch_execute("SET lock_timeout = '5 s'").unwrap();
    emit(&mut other, "order-1", "");
    one.batch_execute("ROLLBACK").unwrap();
}

#[test]
fn with_an_ordering_key_the_turn_passes_on() {
    let cluster = engine::idle_cluster();
    let database = database(&cluster, "http://127.0.0.1:9/");
    let mut client = database.connect();
    let both = ", ordering_key => 'order-1'";
    let old = emit(&mut client, "order-1", both);
    let endpoint = database.query_one_value("SELECT id FROM webhook.endpoint");
    let wish = Wish {
        endpoint,
        capacity: 10,
        in_flight: 0,
    };
    assert_eq!(engine::claim(&mut client, 1, &[wish])[0].event, old);
    database.execute("SELECT webhook.recover(2, '{}', '{}')");
    let new = emit(&mut client, "order-1", both);
    assert_eq!(end_of(&database, old), "CANCELLED coalesced");
    assert_eq!(engine::claim(&mut client, 1, &[wish])[0].event, new);
}
