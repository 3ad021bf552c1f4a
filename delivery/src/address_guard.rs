//! The addresses that may be dialled. The guard is asked for every request, with the very addresses that would be
//! dialled: after the lookup, so that no spelling of a host and no changing DNS answer gets past.
//!
//! `deny_networks` takes precedence over the networks that an administrator has opened, and those take precedence over
//! the ranges that are forbidden as installed: the special-purpose ranges and this host's own addresses. The endpoint's
//! owner decides which setting opens networks: `tenant_networks` if the endpoint has a tenant, else `allow_networks`.
//! One forbidden address of a name forbids them all. An address that only stands for an IPv4 address (mapped, NAT64)
//! is judged as that one, and a network of them is read as that of the IPv4 addresses.

mod literal;
mod own;
mod ranges;
mod settings;

use std::fmt;
use std::net::IpAddr;

use http::Uri;

use crate::failure::{Failure, FailureKind};
use crate::request::parse_url;

pub(crate) use literal::literal;
pub use settings::{Networks, Ports};

pub(crate) trait AddressGuard: Send + Sync + 'static {
    /// Whether all of `addresses`, those of the host of `uri`, may be dialled for an endpoint of this owner.
    fn judge(&self, owner: EndpointOwner, uri: &Uri, addresses: &[IpAddr]) -> Result<(), Failure>;
}

/// A tenant's endpoint reaches what its customer may reach, and not what an administrator has opened for receivers of
/// the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointOwner {
    Installation,
    Tenant,
}

impl EndpointOwner {
    pub fn new(has_tenant: bool) -> EndpointOwner {
        if has_tenant {
            EndpointOwner::Tenant
        } else {
            EndpointOwner::Installation
        }
    }
}

/// The settings of an administrator. The default is safe to install.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Opened for endpoints without a tenant.
    pub allow: Networks,
    /// Opened for endpoints of tenants.
    pub allow_tenants: Networks,
    pub deny: Networks,
    pub ports: Ports,
    pub require_https: RequireHttps,
}

/// Ordered from the least to the most that it requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequireHttps {
    Off,
    /// Plain http only inside the networks that are opened.
    #[default]
    Public,
    On,
}

impl Network {
    /// The networks that both allow.
    pub fn within(&self, other: &Network) -> Network {
        Network {
            allow: self.allow.shared_with(&other.allow),
            allow_tenants: self.allow_tenants.shared_with(&other.allow_tenants),
            deny: self.deny.and(&other.deny),
            ports: self.ports.shared_with(&other.ports),
            require_https: self.require_https.max(other.require_https),
        }
    }

    /// Judges a URL without looking its name up: for when an endpoint is registered. A name
    /// is judged by scheme and port; its addresses are judged whenever it is dialled.
    pub fn judge_url(&self, owner: EndpointOwner, url: &str) -> Result<(), String> {
        let judge = || {
            let uri = parse_url(url)?;
            match literal(uri.host().unwrap_or_default()) {
                Some(address) => self.judge(owner, &uri, &[address]),
                None => self.judge_name(owner, &uri),
            }
        };
        judge().map_err(|failure: Failure| failure.message)
    }

    /// The networks that are opened for endpoints of this owner, and the setting that lists them.
    fn opened_for(&self, owner: EndpointOwner) -> (&Networks, &'static str) {
        match owner {
            EndpointOwner::Installation => (&self.allow, "webhook.allow_networks"),
            EndpointOwner::Tenant => (&self.allow_tenants, "webhook.tenant_networks"),
        }
    }

    fn judge_name(&self, owner: EndpointOwner, uri: &Uri) -> Result<(), Failure> {
        self.judge_without_address(uri)?;
        let (opened, setting) = self.opened_for(owner);
        if self.require_https == RequireHttps::Public && !is_https(uri) && opened.is_empty() {
            return Err(blocked(format!(
                "plain http is forbidden by webhook.require_https outside {setting}, which is empty"
            )));
        }
        Ok(())
    }

    fn judge_without_address(&self, uri: &Uri) -> Result<(), Failure> {
        let port = port(uri);
        if !self.ports.contain(port) {
            return Err(blocked(format!(
                "port {port} is not in webhook.allow_ports"
            )));
        }
        if self.require_https == RequireHttps::On && !is_https(uri) {
            return Err(blocked("plain http is forbidden by webhook.require_https"));
        }
        Ok(())
    }

    fn judge_address(&self, owner: EndpointOwner, address: IpAddr) -> Result<(), Failure> {
        let meant = ranges::unwrapped(address);
        let named = Named { address, meant };
        if self.deny.contain(address) || self.deny.contain(meant) {
            return Err(blocked(format!("{named} is in webhook.deny_networks")));
        }
        let (opened, setting) = self.opened_for(owner);
        if opened.contain(meant) {
            return Ok(());
        }
        let what = match ranges::special_purpose(meant) {
            Some(what) => what,
            None if own::is_own(meant)? => "an address of this host",
            None => return Ok(()),
        };
        Err(blocked(format!("{named} is {what}, and not in {setting}")))
    }
}

impl AddressGuard for Network {
    fn judge(&self, owner: EndpointOwner, uri: &Uri, addresses: &[IpAddr]) -> Result<(), Failure> {
        self.judge_without_address(uri)?;
        for address in addresses {
            self.judge_address(owner, *address)?;
        }
        if self.require_https == RequireHttps::Public && !is_https(uri) {
            let (opened, setting) = self.opened_for(owner);
            let outside = |address: &&IpAddr| !opened.contain(ranges::unwrapped(**address));
            if let Some(address) = addresses.iter().find(outside) {
                return Err(blocked(format!(
                    "plain http to {address} is forbidden by webhook.require_https, as it is not in {setting}"
                )));
            }
        }
        Ok(())
    }
}

/// An address, and the one that it stands for.
struct Named {
    address: IpAddr,
    meant: IpAddr,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.address != self.meant {
            write!(f, ", which stands for {},", self.meant)?;
        }
        Ok(())
    }
}

pub(crate) fn port(uri: &Uri) -> u16 {
    let default = if is_https(uri) { 443 } else { 80 };
    uri.port_u16().unwrap_or(default)
}

pub(crate) fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

fn blocked(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Blocked, message)
}

#[cfg(test)]
mod tests;
