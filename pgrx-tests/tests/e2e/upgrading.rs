//! ALTER EXTENSION webhook UPDATE: the worker begins anew, and holds where SQL is of another protocol than the library's.

use serde_json::json;
use webhook_e2e::worker::{self, state_and_reason};
use webhook_e2e::{Cluster, Receiver};

fn upgrade(script: &str) -> Cluster {
    let builder = Cluster::builder().script("webhook--0.1.0--next.sql", script);
    builder.start()
}

#[test]
fn an_upgrade_restarts_the_worker_when_it_is_committed() {
    let script = "CREATE FUNCTION webhook.added() RETURNS int LANGUAGE sql RETURN 1";
    let cluster = upgrade(script);
    let (database, receiver) = (cluster.database("restarted"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    let mut session = database.connect();
    session
        .batch_execute("BEGIN; ALTER EXTENSION webhook UPDATE TO 'next'")
        .unwrap();
    assert_eq!(worker::count(&database), 0);
    let event = database.emit("order.created", json!({}));
    session.batch_execute("COMMIT").unwrap();
    database.wait_for_status(event, "SENT");
    assert_ne!(worker::pid(&database), first);
}

#[test]
fn sql_of_another_protocol_holds_the_worker_which_says_what_helps() {
    let cluster = Cluster::start();
    let (database, receiver) = (cluster.database("protocol"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    let spoken: i32 = database.query_one_value("SELECT webhook.protocol()");
    let mut earlier = worker::pid(&database);
    for (other, remedy) in [
        (spoken + 1, "restart the server"),
        (0, "ALTER EXTENSION webhook UPDATE"),
    ] {
        database.execute(&of_protocol(other));
        let both = format!("protocol {spoken}, %protocol {other};%{remedy}");
        database.wait_until(&format!(
            "SELECT state = 'held' AND reason LIKE '%{both}%' FROM webhook_status()"
        ));
        let event = database.emit("order.created", json!({}));
        // So does the one that comes after it.
        let holding = worker::successor(&database, earlier);
        worker::terminate(&database, holding);
        worker::successor(&database, holding);
        assert_eq!(state_and_reason(&database).0, "held");
        assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));

        database.execute(&of_protocol(spoken));
        database.wait_for_status(event, "SENT");
        earlier = worker::pid(&database);
    }
}

/// Makes the SQL of this database say it, and wakes the worker.
fn of_protocol(number: i32) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION webhook.protocol() RETURNS int LANGUAGE sql IMMUTABLE RETURN {number};
         SELECT webhook.wake()"
    )
}
