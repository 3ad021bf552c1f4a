//! The events of a change to a watched table.

use serde_json::{Value, json};
use webhook_e2e::Receiver;
use webhook_e2e::watch::{NONE, change, database, take, take_ids, watched};

#[test]
fn inserts_updates_and_deletes_are_emitted_and_delivered() {
    let (database, receiver) = (watched(""), Receiver::start());
    database.add_endpoint_with(
        "all",
        &receiver.url("/"),
        "policy => 'fast', max_in_flight => 1",
    );
    database.execute("INSERT INTO orders VALUES (1, 'new', 9.50, '4111')");
    database.execute("UPDATE orders SET status = 'paid'");
    database.execute("DELETE FROM orders");
    let received: Vec<(Value, Value)> = (receiver.wait_for_requests(3).iter())
        .map(|request| {
            (
                request.json()["type"].clone(),
                request.json()["data"].clone(),
            )
        })
        .collect();
    let before = json!({"id": 1, "status": "new", "total": 9.5, "card": "4111"});
    let after = json!({"id": 1, "status": "paid", "total": 9.5, "card": "4111"});
    let data = |operation: &str, old: &Value, new: &Value| json!({"type": operation, "schema": "public", "table": "orders", "record": new, "old_record": old});
    assert_eq!(
        received,
        [
            (json!("order.created"), data("INSERT", &NONE, &before)),
            (json!("order.updated"), data("UPDATE", &before, &after)),
            (json!("order.deleted"), data("DELETE", &after, &NONE)),
        ]
    );
}

#[test]
fn a_statement_emits_all_its_rows_in_order() {
    const ROWS: i32 = 2500;
    let database = watched("");
    database.execute(&format!(
        "INSERT INTO orders SELECT n, 'new', n FROM generate_series(1, {ROWS}) n"
    ));
    let created: Vec<_> = (1..=ROWS)
        .map(|id| change("order.created", NONE, json!(id)))
        .collect();
    assert_eq!(take_ids(&database), created);
    database.execute("UPDATE orders SET status = 'paid', id = -id");
    let mut updated = take_ids(&database);
    updated.sort_by_key(|(_, old, _)| old.as_i64());
    let expected: Vec<_> = (1..=ROWS)
        .map(|id| change("order.updated", json!(id), json!(-id)))
        .collect();
    assert_eq!(updated, expected);
}

#[test]
fn large_rows_are_emitted_in_smaller_batches() {
    let database = watched("");
    database
        .execute("INSERT INTO orders SELECT n, repeat('x', 900000) FROM generate_series(1, 50) n");
    let created: Vec<_> = (1..=50)
        .map(|id| change("order.created", NONE, json!(id)))
        .collect();
    assert_eq!(take_ids(&database), created);
}

#[test]
fn no_cursor_is_left_open() {
    let database = watched("");
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let write = "INSERT INTO orders VALUES (1); UPDATE orders SET status = 'x'; DELETE FROM orders";
    transaction.batch_execute(write).unwrap();
    let unnamed = "SELECT count(*) FROM pg_cursors WHERE name LIKE '<unnamed%'";
    let open: i64 = transaction.query_one(unnamed, &[]).unwrap().get(0);
    assert_eq!(open, 0);
}

#[test]
fn a_statement_without_rows_emits_nothing() {
    let database = watched("");
    database.execute("INSERT INTO orders SELECT 1 WHERE false; UPDATE orders SET status = 'x'; DELETE FROM orders");
    assert_eq!(take(&database), []);
}

#[test]
fn rolled_back_changes_emit_nothing() {
    let database = watched("");
    database.execute(
        "BEGIN;
         INSERT INTO orders VALUES (1);
         SAVEPOINT half;
         INSERT INTO orders VALUES (2), (3);
         ROLLBACK TO half;
         INSERT INTO orders VALUES (4);
         COMMIT",
    );
    let created = [1, 4].map(|id| change("order.created", NONE, json!(id)));
    assert_eq!(take_ids(&database), created);
}

#[test]
fn only_the_chosen_operations_are_watched() {
    let database = watched(", '{delete}'");
    database.execute(
        "INSERT INTO orders VALUES (1); UPDATE orders SET status = 'x'; DELETE FROM orders",
    );
    assert_eq!(
        take_ids(&database),
        [change("order.deleted", json!(1), NONE)]
    );
}

#[test]
fn an_update_is_emitted_when_a_chosen_column_has_really_changed() {
    let database = watched(", changed => '{status,total}'");
    database.execute("INSERT INTO orders VALUES (1, 'new', 1.0), (2, NULL, 2), (3, 'new', 3)");
    take(&database);
    let updated = |id: i32| vec![change("order.updated", json!(id), json!(id))];
    let cases = [
        ("UPDATE orders SET status = status, card = 'x'", vec![]),
        ("UPDATE orders SET total = 1.00 WHERE id = 1", vec![]),
        ("UPDATE orders SET total = 1.01 WHERE id = 1", updated(1)),
        ("UPDATE orders SET status = 'new'", updated(2)),
        ("UPDATE orders SET total = NULL WHERE id = 3", updated(3)),
        ("UPDATE orders SET total = NULL WHERE id = 3", vec![]),
    ];
    for (statement, expected) in cases {
        database.execute(statement);
        assert_eq!(take_ids(&database), expected, "{statement}");
    }
    // Inserts and deletes are emitted all the same.
    database.execute("DELETE FROM orders WHERE id = 1");
    assert_eq!(
        take_ids(&database),
        [change("order.deleted", json!(1), NONE)]
    );
}

#[test]
fn without_a_choice_every_updated_row_is_emitted() {
    let database = watched("");
    database.execute("INSERT INTO orders VALUES (1)");
    take(&database);
    database.execute("UPDATE orders SET status = status");
    assert_eq!(
        take_ids(&database),
        [change("order.updated", json!(1), json!(1))]
    );
}

#[test]
fn columns_can_be_left_out_or_chosen() {
    for (choice, shown) in [
        (", exclude => '{card,total}'", vec!["id", "status"]),
        (", include => '{id,total}'", vec!["id", "total"]),
    ] {
        let database = watched(choice);
        database.execute("INSERT INTO orders VALUES (1, 'new', 1, '4111'); UPDATE orders SET card = '4222'; DELETE FROM orders");
        let events = take(&database);
        assert_eq!(events.len(), 3);
        for (_, payload) in events {
            for part in ["record", "old_record"] {
                if let Some(columns) = payload[part].as_object() {
                    assert_eq!(columns.keys().collect::<Vec<_>>(), shown, "{choice}");
                }
            }
            assert!(!payload.to_string().contains("4111"));
        }
    }
}

#[test]
fn a_column_that_was_to_be_left_out_does_not_leak_under_another_name() {
    let database = watched(", exclude => '{card}'");
    database.execute("ALTER TABLE orders RENAME card TO card_number");
    let refusal = database.refusal("INSERT INTO orders VALUES (1, 'new', 1, '4111')");
    assert_eq!(refusal.code().code(), "42703");
    assert!(refusal.hint().unwrap().contains("webhook_watch()"));
    database.execute("SELECT webhook_watch('orders', 'order', exclude => '{card_number}')");
    database.execute("INSERT INTO orders VALUES (1, 'new', 1, '4111')");
    assert_eq!(take(&database).len(), 1);
}

#[test]
fn a_column_that_is_added_later_is_emitted_too() {
    let database = watched("");
    let mut session = database.connect();
    session
        .batch_execute("INSERT INTO orders VALUES (1)")
        .unwrap();
    session
        .batch_execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'n', DROP COLUMN total")
        .unwrap();
    session
        .batch_execute("INSERT INTO orders VALUES (2)")
        .unwrap();
    let (_, payload) = take(&database).remove(1);
    assert_eq!(
        payload["record"],
        json!({"id": 2, "status": null, "card": null, "note": "n"})
    );
}

#[test]
fn a_column_names_the_tenant() {
    let database = database();
    database.execute(
        "ALTER TABLE orders ADD COLUMN customer text;
         INSERT INTO webhook.endpoint (name, url, tenant, paused_at)
         VALUES ('everyone', 'http://127.0.0.1/', NULL, now()), ('acme', 'http://127.0.0.1/', 'acme', now());
         SELECT webhook_watch('orders', 'order', exclude => '{customer}', tenant_column => 'customer');
         INSERT INTO orders (id, customer) VALUES (1, 'acme'), (2, 'globex'), (3, NULL);
         UPDATE orders SET customer = 'acme' WHERE id = 2;
         DELETE FROM orders WHERE id = 1",
    );
    let rows = database.connect().query(
        "SELECT v.event_type, v.tenant, string_agg(e.name, ',' ORDER BY e.name), v.payload::text LIKE '%customer%'
         FROM webhook.event v LEFT JOIN webhook.delivery d ON d.event_id = v.id
         LEFT JOIN webhook.endpoint e ON e.id = d.endpoint_id GROUP BY v.id ORDER BY v.id",
        &[],
    );
    let rows = rows.unwrap();
    let seen: Vec<(&str, Option<&str>, &str)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    assert_eq!(
        seen,
        [
            ("order.created", Some("acme"), "acme,everyone"),
            ("order.created", Some("globex"), "everyone"),
            ("order.created", None, "everyone"),
            // The tenant of the row as it is now.
            ("order.updated", Some("acme"), "acme,everyone"),
            ("order.deleted", Some("acme"), "acme,everyone"),
        ]
    );
    assert!(rows.iter().all(|row| !row.get::<_, bool>(3)));

    let refusal = database.refusal("INSERT INTO orders (id, customer) VALUES (5, 'a b'), (6, 'c')");
    assert_eq!(refusal.code().code(), "22023");
}

#[test]
fn times_are_in_utc_whatever_the_session_has() {
    let database = database();
    database.execute(
        "ALTER TABLE orders ADD COLUMN at timestamptz;
         SELECT webhook_watch('orders', 'order');
         SET TimeZone = 'Asia/Tokyo';
         INSERT INTO orders (id, at) VALUES (1, '2026-01-01 09:00+09')",
    );
    assert_eq!(
        take(&database)[0].1["record"]["at"],
        "2026-01-01T00:00:00+00:00"
    );
}

#[test]
fn values_are_written_the_same_whatever_the_session_has() {
    let database = database();
    database.execute(
        r"ALTER TABLE orders ADD COLUMN during tstzrange, ADD COLUMN took interval, ADD COLUMN seal bytea, ADD COLUMN weight float8;
          SELECT webhook_watch('orders', 'order', changed => '{weight}');
          SET DateStyle = 'SQL, DMY';
          SET IntervalStyle = 'sql_standard';
          SET bytea_output = 'escape';
          SET extra_float_digits = -5;
          INSERT INTO orders (id, during, took, seal, weight)
          VALUES (1, '[31/01/2026 00:00Z,]', '1 day 2 hours', '\x00ff', 0.30000000000000004);
          UPDATE orders SET weight = 0.3",
    );
    let events = take(&database);
    let record = &events[0].1["record"];
    assert_eq!(record["during"], "[\"2026-01-31 00:00:00+00\",)");
    assert_eq!(record["took"], "1 day 02:00:00");
    assert_eq!(record["seal"], "\\x00ff");
    assert_eq!(record["weight"], json!(0.30000000000000004));
    // Nor is the change lost among digits that are not written.
    assert_eq!(events[1].0, "order.updated");
}
