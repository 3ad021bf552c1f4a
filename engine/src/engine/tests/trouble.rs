//! Errors of the database: which outcomes are handed in again, and when.

use super::*;

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
fn counts_are_added_again_unless_they_may_have_been_added_or_are_refused() {
    for (code, commit_unknown, are_dropped) in [
        ("08006", false, false),
        ("08006", true, true),
        ("22023", false, true),
    ] {
        let mut engine = engine(Scripted::default());
        engine.figures.finished(&[Finished::default()]);
        engine.store.trouble_with_figures = Some(Trouble {
            commit_unknown,
            ..Trouble::new(code, "figures are not added")
        });
        assert!(engine.flush_figures(Instant::now()).is_err());
        assert_eq!(engine.figures.is_empty(), are_dropped, "{code}");
    }
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
    // All of them fail together, and then the first of three.
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
fn an_engine_ends_when_its_sql_is_gone() {
    let mut engine = engine(Scripted {
        is_gone: true,
        ..Scripted::default()
    });
    assert_eq!(engine.turn(), Err(End::Gone));
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
