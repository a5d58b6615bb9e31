//! `holdfast dev`: hub nodes and spokes as processes of their own on loopback, so that one of them can be killed and
//! seen to be replaced.

mod announce;
mod cleanup;
mod nodes;
pub mod platform;
mod process;
mod setup;
mod spokes;
mod steps;
mod watch;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::DevArgs;
use crate::output::{Failure, Printer};
use platform::Platform;

/// Runs the platform until it is interrupted.
pub fn run(args: DevArgs, print: Printer) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(args, print))
}

async fn serve(args: DevArgs, print: Printer) -> Result<ExitCode, Failure> {
    let stop = interrupted()?;
    tokio::pin!(stop);
    let mut platform = Platform::prepare(&args)?;
    let started = tokio::select! {
        ready = platform.start(&args, print) => Some(ready),
        () = &mut stop => None,
    };
    let outcome = match started {
        Some(Ok(ready)) => {
            announce::all(&args, &platform, &ready, print);
            tokio::select! {
                outcome = watch::run(&mut platform, &ready, print) => outcome,
                () = &mut stop => Ok(()),
            }
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    if outcome.is_ok() {
        print.progress(match platform.is_temporary() {
            true => "\nStopping everything and removing its data …".to_owned(),
            false => format!("\nStopping everything; its data stays in {} …", platform.home().display()),
        });
    }
    platform.stop(print).await;
    outcome?;
    Ok(ExitCode::SUCCESS)
}

/// Resolves with the first interrupt, request to end or loss of the terminal; from this call on they do not end the
/// process by themselves.
pub fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
