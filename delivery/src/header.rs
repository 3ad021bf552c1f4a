//! The endpoint's own headers. A value may be a template, so that receivers of other senders need not change: with the
//! placeholders of bodies, the time of the attempt, and signatures.
//!
//! A header is read once for each route, and a value without placeholders costs a request nothing.

mod signature;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use serde_json::value::RawValue;

use crate::attempt::Attempt;
use crate::body;
use crate::failure::Failure;
use crate::template::{LONGEST_ESCAPE, MISSING, Part, Paths, Problem, path, split};
use signature::Signature;

/// Headers that describe the message itself, or would change how the client behaves.
const RESERVED: [HeaderName; 5] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, EXPECT];
/// The limit of webhook.header_size_problem() for values as they are registered.
const MAX_VALUE: usize = 8 * 1024;
const MAX_HEADERS: usize = 16 * 1024;

const A_PLACEHOLDER: &str = "A placeholder of a header is {{id}}, {{type}}, {{timestamp}}, {{tenant}}, {{data}}, a path below data \
                             such as {{data.order.id}}, {{attempt_time}}, {{hmac_hex(body)}} or {{hmac_base64(body)}}.";

/// Not `Debug`: values are credentials.
pub struct Header(Result<(HeaderName, Value), Failure>);

enum Value {
    Literal(HeaderValue),
    Template(Template),
}

struct Template {
    pieces: Vec<Piece>,
    paths: Paths,
}

enum Piece {
    Literal(String),
    /// The value of this path, as text.
    Value(usize),
    AttemptTime,
    Signature(Signature),
}

enum Placeholder<'a> {
    Path(Vec<&'a str>),
    AttemptTime,
    Signature(Signature),
}

impl Header {
    /// A header that is not valid fails every attempt.
    pub fn new(name: &str, value: &str) -> Header {
        let invalid = || Failure::invalid_request("a header of the endpoint is not valid HTTP");
        let read = || {
            let name = HeaderName::try_from(name).map_err(|_| invalid())?;
            if RESERVED.contains(&name) {
                return Err(Failure::invalid_request(format!(
                    "an endpoint cannot set the header {name}"
                )));
            }
            // The problem shows a part of the value, and is for the administrator who registers it.
            let template = Template::parse(value).map_err(|_| {
                let what = format!("the template of header {name} is not valid");
                Failure::invalid_request(what)
            })?;
            let value = match template.literal() {
                Some(text) => Value::Literal(HeaderValue::try_from(text).map_err(|_| invalid())?),
                None => Value::Template(template),
            };
            Ok((name, value))
        };
        Header(read())
    }

    fn names_the_event(&self) -> bool {
        matches!(&self.0, Ok((_, Value::Template(template))) if !template.paths.is_empty())
    }
}

/// Reasons why the value of a header is refused.
pub fn problem(value: &str) -> Option<Problem> {
    Template::parse(value).err()
}

/// All headers, for this attempt at `attempt_time` with this body.
pub(crate) fn render(
    attempt: &Attempt,
    attempt_time: &str,
    body: &[u8],
) -> Result<HeaderMap, Failure> {
    let headers = &attempt.route.headers;
    let event = match headers.iter().any(Header::names_the_event) {
        true => Some(body::named(attempt)?),
        false => None,
    };
    let moment = Moment {
        event: event.as_deref().map(body::read).transpose()?,
        attempt_time,
        body,
        hmac_secrets: &attempt.route.hmac_secrets,
    };
    let mut rendered = HeaderMap::new();
    let mut size = 0;
    for header in headers {
        let (name, value) = header.0.as_ref().map_err(Failure::clone)?;
        let value = match value {
            Value::Literal(value) => value.clone(),
            Value::Template(template) => match template.render(name, &moment)? {
                Some(value) => value,
                None => continue,
            },
        };
        size += name.as_str().len() + value.len();
        if size > MAX_HEADERS {
            let message = format!("the headers are larger than {} kB", MAX_HEADERS >> 10);
            return Err(Failure::invalid_event(message));
        }
        rendered.append(name, value);
    }
    Ok(rendered)
}

/// The values that a template is rendered with.
struct Moment<'a> {
    event: Option<&'a RawValue>,
    attempt_time: &'a str,
    body: &'a [u8],
    hmac_secrets: &'a [String],
}

impl Template {
    fn parse(text: &str) -> Result<Template, Problem> {
        if text.len() > MAX_VALUE {
            return Err(Problem::new(
                format!(
                    "the value has {} bytes, and {MAX_VALUE} are allowed",
                    text.len()
                ),
                "Send long texts in the body.",
            ));
        }
        let mut paths = Paths::default();
        let pieces = split(text, placeholder)?
            .into_iter()
            .map(|part| match part {
                Part::Literal(text) => Piece::Literal(text.to_owned()),
                Part::Placeholder(Placeholder::Path(path)) => Piece::Value(paths.number_of(&path)),
                Part::Placeholder(Placeholder::AttemptTime) => Piece::AttemptTime,
                Part::Placeholder(Placeholder::Signature(signature)) => Piece::Signature(signature),
            });
        Ok(Template {
            pieces: pieces.collect(),
            paths,
        })
    }

    /// The whole text, if it has no placeholder.
    fn literal(&self) -> Option<String> {
        let literals = self.pieces.iter().map(|piece| match piece {
            Piece::Literal(text) => Some(text.as_str()),
            _ => None,
        });
        literals.collect()
    }

    /// A header that is one placeholder is left out where its value is null or missing: HTTP has no other null.
    fn render(
        &self,
        name: &HeaderName,
        moment: &Moment<'_>,
    ) -> Result<Option<HeaderValue>, Failure> {
        let fails = |why: &str| Failure::invalid_event(format!("header {name} {why}"));
        let too_large = || fails(&format!("is larger than {} kB", MAX_VALUE >> 10));
        let found = match moment.event {
            Some(event) => self.paths.find(event),
            None => Vec::new(),
        };
        if let [Piece::Value(number)] = self.pieces[..]
            && found[number] == MISSING
        {
            return Ok(None);
        }
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text += literal,
                Piece::AttemptTime => text += moment.attempt_time,
                Piece::Value(number) => text += &as_text(found[*number]).ok_or_else(too_large)?,
                Piece::Signature(signature) => text += &signature.sign(moment)?,
            }
            if text.len() > MAX_VALUE {
                return Err(too_large());
            }
        }
        if text.contains(char::is_control) {
            return Err(fails("has a control character"));
        }
        if !text.is_ascii() {
            return Err(fails("has a character that is not ASCII"));
        }
        let value = HeaderValue::try_from(text).map_err(|_| fails("is not valid HTTP"))?;
        Ok(Some(value))
    }
}

fn placeholder(inside: &str) -> Result<Placeholder<'_>, Problem> {
    if inside.trim() == "attempt_time" {
        return Ok(Placeholder::AttemptTime);
    }
    if inside.contains('(') {
        return Signature::parse(inside).map(Placeholder::Signature);
    }
    match path(inside) {
        Ok(path) => Ok(Placeholder::Path(path)),
        Err(problem) => Err(Problem {
            remedy: A_PLACEHOLDER,
            ..problem
        }),
    }
}

/// A string as it is, any other value as its JSON; nothing where no header could hold it.
fn as_text(json: &str) -> Option<String> {
    if json.len() > LONGEST_ESCAPE * MAX_VALUE {
        return None;
    }
    Some(match json.starts_with('"') {
        true => serde_json::from_str(json).ok()?,
        false => json.to_owned(),
    })
}

#[cfg(test)]
mod tests;
