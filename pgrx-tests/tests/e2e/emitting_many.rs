//! Many events in one statement: `webhook_emit_many()`.

use serde_json::json;
use uuid::Uuid;

use super::emitting::{NOTHING, add_paused_endpoint, arrivals, database, database_and_receiver};

pub(super) fn emit_many(client: &mut impl postgres::GenericClient, arguments: &str) -> Vec<Uuid> {
    let rows = client.query(&format!("SELECT webhook_emit_many({arguments})"), &[]);
    let rows = rows.unwrap_or_else(|error| panic!("{arguments}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn many_events_go_out_in_their_order() {
    const EVENTS: usize = 1000;
    let (database, receiver) = database_and_receiver();
    let ids = emit_many(
        &mut database.connect(),
        &format!(
            "'order.created', ARRAY(SELECT jsonb_build_object('n', n) FROM generate_series(1, {EVENTS}) n)"
        ),
    );
    assert_eq!(ids.len(), EVENTS);
    assert!(ids.is_sorted());
    let requests = receiver.wait_for_requests(EVENTS);
    for (number, (request, id)) in requests.iter().zip(&ids).enumerate() {
        assert_eq!(request.event_id(), *id);
        assert_eq!(request.json()["data"], json!({"n": number + 1}));
    }
}

#[test]
fn many_events_of_several_types_reach_each_its_endpoints() {
    let database = database();
    add_paused_endpoint(&database, "orders", None, &["order.*"]);
    add_paused_endpoint(&database, "paid", None, &["order.paid", "invoice.paid"]);
    add_paused_endpoint(&database, "all", Some("acme"), &["*"]);
    let arguments =
        "ARRAY['order.created', 'invoice.paid', 'order.paid', 'other', 'order.created'],
                     ARRAY['1', '2', '3', '4', '5']::jsonb[]";
    let ids = emit_many(&mut database.connect(), arguments);
    let reached: Vec<Vec<String>> = ids.iter().map(|id| database.endpoints_of(*id)).collect();
    let expected: [&[&str]; 5] = [
        &["orders"],
        &["paid"],
        &["orders", "paid"],
        &[],
        &["orders"],
    ];
    assert_eq!(reached, expected);
    let payloads: Vec<serde_json::Value> =
        database.query_one_value("SELECT array_agg(payload ORDER BY id) FROM webhook.event");
    assert_eq!(payloads, [1, 2, 3, 4, 5].map(|n| json!(n)));

    let ids = emit_many(
        &mut database.connect(),
        "'order.paid', '{1}', tenant => 'acme'",
    );
    assert_eq!(
        database.endpoints_of(ids[0]),
        ["acme/all", "orders", "paid"]
    );
}

#[test]
fn none_of_many_is_no_error() {
    let database = database();
    for none in [
        "'order.paid', '{}'",
        "'order.paid', NULL",
        "NULL::text[], NULL",
        "'{}'::text[], NULL",
        "'order.paid', array_agg('1'::jsonb)) FROM generate_series(1, 0",
        "array_agg('a'::text), array_agg('1'::jsonb)) FROM generate_series(1, 0",
    ] {
        assert_eq!(emit_many(&mut database.connect(), none), NOTHING, "{none}");
    }
}

#[test]
fn one_event_that_is_not_valid_refuses_all_of_many() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let cases = [
        ("NULL::text, '{1}'", "22023"),
        ("'a b', '{1}'", "22023"),
        ("'a b', '{}'", "22023"),
        ("'a b', NULL", "22023"),
        ("'a', '{1,NULL}'", "22004"),
        ("'a', ARRAY['1', to_jsonb(repeat('x', 2000000))]", "54000"),
        ("'a', '{1,2}', tenant => ''", "22023"),
        ("'a', '{1,2}', endpoints => '{nobody}'", "42704"),
        ("'a', '{1,2}', endpoints => '{}'", "22023"),
        (
            "'a', '{1}', deliver_at => '2030-01-02', expires_at => '2030-01-01'",
            "22023",
        ),
        ("'{a,a b}'::text[], '{1,2}'", "22023"),
        ("'{a,NULL}'::text[], '{1,2}'", "22023"),
        ("'{a,webhook.b}'::text[], '{1,2}'", "42939"),
        ("'{a}'::text[], '{1,2}'", "2202E"),
        ("NULL::text[], '{1,2}'", "2202E"),
        ("'{a}'::text[], NULL", "2202E"),
    ];
    for (arguments, code) in cases {
        let refusal = database.refusal(&format!("SELECT webhook_emit_many({arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}: {refusal:?}");
        assert!(refusal.hint().is_some(), "no hint for {arguments}");
    }
    let written: i64 = database.query_one_value(
        "SELECT (SELECT count(*) FROM webhook.event) + (SELECT count(*) FROM webhook.delivery)",
    );
    assert_eq!(written, 0);
}

#[test]
fn the_rollback_of_half_a_batch_takes_that_half_back() {
    let (database, receiver) = database_and_receiver();
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let kept = emit_many(&mut transaction, "'order.created', '{1,2,3}'");
    let mut savepoint = transaction.transaction().unwrap();
    emit_many(&mut savepoint, "'order.created', '{4,5,6}'");
    savepoint.rollback().unwrap();
    transaction.commit().unwrap();
    assert_eq!(arrivals(&database, &receiver), kept);
}

#[test]
fn each_of_many_has_its_own_keys() {
    let database = database();
    add_paused_endpoint(&database, "all", None, &["*"]);
    let ids = emit_many(
        &mut database.connect(),
        "'a', '{1,2,3}', ordering_keys => '{o,NULL,p}', coalesce_keys => '{c,d,NULL}', idempotency_keys => '{i,NULL,j}'",
    );
    let keys: Vec<String> = database.query_one_value(
        "SELECT array_agg(concat_ws(' ', v.payload, d.ordering_key, d.coalesce_key, v.idempotency_key) ORDER BY v.id)
         FROM webhook.event v JOIN webhook.delivery d ON d.event_id = v.id",
    );
    assert_eq!(keys, ["1 o c i", "2 d", "3 p j"]);
    assert_eq!(ids.len(), 3);
    for (arguments, code) in [
        ("'{1,2}', ordering_keys => '{a}'", "2202E"),
        ("'{1,2}', idempotency_keys => '{a,b,c}'", "2202E"),
        ("'{1,2}', coalesce_keys => '{}'", "2202E"),
        ("'{1,2}', ordering_keys => ARRAY['a', '']", "22023"),
        (
            "'{1,2}', idempotency_keys => ARRAY['a', repeat('x', 201)]",
            "22023",
        ),
        ("'{1,2}', coalesce_keys => ARRAY[NULL, E'a\\nb']", "22023"),
    ] {
        let refusal = database.refusal(&format!("SELECT webhook_emit_many('a', {arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}: {refusal:?}");
        assert!(refusal.hint().is_some(), "no hint for {arguments}");
    }
}
