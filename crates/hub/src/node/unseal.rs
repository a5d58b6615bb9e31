//! Unsealing: shares, or the key file.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::running::Running;
use super::{Node, Sealed, Source, State};
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{self, SealError, SealRecord, SealType};
use crate::barrier::shamir;
use crate::error::ApiError;

const INVALID: &str = "unseal failed, invalid key";

/// The shares given so far.
#[derive(Default)]
pub(super) struct Progress {
    nonce: String,
    shares: Vec<Zeroizing<Vec<u8>>>,
}

impl Progress {
    /// Adds a share; the same one again changes nothing.
    fn add(&mut self, share: Zeroizing<Vec<u8>>) {
        if self.shares.iter().any(|have| bool::from(have.as_slice().ct_eq(&share))) {
            return;
        }
        if self.shares.is_empty() {
            self.nonce = uuid::Uuid::new_v4().to_string();
        }
        self.shares.push(share);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A share as clients send it: hex or base64.
pub fn decode_share(text: &str) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let text = text.trim();
    let bytes = hex::decode(text).ok().or_else(|| BASE64.decode(text).ok()).filter(|b| !b.is_empty());
    bytes.map(Zeroizing::new).ok_or_else(|| ApiError::invalid("'key' must be a valid hex or base64 string"))
}

impl Node {
    /// How many shares were given, and the number of this attempt; empty while there is none.
    pub fn unseal_progress(&self) -> (usize, String) {
        let progress = self.progress.lock();
        (progress.shares.len(), progress.nonce.clone())
    }

    /// Forgets the shares given so far.
    pub fn unseal_reset(&self) {
        self.progress.lock().clear();
    }

    /// Takes one share; at the threshold the node unseals, or the shares are forgotten and it is a 400.
    pub async fn unseal(self: &Arc<Self>, share: Zeroizing<Vec<u8>>) -> Result<(), ApiError> {
        let _change = self.change.lock().await;
        let sealed = match self.state() {
            State::Unsealed(_) => return Ok(()),
            State::Uninitialised => return Err(ApiError::invalid("Vault is not initialized")),
            State::Sealed(sealed) => sealed,
        };
        if sealed.public.seal == SealType::Keyfile {
            return self.open_by_keyfile(&sealed).await;
        }
        let shares = {
            let mut progress = self.progress.lock();
            progress.add(share);
            if progress.shares.len() < usize::from(sealed.public.threshold) {
                return Ok(());
            }
            let shares = std::mem::take(&mut progress.shares);
            progress.clear();
            shares
        };
        let root = shamir::combine(&shares).ok().and_then(|bytes| SecretKey::from_bytes(&bytes));
        self.open_sealed(&sealed, root.ok_or_else(|| ApiError::invalid(INVALID))?).await
    }

    /// Unseals by the key file of the configuration.
    pub async fn unseal_by_keyfile(self: &Arc<Self>) -> Result<(), ApiError> {
        let _change = self.change.lock().await;
        match self.state() {
            State::Sealed(sealed) => self.open_by_keyfile(&sealed).await,
            _ => Ok(()),
        }
    }

    pub(super) async fn open_by_keyfile(self: &Arc<Self>, sealed: &Arc<Sealed>) -> Result<(), ApiError> {
        let key = self.file_key()?;
        let wrapped = sealed.public.wrapped_root.as_deref().unwrap_or("");
        let root = seal::unwrap_root(&key, wrapped).map_err(seal_error)?;
        self.open_sealed(sealed, root).await
    }

    /// The key in the key file.
    pub(super) fn file_key(&self) -> Result<SecretKey, ApiError> {
        let path = self.shared.config.seal.keyfile.as_deref();
        let path = path.ok_or_else(|| ApiError::invalid("this node has no key file (seal.keyfile)"))?;
        seal::read_keyfile(path).map_err(|e| ApiError::failed("the key file cannot be used").caused_by(e))
    }

    /// Opens a seal with a root key: from disk, or by finishing the join that is under way.
    async fn open_sealed(self: &Arc<Self>, sealed: &Arc<Sealed>, root: SecretKey) -> Result<(), ApiError> {
        let record = match &sealed.source {
            Source::Disk(record) => record.clone(),
            Source::Join(pending) => self.finish_join(pending, &root).await?,
        };
        let running = self.open_record(record, root, false).await?;
        self.set(State::Unsealed(running));
        tracing::info!("unsealed");
        Ok(())
    }

    /// Starts the services under a record; the caller holds the change lock and sets the state.
    pub(super) async fn open_record(
        self: &Arc<Self>,
        record: SealRecord,
        root: SecretKey,
        found: bool,
    ) -> Result<Arc<Running>, ApiError> {
        let (keyring, identity) = record.open(&root).map_err(seal_error)?;
        let opening = self.opening(identity, found)?;
        let tasks = opening.tasks.clone();
        let running = match Running::start(&self.shared, record, root, keyring, opening).await {
            Ok(running) => running,
            Err(error) => {
                // What had started before the failure must not outlive it.
                let _ = tasks.stop(std::time::Duration::from_secs(5)).await;
                let text = error.to_string();
                return Err(ApiError::failed(text).caused_by(error));
            }
        };
        let node = Arc::downgrade(self);
        let changed = Arc::clone(&running.seal_changed);
        running.tasks().spawn_until_cancelled("seal-watch", super::restored::watch(node, changed));
        Ok(running)
    }
}

pub(super) fn seal_error(error: SealError) -> ApiError {
    match error {
        SealError::WrongKey => ApiError::invalid(INVALID),
        other => ApiError::failed("the seal cannot be used").caused_by(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_share_twice_does_not_advance() {
        let mut progress = Progress::default();
        progress.add(Zeroizing::new(vec![1, 2]));
        let nonce = progress.nonce.clone();
        progress.add(Zeroizing::new(vec![1, 2]));
        assert_eq!(progress.shares.len(), 1);
        progress.add(Zeroizing::new(vec![2, 2]));
        assert_eq!((progress.shares.len(), &progress.nonce), (2, &nonce));
        progress.clear();
        assert_eq!((progress.shares.len(), progress.nonce.as_str()), (0, ""));
    }

    #[test]
    fn shares_are_hex_or_base64() {
        assert_eq!(decode_share("0aff").unwrap().as_slice(), [0x0a, 0xff]);
        assert_eq!(decode_share("AQID").unwrap().as_slice(), [1, 2, 3]);
        for bad in ["", "zz!", "=="] {
            assert_eq!(decode_share(bad).unwrap_err().status(), 400, "{bad}");
        }
    }
}
