//! `holdfast server`: a daemon of one role.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};

use crate::args::{Role, ServerArgs};
use crate::output::Failure;

/// Runs the daemon until a signal ends it.
pub fn run(args: &ServerArgs) -> Result<ExitCode, Failure> {
    match args.role {
        Role::Hub => hub(args),
    }
}

fn hub(args: &ServerArgs) -> Result<ExitCode, Failure> {
    use holdfast_hub::{config, server};
    let loader = args.set.iter().fold(config::loader().path(&args.config), |loader, set| loader.flag(set));
    let config = config::load(loader)
        .map_err(|problems| Failure::from(anyhow!("{problems}")).coded(holdfast_ops::exit::CONFIG))?;
    holdfast_ops::telemetry::init(holdfast_ops::telemetry::Format::Auto, args.log.as_deref())
        .map_err(anyhow::Error::from)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let ended = runtime.block_on(server::run(config)).map_err(|error| {
        let code = error.exit_code();
        Failure::from(anyhow::Error::from(error)).coded(code)
    });
    // A blocking read that never ends must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended.map(ExitCode::from)
}
