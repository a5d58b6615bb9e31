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
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::DevArgs;
use crate::output::{Failure, Printer};
use platform::Platform;

/// Runs the platform until it is interrupted.
pub fn run(args: DevArgs, print: Printer) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(args, print))
}

async fn serve(args: DevArgs, print: Printer) -> Result<ExitCode, Failure> {
    let mut stop = Interrupts::listen()?;
    let mut platform = Platform::prepare(&args)?;
    let started = tokio::select! {
        ready = platform.start(&args, print) => Some(ready),
        () = stop.next() => None,
    };
    let outcome = match started {
        Some(Ok(ready)) => {
            announce::all(&args, &platform, &ready, print);
            tokio::select! {
                outcome = watch::run(&mut platform, &ready, print) => outcome,
                () = stop.next() => Ok(()),
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
    platform.stop(print, &mut stop).await;
    outcome?;
    Ok(ExitCode::SUCCESS)
}

/// Interrupts, requests to end and losses of the terminal; while this is kept they do not end the process by themselves.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Interrupts {
    pub fn listen() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Resolves with the next of them.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Resolves with the next interrupt: somebody at a terminal has no more patience. Not with the others, which a
    /// script that is ended itself passes on behind the first one.
    pub async fn impatient(&mut self) {
        self.interrupt.recv().await;
    }
}
