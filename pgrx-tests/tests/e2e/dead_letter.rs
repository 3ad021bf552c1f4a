//! Dead letters: seen and discarded.

use std::thread;

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::dead_letters::{
    bury, bury_again, call, count, database, only_row, paused_database, statuses,
};
use webhook_e2e::{Answer, Database, Receiver, engine};

#[test]
fn failed_shows_the_event_its_endpoint_and_the_error() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404).body("no such hook"));
    database.add_endpoint_with("acme/orders", &receiver.url("/"), "policy => 'power5'");
    let event = database.query_one_value::<Uuid>(
        r#"SELECT webhook_emit('order.created', '{"n": 1}', tenant => 'acme')"#,
    );
    database.wait_for_status(event, "FAILED");

    let row = only_row(&database, "SELECT * FROM webhook.failed");
    let columns: Vec<&str> = row.columns().iter().map(|column| column.name()).collect();
    assert_eq!(
        columns,
        [
            "event_id",
            "event_type",
            "endpoint",
            "tenant",
            "created_at",
            "failed_at",
            "attempts",
            "verdict",
            "reason",
            "last_status_code",
            "last_error",
            "last_answer",
            "payload",
        ]
    );
    assert_eq!(row.get::<_, Uuid>("event_id"), event);
    assert_eq!(row.get::<_, &str>("event_type"), "order.created");
    assert_eq!(row.get::<_, &str>("endpoint"), "acme/orders");
    assert_eq!(row.get::<_, &str>("tenant"), "acme");
    assert_eq!(row.get::<_, Value>("payload"), json!({"n": 1}));
    assert_eq!(row.get::<_, i32>("attempts"), 1);
    assert_eq!(row.get::<_, i32>("last_status_code"), 404);
    assert_eq!(row.get::<_, &str>("last_error"), "HTTP 404");
    assert_eq!(row.get::<_, &str>("verdict"), "final");
    assert_eq!(row.get::<_, &str>("reason"), "status");
    assert_eq!(row.get::<_, &str>("last_answer"), "no such hook");
    let when: bool = database.query_one_value(
        "SELECT failed_at = completed_at AND failed.created_at = dead_letter.created_at FROM webhook.failed JOIN webhook.dead_letter USING (event_id)",
    );
    assert!(when);
}

#[test]
fn failed_shows_what_a_removed_endpoint_and_a_deleted_event_have_left() {
    let database = paused_database();
    let orphaned = bury(&database, "a", "order.created", "now()");
    let unnamed = bury(&database, "b", "order.created", "now()");
    database.execute(&format!(
        "DELETE FROM webhook.event WHERE id = '{orphaned}'"
    ));
    database.execute("SELECT webhook_remove_endpoint('b')");

    let shown = |event: Uuid| {
        let query =
            format!("SELECT endpoint, payload FROM webhook.failed WHERE event_id = '{event}'");
        let row = only_row(&database, &query);
        (row.get::<_, String>(0), row.get::<_, Option<Value>>(1))
    };
    assert_eq!(shown(orphaned), ("a".to_owned(), None));
    assert_eq!(shown(unnamed), ("b".to_owned(), Some(json!({}))));

    // Another one of that name takes nothing over.
    database.add_endpoint("b", &Receiver::closed_url());
    let failed: i64 = database.query_one_value("SELECT count(*) FROM webhook.failed");
    assert_eq!(failed, 2);
}

#[test]
fn filters_of_failed_can_use_the_indexes() {
    let database = paused_database();
    let mut session = database.connect();
    session.batch_execute("SET enable_seqscan = off").unwrap();
    let cases = [
        (
            "event_id = '01a1e312-6c6e-71fe-ab1c-32c85f00efd8'",
            "dead_letter_pkey",
        ),
        ("endpoint = 'a'", "dead_letter_endpoint"),
        ("failed_at > now()", "dead_letter_completed"),
    ];
    for (filter, index) in cases {
        let explain = format!("EXPLAIN SELECT * FROM webhook.failed WHERE {filter}");
        let plan = session.query(&explain, &[]).unwrap();
        let plan: Vec<String> = plan.iter().map(|line| line.get(0)).collect();
        assert!(plan.join("\n").contains(index), "{filter}: {plan:#?}");
    }
}

#[test]
fn discard_takes_the_attempts_and_the_event_when_nothing_needs_it_any_more() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    for name in ["a", "b"] {
        database.add_endpoint(name, &receiver.url("/"));
    }
    let event = database.emit("order.created", json!({}));
    let other = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    database.wait_for_status(other, "FAILED");
    let left = |table: &str, key: &str| {
        count(
            &database,
            &format!("(SELECT count(*) FROM webhook.{table} WHERE {key} = '{event}')"),
        )
    };
    assert_eq!(left("attempt", "event_id"), 6);

    assert_eq!(
        count(&database, &format!("webhook_discard('{event}', 'a')")),
        1
    );
    assert_eq!(statuses(&database, event), "b FAILED");
    assert_eq!(left("attempt", "event_id"), 3);
    assert_eq!(left("event", "id"), 1, "the other delivery needs it");

    assert_eq!(count(&database, &format!("webhook_discard('{event}')")), 1);
    assert_eq!(left("delivery", "event_id"), 0);
    assert_eq!(left("attempt", "event_id"), 0);
    assert_eq!(left("event", "id"), 0);
    assert_eq!(statuses(&database, other), "a FAILED, b FAILED");
    assert_eq!(
        count(&database, "(SELECT count(*) FROM webhook.attempt)"),
        6
    );
    assert_eq!(
        database
            .refusal(&format!("SELECT webhook_discard('{event}')"))
            .code()
            .code(),
        "42704"
    );
}

#[test]
fn discard_leaves_what_is_queued_sent_or_cancelled_and_its_event() {
    let database = paused_database();
    for status in ["PENDING", "CANCELLED"] {
        let event = bury(&database, "a", "order.created", "now()");
        bury_again(&database, event, "b");
        database.execute(&format!(
            "UPDATE webhook.delivery SET status = '{status}'
             WHERE event_id = '{event}' AND endpoint_id = (SELECT id FROM webhook.endpoint WHERE name = 'a')"
        ));
        assert_eq!(count(&database, &format!("webhook_discard('{event}')")), 1);
        assert_eq!(statuses(&database, event), format!("a {status}"));
        let events = format!("(SELECT count(*) FROM webhook.event WHERE id = '{event}')");
        assert_eq!(count(&database, &events), 1);
    }
}

#[test]
fn two_people_who_discard_the_last_deliveries_of_an_event_leave_no_event() {
    let database = paused_database();
    let event = bury(&database, "a", "order.created", "now()");
    bury_again(&database, event, "b");
    let mut first = database.connect();
    let mut transaction = first.transaction().unwrap();
    let discarded: i64 = transaction
        .query_one("SELECT webhook_discard($1, 'a')", &[&event])
        .unwrap()
        .get(0);
    assert_eq!(discarded, 1);
    let mut second = database.connect();
    let second =
        thread::spawn(move || call(&mut second, &format!("webhook_discard('{event}', 'b')")));
    wait_for_waiting_session(&database);
    transaction.commit().unwrap();
    assert_eq!(second.join().unwrap(), 1);
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.event)"), 0);
}

#[test]
fn to_discard_many_an_operator_deletes_dead_letters_and_retention_takes_the_rest() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("discarding");
    for name in ["a", "b"] {
        database.add_endpoint(name, &Receiver::closed_url());
    }
    let old = [(); 3].map(|()| bury(&database, "a", "order.created", "now() - interval '8 days'"));
    let needed = old[0];
    bury_again(&database, needed, "b");
    let young = bury(&database, "a", "order.paid", "now()");
    database.execute(
        "INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, verdict, duration_ms, finished_at)
         SELECT event_id, endpoint_id, 1, 'final', 1, now() FROM webhook.dead_letter",
    );
    let role = format!("{}_operator", database.name());
    database.execute(&format!(
        "CREATE ROLE {role}; SELECT webhook_grant('{role}', 'operate')"
    ));
    let mut operator = database.connect();
    operator.batch_execute(&format!("SET ROLE {role}")).unwrap();
    let discarded = operator.execute(
        "DELETE FROM webhook.dead_letter d USING webhook.endpoint e
         WHERE e.id = d.endpoint_id AND e.name = 'a' AND d.completed_at < now() - interval '7 days'",
        &[],
    );
    assert_eq!(discarded.unwrap(), 3);
    operator
        .batch_execute(&format!(
            "RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}"
        ))
        .unwrap();
    assert_eq!(statuses(&database, needed), "b FAILED");
    assert_eq!(statuses(&database, young), "a FAILED");

    // Events that no delivery has go with their attempts; the others stay.
    database.execute(
        "SET webhook.retention_sent = 0; SELECT webhook.expire(1000, NULL, NULL, NULL, NULL)",
    );
    let left: Vec<Uuid> =
        database.query_one_value("SELECT array_agg(id ORDER BY id) FROM webhook.event");
    assert_eq!(left, [needed, young]);
    let orphans = "(SELECT count(*) FROM webhook.attempt a
                    WHERE NOT EXISTS (SELECT FROM webhook.event v WHERE v.id = a.event_id))";
    assert_eq!(count(&database, orphans), 0);
}

/// A session somewhere in this database waits for a lock.
#[track_caller]
fn wait_for_waiting_session(database: &Database) {
    database.wait_until(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
}
