//! The circuit breaker end to end: each way from one state to another, what counts, the probe, the way back, and what
//! people may do meanwhile.

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::engine::{self, Claim, Outcome, Wish};
use webhook_e2e::random::Random;
use webhook_e2e::{Answer, Cluster, Database, Guarded, Receiver, wait, worker};

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
    let reason = guarded.status("reason");
    assert_eq!(
        reason.as_deref(),
        Some("3 failures in a row, the last: HTTP 500")
    );
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
    assert_eq!(guarded.status("parked").as_deref(), Some("20"));
    assert_eq!(guarded.status("in_flight").as_deref(), Some("0"));
}

#[test]
fn after_the_cooldown_one_probe_goes_out() {
    let guarded = Guarded::with("");
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
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
    let reset = "consecutive_failures = 0 AND trips = 0 AND num_nonnulls(opened_at, probe_at, reason, probe_event_id) = 0";
    assert_eq!(guarded.breaker(reset).as_deref(), Some("true"));
    assert_eq!(guarded.status("state").as_deref(), Some("ACTIVE"));
}

#[test]
fn a_probe_that_fails_reopens_at_once_with_a_doubled_cooldown_up_to_the_longest() {
    let guarded = Guarded::with("cooldown = '20 ms', max_cooldown = '50 ms'");
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
        "3 failures: 00:00:00.02, 4 failures: 00:00:00.04, 5 failures: 00:00:00.05, 6 failures: 00:00:00.05"
    );
    let requests = guarded.wait_for_requests(6);
    for (place, cooldown) in [(3, 20), (4, 40), (5, 50)] {
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

// What counts.

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
    let reason = guarded.breaker("reason LIKE '3 failures in a row, the last: %refused%'");
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
    let parked = guarded.emit(5);
    guarded
        .database
        .execute("UPDATE webhook.policy SET failure_threshold = 0 WHERE name = 'guarded'");
    guarded.let_the_time_pass();
    for event in &parked {
        guarded.database.wait_until(&format!(
            "SELECT EXISTS (SELECT FROM webhook.attempt WHERE event_id = '{event}')"
        ));
    }
    assert_eq!(guarded.state(), "CLOSED");
    // Until all that was brought forward has failed too, and waits.
    guarded.database.wait_until(
        "SELECT retries_before IS NULL AND NOT EXISTS (SELECT FROM webhook.delivery WHERE status = 'SENDING') FROM webhook.breaker",
    );
    guarded.answer(200);
    guarded
        .database
        .execute("UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'");
    guarded.wait_for_status(&parked, "SENT");
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
    let parked = guarded.emit(1);
    guarded.let_the_worker_look();
    guarded.assert_status(&parked, "PENDING");
}

#[test]
fn a_disable_status_disables_with_reason_gone() {
    let guarded = Guarded::with("");
    guarded.answer(410);
    let gone = guarded.emit(1);
    guarded.wait_for_status(&gone, "FAILED");
    assert_eq!(guarded.status("state").as_deref(), Some("DISABLED"));
    assert_eq!(guarded.status("reason").as_deref(), Some("gone"));
    let parked = guarded.emit(1);
    guarded.let_the_worker_look();
    guarded.assert_status(&parked, "PENDING");
    assert_eq!(guarded.requests().len(), 1);
}

#[test]
fn a_probe_may_find_the_endpoint_gone() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.answer(410);
    guarded.let_the_time_pass();
    guarded
        .database
        .wait_until("SELECT state = 'DISABLED' FROM webhook.endpoint_status WHERE name = 'orders'");
    assert_eq!(guarded.status("reason").as_deref(), Some("gone"));
    guarded.let_the_time_pass();
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 4, "disabled is more than open");
}

// The probe.

#[test]
fn a_retry_that_waits_for_its_time_is_a_probe() {
    let guarded = Guarded::with("");
    let waiting = guarded.open();
    guarded.let_the_time_pass();
    guarded.wait_for_status(&waiting, "SENT");
}

#[test]
fn what_a_person_or_the_emitter_put_off_is_no_probe() {
    let guarded = Guarded::with("");
    let failed = guarded.open();
    guarded.database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE event_id = '{}';
         UPDATE webhook.delivery SET next_attempt_at = now() + interval '2 h' WHERE event_id = '{}';
         UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{}';
         SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
        failed[0], failed[1], failed[2]
    ));
    guarded.let_the_time_pass();
    guarded.let_the_worker_look();
    assert_eq!(guarded.state(), "OPEN");
    assert_eq!(guarded.requests().len(), 3);

    let event = guarded.emit(1);
    guarded.wait_for_status(&event, "SENT");
    guarded.wait_for_state("CLOSED");
}

#[test]
fn twenty_claimers_send_one_probe_per_lease() {
    const CLAIMERS: usize = 20;
    const LEASES: usize = 10;
    let cluster = engine::idle_cluster();
    let database = cluster.database("claimers");
    let endpoint = open_endpoint(&database);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 50)");

    let mut probes = HashSet::new();
    for _ in 0..LEASES {
        database.execute("UPDATE webhook.breaker SET probe_at = now()");
        let barrier = Barrier::new(CLAIMERS);
        let claims: Vec<Claim> = thread::scope(|scope| {
            let claimers: Vec<_> = (1..=CLAIMERS as i32)
                .map(|instance| {
                    let (database, barrier) = (&database, &barrier);
                    scope.spawn(move || {
                        let mut client = database.connect();
                        barrier.wait();
                        let claims = (0..5).map(|_| claim(&mut client, instance, endpoint));
                        claims.flatten().collect::<Vec<_>>()
                    })
                })
                .collect();
            claimers
                .into_iter()
                .flat_map(|claimer| claimer.join().unwrap())
                .collect()
        });
        let [probe] = claims[..] else {
            panic!("not one probe: {claims:?}");
        };
        let in_the_row = "SELECT state = 'HALF_OPEN' AND probe_at > now() AND probe_event_id = $1 AND probe_claim_seq = $2
                          FROM webhook.breaker";
        let in_the_row = database
            .connect()
            .query_one(in_the_row, &[&probe.event, &probe.claim_seq]);
        assert!(in_the_row.unwrap().get::<_, bool>(0));
        // It is never heard of again.
        assert!(probes.insert(probe.event));
        database.execute(&format!(
            "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{}'",
            probe.event
        ));
    }
}

#[test]
fn a_probe_that_is_still_out_when_its_lease_ends_is_waited_for() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("slow_probe");
    let endpoint = open_endpoint(&database);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 3)");
    let mut client = database.connect();
    database.execute("UPDATE webhook.breaker SET probe_at = now()");
    let probe = claim(&mut client, 1, endpoint);
    assert_eq!(probe.len(), 1);

    database.execute("UPDATE webhook.breaker SET probe_at = now()");
    assert_eq!(claim(&mut client, 1, endpoint), []);
    database.execute(&format!(
        "SELECT webhook.release_lost('{{{}}}', '{{{endpoint}}}')",
        probe[0].event
    ));
    assert_eq!(claim(&mut client, 1, endpoint).len(), 1);
}

#[test]
fn the_outcome_of_a_lost_probe_moves_nothing() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("lost_probe");
    let endpoint = open_endpoint(&database);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 3)");
    let mut client = database.connect();
    let mut probe = || {
        database.execute("UPDATE webhook.breaker SET probe_at = now()");
        claim(&mut client, 1, endpoint).remove(0)
    };
    let lost = probe();
    database.execute(&format!(
        "UPDATE webhook.delivery SET status = 'PENDING' WHERE event_id = '{}'",
        lost.event
    ));
    let second = probe();
    let row = "SELECT breaker::text FROM webhook.breaker";
    let before: String = database.query_one_value(row);
    for status in [200, 500] {
        engine::settle(&mut client, &[(lost, Outcome::status(status, 1e9))]);
        assert_eq!(database.query_one_value::<String>(row), before);
    }
    engine::settle(&mut client, &[(second, Outcome::status(200, 1e9))]);
    let state: String = database.query_one_value("SELECT state FROM webhook.breaker");
    assert_eq!(state, "CLOSED");
}

#[test]
fn a_probe_lost_with_its_worker_is_followed_by_another_when_its_lease_ends() {
    let cluster = Cluster::start();
    let guarded = Guarded::on(&cluster, "");
    guarded.open();
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded.let_the_time_pass();
    let probe = guarded.wait_for_requests(4).remove(3);

    worker::kill(&cluster, &guarded.database);
    guarded.wait_for_status(&[probe.event_id()], "PENDING");
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 4, "the lease has not ended");
    let lease_ends = guarded.let_the_time_run_out();
    guarded.wait_for_requests(5);
    let waited = guarded.breaker(&format!(
        "SELECT claimed_at >= '{lease_ends}' FROM webhook.delivery WHERE event_id = b.probe_event_id"
    ));
    assert_eq!(waited.as_deref(), Some("true"));
    assert_eq!(guarded.state(), "HALF_OPEN");
    guarded.receiver.release(Guarded::PATH);
    guarded
        .database
        .wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    assert_eq!(guarded.state(), "CLOSED");
}

#[test]
fn a_probe_that_a_person_cancels_is_followed_by_another_when_its_lease_ends_and_not_before() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.emit(5);
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded.let_the_time_pass();
    let probe = guarded.wait_for_requests(4).remove(3);
    guarded.database.execute(&format!(
        "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = '{}'",
        probe.event_id()
    ));
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 4, "the lease has not ended");

    let lease_ends = guarded.let_the_time_run_out();
    let next = guarded.wait_for_requests(5).remove(4);
    assert_ne!(next.event_id(), probe.event_id());
    let waited: bool = guarded.database.query_one_value(&format!(
        "SELECT claimed_at >= '{lease_ends}' FROM webhook.delivery WHERE event_id = '{}'",
        next.event_id()
    ));
    assert!(waited, "it was claimed before the lease ended");
    assert_eq!(guarded.requests().len(), 5);
    guarded.receiver.release(Guarded::PATH);
    guarded.wait_for_state("CLOSED");
}

#[test]
fn a_probe_that_was_given_back_is_sent_again_by_the_next_worker() {
    let guarded = Guarded::with("");
    let events = guarded.open();
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded.let_the_time_pass();
    guarded.wait_for_requests(4);
    let pid = worker::pid(&guarded.database);
    worker::terminate(&guarded.database, pid);
    guarded.wait_for_requests(5);
    assert_eq!(guarded.breaker("trips").as_deref(), Some("1"));
    assert_eq!(guarded.failures(), 3);
    guarded.receiver.release(Guarded::PATH);
    guarded.wait_for_status(&events, "SENT");
}

#[test]
fn stragglers_change_nothing_but_the_log() {
    let guarded = Guarded::with("");
    guarded.receiver.hold(Guarded::PATH);
    guarded.receiver.respond(Guarded::PATH, |_, number| {
        Answer::status(if number == 4 { 200 } else { 500 })
    });
    guarded.emit(6);
    let requests = guarded.wait_for_requests(6);
    guarded.receiver.hold_after(Guarded::PATH, 3);
    guarded.wait_for_state("OPEN");
    let row = guarded.breaker("b");

    guarded.receiver.hold_after(Guarded::PATH, 4);
    guarded.wait_for_status(&[requests[3].event_id()], "SENT");
    assert_eq!(guarded.breaker("b"), row);
    guarded.receiver.hold_after(Guarded::PATH, 5);
    guarded
        .database
        .wait_until("SELECT count(*) = 4 FROM webhook.attempt WHERE verdict = 'retry'");
    assert_eq!(guarded.breaker("b"), row);

    guarded.let_the_time_pass();
    guarded.wait_for_state("HALF_OPEN");
    guarded.wait_for_requests(7);
    let row = guarded.breaker("b");
    // The sixth is answered, the seventh is the probe.
    guarded.receiver.hold_after(Guarded::PATH, 6);
    guarded
        .database
        .wait_until("SELECT count(*) = 5 FROM webhook.attempt WHERE verdict = 'retry'");
    assert_eq!(guarded.breaker("b"), row);
}

// The way back.

#[test]
fn ten_thousand_parked_deliveries_survive_an_outage_and_all_arrive() {
    const PARKED: usize = 10_000;
    let guarded = Guarded::with("");
    let mut events = guarded.open();
    events.extend(guarded.emit(PARKED));
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
        2 * Guarded::THRESHOLD + PARKED,
        "none arrives twice"
    );
    assert_eq!(
        HashSet::<Uuid>::from_iter(received),
        HashSet::from_iter(events)
    );
    let sent = "SELECT count(*) FROM webhook.delivery_history WHERE status = 'SENT' AND event_type = 'order.created'";
    assert_eq!(
        guarded.database.query_one_value::<i64>(sent),
        (Guarded::THRESHOLD + PARKED) as i64
    );
    assert_eq!(guarded.breaker("ramp"), None);
}

#[test]
fn the_backlog_is_drained_at_a_growing_rate() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.emit(60);
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded.let_the_time_pass();
    guarded.wait_for_requests(Guarded::THRESHOLD + 1);
    assert_grows(&guarded, Guarded::THRESHOLD + 1);
}

#[test]
fn the_backlog_is_drained_at_a_growing_rate_after_a_person_closed_it() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded.emit(60);
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded
        .database
        .execute("SELECT webhook_reset_breaker('orders')");
    assert_grows(&guarded, Guarded::THRESHOLD);
}

/// From the answer to that request on, the number in flight is 1, 2, 4, 8, and 16, the most that the endpoint gets.
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
fn an_endpoint_that_fails_again_while_it_recovers_gets_less_at_a_time() {
    let guarded = Guarded::with("failure_threshold = 2");
    guarded.answer(500);
    guarded.emit(2);
    guarded.wait_for_state("OPEN");
    guarded.emit(60);
    // Two opened it, the third is the probe, seven more are good, the eleventh is not.
    guarded.receiver.respond(Guarded::PATH, |_, number| {
        Answer::status(if number == 11 { 500 } else { 200 })
    });
    guarded.receiver.hold_after(Guarded::PATH, 2);
    guarded.let_the_time_pass();
    guarded.wait_for_requests(3);
    guarded.receiver.hold_after(Guarded::PATH, 10);
    guarded
        .database
        .wait_until("SELECT coalesce(ramp = 8, false) FROM webhook.breaker");
    guarded.wait_for_requests(18);
    guarded.receiver.hold_after(Guarded::PATH, 11);
    guarded
        .database
        .wait_until("SELECT coalesce(ramp = 4, false) FROM webhook.breaker");
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

// What a healthy endpoint costs.

#[test]
fn an_endpoint_that_never_failed_has_no_row() {
    let guarded = Guarded::with("");
    let events = guarded.emit(50);
    guarded.wait_for_status(&events, "SENT");
    let rows: i64 = guarded
        .database
        .query_one_value("SELECT count(*) FROM webhook.breaker");
    assert_eq!(rows, 0);
}

#[test]
fn success_writes_no_row_of_a_healthy_endpoint() {
    // It has failed and recovered, the hard way and the easy way.
    for recover in [true, false] {
        let guarded = Guarded::with("");
        guarded.answer(500);
        let mut events = guarded.emit(if recover { 3 } else { 1 });
        guarded.wait_for_failures(events.len() as i32);
        guarded.answer(200);
        guarded.let_the_time_pass();
        events = guarded.emit(200);
        guarded.wait_for_status(&events, "SENT");
        guarded.database.wait_until(
            "SELECT webhook.is_at_rest(b) AND retries_before IS NULL FROM webhook.breaker b",
        );

        // Neither written nor locked.
        let version = "concat_ws(' ', ctid, xmin, xmax)";
        let of_the_breaker = guarded.breaker(version);
        let of_the_endpoint =
            format!("SELECT {version} FROM webhook.endpoint WHERE name = 'orders'");
        let before: String = guarded.database.query_one_value(&of_the_endpoint);
        let events = guarded.emit(50);
        guarded.wait_for_status(&events, "SENT");
        assert_eq!(guarded.breaker(version), of_the_breaker);
        assert_eq!(
            guarded.database.query_one_value::<String>(&of_the_endpoint),
            before
        );
    }
}

#[test]
fn settling_successes_wakes_nobody() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("quiet");
    let endpoint = add_plain_endpoint(&database);
    database.emit("order.created", json!({}));
    let mut client = database.connect();
    let claims = claim(&mut client, 1, endpoint);
    let mut transaction = client.transaction().unwrap();
    transaction
        .batch_execute("SET LOCAL track_functions = 'all'")
        .unwrap();
    let settled = engine::settle(&mut transaction, &[(claims[0], Outcome::status(200, 1e9))]);
    assert_eq!(settled.counted, [1, 0, 0]);
    let triggers = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_xact_user_functions WHERE funcname LIKE 'wake%'";
    let woken: i64 = transaction.query_one(triggers, &[]).unwrap().get(0);
    assert_eq!(woken, 0);
}

#[test]
fn an_endpoint_that_is_left_alone_does_not_keep_the_worker_busy() {
    const WINDOW: Duration = Duration::from_secs(1);
    type Situation = (&'static str, &'static str, fn(&Guarded));
    let situations: [Situation; 8] = [
        ("open", "when_open = 'hold'", |_| ()),
        ("skipping", "when_open = 'skip'", |_| ()),
        ("failing", "when_open = 'fail'", |_| ()),
        ("failing fast", "when_open = 'attempt'", |_| ()),
        ("with nothing to probe", "", |guarded| {
            guarded.database.execute(
                "UPDATE webhook.delivery SET next_attempt_at = now() + interval '1 h' WHERE status = 'PENDING'",
            );
            guarded.let_the_time_pass();
        }),
        ("with a slow probe", "", |guarded| {
            guarded
                .receiver
                .hold_after(Guarded::PATH, Guarded::THRESHOLD);
            guarded.let_the_time_pass();
            guarded.wait_for_requests(4);
        }),
        ("paused", "", |guarded| {
            guarded
                .database
                .execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'orders'");
            guarded.let_the_time_pass();
        }),
        ("slow to recover", "", |guarded| {
            guarded
                .receiver
                .hold_after(Guarded::PATH, Guarded::THRESHOLD);
            guarded
                .database
                .execute("SELECT webhook_reset_breaker('orders')");
            guarded.wait_for_requests(4);
        }),
    ];
    for (name, settings, arrange) in situations {
        let guarded = Guarded::with(settings);
        guarded.open();
        guarded.emit(10);
        guarded.let_the_worker_look();
        arrange(&guarded);
        guarded.let_the_worker_look();

        let pid = worker::pid(&guarded.database);
        let (before, begun) = (worker::computed(pid), Instant::now());
        wait::until_true("the window to pass", || begun.elapsed() >= WINDOW);
        let computed = worker::computed(pid) - before;
        assert!(computed < WINDOW / 5, "{name}, it computed {computed:?}");
    }
}

// People in the way.

#[test]
fn people_who_interfere_with_a_flapping_endpoint_never_break_the_worker() {
    const EVENTS: usize = 300;
    let guarded = Guarded::with(
        "cooldown = '5 ms', max_cooldown = '20 ms', initial_delay = '5 ms', max_attempts = 32000",
    );
    let pid = worker::pid(&guarded.database);
    guarded.receiver.respond(Guarded::PATH, |_, number| {
        Answer::status(if number % 20 < 12 { 500 } else { 200 })
    });
    let events = guarded.emit(EVENTS);
    let interfere = |seed: u64, rounds: usize, ways: &[&str]| {
        let (mut random, mut client) = (Random::seeded(seed), guarded.database.connect());
        for _ in 0..rounds {
            let sql = random.one_of(ways);
            let done = client.batch_execute(sql);
            done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let of_the_endpoint = [
                "SELECT webhook_reset_breaker('orders')",
                "SELECT webhook_pause('orders')",
                "SELECT webhook_resume('orders')",
                "UPDATE webhook.endpoint SET paused_at = NULL",
                "UPDATE webhook.breaker SET probe_at = now() WHERE state <> 'CLOSED'",
                "DELETE FROM webhook.breaker",
                "BEGIN; SELECT FROM webhook.breaker FOR UPDATE; SELECT pg_sleep(0.02); COMMIT",
                "BEGIN; SELECT FROM webhook.endpoint FOR UPDATE; SELECT pg_sleep(0.02); COMMIT",
                "UPDATE webhook.policy SET failure_threshold = (failure_threshold + 1) % 5 WHERE name = 'guarded'",
                "UPDATE webhook.policy SET on_trip = CASE on_trip WHEN 'open' THEN 'disable' ELSE 'open' END WHERE name = 'guarded'",
                "UPDATE webhook.policy SET when_open = CASE when_open WHEN 'hold' THEN 'attempt' ELSE 'hold' END WHERE name = 'guarded'",
            ];
            interfere(1, 300, &of_the_endpoint);
        });
        scope.spawn(|| {
            let of_the_deliveries = [
                "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status IN ('PENDING', 'SENDING') AND random() < 0.1",
                "UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'CANCELLED'",
                "UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'SENDING' AND random() < 0.5",
                "UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'",
            ];
            interfere(2, 150, &of_the_deliveries);
        });
    });
    guarded.answer(200);
    wait::until("all deliveries to be sent", || {
        guarded.database.execute(
            "UPDATE webhook.delivery SET status = 'PENDING' WHERE status IN ('CANCELLED', 'FAILED');
             SELECT webhook_resume('orders')",
        );
        let sent = "SELECT count(*) FROM webhook.delivery WHERE status = 'SENT'";
        match guarded.database.query_one_value::<i64>(sent) {
            sent if sent == EVENTS as i64 => Ok(()),
            sent => Err(sent),
        }
    });
    assert_eq!(
        HashSet::<Uuid>::from_iter(guarded.received()),
        HashSet::from_iter(events)
    );
    assert_eq!(worker::pid(&guarded.database), pid);
    assert_eq!(
        worker::complaints(Cluster::shared(), pid),
        Vec::<String>::new()
    );
    let sound = guarded.database.query_one_value::<bool>(
        "SELECT count(*) = 0 FROM webhook.breaker WHERE state <> 'CLOSED'",
    );
    assert!(sound);
}

#[test]
fn a_person_who_locks_the_breaker_keeps_nobody_else_back() {
    let guarded = Guarded::with("");
    guarded.answer(500);
    guarded.emit(1);
    guarded.wait_for_failures(1);
    let pid = worker::pid(&guarded.database);
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("SELECT FROM webhook.breaker FOR UPDATE")
        .unwrap();

    let unsettled = guarded.emit(1);
    guarded.wait_for_requests(2);
    guarded
        .database
        .wait_until("SELECT in_flight = 0 FROM webhook_status()");
    guarded.let_the_worker_look();
    guarded.assert_status(&unsettled, "SENDING");
    assert_eq!(guarded.failures(), 1);
    transaction.rollback().unwrap();
    guarded.wait_for_failures(2);
    guarded.assert_status(&unsettled, "PENDING");
    assert_eq!(guarded.requests().len(), 2);
    assert_eq!(
        worker::complaints(Cluster::shared(), pid),
        Vec::<String>::new()
    );
}

#[test]
fn a_person_who_locks_the_endpoint_keeps_nobody_else_back() {
    let guarded = Guarded::with("on_trip = 'disable'");
    guarded.answer(500);
    guarded.emit(2);
    guarded.wait_for_failures(2);
    let pid = worker::pid(&guarded.database);
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("SELECT FROM webhook.endpoint WHERE name = 'orders' FOR UPDATE")
        .unwrap();

    let unsettled = guarded.emit(1);
    guarded.wait_for_requests(3);
    guarded
        .database
        .wait_until("SELECT in_flight = 0 FROM webhook_status()");
    guarded.let_the_worker_look();
    guarded.assert_status(&unsettled, "SENDING");
    transaction.rollback().unwrap();
    guarded.wait_for_failures(3);
    assert_eq!(guarded.status("reason").as_deref(), Some("tripped"));
    assert_eq!(
        worker::complaints(Cluster::shared(), pid),
        Vec::<String>::new()
    );
}

#[test]
fn a_locked_endpoint_does_not_keep_failures_back_that_cannot_disable_it() {
    let guarded = Guarded::with("");
    guarded.answer(500);
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("SELECT FROM webhook.endpoint FOR UPDATE")
        .unwrap();
    guarded.emit(3);
    guarded.wait_for_state("OPEN");
}

#[test]
fn a_probe_waits_for_a_person_who_has_locked_the_breaker_and_nobody_waits_with_it() {
    let guarded = Guarded::with("");
    let events = guarded.open();
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("UPDATE webhook.breaker SET probe_at = now()")
        .unwrap();
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 3);
    transaction.commit().unwrap();
    guarded.wait_for_status(&events, "SENT");
}

#[test]
fn while_a_person_holds_the_breaker_a_failing_endpoint_gets_no_more_than_its_share() {
    let guarded = Guarded::with("");
    guarded.answer(500);
    guarded.emit(1);
    guarded.wait_for_failures(1);
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("SELECT FROM webhook.breaker FOR UPDATE")
        .unwrap();
    guarded.emit(200);
    // A quarter of the 64 threads.
    guarded.wait_for_requests(1 + 16);
    for _ in 0..20 {
        guarded.let_the_worker_look();
    }
    assert_eq!(guarded.requests().len(), 1 + 16);
    // Or the first of them to be settled would make room before there are enough to open it.
    guarded
        .database
        .wait_until("SELECT in_flight = 0 FROM webhook_status()");
    transaction.rollback().unwrap();
    guarded.wait_for_state("OPEN");
    assert_eq!(guarded.requests().len(), 1 + 16);
}

#[test]
fn a_test_that_is_begun_while_the_first_failure_is_settled_stays_a_test() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("begun");
    let endpoint = add_plain_endpoint(&database);
    database.emit("order.created", json!({}));
    let mut worker = database.connect();
    let failed = claim(&mut worker, 1, endpoint)[0];

    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let test = Uuid::from_u128(1);
    let begin = "INSERT INTO webhook.breaker (endpoint_id, test_event_id) VALUES ($1, $2)";
    transaction.execute(begin, &[&endpoint, &test]).unwrap();
    let settling =
        thread::spawn(move || engine::settle(&mut worker, &[(failed, Outcome::status(500, 1e9))]));
    database.wait_until("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)");
    transaction.commit().unwrap();
    assert_eq!(settling.join().unwrap().locked, []);
    let row = database.connect().query_one(
        "SELECT test_event_id, consecutive_failures FROM webhook.breaker",
        &[],
    );
    let row = row.unwrap();
    assert_eq!(row.get::<_, Option<Uuid>>(0), Some(test));
    assert_eq!(row.get::<_, i32>(1), 1);
}

#[test]
fn paused_while_half_open_the_probe_ends_and_nothing_follows() {
    let guarded = Guarded::with("");
    let mut events = guarded.open();
    events.extend(guarded.emit(5));
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded.let_the_time_pass();
    guarded.wait_for_requests(4);
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'orders'");
    guarded.receiver.release(Guarded::PATH);
    guarded.wait_for_state("CLOSED");
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 4);
    assert_eq!(guarded.status("state").as_deref(), Some("PAUSED"));
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'orders'");
    guarded.wait_for_status(&events, "SENT");
}

#[test]
fn a_paused_endpoint_is_not_probed() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'orders'");
    guarded.let_the_time_pass();
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 3);
    guarded
        .database
        .execute("UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'orders'");
    guarded.wait_for_state("CLOSED");
}

#[test]
fn a_probe_that_fails_after_a_person_resumed_counts_as_one_failure() {
    let guarded = Guarded::with("");
    guarded.open();
    guarded
        .receiver
        .hold_after(Guarded::PATH, Guarded::THRESHOLD);
    guarded.receiver.respond(Guarded::PATH, |_, number| {
        Answer::status(if number == 4 { 500 } else { 200 })
    });
    guarded.let_the_time_pass();
    guarded.wait_for_requests(4);
    guarded.database.execute("SELECT webhook_resume('orders')");
    assert_eq!(guarded.state(), "CLOSED");
    guarded.receiver.hold_after(Guarded::PATH, 4);
    guarded.wait_for_failures(1);
    assert_eq!(guarded.state(), "CLOSED");
    guarded.receiver.release(Guarded::PATH);
    guarded
        .database
        .wait_until("SELECT count(*) = 0 FROM webhook.delivery WHERE status = 'SENDING'");
    guarded.wait_for_failures(0);
}

#[test]
fn an_endpoint_may_be_removed_in_any_state() {
    for state in ["OPEN", "HALF_OPEN"] {
        let guarded = Guarded::with("");
        let events = guarded.open();
        let pid = worker::pid(&guarded.database);
        guarded
            .receiver
            .hold_after(Guarded::PATH, Guarded::THRESHOLD);
        if state == "HALF_OPEN" {
            guarded.let_the_time_pass();
            guarded.wait_for_requests(4);
        }
        guarded.wait_for_state(state);
        guarded
            .database
            .execute("SELECT webhook_remove_endpoint('orders')");
        guarded.receiver.release(Guarded::PATH);
        guarded.assert_status(&events, "CANCELLED");
        guarded
            .database
            .wait_until("SELECT in_flight = 0 FROM webhook_status()");
        guarded.let_the_worker_look();
        let rows: i64 = guarded
            .database
            .query_one_value("SELECT count(*) FROM webhook.breaker");
        assert_eq!(rows, 0);
        assert_eq!(
            worker::complaints(Cluster::shared(), pid),
            Vec::<String>::new()
        );
    }
}

#[test]
fn a_person_may_delete_the_breaker_or_close_it_by_hand() {
    let by_hand = "
        UPDATE webhook.breaker
        SET state = 'CLOSED', consecutive_failures = 0, trips = 0, opened_at = NULL, probe_at = NULL,
            probe_event_id = NULL, probe_claim_seq = NULL";
    for (sql, half_open) in [
        ("DELETE FROM webhook.breaker", false),
        ("DELETE FROM webhook.breaker", true),
        (by_hand, false),
        (by_hand, true),
    ] {
        let guarded = Guarded::with("");
        let mut events = guarded.open();
        guarded.database.execute(
            "UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'",
        );
        guarded
            .receiver
            .hold_after(Guarded::PATH, Guarded::THRESHOLD);
        if half_open {
            guarded.let_the_time_pass();
            guarded.wait_for_requests(4);
        }
        events.extend(guarded.emit(5));
        guarded.database.execute(sql);
        guarded.database.execute("SELECT webhook.wake()");
        guarded.receiver.release(Guarded::PATH);
        guarded.wait_for_status(&events, "SENT");
        assert_eq!(guarded.state(), "CLOSED");
    }
}

#[test]
fn held_by_webhook_enabled_an_open_endpoint_goes_on_where_it_was() {
    let mut cluster = Cluster::start();
    let guarded = Guarded::on(&cluster, "");
    let events = guarded.open();
    let pid = worker::pid(&guarded.database);
    cluster.configure("webhook.enabled = off");
    cluster.reload();
    guarded
        .database
        .wait_until("SELECT state = 'disabled' FROM webhook_status()");
    let sleeps = worker::sleeps(pid);
    guarded.let_the_time_pass();
    wait::until_true("the worker to look", || worker::sleeps(pid) > sleeps);
    assert_eq!(guarded.requests().len(), 3);
    assert_eq!(guarded.state(), "OPEN");
    cluster.configure("webhook.enabled = on");
    cluster.reload();
    guarded.wait_for_status(&events, "SENT");
    assert_eq!(guarded.state(), "CLOSED");
}

// Tests of an endpoint.

#[test]
fn a_test_is_not_taken_for_the_probe() {
    let guarded = Guarded::with("");
    let cancelled = guarded.open();
    guarded
        .database
        .execute("UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING'");
    guarded.assert_status(&cancelled, "CANCELLED");
    guarded.answer(500);
    guarded.let_the_time_pass();
    let failed: bool = {
        let call = "CALL webhook_test('orders')";
        let row = guarded.database.connect().query_one(call, &[]).unwrap();
        row.get::<_, &str>(0) == "FAILED"
    };
    assert!(failed);
    assert_eq!(
        guarded.state(),
        "OPEN",
        "a test that fails counts for nothing"
    );
    guarded.answer(200);
    let event = guarded.emit(1);
    guarded.wait_for_status(&event, "SENT");
}

#[test]
fn a_test_sees_its_outcome_whatever_the_default_isolation_is() {
    let guarded = Guarded::with("");
    guarded.database.execute(&format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
        guarded.database.name()
    ));
    let call = "CALL webhook_test('orders')";
    let tested = guarded.database.connect().query_one(call, &[]);
    assert_eq!(tested.unwrap().get::<_, &str>(0), "SENT");
}

#[test]
fn a_test_that_was_given_up_leaves_nothing_behind() {
    let guarded = Guarded::with("connect_timeout = '1 ms', timeout = '1 ms'");
    guarded.let_the_worker_look();
    // Without the secrets the worker can send nothing.
    let mut person = guarded.database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("LOCK TABLE webhook.secret IN ACCESS EXCLUSIVE MODE")
        .unwrap();
    let call = "CALL webhook_test('orders')";
    let tested = guarded.database.connect().query_one(call, &[]);
    transaction.rollback().unwrap();
    assert_eq!(tested.unwrap().get::<_, &str>(0), "CANCELLED");
    assert_eq!(guarded.breaker("test_event_id"), None);
    guarded.let_the_worker_look();
    assert_eq!(guarded.requests().len(), 0);
}

#[test]
fn what_was_opened_and_closed_in_one_batch_is_told_with_its_reason() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("told");
    let endpoint = add_plain_endpoint(&database);
    database.execute("UPDATE webhook.endpoint SET policy = 'twice'");
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 2)");
    let mut client = database.connect();
    let mut batch: Vec<_> = claim(&mut client, 1, endpoint)
        .into_iter()
        .map(|claim| (claim, Outcome::status(500, 1e9)))
        .collect();
    assert_eq!(batch.len(), 2);
    begin_test(&database, endpoint);
    batch.push((
        claim(&mut client, 1, endpoint)[0],
        Outcome::status(200, 1e9 + 1.0),
    ));
    // In one transaction: the worker tells too.
    let mut transaction = client.transaction().unwrap();
    engine::settle(&mut transaction, &batch);
    let told = transaction
        .query("SELECT message FROM webhook.raise_alerts()", &[])
        .unwrap();
    let told: Vec<Option<&str>> = told.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        told,
        [
            Some(
                "webhook endpoint \"orders\" is left alone for a while: 2 failures in a row, the last: HTTP 500"
            ),
            Some("webhook endpoint \"orders\" is served again"),
        ]
    );
}

/// Every version of a breaker's row, in `transition`.
fn record_transitions(database: &Database) {
    database.execute(
        "CREATE TABLE transition (id serial, state text, failures int, trips int, cooldown interval);
         CREATE FUNCTION record_transition() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO public.transition (state, failures, trips, cooldown)
             VALUES (NEW.state, NEW.consecutive_failures, NEW.trips, NEW.probe_at - NEW.last_failure_at);
             RETURN NULL;
         END $$;
         CREATE TRIGGER record AFTER INSERT OR UPDATE ON webhook.breaker FOR EACH ROW EXECUTE FUNCTION record_transition()",
    );
}

/// Where the test plays the worker: an endpoint, and the policy `twice`, whose breaker opens at two failures.
fn add_plain_endpoint(database: &Database) -> i32 {
    database.execute("INSERT INTO webhook.policy (name, failure_threshold, warn_threshold) VALUES ('twice', 2, 0)");
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    database.query_one_value("SELECT id FROM webhook.endpoint")
}

fn open_endpoint(database: &Database) -> i32 {
    let endpoint = add_plain_endpoint(database);
    database.execute(
        "INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 5, 1, now(), now() + interval '1 h' FROM webhook.endpoint",
    );
    endpoint
}

fn begin_test(database: &Database, endpoint: i32) {
    database.execute(&format!(
        "WITH test AS (INSERT INTO webhook.event (id, event_type, payload, created_at)
                       VALUES (webhook.new_id(), 'webhook.test', '{{}}', now()) RETURNING id),
              queued AS (INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts)
                         SELECT id, {endpoint}, 'webhook.test', 1 FROM test)
         INSERT INTO webhook.breaker (endpoint_id, test_event_id) SELECT {endpoint}, id FROM test"
    ));
}

/// As many as a worker would claim that has nothing in flight.
fn claim(client: &mut postgres::Client, instance: i32, endpoint: i32) -> Vec<Claim> {
    let wish = Wish {
        endpoint,
        capacity: 16,
        in_flight: 0,
    };
    engine::claim(client, instance, &[wish])
}
