//! One stream that is being read, and what it said last of each name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use holdfast_core::Mono;
use holdfast_core::failover::StreamId;

use super::super::sse::Decoder;
use super::super::transport::{Broken, Reply};
use super::super::value::Value;

/// What a stream said last of a name, and what became of it.
#[derive(Clone, Debug)]
pub enum Shown {
    /// The application took this value.
    Taken(Value),
    /// It is older than what the application has; it waits for a newer date.
    Held(Value),
}

/// What a stream said last, by name. A name in error is not in it.
pub type Standings = HashMap<Arc<str>, Shown>;

/// One stream that is being read.
pub struct Connection {
    /// Its number.
    pub id: StreamId,
    /// The place of its endpoint.
    pub endpoint: usize,
    /// When a byte came last.
    pub heard: Mono,
    /// What it said last, or what the one before said, whose id it resumed from.
    pub shown: Standings,
    /// Whether it was told that a value of it is held back.
    pub behind: bool,
    /// Reads the bytes.
    pub decoder: Decoder,
    body: BoxStream<'static, Result<Bytes, Broken>>,
    unseen: HashSet<Arc<str>>,
}

impl Connection {
    /// A stream whose head has come.
    pub fn new(
        id: StreamId,
        endpoint: usize,
        now: Mono,
        reply: Reply,
        names: &[Arc<str>],
        shown: Standings,
    ) -> Self {
        let unseen = names.iter().cloned().collect();
        let (decoder, body) = (Decoder::default(), reply.body);
        Self { id, endpoint, heard: now, shown, behind: false, decoder, body, unseen }
    }

    /// Notes that a frame for a name came; whether with it all names have had one.
    pub fn saw(&mut self, name: &str) -> bool {
        self.unseen.remove(name) && self.unseen.is_empty()
    }
}

/// The next bytes of any of the streams; none at the end of one.
pub async fn chunk(connections: &mut [Connection]) -> (StreamId, Option<Result<Bytes, Broken>>) {
    std::future::poll_fn(|cx| {
        for connection in connections.iter_mut() {
            if let std::task::Poll::Ready(chunk) = connection.body.poll_next_unpin(cx) {
                return std::task::Poll::Ready((connection.id, chunk));
            }
        }
        std::task::Poll::Pending
    })
    .await
}
