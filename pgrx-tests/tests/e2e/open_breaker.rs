//! Deliveries of an endpoint whose breaker is open or that is paused: kept back, skipped, failed, charged an attempt;
//! and how long they are kept back.

use uuid::Uuid;
use webhook_e2e::{Guarded, worker};

// hold

#[test]
fn hold_keeps_everything_and_sends_it_in_order_when_the_breaker_closes() {
    let guarded = Guarded::with("when_open = 'hold'");
    let waiting = guarded.open();
    // One at a time, so that the order of arrival is that of sending.
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET max_in_flight = 1 WHERE name = 'orders'");
    let kept_back = guarded.emit(10);
    guarded.let_the_worker_look();
    guarded.assert_status(&kept_back, "PENDING");
    let untouched = "SELECT count(*) FROM webhook.delivery WHERE status = 'PENDING' AND attempts = 0 AND last_error IS NULL";
    assert_eq!(guarded.database.query_one_value::<i64>(untouched), 10);

    guarded.let_the_time_pass();
    guarded.wait_for_status(&kept_back, "SENT");
    guarded.wait_for_status(&waiting, "SENT");
    let (mut sent, retried) = (guarded.received(), waiting.len());
    sent.drain(..retried);
    sent.retain(|event| !waiting.contains(event));
    assert_eq!(sent, kept_back);
}

// skip

#[test]
fn skip_cancels_what_is_emitted_while_open() {
    let guarded = Guarded::with("when_open = 'skip'");
    guarded.open();
    let skipped = guarded.emit(5);
    guarded.wait_for_status(&skipped, "CANCELLED");
    let recorded = "SELECT count(*) FROM webhook.delivery_history
                    WHERE status = 'CANCELLED' AND last_error = 'skipped' AND attempts = 0 AND completed_at IS NOT NULL";
    assert_eq!(guarded.database.query_one_value::<i64>(recorded), 5);
    assert_eq!(guarded.requests().len(), 3);
    assert_eq!(guarded.state(), "OPEN");
}

#[test]
fn skip_holds_what_was_queued_before_and_sends_it_later() {
    let guarded = Guarded::with("when_open = 'skip'");
    let scheduled: Uuid = guarded.database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    );
    let waiting = guarded.open();
    // Its time comes while the breaker is open.
    guarded.database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = now() WHERE event_id = '{scheduled}'"
    ));
    let skipped = guarded.emit(1);
    guarded.wait_for_status(&skipped, "CANCELLED");
    guarded.assert_status(&waiting, "PENDING");
    guarded.assert_status(&[scheduled], "PENDING");

    guarded.let_the_time_pass();
    guarded.wait_for_status(&waiting, "SENT");
    guarded.wait_for_status(&[scheduled], "SENT");
    guarded.assert_status(&skipped, "CANCELLED");
}

#[test]
fn skip_holds_what_a_person_sends_again_while_open() {
    let guarded = Guarded::with("when_open = 'skip'");
    guarded.open();
    // Refused for good as the probe: a dead letter that was emitted after the breaker had opened.
    guarded.answer(400);
    guarded.database.execute(
        "UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE status = 'PENDING'",
    );
    guarded.let_the_time_pass();
    let failed = guarded.emit(1);
    guarded.wait_for_status(&failed, "FAILED");
    guarded.wait_for_state("OPEN");
    guarded.answer(200);
    let skipped = guarded.emit(2);
    guarded.wait_for_status(&skipped, "CANCELLED");

    let again = [
        format!("SELECT webhook_replay('{}')", failed[0]),
        format!("SELECT webhook_replay('{}')", skipped[0]),
        format!(
            "UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '{}'",
            skipped[1]
        ),
    ];
    guarded.database.execute(&again.join(";"));
    guarded.let_the_worker_look();
    let held = [failed, skipped].concat();
    guarded.assert_status(&held, "PENDING");
    guarded.let_the_time_pass();
    guarded.wait_for_status(&held, "SENT");
}

#[test]
fn skip_goes_on_while_the_probe_is_out() {
    let guarded = Guarded::with("when_open = 'skip'");
    guarded.open();
    guarded.hold_after_the_failures();
    guarded.let_the_time_pass();
    guarded.wait_for_requests(4);
    let skipped = guarded.emit(3);
    guarded.wait_for_status(&skipped, "CANCELLED");
    assert_eq!(guarded.requests().len(), 4);
    assert_eq!(guarded.state(), "HALF_OPEN");
}

#[test]
fn skip_recovers_by_itself_with_nothing_kept_back() {
    assert_recovers_by_itself("skip");
}

// fail

#[test]
fn fail_sends_everything_that_is_due_to_the_dead_letters() {
    let guarded = Guarded::with("when_open = 'fail'");
    let waiting = guarded.open();
    let failed = guarded.emit(5);
    guarded.wait_for_status(&failed, "FAILED");
    let recorded = "SELECT count(*) FROM webhook.dead_letter WHERE last_error = 'circuit open' AND attempts = 0";
    assert_eq!(guarded.database.query_one_value::<i64>(recorded), 5);
    assert_eq!(guarded.requests().len(), 3);
    guarded.assert_status(&waiting, "PENDING");
}

#[test]
fn fail_takes_retries_and_scheduled_deliveries_when_their_time_comes() {
    let guarded = Guarded::with("when_open = 'fail'");
    let mut events = vec![guarded.database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    )];
    events.extend(guarded.open());
    guarded.let_the_worker_look();
    guarded.assert_status(&events, "PENDING");
    guarded.database.execute(
        "UPDATE webhook.delivery SET next_attempt_at = now() + interval '200 ms' WHERE status = 'PENDING'",
    );
    guarded.wait_for_status(&events, "FAILED");
    assert_eq!(guarded.requests().len(), 3);
    let last_errors = "SELECT string_agg(DISTINCT last_error, ',') FROM webhook.dead_letter";
    assert_eq!(
        guarded.database.query_one_value::<String>(last_errors),
        "circuit open"
    );
}

#[test]
fn fail_recovers_by_itself_with_nothing_kept_back() {
    assert_recovers_by_itself("fail");
}

#[test]
fn fail_takes_thousands_at_once() {
    let guarded = Guarded::with("when_open = 'fail'");
    guarded.open();
    guarded.emit(3000);
    guarded
        .database
        .wait_until("SELECT count(*) = 3000 FROM webhook.dead_letter");
    assert_eq!(guarded.requests().len(), 3);
}

#[test]
fn fail_does_not_wait_for_a_person_who_has_locked_a_delivery() {
    let guarded = Guarded::with("when_open = 'fail'");
    guarded.open();
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'orders'");
    let events = guarded.emit(3);
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    let lock = "SELECT FROM webhook.delivery WHERE event_id = $1 FOR UPDATE";
    transaction.execute(lock, &[&events[0]]).unwrap();
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'orders'");
    guarded.wait_for_status(&events[1..], "FAILED");
    guarded.let_the_worker_look();
    guarded.assert_status(&events[..1], "PENDING");
    transaction.rollback().unwrap();
    guarded.wait_for_status(&events, "FAILED");
}

#[test]
fn what_cannot_be_failed_keeps_nobody_back() {
    let guarded = Guarded::with("when_open = 'fail'");
    guarded.open();
    guarded.database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no dead letters'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON webhook.dead_letter FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let refused = guarded.emit(1);
    guarded
        .database
        .wait_until("SELECT coalesce(last_error = 'no dead letters', false) FROM webhook_status()");
    for _ in 0..5 {
        guarded.let_the_worker_look();
    }
    guarded.assert_status(&refused, "PENDING");
    guarded
        .database
        .execute("DROP TRIGGER refuse ON webhook.dead_letter");
    guarded.wait_for_status(&refused, "FAILED");
}

#[track_caller]
fn assert_recovers_by_itself(when_open: &str) {
    let guarded = Guarded::with(&format!("when_open = '{when_open}'"));
    guarded.open();
    guarded
        .database
        .execute("UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING'");
    guarded.let_the_time_pass();
    guarded.let_the_worker_look();
    assert_eq!(guarded.state(), "OPEN", "there is nothing to send");

    guarded.answer(500);
    guarded.emit(1);
    guarded
        .database
        .wait_until("SELECT trips = 2 FROM webhook.breaker");
    guarded
        .database
        .execute("UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING'");
    guarded.answer(200);
    guarded.let_the_time_pass();
    let probe = guarded.emit(1);
    guarded.wait_for_status(&probe, "SENT");
    guarded.wait_for_state("CLOSED");
    let more = guarded.emit(5);
    guarded.wait_for_status(&more, "SENT");
}

// attempt

#[test]
fn attempt_costs_one_attempt_each_time_until_the_last() {
    let guarded = Guarded::with("when_open = 'attempt', max_attempts = 3");
    guarded.open();
    // The deliveries that opened it wait an hour.
    guarded
        .database
        .execute("UPDATE webhook.policy SET initial_delay = '20 ms' WHERE name = 'guarded'");
    let event = guarded.emit(1)[0];
    guarded.wait_for_status(&[event], "FAILED");
    assert_eq!(guarded.requests().len(), 3, "those that opened it");
    let row = format!(
        "SELECT format('%s %s %s', attempts, claim_seq, last_error) FROM webhook.dead_letter WHERE event_id = '{event}'"
    );
    assert_eq!(
        guarded.database.query_one_value::<String>(&row),
        "3 3 circuit open"
    );
    let log = format!(
        "SELECT string_agg(format('%s %s %s %s', attempt, verdict, reason, error), ', ' ORDER BY claim_seq)
         FROM webhook.attempt WHERE event_id = '{event}'"
    );
    assert_eq!(
        guarded.database.query_one_value::<String>(&log),
        "1 retry circuit_open circuit open, 2 retry circuit_open circuit open, 3 retry circuit_open circuit open"
    );
    assert_eq!(
        guarded.failures(),
        3,
        "failing fast is no failure of the endpoint"
    );
}

#[test]
fn attempt_applies_the_backoff_and_what_waits_is_sent_when_the_breaker_closes() {
    let guarded = Guarded::with("when_open = 'attempt', initial_delay = '1 h'");
    let mut events = guarded.open();
    let event = guarded.emit(1)[0];
    guarded.database.wait_until(&format!(
        "SELECT attempts = 1 AND status = 'PENDING' FROM webhook.delivery WHERE event_id = '{event}'"
    ));
    let wait: String = guarded.database.query_one_value(&format!(
        "SELECT (next_attempt_at - finished_at)::text FROM webhook.delivery JOIN webhook.attempt USING (event_id)
         WHERE event_id = '{event}'"
    ));
    assert_eq!(wait, "01:00:00");
    guarded.let_the_time_pass();
    events.push(event);
    guarded.wait_for_status(&events, "SENT");
    let arrived = guarded
        .requests()
        .into_iter()
        .find(|request| request.event_id() == event);
    assert_eq!(arrived.unwrap().header("x-webhook-retry"), "1");
}

#[test]
fn attempt_recovers_although_its_deliveries_run_out() {
    let guarded = Guarded::with("when_open = 'attempt', max_attempts = 2");
    let events = guarded.open();
    guarded
        .database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'");
    guarded.wait_for_status(&events, "FAILED");
    assert_eq!(guarded.requests().len(), 3, "those that opened it");
    guarded.let_the_time_pass();
    let probe = guarded.emit(1);
    guarded.wait_for_status(&probe, "SENT");
    guarded.wait_for_state("CLOSED");
}

// The source systems' own settings, with a shorter cooldown.

#[test]
fn patient_does_as_its_system_does() {
    let guarded = of_preset("patient");
    guarded.answer(404);
    guarded.emit(5);
    guarded.wait_for_state("OPEN");
    let skipped = guarded.emit(2);
    guarded.wait_for_status(&skipped, "CANCELLED");
    guarded.let_the_time_pass();
    guarded
        .database
        .wait_until("SELECT trips = 2 FROM webhook.breaker");
    assert_eq!(
        guarded.failures(),
        6,
        "one more failure disables it at once"
    );
    guarded.answer(200);
    guarded.let_the_time_pass();
    guarded.wait_for_failures(0);
    let sent = guarded.emit(1);
    guarded.wait_for_status(&sent, "SENT");
}

#[test]
fn transport_does_as_its_system_does() {
    let guarded = of_preset("transport");
    guarded.answer(500);
    let refused = guarded.emit(5);
    guarded.wait_for_status(&refused, "FAILED");
    guarded.wait_for_state("OPEN");
    let immediately = guarded.emit(2);
    guarded.wait_for_status(&immediately, "FAILED");
    assert_eq!(guarded.requests().len(), 5);
    guarded.answer(200);
    guarded.let_the_time_pass();
    let probe = guarded.emit(1);
    guarded.wait_for_status(&probe, "SENT");
    guarded.wait_for_state("CLOSED");
}

#[test]
fn bridge_does_as_its_system_does() {
    let guarded = of_preset("bridge");
    guarded.answer(500);
    guarded.emit(5);
    guarded.wait_for_state("OPEN");
    let event = guarded.emit(1)[0];
    // The next attempt is lost a second later.
    guarded.database.wait_until(&format!(
        "SELECT attempts >= 1 AND last_error = 'circuit open' FROM webhook.delivery WHERE event_id = '{event}'"
    ));
    assert!(!guarded.received().contains(&event));
    guarded.answer(200);
    guarded.let_the_time_pass();
    guarded.wait_for_status(&[event], "SENT");
}

fn of_preset(preset: &str) -> Guarded {
    let guarded = Guarded::with("");
    guarded.database.execute(&format!(
        "UPDATE webhook.endpoint SET policy = '{preset}' WHERE name = 'orders'"
    ));
    guarded
}

// A policy that changes.

#[test]
fn what_was_held_is_failed_when_the_policy_says_so() {
    let guarded = Guarded::with("when_open = 'hold'");
    guarded.open();
    let kept_back = guarded.emit(5);
    guarded.let_the_worker_look();
    guarded.assert_status(&kept_back, "PENDING");
    guarded
        .database
        .execute("UPDATE webhook.policy SET when_open = 'fail' WHERE name = 'guarded'");
    guarded.let_the_worker_look();
    guarded.wait_for_status(&kept_back, "FAILED");
}

#[test]
fn a_paused_endpoint_holds_whatever_its_policy_says() {
    for when_open in ["skip", "fail", "attempt"] {
        let guarded = Guarded::with(&format!("when_open = '{when_open}'"));
        guarded.open();
        guarded.database.execute("SELECT webhook_pause('orders')");
        let kept_back = guarded.emit(5);
        guarded.let_the_worker_look();
        guarded.assert_status(&kept_back, "PENDING");
        let attempts = "SELECT sum(attempts)::int FROM webhook.delivery WHERE event_type = 'order.created' AND created_at > (SELECT opened_at FROM webhook.breaker)";
        assert_eq!(guarded.database.query_one_value::<i32>(attempts), 0);
    }
}

// hold_for

#[test]
fn a_delivery_that_is_kept_back_for_too_long_goes_to_the_dead_letters() {
    for kept_back_by in [
        "UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'orders'",
        "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'by hand' WHERE name = 'orders'",
        "INSERT INTO webhook.breaker (endpoint_id, state, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 1, now(), now() + interval '1 h' FROM webhook.endpoint WHERE name = 'orders'",
    ] {
        let guarded = Guarded::with("hold_for = '50 ms'");
        guarded.database.execute(kept_back_by);
        let kept_back = guarded.emit(3);
        guarded.wait_for_status(&kept_back, "FAILED");
        let recorded = "SELECT count(*) FROM webhook.dead_letter WHERE last_error = 'expired' AND attempts = 0";
        assert_eq!(guarded.database.query_one_value::<i64>(recorded), 3);
        assert_eq!(guarded.requests().len(), 0);
    }
}

#[test]
fn only_what_has_been_due_and_kept_back_for_that_long_expires() {
    let guarded = Guarded::with("hold_for = '1 h'");
    guarded.database.execute(
        "INSERT INTO webhook.policy (name, hold_for) VALUES ('for_ever', NULL);
         INSERT INTO webhook.endpoint (name, url, event_types, policy, paused_at) VALUES
             ('patient', 'http://127.0.0.1:9/', '{order.*}', 'for_ever', now() - interval '900 days'),
             ('paused_lately', 'http://127.0.0.1:9/', '{order.*}', 'guarded', now() - interval '59 min');
         UPDATE webhook.endpoint SET paused_at = now() - interval '61 min' WHERE name = 'orders'",
    );
    let old = guarded.emit(1)[0];
    let young = guarded.emit(1)[0];
    let scheduled: Uuid = guarded.database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    );
    let put_off = guarded.emit(1)[0];
    guarded.database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = now() - interval '61 min' WHERE event_id = '{old}';
         UPDATE webhook.delivery SET next_attempt_at = now() - interval '59 min' WHERE event_id = '{young}';
         UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE event_id = '{put_off}'"
    ));
    let pid = worker::pid(&guarded.database);
    worker::signal(pid, libc::SIGHUP);
    guarded
        .database
        .wait_until("SELECT count(*) > 0 FROM webhook.dead_letter");
    let expired = "SELECT string_agg(format('%s %s', e.name, d.event_id), ',')
                   FROM webhook.dead_letter d JOIN webhook.endpoint e ON e.id = d.endpoint_id";
    assert_eq!(
        guarded.database.query_one_value::<String>(expired),
        format!("orders {old}")
    );
    let queued = format!(
        "SELECT count(*) FROM webhook.delivery WHERE status = 'PENDING' AND event_id IN ('{old}', '{young}', '{scheduled}', '{put_off}')"
    );
    assert_eq!(guarded.database.query_one_value::<i64>(&queued), 4 * 3 - 1);
}

#[test]
fn the_backlog_of_an_endpoint_that_is_served_never_expires() {
    let guarded = Guarded::with("hold_for = '1 ms'");
    guarded.receiver.hold(Guarded::PATH);
    let events = guarded.emit(50);
    guarded.wait_for_requests(1);
    // A control: this one has to expire.
    guarded.database.execute(
        "UPDATE webhook.endpoint SET policy = 'guarded', paused_at = now() WHERE name = 'bystander';
         SELECT webhook_emit('bystander')",
    );
    guarded
        .database
        .wait_until("SELECT count(*) = 1 FROM webhook.dead_letter");
    guarded.receiver.release(Guarded::PATH);
    guarded.wait_for_status(&events, "SENT");
}

#[test]
fn thousands_expire_without_a_long_wait() {
    // Nothing expires before all of it does.
    let guarded = Guarded::with("hold_for = '30 s'");
    guarded.database.execute(
        "UPDATE webhook.endpoint SET paused_at = now() - interval '1 min' WHERE name = 'orders'",
    );
    guarded.emit(2500);
    guarded
        .database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() - interval '1 min'");
    guarded
        .database
        .wait_until("SELECT count(*) = 2500 FROM webhook.dead_letter");
}

#[test]
fn held_for_too_long_while_open_a_retry_expires_and_the_breaker_goes_on_with_the_next() {
    let guarded = Guarded::with("hold_for = '1 h'");
    let waiting = guarded.open();
    guarded.database.execute(
        "UPDATE webhook.breaker SET opened_at = now() - interval '2 h';
         UPDATE webhook.delivery SET next_attempt_at = now() - interval '2 h' WHERE status = 'PENDING'",
    );
    guarded.wait_for_status(&waiting, "FAILED");
    let attempts =
        "SELECT string_agg(DISTINCT attempts || ' ' || last_error, ',') FROM webhook.dead_letter";
    assert_eq!(
        guarded.database.query_one_value::<String>(attempts),
        "1 expired"
    );
    guarded.let_the_time_pass();
    let probe = guarded.emit(1);
    guarded.wait_for_status(&probe, "SENT");
    guarded.wait_for_state("CLOSED");
}
