//! The main job in the terminal, on a throwaway cluster. Exits 0 only if every claim it makes holds.

mod outage;
mod terminal;

use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;

use postgres::Client;
use standardwebhooks::Webhook;
use terminal::{claim, run, step};
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Receiver, Request};

fn main() -> ExitCode {
    panic::set_hook(Box::new(report_failure));
    match panic::catch_unwind(demonstrate) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn report_failure(panic: &PanicHookInfo) {
    let payload = panic.payload();
    let literal = payload.downcast_ref::<&str>().copied();
    let message = payload.downcast_ref::<String>().map(String::as_str);
    terminal::failure(message.or(literal).unwrap_or("the demo failed"));
}

fn demonstrate() {
    println!("Starting a throwaway PostgreSQL cluster and an HTTP receiver on loopback.");
    let cluster = Cluster::builder().purpose("demo").start();
    let database = cluster.plain_database("shop");
    let receiver = Receiver::start();
    let mut client = database.connect();

    register_an_endpoint(&mut client, &receiver);
    commit_an_order(&mut client, &database, &receiver);
    roll_an_order_back(&mut client, &receiver);
    let failed = fail_a_delivery(&mut client, &database, &receiver);
    repair_and_send_again(&mut client, &database, &receiver, failed);

    outage::survive_an_outage(&mut client, &cluster, &database, &receiver);

    say_how_to_connect(&cluster, &database);
}

fn register_an_endpoint(client: &mut Client, receiver: &Receiver) {
    step("1. The extension is created and an endpoint registered. Its secret is returned once.");
    run(client, "CREATE EXTENSION webhook");
    let url = receiver.url("/shipping");
    let endpoint = run(
        client,
        &format!(
            "SELECT * FROM webhook_set_endpoint('shipping', '{url}', event_types => '{{order.*}}')"
        ),
    );
    let secret = endpoint[0].get("secret").unwrap_or_default();
    require_signature(receiver, "/shipping", secret);
}

fn commit_an_order(client: &mut Client, database: &Database, receiver: &Receiver) {
    step("2. A trigger emits an event in the transaction that inserts an order.");
    for statement in include_str!("orders.sql").split("\n\n") {
        run(client, statement);
    }
    run(client, "BEGIN");
    run(
        client,
        "INSERT INTO orders (item, price) VALUES ('teapot', 39.90)",
    );
    run(client, "COMMIT");

    step(
        "3. The delivery arrives. The receiver checks the signature and refuses what is not signed.",
    );
    let delivery = receiver.wait_for_requests(1).remove(0);
    print_request(&delivery);
    database.wait_for_status(delivery.event_id(), "SENT");
    run(
        client,
        "SELECT event_id, status, attempts, last_status_code, duration_ms FROM webhook.delivery",
    );
    claim(
        delivery.json()["data"]["item"] == "teapot",
        "the receiver has the order",
    );
    claim(
        receiver.request_count() == 1,
        "it was sent once, and its signature was accepted by the standardwebhooks library",
    );
}

fn roll_an_order_back(client: &mut Client, receiver: &Receiver) {
    step(
        "4. A transaction that rolls back sends nothing. A later event shows that the queue has moved on.",
    );
    run(client, "BEGIN");
    run(
        client,
        "INSERT INTO orders (item, price) VALUES ('regretted', 1.00)",
    );
    run(client, "ROLLBACK");
    run(
        client,
        "SELECT webhook_emit('order.counted', '{\"orders\": 1}')",
    );
    let requests = receiver.wait_for_requests(2);
    let events = run(
        client,
        "SELECT event_type, payload FROM webhook.event ORDER BY id",
    );
    claim(
        events.len() == 2 && requests.len() == 2 && requests[1].json()["type"] == "order.counted",
        "two events recorded, two requests received, none of them from the rolled back order",
    );
}

fn fail_a_delivery(client: &mut Client, database: &Database, receiver: &Receiver) -> Uuid {
    step(
        "5. A second endpoint is broken: it answers 500. Its delivery is retried, then set aside.",
    );
    receiver.respond("/billing", |_, _| Answer::status(500).body("out of order"));
    run(
        client,
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, jitter_down, jitter_up)
VALUES ('demo', 3, 'fixed', '300 ms', 0, 0)",
    );
    let url = receiver.url("/billing");
    run(
        client,
        &format!(
            "SELECT * FROM webhook_set_endpoint('billing', '{url}', event_types => '{{order.created}}', policy => 'demo')"
        ),
    );
    run(
        client,
        "INSERT INTO orders (item, price) VALUES ('lamp', 80.00)",
    );
    database.wait_until("SELECT count(*) = 1 FROM webhook.dead_letter");
    run(
        client,
        "SELECT event_type, attempts, last_status_code, last_error FROM webhook.dead_letter",
    );
    let log = run(
        client,
        "SELECT attempt, verdict, status_code, error, response_excerpt FROM webhook.attempt ORDER BY attempt",
    );
    let attempts = receiver.requests_to("/billing");
    claim(
        log.len() == 3 && attempts.len() == 3,
        "three attempts were made and logged, and the delivery is in webhook.dead_letter",
    );
    let failed = attempts[0].event_id();
    claim(
        attempts.iter().all(|attempt| attempt.event_id() == failed),
        "every attempt carried the same webhook-id",
    );
    failed
}

fn repair_and_send_again(
    client: &mut Client,
    database: &Database,
    receiver: &Receiver,
    failed: Uuid,
) {
    step("6. The endpoint is repaired. A plain UPDATE sends the delivery after all.");
    let secret: String = database.query_one_value("SELECT webhook_secret('billing')");
    require_signature(receiver, "/billing", &secret);
    run(
        client,
        "UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED' AND event_type = 'order.created'",
    );
    database.wait_for_status(failed, "SENT");
    run(
        client,
        "SELECT event_type, status, attempts, last_status_code FROM webhook.delivery_history ORDER BY completed_at",
    );
    let dead_letters: i64 = database.query_one_value("SELECT count(*) FROM webhook.dead_letter");
    claim(
        dead_letters == 0 && receiver.requests_to("/billing").len() == 4,
        "it was sent, signed, and the dead-letter table is empty",
    );
}

/// From now on the path answers 401 to requests that the secret did not sign, so that SENT means verified.
fn require_signature(receiver: &Receiver, path: &str, secret: &str) {
    let webhook = Webhook::new(secret).expect("the secret is base64 after whsec_");
    receiver.respond(path, move |request, _| {
        match webhook.verify(&request.body, &request.headers) {
            Ok(()) => Answer::status(200),
            Err(error) => Answer::status(401).body(error.to_string()),
        }
    });
}

fn print_request(request: &Request) {
    println!("{} {}", request.method, request.path);
    let mut names: Vec<_> = request.headers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    for name in names {
        println!("{name}: {}", request.header(name));
    }
    println!("\n{}\n", String::from_utf8_lossy(&request.body));
}

fn say_how_to_connect(cluster: &Cluster, database: &Database) {
    let psql = format!(
        "psql -h 127.0.0.1 -p {} -U postgres {}",
        cluster.port(),
        database.name()
    );
    if std::env::var_os("KEEP").is_none_or(|keep| keep.is_empty() || keep == "0") {
        step("Every claim held. Run with KEEP=1 to look around in it with psql.");
        return;
    }
    step(
        "Every claim held. The cluster and the receiver stay up until you press Ctrl-C. Connect with:",
    );
    println!("    {psql}");
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .and_then(|runtime| runtime.block_on(tokio::signal::ctrl_c()))
        .expect("Ctrl-C can be waited for");
}
