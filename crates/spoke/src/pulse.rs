//! When a heartbeat is due, and when a hub that did not answer one is dead.
//!
//! What must hold: a hub is called dead only after a last look at what has arrived; a process that was paused, and
//! so could not read, gives it one interval more.

use std::time::Duration;

use tokio::time::Instant;

/// A hub that answers later than this has a stuck task or a dead link, whatever its pings say.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// A timer that fires so much too late says that the process did not run.
const PAUSED: Duration = Duration::from_millis(500);
/// Between the end of patience and the verdict: time to read what has arrived.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// What is to be done now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Beat {
    /// Nothing yet.
    Rest,
    /// Send a heartbeat with this number.
    Send(u64),
    /// The hub is dead.
    Dead,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Resting { until: Instant },
    Waiting { sent: Instant, until: Instant, looked: bool },
}

/// The heartbeats of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    interval: Duration,
    seq: u64,
    state: State,
}

impl Pulse {
    /// The first heartbeat comes after one interval.
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, seq: 0, state: State::Resting { until: now + interval } }
    }

    /// When [`Pulse::beat`] has something to say.
    pub(crate) const fn due(&self) -> Instant {
        match self.state {
            State::Resting { until } | State::Waiting { until, .. } => until,
        }
    }

    /// What is to be done at `now`.
    pub(crate) fn beat(&mut self, now: Instant) -> Beat {
        if now < self.due() {
            return Beat::Rest;
        }
        match self.state {
            State::Resting { .. } => {
                self.seq += 1;
                self.state = State::Waiting { sent: now, until: now + self.patience(), looked: false };
                Beat::Send(self.seq)
            }
            State::Waiting { sent, until, .. } if now - until >= PAUSED => {
                self.state = State::Waiting { sent, until: now + self.patience(), looked: false };
                Beat::Rest
            }
            State::Waiting { sent, looked: false, .. } => {
                self.state = State::Waiting { sent, until: now + LAST_LOOK, looked: true };
                Beat::Rest
            }
            State::Waiting { .. } => Beat::Dead,
        }
    }

    /// The hub answered. An answer to anything but the last heartbeat says nothing.
    pub(crate) fn acked(&mut self, seq: u64, now: Instant) {
        if let State::Waiting { sent, .. } = self.state
            && seq == self.seq
        {
            self.state = State::Resting { until: (sent + self.interval).max(now) };
        }
    }

    fn patience(&self) -> Duration {
        self.interval.max(LEAST_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(15);
    const SECOND: Duration = Duration::from_secs(1);

    fn waiting() -> (Pulse, Instant) {
        let start = Instant::now();
        let mut pulse = Pulse::new(INTERVAL, start);
        assert_eq!(pulse.beat(start + INTERVAL - SECOND), Beat::Rest);
        assert_eq!(pulse.beat(start + INTERVAL), Beat::Send(1));
        (pulse, start + INTERVAL)
    }

    #[test]
    fn an_answered_heartbeat_is_followed_by_the_next() {
        let (mut pulse, sent) = waiting();
        pulse.acked(1, sent + SECOND);
        assert_eq!(pulse.due(), sent + INTERVAL);
        assert_eq!(pulse.beat(sent + INTERVAL), Beat::Send(2));
        pulse.acked(1, sent + INTERVAL);
        assert_eq!(pulse.due(), sent + INTERVAL + INTERVAL, "an old answer is none");
    }

    #[test]
    fn silence_is_death_after_a_last_look() {
        let (mut pulse, sent) = waiting();
        assert_eq!(pulse.beat(sent + INTERVAL), Beat::Rest);
        let look = pulse.due();
        assert_eq!(look, sent + INTERVAL + LAST_LOOK);
        let mut read_in_time = pulse.clone();
        read_in_time.acked(1, look);
        assert_eq!(read_in_time.beat(look), Beat::Send(2));
        assert_eq!(pulse.beat(look), Beat::Dead);
    }

    #[test]
    fn a_paused_process_waits_one_interval_more() {
        let (mut pulse, sent) = waiting();
        let resumed = sent + Duration::from_secs(120);
        assert_eq!(pulse.beat(resumed), Beat::Rest);
        assert_eq!(pulse.due(), resumed + INTERVAL);
        assert_eq!(pulse.beat(resumed + INTERVAL), Beat::Rest);
        // Paused in the very last look: not dead either.
        let again = resumed + INTERVAL + Duration::from_secs(60);
        assert_eq!(pulse.beat(again), Beat::Rest);
        assert_eq!(pulse.beat(again + INTERVAL), Beat::Rest);
        assert_eq!(pulse.beat(pulse.due()), Beat::Dead);
    }
}
