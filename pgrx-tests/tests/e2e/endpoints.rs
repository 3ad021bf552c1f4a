//! Endpoints: what may be registered, with which secret, and what happens when one changes or goes.

use std::thread;

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, Receiver};

/// In every header, secret and URL of the refused: no error may repeat it.
const CREDENTIAL: &str = "c3VwZXItc2VjcmV0LXNpZ25pbmcta2V5LW9mLW91cnM";

fn database() -> Database {
    Cluster::shared().database("endpoints")
}

/// A call of `webhook_set_endpoint` for a new endpoint that is right but for one argument.
fn add_with(argument: &str, value: &str) -> String {
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
fn written(database: &Database) -> String {
    database.query_one_value(
        "SELECT concat((SELECT string_agg(e::text, ' ' ORDER BY e.id) FROM webhook.endpoint e),
                       (SELECT string_agg(s::text, ' ') FROM webhook.secret s))",
    )
}

#[track_caller]
fn assert_refused(database: &Database, sql: &str, code: &str) {
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

fn delivery_of(database: &Database, event: Uuid) -> (String, i64, String) {
    let row = database.connect().query_one(
        "SELECT status, (SELECT count(*) FROM webhook.delivery_queue), last_error
         FROM webhook.delivery WHERE event_id = $1 AND completed_at IS NOT NULL",
        &[&event],
    );
    let row = row.unwrap();
    (row.get(0), row.get(1), row.get(2))
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
fn what_is_not_served_yet_is_refused_without_showing_the_rest() {
    let database = database();
    database.execute(&add_with("endpoint", "'kept'"));
    for setting in [
        "filter = '$.a'",
        "rate_limit = 1",
        "disabled_at = now()",
        "disabled_reason = 'moved'",
    ] {
        let update = format!("UPDATE webhook.endpoint SET {setting}");
        assert_refused(&database, &update, "22023");
    }
    for sql in [
        add_with("rate_limit", "1.5"),
        "SELECT webhook_set_endpoint('kept', rate_limit => 1)".into(),
    ] {
        assert_refused(&database, &sql, "22023");
        let refusal = database.refusal(&sql);
        assert_eq!(refusal.detail(), Some("rate limits are not supported yet"));
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
fn bad_secrets_are_refused_and_not_shown() {
    let database = database();
    database.add_endpoint("kept", "http://127.0.0.1/");
    for secret in [
        "",
        "whsec_",
        CREDENTIAL,
        // Too short, not base64, not padded, followed by something, too long.
        "whsec_c2hvcnQ=",
        &format!("whsec_{CREDENTIAL}!"),
        &format!("whsec_{CREDENTIAL}"),
        &format!("whsec_{CREDENTIAL}=\n"),
        &format!("WHSEC_{CREDENTIAL}="),
        &format!("whsec_{CREDENTIAL}a{CREDENTIAL}a{CREDENTIAL}="),
    ] {
        for sql in [
            add_with("secret", &format!("'{secret}'")),
            format!("SELECT webhook_set_endpoint('kept', secret => '{secret}')"),
        ] {
            assert_refused(&database, &sql, "22023");
        }
    }
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
fn a_secret_is_made_of_32_random_bytes() {
    let database = database();
    let first = database.add_endpoint("first", "http://127.0.0.1/");
    let second = database.add_endpoint("second", "http://127.0.0.1/");
    for (name, secret) in [("first", &first), ("second", &second)] {
        let base64 = secret.strip_prefix("whsec_").expect("whsec_ comes first");
        let bytes: Vec<u8> =
            database.query_one_value(&format!("SELECT decode('{base64}', 'base64')"));
        assert_eq!(bytes.len(), 32);
        let stored: String = database.query_one_value(&format!("SELECT webhook_secret('{name}')"));
        assert_eq!(stored, *secret);
    }
    assert_ne!(first, second);
}

#[test]
fn a_given_secret_is_used() {
    let database = database();
    let given = format!("whsec_{CREDENTIAL}=");
    let returned: Option<String> = database.query_one_value(&format!(
        "SELECT secret FROM webhook_set_endpoint('given', 'http://127.0.0.1/', secret => '{given}')"
    ));
    let stored: String = database.query_one_value("SELECT webhook_secret('given')");
    assert_eq!(
        (returned, &stored),
        (None, &given),
        "only one that was made is returned"
    );
}

/// Of `webhook_set_endpoint`: the secret, and what changed.
fn set(database: &Database, arguments: &str) -> (Option<String>, Vec<String>) {
    let sql = format!("SELECT * FROM webhook_set_endpoint({arguments})");
    let row = database.connect().query_one(&sql, &[]);
    let row = row.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let known: i32 =
        database.query_one_value("SELECT id FROM webhook.endpoint WHERE name = 'billing'");
    assert_eq!(row.get::<_, i32>("id"), known);
    (row.get("secret"), row.get("changed"))
}

const EVERY_PARAMETER: &str = r#"'acme/billing', 'http://127.0.0.1:9/a', event_types => '{order.*,!order.draft}', policy => 'patient',
    headers => '{"X-Key": "k", "X-Other": "o"}', format => 'template', template => '{"text": "{{type}}"}',
    filter => '$.data.total > 100 && $.data.name == "a"', max_in_flight => 3, metadata => '{"owner": "me"}'"#;

#[test]
fn setting_an_endpoint_again_changes_nothing() {
    let database = database();
    let (secret, changed) = set(&database, EVERY_PARAMETER);
    assert!(secret.is_some());
    assert_eq!(changed, ["created"]);
    let of_rows = "SELECT string_agg(concat(e.xmin, e.xmax, e::text), '') FROM webhook.endpoint e";
    let rows = || {
        (
            database.query_one_value::<String>(of_rows),
            written(&database),
        )
    };
    let before = rows();
    for arguments in [
        EVERY_PARAMETER,
        "'acme/billing'",
        "'acme/billing', policy => 'patient', max_in_flight => 3",
        // Equal, if not written alike.
        r#"'acme/billing', filter => '($.data.total>100 && $.data.name=="a")', headers => '{"X-Other":"o","X-Key":"k"}'"#,
        &format!("'acme/billing', secret => '{}'", secret.unwrap()),
    ] {
        assert_eq!(set(&database, arguments), (None, vec![]), "{arguments}");
        assert_eq!(rows(), before, "{arguments}");
    }
}

#[test]
fn setting_an_endpoint_changes_what_is_given_and_keeps_the_rest() {
    let database = database();
    set(&database, EVERY_PARAMETER);
    database.execute("SELECT webhook_pause('acme/billing')");
    let columns = "url, event_types, policy, headers, format, template, filter, max_in_flight, rate_limit, metadata, \
                   tenant, name, origin, paused_at, disabled_at, created_at, id";
    for (arguments, expected) in [
        ("url => 'http://127.0.0.1:9/b'", vec!["url"]),
        ("event_types => '{*}'", vec!["event_types"]),
        ("policy => 'standard'", vec!["policy"]),
        ("headers => '{}'", vec!["headers"]),
        ("template => '{}'", vec!["template"]),
        ("filter => '$.data.total > 1'", vec!["filter"]),
        ("max_in_flight => 4", vec!["max_in_flight"]),
        ("metadata => '{}'", vec!["metadata"]),
        // The template goes with its format.
        ("format => 'raw'", vec!["format", "template"]),
        (
            "metadata => '{\"a\": 1}', url => 'http://127.0.0.1:9/c', format => 'raw'",
            vec!["url", "metadata"],
        ),
    ] {
        let sql = format!(
            "BEGIN; CREATE TEMPORARY TABLE before ON COMMIT DROP AS SELECT * FROM webhook.endpoint;
             CREATE TEMPORARY TABLE answer ON COMMIT DROP AS SELECT * FROM webhook_set_endpoint('acme/billing', {arguments})"
        );
        let mut client = database.connect();
        client
            .batch_execute(&sql)
            .unwrap_or_else(|error| panic!("{arguments}: {error:?}"));
        let differ = format!(
            "SELECT array(SELECT a.key FROM (SELECT {columns} FROM before) b, (SELECT {columns} FROM webhook.endpoint) e,
                          LATERAL jsonb_each(to_jsonb(e)) a, LATERAL jsonb_each(to_jsonb(b)) o
                          WHERE a.key = o.key AND a.value <> o.value ORDER BY 1),
                    array(SELECT unnest(changed) FROM answer ORDER BY 1), (SELECT changed FROM answer)"
        );
        let row = client.query_one(&differ, &[]).unwrap();
        let (differ, sorted, told): (Vec<String>, Vec<String>, Vec<String>) =
            (row.get(0), row.get(1), row.get(2));
        assert_eq!(differ, sorted, "{arguments}");
        assert_eq!(told, expected, "{arguments}");
        client.batch_execute("COMMIT").unwrap();
    }
    // Nothing given can be null; that is a plain UPDATE.
    database.execute("UPDATE webhook.endpoint SET filter = NULL, max_in_flight = NULL");
}

#[test]
fn a_new_endpoint_has_the_defaults_of_the_table() {
    let database = database();
    database.execute(
        "SELECT webhook_set_endpoint('set', 'http://127.0.0.1:9/');
         INSERT INTO webhook.endpoint (name, url) VALUES ('inserted', 'http://127.0.0.1:9/')",
    );
    let rows: i64 = database.query_one_value(
        "SELECT count(DISTINCT to_jsonb(e) - '{id,name,created_at}'::text[]) FROM webhook.endpoint e",
    );
    assert_eq!(rows, 1);
}

#[test]
fn a_new_endpoint_needs_a_url_and_a_misspelt_one_is_told_from_it() {
    let database = database();
    database.add_endpoint("acme/billing", "http://127.0.0.1/");
    let sql = "SELECT webhook_set_endpoint('acme/biling', policy => 'patient')";
    assert_refused(&database, sql, "22023");
    let refusal = database.refusal(sql);
    assert_eq!(
        refusal.message(),
        r#"endpoint "acme/biling" does not exist, and a new one needs a url"#
    );
    let hint = refusal.hint().unwrap();
    assert!(
        hint.starts_with(r#"Did you mean "acme/billing"? Give the url"#),
        "{hint}"
    );
}

#[test]
fn a_secret_that_the_endpoint_does_not_have_yet_becomes_the_newest() {
    let database = database();
    let old = database.add_endpoint("billing", "http://127.0.0.1/");
    let given = format!("whsec_{CREDENTIAL}=");
    let arguments = format!("'billing', secret => '{given}'");
    assert_eq!(
        set(&database, &arguments),
        (None, vec!["secret".to_owned()])
    );
    assert_eq!(secret_of(&database, "billing"), Some(given.clone()));
    let overlap: bool = database.query_one_value(&format!(
        "SELECT expires_at BETWEEN now() + interval '23 h' AND now() + interval '24 h' FROM webhook.secret WHERE secret = '{old}'"
    ));
    assert!(overlap, "the old one serves as long as after a rotation");
    assert_eq!(set(&database, &arguments), (None, vec![]));

    // One that serves still is had; one that does not any more is not.
    let newest = database.query_one_value::<String>("SELECT webhook_rotate_secret('billing')");
    assert_eq!(set(&database, &arguments), (None, vec![]));
    assert_eq!(secret_of(&database, "billing"), Some(newest));
    database.execute(&format!(
        "UPDATE webhook.secret SET expires_at = now() - interval '1 s' WHERE secret = '{given}'"
    ));
    assert_eq!(
        set(&database, &arguments),
        (None, vec!["secret".to_owned()])
    );
    assert_eq!(secret_of(&database, "billing"), Some(given));
}

#[test]
fn of_two_who_set_the_same_new_endpoint_one_creates_it_and_the_other_changes_it() {
    let database = database();
    for (url, changed) in [("/a", vec![]), ("/b", vec!["url".to_owned()])] {
        let mut first = database.connect();
        let mut transaction = first.transaction().unwrap();
        transaction
            .batch_execute(
                "SELECT webhook_set_endpoint('acme/billing', 'http://127.0.0.1:9/a', policy => 'patient')",
            )
            .unwrap();
        let mut second = database.connect();
        let call = format!(
            "SELECT secret, changed FROM webhook_set_endpoint('acme/billing', 'http://127.0.0.1:9{url}')"
        );
        second
            .batch_execute("SET application_name = 'second'")
            .unwrap();
        let second = thread::spawn(move || {
            let row = second.query_one(&call, &[]).unwrap();
            (row.get(0), row.get(1))
        });
        database.wait_until(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'",
        );
        transaction.commit().unwrap();
        let told: (Option<String>, Vec<String>) = second.join().unwrap();
        assert_eq!(told, (None, changed), "{url}");
        let kept: bool = database.query_one_value(&format!(
            "SELECT url = 'http://127.0.0.1:9{url}' AND policy = 'patient' AND (SELECT count(*) = 1 FROM webhook.secret)
             FROM webhook.endpoint"
        ));
        assert!(kept, "{url}");
        database.execute("SELECT webhook_remove_endpoint('acme/billing')");
    }
}

#[test]
fn of_two_who_set_the_same_endpoint_neither_undoes_what_the_other_set() {
    let database = database();
    database.add_endpoint("billing", "http://127.0.0.1:9/");
    let mut first = database.connect();
    let mut transaction = first.transaction().unwrap();
    transaction
        .batch_execute("SELECT webhook_set_endpoint('billing', max_in_flight => 7)")
        .unwrap();
    let mut second = database.connect();
    second
        .batch_execute("SET application_name = 'second'")
        .unwrap();
    let second = thread::spawn(move || {
        let call = "SELECT changed FROM webhook_set_endpoint('billing', policy => 'patient', max_in_flight => 7)";
        let row = second.query_one(call, &[]).unwrap();
        row.get::<_, Vec<String>>(0)
    });
    database.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'",
    );
    transaction.commit().unwrap();
    assert_eq!(second.join().unwrap(), ["policy"]);
    let both: bool = database
        .query_one_value("SELECT policy = 'patient' AND max_in_flight = 7 FROM webhook.endpoint");
    assert!(both);
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

#[test]
fn removing_an_endpoint_cancels_what_is_pending() {
    let database = database();
    database.add_endpoint("billing", &Receiver::closed_url());
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
    let event = database.emit("order.created", json!({}));
    database.execute("SELECT webhook_remove_endpoint('billing')");

    let cancelled = ("CANCELLED".to_owned(), 0, "endpoint removed".to_owned());
    assert_eq!(delivery_of(&database, event), cancelled);
    assert_eq!(written(&database), "", "its secret goes with it");
}

#[test]
fn removing_an_endpoint_can_dead_letter_what_is_pending() {
    let database = database();
    database.add_endpoint("billing", &Receiver::closed_url());
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
    let event = database.emit("order.created", json!({}));
    database.execute("SELECT webhook_remove_endpoint('billing', 'fail')");

    let failed = ("FAILED".to_owned(), 0, "endpoint removed".to_owned());
    assert_eq!(delivery_of(&database, event), failed);
    let dead: i64 = database.query_one_value("SELECT count(*) FROM webhook.dead_letter");
    assert_eq!(dead, 1);
}

#[test]
fn removing_an_endpoint_in_any_other_way_is_refused() {
    let database = database();
    database.add_endpoint("billing", "http://127.0.0.1/");
    for pending in ["'keep'", "''", "NULL"] {
        let removal = format!("SELECT webhook_remove_endpoint('billing', {pending})");
        assert_refused(&database, &removal, "22023");
    }
}

#[test]
fn removing_an_endpoint_while_it_is_answering_stops_nothing_else() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.hold("/removed");
    database.add_endpoint("removed", &receiver.url("/removed"));
    let event = database.emit("order.created", json!({}));
    receiver.wait_for_event(event);
    database.execute("SELECT webhook_remove_endpoint('removed')");
    receiver.release("/removed");

    database.add_endpoint("kept", &receiver.url("/kept"));
    let later = database.emit("order.created", json!({}));
    database.wait_for_status(later, "SENT");
    assert_eq!(
        database.delivery_status(event).as_deref(),
        Some("CANCELLED")
    );
}

#[test]
fn an_endpoint_without_a_secret_gets_one_at_the_first_claim() {
    let (database, receiver) = (database(), Receiver::start());
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url) VALUES ('plain', '{}')",
        receiver.url("/")
    ));
    assert_eq!(secret_of(&database, "plain"), None);
    let event = database.emit("order.created", json!({}));
    let request = receiver.wait_for_event(event);

    let secret = secret_of(&database, "plain").expect("a secret was made");
    let webhook = standardwebhooks::Webhook::new(&secret).unwrap();
    webhook.verify(&request.body, &request.headers).unwrap();
}

fn secret_of(database: &Database, name: &str) -> Option<String> {
    database.query_one_value(&format!("SELECT webhook_secret('{name}')"))
}

#[test]
fn presets_cannot_be_changed() {
    let database = database();
    for (statement, code) in [
        (
            "UPDATE webhook.policy SET max_attempts = 9 WHERE name = 'standard'",
            "55000",
        ),
        (
            "DELETE FROM webhook.policy WHERE name = 'standard'",
            "55000",
        ),
        (
            "UPDATE webhook.policy SET preset = true WHERE name = 'fast'",
            "22023",
        ),
        (
            "INSERT INTO webhook.policy (name, preset) VALUES ('mine', true)",
            "22023",
        ),
    ] {
        assert_refused(&database, statement, code);
    }
    let intact: bool = database.query_one_value(
        "SELECT count(*) FILTER (WHERE preset) = 11 AND max(max_attempts) = 10 FROM webhook.policy",
    );
    assert!(intact);
}

#[test]
fn a_policy_in_use_cannot_be_dropped() {
    let database = database();
    database.add_endpoint("billing", "http://127.0.0.1/");
    let drop = "DELETE FROM webhook.policy WHERE name = 'fast'";
    assert_refused(&database, drop, "2BP01");
    let rename = "UPDATE webhook.policy SET name = 'quick' WHERE name = 'fast'";
    assert_refused(&database, rename, "2BP01");

    database.execute("UPDATE webhook.endpoint SET policy = 'standard'");
    database.execute(drop);
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
fn what_is_emitted_while_its_endpoint_is_removed_is_cancelled() {
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '1s'")
        .start();
    let database = cluster.database("removed");
    database.add_endpoint("removed", &Receiver::closed_url());
    let mut client = database.connect();
    let mut emitting = client.transaction().unwrap();
    let event: Uuid = emitting
        .query_one("SELECT webhook_emit('late')", &[])
        .unwrap()
        .get(0);
    database.execute("SELECT webhook_remove_endpoint('removed')");
    emitting.commit().unwrap();
    database.wait_for_status(event, "CANCELLED");
}

#[test]
fn an_endpoint_that_is_inserted_again_is_as_it_was() {
    let cluster = Cluster::builder()
        .setting("webhook.stale_after = '1s'")
        .start();
    let (database, receiver) = (cluster.database("removed"), Receiver::start());
    database.execute("UPDATE webhook.policy SET max_attempts = 1 WHERE name = 'fast'");
    receiver.respond("/back", |_, _| Answer::status(500));
    database.add_endpoint("back", &receiver.url("/back"));
    let failed = database.emit("order.created", json!({}));
    database.wait_for_status(failed, "FAILED");
    let undo = "CREATE TEMPORARY TABLE copy AS SELECT * FROM webhook.endpoint;
                DELETE FROM webhook.endpoint; INSERT INTO webhook.endpoint SELECT * FROM copy";
    // As replication and some restores insert.
    let replay = undo.replace("INSERT", "SET session_replication_role = replica; INSERT");
    for undo in [undo, undo, &replay] {
        database.execute(undo);
    }
    assert_eq!(
        database.query_one_value::<i64>("SELECT count(*) FROM webhook.failed"),
        1
    );

    database.execute("SELECT webhook_pause('back')");
    let kept_back = database.emit("order.created", json!({}));
    // What is removed is cancelled in the same step.
    database.add_endpoint("gone", &Receiver::closed_url());
    database.execute("SELECT webhook_pause('gone')");
    let orphan = database.emit("order.created", json!({}));
    database.execute("DELETE FROM webhook.endpoint WHERE name = 'gone'");
    database.wait_until(&format!(
        "SELECT count(*) = 1 FROM webhook.delivery WHERE event_id = '{orphan}' AND status = 'CANCELLED'"
    ));
    assert_eq!(
        database.delivery_status(kept_back).as_deref(),
        Some("PENDING")
    );
}

#[test]
fn a_delivery_of_a_removed_endpoint_cannot_be_sent_again() {
    let database = Cluster::shared().database("removed");
    database.execute("UPDATE webhook.policy SET max_attempts = 1 WHERE name = 'fast'");
    database.add_endpoint("removed", &Receiver::closed_url());
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    database.execute("SELECT webhook_remove_endpoint('removed')");
    let refusal =
        database.refusal("UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'");
    assert_eq!(refusal.code().code(), "55000", "{refusal:?}");
    assert!(refusal.hint().is_some());
    assert_eq!(database.delivery_status(event).as_deref(), Some("FAILED"));
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
