//! What a watch reported and its object has not looked at yet.
//!
//! What must hold: nobody waits to report; of many events the newest is kept; a watch that was replaced reports nothing
//! more; a watch whose task is gone is told as lost.

use std::sync::Arc;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::provider::Sink;
use crate::value::Value;

/// What the subscription became.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Link {
    /// It stands.
    Up,
    /// It broke; its task subscribes again.
    Down(AnswerKind),
    /// It broke, and nobody subscribes again.
    Gone,
}

/// Everything that came since it was last looked at.
#[derive(Debug, Default)]
pub(super) struct Post {
    /// The newest change of the subscription.
    pub link: Option<Link>,
    /// The object has to be read.
    pub read: bool,
    /// The newest state of the object.
    pub event: Option<Outcome<Value>>,
    /// Everything up to now was reported.
    pub confirmed: bool,
}

#[derive(Default)]
struct Inner {
    post: Post,
    arrived: bool,
    up: bool,
    /// Which watch may report.
    watch: u64,
}

/// The mailbox of one object.
#[derive(Default)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
    notify: Notify,
}

impl Mailbox {
    /// A sink for a new watch; earlier ones report nothing more.
    pub(super) fn sink(self: &Arc<Self>) -> Arc<dyn Sink> {
        let mut inner = self.inner.lock();
        let watch = inner.watch + 1;
        *inner = Inner { watch, ..Inner::default() };
        Arc::new(Slot { mailbox: Arc::clone(self), watch })
    }

    /// Nothing is reported any more.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        *inner = Inner { watch: inner.watch + 1, ..Inner::default() };
    }

    /// Resolves when something came.
    pub(super) async fn arrived(&self) {
        self.notify.notified().await;
    }

    /// Takes what came; none when nothing did.
    pub(super) fn take(&self) -> Option<Post> {
        let mut inner = self.inner.lock();
        std::mem::take(&mut inner.arrived).then(|| std::mem::take(&mut inner.post))
    }

    fn put(&self, watch: u64, note: impl FnOnce(&mut Inner)) {
        let mut inner = self.inner.lock();
        if inner.watch == watch {
            note(&mut inner);
            inner.arrived = true;
            drop(inner);
            self.notify.notify_one();
        }
    }
}

/// Where one watch reports to.
struct Slot {
    mailbox: Arc<Mailbox>,
    watch: u64,
}

impl Sink for Slot {
    fn subscribed(&self) {
        // Events of before are covered by the reading that follows.
        self.mailbox.put(self.watch, |inner| {
            inner.up = true;
            inner.post = Post { link: Some(Link::Up), read: true, ..Post::default() };
        });
    }

    fn changed(&self) {
        self.mailbox.put(self.watch, |inner| inner.post.read = true);
    }

    fn event(&self, outcome: Outcome<Value>) {
        self.mailbox.put(self.watch, |inner| {
            if inner.up {
                inner.post.event = Some(outcome);
            }
        });
    }

    fn alive(&self) {
        self.mailbox.put(self.watch, |_| {});
    }

    fn confirmed(&self) {
        self.mailbox.put(self.watch, |inner| inner.post.confirmed = inner.up);
    }

    fn lost(&self, kind: AnswerKind) {
        self.mailbox.put(self.watch, |inner| {
            inner.up = false;
            inner.post = Post { link: Some(Link::Down(kind)), ..Post::default() };
        });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.mailbox.put(self.watch, |inner| {
            inner.up = false;
            inner.post = Post { link: Some(Link::Gone), ..Post::default() };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_state_is_kept_and_a_replaced_watch_is_silent() {
        let mailbox = Arc::new(Mailbox::default());
        let first = mailbox.sink();
        first.event(Outcome::Absent);
        assert!(mailbox.take().unwrap().event.is_none(), "nothing counts before the subscription");
        first.subscribed();
        first.event(Outcome::Absent);
        first.event(Outcome::Error(holdfast_core::freshness::Failure::own_login()));
        let post = mailbox.take().unwrap();
        assert_eq!((post.link, post.read), (Some(Link::Up), true));
        assert!(matches!(post.event, Some(Outcome::Error(_))));
        assert!(mailbox.take().is_none());
        let second = mailbox.sink();
        first.changed();
        drop(first);
        assert!(mailbox.take().is_none());
        drop(second);
        assert_eq!(mailbox.take().unwrap().link, Some(Link::Gone));
    }
}
