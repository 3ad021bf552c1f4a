//! How many requests an endpoint gets at the same time; endpoints that do not answer keep nobody waiting.

use std::time::Instant;

use webhook_e2e::{Answer, Cluster, Database, Receiver, worker};

const HUNG: usize = 200;

fn emit(database: &Database, event_type: &str, count: usize) {
    database.execute(&format!(
        "SELECT webhook_emit('{event_type}') FROM generate_series(1, {count})"
    ));
}

fn in_flight(database: &Database, event_type: &str) -> i64 {
    database.query_one_value(&format!(
        "SELECT count(*) FROM webhook.delivery_queue WHERE status = 'SENDING' AND event_type = '{event_type}'"
    ))
}

/// How many requests have arrived when the worker has had time for more.
fn requests_to_orders(database: &Database, receiver: &Receiver) -> usize {
    let earlier = receiver.requests_to("/fence").len();
    emit(database, "fence", 1);
    receiver.wait_for_requests_to("/fence", earlier + 1);
    receiver.requests_to("/orders").len()
}

fn add_orders_and_fence(database: &Database, receiver: &Receiver, options: &str) {
    let options = format!("event_types => '{{order.*}}', {options}");
    database.add_endpoint_with("orders", &receiver.url("/orders"), &options);
    database.add_endpoint_with("fence", &receiver.url("/fence"), "event_types => '{fence}'");
}

#[test]
fn two_hundred_endpoints_that_hang_keep_nobody_waiting() {
    let (database, receiver) = (Cluster::shared().database("hung"), Receiver::start());
    receiver.hold("/hung");
    database.execute("INSERT INTO webhook.policy (name, timeout) VALUES ('patient_one', '10 min')");
    database.execute(&format!(
        "SELECT webhook_set_endpoint('hung' || n, '{}', event_types => '{{hung}}', policy => 'patient_one')
         FROM generate_series(1, {HUNG}) n",
        receiver.url("/hung")
    ));
    database.add_endpoint_with("well", &receiver.url("/well"), "event_types => '{well}'");
    emit(&database, "hung", 20);
    receiver.wait_for_requests_to("/hung", 2 * HUNG);
    emit(&database, "well", 100);
    receiver.wait_for_requests_to("/well", 100);
    database
        .wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue WHERE event_type = 'well'");
    // Each of them got two, since others waited.
    assert_eq!(in_flight(&database, "hung"), 2 * HUNG as i64);
}

#[test]
fn endpoints_that_hang_get_half_of_all_requests_at_most() {
    let cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 20")
        .start();
    let (database, receiver) = (cluster.database("reserve"), Receiver::start());
    database.add_endpoint_with("well", &receiver.url("/well"), "event_types => '{well}'");
    emit(&database, "well", 1);
    receiver.wait_for_requests_to("/well", 1);

    receiver.hold("/hung");
    database.execute(&format!(
        "SELECT webhook_set_endpoint('hung' || n, '{}', event_types => '{{hung}}') FROM generate_series(1, 30) n",
        receiver.url("/hung")
    ));
    emit(&database, "hung", 3);
    receiver.wait_for_requests_to("/hung", 10);
    emit(&database, "well", 200);
    receiver.wait_for_requests_to("/well", 201);
    assert_eq!(in_flight(&database, "hung"), 10);
}

#[test]
fn a_backlog_that_is_claimed_ahead_keeps_nobody_waiting() {
    const ALL: usize = 10;
    const ANSWERED: usize = 50;
    let cluster = Cluster::builder()
        .setting(&format!("webhook.max_in_flight = {ALL}"))
        .start();
    let (database, receiver) = (cluster.database("backlog"), Receiver::start());
    database.add_endpoint_with("busy", &receiver.url("/busy"), "event_types => '{busy}'");
    database.add_endpoint_with("other", &receiver.url("/other"), "event_types => '{other}'");
    receiver.hold_after("/busy", ANSWERED);
    emit(&database, "busy", 500);
    receiver.wait_for_requests_to("/busy", ANSWERED + ALL);
    emit(&database, "other", 1);
    // The backlog ends one by one, and the worker settles each: requests on the wire, and at most twice as many that wait.
    for ended in ANSWERED + 1..=ANSWERED + 4 * ALL {
        receiver.hold_after("/busy", ended);
        database.wait_until(&format!(
            "SELECT count(*) >= {ended} FROM webhook.delivery WHERE event_type = 'busy' AND status = 'SENT'"
        ));
    }
    assert_eq!(receiver.requests_to("/other").len(), 1);
}

#[test]
fn a_new_worker_knows_who_has_answered_before_it() {
    let cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 10")
        .start();
    let (database, receiver) = (cluster.database("known"), Receiver::start());
    database.add_endpoint_with("well", &receiver.url("/well"), "event_types => '{well}'");
    emit(&database, "well", 1);
    database.wait_until("SELECT EXISTS (SELECT FROM webhook.stat WHERE sent > 0)");
    let earlier = worker::pid(&database);
    worker::terminate(&database, earlier);
    worker::successor(&database, earlier);

    receiver.hold("/hung");
    database.execute(&format!(
        "SELECT webhook_set_endpoint('hung' || n, '{}', event_types => '{{hung}}') FROM generate_series(1, 20) n",
        receiver.url("/hung")
    ));
    emit(&database, "hung", 3);
    receiver.wait_for_requests_to("/hung", 5);
    emit(&database, "well", 10);
    receiver.wait_for_requests_to("/well", 11);
    assert_eq!(in_flight(&database, "hung"), 5, "half of all");
}

#[test]
fn an_endpoint_that_answers_gets_more_and_more_up_to_its_own_limit() {
    let (database, receiver) = (Cluster::shared().database("window"), Receiver::start());
    add_orders_and_fence(&database, &receiver, "max_in_flight => 40");
    let mut answered = 0;
    for window in [8, 16, 32, 40, 40] {
        receiver.hold_after("/orders", answered);
        if answered == 0 {
            emit(&database, "order.created", 200);
        }
        receiver.wait_for_requests_to("/orders", answered + window);
        let arrived = requests_to_orders(&database, &receiver);
        assert_eq!(arrived, answered + window);
        answered += window;
    }
}

#[test]
fn an_endpoint_that_is_overloaded_gets_half_as_many() {
    let (database, receiver) = (Cluster::shared().database("overload"), Receiver::start());
    // No breaker is in the way.
    database.execute(
        "INSERT INTO webhook.policy (name, failure_threshold, initial_delay, backoff) VALUES ('plain', 0, '1 h', 'fixed')",
    );
    add_orders_and_fence(&database, &receiver, "policy => 'plain'");
    receiver.respond("/orders", |_, number| {
        Answer::status(if (9..=24).contains(&number) { 503 } else { 200 })
    });
    receiver.hold_after("/orders", 0);
    emit(&database, "order.created", 100);
    receiver.wait_for_requests_to("/orders", 8);
    receiver.hold_after("/orders", 8);
    receiver.wait_for_requests_to("/orders", 24);
    // All sixteen are too many, and that halves it once.
    receiver.hold_after("/orders", 24);
    receiver.wait_for_requests_to("/orders", 32);
    assert_eq!(requests_to_orders(&database, &receiver), 32);
}

#[test]
fn no_more_attempts_go_out_in_a_second_than_the_rate_limit_says() {
    let (database, receiver) = (Cluster::shared().database("rate"), Receiver::start());
    database.add_endpoint_with("orders", &receiver.url("/orders"), "rate_limit => 10");
    let emitted = Instant::now();
    emit(&database, "order.created", 40);
    let requests = receiver.wait_for_requests_to("/orders", 40);
    let mut times: Vec<_> = requests.iter().map(|request| request.arrived).collect();
    times.sort_unstable();
    // A bucket of ten that was full at first, and the tokens that came into it since. A slow machine makes requests
    // later, never sooner.
    for (before, arrived) in times.iter().enumerate() {
        let tokens = 10.0 + 10.0 * arrived.duration_since(emitted).as_secs_f64();
        assert!(
            tokens >= before as f64 + 1.0,
            "{before} before, {tokens} tokens"
        );
    }
}

#[test]
fn a_test_is_exempt_from_the_rate_limit() {
    let (database, receiver) = (Cluster::shared().database("exempt"), Receiver::start());
    database.add_endpoint_with("orders", &receiver.url("/orders"), "rate_limit => 0.001");
    emit(&database, "order.created", 3);
    receiver.wait_for_requests_to("/orders", 1);
    let status: String = database.query_one_value("CALL webhook_test('orders')");
    assert_eq!(status, "SENT");
    assert_eq!(receiver.requests_to("/orders").len(), 2);
}
