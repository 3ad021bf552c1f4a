//! The end of the demo: a receiver is down for a while.

use std::collections::HashSet;
use std::fs;

use postgres::Client;
use webhook_e2e::directory::target_directory;
use webhook_e2e::looking;
use webhook_e2e::{Answer, Cluster, Database, Receiver};

use crate::terminal::{claim, run, step};

const WAITING: usize = 40;
const STATE: &str =
    "SELECT endpoint, state, queued, kept_back, consecutive_failures AS failures, trips, last_error
FROM webhook.endpoint_status ORDER BY endpoint";

pub fn survive_an_outage(
    client: &mut Client,
    cluster: &Cluster,
    database: &Database,
    receiver: &Receiver,
) {
    step(
        "7. An outage: a third endpoint answers 503. After three failures its circuit breaker opens.",
    );
    receiver.respond("/warehouse", |_, _| Answer::status(503));
    run(
        client,
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, failure_threshold, cooldown, max_cooldown)
VALUES ('careful', 10, 'fixed', '1 s', 3, '2 s', '2 s')",
    );
    let url = receiver.url("/warehouse");
    run(
        client,
        &format!(
            "SELECT * FROM webhook_set_endpoint('warehouse', '{url}', event_types => '{{stock.*}}', policy => 'careful')"
        ),
    );
    run(
        client,
        &format!(
            "SELECT count(webhook_emit('stock.counted', jsonb_build_object('shelf', n))) FROM generate_series(1, {WAITING}) n"
        ),
    );
    database.wait_until(
        "SELECT EXISTS (SELECT FROM webhook.endpoint_status WHERE endpoint = 'warehouse' AND state = 'OPEN' AND trips > 0)",
    );
    run(
        client,
        "INSERT INTO orders (item, price) VALUES ('kettle', 25.00)",
    );
    // The kettle goes to the two others.
    receiver.wait_for_requests_to("/shipping", 4);
    receiver.wait_for_requests_to("/billing", 5);
    run(client, STATE);
    run(client, "SELECT health, reason FROM webhook_status()");
    let waiting: i64 = database.query_one_value(
        "SELECT count(*) FROM webhook.delivery_queue WHERE event_type = 'stock.counted'",
    );
    claim(
        waiting == WAITING as i64,
        "every delivery of the broken endpoint waits, and the others go on",
    );
    claim(
        database.query_one_value("SELECT health <> 'ok' FROM webhook_status()"),
        "the health of the database says so",
    );
    // A sender brings its figures every 5 s.
    database.wait_until(
        "SELECT coalesce(sum(s.attempts - s.sent), 0) > 0 FROM webhook.stat s JOIN webhook.endpoint e ON e.id = s.endpoint_id
         WHERE e.name = 'warehouse' AND s.grain = 'minute'",
    );
    write_page(cluster, database, "webhook-outage.html");

    step("8. The receiver is back. A probe succeeds, the breaker closes, and the backlog drains.");
    receiver.respond("/warehouse", |_, _| Answer::status(200));
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    run(client, STATE);
    let sent: i64 = database.query_one_value(
        "SELECT count(*) FROM webhook.delivery_history WHERE event_type = 'stock.counted' AND status = 'SENT'",
    );
    let arrived = receiver.requests_to("/warehouse");
    let arrived: HashSet<_> = arrived.iter().map(|request| request.event_id()).collect();
    claim(
        sent == WAITING as i64 && arrived.len() == WAITING,
        "nothing was lost: each of them has arrived",
    );
    write_page(cluster, database, "webhook.html");
}

fn write_page(cluster: &Cluster, database: &Database, name: &str) {
    let connection = cluster.address(cluster.port(), database.name());
    let page = looking::print("page", &connection).expect("webhook-relay prints the page");
    let path = target_directory().join(name);
    fs::write(&path, page).expect("the page can be written");
    println!("$ webhook-relay page > {}", path.display());
}
