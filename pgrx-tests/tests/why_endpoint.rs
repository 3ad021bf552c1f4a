//! `webhook_why()` of an endpoint: what keeps it from being sent to, and the remedy.

use webhook_e2e::story::{Story, assert_not_told, assert_told};

#[test]
fn a_paused_endpoint_says_how_to_resume_it() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET paused_at = now() - interval '1 h'");
    let event = story.emit();
    let (told, since) = (story.told(event), story.time("-1 h"));
    assert_eq!(
        told[2..6],
        [
            "  It is PENDING, not tried yet.".to_owned(),
            format!(
                "  The endpoint has been paused since {since}. SELECT webhook_resume('shop') resumes it."
            ),
            "  Meanwhile deliveries are parked, and fail as \"expired\" after 7 days (hold_for)."
                .to_owned(),
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
            false,
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
fn what_is_not_skipped_waits_for_the_breaker() {
    let mut story = Story::begin();
    story.policy("when_open = 'skip'");
    let before = story.delivery("created_at = now() - interval '1 s'");
    story.breaker(
        OPEN,
        "'OPEN', 5, 1, now(), 'HTTP 503', now(), now() + interval '40 s'",
    );
    let sent_again =
        story.delivery("status = 'CANCELLED', last_error = 'skipped', completed_at = now()");
    assert_told(
        &story.told(sent_again),
        &format!("SELECT webhook_resend('{sent_again}', 'shop') sends it all the same."),
    );
    story.run(&format!("SELECT webhook_resend('{sent_again}')"));
    for event in [before, sent_again] {
        assert_told(&story.told(event), "Attempt 1 of 6 waits until then.");
    }
}

#[test]
fn a_stopped_endpoint_whose_breaker_is_open_promises_no_probe() {
    for stop in [
        "paused_at = now()",
        "disabled_at = now(), disabled_reason = 'gone'",
        "origin = 'elsewhere'",
    ] {
        let mut story = Story::begin();
        story.policy("when_open = 'fail'");
        let event = story.emit();
        story.breaker(
            OPEN,
            "'OPEN', 5, 1, now(), 'HTTP 503', now(), now() + interval '40 s'",
        );
        story.run(&format!("UPDATE webhook.endpoint SET {stop}"));
        let told = story.told(event);
        assert_not_told(&told, "probe");
        assert_not_told(&told, "circuit open");
        assert_told(&told, "Attempt 1 of 6 waits until then.");
    }
}

#[test]
fn a_breaker_that_was_switched_off_meanwhile_closes_whatever_the_probe_does() {
    let mut story = Story::begin();
    story.policy("failure_threshold = 0");
    let event = story.emit();
    story.breaker(
        OPEN,
        "'OPEN', 5, 1, now(), 'HTTP 503', now(), now() + interval '40 s'",
    );
    assert_told(
        &story.told(event),
        "If the probe succeeds the breaker closes, and if it fails the breaker closes too (failure_threshold = 0). SELECT webhook_reset_breaker('shop') closes it now.",
    );
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
fn a_probe_that_has_not_ended_in_time_is_awaited_or_given_up() {
    let mut story = Story::begin();
    let waiting = story.emit();
    let probe = story.delivery(
        "status = 'SENDING', attempts = 1, claimed_by = 1, claimed_at = now(), claim_seq = 1",
    );
    story.breaker(
        "state, consecutive_failures, trips, opened_at, probe_at, probe_event_id, probe_claim_seq",
        &format!("'HALF_OPEN', 5, 1, now(), now() - interval '5 s', '{probe}', 1"),
    );
    let until = story.time("-5 s");
    let half_open = format!(
        "The circuit breaker of the endpoint is half open: event {probe} is the probe, and had until {until} to end"
    );
    let told = story.told(waiting);
    assert_told(&told, &format!("{half_open}; its result is awaited."));
    assert_not_told(&told, "until a probe");

    story.run(&format!("SELECT webhook_cancel('{probe}')"));
    let told = story.told(waiting);
    assert_told(&told, &format!("{half_open}, but has no result."));
    assert_told(
        &told,
        "Nothing is sent to it until a probe, which is due now: the delivery that has waited longest, or else the next to come.",
    );
}

#[test]
fn retries_that_a_closed_breaker_brought_forward_are_due_now() {
    let mut story = Story::begin();
    let retry = story.delivery(
        "attempts = 1, wait_reason = 'retry', last_attempt_at = now() - interval '1 min', next_attempt_at = now() + interval '2 h'",
    );
    story.breaker("ramp, retries_before", "1, now() - interval '10 s'");
    let at = story.time("2 h");
    assert_told(
        &story.told(retry),
        &format!(
            "Attempt 2 of 6 is due now, before its own time, {at}, because the circuit breaker has closed."
        ),
    );
    let scheduled = story.delivery("next_attempt_at = now() + interval '2 h'");
    let told = story.told(scheduled);
    assert!(
        told.iter().any(|told| told.contains("is due in 2 hours")),
        "{told:#?}"
    );
}

#[test]
fn an_endpoint_that_fails_while_it_is_drained_says_both() {
    let mut story = Story::begin();
    let event = story.emit();
    story.breaker("ramp, consecutive_failures", "2, 3");
    let told = story.told(event);
    assert_not_told(&told, "recovered");
    assert_told(
        &told,
        "At most 2 at a time are sent to the endpoint until more have succeeded.",
    );
    assert_told(
        &told,
        "The endpoint has failed 3 times in a row; at 5 its circuit breaker opens.",
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

    story.run("UPDATE webhook.endpoint SET paused_at = now()");
    assert_not_told(&story.told(event), "at a time");
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
