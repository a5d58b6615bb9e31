//! When to read which part of the store's time-ordered index of leases.

use std::time::Duration;

use crate::Mono;
use crate::time::earliest;

/// The place of a lease in the index: its due time, then its id.
pub(super) type Place<I> = (Mono, I);

/// Reads forward from a cursor, and from the beginning when something may lie behind it.
#[derive(Clone, Debug)]
pub(super) struct Reader<I> {
    rewind_every: Duration,
    cursor: Option<Place<I>>,
    in_flight: bool,
    /// A wish to start from the beginning that came while a page was under way.
    rewind: bool,
    next: Option<Mono>,
    rewind_at: Mono,
    /// The earliest lease that was put into the index while a page was under way, and may have missed it.
    missed: Option<Mono>,
}

impl<I: Clone + Ord> Reader<I> {
    pub(super) const fn new(rewind_every: Duration) -> Self {
        let (next, rewind_at) = (None, Mono::FAR);
        Self { rewind_every, cursor: None, in_flight: false, rewind: false, next, rewind_at, missed: None }
    }

    pub(super) fn begin(&mut self, now: Mono) {
        *self = Self::new(self.rewind_every);
        self.next = Some(now);
        self.rewind_at = now.after(self.rewind_every);
    }

    pub(super) fn end(&mut self) {
        *self = Self::new(self.rewind_every);
    }

    /// A lease is due, or was put, at `due`.
    pub(super) fn scheduled(&mut self, due: Mono) {
        if self.cursor.as_ref().is_some_and(|(at, _)| due <= *at) {
            self.rewind = true;
        }
        if self.in_flight {
            self.missed = earliest(self.missed, Some(due));
        }
        self.next = earliest(self.next, Some(due));
    }

    /// Something that lies behind the cursor has to be read, from `at` on.
    pub(super) fn rewind(&mut self, at: Mono) {
        self.rewind = true;
        self.next = earliest(self.next, Some(at));
    }

    /// A page came; `last` is its last lease, `more` says that others are due, `next` when the first one that is
    /// not due yet will be.
    pub(super) fn page(&mut self, now: Mono, last: Option<Place<I>>, more: bool, next: Option<Mono>) {
        self.in_flight = false;
        self.cursor = last.or_else(|| self.cursor.take());
        let passed = self.cursor.as_ref().map(|(at, _)| *at);
        if self.missed.take().is_some_and(|due| Some(due) <= passed) {
            self.rewind = true;
        }
        let wish = if more { Some(now) } else { next };
        self.next = earliest(self.next, wish);
    }

    /// The cursor of the page to read now, if one is to be read.
    pub(super) fn poll(&mut self, now: Mono) -> Option<Option<Place<I>>> {
        if self.in_flight || self.deadline().is_none_or(|at| now < at) {
            return None;
        }
        if self.rewind || self.rewind_at <= now {
            self.cursor = None;
            self.rewind = false;
            self.rewind_at = now.after(self.rewind_every);
        }
        self.next = None;
        self.in_flight = true;
        Some(self.cursor.clone())
    }

    pub(super) const fn in_flight(&self) -> bool {
        self.in_flight
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let at = self.next.map_or(self.rewind_at, |next| next.min(self.rewind_at));
        (!self.in_flight && at != Mono::FAR).then_some(at)
    }
}
