//! What failed is sent again: one event, some of them, all of them.

use std::thread;

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::refusal;
use webhook_e2e::dead_letters::{
    bury, bury_again, bury_many, call, count, database, listening_session, only_row,
    parked_database, statuses, told, wait_for_statuses,
};
use webhook_e2e::{Answer, Receiver, Request};

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
fn dead_letters_of_a_removed_endpoint_answer_to_its_name_whoever_has_it_now() {
    let database = parked_database();
    let old = bury(&database, "b", "order.created", "now() - interval '3 days'");
    for _ in 0..3 {
        bury(&database, "b", "order.created", "now() - interval '2 days'");
    }
    database.execute(
        "SELECT webhook_remove_endpoint('b');
         SELECT webhook_set_endpoint('b', 'http://127.0.0.1:1/'); SELECT webhook_pause('b')",
    );
    let new = bury(&database, "b", "order.created", "now()");
    let passed_over =
        |n: u32| format!("passed over, because their endpoint was removed: {n} deliveries");

    let (mut session, notices) = listening_session(&database);
    let replay = format!("webhook_replay('{old}', 'b')");
    assert_eq!(call(&mut session, &replay), 0);
    assert_eq!(told(&notices), [passed_over(1)]);
    assert_eq!(call(&mut session, "webhook_replay_failed('b')"), 1);
    assert_eq!(told(&notices), [passed_over(4)]);
    assert_eq!(statuses(&database, new), "b PENDING");

    bury(&database, "b", "order.created", "now()");
    let discard = format!("webhook_discard('{old}', 'b')");
    assert_eq!(call(&mut session, &discard), 1);
    assert_eq!(told(&notices), Vec::<String>::new());
    let discard_some = "webhook_discard_failed('b', max_rows => 3)";
    assert_eq!(call(&mut session, discard_some), 3);
    assert_eq!(
        told(&notices),
        ["stopped after 3 deliveries, and there are more"]
    );
    assert_eq!(call(&mut session, discard_some), 1);
    assert_eq!(told(&notices), Vec::<String>::new());
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.failed)"), 0);
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
    let mut session = database.connect();
    session.batch_execute("BEGIN").unwrap();
    let refusal = refusal(&mut session, "CALL webhook_replay_all('a')");
    assert_eq!(refusal.code().code(), "25001");
    assert!(
        refusal.message().contains("inside a transaction block"),
        "{refusal:?}"
    );
    assert!(
        refusal.hint().unwrap().contains("without BEGIN"),
        "{refusal:?}"
    );
    session.batch_execute("COMMIT").unwrap();
    assert_eq!(statuses(&database, event), "a FAILED");
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
