//! Networks that an administrator opens for receivers of the installation stay shut to endpoints of tenants.

use postgres::error::DbError;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver, Relay, wait};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");
const LOOPBACK: &str = "127.0.0.0/8, ::1";

/// Loopback is open to the installation alone.
fn open_to_the_installation() -> Cluster {
    Cluster::builder()
        .setting("webhook.tenant_networks = ''")
        .start()
}

/// Waits until the worker goes by them too: it shows when it has seen the switch in the same file.
fn open_to_tenants(cluster: &mut Cluster, database: &Database, networks: &str) {
    for (enabled, state) in [("off", "disabled"), ("on", "running")] {
        cluster.configure(&format!(
            "webhook.tenant_networks = '{networks}'\nwebhook.enabled = {enabled}"
        ));
        cluster.reload();
        database.wait_until(&format!("SELECT state = '{state}' FROM webhook_status()"));
    }
}

/// Inserts an endpoint as a restore does: the URL is not judged before it is dialled.
fn restore_endpoint(database: &Database, tenant: &str, url: &str) {
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (tenant, name, url, policy) VALUES ('{tenant}', 'restored', '{url}', 'fast')"
    ));
}

fn emit_of_tenant(database: &Database) -> Uuid {
    database.query_one_value("SELECT webhook_emit('order.created', tenant => 'acme')")
}

#[track_caller]
fn assert_names_tenant_networks(refusal: &DbError) {
    let text = format!("{refusal:?}");
    assert_eq!(refusal.code().code(), "22023", "{text}");
    for part in [refusal.detail(), refusal.hint()] {
        let part = part.unwrap_or_default();
        assert!(part.contains("webhook.tenant_networks"), "{text}");
        assert!(!part.contains("webhook.allow_networks"), "{text}");
    }
}

/// The error of the delivery to the tenant's endpoint.
#[track_caller]
fn blocked(database: &Database, event: Uuid) -> String {
    database.wait_until(&format!(
        "SELECT d.status = 'FAILED' FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
         WHERE d.event_id = '{event}' AND e.tenant IS NOT NULL"
    ));
    let row = database.connect().query_one(
        "SELECT a.reason, d.last_error FROM webhook.attempt a JOIN webhook.delivery d USING (event_id, endpoint_id)
         JOIN webhook.endpoint e ON e.id = d.endpoint_id WHERE d.event_id = $1 AND e.tenant IS NOT NULL",
        &[&event],
    );
    let row = row.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(row.get::<_, &str>(0), "blocked");
    row.get(1)
}

#[test]
fn a_tenants_url_in_an_allowed_network_is_refused_at_registration() {
    let mut cluster = open_to_the_installation();
    let database = cluster.database("registered");
    database.add_endpoint("own", "http://127.0.0.1:5432/");
    for host in [
        "127.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
    ] {
        let url = format!("http://{host}:5432/");
        let add = format!("SELECT webhook_set_endpoint('acme/orders', '{url}')");
        assert_names_tenant_networks(&database.refusal(&add));
    }
    database.add_endpoint("acme/orders", "https://example.com/");
    let to_loopback = "SELECT webhook_set_endpoint('acme/orders', 'http://127.0.0.1:5432/')";
    for sql in [
        to_loopback,
        "UPDATE webhook.endpoint SET url = 'http://127.0.0.1:5432/' WHERE tenant = 'acme'",
        "UPDATE webhook.endpoint SET tenant = 'acme' WHERE name = 'own'",
    ] {
        assert_names_tenant_networks(&database.refusal(sql));
    }
    database.execute("UPDATE webhook.endpoint SET tenant = NULL WHERE tenant = 'acme'");
    database.execute("UPDATE webhook.endpoint SET tenant = 'acme' WHERE name = 'orders'");

    cluster.configure(&format!("webhook.tenant_networks = '{LOOPBACK}'"));
    cluster.reload();
    database.execute(to_loopback);
    database.execute("UPDATE webhook.endpoint SET tenant = 'acme' WHERE name = 'own'");
    cluster.configure("webhook.allow_networks = ''");
    cluster.reload();
    let own_again = "UPDATE webhook.endpoint SET tenant = NULL WHERE name = 'own'";
    let refusal = database.refusal(own_again);
    let detail = refusal.detail().unwrap_or_default();
    assert!(detail.contains("webhook.allow_networks"), "{refusal:?}");
}

#[test]
fn a_tenants_delivery_into_an_allowed_network_is_blocked() {
    let mut cluster = open_to_the_installation();
    let database = cluster.database("delivered");
    let receiver = Receiver::start();
    database.add_endpoint("own", &receiver.url("/own"));
    restore_endpoint(&database, "acme", &receiver.url("/tenant"));
    let event = emit_of_tenant(&database);
    let error = blocked(&database, event);
    let loopback = "127.0.0.1 is a loopback address, and not in webhook.tenant_networks";
    assert_eq!(error, loopback);
    let why: String = database.query_one_value(&format!(
        "SELECT string_agg(line, ' ') FROM webhook_why('{event}') AS line"
    ));
    assert!(why.contains(loopback), "{why}");
    // An event of a tenant goes to the installation's own endpoints as before.
    receiver.wait_for_requests_to("/own", 1);
    assert_eq!(receiver.requests_to("/tenant").len(), 0);

    open_to_tenants(&mut cluster, &database, LOOPBACK);
    database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
    database.wait_for_status(event, "SENT");
    assert_eq!(receiver.requests_to("/tenant").len(), 1);

    // A connection that is left open from then does not serve.
    open_to_tenants(&mut cluster, &database, "");
    assert_eq!(blocked(&database, emit_of_tenant(&database)), loopback);
    assert_eq!(receiver.requests_to("/tenant").len(), 1);
}

#[test]
fn an_endpoint_is_judged_by_the_tenant_that_it_has_when_it_is_sent_to() {
    let cluster = open_to_the_installation();
    let database = cluster.database("moved");
    let receiver = Receiver::start();
    database.add_endpoint_with("orders", &receiver.url("/orders"), "policy => 'fast'");
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    // The worker knows the route, and has a connection. Replication does not fire the trigger that refuses.
    let mut session = database.connect();
    session
        .batch_execute(
            "SET session_replication_role = replica; UPDATE webhook.endpoint SET tenant = 'acme'",
        )
        .unwrap();
    let error = blocked(&database, emit_of_tenant(&database));
    assert!(error.contains("webhook.tenant_networks"), "{error}");
    assert_eq!(receiver.request_count(), 1);
}

#[test]
fn a_relay_sends_to_tenants_where_the_database_and_its_own_option_allow_it() {
    let mut cluster = Cluster::builder()
        .setting("webhook.tenant_networks = ''")
        .setting("webhook.max_in_flight = 0")
        .start();
    let database = cluster.database("relayed");
    let receiver = Receiver::start();
    database.add_endpoint_with("own", &receiver.url("/own"), "policy => 'fast'");
    restore_endpoint(&database, "acme", &receiver.url("/tenant"));
    let connection = cluster.address(cluster.port(), database.name());
    let relay = Relay::start(PROGRAM, &connection, &[]);
    let event = emit_of_tenant(&database);
    let error = blocked(&database, event);
    assert!(error.contains("webhook.tenant_networks"), "{error}");
    receiver.wait_for_requests_to("/own", 1);
    assert_eq!(receiver.requests_to("/tenant").len(), 0);

    cluster.configure(&format!("webhook.tenant_networks = '{LOOPBACK}'"));
    cluster.reload();
    // The relay reads the settings every few seconds.
    wait::until_true("the relay to go by the new setting", || {
        database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
        !receiver.requests_to("/tenant").is_empty()
    });
    database.wait_for_status(event, "SENT");
    relay.terminate();
    assert!(relay.wait().success(), "{}", relay.log());

    let narrower = ["--allow-networks", "10.0.0.0/8"];
    let _relay = Relay::start(PROGRAM, &connection, &narrower);
    let error = blocked(&database, emit_of_tenant(&database));
    assert!(error.contains("a loopback address"), "{error}");
    assert_eq!(receiver.requests_to("/tenant").len(), 1);
}
