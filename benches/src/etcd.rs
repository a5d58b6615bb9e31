//! A private etcd cluster: the peer for elections and for replicated writes. Its JSON gateway is used, so that both
//! sides are spoken to by the same HTTP client.

use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use holdfast_tests::api::Api;
use holdfast_tests::eventually_async;
use holdfast_tests::process::{Process, free_port};
use serde_json::json;
use tempfile::TempDir;

/// Three etcd processes on loopback with etcd's own defaults.
pub struct Etcd {
    members: Vec<(u16, Option<Process>)>,
    _dir: TempDir,
}

impl Etcd {
    /// Starts the cluster and waits for its first write.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
        let cluster: Vec<_> =
            ports.iter().enumerate().map(|(i, (_, peer))| format!("e{i}=http://127.0.0.1:{peer}")).collect();
        let mut members = Vec::new();
        for (i, (client, peer)) in ports.iter().enumerate() {
            let (client_url, peer_url) =
                (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("e{i}"), "--data-dir"]).arg(dir.path().join(format!("e{i}")));
            command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
            command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
            command.args([
                "--initial-cluster",
                &cluster.join(","),
                "--initial-cluster-state",
                "new",
                "--log-level",
                "error",
            ]);
            members.push((*client, Some(Process::start(&mut command, &dir.path().join("log")))));
        }
        let etcd = Self { members, _dir: dir };
        eventually_async(Duration::from_secs(60), "etcd takes a write", || async {
            etcd.put(0, "up", "1").await.then_some(())
        })
        .await;
        etcd
    }

    /// The address of a member.
    pub fn url(&self, index: usize) -> String {
        format!("http://127.0.0.1:{}", self.members[index].0)
    }

    /// Writes a key through a member.
    pub async fn put(&self, index: usize, key: &str, value: &str) -> bool {
        put(&EtcdApi::new(self.url(index)), key, value).await
    }

    /// The member that leads.
    pub async fn leader(&self) -> usize {
        for index in 0..self.members.len() {
            let status = EtcdApi::new(self.url(index)).post("v3/maintenance/status", "{}").await;
            if let Some(status) = status
                && status["leader"] == status["header"]["member_id"]
            {
                return index;
            }
        }
        panic!("etcd has no leader");
    }

    /// `kill -9` of a member; it stays dead.
    pub fn kill(&mut self, index: usize) {
        self.members[index].1 = None;
    }
}

/// One member's gateway.
#[derive(Clone)]
pub struct EtcdApi(Api);

impl EtcdApi {
    /// The gateway at a base URL.
    pub fn new(url: String) -> Self {
        Self(Api::bare(url))
    }

    async fn post(&self, path: &str, body: &str) -> Option<serde_json::Value> {
        let sent = self.0.try_send("POST", path, Some(body.as_bytes().to_vec()));
        let reply = tokio::time::timeout(Duration::from_secs(2), sent).await.ok()?.ok()?;
        (reply.status == 200).then_some(reply.body)
    }
}

/// Writes a key.
pub async fn put(api: &EtcdApi, key: &str, value: &str) -> bool {
    let encode = |text: &str| base64::prelude::BASE64_STANDARD.encode(text);
    let body = json!({"key": encode(key), "value": encode(value)}).to_string();
    api.post("v3/kv/put", &body).await.is_some()
}
