//! Connections of HTTP clients. Every new one is accepted: if there are too many, another one is closed for it, so that
//! a health check is answered however many connections a client opens and leaves silent.
//!
//! A connection whose request has not arrived is closed before one that waits for its answer. Of these, the network
//! with the most connections loses its oldest one: a client that holds many displaces its own. A client that is alone
//! in its network keeps its connection, and any other keeps it while as many others arrive as there are places.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Each takes a socket that requests to endpoints could have.
const MAX_CONNECTIONS: usize = 128;

#[derive(Clone, Default)]
pub struct Connections(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    next_number: u64,
    /// In the order in which they were accepted.
    by_number: BTreeMap<u64, Connection>,
}

struct Connection {
    network: IpAddr,
    has_asked: bool,
    /// Dropped when the connection has to close.
    _open: oneshot::Sender<Infallible>,
}

/// The place of one connection, which is free again when this is dropped.
pub struct Place {
    connections: Connections,
    number: u64,
}

/// Ends when the place is given to another connection.
pub type Displaced = oneshot::Receiver<Infallible>;

impl Connections {
    pub fn enter(&self, peer: IpAddr) -> (Place, Displaced) {
        let mut open = self.lock();
        if open.by_number.len() >= MAX_CONNECTIONS {
            open.close_one();
        }
        let number = open.next_number;
        open.next_number += 1;
        let (sender, displaced) = oneshot::channel();
        let connection = Connection {
            network: network_of(peer),
            has_asked: false,
            _open: sender,
        };
        open.by_number.insert(number, connection);
        let connections = self.clone();
        let place = Place {
            connections,
            number,
        };
        (place, displaced)
    }

    pub fn close_one(&self) {
        self.lock().close_one();
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The client's request has arrived.
    pub fn has_asked(&self) {
        if let Some(connection) = self.connections.lock().by_number.get_mut(&self.number) {
            connection.has_asked = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().by_number.remove(&self.number);
    }
}

impl Open {
    fn close_one(&mut self) {
        let all_have_asked = self.by_number.values().all(|each| each.has_asked);
        let candidates = || {
            let may_go = |each: &&Connection| all_have_asked || !each.has_asked;
            let by_number = self.by_number.iter();
            by_number.filter(move |(_, each)| may_go(each))
        };
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (_, each) in candidates() {
            *counts.entry(each.network).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let oldest = candidates().find(|(_, each)| counts[&each.network] == most);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.by_number.remove(&number);
        }
    }
}

/// A host with IPv6 has 64 bits of addresses to itself.
fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: &str = "192.0.2.1";

    fn enter(connections: &Connections, peer: &str) -> (Place, Displaced) {
        connections.enter(peer.parse().expect("it is an address"))
    }

    fn is_open(displaced: &mut Displaced) -> bool {
        matches!(
            displaced.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        )
    }

    fn fill(connections: &Connections, peer: &str) -> Vec<(Place, Displaced)> {
        let places = 0..MAX_CONNECTIONS;
        places.map(|_| enter(connections, peer)).collect()
    }

    #[test]
    fn the_oldest_connection_that_has_not_asked_makes_room() {
        let connections = Connections::default();
        let mut held = fill(&connections, CROWD);
        held[0].0.has_asked();
        let _new = enter(&connections, CROWD);
        let open: Vec<_> = held.iter_mut().map(|(_, held)| is_open(held)).collect();
        assert!(open[0] && !open[1] && open[2..].iter().all(|open| *open));
    }

    #[test]
    fn a_client_that_holds_many_displaces_its_own() {
        let connections = Connections::default();
        let mut alone = enter(&connections, "192.0.2.2");
        let mut held = Vec::new();
        for number in 0..=u16::MAX {
            // All of one /64, or all one IPv4 address in its two forms.
            let crowd = [
                format!("2001:db8::{number:x}"),
                "192.0.2.1".to_owned(),
                "::ffff:192.0.2.1".to_owned(),
            ];
            held.push(enter(&connections, &crowd[usize::from(number % 3)]));
            held.truncate(4 * MAX_CONNECTIONS);
        }
        assert!(is_open(&mut alone.1));
    }

    #[test]
    fn a_place_is_found_if_all_wait_for_answers() {
        let connections = Connections::default();
        let mut held = fill(&connections, CROWD);
        held.iter().for_each(|(place, _)| place.has_asked());
        let mut new = enter(&connections, CROWD);
        assert!(!is_open(&mut held[0].1) && is_open(&mut held[1].1) && is_open(&mut new.1));
    }

    #[test]
    fn a_connection_that_ends_leaves_its_place() {
        let connections = Connections::default();
        let mut held = fill(&connections, CROWD);
        held.pop();
        let _new = enter(&connections, CROWD);
        assert!(held.iter_mut().all(|(_, held)| is_open(held)));
        drop(held);
        assert_eq!(connections.lock().by_number.len(), 1);
    }
}
