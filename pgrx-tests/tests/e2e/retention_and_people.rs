//! Retention beside people and workers who use the same rows: it waits for nobody and takes nothing that is needed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Receiver, wait, worker};

use super::retention::{
    AtTheEnd, cluster_that_keeps_everything, database, keep_as_by_default, past, rows_of,
    wait_for_a_sweep, wait_for_looks, wait_until,
};

#[test]
fn what_somebody_has_locked_is_passed_over_and_goes_later() {
    let mut cluster = cluster_that_keeps_everything();
    let receiver = Receiver::start();
    let database = database(&cluster, &receiver);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let locked = [
        ("delivery_history", "event_id", "past('SENT', '8 days')"),
        ("dead_letter", "event_id", "past('FAILED', '31 days')"),
        ("attempt", "event_id", "past('SENT', '8 days')"),
        ("event", "id", "past_event('8 days')"),
    ]
    .map(|(table, key, insert)| {
        let event: Uuid = database.query_one_value(&format!("SELECT {insert}"));
        let lock = format!("SELECT FROM webhook.{table} WHERE {key} = $1 FOR UPDATE");
        transaction.query_one(&lock, &[&event]).unwrap();
        event
    });
    let others: Vec<Uuid> = (0..300)
        .map(|_| past(&database, "SENT", "8 days"))
        .collect();
    keep_as_by_default(&mut cluster);

    wait_for_a_sweep(&database);
    let worker = worker::pid(&database);
    assert_eq!(rows_of(&database, &others), (0, 0, 0));
    let [history, dead_letter, attempt, event] = locked;
    assert_eq!(rows_of(&database, &[history, dead_letter]), (2, 2, 2));
    // The delivery is gone; the rest of its rows keep its event.
    assert_eq!(rows_of(&database, &[attempt]), (1, 0, 1));
    assert_eq!(rows_of(&database, &[event]), (1, 0, 0));
    let emitted = database.emit("order.created", json!({}));
    database.wait_for_status(emitted, "SENT");

    transaction.rollback().unwrap();
    wait_until(
        &database,
        "SELECT NOT EXISTS (SELECT FROM webhook.event WHERE event_type = 'past.event')",
    );
    assert_eq!(rows_of(&database, &locked), (0, 0, 0));
    assert_eq!(worker::pid(&database), worker);
    assert_eq!(worker::complaints(&cluster, worker), Vec::<String>::new());
}

#[test]
fn a_table_that_somebody_has_locked_is_passed_over_quietly() {
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let event = past(&database, "SENT", "8 days");
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.event IN SHARE MODE")
        .unwrap();
    let worker = worker::pid(&database);
    keep_as_by_default(&mut cluster);
    wait_for_looks(worker);
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));

    transaction.rollback().unwrap();
    wait_until(&database, "SELECT NOT EXISTS (SELECT FROM webhook.event)");
    assert_eq!(worker::complaints(&cluster, worker), Vec::<String>::new());
}

#[test]
fn a_delivery_that_is_being_sent_again_keeps_its_event() {
    let mut cluster = cluster_that_keeps_everything();
    let receiver = Receiver::start();
    let database = database(&cluster, &receiver);
    let endings = [
        ("SENT", "8 days"),
        ("CANCELLED", "8 days"),
        ("FAILED", "31 days"),
    ];
    let events = endings.map(|(ended, age)| past(&database, ended, age));
    let rolled_back = endings.map(|(ended, age)| past(&database, ended, age));

    let requeue = "SELECT webhook.requeue($1, array_fill((SELECT min(id) FROM webhook.endpoint), ARRAY[3]), '{SENT, CANCELLED, FAILED}')";
    let (mut person, mut hesitant) = (database.connect(), database.connect());
    let mut sent_again = person.transaction().unwrap();
    let mut given_up = hesitant.transaction().unwrap();
    for (transaction, events) in [(&mut sent_again, &events), (&mut given_up, &rolled_back)] {
        let moved = transaction.query_one(requeue, &[&events.as_slice()]);
        assert_eq!(moved.unwrap().get::<_, i64>(0), 3);
    }
    keep_as_by_default(&mut cluster);
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &events), (3, 3, 3));
    sent_again.commit().unwrap();
    for event in events {
        receiver.wait_for_event(event);
        database.wait_for_status(event, "SENT");
    }
    given_up.rollback().unwrap();
    wait_for_a_sweep(&database);
    assert_eq!(rows_of(&database, &rolled_back), (0, 0, 0));
    assert_eq!(rows_of(&database, &events).0, 3);
}

/// People send deliveries again that are about to go, one moment before or after, while several sessions remove them.
#[test]
fn sending_again_and_removing_at_the_same_time_loses_no_event() {
    const EVENTS: i64 = 4_000;
    let (ended, met) = (AtomicBool::new(false), AtomicUsize::new(0));
    let receiver = Receiver::start();
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &receiver);
    database.add_endpoint_with(
        "other",
        &receiver.url("/other"),
        "'{order.*}', policy => 'fast'",
    );
    for ended in ["SENT", "FAILED"] {
        database.execute(&format!(
            "SELECT past_delivery(event, e.id, '{ended}', '40 days' - n * interval '1 s')
             FROM (SELECT n, past_event('40 days') AS event FROM generate_series(1, {EVENTS} / 2) n OFFSET 0) v,
                  webhook.endpoint e"
        ));
    }
    database.execute("ANALYZE webhook.delivery_history, webhook.dead_letter");
    let sent_again: Vec<(Uuid, i32)> = thread::scope(|scope| {
        let end = AtTheEnd(&ended);
        let removers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| remove_everything(&met, &mut database.connect())))
            .collect();
        let people: Vec<_> = ["delivery_history", "dead_letter"]
            .into_iter()
            .flat_map(|leaf| [leaf, leaf])
            .map(|leaf| {
                let (database, ended, met) = (&database, &ended, &met);
                scope.spawn(move || send_again_until(ended, met, leaf, &mut database.connect()))
            })
            .collect();
        for remover in removers {
            remover.join().unwrap();
        }
        drop(end);
        (people.into_iter())
            .flat_map(|person| person.join().unwrap())
            .collect()
    });
    assert!(sent_again.len() >= MEETINGS, "{} met", sent_again.len());
    let kept: i64 = database.query_one_value("SELECT count(*) FROM webhook.event");
    assert!(kept < EVENTS, "nothing was removed");

    wait_until(&database, "SELECT queued = 0 FROM webhook_status()");
    let mut client = database.connect();
    for (event, endpoint) in &sent_again {
        let is_there =
            "SELECT d.status FROM webhook.delivery d JOIN webhook.event v ON v.id = d.event_id
                        WHERE d.event_id = $1 AND d.endpoint_id = $2";
        let row = client.query_opt(is_there, &[event, endpoint]).unwrap();
        let status: Option<String> = row.map(|row| row.get(0));
        assert_eq!(status.as_deref(), Some("SENT"), "{event} to {endpoint}");
    }
}

/// So many deliveries that are about to go are sent again.
const MEETINGS: usize = 101;

/// Steps as the worker makes them, until the last event; each when somebody has met the ones before it.
fn remove_everything(met: &AtomicUsize, client: &mut Client) {
    client
        .batch_execute("SET webhook.retention_sent = '7d'; SET webhook.retention_failed = '30d'")
        .unwrap();
    let mut event_after: Option<Uuid> = None;
    for steps in 0.. {
        wait::until_true("people to send again", || {
            met.load(Ordering::SeqCst) >= MEETINGS.min(steps)
        });
        let step = "SELECT more, event_after FROM webhook.expire(10, NULL, NULL, $1, NULL)";
        let row = client.query_one(step, &[&event_after]).unwrap();
        event_after = row.get(1);
        if !row.get::<_, bool>(0) {
            return;
        }
    }
}

/// Takes one of the oldest, again and again, and says which were still there.
fn send_again_until(
    ended: &AtomicBool,
    met: &AtomicUsize,
    leaf: &str,
    client: &mut Client,
) -> Vec<(Uuid, i32)> {
    let oldest = format!(
        "SELECT event_id, endpoint_id FROM webhook.{leaf}
         WHERE completed_at < now() - interval '30 days' ORDER BY completed_at OFFSET 20 * random() LIMIT 1"
    );
    let oldest = client.prepare(&oldest).unwrap();
    let requeue =
        "SELECT webhook.requeue(ARRAY[$1::uuid], ARRAY[$2::int], '{SENT, CANCELLED, FAILED}')";
    let requeue = client.prepare(requeue).unwrap();
    let mut sent_again = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        let Some(row) = client.query_opt(&oldest, &[]).unwrap() else {
            continue;
        };
        let delivery: (Uuid, i32) = (row.get(0), row.get(1));
        let moved = client.query_one(&requeue, &[&delivery.0, &delivery.1]);
        if moved.unwrap().get::<_, i64>(0) == 1 {
            sent_again.push(delivery);
            met.fetch_add(1, Ordering::SeqCst);
        }
    }
    sent_again
}

#[test]
fn trouble_with_retention_is_reported_and_delivery_goes_on() {
    let receiver = Receiver::start();
    let database = database(Cluster::shared(), &receiver);
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''kept by audit''; END';
         CREATE TRIGGER refuse BEFORE DELETE ON webhook.delivery_history FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let event = past(&database, "SENT", "8 days");
    wait_until(
        &database,
        "SELECT coalesce(last_error = 'kept by audit', false) FROM webhook_status()",
    );
    let emitted = database.emit("order.created", json!({}));
    database.wait_for_status(emitted, "SENT");
    assert_eq!(rows_of(&database, &[event]), (1, 1, 1));

    database.execute("DROP TRIGGER refuse ON webhook.delivery_history");
    wait_until(
        &database,
        &format!("SELECT NOT EXISTS (SELECT FROM webhook.event WHERE id = '{event}')"),
    );
}
