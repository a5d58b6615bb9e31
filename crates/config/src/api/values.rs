//! Reading values: one, or many in one answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use holdfast_core::AnswerKind;
use holdfast_net::serve::{Body, BodyError};
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};

use super::exchange::{Exchange, Note, status_of};
use super::{answer, body};
use crate::config::Verb;
use crate::fanout::board::{Entry, Record};
use crate::wire::{self, Fault, message};

/// About as much of a batch is handed over at once.
const PIECE: usize = 16 * 1024;

/// What a batch ends with.
const END: &[u8] = b"]}";

/// What a name that is allowed gives.
enum Found {
    Unbound,
    Bound(Arc<Entry>, Arc<Record>),
}

fn find(exchange: &Exchange, name: &[u8]) -> Found {
    let entry = std::str::from_utf8(name).ok().and_then(|name| exchange.api.parts.board.get(name));
    match entry {
        None => Found::Unbound,
        Some(entry) => {
            let record = entry.load();
            Found::Bound(entry, record)
        }
    }
}

/// `GET /v1/values/{name}`
pub(super) fn one(exchange: &Exchange, name: &[u8]) -> (Response<Body>, Option<AnswerKind>) {
    if !exchange.allows(Verb::Read, name) {
        return exchange.refuse(&Fault::DENIED.into());
    }
    if let Err(refused) = exchange.audit_ready() {
        return exchange.refuse(&refused);
    }
    let found = find(exchange, name);
    let (fault, record) = match &found {
        Found::Unbound => (Some(Fault::NOT_BOUND), None),
        Found::Bound(entry, record) => (entry.encoded(record).fault, Some(&**record)),
    };
    let kind = fault.map(|fault| fault.kind);
    // On a value that is served, the kind says how its upstream fails.
    let shown = kind.or_else(|| record.and_then(|record| record.state.trouble).map(|trouble| trouble.kind));
    let note = Note { name, allow: true, kind: shown, status: status_of(kind).as_u16(), record, reason: "" };
    if !exchange.record(note) {
        return exchange.refuse(&Fault::new(AnswerKind::Unavailable, message::AUDIT).into());
    }
    let response = match (fault, &found) {
        (None, Found::Bound(entry, record)) => {
            answer::json(status_of(None), entry.encoded(record).entry.clone())
        }
        (fault, _) => answer::refusal(fault.unwrap_or(Fault::NOT_BOUND)),
    };
    (response, kind)
}

/// `POST /v1/values`
pub(super) async fn batch(exchange: Exchange, body: Incoming) -> (Response<Body>, Option<AnswerKind>) {
    let names = match names(&exchange, body).await {
        Ok(names) => names,
        Err(fault) => return exchange.refuse(&fault.into()),
    };
    if let Err(refused) = exchange.audit_ready() {
        return exchange.refuse(&refused);
    }
    if names.is_empty() {
        let _ = exchange.record(Note { allow: true, status: 200, ..Note::default() });
    }
    let body = Batch { exchange, names: names.into(), first: true, rest: VecDeque::new(), ended: false };
    (answer::streamed_json(status_of(None), body.boxed_unsync()), None)
}

async fn names(exchange: &Exchange, body: Incoming) -> Result<Vec<Box<[u8]>>, Fault> {
    let names = body::read(body).await?.take_names();
    let most = exchange.world.configuration.settings.limits.batch_names as usize;
    if most > 0 && names.len() > most {
        return Err(Fault::new(AnswerKind::Invalid, message::TOO_MANY_NAMES));
    }
    Ok(names)
}

/// The answer to a batch, made entry by entry as the connection takes it: each name is judged, recorded and looked up when
/// its turn comes.
struct Batch {
    exchange: Exchange,
    names: VecDeque<Box<[u8]>>,
    first: bool,
    /// The rest of what is large.
    rest: VecDeque<Bytes>,
    ended: bool,
}

impl Batch {
    fn entry(&self, name: &[u8]) -> Bytes {
        let exchange = &self.exchange;
        let note = |kind: Option<AnswerKind>, allow, record| Note {
            name,
            allow,
            kind,
            status: status_of(kind).as_u16(),
            record,
            reason: "",
        };
        if !exchange.allows(Verb::Read, name) {
            let _ = exchange.record(note(Some(AnswerKind::PermissionDenied), false, None));
            return wire::error_entry(name, Fault::DENIED);
        }
        let (entry, noted) = match find(exchange, name) {
            Found::Unbound => {
                let noted = exchange.record(note(Some(AnswerKind::NotFound), true, None));
                (wire::error_entry(name, Fault::NOT_BOUND), noted)
            }
            Found::Bound(entry, record) => {
                let encoded = entry.encoded(&record);
                let kind = encoded.fault.map(|fault| fault.kind);
                (encoded.entry.clone(), exchange.record(note(kind, true, Some(&record))))
            }
        };
        let unavailable = Fault::new(AnswerKind::Unavailable, message::AUDIT);
        if noted { entry } else { wire::error_entry(name, unavailable) }
    }

    fn piece_of_rest(&mut self) -> Option<Bytes> {
        let first = self.rest.front_mut()?;
        if first.len() > PIECE {
            return Some(first.split_to(PIECE));
        }
        self.rest.pop_front()
    }

    fn fill(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        if std::mem::take(&mut self.first) {
            out.extend_from_slice(b"{\"values\":[");
        } else if !self.names.is_empty() {
            out.extend_from_slice(b",");
        }
        while let Some(name) = self.names.pop_front() {
            let entry = self.entry(&name);
            if entry.len() > PIECE {
                self.rest.push_back(entry);
            } else {
                out.extend_from_slice(&entry);
            }
            if out.len() >= PIECE || !self.rest.is_empty() {
                break;
            }
            if !self.names.is_empty() {
                out.extend_from_slice(b",");
            }
        }
        if self.names.is_empty() {
            self.ended = true;
            match self.rest.is_empty() {
                true => out.extend_from_slice(END),
                false => self.rest.push_back(Bytes::from_static(END)),
            }
        }
        out.freeze()
    }
}

impl hyper::body::Body for Batch {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(piece) = this.piece_of_rest() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let piece = this.fill();
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
    }
}
