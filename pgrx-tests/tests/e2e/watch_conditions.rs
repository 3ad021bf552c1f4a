//! A watch with a condition emits the rows that meet it, by row triggers; and a watch that is asked for twice is the
//! same one.

use serde_json::json;
use webhook_e2e::Database;
use webhook_e2e::watch::{NONE, change, database, take, take_ids, watched};

/// The row of pg_trigger of each of the table's triggers, and its version.
fn versions(database: &Database, table: &str) -> Vec<String> {
    database.query_one_value(&format!(
        "SELECT array_agg(concat_ws(' ', tgname, oid, xmin, ctid) ORDER BY tgname) FROM pg_trigger WHERE tgrelid = '{table}'::regclass"
    ))
}

#[test]
fn rows_that_meet_the_condition_are_emitted() {
    let database = watched(", '{insert,update}', condition => $$NEW.status = 'paid'$$");
    database.execute(
        "INSERT INTO orders VALUES (1, 'new'), (2, 'paid'), (3, NULL);
         UPDATE orders SET status = 'paid' WHERE id < 3;
         UPDATE orders SET status = 'new';
         DELETE FROM orders",
    );
    let mut events = take_ids(&database);
    events[1..].sort_by_key(|(_, old, _)| old.as_i64());
    assert_eq!(
        events,
        [
            change("order.created", NONE, json!(2)),
            change("order.updated", json!(1), json!(1)),
            change("order.updated", json!(2), json!(2)),
        ]
    );
}

#[test]
fn an_update_is_judged_by_both_rows_and_a_delete_by_the_old_one() {
    let database = watched(
        ", '{update}', condition => $$OLD.status IS DISTINCT FROM NEW.status AND NEW.status = 'paid' -- by whom it may concern$$",
    );
    database.execute(
        "INSERT INTO orders VALUES (1, 'new'), (2, 'paid');
         UPDATE orders SET status = 'paid'",
    );
    let paid = [change("order.updated", json!(1), json!(1))];
    assert_eq!(take_ids(&database), paid);

    database.execute(
        "SELECT webhook_watch('orders', 'order', '{delete}', condition => 'OLD.id = 2'); DELETE FROM orders",
    );
    assert_eq!(
        take_ids(&database),
        [change("order.deleted", json!(2), NONE)]
    );
}

#[test]
fn other_options_count_for_rows_that_meet_the_condition() {
    let database = watched(
        ", '{update}', changed => '{status}', exclude => '{card}', condition => 'NEW.total > 10'",
    );
    database.execute(
        "INSERT INTO orders VALUES (1, 'new', 20, '4111'), (2, 'new', 5, '4111');
         UPDATE orders SET card = '4222';
         UPDATE orders SET status = 'paid'",
    );
    let events = take(&database);
    assert_eq!(events.len(), 1);
    let record = json!({"id": 1, "status": "paid", "total": 20});
    assert_eq!(events[0].1["record"], record);
}

#[test]
fn a_condition_that_does_not_fit_is_refused_in_the_servers_words_with_a_hint() {
    let database = watched("");
    let cases = [
        ("'{insert,update,delete}'", "NEW.id = 1", "42P17"),
        ("'{insert,update}'", "OLD.id = 1", "42P17"),
        ("'{update}'", "NEW.statsu = 'paid'", "42703"),
        ("'{update}'", "status = 'paid'", "42702"),
        ("'{update}'", "orders.status = 'paid'", "42P01"),
        ("'{update}'", "NEW.status", "42804"),
        ("'{update}'", "NEW.id = 'one'", "22P02"),
        ("'{update}'", "NEW.id IN (SELECT 1)", "0A000"),
        ("'{update}'", "", "42601"),
        ("'{update}'", "NEW.id = 1)", "42601"),
        ("'{update,truncate}'", "NEW.id = 1", "22023"),
    ];
    for (operations, condition, code) in cases {
        let refusal = database.refusal(&format!(
            "SELECT webhook_watch('orders', 'a', {operations}, condition => $${condition}$$)"
        ));
        assert_eq!(refusal.code().code(), code, "{condition}: {refusal:?}");
        let hint = refusal.hint().unwrap_or_default();
        let names_both = hint.contains("NEW") && hint.contains("OLD");
        assert!(names_both || code == "22023", "{condition}: {hint}");
    }
    let refusal = database.refusal(
        "SELECT webhook_watch('orders', 'a', '{update}', condition => $$NEW.statsu = 'paid'$$)",
    );
    assert_eq!(refusal.message(), "column new.statsu does not exist");
    database.execute("INSERT INTO orders VALUES (1)");
    let created = [change("order.created", NONE, json!(1))];
    assert_eq!(take_ids(&database), created, "the watch of before stays");
}

#[test]
fn a_condition_finds_functions_and_operators_as_its_caller_does() {
    let database = database();
    let mut session = database.connect();
    session
        .batch_execute(
            "CREATE SCHEMA shop;
             CREATE FUNCTION shop.is_large(numeric) RETURNS boolean LANGUAGE sql RETURN $1 > 100;
             CREATE FUNCTION shop.same(text, text) RETURNS boolean LANGUAGE sql RETURN lower($1) = lower($2);
             CREATE OPERATOR shop.= (FUNCTION = shop.same, LEFTARG = text, RIGHTARG = text);
             SET search_path = shop, public, pg_catalog;
             SELECT webhook_watch('orders', 'order', '{insert}', condition => $$is_large(NEW.total) AND NEW.status = 'paid'::text$$)",
        )
        .unwrap();
    database.execute("INSERT INTO orders VALUES (1, 'PAID', 200), (2, 'PAID', 5), (3, 'new', 200)");
    let created = [change("order.created", NONE, json!(1))];
    assert_eq!(take_ids(&database), created);
}

#[test]
fn watching_twice_the_same_changes_nothing() {
    let database = database();
    database.execute(
        r#"CREATE TABLE "Odd ""name" ("a b" text, "c\d" text, id int);
           CREATE TABLE parts (region text, id int) PARTITION BY LIST (region)"#,
    );
    let watches = [
        ("orders", "'orders', 'order'".to_owned()),
        ("orders", "'orders', 'order', '{insert,update,delete,truncate}', changed => '{status}', tenant_column => 'card', on_error => 'warn'".to_owned()),
        ("orders", r"'orders', 'order', '{update}', condition => $$NEW.status <> 'it''s \ 100 %'$$, reported_as => 'shop.sale'".to_owned()),
        ("\"Odd \"\"name\"", r#"'"Odd ""name"', 'odd', include => '{id, a b}', ordering_key => ARRAY['a b', 'c\d'], coalesce_key => '{id}'"#.to_owned()),
        ("parts", "'parts', 'part', '{insert}', condition => 'NEW.id > 0'".to_owned()),
    ];
    for (table, arguments) in watches {
        let watch = format!("SELECT array_agg(w) FROM webhook_watch({arguments}) AS w");
        let first: Vec<String> = database.query_one_value(&watch);
        database.execute(&format!(
            "ALTER TABLE {table} ENABLE ALWAYS TRIGGER webhook_{}",
            if arguments.contains("'{update}'") {
                "update"
            } else {
                "insert"
            }
        ));
        let before = versions(&database, table);
        let second: Vec<String> = database.query_one_value(&watch);
        assert_eq!(first, second);
        assert_eq!(before, versions(&database, table), "{arguments}");
    }
}

#[test]
fn watching_differently_replaces_the_triggers_that_differ() {
    let database = watched("");
    let before = versions(&database, "orders");
    database.execute("SELECT webhook_watch('orders', 'order', changed => '{status}')");
    let after = versions(&database, "orders");
    assert_eq!(before.len(), 3);
    let is_same: Vec<bool> = before.iter().zip(&after).map(|(a, b)| a == b).collect();
    assert_eq!(is_same, [true, true, false], "delete, insert, update");

    // A trigger of the same arguments that a person has made otherwise is not ours.
    database.execute(
        "DROP TRIGGER webhook_insert ON orders;
         CREATE TRIGGER webhook_insert AFTER INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION webhook_trigger('order.created', '{}');
         SELECT webhook_watch('orders', 'order', changed => '{status}');
         INSERT INTO orders VALUES (1)",
    );
    let created = [change("order.created", NONE, json!(1))];
    assert_eq!(take_ids(&database), created);
}

const PARTITIONED: &str = "
    CREATE SCHEMA archive;
    CREATE TABLE parts (region text, id int, note text) PARTITION BY LIST (region);
    CREATE TABLE archive.parts_eu (note text, id int, region text, dropped int);
    ALTER TABLE archive.parts_eu DROP COLUMN dropped;
    ALTER TABLE parts ATTACH PARTITION archive.parts_eu FOR VALUES IN ('eu');
    CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us')";

#[test]
fn partitions_report_their_table_and_are_watched_with_it() {
    let database = database();
    database.execute(PARTITIONED);
    database.execute(
        "SELECT webhook_watch('parts', 'part', '{insert,update}', condition => 'NEW.id > 0');
         INSERT INTO parts VALUES ('eu', 1, 'a'), ('us', 2, 'b'), ('us', -3, 'c');
         INSERT INTO archive.parts_eu VALUES ('d', 4, 'eu');
         CREATE TABLE parts_as PARTITION OF parts FOR VALUES IN ('as');
         INSERT INTO parts VALUES ('as', 5, 'e')",
    );
    let events = take(&database);
    let ids: Vec<_> = (events.iter())
        .map(|(_, payload)| payload["record"]["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, [1, 2, 4, 5]);
    for (_, payload) in events {
        assert_eq!(payload["schema"], "public");
        assert_eq!(payload["table"], "parts");
    }

    // PostgreSQL shows a row that moves to row triggers as deleted and inserted.
    database.execute(
        "UPDATE parts SET region = 'us' WHERE id = 1; UPDATE parts SET note = 'x' WHERE id = 2",
    );
    assert_eq!(
        take_ids(&database),
        [
            change("part.created", NONE, json!(1)),
            change("part.updated", json!(2), json!(2))
        ]
    );

    let refusal = database.refusal("SELECT webhook_watch('parts_us', 'part')");
    assert_eq!(refusal.code().code(), "42710");
    assert!(refusal.hint().unwrap().contains("'public.parts'"));
    let unwatch = |table: &str| {
        database.query_one_value::<i32>(&format!("SELECT webhook_unwatch('{table}')"))
    };
    assert_eq!(unwatch("parts_us"), 0);
    assert_eq!(unwatch("parts"), 2);
    database.execute("SELECT webhook_watch('parts_us', 'part')");
}

#[test]
fn a_table_with_children_is_not_watched_with_a_condition() {
    let database = database();
    database.execute("CREATE TABLE old_orders () INHERITS (orders)");
    let refusal = database
        .refusal("SELECT webhook_watch('orders', 'a', '{insert}', condition => 'NEW.id > 0')");
    assert_eq!(refusal.code().code(), "42809");
    assert!(refusal.hint().unwrap().contains("reported_as"));
    database.execute(
        "SELECT webhook_watch('old_orders', 'order', '{insert}', condition => 'NEW.id > 0', reported_as => 'orders');
         INSERT INTO old_orders VALUES (1)",
    );
    assert_eq!(take(&database)[0].1["table"], "orders");
}
