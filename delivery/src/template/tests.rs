use super::placeholder::{MAX_NAMES, MAX_SHOWN};
use super::*;
use crate::stopwatch::Stopwatch;

mod fuzz;

const EVENT: &str = r#"{"id": "e1", "type": "order.created", "timestamp": "2024-05-06T07:08:09Z", "tenant": null, "data": {
    "text": "tea", "int": 7, "exact": 12345678901234567890.1230, "yes": true, "nothing": null, "empty": "",
    "list": ["zero", {"name": "one"}, [2]], "order": {"id": 5, "lines": [{"sku": "a-1"}]},
    "quote": "say \"hi\"\\", "lines": "a\nb\tc", "unicode": "Zoë 🫖 \u0001", "braces": "{{data.text}}", "0": "a key",
    "a-b": 1, "@type": 2, "$ref": 3, "x:y": 4, "größe": 5, "नाम": 6}}"#;

#[track_caller]
fn render_with(template: &str, event: &str) -> String {
    let template = Template::parse(template).unwrap_or_else(|problem| panic!("{problem:?}"));
    let body = template.render(serde_json::from_str(event).unwrap());
    String::from_utf8(body.expect("it is small")).expect("it is text")
}

#[track_caller]
fn render(template: &str) -> String {
    let body = render_with(template, EVENT);
    let read = serde_json::from_str::<serde_json::Value>(&body);
    read.unwrap_or_else(|error| panic!("{error} in {body}"));
    body
}

/// The JSON that a string value of a template becomes.
#[track_caller]
fn assert_renders(string: &str, expected: &str) {
    assert_eq!(
        render(&format!("{{\"a\": \"{string}\"}}")),
        format!("{{\"a\": {expected}}}")
    );
}

#[track_caller]
fn problem(template: &str) -> Problem {
    match Template::parse(template) {
        Ok(_) => panic!("was not refused: {template}"),
        Err(problem) => problem,
    }
}

#[test]
fn a_string_that_is_one_placeholder_becomes_the_value_with_its_type() {
    assert_renders("{{data.text}}", r#""tea""#);
    assert_renders("{{data.int}}", "7");
    assert_renders("{{data.yes}}", "true");
    assert_renders("{{data.nothing}}", "null");
    assert_renders("{{data.empty}}", r#""""#);
    assert_renders("{{data.order.lines}}", r#"[{"sku": "a-1"}]"#);
    assert_renders("{{data.order}}", r#"{"id": 5, "lines": [{"sku": "a-1"}]}"#);
    assert_renders("{{id}}", r#""e1""#);
    assert_renders("{{type}}", r#""order.created""#);
    assert_renders("{{timestamp}}", r#""2024-05-06T07:08:09Z""#);
    assert_renders("{{tenant}}", "null");
}

#[test]
fn within_a_longer_string_a_value_becomes_text() {
    assert_renders("{{data.text}}!", r#""tea!""#);
    assert_renders("a {{data.text}}", r#""a tea""#);
    assert_renders(
        "{{type}}: {{data.int}} {{data.text}}s",
        r#""order.created: 7 teas""#,
    );
    assert_renders("{{data.int}}{{data.int}}", r#""77""#);
    assert_renders(" {{data.int}}", r#"" 7""#);
    assert_renders("is {{data.yes}}", r#""is true""#);
    assert_renders(
        "got {{data.order}}",
        r#""got {\"id\": 5, \"lines\": [{\"sku\": \"a-1\"}]}""#,
    );
}

#[test]
fn what_is_missing_or_null_is_null() {
    for path in [
        "data.none",
        "data.none.of.this",
        "data.text.below",
        "data.int.0",
        "data.list.3",
        "data.list.-1",
        "data.list.name",
        "data.list.99999999999999999999999",
        "data.nothing",
        "tenant",
    ] {
        assert_renders(&format!("{{{{{path}}}}}"), "null");
        assert_renders(&format!("[{{{{{path}}}}}]"), r#""[null]""#);
    }
}

#[test]
fn a_number_in_a_path_is_an_index_of_an_array_and_a_key_of_an_object() {
    assert_renders("{{data.list.0}}", r#""zero""#);
    assert_renders("{{data.list.1.name}}", r#""one""#);
    assert_renders("{{data.list.2.0}}", "2");
    assert_renders("{{data.order.lines.0.sku}}", r#""a-1""#);
    assert_renders("{{data.0}}", r#""a key""#);
}

#[test]
fn names_may_be_in_any_language() {
    for (name, value) in [
        ("a-b", 1),
        ("@type", 2),
        ("$ref", 3),
        ("x:y", 4),
        ("größe", 5),
        ("नाम", 6),
    ] {
        assert_renders(&format!("{{{{data.{name}}}}}"), &value.to_string());
    }
}

#[test]
fn white_space_around_a_path_does_not_count() {
    assert_renders("{{ data.int }}", "7");
    assert_renders("{{data.int }}{{\\n data.int}}", r#""77""#);
}

#[test]
fn numbers_keep_their_digits() {
    assert_renders("{{data.exact}}", "12345678901234567890.1230");
    assert_renders("{{data.exact}} EUR", r#""12345678901234567890.1230 EUR""#);
    let own = r#"{"a": 98765432109876543210.9870, "b": "{{data.int}}", "c": 1e400}"#;
    assert_eq!(
        render_with(own, EVENT),
        own.replace("\"{{data.int}}\"", "7")
    );
}

#[test]
fn quotes_line_ends_and_unicode_arrive_as_they_are() {
    let sent: serde_json::Value =
        serde_json::from_str(&render(r#"["{{data.quote}}", "\"{{data.quote}}\"", "\n{{data.lines}}\u00e9", "🫖{{data.unicode}}"]"#))
            .unwrap();
    assert_eq!(
        sent,
        serde_json::json!([
            "say \"hi\"\\",
            "\"say \"hi\"\\\"",
            "\na\nb\tcé",
            "🫖Zoë 🫖 \u{1}"
        ])
    );
}

#[test]
fn what_a_value_contains_is_not_expanded() {
    assert_renders("{{data.braces}}", r#""{{data.text}}""#);
    assert_renders("{{data.braces}}{{data.text}}", r#""{{data.text}}tea""#);
    let split = r#"{"data": {"open": "{{", "rest": "id}}"}}"#;
    assert_eq!(
        render_with(r#""{{data.open}}{{data.rest}}""#, split),
        r#""{{id}}""#
    );
}

#[test]
fn placeholders_are_found_at_any_depth_and_however_they_are_spelt() {
    assert_eq!(
        render(r#"[{"a": [{"b": "{{data.int}}"}]}, "{{data.int}}"]"#),
        r#"[{"a": [{"b": 7}]}, 7]"#
    );
    assert_eq!(render(r#""{{id}}""#), r#""e1""#);
    assert_renders(r"\u007b{data.int}\u007d", "7");
}

#[test]
fn a_single_brace_and_closing_braces_are_text() {
    for text in ["{", "}", "{}", "}}", "{ {", "} }", "{data.int}", "a}}b"] {
        assert_renders(text, &format!("\"{text}\""));
    }
    assert_renders("{{data.int}}}", r#""7}""#);
    assert_renders("{x} {{data.int}}", r#""{x} 7""#);
}

#[test]
fn four_opening_braces_are_two_that_are_sent() {
    assert_renders("{{{{", r#""{{""#);
    assert_renders("{{{{data.int}}", r#""{{data.int}}""#);
    assert_renders("{{{{{{data.int}}", r#""{{7""#);
    assert_renders("{{{{{{{{", r#""{{{{""#);
    assert_renders(
        "{{{{DATE({{timestamp}}, SHORT)}}",
        r#""{{DATE(2024-05-06T07:08:09Z, SHORT)}}""#,
    );
}

#[test]
fn a_template_without_placeholders_is_sent_as_it_stands() {
    for template in [
        "{}",
        "null",
        "17.50",
        r#""text""#,
        " [1, 2.0,\n3e5 , {\"b\" :\t\"\\u0041\", \"a\": {}}, \"\\\\\\\"\"] ",
    ] {
        assert_eq!(render(template), template);
    }
}

#[test]
fn a_malformed_placeholder_is_refused_and_shown() {
    for (string, what) in [
        ("{{", r#""{{" is not closed"#),
        ("{{data.x", r#""{{data.x" is not closed"#),
        ("{{data.x}", r#""{{data.x}" is not closed"#),
        ("{{id}} {{data.x of it", r#""{{data.x" is not closed"#),
        ("{{}}", r#""{{}}" is not a path"#),
        ("{{ }}", r#""{{ }}" is not a path"#),
        ("{{.}}", r#""{{.}}" is not a path"#),
        ("{{data.}}", r#""{{data.}}" is not a path"#),
        ("{{.data}}", r#""{{.data}}" is not a path"#),
        ("{{data..x}}", r#""{{data..x}}" is not a path"#),
        ("{{data.a b}}", r#""{{data.a b}}" is not a path"#),
        ("{{data. a}}", r#""{{data. a}}" is not a path"#),
        ("{{data[0]}}", r#""{{data[0]}}" is not a path"#),
        (
            "{{data.a | upper}}",
            r#""{{data.a | upper}}" is not a path"#,
        ),
        ("{{#data}}", r#""{{#data}}" is not a path"#),
        ("{{&data}}", r#""{{&data}}" is not a path"#),
        ("{{{data}}}", r#""{{{data" is not a path"#),
        ("{{data.{{id}}}}", r#""{{data.{{id" is not a path"#),
        ("{{{{ {{", r#""{{" is not closed"#),
        (
            "{{order.id}}",
            r#""{{order.id}}" begins with none of id, type, timestamp, tenant and data"#,
        ),
        (
            "{{ID}}",
            r#""{{ID}}" begins with none of id, type, timestamp, tenant and data"#,
        ),
        ("{{id.x}}", r#""{{id.x}}" leads nowhere"#),
        ("{{tenant.0}}", r#""{{tenant.0}}" leads nowhere"#),
    ] {
        for template in [
            format!("\"{string}\""),
            format!("[{{\"a\": \"b {string}\"}}]"),
        ] {
            let problem = problem(&template);
            assert_eq!(problem.what, what);
            assert!(problem.remedy.ends_with('.'), "{problem:?}");
        }
    }
}

#[test]
fn a_placeholder_in_a_key_is_refused() {
    for template in [
        r#"{"{{data.x}}": 1}"#,
        r#"[{"a": 1, "b {{data.x}} c"  : "{{id}}"}]"#,
    ] {
        assert_eq!(problem(template).what, r#""{{data.x}}" is in a key"#);
    }
    for template in [r#"{"{{": 1}"#, r#"{"a{{ b": 1}"#] {
        assert_eq!(problem(template).what, r#""{{" is in a key"#);
    }
}

#[test]
fn a_problem_shows_nothing_of_the_template_but_the_placeholder() {
    for template in [
        r#"{"key": "s3cret", "a": "s3cret {{x}} s3cret"}"#,
        r#"{"key": "s3cret", "a": "{{x s3cret"}"#,
        r#"{"key": "s3cret", "a": "{{x/s3cret"}"#,
        r#"{"s3cret {{id}}": "s3cret"}"#,
        r#"{"{{id s3cret": "s3cret"}"#,
        r#"{"key": "{{id} s3cret {{type}}"}"#,
        r#"{"key": "s3cret""#,
    ] {
        let problem = problem(template);
        assert!(!format!("{problem:?}").contains("s3cret"), "{problem:?}");
    }
    let long = problem(&format!("\"{{{{{}}}}}\"", "é".repeat(1000)));
    assert_eq!(long.what.chars().filter(|c| *c == 'é').count(), MAX_SHOWN);
}

#[test]
fn what_is_not_json_is_refused() {
    for template in [
        "",
        " ",
        "{",
        "{{id}}",
        r#"{"a": {{id}}}"#,
        "[1,]",
        "\"a",
        "1 2",
        "'a'",
        "\"\\ud800\"",
    ] {
        assert_eq!(problem(template).what, "the template is not valid JSON");
    }
}

#[test]
fn a_template_has_at_most_64_kb() {
    let of_size = |size: usize| format!("\"{}\"", "a".repeat(size - 2));
    assert!(Template::parse(&of_size(MAX_TEMPLATE)).is_ok());
    assert_eq!(
        problem(&of_size(MAX_TEMPLATE + 1)).what,
        "the template has 65537 bytes, and 65536 are allowed"
    );
}

#[test]
fn keys_are_found_however_they_are_escaped() {
    let event = format!(
        r#"{{"data": {{"{}": 0, "\u0061b": {{"\u00e9\"": 1, "c": [[], {{"d\/": 2, "e": 3}}]}}}}}}"#,
        "\\n".repeat(100_000)
    );
    let template =
        r#"["{{data.ab.c.1.e}}", "{{data.ab.é}}", "{{data.ab.c.01.e}}", "{{data.ab.c.2}}"]"#;
    assert_eq!(render_with(template, &event), "[3, null, 3, null]");
    let event = r#"{"data": {"\u00e9": 1}}"#;
    assert_eq!(render_with(r#""{{data.é}}""#, event), "1");
}

#[test]
fn a_path_has_at_most_100_names() {
    let of_names = |names: usize| format!("\"{{{{data{}}}}}\"", ".a".repeat(names - 1));
    let event = format!(
        "{{\"data\": {}1{}}}",
        "{\"a\": ".repeat(MAX_NAMES - 1),
        "}".repeat(MAX_NAMES - 1)
    );
    assert_eq!(render_with(&of_names(MAX_NAMES), &event), "1");
    assert!(
        problem(&of_names(MAX_NAMES + 1))
            .what
            .ends_with("is too long")
    );
}

#[test]
fn depth_costs_no_stack() {
    let nest = |inner: &str| format!("{}{inner}{}", "[".repeat(20_000), "]".repeat(20_000));
    let event = format!("{{\"data\": {{\"deep\": {}, \"x\": 1}}}}", nest("2"));
    let template = nest(r#""{{data.x}}", "{{data.deep}}""#);
    let expected = nest(&format!("1, {}", nest("2")));
    assert_eq!(render_with(&template, &event), expected);
    assert!(render_with(r#""{{data.deep}}!""#, &event).ends_with("]!\""));
}

#[test]
fn a_template_of_many_paths_and_a_large_payload_take_little_time() {
    let members: Vec<String> = (0..20_000)
        .map(|n| format!("\"k{n}\": \"value {n}\""))
        .collect();
    let event = format!("{{\"data\": {{\"a\": {{{}}}}}}}", members.join(", "));
    let paths: Vec<String> = (0..2_500)
        .map(|n| format!("\"{{{{data.a.k{n}}}}}\""))
        .collect();
    let stopwatch = Stopwatch::start();
    let body = render_with(&format!("[{}]", paths.join(",")), &event);
    let elapsed = stopwatch.elapsed();
    assert!(body.ends_with("\"value 2499\"]"));
    // It would read 2 GB if it looked for each path alone.
    assert!(elapsed < std::time::Duration::from_secs(3), "{elapsed:?}");
}
