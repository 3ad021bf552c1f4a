//! A store and a wire that do as a test tells them, and an engine over both.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;
use webhook_delivery::{Attempt, EndpointOwner, Format, Key, Outcome, Response, Route};

use crate::engine::{Config, Engine};
use crate::figures::Figures;
use crate::ledger::Ending;
use crate::store::{
    Alert, Claimed, Due, Examined, Exchanged, Page, Position, Recovered, Retained, Shares, Store,
    Survey, Wish, Wishes,
};
use crate::trouble::Trouble;
use crate::wire::Wire;

/// The arguments of one exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub endings: Vec<Key>,
    pub wishes: Vec<Wish>,
    pub about: Vec<(i32, Position)>,
    pub without_breakers: bool,
}

/// A store that answers as it was told to, and then with nothing.
#[derive(Default)]
pub struct Scripted {
    pub agenda: Vec<Due>,
    pub answers: VecDeque<Result<Exchanged, Trouble>>,
    pub asked: Vec<Asked>,
    pub is_gone: bool,
    pub looks: usize,
    pub lost_claims: i64,
    pub recoveries_from_the_beginning: usize,
    /// All shares where a test sets none.
    pub shares: Option<Shares>,
    pub released_shares: Vec<i32>,
    /// Runs that the last one named as its own.
    pub earlier: Vec<i32>,
    pub upkeep: usize,
    pub rings: usize,
    /// The answer to the next addition to the counters.
    pub trouble_with_figures: Option<Trouble>,
}

pub fn shares(total: i32, kept: &[i32], given_up: &[i32]) -> Shares {
    Shares {
        total,
        kept: kept.to_vec(),
        given_up: given_up.to_vec(),
    }
}

impl Store for Scripted {
    fn exchange(&mut self, endings: &[Ending], wishes: &Wishes) -> Result<Exchanged, Trouble> {
        self.asked.push(Asked {
            endings: endings.iter().map(|ending| ending.key).collect(),
            wishes: wishes.of_endpoints.clone(),
            about: wishes.asked.clone(),
            without_breakers: wishes.breakers_are_locked,
        });
        self.answers
            .pop_front()
            .unwrap_or_else(|| Ok(Exchanged::default()))
    }

    fn agenda(&mut self, _: i32, _: usize) -> Result<Page, Trouble> {
        self.looks += 1;
        Ok(Page {
            due: self.agenda.clone(),
            ..Page::default()
        })
    }

    fn turn_away(&mut self, _: Vec<i32>, _: i32) -> Result<i64, Trouble> {
        Ok(0)
    }

    fn begin_sender(&mut self, earlier: Vec<i32>) -> Result<i32, Trouble> {
        self.earlier = earlier;
        Ok(1)
    }

    fn end_senders(&mut self, _: Vec<i32>) -> Result<(), Trouble> {
        Ok(())
    }

    fn dead_senders(&mut self) -> Result<Vec<i32>, Trouble> {
        Ok(Vec::new())
    }

    fn take_shares(&mut self, _: i32, _: usize) -> Result<Shares, Trouble> {
        Ok(self.shares.clone().unwrap_or_else(|| shares(1, &[0], &[])))
    }

    fn ring(&mut self) -> Result<(), Trouble> {
        self.rings += 1;
        Ok(())
    }

    fn release_shares(&mut self, _: i32, numbers: &[i32]) -> Result<(), Trouble> {
        self.released_shares.extend(numbers);
        Ok(())
    }

    fn examine(&mut self) -> Result<Option<Examined>, Trouble> {
        Ok((!self.is_gone).then(|| Examined {
            installation: "1".to_owned(),
            database: "shop".to_owned(),
            protocol: 1,
        }))
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        Ok(Survey {
            foreign_endpoints: 0,
            is_without_site: false,
            longest_request: Duration::ZERO,
        })
    }

    fn recover(
        &mut self,
        _: i32,
        _: &[Key],
        position: Option<&str>,
        _: i32,
    ) -> Result<Recovered, Trouble> {
        self.recoveries_from_the_beginning += usize::from(position.is_none());
        Ok(Recovered {
            released: self.lost_claims,
            ..Recovered::default()
        })
    }

    fn keep_order(&mut self, _: Option<&str>, _: i32) -> Result<Option<String>, Trouble> {
        Ok(None)
    }

    fn end_orphans(&mut self, _: i32, _: i32) -> Result<(i64, i32), Trouble> {
        Ok((0, 0))
    }

    fn expire_waiting(&mut self, _: i32) -> Result<i64, Trouble> {
        self.upkeep += 1;
        Ok(0)
    }

    fn retain(&mut self, _: usize, _: Option<&str>) -> Result<Retained, Trouble> {
        self.upkeep += 1;
        Ok(Retained {
            more: false,
            behind: false,
            position: None,
        })
    }

    fn expire_figures(&mut self, _: i32, _: i32) -> Result<i32, Trouble> {
        Ok(0)
    }

    fn forget_removed_endpoints(&mut self, _: i32, _: i32) -> Result<i32, Trouble> {
        Ok(0)
    }

    fn raise_alerts(&mut self) -> Result<Vec<Alert>, Trouble> {
        Ok(Vec::new())
    }

    fn add_figures(&mut self, _: &Figures) -> Result<(), Trouble> {
        self.trouble_with_figures.take().map_or(Ok(()), Err)
    }

    fn check_metrics(&mut self) -> Result<bool, Trouble> {
        Ok(false)
    }
}

/// Keeps submitted attempts until the test answers them.
#[derive(Default)]
pub struct Held {
    pub submitted: RefCell<Vec<Key>>,
    pub outcomes: RefCell<Vec<Outcome>>,
}

impl Held {
    pub fn answer(&self, status: u16) {
        for key in self.submitted.take() {
            self.outcomes.borrow_mut().push(Outcome {
                key,
                result: Ok(Response {
                    status,
                    retry_after: None,
                    excerpt: String::new(),
                }),
                duration: Duration::from_millis(1),
                ended: Instant::now(),
            });
        }
    }
}

impl Wire for Held {
    fn submit(&self, _: &[(i32, usize)], attempts: Vec<Attempt>) {
        let keys = attempts.iter().map(|attempt| attempt.key);
        self.submitted.borrow_mut().extend(keys);
    }

    fn take_outcomes(&self) -> Vec<Outcome> {
        self.outcomes.take()
    }

    fn withdraw(&self, which: &dyn Fn(&Key) -> bool) -> Vec<Key> {
        let (taken, left) = self
            .submitted
            .take()
            .into_iter()
            .partition(|key| which(key));
        self.submitted.replace(left);
        taken
    }

    fn abort(&self) {}
}

pub fn key(n: u128) -> Key {
    Key {
        event_id: Uuid::from_u128(n),
        endpoint_id: 1,
        claim_seq: 1,
    }
}

pub fn attempt(n: u128) -> Attempt {
    Attempt {
        key: key(n),
        earlier_attempts: 0,
        event_type: "order.created".to_owned(),
        tenant: None,
        occurred_at: String::new(),
        payload: "{}".to_owned(),
        route: Arc::new(Route {
            endpoint_id: 1,
            owner: EndpointOwner::Installation,
            url: "http://receiver.invalid/".to_owned(),
            headers: Vec::new(),
            format: Format::Standard,
            secrets: Vec::new(),
            hmac_secrets: Vec::new(),
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        }),
    }
}

pub fn due(breaker_is_closed: bool) -> Due {
    Due {
        endpoint_id: 1,
        due_in: Some(Duration::ZERO),
        breaker_is_closed,
        ..Due::default()
    }
}

pub fn claims(count: u128) -> Exchanged {
    Exchanged {
        claimed: Claimed {
            attempts: (1..=count).map(attempt).collect(),
            endings: Vec::new(),
        },
        due: vec![Due {
            due_in: None,
            ..due(true)
        }],
        ..Exchanged::default()
    }
}

pub fn engine(store: Scripted) -> Engine<Scripted, Held> {
    let config = Config {
        max_in_flight: 1000,
        poll_interval: Duration::from_secs(5),
        stale_after: Duration::from_secs(300),
    };
    Engine::new(
        store,
        Held::default(),
        config,
        "1".to_owned(),
        "shop".to_owned(),
    )
}

pub fn with_claims(count: u128) -> Engine<Scripted, Held> {
    let mut engine = engine(Scripted {
        agenda: vec![due(true)],
        answers: VecDeque::from([Ok(claims(count))]),
        ..Scripted::default()
    });
    engine.turn().unwrap();
    engine.store.agenda.clear();
    assert_eq!(engine.in_flight(), count as usize);
    engine
}

pub fn last_endings(engine: &Engine<Scripted, Held>) -> Vec<Key> {
    let mut keys = engine.store.asked.last().unwrap().endings.clone();
    keys.sort_unstable_by_key(|key| key.event_id);
    keys
}
