//! The process-level tests, one file a scenario.

mod hub;
