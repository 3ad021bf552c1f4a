//! Where memory runs out a delivery waits; the server goes on, and memory that a burst took is given back.

use serde_json::json;
use webhook_e2e::worker::{limit_memory, writable_memory};
use webhook_e2e::{Cluster, Database, Receiver, wait, worker};

const MEGABYTES: usize = 1 << 20;

#[test]
fn a_worker_without_memory_neither_crashes_the_server_nor_loses_anything() {
    let cluster = Cluster::start();
    for (format, room) in [("standard", 30), ("template", 30), ("standard", 8)] {
        let database = cluster.database("short");
        let receiver = Receiver::start();
        let template = "format => 'template', template => '{\"a\": \"{{data}}\", \"b\": \"say {{data.x}} and {{data}}\"}'";
        let options = match format {
            "template" => template,
            _ => "format => 'standard'",
        };
        database.add_endpoint_with("orders", &receiver.url("/orders"), options);
        let small = database.emit("order.created", json!({}));
        database.wait_for_status(small, "SENT");
        let mut bystander = database.connect();
        let pid = worker::pid(&database);
        limit_memory(pid, &(writable_memory(pid) + room * MEGABYTES).to_string());

        emit_large(&database, 64);
        let short = format!(
            "webhook worker for database \"{}\" is short of memory",
            database.name()
        );
        wait::until_true(&short, || cluster.log().contains(&short));
        limit_memory(pid, "unlimited");
        database.wait_until("SELECT count(*) = 65 FROM webhook.delivery WHERE status = 'SENT'");

        bystander.batch_execute("SELECT 1").unwrap_or_else(|error| {
            panic!("{format}, {room} MB: the server has crashed: {error:?}")
        });
        assert!(!cluster.log().contains("terminated by signal"));
        assert_eq!(worker::pid(&database), pid);
        let attempts: i32 = database.query_one_value("SELECT max(attempts) FROM webhook.delivery");
        assert_eq!(attempts, 1, "it is our own trouble, and costs no attempt");
    }
}

#[test]
fn memory_is_given_back_after_a_burst() {
    let cluster = Cluster::start();
    let database = cluster.database("burst");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let small = database.emit("order.created", json!({}));
    database.wait_for_status(small, "SENT");
    let pid = worker::pid(&database);
    let before = worker::private_memory(pid);

    emit_large(&database, 200);
    database.wait_until("SELECT count(*) = 201 FROM webhook.delivery WHERE status = 'SENT'");
    wait::until(
        "the memory to be given back",
        || match worker::private_memory(pid) {
            now if now < before + 12 * MEGABYTES as u64 => Ok(()),
            now => Err((before, now)),
        },
    );
}

/// Payloads of nearly the largest size that is accepted.
fn emit_large(database: &Database, count: usize) {
    database.execute(&format!(
        "SELECT webhook_emit('order.created', jsonb_build_object('x', repeat('x', 1000000))) FROM generate_series(1, {count})"
    ));
}
