//! `holdfast server`: a daemon of one role.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};

use crate::args::{Role, ServerArgs};
use crate::output::Failure;

/// Runs the daemon until a signal ends it.
pub fn run(args: &ServerArgs) -> Result<ExitCode, Failure> {
    match args.role {
        Role::Hub => hub(args),
        Role::Config => config(args),
    }
}

fn config(args: &ServerArgs) -> Result<ExitCode, Failure> {
    use holdfast_config::{load, server};
    let overrides = load::Overrides {
        node_id: args.node_id.clone(),
        set: args.set.clone(),
        ..load::Overrides::default()
    };
    let configuration = match load::load(&args.config, &overrides) {
        Ok(configuration) => configuration,
        Err(problems) => {
            // As they are: their form is what editors jump by.
            eprintln!("{problems}");
            return Ok(ExitCode::from(problems.exit_code()));
        }
    };
    holdfast_ops::telemetry::init(holdfast_ops::telemetry::Format::Auto, args.log.as_deref())
        .map_err(anyhow::Error::from)?;
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    let source = server::Source { path: args.config.clone(), overrides };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let ended = runtime.block_on(server::run(configuration, source)).map_err(|error| {
        let code = error.exit_code();
        Failure::from(anyhow::Error::from(error)).coded(code)
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended.map(ExitCode::from)
}

fn hub(args: &ServerArgs) -> Result<ExitCode, Failure> {
    use holdfast_hub::{config, server};
    let loader = args.set.iter().fold(config::loader().path(&args.config), |loader, set| loader.flag(set));
    let loader = match &args.node_id {
        Some(name) => loader.set("node_id", name.clone()),
        None => loader,
    };
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
