//! Hosts that are addresses themselves.

use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{mem, ptr};

/// The address that a host of a URL spells, in any way that getaddrinfo takes for one: besides 127.0.0.1 also
/// 127.1, 0x7f000001, 2130706433, 0177.0.0.1. No lookup takes place.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    if let Some(inside) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        let (address, _zone) = inside.split_once('%').unwrap_or((inside, ""));
        return address.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    host.parse().ok().or_else(|| numeric(host))
}

fn numeric(host: &str) -> Option<IpAddr> {
    let host = CString::new(host).ok()?;
    // SAFETY: addrinfo is plain data, and all zeroes is a value of it: no hints.
    let mut hints: libc::addrinfo = unsafe { mem::zeroed() };
    hints.ai_flags = libc::AI_NUMERICHOST;
    hints.ai_family = libc::AF_INET;
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut found = ptr::null_mut();
    // SAFETY: all pointers live through the call. What it fills in is freed below, and it is at least one
    // sockaddr_in, as AF_INET was asked for.
    unsafe {
        if libc::getaddrinfo(host.as_ptr(), ptr::null(), &hints, &mut found) != 0 {
            return None;
        }
        let address = (*(*found).ai_addr.cast::<libc::sockaddr_in>()).sin_addr;
        libc::freeaddrinfo(found);
        Some(Ipv4Addr::from(u32::from_be(address.s_addr)).into())
    }
}
