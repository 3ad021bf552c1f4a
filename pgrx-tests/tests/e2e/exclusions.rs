//! Patterns with a leading `!`, which leave out events that another pattern lets in.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::random::{Random, for_each_seed};

use super::filters::{add_paused_endpoint, database};

#[test]
fn an_exclusion_leaves_out_what_another_pattern_lets_in() {
    let database = database();
    add_paused_endpoint(&database, "no drafts", &["order.*", "!order.draft"], None);
    // The order in which they are written does not matter.
    add_paused_endpoint(&database, "no orders", &["!order.*", "*"], None);
    add_paused_endpoint(
        &database,
        "no items",
        &["order.*", "order.item.added", "!order.item.*"],
        None,
    );
    add_paused_endpoint(
        &database,
        "not paid",
        &["*", "!order.paid", "!invoice.paid"],
        None,
    );
    let cases: [(&str, &[&str]); 7] = [
        ("order.created", &["no drafts", "no items", "not paid"]),
        ("order.draft", &["no items", "not paid"]),
        ("order.draft.saved", &["no drafts", "no items", "not paid"]),
        ("order.item.added", &["no drafts", "not paid"]),
        ("order.item", &["no drafts", "no items", "not paid"]),
        ("order.paid", &["no drafts", "no items"]),
        ("invoice.paid", &["no orders"]),
    ];
    for (event_type, expected) in cases {
        let event = database.emit(event_type, json!({}));
        assert_eq!(database.endpoints_of(event), expected, "{event_type}");
        let many: Uuid = database.query_one_value(&format!(
            "SELECT webhook_emit_many('{event_type}', '{{1}}')"
        ));
        assert_eq!(database.endpoints_of(many), expected, "{event_type}");
    }
}

#[test]
fn events_of_our_own_can_be_left_out_too() {
    let database = database();
    add_paused_endpoint(
        &database,
        "alerts",
        &["webhook.*", "!webhook.delivery.*"],
        None,
    );
    let wanted = |event_type: &str| -> i64 {
        database.query_one_value(&format!(
            "SELECT count(*) FROM webhook.subscribers(webhook.matching_keys(NULL, '{event_type}'))"
        ))
    };
    assert_eq!(wanted("webhook.endpoint.opened"), 1);
    assert_eq!(wanted("webhook.delivery.failed"), 0);
}

#[test]
fn exclusions_that_make_no_sense_are_refused() {
    let database = database();
    database.add_endpoint("a", "http://127.0.0.1/");
    for patterns in [
        "{!order.draft}",
        "{!a,!b.*}",
        "{a,!*}",
        "{a,!!b}",
        "{a,!}",
        "{a,! b}",
        "{a,!b*}",
    ] {
        for statement in [
            format!("SELECT webhook_set_endpoint('b', 'http://127.0.0.1/', '{patterns}')"),
            format!("UPDATE webhook.endpoint SET event_types = '{patterns}'"),
        ] {
            let refusal = database.refusal(&statement);
            assert_eq!(refusal.code().code(), "22023", "{statement}");
            assert!(refusal.hint().is_some());
        }
    }
    let long = "a".repeat(200);
    database.execute(&format!(
        "UPDATE webhook.endpoint SET event_types = '{{*,!{long}}}'"
    ));
}

/// The rule of the documentation, in other words than the index has it.
fn is_wanted(patterns: &[String], event_type: &str) -> bool {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some("") => true,
        Some(prefix) => event_type.starts_with(prefix) && event_type.len() > prefix.len(),
        None => pattern == event_type,
    };
    let (mut included, mut excluded) = (false, false);
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(pattern) => excluded |= matches(pattern),
            None => included |= matches(pattern),
        }
    }
    included && !excluded
}

fn random_type(random: &mut Random) -> String {
    let parts = 1 + random.below(3);
    let parts: Vec<&str> = (0..parts)
        .map(|_| random.one_of(&["a", "b", "ab"]))
        .collect();
    parts.join(".")
}

#[test]
fn any_patterns_choose_what_the_model_chooses() {
    const ENDPOINTS: usize = 30;
    let database = database();
    for_each_seed(4, |mut random| {
        database.execute("DELETE FROM webhook.endpoint");
        let mut endpoints: Vec<(String, Vec<String>)> = Vec::new();
        for number in 0..ENDPOINTS {
            let mut patterns: Vec<String> = (0..1 + random.below(4))
                .map(|_| {
                    let exclusion = if random.chance(40) { "!" } else { "" };
                    let star = if random.chance(50) { ".*" } else { "" };
                    format!("{exclusion}{}{star}", random_type(&mut random))
                })
                .collect();
            if random.chance(30) || patterns.iter().all(|pattern| pattern.starts_with('!')) {
                patterns.push("*".to_owned());
            }
            random.shuffle(&mut patterns);
            let name = format!("{number:02}");
            let borrowed: Vec<&str> = patterns.iter().map(String::as_str).collect();
            add_paused_endpoint(&database, &name, &borrowed, None);
            endpoints.push((name, patterns));
        }
        for _ in 0..25 {
            let event_type = random_type(&mut random);
            let expected: Vec<&String> = (endpoints.iter())
                .filter(|(_, patterns)| is_wanted(patterns, &event_type))
                .map(|(name, _)| name)
                .collect();
            let event = database.emit(&event_type, json!({}));
            let seen = database.endpoints_of(event);
            assert_eq!(
                seen.iter().collect::<Vec<_>>(),
                expected,
                "{event_type}: {endpoints:?}"
            );
        }
    });
}
