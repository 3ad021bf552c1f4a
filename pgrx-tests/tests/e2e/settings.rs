//! The effects of the settings, and the worker's reports of itself.

use std::sync::mpsc;

use postgres::NoTls;
use serde_json::json;
use webhook_e2e::worker::state_and_reason;
use webhook_e2e::{Answer, Cluster, Database, Receiver, wait, worker};

#[test]
fn not_preloaded_says_so() {
    let mut cluster = Cluster::builder().without_preload().start();
    let database = cluster.plain_database("unloaded");
    let receiver = Receiver::start();
    let (said, notices) = mpsc::channel();
    let mut config = cluster.config(database.name());
    config.notice_callback(move |notice| said.send(notice).unwrap());
    let mut session = config.connect(NoTls).unwrap();
    session.batch_execute("CREATE EXTENSION webhook").unwrap();
    let warning = notices.try_recv().expect("a warning came");
    assert_eq!(warning.severity(), "WARNING");
    let hint = warning.hint().unwrap_or_default();
    assert!(hint.contains("shared_preload_libraries"), "{warning:?}");
    drop(session);

    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'standard'");
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url) VALUES ('by hand', '{}')",
        receiver.url("/by-hand")
    ));
    let event = database.emit("order.created", json!({}));
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    let (state, reason) = state_and_reason(&database);
    assert_eq!(state, "not preloaded");
    assert!(reason.contains("shared_preload_libraries"), "{reason}");

    cluster.configure("shared_preload_libraries = 'webhook'");
    cluster.restart();
    database.wait_for_status(event, "SENT");
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn enabled_off_holds_and_on_resumes() {
    let mut cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1 h'")
        .start();
    let database = cluster.database("switched");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&database);
    cluster.configure("webhook.enabled = off");
    cluster.reload();
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    let reason = state_and_reason(&database).1;
    assert!(reason.contains("webhook.enabled"), "{reason}");

    // Only the emit wakes the worker, and it has looked when it sleeps again.
    database.wait_until(
        "SELECT wait_event_type IS NOT DISTINCT FROM 'Extension' FROM pg_stat_activity
         WHERE backend_type = 'webhook worker' AND datname = current_database()",
    );
    let sleeps = worker::sleeps(pid);
    let event = database.emit("order.created", json!({}));
    wait::until_true("the worker to look", || worker::sleeps(pid) > sleeps);
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    assert_eq!(receiver.request_count(), 0);

    cluster.configure("webhook.enabled = on");
    cluster.reload();
    database.wait_for_status(event, "SENT");
    assert_eq!(state_and_reason(&database).0, "running");
}

#[test]
fn what_is_in_flight_is_settled_while_disabled() {
    let mut cluster = Cluster::start();
    let database = cluster.database("finishing");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    cluster.configure("webhook.enabled = off");
    cluster.reload();
    database.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    receiver.release("/orders");
    database.wait_for_status(event, "SENT");
}

#[test]
fn a_changed_max_in_flight_applies_on_reload_to_the_worker_that_runs() {
    let mut cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 4")
        .start();
    let (database, receiver) = (cluster.database("resized"), Receiver::start());
    receiver.hold("/orders");
    let url = receiver.url("/orders");
    database.add_endpoint_with("orders", &url, "max_in_flight => 100");
    let worker = worker::pid(&database);
    database.execute("SELECT webhook_emit('order.created') FROM generate_series(1, 50)");
    database.wait_until("SELECT in_flight BETWEEN 1 AND 4 FROM webhook_status()");
    cluster.configure("webhook.max_in_flight = 20");
    cluster.reload();
    database.wait_until("SELECT in_flight > 4 FROM webhook_status()");
    assert_eq!(worker::pid(&database), worker);
    assert!(receiver.requests().len() <= 20);
    receiver.release("/orders");
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
}

#[test]
fn a_shorter_poll_interval_applies_on_reload() {
    let mut cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1 h'")
        .start();
    let database = cluster.database("polled");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let woken = database.emit("order.created", json!({}));
    database.wait_for_status(woken, "SENT");

    cluster.configure("webhook.poll_interval = '100 ms'");
    cluster.reload();
    // A row that is written by hand wakes nobody.
    database.execute(
        "INSERT INTO webhook.event VALUES (webhook.new_id(), NULL, 'order.created', '{}', NULL, now());
         INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts)
         SELECT v.id, e.id, v.event_type, 3 FROM webhook.event v, webhook.endpoint e
         ORDER BY v.id DESC LIMIT 1",
    );
    receiver.wait_for_requests(2);
}

#[test]
fn status_shows_queue_and_due() {
    let database = Cluster::shared().database("queued");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute(
        "UPDATE webhook.endpoint SET paused_at = now();
         SELECT webhook_emit('order.created') FROM generate_series(1, 2);
         SELECT webhook_emit('order.created', deliver_at => now() + interval '1 h')",
    );
    let shown: bool = database.query_one_value(
        "SELECT queued = 3 AND due = 2 AND oldest_due > '0 s' AND in_flight = 0 FROM webhook_status()",
    );
    assert!(shown, "{}", status(&database));

    receiver.hold("/orders");
    database.resume_all();
    receiver.wait_for_requests(2);
    database.wait_until(
        "SELECT queued = 3 AND due = 0 AND oldest_due IS NULL AND in_flight = 2 FROM webhook_status()",
    );
    receiver.release("/orders");
    database.wait_until("SELECT queued = 1 AND in_flight = 0 FROM webhook_status()");
    let is_the_worker: bool = database.query_one_value(
        "SELECT a.backend_type = 'webhook worker' AND a.datname = s.database
         FROM webhook_status() s JOIN pg_stat_activity a ON a.pid = s.worker_pid",
    );
    assert!(is_the_worker, "{}", status(&database));
}

#[test]
fn last_error_is_shown() {
    // A worker hands an outcome that was set aside in again after this time.
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '2s'")
        .start();
    let database = cluster.database("erring");
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, _| Answer::status(400));
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION ''the dog ate it''; END';
         CREATE TRIGGER refuse BEFORE INSERT ON webhook.attempt FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let event = database.emit("order.created", json!({}));
    database.wait_until(
        "SELECT coalesce(last_error LIKE '%the dog ate it%' AND last_error_at > now() - interval '1 min', false)
         FROM webhook_status()",
    );
    assert!(cluster.log().contains("the dog ate it"));

    database.execute("DROP TRIGGER refuse ON webhook.attempt");
    database.wait_for_status(event, "FAILED");
}

#[test]
fn the_worker_is_webhook_owner_and_can_be_nobody_else() {
    let database = Cluster::shared().database("acting");
    let receiver = Receiver::start();
    receiver.respond("/orders", |_, _| Answer::status(400));
    database.execute(
        "CREATE TABLE audit (who text, session text, became text);
         GRANT INSERT ON audit TO webhook_owner;
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE became text;
         BEGIN
             BEGIN
                 SET SESSION AUTHORIZATION postgres;
             EXCEPTION WHEN insufficient_privilege THEN became := SQLSTATE;
             END;
             INSERT INTO public.audit VALUES (current_user, session_user, became);
             RETURN NULL;
         END $$;
         CREATE TRIGGER audit AFTER INSERT ON webhook.attempt FOR EACH ROW EXECUTE FUNCTION audit()",
    );
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let seen: String = database.query_one_value("SELECT a::text FROM audit a");
    assert_eq!(seen, "(webhook_owner,webhook_owner,42501)");
}

#[test]
fn read_only_default_makes_it_wait_quietly() {
    let cluster = Cluster::start();
    let database = cluster.database("read_only");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    let name = database.name();
    database.execute(&format!(
        "ALTER DATABASE {name} SET default_transaction_read_only = on"
    ));
    worker::terminate(&database, first);
    let second = worker::successor(&database, first);
    database.wait_until("SELECT state = 'held' FROM webhook_status()");
    let reason = state_and_reason(&database).1;
    assert!(reason.contains("default_transaction_read_only"), "{reason}");
    let event = emit_read_write(&database);
    assert_eq!(worker::complaints(&cluster, second), Vec::<String>::new());

    cluster
        .connect("postgres")
        .execute(
            &format!("ALTER DATABASE {name} RESET default_transaction_read_only"),
            &[],
        )
        .unwrap();
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&database), second);
}

#[test]
fn a_read_only_server_waits_quietly_and_goes_on() {
    let mut cluster = Cluster::start();
    let database = cluster.database("read_only");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let pid = worker::pid(&database);
    cluster.configure("default_transaction_read_only = on");
    cluster.reload();
    database.wait_until("SELECT state = 'held' FROM webhook_status()");
    let event = emit_read_write(&database);

    cluster.configure("default_transaction_read_only = off");
    cluster.reload();
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&database), pid);
    assert_eq!(worker::complaints(&cluster, pid), Vec::<String>::new());
}

/// Emits where sessions are read-only by default.
fn emit_read_write(database: &Database) -> uuid::Uuid {
    let mut session = database.connect();
    session
        .batch_execute("SET default_transaction_read_only = off")
        .unwrap();
    webhook_e2e::database::emit(&mut session, "order.created", json!({}))
}

fn status(database: &Database) -> String {
    database.query_one_value("SELECT s::text FROM webhook_status() s")
}
