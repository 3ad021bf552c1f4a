//! A worker that is told to stop ends within seconds, whatever it waits for, and loses nothing.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::worker::{self, ENDS_WITHIN};
use webhook_e2e::{Cluster, Database, Receiver, wait};

#[test]
fn a_fast_stop_waits_for_no_standby_that_is_away() {
    let mut cluster = Cluster::start();
    let database = cluster.database("settling");
    let receiver = Receiver::start();
    let event = in_flight(&database, &receiver);
    let away = StandbyAway::begin(&cluster);

    stop(&mut cluster);
    cluster.start_server();
    drop(away);
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
    let attempts: i32 = database.query_one_value("SELECT attempts FROM webhook.delivery");
    assert_eq!(attempts, 1, "the claim was given back");
}

#[test]
fn a_fast_stop_ends_a_worker_that_waits_for_a_standby() {
    let mut cluster = Cluster::start();
    let database = cluster.database("claiming");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&database);
    let _away = StandbyAway::begin(&cluster);
    database.execute("SET synchronous_commit = local; SELECT webhook_emit('order.created')");
    wait_for_standby(&database, pid);

    stop(&mut cluster);
}

#[test]
fn terminating_a_worker_waits_for_no_standby_that_is_away() {
    let cluster = Cluster::start();
    let database = cluster.database("terminated");
    let receiver = Receiver::start();
    let event = in_flight(&database, &receiver);
    let away = StandbyAway::begin(&cluster);

    terminate(&database);
    drop(away);
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
}

#[test]
fn drop_database_waits_for_no_standby_that_is_away() {
    let cluster = Cluster::start();
    let receiver = Receiver::start();
    let database = cluster.database("settling");
    in_flight(&database, &receiver);
    let _away = StandbyAway::begin(&cluster);
    drop_database(&cluster, &database);
}

#[test]
fn drop_database_ends_a_worker_that_waits_for_a_standby() {
    let cluster = Cluster::start();
    let database = cluster.database("claiming");
    database.add_endpoint("orders", &Receiver::closed_url());
    let pid = worker::pid(&database);
    let _away = StandbyAway::begin(&cluster);
    database.execute("SET synchronous_commit = local; SELECT webhook_emit('order.created')");
    wait_for_standby(&database, pid);
    drop_database(&cluster, &database);
}

#[test]
fn a_fast_stop_waits_for_no_lock() {
    let mut cluster = Cluster::start();
    let database = cluster.database("locked");
    let receiver = Receiver::start();
    let event = in_flight(&database, &receiver);
    let mut person = database.connect();
    person.batch_execute("BEGIN").unwrap();
    lock_everything(&mut person);
    wait_for_lock(&database);

    stop(&mut cluster);
    cluster.start_server();
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
}

#[test]
fn terminating_a_worker_waits_for_no_lock() {
    let database = Cluster::shared().database("locked");
    let receiver = Receiver::start();
    let event = in_flight(&database, &receiver);
    let mut person = database.connect();
    person.batch_execute("BEGIN").unwrap();
    lock_everything(&mut person);
    wait_for_lock(&database);

    terminate(&database);
    person.batch_execute("ROLLBACK").unwrap();
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
}

#[test]
fn hanging_receivers_delay_neither_a_stop_nor_drop_database() {
    let mut cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 40")
        .start();
    let receiver = Receiver::start();
    let databases = [cluster.database("hanging"), cluster.database("hanging")];
    for database in &databases {
        hang(database, &receiver);
    }
    receiver.wait_for_requests(40);
    drop_database(&cluster, &databases[0]);
    stop(&mut cluster);
}

#[test]
fn a_worker_that_cannot_be_cancelled_ends_all_the_same() {
    let database = Cluster::shared().database("stuck");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute(
        "CREATE FUNCTION be_stuck() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             FOR i IN 1 .. 100 LOOP
                 BEGIN
                     PERFORM pg_catalog.pg_sleep(60);
                 EXCEPTION WHEN query_canceled THEN
                 END;
             END LOOP;
             RETURN NEW;
         END $$;
         CREATE TRIGGER be_stuck BEFORE INSERT ON webhook.delivery_history FOR EACH ROW EXECUTE FUNCTION be_stuck()",
    );
    let pid = worker::pid(&database);
    let event = database.emit("order.created", json!({}));
    database.wait_until(&format!(
        "SELECT wait_event IS NOT DISTINCT FROM 'PgSleep' FROM pg_stat_activity WHERE pid = {pid}"
    ));

    terminate(&database);
    assert_eq!(
        database.delivery_status(event).as_deref(),
        Some("SENDING"),
        "the next worker recovers it"
    );
}

/// While it lives no commit that asks for a standby returns.
struct StandbyAway(postgres::Config);

impl StandbyAway {
    fn begin(cluster: &Cluster) -> StandbyAway {
        let away = StandbyAway(cluster.config("postgres"));
        away.configure("SET synchronous_standby_names = 'nobody'");
        away
    }

    fn configure(&self, change: &str) {
        let mut session = self.0.connect(postgres::NoTls).unwrap();
        for sql in [
            &*format!("ALTER SYSTEM {change}"),
            "SELECT pg_reload_conf()",
        ] {
            session.batch_execute(sql).unwrap();
        }
    }
}

impl Drop for StandbyAway {
    /// Before the databases are dropped, or that would wait for ever.
    fn drop(&mut self) {
        if self.0.connect(postgres::NoTls).is_ok() {
            self.configure("RESET synchronous_standby_names");
        }
    }
}

/// An event whose request is never answered before `/orders` is released.
fn in_flight(database: &Database, receiver: &Receiver) -> Uuid {
    receiver.hold("/orders");
    database.execute("UPDATE webhook.policy SET timeout = '10 min' WHERE name = 'fast'");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    event
}

/// More than there are threads, for endpoints that never answer.
fn hang(database: &Database, receiver: &Receiver) {
    database.execute("UPDATE webhook.policy SET timeout = '10 min' WHERE name = 'fast'");
    for number in 0..20 {
        let path = format!("/hanging/{number}");
        receiver.hold(&path);
        database.add_endpoint(&format!("hanging{number}"), &receiver.url(&path));
    }
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 10)");
}

fn lock_everything(session: &mut postgres::Client) {
    session
        .batch_execute(
            "DO $$ BEGIN
                 EXECUTE (SELECT 'LOCK TABLE ' || string_agg(format('webhook.%I', relname), ', ')
                          FROM pg_class WHERE relnamespace = 'webhook'::regnamespace AND relkind IN ('r', 'p'));
             END $$",
        )
        .unwrap();
}

#[track_caller]
fn wait_for_standby(database: &Database, pid: i32) {
    database.wait_until(&format!(
        "SELECT coalesce(max(wait_event) = 'SyncRep', false) FROM pg_stat_activity WHERE pid = {pid}"
    ));
}

/// Until its worker waits for somebody's lock.
#[track_caller]
fn wait_for_lock(database: &Database) {
    database.wait_until(
        "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
                        WHERE NOT granted AND datname = current_database() AND backend_type = 'webhook worker')",
    );
}

#[track_caller]
fn stop(cluster: &mut Cluster) {
    let told = Instant::now();
    cluster.stop();
    assert_ended(told);
}

#[track_caller]
fn drop_database(cluster: &Cluster, database: &Database) {
    let mut session = cluster.connect("postgres");
    let local = "SET synchronous_commit = local; SET statement_timeout = '30s'";
    session.batch_execute(local).unwrap();
    let told = Instant::now();
    let dropped = session.batch_execute(&format!("DROP DATABASE {}", database.name()));
    dropped.unwrap_or_else(|error| panic!("{error:?}"));
    assert_ended(told);
}

#[track_caller]
fn terminate(database: &Database) {
    let pid: i32 = database.query_one_value(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'webhook worker'",
    );
    let process = PathBuf::from(format!("/proc/{pid}"));
    worker::terminate(database, pid);
    wait::until_within(ENDS_WITHIN, "the worker to end", || {
        (!process.exists()).then_some(()).ok_or("running")
    });
}

#[track_caller]
fn assert_ended(told: Instant) {
    let took = told.elapsed();
    assert!(took < ENDS_WITHIN, "{took:?}");
}
