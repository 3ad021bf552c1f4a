//! Dead letters: seen, sent again, discarded; queued deliveries cancelled; events redacted.

use std::sync::mpsc::{self, Receiver as Inbox};
use std::thread;

use postgres::error::DbError;
use postgres::{Client, NoTls, Row};
use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::database::refusal;
use webhook_e2e::{Answer, Cluster, Database, RawReceiver, Receiver, Request, wait};

#[test]
fn failed_shows_the_event_its_endpoint_and_the_error() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404));
    database.add_endpoint_with("orders", &receiver.url("/"), "tenant => 'acme'");
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
            "payload",
            "attempts",
            "last_status_code",
            "last_error",
            "failed_at"
        ]
    );
    assert_eq!(row.get::<_, Uuid>("event_id"), event);
    assert_eq!(row.get::<_, &str>("event_type"), "order.created");
    assert_eq!(row.get::<_, &str>("endpoint"), "orders");
    assert_eq!(row.get::<_, &str>("tenant"), "acme");
    assert_eq!(row.get::<_, Value>("payload"), json!({"n": 1}));
    assert_eq!(row.get::<_, i32>("attempts"), 1);
    assert_eq!(row.get::<_, i32>("last_status_code"), 404);
    assert_eq!(row.get::<_, &str>("last_error"), "HTTP 404");
    let when: bool = database.query_one_value(
        "SELECT failed_at = completed_at FROM webhook.failed JOIN webhook.dead_letter USING (event_id)",
    );
    assert!(when);
}

#[test]
fn failed_shows_what_a_removed_endpoint_and_a_deleted_event_have_left() {
    let database = parked_database();
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
    let database = parked_database();
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
fn replay_sends_what_failed_again_from_the_start() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.add_endpoint("orders", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    receiver.respond("/", |_, _| Answer::status(200));

    assert_eq!(count(&database, &format!("webhook_replay('{event}')")), 1);
    database.wait_for_status(event, "SENT");
    let requests = receiver.requests();
    assert_eq!(ids(&requests), [event; 4]);
    let earlier: Vec<&str> = requests
        .iter()
        .map(|r| r.header("x-webhook-retry"))
        .collect();
    assert_eq!(earlier, ["0", "1", "2", "0"]);
    let row = only_row(&database, "SELECT * FROM webhook.delivery");
    assert_eq!(row.get::<_, i32>("attempts"), 1);
    assert_eq!(row.get::<_, Option<&str>>("last_error"), None);
    assert_eq!(
        count(&database, "(SELECT count(*) FROM webhook.attempt)"),
        3
    );
}

#[test]
fn replay_of_one_endpoint_leaves_the_others() {
    let database = parked_database();
    let event = bury(&database, "a", "order.created", "now()");
    bury_again(&database, event, "b");
    assert_eq!(
        count(&database, &format!("webhook_replay('{event}', 'b')")),
        1
    );
    assert_eq!(statuses(&database, event), "a FAILED, b PENDING");
    assert_eq!(count(&database, &format!("webhook_replay('{event}')")), 1);
    assert_eq!(statuses(&database, event), "a PENDING, b PENDING");
}

#[test]
fn replay_takes_what_failed_and_resend_what_was_sent_or_cancelled_too() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/failing", |_, _| Answer::status(404));
    database.add_endpoint("a", &receiver.url("/failing"));
    database.add_endpoint("b", &receiver.url("/"));
    database.add_endpoint("c", &Receiver::closed_url());
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'c'");
    let event = database.emit("order.created", json!({}));
    wait_for_statuses(&database, event, "a FAILED, b SENT, c PENDING");
    assert_eq!(count(&database, &format!("webhook_cancel('{event}')")), 1);
    assert_eq!(statuses(&database, event), "a FAILED, b SENT, c CANCELLED");
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");

    assert_eq!(count(&database, &format!("webhook_replay('{event}')")), 1);
    assert_eq!(statuses(&database, event), "a PENDING, b SENT, c CANCELLED");
    assert_eq!(
        count(&database, &format!("webhook_resend('{event}', 'c')")),
        1
    );
    assert_eq!(statuses(&database, event), "a PENDING, b SENT, c PENDING");
    assert_eq!(count(&database, &format!("webhook_resend('{event}')")), 1);
    assert_eq!(
        statuses(&database, event),
        "a PENDING, b PENDING, c PENDING"
    );

    let before = receiver.request_count();
    database.execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'b'");
    wait_for_statuses(&database, event, "a PENDING, b SENT, c PENDING");
    assert_eq!(receiver.request_count(), before + 1);
}

#[test]
fn an_unknown_event_is_an_error_with_a_hint() {
    let database = parked_database();
    for function in ["replay", "resend", "discard", "cancel", "redact"] {
        let refusal = database.refusal(&format!("SELECT webhook_{function}(gen_random_uuid())"));
        assert_eq!(refusal.code().code(), "42704", "{function}");
        assert!(refusal.message().contains("does not exist"), "{refusal}");
        let hint = refusal.hint().unwrap_or_default();
        assert!(hint.contains("webhook_emit()"), "{hint}");
    }
}

#[test]
fn nothing_to_do_is_no_error_and_says_so() {
    let database = parked_database();
    let event = database.emit("order.created", json!({}));
    let (mut session, notices) = listening_session(&database);
    for function in ["replay", "resend", "discard"] {
        assert_eq!(
            call(&mut session, &format!("webhook_{function}('{event}')")),
            0
        );
        let said = told(&notices);
        assert_eq!(said.len(), 1, "{function}: {said:?}");
        assert!(said[0].contains(&event.to_string()), "{said:?}");
    }
    assert_eq!(call(&mut session, &format!("webhook_cancel('{event}')")), 2);
    assert_eq!(told(&notices), Vec::<String>::new());
    assert_eq!(call(&mut session, &format!("webhook_cancel('{event}')")), 0);
    assert_eq!(told(&notices).len(), 1);
}

#[test]
fn deliveries_of_removed_endpoints_are_passed_over_and_counted() {
    let database = parked_database();
    let event = bury(&database, "a", "order.created", "now() - interval '3 days'");
    bury_again(&database, event, "b");
    for _ in 0..3 {
        bury(&database, "b", "order.created", "now() - interval '2 days'");
    }
    let last = bury(&database, "a", "order.created", "now() - interval '1 day'");
    database.execute("SELECT webhook_remove_endpoint('b')");
    let passed_over =
        |n: u32| format!("passed over, because their endpoint was removed: {n} deliveries");

    let (mut session, notices) = listening_session(&database);
    assert_eq!(call(&mut session, &format!("webhook_replay('{event}')")), 1);
    assert_eq!(told(&notices), [passed_over(1)]);
    assert_eq!(statuses(&database, event), "a PENDING, b FAILED");
    assert_eq!(call(&mut session, "webhook_replay_failed('b')"), 0);
    assert_eq!(told(&notices), [passed_over(4)]);
    // They are older, and must not take the place of what can be sent.
    assert_eq!(
        call(&mut session, "webhook_replay_failed('*', max_rows => 1)"),
        1
    );
    assert_eq!(told(&notices), Vec::<String>::new());
    assert_eq!(statuses(&database, last), "a PENDING");
    session
        .batch_execute("CALL webhook_replay_all('*')")
        .unwrap();
    assert_eq!(told(&notices).last(), Some(&passed_over(4)));
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.failed)"), 4);
}

#[test]
fn an_endpoint_that_never_was_is_an_error() {
    let database = parked_database();
    let event = bury(&database, "a", "order.created", "now()");
    for statement in [
        format!("SELECT webhook_replay('{event}', 'nobody')"),
        format!("SELECT webhook_resend('{event}', 'nobody')"),
        format!("SELECT webhook_discard('{event}', 'nobody')"),
        "SELECT webhook_replay_failed('nobody')".to_owned(),
        "SELECT webhook_discard_failed('nobody')".to_owned(),
        "CALL webhook_replay_all('nobody')".to_owned(),
    ] {
        let refusal = database.refusal(&statement);
        assert_eq!(refusal.code().code(), "42704", "{statement}");
        assert!(refusal.message().contains("nobody"), "{refusal}");
    }
    assert_eq!(statuses(&database, event), "a FAILED");
}

#[test]
fn what_to_replay_or_discard_must_be_said() {
    let database = parked_database();
    let event = bury(&database, "a", "order.created", "now()");
    for statement in [
        "SELECT webhook_replay_failed(NULL)",
        "SELECT webhook_discard_failed(NULL)",
        "CALL webhook_replay_all(NULL)",
    ] {
        let refusal = database.refusal(statement);
        assert_eq!(refusal.code().code(), "22004", "{statement}");
        assert!(refusal.hint().unwrap_or_default().contains("'*'"));
    }
    for statement in [
        "SELECT webhook_replay_failed('a', max_rows => 0)",
        "SELECT webhook_replay_failed('a', max_rows => NULL)",
        "SELECT webhook_discard_failed('a', max_rows => -1)",
        "CALL webhook_replay_all('a', batch_size => 0)",
    ] {
        let refusal = database.refusal(statement);
        assert_eq!(refusal.code().code(), "22023", "{statement}");
        assert!(refusal.hint().is_some(), "{statement}");
    }
    assert_eq!(statuses(&database, event), "a FAILED");
}

#[test]
fn replay_failed_takes_the_oldest_first_and_says_when_there_is_more() {
    let database = parked_database();
    let days = [3, 1, 4, 2];
    let events = days.map(|day| {
        let failed_at = format!("now() - interval '{day} days'");
        bury(&database, "a", "order.created", &failed_at)
    });
    let (mut session, notices) = listening_session(&database);
    assert_eq!(
        call(&mut session, "webhook_replay_failed('a', max_rows => 2)"),
        2
    );
    let said = told(&notices);
    assert_eq!(said, ["stopped after 2 deliveries, and there are more"]);
    let replayed = events.map(|event| statuses(&database, event));
    assert_eq!(replayed, ["a PENDING", "a FAILED", "a PENDING", "a FAILED"]);

    assert_eq!(
        call(&mut session, "webhook_replay_failed('a', max_rows => 2)"),
        2
    );
    assert_eq!(told(&notices), Vec::<String>::new());
    assert_eq!(
        call(&mut session, "webhook_replay_failed('a', max_rows => 2)"),
        0
    );
}

#[test]
fn filters_choose_by_endpoint_type_and_time_of_failure() {
    let database = parked_database();
    // Of this week, where retention does not come.
    let day = |ago: i32| -> String {
        database.query_one_value(&format!(
            "SELECT quote_literal(date_trunc('day', now()) - interval '{ago} days') || '::timestamptz'"
        ))
    };
    let [five, four, three] = [5, 4, 3].map(day);
    let make = || {
        database.execute("DELETE FROM webhook.delivery; DELETE FROM webhook.event");
        for (endpoint, event_type, failed_at) in [
            ("a", "order.created", &five),
            ("a", "order.created", &four),
            ("a", "order.paid", &four),
            ("b", "order.created", &three),
        ] {
            bury(&database, endpoint, event_type, failed_at);
        }
    };
    let after_four = format!("{four} + interval '1 us'");
    // `since` is included, `until` is not.
    let cases = [
        ("'*'".to_owned(), 4),
        ("'a'".to_owned(), 3),
        ("'b'".to_owned(), 1),
        ("'a', 'order.created'".to_owned(), 2),
        ("'*', 'order.created'".to_owned(), 3),
        ("'b', 'order.paid'".to_owned(), 0),
        ("'*', 'order'".to_owned(), 0),
        (format!("'*', since => {four}"), 3),
        (format!("'*', since => {after_four}"), 1),
        (format!("'*', until => {four}"), 1),
        (format!("'*', until => {after_four}"), 3),
        (format!("'a', 'order.created', {four}, {three}"), 1),
        (format!("'b', since => {three}, until => {three}"), 0),
    ];
    for (filter, expected) in cases {
        make();
        assert_eq!(
            count(&database, &format!("webhook_replay_failed({filter})")),
            expected,
            "{filter}"
        );
        let left = "(SELECT count(*) FROM webhook.dead_letter)";
        assert_eq!(count(&database, left), 4 - expected, "{filter}");
        assert_eq!(
            count(&database, "(SELECT count(*) FROM webhook.delivery_queue)"),
            expected
        );

        make();
        assert_eq!(
            count(&database, &format!("webhook_discard_failed({filter})")),
            expected,
            "{filter}"
        );
        assert_eq!(count(&database, left), 4 - expected, "{filter}");
        assert_eq!(
            count(&database, "(SELECT count(*) FROM webhook.event)"),
            4 - expected
        );

        make();
        database.execute(&format!("CALL webhook_replay_all({filter})"));
        assert_eq!(count(&database, left), 4 - expected, "{filter}");
        assert_eq!(
            count(&database, "(SELECT count(*) FROM webhook.delivery_queue)"),
            expected
        );
    }
}

#[test]
fn to_take_a_few_of_many_reads_little() {
    const MANY: u32 = 20_000;
    let database = parked_database();
    bury_many(&database, "a", MANY);
    let event: Uuid = database.query_one_value("SELECT event_id FROM webhook.failed LIMIT 1");
    let mut session = database.connect();
    for analyzed in [false, true] {
        for (call, rows) in [
            (format!("webhook_replay('{event}')"), 1),
            (format!("webhook_discard('{event}', 'b')"), 1),
            ("webhook_replay_failed('a', max_rows => 100)".into(), 100),
            ("webhook_replay_failed('*', max_rows => 100)".into(), 100),
            ("webhook_discard_failed('*', max_rows => 100)".into(), 100),
        ] {
            let read = rows_read(&mut session, &format!("PERFORM {call}"));
            assert!(
                read < 100 + 20 * rows,
                "{call} has read {read}, analyzed: {analyzed}"
            );
        }
        session
            .batch_execute("ANALYZE webhook.dead_letter, webhook.event")
            .unwrap();
    }
    // Each row once to count it, and once to replay it.
    let replay_all = "CALL webhook_replay_all('a', batch_size => 100)";
    let read = rows_read(&mut session, replay_all);
    assert!(read > i64::from(MANY) / 2, "replay_all has read {read}");
    assert!(read < 10 * i64::from(MANY), "replay_all has read {read}");
}

#[test]
fn replay_all_commits_after_each_batch() {
    let database = parked_database();
    bury_many(&database, "a", 5_000);
    let middle = "SELECT event_id FROM webhook.dead_letter ORDER BY event_id OFFSET 2449 LIMIT 1";
    let middle: Uuid = database.query_one_value(middle);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.dead_letter WHERE event_id = $1 FOR UPDATE";
    transaction.execute(lock, &[&middle]).unwrap();

    let (mut session, notices) = listening_session(&database);
    let pid = session.query_one("SELECT pg_backend_pid()", &[]).unwrap();
    let pid: i32 = pid.get(0);
    let call = thread::spawn(move || {
        session
            .batch_execute("CALL webhook_replay_all('a', batch_size => 100)")
            .unwrap();
    });
    // The batch of the locked row waits; those before it are there for all to see, and not a lock is left of them.
    database.wait_until("SELECT count(*) = 2400 FROM webhook.delivery_queue");
    database.wait_until(&format!(
        "SELECT count(*) > 0 FROM pg_locks WHERE pid = {pid} AND NOT granted"
    ));
    let its_own: bool = database.query_one_value(&format!(
        "SELECT xact_start > query_start FROM pg_stat_activity WHERE pid = {pid}"
    ));
    assert!(its_own, "the call is one long transaction");
    let unlocked: i64 = database.query_one_value(
        "SELECT count(*) FROM (SELECT FROM webhook.delivery_queue FOR UPDATE SKIP LOCKED) l",
    );
    assert_eq!(unlocked, 2_400);

    transaction.rollback().unwrap();
    call.join().unwrap();
    assert_eq!(
        count(&database, "(SELECT count(*) FROM webhook.delivery_queue)"),
        5_000
    );
    let said = told(&notices);
    assert_eq!(
        said.first().unwrap(),
        "replaying 5000 deliveries, with a commit after every 100"
    );
    assert!(
        said.contains(&"replayed 2500 of 5000 deliveries".to_owned()),
        "{said:?}"
    );
    assert_eq!(said.last().unwrap(), "replayed 5000 deliveries");
    assert_eq!(said.len(), 12, "{said:?}");
}

#[test]
fn replay_all_does_not_replay_what_failed_after_it_began() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404));
    database.add_endpoint("a", &receiver.url("/"));
    bury_many(&database, "a", 200);
    let last = "SELECT event_id FROM webhook.dead_letter ORDER BY event_id DESC LIMIT 1";
    let last: Uuid = database.query_one_value(last);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.dead_letter WHERE event_id = $1 FOR UPDATE";
    transaction.execute(lock, &[&last]).unwrap();

    let mut session = database.connect();
    let call = thread::spawn(move || {
        session
            .batch_execute("CALL webhook_replay_all('*', batch_size => 10)")
            .unwrap();
    });
    database.wait_until("SELECT count(*) = 190 FROM webhook.attempt");
    let later = database.emit("order.created", json!({}));
    database.wait_for_status(later, "FAILED");
    transaction.rollback().unwrap();
    call.join().unwrap();
    database.wait_until("SELECT count(*) = 201 FROM webhook.dead_letter");

    let requests = receiver.requests();
    assert_eq!(requests.len(), 201);
    let mut arrived = ids(&requests);
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived.len(), 201, "one of them was sent twice");
}

#[test]
fn replay_all_in_a_transaction_block_changes_nothing_and_says_why() {
    let database = parked_database();
    let event = bury(&database, "a", "order.created", "now()");
    let (mut session, notices) = listening_session(&database);
    session.batch_execute("BEGIN").unwrap();
    let refusal = refusal(&mut session, "CALL webhook_replay_all('a')");
    assert_eq!(refusal.code().code(), "2D000");
    let context = refusal.where_().unwrap_or_default();
    assert!(
        context.contains("webhook_replay_all") && context.contains("COMMIT"),
        "{context}"
    );
    let hint = notices.try_recv().unwrap();
    assert!(
        hint.hint()
            .unwrap()
            .contains("cannot run in a transaction block")
    );
    session.batch_execute("COMMIT").unwrap();
    assert_eq!(statuses(&database, event), "a FAILED");
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
    let database = parked_database();
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
    let database = parked_database();
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
fn discard_failed_takes_the_oldest_first_and_what_a_removed_endpoint_has_left() {
    let database = parked_database();
    for day in 1..=4 {
        bury(
            &database,
            "b",
            "order.created",
            &format!("now() - interval '{day} days'"),
        );
    }
    let kept = bury(&database, "a", "order.created", "now() - interval '9 days'");
    database.execute("SELECT webhook_remove_endpoint('b')");
    let (mut session, notices) = listening_session(&database);
    assert_eq!(
        call(&mut session, "webhook_discard_failed('b', max_rows => 3)"),
        3
    );
    assert_eq!(
        told(&notices),
        ["stopped after 3 deliveries, and there are more"]
    );
    let newest = "(SELECT count(*) FROM webhook.failed WHERE endpoint = 'b' AND failed_at > now() - interval '25 h')";
    assert_eq!(count(&database, newest), 1);
    assert_eq!(
        call(&mut session, "webhook_discard_failed('b', max_rows => 1)"),
        1
    );
    assert_eq!(told(&notices), Vec::<String>::new());
    assert_eq!(statuses(&database, kept), "a FAILED");
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.event)"), 1);
}

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

    assert_eq!(count(&database, &format!("webhook_cancel('{event}')")), 2);
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
fn a_redacted_event_is_never_sent_again() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404));
    database.add_endpoint("a", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    database.execute(&format!("SELECT webhook_redact('{event}')"));

    let (mut session, notices) = listening_session(&database);
    let passed_over = "passed over, because their event was redacted or deleted: 1 deliveries";
    for attempt in [
        format!("webhook_replay('{event}')"),
        format!("webhook_resend('{event}')"),
        "webhook_replay_failed('a')".to_owned(),
    ] {
        assert_eq!(call(&mut session, &attempt), 0, "{attempt}");
        assert_eq!(told(&notices), [passed_over], "{attempt}");
    }
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

fn database() -> Database {
    Cluster::shared().database("dead_letter")
}

/// With the endpoints `a` and `b`, to which nothing is sent.
fn parked_database() -> Database {
    let database = database();
    for name in ["a", "b"] {
        database.add_endpoint(name, &Receiver::closed_url());
    }
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
    database
}

/// A new event that failed at this endpoint at that time.
#[track_caller]
fn bury(database: &Database, endpoint: &str, event_type: &str, failed_at: &str) -> Uuid {
    let event: Uuid = database.query_one_value(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         VALUES (webhook.new_id(), '{event_type}', '{{}}', {failed_at}) RETURNING id"
    ));
    database.execute(&dead_letters(&format!("v.id = '{event}'"), endpoint));
    event
}

/// The same event failed at another endpoint too.
#[track_caller]
fn bury_again(database: &Database, event: Uuid, endpoint: &str) {
    database.execute(&dead_letters(&format!("v.id = '{event}'"), endpoint));
}

#[track_caller]
fn bury_many(database: &Database, endpoint: &str, count: u32) {
    database.execute(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         SELECT webhook.new_id(), 'order.created', '{{}}', now() FROM generate_series(1, {count})"
    ));
    database.execute(&dead_letters("true", endpoint));
}

/// Puts the failure of these events at this endpoint, at the time of their emission, into the dead letters.
fn dead_letters(events: &str, endpoint: &str) -> String {
    format!(
        "INSERT INTO webhook.dead_letter (event_id, endpoint_id, event_type, status, attempts, max_attempts,
                                          last_status_code, last_error, created_at, completed_at)
         SELECT v.id, e.id, v.event_type, 'FAILED', 3, 3, 500, 'HTTP 500', v.created_at, v.created_at
         FROM webhook.event v, webhook.endpoint e WHERE {events} AND e.name = '{endpoint}'"
    )
}

/// The status of each delivery of the event, by endpoint.
#[track_caller]
fn statuses(database: &Database, event: Uuid) -> String {
    database.query_one_value(&format!(
        "SELECT coalesce(string_agg(n.name || ' ' || d.status, ', ' ORDER BY n.name), 'none')
         FROM webhook.delivery d
         JOIN (SELECT id, name FROM webhook.endpoint UNION ALL SELECT id, name FROM webhook.removed_endpoint) n
             ON n.id = d.endpoint_id
         WHERE d.event_id = '{event}'"
    ))
}

#[track_caller]
fn wait_for_statuses(database: &Database, event: Uuid, expected: &str) {
    wait::until(expected, || match statuses(database, event) {
        seen if seen == expected => Ok(()),
        seen => Err(seen),
    });
}

/// A session somewhere in this database waits for a lock.
#[track_caller]
fn wait_for_waiting_session(database: &Database) {
    database.wait_until(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
}

/// The number that an expression gives.
#[track_caller]
fn count(database: &Database, expression: &str) -> i64 {
    call(&mut database.connect(), expression)
}

#[track_caller]
fn call(session: &mut Client, expression: &str) -> i64 {
    let row = session.query_one(&format!("SELECT ({expression})::bigint"), &[]);
    let row = row.unwrap_or_else(|error| panic!("{expression}: {error:?}"));
    row.get(0)
}

#[track_caller]
fn only_row(database: &Database, query: &str) -> Row {
    database.connect().query_one(query, &[]).unwrap()
}

/// A session, and what the server tells it.
fn listening_session(database: &Database) -> (Client, Inbox<DbError>) {
    let (said, notices) = mpsc::channel();
    let mut config = Cluster::shared().config(database.name());
    config.notice_callback(move |notice| said.send(notice).unwrap());
    (config.connect(NoTls).unwrap(), notices)
}

fn told(notices: &Inbox<DbError>) -> Vec<String> {
    notices
        .try_iter()
        .map(|notice| notice.message().to_owned())
        .collect()
}

/// Rows of the extension's tables and entries of its indexes that a statement of plpgsql reads; by this session alone, since
/// the worker and autovacuum read as well.
fn rows_read(session: &mut Client, statement: &str) -> i64 {
    const READ: &str = "(SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class
                         WHERE relnamespace = 'webhook'::regnamespace AND relkind IN ('r', 'i'))";
    let measure = format!(
        "DO $$
         DECLARE
             before bigint := {READ};
         BEGIN
             {statement};
             PERFORM set_config('test.read', ({READ} - before)::text, false);
         END $$"
    );
    session.batch_execute(&measure).unwrap();
    call(session, "current_setting('test.read')")
}

fn ids(requests: &[Request]) -> Vec<Uuid> {
    requests.iter().map(Request::event_id).collect()
}

/// Answers with what it got.
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
