//! The two time budgets of an attempt, which ureq has no settings for: `connect_timeout` for resolving,
//! connecting and the TLS handshake together, then `timeout` for the whole exchange from the first byte
//! sent to the last byte read. ureq's own timeouts are one for each phase, and setting them for each
//! request would make it build a new TLS configuration for each connection.
//!
//! So ureq is given no timeouts at all. A request is synchronous on its thread; [`begin`] puts its
//! budgets into a thread-local, and a wrapper around the resolver, the connector and the outermost
//! transport caps every wait by what is left. The same place sees what the retry on a fresh connection
//! needs to know: whether the connection was used before and whether any byte came back. And it is where all
//! that a server sends can be counted: ureq limits headers and body, but not how many interim responses it
//! skips, nor what stands between the chunks of a body.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, Transport, time,
};
use ureq::{Error, Timeout};

/// Keeps deadlines representable, whatever the caller asked for.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// No answer is worth reading more.
const MAX_HEARD: usize = 256 * 1024;

thread_local! {
    static EXCHANGE: Cell<Option<Exchange>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Exchange {
    connect_by: Instant,
    timeout: Duration,
    /// Set by the first byte that is sent.
    answer_by: Option<Instant>,
    heard: usize,
    progress: Progress,
}

/// How far the exchange got that was begun last on this thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub sent: bool,
    /// The connection had carried an earlier request.
    pub reused: bool,
    pub heard: bool,
}

/// Starts the clock of this thread's next request.
pub(crate) fn begin(connect_timeout: Duration, timeout: Duration) {
    EXCHANGE.set(Some(Exchange {
        connect_by: Instant::now() + connect_timeout.min(LONGEST),
        timeout: timeout.min(LONGEST),
        answer_by: None,
        heard: 0,
        progress: Progress::default(),
    }));
}

pub(crate) fn progress() -> Progress {
    EXCHANGE.get().map(|e| e.progress).unwrap_or_default()
}

fn update(f: impl FnOnce(&mut Exchange)) {
    if let Some(mut exchange) = EXCHANGE.get() {
        f(&mut exchange);
        EXCHANGE.set(Some(exchange));
    }
}

fn cap(mut wait: NextTimeout) -> Result<NextTimeout, Error> {
    let Some(exchange) = EXCHANGE.get() else {
        return Ok(wait);
    };
    let (deadline, reason) = match exchange.answer_by {
        Some(answer_by) => (answer_by, Timeout::PerCall),
        None => (exchange.connect_by, Timeout::Connect),
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::Timeout(reason));
    }
    if left < *wait.after {
        wait.after = time::Duration::Exact(left);
        wait.reason = reason;
    }
    Ok(wait)
}

/// A resolver or connector whose waits end at the deadline of the request under way.
#[derive(Debug)]
pub(crate) struct Deadline<T>(pub T);

impl<R: Resolver> Resolver for Deadline<R> {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        self.0.resolve(uri, config, cap(timeout)?)
    }
}

impl<C: Connector> Connector for Deadline<C> {
    type Out = DeadlineTransport<C::Out>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        let details = ConnectionDetails {
            now: time::Instant::now(),
            timeout: cap(details.timeout)?,
            uri: details.uri,
            addrs: details.addrs.clone(),
            config: details.config,
            request_level: details.request_level,
            resolver: details.resolver,
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        let transport = self.0.connect(&details, chained)?;
        Ok(transport.map(|inner| DeadlineTransport { inner, used: false }))
    }
}

pub(crate) struct DeadlineTransport<T> {
    inner: T,
    /// Has carried a request.
    used: bool,
}

impl<T: Transport> Transport for DeadlineTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        update(|exchange| {
            if exchange.answer_by.is_none() {
                exchange.answer_by = Some(Instant::now() + exchange.timeout);
                exchange.progress.sent = true;
                exchange.progress.reused = self.used;
            }
        });
        self.used = true;
        self.inner.transmit_output(amount, cap(timeout)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let before = self.inner.buffers().input().len();
        let more = self.inner.await_input(cap(timeout)?)?;
        let heard = self.inner.buffers().input().len().saturating_sub(before);
        let mut in_all = 0;
        update(|exchange| {
            exchange.progress.heard |= more;
            exchange.heard += heard;
            in_all = exchange.heard;
        });
        if in_all > MAX_HEARD {
            return Err(Error::LargeResponseHeader(in_all, MAX_HEARD));
        }
        Ok(more)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

impl<T: fmt::Debug> fmt::Debug for DeadlineTransport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn without_a_request_nothing_is_capped() {
        assert_eq!(cap(NextTimeout::default()).unwrap(), NextTimeout::default());
    }

    #[test]
    fn before_the_first_byte_the_connect_budget_applies() {
        begin(HOUR, Duration::ZERO);
        let wait = cap(NextTimeout::default()).unwrap();
        assert!(*wait.after <= HOUR && wait.reason == Timeout::Connect);
        begin(Duration::ZERO, HOUR);
        let spent = cap(NextTimeout::default()).unwrap_err();
        assert!(matches!(spent, Error::Timeout(Timeout::Connect)));
    }

    #[test]
    fn a_shorter_wait_of_ureq_is_kept() {
        begin(HOUR, HOUR);
        let short = NextTimeout {
            after: time::Duration::from_millis(5),
            ..NextTimeout::default()
        };
        assert_eq!(cap(short).unwrap(), short);
    }

    #[test]
    fn absurd_budgets_do_not_overflow() {
        begin(Duration::MAX, Duration::MAX);
        update(|e| e.answer_by = Some(Instant::now() + e.timeout));
        assert!(cap(NextTimeout::default()).is_ok());
    }
}
