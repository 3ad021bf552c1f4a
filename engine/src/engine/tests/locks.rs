//! Claims and outcomes go on beside rows and tables that somebody has locked.

use super::*;
use crate::settling;

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
    // An endpoint that the engine has heard nothing of, and one whose breaker is open.
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

    // A hold still holds.
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
