//! A copy of a database sends nothing until somebody says that it is to.

use std::collections::BTreeMap;

use serde_json::json;
use standardwebhooks::Webhook;
use uuid::Uuid;
use webhook_e2e::copies::{DumpFile, dump_and_restore, wait_for_warning};
use webhook_e2e::process::complete;
use webhook_e2e::worker::state_and_reason;
use webhook_e2e::{Answer, Cluster, Database, Receiver};

#[test]
fn restored_dump_sends_nothing_until_adopted() {
    restored_copy_is_held_until_adopted(|cluster, source, copy| {
        dump_and_restore((cluster, source), (cluster, copy))
    });
}

#[test]
fn restored_sql_script_sends_nothing_until_adopted() {
    restored_copy_is_held_until_adopted(|cluster, source, copy| {
        let script = DumpFile::of(source);
        let mut dump = cluster.program("pg_dump");
        complete(dump.arg("-f").arg(&script.0).arg(source.name()));
        let mut psql = cluster.program("psql");
        psql.args(["-X", "-v", "ON_ERROR_STOP=1", "-d", copy.name()]);
        complete(psql.arg("-f").arg(&script.0));
    });
}

fn restored_copy_is_held_until_adopted(restore: impl Fn(&Cluster, &Database, &Database)) {
    let cluster = Cluster::shared();
    let receiver = Receiver::start();
    let source = cluster.database("original");
    let Filled { secret, pending } = fill(&source, &receiver);
    let already_sent = receiver.request_count();
    let copy = cluster.plain_database("restored");
    restore(cluster, &source, &copy);
    assert_eq!(contents(&copy), contents(&source));

    // The endpoint is not paused any more, only held; one of the copy's own is served.
    copy.resume_all();
    let new_id: i32 = copy.query_one_value(&format!(
        "SELECT id FROM webhook_set_endpoint('marker', '{}', event_types => '{{marker}}')",
        receiver.url("/marker")
    ));
    assert_eq!(new_id, 5);
    let marker = copy.emit("marker", json!({}));
    copy.wait_for_status(marker, "SENT");
    assert_eq!(receiver.request_count(), already_sent + 1);

    assert_eq!(state_and_reason(&copy).0, "held");
    let reason = state_and_reason(&copy).1;
    assert!(reason.contains("3 of 4 endpoints"), "{reason}");
    assert!(reason.contains("webhook_adopt()"), "{reason}");
    wait_for_warning(cluster, &copy);

    let adopted: i64 = copy.query_one_value("SELECT webhook_adopt()");
    assert_eq!(adopted, 3);
    copy.wait_for_status(pending, "SENT");
    let request = receiver.wait_for_event(pending);
    let timestamp = request.header("webhook-timestamp").parse().unwrap();
    let signature = Webhook::new(&secret)
        .unwrap()
        .sign(&pending.to_string(), timestamp, &request.body)
        .unwrap();
    assert_eq!(request.header("webhook-signature"), signature);
    assert_eq!(state_and_reason(&copy).0, "running");
}

#[test]
fn what_was_in_flight_at_the_dump_is_sent_after_the_adoption() {
    let cluster = Cluster::shared();
    let receiver = Receiver::start();
    let source = cluster.database("original");
    receiver.hold("/orders");
    // Dump and restore have the time that they need.
    source.execute("UPDATE webhook.policy SET timeout = '2 min' WHERE name = 'fast'");
    source.add_endpoint("orders", &receiver.url("/orders"));
    let event = source.emit("order.created", json!({}));
    receiver.wait_for_requests(1);
    let copy = cluster.plain_database("restored");
    dump_and_restore((cluster, &source), (cluster, &copy));
    assert_eq!(source.delivery_status(event).as_deref(), Some("SENDING"));
    receiver.release("/orders");
    source.wait_for_status(event, "SENT");

    copy.execute("SELECT webhook_adopt()");
    copy.wait_for_status(event, "SENT");
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn a_dump_is_restored_where_the_networks_of_its_endpoints_are_forbidden() {
    let mut cluster = Cluster::start();
    let receiver = Receiver::start();
    let source = cluster.database("original");
    let Filled { pending, .. } = fill(&source, &receiver);
    cluster.configure(
        "webhook.allow_networks = ''\nwebhook.tenant_networks = ''\nwebhook.allow_ports = '443'",
    );
    cluster.reload();
    let already_sent = receiver.request_count();
    let copy = cluster.plain_database("restored");
    dump_and_restore((&cluster, &source), (&cluster, &copy));
    assert_eq!(contents(&copy), contents(&source));

    copy.resume_all();
    copy.execute("SELECT webhook_adopt()");
    copy.wait_for_status(pending, "FAILED");
    let error: String = copy.query_one_value(&format!(
        "SELECT last_error FROM webhook.delivery WHERE event_id = '{pending}'"
    ));
    assert!(error.contains("webhook.allow_ports"), "{error}");
    assert_eq!(receiver.request_count(), already_sent);
}

#[test]
fn endpoints_restored_under_a_running_worker_are_warned_of() {
    let cluster = Cluster::shared();
    let database = cluster.database("half_way");
    let receiver = Receiver::start();
    database.add_endpoint("own", &receiver.url("/own"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let url = receiver.url("/restored");
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url, origin) VALUES ('restored', '{url}', 'elsewhere')"
    ));
    let waiting = database.emit("order.created", json!({}));
    receiver.wait_for_event(waiting);
    assert_eq!(state_and_reason(&database).0, "held");
    wait_for_warning(cluster, &database);
    assert_eq!(receiver.requests_to("/restored").len(), 0);
}

#[test]
fn a_copy_with_another_site_name_sends_nothing() {
    let mut cluster = Cluster::builder().setting("webhook.site = 'prod'").start();
    let database = cluster.database("site");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let first = database.emit("order.created", json!({}));
    database.wait_for_status(first, "SENT");

    cluster.configure("webhook.site = 'staging'");
    cluster.reload();
    // The worker has heard of it too, not only this session.
    wait_for_warning(&cluster, &database);
    assert_eq!(state_and_reason(&database).0, "held");
    let held = database.emit("order.created", json!({}));
    database.add_endpoint("marker", &receiver.url("/marker"));
    database.emit("marker", json!({}));
    receiver.wait_for_requests_to("/marker", 1);
    assert_eq!(receiver.requests_to("/orders").len(), 1);

    database.execute("SELECT webhook_remove_endpoint('marker')");
    cluster.configure("webhook.site = 'prod'");
    cluster.reload();
    database.wait_for_status(held, "SENT");
    assert_eq!(state_and_reason(&database).0, "running");
}

struct Filled {
    secret: String,
    pending: Uuid,
}

/// Leaves rows in every table: three endpoints, and deliveries that are sent, failed and pending.
fn fill(database: &Database, receiver: &Receiver) -> Filled {
    receiver.respond("/broken", |_, _| Answer::status(500).body("out of order"));
    database.add_endpoint_with(
        "orders",
        &receiver.url("/orders"),
        "policy => 'fast', event_types => '{order.*}', headers => '{\"X-Key\": \"{{hmac_hex(body)}}\"}',
         hmac_secret => 'hmac_ of a receiver',
         format => 'template', template => '{\"text\": \"{{data.text}}\"}'",
    );
    database.add_endpoint_with(
        "broken",
        &receiver.url("/broken"),
        "policy => 'fast', event_types => '{broken}'",
    );
    let secret = database.add_endpoint_with(
        "acme/paused",
        &receiver.url("/paused"),
        "policy => 'fast', event_types => '{paused, !paused.long}', filter => '$.data.answer == 42'",
    );
    database.execute(
        "UPDATE webhook.endpoint SET paused_at = now() WHERE name = 'paused';
         INSERT INTO webhook.breaker (endpoint_id, consecutive_failures, last_failure_at)
         SELECT id, 1, now() FROM webhook.endpoint WHERE name = 'broken'",
    );
    database.add_endpoint("removed", &receiver.url("/removed"));
    database.execute("SELECT webhook_remove_endpoint('removed')");
    let sent = database.emit("order.created", json!({"text": "Zoë\n\t\"\\"}));
    let failed = database.emit("broken", json!({}));
    let pending = database.query_one_value(
        "SELECT webhook_emit('paused', '{\"answer\": 42}', tenant => 'acme', idempotency_key => '42', ordering_key => '42')",
    );
    // As a claim would have left it.
    database.execute(
        "INSERT INTO webhook.lane (endpoint_id, ordering_key, event_id)
         SELECT endpoint_id, ordering_key, event_id FROM webhook.delivery_queue WHERE ordering_key = '42'",
    );
    database.wait_for_status(sent, "SENT");
    database.wait_for_status(failed, "FAILED");
    database.wait_until("SELECT coalesce(sum(sent + failed), 0) = 2 FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'");
    Filled { secret, pending }
}

/// Every row of every table of the extension that a dump has: neither alerts nor the numbers of workers that run. A
/// restored endpoint differs by the mark of its origin.
fn contents(database: &Database) -> BTreeMap<String, String> {
    let mut client = database.connect();
    let tables = "SELECT relname::text FROM pg_class
        WHERE relnamespace = 'webhook'::regnamespace AND relkind = 'r' AND relname NOT IN ('alert', 'alarm', 'sender', 'share')";
    let tables = client.query(tables, &[]).unwrap();
    let mut contents = BTreeMap::new();
    for table in tables.iter().map(|row| row.get::<_, String>(0)) {
        let rows = format!(
            "SELECT string_agg(replace(t::text, 'unadopted:', ''), E'\\n' ORDER BY t::text) FROM webhook.{table} t"
        );
        let rows: Option<String> = client.query_one(&rows, &[]).unwrap().get(0);
        contents.insert(
            table.clone(),
            rows.unwrap_or_else(|| panic!("{table} is empty")),
        );
    }
    contents
}
