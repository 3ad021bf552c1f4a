//! The circuit breaker end to end: each way from one state to another, the failures that count, and endpoints that
//! are switched off instead.

use std::time::Duration;

use webhook_e2e::{Database, Guarded, Receiver};

// From state to state.

#[test]
fn closed_opens_when_the_threshold_is_reached() {
    let guarded = Guarded::with("");
    guarded.answer(500);
    guarded.emit(2);
    guarded.wait_for_failures(2);
    assert_eq!(guarded.state(), "CLOSED");
    assert_eq!(guarded.status("state").as_deref(), Some("DEGRADED"));

    let last = guarded.emit(1)[0];
    guarded.wait_for_state("OPEN");
    assert_eq!(guarded.failures(), 3);
    assert_eq!(guarded.breaker("trips").as_deref(), Some("1"));
    assert_eq!(guarded.status("state").as_deref(), Some("OPEN"));
    assert_eq!(guarded.status("reason").as_deref(), Some("status"));
    assert_eq!(guarded.status("last_error").as_deref(), Some("HTTP 500"));
    let since_the_last_attempt = format!(
        "opened_at = (SELECT finished_at FROM webhook.attempt WHERE event_id = '{last}') AND last_failure_at = opened_at
         AND probe_at = opened_at + interval '1 h'"
    );
    assert_eq!(
        guarded.breaker(&since_the_last_attempt).as_deref(),
        Some("true")
    );
}

#[test]
fn a_success_resets_the_counter() {
    let guarded = Guarded::with("");
    for _ in 0..2 {
        guarded.answer(500);
        guarded.emit(2);
        guarded.wait_for_failures(2);
        guarded.answer(200);
        guarded.emit(1);
        guarded.wait_for_failures(0);
    }
    assert_eq!(guarded.state(), "CLOSED");
    assert_eq!(guarded.status("state").as_deref(), Some("ACTIVE"));
}

#[test]
fn open_sends_nothing_at_all() {
    let guarded = Guarded::with("");
    guarded.open();
    let sent = guarded.requests().len();
    guarded.emit(20);
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), sent);
    assert_eq!(guarded.state(), "OPEN");
    assert_eq!(guarded.status("kept_back").as_deref(), Some("20"));
    assert_eq!(guarded.status("in_flight").as_deref(), Some("0"));
}

#[test]
fn after_the_cooldown_one_probe_goes_out() {
    let guarded = Guarded::with("");
    guarded.hold_after_the_failures();
    guarded.open();
    let oldest = guarded.emit(1)[0];
    guarded.emit(20);
    let over_at = guarded.let_the_time_run_out();
    let probe = guarded.wait_for_requests(4).remove(3);
    assert_eq!(guarded.state(), "HALF_OPEN");
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 4);
    assert_eq!(probe.event_id(), oldest, "it has waited longest");
    assert_eq!(
        guarded.breaker("probe_event_id"),
        Some(probe.event_id().to_string())
    );
    let claimed = "FROM webhook.delivery WHERE event_id = b.probe_event_id";
    let waited = guarded.breaker(&format!("SELECT claimed_at >= '{over_at}' {claimed}"));
    assert_eq!(waited.as_deref(), Some("true"));
    let lease = guarded.breaker(&format!("SELECT probe_at - claimed_at {claimed}"));
    assert_eq!(
        lease.as_deref(),
        Some("00:01:00"),
        "the timeouts of the policy"
    );
}

#[test]
fn a_probe_that_succeeds_closes() {
    let guarded = Guarded::with("");
    let mut events = guarded.open();
    events.extend(guarded.emit(10));
    guarded.let_the_time_pass();
    guarded.wait_for_status(&events, "SENT");
    assert_eq!(guarded.state(), "CLOSED");
    let reset = "consecutive_failures = 0 AND trips = 0 AND num_nonnulls(opened_at, probe_at, probe_event_id) = 0";
    assert_eq!(guarded.breaker(reset).as_deref(), Some("true"));
    assert_eq!(guarded.status("state").as_deref(), Some("ACTIVE"));
    assert_eq!(guarded.status("reason"), None);
}

#[test]
fn a_probe_that_fails_reopens_at_once_with_a_doubled_cooldown_up_to_the_longest() {
    let guarded = Guarded::with("cooldown = '120 ms', max_cooldown = '300 ms'");
    record_transitions(&guarded.database);
    guarded.answer(500);
    guarded.emit(3);
    guarded
        .database
        .wait_until("SELECT coalesce(max(trips) >= 4, false) FROM webhook.breaker");

    let openings =
        "SELECT string_agg(format('%s failures: %s', failures, cooldown), ', ' ORDER BY id)
                    FROM transition WHERE state = 'OPEN' AND trips <= 4";
    assert_eq!(
        guarded.database.query_one_value::<String>(openings),
        "3 failures: 00:00:00.12, 4 failures: 00:00:00.24, 5 failures: 00:00:00.3, 6 failures: 00:00:00.3"
    );
    let requests = guarded.wait_for_requests(6);
    for (place, cooldown) in [(3, 120), (4, 240), (5, 300)] {
        let waited = requests[place].arrived - requests[place - 1].arrived;
        assert!(waited >= Duration::from_millis(cooldown), "{waited:?}");
    }
}

#[test]
fn recovery_keeps_the_counter_so_one_failure_reopens() {
    let guarded = Guarded::with("");
    record_transitions(&guarded.database);
    guarded.open();
    guarded.answer(500);
    guarded.let_the_time_pass();
    guarded
        .database
        .wait_until("SELECT trips = 2 FROM webhook.breaker");
    let moves = "SELECT string_agg(DISTINCT state || ' ' || failures, ', ' ORDER BY state || ' ' || failures DESC)
                 FROM transition WHERE state <> 'CLOSED'";
    assert_eq!(
        guarded.database.query_one_value::<String>(moves),
        "OPEN 4, OPEN 3, HALF_OPEN 3"
    );
    assert_eq!(guarded.requests().len(), 4);
}

#[test]
fn once_closed_it_takes_the_whole_threshold_and_the_first_cooldown_again() {
    let guarded = Guarded::with("cooldown = '1 min'");
    let events = guarded.open();
    guarded.answer(500);
    guarded.let_the_time_pass();
    guarded
        .database
        .wait_until("SELECT trips = 2 FROM webhook.breaker");
    guarded.answer(200);
    guarded.let_the_time_pass();
    guarded.wait_for_status(&events, "SENT");

    guarded.answer(500);
    guarded.emit(2);
    guarded.wait_for_failures(2);
    assert_eq!(guarded.state(), "CLOSED");
    guarded.emit(1);
    guarded.wait_for_state("OPEN");
    let cooldown = guarded.breaker("probe_at - opened_at");
    assert_eq!(cooldown.as_deref(), Some("00:01:00"));
}

#[test]
fn a_person_closes_it_with_webhook_reset_breaker() {
    let guarded = Guarded::with("");
    let mut events = guarded.open();
    events.extend(guarded.emit(10));
    guarded.let_the_worker_look();
    guarded
        .database
        .execute("SELECT webhook_reset_breaker('orders')");
    guarded.wait_for_status(&events, "SENT");
    assert_eq!(guarded.state(), "CLOSED");
    assert_eq!(guarded.failures(), 0);
}

// The failures that count.

#[test]
fn every_failed_attempt_counts_under_attempts() {
    let guarded = Guarded::with("breaker_counts = 'attempts', initial_delay = '10 ms'");
    guarded.answer(500);
    let event = guarded.emit(1)[0];
    guarded.wait_for_state("OPEN");
    assert_eq!(guarded.received(), [event; 3]);
}

#[test]
fn only_failures_for_good_count_under_final() {
    let guarded =
        Guarded::with("breaker_counts = 'final', initial_delay = '1 ms', max_attempts = 2");
    guarded.answer(500);
    let events = guarded.emit(2);
    guarded.wait_for_status(&events, "FAILED");
    assert_eq!(guarded.requests().len(), 4);
    assert_eq!(
        (guarded.failures(), guarded.state().as_str()),
        (2, "CLOSED")
    );
    let events = guarded.emit(1);
    guarded.wait_for_status(&events, "FAILED");
    assert_eq!((guarded.failures(), guarded.state().as_str()), (3, "OPEN"));
}

#[test]
fn final_includes_failures_that_were_never_retried() {
    let guarded = Guarded::with("breaker_counts = 'final'");
    guarded.answer(404);
    guarded.emit(3);
    guarded.wait_for_state("OPEN");
    assert_eq!(guarded.requests().len(), 3);
}

#[test]
fn a_retriable_failure_of_a_probe_reopens_under_final_too() {
    let guarded = Guarded::with("breaker_counts = 'final'");
    guarded.answer(404);
    guarded.emit(3);
    guarded.wait_for_state("OPEN");
    guarded.answer(500);
    let probe = guarded.emit(1)[0];
    guarded.let_the_time_pass();
    guarded
        .database
        .wait_until("SELECT trips = 2 FROM webhook.breaker");
    assert_eq!(guarded.state(), "OPEN");
    guarded.assert_status(&[probe], "PENDING");
}

#[test]
fn an_endpoint_that_does_not_answer_opens_it_as_well() {
    let guarded = Guarded::with("");
    let closed = Receiver::closed_url();
    guarded.database.execute(&format!(
        "UPDATE webhook.endpoint SET url = '{closed}' WHERE name = 'orders'"
    ));
    guarded.emit(3);
    guarded.wait_for_state("OPEN");
    let reason = guarded.breaker("reason = 'connect' AND last_error LIKE '%refused%'");
    assert_eq!(reason.as_deref(), Some("true"));
}

#[test]
fn a_threshold_of_0_never_opens_but_counts() {
    let guarded = Guarded::with("failure_threshold = 0");
    guarded.answer(500);
    for count in 1..=8 {
        guarded.emit(1);
        guarded.wait_for_failures(count);
    }
    assert_eq!(guarded.state(), "CLOSED");
    assert_eq!(guarded.status("state").as_deref(), Some("DEGRADED"));
    assert_eq!(guarded.status("consecutive_failures").as_deref(), Some("8"));
    guarded.answer(200);
    guarded.emit(1);
    guarded.wait_for_failures(0);
    assert_eq!(guarded.status("state").as_deref(), Some("ACTIVE"));
}

#[test]
fn switched_off_while_it_is_open_it_ends_with_the_next_probe_whatever_that_finds() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.answer(500);
    let kept_back = guarded.emit(5);
    guarded
        .database
        .execute("UPDATE webhook.policy SET failure_threshold = 0 WHERE name = 'guarded'");
    guarded.let_the_time_pass();
    for event in &kept_back {
        guarded.database.wait_until(&format!(
            "SELECT EXISTS (SELECT FROM webhook.attempt WHERE event_id = '{event}')"
        ));
    }
    assert_eq!(guarded.state(), "CLOSED");
    // Waits until all deliveries that were brought forward have failed too, and wait.
    guarded.database.wait_until(
        "SELECT retries_before IS NULL AND NOT EXISTS (SELECT FROM webhook.delivery WHERE status = 'SENDING') FROM webhook.breaker",
    );
    guarded.answer(200);
    guarded
        .database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'");
    guarded.wait_for_status(&kept_back, "SENT");
}

#[test]
fn a_deleted_event_is_no_failure_of_its_endpoint() {
    let guarded = Guarded::with("");
    guarded.database.execute("SELECT webhook_pause('orders')");
    let deleted = guarded.emit(5);
    guarded
        .database
        .execute("DELETE FROM webhook.event WHERE event_type = 'order.created'");
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = NULL");
    guarded.wait_for_status(&deleted, "FAILED");
    assert_eq!(guarded.failures(), 0);
    let event = guarded.emit(1);
    guarded.wait_for_status(&event, "SENT");
}

#[test]
fn a_probe_whose_event_was_deleted_makes_room_for_another() {
    let guarded = Guarded::with("");
    let deleted = guarded.open();
    guarded
        .database
        .execute("DELETE FROM webhook.event WHERE event_type = 'order.created'");
    // They have waited longest.
    guarded
        .database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'");
    let event = guarded.emit(1);
    guarded.let_the_time_pass();
    guarded.wait_for_status(&event, "SENT");
    guarded.assert_status(&deleted, "FAILED");
}

// Switched off instead of opened.

#[test]
fn on_trip_disable_disables_until_somebody_resumes() {
    let guarded = Guarded::with("on_trip = 'disable'");
    guarded.answer(500);
    let mut events = guarded.emit(3);
    guarded.database.wait_until(
        "SELECT coalesce(disabled_reason = 'tripped' AND disabled_at IS NOT NULL, false) FROM webhook.endpoint WHERE name = 'orders'",
    );
    assert_eq!(guarded.status("state").as_deref(), Some("DISABLED"));
    events.extend(guarded.emit(5));
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 3);

    guarded.answer(200);
    guarded.database.execute("SELECT webhook_resume('orders')");
    guarded.wait_for_status(&events, "SENT");
    assert_eq!(guarded.status("state").as_deref(), Some("ACTIVE"));
}

#[test]
fn enabled_by_a_plain_update_one_failure_disables_again() {
    let guarded = Guarded::with("on_trip = 'disable'");
    guarded.answer(500);
    guarded.emit(3);
    let disabled = "SELECT coalesce(disabled_reason = 'tripped', false) FROM webhook.endpoint WHERE name = 'orders'";
    guarded.database.wait_until(disabled);
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET disabled_at = NULL, disabled_reason = NULL");
    guarded.emit(1);
    guarded.database.wait_until(disabled);
    assert_eq!(guarded.requests().len(), 4);
}

#[test]
fn on_exhausted_disable_is_about_exhaustion_not_about_a_final_failure() {
    let guarded = Guarded::with(
        "failure_threshold = 0, on_exhausted = 'disable', max_attempts = 2, initial_delay = '1 ms'",
    );
    guarded.answer(404);
    let refused = guarded.emit(3);
    guarded.wait_for_status(&refused, "FAILED");
    assert_eq!(guarded.status("state").as_deref(), Some("DEGRADED"));

    guarded.answer(500);
    let exhausted = guarded.emit(1);
    guarded.wait_for_status(&exhausted, "FAILED");
    assert_eq!(guarded.status("state").as_deref(), Some("DISABLED"));
    assert_eq!(guarded.status("reason").as_deref(), Some("exhausted"));
    let kept_back = guarded.emit(1);
    guarded.let_the_worker_look();
    guarded.assert_status(&kept_back, "PENDING");
}

#[test]
fn a_disable_status_disables_with_reason_gone() {
    let guarded = Guarded::with("");
    guarded.answer(410);
    let gone = guarded.emit(1);
    guarded.wait_for_status(&gone, "FAILED");
    assert_eq!(guarded.status("state").as_deref(), Some("DISABLED"));
    assert_eq!(guarded.status("reason").as_deref(), Some("gone"));
    let kept_back = guarded.emit(1);
    guarded.let_the_worker_look();
    guarded.assert_status(&kept_back, "PENDING");
    assert_eq!(guarded.requests().len(), 1);
}

#[test]
fn a_probe_may_find_the_endpoint_gone() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.answer(410);
    guarded.let_the_time_pass();
    guarded.database.wait_until(
        "SELECT state = 'DISABLED' FROM webhook.endpoint_status WHERE endpoint = 'orders'",
    );
    assert_eq!(guarded.status("reason").as_deref(), Some("gone"));
    guarded.let_the_time_pass();
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 4, "disabled is more than open");
}

/// Every version of a breaker's row, in `transition`.
fn record_transitions(database: &Database) {
    database.execute(
        "CREATE TABLE transition (id serial, state text, failures int, trips int, cooldown interval);
         GRANT INSERT ON transition TO webhook_owner; GRANT USAGE ON SEQUENCE transition_id_seq TO webhook_owner;
         CREATE FUNCTION record_transition() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO public.transition (state, failures, trips, cooldown)
             VALUES (NEW.state, NEW.consecutive_failures, NEW.trips, NEW.probe_at - NEW.last_failure_at);
             RETURN NULL;
         END $$;
         CREATE TRIGGER record AFTER INSERT OR UPDATE ON webhook.breaker FOR EACH ROW EXECUTE FUNCTION record_transition()",
    );
}
