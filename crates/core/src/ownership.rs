//! Which node holds a spoke's stream, and how a command finds it.
//!
//! What must hold: the active node believes in one owner of a spoke at a time; a newer claim is never lost to a late
//! older one; nothing here is stored or replicated, and what is not confirmed expires by itself; a forwarded command
//! is never forwarded again.
//!
//! | machine | runs on | decides |
//! | --- | --- | --- |
//! | [`Registry`] | every unsealed node | which streams of its own stay; while active, who owns every spoke |
//! | [`Announcer`] | every unsealed node | when the own set goes to the active node |
//! | [`Resolve`] | one for each command, where it arrived | local, forward, wait, once more, or the error |
//!
//! How the shell joins them. All streams of a node live in its registry, whatever its role: a new one is put to it
//! with [`registry::Event::Opened`] and installed on [`registry::Effect::Admit`]. The effect `Announce` goes to the
//! announcer as [`announcer::Event::Changed`]; an announcer that is active ignores it. A set carries ages instead of
//! instants, so no two clocks are ever compared, and a number from [`Announcer::next_seq`], also when it answers a
//! pull: take the number and the set under one lock. Two streams of one spoke are compared by their [`Stamp`] alone.
//! A command asks [`Registry::lookup`] again, and puts the answer to its `Resolve`, whenever the registry says `Wake`.

pub mod announcer;
mod claim;
mod name;
pub mod registry;
pub mod resolve;

pub use announcer::Announcer;
pub use claim::{BootId, Claim, Seq, SpokeSet, Stamp, Superseded, Verdict, judge};
pub use name::NodeName;
pub use registry::{Lookup, Registry};
pub use resolve::Resolve;
