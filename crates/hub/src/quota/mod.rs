//! Quotas: how many requests and leases a path may have.
//!
//! Rates are counted in memory by the active node, for each client address apart; leases are counted in the
//! store. Of several quotas that match a path the most specific one holds.

pub mod rule;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Mono;
use holdfast_core::quota::{Rate, RateQuota, Verdict, lease_count_allows};
use holdfast_ops::MonoClock;
use parking_lot::Mutex;

use crate::cached::Cached;
use crate::error::ApiError;
use crate::logical::Cx;
use crate::metrics::{Metrics, QuotaKind, Rejected};
use crate::storage::{Storage, StorageError};
use rule::{LEASES, LeaseEntry, RATES, RateEntry, matches, most_specific};

/// How often clients that make no difference any more are forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// A rate quota with what it counted.
struct Counted {
    entry: RateEntry,
    state: Mutex<(RateQuota<IpAddr>, Mono)>,
}

/// Leases that are being made, by the prefix that counts them.
type Reserved = Arc<Mutex<HashMap<String, u64>>>;

/// Room for one lease, kept while it is being made: hold it until the lease is stored or given up.
#[derive(Debug)]
pub struct LeaseRoom {
    prefix: Option<String>,
    reserved: Reserved,
}

impl Drop for LeaseRoom {
    fn drop(&mut self) {
        let Some(prefix) = &self.prefix else { return };
        let mut reserved = self.reserved.lock();
        if let Some(count) = reserved.get_mut(prefix) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                reserved.remove(prefix);
            }
        }
    }
}

/// The quotas of the cluster.
pub struct Quotas {
    storage: Storage,
    metrics: Metrics,
    clock: MonoClock,
    rates: Cached<Vec<Arc<Counted>>>,
    leases: Cached<Vec<LeaseEntry>>,
    /// What was counted survives a change of other quotas.
    counted: Mutex<BTreeMap<String, Arc<Counted>>>,
    reserved: Reserved,
}

impl Quotas {
    /// Over the whole store, with metrics of its own.
    pub fn new(storage: Storage) -> Self {
        Self::with_metrics(storage, Metrics::new())
    }

    /// Over the whole store.
    pub fn with_metrics(storage: Storage, metrics: Metrics) -> Self {
        Self {
            rates: Cached::watching(&storage, &[RATES]),
            leases: Cached::watching(&storage, &[LEASES]),
            storage,
            metrics,
            clock: MonoClock::new(),
            counted: Mutex::default(),
            reserved: Reserved::default(),
        }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Counts a request of a client, or refuses it with 429. `_mount` is the mount that serves the path.
    pub fn check_rate(&self, path: &str, _mount: Option<&str>, remote: IpAddr) -> Result<(), ApiError> {
        self.check_rate_at(self.clock.now(), path, remote)
    }

    fn check_rate_at(&self, now: Mono, path: &str, remote: IpAddr) -> Result<(), ApiError> {
        let rules = self.rates()?;
        let fitting = rules.iter().filter(|rule| matches(&rule.entry.path, path));
        let Some(rule) = most_specific(fitting, |rule| (false, rule.entry.path.len())) else {
            return Ok(());
        };
        let verdict = {
            let mut state = rule.state.lock();
            if now.since(state.1) >= SWEEP {
                state.0.sweep(now);
                state.1 = now;
            }
            state.0.check(now, &remote.to_canonical())
        };
        match verdict {
            Verdict::Allow => Ok(()),
            Verdict::Refuse { retry_after } => Err(self.refuse_rate(path, retry_after)),
        }
    }

    /// 429 for a request that is over a rate; counts it.
    pub(crate) fn refuse_rate(&self, path: &str, retry_after: Duration) -> ApiError {
        self.reject(QuotaKind::Rate);
        let text = format!("request path {path:?}: rate limit quota exceeded");
        ApiError::rate_limited(text, seconds_up(retry_after))
    }

    /// Makes room for one more lease at `path`, issued for `role`, or refuses it with 429.
    pub fn check_leases(&self, cx: &Cx, path: &str, role: Option<&str>) -> Result<LeaseRoom, ApiError> {
        let rules = self.lease_rules()?;
        let fits = |rule: &&LeaseEntry| {
            matches(&rule.path, path) && (rule.role.is_empty() || Some(rule.role.as_str()) == role)
        };
        let rank = |rule: &&LeaseEntry| (!rule.role.is_empty(), rule.path.len());
        let Some(rule) = most_specific(rules.iter().filter(fits), rank) else {
            return Ok(LeaseRoom { prefix: None, reserved: Arc::clone(&self.reserved) });
        };
        let prefix = counted_prefix(rule);
        // Room is taken before the stored leases are counted: one that is stored meanwhile is then counted twice for
        // a moment, and not left out.
        let (room, being_made) = self.reserve(&prefix);
        if lease_count_allows(cx.storage.count(&prefix)?.saturating_add(being_made), rule.max_leases) {
            return Ok(room);
        }
        self.reject(QuotaKind::LeaseCount);
        Err(ApiError::rate_limited("lease count quota exceeded", 1))
    }

    /// Takes room for one more lease; says how many others are being made.
    fn reserve(&self, prefix: &str) -> (LeaseRoom, u64) {
        let mut reserved = self.reserved.lock();
        let being_made = reserved.entry(prefix.to_owned()).or_default();
        let others = *being_made;
        *being_made = others.saturating_add(1);
        drop(reserved);
        (LeaseRoom { prefix: Some(prefix.to_owned()), reserved: Arc::clone(&self.reserved) }, others)
    }

    fn reject(&self, kind: QuotaKind) {
        self.metrics.quota_rejected.get_or_create(&Rejected { kind }).inc();
    }

    /// Reads the rules that are not in memory.
    pub(crate) fn warm(&self) -> Result<(), StorageError> {
        self.rates()?;
        self.lease_rules()?;
        Ok(())
    }

    fn lease_rules(&self) -> Result<Arc<Vec<LeaseEntry>>, StorageError> {
        self.leases.load(|| {
            let stored = self.storage.scan::<LeaseEntry>(LEASES, None, usize::MAX)?;
            Ok(stored.into_iter().map(|(_, stored)| stored.value).collect())
        })
    }

    fn rates(&self) -> Result<Arc<Vec<Arc<Counted>>>, StorageError> {
        self.rates.load(|| {
            let mut counted = self.counted.lock();
            let stored = self.storage.scan::<RateEntry>(RATES, None, usize::MAX)?;
            let rules: Vec<_> = stored
                .into_iter()
                .map(|(_, stored)| match counted.get(&stored.value.name) {
                    Some(rule) if rule.entry == stored.value => Arc::clone(rule),
                    _ => Arc::new(Counted::new(stored.value)),
                })
                .collect();
            *counted = rules.iter().map(|rule| (rule.entry.name.clone(), Arc::clone(rule))).collect();
            Ok(rules)
        })
    }
}

impl Counted {
    fn new(entry: RateEntry) -> Self {
        let rate = Rate {
            interval: Duration::from_secs(entry.interval.max(1)),
            block_interval: Duration::from_secs(entry.block_interval),
            ..Rate::per_second(entry.rate)
        };
        Self { entry, state: Mutex::new((RateQuota::new(rate), Mono::ZERO)) }
    }
}

/// The keys that count for a quota: lease ids start with the path that issued them.
pub(crate) fn counted_prefix(rule: &LeaseEntry) -> String {
    let path = rule.path.trim_end_matches('*');
    let whole = !rule.path.is_empty() && !rule.path.ends_with(['/', '*']);
    match (rule.role.as_str(), whole) {
        ("", false) => format!("lease/id/{path}"),
        ("", true) => format!("lease/id/{path}/"),
        (role, _) => format!("lease/id/{}/creds/{role}/", path.trim_end_matches('/')),
    }
}

fn seconds_up(wait: Duration) -> u32 {
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::testing;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    async fn rate(cx: &Cx, name: &str, path: &str, rate: f64, block_interval: u64) {
        let entry = RateEntry { name: name.into(), path: path.into(), rate, interval: 1, block_interval };
        cx.storage.put(&format!("{RATES}{name}"), &entry).await.unwrap();
    }

    #[tokio::test]
    async fn the_most_specific_rate_holds_for_each_client_apart() {
        let (_store, hub, cx) = testing::hub();
        let check = |millis, path: &str, client| {
            hub.quotas.check_rate_at(Mono::from_millis(millis), path, client).map_err(|e| {
                assert_eq!(e.status(), 429);
                (e.to_string(), e.retry_after)
            })
        };
        assert_eq!(check(0, "kv/a", CLIENT), Ok(()));
        rate(&cx, "all", "", 100.0, 0).await;
        rate(&cx, "kv", "kv/", 1.0, 0).await;
        assert_eq!(check(0, "kv/a", CLIENT), Ok(()));
        let refused = Err(("request path \"kv/b\": rate limit quota exceeded".to_owned(), Some(1)));
        assert_eq!(check(10, "kv/b", CLIENT), refused);
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(check(10, "kv/b", mapped), refused, "the same client over another family");
        assert_eq!(check(10, "kv/b", IpAddr::V6(Ipv6Addr::LOCALHOST)), Ok(()));
        assert_eq!(check(10, "sys/x", CLIENT), Ok(()));
        rate(&cx, "other", "other/", 1.0, 0).await;
        assert_eq!(check(20, "kv/b", CLIENT), refused, "what was counted survives a change of others");
        assert_eq!(check(1000, "kv/b", CLIENT), Ok(()));
        rate(&cx, "kv", "kv/", 1.0, 30).await;
        assert_eq!(check(1000, "kv/b", CLIENT), Ok(()));
        assert_eq!(check(1001, "kv/b", CLIENT).unwrap_err().1, Some(30));
        assert_eq!(check(5001, "kv/b", CLIENT).unwrap_err().1, Some(26));
        let text = hub.quotas.metrics.render(&*hub.cluster);
        assert!(text.contains("quota_rejected_total{kind=\"rate\"} 5"), "{text}");
    }

    #[tokio::test]
    async fn leases_are_counted_with_those_being_made() {
        let (_store, hub, cx) = testing::hub();
        let entry = |name: &str, path: &str, max_leases, role: &str| LeaseEntry {
            name: name.into(),
            path: path.into(),
            max_leases,
            role: role.into(),
        };
        cx.storage.put("sys/quota/lease-count/db", &entry("db", "database/", 2, "")).await.unwrap();
        cx.storage.put("sys/quota/lease-count/ro", &entry("ro", "database/", 1, "ro")).await.unwrap();
        let check = |path: &str, role| hub.quotas.check_leases(&cx, path, Some(role));
        let first = check("database/creds/ro", "ro").unwrap();
        let refused = check("database/creds/ro", "ro").unwrap_err();
        assert_eq!((refused.status(), refused.retry_after), (429, Some(1)));
        assert_eq!(refused.to_string(), "lease count quota exceeded");
        cx.storage.put("lease/id/database/creds/ro/1", &0).await.unwrap();
        drop(first);
        assert!(check("database/creds/ro", "ro").is_err());
        let second = check("database/creds/rw", "rw").unwrap();
        assert!(check("database/creds/rw", "rw").is_err());
        drop(second);
        assert!(check("database/creds/rw", "rw").is_ok());
        assert!(check("other/creds/rw", "rw").is_ok());
        cx.storage.delete("lease/id/database/creds/ro/1").await.unwrap();
        assert!(check("database/creds/ro", "ro").is_ok());
        assert!(hub.quotas.reserved.lock().is_empty(), "what was refused or is done leaves nothing behind");
    }
}
