//! The cost of large tables: deliveries of tomorrow, of yesterday, and dead letters, all of the endpoint
//! that is measured.

use webhook_e2e::{Cluster, Database};

use crate::drain;
use crate::options::Options;
use crate::report::{Figure, number, progress};
use crate::sink::Sink;

const WANTED: f64 = 0.95;
/// In thousands.
const FUTURE: u32 = 1_000;
const SENT: u32 = 1_000;
const DEAD: u32 = 100;

pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = Cluster::builder()
        .purpose("bench")
        .setting("max_wal_size = '8GB'")
        .start();
    let databases = ["empty", "full"].map(|name| cluster.plain_database(name));
    let sink = Sink::start(0, 1);
    for database in &databases {
        database.execute("CREATE EXTENSION webhook");
        drain::add_endpoints(database, &sink.urls());
    }
    let [future, sent, dead] =
        [FUTURE, SENT, DEAD].map(|thousands| thousands * options.thousandths);
    progress(&format!(
        "rows: making {future} of tomorrow, {sent} sent, {dead} dead"
    ));
    fill(&databases[1], future, sent, dead);
    let rounds = options.rounds.max(3);
    let [empty, full] = drain::rates_in_turns("rows", &databases, &sink, rounds, options);
    let ratio = full / empty;
    let thousands = |rows: u32| number(f64::from(rows));
    vec![
        Figure::new(
            format!(
                "rate with {} future, {} sent, {} dead rows",
                thousands(future),
                thousands(sent),
                thousands(dead)
            ),
            format!("{}/s of {}/s: {ratio:.2}", number(full), number(empty)),
        )
        .wanted(format!("at least {WANTED}"), ratio >= WANTED),
    ]
}

/// By plain INSERTs: a million emits would take a minute and more.
fn fill(database: &Database, future: u32, sent: u32, dead: u32) {
    let all = future + sent + dead;
    database.execute(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         SELECT overlay(webhook.first_id(t)::text PLACING right(md5(n::text), 12) FROM 25)::uuid, 'bench.0',
                jsonb_build_object('number', n, 'customer', md5(n::text)), t
         FROM generate_series(1, {all}) n,
              LATERAL (SELECT now() - interval '1 day' + n * interval '20 hours' / {all}) AS emitted (t);
         CREATE TEMP TABLE made AS
         SELECT v.id AS event_id, e.id AS endpoint_id, v.event_type, v.created_at,
                row_number() OVER (ORDER BY v.id) AS n
         FROM webhook.event v, webhook.endpoint e;
         INSERT INTO webhook.delivery_history (event_id, endpoint_id, event_type, status, attempts, max_attempts,
                                               next_attempt_at, created_at, completed_at)
         SELECT event_id, endpoint_id, event_type, 'SENT', 1, 10, created_at, created_at, created_at + interval '50 ms'
         FROM made WHERE n <= {sent};
         INSERT INTO webhook.dead_letter (event_id, endpoint_id, event_type, status, attempts, max_attempts,
                                          next_attempt_at, created_at, completed_at, last_error, reason)
         SELECT event_id, endpoint_id, event_type, 'FAILED', 10, 10, created_at, created_at, created_at + interval '1 s',
                'answered with status 500', 'status'
         FROM made WHERE n BETWEEN {sent} + 1 AND {sent} + {dead};
         INSERT INTO webhook.delivery_queue (event_id, endpoint_id, event_type, max_attempts, next_attempt_at, created_at)
         SELECT event_id, endpoint_id, event_type, 10, now() + interval '1 day' + random() * interval '1 hour', created_at
         FROM made WHERE n > {sent} + {dead}"
    ));
    for table in ["event", "delivery_queue", "delivery_history", "dead_letter"] {
        database.execute(&format!("VACUUM ANALYZE webhook.{table}"));
    }
    database.execute("CHECKPOINT");
}
