//! What a sealed node keeps on its own disk: everything that the root key opens, and how the root key is found.
//!
//! The same record stands in the replicated store, so that a restored backup brings the seal that fits its data.
//! What must hold: without the root key the record tells nothing but names and numbers; a record of a newer format
//! or with a wrong checksum is refused.

use std::path::Path;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use holdfast_core::Kind;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::keyring::{BarrierError, Keyring, SecretKey};

/// The format that this program writes.
pub const FORMAT: u32 = 1;
/// The name of the file in the data directory.
pub const FILE: &str = "seal.json";
/// Where the record stands in the store, in clear: its parts are encrypted by themselves.
pub const STORE_KEY: &str = "core/seal";

const AAD_KEYRING: &[u8] = b"holdfast/seal/keyring";
const AAD_IDENTITY: &[u8] = b"holdfast/seal/identity";
const AAD_ROOT: &[u8] = b"holdfast/seal/root";

/// How the root key is found.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SealType {
    /// Operators put it together from shares.
    #[default]
    Shamir,
    /// It is wrapped by a key in a file.
    Keyfile,
}

impl SealType {
    /// The name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shamir => "shamir",
            Self::Keyfile => "keyfile",
        }
    }
}

/// Why a seal record cannot be read, written or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The text is not a record.
    #[error("{0} is not a seal record")]
    Shape(String, #[source] serde_json::Error),
    /// A newer program wrote it.
    #[error("{file} has format {found}, newer than the {FORMAT} that this version reads")]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
    },
    /// Bytes were changed.
    #[error("{0} is damaged: its checksum does not match")]
    Damaged(String),
    /// The key does not open it.
    #[error("the key does not open the seal")]
    WrongKey,
    /// The disk refused.
    #[error("{0} cannot be read or written")]
    Io(String, #[source] std::io::Error),
    /// The library refused.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
}

impl SealError {
    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Shape(..) | Self::Newer { .. } | Self::Damaged(_) => Kind::Corrupt,
            Self::WrongKey => Kind::Invalid,
            Self::Io(..) => Kind::Unavailable,
            Self::Barrier(error) => error.kind(),
        }
    }
}

/// What may be told of a seal to anyone who asks.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SealPublic {
    /// A UUID, made at initialisation.
    pub cluster_id: String,
    /// For people.
    pub cluster_name: String,
    /// How the root key is found.
    pub seal: SealType,
    /// How many shares there are; for `keyfile`, recovery shares.
    pub shares: u8,
    /// How many of them are needed.
    pub threshold: u8,
    /// The root key wrapped by the key file, base64; `keyfile` only.
    pub wrapped_root: Option<String>,
}

/// A seal: its public part, and what the root key opens.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SealRecord {
    /// What may be told.
    #[serde(flatten)]
    pub public: SealPublic,
    /// The keyring under the root key, base64.
    keyring: String,
    /// The cluster identity under the root key, base64.
    identity: String,
}

/// A record in its envelope, as it is stored.
#[derive(Deserialize, Serialize)]
struct Envelope {
    format: u32,
    sha256: String,
    record: serde_json::Value,
}

impl SealRecord {
    /// Seals a keyring and an identity under `root`.
    pub fn new(
        public: SealPublic,
        root: &SecretKey,
        keyring: &Keyring,
        identity: &[u8],
    ) -> Result<Self, SealError> {
        let plain = serde_json::to_vec(keyring).map(Zeroizing::new);
        let plain = plain.map_err(|e| SealError::Shape("the keyring".into(), e))?;
        Ok(Self {
            public,
            keyring: BASE64.encode(root.seal(AAD_KEYRING, &plain)?),
            identity: BASE64.encode(root.seal(AAD_IDENTITY, identity)?),
        })
    }

    /// Opens the keyring and the identity; this is also how a root key is judged.
    pub fn open(&self, root: &SecretKey) -> Result<(Keyring, Zeroizing<Vec<u8>>), SealError> {
        let keyring = unseal(root, AAD_KEYRING, &self.keyring)?;
        let keyring =
            serde_json::from_slice(&keyring).map_err(|e| SealError::Shape("the keyring".into(), e))?;
        Ok((keyring, unseal(root, AAD_IDENTITY, &self.identity)?))
    }

    /// The stored form, with format and checksum.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SealError> {
        let shape = |e| SealError::Shape(FILE.into(), e);
        let record = serde_json::to_value(self).map_err(shape)?;
        let envelope = Envelope { format: FORMAT, sha256: checksum(&record), record };
        serde_json::to_vec_pretty(&envelope).map_err(shape)
    }

    /// Reads the stored form; `file` names it in errors.
    pub fn from_bytes(file: &str, bytes: &[u8]) -> Result<Self, SealError> {
        let shape = |e| SealError::Shape(file.to_owned(), e);
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(shape)?;
        if envelope.format > FORMAT {
            return Err(SealError::Newer { file: file.to_owned(), found: envelope.format });
        }
        if checksum(&envelope.record) != envelope.sha256 {
            return Err(SealError::Damaged(file.to_owned()));
        }
        serde_json::from_value(envelope.record).map_err(shape)
    }

    /// Reads the record of a data directory; none when the node was never initialised.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, SealError> {
        let path = data_dir.join(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => Self::from_bytes(&path.display().to_string(), &bytes).map(Some),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(SealError::Io(path.display().to_string(), e)),
        }
    }

    /// Writes the record to a data directory and verifies what stands there.
    pub fn save(&self, data_dir: &Path) -> Result<(), SealError> {
        let path = data_dir.join(FILE);
        let bytes = self.to_bytes()?;
        crate::node::files::replace(&path, &bytes)
            .map_err(|e| SealError::Io(path.display().to_string(), e))?;
        match Self::load(data_dir)? {
            Some(read) if read == *self => Ok(()),
            _ => Err(SealError::Damaged(path.display().to_string())),
        }
    }
}

/// Wraps a root key by the key of a file.
pub fn wrap_root(file_key: &SecretKey, root: &SecretKey) -> Result<String, SealError> {
    Ok(BASE64.encode(file_key.seal(AAD_ROOT, root.as_bytes())?))
}

/// Undoes [`wrap_root`].
pub fn unwrap_root(file_key: &SecretKey, wrapped: &str) -> Result<SecretKey, SealError> {
    let root = unseal(file_key, AAD_ROOT, wrapped)?;
    SecretKey::from_bytes(&root).ok_or(SealError::WrongKey)
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyfileError {
    /// It cannot be read, or others could have read it.
    #[error(transparent)]
    File(#[from] holdfast_ops::secret_file::Error),
    /// It does not hold 32 bytes.
    #[error("key file {path} holds {found} bytes, not 32")]
    Length {
        /// The file.
        path: std::path::PathBuf,
        /// Its length.
        found: usize,
    },
}

/// Reads a key file: 32 bytes, owner-only.
pub fn read_keyfile(path: &Path) -> Result<SecretKey, KeyfileError> {
    let bytes = holdfast_ops::secret_file::read(path)?;
    let bytes = bytes.expose_secret();
    SecretKey::from_bytes(bytes)
        .ok_or_else(|| KeyfileError::Length { path: path.to_owned(), found: bytes.len() })
}

fn unseal(root: &SecretKey, aad: &[u8], text: &str) -> Result<Zeroizing<Vec<u8>>, SealError> {
    let sealed = BASE64.decode(text).map_err(|_| SealError::Barrier(BarrierError::Format))?;
    root.open(aad, &sealed).map_err(|error| match error {
        BarrierError::NotAuthentic => SealError::WrongKey,
        other => SealError::Barrier(other),
    })
}

fn checksum(record: &serde_json::Value) -> String {
    // `Value` keeps its keys sorted, so the text is the same however the file was laid out.
    hex::encode(digest::digest(&digest::SHA256, record.to_string().as_bytes()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(root: &SecretKey) -> SealRecord {
        let public = SealPublic {
            cluster_id: "c".into(),
            cluster_name: "n".into(),
            seal: SealType::Shamir,
            shares: 5,
            threshold: 3,
            wrapped_root: None,
        };
        SealRecord::new(public, root, &Keyring::generate().unwrap(), b"identity").unwrap()
    }

    #[test]
    fn a_record_survives_the_disk_and_opens_under_its_key_only() {
        let dir = tempfile::tempdir().unwrap();
        let root = SecretKey::random().unwrap();
        assert_eq!(SealRecord::load(dir.path()).unwrap(), None);
        record(&root).save(dir.path()).unwrap();
        let read = SealRecord::load(dir.path()).unwrap().unwrap();
        assert_eq!(read.open(&root).unwrap().1.as_slice(), b"identity");
        let wrong = read.open(&SecretKey::random().unwrap()).unwrap_err();
        assert!(matches!(wrong, SealError::WrongKey));
    }

    #[test]
    fn a_changed_number_or_a_newer_format_is_refused_by_name() {
        let text = String::from_utf8(record(&SecretKey::random().unwrap()).to_bytes().unwrap()).unwrap();
        let changed = text.replace("\"threshold\": 3", "\"threshold\": 2");
        let error = SealRecord::from_bytes("x/seal.json", changed.as_bytes()).unwrap_err();
        assert!(matches!(error, SealError::Damaged(_)) && error.to_string().contains("x/seal.json"));
        let newer = text.replace("\"format\": 1", "\"format\": 2");
        let error = SealRecord::from_bytes("x/seal.json", newer.as_bytes()).unwrap_err();
        assert!(matches!(error, SealError::Newer { found: 2, .. }));
        assert!(matches!(SealRecord::from_bytes("f", b"{"), Err(SealError::Shape(..))));
    }

    #[test]
    fn a_key_file_wraps_the_root_key() {
        let (file, root) = (SecretKey::random().unwrap(), SecretKey::random().unwrap());
        let wrapped = wrap_root(&file, &root).unwrap();
        assert_eq!(unwrap_root(&file, &wrapped).unwrap().as_bytes(), root.as_bytes());
        assert!(matches!(unwrap_root(&root, &wrapped), Err(SealError::WrongKey)));
    }
}
