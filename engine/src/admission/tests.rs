use super::*;
use crate::ledger::Ending;
use uuid::Uuid;
use webhook_delivery::Key;

/// Endpoints, their requests, and a clock that only the test moves.
struct Scene {
    admission: Admission,
    ledger: Ledger,
    budget: Budget,
    now: Instant,
    keys: u128,
}

impl Scene {
    /// Nothing is claimed ahead.
    fn with(most: usize) -> Self {
        let mut scene = Scene::ahead(most);
        scene.admission.ahead = Duration::ZERO;
        scene
    }

    fn ahead(most: usize) -> Self {
        Scene {
            admission: Admission::new(most),
            ledger: Ledger::default(),
            budget: Budget::default(),
            now: Instant::now(),
            keys: 0,
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    fn learn(&mut self, endpoint_id: i32, due: Due) {
        let due = Due { endpoint_id, ..due };
        self.admission.learn(&due, self.now);
    }

    fn wishes(&mut self, endpoints: &[i32]) -> HashMap<i32, usize> {
        for endpoint in endpoints {
            let standing = self.admission.standings.get(endpoint);
            if !standing.is_some_and(|standing| standing.is_known) {
                self.learn(*endpoint, CLOSED);
            }
        }
        let asking = endpoints.iter().map(|endpoint_id| Asking {
            endpoint_id: *endpoint_id,
            is_guarded: false,
        });
        self.admission
            .wishes(asking.collect(), &self.ledger, &self.budget, self.now)
            .into_iter()
            .map(|wish| (wish.endpoint_id, wish.count))
            .collect()
    }

    fn wish(&mut self, endpoint: i32) -> usize {
        self.wishes(&[endpoint])
            .get(&endpoint)
            .copied()
            .unwrap_or(0)
    }

    /// Claims all deliveries that are granted; says how many of each endpoint.
    fn claim(&mut self, endpoints: &[i32]) -> HashMap<i32, usize> {
        let granted = self.wishes(endpoints);
        for (endpoint, count) in &granted {
            self.begin(*endpoint, *count);
        }
        granted
    }

    fn begin(&mut self, endpoint: i32, count: usize) {
        for _ in 0..count {
            self.keys += 1;
            let key = Key {
                event_id: Uuid::from_u128(self.keys),
                endpoint_id: endpoint,
                claim_seq: 1,
            };
            self.ledger.claim(key, 1, false, self.now);
        }
        let in_flight = self.ledger.out_to(endpoint);
        self.admission.claimed(endpoint, count, in_flight, self.now);
    }

    /// Ends all requests to this endpoint.
    fn end(&mut self, endpoint: i32, quality: Quality) {
        let keys = self.ledger.keys_out().into_iter();
        for key in keys.filter(|key| key.endpoint_id == endpoint) {
            let flight = self.ledger.end(Ending::released(key)).unwrap();
            let took = self.now - flight.begun;
            self.admission
                .note(endpoint, quality, flight.begun, took, self.now);
        }
    }

    /// Ends one request to this endpoint, the one that began first.
    fn end_one(&mut self, endpoint: i32, quality: Quality) {
        let keys = self.ledger.keys_out().into_iter();
        let first = keys
            .filter(|key| key.endpoint_id == endpoint)
            .min_by_key(|key| key.event_id);
        let flight = self.ledger.end(Ending::released(first.unwrap())).unwrap();
        let took = Duration::from_millis(10);
        (self.admission).note(endpoint, quality, flight.begun, took, self.now);
    }

    fn round(&mut self, endpoint: i32, quality: Quality) -> usize {
        let claimed = self.claim(&[endpoint]).get(&endpoint).copied();
        self.pass(100);
        self.end(endpoint, quality);
        claimed.unwrap_or(0)
    }

    fn proven(&mut self, endpoint: i32) {
        self.begin(endpoint, 1);
        self.end(endpoint, Quality::Good);
    }
}

const CLOSED: Due = Due {
    endpoint_id: 0,
    due_in: None,
    position: None,
    max_in_flight: None,
    rate_limit: None,
    breaker_is_closed: true,
    is_guarded: false,
    turns_away: false,
    is_well: false,
};

#[test]
fn a_window_doubles_with_each_round_trip_up_to_the_endpoint_s_limit() {
    let mut scene = Scene::with(1000);
    let rounds: Vec<usize> = (0..6).map(|_| scene.round(1, Quality::Good)).collect();
    assert_eq!(rounds, [8, 16, 32, 64, 100, 100]);

    let mut scene = Scene::with(1000);
    scene.learn(
        1,
        Due {
            max_in_flight: Some(20),
            ..CLOSED
        },
    );
    let rounds: Vec<usize> = (0..3).map(|_| scene.round(1, Quality::Good)).collect();
    assert_eq!(rounds, [8, 16, 20]);
}

#[test]
fn overload_halves_the_window_once_for_all_that_was_in_flight_and_ends_the_doubling() {
    let mut scene = Scene::with(1000);
    for _ in 0..3 {
        scene.round(1, Quality::Good);
    }
    assert_eq!(scene.round(1, Quality::Overloaded), 64);
    scene.proven(1);
    assert_eq!(scene.wish(1), 32);
    let rounds: Vec<usize> = (0..3).map(|_| scene.round(1, Quality::Good)).collect();
    assert_eq!(rounds, [32, 33, 34]);
}

#[test]
fn a_window_never_falls_below_one() {
    let mut scene = Scene::with(1000);
    for _ in 0..10 {
        scene.round(1, Quality::Overloaded);
    }
    assert_eq!(scene.wish(1), 1);
}

#[test]
fn a_poison_event_does_not_narrow_the_window() {
    let mut scene = Scene::with(1000);
    scene.round(1, Quality::Good);
    scene.begin(1, 1);
    scene.end(1, Quality::Bad);
    assert_eq!(scene.wish(1), 16);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut scene = Scene::with(1000);
    for _ in 0..50 {
        scene.proven(1);
    }
    assert_eq!(scene.wish(1), 8);
}

#[test]
fn a_breaker_that_closes_begins_the_window_anew_with_one() {
    let mut scene = Scene::with(1000);
    scene.learn(1, CLOSED);
    for _ in 0..4 {
        scene.round(1, Quality::Good);
    }
    scene.learn(
        1,
        Due {
            breaker_is_closed: false,
            ..CLOSED
        },
    );
    scene.learn(1, CLOSED);
    let rounds: Vec<usize> = (0..4).map(|_| scene.round(1, Quality::Good)).collect();
    assert_eq!(rounds, [1, 2, 4, 8]);
    scene.learn(1, CLOSED);
    assert_eq!(scene.round(1, Quality::Good), 16, "it was closed already");
}

#[test]
fn attempts_in_any_second_are_no_more_than_the_rate_and_one_bucket() {
    let mut scene = Scene::with(1000);
    let limited = Due {
        rate_limit: Some(10.0),
        ..CLOSED
    };
    scene.learn(1, limited.clone());
    let mut sent = Vec::new();
    for tick in 0..500 {
        let count = scene.claim(&[1]).get(&1).copied().unwrap_or(0);
        sent.extend(vec![tick; count]);
        scene.end(1, Quality::Good);
        scene.pass(10);
        scene.learn(1, limited.clone());
    }
    // Five seconds: the bucket of the beginning, and the tokens that have come since.
    assert!((58..=60).contains(&sent.len()), "{}", sent.len());
    assert!(sent.windows(21).all(|window| window[20] - window[0] > 100));
}

#[test]
fn a_full_bucket_gains_nothing_while_it_is_asked_for() {
    let mut scene = Scene::with(1000);
    let ten = Due {
        rate_limit: Some(10.0),
        max_in_flight: Some(100),
        ..CLOSED
    };
    scene.learn(1, ten);
    scene.proven(1);
    scene.round(1, Quality::Good);
    scene.pass(2000);
    assert_eq!(scene.wish(1), 10);
    scene.pass(50);
    scene.begin(1, 10);
    scene.pass(90);
    assert_eq!(scene.wish(1), 0);
    scene.pass(10);
    assert_eq!(scene.wish(1), 1);
}

#[test]
fn a_rate_below_one_a_second_is_kept_and_says_when_the_next_may_go() {
    let mut scene = Scene::with(1000);
    let limited = Due {
        rate_limit: Some(0.5),
        ..CLOSED
    };
    scene.learn(1, limited);
    assert_eq!(scene.round(1, Quality::Good), 1);
    assert_eq!(scene.wish(1), 0);
    let next = scene.admission.next_token(1).unwrap();
    let left = next.saturating_duration_since(scene.now);
    assert!((1_800..=1_900).contains(&left.as_millis()), "{left:?}");
    scene.now = next;
    assert_eq!(scene.wish(1), 1);
    assert_eq!(scene.admission.next_token(1), None);
}

#[test]
fn endpoints_that_do_not_answer_take_half_at_most_and_two_each_while_others_wait() {
    let mut scene = Scene::with(1000);
    let hung: Vec<i32> = (1..=1000).collect();
    for _ in 0..5 {
        scene.claim(&hung);
    }
    assert_eq!(scene.ledger.out(), 500);
    assert!(
        hung.iter()
            .all(|endpoint| scene.ledger.out_to(*endpoint) <= 2)
    );

    scene.proven(2000);
    let mut all = hung.clone();
    all.push(2000);
    assert_eq!(scene.wishes(&all)[&2000], 8);
}

#[test]
fn an_endpoint_that_is_alone_is_not_kept_to_two() {
    let mut scene = Scene::with(1000);
    assert_eq!(scene.wish(1), 8);
    assert_eq!(scene.wishes(&[1, 2]), HashMap::from([(1, 2), (2, 2)]));
}

#[test]
fn a_proven_endpoint_whose_oldest_request_takes_too_long_is_in_doubt_until_it_answers() {
    let mut scene = Scene::with(1000);
    scene.proven(1);
    scene.proven(2);
    scene.begin(1, 3);
    scene.pass(1000);
    assert_eq!(scene.wishes(&[1, 2])[&1], 5);
    scene.pass(1);
    assert!(!scene.wishes(&[1, 2]).contains_key(&1));
    scene.end(1, Quality::Good);
    assert_eq!(scene.wishes(&[1, 2])[&1], 8);
}

#[test]
fn an_endpoint_that_is_slow_as_usual_is_not_in_doubt() {
    let mut scene = Scene::with(1000);
    scene.begin(1, 1);
    scene.pass(2_000);
    scene.end(1, Quality::Good);
    scene.begin(1, 3);
    scene.pass(7_000);
    assert_eq!(scene.wishes(&[1, 2])[&1], 5);
    scene.pass(2_000);
    assert!(!scene.wishes(&[1, 2]).contains_key(&1));
}

#[test]
fn what_is_free_is_divided_evenly_and_everybody_comes_first_in_turn() {
    let mut scene = Scene::with(10);
    for endpoint in 1..=20 {
        scene.proven(endpoint);
    }
    let all: Vec<i32> = (1..=20).collect();
    let mut served: HashMap<i32, usize> = HashMap::new();
    for _ in 0..20 {
        let granted = scene.claim(&all);
        assert_eq!(granted.values().sum::<usize>(), 10);
        for (endpoint, count) in granted {
            assert_eq!(count, 1);
            *served.entry(endpoint).or_default() += 1;
            scene.end(endpoint, Quality::Good);
        }
    }
    assert_eq!(served.len(), 20);
    assert!(served.values().all(|count| *count == 10), "{served:?}");
}

#[test]
fn a_failure_that_cannot_be_settled_counts_as_in_flight() {
    let mut scene = Scene::with(1000);
    scene.claim(&[1]);
    scene.end(1, Quality::Good);
    let endings = scene.ledger.take_endings(usize::MAX);
    scene.ledger.put_back(endings);
    assert_eq!(scene.wish(1), 8);
    let mut endings = scene.ledger.take_endings(usize::MAX);
    assert_eq!(scene.wish(1), 16);
    let succeed = |ending: &mut Ending| ending.status_code = Some(204);
    endings.iter_mut().for_each(succeed);
    scene.ledger.put_back(endings);
    assert_eq!(scene.wish(1), 16, "a success says nothing against it");
}

#[test]
fn an_endpoint_with_a_probe_or_a_test_is_asked_for_without_any_room() {
    let mut scene = Scene::with(1000);
    scene.begin(1, 8);
    let asking = vec![Asking {
        endpoint_id: 1,
        is_guarded: true,
    }];
    let wishes = scene
        .admission
        .wishes(asking, &scene.ledger, &scene.budget, scene.now);
    assert_eq!(wishes.len(), 1);
    assert_eq!(wishes[0].count, 0);
}

#[test]
fn an_endpoint_of_which_nothing_is_known_yet_gets_one() {
    let mut scene = Scene::with(1000);
    let asking = vec![Asking {
        endpoint_id: 1,
        is_guarded: false,
    }];
    let wishes = scene
        .admission
        .wishes(asking, &scene.ledger, &scene.budget, scene.now);
    assert_eq!(wishes[0].count, 1);
}

#[test]
fn an_endpoint_that_was_well_before_this_sender_came_needs_no_room_of_newcomers() {
    let mut scene = Scene::with(10);
    let newcomers: Vec<i32> = (1..=10).collect();
    scene.claim(&newcomers);
    assert_eq!(scene.wish(11), 0, "half of the room is taken");
    let well = Due {
        is_well: true,
        ..CLOSED
    };
    scene.learn(12, well.clone());
    assert!(scene.wish(12) > 0);
    // An answer that this sender has seen itself counts more.
    scene.learn(11, CLOSED);
    scene
        .admission
        .note(11, Quality::Bad, scene.now, Duration::ZERO, scene.now);
    scene.learn(11, well);
    assert_eq!(scene.wish(11), 0);
}

/// How many claims an endpoint gets that takes so many milliseconds, after some round trips, and how many of them may
/// be under way.
fn claimed_for_one_that_takes(milliseconds: u64, due: Due) -> (usize, usize) {
    let mut scene = Scene::ahead(1000);
    scene.learn(1, due);
    for _ in 0..10 {
        scene.claim(&[1]);
        scene.pass(milliseconds);
        scene.end(1, Quality::Good);
    }
    (scene.wish(1), scene.admission.limit(1))
}

#[test]
fn a_quick_endpoint_is_claimed_for_ahead_of_its_window() {
    for (milliseconds, ahead) in [(1, 200), (10, 200), (20, 100), (100, 20), (5000, 0)] {
        let claimed = claimed_for_one_that_takes(milliseconds, CLOSED);
        assert_eq!(claimed, (100 + ahead, 100), "{milliseconds} ms");
    }
    let narrow = Due {
        max_in_flight: Some(4),
        ..CLOSED
    };
    assert_eq!(claimed_for_one_that_takes(1, narrow), (12, 4));
}

#[test]
fn nothing_is_claimed_ahead_for_one_that_has_a_rate_or_is_in_doubt() {
    let with_a_rate = Due {
        rate_limit: Some(1e6),
        ..CLOSED
    };
    assert_eq!(claimed_for_one_that_takes(1, with_a_rate), (100, 100));

    let mut scene = Scene::ahead(1000);
    scene.round(1, Quality::Good);
    scene.pass(1);
    scene.round(1, Quality::Bad);
    assert_eq!((scene.wish(1), scene.admission.limit(1)), (16, 16));
}

#[test]
fn requests_that_wait_take_no_room_of_others_and_are_so_many_at_most() {
    let mut scene = Scene::ahead(1000);
    let endpoints: Vec<i32> = (1..=20).collect();
    for endpoint in &endpoints {
        scene.proven(*endpoint);
    }
    for _ in 0..20 {
        scene.claim(&endpoints);
        scene.pass(1);
        for endpoint in &endpoints {
            scene.end(*endpoint, Quality::Good);
        }
    }
    let claimed: usize = scene.claim(&endpoints).values().sum();
    let may_be_under_way = endpoints.iter().map(|id| scene.admission.limit(*id));
    assert_eq!((claimed, may_be_under_way.sum()), (1000 + MOST_AHEAD, 1000));
    assert_eq!(
        scene.claim(&endpoints),
        HashMap::new(),
        "all of it is taken"
    );
    scene.proven(21);
    assert_eq!(scene.wish(21), 0, "so many are in flight over all");
}

#[test]
fn overload_narrows_what_may_be_under_way_at_once() {
    let mut scene = Scene::ahead(1000);
    for _ in 0..10 {
        scene.claim(&[1]);
        scene.pass(1);
        scene.end(1, Quality::Good);
    }
    scene.claim(&[1]);
    assert_eq!(scene.admission.limit(1), 100);
    let (claimed, took) = (scene.now, Duration::ZERO);
    (scene.admission).note(1, Quality::Overloaded, claimed, took, scene.now);
    assert_eq!(scene.admission.limit(1), 50);
}

#[test]
fn a_probe_waits_for_no_request_that_hangs() {
    let mut scene = Scene::ahead(1000);
    scene.claim(&[1]);
    let open = Due {
        breaker_is_closed: false,
        ..CLOSED
    };
    scene.learn(1, open);
    assert_eq!(scene.admission.limit(1), usize::MAX);
}

/// An endpoint with a window of twenty, and as many claims again that wait, where twenty are all.
fn a_busy_one() -> Scene {
    let mut scene = Scene::ahead(20);
    let twenty = Due {
        max_in_flight: Some(20),
        ..CLOSED
    };
    scene.learn(1, twenty);
    for _ in 0..10 {
        scene.claim(&[1]);
        scene.pass(10);
        scene.end(1, Quality::Good);
    }
    scene.claim(&[1]);
    assert_eq!((scene.ledger.out(), scene.admission.limit(1)), (60, 20));
    scene
}

#[test]
fn a_backlog_that_is_claimed_ahead_leaves_room_for_others() {
    let mut scene = a_busy_one();
    scene.proven(2);
    let mut ended = 0;
    while !scene.claim(&[1, 2]).contains_key(&2) {
        scene.end_one(1, Quality::Good);
        ended += 1;
    }
    assert_eq!(ended, 41, "those that waited, and one");
    for _ in 0..40 {
        scene.end_one(1, Quality::Good);
        scene.claim(&[1, 2]);
    }
    assert!(scene.ledger.out_to(2) >= 10, "half of all");
}

#[test]
fn endpoints_get_room_in_turns_however_often_they_ask() {
    for questions in 1..=3 {
        let mut scene = a_busy_one();
        scene.proven(2);
        let ended = (1..100).find(|_| {
            scene.end_one(1, Quality::Good);
            (0..questions).any(|_| scene.claim(&[1, 2]).contains_key(&2))
        });
        assert!(
            ended.is_some_and(|ended| ended <= 42),
            "{ended:?} with {questions} questions each"
        );
    }
}

#[test]
fn a_backlog_that_is_claimed_ahead_leaves_room_for_more_others_than_there_is_room_for() {
    let mut scene = a_busy_one();
    let all: Vec<i32> = (1..=100).collect();
    for id in &all[1..] {
        scene.proven(*id);
    }
    for _ in 0..60 {
        scene.end_one(1, Quality::Good);
        scene.claim(&all);
    }
    assert!(scene.ledger.out_to(1) <= 2);
    assert!(scene.ledger.out() - scene.ledger.out_to(1) >= 18);
}

#[test]
fn a_limit_that_is_lowered_counts_at_once_and_requests_beyond_it_take_room_until_they_end() {
    let mut scene = a_busy_one();
    let two = Due {
        max_in_flight: Some(2),
        ..CLOSED
    };
    scene.learn(1, two);
    assert_eq!(scene.admission.limit(1), 2);
    scene.proven(2);
    assert_eq!(scene.wish(2), 0, "twenty are under way");
    for _ in 0..5 {
        scene.end_one(1, Quality::Good);
    }
    scene.wish(2);
    assert_eq!(scene.admission.limit(2), 5);
}

#[test]
fn fewer_requests_over_all_count_for_an_endpoint_that_is_alone() {
    let mut scene = a_busy_one();
    scene.admission.most = 5;
    for _ in 0..55 {
        assert_eq!(scene.wish(1), 0);
        scene.end_one(1, Quality::Good);
    }
    assert_eq!(scene.ledger.out(), 5);
    scene.end_one(1, Quality::Good);
    assert!(scene.wish(1) > 0);
}

#[test]
fn requests_that_wait_get_room_that_comes_back() {
    let mut scene = a_busy_one();
    let (claimed, took) = (scene.now, Duration::ZERO);
    (scene.admission).note(1, Quality::Overloaded, claimed, took, scene.now);
    assert_eq!(scene.admission.limit(1), 10);
    for _ in 0..15 {
        scene.end_one(1, Quality::Good);
    }
    assert_eq!(scene.wish(1), 0, "as many wait as may");
    assert_eq!(scene.admission.take_widened(), [1]);
    assert_eq!(scene.admission.limit(1), 11);
}
