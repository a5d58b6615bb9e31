//! `holdfast relay run` and `holdfast relay renew`: the spoke's side of the relay.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use holdfast_spoke::cache::Databases;
use holdfast_spoke::daemon::{self, Options};
use holdfast_spoke::renewal::{self, Schedule};
use holdfast_spoke::runner::Limits;
use rustls::pki_types::ServerName;
use serde_json::json;

use crate::args::{RenewArgs, RunArgs, SpokeArgs};
use crate::output::{Failure, Printer};

/// Runs the daemon until a signal ends it.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    joined(&args.spoke)?;
    holdfast_ops::telemetry::init(holdfast_ops::telemetry::Format::Auto, args.log.as_deref())
        .map_err(anyhow::Error::from)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let ended = runtime.block_on(daemon::run(options, Arc::new(Databases)));
    // Blocking work that never ends must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let code = ended.map_err(|error| {
        let code = error.exit_code();
        Failure::from(anyhow::Error::from(error)).coded(code)
    })?;
    Ok(ExitCode::from(code))
}

/// Renews the certificate once.
pub fn renew(args: &RenewArgs, print: Printer) -> Result<ExitCode, Failure> {
    let ttl = i64::try_from(args.ttl.get().as_secs()).unwrap_or(i64::MAX);
    let SpokeArgs { server, credentials_dir, .. } = &args.spoke;
    joined(&args.spoke)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let renewed = runtime.block_on(renewal::once(credentials_dir, server, server_name(&args.spoke)?, ttl));
    let renewed = renewed.map_err(|error| {
        let local = matches!(error, renewal::Error::Credentials(_));
        Failure::from(anyhow::Error::from(error)).coded(if local { Failure::LOCAL } else { Failure::API })
    })?;
    let until = jiff::Timestamp::from_second(renewed.not_after).map(|at| at.to_string()).unwrap_or_default();
    if print.json {
        print.value(&json!({"spoke_name": renewed.name.as_str(), "cert_not_after": until}));
    } else {
        print.line(format!("Renewed the certificate of {}; it is good until {until}.", renewed.name));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether there is anything of a spoke; what is there is read later.
fn joined(args: &SpokeArgs) -> Result<(), Failure> {
    let dir = &args.credentials_dir;
    match holdfast_spoke::credentials::occupied(dir) {
        Some(_) => Ok(()),
        None => Err(anyhow!(
            "there are no credentials of a spoke in {dir:?}: join the hub first, with the command that `holdfast relay init` \
             prints there"
        )
        .into()),
    }
}

fn options(args: &RunArgs) -> Result<Options, Failure> {
    let some = |time: holdfast_ops::Duration| Some(time.get()).filter(|time| !time.is_zero());
    Ok(Options {
        servers: args.spoke.server.clone(),
        credentials_dir: args.spoke.credentials_dir.clone(),
        server_name: server_name(&args.spoke)?,
        heartbeat: some(args.heartbeat_interval),
        limits: Limits {
            concurrency: usize::from(args.max_concurrency),
            queue_timeout: args.queue_timeout.get(),
        },
        renewal: some(args.renew_check_every)
            .map(|check_every| Schedule { check_every, threshold: args.renew_threshold }),
        once: args.once,
        timing: daemon::Timing::default(),
    })
}

fn server_name(args: &SpokeArgs) -> Result<Option<ServerName<'static>>, Failure> {
    let Some(name) = args.server_name.clone() else { return Ok(None) };
    let parsed = ServerName::try_from(name.clone());
    Ok(Some(parsed.map_err(|_| anyhow!("--server-name {name:?} is no name of a host"))?))
}
