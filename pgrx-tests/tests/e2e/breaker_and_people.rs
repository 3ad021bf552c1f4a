//! People change an endpoint, its breaker and its deliveries while the breaker works.

use std::collections::HashSet;
use std::thread;

use uuid::Uuid;
use webhook_e2e::random::Random;
use webhook_e2e::{Answer, Cluster, Guarded, wait, worker};

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
    // The first window; each of it that ends makes room for one more before it is known that nothing can be settled.
    guarded.wait_for_requests(1 + 8);
    for _ in 0..20 {
        guarded.let_the_worker_look();
    }
    // Or the first of them to be settled would make room before there are enough to open it.
    guarded
        .database
        .wait_until("SELECT in_flight = 0 FROM webhook_status()");
    let sent = guarded.requests().len();
    assert!(sent <= 1 + 16, "{sent} requests");
    transaction.rollback().unwrap();
    guarded.wait_for_state("OPEN");
    assert_eq!(guarded.requests().len(), sent);
}

#[test]
fn paused_while_half_open_the_probe_ends_and_nothing_follows() {
    let guarded = Guarded::with("");
    let mut events = guarded.open();
    events.extend(guarded.emit(5));
    guarded.hold_after_the_failures();
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
    guarded.hold_after_the_failures();
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
        guarded.hold_after_the_failures();
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
        guarded.hold_after_the_failures();
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
