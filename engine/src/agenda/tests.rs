use super::*;

fn of_everything() -> Agenda {
    Agenda {
        shares: Shares {
            total: 1,
            kept: vec![0],
            given_up: Vec::new(),
        },
        ..Agenda::default()
    }
}

const POLL: Duration = Duration::from_secs(5);

fn due(endpoint_id: i32, due_in_ms: Option<u64>) -> Due {
    Due {
        endpoint_id,
        due_in: due_in_ms.map(Duration::from_millis),
        breaker_is_closed: true,
        ..Due::default()
    }
}

fn asking(agenda: &Agenda, now: Instant) -> Vec<i32> {
    let mut asking: Vec<i32> = agenda
        .asking(now)
        .map(|asking| asking.endpoint_id)
        .collect();
    asking.sort_unstable();
    asking
}

#[test]
fn all_endpoints_are_looked_at_page_by_page_and_again_after_the_poll_interval() {
    let mut agenda = of_everything();
    let now = Instant::now();
    assert_eq!(agenda.look_after(now), Some(0));
    let page: Vec<Due> = (1..=PAGE as i32).map(|id| due(id, Some(0))).collect();
    agenda.looked_at(&page, now, POLL);
    assert_eq!(agenda.look_after(now), Some(PAGE as i32));
    assert_eq!(agenda.next(now), Some(now), "there is another page");
    agenda.looked_at(&[due(1000, Some(0))], now, POLL);
    assert_eq!(agenda.look_after(now), None);
    assert_eq!(asking(&agenda, now).len(), PAGE + 1);
    assert_eq!(agenda.look_after(now + POLL), Some(0));
}

#[test]
fn a_commit_amid_a_look_has_another_one_follow() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.look_after(now);
    agenda.wake(Wake::Anything, now);
    agenda.looked_at(&[], now, POLL);
    assert_eq!(agenda.next(now), Some(now));
    assert_eq!(agenda.look_after(now), Some(0));
    agenda.looked_at(&[], now, POLL);
    assert_eq!(agenda.look_after(now), None);
}

#[test]
fn an_endpoint_that_a_whole_look_did_not_find_has_nothing_queued() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.look_after(now);
    agenda.looked_at(&[due(1, Some(0)), due(2, Some(0))], now, POLL);
    agenda.wake(Wake::Anything, now);
    agenda.look_after(now);
    let told = Wake::Endpoint {
        id: 3,
        due_in: Duration::ZERO,
    };
    agenda.wake(told, now);
    agenda.looked_at(&[due(2, Some(0))], now, POLL);
    assert_eq!(asking(&agenda, now), [2, 3], "3 was told of meanwhile");
}

#[test]
fn a_commit_brings_an_endpoint_forward_and_never_puts_it_off() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.learn(&due(1, Some(1000)), now);
    let wake = |ms| Wake::Endpoint {
        id: 1,
        due_in: Duration::from_millis(ms),
    };
    agenda.wake(wake(2000), now);
    assert_eq!(asking(&agenda, now + Duration::from_millis(1000)), [1]);
    agenda.wake(wake(10), now);
    assert!(asking(&agenda, now).is_empty());
    assert_eq!(asking(&agenda, now + Duration::from_millis(10)), [1]);
}

#[test]
fn the_next_time_is_that_of_what_is_not_due_yet() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.look_after(now);
    agenda.looked_at(&[due(1, Some(0)), due(2, Some(70))], now, POLL);
    assert_eq!(agenda.next(now), Some(now + Duration::from_millis(70)));
    agenda.learn(&due(2, None), now);
    assert_eq!(agenda.next(now), Some(now + POLL));
}

#[test]
fn what_somebody_has_locked_is_tried_again_a_little_later() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.learn(&due(1, Some(0)), now);
    agenda.put_off_what_is_due(1, now);
    assert!(asking(&agenda, now).is_empty());
    assert_eq!(asking(&agenda, now + LOCKED_RETRY), [1]);
    agenda.learn(&due(2, Some(10)), now);
    agenda.put_off_what_is_due(2, now);
    assert_eq!(asking(&agenda, now + Duration::from_millis(10)), [2]);
}

#[test]
fn an_endpoint_that_turns_away_is_asked_for_only_when_a_probe_may_go() {
    let mut agenda = of_everything();
    let now = Instant::now();
    let turning_away = |due_in_ms| Due {
        turns_away: true,
        is_guarded: true,
        ..due(1, due_in_ms)
    };
    agenda.learn(&turning_away(Some(0)), now);
    assert!(asking(&agenda, now).is_empty());
    assert_eq!(agenda.turning_away(), [1]);
    agenda.learn(&turning_away(Some(50)), now);
    assert_eq!(asking(&agenda, now + Duration::from_millis(50)), [1]);
    agenda.learn(&due(1, Some(0)), now);
    assert!(agenda.turning_away().is_empty());
}

#[test]
fn the_earliest_is_known_once_all_were_looked_at() {
    let mut agenda = of_everything();
    let now = Instant::now();
    assert_eq!(agenda.earliest(now), Duration::ZERO);
    agenda.look_after(now);
    assert_eq!(agenda.earliest(now), Duration::ZERO);
    agenda.looked_at(&[], now, POLL);
    assert_eq!(agenda.earliest(now), Duration::MAX);
    let (soon, late) = (Duration::from_secs(7), Duration::from_secs(70));
    for (id, due_in) in [(1, late), (2, soon)] {
        agenda.wake(Wake::Endpoint { id, due_in }, now);
    }
    assert_eq!(agenda.earliest(now), soon);
    assert_eq!(agenda.earliest(now + late), Duration::ZERO);
    agenda.wake(Wake::Anything, now);
    assert_eq!(agenda.earliest(now), Duration::ZERO);
}
