//! Templates: a JSON document of the shape that the receiver dictates, with `{{data.order.id}}` where a value of the
//! event goes.
//!
//! A template is cut at its placeholders, once, and what lies between is sent as it stands; values are cut out of the
//! event's own JSON. So nothing is read and written anew on the way: numbers keep their digits, at any depth, and
//! what a value contains is never taken for a placeholder.

use std::collections::HashMap;

use serde_json::Deserializer;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::memory::{Growing, OutOfMemory};

const MAX_TEMPLATE: usize = 64 * 1024;
/// A template may name the whole payload a thousand times.
pub(crate) const MAX_BODY: usize = 16 * 1024 * 1024;
/// Following a path takes the stack as deep as it is long.
const MAX_NAMES: usize = 100;
const MAX_SHOWN: usize = 60;

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
const MISSING: &str = "null";
const ROOTS: [&str; 5] = ["id", "type", "timestamp", "tenant", "data"];
const A_PATH: &str = "A placeholder is {{id}}, {{type}}, {{timestamp}}, {{tenant}}, {{data}} or a path below data such as \
                      {{data.order.id}} or {{data.items.0.name}}.";

/// What is wrong with a template, for the one who wrote it. It shows the placeholder and nothing else of the
/// template, which may contain credentials.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub remedy: &'static str,
}

impl Problem {
    fn new(what: impl Into<String>, remedy: &'static str) -> Problem {
        let what = what.into();
        Problem { what, remedy }
    }
}

#[derive(Default)]
pub struct Template {
    pieces: Vec<Piece>,
    wanted: Wanted,
    /// Different paths in `wanted`.
    paths: usize,
}

/// Paths have numbers.
enum Piece {
    /// As it stands. It may begin or end within a string.
    Json(String),
    /// The value itself.
    Value(usize),
    /// The value as text within a string.
    Text(usize),
}

/// All paths as a tree, so that a payload is read once for each of its levels, however many paths lead there.
#[derive(Default)]
struct Wanted {
    number: Option<usize>,
    below: HashMap<String, Wanted>,
}

enum Part<'a> {
    Literal(&'a str),
    Path(Vec<&'a str>),
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, Problem> {
        let not_json = || Problem::new("the template is not valid JSON", A_PATH);
        if text.len() > MAX_TEMPLATE {
            return Err(Problem::new(
                format!(
                    "the template has {} bytes, and {MAX_TEMPLATE} are allowed",
                    text.len()
                ),
                "Emit long texts as a part of the payload, and name them in the template.",
            ));
        }
        serde_json::from_str::<&RawValue>(text).map_err(|_| not_json())?;

        let mut template = Template::default();
        let mut rest = text;
        // Outside of strings JSON has no quotes.
        while let Some(start) = rest.find('"') {
            let mut strings = Deserializer::from_str(&rest[start..]).into_iter::<String>();
            let Some(Ok(string)) = strings.next() else {
                return Err(not_json());
            };
            let end = start + strings.byte_offset();
            let is_key = rest[end..].trim_start().starts_with(':');
            match string.split_once(OPEN) {
                None => template.add_json(&rest[..end]),
                Some((_, after)) if is_key => {
                    return Err(Problem::new(
                        format!("{} is in a key", beginning(after)),
                        "Placeholders go into values; the keys of a template are fixed.",
                    ));
                }
                Some(_) => {
                    template.add_json(&rest[..start]);
                    template.add_string(&split(&string)?);
                }
            }
            rest = &rest[end..];
        }
        template.add_json(rest);
        Ok(template)
    }

    fn add_string(&mut self, parts: &[Part<'_>]) {
        if let [Part::Path(path)] = parts {
            let number = self.number_of(path);
            return self.pieces.push(Piece::Value(number));
        }
        self.add_json("\"");
        for part in parts {
            match part {
                Part::Literal(text) => self.add_json(within_quotes(&quoted(text))),
                Part::Path(path) => {
                    let number = self.number_of(path);
                    self.pieces.push(Piece::Text(number));
                }
            }
        }
        self.add_json("\"");
    }

    fn add_json(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Json(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Json(text.to_owned())),
        }
    }

    fn number_of(&mut self, path: &[&str]) -> usize {
        let mut wanted = &mut self.wanted;
        for name in path {
            wanted = wanted.below.entry((*name).to_owned()).or_default();
        }
        let number = *wanted.number.get_or_insert(self.paths);
        self.paths = self.paths.max(number + 1);
        number
    }

    /// `event` is the JSON object that the paths lead into.
    pub(crate) fn render(&self, event: &RawValue) -> Result<Vec<u8>, Failure> {
        let mut found = vec![MISSING; self.paths];
        self.wanted.find(event, &mut found);
        let mut body = Growing::default();
        for piece in &self.pieces {
            match piece {
                Piece::Json(text) => body.push(text.as_bytes())?,
                Piece::Value(number) => body.push(found[*number].as_bytes())?,
                Piece::Text(number) => push_text(&mut body, found[*number])?,
            }
            if body.len() > MAX_BODY {
                return Err(Failure::invalid_request(format!(
                    "the rendered template is larger than {} MB",
                    MAX_BODY >> 20
                )));
            }
        }
        Ok(body.into_bytes())
    }
}

impl Wanted {
    fn find<'a>(&self, value: &'a RawValue, found: &mut [&'a str]) {
        if let Some(number) = self.number {
            found[number] = value.get();
        }
        if self.below.is_empty() {
            return;
        }
        if let Ok(members) = serde_json::from_str::<HashMap<String, &RawValue>>(value.get()) {
            for (name, wanted) in &self.below {
                if let Some(member) = members.get(name) {
                    wanted.find(member, found);
                }
            }
        } else if let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            for (name, wanted) in &self.below {
                let element = name.parse().ok().and_then(|n: usize| elements.get(n));
                if let Some(element) = element {
                    wanted.find(element, found);
                }
            }
        }
    }
}

fn split(string: &str) -> Result<Vec<Part<'_>>, Problem> {
    let mut parts = Vec::new();
    let mut rest = string;
    while let Some((literal, after)) = rest.split_once(OPEN) {
        parts.push(Part::Literal(literal));
        if let Some(after) = after.strip_prefix(OPEN) {
            parts.push(Part::Literal(OPEN));
            rest = after;
        } else if let Some((inside, after)) = after.split_once(CLOSE) {
            parts.push(Part::Path(path(inside)?));
            rest = after;
        } else {
            return Err(Problem::new(
                format!("{} is not closed", beginning(after)),
                "Close it with }}, or write {{{{ for two braces that are to be sent.",
            ));
        }
    }
    parts.push(Part::Literal(rest));
    parts.retain(|part| !matches!(part, Part::Literal("")));
    Ok(parts)
}

fn path(inside: &str) -> Result<Vec<&str>, Problem> {
    let problem = |what: &str, remedy| {
        let placeholder = match inside.contains(['{', '}']) {
            true => beginning(inside),
            false => shown(&format!("{inside}{CLOSE}")),
        };
        Err(Problem::new(format!("{placeholder} {what}"), remedy))
    };
    let names: Vec<&str> = inside.trim().split('.').collect();
    if !names.iter().all(|name| is_name(name)) {
        return problem("is not a path", A_PATH);
    }
    if !ROOTS.contains(&names[0]) {
        return problem(
            "begins with none of id, type, timestamp, tenant and data",
            "The payload is below data: {{data.order.id}}.",
        );
    }
    if names[0] != "data" && names.len() > 1 {
        return problem(
            "leads nowhere",
            "Only data has something below it: {{data.order.id}}.",
        );
    }
    if names.len() > MAX_NAMES {
        return problem("is too long", "A path has at most 100 names.");
    }
    Ok(names)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(is_allowed)
}

/// Less than the keys of JSON may have: what other languages of templates mean something by is refused, and does not just
/// find nothing.
fn is_allowed(c: char) -> bool {
    matches!(c, '_' | '-' | '$' | '@' | ':')
        || !(c.is_ascii_punctuation() || c.is_whitespace() || c.is_control())
}

/// A placeholder to the end of what might be one: what follows is none of its business.
fn beginning(after: &str) -> String {
    let end = after.find(|c| !matches!(c, '.' | '{' | '}') && !is_allowed(c));
    shown(&after[..end.unwrap_or(after.len())])
}

fn shown(placeholder: &str) -> String {
    match placeholder.char_indices().nth(MAX_SHOWN) {
        Some((cut, _)) => format!("\"{OPEN}{}..\"", &placeholder[..cut]),
        None => format!("\"{OPEN}{placeholder}\""),
    }
}

/// A value within a string: a string as it is, of anything else its JSON.
fn push_text(body: &mut Growing, value: &str) -> Result<(), OutOfMemory> {
    if value.starts_with('"') {
        return body.push(within_quotes(value).as_bytes());
    }
    let mut rest = value;
    // All that JSON can have and a string cannot.
    while let Some(at) = rest.find(['"', '\\', '\n', '\r', '\t']) {
        let (plain, special) = rest.split_at(at);
        let escaped: &[u8] = match special.as_bytes()[0] {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\t",
        };
        body.push(plain.as_bytes())?;
        body.push(escaped)?;
        rest = &special[1..];
    }
    body.push(rest.as_bytes())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn within_quotes(string: &str) -> &str {
    &string[1..string.len() - 1]
}

#[cfg(test)]
mod tests;
