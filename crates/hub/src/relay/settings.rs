//! The keys under `server.hub.relay.` and the rules among them.

use std::net::IpAddr;

use holdfast_ops::config::Checker;
use serde::Deserialize;

/// `relay.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct RelaySettings {
    /// The address at which spokes are listened for, without a port; `[::]`, which takes IPv4 too.
    pub bind: String,
    /// Requests a minute that one source address may make to the paths that need no token; 0-6000, 0 for no limit.
    pub unauth_rate: u32,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self { bind: "[::]".into(), unauth_rate: 60 }
    }
}

impl RelaySettings {
    /// The rules.
    pub fn validate(&self, at: &mut Checker<'_>) {
        if host(&self.bind).is_none() {
            at.problem("relay.bind", "is not an address", "write an IP address without a port");
        }
        at.range("relay.unauth_rate", self.unauth_rate, 0..=6000);
    }
}

/// An IP address; one of IPv6 may stand in brackets.
pub fn host(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok()
}
