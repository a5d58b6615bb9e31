//! The HTTP API.

pub mod body;
pub mod envelope;
pub mod head;
