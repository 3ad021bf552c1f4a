//! The cost of the breaker: nothing where an endpoint is well, and no busy worker where a breaker is open.

use std::time::{Duration, Instant};

use serde_json::json;
use webhook_e2e::engine::{self, Outcome};
use webhook_e2e::{Guarded, wait, worker};

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
fn only_a_breaker_that_is_not_closed_is_asked_when_to_look_again() {
    let database = engine::idle_cluster().database("asked");
    let endpoint = engine::add_endpoint(&database);
    database.emit("order.created", json!({}));
    let mut client = database.connect();
    let mut transaction = client.transaction().unwrap();
    let mut looks_after = |change: &str| -> i64 {
        transaction.batch_execute(change).unwrap();
        let due = format!("SELECT * FROM webhook.due(ARRAY[{endpoint}])");
        assert_eq!(transaction.query(&due, &[]).unwrap().len(), 1);
        let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_xact_user_functions WHERE funcname = 'next_look_at_breaker'";
        transaction.query_one(calls, &[]).unwrap().get(0)
    };
    assert_eq!(looks_after("SET LOCAL track_functions = 'all'"), 0);
    let closed = format!("INSERT INTO webhook.breaker (endpoint_id) VALUES ({endpoint})");
    assert_eq!(looks_after(&closed), 0);
    let open =
        "UPDATE webhook.breaker SET state = 'OPEN', trips = 1, opened_at = now(), probe_at = now()";
    assert_eq!(looks_after(open), 1);
}

#[test]
fn settling_successes_wakes_nobody() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("quiet");
    let endpoint = engine::add_endpoint(&database);
    database.emit("order.created", json!({}));
    let mut client = database.connect();
    let claims = engine::claim_of(&mut client, 1, endpoint);
    let mut transaction = client.transaction().unwrap();
    transaction
        .batch_execute("SET LOCAL track_functions = 'all'")
        .unwrap();
    let settled = engine::settle(
        &mut transaction,
        &[(claims[0], Outcome::status(200, engine::LONG_AGO))],
    );
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
            guarded.hold_after_the_failures();
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
            guarded.hold_after_the_failures();
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
