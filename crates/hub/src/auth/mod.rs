//! Tokens and the login methods that hand them out.

pub mod params;
pub mod token;
