//! Texts that people write and we parse before a request is sent: URLs and the networks that they may lead to,
//! headers, secrets, templates and payloads.
//!
//! An input is a text, and its lines are the URL, the networks that are allowed, a header, a secret, the payload, and
//! the template up to the end.

#![no_main]

use std::ffi::{CString, c_char, c_int};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use libfuzzer_sys::fuzz_target;
use uuid::Uuid;
use webhook_delivery::{
    Attempt, EndpointOwner, Format, Header, Key, Network, Networks, Route, preview,
};

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(6, '\n');
    let mut next = || lines.next().unwrap_or_default().to_owned();
    let (url, allowed, header, secret) = (next(), next(), next(), next());
    let (payload, template) = (next(), next());

    if (Network::default().judge_url(EndpointOwner::Installation, &url)).is_ok() {
        assert_public(&url);
    }
    if let Ok(allow) = allowed.parse::<Networks>() {
        let network = Network {
            allow,
            ..Network::default()
        };
        let _ = network.judge_url(EndpointOwner::Installation, &url);
        if network.judge_url(EndpointOwner::Tenant, &url).is_ok() {
            assert_public(&url);
        }
    }

    let format = match template.as_str() {
        "" => Format::named("standard", None, None),
        _ => Format::named("template", Some(template), None),
    };
    let sent = preview(&attempt(url, header, secret, payload, format));
    if let Ok(sent) = sent {
        let body: &[u8] = sent.body.as_ref();
        serde_json::from_slice::<&serde_json::value::RawValue>(body).expect("a body is JSON");
    }
});

/// A host that the system takes for an address is in no private network. Any other host is a name, whose addresses
/// are judged when it is dialled.
fn assert_public(url: &str) {
    let uri: Uri = url.parse().expect("what is not valid is not permitted");
    let host = uri.host().unwrap_or_default();
    let Some(address) = numeric(host) else { return };
    let is_private = match address {
        IpAddr::V4(v4) => {
            v4.is_private() || v4.is_link_local() || v4.is_broadcast() || v4.is_documentation()
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    };
    assert!(
        !is_private
            && !address.is_loopback()
            && !address.is_unspecified()
            && !address.is_multicast(),
        "{url} leads to {address}"
    );
}

unsafe extern "C" {
    fn inet_aton(text: *const c_char, address: *mut libc::in_addr) -> c_int;
}

/// As inet_aton(3) reads it, with fewer than four numbers, in hexadecimal and octal.
fn numeric(host: &str) -> Option<IpAddr> {
    let bare = host.trim_matches(['[', ']']);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let text = CString::new(host).ok()?;
    let mut address = libc::in_addr { s_addr: 0 };
    // SAFETY: a C string, and an address to write to.
    let is_numeric = unsafe { inet_aton(text.as_ptr(), &mut address) } == 1;
    is_numeric.then(|| Ipv4Addr::from(u32::from_be(address.s_addr)).into())
}

fn attempt(
    url: String,
    header: String,
    secret: String,
    payload: String,
    format: Format,
) -> Attempt {
    let header = header
        .split_once(':')
        .map(|(name, value)| Header::new(name, value));
    Attempt {
        key: Key {
            event_id: Uuid::nil(),
            endpoint_id: 1,
            claim_seq: 1,
        },
        earlier_attempts: 0,
        event_type: "order.created".to_owned(),
        tenant: None,
        occurred_at: "2026-01-02T03:04:05.678901Z".to_owned(),
        // PostgreSQL gives out nothing else.
        payload: match serde_json::from_str::<serde_json::Value>(&payload) {
            Ok(value) => value.to_string(),
            Err(_) => "{}".to_owned(),
        },
        route: Arc::new(Route {
            endpoint_id: 1,
            owner: EndpointOwner::Tenant,
            url,
            headers: header.into_iter().collect(),
            format,
            hmac_secrets: vec![secret.clone()],
            secrets: vec![secret],
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        }),
    }
}
