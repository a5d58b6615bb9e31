//! The stream of up to a thousand names: what it says becomes events; where it goes when it ends is decided in
//! `holdfast_core::failover`.
//!
//! What must hold: a value goes out only past the watermark, and one that is held goes out as soon as its date is
//! lifted; the id of the last complete state is kept until another stream gives one; frames that came are told before
//! the next bytes are read, so that an application that is slow holds no queue.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_core::Wall;
use holdfast_core::failover::{
    Effect, End, EndpointId, Event as Told, Standing, StreamId, StreamTiming, Streams,
};
use holdfast_core::time::earliest;

use super::connection::{Connection, Shown, Standings, chunk};
use super::opening::{Opened, open, parts};
use super::{Event, State};
use crate::config::error::Error;
use crate::config::marks::wall;
use crate::config::shared::Shared;
use crate::config::transport::Broken;
use crate::config::value::Value;
use crate::config::wire::{self, Entry, StreamEvent};

/// Without a byte for so long, three heartbeats, a stream is dead.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest id that is kept, in bytes; the server's have 64 at most.
const MAX_ID: usize = 256;

/// What a lane did.
pub enum Step {
    /// Something for the application.
    Event(Event),
    /// Its state may have changed.
    State,
    /// It must become several.
    Split(Vec<Vec<Arc<str>>>),
}

/// An attempt to subscribe.
struct Opening {
    id: StreamId,
    endpoint: usize,
    /// The stream that gave the id that it was sent with.
    resumes: Option<StreamId>,
    future: BoxFuture<'static, Opened>,
}

/// What came, not yet judged against what the application has by then.
enum Item {
    Entry(Entry),
    Fresh(Arc<str>, Wall),
}

enum Happened {
    Chunk(StreamId, Option<Result<Bytes, Broken>>),
    Opened(StreamId, usize, Opened),
    Time,
}

/// The stream of some names.
pub struct Lane {
    shared: Arc<Shared>,
    names: Arc<[Arc<str>]>,
    streams: Streams,
    begun: bool,
    opening: Option<Opening>,
    /// The oldest serves; a second one is about to take over.
    connections: Vec<Connection>,
    last_id: Option<String>,
    /// The stream that gave the id.
    giver: Option<StreamId>,
    /// What the stream said last that gave the id.
    kept: Standings,
    waiting: VecDeque<(StreamId, usize, Item)>,
    trouble: Option<Error>,
    news: bool,
    split: Option<Vec<Vec<Arc<str>>>>,
}

impl Lane {
    /// A stream that begins with the first call of [`Lane::next`].
    pub fn new(shared: Arc<Shared>, names: Vec<Arc<str>>) -> Self {
        let count = NonZeroUsize::new(shared.links.len()).unwrap_or(NonZeroUsize::MIN);
        let streams = Streams::new(count, EndpointId::default(), StreamTiming::default(), Shared::spread());
        Self {
            shared,
            names: names.into(),
            streams,
            begun: false,
            opening: None,
            connections: Vec::new(),
            last_id: None,
            giver: None,
            kept: Standings::new(),
            waiting: VecDeque::new(),
            trouble: None,
            news: false,
            split: None,
        }
    }

    /// The same names as several streams.
    pub fn split(self, parts: Vec<Vec<Arc<str>>>) -> Vec<Self> {
        parts.into_iter().map(|names| Self::new(Arc::clone(&self.shared), names)).collect()
    }

    /// What it does next. May be dropped and called again.
    pub async fn next(&mut self) -> Step {
        if !std::mem::replace(&mut self.begun, true) {
            self.tell(Told::Begin);
        }
        loop {
            if let Some(step) = self.ready() {
                return step;
            }
            let clock = self.shared.clock;
            if self.streams.next_deadline().is_some_and(|at| at <= clock.now()) {
                self.tell(Told::Tick);
                continue;
            }
            let silent = self.connections.iter().map(|connection| connection.heard.after(SILENCE)).min();
            let deadline = earliest(self.streams.next_deadline(), silent);
            // Bytes before time: who was not asked for long has not been silent. A new stream before both, so that one
            // that is busy does not keep it waiting.
            let happened = tokio::select! {
                biased;
                (id, endpoint, opened) = opened(&mut self.opening) => Happened::Opened(id, endpoint, opened),
                (id, chunk) = chunk(&mut self.connections) => Happened::Chunk(id, chunk),
                () = clock.sleep_until(deadline) => Happened::Time,
            };
            match happened {
                Happened::Chunk(id, chunk) => self.take_chunk(id, chunk),
                Happened::Opened(id, endpoint, opened) => self.take_opened(id, endpoint, opened),
                Happened::Time => self.take_time(),
            }
        }
    }

    /// Whether changes arrive; none before that is known.
    pub fn state(&self) -> Option<State> {
        match (self.streams.standing(), self.connections.first(), &self.trouble) {
            (Standing::Live, Some(connection), _) => {
                Some(State::Live { endpoint: self.shared.name(connection.endpoint) })
            }
            (Standing::Refused, _, Some(error)) => Some(State::Refused { error: error.clone() }),
            // The first attempt is still on its way.
            (_, _, None) => None,
            (Standing::Reconnecting { since }, _, error) => {
                let ago = self.shared.clock.now().since(since);
                let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
                let since = Wall::from_micros(wall().as_micros().saturating_sub(ago));
                Some(State::Reconnecting { since, error: error.clone() })
            }
            _ => None,
        }
    }

    /// What can be done without waiting.
    fn ready(&mut self) -> Option<Step> {
        loop {
            if let Some(parts) = self.split.take() {
                return Some(Step::Split(parts));
            }
            if std::mem::take(&mut self.news) {
                return Some(Step::State);
            }
            if let Some((stream, endpoint, item)) = self.waiting.pop_front() {
                match self.judge(stream, endpoint, item) {
                    Some(event) => return Some(Step::Event(event)),
                    None => continue,
                }
            }
            if !self.take_frame() {
                return None;
            }
        }
    }

    /// Takes one frame of any stream; false when there is none.
    fn take_frame(&mut self) -> bool {
        let frame = self.connections.iter_mut().find_map(|connection| {
            let frame = connection.decoder.next_frame()?;
            Some((connection.id, connection.endpoint, frame))
        });
        let Some((stream, endpoint, frame)) = frame else { return false };
        match wire::event(&frame.event, &frame.data) {
            Ok(event) => self.take_event(stream, endpoint, event),
            Err(malformed) => {
                self.lost(stream, endpoint, &malformed.to_string());
                return true;
            }
        }
        if let Some(id) = frame.id.filter(|id| id.len() <= MAX_ID) {
            self.last_id = Some(id).filter(|id| !id.is_empty());
            self.giver = Some(stream);
        }
        true
    }

    fn take_event(&mut self, stream: StreamId, endpoint: usize, event: StreamEvent) {
        match event {
            StreamEvent::Entry(entry) => {
                if !self.names.contains(entry.name()) {
                    return;
                }
                let complete = self.connection(stream).is_some_and(|of| of.saw(entry.name()));
                self.waiting.push_back((stream, endpoint, Item::Entry(entry)));
                // A server that knows no subscription by POST sends no `synced` either.
                if complete && self.shared.is_get_only(endpoint) {
                    self.tell(Told::Synced(stream));
                }
            }
            StreamEvent::Synced => self.tell(Told::Synced(stream)),
            StreamEvent::Fresh(dates) => {
                let items =
                    dates.into_iter().map(|(name, at)| (stream, endpoint, Item::Fresh(name.into(), at)));
                self.waiting.extend(items);
            }
            StreamEvent::GoAway(within) => {
                self.shared.gone(endpoint);
                self.tell(Told::GoAway { stream, within });
            }
            StreamEvent::Other => {}
        }
    }

    /// What the application gets of what came.
    fn judge(&mut self, stream: StreamId, endpoint: usize, item: Item) -> Option<Event> {
        match item {
            Item::Entry(Entry::Value(value)) => {
                let value = Value { endpoint: self.shared.name(endpoint), ..*value };
                self.offer(stream, value)
            }
            Item::Entry(Entry::Error { name, refusal }) => {
                if let Some(connection) = self.connection(stream) {
                    connection.shown.remove(&name);
                }
                self.tell_behind(stream);
                let (kind, message) = (refusal.kind, refusal.message.into());
                Some(Event::Error { name, kind, message, endpoint: self.shared.name(endpoint) })
            }
            Item::Fresh(name, resolved_at) => self.lift(stream, &name, resolved_at),
        }
    }

    fn offer(&mut self, stream: StreamId, value: Value) -> Option<Event> {
        let name = Arc::clone(&value.name);
        let (shown, event) = if self.shared.marks.hand_over(wall(), &value) {
            (Shown::Taken(value.clone()), Some(Event::Update(value)))
        } else {
            (Shown::Held(value), None)
        };
        // The stream may be gone while its last frames are told.
        if let Some(connection) = self.connection(stream) {
            connection.shown.insert(name, shown);
        }
        self.tell_behind(stream);
        event
    }

    /// Tells when a stream begins or ends to hold back what the application does not have.
    fn tell_behind(&mut self, stream: StreamId) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == stream) else {
            return;
        };
        let held = |shown: &Shown| matches!(shown, Shown::Held(value) if !self.shared.marks.has(value));
        let behind = connection.shown.values().any(held);
        if std::mem::replace(&mut connection.behind, behind) != behind {
            self.tell(Told::Behind { stream, behind });
        }
    }

    /// A replica confirmed what it sent last: what was held may pass now, what was taken has a newer date.
    fn lift(&mut self, stream: StreamId, name: &Arc<str>, resolved_at: Wall) -> Option<Event> {
        let shown = self.connection(stream)?.shown.get(name)?.clone();
        match shown {
            Shown::Held(value) => self.offer(stream, Value { resolved_at: Some(resolved_at), ..value }),
            Shown::Taken(value) => {
                let newer = value.resolved_at.is_none_or(|before| before < resolved_at);
                let value = Value { resolved_at: Some(resolved_at), ..value };
                // Another stream or a read may have handed something else over in the meantime.
                if !newer || !self.shared.marks.has(&value) {
                    return if newer { self.offer(stream, value) } else { None };
                }
                let (name, endpoint) = (Arc::clone(name), Arc::clone(&value.endpoint));
                self.offer(stream, value)?;
                Some(Event::Fresh { name, resolved_at, endpoint })
            }
        }
    }

    fn take_chunk(&mut self, stream: StreamId, chunk: Option<Result<Bytes, Broken>>) {
        let now = self.shared.clock.now();
        let Some(connection) = self.connection(stream) else { return };
        let endpoint = connection.endpoint;
        let trouble = match chunk {
            Some(Ok(bytes)) => {
                connection.heard = now;
                connection.decoder.push(&bytes).err().map(|error| error.to_string())
            }
            Some(Err(broken)) => Some(broken.to_string()),
            None => Some("the stream ended".to_owned()),
        };
        if let Some(trouble) = trouble {
            self.lost(stream, endpoint, &trouble);
        }
    }

    fn take_opened(&mut self, id: StreamId, endpoint: usize, opened: Opened) {
        let resumes = self.opening.take().and_then(|opening| opening.resumes);
        match opened {
            Opened::Stream(reply) => {
                let now = self.shared.clock.now();
                let shown = self.resumed(resumes);
                self.connections.push(Connection::new(id, endpoint, now, *reply, &self.names, shown));
                self.tell(Told::Opened(id));
                self.tell_behind(id);
            }
            Opened::Lost(error) => {
                self.shared.gone(endpoint);
                self.failed(error);
                self.tell(Told::Ended(id, End::Lost));
            }
            Opened::Refused(error) => {
                let retry_after = error.retry_after();
                self.failed(error);
                self.tell(Told::Ended(id, End::Refused { retry_after }));
            }
            Opened::TooMany => self.split = Some(parts(&self.names)),
        }
    }

    fn take_time(&mut self) {
        let now = self.shared.clock.now();
        let silent = |of: &&Connection| of.heard.after(SILENCE) <= now;
        if let Some((id, endpoint)) = self.connections.iter().find(silent).map(|of| (of.id, of.endpoint)) {
            self.lost(id, endpoint, "no byte came for 45 s");
        }
        self.tell(Told::Tick);
    }

    /// A stream is over.
    fn lost(&mut self, stream: StreamId, endpoint: usize, reason: &str) {
        self.drop_connection(stream);
        self.shared.gone(endpoint);
        self.failed(self.shared.unreachable(endpoint, reason));
        self.tell(Told::Ended(stream, End::Lost));
    }

    fn failed(&mut self, error: Error) {
        tracing::debug!(%error, "a stream of the config server ended, or did not begin");
        self.trouble = Some(error);
        self.news = true;
    }

    fn tell(&mut self, event: Told) {
        let mut effects = Vec::new();
        self.streams.on(self.shared.clock.now(), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Open(id, endpoint) => {
                    let endpoint = endpoint.index();
                    let future = open(&self.shared, endpoint, &self.names, self.last_id.clone());
                    self.opening = Some(Opening { id, endpoint, resumes: self.giver, future });
                }
                Effect::Close(id) => {
                    self.drop_connection(id);
                    self.news = true;
                }
                Effect::Show(_) => self.news = true,
            }
        }
    }

    /// What a stream goes on from that was sent with the id of another one. A server that takes the id repeats nothing of
    /// what that one had said, and what any other one said is no part of it.
    fn resumed(&self, resumes: Option<StreamId>) -> Standings {
        let live = self.connections.iter().find(|connection| Some(connection.id) == resumes);
        match live {
            Some(giver) => giver.shown.clone(),
            None if resumes == self.giver => self.kept.clone(),
            None => Standings::new(),
        }
    }

    fn drop_connection(&mut self, stream: StreamId) {
        if let Some(at) = self.connections.iter().position(|connection| connection.id == stream) {
            let gone = self.connections.remove(at);
            if self.giver == Some(stream) {
                self.kept = gone.shown;
            }
        }
        self.opening.take_if(|opening| opening.id == stream);
    }

    fn connection(&mut self, stream: StreamId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == stream)
    }
}

async fn opened(opening: &mut Option<Opening>) -> (StreamId, usize, Opened) {
    match opening {
        Some(opening) => (opening.id, opening.endpoint, (&mut opening.future).await),
        None => std::future::pending().await,
    }
}
