//! The cost of endpoints that have something due tomorrow, while another gets an event now and then.

use webhook_e2e::{Cluster, Receiver, worker};

use crate::flow::emit_steadily;
use crate::measure::{cpu, percentile};
use crate::options::Options;
use crate::report::{Figure, number};

const ENDPOINTS: u32 = 3_000;
const EVENTS_PER_SECOND: u32 = 10;
const WANTED_PERCENT: f64 = 3.0;

pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = Cluster::builder().purpose("bench").start();
    let database = cluster.plain_database("many");
    database.execute("CREATE EXTENSION webhook");
    let receiver = Receiver::start();
    database.execute(&format!(
        "SELECT webhook_set_endpoint('busy', '{url}', ARRAY['busy']);
         SELECT webhook_set_endpoint('tomorrow ' || n, '{url}', ARRAY['tomorrow.' || n])
         FROM generate_series(1, {ENDPOINTS}) n;
         SELECT count(webhook_emit('tomorrow.' || n, deliver_at => now() + interval '1 day'))
         FROM generate_series(1, {ENDPOINTS}) n",
        url = receiver.url("/")
    ));
    let worker = worker::pid(&database);
    // The worker has looked at all new endpoints by then.
    let second = std::time::Duration::from_secs(1);
    emit_steadily(&database, &receiver, "busy", EVENTS_PER_SECOND, 2 * second);
    let (before, begun) = (cpu(worker), std::time::Instant::now());
    let mut flow = emit_steadily(
        &database,
        &receiver,
        "busy",
        EVENTS_PER_SECOND,
        2 * options.flow,
    );
    let percent = (cpu(worker) - before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    vec![
        Figure::new(
            format!(
                "{EVENTS_PER_SECOND} events/s beside {} endpoints with something due tomorrow",
                number(f64::from(ENDPOINTS))
            ),
            format!(
                "{percent:.1}% of a core; p99 {:.1} ms",
                percentile(&mut flow.latencies, 99)
            ),
        )
        .wanted(
            format!("at most {WANTED_PERCENT}%"),
            percent <= WANTED_PERCENT,
        ),
    ]
}
