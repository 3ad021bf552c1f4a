//! Addresses that no public service has, by the IANA registries of special-purpose addresses.

use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;

/// The first range that contains an address says what kind it is.
const SPECIAL_PURPOSE: [(&str, &str); 29] = [
    ("0.0.0.0/8", "an unspecified address"),
    ("10.0.0.0/8", "a private address"),
    ("100.64.0.0/10", "an address of a carrier-grade NAT"),
    ("127.0.0.0/8", "a loopback address"),
    ("168.63.129.16/32", "a metadata address of Azure"),
    (
        "169.254.0.0/16",
        "a link-local address, as metadata services have",
    ),
    ("172.16.0.0/12", "a private address"),
    ("192.0.0.0/24", "an address reserved for protocols"),
    ("192.0.2.0/24", "a documentation address"),
    ("192.88.99.0/24", "a 6to4 relay address"),
    ("192.168.0.0/16", "a private address"),
    ("198.18.0.0/15", "a benchmarking address"),
    ("198.51.100.0/24", "a documentation address"),
    ("203.0.113.0/24", "a documentation address"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "a reserved address"),
    ("::/128", "an unspecified address"),
    ("::1/128", "a loopback address"),
    ("::/96", "an IPv4-compatible address"),
    ("64:ff9b:1::/48", "an address of a local NAT64"),
    ("fc00::/7", "a private address"),
    ("fe80::/10", "a link-local address"),
    ("fec0::/10", "a private address"),
    ("ff00::/8", "a multicast address"),
    ("2001::/32", "a Teredo address"),
    ("2001::/23", "an address reserved for protocols"),
    ("2001:db8::/32", "a documentation address"),
    ("2002::/16", "a 6to4 address"),
    ("3fff::/20", "a documentation address"),
];

const PUBLIC_IPV6: &str = "2000::/3";

/// Translates to any IPv4 address. With DNS64, names that have only IPv4 addresses resolve to it.
const NAT64: &str = "64:ff9b::/96";

struct Ranges {
    special_purpose: Vec<(IpNet, &'static str)>,
    public_ipv6: IpNet,
    nat64: IpNet,
}

static RANGES: LazyLock<Ranges> = LazyLock::new(|| {
    let network = |text: &str| text.parse().expect("a network");
    Ranges {
        special_purpose: SPECIAL_PURPOSE
            .map(|(text, what)| (network(text), what))
            .into(),
        public_ipv6: network(PUBLIC_IPV6),
        nat64: network(NAT64),
    }
});

/// The IPv4 address that `address` stands for, if it does. Forms in which one is embedded and that no public service
/// is reached by (6to4, Teredo, IPv4-compatible, local NAT64) are not unwrapped but special.
pub(super) fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    if RANGES.nat64.contains(&address) {
        return IpAddr::V4((u128::from(v6) as u32).into());
    }
    v6.to_ipv4_mapped().map_or(address, IpAddr::V4)
}

/// The kind of an address that is not public.
pub(super) fn special_purpose(address: IpAddr) -> Option<&'static str> {
    let mut ranges = RANGES.special_purpose.iter();
    if let Some((_, what)) = ranges.find(|(network, _)| network.contains(&address)) {
        return Some(what);
    }
    (address.is_ipv6() && !RANGES.public_ipv6.contains(&address)).then_some("no public address")
}
