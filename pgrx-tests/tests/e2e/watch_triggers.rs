//! The triggers of a watched table: made by `webhook_watch()`, and made by people themselves.

use serde_json::json;
use webhook_e2e::Database;
use webhook_e2e::database::refusal;
use webhook_e2e::watch::{NONE, change, database, take, take_ids, watched};

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
fn watching_again_enables_a_trigger_that_was_disabled() {
    let database = watched("");
    database.execute("ALTER TABLE orders DISABLE TRIGGER webhook_insert");
    database.execute("INSERT INTO orders VALUES (1)");
    assert_eq!(take_ids(&database), []);
    database.execute("SELECT webhook_watch('orders', 'order')");
    database.execute("INSERT INTO orders VALUES (2)");
    assert_eq!(
        take_ids(&database),
        [change("order.created", NONE, json!(2))]
    );
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
         CREATE FOREIGN TABLE f (id int) SERVER w;
         CREATE TABLE p (id int) PARTITION BY LIST (id);
         CREATE TABLE p_of_p PARTITION OF p DEFAULT PARTITION BY LIST (id);
         CREATE FOREIGN TABLE f_of_p PARTITION OF p_of_p DEFAULT SERVER w;
         CREATE TABLE i (id int);
         CREATE FOREIGN TABLE f_of_i () INHERITS (i) SERVER w",
    );
    let cases = [
        ("NULL, 'a'", "42809"),
        ("'v', 'a'", "42809"),
        ("'m', 'a'", "42809"),
        ("'s', 'a'", "42809"),
        ("'f', 'a'", "42809"),
        ("'p', 'a'", "42809"),
        ("'i', 'a'", "42809"),
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
        ("'orders', 'a', ordering_key => '{}'", "22023"),
        ("'orders', 'a', coalesce_key => '{id,NULL}'", "22023"),
        ("'orders', 'a', ordering_key => '{id,customer}'", "42703"),
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

/// Before PostgreSQL 18 there are no virtual columns, and every column is in the events.
#[test]
fn virtual_generated_columns_are_said_to_be_missing() {
    let database = database();
    let version: i32 =
        database.query_one_value("SELECT current_setting('server_version_num')::int");
    let (kind, is_captured) = match version {
        180000.. => ("VIRTUAL", false),
        _ => ("STORED", true),
    };
    database.execute(&format!(
        "ALTER TABLE orders ADD COLUMN twice numeric GENERATED ALWAYS AS (total * 2) {kind}"
    ));
    let (sender, notices) = std::sync::mpsc::channel();
    let mut session = database.connect_noticing(move |notice| {
        let _ = sender.send(notice.message().to_owned());
    });
    let mut watch = |arguments: &str| {
        session.batch_execute(&format!(
            "SELECT webhook_watch('orders', 'order'{arguments})"
        ))
    };
    watch("").unwrap();
    let said: Vec<String> = notices.try_iter().collect();
    assert_eq!(
        said.iter().any(|notice| notice.contains("\"twice\"")),
        !is_captured
    );
    database.execute("INSERT INTO orders VALUES (1, 'new', 4)");
    let (_, payload) = take(&database).remove(0);
    let expected = is_captured.then(|| json!(8));
    assert_eq!(payload["record"].get("twice"), expected.as_ref());

    // Nobody misses a column that is not asked for, and nobody can wait for one that is not seen.
    watch(", exclude => '{twice}'").unwrap();
    assert_eq!(notices.try_iter().count(), 0);
    for choice in [", changed => '{twice}'", ", tenant_column => 'twice'"] {
        assert_eq!(watch(choice).is_ok(), is_captured, "{choice}");
    }
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
fn transition_tables_may_have_any_name() {
    let database = database();
    database.execute(
        "CREATE TRIGGER a AFTER INSERT ON orders REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
             EXECUTE FUNCTION webhook_trigger('order.a');
         CREATE TRIGGER b AFTER UPDATE ON orders REFERENCING NEW TABLE AS old_rows OLD TABLE AS new_rows FOR EACH STATEMENT
             EXECUTE FUNCTION webhook_trigger('order.b');
         CREATE TRIGGER c AFTER UPDATE ON orders REFERENCING NEW TABLE AS alone FOR EACH STATEMENT
             EXECUTE FUNCTION webhook_trigger('order.c', '{\"changed\": [\"status\"]}');
         INSERT INTO orders VALUES (1);
         UPDATE orders SET id = 2",
    );
    assert_eq!(
        take_ids(&database),
        [
            change("order.a", NONE, json!(1)),
            change("order.b", json!(1), json!(2)),
            change("order.c", NONE, json!(2)),
        ]
    );
}

#[test]
fn triggers_of_one_statement_read_the_same_rows() {
    let database = watched("");
    // Rows that the server keeps in a file, and a trigger that reads half of them before ours does.
    database.execute(
        "SET work_mem = '64kB';
         CREATE FUNCTION peek() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM FROM new_rows LIMIT 1500; RETURN NULL; END $$;
         CREATE TRIGGER a AFTER INSERT ON orders REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION peek();
         CREATE TRIGGER b AFTER INSERT ON orders REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
             EXECUTE FUNCTION webhook_trigger('order.again');
         CREATE TRIGGER z AFTER INSERT ON orders REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION peek();
         INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1, 3000) n",
    );
    let seen = take_ids(&database);
    for event_type in ["order.created", "order.again"] {
        let ids: Vec<i64> = (seen.iter())
            .filter(|(seen_type, ..)| seen_type == event_type)
            .filter_map(|(.., new)| new.as_i64())
            .collect();
        assert!(ids.iter().copied().eq(1..=3000), "{event_type}");
    }
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
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"exclude\": [null]}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', 'no json')",
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
            "('a', '{\"exclude\": \"card\"}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"tenant_column\": [\"card\"]}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"ordering_key\": \"id\"}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"schema\": \"shop\"}')",
            "39P01",
        ),
        (
            "AFTER INSERT ON orders FOR EACH ROW",
            "('a', '{\"condition\": true}')",
            "39P01",
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
