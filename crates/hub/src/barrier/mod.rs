//! The encryption layer: every value that leaves for the log or the store is ciphertext made here.
//!
//! Contract: a sealed barrier holds no key; an opened value is authentic and belongs to the storage key it was
//! read from, because that key is the associated data.

pub mod keyring;
pub mod seal;
pub mod shamir;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use zeroize::Zeroizing;

pub use keyring::{BarrierError, Keyring};

/// What a message authentication code is for; each purpose has its own key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MacPurpose {
    /// Token ids as they appear in storage keys.
    Token,
    /// Values in audit lines.
    Audit,
    /// The sealed sums of a backup.
    Backup,
    /// Secret ids, wrapping and anything else that is looked up by a secret.
    Lookup,
}

impl MacPurpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Token => b"holdfast/mac/token",
            Self::Audit => b"holdfast/mac/audit",
            Self::Backup => b"holdfast/mac/backup",
            Self::Lookup => b"holdfast/mac/lookup",
        }
    }
}

/// The barrier of one node: sealed, or open with the cluster's keyring.
#[derive(Default)]
pub struct Barrier {
    keyring: ArcSwapOption<Keyring>,
}

impl Barrier {
    /// A sealed barrier.
    pub fn sealed() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A barrier opened with a keyring.
    pub fn opened(keyring: Keyring) -> Arc<Self> {
        let barrier = Self::default();
        barrier.open_with(keyring);
        Arc::new(barrier)
    }

    /// Opens the barrier, or replaces its keyring after a rotation.
    pub fn open_with(&self, keyring: Keyring) {
        self.keyring.store(Some(Arc::new(keyring)));
    }

    /// Forgets every key; they are wiped when the last operation under way ends.
    pub fn seal(&self) {
        self.keyring.store(None);
    }

    /// Whether no key is held.
    pub fn is_sealed(&self) -> bool {
        self.keyring.load().is_none()
    }

    /// The keyring, while open.
    pub fn keyring(&self) -> Result<Arc<Keyring>, BarrierError> {
        self.keyring.load_full().ok_or(BarrierError::Sealed)
    }

    /// Encrypts `plaintext` for the storage key `key`.
    pub fn encrypt(&self, key: &str, plaintext: &[u8]) -> Result<Vec<u8>, BarrierError> {
        self.keyring()?.encrypt(key.as_bytes(), plaintext)
    }

    /// Decrypts what was read from the storage key `key`.
    pub fn decrypt(&self, key: &str, ciphertext: &[u8]) -> Result<Zeroizing<Vec<u8>>, BarrierError> {
        self.keyring()?.decrypt(key.as_bytes(), ciphertext)
    }

    /// HMAC-SHA-256 of `data` under the purpose's own key, which survives a rotation of the data keys.
    pub fn mac(&self, purpose: MacPurpose, data: &[u8]) -> Result<[u8; 32], BarrierError> {
        self.keyring()?.mac(purpose.label(), data)
    }
}
