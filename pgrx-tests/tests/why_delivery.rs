//! `webhook_why()` of a delivery: what was tried, what comes next, how it ended.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::story::{Story, assert_not_told, assert_told, database, why};
use webhook_e2e::{Answer, Receiver};

#[test]
fn a_sent_event_says_when_and_how() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("shop", &receiver.url("/"), "event_types => '{order.*, *}'");
    let event: Uuid = database.query_one_value("SELECT webhook_emit('order.created')");
    database.wait_for_status(event, "SENT");
    let time = |column: &str| -> String {
        database.query_one_value(&format!(
            "SELECT to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || '+00' FROM webhook.delivery"
        ))
    };
    let told = why(&database, event);
    let emitted = format!(
        "Event {event} is of type order.created, without a tenant, and was emitted at {}, ",
        time("created_at")
    );
    assert!(told[0].starts_with(&emitted), "{}", told[0]);
    assert!(told[0].ends_with(" ago."), "{}", told[0]);
    assert_eq!(
        told[1..],
        [
            "Endpoint \"shop\": the event matches order.*, *.".to_owned(),
            format!(
                "  It is SENT: attempt 1 of 6 succeeded at {} with HTTP 200.",
                time("completed_at")
            ),
            format!("  SELECT webhook_resend('{event}', 'shop') sends it once more."),
        ]
    );
}

#[test]
fn a_failing_delivery_says_what_was_tried_and_when_the_next_attempt_is() {
    let mut story = Story::begin();
    let event = story.delivery(
        "attempts = 2, claim_seq = 2, next_attempt_at = now() + interval '4 min', last_error = 'no response within 10s'",
    );
    story.attempt(
        event,
        1,
        "attempt, verdict, error, status_code, finished_at",
        "1, 'retry', 'HTTP 503', 503, now() - interval '2 min'",
    );
    story.attempt(
        event,
        2,
        "attempt, verdict, error, finished_at",
        "2, 'retry', 'no response within 10s', now() - interval '1 min'",
    );
    let told = story.told(event);
    assert_eq!(
        told[1..],
        [
            "Endpoint \"shop\": the event matches *.".to_owned(),
            format!(
                "  Attempt 1 ended at {}, after 35 ms: HTTP 503.",
                story.time("-2 min")
            ),
            format!(
                "  Attempt 2 ended at {}, after 35 ms: no response within 10s.",
                story.time("-1 min")
            ),
            "  It is PENDING, after 2 of 6 attempts; the last error is: no response within 10s."
                .to_owned(),
            format!(
                "  Attempt 3 of 6 is due in 4 minutes ({}). UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = '{event}' AND endpoint_id = 1 AND status = 'PENDING' makes it due now.",
                story.time("4 min")
            ),
            format!(
                "SELECT webhook_cancel('{event}') cancels its deliveries that are still queued."
            ),
        ]
    );
}

#[test]
fn the_statement_that_it_names_makes_a_delivery_due() {
    for put_off_to in ["now() + interval '1 h'", "'infinity'"] {
        let mut story = Story::begin();
        // As a person, for whom the trigger acts.
        story.run("RESET ROLE");
        let event = story.delivery(&format!("next_attempt_at = {put_off_to}"));
        let told = story.told(event);
        let statement = (told.iter())
            .find_map(|told| Some(&told[told.find("UPDATE webhook.delivery")?..]))
            .and_then(|told| told.strip_suffix(" makes it due now."))
            .unwrap_or_else(|| panic!("no statement in {told:#?}"));
        story.run(statement);
        let now = story.time("0");
        let due = format!("Attempt 1 of 6 is due now, since {now}.");
        assert_told(&story.told(event), &due);
    }
}

#[test]
fn a_delivery_whose_turn_it_is_not_says_whose_it_is() {
    let mut story = Story::begin();
    let first = story.delivery("ordering_key = 'order-1'");
    let second = story.delivery(&format!("ordering_key = 'order-1', waits_for = '{first}'"));
    let waits = format!(
        "Attempt 1 of 6 waits for event {first}, whose turn it is by the ordering key \"order-1\". SELECT webhook_why('{first}') says more."
    );
    assert_told(&story.told(second), &waits);
}

#[test]
fn a_dead_letter_says_that_others_wait_for_it() {
    let mut story = Story::begin();
    story.policy("on_blocked = 'wait'");
    let failed = story.delivery("ordering_key = 'order-1'");
    story.run(&format!(
        "INSERT INTO webhook.lane VALUES (1, 'order-1', '{failed}');
         SELECT webhook.finish_queued(ARRAY['{failed}'::uuid], '{{1}}', 'FAILED', 'HTTP 400')"
    ));
    let waits = format!(
        "What has the same ordering key, \"order-1\", waits until it is sent or discarded (on_blocked = wait). \
         SELECT webhook_discard('{failed}', 'shop') lets it go on."
    );
    assert_told(&story.told(failed), &waits);
}

#[test]
fn a_delivery_that_is_parked_by_hand_says_so() {
    let mut story = Story::begin();
    let event = story.delivery("wait_reason = 'parked'");
    let told = story.told(event);
    let parked = "  Attempt 1 of 6 is parked by hand. UPDATE ";
    assert!(
        told.iter().any(|told| told.starts_with(parked)),
        "{told:#?}"
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
        ("12 h", "12 hours"),
        ("47 h", "47 hours"),
        ("2 days", "2 days"),
        ("400 days", "400 days"),
    ] {
        let event = story.delivery(&format!("next_attempt_at = now() + interval '{wait}'"));
        let (told, time) = (story.told(event), story.time(wait));
        let due = format!("  Attempt 1 of 6 is due in {words} ({time}). ");
        assert!(told.iter().any(|told| told.starts_with(&due)), "{told:#?}");
    }
}

#[test]
fn late_results_are_told_apart_and_only_the_last_ten_attempts_are_shown() {
    let mut story = Story::begin();
    let event = story.emit();
    for claim_seq in 1..=11 {
        let values = format!("{claim_seq}, 'retry', 'HTTP 500', now()");
        story.attempt(
            event,
            claim_seq,
            "attempt, verdict, error, finished_at",
            &values,
        );
    }
    story.attempt(
        event,
        12,
        "verdict, error, finished_at",
        "'late', 'HTTP 200', now() - interval '1 min'",
    );
    let told = story.told(event);
    let now = story.time("0");
    assert_eq!(
        told[2],
        "  12 attempts are logged in webhook.attempt; these are the last 10:"
    );
    assert_eq!(
        told[3],
        format!("  Attempt 3 ended at {now}, after 35 ms: HTTP 500.")
    );
    assert_eq!(
        told[11],
        format!("  Attempt 11 ended at {now}, after 35 ms: HTTP 500.")
    );
    assert_eq!(
        told[12],
        format!(
            "  A result that came at {}, after 35 ms, was too late to count: HTTP 200.",
            story.time("-1 min")
        )
    );
    assert_eq!(told[13], "  It is PENDING, not tried yet.");
}

#[test]
fn successful_attempts_that_are_logged_are_told() {
    let mut story = Story::begin();
    let event = story.emit();
    story.attempt(
        event,
        1,
        "attempt, verdict, status_code, finished_at",
        "1, 'success', 204, now()",
    );
    let now = story.time("0");
    let sentence = format!("Attempt 1 ended at {now}, after 35 ms: HTTP 204.");
    assert_told(&story.told(event), &sentence);
}

#[test]
fn trouble_of_our_own_is_told_though_it_cost_no_attempt() {
    let mut story = Story::begin();
    let event = story.delivery("last_error = 'Too many open files'");
    assert_told(
        &story.told(event),
        "It is PENDING, not tried yet; the last error is: Too many open files.",
    );
}

#[test]
fn a_request_in_flight_is_awaited() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/");
    database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    let told = why(&database, event);
    let began: String = database.query_one_value(
        "SELECT to_char(claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || '+00' FROM webhook.delivery",
    );
    let (begins, ends) = (
        format!("  It is SENDING: attempt 1 of 3 began at {began}, "),
        " ago, and its result is awaited.",
    );
    assert!(
        told[2].starts_with(&begins) && told[2].ends_with(ends),
        "{}",
        told[2]
    );
    receiver.release("/");
}

#[test]
fn a_request_whose_worker_is_gone_is_told_to_come_back() {
    let mut story = Story::begin();
    let event = story.delivery(
        "status = 'SENDING', attempts = 2, claimed_by = 2147483647, claimed_at = now() - interval '5 s'",
    );
    let began = story.time("-5 s");
    assert_told(
        &story.told(event),
        &format!(
            "It is SENDING: attempt 2 of 6 began at {began}, 5 seconds ago; its worker is gone, and the next one puts it back into the queue."
        ),
    );
}

#[test]
fn a_delivery_that_ran_out_of_attempts_says_how_to_replay_it() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.add_endpoint("shop''s", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let told = why(&database, event);
    assert_eq!(told.len(), 8, "{told:#?}");
    for (number, attempt) in told[2..5].iter().enumerate() {
        let begins = format!("  Attempt {} ended at ", number + 1);
        assert!(
            attempt.starts_with(&begins) && attempt.ends_with(" ms: HTTP 500."),
            "{attempt}"
        );
    }
    assert!(
        told[5].ends_with(", after 3 of 3 attempts: HTTP 500."),
        "{}",
        told[5]
    );
    assert!(
        told[6].starts_with("  The endpoint has failed 3 times in a row, last at "),
        "{}",
        told[6]
    );
    assert_eq!(
        told[7],
        format!(
            "  It stays in webhook.dead_letter. SELECT webhook_replay('{event}', 'shop''s') sends it again, from the first attempt."
        )
    );
}

#[test]
fn an_answer_that_is_not_retried_says_so() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(404));
    database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let told = why(&database, event);
    assert!(
        told[3].ends_with(", after 1 of 3 attempts: HTTP 404, which is not tried again."),
        "{told:#?}"
    );
}

#[test]
fn what_ended_without_an_answer_says_why() {
    let finished = "completed_at = now()";
    for (status, error, words) in [
        ("CANCELLED", "cancelled", "a person cancelled it"),
        (
            "CANCELLED",
            "skipped",
            "the circuit breaker was open when the event was emitted (skipped, when_open = skip)",
        ),
        (
            "FAILED",
            "circuit open",
            "the circuit breaker was open, and the policy did not let it wait (circuit open)",
        ),
        (
            "FAILED",
            "expired",
            "it was parked for longer than hold_for of the policy (expired)",
        ),
        (
            "FAILED",
            "expired', expires_at = '-infinity",
            "it was not worth sending after -infinity, its expires_at (expired)",
        ),
        (
            "FAILED",
            "worker lost",
            "the worker ended before the attempt did (worker lost)",
        ),
        ("FAILED", "host name not found", "host name not found"),
    ] {
        let mut story = Story::begin();
        let event = story.delivery(&format!(
            "status = '{status}', last_error = '{error}', attempts = 1, {finished}"
        ));
        // Of before it was replayed; this end is another one.
        story.attempt(
            event,
            0,
            "attempt, verdict, error, finished_at",
            "1, 'final', 'HTTP 404', now()",
        );
        let (told, now) = (story.told(event), story.time("0"));
        let (ended, command) = match status {
            "FAILED" => (
                "It FAILED",
                format!(
                    "It stays in webhook.dead_letter. SELECT webhook_replay('{event}', 'shop') sends it again, from the first attempt."
                ),
            ),
            _ => (
                "It was CANCELLED",
                format!("SELECT webhook_resend('{event}', 'shop') sends it all the same."),
            ),
        };
        assert_told(
            &told,
            &format!("{ended} at {now}, after 1 of 6 attempts: {words}."),
        );
        assert_told(&told, &command);
        assert_not_told(&told, "webhook_cancel");
    }
}

#[test]
fn a_removed_endpoint_is_still_known_by_its_name() {
    let mut story = Story::begin();
    let event = story.emit();
    story.run("SELECT webhook_remove_endpoint('shop')");
    let now = story.time("0");
    let told = story.told(event);
    assert_eq!(
        told[1..],
        [
            format!("Endpoint \"shop\" was removed at {now}."),
            format!("  It was CANCELLED at {now}, after 0 of 6 attempts: the endpoint was removed."),
            "There are no endpoints. SELECT * FROM webhook_set_endpoint('name', 'https://..') adds one, for the events that are emitted after it.".to_owned(),
        ]
    );

    // Committed by a transaction that was open while the endpoint was removed.
    let late = story.emit();
    story.run(&format!(
        "INSERT INTO webhook.delivery (event_id, endpoint_id, event_type, max_attempts)
         VALUES ('{late}', 1, 'order.created', 6)"
    ));
    assert_told(&story.told(late), "The worker cancels it within minutes.");
}

#[test]
fn an_endpoint_that_nobody_knows_is_waited_for() {
    let mut story = Story::begin();
    let event = story.emit();
    story.run("DELETE FROM webhook.endpoint; DELETE FROM webhook.removed_endpoint");
    let told = story.told(event);
    assert_eq!(told[1], "Endpoint number 1 is not known here.");
    assert_told(&told, "It waits until there is such an endpoint.");
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
    let told = [why(&database, first), why(&database, second)].concat();
    for sentence in &told {
        let acts = |c: char| c.is_control() || "\u{202e}\u{2066}".contains(c);
        assert!(!sentence.contains(acts), "{sentence:?}");
    }
    let all = told.join("\n");
    for shown in [
        r#"of tenant "\u202etenant""#,
        r#"the ordering key "k\u001b]0;\u0007\u202ey\u009b""#,
        r"the last error is: HTTP 500\u000d\u2066 é 📦.",
    ] {
        assert!(all.contains(shown), "{shown}: {all}");
    }
}
