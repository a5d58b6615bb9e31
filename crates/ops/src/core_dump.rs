//! No core dumps of a process that holds secrets.

use nix::sys::resource::{Resource, setrlimit};

/// A core dump would hold every key: the process writes none from here on.
pub fn forbid() {
    if let Err(error) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        tracing::warn!(%error, "core dumps could not be switched off");
    }
}
