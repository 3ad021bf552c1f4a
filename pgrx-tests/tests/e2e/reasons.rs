//! The codes that monitors match: every verdict and reason is listed, documented and CHECKed, and stands where people
//! look.

use std::collections::BTreeSet;

use postgres::error::SqlState;
use serde_json::json;
use webhook_e2e::Cluster;
use webhook_e2e::engine::{self, Outcome};

#[test]
fn every_code_is_documented() {
    let database = Cluster::idle().database("documented");
    let codes = database
        .connect()
        .query("SELECT kind, code, meaning FROM webhook.code", &[])
        .unwrap();
    let kinds: BTreeSet<&str> = codes.iter().map(|row| row.get("kind")).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    let docs = concat!(
        include_str!("../../../docs/retries.md"),
        include_str!("../../../docs/states.md"),
        include_str!("../../../docs/alerts.md")
    );
    for row in &codes {
        let (code, meaning): (&str, &str) = (row.get("code"), row.get("meaning"));
        assert!(
            docs.contains(&format!("`{code}`")),
            "{code} has no place in docs/"
        );
        assert!(meaning.len() > 10, "{code}: {meaning}");
    }
}

#[test]
fn what_a_policy_may_retry_is_listed() {
    let database = Cluster::idle().database("retriable");
    let listed =
        "SELECT bool_and(webhook.is_reason(e)) FROM webhook.policy, unnest(retry_errors) AS e";
    assert!(database.query_one_value::<bool>(listed));
}

#[test]
fn a_code_that_is_not_listed_is_refused() {
    let database = Cluster::idle().database("refused");
    let delivery = "(event_id, endpoint_id, event_type, status, max_attempts, completed_at, last_error, reason)
                    VALUES (gen_random_uuid(), 1, 'a', ";
    let attempt = "INSERT INTO webhook.attempt (event_id, endpoint_id, claim_seq, duration_ms, finished_at, verdict, reason)
                   VALUES (gen_random_uuid(), 1, 1, 1, now(), ";
    let alert = "INSERT INTO webhook.alert (endpoint_id, kind, reason) VALUES (1, ";
    for (good, bad) in [
        (
            format!(
                "INSERT INTO webhook.delivery {delivery} 'FAILED', 1, now(), 'late', 'expired')"
            ),
            format!(
                "INSERT INTO webhook.delivery {delivery} 'FAILED', 1, now(), 'late', 'too late')"
            ),
        ),
        (
            format!(
                "INSERT INTO webhook.delivery {delivery} 'CANCELLED', 1, now(), 'gone', 'cancelled')"
            ),
            format!(
                "INSERT INTO webhook.delivery {delivery} 'CANCELLED', 1, now(), 'gone', 'gone')"
            ),
        ),
        (
            format!("INSERT INTO webhook.delivery {delivery} 'SENT', 1, now(), NULL, NULL)"),
            format!(
                "INSERT INTO webhook.delivery {delivery} 'FAILED', 1, now(), 'without a reason', NULL)"
            ),
        ),
        (
            format!("{attempt} 'retry', 'status')"),
            format!("{attempt} 'again', 'status')"),
        ),
        (
            format!("{attempt} 'late', NULL)"),
            format!("{attempt} 'late', 'HTTP 500')"),
        ),
        (
            "INSERT INTO webhook.breaker (endpoint_id, reason) VALUES (1, 'dns')".to_owned(),
            "INSERT INTO webhook.breaker (endpoint_id, reason) VALUES (2, 'DNS')".to_owned(),
        ),
        (
            format!("{alert} 'opened', 'dns')"),
            format!("{alert} 'opened', 'gone')"),
        ),
        (
            format!("{alert} 'disabled', 'gone')"),
            format!("{alert} 'disabled', 'dns')"),
        ),
        (
            format!("{alert} 'closed', NULL)"),
            format!("{alert} 'failed', 'late')"),
        ),
    ] {
        database.execute_as_engine(&good);
        let refusal = database.refusal(&bad);
        assert_eq!(*refusal.code(), SqlState::CHECK_VIOLATION, "{bad}");
    }
}

#[test]
fn those_who_read_see_the_codes_and_those_who_operate_may_write_them() {
    let database = Cluster::idle().database("seen");
    engine::add_endpoint(&database);
    let event = database.emit("order.created", json!({}));
    let role = |level| format!("{}_{level}", database.name());
    for level in ["read", "operate"] {
        let role = role(level);
        database.execute(&format!(
            "CREATE ROLE {role} LOGIN; SELECT webhook_grant('{role}', '{level}')"
        ));
    }
    let mut reader = database.connect_as(&role("read"));
    let codes = reader.query("SELECT * FROM webhook.code", &[]).unwrap();
    assert!(!codes.is_empty());
    let mut operator = database.connect_as(&role("operate"));
    let cancel = "UPDATE webhook.delivery SET status = 'CANCELLED' WHERE event_id = $1";
    assert_eq!(operator.execute(cancel, &[&event]).unwrap(), 1);
    let reason = "SELECT reason FROM webhook.delivery";
    assert_eq!(database.query_one_value::<String>(reason), "cancelled");
}

/// A failed delivery, a waiting one, the endpoint's state and the alert have the same code.
#[test]
fn monitors_find_the_code_where_they_look() {
    let database = Cluster::idle().database("found");
    engine::add_endpoint(&database);
    database.execute(
        "INSERT INTO webhook.policy (name, failure_threshold, warn_threshold, retry_status, retry_errors) VALUES ('watched', 3, 1, '{}', '{tls}');
         UPDATE webhook.endpoint SET policy = 'watched'",
    );
    for _ in 0..3 {
        database.emit("order.created", json!({}));
    }
    let claims = engine::claim_due(&database);
    let outcomes = [
        Outcome::status(404, 3000.0),
        Outcome::error("dns", 2000.0),
        Outcome::error("tls", 1000.0),
    ];
    let batch: Vec<_> = claims.into_iter().zip(outcomes).collect();
    let mut client = database.connect();
    engine::settle(&mut client, &batch);

    let text = |sql: &str| database.query_one_value::<String>(sql);
    let failed = "SELECT string_agg(concat_ws(' ', reason, last_status_code), ', ' ORDER BY failed_at) FROM webhook.failed";
    assert_eq!(text(failed), "status 404, dns");
    assert_eq!(
        text("SELECT why || ' ' || reason FROM webhook.waiting"),
        "open tls"
    );
    let state = "SELECT concat_ws(' ', state, reason, last_error) FROM webhook.endpoint_status";
    assert_eq!(text(state), "OPEN tls tls");
    let alerts =
        "SELECT string_agg(concat_ws(' ', kind, reason), ', ' ORDER BY id) FROM webhook.alert";
    assert_eq!(text(alerts), "degraded status, opened tls, failed dns");
    let attempts = "SELECT string_agg(concat_ws(' ', verdict, reason), ', ' ORDER BY finished_at) FROM webhook.attempt";
    assert_eq!(text(attempts), "final status, final dns, retry tls");
}

/// The sender says how long ago an attempt ended; a time in the future is now.
#[test]
fn the_database_clock_tells_when_an_attempt_ended() {
    let database = Cluster::idle().database("clock");
    engine::add_endpoint(&database);
    for _ in 0..2 {
        database.emit("order.created", json!({}));
    }
    let claims = engine::claim_due(&database);
    let outcomes = [
        Outcome::status(500, 90_000.0),
        Outcome::status(500, -90_000.0),
    ];
    let batch: Vec<_> = claims.into_iter().zip(outcomes).collect();
    let mut client = database.connect();
    let mut transaction = client.transaction().unwrap();
    engine::settle(&mut transaction, &batch);
    let row = transaction.query_one(
        "SELECT min(finished_at) = now() - interval '90 s' AND max(finished_at) = now() FROM webhook.attempt",
        &[],
    );
    assert!(row.unwrap().get::<_, bool>(0));
}
