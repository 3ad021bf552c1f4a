//! Networks and ports as an administrator writes them.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use super::ranges;

/// `10.0.0.0/8, fd00::/8, 192.0.2.7`; none, if the text is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Two networks have nothing in common, or one is inside the other.
    pub(super) fn shared_with(&self, other: &Networks) -> Networks {
        let inside = |these: &Networks, those: &Networks| {
            let is_inside = |network: &&IpNet| those.0.iter().any(|that| that.contains(*network));
            (these.0.iter().filter(is_inside).copied()).collect::<Vec<_>>()
        };
        Networks([inside(self, other), inside(other, self)].concat())
    }

    pub(super) fn and(&self, other: &Networks) -> Networks {
        Networks([&self.0[..], &other.0].concat())
    }
}

impl FromStr for Networks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Networks::default());
        }
        text.split(',')
            .map(|item| network(item.trim()))
            .collect::<Result<_, _>>()
            .map(Networks)
    }
}

fn network(item: &str) -> Result<IpNet, String> {
    if item.is_empty() {
        return Err("between two commas there is no network".into());
    }
    if let Ok(address) = item.parse::<IpAddr>() {
        return Ok(ranges::unwrapped(address).into());
    }
    let network: IpNet = item.parse().map_err(|_| {
        format!("\"{item}\" is not an address or a network such as 10.0.0.0/8 or fd00::/8")
    })?;
    let truncated = network.trunc();
    if network != truncated {
        return Err(format!(
            "\"{item}\" has bits to the right of its mask: the network is {truncated}"
        ));
    }
    as_ipv4(item, network)
}

/// Addresses are judged as the IPv4 addresses that they stand for, so networks of such addresses become IPv4
/// networks too. All of NAT64 stays as it is written: it names the translator.
fn as_ipv4(item: &str, network: IpNet) -> Result<IpNet, String> {
    let IpNet::V6(v6) = network else {
        return Ok(network);
    };
    let (first, length) = (v6.network(), v6.prefix_len());
    let is_mapped = first.to_ipv4_mapped().is_some();
    match ranges::unwrapped(IpAddr::V6(first)) {
        IpAddr::V4(meant) if length > 96 || (length == 96 && is_mapped) => {
            let network = Ipv4Net::new(meant, length - 96).expect("at most 32 bits");
            Ok(IpNet::V4(network))
        }
        // Nothing else is in such a network that anybody could mean.
        _ if (81..96).contains(&length) && v6.contains(&Ipv4Addr::UNSPECIFIED.to_ipv6_mapped()) => {
            Err(format!(
                "\"{item}\" is wider than ::ffff:0:0/96, the IPv4 addresses mapped to IPv6: write IPv4 networks"
            ))
        }
        _ => Ok(network),
    }
}

/// `80, 443, 1024-65535`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(Vec<RangeInclusive<u16>>);

impl Ports {
    pub const DEFAULT: &str = "80, 443, 1024-65535";

    pub(super) fn contain(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }

    pub(super) fn shared_with(&self, other: &Ports) -> Ports {
        let pairs = (self.0.iter()).flat_map(|this| other.0.iter().map(move |that| (this, that)));
        let shared =
            pairs.map(|(this, that)| *this.start().max(that.start())..=*this.end().min(that.end()));
        Ports(shared.filter(|range| !range.is_empty()).collect())
    }
}

impl Default for Ports {
    fn default() -> Self {
        Ports(vec![80..=80, 443..=443, 1024..=65535])
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(|item| ports(item.trim()))
            .collect::<Result<_, _>>()
            .map(Ports)
    }
}

fn ports(item: &str) -> Result<RangeInclusive<u16>, String> {
    let port = |text: &str| match text.trim().parse() {
        Ok(0) | Err(_) => Err(format!(
            "\"{item}\" is not a port from 1 to 65535 or a range such as 1024-65535"
        )),
        Ok(port) => Ok(port),
    };
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(format!("the range \"{item}\" ends before it begins"));
    }
    Ok(first..=last)
}
