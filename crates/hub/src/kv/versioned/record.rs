//! What is stored of a secret and of the mount, and the rules on it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::wall::rfc3339;

/// How many versions are kept when nothing is configured.
const MAX_VERSIONS: u64 = 10;

/// The mount's own settings.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub(super) struct Config {
    /// Versions kept of each secret; 0 for 10.
    pub max_versions: u64,
    /// Whether every write must carry `cas`.
    pub cas_required: bool,
    /// Seconds after which a version counts as deleted; 0 for never, negative to overrule the secrets' own.
    pub delete_version_after: i64,
}

/// One version of a secret, without its data.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Version {
    /// When it was written.
    pub created: Timestamp,
    /// From when on it counts as deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<Timestamp>,
    /// Whether its data is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub destroyed: bool,
}

impl Version {
    /// Whether its data may be read at `now`.
    pub(super) fn is_readable(&self, now: Timestamp) -> bool {
        !self.destroyed && self.deleted.is_none_or(|at| at > now)
    }

    /// As clients see it.
    pub(super) fn describe(&self) -> Map<String, Value> {
        let deleted = self.deleted.map(rfc3339).unwrap_or_default();
        Map::from_iter([
            ("created_time".to_owned(), json!(rfc3339(self.created))),
            ("deletion_time".to_owned(), json!(deleted)),
            ("destroyed".to_owned(), json!(self.destroyed)),
        ])
    }
}

/// What is known of a secret beside its data.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Metadata {
    /// When it was first written.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
    /// The newest version; 0 before the first.
    #[serde(default)]
    pub current: u64,
    /// The oldest version that is kept, once older ones are gone; 0 before.
    #[serde(default)]
    pub oldest: u64,
    /// The kept versions.
    #[serde(default)]
    pub versions: BTreeMap<u64, Version>,
    /// Versions kept; 0 for the mount's.
    #[serde(default)]
    pub max_versions: u64,
    /// Whether every write must carry `cas`.
    #[serde(default)]
    pub cas_required: bool,
    /// Seconds after which a version counts as deleted; 0 for the mount's, negative for never.
    #[serde(default)]
    pub delete_version_after: i64,
    /// What its owner noted.
    #[serde(default)]
    pub custom: BTreeMap<String, String>,
}

impl Metadata {
    /// Of a secret without versions.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            created: now,
            updated: now,
            current: 0,
            oldest: 0,
            versions: BTreeMap::new(),
            max_versions: 0,
            cas_required: false,
            delete_version_after: 0,
            custom: BTreeMap::new(),
        }
    }

    /// Adds a version at `now`; returns its number and those that are no longer kept.
    pub(super) fn add(&mut self, now: Timestamp, config: &Config) -> (u64, Vec<u64>) {
        let deleted = life(config.delete_version_after, self.delete_version_after)
            .and_then(|seconds| now.checked_add(SignedDuration::from_secs(seconds)).ok());
        self.current = self.current.saturating_add(1);
        self.versions.insert(self.current, Version { created: now, deleted, destroyed: false });
        self.updated = now;
        let keep = [self.max_versions, config.max_versions].into_iter().find(|max| *max > 0);
        let first = self.current.saturating_sub(keep.unwrap_or(MAX_VERSIONS)).saturating_add(1);
        let kept = self.versions.split_off(&first);
        let dropped: Vec<u64> = std::mem::replace(&mut self.versions, kept).into_keys().collect();
        if !dropped.is_empty() {
            self.oldest = first;
        }
        (self.current, dropped)
    }

    /// A version as the answers about data show it.
    pub(super) fn describe_version(&self, number: u64, version: &Version) -> Value {
        let mut map = version.describe();
        map.insert("custom_metadata".to_owned(), self.describe_custom());
        map.insert("version".to_owned(), json!(number));
        Value::Object(map)
    }

    /// The notes, null when there are none.
    pub(super) fn describe_custom(&self) -> Value {
        if self.custom.is_empty() { Value::Null } else { json!(self.custom) }
    }
}

/// Seconds that a version lives; the shorter of the mount's and the secret's.
fn life(mount: i64, secret: i64) -> Option<i64> {
    if mount < 0 || secret < 0 {
        return None;
    }
    [mount, secret].into_iter().filter(|seconds| *seconds > 0).min()
}

/// Seconds as `1h2m3s`; `0s` for none.
pub(super) fn duration_text(seconds: i64) -> String {
    let (sign, left) = (if seconds < 0 { "-" } else { "" }, seconds.unsigned_abs());
    let (hours, minutes, rest) = (left / 3600, left % 3600 / 60, left % 60);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{rest}s"),
        (0, _) => format!("{sign}{minutes}m{rest}s"),
        _ => format!("{sign}{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_the_newest_versions_are_kept() {
        let mut metadata = Metadata::new(at(0));
        metadata.max_versions = 2;
        let config = Config { max_versions: 5, ..Config::default() };
        let dropped: Vec<_> = (1..=4).map(|n| metadata.add(at(n), &config)).collect();
        assert_eq!(dropped, [(1, vec![]), (2, vec![]), (3, vec![1]), (4, vec![2])]);
        assert_eq!((metadata.oldest, metadata.current), (3, 4));
        metadata.max_versions = 1;
        assert_eq!(metadata.add(at(5), &config), (5, vec![3, 4]));
    }

    #[test]
    fn the_shorter_life_holds_and_a_negative_one_switches_it_off() {
        for (mount, secret, expected) in
            [(0, 0, None), (5, 0, Some(5)), (0, 5, Some(5)), (9, 5, Some(5)), (-1, 5, None), (5, -1, None)]
        {
            assert_eq!(life(mount, secret), expected, "{mount} {secret}");
        }
        let mut metadata = Metadata::new(at(0));
        metadata.add(at(10), &Config { delete_version_after: 60, ..Config::default() });
        let version = &metadata.versions[&1];
        assert!(version.is_readable(at(69)) && !version.is_readable(at(70)));
    }

    #[test]
    fn durations_are_written_as_clients_of_this_api_know_them() {
        let texts = [0, 59, 60, 3661, -1].map(duration_text);
        assert_eq!(texts, ["0s", "59s", "1m0s", "1h1m1s", "-1s"]);
    }
}
