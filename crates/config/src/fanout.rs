//! From the engine's cells to the readers.

pub mod board;
