//! Connections that wait for another request, of one setup. hyper-util has a pool of its own, but it may answer the
//! failure of a stale connection with another stale one, does not know which addresses are permitted by now, and
//! goes on connecting for nobody.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::threads;

const LONGEST: Duration = Duration::from_secs(30);
/// The most connections that rest, as many as may well be in flight; with more, a new connection is closed after its
/// request.
const MOST: usize = 1024;

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Origin(Scheme, Authority);

impl Origin {
    pub fn of(uri: &Uri) -> Option<Origin> {
        Some(Origin(uri.scheme()?.clone(), uri.authority()?.clone()))
    }
}

#[derive(Default)]
pub(crate) struct Idle(Mutex<Resting>);

#[derive(Default)]
struct Resting {
    by_origin: HashMap<Origin, Vec<(Instant, Box<Connection>)>>,
    count: usize,
    /// Whether there is a task that closes connections that have rested too long.
    is_watched: bool,
}

impl Idle {
    /// The connection that was used last and leads to one of these addresses.
    pub fn take(&self, origin: &Origin, addresses: &[IpAddr]) -> Option<Box<Connection>> {
        let mut resting = threads::lock(&self.0);
        loop {
            let (_, mut connection) = resting.by_origin.get_mut(origin)?.pop()?;
            resting.count -= 1;
            if addresses.contains(&connection.peer) && connection.is_idle() {
                return Some(connection);
            }
        }
    }

    pub fn put(self: &Arc<Self>, origin: Origin, connection: Box<Connection>) {
        let mut resting = threads::lock(&self.0);
        if resting.count == MOST {
            return;
        }
        resting.count += 1;
        let of_origin = resting.by_origin.entry(origin).or_default();
        of_origin.push((Instant::now(), connection));
        if !resting.is_watched {
            resting.is_watched = true;
            tokio::spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Says whether there were any.
    pub fn close_all(&self) -> bool {
        let mut resting = threads::lock(&self.0);
        resting.by_origin.clear();
        std::mem::take(&mut resting.count) > 0
    }

    /// Says whether there are others.
    fn close_old(&self, now: Instant) -> bool {
        let mut resting = threads::lock(&self.0);
        resting.by_origin.retain(|_, connections| {
            connections.retain(|(since, _)| now.duration_since(*since) < LONGEST);
            connections.shrink_to_fit();
            !connections.is_empty()
        });
        resting.count = resting.by_origin.values().map(Vec::len).sum();
        resting.is_watched = resting.count > 0;
        resting.is_watched
    }
}

async fn watch(idle: Weak<Idle>) {
    loop {
        sleep(LONGEST / 2).await;
        match idle.upgrade() {
            Some(idle) if idle.close_old(Instant::now()) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{OK, serve_always};

    #[test]
    fn a_connection_that_nobody_uses_is_closed_and_then_nothing_is_watched() {
        let address = serve_always(1, OK);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let deadline = Instant::now() + LONGEST;
            let connection = Connection::open(&[address], None, deadline).await;
            let connection = Box::new(connection.unwrap_or_else(|failure| panic!("{failure}")));
            let origin = Origin::of(&format!("http://{address}/").parse().unwrap()).unwrap();
            let idle = Arc::new(Idle::default());
            // From here on time passes as soon as there is nothing else to do.
            tokio::time::pause();
            idle.put(origin.clone(), connection);
            sleep(LONGEST - Duration::from_secs(1)).await;
            let connection = idle.take(&origin, &[address.ip()]).unwrap();
            idle.put(origin.clone(), connection);
            sleep(LONGEST - Duration::from_secs(1)).await;
            assert_eq!(threads::lock(&idle.0).count, 1);
            sleep(LONGEST).await;
            let resting = threads::lock(&idle.0);
            assert_eq!((resting.count, resting.by_origin.len()), (0, 0));
            assert!(!resting.is_watched);
        });
    }
}
