//! What a configuration asks of its upstreams, and whether its grace is long enough for a balancer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Configuration;
use super::bounds::shown;
use crate::binding::scheme::UpstreamKind;
use crate::reference::ObjectKey;

/// Between two readings of a file behind its watch.
const FILE_REREAD: Duration = Duration::from_secs(30);
/// The shortest time between two runs of a program.
const EXEC_FLOOR: Duration = Duration::from_secs(5);

/// What one replica asks of one upstream while nothing changes or fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The upstream.
    pub upstream: Arc<str>,
    /// Its type.
    pub kind: UpstreamKind,
    /// Bindings that come from it.
    pub bindings: usize,
    /// Objects that they share; each is one call.
    pub objects: usize,
    /// Calls a minute, readings by poll or confirmations behind a watch.
    pub per_minute: f64,
}

/// The load on every upstream that a binding uses, by name.
pub fn load(configuration: &Configuration) -> Vec<Load> {
    let mut polls: BTreeMap<&ObjectKey, Duration> = BTreeMap::new();
    let mut loads: BTreeMap<&str, Load> = BTreeMap::new();
    for binding in configuration.bindings.values() {
        let object = &binding.reference.object;
        let poll = polls.entry(object).or_insert(binding.rules.poll);
        *poll = binding.rules.poll.min(*poll);
        if let Some(upstream) = configuration.upstreams.get(object.upstream.as_str()) {
            let load = loads.entry(&object.upstream).or_insert_with(|| Load {
                upstream: Arc::clone(&upstream.name),
                kind: upstream.kind,
                bindings: 0,
                objects: 0,
                per_minute: 0.0,
            });
            load.bindings += 1;
        }
    }
    for (object, poll) in polls {
        let confirm = configuration.upstreams.get(object.upstream.as_str()).map(|upstream| upstream.confirm);
        if let (Some(load), Some(confirm)) = (loads.get_mut(object.upstream.as_str()), confirm) {
            load.objects += 1;
            load.per_minute +=
                between(load.kind, poll, confirm).map_or(0.0, |span| 60.0 / span.as_secs_f64());
        }
    }
    loads.into_values().collect()
}

/// The time between two calls for an object; none when it is read at the start only.
fn between(kind: UpstreamKind, poll: Duration, confirm: Duration) -> Option<Duration> {
    match kind {
        UpstreamKind::Static | UpstreamKind::Env => None,
        UpstreamKind::File => Some(FILE_REREAD),
        UpstreamKind::Exec => Some(poll.max(EXEC_FLOOR)),
        UpstreamKind::Http
        | UpstreamKind::Vault
        | UpstreamKind::Hub
        | UpstreamKind::Aws
        | UpstreamKind::Test => Some(poll),
        UpstreamKind::Kube
        | UpstreamKind::Etcd
        | UpstreamKind::Consul
        | UpstreamKind::Postgres
        | UpstreamKind::Redis
        | UpstreamKind::Holdfast => Some(confirm),
    }
}

/// Whether a replica stays up as long as a balancer needs to notice that it is draining.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Drain {
    /// `drain_grace`.
    pub grace: Duration,
    /// The time between two probes.
    pub probe: Duration,
    /// How many must fail.
    pub threshold: u32,
}

impl Drain {
    /// The longest time until the balancer has noticed.
    pub fn needed(&self) -> Duration {
        self.probe.saturating_mul(self.threshold)
    }

    /// Whether that is within the grace.
    pub fn is_enough(&self) -> bool {
        self.grace >= self.needed()
    }

    /// What to do.
    pub fn advice(&self) -> String {
        let (grace, needed) = (shown(self.grace), shown(self.needed()));
        let balancer = format!(
            "a balancer that probes every {} and gives up after {}",
            shown(self.probe),
            self.threshold
        );
        if self.is_enough() {
            format!("drain_grace {grace} covers {needed}: {balancer} has noticed by then")
        } else {
            format!(
                "drain_grace {grace} is too short: {balancer} needs {needed}; set drain_grace = \"{needed}\" or more"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Overrides, load as load_configuration};

    #[test]
    fn objects_are_counted_once_at_their_shortest_poll() {
        let mut text = "auth.methods = ['none']\npolicy.allow_all = true\nlistener = [{ kind = 'unix', path = 's' }]\n\
                        upstream.api = { type = 'http', base_url = 'https://h' }\n\
                        upstream.kv = { type = 'etcd', addrs = ['https://h'], confirm = '30s' }\n\
                        upstream.disk = { type = 'file', roots = ['/d'] }\n[bindings]\ns = 'static:x'\nf = 'file:///d/x'\n\
                        slow = { ref = 'https://api/o0#other', poll = '1h' }\ne1 = 'etcd://a#x'\ne2 = 'etcd://a#y'\ne3 = 'etcd://b'\n"
            .to_owned();
        for n in 0..200 {
            text.push_str(&format!("b{n} = {{ ref = 'https://api/o{}#k{n}', poll = '2s' }}\n", n % 20));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        let overrides = Overrides { environment: Some(Vec::new()), ..Overrides::default() };
        let configuration =
            load_configuration(&path, &overrides).unwrap_or_else(|problems| panic!("{problems}"));
        let loads = load(&configuration);
        let found: Vec<_> =
            loads.iter().map(|l| (&*l.upstream, l.bindings, l.objects, l.per_minute)).collect();
        assert_eq!(
            found,
            [("api", 201, 20, 600.0), ("disk", 1, 1, 2.0), ("kv", 3, 2, 4.0), ("static", 1, 1, 0.0)]
        );
    }

    #[test]
    fn the_grace_must_cover_the_balancers_probes() {
        let drain =
            |grace| Drain { grace: Duration::from_secs(grace), probe: Duration::from_secs(5), threshold: 2 };
        assert_eq!(
            drain(15).advice(),
            "drain_grace 15s covers 10s: a balancer that probes every 5s and gives up after 2 has noticed by then"
        );
        assert!(drain(10).is_enough());
        assert_eq!(
            drain(0).advice(),
            "drain_grace 0s is too short: a balancer that probes every 5s and gives up after 2 needs 10s; set drain_grace = \"10s\" or more"
        );
    }
}
