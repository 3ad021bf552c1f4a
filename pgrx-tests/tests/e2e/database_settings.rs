//! Settings of a database or of the worker's role reach the worker that runs.

use std::time::Instant;

use serde_json::json;
use webhook_e2e::looking::role_with;
use webhook_e2e::{Answer, Cluster, Database, Looking, Receiver, wait, worker};

/// Where only commits wake the worker.
fn woken_by_commits_alone() -> Cluster {
    Cluster::builder()
        .setting("webhook.poll_interval = '1h'")
        .start()
}

/// A worker reads changed settings once a second at most.
#[track_caller]
fn wait_until_it_logs_success(database: &Database, logs: bool, after: &str) {
    wait::until_true(after, || logs_success(database) == logs);
}

/// Whether the worker logs an attempt that succeeds, as webhook.keep_attempts = all has it do.
#[track_caller]
fn logs_success(database: &Database) -> bool {
    let event = database.emit("quick", json!({}));
    database.wait_for_status(event, "SENT");
    database.query_one_value(&format!(
        "SELECT EXISTS (SELECT FROM webhook.attempt WHERE event_id = '{event}')"
    ))
}

#[test]
fn a_setting_of_the_database_reaches_the_worker_that_runs() {
    let cluster = woken_by_commits_alone();
    let (database, receiver) = (cluster.database("set"), Receiver::start());
    receiver.hold("/slow");
    for name in ["slow", "quick"] {
        let options = format!("event_types => '{{{name}}}'");
        database.add_endpoint_with(name, &receiver.url(&format!("/{name}")), &options);
    }
    let slow = database.emit("slow", json!({}));
    receiver.wait_for_requests_to("/slow", 1);
    let pid = worker::pid(&database);
    assert!(!logs_success(&database));

    let mut elsewhere = cluster.connect("postgres");
    let name = database.name();
    for (command, logs) in [
        ("ALTER DATABASE {} SET webhook.keep_attempts = 'all'", true),
        (
            "ALTER DATABASE {} SET webhook.keep_attempts = 'failed'",
            false,
        ),
        ("ALTER DATABASE {} SET webhook.keep_attempts = 'all'", true),
        (
            "BEGIN; ALTER DATABASE {} RESET webhook.keep_attempts; ROLLBACK",
            true,
        ),
        ("ALTER DATABASE {} RESET webhook.keep_attempts", false),
        (
            "ALTER ROLE webhook_owner IN DATABASE {} SET webhook.keep_attempts = 'all'",
            true,
        ),
        (
            "ALTER ROLE webhook_owner SET webhook.keep_attempts = 'failed'",
            true,
        ),
        ("ALTER ROLE webhook_owner IN DATABASE {} RESET ALL", false),
        ("ALTER ROLE ALL SET webhook.keep_attempts = 'all'", false),
        ("ALTER ROLE webhook_owner RESET ALL", true),
        ("ALTER ROLE ALL RESET ALL", false),
    ] {
        elsewhere
            .batch_execute(&command.replace("{}", name))
            .unwrap();
        wait_until_it_logs_success(&database, logs, command);
    }

    receiver.release("/slow");
    database.wait_for_status(slow, "SENT");
    assert_eq!(receiver.requests_to("/slow").len(), 1);
    assert_eq!(worker::pid(&database), pid);
    assert_eq!(worker::complaints(&cluster, pid), Vec::<String>::new());
}

#[test]
fn a_setting_that_is_reset_has_the_value_of_the_server_again() {
    let mut cluster = Cluster::builder()
        .setting("webhook.keep_attempts = 'all'")
        .start();
    let (database, receiver) = (cluster.database("reset"), Receiver::start());
    let name = database.name().to_owned();
    database.execute(&format!(
        "ALTER DATABASE {name} SET webhook.keep_attempts = 'failed'"
    ));
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = worker::pid(&database);
    worker::terminate(&database, first);
    let pid = worker::successor(&database, first);
    assert!(
        !logs_success(&database),
        "it was set when the worker connected"
    );

    let reset = format!("ALTER DATABASE {name} RESET webhook.keep_attempts");
    database.execute(&reset);
    wait_until_it_logs_success(&database, true, &reset);

    let set = format!("ALTER DATABASE {name} SET webhook.keep_attempts = 'all'");
    database.execute(&set);
    cluster.configure("webhook.keep_attempts = 'failed'");
    cluster.reload();
    wait_until_it_logs_success(&database, true, "the database comes first");
    database.execute(&reset);
    wait_until_it_logs_success(&database, false, "the line that was hidden");
    assert_eq!(worker::pid(&database), pid);
}

#[test]
fn a_prepared_transaction_sets_something_when_it_is_committed() {
    let cluster = Cluster::builder()
        .setting("webhook.poll_interval = '1h'")
        .setting("max_prepared_transactions = 5")
        .start();
    let (database, receiver) = (cluster.database("prepared"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute(&format!(
        "BEGIN; ALTER DATABASE {} SET webhook.keep_attempts = 'all'; PREPARE TRANSACTION 'set'",
        database.name()
    ));
    assert!(!logs_success(&database));
    database.execute("COMMIT PREPARED 'set'");
    assert!(logs_success(&database));
}

/// How often the worker and the launcher have gone to sleep while a session runs these commands.
fn sleeps_during(cluster: &Cluster, database: &Database, commands: &str) -> [u64; 2] {
    let launcher: i32 = database.query_one_value(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'webhook launcher'",
    );
    let pids = [worker::pid(database), launcher];
    let before = pids.map(worker::sleeps);
    let mut session = cluster.connect("postgres");
    for command in commands.split_inclusive(';') {
        session.batch_execute(command).unwrap();
    }
    let after = pids.map(worker::sleeps);
    [0, 1].map(|index| after[index] - before[index])
}

#[test]
fn a_role_that_alters_itself_wakes_no_worker() {
    let cluster = woken_by_commits_alone();
    let database = cluster.database("woken");
    database.execute("CREATE ROLE restless");
    let commands = "ALTER ROLE restless SET work_mem = '4MB'; ALTER ROLE restless PASSWORD NULL;
                    SET ROLE restless; ALTER ROLE CURRENT_USER RESET ALL; RESET ROLE;"
        .repeat(100);
    let [of_worker, of_launcher] = sleeps_during(&cluster, &database, &commands);
    assert!(
        of_worker < 30 && of_launcher < 30,
        "{of_worker}, {of_launcher}"
    );
}

#[test]
fn settings_that_change_in_a_loop_are_read_once_a_second_and_the_last_change_is_not_lost() {
    let cluster = woken_by_commits_alone();
    let database = cluster.database("looped");
    let name = database.name();
    let started = Instant::now();
    let commands = format!(
        "ALTER DATABASE {name} SET default_transaction_read_only = on;
         ALTER DATABASE {name} SET default_transaction_read_only = off;"
    );
    let [of_worker, _] = sleeps_during(&cluster, &database, &commands.repeat(300));
    // It wakes for the first change, and a second later to read what has changed since.
    let seconds = started.elapsed().as_secs();
    assert!(of_worker < 30 + 10 * seconds, "{of_worker} in {seconds} s");
    // It logs each time that it reads another value.
    let log = cluster.log();
    let state = format!("webhook worker for database \"{name}\" is ");
    let read = log.lines().filter(|line| line.contains(&state)).count() as u64;
    assert!(read <= seconds + 2, "{read} in {seconds} s");

    // Nothing else wakes it to read the last one.
    let last = format!("ALTER DATABASE {name} SET default_transaction_read_only = on;");
    sleeps_during(&cluster, &database, &format!("{commands}{last}"));
    database.wait_until("SELECT state = 'held' FROM webhook_status()");
}

/// A position is a time in seconds since 1970, and with so few digits the next one is in the future.
#[test]
fn few_digits_of_numbers_delay_no_delivery() {
    let cluster = woken_by_commits_alone();
    let database = cluster.database("digits");
    let receiver = Receiver::start();
    database.execute(&format!(
        "ALTER DATABASE {} SET extra_float_digits = -15",
        database.name()
    ));
    database.add_endpoint("orders", &receiver.url("/orders"));
    let earlier = worker::pid(&database);
    database.pause_all();
    let event = database.emit("order.created", json!({}));
    worker::terminate(&database, earlier);
    worker::successor(&database, earlier);
    database.resume_all();
    database.wait_for_status(event, "SENT");
}

/// Its settings may leave no plan, or ask for more memory than there can be.
#[test]
fn the_genetic_optimizer_fails_no_delivery() {
    let cluster = woken_by_commits_alone();
    let database = cluster.database("genetic");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    for setting in ["geqo_threshold = 2", "geqo_pool_size = 2147483647"] {
        let name = database.name();
        (cluster.connect("postgres"))
            .batch_execute(&format!("ALTER DATABASE {name} SET {setting}"))
            .unwrap();
    }
    let mut config = cluster.config(database.name());
    let mut client = config.options("-c geqo=off").connect(postgres::NoTls);
    let client = client.as_mut().unwrap();
    webhook_e2e::database::emit(client, "order.created", json!({}));
    receiver.wait_for_requests(1);
}

/// As pg_dump has it in its own session, so that nobody's view runs with its rights; from 15.8 and 16.4 on.
const RESTRICT: &str = "SET restrict_nonsystem_relation_kind = 'view, foreign-table'";

#[test]
fn a_database_that_restricts_views_still_gets_alerts_about_metrics() {
    let cluster = Cluster::start();
    let (database, receiver) = (cluster.database("restricted"), Receiver::start());
    database.execute(&format!("ALTER DATABASE {} {RESTRICT}", database.name()));
    open_a_breaker(&database, &receiver);
    database.wait_until(METRIC_HAS_ALERTED);
    let pid = database.query_one_value(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'webhook worker' AND datname = current_database()",
    );
    assert_eq!(worker::complaints(&cluster, pid), Vec::<String>::new());
}

#[test]
fn a_relay_whose_role_restricts_views_alerts_about_metrics_and_shows_them() {
    let cluster = Cluster::relayed();
    let (database, receiver) = (cluster.database("restricted"), Receiver::start());
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let role = format!("relay_read_of_{}", database.name());
    database.execute(&format!("ALTER ROLE {role} {RESTRICT}"));
    let looking = Looking::start(&connection, &["--page"]);
    open_a_breaker(&database, &receiver);
    database.wait_until(METRIC_HAS_ALERTED);
    for path in ["/metrics", "/"] {
        let answer = looking.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
}

const METRIC_HAS_ALERTED: &str =
    "SELECT EXISTS (SELECT FROM webhook.alarm WHERE metric = 'webhook_open_breakers')";

/// Which is cause for an alert about a metric.
#[track_caller]
fn open_a_breaker(database: &Database, receiver: &Receiver) {
    receiver.respond("/orders", |_, _| Answer::status(500));
    database.add_guarding_policy("guarding", 10, "");
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'guarding'");
    for _ in 0..3 {
        database.emit("order.created", json!({}));
    }
    receiver.wait_for_requests(3);
}
