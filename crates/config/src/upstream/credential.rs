//! The replica's own credentials, read from files when they are used, so that a rotated one counts at once.

use std::path::Path;

use holdfast_core::freshness::Failure;
use holdfast_ops::secret_file;
use secrecy::ExposeSecret as _;
use zeroize::Zeroizing;

/// The text of a file that only its owner may read, without white space around it.
///
/// # Errors
/// As a login that is missing: the file's state says nothing about any value.
pub fn text(file: &Path) -> Result<Zeroizing<String>, Failure> {
    let bytes = secret_file::read(file).map_err(|error| missing(file, &error))?;
    trimmed(bytes.expose_secret())
}

/// The text of a file that others put there for us with rights of their own, such as a projected token.
///
/// # Errors
/// As [`text`].
pub fn projected(file: &Path) -> Result<Zeroizing<String>, Failure> {
    let bytes = std::fs::read(file).map(Zeroizing::new).map_err(|error| missing(file, &error))?;
    trimmed(&bytes)
}

fn missing(file: &Path, error: &dyn std::error::Error) -> Failure {
    tracing::info!(file = %file.display(), %error, "a credential cannot be read");
    Failure::own_login()
}

fn trimmed(bytes: &[u8]) -> Result<Zeroizing<String>, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|_| Failure::own_login())?.trim();
    match text.is_empty() {
        true => Err(Failure::own_login()),
        false => Ok(Zeroizing::new(text.to_owned())),
    }
}
