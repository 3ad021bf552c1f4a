//! HTTP: the relay's state at `/healthz` for every client; `/metrics`, the page, and the reason why the relay does not
//! deliver for clients that may see figures.
//!
//! Figures are not for every program that reaches the port. Without a token the relay gives them on loopback alone,
//! and only to requests that name it by an address or as localhost: a page that a browser has got from elsewhere
//! could have had its own name changed to 127.0.0.1 meanwhile, and read along. With a token any name will do, since
//! such a page does not know the token.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::connections::{Connections, Displaced, Place};
use crate::figures::Refusal;
use crate::health::Health;
use crate::target::Target;
use crate::token::Token;
use crate::{log, metrics, page};

/// The time that a client has for its request, and for the whole exchange.
const ASK_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Connections that wait to be accepted. Beyond it the system drops a client's first packet, and the client tries again
/// a second later: for a health check that is too late.
const BACKLOG: u32 = 4096;
/// A client that looks more often sees the same again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Clone)]
pub struct Serving {
    pub address: SocketAddr,
    pub page: bool,
    pub token: Option<Token>,
}

impl Serving {
    fn is_local(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }

    /// Why it cannot be served like this.
    pub fn problem(&self) -> Option<&'static str> {
        (self.page && !self.is_local() && self.token.is_none()).then_some(
            "--page beyond loopback needs a token: write one of 16 characters or more to a file that only the relay \
             can read, and give --token-file FILE",
        )
    }
}

pub struct Service {
    serving: Serving,
    health: Health,
    target: Target,
    /// One client looks at a time.
    metrics: Mutex<Option<Seen>>,
    page: Mutex<Option<Seen>>,
}

struct Seen {
    at: Instant,
    text: Bytes,
}

impl Service {
    /// Answers as long as the runtime runs.
    pub fn start(
        runtime: &Runtime,
        serving: Serving,
        health: Health,
        target: Target,
    ) -> io::Result<()> {
        let listener = runtime.block_on(async { listen(serving.address) })?;
        let address = listener.local_addr()?;
        let page = match serving.page {
            true => format!(", and the page at http://{address}/"),
            false => String::new(),
        };
        log::log(&format!(
            "webhook-relay answers at http://{address}/healthz and /metrics{page}"
        ));
        let service = Arc::new(Service {
            serving,
            health,
            target,
            metrics: Mutex::default(),
            page: Mutex::default(),
        });
        runtime.spawn(service.accept(listener));
        Ok(())
    }

    async fn accept(self: Arc<Service>, listener: TcpListener) {
        let connections = Connections::default();
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let (place, displaced) = connections.enter(peer.ip());
                    tokio::spawn(Arc::clone(&self).serve(stream, place, displaced));
                    // A request that is there already is read before the next connection needs a place.
                    tokio::task::yield_now().await;
                }
                // The client has gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No file descriptor is left, for example.
                Err(_) => {
                    connections.close_one();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve(self: Arc<Service>, stream: TcpStream, place: Place, displaced: Displaced) {
        let answer = service_fn(|request| {
            place.has_asked();
            self.respond(request)
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(ASK_WITHIN)
            .serve_connection(TokioIo::new(stream), answer);
        tokio::select! {
            _ = tokio::time::timeout(ANSWER_WITHIN, connection) => {}
            _ = displaced => {}
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "ask with GET\n"));
        }
        Ok(match request.uri().path() {
            "/healthz" => {
                let sees_reason = self.refuse(&request).is_none();
                let (status, body) = self.health.answer(sees_reason);
                plain(status, body)
            }
            "/metrics" => match self.refuse(&request) {
                Some(refusal) => refusal,
                None => match seen(&self.metrics, metrics::print(&self.target)).await {
                    Ok(text) => answer(StatusCode::OK, metrics::CONTENT_TYPE, text),
                    Err(refusal) => refused(&refusal),
                },
            },
            "/" if self.serving.page => match self.refuse(&request) {
                Some(refusal) => refusal,
                None => match seen(&self.page, page::print(&self.target)).await {
                    Ok(text) => with_policy(answer(StatusCode::OK, page::CONTENT_TYPE, text)),
                    Err(refusal) => refused(&refusal),
                },
            },
            "/" => plain(
                StatusCode::NOT_FOUND,
                "ask for /healthz or /metrics; a relay with --page has a page here\n",
            ),
            _ => plain(StatusCode::NOT_FOUND, "ask for /healthz or /metrics\n"),
        })
    }

    /// The answer to a client that may not see figures.
    fn refuse<T>(&self, request: &Request<T>) -> Option<Response<Full<Bytes>>> {
        let Some(token) = &self.serving.token else {
            if !self.serving.is_local() {
                let why =
                    "figures beyond loopback need a token: give the relay --token-file FILE\n";
                return Some(plain(StatusCode::FORBIDDEN, why));
            }
            let authority = request
                .uri()
                .authority()
                .map(|authority| authority.as_str());
            if !names_this_host(request.headers(), authority) {
                let why = "ask for this relay by its address or as localhost\n";
                return Some(plain(StatusCode::MISDIRECTED_REQUEST, why));
            }
            return None;
        };
        let given = request.headers().get(header::AUTHORIZATION);
        if given.is_some_and(|given| token.is_given_by(given.as_bytes())) {
            return None;
        }
        let why = "give the token of this relay, as Bearer or as the password of any user\n";
        let mut refusal = plain(StatusCode::UNAUTHORIZED, why);
        let challenge =
            HeaderValue::from_static("Basic realm=\"webhook-relay\", charset=\"UTF-8\"");
        refusal
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, challenge);
        Some(refusal)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// An address cannot be made to mean another host, unlike a name. The port is another one behind a tunnel.
fn names_this_host(headers: &HeaderMap, authority: Option<&str>) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    host.to_str().is_ok_and(is_address_or_localhost)
        && authority.is_none_or(is_address_or_localhost)
}

fn is_address_or_localhost(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, rest)) if rest.is_empty() || rest.starts_with(':') => host,
            _ => return false,
        },
        None => authority
            .split_once(':')
            .map_or(authority, |(host, _)| host),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
}

async fn seen(
    last: &Mutex<Option<Seen>>,
    look: impl Future<Output = Result<String, Refusal>>,
) -> Result<Bytes, Refusal> {
    let mut last = last.lock().await;
    match &*last {
        Some(seen) if seen.at.elapsed() < LOOK_EVERY => Ok(seen.text.clone()),
        _ => {
            let text = Bytes::from(look.await?);
            *last = Some(Seen {
                at: Instant::now(),
                text: text.clone(),
            });
            Ok(text)
        }
    }
}

fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let status = match refusal {
        Refusal::Denied(_) => StatusCode::FORBIDDEN,
        Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    plain(status, format!("{}\n", refusal.message()))
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    answer(status, TEXT, body)
}

/// Headers by which no client keeps, guesses at, embeds or passes on anything of ours.
fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn with_policy(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    let policy = format!("{}; frame-ancestors 'none'", page::policy());
    if let Ok(policy) = HeaderValue::try_from(policy) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_or_localhost_names_this_host() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "localhost",
            "LocalHost:9",
            "[::1]",
            "[::1]:8080",
            "10.0.0.7",
        ] {
            assert!(is_address_or_localhost(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "example.com:8080",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "localhost.",
            "[::1",
            "[::1]x",
            "[localhost",
            "127.0.0.1@example.com",
            "user@localhost",
            "0x7f000001",
            "127.1",
        ] {
            assert!(!is_address_or_localhost(host), "{host}");
        }
    }

    fn service(address: &str, token: Option<&str>) -> Service {
        let token = token.map(|text| Token::new(text).expect("it is long enough"));
        Service {
            serving: Serving {
                address: address.parse().expect("it is an address"),
                page: true,
                token,
            },
            health: Health::starting(),
            target: Target::read("", &|_| None).expect("it is a target"),
            metrics: Mutex::default(),
            page: Mutex::default(),
        }
    }

    #[test]
    fn beyond_loopback_nobody_gets_figures_without_a_token() {
        let request = Request::builder().header("host", "127.0.0.1").body(());
        let request = request.expect("it is a request");
        let status = |service: &Service| service.refuse(&request).map(|refusal| refusal.status());
        for local in [
            "127.0.0.1:1",
            "127.8.9.1:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            let open = service(local, None);
            assert_eq!(
                (status(&open), open.serving.problem()),
                (None, None),
                "{local}"
            );
        }
        for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            let without = service(open, None);
            assert_eq!(status(&without), Some(StatusCode::FORBIDDEN), "{open}");
            assert!(without.serving.problem().is_some());
            let with = service(open, Some("0123456789abcdef"));
            assert_eq!(status(&with), Some(StatusCode::UNAUTHORIZED), "{open}");
            assert!(with.serving.problem().is_none());
        }
    }

    #[test]
    fn a_request_names_one_host() {
        let of = |hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(
                    header::HOST,
                    HeaderValue::from_str(host).expect("it is text"),
                );
            }
            headers
        };
        assert!(names_this_host(&of(&["localhost"]), None));
        assert!(names_this_host(&of(&["localhost"]), Some("127.0.0.1:8080")));
        assert!(!names_this_host(&of(&[]), None));
        assert!(!names_this_host(&of(&["localhost", "example.com"]), None));
        assert!(!names_this_host(&of(&["localhost"]), Some("example.com")));
    }
}
