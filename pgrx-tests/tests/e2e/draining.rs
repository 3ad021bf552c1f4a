//! The way back after an outage: the backlog is drained at a growing rate, and retries are brought forward.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;
use webhook_e2e::{Answer, Guarded, wait};

#[test]
fn ten_thousand_kept_back_deliveries_survive_an_outage_and_all_arrive() {
    const KEPT_BACK: usize = 10_000;
    let guarded = Guarded::with("");
    let mut events = guarded.open();
    events.extend(guarded.emit(KEPT_BACK));
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), Guarded::THRESHOLD);
    guarded.let_the_time_pass();

    wait::until_within(Duration::from_secs(60), "the backlog to be drained", || {
        let queued = "SELECT count(*) FROM webhook.delivery_queue";
        match guarded.database.query_one_value::<i64>(queued) {
            0 => Ok(()),
            queued => Err(queued),
        }
    });
    let received = guarded.received();
    assert_eq!(
        received.len(),
        2 * Guarded::THRESHOLD + KEPT_BACK,
        "none arrives twice"
    );
    assert_eq!(
        HashSet::<Uuid>::from_iter(received),
        HashSet::from_iter(events)
    );
    let sent = "SELECT count(*) FROM webhook.delivery_history WHERE status = 'SENT' AND event_type = 'order.created'";
    assert_eq!(
        guarded.database.query_one_value::<i64>(sent),
        (Guarded::THRESHOLD + KEPT_BACK) as i64
    );
}

#[test]
fn the_backlog_is_drained_at_a_growing_rate() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.emit(60);
    guarded.hold_after_the_failures();
    guarded.let_the_time_pass();
    guarded.wait_for_requests(Guarded::THRESHOLD + 1);
    assert_grows(&guarded, Guarded::THRESHOLD + 1);
}

#[test]
fn the_backlog_is_drained_at_a_growing_rate_after_a_person_closed_it() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.emit(60);
    guarded.hold_after_the_failures();
    guarded
        .database
        .execute("SELECT webhook_reset_breaker('orders')");
    assert_grows(&guarded, Guarded::THRESHOLD);
}

/// From the answer to that request on, the number in flight is 1, 2, 4, 8, and 16.
#[track_caller]
fn assert_grows(guarded: &Guarded, mut answered: usize) {
    for in_flight in [1, 2, 4, 8, 16] {
        guarded.receiver.hold_after(Guarded::PATH, answered);
        guarded.wait_for_requests(answered + in_flight);
        guarded.let_the_worker_look();
        assert_eq!(guarded.requests().len(), answered + in_flight);
        answered += in_flight;
    }
}

#[test]
fn an_endpoint_that_is_overloaded_while_it_recovers_gets_less_at_a_time() {
    let guarded = Guarded::with("failure_threshold = 2");
    guarded.answer(500);
    guarded.emit(2);
    guarded.wait_for_state("OPEN");
    guarded.emit(60);
    // Two opened it, the third is the probe, seven more are good, the next eight are too many.
    guarded.receiver.respond(Guarded::PATH, |_, number| {
        Answer::status(if number > 10 { 503 } else { 200 })
    });
    guarded.receiver.hold_after(Guarded::PATH, 2);
    guarded.let_the_time_pass();
    guarded.wait_for_requests(3);
    guarded.receiver.hold_after(Guarded::PATH, 10);
    guarded.wait_for_requests(18);
    guarded.receiver.hold_after(Guarded::PATH, 11);
    guarded.wait_for_failures(1);
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 18, "seven are out already");
}

#[test]
fn waiting_retries_are_brought_forward_when_a_probe_closes_it() {
    assert_retries_are_brought_forward(Guarded::let_the_time_pass);
}

#[test]
fn waiting_retries_are_brought_forward_when_a_person_closes_it() {
    let reset = |guarded: &Guarded| {
        guarded
            .database
            .execute("SELECT webhook_reset_breaker('orders')");
    };
    assert_retries_are_brought_forward(reset);
}

#[test]
fn waiting_retries_are_brought_forward_when_a_person_resumes() {
    let resume = |guarded: &Guarded| {
        guarded.database.execute("SELECT webhook_pause('orders')");
        guarded.let_the_worker_look();
        guarded.database.execute("SELECT webhook_resume('orders')");
    };
    assert_retries_are_brought_forward(resume);
}

#[track_caller]
fn assert_retries_are_brought_forward(close: impl Fn(&Guarded)) {
    let guarded = Guarded::with("failure_threshold = 7");
    guarded.answer(500);
    let failed = guarded.emit(7);
    guarded.wait_for_state("OPEN");
    guarded.answer(200);
    guarded.database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE event_id = '{}';
         UPDATE webhook.delivery SET next_attempt_at = now() + interval '30 min' WHERE event_id = '{}';
         SELECT webhook_emit('order.scheduled', deliver_at => now() + interval '30 min')",
        failed[0], failed[1]
    ));
    close(&guarded);
    guarded.wait_for_status(&failed[2..], "SENT");
    // Until nothing is brought forward any more.
    guarded
        .database
        .wait_until("SELECT state = 'CLOSED' AND retries_before IS NULL FROM webhook.breaker");
    guarded.assert_status(&failed[..2], "PENDING");
    let scheduled = "SELECT status FROM webhook.delivery WHERE event_type = 'order.scheduled'";
    let scheduled: String = guarded.database.query_one_value(scheduled);
    assert_eq!(scheduled, "PENDING");
    assert_eq!(guarded.requests().len(), 7 + 5);
}

#[test]
fn a_retry_that_fails_again_after_it_was_brought_forward_waits_its_time() {
    let guarded = Guarded::with("");
    let failed = guarded.open();
    guarded.receiver.respond(Guarded::PATH, |_, number| {
        Answer::status(if number == 4 { 200 } else { 500 })
    });
    guarded.let_the_time_pass();
    guarded.wait_for_requests(6);
    guarded.wait_for_failures(2);
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 6);
    assert_eq!(guarded.state(), "CLOSED");
    let received: HashSet<Uuid> = guarded.received()[3..].iter().copied().collect();
    assert_eq!(received, HashSet::from_iter(failed));
}
