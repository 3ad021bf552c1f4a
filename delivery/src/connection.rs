//! One HTTP/1.1 connection, over TCP or TLS. Only its user drives it: an attempt polls its connection in its own
//! task, and an idle connection has neither a task nor a timer.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::failure::{Failure, FailureKind};

const MAX_HEADER_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 128;
/// The bytes that a server may send in answer to one request: hyper limits the headers, but neither the number of
/// interim responses that it skips nor the bytes between the chunks of a body.
pub(crate) const MAX_HEARD: usize = 256 * 1024;

pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<Wire>, Full<Bytes>>,
    /// Whether the driver has ended, and must not be polled again.
    ended: bool,
    heard: Arc<AtomicUsize>,
    pub peer: IpAddr,
}

/// Why there is no response.
pub(crate) enum Broken {
    Http(hyper::Error),
    /// The connection ended without a word from hyper.
    Ended,
}

impl Broken {
    pub fn was_never_sent(&self) -> bool {
        matches!(self, Broken::Http(error) if error.is_canceled())
    }
}

impl Connection {
    /// Tries one address after the other: each gets half of the time that is left, and the last one all of it.
    pub async fn open(
        addresses: &[SocketAddr],
        tls: Option<(&TlsConnector, ServerName<'static>)>,
        deadline: Instant,
    ) -> Result<Connection, Failure> {
        let (tcp, peer) = dial(addresses, deadline).await?;
        let heard = Arc::new(AtomicUsize::new(0));
        let stream = match tls {
            None => Stream::Plain(tcp),
            Some((connector, name)) => {
                let stream = connector.connect(name, tcp).await;
                Stream::Tls(Box::new(stream.map_err(Failure::before_request)?))
            }
        };
        let wire = Wire {
            stream,
            heard: heard.clone(),
        };
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| Failure::of(Broken::Http(error), 0))?;
        Ok(Connection {
            sender,
            driver,
            ended: false,
            heard,
            peer,
        })
    }

    /// Bytes that came in answer to the request sent last.
    pub fn heard(&self) -> usize {
        self.heard.load(Ordering::Relaxed)
    }

    /// Sends, and waits until the head of the response has come.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Broken> {
        self.heard.store(0, Ordering::Relaxed);
        let Connection {
            sender,
            driver,
            ended,
            ..
        } = self;
        let mut answer = pin!(sender.send_request(request));
        poll_fn(|cx| {
            drive(driver, ended, cx);
            match answer.as_mut().poll(cx) {
                Poll::Pending if *ended => Poll::Ready(Err(Broken::Ended)),
                answer => answer.map_err(Broken::Http),
            }
        })
        .await
    }

    /// Hands on the pieces of the body for as long as `enough` is false; says whether that was all.
    pub async fn read(
        &mut self,
        mut body: Incoming,
        mut enough: impl FnMut(Bytes) -> bool,
    ) -> bool {
        poll_fn(|cx| {
            loop {
                drive(&mut self.driver, &mut self.ended, cx);
                match Pin::new(&mut body).poll_frame(cx) {
                    Poll::Ready(None) => return Poll::Ready(true),
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                    Poll::Ready(Some(Ok(frame))) => {
                        if frame.into_data().is_ok_and(&mut enough) {
                            return Poll::Ready(false);
                        }
                    }
                    Poll::Pending if self.ended => return Poll::Ready(false),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Whether the last exchange is over and, as far as is known by now, the server waits for another.
    pub fn is_idle(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        drive(&mut self.driver, &mut self.ended, &mut cx);
        !self.ended && self.sender.is_ready()
    }
}

/// The attempt that waits for an answer is told how the connection ended.
fn drive(
    driver: &mut http1::Connection<TokioIo<Wire>, Full<Bytes>>,
    ended: &mut bool,
    cx: &mut Context<'_>,
) {
    *ended = *ended || Pin::new(driver).poll(cx).is_ready();
}

async fn dial(addresses: &[SocketAddr], deadline: Instant) -> Result<(TcpStream, IpAddr), Failure> {
    const TOO_LATE: &str = "connection timed out";
    let mut last = Failure::new(FailureKind::Connect, TOO_LATE);
    for (n, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = match addresses.len() - n {
            // The caller's own deadline ends it.
            1 => Duration::MAX,
            _ => left / 2,
        };
        last = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Without it small requests are only slower.
                let _ = stream.set_nodelay(true);
                return Ok((stream, address.ip()));
            }
            Ok(Err(error)) => Failure::before_request(error),
            Err(_) => Failure::new(FailureKind::Connect, TOO_LATE),
        };
        if last.kind == FailureKind::Local {
            break;
        }
    }
    Err(last)
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Counts the bytes that come, and refuses more than an answer is worth.
struct Wire {
    stream: Stream,
    heard: Arc<AtomicUsize>,
}

macro_rules! each {
    ($wire:expr, $method:ident($($argument:expr),*)) => {
        match &mut $wire.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Tls(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(each!(self.as_mut(), poll_read(cx, buffer)))?;
        let new = buffer.filled().len() - before;
        let heard = self.heard.fetch_add(new, Ordering::Relaxed) + new;
        Poll::Ready(match heard > MAX_HEARD {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(()),
        })
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, poll_shutdown(cx))
    }
}
