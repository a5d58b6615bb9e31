//! The flags of `config`: reading from config servers, and looking after them.

mod files;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

pub use self::files::{CheckArgs, ConfigPolicy, ConfigToken, PolicyTestArgs, PolicyVerb, TokenNewArgs};

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Print values by name. Exit code 0 all there, 1 one is absent, 69 no replica could answer, 77 refused.
    #[command(after_help = "Examples:\n  holdfast config get db-password -endpoint=https://config-a:8443 \
        -endpoint=https://config-b:8443 -token-file=token\n  \
        holdfast config get db-password -raw -endpoint=unix:///run/holdfast/config.sock\n\n\
        A value that is marked sensitive is hidden on a terminal unless --show is given.")]
    Get(GetArgs),
    /// Print each change of some names, with the replica that told it, until interrupted. Exit codes as of get.
    #[command(
        after_help = "Example:\n  HOLDFAST_CONFIG_ENDPOINTS=https://config-a:8443,https://config-b:8443 \
        holdfast config watch db-password orders/limits"
    )]
    Watch(WatchArgs),
    /// Compare replicas: whether all are ready and serve the same configuration, and each difference. Exit code 0 alike
    /// and ready, 1 not, 69 no replica could answer, 77 refused.
    #[command(after_help = "Example:\n  holdfast config fleet -endpoint=https://config-a:8443 \
        -endpoint=https://config-b:8443 -token-file=operator-token")]
    Fleet(FleetArgs),
    /// Check a configuration of a config server: all problems at once. Exit code 0 good, 64 not, 1 an upstream did not give
    /// what a binding needs.
    #[command(
        after_help = "Examples:\n  holdfast config check -config=/etc/holdfast/config.toml -online\n  \
        holdfast config check -config=/etc/holdfast -explain-load -replicas=3 -probe=5s -threshold=2"
    )]
    Check(CheckArgs),
    /// Ask the policy of a configuration, without a server.
    #[command(subcommand)]
    Policy(ConfigPolicy),
    /// Make credentials for callers of a config server.
    #[command(subcommand)]
    Token(ConfigToken),
}

/// Which config servers a command talks to. The token comes from `--token-file`, else from the file that
/// HOLDFAST_CONFIG_TOKEN_FILE names.
#[derive(Args, Clone, Debug)]
pub struct Replicas {
    /// A replica: https://HOST:PORT[/PREFIX], unix:///PATH, or http:// with --insecure-no-tls. May be given several times.
    #[arg(long = "endpoint", value_name = "URL", env = "HOLDFAST_CONFIG_ENDPOINTS", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// PEM file with the authorities to trust instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// PEM file with the certificate to present.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// PEM file with the key of that certificate.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Allow http:// endpoints, over which everybody on the way can read.
    #[arg(long)]
    pub insecure_no_tls: bool,
    /// How long to wait for an answer over all replicas.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

#[derive(Args, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    pub replicas: Replicas,
    /// Print the bytes of the one name exactly as they are, and nothing else.
    #[arg(long)]
    pub raw: bool,
    /// Show sensitive values on a terminal too.
    #[arg(long)]
    pub show: bool,
    /// The names.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

#[derive(Args, Debug)]
pub struct WatchArgs {
    #[command(flatten)]
    pub replicas: Replicas,
    /// Show sensitive values on a terminal too.
    #[arg(long)]
    pub show: bool,
    /// The names.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

#[derive(Args, Debug)]
pub struct FleetArgs {
    #[command(flatten)]
    pub replicas: Replicas,
    /// Go on, and print again whenever something other than an age changes, until interrupted.
    #[arg(long)]
    pub watch: bool,
}
