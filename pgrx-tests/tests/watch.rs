//! Watching tables: what their triggers emit, when, and with whose rights.

use std::io::Write;
use std::process::Stdio;

use postgres::Client;
use serde_json::{Value, json};
use webhook_e2e::database::refusal;
use webhook_e2e::{Cluster, Database, Receiver};

const ORDERS: &str =
    "CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric, card text)";

fn database() -> Database {
    let database = Cluster::shared().database("watch");
    database.execute(ORDERS);
    database
}

fn watched(arguments: &str) -> Database {
    let database = database();
    database.execute(&format!(
        "SELECT webhook_watch('orders', 'order'{arguments})"
    ));
    database
}

/// The types and payloads emitted since the last call, in the order of their emission.
fn take(database: &Database) -> Vec<(String, Value)> {
    let rows = database.connect().query(
        "WITH gone AS (DELETE FROM webhook.event RETURNING *) SELECT event_type, payload FROM gone ORDER BY id",
        &[],
    );
    (rows.unwrap().iter())
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

/// What they say of each row: its id, or the ids before and after.
fn take_ids(database: &Database) -> Vec<(String, Value, Value)> {
    (take(database).into_iter())
        .map(|(event_type, payload)| {
            (
                event_type,
                payload["old_record"]["id"].clone(),
                payload["record"]["id"].clone(),
            )
        })
        .collect()
}

fn change(event_type: &str, old: Value, new: Value) -> (String, Value, Value) {
    (event_type.to_owned(), old, new)
}

const NONE: Value = Value::Null;

// what is emitted

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
            // That of the row as it is now.
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

// how statements write

#[test]
fn upserts_merges_and_copies_are_emitted() {
    let database = watched("");
    database.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'a')");
    take(&database);
    database.execute(
        "INSERT INTO orders VALUES (2, 'b'), (3, 'b'), (1, 'b') ON CONFLICT (id) DO UPDATE SET status = excluded.status",
    );
    let mut seen = take_ids(&database);
    seen.sort_by_key(|(event_type, _, new)| (event_type.clone(), new.as_i64()));
    assert_eq!(
        seen,
        [
            change("order.created", NONE, json!(3)),
            change("order.updated", json!(1), json!(1)),
            change("order.updated", json!(2), json!(2)),
        ]
    );

    database.execute(
        "MERGE INTO orders o USING (VALUES (1, 'delete'), (2, 'update'), (4, 'insert')) AS w (id, what) ON o.id = w.id
         WHEN MATCHED AND what = 'delete' THEN DELETE
         WHEN MATCHED THEN UPDATE SET status = 'merged'
         WHEN NOT MATCHED THEN INSERT VALUES (w.id, 'merged')",
    );
    let mut seen = take_ids(&database);
    seen.sort_by_key(|(event_type, ..)| event_type.clone());
    assert_eq!(
        seen,
        [
            change("order.created", NONE, json!(4)),
            change("order.deleted", json!(1), NONE),
            change("order.updated", json!(2), json!(2)),
        ]
    );

    let mut session = database.connect();
    let mut copy = session
        .copy_in("COPY orders (id, status) FROM STDIN")
        .unwrap();
    copy.write_all(b"10\tcopied\n11\tcopied\n").unwrap();
    copy.finish().unwrap();
    let copied = [10, 11].map(|id| change("order.created", NONE, json!(id)));
    assert_eq!(take_ids(&database), copied);
}

#[test]
fn a_truncate_is_one_event_where_it_is_asked_for() {
    let database = watched(", '{insert,truncate}', include => '{id}'");
    database.execute("INSERT INTO orders VALUES (1), (2)");
    take(&database);
    database.execute("TRUNCATE orders");
    let payload = json!({"type": "TRUNCATE", "schema": "public", "table": "orders", "record": null, "old_record": null});
    assert_eq!(take(&database), [("order.truncated".to_owned(), payload)]);

    database.execute("SELECT webhook_watch('orders', 'order'); TRUNCATE orders");
    assert_eq!(take(&database), []);
}

#[test]
fn a_table_without_a_primary_key_pairs_its_rows() {
    let database = Cluster::shared().database("watch");
    database.execute(
        "CREATE TABLE lines (id int, note text);
         SELECT webhook_watch('lines', 'line');
         INSERT INTO lines SELECT n, 'a' FROM generate_series(1, 100) n, generate_series(1, 2)",
    );
    take(&database);
    database.execute("UPDATE lines SET id = 1000 - id, note = id::text");
    let events = take(&database);
    assert_eq!(events.len(), 200);
    for (_, payload) in events {
        let old = payload["old_record"]["id"].as_i64().unwrap();
        assert_eq!(
            payload["record"],
            json!({"id": 1000 - old, "note": old.to_string()})
        );
    }
}

#[test]
fn a_key_that_moves_through_the_table_pairs_its_rows() {
    let database = watched("");
    database
        .execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE");
    database.execute("INSERT INTO orders SELECT n, n::text FROM generate_series(1, 50) n");
    take(&database);
    // Each takes the key that its neighbour had.
    database.execute("UPDATE orders SET id = id % 50 + 1");
    for (_, payload) in take(&database) {
        assert_eq!(payload["record"]["status"], payload["old_record"]["status"]);
        let old = payload["old_record"]["id"].as_i64().unwrap();
        assert_eq!(payload["record"]["id"], old % 50 + 1);
    }
}

#[test]
fn names_may_need_quotes_and_columns_may_be_generated() {
    let database = Cluster::shared().database("watch");
    database.execute(
        r#"CREATE SCHEMA "My Shop";
           CREATE TABLE "My Shop"."Order's ""list""" (
               "Id %" int PRIMARY KEY, "a\b" text, "Sel""ect" int GENERATED ALWAYS AS ("Id %" * 2) STORED, secret text);
           SELECT webhook_watch('"My Shop"."Order''s ""list"""', 'order', exclude => '{secret}', changed => ARRAY['Sel"ect', 'a\b']);
           INSERT INTO "My Shop"."Order's ""list""" ("Id %") VALUES (1);
           UPDATE "My Shop"."Order's ""list""" SET secret = 'x';
           UPDATE "My Shop"."Order's ""list""" SET "Id %" = 2;
           SELECT webhook_unwatch('"My Shop"."Order''s ""list"""');
           INSERT INTO "My Shop"."Order's ""list""" ("Id %") VALUES (3)"#,
    );
    let events = take(&database);
    let types: Vec<&str> = events
        .iter()
        .map(|(event_type, _)| event_type.as_str())
        .collect();
    assert_eq!(types, ["order.created", "order.updated"]);
    let payload = &events[1].1;
    assert_eq!(payload["schema"], "My Shop");
    assert_eq!(payload["table"], "Order's \"list\"");
    assert_eq!(
        payload["record"],
        json!({"Id %": 2, "a\\b": null, "Sel\"ect": 4})
    );
    assert_eq!(
        payload["old_record"],
        json!({"Id %": 1, "a\\b": null, "Sel\"ect": 2})
    );
}

// partitions

const PARTITIONED: &str = "
    CREATE TABLE parts (region text, id int, note text) PARTITION BY LIST (region);
    CREATE TABLE parts_eu (note text, id int, region text, dropped int);
    ALTER TABLE parts_eu DROP COLUMN dropped;
    ALTER TABLE parts ATTACH PARTITION parts_eu FOR VALUES IN ('eu');
    CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us')";

#[test]
fn a_partitioned_table_is_watched_as_one() {
    let database = Cluster::shared().database("watch");
    database.execute(PARTITIONED);
    database.execute(
        "SELECT webhook_watch('parts', 'part');
         INSERT INTO parts VALUES ('eu', 1, 'a'), ('us', 2, 'b'), ('eu', 3, 'c')",
    );
    let created = [1, 2, 3].map(|id| change("part.created", NONE, json!(id)));
    assert_eq!(take_ids(&database), created);

    // Rows that move to another partition are updated all the same.
    database.execute(
        "UPDATE parts SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END, id = id + 10",
    );
    let mut events = take(&database);
    events.sort_by_key(|(_, payload)| payload["record"]["id"].as_i64());
    assert_eq!(events.len(), 3);
    for ((event_type, payload), (id, old, new)) in
        events
            .iter()
            .zip([(1, "eu", "us"), (2, "us", "eu"), (3, "eu", "us")])
    {
        assert_eq!(event_type, "part.updated");
        assert_eq!(payload["table"], "parts");
        assert_eq!(payload["old_record"]["id"], id);
        assert_eq!(payload["old_record"]["region"], old);
        assert_eq!(payload["record"]["id"], id + 10);
        assert_eq!(payload["record"]["region"], new);
        assert_eq!(payload["record"]["note"], payload["old_record"]["note"]);
    }
    database.execute("DELETE FROM parts WHERE region = 'us'");
    assert_eq!(take(&database).len(), 2);

    // A statement that names a partition is that partition's.
    database.execute("INSERT INTO parts_us VALUES ('us', 5, 'd')");
    assert_eq!(take(&database), []);
    database.execute("SELECT webhook_watch('parts_us', 'part'); INSERT INTO parts_us VALUES ('us', 6, 'e'); INSERT INTO parts VALUES ('us', 7, 'f')");
    let created = [6, 7].map(|id| change("part.created", NONE, json!(id)));
    assert_eq!(take_ids(&database), created);
}

#[test]
fn rows_that_move_and_rows_that_stay_are_not_mixed_up() {
    let database = Cluster::shared().database("watch");
    database.execute(PARTITIONED);
    database.execute(
        "SELECT webhook_watch('parts', 'part');
         INSERT INTO parts SELECT (ARRAY['eu', 'us'])[1 + n % 2], n, n::text FROM generate_series(1, 1500) n",
    );
    take(&database);
    database.execute(
        "UPDATE parts SET region = CASE WHEN id % 3 = 0 THEN 'eu' ELSE region END, id = -id",
    );
    let events = take(&database);
    assert_eq!(events.len(), 1500);
    for (_, payload) in events {
        let (old, new) = (&payload["old_record"], &payload["record"]);
        assert_eq!(old["note"], new["note"]);
        assert_eq!(old["id"].as_i64().unwrap(), -new["id"].as_i64().unwrap());
    }
}

#[test]
fn a_row_that_is_dropped_on_its_way_to_another_partition_is_an_error() {
    let database = Cluster::shared().database("watch");
    database.execute(PARTITIONED);
    database.execute(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER swallow BEFORE INSERT ON parts_us FOR EACH ROW EXECUTE FUNCTION swallow();
         SELECT webhook_watch('parts', 'part');
         INSERT INTO parts VALUES ('eu', 1, 'a'), ('eu', 2, 'b'), ('eu', 3, 'c')",
    );
    take(&database);
    let refusal = database.refusal("UPDATE parts SET region = 'us' WHERE id = 1");
    assert_eq!(refusal.code().code(), "39P01");
    assert!(refusal.hint().is_some());
    database.execute("UPDATE parts SET note = 'x' WHERE id > 1");
    assert_eq!(take(&database).len(), 2);

    database.execute("SELECT webhook_watch('parts', 'part', on_error => 'warn')");
    database.execute("UPDATE parts SET region = 'us' WHERE id = 1");
    assert_eq!(take(&database), []);
}

// errors

#[test]
fn an_event_that_cannot_be_emitted_refuses_the_change() {
    let database = watched("");
    let refusal = database.refusal(
        "INSERT INTO orders SELECT n, repeat('x', 2000000 * (n % 2)) FROM generate_series(1, 4) n",
    );
    assert_eq!(refusal.code().code(), "54000");
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM orders"),
        0
    );
    assert_eq!(take(&database), []);
}

#[test]
fn with_warn_the_change_goes_on_without_the_event() {
    let database = database();
    database.execute(
        "ALTER TABLE orders ADD COLUMN extra json;
         SELECT webhook_watch('orders', 'order', on_error => 'warn')",
    );
    let (mut session, warnings) = listen(&database);
    // Too large, or with a character that jsonb does not have.
    session
        .batch_execute(
            r#"INSERT INTO orders (id, status, extra)
               SELECT n, repeat('x', 2000000 * (n % 500 = 7)::int), CASE WHEN n = 8 THEN '"\u0000"'::json END
               FROM generate_series(1, 1500) n"#,
        )
        .unwrap();
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM orders"),
        1500
    );
    let expected: Vec<_> = (1..=1500)
        .filter(|n| n % 500 != 7 && *n != 8)
        .map(|id| change("order.created", NONE, json!(id)))
        .collect();
    assert_eq!(take_ids(&database), expected);
    let warnings: Vec<String> = warnings.try_iter().collect();
    assert_eq!(
        warnings,
        ["order.created of table \"public.orders\" not emitted: 4 events"]
    );

    // Nor is anything else that goes wrong its business.
    session
        .batch_execute("ALTER TABLE orders DROP COLUMN extra")
        .unwrap();
    session
        .batch_execute(
            "SELECT webhook_watch('orders', 'order', on_error => 'warn', exclude => '{card}')",
        )
        .unwrap();
    session
        .batch_execute("ALTER TABLE orders RENAME card TO card_number")
        .unwrap();
    session
        .batch_execute("INSERT INTO orders VALUES (2000, 'new', 1, '4111')")
        .unwrap();
    assert_eq!(take(&database), []);
}

/// A session, and the notices that it gets.
fn listen(database: &Database) -> (Client, std::sync::mpsc::Receiver<String>) {
    let (sender, notices) = std::sync::mpsc::channel();
    let mut config = Cluster::shared().config(database.name());
    config.notice_callback(move |notice| {
        let _ = sender.send(notice.message().to_owned());
    });
    (config.connect(postgres::NoTls).unwrap(), notices)
}

// who may do it

#[test]
fn whoever_may_write_the_table_needs_nothing_else() {
    let database = watched("");
    let role = format!("{}_writer", database.name());
    database.execute(&format!(
        "CREATE ROLE {role}; GRANT INSERT, UPDATE, DELETE, SELECT ON orders TO {role}"
    ));
    let mut session = database.connect();
    session
        .batch_execute(&format!("SET SESSION AUTHORIZATION {role}"))
        .unwrap();
    session
        .batch_execute("INSERT INTO orders VALUES (1), (2); UPDATE orders SET status = 'x'; DELETE FROM orders")
        .unwrap();
    assert_eq!(take(&database).len(), 6);
    for forbidden in [
        "SELECT webhook_emit('a')",
        "SELECT webhook_watch('orders', 'order')",
        "SELECT webhook_unwatch('orders')",
        "CREATE TEMP TABLE t (); CREATE TRIGGER t AFTER INSERT ON t EXECUTE FUNCTION webhook_trigger('a')",
        "SELECT webhook.row_as_json(o, 'orders'::regclass) FROM orders o",
    ] {
        assert_eq!(
            refusal(&mut session, forbidden).code().code(),
            "42501",
            "{forbidden}"
        );
    }
}

#[test]
fn who_watches_needs_the_right_to_create_triggers_of_the_table() {
    let database = database();
    let role = format!("{}_watcher", database.name());
    database.execute(&format!(
        "CREATE ROLE {role};
         GRANT USAGE ON SCHEMA webhook TO {role};
         GRANT EXECUTE ON FUNCTION webhook.require_watchable, webhook_watch, webhook_unwatch, webhook_trigger TO {role}"
    ));
    let mut session = database.connect();
    session
        .batch_execute(&format!("SET SESSION AUTHORIZATION {role}"))
        .unwrap();
    let refused = refusal(&mut session, "SELECT webhook_watch('orders', 'order')");
    assert_eq!(refused.code().code(), "42501");
    assert!(refused.message().contains("orders"), "{refused:?}");

    database.execute(&format!("ALTER TABLE orders OWNER TO {role}"));
    session
        .batch_execute("SELECT webhook_watch('orders', 'order')")
        .unwrap();
    session
        .batch_execute("SELECT webhook_watch('orders', 'order')")
        .unwrap();
    session
        .batch_execute("INSERT INTO orders VALUES (1)")
        .unwrap();
    assert_eq!(take(&database).len(), 1);
    session
        .batch_execute("SELECT webhook_unwatch('orders')")
        .unwrap();
}

#[test]
fn code_of_the_tables_owner_runs_with_the_owners_rights() {
    let database = Cluster::shared().database("watch");
    let role = format!("{}_owner", database.name());
    database.execute(&format!(
        "CREATE ROLE {role};
         GRANT CREATE ON SCHEMA public TO {role};
         GRANT USAGE ON SCHEMA webhook TO {role};
         GRANT EXECUTE ON FUNCTION webhook.require_watchable, webhook_watch, webhook_unwatch, webhook_trigger TO {role};
         SET ROLE {role};
         CREATE TYPE mood AS ENUM ('well');
         CREATE FUNCTION mood_as_json(mood) RETURNS json LANGUAGE sql AS
             $$ SELECT json_build_object('current', current_user, 'super', current_setting('is_superuser')) $$;
         CREATE CAST (mood AS json) WITH FUNCTION mood_as_json(mood);
         CREATE TABLE moods (id int, mood mood);
         SELECT webhook_watch('moods', 'mood');
         CREATE TRIGGER by_row AFTER INSERT ON moods FOR EACH ROW EXECUTE FUNCTION webhook_trigger('mood.row')"
    ));
    // By a superuser, and from a session where those names mean something else.
    database.execute(
        "CREATE TEMP VIEW new_rows AS SELECT 1 AS id, 'trap' AS mood;
         INSERT INTO moods VALUES (1, 'well'), (2, 'well')",
    );
    let events = take(&database);
    assert_eq!(events.len(), 4);
    for (event_type, payload) in events {
        assert_eq!(payload["record"]["mood"]["current"], role, "{event_type}");
    }
}

#[test]
fn transition_tables_that_are_not_there_are_not_looked_for() {
    let database = database();
    let mut session = database.connect();
    session
        .batch_execute(
            "CREATE TRIGGER bare AFTER INSERT ON orders EXECUTE FUNCTION webhook_trigger('order.touched');
             CREATE TEMP TABLE new_rows (id int);
             INSERT INTO new_rows VALUES (666);
             INSERT INTO orders VALUES (1), (2)",
        )
        .unwrap();
    let events = take(&database);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].1["record"], NONE);
}

// by hand

#[test]
fn triggers_by_hand_work_for_rows_with_a_condition_and_for_statements() {
    let database = database();
    database.execute(
        r#"CREATE TRIGGER paid AFTER UPDATE ON orders FOR EACH ROW
               WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status = 'paid')
               EXECUTE FUNCTION webhook_trigger('order.paid');
           CREATE TRIGGER gone AFTER DELETE ON orders REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
               EXECUTE FUNCTION webhook_trigger('order.gone', '{"include": ["id"]}');
           CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
               EXECUTE FUNCTION webhook_trigger('order.late');
           BEGIN;
           INSERT INTO orders VALUES (1, 'new'), (2, 'new');
           SELECT webhook_emit('marker');
           COMMIT;
           UPDATE orders SET status = 'paid' WHERE id = 1;
           UPDATE orders SET total = 1;
           DELETE FROM orders"#,
    );
    let mut events = take_ids(&database);
    let marker = events.remove(0);
    assert_eq!(marker.0, "marker");
    events[3..].sort_by_key(|(_, old, _)| old.as_i64());
    assert_eq!(
        events,
        [
            change("order.late", NONE, json!(1)),
            change("order.late", NONE, json!(2)),
            change("order.paid", json!(1), json!(1)),
            change("order.gone", json!(1), NONE),
            change("order.gone", json!(2), NONE),
        ]
    );
}

#[test]
fn triggers_by_hand_that_cannot_work_say_why() {
    let database = database();
    let cases = [
        ("BEFORE INSERT ON orders FOR EACH ROW", "('a')", "39P01"),
        ("AFTER INSERT ON orders FOR EACH ROW", "()", "39P01"),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{}', 'b')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"chnaged\": [\"id\"]}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"on_error\": \"ignore\"}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"include\": [\"id\"], \"exclude\": [\"card\"]}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '[]')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders REFERENCING NEW TABLE AS mine FOR EACH STATEMENT",
            "('a')",
            "39P01",
        ),
        ("AFTER INSERT ON orders FOR EACH ROW", "('a b')", "22023"),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('webhook.a')",
            "42939",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"include\": [\"nothing\"]}')",
            "42703",
        ),
    ];
    for (when, arguments, code) in cases {
        let mut session = database.connect();
        let create =
            format!("BEGIN; CREATE TRIGGER t {when} EXECUTE FUNCTION webhook_trigger{arguments}");
        session.batch_execute(&create).unwrap();
        let refused = refusal(&mut session, "INSERT INTO orders VALUES (1)");
        assert_eq!(
            refused.code().code(),
            code,
            "{when} {arguments}: {refused:?}"
        );
        assert!(refused.hint().is_some(), "{when} {arguments}");
    }
    database.execute("CREATE VIEW v AS SELECT * FROM orders; CREATE TRIGGER t INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION webhook_trigger('a')");
    let refused = database.refusal("INSERT INTO v VALUES (1)");
    assert_eq!(refused.code().code(), "39P01");
}

// the functions themselves

#[test]
fn watching_again_replaces() {
    let database = watched("");
    let triggers = |database: &Database| -> Vec<String> {
        database.query_one_value(
            "SELECT coalesce(array_agg(tgname::text ORDER BY tgname), '{}') FROM pg_trigger WHERE tgrelid = 'orders'::regclass",
        )
    };
    assert_eq!(
        triggers(&database),
        ["webhook_delete", "webhook_insert", "webhook_update"]
    );
    database.execute(
        "CREATE TRIGGER mine AFTER DELETE ON orders EXECUTE FUNCTION webhook_trigger('mine')",
    );
    let made: Vec<String> = database.query_one_value(
        "SELECT array_agg(w) FROM webhook_watch('orders', 'purchase', '{insert}') AS w",
    );
    assert_eq!(
        made,
        [
            "CREATE TRIGGER webhook_insert AFTER INSERT ON public.orders REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.webhook_trigger('purchase.created', '{}')"
        ]
    );
    assert_eq!(triggers(&database), ["mine", "webhook_insert"]);
    database.execute("INSERT INTO orders VALUES (1)");
    assert_eq!(
        take_ids(&database),
        [change("purchase.created", NONE, json!(1))]
    );

    assert_eq!(
        database.query_one_value::<i32>("SELECT webhook_unwatch('orders')"),
        1
    );
    assert_eq!(
        database.query_one_value::<i32>("SELECT webhook_unwatch('orders')"),
        0
    );
    assert_eq!(triggers(&database), ["mine"]);
}

#[test]
fn bad_input_is_refused_with_a_hint_and_changes_nothing() {
    let database = watched("");
    database.execute(
        "CREATE VIEW v AS SELECT * FROM orders;
         CREATE MATERIALIZED VIEW m AS SELECT * FROM orders;
         CREATE SEQUENCE s;
         CREATE FOREIGN DATA WRAPPER w;
         CREATE SERVER w FOREIGN DATA WRAPPER w;
         CREATE FOREIGN TABLE f (id int) SERVER w",
    );
    let cases = [
        ("NULL, 'a'", "42809"),
        ("'v', 'a'", "42809"),
        ("'m', 'a'", "42809"),
        ("'s', 'a'", "42809"),
        ("'f', 'a'", "42809"),
        ("'webhook.event', 'a'", "42809"),
        ("'webhook.delivery', 'a'", "42809"),
        ("'orders', NULL", "22023"),
        ("'orders', 'a b'", "22023"),
        ("'orders', 'webhook'", "42939"),
        ("'orders', repeat('a', 195)", "22023"),
        ("'orders', 'a', NULL", "22023"),
        ("'orders', 'a', '{}'", "22023"),
        ("'orders', 'a', '{INSERT}'", "22023"),
        ("'orders', 'a', '{insert,NULL}'", "22023"),
        ("'orders', 'a', on_error => 'ignore'", "22023"),
        ("'orders', 'a', on_error => NULL", "22023"),
        (
            "'orders', 'a', include => '{id}', exclude => '{card}'",
            "22023",
        ),
        ("'orders', 'a', include => '{}'", "22023"),
        ("'orders', 'a', exclude => '{card,NULL}'", "22023"),
        ("'orders', 'a', '{insert}', changed => '{status}'", "22023"),
        ("'orders', 'a', changed => '{statsu}'", "42703"),
        ("'orders', 'a', exclude => '{Card}'", "42703"),
        ("'orders', 'a', exclude => '{ctid}'", "42703"),
        ("'orders', 'a', tenant_column => 'customer'", "42703"),
    ];
    for (arguments, code) in cases {
        let refusal = database.refusal(&format!("SELECT webhook_watch({arguments})"));
        assert_eq!(refusal.code().code(), code, "{arguments}: {refusal:?}");
        assert!(refusal.hint().is_some(), "no hint for {arguments}");
    }
    let refusal = database.refusal("SELECT webhook_watch('orders', 'a', changed => '{statsu}')");
    assert!(refusal.hint().unwrap().contains("\"status\""));
    database.execute("INSERT INTO orders VALUES (1)");
    assert_eq!(
        take_ids(&database),
        [change("order.created", NONE, json!(1))]
    );
}

// replication and restore

#[test]
fn a_replica_role_does_not_emit_unless_asked() {
    let database = watched("");
    let replicate = |id: i32| {
        database.execute(&format!(
            "SET session_replication_role = replica; INSERT INTO orders VALUES ({id})"
        ));
    };
    replicate(1);
    assert_eq!(take(&database), []);
    database.execute("ALTER TABLE orders ENABLE ALWAYS TRIGGER webhook_insert");
    replicate(2);
    assert_eq!(
        take_ids(&database),
        [change("order.created", NONE, json!(2))]
    );
}

#[test]
fn logical_replication_does_not_emit_unless_asked() {
    let cluster = Cluster::builder().setting("wal_level = logical").start();
    let (publisher, subscriber) = (
        cluster.database("publisher"),
        cluster.database("subscriber"),
    );
    for database in [&publisher, &subscriber] {
        database.execute(ORDERS);
        database.execute("SELECT webhook_watch('orders', 'order')");
    }
    subscriber.execute(
        "CREATE TRIGGER by_row AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger('order.arrived')",
    );
    publisher.execute("CREATE PUBLICATION p FOR TABLE orders");
    publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    subscriber.execute(&format!(
        "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port={} user=postgres dbname={}' PUBLICATION p
         WITH (create_slot = false, copy_data = false)",
        cluster.port(),
        publisher.name()
    ));
    let arrives = |id: i32| {
        publisher.execute(&format!("INSERT INTO orders VALUES ({id})"));
        subscriber.wait_until(&format!(
            "SELECT EXISTS (SELECT FROM orders WHERE id = {id})"
        ));
    };
    arrives(1);
    assert_eq!(take(&subscriber), []);
    assert_eq!(take(&publisher).len(), 1);

    // The apply process fires triggers of rows, and none of statements.
    subscriber.execute(
        "ALTER TABLE orders ENABLE ALWAYS TRIGGER by_row, ENABLE ALWAYS TRIGGER webhook_insert",
    );
    arrives(2);
    assert_eq!(
        take_ids(&subscriber),
        [change("order.arrived", NONE, json!(2))]
    );
    subscriber.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)");
    subscriber.execute("DROP SUBSCRIPTION s");
}

#[test]
fn a_restored_table_is_still_watched() {
    let cluster = Cluster::shared();
    let database = watched(", exclude => '{card}'");
    database.execute("INSERT INTO orders VALUES (1, 'new', 1, '4111')");
    let dump = (cluster.program("pg_dump").arg(database.name()).output()).unwrap();
    assert!(dump.status.success());
    let copy = cluster.plain_database("restored");
    let mut psql = (cluster.program("psql"))
        .args(["-q", "-v", "ON_ERROR_STOP=1", "-d", copy.name()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    psql.stdin.take().unwrap().write_all(&dump.stdout).unwrap();
    assert!(psql.wait().unwrap().success());

    // What was loaded is not emitted, but what is written now.
    assert_eq!(take_ids(&copy), [change("order.created", NONE, json!(1))]);
    copy.execute("INSERT INTO orders VALUES (2, 'new', 1, '4222')");
    let events = take(&copy);
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0].1["record"],
        json!({"id": 2, "status": "new", "total": 1})
    );
}
