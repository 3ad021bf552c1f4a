//! The request of one attempt.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::{body, header, signing};

/// The limit of the parser.
const MAX_URL: usize = u16::MAX as usize - 1;

pub(crate) const OUR_USER_AGENT: &str = concat!("webhook/", env!("CARGO_PKG_VERSION"));

/// Not `Debug`: URL and headers are credentials.
pub struct Preview {
    pub url: String,
    /// Names in lower case, as they are sent; one that comes twice has two entries.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// The request that this attempt would send now.
pub fn preview(attempt: &Attempt) -> Result<Preview, Failure> {
    let not_text = || Failure::invalid_request("the request is not text");
    let (head, body) = render(attempt, SystemTime::now())?.into_parts();
    let headers = head.headers.iter().map(|(name, value)| {
        let value = value.to_str().map_err(|_| not_text())?;
        Ok((name.to_string(), value.to_owned()))
    });
    Ok(Preview {
        url: head.uri.to_string(),
        headers: headers.collect::<Result<_, Failure>>()?,
        body: String::from_utf8(body).map_err(|_| not_text())?,
    })
}

/// The whole request: nothing is added to it when it is sent.
pub(crate) fn render(attempt: &Attempt, now: SystemTime) -> Result<Request<Vec<u8>>, Failure> {
    let mut request = Request::new(body::render(attempt)?);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = parse_url(&attempt.route.url)?;

    let text = |value: &str| {
        HeaderValue::try_from(value).map_err(|_| Failure::invalid_request("a header is not text"))
    };
    let id = attempt.key.event_id.to_string();
    let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let timestamp = timestamp.to_string();
    let signature = signing::sign(&attempt.route.secrets, &id, &timestamp, request.body())?;
    let signature = text(&signature)?;
    let host = text(&host_and_port(request.uri()))?;
    let length = request.body().len();

    *request.headers_mut() = header::render(attempt, &timestamp, request.body())?;
    let headers = request.headers_mut();
    headers
        .entry(ACCEPT)
        .or_insert(HeaderValue::from_static("*/*"));
    headers.insert(HOST, host);
    headers.insert(CONTENT_LENGTH, length.into());
    let content_type = attempt.route.format.content_type();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(USER_AGENT, HeaderValue::from_static(OUR_USER_AGENT));
    headers.insert("webhook-id", text(&id)?);
    headers.insert("webhook-timestamp", text(&timestamp)?);
    headers.insert("webhook-signature", signature.clone());
    headers.insert("x-webhook-signature", signature);
    headers.insert("x-webhook-retry", attempt.earlier_attempts.into());
    Ok(request)
}

pub(crate) fn parse_url(url: &str) -> Result<Uri, Failure> {
    let invalid = || Failure::invalid_request("the URL is not valid");
    // The parser would copy it first.
    if url.len() > MAX_URL {
        return Err(invalid());
    }
    let uri: Uri = url.parse().map_err(|_| invalid())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(Failure::invalid_request("the URL is not http or https"));
    }
    let host = uri.host().unwrap_or_default();
    let authority = uri.authority().map_or("", |a| a.as_str());
    if authority.contains('@') {
        return Err(Failure::invalid_request("the URL contains a user"));
    }
    // Else the default port would be dialled where the one given cannot be read.
    if host.is_empty() || (authority.len() > host.len() && uri.port_u16().is_none()) {
        return Err(invalid());
    }
    Ok(uri)
}

/// The port only where it is not the scheme's own.
fn host_and_port(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    match (uri.scheme_str(), uri.port_u16()) {
        (_, None) | (Some("http"), Some(80)) | (Some("https"), Some(443)) => host.to_owned(),
        (_, Some(port)) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attempt::Route;
    use crate::header::Header;
    use crate::loopback::{attempt_on, attempt_to, route_to};

    #[test]
    fn the_host_has_its_port_unless_it_is_the_default() {
        for (url, host) in [
            ("http://example.com/a", "example.com"),
            ("http://example.com:80/", "example.com"),
            ("https://example.com:443?a=b", "example.com"),
            ("http://example.com:443/", "example.com:443"),
            ("HTTPS://example.com:8443", "example.com:8443"),
            ("http://[::1]:8080/", "[::1]:8080"),
        ] {
            let request = render(&attempt_to(url), SystemTime::now()).unwrap();
            let hosts: Vec<_> = request.headers().get_all(HOST).iter().collect();
            assert_eq!(hosts, [host], "{url}");
        }
    }

    #[test]
    fn a_url_that_the_parser_does_not_take_is_not_copied() {
        let of_length = |length: usize| format!("{:a<length$}", "http://example.com/");
        assert!(parse_url(&of_length(MAX_URL)).is_ok());
        let failure = parse_url(&of_length(MAX_URL + 1)).unwrap_err();
        assert_eq!(failure.message, "the URL is not valid");
    }

    #[test]
    fn a_preview_is_the_rendered_request_as_text() {
        let attempt = attempt_on(Arc::new(Route {
            headers: vec![
                Header::new("X-Key", "one"),
                Header::new("x-key", "two"),
                Header::new("Accept", "application/json"),
            ],
            ..route_to("HTTP://127.0.0.1:8080?a=b")
        }));
        let preview = preview(&attempt).unwrap_or_else(|failure| panic!("{failure}"));
        let values = |name: &str| -> Vec<_> {
            let of_name = preview.headers.iter().filter(|(n, _)| n == name);
            of_name.map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!(preview.url, "http://127.0.0.1:8080/?a=b");
        assert_eq!(preview.body.as_bytes(), body::render(&attempt).unwrap());
        assert_eq!(values("x-key"), ["one", "two"]);
        assert_eq!(values("accept"), ["application/json"]);
        assert_eq!(values("content-length"), [preview.body.len().to_string()]);
    }

    #[test]
    fn what_cannot_be_sent_cannot_be_previewed() {
        let attempt = attempt_on(Arc::new(Route {
            secrets: vec!["hidden".into()],
            ..route_to("http://127.0.0.1/")
        }));
        let failure = preview(&attempt).map(drop).unwrap_err();
        assert_eq!(failure.message, "a secret is not whsec_ and base64");
    }
}
