//! The config role: independent replicas that serve named values to many consumers.
//!
//! A replica holds the credentials of the backends, keeps what they say in cells, and answers from the cells. It
//! keeps no state of its own and knows no other replica.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may spawn bare tasks and read clocks"))]

pub mod api;
pub mod audit;
pub mod auth;
pub mod binding;
pub mod clock;
pub mod config;
pub mod date;
pub mod digest;
pub mod fanout;
pub(crate) mod label;
pub mod lkg;
pub mod load;
pub mod metrics;
pub mod policy;
pub mod problem;
pub mod provider;
pub mod ratelimit;
pub mod reference;
pub mod server;
pub mod upstream;
pub mod value;
pub mod wire;
