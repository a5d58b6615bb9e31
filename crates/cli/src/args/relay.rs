//! The flags of `relay`: trust and enrolment of spokes, and the spoke itself.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use secrecy::SecretString;

use super::{RenewArgs, RunArgs};

/// The default mount.
const MOUNT: &str = "relay";

#[derive(Debug, Subcommand)]
pub enum Relay {
    /// Set the relay up: mount, certificate authority, a bootstrap token; prints the command with which a spoke joins.
    #[command(after_help = "Examples:\n  holdfast relay init -hub-endpoint=hub.example:50053\n  \
        holdfast relay init -allowed-spoke-name=spoke-2 -print-join-only")]
    Init(RelayInit),
    /// Join a hub as a spoke: checks who it is, gets a certificate, writes the credentials.
    #[command(after_help = "Example:\n  HOLDFAST_ADDR=https://hub.example:8200 holdfast relay join \
        -hub-cert-hash=sha256:… -token=- -spoke-name=spoke-1 < token.txt")]
    Join(RelayJoin),
    /// Run the daemon of a spoke, beside the databases. It dials the hub and never listens.
    #[command(after_help = "Examples:\n  holdfast relay run -server=hub.example:50053\n  \
        holdfast relay run -server=hub-1:50053,hub-2:50053,hub-3:50053 -credentials-dir=/var/lib/spoke")]
    Run(RunArgs),
    /// Renew the certificate of a spoke once, with a new key.
    #[command(after_help = "Example:\n  holdfast relay renew -server=hub.example:50053 -ttl=720h")]
    Renew(RenewArgs),
    /// The spokes of the whole cluster, and the node that holds the stream of each.
    #[command(after_help = "Example:\n  holdfast relay list -format=json")]
    List {
        #[command(flatten)]
        place: Place,
        /// How the list is printed.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Bootstrap tokens.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast relay token create -allowed-spoke-name=spoke-1 -ttl=1h -max-uses=1\n  \
            holdfast relay token list"
    )]
    Token(RelayToken),
    /// The certificate authority of the spokes.
    #[command(subcommand, after_help = "Examples:\n  holdfast relay ca status\n  holdfast relay ca rotate")]
    Ca(RelayCa),
    /// Lock a spoke out: it no longer enrols, renews or connects, and its stream ends.
    #[command(after_help = "Example:\n  holdfast relay deny spoke-1 -reason=\"machine lost\"")]
    Deny {
        #[command(flatten)]
        place: Place,
        /// Why, for people.
        #[arg(long, default_value = "")]
        reason: String,
        /// The spoke.
        name: String,
    },
    /// Let a spoke in again.
    #[command(after_help = "Example:\n  holdfast relay allow spoke-1")]
    Allow {
        #[command(flatten)]
        place: Place,
        /// The spoke.
        name: String,
    },
}

/// Where the relay is mounted.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Where the relay is mounted.
    #[arg(long, default_value = MOUNT)]
    pub mount: String,
}

impl Place {
    /// A path inside the mount.
    pub fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.mount.trim_matches('/'))
    }
}

/// Further names in the hub's certificate.
#[derive(Args, Clone, Debug)]
pub struct Sans {
    /// Further DNS names for the hub's certificate, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub hub_dns_sans: Vec<String>,
    /// Further IP addresses for the hub's certificate, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub hub_ip_sans: Vec<String>,
}

/// How a table is printed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

#[derive(Args, Debug)]
pub struct RelayInit {
    #[command(flatten)]
    pub place: Place,
    /// host:port that spokes dial; needed for the first time.
    #[arg(long)]
    pub hub_endpoint: Option<String>,
    #[command(flatten)]
    pub sans: Sans,
    /// The one name that the token is good for; any unless given.
    #[arg(long, default_value = "")]
    pub allowed_spoke_name: String,
    /// How long the token is good; negative for ever.
    #[arg(long, default_value = "24h", allow_hyphen_values = true)]
    pub token_ttl: String,
    /// What the token is for, for people.
    #[arg(long, default_value = "")]
    pub description: String,
    /// How many spokes the token lets in; 0 for any number.
    #[arg(long, default_value_t = 0)]
    pub max_uses: u64,
    /// Replace a certificate authority that is there: every spoke must join again.
    #[arg(long)]
    pub force: bool,
    /// Print the command with which a spoke joins, and nothing else.
    #[arg(long)]
    pub print_join_only: bool,
}

#[derive(Args, Debug)]
pub struct RelayJoin {
    #[command(flatten)]
    pub place: Place,
    /// The bootstrap token; `-` reads it from standard input.
    #[arg(long, env = "HOLDFAST_RELAY_TOKEN", hide_env_values = true)]
    pub token: SecretString,
    /// host:port that the spoke will dial, several with commas, when it is not what the hub says; or the URL of the
    /// hub's API.
    #[arg(long)]
    pub hub_addr: Option<String>,
    /// The pin of the hub's certificate authority: sha256:…
    #[arg(long)]
    pub hub_cert_hash: Option<String>,
    /// The name of the spoke.
    #[arg(long)]
    pub spoke_name: String,
    /// Where key.pem, cert.pem and ca.pem go.
    #[arg(long, default_value = "/etc/holdfast/spoke", value_name = "DIR")]
    pub credentials_dir: PathBuf,
    /// Replace credentials that are there.
    #[arg(long)]
    pub force: bool,
    /// Trust whoever has the token, without a pin. For experiments only.
    #[arg(long)]
    pub skip_cert_hash_check: bool,
}

#[derive(Debug, Subcommand)]
pub enum RelayToken {
    /// Make a token; it is shown once.
    #[command(
        after_help = "Example:\n  holdfast relay token create -allowed-spoke-name=spoke-1 -ttl=1h -max-uses=1"
    )]
    Create {
        #[command(flatten)]
        place: Place,
        /// How long it is good; negative for ever.
        #[arg(long, default_value = "24h", allow_hyphen_values = true)]
        ttl: String,
        /// The one name that it is good for; any unless given.
        #[arg(long, default_value = "")]
        allowed_spoke_name: String,
        /// What it is for, for people.
        #[arg(long, default_value = "")]
        description: String,
        /// How many spokes it lets in; 0 for any number.
        #[arg(long, default_value_t = 0)]
        max_uses: u64,
    },
    /// List tokens, without their secrets.
    #[command(after_help = "Example:\n  holdfast relay token list -json")]
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a token.
    #[command(after_help = "Example:\n  holdfast relay token revoke 3f9a1c07")]
    Revoke {
        #[command(flatten)]
        place: Place,
        /// Its id, or the whole token.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum RelayCa {
    /// Show authority and hub certificate.
    #[command(after_help = "Example:\n  holdfast relay ca status -format=json")]
    Status {
        #[command(flatten)]
        place: Place,
        /// How it is printed.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Give the hub a new certificate; with -full replace the authority too.
    #[command(after_help = "Examples:\n  holdfast relay ca rotate\n  holdfast relay ca rotate -full -yes")]
    Rotate {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        sans: Sans,
        /// Replace the authority too: every spoke must join again.
        #[arg(long)]
        full: bool,
        /// Really replace it.
        #[arg(long)]
        yes: bool,
        /// How it is printed.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}
