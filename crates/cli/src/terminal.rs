//! What is asked of a person at a terminal: secrets that are not shown, and whether to go on.
//!
//! What must hold: the terminal is as it was before, however the question ends.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;

const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const KILL: u8 = 0x15;

/// Whether somebody types at standard input.
pub fn is_there() -> bool {
    io::stdin().is_terminal()
}

/// Asks for one line that is not shown.
pub fn secret(what: &str) -> Result<String> {
    let silence = Silence::begin().context("cannot turn the terminal's echo off")?;
    // Only now: what is typed after the question must not be shown any more.
    ask(what)?;
    let line = line(next_byte);
    drop(silence);
    eprintln!();
    line
}

/// Asks for one line that is shown.
pub fn text(what: &str) -> Result<String> {
    ask(what)?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("cannot read the terminal")?;
    Ok(line.trim().to_owned())
}

/// Asks whether to go on; only a whole `yes` is one.
pub fn agrees(what: &str) -> Result<bool> {
    Ok(text(&format!("{what}. Type yes to go on"))? == "yes")
}

fn ask(what: &str) -> Result<()> {
    let mut stderr = io::stderr().lock();
    write!(stderr, "{what}: ")?;
    Ok(stderr.flush()?)
}

/// The terminal without echo, until this is dropped.
struct Silence(Termios);

impl Silence {
    /// Line by line editing and signals are off too: an interrupt must not leave a terminal without echo behind.
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ECHONL | LocalFlags::ICANON | LocalFlags::ISIG);
        for (index, value) in [(SpecialCharacterIndices::VMIN, 1), (SpecialCharacterIndices::VTIME, 0)] {
            if let Some(setting) = silent.control_chars.get_mut(index as usize) {
                *setting = value;
            }
        }
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // There is nobody to tell; the line was read all the same.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

fn next_byte() -> Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match read(io::stdin(), &mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot read the terminal"),
        }
    }
}

/// One line out of what is typed, with the keys that correct it.
fn line(mut next: impl FnMut() -> Result<Option<u8>>) -> Result<String> {
    let mut line = Vec::new();
    loop {
        match next()? {
            None | Some(b'\n' | b'\r' | END) => break,
            Some(INTERRUPT) => bail!("interrupted"),
            Some(KILL) => line.clear(),
            Some(byte) if BACKSPACE.contains(&byte) => {
                // A character may be several bytes: those that go on, and the one that begins it.
                while line.pop().is_some_and(|byte: u8| byte & 0xc0 == 0x80) {}
            }
            Some(byte) if byte < b' ' => {}
            Some(byte) => line.push(byte),
        }
    }
    String::from_utf8(line).context("what was typed is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(bytes: &[u8]) -> Result<String> {
        let mut bytes = bytes.iter().copied();
        line(|| Ok(bytes.next()))
    }

    #[test]
    fn a_line_can_be_corrected_and_interrupted() {
        for (bytes, expected) in [
            (&b"secret\nrest"[..], "secret"),
            (b"sex\x7fcret\r", "secret"),
            ("sé\u{7f}ecret\n".as_bytes(), "secret"),
            (b"wrong\x15secret\x04", "secret"),
            (b"\x7f\x01secret", "secret"),
        ] {
            assert_eq!(typed(bytes).unwrap(), expected);
        }
        assert!(typed(b"sec\x03").is_err());
    }
}
