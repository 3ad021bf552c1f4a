//! Endpoints: the values that may be registered, their addresses, and the effects of a change.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Cluster, Database, Receiver};

/// In every header, secret and URL of the refused: no error may repeat it.
pub(super) const CREDENTIAL: &str = "c3VwZXItc2VjcmV0LXNpZ25pbmcta2V5LW9mLW91cnM";

pub(super) fn database() -> Database {
    Cluster::shared().database("endpoints")
}

/// A call of `webhook_set_endpoint` for a new endpoint that is right but for one argument.
pub(super) fn add_with(argument: &str, value: &str) -> String {
    let mut arguments = vec![
        ("endpoint", "'refused'".to_owned()),
        ("url", format!("'https://example.com/{CREDENTIAL}'")),
        (
            "headers",
            format!("'{{\"Authorization\": \"{CREDENTIAL}\"}}'"),
        ),
        ("secret", format!("'whsec_{CREDENTIAL}='")),
    ];
    arguments.retain(|(name, _)| *name != argument);
    arguments.push((argument, value.to_owned()));
    let arguments: Vec<_> = (arguments.iter())
        .map(|(name, value)| format!("{name} => {value}"))
        .collect();
    format!("SELECT webhook_set_endpoint({})", arguments.join(", "))
}

/// Everything that a refused statement could have changed.
pub(super) fn written(database: &Database) -> String {
    database.query_one_value(
        "SELECT concat((SELECT string_agg(e::text, ' ' ORDER BY e.id) FROM webhook.endpoint e),
                       (SELECT string_agg(s::text, ' ') FROM webhook.secret s))",
    )
}

#[track_caller]
pub(super) fn assert_refused(database: &Database, sql: &str, code: &str) {
    let before = written(database);
    let refusal = database.refusal(sql);
    assert_eq!(refusal.code().code(), code, "{sql}: {refusal:?}");
    assert!(refusal.hint().is_some(), "no hint for {sql}: {refusal:?}");
    assert!(
        !format!("{refusal:?}").contains(CREDENTIAL),
        "{sql}: {refusal:?}"
    );
    assert_eq!(written(database), before, "{sql}");
}

#[test]
fn bad_input_is_refused_with_a_hint_and_writes_nothing() {
    let database = database();
    database.execute(&add_with("endpoint", "'kept'"));

    let url = |url: &str| {
        (
            "url",
            format!("'{}'", url.replace("CREDENTIAL", CREDENTIAL)),
        )
    };
    let types = |types: &str| ("event_types", format!("{types}::text[]"));
    let header = |name: &str, value: &str| ("headers", format!(r#"'{{"{name}": {value}}}'"#));
    let value = |value: &str| header("X-Key", &format!("\"{CREDENTIAL}{value}\""));
    let cases = [
        url("ftp://example.com/CREDENTIAL"),
        url("example.com/CREDENTIAL"),
        url("https:///CREDENTIAL"),
        url("https://:443/CREDENTIAL"),
        url("https://?CREDENTIAL"),
        url("https://user:CREDENTIAL@example.com/"),
        url("https://CREDENTIAL@example.com/"),
        url("https://example.com/CREDENTIAL#top"),
        url("https://example.com/CREDENTIAL\u{1}"),
        url("https://example.com/CREDENTIAL\r\nX: y"),
        url("https://example.com/\u{7f}CREDENTIAL"),
        url("https://example.com/a b/CREDENTIAL"),
        url(" https://example.com/CREDENTIAL"),
        url("https://example.com/CREDENTIAL\n"),
        url("https://müller.example/CREDENTIAL"),
        url("https://exa_mple.com:port/CREDENTIAL"),
        url("https://example.com:99999/CREDENTIAL"),
        url("https://example.com:/CREDENTIAL"),
        url("https://[::1/CREDENTIAL"),
        url("https://[example]/CREDENTIAL"),
        url(r"https://example.com\CREDENTIAL"),
        url(r#"https://example.com/"CREDENTIAL"#),
        url("https://example.com/<CREDENTIAL"),
        url("https://example.com/>CREDENTIAL"),
        url("https://example.com/`CREDENTIAL"),
        url(""),
        (
            "url",
            format!("'https://example.com/{CREDENTIAL}' || repeat('a', 2048)"),
        ),
        types("'{order.}'"),
        types("'{*.created}'"),
        types("'{a.*.b}'"),
        types("'{order*}'"),
        types("'{.order}'"),
        types("'{a..b}'"),
        types("'{order.**}'"),
        types("'{\"a b\"}'"),
        types("ARRAY['order.created', '']"),
        types("'{}'"),
        types("'{NULL}'"),
        types("'{order.created, NULL}'"),
        types("ARRAY[repeat('a', 201)]"),
        ("max_in_flight", "0".into()),
        ("max_in_flight", "-1".into()),
        ("headers", format!("'[\"{CREDENTIAL}\"]'")),
        ("headers", format!("'\"{CREDENTIAL}\"'")),
        ("headers", "'null'".into()),
        header("Host", "\"example.com\""),
        header("host", "\"example.com\""),
        header("Content-Length", "\"1\""),
        header("Content-Type", "\"text/plain\""),
        header("Transfer-Encoding", "\"chunked\""),
        header("Connection", "\"close\""),
        header("Expect", "\"100-continue\""),
        header("User-Agent", "\"me\""),
        header("webhook-id", "\"1\""),
        header("Webhook-Timestamp", "\"1\""),
        header("WEBHOOK-SIGNATURE", "\"v1,\""),
        header("X-Webhook-Signature", "\"v1,\""),
        header("X-Webhook-Retry", "\"1\""),
        header("", "\"nameless\""),
        header("X Key", "\"a\""),
        header("X-Key:", "\"a\""),
        header(r"X-Key\r\nHost", "\"a\""),
        header("X-Key", "1"),
        header("X-Key", "null"),
        header("X-Key", "[\"a\"]"),
        value(r"\r\nHost: b"),
        value(r"\n"),
        value(r"\r"),
        value(r"\t"),
        value(r"\u007f"),
        value("ü"),
        ("metadata", "'[]'".into()),
    ];
    for (column, value) in &cases {
        assert_refused(&database, &add_with(column, value), "22023");
        for change in [
            format!("SELECT webhook_set_endpoint('kept', {column} => {value})"),
            format!("UPDATE webhook.endpoint SET {column} = {value}"),
        ] {
            assert_refused(&database, &change, "22023");
        }
    }
    assert_refused(&database, &add_with("policy", "'none'"), "42704");
    assert_refused(
        &database,
        "UPDATE webhook.endpoint SET policy = 'none'",
        "42704",
    );
}

#[test]
fn missing_input_is_refused_without_showing_the_rest() {
    let database = database();
    database.execute(&add_with("endpoint", "'kept'"));
    for parameter in ["endpoint", "url"] {
        assert_refused(&database, &add_with(parameter, "NULL"), "22023");
    }
    for column in [
        "name",
        "url",
        "event_types",
        "headers",
        "metadata",
        "id",
        "created_at",
        "origin",
        "format",
        "policy",
    ] {
        let update = format!("UPDATE webhook.endpoint SET {column} = NULL");
        assert_refused(&database, &update, "22023");
    }
}

#[test]
fn what_an_endpoint_cannot_have_is_refused_without_showing_the_rest() {
    let database = database();
    database.execute(&add_with("endpoint", "'kept'"));
    for setting in [
        "filter = '$.a'",
        "rate_limit = 0",
        "disabled_at = now()",
        "disabled_reason = 'moved'",
    ] {
        let update = format!("UPDATE webhook.endpoint SET {setting}");
        assert_refused(&database, &update, "22023");
    }
    for sql in [
        add_with("rate_limit", "-1.5"),
        "SELECT webhook_set_endpoint('kept', rate_limit => 1e9)".into(),
    ] {
        assert_refused(&database, &sql, "22023");
        let refusal = database.refusal(&sql);
        let detail = "rate_limit must be between 0.001 and 1000000 a second";
        assert_eq!(refusal.detail(), Some(detail));
    }
}

#[test]
fn an_address_is_a_name_or_a_tenant_and_a_name_without_a_slash_in_either() {
    let database = database();
    database.execute(&add_with("endpoint", "'kept'"));
    let long = "a".repeat(201);
    for (address, tenant, name) in [
        ("", "NULL", ""),
        ("*", "NULL", "*"),
        ("a\nb", "NULL", "a\nb"),
        (&long, "NULL", &long),
        ("acme/eu/billing", "'acme'", "eu/billing"),
        ("/", "''", ""),
        ("/billing", "''", "billing"),
        ("acme/", "'acme'", ""),
        ("acme/*", "'acme'", "*"),
        ("*/billing", "'*'", "billing"),
        ("a b/billing", "'a b'", "billing"),
        ("a\nb/billing", "E'a\nb'", "billing"),
        (&format!("{long}/billing"), &format!("'{long}'"), "billing"),
    ] {
        assert_refused(
            &database,
            &add_with("endpoint", &format!("'{address}'")),
            "22023",
        );
        let update = format!("UPDATE webhook.endpoint SET tenant = {tenant}, name = '{name}'");
        assert_refused(&database, &update, "22023");
    }
    let slash_in_a_tenant = "UPDATE webhook.endpoint SET tenant = 'acme/eu'";
    assert_refused(&database, slash_in_a_tenant, "22023");
}

#[test]
fn two_tenants_and_nobody_have_an_endpoint_of_the_same_name() {
    let (database, receiver) = (database(), Receiver::start());
    for address in ["billing", "acme/billing", "zeta/billing"] {
        database.add_endpoint(address, &receiver.url(&format!("/{address}")));
    }
    let duplicate = "INSERT INTO webhook.endpoint (tenant, name, url) VALUES ({}, 'billing', 'https://example.com/')";
    for tenant in ["NULL", "'acme'"] {
        let refusal = database.refusal(&duplicate.replace("{}", tenant));
        assert_eq!(refusal.code().code(), "23505");
    }
    let secrets: i64 = database.query_one_value(
        "SELECT count(DISTINCT webhook_secret(a)) FROM unnest('{billing, acme/billing, zeta/billing}'::text[]) a",
    );
    assert_eq!(secrets, 3);

    let event: Uuid =
        database.query_one_value("SELECT webhook_emit('order.created', tenant => 'acme')");
    database.wait_for_status(event, "SENT");
    let reached = |path: &str| receiver.requests_to(path).len();
    assert_eq!(
        ["/billing", "/acme/billing", "/zeta/billing"].map(reached),
        [1, 1, 0]
    );

    database.execute("SELECT webhook_remove_endpoint('acme/billing')");
    let (left, gone): (String, String) = {
        let query = "SELECT string_agg(endpoint, ' ' ORDER BY endpoint),
                            (SELECT string_agg(concat_ws(' ', tenant, name), ',') FROM webhook.removed_endpoint)
                     FROM webhook.endpoint_status";
        let row = database.connect().query_one(query, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    assert_eq!((&*left, &*gone), ("billing zeta/billing", "acme billing"));
    let refusal = database.refusal("SELECT webhook_secret('acme/billing')");
    assert_eq!(
        refusal.message(),
        r#"endpoint "acme/billing" does not exist"#
    );
    assert!(
        refusal.hint().unwrap().contains(r#""zeta/billing""#),
        "{refusal:?}"
    );
}

#[test]
fn good_input_is_accepted() {
    let database = database();
    for (number, url) in [
        "http://example.com",
        "https://example.com/",
        "HTTPS://EXAMPLE.COM/Hooks",
        "https://example.com:8443/hooks/a%20b;c=d,e",
        "https://example.com?key=a&b=[1]",
        "https://xn--mller-kva.example/",
        "https://1.1.1.1:80/",
        "https://[2606:4700:4700::1111]/",
        "http://[::1]:8080/hooks",
        "https://internal_host/@user",
    ]
    .iter()
    .enumerate()
    {
        let options = "ARRAY['order.created', 'order.*', '*', 'a-b.c_d.E2.*'],
                       headers => '{\"Authorization\": \"Bearer a b\", \"X-Empty\": \"\"}', max_in_flight => 1,
                       metadata => '{\"owner\": \"Zoë\"}'";
        let name = format!("endpoint {number}");
        database.add_endpoint_with(&format!("acme-eu/{name}"), url, options);
        let stored: String = database.query_one_value(&format!(
            "SELECT url FROM webhook.endpoint WHERE name = '{name}'"
        ));
        assert_eq!(stored, *url);
    }
}

#[test]
fn what_is_accepted_can_be_sent_to() {
    let (database, receiver) = (database(), Receiver::start());
    let punctuation = r"!$%&'()*+,-./:;=?@[\]^_{|}~";
    for (number, character) in punctuation.chars().enumerate() {
        let url = receiver.url(&format!("/a{character}b?c{character}d"));
        let name = format!("endpoint {number}");
        database.add_endpoint_with(&name, &url.replace('\'', "''"), "policy => 'fast'");
    }
    let event = database.emit("order.created", json!({}));
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    let rows = database.connect().query(
        "SELECT e.url, d.last_error FROM webhook.delivery d JOIN webhook.endpoint e ON e.id = d.endpoint_id
         WHERE d.event_id = $1 AND d.status <> 'SENT'",
        &[&event],
    );
    let failed: Vec<(String, Option<String>)> = (rows.unwrap().iter())
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(failed, []);
    assert_eq!(receiver.request_count(), punctuation.len());
}

#[test]
fn a_header_with_a_nul_is_no_json_to_begin_with() {
    let database = database();
    let refusal = database.refusal(&add_with("headers", r#"'{"X-Key": "\u0000"}'"#));
    assert_eq!(refusal.code().code(), "22P05");
    assert_eq!(written(&database), "");
}

#[test]
fn an_unknown_endpoint_is_refused() {
    let database = database();
    assert_refused(
        &database,
        "SELECT webhook_remove_endpoint('nobody')",
        "42704",
    );
    assert_refused(&database, "SELECT webhook_secret('nobody')", "42704");
    assert_refused(&database, "SELECT webhook_secret(NULL)", "42704");
    assert_refused(&database, "SELECT webhook_secret('*')", "42704");
    database.add_endpoint("acme/billing", "http://127.0.0.1/");
    let refusal = database.refusal("SELECT webhook_remove_endpoint('acme/*')");
    let hint = refusal.hint().unwrap();
    assert!(
        hint.starts_with("This function takes one endpoint"),
        "{hint}"
    );
}

/// Roles with level emit may call it, and nothing interrupts a comparison.
#[test]
fn a_text_that_is_too_long_for_a_name_is_compared_with_none() {
    let database = Cluster::shared().database("long");
    let mut session = database.connect();
    session
        .batch_execute("SET statement_timeout = '2s'")
        .unwrap();
    let close = "SELECT webhook.did_you_mean(repeat('ab', $1), ARRAY[repeat('ba', $1)])";
    let mut close =
        |half: i32| -> Option<String> { session.query_one(close, &[&half]).unwrap().get(0) };
    assert!(close(200).is_some());
    assert_eq!(close(15_000), None);
}

#[test]
fn an_unknown_name_is_refused_with_the_names_that_are_close() {
    let database = database();
    for name in [
        "shipping",
        "Billing",
        "audit-eu-1",
        "audit-eu-2",
        "audit-us-1",
        "audit-us-2",
        "Zoë",
        "a",
        "warehouse of the north",
        "acme/invoices",
    ] {
        database.execute(&add_with("endpoint", &format!("'{name}'")));
    }
    let listing = "SELECT endpoint FROM webhook.endpoint_status lists them; webhook_set_endpoint() makes one.";
    for (name, hint) in [
        ("shiping", r#"Did you mean "shipping"?"#),
        ("shipipng", r#"Did you mean "shipping"?"#),
        ("SHIPPING", r#"Did you mean "shipping"?"#),
        ("billing", r#"Did you mean "Billing"?"#),
        ("ZOË", r#"Did you mean "Zoë"?"#),
        ("warehouse", r#"Did you mean "warehouse of the north"?"#),
        ("billing of the south", r#"Did you mean "Billing"?"#),
        ("invoices", r#"Did you mean "acme/invoices"?"#),
        ("acne/invoices", r#"Did you mean "acme/invoices"?"#),
        // Nearest first, then by name, and no more than three.
        (
            "audit-us-3",
            r#"Did you mean "audit-us-1" or "audit-us-2" or "audit-eu-1"?"#,
        ),
        ("b", listing),
        ("ng", listing),
        ("nobody", listing),
        ("", listing),
    ] {
        for call in ["webhook_secret('{}')", "webhook_remove_endpoint('{}')"] {
            let sql = format!("SELECT {}", call.replace("{}", name));
            let refusal = database.refusal(&sql);
            assert_eq!(
                refusal.message(),
                format!("endpoint \"{name}\" does not exist")
            );
            assert_eq!(refusal.hint(), Some(hint), "{name}");
        }
    }
    let refusal = database.refusal("SELECT webhook_copy_policy('standart', 'mine')");
    assert_eq!(refusal.hint(), Some(r#"Did you mean "standard"?"#));
}

#[test]
fn the_names_that_are_close_show_nothing_else_of_their_endpoints() {
    let database = database();
    database.execute(&add_with("endpoint", "'shipping'"));
    assert_refused(&database, "SELECT webhook_secret('shiping')", "42704");
}

pub(super) fn secret_of(database: &Database, name: &str) -> Option<String> {
    database.query_one_value(&format!("SELECT webhook_secret('{name}')"))
}

#[test]
fn a_changed_url_counts_from_the_next_delivery() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("moving", &receiver.url("/old"));
    let first = database.emit("order.created", json!({}));
    assert_eq!(receiver.wait_for_event(first).path, "/old");
    database.execute(&format!(
        "UPDATE webhook.endpoint SET url = '{}' WHERE name = 'moving'",
        receiver.url("/new?from=old")
    ));
    let second = database.emit("order.created", json!({}));
    assert_eq!(receiver.wait_for_event(second).path, "/new?from=old");
}

#[test]
fn headers_are_bounded_and_not_shown() {
    let database = database();
    database.execute(&add_with("endpoint", "'kept'"));
    let headers = |sql: &str| ("headers", format!("({sql})"));
    let value = |size: usize| {
        format!(
            "'{CREDENTIAL}' || repeat('x', {} - length('{CREDENTIAL}'))",
            size
        )
    };
    let several = |count: usize, size: usize| {
        format!(
            "SELECT jsonb_object_agg('X-' || n, {}) FROM generate_series(1, {count}) n",
            value(size)
        )
    };
    for (sql, problem) in [
        (
            format!("jsonb_build_object('X-Large', {})", value(8193)),
            "the value of header \"X-Large\" has 8193 bytes, more than 8192",
        ),
        (
            format!("jsonb_build_object('X-Huge', {})", value(10_000_000)),
            "the value of header \"X-Huge\" has 10000000 bytes, more than 8192",
        ),
        (
            "jsonb_build_object(repeat('x', 201), '')".into(),
            "the name of a header has 201 bytes, more than 200",
        ),
        (several(51, 100), "there are 51 headers, more than 50"),
        (
            several(4, 4094),
            "the headers have 16388 bytes together, more than 16384",
        ),
    ] {
        let (argument, value) = headers(&sql);
        for statement in [
            add_with(argument, &value),
            format!("UPDATE webhook.endpoint SET headers = {value}"),
        ] {
            assert_refused(&database, &statement, "22023");
            let refusal = database.refusal(&statement);
            assert_eq!(refusal.detail(), Some(problem), "{sql}");
        }
    }
    for sql in [
        format!("jsonb_build_object('X-Large', {})", value(8192)),
        several(50, 100),
        several(4, 4093),
    ] {
        database.execute(&format!("UPDATE webhook.endpoint SET headers = ({sql})"));
    }

    // An endpoint from before there were bounds can still be stopped.
    database.execute(
        "SET session_replication_role = replica;
         UPDATE webhook.endpoint SET headers = jsonb_build_object('X-Large', repeat('x', 10000)), filter = '$.data like_regex \"(a+)+\"';
         RESET session_replication_role;
         SELECT webhook_pause('kept')",
    );
}
