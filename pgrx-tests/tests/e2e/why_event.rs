//! `webhook_why()` of an event that has deliveries: the attempts, the next step, the end.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::story::{Story, assert_not_told, assert_told, database, why};
use webhook_e2e::{Answer, Receiver};

#[test]
fn a_sent_event_says_when_and_how_and_the_newest_one_is_told_unasked() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("shop", &receiver.url("/"), "event_types => '{order.*, *}'");
    let told: Vec<String> = database.query_one_value("SELECT array_agg(w) FROM webhook_why() w");
    assert_told(&told, &["no event", "webhook_emit"]);
    database.emit("order.paid", json!({}));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let time = |column: &str| -> String {
        database.query_one_value(&format!(
            "SELECT to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || '+00'
             FROM webhook.delivery WHERE event_id = '{event}'"
        ))
    };
    let told = why(&database, event);
    let id = event.to_string();
    let facts = [
        &id,
        "order.created",
        "without a tenant",
        &time("created_at"),
        "ago",
    ];
    assert_told(&told[..1], &facts);
    assert_told(&told, &["\"shop\"", "matches order.*, *"]);
    let sent = ["SENT", "attempt 1 of 10", &time("completed_at"), "HTTP 200"];
    assert_told(&told, &sent);
    let replay = format!("SELECT webhook_replay('{event}', 'shop')");
    assert_told(&told, &[&replay]);
    assert_not_told(&told, "CANCELLED");

    // The extension's own events are told when they are asked for.
    database.execute(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         VALUES (webhook.new_id(), 'webhook.test', '{}', clock_timestamp())",
    );
    let newest: String = database.query_one_value("SELECT webhook_why() LIMIT 1");
    assert!(newest.contains(&id), "{newest}");
}

#[test]
fn a_failing_delivery_says_what_was_tried_and_when_the_next_attempt_is() {
    let mut story = Story::begin();
    let event = story.delivery(
        "attempts = 2, claim_seq = 2, next_attempt_at = now() + interval '4 min', last_error = 'no response within 10s'",
    );
    for (claim_seq, values) in [
        (1, "1, 'retry', 'HTTP 503', now() - interval '2 min'"),
        (
            2,
            "2, 'retry', 'no response within 10s', now() - interval '1 min'",
        ),
        (3, "3, 'success', NULL, now()"),
    ] {
        let columns = "attempt, verdict, error, finished_at";
        story.attempt(event, claim_seq, columns, values);
    }
    story.run("UPDATE webhook.attempt SET status_code = 204 WHERE verdict = 'success'");
    let told = story.told(event);
    for (attempt, ended, error) in [
        ("Attempt 1 ", "-2 min", "HTTP 503"),
        ("Attempt 2 ", "-1 min", "no response within 10s"),
        ("Attempt 3 ", "0", "HTTP 204"),
    ] {
        assert_told(&told, &[attempt, &story.time(ended), "35 ms", error]);
    }
    assert_told(&told, &["PENDING", "2 of 10", "no response within 10s"]);
    let due = ["Attempt 3 of 10", "4 minutes", &story.time("4 min")];
    assert_told(&told, &due);
    let cancel = format!("status = 'CANCELLED' WHERE event_id = '{event}'");
    assert_told(&told, &["UPDATE webhook.delivery", &cancel]);

    // Trouble of our own costs no attempt.
    let local = story.delivery("last_error = 'Too many open files'");
    assert_told(
        &story.told(local),
        &["PENDING", "not tried yet", "Too many open files"],
    );
}

#[test]
fn the_statements_that_it_names_do_what_it_says() {
    let mut story = Story::begin();
    for parked_until in ["'4 min'", "'infinity'"] {
        story.rewind();
        let event = story.emit();
        // As a person does it.
        story.run(&format!(
            "RESET ROLE; UPDATE webhook.delivery SET next_attempt_at =
                 CASE {parked_until} WHEN 'infinity' THEN 'infinity' ELSE now() + interval '4 min' END;
             SET LOCAL ROLE webhook_owner"
        ));
        let told = story.told(event);
        if parked_until == "'infinity'" {
            assert_told(&told, &["Attempt 1 of 10", "parked by hand"]);
        }
        let statement = |ends: &str| -> String {
            let (start, end) = ("UPDATE webhook.delivery", ends);
            let sentence = told
                .iter()
                .find(|told| told.contains(start) && told.contains(end));
            let sentence = sentence.unwrap_or_else(|| panic!("{ends}: {told:#?}"));
            sentence[sentence.find(start).unwrap()..sentence.find(end).unwrap()].to_owned()
        };
        let (make_due, cancel) = (statement(" makes it due"), statement(" cancels"));
        story.run(&format!(
            "RESET ROLE; {make_due}; SET LOCAL ROLE webhook_owner"
        ));
        let now = story.time("0");
        assert_told(&story.told(event), &["Attempt 1 of 10", "due now", &now]);
        story.run(&format!(
            "RESET ROLE; {cancel}; SET LOCAL ROLE webhook_owner"
        ));
        assert_told(&story.told(event), &["CANCELLED", "a person"]);
    }
}

#[test]
fn deliveries_of_an_ordering_key_say_whose_turn_it_is() {
    let mut story = Story::begin();
    let first = story.delivery("ordering_key = 'order-1'");
    let second = story.delivery(&format!("ordering_key = 'order-1', waits_for = '{first}'"));
    let why_first = format!("SELECT webhook_why('{first}')");
    let waits = ["Attempt 1 of 10 waits for event", "\"order-1\"", &why_first];
    assert_told(&story.told(second), &waits);

    story.policy("on_blocked = 'wait'");
    let shop = story.shop;
    story.run(&format!(
        "INSERT INTO webhook.lane VALUES ({shop}, 'order-1', '{first}');
         SELECT webhook.finish_queued(ARRAY['{first}'::uuid], '{{{shop}}}', 'FAILED', 'expired')"
    ));
    let discard = format!("SELECT webhook_discard('{first}', 'shop')");
    assert_told(
        &story.told(first),
        &["\"order-1\"", "on_blocked = wait", &discard],
    );
}

#[test]
fn waits_are_told_in_a_fitting_unit() {
    let mut story = Story::begin();
    for (wait, words) in [
        ("1 s", "1 second"),
        ("119 s", "119 seconds"),
        ("2 min", "2 minutes"),
        ("119 min", "119 minutes"),
        ("2 h", "2 hours"),
        ("47 h", "47 hours"),
        ("2 days", "2 days"),
        ("400 days", "400 days"),
    ] {
        let event = story.delivery(&format!("next_attempt_at = now() + interval '{wait}'"));
        let (due, time) = (format!("due in {words} ("), story.time(wait));
        assert_told(&story.told(event), &[&due, &time]);
    }
}

#[test]
fn late_results_are_told_apart_and_only_the_last_ten_attempts_are_shown() {
    let mut story = Story::begin();
    let event = story.emit();
    let columns = "attempt, verdict, error, finished_at";
    for claim_seq in 1..=11 {
        let values = format!("{claim_seq}, 'retry', 'HTTP 500', now()");
        story.attempt(event, claim_seq, columns, &values);
    }
    let late = "NULL, 'late', 'HTTP 200', now() - interval '1 min'";
    story.attempt(event, 12, columns, late);
    let told = story.told(event);
    assert_told(&told, &["12 attempts", "last 10"]);
    let shown: Vec<&String> = told.iter().filter(|told| told.contains(" 35 ms")).collect();
    assert_eq!(shown.len(), 10, "{told:#?}");
    assert!(shown[0].contains("Attempt 3 "), "{told:#?}");
    assert!(shown[8].contains("Attempt 11 "), "{told:#?}");
    let facts = ["too late", "HTTP 200", &story.time("-1 min")];
    assert_told(&told, &facts);
}

#[test]
fn a_request_in_flight_is_awaited_as_long_as_its_worker_lives() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/");
    database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    let began: String = database.query_one_value(
        "SELECT to_char(claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || '+00' FROM webhook.delivery",
    );
    let facts = ["SENDING", "attempt 1 of 3", &began, "awaited"];
    assert_told(&why(&database, event), &facts);
    receiver.release("/");

    let mut story = Story::begin();
    let event = story.delivery(
        "status = 'SENDING', attempts = 2, claimed_by = 2147483647, claimed_at = now() - interval '5 s'",
    );
    let facts = [
        "SENDING",
        "attempt 2 of 10",
        &story.time("-5 s"),
        "worker is gone",
    ];
    assert_told(&story.told(event), &facts);
}

#[test]
fn a_dead_letter_says_what_was_tried_and_how_to_replay_it() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, count| {
        Answer::status(if count <= 3 { 500 } else { 404 })
    });
    database.add_endpoint("shop''s", &receiver.url("/"));
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    let refused = database.emit("order.created", json!({}));
    database.wait_for_status(refused, "FAILED");

    let told = why(&database, exhausted);
    for attempt in ["Attempt 1 ", "Attempt 2 ", "Attempt 3 "] {
        assert_told(&told, &[attempt, " ms: HTTP 500"]);
    }
    assert_told(&told, &["FAILED", "3 of 3", "HTTP 500"]);
    assert_told(&told, &["The last 4 attempts failed"]);
    let replay = format!("SELECT webhook_replay('{exhausted}', 'shop''s')");
    assert_told(&told, &["webhook.dead_letter", &replay]);
    assert_not_told(&told, "not tried again");
    let final_answer = ["FAILED", "1 of 3", "HTTP 404", "not tried again"];
    assert_told(&why(&database, refused), &final_answer);
}

#[test]
fn what_ended_without_an_answer_says_why() {
    let mut story = Story::begin();
    for (status, reason, words) in [
        ("CANCELLED", "cancelled", &["a person"][..]),
        (
            "CANCELLED",
            "skipped",
            &["breaker was open", "when_open = skip"],
        ),
        ("CANCELLED", "coalesced", &["coalesce_key"]),
        ("CANCELLED", "endpoint_removed", &["removed the endpoint"]),
        ("CANCELLED", "redacted", &["redacted"]),
        ("FAILED", "circuit_open", &["breaker was open"]),
        ("FAILED", "expired", &["hold_for"]),
        (
            "FAILED",
            "expired', expires_at = '-infinity",
            &["expires_at", "-infinity"],
        ),
        ("FAILED", "worker_lost", &["worker ended"]),
        ("FAILED", "dns", &["host name not found"]),
    ] {
        story.rewind();
        let event = story.delivery(&format!(
            "status = '{status}', reason = '{reason}', last_error = 'host name not found', attempts = 1, completed_at = now()"
        ));
        // From before it was replayed; this end is another one.
        let earlier = "1, 'final', 'HTTP 404', now()";
        story.attempt(event, 0, "attempt, verdict, error, finished_at", earlier);
        let (told, now) = (story.told(event), story.time("0"));
        assert_told(&told, &[&[status, &now, "1 of 10"], words].concat());
        assert_told(
            &told,
            &[&format!("SELECT webhook_replay('{event}', 'shop')")],
        );
        assert_not_told(&told, "SET status = 'CANCELLED'");
        assert_not_told(&told, "not tried again");
    }
}

#[test]
fn an_endpoint_that_is_gone_or_was_changed_since_is_still_told_of() {
    let mut story = Story::begin();
    for change in ["event_types = '{invoice.*}'", "tenant = 'acme'"] {
        story.rewind();
        let event = story.emit();
        story.run(&format!("UPDATE webhook.endpoint SET {change}"));
        let told = story.told(event);
        assert_told(&told, &["shop\"", "does not match now", "changed since"]);
        assert_told(&told, &["PENDING"]);
    }

    story.rewind();
    let event = story.emit();
    story.run("SELECT webhook_remove_endpoint('shop')");
    let (told, now) = (story.told(event), story.time("0"));
    assert_told(&told, &["\"shop\" was removed", &now]);
    assert_told(&told, &["CANCELLED", &now, "0 of 10", "removed"]);
    assert_told(&told, &["no endpoints", "webhook_set_endpoint"]);
    assert_not_told(&told, "webhook_replay");
    // Committed by a transaction that was open while the endpoint was removed.
    let (late, shop) = (story.emit(), story.shop);
    story.run(&format!(
        "INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, max_attempts)
         VALUES ('{late}', {shop}, 'order.created', 6)"
    ));
    assert_told(&story.told(late), &["worker cancels it"]);

    story.run("DELETE FROM webhook.removed_endpoint");
    let told = story.told(late);
    assert_told(&told, &[&format!("number {shop}"), "not known"]);
    assert_told(&told, &["waits until there is such an endpoint"]);
}

#[test]
fn what_comes_from_outside_cannot_act_on_a_terminal() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("shop", &receiver.url("/"));
    database.execute("SELECT webhook_pause('shop')");
    let emit = "SELECT webhook_emit('order.created', ordering_key => 'key', tenant => 'tenant')";
    let [first, second]: [Uuid; 2] = [(); 2].map(|()| database.query_one_value(emit));
    // As it may have been stored before keys were checked, and as a receiver may answer.
    database.execute(&format!(
        r"SET session_replication_role = replica;
          UPDATE webhook.event SET tenant = E'\u202Etenant';
          UPDATE webhook.delivery SET ordering_key = E'k\u001b]0;\u0007\u202ey\u009b';
          UPDATE webhook.delivery SET last_error = E'HTTP 500\u000d\u2066 é 📦', attempts = 1 WHERE event_id = '{first}';
          UPDATE webhook.delivery SET waits_for = '{first}' WHERE event_id = '{second}'"
    ));
    let told = [
        why(&database, first),
        why(&database, second),
        why(&database, "shop"),
    ]
    .concat();
    for sentence in &told {
        let acts = |c: char| c.is_control() || "\u{202e}\u{2066}".contains(c);
        assert!(!sentence.contains(acts), "{sentence:?}");
    }
    let all = told.join("\n");
    for shown in [
        r#"of tenant "\u202etenant""#,
        r#"the ordering key "k\u001b]0;\u0007\u202ey\u009b""#,
        r"the last error is: HTTP 500\u000d\u2066 é 📦.",
        r"after the error: HTTP 500\u000d\u2066 é 📦.",
    ] {
        assert!(all.contains(shown), "{shown}: {all}");
    }
}
