//! What an operator sees and does: the state of every endpoint, stopping one, letting it go on, trying it.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Row};
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Receiver, database, wait, worker};

fn database() -> Database {
    Cluster::shared().database("operating")
}

/// Opens at the third failure, retries and probes in an hour, but for what the test changes: `cooldown = '10 ms'`.
fn add_policy(database: &Database, name: &str, changes: &str) {
    database.add_guarding_policy(name, 10, changes);
}

/// The endpoint `orders` of a receiver that answers with 200, under a policy of its own.
fn orders(database: &Database, policy: &str) -> Receiver {
    let receiver = Receiver::start();
    add_policy(database, "guarded", policy);
    let options = "'{order.*}', policy => 'guarded'";
    database.add_endpoint_with("orders", &receiver.url("/orders"), options);
    receiver
}

fn answer(receiver: &Receiver, status: u16) {
    receiver.respond("/orders", move |_, _| Answer::status(status));
}

/// Emits as many events, which fail, and leaves a receiver that is well again.
#[track_caller]
fn fail(database: &Database, receiver: &Receiver, count: i32) {
    let before: i64 = database.query_one_value("SELECT count(*) FROM webhook.attempt");
    answer(receiver, 500);
    database.execute(&format!(
        "SELECT webhook_emit('order.created') FROM generate_series(1, {count})"
    ));
    database.wait_until(&format!(
        "SELECT count(*) = {before} + {count} FROM webhook.attempt"
    ));
    answer(receiver, 200);
}

#[track_caller]
fn wait_for(database: &Database, name: &str, condition: &str) {
    let mut client = database.connect();
    let awaited = format!("{condition} of endpoint {name}");
    wait::until(&awaited, || match look(&mut client, name, condition) {
        (Some(true), _) => Ok(()),
        (_, seen) => Err(seen),
    });
}

#[track_caller]
fn assert_that(database: &Database, name: &str, condition: &str) {
    let (holds, seen) = look(&mut database.connect(), name, condition);
    assert_eq!(holds, Some(true), "{condition} of {seen}");
}

/// Whether the condition holds for the endpoint's row of webhook.endpoint_status, and the row.
fn look(client: &mut Client, name: &str, condition: &str) -> (Option<bool>, String) {
    let query = format!(
        "SELECT {condition}, to_jsonb(s)::text FROM webhook.endpoint_status s WHERE name = $1"
    );
    let row = client.query_one(&query, &[&name]).unwrap();
    (row.get(0), row.get(1))
}

#[track_caller]
fn wait_for_empty_queue(database: &Database) {
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
}

/// Whatever could be sent before this, was: the worker has looked at every endpoint meanwhile.
#[track_caller]
fn wait_for_a_witness(database: &Database) {
    let witness = Receiver::start();
    let options = "'{witnessed}', policy => 'fast'";
    database.add_endpoint_with("witness", &witness.url("/"), options);
    let event = database.emit("witnessed", json!({}));
    database.wait_for_status(event, "SENT");
    database.execute("SELECT webhook_remove_endpoint('witness')");
}

/// Every row of every table of ours, when there is nothing left to tell.
#[track_caller]
fn contents(database: &Database) -> Vec<(String, String)> {
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
    let mut client = database.connect();
    let tables = "SELECT relname::text FROM pg_class
                  WHERE relnamespace = 'webhook'::regnamespace AND relkind = 'r'
                    AND relname NOT IN ('policy', 'tally') ORDER BY relname";
    let tables = client.query(tables, &[]).unwrap();
    (tables.iter())
        .map(|row| {
            let table: String = row.get(0);
            let rows = format!(
                "SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM webhook.{table} t"
            );
            let rows = client.query_one(&rows, &[]).unwrap().get(0);
            (table, rows)
        })
        .collect()
}

/// What webhook_test() showed.
#[derive(Debug, PartialEq)]
struct Shown {
    status: Option<String>,
    status_code: Option<i32>,
    error: Option<String>,
    response: Option<String>,
    duration_ms: Option<i32>,
}

impl From<Row> for Shown {
    fn from(row: Row) -> Shown {
        Shown {
            status: row.get("status"),
            status_code: row.get("status_code"),
            error: row.get("error"),
            response: row.get("response"),
            duration_ms: row.get("duration_ms"),
        }
    }
}

impl Shown {
    #[track_caller]
    fn assert_is(&self, status: &str, status_code: Option<i32>, error: Option<&str>) {
        assert_eq!(self.status.as_deref(), Some(status), "{self:?}");
        assert_eq!(self.status_code, status_code, "{self:?}");
        assert_eq!(self.error.as_deref(), error, "{self:?}");
    }
}

#[track_caller]
fn test_endpoint(database: &Database, name: &str) -> Shown {
    let row = (database.connect()).query_one(&format!("CALL webhook_test('{name}')"), &[]);
    row.unwrap_or_else(|error| panic!("{name}: {error:?}"))
        .into()
}

/// The same while the test goes on; its session can be found by its application_name.
fn test_in_background(
    database: &Database,
    application: &'static str,
) -> JoinHandle<Result<Shown, postgres::Error>> {
    let mut client = database.connect();
    thread::spawn(move || {
        client.batch_execute(&format!("SET application_name = '{application}'"))?;
        client
            .query_one("CALL webhook_test('orders')", &[])
            .map(Shown::from)
    })
}

// The states.

#[test]
fn an_endpoint_is_active_and_its_last_success_is_known() {
    let database = database();
    let _receiver = orders(&database, "");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips, queued, in_flight, parked, failed) = ('ACTIVE', 0, 0, 0, 0, 0, 0)
         AND num_nonnulls(reason, since, next_probe_at, last_success_at, last_failure_at, last_error) = 0
         AND policy = 'guarded' AND event_types = '{order.*}' AND tenant IS NULL AND metadata = '{}' AND created_at <= now()",
    );
    let emitted_at: String = database.query_one_value("SELECT now()::text");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    wait_for(
        &database,
        "orders",
        &format!("last_success_at BETWEEN '{emitted_at}' AND now()"),
    );
    assert_that(
        &database,
        "orders",
        "state = 'ACTIVE' AND last_failure_at IS NULL",
    );
}

#[test]
fn failures_make_it_degraded_and_a_success_active_again() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 2);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips, queued, in_flight, parked, failed) = ('DEGRADED', 2, 0, 2, 0, 0, 0)
         AND last_error = 'HTTP 500' AND last_failure_at = (SELECT max(finished_at) FROM webhook.attempt)
         AND next_probe_at IS NULL AND last_success_at IS NULL",
    );
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, queued) = ('ACTIVE', 0, 2)
         AND last_error = 'HTTP 500' AND last_failure_at IS NOT NULL",
    );
}

#[test]
fn at_the_threshold_it_is_open_and_says_when_it_is_probed_and_what_is_parked() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 4)");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips, queued, in_flight, parked, failed) = ('OPEN', 3, 1, 7, 0, 4, 0)
         AND reason = '3 failures in a row, the last: HTTP 500'
         AND since = last_failure_at AND next_probe_at = last_failure_at + interval '1 h'",
    );
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn it_is_half_open_while_the_probe_is_in_flight() {
    let database = database();
    let receiver = orders(&database, "cooldown = '10 ms', max_cooldown = '10 ms'");
    answer(&receiver, 500);
    receiver.hold_after("/orders", 3);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 3)");
    wait_for(
        &database,
        "orders",
        "(state, queued, in_flight, next_probe_at) IS NOT DISTINCT FROM ('HALF_OPEN', 3::bigint, 1::bigint, NULL::timestamptz)",
    );
    receiver.release("/orders");
}

#[test]
fn disabled_hides_paused_hides_open_and_none_of_them_is_probed() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    let parked = |state: &str| {
        format!("(state, parked, queued, consecutive_failures) = ('{state}', 1, 4, 3)")
    };
    let open = format!("{} AND next_probe_at IS NOT NULL", parked("OPEN"));
    assert_that(&database, "orders", &open);

    database.execute("SELECT webhook_pause('orders')");
    let paused = format!(
        "{} AND next_probe_at IS NULL AND since = (SELECT paused_at FROM webhook.endpoint)",
        parked("PAUSED")
    );
    assert_that(&database, "orders", &paused);

    database
        .execute("UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'moved away'");
    let disabled = format!(
        "{} AND next_probe_at IS NULL AND reason = 'moved away' AND since = (SELECT disabled_at FROM webhook.endpoint)",
        parked("DISABLED")
    );
    assert_that(&database, "orders", &disabled);

    database.execute("UPDATE webhook.endpoint SET disabled_at = NULL, disabled_reason = NULL");
    assert_that(&database, "orders", &paused);
    database.execute("UPDATE webhook.endpoint SET paused_at = NULL");
    assert_that(&database, "orders", &open);
}

#[test]
fn dead_letters_are_counted_for_each_endpoint() {
    let database = database();
    let receiver = orders(&database, "failure_threshold = 0");
    database.add_endpoint_with("others", &receiver.url("/"), "'{other}'");
    answer(&receiver, 404);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 3)");
    wait_for(
        &database,
        "orders",
        "(failed, queued, state, consecutive_failures) = (3, 0, 'DEGRADED', 3)",
    );
    assert_that(&database, "others", "(failed, state) = (0, 'ACTIVE')");
}

#[test]
fn no_credential_is_shown_wherever_it_is() {
    const TOKEN: &str = "T0KEN";
    let (database, receiver) = (database(), Receiver::start());
    let port = receiver.port();
    let urls = [
        format!("http://127.0.0.1:{port}/{TOKEN}"),
        format!("http://127.0.0.1:{port}/hooks/{TOKEN}/x?key={TOKEN}"),
        format!("http://127.0.0.1:{port}?{TOKEN}"),
        format!("http://127.0.0.1:{port}/?{TOKEN}"),
        format!("http://127.0.0.1:{port}//{TOKEN}"),
        format!("http://127.0.0.1:{port}/a:b@{TOKEN}"),
        format!("HTTP://127.0.0.1:{port}/{TOKEN}"),
    ];
    add_policy(&database, "strict", "success_status = '{}'");
    for (number, url) in urls.iter().enumerate() {
        let headers =
            format!(r#"{{"Authorization": "Bearer {TOKEN}", "X-Key": "{TOKEN}", "X-Empty": ""}}"#);
        let options = format!("policy => 'strict', headers => '{headers}'");
        database.add_endpoint_with(&format!("hook{number}"), url, &options);
    }
    database.add_endpoint_with("plain", &receiver.url("/"), "policy => 'strict'");
    let closed = Receiver::closed_url() + TOKEN;
    database.add_endpoint_with("closed", &closed, "policy => 'strict'");
    let secrets: String =
        database.query_one_value("SELECT string_agg(secret, ' ') FROM webhook.secret");

    // Failed, so that their errors are shown too.
    database.emit("order.created", json!({}));
    database.wait_until("SELECT bool_and(state = 'DEGRADED') FROM webhook.endpoint_status");
    let rows: String = database
        .query_one_value("SELECT string_agg(s::text, E'\\n') FROM webhook.endpoint_status s");
    assert!(!rows.contains(TOKEN), "{rows}");
    for secret in secrets.split(' ') {
        assert!(!rows.contains(secret), "{rows}");
    }
    for number in 0..urls.len() {
        assert_that(
            &database,
            &format!("hook{number}"),
            &format!(
                "lower(url) = 'http://127.0.0.1:{port}/***'
                 AND headers = '{{\"Authorization\": \"***\", \"X-Key\": \"***\", \"X-Empty\": \"***\"}}'"
            ),
        );
    }
    let shown = format!("url = 'http://127.0.0.1:{port}/' AND headers = '{{}}'");
    assert_that(&database, "plain", &shown);
}

// Pause and resume.

#[test]
fn a_paused_endpoint_gets_nothing_until_it_is_resumed() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let events = [(); 3].map(|()| database.emit("order.created", json!({})));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 0);
    assert_that(&database, "orders", "(state, parked) = ('PAUSED', 3)");

    let replayed: i64 = database.query_one_value("SELECT webhook_resume('orders')");
    assert_eq!(replayed, 0);
    for event in events {
        database.wait_for_status(event, "SENT");
    }
    assert_eq!(receiver.request_count(), 3);
    assert_that(&database, "orders", "state = 'ACTIVE' AND since IS NULL");
}

#[test]
fn what_is_in_flight_when_it_is_paused_is_finished_and_its_retry_waits() {
    let database = database();
    let receiver = orders(&database, "initial_delay = '1 ms'");
    receiver.hold("/orders");
    answer(&receiver, 500);
    database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    database.execute("SELECT webhook_pause('orders')");
    receiver.release("/orders");
    wait_for(
        &database,
        "orders",
        "(state, consecutive_failures, in_flight, parked) = ('PAUSED', 1, 0, 1)",
    );
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn pausing_again_changes_nothing() {
    let database = database();
    let _receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let since: String = database.query_one_value("SELECT since::text FROM webhook.endpoint_status");
    database.execute("SELECT webhook_pause('orders')");
    let still: String = database.query_one_value("SELECT since::text FROM webhook.endpoint_status");
    assert_eq!(since, still);
}

#[test]
fn resume_sets_the_counter_to_0_and_waiting_retries_are_due_now() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 2);
    database.execute("SELECT webhook_pause('orders')");
    let chosen: Uuid = database.query_one_value(
        "WITH one AS (SELECT event_id FROM webhook.delivery_queue LIMIT 1)
         UPDATE webhook.delivery d SET next_attempt_at = now() + interval '2 h' FROM one WHERE d.event_id = one.event_id
         RETURNING d.event_id",
    );
    let planned: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    );
    let parked_for_good: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', deliver_at => 'infinity')");

    database.execute("SELECT webhook_resume('orders')");
    assert_that(
        &database,
        "orders",
        "consecutive_failures = 0 AND state = 'ACTIVE'",
    );
    database.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    wait_for_a_witness(&database);
    // The times that people chose are kept.
    for event in [chosen, planned, parked_for_good] {
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    }
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn a_410_disables_and_resume_lets_it_go_on() {
    let database = database();
    let receiver = orders(&database, "");
    answer(&receiver, 410);
    let refused = database.emit("order.created", json!({}));
    wait_for(
        &database,
        "orders",
        "(state, reason, failed) = ('DISABLED', 'gone', 1)",
    );
    answer(&receiver, 200);
    let parked = database.emit("order.created", json!({}));
    wait_for_a_witness(&database);
    assert_that(&database, "orders", "parked = 1");
    assert_eq!(receiver.request_count(), 1);

    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(parked, "SENT");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, failed) = ('ACTIVE', 0, 1) AND num_nonnulls(reason, since) = 0",
    );
    // What had failed for good is the operator's to replay.
    assert_eq!(database.delivery_status(refused).as_deref(), Some("FAILED"));
}

#[test]
fn a_policy_that_disables_where_others_open_is_resumed_too() {
    let database = database();
    let receiver = orders(&database, "on_trip = 'disable'");
    fail(&database, &receiver, 3);
    wait_for(
        &database,
        "orders",
        "(state, reason, consecutive_failures) = ('DISABLED', 'tripped', 3)",
    );
    database.execute("SELECT webhook_resume('orders')");
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('ACTIVE', 0)",
    );
}

/// The preset, but for its delays.
fn power5_in_milliseconds(database: &Database) {
    database.execute(
        "SELECT webhook_copy_policy('power5', 'power5_ms');
         UPDATE webhook.policy SET initial_delay = '1 ms', factor = 2 WHERE name = 'power5_ms'",
    );
}

/// 002: "Failed: exhausted 5 retries for one or more deliveries. No longer retrying automatically." And from there:
/// "Resume .. sets status=active, failure_count=0, retries pending deliveries (if any). If deliveries succeed, webhook
/// returns to Active state."
#[test]
fn power5_fails_when_retries_are_exhausted_and_resume_retries_what_is_pending() {
    let (database, receiver) = (database(), Receiver::start());
    power5_in_milliseconds(&database);
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'power5_ms'",
    );
    answer(&receiver, 500);
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    assert_that(
        &database,
        "orders",
        "(state, reason, consecutive_failures, failed) = ('DISABLED', 'exhausted', 6, 1)",
    );
    let pending = [(); 2].map(|()| database.emit("order.created", json!({})));
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 6);
    assert_that(&database, "orders", "parked = 2");

    answer(&receiver, 200);
    database.execute("SELECT webhook_resume('orders')");
    for event in pending {
        database.wait_for_status(event, "SENT");
    }
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, queued) = ('ACTIVE', 0, 0) AND reason IS NULL",
    );
}

#[test]
fn resume_retries_what_was_waiting_when_another_delivery_exhausted_its_attempts() {
    let (database, receiver) = (database(), Receiver::start());
    power5_in_milliseconds(&database);
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "'{order.*}', policy => 'power5_ms'",
    );
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'power5_ms'");
    answer(&receiver, 500);
    let waiting = database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) = 1 FROM webhook.attempt");
    database.execute("UPDATE webhook.policy SET initial_delay = '1 ms' WHERE name = 'power5_ms'");
    let exhausted = database.emit("order.created", json!({}));
    database.wait_for_status(exhausted, "FAILED");
    assert_that(&database, "orders", "(state, queued) = ('DISABLED', 1)");

    answer(&receiver, 200);
    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(waiting, "SENT");
    let attempts: i32 = database.query_one_value(&format!(
        "SELECT attempts FROM webhook.delivery WHERE event_id = '{waiting}'"
    ));
    assert_eq!(attempts, 2);
}

#[test]
fn a_single_final_failure_is_no_exhaustion() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'power5'");
    answer(&receiver, 404);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, failed) = ('DEGRADED', 1, 1)",
    );
}

#[test]
fn resume_closes_an_open_breaker_of_a_paused_endpoint() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_pause('orders')");
    database.execute("SELECT webhook_resume('orders')");
    assert_that(
        &database,
        "orders",
        "(state, trips, consecutive_failures) = ('ACTIVE', 0, 0)",
    );
    wait_for_empty_queue(&database);
    assert_eq!(receiver.request_count(), 6);
}

#[test]
fn an_endpoint_with_any_name_is_operated() {
    let database = database();
    let receiver = Receiver::start();
    let long = "n".repeat(200);
    for name in [
        r#"it's "quoted" \ 100%s %% %n"#,
        "ein Päckchen 📦",
        long.as_str(),
    ] {
        let quoted = name.replace('\'', "''");
        database.add_endpoint(&quoted, &receiver.url("/"));
        for function in ["pause", "resume", "reset_breaker"] {
            database.execute(&format!("SELECT webhook_{function}('{quoted}')"));
        }
        test_endpoint(&database, &quoted).assert_is("SENT", Some(200), None);
    }
}

// The breaker.

#[test]
fn reset_breaker_closes_it_now_and_everything_that_waits_is_sent() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    database.execute("SELECT webhook_reset_breaker('orders')");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips) = ('ACTIVE', 0, 0) AND num_nonnulls(reason, since, next_probe_at) = 0",
    );
    wait_for_empty_queue(&database);
    assert_eq!(receiver.request_count(), 3 + 4);
}

#[test]
fn a_probe_under_way_when_the_breaker_is_reset_counts_as_any_other() {
    let database = database();
    let receiver = orders(&database, "cooldown = '10 ms', max_cooldown = '10 ms'");
    answer(&receiver, 500);
    receiver.hold_after("/orders", 3);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 3)");
    wait_for(&database, "orders", "state = 'HALF_OPEN'");
    database.execute("SELECT webhook_pause('orders'); SELECT webhook_reset_breaker('orders')");
    receiver.release("/orders");
    wait_for(&database, "orders", "in_flight = 0");
    assert_that(
        &database,
        "orders",
        "(consecutive_failures, trips) = (1, 0) AND next_probe_at IS NULL",
    );
}

#[test]
fn reset_breaker_does_not_resume() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_pause('orders'); SELECT webhook_reset_breaker('orders')");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('PAUSED', 0)",
    );
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 3);
}

#[test]
fn what_needs_no_change_is_not_changed() {
    let database = database();
    let _receiver = orders(&database, "");
    let before = contents(&database);
    database.execute("SELECT webhook_reset_breaker('orders'); SELECT webhook_resume('orders')");
    assert_eq!(contents(&database), before);
}

#[test]
fn each_of_them_wakes_the_worker() {
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1 h'")
        .start();
    let database = cluster.database("woken");
    let receiver = orders(&database, "failure_threshold = 1");
    let stop_and_go = [
        (
            "SELECT webhook_pause('orders')",
            "SELECT webhook_resume('orders')",
        ),
        ("", "SELECT webhook_reset_breaker('orders')"),
        ("", "SELECT webhook_resume('orders')"),
        ("", "CALL webhook_test('orders')"),
    ];
    let mut fastest = [Duration::MAX; 4];
    for round in 0..4 {
        for ((stop, go), fastest) in stop_and_go.into_iter().zip(&mut fastest) {
            if stop.is_empty() {
                fail(&database, &receiver, 1);
                assert_that(&database, "orders", "state = 'OPEN'");
            } else {
                database.execute(stop);
                database.emit("order.created", json!({}));
            }
            let begun = Instant::now();
            database.execute(go);
            wait_for_empty_queue(&database);
            if round > 0 {
                *fastest = begun.elapsed().min(*fastest);
            }
        }
    }
    // The worker keeps house every 5 s. A call that does not wake it waits for that, unless something else does: in each round
    // but the first for almost 5 s. A machine may stand still now and then, but not in all of them.
    for ((_, go), fastest) in stop_and_go.into_iter().zip(fastest) {
        assert!(fastest < Duration::from_millis(2500), "{go}: {fastest:?}");
    }
}

// Names, locks, isolation.

#[test]
fn an_unknown_name_is_refused_with_the_close_ones() {
    let database = database();
    let _receiver = orders(&database, "");
    for name in ["orders_eu", "billing", "Invoices"] {
        database.add_endpoint(name, "http://127.0.0.1/");
    }
    let calls = [
        "SELECT webhook_pause('{}')",
        "SELECT webhook_resume('{}')",
        "SELECT webhook_reset_breaker('{}')",
        "CALL webhook_test('{}')",
    ];
    let before = contents(&database);
    for call in calls {
        let refusal = |name: &str| database.refusal(&call.replace("{}", name));
        let close = refusal("order");
        assert_eq!(*close.code(), SqlState::UNDEFINED_OBJECT, "{call}");
        assert_eq!(close.message(), r#"endpoint "order" does not exist"#);
        assert_eq!(
            close.hint(),
            Some(r#"Did you mean "orders" or "orders_eu"?"#)
        );
        assert_eq!(refusal("ordres").hint(), Some(r#"Did you mean "orders"?"#));
        assert_eq!(
            refusal("invoices").hint(),
            Some(r#"Did you mean "Invoices"?"#)
        );
        let far = refusal("xyz");
        let listed = "SELECT name FROM webhook.endpoint lists them";
        assert!(far.hint().unwrap().contains(listed), "{far:?}");
    }
    assert_eq!(contents(&database), before);
}

#[test]
fn a_person_who_holds_an_endpoint_or_its_breaker_keeps_no_other_back() {
    let database = database();
    let receiver = orders(&database, "on_exhausted = 'disable', failure_threshold = 0");
    database.add_endpoint_with("free", &receiver.url("/free"), "policy => 'guarded'");
    fail(&database, &receiver, 1);
    for table in ["webhook.breaker", "webhook.endpoint"] {
        answer(&receiver, 500);
        let failures = database.query_one_value::<i64>("SELECT count(*) FROM webhook.attempt");
        let mut person = database.connect();
        let mut transaction = person.transaction().unwrap();
        let key = if table == "webhook.breaker" {
            "endpoint_id"
        } else {
            "id"
        };
        let lock = format!(
            "SELECT FROM {table} WHERE {key} = (SELECT id FROM webhook.endpoint WHERE name = 'orders') FOR UPDATE"
        );
        transaction.batch_execute(&lock).unwrap();

        let arrived = receiver.requests_to("/orders").len();
        database.emit("order.created", json!({}));
        receiver.wait_for_requests_to("/orders", arrived + 1);
        let events: Vec<Uuid> = (0..3)
            .map(|_| database.emit("order.created", json!({})))
            .collect();
        for event in &events {
            database.wait_until(&format!(
                "SELECT status = 'SENT' FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
                 WHERE d.event_id = '{event}' AND e.name = 'free'"
            ));
        }
        let in_flight: i64 = transaction
            .query_one(
                "SELECT in_flight FROM webhook.endpoint_status WHERE name = 'orders'",
                &[],
            )
            .unwrap()
            .get(0);
        assert!(in_flight > 0, "{table}: settled past the lock");
        transaction.rollback().unwrap();
        database.wait_until(&format!(
            "SELECT count(*) = {failures} + 4 FROM webhook.attempt"
        ));
        database.execute(
            "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING';
             SELECT webhook_reset_breaker('orders')",
        );
        // The counter again has something to reset.
        fail(&database, &receiver, 1);
    }
}

#[test]
fn the_functions_of_an_open_transaction_keep_no_other_endpoint_back() {
    let database = database();
    let receiver = orders(&database, "");
    database.add_endpoint_with("free", &receiver.url("/free"), "'{free}'");
    fail(&database, &receiver, 3);
    for function in ["webhook_pause", "webhook_resume", "webhook_reset_breaker"] {
        let mut person = database.connect();
        let mut transaction = person.transaction().unwrap();
        transaction
            .batch_execute(&format!("SELECT {function}('orders')"))
            .unwrap();
        let event = database.emit("free", json!({}));
        database.wait_for_status(event, "SENT");
        transaction.rollback().unwrap();
    }
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('OPEN', 3)",
    );
}

#[test]
fn all_of_it_works_where_transactions_are_repeatable_read() {
    let database = database();
    for isolation in ["repeatable read", "serializable"] {
        let name = database.name();
        database.execute(&format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'"
        ));
        let before = worker::pid(&database);
        worker::terminate(&database, before);
        worker::successor(&database, before);

        let receiver = Receiver::start();
        database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'fast'");
        database.execute("SELECT webhook_pause('orders')");
        let event = database.emit("order.created", json!({}));
        test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
        assert_that(&database, "orders", "(state, parked) = ('PAUSED', 1)");
        database.execute("SELECT webhook_resume('orders')");
        database.wait_for_status(event, "SENT");
        answer(&receiver, 500);
        test_endpoint(&database, "orders").assert_is("FAILED", Some(500), Some("HTTP 500"));
        database.execute("SELECT webhook_reset_breaker('orders')");
        database.execute("SELECT webhook_remove_endpoint('orders')");
    }
}

// The test.

#[test]
fn a_test_that_succeeds_shows_it_and_leaves_no_trace() {
    let database = database();
    for keep_sent in [true, false] {
        let receiver = Receiver::start();
        let name = format!("kept_{keep_sent}");
        add_policy(&database, &name, &format!("keep_sent = {keep_sent}"));
        let options = format!("'{{{name}}}', policy => '{name}'");
        database.add_endpoint_with("orders", &receiver.url("/orders"), &options);
        receiver.respond("/orders", |_, _| Answer::status(202).body("Thank you"));
        let before = contents(&database);
        let shown = test_endpoint(&database, "orders");
        shown.assert_is("SENT", Some(202), None);
        assert_eq!(shown.response.as_deref(), Some("Thank you"));
        assert!(shown.duration_ms.is_some(), "{shown:?}");
        assert_eq!(contents(&database), before);

        let requests = receiver.requests();
        assert_eq!(requests.len(), 1);
        let body = requests[0].json();
        assert_eq!(body["type"], "webhook.test");
        assert_eq!(body["id"], requests[0].header("webhook-id"));
        assert!(body["data"]["message"].is_string(), "{body}");
        database.execute("SELECT webhook_remove_endpoint('orders')");
    }
}

#[test]
fn a_test_that_fails_shows_it_and_leaves_no_trace() {
    let database = database();
    let strict = "failure_threshold = 1, on_exhausted = 'disable', warn_threshold = 1";
    add_policy(&database, "strict", strict);
    add_policy(&database, "hasty", &format!("{strict}, timeout = '200 ms'"));
    let receiver = Receiver::start();
    let refusing = |status: u16| move |_: &_, _| Answer::status(status).body("No such order");
    receiver.respond("/500", refusing(500));
    receiver.respond("/404", refusing(404));
    receiver.respond("/410", refusing(410));
    receiver.hold("/hangs");
    let response = Some("No such order");
    let cases = [
        (receiver.url("/500"), Some(500), "HTTP 500", response),
        (receiver.url("/404"), Some(404), "HTTP 404", response),
        (receiver.url("/410"), Some(410), "HTTP 410", response),
        (
            receiver.url("/hangs"),
            None,
            "no response within 200ms",
            None,
        ),
        (Receiver::closed_url(), None, "connection refused", None),
    ];
    for (number, (url, code, error, response)) in cases.into_iter().enumerate() {
        let name = format!("case{number}");
        let policy = match url.ends_with("/hangs") {
            true => "policy => 'hasty'",
            false => "policy => 'strict'",
        };
        database.add_endpoint_with(&name, &url, policy);
        let before = contents(&database);
        let shown = test_endpoint(&database, &name);
        shown.assert_is("FAILED", code, Some(error));
        assert_eq!(shown.response.as_deref(), response, "{shown:?}");
        assert_eq!(contents(&database), before, "{name}");
        assert_that(
            &database,
            &name,
            "(state, consecutive_failures) = ('ACTIVE', 0)",
        );
    }
}

#[test]
fn tests_are_not_counted_among_deliveries() {
    let database = database();
    let receiver = orders(&database, "");
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    answer(&receiver, 500);
    test_endpoint(&database, "orders").assert_is("FAILED", Some(500), Some("HTTP 500"));
    answer(&receiver, 200);
    database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) > 0 FROM webhook.tally");
    let counted: (String, i64) = {
        let query =
            "SELECT string_agg(DISTINCT status, ','), sum(deliveries)::bigint FROM webhook.tally";
        let row = database.connect().query_one(query, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    assert_eq!(counted, ("SENT".to_owned(), 1));
}

#[test]
fn a_failed_test_changes_the_state_of_no_endpoint() {
    let database = database();
    let receiver = orders(&database, "");
    let states = [
        ("DEGRADED", ""),
        ("PAUSED", "SELECT webhook_pause('orders')"),
        (
            "DISABLED",
            "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'exhausted'",
        ),
        ("OPEN", "SELECT webhook_resume('orders')"),
    ];
    fail(&database, &receiver, 1);
    for (state, change) in states {
        database.execute(change);
        if state == "OPEN" {
            wait_for_empty_queue(&database);
            fail(&database, &receiver, 3);
        }
        // What follows the change by itself has followed.
        wait_for_a_witness(&database);
        assert_that(&database, "orders", &format!("state = '{state}'"));
        let before = contents(&database);
        for status in [500, 404, 410] {
            answer(&receiver, status);
            let error = format!("HTTP {status}");
            test_endpoint(&database, "orders").assert_is(
                "FAILED",
                Some(status.into()),
                Some(&error),
            );
            assert_eq!(contents(&database), before, "{state}, {status}");
        }
        answer(&receiver, 200);
    }
}

#[test]
fn a_test_is_not_taken_for_the_probe() {
    let database = database();
    let receiver = orders(&database, "when_open = 'fail'");
    fail(&database, &receiver, 3);
    database.execute("UPDATE webhook.delivery SET status = 'CANCELLED' WHERE status = 'PENDING'");
    database.execute("UPDATE webhook.breaker SET probe_at = now() - interval '1 s'");
    let before = contents(&database);
    answer(&receiver, 500);
    test_endpoint(&database, "orders").assert_is("FAILED", Some(500), Some("HTTP 500"));
    assert_eq!(contents(&database), before);

    // And the probe is still to come.
    answer(&receiver, 200);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_that(&database, "orders", "state = 'ACTIVE'");
}

#[test]
fn a_test_reaches_a_paused_endpoint_and_it_stays_paused() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    let parked = database.emit("order.created", json!({}));
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    assert_that(&database, "orders", "(state, parked) = ('PAUSED', 1)");
    assert_eq!(database.delivery_status(parked).as_deref(), Some("PENDING"));
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn a_successful_test_resumes_what_exhaustion_disabled_and_nothing_else() {
    let database = database();
    let receiver = orders(&database, "");
    for (reason, state) in [
        ("exhausted", "ACTIVE"),
        ("gone", "DISABLED"),
        ("tripped", "DISABLED"),
        ("moved away", "DISABLED"),
    ] {
        fail(&database, &receiver, 1);
        database.execute(&format!(
            "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = '{reason}'"
        ));
        let parked = database.emit("order.created", json!({}));
        test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
        assert_that(
            &database,
            "orders",
            &format!("(state, consecutive_failures) = ('{state}', 0)"),
        );
        if state == "DISABLED" {
            assert_that(&database, "orders", &format!("reason = '{reason}'"));
            assert_eq!(database.delivery_status(parked).as_deref(), Some("PENDING"));
            database.execute("SELECT webhook_resume('orders')");
        }
        // Also the retry that would have waited for an hour.
        wait_for_empty_queue(&database);
    }
}

#[test]
fn an_endpoint_that_a_person_paused_as_well_stays_paused() {
    let database = database();
    let _receiver = orders(&database, "");
    database.execute(
        "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'exhausted', paused_at = now()",
    );
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    assert_that(&database, "orders", "state = 'PAUSED'");
}

#[test]
fn a_successful_test_closes_an_open_breaker_and_what_is_parked_follows() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips) = ('ACTIVE', 0, 0)",
    );
    assert_eq!(receiver.request_count(), 3 + 1 + 4);
}

#[test]
fn a_test_does_not_wait_behind_a_backlog() {
    const BACKLOG: usize = 5000;
    let database = database();
    let receiver = orders(&database, "");
    database.execute("UPDATE webhook.endpoint SET max_in_flight = 2");
    receiver.hold("/held");
    receiver.hold_after("/orders", 10);
    let held = receiver.url("/held");
    database.add_endpoint_with("held", &held, "'{held}', max_in_flight => 1");
    database.execute(&format!(
        "SELECT webhook_emit('held') FROM generate_series(1, 100);
         SELECT webhook_emit('order.created') FROM generate_series(1, {BACKLOG})"
    ));
    receiver.wait_for_requests_to("/orders", 11);
    let test = test_in_background(&database, "hasty");
    database
        .wait_until("SELECT EXISTS (SELECT FROM webhook.breaker WHERE test_event_id IS NOT NULL)");
    receiver.release("/orders");
    let shown = test.join().unwrap().unwrap();
    shown.assert_is("SENT", Some(200), None);
    let requests = receiver.requests_to("/orders");
    let place = (requests.iter()).position(|request| request.json()["type"] == "webhook.test");
    // Behind what was claimed before it, which is little.
    assert!(place.unwrap() < BACKLOG / 10, "{place:?}");
    receiver.release("/held");
}

#[test]
fn a_second_test_at_the_same_time_is_refused() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let first = test_in_background(&database, "first");
    receiver.wait_for_requests(1);
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_IN_USE);
    assert_eq!(
        refusal.message(),
        r#"endpoint "orders" is being tested already"#
    );
    assert!(refusal.hint().is_some());

    // Another endpoint's test is nobody's business.
    database.add_endpoint("others", &receiver.url("/others"));
    test_endpoint(&database, "others").assert_is("SENT", Some(200), None);
    receiver.release("/orders");
    let shown = first.join().unwrap().unwrap();
    shown.assert_is("SENT", Some(200), None);
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
}

#[test]
fn of_two_tests_that_begin_at_the_same_moment_one_is_refused() {
    let database = database();
    let receiver = orders(&database, "");
    database.execute("SELECT webhook_pause('orders')");
    // The first has not committed yet when the second asks.
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    transaction
        .batch_execute("SELECT webhook.queue_test('orders')")
        .unwrap();
    let second = test_in_background(&database, "second");
    database.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'",
    );
    receiver.hold("/orders");
    transaction.commit().unwrap();
    let refused = second.join().unwrap();
    let refused = refused.expect_err("both were queued");
    assert_eq!(refused.code(), Some(&SqlState::OBJECT_IN_USE));
    receiver.release("/orders");
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn the_next_test_works_after_a_caller_was_killed() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let killed = test_in_background(&database, "doomed");
    receiver.wait_for_requests(1);
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'",
    );
    assert!(killed.join().unwrap().is_err());
    // It is still under way.
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_IN_USE);

    answer(&receiver, 500);
    receiver.release("/orders");
    wait_for_empty_queue(&database);
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures) = ('ACTIVE', 0)",
    );
    answer(&receiver, 200);
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn a_test_survives_a_restart_of_the_worker() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let test = test_in_background(&database, "survivor");
    receiver.wait_for_requests(1);
    let pid = worker::pid(&database);
    worker::terminate(&database, pid);
    worker::successor(&database, pid);
    receiver.wait_for_requests(2);
    receiver.release("/orders");
    let shown = test.join().unwrap().unwrap();
    shown.assert_is("SENT", Some(200), None);
    assert_that(&database, "orders", "(state, queued) = ('ACTIVE', 0)");
}

#[test]
fn a_test_whose_endpoint_is_removed_meanwhile_says_so() {
    let database = database();
    let receiver = orders(&database, "");
    receiver.hold("/orders");
    let test = test_in_background(&database, "orphan");
    receiver.wait_for_requests(1);
    database.execute("SELECT webhook_remove_endpoint('orders')");
    let shown = test.join().unwrap().unwrap();
    shown.assert_is("CANCELLED", None, Some("endpoint removed"));
    receiver.release("/orders");
    let left: i64 = database.query_one_value(
        "SELECT (SELECT count(*) FROM webhook.event) + (SELECT count(*) FROM webhook.delivery)
              + (SELECT count(*) FROM webhook.breaker)",
    );
    assert_eq!(left, 0);
}

#[test]
fn inside_a_transaction_block_it_is_an_error_and_nothing_is_sent() {
    let database = database();
    let receiver = orders(&database, "");
    let before = contents(&database);
    let mut person = database.connect();
    let mut transaction = person.transaction().unwrap();
    let refusal = database::refusal(&mut transaction, "CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::INVALID_TRANSACTION_TERMINATION);
    transaction.rollback().unwrap();
    // Several statements in one message are a block as well.
    let refusal = database.refusal("SELECT 1; CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::INVALID_TRANSACTION_TERMINATION);
    assert_eq!(contents(&database), before);
    wait_for_a_witness(&database);
    assert_eq!(receiver.request_count(), 0);
}

#[test]
fn where_nothing_is_sent_a_test_says_so() {
    let mut cluster = Cluster::builder().without_preload().start();
    let database = cluster.database("untested");
    let receiver = orders(&database, "");
    let refuse = |state: &str, detail: &str| {
        let before = contents(&database);
        let refusal = database.refusal("CALL webhook_test('orders')");
        assert_eq!(
            *refusal.code(),
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "{refusal:?}"
        );
        let message = format!("nothing is sent at the moment: {state}");
        assert_eq!(refusal.message(), message);
        assert!(refusal.detail().unwrap().contains(detail), "{refusal:?}");
        assert!(
            refusal.hint().unwrap().contains("webhook_status()"),
            "{refusal:?}"
        );
        assert_eq!(contents(&database), before);
    };
    refuse("not preloaded", "shared_preload_libraries");

    cluster.configure("shared_preload_libraries = 'webhook'");
    cluster.configure("webhook.enabled = off");
    cluster.restart();
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    refuse("disabled", "webhook.enabled");

    cluster.configure("webhook.enabled = on");
    cluster.reload();
    database.wait_until("SELECT state = 'running' FROM webhook_status()");
    test_endpoint(&database, "orders").assert_is("SENT", Some(200), None);

    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    let before = contents(&database);
    let refusal = database.refusal("CALL webhook_test('orders')");
    assert_eq!(*refusal.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(
        refusal.hint().unwrap().contains("webhook_adopt()"),
        "{refusal:?}"
    );
    assert_eq!(contents(&database), before);
    assert_eq!(receiver.request_count(), 1);
}
