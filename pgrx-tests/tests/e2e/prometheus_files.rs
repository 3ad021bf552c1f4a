//! The files of docs/prometheus/, in the programs that are to use them: Prometheus and postgres_exporter of Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use webhook_e2e::directory::ServerDirectory;
use webhook_e2e::looking::{Metrics, get, print, role_with};
use webhook_e2e::process::{Process, complete, unprivileged};
use webhook_e2e::verifier::virtual_environment;
use webhook_e2e::{Answer, Cluster, Database, Looking, Receiver, port, wait};

const TESTS: &str = include_str!("../../prometheus/rules_test.yml");

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/prometheus")
        .join(name)
}

fn program(name: &str) -> PathBuf {
    virtual_environment().join("prometheus/usr/bin").join(name)
}

/// With copies of these files: the original may be where only its owner can read.
fn directory_with(names: &[&str]) -> ServerDirectory {
    let directory = ServerDirectory::create("e2e");
    for name in names {
        fs::copy(file(name), directory.join(name)).expect("it can be copied");
    }
    directory
}

/// An endpoint that gets everything and one whose breaker is open.
fn database_in_trouble(cluster: &Cluster) -> (Database, Receiver) {
    let database = cluster.database("prometheus_files");
    let receiver = Receiver::start();
    receiver.respond("/down", |_, _| Answer::status(503));
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.add_guarding_policy("guarding", 9, "");
    database.add_endpoint_with("down", &receiver.url("/down"), "policy => 'guarding'");
    (database, receiver)
}

#[test]
fn each_alert_is_raised_by_its_trouble_and_by_nothing_else() {
    let directory = directory_with(&["webhook.rules.yml"]);
    fs::write(directory.join("rules_test.yml"), TESTS).expect("it can be written");
    for arguments in [
        ["check", "rules", "webhook.rules.yml"],
        ["test", "rules", "rules_test.yml"],
    ] {
        complete(
            Command::new(program("promtool"))
                .args(arguments)
                .current_dir(directory.path()),
        );
    }
}

#[test]
fn every_query_of_the_rules_and_of_the_dashboard_has_data() {
    let cluster = Cluster::relayed();
    let (database, _receiver) = database_in_trouble(cluster);
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let looking = Looking::start(&connection, &[]);
    let directory = directory_with(&["webhook.rules.yml"]);
    let config = format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n\
         rule_files: [webhook.rules.yml]\n\
         scrape_configs: [{{job_name: webhook, static_configs: [{{targets: ['127.0.0.1:{}']}}]}}]\n",
        looking.port
    );
    fs::write(directory.join("prometheus.yml"), config).expect("it can be written");
    let port = port::free();
    let mut prometheus = unprivileged(program("prometheus"));
    prometheus
        .current_dir(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            &format!("--web.listen-address=127.0.0.1:{port}"),
        ]);
    let _prometheus = Process::spawn(prometheus, libc::SIGKILL);
    let ask = |path: &str| -> Result<Value, String> {
        let answer = get(port, path, &[("host", "localhost")]).ok_or("no answer")?;
        let value: Value = serde_json::from_str(&answer.body).map_err(|_| answer.body)?;
        match value["status"] == "success" {
            true => Ok(value["data"].clone()),
            false => Err(value.to_string()),
        }
    };
    let rules = wait::until("Prometheus to have the rules", || {
        let data = ask("/api/v1/rules")?;
        let rules = data["groups"][0]["rules"].as_array().cloned();
        rules
            .filter(|rules| rules.len() == 9)
            .ok_or(data.to_string())
    });
    let queries = rules
        .iter()
        .map(query_of_rule)
        .chain(queries_of_dashboard());
    let queries: Vec<String> = queries.collect();
    assert!(queries.len() > 25, "{queries:?}");

    for _ in 0..3 {
        database.emit("order.created", json!({}));
    }
    database.wait_until("SELECT coalesce((SELECT state = 'OPEN' FROM webhook.breaker WHERE endpoint_id = (SELECT id FROM webhook.endpoint WHERE name = 'down')), false)");
    for query in &queries {
        wait::until(&format!("data of {query}"), || {
            let data = ask(&format!(
                "/api/v1/query?query={}",
                encoded(&format!("count({query})"))
            ))?;
            match data["result"][0]["value"][1].as_str() {
                Some(count) if count != "0" => Ok(()),
                _ => Err(data.to_string()),
            }
        });
    }
}

/// The query of an alert, raised or not: a comparison gives nothing where it does not hold.
fn query_of_rule(rule: &Value) -> String {
    let query = rule["query"].as_str().expect("a rule has a query");
    if rule["type"] != "alerting" {
        return query.to_owned();
    }
    let (compared, threshold) = query.rsplit_once(' ').expect("an alert compares");
    assert!(
        compared.ends_with(" <") || compared.ends_with(" >"),
        "{query}"
    );
    format!("{compared} bool {threshold}")
}

/// As Grafana asks them, with "All" chosen.
fn queries_of_dashboard() -> Vec<String> {
    let dashboard = fs::read_to_string(file("grafana-dashboard.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("it has targets"));
    let queries = targets.map(|target| target["expr"].as_str().expect("it has a query"));
    let filled_in = |query: &str| {
        query
            .replace("$job", ".+")
            .replace("$endpoint", ".*")
            .replace("$__rate_interval", "1m")
    };
    queries
        .map(filled_in)
        .inspect(|query| assert!(!query.contains('$'), "{query}"))
        .collect()
}

fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn postgres_exporter_tells_the_same_as_a_relay() {
    let cluster = Cluster::relayed();
    let (database, _receiver) = database_in_trouble(cluster);
    let sender = role_with(cluster, &database, &["relay"]);
    let relay = Looking::start(&sender, &[]);
    for _ in 0..3 {
        database.emit("order.created", json!({}));
    }
    database.wait_until(
        "SELECT (attempts, sent) = (6, 3) FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'total'
         UNION ALL SELECT false LIMIT 1",
    );
    let reader = role_with(cluster, &database, &["read"]);
    let directory = directory_with(&["postgres_exporter.yml"]);
    let port = port::free();
    let mut exporter = unprivileged(program("prometheus-postgres-exporter"));
    exporter
        .current_dir(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    exporter
        .env("DATA_SOURCE_NAME", format!("{reader} sslmode=disable"))
        .args([
            "--extend.query-path=postgres_exporter.yml",
            "--disable-default-metrics",
            "--disable-settings-metrics",
            "--no-collector.database",
            "--no-collector.bgwriter",
            &format!("--web.listen-address=127.0.0.1:{port}"),
        ]);
    let _exporter = Process::spawn(exporter, libc::SIGKILL);
    let exported = wait::until("the exporter to answer", || {
        let answer = get(port, "/metrics", &[("host", "localhost")]);
        answer
            .filter(|answer| answer.status == 200 && answer.body.contains("webhook_endpoint_up"))
            .ok_or("nothing")
    });
    let exported = Metrics::parse(&exported.body);
    let told = Metrics::parse(&print("metrics", &reader).expect("it prints"));
    let samples = |metrics: &Metrics| {
        let ours = metrics.0.iter().filter(|family| {
            family["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("webhook_"))
        });
        let described = ours.inspect(|family| assert_ne!(family["help"], "", "{family}"));
        let samples =
            described.flat_map(|family| family["samples"].as_array().cloned().unwrap_or_default());
        // A metric without a value is not a number there, and missing here.
        let samples = samples.filter(|sample| sample[2].is_number());
        let mut samples: Vec<(String, String)> = samples
            .map(|sample| {
                let mut labels = sample[1].clone();
                labels
                    .as_object_mut()
                    .expect("labels are an object")
                    .remove("server");
                let value = sample[2].as_f64().expect("it is a number");
                (format!("{} {labels}", sample[0]), format!("{value:.6}"))
            })
            .collect();
        samples.sort();
        samples
    };
    let (told, exported) = (samples(&told), samples(&exported));
    assert!(told.len() > 100);
    assert_eq!(told, exported);
    drop(relay);
}
