//! Work of every few seconds. A turn does at most one piece of it, so that the turn stays short, and none of it wakes
//! a sender that is at rest: it waits for the next wake-up.

use std::time::{Duration, Instant};

use crate::engine::{End, Engine, Hold, Notice};
use crate::protocol;
use crate::recovery::Recovery;
use crate::retention::Retention;
use crate::store::Store;
use crate::trouble::Trouble;
use crate::wire::Wire;

pub const EVERY: Duration = Duration::from_secs(5);
const ALERTS_EVERY: Duration = Duration::from_secs(1);
/// One part in this many of the time goes into adding figures, and one into looking at metrics. Both take long where
/// there are thousands of endpoints, and nobody minds if a figure is half a minute old.
const FIGURES_SHARE: u32 = 100;
const METRICS_SHARE: u32 = 500;
/// Endpoints whose figures are added at a time: about 50 ms.
const FIGURES_PAGE: usize = 500;
const FIGURES_SELDOM: Duration = Duration::from_secs(30);
/// Deliveries that one turn ends, of endpoints that get no requests now.
const EXPIRY_PAGE: i32 = 1000;
const NOT_IN_PREREQUISITE_STATE: &str = "55000";
const WARNING: &str = "01000";

pub struct Housekeeping {
    next_survey: Instant,
    next_expiry: Instant,
    /// Whether there is another page.
    expiry_goes_on: bool,
    /// Nothing where there is no alert to tell.
    next_alerts: Option<Instant>,
    last_alerts: Instant,
    next_figures: Instant,
    /// The last endpoint whose figures were added.
    figures_after: i32,
    next_metrics: Instant,
    pub recovery: Recovery,
    pub retention: Retention,
    pub foreign_endpoints: i64,
    is_without_site: bool,
    longest_request: Duration,
}

impl Housekeeping {
    pub fn starting(now: Instant) -> Self {
        Housekeeping {
            next_survey: now,
            next_expiry: now,
            expiry_goes_on: true,
            next_alerts: None,
            last_alerts: now,
            next_figures: now + EVERY,
            figures_after: 0,
            next_metrics: now + EVERY,
            recovery: Recovery::starting(now),
            retention: Retention::starting(now),
            foreign_endpoints: 0,
            is_without_site: false,
            longest_request: Duration::ZERO,
        }
    }

    pub fn survey_soon(&mut self) {
        self.next_survey = Instant::now();
    }

    /// A settlement may have left alerts.
    pub fn expect_alerts(&mut self) {
        let earliest = self.last_alerts + ALERTS_EVERY;
        self.next_alerts.get_or_insert(earliest.max(Instant::now()));
    }

    /// Due work is done at once; only some of the other work ends a sleep. A sender does not stay awake for work that
    /// it may not do.
    fn pause(&self, duties: Duties, now: Instant) -> Duration {
        let mut due = vec![self.next_survey];
        let mut urgent = Vec::new();
        if duties.figures {
            urgent.push(self.next_figures);
        }
        if duties.upkeep {
            due.extend([self.next_expiry, self.next_metrics]);
            urgent.extend(self.next_alerts);
            urgent.extend(self.expiry_goes_on.then_some(self.next_expiry));
        }
        if duties.recovery {
            due.push(self.recovery.next);
            urgent.extend(self.recovery.goes_on_at());
        }
        due.retain(|next| *next <= now);
        let next = due.into_iter().chain(urgent).min();
        next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }
}

/// Work that a sender may do now, beside its survey.
#[derive(Clone, Copy)]
struct Duties {
    /// Whether there are some to add.
    figures: bool,
    upkeep: bool,
    recovery: bool,
}

impl<S: Store, W: Wire> Engine<S, W> {
    /// Trouble here must not keep deliveries back: it is reported, and tried again after a while.
    pub(crate) fn keep_house(&mut self, now: Instant) -> Result<(), End> {
        let duties = self.duties();
        let house = &mut self.housekeeping;
        let done = if now >= house.next_survey {
            house.next_survey = now + EVERY;
            self.survey(now)?
        } else if duties.figures && now >= house.next_figures {
            self.flush_figures(now)
        } else if duties.upkeep && house.next_alerts.is_some_and(|at| now >= at) {
            self.raise_alerts(now)
        } else if duties.upkeep && now >= house.next_expiry {
            self.expire_waiting(now)
        } else if duties.upkeep && now >= house.next_metrics {
            self.check_metrics(now)
        } else if duties.recovery && now >= house.recovery.next {
            self.recover(now)
        } else {
            Ok(())
        };
        if let Err(trouble) = done {
            self.complain(&trouble);
        }
        Ok(())
    }

    fn duties(&self) -> Duties {
        Duties {
            figures: !self.figures.is_empty() && self.hold != Some(Hold::Writing),
            upkeep: self.agenda.shares().keep_house() && self.hold != Some(Hold::Writing),
            recovery: self.hold.is_none(),
        }
    }

    pub(crate) fn until_housekeeping(&self, now: Instant) -> Duration {
        self.housekeeping.pause(self.duties(), now)
    }

    /// Reads facts that change seldom and of which no commit tells.
    fn survey(&mut self, now: Instant) -> Result<Result<(), Trouble>, End> {
        if self.hold.is_none() {
            self.budget.double();
        }
        self.admission.forget_unused(&self.ledger, now);
        self.agenda.keep_positions(|id| self.admission.knows(id));
        match self.store.examine() {
            Ok(None) => return Err(End::Gone),
            Ok(Some(found)) if !protocol::is_spoken(found.protocol) => {
                return Err(End::OtherProtocol);
            }
            Ok(Some(found)) if found.installation != self.installation => {
                return Err(End::Replaced);
            }
            Ok(Some(_)) => {}
            Err(trouble) => return Ok(Err(trouble)),
        }
        Ok(self.look_around())
    }

    fn look_around(&mut self) -> Result<(), Trouble> {
        let found = self.store.survey()?;
        let house = &mut self.housekeeping;
        if found.foreign_endpoints > 0 && found.foreign_endpoints != house.foreign_endpoints {
            let message = format!(
                "webhook holds {} endpoints that belong to another installation",
                found.foreign_endpoints
            );
            let hint =
                "The database was restored or copied. SELECT webhook_adopt() takes them over.";
            self.notices.push(Notice::Warning {
                code: NOT_IN_PREREQUISITE_STATE,
                message,
                hint: hint.to_owned(),
            });
        }
        house.foreign_endpoints = found.foreign_endpoints;
        if found.is_without_site && !house.is_without_site {
            self.notices.push(Notice::Log(format!(
                "webhook.site is not set: a physical copy of this server (base backup, snapshot) would send the webhooks \
                 of database \"{}\" too",
                self.database
            )));
        }
        house.is_without_site = found.is_without_site;
        let longest = found.longest_request;
        if longest >= self.config.stale_after && longest != house.longest_request {
            let message = format!(
                "webhook.stale_after is shorter than the {} s that a request may take",
                longest.as_secs()
            );
            let hint = "Raise webhook.stale_after in postgresql.conf, or shorten the timeouts of the policy.";
            self.notices.push(Notice::Warning {
                code: NOT_IN_PREREQUISITE_STATE,
                message,
                hint: hint.to_owned(),
            });
        }
        house.longest_request = longest;
        Ok(())
    }

    /// Adds a page of figures, so that a turn stays short.
    pub(crate) fn flush_figures(&mut self, now: Instant) -> Result<(), Trouble> {
        let begun = Instant::now();
        let (page, last) = (self.figures).take_page(self.housekeeping.figures_after, FIGURES_PAGE);
        let added = self.store.add_figures(&page);
        self.housekeeping.figures_after = last;
        self.housekeeping.next_figures = now + rest(begun.elapsed(), FIGURES_SHARE);
        // Counts that may have been added are not added again: a counter that lacks some is better than one that has
        // some twice. Counts that are refused would be refused again, and with them all that come after.
        if matches!(&added, Err(trouble) if !trouble.commit_unknown && !trouble.is_about_data()) {
            self.figures.put_back(page);
        }
        added
    }

    fn check_metrics(&mut self, now: Instant) -> Result<(), Trouble> {
        let begun = Instant::now();
        let has_alerts = self.store.check_metrics();
        self.housekeeping.next_metrics = now + rest(begun.elapsed(), METRICS_SHARE);
        if has_alerts? {
            self.housekeeping.expect_alerts();
        }
        Ok(())
    }

    /// Ends deliveries that are not to be sent any more: a page between two turns, as long as there is more.
    fn expire_waiting(&mut self, now: Instant) -> Result<(), Trouble> {
        let house = &mut self.housekeeping;
        house.next_expiry = now + EVERY;
        house.expiry_goes_on = false;
        // Also alerts that somebody else has left.
        house.next_alerts.get_or_insert(now);
        let expired = self.store.expire_waiting(EXPIRY_PAGE)?;
        if expired >= i64::from(EXPIRY_PAGE) {
            house.expiry_goes_on = true;
            house.next_expiry = now;
        }
        Ok(())
    }

    fn raise_alerts(&mut self, now: Instant) -> Result<(), Trouble> {
        self.housekeeping.next_alerts = None;
        self.housekeeping.last_alerts = now;
        let alerts = self.store.raise_alerts()?;
        if !alerts.is_empty() {
            // There may be another page.
            self.housekeeping.expect_alerts();
        }
        self.notices
            .extend(alerts.into_iter().map(|alert| Notice::Warning {
                code: WARNING,
                message: alert.message,
                hint: alert.hint,
            }));
        Ok(())
    }
}

/// The time until the next call, after one that took so long.
fn rest(took: Duration, share: u32) -> Duration {
    (took * share).clamp(EVERY, FIGURES_SELDOM)
}
