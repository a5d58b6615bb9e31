//! The client's mark of one binding: the newest date that was delivered.
//!
//! What must hold: it only rises, and only after the application has taken the value; nothing clearly older than it is
//! delivered; a wrong clock of one replica does not raise it beyond the others' reach.

use std::sync::Arc;

use super::{BAND, FUTURE};
use crate::Wall;

/// What a value says of its age.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Offer {
    /// When it was last confirmed by the upstream; none from a server that does not date.
    pub resolved_at: Option<Wall>,
    /// The upstream's revision, where revisions are ordered.
    pub order: Option<u64>,
    /// The domain within which `order` compares.
    pub epoch: Option<Arc<str>>,
}

/// Whether a value may go to the application.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It may; [`Watermark::delivered`] follows when the application has taken it.
    Deliver,
    /// It is older than what the application has.
    Behind,
}

/// The mark of one binding; one for all reads and watches of a client. Error events and the state "stale" are none of
/// its business: they always pass.
#[derive(Clone, Debug, Default)]
pub struct Watermark {
    mark: Option<(Wall, Offer)>,
}

impl Watermark {
    /// No value was delivered yet.
    pub const fn new() -> Self {
        Self { mark: None }
    }

    /// Judges a value. `now` is the client's own clock.
    ///
    /// A date more than a minute ahead of it passes, since it says nothing about order.
    pub fn offer(&self, now: Wall, offer: &Offer) -> Verdict {
        let (Some(date), Some((mark, delivered))) = (offer.resolved_at, &self.mark) else {
            return Verdict::Deliver;
        };
        if is_future(now, date) || date.since(*mark) > BAND {
            return Verdict::Deliver;
        }
        if mark.since(date) > BAND || is_lower(offer, delivered) {
            return Verdict::Behind;
        }
        Verdict::Deliver
    }

    /// The application has taken the value.
    pub fn delivered(&mut self, now: Wall, offer: &Offer) {
        let Some(date) = offer.resolved_at.filter(|date| !is_future(now, *date)) else { return };
        let Some((mark, newest)) = &mut self.mark else {
            self.mark = Some((date, offer.clone()));
            return;
        };
        // A value dated a little earlier by another clock may be the newer one; its order counts then.
        if date >= *mark || (mark.since(date) <= BAND && is_lower(newest, offer)) {
            *newest = offer.clone();
        }
        *mark = date.max(*mark);
    }

    /// The newest date delivered.
    pub fn mark(&self) -> Option<Wall> {
        self.mark.as_ref().map(|(date, _)| *date)
    }
}

/// Whether both are of one ordering and `offer` comes before `other` in it.
fn is_lower(offer: &Offer, other: &Offer) -> bool {
    match (offer.order, other.order) {
        (Some(order), Some(newest)) => offer.epoch == other.epoch && order < newest,
        _ => false,
    }
}

fn is_future(now: Wall, date: Wall) -> bool {
    date.since(now) > FUTURE
}

#[cfg(test)]
mod tests;
