//! Performs one attempt: looks the host up, judges its addresses, connects or takes an idle connection, sends, reads.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response as HttpResponse, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use rustls::pki_types::ServerName;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::address_guard::{AddressGuard, EndpointOwner, is_https, literal, port};
use crate::attempt::{Attempt, Response, Route};
use crate::connection::Connection;
use crate::failure::{Failure, FailureKind};
use crate::idle::{Idle, Origin};
use crate::memory::Growing;
use crate::request;
use crate::resolver::Resolver;
use crate::roots::Roots;

/// The addresses that are tried of a name that has more.
const MAX_ADDRESSES: usize = 16;
/// Keeps deadlines representable, whatever the caller asked for.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

pub const EXCERPT: usize = 2048;
/// The bytes that the excerpt is made from: some of them may be left out.
const KEPT: usize = 4 * EXCERPT;
/// A body that was read to its end leaves its connection usable; beyond this a new connection is cheaper.
const DRAIN: usize = 64 * 1024;

/// A client goes by one set of rules, and its connections were made by them: where the rules change there is a new
/// client.
pub(crate) struct Client {
    resolver: Resolver,
    guard: Box<dyn AddressGuard>,
    tls: TlsConnector,
    idle: Arc<Idle>,
}

impl Client {
    pub fn new(resolver: Resolver, guard: impl AddressGuard, roots: &Roots) -> Client {
        Client {
            resolver,
            guard: Box::new(guard),
            tls: roots.connector(),
            idle: Arc::default(),
        }
    }

    /// `goes_out` is called once, before the first byte of the request is sent, and may still call it off.
    pub async fn deliver(
        &self,
        attempt: &Attempt,
        goes_out: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Response, Failure> {
        let route = &*attempt.route;
        let uri = request::parse_url(&route.url)?;
        let connect_by = after(route.connect_timeout);
        let addresses = self.addresses(route.owner, &uri, connect_by).await?;
        let request = render(attempt)?;

        let origin =
            Origin::of(&uri).ok_or_else(|| Failure::invalid_request("the URL is not valid"))?;
        let idle = self.idle.take(&origin, &addresses);
        let is_reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect(&uri, &addresses, route, connect_by).await?,
        };
        goes_out()?;
        let answer_by = after(route.timeout);
        let mut answer = timeout_at(answer_by, connection.send(request)).await;

        // The server may close an idle connection in the moment that we use it. That says nothing about
        // the endpoint, so it costs no attempt: once more on a connection of its own, within the same
        // budget. If the server did read the first one, it sees a duplicate with the same webhook-id.
        if let Ok(Err(broken)) = &answer
            && is_reused
            && (connection.heard() == 0 || broken.was_never_sent())
        {
            let once_more = Box::pin(async {
                let left = answer_by.saturating_duration_since(Instant::now());
                let connect_by = after(route.connect_timeout);
                connection = self.connect(&uri, &addresses, route, connect_by).await?;
                Ok::<_, Failure>(timeout(left, connection.send(render(attempt)?)).await)
            });
            answer = once_more.await?;
        }

        match answer {
            Ok(Ok(response)) => {
                let (response, is_whole) = read(response, &mut connection, answer_by).await;
                if is_whole && connection.is_idle() {
                    self.idle.put(origin, connection);
                }
                Ok(response)
            }
            Ok(Err(broken)) => Err(Failure::of(broken, connection.heard())),
            Err(_) => Err(Failure::new(
                FailureKind::Timeout,
                format!("no response within {:?}", route.timeout),
            )),
        }
    }

    /// The addresses of the host, all permitted. They are asked for each request, also for one that will find an idle
    /// connection: no request passes unjudged.
    async fn addresses(
        &self,
        owner: EndpointOwner,
        uri: &Uri,
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, Failure> {
        let host = uri.host().unwrap_or_default();
        let addresses = match literal(host) {
            Some(address) => vec![address],
            None => Box::pin(self.resolver.addresses(host, deadline)).await?,
        };
        self.guard.judge(owner, uri, &addresses)?;
        Ok(addresses)
    }

    async fn connect(
        &self,
        uri: &Uri,
        addresses: &[IpAddr],
        route: &Route,
        deadline: Instant,
    ) -> Result<Box<Connection>, Failure> {
        let port = port(uri);
        let addresses = addresses.iter().take(MAX_ADDRESSES);
        let addresses: Vec<_> = addresses.map(|ip| SocketAddr::new(*ip, port)).collect();
        let connect = async || {
            let tls = match is_https(uri) {
                true => Some((&self.tls, server_name(uri)?)),
                false => None,
            };
            Connection::open(&addresses, tls, deadline)
                .await
                .map(Box::new)
        };
        // Few attempts connect, and the others need no room for it.
        let connecting = Box::pin(async {
            match connect().await {
                // Idle connections give way where there is no room for another.
                Err(failure) if failure.kind == FailureKind::Local && self.idle.close_all() => {
                    connect().await
                }
                result => result,
            }
        });
        timeout_at(deadline, connecting).await.unwrap_or_else(|_| {
            let message = format!("no connection within {:?}", route.connect_timeout);
            Err(Failure::new(FailureKind::Timeout, message))
        })
    }
}

fn after(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST)
}

/// The request as it is sent to the host of the URL.
fn render(attempt: &Attempt) -> Result<Request<Full<Bytes>>, Failure> {
    let mut request = request::render(attempt, SystemTime::now())?;
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    Ok(request.map(|body| Full::new(body.into())))
}

fn server_name(uri: &Uri) -> Result<ServerName<'static>, Failure> {
    let host = uri.host().unwrap_or_default();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let name = ServerName::try_from(bare.unwrap_or(host));
    let name =
        name.map_err(|_| Failure::new(FailureKind::Tls, "the TLS connection could not be set up"))?;
    Ok(name.to_owned())
}

/// The status decides, whatever becomes of the body. Also says whether the whole body came.
async fn read(
    response: HttpResponse<Incoming>,
    connection: &mut Connection,
    deadline: Instant,
) -> (Response, bool) {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after
        .and_then(|header| header.to_str().ok())
        .and_then(|text| wait_asked_for(text.trim(), SystemTime::now()));

    let (mut kept, mut length) = (Growing::default(), 0);
    let reading = connection.read(response.into_body(), |bytes| {
        let wanted = bytes.len().min(KEPT - kept.len());
        let has_room = kept.push(&bytes[..wanted]).is_ok();
        length += bytes.len();
        !has_room || length >= DRAIN
    });
    let is_whole = timeout_at(deadline, reading).await.unwrap_or(false);
    let response = Response {
        status,
        retry_after,
        excerpt: excerpt(&kept.into_bytes()),
    };
    (response, is_whole)
}

/// Seconds, or a date in one of the three forms that HTTP allows. A date in the past asks for nothing. A wait longer
/// than can be counted is the longest wait there is.
pub fn wait_asked_for(retry_after: &str, now: SystemTime) -> Option<Duration> {
    let longest = Duration::from_secs(u32::MAX.into());
    if !retry_after.is_empty() && retry_after.bytes().all(|c| c.is_ascii_digit()) {
        let seconds = retry_after.parse().map(Duration::from_secs);
        return Some(seconds.map_or(longest, |wait| wait.min(longest)));
    }
    let date = httpdate::parse_http_date(retry_after).ok()?;
    Some(date.duration_since(now).ok()?.min(longest))
}

pub fn excerpt(body: &[u8]) -> String {
    let characters = body.utf8_chunks().flat_map(|chunk| {
        let broken = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        chunk.valid().chars().chain(broken)
    });
    let mut text = String::new();
    for c in characters.filter(|c| !c.is_control() || matches!(c, '\n' | '\t')) {
        if text.len() + c.len_utf8() > EXCERPT {
            break;
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests;
