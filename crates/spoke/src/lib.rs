//! The spoke: the daemon beside the databases. It dials the hub and does what the hub asks of the databases in its reach.

pub mod cache;
pub mod runner;
