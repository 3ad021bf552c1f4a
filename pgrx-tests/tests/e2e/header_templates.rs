//! Templates in headers: receivers of other senders verify our requests, with their own libraries and the secrets
//! that they have.

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::database::refusal;
use webhook_e2e::verifier::{verify_as, verify_signature};
use webhook_e2e::{Cluster, Database, Receiver, Request};

use super::recipes::blocks;

const PAGE: &str = include_str!("../../../docs/headers.md");
const GITHUB: &str = r#"{"X-Hub-Signature-256": "sha256={{hmac_hex(body)}}"}"#;
const SECRET: &str = "It is a Secret to Everybody";
const ANOTHER: &str = "It is a Secret to Nobody";

fn database() -> Database {
    Cluster::shared().database("header_templates")
}

/// Returns the secret of the standard signature.
#[track_caller]
fn add(database: &Database, receiver: &Receiver, headers: &str) -> String {
    let options = format!("policy => 'fast', headers => $${headers}$$, hmac_secret => '{SECRET}'");
    database.add_endpoint_with("shop", &receiver.url("/"), &options)
}

#[track_caller]
fn request_of(database: &Database, receiver: &Receiver) -> Request {
    let event = database.emit("order.created", json!({"name": "Zoë", "n": 1.10}));
    receiver.wait_for_event(event)
}

fn rotate(database: &Database, options: &str) -> String {
    database.query_one_value(&format!(
        "SELECT webhook_rotate_hmac_secret('shop'{options})"
    ))
}

fn shown(database: &Database) -> Option<String> {
    database.query_one_value("SELECT webhook_hmac_secret('shop')")
}

/// Sends an event by the statement of the documentation, and lets the provider's library look at it.
#[track_caller]
fn assert_the_library_verifies(provider: &str, heading: &str, event_type: &str) {
    let (database, receiver) = (database(), Receiver::start());
    let statement = blocks(PAGE, heading, "sql")[0];
    database.execute(&statement.replace("https://example.com/hooks", &receiver.url("/")));
    let secret: String =
        database.query_one_value(&format!("SELECT webhook_hmac_secret('{provider}')"));
    assert!(statement.contains(&format!("hmac_secret => '{secret}'")));
    let standard: String =
        database.query_one_value(&format!("SELECT webhook_secret('{provider}')"));

    let event = database.emit(event_type, json!({"name": "Zoë", "n": 1.10}));
    let mut request = receiver.wait_for_event(event);
    assert_eq!(verify_as(provider, &secret, &request), Ok(()));
    assert_eq!(verify_signature(&standard, &request), Ok(()));
    for other in [ANOTHER, &standard] {
        assert!(verify_as(provider, other, &request).is_err(), "{other}");
    }
    request.body = b"{}".as_slice().into();
    assert!(verify_as(provider, &secret, &request).is_err());
}

#[test]
fn the_library_of_github_verifies_a_request() {
    assert_the_library_verifies("github", "\n### GitHub\n", "push.main");
}

#[test]
fn the_library_of_stripe_verifies_a_request() {
    assert_the_library_verifies("stripe", "\n### Stripe\n", "invoice.paid");
}

#[test]
fn the_library_of_shopify_verifies_a_request() {
    assert_the_library_verifies("shopify", "\n### Shopify\n", "orders.created");
}

#[test]
fn the_library_of_slack_verifies_a_request() {
    assert_the_library_verifies("slack", "\n### Slack\n", "message.sent");
}

#[test]
fn joined_signatures_verify_by_both_secrets_until_the_old_one_expires() {
    let (database, receiver) = (database(), Receiver::start());
    let standard = add(
        &database,
        &receiver,
        r#"{"Stripe-Signature": "t={{attempt_time}},v1={{hmac_hex(attempt_time, \".\", body) join \",v1=\"}}",
            "X-Hub-Signature-256": "sha256={{hmac_hex(body)}}"}"#,
    );
    let made = rotate(&database, "");
    assert_eq!(shown(&database).as_ref(), Some(&made));
    let request = request_of(&database, &receiver);
    for secret in [SECRET, &made] {
        assert_eq!(verify_as("stripe", secret, &request), Ok(()));
    }
    assert_eq!(verify_as("github", &made, &request), Ok(()));
    assert!(verify_as("github", SECRET, &request).is_err());

    database.execute("UPDATE webhook.secret SET expires_at = now() WHERE expires_at IS NOT NULL");
    let request = request_of(&database, &receiver);
    assert_eq!(verify_as("stripe", &made, &request), Ok(()));
    assert!(verify_as("stripe", SECRET, &request).is_err());

    let newest = rotate(
        &database,
        &format!(", secret => '{ANOTHER}', overlap => '0 s'"),
    );
    assert_eq!(newest, ANOTHER);
    let request = request_of(&database, &receiver);
    assert_eq!(verify_as("stripe", ANOTHER, &request), Ok(()));
    assert!(verify_as("stripe", &made, &request).is_err());
    assert_eq!(
        verify_signature(&standard, &request),
        Ok(()),
        "rotated like the other, and without it"
    );
}

#[test]
fn headers_have_values_of_the_event_and_the_time_of_the_attempt() {
    let (database, receiver) = (database(), Receiver::start());
    add(
        &database,
        &receiver,
        r#"{"X-Type": "{{type}}", "traceparent": "{{data.trace.parent}}", "X-At": "{{attempt_time}}", "X-Id": "<{{id}}>",
            "X-Plain": "{{{{type}}", "X-Tenant": "of {{tenant}}", "Authorization": "Bearer {{{{0}}"}"#,
    );
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = database.emit("order.created", json!({"trace": {"parent": trace}}));
    let request = receiver.wait_for_event(event);
    for (name, value) in [
        ("x-type", "order.created"),
        ("traceparent", trace),
        ("x-at", request.header("webhook-timestamp")),
        ("x-id", &format!("<{event}>")),
        ("x-plain", "{{type}}"),
        ("x-tenant", "of null"),
        ("authorization", "Bearer {{0}}"),
    ] {
        assert_eq!(request.header(name), value, "{name}");
    }
    let request = request_of(&database, &receiver);
    assert!(!request.headers.contains_key("traceparent"), "{request:?}");
}

#[track_caller]
fn last_error(database: &Database, event: Uuid) -> (String, String, i32) {
    database.wait_for_status(event, "FAILED");
    let sql = "SELECT last_error, reason, attempts FROM webhook.dead_letter WHERE event_id = $1";
    let row = database.connect().query_one(sql, &[&event]).unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[test]
fn a_value_that_no_header_can_have_fails_the_attempt_with_a_reason_that_does_not_show_it() {
    let (database, receiver) = (database(), Receiver::start());
    database.execute(
        "UPDATE webhook.policy SET failure_threshold = 1, on_trip = 'disable' WHERE name = 'fast'",
    );
    add(
        &database,
        &receiver,
        r#"{"X-Customer": "customer {{data.name}}"}"#,
    );
    for (name, error) in [
        (
            "hidden\r\nX-Admin: yes",
            "header x-customer has a control character",
        ),
        ("\u{1b}hidden", "header x-customer has a control character"),
        (
            "hidden Zoë",
            "header x-customer has a character that is not ASCII",
        ),
        (
            &"hidden".repeat(2000),
            "header x-customer is larger than 8 kB",
        ),
    ] {
        let event = database.emit("order.created", json!({ "name": name }));
        let failure = (error.to_owned(), "invalid_event".to_owned(), 1);
        assert_eq!(last_error(&database, event), failure);
        let refusal = database.refusal(&format!("SELECT webhook_preview('{event}', 'shop')"));
        assert_eq!(
            refusal.message(),
            format!("the request cannot be made: {error}")
        );
        assert!(!format!("{refusal:?}").contains("hidden"), "{refusal:?}");
    }
    assert_eq!(receiver.request_count(), 0);
    // Such events do not stop the events of others.
    let event = database.emit("order.created", json!({"name": "Zoe"}));
    let request = receiver.wait_for_event(event);
    assert_eq!(request.header("x-customer"), "customer Zoe");
}

/// Every way to write an endpoint refuses these headers, changes nothing and shows no credential.
#[track_caller]
fn assert_refused(database: &Database, headers: &Value, detail: &str, hint: &str) {
    let rows = "SELECT string_agg(e::text, ' ') FROM webhook.endpoint e";
    let before: String = database.query_one_value(rows);
    for sql in [
        format!(
            "SELECT webhook_set_endpoint('new', 'https://example.com/', headers => $${headers}$$)"
        ),
        format!("SELECT webhook_set_endpoint('kept', headers => $${headers}$$)"),
        format!("UPDATE webhook.endpoint SET headers = $${headers}$$"),
        format!(
            "INSERT INTO webhook.endpoint (name, url, headers) VALUES ('new', 'https://example.com/', $${headers}$$)"
        ),
    ] {
        let refusal = database.refusal(&sql);
        assert_eq!(refusal.code().code(), "22023", "{sql}: {refusal:?}");
        assert_eq!(refusal.message(), "endpoint is not valid");
        assert_eq!(refusal.detail(), Some(detail), "{sql}");
        assert!(refusal.hint().unwrap().starts_with(hint), "{refusal:?}");
        assert!(!format!("{refusal:?}").contains("t0ken"), "{refusal:?}");
    }
    assert_eq!(database.query_one_value::<String>(rows), before);
}

#[test]
fn a_template_that_is_not_right_is_refused_with_the_header_what_is_wrong_and_the_remedy() {
    let database = database();
    database.add_endpoint("kept", "http://127.0.0.1/");
    for (value, detail, hint) in [
        (
            "{{",
            r#"header "X-Key": "{{" is not closed"#,
            "Close it with }}, or write {{{{",
        ),
        (
            "{{order.id}}",
            r#"header "X-Key": "{{order.id}}" begins with none of id, type, timestamp, tenant and data"#,
            "A placeholder of a header is {{id}}, ",
        ),
        (
            "{{hmac_md5(body)}}",
            r#"header "X-Key": "{{hmac_md5(body)}}" is not a signature"#,
            "Write {{hmac_hex(body)}} or ",
        ),
        (
            "{{hmac_hex(data.id)}}",
            r#"header "X-Key": "{{hmac_hex(data.id)}}" is not a signature"#,
            "Write {{hmac_hex(body)}} or ",
        ),
    ] {
        let headers = json!({"X-Key": format!("t0ken {value}")});
        assert_refused(&database, &headers, detail, hint);
    }
    let many = "{{hmac_hex(body)}}".repeat(9);
    assert_refused(
        &database,
        &json!({"X-Key": many}),
        "the headers have 9 signatures, more than 8",
        "All headers together have at most 50 names, 16 kB and 8 signatures",
    );
}

#[test]
fn a_credential_has_no_placeholder() {
    let database = database();
    database.add_endpoint("kept", "http://127.0.0.1/");
    for name in [
        "Authorization",
        "authorization",
        "Proxy-Authorization",
        "Cookie",
        "X-API-Key",
        "ApiKey",
        "X-Auth-Token",
        "PRIVATE-TOKEN",
    ] {
        for value in [
            "{{data.token}}",
            "Bearer t0ken{{type}}",
            "{{{{{{hmac_hex(body)}}",
            "{{",
        ] {
            assert_refused(
                &database,
                &json!({name: value}),
                &format!("header \"{name}\" is a credential and has a placeholder"),
                "Give a credential as it is",
            );
        }
    }
}

#[test]
fn an_endpoint_with_a_bad_template_can_be_stopped() {
    let (database, receiver) = (database(), Receiver::start());
    add(&database, &receiver, GITHUB);
    database.execute(
        r#"SET session_replication_role = replica; UPDATE webhook.endpoint SET headers = '{"X-Key": "t0ken {{", "Cookie": "{{id}}"}'"#,
    );
    database.execute("SELECT webhook_pause('shop'), webhook_resume('shop')");
    let event = database.emit("order.created", json!({}));
    let (error, reason, _) = last_error(&database, event);
    assert_eq!(
        (&*error, &*reason),
        (
            "the template of header x-key is not valid",
            "invalid_request"
        )
    );
}

#[test]
fn a_secret_that_the_receiver_has_is_set_once_and_kept() {
    let (database, receiver) = (database(), Receiver::start());
    add(&database, &receiver, GITHUB);
    let set = |secret: &str| {
        let sql =
            format!("SELECT changed FROM webhook_set_endpoint('shop', hmac_secret => '{secret}')");
        database.query_one_value::<Vec<String>>(&sql)
    };
    assert_eq!(set(SECRET), Vec::<String>::new());
    assert_eq!(shown(&database).as_deref(), Some(SECRET));
    assert_eq!(set(ANOTHER), ["hmac_secret"]);
    assert_eq!(shown(&database).as_deref(), Some(ANOTHER));
    let request = request_of(&database, &receiver);
    assert_eq!(verify_as("github", ANOTHER, &request), Ok(()));
}

#[test]
fn a_secret_is_made_where_headers_need_one() {
    let (database, receiver) = (database(), Receiver::start());
    let url = receiver.url("/");
    database.add_endpoint("shop", &url);
    assert_eq!(shown(&database), None);
    let set = format!("SELECT webhook_set_endpoint('shop', headers => '{GITHUB}')");
    database.execute(&set);
    let made = shown(&database).expect("it is made with the headers");
    assert_eq!(made.len(), 64);
    database.execute(&set);
    assert_eq!(shown(&database).as_ref(), Some(&made));
    let request = request_of(&database, &receiver);
    assert_eq!(verify_as("github", &made, &request), Ok(()));

    // Written by hand, or expired, it has one with its first request.
    database.execute("DELETE FROM webhook.secret");
    let request = request_of(&database, &receiver);
    let made = shown(&database).expect("it is made with the route");
    assert_eq!(verify_as("github", &made, &request), Ok(()));
    let standard: String = database.query_one_value("SELECT webhook_secret('shop')");
    assert_eq!(verify_signature(&standard, &request), Ok(()));
}

/// The sender asks for the routes of many endpoints at once, and one of them must not keep the others back.
#[test]
fn a_secret_is_made_whatever_secrets_the_endpoint_has() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("shop", &receiver.url("/shop"));
    database.add_endpoint("other", &receiver.url("/other"));
    for _ in 1..10 {
        database.execute("SELECT webhook_rotate_secret('shop')");
    }
    database.execute(&format!(
        "SET session_replication_role = replica;
         UPDATE webhook.secret SET secret = 'whsec_not base64' WHERE expires_at IS NULL AND endpoint_id = 1;
         UPDATE webhook.endpoint SET headers = '{GITHUB}' WHERE name = 'shop'"
    ));
    let event = database.emit("order.created", json!({}));
    database.wait_until(&format!(
        "SELECT count(*) = 1 FROM webhook.delivery WHERE event_id = '{event}' AND status = 'SENT'"
    ));
    database.wait_until(&format!(
        "SELECT count(*) = 1 FROM webhook.dead_letter WHERE event_id = '{event}'
         AND last_error = 'a secret is not whsec_ and base64'"
    ));
    assert!(shown(&database).is_some());
}

#[test]
fn bad_secrets_are_refused_and_not_shown() {
    let database = database();
    let standard = database.add_endpoint("shop", "http://127.0.0.1/");
    let key = "a key of standard webhooks, in text";
    database.execute(&format!(
        "SELECT webhook_rotate_secret('shop', secret => 'whsec_' || encode('{key}', 'base64'))"
    ));
    for bad in [
        "",
        "hunter2",
        &"hunter2".repeat(40),
        "hunter2\nhunter2",
        key,
    ] {
        for sql in [
            format!("SELECT webhook_rotate_hmac_secret('shop', secret => '{bad}')"),
            format!("SELECT webhook_set_endpoint('shop', hmac_secret => '{bad}')"),
            format!(
                "INSERT INTO webhook.secret (endpoint_id, secret) SELECT id, 'hmac_{bad}' FROM webhook.endpoint"
            ),
        ] {
            let refusal = database.refusal(&sql);
            assert_eq!(refusal.code().code(), "22023", "{sql}: {refusal:?}");
            let shown = format!("{refusal:?}");
            assert!(
                !shown.contains("hunter2") && !shown.contains(key),
                "{shown}"
            );
        }
    }
    assert_eq!(shown(&database), None);
    // Nor may the standard signature take one of these.
    rotate(&database, &format!(", secret => '{SECRET}!!!'"));
    let refusal = database.refusal(&format!(
        "SELECT webhook_rotate_secret('shop', secret => 'whsec_' || encode('{SECRET}!!!', 'base64'))"
    ));
    assert_eq!(
        refusal.message(),
        "the endpoint signs with this secret already"
    );
    assert!(!format!("{refusal:?}").contains(SECRET));
    // The text of a signing secret is another key than its bytes.
    assert_eq!(
        rotate(&database, &format!(", secret => '{standard}'")),
        standard
    );
}

#[test]
fn one_hmac_key_does_not_serve_both_signatures_however_it_is_written() {
    let (short, long) = ("a shared text of 26 bytes!", "long text ".repeat(8));
    for (index, (text, key)) in [
        (short, format!("convert_to('{short}', 'UTF8') || '\\x00'")),
        (
            short,
            format!("convert_to('{short}', 'UTF8') || '\\x000000'"),
        ),
        (&*long, format!("sha256(convert_to('{long}', 'UTF8'))")),
    ]
    .into_iter()
    .enumerate()
    {
        let (database, name) = (database(), format!("shop{index}"));
        let secret = format!("'whsec_' || translate(encode({key}, 'base64'), E'\\n', '')");
        let both = format!(
            "SELECT webhook_set_endpoint('{name}', 'https://example.com/', headers => $${GITHUB}$$,
                                         hmac_secret => '{text}', secret => {secret})"
        );
        let url = "https://example.com/";
        database.add_endpoint_with("text", url, &format!("hmac_secret => '{text}'"));
        database.execute(&format!(
            "SELECT webhook_set_endpoint('key', '{url}', secret => {secret})"
        ));
        for sql in [
            both,
            format!("SELECT webhook_rotate_secret('text', secret => {secret})"),
            format!("SELECT webhook_rotate_hmac_secret('key', secret => '{text}')"),
        ] {
            let refusal = database.refusal(&sql);
            let message = "the endpoint signs with this secret already";
            assert_eq!(refusal.message(), message, "{sql}");
        }
    }
}

#[test]
fn secrets_and_templates_of_headers_are_for_admin_alone() {
    let (database, receiver) = (database(), Receiver::start());
    add(
        &database,
        &receiver,
        r#"{"X-Key": "t0ken {{hmac_hex(body)}}"}"#,
    );
    let event = request_of(&database, &receiver).event_id();
    let name = database.name();
    for level in ["emit", "read", "operate"] {
        database.execute(&format!(
            "CREATE ROLE {level}_{name}; SELECT webhook_grant('{level}_{name}', '{level}')"
        ));
        let mut client = database.connect();
        let set = format!("SET ROLE {level}_{name}");
        client.batch_execute(&set).unwrap();
        for sql in [
            "SELECT webhook_hmac_secret('shop')",
            "SELECT webhook_rotate_hmac_secret('shop')",
            "SELECT webhook.rotate_hmac_secret('shop', '1 h', NULL)",
            "SELECT webhook.hmac_secrets(1)",
            "SELECT webhook.routes('{1}'::int[])",
            "SELECT webhook_set_endpoint('shop', hmac_secret => 'mine, all mine')",
            "SELECT headers FROM webhook.endpoint",
            "SELECT secret FROM webhook.secret",
            &format!("SELECT webhook_preview('{event}', 'shop')"),
        ] {
            let code = refusal(&mut client, sql).code().code().to_owned();
            assert_eq!(code, "42501", "{level}: {sql}");
        }
        database.execute(&format!(
            "DROP OWNED BY {level}_{name}; DROP ROLE {level}_{name}"
        ));
    }
    let masked: Value = database.query_one_value("SELECT headers FROM webhook.endpoint_status");
    assert_eq!(masked, json!({"X-Key": "***"}));
}

#[test]
fn a_preview_has_the_headers_as_they_would_be_sent() {
    let (database, receiver) = (database(), Receiver::start());
    add(
        &database,
        &receiver,
        r#"{"X-Hub-Signature-256": "sha256={{hmac_hex(body)}}", "X-Type": "{{type}}", "X-None": "{{data.none}}"}"#,
    );
    let request = request_of(&database, &receiver);
    let event = request.event_id();
    let previewed: Value = database.query_one_value(&format!(
        "SELECT headers FROM webhook_preview('{event}', 'shop')"
    ));
    for name in ["x-hub-signature-256", "x-type"] {
        assert_eq!(previewed[name], request.header(name));
    }
    assert_eq!(previewed.get("x-none"), None);
}
