//! Why deliveries wait: the sentence of webhook.waiting for each; a column says one thing.

use postgres::Client;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::Database;
use webhook_e2e::engine::{self, Claim, Outcome};

/// The word that the view has for a delivery.
#[track_caller]
fn why(client: &mut Client, event: Uuid) -> String {
    let sql = "SELECT why FROM webhook.waiting WHERE event_id = $1";
    client.query_one(sql, &[&event]).unwrap().get(0)
}

#[track_caller]
fn emit_with(database: &Database, options: &str) -> Uuid {
    database.query_one_value(&format!("SELECT webhook_emit('order.created', {options})"))
}

#[track_caller]
fn set_time(database: &Database, event: Uuid, time: &str) {
    database.execute(&format!(
        "UPDATE webhook.delivery SET next_attempt_at = {time} WHERE event_id = '{event}'"
    ));
}

#[track_caller]
fn claimed(database: &Database) -> Vec<Uuid> {
    let claims = engine::claim_due(database);
    claims.iter().map(|claim| claim.event).collect()
}

/// A delivery of each kind, under the word for it; the claimed ones fail first and are to be retried.
struct Kinds {
    events: Vec<(&'static str, Uuid)>,
}

impl Kinds {
    #[track_caller]
    fn of(database: &Database) -> Kinds {
        let retry = emit_with(database, "ordering_key => 'a'");
        let ordered = emit_with(database, "ordering_key => 'a'");
        let claims = engine::claim_due(database);
        assert_eq!(claims.len(), 1);
        let failed: Vec<(Claim, Outcome)> =
            vec![(claims[0], Outcome::status(500, engine::LONG_AGO))];
        engine::settle(&mut database.connect(), &failed);
        set_retry_in_an_hour(database, retry);

        let parked = database.emit("order.created", json!({}));
        set_time(database, parked, "'infinity'");
        let put_off = database.emit("order.created", json!({}));
        set_time(database, put_off, "now() + interval '1 h'");
        let expired = emit_with(database, "expires_at => clock_timestamp()");
        Kinds {
            events: vec![
                ("retry", retry),
                ("ordered", ordered),
                ("parked", parked),
                ("parked", emit_with(database, "deliver_at => 'infinity'")),
                ("scheduled", put_off),
                (
                    "scheduled",
                    emit_with(database, "deliver_at => now() + interval '1 h'"),
                ),
                ("expired", expired),
                ("due", database.emit("order.created", json!({}))),
            ],
        }
    }
}

/// Its own time is long over, since the attempt ended long ago.
#[track_caller]
fn set_retry_in_an_hour(database: &Database, event: Uuid) {
    database.execute_as_engine(&format!(
        "UPDATE webhook.delivery_queue SET next_attempt_at = now() + interval '1 h' WHERE event_id = '{event}'"
    ));
}

#[test]
fn every_delivery_that_waits_says_why_in_a_word() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("words");
    engine::add_endpoint(&database);
    let kinds = Kinds::of(&database);
    let mut client = database.connect();
    for (word, event) in &kinds.events {
        assert_eq!(why(&mut client, *event), *word);
    }
    let shown: bool = database.query_one_value(
        "SELECT bool_and(endpoint = 'orders' AND event_type = 'order.created'
                         AND (next_attempt_at IS NULL) = (why = 'parked') AND (last_error = 'HTTP 500') IS NOT DISTINCT FROM (CASE why WHEN 'retry' THEN true END))
         FROM webhook.waiting",
    );
    assert!(shown);

    // A request in flight does not wait.
    let due = kinds.events.last().unwrap().1;
    assert_eq!(claimed(&database), [due]);
    let waits: bool = database.query_one_value(&format!(
        "SELECT EXISTS (SELECT FROM webhook.waiting WHERE event_id = '{due}')"
    ));
    assert!(!waits);
}

#[test]
fn what_keeps_the_endpoint_back_comes_before_a_delivery_s_own_reason() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("states");
    let endpoint = engine::add_endpoint(&database);
    let kinds = Kinds::of(&database);
    let mut client = database.connect();
    // Each of them counts more than the ones before it.
    let probe = Uuid::nil();
    for (word, state) in [
        (
            "open",
            "INSERT INTO webhook.breaker (endpoint_id, state, trips, opened_at, probe_at) VALUES ($1, 'OPEN', 1, now(), now() + interval '1 h')
             ON CONFLICT (endpoint_id) DO UPDATE SET state = 'OPEN', trips = 1, opened_at = now(), probe_at = now() + interval '1 h', retries_before = NULL"
                .to_owned(),
        ),
        (
            "half_open",
            format!(
                "UPDATE webhook.breaker SET state = 'HALF_OPEN', probe_event_id = '{probe}', probe_claim_seq = 1 WHERE endpoint_id = $1"
            ),
        ),
        ("paused", "UPDATE webhook.endpoint SET paused_at = now() WHERE id = $1".to_owned()),
        (
            "disabled",
            "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'gone' WHERE id = $1".to_owned(),
        ),
        ("held", "UPDATE webhook.endpoint SET origin = 'elsewhere' WHERE id = $1".to_owned()),
        ("removed", "DELETE FROM webhook.endpoint WHERE id = $1".to_owned()),
    ] {
        client.execute(&state, &[&endpoint]).unwrap();
        for (_, event) in &kinds.events {
            assert_eq!(why(&mut client, *event), word);
        }
        let named: bool = database.query_one_value("SELECT bool_and(endpoint = 'orders') FROM webhook.waiting");
        assert!(named, "{word}");
        assert_eq!(engine::claim_of(&mut client, 1, endpoint), []);
    }
}

#[test]
fn a_retry_that_a_closed_breaker_brings_forward_is_due() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("forward");
    let endpoint = engine::add_endpoint(&database);
    let retry = database.emit("order.created", json!({}));
    let mut client = database.connect();
    let claims = engine::claim_of(&mut client, 1, endpoint);
    engine::settle(
        &mut client,
        &[(claims[0], Outcome::status(500, engine::LONG_AGO))],
    );
    set_retry_in_an_hour(&database, retry);
    assert_eq!(why(&mut client, retry), "retry");
    database.execute("SELECT webhook_reset_breaker('orders')");
    assert_eq!(why(&mut client, retry), "due");
    assert_eq!(claimed(&database), [retry]);
}

#[test]
fn infinity_parks_a_delivery_and_any_time_releases_it() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("parked");
    engine::add_endpoint(&database);
    let event = database.emit("order.created", json!({}));
    let own_time: String =
        database.query_one_value("SELECT next_attempt_at::text FROM webhook.delivery");
    for release in [
        "now()".to_owned(),
        format!("'{own_time}'"),
        "'-infinity'".to_owned(),
    ] {
        set_time(&database, event, "'infinity'");
        assert!(claimed(&database).is_empty());
        let parked: bool = database.query_one_value(
            "SELECT wait_reason = 'parked' AND isfinite(next_attempt_at) FROM webhook.delivery",
        );
        assert!(parked);
        // Parked twice is parked.
        set_time(&database, event, "'infinity'");
        assert!(claimed(&database).is_empty());

        set_time(&database, event, &release);
        assert_eq!(claimed(&database), [event], "{release}");
        database.execute("UPDATE webhook.delivery SET status = 'PENDING'");
    }
    // In one step with a change of the status.
    database.execute("UPDATE webhook.delivery SET status = 'CANCELLED'");
    database
        .execute("UPDATE webhook.delivery SET status = 'PENDING', next_attempt_at = 'infinity'");
    assert!(claimed(&database).is_empty());
}

#[test]
fn a_claim_leaves_nothing_behind_in_a_delivery_that_waits_again() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("traces");
    let endpoint = engine::add_endpoint(&database);
    let mut client = database.connect();
    for (outcome, waits_as) in [
        (Outcome::error("released", engine::LONG_AGO), "new"),
        (Outcome::error("local", engine::LONG_AGO), "retry"),
        (Outcome::status(500, engine::LONG_AGO), "retry"),
    ] {
        let event = database.emit("order.created", json!({}));
        let claim = engine::claim_of(&mut client, 1, endpoint);
        let claim = claim.into_iter().find(|claim| claim.event == event);
        engine::settle(&mut client, &[(claim.unwrap(), outcome)]);
        let row: bool = database.query_one_value(&format!(
            "SELECT status = 'PENDING' AND num_nonnulls(claimed_at, claimed_by) = 0 AND wait_reason = '{waits_as}'
             FROM webhook.delivery WHERE event_id = '{event}'"
        ));
        assert!(row, "{waits_as}");
        set_time(&database, event, "'infinity'");
    }
    // Given up by a worker that is gone, and taken back by a person.
    let event = database.emit("order.created", json!({}));
    engine::claim_of(&mut client, 1, endpoint);
    database.execute_as_engine(
        "SELECT webhook.release_lost(array_agg(event_id), array_agg(endpoint_id)) FROM webhook.delivery_queue WHERE status = 'SENDING'",
    );
    let lost =
        "SELECT wait_reason = 'retry' AND reason = 'worker_lost' AND last_attempt_at IS NOT NULL";
    let clean = "num_nonnulls(claimed_at, claimed_by) = 0 FROM webhook.delivery";
    assert!(
        database.query_one_value::<bool>(&format!("{lost} AND {clean} WHERE event_id = '{event}'"))
    );
    engine::claim_of(&mut client, 1, endpoint);
    database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'SENDING'");
    let again = "SELECT wait_reason = 'replayed' AND claim_seq = 2 AND num_nonnulls(reason, last_error, last_attempt_at) = 0";
    assert!(
        database
            .query_one_value::<bool>(&format!("{again} AND {clean} WHERE event_id = '{event}'"))
    );
}

#[test]
fn opening_a_breaker_writes_one_row_however_many_wait() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("opening");
    let endpoint = engine::add_endpoint(&database);
    database.execute(
        "SELECT webhook_copy_policy('standard', 'touchy');
         UPDATE webhook.policy SET failure_threshold = 1 WHERE name = 'touchy';
         UPDATE webhook.endpoint SET policy = 'touchy'",
    );
    database.emit("order.created", json!({}));
    let mut client = database.connect();
    let claims = engine::claim_of(&mut client, 1, endpoint);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 100)");

    // In a session of its own, whose counts have nothing of the claim.
    let mut client = database.connect();
    let mut transaction = client.transaction().unwrap();
    engine::settle(&mut transaction, &[(claims[0], Outcome::status(500, 0.0))]);
    engine::claim_of(&mut transaction, 1, endpoint);
    let written = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname = 'breaker')::bigint,
                          sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname = 'delivery_queue')::bigint
                   FROM pg_stat_xact_user_tables WHERE schemaname = 'webhook'";
    let row = transaction.query_one(written, &[]).unwrap();
    let state: String = transaction
        .query_one("SELECT state FROM webhook.breaker", &[])
        .unwrap()
        .get(0);
    assert_eq!(state, "OPEN");
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (1, 1),
        "the breaker, and the delivery that failed"
    );
    transaction.commit().unwrap();
    let waiting: i64 =
        database.query_one_value("SELECT count(*) FROM webhook.waiting WHERE why = 'open'");
    assert_eq!(waiting, 101);
}
