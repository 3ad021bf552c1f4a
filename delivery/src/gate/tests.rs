use super::*;
use crate::address_guard::Network;
use crate::failure::FailureKind;
use crate::loopback::anywhere;
use crate::resolver::Limits;

const PATIENCE: Duration = Duration::from_secs(10);

fn gate(
    guard: impl AddressGuard,
    lookup: impl Fn(&str) -> std::io::Result<Vec<IpAddr>> + Send + Sync + 'static,
) -> Gate {
    Gate {
        resolver: Resolver::start(Box::new(lookup), Limits::default()).unwrap(),
        guard: Box::new(guard),
    }
}

fn resolve(gate: &Gate, url: &str) -> Result<Vec<SocketAddr>, Failure> {
    let timeout = NextTimeout {
        after: PATIENCE.into(),
        ..NextTimeout::default()
    };
    match gate.resolve(&url.parse().unwrap(), &Config::default(), timeout) {
        Ok(addresses) => Ok(addresses.to_vec()),
        Err(Error::Other(inner)) => Err(*inner.downcast().unwrap()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn literals_need_no_lookup() {
    let gate = gate(anywhere(), |host| panic!("looked up {host}"));
    for (url, expected) in [
        ("http://127.0.0.1/a", "127.0.0.1:80"),
        ("https://127.0.0.1/a", "127.0.0.1:443"),
        ("http://[::1]:8080/a", "[::1]:8080"),
        ("http://[::1%eth0]:8080/a", "[::1]:8080"),
        ("http://2130706433/", "127.0.0.1:80"),
    ] {
        let expected: SocketAddr = expected.parse().unwrap();
        assert_eq!(resolve(&gate, url).unwrap(), [expected]);
        assert_eq!(name_in(url), None);
    }
    assert_eq!(
        name_in("https://A.invalid:1/").as_deref(),
        Some("A.invalid")
    );
}

#[test]
fn a_name_serves_all_ports_and_schemes() {
    let gate = gate(anywhere(), |_| Ok(vec!["127.0.0.1".parse().unwrap()]));
    for (url, port) in [
        ("http://a.invalid/", 80),
        ("https://A.Invalid/", 443),
        ("http://a.invalid:81/", 81),
    ] {
        assert_eq!(resolve(&gate, url).unwrap()[0].port(), port);
    }
}

#[test]
fn the_guard_is_asked_about_cached_answers_too() {
    let gate = gate(Network::default(), |_| {
        Ok(vec!["127.0.0.1".parse().unwrap()])
    });
    for _ in 0..2 {
        let failure = resolve(&gate, "https://a.invalid/").unwrap_err();
        assert_eq!(failure.kind, FailureKind::Blocked);
    }
}

#[test]
fn all_addresses_are_judged_though_not_all_can_be_dialled() {
    let many = |last: &'static str| {
        move |_: &str| {
            let public = (1..=20).map(|n| IpAddr::from([93, 184, 216, n]));
            Ok(public.chain([last.parse().unwrap()]).collect())
        }
    };
    let fine = gate(Network::default(), many("8.8.8.8"));
    assert_eq!(
        resolve(&fine, "https://a.invalid/").unwrap().len(),
        MAX_ADDRESSES
    );
    let hidden = gate(Network::default(), many("169.254.169.254"));
    let failure = resolve(&hidden, "https://a.invalid/").unwrap_err();
    assert_eq!(failure.kind, FailureKind::Blocked);
}
