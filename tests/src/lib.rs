//! The rig of the process-level tests: real binaries, real databases, failures on demand.

pub mod api;
pub mod backends;
pub mod cli;
pub mod config;
pub mod db;
pub mod eventually;
pub mod fuzz;
pub mod hub;
pub mod kubernetes;
pub mod netns;
pub mod nginx;
pub mod oracle;
pub mod probe;
pub mod process;
pub mod soak;
pub mod spoke;
pub mod sse;
pub mod upstream;

pub use eventually::{eventually, eventually_async};
