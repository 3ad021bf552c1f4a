//! Ordering and coalesce keys that are made of a row's columns, and the name that rows report.

use serde_json::json;
use webhook_e2e::database::refusal;
use webhook_e2e::watch::{database, take, watched};
use webhook_e2e::{Database, Receiver};

/// Both keys of each delivery, in the order of emission; none where there is none.
fn keys(database: &Database) -> Vec<(Option<String>, Option<String>)> {
    let rows = database.connect().query(
        "SELECT ordering_key, coalesce_key FROM webhook.delivery ORDER BY event_id",
        &[],
    );
    (rows.unwrap().iter())
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

fn ordering_keys(database: &Database) -> Vec<Option<String>> {
    keys(database).into_iter().map(|(key, _)| key).collect()
}

/// With an endpoint that wants everything and gets nothing.
fn with_endpoint(database: Database) -> Database {
    database.add_endpoint("all", "http://127.0.0.1:9/");
    database.execute("SELECT webhook_pause('all')");
    database
}

fn some(keys: &[&str]) -> Vec<Option<String>> {
    keys.iter().map(|key| Some((*key).to_owned())).collect()
}

#[test]
fn keys_are_the_table_and_the_values_of_the_columns() {
    let database = with_endpoint(watched(
        ", ordering_key => '{id}', coalesce_key => '{status, total}', exclude => '{id, total}'",
    ));
    database.execute("INSERT INTO orders VALUES (1, 'new', 9.50)");
    database.execute("INSERT INTO orders VALUES (2, 'new', 1), (3, NULL, 1)");
    // An update has the key of the new row, a delete that of the old one.
    database.execute("UPDATE orders SET id = 7, status = '' WHERE id = 1");
    database.execute("DELETE FROM orders WHERE id = 7");
    let expected = [
        ("public/orders/1", Some("public/orders/new/9.50")),
        ("public/orders/2", Some("public/orders/new/1")),
        ("public/orders/3", None),
        ("public/orders/7", Some("public/orders//9.50")),
        ("public/orders/7", Some("public/orders//9.50")),
    ];
    let expected = expected
        .map(|(ordering, coalesce)| (Some(ordering.to_owned()), coalesce.map(str::to_owned)));
    assert_eq!(keys(&database), expected);
}

#[test]
fn other_values_and_other_tables_have_other_keys() {
    let database = with_endpoint(database());
    database.execute(
        "CREATE SCHEMA shop;
         CREATE TABLE pairs (a text, b text);
         CREATE TABLE shop.pairs (a text, b text);
         CREATE TABLE \"pairs/x\" (a text, b text);
         SELECT webhook_watch(t, 'pair', ordering_key => '{a, b}') FROM unnest('{pairs, shop.pairs, pairs/x}'::text[]) AS n,
                LATERAL (SELECT CASE n WHEN 'pairs/x' THEN quote_ident(n) ELSE n END::regclass) AS q (t);
         INSERT INTO pairs VALUES ('x/y', 'z'), ('x', 'y/z'), ('x%2Fy', 'z'), ('x', 'y'), ('', 'x/y'), ('x', NULL);
         INSERT INTO shop.pairs VALUES ('x', 'y');
         INSERT INTO \"pairs/x\" VALUES ('y', 'z')",
    );
    let mut keys = ordering_keys(&database);
    assert_eq!(keys.remove(5), None, "no key where a value is null");
    assert_eq!(
        keys,
        some(&[
            "public/pairs/x%2Fy/z",
            "public/pairs/x/y%2Fz",
            "public/pairs/x%252Fy/z",
            "public/pairs/x/y",
            "public/pairs//x%2Fy",
            "shop/pairs/x/y",
            "public/pairs%2Fx/y/z",
        ])
    );
}

#[test]
fn a_key_that_emit_would_refuse_is_a_hash() {
    let database = with_endpoint(watched(
        ", ordering_key => '{status}', exclude => '{status}'",
    ));
    database.execute(
        "INSERT INTO orders VALUES (1, repeat('x', 186)), (2, repeat('x', 187)), (3, repeat('x', 187)), (4, repeat('x', 188)),
                                   (5, E'tab\\there'), (6, repeat('ä', 186)), (7, repeat('x', 10000000))",
    );
    let keys = ordering_keys(&database);
    let hash: String = database.query_one_value(
        "SELECT 'sha256:' || encode(sha256(convert_to('public/orders/' || repeat('x', 187), 'UTF8')), 'hex')",
    );
    assert_eq!(keys[0].as_ref().unwrap().chars().count(), 200);
    assert_eq!(keys[1..3], [Some(hash.clone()), Some(hash.clone())]);
    for (place, is_hash) in [(3, true), (4, true), (5, false), (6, true)] {
        let key = keys[place].as_ref().unwrap();
        assert_eq!(key.starts_with("sha256:"), is_hash, "{key}");
        assert!(*key != hash);
    }
    // Its own words are valid for an emit.
    let emitted = format!("SELECT webhook_emit('a', ordering_key => '{hash}')");
    database.execute(&emitted);
}

#[test]
fn values_in_keys_are_written_the_same_whatever_the_session_has() {
    let database = with_endpoint(database());
    database.execute(
        "CREATE TABLE t (at timestamptz, on_day date, d float8, b bytea);
         SELECT webhook_watch('t', 't', '{insert}', ordering_key => '{at, on_day, d, b}');
         SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET extra_float_digits = -15; SET bytea_output = escape;
         INSERT INTO t VALUES ('2030-01-02 03:04:05Z', '2030-01-02', 0.1234567890123, '\\x00ff')",
    );
    assert_eq!(
        ordering_keys(&database),
        some(&["public/t/2030-01-02T03:04:05+00:00/2030-01-02/0.1234567890123/\\x00ff"])
    );
}

#[test]
fn changes_of_a_row_go_out_in_order() {
    const ROWS: usize = 3;
    let (database, receiver) = (watched(", ordering_key => '{id}'"), Receiver::start());
    database.add_endpoint_with("all", &receiver.url("/"), "policy => 'fast'");
    database.execute(
        "BEGIN;
         INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 3) n;
         UPDATE orders SET status = 'paid';
         UPDATE orders SET status = 'shipped';
         DELETE FROM orders;
         COMMIT",
    );
    let received = receiver.wait_for_requests(4 * ROWS);
    for id in 1..=ROWS {
        let story: Vec<_> = (received.iter().map(|request| request.json()))
            .filter(|event| {
                let data = &event["data"];
                [&data["record"]["id"], &data["old_record"]["id"]].contains(&&json!(id))
            })
            .map(|event| event["data"]["record"]["status"].clone())
            .collect();
        assert_eq!(
            story,
            [json!("new"), json!("paid"), json!("shipped"), json!(null)]
        );
    }
}

#[test]
fn a_later_change_takes_the_place_of_one_that_waits() {
    let database = with_endpoint(watched(", coalesce_key => '{id}'"));
    let ends = |database: &Database| -> Vec<String> {
        database.query_one_value(
            "SELECT array_agg(event_type || ' ' || status || coalesce(' ' || last_error, '') ORDER BY event_id) FROM webhook.delivery",
        )
    };
    database.execute("INSERT INTO orders VALUES (1, 'new'), (2, 'new')");
    database.execute("UPDATE orders SET status = 'paid' WHERE id = 1");
    database.execute("DELETE FROM orders");
    let mut ends_by_now = ends(&database);
    ends_by_now.sort();
    assert_eq!(
        ends_by_now,
        [
            "order.created CANCELLED coalesced",
            "order.created CANCELLED coalesced",
            "order.deleted PENDING",
            "order.deleted PENDING",
            "order.updated CANCELLED coalesced",
        ]
    );

    // In one batch too: of the rows of a statement with the same key the last one stays.
    database.execute(
        "DELETE FROM webhook.delivery;
         SELECT webhook_watch('orders', 'order', '{insert}', coalesce_key => '{status}', tenant_column => 'card');
         INSERT INTO orders (id, status, card) VALUES (1, 'a', NULL), (2, 'a', NULL), (3, 'b', NULL), (4, 'a', NULL), (5, 'a', 'acme')",
    );
    let waiting: Vec<i32> = database.query_one_value(
        "SELECT array_agg((payload->'record'->>'id')::int ORDER BY id) FROM webhook.event
         JOIN webhook.delivery ON event_id = id AND status = 'PENDING'",
    );
    assert_eq!(waiting, [3, 4, 5]);
}

#[test]
fn a_key_column_that_is_gone_refuses_the_change() {
    let database = with_endpoint(watched(", ordering_key => '{status}'"));
    let mut session = database.connect();
    session
        .batch_execute("ALTER TABLE orders RENAME status TO state")
        .unwrap();
    let refused = refusal(&mut session, "INSERT INTO orders VALUES (1)");
    assert_eq!(refused.code().code(), "42703");
    assert!(refused.hint().unwrap().contains("webhook_watch()"));
}

#[test]
fn rows_report_the_name_that_the_watch_gives_them() {
    let database = with_endpoint(watched(
        r#", reported_as => 'shop."All orders"', ordering_key => '{id}'"#,
    ));
    database.execute("INSERT INTO orders VALUES (1)");
    database.execute("SELECT webhook_watch('orders', 'order', '{insert,truncate}', reported_as => 'sales'); INSERT INTO orders VALUES (2); TRUNCATE orders");
    assert_eq!(
        ordering_keys(&database)[0].as_deref(),
        Some("shop/All orders/1")
    );
    let names: Vec<_> = (take(&database).into_iter())
        .map(|(_, payload)| (payload["schema"].clone(), payload["table"].clone()))
        .collect();
    let sales = (json!("public"), json!("sales"));
    let shop = (json!("shop"), json!("All orders"));
    assert_eq!(names, [shop, sales.clone(), sales]);
    for wrong in ["", "a.b.c", "a b", "."] {
        let refused = database.refusal(&format!(
            "SELECT webhook_watch('orders', 'order', reported_as => '{wrong}')"
        ));
        assert_eq!(refused.code().code(), "22023", "{wrong}");
        assert!(refused.hint().is_some());
    }
}
