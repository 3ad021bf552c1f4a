//! What is sent: the event in the endpoint's format.

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::attempt::Attempt;
use crate::failure::Failure;

#[derive(Serialize)]
struct Standard<'a> {
    id: Uuid,
    #[serde(rename = "type")]
    event_type: &'a str,
    timestamp: &'a str,
    /// Verbatim: parsing would round numbers that JSON and jsonb can hold and f64 cannot.
    data: &'a RawValue,
}

/// The same bytes for every attempt of an event, so that receivers can compare them.
pub(crate) fn standard(attempt: &Attempt) -> Result<Vec<u8>, Failure> {
    let not_json = |_| Failure::invalid_request("the payload is not valid JSON");
    serde_json::to_vec(&Standard {
        id: attempt.key.event_id,
        event_type: &attempt.event_type,
        timestamp: &attempt.occurred_at,
        data: serde_json::from_str(&attempt.payload).map_err(not_json)?,
    })
    .map_err(not_json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;
    use crate::loopback::attempt_to;

    #[test]
    fn standard_body_carries_the_payload_verbatim() {
        let mut attempt = attempt_to("http://127.0.0.1");
        attempt.event_type = "order.\"created\"".into();
        attempt.payload = r#"{"amount": 12345678901234567890.10, "b":1,  "b":2}"#.into();
        let id = attempt.key.event_id;
        assert_eq!(
            String::from_utf8(standard(&attempt).unwrap()).unwrap(),
            format!(
                r#"{{"id":"{id}","type":"order.\"created\"","timestamp":"2024-05-06T07:08:09Z","data":{{"amount": 12345678901234567890.10, "b":1,  "b":2}}}}"#
            )
        );
    }

    #[test]
    fn every_attempt_of_an_event_has_the_same_bytes() {
        let first = attempt_to("http://127.0.0.1/a");
        let mut later = attempt_to("http://127.0.0.1/b");
        later.key.event_id = first.key.event_id;
        later.key.claim_seq += 1;
        later.earlier_attempts = 3;
        assert_eq!(standard(&first), standard(&later));
    }

    #[test]
    fn payload_that_is_not_json_is_an_invalid_request() {
        let mut attempt = attempt_to("http://127.0.0.1");
        attempt.payload = r#"{"hidden": }"#.into();
        let failure = standard(&attempt).unwrap_err();
        assert_eq!(failure.kind, FailureKind::InvalidRequest);
        assert!(!failure.message.contains("hidden"));
    }
}
