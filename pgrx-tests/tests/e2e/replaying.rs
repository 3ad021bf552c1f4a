//! Ended deliveries are sent again: one event, or many.

use std::thread;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::refusal;
use webhook_e2e::dead_letters::{
    bury, bury_again, bury_many, call, count, database, listening_session, only_row,
    paused_database, rows_read, statuses, told, wait_for_statuses,
};
use webhook_e2e::receiver::ids;
use webhook_e2e::{Answer, Receiver};

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
    let database = paused_database();
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
fn replay_sends_again_whatever_has_ended_and_leaves_what_is_queued() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/failing", |_, _| Answer::status(404));
    database.add_endpoint("a", &receiver.url("/failing"));
    database.add_endpoint("b", &receiver.url("/"));
    for name in ["c", "d"] {
        database.add_endpoint(name, &Receiver::closed_url());
    }
    database.execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name IN ('c', 'd')");
    let event = database.emit("order.created", json!({}));
    wait_for_statuses(&database, event, "a FAILED, b SENT, c PENDING, d PENDING");
    database.execute(
        "UPDATE webhook.delivery SET status = 'CANCELLED'
         WHERE endpoint_id = (SELECT id FROM webhook.endpoint WHERE name = 'c');
         UPDATE webhook.endpoint SET paused_at = now()",
    );

    let (mut session, notices) = listening_session(&database);
    let replay = |endpoint: &str| format!("webhook_replay('{event}', {endpoint})");
    assert_eq!(call(&mut session, &replay("'c'")), 1);
    assert_eq!(told(&notices), Vec::<String>::new());
    let one = "a FAILED, b SENT, c PENDING, d PENDING";
    assert_eq!(statuses(&database, event), one);
    assert_eq!(call(&mut session, &replay("NULL")), 2);
    let queued = told(&notices);
    assert_eq!(queued.len(), 1, "{queued:?}");
    assert!(queued[0].contains("2 deliveries that are queued already"));
    let all = "a PENDING, b PENDING, c PENDING, d PENDING";
    assert_eq!(statuses(&database, event), all);

    let before = receiver.request_count();
    database.execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'b'");
    let sent = "a PENDING, b SENT, c PENDING, d PENDING";
    wait_for_statuses(&database, event, sent);
    assert_eq!(receiver.request_count(), before + 1);
}

#[test]
fn an_unknown_event_is_an_error_with_a_hint() {
    let database = paused_database();
    for function in ["replay", "discard", "redact"] {
        let refusal = database.refusal(&format!("SELECT webhook_{function}(gen_random_uuid())"));
        assert_eq!(refusal.code().code(), "42704", "{function}");
        assert!(refusal.message().contains("does not exist"), "{refusal}");
        let hint = refusal.hint().unwrap_or_default();
        assert!(hint.contains("webhook_emit()"), "{hint}");
    }
}

#[test]
fn nothing_to_do_is_no_error_and_says_so() {
    let database = paused_database();
    let queued = database.emit("order.created", json!({}));
    database.execute("UPDATE webhook.endpoint SET event_types = '{invoice}'");
    let unwanted = database.emit("order.created", json!({}));
    let (mut session, notices) = listening_session(&database);
    for (function, event, fact) in [
        (
            "replay",
            queued,
            "2 deliveries that are queued already".to_owned(),
        ),
        ("replay", unwanted, unwanted.to_string()),
        ("discard", queued, queued.to_string()),
    ] {
        let call_of = format!("webhook_{function}('{event}')");
        assert_eq!(call(&mut session, &call_of), 0);
        let said = told(&notices);
        assert_eq!(said.len(), 1, "{function}: {said:?}");
        assert!(said[0].contains(&fact), "{said:?}");
    }
}

#[test]
fn deliveries_of_removed_endpoints_are_passed_over_and_counted() {
    let database = paused_database();
    let event = bury(&database, "a", "order.created", "now() - interval '3 days'");
    bury_again(&database, event, "b");
    for _ in 0..3 {
        bury(&database, "b", "order.created", "now() - interval '2 days'");
    }
    let last = bury(&database, "a", "order.created", "now() - interval '1 day'");
    database.execute("SELECT webhook_remove_endpoint('b')");
    let passed_over = |n: u32| format!("skipped {n} deliveries whose endpoint was removed");

    let (mut session, notices) = listening_session(&database);
    assert_eq!(call(&mut session, &format!("webhook_replay('{event}')")), 1);
    assert_eq!(told(&notices), [passed_over(1)]);
    assert_eq!(statuses(&database, event), "a PENDING, b FAILED");
    for (replay_all, passed) in [
        ("CALL webhook_replay_all('b')", 4),
        ("CALL webhook_replay_all('a')", 0),
    ] {
        session.batch_execute(replay_all).unwrap();
        let said = told(&notices);
        let expected = (passed > 0).then(|| passed_over(passed));
        assert_eq!(said.get(2), expected.as_ref(), "{replay_all}: {said:?}");
    }
    assert_eq!(statuses(&database, last), "a PENDING");
    session
        .batch_execute("CALL webhook_replay_all('*')")
        .unwrap();
    assert_eq!(told(&notices).last(), Some(&passed_over(4)));
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.failed)"), 4);
}

#[test]
fn dead_letters_of_a_removed_endpoint_answer_to_its_name_whoever_has_it_now() {
    let database = paused_database();
    let old = bury(&database, "b", "order.created", "now() - interval '3 days'");
    for _ in 0..3 {
        bury(&database, "b", "order.created", "now() - interval '2 days'");
    }
    database.execute(
        "SELECT webhook_remove_endpoint('b');
         SELECT webhook_set_endpoint('b', 'http://127.0.0.1:1/'); SELECT webhook_pause('b')",
    );
    let new = bury(&database, "b", "order.created", "now()");
    let passed_over = |n: u32| format!("skipped {n} deliveries whose endpoint was removed");

    let (mut session, notices) = listening_session(&database);
    let replay = format!("webhook_replay('{old}', 'b')");
    assert_eq!(call(&mut session, &replay), 0);
    assert_eq!(told(&notices), [passed_over(1)]);
    session
        .batch_execute("CALL webhook_replay_all('b')")
        .unwrap();
    assert_eq!(told(&notices).last(), Some(&passed_over(4)));
    assert_eq!(statuses(&database, new), "b PENDING");

    let discard = format!("webhook_discard('{old}', 'b')");
    assert_eq!(call(&mut session, &discard), 1);
    assert_eq!(told(&notices), Vec::<String>::new());
    database.execute("DELETE FROM webhook.dead_letter USING webhook.failed f WHERE f.event_id = dead_letter.event_id AND f.endpoint = 'b'");
    assert_eq!(count(&database, "(SELECT count(*) FROM webhook.failed)"), 0);
}

#[test]
fn an_endpoint_that_never_was_is_an_error() {
    let database = paused_database();
    let event = bury(&database, "a", "order.created", "now()");
    for statement in [
        format!("SELECT webhook_replay('{event}', 'nobody')"),
        format!("SELECT webhook_discard('{event}', 'nobody')"),
        "CALL webhook_replay_all('nobody')".to_owned(),
    ] {
        let refusal = database.refusal(&statement);
        assert_eq!(refusal.code().code(), "42704", "{statement}");
        assert!(refusal.message().contains("nobody"), "{refusal}");
    }
    assert_eq!(statuses(&database, event), "a FAILED");
}

#[test]
fn what_to_replay_must_be_said() {
    let database = paused_database();
    let event = bury(&database, "a", "order.created", "now()");
    for (arguments, code, hint) in [
        ("NULL", "22004", "'*'"),
        ("'a', batch_size => 0", "22023", "batch_size"),
        ("'a', batch_size => NULL", "22023", "batch_size"),
        ("'a', status => '{}'", "22023", "FAILED, SENT or CANCELLED"),
        (
            "'a', status => '{PENDING}'",
            "22023",
            "FAILED, SENT or CANCELLED",
        ),
        (
            "'a', status => '{FAILED, NULL}'",
            "22023",
            "FAILED, SENT or CANCELLED",
        ),
        ("'a', status => NULL", "22023", "FAILED, SENT or CANCELLED"),
    ] {
        let refusal = database.refusal(&format!("CALL webhook_replay_all({arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}");
        let said = refusal.hint().unwrap_or_default();
        assert!(said.contains(hint), "{arguments}: {said}");
    }
    assert_eq!(statuses(&database, event), "a FAILED");
}

#[test]
fn filters_choose_by_endpoint_type_and_time_of_the_end() {
    let database = paused_database();
    // Days of this week, where retention does not come.
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
        database.execute(&format!("CALL webhook_replay_all({filter})"));
        let left = "(SELECT count(*) FROM webhook.dead_letter)";
        assert_eq!(count(&database, left), 4 - expected, "{filter}");
        assert_eq!(
            count(&database, "(SELECT count(*) FROM webhook.delivery_queue)"),
            expected
        );
    }
}

#[test]
fn an_address_names_one_endpoint_or_those_of_a_tenant() {
    let database = database();
    for address in ["a", "acme/a", "acme/b", "rival/a"] {
        database.add_endpoint(address, &Receiver::closed_url());
    }
    database.execute("SELECT webhook_pause('*')");
    let event = bury(&database, "a", "order.created", "now()");
    bury_again(&database, event, "b");
    let queued = || -> String {
        database.query_one_value(
            "SELECT coalesce(string_agg(w.endpoint, ', ' ORDER BY w.endpoint), '') FROM webhook.waiting w",
        )
    };
    let replay = format!("webhook_replay('{event}', 'rival/a')");
    assert_eq!(count(&database, &replay), 1);
    assert_eq!(queued(), "rival/a");
    for (address, expected) in [
        ("acme/a", "acme/a, rival/a"),
        ("acme/*", "acme/a, acme/b, rival/a"),
        ("*", "a, acme/a, acme/b, rival/a"),
    ] {
        database.execute(&format!("CALL webhook_replay_all('{address}')"));
        assert_eq!(queued(), expected, "{address}");
    }
}

#[test]
fn replay_all_takes_the_statuses_that_it_is_given_and_no_other() {
    let database = paused_database();
    for (chosen, left) in [
        ("{FAILED}", "CANCELLED,SENT"),
        ("{SENT}", "CANCELLED,FAILED"),
        ("{CANCELLED}", "FAILED,SENT"),
        ("{SENT, CANCELLED, FAILED}", ""),
    ] {
        database.execute("DELETE FROM webhook.delivery; DELETE FROM webhook.event");
        // Several batches, and each of them meets rows of both leaves.
        bury_many(&database, "a", 30);
        database.execute_as_engine(
            "UPDATE webhook.delivery SET status = s.status
             FROM (SELECT event_id, (ARRAY['FAILED', 'SENT', 'CANCELLED'])[1 + row_number() OVER (ORDER BY event_id) % 3] AS status
                   FROM webhook.dead_letter) s
             WHERE delivery.event_id = s.event_id",
        );
        database.execute(&format!(
            "CALL webhook_replay_all('a', status => '{chosen}', batch_size => 7)"
        ));
        let expected = 10 * chosen.split(',').count() as i64;
        let queued = "(SELECT count(*) FROM webhook.delivery_queue)";
        assert_eq!(count(&database, queued), expected, "{chosen}");
        let others: String = database.query_one_value(
            "SELECT coalesce(string_agg(DISTINCT status, ',' ORDER BY status), '') FROM webhook.delivery WHERE status <> 'PENDING'",
        );
        assert_eq!(others, left, "{chosen}");
    }
}

#[test]
fn to_take_a_few_of_many_reads_little() {
    const MANY: u32 = 20_000;
    let database = paused_database();
    bury_many(&database, "a", MANY);
    let event: Uuid = database.query_one_value("SELECT event_id FROM webhook.failed LIMIT 1");
    let mut session = database.connect();
    for analyzed in [false, true] {
        for (call, rows) in [
            (format!("webhook_replay('{event}')"), 1),
            (format!("webhook_discard('{event}', 'b')"), 1),
        ] {
            let read = rows_read(&mut session, "", &format!("PERFORM {call}"));
            assert!(
                read < 100 + 20 * rows,
                "{call} has read {read}, analyzed: {analyzed}"
            );
        }
        session
            .batch_execute("ANALYZE webhook.dead_letter, webhook.event")
            .unwrap();
    }
    // Whether there is anything to replay among them or not.
    for event_type in ["order.created", "no.such"] {
        let run = "run webhook.replay := webhook.begin_replay('*', 'order.created', NULL, NULL, '{FAILED}', 100);";
        let batch = format!("run.of_type := '{event_type}'; PERFORM webhook.replay_batch(run)");
        let read = rows_read(&mut session, run, &batch);
        assert!((100..2_100).contains(&read), "{event_type}: {read}");
    }
    // Each row once to count it, and once to replay it.
    let replay_all = "CALL webhook_replay_all('a', batch_size => 100)";
    let read = rows_read(&mut session, "", replay_all);
    assert!(read > i64::from(MANY) / 2, "replay_all has read {read}");
    assert!(read < 10 * i64::from(MANY), "replay_all has read {read}");
}

#[test]
fn replay_all_commits_after_each_batch() {
    let database = paused_database();
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
    // The batch of the locked row waits; earlier batches are there for all to see, and none of their locks is left.
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
    let database = paused_database();
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
