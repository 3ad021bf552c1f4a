//! `webhook_backfill()`: kept events that an endpoint matches now and has no delivery of.

use std::thread;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::dead_letters::{
    count, database, listening_session, paused_database, rows_read, statuses, told,
};
use webhook_e2e::{Database, Receiver, engine};

#[test]
fn what_was_emitted_before_an_endpoint_was_added_arrives_in_the_order_of_emission() {
    let (database, receiver) = (database(), Receiver::start());
    let events: Vec<Uuid> = (0..25)
        .map(|n| database.emit("order.created", json!({ "n": n })))
        .collect();
    // One at a time, so that the order of arrival is that of the claims.
    database.add_endpoint_with(
        "a",
        &receiver.url("/"),
        "policy => 'fast', max_in_flight => 1",
    );
    database.execute("CALL webhook_backfill('a', NULL, batch_size => 10)");
    receiver.wait_for_requests_to("/", 25);
    let arrived: Vec<Uuid> = (receiver.requests().iter()).map(|r| r.event_id()).collect();
    assert_eq!(arrived, events);
}

#[test]
fn it_makes_deliveries_of_what_matches_now_and_nothing_the_second_time() {
    let database = database();
    let emit = |event_type: &str, total: i32, tenant: &str| -> Uuid {
        database.query_one_value(&format!(
            "SELECT webhook_emit('{event_type}', '{{\"total\": {total}}}', tenant => {tenant})"
        ))
    };
    let wanted = [
        emit("order.created", 120, "'acme'"),
        emit("order.paid", 120, "'acme'"),
    ];
    for (event_type, total, tenant) in [
        ("order.created", 20, "'acme'"),
        ("order.created", 120, "'rival'"),
        ("order.created", 120, "NULL"),
        ("order.draft", 120, "'acme'"),
        ("invoice.sent", 120, "'acme'"),
    ] {
        emit(event_type, total, tenant);
    }
    let redacted = emit("order.created", 120, "'acme'");
    database.execute(&format!(
        "SELECT webhook_redact('{redacted}');
         INSERT INTO webhook.event (id, tenant, event_type, payload, created_at)
         VALUES (webhook.new_id(), 'acme', 'webhook.test', '{{\"total\": 120}}', clock_timestamp())"
    ));
    database.add_endpoint_with(
        "acme/a",
        &Receiver::closed_url(),
        "'{order.*, !order.draft, webhook.*}', filter => '$.data.total > 100'",
    );
    database.pause_all();

    let (mut session, notices) = listening_session(&database);
    for made in [2, 0] {
        session
            .batch_execute("CALL webhook_backfill('*', NULL)")
            .unwrap();
        let said = told(&notices);
        assert_eq!(said.last().unwrap(), &format!("made {made} deliveries"));
        assert_eq!(queued(&database), wanted);
    }
    // The endpoint has had a delivery, whatever its status.
    database.execute("UPDATE webhook.delivery SET status = 'CANCELLED'");
    database.execute("CALL webhook_backfill('*', NULL)");
    assert!(queued(&database).is_empty());
}

#[test]
fn an_address_names_one_endpoint_or_those_of_a_tenant() {
    let database = database();
    let event: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', tenant => 'acme')");
    for address in ["a", "acme/a", "acme/b", "rival/a"] {
        database.add_endpoint(address, &Receiver::closed_url());
    }
    database.execute("SELECT webhook_pause('*')");
    let endpoints = || -> String {
        database.query_one_value(&format!(
            "SELECT coalesce(string_agg(s.endpoint, ', ' ORDER BY s.endpoint), '') FROM webhook.waiting s
             WHERE s.event_id = '{event}'"
        ))
    };
    for (address, expected) in [
        ("rival/a", ""),
        ("acme/a", "acme/a"),
        ("acme/*", "acme/a, acme/b"),
        ("*", "a, acme/a, acme/b"),
    ] {
        database.execute(&format!("CALL webhook_backfill('{address}', NULL)"));
        assert_eq!(endpoints(), expected, "{address}");
    }
}

#[test]
fn a_backfilled_delivery_is_new_and_due_now() {
    let database = paused_database();
    database.execute("UPDATE webhook.endpoint SET event_types = '{invoice}'");
    let event: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', ordering_key => 'k', deliver_at => now() + interval '1 day')",
    );
    database.execute("UPDATE webhook.endpoint SET event_types = '{*}'");
    database.execute("CALL webhook_backfill('b', NULL)");
    assert_eq!(statuses(&database, event), "b PENDING");
    let is_new: bool = database.query_one_value(
        "SELECT attempts = 0 AND max_attempts = 3 AND next_attempt_at = q.created_at AND next_attempt_at <= now()
                AND q.created_at > v.created_at AND num_nonnulls(ordering_key, coalesce_key, expires_at) = 0
         FROM webhook.delivery_queue q JOIN webhook.event v ON v.id = q.event_id",
    );
    assert!(is_new);
}

#[test]
fn since_until_and_the_type_bound_it() {
    let database = paused_database();
    database.execute("UPDATE webhook.endpoint SET event_types = '{invoice}'");
    let types = [
        "order.created",
        "order.paid",
        "order.created",
        "order.created",
    ];
    let events = types.map(|event_type| database.emit(event_type, json!({})));
    database.execute("UPDATE webhook.endpoint SET event_types = '{order.*}'");
    let time = |event: Uuid| format!("(SELECT created_at FROM webhook.event WHERE id = '{event}')");
    let [_, second, third, fourth] = events.map(time);
    // `since` is included, `until` is not; a procedure takes no subquery.
    for (since, until, event_type, expected) in [
        (None, None, None, &events[..]),
        (Some(&second), None, None, &events[1..]),
        (None, Some(&third), None, &events[..2]),
        (Some(&second), Some(&fourth), None, &events[1..3]),
        (
            Some(&second),
            Some(&fourth),
            Some("order.created"),
            &events[2..3],
        ),
        (Some(&third), Some(&third), None, &[]),
    ] {
        let value = |time: Option<&String>| -> String {
            let text = time.map_or("'NULL'".to_owned(), |time| format!("quote_literal({time})"));
            database.query_one_value(&format!("SELECT {text}"))
        };
        let event_type = event_type.map_or("NULL".to_owned(), |name| format!("'{name}'"));
        let call = format!("'a', {}, {}, {event_type}", value(since), value(until));
        database.execute("DELETE FROM webhook.delivery");
        database.execute(&format!("CALL webhook_backfill({call})"));
        assert_eq!(queued(&database), expected, "{call}");
    }
}

#[test]
fn what_can_not_be_told_to_be_missing_is_passed_over() {
    let database = paused_database();
    database.execute("UPDATE webhook.endpoint SET event_types = '{invoice}'");
    let old = database.emit("order.created", json!({}));
    let young = database.emit("order.created", json!({}));
    // Deliveries of older events may have been sent and removed since.
    let older = "id = (webhook.first_id(now() - interval '8 days')), created_at = now() - interval '8 days'";
    database.execute(&format!(
        "UPDATE webhook.event SET {older} WHERE id = '{old}';
         UPDATE webhook.endpoint SET event_types = '{{*}}';
         SELECT webhook_copy_policy('fast', 'forgetful');
         UPDATE webhook.policy SET keep_sent = false WHERE name = 'forgetful';
         UPDATE webhook.endpoint SET policy = 'forgetful' WHERE name = 'b'"
    ));
    let refusal = database.refusal("CALL webhook_backfill('b', NULL)");
    assert_eq!(refusal.code().code(), "55000");
    assert!(refusal.detail().unwrap().contains("keep_sent = false"));
    assert!(refusal.hint().unwrap().contains("policy"));

    let (mut session, notices) = listening_session(&database);
    session
        .batch_execute("CALL webhook_backfill('*', NULL)")
        .unwrap();
    assert!(told(&notices)[0].contains("keep no record"));
    assert_eq!(statuses(&database, young), "a PENDING");
    assert_eq!(queued(&database), [young]);
}

#[test]
fn each_batch_is_committed_and_progress_is_told() {
    let database = paused_database();
    database.execute(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         SELECT webhook.new_id(), 'order.created', '{}', clock_timestamp() FROM generate_series(1, 500)",
    );
    let middle: Uuid =
        database.query_one_value("SELECT id FROM webhook.event ORDER BY id OFFSET 249 LIMIT 1");
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.event WHERE id = $1 FOR UPDATE";
    transaction.execute(lock, &[&middle]).unwrap();

    let (mut session, notices) = listening_session(&database);
    let backfill = thread::spawn(move || {
        session
            .batch_execute("CALL webhook_backfill('a', NULL, batch_size => 100)")
            .unwrap();
    });
    // The batch of the locked event waits; earlier batches are there for all to see.
    database.wait_until("SELECT count(*) = 200 FROM webhook.delivery_queue");
    wait_for_waiting_session(&database);
    transaction.rollback().unwrap();
    backfill.join().unwrap();
    assert_eq!(queued(&database).len(), 500);
    let said = told(&notices);
    assert!(said[0].contains("500 events"), "{said:?}");
    assert!(said[3].contains("300 of 500 events"), "{said:?}");
    assert_eq!(said.last().unwrap(), "made 500 deliveries");
}

#[test]
fn two_at_the_same_time_make_each_delivery_once() {
    let database = paused_database();
    let events: Vec<Uuid> = without_deliveries(&database, 3);
    let mut first = database.connect();
    let mut transaction = first.transaction().unwrap();
    let run =
        "SELECT webhook.backfill_batch(webhook.begin_backfill('a', NULL, NULL, NULL, 10))::text";
    transaction.query(run, &[]).unwrap();
    let mut second = database.connect();
    let second = thread::spawn(move || {
        second
            .batch_execute("CALL webhook_backfill('a', NULL)")
            .unwrap();
    });
    wait_for_waiting_session(&database);
    // The worker may even have sent one of them meanwhile.
    transaction
        .batch_execute(&format!(
            "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{}'",
            events[0]
        ))
        .unwrap();
    transaction.commit().unwrap();
    second.join().unwrap();
    assert_eq!(
        count(&database, "(SELECT count(*) FROM webhook.delivery)"),
        3
    );
}

#[test]
fn retention_and_redaction_meanwhile_leave_no_delivery_without_its_event() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("meanwhile");
    database.add_endpoint("a", &Receiver::closed_url());
    let [redacted, removed, kept]: [Uuid; 3] = without_deliveries(&database, 3).try_into().unwrap();

    // A delivery is being made of an event that retention is about to remove: it stays.
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let run =
        "SELECT webhook.backfill_batch(webhook.begin_backfill('a', NULL, NULL, NULL, 10))::text";
    transaction.query(run, &[]).unwrap();
    database.execute(
        "SET webhook.retention_sent = 0; SELECT webhook.expire(10, NULL, NULL, NULL, NULL)",
    );
    transaction.rollback().unwrap();
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.event)"), 3);

    // The other way round: an event that is being removed or redacted is waited for, and then passed over.
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute(&format!(
            "SELECT webhook_redact('{redacted}'); DELETE FROM webhook.event WHERE id = '{removed}'"
        ))
        .unwrap();
    let mut other = database.connect();
    let backfill = thread::spawn(move || {
        other
            .batch_execute("CALL webhook_backfill('a', NULL)")
            .unwrap();
    });
    wait_for_waiting_session(&database);
    transaction.commit().unwrap();
    backfill.join().unwrap();
    assert_eq!(queued(&database), [kept]);
}

#[test]
fn a_batch_reads_as_many_events_as_it_says() {
    let database = paused_database();
    without_deliveries(&database, 20_000);
    let run = "run webhook.backfill := webhook.begin_backfill('a', NULL, NULL, NULL, 100);";
    let batch = "PERFORM webhook.backfill_batch(run)";
    let read = rows_read(&mut database.connect(), run, batch);
    assert!((100..2_100).contains(&read), "it has read {read}");
    assert_eq!(queued(&database).len(), 100);
}

#[test]
fn what_is_not_valid_is_refused() {
    let database = paused_database();
    for (arguments, code) in [
        ("NULL, NULL", "22004"),
        ("'nobody', NULL", "42704"),
        ("'a', NULL, batch_size => 0", "22023"),
    ] {
        let refusal = database.refusal(&format!("CALL webhook_backfill({arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}");
        assert!(refusal.hint().is_some(), "{arguments}");
    }
    let refusal = database.refusal("BEGIN; CALL webhook_backfill('a', NULL)");
    assert_eq!(refusal.code().code(), "25001");
}

/// The events of the queue, in the order in which they are claimed.
fn queued(database: &Database) -> Vec<Uuid> {
    database.query_one_value(
        "SELECT coalesce(array_agg(event_id ORDER BY next_attempt_at, event_id), '{}') FROM webhook.delivery_queue",
    )
}

/// So many events that nobody got, of the last hour.
fn without_deliveries(database: &Database, events: i32) -> Vec<Uuid> {
    database.query_one_value(&format!(
        "WITH made AS (
             INSERT INTO webhook.event (id, event_type, payload, created_at)
             SELECT webhook.new_id(), 'order.created', '{{}}', clock_timestamp() FROM generate_series(1, {events})
             RETURNING id)
         SELECT array_agg(id ORDER BY id) FROM made"
    ))
}

#[track_caller]
fn wait_for_waiting_session(database: &Database) {
    database.wait_until(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
}
