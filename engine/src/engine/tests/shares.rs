//! Several senders: each serves its shares.

use super::*;

fn of_endpoint(endpoint_id: i32) -> Due {
    Due {
        endpoint_id,
        ..due(true)
    }
}

fn wished(engine: &Engine<Scripted, Held>) -> Vec<i32> {
    let asked = engine.store.asked.iter().flat_map(|asked| &asked.wishes);
    let mut endpoints: Vec<i32> = asked.map(|wish| wish.endpoint_id).collect();
    endpoints.sort_unstable();
    endpoints
}

#[test]
fn only_endpoints_of_its_own_shares_are_served() {
    let mut engine = engine(Scripted {
        agenda: (1..=4).map(of_endpoint).collect(),
        shares: Some(shares(2, &[1], &[])),
        ..Scripted::default()
    });
    engine.turn().unwrap();
    engine.tell_of_commit(Wake::Endpoint {
        id: 6,
        due_in: Duration::ZERO,
        position: 0.0,
    });
    engine.turn().unwrap();
    assert_eq!(wished(&engine), [1, 3]);
}

#[test]
fn a_stand_by_does_nothing_and_asks_again_soon() {
    let mut engine = engine(Scripted {
        agenda: vec![due(true)],
        shares: Some(shares(1, &[], &[])),
        ..Scripted::default()
    });
    let mut pause = engine.turn().unwrap();
    for _ in 0..5 {
        pause = engine.turn().unwrap();
    }
    assert!(wished(&engine).is_empty());
    let soon = Duration::from_millis(250)..=Duration::from_millis(500);
    assert!(soon.contains(&pause), "{pause:?}");
    assert_eq!(engine.store.upkeep, 0);

    engine.store.shares = None;
    engine.next_look_at_shares = Instant::now();
    engine.turn().unwrap();
    assert_eq!(wished(&engine), [1]);
}

#[test]
fn a_share_is_released_when_nothing_of_it_is_in_flight_and_what_waits_is_given_back() {
    let mut engine = with_claims(2);
    let on_the_wire = engine.wire.submitted.borrow_mut().pop().unwrap();
    engine.store.shares = Some(shares(2, &[0], &[1]));
    engine.next_look_at_shares = Instant::now();
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(1)], "given back");
    assert!(engine.store.released_shares.is_empty());

    engine.wire.submitted.replace(vec![on_the_wire]);
    engine.wire.answer(200);
    engine.turn().unwrap();
    assert_eq!(last_endings(&engine), [key(2)]);
    engine.next_look_at_shares = Instant::now();
    engine.turn().unwrap();
    assert_eq!(engine.store.released_shares, [1]);
}

#[test]
fn without_room_for_a_single_request_a_sender_ends_its_run_when_nothing_is_in_flight() {
    let mut engine = with_claims(1);
    let none = Config {
        max_in_flight: 0,
        ..engine.config.clone()
    };
    let on_the_wire = engine.wire.submitted.take();
    engine.configure(none);
    engine.hold(Some(Hold::Claiming));
    engine.turn().unwrap();
    assert_eq!(engine.sender, Some(1), "one is still in flight");
    engine.wire.submitted.replace(on_the_wire);
    engine.wire.answer(200);
    engine.turn().unwrap();
    engine.next_look_at_shares = Instant::now();
    engine.turn().unwrap();
    assert_eq!(engine.sender, None);
}

#[test]
fn others_are_told_of_what_is_theirs_and_not_more_often_than_they_need() {
    let mut engine = engine(Scripted {
        shares: Some(shares(2, &[1], &[])),
        ..Scripted::default()
    });
    let committed = |id| Wake::Endpoint {
        id,
        due_in: Duration::ZERO,
        position: 0.0,
    };
    engine.turn().unwrap();
    engine.tell_of_commit(committed(1));
    engine.turn().unwrap();
    assert_eq!(engine.store.rings, 0, "that is its own");
    engine.tell_of_commit(committed(2));
    engine.turn().unwrap();
    assert_eq!(engine.store.rings, 1);
    engine.tell_of_commit(committed(2));
    engine.tell_of_commit(Wake::Anything);
    let pause = engine.turn().unwrap();
    assert_eq!(engine.store.rings, 1);
    assert!(pause <= Duration::from_millis(20), "{pause:?}");
}

#[test]
fn a_sender_that_is_alone_tells_nobody() {
    let mut engine = engine(Scripted::default());
    engine.turn().unwrap();
    engine.tell_of_commit(Wake::Anything);
    engine.turn().unwrap();
    assert_eq!(engine.store.rings, 0);
}

#[test]
fn a_sender_that_is_held_from_the_start_rests() {
    for hold in [Hold::Claiming, Hold::Writing] {
        let mut engine = engine(Scripted::default());
        engine.hold(Some(hold));
        let pauses: Vec<Duration> = (0..10).map(|_| engine.turn().unwrap()).collect();
        assert!(pauses[9] > Duration::from_secs(1), "{hold:?}: {pauses:?}");
    }
}

#[test]
fn a_sender_that_has_another_session_names_its_earlier_run_once() {
    let mut engine = with_claims(2);
    engine.wire.answer(200);
    engine.begin_session();
    assert!(!engine.agenda.shares().serve(1));
    engine.turn().unwrap();
    assert_eq!(engine.store.earlier, [1]);
    assert!(engine.agenda.shares().serve(1));
    engine.sender = None;
    engine.next_look_at_shares = Instant::now();
    engine.turn().unwrap();
    assert!(engine.store.earlier.is_empty());
}
