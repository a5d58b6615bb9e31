//! Bodies: reading them within bounds, and turning answers into them.
//!
//! What must hold: a body is never larger in memory than the limit, all bodies together never larger than the
//! budget, and a client that sends slowly is cut at the request's deadline.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use holdfast_net::serve::{Body, BodyError};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body as _, Frame};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;

/// The unit in which the budget is counted.
const UNIT: usize = 1024;

/// How much of a refused body is read and thrown away, and for how long at most. Closing a connection while its
/// client still sends would lose the answer that tells it why.
const LINGER_BYTES: usize = 64 << 20;
const LINGER: Duration = Duration::from_secs(2);

/// Memory for request bodies, shared by all requests of a node.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Semaphore>);

/// A body in memory, with its part of the budget.
#[derive(Debug)]
pub struct Collected {
    /// The bytes.
    pub bytes: Bytes,
    _held: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// Room for `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    /// Reads a whole body of at most `limit` bytes.
    pub async fn collect(
        &self,
        mut body: Body,
        limit: usize,
        deadline: Instant,
    ) -> Result<Collected, ApiError> {
        let collected = self.gather(&mut body, limit, deadline).await;
        if collected.is_err() {
            discard(&mut body, deadline.min(Instant::now() + LINGER)).await;
        }
        collected
    }

    async fn gather(&self, body: &mut Body, limit: usize, deadline: Instant) -> Result<Collected, ApiError> {
        if body.size_hint().lower() > limit as u64 {
            return Err(ApiError::body_too_large());
        }
        let (mut bytes, mut held) = (BytesMut::new(), None::<OwnedSemaphorePermit>);
        while let Some(data) = next_data(body, deadline).await? {
            if bytes.len().saturating_add(data.len()) > limit {
                return Err(ApiError::body_too_large());
            }
            bytes.extend_from_slice(&data);
            self.hold(&mut held, bytes.len())?;
        }
        Ok(Collected { bytes: bytes.freeze(), _held: held })
    }

    fn hold(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), ApiError> {
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(UNIT).saturating_sub(have);
        let Ok(more) = u32::try_from(more) else { return Err(ApiError::body_too_large()) };
        if more == 0 {
            return Ok(());
        }
        let permit = Arc::clone(&self.0).try_acquire_many_owned(more);
        let permit = permit.map_err(|_| ApiError::unavailable("too many request bodies in memory"))?;
        match held {
            Some(held) => held.merge(permit),
            None => *held = Some(permit),
        }
        Ok(())
    }
}

/// Reads what is left of a refused body, keeping nothing of it.
async fn discard(body: &mut Body, until: Instant) {
    let mut seen = 0;
    while let Ok(Some(data)) = next_data(body, until).await {
        seen += data.len();
        if seen > LINGER_BYTES {
            return;
        }
    }
}

/// Writes a body to a temporary file that vanishes when it is closed, and returns it at its start.
pub async fn spool(
    mut body: Body,
    dir: &std::path::Path,
    deadline: Instant,
) -> Result<std::fs::File, ApiError> {
    let file = tempfile::tempfile_in(dir).map_err(ApiError::internal)?;
    let mut file = tokio::fs::File::from_std(file);
    while let Some(data) = next_data(&mut body, deadline).await? {
        file.write_all(&data).await.map_err(ApiError::internal)?;
    }
    file.flush().await.map_err(ApiError::internal)?;
    let mut file = file.into_std().await;
    std::io::Seek::rewind(&mut file).map_err(ApiError::internal)?;
    Ok(file)
}

async fn next_data(body: &mut Body, deadline: Instant) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = timeout_at(deadline, body.frame()).await;
        let frame = frame.map_err(|_| ApiError::invalid("the request body did not arrive in time"))?;
        match frame {
            None => return Ok(None),
            Some(Err(cause)) => {
                return Err(ApiError::invalid("error reading the request body").caused_by(cause));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// A body that is already whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body without bytes.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// A body that is read from a file while it is sent.
pub fn file(file: std::fs::File) -> Body {
    let stream = tokio_util::io::ReaderStream::with_capacity(tokio::fs::File::from_std(file), 64 * 1024);
    StreamBody::new(stream.map_ok(Frame::data).map_err(BodyError::from)).boxed_unsync()
}

/// A body that holds on to something until it was sent, or given up.
pub fn holding<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> hyper::body::Body for Holding<T> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// A body of another kind as one of ours.
pub fn boxed<B>(body: B) -> Body
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn chunks(list: Vec<Bytes>) -> Body {
        let frames = list.into_iter().map(|bytes| Ok::<_, BodyError>(Frame::data(bytes)));
        StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
    }

    #[tokio::test]
    async fn one_byte_over_the_limit_is_too_much_however_it_comes() {
        let budget = Budget::new(1 << 20);
        assert_eq!(budget.collect(full("1234"), 4, soon()).await.unwrap().bytes, "1234");
        assert_eq!(budget.collect(full("12345"), 4, soon()).await.unwrap_err().status(), 413);
        let streamed = chunks(vec!["123".into(), "45".into()]);
        assert_eq!(budget.collect(streamed, 4, soon()).await.unwrap_err().status(), 413);
    }

    #[tokio::test]
    async fn all_bodies_together_stay_within_the_budget() {
        let budget = Budget::new(4096);
        let first = budget.collect(full(vec![0; 3000]), 4096, soon()).await.unwrap();
        assert_eq!(budget.collect(full(vec![0; 3000]), 4096, soon()).await.unwrap_err().status(), 503);
        drop(first);
        budget.collect(full(vec![0; 3000]), 4096, soon()).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_cut_at_the_deadline() {
        let hung = StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, BodyError>>());
        let error = Budget::new(4096).collect(hung.boxed_unsync(), 10, Instant::now()).await.unwrap_err();
        assert_eq!(error.status(), 400);
    }

    #[tokio::test]
    async fn a_spooled_body_is_read_back_as_it_came() {
        let dir = tempfile::tempdir().unwrap();
        let spooled = spool(chunks(vec!["ab".into(), "cd".into()]), dir.path(), soon()).await.unwrap();
        assert_eq!(file(spooled).collect().await.unwrap().to_bytes(), "abcd");
    }
}
