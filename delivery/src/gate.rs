//! Where ureq asks for the addresses to dial. It does so for every request, also when it then uses an idle
//! connection: no request passes unjudged.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver as UreqResolver};
use ureq::unversioned::transport::NextTimeout;

use crate::address_guard::{AddressGuard, literal, port};
use crate::failure::Failure;
use crate::request::parse_url;
use crate::resolver::Resolver;

/// ureq dials no more than this.
const MAX_ADDRESSES: usize = 16;

/// The name that will have to be looked up for `url`, if there is one.
pub(crate) fn name_in(url: &str) -> Option<String> {
    let uri = parse_url(url).ok()?;
    let host = uri.host()?;
    literal(host).is_none().then(|| host.to_string())
}

pub(crate) struct Gate {
    pub resolver: Resolver,
    pub guard: Box<dyn AddressGuard>,
}

impl Gate {
    fn addresses(&self, uri: &Uri, wait: Duration) -> Result<Vec<IpAddr>, Failure> {
        let host = uri.host().unwrap_or_default();
        let addresses = match literal(host) {
            Some(address) => vec![address],
            None => self.resolver.addresses(host, wait)?,
        };
        self.guard.judge(uri, &addresses)?;
        Ok(addresses)
    }
}

impl UreqResolver for Gate {
    fn resolve(
        &self,
        uri: &Uri,
        _: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let addresses = self
            .addresses(uri, *timeout.after)
            .map_err(|failure| Error::Other(Box::new(failure)))?;
        let mut resolved = self.empty();
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            resolved.push(SocketAddr::new(address, port(uri)));
        }
        Ok(resolved)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

#[cfg(test)]
mod tests;
