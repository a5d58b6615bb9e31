//! Child processes that cannot outlive their test, and the signals that hurt them.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::eventually;

/// A daemon under test with its log file.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command with both outputs appended to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        Self { child, log: log.to_owned() }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal);
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// The exit status, once there is one.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the end.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        eventually(deadline, "the process ends", || self.child.try_wait().unwrap())
    }

    /// Everything it printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// The binary under test: `HOLDFAST_BIN`, else beside this test's own binary.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("HOLDFAST_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().unwrap();
    let found = own.ancestors().skip(1).map(|dir| dir.join("holdfast")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no holdfast binary above {own:?}: run `cargo build -p holdfast` first"))
}
