//! The probe: the delivery that it is, one at a time, and the end of one that is lost or late.

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;

use webhook_e2e::engine::{self, Claim, Outcome};
use webhook_e2e::{Answer, Cluster, Database, Guarded, worker};

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
                        let claims =
                            (0..5).map(|_| engine::claim_of(&mut client, instance, endpoint));
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
    let probe = engine::claim_of(&mut client, 1, endpoint);
    assert_eq!(probe.len(), 1);

    database.execute("UPDATE webhook.breaker SET probe_at = now()");
    assert_eq!(engine::claim_of(&mut client, 1, endpoint), []);
    database.execute_as_engine(&format!(
        "SELECT webhook.release_lost('{{{}}}', '{{{endpoint}}}')",
        probe[0].event
    ));
    assert_eq!(engine::claim_of(&mut client, 1, endpoint).len(), 1);
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
        engine::claim_of(&mut client, 1, endpoint).remove(0)
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
        engine::settle(
            &mut client,
            &[(lost, Outcome::status(status, engine::LONG_AGO))],
        );
        assert_eq!(database.query_one_value::<String>(row), before);
    }
    engine::settle(
        &mut client,
        &[(second, Outcome::status(200, engine::LONG_AGO))],
    );
    let state: String = database.query_one_value("SELECT state FROM webhook.breaker");
    assert_eq!(state, "CLOSED");
}

#[test]
fn a_probe_lost_with_its_worker_is_followed_by_another_when_its_lease_ends() {
    let cluster = Cluster::start();
    let guarded = Guarded::on(&cluster, "");
    guarded.open();
    guarded.hold_after_the_failures();
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
    guarded.hold_after_the_failures();
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
    guarded.hold_after_the_failures();
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

fn open_endpoint(database: &Database) -> i32 {
    let endpoint = engine::add_endpoint(database);
    database.execute(
        "INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 5, 1, now(), now() + interval '1 h' FROM webhook.endpoint",
    );
    endpoint
}
