//! Statements of every kind write to a watched table or its partitions: each row is emitted as it was and is.

use std::io::Write;

use serde_json::json;
use webhook_e2e::Cluster;
use webhook_e2e::watch::{NONE, change, take, take_ids, watched};

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
