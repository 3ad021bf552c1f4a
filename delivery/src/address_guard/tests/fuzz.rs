//! URLs that nobody thought of: real ones with addresses spelled in all ways, broken at random. The verdicts are
//! compared with those of the model.

use super::model::numeric;
use super::*;

const CASES: u64 = 20_000;

fn any_ipv4(random: &mut fastrand::Rng) -> u32 {
    let (first, last) = random.choice(IPV4).unwrap();
    let edge = random
        .choice(neighbours(address(first), address(last)))
        .unwrap();
    match edge {
        IpAddr::V4(v4) if random.bool() => v4.into(),
        _ => random.u32(..),
    }
}

fn spelled(random: &mut fastrand::Rng, number: u64) -> String {
    match random.u8(0..8) {
        0 => format!("0x{number:x}"),
        1 => format!("0X{number:08X}"),
        2 => format!("0{number:o}"),
        _ => number.to_string(),
    }
}

fn any_host(random: &mut fastrand::Rng) -> String {
    let v4 = any_ipv4(random);
    let [a, b, c, d] = v4.to_be_bytes().map(u64::from);
    let (high, low) = (v4 >> 16, v4 & 0xffff);
    match random.u8(0..16) {
        0 => spelled(random, v4.into()),
        1 => format!(
            "{}.{}",
            spelled(random, a),
            spelled(random, (v4 & 0xff_ffff).into())
        ),
        2 => format!("{a}.{}.{}", spelled(random, b), spelled(random, low.into())),
        3..=5 => [a, b, c, d].map(|byte| spelled(random, byte)).join("."),
        6 => format!("[::ffff:{a}.{b}.{c}.{d}]"),
        7 => format!("[0:0:0:0:0:FFFF:{high:X}:{low:04x}]"),
        8 => format!("[64:ff9b::{high:x}:{low:x}]"),
        9 => format!("[2002:{high:x}:{low:x}::1]"),
        10 => format!("[::{a}.{b}.{c}.{d}%eth0]"),
        11 | 12 => {
            let (first, last) = random.choice(IPV6).unwrap();
            let edge = random
                .choice(neighbours(address(first), address(last)))
                .unwrap();
            format!("[{edge}]")
        }
        13 => format!("[{}]", std::net::Ipv6Addr::from(random.u128(..))),
        14 => format!("{a}.{b}.{c}.{d}."),
        _ => random
            .choice([
                "localhost",
                "a.invalid",
                "127.0.0.1.invalid",
                "0x7f.invalid",
            ])
            .unwrap()
            .into(),
    }
}

fn any_url(random: &mut fastrand::Rng) -> String {
    let scheme = random
        .choice(["https", "https", "http", "HTTPS", "ftp"])
        .unwrap();
    let user = random
        .choice(["", "", "", "", "", "user@", "127.0.0.1:80@"])
        .unwrap();
    let host = any_host(random);
    let port = random
        .choice(["", "", "", ":443", ":8443", ":22", ":0", ":65536", ":"])
        .unwrap();
    let path = random
        .choice(["/", "", "/a?b=c", "?@127.0.0.1", "#@127.0.0.1/"])
        .unwrap();
    let mut url = format!("{scheme}://{user}{host}{port}{path}").into_bytes();
    if random.u8(0..4) == 0 {
        let at = random.usize(0..url.len());
        let new = random
            .choice(b"0123456789abfx.:/@[]%#?-\\ \0\xff".iter())
            .unwrap();
        match random.u8(0..3) {
            0 => url[at] = *new,
            1 => url.insert(at, *new),
            _ => _ = url.remove(at),
        }
    }
    String::from_utf8_lossy(&url).into_owned()
}

#[test]
fn whatever_is_permitted_is_what_the_model_permits() {
    let own: Vec<_> = if_addrs::get_if_addrs()
        .unwrap()
        .iter()
        .map(|i| i.ip())
        .collect();
    let installed = Network::default();
    let opened = Network {
        allow: networks("127.0.0.0/8, 10.0.0.0/8, ::1"),
        deny: networks("127.255.255.255, 2606:4700::/32"),
        ..Network::default()
    };
    let mut permitted = 0;
    for seed in 0..CASES {
        let mut random = fastrand::Rng::with_seed(seed);
        let url = any_url(&mut random);
        for network in [&installed, &opened] {
            let verdict = network.judge_url(INSTALLATION, &url);
            let Ok(uri) = parse_url(&url) else {
                assert!(verdict.is_err(), "seed {seed}: {url}");
                continue;
            };
            let host = uri.host().unwrap();
            let meant = numeric(host);
            assert_eq!(literal(host), meant, "seed {seed}: {url}");

            let port = uri.port_u16().unwrap_or(443);
            let port_is_fine = port == 80 || port == 443 || port > 1023;
            let encrypted = url[..5].eq_ignore_ascii_case("https");
            // A name may be one of an allowed network, where there is any.
            let name_is_fine = encrypted || *network == opened;
            let expected = port_is_fine
                && meant.map_or(name_is_fine, |address| {
                    let meant = ranges::unwrapped(address);
                    let opened = *network == opened
                        && meant != self::address("127.255.255.255")
                        && (meant.is_loopback() || meant.to_string().starts_with("10."));
                    let forbidden = is_forbidden(address) || own.contains(&meant);
                    opened || (!forbidden && encrypted)
                });
            assert_eq!(verdict.is_ok(), expected, "seed {seed}: {url}: {verdict:?}");
            permitted += usize::from(expected && meant.is_some());
        }
    }
    assert!(permitted > CASES as usize / 20, "{permitted}");
}
