//! The exit codes of the daemons; `--help` documents the same numbers.

/// Everything went as asked.
pub const OK: u8 = 0;
/// A local fault, or a wrong use of the command line.
pub const LOCAL: u8 = 1;
/// The server that was asked answered with an error.
pub const API: u8 = 2;
/// The configuration cannot be used, or the data directory belongs to another process.
pub const CONFIG: u8 = 64;
/// A component failed while the daemon was running.
pub const FAILED: u8 = 70;
