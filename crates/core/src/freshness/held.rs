//! What one stream last said of one binding, as long as the client may not deliver it.
//!
//! What must hold: a value that is held back is not lost: the first date that lifts it past the mark delivers it, and
//! only what the stream says next of the same name replaces it.

use super::{Offer, Verdict, Watermark};
use crate::Wall;

/// The value of one name on one stream that is held back. It is kept when a stream resumes, since a resumed stream
/// repeats only what changed.
#[derive(Clone, Debug)]
pub struct Held<V>(Option<(V, Offer)>);

impl<V> Default for Held<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V> Held<V> {
    /// The stream sent a value, new or dated anew: returns it when it may be delivered, else holds it.
    pub fn update(&mut self, mark: &Watermark, now: Wall, value: V, offer: Offer) -> Option<(V, Offer)> {
        self.0 = Some((value, offer));
        self.release(mark, now)
    }

    /// The stream said that its value was confirmed at this date: returns a value that is lifted by it.
    pub fn fresh(&mut self, mark: &Watermark, now: Wall, resolved_at: Wall) -> Option<(V, Offer)> {
        let (_, offer) = self.0.as_mut()?;
        offer.resolved_at = Some(resolved_at);
        self.release(mark, now)
    }

    /// The stream said that the name has no value now, or the name is not followed any more.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Whether a value waits.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn release(&mut self, mark: &Watermark, now: Wall) -> Option<(V, Offer)> {
        self.0.take_if(|(_, offer)| mark.offer(now, offer) == Verdict::Deliver)
    }
}

#[cfg(test)]
mod tests;
