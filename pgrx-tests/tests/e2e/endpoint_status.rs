//! The state of every endpoint, since when and why, and no credential.

use serde_json::json;
use webhook_e2e::operated::{
    add_policy, answer, assert_that, fail, orders, wait_for, wait_for_a_witness,
};
use webhook_e2e::{Cluster, Database, Receiver};

fn database() -> Database {
    Cluster::shared().database("endpoint_status")
}

#[test]
fn an_endpoint_is_active_and_its_last_success_is_known() {
    let database = database();
    let _receiver = orders(&database, "");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips, queued, in_flight, kept_back, failed) = ('ACTIVE', 0, 0, 0, 0, 0, 0)
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
        "(state, consecutive_failures, trips, queued, in_flight, kept_back, failed) = ('DEGRADED', 2, 0, 2, 0, 0, 0)
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
fn at_the_threshold_it_is_open_and_says_when_it_is_probed_and_what_is_kept_back() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 4)");
    assert_that(
        &database,
        "orders",
        "(state, consecutive_failures, trips, queued, in_flight, kept_back, failed) = ('OPEN', 3, 1, 7, 0, 4, 0)
         AND (reason, last_error) = ('status', 'HTTP 500')
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
    let kept_back = |state: &str| {
        format!("(state, kept_back, queued, consecutive_failures) = ('{state}', 1, 4, 3)")
    };
    let open = format!("{} AND next_probe_at IS NOT NULL", kept_back("OPEN"));
    assert_that(&database, "orders", &open);

    database.execute("SELECT webhook_pause('orders')");
    let paused = format!(
        "{} AND next_probe_at IS NULL AND reason IS NULL AND since = (SELECT paused_at FROM webhook.endpoint)",
        kept_back("PAUSED")
    );
    assert_that(&database, "orders", &paused);

    database
        .execute("UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'moved away'");
    let disabled = format!(
        "{} AND next_probe_at IS NULL AND reason = 'moved away' AND since = (SELECT disabled_at FROM webhook.endpoint)",
        kept_back("DISABLED")
    );
    assert_that(&database, "orders", &disabled);

    database.execute("UPDATE webhook.endpoint SET disabled_at = NULL, disabled_reason = NULL");
    assert_that(&database, "orders", &paused);
    database.resume_all();
    assert_that(&database, "orders", &open);
}

#[test]
fn an_endpoint_of_another_installation_is_held_whatever_else_it_is() {
    let database = database();
    let receiver = orders(&database, "");
    fail(&database, &receiver, 3);
    database.emit("order.created", json!({}));
    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    let held = "(state, reason, kept_back, queued, consecutive_failures) = ('HELD', 'other installation', 1, 4, 3)
                AND num_nonnulls(since, next_probe_at) = 0";
    assert_that(&database, "orders", held);
    for stop in [
        "SELECT webhook_pause('orders')",
        "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'moved away'",
    ] {
        database.execute(stop);
        assert_that(&database, "orders", held);
    }
    database.execute("SELECT webhook_adopt('orders')");
    assert_that(&database, "orders", "(state, kept_back) = ('DISABLED', 1)");
}

#[test]
fn the_address_comes_first_and_what_is_wide_last() {
    let database = database();
    database.add_endpoint("acme/orders", "http://127.0.0.1:9/");
    let columns: String = database.query_one_value(
        "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute
         WHERE attrelid = 'webhook.endpoint_status'::regclass AND attnum > 0",
    );
    assert_eq!(
        columns,
        "endpoint state reason since queued queued_bytes in_flight kept_back failed more consecutive_failures trips next_probe_at \
         last_success_at last_failure_at last_error policy tenant created_at event_types filter format url headers metadata \
         endpoint_id"
    );
    assert_that(&database, "acme/orders", "tenant = 'acme'");
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
