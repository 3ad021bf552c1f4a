//! The format `template`: every value arrives as it is, and a wrong template is refused.

use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::verifier::verify_signature;
use webhook_e2e::{Answer, Database, Receiver};

use super::formats::{AWKWARD, add, body, database, emit_sql, wire_time};

/// In templates, where no error may repeat it.
const CREDENTIAL: &str = "c3VwZXItc2VjcmV0LXJvdXRpbmcta2V5";

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
        "Emit long texts as a part of the payload, and name them in the template.",
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

/// A superuser can write past the triggers.
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
        (error, 1, "invalid_event".to_owned())
    );
    let failures = "SELECT coalesce(sum(consecutive_failures), 0) FROM webhook.breaker";
    assert_eq!(database.query_one_value::<i64>(failures), 0);

    set_template(&database, json!(["{{data}}", "{{data}}"]));
    database.execute(&format!("SELECT webhook_replay('{event}')"));
    assert_eq!(receiver.wait_for_event(event).body.len(), 1_000_008);
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
