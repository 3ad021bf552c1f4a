//! Admission: how many requests an endpoint may have in flight. Three rules, all of them here.
//!
//! **The window** of an endpoint is the number of requests that it has shown to bear. It starts at [`FIRST_WINDOW`]
//! and doubles with each round trip (one more for each good outcome) until the endpoint is overloaded for the first
//! time; from then on it grows by one with each round trip. Overload (no answer in time, 429, 502, 503, 504) halves
//! it, once for all requests that were in flight together; 500 does not, since one poison event is not overload. It
//! is never less than 1 nor more than `endpoint.max_in_flight`. When the breaker of an endpoint closes, its window
//! begins anew, with 1.
//!
//! **The rate** is a bucket of tokens, refilled at `endpoint.rate_limit` and as large as that, at least one. An
//! attempt takes one; probes and tests take none.
//!
//! **The reserve** keeps endpoints that do not answer from taking the room of endpoints that do. Unproven endpoints
//! share half of `webhook.max_in_flight` at most; and while others wait, they get two each. An endpoint is proven
//! while its last outcome is good, be it one that another sender has had, and its oldest request is not older than
//! usual.
//!
//! **Claims ahead.** An endpoint that answers quickly is claimed for ahead of its window: as many deliveries as it
//! takes in the next [`AHEAD`]. They wait until it has room, and go out without a word of the database. So a
//! transaction serves more deliveries, and the wire is not idle meanwhile. Only proven endpoints, without a rate,
//! have claims ahead.
//!
//! Free room is divided evenly among the endpoints that ask, and each division begins with another one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use webhook_delivery::{FailureKind, Outcome};

use crate::budget::Budget;
use crate::ledger::Ledger;
use crate::store::{Due, Wish};

const FIRST_WINDOW: f64 = 8.0;
/// The limit where `endpoint.max_in_flight` is null.
const DEFAULT_LIMIT: usize = 100;
/// The requests in flight to each unproven endpoint, while others wait.
const UNPROVEN_EACH: usize = 2;
/// A request may take this long, or this many times as long as usual, before it puts its endpoint in doubt.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_FACTOR: u32 = 4;
/// How far ahead of the wire deliveries are claimed; for one endpoint at most so many times its requests under way,
/// and at most so many for all endpoints together.
const AHEAD: Duration = Duration::from_millis(20);
const MOST_TIMES_AHEAD: f64 = 2.0;
const MOST_AHEAD: usize = 256;
/// An endpoint that got no request for this long starts like a new one.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quality {
    Good,
    Overloaded,
    Bad,
}

impl Quality {
    /// Nothing where the trouble is our own, or the event's.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        Some(match &outcome.result {
            Ok(response) => match response.status {
                200..=299 => Quality::Good,
                429 | 502 | 503 | 504 => Quality::Overloaded,
                _ => Quality::Bad,
            },
            Err(failure) => match failure.kind {
                FailureKind::Local | FailureKind::InvalidEvent => return None,
                FailureKind::Timeout => Quality::Overloaded,
                _ => Quality::Bad,
            },
        })
    }
}

#[derive(Debug)]
struct Window {
    size: f64,
    is_doubling: bool,
    halved: Option<Instant>,
    /// The last time that at least half of it was in use.
    used: Option<Instant>,
}

impl Window {
    fn starting_at(size: f64) -> Self {
        Window {
            size,
            is_doubling: true,
            halved: None,
            used: None,
        }
    }

    /// Rounding has lost a part of a whole request: it is added.
    fn whole(&self) -> usize {
        (self.size + 1e-6) as usize
    }

    fn use_for(&mut self, in_flight: usize, now: Instant) {
        if 2.0 * in_flight as f64 >= self.size {
            self.used = Some(now);
        }
    }

    /// A window that was not used says nothing about the load that the endpoint would bear.
    fn grow(&mut self, claimed: Instant, limit: usize) {
        if self.used.is_some_and(|used| used >= claimed) {
            let step = if self.is_doubling {
                1.0
            } else {
                1.0 / self.whole() as f64
            };
            self.size = (self.size + step).min(limit as f64);
        }
    }

    /// A request that was under way at the last halving says nothing new: the window was too large already.
    fn shrink(&mut self, begun: Instant, now: Instant) {
        self.is_doubling = false;
        if self.halved.is_none_or(|halved| begun > halved) {
            self.size = (self.size / 2.0).max(1.0);
            self.halved = Some(now);
        }
    }
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn fill(&mut self, rate: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(rate.max(1.0));
        self.filled = now;
    }

    fn available(&self) -> usize {
        // Rounding has lost a part of a whole token.
        (self.tokens + 1e-9).max(0.0) as usize
    }

    fn next_token(&self, rate: f64) -> Instant {
        let missing = (1.0 - self.tokens).max(0.0);
        self.filled + Duration::from_secs_f64((missing / rate).min(86_400.0))
    }
}

#[derive(Debug)]
struct Standing {
    /// Whether the database has told of it; until then it gets one request.
    is_known: bool,
    window: Window,
    limit: usize,
    /// How many requests may be under way: claims beyond that wait.
    granted: usize,
    /// Requests that were granted before the window shrank and have not ended.
    held: usize,
    rate: Option<(f64, Bucket)>,
    breaker_is_closed: bool,
    last: Option<Quality>,
    /// The usual time of a good answer.
    usual: Option<Duration>,
    last_used: Instant,
}

impl Standing {
    fn new(now: Instant) -> Self {
        Standing {
            is_known: false,
            window: Window::starting_at(FIRST_WINDOW),
            limit: DEFAULT_LIMIT,
            granted: 0,
            held: 0,
            rate: None,
            breaker_is_closed: true,
            last: None,
            usual: None,
            last_used: now,
        }
    }

    fn is_proven(&self, oldest: Option<Instant>, now: Instant) -> bool {
        let patience = PATIENCE.max(self.usual.unwrap_or_default() * PATIENCE_FACTOR);
        self.last == Some(Quality::Good)
            && oldest.is_none_or(|begun| now.saturating_duration_since(begun) <= patience)
    }

    fn window(&self) -> usize {
        match self.is_known {
            true => self.window.whole().clamp(1, self.limit),
            false => 1,
        }
    }

    /// How many of so many claims may be under way.
    fn under_way(&self, out: usize) -> usize {
        out.min(self.granted.max(self.held))
    }

    /// Grants so many more requests than are under way now.
    fn grant(&mut self, more: usize, in_flight: usize) {
        self.granted = in_flight.min(self.granted) + more;
    }

    fn narrow(&mut self) {
        let most = self.window();
        if self.granted > most {
            self.held = self.held.max(self.granted);
            self.granted = most;
        }
    }

    /// How many deliveries to claim ahead: as many as it takes in that time, so many at a time.
    fn ahead(&self, ahead: Duration, under_way: usize) -> usize {
        let usual = match self.usual {
            Some(usual) if self.rate.is_none() => usual.as_secs_f64().max(1e-6),
            _ => return 0,
        };
        (under_way as f64 * (ahead.as_secs_f64() / usual).min(MOST_TIMES_AHEAD)) as usize
    }
}

pub struct Admission {
    /// Requests in flight, of all endpoints together.
    pub most: usize,
    ahead: Duration,
    standings: HashMap<i32, Standing>,
    rotation: usize,
    widened: Vec<i32>,
}

/// An endpoint that has something due.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    pub endpoint_id: i32,
    pub is_guarded: bool,
}

impl Admission {
    pub fn new(most: usize) -> Self {
        Admission {
            most,
            ahead: AHEAD,
            standings: HashMap::new(),
            rotation: 0,
            widened: Vec::new(),
        }
    }

    fn standing(&mut self, endpoint_id: i32, now: Instant) -> &mut Standing {
        let standing = self.standings.entry(endpoint_id);
        standing.or_insert_with(|| Standing::new(now))
    }

    pub fn learn(&mut self, due: &Due, now: Instant) {
        let standing = self.standing(due.endpoint_id, now);
        standing.is_known = true;
        standing.limit = due.max_in_flight.unwrap_or(DEFAULT_LIMIT).max(1);
        let bucket = standing.rate.take().map(|(_, bucket)| bucket);
        standing.rate = due.rate_limit.filter(|rate| *rate > 0.0).map(|rate| {
            let full = Bucket {
                tokens: rate.max(1.0),
                filled: now,
            };
            (rate, bucket.unwrap_or(full))
        });
        if due.is_well {
            standing.last.get_or_insert(Quality::Good);
        }
        if due.breaker_is_closed && !standing.breaker_is_closed {
            standing.window = Window::starting_at(1.0);
        }
        standing.breaker_is_closed = due.breaker_is_closed;
        standing.narrow();
    }

    pub fn knows(&self, endpoint_id: i32) -> bool {
        self.standings.contains_key(&endpoint_id)
    }

    /// Whether the database has said anything about it.
    pub fn has_learnt_of(&self, endpoint_id: i32) -> bool {
        let standing = self.standings.get(&endpoint_id);
        standing.is_some_and(|standing| standing.is_known)
    }

    /// Endpoints that answer, whose breaker was closed when the database last said anything about it.
    pub fn well(&self) -> impl Iterator<Item = i32> {
        let well = self.standings.iter().filter(|(_, standing)| {
            let Standing {
                is_known,
                breaker_is_closed,
                last,
                ..
            } = standing;
            *is_known && *breaker_is_closed && *last == Some(Quality::Good)
        });
        well.map(|(endpoint_id, _)| *endpoint_id)
    }

    /// Others have sent to these endpoints since.
    pub fn unlearn(&mut self, which: impl Fn(i32) -> bool) {
        let theirs = self.standings.iter_mut().filter(|(id, _)| which(**id));
        theirs.for_each(|(_, standing)| standing.is_known = false);
    }

    pub fn breaker_is_closed(&self, endpoint_id: i32) -> bool {
        self.standings
            .get(&endpoint_id)
            .is_none_or(|standing| standing.breaker_is_closed)
    }

    /// A request that was claimed then has ended; it took so long.
    pub fn note(
        &mut self,
        endpoint_id: i32,
        quality: Quality,
        claimed: Instant,
        took: Duration,
        now: Instant,
    ) {
        let standing = self.standing(endpoint_id, now);
        standing.last = Some(quality);
        standing.held = standing.held.saturating_sub(1);
        match quality {
            Quality::Good => {
                let usual = standing.usual.unwrap_or(took);
                standing.usual = Some((usual * 7 + took) / 8);
                standing.window.grow(claimed, standing.limit);
            }
            Quality::Overloaded => {
                let began = now.checked_sub(took).unwrap_or(claimed);
                standing.window.shrink(began, now);
                standing.narrow();
            }
            Quality::Bad => {}
        }
    }

    /// How many requests to this endpoint may be under way at a time. Nothing is claimed ahead where the breaker is
    /// not closed, and a probe waits for no request that hangs.
    pub fn limit(&self, endpoint_id: i32) -> usize {
        let standing = self.standings.get(&endpoint_id);
        let standing = standing.filter(|standing| standing.breaker_is_closed);
        standing.map_or(usize::MAX, |standing| standing.granted.max(1))
    }

    /// Deliveries were claimed; the rate counts so many of them.
    pub fn claimed(&mut self, endpoint_id: i32, count: usize, in_flight: usize, now: Instant) {
        let standing = self.standing(endpoint_id, now);
        standing.last_used = now;
        standing
            .window
            .use_for(in_flight.min(standing.granted), now);
        if let Some((rate, bucket)) = &mut standing.rate {
            // The bucket was full until now, and not only until the deliveries were asked for.
            bucket.fill(*rate, now);
            bucket.tokens -= count as f64;
        }
    }

    /// How much to claim for each endpoint that asks. An endpoint that may send a probe or a test is among them
    /// without any room.
    pub fn wishes(
        &mut self,
        mut asking: Vec<Asking>,
        ledger: &Ledger,
        budget: &Budget,
        now: Instant,
    ) -> Vec<Wish> {
        if asking.is_empty() {
            return Vec::new();
        }
        asking.sort_unstable_by_key(|asking| asking.endpoint_id);
        let first = self.rotation % asking.len();
        asking.rotate_left(first);

        let under_way: usize = (ledger.endpoints_out())
            .map(|(endpoint_id, out)| self.under_way(endpoint_id, out))
            .sum();
        let mut free = self.most.saturating_sub(under_way);
        let mut free_ahead = MOST_AHEAD.saturating_sub(ledger.out() - under_way);
        let mut free_to_unproven = (self.most / 2).saturating_sub(self.unproven_out(ledger, now));
        let is_crowded = under_way > self.most
            || free < asking.len() && self.some_lack(&asking, free_to_unproven > 0, ledger, now);
        let undivided = free;
        let others_wait = asking.len() > 1;
        let mut wishes = Vec::with_capacity(asking.len());
        for (
            already,
            &Asking {
                endpoint_id,
                is_guarded,
            },
        ) in asking.iter().enumerate()
        {
            let fair = free.div_ceil(asking.len() - already);
            let in_flight = ledger.out_to(endpoint_id) + ledger.kept_failures_of(endpoint_id);
            let ahead = self.ahead;
            let standing = self.standing(endpoint_id, now);
            let is_proven = standing.is_proven(ledger.oldest_to(endpoint_id), now);
            let under_way = standing.under_way(in_flight);
            let mut window = standing.window();
            let mut most = fair;
            if !is_proven {
                most = most.min(free_to_unproven);
                if others_wait {
                    window = window.min(UNPROVEN_EACH);
                }
            }
            if let Some((rate, bucket)) = &mut standing.rate {
                bucket.fill(*rate, now);
                most = most.min(bucket.available());
            }
            let byte_room = budget.room_of(ledger.bytes_out_to(endpoint_id));
            let is_full = budget.is_full(ledger.bytes_out());
            let more = match is_full {
                false => most.min(window.saturating_sub(under_way)),
                true => most.min(usize::from(in_flight == 0)),
            };
            let waiting = in_flight - under_way;
            let ahead = match is_proven && !is_guarded && !is_full && !is_crowded {
                true => (standing.ahead(ahead, under_way + more)).min(waiting + free_ahead),
                false => 0,
            };
            let count = (more + ahead).saturating_sub(waiting);
            if byte_room > 0 && (count > 0 || is_guarded) {
                standing.grant(more, in_flight);
                wishes.push(Wish {
                    endpoint_id,
                    count,
                    byte_room,
                });
                free_ahead -= ahead.saturating_sub(waiting);
            } else if more > 0 {
                standing.grant(more, in_flight);
                self.widened.push(endpoint_id);
            } else {
                continue;
            }
            free -= more;
            if !is_proven {
                free_to_unproven -= more;
            }
        }
        // A turn without room to divide must not cost an endpoint its place.
        if free < undivided {
            self.rotation = self.rotation.wrapping_add(1);
        }
        wishes
    }

    /// Endpoints that got room, since the last call, for requests that wait already.
    pub fn take_widened(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.widened)
    }

    /// Whether one of these has less than its even part and may have more. While there is no room for it, the others
    /// claim nothing ahead: else a request of theirs that ends would always be followed by one that waits.
    fn some_lack(
        &mut self,
        asking: &[Asking],
        unproven_may_have_more: bool,
        ledger: &Ledger,
        now: Instant,
    ) -> bool {
        let part = (self.most / asking.len()).max(1);
        asking.iter().any(|asking| {
            let id = asking.endpoint_id;
            let standing = self.standing(id, now);
            ledger.out_to(id) < part.min(standing.window())
                && (unproven_may_have_more || standing.is_proven(ledger.oldest_to(id), now))
        })
    }

    fn under_way(&self, endpoint_id: i32, out: usize) -> usize {
        let standing = self.standings.get(&endpoint_id);
        standing.map_or(out, |standing| standing.under_way(out))
    }

    fn unproven_out(&self, ledger: &Ledger, now: Instant) -> usize {
        ledger
            .endpoints_out()
            .filter(|(endpoint_id, _)| {
                let standing = self.standings.get(endpoint_id);
                !standing
                    .is_some_and(|standing| standing.is_proven(ledger.oldest_to(*endpoint_id), now))
            })
            .map(|(_, count)| count)
            .sum()
    }

    /// The time at which an endpoint that is due gets its next token, where only its rate keeps it back.
    pub fn next_token(&self, endpoint_id: i32) -> Option<Instant> {
        let (rate, bucket) = self.standings.get(&endpoint_id)?.rate.as_ref()?;
        (bucket.available() == 0).then(|| bucket.next_token(*rate))
    }

    pub fn forget_unused(&mut self, ledger: &Ledger, now: Instant) {
        self.standings.retain(|endpoint_id, standing| {
            now.saturating_duration_since(standing.last_used) < REMEMBERED_FOR
                || ledger.out_to(*endpoint_id) > 0
                || !standing.breaker_is_closed
        });
    }
}

#[cfg(test)]
mod tests;
