//! The configuration of the role: what the files may say. Rules among the keys stand with what they are about.
//!
//! Keys stand at the top of the file, or under `server.config.`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use holdfast_ops::config::TEXT_OR_TABLE;
use holdfast_ops::{ByteSize, Duration};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

pub use crate::binding::scheme::Scheme;

/// Everything that can be set. Durations without a default of their own are 0 = none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigSettings {
    /// The name of the replica in its own records; the host name. Needs a restart.
    pub node_id: Option<String>,
    /// How long the replica serves on after it shows itself as draining; 0 s, at most 1 h.
    pub drain_grace: Duration,
    /// Files with more bindings, relative to the file that names them.
    pub bind_files: Vec<PathBuf>,
    /// What each binding gets unless it says otherwise.
    pub defaults: BindingDefaults,
    /// Name to reference.
    pub bindings: BTreeMap<String, BindingEntry>,
    /// Backend connections.
    pub upstream: BTreeMap<String, UpstreamSettings>,
    /// Allows `holdfast:` references.
    pub allow_chaining: bool,
    /// Allows a server without bindings.
    pub allow_empty: bool,
    /// Who callers are.
    pub auth: Option<AuthSettings>,
    /// What callers may do.
    pub policy: Option<PolicySettings>,
    /// Where the server listens. Needs a restart.
    pub listener: Vec<ListenerSettings>,
    /// Bounds.
    pub limits: LimitSettings,
    /// Streams.
    pub watch: WatchSettings,
    /// When the replica is ready.
    pub readiness: ReadinessSettings,
    /// The last-known-good file.
    pub lkg: LkgSettings,
    /// What the replicas of one fleet share.
    pub fleet: FleetSettings,
    /// Audit.
    pub audit: AuditSettings,
    /// An extra listener for metrics without authentication.
    pub metrics: ExtraListener,
    /// An extra listener for the two probes only.
    pub probe: ExtraListener,
    /// Reading the configuration again.
    pub reload: ReloadSettings,
}

/// `bindings.NAME`: a reference, or a table.
#[derive(Clone, Debug)]
pub enum BindingEntry {
    /// The reference alone.
    Reference(RefText),
    /// With options.
    Table(Box<BindingTable>),
}

impl<'de> Deserialize<'de> for BindingEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = BindingEntry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a ref, or a table with one")
            }
            fn visit_str<E>(self, text: &str) -> Result<BindingEntry, E> {
                Ok(BindingEntry::Reference(RefText(text.to_owned())))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BindingEntry, A::Error> {
                let table = BindingTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(BindingEntry::Table(Box::new(table)))
            }
        }
        deserializer.deserialize_struct(TEXT_OR_TABLE, &BindingTable::KEYS, TextOrTable)
    }
}

/// A reference as it was written; [`fmt::Debug`] leaves the values of secret options out.
#[derive(Clone, Default, Deserialize, Eq, PartialEq)]
#[serde(transparent)]
pub struct RefText(pub String);

impl fmt::Debug for RefText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::binding::reference::redact(&self.0))
    }
}

/// `bindings.NAME` as a table.
#[derive(Clone, Debug, Deserialize)]
pub struct BindingTable {
    /// The reference.
    #[serde(rename = "ref")]
    pub reference: RefText,
    /// Time between two readings; 30 s (1 s-24 h).
    pub poll: Option<Duration>,
    /// The longest attempt; 10 s (100 ms-120 s).
    pub timeout: Option<Duration>,
    /// How old a value may get while the upstream fails; 0 = any age, at most 30 d.
    pub max_stale: Option<Duration>,
    /// What absence means.
    pub on_absent: Option<OnAbsent>,
    /// Whether the value is a secret, whatever the provider says.
    pub sensitive: Option<bool>,
    /// Whether it may be kept in the last-known-good file.
    pub persist: Option<bool>,
    /// The largest value; 1 MiB (1 KiB-16 MiB).
    pub max_value_bytes: Option<ByteSize>,
}

impl BindingTable {
    const KEYS: [&'static str; 8] =
        ["ref", "poll", "timeout", "max_stale", "on_absent", "sensitive", "persist", "max_value_bytes"];
}

/// `defaults.`: the same keys for all bindings.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BindingDefaults {
    /// As in [`BindingTable`].
    pub poll: Option<Duration>,
    /// As in [`BindingTable`].
    pub timeout: Option<Duration>,
    /// As in [`BindingTable`].
    pub max_stale: Option<Duration>,
    /// As in [`BindingTable`].
    pub on_absent: Option<OnAbsent>,
    /// As in [`BindingTable`].
    pub sensitive: Option<bool>,
    /// As in [`BindingTable`].
    pub persist: Option<bool>,
    /// As in [`BindingTable`].
    pub max_value_bytes: Option<ByteSize>,
}

/// What a definite absence does to a value that is held.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnAbsent {
    /// It is served on, as stale.
    #[default]
    Keep,
    /// It is dropped, once a second attempt confirmed it.
    Drop,
}

/// `upstream.NAME`. Which keys apply depends on `type`; a key of another type is an error.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct UpstreamSettings {
    /// `file`, `env`, `exec`, `http`, `vault`, `hub`, `kube`, `etcd`, `consul`, `aws`, `postgres`, `redis`, `holdfast` or
    /// `test`; mandatory.
    #[serde(rename = "type")]
    pub kind: String,
    /// Calls at once; 16 (1-256).
    pub concurrency: Option<u32>,
    /// How often a watched object is confirmed; 60 s (5 s-1 h).
    pub confirm: Option<Duration>,
    /// After how much silence a watch connection is rebuilt; 45 s (5 s-10 m).
    pub watch_idle: Option<Duration>,
    /// URLs or `host:port` (vault, hub, etcd, consul, redis).
    pub addrs: Vec<String>,
    /// Namespace header (vault, hub).
    pub namespace: Option<String>,
    /// PEM authorities to trust instead of the system's (vault, hub).
    pub ca_file: Option<PathBuf>,
    /// A file with a token (vault, hub, consul, holdfast).
    pub token_file: Option<PathBuf>,
    /// Login by approle (vault, hub).
    pub approle: Option<AppRoleSettings>,
    /// Login by a Kubernetes service account (vault, hub).
    pub kubernetes: Option<KubernetesLogin>,
    /// Login by a client certificate (vault, hub).
    pub cert: Option<CertLogin>,
    /// Whether leases are revoked when the server ends (vault, hub).
    pub revoke_on_exit: bool,
    /// What paths are appended to (http).
    pub base_url: Option<String>,
    /// More headers (http).
    pub headers: BTreeMap<String, String>,
    /// A file with a bearer token (http).
    pub bearer_file: Option<PathBuf>,
    /// A file with `user:password` (http).
    pub basic_file: Option<PathBuf>,
    /// Whether its values are secrets (http, postgres).
    pub sensitive: bool,
    /// Allows plain text to an address that is not loopback (http).
    pub allow_insecure: bool,
    /// The user (etcd, redis).
    pub user: Option<String>,
    /// A file with the password (etcd, redis).
    pub password_file: Option<PathBuf>,
    /// TLS towards the upstream (etcd, consul, redis, holdfast).
    pub tls: Option<UpstreamTls>,
    /// A file with the connection string (postgres).
    pub dsn_file: Option<PathBuf>,
    /// The channel that tells of changes; `holdfast_config` (postgres).
    pub channel: Option<String>,
    /// A kubeconfig; in-cluster unless given (kube).
    pub kubeconfig: Option<PathBuf>,
    /// Directories from which files may come; mandatory (file).
    pub roots: Vec<PathBuf>,
    /// Globs of variable names (env), or absolute paths of programs (exec); mandatory for both.
    pub allow: Vec<String>,
    /// Allows programs to run (exec).
    pub enabled: bool,
    /// Their whole environment (exec).
    pub env: BTreeMap<String, String>,
    /// Other config servers (holdfast).
    pub endpoints: Vec<String>,
    /// The control socket (test).
    pub socket: Option<PathBuf>,
}

/// `upstream.NAME.approle`
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct AppRoleSettings {
    /// The role id.
    pub role_id: String,
    /// A file with the secret id.
    pub secret_id_file: PathBuf,
    /// Where the method is mounted; `approle`.
    pub mount: Option<String>,
}

/// `upstream.NAME.kubernetes`
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct KubernetesLogin {
    /// The role.
    pub role: String,
    /// The file with the service account's token; the usual one unless given.
    pub jwt_file: Option<PathBuf>,
    /// Where the method is mounted; `kubernetes`.
    pub mount: Option<String>,
}

/// `upstream.NAME.cert`
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct CertLogin {
    /// PEM certificate.
    pub cert: PathBuf,
    /// PEM key.
    pub key: PathBuf,
}

/// `upstream.NAME.tls`
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct UpstreamTls {
    /// PEM authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// PEM certificate to present.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// `auth.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AuthSettings {
    /// `token`, `header`, `basic`, `mtls`, `peercred`, `jwt`, or `none` alone; no default.
    pub methods: Vec<String>,
    /// `any` (the first success wins) or `all`.
    pub mode: AuthMode,
    /// Tokens.
    pub token: Option<TokenSettings>,
    /// The header of `header`.
    pub header: Option<HeaderSettings>,
    /// Client certificates.
    pub mtls: MtlsSettings,
    /// Peers of Unix sockets.
    pub peercred: PeercredSettings,
    /// JSON web tokens.
    pub jwt: Option<JwtSettings>,
}

/// `auth.mode`
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// The first method that succeeds.
    #[default]
    Any,
    /// All methods must succeed.
    All,
}

/// `auth.token.`
#[derive(Clone, Debug, Deserialize)]
pub struct TokenSettings {
    /// The file with the tokens' hashes.
    pub file: PathBuf,
}

/// `auth.header.`
#[derive(Clone, Debug, Deserialize)]
pub struct HeaderSettings {
    /// Its name, such as `X-Api-Key`.
    pub name: String,
}

/// `auth.mtls.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MtlsSettings {
    /// What names the subject.
    pub subject_from: SubjectFrom,
    /// Common names that may come; with `allow_san` empty too, any verified one.
    pub allow_cn: Vec<String>,
    /// Alternative names that may come.
    pub allow_san: Vec<String>,
}

/// `auth.mtls.subject_from`
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectFrom {
    /// The common name.
    #[default]
    Cn,
    /// The first DNS name.
    DnsSan,
    /// The first URI.
    UriSan,
}

/// `auth.peercred.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PeercredSettings {
    /// User ids that may come; with `gids` empty too, any.
    pub uids: Vec<u32>,
    /// Group ids that may come.
    pub gids: Vec<u32>,
}

/// `auth.jwt.`
#[derive(Clone, Debug, Deserialize)]
pub struct JwtSettings {
    /// The file with the keys.
    pub jwks_file: PathBuf,
    /// The `iss` that must stand in it.
    pub issuer: String,
    /// The `aud` that must stand in it.
    pub audience: String,
    /// Signatures that are taken; RS256, ES256, EdDSA.
    #[serde(default)]
    pub algorithms: Vec<String>,
    /// The claim that lists groups.
    #[serde(default)]
    pub groups_claim: Option<String>,
}

/// `policy.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PolicySettings {
    /// A file with `[[rule]]`.
    pub file: Option<PathBuf>,
    /// Rules, in order.
    pub rule: Vec<RuleSettings>,
    /// Everybody may do everything.
    pub allow_all: bool,
}

/// `policy.rule`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuleSettings {
    /// Subjects; any entry suffices.
    pub subjects: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// Alternative names of the client certificate.
    pub sans: Vec<String>,
    /// User ids of the peer.
    pub uids: Vec<u32>,
    /// Group ids of the peer.
    pub gids: Vec<u32>,
    /// Applies to every caller.
    pub everyone: bool,
    /// Globs of names.
    pub names: Vec<String>,
    /// What may be done; read and watch unless given.
    pub verbs: Option<Vec<Verb>>,
    /// Whether it allows or denies.
    pub effect: RuleEffect,
    /// The date from which the rule no longer counts, RFC 3339.
    pub until: Option<String>,
}

/// What a caller does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Reads values.
    Read,
    /// Subscribes to values.
    Watch,
    /// Reads the state of the replica.
    Status,
    /// Reads the metrics.
    Metrics,
}

/// `policy.rule.effect`
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleEffect {
    /// It allows.
    #[default]
    Allow,
    /// It denies, and wins.
    Deny,
}

/// `listener`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ListenerSettings {
    /// `tcp` or `unix`.
    pub kind: String,
    /// `host:port` (tcp).
    pub addr: Option<String>,
    /// TLS files (tcp).
    pub tls: Option<ListenerTls>,
    /// Allows plain text on an address that is not loopback (tcp).
    pub insecure_no_tls: bool,
    /// The path of the socket (unix).
    pub path: Option<PathBuf>,
    /// Its mode in octal; `0600` (unix).
    pub mode: Option<String>,
    /// Its owner (unix).
    pub owner: Option<String>,
    /// Its group (unix).
    pub group: Option<String>,
    /// Takes the path over from a process that serves it (unix).
    pub takeover: bool,
}

/// `listener.tls`
#[derive(Clone, Debug, Deserialize)]
pub struct ListenerTls {
    /// PEM certificate chain.
    pub cert: PathBuf,
    /// PEM key.
    pub key: PathBuf,
    /// PEM authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether client certificates are asked for.
    #[serde(default)]
    pub client_auth: ClientAuth,
}

/// `listener.tls.client_auth`
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Not asked for.
    #[default]
    None,
    /// Asked for; a client may come without.
    Request,
    /// Mandatory.
    Require,
}

/// `limits.`; 0 = off.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct LimitSettings {
    /// Requests a second and subject; 0.
    pub requests_per_second: u32,
    /// How many may come at once; as many as a second's.
    pub burst: u32,
    /// Streams of one subject; 10000.
    pub streams_per_subject: u32,
    /// Streams in all; 20000.
    pub streams_total: u32,
    /// Connections in all; 50000.
    pub connections: u32,
    /// Names in one stream; 1000.
    pub names_per_stream: u32,
    /// Names in one batch; 10000.
    pub batch_names: u32,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            requests_per_second: 0,
            burst: 0,
            streams_per_subject: 10_000,
            streams_total: 20_000,
            connections: 50_000,
            names_per_stream: 1000,
            batch_names: 10_000,
        }
    }
}

/// `watch.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct WatchSettings {
    /// Time between two heartbeats; 15 s (1 s-60 s).
    pub heartbeat: Duration,
    /// How long a stream may take nothing while something is due; 30 s (1 s-10 m).
    pub write_stall: Duration,
    /// The longest life of a stream; 0 = none, else 1 m-24 h, spread by 20 %.
    pub max_age: Duration,
    /// How much newer the date of an unchanged value must be to be told again; 60 s (10 s-1 h).
    pub redate: Duration,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(15),
            write_stall: Duration::from_secs(30),
            max_age: Duration::default(),
            redate: Duration::from_secs(60),
        }
    }
}

/// `readiness.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ReadinessSettings {
    /// When what is still unsettled is settled as unavailable; 60 s (1 s-10 m).
    pub priming_deadline: Duration,
    /// Globs of names that must have a value.
    pub require: Vec<String>,
}

impl Default for ReadinessSettings {
    fn default() -> Self {
        Self { priming_deadline: Duration::from_secs(60), require: Vec::new() }
    }
}

/// `lkg.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct LkgSettings {
    /// Where the file is; off unless set.
    pub dir: Option<PathBuf>,
    /// A file with its key: 32 bytes, raw, hex or base64, for the owner only.
    pub key_file: Option<PathBuf>,
    /// The oldest record that is used; 24 h (1 m-30 d).
    pub max_age: Duration,
}

impl Default for LkgSettings {
    fn default() -> Self {
        Self { dir: None, key_file: None, max_age: Duration::from_secs(86_400) }
    }
}

/// `fleet.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct FleetSettings {
    /// What the replicas of one fleet have in common; `default`.
    pub id: String,
    /// A file with 32 bytes under which digests of values are made.
    pub key_file: Option<PathBuf>,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self { id: "default".to_owned(), key_file: None }
    }
}

/// `audit.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct AuditSettings {
    /// Where lines go.
    pub sink: AuditSink,
    /// The file.
    pub path: Option<PathBuf>,
    /// Whether each delivery on a stream is recorded.
    pub deliveries: bool,
    /// What happens when a line cannot be written.
    pub on_failure: OnAuditFailure,
    /// When the file is rotated; 100 MiB.
    pub max_size: ByteSize,
    /// How many rotated files stay; 5.
    pub keep: u32,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self {
            sink: AuditSink::Stdout,
            path: None,
            deliveries: false,
            on_failure: OnAuditFailure::Continue,
            max_size: ByteSize::mib(100),
            keep: 5,
        }
    }
}

/// `audit.sink`
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditSink {
    /// Standard output.
    Stdout,
    /// A file.
    File,
    /// Nowhere.
    Off,
}

/// `audit.on_failure`
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnAuditFailure {
    /// Requests go on; lost lines are counted.
    Continue,
    /// Values are refused.
    Refuse,
}

/// `metrics.` and `probe.`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ExtraListener {
    /// `host:port`; off unless set. Needs a restart.
    pub addr: Option<String>,
}

/// `reload.`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ReloadSettings {
    /// Whether the files are watched; SIGHUP works anyway.
    pub watch: bool,
    /// How long they must be quiet; 250 ms (50 ms-10 s).
    pub debounce: Duration,
}

impl Default for ReloadSettings {
    fn default() -> Self {
        Self { watch: true, debounce: Duration::from_millis(250) }
    }
}
