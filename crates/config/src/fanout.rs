//! From the engine's cells to the readers.

pub mod board;
pub mod hub;
pub mod resume;
pub mod stream;

#[cfg(test)]
mod tests;
