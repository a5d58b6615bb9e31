//! Making a new cluster.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use holdfast_core::Term;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

use super::running::Running;
use super::{Node, Sealed, State};
use crate::barrier::Keyring;
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{STORE_KEY, SealPublic, SealRecord, SealType, wrap_root};
use crate::barrier::shamir;
use crate::error::ApiError;
use crate::logical::Data;
use crate::store::{Batch, Condition, Op};

/// How long the first election of a cluster of one may take.
const FIRST_ELECTION: Duration = Duration::from_secs(35);

/// What a new cluster is to be.
#[derive(Clone, Debug, Default)]
pub struct InitParams {
    /// Shares, or recovery shares.
    pub shares: u8,
    /// How many of them are needed.
    pub threshold: u8,
    /// The text of the root token, for development clusters only; otherwise a fresh one.
    pub root_token: Option<SecretString>,
    /// For people; derived from the id when empty.
    pub cluster_name: String,
}

/// The secrets of a new cluster: told once, kept nowhere.
pub struct Initialised {
    /// Unseal shares; recovery keys under a key file.
    pub keys: Vec<Zeroizing<Vec<u8>>>,
    /// The first token.
    pub root_token: SecretString,
}

impl Initialised {
    /// The shares in hex.
    pub fn keys_hex(&self) -> Vec<String> {
        self.keys.iter().map(hex::encode).collect()
    }

    /// The shares in base64.
    pub fn keys_base64(&self) -> Vec<String> {
        self.keys.iter().map(|key| BASE64.encode(key.as_slice())).collect()
    }
}

impl InitParams {
    /// From a request, by the rules of the configured seal.
    pub fn parse(seal: SealType, data: &Data) -> Result<Self, ApiError> {
        for field in ["pgp_keys", "root_token_pgp_key", "recovery_pgp_keys"] {
            let given = data.value(field).is_some_and(|v| v.as_array().is_none_or(|list| !list.is_empty()));
            if given && data.value(field).and_then(|v| v.as_str()) != Some("") {
                return Err(ApiError::invalid("PGP keys are not supported"));
            }
        }
        let (fields, other, defaults) = match seal {
            SealType::Shamir => {
                (["secret_shares", "secret_threshold"], ["recovery_shares", "recovery_threshold"], (5, 3))
            }
            SealType::Keyfile => {
                (["recovery_shares", "recovery_threshold"], ["secret_shares", "secret_threshold"], (1, 1))
            }
        };
        for field in other {
            // Clients send zeros for what they do not mean.
            if data.int(field)?.is_some_and(|n| n != 0) {
                let text = format!("parameters {field} not applicable to seal type {}", seal.name());
                return Err(ApiError::invalid(text));
            }
        }
        let [shares, threshold] = fields.map(|field| data.int(field));
        let (shares, threshold) = match (shares?, threshold?) {
            (None | Some(0), None | Some(0)) => defaults,
            (shares, threshold) => (shares.unwrap_or(0), threshold.unwrap_or(0)),
        };
        let (shares, threshold) = check_numbers(shares, threshold)?;
        Ok(Self { shares, threshold, ..Self::default() })
    }
}

fn check_numbers(shares: i64, threshold: i64) -> Result<(u8, u8), ApiError> {
    let invalid = |cause: &str| ApiError::invalid(format!("invalid seal configuration: {cause}"));
    if shares < 1 {
        return Err(invalid("shares must be at least one"));
    }
    if threshold < 1 {
        return Err(invalid("threshold must be at least one"));
    }
    let Ok(shares) = u8::try_from(shares) else { return Err(invalid("shares must be less than 256")) };
    let Ok(threshold) = u8::try_from(threshold) else {
        return Err(invalid("threshold must be less than 256"));
    };
    if threshold > shares {
        return Err(invalid("threshold cannot be larger than shares"));
    }
    if shares > 1 && threshold == 1 {
        return Err(invalid("threshold must be greater than one for multiple shares"));
    }
    Ok((shares, threshold))
}

impl Node {
    /// Makes a new cluster of this node. Under `shamir` the node is sealed afterwards, under `keyfile` it is not.
    pub async fn init(self: &Arc<Self>, params: InitParams) -> Result<Initialised, ApiError> {
        let _change = self.change.lock().await;
        if !matches!(self.state(), State::Uninitialised) {
            return Err(ApiError::invalid("Vault is already initialized"));
        }
        // An earlier attempt that was interrupted may have left parts of a cluster that nobody can open.
        self.shared.dir.wipe().map_err(ApiError::internal)?;
        let made = self.make_cluster(&params).await;
        match made {
            Ok((running, done)) => {
                let record = running.record.clone();
                if record.public.seal == SealType::Keyfile {
                    self.set(State::Unsealed(running));
                } else {
                    running.stop().await;
                    self.set(State::Sealed(Sealed::on_disk(record)));
                }
                tracing::info!("initialised");
                Ok(done)
            }
            Err(error) => {
                if let Err(error) = self.shared.dir.wipe() {
                    tracing::warn!(%error, "removing what a failed initialisation left behind failed");
                }
                Err(error)
            }
        }
    }

    async fn make_cluster(
        self: &Arc<Self>,
        params: &InitParams,
    ) -> Result<(Arc<Running>, Initialised), ApiError> {
        let root = SecretKey::random().map_err(ApiError::internal)?;
        let record = self.new_record(params, &root)?;
        let split = match record.public.seal {
            SealType::Shamir => shamir::split(root.as_bytes(), params.shares, params.threshold),
            // Under a key file the shares are for recovery and open nothing by themselves.
            SealType::Keyfile => {
                let recovery = SecretKey::random().map_err(ApiError::internal)?;
                shamir::split(recovery.as_bytes(), params.shares, params.threshold)
            }
        };
        let keys = split.map_err(ApiError::internal)?;
        let running = self.open_record(record.clone(), root, true).await?;
        match self.fill_cluster(&running, params).await.and_then(|token| {
            record.save(self.shared.dir.path()).map_err(ApiError::internal)?;
            Ok(token)
        }) {
            Ok(root_token) => Ok((running, Initialised { keys, root_token })),
            Err(error) => {
                running.stop().await;
                Err(error)
            }
        }
    }

    fn new_record(&self, params: &InitParams, root: &SecretKey) -> Result<SealRecord, ApiError> {
        let seal = self.shared.config.seal.kind;
        let wrapped_root = match seal {
            SealType::Shamir => None,
            SealType::Keyfile => Some(wrap_root(&self.file_key()?, root).map_err(ApiError::internal)?),
        };
        let cluster_id = uuid::Uuid::new_v4().to_string();
        let short = cluster_id.split('-').next().unwrap_or_default();
        let cluster_name = match params.cluster_name.as_str() {
            "" => format!("holdfast-cluster-{short}"),
            name => name.to_owned(),
        };
        let public = SealPublic {
            cluster_id,
            cluster_name,
            seal,
            shares: params.shares,
            threshold: params.threshold,
            wrapped_root,
        };
        let keyring = Keyring::generate().map_err(ApiError::internal)?;
        let identity = self.shared.backend.new_identity().map_err(ApiError::internal)?;
        SealRecord::new(public, root, &keyring, &identity).map_err(ApiError::internal)
    }

    /// Writes what a new cluster starts with: its seal and its first token.
    async fn fill_cluster(&self, running: &Running, params: &InitParams) -> Result<SecretString, ApiError> {
        let hub = &running.hub;
        let term = active_term(running).await?;
        let batch = Batch {
            conditions: vec![Condition::Term(term), Condition::Absent(STORE_KEY.to_owned())],
            ops: vec![Op::Put {
                key: STORE_KEY.to_owned(),
                value: running.record.to_bytes().map_err(ApiError::internal)?,
            }],
        };
        hub.storage.store().commit(batch).await.map_err(ApiError::internal)?;
        let text = params.root_token.as_ref().map(|token| token.expose_secret());
        hub.tokens.create_root(&hub.storage.fenced(term), text).await
    }
}

async fn active_term(running: &Running) -> Result<Term, ApiError> {
    let mut views = running.hub.cluster.watch();
    let active = tokio::time::timeout(FIRST_ELECTION, views.wait_for(|view| view.active.is_some())).await;
    let term = active.ok().and_then(Result::ok).and_then(|view| view.active);
    term.ok_or_else(|| ApiError::failed("the new cluster did not elect its first node in time"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(seal: SealType, body: Value) -> Result<(u8, u8), String> {
        let data = Data::new(body.as_object().unwrap().clone());
        InitParams::parse(seal, &data).map(|p| (p.shares, p.threshold)).map_err(|e| e.errors()[0].clone())
    }

    #[test]
    fn numbers_follow_the_seal() {
        use SealType::{Keyfile, Shamir};
        assert_eq!(parse(Shamir, json!({})), Ok((5, 3)));
        assert_eq!(
            parse(Shamir, json!({"secret_shares": "1", "secret_threshold": 1, "pgp_keys": []})),
            Ok((1, 1))
        );
        assert_eq!(parse(Keyfile, json!({})), Ok((1, 1)));
        assert_eq!(
            parse(Keyfile, json!({"recovery_shares": 5, "recovery_threshold": 3, "secret_shares": 0})),
            Ok((5, 3))
        );
        assert_eq!(
            parse(Keyfile, json!({"secret_shares": 5, "secret_threshold": 3})).unwrap_err(),
            "parameters secret_shares not applicable to seal type keyfile"
        );
        for (shares, threshold) in [(0, 1), (256, 2), (3, 1), (2, 3), (-1, 1), (3, 0)] {
            let error =
                parse(Shamir, json!({"secret_shares": shares, "secret_threshold": threshold})).unwrap_err();
            assert!(error.starts_with("invalid seal configuration: "), "{error}");
        }
        let pgp = parse(Shamir, json!({"pgp_keys": ["keybase:x"]}));
        assert_eq!(pgp.unwrap_err(), "PGP keys are not supported");
    }
}
