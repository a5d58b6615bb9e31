//! A process that ends with the one that started it, however that one ends.

use std::ffi::OsString;

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// The flag that a starter gives its children. It is for them alone, so that no help and no completion knows it.
pub const FLAG: &str = "--end-with-parent";

/// Takes the flag and its value, the id of the parent, out of the arguments.
pub fn take(args: Vec<OsString>) -> Result<(Option<i32>, Vec<OsString>)> {
    let (mut parent, mut rest, mut args) = (None, Vec::new(), args.into_iter());
    while let Some(arg) = args.next() {
        if arg == "--" {
            rest.push(arg);
            break;
        }
        let value = match arg.to_str().and_then(|text| text.strip_prefix(FLAG)) {
            Some("") => args.next(),
            Some(value) => value.strip_prefix('=').map(OsString::from),
            None => {
                rest.push(arg);
                continue;
            }
        };
        let id = value.as_ref().and_then(|value| value.to_str()).and_then(|value| value.parse().ok());
        parent = Some(id.with_context(|| format!("{FLAG} needs the id of a process"))?);
    }
    rest.extend(args);
    Ok((parent, rest))
}

/// From here on the kernel kills this process when `parent` ends. It ends at once if that has happened already.
pub fn follow(parent: i32) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to be told of the end of the parent")?;
    // Asked for first and looked at afterwards: an end in between is then seen by one or the other.
    if getppid() != Pid::from_raw(parent) {
        bail!("the process {parent}, with which this one was to end, is no longer its parent");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_taken_out_and_nothing_else() {
        let taken = |line: &str| take(line.split(' ').map(OsString::from).collect());
        for (line, parent, rest) in [
            ("holdfast dev --end-with-parent 7 --json", Some(7), "holdfast dev --json"),
            ("holdfast dev --end-with-parent=7", Some(7), "holdfast dev"),
            ("holdfast write a -- --end-with-parent=7", None, "holdfast write a -- --end-with-parent=7"),
        ] {
            let rest = rest.split(' ').map(OsString::from).collect();
            assert_eq!(taken(line).unwrap(), (parent, rest), "{line}");
        }
        for bad in ["holdfast dev --end-with-parent", "holdfast dev --end-with-parent=x"] {
            assert!(taken(bad).is_err(), "{bad}");
        }
    }
}
