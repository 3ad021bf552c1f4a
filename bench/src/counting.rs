//! The cost of figures: deliveries by endpoint, histograms, and their rows in `webhook.stat`.

use webhook_e2e::{Cluster, Database};

use crate::drain;
use crate::options::Options;
use crate::report::{Figure, number};
use crate::sink::Sink;

const WANTED: f64 = 0.95;
const ROUNDS: usize = 5;

pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = Cluster::builder()
        .purpose("bench")
        .setting("max_wal_size = '8GB'")
        .start();
    let databases = ["uncounted", "counted"].map(|name| cluster.plain_database(name));
    let sink = Sink::start(0, 1);
    for database in &databases {
        database.execute("CREATE EXTENSION webhook");
        drain::add_endpoints(database, &sink.urls());
    }
    count_nothing(&databases[0]);
    let rounds = options.rounds.max(ROUNDS);
    let [uncounted, counted] =
        drain::rates_in_turns("counting", &databases, &sink, rounds, options);
    let ratio = counted / uncounted;
    vec![
        Figure::new(
            "rate with figures, beside one without",
            format!(
                "{}/s of {}/s: {ratio:.2}",
                number(counted),
                number(uncounted)
            ),
        )
        .wanted(format!("at least {WANTED}"), ratio >= WANTED),
    ]
}

/// A settlement groups nothing, and nothing is added to `webhook.stat`.
fn count_nothing(database: &Database) {
    database.execute(
        r"DO $$
         DECLARE
             counts text := pg_get_functiondef('webhook.settle_successes'::regproc);
             adds text := pg_get_functiondef('webhook.add_figures'::regproc);
             counts_not text := regexp_replace(counts, 'FROM ended e\s+GROUP BY', 'FROM ended e WHERE false GROUP BY');
             adds_not text := regexp_replace(adds, '\mBEGIN\M', 'BEGIN RETURN;');
         BEGIN
             IF counts_not = counts OR adds_not = adds THEN
                 RAISE EXCEPTION 'it would count';
             END IF;
             EXECUTE counts_not;
             EXECUTE adds_not;
         END $$",
    );
}
