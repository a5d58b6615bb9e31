//! Tokens and the login methods that hand them out.

pub mod approle;
pub mod params;
pub mod token;
pub mod userpass;
