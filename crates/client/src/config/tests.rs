mod fake;
mod read;
mod server;

pub use fake::{FakePlay, World, dated, entry_error, envelope, frame, update};
