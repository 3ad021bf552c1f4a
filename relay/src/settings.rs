//! Settings of the database that count for its relays too.

use std::time::Duration;

use serde_json::Value;
use webhook_delivery::{Network, Ports};
use webhook_engine::Trouble;

use crate::options;
use crate::session::Session;

#[derive(PartialEq)]
pub struct Settings {
    pub enabled: bool,
    /// Whether the worker of the server tells of commits.
    pub rings: bool,
    pub poll_interval: Duration,
    pub stale_after: Duration,
    pub longest_silence: Duration,
    /// The networks that the database lets anything be sent to.
    pub network: Network,
}

impl Settings {
    pub fn read(session: &Session) -> Result<Settings, Trouble> {
        let rows = session.query("SELECT webhook.sender_settings()::pg_catalog.text", &[])?;
        let text = rows.first().and_then(|row| row.try_get::<_, &str>(0).ok());
        let read = text.and_then(|text| serde_json::from_str(text).ok());
        let settings: Value = read.ok_or_else(|| invalid("sender_settings()"))?;
        let text = |name: &str| settings[name].as_str().unwrap_or_default();
        let time = |name: &str| {
            let milliseconds = settings[name].as_u64().ok_or_else(|| invalid(name));
            milliseconds.map(Duration::from_millis)
        };
        Ok(Settings {
            enabled: settings["enabled"].as_bool().unwrap_or(false),
            rings: settings["rings"].as_bool().unwrap_or(false),
            poll_interval: time("poll_interval_ms")?,
            stale_after: time("stale_after_ms")?,
            longest_silence: time("longest_silence_ms")?,
            // A setting that cannot be read allows nothing.
            network: Network {
                allow: (text("allow_networks").parse()).map_err(|_| invalid("allow_networks"))?,
                allow_tenants: (text("tenant_networks").parse())
                    .map_err(|_| invalid("tenant_networks"))?,
                deny: (text("deny_networks").parse()).map_err(|_| invalid("deny_networks"))?,
                ports: (text("allow_ports").parse::<Ports>())
                    .map_err(|_| invalid("allow_ports"))?,
                require_https: options::require_https(text("require_https"))
                    .map_err(|_| invalid("require_https"))?,
            },
        })
    }
}

fn invalid(name: &str) -> Trouble {
    Trouble::new(
        "XX000",
        format!("webhook.{name} of the database cannot be read"),
    )
}
