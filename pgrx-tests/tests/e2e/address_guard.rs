//! Addresses that the server may be made to talk to, and the settings that decide it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use postgres::error::DbError;
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver, wait, worker};

/// In every refused URL: no error may repeat it.
const CREDENTIAL: &str = "t0ken";
const PORTS: &str = "80, 443, 1024-65535";
const LOOPBACK: &str = "127.0.0.0/8, ::1";

fn as_installed() -> Cluster {
    Cluster::builder()
        .setting("webhook.allow_networks = ''")
        .setting("webhook.tenant_networks = ''")
        .setting(&format!("webhook.allow_ports = '{PORTS}'"))
        .start()
}

#[track_caller]
fn assert_names(refusal: &DbError, setting: &str) {
    let text = format!("{refusal:?}");
    assert_eq!(refusal.code().code(), "22023", "{text}");
    assert!(refusal.detail().unwrap().contains(setting), "{text}");
    assert!(refusal.hint().unwrap().contains(setting), "{text}");
    assert!(!text.contains(CREDENTIAL), "{text}");
}

fn add(url: &str) -> String {
    format!("SELECT webhook_set_endpoint('refused', '{url}{CREDENTIAL}')")
}

/// Waits until the worker goes by them too: it shows when it has seen the switch in the same file.
fn change(cluster: &mut Cluster, database: &Database, lines: &str) {
    for (enabled, state) in [("off", "disabled"), ("on", "running")] {
        cluster.configure(&format!("{lines}\nwebhook.enabled = {enabled}"));
        cluster.reload();
        database.wait_until(&format!("SELECT state = '{state}' FROM webhook_status()"));
    }
}

/// The outcome of the only attempt.
fn failure(database: &Database, event: Uuid) -> (String, String) {
    database.wait_for_status(event, "FAILED");
    let row = database.connect().query_one(
        "SELECT a.reason, d.last_error FROM webhook.attempt a JOIN webhook.delivery d USING (event_id, endpoint_id)
         WHERE a.event_id = $1 AND a.verdict = 'final' AND d.attempts = 1",
        &[&event],
    );
    let row = row.unwrap();
    (row.get(0), row.get(1))
}

#[test]
fn addresses_that_are_not_public_are_refused_at_registration_however_they_are_spelt() {
    let cluster = as_installed();
    let database = cluster.database("registered");
    database.add_endpoint("kept", "https://example.com/");
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "10.0.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "[fd00::1]",
        "[fe80::1]",
    ] {
        for url in [
            format!("https://{host}/"),
            format!("http://{host}:{}/", cluster.port()),
        ] {
            assert_names(&database.refusal(&add(&url)), "webhook.allow_networks");
            let update = format!("UPDATE webhook.endpoint SET url = '{url}{CREDENTIAL}'");
            assert_names(&database.refusal(&update), "webhook.allow_networks");
        }
    }
    let urls: Vec<String> = database.query_one_value("SELECT array_agg(url) FROM webhook.endpoint");
    assert_eq!(urls, ["https://example.com/"]);
}

#[test]
fn ports_and_plain_http_are_judged_at_registration_too() {
    let mut cluster = as_installed();
    let database = cluster.database("registered");
    for url in ["https://example.com:22/", "https://example.com:1023/"] {
        assert_names(&database.refusal(&add(url)), "webhook.allow_ports");
    }
    for url in ["http://1.1.1.1/", "http://example.com/"] {
        for setting in ["webhook.require_https", "webhook.allow_networks"] {
            assert_names(&database.refusal(&add(url)), setting);
        }
    }
    database.add_endpoint("public", "https://1.1.1.1:1024/");

    // Nobody knows yet whether a name is one of an allowed network.
    cluster.configure("webhook.allow_networks = '192.0.2.0/24'");
    cluster.reload();
    database.add_endpoint("name", "http://example.com/");
    assert_names(
        &database.refusal(&add("http://1.1.1.1/")),
        "webhook.require_https",
    );

    cluster.configure("webhook.require_https = on");
    cluster.reload();
    assert_names(
        &database.refusal(&add("http://example.com/")),
        "webhook.require_https",
    );
    // A registered endpoint is not judged again while its URL stays.
    database.execute("UPDATE webhook.endpoint SET paused_at = now(), url = url");

    cluster.configure("webhook.require_https = off\nwebhook.allow_ports = '22, 80'");
    cluster.reload();
    database.add_endpoint("plain", "http://1.1.1.1/");
    database.add_endpoint("port", "https://example.com:22/");
    assert_names(
        &database.refusal(&add("https://example.com/")),
        "webhook.allow_ports",
    );
}

#[test]
fn a_name_of_this_host_is_blocked_until_a_reload_allows_it() {
    let mut cluster = as_installed();
    // Plain http is not accepted where it could never be sent.
    cluster.configure("webhook.allow_networks = '192.0.2.0/24'");
    cluster.reload();
    let database = cluster.database("named");
    let receiver = Receiver::start();
    let url = format!("http://localhost:{}/orders", receiver.port());
    database.add_endpoint("orders", &url);
    let worker = worker::pid(&database);
    let events = [(); 3].map(|()| database.emit("order.created", json!({})));
    for event in events {
        let (kind, error) = failure(&database, event);
        assert_eq!(kind, "blocked");
        assert!(error.contains("a loopback address"), "{error}");
        assert!(error.contains("webhook.allow_networks"), "{error}");
    }
    assert_eq!(receiver.request_count(), 0);

    let allow = format!("ALTER SYSTEM SET webhook.allow_networks = '{LOOPBACK}'");
    database.execute(&allow);
    database.execute("SELECT pg_reload_conf()");
    wait::until_true("the worker to go by the new setting", || {
        database.execute("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
        receiver.request_count() == events.len()
    });
    for event in events {
        database.wait_for_status(event, "SENT");
    }
    assert_eq!(worker::pid(&database), worker);
}

#[test]
fn every_request_is_judged_by_the_settings_of_its_moment() {
    let mut cluster = Cluster::start();
    let database = cluster.database("judged");
    let receiver = Receiver::start();
    let url = receiver.url("/orders");
    database.add_endpoint("orders", &url);
    let sent = database.emit("order.created", json!({}));
    database.wait_for_status(sent, "SENT");

    // Each leaves an idle connection behind, and none of them may be used.
    for (lines, setting) in [
        (
            "webhook.deny_networks = '127.0.0.1'",
            "webhook.deny_networks",
        ),
        (
            "webhook.deny_networks = '::ffff:127.0.0.0/120'",
            "webhook.deny_networks",
        ),
        ("webhook.allow_networks = '::1'", "webhook.allow_networks"),
        ("webhook.allow_ports = '80, 443'", "webhook.allow_ports"),
        ("webhook.require_https = on", "webhook.require_https"),
    ] {
        change(&mut cluster, &database, lines);
        let blocked = database.emit("order.created", json!({}));
        let (kind, error) = failure(&database, blocked);
        assert_eq!(kind, "blocked", "{lines}");
        assert!(error.contains(setting), "{lines}: {error}");
        assert_names(&database.refusal(&add(&url)), setting);

        let before = receiver.request_count();
        let usual = format!(
            "webhook.deny_networks = ''
             webhook.allow_networks = '{LOOPBACK}'
             webhook.allow_ports = '{PORTS}'
             webhook.require_https = public"
        );
        change(&mut cluster, &database, &usual);
        let allowed = database.emit("order.created", json!({}));
        database.wait_for_status(allowed, "SENT");
        assert_eq!(receiver.request_count(), before + 1);
    }
}

#[test]
fn a_setting_that_makes_no_sense_is_refused_and_the_old_one_kept() {
    let mut cluster = Cluster::start();
    let database = cluster.database("invalid");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    for (setting, value, problem) in [
        (
            "allow_networks",
            "loopback",
            "\"loopback\" is not an address",
        ),
        ("allow_networks", "10.0.0.1/8", "the network is 10.0.0.0/8"),
        ("tenant_networks", "10.0.0.1/8", "the network is 10.0.0.0/8"),
        ("deny_networks", "10.0.0.0/33", "\"10.0.0.0/33\""),
        ("deny_networks", "::fffe:0:0/95", "wider than ::ffff:0:0/96"),
        ("deny_networks", "10.0.0.0/8,,::1", "between two commas"),
        ("allow_ports", "", "is not a port"),
        ("allow_ports", "0", "\"0\" is not a port"),
        ("allow_ports", "443, 65536", "\"65536\" is not a port"),
        ("allow_ports", "90-80", "ends before it begins"),
    ] {
        let refusal = database.refusal(&format!("ALTER SYSTEM SET webhook.{setting} = '{value}'"));
        assert_eq!(refusal.code().code(), "22023", "{refusal:?}");
        let detail = refusal.detail().unwrap_or_default();
        assert!(detail.contains(problem), "{setting} = '{value}': {detail}");
    }
    let refusal = database.refusal("ALTER SYSTEM SET webhook.require_https = 'perhaps'");
    assert_eq!(refusal.hint(), Some("Available values: on, public, off."));

    change(
        &mut cluster,
        &database,
        "webhook.allow_networks = 'nonsense'\nwebhook.deny_networks = '127.0.0.1/8'",
    );
    let complaint = "invalid value for parameter \"webhook.allow_networks\": \"nonsense\"";
    assert!(cluster.log().contains(complaint));
    let kept: String = database.query_one_value("SHOW webhook.allow_networks");
    assert_eq!(kept, LOOPBACK);
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
}

#[test]
fn the_server_does_not_start_with_rules_that_it_does_not_understand() {
    let mut cluster = Cluster::start();
    cluster.stop();
    cluster.configure("webhook.deny_networks = '192.0.2.1/24'");
    let start = catch_unwind(AssertUnwindSafe(|| cluster.start_server()));
    assert!(start.is_err());
    assert!(cluster.log().contains("the network is 192.0.2.0/24"));
}

#[test]
fn as_installed_they_are_what_the_documentation_says() {
    let database = Cluster::shared().database("defaults");
    let defaults: Vec<String> = database.query_one_value(
        "SELECT array_agg(name || '=' || boot_val ORDER BY name) FROM pg_settings
         WHERE name ~ '^webhook.(allow|tenant|deny|require|ca)_'",
    );
    let documented = [
        "webhook.allow_networks=",
        &format!("webhook.allow_ports={PORTS}"),
        "webhook.ca_file=",
        "webhook.deny_networks=",
        "webhook.require_https=public",
        "webhook.tenant_networks=",
    ];
    assert_eq!(defaults, documented);
}

#[test]
fn nobody_sets_them_for_a_session_or_a_database() {
    let database = Cluster::shared().database("privileged");
    for setting in [
        "allow_networks",
        "tenant_networks",
        "deny_networks",
        "allow_ports",
        "require_https",
        "ca_file",
    ] {
        for statement in ["SET", &format!("ALTER DATABASE {} SET", database.name())] {
            let refusal = database.refusal(&format!("{statement} webhook.{setting} = 'off'"));
            assert_eq!(refusal.code().code(), "55P02", "{refusal:?}");
        }
    }
}

#[test]
fn a_file_of_authorities_that_cannot_be_loaded_is_warned_of_and_hinders_nothing_else() {
    let mut cluster = Cluster::builder()
        .setting("webhook.ca_file = 'missing-at-start.pem'")
        .start();
    let database = cluster.database("untrusted");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let worker = worker::pid(&database);
    let complaints = worker::complaints(&cluster, worker).join("\n");
    assert!(complaints.contains("missing-at-start.pem"), "{complaints}");

    // The rules that come with it count all the same.
    change(
        &mut cluster,
        &database,
        "webhook.ca_file = 'missing-later.pem'\nwebhook.deny_networks = '127.0.0.1'",
    );
    let event = database.emit("order.created", json!({}));
    assert_eq!(failure(&database, event).0, "blocked");
    let complaints = worker::complaints(&cluster, worker).join("\n");
    assert!(complaints.contains("missing-later.pem"), "{complaints}");
    assert_eq!(worker::pid(&database), worker);
}
