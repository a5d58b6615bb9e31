//! Quotas: how many requests in a time, and how many leases or streams at once.
//!
//! Counted once, on the node that answers. Rates are counted for each client of a quota apart; what is kept of a client
//! is bounded, and forgotten once it makes no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::Mono;

/// What a rate quota allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// How many requests an interval allows; above 0.
    pub rate: f64,
    /// How many may come at once; as many as an interval's unless given.
    pub burst: Option<f64>,
    /// The interval; 1 s.
    pub interval: Duration,
    /// How long a client that exceeded the rate is refused everything; 0: only until there is room again.
    pub block_interval: Duration,
    /// How many clients are counted apart; 16384. Beyond that, the one that was seen longest ago is forgotten.
    pub clients: usize,
}

impl Rate {
    /// `rate` requests a second, no block.
    pub const fn per_second(rate: f64) -> Self {
        Self {
            rate,
            burst: None,
            interval: Duration::from_secs(1),
            block_interval: Duration::ZERO,
            clients: 16_384,
        }
    }

    /// How many may come at once: at least one, or nothing could ever pass.
    fn burst(&self) -> f64 {
        self.burst.unwrap_or(self.rate).max(1.0)
    }

    /// The time in which `tokens` come back.
    fn refill(&self, tokens: f64) -> Duration {
        let intervals = tokens / self.rate.max(f64::MIN_POSITIVE);
        Duration::try_from_secs_f64(self.interval.as_secs_f64() * intervals).unwrap_or(Duration::MAX)
    }
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It is within the quota, and counted.
    Allow,
    /// It is not, and not counted: 429 with this `Retry-After`, to be rounded up to whole seconds.
    Refuse {
        /// How long until a request can pass.
        retry_after: Duration,
    },
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    counted: Mono,
    blocked_until: Option<Mono>,
}

/// One rate quota, in virtual time. `C` tells clients apart, by their address for instance.
#[derive(Clone, Debug)]
pub struct RateQuota<C> {
    rate: Rate,
    buckets: BTreeMap<C, Bucket>,
    /// The same clients, by when each was last counted.
    oldest: BTreeSet<(Mono, C)>,
}

impl<C: Clone + Ord> RateQuota<C> {
    /// A quota that nobody has used yet.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, buckets: BTreeMap::new(), oldest: BTreeSet::new() }
    }

    /// Counts one request of `client`, or refuses it.
    pub fn check(&mut self, now: Mono, client: &C) -> Verdict {
        let full = Bucket { tokens: self.rate.burst(), counted: now, blocked_until: None };
        let before = self.buckets.get(client).copied();
        let mut bucket = before.unwrap_or(full);
        if let Some(before) = before {
            self.oldest.remove(&(before.counted, client.clone()));
        } else if self.buckets.len() >= self.rate.clients {
            self.forget_oldest();
        }
        let verdict = self.take(now, &mut bucket);
        self.buckets.insert(client.clone(), bucket);
        self.oldest.insert((bucket.counted, client.clone()));
        verdict
    }

    /// Forgets clients that are as good as new. To be called now and then; a second is often enough.
    pub fn sweep(&mut self, now: Mono) {
        let idle = self.rate.refill(self.rate.burst()).max(self.rate.block_interval);
        while let Some((at, _)) = self.oldest.first() {
            if now.since(*at) < idle {
                return;
            }
            self.forget_oldest();
        }
    }

    /// How many clients are counted apart.
    pub fn clients(&self) -> usize {
        self.buckets.len()
    }

    fn take(&self, now: Mono, bucket: &mut Bucket) -> Verdict {
        let intervals = now.since(bucket.counted).as_secs_f64() / self.rate.interval.as_secs_f64().max(1e-9);
        bucket.tokens = (bucket.tokens + intervals * self.rate.rate).min(self.rate.burst());
        bucket.counted = bucket.counted.max(now);
        if let Some(until) = bucket.blocked_until.filter(|until| now < *until) {
            return Verdict::Refuse { retry_after: now.until(until) };
        }
        bucket.blocked_until = None;
        // A token that is a rounding error short is there.
        if bucket.tokens >= 1.0 - 1e-9 {
            bucket.tokens = (bucket.tokens - 1.0).max(0.0);
            return Verdict::Allow;
        }
        let wait = self.rate.refill(1.0 - bucket.tokens);
        if self.rate.block_interval.is_zero() {
            return Verdict::Refuse { retry_after: wait };
        }
        bucket.blocked_until = Some(now.after(self.rate.block_interval));
        Verdict::Refuse { retry_after: self.rate.block_interval.max(wait) }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, client)) = self.oldest.pop_first() {
            self.buckets.remove(&client);
        }
    }
}

/// Whether a lease-count quota of `max` leaves room for one more beside the `existing` ones, which the store counts.
pub const fn lease_count_allows(existing: u64, max: u64) -> bool {
    existing < max
}

/// How much a client, and all of them together, may hold at once. `C` tells clients apart.
#[derive(Clone, Debug)]
pub struct Concurrency<C> {
    per_client: u64,
    total: u64,
    held: u64,
    clients: BTreeMap<C, u64>,
}

/// There is no room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Full {
    /// For this client.
    Client,
    /// For anybody.
    Total,
}

impl<C: Clone + Ord> Concurrency<C> {
    /// Nobody holds anything. A limit of 0 is none.
    pub const fn new(per_client: u64, total: u64) -> Self {
        Self { per_client, total, held: 0, clients: BTreeMap::new() }
    }

    /// Changes the limits; what is held stays held.
    pub const fn limit(&mut self, per_client: u64, total: u64) {
        (self.per_client, self.total) = (per_client, total);
    }

    /// Takes one for a client.
    ///
    /// # Errors
    /// When there is no room; nothing is taken then.
    pub fn enter(&mut self, client: &C) -> Result<(), Full> {
        let own = self.clients.get(client).copied().unwrap_or(0);
        if self.per_client > 0 && own >= self.per_client {
            return Err(Full::Client);
        }
        if self.total > 0 && self.held >= self.total {
            return Err(Full::Total);
        }
        self.held += 1;
        self.clients.insert(client.clone(), own + 1);
        Ok(())
    }

    /// Gives one back.
    pub fn leave(&mut self, client: &C) {
        let Some(own) = self.clients.get_mut(client) else { return };
        *own -= 1;
        self.held -= 1;
        if *own == 0 {
            self.clients.remove(client);
        }
    }

    /// How much is held in all.
    pub const fn held(&self) -> u64 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Spread;

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn refuse(millis: u64) -> Verdict {
        Verdict::Refuse { retry_after: Duration::from_millis(millis) }
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut quota = RateQuota::new(Rate::per_second(2.0));
        let at = |quota: &mut RateQuota<u8>, n| quota.check(ms(n), &1);
        assert_eq!([at(&mut quota, 0), at(&mut quota, 0)], [Verdict::Allow; 2]);
        assert_eq!(at(&mut quota, 0), refuse(500));
        assert_eq!(at(&mut quota, 250), refuse(250));
        assert_eq!(at(&mut quota, 500), Verdict::Allow);
        assert_eq!(quota.check(ms(500), &2), Verdict::Allow);
    }

    #[test]
    fn a_block_refuses_everything_for_its_time() {
        let rate = Rate { block_interval: Duration::from_secs(10), ..Rate::per_second(1.0) };
        let mut quota = RateQuota::new(rate);
        assert_eq!(quota.check(ms(0), &1), Verdict::Allow);
        assert_eq!(quota.check(ms(10), &1), refuse(10_000));
        assert_eq!(quota.check(ms(5_010), &1), refuse(5_000));
        assert_eq!(quota.check(ms(10_010), &1), Verdict::Allow);
    }

    #[test]
    fn a_rate_below_one_lets_one_pass_in_its_time() {
        let rate = Rate { interval: Duration::from_secs(60), ..Rate::per_second(0.5) };
        let mut quota = RateQuota::new(rate);
        assert_eq!(quota.check(ms(0), &1), Verdict::Allow);
        assert_eq!(quota.check(ms(60_000), &1), refuse(60_000));
        assert_eq!(quota.check(ms(120_000), &1), Verdict::Allow);
    }

    #[test]
    fn what_is_kept_is_bounded_and_forgotten() {
        let mut quota = RateQuota::new(Rate { clients: 3, ..Rate::per_second(1.0) });
        for client in 0..10 {
            quota.check(ms(client), &client);
        }
        assert_eq!(quota.clients(), 3);
        quota.sweep(ms(1008));
        assert_eq!(quota.clients(), 1);
    }

    #[test]
    fn a_burst_may_be_more_or_less_than_an_interval() {
        for (burst, passes) in [(1.0, 1), (5.0, 5), (0.1, 1)] {
            let mut quota = RateQuota::new(Rate { burst: Some(burst), ..Rate::per_second(2.0) });
            let passed = (0..10).filter(|_| quota.check(ms(0), &1) == Verdict::Allow).count();
            assert_eq!(passed, passes);
            assert_eq!(quota.check(ms(500), &1), Verdict::Allow);
            assert_eq!(quota.check(ms(500), &1), refuse(500));
        }
    }

    #[test]
    fn concurrency_is_what_went_in_less_what_came_out() {
        for seed in crate::soak::seeds(20) {
            let mut spread = Spread::new(seed);
            let (per_client, total) = (spread.below(4), spread.below(8));
            let mut counted = Concurrency::new(per_client, total);
            let mut model: Vec<u64> = Vec::new();
            for _ in 0..500 {
                let client = spread.below(4);
                let own = model.iter().filter(|held| **held == client).count() as u64;
                if spread.below(2) == 0 {
                    let expected = match () {
                        () if per_client > 0 && own >= per_client => Err(Full::Client),
                        () if total > 0 && model.len() as u64 >= total => Err(Full::Total),
                        () => {
                            model.push(client);
                            Ok(())
                        }
                    };
                    assert_eq!(counted.enter(&client), expected, "seed {seed}");
                } else {
                    counted.leave(&client);
                    if let Some(at) = model.iter().position(|held| *held == client) {
                        model.remove(at);
                    }
                }
                assert_eq!(counted.held(), model.len() as u64, "seed {seed}");
                assert!(
                    counted.clients.values().all(|held| *held > 0),
                    "who holds nothing is forgotten, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn lease_counts() {
        assert!(lease_count_allows(9, 10));
        assert!(!lease_count_allows(10, 10));
        assert!(!lease_count_allows(0, 0));
    }

    #[test]
    fn no_window_lets_more_pass_than_burst_and_rate() {
        for seed in crate::soak::seeds(50) {
            let mut spread = Spread::new(seed);
            let rate = (1 + spread.below(20)) as f64;
            let mut quota = RateQuota::new(Rate::per_second(rate));
            let (mut now, mut passed) = (Mono::ZERO, Vec::new());
            for _ in 0..500 {
                now = now.after(Duration::from_millis(spread.below(80)));
                match quota.check(now, &0) {
                    Verdict::Allow => passed.push(now),
                    Verdict::Refuse { retry_after } => {
                        let mut later = quota.clone();
                        let again = later.check(now.after(retry_after + Duration::from_micros(1)), &0);
                        assert_eq!(again, Verdict::Allow, "retry_after is enough, seed {seed}");
                    }
                }
            }
            for (first, start) in passed.iter().enumerate() {
                for (last, end) in passed.iter().enumerate().skip(first) {
                    let allowed = rate + end.since(*start).as_secs_f64() * rate + 1e-6;
                    assert!((last - first + 1) as f64 <= allowed, "burst and rate, seed {seed}");
                }
            }
        }
    }
}
