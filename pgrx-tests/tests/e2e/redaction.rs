//! Events are taken back: queued deliveries cancelled by an UPDATE, events redacted.

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::database::refusal;
use webhook_e2e::dead_letters::{
    call, count, database, listening_session, only_row, statuses, told, wait_for_statuses,
};
use webhook_e2e::{Answer, Cluster, Database, RawReceiver, Receiver, Request};

#[test]
fn cancel_takes_back_what_is_queued_and_what_is_in_flight_changes_nothing() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/");
    database.add_endpoint("a", &receiver.url("/"));
    database.add_endpoint("b", &receiver.url("/"));
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'b'");
    let event = database.emit("order.created", json!({}));
    let other = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    receiver.wait_for_event(other);
    wait_for_statuses(&database, event, "a SENDING, b PENDING");

    database.execute(&format!(
        "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{event}'"
    ));
    assert_eq!(statuses(&database, event), "a CANCELLED, b CANCELLED");
    let errors = format!(
        "SELECT string_agg(DISTINCT last_error, ',') FROM webhook.delivery WHERE event_id = '{event}'"
    );
    assert_eq!(database.query_one_value::<String>(&errors), "cancelled");
    receiver.release("/");
    database.wait_until(&format!(
        "SELECT count(*) = 1 FROM webhook.attempt WHERE event_id = '{event}' AND verdict = 'late'"
    ));
    assert_eq!(statuses(&database, event), "a CANCELLED, b CANCELLED");
    wait_for_statuses(&database, other, "a SENT, b PENDING");
}

#[test]
fn redact_leaves_no_trace_of_payload_and_answers_and_keeps_the_rest() {
    const MARKER: &str = "4111-1111-1111-1111";
    let cluster = Cluster::builder()
        .setting("webhook.keep_attempts = 'all'")
        .start();
    let (database, receiver) = (cluster.database("redacted"), Receiver::start());
    for (path, status) in [
        ("/sent", 200),
        ("/failed", 404),
        ("/late", 500),
        ("/kept", 404),
    ] {
        receiver.respond(path, echo(status));
    }
    let garbage =
        RawReceiver::answering(b"HTTP/1.1 4111-1111-1111-1111\r\n4111-1111-1111-1111\r\n\r\n");
    receiver.hold("/late");
    for (name, url) in [
        ("failed", receiver.url("/failed")),
        ("garbled", garbage.url()),
        ("late", receiver.url("/late")),
        ("sent", receiver.url("/sent")),
    ] {
        database.add_endpoint_with(name, &url, "'{order.*}', policy => 'fast'");
    }
    database.add_endpoint_with("waiting", &Receiver::closed_url(), "'{order.*}'");
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'waiting'");
    let before = "failed FAILED, garbled FAILED, late SENDING, sent SENT, waiting PENDING";
    let event = database.emit("order.created", json!({"card": MARKER}));
    wait_for_statuses(&database, event, before);
    database.add_endpoint_with("kept", &receiver.url("/kept"), "'{kept}', policy => 'fast'");
    let kept = database.emit("kept", json!({"card": "another"}));
    database.wait_for_status(kept, "FAILED");
    assert_eq!(
        tables_with(&database, MARKER),
        ["webhook.attempt", "webhook.event"]
    );

    // The event, two queued deliveries, and the answers of `sent` and `failed`.
    assert_eq!(count(&database, &format!("webhook_redact('{event}')")), 5);
    assert_eq!(tables_with(&database, MARKER), Vec::<String>::new());
    let after = "failed FAILED, garbled FAILED, late CANCELLED, sent SENT, waiting CANCELLED";
    assert_eq!(statuses(&database, event), after);
    receiver.release("/late");
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt WHERE verdict = 'late'");
    assert_eq!(tables_with(&database, MARKER), Vec::<String>::new());

    let row = only_row(
        &database,
        &format!("SELECT * FROM webhook.event WHERE id = '{event}'"),
    );
    assert_eq!(row.get::<_, Value>("payload"), Value::Null);
    assert_eq!(row.get::<_, &str>("event_type"), "order.created");
    let rest: String = database.query_one_value(&format!(
        "SELECT string_agg(what, ', ' ORDER BY what)
         FROM (SELECT DISTINCT verdict || coalesce(' ' || status_code, '') FROM webhook.attempt
               WHERE event_id = '{event}') AS attempt (what)"
    ));
    assert_eq!(rest, "final 404, late 500, retry, success 200");
    let reason: String = database.query_one_value(
        "SELECT last_error FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
         WHERE e.name = 'waiting'",
    );
    assert_eq!(reason, "redacted");
    assert_eq!(
        tables_with(&database, "another"),
        ["webhook.attempt", "webhook.event"],
        "other events lose nothing"
    );
    assert_eq!(count(&database, &format!("webhook_redact('{event}')")), 0);
}

#[test]
fn redact_leaves_no_trace_of_keys() {
    const MARKER: &str = "ada@example.com";
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/failed", |_, _| Answer::status(404));
    for name in ["failed", "sent", "waiting"] {
        let url = receiver.url(&format!("/{name}"));
        database.add_endpoint_with(name, &url, "policy => 'fast'");
    }
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'waiting'");
    let before = "failed FAILED, sent SENT, waiting PENDING";
    let emitted: Uuid = database.query_one_value(&format!(
        "SELECT webhook_emit('customer.created', idempotency_key => '{MARKER}', ordering_key => '{MARKER}',
                             coalesce_key => '{MARKER}')"
    ));
    wait_for_statuses(&database, emitted, before);
    database.execute(&format!(
        "CREATE TABLE customer (email text, note text);
         SELECT webhook_watch('customer', 'customer', exclude => '{{email}}', ordering_key => '{{email}}',
                              coalesce_key => '{{email}}');
         INSERT INTO customer VALUES ('{MARKER}', 'new')"
    ));
    let captured: Uuid = database.query_one_value(&format!(
        "SELECT id FROM webhook.event WHERE id <> '{emitted}'"
    ));
    wait_for_statuses(&database, captured, before);
    let kept = [
        "webhook.dead_letter",
        "webhook.delivery_history",
        "webhook.delivery_queue",
        "webhook.event",
    ];
    assert_eq!(tables_with(&database, MARKER), kept);

    for event in [emitted, captured] {
        // The event, and three deliveries.
        assert_eq!(count(&database, &format!("webhook_redact('{event}')")), 4);
        assert_eq!(count(&database, &format!("webhook_redact('{event}')")), 0);
    }
    assert_eq!(tables_with(&database, MARKER), Vec::<String>::new());
}

#[test]
fn the_idempotency_key_of_a_redacted_event_still_counts() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/"));
    let emit = "SELECT webhook_emit('order.created', idempotency_key => 'order-7')";
    let event: Uuid = database.query_one_value(emit);
    database.wait_for_status(event, "SENT");
    database.execute(&format!("SELECT webhook_redact('{event}')"));
    assert_eq!(database.query_one_value::<Uuid>(emit), event);
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM webhook.event"),
        1
    );
}

#[test]
fn an_older_delivery_does_not_overwrite_a_redacted_one_that_was_sent() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, number| {
        Answer::status(if number == 1 { 404 } else { 200 })
    });
    database.add_endpoint_with("orders", &receiver.url("/"), "policy => 'fast'");
    let emit = "SELECT webhook_emit('order.changed', coalesce_key => 'order-7')";
    let older: Uuid = database.query_one_value(emit);
    database.wait_for_status(older, "FAILED");
    let newer: Uuid = database.query_one_value(emit);
    database.wait_for_status(newer, "SENT");
    database.execute(&format!("SELECT webhook_redact('{newer}')"));
    database.execute(&format!("SELECT webhook_replay('{older}')"));
    database.wait_for_status(older, "CANCELLED");
    let reason = "SELECT reason FROM webhook.delivery WHERE status = 'CANCELLED'";
    assert_eq!(database.query_one_value::<String>(reason), "coalesced");
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn a_redacted_event_is_never_sent_again() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404));
    database.add_endpoint("a", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    database.execute(&format!("SELECT webhook_redact('{event}')"));

    let (mut session, notices) = listening_session(&database);
    let passed_over = "skipped 1 deliveries whose event was redacted or deleted";
    assert_eq!(call(&mut session, &format!("webhook_replay('{event}')")), 0);
    assert_eq!(told(&notices), [passed_over]);
    session
        .batch_execute("CALL webhook_replay_all('*')")
        .unwrap();
    assert_eq!(told(&notices).last().unwrap(), passed_over);

    session
        .batch_execute("UPDATE webhook.delivery SET status = 'PENDING'")
        .unwrap();
    database.wait_until("SELECT count(*) = 1 FROM webhook.failed WHERE last_error = 'the event was deleted or redacted'");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn an_answer_that_arrives_while_its_event_is_being_redacted_is_not_kept() {
    const MARKER: &str = "4111-1111-1111-1111";
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/held");
    receiver.respond("/held", echo(500));
    receiver.respond("/failing", echo(404));
    database.add_endpoint("a", &receiver.url("/held"));
    database.add_endpoint("b", &receiver.url("/failing"));
    let event = database.emit("order.created", json!({"card": MARKER}));
    wait_for_statuses(&database, event, "a SENDING, b FAILED");
    receiver.wait_for_requests_to("/held", 1);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .execute("SELECT webhook_redact($1)", &[&event])
        .unwrap();
    receiver.release("/held");

    // Nobody else can have it sent meanwhile.
    let mut other = database.connect();
    let replay = format!("SET lock_timeout = '300ms'; SELECT webhook_replay('{event}')");
    assert_eq!(refusal(&mut other, &replay).code().code(), "55P03");
    transaction.commit().unwrap();
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt WHERE verdict = 'late'");
    assert_eq!(tables_with(&database, MARKER), Vec::<String>::new());
    assert_eq!(statuses(&database, event), "a CANCELLED, b FAILED");
}

fn echo(status: u16) -> impl Fn(&Request, usize) -> Answer {
    move |request, _| Answer::status(status).body(request.body.clone())
}

/// The tables of the extension with a row that contains this text in any column.
fn tables_with(database: &Database, text: &str) -> Vec<String> {
    let mut session = database.connect();
    let tables = session
        .query(
            "SELECT c.oid::regclass::text FROM pg_class c
             WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind = 'r' ORDER BY 1",
            &[],
        )
        .unwrap();
    let tables = tables.iter().map(|row| row.get::<_, String>(0));
    tables
        .filter(|table| {
            let rows = format!("(SELECT count(*) FROM {table} t WHERE t::text LIKE '%{text}%')");
            call(&mut session, &rows) > 0
        })
        .collect()
}
