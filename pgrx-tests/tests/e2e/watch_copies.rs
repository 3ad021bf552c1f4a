//! Copies of a watched table: replicas do not emit unless asked, and a restored one is watched.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;
use webhook_e2e::watch::{NONE, ORDERS, change, take, take_ids, watched};
use webhook_e2e::{Cluster, copies};

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
    copies::subscribe(&cluster, &publisher, &subscriber, "orders");
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
    copies::unsubscribe(&subscriber);
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

    // Loaded rows are not emitted, but rows that are written now.
    assert_eq!(take_ids(&copy), [change("order.created", NONE, json!(1))]);
    copy.execute("INSERT INTO orders VALUES (2, 'new', 1, '4222')");
    let events = take(&copy);
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0].1["record"],
        json!({"id": 2, "status": "new", "total": 1})
    );
}
