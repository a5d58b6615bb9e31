//! The flags of `demo`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use secrecy::SecretString;

use super::DevArgs;

#[derive(Debug, Subcommand)]
pub enum Demo {
    /// Kill the active node while logins are asked for, and print what happened when: who held which spoke, when another
    /// node was active, when each way to a login worked again, and how many logins failed.
    #[command(
        after_help = "Examples:\n  HOLDFAST_DEV_POSTGRES=postgresql://postgres:PASSWORD@127.0.0.1:5432/postgres holdfast demo failover\n  \
        holdfast demo failover -platform=/tmp/holdfast-dev-4A9ygt -json\n\n\
        Exit codes: 0 everything worked again \u{b7} 1 wrong use, or the platform could not be started \u{b7} \
        2 something did not work again within a minute"
    )]
    Failover(FailoverArgs),
}

#[derive(Args, Debug)]
pub struct FailoverArgs {
    /// The data directory of a running `holdfast dev`, which prints it. Its active node is killed, and started again by
    /// that command after ten seconds.
    #[arg(long, value_name = "DIR")]
    pub platform: Option<PathBuf>,
    /// URL of a PostgreSQL superuser: three nodes and two spokes are started beside it, and ended afterwards.
    #[arg(long, value_name = "URL", env = "HOLDFAST_DEV_POSTGRES", hide_env_values = true)]
    pub postgres: Option<SecretString>,
}

impl FailoverArgs {
    /// The platform that is started when none is given: a spoke for each of the nodes that are left.
    pub fn own_platform(&self) -> DevArgs {
        DevArgs {
            nodes: 3,
            spokes: Some(2),
            root_token: None,
            data: None,
            port: 0,
            postgres: self.postgres.clone(),
            log: "info".to_owned(),
        }
    }
}
