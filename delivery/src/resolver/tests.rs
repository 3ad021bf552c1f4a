use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::address_guard::PermitAll;

const SOON: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);

fn resolver(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Resolver {
    Resolver::start(Box::new(lookup), PermitAll).unwrap()
}

fn resolve(resolver: &Resolver, url: &str, wait: Duration) -> Result<Vec<SocketAddr>, Failure> {
    resolver
        .resolve_uri(&url.parse().unwrap(), wait)
        .map(|addresses| addresses.to_vec())
}

fn loopback() -> io::Result<Vec<IpAddr>> {
    Ok(vec!["127.0.0.1".parse().unwrap()])
}

fn not_found() -> io::Result<Vec<IpAddr>> {
    Err(io::Error::other("Name or service not known"))
}

/// Blocks lookups until the sender is dropped, and counts them.
fn hanging() -> (mpsc::Sender<()>, Arc<AtomicUsize>, Resolver) {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let begun = Arc::new(AtomicUsize::new(0));
    let counter = begun.clone();
    let resolver = resolver(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let _ = threads::lock(&released).recv();
        loopback()
    });
    (release, begun, resolver)
}

#[test]
fn literals_need_no_lookup() {
    let resolver = resolver(|host| panic!("looked up {host}"));
    for (url, expected) in [
        ("http://127.0.0.1/a", "127.0.0.1:80"),
        ("https://127.0.0.1/a", "127.0.0.1:443"),
        ("http://[::1]:8080/a", "[::1]:8080"),
    ] {
        let expected: SocketAddr = expected.parse().unwrap();
        assert_eq!(resolve(&resolver, url, PATIENCE).unwrap(), [expected]);
    }
}

#[test]
fn odd_spellings_of_addresses_go_through_the_lookup_and_so_to_the_guard() {
    struct Refuse;
    impl AddressGuard for Refuse {
        fn check(&self, addresses: &[IpAddr]) -> Result<(), String> {
            assert_eq!(addresses, loopback().unwrap());
            Err("not allowed".into())
        }
    }
    let resolver = Resolver::start(Box::new(system_lookup), Refuse).unwrap();
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
    ] {
        let failure = resolve(&resolver, &format!("http://{host}/"), PATIENCE).unwrap_err();
        assert_eq!(failure, Failure::new(FailureKind::Blocked, "not allowed"));
    }
}

#[test]
fn the_guard_is_asked_about_cached_answers_too() {
    struct RefuseSecond(AtomicUsize);
    impl AddressGuard for RefuseSecond {
        fn check(&self, _: &[IpAddr]) -> Result<(), String> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err("not any more".into()),
            }
        }
    }
    let guard = RefuseSecond(AtomicUsize::new(0));
    let resolver = Resolver::start(Box::new(|_| loopback()), guard).unwrap();
    assert!(resolve(&resolver, "http://a.invalid/", PATIENCE).is_ok());
    let failure = resolve(&resolver, "http://a.invalid/", PATIENCE).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Blocked);
}

#[test]
fn an_answer_serves_all_ports_and_spellings_of_a_name_from_the_cache() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let resolver = resolver(move |host| {
        assert_eq!(host, "a.invalid");
        counter.fetch_add(1, Ordering::SeqCst);
        loopback()
    });
    for (url, port) in [("http://a.invalid/", 80), ("https://A.Invalid/", 443)] {
        let addresses = resolve(&resolver, url, PATIENCE).unwrap();
        assert_eq!(addresses[0].port(), port);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_name_that_does_not_exist_is_dns() {
    let failure = resolve(&resolver(|_| not_found()), "http://a.invalid/", PATIENCE).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Dns);
    let failure = resolve(&resolver(|_| Ok(vec![])), "http://a.invalid/", PATIENCE).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Dns);
}

#[test]
fn a_lookup_that_fails_for_want_of_descriptors_is_local() {
    let resolver = resolver(|_| Err(io::Error::from_raw_os_error(libc::EMFILE)));
    let failure = resolve(&resolver, "http://a.invalid/", PATIENCE).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Local);
}

#[test]
fn a_lookup_that_panics_is_local_and_its_thread_goes_on() {
    let resolver = resolver(|host| match host {
        "fine.invalid" => loopback(),
        _ => panic!("boom"),
    });
    for n in 0..2 * LOOKUP_THREADS {
        let url = format!("http://bad{n}.invalid/");
        let failure = resolve(&resolver, &url, PATIENCE).unwrap_err();
        assert_eq!(failure, Failure::new(FailureKind::Local, "panic: boom"));
    }
    assert!(resolve(&resolver, "http://fine.invalid/", PATIENCE).is_ok());
}

#[test]
fn a_caller_waits_for_a_hanging_lookup_no_longer_than_its_deadline() {
    let (_release, _, resolver) = hanging();
    let started = Instant::now();
    let failure = resolve(&resolver, "http://a.invalid/", SOON).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Dns);
    assert!(started.elapsed() < SOON + Duration::from_millis(500));
}

#[test]
fn concurrent_callers_of_a_name_share_one_lookup() {
    let (release, begun, resolver) = hanging();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let resolver = resolver.clone();
            thread::spawn(move || resolve(&resolver, "http://a.invalid/", PATIENCE))
        })
        .collect();
    drop(release);
    for caller in callers {
        assert!(caller.join().unwrap().is_ok());
    }
    assert_eq!(begun.load(Ordering::SeqCst), 1);
}

#[test]
fn a_lookup_that_nobody_waits_for_any_more_is_never_begun() {
    let (release, begun, resolver) = hanging();
    for n in 0..LOOKUP_THREADS + 3 {
        let failure = resolve(&resolver, &format!("http://n{n}.invalid/"), SOON).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Dns);
    }
    drop(release);
    assert!(resolve(&resolver, "http://last.invalid/", PATIENCE).is_ok());
    assert_eq!(begun.load(Ordering::SeqCst), LOOKUP_THREADS + 1);
}

#[test]
fn the_number_of_names_kept_is_bounded() {
    let resolver = resolver(|_| loopback());
    for n in 0..MAX_NAMES + 10 {
        assert!(resolve(&resolver, &format!("http://n{n}.invalid/"), PATIENCE).is_ok());
    }
    assert_eq!(threads::lock(&resolver.0.names).by_host.len(), MAX_NAMES);
}

#[test]
fn names_under_way_are_bounded_too() {
    let mut names = Names::default();
    let until = Instant::now() + PATIENCE;
    for n in 0..MAX_NAMES {
        names.want(&format!("n{n}.invalid"), until).unwrap();
    }
    let failure = names.want("one.too.many.invalid", until).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Dns);
}

#[test]
fn closing_ends_the_waits() {
    let (_release, begun, resolver) = hanging();
    let waiting = thread::spawn({
        let resolver = resolver.clone();
        move || resolve(&resolver, "http://a.invalid/", PATIENCE)
    });
    while begun.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    resolver.close();
    let failure = waiting.join().unwrap().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Local);
}
