//! Templates and payloads that nobody thought of. The bodies are compared with those of a model that works on parsed
//! documents, while templates are rendered as text.

use fastrand::Rng;
use serde_json::{Map, Number, Value};

use super::*;

const CASES: u64 = 8_000;
const DEPTH: usize = 4;
const NAMES: [&str; 8] = ["a", "b", "0", "1", "größe", "@id", "a-b", "data"];
const SCRAPS: [&str; 22] = [
    "{{",
    "}}",
    "{",
    "}",
    "\"",
    "\\",
    "\n",
    "\u{1}",
    "\u{7f}",
    "é",
    "🫖",
    "\u{2028}",
    " ",
    ".",
    ":",
    "null",
    "id",
    "data",
    "{{id}}",
    "{{data.a}}",
    "\\u0041",
    "/",
];

fn scraps(random: &mut Rng) -> String {
    (0..random.usize(0..4))
        .map(|_| random.choice(SCRAPS).unwrap())
        .collect()
}

fn document(random: &mut Rng, depth: usize, string: &impl Fn(&mut Rng) -> String) -> Value {
    let kinds = match depth {
        DEPTH => 5..9,
        0 => 0..5,
        _ => 0..9,
    };
    match random.u8(kinds) {
        0 => Value::Null,
        1 => random.bool().into(),
        2 => random.i64(-1000..1000).into(),
        3 => Number::from_f64(f64::from(random.i32(..)) / 1000.0)
            .unwrap()
            .into(),
        4 => string(random).into(),
        5 | 6 => (0..random.usize(0..5))
            .map(|_| document(random, depth - 1, string))
            .collect(),
        _ => (0..random.usize(0..5))
            .map(|_| {
                let name = *random.choice(NAMES.iter()).unwrap();
                (name.to_owned(), document(random, depth - 1, string))
            })
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn placeholder(random: &mut Rng) -> String {
    let mut path = vec!["data"];
    match random.u8(0..5) {
        0 => {
            path[0] = random
                .choice(["id", "type", "timestamp", "tenant"])
                .unwrap()
        }
        _ => path.extend((0..random.usize(0..4)).map(|_| *random.choice(NAMES.iter()).unwrap())),
    }
    format!("{{{{{}}}}}", path.join("."))
}

/// Placeholders, and text whose opening braces are pairs that are to be sent.
fn string_of_template(random: &mut Rng) -> String {
    if random.bool() {
        return placeholder(random);
    }
    let mut string = String::new();
    for _ in 0..random.usize(0..4) {
        string += &match random.bool() {
            true => placeholder(random),
            false => scraps(random).replace("{{", "{").replace('{', "{{{{"),
        };
    }
    string
}

fn model_value<'a>(event: &'a Value, path: &str) -> &'a Value {
    let step = |value: &'a Value, name: &str| match value {
        Value::Array(elements) => elements.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    };
    path.split('.')
        .try_fold(event, step)
        .unwrap_or(&Value::Null)
}

fn model(template: &Value, event: &Value) -> Value {
    match template {
        Value::String(string) => {
            let string = string.replace("{{{{", "\u{e000}");
            let mut parts = string.split("{{");
            let mut text = parts.next().unwrap().to_owned();
            for part in parts {
                let (path, literal) = part.split_once("}}").unwrap();
                let value = model_value(event, path);
                if string.len() == path.len() + 4 {
                    return value.clone();
                }
                text += value.as_str().unwrap_or(&value.to_string());
                text += literal;
            }
            text.replace('\u{e000}', "{{").into()
        }
        Value::Array(elements) => elements
            .iter()
            .map(|element| model(element, event))
            .collect(),
        Value::Object(members) => {
            let rendered = members
                .iter()
                .map(|(name, value)| (name.clone(), model(value, event)));
            rendered.collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

fn event(random: &mut Rng) -> Value {
    serde_json::json!({
        "id": "01a1e265", "type": "order.created", "timestamp": "2024-05-06T07:08:09Z",
        "tenant": random.bool().then(|| scraps(random)), "data": document(random, DEPTH, &scraps),
    })
}

#[test]
fn any_payload_in_any_template_gives_what_the_model_gives() {
    let (mut values, mut texts) = (0, 0);
    for seed in 0..CASES {
        let random = &mut Rng::with_seed(seed);
        let template = document(random, DEPTH, &string_of_template);
        let event = event(random);
        let body = render_with(&template.to_string(), &event.to_string());
        let sent: Value = serde_json::from_str(&body)
            .unwrap_or_else(|error| panic!("seed {seed}: {error} in {body}"));
        assert_eq!(sent, model(&template, &event), "seed {seed}: {template}");

        let parsed = Template::parse(&template.to_string()).unwrap();
        values += parsed
            .pieces
            .iter()
            .filter(|piece| matches!(piece, Piece::Value(_)))
            .count();
        texts += parsed
            .pieces
            .iter()
            .filter(|piece| matches!(piece, Piece::Text(_)))
            .count();
    }
    // It would not test much if there were hardly any.
    assert!(
        values > 1000 && texts > 1000,
        "{values} values, {texts} texts"
    );
}

#[test]
fn any_template_without_placeholders_comes_out_as_it_is() {
    for seed in 0..CASES {
        let random = &mut Rng::with_seed(seed);
        let without = |random: &mut Rng| scraps(random).replace('{', "{ ");
        let mut template = document(random, DEPTH, &without).to_string();
        if random.bool() {
            template = template.replace(',', " ,\n").replace(':', ":  ");
        }
        assert_eq!(render_with(&template, EVENT), template, "seed {seed}");
    }
}

#[test]
fn any_text_is_a_template_that_gives_json_or_is_refused() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..CASES {
        let random = &mut Rng::with_seed(seed);
        let mut template = document(random, DEPTH, &string_of_template).to_string();
        for _ in 0..random.usize(0..3) {
            let places: Vec<usize> = template.char_indices().map(|(at, _)| at).collect();
            if let Some(at) = random.choice(places) {
                template.insert_str(at, random.choice(SCRAPS).unwrap());
            }
        }
        match Template::parse(&template) {
            Ok(parsed) => {
                accepted += 1;
                let body = parsed.render(serde_json::from_str(EVENT).unwrap()).unwrap();
                let read = serde_json::from_slice::<Value>(&body);
                read.unwrap_or_else(|error| panic!("seed {seed}: {error} in {body:?}"));
            }
            Err(problem) => {
                refused += 1;
                assert!(!problem.what.is_empty(), "seed {seed}");
            }
        }
    }
    assert!(
        accepted > 1000 && refused > 1000,
        "{accepted} accepted, {refused} refused"
    );
}
