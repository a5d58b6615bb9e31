//! Policies: which paths a token may touch, and how.
//!
//! Parsed policies are cached by name until an applied entry changes them, on every node.

mod builtin;
mod decision;
mod node;
mod parse;
pub mod rule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

pub use builtin::{DEFAULT, ROOT, WRAPPING};
pub use decision::Decision;
pub use parse::{Policy, PolicyError, parse};

use crate::error::ApiError;
use crate::logical::{Cx, Operation};
use crate::storage::Storage;

/// Where the texts lie, in the whole store.
pub(crate) const PREFIX: &str = "sys/policy/";

/// A stored policy.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    text: String,
}

/// Parsed policies and a count of the changes seen, so that what was read before a change is not kept after it.
#[derive(Default)]
struct Cache {
    changes: u64,
    held: HashMap<String, Arc<Policy>>,
}

impl Cache {
    fn applied(&mut self, keys: &BTreeSet<String>) {
        if keys.is_empty() {
            self.changes += 1;
            self.held.clear();
        }
        for name in keys.iter().filter_map(|key| key.strip_prefix(PREFIX)) {
            self.changes += 1;
            self.held.remove(name);
        }
    }
}

/// The policies of the cluster, cached until an applied entry changes them.
pub struct Policies {
    storage: Storage,
    cache: Arc<RwLock<Cache>>,
}

impl Policies {
    /// Over the whole store.
    pub fn new(storage: Storage) -> Self {
        let cache = Arc::new(RwLock::new(Cache::default()));
        let seen = Arc::clone(&cache);
        storage.store().on_applied(Arc::new(move |keys| {
            let touched = keys.is_empty()
                || keys.range(PREFIX.to_owned()..).next().is_some_and(|key| key.starts_with(PREFIX));
            if touched {
                seen.write().applied(keys);
            }
        }));
        Self { storage, cache }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// What these policies say of an operation on a path. `exists` tells whether what a write addresses is there.
    pub fn decide(
        &self,
        storage: &Storage,
        policies: &[String],
        path: &str,
        operation: Operation,
        exists: bool,
    ) -> Result<Decision, ApiError> {
        if is_root(policies) {
            return Ok(Decision::root());
        }
        Ok(Decision::of(&self.load_all(storage, policies)?, path, operation, exists))
    }

    /// The names of what these policies grant on a path, as clients are shown them.
    pub fn capabilities(&self, policies: &[String], path: &str) -> Result<Vec<&'static str>, ApiError> {
        if is_root(policies) {
            return Ok(vec![ROOT]);
        }
        let path = path.strip_prefix('/').unwrap_or(path);
        Ok(decision::granted(&self.load_all(&self.storage, policies)?, path).names())
    }

    /// Whether these policies grant anything at or below a mount, whose path ends with a slash.
    pub fn reaches(&self, storage: &Storage, policies: &[String], mount: &str) -> Result<bool, ApiError> {
        if is_root(policies) {
            return Ok(true);
        }
        let grants =
            |rule: &rule::Rule| !rule.capabilities.has(rule::Capability::Deny) && rule.pattern.reaches(mount);
        Ok(self.load_all(storage, policies)?.iter().any(|policy| policy.rules.iter().any(grants)))
    }

    /// The text of a policy.
    pub fn text(&self, storage: &Storage, name: &str) -> Result<Option<String>, ApiError> {
        match name {
            ROOT => return Ok(Some(String::new())),
            WRAPPING => return Ok(Some(builtin::WRAPPING_TEXT.to_owned())),
            _ => {}
        }
        let stored = storage.get::<Record>(&key(name))?.map(|stored| stored.value.text);
        Ok(stored.or_else(|| (name == DEFAULT).then(|| builtin::DEFAULT_TEXT.to_owned())))
    }

    /// The names of all policies, in order after `after`.
    pub fn names(
        &self,
        storage: &Storage,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, ApiError> {
        let mut names = storage.list(PREFIX, None, usize::MAX)?;
        names.extend([ROOT.to_owned(), DEFAULT.to_owned()]);
        names.sort();
        names.dedup();
        names.retain(|name| after.is_none_or(|after| name.as_str() > after));
        names.truncate(limit);
        Ok(names)
    }

    /// Creates or changes a policy.
    pub async fn write(&self, cx: &Cx, name: &str, text: &str) -> Result<(), ApiError> {
        if name == ROOT || name == WRAPPING {
            return Err(ApiError::invalid(format!("cannot update {name:?} policy")));
        }
        if name.is_empty() || name.contains('/') || name.chars().any(char::is_control) {
            return Err(ApiError::invalid("a policy name has no slash and no control character"));
        }
        parse(text)?;
        cx.storage.put(&key(name), &Record { text: text.to_owned() }).await?;
        Ok(())
    }

    /// Deletes a policy; one that is not there is no error.
    pub async fn delete(&self, cx: &Cx, name: &str) -> Result<(), ApiError> {
        if [ROOT, DEFAULT, WRAPPING].contains(&name) {
            return Err(ApiError::invalid(format!("cannot delete {name:?} policy")));
        }
        cx.storage.delete(&key(name)).await?;
        Ok(())
    }

    /// Parses every stored policy that is not in memory. One that cannot be parsed grants nothing to anybody and is
    /// told of when it is used.
    pub(crate) fn warm(&self) -> Result<(), ApiError> {
        for key in self.storage.scan_keys(PREFIX, None, usize::MAX)? {
            if let Err(error) = self.load(&self.storage, key.strip_prefix(PREFIX).unwrap_or(&key)) {
                tracing::debug!(%key, %error, "a policy cannot be kept in memory");
            }
        }
        Ok(())
    }

    /// The parsed policies that exist; names of others mean nothing.
    fn load_all(&self, storage: &Storage, names: &[String]) -> Result<Vec<Arc<Policy>>, ApiError> {
        names.iter().filter_map(|name| self.load(storage, name).transpose()).collect()
    }

    fn load(&self, storage: &Storage, name: &str) -> Result<Option<Arc<Policy>>, ApiError> {
        let before = {
            let cache = self.cache.read();
            if let Some(policy) = cache.held.get(name) {
                return Ok(Some(Arc::clone(policy)));
            }
            cache.changes
        };
        let Some(text) = self.text(storage, name)? else { return Ok(None) };
        // A stored text was parsed when it was written; if it cannot be now, nobody may pass.
        let policy = Arc::new(parse(&text).map_err(ApiError::internal)?);
        let mut cache = self.cache.write();
        if cache.changes == before {
            cache.held.insert(name.to_owned(), Arc::clone(&policy));
        }
        Ok(Some(policy))
    }
}

fn is_root(policies: &[String]) -> bool {
    policies.iter().any(|policy| policy == ROOT)
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}
