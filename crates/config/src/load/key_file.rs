//! Files that hold a key of 32 bytes: raw, or in hexadecimal or base64 digits.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use holdfast_ops::secret_file;
use secrecy::ExposeSecret as _;
use zeroize::Zeroizing;

/// The length of a key, in bytes.
pub const KEY_BYTES: usize = 32;

/// A key, wiped when it is dropped.
pub type Key = Zeroizing<[u8; KEY_BYTES]>;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read, or others may read it.
    #[error(transparent)]
    File(#[from] secret_file::Error),
    /// It holds something else.
    #[error("key file {0} does not hold 32 bytes, raw, in hex or in base64")]
    Length(std::path::PathBuf),
}

/// Reads a key from a file that its owner alone can read.
///
/// # Errors
/// When anybody else has a right to the file, or it does not hold a key.
pub fn read(path: &Path) -> Result<Key, KeyError> {
    let bytes = secret_file::read(path)?;
    decode(bytes.expose_secret()).ok_or_else(|| KeyError::Length(path.to_owned()))
}

fn decode(bytes: &[u8]) -> Option<Key> {
    if let Ok(raw) = <[u8; KEY_BYTES]>::try_from(bytes) {
        return Some(Zeroizing::new(raw));
    }
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let mut key = Key::default();
    if hex::decode_to_slice(text, &mut *key).is_ok() {
        return Some(key);
    }
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].iter().find_map(|engine| {
        let bytes = Zeroizing::new(engine.decode(text).ok()?);
        <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).ok().map(Zeroizing::new)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn three_spellings_of_one_key() {
        let raw: [u8; KEY_BYTES] = std::array::from_fn(|n| u8::try_from((n * 7 + 200) & 0xff).unwrap());
        let hexed = format!("{}\n", hex::encode(raw));
        let based = format!(" {}\n", STANDARD.encode(raw));
        let url = URL_SAFE_NO_PAD.encode(raw);
        for bytes in [&raw[..], hexed.as_bytes(), based.as_bytes(), url.as_bytes()] {
            assert_eq!(*decode(bytes).unwrap(), raw);
        }
        for bytes in [&b""[..], &raw[..31], b"0123456789abcdef", &hexed.as_bytes()[..62], &[0xff; 33]] {
            assert!(decode(bytes).is_none());
        }
    }

    #[test]
    fn the_file_must_be_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, [7; KEY_BYTES]).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(matches!(read(&path), Err(KeyError::File(_))));
        mode(0o600);
        assert_eq!(*read(&path).unwrap(), [7; KEY_BYTES]);
        std::fs::write(&path, [7; 5]).unwrap();
        let text = read(&path).unwrap_err().to_string();
        assert_eq!(
            text,
            format!("key file {} does not hold 32 bytes, raw, in hex or in base64", path.display())
        );
    }
}
