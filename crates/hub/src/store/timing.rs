//! The times of consensus: what the configuration says, and what is told to the library.

use std::time::Duration;

use holdfast_core::leadership::{self, standing, stepdown};

/// The times and sizes of consensus, as configured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RaftTiming {
    /// Pause between two heartbeats, ms; 20-2000, default 100.
    pub heartbeat_ms: u64,
    /// The least total silence before a node stands for election, ms; default 400.
    pub election_min_ms: u64,
    /// The longest total silence before a node stands for election, ms; default 800.
    pub election_max_ms: u64,
    /// Log entries before a state image is taken; default 8192.
    pub compact_after: u64,
    /// Log entries kept behind an image; default 10000.
    pub keep_entries: u64,
}

impl Default for RaftTiming {
    fn default() -> Self {
        Self {
            heartbeat_ms: 100,
            election_min_ms: 400,
            election_max_ms: 800,
            compact_after: 8192,
            keep_entries: 10_000,
        }
    }
}

impl RaftTiming {
    /// How long a follower that heard its leader refuses to vote for another; also how long a leader may trust a
    /// quorum's acknowledgement.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.election_max_ms / 2)
    }

    /// The bounds of the random wait that follows the lease: the sum stays inside the configured bounds.
    pub fn random_wait(&self) -> (Duration, Duration) {
        let max = self.election_max_ms / 2;
        let min = (self.heartbeat_ms + 50).max(self.election_min_ms.saturating_sub(max)).min(max - 1);
        (Duration::from_millis(min), Duration::from_millis(max))
    }

    /// Pause between two heartbeats.
    pub const fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// The longest silence.
    pub const fn election_max(&self) -> Duration {
        Duration::from_millis(self.election_max_ms)
    }

    pub(super) fn gate(&self) -> leadership::Timing {
        leadership::Timing { ack_window: self.lease(), ..leadership::Timing::default() }
    }

    pub(super) fn standing(&self) -> standing::Timing {
        // Still shorter than the least silence after which this node would stand.
        let least = self.lease() + self.random_wait().0;
        standing::Timing { heard_for: (self.heartbeat() * 5).min(least.saturating_sub(self.heartbeat())) }
    }

    /// The old leader itself votes for its successor at once, which in a cluster of three is all it takes; where
    /// it is not, the successor goes on trying until the lease of the others has run out.
    pub(super) fn step_down(&self) -> stepdown::Timing {
        stepdown::Timing {
            follower_lease: Duration::ZERO,
            ask_every: Duration::from_millis(100),
            asks_per_voter: 6,
            // What is under way before it begins has its time too, and the promise is 2 s for both.
            answer_within: Duration::from_millis(1500),
            ..stepdown::Timing::default()
        }
    }

    pub(super) fn library(&self) -> openraft::Config {
        let lease = self.election_max_ms / 2;
        openraft::Config {
            cluster_name: "holdfast".into(),
            // With heartbeats and elections in our hands these two are only how long the answer to an append and
            // to a request for a vote may take. Either means a sync to disk, so the library's habit of allowing
            // one heartbeat for it would cost a busy leader its quorum.
            heartbeat_interval: lease / 2,
            election_timeout_min: lease - 1,
            // The lease: how long a follower that heard its leader votes for no other.
            election_timeout_max: lease,
            install_snapshot_timeout: 30_000,
            max_payload_entries: 256,
            replication_lag_threshold: self.compact_after.max(1) + self.keep_entries,
            snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(self.compact_after.max(1)),
            snapshot_max_chunk_size: 1 << 20,
            max_in_snapshot_log_to_keep: self.keep_entries,
            purge_batch_size: 256,
            // Both are ours: the library draws its random wait once in a process's life and looks at it only at
            // every tick, which is one and a half heartbeats.
            enable_heartbeat: false,
            enable_elect: false,
            ..openraft::Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_and_random_wait_add_up_to_the_configured_bounds() {
        let timing = RaftTiming::default();
        let (min, max) = timing.random_wait();
        assert_eq!(timing.lease() + max, Duration::from_millis(800));
        assert!(timing.lease() + min >= Duration::from_millis(400));
        assert!(timing.library().validate().is_ok());
    }

    #[test]
    fn every_allowed_configuration_keeps_the_silence_inside_its_bounds() {
        for heartbeat_ms in [20u64, 100, 450, 2000] {
            for election_min_ms in [3 * heartbeat_ms, 5 * heartbeat_ms, 9 * heartbeat_ms] {
                let shortest = (election_min_ms * 3).div_ceil(2);
                for election_max_ms in [shortest, (2 * election_min_ms).min(30_000), 30_000] {
                    let timing = RaftTiming {
                        heartbeat_ms,
                        election_min_ms,
                        election_max_ms,
                        ..RaftTiming::default()
                    };
                    let (min, max) = timing.random_wait();
                    let silence = (timing.lease() + min).as_millis()..=(timing.lease() + max).as_millis();
                    let bounds = u128::from(election_min_ms)..=u128::from(election_max_ms);
                    // Half a millisecond is lost where the longest silence is odd.
                    assert!(*silence.start() + 1 >= *bounds.start(), "{timing:?}: {silence:?}");
                    assert!(silence.end() <= bounds.end(), "{timing:?}: {silence:?}");
                    assert!(min < max && min > Duration::from_millis(heartbeat_ms), "{timing:?}");
                }
            }
        }
    }

    #[test]
    fn slow_clusters_keep_their_minimum() {
        let timing = RaftTiming {
            heartbeat_ms: 500,
            election_min_ms: 4000,
            election_max_ms: 6000,
            ..Default::default()
        };
        let (min, max) = timing.random_wait();
        assert_eq!((timing.lease() + min).as_millis(), 4000);
        assert_eq!((timing.lease() + max).as_millis(), 6000);
    }
}
