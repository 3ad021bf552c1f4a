//! Formats: the bytes that a receiver gets, and values that are refused before they can get there.

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::verifier::{parse_cloudevent, verify_signature};
use webhook_e2e::{Answer, Cluster, Database, Receiver, Request};

/// Every kind of character that a JSON string may have.
pub(super) const AWKWARD: &str =
    "say \"hi\" \\ / \u{8}\t\r\n\u{1} Zoë 茶 🫖 \u{2028} {{data.id}} {{ }} ${x} <!channel> é";

pub(super) fn database() -> Database {
    Cluster::shared().database("formats")
}

/// `options` are named arguments as SQL; the template goes as a parameter.
#[track_caller]
pub(super) fn add(
    database: &Database,
    name: &str,
    url: &str,
    options: &str,
    template: Option<Value>,
) -> String {
    let sql = format!(
        "SELECT secret FROM webhook_set_endpoint($1, $2, template => $3, policy => 'fast', {options})"
    );
    let row = database
        .connect()
        .query_one(&sql, &[&name, &url, &template]);
    row.unwrap_or_else(|error| panic!("{error:?}")).get(0)
}

#[track_caller]
pub(super) fn body(request: &Request) -> &str {
    std::str::from_utf8(&request.body).expect("bodies are UTF-8")
}

/// An event as SQL writes it: numbers that Rust would round arrive as they are.
#[track_caller]
pub(super) fn emit_sql(database: &Database, arguments: &str) -> Uuid {
    database.query_one_value(&format!("SELECT webhook_emit({arguments})"))
}

#[track_caller]
pub(super) fn wire_time(database: &Database, event: Uuid) -> String {
    database.query_one_value(&format!(
        "SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM webhook.event WHERE id = '{event}'"
    ))
}

#[test]
fn each_format_arrives_as_documented_and_signed() {
    let (database, receiver) = (database(), Receiver::start());
    let name: String = database.query_one_value("SELECT current_database()::text");
    let template = json!({"total": "{{data.total}}", "text": "{{type}} for {{data.total}}"});
    let secrets: Vec<(&str, String)> = [
        ("standard", None),
        ("raw", None),
        ("cloudevents", None),
        ("template", Some(template)),
    ]
    .into_iter()
    .map(|(format, template)| {
        let url = receiver.url(&format!("/{format}"));
        let options = format!("format => '{format}'");
        (format, add(&database, format, &url, &options, template))
    })
    .collect();

    let event = emit_sql(
        &database,
        r#"'order.created', '{"total": 12345678901234567890.1230, "a": [1, null]}'"#,
    );
    let time = wire_time(&database, event);
    let payload = r#"{"a": [1, null], "total": 12345678901234567890.1230}"#;
    for (format, secret) in &secrets {
        let request = &receiver.wait_for_requests_to(&format!("/{format}"), 1)[0];
        let (content_type, expected) = match *format {
            "standard" => (
                "application/json",
                format!(r#"{{"id":"{event}","type":"order.created","timestamp":"{time}","data":{payload}}}"#),
            ),
            "raw" => ("application/json", payload.to_owned()),
            "cloudevents" => (
                "application/cloudevents+json; charset=UTF-8",
                format!(
                    r#"{{"specversion":"1.0","id":"{event}","source":"/webhook/{name}","type":"order.created","time":"{time}","datacontenttype":"application/json","data":{payload}}}"#
                ),
            ),
            _ => (
                "application/json",
                r#"{"text": "order.created for 12345678901234567890.1230", "total": 12345678901234567890.1230}"#.to_owned(),
            ),
        };
        assert_eq!(body(request), expected);
        assert_eq!(request.header("content-type"), content_type);
        assert_eq!(request.header("webhook-id"), event.to_string());
        assert_eq!(request.header("content-length"), expected.len().to_string());
        assert_eq!(verify_signature(secret, request), Ok(()), "{format}");

        let mut changed = request.clone();
        changed.body = expected.replace("1230", "1231").into();
        assert!(verify_signature(secret, &changed).is_err(), "{format}");
    }
}

#[test]
fn the_cloudevents_sdk_reads_what_is_sent() {
    let (database, receiver) = (database(), Receiver::start());
    add(
        &database,
        "ce",
        &receiver.url("/"),
        "format => 'cloudevents'",
        None,
    );
    let name: String = database.query_one_value("SELECT current_database()::text");
    let data = json!({"text": AWKWARD, "list": [1, 2.5, null, {"deep": true}]});
    let mut client = database.connect();
    for tenant in [None, Some("acme:eu&\"")] {
        let row = client.query_one(
            "SELECT webhook_emit('order.created', $1, tenant => $2)",
            &[&data, &tenant],
        );
        let event: Uuid = row.unwrap().get(0);
        let time = wire_time(&database, event).replace('Z', "+00:00");
        let mut attributes = json!({
            "specversion": "1.0", "id": event.to_string(), "source": format!("/webhook/{name}"), "type": "order.created",
            "time": time, "datacontenttype": "application/json",
        });
        if let Some(tenant) = tenant {
            attributes["tenant"] = tenant.into();
        }
        let read = parse_cloudevent(&receiver.wait_for_event(event)).unwrap();
        assert_eq!(read, json!({"attributes": attributes, "data": data}));
    }
}

#[test]
fn the_cloudevents_sdk_refuses_the_standard_format() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("standard", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    let refused = parse_cloudevent(&receiver.wait_for_event(event)).unwrap_err();
    assert!(refused.contains("source"), "{refused}");
}

#[test]
fn the_source_of_a_cloudevent_names_site_and_database_in_letters_of_a_uri() {
    let cluster = Cluster::builder()
        .setting("webhook.site = 'eu west/1'")
        .start();
    let named = cluster.existing_database("Zoë's \"shop\"");
    cluster
        .plain_database("maintenance")
        .execute(r#"CREATE DATABASE "Zoë's ""shop""""#);
    let receiver = Receiver::start();
    named.create_extension();
    add(
        &named,
        "ce",
        &receiver.url("/"),
        "format => 'cloudevents'",
        None,
    );
    let event = named.emit("order.created", json!({}));
    let read = parse_cloudevent(&receiver.wait_for_event(event)).unwrap();
    assert_eq!(
        read["attributes"]["source"],
        "/webhook/eu%20west/1/Zo%C3%AB%27s%20%22shop%22"
    );
}

#[test]
fn a_changed_format_counts_for_what_is_queued() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("shop", &receiver.url("/"));
    database.pause_all();
    let event = database.emit("order.created", json!({"id": 1}));
    database.execute("UPDATE webhook.endpoint SET format = 'raw', paused_at = NULL");
    assert_eq!(body(&receiver.wait_for_event(event)), r#"{"id": 1}"#);
}

#[test]
fn a_preview_is_what_is_sent_in_every_format() {
    let (database, receiver) = (database(), Receiver::start());
    for format in ["standard", "raw", "cloudevents", "template"] {
        let template =
            json!({"text": "{{data.text}}", "of": "{{tenant}}, {{type}}, {{timestamp}}"});
        let template = (format == "template").then_some(template);
        let (url, options) = (
            receiver.url(&format!("/{format}")),
            format!("format => '{format}'"),
        );
        add(&database, format, &url, &options, template);
    }
    let row = database.connect().query_one(
        "SELECT webhook_emit('order.created', $1, tenant => 'acme')",
        &[&json!({"text": AWKWARD})],
    );
    let event: Uuid = row.unwrap().get(0);
    database.wait_for_status(event, "SENT");
    for request in receiver.wait_for_requests(4) {
        let format = &request.path[1..];
        let row = database.connect().query_one(
            "SELECT body, headers ->> 'content-type', headers ->> 'content-length' FROM webhook_preview($1, $2)",
            &[&event, &format],
        );
        let row = row.unwrap();
        assert_eq!(row.get::<_, &str>(0), body(&request));
        assert_eq!(row.get::<_, &str>(1), request.header("content-type"));
        assert_eq!(row.get::<_, &str>(2), request.header("content-length"));
    }
}

#[test]
fn tests_and_alerts_come_in_the_format_of_their_endpoint() {
    let (database, receiver) = (database(), Receiver::start());
    let shape = json!({"text": "{{type}}: {{data.message}} {{data.endpoint}}"});
    add(
        &database,
        "chat",
        &receiver.url("/chat"),
        "format => 'template', event_types => '{webhook.*}'",
        Some(shape),
    );
    let status: String = database
        .connect()
        .query_one("CALL webhook_test('chat')", &[])
        .unwrap()
        .get("status");
    assert_eq!(status, "SENT");
    let test = &receiver.wait_for_requests_to("/chat", 1)[0];
    assert_eq!(
        body(test),
        r#"{"text": "webhook.test: This is a test. null"}"#
    );

    database.execute("UPDATE webhook.policy SET retry_status = '{}', failure_threshold = 0, warn_threshold = 0 WHERE name = 'fast'");
    receiver.respond("/broken", |_, _| Answer::status(400));
    database.add_endpoint("broken", &receiver.url("/broken"));
    database.emit("order.created", json!({}));
    let alert = &receiver.wait_for_requests_to("/chat", 2)[1];
    assert_eq!(
        body(alert),
        r#"{"text": "webhook.delivery.failed: null broken"}"#
    );
}

#[test]
fn a_payload_as_deep_as_jsonb_allows_is_sent_in_every_format() {
    let (database, receiver) = (database(), Receiver::start());
    for format in ["standard", "raw", "cloudevents", "template"] {
        let template =
            json!({"deep": "{{data.deep}}", "text": "{{data.deep}}!", "x": "{{data.x}}"});
        let template = (format == "template").then_some(template);
        add(
            &database,
            format,
            &receiver.url(&format!("/{format}")),
            &format!("format => '{format}'"),
            template,
        );
    }
    let event = emit_sql(
        &database,
        "'order.created', format('{\"deep\": %s1%s, \"x\": 7}', repeat('[', 3000), repeat(']', 3000))::jsonb",
    );
    let deep = format!("{}1{}", "[".repeat(3000), "]".repeat(3000));
    database.wait_for_status(event, "SENT");
    for request in receiver.wait_for_requests(4) {
        assert!(body(&request).contains(&deep), "{}", request.path);
    }
    assert_eq!(
        body(&receiver.requests_to("/template")[0]),
        format!("{{\"x\": 7, \"deep\": {deep}, \"text\": \"{deep}!\"}}")
    );
}
