//! Attempts whose host has no address yet. They wait here and not on a thread of the pool, or a few names that
//! hang would hold them all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::resolver::{self, Answer};

#[derive(Default)]
pub(crate) struct Lobby {
    by_name: HashMap<String, Vec<Guest>>,
}

pub(crate) struct Guest {
    pub attempt: Attempt,
    since: Instant,
}

impl Guest {
    pub fn new(attempt: Attempt) -> Guest {
        Guest {
            attempt,
            since: Instant::now(),
        }
    }

    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    fn is_late(&self) -> bool {
        self.waited() >= self.attempt.route.connect_timeout
    }
}

impl Lobby {
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn receive(&mut self, name: String, guest: Guest) {
        self.by_name.entry(name).or_default().push(guest);
    }

    /// Those whose host is known now, and those who have waited long enough.
    pub fn leave(
        &mut self,
        known: impl Fn(&str) -> Option<Answer>,
    ) -> Vec<(Guest, Result<(), Failure>)> {
        let mut leaving = Vec::new();
        self.by_name.retain(|name, guests| {
            let answer = known(name);
            let leaves = |guest: &mut Guest| answer.is_some() || guest.is_late();
            let result = answer
                .clone()
                .unwrap_or_else(|| Err(resolver::late()))
                .map(drop);
            leaving.extend(
                guests
                    .extract_if(.., leaves)
                    .map(|guest| (guest, result.clone())),
            );
            !guests.is_empty()
        });
        leaving
    }

    pub fn withdraw(&mut self) -> Vec<Attempt> {
        let guests = self.by_name.drain().flat_map(|(_, guests)| guests);
        guests.map(|guest| guest.attempt).collect()
    }
}
