//! One turn of the worker: settle what has ended, read the agenda, claim what is due, hand it to the pool;
//! all of it one transaction, so that a busy worker commits once where it would twice.

use super::{End, Worker, heed_termination, report_error, say, shortage};
use crate::memory;
use crate::notice;
use crate::protocol;
use crate::shmem::State;
use crate::store::{self, Alert, Claimed, Ending, Quota, Settled, Tally, Trouble, Waiting};
use crate::wake;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Endpoints read at a time; bounds what a turn costs where many have something queued.
const AGENDA_PAGE: usize = 300;
/// What somebody has locked is tried again after this.
const LOCKED_RETRY: Duration = Duration::from_millis(250);
pub(super) const SURVEY_EVERY: Duration = Duration::from_secs(5);
/// What is ended in one turn of endpoints that are not sent to.
const PARKED_PAGE: i32 = 1000;
const TURNING_AWAY_EVERY: Duration = Duration::from_millis(250);
const ALERTS_EVERY: Duration = Duration::from_secs(1);
/// Of a batch that met a person who moved the same rows, before it counts as an error.
const MOST_RERUNS: u32 = 10;
const LONGEST_ERROR_PAUSE: Duration = Duration::from_secs(10);

/// Where the reading of the agenda stands: page after page until the last endpoint, then sleep.
#[derive(Default)]
pub struct Agenda {
    after_endpoint: i32,
    /// The earliest time at which something met so far becomes due.
    next_due: Option<Instant>,
    /// Something was claimed, and what is behind it was not seen; or somebody has committed meanwhile.
    again: bool,
    /// Rotates who comes first where there is not room for all.
    rotation: usize,
    /// Endpoints that had more than was claimed, with their shares: asked in every turn, wherever the reading is.
    busy: HashMap<i32, usize>,
}

impl Agenda {
    /// Something new may be on a page that was read already. The reading goes on to its end all the same, or
    /// those who commit all the time would keep it on the first page.
    pub fn woken(&mut self) {
        self.again |= self.after_endpoint != 0;
    }

    fn begin_anew(&mut self) {
        *self = Agenda {
            rotation: self.rotation.wrapping_add(1),
            busy: std::mem::take(&mut self.busy),
            ..Agenda::default()
        };
    }
}

impl Worker {
    /// Says how long there is nothing to do.
    pub(super) fn turn(&mut self) -> Result<Duration, End> {
        for outcome in self.pool.take_outcomes() {
            self.ledger.end(Ending::from(outcome));
        }
        self.look_for_memory();
        self.keep_house()?;
        heed_termination()?;
        match self.settle_and_claim() {
            Ok(pause) => {
                if !memory::is_short() {
                    self.errors_in_a_row = 0;
                }
                self.reruns = 0;
                self.report_state();
                heed_termination()?;
                let pause = self.retain(pause);
                Ok(match memory::is_short() {
                    true => pause.min(shortage::RETRY),
                    false => pause,
                })
            }
            Err(trouble) => self.after(trouble),
        }
    }

    fn after(&mut self, trouble: Trouble) -> Result<Duration, End> {
        heed_termination()?;
        if trouble.is_passing() && self.reruns < MOST_RERUNS {
            self.reruns += 1;
            return Ok(Duration::ZERO);
        }
        if trouble.code == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY {
            memory::run_short();
        }
        self.errors_in_a_row += 1;
        self.agenda.rotation = self.agenda.rotation.wrapping_add(1);
        if let Ok(None) = store::transaction(|client| store::find_extension(client)) {
            return Err(End::ExtensionGone);
        }
        if self.errors_in_a_row.is_power_of_two() {
            report_error(self.database, &trouble.message);
        }
        Ok(
            (Duration::from_millis(50) * 2u32.pow(self.errors_in_a_row.min(10)))
                .min(LONGEST_ERROR_PAUSE),
        )
    }

    /// Trouble here must not keep deliveries back: it is reported, and tried again with the next survey.
    fn keep_house(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if now >= self.next_survey {
            self.next_survey = now + SURVEY_EVERY;
            self.claim_more_again();
            match self.survey() {
                Ok(Some(end)) => return Err(end),
                Ok(None) => {}
                Err(trouble) => self.complain(&trouble),
            }
        }
        heed_termination()?;
        if now >= self.next_expiry {
            self.next_expiry = now + SURVEY_EVERY;
            if !is_read_only()
                && let Err(trouble) = self.expire_waiting()
            {
                self.complain(&trouble);
            }
        }
        heed_termination()?;
        if now >= self.recovery.next
            && self.hold().is_none()
            && let Err(trouble) = self.recover()
        {
            self.complain(&trouble);
        }
        heed_termination()?;
        if self.next_alerts.is_some_and(|at| Instant::now() >= at) && !is_read_only() {
            self.next_alerts = None;
            self.last_alerts = now;
            match store::transaction(store::raise_alerts) {
                Ok(alerts) => {
                    if !alerts.is_empty() {
                        // There may be another page.
                        self.expect_alerts();
                    }
                    alerts.into_iter().for_each(log_alert);
                }
                Err(trouble) => self.complain(&trouble),
            }
        }
        Ok(())
    }

    /// Something was settled that may have left alerts.
    pub(super) fn expect_alerts(&mut self) {
        self.next_alerts
            .get_or_insert((self.last_alerts + ALERTS_EVERY).max(Instant::now()));
    }

    pub(super) fn complain(&self, trouble: &Trouble) {
        if !trouble.is_passing() {
            report_error(self.database, &trouble.message);
        }
    }

    /// This run's number, taken when it is first needed: a server that is read-only has none to give.
    pub(super) fn instance(&mut self) -> Result<Option<i32>, Trouble> {
        if self.instance.is_none() {
            self.instance = Some(store::transaction(store::begin_instance)?);
        }
        Ok(self.instance)
    }

    /// What changes seldom and tells nobody. Says whether this worker has to end.
    fn survey(&mut self) -> Result<Option<End>, Trouble> {
        let found = store::transaction(|client| {
            let Some(extension) = store::find_extension(client)? else {
                return Ok(None);
            };
            if protocol::problem(store::protocol(client)?).is_some() {
                return Ok(Some(Err(End::OtherProtocol)));
            }
            Ok(Some(Ok((
                extension.oid,
                store::foreign_endpoints(client)?,
                store::is_without_site(client)?,
                store::longest_request(client)?,
            ))))
        })?;
        let (extension, foreign, is_without_site, longest) = match found {
            Some(Ok(found)) => found,
            Some(Err(end)) => return Ok(Some(end)),
            None => return Ok(Some(End::ExtensionGone)),
        };
        if extension != self.extension.oid {
            return Ok(Some(End::Stop));
        }
        if foreign > 0 && foreign != self.foreign_endpoints {
            notice::warn(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("webhook holds {foreign} endpoints that belong to another installation"),
                "The database was restored or copied. SELECT webhook_adopt() takes them over.",
            );
        }
        self.foreign_endpoints = foreign;
        if is_without_site && !self.is_without_site {
            log!(
                "webhook.site is not set: a physical copy of this server (base backup, snapshot) would send the webhooks \
                 of database \"{}\" too",
                self.extension.database
            );
        }
        self.is_without_site = is_without_site;
        if longest >= self.settings.stale_after && longest != self.longest_request {
            notice::warn(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "webhook.stale_after is shorter than the {} s that a request may take",
                    longest.as_secs()
                ),
                "Raise webhook.stale_after in postgresql.conf, or shorten the timeouts of the policy.",
            );
        }
        self.longest_request = longest;
        if !is_read_only() {
            self.flush_tally()?;
        }
        Ok(None)
    }

    /// What waits and is not to be sent any more: a page between two turns, as long as there is more.
    fn expire_waiting(&mut self) -> Result<(), Trouble> {
        let expired = store::transaction(|client| store::expire_waiting(client, PARKED_PAGE))?;
        if expired >= i64::from(PARKED_PAGE) {
            self.next_expiry = Instant::now();
        }
        self.expect_alerts();
        Ok(())
    }

    pub(super) fn flush_tally(&mut self) -> Result<(), Trouble> {
        if !self.tally.is_empty() {
            store::transaction(|client| store::add_tally(client, &self.tally))?;
            self.tally = Tally::default();
        }
        Ok(())
    }

    /// Why nothing is claimed now, if so.
    fn hold(&self) -> Option<(State, &'static str)> {
        if !self.settings.enabled {
            Some((State::Disabled, "webhook.enabled is off"))
        } else if is_read_only() {
            Some((State::Held, "default_transaction_read_only is on"))
        } else if memory::is_short() {
            Some((
                State::Held,
                "memory is short; it goes on when there is some again",
            ))
        } else {
            None
        }
    }

    pub(super) fn settle(&mut self) -> Result<(), Trouble> {
        let endings = self.ledger.take_endings();
        let begun = Instant::now();
        match store::transaction(|client| store::settle(client, &endings, begun)) {
            Ok(settled) => self.settled(endings, settled),
            Err(trouble) => {
                self.ledger.put_back(endings);
                return Err(trouble);
            }
        }
        Ok(())
    }

    /// One that cannot be settled, say under a policy with an impossible delay, is set aside and must not keep
    /// the others back.
    fn settle_one_by_one(&mut self) -> Result<(), Trouble> {
        let mut endings = self.ledger.take_endings().into_iter();
        while let Some(ending) = endings.next() {
            let one = std::slice::from_ref(&ending);
            let begun = Instant::now();
            match store::transaction(|client| store::settle(client, one, begun)) {
                Ok(settled) => self.settled(vec![ending], settled),
                Err(trouble) if trouble.is_about_data() => {
                    report_error(
                        self.database,
                        &format!("outcome set aside: {}", trouble.message),
                    );
                    self.ledger.set_aside(ending);
                }
                Err(trouble) => {
                    self.ledger.put_back(std::iter::once(ending).chain(endings));
                    return Err(trouble);
                }
            }
        }
        Ok(())
    }

    fn settled(&mut self, endings: Vec<Ending>, settled: Settled) {
        self.retention.finished(settled.tally.deliveries());
        self.tally.add(settled.tally);
        self.expect_alerts();
        let locked = |ending: &Ending| settled.locked.contains(&ending.key);
        self.ledger.put_back(endings.into_iter().filter(locked));
    }

    fn settle_and_claim(&mut self) -> Result<Duration, Trouble> {
        let holding = self.hold().is_some();
        if holding && (is_read_only() || !self.ledger.has_endings()) {
            let house = self.next_survey.min(self.next_expiry);
            let house = house.saturating_duration_since(Instant::now());
            return Ok(self.settings.poll_interval.min(house));
        }
        // After an error the two go apart, so that trouble with one never keeps the other back.
        if self.errors_in_a_row > 0 {
            self.settle_one_by_one()?;
        }
        let instance = if holding { None } else { self.instance()? };
        let cautious = self.errors_in_a_row > 0;
        let endings = self.ledger.take_endings();
        let begun = Instant::now();
        let worked = store::transaction(|client| {
            let settled = if endings.is_empty() {
                Settled::default()
            } else {
                store::settle(client, &endings, begun)?
            };
            if holding {
                return Ok((settled, Vec::new(), Vec::new(), Claimed::default()));
            }
            let page = store::agenda(
                client,
                &self.settings,
                self.agenda.after_endpoint,
                AGENDA_PAGE,
            )?;
            let mut quotas = self.quotas(&page, &settled);
            if cautious {
                // One at a time, each turn another one: what cannot be claimed must not stop the rest.
                quotas.truncate(1);
                quotas.iter_mut().for_each(|quota| quota.count = 1);
            }
            let claimed = if quotas.is_empty() {
                Claimed::default()
            } else {
                store::claim(client, instance, &quotas, self.byte_room())?
            };
            Ok((settled, page, quotas, claimed))
        });
        match worked {
            Ok((settled, page, quotas, claimed)) => {
                if !endings.is_empty() {
                    self.settled(endings, settled);
                }
                let pause = self.dispatch(&page, &quotas, claimed);
                Ok(pause.min(self.turn_away(&page)))
            }
            Err(trouble) => {
                self.ledger.put_back(endings);
                Err(trouble)
            }
        }
    }

    /// Ends what is due for endpoints that are left alone and hold nothing, and says when to look again. It has a
    /// transaction of its own: what somebody's trigger does not let end must not keep deliveries back. Not in every
    /// turn: each time counts in the metrics, and so leaves a version of their rows.
    fn turn_away(&mut self, page: &[Waiting]) -> Duration {
        let turning_away = page.iter().filter(|waiting| waiting.turns_away);
        let endpoints: Vec<i32> = turning_away.map(|waiting| waiting.endpoint_id).collect();
        if endpoints.is_empty() {
            return Duration::MAX;
        }
        let now = Instant::now();
        if now < self.next_turning_away {
            return self.next_turning_away - now;
        }
        match store::transaction(|client| store::turn_away(client, endpoints, PARKED_PAGE)) {
            Ok(0) => return Duration::MAX,
            Ok(turned_away) => {
                self.expect_alerts();
                if turned_away >= i64::from(PARKED_PAGE) {
                    return Duration::ZERO;
                }
                self.next_turning_away = now + TURNING_AWAY_EVERY;
            }
            Err(trouble) => {
                self.complain(&trouble);
                self.next_turning_away = now + SURVEY_EVERY;
            }
        }
        self.next_turning_away - now
    }

    /// The claims are committed: hand them to the pool, and see when to come back.
    fn dispatch(&mut self, page: &[Waiting], quotas: &[Quota], claimed: Claimed) -> Duration {
        let now = Instant::now();
        let attempts = claimed.attempts.iter();
        let attempts = attempts.map(|attempt| (attempt.key, attempt.payload.len()));
        let endings = claimed.endings.iter().map(|ending| (ending.key, 0));
        let mut got: HashMap<i32, usize> = HashMap::new();
        for (key, bytes) in attempts.chain(endings) {
            self.ledger.claim(key, bytes);
            self.burst += bytes;
            *got.entry(key.endpoint_id).or_default() += 1;
        }
        self.agenda.again |= !got.is_empty();
        for ending in claimed.endings {
            self.ledger.end(ending);
        }
        self.pool.submit(claimed.attempts);

        let mut somebody_is_locked = false;
        for quota in quotas {
            let got = got.get(&quota.endpoint_id).copied().unwrap_or(0);
            if got == quota.count {
                self.agenda.busy.insert(quota.endpoint_id, quota.share);
            } else {
                let was_busy = self.agenda.busy.remove(&quota.endpoint_id).is_some();
                somebody_is_locked |= got == 0 && !was_busy;
            }
        }

        // What is due and has no room comes when an outcome makes room; that wakes us anyway.
        let mut later: Vec<Instant> = page
            .iter()
            .filter_map(|waiting| waiting.due_in)
            .filter(|due_in| !due_in.is_zero())
            .map(|due_in| now + due_in)
            .collect();
        if somebody_is_locked || self.ledger.has_endings() {
            later.push(now + LOCKED_RETRY);
        }
        self.agenda.next_due = self.agenda.next_due.into_iter().chain(later).min();

        if page.len() == AGENDA_PAGE {
            self.agenda.after_endpoint = page[AGENDA_PAGE - 1].endpoint_id;
            return Duration::ZERO;
        }
        let pause = if self.agenda.again {
            Duration::ZERO
        } else {
            let house = self.next_survey.min(self.next_expiry);
            let house = house.min(self.recovery.next);
            let house = self.next_alerts.map_or(house, |alerts| house.min(alerts));
            let house = house.saturating_duration_since(now);
            let due = self
                .agenda
                .next_due
                .map(|due| due.saturating_duration_since(now));
            due.unwrap_or(self.settings.poll_interval)
                .min(self.settings.poll_interval)
                .min(house)
        };
        self.agenda.begin_anew();
        pause
    }

    /// How many to claim of each endpoint that is due or busy: an equal part of what is free, and no more than it
    /// has room for.
    fn quotas(&self, page: &[Waiting], settled: &Settled) -> Vec<Quota> {
        let due = page
            .iter()
            .filter(|waiting| waiting.due_in == Some(Duration::ZERO) && !waiting.turns_away);
        let mut asked: HashMap<i32, usize> = self.agenda.busy.clone();
        asked.extend(due.map(|waiting| (waiting.endpoint_id, waiting.share)));
        let mut asked: Vec<(i32, usize)> = asked.into_iter().collect();
        if asked.is_empty() {
            return Vec::new();
        }
        asked.sort_unstable();
        let first = self.agenda.rotation % asked.len();
        asked.rotate_left(first);

        // A quarter is kept for endpoints that have nothing in flight: however many slow requests the others have, one
        // that answers gets its turn.
        let most = self.settings.max_in_flight;
        let general = most - most / 4;
        let mut in_all = self.ledger.out();
        let mut quotas = Vec::with_capacity(asked.len());
        for (already, &(endpoint_id, share)) in asked.iter().enumerate() {
            let fair = (general.saturating_sub(in_all)).div_ceil(asked.len() - already);
            // What somebody keeps from being settled counts as in flight, or a breaker that is locked would never stop it.
            let out = self.ledger.out_to(endpoint_id);
            let in_flight = out.count + settled.locked_of(endpoint_id);
            let first = usize::from(in_flight == 0 && in_all < most);
            let byte_room = (self.most_bytes / 2).saturating_sub(out.bytes);
            let count = if self.ledger.bytes_out() < self.most_bytes {
                fair.min(share.saturating_sub(in_flight)).max(first)
            } else {
                first
            };
            if count > 0 && byte_room > 0 {
                quotas.push(Quota {
                    endpoint_id,
                    share,
                    count,
                    in_flight,
                    byte_room,
                });
                in_all += count;
            }
        }
        quotas
    }

    fn byte_room(&self) -> usize {
        let out = self.ledger.bytes_out();
        let most = if out < self.most_bytes {
            self.most_bytes
        } else {
            2 * self.most_bytes
        };
        most.saturating_sub(out)
    }

    fn report_state(&mut self) {
        let (state, reason) = self.hold().unwrap_or((State::Running, ""));
        let in_flight = i32::try_from(self.ledger.out()).unwrap_or(i32::MAX);
        if self.reported.is_none() {
            // It starts the workers one after the other.
            wake::launcher();
        }
        if self.reported.replace((state, in_flight)) != Some((state, in_flight)) {
            say(self.database, |slot| {
                slot.say(state, reason);
                slot.in_flight = in_flight;
                slot.failures = 0;
            });
        }
    }
}

fn log_alert(alert: Alert) {
    notice::warn(PgSqlErrorCode::ERRCODE_WARNING, alert.message, &alert.hint);
}

pub(super) fn is_read_only() -> bool {
    // SAFETY: a plain read, on the main thread.
    unsafe { pg_sys::DefaultXactReadOnly }
}
