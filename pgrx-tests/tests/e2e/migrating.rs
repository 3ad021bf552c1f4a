//! docs/migrating.md: the moves that it describes lose nothing and send nothing twice.

use serde_json::{Value, json};
use webhook_e2e::{Cluster, Receiver};

use super::recipes::blocks;

const PAGE: &str = include_str!("../../../docs/migrating.md");

#[test]
fn an_outbox_is_moved_with_what_waits_in_it_once_and_in_order() {
    let database = Cluster::shared().database("migrating");
    let section = blocks(PAGE, "\n## An outbox of your own\n", "sql");
    let [table, switch] = section[..] else {
        panic!("{} blocks", section.len());
    };
    database.execute(table);
    database.execute(
        "INSERT INTO outbox_events (event_type, payload, status, created_at)
         SELECT 'order.created', jsonb_build_object('n', n), CASE n WHEN 4 THEN 'FAILED' ELSE 'PENDING' END,
                now() + n * interval '1 s'
         FROM generate_series(1, 6) n",
    );
    let (moved, _) = switch.rsplit_once("WITH moved").expect("the move");
    let (_, moving) = switch.split_at(moved.len());
    database.execute(switch);
    database.execute(
        "INSERT INTO outbox_events (event_type, payload) VALUES ('order.paid', '{\"n\": 7}')",
    );
    let emitted = "SELECT jsonb_agg(payload -> 'n' ORDER BY id) FROM webhook.event";
    assert_eq!(
        database.query_one_value::<Value>(emitted),
        json!([1, 2, 3, 5, 6, 7])
    );

    // As somebody would who is not sure whether it has been run; the row that the trigger emitted waits too.
    database.execute(&format!("BEGIN; {moving}"));
    assert_eq!(
        database.query_one_value::<Value>(emitted),
        json!([1, 2, 3, 5, 6, 7])
    );
}

#[test]
fn a_watched_table_sends_in_the_format_raw_the_keys_that_receivers_of_supabase_know() {
    let (database, receiver) = (Cluster::shared().database("migrating"), Receiver::start());
    database.add_endpoint_with("orders", &receiver.url("/"), "'{order.*}', format => 'raw'");
    database.execute(
        "CREATE TABLE orders (id int);
         SELECT webhook_watch('orders', 'order', '{insert, update}');
         INSERT INTO orders VALUES (1)",
    );
    let request = &receiver.wait_for_requests(1)[0];
    let expected = json!({"type": "INSERT", "schema": "public", "table": "orders",
                          "record": {"id": 1}, "old_record": null});
    assert_eq!(request.json(), expected);
}
