mod fuzz;
mod model;

use super::*;
use crate::loopback::{anywhere, networks};
use model::{IPV4, IPV6, is_forbidden, neighbours};

use EndpointOwner::{Installation as INSTALLATION, Tenant as TENANT};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn verdict(network: &Network, text: &str) -> Result<(), String> {
    let judged = network.judge_address(INSTALLATION, address(text));
    judged.map_err(|failure| {
        assert_eq!(failure.kind, FailureKind::Blocked);
        failure.message
    })
}

fn refused(network: &Network, url: &str) -> String {
    network.judge_url(INSTALLATION, url).expect_err(url)
}

#[test]
fn every_special_range_is_forbidden_from_its_first_to_its_last_address_and_no_further() {
    let network = Network::default();
    let mut seen = [0; 2];
    for (first, last) in IPV4.iter().chain(&IPV6) {
        for inside in [first, last] {
            assert!(is_forbidden(address(inside)), "{inside}");
        }
        for edge in neighbours(address(first), address(last)) {
            let allowed = network.judge_address(INSTALLATION, edge).is_ok();
            assert_eq!(allowed, !is_forbidden(edge), "{edge}");
            seen[usize::from(allowed)] += 1;
        }
    }
    assert!(
        seen[0] >= 2 * (IPV4.len() + IPV6.len()) && seen[1] > 25,
        "{seen:?}"
    );
}

#[test]
fn an_ipv4_address_in_ipv6_clothes_is_judged_as_what_it_is() {
    let network = Network::default();
    for (first, last) in IPV4 {
        for edge in neighbours(address(first), address(last)) {
            let IpAddr::V4(v4) = edge else { unreachable!() };
            for prefix in ["::ffff:", "64:ff9b::"] {
                let wrapped = format!("{prefix}{v4}");
                let allowed = verdict(&network, &wrapped).is_ok();
                assert_eq!(allowed, !is_forbidden(edge), "{wrapped}");
            }
        }
    }
    assert_eq!(
        verdict(&network, "64:ff9b::10.0.0.1"),
        Err("64:ff9b::a00:1, which stands for 10.0.0.1, is a private address, and not in webhook.allow_networks".into())
    );
}

#[test]
fn forms_that_no_public_service_is_reached_by_are_forbidden_whatever_they_embed() {
    for text in [
        "::8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b::1:808:808",
        "2002:808:808::1",
        "2001:0:808:808::1",
    ] {
        assert!(verdict(&Network::default(), text).is_err(), "{text}");
    }
}

#[test]
fn a_refusal_says_what_the_address_is_and_which_setting_it_is_about() {
    for (text, what) in [
        ("0.0.0.0", "an unspecified address"),
        ("127.0.0.1", "a loopback address"),
        ("10.1.2.3", "a private address"),
        (
            "169.254.169.254",
            "a link-local address, as metadata services have",
        ),
        ("168.63.129.16", "a metadata address of Azure"),
        ("255.255.255.255", "a reserved address"),
        ("::", "an unspecified address"),
        ("::1", "a loopback address"),
        ("fd00:ec2::254", "a private address"),
        ("fe80::1", "a link-local address"),
        ("ff02::1", "a multicast address"),
        ("2001::1", "a Teredo address"),
        ("2001:20::1", "an address reserved for protocols"),
        ("2002::1", "a 6to4 address"),
        ("5f00::1", "no public address"),
    ] {
        assert_eq!(
            verdict(&Network::default(), text),
            Err(format!(
                "{text} is {what}, and not in webhook.allow_networks"
            ))
        );
    }
}

#[test]
fn deny_beats_allow_which_beats_what_is_forbidden_as_installed() {
    let network = Network {
        allow: networks("10.0.0.0/8, 127.0.0.1, fd00::/8, 8.8.0.0/16"),
        deny: networks("10.9.0.0/16, 8.8.8.8, 2606:4700::/32, 64:ff9b::/96"),
        ..Network::default()
    };
    for text in [
        "10.0.0.1",
        "127.0.0.1",
        "fd00::1",
        "8.8.4.4",
        "1.1.1.1",
        "::ffff:10.0.0.1",
    ] {
        assert_eq!(verdict(&network, text), Ok(()), "{text}");
    }
    for text in ["127.0.0.2", "192.168.0.1", "::1", "fc00::1"] {
        assert!(
            verdict(&network, text)
                .unwrap_err()
                .ends_with("and not in webhook.allow_networks")
        );
    }
    for text in [
        "10.9.0.1",
        "8.8.8.8",
        "2606:4700::1",
        "64:ff9b::1.1.1.1",
        "::ffff:8.8.8.8",
    ] {
        assert!(
            verdict(&network, text)
                .unwrap_err()
                .ends_with("is in webhook.deny_networks")
        );
    }
}

#[test]
fn allowing_all_of_ipv6_does_not_open_the_ipv4_addresses_that_it_can_stand_for() {
    let network = Network {
        allow: networks("::/0"),
        ..Network::default()
    };
    assert_eq!(verdict(&network, "::1"), Ok(()));
    for text in ["::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "127.0.0.1"] {
        assert!(verdict(&network, text).is_err(), "{text}");
    }
}

#[test]
fn a_network_of_addresses_that_stand_for_ipv4_addresses_is_that_of_those() {
    for (text, meant) in [
        ("::ffff:8.8.8.0/120", "8.8.8.0/24"),
        ("::ffff:808:800/120", "8.8.8.0/24"),
        ("::ffff:8.8.8.8", "8.8.8.8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("64:ff9b::8.8.8.0/120", "8.8.8.0/24"),
        ("64:ff9b::8.8.8.8", "8.8.8.8"),
    ] {
        assert_eq!(networks(text), networks(meant), "{text}");
    }
    let denied = Network {
        deny: networks("::ffff:8.8.8.0/120"),
        ..Network::default()
    };
    let allowed = Network {
        allow: networks("::ffff:10.0.0.0/104"),
        ..Network::default()
    };
    for form in ["", "::ffff:", "64:ff9b::"] {
        let inside = verdict(&denied, &format!("{form}8.8.8.8"));
        assert!(inside.unwrap_err().ends_with("is in webhook.deny_networks"));
        assert_eq!(verdict(&denied, &format!("{form}8.8.9.8")), Ok(()));
        assert_eq!(verdict(&allowed, &format!("{form}10.1.2.3")), Ok(()));
        assert!(verdict(&allowed, &format!("{form}127.0.0.1")).is_err());
    }
    for wider in ["::fffe:0:0/95", "::8000:0:0/81"] {
        assert_eq!(
            wider.parse::<Networks>(),
            Err(format!(
                "\"{wider}\" is wider than ::ffff:0:0/96, the IPv4 addresses mapped to IPv6: write IPv4 networks"
            ))
        );
    }
    for ipv6 in ["::/0", "::/80", "::/96", "64:ff9b::/96", "::fffe:0:0/96"] {
        assert_eq!(
            format!("{:?}", networks(ipv6)),
            format!("Networks([{ipv6}])")
        );
    }
}

#[test]
fn the_addresses_of_this_host_are_forbidden_too_unless_allowed() {
    // A host that has no public address of its own shows at least that nothing is missed.
    for interface in if_addrs::get_if_addrs().unwrap() {
        let own = interface.ip().to_string();
        assert!(verdict(&Network::default(), &own).is_err(), "{own}");
        assert_eq!(verdict(&anywhere(), &own), Ok(()));
    }
}

#[test]
fn literals_are_judged_at_registration_in_every_spelling() {
    let network = Network::default();
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "0x7f000001",
        "0X7F.1",
        "2130706433",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0x0",
        "[::1]",
        "[::1%eth0]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:7f00:0001]",
        "[64:ff9b::7f00:1]",
        "[fe80::1%25eth0]",
        "169.254.169.254",
        "0xa9fea9fe",
        "[fd00:ec2::254]",
    ] {
        let message = refused(&network, &format!("https://{host}/hook"));
        assert!(
            message.ends_with("and not in webhook.allow_networks"),
            "{host}: {message}"
        );
        assert_eq!(
            anywhere().judge_url(INSTALLATION, &format!("https://{host}/hook")),
            Ok(())
        );
    }
    for public in [
        "https://8.8.8.8/",
        "https://0x08080808:8443/",
        "https://[2606:4700::1111]/",
    ] {
        assert_eq!(network.judge_url(INSTALLATION, public), Ok(()));
    }
}

#[test]
fn a_name_is_judged_by_scheme_and_port_and_not_looked_up() {
    let network = Network::default();
    for url in ["https://localhost/", "https://a.invalid:8443/x"] {
        assert_eq!(network.judge_url(INSTALLATION, url), Ok(()));
    }
    for port in [1, 22, 25, 79, 81, 1023] {
        let message = refused(&network, &format!("https://a.invalid:{port}/"));
        assert_eq!(
            message,
            format!("port {port} is not in webhook.allow_ports")
        );
    }
    let only_https = Network {
        require_https: RequireHttps::On,
        ..anywhere()
    };
    for url in ["http://a.invalid/", "http://127.0.0.1/", "HTTP://8.8.8.8/"] {
        assert_eq!(
            refused(&only_https, url),
            "plain http is forbidden by webhook.require_https"
        );
    }
    assert_eq!(
        only_https.judge_url(INSTALLATION, "HTTPS://a.invalid/"),
        Ok(())
    );
}

#[test]
fn plain_http_is_for_the_allowed_networks_unless_it_is_off() {
    let mut network = Network {
        allow: networks("10.0.0.0/8"),
        ..Network::default()
    };
    assert_eq!(network.judge_url(INSTALLATION, "http://10.0.0.1/"), Ok(()));
    // It may be a name of an allowed address.
    assert_eq!(network.judge_url(INSTALLATION, "http://a.invalid/"), Ok(()));
    assert_eq!(
        network.judge_url(INSTALLATION, "http://[::ffff:10.0.0.1]/"),
        Ok(())
    );
    assert_eq!(
        refused(&network, "http://8.8.8.8/"),
        "plain http to 8.8.8.8 is forbidden by webhook.require_https, as it is not in webhook.allow_networks"
    );
    let uri = "http://mixed.invalid/".parse().unwrap();
    let mixed = [address("10.0.0.1"), address("8.8.8.8")];
    assert_eq!(
        network.judge(INSTALLATION, &uri, &mixed).unwrap_err().kind,
        FailureKind::Blocked
    );
    network.require_https = RequireHttps::Off;
    assert_eq!(network.judge_url(INSTALLATION, "http://8.8.8.8/"), Ok(()));
    assert_eq!(network.judge(INSTALLATION, &uri, &mixed), Ok(()));
}

#[test]
fn plain_http_is_refused_at_registration_where_it_can_never_be_sent() {
    let mut network = Network::default();
    for url in ["http://a.invalid/", "HTTP://localhost:8080/"] {
        assert_eq!(
            refused(&network, url),
            "plain http is forbidden by webhook.require_https outside webhook.allow_networks, which is empty"
        );
    }
    network.require_https = RequireHttps::Off;
    assert_eq!(network.judge_url(INSTALLATION, "http://a.invalid/"), Ok(()));
}

#[test]
fn what_is_no_url_of_ours_is_refused_without_being_shown() {
    for url in [
        "",
        "hidden",
        "ftp://hidden/",
        "https://u:hidden@a.invalid/",
        "https://:1/hidden",
    ] {
        assert!(!refused(&anywhere(), url).contains("hidden"));
    }
}

#[test]
fn two_sets_of_rules_allow_what_both_allow() {
    let wide = Network {
        allow: networks("10.0.0.0/8, fd00::/8, 192.168.1.0/24"),
        deny: networks("198.41.0.4"),
        ports: "443, 8000-8999".parse().unwrap(),
        require_https: RequireHttps::Off,
        ..Network::default()
    };
    let narrow = Network {
        allow: networks("10.1.0.0/16, 192.168.0.0/16, 172.16.0.0/12"),
        deny: networks("10.1.2.0/24"),
        ports: "80, 8500-9500".parse().unwrap(),
        require_https: RequireHttps::Public,
        ..Network::default()
    };
    for both in [wide.within(&narrow), narrow.within(&wide)] {
        for (text, allowed) in [
            ("10.1.0.1", true),
            ("10.2.0.1", false),
            ("10.1.2.3", false),
            ("192.168.1.1", true),
            ("192.168.2.1", false),
            ("172.16.0.1", false),
            ("fd00::1", false),
            ("198.41.0.4", false),
            ("198.41.0.5", true),
        ] {
            assert_eq!(verdict(&both, text).is_ok(), allowed, "{text}");
        }
        let ports = [80, 443, 8499, 8500, 8999, 9000].map(|port| both.ports.contain(port));
        assert_eq!(ports, [false, false, false, true, true, false]);
        assert_eq!(both.require_https, RequireHttps::Public);
    }
}

#[test]
fn endpoints_of_tenants_reach_what_is_opened_for_tenants_alone() {
    let network = Network {
        allow: networks("127.0.0.0/8, 10.0.0.0/8"),
        allow_tenants: networks("10.1.0.0/16"),
        deny: networks("10.1.2.0/24"),
        ..Network::default()
    };
    for (url, of_installation, of_tenant) in [
        ("http://127.0.0.1:5432/", true, false),
        ("https://127.0.0.1:5432/", true, false),
        ("https://[::ffff:127.0.0.1]/", true, false),
        ("http://10.2.0.1/", true, false),
        ("http://10.1.0.1/", true, true),
        ("http://10.1.2.1/", false, false),
        ("http://8.8.8.8/", false, false),
        ("https://8.8.8.8/", true, true),
        ("https://192.168.0.1/", false, false),
    ] {
        let judged = [INSTALLATION, TENANT].map(|owner| network.judge_url(owner, url).is_ok());
        assert_eq!(judged, [of_installation, of_tenant], "{url}");
    }
    for own in if_addrs::get_if_addrs().unwrap() {
        let judged = network.judge_address(TENANT, own.ip());
        let is_opened = networks("10.1.0.0/16").contain(own.ip());
        assert_eq!(judged.is_ok(), is_opened, "{}", own.ip());
    }
    let refused = |network: &Network, url| network.judge_url(TENANT, url).expect_err(url);
    assert_eq!(
        refused(&network, "https://127.0.0.1/"),
        "127.0.0.1 is a loopback address, and not in webhook.tenant_networks"
    );
    assert_eq!(
        refused(&network, "http://8.8.8.8/"),
        "plain http to 8.8.8.8 is forbidden by webhook.require_https, as it is not in webhook.tenant_networks"
    );
    let shut = Network {
        allow_tenants: Networks::default(),
        ..network
    };
    assert_eq!(
        refused(&shut, "http://a.invalid/"),
        "plain http is forbidden by webhook.require_https outside webhook.tenant_networks, which is empty"
    );
}

#[test]
fn two_sets_of_rules_open_to_tenants_what_both_open_to_them() {
    let database = Network {
        allow: networks("10.0.0.0/8"),
        allow_tenants: networks("10.1.0.0/16, 192.168.0.0/16"),
        ..Network::default()
    };
    let relay = Network {
        allow: networks("10.1.0.0/16, 127.0.0.1"),
        allow_tenants: networks("10.1.0.0/16, 127.0.0.1"),
        ..Network::default()
    };
    for both in [database.within(&relay), relay.within(&database)] {
        for (text, of_installation, of_tenant) in [
            ("10.1.0.1", true, true),
            ("10.2.0.1", false, false),
            ("192.168.0.1", false, false),
            ("127.0.0.1", false, false),
        ] {
            let judged = [INSTALLATION, TENANT]
                .map(|owner| both.judge_address(owner, address(text)).is_ok());
            assert_eq!(judged, [of_installation, of_tenant], "{text}");
        }
    }
}

#[test]
fn networks_are_read_as_people_write_them() {
    assert_eq!(networks("  "), Networks::default());
    let several = networks(" 10.0.0.0/8,192.0.2.7 , fd00::/8,2606:4700::1 ");
    for (text, contained) in [
        ("10.255.255.255", true),
        ("192.0.2.7", true),
        ("192.0.2.8", false),
        ("fd12::1", true),
        ("2606:4700::1", true),
        ("2606:4700::2", false),
    ] {
        assert_eq!(several.contain(address(text)), contained, "{text}");
    }
    for (text, problem) in [
        ("10.0.0.0/8,", "between two commas there is no network"),
        (
            "localhost",
            "\"localhost\" is not an address or a network such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            "10.0.0.0/33",
            "\"10.0.0.0/33\" is not an address or a network such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            "10.0.0.0 /8",
            "\"10.0.0.0 /8\" is not an address or a network such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            "10.0.0.1/8",
            "\"10.0.0.1/8\" has bits to the right of its mask: the network is 10.0.0.0/8",
        ),
        (
            "fd00::1/8",
            "\"fd00::1/8\" has bits to the right of its mask: the network is fd00::/8",
        ),
    ] {
        assert_eq!(text.parse::<Networks>(), Err(problem.into()));
    }
}

#[test]
fn ports_are_read_as_people_write_them() {
    assert_eq!(Ports::DEFAULT.parse(), Ok(Ports::default()));
    let ports: Ports = " 443, 8000 - 8002,9000-9000".parse().unwrap();
    for (port, contained) in [
        (443, true),
        (8000, true),
        (8002, true),
        (8003, false),
        (9000, true),
        (80, false),
    ] {
        assert_eq!(ports.contain(port), contained, "{port}");
    }
    let no_port = |item: &str| {
        format!("\"{item}\" is not a port from 1 to 65535 or a range such as 1024-65535")
    };
    for (text, problem) in [
        ("", no_port("")),
        ("80,", no_port("")),
        ("0", no_port("0")),
        ("65536", no_port("65536")),
        ("http", no_port("http")),
        ("1-2-3", no_port("1-2-3")),
        ("-80", no_port("-80")),
        ("90-80", "the range \"90-80\" ends before it begins".into()),
    ] {
        assert_eq!(text.parse::<Ports>(), Err(problem), "{text:?}");
    }
}
