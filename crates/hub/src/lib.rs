//! The hub role: a raft cluster that issues short-lived database credentials.
//!
//! Layers, top down: `api` (HTTP, the pipeline of checks, forwarding) · `mount` and the engines (`auth`, `kv`,
//! `database`, `sys`) · `lease`, `policy`, `audit`, `quota` · `storage` (typed, encrypted, fenced) · `barrier` ·
//! `store` (consensus and disk).

pub mod api;
pub mod audit;
pub mod auth;
pub mod backup;
pub mod barrier;
pub mod cached;
pub mod cluster;
pub mod config;
pub mod database;
pub mod error;
pub mod handover;
pub mod hub;
pub mod kv;
pub mod label;
pub mod lease;
pub mod logical;
pub mod metrics;
pub mod mount;
pub mod node;
pub mod policy;
pub mod quota;
pub mod relay;
pub mod server;
pub mod storage;
pub mod store;
pub mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wall;
mod warm;
pub mod wrapping;

pub use error::ApiError;
