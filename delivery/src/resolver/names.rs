//! The answers for each name, and the name that is looked up next.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{Answer, dns};
use crate::failure::Failure;

#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub prompt_threads: usize,
    pub slow_threads: usize,
    /// A thread that had nothing to look up for as long ends.
    pub idle: Duration,
    pub names: usize,
    /// A lookup that takes longer hangs.
    pub prompt: Duration,
    pub fresh: Duration,
    pub usable: Duration,
    /// An answer is kept this long while lookups hang.
    pub kept: Duration,
    pub failed: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            prompt_threads: 48,
            slow_threads: 16,
            idle: Duration::from_secs(5),
            names: 4096,
            prompt: Duration::from_secs(1),
            fresh: Duration::from_secs(30),
            usable: Duration::from_secs(5 * 60),
            kept: Duration::from_secs(60 * 60),
            failed: Duration::from_secs(1),
        }
    }
}

impl Limits {
    pub fn threads(&self) -> usize {
        self.prompt_threads + self.slow_threads
    }
}

pub(super) struct Names {
    pub limits: Limits,
    by_host: HashMap<Arc<str>, Name>,
    prompt: Lane,
    slow: Lane,
}

struct Name {
    good: Option<(Vec<IpAddr>, Instant)>,
    /// The failure of the last lookup, if it failed.
    failure: Option<(Failure, Instant)>,
    /// The pace of the last lookup.
    was: Was,
    /// Since when it is in a lane, waiting or being looked up.
    in_lane: Option<Instant>,
    /// Until then somebody is interested.
    until: Instant,
    answered: Arc<Notify>,
}

impl Name {
    fn new(until: Instant) -> Name {
        Name {
            good: None,
            failure: None,
            was: Was::New,
            in_lane: None,
            until,
            answered: Arc::default(),
        }
    }

    fn is_fresh(&self, now: Instant, limits: &Limits) -> bool {
        let younger = |at: Instant, limit| now.saturating_duration_since(at) < limit;
        match (&self.failure, &self.good) {
            (Some((_, at)), _) => younger(*at, limits.failed),
            (None, Some((_, at))) => younger(*at, limits.fresh),
            (None, None) => false,
        }
    }

    fn answer(&self, now: Instant, limits: &Limits) -> Option<Answer> {
        let age = |at: Instant| now.saturating_duration_since(at);
        let hangs = self.was == Was::Slow && self.failure.is_some()
            || self.in_lane.is_some_and(|since| age(since) > limits.prompt);
        let usable = if hangs { limits.kept } else { limits.usable };
        if let Some((addresses, at)) = &self.good
            && age(*at) < usable
        {
            return Some(Ok(addresses.clone()));
        }
        let (failure, at) = self.failure.as_ref()?;
        (age(*at) < limits.failed).then(|| Err(failure.clone()))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Was {
    New,
    Prompt,
    Slow,
}

struct Lane {
    threads: usize,
    /// Newest last, as in `first`, whose turn comes before.
    waiting: Vec<Arc<str>>,
    first: Vec<Arc<str>>,
    /// When the lookups under way were begun.
    begun: Vec<Instant>,
}

pub(super) struct Lookup {
    pub host: Arc<str>,
    slow_lane: bool,
    begun: Instant,
}

pub(super) enum Turn {
    Yours(Lookup),
    /// If a name waits, its turn may come after this time.
    Nobodys(Option<Duration>),
}

impl Names {
    pub fn new(limits: Limits) -> Names {
        Names {
            limits,
            by_host: HashMap::new(),
            prompt: Lane::new(limits.prompt_threads),
            slow: Lane::new(limits.slow_threads),
        }
    }

    pub fn known(&mut self, host: &str, until: Instant, now: Instant) -> Option<Answer> {
        if !self.by_host.contains_key(host) {
            if let Err(full) = self.make_room() {
                return Some(Err(full));
            }
            self.by_host.insert(host.into(), Name::new(until));
        }
        let (host, _) = self.by_host.get_key_value(host)?;
        let host = host.clone();
        let name = self.by_host.get_mut(&host)?;
        name.until = name.until.max(until);

        if !name.is_fresh(now, &self.limits) && name.in_lane.is_none() {
            name.in_lane = Some(now);
            match name.was {
                Was::Prompt => self.prompt.first.push(host.clone()),
                Was::New => self.prompt.waiting.push(host.clone()),
                Was::Slow => self.slow.waiting.push(host.clone()),
            }
        }
        self.by_host.get(&host)?.answer(now, &self.limits)
    }

    /// Notified when a name that is in a lane has been looked up.
    pub fn answered(&self, host: &str) -> Option<Arc<Notify>> {
        Some(self.by_host.get(host)?.answered.clone())
    }

    /// Names in a lane stay: there are as many as fit.
    fn make_room(&mut self) -> Result<(), Failure> {
        if self.by_host.len() < self.limits.names {
            return Ok(());
        }
        let answered = self
            .by_host
            .iter()
            .filter(|(_, name)| name.in_lane.is_none());
        let oldest = answered.min_by_key(|(_, name)| name.until);
        let Some((host, _)) = oldest else {
            return Err(dns("too many host names are being looked up"));
        };
        let host = host.clone();
        self.by_host.remove(&host);
        Ok(())
    }

    pub fn nothing_waits(&self) -> bool {
        self.prompt.is_empty() && self.slow.is_empty()
    }

    pub fn begin_next(&mut self, now: Instant) -> Turn {
        // Nothing is learned from a slow name that nobody asks for any more.
        while let Some(host) = self.slow.waiting.last()
            && let Some(name) = self.by_host.get_mut(host)
            && name.until <= now
        {
            name.in_lane = None;
            self.slow.waiting.pop();
        }
        let prompt = self.limits.prompt;
        let (host, slow_lane) = if let Some(host) = self.prompt.begin(now, prompt) {
            (host, false)
        } else if let Some(host) = self.slow.begin(now, prompt) {
            (host, true)
        } else {
            let lanes = [&self.prompt, &self.slow];
            let turns = lanes.iter().filter_map(|lane| lane.next_turn(now, prompt));
            return Turn::Nobodys(turns.min());
        };
        Turn::Yours(Lookup {
            host,
            slow_lane,
            begun: now,
        })
    }

    pub fn finish(&mut self, lookup: Lookup, answer: Answer, now: Instant) {
        let lane = match lookup.slow_lane {
            true => &mut self.slow,
            false => &mut self.prompt,
        };
        if let Some(place) = lane.begun.iter().position(|begun| *begun == lookup.begun) {
            lane.begun.swap_remove(place);
        }
        if let Some(name) = self.by_host.get_mut(&lookup.host) {
            name.in_lane = None;
            name.was = match now.duration_since(lookup.begun) > self.limits.prompt {
                true => Was::Slow,
                false => Was::Prompt,
            };
            match answer {
                Ok(addresses) => {
                    name.good = Some((addresses, now));
                    name.failure = None;
                }
                Err(failure) => {
                    // A server that says no takes the addresses back; one that says nothing does not.
                    if name.was == Was::Prompt {
                        name.good = None;
                    }
                    name.failure = Some((failure, now));
                }
            }
            name.answered.notify_waiters();
        }
    }
}

impl Lane {
    fn new(threads: usize) -> Lane {
        Lane {
            threads,
            waiting: Vec::new(),
            first: Vec::new(),
            begun: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.waiting.is_empty()
    }

    fn begin(&mut self, now: Instant, prompt: Duration) -> Option<Arc<str>> {
        if !self.has_room(now, prompt) {
            return None;
        }
        let host = self.first.pop().or_else(|| self.waiting.pop())?;
        self.begun.push(now);
        Some(host)
    }

    fn has_room(&self, now: Instant, prompt: Duration) -> bool {
        let hangs = |begun: &&Instant| now.saturating_duration_since(**begun) > prompt;
        let hanging = self.begun.iter().filter(hangs).count();
        let young = self.begun.len() - hanging;
        let left = self.threads.saturating_sub(hanging);
        let share = if hanging == 0 { left / 4 } else { left / 8 };
        young < left && young < share.max(1)
    }

    /// Room is made by the oldest of the young lookups, when it comes to hang. If there is none, all threads
    /// hang, and the first that returns takes the turn.
    fn next_turn(&self, now: Instant, prompt: Duration) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let young = self
            .begun
            .iter()
            .map(|begun| now.saturating_duration_since(*begun));
        let oldest = young.filter(|age| *age <= prompt).max()?;
        Some(prompt - oldest + Duration::from_millis(1))
    }
}
