//! `webhook_why()` of an endpoint, and of an obstacle to its deliveries: the state, and the remedy.

use webhook_e2e::story::{Story, assert_not_told, assert_told};

/// The sentences that both the event and the endpoint have about the same state.
#[track_caller]
fn told_of_both(story: &mut Story, event: uuid::Uuid, facts: &[&str]) {
    assert_told(&story.told(event), facts);
    assert_told(&story.told("shop"), facts);
}

#[test]
fn a_stopped_endpoint_says_since_when_why_and_how_to_resume_it() {
    let mut story = Story::begin();
    let resume = "SELECT webhook_resume('shop')";
    let test = "CALL webhook_test('shop')";
    for (stop, facts, state) in [
        (
            "paused_at = now() - interval '1 h'",
            &["paused", resume][..],
            "PAUSED",
        ),
        (
            "disabled_at = now() - interval '1 h', disabled_reason = 'gone'",
            &["disabled", "410", "disable_status", resume],
            "DISABLED",
        ),
        (
            "disabled_at = now() - interval '1 h', disabled_reason = 'exhausted'",
            &["disabled", "on_exhausted = disable", resume, test],
            "DISABLED",
        ),
        (
            "disabled_at = now() - interval '1 h', disabled_reason = 'tripped'",
            &["disabled", "failure_threshold", "on_trip = disable", resume],
            "DISABLED",
        ),
        (
            "disabled_at = now() - interval '1 h', disabled_reason = 'their contract ended'",
            &["disabled", "their contract ended", resume],
            "DISABLED",
        ),
    ] {
        story.rewind();
        story.run(&format!("UPDATE webhook.endpoint SET {stop}"));
        let event = story.emit();
        let since = story.time("-1 h");
        told_of_both(&mut story, event, &[facts, &[&since]].concat());
        told_of_both(&mut story, event, &["kept back", "7 days", "hold_for"]);
        assert_told(&story.told(event), &["Attempt 1 of 10 waits until then."]);
        assert_told(&story.told("shop"), &["\"shop\" is ", state]);
        assert_told(
            &story.told("shop"),
            &["that wait: 1 (", &state.to_lowercase()],
        );

        let later = story.delivery("next_attempt_at = now() + interval '4 min'");
        let own_time = ["waits until then", "its own time", &story.time("4 min")];
        assert_told(&story.told(later), &own_time);
        // A failed delivery says why it cannot be replayed, but a sent one is done.
        let failed = story.delivery(
            "status = 'FAILED', reason = 'status', last_error = 'HTTP 500', completed_at = now()",
        );
        assert_told(&story.told(failed), facts);
        let sent = story.delivery("status = 'SENT', last_status_code = 200, completed_at = now()");
        assert_not_told(&story.told(sent), "webhook_resume");
    }
}

#[test]
fn an_endpoint_of_another_installation_is_held() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    let event = story.emit();
    let adopt = "SELECT webhook_adopt()";
    told_of_both(&mut story, event, &["held", "1 of 1 endpoints", adopt]);
    told_of_both(
        &mut story,
        event,
        &["The endpoint belongs to another installation", adopt],
    );
    assert_told(&story.told(event), &["Attempt 1 of 10 waits until then."]);

    story.run("SELECT webhook_adopt()");
    let told = story.told(event);
    assert_not_told(&told, "another installation");
    assert_not_told(&told, "waits");
}

const OPEN: &str =
    "state, consecutive_failures, trips, opened_at, last_error, last_failure_at, probe_at";
const OPENED: &str = "'OPEN', 5, 1, now() - interval '20 s', 'HTTP 503', now() - interval '20 s', now() + interval '40 s'";

#[test]
fn an_open_breaker_says_since_when_until_when_and_what_happens_meanwhile() {
    let mut story = Story::begin();
    for (policy, meanwhile, waits) in [
        (
            "when_open = 'hold'",
            &["kept back", "7 days", "when_open = hold"][..],
            true,
        ),
        (
            "when_open = 'hold', hold_for = NULL",
            &["kept back (when_open = hold)"],
            true,
        ),
        (
            "when_open = 'skip'",
            &["skipped", "when_open = skip"],
            false,
        ),
        (
            "when_open = 'fail'",
            &["fail as \"circuit open\"", "when_open = fail"],
            false,
        ),
        (
            "when_open = 'attempt'",
            &["counts", "when_open = attempt"],
            false,
        ),
    ] {
        story.rewind();
        story.policy(policy);
        let event = story.emit();
        story.breaker(OPEN, OPENED);
        let opened = ["open since", &story.time("-20 s"), "5 failures", "HTTP 503"];
        told_of_both(&mut story, event, &opened);
        let probe = ["probe", "in 40 seconds", &story.time("40 s")];
        told_of_both(&mut story, event, &probe);
        let reset = ["opens again", "SELECT webhook_reset_breaker('shop')"];
        told_of_both(&mut story, event, &reset);
        told_of_both(&mut story, event, &[&["Meanwhile"], meanwhile].concat());
        let next = if waits {
            "waits until then"
        } else {
            "is due now"
        };
        assert_told(&story.told(event), &["Attempt 1 of 10", next]);
        assert_told(&story.told("shop"), &["\"shop\" is OPEN"]);
    }
}

#[test]
fn what_is_not_skipped_waits_for_the_breaker() {
    let mut story = Story::begin();
    story.policy("when_open = 'skip'");
    let before = story.delivery("created_at = now() - interval '30 s'");
    story.breaker(OPEN, OPENED);
    let again = story.delivery(
        "status = 'CANCELLED', reason = 'skipped', last_error = 'skipped', completed_at = now()",
    );
    let replay = format!("SELECT webhook_replay('{again}', 'shop')");
    assert_told(&story.told(again), &[&replay]);
    story.run(&replay);
    for event in [before, again] {
        assert_told(&story.told(event), &["Attempt 1 of 10 waits until then."]);
    }
}

#[test]
fn a_stopped_endpoint_whose_breaker_is_open_promises_no_probe() {
    let mut story = Story::begin();
    for stop in [
        "paused_at = now()",
        "disabled_at = now(), disabled_reason = 'gone'",
        "origin = 'elsewhere'",
    ] {
        story.rewind();
        story.policy("when_open = 'fail'");
        let event = story.emit();
        story.breaker(OPEN, OPENED);
        story.run(&format!("UPDATE webhook.endpoint SET {stop}"));
        let told = story.told(event);
        assert_not_told(&told, "probe");
        assert_not_told(&told, "circuit open");
        assert_told(&told, &["Attempt 1 of 10 waits until then."]);
    }
}

#[test]
fn a_breaker_says_what_its_probe_will_do_to_it() {
    let mut story = Story::begin();
    story.policy("failure_threshold = 0");
    let event = story.emit();
    story.breaker(OPEN, OPENED);
    told_of_both(
        &mut story,
        event,
        &[
            "if it fails the breaker closes too",
            "failure_threshold = 0",
        ],
    );

    story.rewind();
    let event = story.emit();
    let due = "'OPEN', 1, 1, now() - interval '60 s', NULL, NULL, now()";
    story.breaker(OPEN, due);
    let opened = ["open since", &story.time("-60 s"), "after a failure."];
    told_of_both(&mut story, event, &opened);
    told_of_both(&mut story, event, &["until a probe", "due now"]);
}

#[test]
fn a_half_open_breaker_names_its_probe_and_its_time() {
    let mut story = Story::begin();
    for (lease, until) in [("'15 s'", "15 s"), ("'-5 s'", "-5 s")] {
        story.rewind();
        let waiting = story.emit();
        let probe = story.delivery(
            "status = 'SENDING', attempts = 1, claimed_by = 1, claimed_at = now(), claim_seq = 1",
        );
        story.breaker(
            "state, consecutive_failures, trips, opened_at, probe_at, probe_event_id, probe_claim_seq",
            &format!("'HALF_OPEN', 5, 1, now(), now() + interval {lease}, '{probe}', 1"),
        );
        let (named, until_time) = (format!("event {probe} is the probe"), story.time(until));
        told_of_both(&mut story, waiting, &["half open", &named, &until_time]);
        assert_told(&story.told("shop"), &["In flight: 1"]);
        if until == "15 s" {
            assert_told(
                &story.told(waiting),
                &["opens again", "webhook_reset_breaker"],
            );
            assert_told(&story.told(waiting), &["Attempt 1 of 10 waits until then."]);
            assert_told(
                &story.told(probe),
                &["this delivery is the probe", &until_time],
            );
            continue;
        }
        // It has not ended in time: its result is awaited while it is in flight, and then given up.
        assert_told(&story.told(waiting), &[&named, "awaited"]);
        assert_not_told(&story.told(waiting), "until a probe");
        let shop = story.shop;
        story.run(&format!(
            "SELECT webhook.finish_queued(ARRAY['{probe}'::uuid], '{{{shop}}}', 'CANCELLED', 'cancelled')"
        ));
        told_of_both(&mut story, waiting, &[&named, "has no result"]);
        told_of_both(&mut story, waiting, &["until a probe", "due now"]);
    }
}

#[test]
fn a_breaker_that_has_closed_says_how_its_endpoint_is_drained() {
    let mut story = Story::begin();
    let retry = story.delivery(
        "attempts = 1, wait_reason = 'retry', last_attempt_at = now() - interval '1 min', next_attempt_at = now() + interval '2 h'",
    );
    story.breaker("retries_before", "now() - interval '10 s'");
    let forward = [
        "Attempt 2 of 10 is due now",
        &story.time("2 h"),
        "breaker has closed",
    ];
    assert_told(&story.told(retry), &forward);
    let scheduled = story.delivery("next_attempt_at = now() + interval '2 h'");
    assert_told(&story.told(scheduled), &["due in 2 hours"]);
    assert_not_told(&story.told(scheduled), "waits");

    story.rewind();
    let event = story.emit();
    story.breaker("consecutive_failures", "3");
    told_of_both(
        &mut story,
        event,
        &[
            "The last 3 attempts failed",
            "after 5 failures in a row its circuit breaker opens",
        ],
    );
}

#[test]
fn an_endpoint_that_fails_says_how_near_its_breaker_is() {
    let mut story = Story::begin();
    for (policy, failures, facts) in [
        (
            "failure_threshold = 5",
            1,
            &[
                "The last attempt failed, at",
                "after 5 failures in a row its circuit breaker opens",
            ][..],
        ),
        (
            "failure_threshold = 5",
            4,
            &[
                "The last 4 attempts failed",
                "after 5 failures in a row its circuit breaker opens",
            ],
        ),
        (
            "failure_threshold = 50, on_trip = 'disable'",
            2,
            &[
                "The last 2 attempts failed",
                "after 50 failures in a row it is disabled",
            ],
        ),
        ("failure_threshold = 0", 7, &["The last 7 attempts failed"]),
    ] {
        story.rewind();
        story.policy(policy);
        let event = story.emit();
        let values = format!("{failures}, now() - interval '3 s'");
        story.breaker("consecutive_failures, last_failure_at", &values);
        let last = story.time("-3 s");
        told_of_both(&mut story, event, &[facts, &[&last]].concat());
        assert_told(&story.told("shop"), &["\"shop\" is DEGRADED"]);
    }
    story.rewind();
    let event = story.emit();
    story.breaker("consecutive_failures", "0");
    assert_not_told(&story.told(event), "The last");
}

#[test]
fn a_test_is_sent_whatever_the_state() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET paused_at = now()");
    let event = story.emit();
    story.breaker("test_event_id", &format!("'{event}'"));
    let told = story.told(event);
    assert_told(&told, &["is a test"]);
    assert_not_told(&told, "waits");
}

#[test]
fn an_endpoint_says_what_waits_what_failed_and_what_to_call() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET event_types = '{order.*}', tenant = NULL");
    let told = story.told("shop");
    assert_told(&told, &["\"shop\" is ACTIVE", "order.*", "\"standard\""]);
    assert_told(&told, &["Nothing waits"]);
    assert_not_told(&told, "Dead letters");

    story.delivery("attempts = 1, wait_reason = 'retry', last_error = 'HTTP 503', next_attempt_at = now() + interval '4 min'");
    story.delivery("attempts = 1, wait_reason = 'retry', last_error = 'HTTP 503', next_attempt_at = now() + interval '9 min'");
    story.delivery("next_attempt_at = now() - interval '1 s'");
    let failed = story.delivery(
        "status = 'FAILED', reason = 'status', attempts = 10, last_error = 'HTTP 410', completed_at = now() - interval '1 h'",
    );
    let told = story.told("shop");
    assert_told(
        &told,
        &["that wait: 3 (", "2 retry", "1 due", "webhook.waiting"],
    );
    assert_told(&told, &["2 of them", "HTTP 503"]);
    assert_told(
        &told,
        &["Dead letters: 1", "CALL webhook_replay_all('shop')"],
    );
    let last = [
        &*failed.to_string(),
        &story.time("-1 h"),
        "10 of 10",
        "HTTP 410",
    ];
    assert_told(&told, &last);

    story.run("SELECT webhook_remove_endpoint('shop')");
    let told = story.told("shop");
    assert_told(&told, &["\"shop\" was removed", &story.time("0")]);
    assert_told(
        &told,
        &["Dead letters: 1", "DELETE FROM webhook.dead_letter"],
    );
}

#[test]
fn a_filter_that_can_never_match_a_watched_row_is_noticed() {
    let mut story = Story::begin();
    let orders = "CREATE TABLE public.watched_orders (id int, total int)";
    story.run(&format!(
        "RESET ROLE; {orders}; SELECT webhook_watch('public.watched_orders', 'order');
         UPDATE webhook.endpoint SET event_types = '{{order.*}}', filter = '$.data.total > 100';
         INSERT INTO public.watched_orders VALUES (7, 120)"
    ));
    let event: String = story
        .client
        .query_one("SELECT id::text FROM webhook.event", &[])
        .unwrap()
        .get(0);
    for (filter, column) in [
        ("$.data.total > 100", "total"),
        ("exists($.data ? (@.total > 100))", "total"),
        ("strict $.data.id == 7 && $.type == \"order.created\"", "id"),
    ] {
        story.run(&format!("UPDATE webhook.endpoint SET filter = '{filter}'"));
        let remedy = format!("$.data.record.{column}");
        for about in [&*event, "shop"] {
            assert_told(&story.told(about), &["watched table", column, &remedy]);
        }
        assert_told(&story.told("shop"), &["1 match", "lets 0 of them pass"]);
    }
    // Filters that read the row, or that fail for another reason, are none of these.
    for (filter, passed) in [
        ("$.data.record.total > 1000", 0),
        ("$.data.record.total > 100", 1),
        ("$.data.colour == \"red\"", 0),
        ("$.data.table == \"others\"", 0),
    ] {
        story.run(&format!("UPDATE webhook.endpoint SET filter = '{filter}'"));
        for about in [&*event, "shop"] {
            assert_not_told(&story.told(about), "watched table");
        }
        let lets = format!("lets {passed} of them pass");
        assert_told(&story.told("shop"), &["1 match", &lets]);
    }
}
