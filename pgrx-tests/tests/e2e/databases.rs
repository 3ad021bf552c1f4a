//! Each database is served by itself, and no command on a database fails because it is served.

use std::time::{Duration, Instant};

use postgres::NoTls;
use postgres::error::SqlState;
use serde_json::json;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::worker::state_and_reason;
use webhook_e2e::{Cluster, Database, Receiver, wait, worker};

/// So long a command on a database waits for its sessions to end.
const WAITS_FOR_SESSIONS: Duration = Duration::from_secs(5);

#[test]
fn two_databases_deliver_independently() {
    let cluster = Cluster::shared();
    let receiver = Receiver::start();
    receiver.hold("/slow");
    let (slow, quick) = (cluster.database("slow"), cluster.database("quick"));
    slow.add_endpoint("orders", &receiver.url("/slow"));
    quick.add_endpoint("orders", &receiver.url("/quick"));

    let waits = slow.emit("order.created", json!({}));
    receiver.wait_for_event(waits);
    let arrives = quick.emit("order.created", json!({}));
    quick.wait_for_status(arrives, "SENT");
    assert_eq!(slow.delivery_status(waits).as_deref(), Some("SENDING"));
    receiver.release("/slow");
    slow.wait_for_status(waits, "SENT");
    assert_ne!(worker::pid(&slow), worker::pid(&quick));
    assert_eq!(receiver.requests_to("/slow").len(), 1);
    assert_eq!(receiver.requests_to("/quick").len(), 1);
}

#[test]
fn create_extension_in_a_new_database_delivers_at_once() {
    let never = "webhook.poll_interval = '1h'";
    let cluster = Cluster::builder().setting(never).start();
    let database = cluster.plain_database("new");
    let receiver = Receiver::start();
    let mut session = database.connect();
    let url = receiver.url("/orders");

    let begun = Instant::now();
    session
        .batch_execute(&format!(
            "CREATE EXTENSION webhook;
             SELECT webhook_set_endpoint('orders', '{url}');
             SELECT webhook_emit('order.created')"
        ))
        .unwrap();
    let arrived = receiver.wait_for_requests(1).remove(0).arrived;
    let took = arrived - begun;
    // Half a second as a rule. The launcher looks by itself once a minute, and gives up a start after 10 s.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn extension_dropped_and_recreated() {
    let database = Cluster::shared().database("recreated");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let before = database.emit("order.created", json!({}));
    database.wait_for_status(before, "SENT");

    database.execute("DROP EXTENSION webhook");
    wait_for_no_worker(&database);
    database.create_extension();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let after = database.emit("order.created", json!({}));
    database.wait_for_status(after, "SENT");
    assert_eq!(worker::count(&database), 1);
}

#[test]
fn extension_replaced_in_one_transaction_delivers() {
    let database = Cluster::shared().database("replaced");
    let receiver = Receiver::start();
    worker::pid(&database);
    database.execute("BEGIN; DROP EXTENSION webhook; CREATE EXTENSION webhook; COMMIT");
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'standard'");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::count(&database), 1);
}

#[test]
fn drop_extension_rolled_back_keeps_delivering() {
    let database = Cluster::shared().database("kept");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&database);
    database.execute("BEGIN; DROP EXTENSION webhook; ROLLBACK");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&database), pid);
}

#[test]
fn dropping_the_extension_while_requests_are_in_flight_hurts_nobody() {
    let cluster = Cluster::start();
    let receiver = Receiver::start();
    receiver.hold("/held");
    let (dropped, bystander) = (cluster.database("dropped"), cluster.database("bystander"));
    bystander.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&bystander);
    dropped.add_endpoint("orders", &receiver.url("/held"));
    dropped.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 40)");
    receiver.wait_for_requests_to("/held", 10);

    dropped.execute("DROP EXTENSION webhook CASCADE");
    wait_for_no_worker(&dropped);
    receiver.release("/held");
    let event = bystander.emit("order.created", json!({}));
    bystander.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&bystander), pid);

    dropped.create_extension();
    dropped.add_endpoint("orders", &receiver.url("/orders"));
    let event = dropped.emit("order.created", json!({}));
    dropped.wait_for_status(event, "SENT");
}

#[test]
fn drop_database_is_not_blocked() {
    let cluster = Cluster::start();
    let receiver = Receiver::start();
    let dropped = cluster.database("dropped");
    worker::pid(&dropped);
    let took = timed(|| run(&cluster, &format!("DROP DATABASE {}", dropped.name())));
    assert!(took < WAITS_FOR_SESSIONS, "{took:?}");

    // When another database is served, the launcher has done its work for the dropped one.
    let other = cluster.database("other");
    other.add_endpoint("orders", &receiver.url("/orders"));
    let event = other.emit("order.created", json!({}));
    other.wait_for_status(event, "SENT");
    let log = cluster.log();
    assert!(!log.contains("does not exist"), "{log}");
}

#[test]
fn drop_database_is_not_blocked_while_a_request_hangs() {
    let cluster = Cluster::shared();
    let database = cluster.database("hanging");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.execute("INSERT INTO webhook.policy (name, timeout) VALUES ('waits', '10 min')");
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'waits'");
    database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let took = timed(|| run(cluster, &format!("DROP DATABASE {}", database.name())));
    assert!(took < 2 * WAITS_FOR_SESSIONS, "{took:?}");
}

#[test]
fn rename_database_is_not_blocked() {
    let cluster = Cluster::shared();
    let database = cluster.database("renamed");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    worker::pid(&database);
    let new_name = format!("{}_anew", database.name());
    let rename = format!("ALTER DATABASE {} RENAME TO {new_name}", database.name());
    let took = timed(|| run(cluster, &rename));
    assert!(took < WAITS_FOR_SESSIONS, "{took:?}");

    let renamed = cluster.existing_database(&new_name);
    let event = renamed.emit("order.created", json!({}));
    renamed.wait_for_status(event, "SENT");
}

/// The server itself waits five seconds for the other session.
#[test]
fn a_rename_that_another_session_is_in_the_way_of_costs_no_delivery() {
    let cluster = Cluster::shared();
    let (database, receiver) = (cluster.database("kept"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let before = worker::pid(&database);
    let mut other = database.connect();
    let rename = format!("ALTER DATABASE {0} RENAME TO {0}_anew", database.name());
    let refusal = refusal(&mut cluster.connect("postgres"), &rename);
    assert_eq!(refusal.code().code(), "55006");

    let event = emit(&mut other, "order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_ne!(worker::pid(&database), before, "the worker had made way");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn moving_a_database_to_another_tablespace_is_not_blocked() {
    let cluster = Cluster::start();
    let database = cluster.database("moved");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    worker::pid(&database);
    let mut session = cluster.connect("postgres");
    for sql in [
        "SET allow_in_place_tablespaces = on",
        "CREATE TABLESPACE elsewhere LOCATION ''",
        &format!(
            "ALTER DATABASE {} SET TABLESPACE elsewhere",
            database.name()
        ),
    ] {
        session.batch_execute(sql).unwrap();
    }
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
}

#[test]
fn create_database_from_template_is_not_blocked() {
    let cluster = Cluster::shared();
    let source = cluster.database("source");
    let receiver = Receiver::start();
    source.add_endpoint("orders", &receiver.url("/orders"));
    source.pause_all();
    let kept_back = source.emit("order.created", json!({}));
    let name = format!("{}_copy", source.name());
    run(
        cluster,
        &format!("CREATE DATABASE {name} TEMPLATE {}", source.name()),
    );
    let copy = cluster.existing_database(&name);

    // The copy's endpoint is not paused any more, only held; one of its own is served.
    copy.resume_all();
    copy.add_endpoint("marker", &receiver.url("/marker"));
    let marker = copy.emit("marker", json!({}));
    receiver.wait_for_requests_to("/marker", 1);
    copy.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    assert_eq!(receiver.requests_to("/orders").len(), 0);
    let (state, reason) = state_and_reason(&copy);
    assert_eq!(state, "held");
    assert!(reason.contains("webhook_adopt()"), "{reason}");

    source.resume_all();
    source.wait_for_status(kept_back, "SENT");
    assert_eq!(receiver.requests_to("/orders").len(), 1);

    let adopted: i64 = copy.query_one_value("SELECT webhook_adopt()");
    assert_eq!(adopted, 1);
    copy.wait_for_status(kept_back, "SENT");
    copy.wait_for_status(marker, "SENT");
    assert_eq!(receiver.requests_to("/orders").len(), 3);
    assert_eq!(state_and_reason(&copy).0, "running");
}

#[test]
fn a_failed_drop_brings_the_worker_back() {
    let cluster = Cluster::shared();
    let database = cluster.database("wanted");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    let guest = database.connect();
    let drop_database = format!("DROP DATABASE {}", database.name());
    let error = refusal(&mut cluster.connect("postgres"), &drop_database);
    assert_eq!(*error.code(), SqlState::OBJECT_IN_USE);
    drop(guest);
    worker::successor(&database, first);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
}

#[test]
fn an_unprivileged_user_cannot_stop_a_worker() {
    let cluster = Cluster::shared();
    let database = cluster.database("coveted");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&database);
    run(cluster, "CREATE ROLE nobody_special LOGIN");
    let mut config = cluster.config("postgres");
    let mut session = config.user("nobody_special").connect(NoTls).unwrap();
    let name = database.name();
    for sql in [
        format!("DROP DATABASE {name}"),
        format!("ALTER DATABASE {name} RENAME TO mine"),
        format!("ALTER DATABASE {name} SET TABLESPACE pg_default"),
        format!("CREATE DATABASE mine TEMPLATE {name}"),
    ] {
        let error = refusal(&mut session, &sql);
        assert_eq!(*error.code(), SqlState::INSUFFICIENT_PRIVILEGE, "{sql}");
    }
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&database), pid);
}

#[test]
fn errors_of_other_commands_keep_their_details() {
    let database = Cluster::shared().plain_database("erring");
    database.execute("CREATE TABLE orders (id int CHECK (id > 0)); INSERT INTO orders VALUES (1)");
    let unknown_type = database.refusal("CREATE TABLE t (a nosuchtype)");
    assert!(unknown_type.position().is_some(), "{unknown_type:?}");
    let violated = database.refusal("ALTER TABLE orders ADD CONSTRAINT big CHECK (id > 9)");
    assert_eq!(violated.constraint(), Some("big"));
    assert_eq!(violated.table(), Some("orders"));
    let in_a_block = database.refusal("DO 'BEGIN INSERT INTO orders VALUES (-1); END'");
    let context = in_a_block.where_().unwrap_or_default();
    assert!(context.contains("INSERT INTO orders"), "{in_a_block:?}");
}

#[track_caller]
fn run(cluster: &Cluster, sql: &str) {
    let result = cluster.connect("postgres").batch_execute(sql);
    result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

fn timed(action: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    action();
    begun.elapsed()
}

#[track_caller]
fn wait_for_no_worker(database: &Database) {
    wait::until_true("the worker to leave", || worker::count(database) == 0);
}

#[test]
fn drop_extension_stops_a_disabled_worker() {
    let cluster = Cluster::idle();
    let database = cluster.database("disabled");
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    database.execute("DROP EXTENSION webhook");
    wait::until_true("the worker to leave", || worker::count(&database) == 0);
}

#[test]
fn a_database_in_another_encoding_is_refused() {
    let cluster = Cluster::shared();
    let mut client = cluster.connect("postgres");
    let create = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'";
    client.batch_execute(create).unwrap();
    let refusal = refusal(&mut cluster.connect("latin"), "CREATE EXTENSION webhook");
    assert_eq!(refusal.code(), &SqlState::FEATURE_NOT_SUPPORTED);
    assert!(refusal.hint().unwrap().contains("UTF8"));
    client.batch_execute("DROP DATABASE latin").unwrap();
}
