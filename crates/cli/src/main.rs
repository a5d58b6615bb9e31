//! The `holdfast` binary: flags, wiring and rendering.

mod args;
mod cmd;
mod demo;
mod dev;
mod hints;
mod input;
mod output;
mod parent;
mod server;
mod session;
mod spoke;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::output::Failure;

fn main() -> ExitCode {
    // Exactly one provider is installed before any TLS object exists; a second install can only mean it is there.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (parent, args) = match parent::take(args::normalise(std::env::args_os())) {
        Ok(taken) => taken,
        Err(error) => return Failure::from(error).report(false),
    };
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let json = cli.global.json;
    let followed = parent.map_or(Ok(()), parent::follow).map_err(Failure::from);
    match followed.and_then(|()| cmd::run(cli)) {
        Ok(code) => code,
        Err(failure) => failure.report(json),
    }
}

/// Help and version go to standard output and are no failure; anything else is a usage error: 1.
fn usage(error: &clap::Error) -> ExitCode {
    let failed = error.use_stderr();
    let _ = error.print();
    if failed { ExitCode::from(Failure::LOCAL) } else { ExitCode::SUCCESS }
}
