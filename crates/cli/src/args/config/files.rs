//! The flags of those commands of `config` that need no server: checking files, asking the policy, making tokens.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// A TOML file, or a directory of them.
    #[arg(long, value_name = "FILE_OR_DIR")]
    pub config: PathBuf,
    /// Ask each upstream once for each object, and print how it went; never a value.
    #[arg(long)]
    pub online: bool,
    /// Print how many calls a minute go to each upstream, and whether the drain grace suits the balancer.
    #[arg(long)]
    pub explain_load: bool,
    /// How many replicas run with it, for --explain-load.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub replicas: u32,
    /// How often the balancer probes a replica, for --explain-load.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub probe: Duration,
    /// After how many failed probes the balancer takes a replica out, for --explain-load.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threshold: u32,
}

#[derive(Debug, Subcommand)]
pub enum ConfigPolicy {
    /// Say whether a caller may do something to a name, and which rule says so. Exit code 0 allowed, 1 denied, 64 wrong
    /// configuration.
    #[command(after_help = "Examples:\n  \
        holdfast config policy test -config=/etc/holdfast/config.toml -subject=svc-orders orders/limits\n  \
        holdfast config policy test -config=/etc/holdfast -subject=ann -group=operators -verb=status")]
    Test(PolicyTestArgs),
}

#[derive(Args, Debug)]
pub struct PolicyTestArgs {
    /// A TOML file, or a directory of them.
    #[arg(long, value_name = "FILE_OR_DIR")]
    pub config: PathBuf,
    /// Who asks.
    #[arg(long)]
    pub subject: String,
    /// A group of who asks; may be given several times.
    #[arg(long)]
    pub group: Vec<String>,
    /// What is to be done.
    #[arg(long, value_enum, default_value_t = PolicyVerb::Read)]
    pub verb: PolicyVerb,
    /// The name of a binding, which need not exist; status and metrics have none.
    #[arg(default_value = "", hide_default_value = true)]
    pub name: String,
}

/// What a caller does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum PolicyVerb {
    /// Reads values.
    Read,
    /// Subscribes to values.
    Watch,
    /// Reads the state of a replica.
    Status,
    /// Reads the metrics.
    Metrics,
}

#[derive(Debug, Subcommand)]
pub enum ConfigToken {
    /// Make a token: it is printed once, with the entry for the token file, which holds no more than its hash.
    #[command(after_help = "Example:\n  holdfast config token new -subject=svc-orders -group=apps -ttl=90d")]
    New(TokenNewArgs),
}

#[derive(Args, Debug)]
pub struct TokenNewArgs {
    /// Who it makes its bearer.
    #[arg(long)]
    pub subject: String,
    /// A group of its bearer; may be given several times.
    #[arg(long)]
    pub group: Vec<String>,
    /// How long it lasts; for ever unless given.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub ttl: Option<Duration>,
}
