//! The forbidden ranges and the spellings of addresses, said a second time and in another way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const IPV4: [(&str, &str); 16] = [
    ("0.0.0.0", "0.255.255.255"),
    ("10.0.0.0", "10.255.255.255"),
    ("100.64.0.0", "100.127.255.255"),
    ("127.0.0.0", "127.255.255.255"),
    ("168.63.129.16", "168.63.129.16"),
    ("169.254.0.0", "169.254.255.255"),
    ("172.16.0.0", "172.31.255.255"),
    ("192.0.0.0", "192.0.0.255"),
    ("192.0.2.0", "192.0.2.255"),
    ("192.88.99.0", "192.88.99.255"),
    ("192.168.0.0", "192.168.255.255"),
    ("198.18.0.0", "198.19.255.255"),
    ("198.51.100.0", "198.51.100.255"),
    ("203.0.113.0", "203.0.113.255"),
    ("224.0.0.0", "239.255.255.255"),
    ("240.0.0.0", "255.255.255.255"),
];

/// Between the first three lie the mapped addresses and those of NAT64.
pub(super) const IPV6: [(&str, &str); 8] = [
    ("::", "::fffe:ffff:ffff"),
    ("::1:0:0:0", "64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("64:ff9b::1:0:0", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
];

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address that is `step` away in the same family.
fn beside(address: IpAddr, step: i8) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4).checked_add_signed(step.into())?).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6).checked_add_signed(step.into())?).into(),
    })
}

/// The first and the last address of a range, the one before and the one after.
pub(super) fn neighbours(first: IpAddr, last: IpAddr) -> Vec<IpAddr> {
    let outside = [beside(first, -1), beside(last, 1)];
    [first, last]
        .into_iter()
        .chain(outside.into_iter().flatten())
        .collect()
}

/// The verdict as installed, except for the addresses of this host.
pub(super) fn is_forbidden(address: IpAddr) -> bool {
    let n = number(address);
    let within = |(first, last): &(&str, &str)| {
        let [first, last] = [first, last].map(|text| text.parse().unwrap());
        number(first) <= n && n <= number(last)
    };
    match address {
        IpAddr::V4(_) => IPV4.iter().any(within),
        IpAddr::V6(_) if n >> 32 == 0xffff || n >> 32 == 0x64_ff9b << 64 => {
            is_forbidden(Ipv4Addr::from(n as u32).into())
        }
        IpAddr::V6(_) => IPV6.iter().any(within),
    }
}

/// The address that inet_aton and inet_pton take a host for.
pub(super) fn numeric(host: &str) -> Option<IpAddr> {
    if let Some(inside) = host.strip_prefix('[') {
        let inside = inside.strip_suffix(']')?;
        let end = inside.find('%').unwrap_or(inside.len());
        return inside[..end].parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let parts: Option<Vec<u64>> = host.split('.').map(part).collect();
    let (last, leading) = parts.as_ref()?.split_last()?;
    if leading.len() > 3 || leading.iter().any(|byte| *byte > 255) {
        return None;
    }
    let room = 32 - 8 * leading.len();
    if *last >= 1 << room {
        return None;
    }
    let leading = leading.iter().fold(0, |number, byte| number << 8 | byte);
    Some(Ipv4Addr::from((leading << room | last) as u32).into())
}

fn part(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // from_str_radix would take a sign.
    let unsigned = digits.chars().all(|c| c.is_ascii_alphanumeric());
    unsigned.then(|| u64::from_str_radix(digits, radix).ok())?
}
