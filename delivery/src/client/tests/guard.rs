//! The guard cannot be got around.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::address_guard::{EndpointOwner, Network};
use crate::loopback::networks;
use crate::resolver::HandMoved;

/// A listener that must not be dialled.
struct Forbidden(TcpListener);

impl Forbidden {
    fn at(address: &str) -> Forbidden {
        let listener = TcpListener::bind((address, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Forbidden(listener)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn was_dialled(&self) -> bool {
        self.0.accept().is_ok()
    }
}

fn only(allowed: &str) -> Network {
    Network {
        allow: networks(allowed),
        ..Network::default()
    }
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn assert_blocked(result: Result<Response, Failure>, message: &str) {
    assert_eq!(result, Err(Failure::new(FailureKind::Blocked, message)));
}

#[test]
fn a_forbidden_address_is_not_dialled_however_it_is_spelled() {
    let forbidden = Forbidden::at("127.0.0.1");
    let port = forbidden.address().port();
    let client = client_with(Network::default(), &Roots::default());
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
    ] {
        let result = client.deliver(&attempt_to(format!("https://{host}:{port}/")));
        let loopback = "127.0.0.1 is a loopback address, and not in webhook.allow_networks";
        assert_blocked(result, loopback);
    }
    let mapped = client.deliver(&attempt_to(format!("https://[::ffff:127.0.0.1]:{port}/")));
    assert_eq!(mapped.unwrap_err().kind, FailureKind::Blocked);
    assert!(!forbidden.was_dialled());
}

#[test]
fn one_forbidden_address_of_a_name_forbids_them_all() {
    let forbidden = Forbidden::at("127.0.0.1");
    let port = forbidden.address().port();
    for answer in [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]] {
        let lookup = move |_: &str| Ok(addresses(&answer));
        let client = client_that(lookup, only("127.0.0.1"), &Roots::default());
        let result = client.deliver(&attempt_to(format!("http://mixed.invalid:{port}/")));
        let second = "127.0.0.2 is a loopback address, and not in webhook.allow_networks";
        assert_blocked(result, second);
    }
    assert!(!forbidden.was_dialled());
}

/// A client for which every name is 127.0.0.1 at first, and after `move_away` an address beside it.
struct Moving {
    client: Client,
    moved: Arc<AtomicBool>,
    clock: HandMoved,
}

const BESIDE: &str = "127.0.0.2";

impl Moving {
    fn new(guard: impl AddressGuard) -> Moving {
        let moved = Arc::new(AtomicBool::new(false));
        let flag = moved.clone();
        let lookup = move |_: &str| match flag.load(Ordering::SeqCst) {
            false => Ok(addresses(&["127.0.0.1"])),
            true => Ok(addresses(&[BESIDE])),
        };
        let clock = HandMoved::new();
        let resolver = Resolver::with_clock(clock.clock(), Box::new(lookup), Limits::default());
        let client = Client::new(resolver, guard, &Roots::default());
        Moving {
            client,
            moved,
            clock,
        }
    }

    fn move_away(&self) {
        self.moved.store(true, Ordering::SeqCst);
        // Earlier answers of the resolver are not used any more.
        self.clock.pass(Limits::default().usable);
    }
}

#[test]
fn a_name_that_is_bound_anew_between_lookups_is_judged_anew_also_with_an_idle_connection() {
    let address = serve_always(1, OK);
    let forbidden = Forbidden::at(BESIDE);
    let moving = Moving::new(only("127.0.0.1"));
    let attempt = attempt_to(format!("http://moves.invalid:{}/", address.port()));
    assert_eq!(moving.client.deliver(&attempt).unwrap().status, 200);
    moving.move_away();
    let second = "127.0.0.2 is a loopback address, and not in webhook.allow_networks";
    assert_blocked(moving.client.deliver(&attempt), second);
    assert!(!forbidden.was_dialled());
}

#[test]
fn an_idle_connection_of_an_endpoint_without_a_tenant_does_not_serve_a_tenant() {
    let address = serve_always(1, OK);
    let client = client_with(only("127.0.0.0/8"), &Roots::default());
    let url = format!("http://{address}/");
    assert_eq!(client.deliver(&attempt_to(&*url)).unwrap().status, 200);
    let of_tenant = attempt_on(Arc::new(Route {
        owner: EndpointOwner::Tenant,
        ..route_to(url)
    }));
    let loopback = "127.0.0.1 is a loopback address, and not in webhook.tenant_networks";
    assert_blocked(client.deliver(&of_tenant), loopback);
}

#[test]
fn plain_http_stays_inside_the_allowed_networks() {
    let address = serve_always(1, OK);
    let client = client_with(only("127.0.0.0/8"), &Roots::default());
    let inside = client.deliver(&attempt_to(format!("http://{address}/")));
    assert_eq!(inside.unwrap().status, 200);
    let outside = "plain http to 93.184.216.34 is forbidden by webhook.require_https, \
                   as it is not in webhook.allow_networks";
    assert_blocked(
        client.deliver(&attempt_to("http://93.184.216.34/")),
        outside,
    );
}

#[test]
fn an_idle_connection_is_not_used_under_other_rules_than_it_was_made_by() {
    let (arrived, connections) = mpsc::channel();
    let address = serve(3, move |connection, stream| {
        let mut stream = BufReader::new(stream);
        while read_request(&mut stream).is_some() {
            arrived.send(connection).unwrap();
            stream.get_mut().write_all(OK).unwrap();
        }
    });
    let moving = Moving::new(anywhere());
    let by_name = attempt_to(format!("http://moves.invalid:{}/", address.port()));
    assert_eq!(moving.client.deliver(&by_name).unwrap().status, 200);
    assert_eq!(connections.try_recv(), Ok(0));

    // The name is permitted with its new address; the idle connection leads to the old one.
    let mut stricter = anywhere();
    stricter.deny = networks("127.0.0.1");
    moving.client.pool.change_rules(stricter, &Roots::default());
    moving.move_away();
    let failure = moving.client.deliver(&by_name).unwrap_err();
    assert_eq!(
        failure,
        Failure::new(FailureKind::Connect, "connection refused")
    );
    assert!(connections.try_recv().is_err());

    let client = moving.client;
    client.pool.change_rules(anywhere(), &Roots::default());
    let by_address = attempt_to(format!("http://{address}/"));
    assert_eq!(client.deliver(&by_address).unwrap().status, 200);
    assert_eq!(connections.try_recv(), Ok(1));
}

#[test]
fn what_is_in_flight_under_old_rules_is_finished_and_can_be_interrupted() {
    let (arrived, arrivals) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let address = serve(2, move |_, stream| {
        let mut stream = BufReader::new(stream);
        read_request(&mut stream);
        arrived.send(()).unwrap();
        if threads::lock(&released).recv().is_ok() {
            stream.get_mut().write_all(OK).unwrap();
        }
        hold(stream.into_inner());
    });
    let client = client();
    let deliver = || client.deliver(&attempt_to(format!("http://{address}/")));
    thread::scope(|scope| {
        let first = scope.spawn(deliver);
        arrivals.recv().unwrap();
        client
            .pool
            .change_rules(Network::default(), &Roots::default());
        release.send(()).unwrap();
        assert_eq!(first.join().unwrap().unwrap().status, 200);

        client.pool.change_rules(anywhere(), &Roots::default());
        let second = scope.spawn(deliver);
        arrivals.recv().unwrap();
        client
            .pool
            .change_rules(Network::default(), &Roots::default());
        client.pool.abort();
        let failure = second.join().unwrap().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Local);
    });
    client.pool.change_rules(anywhere(), &Roots::default());
    let failure = client
        .deliver(&attempt_to("http://127.0.0.1:1/"))
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Local);
}

#[test]
fn a_redirect_to_a_metadata_address_is_one_request() {
    let (received, requests) = mpsc::channel();
    let address = serve(2, move |_, stream| {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read_request(&mut stream) {
            received.send(request.line).unwrap();
            let answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/meta-data/\r\nContent-Length: 0\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    let client = client_with(only("127.0.0.1"), &Roots::default());
    let attempt = attempt_to(format!("http://{address}/hook"));
    assert_eq!(client.deliver(&attempt).unwrap().status, 302);
    assert_eq!(
        requests.try_iter().collect::<Vec<_>>(),
        ["POST /hook HTTP/1.1"]
    );
}

const PROXY_VARIABLES: [&str; 6] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// The variables are set in a process of its own, which runs the test below.
#[test]
fn proxy_variables_in_the_environment_are_ignored() {
    let proxy = Forbidden::at("127.0.0.1");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "client::tests::guard::delivers_without_a_proxy",
        "--include-ignored",
    ]);
    for variable in PROXY_VARIABLES {
        child.env(variable, format!("http://{}", proxy.address()));
    }
    let output = child.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && report.contains("1 passed"),
        "{report}"
    );
    assert!(!proxy.was_dialled());
}

#[test]
#[ignore = "run by proxy_variables_in_the_environment_are_ignored"]
fn delivers_without_a_proxy() {
    for variable in PROXY_VARIABLES {
        assert!(
            std::env::var_os(variable).is_some(),
            "{variable} is not set"
        );
    }
    let address = serve_always(1, OK);
    let attempt = attempt_to(format!("http://{address}/"));
    assert_eq!(client().deliver(&attempt).unwrap().status, 200);
}

#[test]
fn literals_need_no_lookup() {
    let port = serve_always(2, OK).port();
    let lookup = |host: &str| panic!("looked up {host}");
    let client = client_that(lookup, anywhere(), &Roots::default());
    for host in ["127.0.0.1", "2130706433"] {
        let attempt = attempt_to(format!("http://{host}:{port}/"));
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    }
}

#[test]
fn the_guard_is_asked_about_cached_answers_too() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let lookup = move |_: &str| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(addresses(&["127.0.0.1"]))
    };
    let client = client_that(lookup, Network::default(), &Roots::default());
    for _ in 0..2 {
        let loopback = "127.0.0.1 is a loopback address, and not in webhook.allow_networks";
        assert_blocked(client.deliver(&attempt_to("https://a.invalid/")), loopback);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn all_addresses_are_judged_though_not_all_can_be_dialled() {
    let forbidden = Forbidden::at("127.0.0.1");
    let port = forbidden.address().port();
    let lookup = |_: &str| {
        let mut answer = vec!["127.0.0.1"; MAX_ADDRESSES];
        answer.push("169.254.169.254");
        Ok(addresses(&answer))
    };
    let client = client_that(lookup, only("127.0.0.1"), &Roots::default());
    let failure = client.deliver(&attempt_to(format!("http://a.invalid:{port}/")));
    assert_eq!(failure.unwrap_err().kind, FailureKind::Blocked);
    assert!(!forbidden.was_dialled());
}

#[test]
fn a_name_that_moves_within_the_permitted_addresses_is_not_sent_over_an_old_connection() {
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = here.local_addr().unwrap().port();
    let beside = TcpListener::bind((BESIDE, port)).unwrap();
    let answering = |listener: TcpListener, answer: &'static [u8]| {
        thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            while read_request(&mut stream).is_some() {
                stream.get_mut().write_all(answer).unwrap();
            }
        });
    };
    answering(here, OK);
    answering(beside, b"HTTP/1.1 204 Moved\r\n\r\n");
    let moving = Moving::new(anywhere());
    let attempt = attempt_to(format!("http://moves.invalid:{port}/"));
    assert_eq!(moving.client.deliver(&attempt).unwrap().status, 200);
    moving.move_away();
    assert_eq!(moving.client.deliver(&attempt).unwrap().status, 204);
}

#[test]
fn the_next_address_is_tried_where_one_refuses() {
    let port = serve_always(1, OK).port();
    let lookup = |_: &str| Ok(addresses(&[BESIDE, "127.0.0.1"]));
    let client = client_that(lookup, anywhere(), &Roots::default());
    let attempt = attempt_to(format!("http://two.invalid:{port}/"));
    assert_eq!(client.deliver(&attempt).unwrap().status, 200);
}

/// A client whose resolver answers at first, and hangs from the second lookup on until the sender is dropped.
fn client_whose_resolver_comes_to_hang(clock: &HandMoved) -> (Client, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let asked = AtomicUsize::new(0);
    let lookup = move |_: &str| {
        if asked.fetch_add(1, Ordering::SeqCst) > 0 {
            let _ = threads::lock(&released).recv();
        }
        Ok(addresses(&["127.0.0.1"]))
    };
    let resolver = Resolver::with_clock(clock.clock(), Box::new(lookup), Limits::default());
    let client = Client::new(resolver, anywhere(), &Roots::default());
    (client, release)
}

#[test]
fn the_last_good_address_serves_while_the_resolver_hangs_unless_it_is_forbidden_now() {
    let limits = Limits::default();
    let clock = HandMoved::new();
    let (client, _release) = client_whose_resolver_comes_to_hang(&clock);
    let attempt = attempt_to(format!("http://a.invalid:{}/", serve_always(2, OK).port()));
    assert_eq!(client.deliver(&attempt).unwrap().status, 200);

    // The first of them begins the lookup that hangs.
    for age in [limits.fresh, limits.usable, limits.usable] {
        clock.pass(age);
        assert_eq!(client.deliver(&attempt).unwrap().status, 200);
    }
    client
        .pool
        .change_rules(Network::default(), &Roots::default());
    let failure = client.deliver(&attempt).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Blocked);
}
