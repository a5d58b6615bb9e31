//! What every Holdfast daemon shares: configuration, telemetry, the clock, owned tasks, going down, secret files.
//!
//! Nothing here knows a role. The service crates build on it; it builds on `holdfast-core` only.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may spawn bare tasks and read clocks"))]

pub mod clock;
pub mod config;
pub mod core_dump;
pub mod descent;
pub mod exit;
pub mod metrics;
pub mod rand;
pub mod secret_file;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
pub mod units;

pub use clock::MonoClock;
pub use tasks::Tasks;
pub use units::{ByteSize, Duration};
