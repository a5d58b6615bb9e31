//! One creation, from the intent's record to the answer.

use std::time::Duration;

use super::{Batch, Key, Next, State, Written};
use crate::{Mono, Term};

/// How long after a creation's deadline its intent is swept; every executor has refused or ended it by then.
pub(super) const SWEEP_AFTER: Duration = Duration::from_secs(5);

/// How the making of a user ended.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum UserMade {
    /// The user exists.
    Done,
    /// The driver failed and rolled back: the user does not exist, up to what a driver cannot roll back.
    Failed,
    /// Not known: the deadline passed, the stream or its owner was lost.
    Unknown,
}

/// What the shell tells a [`Creation`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// Begin; the checks passed, name and password are chosen.
    Begin,
    /// The batch of the last [`Effect::Write`] ended.
    Written(Written),
    /// [`Effect::MakeUser`] ended.
    Made(UserMade),
    /// [`Effect::RemoveUser`] ended; `true` when the user is gone.
    Removed(bool),
    /// [`Effect::Audit`] ended; `false` when no device took the entry.
    Audited(bool),
    /// The client went away.
    Abandoned,
    /// This node no longer leads in the creation's term.
    TermOver,
    /// Time passed.
    Tick,
}

/// What the client is told.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Outcome {
    /// The login.
    Created,
    /// Nothing was made: 503, or the cause that the store gave, such as a name that is taken.
    NotBegun,
    /// The driver's text: 500.
    DriverFailed,
    /// 503; the user, if any, will be removed.
    Unknown,
    /// 500; the lease is being revoked.
    AuditFailed,
}

/// What the shell must do, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Commit this batch. With [`Next::Lease`] it also puts the lease and its indexes.
    Write(Batch),
    /// Make the user with this key, before this deadline.
    MakeUser(Key, Mono),
    /// Tell the executor to give up on this key and to refuse it from now on.
    CancelUser(Key),
    /// Remove the user of this key, once.
    RemoveUser(Key),
    /// Audit the response.
    Audit(Key),
    /// Revoke the lease at once.
    RevokeLease(Key),
    /// Tell the sweeper that this intent is its own from this instant on.
    Entrust(Key, Mono),
    /// Answer the client.
    Answer(Outcome),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    New,
    Opening,
    Making,
    Settling,
    Auditing,
    Cleaning,
    Dropping,
    Over,
}

/// The creation of one database user.
#[derive(Clone, Debug)]
pub struct Creation {
    key: Key,
    term: Term,
    deadline: Mono,
    phase: Phase,
    abandoned: bool,
}

impl Creation {
    /// A creation in `term`; `deadline` is the earlier of the request's and the configuration's.
    pub const fn new(key: Key, term: Term, deadline: Mono) -> Self {
        Self { key, term, deadline, phase: Phase::New, abandoned: false }
    }

    /// Takes one event.
    pub fn on(&mut self, now: Mono, event: Event, out: &mut Vec<Effect>) {
        match (self.phase, event) {
            (Phase::New, Event::Begin) => {
                self.phase = Phase::Opening;
                out.push(self.write(None, Next::State(State::Open)));
            }
            (Phase::Opening, Event::Written(written)) => self.opened(now, written, out),
            (Phase::Making, Event::Made(made)) => self.made(made, out),
            (Phase::Settling, Event::Written(written)) => self.settled(written, out),
            (Phase::Auditing, Event::Audited(audited)) => self.audited(audited, out),
            (Phase::Cleaning, Event::Removed(true)) => {
                self.phase = Phase::Dropping;
                out.push(self.write(Some(State::Open), Next::Nothing));
            }
            (Phase::Cleaning, Event::Removed(false)) => self.entrust(now, out),
            (Phase::Dropping, Event::Written(written)) => {
                self.phase = Phase::Over;
                if written != Written::Applied {
                    self.entrust(now, out);
                }
            }
            (_, Event::Abandoned) => self.abandon(now, out),
            (Phase::Making, Event::TermOver) => self.give_up(None, out),
            _ => {}
        }
        if self.phase == Phase::Making && self.deadline <= now {
            self.give_up(Some(self.sweep_at()), out);
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Mono> {
        (self.phase == Phase::Making).then_some(self.deadline)
    }

    /// The term in which the creation began; every effect of it carries this one.
    pub const fn term(&self) -> Term {
        self.term
    }

    /// Whether nothing more will come of this machine.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// When the sweeper may take an intent that nobody entrusted to it: 5 s after the deadline.
    pub fn sweep_at(&self) -> Mono {
        self.deadline.after(SWEEP_AFTER)
    }

    fn opened(&mut self, now: Mono, written: Written, out: &mut Vec<Effect>) {
        match written {
            Written::Applied if self.abandoned => self.entrust(now, out),
            Written::Applied => {
                self.phase = Phase::Making;
                if self.deadline > now {
                    out.push(Effect::MakeUser(self.key, self.deadline));
                }
            }
            Written::Refused => self.end(Outcome::NotBegun, out),
            Written::Unknown => {
                // The record may be there; whoever leads next finds it, and if that is us, our sweeper knows.
                out.push(Effect::Entrust(self.key, self.sweep_at()));
                self.end(Outcome::NotBegun, out);
            }
        }
    }

    fn made(&mut self, made: UserMade, out: &mut Vec<Effect>) {
        match made {
            UserMade::Done => {
                self.phase = Phase::Settling;
                out.push(self.write(Some(State::Open), Next::Lease));
            }
            UserMade::Failed => {
                self.phase = Phase::Cleaning;
                out.extend([Effect::Answer(Outcome::DriverFailed), Effect::RemoveUser(self.key)]);
            }
            UserMade::Unknown => self.give_up(Some(self.sweep_at()), out),
        }
    }

    fn settled(&mut self, written: Written, out: &mut Vec<Effect>) {
        if written == Written::Applied {
            self.phase = Phase::Auditing;
            out.push(Effect::Audit(self.key));
        } else {
            // Either the batch is in, or the intent stays: never both, never neither. Nothing to do here.
            self.end(Outcome::Unknown, out);
        }
    }

    fn audited(&mut self, audited: bool, out: &mut Vec<Effect>) {
        if audited {
            self.end(Outcome::Created, out);
        } else {
            out.push(Effect::RevokeLease(self.key));
            self.end(Outcome::AuditFailed, out);
        }
    }

    fn abandon(&mut self, now: Mono, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::New => self.phase = Phase::Over,
            Phase::Opening => self.abandoned = true,
            Phase::Making => {
                out.push(Effect::CancelUser(self.key));
                self.entrust(now, out);
            }
            Phase::Settling | Phase::Auditing | Phase::Cleaning | Phase::Dropping | Phase::Over => {}
        }
    }

    fn give_up(&mut self, sweep_at: Option<Mono>, out: &mut Vec<Effect>) {
        out.push(Effect::CancelUser(self.key));
        out.extend(sweep_at.map(|at| Effect::Entrust(self.key, at)));
        self.end(Outcome::Unknown, out);
    }

    fn entrust(&mut self, at: Mono, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        out.push(Effect::Entrust(self.key, at));
    }

    fn end(&mut self, outcome: Outcome, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        out.push(Effect::Answer(outcome));
    }

    const fn write(&self, from: Option<State>, to: Next) -> Effect {
        Effect::Write(Batch::new(self.key, self.term, from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: Key = Key::new(7);
    const T: Term = Term::new(3);
    const D: Mono = Mono::from_millis(30_000);
    const SWEEP_AT: Mono = Mono::from_millis(35_000);
    const OPEN: Effect = Effect::Write(Batch::new(K, T, None, Next::State(State::Open)));
    const SETTLE: Effect = Effect::Write(Batch::new(K, T, Some(State::Open), Next::Lease));
    const DROP: Effect = Effect::Write(Batch::new(K, T, Some(State::Open), Next::Nothing));
    const MAKE: Effect = Effect::MakeUser(K, D);
    const APPLIED: Event = Event::Written(Written::Applied);

    fn play(steps: &[(u64, Event)]) -> (Creation, Vec<Effect>) {
        let (mut machine, mut out) = (Creation::new(K, T, D), Vec::new());
        for (at, event) in steps {
            machine.on(Mono::from_millis(*at), *event, &mut out);
        }
        (machine, out)
    }

    fn effects(steps: &[Event]) -> Vec<Effect> {
        let timed: Vec<_> = std::iter::once(&Event::Begin).chain(steps).map(|event| (10, *event)).collect();
        let (machine, out) = play(&timed);
        assert!(machine.is_over());
        assert_eq!(machine.next_deadline(), None);
        out
    }

    #[test]
    fn a_creation_that_goes_well() {
        let out = effects(&[APPLIED, Event::Made(UserMade::Done), APPLIED, Event::Audited(true)]);
        assert_eq!(out, [OPEN, MAKE, SETTLE, Effect::Audit(K), Effect::Answer(Outcome::Created)]);
    }

    #[test]
    fn an_intent_that_cannot_be_written_leaves_nothing() {
        assert_eq!(effects(&[Event::Written(Written::Refused)]), [OPEN, Effect::Answer(Outcome::NotBegun)]);
        assert_eq!(
            effects(&[Event::Written(Written::Unknown)]),
            [OPEN, Effect::Entrust(K, SWEEP_AT), Effect::Answer(Outcome::NotBegun)]
        );
    }

    #[test]
    fn a_definite_failure_removes_once_and_drops() {
        let failed = [OPEN, MAKE, Effect::Answer(Outcome::DriverFailed), Effect::RemoveUser(K)];
        let out = effects(&[APPLIED, Event::Made(UserMade::Failed), Event::Removed(true), APPLIED]);
        assert_eq!(out, [&failed[..], &[DROP]].concat());
        let out = effects(&[APPLIED, Event::Made(UserMade::Failed), Event::Removed(false)]);
        assert_eq!(out, [&failed[..], &[Effect::Entrust(K, Mono::from_millis(10))]].concat());
        let refused = Event::Written(Written::Refused);
        let out = effects(&[APPLIED, Event::Made(UserMade::Failed), Event::Removed(true), refused]);
        assert_eq!(out, [&failed[..], &[DROP, Effect::Entrust(K, Mono::from_millis(10))]].concat());
    }

    #[test]
    fn an_unknown_making_is_cancelled_and_swept_after_the_deadline() {
        let tail = [Effect::CancelUser(K), Effect::Entrust(K, SWEEP_AT), Effect::Answer(Outcome::Unknown)];
        let out = effects(&[APPLIED, Event::Made(UserMade::Unknown)]);
        assert_eq!(out, [&[OPEN, MAKE], &tail[..]].concat());
        let steps = [(0, Event::Begin), (1, APPLIED), (29_999, Event::Tick), (30_000, Event::Tick)];
        let (machine, out) = play(&steps);
        assert_eq!(out, [&[OPEN, MAKE], &tail[..]].concat());
        assert!(machine.is_over());
    }

    #[test]
    fn a_record_that_was_written_too_late_makes_no_user() {
        let (_, out) = play(&[(0, Event::Begin), (30_000, APPLIED)]);
        assert!(!out.contains(&MAKE));
        assert_eq!(out.last(), Some(&Effect::Answer(Outcome::Unknown)));
    }

    #[test]
    fn a_lease_that_was_refused_leaves_the_intent() {
        for written in [Written::Refused, Written::Unknown] {
            let out = effects(&[APPLIED, Event::Made(UserMade::Done), Event::Written(written)]);
            assert_eq!(out, [OPEN, MAKE, SETTLE, Effect::Answer(Outcome::Unknown)]);
        }
    }

    #[test]
    fn a_client_that_goes_away_before_the_lease_leaves_it_to_the_sweeper() {
        let entrust = Effect::Entrust(K, Mono::from_millis(10));
        let out = effects(&[APPLIED, Event::Abandoned]);
        assert_eq!(out, [OPEN, MAKE, Effect::CancelUser(K), entrust]);
        assert_eq!(effects(&[Event::Abandoned, APPLIED]), [OPEN, entrust]);
        let out =
            effects(&[APPLIED, Event::Made(UserMade::Done), Event::Abandoned, APPLIED, Event::Audited(true)]);
        assert_eq!(out.last(), Some(&Effect::Answer(Outcome::Created)));
    }

    #[test]
    fn a_failed_audit_revokes_at_once() {
        let out = effects(&[APPLIED, Event::Made(UserMade::Done), APPLIED, Event::Audited(false)]);
        let tail = [Effect::RevokeLease(K), Effect::Answer(Outcome::AuditFailed)];
        assert_eq!(out, [&[OPEN, MAKE, SETTLE, Effect::Audit(K)], &tail[..]].concat());
    }

    #[test]
    fn a_lost_term_cancels_and_leaves_the_record_to_the_next_leader() {
        let out = effects(&[APPLIED, Event::TermOver]);
        assert_eq!(out, [OPEN, MAKE, Effect::CancelUser(K), Effect::Answer(Outcome::Unknown)]);
    }
}
