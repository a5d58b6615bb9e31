//! The hub's configuration: the keys under `server.hub.` and the rules among them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use holdfast_ops::config::{Checker, Loader, Problems, Validate};
use holdfast_ops::{ByteSize, Duration};
use serde::Deserialize;

use crate::barrier::seal::{self, SealType};
use crate::cluster::{NodeAddress, NodeName};
use crate::label::KubernetesConfig;
use crate::relay::RelaySettings;

/// The longest node id.
const MAX_NODE_ID: usize = 128;

/// Everything that can be set.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct HubConfig {
    /// The name of the node in its cluster; the host name.
    pub node_id: String,
    /// Where the log, the state and the seal are; required.
    pub data_dir: PathBuf,
    /// The HTTP API.
    pub api: ApiConfig,
    /// The port among the nodes.
    pub cluster: ClusterConfig,
    /// How the root key is found.
    pub seal: SealConfig,
    /// Consensus.
    pub raft: RaftConfig,
    /// Bounds on requests.
    pub limits: LimitsConfig,
    /// Leases.
    pub lease: LeaseConfig,
    /// Audit.
    pub audit: AuditConfig,
    /// Metrics.
    pub metrics: MetricsConfig,
    /// The relay.
    pub relay: RelaySettings,
    /// The label on the pod.
    pub kubernetes: KubernetesConfig,
}

/// `api.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ApiConfig {
    /// Where the API listens.
    pub listen: String,
    /// The URL under which clients and other nodes reach it; derived from `listen` unless that is a wildcard.
    pub advertise: Option<String>,
    /// TLS files.
    pub tls: ApiTls,
    /// Allows plain text on an address that is not loopback.
    pub i_accept_plaintext: bool,
}

/// `api.tls.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiTls {
    /// PEM certificate chain.
    pub cert: Option<PathBuf>,
    /// PEM private key.
    pub key: Option<PathBuf>,
    /// PEM certificates of the authorities whose client certificates are required.
    pub client_ca: Option<PathBuf>,
}

/// `cluster.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ClusterConfig {
    /// Where the cluster port listens.
    pub listen: String,
    /// `host:port` under which other nodes reach it; derived from `listen` unless that is a wildcard.
    pub advertise: Option<String>,
}

/// `seal.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SealConfig {
    /// `shamir` or `keyfile`.
    #[serde(rename = "type")]
    pub kind: SealType,
    /// 32 bytes, owner-only; for `keyfile`.
    pub keyfile: Option<PathBuf>,
}

/// `raft.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct RaftConfig {
    /// Milliseconds between heartbeats; 20-2000.
    pub heartbeat_ms: u64,
    /// The least silence before a node stands for election, in milliseconds; at least three heartbeats.
    pub election_min_ms: u64,
    /// The most silence, in milliseconds; at least 1.5 times the least, at most 30000.
    pub election_max_ms: u64,
    /// Log entries before a state image is taken.
    pub compact_after: u64,
    /// Log entries kept behind an image.
    pub keep_entries: u64,
    /// Nodes to join while not initialised.
    pub retry_join: Vec<RetryJoin>,
}

/// One entry of `raft.retry_join`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RetryJoin {
    /// URL of the API of a node of the cluster.
    pub leader_api_addr: String,
    /// PEM text, or the path of a PEM file, of the authority behind that API's certificate.
    pub ca_cert: String,
    /// PEM file of the certificate to show, where that API asks for one.
    pub client_cert: Option<PathBuf>,
    /// PEM file of its key; owner-only.
    pub client_key: Option<PathBuf>,
}

/// `limits.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct LimitsConfig {
    /// The largest request body; 1 KiB-256 MiB.
    pub body_bytes: ByteSize,
    /// The longest life of a request; 1 s-15 min.
    pub request_deadline: Duration,
    /// How long a standby holds a request while there is no active node; 0-10 s.
    pub forward_hold: Duration,
}

/// `lease.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct LeaseConfig {
    /// The life of leases and tokens that ask for none.
    pub default_ttl: Duration,
    /// The longest life.
    pub max_ttl: Duration,
    /// Revocations under way at once; 1-10000.
    pub revoke_workers: u32,
}

/// `audit.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct AuditConfig {
    /// How long a device may take over one entry; 50 ms-30 s.
    pub write_timeout: Duration,
}

/// `metrics.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MetricsConfig {
    /// Opens `sys/metrics` without a token.
    pub unauthenticated: bool,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            node_id: host_name(),
            data_dir: PathBuf::new(),
            api: ApiConfig::default(),
            cluster: ClusterConfig::default(),
            seal: SealConfig::default(),
            raft: RaftConfig::default(),
            limits: LimitsConfig::default(),
            lease: LeaseConfig::default(),
            audit: AuditConfig::default(),
            metrics: MetricsConfig::default(),
            relay: RelaySettings::default(),
            kubernetes: KubernetesConfig::default(),
        }
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8200".into(),
            advertise: None,
            tls: ApiTls::default(),
            i_accept_plaintext: false,
        }
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self { listen: "127.0.0.1:8201".into(), advertise: None }
    }
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            heartbeat_ms: 100,
            election_min_ms: 400,
            election_max_ms: 800,
            compact_after: 8192,
            keep_entries: 10_000,
            retry_join: Vec::new(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            body_bytes: ByteSize::mib(32),
            request_deadline: Duration::from_secs(90),
            forward_hold: Duration::from_secs(2),
        }
    }
}

impl Default for LeaseConfig {
    fn default() -> Self {
        let ttl = Duration::from_secs(768 * 3600);
        Self { default_ttl: ttl, max_ttl: ttl, revoke_workers: 200 }
    }
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { write_timeout: Duration::from_secs(1) }
    }
}

/// The loader with the environment names that stand for keys of the hub.
pub fn loader() -> Loader {
    Loader::new("hub")
        .alias("HOLDFAST_LEASE_REVOCATION_WORKERS", "lease.revoke_workers")
        .alias("BAO_LEASE_REVOCATION_WORKERS", "lease.revoke_workers")
        .alias("HOLDFAST_RELAY_PIN_SPOKES_TO_ACTIVE", "relay.pin_spokes_to_active")
        .alias("BAO_RELAY_PIN_SPOKES_TO_ACTIVE", "relay.pin_spokes_to_active")
}

/// Reads and checks the configuration.
pub fn load(loader: Loader) -> Result<HubConfig, Problems> {
    loader.load()
}

impl HubConfig {
    /// The node's name.
    pub fn node(&self) -> NodeName {
        NodeName(self.node_id.clone())
    }

    /// Whether the API speaks TLS.
    pub fn api_tls(&self) -> bool {
        self.api.tls.cert.is_some()
    }

    /// What other nodes and clients are told, given the addresses that were really bound.
    pub fn address(&self, api: SocketAddr, cluster: SocketAddr) -> NodeAddress {
        let scheme = if self.api_tls() { "https" } else { "http" };
        let url = self.api.advertise.as_deref().map(|url| url.trim_end_matches('/').to_owned());
        NodeAddress {
            cluster: self.cluster.advertise.clone().unwrap_or_else(|| cluster.to_string()),
            api: url.unwrap_or_else(|| format!("{scheme}://{api}")),
        }
    }
}

impl Validate for HubConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if self.node_id.is_empty() || self.node_id.len() > MAX_NODE_ID || !self.node_id.chars().all(allowed) {
            at.problem("node_id", "is not a node id", "use 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'");
        }
        if self.data_dir.as_os_str().is_empty() {
            at.problem("data_dir", "is required", "name a directory that this node alone uses");
        }
        self.api.validate(at);
        self.cluster.validate(at);
        self.seal.validate(at);
        self.raft.validate(at);
        self.limits.validate(at);
        self.lease.validate(at);
        self.relay.validate(at);
        self.kubernetes.validate(at, &self.node_id);
        range(at, "audit.write_timeout", self.audit.write_timeout, millis(50), secs(30));
    }
}

impl ApiConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        let listen = check_listen(at, "api.listen", &self.listen);
        match &self.advertise {
            Some(url) if !is_url(url) => {
                at.problem("api.advertise", "is not a URL", "write https://host:port or http://host:port");
            }
            None if listen.is_some_and(|a| a.ip().is_unspecified()) => {
                let fix = "api.listen is a wildcard, so say which URL clients reach this node at";
                at.problem("api.advertise", "is required", fix);
            }
            _ => {}
        }
        let plain = self.tls.cert.is_none();
        if plain && !self.i_accept_plaintext && listen.is_some_and(|a| !a.ip().is_loopback()) {
            let fix = "set api.tls.cert and api.tls.key, or api.i_accept_plaintext = true";
            at.problem("api.tls.cert", "is required, since api.listen is not loopback", fix);
        }
        for (key, file, other) in [
            ("api.tls.key", &self.tls.key, &self.tls.cert),
            ("api.tls.cert", &self.tls.cert, &self.tls.key),
            ("api.tls.cert", &self.tls.cert, &self.tls.client_ca),
        ] {
            if file.is_none() && other.is_some() {
                at.problem(key, "is required with the other TLS files", "name a PEM file");
            }
        }
        for (key, file) in [("api.tls.cert", &self.tls.cert), ("api.tls.client_ca", &self.tls.client_ca)] {
            check_readable(at, key, file.as_deref());
        }
        check_secret(at, "api.tls.key", self.tls.key.as_deref());
    }
}

impl ClusterConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        let listen = check_listen(at, "cluster.listen", &self.listen);
        match &self.advertise {
            Some(text) if !is_host_port(text) => {
                at.problem("cluster.advertise", "is not host:port", "write host:port, IPv6 in brackets");
            }
            None if listen.is_some_and(|a| a.ip().is_unspecified()) => {
                let fix =
                    "cluster.listen is a wildcard, so say which host:port other nodes reach this node at";
                at.problem("cluster.advertise", "is required", fix);
            }
            _ => {}
        }
    }
}

impl SealConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        match (self.kind, &self.keyfile) {
            (SealType::Keyfile, None) => {
                at.problem(
                    "seal.keyfile",
                    "is required with seal.type = \"keyfile\"",
                    "name a file of 32 bytes",
                );
            }
            (SealType::Keyfile, Some(path)) => {
                if let Err(error) = seal::read_keyfile(path) {
                    let cause =
                        std::error::Error::source(&error).map(|e| format!(" ({e})")).unwrap_or_default();
                    at.problem(
                        "seal.keyfile",
                        format!("cannot be used: {error}{cause}"),
                        "provide 32 bytes in a file that only its owner can read",
                    );
                }
            }
            (SealType::Shamir, Some(_)) => {
                at.problem("seal.keyfile", "has no use with seal.type = \"shamir\"", "remove one of the two");
            }
            (SealType::Shamir, None) => {}
        }
    }
}

impl RaftConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        at.range("raft.heartbeat_ms", self.heartbeat_ms, 20..=2000);
        if self.election_min_ms < self.heartbeat_ms.saturating_mul(3) {
            let fix = "use at least three times raft.heartbeat_ms";
            at.problem("raft.election_min_ms", format!("is {}, too short", self.election_min_ms), fix);
        }
        if self.election_max_ms.saturating_mul(2) < self.election_min_ms.saturating_mul(3) {
            let fix = "use at least 1.5 times raft.election_min_ms";
            at.problem("raft.election_max_ms", format!("is {}, too short", self.election_max_ms), fix);
        }
        at.range("raft.election_max_ms", self.election_max_ms, 1..=30_000);
        at.range("raft.compact_after", self.compact_after, 16..=10_000_000);
        at.range("raft.keep_entries", self.keep_entries, 0..=10_000_000);
        for (i, join) in self.retry_join.iter().enumerate() {
            if !is_url(&join.leader_api_addr) {
                let key = format!("raft.retry_join.{i}.leader_api_addr");
                at.problem(&key, "is not a URL", "write https://host:port or http://host:port");
            }
            let (cert, key) =
                (format!("raft.retry_join.{i}.client_cert"), format!("raft.retry_join.{i}.client_key"));
            match (&join.client_cert, &join.client_key) {
                (Some(_), None) => at.problem(&key, "is required with client_cert", "name a PEM file"),
                (None, Some(_)) => at.problem(&cert, "is required with client_key", "name a PEM file"),
                _ => {}
            }
            check_readable(at, &cert, join.client_cert.as_deref());
            check_secret(at, &key, join.client_key.as_deref());
        }
    }
}

impl LimitsConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        at.range("limits.body_bytes", self.body_bytes, ByteSize::bytes(1024)..=ByteSize::mib(256));
        range(at, "limits.request_deadline", self.request_deadline, secs(1), secs(900));
        range(at, "limits.forward_hold", self.forward_hold, secs(0), secs(10));
    }
}

impl LeaseConfig {
    fn validate(&self, at: &mut Checker<'_>) {
        if self.default_ttl > self.max_ttl {
            at.problem(
                "lease.default_ttl",
                format!("is {}, more than lease.max_ttl", self.default_ttl),
                "lower it or raise lease.max_ttl",
            );
        }
        let most = secs(100 * 365 * 86_400);
        range(at, "lease.default_ttl", self.default_ttl, secs(1), most);
        range(at, "lease.max_ttl", self.max_ttl, secs(1), most);
        at.range("lease.revoke_workers", self.revoke_workers, 1..=10_000);
    }
}

fn check_listen(at: &mut Checker<'_>, key: &str, text: &str) -> Option<SocketAddr> {
    let parsed = text.parse().ok();
    if parsed.is_none() {
        at.problem(key, "is not an address with a port", "write address:port, IPv6 in brackets");
    }
    parsed
}

fn check_readable(at: &mut Checker<'_>, key: &str, file: Option<&Path>) {
    if let Some(Err(e)) = file.map(std::fs::File::open) {
        at.problem(key, format!("cannot be read ({e})"), "name a readable PEM file");
    }
}

/// A private key that others can read is no secret, so the node does not start with it.
fn check_secret(at: &mut Checker<'_>, key: &str, file: Option<&Path>) {
    if let Some(Err(error)) = file.map(holdfast_ops::secret_file::read) {
        let cause = std::error::Error::source(&error).map(|e| format!(" ({e})")).unwrap_or_default();
        let fix = "provide a PEM file that only its owner can read";
        at.problem(key, format!("cannot be used: {error}{cause}"), fix);
    }
}

fn range(at: &mut Checker<'_>, key: &str, value: Duration, low: Duration, high: Duration) {
    at.range(key, value, low..=high);
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Whether the text is an http or https URL with a host and nothing after it but a slash.
pub fn is_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    scheme
        && uri.host().is_some_and(|h| !h.is_empty())
        && matches!(uri.path(), "" | "/")
        && uri.query().is_none()
}

/// Whether the text is `host:port` with a port other than 0; an IPv6 host stands in brackets.
pub fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
    let host_ok = if bracketed { text.parse::<SocketAddr>().is_ok() } else { plain };
    host_ok && port.parse::<u16>().is_ok_and(|p| p != 0)
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn load(flags: &[&str]) -> Result<HubConfig, Problems> {
        let none: [(&str, &str); 0] = [];
        flags.iter().fold(loader().environment(none), |l, flag| l.flag(flag)).load()
    }

    fn keys(problems: &Problems) -> Vec<String> {
        problems.iter().map(|p| p.key.strip_prefix("server.hub.").unwrap_or(&p.key).to_owned()).collect()
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let config = load(&["data_dir=/x"]).unwrap();
        assert_eq!(config.api.listen, "127.0.0.1:8200");
        assert_eq!(config.raft.election_max_ms, 800);
        assert_eq!(config.limits.body_bytes, ByteSize::mib(32));
        assert_eq!(config.lease.max_ttl, Duration::from_secs(2_764_800));
        assert_eq!(config.lease.revoke_workers, 200);
        let address = config.address("127.0.0.1:8200".parse().unwrap(), "127.0.0.1:8201".parse().unwrap());
        assert_eq!(address.api, "http://127.0.0.1:8200");
    }

    #[test]
    fn all_problems_come_at_once() {
        let problems = load(&[
            "node_id=a b",
            "api.listen=0.0.0.0:8200",
            "raft.heartbeat_ms=10",
            "raft.election_min_ms=20",
            "limits.request_deadline=1h",
            "lease.default_ttl=1000h",
            "audit.write_timeout=1ms",
            "seal.type=keyfile",
            "colour=red",
        ])
        .unwrap_err();
        assert_eq!(problems.exit_code(), 64);
        let keys = keys(&problems);
        for key in [
            "colour",
            "node_id",
            "data_dir",
            "api.advertise",
            "api.tls.cert",
            "seal.keyfile",
            "raft.heartbeat_ms",
            "raft.election_min_ms",
            "limits.request_deadline",
            "lease.default_ttl",
            "audit.write_timeout",
        ] {
            assert!(keys.iter().any(|k| k == key), "{key} in {keys:?}");
        }
    }

    #[test]
    fn node_ids_have_an_alphabet_and_a_length_and_default_to_the_host_name() {
        let config = load(&["data_dir=/x"]).unwrap();
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        assert_eq!(config.node_id, host);
        let fits = "a".repeat(128);
        for good in ["a", "hub-0.example_X", &fits] {
            load(&["data_dir=/x", &format!("node_id={good}")]).unwrap();
        }
        let long = "a".repeat(129);
        for bad in ["", "a/b", "ä", "a b", &long] {
            let problems = load(&["data_dir=/x", &format!("node_id={bad}")]).unwrap_err();
            assert_eq!(keys(&problems), ["node_id"], "{bad}");
        }
    }

    #[test]
    fn numbers_and_times_are_held_to_their_bounds() {
        for (key, good, bad) in [
            ("raft.heartbeat_ms", ["20", "100"], ["19", "2001"]),
            ("raft.election_min_ms", ["300", "533"], ["299", "0"]),
            ("raft.election_max_ms", ["600", "30000"], ["599", "30001"]),
            ("raft.compact_after", ["16", "10000000"], ["15", "10000001"]),
            ("raft.keep_entries", ["0", "10000000"], ["-1", "10000001"]),
            ("limits.body_bytes", ["1024", "256MiB"], ["1023", "257MiB"]),
            ("limits.request_deadline", ["1s", "15m"], ["999ms", "901s"]),
            ("limits.forward_hold", ["0s", "10s"], ["10001ms", "1h"]),
            ("lease.default_ttl", ["1s", "768h"], ["0s", "769h"]),
            ("lease.revoke_workers", ["1", "10000"], ["0", "10001"]),
            ("audit.write_timeout", ["50ms", "30s"], ["49ms", "31s"]),
        ] {
            for value in good {
                let told = load(&["data_dir=/x", &format!("{key}={value}")]).err();
                assert!(told.is_none(), "{key}={value}: {told:?}");
            }
            for value in bad {
                let problems = load(&["data_dir=/x", &format!("{key}={value}")]).unwrap_err();
                assert!(keys(&problems).iter().any(|k| k == key), "{key}={value}: {problems}");
                assert_eq!(problems.exit_code(), 64);
            }
        }
    }

    #[test]
    fn a_label_needs_a_server_a_token_and_a_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let account = format!("kubernetes.service_account={}", dir.path().display());
        let flags = ["data_dir=/x", "node_id=hub-0", "kubernetes.label_pod=true", &account];
        let with = |more: &str| load(&[&flags[..], &[more]].concat()).err().map(|problems| keys(&problems));
        let all = ["kubernetes.api", "kubernetes.service_account", "kubernetes.namespace"];
        assert_eq!(keys(&load(&flags).unwrap_err()), all);
        std::fs::write(dir.path().join("token"), "t").unwrap();
        std::fs::write(dir.path().join("namespace"), "databases").unwrap();
        assert_eq!(with("kubernetes.api=http://127.0.0.1:8001"), None);
        let https = "kubernetes.api=https://10.0.0.1:443";
        assert_eq!(with(https).unwrap(), ["kubernetes.service_account"], "no authority to trust");
        let ca = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap().cert.pem();
        std::fs::write(dir.path().join("ca.crt"), ca).unwrap();
        assert_eq!(with(https), None);
        assert_eq!(with("kubernetes.api=http://10.0.0.1").unwrap(), ["kubernetes.api"]);
        let named =
            |key: &str| load(&[&flags[..], &[https, key]].concat()).err().map(|problems| keys(&problems));
        assert_eq!(named("kubernetes.pod=hub/0").unwrap(), ["kubernetes.pod"]);
        assert_eq!(named("node_id=Hub_0").unwrap(), ["kubernetes.pod"], "the node id stands for it");
        assert_eq!(named("kubernetes.namespace=..").unwrap(), ["kubernetes.namespace"]);
        load(&["data_dir=/x", "kubernetes.api=nonsense"]).unwrap();
    }

    #[test]
    fn a_heartbeat_needs_a_longer_silence_and_a_silence_some_room() {
        let raft = |heartbeat: u64, min: u64, max: u64| {
            let flags = [
                "data_dir=/x".to_owned(),
                format!("raft.heartbeat_ms={heartbeat}"),
                format!("raft.election_min_ms={min}"),
                format!("raft.election_max_ms={max}"),
            ];
            load(&flags.iter().map(String::as_str).collect::<Vec<_>>()).err().map(|problems| keys(&problems))
        };
        assert_eq!(raft(500, 1500, 2250), None);
        assert_eq!(raft(500, 1499, 2250).unwrap(), ["raft.election_min_ms"]);
        assert_eq!(raft(500, 1500, 2249).unwrap(), ["raft.election_max_ms"]);
    }

    #[test]
    fn a_wildcard_address_needs_one_that_can_be_told() {
        let api = ["data_dir=/x", "api.listen=[::]:8200", "api.i_accept_plaintext=true"];
        assert_eq!(keys(&load(&api).unwrap_err()), ["api.advertise"]);
        let told = [&api[..], &["api.advertise=https://hub.example:8200/"]].concat();
        let address =
            load(&told).unwrap().address("[::]:8200".parse().unwrap(), "127.0.0.1:8201".parse().unwrap());
        assert_eq!(address.api, "https://hub.example:8200");
        let wrong = [&api[..], &["api.advertise=hub.example:8200"]].concat();
        assert_eq!(keys(&load(&wrong).unwrap_err()), ["api.advertise"]);
        let cluster = ["data_dir=/x", "cluster.listen=0.0.0.0:8201"];
        assert_eq!(keys(&load(&cluster).unwrap_err()), ["cluster.advertise"]);
        load(&[&cluster[..], &["cluster.advertise=[fd00::1]:8201"]].concat()).unwrap();
    }

    #[test]
    fn private_keys_are_for_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, "pem").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let (cert, open, closed) = (file("cert", 0o644), file("open", 0o640), file("closed", 0o600));
        let api = |key: &str| {
            load(&["data_dir=/x", &format!("api.tls.cert={cert}"), &format!("api.tls.key={key}")])
        };
        api(&closed).unwrap();
        let problems = api(&open).unwrap_err();
        assert_eq!((keys(&problems), problems.exit_code()), (vec!["api.tls.key".to_owned()], 64));
        assert!(problems.to_string().contains(&open), "{problems}");
        let join = |more: &str| {
            load(&["data_dir=/x", &format!("raft.retry_join=[{{leader_api_addr='https://a', {more}}}]")])
        };
        let both = |key: &str| format!("client_cert='{cert}', client_key='{key}'");
        join(&both(&closed)).unwrap();
        assert_eq!(keys(&join(&both(&open)).unwrap_err()), ["raft.retry_join.0.client_key"]);
        let alone = join(&format!("client_cert='{cert}'")).unwrap_err();
        assert_eq!(keys(&alone), ["raft.retry_join.0.client_key"]);
    }

    #[test]
    fn plain_text_off_loopback_needs_the_ugly_word() {
        let flags = ["data_dir=/x", "api.listen=192.0.2.1:8200"];
        assert_eq!(keys(&load(&flags).unwrap_err()), ["api.tls.cert"]);
        load(&[&flags[..], &["api.i_accept_plaintext=true"]].concat()).unwrap();
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, [7u8; 32]).unwrap();
        let flags = [
            "data_dir=/x".to_owned(),
            "seal.type=keyfile".into(),
            format!("seal.keyfile={}", path.display()),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let problems = load(&flags).unwrap_err();
        assert_eq!(keys(&problems), ["seal.keyfile"]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        load(&flags).unwrap();
        std::fs::write(&path, [7u8; 31]).unwrap();
        assert!(load(&flags).unwrap_err().to_string().contains("31 bytes"));
    }

    #[test]
    fn addresses_are_not_split_at_the_first_colon() {
        for good in ["a:1", "10.0.0.1:8201", "[::1]:8201", "hub-1.example:65535"] {
            assert!(is_host_port(good), "{good}");
        }
        for bad in ["", "a", ":1", "::1:8201", "a:0", "a:70000", "[::1]", "http://a:1", "[a]:1"] {
            assert!(!is_host_port(bad), "{bad}");
        }
        for good in ["http://a", "https://a:8200/", "https://[::1]:8200"] {
            assert!(is_url(good), "{good}");
        }
        for bad in ["a:8200", "ftp://a", "https://a/b", "https://", "https://a?x=1"] {
            assert!(!is_url(bad), "{bad}");
        }
    }

    #[test]
    fn the_environment_names_of_the_worker_count() {
        let load = |vars: &[(&str, &str)]| {
            loader().environment(vars.iter().copied()).set("data_dir", "/x").load::<HubConfig>().unwrap()
        };
        assert_eq!(load(&[("BAO_LEASE_REVOCATION_WORKERS", "7")]).lease.revoke_workers, 7);
        let both = [("BAO_LEASE_REVOCATION_WORKERS", "7"), ("HOLDFAST_LEASE_REVOCATION_WORKERS", "9")];
        assert_eq!(load(&both).lease.revoke_workers, 9);
    }
}
