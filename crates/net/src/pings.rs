//! Ends an HTTP/2 connection whose peer pings faster than it may.
//!
//! What must hold: only the headers of frames are looked at, and every byte is passed on unchanged; a peer that pings
//! in time is never cut off for a ping that came early once or twice, since networks bunch packets together.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The client's preface, before its first frame.
const PREFACE: usize = 24;
/// Bytes of a frame's header.
const HEADER: usize = 9;
/// The type of a ping, and the flag of the answer to one.
const PING: u8 = 6;
const ACK: u8 = 1;
/// Early pings in a row that are let pass.
const STRIKES: u32 = 2;

/// A stream whose reads fail once the peer has pinged too fast.
pub struct Pings<S> {
    stream: S,
    watch: Watch,
}

impl<S> Pings<S> {
    /// Watches the side of the server of a fresh connection: no two pings may be closer than `least`.
    pub const fn new(stream: S, least: Duration) -> Self {
        Self {
            stream,
            watch: Watch { least, skip: PREFACE, header: [0; HEADER], have: 0, last: None, early: 0 },
        }
    }
}

struct Watch {
    least: Duration,
    /// Bytes until the next header.
    skip: usize,
    header: [u8; HEADER],
    have: usize,
    last: Option<Instant>,
    early: u32,
}

impl Watch {
    /// Looks at what came; false once the peer has gone too far.
    fn look(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let Some((first, rest)) = bytes.split_first() else { break };
            if let Some(place) = self.header.get_mut(self.have) {
                *place = *first;
            }
            (self.have, bytes) = (self.have + 1, rest);
            if self.have == HEADER && !self.frame(now) {
                return false;
            }
        }
        true
    }

    fn frame(&mut self, now: Instant) -> bool {
        let [a, b, c, kind, flags, ..] = self.header;
        self.have = 0;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if kind != PING || flags & ACK != 0 {
            return true;
        }
        let early = self.last.is_some_and(|last| now.saturating_duration_since(last) < self.least);
        self.last = Some(now);
        self.early = if early { self.early + 1 } else { 0 };
        self.early <= STRIKES
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pings<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let came = buf.filled().get(before..).unwrap_or_default();
        if self.watch.look(came, Instant::now()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the peer pings too fast")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pings<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const LEAST: Duration = Duration::from_secs(5);

    fn ping(flags: u8) -> Vec<u8> {
        [&[0, 0, 8, PING, flags, 0, 0, 0, 0][..], &[7; 8]].concat()
    }

    /// A frame of data whose content looks like pings.
    fn data() -> Vec<u8> {
        [&[0, 0, 17, 0, 0, 0, 0, 0, 1][..], &ping(0)].concat()
    }

    async fn feed(pieces: &[(Duration, Vec<u8>)], piece: usize) -> io::Result<usize> {
        let (near, mut far) = duplex(1 << 16);
        let mut near = Pings::new(near, LEAST);
        far.write_all(&[b'P'; PREFACE]).await.unwrap();
        let mut read = 0;
        for (pause, bytes) in pieces {
            tokio::time::advance(*pause).await;
            far.write_all(bytes).await.unwrap();
            let mut buffer = vec![0; piece];
            let whole: usize = bytes.len() + if read == 0 { PREFACE } else { 0 };
            let mut left = whole;
            while left > 0 {
                let n = near.read(&mut buffer).await?;
                (left, read) = (left - n, read + n);
            }
        }
        Ok(read)
    }

    #[tokio::test(start_paused = true)]
    async fn pings_in_time_and_answers_and_data_pass_in_any_pieces() {
        let second = Duration::from_secs(1);
        for piece in [1, 3, 1024] {
            let mut pieces = Vec::new();
            for _ in 0..10 {
                pieces.push((LEAST, ping(0)));
                pieces.extend([(second / 10, ping(ACK)), (second / 10, data())]);
            }
            feed(&pieces, piece).await.unwrap();
        }
        let bunched = [(LEAST, ping(0)), (second, ping(0)), (second, ping(0)), (LEAST, ping(0))];
        feed(&bunched, 64).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_pings_too_fast_is_cut_off() {
        for piece in [1, 1024] {
            let fast: Vec<_> = (0..4).map(|_| (LEAST / 2, ping(0))).collect();
            let error = feed(&fast, piece).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        }
    }
}
