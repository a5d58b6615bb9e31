//! The frames that go to the hub, up to the last one that was queued before the end.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use holdfast_proto::relay::v1::SpokeFrame;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Ends once it was told to and the queue is empty.
pub(super) struct Outgoing {
    frames: mpsc::Receiver<SpokeFrame>,
    finish: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Outgoing {
    pub(super) fn new(frames: mpsc::Receiver<SpokeFrame>, finish: CancellationToken) -> Self {
        Self { frames, finish: Box::pin(finish.cancelled_owned()) }
    }
}

impl Stream for Outgoing {
    type Item = SpokeFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SpokeFrame>> {
        if let Poll::Ready(frame) = self.frames.poll_recv(cx) {
            return Poll::Ready(frame);
        }
        self.finish.as_mut().poll(cx).map(|()| None)
    }
}
