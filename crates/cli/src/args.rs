//! Every command, flag and example, in one definition from which help, completions and man pages are made.

pub mod config;
mod demo;
mod kv;
mod operator;
pub mod relay;
mod spoke;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use secrecy::SecretString;

pub use demo::{Demo, FailoverArgs};
pub use kv::{Kv, KvMetadata};
pub use operator::{InitArgs, Operator, Raft, Snapshot, UnsealArgs};
pub use spoke::{RenewArgs, RunArgs, SpokeArgs};

const EXIT_CODES: &str = "Exit codes: 0 done · 1 wrong use or local error · 2 the server refused or did not answer · \
64 wrong configuration of a daemon · 70 a daemon failed";

/// Holdfast: an access layer for databases and services that survives the loss of any process, node or link.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Print JSON for machines instead of tables for people.
    #[arg(long, global = true)]
    pub json: bool,
    /// URL of a node; several separated by commas. Else HOLDFAST_ADDR, BAO_ADDR or VAULT_ADDR, else
    /// http://127.0.0.1:8200.
    #[arg(long, visible_alias = "addr", global = true, value_name = "URL")]
    pub address: Option<String>,
    /// PEM file with the authorities to trust. Else HOLDFAST_CACERT, BAO_CACERT or VAULT_CACERT.
    #[arg(long, global = true, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// A file that holds the token, before HOLDFAST_TOKEN, BAO_TOKEN, VAULT_TOKEN and the token files. The token itself is no
    /// flag: arguments are for everybody on the machine to see.
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate to present. Else HOLDFAST_CLIENT_CERT, BAO_CLIENT_CERT or VAULT_CLIENT_CERT.
    #[arg(long, global = true, value_name = "FILE")]
    pub client_cert: Option<PathBuf>,
    /// PEM file with the key of that certificate. Else HOLDFAST_CLIENT_KEY, BAO_CLIENT_KEY or VAULT_CLIENT_KEY.
    #[arg(long, global = true, value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// Trust any certificate. For experiments only.
    #[arg(long, global = true)]
    pub tls_skip_verify: bool,
    /// Ask for the answer to be wrapped, with this life.
    #[arg(long, global = true, value_name = "TTL")]
    pub wrap_ttl: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run hub nodes on loopback from embedded defaults, to try things out. Not for production.
    #[command(after_help = "Examples:\n  holdfast dev\n  holdfast dev --nodes 1 --root-token root\n  \
        HOLDFAST_DEV_POSTGRES=postgresql://postgres:PASSWORD@127.0.0.1:5432/postgres holdfast dev --spokes 2")]
    Dev(DevArgs),
    /// Show on a real platform what this program promises.
    #[command(
        subcommand,
        after_help = "Example:\n  HOLDFAST_DEV_POSTGRES=postgresql://postgres:PASSWORD@127.0.0.1:5432/postgres \
        holdfast demo failover"
    )]
    Demo(Demo),
    /// Run a daemon of one role.
    #[command(after_help = "Example:\n  holdfast server --role hub --config /etc/holdfast/hub.toml")]
    Server(ServerArgs),
    /// Operate a cluster: init, unseal, step-down, membership, backups.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast operator init\n  holdfast operator unseal\n  holdfast operator raft list-peers"
    )]
    Operator(Operator),
    /// Show whether a node is initialised, sealed and active. Exit code 0 unsealed, 2 sealed, 1 error.
    #[command(after_help = "Example:\n  holdfast status")]
    Status,
    /// Log in and keep the token in ~/.holdfast-token.
    #[command(
        after_help = "Examples:\n  holdfast login\n  holdfast login hvs.CAESIJ5u\n  holdfast login -method=userpass username=ann password=-\n  \
        holdfast login -method=approle role_id=… secret_id=@secret-id.txt"
    )]
    Login(LoginArgs),
    /// Read a path.
    #[command(
        after_help = "Examples:\n  holdfast read database/creds/app\n  holdfast read -field=password database/creds/app"
    )]
    Read(ReadArgs),
    /// Write fields to a path.
    #[command(
        after_help = "Examples:\n  holdfast write database/roles/app db_name=pg default_ttl=1h creation_statements=@create.sql\n  \
        holdfast write sys/policies/acl/app policy=@app.hcl\n  echo '{\"a\": 1}' | holdfast write kv/x -"
    )]
    Write(WriteArgs),
    /// Change fields at a path, keeping the others.
    #[command(after_help = "Example:\n  holdfast patch secret/data/app note=rotated")]
    Patch(WriteArgs),
    /// List the names below a path.
    #[command(after_help = "Examples:\n  holdfast list sys/policies/acl\n  holdfast list database/roles")]
    List(PathArgs),
    /// Delete a path.
    #[command(after_help = "Example:\n  holdfast delete database/roles/app")]
    Delete(WriteArgs),
    /// Work with versioned secrets.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast kv put secret/app user=app password=@pw.txt\n  holdfast kv get secret/app"
    )]
    Kv(Kv),
    /// Look up, renew and revoke leases.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast lease list database/creds/app\n  holdfast lease revoke -prefix database/creds/app"
    )]
    Lease(Lease),
    /// Work with policies.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast policy write app app.hcl\n  holdfast policy list"
    )]
    Policy(Policy),
    /// Enable, list, tune and disable secrets engines.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast secrets enable -path=secret -version=2 kv\n  holdfast secrets list"
    )]
    Secrets(Mount),
    /// Enable, list, tune and disable login methods.
    #[command(subcommand, after_help = "Examples:\n  holdfast auth enable userpass\n  holdfast auth list")]
    Auth(Mount),
    /// Enable, list and disable audit devices.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast audit enable file file_path=/var/log/holdfast/audit.log\n  holdfast audit list"
    )]
    Audit(Audit),
    /// Work with tokens.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast token create -policy=app -ttl=1h\n  holdfast token lookup"
    )]
    Token(Token),
    /// Named values from config servers, and the care of these.
    #[command(subcommand)]
    Config(config::Config),
    /// Databases in networks that the hub cannot reach: trust, enrolment, and the spoke itself.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast relay init -hub-endpoint=hub.example:50053\n  holdfast relay list"
    )]
    Relay(relay::Relay),
    /// Fetch a wrapped answer, once.
    #[command(after_help = "Example:\n  holdfast unwrap hvs.CAESIJ5u")]
    Unwrap(UnwrapArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  holdfast completions bash > /etc/bash_completion.d/holdfast")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages for all commands into a directory.
    #[command(after_help = "Example:\n  holdfast man /usr/local/share/man/man1")]
    Man {
        /// The directory; made when absent.
        dir: PathBuf,
    },
}

/// The roles that this build runs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Role {
    /// Issues short-lived database credentials.
    Hub,
    /// Serves named values of other backends to many consumers.
    Config,
}

#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The role.
    #[arg(long)]
    pub role: Role,
    /// A TOML or YAML file, or a directory of them.
    #[arg(long, value_name = "FILE_OR_DIR")]
    pub config: PathBuf,
    /// Sets one key of the role, such as `limits.forward_hold=1s`; wins over file and environment.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// What is logged, such as `info,holdfast_hub=debug`. HOLDFAST_LOG wins over it.
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// The name of this replica in its own records; of the config role. The host name unless given.
    #[arg(long, value_name = "NAME")]
    pub node_id: Option<String>,
}

#[derive(Args, Debug)]
pub struct DevArgs {
    /// How many hub nodes, 1 to 5.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub nodes: u8,
    /// The root token; a random one unless given.
    #[arg(long, value_name = "ID")]
    pub root_token: Option<SecretString>,
    /// Keep data here and keep it at exit; a temporary directory unless given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The API port of the first node; the others follow. 0 picks free ones.
    #[arg(long, default_value_t = 8200)]
    pub port: u16,
    /// How many spokes run beside the database, up to 4. One unless given, or none without a database.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=4))]
    pub spokes: Option<u8>,
    /// URL of a PostgreSQL superuser; configures the role database/creds/app, which goes through the first spoke, and
    /// database/creds/direct, which does not.
    #[arg(long, value_name = "URL", env = "HOLDFAST_DEV_POSTGRES", hide_env_values = true)]
    pub postgres: Option<SecretString>,
    /// The level of the nodes' logs, which go to a file each.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log: String,
}

impl DevArgs {
    /// How many spokes are asked for.
    pub fn spokes(&self) -> u8 {
        self.spokes.unwrap_or_else(|| u8::from(self.postgres.is_some()))
    }
}

#[derive(Args, Debug)]
pub struct LoginArgs {
    /// The login method: token, userpass or approle.
    #[arg(long, default_value = "token")]
    pub method: String,
    /// Where the method is mounted, when not under its own name.
    #[arg(long)]
    pub path: Option<String>,
    /// Do not keep the token; only print it.
    #[arg(long)]
    pub no_store: bool,
    /// The token, or key=value fields. `-` reads a token from standard input. At a terminal what is missing is asked for,
    /// and secrets are not shown.
    pub fields: Vec<String>,
}

#[derive(Args, Debug)]
pub struct ReadArgs {
    /// Print only this field, bare.
    #[arg(long)]
    pub field: Option<String>,
    /// The path.
    pub path: String,
    /// Query parameters as key=value.
    pub fields: Vec<String>,
}

#[derive(Args, Debug)]
pub struct WriteArgs {
    /// Print only this field of the answer, bare.
    #[arg(long)]
    pub field: Option<String>,
    /// Send no fields at all.
    #[arg(long, short = 'f')]
    pub force: bool,
    /// The path.
    pub path: String,
    /// key=value, key=@file or key=- (standard input; at a terminal one line that is not shown), both without one line
    /// end; @file or - (a JSON object).
    pub fields: Vec<String>,
}

#[derive(Args, Debug)]
pub struct PathArgs {
    /// The path.
    pub path: String,
}

#[derive(Debug, Subcommand)]
pub enum Lease {
    /// Show a lease.
    #[command(after_help = "Example:\n  holdfast lease lookup database/creds/app/2f6a614c")]
    Lookup {
        /// The lease id.
        id: String,
    },
    /// Renew a lease.
    #[command(after_help = "Example:\n  holdfast lease renew -increment=1h database/creds/app/2f6a614c")]
    Renew {
        /// How much longer, from now.
        #[arg(long)]
        increment: Option<String>,
        /// The lease id.
        id: String,
    },
    /// Revoke a lease, or with -prefix everything below a path.
    #[command(
        after_help = "Examples:\n  holdfast lease revoke -sync database/creds/app/2f6a614c\n  holdfast lease revoke -prefix database/creds/app"
    )]
    Revoke {
        /// The argument is a prefix.
        #[arg(long)]
        prefix: bool,
        /// Drop leases even when the database refuses; needs -prefix.
        #[arg(long, requires = "prefix")]
        force: bool,
        /// Wait until it is done.
        #[arg(long)]
        sync: bool,
        /// The lease id or prefix.
        id: String,
    },
    /// List lease ids below a prefix.
    #[command(after_help = "Example:\n  holdfast lease list database/creds/app")]
    List {
        /// The prefix.
        prefix: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Show a policy.
    #[command(after_help = "Example:\n  holdfast policy read app")]
    Read {
        /// Its name.
        name: String,
    },
    /// Write a policy from a file; - reads standard input.
    #[command(after_help = "Example:\n  holdfast policy write app app.hcl")]
    Write {
        /// Its name.
        name: String,
        /// The file.
        file: String,
    },
    /// List policies.
    #[command(after_help = "Example:\n  holdfast policy list")]
    List,
    /// Delete a policy.
    #[command(after_help = "Example:\n  holdfast policy delete app")]
    Delete {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Mount {
    /// Mount a type.
    #[command(
        after_help = "Examples:\n  holdfast secrets enable -path=secret -version=2 kv\n  holdfast auth enable userpass"
    )]
    Enable {
        /// Where, when not under its own name.
        #[arg(long)]
        path: Option<String>,
        /// For people.
        #[arg(long)]
        description: Option<String>,
        /// For kv: 1 or 2.
        #[arg(long)]
        version: Option<String>,
        /// Default lease time.
        #[arg(long)]
        default_lease_ttl: Option<String>,
        /// Longest lease time.
        #[arg(long)]
        max_lease_ttl: Option<String>,
        /// The type.
        kind: String,
    },
    /// Remove a mount with its leases and data.
    #[command(after_help = "Examples:\n  holdfast secrets disable secret\n  holdfast auth disable userpass")]
    Disable {
        /// Where it is mounted.
        path: String,
    },
    /// List mounts.
    #[command(after_help = "Examples:\n  holdfast secrets list\n  holdfast auth list")]
    List,
    /// Change a mount's lease times or description.
    #[command(
        after_help = "Examples:\n  holdfast secrets tune -max-lease-ttl=2h database\n  holdfast auth tune -default-lease-ttl=1h userpass"
    )]
    Tune {
        /// Default lease time.
        #[arg(long)]
        default_lease_ttl: Option<String>,
        /// Longest lease time.
        #[arg(long)]
        max_lease_ttl: Option<String>,
        /// For people.
        #[arg(long)]
        description: Option<String>,
        /// Where it is mounted.
        path: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Audit {
    /// Enable a device.
    #[command(after_help = "Example:\n  holdfast audit enable file file_path=/var/log/holdfast/audit.log")]
    Enable {
        /// Its name, when not that of its type.
        #[arg(long)]
        path: Option<String>,
        /// The type: file.
        kind: String,
        /// Options as key=value.
        fields: Vec<String>,
    },
    /// Disable a device.
    #[command(after_help = "Example:\n  holdfast audit disable file")]
    Disable {
        /// Its name.
        path: String,
    },
    /// List devices.
    #[command(after_help = "Example:\n  holdfast audit list")]
    List,
}

#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token.
    #[command(after_help = "Example:\n  holdfast token create -policy=app -ttl=1h")]
    Create {
        /// A policy; may be given several times.
        #[arg(long)]
        policy: Vec<String>,
        /// How long it lives without renewal.
        #[arg(long)]
        ttl: Option<String>,
        /// How long it lives at most.
        #[arg(long)]
        explicit_max_ttl: Option<String>,
        /// Makes it periodic.
        #[arg(long)]
        period: Option<String>,
        /// How often it can be used; 0 for any number.
        #[arg(long)]
        use_limit: Option<i64>,
        /// For people.
        #[arg(long)]
        display_name: Option<String>,
        /// A token role.
        #[arg(long)]
        role: Option<String>,
        /// service or batch.
        #[arg(long = "type")]
        kind: Option<String>,
        /// Without a parent.
        #[arg(long)]
        orphan: bool,
    },
    /// Show a token; the current one unless given.
    #[command(after_help = "Examples:\n  holdfast token lookup\n  holdfast token lookup -accessor 8609694a")]
    Lookup {
        /// The argument is an accessor.
        #[arg(long)]
        accessor: bool,
        /// The token or accessor.
        token: Option<String>,
    },
    /// Renew a token; the current one unless given.
    #[command(after_help = "Example:\n  holdfast token renew -increment=1h")]
    Renew {
        /// How much longer, from now.
        #[arg(long)]
        increment: Option<String>,
        /// The token.
        token: Option<String>,
    },
    /// Revoke a token with its children and leases.
    #[command(
        after_help = "Examples:\n  holdfast token revoke -accessor 8609694a\n  holdfast token revoke -self"
    )]
    Revoke {
        /// The argument is an accessor.
        #[arg(long)]
        accessor: bool,
        /// Revoke the token of this session.
        #[arg(long = "self")]
        own: bool,
        /// The token or accessor.
        token: Option<String>,
    },
}

#[derive(Args, Debug)]
pub struct UnwrapArgs {
    /// Print only this field, bare.
    #[arg(long)]
    pub field: Option<String>,
    /// The wrapping token; the session's own unless given.
    pub token: Option<String>,
}

/// Lets long flags be written with one dash, as users of this kind of tool are used to.
pub fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    args.into_iter()
        .map(|arg| {
            literal |= arg == OsStr::new("--");
            match arg.to_str() {
                Some(text) if !literal && has_one_dash(text) => OsString::from(format!("-{text}")),
                _ => arg,
            }
        })
        .collect()
}

fn has_one_dash(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next() == Some('-')
        && chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.next().is_some()
}

#[cfg(test)]
mod tests;
