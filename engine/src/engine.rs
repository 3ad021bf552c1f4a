//! The turn.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use webhook_delivery::Key;

use crate::admission::{Admission, Asking, Quality};
use crate::agenda::{self, Agenda, LOCKED_RETRY, Wake};
use crate::budget::Budget;
use crate::figures::Figures;
use crate::housekeeping::Housekeeping;
use crate::ledger::{Ending, Ledger};
use crate::settling::{self, Settling};
use crate::shares::Ring;
use crate::store::{BEGINNING, Due, Exchanged, Store, Wishes};
use crate::trouble::Trouble;
use crate::wire::Wire;

/// Of an exchange that met a person who moved the same rows, before it counts as an error.
const MOST_RERUNS: u32 = 10;
const FIRST_ERROR_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_ERROR_PAUSE: Duration = Duration::from_secs(10);
/// A table that is locked is free again at any moment.
const LONGEST_LOCK_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Config {
    /// Requests in flight, of all endpoints together.
    pub max_in_flight: usize,
    /// Everything is looked at this often, whatever is told meanwhile.
    pub poll_interval: Duration,
    pub stale_after: Duration,
}

/// What the engine may not do now.
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
    /// It was dropped and made anew: begin anew too.
    Replaced,
    /// Requests in flight cannot be settled: whoever comes when both speak one protocol again recovers them.
    OtherProtocol,
}

/// What the host is to say in its log.
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
    /// Taken when first something may be claimed.
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
    /// Of the last exchange that has failed, until one succeeds.
    last_error: Option<String>,
    reruns: u32,
    next_turning_away: Instant,
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

    /// Less is claimed at a time, until it is not short any more.
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

    /// Takes what has ended from the wire.
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
        // After an error they go one by one, so that trouble with one never keeps the others back.
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

    fn settle_and_claim(
        &mut self,
        settles: bool,
        cautious: bool,
        now: Instant,
    ) -> Result<Duration, Trouble> {
        let wishes = match self.hold {
            None => self.wishes(cautious, now)?,
            Some(_) => Wishes::default(),
        };
        let has_changes = self.hold.is_none() && self.agenda.changed().next().is_some();
        let has_endings = settles && self.ledger.has_endings();
        if !has_endings && wishes.of_endpoints.is_empty() && !has_changes {
            return Ok(self.config.poll_interval);
        }
        let most = match settles {
            true => self.settling.handful(),
            false => 0,
        };
        match self.hand_in(most, wishes) {
            // Claims go on.
            Err(trouble) if has_endings && trouble.is_lock_not_available() => Ok(Duration::ZERO),
            handed_in => handed_in,
        }
    }

    fn wishes(&mut self, cautious: bool, now: Instant) -> Result<Wishes, Trouble> {
        // Whoever claims has a number.
        self.sender()?;
        if let Some(after) = self.agenda.look_after(now) {
            let begun = Instant::now();
            let page = self.store.agenda(after, agenda::PAGE)?;
            for due in &page.due {
                self.learn(due, now);
            }
            let took = begun.elapsed();
            self.agenda
                .looked_at(&page, now, took, self.config.poll_interval);
        }
        let asking: Vec<Asking> = self.agenda.asking(now).collect();
        let mut unknown: HashSet<i32> = (asking.iter().map(|asking| asking.endpoint_id))
            .filter(|id| !self.admission.has_learnt_of(*id))
            .collect();
        let wishes = self.wishes_of(asking, cautious, now)?;
        // There is no room for newcomers, and it may be none.
        for wish in &wishes.of_endpoints {
            unknown.remove(&wish.endpoint_id);
        }
        for id in unknown {
            self.agenda.wake(Wake::Changed { id }, now);
        }
        Ok(wishes)
    }

    pub(crate) fn wishes_of(
        &mut self,
        asking: Vec<Asking>,
        cautious: bool,
        now: Instant,
    ) -> Result<Wishes, Trouble> {
        let sender = self.sender()?;
        let mut wishes = match self.ledger.kept_bytes() < settling::MOST_BYTES {
            true => (self.admission).wishes(asking, &self.ledger, &self.budget, now),
            false => Vec::new(),
        };
        let widened = self.admission.take_widened();
        self.tell_limits(widened);
        if cautious {
            // One at a time, each turn another one: what cannot be claimed must not stop the rest.
            wishes.truncate(1);
            wishes
                .iter_mut()
                .for_each(|wish| wish.count = wish.count.min(1));
        }
        Ok(Wishes {
            sender: Some(sender),
            of_endpoints: wishes,
            byte_room: self.budget.room(self.ledger.bytes_out()),
            ..Wishes::default()
        })
    }

    /// It is committed: hand the claims to the wire, and see when to come back.
    fn exchanged(
        &mut self,
        endings: Vec<Ending>,
        wishes: &Wishes,
        exchanged: Exchanged,
    ) -> Duration {
        let now = Instant::now();
        let locked = |ending: &Ending| exchanged.locked.contains(&ending.key);
        if !endings.is_empty() {
            let finished = exchanged.finished.iter().map(|group| group.deliveries);
            let finished = usize::try_from(finished.sum::<i64>()).unwrap_or(0);
            self.housekeeping.retention.finished(finished);
            self.figures.finished(&exchanged.finished);
            self.figures
                .attempted(endings.iter().filter(|ending| !locked(ending)));
            self.housekeeping.expect_alerts();
        }
        self.ledger.put_back(endings.into_iter().filter(locked));

        for due in &exchanged.due {
            self.learn(due, now);
            self.agenda.learn(due, now);
        }

        let mut got: HashMap<i32, Got> = HashMap::new();
        for attempt in &exchanged.claimed.attempts {
            let is_own = attempt.event_type.starts_with("webhook.");
            self.ledger
                .claim(attempt.key, attempt.payload.len(), is_own, now);
            let got = got.entry(attempt.key.endpoint_id).or_default();
            got.all += 1;
            got.of_the_rate += usize::from(!attempt.is_test());
        }
        for ending in exchanged.claimed.endings {
            self.ledger.claim(ending.key, 0, false, now);
            got.entry(ending.key.endpoint_id).or_default().all += 1;
            self.ledger.end(ending);
        }

        let mut pause = Duration::MAX;
        let mut limits = Vec::with_capacity(wishes.of_endpoints.len());
        for wish in &wishes.of_endpoints {
            let got = got.get(&wish.endpoint_id).copied().unwrap_or_default();
            // A probe is no attempt that the rate counts.
            let of_the_rate = match self.admission.breaker_is_closed(wish.endpoint_id) {
                true => got.of_the_rate,
                false => 0,
            };
            let in_flight = self.ledger.out_to(wish.endpoint_id);
            self.admission
                .claimed(wish.endpoint_id, of_the_rate, in_flight, now);
            limits.push((wish.endpoint_id, self.admission.limit(wish.endpoint_id)));
            if got.all == 0 {
                self.agenda.put_off_what_is_due(wish.endpoint_id, now);
            } else if got.all >= wish.count {
                // There may be more.
                pause = Duration::ZERO;
            }
        }
        self.wire.submit(&limits, exchanged.claimed.attempts);
        if self.ledger.has_endings() {
            pause = pause.min(LOCKED_RETRY);
        }
        pause
    }

    /// What waits for an endpoint that nothing is sent to now, or that is another one, is given back.
    fn learn(&mut self, due: &Due, now: Instant) {
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

    /// How many requests to these endpoints may be under way from now on.
    fn tell_limits(&self, endpoints: impl IntoIterator<Item = i32>) {
        let limit = |id| (id, self.admission.limit(id));
        let limits: Vec<_> = endpoints.into_iter().map(limit).collect();
        if !limits.is_empty() {
            self.wire.submit(&limits, Vec::new());
        }
    }

    /// Gives back what has not gone out yet, of these claims.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Key) -> bool) {
        for key in self.wire.withdraw(&which) {
            self.ledger.end(Ending::released(key));
        }
    }

    /// One that cannot be settled, say under a policy with an impossible delay, is set aside and must not keep
    /// the others back.
    fn settle_one_by_one(&mut self) -> Result<(), Trouble> {
        let mut endings = self
            .ledger
            .take_endings(self.settling.handful())
            .into_iter();
        while let Some(mut ending) = endings.next() {
            let one = std::slice::from_ref(&ending);
            let wishes = self.about(one, Wishes::default());
            match self.store.exchange(one, &wishes) {
                Ok(exchanged) => {
                    self.exchanged(vec![ending], &wishes, exchanged);
                }
                Err(trouble) if trouble.is_about_data() => {
                    let message = format!("outcome set aside: {}", trouble.message);
                    self.notices.push(Notice::Error(message));
                    self.ledger.set_aside(ending);
                }
                Err(trouble) => {
                    ending.is_counted &= !trouble.commit_unknown;
                    self.look_for_lock(&trouble, 1);
                    self.ledger.put_back(endings.chain(std::iter::once(ending)));
                    return Err(trouble);
                }
            }
        }
        Ok(())
    }

    /// Settles what has ended and claims nothing.
    pub(crate) fn settle(&mut self) -> Result<(), Trouble> {
        match self.ledger.has_endings() {
            true => self
                .hand_in(self.settling.handful(), Wishes::default())
                .map(drop),
            false => Ok(()),
        }
    }

    /// Hands in what has ended, at most so much; where that fails, it stays here.
    pub(crate) fn hand_in(&mut self, most: usize, wishes: Wishes) -> Result<Duration, Trouble> {
        let mut endings = self.ledger.take_endings(most);
        let wishes = self.about(&endings, wishes);
        match self.store.exchange(&endings, &wishes) {
            Ok(exchanged) => {
                let settled = endings.len() - exchanged.locked.len();
                let pause = self.exchanged(endings, &wishes, exchanged);
                let is_free = match self.ledger.has_endings() {
                    true => settled > 0,
                    false => !wishes.breakers_are_locked,
                };
                let more = is_free && self.settling.goes_on(self.ledger.has_endings());
                Ok(if more { Duration::ZERO } else { pause })
            }
            Err(trouble) => {
                self.look_for_lock(&trouble, endings.len());
                // Where they are settled already, nobody hears what has become of them: figures lack all of it.
                if trouble.commit_unknown {
                    endings
                        .iter_mut()
                        .for_each(|ending| ending.is_counted = false);
                }
                self.ledger.put_back(endings);
                Err(trouble)
            }
        }
    }

    fn look_for_lock(&mut self, trouble: &Trouble, outcomes: usize) {
        if outcomes > 0
            && trouble.is_lock_not_available()
            && self.settling.met_a_lock(outcomes, Instant::now())
        {
            let message = "outcomes wait in memory: a table that they are written to is locked";
            self.notices.push(Notice::Error(message.to_owned()));
        }
    }

    /// Adds the endpoints that there is something to ask about.
    fn about(&self, endings: &[Ending], wishes: Wishes) -> Wishes {
        let wished = wishes.of_endpoints.iter().map(|wish| wish.endpoint_id);
        let mut asked: Vec<i32> = wished.collect();
        if wishes.breakers_are_locked {
            let from_the_beginning = asked.into_iter().map(|id| (id, BEGINNING));
            return Wishes {
                asked: from_the_beginning.collect(),
                ..wishes
            };
        }
        let mut known: HashSet<i32> = asked.iter().copied().collect();
        asked.extend(self.agenda.changed().filter(|id| known.insert(*id)));
        let without_endings = asked.len();
        let ended = endings.iter().map(|ending| ending.key.endpoint_id);
        asked.extend(ended.filter(|id| known.insert(*id)));
        Wishes {
            asked_for_endings: asked.len() - without_endings,
            asked: (asked.into_iter().map(|id| (id, self.agenda.position(id)))).collect(),
            ..wishes
        }
    }

    /// Ends what is due for endpoints whose open breaker holds nothing, and says when to do so again. It has a
    /// transaction of its own: what somebody's trigger does not let end must not keep deliveries back. Not in every
    /// turn: each time counts in the metrics, and so leaves a version of their rows.
    fn turn_away(&mut self, now: Instant) -> Duration {
        const PAGE: i32 = 1000;
        const EVERY: Duration = Duration::from_millis(250);
        const AFTER_TROUBLE: Duration = Duration::from_secs(5);
        let endpoints = self.agenda.turning_away();
        if endpoints.is_empty() {
            return Duration::MAX;
        }
        if now < self.next_turning_away {
            return self.next_turning_away - now;
        }
        let pause = match self.store.turn_away(endpoints, PAGE) {
            // Whoever commits more wakes us.
            Ok(0) => return Duration::MAX,
            Ok(turned_away) => {
                self.housekeeping.expect_alerts();
                match turned_away >= i64::from(PAGE) {
                    true => Duration::ZERO,
                    false => EVERY,
                }
            }
            Err(trouble) => {
                self.complain(&trouble);
                AFTER_TROUBLE
            }
        };
        self.next_turning_away = now + pause;
        pause
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

/// How many deliveries of an endpoint were claimed.
#[derive(Clone, Copy, Default)]
struct Got {
    all: usize,
    of_the_rate: usize,
}

#[cfg(test)]
mod tests;
