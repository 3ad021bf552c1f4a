//! Writers of a watched table: the fate of their change where an event fails, and the rights that count.

use postgres::Client;
use serde_json::json;
use webhook_e2e::database::refusal;
use webhook_e2e::watch::{NONE, change, database, take, take_ids, watched};
use webhook_e2e::{Cluster, Database};

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

#[test]
fn what_is_left_out_costs_nobody_the_change() {
    let database = database();
    database.execute(
        r#"ALTER TABLE orders DROP COLUMN total, ADD COLUMN extra json, ADD COLUMN document bytea, ADD COLUMN customer text;
           ALTER TABLE orders ALTER COLUMN document SET STORAGE EXTERNAL"#,
    );
    let watch = "SELECT webhook_watch('orders', 'order', include => '{id,card}', changed => '{status}', tenant_column => 'customer')";
    let by_row = r#"SELECT webhook_unwatch('orders');
        CREATE TRIGGER c AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION
        webhook_trigger('order.updated', '{"include": ["id", "card"], "changed": ["status"], "tenant_column": "customer"}')"#;
    for triggers in [watch, by_row] {
        database.execute(triggers);
        // Neither a character that jsonb does not have nor more than it may have. Columns that count are read all the
        // same.
        database.execute(
            r#"INSERT INTO orders VALUES (1, 'new', '4111', '"\u0000"', convert_to(repeat('x', 140000000), 'UTF8'), 'acme');
               UPDATE orders SET card = '4222';
               UPDATE orders SET status = 'paid';
               DELETE FROM orders"#,
        );
        let tenants: Vec<String> =
            database.query_one_value("SELECT array_agg(tenant) FROM webhook.event");
        assert_eq!(tenants, ["acme"; 3]);
        let (new, paid) = (
            json!({"id": 1, "card": "4111"}),
            json!({"id": 1, "card": "4222"}),
        );
        let rows: Vec<_> = (take(&database).into_iter())
            .map(|(_, payload)| (payload["old_record"].clone(), payload["record"].clone()))
            .collect();
        assert_eq!(
            rows,
            [(NONE, new), (paid.clone(), paid.clone()), (paid, NONE)]
        );
    }
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
        "SELECT webhook.emit_changes('a', '{}', '{}')",
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
        "CREATE ROLE {role}; SELECT webhook_grant('{role}', 'emit')"
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
