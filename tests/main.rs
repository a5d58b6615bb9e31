//! The process-level tests, one file a scenario.

mod config;
mod hub;
