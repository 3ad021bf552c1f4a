//! The body of a request: the event in the endpoint's format.

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::memory::{self, Growing};
use crate::template::Template;

/// Bytes of a body besides the payload, as a rule.
const ENVELOPE: usize = 512;

/// Not `Debug`: a template may contain credentials.
pub enum Format {
    Standard,
    /// The payload alone.
    Raw,
    /// CloudEvents 1.0 in structured mode.
    CloudEvents {
        /// A URI reference.
        source: String,
    },
    /// A [`Template`] that is still to be parsed, by the thread that sends.
    Template(String),
    Unknown,
}

impl Format {
    /// The format in the endpoint's row, whoever wrote the row.
    pub fn named(name: &str, template: Option<String>, source: Option<String>) -> Format {
        match (name, template, source) {
            ("standard", ..) => Format::Standard,
            ("raw", ..) => Format::Raw,
            ("cloudevents", _, Some(source)) => Format::CloudEvents { source },
            ("template", Some(template), _) => Format::Template(template),
            _ => Format::Unknown,
        }
    }

    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            Format::CloudEvents { .. } => "application/cloudevents+json; charset=UTF-8",
            _ => "application/json",
        }
    }
}

/// In all of them `data` is the payload verbatim: parsing would round numbers that JSON and jsonb can hold and f64
/// cannot.
#[derive(Serialize)]
struct Standard<'a> {
    id: Uuid,
    #[serde(rename = "type")]
    event_type: &'a str,
    timestamp: &'a str,
    data: &'a RawValue,
}

#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: Uuid,
    source: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    time: &'a str,
    datacontenttype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    data: &'a RawValue,
}

/// The document that the paths of a template lead into.
#[derive(Serialize)]
struct Named<'a> {
    id: Uuid,
    #[serde(rename = "type")]
    event_type: &'a str,
    timestamp: &'a str,
    tenant: Option<&'a str>,
    data: &'a RawValue,
}

/// The same bytes for every attempt of an event while the endpoint stays as it is, so that receivers can compare them.
pub(crate) fn render(attempt: &Attempt) -> Result<Vec<u8>, Failure> {
    let id = attempt.key.event_id;
    let event_type = &*attempt.event_type;
    let timestamp = &*attempt.occurred_at;
    let tenant = attempt.tenant.as_deref();
    let data = read(attempt.payload.as_bytes())?;

    match &attempt.route.format {
        Format::Standard => json(
            &Standard {
                id,
                event_type,
                timestamp,
                data,
            },
            data,
        ),
        Format::Raw => Ok(memory::copy(data.get())?.into_bytes()),
        Format::CloudEvents { source } => json(
            &CloudEvent {
                specversion: "1.0",
                id,
                source,
                event_type,
                time: timestamp,
                datacontenttype: "application/json",
                tenant,
                data,
            },
            data,
        ),
        Format::Template(template) => {
            let event = named(attempt)?;
            // The problem might show the template, and was told at registration.
            let template = Template::parse(template).map_err(|_| {
                Failure::invalid_request("the template of the endpoint is not valid")
            })?;
            template.render(read(&event)?)
        }
        Format::Unknown => Err(Failure::invalid_request(
            "the format of the endpoint is not known, or its template is missing",
        )),
    }
}

/// The event as the paths of templates lead into it.
pub(crate) fn named(attempt: &Attempt) -> Result<Vec<u8>, Failure> {
    let data = read(attempt.payload.as_bytes())?;
    let event = Named {
        id: attempt.key.event_id,
        event_type: &attempt.event_type,
        timestamp: &attempt.occurred_at,
        tenant: attempt.tenant.as_deref(),
        data,
    };
    json(&event, data)
}

pub(crate) fn read(json: &[u8]) -> Result<&RawValue, Failure> {
    serde_json::from_slice(json).map_err(not_json)
}

/// The payload is nearly all of it.
fn json(value: &impl Serialize, payload: &RawValue) -> Result<Vec<u8>, Failure> {
    let mut body = Growing::with_room(payload.get().len() + ENVELOPE)?;
    match serde_json::to_writer(&mut body, value) {
        Ok(()) => Ok(body.into_bytes()),
        Err(error) if error.is_io() => Err(Failure::out_of_memory()),
        Err(_) => Err(not_json(())),
    }
}

fn not_json<E>(_: E) -> Failure {
    Failure::invalid_request("the payload is not valid JSON")
}

#[cfg(test)]
mod tests;
