//! Templates: a JSON document of the shape that the receiver dictates, with `{{data.order.id}}` where a value of the
//! event goes.
//!
//! A template is cut at its placeholders, once, and the text between them is sent as it stands; values are cut out of
//! the event's own JSON. So nothing is read and written anew on the way: numbers keep their digits, at any depth, and
//! the content of a value is never taken for a placeholder.

mod paths;
mod placeholder;

use serde_json::Deserializer;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::memory::{Growing, OutOfMemory};
use placeholder::{A_PATH, first};

pub(crate) use paths::{LONGEST_ESCAPE, MISSING, Paths};
pub use placeholder::Problem;
pub(crate) use placeholder::{Part, path, split};

const MAX_TEMPLATE: usize = 64 * 1024;
/// A template may name the whole payload a thousand times.
pub(crate) const MAX_BODY: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub struct Template {
    pieces: Vec<Piece>,
    paths: Paths,
}

enum Piece {
    /// Text as it stands. It may begin or end within a string.
    Json(String),
    /// The value itself.
    Value(usize),
    /// The value as text within a string.
    Text(usize),
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
            match first(&string) {
                None => template.add_json(&rest[..end]),
                Some(placeholder) if is_key => {
                    return Err(Problem::new(
                        format!("{placeholder} is in a key"),
                        "Placeholders go into values; the keys of a template are fixed.",
                    ));
                }
                Some(_) => {
                    template.add_json(&rest[..start]);
                    template.add_string(&split(&string, path)?);
                }
            }
            rest = &rest[end..];
        }
        template.add_json(rest);
        Ok(template)
    }

    fn add_string(&mut self, parts: &[Part<'_, Vec<&str>>]) {
        if let [Part::Placeholder(path)] = parts {
            let number = self.paths.number_of(path);
            return self.pieces.push(Piece::Value(number));
        }
        self.add_json("\"");
        for part in parts {
            match part {
                Part::Literal(text) => self.add_json(within_quotes(&quoted(text))),
                Part::Placeholder(path) => {
                    let number = self.paths.number_of(path);
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

    /// `event` is the JSON object that the paths lead into.
    pub(crate) fn render(&self, event: &RawValue) -> Result<Vec<u8>, Failure> {
        let found = self.paths.find(event);
        let mut body = Growing::default();
        for piece in &self.pieces {
            match piece {
                Piece::Json(text) => body.push(text.as_bytes())?,
                Piece::Value(number) => body.push(found[*number].as_bytes())?,
                Piece::Text(number) => push_text(&mut body, found[*number])?,
            }
            if body.len() > MAX_BODY {
                return Err(Failure::invalid_event(format!(
                    "the rendered template is larger than {} MB",
                    MAX_BODY >> 20
                )));
            }
        }
        Ok(body.into_bytes())
    }
}

/// A value within a string: a string as it is, any other value as its JSON.
fn push_text(body: &mut Growing, value: &str) -> Result<(), OutOfMemory> {
    if value.starts_with('"') {
        return body.push(within_quotes(value).as_bytes());
    }
    let mut rest = value;
    // Characters that JSON can have and a string cannot.
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
