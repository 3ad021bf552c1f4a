//! The page: `/` of a relay with `--page`, and `webhook-relay page`; in a browser, and under attack.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use webhook_e2e::directory::ServerDirectory;
use webhook_e2e::host::relay_program;
use webhook_e2e::looking::{browse, print, role_with};
use webhook_e2e::{Answer, Cluster, Database, Looking, Receiver};

/// Each would do something if it were not text, and leave a trace of it.
const HOSTILE: [&str; 5] = [
    "<script>document.title=1</script>",
    "\"><img src=x onerror=alert(1)>",
    "--><svg onload=alert(2)>",
    "o'\\''; DROP TABLE webhook.event; --",
    "\u{202e}desrever &lt;b&gt; é 👍",
];
/// As the page shows the last of them.
const SHOWN: &str = "[U+202E]desrever &lt;b&gt; é 👍";

/// An endpoint of each hostile name with a dead letter of a secret payload, one that is open, one that is paused.
fn hostile_database(cluster: &Cluster) -> (Database, Receiver) {
    let database = cluster.database("page");
    let receiver = Receiver::start();
    receiver.respond("/broken", |_, _| {
        Answer::status(404).body("<b>s3cret answer</b>")
    });
    receiver.respond("/down", |_, _| Answer::status(503));
    let url = receiver.url("/broken?token=s3cret");
    for name in HOSTILE {
        let name = name.replace('\'', "''");
        database.add_endpoint_with(&name, &url, "'{order.*}', 'fast'");
    }
    let long = "l".repeat(200);
    database.add_endpoint_with(&long, &receiver.url("/sent"), "'{order.*}', 'fast'");
    database.add_guarding_policy("guarding", 9, "");
    database.add_endpoint_with("down", &receiver.url("/down"), "'{order.*}', 'guarding'");
    database.add_endpoint_with("paused", &receiver.url("/sent"), "'{order.*}', 'fast'");
    database.execute("SELECT webhook_pause('paused')");
    (database, receiver)
}

#[track_caller]
fn fail_everywhere(database: &Database) {
    // They are of the tenant that the first of them has.
    database.execute(
        "SELECT webhook_emit('order.created', '{\"note\": \"s3cret payload\"}', tenant => '<script>document.title=1<')
         FROM generate_series(1, 3)",
    );
    database.wait_until("SELECT count(*) = 15 FROM webhook.dead_letter");
    database.wait_until("SELECT state = 'OPEN' FROM webhook.breaker b JOIN webhook.endpoint e ON e.id = b.endpoint_id WHERE e.name = 'down'");
    database.wait_until(
        "SELECT coalesce(sum(sent), 0) = 3 FROM webhook.stat WHERE endpoint_id = 0 AND grain = 'minute'",
    );
}

/// Faults that the browser counts on a page.
const FAULTS: [&str; 6] = [
    "scripts",
    "handlers",
    "images",
    "tables_without_caption",
    "headers_without_scope",
    "pictures_without_name",
];

/// The report of a browser about a page that is as it should be.
#[track_caller]
fn require_sound(report: &Value, url: &str, width: u32) {
    assert_eq!(report["complaints"], json!([]), "{report}");
    assert_eq!(report["requests"], json!([url]), "{report}");
    assert_eq!(report["beyond"], json!([]), "{report}");
    assert_eq!(report["scroll_width"], json!(width), "{report}");
    for nothing in FAULTS {
        assert_eq!(report[nothing], json!(0), "{nothing}: {report}");
    }
    assert_eq!(report["landmarks"], json!(["header", "main", "footer"]));
    assert_eq!(
        report["headings"].as_array().map(Vec::len),
        Some(5),
        "{report}"
    );
    assert_eq!(report["focus"]["outlined"], json!(true), "{report}");
}

#[test]
fn hostile_names_stay_text_in_a_browser_and_the_sql_beside_them_replays() {
    let cluster = Cluster::relayed();
    let (database, receiver) = hostile_database(cluster);
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let looking = Looking::start(&connection, &["--page"]);
    fail_everywhere(&database);
    let served = format!("http://127.0.0.1:{}/", looking.port);
    let directory = ServerDirectory::create("e2e");
    let file = directory.join("webhook.html");
    let page = print("page", &connection).expect("it prints");
    fs::write(&file, &page).expect("it can be written");
    let file = format!("file://{}", file.display());

    let (wide, narrow) = std::thread::scope(|scope| {
        let wide = scope.spawn(|| browse(&served, 1280, "light"));
        let narrow = browse(&file, 390, "dark");
        (wide.join().expect("it is seen"), narrow)
    });
    require_sound(&wide, &served, 1280);
    require_sound(&narrow, &file, 390);
    assert_ne!(wide["background"], narrow["background"], "light and dark");
    for report in [&wide, &narrow] {
        let title = report["title"].as_str().expect("it has a title");
        assert_eq!(title, format!("Warning: webhooks of {}", database.name()));
        let text = report["text"].as_str().expect("it has text");
        for name in HOSTILE[..4].iter().chain([&SHOWN]) {
            assert!(text.contains(name), "{name} is not in {text}");
        }
        assert!(text.contains("open") && text.contains("paused"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    assert!(!page.contains("s3cret") && !page.contains('\u{202e}'));

    // The newest ten have a statement each. A person's copy of it is executed, and not the name of an endpoint.
    receiver.respond("/broken", |_, _| Answer::status(200));
    let text = wide["text"].as_str().expect("it has text");
    let statements: Vec<&str> = text
        .lines()
        .filter_map(|line| line.find("SELECT webhook_replay(").map(|at| &line[at..]))
        .collect();
    assert_eq!(statements.len(), 10, "{text}");
    for statement in statements {
        assert!(
            statement.chars().all(|letter| matches!(letter, ' '..='~')),
            "{statement}"
        );
        assert_eq!(
            database.query_one_value::<i64>(statement.trim_end_matches(';')),
            1,
            "{statement}"
        );
    }
    database.wait_until("SELECT count(*) = 5 FROM webhook.dead_letter");
}

#[test]
fn the_browser_notices_a_page_that_is_not_sound() {
    let directory = ServerDirectory::create("e2e");
    let file = directory.join("bad.html");
    let page = "<!DOCTYPE html><title>bad</title><meta http-equiv=\"Content-Security-Policy\" \
                content=\"default-src 'none'; style-src 'unsafe-inline'\">\
                <div style=\"width: 3000px\">wide</div><svg></svg><table><tr><th>x</th></tr></table>\
                <img src=\"http://127.0.0.1:9/\" onerror=\"1\"><script>document.title = 'run'</script>";
    fs::write(&file, page).expect("it can be written");
    let report = browse(&format!("file://{}", file.display()), 390, "light");
    assert_eq!(report["title"], "bad");
    let complaints = report["complaints"].to_string();
    assert!(complaints.contains("inline script"), "{report}");
    assert!(complaints.contains("http://127.0.0.1:9/"), "{report}");
    assert_ne!(report["beyond"], json!([]), "{report}");
    for something in FAULTS {
        assert_eq!(report[something], json!(1), "{something}: {report}");
    }
    assert_eq!(report["landmarks"], json!([]));
    assert_eq!(report["focus"]["outlined"], json!(false), "{report}");
}

#[test]
fn a_page_is_served_only_where_it_was_asked_for_and_to_nobody_who_comes_by_another_name() {
    let cluster = Cluster::relayed();
    let database = cluster.database("page");
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let without = Looking::start(&connection, &[]);
    assert_eq!(without.get("/").status, 404);
    assert_eq!(without.get("/metrics").status, 200);
    drop(without);

    let looking = Looking::start(&connection, &["--page"]);
    let page = looking.get("/");
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = page
        .header("content-security-policy")
        .expect("it has a policy");
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-"),
        "{policy}"
    );
    assert!(
        policy.ends_with("; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
        "{policy}"
    );
    assert!(
        !policy.contains("unsafe") && !policy.contains("script-src"),
        "{policy}"
    );
    for path in ["/", "/metrics", "/healthz", "/nothing"] {
        let answer = looking.get(path);
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
    for path in ["/", "/metrics"] {
        for headers in [
            &[("host", "example.com")][..],
            &[("host", "localhost.example.com:8080")],
            &[("host", "localhost"), ("host", "example.com")],
        ] {
            let answer = looking.ask(path, headers);
            assert!(
                matches!(answer.status, 400 | 421),
                "{path} {headers:?}: {answer:?}"
            );
            assert!(!answer.body.contains("webhook_"), "{answer:?}");
        }
        assert_eq!(looking.ask(path, &[("host", "[::1]:9")]).status, 200);
    }
    let health = looking.ask("/healthz", &[("host", "relay.example.com")]);
    assert_eq!(health.status, 200, "a probe may use any name: {health:?}");
}

#[test]
fn with_a_token_nobody_sees_figures_without_it() {
    let cluster = Cluster::relayed();
    let database = cluster.database("page");
    let connection = role_with(cluster, &database, &["relay", "read"]);
    let directory = ServerDirectory::create("e2e");
    let file = directory.join("token");
    fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("it can be written");
    let file = file.display().to_string();
    let looking = Looking::start(&connection, &["--page", "--token-file", &file]);
    let wrong = "Bearer 0123456789abcdef0123456789abcdee";
    let right = "Bearer 0123456789abcdef0123456789abcdef";
    // "anybody:" and the token.
    let basic = "Basic YW55Ym9keTowMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZg==";
    for path in ["/", "/metrics"] {
        for headers in [
            &[("host", "localhost")][..],
            &[("host", "localhost"), ("authorization", wrong)],
        ] {
            let answer = looking.ask(path, headers);
            assert_eq!(answer.status, 401, "{answer:?}");
            let challenge = answer
                .header("www-authenticate")
                .expect("a browser is told to ask");
            assert!(challenge.starts_with("Basic "), "{challenge}");
            assert!(!answer.body.contains("webhook_"), "{answer:?}");
        }
        for token in [right, basic] {
            let headers = [("host", "relay.example.com"), ("authorization", token)];
            assert_eq!(looking.ask(path, &headers).status, 200);
        }
    }
    assert_eq!(looking.get("/healthz").status, 200);
    assert!(!looking.relay.log().contains("0123456789abcdef"));
}

#[test]
fn a_relay_does_not_start_that_would_show_the_page_beyond_loopback_without_a_token() {
    let mut relay = Command::new(relay_program());
    relay.env_clear().args([
        "run",
        "--http",
        "0.0.0.0:0",
        "--page",
        "host=127.0.0.1 port=9",
    ]);
    let output = relay.output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("--page beyond loopback needs a token") && said.contains("--token-file FILE"),
        "{said}"
    );
}

#[test]
fn an_empty_database_has_a_page_that_says_so_also_without_the_library() {
    for cluster in [Cluster::relayed(), Cluster::portable()] {
        let database = cluster.database("page");
        let connection = role_with(cluster, &database, &["read"]);
        let page = print("page", &connection).expect("it prints");
        let none = "There is none yet: <code>webhook_set_endpoint()</code> makes one.";
        assert!(page.contains(none), "{page}");
        assert!(
            page.contains("0 sent and 0 attempts failed in the last hour"),
            "{page}"
        );
        print("metrics", &connection).expect("it prints");
    }
}
