//! The command-line program as a user runs it, in a home directory of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::binary;

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code.
    pub code: i32,
    /// What it printed.
    pub out: String,
    /// What it told on standard error.
    pub err: String,
}

impl Ended {
    /// Fails unless the exit code is the expected one.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// What it printed, as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("no JSON ({e}): {}", self.out))
    }
}

/// A user: an address, perhaps a token, and a home.
pub struct Cli {
    home: TempDir,
    env: Vec<(String, String)>,
}

impl Cli {
    /// A user who talks to `address`.
    pub fn new(address: &str) -> Self {
        let env = vec![("HOLDFAST_ADDR".to_owned(), address.to_owned())];
        Self { home: TempDir::new().unwrap(), env }
    }

    /// The same user with one more variable in the environment.
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(have, _)| have != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same user with a token in the environment.
    pub fn with_token(self, token: &str) -> Self {
        self.with_env("HOLDFAST_TOKEN", token)
    }

    /// The home directory.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A file in the home directory.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Runs a command line, split at blanks.
    pub async fn run(&self, line: &str) -> Ended {
        self.run_with(line, "").await
    }

    /// Runs a command line with something on standard input.
    pub async fn run_with(&self, line: &str, input: &str) -> Ended {
        let mut command = Command::new(binary());
        command.args(line.split_whitespace()).env_clear().env("HOME", self.home.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.env.iter().map(|(k, v)| (k, v))).current_dir(self.home.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let run = move || {
            let mut child = command.spawn().unwrap();
            // A program that reads nothing may be gone already.
            let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
            child.wait_with_output().unwrap()
        };
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        Ended {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
