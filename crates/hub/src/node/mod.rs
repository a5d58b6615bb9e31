//! The life of a node between start and exit: uninitialised, sealed, unsealed.

pub mod files;
