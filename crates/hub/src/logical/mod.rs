//! What a mount sees: requests after the pipeline's checks, and the answers it gives.

pub mod data;
pub mod engine;
pub mod request;
pub mod response;

pub use data::Data;
pub use engine::{Cx, Engine};
pub use request::{Operation, Request};
pub use response::{AuthGrant, Body, LeaseTicket, Logical, Response, WrapInfo};
