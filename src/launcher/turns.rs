//! The database that gets a worker next, and the one that gives its worker up.
//!
//! The database that has been without a worker for longest comes first. Where the server has no process left,
//! a worker that has nothing to do makes room after a second, and one that has work after ten, when its
//! requests in flight have ended. Its database comes back when a commit has something for it, when its next
//! delivery is due, or after a minute.

use super::{LOOK_EVERY, START_TIMEOUT};
use crate::shmem::{Registry, Slot, State};
use crate::wake;
use pgrx::prelude::*;
use std::time::Duration;

const SHORTEST_TURN: Duration = Duration::from_secs(1);
const BUSY_TURN: Duration = Duration::from_secs(10);
/// A worker whose requests have not ended by then keeps its place for another turn: to interrupt them would
/// repeat them.
const DRAINING: Duration = Duration::from_secs(30);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

pub struct Line {
    /// The databases that want a worker now, in their order.
    pub waiting: Vec<pg_sys::Oid>,
    /// When the next database will want one.
    pub next: Duration,
    /// The database that made room first, among those that need no worker now.
    pub resting: Option<pg_sys::Oid>,
    pub all_have_workers: bool,
}

pub fn line(registry: &mut Registry, now: Duration) -> Line {
    let mut waiting = Vec::new();
    let mut resting = Vec::new();
    let mut next = LOOK_EVERY;
    let mut all_have_workers = true;
    for slot in registry.slots_mut() {
        if slot.worker_pid != 0 || slot.state == State::NoExtension {
            continue;
        }
        all_have_workers = false;
        if slot.stopped_for != 0 {
            if is_alive(slot.stopped_for) {
                next = next.min(Duration::from_secs(1));
                continue;
            }
            slot.stopped_for = 0;
        }
        match wanted_at(slot).saturating_sub(now) {
            Duration::ZERO => waiting.push((slot.changed_at, slot.database)),
            later => {
                next = next.min(later);
                if slot.state == State::NoRoom {
                    resting.push((slot.changed_at, slot.database));
                }
            }
        }
    }
    waiting.sort_unstable_by_key(|(since, _)| *since);
    let first = resting.into_iter().min_by_key(|(since, _)| *since);
    if all_have_workers {
        registry.places = 0;
    }
    let has_place = registry.workers() < registry.places;
    Line {
        resting: first.map(|(_, database)| database).filter(|_| has_place),
        waiting: waiting.into_iter().map(|(_, database)| database).collect(),
        next,
        all_have_workers,
    }
}

fn wanted_at(slot: &Slot) -> Duration {
    let changed_at = slot.changed_at.unwrap_or_default();
    match slot.state {
        State::Starting => changed_at + START_TIMEOUT,
        State::Stopped => changed_at + backoff(slot.failures),
        State::NoRoom if slot.told.is_nothing() => slot.due_at,
        _ => Duration::ZERO,
    }
}

/// Nothing after a clean end, then half a second doubling to a minute.
fn backoff(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => (Duration::from_millis(250) * 2u32.pow(n.min(10))).min(LONGEST_BACKOFF),
    }
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: looks the pid up in the server's own array of processes.
    unsafe { !pg_sys::BackendPidGetProc(pid).is_null() }
}

/// The postmaster has no process for the databases that wait: asks as many workers for their places, idle workers
/// first, and among them the one that has had its place for longest.
pub fn make_room(registry: &mut Registry, waiting: &[pg_sys::Oid], now: Duration) {
    registry.places = registry.places.max(registry.workers());
    let mut asked = 0;
    for slot in registry.slots_mut() {
        if waiting.contains(&slot.database) && slot.state != State::Refused {
            slot.say(State::NoRoom, "");
        }
        match slot.asked_for_room_at {
            Some(since) if now.saturating_sub(since) >= DRAINING => {
                slot.asked_for_room_at = None;
                slot.at_work_since = Some(now);
                wake::set_latch_of(slot.worker_proc);
            }
            Some(_) => asked += 1,
            None => {}
        }
    }
    let at_work = registry
        .slots_mut()
        .filter(|slot| slot.worker_pid != 0 && slot.asked_for_room_at.is_none());
    let mut may_be_asked: Vec<&mut Slot> = at_work.filter(|slot| has_had_turn(slot, now)).collect();
    may_be_asked.sort_unstable_by_key(|slot| (!slot.is_idle, slot.at_work_since));
    let missing = waiting.len().saturating_sub(asked);
    for slot in may_be_asked.into_iter().take(missing) {
        slot.asked_for_room_at = Some(now);
        wake::set_latch_of(slot.worker_proc);
    }
}

fn has_had_turn(slot: &Slot, now: Duration) -> bool {
    let turn = match slot.is_idle {
        true => SHORTEST_TURN,
        false => BUSY_TURN,
    };
    (slot.at_work_since).is_some_and(|since| now.saturating_sub(since) >= turn)
}
