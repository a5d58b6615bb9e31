//! The keys under `server.hub.relay.` and the rules among them.

use std::net::IpAddr;
use std::time::Duration as StdDuration;

use holdfast_ops::Duration;
use holdfast_ops::config::Checker;
use serde::{Deserialize, Deserializer};

use crate::config::is_host_port;

/// The longest sum of keepalive interval and timeout: a spoke notices a dead node within it.
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(40);
/// An entry expires after so many announce intervals without an announce.
const MISSED: u32 = 3;

/// A spoke sends a heartbeat at least so often.
const HEARTBEAT: StdDuration = StdDuration::from_secs(15);
/// A stream on which nothing came for so long is shown as stale.
pub const STALE: StdDuration = StdDuration::from_secs(45);
/// How long announce, sign and list calls between nodes may take.
pub const PEER_CALL: StdDuration = StdDuration::from_secs(10);
/// How long the first frame of a spoke may take.
pub const HELLO: StdDuration = StdDuration::from_secs(5);
/// The largest frame, either way.
pub const MAX_FRAME: usize = 16 * 1024 * 1024;
/// Frames that wait for one spoke. A command that finds the queue full waits a second and is busy then.
pub const QUEUE: usize = 16;

/// `relay.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct RelaySettings {
    /// The address, without port, where spokes are taken; the port is that of the hub endpoint. Default `[::]`, which
    /// is IPv4 too.
    pub bind: String,
    /// host:port of this node for redirects and for the list of nodes that spokes are given.
    pub advertise: Option<String>,
    /// Whether a node that is not active sends spokes on to the active one. `1` or `true` in any case; all else is off.
    #[serde(deserialize_with = "switch")]
    pub pin_spokes_to_active: bool,
    /// How often each node tells the active one its streams; 200 ms-60 s.
    pub announce_interval: Duration,
    /// How often a quiet connection is pinged; 5-30 s.
    pub keepalive_interval: Duration,
    /// How long the answer to a ping may take; 1-30 s.
    pub keepalive_timeout: Duration,
    /// Commands under way at once for one spoke; 1-4096.
    pub max_in_flight: u32,
    /// Calls of the open paths a minute from one address; 0-6000, 0 for no limit.
    pub unauth_rate: u32,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            bind: "[::]".to_owned(),
            advertise: None,
            pin_spokes_to_active: false,
            announce_interval: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            max_in_flight: 128,
            unauth_rate: 60,
        }
    }
}

impl RelaySettings {
    /// Reports every problem.
    pub fn validate(&self, at: &mut Checker<'_>) {
        if self.bind_address().is_none() {
            at.problem(
                "relay.bind",
                "is not an address",
                "write an address without a port, IPv6 in brackets",
            );
        }
        if let Some(advertise) = &self.advertise
            && !is_host_port(advertise)
        {
            at.problem("relay.advertise", "is not host:port", "write host:port, IPv6 in brackets");
        }
        let (interval, timeout) = (self.keepalive_interval, self.keepalive_timeout);
        let (second, half_a_minute) = (Duration::from_secs(1), Duration::from_secs(30));
        at.range(
            "relay.announce_interval",
            self.announce_interval,
            Duration::from_millis(200)..=Duration::from_secs(60),
        );
        at.range("relay.keepalive_interval", interval, Duration::from_secs(5)..=half_a_minute);
        at.range("relay.keepalive_timeout", timeout, second..=half_a_minute);
        if interval.get() + timeout.get() > LONGEST_KEEPALIVE.get() {
            at.problem(
                "relay.keepalive_interval",
                format!("and relay.keepalive_timeout are more than {LONGEST_KEEPALIVE} together"),
                "lower one of them",
            );
        }
        at.range("relay.max_in_flight", self.max_in_flight, 1..=4096);
        at.range("relay.unauth_rate", self.unauth_rate, 0..=6000);
    }

    /// The address to bind.
    pub fn bind_address(&self) -> Option<IpAddr> {
        host(&self.bind)
    }

    /// After which silence of a node its streams are forgotten.
    pub fn expiry(&self) -> StdDuration {
        self.announce_interval.get() * MISSED
    }

    /// How lately a stream must have been heard of to count as alive.
    pub fn alive_within(&self) -> StdDuration {
        self.keepalive_interval.get() + self.keepalive_timeout.get()
    }

    /// How often a spoke is asked to send a heartbeat. What is judged by them must see one in time: a stream whose
    /// spoke does as it is told is never taken for silent.
    pub fn heartbeat(&self) -> StdDuration {
        HEARTBEAT.min(self.alive_within() * 3 / 4)
    }
}

/// An IP address; one of IPv6 may stand in brackets.
pub fn host(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inside) => inside.parse().ok().filter(IpAddr::is_ipv6),
        None => text.parse().ok(),
    }
}

/// Only `1` and `true` switch something on; whatever else is said leaves it off.
fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Switch;

    impl serde::de::Visitor<'_> for Switch {
        type Value = bool;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("1 or true, or anything else for off")
        }

        fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }

        fn visit_i64<E>(self, value: i64) -> Result<bool, E> {
            Ok(value == 1)
        }

        fn visit_u64<E>(self, value: u64) -> Result<bool, E> {
            Ok(value == 1)
        }

        fn visit_str<E>(self, value: &str) -> Result<bool, E> {
            Ok(value == "1" || value.eq_ignore_ascii_case("true"))
        }

        fn visit_unit<E>(self) -> Result<bool, E> {
            Ok(false)
        }
    }

    deserializer.deserialize_str(Switch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HubConfig, loader};

    fn load(vars: &[(&str, &str)], flags: &[&str]) -> Result<RelaySettings, holdfast_ops::config::Problems> {
        let loader = loader().environment(vars.iter().copied()).set("data_dir", "/x");
        flags.iter().fold(loader, |l, flag| l.flag(flag)).load::<HubConfig>().map(|c| c.relay)
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let relay = load(&[], &[]).unwrap();
        assert_eq!(relay.bind_address(), Some("::".parse().unwrap()));
        assert_eq!((relay.max_in_flight, relay.unauth_rate), (128, 60));
        assert_eq!(relay.expiry(), StdDuration::from_secs(15));
        assert_eq!(relay.alive_within(), StdDuration::from_secs(20));
        assert!(!relay.pin_spokes_to_active && relay.advertise.is_none());
    }

    #[test]
    fn heartbeats_come_before_a_stream_counts_as_silent() {
        assert_eq!(RelaySettings::default().heartbeat(), StdDuration::from_secs(15));
        for (interval, patience) in [(5, 1), (5, 30), (14, 1), (10, 10), (30, 10), (30, 1)] {
            let relay = RelaySettings {
                keepalive_interval: Duration::from_secs(interval),
                keepalive_timeout: Duration::from_secs(patience),
                ..RelaySettings::default()
            };
            let (beat, alive) = (relay.heartbeat(), relay.alive_within());
            assert!(beat + StdDuration::from_secs(1) < alive, "{interval} {patience}");
            assert!(beat <= HEARTBEAT && beat >= StdDuration::from_secs(4), "{interval} {patience}");
        }
    }

    #[test]
    fn pinning_is_switched_on_by_one_and_true_alone() {
        for name in ["HOLDFAST_RELAY_PIN_SPOKES_TO_ACTIVE", "BAO_RELAY_PIN_SPOKES_TO_ACTIVE"] {
            for (text, on) in [
                ("1", true),
                ("true", true),
                ("TRUE", true),
                ("tRuE", true),
                ("yes", false),
                ("0", false),
                ("false", false),
                ("2", false),
                ("", false),
            ] {
                let relay = load(&[(name, text)], &[]).unwrap();
                assert_eq!(relay.pin_spokes_to_active, on, "{name}={text}");
            }
        }
        assert!(load(&[], &["relay.pin_spokes_to_active=true"]).unwrap().pin_spokes_to_active);
    }

    #[test]
    fn every_rule_is_checked() {
        for (flags, key) in [
            (&["relay.bind=0.0.0.0:1"][..], "relay.bind"),
            (&["relay.bind=[10.0.0.1]"], "relay.bind"),
            (&["relay.advertise=here"], "relay.advertise"),
            (&["relay.announce_interval=199ms"], "relay.announce_interval"),
            (&["relay.announce_interval=61s"], "relay.announce_interval"),
            (&["relay.keepalive_interval=4s"], "relay.keepalive_interval"),
            (&["relay.keepalive_timeout=31s"], "relay.keepalive_timeout"),
            (&["relay.keepalive_interval=25s", "relay.keepalive_timeout=16s"], "relay.keepalive_interval"),
            (&["relay.max_in_flight=0"], "relay.max_in_flight"),
            (&["relay.max_in_flight=4097"], "relay.max_in_flight"),
            (&["relay.unauth_rate=6001"], "relay.unauth_rate"),
        ] {
            let problems = load(&[], flags).unwrap_err();
            assert!(problems.iter().any(|p| p.key.ends_with(key)), "{flags:?}");
        }
        load(&[], &["relay.keepalive_interval=25s", "relay.keepalive_timeout=15s", "relay.bind=10.0.0.1"])
            .unwrap();
    }
}
