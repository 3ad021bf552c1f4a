//! Formats: what a receiver gets, byte for byte, and what is refused before it can get there.

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::verifier::{parse_cloudevent, verify_signature};
use webhook_e2e::{Answer, Cluster, Database, Receiver, Request};

/// In templates, where no error may repeat it.
const CREDENTIAL: &str = "c3VwZXItc2VjcmV0LXJvdXRpbmcta2V5";

/// All that a JSON string may have.
const AWKWARD: &str =
    "say \"hi\" \\ / \u{8}\t\r\n\u{1} Zoë 茶 🫖 \u{2028} {{data.id}} {{ }} ${x} <!channel> é";

fn database() -> Database {
    Cluster::shared().database("formats")
}

/// `options` are named arguments as SQL; the template goes as a parameter.
#[track_caller]
fn add(
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
fn add_template(database: &Database, name: &str, url: &str, template: Value) -> String {
    add(database, name, url, "format => 'template'", Some(template))
}

#[track_caller]
fn set_template(database: &Database, template: Value) {
    let sql = "UPDATE webhook.endpoint SET template = $1";
    let updated = database.connect().execute(sql, &[&template]);
    updated.unwrap_or_else(|error| panic!("{error:?}"));
}

#[track_caller]
fn body(request: &Request) -> &str {
    std::str::from_utf8(&request.body).expect("bodies are UTF-8")
}

/// An event as SQL writes it: numbers that Rust would round arrive as they are.
#[track_caller]
fn emit_sql(database: &Database, arguments: &str) -> Uuid {
    database.query_one_value(&format!("SELECT webhook_emit({arguments})"))
}

#[track_caller]
fn wire_time(database: &Database, event: Uuid) -> String {
    database.query_one_value(&format!(
        "SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM webhook.event WHERE id = '{event}'"
    ))
}

#[track_caller]
fn last_error(database: &Database, event: Uuid) -> (String, i64, String) {
    let row = database.connect().query_one(
        "SELECT d.last_error, count(a), max(a.reason) FROM webhook.dead_letter d
         JOIN webhook.attempt a USING (event_id, endpoint_id) WHERE d.event_id = $1 GROUP BY d.last_error",
        &[&event],
    );
    let row = row.unwrap_or_else(|error| panic!("{error:?}"));
    (row.get(0), row.get(1), row.get(2))
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
fn a_template_gets_every_value_as_it_is() {
    let (database, receiver) = (database(), Receiver::start());
    add_template(
        &database,
        "shape",
        &receiver.url("/"),
        json!({
            "value": "{{data.text}}", "text": format!("{AWKWARD}: {{{{data.text}}}}!").replace("{{data.id}}", "").replace("{{ }}", ""),
            "all": "{{data}}", "first": "{{data.list.0.name}}", "missing": "{{data.none.at.all}}", "as text": "none: {{data.none}}",
            "object": "got {{data.list}}", "tenant": "{{tenant}}", "number": 7, "nested": [[{"id": "{{id}}"}]], "{": "{{{{x}}"
        }),
    );
    let data = json!({"text": AWKWARD, "list": [{"name": "a\"b"}]});
    let event = database.emit("order.created", data.clone());
    let plain = AWKWARD.replace("{{data.id}}", "").replace("{{ }}", "");
    assert_eq!(
        receiver.wait_for_event(event).json(),
        json!({
            "value": AWKWARD, "text": format!("{plain}: {AWKWARD}!"), "all": data, "first": "a\"b", "missing": null,
            "as text": "none: null", "object": r#"got [{"name": "a\"b"}]"#, "tenant": null, "number": 7,
            "nested": [[{"id": event.to_string()}]], "{": "{{x}}"
        })
    );
}

#[test]
fn a_template_names_the_tenant() {
    let (database, receiver) = (database(), Receiver::start());
    add_template(
        &database,
        "shape",
        &receiver.url("/"),
        json!(["{{tenant}}", "of {{tenant}}"]),
    );
    let event = emit_sql(&database, "'order.created', tenant => 'acme'");
    let sent = receiver.wait_for_event(event).json();
    assert_eq!(sent, json!(["acme", "of acme"]));
}

#[test]
fn a_corrected_template_applies_to_a_replay() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |request, _| {
        let accepted = request.json()["text"] == "order 7";
        Answer::status(if accepted { 200 } else { 422 })
    });
    database.execute("UPDATE webhook.policy SET retry_status = '{}' WHERE name = 'fast'");
    let secret = add_template(
        &database,
        "chat",
        &receiver.url("/"),
        json!({"text": "order {{data.id}}"}),
    );
    let event = database.emit("order.created", json!({"order": {"id": 7}}));
    database.wait_for_status(event, "FAILED");

    set_template(&database, json!({"text": "order {{data.order.id}}"}));
    database.execute(&format!("SELECT webhook_replay('{event}')"));
    database.wait_for_status(event, "SENT");
    let requests = receiver.wait_for_requests(2);
    let bodies: Vec<&str> = requests.iter().map(body).collect();
    assert_eq!(
        bodies,
        [r#"{"text": "order null"}"#, r#"{"text": "order 7"}"#]
    );
    for request in &requests {
        assert_eq!(request.event_id(), event);
        assert_eq!(verify_signature(&secret, request), Ok(()));
    }
}

#[test]
fn a_changed_format_counts_for_what_is_queued() {
    let (database, receiver) = (database(), Receiver::start());
    database.add_endpoint("shop", &receiver.url("/"));
    database.execute("UPDATE webhook.endpoint SET paused_at = now()");
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

/// Every way to write an endpoint refuses it, changes nothing and shows nothing.
#[track_caller]
fn assert_refused(database: &Database, format: &str, template: &str, detail: &str, hint: &str) {
    let rows = "SELECT coalesce(string_agg(e::text, ' '), '') FROM webhook.endpoint e";
    let before: String = database.query_one_value(rows);
    for sql in [
        format!(
            "SELECT webhook_set_endpoint('new', 'https://example.com/', format => {format}, template => {template})"
        ),
        format!("UPDATE webhook.endpoint SET format = {format}, template = {template}"),
        format!(
            "INSERT INTO webhook.endpoint (name, url, format, template) VALUES ('new', 'https://example.com/', {format}, {template})"
        ),
    ] {
        let refusal = database.refusal(&sql);
        assert_eq!(refusal.code().code(), "22023", "{sql}: {refusal:?}");
        assert_eq!(refusal.message(), "endpoint is not valid");
        assert_eq!(refusal.detail(), Some(detail), "{sql}");
        assert_eq!(refusal.hint(), Some(hint), "{sql}");
        assert!(!format!("{refusal:?}").contains(CREDENTIAL), "{refusal:?}");
    }
    assert_eq!(database.query_one_value::<String>(rows), before);
}

#[test]
fn a_template_that_is_not_right_is_refused_with_what_is_wrong_and_the_remedy() {
    let database = database();
    add_template(
        &database,
        "kept",
        "https://example.com/",
        json!({"key": CREDENTIAL, "text": "{{data.id}}"}),
    );
    const PATH: &str = "A placeholder is {{id}}, {{type}}, {{timestamp}}, {{tenant}}, {{data}} or a path below data such as \
                        {{data.order.id}} or {{data.items.0.name}}.";
    for (string, detail, hint) in [
        (
            "{{",
            r#""{{" is not closed"#,
            "Close it with }}, or write {{{{ for two braces that are to be sent.",
        ),
        ("{{data..x}}", r#""{{data..x}}" is not a path"#, PATH),
        (
            "{{data.x | upper}}",
            r#""{{data.x | upper}}" is not a path"#,
            PATH,
        ),
        (
            "{{order.id}}",
            r#""{{order.id}}" begins with none of id, type, timestamp, tenant and data"#,
            "The payload is below data: {{data.order.id}}.",
        ),
        (
            "{{id.x}}",
            r#""{{id.x}}" leads nowhere"#,
            "Only data has something below it: {{data.order.id}}.",
        ),
    ] {
        let template = json!({"key": CREDENTIAL, "list": [{"text": format!("order {string}")}]});
        assert_refused(
            &database,
            "'template'",
            &format!("'{template}'"),
            detail,
            hint,
        );
    }
    assert_refused(
        &database,
        "'template'",
        &format!(r#"'{{"{{{{data.x}}}}": "{CREDENTIAL}"}}'"#),
        r#""{{data.x}}" is in a key"#,
        "Placeholders go into values; the keys of a template are fixed.",
    );
    assert_refused(
        &database,
        "'template'",
        &format!("jsonb_build_object('key', '{CREDENTIAL}', 'long', repeat('a', 65536))"),
        "the template has 65591 bytes, and 65536 are allowed",
        "Emit what is longer as a part of the payload, and name it in the template.",
    );
}

#[test]
fn a_format_and_a_template_that_do_not_go_together_are_refused() {
    let database = database();
    add_template(
        &database,
        "kept",
        "https://example.com/",
        json!({"key": CREDENTIAL}),
    );
    let template = format!("'{{\"key\": \"{CREDENTIAL}\"}}'");
    for format in ["'xml'", "''", "'Standard'"] {
        let detail = format!("\"{}\" is not a format", format.trim_matches('\''));
        let hint = "The formats are standard, raw, cloudevents and template.";
        assert_refused(&database, format, &template, &detail, hint);
    }
    for missing in ["NULL", "'null'"] {
        let detail = "the format template needs a template";
        let hint = r#"For example template => '{"text": "{{data.message}}"}'."#;
        assert_refused(&database, "'template'", missing, detail, hint);
    }
    for format in ["standard", "raw", "cloudevents"] {
        let detail = format!("the format {format} has no template");
        let hint = "Use the format template, or leave the template null.";
        assert_refused(&database, &format!("'{format}'"), &template, &detail, hint);
    }
    // A parameter that is null keeps the value, and a new endpoint's is standard.
    let sql = format!(
        "SELECT webhook_set_endpoint('new', 'https://example.com/', template => {template})"
    );
    let refusal = database.refusal(&sql);
    assert_eq!(
        refusal.detail(),
        Some("the format standard has no template")
    );
    for sql in [
        format!("UPDATE webhook.endpoint SET format = NULL, template = {template}"),
        format!(
            "INSERT INTO webhook.endpoint (name, url, format, template) VALUES ('new', 'https://example.com/', NULL, {template})"
        ),
    ] {
        let refusal = database.refusal(&sql);
        assert_eq!(refusal.code().code(), "22023", "{sql}: {refusal:?}");
        assert!(
            refusal.detail().unwrap().ends_with("must not be null"),
            "{sql}"
        );
        assert!(!format!("{refusal:?}").contains(CREDENTIAL), "{refusal:?}");
    }
}

/// What a superuser can do past the triggers.
fn write_unchecked(database: &Database, setting: &str) {
    database.execute(&format!(
        "SET session_replication_role = replica; UPDATE webhook.endpoint SET {setting}"
    ));
}

#[test]
fn what_got_past_the_checks_fails_at_once_and_is_not_shown() {
    let (database, receiver) = (database(), Receiver::start());
    add_template(
        &database,
        "chat",
        &receiver.url("/"),
        json!({"text": "{{data.id}}"}),
    );
    for (setting, error) in [
        (
            format!(r#"template = '{{"key": "{CREDENTIAL}", "text": "{{{{{CREDENTIAL}}}}}"}}'"#),
            "the template of the endpoint is not valid",
        ),
        (
            "template = NULL".to_owned(),
            "the format of the endpoint is not known, or its template is missing",
        ),
        (
            "format = 'xml'".to_owned(),
            "the format of the endpoint is not known, or its template is missing",
        ),
    ] {
        write_unchecked(&database, &setting);
        let event = database.emit("order.created", json!({"id": 1}));
        database.wait_for_status(event, "FAILED");
        let failure = (error.to_owned(), 1, "invalid_request".to_owned());
        assert_eq!(last_error(&database, event), failure);

        let refusal = database.refusal(&format!("SELECT webhook_preview('{event}', 'chat')"));
        assert_eq!(refusal.code().code(), "55000");
        assert_eq!(
            refusal.message(),
            format!("the request cannot be made: {error}")
        );
        assert!(!format!("{refusal:?}").contains(CREDENTIAL));
    }
    assert_eq!(receiver.request_count(), 0);

    database.execute(
        r#"UPDATE webhook.endpoint SET format = 'template', template = '["{{data.id}}"]'"#,
    );
    database.execute("SELECT webhook_resume('chat')");
    database.execute("CALL webhook_replay_all('chat')");
    for request in receiver.wait_for_requests(3) {
        assert_eq!(body(&request), "[1]");
    }
}

#[test]
fn an_endpoint_with_a_bad_template_can_be_stopped() {
    let database = database();
    add_template(
        &database,
        "chat",
        &Receiver::closed_url(),
        json!({"text": "{{data.id}}"}),
    );
    write_unchecked(&database, r#"template = '"{{"'"#);
    database.execute("SELECT webhook_pause('chat'), webhook_resume('chat')");
    database.execute(
        "UPDATE webhook.policy SET failure_threshold = 1, on_trip = 'disable' WHERE name = 'fast'",
    );
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let reason: String = database.query_one_value("SELECT disabled_reason FROM webhook.endpoint");
    assert_eq!(reason, "tripped");

    let refusal = database.refusal(r#"UPDATE webhook.endpoint SET template = '"{{ "'"#);
    assert_eq!(refusal.detail(), Some(r#""{{" is not closed"#));
}

#[test]
fn a_template_that_grows_too_large_fails_at_once() {
    let (database, receiver) = (database(), Receiver::start());
    let many: Vec<&str> = vec!["{{data}}"; 40];
    add_template(&database, "chat", &receiver.url("/"), json!(many));
    let event = emit_sql(&database, "'order.created', to_jsonb(repeat('a', 500000))");
    database.wait_for_status(event, "FAILED");
    let error = "the rendered template is larger than 16 MB".to_owned();
    assert_eq!(
        last_error(&database, event),
        (error, 1, "invalid_request".to_owned())
    );

    set_template(&database, json!(["{{data}}", "{{data}}"]));
    database.execute(&format!("SELECT webhook_replay('{event}')"));
    assert_eq!(receiver.wait_for_event(event).body.len(), 1_000_008);
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

#[test]
fn a_template_is_shown_to_nobody_who_may_not_see_credentials() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(400));
    database.execute("UPDATE webhook.policy SET retry_status = '{}' WHERE name = 'fast'");
    add_template(
        &database,
        "chat",
        &receiver.url("/"),
        json!({"key": CREDENTIAL, "text": "{{data.id}}"}),
    );
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "FAILED");
    let format: String = database.query_one_value("SELECT format FROM webhook.endpoint_status");
    assert_eq!(format, "template");
    for (what, sql) in [
        (
            "endpoint_status",
            "SELECT string_agg(s::text, ' ') FROM webhook.endpoint_status s".to_owned(),
        ),
        (
            "failed",
            "SELECT string_agg(f::text, ' ') FROM webhook.failed f".to_owned(),
        ),
        (
            "why",
            format!("SELECT string_agg(w, ' ') FROM webhook_why('{event}') w"),
        ),
    ] {
        let text: String = database.query_one_value(&sql);
        assert!(text.contains("chat"), "{what}: {text}");
        assert!(!text.contains(CREDENTIAL), "{what}: {text}");
    }
}

/// The blocks of code in this language, in order.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let blocks = text.split("```").skip(1).step_by(2);
    blocks
        .filter_map(|block| block.strip_prefix(language))
        .collect()
}

#[test]
fn the_receivers_of_the_documentation_get_what_it_says() {
    let database = database();
    let (_, receivers) = include_str!("../../../docs/formats.md")
        .split_once("\n## Three receivers\n")
        .expect("the section is there");
    let (statements, bodies) = (blocks(receivers, "sql\n"), blocks(receivers, "json\n"));
    assert_eq!((statements.len(), bodies.len()), (4, 3));

    // Emitted before there is an endpoint, it goes nowhere.
    let event: Uuid = database.query_one_value(statements[0]);
    let time = wire_time(&database, event);
    for (statement, expected) in statements[1..].iter().zip(&bodies) {
        let id: i32 = database.query_one_value(statement);
        let sent: String = database.query_one_value(&format!(
            "SELECT p.body FROM webhook.endpoint e, webhook_preview('{event}', e.name) p WHERE e.id = {id}"
        ));
        let expected = expected.replace("2026-11-16T03:27:34.567753Z", &time);
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(&sent), read(&expected));
        let digits = expected.contains("19.90");
        assert_eq!(sent.contains("19.90"), digits, "{sent}");
    }
}
