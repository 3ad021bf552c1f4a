//! The launcher starts all workers that are needed, however little room there is and whatever the clock says.

use std::time::{Duration, Instant};

use serde_json::json;
use webhook_e2e::clock::Clock;
use webhook_e2e::{Answer, Cluster, Receiver, wait, worker};

/// The server's own launcher of logical replication, and ours.
const LAUNCHERS: usize = 2;

#[test]
fn a_server_without_room_for_the_launcher_says_so() {
    let cluster = Cluster::builder()
        .setting("max_worker_processes = 1")
        .start();
    let database = cluster.database("no_launcher");
    let status: String =
        database.query_one_value("SELECT concat_ws(': ', state, reason) FROM webhook_status()");
    assert_eq!(
        status,
        "no worker: no worker delivers from this database: max_worker_processes = 1 leaves no room for the launcher of webhook workers; \
         raise it in postgresql.conf and restart the server"
    );
    assert!(cluster.log().contains("HINT:  Raise max_worker_processes"));
}

/// A server with room for so many workers, and no crash to survive.
fn cluster_with_room_for(workers: usize) -> Cluster {
    let processes = LAUNCHERS + workers;
    Cluster::builder()
        .setting(&format!("max_worker_processes = {processes}"))
        .setting("fsync = off")
        .start()
}

fn shortages(cluster: &Cluster) -> Vec<String> {
    let log = cluster.log();
    let told = log.lines().filter(|line| line.contains("have no worker"));
    told.map(str::to_owned).collect()
}

#[test]
fn databases_without_the_extension_need_no_room() {
    let mut cluster = cluster_with_room_for(2);
    let receiver = Receiver::start();
    let _others: Vec<_> = (0..14).map(|_| cluster.plain_database("plain")).collect();
    let served = [cluster.database("served"), cluster.database("served")];
    for database in &served {
        database.add_endpoint("orders", &receiver.url("/orders"));
    }
    cluster.restart();
    for database in &served {
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
    }
    assert_eq!(shortages(&cluster), Vec::<String>::new());
    let log = cluster.log();
    assert_eq!(
        log.matches("webhook worker for database").count(),
        6,
        "{log}"
    );
}

#[test]
fn two_databases_among_three_hundred_are_served_at_once() {
    let mut cluster = cluster_with_room_for(2);
    let receiver = Receiver::start();
    let first = cluster.database("first");
    let mut session = cluster.connect("postgres");
    for n in 1..=300 {
        let create = format!("CREATE DATABASE plain_{n} TEMPLATE template0 STRATEGY file_copy");
        session.batch_execute(&create).unwrap();
    }
    drop(session);
    let last = cluster.database("last");
    for database in [&first, &last] {
        database.add_endpoint("orders", &receiver.url("/orders"));
    }
    worker::pid(&last);

    cluster.restart();
    let begun = Instant::now();
    for database in [&first, &last] {
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
    }
    // Tenths of a second as a rule; a process for each of the others would take ten times as long.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    let launcher: i32 = first.query_one_value(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'webhook launcher'",
    );
    assert!(worker::computed(launcher) < Duration::from_millis(500));
    let log = cluster.log();
    assert!(!log.contains("WARNING:"), "{log}");
}

#[test]
fn databases_that_outnumber_the_worker_processes_take_turns_and_all_deliver() {
    const DATABASES: usize = 16;
    let cluster = cluster_with_room_for(6);
    let receiver = Receiver::start();
    let databases: Vec<_> = (0..DATABASES)
        .map(|_| cluster.database("crowded"))
        .collect();
    for (n, database) in databases.iter().enumerate() {
        database.add_endpoint("orders", &receiver.url(&format!("/{n}")));
    }
    for round in 1..=2 {
        for database in &databases {
            database.emit("order.created", json!({}));
        }
        for n in 0..DATABASES {
            receiver.wait_for_requests_to(&format!("/{n}"), round);
        }
    }

    // A turn that ends says when the next one is needed: nobody commits anything in between.
    let later = "SELECT webhook_emit('order.created', deliver_at => now() + interval '5 s')";
    databases
        .iter()
        .for_each(|database| database.execute(later));
    for n in 0..DATABASES {
        receiver.wait_for_requests_to(&format!("/{n}"), 3);
    }

    let waits = databases.iter().map(worker::state_and_reason);
    let (_, reason) = waits
        .into_iter()
        .find(|(state, _)| state == "no worker")
        .expect("some wait for their turn");
    let remedy = "no worker delivers from this database: 16 databases take turns with 6 workers, because \
                  max_worker_processes = 8; set it to 18 or more and restart the server";
    assert_eq!(reason, remedy);
}

#[test]
fn a_shortage_of_worker_processes_is_said_once_with_its_numbers() {
    let cluster = cluster_with_room_for(1);
    let receiver = Receiver::start();
    let databases: Vec<_> = (0..3).map(|_| cluster.database("crowded")).collect();
    for database in &databases {
        database.add_endpoint("orders", &receiver.url("/orders"));
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
    }
    wait::until_true("the shortage to be said", || {
        !shortages(&cluster).is_empty()
    });
    let log = cluster.log();
    let said = shortages(&cluster);
    assert_eq!(said.len(), 1, "{log}");
    assert!(log.contains("DETAIL:  max_worker_processes = 3"), "{log}");
    assert!(log.contains("HINT:  Set max_worker_processes to "), "{log}");

    let turns = "databases take turns with 1 workers, because max_worker_processes = 3";
    let waiting = databases.iter().find(|database| {
        let (state, reason) = worker::state_and_reason(database);
        state == "no worker" && reason.contains(turns)
    });
    let waiting = waiting.expect("two of three wait");
    waiting.wait_until(&format!(
        "SELECT count(*) = 1 FROM webhook_why() AS why
         WHERE why LIKE 'Nothing is delivered now: there is no worker (% {turns}%'"
    ));
    let name = waiting.name().to_owned();
    let (left, others): (Vec<_>, Vec<_>) = databases.into_iter().partition(|d| d.name() == name);
    drop(others);
    worker::pid(&left[0]);
}

#[test]
fn a_database_with_work_gets_its_turn_beside_one_that_never_rests() {
    let cluster = cluster_with_room_for(1);
    let receiver = Receiver::start();
    let busy = cluster.database("busy");
    busy.add_endpoint_with("orders", &receiver.url("/busy"), "rate_limit => 25");
    busy.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 2000)");
    receiver.wait_for_requests_to("/busy", 1);

    let patient = cluster.database("patient");
    patient.add_endpoint("orders", &receiver.url("/patient"));
    let event = patient.emit("order.created", json!({}));
    patient.wait_for_status(event, "SENT");
    let before = receiver.requests_to("/busy").len();
    assert!(before < 2000, "{before}");
    receiver.wait_for_requests_to("/busy", before + 1);
    let ids = receiver.requests_to("/busy");
    let sent: std::collections::HashSet<_> = ids.iter().map(|r| r.header("webhook-id")).collect();
    assert_eq!(sent.len(), ids.len(), "a turn that ends repeats nothing");
}

#[test]
fn a_clock_that_is_set_back_delays_no_delivery() {
    let clock = Clock::make();
    let builder = Cluster::builder().setting("webhook.poll_interval = '1 s'");
    let cluster = clock.of(builder).start();
    let database = cluster.database("set_back");
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, number| match number {
        1 => Answer::status(503),
        _ => Answer::status(200),
    });
    clock.set(7200);
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute("UPDATE webhook.policy SET initial_delay = '5 s' WHERE name = 'fast'");
    let tried = database.emit("order.created", json!({}));
    database.wait_until("SELECT EXISTS (SELECT FROM webhook.delivery WHERE wait_reason = 'retry')");
    database.pause_all();
    let emit = "SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')";
    let scheduled: uuid::Uuid = database.query_one_value(emit);
    let new = database.emit("order.created", json!({}));
    clock.set(0);
    database.resume_all();
    database.wait_for_status(new, "SENT");
    database.wait_for_status(tried, "SENT");
    assert_eq!(
        database.delivery_status(scheduled).as_deref(),
        Some("PENDING"),
        "a time that somebody chose stays"
    );
}

#[test]
fn a_clock_that_is_set_back_delays_no_worker() {
    let clock = Clock::make();
    let builder = Cluster::builder().setting(&format!("max_worker_processes = {}", LAUNCHERS + 1));
    let cluster = clock.of(builder).start();
    let receiver = Receiver::start();
    let databases = [cluster.database("first"), cluster.database("second")];
    for database in &databases {
        database.add_endpoint("orders", &receiver.url("/orders"));
    }
    let before: String = databases[0].query_one_value("SELECT clock_timestamp()::text");
    clock.set(-3600);
    databases[0].wait_until(&format!(
        "SELECT clock_timestamp() < timestamptz '{before}' - interval '50 min'"
    ));
    // One place for both, and an event that is emitted now was not due an hour ago.
    for database in databases.iter().chain(&databases) {
        let event = database.emit("order.created", json!({}));
        database.wait_for_status(event, "SENT");
    }
    let pid = worker::pid(&databases[1]);
    worker::terminate(&databases[1], pid);
    worker::successor(&databases[1], pid);
}
