//! A stand-in for the one call of the Kubernetes API that the hub makes: PATCH of a pod's labels as a merge patch.
//!
//! It has the real thing's semantics as far as they matter there: TLS with the cluster's own authority, a bearer
//! token that is looked up (401), rights on one verb and one namespace (403), pods that exist or do not (404), a patch
//! type that has to be named (415), labels that are merged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The token that the service account gets first.
const TOKEN: &str = "service-account-token-1";

/// A running API server that knows some pods of the namespace `databases`.
pub struct ApiServer {
    url: String,
    account: tempfile::TempDir,
    state: Arc<Mutex<State>>,
}

struct State {
    token: String,
    pods: BTreeMap<String, BTreeMap<String, String>>,
    calls: usize,
}

impl ApiServer {
    /// Serves at this address of the machine, until the runtime ends.
    pub async fn start(host: &str, pods: &[&str]) -> Self {
        let (acceptor, ca) = identity(host);
        let account = tempfile::tempdir().unwrap();
        for (name, text) in [("token", TOKEN), ("namespace", "databases"), ("ca.crt", &ca)] {
            std::fs::write(account.path().join(name), text).unwrap();
        }
        let pods = pods.iter().map(|pod| ((*pod).to_owned(), BTreeMap::new())).collect();
        let state = Arc::new(Mutex::new(State { token: TOKEN.to_owned(), pods, calls: 0 }));
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), shared.clone());
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await.ok()?;
                    serve(stream, &state).await
                });
            }
        });
        Self { url, account, state }
    }

    /// The lines of a hub's configuration that let it label its pod here.
    pub fn config(&self) -> String {
        format!(
            "kubernetes.label_pod = true\nkubernetes.api = {:?}\nkubernetes.service_account = {:?}",
            self.url,
            self.account()
        )
    }

    /// The directory of the service account.
    pub fn account(&self) -> PathBuf {
        self.account.path().to_owned()
    }

    /// What a label of a pod says.
    pub fn label(&self, pod: &str, label: &str) -> Option<String> {
        self.state.lock().pods.get(pod)?.get(label).cloned()
    }

    /// The pods that a Service with this selector would send to.
    pub fn selected(&self, label: &str, value: &str) -> Vec<String> {
        let state = self.state.lock();
        let has = |labels: &BTreeMap<String, String>| labels.get(label).is_some_and(|has| has == value);
        state.pods.iter().filter(|(_, labels)| has(labels)).map(|(pod, _)| pod.clone()).collect()
    }

    /// Replaces the token, as the kubelet does; the former one counts no more.
    pub fn rotate(&self, token: &str) {
        token.clone_into(&mut self.state.lock().token);
        std::fs::write(Path::join(self.account.path(), "token"), token).unwrap();
    }

    /// How many calls came.
    pub fn calls(&self) -> usize {
        self.state.lock().calls
    }
}

fn identity(host: &str) -> (TlsAcceptor, String) {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    let chain = vec![CertificateDer::from(cert)];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    (TlsAcceptor::from(Arc::new(config)), ca.pem())
}

async fn serve<S>(stream: S, state: &Mutex<State>) -> Option<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        stream.read_line(&mut first).await.ok().filter(|read| *read > 0)?;
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut body = vec![0; headers.get("content-length").map_or(0, |n| n.parse().unwrap())];
        stream.read_exact(&mut body).await.ok()?;
        let status = answer(&mut state.lock(), first.trim_end(), &headers, &body);
        let reply =
            format!("HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.write_all(reply.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
    }
}

fn answer(state: &mut State, first: &str, headers: &BTreeMap<String, String>, body: &[u8]) -> u16 {
    state.calls += 1;
    if headers.get("authorization") != Some(&format!("Bearer {}", state.token)) {
        return 401;
    }
    let Some(pod) = first.strip_prefix("PATCH /api/v1/namespaces/databases/pods/") else { return 403 };
    let Some(labels) = state.pods.get_mut(pod.trim_end_matches(" HTTP/1.1")) else { return 404 };
    if headers.get("content-type").is_none_or(|kind| kind != "application/merge-patch+json") {
        return 415;
    }
    let Ok(patch) = serde_json::from_slice::<Value>(body) else { return 400 };
    let Some(changes) = patch["metadata"]["labels"].as_object() else { return 400 };
    for (name, value) in changes {
        match value.as_str() {
            Some(value) => labels.insert(name.clone(), value.to_owned()),
            None => labels.remove(name),
        };
    }
    200
}
