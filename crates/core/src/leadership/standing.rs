//! Whether this node may stand for election.
//!
//! What must hold: a node that is cut off from a quorum never stands, so it never raises the term and never
//! deposes a healthy leader when it comes back. Our own pings decide, not the elections themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{MemberId, Mono};

/// The times of a [`Standing`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long a voter that answered a ping counts as heard; 300 ms at default settings: three pings, and
    /// shorter than the shortest election timeout (400 ms), so that a cut-off node is silent before it would stand.
    pub heard_for: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { heard_for: Duration::from_millis(300) }
    }
}

/// What the shell tells a [`Standing`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The voters changed. While a change is under way there are two sets, and both need their majority.
    Voters(Vec<BTreeSet<MemberId>>),
    /// `member` answered a ping that was sent at `sent`, or sent us something.
    Heard {
        /// Who answered.
        member: MemberId,
        /// When the ping left; now, for something it sent unasked.
        sent: Mono,
    },
    /// A reason of another part not to stand began (`true`) or ended.
    Veto(Veto, bool),
    /// Time passed.
    Tick,
}

/// Why a node that hears a quorum still does not stand.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Veto {
    /// It has just handed its leadership over.
    SteppedDown,
    /// Its store takes no writes.
    StoreUnhealthy,
    /// It is going down.
    Stopping,
}

/// What the shell must do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Switch the library's elections on or off. Begins off.
    Elections(bool),
}

/// The right of one node to stand.
#[derive(Clone, Debug)]
pub struct Standing {
    timing: Timing,
    own: MemberId,
    voters: Vec<BTreeSet<MemberId>>,
    heard: BTreeMap<MemberId, Mono>,
    vetoes: BTreeSet<Veto>,
    on: bool,
}

impl Standing {
    /// A node that has heard nobody; its elections are off until it hears a quorum.
    pub const fn new(timing: Timing, own: MemberId) -> Self {
        Self { timing, own, voters: Vec::new(), heard: BTreeMap::new(), vetoes: BTreeSet::new(), on: false }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Voters(sets) => {
                self.voters = sets;
                self.heard.retain(|member, _| self.voters.iter().any(|set| set.contains(member)));
            }
            Event::Heard { member, sent } => self.heard(now, member, sent),
            Event::Veto(veto, true) => {
                self.vetoes.insert(veto);
            }
            Event::Veto(veto, false) => {
                self.vetoes.remove(&veto);
            }
            Event::Tick => {}
        }
        // Who is silent already is not waited for again.
        let heard_for = self.timing.heard_for;
        self.heard.retain(|_, heard| now < heard.after(heard_for));
        let may = self.hears_quorum(now) && self.vetoes.is_empty();
        if may != self.on {
            self.on = may;
            out.push(Effect::Elections(may));
        }
    }

    /// When [`Event::Tick`] is due: the earliest moment at which a voter counts as silent.
    pub fn next_deadline(&self) -> Option<Mono> {
        let earliest = self.heard.values().min().map(|heard| heard.after(self.timing.heard_for));
        earliest.filter(|_| self.on)
    }

    /// Whether this node and the voters it heard make a majority of every set.
    pub fn hears_quorum(&self, now: Mono) -> bool {
        !self.voters.is_empty() && self.voters.iter().all(|set| self.count(now, set) * 2 > set.len())
    }

    /// Whether any voter but this node counts as heard.
    pub fn hears_anyone(&self, now: Mono) -> bool {
        self.heard.values().any(|heard| self.fresh(now, *heard))
    }

    /// Whether elections are on.
    pub const fn may_stand(&self) -> bool {
        self.on
    }

    fn heard(&mut self, now: Mono, member: MemberId, sent: Mono) {
        let known = self.voters.iter().any(|set| set.contains(&member));
        if known && member != self.own {
            let slot = self.heard.entry(member).or_insert(sent.min(now));
            *slot = (*slot).max(sent.min(now));
        }
    }

    fn count(&self, now: Mono, set: &BTreeSet<MemberId>) -> usize {
        let others = self.heard.iter().filter(|(member, at)| set.contains(member) && self.fresh(now, **at));
        others.count() + usize::from(set.contains(&self.own))
    }

    fn fresh(&self, now: Mono, heard: Mono) -> bool {
        now < heard.after(self.timing.heard_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Spread;

    fn ms(n: u64) -> Mono {
        Mono::from_millis(n)
    }

    fn set(ids: &[u64]) -> BTreeSet<MemberId> {
        ids.iter().copied().map(MemberId::new).collect()
    }

    fn heard(id: u64, at: u64) -> Event {
        Event::Heard { member: MemberId::new(id), sent: ms(at) }
    }

    fn feed(machine: &mut Standing, steps: &[(u64, Event)]) -> Vec<Effect> {
        let mut out = Vec::new();
        for (at, event) in steps {
            machine.on(ms(*at), event.clone(), &mut out);
        }
        out
    }

    fn three() -> Standing {
        let mut machine = Standing::new(Timing::default(), MemberId::new(1));
        assert_eq!(feed(&mut machine, &[(0, Event::Voters(vec![set(&[1, 2, 3])]))]), []);
        machine
    }

    #[test]
    fn a_lone_voter_stands_by_itself() {
        let mut machine = Standing::new(Timing::default(), MemberId::new(1));
        let out = feed(&mut machine, &[(0, Event::Voters(vec![set(&[1])]))]);
        assert_eq!(out, [Effect::Elections(true)]);
        assert_eq!(machine.next_deadline(), None);
    }

    #[test]
    fn cut_off_means_off_and_hearing_a_quorum_means_on() {
        let mut machine = three();
        assert_eq!(feed(&mut machine, &[(10, heard(2, 5))]), [Effect::Elections(true)]);
        assert_eq!(machine.next_deadline(), Some(ms(305)));
        assert_eq!(feed(&mut machine, &[(305, Event::Tick)]), [Effect::Elections(false)]);
        assert_eq!(feed(&mut machine, &[(400, heard(3, 390))]), [Effect::Elections(true)]);
    }

    #[test]
    fn a_voter_that_fell_silent_is_not_waited_for_again() {
        let mut machine = three();
        feed(&mut machine, &[(0, heard(2, 0)), (100, heard(3, 100)), (300, Event::Tick)]);
        assert!(machine.may_stand());
        assert_eq!(machine.next_deadline(), Some(ms(400)));
    }

    #[test]
    fn strangers_and_own_pings_do_not_count() {
        let mut machine = three();
        assert_eq!(feed(&mut machine, &[(1, heard(1, 1)), (2, heard(9, 2))]), []);
        assert!(!machine.hears_anyone(ms(2)));
    }

    #[test]
    fn a_change_of_voters_needs_both_majorities() {
        let mut machine = three();
        let both = vec![set(&[1, 2, 3]), set(&[1, 4, 5])];
        assert_eq!(feed(&mut machine, &[(1, Event::Voters(both)), (2, heard(2, 2))]), []);
        assert_eq!(feed(&mut machine, &[(3, heard(4, 3))]), [Effect::Elections(true)]);
    }

    #[test]
    fn a_veto_holds_until_it_ends() {
        let mut machine = three();
        let out = feed(&mut machine, &[(1, Event::Veto(Veto::SteppedDown, true)), (2, heard(2, 2))]);
        assert_eq!(out, []);
        let out = feed(&mut machine, &[(3, Event::Veto(Veto::SteppedDown, false))]);
        assert_eq!(out, [Effect::Elections(true)]);
        let out = feed(&mut machine, &[(4, Event::Veto(Veto::StoreUnhealthy, true))]);
        assert_eq!(out, [Effect::Elections(false)]);
    }

    #[test]
    fn elections_are_on_only_while_a_majority_was_heard() {
        for seed in crate::soak::seeds(200) {
            let mut spread = Spread::new(seed);
            let mut machine = Standing::new(Timing::default(), MemberId::new(1));
            let (mut now, mut last) = (Mono::ZERO, [None; 6]);
            machine.on(now, Event::Voters(vec![set(&[1, 2, 3, 4, 5])]), &mut Vec::new());
            for _ in 0..300 {
                now = now.after(Duration::from_millis(spread.below(120)));
                let member = 2 + spread.below(4);
                let event = if spread.below(3) == 0 { Event::Tick } else { heard(member, 0) };
                let event = match event {
                    Event::Heard { member, .. } => Event::Heard { member, sent: now },
                    other => other,
                };
                if matches!(event, Event::Heard { .. }) {
                    last[member as usize] = Some(now);
                }
                machine.on(now, event, &mut Vec::new());
                let fresh = last.iter().flatten().filter(|at| now.since(**at) < Duration::from_millis(300));
                assert_eq!(machine.may_stand(), fresh.count() >= 2, "majority heard, seed {seed}");
            }
        }
    }
}
