//! No core dumps of a process that holds secrets.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};

/// A core dump would hold every key: the process writes none from here on, nor hands one to a collector, and other
/// processes of the same user cannot read its memory. The limit alone does not reach collectors (`core(5)`).
pub fn forbid() {
    if let Err(error) = setrlimit(Resource::RLIMIT_CORE, 0, 0).and_then(|()| prctl::set_dumpable(false)) {
        tracing::warn!(%error, "core dumps could not be switched off");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_file_nor_a_collector_gets_a_dump() {
        forbid();
        assert!(!prctl::get_dumpable().unwrap());
        assert_eq!(nix::sys::resource::getrlimit(Resource::RLIMIT_CORE).unwrap(), (0, 0));
    }
}
