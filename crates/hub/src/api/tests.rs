//! The API of whole nodes in one process, over loopback, on an in-memory store and clusters moved by hand.

mod forwarding;
mod fuzz;
mod order;
mod protocol;
mod state;
mod system;
mod tokens;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::Term;
use holdfast_core::retry::Failure;
use holdfast_net::serve::{Body, Server};
use holdfast_ops::Tasks;
use http::{HeaderMap, Request, Response};
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

/// The cluster ports of all nodes.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<Wired>>);

#[derive(Default)]
struct Wired {
    /// What answers on the cluster port with this address.
    handlers: BTreeMap<String, Arc<dyn Forwarded>>,
    /// What becomes of the next requests between nodes.
    faults: VecDeque<Fault>,
    /// Where requests were sent to, in their order.
    sent: Vec<String>,
    /// Whose connections were closed.
    closed: Vec<String>,
}

/// What becomes of a request between nodes.
enum Fault {
    /// It never arrives.
    Before(Failure),
    /// It is answered, and the answer is lost.
    After,
}

impl Wires {
    fn plant(&self, fault: Fault) {
        self.0.lock().faults.push_back(fault);
    }

    /// Where requests were sent to since the last time somebody asked.
    fn take_sent(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().sent)
    }

    fn handler(&self, address: &str) -> Option<Arc<dyn Forwarded>> {
        self.0.lock().handlers.get(address).cloned()
    }
}

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
        let (found, fault) = {
            let mut wired = self.0.0.lock();
            wired.sent.push(address.to_owned());
            (wired.handlers.get(address).cloned(), wired.faults.pop_front())
        };
        let failed = |failure, cause: &str| Err(SendError { failure, cause: cause.into() });
        match (found, fault) {
            (_, Some(Fault::Before(failure))) => failed(failure, "a planted failure"),
            (None, _) => failed(Failure::DialFailed, "nobody is there"),
            (Some(handler), None) => Ok(handler.answer(request).await),
            (Some(handler), Some(Fault::After)) => {
                handler.answer(request).await;
                failed(Failure::Broken, "the answer was lost")
            }
        }
    }

    fn close(&self, address: &str) {
        self.0.0.lock().closed.push(address.to_owned());
    }
    async fn send_relay(&self, _: &str, _: Request<Body>) -> Result<Response<Body>, SendError> {
        Err(SendError { failure: Failure::DialFailed, cause: "nobody is there".into() })
    }

    async fn shutdown(&self) {}
}

#[async_trait]
impl Backend for Memory {
    fn new_identity(&self) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        Ok(Zeroizing::new(b"identity".to_vec()))
    }

    async fn open(&self, opening: Opening) -> Result<Opened, BackendError> {
        self.wires.0.lock().handlers.insert(opening.address.cluster.clone(), opening.forwarded);
        let peers = Arc::new(WiredPeers(self.wires.clone()));
        Ok(Opened { store: self.store.clone(), cluster: self.cluster.clone(), peers })
    }
}

struct Rig {
    url: String,
    api: Arc<Api>,
    cluster: Arc<FakeCluster>,
    store: Arc<MemoryStore>,
    http: reqwest::Client,
    tasks: Tasks,
    _server: Server,
    _dir: TempDir,
}

/// An answer as it came.
struct Reply {
    status: u16,
    headers: HeaderMap,
    text: String,
    body: Value,
}

impl Reply {
    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    #[track_caller]
    fn expect_error(&self, status: u16, text: &str) {
        assert_eq!((self.status, &self.body["errors"]), (status, &json!([text])));
    }

    fn data(&self) -> &Value {
        &self.body["data"]
    }
}

/// The names of an object's members, sorted.
fn members(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn client() -> reqwest::ClientBuilder {
    let tls = rustls::ClientConfig::builder_with_provider(holdfast_net::server_tls::provider());
    let tls = tls.with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20));
    client.redirect(reqwest::redirect::Policy::none()).tls_backend_preconfigured(tls)
}

impl Rig {
    async fn start(
        name: &str,
        cluster: Arc<FakeCluster>,
        store: &Arc<MemoryStore>,
        wires: &Wires,
        configure: impl FnOnce(&mut HubConfig),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = HubConfig { node_id: name.into(), ..HubConfig::default() };
        config.limits.body_bytes = holdfast_ops::ByteSize::bytes(4096);
        config.limits.forward_hold = holdfast_ops::Duration::from_millis(300);
        configure(&mut config);
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
        let server = Server::start(listener, None, api.clone(), &tasks, "api").unwrap();
        let url = format!("http://{}/v1/", server.address());
        let http = client().build().unwrap();
        Self { url, api, cluster, store: store.clone(), http, tasks, _server: server, _dir: dir }
    }

    async fn one() -> Self {
        Self::one_with(|_| {}).await
    }

    async fn one_with(configure: impl FnOnce(&mut HubConfig)) -> Self {
        let cluster = FakeCluster::active("a", Term::new(1));
        Self::start("a", cluster, &MemoryStore::new(), &Wires::default(), configure).await
    }

    /// Sends a request with these headers; a text is sent as it is, null as no body.
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Reply {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = match body {
            Value::Null => request,
            Value::String(text) => request.body(text),
            json => request.body(json.to_string()),
        };
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = String::from_utf8_lossy(&response.bytes().await.unwrap()).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status, headers, text, body }
    }

    async fn as_token(&self, token: &str, method: &str, path: &str, body: Value) -> Reply {
        self.send(method, path, &[("x-vault-token", token)], body).await
    }

    /// A token with these policies' text as its only policy.
    async fn token_with(&self, root: &str, name: &str, policy: &str) -> String {
        self.as_token(root, "PUT", &format!("sys/policies/acl/{name}"), json!({"policy": policy}))
            .await
            .expect(204);
        let body = json!({"policies": [name], "no_default_policy": true});
        let made = self.as_token(root, "PUT", "auth/token/create", body).await.expect(200);
        made.body["auth"]["client_token"].as_str().unwrap().to_owned()
    }

    /// The services behind the API.
    fn hub(&self) -> Arc<crate::hub::Hub> {
        Arc::clone(&self.api.node().running().unwrap().hub)
    }

    async fn stop(self) {
        self.api.node().seal().await;
        self.tasks.stop(Duration::from_secs(10)).await.unwrap();
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
        if let Some(term) = active {
            self.store.set_term(term);
        }
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

/// Two nodes over one store: `a` is active, `b` follows it.
struct Pair {
    a: Rig,
    b: Rig,
    wires: Wires,
    root: String,
    keys: Vec<String>,
}

impl Pair {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(configure: impl Fn(&mut HubConfig)) -> Self {
        let (store, wires) = (MemoryStore::new(), Wires::default());
        let active = FakeCluster::active("a", Term::new(1));
        let a = Rig::start("a", active, &store, &wires, &configure).await;
        let (keys, root) = a.open().await;
        let standby = FakeCluster::active("b", Term::new(1));
        let b = Rig::start("b", standby, &store, &wires, &configure).await;
        b.follow(Some("a"), None);
        let leader = a.url.trim_end_matches("/v1/");
        let joined = b.call("PUT", "sys/storage/raft/join", "", json!({"leader_api_addr": leader})).await;
        assert_eq!(joined, (200, json!({"joined": true})));
        for key in &keys[..2] {
            assert_eq!(b.call("PUT", "sys/unseal", "", json!({ "key": key })).await.0, 200);
        }
        Self { a, b, wires, root, keys }
    }

    /// Hands leadership to `b`.
    fn swap(&self, term: u64) {
        self.a.follow(Some("b"), None);
        self.b.follow(None, Some(Term::new(term)));
    }

    async fn stop(self) {
        self.b.stop().await;
        self.a.stop().await;
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

#[tokio::test]
async fn health_leader_metrics_and_writes_ask_the_same_predicate() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    assert_eq!(rig.call("POST", "sys/mounts/kv", &root, json!({"type": "kv"})).await.0, 204);
    // The store would take writes of this term throughout: only the view says who is active.
    for (leader, active) in
        [(None, Some(1)), (Some("b"), None), (None, None), (Some("a"), None), (None, Some(1))]
    {
        rig.follow(leader, active.map(Term::new));
        let is_active = active.is_some();
        let (health, body) = rig.call("GET", "sys/health", "", Value::Null).await;
        assert_eq!((health, &body["standby"]), (if is_active { 200 } else { 429 }, &json!(!is_active)));
        let (_, told) = rig.call("GET", "sys/leader", "", Value::Null).await;
        assert_eq!(told["is_self"], json!(is_active));
        let metrics = rig.http.get(format!("{}sys/metrics", rig.url)).header("x-vault-token", &root);
        let text = metrics.send().await.unwrap().text().await.unwrap();
        let line = format!("holdfast_hub_active {}", u8::from(is_active));
        assert!(text.lines().any(|l| l == line), "{line} is missing in {text}");
        let (written, body) = rig.call("PUT", "kv/a", &root, json!({"v": 1})).await;
        assert_eq!(written, if is_active { 204 } else { 503 }, "{body}");
    }
    rig.tasks.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn an_unsealed_node_reads_changed_policies_before_anybody_asks() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    rig.store.take_reads();
    let policy = json!({"policy": "path \"kv/*\" { capabilities = [\"read\"] }"});
    // Root needs no policy, so that nothing but keeping the caches warm reads them.
    assert_eq!(rig.call("PUT", "sys/policies/acl/app", &root, policy).await.0, 204);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !rig.store.take_reads().iter().any(|(prefix, _)| prefix == crate::policy::PREFIX) {
        assert!(Instant::now() < deadline, "nobody read the policies");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rig.tasks.stop(Duration::from_secs(10)).await.unwrap();
}
