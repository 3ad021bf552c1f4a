//! `webhook_why()`: every endpoint's share in an event, in sentences that a person can act on.

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Receiver, database, worker};

/// Without anything to say about the server.
fn database() -> Database {
    let database = Cluster::shared().database("why");
    database.wait_until("SELECT state = 'running' FROM webhook_status()");
    database
}

#[track_caller]
fn why(database: &Database, event: Uuid) -> Vec<String> {
    let mut client = database.connect();
    client.batch_execute("SET timezone = 'UTC'").unwrap();
    told(&mut client, event)
}

#[track_caller]
fn told(client: &mut Client, event: Uuid) -> Vec<String> {
    let rows = client.query("SELECT webhook_why($1)", &[&event]);
    let rows = rows.unwrap_or_else(|error| panic!("{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[track_caller]
fn assert_told(told: &[String], sentence: &str) {
    assert!(
        told.iter().any(|told| told.trim() == sentence),
        "{sentence:?} is not in {told:#?}"
    );
}

#[track_caller]
fn assert_not_told(told: &[String], part: &str) {
    let sentence = told.iter().find(|told| told.contains(part));
    assert_eq!(sentence, None, "says {part:?}");
}

/// A transaction that is never committed, where any state can be written and no worker acts on it. Its endpoint
/// `shop`, number 1 and with the default policy, gets every event; now() stands still, in the time zone of the session.
struct Story {
    client: Client,
    _database: Database,
}

impl Story {
    #[track_caller]
    fn begin() -> Story {
        let database = database();
        let client = database.connect();
        let mut story = Story {
            client,
            _database: database,
        };
        story.run("BEGIN; SET LOCAL webhook.engine = on; SET LOCAL timezone = '<+0530>-05:30'");
        story.run("SELECT webhook_add_endpoint('shop', 'http://127.0.0.1:1/')");
        story
    }

    #[track_caller]
    fn run(&mut self, sql: &str) {
        let result = self.client.batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// An event that is due now, which in a transaction is earlier than what was just written.
    #[track_caller]
    fn emit(&mut self) -> Uuid {
        let event = database::emit(&mut self.client, "order.created", json!({}));
        self.run("UPDATE webhook.delivery SET next_attempt_at = least(next_attempt_at, now())");
        event
    }

    /// An event whose delivery to `shop` is as the settings say, written as in an UPDATE.
    #[track_caller]
    fn delivery(&mut self, settings: &str) -> Uuid {
        let event = self.emit();
        self.run(&format!(
            "UPDATE webhook.delivery SET {settings} WHERE event_id = '{event}'"
        ));
        event
    }

    #[track_caller]
    fn attempt(&mut self, event: Uuid, claim_seq: i32, columns: &str, values: &str) {
        self.run(&format!(
            "INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, duration_ms, {columns})
             VALUES ('{event}', 1, {claim_seq}, 35, {values})"
        ));
    }

    #[track_caller]
    fn breaker(&mut self, columns: &str, values: &str) {
        self.run(&format!(
            "INSERT INTO webhook.breaker (endpoint_id, {columns}) VALUES (1, {values})"
        ));
    }

    /// A copy of the default policy, changed, for `shop`.
    #[track_caller]
    fn policy(&mut self, settings: &str) {
        self.run(&format!(
            "SELECT webhook_copy_policy('standard', 'own');
             UPDATE webhook.policy SET {settings} WHERE name = 'own';
             UPDATE webhook.endpoint SET policy = 'own'"
        ));
    }

    #[track_caller]
    fn told(&mut self, event: Uuid) -> Vec<String> {
        told(&mut self.client, event)
    }

    /// A time in relation to now(), as it is told.
    #[track_caller]
    fn time(&mut self, offset: &str) -> String {
        let sql = format!(
            "SELECT to_char(now() + interval '{offset}', 'YYYY-MM-DD HH24:MI:SS') || '+05:30'"
        );
        self.client.query_one(&sql, &[]).unwrap().get(0)
    }
}

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
    for parked_until in ["now() + interval '1 h'", "'infinity'"] {
        let mut story = Story::begin();
        let event = story.delivery(&format!("next_attempt_at = {parked_until}"));
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
    let second = story.delivery(&format!(
        "ordering_key = 'order-1', next_attempt_at = 'infinity', waits_for = '{first}'"
    ));
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
    let event = story.delivery("next_attempt_at = 'infinity'");
    let told = story.told(event);
    let parked = "  Attempt 1 of 6 is parked by hand: next_attempt_at is infinity. UPDATE ";
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
            "There are no endpoints. SELECT * FROM webhook_add_endpoint('name', 'https://..') adds one, for the events that are emitted after it.".to_owned(),
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
fn a_paused_endpoint_says_how_to_resume_it() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET paused_at = now() - interval '1 h'");
    let event = story.emit();
    let (told, since) = (story.told(event), story.time("-1 h"));
    assert_eq!(
        told[2..5],
        [
            "  It is PENDING, not tried yet.".to_owned(),
            format!(
                "  The endpoint has been paused since {since}. SELECT webhook_resume('shop') resumes it."
            ),
            "  Attempt 1 of 6 waits until then.".to_owned(),
        ]
    );

    let later = story.delivery("next_attempt_at = now() + interval '4 min'");
    let at = story.time("4 min");
    let sentence = format!("Attempt 1 of 6 waits until then; its own time is {at}.");
    assert_told(&story.told(later), &sentence);
}

#[test]
fn a_disabled_endpoint_says_why_and_how_to_resume_it() {
    for (reason, words) in [
        (
            "gone",
            "its answer said that it is gone, as HTTP 410 does (disable_status)",
        ),
        (
            "exhausted",
            "all attempts of a delivery had failed (on_exhausted = disable)",
        ),
        (
            "tripped",
            "it had failed too often in a row (failure_threshold, on_trip = disable)",
        ),
        ("their contract ended", "their contract ended"),
    ] {
        let mut story = Story::begin();
        story.run(&format!(
            "UPDATE webhook.endpoint SET disabled_at = now() - interval '1 h', disabled_reason = '{reason}'"
        ));
        let event = story.emit();
        let (told, since) = (story.told(event), story.time("-1 h"));
        let test = match reason {
            "exhausted" => ", and so does CALL webhook_test('shop') if it succeeds",
            _ => "",
        };
        assert_told(
            &told,
            &format!(
                "The endpoint has been disabled since {since}: {words}. SELECT webhook_resume('shop') resumes it{test}."
            ),
        );
        assert_told(&told, "Attempt 1 of 6 waits until then.");
    }
}

#[test]
fn an_endpoint_of_another_installation_is_held() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    let event = story.emit();
    let told = story.told(event);
    assert_eq!(
        told[1],
        "Delivery is held: 1 of 1 endpoints belong to another installation (a restored or copied database?); SELECT webhook_adopt() takes them over."
    );
    assert_told(
        &told,
        "The endpoint belongs to another installation (a restored or copied database?) and is held. SELECT webhook_adopt() takes over all of that kind.",
    );
    assert_told(&told, "Attempt 1 of 6 waits until then.");

    story.run("SELECT webhook_adopt()");
    let told = story.told(event);
    assert_not_told(&told, "another installation");
    assert_not_told(&told, "waits");
}

const OPEN: &str =
    "state, consecutive_failures, trips, opened_at, last_error, last_failure_at, probe_at";

#[test]
fn an_open_breaker_says_since_when_until_when_and_what_happens_meanwhile() {
    for (policy, meanwhile, waits) in [
        (
            "when_open = 'hold'",
            "Meanwhile deliveries are parked, and fail as \"expired\" after 7 days (when_open = hold).",
            true,
        ),
        (
            "when_open = 'hold', hold_for = NULL",
            "Meanwhile deliveries are parked (when_open = hold).",
            true,
        ),
        (
            "when_open = 'skip'",
            "Meanwhile what is emitted is skipped (when_open = skip).",
            true,
        ),
        (
            "when_open = 'fail'",
            "Meanwhile what is due fails as \"circuit open\" (when_open = fail).",
            false,
        ),
        (
            "when_open = 'attempt'",
            "Meanwhile an attempt that is due fails as \"circuit open\", and counts (when_open = attempt).",
            false,
        ),
    ] {
        let mut story = Story::begin();
        story.policy(policy);
        let event = story.emit();
        story.breaker(
            OPEN,
            "'OPEN', 5, 1, now() - interval '20 s', 'HTTP 503', now() - interval '20 s', now() + interval '40 s'",
        );
        let told = story.told(event);
        let (opened, probe) = (story.time("-20 s"), story.time("40 s"));
        assert_eq!(
            told[3..7],
            [
                format!(
                    "  The circuit breaker of the endpoint has been open since {opened}, after 5 failures in a row; the last error is: HTTP 503."
                ),
                format!(
                    "  Nothing is sent to it until a probe, in 40 seconds ({probe}): the delivery that has waited longest, or else the next to come."
                ),
                "  If the probe succeeds the breaker closes, and if it fails the breaker opens again. SELECT webhook_reset_breaker('shop') closes it now.".to_owned(),
                format!("  {meanwhile}"),
            ]
        );
        let next = if waits {
            "waits until then."
        } else {
            "is due now, since "
        };
        assert!(told[7].contains(next), "{told:#?}");
    }
}

#[test]
fn an_open_breaker_whose_probe_is_due_says_so() {
    let mut story = Story::begin();
    let event = story.emit();
    story.breaker(
        OPEN,
        "'OPEN', 1, 1, now() - interval '60 s', NULL, NULL, now()",
    );
    let (told, opened) = (story.told(event), story.time("-60 s"));
    assert_told(
        &told,
        &format!(
            "The circuit breaker of the endpoint has been open since {opened}, after a failure."
        ),
    );
    assert_told(
        &told,
        "Nothing is sent to it until a probe, which is due now: the delivery that has waited longest, or else the next to come.",
    );
}

#[test]
fn a_half_open_breaker_names_its_probe() {
    let mut story = Story::begin();
    let waiting = story.emit();
    let probe =
        story.delivery("status = 'SENDING', attempts = 1, claimed_by = 1, claimed_at = now()");
    story.breaker(
        "state, consecutive_failures, trips, opened_at, probe_at, probe_event_id, probe_claim_seq",
        &format!("'HALF_OPEN', 5, 1, now(), now() + interval '15 s', '{probe}', 1"),
    );
    let until = story.time("15 s");
    let told = story.told(waiting);
    assert_told(
        &told,
        &format!(
            "The circuit breaker of the endpoint is half open: event {probe} is the probe, and has until {until} to end."
        ),
    );
    assert_told(
        &told,
        "If the probe succeeds the breaker closes, and if it fails the breaker opens again. SELECT webhook_reset_breaker('shop') closes it now.",
    );
    assert_told(&told, "Attempt 1 of 6 waits until then.");
    assert_told(
        &story.told(probe),
        &format!(
            "The circuit breaker of the endpoint is half open: this delivery is the probe, and has until {until} to end."
        ),
    );
}

#[test]
fn a_recovered_endpoint_says_how_fast_it_is_drained() {
    let mut story = Story::begin();
    let event = story.emit();
    story.breaker("ramp", "4");
    let told = story.told(event);
    assert_told(
        &told,
        "The endpoint has recovered; of what was parked, at most 4 at a time are sent for now.",
    );
    assert_not_told(&told, "breaker");
    assert_not_told(&told, "waits");
}

#[test]
fn an_endpoint_that_fails_says_how_near_its_breaker_is() {
    for (policy, failures, words) in [
        (
            "failure_threshold = 5",
            1,
            "once in a row, last at {}; at 5 its circuit breaker opens.",
        ),
        (
            "failure_threshold = 5",
            4,
            "4 times in a row, last at {}; at 5 its circuit breaker opens.",
        ),
        (
            "failure_threshold = 50, on_trip = 'disable'",
            2,
            "2 times in a row, last at {}; at 50 it is disabled.",
        ),
        ("failure_threshold = 0", 7, "7 times in a row, last at {}."),
    ] {
        let mut story = Story::begin();
        story.policy(policy);
        let event = story.emit();
        story.breaker(
            "consecutive_failures, last_failure_at",
            &format!("{failures}, now() - interval '3 s'"),
        );
        let words = words.replace("{}", &story.time("-3 s"));
        let sentence = format!("The endpoint has failed {words}");
        assert_told(&story.told(event), &sentence);
    }
    let mut story = Story::begin();
    let event = story.emit();
    story.breaker("consecutive_failures", "0");
    assert_not_told(&story.told(event), "The endpoint");
}

#[test]
fn a_test_is_sent_whatever_the_state() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET paused_at = now()");
    let event = story.emit();
    story.breaker("test_event_id", &format!("'{event}'"));
    let told = story.told(event);
    assert_told(
        &told,
        "This delivery is a test, which is sent all the same.",
    );
    assert_not_told(&told, "waits");
}

#[test]
fn a_finished_delivery_says_what_keeps_its_endpoint_from_a_replay() {
    let mut story = Story::begin();
    let failed = story.delivery("status = 'FAILED', last_error = 'HTTP 500', completed_at = now()");
    let sent = story.delivery("status = 'SENT', last_status_code = 200, completed_at = now()");
    story.run("UPDATE webhook.endpoint SET paused_at = now()");
    let now = story.time("0");
    let paused = format!(
        "The endpoint has been paused since {now}. SELECT webhook_resume('shop') resumes it."
    );
    assert_told(&story.told(failed), &paused);
    assert_not_told(&story.told(sent), "paused");
}

#[test]
fn an_endpoint_that_was_changed_since_says_so() {
    for change in [
        "event_types = '{invoice.*, refund}'",
        "event_types = '{invoice.*, refund}', tenant = 'acme'",
    ] {
        let mut story = Story::begin();
        let event = story.emit();
        story.run(&format!("UPDATE webhook.endpoint SET {change}"));
        let told = story.told(event);
        assert_eq!(
            told[1],
            "Endpoint \"shop\": the event does not match now; the event types (invoice.*, refund), the filter or the tenant of the endpoint were changed since, or the event was sent to it by name."
        );
        assert_told(&told, "It is PENDING, not tried yet.");
    }
}

#[test]
fn endpoints_without_a_delivery_say_why_those_that_come_nearest_first() {
    let mut story = Story::begin();
    story.run(
        "SELECT webhook_remove_endpoint('shop');
         SELECT webhook_add_endpoint('alien', 'http://127.0.0.1:1/', '{order.*}', tenant => 'acme');
         SELECT webhook_add_endpoint('both', 'http://127.0.0.1:1/', '{invoice.*}', tenant => 'acme');
         SELECT webhook_add_endpoint('other', 'http://127.0.0.1:1/', '{invoice.paid, refund.*}');
         SELECT webhook_add_endpoint('late', 'http://127.0.0.1:1/', '{order.created}');
         UPDATE webhook.endpoint SET created_at = now() + interval '1 h' WHERE name = 'late'",
    );
    let event: Uuid = (story.client)
        .query_one(
            "SELECT webhook_emit('order.created', tenant => 'rival')",
            &[],
        )
        .unwrap()
        .get(0);
    story.run("DELETE FROM webhook.delivery");
    let (told, late) = (story.told(event), story.time("1 h"));
    assert!(
        told[0].contains("is of type order.created, of tenant \"rival\", and"),
        "{}",
        told[0]
    );
    assert_eq!(
        told[1..],
        [
            "It matched no endpoint, so there is nothing to deliver.".to_owned(),
            format!("Endpoint \"late\" has no delivery of it: it was added at {late}, after the event."),
            "Endpoint \"alien\" has no delivery of it: it serves only tenant \"acme\", and the event is of tenant \"rival\".".to_owned(),
            "Endpoint \"other\" has no delivery of it: its event types are invoice.paid, refund.*.".to_owned(),
            "Endpoint \"both\" has no delivery of it: it serves only tenant \"acme\", and the event is of tenant \"rival\"; its event types are invoice.*.".to_owned(),
        ]
    );

    let without_tenant = story.emit();
    assert_told(
        &story.told(without_tenant),
        "Endpoint \"alien\" has no delivery of it: it serves only tenant \"acme\", and the event has none.",
    );
}

#[test]
fn an_endpoint_that_matches_and_has_no_delivery_says_what_may_have_happened() {
    let mut story = Story::begin();
    story.run(
        "SELECT webhook_add_endpoint('queue', 'http://127.0.0.1:1/', '{order.*}', policy => 'job')",
    );
    let event = story.emit();
    story.run("DELETE FROM webhook.delivery");
    story.attempt(
        event,
        1,
        "attempt, verdict, error, finished_at",
        "1, 'retry', 'HTTP 500', now()",
    );
    let (told, now) = (story.told(event), story.time("0"));
    assert_eq!(
        told[1..],
        [
            "Endpoint \"queue\" has no delivery of it: the event matches its event types (order.*) now, but its policy \"job\" keeps no row of what was sent (keep_sent = false).".to_owned(),
            "Endpoint \"shop\" has no delivery of it: the event matches its event types (*) now, but they, its filter or its tenant were changed since, others were chosen by name, or the delivery was removed.".to_owned(),
            format!("  Attempt 1 ended at {now}, after 35 ms: HTTP 500."),
        ]
    );
}

#[test]
fn the_star_does_not_stand_for_our_own_events() {
    let mut story = Story::begin();
    let event = Uuid::from_u128(1);
    story.run(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         VALUES ('{event}', 'webhook.endpoint.opened', '{{}}', now())"
    ));
    let told = story.told(event);
    assert_eq!(
        told[1..],
        [
            "It matched no endpoint, so there is nothing to deliver.",
            "Endpoint \"shop\" has no delivery of it: its event types are *, and * leaves out webhook.*, the extension's own events.",
        ]
    );
}

#[test]
fn of_many_endpoints_and_patterns_only_the_first_are_told() {
    let mut story = Story::begin();
    story.run(
        "INSERT INTO webhook.endpoint (name, url, event_types)
         SELECT to_char(n, '000'), 'http://127.0.0.1:1/', ARRAY(SELECT 'type.' || t FROM generate_series(1, 12) t)
         FROM generate_series(1, 25) n",
    );
    let event = story.emit();
    let told = story.told(event);
    let others: Vec<_> = (told.iter())
        .filter(|told| told.contains("has no delivery of it: "))
        .collect();
    assert_eq!(others.len(), 20);
    assert_eq!(
        others[19],
        "Endpoint \" 020\" has no delivery of it: its event types are type.1, type.2, type.3, type.4, type.5, type.6, type.7, type.8, type.9, type.10 and 2 more."
    );
    assert_eq!(
        told.last().unwrap(),
        "5 more endpoints have no delivery of it."
    );
}

#[test]
fn an_event_without_any_endpoint_says_how_to_add_one() {
    let mut story = Story::begin();
    story.run("SELECT webhook_remove_endpoint('shop')");
    let event = story.emit();
    let told = story.told(event);
    assert_eq!(
        told[1..],
        [
            "There are no endpoints. SELECT * FROM webhook_add_endpoint('name', 'https://..') adds one, for the events that are emitted after it."
        ]
    );
}

#[test]
fn an_event_that_is_not_there_says_what_may_have_become_of_it() {
    let database = database();
    let begin = "There is no event ";
    let rolled_back = {
        let mut client = database.connect();
        let mut transaction = client.transaction().unwrap();
        database::emit(&mut transaction, "order.created", json!({}))
    };
    let told = why(&database, rolled_back);
    assert_eq!(told.len(), 2);
    assert!(
        told[0].starts_with(&format!("{begin}{rolled_back} here: ")),
        "{}",
        told[0]
    );
    for reason in ["never emitted", "rolled back", "webhook.retention_sent"] {
        assert!(told[0].contains(reason), "{}", told[0]);
    }
    let seconds = (rolled_back.get_timestamp().expect("it has a time"))
        .to_unix()
        .0;
    let emitted_at: String = database.query_one_value(&format!(
        "SELECT to_char(to_timestamp({seconds}) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')"
    ));
    let begin = format!("If webhook_emit() made this id, then at {emitted_at}");
    assert!(told[1].starts_with(&begin), "{}", told[1]);

    let foreign = Uuid::from_u128(0x9c5b94b1_35ad_49bb_b118_8e8fc24abf80);
    assert_eq!(
        why(&database, foreign)[1],
        "Check the id: webhook_emit() did not make it, for its own are UUIDs of version 7."
    );
    let unknown: String = database.query_one_value("SELECT webhook_why(NULL) LIMIT 1");
    assert!(unknown.starts_with("There is no event NULL here: "));
}

#[test]
fn an_event_that_was_deleted_leaves_its_deliveries_to_be_explained() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET tenant = 'acme'");
    let event: Uuid = (story.client)
        .query_one(
            "SELECT webhook_emit('order.created', tenant => 'acme')",
            &[],
        )
        .unwrap()
        .get(0);
    story.run("DELETE FROM webhook.event");
    let told = story.told(event);
    assert_eq!(
        told,
        [
            format!(
                "Event {event} is gone from webhook.event and cannot be sent any more; its deliveries are still here."
            ),
            "Endpoint \"shop\": the event matches *.".to_owned(),
            "  It is PENDING, not tried yet.".to_owned(),
            "  It fails when it is due, because there is nothing to send.".to_owned(),
        ]
    );
    story.run("UPDATE webhook.delivery SET status = 'CANCELLED', last_error = 'cancelled', completed_at = now()");
    assert_not_told(&story.told(event), "webhook_resend");
}

#[test]
fn a_redacted_event_says_that_nothing_is_sent_any_more() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({"name": "Zoë"}));
    database.wait_for_status(event, "FAILED");
    database.execute(&format!("SELECT webhook_redact('{event}')"));
    let told = why(&database, event);
    assert!(
        told[1].starts_with("Its payload was redacted at ")
            && told[1].ends_with("; it cannot be sent any more."),
        "{told:#?}"
    );
    assert_not_told(&told, "webhook_replay");
}

#[test]
fn a_server_that_does_not_preload_the_library_says_so() {
    let cluster = Cluster::builder().without_preload().start();
    let database = cluster.plain_database("unloaded");
    database.execute("CREATE EXTENSION webhook");
    let event = database.emit("order.created", json!({}));
    assert_eq!(
        why(&database, event)[1],
        "Nothing is delivered: the library is not preloaded; add webhook to shared_preload_libraries in postgresql.conf and restart the server."
    );
}

#[test]
fn a_server_that_delivers_nothing_says_so() {
    let mut cluster = Cluster::builder()
        .setting("webhook.enabled = off")
        .setting("max_worker_processes = 3")
        .start();
    let served = cluster.database("served");
    worker::pid(&served);
    served.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    let event = served.emit("order.created", json!({}));
    assert_eq!(
        why(&served, event)[1],
        "Nothing is delivered now: webhook.enabled is off. Set it to on in postgresql.conf, then SELECT pg_reload_conf()."
    );

    let unserved = cluster.database("unserved");
    unserved.wait_until("SELECT reason IS NOT NULL FROM webhook_status()");
    let waiting = unserved.emit("order.created", json!({}));
    assert_eq!(
        why(&unserved, waiting)[1],
        "Nothing is delivered now: there is no worker (no background worker is free; raise max_worker_processes and restart the server). SELECT * FROM webhook_status() shows more."
    );

    cluster.configure("webhook.enabled = on\ndefault_transaction_read_only = on");
    cluster.reload();
    served.wait_until("SELECT state = 'held' FROM webhook_status()");
    assert_eq!(
        why(&served, event)[1],
        "Delivery is held: default_transaction_read_only is on."
    );
}

#[test]
fn nothing_that_is_told_contains_a_credential() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/t0ken", |request, _| {
        let echo = format!("{} {:?}", request.path, request.headers);
        Answer::status(500).body(echo)
    });
    let secret = database.add_endpoint_with(
        "shop",
        &receiver.url("/t0ken"),
        r#"policy => 'fast', headers => '{"X-Key": "hunter2"}', metadata => '{"note": "hunter2"}'"#,
    );
    let closed = Receiver::closed_url();
    database.add_endpoint("closed", &format!("{closed}t0ken"));
    database.add_endpoint("unknown host", "http://t0ken.invalid/");
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'fast'");
    let event = database.emit("order.created", json!({"card": "hunter2"}));
    database.wait_until("SELECT count(*) = 3 FROM webhook.attempt");

    let mut client = database.connect();
    for state in [
        "UPDATE webhook.endpoint SET paused_at = now()",
        "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'gone'",
        "UPDATE webhook.endpoint SET origin = 'elsewhere'",
        "DELETE FROM webhook.delivery",
        "DELETE FROM webhook.event",
        "DELETE FROM webhook.endpoint",
        "SELECT",
    ] {
        client.batch_execute(&format!("BEGIN; {state}")).unwrap();
        let told = told(&mut client, event).join("\n");
        client.batch_execute("ROLLBACK").unwrap();
        assert!(told.contains("HTTP 500"), "{state}: {told}");
        let credentials = ["t0ken", "hunter2", "127.0.0.1", "http://", secret.as_str()];
        for credential in credentials {
            assert!(!told.contains(credential), "{state}: {told}");
        }
    }
}
