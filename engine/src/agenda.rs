//! The agenda: when each endpoint has something due, as far as this sender knows.
//!
//! The agenda learns that from the exchanges, from commits that say so, and, now and then, from a look at all
//! endpoints that have something queued. The look is page by page, so that a turn stays short where there are many.
//!
//! It also knows from where to read the queue of each endpoint. While somebody holds an old snapshot, each delivery
//! that was sent leaves a dead index entry at the front of the queue, and a claim that began there would pass over
//! all of them. A commit that tells of something earlier moves a position back. The look reads every queue from its
//! beginning, and finds deliveries that nobody has told of.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::admission::Asking;
use crate::store::{BEGINNING, Due, Page, Position, Shares};

/// Endpoints that a page of the look has.
pub const PAGE: usize = 300;
/// Rows that somebody has locked are tried again after this.
pub const LOCKED_RETRY: Duration = Duration::from_millis(250);
/// Looks that nobody asks for take at most the 50th part of the time.
const LOOK_SHARE: u32 = 50;

pub enum Wake {
    /// Something of this endpoint is due in that time; its place in the queue is `position`.
    Endpoint {
        id: i32,
        due_in: Duration,
        position: Position,
    },
    /// The endpoint itself is another one: its limits, its breaker, whether anything is sent to it.
    Changed {
        id: i32,
    },
    Anything,
}

#[derive(Default)]
pub struct Agenda {
    /// Endpoints of other shares are other senders' business.
    shares: Shares,
    entries: HashMap<i32, Entry>,
    /// The same by time.
    by_time: BTreeSet<(Instant, i32)>,
    turning_away: BTreeSet<i32>,
    /// Endpoints that the engine asks about before it claims anything of them.
    changed: BTreeSet<i32>,
    positions: HashMap<i32, Position>,
    look: Look,
}

struct Entry {
    due: Instant,
    is_guarded: bool,
    /// The number of the look during which it was last heard of.
    heard_of: u64,
}

#[derive(Default)]
struct Look {
    number: u64,
    /// After which endpoint to go on; nothing while none is under way.
    after_endpoint: Option<i32>,
    /// A look begins as soon as none is under way.
    again: bool,
    /// The time that its pages have taken so far.
    took: Duration,
    next: Option<Instant>,
}

impl Agenda {
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Says whether that is another part of the endpoints than before.
    pub fn serve(&mut self, shares: &Shares) -> bool {
        let is_new = (shares.total, &shares.kept) != (self.shares.total, &self.shares.kept);
        self.shares = shares.clone();
        if is_new {
            let others = self.entries.keys().copied().filter(|id| !shares.serve(*id));
            for id in others.collect::<Vec<_>>() {
                self.set(id, None, false);
            }
            self.turning_away.retain(|id| shares.serve(*id));
            self.changed.retain(|id| shares.serve(*id));
            self.positions.retain(|id, _| shares.serve(*id));
            self.look.again = true;
        }
        is_new
    }

    pub fn wake(&mut self, wake: Wake, now: Instant) {
        match wake {
            Wake::Anything => self.look.again = true,
            Wake::Endpoint { id, .. } | Wake::Changed { id } if !self.shares.serve(id) => {}
            Wake::Endpoint {
                id,
                due_in,
                position,
            } => {
                if let Some(known) = self.positions.get_mut(&id) {
                    *known = known.min(position);
                }
                let due = now + due_in;
                let is_sooner = self.entries.get(&id).is_none_or(|entry| due < entry.due);
                if is_sooner {
                    let is_guarded = self.entries.get(&id).is_some_and(|e| e.is_guarded);
                    self.set(id, Some(due), is_guarded);
                }
            }
            Wake::Changed { id } => {
                self.changed.insert(id);
            }
        }
    }

    /// Whether something may be due that nobody has told of.
    pub fn wants_look(&self, now: Instant) -> bool {
        self.look.after_endpoint.is_some()
            || self.look.again
            || self.look.next.is_none_or(|next| now >= next)
    }

    /// After which endpoint to read the next page; nothing where no look is needed.
    pub fn look_after(&mut self, now: Instant) -> Option<i32> {
        if self.look.after_endpoint.is_none() && self.wants_look(now) {
            self.look.again = false;
            self.look.number += 1;
            self.look.took = Duration::ZERO;
            self.look.after_endpoint = Some(0);
        }
        self.look.after_endpoint
    }

    /// A page of the look. After the last one, an endpoint that none of them had, and that nobody has told of since,
    /// has nothing queued.
    pub fn looked_at(
        &mut self,
        page: &Page,
        now: Instant,
        took: Duration,
        poll_interval: Duration,
    ) {
        self.look.took += took;
        for due in &page.due {
            self.learn(due, now);
        }
        for (id, due_in) in &page.later {
            if self.shares.serve(*id) {
                self.turning_away.remove(id);
                self.set(*id, Some(now + *due_in), false);
            }
        }
        self.look.after_endpoint = page.goes_on_after;
        if page.goes_on_after.is_some() {
            return;
        }
        self.look.next = Some(now + poll_interval.max(self.look.took * LOOK_SHARE));
        let number = self.look.number;
        let gone = self.entries.iter().filter(|(_, e)| e.heard_of < number);
        let gone: Vec<i32> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.set(id, None, false);
        }
    }

    pub fn learn(&mut self, due: &Due, now: Instant) {
        let id = due.endpoint_id;
        if !self.shares.serve(id) {
            return;
        }
        self.changed.remove(&id);
        if due.turns_away {
            self.turning_away.insert(id);
        } else {
            self.turning_away.remove(&id);
        }
        if let Some(position) = due.position {
            self.positions.insert(id, position);
        }
        // Where nothing is sent, there may be a probe later.
        let is_now = due.due_in == Some(Duration::ZERO);
        let due_in = due.due_in.filter(|_| !(due.turns_away && is_now));
        self.set(id, due_in.map(|due_in| now + due_in), due.is_guarded);
    }

    /// It is due, and nothing could be claimed: somebody has locked it.
    pub fn put_off_what_is_due(&mut self, id: i32, now: Instant) {
        if let Some(entry) = self.entries.get(&id).filter(|entry| entry.due <= now) {
            let is_guarded = entry.is_guarded;
            self.set(id, Some(now + LOCKED_RETRY), is_guarded);
        }
    }

    fn set(&mut self, id: i32, due: Option<Instant>, is_guarded: bool) {
        if let Some(old) = self.entries.remove(&id) {
            self.by_time.remove(&(old.due, id));
        }
        if let Some(due) = due {
            self.by_time.insert((due, id));
            let heard_of = self.look.number;
            self.entries.insert(
                id,
                Entry {
                    due,
                    is_guarded,
                    heard_of,
                },
            );
        }
    }

    pub fn asking(&self, now: Instant) -> impl Iterator<Item = Asking> {
        self.by_time
            .iter()
            .take_while(move |(due, _)| *due <= now)
            .filter(|(_, endpoint_id)| !self.changed.contains(endpoint_id))
            .map(|(_, endpoint_id)| Asking {
                endpoint_id: *endpoint_id,
                is_guarded: self.entries[endpoint_id].is_guarded,
            })
    }

    pub fn is_changed(&self, id: i32) -> bool {
        self.changed.contains(&id)
    }

    /// Endpoints to be asked about.
    pub fn changed(&self) -> impl Iterator<Item = i32> {
        self.changed.iter().copied()
    }

    pub fn position(&self, id: i32) -> Position {
        self.positions.get(&id).copied().unwrap_or(BEGINNING)
    }

    /// The queues of all other endpoints are read from their beginning.
    pub fn keep_positions(&mut self, is_kept: impl Fn(i32) -> bool) {
        self.positions.retain(|id, _| is_kept(*id));
    }

    pub fn turning_away(&self) -> Vec<i32> {
        self.turning_away.iter().copied().collect()
    }

    /// In how long something is due; at once where that is not known.
    pub fn earliest(&self, now: Instant) -> Duration {
        if self.look.number == 0 || self.look.after_endpoint.is_some() || self.look.again {
            return Duration::ZERO;
        }
        let first = self.by_time.first();
        first.map_or(Duration::MAX, |(due, _)| due.saturating_duration_since(now))
    }

    /// The next time at which something becomes due that is not due yet, or all endpoints are to be looked at.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        if self.look.after_endpoint.is_some() || self.look.again || !self.changed.is_empty() {
            return Some(now);
        }
        let later = self.by_time.range((now, i32::MAX)..).next();
        let later = later.map(|(due, _)| *due);
        later.into_iter().chain(self.look.next).min()
    }
}

#[cfg(test)]
mod tests;
