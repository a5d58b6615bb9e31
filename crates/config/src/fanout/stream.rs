//! The body of one stream: it writes what the machine says is due, when the connection asks for more.
//!
//! What must hold: nothing is kept for a slow reader but the rest of one frame; a value is encoded once for all streams; the
//! hub forgets the stream when the body is dropped, however that comes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use holdfast_core::stream::{Next, Seq, Why};
use holdfast_net::serve::BodyError;
use holdfast_ops::MonoClock;
use hyper::body::Frame;
use prometheus_client::metrics::counter::Counter;

use super::hub::{Inner, Look, Open, Shared};
use crate::metrics::{EventLabel, Meters};
use crate::wire::{self, Event, Fault};

/// About as much is handed over at once; larger frames come in pieces of it.
const PIECE: usize = 16 * 1024;

/// The counters of `frames_total`.
pub(super) struct FrameCounters([Counter; 5]);

impl FrameCounters {
    pub(super) fn new(meters: &Meters) -> Self {
        let all = [Event::Update, Event::Error, Event::Synced, Event::Goaway, Event::Fresh];
        Self(all.map(|event| meters.frames.get_or_create_owned(&EventLabel { event: event.label() })))
    }

    fn count(&self, event: Event) {
        let [update, error, synced, goaway, fresh] = &self.0;
        let counter = match event {
            Event::Update => update,
            Event::Error => error,
            Event::Synced => synced,
            Event::Goaway => goaway,
            Event::Fresh => fresh,
        };
        counter.inc();
    }
}

/// A stream on its way to its client.
pub struct StreamBody {
    hub: Arc<Shared>,
    open: Arc<Open>,
    /// The rest of a large frame.
    rest: VecDeque<Bytes>,
    begun: bool,
    ended: bool,
}

impl StreamBody {
    pub(super) const fn new(hub: Arc<Shared>, open: Arc<Open>) -> Self {
        Self { hub, open, rest: VecDeque::new(), begun: false, ended: false }
    }

    fn piece_of_rest(&mut self) -> Option<Bytes> {
        let first = self.rest.front_mut()?;
        if first.len() > PIECE {
            return Some(first.split_to(PIECE));
        }
        self.rest.pop_front()
    }

    /// Writes one thing.
    fn write(&mut self, inner: &mut Inner, next: Next<Look>, out: &mut BytesMut) {
        match next {
            Next::Nothing => {}
            Next::End => self.ended = true,
            Next::Heartbeat => out.extend_from_slice(wire::HEARTBEAT),
            Next::Name { index, look, id, why } => self.state(inner, index, look, (id, why), out),
            Next::Denied(index) => self.fault(inner, index, Fault::DENIED, out),
            Next::Unauthenticated(index) => self.fault(inner, index, Fault::UNAUTHENTICATED, out),
            Next::Synced(seq) => {
                let id = inner.domain.id(seq);
                self.frame(inner, Event::Synced, Some(&id), b"{}", out);
            }
            Next::GoAway(reason, within) => {
                self.frame(inner, Event::Goaway, None, &wire::goaway(reason, within), out);
            }
            Next::Fresh(dates) => {
                let names = &self.open.names;
                let named = dates.into_iter().filter_map(|(index, at)| {
                    names.get(index).and_then(|name| std::str::from_utf8(name).ok()).map(|name| (name, at))
                });
                let data = wire::fresh(named);
                self.frame(inner, Event::Fresh, None, &data, out);
            }
        }
    }

    fn state(
        &mut self,
        inner: &mut Inner,
        index: usize,
        look: Look,
        (id, why): (Option<Seq>, Why),
        out: &mut BytesMut,
    ) {
        let name = self.open.names.get(index).map(|name| &**name).unwrap_or_default();
        let Some((entry, record)) = look else {
            self.open.holder.delivered(name, None);
            return self.fault(inner, index, Fault::NOT_BOUND, out);
        };
        let encoded = entry.encoded(&record);
        if wire::data_line(encoded.entry.len()) > self.open.max_frame {
            // Told once for each change; a date alone is none.
            if why != Why::Date {
                self.fault(inner, index, Fault::TOO_LARGE, out);
            }
            return;
        }
        if why == Why::Change {
            self.hub.meters.delivery_seconds.observe(MonoClock.since(record.published).as_secs_f64());
        }
        self.open.holder.delivered(name, Some(&record));
        let id = id.map(|seq| inner.domain.id(seq));
        let event = if encoded.fault.is_some() { Event::Error } else { Event::Update };
        if encoded.entry.len() <= PIECE {
            return self.frame(inner, event, id.as_deref(), &encoded.entry, out);
        }
        inner.frames += 1;
        self.hub.frames.count(event);
        wire::frame_head(out, event, id.as_deref());
        self.rest.push_back(encoded.entry.clone());
        self.rest.push_back(Bytes::from_static(wire::END));
    }

    fn fault(&self, inner: &mut Inner, index: usize, fault: Fault, out: &mut BytesMut) {
        let name = self.open.names.get(index).map(|name| &**name).unwrap_or_default();
        self.frame(inner, Event::Error, None, &wire::error_entry(name, fault), out);
    }

    fn frame(&self, inner: &mut Inner, event: Event, id: Option<&str>, data: &[u8], out: &mut BytesMut) {
        inner.frames += 1;
        self.hub.frames.count(event);
        wire::frame(out, event, id, data);
    }
}

impl hyper::body::Body for StreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let mut out = BytesMut::new();
        // Before the lock: what was followed up to here has been marked.
        let followed = this.hub.followed();
        let (hub, open) = (Arc::clone(&this.hub), Arc::clone(&this.open));
        let mut inner = open.inner.lock();
        let rest = this.piece_of_rest();
        if rest.is_none() {
            if !std::mem::replace(&mut this.begun, true) {
                out.extend_from_slice(wire::PREAMBLE);
            }
            while out.len() < PIECE && this.rest.is_empty() && !this.ended {
                let next = inner.machine.next(followed, |index| hub.look(&open, index));
                if matches!(next, Next::Nothing) {
                    break;
                }
                this.write(&mut inner, next, &mut out);
            }
        }
        let piece = rest.or_else(|| (!out.is_empty()).then(|| out.freeze()));
        match piece {
            Some(piece) => {
                hub.handed(&open, &mut inner, MonoClock.now());
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            None if this.ended => Poll::Ready(None),
            None => {
                inner.taken();
                inner.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.hub.remove(&self.open);
    }
}
