//! The joining node's side: ask for the challenge, wait for the key, answer, take the seal over.

use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use holdfast_core::Kind;
use holdfast_core::time::jittered;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::challenge::{AAD, Answer, AnswerReply, ChallengeReply};
use super::{Node, Sealed, Source, State};
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{SealRecord, SealType, unwrap_root};
use crate::config::is_url;
use crate::error::ApiError;
use crate::logical::Data;

/// How often a node that is to join tries to.
const RETRY: Duration = Duration::from_secs(2);
/// How long the other side may take over one call.
const CALL: Duration = Duration::from_secs(10);

/// Which cluster to join, and how to trust it.
#[derive(Clone, Debug, Default)]
pub struct JoinParams {
    /// URL of the API of a node of the cluster.
    pub leader: String,
    /// PEM authorities behind its certificate.
    pub ca_cert: String,
    /// PEM certificate to show.
    pub client_cert: String,
    /// Its PEM key.
    pub client_key: Option<SecretString>,
    /// The name to expect in its certificate, where the URL's host is not it.
    pub server_name: String,
    /// Whether to go on trying when it cannot be reached.
    pub retry: bool,
    /// Whether to stay without a vote.
    pub non_voter: bool,
    /// Whether a node that was removed from its cluster may wipe its data for this.
    pub rejoin: bool,
}

/// A join that waits for the root key.
#[derive(Clone)]
pub(super) struct PendingJoin {
    params: JoinParams,
    challenge: Vec<u8>,
}

impl JoinParams {
    /// From a request.
    pub fn parse(data: &Data) -> Result<Self, ApiError> {
        let text = |field: &str| data.string(field).map(Option::unwrap_or_default);
        let flag = |field: &str| data.bool(field).map(Option::unwrap_or_default);
        let leader = data.required("leader_api_addr", "leader_api_addr must be specified")?;
        if !is_url(&leader) {
            return Err(ApiError::invalid("leader_api_addr must be a URL"));
        }
        Ok(Self {
            leader: leader.trim_end_matches('/').to_owned(),
            ca_cert: text("leader_ca_cert")?,
            client_cert: text("leader_client_cert")?,
            client_key: data.string("leader_client_key")?.filter(|k| !k.is_empty()).map(Into::into),
            server_name: text("leader_tls_servername")?,
            retry: flag("retry")?,
            non_voter: flag("non_voter")?,
            rejoin: flag("rejoin")?,
        })
    }
}

impl Node {
    /// Joins the cluster behind a URL. Under `shamir` the node is sealed afterwards and becomes a member once its
    /// shares are there.
    pub async fn join(self: &Arc<Self>, params: JoinParams) -> Result<(), ApiError> {
        let result = self.join_once(&params).await;
        match result {
            Err(error) if params.retry && error.kind() == Kind::Unavailable => {
                tracing::warn!(leader = %params.leader, %error, "joining failed and is tried again");
                let node = Arc::clone(self);
                self.shared
                    .tasks
                    .spawn_until_cancelled("join", async move { node.join_until_done(&[params]).await });
                Ok(())
            }
            other => other,
        }
    }

    /// Follows `raft.retry_join` until the node belongs to a cluster.
    pub(super) async fn retry_join(self: Arc<Self>) {
        let all = self.shared.config.raft.retry_join.iter();
        let all: Vec<_> = all
            .map(|join| JoinParams {
                leader: join.leader_api_addr.trim_end_matches('/').to_owned(),
                ca_cert: pem_or_file(&join.ca_cert),
                client_cert: join.client_cert.as_deref().map(file_text).unwrap_or_default(),
                client_key: join.client_key.as_deref().and_then(key_text),
                ..JoinParams::default()
            })
            .collect();
        self.join_until_done(&all).await;
    }

    async fn join_until_done(self: &Arc<Self>, all: &[JoinParams]) {
        let mut told = false;
        for params in all.iter().cycle() {
            if !matches!(self.state(), State::Uninitialised) {
                return;
            }
            match self.join_once(params).await {
                Ok(()) => return,
                Err(error) if told => tracing::debug!(leader = %params.leader, %error, "joining failed"),
                Err(error) => {
                    told = true;
                    tracing::info!(leader = %params.leader, %error, "joining failed and is tried again");
                }
            }
            tokio::time::sleep(jittered(RETRY, 0.2, holdfast_ops::rand::unit())).await;
        }
    }

    async fn join_once(self: &Arc<Self>, params: &JoinParams) -> Result<(), ApiError> {
        let _change = self.change.lock().await;
        let client = LeaderClient::new(params)?;
        let nonce = hex::encode(holdfast_ops::rand::bytes::<16>());
        let request = json!({ "server_id": self.shared.config.node_id, "nonce": nonce });
        let reply: ChallengeReply = client.call("challenge", &request).await?;
        if let Some(seal) = self.seal_public() {
            let own = seal.cluster_id == reply.seal.cluster_id;
            let removed = self.is_removed();
            if !removed && !own {
                return Err(ApiError::invalid(format!("node belongs to cluster {}", seal.cluster_id)));
            }
            if !params.rejoin {
                return Ok(());
            }
            if !removed {
                self.check_forgotten(&reply, &nonce)?;
            }
            self.wipe_removed().await?;
        }
        let challenge =
            BASE64.decode(&reply.challenge).map_err(|_| ApiError::invalid("the challenge is malformed"))?;
        let pending = PendingJoin { params: params.clone(), challenge };
        let sealed = Arc::new(Sealed { public: reply.seal, source: Source::Join(pending) });
        if sealed.public.seal == SealType::Keyfile {
            return self.open_by_keyfile(&sealed).await;
        }
        self.unseal_reset();
        self.set(State::Sealed(sealed));
        tracing::info!(leader = %params.leader, "ready to join; waiting for the unseal keys");
        Ok(())
    }

    /// The second half of a join: proves the root key, and saves the seal that comes back.
    pub(super) async fn finish_join(
        &self,
        pending: &PendingJoin,
        root: &SecretKey,
    ) -> Result<SealRecord, ApiError> {
        let answer = root
            .open(AAD, &pending.challenge)
            .map_err(|_| ApiError::invalid("unseal failed, invalid key"))?;
        let request = Answer {
            server_id: self.shared.config.node_id.clone(),
            answer: BASE64.encode(answer.as_slice()),
            cluster_addr: self.shared.address.cluster.clone(),
            api_addr: self.shared.address.api.clone(),
            non_voter: pending.params.non_voter,
        };
        self.shared.dir.wipe().map_err(ApiError::internal)?;
        let client = LeaderClient::new(&pending.params)?;
        let reply: AnswerReply = client.call("answer", &request).await?;
        reply.seal.open(root).map_err(super::unseal::seal_error)?;
        reply.seal.save(self.shared.dir.path()).map_err(ApiError::internal)?;
        Ok(reply.seal)
    }

    /// A node that did not hear of its removal yet asks the cluster, whose word only the root key proves: without
    /// that anyone could make members wipe themselves.
    fn check_forgotten(&self, reply: &ChallengeReply, nonce: &str) -> Result<(), ApiError> {
        let root = match self.state() {
            State::Unsealed(running) => running.root.clone(),
            State::Sealed(sealed) if sealed.public.seal == SealType::Keyfile => {
                let wrapped = sealed.public.wrapped_root.as_deref().unwrap_or("");
                unwrap_root(&self.file_key()?, wrapped).map_err(super::unseal::seal_error)?
            }
            _ => {
                return Err(ApiError::invalid(
                    "unseal the node first: sealed, it cannot tell its cluster from others",
                ));
            }
        };
        match reply.is_member(&root, &self.shared.config.node_id, nonce) {
            Some(false) => Ok(()),
            Some(true) => {
                let text =
                    "the node is still a member of its cluster: remove it first (operator raft remove-peer)";
                Err(ApiError::invalid(text))
            }
            None => Err(ApiError::invalid("the answer is not that of the cluster of this node")),
        }
    }

    /// Drops what a removed node holds: its cluster has no use for it any more.
    async fn wipe_removed(&self) -> Result<(), ApiError> {
        self.close().await;
        self.shared.dir.wipe().map_err(ApiError::internal)?;
        self.set(State::Uninitialised);
        tracing::warn!("the data of the former membership was wiped");
        Ok(())
    }
}

/// Calls the bootstrap paths of a node of the cluster.
struct LeaderClient {
    http: reqwest::Client,
    base: String,
}

#[derive(serde::Deserialize)]
struct Reply<T> {
    data: T,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Errors {
    errors: Vec<String>,
}

impl LeaderClient {
    fn new(params: &JoinParams) -> Result<Self, ApiError> {
        let mut builder = reqwest::Client::builder().no_proxy().connect_timeout(CALL).timeout(CALL);
        let mut base = params.leader.clone();
        if base.starts_with("https") {
            builder = builder.tls_backend_preconfigured(tls(params)?);
        } else {
            builder = builder.tls_backend_preconfigured(no_roots()?);
        }
        if !params.server_name.is_empty() {
            let (renamed, address) = rename_host(&base, &params.server_name)?;
            builder = builder.resolve(&params.server_name, address);
            base = renamed;
        }
        let http = builder.build().map_err(ApiError::internal)?;
        Ok(Self { http, base })
    }

    async fn call<T: DeserializeOwned>(&self, step: &str, body: &impl Serialize) -> Result<T, ApiError> {
        let url = format!("{}/v1/sys/storage/raft/bootstrap/{step}", self.base);
        let unreachable =
            |e: reqwest::Error| ApiError::unavailable(format!("cannot reach {}", self.base)).caused_by(e);
        let response = self.http.put(&url).json(body).send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if status == 200 {
            let reply: Reply<T> = serde_json::from_slice(&bytes).map_err(|e| {
                ApiError::unavailable(format!("{} gave an unreadable answer", self.base)).caused_by(e)
            })?;
            return Ok(reply.data);
        }
        let errors: Errors = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = format!("{} refused: {} {}", self.base, status, errors.errors.join("; "));
        Err(if (400..500).contains(&status) { ApiError::invalid(text) } else { ApiError::unavailable(text) })
    }
}

fn tls(params: &JoinParams) -> Result<rustls::ClientConfig, ApiError> {
    let invalid = |what: &str| ApiError::invalid(format!("{what} cannot be used as PEM"));
    if params.ca_cert.is_empty() {
        return Err(ApiError::invalid("leader_ca_cert must be specified for an https address"));
    }
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(params.ca_cert.as_bytes()) {
        roots.add(cert.map_err(|_| invalid("leader_ca_cert"))?).map_err(|_| invalid("leader_ca_cert"))?;
    }
    let builder = client_builder()?.with_root_certificates(roots);
    let Some(key) = &params.client_key else { return Ok(builder.with_no_client_auth()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(params.client_cert.as_bytes()).collect();
    let chain = chain.map_err(|_| invalid("leader_client_cert"))?;
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret().as_bytes())
        .map_err(|_| invalid("leader_client_key"))?;
    builder.with_client_auth_cert(chain, key).map_err(|_| invalid("leader_client_key"))
}

/// Plain HTTP needs no authority, but the client library wants a configuration all the same.
fn no_roots() -> Result<rustls::ClientConfig, ApiError> {
    Ok(client_builder()?.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

fn client_builder() -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier>, ApiError> {
    rustls::ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(ApiError::internal)
}

/// The URL with another host, and the address behind the first one.
fn rename_host(base: &str, name: &str) -> Result<(String, std::net::SocketAddr), ApiError> {
    let invalid = || ApiError::invalid("leader_api_addr must be a URL");
    let uri: http::Uri = base.parse().map_err(|_| invalid())?;
    let (scheme, host) = uri.scheme_str().zip(uri.host()).ok_or_else(invalid)?;
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    let unknown = || ApiError::unavailable(format!("cannot resolve {host}"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(unknown)?;
    Ok((format!("{scheme}://{name}:{port}"), address))
}

/// PEM text as it is, or the content of the file that is named.
fn pem_or_file(text: &str) -> String {
    if text.is_empty() || text.contains("-----BEGIN") {
        return text.to_owned();
    }
    file_text(Path::new(text))
}

fn file_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "raft.retry_join: the file cannot be read");
        String::new()
    })
}

/// The text of a key file that only its owner can read.
fn key_text(path: &Path) -> Option<SecretString> {
    let bytes = holdfast_ops::secret_file::read(path);
    let bytes =
        bytes.inspect_err(|error| tracing::warn!(%error, "raft.retry_join: the client key cannot be used"));
    let text = std::str::from_utf8(bytes.ok()?.expose_secret()).map(str::to_owned);
    text.ok().map(SecretString::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_keeps_the_address() {
        let (url, address) = rename_host("https://[::1]:8200", "hub.example").unwrap();
        assert_eq!(url, "https://hub.example:8200");
        assert_eq!(address, "[::1]:8200".parse().unwrap());
    }

    #[test]
    fn https_needs_an_authority() {
        let params = JoinParams { leader: "https://a".into(), ..JoinParams::default() };
        assert_eq!(LeaderClient::new(&params).err().unwrap().status(), 400);
        let plain = JoinParams { leader: "http://a".into(), ..JoinParams::default() };
        assert!(LeaderClient::new(&plain).is_ok());
    }
}
