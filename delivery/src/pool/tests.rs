use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufReader, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use http::Uri;

use super::*;
use crate::address_guard::EndpointOwner;
use crate::attempt::Route;
use crate::loopback::{
    self, OK, anywhere, attempt_on, attempt_to, hold, read_request, route_to, serve, serve_always,
};
use crate::stopwatch::Stopwatch;

const PATIENCE: Duration = Duration::from_secs(10);

struct Guard<F>(F);

impl<F: Fn() -> Result<(), Failure> + Send + Sync + 'static> AddressGuard for Guard<F> {
    fn judge(&self, _: EndpointOwner, _: &Uri, _: &[IpAddr]) -> Result<(), Failure> {
        self.0()
    }
}

/// A pool that calls `on_resolve` before it dials.
fn pool_with(on_resolve: impl Fn() -> Result<(), Failure> + Send + Sync + 'static) -> Pool {
    pool_that(resolver::system_lookup, Guard(on_resolve))
}

fn pool_that(
    lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    guard: impl AddressGuard,
) -> Pool {
    let resolver = Resolver::new(Box::new(lookup), Limits::default());
    Pool::with(resolver, guard, &Roots::default()).unwrap()
}

fn is_readable(pool: &Pool, wait: Duration) -> bool {
    loopback::is_readable(pool.wake_fd(), wait)
}

fn collect(pool: &Pool, count: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while outcomes.len() < count {
        assert!(is_readable(pool, PATIENCE), "a wake-up was lost");
        let taken = pool.take_outcomes();
        assert!(!taken.is_empty(), "woken for nothing");
        outcomes.extend(taken);
    }
    outcomes
}

/// Holds every request until it is told to answer it.
fn serve_held(connections: usize) -> (String, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (arrived, arrivals) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let address = serve(connections, move |_, stream| {
        let mut stream = BufReader::new(stream);
        while read_request(&mut stream).is_some() {
            let _ = arrived.send(());
            if threads::lock(&released).recv().is_err() {
                return;
            }
            let _ = stream.get_mut().write_all(OK);
        }
    });
    (format!("http://{address}/"), arrivals, release)
}

#[test]
fn no_more_than_the_limit_of_an_endpoint_are_under_way_and_all_come_back() {
    let (url, arrivals, release) = serve_held(3);
    let pool = pool_with(|| Ok(()));
    let attempts: Vec<_> = (0..10).map(|_| attempt_to(&*url)).collect();
    pool.submit_within(&[(attempts[0].key.endpoint_id, 3)], attempts);
    for left in (1..=10_usize).rev() {
        for _ in 0..if left == 10 {
            3
        } else {
            usize::from(left >= 3)
        } {
            arrivals.recv_timeout(PATIENCE).expect("a request");
        }
        assert!(arrivals.try_recv().is_err(), "more than three at a time");
        release.send(()).unwrap();
        assert_eq!(collect(&pool, 1).len(), 1);
    }
}

#[test]
fn requests_that_are_withdrawn_while_they_connect_make_room_for_those_that_wait() {
    let hangs = Arc::new(Mutex::new(()));
    let is_held = threads::lock(&hangs);
    let resolves = hangs.clone();
    let lookup = move |_: &str| {
        drop(threads::lock(&resolves));
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    };
    let pool = pool_that(lookup, anywhere());
    let address = serve_always(1, OK);
    let connecting = attempt_to("http://somewhere.invalid/");
    let waiting = attempt_to(format!("http://{address}/"));
    let (limits, key) = ([(connecting.key.endpoint_id, 1)], connecting.key);
    pool.submit_within(&limits, vec![connecting, waiting]);
    assert_eq!(pool.withdraw(|other| *other == key), [key]);
    assert!(collect(&pool, 1)[0].result.is_ok());
    drop(is_held);
}

#[test]
fn every_attempt_comes_back_once_and_every_wake_up_has_a_reason() {
    let address = serve_always(500, OK);
    let pool = pool_with(|| Ok(()));
    let mut expected = HashMap::new();
    for _ in 0..20 {
        let attempts: Vec<_> = (0..25)
            .map(|_| attempt_to(format!("http://{address}/")))
            .collect();
        expected.extend(attempts.iter().map(|a| (a.key, ())));
        pool.submit(attempts);
    }
    for outcome in collect(&pool, 500) {
        assert_eq!(outcome.result.unwrap().status, 200);
        assert!(expected.remove(&outcome.key).is_some());
    }
    assert!(!is_readable(&pool, Duration::ZERO));
}

#[test]
fn a_thousand_requests_to_a_peer_that_hangs_delay_no_other_and_all_come_out() {
    let timeout = Duration::from_secs(6);
    // It accepts by its backlog and never reads.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = Arc::new(Route {
        timeout,
        connect_timeout: timeout,
        ..route_to(format!("http://{}/", hanging.local_addr().unwrap()))
    });
    let healthy = Arc::new(Route {
        endpoint_id: 2,
        ..route_to(format!("http://{}/", serve_always(20, OK)))
    });
    let pool = pool_with(|| Ok(()));
    let stopwatch = Stopwatch::start();
    pool.submit((0..1000).map(|_| attempt_on(hung.clone())).collect());
    for _ in 0..10 {
        pool.submit((0..20).map(|_| attempt_on(healthy.clone())).collect());
        // None of the hanging ones comes before them.
        for outcome in collect(&pool, 20) {
            assert_eq!(outcome.key.endpoint_id, 2);
            assert_eq!(outcome.result.unwrap().status, 200);
        }
    }
    assert!(
        stopwatch.elapsed() < timeout / 2,
        "{:?}",
        stopwatch.elapsed()
    );
    for outcome in collect(&pool, 1000) {
        let failure = outcome.result.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
        assert!(outcome.duration >= timeout);
    }
    assert!(
        stopwatch.elapsed() < 2 * timeout,
        "{:?}",
        stopwatch.elapsed()
    );
    assert!(!is_readable(&pool, Duration::ZERO));
}

#[test]
fn outcomes_that_come_together_wake_the_host_once() {
    let pool = pool_with(|| Err(Failure::invalid_request("refused")));
    pool.submit((0..100).map(|_| attempt_to("http://127.0.0.1/")).collect());
    assert!(is_readable(&pool, PATIENCE));
    assert_eq!(pool.take_outcomes().len(), 100);
    assert!(!is_readable(&pool, Duration::ZERO));
}

#[test]
fn what_is_on_the_wire_is_not_withdrawn_and_what_connects_is() {
    let (url, arrivals, release) = serve_held(1);
    // The handshake of TLS never ends.
    let mute = serve(1, |_, stream| hold(stream));
    let connecting = Arc::new(Route {
        endpoint_id: 2,
        ..route_to(format!("https://{mute}/"))
    });
    let pool = pool_with(|| Ok(()));
    let (on_the_wire, connecting) = (attempt_to(url), attempt_on(connecting));
    let (first, second) = (on_the_wire.key, connecting.key);
    pool.submit(vec![on_the_wire, connecting]);
    arrivals.recv_timeout(PATIENCE).unwrap();
    assert_eq!(pool.withdraw(|key| key.endpoint_id == 3), []);
    assert_eq!(pool.withdraw(|_| true), [second]);
    assert_eq!(pool.withdraw(|_| true), []);
    release.send(()).unwrap();
    let outcomes = collect(&pool, 1);
    assert_eq!(outcomes[0].key, first);
    assert_eq!(outcomes[0].result.as_ref().unwrap().status, 200);
}

/// Submits, withdraws and at last aborts, while requests are answered, refused and looked up.
#[test]
fn any_history_ends_each_attempt_once_and_a_withdrawn_one_was_not_sent() {
    let (received, requests) = mpsc::channel();
    let received = Mutex::new(received);
    let port = serve(usize::MAX, move |_, stream| {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read_request(&mut stream) {
            let id = request.headers["webhook-id"].to_str().unwrap().to_string();
            threads::lock(&received).send(id).unwrap();
            let _ = stream.get_mut().write_all(OK);
        }
    })
    .port();
    let lookup = |_: &str| Ok(vec!["127.0.0.1".parse().unwrap()]);
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let pool = pool_that(lookup, anywhere());
        let (mut open, mut sent) = (HashSet::new(), HashSet::new());
        let (mut withdrawn, mut ended) = (HashSet::new(), Vec::new());
        for _ in 0..60 {
            match random.u8(0..4) {
                0 | 1 => {
                    let hosts = ["127.0.0.1", "a.invalid", "b.invalid", "nowhere/"];
                    let attempts = (0..random.usize(1..20)).map(|_| {
                        let host = random.choice(hosts).unwrap();
                        attempt_to(format!("http://{host}:{port}/"))
                    });
                    let attempts: Vec<_> = attempts.collect();
                    for attempt in &attempts {
                        assert!(open.insert(attempt.key));
                    }
                    pool.submit(attempts);
                }
                2 => {
                    let half = random.bool();
                    for key in pool.withdraw(|key| half || key.claim_seq % 2 == 0) {
                        assert!(open.remove(&key), "withdrawn twice or after its end");
                        withdrawn.insert(key.event_id.to_string());
                    }
                }
                _ => {
                    is_readable(&pool, Duration::from_millis(random.u64(0..3)));
                    ended.extend(pool.take_outcomes());
                }
            }
        }
        if random.bool() {
            pool.abort();
        }
        for outcome in ended.drain(..) {
            assert!(
                open.remove(&outcome.key),
                "ended twice or after it was withdrawn"
            );
        }
        for outcome in collect(&pool, open.len()) {
            assert!(
                open.remove(&outcome.key),
                "ended twice or after it was withdrawn"
            );
        }
        assert!(!is_readable(&pool, Duration::ZERO));
        sent.extend(requests.try_iter());
        assert!(sent.is_disjoint(&withdrawn), "sent though it was withdrawn");
    }
}

#[test]
fn abort_interrupts_what_is_in_flight_and_refuses_the_rest() {
    let (url, arrivals, _release) = serve_held(2);
    let pool = pool_with(|| Ok(()));
    let connecting = attempt_to(format!("https://{}/", serve(1, |_, stream| hold(stream))));
    pool.submit(vec![attempt_to(&*url), attempt_to(&*url), connecting]);
    for _ in 0..2 {
        arrivals.recv_timeout(PATIENCE).unwrap();
    }
    let started = Instant::now();
    pool.abort();
    pool.submit(vec![attempt_to(url)]);
    for outcome in collect(&pool, 4) {
        let failure = outcome.result.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Local, "{failure}");
    }
    // Their timeouts are longer than that.
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn a_panic_is_an_outcome_and_the_others_go_on() {
    let calls = AtomicUsize::new(0);
    let pool = pool_with(move || match calls.fetch_add(1, Ordering::SeqCst) {
        0 => panic!("boom"),
        _ => Ok(()),
    });
    let address = serve_always(1, OK);
    let url = format!("http://{address}/");
    pool.submit(vec![attempt_to(&*url), attempt_to(&*url)]);
    let outcomes = collect(&pool, 2);
    assert_eq!(
        outcomes[0].result,
        Err(Failure::invalid_request("panic: boom"))
    );
    assert_eq!(outcomes[1].result.as_ref().unwrap().status, 200);
}

#[test]
fn dropping_the_pool_does_not_wait_and_ends_its_threads() {
    let (closed, closings) = mpsc::channel();
    let (arrived, arrivals) = mpsc::channel();
    let address = serve(1, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        arrived.send(()).unwrap();
        hold(stream);
        closed.send(()).unwrap();
    });
    let alive = Arc::new(());
    let held = alive.clone();
    let pool = pool_with(move || {
        let _held = &held;
        Ok(())
    });
    pool.submit(vec![attempt_to(format!("http://{address}/"))]);
    arrivals.recv_timeout(PATIENCE).unwrap();
    let started = Instant::now();
    drop(pool);
    // The request would go on for longer than that.
    assert!(started.elapsed() < PATIENCE);
    closings.recv_timeout(PATIENCE).unwrap();
    // The guard goes with the thread.
    while Arc::strong_count(&alive) > 1 {
        assert!(started.elapsed() < PATIENCE, "a thread stayed");
        std::thread::yield_now();
    }
}

/// The signals that this thread takes, among those that can be blocked at all.
fn open_signals() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("SigBlk:")).unwrap();
    let blocked = u64::from_str_radix(line["SigBlk:".len()..].trim(), 16).unwrap();
    // The kernel keeps SIGKILL and SIGSTOP, glibc 32 and 33.
    let unblockable = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
    let unblockable: u64 = unblockable.iter().map(|n| 1 << (n - 1)).sum();
    !(blocked | unblockable)
}

#[test]
fn pool_and_lookup_threads_take_no_signal_and_the_callers_mask_is_restored() {
    let before = open_signals();
    assert_ne!(before, 0);
    let (seen, masks) = mpsc::channel();
    let report = move |seen: &mpsc::Sender<_>| {
        let name = std::thread::current().name().unwrap().to_string();
        seen.send((name, open_signals())).unwrap();
    };
    let in_guard = seen.clone();
    let lookup = move |_: &str| {
        report(&seen);
        Ok(vec!["127.0.0.1".parse().unwrap()])
    };
    let guard = Guard(move || {
        report(&in_guard);
        Err(Failure::invalid_request("seen enough"))
    });
    let pool = pool_that(lookup, guard);
    assert_eq!(open_signals(), before);

    pool.submit(vec![attempt_to("http://somewhere.invalid/")]);
    for expected in ["webhook dns", "webhook io"] {
        let (name, open) = masks.recv_timeout(PATIENCE).unwrap();
        assert!(name.starts_with(expected), "{name}");
        assert_eq!(open, 0, "{name}");
    }
}

/// How often the kernel has let it sleep.
fn sleeps(thread: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let mut lines = status.lines();
    let sleeps = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    sleeps.unwrap().trim().parse().unwrap()
}

#[test]
fn at_rest_the_thread_sleeps() {
    let (seen, threads) = mpsc::channel();
    let seen = Mutex::new(seen);
    let pool = pool_with(move || {
        // SAFETY: it has no preconditions.
        let _ = threads::lock(&seen).send(unsafe { libc::gettid() });
        Ok(())
    });
    let url = format!("http://{}/", serve_always(100, OK));
    pool.submit((0..100).map(|_| attempt_to(&*url)).collect());
    collect(&pool, 100);
    let thread = threads.recv().unwrap();
    let before = sleeps(thread);
    std::thread::sleep(Duration::from_secs(1));
    // It sleeps once when it has done all, and if a server has hung up or a timer of the idle connections moves.
    assert!(sleeps(thread) - before <= 5);
}

#[test]
fn starts_with_the_systems_certificates_and_resolver_and_takes_another_setup() {
    let roots = Roots::load(None).unwrap();
    let installed = Setup {
        network: Network::default(),
        roots: roots.clone(),
    };
    let pool = Pool::start(installed).unwrap();
    let url = format!("http://localhost:{}/", serve_always(1, OK).port());
    pool.submit(vec![attempt_to(&*url)]);
    let blocked = collect(&pool, 1).remove(0).result.unwrap_err();
    assert_eq!(blocked.kind, FailureKind::Blocked);

    pool.set_up(Setup {
        network: anywhere(),
        roots,
    });
    pool.submit(vec![attempt_to(url)]);
    assert_eq!(collect(&pool, 1)[0].result.as_ref().unwrap().status, 200);
}

/// Looks names up at once, but names that begin with `hang` take until the sender is dropped.
fn lookup_that_hangs() -> (
    impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    mpsc::Sender<()>,
) {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let lookup = move |host: &str| {
        if host.starts_with("hang") {
            let _ = threads::lock(&released).recv();
        }
        Ok(vec!["127.0.0.1".parse().unwrap()])
    };
    (lookup, release)
}

fn route(endpoint_id: i32, url: String, connect_timeout: Duration) -> Arc<Route> {
    Arc::new(Route {
        endpoint_id,
        connect_timeout,
        ..route_to(url)
    })
}

#[test]
fn a_thousand_names_that_hang_delay_no_other_endpoint() {
    let (lookup, _release) = lookup_that_hangs();
    let pool = pool_that(lookup, anywhere());
    let healthy = format!("http://healthy.invalid:{}/", serve_always(2, OK).port());
    let healthy = route(0, healthy, PATIENCE);
    pool.submit(vec![attempt_on(healthy.clone())]);
    assert_eq!(collect(&pool, 1)[0].result.as_ref().unwrap().status, 200);

    let patience = Duration::from_secs(2);
    let hanging = |n| attempt_on(route(n, format!("http://hang{n}.invalid/"), patience));
    let submitted = Stopwatch::start();
    pool.submit((1..=1000).map(hanging).collect());
    let mut late = Vec::new();
    while submitted.elapsed() < Duration::from_secs(1) {
        let stopwatch = Stopwatch::start();
        pool.submit(vec![attempt_on(healthy.clone())]);
        let answered = loop {
            let (healthy, others) = collect(&pool, 1)
                .into_iter()
                .partition::<Vec<_>, _>(|outcome| outcome.key.endpoint_id == 0);
            late.extend(others);
            if let Some(outcome) = healthy.into_iter().next() {
                break outcome;
            }
        };
        assert_eq!(answered.result.unwrap().status, 200);
        let elapsed = stopwatch.elapsed();
        assert!(elapsed < Duration::from_millis(200), "{elapsed:?}");
    }
    late.extend(collect(&pool, 1000 - late.len()));
    let elapsed = submitted.elapsed();
    assert!(
        elapsed < patience + Duration::from_millis(500),
        "{elapsed:?}"
    );
    for outcome in late {
        assert_eq!(outcome.result, Err(resolver::late()));
        assert!(outcome.duration >= patience);
    }
}

#[test]
fn what_waits_for_its_name_is_withdrawn_or_interrupted_like_the_rest() {
    let (lookup, _release) = lookup_that_hangs();
    let pool = pool_that(lookup, anywhere());
    let attempt = || attempt_to("http://hang.invalid/");
    pool.submit(vec![attempt(), attempt()]);
    assert_eq!(pool.withdraw(|_| true).len(), 2);
    pool.submit(vec![attempt()]);
    pool.abort();
    let failure = collect(&pool, 1).remove(0).result.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Local);
}

#[test]
fn the_wait_for_a_name_is_a_part_of_the_connect_timeout_and_of_the_duration() {
    let (slow, timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    let lookup = move |_: &str| {
        std::thread::sleep(slow);
        Ok(vec!["127.0.0.1".parse().unwrap()])
    };
    let pool = pool_that(lookup, anywhere());
    let address = serve(2, |_, stream| hold(stream));
    let url = format!("https://a.invalid:{}/", address.port());
    let stopwatch = Stopwatch::start();
    pool.submit(vec![attempt_on(route(1, url, timeout))]);
    let outcome = collect(&pool, 1).remove(0);
    let elapsed = stopwatch.elapsed();
    assert_eq!(
        outcome.result.unwrap_err().message,
        "no connection within 3s"
    );
    assert!(outcome.duration >= timeout, "{:?}", outcome.duration);
    assert!(elapsed < timeout + slow, "{elapsed:?}");
}
