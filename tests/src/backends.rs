//! Private backends of the config server for tests: an etcd and a Redis, on loopback, gone with the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::api::Api;
use crate::eventually_async;
use crate::process::{Process, free_port};

const START: Duration = Duration::from_secs(60);

/// One etcd, spoken to by its JSON gateway.
pub struct EtcdServer {
    dir: TempDir,
    ports: (u16, u16),
    process: Option<Process>,
    token: Option<String>,
}

impl EtcdServer {
    /// Starts it with etcd's own defaults.
    pub async fn start() -> Self {
        let ports = (free_port(), free_port());
        let mut server = Self { dir: tempfile::tempdir().unwrap(), ports, process: None, token: None };
        server.resume().await;
        server
    }

    /// Starts it again on the same port and data.
    pub async fn resume(&mut self) {
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.ports.1));
        let mut command = die_with_us("etcd");
        command.args(["--name", "e", "--data-dir"]).arg(self.dir.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("e={peer}"), "--log-level", "error"]);
        self.process = Some(Process::start(&mut command, &self.dir.path().join("log")));
        let ask = || async { self.try_call("v3/kv/range", &json!({"key": "YQ=="})).await };
        eventually_async(START, "etcd answers", || async { ask().await.map(|_| ()) }).await;
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.0)
    }

    /// Writes a key and returns the revision.
    pub async fn put(&self, key: &str, value: &str) -> u64 {
        let body = json!({"key": BASE64_STANDARD.encode(key), "value": BASE64_STANDARD.encode(value)});
        let answer = self.call("v3/kv/put", &body).await;
        answer["header"]["revision"].as_str().unwrap().parse().unwrap()
    }

    /// Removes a key.
    pub async fn delete(&self, key: &str) {
        self.call("v3/kv/deleterange", &json!({"key": BASE64_STANDARD.encode(key)})).await;
    }

    /// Turns logins on: `root` with all rights, and `app`, password `app-pw`, that may read keys that begin with `app/`.
    pub async fn require_logins(&mut self) {
        for (user, password) in [("root", "root-pw"), ("app", "app-pw")] {
            self.call("v3/auth/user/add", &json!({"name": user, "password": password})).await;
            self.call("v3/auth/role/add", &json!({"name": user})).await;
            self.call("v3/auth/user/grant", &json!({"user": user, "role": user})).await;
        }
        let range = (BASE64_STANDARD.encode("app/"), BASE64_STANDARD.encode("app0"));
        let perm = json!({"permType": "READ", "key": range.0, "range_end": range.1});
        self.call("v3/auth/role/grant", &json!({"name": "app", "perm": perm})).await;
        self.call("v3/auth/enable", &json!({})).await;
        let login = json!({"name": "root", "password": "root-pw"});
        let answer = self.call("v3/auth/authenticate", &login).await;
        self.token = Some(answer["token"].as_str().unwrap().to_owned());
    }

    /// A call of the gateway.
    pub async fn call(&self, path: &str, body: &Value) -> Value {
        self.try_call(path, body).await.unwrap_or_else(|| panic!("etcd refused {path}"))
    }

    async fn try_call(&self, path: &str, body: &Value) -> Option<Value> {
        let mut api = Api::bare(self.url());
        if let Some(token) = &self.token {
            api = api.with_header("Authorization", token);
        }
        let sent = api.try_send("POST", path, Some(body.to_string().into_bytes()));
        let reply = tokio::time::timeout(Duration::from_secs(5), sent).await.ok()?.ok()?;
        (reply.status == 200).then_some(reply.body)
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// One Redis, with keyspace events on.
pub struct RedisServer {
    dir: TempDir,
    port: u16,
    settings: Vec<String>,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts it without a password.
    pub async fn start() -> Self {
        Self::with_settings(&[]).await
    }

    /// The same with more options of its command line.
    pub async fn with_settings(settings: &[&str]) -> Self {
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let mut server =
            Self { dir: tempfile::tempdir().unwrap(), port: free_port(), settings, process: None };
        server.resume().await;
        server
    }

    /// Starts it again on the same port, empty.
    pub async fn resume(&mut self) {
        let mut command = die_with_us("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(self.dir.path()).args(["--port", &self.port.to_string()]);
        command.args(["--notify-keyspace-events", "KA"]).args(&self.settings);
        self.process = Some(Process::start(&mut command, &self.dir.path().join("log")));
        let address = self.address();
        eventually_async(START, "Redis answers", || async { TcpStream::connect(&address).await.ok() }).await;
    }

    /// `host:port`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Runs a command, such as `["SET", "k", "v"]`, and returns the first line of the answer.
    pub async fn run(&self, words: &[&str]) -> String {
        self.run_as(&[], words).await
    }

    /// The same after a first command, such as a login.
    pub async fn run_as(&self, first: &[&str], words: &[&str]) -> String {
        let mut stream = BufReader::new(TcpStream::connect(self.address()).await.unwrap());
        let mut answer = String::new();
        for command in [first, words].into_iter().filter(|words| !words.is_empty()) {
            let body: String = command.iter().map(|w| format!("${}\r\n{w}\r\n", w.len())).collect();
            stream.write_all(format!("*{}\r\n{body}", command.len()).as_bytes()).await.unwrap();
            answer.clear();
            stream.read_line(&mut answer).await.unwrap();
            if let Some(length) = answer.strip_prefix('$').and_then(|n| n.trim().parse::<usize>().ok()) {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes).await.unwrap();
                answer = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
        answer.trim().to_owned()
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// A file that only we may read.
pub fn secret_file(dir: &Path, name: &str, content: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn die_with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", program]);
    command
}
