//! The turn: collect outcomes, keep house, exchange with the database, and say how long there is nothing to do.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use webhook_delivery::Key;

use crate::admission::{Admission, Quality};
use crate::agenda::{Agenda, Wake};
use crate::budget::Budget;
use crate::figures::Figures;
use crate::housekeeping::Housekeeping;
use crate::ledger::{Ending, Ledger};
use crate::settling::Settling;
use crate::shares::Ring;
use crate::store::{Due, Store};
use crate::trouble::Trouble;
use crate::wire::Wire;

/// Reruns of an exchange that met a person who moved the same rows, before it counts as an error.
const MOST_RERUNS: u32 = 10;
const FIRST_ERROR_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_ERROR_PAUSE: Duration = Duration::from_secs(10);
/// A table that is locked is free again at any moment.
const LONGEST_LOCK_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Config {
    /// Requests in flight, of all endpoints together.
    pub max_in_flight: usize,
    /// The engine looks at everything this often, whatever commits tell meanwhile.
    pub poll_interval: Duration,
    pub stale_after: Duration,
}

/// Work that the engine may not do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Outcomes are settled all the same.
    Claiming,
    /// The server is read-only.
    Writing,
}

/// Why the engine cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The SQL is not there any more.
    Gone,
    /// The SQL was dropped and made anew: begin anew too.
    Replaced,
    /// Requests in flight cannot be settled: the next sender that speaks the protocol of the SQL recovers them.
    OtherProtocol,
}

/// A message for the host's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Error(String),
    Warning {
        /// SQLSTATE.
        code: &'static str,
        message: String,
        hint: String,
    },
    Log(String),
}

pub struct Engine<S, W> {
    pub(crate) store: S,
    pub(crate) wire: W,
    pub(crate) config: Config,
    pub(crate) installation: String,
    pub(crate) database: String,
    pub(crate) hold: Option<Hold>,
    /// Taken when something may be claimed for the first time.
    pub(crate) sender: Option<i32>,
    /// The run before it, which has lost its session.
    pub(crate) earlier: Option<i32>,
    pub(crate) ledger: Ledger,
    pub(crate) admission: Admission,
    pub(crate) agenda: Agenda,
    pub(crate) next_look_at_shares: Instant,
    pub(crate) ring: Ring,
    pub(crate) budget: Budget,
    pub(crate) figures: Figures,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) notices: Vec<Notice>,
    pub(crate) settling: Settling,
    errors_in_a_row: u32,
    /// The message of the last exchange that failed, until one succeeds.
    last_error: Option<String>,
    reruns: u32,
    pub(crate) next_turning_away: Instant,
}

impl<S: Store, W: Wire> Engine<S, W> {
    /// `installation` and `database` as [`Store::examine`] has told them.
    pub fn new(store: S, wire: W, config: Config, installation: String, database: String) -> Self {
        let now = Instant::now();
        Engine {
            store,
            wire,
            admission: Admission::new(config.max_in_flight),
            config,
            installation,
            database,
            hold: None,
            sender: None,
            earlier: None,
            ledger: Ledger::default(),
            agenda: Agenda::default(),
            next_look_at_shares: now,
            ring: Ring::default(),
            budget: Budget::default(),
            figures: Figures::default(),
            housekeeping: Housekeeping::starting(now),
            notices: Vec::new(),
            settling: Settling::default(),
            errors_in_a_row: 0,
            last_error: None,
            reruns: 0,
            next_turning_away: now,
        }
    }

    pub fn configure(&mut self, config: Config) {
        self.admission.most = config.max_in_flight;
        self.config = config;
        self.housekeeping.survey_soon();
        self.next_look_at_shares = Instant::now();
        self.agenda.wake(Wake::Anything, Instant::now());
    }

    pub fn hold(&mut self, hold: Option<Hold>) {
        if hold.is_some() && self.hold.is_none() {
            self.withdraw_waiting();
        }
        self.hold = hold;
    }

    pub fn wire(&self) -> &W {
        &self.wire
    }

    pub fn store(&mut self) -> &mut S {
        &mut self.store
    }

    pub fn in_flight(&self) -> usize {
        self.ledger.out()
    }

    /// Why nothing is delivered at the moment, if so.
    pub fn trouble(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// In how long something is due, as far as is known.
    pub fn next_due(&self) -> Duration {
        self.agenda.earliest(Instant::now())
    }

    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Less is claimed at a time, until memory is not short any more.
    pub fn memory_is_short(&mut self) {
        self.budget.halve();
    }

    /// Says how long there is nothing to do.
    pub fn turn(&mut self) -> Result<Duration, End> {
        let now = Instant::now();
        self.collect();
        self.look_at_shares(now);
        self.keep_house(now)?;
        match self.exchange(now) {
            Ok(pause) => {
                if self.hold.is_none() {
                    self.errors_in_a_row = 0;
                    self.last_error = None;
                }
                self.reruns = 0;
                Ok(self.retain(pause).min(self.ring_for_others(now)))
            }
            Err(trouble) => self.after(trouble),
        }
    }

    /// Takes outcomes from the wire.
    pub(crate) fn collect(&mut self) {
        let mut failed = HashSet::new();
        for outcome in self.wire.take_outcomes() {
            let (quality, duration, ended) =
                (Quality::of(&outcome), outcome.duration, outcome.ended);
            let endpoint_id = outcome.key.endpoint_id;
            if let Some(flight) = self.ledger.end(Ending::from(outcome))
                && let Some(quality) = quality
            {
                self.admission
                    .note(endpoint_id, quality, flight.begun, duration, ended);
            }
            if quality != Some(Quality::Good) && self.ledger.out_to(endpoint_id) > 0 {
                failed.insert(endpoint_id);
            }
        }
        self.tell_limits(failed);
    }

    fn after(&mut self, trouble: Trouble) -> Result<Duration, End> {
        if trouble.is_passing() && self.reruns < MOST_RERUNS {
            self.reruns += 1;
            return Ok(Duration::ZERO);
        }
        if trouble.commit_unknown {
            self.housekeeping.recovery.begin_anew();
            self.agenda.wake(Wake::Anything, Instant::now());
        }
        self.errors_in_a_row += 1;
        if let Ok(None) = self.store.examine() {
            return Err(End::Gone);
        }
        if self.errors_in_a_row.is_power_of_two() {
            self.notices.push(Notice::Error(trouble.message.clone()));
        }
        let longest = match trouble.is_lock_not_available() {
            true => LONGEST_LOCK_PAUSE,
            false => LONGEST_ERROR_PAUSE,
        };
        self.last_error = Some(trouble.message);
        let pause = FIRST_ERROR_PAUSE * 2u32.pow(self.errors_in_a_row.min(10));
        Ok(pause.min(longest))
    }

    pub(crate) fn complain(&mut self, trouble: &Trouble) {
        if !trouble.is_passing() {
            self.notices.push(Notice::Error(trouble.message.clone()));
        }
    }

    /// This run's number, taken when it is first needed: a server that is read-only has none to give.
    pub(crate) fn sender(&mut self) -> Result<i32, Trouble> {
        if let Some(sender) = self.sender {
            return Ok(sender);
        }
        let earlier = self.earlier.into_iter().collect();
        let sender = self.store.begin_sender(earlier)?;
        self.earlier = None;
        Ok(*self.sender.insert(sender))
    }

    fn exchange(&mut self, now: Instant) -> Result<Duration, Trouble> {
        if self.hold == Some(Hold::Writing) {
            return Ok(self.config.poll_interval);
        }
        // After an error outcomes and claims go one by one, so that trouble with one never keeps the others back.
        let cautious = self.errors_in_a_row > 0;
        let settles = self.settling.wait(now).is_none();
        if cautious && settles {
            self.settle_one_by_one()?;
        }
        let is_blind = self.hold.is_none() && self.settling.hides_breakers(now);
        let mut pause = match is_blind {
            true => self.claim_blindly(cautious, now)?,
            false => match self.settle_and_claim(settles, cautious, now) {
                Err(trouble) if self.is_blinded_by(&trouble) => {
                    self.claim_blindly(cautious, now)?
                }
                done => done?,
            },
        };
        if let Some(wait) = self.settling.wait(Instant::now()) {
            pause = pause.min(wait);
        }
        if self.hold.is_some() || self.settling.hides_breakers(Instant::now()) {
            return Ok(pause.min(self.until_housekeeping(now)));
        }
        Ok(pause.min(self.turn_away(now)).min(self.until_next(now)))
    }

    /// Gives claims back that wait for the endpoint, if it gets nothing now or has changed.
    pub(crate) fn learn(&mut self, due: &Due, now: Instant) {
        let id = due.endpoint_id;
        let was_closed = self.admission.breaker_is_closed(id);
        let earlier_limit = self.admission.limit(id);
        self.admission.learn(due, now);
        if self.ledger.out_to(id) == 0 {
            return;
        }
        let has_opened = was_closed && !due.breaker_is_closed;
        let is_served = due.position.is_some();
        if has_opened || !is_served || self.agenda.is_changed(id) {
            self.withdraw(|key| key.endpoint_id == id);
        }
        if self.admission.limit(id) != earlier_limit {
            self.tell_limits([id]);
        }
    }

    /// Tells the wire how many requests to these endpoints may be under way from now on.
    pub(crate) fn tell_limits(&self, endpoints: impl IntoIterator<Item = i32>) {
        let limit = |id| (id, self.admission.limit(id));
        let limits: Vec<_> = endpoints.into_iter().map(limit).collect();
        if !limits.is_empty() {
            self.wire.submit(&limits, Vec::new());
        }
    }

    /// Gives these claims back, but for those that have gone out already.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Key) -> bool) {
        for key in self.wire.withdraw(&which) {
            self.ledger.end(Ending::released(key));
        }
    }

    /// A delivery that is due and has no room goes out when an outcome makes room, which wakes us anyway; or with the
    /// next token.
    fn until_next(&self, now: Instant) -> Duration {
        let tokens = self
            .agenda
            .asking(now)
            .filter_map(|asking| self.admission.next_token(asking.endpoint_id));
        let next = tokens.chain(self.agenda.next(now)).min();
        let next = next.map_or(self.config.poll_interval, |next| {
            next.saturating_duration_since(now)
        });
        next.min(self.config.poll_interval)
            .min(self.until_look_at_shares(now))
            .min(self.until_housekeeping(now))
    }
}

#[cfg(test)]
mod tests;
