mod doubles;
mod locks;
mod shares;
mod trouble;

use super::*;
use crate::store::{BEGINNING, Due, Exchanged, Finished};
use doubles::*;

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

    // A request ended meanwhile, and 2 is wished for alone: the position of 1 is 9 by now, and a commit tells of
    // something earlier.
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
