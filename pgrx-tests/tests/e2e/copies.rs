//! A copy of an installation in another server sends nothing until somebody says that it is to, as far as it can
//! be told from a server that was moved. Copies within one server: restore.rs and databases.rs.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::copies::{dump_and_restore, wait_for_warning};
use webhook_e2e::database::refusal;
use webhook_e2e::process::complete;
use webhook_e2e::worker::state_and_reason;
use webhook_e2e::{Cluster, Database, Receiver, worker};

#[test]
fn a_dump_restored_into_another_cluster_is_held_although_the_oids_are_the_same() {
    let (original, other) = (Cluster::shared(), Cluster::start());
    let receiver = Receiver::start();
    let source = database_with_oid(original, "shop", 26_999);
    source.create_extension();
    let left_behind = leave_an_event_behind(&source, &receiver);
    let copy = database_with_oid(&other, "shop", 26_999);

    dump_and_restore((original, &source), (&other, &copy));
    assert_held_until_adopted(&other, &copy, left_behind, &receiver);
}

#[test]
fn a_dump_is_restored_with_its_levels_by_a_superuser_of_another_name() {
    let original = Cluster::start();
    let other = Cluster::builder().superuser("admiral").start();
    let receiver = Receiver::start();
    let source = original.database("original");
    let copy = other.plain_database("restored");
    let levels = ["emit", "read", "operate", "admin"];
    for level in levels {
        source.execute(&format!("CREATE ROLE {level}_role"));
        source.execute(&format!("SELECT webhook_grant('{level}_role', '{level}')"));
        copy.execute(&format!("CREATE ROLE {level}_role"));
    }
    let left_behind = leave_an_event_behind(&source, &receiver);

    dump_and_restore((&original, &source), (&other, &copy));
    assert_eq!(granted(&copy), granted(&source));
    let mut emitter = copy.connect();
    let emit = "SET ROLE emit_role; SELECT webhook_emit('nobody.listens')";
    emitter.batch_execute(emit).unwrap();
    refusal(&mut emitter, "SELECT FROM webhook.endpoint");
    assert_held_until_adopted(&other, &copy, left_behind, &receiver);
}

#[test]
fn a_dump_of_a_fresh_install_says_nothing_about_rights() {
    let cluster = Cluster::shared();
    let database = cluster.plain_database("fresh");
    database.execute("CREATE EXTENSION webhook");
    assert_eq!(about_rights(cluster, &database), Vec::<String>::new());
}

#[test]
fn default_privileges_of_the_installer_reach_neither_the_extension_nor_its_dump() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("generous");
    database.execute("CREATE ROLE favoured");
    for objects in ["TABLES", "SEQUENCES", "ROUTINES", "TYPES", "SCHEMAS"] {
        let favour = format!("GRANT ALL ON {objects} TO favoured WITH GRANT OPTION");
        database.execute(&format!("ALTER DEFAULT PRIVILEGES {favour}"));
    }
    database.execute("CREATE EXTENSION webhook");
    assert_eq!(about_rights(&cluster, &database), Vec::<String>::new());
    let mut favoured = database.connect();
    favoured.batch_execute("SET ROLE favoured").unwrap();
    refusal(&mut favoured, "SELECT FROM webhook.secret");
    refusal(&mut favoured, "SELECT webhook_emit('order.created')");
}

#[test]
fn a_logical_subscriber_holds_the_endpoints_that_reach_it() {
    let publisher = Cluster::builder().setting("wal_level = logical").start();
    let subscriber = Cluster::start();
    let receiver = Receiver::start();
    let source = publisher.database("published");
    let copy = subscriber.database("published");
    let copied = leave_an_event_behind(&source, &receiver);
    source.execute(
        "CREATE PUBLICATION webhooks
         FOR TABLE webhook.endpoint, webhook.secret, webhook.event, webhook.delivery",
    );
    copy.execute(&format!(
        "CREATE SUBSCRIPTION webhooks CONNECTION 'host=127.0.0.1 port={} user=postgres dbname={}'
         PUBLICATION webhooks",
        publisher.port(),
        source.name()
    ));
    copy.wait_until("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel");
    let streamed = source.emit("order.created", json!({}));
    copy.wait_for_status(streamed, "PENDING");
    copy.execute("ALTER SUBSCRIPTION webhooks DISABLE");

    // Replication carries no sequences: the first endpoint of the subscriber's own would have the same id.
    copy.execute("SELECT setval(pg_get_serial_sequence('webhook.endpoint', 'id'), max(id)) FROM webhook.endpoint");
    copy.execute(&format!(
        "DELETE FROM webhook.delivery WHERE event_id = '{streamed}'"
    ));
    assert_held_until_adopted(&subscriber, &copy, copied, &receiver);
}

#[test]
fn a_physical_copy_with_another_site_is_held() {
    let original = Cluster::builder().setting("webhook.site = 'prod'").start();
    let receiver = Receiver::start();
    let source = original.database("prod");
    let left_behind = leave_an_event_behind(&source, &receiver);
    assert_eq!(state_and_reason(&source), ("running".into(), "".into()));

    let staging = Cluster::builder().setting("webhook.site = 'staging'");
    let staging = staging.start_copy_of(&original);
    let copy = staging.existing_database(source.name());
    assert_held_until_adopted(&staging, &copy, left_behind, &receiver);
    assert_eq!(
        source.delivery_status(left_behind).as_deref(),
        Some("PENDING")
    );
}

#[test]
fn a_physical_copy_without_a_site_goes_on_sending_and_this_was_said_before() {
    let mut original = Cluster::start();
    let receiver = Receiver::start();
    let source = original.database("unnamed");
    let silent = state_and_reason(&source).1;
    assert!(!silent.contains("webhook.site"), "{silent}");
    let left_behind = leave_an_event_behind(&source, &receiver);
    let (state, reason) = state_and_reason(&source);
    assert_eq!(state, "running");
    assert!(reason.contains("physical copy"), "{reason}");
    assert!(reason.contains("webhook.site"), "{reason}");

    original.restart();
    let marker = format!("[{}] ", worker::pid(&source));
    let log = original.log();
    let warnings = log.lines().filter(|line| line.contains(&marker));
    let warnings = warnings.filter(|line| line.contains("physical copy"));
    assert_eq!(warnings.count(), 1, "{log}");

    let promoted = Cluster::builder().start_copy_of(&original);
    let copy = promoted.existing_database(source.name());
    copy.execute("SELECT webhook_resume('orders')");
    copy.wait_for_status(left_behind, "SENT");
    receiver.wait_for_event(left_behind);
    assert_eq!(
        source.delivery_status(left_behind).as_deref(),
        Some("PENDING")
    );
}

#[test]
fn a_physical_copy_with_another_system_identifier_is_held() {
    let original = Cluster::start();
    let receiver = Receiver::start();
    let source = original.database("identified");
    let left_behind = leave_an_event_behind(&source, &receiver);
    let mut subscriber = Cluster::builder()
        .setting("webhook.enabled = off")
        .start_copy_of(&original);
    subscriber.stop();
    subscriber.change_system_identifier();
    subscriber.configure("webhook.enabled = on");
    subscriber.start_server();
    let copy = subscriber.existing_database(source.name());
    let identifier = |database: &Database| -> i64 {
        database.query_one_value("SELECT system_identifier FROM pg_control_system()")
    };
    assert_ne!(identifier(&copy), identifier(&source));
    assert_held_until_adopted(&subscriber, &copy, left_behind, &receiver);

    subscriber.restart();
    worker::pid(&copy);
    assert_eq!(state_and_reason(&copy).0, "running");
}

#[test]
fn one_endpoint_is_adopted_by_its_name() {
    let cluster = Cluster::shared();
    let receiver = Receiver::start();
    let source = cluster.database("two");
    source.add_endpoint("orders", &receiver.url("/orders"));
    source.add_endpoint("invoices", &receiver.url("/invoices"));
    source.execute("SELECT webhook_pause('orders'), webhook_pause('invoices')");
    let left_behind = source.emit("order.created", json!({}));
    let name = format!("{}_copy", source.name());
    let mut client = cluster.connect("postgres");
    let create = format!("CREATE DATABASE {name} TEMPLATE {}", source.name());
    client.batch_execute(&create).unwrap();
    let copy = cluster.existing_database(&name);
    copy.execute("SELECT webhook_resume('orders'), webhook_resume('invoices')");

    let unknown = copy.refusal("SELECT webhook_adopt('nobody')");
    assert!(unknown.message().contains("nobody"), "{unknown:?}");
    assert_eq!(
        copy.query_one_value::<i64>("SELECT webhook_adopt('orders')"),
        1
    );
    receiver.wait_for_requests_to("/orders", 1);
    copy.wait_until("SELECT count(*) = 1 FROM webhook.delivery WHERE status = 'SENT'");
    let (state, reason) = state_and_reason(&copy);
    assert_eq!(state, "held");
    assert!(reason.contains("1 of 2 endpoints"), "{reason}");
    assert_eq!(receiver.requests_to("/invoices").len(), 0);

    assert_eq!(copy.query_one_value::<i64>("SELECT webhook_adopt()"), 1);
    copy.wait_for_status(left_behind, "SENT");
    assert_eq!(receiver.requests_to("/invoices").len(), 1);
    assert_eq!(receiver.requests_to("/orders").len(), 1);
}

#[track_caller]
fn database_with_oid(cluster: &Cluster, name: &str, oid: u32) -> Database {
    let mut client = cluster.connect("postgres");
    let create = format!("CREATE DATABASE {name} OID {oid}");
    client.batch_execute(&create).unwrap();
    cluster.existing_database(name)
}

/// Leaves an endpoint that has received an event, and is paused with another.
#[track_caller]
fn leave_an_event_behind(source: &Database, receiver: &Receiver) -> Uuid {
    let options = "policy => 'fast', event_types => '{order.*}'";
    source.add_endpoint_with("orders", &receiver.url("/orders"), options);
    let sent = source.emit("order.created", json!({}));
    source.wait_for_status(sent, "SENT");
    source.execute("SELECT webhook_pause('orders')");
    source.emit("order.created", json!({}))
}

/// The copy serves an endpoint of its own, and does not serve the one that it was copied with.
#[track_caller]
fn assert_held_until_adopted(
    cluster: &Cluster,
    copy: &Database,
    left_behind: Uuid,
    receiver: &Receiver,
) {
    let already_sent = receiver.requests_to("/orders").len();
    copy.execute("SELECT webhook_resume('orders')");
    let options = "policy => 'fast', event_types => '{marker}'";
    copy.add_endpoint_with("marker", &receiver.url("/marker"), options);
    let marker = copy.emit("marker", json!({}));
    copy.wait_for_status(marker, "SENT");
    assert_eq!(
        copy.delivery_status(left_behind).as_deref(),
        Some("PENDING")
    );
    assert_eq!(receiver.requests_to("/orders").len(), already_sent);
    let (state, reason) = state_and_reason(copy);
    assert_eq!(state, "held");
    assert!(reason.contains("1 of 2 endpoints"), "{reason}");
    assert!(reason.contains("webhook_adopt()"), "{reason}");
    wait_for_warning(cluster, copy);

    assert_eq!(copy.query_one_value::<i64>("SELECT webhook_adopt()"), 1);
    copy.wait_for_status(left_behind, "SENT");
    assert_eq!(receiver.requests_to("/orders").len(), already_sent + 1);
    assert_eq!(state_and_reason(copy).0, "running");
}

/// The rights of the levels' roles, by object.
#[track_caller]
fn granted(database: &Database) -> String {
    database.query_one_value(
        "SELECT string_agg(format('%s: %s of %s', a.grantee::regrole, a.privilege_type, object), E'\\n'
                           ORDER BY a.grantee::regrole::text, a.privilege_type, object)
         FROM (SELECT oid::regclass::text AS object, relacl AS acl FROM pg_class
               UNION ALL SELECT format('%s.%s', attrelid::regclass, attname), attacl FROM pg_attribute
               UNION ALL SELECT oid::regprocedure::text, proacl FROM pg_proc
               UNION ALL SELECT oid::regtype::text, typacl FROM pg_type
               UNION ALL SELECT oid::regnamespace::text, nspacl FROM pg_namespace) objects,
              aclexplode(acl) a
         WHERE a.grantee <> 0 AND a.grantee::regrole::text LIKE '%\\_role'",
    )
}

/// The statements of a dump that grant, revoke, or name an owner.
#[track_caller]
fn about_rights(cluster: &Cluster, database: &Database) -> Vec<String> {
    let dump = complete(cluster.program("pg_dump").arg(database.name()));
    assert!(
        dump.contains("CREATE EXTENSION IF NOT EXISTS webhook"),
        "{dump}"
    );
    let about_rights = |line: &&str| {
        ["GRANT ", "REVOKE ", "SET SESSION AUTHORIZATION"]
            .iter()
            .any(|start| line.starts_with(start))
            || line.contains(" OWNER TO ")
    };
    dump.lines()
        .filter(about_rights)
        .map(str::to_owned)
        .collect()
}
