//! Clients: of the hub's HTTP API, which is the Vault/OpenBao one, and in [`config`] of the config server.
//!
//! A [`Client`] of the hub knows several endpoints, sends a request to the one that answered last, and moves on only where
//! that is safe: when the request provably did not start, or when it is a read.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may spawn bare tasks and read clocks"))]

pub mod answer;
pub mod config;
pub mod endpoints;
pub mod error;
pub mod http;

pub use answer::Answer;
pub use error::ClientError;
pub use http::{Client, ClientBuilder, Verb};
