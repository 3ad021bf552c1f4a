//! Health, as a probe asks: one word, and the reasons for it.

use webhook_e2e::{Cluster, Database, Receiver, engine, wait, worker};

#[track_caller]
fn health(database: &Database) -> (String, String) {
    let query = "SELECT health, coalesce(reason, '') FROM webhook_status()";
    let row = database.connect().query_one(query, &[]).unwrap();
    (row.get(0), row.get(1))
}

#[track_caller]
fn wait_for(database: &Database, health: &str, reason: &str) {
    database.wait_until(&format!(
        "SELECT health = '{health}' AND coalesce(reason, '') LIKE '%{reason}%' FROM webhook_status()"
    ));
}

#[test]
fn a_database_whose_sender_is_at_work_is_healthy() {
    let database = Cluster::shared().database("healthy");
    wait_for(&database, "ok", "");
    // Good to know, and no reason to wake anybody.
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    let (health, _) = health(&database);
    assert_eq!(health, "ok");
}

#[test]
fn without_a_sender_or_with_one_that_is_held_it_is_critical() {
    let mut cluster = Cluster::builder().start();
    let database = cluster.database("unsent");
    wait_for(&database, "ok", "");
    for (setting, reason) in [
        ("webhook.enabled", "webhook.enabled is off"),
        (
            "default_transaction_read_only",
            "default_transaction_read_only is on",
        ),
    ] {
        let (bad, good) = match setting {
            "webhook.enabled" => ("off", "on"),
            _ => ("on", "off"),
        };
        cluster.configure(&format!("{setting} = {bad}"));
        cluster.reload();
        wait_for(&database, "critical", reason);
        cluster.configure(&format!("{setting} = {good}"));
        cluster.reload();
        wait_for(&database, "ok", "");
    }
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    database.execute("UPDATE webhook.endpoint SET origin = 'elsewhere'");
    wait_for(&database, "critical", "webhook_adopt()");
    // One line for each change.
    let said = |state: &str| {
        let line = format!(
            "webhook worker for database \"{}\" is {state}",
            database.name()
        );
        cluster.log().matches(&line).count()
    };
    assert_eq!(said("disabled: webhook.enabled is off"), 1);
    assert_eq!(said("held: default_transaction_read_only is on"), 1);
    assert_eq!(said("running"), 2);
}

#[test]
fn a_standby_is_healthy_whatever_its_figures_are_until_it_is_promoted() {
    let primary = Cluster::start();
    let database = primary.database("followed");
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    database.execute(
        "INSERT INTO webhook.breaker (endpoint_id, state, consecutive_failures, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 5, 1, now(), now() + interval '1 h' FROM webhook.endpoint",
    );
    wait_for(&database, "warning", "(webhook_open_breakers)");

    let standby = Cluster::builder().start_standby_of(&primary);
    let copy = standby.existing_database(database.name());
    let alerting = "SELECT alert FROM webhook.metrics WHERE metric = 'webhook_open_breakers'";
    assert!(copy.query_one_value::<bool>(alerting));
    let standing_by = "this server is a standby; its primary delivers";
    assert_eq!(health(&copy), ("ok".into(), standing_by.into()));

    standby.promote();
    wait_for(&copy, "warning", "(webhook_open_breakers)");
}

#[test]
fn a_queue_that_ages_is_a_warning_and_after_fifteen_minutes_without_a_success_critical() {
    let cluster = engine::idle_cluster();
    let database = cluster.database("ageing");
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    for (waited, sent, expected) in [
        ("59 s", 0, "ok"),
        ("61 s", 0, "warning"),
        ("901 s", 0, "critical"),
        // It drains.
        ("901 s", 1, "warning"),
    ] {
        let mut client = database.connect();
        let mut transaction = client.transaction().unwrap();
        let emit = format!(
            "SELECT webhook_emit('order.created');
             UPDATE webhook.delivery_queue SET next_attempt_at = now() - interval '{waited}', created_at = now() - interval '{waited}'"
        );
        transaction
            .batch_execute("ALTER TABLE webhook.delivery_queue DISABLE TRIGGER USER")
            .unwrap();
        transaction.batch_execute(&emit).unwrap();
        let count =
            format!(r#"SELECT webhook.count_figures('[{{"endpoint_id": 1, "sent": {sent}}}]')"#);
        transaction.batch_execute(&count).unwrap();
        let query = "SELECT health, problem FROM webhook.problems('running', NULL) ORDER BY health <> 'critical', health <> 'warning'";
        let row = transaction
            .query_one(&format!("{query} LIMIT 1"), &[])
            .unwrap();
        let seen: (&str, &str) = (row.get(0), row.get(1));
        assert_eq!(seen.0, expected, "{waited}: {}", seen.1);
        assert_eq!(
            seen.1.contains("webhook_oldest_due"),
            expected != "ok",
            "{}",
            seen.1
        );
    }
}

#[test]
fn one_endpoint_whose_backlog_fills_the_disk_is_a_warning_that_names_it() {
    let database = Cluster::idle().database("backlog");
    database.add_endpoint("acme/orders", "http://127.0.0.1:9/");
    database.add_endpoint("other", "http://127.0.0.1:9/");
    let fills = "SELECT count(*) FROM webhook.problems('running', NULL) WHERE problem LIKE 'endpoint%fills the disk%'";
    database.execute(
        "SELECT webhook_emit('order.created', '{\"text\": \"about forty bytes of payload\"}', tenant => 'acme', endpoints => '{acme/orders}')
         FROM generate_series(1, 10001);
         SELECT webhook_emit('order.created', endpoints => '{other}') FROM generate_series(1, 100)",
    );
    database.execute("VACUUM ANALYZE webhook.delivery_queue");
    assert_eq!(database.query_one_value::<i64>(fills), 0);
    database.execute("CREATE OR REPLACE FUNCTION webhook.backlog_limit() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 2000000");
    let said: String = database.query_one_value(
        "SELECT problem FROM webhook.problems('running', NULL) WHERE problem LIKE 'endpoint%fills the disk%' AND health = 'warning'",
    );
    assert!(
        said.starts_with(
            "endpoint \"acme/orders\" fills the disk: about 10001 deliveries wait for it, about "
        ),
        "{said}"
    );
    // Statistics of yesterday are no reason.
    database.execute("DELETE FROM webhook.delivery_queue WHERE ctid = (SELECT min(ctid) FROM webhook.delivery_queue WHERE endpoint_id = 1)");
    assert_eq!(database.query_one_value::<i64>(fills), 0);
}

#[test]
fn queued_bytes_are_those_of_the_payloads() {
    let database = Cluster::idle().database("bytes");
    database.add_endpoint("orders", "http://127.0.0.1:9/");
    let bytes = "SELECT ARRAY[(SELECT queued_bytes FROM webhook_status()), (SELECT queued_bytes FROM webhook.endpoint_status)]";
    assert_eq!(database.query_one_value::<Vec<i64>>(bytes), [0, 0]);
    database
        .execute("SELECT webhook_emit('order.created', '{\"a\": 1}') FROM generate_series(1, 3)");
    assert_eq!(database.query_one_value::<Vec<i64>>(bytes), [24, 24]);
}

#[test]
fn the_activity_of_the_worker_shows_its_state() {
    let (database, receiver) = (Cluster::shared().database("activity"), Receiver::start());
    let seen = |state: &str, query: &str| {
        database.wait_until(&format!(
            "SELECT EXISTS (
                 SELECT FROM pg_stat_activity
                 WHERE pid = (SELECT worker_pid FROM webhook_status()) AND application_name = 'webhook worker'
                   AND backend_type = 'webhook worker' AND state = '{state}'
                   AND query = 'delivering webhooks: {query}')"
        ))
    };
    seen("idle", "running, 0 in flight");
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute("SELECT webhook_emit('order.created')");
    seen("active", "running, 1 in flight");
    receiver.release("/orders");
    seen("idle", "running, 0 in flight");
}

#[test]
fn the_launcher_says_that_a_worker_does_not_come_up_and_when_it_has() {
    let cluster = Cluster::builder().start();
    let database = cluster.database("broken");
    let pid = worker::pid(&database);
    let original: String = database.query_one_value(
        "SELECT pg_get_functiondef('webhook.recognise_installation()'::regprocedure)",
    );
    database.execute(
        "CREATE OR REPLACE FUNCTION webhook.recognise_installation() RETURNS void
         LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''broken on purpose''; END'",
    );
    worker::terminate(&database, pid);
    let name = database.name();
    let wait_for_line = |line: String, next: &str| {
        wait::until(&line, || {
            let log = cluster.log();
            let found = log.split_once(&line).ok_or("not yet")?;
            match found.1.lines().nth(1).unwrap_or_default().contains(next) {
                true => Ok(()),
                false => Err("without its detail"),
            }
        })
    };
    let down = format!(
        "WARNING:  no webhook is delivered in database \"{name}\": its worker has ended 3 times in a row"
    );
    wait_for_line(down, "broken on purpose");
    database.execute(&original);
    wait_for_line(
        format!("LOG:  webhooks are delivered again in database \"{name}\""),
        "",
    );
    assert_eq!(
        cluster
            .log()
            .matches("no webhook is delivered in database")
            .count(),
        1
    );
}
