//! A daemon of the platform: a process of its own with a log file, that cannot outlive this one.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::parent;

/// One daemon.
pub struct Daemon {
    /// What it is called.
    pub id: String,
    log: PathBuf,
    args: Vec<OsString>,
    log_level: String,
    child: Option<Child>,
}

impl Daemon {
    /// One that does not run yet; its log goes to `dir`.
    pub fn new(id: &str, dir: &Path, args: Vec<OsString>, log_level: &str) -> Self {
        Self { id: id.to_owned(), log: dir.join("log"), args, log_level: log_level.to_owned(), child: None }
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Its process as people read it.
    pub fn shown_pid(&self) -> String {
        self.pid().map_or_else(|| "-".to_owned(), |pid| pid.to_string())
    }

    /// How it ended, once, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }

    /// Starts it.
    ///
    /// The kernel watches the thread that forks: this must be called on the main thread, which the runtime of this
    /// command never leaves.
    pub fn start(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(std::env::current_exe()?)
            .args(&self.args)
            .arg(parent::FLAG)
            .arg(std::process::id().to_string())
            .env("HOLDFAST_LOG", &self.log_level)
            .env_remove("HOLDFAST_DEV_POSTGRES")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // An interrupt typed at the terminal goes to this process alone, which then stops the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.id))?;
        self.child = Some(child);
        Ok(())
    }

    /// The last lines of its log, for an error message.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n")
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

/// Asks all of them to end, and ends those that do not.
pub async fn stop(daemons: Vec<&mut Daemon>, grace: Duration) {
    for daemon in &daemons {
        daemon.signal(Signal::SIGTERM);
    }
    let deadline = Instant::now() + grace;
    for daemon in daemons {
        if let Some(mut child) = daemon.child.take()
            && timeout(deadline.saturating_duration_since(Instant::now()), child.wait()).await.is_err()
        {
            let _ = child.kill().await;
        }
    }
}
