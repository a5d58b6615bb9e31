//! Reads a stream of server-sent events as bytes come, however they are cut.
//!
//! What must hold: the frames that come out depend on the bytes only, never on where chunks end; no line and no frame
//! is kept that is longer than the cap; a line that is not understood is skipped, as the format demands
//! (WHATWG HTML, 9.2.6).

use std::collections::VecDeque;
use std::time::Duration;

use zeroize::Zeroizing;

/// The longest line and the longest frame, in bytes: 24 MiB.
pub const MAX_FRAME: usize = 24 * 1024 * 1024;

/// One event of a stream. Its data may hold a secret, so that it is wiped and never shown.
#[derive(Default, Eq, PartialEq)]
pub struct Frame {
    /// The type; `message` is written as the empty text.
    pub event: String,
    /// The data lines, joined with line feeds. Empty in a frame that only carries an id.
    pub data: Zeroizing<Vec<u8>>,
    /// The id that this frame sets; empty resets it.
    pub id: Option<String>,
    /// How long the server asks to wait before a reconnect.
    pub retry: Option<Duration>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} [{} bytes]", self.event, self.id, self.data.len())
    }
}

/// A line or a frame exceeds the cap. The stream cannot be read on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a frame of the stream is longer than {0} bytes")]
pub struct TooLong(pub usize);

/// Where the decoder is between two bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Position {
    /// So many bytes of a byte order mark at the very start were read.
    Start(usize),
    /// Behind a carriage return: a line feed that follows belongs to it.
    Returned,
    /// Anywhere else.
    Inside,
}

const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// Turns bytes into frames.
pub struct Decoder {
    cap: usize,
    position: Position,
    line: Zeroizing<Vec<u8>>,
    frame: Frame,
    has_data: bool,
    ready: VecDeque<Frame>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decoder [{} bytes pending, {} frames]", self.line.len(), self.ready.len())
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::with_cap(MAX_FRAME)
    }
}

impl Decoder {
    /// A decoder at the start of a stream that keeps no line and no frame of more than `cap` bytes.
    pub fn with_cap(cap: usize) -> Self {
        Self {
            cap,
            position: Position::Start(0),
            line: Zeroizing::default(),
            frame: Frame::default(),
            has_data: false,
            ready: VecDeque::new(),
        }
    }

    /// Takes the next bytes; complete frames wait in [`Decoder::next_frame`].
    ///
    /// # Errors
    /// When a line or a frame exceeds the cap; frames before it are still there.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Position::Start(read) = self.position {
            let Some((first, tail)) = rest.split_first() else { return Ok(()) };
            match MARK.get(read) {
                Some(byte) if byte == first => (self.position, rest) = (Position::Start(read + 1), tail),
                Some(_) => {
                    self.position = Position::Inside;
                    self.line.extend_from_slice(MARK.get(..read).unwrap_or_default());
                }
                None => self.position = Position::Inside,
            }
        }
        while !rest.is_empty() {
            rest = self.take_part(rest)?;
        }
        Ok(())
    }

    /// The next complete frame.
    pub fn next_frame(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// Takes up to the end of the line, and gives what is left.
    fn take_part<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], TooLong> {
        if std::mem::replace(&mut self.position, Position::Inside) == Position::Returned
            && let Some((b'\n', rest)) = bytes.split_first()
        {
            return Ok(rest);
        }
        let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.line.len().saturating_add(part.len()) > self.cap {
            return Err(TooLong(self.cap));
        }
        self.line.extend_from_slice(part);
        let Some((end, rest)) = rest.split_first() else { return Ok(rest) };
        if *end == b'\r' {
            self.position = Position::Returned;
        }
        let line = std::mem::take(&mut self.line);
        self.end_line(&line)?;
        Ok(rest)
    }

    fn end_line(&mut self, line: &[u8]) -> Result<(), TooLong> {
        if line.is_empty() {
            self.end_frame();
            return Ok(());
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        self.field(field, value.strip_prefix(b" ").unwrap_or(value))
    }

    fn field(&mut self, field: &[u8], value: &[u8]) -> Result<(), TooLong> {
        match field {
            b"event" => self.frame.event = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                let data = &mut self.frame.data;
                let joint = usize::from(self.has_data);
                if data.len().saturating_add(joint).saturating_add(value.len()) > self.cap {
                    return Err(TooLong(self.cap));
                }
                if self.has_data {
                    data.push(b'\n');
                }
                data.extend_from_slice(value);
                self.has_data = true;
            }
            b"id" if !value.contains(&0) => {
                self.frame.id = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let digits = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.frame.retry = digits.map(Duration::from_millis);
            }
            // The empty field is a comment.
            _ => {}
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        let frame = std::mem::take(&mut self.frame);
        let has_data = std::mem::take(&mut self.has_data);
        // A frame without data is no event, but its id and its pause count all the same.
        if has_data || frame.id.is_some() || frame.retry.is_some() {
            self.ready.push_back(frame);
        }
    }
}

#[cfg(test)]
mod tests;
