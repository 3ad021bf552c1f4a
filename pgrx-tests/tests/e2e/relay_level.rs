//! The level `relay`: a program that faces a network gets what its claims need, and no value that it reports breaks more
//! than the report.

use postgres::Client;
use serde_json::{Value, json};
use webhook_e2e::database::refusal;
use webhook_e2e::{Cluster, Database};

/// A database whose worker claims nothing, and a session of a role that has this level alone.
struct Stage {
    database: Database,
    role: String,
    session: Client,
}

impl Stage {
    fn set(name: &str) -> Stage {
        Stage::on(Cluster::idle(), name)
    }

    fn on(cluster: &Cluster, name: &str) -> Stage {
        let database = cluster.database(name);
        let role = format!("{}_relay", database.name());
        database.execute(&format!(
            "CREATE ROLE {role} LOGIN; SELECT webhook_grant('{role}', 'relay')"
        ));
        let session = database.connect_as(&role);
        Stage {
            database,
            role,
            session,
        }
    }

    fn add_endpoint(&self, name: &str, options: &str) -> i32 {
        let url = format!("http://127.0.0.1:9/{name}");
        self.database.add_endpoint_with(name, &url, options);
        self.id(name)
    }

    fn id(&self, name: &str) -> i32 {
        let id = format!("SELECT id FROM webhook.endpoint WHERE name = '{name}'");
        self.database.query_one_value(&id)
    }

    /// Asks for one delivery of each endpoint, with the stamps of routes that it knows.
    fn claim(&mut self, endpoints: &[i32], known: &[Option<String>]) -> Claimed {
        let ones = vec![1; endpoints.len()];
        let rooms = vec![1_000_000_i64; endpoints.len()];
        let rows = self.session.query(
            "SELECT event_id::text, endpoint_id, claim_seq, report::text
             FROM webhook.exchange('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', $1, NULL, 1, $2, $3, 1000000, $4)",
            &[&endpoints, &ones, &rooms, &known],
        );
        let rows = rows.unwrap();
        let (report, claims) = rows.split_last().expect("a report");
        let report: Value = serde_json::from_str(report.get(3)).unwrap();
        Claimed {
            claims: claims
                .iter()
                .map(|row| (row.get(0), row.get(1), row.get(2)))
                .collect(),
            routes: report["routes"].as_array().cloned().unwrap_or_default(),
        }
    }

    /// Hands in the end of an attempt; the arguments are those after the claim.
    fn settle(&mut self, claim: &(String, i32, i64), outcome: &str) {
        let (event, endpoint, claim_seq) = claim;
        let sql = format!(
            "SELECT webhook.exchange('{{{event}}}', '{{{endpoint}}}', '{{{claim_seq}}}', {outcome}, '{{}}', '{{}}', 1, '{{}}', '{{}}', 0)"
        );
        let result = self.session.batch_execute(&sql);
        result.unwrap_or_else(|error| panic!("{outcome}: {error:?}"));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let role = &self.role;
        let _ = (self.database.connect())
            .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
}

struct Claimed {
    claims: Vec<(String, i32, i64)>,
    routes: Vec<Value>,
}

impl Claimed {
    fn endpoints(&self) -> Vec<i32> {
        self.claims
            .iter()
            .map(|(_, endpoint, _)| *endpoint)
            .collect()
    }

    fn routed(&self) -> Vec<i64> {
        let ids = self
            .routes
            .iter()
            .filter_map(|route| route["endpoint_id"].as_i64());
        ids.collect()
    }
}

#[test]
fn a_sender_gets_the_routes_of_its_claims_and_no_other() {
    let mut stage = Stage::set("routes");
    let open = stage.add_endpoint("open", "event_types => '{order.*}'");
    let secrets = r#"event_types => '{never}', headers => '{"Authorization": "Bearer HUSH"}'"#;
    let idle = stage.add_endpoint("idle", secrets);
    let paused = stage.add_endpoint("paused", "event_types => '{order.*}'");
    stage.database.execute("SELECT webhook_pause('paused')");
    stage.database.emit("order.created", json!({}));

    let all = [open, idle, paused, 1_000_000];
    let claimed = stage.claim(&all, &[None, None, None, None]);
    assert_eq!(claimed.endpoints(), [open]);
    assert_eq!(claimed.routed(), [i64::from(open)]);
    // Nothing is due any more.
    assert_eq!(
        stage.claim(&all, &[None, None, None, None]).routed(),
        [0_i64; 0]
    );
    // The others are no different when something is due there.
    stage.database.execute("SELECT webhook_resume('paused')");
    let claimed = stage.claim(&all, &[None, None, None, None]);
    assert_eq!(claimed.routed(), [i64::from(paused)]);
}

#[test]
fn a_sender_gets_a_changed_route_with_its_next_claim() {
    let mut stage = Stage::set("changed");
    let orders = stage.add_endpoint("orders", "event_types => '{order.*}'");
    for _ in 0..5 {
        stage.database.emit("order.created", json!({}));
    }
    let route = stage.claim(&[orders], &[None]).routes.remove(0);
    let known = || [route["stamp"].as_str().map(str::to_owned)];
    assert_eq!(route["url"], "http://127.0.0.1:9/orders");
    assert_eq!(stage.claim(&[orders], &known()).routes.len(), 0);

    stage
        .database
        .execute("UPDATE webhook.endpoint SET url = 'http://127.0.0.1:9/moved'");
    let moved = stage.claim(&[orders], &known()).routes.remove(0);
    assert_eq!(moved["url"], "http://127.0.0.1:9/moved");
    let known = [moved["stamp"].as_str().map(str::to_owned)];
    assert_eq!(stage.claim(&[orders], &known).routes.len(), 0);

    let secret: String = stage
        .database
        .query_one_value("SELECT webhook_rotate_secret('orders')");
    let rotated = stage.claim(&[orders], &known).routes.remove(0);
    assert_eq!(rotated["secrets"][0], secret);
}

#[test]
fn figures_that_no_sender_can_have_counted_are_refused() {
    let mut stage = Stage::set("figures");
    let id = stage.add_endpoint("orders", "event_types => '{order.*}'");
    for figure in [
        json!({"endpoint_id": id, "failed": -1}),
        json!({"endpoint_id": id, "failed": 1_000_000_000_000_i64}),
        json!({"endpoint_id": id, "attempts": i64::MAX}),
        json!({"endpoint_id": id, "retries": i64::MIN}),
        json!({"endpoint_id": id, "attempt_latency": {"400": 1}}),
        json!({"endpoint_id": id, "delivery_latency": {"999": 1}}),
        json!({"endpoint_id": id, "delivery_latency": {"7": -1}}),
        json!({"endpoint_id": id, "delivery_latency": {"7": 1_000_000_000_000_i64}}),
        json!({"endpoint_id": id, "delivery_latency": {"7": 0.5}}),
        json!({"endpoint_id": id, "delivery_latency": {"fast": 1}}),
        json!({"endpoint_id": id, "delivery_latency": [1]}),
        json!({"endpoint_id": 0, "sent": 1}),
        json!({"endpoint_id": -id, "sent": 1}),
        json!({"sent": 1}),
    ] {
        // Those beside it are not added either.
        let figures = json!([{"endpoint_id": id, "sent": 1}, figure]);
        let refusal = refusal(
            &mut stage.session,
            &format!("SELECT webhook.add_figures('{figures}')"),
        );
        assert_eq!(refusal.code().code(), "22023", "{figures}: {refusal:?}");
    }
    for figures in [
        r#"[{"sent": 0.5}]"#,
        r#"[{"sent": 1e30}]"#,
        r#"{"sent": 1}"#,
        "7",
    ] {
        let refusal = refusal(
            &mut stage.session,
            &format!("SELECT webhook.add_figures('{figures}')"),
        );
        assert!(
            refusal.code().code().starts_with("22"),
            "{figures}: {refusal:?}"
        );
    }
    // No retention would delete figures of an endpoint that never was.
    let others = "SELECT webhook.add_figures('[{\"endpoint_id\": 1000000, \"sent\": 1}]')";
    stage.session.batch_execute(others).unwrap();
    let rows = "SELECT count(*) FROM webhook.stat";
    assert_eq!(stage.database.query_one_value::<i64>(rows), 0);

    let figures = json!([{"endpoint_id": id, "attempts": 999_999_999_999_i64, "sent": 3, "failed": null,
                          "delivery_latency": {"0": 2, "399": 1}}]);
    stage
        .session
        .batch_execute(&format!("SELECT webhook.add_figures('{figures}')"))
        .unwrap();
    let added = format!(
        "SELECT bool_and((attempts, sent, failed, delivery_latency) = (999999999999, 3, 0, '{{\"0\": 2, \"399\": 1}}')) AND count(*) = 6
         FROM webhook.stat WHERE endpoint_id IN (0, {id})"
    );
    assert!(stage.database.query_one_value::<bool>(&added));
}

#[test]
fn figures_end_at_a_number_and_never_in_an_error() {
    const POISONS: [(&str, &str); 3] = [
        ("9223372036854775807", r#"{"5": 9223372036854775807}"#),
        (
            "-9223372036854775808",
            r#"{"5": -99999999999999999999999, "999": 1, "x": 2}"#,
        ),
        (
            "1000000000000000000",
            r#"{"5": 1e300, "6": "many", "7": null}"#,
        ),
    ];
    let mut stage = Stage::set("poisoned");
    let id = stage.add_endpoint("orders", "event_types => '{order.*}'");
    let figures = json!([{"endpoint_id": id, "attempts": 2, "sent": 1, "failed": 1, "retried": 1, "retries": 1,
                          "attempt_latency": {"5": 2}, "delivery_latency": {"5": 1}}]);
    let add = format!("SELECT webhook.add_figures('{figures}')");
    stage.session.batch_execute(&add).unwrap();
    for (count, histogram) in POISONS {
        let poison = format!(
            "UPDATE webhook.stat SET attempts = {count}, sent = {count}, failed = {count}, retried = {count}, retries = {count},
                    attempt_latency = '{histogram}', delivery_latency = '{histogram}'"
        );
        stage.database.execute(&poison);
        let expired = "SELECT webhook_emit('order.created', expires_at => now() - interval '1 s')";
        let event: uuid::Uuid = stage.database.query_one_value(expired);
        stage
            .session
            .batch_execute("SELECT webhook.expire_waiting(100)")
            .unwrap();
        let status = stage.database.delivery_status(event);
        assert_eq!(status.as_deref(), Some("FAILED"), "{count}");
        for call in [
            "SELECT webhook.check_metrics(), webhook.expire_figures(0, 100), webhook.raise_alerts()",
            &add,
        ] {
            let result = stage.session.batch_execute(call);
            result.unwrap_or_else(|error| panic!("{count}: {call}: {error:?}"));
        }
        for look in [
            "SELECT * FROM webhook.metrics",
            "SELECT * FROM webhook_status()",
            "SELECT * FROM webhook.endpoint_status",
            "SELECT webhook_why(), webhook_why('orders')",
        ] {
            stage.database.execute(&poison);
            stage.database.execute(look);
            stage.session.batch_execute(&add).unwrap();
            stage.database.execute(look);
        }
        let bounded = "SELECT bool_and(greatest(attempts, sent, failed, retried, retries) <= 1000000000000000000
                                       AND least(attempts, sent, failed, retried, retries) >= 0
                                       AND (delivery_latency ->> '5')::numeric BETWEEN 0 AND 1000000000000000000)
                       FROM webhook.stat";
        assert!(stage.database.query_one_value::<bool>(bounded), "{count}");
    }
    let p95 = "SELECT value < 1 FROM webhook.metrics WHERE metric = 'webhook_delivery_p95_latency'";
    assert!(stage.database.query_one_value::<bool>(p95));
}

#[test]
fn an_outcome_with_absurd_values_is_bounded_or_refused() {
    let mut stage = Stage::set("absurd");
    let id = stage.add_endpoint("orders", "policy => 'patient'");
    // Status, failure, error, excerpt, Retry-After, duration, age.
    for outcome in [
        "'{200}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{-5}', '{Infinity}'",
        "'{200}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NaN}'",
        "'{503}', '{NULL}', ARRAY[repeat('x', 10000000)], ARRAY[repeat('y', 10000000)], '{-1}', '{-5}', '{1e15}'",
        "'{503}', '{NULL}', '{NULL}', '{NULL}', '{1e12}', '{}', '{-Infinity}'",
        "'{NULL}', '{connect}', ARRAY[repeat('x', 10000000)], '{}', '{}', '{2147483647}', '{}'",
    ] {
        stage.database.emit("order.created", json!({}));
        let reset = "SELECT webhook_reset_breaker('orders')";
        stage.database.execute(reset);
        let claimed = stage.claim(&[id], &[None]);
        assert_eq!(claimed.endpoints(), [id], "{outcome}");
        stage.settle(&claimed.claims[0], outcome);
        // Nothing is due but what comes next.
        stage.database.execute(
            "UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE status = 'PENDING'",
        );
    }
    for (what, holds) in [
        (
            "times",
            "SELECT bool_and(last_attempt_at BETWEEN now() - interval '11 years' AND now()) FROM webhook.delivery",
        ),
        (
            "durations",
            "SELECT bool_and(duration_ms >= 0) FROM webhook.delivery",
        ),
        (
            "errors of deliveries",
            "SELECT max(length(last_error)) = 2000 FROM webhook.delivery",
        ),
        (
            "the log",
            "SELECT max(length(error)) = 2000 AND max(length(response_excerpt)) = 2048 AND min(duration_ms) = 0 FROM webhook.attempt",
        ),
        (
            "breakers",
            "SELECT max(length(last_error)) <= 2000 FROM webhook.breaker",
        ),
        (
            "alerts",
            "SELECT coalesce(max(length(error)), 0) < 2100 FROM webhook.alert",
        ),
    ] {
        assert!(stage.database.query_one_value::<bool>(holds), "{what}");
    }
    // A batch that cannot be stored is refused, and the claim is as it was.
    stage.database.emit("order.created", json!({}));
    let (event, endpoint, claim_seq) = stage.claim(&[id], &[None]).claims.remove(0);
    for outcome in [
        "'{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{1}', '{1}'",
        "'{NULL}', '{invented}', '{x}', '{NULL}', '{NULL}', '{1}', '{1}'",
        "'{503}', '{NULL}', '{NULL}', '{NULL}', '{NaN}', '{1}', '{1}'",
    ] {
        let sql = format!(
            "SELECT webhook.exchange('{{{event}}}', '{{{endpoint}}}', '{{{claim_seq}}}', {outcome}, '{{}}', '{{}}', 1, '{{}}', '{{}}', 0)"
        );
        let refusal = refusal(&mut stage.session, &sql);
        let class = &refusal.code().code()[..2];
        assert!(["22", "23"].contains(&class), "{outcome}: {refusal:?}");
    }
    let event = event.parse().unwrap();
    assert_eq!(
        stage.database.delivery_status(event).as_deref(),
        Some("SENDING")
    );
}

#[test]
fn a_late_outcome_of_a_claim_that_never_was_is_not_logged() {
    let mut stage = Stage::set("late");
    stage
        .database
        .add_guarding_policy("spends", 5, "when_open = 'attempt'");
    let id = stage.add_endpoint("orders", "policy => 'spends'");
    let event = stage.database.emit("order.created", json!({}));
    let invented = (event.to_string(), id, 1);
    stage.settle(
        &invented,
        "'{500}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{1}', '{1}'",
    );
    let logged = "SELECT count(*) FROM webhook.attempt";
    assert_eq!(stage.database.query_one_value::<i64>(logged), 0);

    // The log has the number already: an attempt that an open breaker takes off is not stopped by that.
    stage.database.execute(&format!(
        "INSERT INTO webhook.breaker (endpoint_id, state, trips, opened_at, probe_at) VALUES ({id}, 'OPEN', 1, now(), now() + interval '1 h');
         INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, verdict, duration_ms, finished_at)
         VALUES ('{event}', {id}, 1, 'late', 1, now())"
    ));
    let turned = stage
        .session
        .query_one("SELECT webhook.turn_away($1, 10)", &[&vec![id]]);
    assert_eq!(turned.unwrap().get::<_, i64>(0), 1);
}

#[test]
fn requests_in_flight_that_senders_report_do_not_break_the_status() {
    let mut stage = Stage::set("reports");
    let mut more = stage.database.connect_as(&stage.role);
    for session in [&mut stage.session, &mut more] {
        for in_flight in [i32::MIN, i32::MAX] {
            let take = "SELECT webhook.take_shares(webhook.begin_sender('relay', NULL, NULL), $1)";
            session.query_one(take, &[&in_flight]).unwrap();
        }
    }
    let in_flight = "SELECT in_flight FROM webhook_status()";
    assert_eq!(stage.database.query_one_value::<i32>(in_flight), 2_000_000);
}

#[test]
fn a_sender_neither_ends_runs_of_other_roles_nor_gives_up_their_shares() {
    // The worker of this cluster takes no share.
    let mut stage = Stage::on(Cluster::relayed(), "shares");
    let mut other = stage.database.connect();
    let begin = "SELECT webhook.begin_sender('relay', NULL, NULL)";
    let id: i32 = other.query_one(begin, &[]).unwrap().get(0);
    let take = "SELECT kept FROM webhook.take_shares($1, 0)";
    let held: Vec<i32> = other.query_one(take, &[&id]).unwrap().get(0);
    assert!(!held.is_empty());
    for call in [
        "SELECT webhook.release_shares($1, '{0}')",
        "SELECT webhook.begin_sender('relay', NULL, NULL, ARRAY[$1::int])",
        "SELECT webhook.end_senders(ARRAY[$1::int])",
    ] {
        stage.session.query(call, &[&id]).unwrap();
        let kept = format!(
            "SELECT lost_at IS NULL AND EXISTS (SELECT FROM webhook.share WHERE sender_id = {id}) FROM webhook.sender WHERE id = {id}"
        );
        assert!(stage.database.query_one_value::<bool>(&kept), "{call}");
    }
    // Of its own role it does.
    let mut again = stage.database.connect();
    let begin = "SELECT webhook.begin_sender('relay', NULL, NULL, ARRAY[$1::int])";
    again.query_one(begin, &[&id]).unwrap();
    let held = format!("SELECT EXISTS (SELECT FROM webhook.share WHERE sender_id = {id})");
    assert!(!stage.database.query_one_value::<bool>(&held));
}
