//! What requests tell the background tasks of the active node.
//!
//! Bounded. Hints that find it full are dropped and make the task read the index again from its beginning;
//! a caller that waits for an outcome is refused instead.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::clock::Wall;
use super::id::LeaseId;

const CAPACITY: usize = 8192;

/// How an asked-for revocation ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Login and lease are gone.
    Gone,
    /// It could not be tried, for the reason given; it will be.
    NotTried(String),
    /// The attempt failed with this text; others follow.
    Failed(String),
}

/// One message.
#[derive(Debug)]
pub enum Mail {
    /// Something is due at this time, or earlier than was known.
    Due(Wall),
    /// A lease that is marked as due: revoke it before others, and tell the outcome.
    Revoke(LeaseId, oneshot::Sender<Outcome>),
    /// A lease was renewed and is not due.
    Renewed(LeaseId, Wall),
    /// A lease is gone by another way.
    Gone(LeaseId),
    /// How many connections a configuration has.
    Connections(super::record::Queue, usize),
    /// A configuration is gone, and nothing refers to it any more.
    Retired(super::record::Queue),
    /// A database answered again.
    Back(super::record::Queue),
}

/// Messages waiting for a background task, if it runs.
pub struct Mailbox<T> {
    state: Mutex<State<T>>,
    wake: Notify,
}

struct State<T> {
    open: bool,
    lost: bool,
    mail: VecDeque<T>,
}

impl<T> State<T> {
    const fn new(open: bool) -> Self {
        Self { open, lost: false, mail: VecDeque::new() }
    }
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State::new(false)), wake: Notify::new() }
    }
}

impl<T> Mailbox<T> {
    /// Leaves a message. Nobody reads it while this node is not active; the store tells the next active one.
    pub fn send(&self, mail: T) {
        {
            let mut state = self.state.lock();
            if !state.open {
                // Dropping the message tells a caller that waits.
                return;
            }
            if state.mail.len() >= CAPACITY {
                state.lost = true;
                return;
            }
            state.mail.push_back(mail);
        }
        self.wake.notify_one();
    }

    /// Starts to keep messages.
    pub fn open(&self) {
        *self.state.lock() = State::new(true);
    }

    /// Drops all messages: callers that wait see that.
    pub fn close(&self) {
        *self.state.lock() = State::new(false);
    }

    /// Waits for messages and takes them, with whether others were lost before.
    pub async fn take(&self) -> (VecDeque<T>, bool) {
        loop {
            let (mail, lost) = self.drain();
            if lost || !mail.is_empty() {
                return (mail, lost);
            }
            self.wake.notified().await;
        }
    }

    fn drain(&self) -> (VecDeque<T>, bool) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.mail), std::mem::take(&mut state.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_box_loses_hints_but_says_so() {
        let mailbox = Mailbox::<Mail>::default();
        mailbox.send(Mail::Due(Wall::now()));
        mailbox.open();
        for _ in 0..=CAPACITY {
            mailbox.send(Mail::Due(Wall::now()));
        }
        let (mail, lost) = mailbox.take().await;
        assert_eq!((mail.len(), lost), (CAPACITY, true));
        mailbox.send(Mail::Due(Wall::now()));
        assert!(!mailbox.take().await.1);
    }

    #[tokio::test]
    async fn a_closed_box_lets_go_of_who_waits() {
        let mailbox = Mailbox::<Mail>::default();
        mailbox.open();
        let (send, answer) = oneshot::channel();
        mailbox.send(Mail::Revoke(LeaseId::from_client("a/b"), send));
        mailbox.close();
        assert!(answer.await.is_err());
    }
}
