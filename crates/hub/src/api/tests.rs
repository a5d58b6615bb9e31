//! The API of whole nodes in one process, over loopback, on an in-memory store and clusters moved by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::Term;
use holdfast_core::retry::Failure;
use holdfast_net::serve::{Body, Server};
use holdfast_ops::Tasks;
use http::{Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::Api;
use crate::cluster::{Leader, NodeAddress, NodeName};
use crate::config::HubConfig;
use crate::node::backend::{Backend, BackendError, Forwarded, Opened, Opening, Peers, SendError};
use crate::node::files::DataDir;
use crate::node::{Node, Shared};
use crate::store::CommitError;
use crate::store::memory::MemoryStore;
use crate::testing::FakeCluster;

/// The handlers of forwarded requests by cluster address.
type Wires = Arc<Mutex<BTreeMap<String, Arc<dyn Forwarded>>>>;

struct Memory {
    store: Arc<MemoryStore>,
    cluster: Arc<FakeCluster>,
    wires: Wires,
}

struct WiredPeers(Wires);

#[async_trait]
impl Peers for WiredPeers {
    async fn send(
        &self,
        address: &str,
        request: Request<Body>,
        _: Instant,
    ) -> Result<Response<Body>, SendError> {
        let found = self.0.lock().get(address).cloned();
        match found {
            Some(handler) => Ok(handler.answer(request).await),
            None => Err(SendError { failure: Failure::DialFailed, cause: "nobody is there".into() }),
        }
    }

    fn close(&self, _: &str) {}

    async fn shutdown(&self) {}
}

#[async_trait]
impl Backend for Memory {
    fn new_identity(&self) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        Ok(Zeroizing::new(b"identity".to_vec()))
    }

    async fn open(&self, opening: Opening) -> Result<Opened, BackendError> {
        self.wires.lock().insert(opening.address.cluster.clone(), opening.forwarded);
        let peers = Arc::new(WiredPeers(Arc::clone(&self.wires)));
        Ok(Opened { store: self.store.clone(), cluster: self.cluster.clone(), peers })
    }
}

struct Rig {
    url: String,
    cluster: Arc<FakeCluster>,
    store: Arc<MemoryStore>,
    http: reqwest::Client,
    tasks: Tasks,
    _server: Server,
    _dir: TempDir,
}

impl Rig {
    async fn start(name: &str, cluster: Arc<FakeCluster>, store: &Arc<MemoryStore>, wires: &Wires) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = HubConfig { node_id: name.into(), ..HubConfig::default() };
        config.limits.body_bytes = holdfast_ops::ByteSize::bytes(4096);
        config.limits.forward_hold = holdfast_ops::Duration::from_millis(300);
        let tasks = Tasks::new(name);
        let backend = Memory { store: store.clone(), cluster: cluster.clone(), wires: wires.clone() };
        let shared = Shared {
            config: Arc::new(config),
            backend: Arc::new(backend),
            dir: DataDir::open(dir.path()).unwrap(),
            address: NodeAddress { cluster: format!("{name}:8201"), api: format!("http://{name}:8200") },
            tasks: tasks.clone(),
        };
        let api = Api::new(Node::new(shared).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::start(listener, None, api, &tasks, "api").unwrap();
        let url = format!("http://{}/v1/", server.address());
        let tls = rustls::ClientConfig::builder_with_provider(holdfast_net::server_tls::provider());
        let tls = tls.with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20));
        let client = client.redirect(reqwest::redirect::Policy::none()).tls_backend_preconfigured(tls);
        let http = client.build().unwrap();
        Self { url, cluster, store: store.clone(), http, tasks, _server: server, _dir: dir }
    }

    async fn one() -> Self {
        let cluster = FakeCluster::active("a", Term::new(1));
        Self::start("a", cluster, &MemoryStore::new(), &Wires::default()).await
    }

    async fn call(&self, method: &str, path: &str, token: &str, body: Value) -> (u16, Value) {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.http.request(method, format!("{}{path}", self.url)).header("x-vault-token", token);
        let response =
            if body.is_null() { request.send() } else { request.json(&body).send() }.await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or(Value::Null))
    }

    /// Initialises with 3 shares of 2 and unseals; the shares and the root token.
    async fn open(&self) -> (Vec<String>, String) {
        let (status, made) =
            self.call("PUT", "sys/init", "", json!({"secret_shares": 3, "secret_threshold": 2})).await;
        assert_eq!(status, 200, "{made}");
        let keys: Vec<String> = serde_json::from_value(made["keys_base64"].clone()).unwrap();
        // The fake cluster stopped with the node; it leads again.
        self.lead(1);
        for key in &keys[..2] {
            assert_eq!(self.call("PUT", "sys/unseal", "", json!({ "key": key })).await.0, 200);
        }
        (keys, made["root_token"].as_str().unwrap().to_owned())
    }

    fn lead(&self, term: u64) {
        self.follow(None, Some(Term::new(term)));
    }

    fn follow(&self, leader: Option<&str>, active: Option<Term>) {
        self.store.set_term(active.unwrap_or(Term::new(1)));
        self.cluster.change(|view| {
            view.active = active;
            view.leader = leader.map(|name| Leader {
                node: NodeName(name.into()),
                address: NodeAddress { cluster: format!("{name}:8201"), api: format!("http://{name}:8200") },
                term: Term::new(1),
            });
        });
    }
}

#[tokio::test]
async fn the_life_of_a_node_as_clients_see_it() {
    let rig = Rig::one().await;
    assert_eq!(rig.call("GET", "sys/health", "", Value::Null).await.0, 501);
    assert_eq!(rig.call("GET", "secret/x", "", Value::Null).await.0, 503);
    let (keys, root) = rig.open().await;
    assert_eq!(rig.call("GET", "sys/health", "", Value::Null).await.0, 200);
    let again = rig.call("PUT", "sys/init", "", json!({})).await;
    assert_eq!((again.0, &again.1["errors"][0]), (400, &json!("Vault is already initialized")));
    assert_eq!(rig.call("PUT", "sys/seal", "wrong", Value::Null).await.0, 403);
    assert_eq!(rig.call("PUT", "sys/seal", &root, Value::Null).await.0, 204);
    assert_eq!(rig.call("GET", "sys/health", "", Value::Null).await.0, 503);
    let sealed = rig.call("GET", "sys/mounts", &root, Value::Null).await;
    assert_eq!((sealed.0, &sealed.1["errors"][0]), (503, &json!("Vault is sealed")));
    // Two shares of another split: a 400, and the count starts again.
    for (share, progress) in [(&keys[0], 1), (&keys[0], 1)] {
        let (_, status) = rig.call("PUT", "sys/unseal", "", json!({ "key": share })).await;
        assert_eq!(status["progress"], progress);
    }
    let foreign = hex::encode([9u8; 33]);
    let refused = rig.call("PUT", "sys/unseal", "", json!({ "key": foreign })).await;
    assert_eq!((refused.0, &refused.1["errors"][0]), (400, &json!("unseal failed, invalid key")));
    assert_eq!(rig.call("GET", "sys/seal-status", "", Value::Null).await.1["progress"], 0);
    rig.lead(2);
    for key in &keys[1..] {
        assert_eq!(rig.call("PUT", "sys/unseal", "", json!({ "key": key })).await.0, 200);
    }
    assert_eq!(rig.call("GET", "auth/token/lookup-self", &root, Value::Null).await.0, 200);
    rig.tasks.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn the_checks_answer_in_their_order() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    for path in ["sys/mounts", "nope/x", "secret/data/x", "sys/nope"] {
        for token in ["", "hvs.unknown"] {
            let (status, body) = rig.call("GET", path, token, Value::Null).await;
            assert_eq!((status, body), (403, json!({"errors": ["permission denied"]})), "{path}");
        }
    }
    assert_eq!(rig.call("GET", "nope/x", &root, Value::Null).await.0, 404);
    let large = json!({"x": "y".repeat(5000)});
    assert_eq!(rig.call("PUT", "secret/x", "", large).await.0, 413);
    assert_eq!(rig.call("GET", "a/../b", &root, Value::Null).await.0, 404, "the client resolves it");
    assert_eq!(rig.call("GET", "a/%00b", &root, Value::Null).await.0, 400);
    assert_eq!(rig.call("DELETE", "sys/health", "", Value::Null).await.0, 405);
    let help = rig.call("GET", "nope/x?help=1", "", Value::Null).await;
    assert!(help.0 == 200 && help.1["help"].is_string());
    let kv = json!({"type": "kv"});
    assert_eq!(rig.call("POST", "sys/mounts/kv", &root, kv).await.0, 204);
    assert_eq!(rig.call("PUT", "kv/a", &root, json!({"v": 1})).await.0, 204);
    let (status, read) = rig.call("GET", "kv/a", &root, Value::Null).await;
    assert_eq!((status, &read["data"]["v"], read.as_object().unwrap().len()), (200, &json!(1), 8));
    let (status, missing) = rig.call("GET", "kv/b", &root, Value::Null).await;
    assert_eq!((status, missing), (404, json!({"errors": []})));
    assert_eq!(rig.call("LIST", "kv", &root, Value::Null).await.1["data"]["keys"], json!(["a"]));
    rig.tasks.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_node_without_a_leader_holds_and_then_refuses() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    rig.follow(None, None);
    let started = Instant::now();
    let (status, body) = rig.call("GET", "sys/mounts", &root, Value::Null).await;
    assert_eq!((status, &body["errors"][0]), (503, &json!("no active Vault instance found")));
    assert!(started.elapsed() >= Duration::from_millis(250), "it was held");
    // A leader that cannot be reached: held as well, and the redirect names it.
    rig.follow(Some("b"), None);
    assert_eq!(rig.call("PUT", "sys/mounts/x", &root, json!({"type": "kv"})).await.0, 503);
    let redirect = rig.http.get(format!("{}sys/mounts?a=1", rig.url));
    let response = redirect.header("x-vault-no-request-forwarding", "1").send().await.unwrap();
    assert_eq!(response.status(), 307);
    assert_eq!(response.headers()["location"], "http://b:8200/v1/sys/mounts?a=1");
    rig.tasks.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_request_that_lost_its_leader_before_it_began_is_sent_to_the_next() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    rig.store.fail_next(CommitError::NotLeader);
    assert_eq!(rig.call("POST", "sys/mounts/kv", &root, json!({"type": "kv"})).await.0, 204);
    rig.store.fail_next(CommitError::Unknown);
    let (status, body) = rig.call("PUT", "kv/a", &root, json!({"v": 1})).await;
    assert_eq!((status, &body["errors"][0]), (503, &json!("request outcome unknown")));
    rig.tasks.stop(Duration::from_secs(10)).await.unwrap();
}
