//! One exchange with the database: outcomes go in, claims and the endpoints' next times come out.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::agenda::LOCKED_RETRY;
use crate::engine::{Engine, Notice};
use crate::ledger::Ending;
use crate::store::{BEGINNING, Exchanged, Store, Wishes};
use crate::trouble::Trouble;
use crate::wire::Wire;

impl<S: Store, W: Wire> Engine<S, W> {
    pub(crate) fn settle_and_claim(
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

    /// Settles outcomes and claims nothing.
    pub(crate) fn settle(&mut self) -> Result<(), Trouble> {
        match self.ledger.has_endings() {
            true => self
                .hand_in(self.settling.handful(), Wishes::default())
                .map(drop),
            false => Ok(()),
        }
    }

    /// An outcome that cannot be settled, say under a policy with an impossible delay, is set aside and must not keep
    /// the others back.
    pub(crate) fn settle_one_by_one(&mut self) -> Result<(), Trouble> {
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

    /// Hands in outcomes, at most so many; where that fails, they stay here.
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
                // If they are settled already, nobody hears how: figures lack all of it.
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

    /// Adds the endpoints to ask about.
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

    /// The exchange is committed: hands the claims to the wire, and says when to come back.
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

    fn look_for_lock(&mut self, trouble: &Trouble, outcomes: usize) {
        if outcomes > 0
            && trouble.is_lock_not_available()
            && self.settling.met_a_lock(outcomes, Instant::now())
        {
            let message = "outcomes wait in memory: a table that they are written to is locked";
            self.notices.push(Notice::Error(message.to_owned()));
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Got {
    all: usize,
    of_the_rate: usize,
}
