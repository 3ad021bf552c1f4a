//! The database, as the engine knows it.

use std::collections::HashSet;
use std::time::Duration;

use webhook_delivery::{Attempt, Key};

use crate::figures::Figures;
use crate::ledger::Ending;
use crate::trouble::Trouble;

/// Each call is one transaction and one statement: when it has returned it is committed, or it never happened, or its
/// [`Trouble`] says that nobody knows.
pub trait Store {
    /// Settles these endings, claims the wishes, and says when to ask for these endpoints again. To settle an ending
    /// a second time changes nothing.
    fn exchange(&mut self, endings: &[Ending], wishes: &Wishes) -> Result<Exchanged, Trouble>;

    /// The next page of endpoints that have something queued, after this one.
    fn agenda(&mut self, after_endpoint: i32, page_size: usize) -> Result<Page, Trouble>;

    /// Ends due deliveries of these endpoints without sending them, at most that many in all; says how many.
    fn turn_away(&mut self, endpoints: Vec<i32>, page_size: i32) -> Result<i64, Trouble>;

    /// Takes a number for this run, under which it claims. `earlier` are runs of ours that have lost their session.
    fn begin_sender(&mut self, earlier: Vec<i32>) -> Result<i32, Trouble>;
    /// These runs have left no claim.
    fn end_senders(&mut self, senders: Vec<i32>) -> Result<(), Trouble>;
    /// Runs that are over and may have left claims.
    fn dead_senders(&mut self) -> Result<Vec<i32>, Trouble>;
    /// Takes this sender's part of the free shares; says which shares it is to serve.
    fn take_shares(&mut self, sender: i32, in_flight: usize) -> Result<Shares, Trouble>;
    /// Tells other senders that there may be something for them.
    fn ring(&mut self) -> Result<(), Trouble>;
    fn release_shares(&mut self, sender: i32, numbers: &[i32]) -> Result<(), Trouble>;

    /// Says which SQL is there, if any. Calls nothing that is part of it.
    fn examine(&mut self) -> Result<Option<Examined>, Trouble>;
    fn survey(&mut self) -> Result<Survey, Trouble>;

    /// Releases the lost claims on a page of the queue. `position` is the place that SQL has come to, as SQL says it;
    /// nothing is the beginning.
    fn recover(
        &mut self,
        sender: i32,
        in_flight: &[Key],
        position: Option<&str>,
        page_size: i32,
    ) -> Result<Recovered, Trouble>;
    /// Passes lost turns on, a page of them; says where to go on.
    fn keep_order(
        &mut self,
        position: Option<&str>,
        page_size: i32,
    ) -> Result<Option<String>, Trouble>;
    /// Ends deliveries of endpoints that were removed; says how many, and after which endpoint to go on.
    fn end_orphans(&mut self, after_endpoint: i32, page_size: i32) -> Result<(i64, i32), Trouble>;
    /// Fails deliveries that have expired or were kept back for too long; says how many.
    fn expire_waiting(&mut self, page_size: i32) -> Result<i64, Trouble>;

    fn retain(&mut self, step: usize, position: Option<&str>) -> Result<Retained, Trouble>;
    /// Removes old figures of a page of endpoints; says after which endpoint to go on.
    fn expire_figures(&mut self, after_endpoint: i32, page_size: i32) -> Result<i32, Trouble>;
    /// Removes the rows of a page of removed endpoints, where nothing refers to them any more; says after which to go
    /// on.
    fn forget_removed_endpoints(
        &mut self,
        after_endpoint: i32,
        page_size: i32,
    ) -> Result<i32, Trouble>;

    /// Tells the alerts there are, and returns them for the log.
    fn raise_alerts(&mut self) -> Result<Vec<Alert>, Trouble>;
    fn add_figures(&mut self, figures: &Figures) -> Result<(), Trouble>;
    /// Leaves alerts about metrics; says whether there are any.
    fn check_metrics(&mut self) -> Result<bool, Trouble>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub endpoint_id: i32,
    pub count: usize,
    /// The bytes of payload that the endpoint has room for.
    pub byte_room: usize,
}

#[derive(Default)]
pub struct Wishes {
    pub sender: Option<i32>,
    pub of_endpoints: Vec<Wish>,
    /// The bytes of payload that there is room for.
    pub byte_room: usize,
    /// All endpoints that a wish or an ending is about, the endpoints of the wishes first and in their order.
    pub asked: Vec<(i32, Position)>,
    /// How many of them, at the end, only an ending is about.
    pub asked_for_endings: usize,
    /// The endpoints are known to be well: no breaker is read, and the exchange does not say when to ask again.
    pub breakers_are_locked: bool,
}

/// From where to read the queue of an endpoint, in seconds since 1970 by the clock of the database: no delivery that
/// could be claimed was due before.
pub type Position = f64;
pub const BEGINNING: Position = f64::NEG_INFINITY;

#[derive(Default)]
pub struct Exchanged {
    /// Endings that somebody keeps from being settled, to be handed in again.
    pub locked: HashSet<Key>,
    pub finished: Vec<Finished>,
    pub claimed: Claimed,
    /// The facts of each endpoint that was asked about.
    pub due: Vec<Due>,
}

#[derive(Default)]
pub struct Claimed {
    pub attempts: Vec<Attempt>,
    /// Claimed as well, but there is nothing to send.
    pub endings: Vec<Ending>,
}

/// Facts of an endpoint, to decide when to ask for it again and for how much.
#[derive(Debug, Clone, Default)]
pub struct Due {
    pub endpoint_id: i32,
    /// Time until the first delivery is due; nothing where the endpoint gets no requests now.
    pub due_in: Option<Duration>,
    /// Nothing where the queue was not read.
    pub position: Option<Position>,
    pub max_in_flight: Option<usize>,
    /// Requests in a second.
    pub rate_limit: Option<f64>,
    pub breaker_is_closed: bool,
    /// Whether a probe or a test may go, whatever room there is.
    pub is_guarded: bool,
    /// Whether due deliveries are neither sent nor held.
    pub turns_away: bool,
    /// Whether it has answered, to whatever sender, and not failed since.
    pub is_well: bool,
}

/// Endpoints that have something queued, in the order of their ids.
#[derive(Debug, Clone, Default)]
pub struct Page {
    pub due: Vec<Due>,
    /// Endpoints that have time, and in how long something of theirs is due; the engine asks when it is.
    pub later: Vec<(i32, Duration)>,
    /// After which endpoint the next page begins; nothing after the last page.
    pub goes_on_after: Option<i32>,
}

/// The part of the endpoints that a sender serves, as SQL has divided them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Shares {
    /// The number of all shares; 0 before the first was taken.
    pub total: i32,
    pub kept: Vec<i32>,
    /// Shares to release as soon as none of their requests is in flight.
    pub given_up: Vec<i32>,
}

impl Shares {
    pub fn serve(&self, endpoint_id: i32) -> bool {
        self.total > 0 && self.kept.contains(&(endpoint_id % self.total))
    }

    /// Whether there is no other sender, or it waits.
    pub fn are_all(&self) -> bool {
        self.total > 0 && self.kept.len() == self.total as usize
    }

    /// Whether this sender does the upkeep: one of them does.
    pub fn keep_house(&self) -> bool {
        self.kept.contains(&0)
    }
}

pub struct Examined {
    /// Another one where the extension was dropped and created again.
    pub installation: String,
    pub database: String,
    /// 0 where it is older than the first.
    pub protocol: i32,
}

pub struct Survey {
    /// Endpoints of another installation: the database is a copy.
    pub foreign_endpoints: i64,
    /// Whether a physical copy of this server would send the same webhooks.
    pub is_without_site: bool,
    /// The longest that a request may take, of the policies in use.
    pub longest_request: Duration,
}

#[derive(Default)]
pub struct Recovered {
    pub released: i64,
    pub failed: i64,
    pub locked: i64,
    /// Nothing at the end of the queue.
    pub position: Option<String>,
}

pub struct Retained {
    /// Whether the step has not come to the end.
    pub more: bool,
    /// Whether it had to remove as many rows as it may.
    pub behind: bool,
    pub position: Option<String>,
}

pub struct Alert {
    pub message: String,
    pub hint: String,
}

/// Deliveries of an endpoint that were finished in the same way after about the same time.
#[derive(Debug, Default, Clone)]
pub struct Finished {
    pub endpoint_id: i32,
    /// FAILED where it is false.
    pub is_sent: bool,
    pub latency_class: i32,
    pub deliveries: i64,
    pub retried: i64,
    pub retries: i64,
}
