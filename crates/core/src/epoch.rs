//! The dialling side of a session: its epoch, and which address it dials when.
//!
//! What must hold: the epoch grows with every dial and is persisted before it; a daemon never stops dialling by itself
//! (unless it was asked to run once) and never dials in a tight loop; a redirect chase and a fight of two daemons over
//! one identity are slowed down; a draining stream is left only when its successor stands.
//!
//! [`Dialer`] is all of it. The shell does its effects in order and tells it what became of each dial; a dial and the
//! session that comes of it bear the dial's epoch as their name.

mod addresses;
pub mod dialer;

pub use dialer::Dialer;
