//! The cost of emitting, as ratios within one run: webhook_emit() against plain INSERTs, a watched
//! statement against triggers for each row, and many endpoints against few. Nothing is delivered
//! meanwhile.

use std::time::Instant;

use postgres::Client;
use webhook_e2e::{Cluster, Database};

use crate::measure::median;
use crate::options::Options;
use crate::report::{Figure, progress};

const CLIENTS: &str = "8";
const SECONDS: &str = "2";
/// Short rounds, for each round of the options.
const ROUNDS: usize = 3;
const ROWS: i32 = 100_000;
const EMITS: i32 = 5_000;
const FEW: i32 = 10;
const MANY: i32 = 10_000;

const DATA: &str = r#"{"item": "teapot", "total": 100, "customer": "c-1234567"}"#;

pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = (Cluster::builder().purpose("bench"))
        .setting("webhook.enabled = off")
        .setting("max_wal_size = '8GB'")
        .start();
    progress("emit: in one session");
    let mut figures = vec![cost(&cluster)];
    progress("emit: in many sessions");
    figures.extend(single(&cluster, ROUNDS * options.rounds));
    progress("emit: from triggers");
    figures.extend(bulk(&cluster));
    progress("emit: among many endpoints");
    figures.push(endpoints(&cluster, ROUNDS * options.rounds));
    figures
}

/// Measures in turns, so that other load of the machine meets both alike.
fn alternate<const N: usize>(rounds: usize, mut measure: impl FnMut(usize) -> f64) -> [f64; N] {
    let mut seen = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (number, seen) in seen.iter_mut().enumerate() {
            seen.push(measure(number));
        }
    }
    seen.map(median)
}

fn add_endpoints(database: &Database, count: i32) {
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url, event_types)
         SELECT 'endpoint ' || n, 'https://receiver.invalid/', ARRAY['bench.' || n] FROM generate_series(1, {count}) n"
    ));
    database.execute("VACUUM ANALYZE webhook.endpoint");
}

/// Measures in one session, without the way to the server and back.
fn cost(cluster: &Cluster) -> Figure {
    let database = cluster.database("cost");
    let mut client = database.connect();
    let script = include_str!("../emit_cost.sql");
    let shown = client.simple_query(script).expect("the script runs");
    let row = shown.iter().rev().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.expect("the script ends with its figures");
    let figure = |column: &str| row.get(column).unwrap_or_default();
    let [ratio, at_most] = ["ratio", "at_most"].map(|column| {
        let number = figure(column).parse::<f64>();
        number.unwrap_or_else(|_| panic!("{column} is no number"))
    });
    Figure::new(
        "webhook_emit() beside two plain INSERTs, one session",
        format!(
            "{} us beside {} us: {ratio}",
            figure("webhook_emit_us"),
            figure("two_inserts_us")
        ),
    )
    .wanted(format!("at most {at_most}"), ratio <= at_most)
}

fn single(cluster: &Cluster, rounds: usize) -> Vec<Figure> {
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
    let waits = [
        ("on", "waiting for the disk"),
        ("off", "not waiting for it"),
    ];
    let figure = |(synchronous_commit, waiting)| {
        let [plain, emit] = alternate(rounds, |number| {
            pgbench(cluster, &database, &scripts[number], synchronous_commit)
        });
        let ratio = emit / plain;
        Figure::new(
            format!("webhook_emit() beside two plain INSERTs, {CLIENTS} clients {waiting}"),
            format!("{emit:.0} beside {plain:.0} transactions/s: {ratio:.2}"),
        )
        .wanted("at least 0.8", ratio >= 0.8)
    };
    waits.map(figure).into()
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

fn bulk(cluster: &Cluster) -> Vec<Figure> {
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
    let ratio = by_row / watched;
    vec![
        Figure::new(
            format!("webhook_watch() beside webhook_trigger() for each of {ROWS} rows"),
            format!("{watched:.2} s beside {by_row:.2} s: {ratio:.1}"),
        )
        .wanted("at least 5", ratio >= 5.0),
        Figure::new(
            format!("webhook_watch() beside one's own trigger for each of {ROWS} rows"),
            format!(
                "{watched:.2} s beside {by_hand:.2} s: {:.1}",
                by_hand / watched
            ),
        ),
    ]
}

fn endpoints(cluster: &Cluster, rounds: usize) -> Figure {
    let databases = [FEW, MANY].map(|count| {
        let database = cluster.database("endpoints");
        add_endpoints(&database, count);
        database
    });
    let mut clients = [databases[0].connect(), databases[1].connect()];
    let emit =
        format!("SELECT count(webhook_emit('bench.7', '{DATA}')) FROM generate_series(1, {EMITS})");
    let [few, many] = alternate(rounds, |number| {
        timed(&mut clients[number], &emit) / f64::from(EMITS) * 1e6
    });
    let ratio = many / few;
    Figure::new(
        format!("webhook_emit() among {MANY} endpoints beside {FEW}"),
        format!("{many:.0} us beside {few:.0} us: {ratio:.2}"),
    )
    .wanted("at most 1.2", ratio <= 1.2)
}

fn timed(client: &mut Client, statement: &str) -> f64 {
    let begun = Instant::now();
    let result = client.batch_execute(statement);
    result.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    begun.elapsed().as_secs_f64()
}
