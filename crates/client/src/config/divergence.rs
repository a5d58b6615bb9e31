//! Notices that two replicas run different configurations, from the digest that each answer carries.
//!
//! What must hold: replicas that are changed one after the other are not reported; nor is what a replica said before
//! it went away. Pure: instants come from the caller.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Mono;

/// How long two replicas may differ unreported: a roll-out goes through them one by one.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Two replicas differ.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// The places of the two endpoints, and what they said.
    pub between: [(usize, Arc<str>); 2],
    /// Counts the times that a difference began.
    pub episode: u64,
}

/// What the endpoints said last.
#[derive(Debug)]
pub struct Divergence {
    said: Vec<Option<Arc<str>>>,
    since: Option<Mono>,
    episode: u64,
}

impl Divergence {
    /// Nothing was said yet by any of `endpoints`.
    pub fn new(endpoints: usize) -> Self {
        Self { said: vec![None; endpoints], since: None, episode: 0 }
    }

    /// An endpoint said its digest.
    pub fn heard(&mut self, now: Mono, endpoint: usize, digest: &str) {
        let Some(said) = self.said.get_mut(endpoint) else { return };
        if said.as_deref() != Some(digest) {
            *said = Some(digest.into());
            self.judge(now);
        }
    }

    /// An endpoint went away; what comes back may run something else.
    pub fn gone(&mut self, now: Mono, endpoint: usize) {
        if let Some(said) = self.said.get_mut(endpoint)
            && said.take().is_some()
        {
            self.judge(now);
        }
    }

    /// The difference that has lasted too long, if there is one.
    pub fn confirmed(&self, now: Mono) -> Option<Difference> {
        if self.deadline()? > now {
            return None;
        }
        let between = self.pair()?;
        Some(Difference { between, episode: self.episode })
    }

    /// How many differences began so far.
    pub const fn episode(&self) -> u64 {
        self.episode
    }

    /// When the current difference has lasted too long.
    pub fn deadline(&self) -> Option<Mono> {
        self.since.map(|since| since.after(PATIENCE))
    }

    fn judge(&mut self, now: Mono) {
        match (self.pair(), self.since) {
            (Some(_), None) => {
                self.since = Some(now);
                self.episode = self.episode.saturating_add(1);
            }
            (None, Some(_)) => self.since = None,
            _ => {}
        }
    }

    /// The first two that differ.
    fn pair(&self) -> Option<[(usize, Arc<str>); 2]> {
        let mut said = self.said.iter().enumerate().filter_map(|(n, said)| Some((n, said.clone()?)));
        let first = said.next()?;
        let other = said.find(|(_, digest)| *digest != first.1)?;
        Some([first, other])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Mono {
        Mono::from_millis(seconds * 1000)
    }

    #[test]
    fn a_difference_that_lasts_is_confirmed_once_an_episode() {
        let mut divergence = Divergence::new(3);
        divergence.heard(at(0), 0, "aaaa");
        assert_eq!(divergence.deadline(), None);
        divergence.heard(at(1), 2, "bbbb");
        divergence.heard(at(20), 0, "aaaa");
        assert_eq!((divergence.deadline(), divergence.confirmed(at(30))), (Some(at(31)), None));
        let between = [(0, "aaaa".into()), (2, "bbbb".into())];
        assert_eq!(divergence.confirmed(at(31)), Some(Difference { between, episode: 1 }));
        divergence.heard(at(40), 2, "aaaa");
        divergence.heard(at(50), 1, "cccc");
        assert_eq!(divergence.confirmed(at(60)), None);
        assert_eq!(divergence.confirmed(at(80)).unwrap().episode, 2);
    }

    #[test]
    fn a_roll_out_and_a_replica_that_went_away_are_no_difference() {
        let mut divergence = Divergence::new(2);
        divergence.heard(at(0), 0, "old");
        divergence.heard(at(0), 1, "old");
        divergence.heard(at(10), 0, "new");
        divergence.heard(at(39), 1, "new");
        assert_eq!(divergence.confirmed(at(100)), None);
        divergence.heard(at(100), 0, "next");
        divergence.gone(at(110), 1);
        assert_eq!((divergence.deadline(), divergence.confirmed(at(200))), (None, None));
    }
}
