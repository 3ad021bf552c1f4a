//! The addresses of this host's interfaces. They change rarely, and asking the kernel for each request would
//! cost more than the rest of the verdict.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::failure::{Failure, FailureKind};
use crate::threads;

const KEEP: Duration = Duration::from_secs(5);

static LAST_SEEN: Mutex<Option<(Instant, Vec<IpAddr>)>> = Mutex::new(None);

/// Not knowing is trouble of our own: neither a reason to dial nor one to give up for good.
pub(super) fn is_own(address: IpAddr) -> Result<bool, Failure> {
    let mut last_seen = threads::lock(&LAST_SEEN);
    let recent = matches!(&*last_seen, Some((at, _)) if at.elapsed() < KEEP);
    if !recent {
        let interfaces = if_addrs::get_if_addrs().map_err(|error| {
            let message = format!("cannot list the addresses of this host: {error}");
            Failure::new(FailureKind::Local, message)
        })?;
        let addresses = interfaces.iter().map(|interface| interface.ip()).collect();
        *last_seen = Some((Instant::now(), addresses));
    }
    Ok(matches!(&*last_seen, Some((_, addresses)) if addresses.contains(&address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_addresses_of_this_host() {
        for (address, own) in [
            ("127.0.0.1", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_own(address.parse().unwrap()), Ok(own), "{address}");
        }
    }
}
