//! `holdfast demo`: what this program promises, shown on a real platform with times.

mod failover;
mod probe;
mod report;

use std::process::ExitCode;

use anyhow::{Result, anyhow};

use crate::args::{Demo, FailoverArgs};
use crate::dev::Interrupts;
use crate::dev::platform::{Card, Platform};
use crate::output::{Failure, Printer};

/// Runs a demonstration.
pub fn run(demo: Demo, print: Printer) -> Result<ExitCode, Failure> {
    let Demo::Failover(args) = demo;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(failover(args, print))
}

async fn failover(args: FailoverArgs, print: Printer) -> Result<ExitCode, Failure> {
    let mut stop = Interrupts::listen()?;
    if let Some(home) = &args.platform {
        let card = Card::read(home)?;
        return tokio::select! {
            shown = failover::show(&card, print) => shown,
            () = stop.next() => Err(anyhow!("interrupted").into()),
        };
    }
    let dev = args.own_platform();
    if dev.postgres.is_none() {
        return Err(anyhow!(
            "a database is needed: set HOLDFAST_DEV_POSTGRES to the URL of a PostgreSQL superuser, -platform=DIR of a running \
             `holdfast dev`, or run `./dev demo`, which brings a PostgreSQL of its own"
        )
        .into());
    }
    let mut platform = Platform::prepare(&dev)?;
    let shown = tokio::select! {
        shown = on_own(&mut platform, &dev, print) => shown,
        () = stop.next() => Err(anyhow!("interrupted").into()),
    };
    platform.stop(print, &mut stop).await;
    shown
}

async fn on_own(
    platform: &mut Platform,
    dev: &crate::args::DevArgs,
    print: Printer,
) -> Result<ExitCode, Failure> {
    let ready = platform.start(dev, print).await?;
    print.progress("");
    failover::show(&platform.card(&ready), print).await
}
