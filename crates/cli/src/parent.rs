//! A process that ends with the one that started it, however that one ends.

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// The hidden flag that a starter gives its children.
pub const FLAG: &str = "--end-with-parent";

/// From here on the kernel kills this process when `parent` ends. It ends at once if that has happened already.
pub fn follow(parent: i32) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to be told of the end of the parent")?;
    // Asked for first and looked at afterwards: an end in between is then seen by one or the other.
    if getppid() != Pid::from_raw(parent) {
        bail!("the process {parent}, with which this one was to end, is no longer its parent");
    }
    Ok(())
}
