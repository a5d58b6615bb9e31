//! The name of a lease: the path that made it and 24 random base62 characters.

use std::fmt;

use serde::{Deserialize, Serialize};

const RANDOM_CHARS: usize = 24;

/// A lease id: `<mount><path>/<24 base62>`.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct LeaseId(String);

impl LeaseId {
    /// A new id for a lease made by a request to `path`.
    pub fn below(path: &str) -> Self {
        Self(format!("{}/{}", path.trim_end_matches('/'), holdfast_ops::rand::base62(RANDOM_CHARS)))
    }

    /// The id as a client wrote it; whether there is such a lease is the store's to say.
    pub fn from_client(text: &str) -> Self {
        Self(text.trim_matches('/').to_owned())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_path_and_24_characters() {
        let id = LeaseId::below("database/creds/app");
        let (path, random) = id.as_str().rsplit_once('/').unwrap();
        assert_eq!(path, "database/creds/app");
        assert_eq!(random.len(), 24);
        assert!(random.bytes().all(|b| b.is_ascii_alphanumeric()));
    }
}
