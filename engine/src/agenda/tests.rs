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

fn page_of(due: &[Due]) -> Page {
    let last = due.last().map(|due| due.endpoint_id);
    Page {
        due: due.to_vec(),
        later: Vec::new(),
        goes_on_after: last.filter(|_| due.len() >= PAGE),
    }
}

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
    agenda.looked_at(&page_of(&page), now, Duration::ZERO, POLL);
    assert_eq!(agenda.look_after(now), Some(PAGE as i32));
    assert_eq!(agenda.next(now), Some(now), "there is another page");
    agenda.looked_at(&page_of(&[due(1000, Some(0))]), now, Duration::ZERO, POLL);
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
    agenda.looked_at(&page_of(&[]), now, Duration::ZERO, POLL);
    assert_eq!(agenda.next(now), Some(now));
    assert_eq!(agenda.look_after(now), Some(0));
    agenda.looked_at(&page_of(&[]), now, Duration::ZERO, POLL);
    assert_eq!(agenda.look_after(now), None);
}

#[test]
fn an_endpoint_that_a_whole_look_did_not_find_has_nothing_queued() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.look_after(now);
    agenda.looked_at(
        &page_of(&[due(1, Some(0)), due(2, Some(0))]),
        now,
        Duration::ZERO,
        POLL,
    );
    agenda.wake(Wake::Anything, now);
    agenda.look_after(now);
    let told = Wake::Endpoint {
        id: 3,
        due_in: Duration::ZERO,
        position: 0.0,
    };
    agenda.wake(told, now);
    agenda.looked_at(&page_of(&[due(2, Some(0))]), now, Duration::ZERO, POLL);
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
        position: 0.0,
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
    agenda.looked_at(
        &page_of(&[due(1, Some(0)), due(2, Some(70))]),
        now,
        Duration::ZERO,
        POLL,
    );
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
    agenda.looked_at(&page_of(&[]), now, Duration::ZERO, POLL);
    assert_eq!(agenda.earliest(now), Duration::MAX);
    let (soon, late) = (Duration::from_secs(7), Duration::from_secs(70));
    for (id, due_in) in [(1, late), (2, soon)] {
        agenda.wake(
            Wake::Endpoint {
                id,
                due_in,
                position: 0.0,
            },
            now,
        );
    }
    assert_eq!(agenda.earliest(now), soon);
    assert_eq!(agenda.earliest(now + late), Duration::ZERO);
    agenda.wake(Wake::Anything, now);
    assert_eq!(agenda.earliest(now), Duration::ZERO);
}

fn at(endpoint_id: i32, position: Option<Position>) -> Due {
    Due {
        position,
        ..due(endpoint_id, Some(0))
    }
}

fn told(position: Position) -> Wake {
    Wake::Endpoint {
        id: 1,
        due_in: Duration::ZERO,
        position,
    }
}

#[test]
fn a_queue_is_read_from_where_the_last_answer_has_come_to() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.wake(told(5.0), now);
    assert_eq!(agenda.position(1), BEGINNING, "nobody has read it yet");
    agenda.learn(&at(1, Some(10.0)), now);
    assert_eq!(agenda.position(1), 10.0);
    agenda.learn(&at(1, None), now);
    assert_eq!(agenda.position(1), 10.0, "it was not read");
    assert_eq!(agenda.position(2), BEGINNING);
}

#[test]
fn a_commit_moves_a_position_back_and_never_forward() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.learn(&at(1, Some(10.0)), now);
    agenda.wake(told(12.0), now);
    assert_eq!(agenda.position(1), 10.0);
    // Also where the endpoint is asked for anyway.
    agenda.wake(told(7.0), now);
    assert_eq!(agenda.position(1), 7.0);
    agenda.learn(&at(1, Some(11.0)), now);
    assert_eq!(agenda.position(1), 11.0);
}

#[test]
fn a_look_moves_positions_to_what_it_has_found() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.learn(&at(1, Some(10.0)), now);
    agenda.learn(&at(2, Some(10.0)), now);
    agenda.wake(Wake::Anything, now);
    agenda.look_after(now);
    agenda.looked_at(&page_of(&[at(1, Some(3.0))]), now, Duration::ZERO, POLL);
    assert_eq!(agenda.position(1), 3.0);
    assert_eq!(agenda.position(2), 10.0, "it has nothing queued");
    agenda.keep_positions(|id| id == 1);
    assert_eq!(agenda.position(2), BEGINNING);
}

#[test]
fn looks_that_take_long_are_rare_unless_somebody_asks_for_one() {
    let mut agenda = of_everything();
    let now = Instant::now();
    let took = Duration::from_secs(1);
    agenda.look_after(now);
    let page: Vec<Due> = (1..=PAGE as i32).map(|id| due(id, None)).collect();
    agenda.looked_at(&page_of(&page), now, took, POLL);
    agenda.looked_at(&page_of(&[]), now, took, POLL);
    let pause = 2 * LOOK_SHARE * took;
    assert_eq!(agenda.next(now), Some(now + pause));
    agenda.wake(Wake::Anything, now);
    assert_eq!(agenda.look_after(now), Some(0));
    agenda.looked_at(&page_of(&[]), now, Duration::ZERO, POLL);
    assert_eq!(agenda.next(now), Some(now + POLL));
}

#[test]
fn nothing_is_asked_for_of_an_endpoint_that_has_changed_until_it_was_asked_about() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.look_after(now);
    agenda.looked_at(
        &page_of(&[due(1, Some(0)), due(2, Some(0))]),
        now,
        Duration::ZERO,
        POLL,
    );
    agenda.wake(Wake::Changed { id: 1 }, now);
    agenda.wake(told(1.0), now);
    assert_eq!(asking(&agenda, now), [2]);
    assert_eq!(agenda.changed().collect::<Vec<_>>(), [1]);
    assert_eq!(agenda.next(now), Some(now));
    agenda.learn(&due(1, Some(0)), now);
    assert_eq!(asking(&agenda, now), [1, 2]);
    assert_eq!(agenda.next(now), Some(now + POLL));
}

#[test]
fn nothing_is_remembered_of_endpoints_that_another_sender_serves() {
    let mut agenda = of_everything();
    let now = Instant::now();
    let shares = |kept: &[i32]| Shares {
        total: 2,
        kept: kept.to_vec(),
        given_up: Vec::new(),
    };
    agenda.serve(&shares(&[0, 1]));
    agenda.learn(&at(1, Some(10.0)), now);
    agenda.wake(Wake::Changed { id: 1 }, now);
    agenda.serve(&shares(&[0]));
    agenda.wake(Wake::Changed { id: 3 }, now);
    assert_eq!(agenda.changed().count(), 0);
    agenda.serve(&shares(&[0, 1]));
    assert_eq!(agenda.position(1), BEGINNING, "it may have moved back");
}

#[test]
fn an_endpoint_that_has_time_is_asked_for_when_its_time_has_come() {
    let mut agenda = of_everything();
    let now = Instant::now();
    agenda.look_after(now);
    let hour = Duration::from_secs(3600);
    let page = Page {
        later: vec![(7, hour)],
        ..Page::default()
    };
    agenda.looked_at(&page, now, Duration::ZERO, POLL);
    assert!(asking(&agenda, now).is_empty());
    assert_eq!(agenda.earliest(now), hour);
    assert_eq!(asking(&agenda, now + hour), [7]);

    // As with the others, an endpoint that a look does not find any more has nothing queued.
    agenda.look_after(now + POLL);
    agenda.looked_at(&Page::default(), now + POLL, Duration::ZERO, POLL);
    assert!(asking(&agenda, now + hour).is_empty());
}
