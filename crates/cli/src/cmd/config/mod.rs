//! `config`: one file a command.

mod check;
mod fleet;
mod get;
mod online;
mod policy;
mod replicas;
mod show;
mod token;
mod watch;

use super::Outcome;
use crate::args::Global;
use crate::args::config::Config;
use crate::output::Printer;

/// Some name has no value.
const ABSENT: u8 = 1;
/// The command cannot be carried out as given.
const USAGE: u8 = holdfast_ops::exit::CONFIG;
/// No replica could answer (EX_UNAVAILABLE).
const UNREACHABLE: u8 = 69;
/// The replicas refuse this caller (EX_NOPERM).
const REFUSED: u8 = 77;

/// Runs one of the commands.
pub fn run(global: &Global, command: Config) -> Outcome {
    let print = Printer { json: global.json };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Config::Get(args) => runtime.block_on(get::run(global, print, &args)),
        Config::Watch(args) => runtime.block_on(watch::run(global, print, &args)),
        Config::Fleet(args) => runtime.block_on(fleet::run(global, print, &args)),
        Config::Check(args) => runtime.block_on(check::run(print, &args)),
        Config::Policy(command) => policy::run(print, &command),
        Config::Token(command) => token::run(print, &command),
    }
}
