use super::*;
use crate::store::{
    Alert, BEGINNING, Claimed, Due, Examined, Finished, Page, Position, Recovered, Retained,
    Shares, Survey, Wish,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use uuid::Uuid;
use webhook_delivery::{Attempt, Format, Key, Outcome, Response, Route};

/// What an exchange was asked for.
#[derive(Debug, Clone, PartialEq)]
struct Asked {
    endings: Vec<Key>,
    wishes: Vec<Wish>,
    about: Vec<(i32, Position)>,
    without_breakers: bool,
}

/// A store that answers as it was told to, and with nothing when it was told nothing more.
#[derive(Default)]
struct Scripted {
    agenda: Vec<Due>,
    answers: VecDeque<Result<Exchanged, Trouble>>,
    asked: Vec<Asked>,
    is_gone: bool,
    looks: usize,
    lost_claims: i64,
    recoveries_from_the_beginning: usize,
    /// All of them where nothing is said.
    shares: Option<Shares>,
    released_shares: Vec<i32>,
    /// Runs that the last one named as its own.
    earlier: Vec<i32>,
    upkeep: usize,
    rings: usize,
    /// Of the next addition to the counters.
    trouble_with_figures: Option<Trouble>,
}

fn shares(total: i32, kept: &[i32], given_up: &[i32]) -> Shares {
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

/// Keeps what is submitted until the test answers it.
#[derive(Default)]
struct Held {
    submitted: RefCell<Vec<Key>>,
    outcomes: RefCell<Vec<Outcome>>,
}

impl Held {
    fn answer(&self, status: u16) {
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

fn key(n: u128) -> Key {
    Key {
        event_id: Uuid::from_u128(n),
        endpoint_id: 1,
        claim_seq: 1,
    }
}

fn attempt(n: u128) -> Attempt {
    Attempt {
        key: key(n),
        earlier_attempts: 0,
        event_type: "order.created".to_owned(),
        tenant: None,
        occurred_at: String::new(),
        payload: "{}".to_owned(),
        route: Arc::new(Route {
            endpoint_id: 1,
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

fn due(breaker_is_closed: bool) -> Due {
    Due {
        endpoint_id: 1,
        due_in: Some(Duration::ZERO),
        breaker_is_closed,
        ..Due::default()
    }
}

fn claims(count: u128) -> Exchanged {
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

fn engine(store: Scripted) -> Engine<Scripted, Held> {
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

fn with_claims(count: u128) -> Engine<Scripted, Held> {
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

fn last_endings(engine: &Engine<Scripted, Held>) -> Vec<Key> {
    let mut keys = engine.store.asked.last().unwrap().endings.clone();
    keys.sort_unstable_by_key(|key| key.event_id);
    keys
}

#[test]
fn what_is_due_is_asked_for_claimed_and_handed_to_the_wire() {
    let engine = with_claims(3);
    assert_eq!(engine.store.asked[0].wishes[0].endpoint_id, 1);
    assert_eq!(engine.store.asked[0].wishes[0].count, 8);
    assert_eq!(engine.wire.submitted.borrow().len(), 3);
}

#[test]
fn outcomes_are_handed_in_once_and_then_nothing_is_in_flight() {
    let mut engine = with_claims(2);
    engine.wire.answer(200);
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(1), key(2)]);
    assert_eq!(engine.in_flight(), 0);
    let exchanges = engine.store.asked.len();
    engine.turn().unwrap();
    assert_eq!(engine.store.asked.len(), exchanges, "nothing to exchange");
}

#[test]
fn outcomes_of_a_commit_that_nobody_knows_of_are_handed_in_again_and_claims_are_looked_for() {
    let mut engine = with_claims(2);
    while !engine.turn().unwrap().gt(&Duration::ZERO) {}
    let looked = engine.store.recoveries_from_the_beginning;
    let looks = engine.store.looks;
    engine.wire.answer(200);
    let lost = Trouble {
        commit_unknown: true,
        ..Trouble::new("08006", "the connection is lost")
    };
    engine.store.answers.push_back(Err(lost));
    assert!(engine.turn().unwrap() > Duration::ZERO);
    assert_eq!(last_endings(&engine), [key(1), key(2)]);
    engine.turn().unwrap();
    let again: Vec<Key> = engine.store.asked[engine.store.asked.len() - 2..]
        .iter()
        .flat_map(|asked| asked.endings.clone())
        .collect();
    assert_eq!(again.len(), 2, "one by one: {again:?}");
    assert_eq!(engine.store.recoveries_from_the_beginning, looked + 1);
    assert_eq!(engine.store.looks, looks + 1, "retries may be behind");
}

#[test]
fn queues_are_read_from_where_they_were_read_to_also_where_nothing_is_wished_for() {
    let mut engine = with_claims(2);
    assert_eq!(engine.store.asked[0].about, [(1, BEGINNING)]);
    let learn = |position| Exchanged {
        due: vec![Due {
            position: Some(position),
            due_in: None,
            ..due(true)
        }],
        ..Exchanged::default()
    };
    engine
        .store
        .answers
        .extend([Ok(learn(7.0)), Ok(learn(9.0))]);
    engine.wire.answer(200);
    engine.turn().unwrap();
    let due_now = |id, position| Wake::Endpoint {
        id,
        due_in: Duration::ZERO,
        position,
    };
    engine.tell_of_commit(due_now(1, 8.0));
    engine.turn().unwrap();
    assert_eq!(engine.store.asked.last().unwrap().about, [(1, 7.0)]);

    // It ended meanwhile, and 2 is wished for alone: the position of 1 is 9 by now, and a commit tells of something earlier.
    engine.ledger.end(Ending::released(key(3)));
    engine.tell_of_commit(due_now(2, 1.0));
    engine.hold(Some(Hold::Claiming));
    engine.turn().unwrap();
    let held = engine.store.asked.last().unwrap();
    assert_eq!((held.wishes.len(), &held.about[..]), (0, &[(1, 9.0)][..]));
    engine.ledger.end(Ending::released(key(4)));
    engine.hold(None);
    engine.turn().unwrap();
    let about = &engine.store.asked.last().unwrap().about;
    assert_eq!(about, &[(2, BEGINNING), (1, 9.0)], "the wishes' first");
}

#[test]
fn a_sender_that_is_held_gives_back_requests_that_have_not_gone_out() {
    let mut engine = engine(Scripted {
        agenda: vec![due(true)],
        ..Scripted::default()
    });
    engine.store.answers.push_back(Ok(claims(3)));
    engine.turn().unwrap();
    assert_eq!(engine.in_flight(), 3);
    engine.hold(Some(Hold::Claiming));
    engine.turn().unwrap();
    assert_eq!(engine.in_flight(), 0);
    assert_eq!(engine.store.asked.last().unwrap().endings.len(), 3);
}

#[test]
fn an_endpoint_that_has_changed_is_asked_about_before_anything_is_claimed_of_it() {
    let mut engine = engine(Scripted::default());
    engine.turn().unwrap();
    let limited = Exchanged {
        due: vec![Due {
            max_in_flight: Some(3),
            ..due(true)
        }],
        ..Exchanged::default()
    };
    engine.store.answers.push_back(Ok(limited));
    engine.tell_of_commit(Wake::Changed { id: 1 });
    engine.turn().unwrap();
    let asked = engine.store.asked.last().unwrap().clone();
    assert_eq!((asked.wishes.len(), asked.about[0].0), (0, 1));
    engine.turn().unwrap();
    assert_eq!(engine.store.asked.last().unwrap().wishes[0].count, 3);
}

#[test]
fn recovered_claims_are_looked_for() {
    let mut engine = engine(Scripted {
        lost_claims: 1,
        ..Scripted::default()
    });
    engine.turn().unwrap();
    assert_eq!(engine.store.looks, 1);
    while engine.store.recoveries_from_the_beginning == 0 {
        engine.turn().unwrap();
    }
    assert_eq!(engine.store.looks, 2);
}

#[test]
fn counts_are_added_again_unless_they_may_have_been_added() {
    for commit_unknown in [false, true] {
        let mut engine = engine(Scripted::default());
        engine.figures.finished(&[Finished::default()]);
        engine.store.trouble_with_figures = Some(Trouble {
            commit_unknown,
            ..Trouble::new("08006", "the connection is lost")
        });
        assert!(engine.flush_figures(Instant::now()).is_err());
        assert_eq!(engine.figures.is_empty(), commit_unknown);
    }
}

#[test]
fn figures_are_added_within_seconds_however_seldom_the_engine_polls() {
    let mut engine = with_claims(2);
    engine.config.poll_interval = Duration::from_secs(3600);
    engine.wire.answer(200);
    let mut pause = engine.turn().unwrap();
    while pause.is_zero() {
        pause = engine.turn().unwrap();
    }
    assert!(!engine.figures.is_empty());
    let most = Duration::from_secs(5);
    assert!(pause <= most, "{pause:?}");
    engine
        .flush_figures(Instant::now())
        .expect("the store takes them");
    assert!(engine.figures.is_empty());
}

#[test]
fn an_attempt_of_a_commit_that_nobody_knows_of_is_not_counted() {
    for (commit_unknown, counted) in [(false, true), (true, false)] {
        let mut engine = with_claims(1);
        engine.wire.answer(200);
        let lost = Trouble {
            commit_unknown,
            ..Trouble::new("40001", "the connection is lost")
        };
        engine.store.answers.push_back(Err(lost));
        for _ in 0..3 {
            engine.turn().unwrap();
        }
        assert_eq!(!engine.figures.is_empty(), counted, "{commit_unknown}");
    }
}

#[test]
fn an_outcome_that_cannot_be_stored_is_set_aside_and_keeps_no_other_back() {
    let mut engine = with_claims(3);
    engine.wire.answer(200);
    let impossible = || Err(Trouble::new("22008", "interval out of range"));
    // All of them, and then the first of three.
    engine.store.answers.extend([impossible(), impossible()]);
    engine.turn().unwrap();
    engine.turn().unwrap();
    let settled = engine.store.asked.iter().rev().take(2);
    assert!(settled.into_iter().all(|asked| asked.endings.len() == 1));
    let said = engine.take_notices();
    assert!(
        said.iter()
            .any(|notice| matches!(notice, Notice::Error(message) if message.starts_with("outcome set aside"))),
        "{said:?}"
    );
    assert_eq!(engine.ledger.keys().len(), 1, "it is still ours");
}

#[test]
fn an_exchange_that_met_a_person_is_made_again_at_once() {
    let mut engine = with_claims(1);
    engine.wire.answer(200);
    let passing = Trouble::new("40001", "could not serialize access");
    engine.store.answers.push_back(Err(passing));
    assert_eq!(engine.turn().unwrap(), Duration::ZERO);
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(1)]);
    assert!(engine.take_notices().is_empty());
}

#[test]
fn errors_in_a_row_make_longer_pauses() {
    let mut engine = with_claims(1);
    engine.wire.answer(200);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let trouble = Trouble::new("53100", "no space left on device");
        engine.store.answers.push_back(Err(trouble));
        pauses.push(engine.turn().unwrap());
    }
    assert_eq!(pauses[0], Duration::from_millis(100));
    assert!(
        pauses.windows(2).all(|pair| pair[0] <= pair[1]),
        "{pauses:?}"
    );
    assert_eq!(pauses[11], LONGEST_ERROR_PAUSE);
}

#[test]
fn an_outcome_that_somebody_has_locked_is_handed_in_again_a_little_later() {
    let mut engine = with_claims(1);
    engine.wire.answer(200);
    engine.store.answers.push_back(Ok(Exchanged {
        locked: [key(1)].into(),
        ..Exchanged::default()
    }));
    engine.turn().unwrap();
    assert!(engine.ledger.has_endings());
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(1)]);
}

#[test]
fn claims_go_on_while_a_table_that_outcomes_need_is_locked() {
    let mut engine = with_claims(3);
    engine.wire.answer(200);
    engine.store.agenda = vec![due(true)];
    let locked = Trouble::new("55P03", "canceling statement due to lock timeout");
    engine.store.answers.push_back(Err(locked));
    engine.tell_of_commit(Wake::Anything);
    assert_eq!(engine.turn().unwrap(), Duration::ZERO);
    assert_eq!(last_endings(&engine).len(), 3);
    engine.store.answers.push_back(Ok(claims(2)));
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), []);
    assert_eq!(engine.in_flight(), 2);
    assert_eq!(engine.trouble(), None, "it delivers");
    let said = engine.take_notices();
    assert!(
        matches!(&said[..], [Notice::Error(message)] if message.starts_with("outcomes wait")),
        "{said:?}"
    );

    // A smaller handful after a while, and then the rest of it at once.
    let wait = engine.settling.wait(Instant::now()).expect("it waits");
    std::thread::sleep(wait);
    assert_eq!(engine.turn().unwrap(), Duration::ZERO);
    assert_eq!(last_endings(&engine), [key(1)]);
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(2), key(3)]);
    assert!(!engine.ledger.has_endings());
}

#[test]
fn claims_of_endpoints_that_are_well_go_on_while_breakers_are_locked() {
    let locked = || Trouble::new("55P03", "canceling statement due to lock timeout");
    let mut engine = with_claims(1);
    engine.wire.answer(200);
    engine.turn().unwrap();
    // One that the engine has heard nothing of, and one whose breaker is open.
    let others = [(2, true), (3, false)].map(|(endpoint_id, breaker_is_closed)| Due {
        endpoint_id,
        ..due(breaker_is_closed)
    });
    engine.store.agenda = [vec![due(true)], others.to_vec()].concat();
    engine.store.answers.push_back(Err(locked()));
    engine.store.answers.push_back(Ok(Exchanged {
        due: Vec::new(),
        ..claims(2)
    }));
    engine.tell_of_commit(Wake::Anything);
    engine.turn().unwrap();
    let asked = engine.store.asked.last().unwrap();
    assert!(asked.without_breakers);
    assert_eq!(asked.about, [(1, BEGINNING)]);
    assert_eq!((engine.in_flight(), engine.trouble()), (2, None));

    // Whoever holds the engine holds it now too.
    engine.hold(Some(Hold::Claiming));
    let asked = engine.store.asked.len();
    engine.tell_of_commit(Wake::Anything);
    engine.turn().unwrap();
    assert_eq!(engine.store.asked.len(), asked);
    engine.hold(None);

    // Outcomes wait, and after a while breakers are read again.
    engine.wire.answer(200);
    engine.store.answers.push_back(Err(locked()));
    engine.tell_of_commit(Wake::Anything);
    let wait = engine.settling.wait(Instant::now()).expect("it waits");
    std::thread::sleep(wait);
    engine.turn().unwrap();
    let asked = engine.store.asked.last().unwrap();
    assert!(!asked.without_breakers && !asked.endings.is_empty());
    assert!(engine.ledger.has_endings());
}

#[test]
fn nothing_is_claimed_when_the_memory_for_outcomes_is_full() {
    let mut engine = with_claims(1);
    let most = settling::MOST_BYTES / 2;
    let endings = (2..4).map(|n| Ending {
        excerpt: Some("x".repeat(most)),
        ..Ending::released(key(n))
    });
    engine.ledger.put_back(endings);
    engine.settling.met_a_lock(2, Instant::now());
    engine.store.agenda = vec![due(true)];
    engine.tell_of_commit(Wake::Anything);
    let asked = engine.store.asked.len();
    engine.turn().unwrap();
    let asked = &engine.store.asked[asked..];
    assert!(asked.iter().all(|a| a.wishes.is_empty()), "{asked:?}");
}

#[test]
fn a_breaker_that_opens_withdraws_what_is_not_on_the_wire() {
    let mut engine = with_claims(3);
    let one = engine.wire.submitted.borrow_mut().pop().unwrap();
    let rest = engine.wire.submitted.replace(vec![one]);
    engine.wire.answer(503);
    engine.wire.submitted.replace(rest);
    engine.store.answers.push_back(Ok(Exchanged {
        due: vec![Due {
            due_in: None,
            ..due(false)
        }],
        ..Exchanged::default()
    }));
    engine.turn().unwrap();
    assert_eq!(engine.in_flight(), 0);
    engine.turn().unwrap();
    assert_eq!(
        last_endings(&engine),
        [key(1), key(2)],
        "they are given back"
    );
}

#[test]
fn a_hold_claims_nothing_and_settles_all_the_same() {
    let mut engine = with_claims(1);
    engine.store.agenda = vec![due(true)];
    engine.tell_of_commit(Wake::Anything);
    engine.wire.answer(200);
    engine.hold(Some(Hold::Claiming));
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(1)]);
    assert!(engine.store.asked.last().unwrap().wishes.is_empty());
}

#[test]
fn a_server_that_is_read_only_is_asked_for_nothing() {
    let mut engine = with_claims(1);
    engine.wire.answer(200);
    let exchanges = engine.store.asked.len();
    engine.hold(Some(Hold::Writing));
    assert_eq!(engine.turn().unwrap(), engine.config.poll_interval);
    assert_eq!(engine.store.asked.len(), exchanges);
    engine.hold(None);
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(1)]);
}

#[test]
fn an_engine_with_nothing_to_do_sleeps_for_the_poll_interval() {
    let mut engine = engine(Scripted::default());
    let mut pause = Duration::ZERO;
    for _ in 0..20 {
        pause = engine.turn().unwrap();
    }
    assert!(pause > Duration::from_secs(4), "{pause:?}");
    assert!(
        engine.store.asked.is_empty(),
        "no exchange, no transaction id"
    );
}

#[test]
fn an_engine_ends_when_its_sql_is_gone() {
    let mut engine = engine(Scripted {
        is_gone: true,
        ..Scripted::default()
    });
    assert_eq!(engine.turn(), Err(End::Gone));
}

mod shares;
