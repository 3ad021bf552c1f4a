use std::sync::Arc;

use super::*;
use crate::attempt::Route;
use crate::failure::FailureKind;
use crate::loopback::{attempt_on, route_to};

fn attempt_in(format: Format) -> Attempt {
    let mut attempt = attempt_on(Arc::new(Route {
        format,
        ..route_to("http://127.0.0.1")
    }));
    attempt.event_type = "order.\"created\"".into();
    attempt.payload = r#"{"amount": 12345678901234567890.10, "b":1,  "b":2}"#.into();
    attempt
}

fn text(attempt: &Attempt) -> String {
    String::from_utf8(render(attempt).unwrap()).unwrap()
}

fn cloudevents() -> Format {
    Format::named("cloudevents", None, Some("/webhook/shop".into()))
}

fn template(text: &str) -> Format {
    Format::named("template", Some(text.into()), None)
}

#[test]
fn standard_body_carries_the_payload_verbatim() {
    let attempt = attempt_in(Format::named("standard", None, None));
    let id = attempt.key.event_id;
    assert_eq!(
        text(&attempt),
        format!(
            r#"{{"id":"{id}","type":"order.\"created\"","timestamp":"2024-05-06T07:08:09Z","data":{{"amount": 12345678901234567890.10, "b":1,  "b":2}}}}"#
        )
    );
}

#[test]
fn raw_body_is_the_payload_verbatim() {
    let attempt = attempt_in(Format::named("raw", None, None));
    assert_eq!(text(&attempt), attempt.payload);
}

#[test]
fn cloudevents_body_has_the_required_attributes_and_the_payload_verbatim() {
    let attempt = attempt_in(cloudevents());
    let id = attempt.key.event_id;
    assert_eq!(
        text(&attempt),
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/webhook/shop","type":"order.\"created\"","time":"2024-05-06T07:08:09Z","datacontenttype":"application/json","data":{{"amount": 12345678901234567890.10, "b":1,  "b":2}}}}"#
        )
    );
}

#[test]
fn cloudevents_body_has_a_tenant_where_the_event_has_one() {
    let mut attempt = attempt_in(cloudevents());
    attempt.tenant = Some("acme".into());
    assert!(text(&attempt).contains(r#""tenant":"acme","data":"#));
}

#[test]
fn a_template_may_name_all_that_the_event_has() {
    let all =
        r#"["{{id}}", "{{type}}", "{{timestamp}}", "{{tenant}}", "{{data.amount}}", "{{data}}"]"#;
    let mut attempt = attempt_in(template(all));
    let id = attempt.key.event_id;
    for (tenant, sent) in [(Some("acme"), r#""acme""#), (None, "null")] {
        attempt.tenant = tenant.map(str::to_owned);
        let payload = &attempt.payload;
        assert_eq!(
            text(&attempt),
            format!(
                r#"["{id}", "order.\"created\"", "2024-05-06T07:08:09Z", {sent}, 12345678901234567890.10, {payload}]"#
            )
        );
    }
}

#[test]
fn every_attempt_of_an_event_has_the_same_bytes() {
    for format in [
        || Format::Standard,
        || Format::Raw,
        cloudevents,
        || template(r#"{"text": "{{type}} of {{data.amount}}"}"#),
    ] {
        let first = attempt_in(format());
        let mut later = attempt_in(format());
        later.key.event_id = first.key.event_id;
        later.key.claim_seq += 1;
        later.earlier_attempts = 3;
        assert_eq!(text(&first), text(&later));
    }
}

#[test]
fn only_cloudevents_has_a_content_type_of_its_own() {
    let own = "application/cloudevents+json; charset=UTF-8";
    assert_eq!(cloudevents().content_type(), own);
    for format in [Format::Standard, Format::Raw, template("{}")] {
        assert_eq!(format.content_type(), "application/json");
    }
}

#[track_caller]
fn refusal(attempt: &Attempt) -> String {
    let failure = render(attempt).unwrap_err();
    assert_eq!(failure.kind, FailureKind::InvalidRequest);
    assert!(!failure.message.contains("hidden"), "{failure}");
    failure.message
}

#[test]
fn payload_that_is_not_json_is_an_invalid_request_in_every_format() {
    for format in [
        Format::Standard,
        Format::Raw,
        cloudevents(),
        template("\"{{id}}\""),
    ] {
        let mut attempt = attempt_in(format);
        attempt.payload = r#"{"hidden": }"#.into();
        assert_eq!(refusal(&attempt), "the payload is not valid JSON");
    }
}

#[test]
fn a_broken_template_is_an_invalid_request_that_does_not_show_it() {
    for broken in ["{hidden", r#"{"key": "hidden", "a": "{{hidden}}"}"#] {
        let message = refusal(&attempt_in(template(broken)));
        assert_eq!(message, "the template of the endpoint is not valid");
    }
}

#[test]
fn a_template_that_grows_beyond_all_bounds_is_an_invalid_event() {
    let mut attempt = attempt_in(template(&format!("[{}1]", r#""{{data}}", "#.repeat(20))));
    attempt.payload = format!("\"{}\"", "a".repeat(1 << 20));
    let failure = render(&attempt).unwrap_err();
    assert_eq!(failure.kind, FailureKind::InvalidEvent);
    assert_eq!(
        failure.message,
        "the rendered template is larger than 16 MB"
    );
}

#[test]
fn a_format_that_nobody_knows_is_an_invalid_request() {
    for format in [
        Format::named("hidden", None, None),
        Format::named("template", None, None),
        Format::named("cloudevents", None, None),
        Format::named("Standard", None, None),
    ] {
        assert!(refusal(&attempt_in(format)).contains("format"));
    }
}
