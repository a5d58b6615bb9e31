//! Config servers as real processes on loopback, each with a folder of its own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use holdfast_client::config::{Client, Config};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::api::{Api, Reply};
use crate::eventually_async;
use crate::hub::PATIENCE;
use crate::process::{Process, binary, free_port};

/// The token of the subject `reader`, who may do everything unless a scenario writes its own policy.
pub const TOKEN: &str = "hfc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// The policy under which every caller with a token may read, watch and look at the state.
pub const EVERYBODY: &str = "[[policy.rule]]\neveryone = true\nnames = [\"**\"]\nverbs = [\"read\", \"watch\", \"status\", \"metrics\"]\n";

/// A config server.
pub struct Replica {
    /// The port of its listener on 127.0.0.1.
    pub port: u16,
    dir: TempDir,
    env: Vec<(String, String)>,
    wrapper: Vec<String>,
    process: Option<Process>,
}

impl Replica {
    /// Prepares a replica with these lines of configuration; a listener on loopback, the token file and, unless the lines
    /// say something about it, the policy [`EVERYBODY`] come with it. `DIR` in the lines is its folder.
    pub fn prepare(lines: &str) -> Self {
        let port = free_port();
        let replica = Self::bare();
        let mut replica = Self { port, ..replica };
        replica.token("reader", TOKEN, "");
        replica.configure(lines);
        replica
    }

    fn bare() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { port: 0, dir, env: Vec::new(), wrapper: Vec::new(), process: None }
    }

    /// Prepares and starts one and waits until it is ready.
    pub async fn start(lines: &str) -> Self {
        let mut replica = Self::prepare(lines);
        replica.run();
        replica.wait_ready().await;
        replica
    }

    /// Writes the configuration anew.
    pub fn configure(&mut self, lines: &str) {
        let auth = "auth = { methods = [\"token\"], token = { file = \"tokens.toml\" } }\n";
        let auth = if lines.contains("auth") { "" } else { auth };
        let policy = if lines.contains("policy") { "" } else { EVERYBODY };
        let listener = format!("[[listener]]\nkind = \"tcp\"\naddr = \"127.0.0.1:{}\"\n", self.port);
        let listener = if lines.contains("listener") { String::new() } else { listener };
        // Bare keys must come before the first table.
        let (keys, tables) = lines.split_at(lines.find("\n[").map_or(lines.len(), |at| at + 1));
        let (keys, tables) = if lines.starts_with('[') { ("", lines) } else { (keys, tables) };
        let text = format!("{auth}{keys}\n{listener}{policy}{tables}");
        let text =
            text.replace("DIR", &self.dir().display().to_string()).replace("PORT", &self.port.to_string());
        // Replaced as a whole, as an operator's tools do: a reader never sees half of it.
        self.write("config.toml.new", &text);
        std::fs::rename(self.path("config.toml.new"), self.path("config.toml")).unwrap();
    }

    /// Adds a token to the token file.
    pub fn token(&self, subject: &str, token: &str, more: &str) {
        let hash = hex::encode(digest(&SHA256, token.as_bytes()));
        let entry =
            format!("[[token]]\nid = \"{subject}\"\nsha256 = \"{hash}\"\nsubject = \"{subject}\"\n{more}\n");
        let before = std::fs::read_to_string(self.path("tokens.toml")).unwrap_or_default();
        self.write("tokens.toml", &(before + &entry));
    }

    /// Writes a file of its folder, for its owner only.
    pub fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sets a variable of its environment, from the next start on.
    pub fn env(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Puts a program and arguments before the binary, from the next start on.
    pub fn wrap(&mut self, words: &[&str]) {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut words = self.wrapper.clone();
        words.push(binary().display().to_string());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["server", "--role", "config", "--config"])
            .arg(self.path("config.toml"));
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Starts the process.
    pub fn run(&mut self) {
        self.process = Some(Process::start(&mut self.command(), &self.path("log")));
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the replica is started")
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process().kill();
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self) {
        self.process().signal(Signal::SIGTERM);
    }

    /// Sends SIGHUP.
    pub fn reload(&mut self) {
        self.process().signal(Signal::SIGHUP);
    }

    /// Everything it printed, its audit lines among it unless they go elsewhere.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path("log")).unwrap_or_default()).into_owned()
    }

    /// Its audit lines.
    pub fn audit(&self) -> Vec<serde_json::Value> {
        let log = self.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter(|line| line["msg"] == "request" || line["msg"] == "stream_end").collect()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its API with the token of `reader`.
    pub fn api(&self) -> Api {
        self.anonymous().with_header("authorization", &format!("Bearer {TOKEN}"))
    }

    /// Its API without a credential.
    pub fn anonymous(&self) -> Api {
        Api::bare(self.url())
    }

    /// What the readiness probe says; none while nobody answers.
    pub async fn ready(&self) -> Option<(u16, String)> {
        let asked = self.anonymous();
        let answer =
            tokio::time::timeout(Duration::from_secs(1), asked.try_send("GET", "v1/readyz", None)).await;
        let reply = answer.ok()?.ok()?;
        Some((reply.status, String::from_utf8_lossy(&reply.bytes).into_owned()))
    }

    /// Waits until the replica answers its probes; fails early when it has ended.
    pub async fn wait_listening(&mut self) {
        for _ in 0..3000 {
            if self.ready().await.is_some() {
                return;
            }
            if let Some(status) = self.process().exited() {
                panic!("the replica ended with {status} before it listened:\n{}", self.log());
            }
            // sleep: between two looks at a process that may end instead
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the replica does not listen:\n{}", self.log());
    }

    /// Waits until it is ready.
    pub async fn wait_ready(&mut self) {
        self.wait_listening().await;
        let ready = || async { (self.ready().await?.0 == 200).then_some(()) };
        eventually_async(PATIENCE, "the replica is ready", ready).await;
    }

    /// The value object of a name.
    pub async fn value(&self, name: &str) -> Reply {
        self.api().send("GET", &format!("v1/values/{}", name.replace('/', "%2F")), None).await
    }

    /// Waits until a reader gets these bytes.
    pub async fn wait_value(&self, name: &str, bytes: &str) {
        let equal = || async { (text(&self.value(name).await.body) == bytes).then_some(()) };
        eventually_async(PATIENCE, &format!("{name} is {bytes:?}"), equal).await;
    }

    /// Fails on ERROR lines of its log, but those that contain one of `expected`.
    #[track_caller]
    pub fn check_log(&self, expected: &[&str]) {
        let log = self.log();
        let bad = log.lines().find(|line| {
            let error =
                line.contains("\"level\":\"ERROR\"") || line.contains(" ERROR ") || line.contains("panicked");
            error && !expected.iter().any(|text| line.contains(text))
        });
        assert!(bad.is_none(), "logged: {}", bad.unwrap_or_default());
    }
}

/// A client of these endpoints, with the token of `reader`.
pub fn client(endpoints: Vec<String>) -> Client {
    let token = Some(TOKEN.into());
    Client::new(Config { endpoints, token, insecure_no_tls: true, ..Config::default() }).unwrap()
}

/// The bytes of a value object as text.
pub fn text(value: &serde_json::Value) -> String {
    use base64::Engine as _;
    let encoded = value["bytes"].as_str().unwrap_or_default();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).unwrap()).unwrap()
}
