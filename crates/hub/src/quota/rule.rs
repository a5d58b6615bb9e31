//! The quotas as they are stored, and which of them holds for a path.

use serde::{Deserialize, Serialize};

/// Where rate quotas are stored, by name.
pub(crate) const RATES: &str = "sys/quota/rate-limit/";
/// Where lease-count quotas are stored, by name.
pub(crate) const LEASES: &str = "sys/quota/lease-count/";

/// How many requests a client may make.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct RateEntry {
    /// Its name.
    pub name: String,
    /// Where it holds; see [`matches`].
    pub path: String,
    /// Requests in an interval; above 0.
    pub rate: f64,
    /// Seconds; at least 1.
    pub interval: u64,
    /// Seconds for which a client that exceeded it is refused everything; 0 for none.
    pub block_interval: u64,
}

/// How many leases there may be.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct LeaseEntry {
    /// Its name.
    pub name: String,
    /// Where it holds; see [`matches`].
    pub path: String,
    /// Leases at once.
    pub max_leases: u64,
    /// The role of the mount at `path` that it is about; empty for all.
    pub role: String,
}

/// Whether a quota with this path holds for a request's path: an empty one holds everywhere, one that ends with
/// `/` or `*` for all that starts with it, any other for that path alone.
pub fn matches(quota: &str, path: &str) -> bool {
    match quota.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None if quota.is_empty() || quota.ends_with('/') => path.starts_with(quota),
        None => path == quota,
    }
}

/// The quota that holds for a path: the one with the longest path of those that match.
pub fn most_specific<T>(rules: impl Iterator<Item = T>, rank: impl Fn(&T) -> (bool, usize)) -> Option<T> {
    rules.max_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_matches_as_its_ending_says() {
        for (quota, path, expected) in [
            ("", "a/b", true),
            ("a/", "a/b", true),
            ("a/", "ab", false),
            ("a/b*", "a/bc", true),
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
        ] {
            assert_eq!(matches(quota, path), expected, "{quota} {path}");
        }
        let longest = most_specific(["", "a/", "a/b*"].into_iter(), |q| (false, q.len()));
        assert_eq!(longest, Some("a/b*"));
    }
}
