use std::sync::Arc;

use super::*;
use crate::attempt::Route;
use crate::failure::FailureKind;
use crate::loopback::{attempt_on, route_to};

const BODY: &[u8] = br#"{"test": 2432232314}"#;
const TIME: &str = "1614265330";
const SECRET: &str = "It's a Secret to Everybody";
const OLDER: &str = "whsec_older";

fn attempt(values: &[&str], payload: &str) -> Attempt {
    let headers =
        (values.iter().enumerate()).map(|(n, value)| Header::new(&format!("x-{n}"), value));
    let mut attempt = attempt_on(Arc::new(Route {
        headers: headers.collect(),
        hmac_secrets: vec![SECRET.into(), OLDER.into()],
        ..route_to("http://127.0.0.1/")
    }));
    attempt.payload = payload.into();
    attempt
}

fn render_of(value: &str, payload: &str) -> Result<Option<String>, Failure> {
    let rendered = render(&attempt(&[value], payload), TIME, BODY)?;
    let value = rendered.get("x-0").map(HeaderValue::as_bytes);
    Ok(value.map(|value| String::from_utf8_lossy(value).into_owned()))
}

#[track_caller]
fn rendered(value: &str) -> Option<String> {
    let payload = r#"{"text": "tea", "int": 7, "exact": 12345678901234567890.1230, "nothing": null, "list": [{"a": 1}],
                      "braces": "{{id}}", "escaped": "say \"hi\" \u0041\\"}"#;
    render_of(value, payload).unwrap_or_else(|failure| panic!("{value}: {failure}"))
}

#[track_caller]
fn assert_renders(value: &str, expected: &str) {
    assert_eq!(rendered(value).as_deref(), Some(expected), "{value}");
}

#[test]
fn a_value_without_placeholders_is_sent_as_it_is() {
    for value in ["", "Bearer t0ken", "}}", "{ {", "hmac_hex(body)"] {
        assert_renders(value, value);
    }
    assert_renders("{{{{id}}", "{{id}}");
}

#[test]
fn values_of_the_event_become_text() {
    assert_renders("{{type}}", "order.created");
    assert_renders("{{ data.text }}!", "tea!");
    assert_renders("{{data.int}} {{data.exact}}", "7 12345678901234567890.1230");
    assert_renders("{{data.list}}", r#"[{"a": 1}]"#);
    assert_renders("{{data.list.0.a}}", "1");
    assert_renders("{{data.braces}}", "{{id}}");
    assert_renders("{{data.escaped}}", r#"say "hi" A\"#);
    assert_renders("{{timestamp}}", "2024-05-06T07:08:09Z");
    assert_renders("at {{attempt_time}}", "at 1614265330");
}

#[test]
fn a_header_that_is_one_missing_value_is_left_out() {
    for path in ["data.none", "data.nothing", "tenant", "data.text.below"] {
        assert_eq!(rendered(&format!("{{{{{path}}}}}")), None, "{path}");
        assert_renders(&format!("is {{{{{path}}}}}"), "is null");
    }
}

/// The value is that of `openssl dgst -sha256 -hmac`.
#[test]
fn signatures_are_those_of_openssl() {
    let of_body = "e6416d07bfe8709e7df1eac7ac9684b962b42f921b04f5ee467d3cb77d53713a";
    assert_renders("sha256={{hmac_hex(body)}}", &format!("sha256={of_body}"));
    assert_renders(
        "{{hmac_base64(body)}}",
        "5kFtB7/ocJ598erHrJaEuWK0L5IbBPXuRn08t31TcTo=",
    );
    for stripe in [
        r#"t={{attempt_time}},v1={{hmac_hex(attempt_time, ".", body)}}"#,
        "t={{attempt_time}},v1={{ hmac_hex ( attempt_time,'.' ,body ) }}",
    ] {
        assert_renders(
            stripe,
            "t=1614265330,v1=535d8497d859c07ff9680d86abba5699ebc7378ff8fa0443f98861d0826821f7",
        );
    }
    assert_renders(
        r#"v0={{hmac_hex("v0:", attempt_time, ":", body)}}"#,
        "v0=e47a90b029dc0750caf60b1016ad6aa93882127b6a0b21f5f323615655d150f7",
    );
    assert_renders(
        r#"{{hmac_hex(body) join ", sha256="}}"#,
        &format!(
            "{of_body}, sha256=e2ec8ec33fff63a88d2ea1067c02207ddd53256b7862eb4d15c3c23df242c42d"
        ),
    );
}

#[test]
fn without_a_secret_nothing_is_signed() {
    let mut attempt = attempt(&["{{hmac_hex(body)}}"], "{}");
    let route = Route {
        headers: vec![Header::new("x", "{{hmac_hex(body)}}")],
        ..route_to("http://127.0.0.1/")
    };
    attempt.route = Arc::new(route);
    let failure = render(&attempt, TIME, BODY).unwrap_err();
    assert_eq!(failure.message, "the endpoint has no HMAC secret");
}

#[test]
fn a_value_has_at_most_8_kb() {
    assert_eq!(super::problem(&"{{id}} ".repeat(1_000)), None);
    let problem = super::problem(&"{{id}} ".repeat(2_000)).expect("it is refused");
    assert_eq!(
        problem.what,
        "the value has 14000 bytes, and 8192 are allowed"
    );
}

#[test]
fn a_value_that_no_header_can_have_fails_the_attempt_and_is_not_shown() {
    let large = format!("{:?}", "hidden".repeat(2000));
    let enormous = format!("{:?}", "hidden".repeat(20_000));
    for (payload, why) in [
        (r#""hidden\r\nx: y""#, "header x-0 has a control character"),
        (r#""hidden\u0000""#, "header x-0 has a control character"),
        (r#""\thidden""#, "header x-0 has a control character"),
        (r#""hidden\u007f""#, "header x-0 has a control character"),
        (r#""hidden\u0085""#, "header x-0 has a control character"),
        (
            r#""hidden é""#,
            "header x-0 has a character that is not ASCII",
        ),
        (&large, "header x-0 is larger than 8 kB"),
        (&enormous, "header x-0 is larger than 8 kB"),
    ] {
        for value in ["{{data}}", "a {{data}} b"] {
            let failure = render_of(value, payload).unwrap_err();
            assert_eq!(failure.kind, FailureKind::InvalidEvent);
            assert_eq!(failure.message, why);
        }
    }
    let payload = format!("{:?}", "hidden".repeat(1000));
    let failure = render(&attempt(&["{{data}}"; 3], &payload), TIME, BODY).unwrap_err();
    assert_eq!(failure.message, "the headers are larger than 16 kB");
}

#[test]
fn a_template_that_got_past_the_checks_fails_the_attempt_and_is_not_shown() {
    for value in ["hidden {{", "{{hidden}}", "{{hmac_md5(hidden)}}"] {
        let failure = render_of(value, "{}").unwrap_err();
        assert_eq!(failure.kind, FailureKind::InvalidRequest);
        assert_eq!(failure.message, "the template of header x-0 is not valid");
    }
}

#[test]
fn what_is_wrong_is_said_with_the_placeholder_and_the_remedy() {
    for (value, what) in [
        ("key {{", r#""{{" is not closed"#),
        (
            "key {{order.id}}",
            r#""{{order.id}}" begins with none of id, type, timestamp, tenant and data"#,
        ),
        (
            "key {{hmac_hex}}",
            r#""{{hmac_hex}}" begins with none of id, type, timestamp, tenant and data"#,
        ),
        ("key {{id.x}}", r#""{{id.x}}" leads nowhere"#),
        (
            "key {{data.x | upper}}",
            r#""{{data.x | upper}}" is not a path"#,
        ),
    ] {
        let problem = problem(value).expect(value);
        assert_eq!(problem.what, what);
        assert!(!problem.what.contains("key"));
    }
    for inside in [
        "hmac_hex()",
        "hmac_hex(bdy)",
        "hmac_hex(body",
        "hmac_hex(body,)",
        "hmac_hex(,body)",
        "hmac_hex(body body)",
        "hmac_hex(body) x",
        "hmac_hex(body) join",
        "hmac_hex(body) join body",
        "hmac_hex(\"v0:, body)",
        "hmac_hex(\"v0:', body)",
        "hmac_hex(id)",
        "hmac_hex(data.x)",
        "hmac_sha1(body)",
        "upper(body)",
        "hmac_hexbody)(",
    ] {
        let value = format!("key {{{{{inside}}}}}");
        let problem = problem(&value).unwrap_or_else(|| panic!("{value} was not refused"));
        assert_eq!(
            problem.what,
            format!("\"{{{{{inside}}}}}\" is not a signature")
        );
    }
    assert_eq!(problem("sha256={{hmac_hex(body)}} {{{{x}}"), None);
}

/// Any value and any payload give a header, none, or a reason, and no panic.
#[test]
fn no_value_and_no_payload_panics() {
    const SCRAPS: [&str; 24] = [
        "{{",
        "}}",
        "{",
        "(",
        ")",
        ",",
        "\"",
        "'",
        "\\",
        "\n",
        "\u{0}",
        "é",
        " ",
        ".",
        "id",
        "data",
        "body",
        "attempt_time",
        "hmac_hex",
        "hmac_base64",
        "join",
        "hmac_hex(body)",
        "{{data.a}}",
        "{{hmac_hex(body)}}",
    ];
    let mut random = fastrand::Rng::with_seed(1);
    let mut scraps = || -> String {
        (0..random.usize(0..8))
            .map(|_| SCRAPS[random.usize(..SCRAPS.len())])
            .collect()
    };
    let mut sent = 0;
    for _ in 0..20_000 {
        let (value, payload) = (scraps(), serde_json::json!({"a": scraps()}).to_string());
        let result = render_of(&value, &payload);
        if problem(&value).is_some() {
            assert!(result.is_err(), "{value}");
        }
        // The table refuses other literals.
        if let Ok(Some(text)) = result
            && value.is_ascii()
        {
            assert!(text.bytes().all(|c| (b' '..=b'~').contains(&c)), "{text}");
            sent += 1;
        }
    }
    assert!(sent > 100, "{sent}");
}
