//! Every high-availability decision of Holdfast, as pure and synchronous state machines.
//!
//! Nothing here reads a clock, a socket, a file or a random source: time, identifiers and jitter are values
//! that the caller hands in, and what must happen comes back as a list of effects. The service crates are the
//! shells that perform those effects, in order, persisting before they send.

pub mod answer;
pub mod epoch;
pub mod failover;
#[cfg(test)]
mod fleet;
pub mod freshness;
pub mod intent;
pub mod kind;
pub mod label;
pub mod leadership;
pub mod leasequeue;
pub mod leaving;
pub mod ownership;
pub mod polling;
pub mod quota;
pub mod readiness;
pub mod retry;
pub mod shutdown;
#[cfg(test)]
pub(crate) mod soak;
pub mod spoke_name;
pub mod stream;
pub mod term;
pub mod time;

pub use answer::AnswerKind;
pub use kind::Kind;
pub use spoke_name::SpokeName;
pub use term::{Epoch, Generation, LogIndex, MemberId, Term};
pub use time::{Mono, Now, Wall};
