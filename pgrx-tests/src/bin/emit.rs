//! What emitting costs, as ratios within one run: webhook_emit() against plain INSERTs, a watched statement against
//! triggers for each row, and many endpoints against few. Nothing is delivered meanwhile.

use std::time::Instant;

use postgres::Client;
use webhook_e2e::{Cluster, Database};

const CLIENTS: &str = "8";
const SECONDS: &str = "2";
const ROUNDS: usize = 9;
const ROWS: i32 = 100_000;
const EMITS: i32 = 5_000;
const FEW: i32 = 10;
const MANY: i32 = 10_000;

const DATA: &str = r#"{"item": "teapot", "total": 100, "customer": "c-1234567"}"#;

fn main() {
    let cluster = (Cluster::builder().purpose("bench"))
        .setting("webhook.enabled = off")
        .setting("max_wal_size = '8GB'")
        .start();
    cost(&cluster);
    single(&cluster);
    bulk(&cluster);
    endpoints(&cluster);
}

/// In turns, so that whatever else the machine does meets both alike.
fn alternate<const N: usize>(rounds: usize, mut measure: impl FnMut(usize) -> f64) -> [f64; N] {
    let mut seen = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (number, seen) in seen.iter_mut().enumerate() {
            seen.push(measure(number));
        }
    }
    seen.map(median)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn add_endpoints(database: &Database, count: i32) {
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url, event_types)
         SELECT 'endpoint ' || n, 'https://receiver.invalid/', ARRAY['bench.' || n] FROM generate_series(1, {count}) n"
    ));
    database.execute("VACUUM ANALYZE webhook.endpoint");
}

/// One session, without the way to the server and back.
fn cost(cluster: &Cluster) {
    let database = cluster.database("cost");
    let mut client = database.connect();
    let script = include_str!("../../../bench/emit_cost.sql");
    let shown = client.simple_query(script).expect("the script runs");
    let row = shown.iter().rev().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.expect("the script ends with its figures");
    let figure = |column: &str| row.get(column).unwrap_or_default();
    println!(
        "in one session: {} us for two plain INSERTs, {} us for webhook_emit(): ratio {}, at most {} wanted",
        figure("two_inserts_us"),
        figure("webhook_emit_us"),
        figure("ratio"),
        figure("at_most")
    );
}

fn single(cluster: &Cluster) {
    let database = cluster.database("single");
    add_endpoints(&database, FEW);
    // The same columns, indexes, constraints and storage.
    database.execute(
        "CREATE TABLE plain_event (LIKE webhook.event INCLUDING ALL);
         CREATE TABLE plain_delivery (LIKE webhook.delivery_queue INCLUDING ALL);
         DO $$
         BEGIN
             EXECUTE (SELECT format('ALTER TABLE plain_delivery SET (%s)', array_to_string(reloptions, ', '))
                      FROM pg_class WHERE oid = 'webhook.delivery_queue'::regclass);
         END $$",
    );
    let plain = format!(
        "BEGIN;
         INSERT INTO plain_event (id, event_type, payload, created_at)
             VALUES (webhook.new_id(), 'bench.1', '{DATA}', clock_timestamp()) RETURNING id \\gset
         INSERT INTO plain_delivery (event_id, endpoint_id, event_type, max_attempts) VALUES (:id, 1, 'bench.1', 6);
         COMMIT;"
    );
    let emit = format!("SELECT webhook_emit('bench.1', '{DATA}');");
    let scripts = [one_line_each(&plain), emit];
    for (synchronous_commit, waiting) in [
        ("on", "waiting for the disk"),
        ("off", "not waiting for it"),
    ] {
        let [plain, emit] = alternate(ROUNDS, |number| {
            pgbench(cluster, &database, &scripts[number], synchronous_commit)
        });
        println!(
            "{CLIENTS} clients, {waiting}: {plain:.0} transactions/s of two plain INSERTs, {emit:.0} of webhook_emit(): ratio {:.2}, at least 0.8 wanted",
            emit / plain
        );
    }
}

/// pgbench ends a statement where its line does, unless it has no semicolon yet.
fn one_line_each(script: &str) -> String {
    (script.lines().map(str::trim)).fold(String::new(), |text, line| {
        let end = if line.ends_with(';') || line.ends_with("gset") {
            "\n"
        } else {
            " "
        };
        text + line + end
    })
}

/// Transactions per second.
fn pgbench(cluster: &Cluster, database: &Database, script: &str, synchronous_commit: &str) -> f64 {
    use std::io::Write;
    use std::process::Stdio;

    let mut child = (cluster.program("pgbench"))
        .env(
            "PGOPTIONS",
            format!("-c synchronous_commit={synchronous_commit}"),
        )
        .args([
            "-n",
            "-M",
            "prepared",
            "-c",
            CLIENTS,
            "-j",
            "2",
            "-T",
            SECONDS,
            "-f",
            "-",
            database.name(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pgbench can be run");
    let mut input = child.stdin.take().expect("it reads its script");
    input
        .write_all(script.as_bytes())
        .expect("it reads its script");
    drop(input);
    let output = child.wait_with_output().expect("pgbench ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("number of failed transactions: 0 "),
        "pgbench: {text}"
    );
    let rate = text.split_once("tps = ").expect("pgbench tells the rate").1;
    let rate = rate
        .split_whitespace()
        .next()
        .expect("it is followed by words");
    rate.parse().expect("the rate is a number")
}

fn bulk(cluster: &Cluster) {
    let database = cluster.database("bulk");
    add_endpoints(&database, FEW);
    database.execute(
        "CREATE TABLE watched (id int PRIMARY KEY, item text, total numeric, customer text);
         CREATE TABLE by_row (LIKE watched INCLUDING ALL);
         CREATE TABLE by_hand (LIKE watched INCLUDING ALL);
         SELECT webhook_watch('watched', 'bench', '{insert}');
         CREATE TRIGGER t AFTER INSERT ON by_row FOR EACH ROW EXECUTE FUNCTION webhook_trigger('bench.created');
         CREATE FUNCTION by_hand() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM webhook_emit('bench.created', to_jsonb(NEW));
             RETURN NULL;
         END $$;
         CREATE TRIGGER t AFTER INSERT ON by_hand FOR EACH ROW EXECUTE FUNCTION by_hand();
         UPDATE webhook.endpoint SET event_types = '{bench.created}' WHERE id = 1",
    );
    let mut client = database.connect();
    let mut insert = |table: &str| {
        let seconds = timed(
            &mut client,
            &format!(
                "INSERT INTO {table} SELECT n, 'teapot', n, 'c-1234567' FROM generate_series(1, {ROWS}) n"
            ),
        );
        let queued: i64 = database.query_one_value("SELECT count(*) FROM webhook.delivery_queue");
        assert_eq!(queued, i64::from(ROWS));
        client
            .batch_execute(&format!(
                "TRUNCATE {table}, webhook.event, webhook.delivery_queue"
            ))
            .expect("they can be emptied");
        seconds
    };
    // The short ones around the long ones.
    let mut watched = vec![insert("watched")];
    let by_row = insert("by_row");
    watched.push(insert("watched"));
    let by_hand = insert("by_hand");
    watched.push(insert("watched"));
    let watched = median(watched);
    println!(
        "{ROWS} rows: {watched:.2} s through webhook_watch(), {by_row:.2} s through webhook_trigger() for each row: ratio {:.1}, at least 5 wanted; {by_hand:.2} s through a trigger of one's own for each row: ratio {:.1}",
        by_row / watched,
        by_hand / watched
    );
}

fn endpoints(cluster: &Cluster) {
    let databases = [FEW, MANY].map(|count| {
        let database = cluster.database("endpoints");
        add_endpoints(&database, count);
        database
    });
    let mut clients = [databases[0].connect(), databases[1].connect()];
    let emit =
        format!("SELECT count(webhook_emit('bench.7', '{DATA}')) FROM generate_series(1, {EMITS})");
    let [few, many] = alternate(ROUNDS, |number| {
        timed(&mut clients[number], &emit) / f64::from(EMITS) * 1e6
    });
    println!(
        "one endpoint of {FEW} matches: {few:.0} us for an emit, one of {MANY}: {many:.0} us: ratio {:.2}, at most 1.2 wanted",
        many / few
    );
}

/// Seconds.
fn timed(client: &mut Client, statement: &str) -> f64 {
    let begun = Instant::now();
    let result = client.batch_execute(statement);
    result.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    begun.elapsed().as_secs_f64()
}
