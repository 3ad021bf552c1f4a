//! Claims of this sender: in flight, or ended and not settled yet.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use webhook_delivery::{FailureKind, Key, Outcome};

/// How an attempt ended, as SQL is told.
#[derive(Debug, Clone)]
pub struct Ending {
    pub key: Key,
    pub status_code: Option<i32>,
    /// The code of an attempt without an answer, as sql/03_reasons.sql has it.
    pub failure: Option<&'static str>,
    pub error: Option<String>,
    pub excerpt: Option<String>,
    pub retry_after: Option<Duration>,
    pub duration: Duration,
    /// An attempt that was made, and not with an event of ours.
    pub is_counted: bool,
    /// SQL is told how long ago that was, so that no clock but the database's enters a table.
    pub ended: Instant,
}

impl Ending {
    /// Gives the claim back as if it had never been made.
    pub fn released(key: Key) -> Self {
        Self::without_answer(key, "released", None)
    }

    pub fn out_of_memory(key: Key) -> Self {
        let kind = FailureKind::Local.as_str();
        Self::without_answer(key, kind, Some("not enough memory for the payload"))
    }

    /// No request was made, so this says nothing about the endpoint.
    pub fn event_deleted(key: Key) -> Self {
        let error = "the event was deleted or redacted";
        Self::without_answer(key, "event_deleted", Some(error))
    }

    pub fn endpoint_removed(key: Key) -> Self {
        let error = "the endpoint was removed";
        Self::without_answer(key, "endpoint_removed", Some(error))
    }

    fn is_success(&self) -> bool {
        self.status_code
            .is_some_and(|code| (200..300).contains(&code))
    }

    /// The memory that it takes.
    fn size(&self) -> usize {
        let texts = [&self.error, &self.excerpt];
        let texts = texts.into_iter().flatten().map(String::capacity);
        size_of::<Self>() + texts.sum::<usize>()
    }

    fn without_answer(key: Key, failure: &'static str, error: Option<&str>) -> Self {
        Ending {
            key,
            status_code: None,
            failure: Some(failure),
            error: error.map(str::to_owned),
            excerpt: None,
            retry_after: None,
            duration: Duration::ZERO,
            is_counted: false,
            ended: Instant::now(),
        }
    }
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        let (answer, failure) = match outcome.result {
            Ok(answer) => (Some(answer), None),
            Err(failure) => (None, Some(failure)),
        };
        let is_ours = matches!(&failure, Some(failure) if failure.kind == FailureKind::Local);
        Ending {
            key: outcome.key,
            status_code: answer.as_ref().map(|answer| i32::from(answer.status)),
            retry_after: answer.as_ref().and_then(|answer| answer.retry_after),
            excerpt: answer.map(|answer| answer.excerpt),
            failure: failure.as_ref().map(|failure| failure.kind.as_str()),
            error: failure.map(|failure| failure.message),
            duration: outcome.duration,
            is_counted: !is_ours,
            ended: outcome.ended,
        }
    }
}

#[derive(Default)]
pub struct Ledger {
    out: HashMap<Key, Flight>,
    by_endpoint: HashMap<i32, Flights>,
    bytes_out: usize,
    endings: Vec<Ending>,
    /// Endings that somebody keeps from being settled.
    kept: VecDeque<Ending>,
    /// How many of these are no success, by endpoint.
    kept_failures: HashMap<i32, usize>,
    kept_bytes: usize,
    /// Outcomes that cannot be settled, each by its own fault.
    aside: Vec<Ending>,
}

#[derive(Clone, Copy)]
pub struct Flight {
    pub bytes: usize,
    /// Whether it is an alert or a test.
    pub is_own: bool,
    pub begun: Instant,
}

/// Requests of an endpoint in flight.
#[derive(Default)]
struct Flights {
    count: usize,
    bytes: usize,
    /// In the order in which they began; ended ones are dropped when they come first.
    begun: VecDeque<Key>,
}

impl Ledger {
    pub fn claim(&mut self, key: Key, bytes: usize, is_own: bool, now: Instant) {
        let flight = Flight {
            bytes,
            is_own,
            begun: now,
        };
        if self.out.insert(key, flight).is_none() {
            let flights = self.by_endpoint.entry(key.endpoint_id).or_default();
            flights.count += 1;
            flights.bytes += bytes;
            flights.begun.push_back(key);
            self.bytes_out += bytes;
        }
    }

    /// Returns the flight, if it was one.
    pub fn end(&mut self, mut ending: Ending) -> Option<Flight> {
        let key = ending.key;
        let flight = self.out.remove(&key);
        ending.is_counted &= flight.is_some_and(|flight| !flight.is_own);
        self.endings.push(ending);
        let flight = flight?;
        self.bytes_out -= flight.bytes;
        if let Some(flights) = self.by_endpoint.get_mut(&key.endpoint_id) {
            flights.count -= 1;
            flights.bytes -= flight.bytes;
            while let Some(first) = flights.begun.front()
                && !self.out.contains_key(first)
            {
                flights.begun.pop_front();
            }
            if flights.count == 0 {
                self.by_endpoint.remove(&key.endpoint_id);
            }
        }
        Some(flight)
    }

    pub fn has_endings(&self) -> bool {
        !self.endings.is_empty() || !self.kept.is_empty()
    }

    /// Takes at most so many, the ones first that have waited longest.
    pub fn take_endings(&mut self, most: usize) -> Vec<Ending> {
        if self.kept.is_empty() && self.endings.len() <= most {
            return std::mem::take(&mut self.endings);
        }
        self.keep_endings();
        let taken = self.kept.drain(..most.min(self.kept.len()));
        let taken: Vec<Ending> = taken.collect();
        for ending in &taken {
            self.kept_bytes -= ending.size();
            if !ending.is_success()
                && let Some(count) = self.kept_failures.get_mut(&ending.key.endpoint_id)
            {
                *count -= 1;
            }
        }
        if self.kept.is_empty() {
            self.kept_failures.clear();
        }
        taken
    }

    /// Nothing is settled now.
    pub fn keep_endings(&mut self) {
        let endings = std::mem::take(&mut self.endings);
        self.put_back(endings);
    }

    pub fn put_back(&mut self, endings: impl IntoIterator<Item = Ending>) {
        for ending in endings {
            if !ending.is_success() {
                *self
                    .kept_failures
                    .entry(ending.key.endpoint_id)
                    .or_default() += 1;
            }
            self.kept_bytes += ending.size();
            self.kept.push_back(ending);
        }
    }

    /// Failures that are not settled yet count as in flight: nothing could open a breaker for them.
    pub fn kept_failures_of(&self, endpoint_id: i32) -> usize {
        self.kept_failures.get(&endpoint_id).copied().unwrap_or(0)
    }

    /// The memory of all outcomes that somebody keeps from being settled.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    pub fn set_aside(&mut self, ending: Ending) {
        self.aside.push(ending);
    }

    /// Outcomes that were set aside get another chance.
    pub fn reconsider(&mut self) {
        self.endings.append(&mut self.aside);
    }

    pub fn out(&self) -> usize {
        self.out.len()
    }

    pub fn bytes_out(&self) -> usize {
        self.bytes_out
    }

    pub fn out_to(&self, endpoint_id: i32) -> usize {
        self.by_endpoint.get(&endpoint_id).map_or(0, |f| f.count)
    }

    pub fn bytes_out_to(&self, endpoint_id: i32) -> usize {
        self.by_endpoint.get(&endpoint_id).map_or(0, |f| f.bytes)
    }

    /// When the oldest request to this endpoint began.
    pub fn oldest_to(&self, endpoint_id: i32) -> Option<Instant> {
        let first = self.by_endpoint.get(&endpoint_id)?.begun.front()?;
        self.out.get(first).map(|flight| flight.begun)
    }

    /// Endpoints with something in flight, each with how much.
    pub fn endpoints_out(&self) -> impl Iterator<Item = (i32, usize)> {
        let endpoints = self.by_endpoint.iter();
        endpoints.map(|(endpoint, flights)| (*endpoint, flights.count))
    }

    pub fn keys_out(&self) -> Vec<Key> {
        self.out.keys().copied().collect()
    }

    /// All claims under this sender's number.
    pub fn keys(&self) -> Vec<Key> {
        let ended = (self.endings.iter()).chain(&self.kept).chain(&self.aside);
        let ended = ended.map(|ending| ending.key);
        self.out.keys().copied().chain(ended).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn key(n: u128) -> Key {
        Key {
            event_id: Uuid::from_u128(n),
            endpoint_id: 1,
            claim_seq: 1,
        }
    }

    #[test]
    fn the_oldest_request_is_the_first_that_has_not_ended() {
        let mut ledger = Ledger::default();
        let start = Instant::now();
        for n in 0..4u32 {
            ledger.claim(
                key(u128::from(n)),
                10,
                false,
                start + Duration::from_secs(u64::from(n)),
            );
        }
        ledger.end(Ending::released(key(1)));
        assert_eq!(ledger.oldest_to(1), Some(start));
        ledger.end(Ending::released(key(0)));
        assert_eq!(ledger.oldest_to(1), Some(start + Duration::from_secs(2)));
        assert_eq!((ledger.out_to(1), ledger.bytes_out_to(1)), (2, 20));
        ledger.end(Ending::released(key(2)));
        ledger.end(Ending::released(key(3)));
        assert_eq!(ledger.oldest_to(1), None);
        assert_eq!((ledger.out(), ledger.bytes_out()), (0, 0));
    }

    #[test]
    fn an_ending_of_something_that_is_not_in_flight_is_kept_and_changes_no_count() {
        let mut ledger = Ledger::default();
        ledger.claim(key(1), 10, false, Instant::now());
        assert!(ledger.end(Ending::released(key(2))).is_none());
        assert_eq!(
            (ledger.out(), ledger.take_endings(usize::MAX).len()),
            (1, 1)
        );
    }

    #[test]
    fn kept_endings_come_back_in_their_order_and_are_counted_meanwhile() {
        let mut ledger = Ledger::default();
        let endings = (0..4).map(|n| Ending::released(key(n)));
        ledger.put_back(endings);
        ledger.end(Ending::released(key(4)));
        assert_eq!(ledger.kept_failures_of(1), 4);
        let events = |endings: Vec<Ending>| -> Vec<u128> {
            let ids = endings.iter().map(|ending| ending.key.event_id);
            ids.map(|id| id.as_u128()).collect()
        };
        let first = ledger.take_endings(2);
        assert_eq!(ledger.kept_failures_of(1), 3, "the new one is kept too");
        assert!(ledger.kept_bytes() > 0);
        ledger.put_back(first);
        assert_eq!(events(ledger.take_endings(usize::MAX)), [2, 3, 4, 0, 1]);
        assert_eq!((ledger.kept_failures_of(1), ledger.kept_bytes()), (0, 0));
        assert!(!ledger.has_endings());
    }
}
