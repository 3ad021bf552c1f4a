use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::stopwatch::Stopwatch;

const SOON: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);

fn resolver_within(
    limits: Limits,
    lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
) -> Resolver {
    Resolver::new(Box::new(lookup), limits)
}

fn resolver(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Resolver {
    resolver_within(Limits::default(), lookup)
}

/// A resolver with a clock that the test moves.
fn resolver_by(
    clock: &HandMoved,
    limits: Limits,
    lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
) -> Resolver {
    Resolver::with_clock(clock.clock(), Box::new(lookup), limits)
}

impl Resolver {
    fn wait_for(&self, host: &str, wait: Duration) -> Answer {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let deadline = time::Instant::now() + wait;
        runtime.unwrap().block_on(self.addresses(host, deadline))
    }
}

fn loopback() -> io::Result<Vec<IpAddr>> {
    Ok(vec!["127.0.0.1".parse().unwrap()])
}

fn not_found() -> io::Result<Vec<IpAddr>> {
    Err(io::Error::other("Name or service not known"))
}

/// Looks names up at once, but names that begin with `hang` take until the sender is dropped.
struct Hanging {
    lookup: Box<Lookup>,
    release: mpsc::Sender<()>,
    /// The hosts, in the order in which their lookup was begun.
    begun: mpsc::Receiver<String>,
}

fn hanging() -> Hanging {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (tell, begun) = mpsc::channel();
    let lookup = move |host: &str| {
        let _ = tell.send(host.to_string());
        if host.starts_with("hang") {
            let _ = threads::lock(&released).recv();
        }
        loopback()
    };
    Hanging {
        lookup: Box::new(lookup),
        release,
        begun,
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_answer_serves_all_spellings_of_a_name_from_the_cache() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let resolver = resolver(move |host| {
        assert_eq!(host, "a.invalid");
        counter.fetch_add(1, Ordering::SeqCst);
        loopback()
    });
    assert_eq!(resolver.known("a.invalid", PATIENCE), None);
    for host in ["a.invalid", "A.Invalid"] {
        assert_eq!(
            resolver.wait_for(host, PATIENCE).unwrap(),
            loopback().unwrap()
        );
    }
    assert!(resolver.known("a.invalid", PATIENCE).unwrap().is_ok());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_name_that_does_not_exist_is_dns_and_is_looked_up_again_after_a_moment() {
    let (clock, limits) = (HandMoved::new(), Limits::default());
    let asked = AtomicUsize::new(0);
    let resolver = resolver_by(&clock, limits, move |_| {
        match asked.fetch_add(1, Ordering::SeqCst) {
            0 => not_found(),
            1 => Ok(vec![]),
            _ => loopback(),
        }
    });
    for _ in 0..2 {
        let failure = resolver.wait_for("a.invalid", PATIENCE).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Dns);
        assert_eq!(resolver.known("a.invalid", PATIENCE), Some(Err(failure)));
        clock.pass(limits.failed);
    }
    assert!(resolver.wait_for("a.invalid", PATIENCE).is_ok());
}

#[test]
fn a_lookup_that_fails_for_want_of_descriptors_is_local() {
    let resolver = resolver(|_| Err(io::Error::from_raw_os_error(libc::EMFILE)));
    let failure = resolver.wait_for("a.invalid", PATIENCE).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Local);
}

#[test]
fn a_lookup_that_panics_is_local_and_its_thread_goes_on() {
    let resolver = resolver(|host| match host {
        "fine.invalid" => loopback(),
        _ => panic!("boom"),
    });
    for n in 0..2 * Limits::default().threads() {
        let failure = resolver
            .wait_for(&format!("bad{n}.invalid"), PATIENCE)
            .unwrap_err();
        assert_eq!(failure, Failure::new(FailureKind::Local, "panic: boom"));
    }
    assert!(resolver.wait_for("fine.invalid", PATIENCE).is_ok());
}

#[test]
fn a_caller_waits_for_a_hanging_lookup_no_longer_than_its_deadline() {
    let Hanging {
        lookup,
        release: _release,
        ..
    } = hanging();
    let resolver = resolver(lookup);
    let stopwatch = Stopwatch::start();
    assert_eq!(resolver.wait_for("hang.invalid", SOON), Err(late()));
    assert!(stopwatch.elapsed() < SOON + Duration::from_millis(500));
}

#[test]
fn concurrent_callers_of_a_name_share_one_lookup() {
    let Hanging {
        lookup,
        release,
        begun,
    } = hanging();
    let resolver = resolver(lookup);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let resolver = resolver.clone();
            thread::spawn(move || resolver.wait_for("hang.invalid", PATIENCE))
        })
        .collect();
    begun.recv().unwrap();
    drop(release);
    for caller in callers {
        assert!(caller.join().unwrap().is_ok());
    }
    assert!(begun.try_recv().is_err());
}

#[test]
fn an_answer_that_is_no_longer_fresh_is_given_at_once_while_it_is_looked_up_again() {
    let (clock, limits) = (HandMoved::new(), Limits::default());
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let asked = AtomicUsize::new(0);
    let resolver = resolver_by(&clock, limits, move |_| {
        match asked.fetch_add(1, Ordering::SeqCst) {
            0 => loopback(),
            _ => {
                let _ = threads::lock(&released).recv();
                Ok(vec!["127.0.0.2".parse().unwrap()])
            }
        }
    });
    let old = resolver.wait_for("a.invalid", PATIENCE);
    clock.pass(limits.fresh);
    for _ in 0..3 {
        assert_eq!(resolver.known("a.invalid", PATIENCE), Some(old.clone()));
    }
    drop(release);
    wait_until(|| resolver.known("a.invalid", PATIENCE) != Some(old.clone()));
}

#[test]
fn whoever_waits_for_a_lookup_gets_the_last_good_answer_as_soon_as_it_hangs() {
    let limits = Limits {
        prompt: QUICK.prompt,
        ..Limits::default()
    };
    let clock = HandMoved::new();
    let (_release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (tell, begun) = mpsc::channel();
    let asked = AtomicUsize::new(0);
    let resolver = resolver_by(&clock, limits, move |_| {
        tell.send(()).unwrap();
        if asked.fetch_add(1, Ordering::SeqCst) > 0 {
            let _ = threads::lock(&released).recv();
        }
        loopback()
    });
    assert!(resolver.wait_for("a.invalid", PATIENCE).is_ok());
    clock.pass(limits.usable);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| resolver.wait_for("a.invalid", PATIENCE));
        for _ in 0..2 {
            begun.recv_timeout(PATIENCE).unwrap();
        }
        clock.pass(2 * limits.prompt);
        assert!(waiting.join().unwrap().is_ok());
    });
}

#[test]
fn an_answer_that_is_too_old_is_not_given() {
    let (clock, limits) = (HandMoved::new(), Limits::default());
    let resolver = resolver_by(&clock, limits, |_| loopback());
    assert!(resolver.wait_for("a.invalid", PATIENCE).is_ok());
    clock.pass(limits.usable);
    assert_eq!(resolver.known("a.invalid", PATIENCE), None);
    assert!(resolver.wait_for("a.invalid", PATIENCE).is_ok());
}

#[test]
fn a_thousand_names_that_hang_delay_no_known_name_and_no_new_one_for_more_than_a_second() {
    let limits = Limits {
        fresh: Duration::ZERO,
        ..Limits::default()
    };
    let Hanging {
        lookup,
        release: _release,
        ..
    } = hanging();
    let resolver = resolver_within(limits, lookup);
    assert!(resolver.wait_for("known.invalid", PATIENCE).is_ok());
    for n in 0..1000 {
        assert_eq!(resolver.known(&format!("hang{n}.invalid"), PATIENCE), None);
    }
    for n in 0..5 {
        let stopwatch = Stopwatch::start();
        assert!(resolver.known("known.invalid", PATIENCE).unwrap().is_ok());
        assert!(stopwatch.elapsed() < SOON);
        assert!(
            resolver
                .wait_for(&format!("new{n}.invalid"), PATIENCE)
                .is_ok()
        );
        assert!(stopwatch.elapsed() < limits.prompt + Duration::from_millis(500));
        assert!(resolver.threads() <= limits.threads());
    }
}

/// Milliseconds instead of seconds.
const QUICK: Limits = Limits {
    prompt_threads: 12,
    slow_threads: 4,
    idle: Duration::from_millis(20),
    names: 4096,
    prompt: Duration::from_millis(20),
    fresh: Duration::ZERO,
    usable: Duration::ZERO,
    kept: Duration::ZERO,
    failed: Duration::from_secs(60),
};

#[test]
fn threads_grow_to_the_cap_and_not_past_it_and_go_when_nothing_hangs() {
    let Hanging {
        lookup,
        release,
        begun,
    } = hanging();
    let clock = HandMoved::new();
    let resolver = resolver_by(&clock, QUICK, lookup);
    for n in 0..100 {
        resolver.known(&format!("hang{n}.invalid"), PATIENCE);
    }
    // Whenever all lookups under way hang, there is a turn for another.
    for _ in 0..QUICK.prompt_threads {
        clock.pass(2 * QUICK.prompt);
        begun.recv_timeout(PATIENCE).unwrap();
    }
    clock.pass(2 * QUICK.prompt);
    let turn = resolver.0.lock().names.begin_next(clock.now());
    assert!(matches!(turn, Turn::Nobodys(_)));
    // One thread waits for a turn.
    assert_eq!(resolver.threads(), QUICK.prompt_threads + 1);
    drop(release);
    wait_until(|| begun.try_iter().count() == 0 && resolver.threads() == 0);
}

#[test]
fn every_new_name_has_its_turn_though_nobody_waits_for_it_any_more() {
    // Three seconds each instead of for ever.
    let told_apart = Arc::new(AtomicUsize::new(0));
    let counter = told_apart.clone();
    let resolver = resolver_within(QUICK, move |host| {
        if host.starts_with("hang") {
            thread::sleep(3 * QUICK.prompt);
        }
        counter.fetch_add(1, Ordering::SeqCst);
        not_found()
    });
    for n in 0..100 {
        resolver.known(&format!("hang{n}.invalid"), Duration::ZERO);
        resolver.known(&format!("fine{n}.invalid"), Duration::ZERO);
    }
    wait_until(|| told_apart.load(Ordering::SeqCst) == 200);
    assert!((0..100).all(|n| {
        resolver
            .known(&format!("fine{n}.invalid"), Duration::ZERO)
            .is_some()
    }));
}

#[test]
fn names_that_were_prompt_come_first_then_the_newest_and_slow_ones_have_their_own_lane() {
    let one_each = Limits {
        prompt_threads: 1,
        slow_threads: 1,
        failed: Duration::ZERO,
        ..QUICK
    };
    let mut names = Names::new(one_each);
    let now = Instant::now();
    let until = now + PATIENCE;
    let begin = |names: &mut Names, at: Instant| match names.begin_next(at) {
        Turn::Yours(lookup) => lookup,
        Turn::Nobodys(_) => panic!("no turn"),
    };
    let is_nobodys = |names: &mut Names, at| matches!(names.begin_next(at), Turn::Nobodys(_));

    // One that answers, and one that takes its time.
    names.known("prompt.invalid", until, now);
    let lookup = begin(&mut names, now);
    names.finish(lookup, Err(late()), now);
    names.known("slow.invalid", until, now);
    let lookup = begin(&mut names, now - 10 * one_each.prompt);
    names.finish(lookup, Err(late()), now);

    for host in [
        "new1.invalid",
        "prompt.invalid",
        "new2.invalid",
        "slow.invalid",
    ] {
        names.known(host, until, now);
    }
    let first = begin(&mut names, now);
    let in_slow_lane = begin(&mut names, now);
    assert_eq!(
        (&*first.host, &*in_slow_lane.host),
        ("prompt.invalid", "slow.invalid")
    );
    assert!(is_nobodys(&mut names, now));
    assert!(
        is_nobodys(&mut names, now + 10 * one_each.prompt),
        "all threads of the lane hang"
    );
    names.finish(first, Err(late()), now);
    assert_eq!(&*begin(&mut names, now).host, "new2.invalid");
}

#[test]
fn a_slow_name_that_nobody_waits_for_any_more_is_not_looked_up() {
    let mut names = Names::new(Limits {
        failed: Duration::ZERO,
        ..QUICK
    });
    let now = Instant::now();
    names.known("slow.invalid", now, now);
    let Turn::Yours(lookup) = names.begin_next(now - 10 * QUICK.prompt) else {
        panic!("no turn");
    };
    names.finish(lookup, Err(late()), now);
    names.known("slow.invalid", now, now);
    assert!(matches!(names.begin_next(now + SOON), Turn::Nobodys(None)));
    names.known("slow.invalid", now + PATIENCE, now + SOON);
    assert!(matches!(names.begin_next(now + SOON), Turn::Yours(_)));
}

#[test]
fn what_hangs_leaves_a_turn_every_second() {
    let mut names = Names::new(Limits::default());
    let start = Instant::now();
    for n in 0..1000 {
        names.known(&format!("hang{n}.invalid"), start + PATIENCE, start);
    }
    let mut begun = 0;
    for second in 0..23 {
        let now = start + second * Duration::from_millis(1001);
        let before = begun;
        while let Turn::Yours(_) = names.begin_next(now) {
            begun += 1;
        }
        assert!(begun > before, "after {second} s");
    }
    assert!(begun <= Limits::default().prompt_threads);
}

#[test]
fn the_number_of_names_kept_is_bounded() {
    let few = Limits {
        names: 10,
        ..Limits::default()
    };
    let resolver = resolver_within(few, |_| loopback());
    for n in 0..50 {
        assert!(
            resolver
                .wait_for(&format!("n{n}.invalid"), PATIENCE)
                .is_ok()
        );
    }
    assert!(resolver.known("n49.invalid", PATIENCE).is_some());
    assert_eq!(resolver.known("n0.invalid", PATIENCE), None);

    let mut names = Names::new(few);
    let now = Instant::now();
    let until = now + PATIENCE;
    for n in 0..few.names {
        assert_eq!(names.known(&format!("n{n}.invalid"), until, now), None);
    }
    let too_many = names
        .known("one.too.many.invalid", until, now)
        .unwrap()
        .unwrap_err();
    assert_eq!(too_many.kind, FailureKind::Dns);
}

#[test]
fn threads_come_with_the_first_name_and_go_when_there_is_nothing_to_do() {
    let limits = Limits {
        idle: QUICK.idle,
        ..Limits::default()
    };
    let resolver = resolver_within(limits, |_| loopback());
    assert_eq!(resolver.threads(), 0);
    for host in ["a.invalid", "b.invalid"] {
        assert!(resolver.wait_for(host, PATIENCE).is_ok());
        wait_until(|| resolver.threads() == 0);
    }
}

#[test]
fn a_closed_resolver_starts_nothing_and_keeps_no_thread() {
    let resolver = resolver(|_| loopback());
    assert!(resolver.wait_for("a.invalid", PATIENCE).is_ok());
    resolver.close();
    wait_until(|| resolver.threads() == 0);
    assert_eq!(resolver.wait_for("b.invalid", SOON), Err(late()));
    assert_eq!(resolver.threads(), 0);
}

#[test]
fn a_lookup_that_hung_before_it_failed_leaves_the_last_good_answer_for_an_hour() {
    let limits = Limits::default();
    let mut names = Names::new(limits);
    let mut now = Instant::now();
    let look_up = |names: &mut Names, now: &mut Instant, takes: Duration, answer: Answer| {
        let before = names.known("a.invalid", *now + PATIENCE, *now);
        let Turn::Yours(lookup) = names.begin_next(*now) else {
            panic!("no turn");
        };
        *now += takes;
        names.finish(lookup, answer, *now);
        before
    };
    let good = Ok(loopback().unwrap());
    let prompt = Duration::ZERO;
    assert_eq!(look_up(&mut names, &mut now, prompt, good.clone()), None);

    // The server says nothing.
    now += limits.usable;
    assert_eq!(
        look_up(&mut names, &mut now, 2 * limits.prompt, Err(late())),
        None
    );
    assert_eq!(names.known("a.invalid", now, now), Some(good.clone()));
    now += limits.failed;
    assert_eq!(
        look_up(&mut names, &mut now, 2 * limits.prompt, Err(late())),
        Some(good.clone())
    );
    now += limits.kept - limits.usable - 10 * limits.prompt;
    assert_eq!(
        look_up(&mut names, &mut now, 2 * limits.prompt, Err(late())),
        Some(good.clone())
    );
    now += 10 * limits.prompt;
    assert_eq!(names.known("a.invalid", now, now), None);

    // The server says no.
    let Turn::Yours(lookup) = names.begin_next(now - limits.prompt) else {
        panic!("no turn");
    };
    names.finish(lookup, good.clone(), now);
    now += limits.fresh;
    let no = Err(dns("Name or service not known"));
    assert_eq!(
        look_up(&mut names, &mut now, prompt, no.clone()),
        Some(good)
    );
    assert_eq!(names.known("a.invalid", now, now), Some(no));
}
