//! `./dev bench ROLE`: measures on this machine, prints a table and writes `benches/results/<role>.json`.
//!
//! Every figure is a ratio within one run: against the direct path, or against a peer that runs beside.

mod config;
mod etcd;
mod fleet;
mod hub;
mod load;
mod report;

use clap::{Parser, ValueEnum};

/// A role that has benchmarks.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// The hub.
    Hub,
    /// The config server.
    Config,
}

/// Benchmarks.
#[derive(Debug, Parser)]
struct Args {
    /// What is measured.
    role: Role,
    /// Only these rows, such as P-01; all unless given.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Fewer rounds, to see that everything runs.
    #[arg(long)]
    quick: bool,
    /// So many minutes in which everything comes and goes, the second part of P-12, instead of all rows.
    #[arg(long, value_name = "MINUTES")]
    churn: Option<u64>,
}

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match args.role {
        Role::Hub => runtime.block_on(hub::run(&args.only, args.quick, args.churn)),
        Role::Config => runtime.block_on(config::run(&args.only, args.quick)),
    }
}
