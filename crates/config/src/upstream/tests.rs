//! What the tests of several providers share.

pub mod scripted;
