//! The spoke: the daemon beside the databases. It dials the hub and does what the hub asks of the databases in its reach.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may spawn bare tasks and read clocks"))]

pub mod address;
pub mod cache;
mod counter;
pub mod credentials;
pub mod daemon;
pub mod join;
mod link;
mod pulse;
pub mod renewal;
pub mod runner;
mod session;

#[cfg(test)]
mod tests;
