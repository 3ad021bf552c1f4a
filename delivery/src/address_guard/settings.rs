//! Networks and ports as an administrator writes them.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;

/// `10.0.0.0/8, fd00::/8, 192.0.2.7`; none, if the text is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
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
        return Ok(address.into());
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
    Ok(network)
}

/// `80, 443, 1024-65535`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(Vec<RangeInclusive<u16>>);

impl Ports {
    pub const DEFAULT: &str = "80, 443, 1024-65535";

    pub(super) fn contain(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
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
